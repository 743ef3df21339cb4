//! RCP's sender (Dukkipati et al., IWQoS 2005, §3): it sends at the least rate of its path's ports,
//! which every acknowledgement brings.
//!
//! The paper asks for the first rate by a connection's SYN. Here the first packet does, and no
//! other leaves before its acknowledgement. There are no probes: every data packet has the header.

use super::{Acked, Control, PathFacts};
use crate::ext::RcpHeader;
use crate::time::Span;

/// RCP's parameters at senders.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RcpConfig {
    /// Least rate, in bit/s.
    pub min_rate_bps: f64,
}

/// Weight of the newest round trip in the mean, as TCP's (RFC 6298 §2).
const WEIGHT: u64 = 8;

/// The control of one flow.
#[derive(Clone, Copy, Debug)]
pub struct Rcp {
    config: RcpConfig,
    line_bps: f64,
    /// Rate that the path told; none yet.
    rate_bps: Option<f64>,
    /// Mean round trip; zero: none yet.
    rtt: Span,
}

impl Control for Rcp {
    type Config = RcpConfig;

    fn new(config: &RcpConfig, path: PathFacts) -> Self {
        Self {
            config: *config,
            line_bps: path.line_bps,
            rate_bps: None,
            rtt: Span::ZERO,
        }
    }

    fn on_ack(&mut self, acked: &Acked<'_>) {
        self.rtt = if self.rtt == Span::ZERO {
            acked.rtt
        } else {
            Span(self.rtt.0 - self.rtt.0 / WEIGHT + acked.rtt.0 / WEIGHT)
        };
        if let Some(header) = acked.rcp {
            let least = self.config.min_rate_bps.min(self.line_bps);
            let rate_bps = header.rate_bps as f64;
            self.rate_bps = Some(rate_bps.clamp(least, self.line_bps));
        }
    }

    fn rate_bps(&self) -> f64 {
        self.rate_bps.unwrap_or(self.line_bps)
    }

    fn window_bytes(&self) -> u64 {
        // One packet asks for the first rate.
        if self.rate_bps.is_some() { u64::MAX } else { 1 }
    }

    fn header(&self) -> Option<RcpHeader> {
        Some(RcpHeader::any(self.rtt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Time;

    #[test]
    fn one_packet_asks_and_every_answer_sets_the_rate() {
        let config = RcpConfig { min_rate_bps: 1e6 };
        let path = PathFacts {
            line_bps: 10e9,
            receiver_bps: 10e9,
            base_rtt: Span::from_us(12),
            begins: Time::ZERO,
        };
        let mut control = Rcp::new(&config, path);
        assert_eq!(control.window_bytes(), 1);
        assert_eq!(control.header(), Some(RcpHeader::any(Span::ZERO)));
        for (told, expected) in [(4_000_000_000, 4e9), (u64::MAX, 10e9), (0, 1e6)] {
            control.on_ack(&Acked {
                now: Time::ZERO,
                ack: 1,
                next: 1,
                rtt: Span::from_us(16),
                marked: false,
                hops: &[],
                flows: 0,
                rcp: Some(RcpHeader {
                    rate_bps: told,
                    rtt: Span::ZERO,
                }),
            });
            assert!((control.rate_bps() - expected).abs() < 1.0);
        }
        assert_eq!(control.window_bytes(), u64::MAX);
        assert_eq!(control.header(), Some(RcpHeader::any(Span::from_us(16))));
    }
}
