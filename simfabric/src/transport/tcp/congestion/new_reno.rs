//! NewReno: additive increase, halving (RFC 5681, RFC 6582).

use super::{AckAdvance, Congestion, Reduction, Window};
use crate::time::Time;

/// The control of one flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NewReno {
    window: Window,
}

impl Congestion for NewReno {
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
        self.window.in_slow_start()
    }

    fn on_acked(&mut self, acked: &AckAdvance) {
        if self.window.in_slow_start() {
            self.window.slow_start(acked.bytes);
        } else {
            self.window.additive_increase(acked.bytes);
        }
    }

    fn reduce(&mut self, _: Time, why: Reduction, in_flight_bytes: u64) {
        self.window.reduce(why, in_flight_bytes as f64 / 2.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    fn acked(bytes: u64) -> AckAdvance {
        AckAdvance {
            now: Time::ZERO,
            bytes,
            least_rtt: Span::from_us(100),
            smoothed_rtt: Span::from_us(100),
        }
    }

    #[test]
    fn the_window_doubles_each_round_then_grows_by_a_packet() {
        let mut control = NewReno::new(&(), 1_000, 10_000);
        for _ in 0..10 {
            control.on_acked(&acked(1_000));
        }
        assert_eq!(control.window_bytes(), 20_000);
        // RFC 5681 equation 4: half of what is in flight.
        control.reduce(Time::ZERO, Reduction::Loss, 20_000);
        assert_eq!(control.window_bytes(), 10_000);
        for _ in 0..10 {
            control.on_acked(&acked(1_000));
        }
        let grown = control.window_bytes();
        assert!((10_900..=11_000).contains(&grown), "{grown}");
    }

    #[test]
    fn a_time_out_leaves_one_packet_and_a_threshold_of_half() {
        let mut control = NewReno::new(&(), 1_000, 40_000);
        control.reduce(Time::ZERO, Reduction::TimeOut, 40_000);
        assert_eq!(control.window_bytes(), 1_000);
        for _ in 0..19 {
            control.on_acked(&acked(1_000));
        }
        assert_eq!(control.window_bytes(), 20_000);
        control.on_acked(&acked(1_000));
        assert_eq!(control.window_bytes(), 20_050);
    }
}
