//! Durations of an iteration's parts.

use crate::engine::clock::now;

/// Time that the first worker spent in each part of its iterations, summed up, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseNanos {
    /// The pass over the flows: F-NORM of the last rates, notification, new rates and their sums.
    pub rate_update: u64,
    /// Wait at the second barrier, for the other workers' sums.
    pub aggregation_wait: u64,
    /// Aggregation of all workers' sums, and the price update.
    pub price_update: u64,
    /// Wait at the third barrier, for the other workers' prices.
    pub distribution_wait: u64,
    /// The second pass of iterations that follow events.
    pub normalization: u64,
    /// Row updates and compaction before the iteration, the waits included.
    pub compaction: u64,
    /// The part of `compaction` that inserts and removes flows.
    pub row_updates: u64,
    /// Price correction for events, before the iteration.
    pub price_correction: u64,
    /// The optimiser's pass between correction and iteration, all its parts.
    pub extra_pass: u64,
}

impl PhaseNanos {
    pub(super) fn add(&mut self, times: &PhaseTimes) {
        self.rate_update += times.rates_ns;
        self.aggregation_wait += times.aggregation_wait_ns;
        self.price_update += times.prices_ns;
        self.distribution_wait += times.distribution_wait_ns;
        self.normalization += times.normalization_ns;
        self.row_updates += times.row_updates_ns;
    }

    /// The difference to an earlier reading.
    #[must_use]
    pub fn since(&self, before: Self) -> Self {
        Self {
            rate_update: self.rate_update - before.rate_update,
            aggregation_wait: self.aggregation_wait - before.aggregation_wait,
            price_update: self.price_update - before.price_update,
            distribution_wait: self.distribution_wait - before.distribution_wait,
            normalization: self.normalization - before.normalization,
            compaction: self.compaction - before.compaction,
            row_updates: self.row_updates - before.row_updates,
            price_correction: self.price_correction - before.price_correction,
            extra_pass: self.extra_pass - before.extra_pass,
        }
    }

    /// Adds the times of a pass that notifies no rate.
    pub(super) fn add_extra_pass(&mut self, times: &PhaseTimes) {
        self.extra_pass += times.rates_ns
            + times.aggregation_wait_ns
            + times.prices_ns
            + times.distribution_wait_ns
            + times.normalization_ns;
    }
}

/// Durations of a worker's parts of the last iteration, in ns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PhaseTimes {
    pub(super) rates_ns: u64,
    pub(super) aggregation_wait_ns: u64,
    pub(super) prices_ns: u64,
    pub(super) distribution_wait_ns: u64,
    pub(super) normalization_ns: u64,
    pub(super) row_updates_ns: u64,
}

/// Stopwatch that reads no clock unless `timed`.
pub(super) struct PhaseClock(Option<std::time::Instant>);

impl PhaseClock {
    pub(super) fn new(timed: bool) -> Self {
        Self(timed.then(now))
    }

    pub(super) fn lap(&mut self) -> u64 {
        let Some(last) = &mut self.0 else { return 0 };
        let end = now();
        let lap = end.duration_since(*last).as_nanos() as u64;
        *last = end;
        lap
    }
}
