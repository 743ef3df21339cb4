//! Flows in fixed patterns: incast, all-to-all, permutation, staggered; all in order of start.

use rand::RngExt;
use rand::seq::SliceRandom;

use super::SizeDistribution;
use crate::rng::{Purpose, Stream};
use crate::{FlowSpec, HostId, Span, Time};

/// Times of the rounds of a repeated pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rounds {
    /// Begin of the first round.
    pub start: Time,
    /// Time from one round to the next.
    pub period: Span,
    /// Number of rounds.
    pub count: u32,
}

impl Rounds {
    /// Makes one round at `start`.
    #[must_use]
    pub const fn once(start: Time) -> Self {
        Self {
            start,
            period: Span::ZERO,
            count: 1,
        }
    }

    fn at(&self, round: u32) -> Time {
        // Saturated times lie beyond every run.
        let passed = self.period.as_ps().saturating_mul(u64::from(round));
        Time::from_ps(self.start.as_ps().saturating_add(passed))
    }
}

/// Rounds in which several hosts send to one at the same moment.
#[derive(Clone, Debug)]
pub struct Incast {
    candidates: Vec<HostId>,
    senders: usize,
    receiver: HostId,
    sizes: SizeDistribution,
    rounds: Rounds,
    next: u32,
    sent: usize,
    rng: Stream,
}

impl Incast {
    /// Lets `senders` other hosts send to `receiver` in each round, drawn without replacement; all
    /// others if there are fewer.
    #[must_use]
    pub fn new(
        hosts: u32,
        senders: u32,
        receiver: HostId,
        sizes: SizeDistribution,
        rounds: Rounds,
        seed: u64,
    ) -> Self {
        let candidates: Vec<HostId> = (0..hosts).map(HostId).filter(|h| *h != receiver).collect();
        Self {
            senders: candidates.len().min(senders as usize),
            candidates,
            receiver,
            sizes,
            rounds,
            next: 0,
            sent: 0,
            rng: Stream::new(seed, Purpose::Arrivals, 0),
        }
    }
}

impl Iterator for Incast {
    type Item = FlowSpec;

    fn next(&mut self) -> Option<FlowSpec> {
        if self.sent == self.senders {
            (self.next, self.sent) = (self.next + 1, 0);
        }
        if self.next >= self.rounds.count || self.senders == 0 {
            return None;
        }
        // One step of a Fisher–Yates shuffle per sender draws without replacement.
        let pick = self.rng.random_range(self.sent..self.candidates.len());
        // Swaps of earlier rounds stay: a uniform draw may begin from any order.
        self.candidates.swap(self.sent, pick);
        let src = self.candidates[self.sent];
        self.sent += 1;
        let bytes = self.sizes.sample(&mut self.rng);
        Some(FlowSpec::new(
            src,
            self.receiver,
            bytes,
            self.rounds.at(self.next),
        ))
    }
}

/// Rounds in which every host sends to every other.
#[derive(Clone, Debug)]
pub struct AllToAll {
    hosts: u32,
    sizes: SizeDistribution,
    rounds: Rounds,
    next: u32,
    shift: u32,
    src: u32,
    rng: Stream,
}

impl AllToAll {
    /// Sends between every ordered pair once per round, all at its beginning. Pairs come in the
    /// order of shifts (host i to i + 1, then i + 2, …), so that no receiver is preferred.
    #[must_use]
    pub fn new(hosts: u32, sizes: SizeDistribution, rounds: Rounds, seed: u64) -> Self {
        Self {
            hosts,
            sizes,
            rounds,
            next: 0,
            shift: 1,
            src: 0,
            rng: Stream::new(seed, Purpose::Arrivals, 0),
        }
    }
}

impl Iterator for AllToAll {
    type Item = FlowSpec;

    fn next(&mut self) -> Option<FlowSpec> {
        if self.src == self.hosts {
            (self.shift, self.src) = (self.shift + 1, 0);
        }
        // Shifts 1 to hosts − 1 make all ordered pairs; shift 0 would pair a host with itself.
        if self.shift >= self.hosts {
            (self.next, self.shift) = (self.next + 1, 1);
        }
        if self.next >= self.rounds.count || self.hosts < 2 {
            return None;
        }
        let (src, dst) = (self.src, (self.src + self.shift) % self.hosts);
        self.src += 1;
        let bytes = self.sizes.sample(&mut self.rng);
        Some(FlowSpec::new(
            HostId(src),
            HostId(dst),
            bytes,
            self.rounds.at(self.next),
        ))
    }
}

/// Every host sends to one other and receives from one other.
#[derive(Clone, Debug)]
pub struct Permutation {
    to: Vec<HostId>,
    sizes: SizeDistribution,
    unbounded: bool,
    rounds: Rounds,
    next: u32,
    src: usize,
    rng: Stream,
}

impl Permutation {
    /// Draws a permutation without fixed points for each round. `sizes` of `None`: flows without
    /// end.
    #[must_use]
    pub fn new(hosts: u32, sizes: Option<SizeDistribution>, rounds: Rounds, seed: u64) -> Self {
        Self {
            to: (0..hosts).map(HostId).collect(),
            unbounded: sizes.is_none(),
            // Never sampled where flows have no end.
            sizes: sizes.unwrap_or_else(|| SizeDistribution::constant(1)),
            rounds,
            next: 0,
            // As after a round: the first call draws the first permutation.
            src: hosts as usize,
            rng: Stream::new(seed, Purpose::Arrivals, 0),
        }
    }

    /// Returns true if its flows have no end.
    #[must_use]
    pub const fn is_unbounded(&self) -> bool {
        self.unbounded
    }

    /// Draws a random cycle through all hosts. Each sends to its successor, so no point is fixed.
    fn draw(&mut self) {
        let mut cycle: Vec<usize> = (0..self.to.len()).collect();
        cycle.shuffle(&mut self.rng);
        for (i, host) in cycle.iter().enumerate() {
            self.to[*host] = HostId(cycle[(i + 1) % cycle.len()] as u32);
        }
    }
}

impl Iterator for Permutation {
    type Item = FlowSpec;

    fn next(&mut self) -> Option<FlowSpec> {
        if self.src == self.to.len() {
            if self.next >= self.rounds.count || self.to.len() < 2 {
                return None;
            }
            self.draw();
            (self.next, self.src) = (self.next + 1, 0);
        }
        let src = HostId(self.src as u32);
        let dst = self.to[self.src];
        self.src += 1;
        let bytes = if self.unbounded {
            FlowSpec::UNBOUNDED
        } else {
            self.sizes.sample(&mut self.rng)
        };
        Some(FlowSpec::new(
            src,
            dst,
            bytes,
            // `next` was raised when this round was drawn.
            self.rounds.at(self.next - 1),
        ))
    }
}

/// Senders that start one after another towards one receiver and stop in the same order (flowtune
/// fig. 8): flow i lasts from `i` intervals until `n + i` intervals after the beginning.
#[derive(Clone, Debug)]
pub struct Staggered {
    /// Senders in the order in which they start.
    pub senders: Vec<HostId>,
    /// Receiver of all flows.
    pub receiver: HostId,
    /// Start of the first flow.
    pub start: Time,
    /// Time from one start, or stop, to the next.
    pub interval: Span,
    /// True if flows stop; otherwise they last for ever.
    pub stops: bool,
    next: usize,
}

impl Staggered {
    /// Makes the flows of `senders`.
    #[must_use]
    pub const fn new(
        senders: Vec<HostId>,
        receiver: HostId,
        start: Time,
        interval: Span,
        stops: bool,
    ) -> Self {
        Self {
            senders,
            receiver,
            start,
            interval,
            stops,
            next: 0,
        }
    }

    fn after(&self, intervals: usize) -> Time {
        let passed = self.interval.as_ps().saturating_mul(intervals as u64);
        Time::from_ps(self.start.as_ps().saturating_add(passed))
    }
}

impl Iterator for Staggered {
    type Item = FlowSpec;

    fn next(&mut self) -> Option<FlowSpec> {
        let src = *self.senders.get(self.next)?;
        let mut flow = FlowSpec::new(
            src,
            self.receiver,
            FlowSpec::UNBOUNDED,
            self.after(self.next),
        );
        if self.stops {
            // One interval per sender after its start, so that all of them overlap once.
            flow.stop = self.after(self.senders.len() + self.next);
        }
        self.next += 1;
        Some(flow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn rounds(count: u32) -> Rounds {
        Rounds {
            start: Time::from_us(5),
            period: Span::from_us(100),
            count,
        }
    }

    #[test]
    fn incast_draws_distinct_senders_each_round() {
        let size = SizeDistribution::constant(1_000);
        let flows: Vec<FlowSpec> = Incast::new(20, 8, HostId(3), size, rounds(3), 1).collect();
        assert_eq!(flows.len(), 24);
        for (round, part) in flows.chunks(8).enumerate() {
            let senders: BTreeSet<HostId> = part.iter().map(|f| f.src).collect();
            assert_eq!(senders.len(), 8);
            assert!(!senders.contains(&HostId(3)));
            for flow in part {
                assert_eq!((flow.dst, flow.bytes), (HostId(3), 1_000));
                assert_eq!(flow.start, Time::from_us(5 + 100 * round as u64));
            }
        }
    }

    #[test]
    fn incast_takes_no_more_senders_than_there_are() {
        let size = SizeDistribution::constant(1);
        assert_eq!(
            Incast::new(4, 9, HostId(0), size.clone(), rounds(2), 1).count(),
            6
        );
        assert_eq!(Incast::new(1, 9, HostId(0), size, rounds(2), 1).count(), 0);
    }

    #[test]
    fn all_to_all_has_every_pair_once() {
        let size = SizeDistribution::constant(7);
        let flows: Vec<FlowSpec> = AllToAll::new(6, size, rounds(2), 1).collect();
        assert_eq!(flows.len(), 60);
        for part in flows.chunks(30) {
            let pairs: BTreeSet<(HostId, HostId)> = part.iter().map(|f| (f.src, f.dst)).collect();
            assert_eq!(pairs.len(), 30);
            assert!(pairs.iter().all(|(src, dst)| src != dst));
        }
        assert!(flows.is_sorted_by_key(|f| f.start));
    }

    #[test]
    fn a_permutation_sends_and_receives_once() {
        for hosts in [2, 3, 17, 128] {
            let flows: Vec<FlowSpec> = Permutation::new(hosts, None, rounds(1), 2).collect();
            assert_eq!(flows.len(), hosts as usize);
            let receivers: BTreeSet<HostId> = flows.iter().map(|f| f.dst).collect();
            assert_eq!(receivers.len(), hosts as usize);
            assert!(
                flows
                    .iter()
                    .all(|f| f.src != f.dst && f.bytes == FlowSpec::UNBOUNDED)
            );
        }
    }

    #[test]
    fn staggered_flows_overlap_like_a_staircase() {
        let senders = (1..=5).map(HostId).collect();
        let interval = Span::from_ms(10);
        let flows: Vec<FlowSpec> =
            Staggered::new(senders, HostId(0), Time::ZERO, interval, true).collect();
        let active = |ms: u64| {
            let at = Time::from_ms(ms);
            flows
                .iter()
                .filter(|f| f.start <= at && at < f.stop)
                .count()
        };
        let staircase: Vec<usize> = (0..10).map(|step| active(step * 10 + 5)).collect();
        assert_eq!(staircase, [1, 2, 3, 4, 5, 4, 3, 2, 1, 0]);
    }
}
