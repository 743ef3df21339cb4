//! TIMELY (Mittal et al., SIGCOMM 2015): the rate follows the gradient of the round-trip time.
//!
//! | round trip | rule | source |
//! |---|---|---|
//! | below T_low | R + δ, after five in a row R + 5δ | §4.2, algorithm 1; §4.3 |
//! | above T_high | R (1 − β (1 − T_high / RTT)) | algorithm 1 |
//! | between, and not growing | R + δ, after five in a row R + 5δ | algorithm 1 |
//! | between, and growing | R (1 − β gradient) | algorithm 1 |
//!
//! The patched form (Zhu et al., *ECN or Delay*, CoNEXT 2016, algorithm 2) has, in between,
//! R = δ (1 − w) + R (1 − β w (RTT − T_low) / T_low), where w rises from 0 to 1 as the gradient
//! goes from −1/4 to 1/4: it has one fixed point, and rates become fair.
//!
//! Rates are updated once per round trip, and packets are paced one by one, as in HPCC's public
//! simulator, where the paper sends bursts.

use super::{Acked, Control, PathFacts};
use crate::time::Span;

/// TIMELY's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimelyConfig {
    /// Round trip below which rates rise.
    pub low: Span,
    /// Round trip above which rates fall.
    pub high: Span,
    /// Least round trip, by which the gradient is normalised.
    pub least_rtt: Span,
    /// Weight of the newest difference of round trips.
    pub weight: f64,
    /// Factor β of a decrease.
    pub beta: f64,
    /// Additive increase δ, as a share of the line's rate.
    pub increase_share: f64,
    /// Additive increase from the sixth in a row on, as a share of the line's rate.
    pub hyper_share: f64,
    /// Least rate, in bit/s.
    pub min_rate_bps: f64,
    /// True for the patched form.
    pub patched: bool,
    /// True if a window of what is in flight at the rate on an idle path holds, too.
    pub window: bool,
    /// True if a new rate leaves the time of the next packet as it was set.
    pub keep_turns: bool,
}

/// Increases in a row before they are larger (§4.3: N = 5).
const BEFORE_HYPER: u32 = 5;

/// The control of one flow.
#[derive(Clone, Copy, Debug)]
pub struct Timely {
    config: TimelyConfig,
    path: PathFacts,
    rate_bps: f64,
    last_rtt: Option<Span>,
    /// Mean difference of round trips, in seconds.
    difference_s: f64,
    increases: u32,
    /// Byte whose acknowledgement is the next to be looked at.
    last_update: u64,
}

impl Timely {
    /// Takes the round-trip time of one round trip.
    fn update(&mut self, rtt: Span) {
        let Some(last) = self.last_rtt.replace(rtt) else {
            return;
        };
        let config = self.config;
        let rtt_s = rtt.as_secs_f64();
        let newest = rtt_s - last.as_secs_f64();
        self.difference_s += config.weight * (newest - self.difference_s);
        let gradient = self.difference_s / config.least_rtt.as_secs_f64();
        if rtt < config.low {
            self.increase();
        } else if rtt > config.high {
            let over = 1.0 - config.high.as_secs_f64() / rtt_s;
            self.decrease(1.0 - config.beta * over);
        } else if config.patched {
            let weight = (2.0 * gradient + 0.5).clamp(0.0, 1.0);
            let low_s = config.low.as_secs_f64();
            let error = (rtt_s - low_s) / low_s;
            self.increases = 0;
            self.rate_bps *= 1.0 - config.beta * weight * error;
            self.rate_bps += config.increase_share * self.path.line_bps * (1.0 - weight);
        } else if gradient <= 0.0 {
            self.increase();
        } else {
            self.decrease(1.0 - config.beta * gradient);
        }
        let least = config.min_rate_bps.min(self.path.line_bps);
        self.rate_bps = self.rate_bps.clamp(least, self.path.line_bps);
    }

    fn increase(&mut self) {
        let share = if self.increases < BEFORE_HYPER {
            self.config.increase_share
        } else {
            self.config.hyper_share
        };
        self.increases += 1;
        self.rate_bps += share * self.path.line_bps;
    }

    fn decrease(&mut self, factor: f64) {
        self.increases = 0;
        self.rate_bps *= factor.max(0.0);
    }
}

impl Control for Timely {
    type Config = TimelyConfig;

    fn new(config: &TimelyConfig, path: PathFacts) -> Self {
        Self {
            config: *config,
            path,
            rate_bps: path.line_bps,
            last_rtt: None,
            difference_s: 0.0,
            increases: 0,
            last_update: 0,
        }
    }

    fn on_ack(&mut self, acked: &Acked<'_>) {
        if acked.ack > self.last_update {
            self.last_update = acked.next;
            self.update(acked.rtt);
        }
    }

    fn rate_bps(&self) -> f64 {
        self.rate_bps
    }

    fn keeps_turns(&self) -> bool {
        self.config.keep_turns
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
    use crate::time::Time;

    fn control(patched: bool) -> Timely {
        let config = TimelyConfig {
            low: Span::from_us(50),
            high: Span::from_us(500),
            least_rtt: Span::from_us(20),
            weight: 0.875,
            beta: 0.8,
            increase_share: 0.001,
            hyper_share: 0.005,
            min_rate_bps: 1e9,
            patched,
            window: false,
            keep_turns: false,
        };
        let path = PathFacts {
            line_bps: 100e9,
            receiver_bps: 100e9,
            base_rtt: Span::from_us(12),
            begins: Time::ZERO,
        };
        Timely::new(&config, path)
    }

    /// Feeds round trips; returns the rates in Mbit/s.
    fn rates(control: &mut Timely, round_trips_us: &[u64]) -> Vec<f64> {
        round_trips_us
            .iter()
            .map(|us| {
                control.update(Span::from_us(*us));
                (control.rate_bps / 1e6 * 1e3).round() / 1e3
            })
            .collect()
    }

    /// Algorithm 1, computed by hand from 50 Gbit/s.
    #[test]
    fn rates_follow_the_gradient() {
        let mut control = control(false);
        control.rate_bps = 50e9;
        // The first round trip is only noted. Then: below T_low; five additive steps in all, then
        // the larger ones.
        let below = rates(&mut control, &[20; 8]);
        let expected = [50e3, 50.1e3, 50.2e3, 50.3e3, 50.4e3, 50.5e3, 51e3, 51.5e3];
        assert_eq!(below, expected);
        // From 20 to 60 µs: difference 0.875 × 40 = 35 µs, gradient 1.75, and 1 − 0.8 × 1.75 < 0.
        assert_eq!(rates(&mut control, &[60]), [1e3]);
        control.rate_bps = 50e9;
        // 60 again: difference 0.125 × 35 = 4.375 µs, gradient 0.21875.
        assert_eq!(rates(&mut control, &[60]), [50e3 * (1.0 - 0.8 * 0.218_75)]);
        // 55: 0.875 × −5 + 0.125 × 4.375 < 0, an increase, the first in a row.
        let before = control.rate_bps / 1e6;
        assert_eq!(rates(&mut control, &[55]), [before + 100.0]);
        // 1000 µs: by T_high / RTT alone.
        let before = control.rate_bps / 1e6;
        let expected = before * (1.0 - 0.8 * 0.5);
        assert_eq!(
            rates(&mut control, &[1_000]),
            [(expected * 1e3).round() / 1e3]
        );
    }

    /// *ECN or Delay*, algorithm 2: at gradient 0 the weight is 1/2, so that the rate stands where
    /// δ / 2 = β / 2 · R · error.
    #[test]
    fn the_patched_form_has_a_fixed_point() {
        let mut control = control(true);
        control.rate_bps = 1e9;
        // error = (55 − 50) / 50 = 0.1, so that R = δ / (β error) = 100 Mbit/s / 0.08.
        let settled = rates(&mut control, &[55; 400]);
        assert!((settled[399] - 1_250.0).abs() < 1.0, "{:?}", settled[399]);
    }

    #[test]
    fn one_acknowledgement_per_round_trip_counts() {
        let mut control = control(false);
        let mut ack = |ack, next| {
            control.on_ack(&Acked {
                now: Time::ZERO,
                ack,
                next,
                rtt: Span::from_us(20),
                marked: false,
                hops: &[],
                flows: 0,
                rcp: None,
            });
            control.last_update
        };
        assert_eq!(ack(1_000, 10_000), 10_000);
        assert_eq!(ack(10_000, 20_000), 10_000);
        assert_eq!(ack(11_000, 21_000), 21_000);
    }
}
