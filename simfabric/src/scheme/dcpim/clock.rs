//! The clock of epochs and rounds, which all hosts share.

use crate::time::{Span, Time};

/// Part of a matching at one end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stage {
    /// Begin.
    pub(super) at: Time,
    /// Number of the matching.
    pub(super) epoch: u64,
    /// Number of the round, from 0 on. For receivers, that after the last ends the matching.
    pub(super) round: u32,
}

/// Epochs that begin at time 0, one after another. The first part of each is a matching, whose data
/// phase begins with its end and is as long as an epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    round: Span,
    rounds: u32,
    period: Span,
}

impl Clock {
    /// Makes a clock of rounds that last so long, and of epochs of `alpha` matchings.
    pub(super) fn new(round: Span, rounds: u32, alpha: f64) -> Self {
        // A half round must be a time.
        let round = Span(round.0.max(2));
        Self {
            round,
            rounds,
            period: (round * u64::from(rounds)).mul_f64(alpha.max(1.0)),
        }
    }

    /// Returns the time from an epoch to the next, and of a data phase.
    pub(super) fn period(&self) -> Span {
        self.period
    }

    /// Returns the number of rounds.
    pub(super) fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Returns true if a matching ends when the next begins.
    pub(super) fn is_seamless(&self) -> bool {
        self.round * u64::from(self.rounds) >= self.period
    }

    /// Returns the begin of the data phase of a matching.
    pub(super) fn data_begins(&self, epoch: u64) -> Time {
        Time(epoch * self.period.0 + self.round.0 * u64::from(self.rounds))
    }

    /// Returns the end of the data phase that this moment is in; before the first, its begin.
    pub(super) fn data_ends(&self, at: Time) -> Time {
        let matching = self.round.0 * u64::from(self.rounds);
        let Some(past) = at.0.checked_sub(matching) else {
            return Time(matching);
        };
        Time((past / self.period.0 + 1) * self.period.0 + matching)
    }

    /// Returns the first stage of receivers at or after a moment.
    pub(super) fn receivers(&self, at: Time) -> Stage {
        let (epoch, past) = (at.0 / self.period.0, at.0 % self.period.0);
        let round = past.div_ceil(self.round.0);
        let begin = round * self.round.0;
        if begin < self.period.0 && round <= u64::from(self.rounds) {
            return self.stage(epoch, round as u32, begin);
        }
        self.stage(epoch + 1, 0, 0)
    }

    /// Returns the first stage of senders at or after a moment: half a round behind receivers'.
    pub(super) fn senders(&self, at: Time) -> Stage {
        let half = self.round.0 / 2;
        let (epoch, past) = (at.0 / self.period.0, at.0 % self.period.0);
        let round = past.saturating_sub(half).div_ceil(self.round.0);
        if round < u64::from(self.rounds) {
            return self.stage(epoch, round as u32, round * self.round.0 + half);
        }
        self.stage(epoch + 1, 0, half)
    }

    fn stage(&self, epoch: u64, round: u32, begin: u64) -> Stage {
        Stage {
            at: Time(epoch * self.period.0 + begin),
            epoch,
            round,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(clock: Clock, next: fn(&Clock, Time) -> Stage, until: u64) -> Vec<(u64, u64, u32)> {
        let mut all = Vec::new();
        let mut at = Time(0);
        while at.0 <= until {
            let stage = next(&clock, at);
            all.push((stage.at.0, stage.epoch, stage.round));
            at = Time(stage.at.0 + 1);
        }
        all
    }

    /// With α = 1 a matching ends when the next begins, and senders act between receivers.
    #[test]
    fn rounds_follow_each_other() {
        let clock = Clock::new(Span(10), 3, 1.0);
        assert!(clock.is_seamless());
        let receivers = stages(clock, Clock::receivers, 30);
        let expected = [(0, 0, 0), (10, 0, 1), (20, 0, 2), (30, 1, 0)];
        assert_eq!(receivers, expected);
        let senders = stages(clock, Clock::senders, 30);
        assert_eq!(senders, [(5, 0, 0), (15, 0, 1), (25, 0, 2), (35, 1, 0)]);
        assert_eq!(clock.data_begins(1), Time(60));
        let ends = [0, 29, 30, 59, 60].map(|at| clock.data_ends(Time(at)).0);
        assert_eq!(ends, [30, 30, 60, 60, 90]);
    }

    /// With α = 2 a matching has an end of its own, and as much time passes without one.
    #[test]
    fn a_longer_data_phase_leaves_a_pause() {
        let clock = Clock::new(Span(10), 2, 2.0);
        assert!(!clock.is_seamless());
        let receivers = stages(clock, Clock::receivers, 30);
        assert_eq!(receivers, [(0, 0, 0), (10, 0, 1), (20, 0, 2), (40, 1, 0)]);
        let senders = stages(clock, Clock::senders, 30);
        assert_eq!(senders, [(5, 0, 0), (15, 0, 1), (45, 1, 0)]);
        assert_eq!(clock.data_begins(0), Time(20));
        assert_eq!(
            [20, 59, 60].map(|at| clock.data_ends(Time(at)).0),
            [60, 60, 100]
        );
    }
}
