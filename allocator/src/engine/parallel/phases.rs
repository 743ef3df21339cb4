//! Durations of the parts of an iteration.

use crate::engine::clock::now;

/// How long the first worker spent in the parts of its iterations, summed up, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseNanos {
    /// Rates of the last iteration normalised and notified, new rates, their sums.
    pub rate_update: u64,
    /// Waiting for the sums of the others.
    pub aggregation_wait: u64,
    /// Adding the sums of all workers up, and updating prices.
    pub price_update: u64,
    /// Waiting for the prices of the others.
    pub distribution_wait: u64,
    /// The second walk of iterations that follow an event.
    pub normalization: u64,
    /// Taking flows out of rows and into others, moving them together and putting rows in order, before the
    /// iteration.
    pub compaction: u64,
    /// What of that flows that start and end take.
    pub row_updates: u64,
    /// Prices that answer events, before the iteration.
    pub price_correction: u64,
    /// The pass of the optimiser between those and the iteration, all its parts.
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

    /// What was added since it was `before`.
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

    /// Times of a pass whose rates nobody is told.
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

/// Laps, if anybody wants to know.
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
