//! XCP's sender (XCP §3.2): routers determine the window.
//!
//! Every data packet carries the window, the round-trip time and a request. Routers lower the
//! request to their grant, the receiver returns it, and the window changes by it. Losses, which are
//! rare, are handled as by NewReno.

use super::{AckAdvance, Congestion, Reduction, Window};
use crate::ext::XcpHeader;
use crate::time::{Span, Time};

/// The control of one flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xcp {
    window: Window,
}

impl Congestion for Xcp {
    type Config = ();

    fn new(_: &(), mss_bytes: u64, initial_window_bytes: u64) -> Self {
        Self {
            window: Window::new(mss_bytes, initial_window_bytes),
        }
    }

    fn window_bytes(&self) -> u64 {
        self.window.bytes as u64
    }

    fn in_slow_start(&self) -> bool {
        false
    }

    fn congestion_header(&self, smoothed_rtt: Span) -> Option<XcpHeader> {
        Some(XcpHeader {
            cwnd_bytes: self.window.bytes,
            rtt_s: smoothed_rtt.as_secs_f64(),
            // The request is unbounded; routers only lower it.
            feedback_bytes: f64::INFINITY,
        })
    }

    fn on_feedback(&mut self, bytes: f64) {
        if bytes.is_finite() {
            self.window.bytes = (self.window.bytes + bytes).max(self.window.mss_bytes);
        }
    }

    /// Does nothing: the window never grows by itself.
    fn on_acked(&mut self, _: &AckAdvance) {}

    fn reduce(&mut self, _: Time, why: Reduction, in_flight_bytes: u64) {
        if why != Reduction::Mark {
            self.window.reduce(why, in_flight_bytes as f64 / 2.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_moved_by_feedback_alone_and_never_below_a_packet() {
        let mut control = Xcp::new(&(), 1_000, 10_000);
        let header = control.congestion_header(Span::from_us(60));
        assert_eq!(header.map(|h| h.cwnd_bytes), Some(10_000.0));
        control.on_feedback(2_500.0);
        assert_eq!(control.window_bytes(), 12_500);
        // No feedback: no router on the path speaks XCP.
        control.on_feedback(f64::INFINITY);
        assert_eq!(control.window_bytes(), 12_500);
        control.on_feedback(-1e6);
        assert_eq!(control.window_bytes(), 1_000);
    }
}
