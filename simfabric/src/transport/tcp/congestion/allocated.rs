//! A window until a rate is allocated, and the rate from then on (flowtune §5.3, *Servers*).
//!
//! A server starts a regular TCP connection and notifies the allocator in parallel; with the first
//! rate it opens the window and paces. Without one, or once the lease of its rates has expired, the
//! window grows and shrinks as NewReno's does.

use super::{AckAdvance, Congestion, Reduction, Window};
use crate::time::{Span, Time};

/// Parameters of flows with allocated rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatedConfig {
    /// Time whose bytes at the allocated rate bound the bytes in flight, so that a failed path is
    /// not sent into for ever.
    pub open_window: Span,
}

impl Default for AllocatedConfig {
    fn default() -> Self {
        Self {
            open_window: Span::from_us(500),
        }
    }
}

/// The control of one flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allocated {
    window: Window,
    open_window: Span,
    /// Window at the allocated rate; 0 without one.
    open_bytes: u64,
}

impl Congestion for Allocated {
    type Config = AllocatedConfig;

    fn new(config: &AllocatedConfig, mss_bytes: u64, initial_window_bytes: u64) -> Self {
        Self {
            window: Window::new(mss_bytes, initial_window_bytes),
            open_window: config.open_window,
            open_bytes: 0,
        }
    }

    /// Withdraws the last flow's rate. Its window holds until the next one has a rate of its own.
    fn begin_next_flow(&mut self) {
        self.open_bytes = 0;
    }

    /// Opens the window for this rate; a rate of 0 withdraws it. Then the window takes over at the
    /// bytes in flight: the path carried them, and slow start would overshoot it.
    fn on_rate(&mut self, rate_bps: u64, in_flight_bytes: u64) {
        let had_rate = self.open_bytes > 0;
        if rate_bps > 0 {
            let bytes = rate_bps as f64 * self.open_window.as_secs_f64() / 8.0;
            let packets = (bytes / self.window.mss_bytes).ceil() + 2.0;
            self.open_bytes = (packets * self.window.mss_bytes) as u64;
        } else if had_rate {
            self.open_bytes = 0;
            self.window.reduce_to(in_flight_bytes as f64);
        }
    }

    #[inline]
    fn window_bytes(&self) -> u64 {
        if self.open_bytes > 0 {
            self.open_bytes
        } else {
            self.window.bytes as u64
        }
    }

    fn in_slow_start(&self) -> bool {
        self.open_bytes == 0 && self.window.in_slow_start()
    }

    fn on_acked(&mut self, acked: &AckAdvance) {
        if self.open_bytes > 0 {
            return;
        }
        if self.window.in_slow_start() {
            self.window.slow_start(acked.bytes);
        } else {
            self.window.additive_increase(acked.bytes);
        }
    }

    fn reduce(&mut self, _: Time, why: Reduction, in_flight_bytes: u64) {
        if self.open_bytes > 0 {
            return;
        }
        if why != Reduction::Mark {
            self.window.reduce(why, in_flight_bytes as f64 / 2.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_opens_the_window_and_its_withdrawal_leaves_what_is_in_flight() {
        let mut control = Allocated::new(&AllocatedConfig::default(), 1_000, 10_000);
        assert_eq!(control.window_bytes(), 10_000);
        // 8 Gbit/s for 500 µs are 500 packets; two more are allowed.
        control.on_rate(8_000_000_000, 0);
        assert_eq!(control.window_bytes(), 502_000);
        control.reduce(Time::ZERO, Reduction::TimeOut, 5_000);
        assert_eq!(control.window_bytes(), 502_000);
        control.on_rate(0, 30_000);
        assert_eq!(control.window_bytes(), 30_000);
        assert!(!control.in_slow_start());
        control.on_rate(0, 5_000);
        assert_eq!(control.window_bytes(), 30_000);
    }
}
