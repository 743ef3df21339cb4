//! DCQCN (Zhu et al., SIGCOMM 2015): the sender's reaction point. Rates fall by notifications and
//! rise by a timer and a byte counter, in stages.
//!
//! | rule | source |
//! |---|---|
//! | a notification: R_T = R_C, R_C = R_C (1 − α/2), α = (1 − g) α + g, stages begin anew | §3.1, equation 1 |
//! | no notification for an interval: α = (1 − g) α | equation 2 |
//! | timer or byte counter, up to F times: R_C = (R_T + R_C) / 2 | equation 3 |
//! | one of them beyond F: R_T = R_T + R_AI first | equation 4 |
//! | both beyond F: R_T = R_T + i R_HAI first | §3.1, *hyper increase* |
//!
//! [`Reaction::Periodic`] is the rule of network interfaces as HPCC's public simulator has it: each
//! acknowledgement tells of the mark of its packet, and the sender looks at fixed intervals whether
//! any did. Its first notification only starts the intervals and α. It has no byte counter, a cut
//! keeps R_T if nothing has increased since the cut before, and a new rate holds from the packet
//! after the next one on: senders that rise together from a low rate do not burst together.
//!
//! α is computed when it is asked for, which gives what a clock would.

use serde::{Deserialize, Serialize};

use super::{Acked, Control, PathFacts};
use crate::time::{Span, Time};

/// Moment of a cut.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reaction {
    /// Each notification, which is a packet of the receiver's (DCQCN §3.1).
    #[default]
    Cnp,
    /// The end of each interval in which an acknowledgement told of a mark.
    Periodic,
}

/// DCQCN's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DcqcnConfig {
    /// Moment of a cut.
    pub reaction: Reaction,
    /// Gain g of α.
    pub gain: f64,
    /// Interval of α.
    pub alpha_interval: Span,
    /// Interval of cuts, of [`Reaction::Periodic`].
    pub decrease_interval: Span,
    /// Time from a cut, or an increase, to the next increase.
    pub increase_interval: Span,
    /// Bytes on the link between increases, of [`Reaction::Cnp`].
    pub byte_counter: u64,
    /// Stages F of fast recovery.
    pub fast_recovery: u32,
    /// Additive increase R_AI, in bit/s.
    pub additive_bps: f64,
    /// Hyper increase R_HAI, in bit/s.
    pub hyper_bps: f64,
    /// Least rate, in bit/s.
    pub min_rate_bps: f64,
    /// True if a window of what is in flight at the rate on an idle path holds, too.
    pub window: bool,
}

/// The control of one flow.
#[derive(Clone, Copy, Debug)]
pub struct Dcqcn {
    config: DcqcnConfig,
    path: PathFacts,
    /// Current rate R_C and target rate R_T, in bit/s.
    rate_bps: f64,
    target_bps: f64,
    alpha: f64,
    /// End of the present interval of α; the greatest time before the first notification.
    alpha_at: Time,
    /// A notification came in the present interval of α, or of cuts.
    notified_for_alpha: bool,
    notified: bool,
    /// End of the present interval of cuts.
    decrease_at: Time,
    /// Time of the next increase.
    increase_at: Time,
    /// Increases by timer and by bytes since the last cut.
    time_stage: u32,
    byte_stage: u32,
    bytes: u64,
}

impl Dcqcn {
    /// Returns α at a time.
    #[must_use]
    pub fn alpha(&self, now: Time) -> f64 {
        let mut copy = *self;
        copy.advance_alpha(now);
        copy.alpha
    }

    /// Brings α to the present.
    fn advance_alpha(&mut self, now: Time) {
        if self.alpha_at > now {
            return;
        }
        let interval = self.config.alpha_interval.0.max(1);
        let ended = (now.0 - self.alpha_at.0) / interval + 1;
        let kept = 1.0 - self.config.gain;
        self.alpha *= kept;
        if self.notified_for_alpha {
            self.alpha += self.config.gain;
        }
        self.alpha *= kept.powi((ended - 1).try_into().unwrap_or(i32::MAX));
        self.notified_for_alpha = false;
        self.alpha_at += Span(interval.saturating_mul(ended));
    }

    /// Brings the interval of cuts to the one of the present.
    fn advance_decrease(&mut self, now: Time) {
        if self.decrease_at <= now {
            let interval = self.config.decrease_interval.0.max(1);
            let ended = (now.0 - self.decrease_at.0) / interval + 1;
            self.decrease_at += Span(interval.saturating_mul(ended));
        }
    }

    fn cut(&mut self, now: Time) {
        self.rate_bps *= 1.0 - self.alpha / 2.0;
        let least = self.config.min_rate_bps.min(self.path.line_bps);
        self.rate_bps = self.rate_bps.max(least);
        (self.time_stage, self.byte_stage, self.bytes) = (0, 0, 0);
        self.increase_at = now + self.config.increase_interval;
    }

    fn increase(&mut self) {
        let last = self.config.fast_recovery;
        let periodic = self.config.reaction == Reaction::Periodic;
        let (most, least) = if periodic {
            (self.time_stage, self.time_stage)
        } else {
            let (time, bytes) = (self.time_stage, self.byte_stage);
            (time.max(bytes), time.min(bytes))
        };
        if periodic && most > last {
            self.target_bps += self.config.hyper_bps;
        } else if !periodic && least >= last {
            // As the authors' simulator counts: once when both have reached F.
            self.target_bps += self.config.hyper_bps * f64::from(least - last + 1);
        } else if most >= last {
            self.target_bps += self.config.additive_bps;
        }
        self.target_bps = self.target_bps.min(self.path.line_bps);
        self.rate_bps = f64::midpoint(self.rate_bps, self.target_bps);
    }

    fn notify_periodic(&mut self, now: Time) {
        if self.alpha_at == Time::MAX {
            self.alpha_at = now + self.config.alpha_interval;
            self.decrease_at = now + self.config.decrease_interval;
        } else {
            self.advance_alpha(now);
            self.notified_for_alpha = true;
            if !self.notified {
                self.advance_decrease(now);
            }
        }
        self.notified = true;
    }
}

impl Control for Dcqcn {
    type Config = DcqcnConfig;
    const MARKS: bool = true;

    fn new(config: &DcqcnConfig, path: PathFacts) -> Self {
        Self {
            config: *config,
            path,
            rate_bps: path.line_bps,
            target_bps: path.line_bps,
            alpha: 1.0,
            alpha_at: Time::MAX,
            notified_for_alpha: false,
            notified: false,
            decrease_at: Time::MAX,
            increase_at: Time::MAX,
            time_stage: 0,
            byte_stage: 0,
            bytes: 0,
        }
    }

    fn on_ack(&mut self, acked: &Acked<'_>) {
        if acked.marked && self.config.reaction == Reaction::Periodic {
            self.notify_periodic(acked.now);
        }
    }

    fn on_cnp(&mut self, now: Time) {
        self.advance_alpha(now);
        self.target_bps = self.rate_bps;
        self.cut(now);
        self.alpha = (1.0 - self.config.gain) * self.alpha + self.config.gain;
        self.alpha_at = now + self.config.alpha_interval;
    }

    fn on_sent(&mut self, _now: Time, wire_bytes: u16) {
        // Before the first cut there is nothing to recover.
        if self.config.reaction == Reaction::Periodic || self.increase_at == Time::MAX {
            return;
        }
        self.bytes += u64::from(wire_bytes);
        if self.bytes >= self.config.byte_counter {
            self.bytes -= self.config.byte_counter;
            self.increase();
            self.byte_stage += 1;
        }
    }

    fn timer(&self) -> Time {
        if self.notified {
            self.increase_at.min(self.decrease_at)
        } else {
            self.increase_at
        }
    }

    fn on_timer(&mut self, now: Time) {
        if self.notified && self.decrease_at <= now {
            self.advance_alpha(now);
            if self.time_stage > 0 {
                self.target_bps = self.rate_bps;
            }
            self.cut(now);
            self.notified = false;
            self.advance_decrease(now);
        }
        if self.increase_at <= now {
            self.increase();
            self.time_stage += 1;
            self.increase_at = now + self.config.increase_interval;
            // At the line's rate nothing increases; a cut starts the clock again.
            if self.rate_bps >= self.path.line_bps {
                self.increase_at = Time::MAX;
            }
        }
    }

    fn rate_bps(&self) -> f64 {
        self.rate_bps
    }

    fn keeps_turns(&self) -> bool {
        self.config.reaction == Reaction::Periodic
    }

    fn window_bytes(&self) -> u64 {
        if self.config.window {
            self.path.window_bytes(self.rate_bps)
        } else {
            u64::MAX
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE_BPS: f64 = 40e9;

    fn config() -> DcqcnConfig {
        DcqcnConfig {
            reaction: Reaction::Cnp,
            gain: 1.0 / 256.0,
            alpha_interval: Span::from_us(55),
            decrease_interval: Span::from_us(4),
            increase_interval: Span::from_us(55),
            byte_counter: 10_000_000,
            fast_recovery: 5,
            additive_bps: 40e6,
            hyper_bps: 200e6,
            min_rate_bps: 100e6,
            window: false,
        }
    }

    fn control(config: &DcqcnConfig) -> Dcqcn {
        let path = PathFacts {
            line_bps: LINE_BPS,
            receiver_bps: LINE_BPS,
            base_rtt: Span::from_us(10),
            begins: Time::ZERO,
        };
        Dcqcn::new(config, path)
    }

    /// Runs the control's own clock until a time.
    fn run(control: &mut Dcqcn, until: Time) {
        while control.timer() <= until {
            control.on_timer(control.timer());
        }
    }

    /// α begins at 1 and stays there (equation 1).
    #[test]
    fn first_cuts_halve() {
        let mut control = control(&config());
        let (mut rate, mut alpha) = (LINE_BPS, 1.0);
        for k in 0..4_u64 {
            control.on_cnp(Time::from_us(10 * k));
            rate *= 1.0 - alpha / 2.0;
            alpha = (1.0 - 1.0 / 256.0) * alpha + 1.0 / 256.0;
            assert!((control.rate_bps() - rate).abs() < 1.0, "{k}");
        }
        assert!((rate - LINE_BPS / 16.0).abs() < 1.0);
    }

    /// α after k notifications in one interval is 1 − (1 − g)^k (1 − α₀), and the rate is the
    /// product of all cuts (equation 1).
    #[test]
    fn rates_fall_by_the_product_of_the_cuts() {
        let mut control = control(&config());
        control.on_cnp(Time::ZERO);
        // The timer has ended 100 intervals of α without a notification.
        let at = Time::from_us(5_500);
        run(&mut control, at);
        let kept = 1.0 - 1.0 / 256.0_f64;
        let begins = kept.powi(100);
        assert!((control.alpha(at) - begins).abs() < 1e-12);
        let mut rate = control.rate_bps();
        for k in 0..3 {
            control.on_cnp(at);
            rate *= 1.0 - (1.0 - kept.powi(k) * (1.0 - begins)) / 2.0;
            assert!((control.rate_bps() - rate).abs() < 1.0, "{k}");
        }
        let alpha = 1.0 - kept.powi(3) * (1.0 - begins);
        assert!((control.alpha(at) - alpha).abs() < 1e-12);
    }

    /// Without notifications α decays by (1 − g) per interval (equation 2).
    #[test]
    fn alpha_decays_geometrically() {
        let mut control = control(&config());
        control.on_cnp(Time::ZERO);
        for k in [0_i32, 1, 2, 100, 1_000] {
            let now = Time::from_us(55 * k as u64);
            let expected = (1.0 - 1.0 / 256.0_f64).powi(k);
            assert!((control.alpha(now) - expected).abs() < 1e-9, "{k}");
        }
        // A cut after 100 intervals is by what is left of α then.
        run(&mut control, Time::from_us(5_500));
        let before = control.rate_bps();
        control.on_cnp(Time::from_us(5_500));
        let left = 1.0 - (1.0 - 1.0 / 256.0_f64).powi(100) / 2.0;
        assert!((control.rate_bps() / before - left).abs() < 1e-9);
    }

    /// Fast recovery halves the distance to the target F times; then the target grows by R_AI.
    #[test]
    fn the_timer_recovers_fast_and_then_adds() {
        let mut control = control(&config());
        control.on_cnp(Time::ZERO);
        control.on_cnp(Time::ZERO);
        let (mut rate, mut target) = (LINE_BPS / 4.0, LINE_BPS / 2.0);
        for stage in 0..10 {
            if stage >= 5 {
                target += 40e6;
            }
            rate = f64::midpoint(rate, target);
            run(&mut control, Time::from_us(55 * (stage + 1)));
            assert!((control.rate_bps() - rate).abs() < 1.0, "{stage}");
        }
    }

    /// With both counters beyond F the target grows by i R_HAI.
    #[test]
    fn both_counters_beyond_fast_recovery_give_hyper_increase() {
        let mut control = control(&DcqcnConfig {
            fast_recovery: 1,
            byte_counter: 1_000,
            ..config()
        });
        control.on_cnp(Time::ZERO);
        control.on_cnp(Time::ZERO);
        let (mut rate, mut target) = (LINE_BPS / 4.0, LINE_BPS / 2.0);
        let mut step = |control: &Dcqcn, more: f64, what: &str| {
            target += more;
            rate = f64::midpoint(rate, target);
            assert!((control.rate_bps() - rate).abs() < 1.0, "{what}");
        };
        control.on_sent(Time::ZERO, 1_000);
        step(&control, 0.0, "fast recovery");
        control.on_sent(Time::ZERO, 1_000);
        step(&control, 40e6, "the bytes alone");
        control.on_timer(control.timer());
        step(&control, 40e6, "the timer's first");
        control.on_timer(control.timer());
        step(&control, 200e6, "both, i = 1");
        control.on_sent(Time::ZERO, 1_000);
        step(&control, 400e6, "both, i = 2");
    }

    /// The events of a sender in HPCC's public simulator: no cut at the first mark, one at the end
    /// of each interval with a mark; R_T stays at the line's rate until an increase.
    #[test]
    fn periodic_cuts_come_at_the_ends_of_intervals() {
        let config = DcqcnConfig {
            reaction: Reaction::Periodic,
            alpha_interval: Span::from_us(1),
            increase_interval: Span::from_us(300),
            fast_recovery: 1,
            ..config()
        };
        let mut control = control(&config);
        let ack = |us| Acked {
            now: Time::from_us(us),
            ack: 0,
            next: 0,
            rtt: Span::ZERO,
            marked: true,
            hops: &[],
            flows: 0,
            rcp: None,
        };
        control.on_ack(&ack(100));
        assert_eq!(control.rate_bps().to_bits(), LINE_BPS.to_bits());
        assert_eq!(control.timer(), Time::from_us(104));
        run(&mut control, Time::from_us(104));
        // Four intervals of α: the first notification does not count in its own.
        let alpha = (1.0 - 1.0 / 256.0_f64).powi(4);
        let first = LINE_BPS * (1.0 - alpha / 2.0);
        assert!((control.rate_bps() - first).abs() < 1.0);
        assert_eq!(control.timer(), Time::from_us(404), "no mark, no cut");
        run(&mut control, Time::from_us(404));
        let second = f64::midpoint(first, LINE_BPS);
        assert!((control.rate_bps() - second).abs() < 1.0);
    }

    #[test]
    fn rates_stay_between_the_least_and_the_line() {
        let mut control = control(&config());
        for us in 0..100 {
            control.on_cnp(Time::from_us(us));
        }
        assert_eq!(control.rate_bps().to_bits(), 100e6_f64.to_bits());
        // R_AI per interval takes 1000 intervals to the line's rate, and no more after that.
        run(&mut control, Time::from_ms(1_000));
        assert!(control.rate_bps() <= LINE_BPS && control.rate_bps() > 0.99 * LINE_BPS);
    }
}
