//! Engine that records its iteration times in a histogram, for Prometheus.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::{
    EngineError, EngineEvent, IterationReport, Optimality, RateEngine, RateUpdate, Scan,
};

use super::clock;

/// Upper bound of the lowest bucket; each further one doubles it.
const FIRST_BOUND_NS: u64 = 1_000;

/// Number of buckets: up to about one second.
const BUCKETS: usize = 21;

/// Iteration times since the start. The engine's thread writes them, any thread reads them.
#[derive(Debug, Default)]
pub struct IterationHistogram {
    buckets: [AtomicU64; BUCKETS],
    iterations: AtomicU64,
    sum_ns: AtomicU64,
}

impl IterationHistogram {
    fn record(&self, duration_ns: u64) {
        // Index of the first bound that is not below the duration: ⌈log2(duration / first bound)⌉.
        let units = duration_ns.div_ceil(FIRST_BOUND_NS).max(1);
        let index = units.next_power_of_two().trailing_zeros() as usize;
        if let Some(bucket) = self.buckets.get(index) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_ns.fetch_add(duration_ns, Ordering::Relaxed);
        // Last, with Release: a reader that sees the count also sees the bucket and the sum.
        self.iterations.fetch_add(1, Ordering::Release);
    }

    /// Returns the iterations since the start.
    pub fn iterations(&self) -> u64 {
        self.iterations.load(Ordering::Acquire)
    }

    /// Returns the time spent in iterations, in seconds.
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

/// Engine whose iterations are timed.
pub struct InstrumentedEngine {
    inner: Box<dyn RateEngine>,
    histogram: Arc<IterationHistogram>,
}

impl InstrumentedEngine {
    /// Wraps `inner` and times its iterations.
    pub fn new(inner: Box<dyn RateEngine>, histogram: Arc<IterationHistogram>) -> Self {
        Self { inner, histogram }
    }
}

impl RateEngine for InstrumentedEngine {
    fn apply(&mut self, event: EngineEvent) -> Result<(), EngineError> {
        self.inner.apply(event)
    }

    fn iterate(&mut self) -> IterationReport {
        let before_ns = clock::now_ns();
        let report = self.inner.iterate();
        self.histogram.record(clock::now_ns() - before_ns);
        report
    }

    fn first_rates(&mut self, sink: &mut dyn FnMut(RateUpdate)) {
        self.inner.first_rates(sink);
    }

    fn drain_updates(&mut self, sink: &mut dyn FnMut(RateUpdate)) {
        self.inner.drain_updates(sink);
    }

    fn drain_some(&mut self, most: usize, sink: &mut dyn FnMut(RateUpdate)) -> bool {
        self.inner.drain_some(most, sink)
    }

    fn link_loads(&self, loads_bps: &mut Vec<f64>) {
        self.inner.link_loads(loads_bps);
    }

    fn link_capacities(&self, capacities_bps: &mut Vec<f64>) {
        self.inner.link_capacities(capacities_bps);
    }

    fn link_prices(&self, prices: &mut Vec<f64>) {
        self.inner.link_prices(prices);
    }

    fn optimality(&self) -> Optimality {
        self.inner.optimality()
    }

    fn scan(&self, scan: &mut Scan, flows: usize) -> bool {
        self.inner.scan(scan, flows)
    }

    fn flow_count(&self) -> usize {
        self.inner.flow_count()
    }
}

#[cfg(test)]
mod tests {
    use super::IterationHistogram;

    #[test]
    fn a_duration_counts_in_every_bucket_from_the_first_that_holds_it() {
        let histogram = IterationHistogram::default();
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
        assert_eq!(histogram.iterations(), 5);
        assert!((histogram.seconds_sum() - 5.000_004_001).abs() < 1e-12);
    }
}
