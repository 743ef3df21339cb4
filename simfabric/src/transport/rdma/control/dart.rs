//! Dart (Xue et al.): the sender's part of direct apportioning of sending rates (§III), over
//! [DCQCN](super::dcqcn), which answers to congestion elsewhere than at the receiver (§III-C).
//!
//! A flow begins at the line's rate. An acknowledgement tells the number by which it divides the
//! receiver's line; the rate is that part, or DCQCN's if that is less.

use super::{Acked, Control, Dcqcn, DcqcnConfig, PathFacts};
use crate::time::Time;

/// Dart's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DartConfig {
    /// The fall-back.
    pub dcqcn: DcqcnConfig,
    /// True if it takes what receivers tell, as a sender does that does not lie.
    pub heeds: bool,
}

/// The control of one flow.
#[derive(Clone, Copy, Debug)]
pub struct Dart {
    dcqcn: Dcqcn,
    heeds: bool,
    receiver_bps: f64,
    /// The flow's part of the receiver's line, in bit/s.
    part_bps: f64,
}

impl Control for Dart {
    type Config = DartConfig;
    const MARKS: bool = true;

    fn new(config: &DartConfig, path: PathFacts) -> Self {
        Self {
            dcqcn: Dcqcn::new(&config.dcqcn, path),
            heeds: config.heeds,
            receiver_bps: path.receiver_bps,
            part_bps: path.receiver_bps,
        }
    }

    #[inline]
    fn on_ack(&mut self, acked: &Acked<'_>) {
        if acked.flows > 0 && self.heeds {
            self.part_bps = self.receiver_bps / f64::from(acked.flows);
        }
        self.dcqcn.on_ack(acked);
    }

    fn on_cnp(&mut self, now: Time) {
        self.dcqcn.on_cnp(now);
    }

    fn on_sent(&mut self, now: Time, wire_bytes: u16) {
        self.dcqcn.on_sent(now, wire_bytes);
    }

    fn timer(&self) -> Time {
        self.dcqcn.timer()
    }

    fn on_timer(&mut self, now: Time) {
        self.dcqcn.on_timer(now);
    }

    #[inline]
    fn rate_bps(&self) -> f64 {
        self.dcqcn.rate_bps().min(self.part_bps)
    }

    fn window_bytes(&self) -> u64 {
        self.dcqcn.window_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;
    use crate::transport::rdma::control::Reaction;

    fn control(receiver_bps: f64, heeds: bool) -> Dart {
        let dcqcn = DcqcnConfig {
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
        };
        let path = PathFacts {
            line_bps: 40e9,
            receiver_bps,
            base_rtt: Span::from_us(12),
            begins: Time::ZERO,
        };
        Dart::new(&DartConfig { dcqcn, heeds }, path)
    }

    fn told(flows: u16) -> Acked<'static> {
        Acked {
            now: Time::ZERO,
            ack: 0,
            next: 0,
            rtt: Span::ZERO,
            marked: false,
            hops: &[],
            flows,
            rcp: None,
        }
    }

    /// One acknowledgement is enough, down and up (§III-A): C / n of the receiver's line.
    #[test]
    fn the_rate_is_the_part_that_the_receiver_tells() {
        let mut even = control(40e9, true);
        assert_eq!(even.rate_bps(), 40e9, "flows begin at the line's rate");
        for (flows, rate) in [(2, 20e9), (256, 40e9 / 256.0), (0, 40e9 / 256.0), (1, 40e9)] {
            even.on_ack(&told(flows));
            assert_eq!(even.rate_bps(), rate, "{flows}");
        }
        let mut slow = control(10e9, true);
        slow.on_ack(&told(2));
        assert_eq!(slow.rate_bps(), 5e9);
        let mut deaf = control(40e9, false);
        deaf.on_ack(&told(2));
        assert_eq!(deaf.rate_bps(), 40e9);
    }

    /// Congestion elsewhere lowers the rate below the part (§III-C), and never raises it above.
    #[test]
    fn the_fall_back_is_a_second_limit() {
        let mut control = control(40e9, true);
        control.on_cnp(Time::ZERO);
        assert_eq!(control.rate_bps(), 20e9);
        control.on_ack(&told(4));
        assert_eq!(control.rate_bps(), 10e9);
        control.on_ack(&told(1));
        assert_eq!(control.rate_bps(), 20e9);
    }
}
