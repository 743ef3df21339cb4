//! Swift (SIGCOMM 2020, algorithm 1): the window follows the delay of each packet, against a target
//! that grows with the path's hops and with small windows.

use super::{AckAdvance, Congestion, DelaySample, Reduction};
use crate::time::{Span, Time};

/// Swift's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwiftConfig {
    /// Target delay of a path without switches and of a large window.
    pub base_target: Span,
    /// Addition to the target for each switch on the path (§3.5, topology scaling).
    pub per_hop: Span,
    /// Largest addition to the target for small windows (§3.5, flow scaling).
    pub flow_scaling: Span,
    /// Windows, in packets, at which flow scaling is largest, and ends.
    pub flow_scaling_packets: [f64; 2],
    /// Packets that the window grows by in a round trip.
    pub additive_increase: f64,
    /// Share of the excess delay by which the window shrinks.
    pub beta: f64,
    /// Largest share by which it shrinks at once.
    pub largest_decrease: f64,
    /// Least window, in packets.
    pub least_packets: f64,
    /// Time-outs in a row from which the window is the least.
    pub reset_after: u32,
}

impl Default for SwiftConfig {
    fn default() -> Self {
        Self {
            base_target: Span::from_us(15),
            per_hop: Span::from_us(1),
            flow_scaling: Span::from_us(75),
            flow_scaling_packets: [0.1, 100.0],
            additive_increase: 1.0,
            beta: 0.8,
            largest_decrease: 0.5,
            least_packets: 0.001,
            reset_after: 12,
        }
    }
}

/// The control of one flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Swift {
    config: SwiftConfig,
    /// The window, in packets.
    packets: f64,
    mss_bytes: f64,
    rtt: Span,
    decreased_at: Option<Time>,
    time_outs: u32,
}

impl Swift {
    /// Largest window, in packets.
    const MOST_PACKETS: f64 = 65_536.0;

    /// Returns the target delay of a path across so many switches.
    fn target(&self, switches: u8) -> Span {
        let config = &self.config;
        let [least, most] = config
            .flow_scaling_packets
            .map(|packets| 1.0 / packets.sqrt());
        let share = (1.0 / self.packets.sqrt() - most) / (least - most);
        let hops = config.per_hop * u64::from(switches);
        config.base_target + hops + config.flow_scaling.mul_f64(share.clamp(0.0, 1.0))
    }

    /// Shrinks the window to this share of it, unless it did within the last round trip.
    fn decrease(&mut self, now: Time, share: f64) {
        let waits = self.decreased_at.is_some_and(|at| now.since(at) < self.rtt);
        if !waits {
            self.set(self.packets * share.max(1.0 - self.config.largest_decrease));
            self.decreased_at = Some(now);
        }
    }

    fn set(&mut self, packets: f64) {
        self.packets = packets.clamp(self.config.least_packets, Self::MOST_PACKETS);
    }
}

impl Congestion for Swift {
    type Config = SwiftConfig;
    const MEASURES_DELAY: bool = true;

    fn new(config: &SwiftConfig, mss_bytes: u64, initial_window_bytes: u64) -> Self {
        Self {
            config: *config,
            packets: initial_window_bytes as f64 / mss_bytes as f64,
            mss_bytes: mss_bytes as f64,
            rtt: Span::ZERO,
            decreased_at: None,
            time_outs: 0,
        }
    }

    fn window_bytes(&self) -> u64 {
        // Never 0: a single packet may always leave, when its pacer lets it.
        ((self.packets * self.mss_bytes) as u64).max(1)
    }

    fn in_slow_start(&self) -> bool {
        false
    }

    fn on_delay(&mut self, sample: &DelaySample) {
        self.rtt = sample.rtt;
        self.time_outs = 0;
        let target = self.target(sample.switches);
        if sample.rtt < target {
            let acked = sample.bytes as f64 / self.mss_bytes;
            let growth = self.config.additive_increase * acked;
            self.set(self.packets + growth / self.packets.max(1.0));
        } else {
            let excess = 1.0 - target.as_secs_f64() / sample.rtt.as_secs_f64();
            self.decrease(sample.now, 1.0 - self.config.beta * excess);
        }
    }

    fn pacing_gap(&self) -> Option<Span> {
        (self.packets < 1.0).then(|| self.rtt.mul_f64(1.0 / self.packets))
    }

    fn on_acked(&mut self, _: &AckAdvance) {}

    fn reduce(&mut self, now: Time, why: Reduction, _: u64) {
        match why {
            // It asks for no marks.
            Reduction::Mark => {}
            Reduction::Loss => self.decrease(now, 0.0),
            Reduction::TimeOut => {
                self.time_outs += 1;
                if self.time_outs >= self.config.reset_after {
                    self.set(self.config.least_packets);
                } else {
                    self.decrease(now, 0.0);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1_000;

    fn flow(packets: u64) -> Swift {
        Swift::new(&SwiftConfig::default(), MSS, packets * MSS)
    }

    fn sample(now_us: u64, rtt_us: f64, packets: u64) -> DelaySample {
        DelaySample {
            now: Time::from_us(now_us),
            rtt: Span::from_secs_f64(rtt_us * 1e-6),
            switches: 2,
            bytes: packets * MSS,
        }
    }

    /// §3.5: base, a microsecond for each switch, and from nothing at 100 packets to 75 µs at 0.1.
    #[test]
    fn the_target_grows_with_hops_and_with_small_windows() {
        let target = |packets: f64| {
            let mut flow = flow(1);
            flow.packets = packets;
            flow.target(2).as_us_f64()
        };
        assert!((target(100.0) - 17.0).abs() < 1e-6 && (target(500.0) - 17.0).abs() < 1e-6);
        assert!((target(0.1) - 92.0).abs() < 1e-6 && (target(0.01) - 92.0).abs() < 1e-6);
        // α / √w + β with α = 75 / (1/√0.1 − 1/√100) and β = −α / √100.
        let alpha = 75.0 / (1.0 / 0.1_f64.sqrt() - 0.1);
        assert!((target(4.0) - (17.0 + alpha / 2.0 - alpha / 10.0)).abs() < 1e-6);
    }

    /// Algorithm 1: one packet for a window of acknowledgements below the target; below one packet,
    /// as many as are acknowledged.
    #[test]
    fn the_window_grows_by_a_packet_in_a_round_trip() {
        let mut flow = flow(10);
        for _ in 0..10 {
            flow.on_delay(&sample(0, 10.0, 1));
        }
        assert!((flow.packets - 11.0).abs() < 0.06, "{}", flow.packets);
        flow.packets = 0.25;
        flow.on_delay(&sample(0, 10.0, 1));
        assert!((flow.packets - 1.25).abs() < 1e-9);
    }

    /// Algorithm 1: by β of the excess, at most by half, and once in a round trip.
    #[test]
    fn the_window_shrinks_with_the_excess_once_in_a_round_trip() {
        let mut flow = flow(100);
        // The target is 17 µs; a fifth of 21.25 µs is above it.
        flow.on_delay(&sample(100, 21.25, 1));
        assert!((flow.packets - 84.0).abs() < 1e-3, "{}", flow.packets);
        flow.on_delay(&sample(110, 100.0, 1));
        assert!((flow.packets - 84.0).abs() < 1e-3, "{}", flow.packets);
        flow.on_delay(&sample(510, 400.0, 1));
        assert!((flow.packets - 42.0).abs() < 1e-3, "{}", flow.packets);
    }

    /// §3.4: less than one packet in a round trip is a gap between packets.
    #[test]
    fn a_window_below_one_is_paced() {
        let mut flow = flow(1);
        flow.on_delay(&sample(0, 500.0, 1));
        assert_eq!(flow.packets, 0.5);
        assert_eq!(flow.pacing_gap(), Some(Span::from_us(1_000)));
        assert!(flow.window_bytes() > 0);
    }
}
