//! CUBIC (RFC 9438): the window is a cubic function of the time since the last reduction.

use super::{AckAdvance, Congestion, Reduction, Window};
use crate::time::{Span, Time};

/// Scale of the cubic function (RFC 9438 §5: 0.4, windows in packets, time in seconds).
const C: f64 = 0.4;
/// Factor of the window at a reduction (§4.6).
const BETA: f64 = 0.7;
/// Additive increase that is as fair as NewReno's with this β (§4.3).
const RENO_ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// Largest gap between acknowledgements of one train.
const TRAIN_GAP: Span = Span::from_ms(2);
/// Smallest window, in packets, to which HyStart applies.
const HYSTART_LEAST_PACKETS: f64 = 16.0;

/// Growth of the window along the cubic function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CubicGrowth {
    /// Growth by a fraction of a packet per acknowledgement (RFC 9438 §4.4).
    #[default]
    Continuous,
    /// Growth by whole packets, as in Linux and ns-3, without floating point: one packet
    /// whenever W / (target − W) packets were acknowledged, at least 2, and 100 W where the
    /// function, in whole packets, is no larger than the window. Within a datacenter's round trips
    /// that growth dominates: the function itself takes a second for its first packet.
    Counted {
        /// Largest number of acknowledged packets per packet of growth while no W_max is known (20
        /// in both).
        first_limit: u32,
    },
}

/// CUBIC's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CubicConfig {
    /// Growth of the window along the function.
    pub growth: CubicGrowth,
    /// True if the window grows at least as NewReno's (§4.3). Otherwise a window in a datacenter
    /// stands still: the cubic function takes seconds.
    pub reno_friendly: bool,
    /// True if slow start ends when the acknowledgements of a window span more than the least round
    /// trip: the window fills the path then (HyStart, Ha and Rhee 2011 §3.2, as in Linux and ns-3).
    pub hystart: bool,
}

impl Default for CubicConfig {
    fn default() -> Self {
        Self {
            growth: CubicGrowth::Continuous,
            reno_friendly: true,
            hystart: true,
        }
    }
}

/// The control of one flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cubic {
    window: Window,
    growth: CubicGrowth,
    reno_friendly: bool,
    hystart: bool,
    /// Acknowledged packets that have not made the window grow yet (counted growth).
    counted: f64,
    /// Position whose acknowledgement ends the round of slow start.
    round_end: u64,
    /// Times of the round's first acknowledgement, and of the newest one in its train.
    round_began: Time,
    train_end: Time,
    /// The window before the last reduction, in packets (§4.1: W_max); 0: there was none.
    max_packets: f64,
    /// Plateau of the function, in packets: W_max, or the window at the epoch's begin if that is
    /// larger.
    origin_packets: f64,
    /// Time in which the function returns to `max_packets`, in seconds (§4.2: K).
    return_s: f64,
    /// Begin of the present epoch; [`Time::MAX`]: no acknowledgement since the last reduction.
    epoch: Time,
    /// Window that NewReno would have, in packets (§4.3: W_est).
    reno_packets: f64,
    /// NewReno's increase from now on, in packets per window.
    reno_alpha: f64,
}

impl Cubic {
    /// Returns the function (§4.2, equation 1) at `t` seconds after the epoch began, in packets.
    fn at(&self, t: f64) -> f64 {
        C * (t - self.return_s).powi(3) + self.origin_packets
    }

    fn packets(&self) -> f64 {
        self.window.bytes / self.window.mss_bytes
    }

    /// Returns true if the round's acknowledgements span more than the least round trip.
    fn train_is_long(&mut self, acked: &AckAdvance) -> bool {
        if self.round_began == Time::MAX {
            self.round_began = acked.now;
            self.train_end = acked.now;
        } else if acked.now.since(self.train_end) <= TRAIN_GAP {
            self.train_end = acked.now;
        }
        self.packets() >= HYSTART_LEAST_PACKETS
            && self.train_end.since(self.round_began) > acked.least_rtt
    }

    /// Grows by a whole packet if enough packets are acknowledged.
    fn count(&mut self, acked: &AckAdvance, first_limit: u32) {
        self.counted += acked.bytes as f64 / self.window.mss_bytes;
        let packets = self.packets().floor();
        let t = (acked.now.since(self.epoch) + acked.least_rtt).as_secs_f64();
        // Whole packets from the origin, on either side.
        let target = self.origin_packets.floor() + (self.at(t) - self.origin_packets).trunc();
        let mut needed = if target > packets {
            (packets / (target - packets)).floor()
        } else {
            100.0 * packets
        };
        if self.max_packets == 0.0 {
            needed = needed.min(f64::from(first_limit));
        }
        let needed = needed.max(2.0);
        if self.counted >= needed {
            self.counted -= needed;
            self.window.bytes += self.window.mss_bytes;
        }
    }

    fn begin_epoch(&mut self, now: Time) {
        let packets = self.packets();
        self.epoch = now;
        self.reno_packets = packets;
        self.reno_alpha = RENO_ALPHA;
        if packets < self.max_packets {
            // §4.2, equation 2.
            self.return_s = ((self.max_packets - packets) / C).cbrt();
            self.origin_packets = self.max_packets;
        } else {
            self.return_s = 0.0;
            self.origin_packets = packets;
        }
    }
}

impl Congestion for Cubic {
    type Config = CubicConfig;

    fn new(config: &CubicConfig, mss_bytes: u64, initial_window_bytes: u64) -> Self {
        Self {
            window: Window::new(mss_bytes, initial_window_bytes),
            growth: config.growth,
            reno_friendly: config.reno_friendly,
            hystart: config.hystart,
            counted: 0.0,
            round_end: 0,
            round_began: Time::MAX,
            train_end: Time::MAX,
            max_packets: 0.0,
            origin_packets: 0.0,
            return_s: 0.0,
            epoch: Time::MAX,
            reno_packets: 0.0,
            reno_alpha: RENO_ALPHA,
        }
    }

    fn window_bytes(&self) -> u64 {
        self.window.bytes as u64
    }

    fn in_slow_start(&self) -> bool {
        self.window.in_slow_start()
    }

    fn on_any_ack(&mut self, _bytes: u64, _echoed: bool, una: u64, next: u64) {
        // A round of slow start is one window: it ends with the data that was in flight when it
        // began.
        if una > self.round_end {
            self.round_end = next;
            self.round_began = Time::MAX;
        }
    }

    fn on_acked(&mut self, acked: &AckAdvance) {
        if self.window.in_slow_start() {
            self.window.slow_start(acked.bytes);
            if self.hystart && self.train_is_long(acked) {
                self.window.threshold_bytes = self.window.bytes;
            }
            return;
        }
        if self.epoch == Time::MAX {
            self.begin_epoch(acked.now);
        }
        let packets = self.packets();
        let acked_packets = acked.bytes as f64 / self.window.mss_bytes;
        let t = acked.now.since(self.epoch).as_secs_f64();
        // §4.3: what NewReno would have by now; as fast as NewReno once it is past W_max.
        self.reno_packets += self.reno_alpha * acked_packets / packets;
        if self.reno_packets >= self.origin_packets {
            self.reno_alpha = 1.0;
        }
        if self.reno_friendly && self.at(t) < self.reno_packets {
            self.window.bytes = self.reno_packets.max(packets) * self.window.mss_bytes;
            return;
        }
        if let CubicGrowth::Counted { first_limit } = self.growth {
            return self.count(acked, first_limit);
        }
        // §4.4, §4.5: towards where the function will be a round trip from now, bounded to half as
        // much again.
        let target = self
            .at(t + acked.smoothed_rtt.as_secs_f64())
            .clamp(packets, 1.5 * packets);
        self.window.bytes += (target - packets) / packets * acked_packets * self.window.mss_bytes;
    }

    fn reduce(&mut self, _: Time, why: Reduction, _in_flight_bytes: u64) {
        let packets = self.packets();
        // §4.7, fast convergence: a window that did not get back releases more.
        self.max_packets = if packets < self.max_packets {
            packets * (1.0 + BETA) / 2.0
        } else {
            packets
        };
        // The epoch begins with the first acknowledgement after the reduction.
        self.epoch = Time::MAX;
        self.window.reduce(why, self.window.bytes * BETA);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_returns_to_where_it_was_after_k_seconds() {
        let mss = 1_000;
        let mut control = Cubic::new(&CubicConfig::default(), mss, 1_000 * mss);
        control.reduce(Time::ZERO, Reduction::Loss, 1_000 * mss);
        assert_eq!(control.window_bytes(), 700 * mss);
        // RFC 9438 equation 2: K = ((1000 - 700) / 0.4)^(1/3) = 9.0856 s.
        let k_s = (300.0f64 / 0.4).cbrt();
        assert!((k_s - 9.0856).abs() < 1e-4);
        // A round trip of 1 s, so that NewReno is far behind; a window is acknowledged per round.
        let rtt = Span::from_ms(1_000);
        let mut now = Time::ZERO;
        let mut past = Vec::new();
        for _ in 0..16 {
            let packets = control.window_bytes() / mss;
            past.push((now, packets));
            for i in 0..packets {
                control.on_acked(&AckAdvance {
                    now: now + Span(rtt.0 / packets * i),
                    bytes: mss,
                    least_rtt: rtt,
                    smoothed_rtt: rtt,
                });
            }
            now += rtt;
        }
        let at = |round: usize| past[round].1 as f64;
        // Flat around K, at W_max.
        assert!((at(9) - 1_000.0).abs() < 10.0, "{past:?}");
        assert!((at(10) - at(8)).abs() < 10.0, "{past:?}");
        // Concave before, convex after.
        assert!(at(2) - at(1) > at(5) - at(4), "{past:?}");
        assert!(at(15) - at(14) > at(12) - at(11), "{past:?}");
        // C (t - K)^3 + W_max at 14 s.
        let expected = 0.4 * (14.0 - k_s).powi(3) + 1_000.0;
        assert!((at(14) - expected).abs() < 15.0, "{past:?} {expected}");
    }

    #[test]
    fn a_window_that_did_not_get_back_releases_more() {
        let mut control = Cubic::new(&CubicConfig::default(), 1_000, 1_000_000);
        control.reduce(Time::ZERO, Reduction::Loss, 0);
        assert!((control.max_packets - 1_000.0).abs() < 1e-9);
        control.reduce(Time::ZERO, Reduction::Mark, 0);
        // 700 (1 + 0.7) / 2.
        assert!((control.max_packets - 595.0).abs() < 1e-9);
    }

    #[test]
    fn with_short_round_trips_it_grows_as_new_reno_does() {
        let mss = 1_000;
        let mut control = Cubic::new(&CubicConfig::default(), mss, 100 * mss);
        control.reduce(Time::ZERO, Reduction::Loss, 0);
        // 100 µs of round trip: within 100 rounds the cubic function has not moved.
        let rtt = Span::from_us(100);
        let mut now = Time::ZERO;
        for _ in 0..50 {
            let packets = control.window_bytes() / mss;
            for _ in 0..packets {
                now += Span(rtt.0 / packets);
                control.on_acked(&AckAdvance {
                    now,
                    bytes: mss,
                    least_rtt: rtt,
                    smoothed_rtt: rtt,
                });
            }
        }
        // §4.3: 0.529 packets per round trip from 70.
        let grown = control.window_bytes() as f64 / 1_000.0 - 70.0;
        assert!((grown - 50.0 * 0.529).abs() < 1.5, "{grown}");
    }

    #[test]
    fn whole_packets_come_one_per_hundred_windows_where_the_function_stands() {
        let mss = 1_000;
        let config = CubicConfig {
            growth: CubicGrowth::Counted { first_limit: 20 },
            reno_friendly: false,
            hystart: false,
        };
        let mut control = Cubic::new(&config, mss, 50 * mss);
        control.window.threshold_bytes = control.window.bytes;
        let acknowledge = |control: &mut Cubic, packets: u64, now: Time| {
            for _ in 0..packets {
                control.on_acked(&AckAdvance {
                    now,
                    bytes: mss,
                    least_rtt: Span::from_us(1),
                    smoothed_rtt: Span::from_us(60),
                });
            }
            control.window_bytes() / mss
        };
        // Nothing was lost: a packet per 20.
        assert_eq!(acknowledge(&mut control, 200, Time::from_ms(1)), 60);
        control.reduce(Time::from_ms(2), Reduction::Mark, 0);
        assert_eq!(control.window_bytes(), 42 * mss);
        // K = (0.3 · 60 / 0.4)^(1/3) = 3.56 s. At once the function is less than 18 packets below
        // 60, in whole packets 17: one packet in a window, and then none in a hundred.
        assert_eq!(acknowledge(&mut control, 42, Time::from_ms(2)), 43);
        assert_eq!(acknowledge(&mut control, 4_299, Time::from_ms(2)), 43);
        assert_eq!(acknowledge(&mut control, 1, Time::from_ms(2)), 44);
        // Past 3.56 s it is at 60: 44 / (60 - 44) = 2 packets per packet.
        assert_eq!(acknowledge(&mut control, 2, Time::from_ms(3_600)), 45);
    }

    #[test]
    fn slow_start_ends_when_the_window_is_as_long_as_the_path() {
        // 60 µs of round trip; acknowledgements every 1.2 µs, so that 50 packets fill the path.
        let mut control = Cubic::new(&CubicConfig::default(), 1_000, 10_000);
        let (mut una, mut now) = (0, Time::ZERO);
        let mut rounds = 0;
        while control.in_slow_start() {
            let packets = control.window_bytes() / 1_000;
            for i in 0..packets {
                una += 1_000;
                let next = una - 1_000 + control.window_bytes();
                control.on_any_ack(1_000, false, una, next);
                control.on_acked(&AckAdvance {
                    now: now + Span::from_ns(1_200 * i),
                    bytes: 1_000,
                    least_rtt: Span::from_us(60),
                    smoothed_rtt: Span::from_us(60),
                });
            }
            now += Span::from_ns((1_200 * packets).max(60_000));
            rounds += 1;
            assert!(rounds < 10);
        }
        // 10, 20, 40, and of 80 the train is longer than the path after 51.
        let packets = control.window_bytes() / 1_000;
        assert!((125..=135).contains(&packets), "{packets}");
    }
}
