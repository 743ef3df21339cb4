//! Durations in buckets, for Prometheus and the page.

use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bound of the lowest bucket; each further one doubles it.
const FIRST_BOUND_NS: u64 = 1_000;

/// Number of buckets: up to about one second.
const BUCKETS: usize = 21;

/// Durations since the start. One thread at a time writes them, any thread reads them.
#[derive(Debug, Default)]
pub struct DurationHistogram {
    buckets: [AtomicU64; BUCKETS],
    count: AtomicU64,
    sum_ns: AtomicU64,
}

impl DurationHistogram {
    /// Counts one duration.
    pub fn record(&self, duration_ns: u64) {
        // Index of the first bound that is not below the duration: ⌈log2(duration / first bound)⌉.
        let units = duration_ns.div_ceil(FIRST_BOUND_NS).max(1);
        let index = units.next_power_of_two().trailing_zeros() as usize;
        if let Some(bucket) = self.buckets.get(index) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_ns.fetch_add(duration_ns, Ordering::Relaxed);
        // Last, with Release: a reader that sees the count also sees the bucket and the sum.
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Returns the sum of all durations, in seconds.
    #[allow(
        clippy::cast_precision_loss,
        reason = "a sum of durations, read as seconds"
    )]
    pub fn seconds_sum(&self) -> f64 {
        self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9
    }

    /// Returns upper bounds in seconds with cumulative counts, as Prometheus expects them.
    #[allow(clippy::cast_precision_loss, reason = "bounds are far below 2^53 ns")]
    pub fn cumulative(&self) -> Vec<(f64, u64)> {
        let mut total = 0;
        (0..BUCKETS)
            .map(|index| {
                total += self.buckets[index].load(Ordering::Relaxed);
                ((FIRST_BOUND_NS << index) as f64 / 1e9, total)
            })
            .collect()
    }
}

/// Figures of a [`DurationHistogram`], in base units.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DurationFigures {
    /// Upper bounds (seconds) and cumulative counts.
    pub buckets: Vec<(f64, u64)>,
    /// Number of durations.
    pub count: u64,
    /// Their sum, in seconds.
    pub seconds_sum: f64,
}

impl DurationHistogram {
    /// Returns the present figures.
    pub fn figures(&self) -> DurationFigures {
        let count = self.count();
        DurationFigures {
            buckets: self.cumulative(),
            count,
            seconds_sum: self.seconds_sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DurationHistogram;

    #[test]
    fn a_duration_counts_in_every_bucket_from_the_first_that_holds_it() {
        let histogram = DurationHistogram::default();
        for duration_ns in [0, 1_000, 1_001, 2_000, 5_000_000_000] {
            histogram.record(duration_ns);
        }
        let buckets = histogram.cumulative();
        assert_eq!(buckets[0], (1e-6, 2), "0 and 1000 ns are at most 1 µs");
        assert_eq!(buckets[1], (2e-6, 4), "1001 and 2000 ns are at most 2 µs");
        assert_eq!(
            buckets.last().map(|bucket| bucket.1),
            Some(4),
            "five seconds are beyond the last bound"
        );
        assert_eq!(histogram.count(), 5);
        assert!((histogram.seconds_sum() - 5.000_004_001).abs() < 1e-12);
    }
}
