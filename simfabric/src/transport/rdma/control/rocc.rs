//! RoCC's reaction point (Taheri et al., CoNEXT 2020, §3.4): the sender takes the rate that the
//! congestion point tells, and doubles it when it hears nothing.
//!
//! A rate counts if no congestion point is known, if it comes from the known one, or if it is below
//! the present rate. A flow leaves a switch by one port, so that the switch stands for the
//! congestion point. The authors' program delays each message by 15 µs in the host; here the
//! [host's delay](crate::net::FabricConfig::host_delay) is that of every packet.

use ratewright_topology::HostId;

use super::{Acked, Control, PathFacts};
use crate::time::{Span, Time};

/// RoCC's parameters at senders.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoccConfig {
    /// Time without an accepted rate after which the present one doubles.
    pub recovery_interval: Span,
    /// Least rate, in bit/s.
    pub min_rate_bps: f64,
}

/// The control of one flow.
#[derive(Clone, Copy, Debug)]
pub struct Rocc {
    config: RoccConfig,
    line_bps: f64,
    rate_bps: f64,
    /// Congestion point that set the rate.
    by: Option<HostId>,
    recovers_at: Time,
}

impl Rocc {
    fn set(&mut self, now: Time, rate_bps: f64, by: Option<HostId>) {
        let least = self.config.min_rate_bps.min(self.line_bps);
        self.rate_bps = rate_bps.clamp(least, self.line_bps);
        let is_limited = self.rate_bps < self.line_bps;
        self.by = by.filter(|_| is_limited);
        self.recovers_at = if is_limited {
            now + self.config.recovery_interval
        } else {
            Time::MAX
        };
    }
}

impl Control for Rocc {
    type Config = RoccConfig;

    fn new(config: &RoccConfig, path: PathFacts) -> Self {
        Self {
            config: *config,
            line_bps: path.line_bps,
            rate_bps: path.line_bps,
            by: None,
            recovers_at: Time::MAX,
        }
    }

    fn on_ack(&mut self, _acked: &Acked<'_>) {}

    fn on_notice(&mut self, now: Time, rate_bps: u64, from: HostId) {
        let rate_bps = rate_bps as f64;
        if self.by.is_none_or(|by| by == from) || rate_bps < self.rate_bps {
            self.set(now, rate_bps, Some(from));
        }
    }

    fn timer(&self) -> Time {
        self.recovers_at
    }

    fn on_timer(&mut self, now: Time) {
        self.set(now, 2.0 * self.rate_bps, self.by);
    }

    fn rate_bps(&self) -> f64 {
        self.rate_bps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_rate_holds_until_its_switch_changes_it_or_falls_silent() {
        let config = RoccConfig {
            recovery_interval: Span::from_us(55),
            min_rate_bps: 100e6,
        };
        let path = PathFacts {
            line_bps: 100e9,
            receiver_bps: 100e9,
            base_rtt: Span::from_us(12),
            begins: Time::ZERO,
        };
        let mut control = Rocc::new(&config, path);
        let gbps = |control: &Rocc| (control.rate_bps() / 1e9).round() as u64;
        control.on_notice(Time::from_us(0), 40_000_000_000, HostId(7));
        assert_eq!(gbps(&control), 40);
        control.on_notice(Time::from_us(10), 50_000_000_000, HostId(8));
        assert_eq!(gbps(&control), 40, "another switch with a higher rate");
        control.on_notice(Time::from_us(20), 30_000_000_000, HostId(8));
        assert_eq!(gbps(&control), 30, "another switch with a lower one");
        control.on_notice(Time::from_us(30), 35_000_000_000, HostId(8));
        assert_eq!(gbps(&control), 35, "the switch that is known now");
        for (at, expected) in [(85, 70), (140, 100)] {
            assert_eq!(control.timer(), Time::from_us(at));
            control.on_timer(Time::from_us(at));
            assert_eq!(gbps(&control), expected);
        }
        assert_eq!(control.timer(), Time::MAX, "the limit is off");
    }
}
