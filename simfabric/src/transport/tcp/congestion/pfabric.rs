//! pFabric's rate control (pFabric §4.3), which is minimal: a flow starts with a window of a
//! bandwidth-delay product. Losses are found by a short fixed time-out alone, and slow start
//! follows. After some time-outs in a row a flow probes with empty packets until one is answered.

use super::{AckAdvance, Congestion, Reduction, Window};
use crate::time::Time;

/// pFabric's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PFabricConfig {
    /// Largest window, in packets.
    pub largest_window_packets: u32,
}

impl Default for PFabricConfig {
    fn default() -> Self {
        Self {
            largest_window_packets: 15,
        }
    }
}

/// The control of one flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PFabric {
    window: Window,
    largest_bytes: f64,
}

impl Congestion for PFabric {
    type Config = PFabricConfig;
    const FAST_RETRANSMIT: bool = false;
    const PROBE_AFTER: u32 = 5;

    fn new(config: &PFabricConfig, mss_bytes: u64, initial_window_bytes: u64) -> Self {
        Self {
            window: Window::new(mss_bytes, initial_window_bytes),
            largest_bytes: f64::from(config.largest_window_packets) * mss_bytes as f64,
        }
    }

    fn window_bytes(&self) -> u64 {
        self.window.bytes as u64
    }

    fn in_slow_start(&self) -> bool {
        self.window.in_slow_start()
    }

    fn on_acked(&mut self, acked: &AckAdvance) {
        if self.window.in_slow_start() {
            self.window.slow_start(acked.bytes);
        } else {
            self.window.additive_increase(acked.bytes);
        }
        self.window.bytes = self.window.bytes.min(self.largest_bytes);
    }

    fn reduce(&mut self, _: Time, why: Reduction, _: u64) {
        // pFabric §4.3: neither marks nor selective acknowledgements are used.
        if why == Reduction::TimeOut {
            self.window.restart(self.window.bytes / 2.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    #[test]
    fn the_window_stays_below_its_bound_and_marks_do_not_count() {
        let mut control = PFabric::new(&PFabricConfig::default(), 1_000, 12_000);
        for _ in 0..100 {
            control.on_acked(&AckAdvance {
                now: Time::ZERO,
                bytes: 1_000,
                least_rtt: Span::from_us(20),
                smoothed_rtt: Span::from_us(20),
            });
        }
        assert_eq!(control.window_bytes(), 15_000);
        control.reduce(Time::ZERO, Reduction::Mark, 0);
        assert_eq!(control.window_bytes(), 15_000);
        control.reduce(Time::ZERO, Reduction::TimeOut, 0);
        assert_eq!(control.window_bytes(), 1_000);
    }
}
