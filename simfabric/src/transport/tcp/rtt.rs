//! Round-trip time and retransmission time-out (RFC 6298).

use crate::time::Span;

/// Estimator of one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RttEstimator {
    smoothed: Span,
    variation: Span,
    least: Span,
    backoff: u8,
    rto: Span,
}

/// Largest number of doublings of the time-out.
const MAX_BACKOFF: u8 = 8;

impl RttEstimator {
    /// Makes an estimator before the first measurement (RFC 6298 §2.1).
    #[must_use]
    pub const fn new(initial_rto: Span) -> Self {
        Self {
            smoothed: Span::ZERO,
            variation: Span::ZERO,
            least: Span::MAX,
            backoff: 0,
            rto: initial_rto,
        }
    }

    /// Takes a measurement (RFC 6298 §2.2, §2.3). With time stamps every acknowledgement gives one,
    /// even of a retransmission.
    #[inline]
    pub fn sample(&mut self, rtt: Span, min_rto: Span) {
        // Zero stands for no measurement.
        let rtt = Span(rtt.0.max(1));
        if self.smoothed == Span::ZERO {
            self.smoothed = rtt;
            self.variation = Span(rtt.0 / 2);
        } else {
            let error = self.smoothed.0.abs_diff(rtt.0);
            self.variation = Span(self.variation.0 - self.variation.0 / 4 + error / 4);
            self.smoothed = Span(self.smoothed.0 - self.smoothed.0 / 8 + rtt.0 / 8);
        }
        self.least = self.least.min(rtt);
        // RFC 6298 §5: a new measurement ends the back-off.
        self.backoff = 0;
        self.rto = Span((self.smoothed.0 + 4 * self.variation.0).max(min_rto.0));
    }

    /// Doubles the time-out because it expired (RFC 6298 §5.5).
    pub fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
    }

    /// Returns the retransmission time-out.
    #[inline]
    #[must_use]
    pub const fn rto(&self) -> Span {
        Span(self.rto.0.saturating_mul(1 << self.backoff))
    }

    /// Returns the smoothed round-trip time; zero before the first measurement.
    #[inline]
    #[must_use]
    pub const fn smoothed(&self) -> Span {
        self.smoothed
    }

    /// Returns the least round-trip time measured.
    #[must_use]
    pub const fn least(&self) -> Span {
        self.least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_samples_are_those_of_the_rfc() {
        let mut rtt = RttEstimator::new(Span::from_ms(1_000));
        assert_eq!(rtt.rto(), Span::from_ms(1_000));
        // RFC 6298 §2.2: SRTT = R, RTTVAR = R/2, RTO = R + 4 R/2.
        rtt.sample(Span::from_us(80), Span::ZERO);
        assert_eq!(rtt.smoothed(), Span::from_us(80));
        assert_eq!(rtt.rto(), Span::from_us(240));
        // §2.3: RTTVAR = 3/4 40 + 1/4 |80 - 160| = 50, SRTT = 7/8 80 + 1/8 160 = 90.
        rtt.sample(Span::from_us(160), Span::ZERO);
        assert_eq!(rtt.smoothed(), Span::from_us(90));
        assert_eq!(rtt.rto(), Span::from_us(290));
    }

    #[test]
    fn time_outs_double_until_the_next_measurement_and_keep_the_least() {
        let mut rtt = RttEstimator::new(Span::from_ms(1_000));
        rtt.sample(Span::from_us(80), Span::from_ms(10));
        assert_eq!(rtt.rto(), Span::from_ms(10));
        rtt.back_off();
        rtt.back_off();
        assert_eq!(rtt.rto(), Span::from_ms(40));
        rtt.sample(Span::from_us(80), Span::from_ms(10));
        assert_eq!(rtt.rto(), Span::from_ms(10));
    }
}
