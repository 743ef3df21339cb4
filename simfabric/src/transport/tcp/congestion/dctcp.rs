//! DCTCP (SIGCOMM'10 §3, RFC 8257): the window shrinks by the share of bytes that were marked.

use super::{AckAdvance, Congestion, Reduction, Window};
use crate::time::Time;

/// DCTCP's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DctcpConfig {
    /// Weight of the newest window in the estimate (RFC 8257 §4.2: 1/16).
    pub gain: f64,
}

impl Default for DctcpConfig {
    fn default() -> Self {
        Self { gain: 1.0 / 16.0 }
    }
}

/// The control of one flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dctcp {
    window: Window,
    gain: f64,
    /// Estimate of the share of bytes that are marked. Begins at 1 (RFC 8257 §3.3).
    alpha: f64,
    /// End of the present observation window.
    window_end: u64,
    acked_bytes: u64,
    marked_bytes: u64,
}

impl Dctcp {
    /// Returns the estimated share of bytes that are marked.
    #[must_use]
    pub fn alpha(&self) -> f64 {
        self.alpha
    }
}

impl Congestion for Dctcp {
    type Config = DctcpConfig;
    const ECHOES_EACH_MARK: bool = true;

    fn new(config: &DctcpConfig, mss_bytes: u64, initial_window_bytes: u64) -> Self {
        Self {
            window: Window::new(mss_bytes, initial_window_bytes),
            gain: config.gain,
            alpha: 1.0,
            window_end: 0,
            acked_bytes: 0,
            marked_bytes: 0,
        }
    }

    fn begin_next_flow(&mut self) {
        self.window_end = 0;
        self.acked_bytes = 0;
        self.marked_bytes = 0;
    }

    #[inline]
    fn window_bytes(&self) -> u64 {
        self.window.bytes as u64
    }

    fn in_slow_start(&self) -> bool {
        self.window.in_slow_start()
    }

    #[inline]
    fn on_any_ack(&mut self, bytes: u64, echoed: bool, una: u64, next: u64) {
        self.acked_bytes += bytes;
        if echoed {
            self.marked_bytes += bytes;
        }
        if una > self.window_end {
            // RFC 8257 §3.3, steps 5 to 8.
            let marked = if self.acked_bytes == 0 {
                0.0
            } else {
                self.marked_bytes as f64 / self.acked_bytes as f64
            };
            self.alpha += self.gain * (marked - self.alpha);
            self.window_end = next;
            self.acked_bytes = 0;
            self.marked_bytes = 0;
        }
    }

    #[inline]
    fn on_acked(&mut self, acked: &AckAdvance) {
        if self.window.in_slow_start() {
            self.window.slow_start(acked.bytes);
        } else {
            self.window.additive_increase(acked.bytes);
        }
    }

    fn reduce(&mut self, _: Time, why: Reduction, in_flight_bytes: u64) {
        match why {
            // RFC 8257 §3.3, step 9.
            Reduction::Mark => {
                let shrunk = self.window.bytes * (1.0 - self.alpha / 2.0);
                self.window.reduce_to(shrunk);
            }
            // §3.5: as any TCP.
            Reduction::Loss | Reduction::TimeOut => {
                self.window.reduce(why, in_flight_bytes as f64 / 2.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One window of 10 packets of which the first `marked` are marked.
    fn window(control: &mut Dctcp, from: u64, marked: u64) {
        for packet in 0..10 {
            let una = from + (packet + 1) * 1_000;
            control.on_any_ack(1_000, packet < marked, una, from + 20_000);
        }
    }

    #[test]
    fn alpha_follows_the_recursion() {
        let mut control = Dctcp::new(&DctcpConfig { gain: 0.25 }, 1_000, 10_000);
        assert!((control.alpha() - 1.0).abs() < 1e-12);
        // The first acknowledgement ends the empty window before it, marked by itself.
        control.on_any_ack(1_000, true, 1_000, 10_000);
        assert!((control.alpha() - 1.0).abs() < 1e-12);
        window(&mut control, 1_000, 5);
        // The window ends at the first acknowledgement beyond 10,000: ten packets, five marked.
        assert!((control.alpha() - (0.75 + 0.25 * 0.5)).abs() < 1e-12);
    }

    #[test]
    fn the_window_shrinks_by_half_of_alpha() {
        let mut control = Dctcp::new(&DctcpConfig::default(), 1_000, 100_000);
        control.alpha = 0.25;
        control.reduce(Time::ZERO, Reduction::Mark, 100_000);
        assert_eq!(control.window_bytes(), 87_500);
        control.alpha = 1.0;
        control.reduce(Time::ZERO, Reduction::Mark, 87_500);
        assert_eq!(control.window_bytes(), 43_750);
    }
}
