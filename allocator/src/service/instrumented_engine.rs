//! Engine that records its iteration times in a histogram, for Prometheus.

use std::sync::Arc;

use crate::engine::{
    EngineError, EngineEvent, IterationReport, Optimality, RateEngine, RateUpdate, Scan,
};

use super::clock;
use super::duration_histogram::DurationHistogram;

/// Engine whose iterations are timed.
pub struct InstrumentedEngine {
    inner: Box<dyn RateEngine>,
    histogram: Arc<DurationHistogram>,
}

impl InstrumentedEngine {
    /// Wraps `inner` and times its iterations.
    pub fn new(inner: Box<dyn RateEngine>, histogram: Arc<DurationHistogram>) -> Self {
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
