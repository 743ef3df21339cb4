//! Latencies: percentiles of all samples, and the recent samples singly.

use std::collections::VecDeque;

use hdrhistogram::Histogram;

/// Number of recent samples that are kept.
pub const RECENT_SAMPLES: usize = 65_536;
/// Largest sample; longer ones count as a minute.
const LARGEST_NS: u64 = 60_000_000_000;

/// Percentiles since the start, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Summary {
    /// Samples.
    pub count: u64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

/// Latency samples: all in a histogram, the recent ones singly.
#[derive(Debug)]
pub struct Samples {
    all_ns: Histogram<u64>,
    recent_us: VecDeque<u32>,
}

impl Default for Samples {
    fn default() -> Self {
        Self {
            // Three significant digits from 1 µs to a minute: about 200 KiB.
            all_ns: Histogram::new_with_bounds(1_000, LARGEST_NS, 3)
                .expect("constant bounds are valid"),
            recent_us: VecDeque::new(),
        }
    }
}

impl Samples {
    /// Adds a sample.
    pub fn record(&mut self, latency_ns: u64) {
        let latency_ns = latency_ns.min(LARGEST_NS);
        self.all_ns.saturating_record(latency_ns);
        if self.recent_us.len() == RECENT_SAMPLES {
            self.recent_us.pop_front();
        }
        // At most 60,000,000.
        self.recent_us
            .push_back(u32::try_from(latency_ns / 1_000).unwrap_or(u32::MAX));
    }

    /// The recent samples in microseconds, oldest first.
    #[must_use]
    pub fn recent_us(&self) -> Vec<u32> {
        self.recent_us.iter().copied().collect()
    }

    /// Percentiles of all samples.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // at most 6e10 ns
    pub fn summary(&self) -> Summary {
        let micros = |ns: u64| (ns as f64 / 100.0).round() / 10.0;
        let at = |quantile| micros(self.all_ns.value_at_quantile(quantile));
        Summary {
            count: self.all_ns.len(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: micros(self.all_ns.max()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_thousandth() {
        let mut samples = Samples::default();
        assert_eq!(samples.summary(), Summary::default());
        for us in 1..=1_000_u64 {
            samples.record(us * 1_000);
        }
        let summary = samples.summary();
        assert_eq!(summary.count, 1_000);
        for (value, exact) in [
            (summary.p50, 500.0),
            (summary.p90, 900.0),
            (summary.p99, 990.0),
            (summary.max, 1000.0),
        ] {
            assert!(
                (value / exact - 1.0_f64).abs() < 2e-3,
                "{value} for {exact}"
            );
        }
    }

    #[test]
    fn recent_samples_are_bounded() {
        let mut samples = Samples::default();
        for us in 0..RECENT_SAMPLES as u64 + 10 {
            samples.record(us * 1_000);
        }
        samples.record(u64::MAX);
        let recent = samples.recent_us();
        assert_eq!((recent.len(), recent[0]), (RECENT_SAMPLES, 11));
        assert_eq!(recent[RECENT_SAMPLES - 1], 60_000_000);
    }
}
