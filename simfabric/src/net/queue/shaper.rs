//! A shaper: a token bucket in its virtual-scheduling form (ITU-T I.371, generic cell rate
//! algorithm), exact to the picosecond.
//!
//! A packet may leave while the bucket is not in debt, and its bytes are taken out as it leaves. So
//! no look at the next packet's size is needed, which not every queue knows.

use crate::net::port::{ByteTime, MIN_RATE_BPS};
use crate::time::{Span, Time};

/// Settings of a class's shaper.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ShaperConfig {
    /// Rate of the class as a share of the link's, above 0 and at most 1. ExpressPass's credits
    /// have 84 / (84 + 1,538).
    pub share: f64,
    /// Bytes that may leave at the link's rate before the shaper slows them, beyond the first
    /// packet. 0 spaces all packets.
    pub burst_bytes: u32,
}

/// A token bucket.
#[derive(Clone, Copy, Debug)]
pub struct Shaper {
    byte_time: ByteTime,
    /// Time in which a full bucket's bytes come in.
    tolerance: Span,
    /// Time at which the bucket is full again, less `tolerance`: when all that was sent is paid.
    paid_at: Time,
}

impl Shaper {
    /// Makes a full bucket for a link of this rate.
    #[must_use]
    pub fn new(config: ShaperConfig, link_rate_bps: u64) -> Self {
        let rate_bps = (link_rate_bps as f64 * config.share).round() as u64;
        let byte_time = ByteTime::of_rate(rate_bps.max(MIN_RATE_BPS));
        Self {
            byte_time,
            tolerance: byte_time.of_bytes(config.burst_bytes.into()),
            paid_at: Time::ZERO,
        }
    }

    /// Returns the time from which a packet may leave.
    #[must_use]
    pub fn opens_at(&self) -> Time {
        Time(self.paid_at.0.saturating_sub(self.tolerance.0))
    }

    /// Takes a packet's bytes out as it leaves.
    pub fn charge(&mut self, now: Time, wire_bytes: u16) {
        // A full bucket holds no more: time in which nothing was sent beyond `tolerance` is lost.
        self.paid_at = self.paid_at.max(now) + self.byte_time.of(wire_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK_BPS: u64 = 10_000_000_000;

    /// Times at which packets of 84 bytes leave, from a queue that is never empty.
    fn departures(config: ShaperConfig, from: Time, count: usize) -> Vec<u64> {
        let mut shaper = Shaper::new(config, LINK_BPS);
        let wire = ByteTime::of_rate(LINK_BPS).of(84);
        let mut free_at = from;
        let next = || {
            let at = free_at.max(shaper.opens_at());
            shaper.charge(at, 84);
            free_at = at + wire;
            at.0
        };
        std::iter::repeat_with(next).take(count).collect()
    }

    /// A tenth of 10 Gbit/s: 84 bytes every 672 ns.
    #[test]
    fn packets_without_a_burst_are_spaced_at_the_rate() {
        let config = ShaperConfig {
            share: 0.1,
            burst_bytes: 0,
        };
        let at = departures(config, Time::from_us(7), 5);
        assert_eq!(at, [0, 1, 2, 3, 4].map(|n| 7_000_000 + n * 672_000));
    }

    /// (r, b)-regulator: in any span T at most b + r T bytes leave, and one packet's more at its
    /// edge; a queue that is never empty uses all of it.
    #[test]
    fn a_burst_leaves_at_the_links_rate_and_the_rest_at_the_shapers() {
        let config = ShaperConfig {
            share: 0.1,
            burst_bytes: 252,
        };
        let at = departures(config, Time::ZERO, 9);
        // The bucket drains by 0.9 of what leaves: after 4 packets at 67.2 ns each it is in debt.
        assert_eq!(at[..4], [0, 67_200, 134_400, 201_600]);
        for (n, at) in at.iter().enumerate().skip(4) {
            assert_eq!(*at, (n as u64 - 3) * 672_000, "packet {n}");
        }
    }

    #[test]
    fn a_pause_fills_no_more_than_the_bucket() {
        let config = ShaperConfig {
            share: 0.1,
            burst_bytes: 84,
        };
        let mut shaper = Shaper::new(config, LINK_BPS);
        shaper.charge(Time::from_ms(9), 84);
        assert_eq!(shaper.opens_at(), Time::from_ms(9));
        shaper.charge(Time::from_ms(9), 84);
        assert_eq!(shaper.opens_at(), Time::from_ms(9) + Span(672_000));
    }
}
