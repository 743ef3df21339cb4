//! The books of a run: flows that have retired, samples, and counts at the end of the warm-up.

use crate::flow::{FlowId, FlowProgress, FlowSpec};
use crate::results::{
    FlowResult, FlowSink, FlowViolation, RetiredFlows, Series, WarmUpCounts, total,
};
use crate::run::core::Core;
use crate::time::Span;

/// The books of a run.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) series: Option<Series>,
    pub(crate) retired: RetiredFlows,
    /// Counts that results leave out.
    pub(crate) before: WarmUpCounts,
    /// The first flow that retired against the conservation law.
    pub(crate) violation: Option<FlowViolation>,
    /// Flows of which both ends are done, and packets may still be in the fabric.
    leaving: Vec<FlowId>,
}

impl Books {
    /// Makes the books of a run that takes these samples.
    pub(crate) fn new(series: Option<Series>) -> Self {
        Self {
            series,
            ..Self::default()
        }
    }

    /// Hands the results of flows that retire to a function.
    pub(crate) fn stream(&mut self, mut sink: FlowSink) {
        self.retired.kept().iter().for_each(&mut sink);
        self.retired = RetiredFlows::Streamed(sink);
    }

    /// Retires the flows of which nothing is left, in all partitions.
    pub(crate) fn retire(&mut self, cores: &mut [&mut Core]) {
        let mut candidates = std::mem::take(&mut self.leaving);
        for core in &mut *cores {
            candidates.extend(std::iter::from_fn(|| core.shared.flows.take_ready()));
        }
        candidates.sort_unstable();
        candidates.dedup();
        for flow in candidates.drain(..) {
            // It may have retired, or have sent again.
            if !cores[0].shared.flows.is_active(flow) {
                continue;
            }
            let spec = *cores[0].shared.flows.spec(flow);
            let progress = total(cores.iter().map(|core| &**core), flow);
            if progress.is_over() {
                for core in &mut *cores {
                    core.shared.flows.retire(flow);
                }
                self.take(flow, &spec, &progress);
            } else if cores.len() > 1 && progress.ends_are_done() {
                // A partition of neither end may hold its last packet.
                self.leaving.push(flow);
            }
        }
        if self.leaving.is_empty() {
            // Its memory, for the next time.
            self.leaving = candidates;
        }
    }

    fn take(&mut self, flow: FlowId, spec: &FlowSpec, progress: &FlowProgress) {
        let conserved = progress.sent == progress.arrived + progress.dropped
            && progress.delivered_bytes <= spec.bytes;
        if !conserved && self.violation.is_none() {
            self.violation = Some(FlowViolation {
                flow,
                bytes: spec.bytes,
                progress: *progress,
            });
        }
        if let Some(series) = &mut self.series {
            series.retire(flow, progress.delivered_bytes);
        }
        self.retired.take(FlowResult::new(flow, spec, progress));
    }

    /// Samples all partitions, which have been settled. Returns the time to the next sample.
    pub(crate) fn sample(&mut self, cores: &[&Core]) -> Option<Span> {
        let series = self.series.as_mut()?;
        series.sample(cores);
        Some(series.every())
    }

    /// Notes what results leave out from now on; partitions have been settled.
    pub(crate) fn end_warm_up(&mut self, cores: &[&Core]) {
        self.before = WarmUpCounts::new(cores);
    }
}
