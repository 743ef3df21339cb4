//! Runs a plan, one scheme at a time.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::{PlannedTransport, RunPlan};
use crate::Config;
use crate::net::FabricError;
use crate::report::summary::{SummaryContext, TransportSummary};
use crate::results::{ConservationError, RunResults};
use crate::run::{EndReason, Progress};
use crate::scheme::StartError;
use crate::workload::TraceError;

/// A run that failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The run cannot begin.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A flow cannot run on the fabric.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A trace has changed since the plan was read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A defect of the simulator.
    #[error("the run lost or invented packets: {0}")]
    Conservation(#[from] ConservationError),
}

/// Results of a run that ended.
#[derive(Clone, Debug)]
pub struct TransportRun {
    /// The transport's part of the plan's summary.
    pub summary: TransportSummary,
    /// All measurements, flow by flow and port by port.
    pub results: RunResults,
}

impl RunPlan {
    /// Runs one transport of the plan. The callback gets the run's progress, and may stop the run.
    ///
    /// # Errors
    /// If the run cannot be set up, or lost a packet.
    pub fn run(
        &self,
        transport: &PlannedTransport,
        mut progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<TransportRun, RunError> {
        let fabric = &transport.fabric;
        let config = Config {
            seed: self.seed,
            sample_every: self.series.map(|s| s.0),
            sampled_flows: self.series.map_or(0, |s| s.1),
            // Queues' lengths are sampled at the interval of the series, and only with one.
            watched: if self.series.is_some() {
                self.measured_links.clone()
            } else {
                Vec::new()
            },
            warm_up: self.warm_up,
            threads: self.threads,
            changes: self.faults.clone(),
            groups: Arc::clone(&self.groups),
            ..Config::default()
        };
        let mut sim = transport.start(config, &self.topology, self.flows()?)?;
        let mut ended = EndReason::TimeUp;
        // Goodput counts from the end of the warm-up, so the run halts there to note what each flow
        // has delivered. The callback sees one run: progress goes on from the first part's.
        let mut before = Vec::new();
        if self.warm_up > crate::Time::ZERO {
            ended = sim.run_with(self.warm_up, &mut progress)?;
            before = sim
                .results()
                .flows
                .iter()
                .map(|f| f.delivered_bytes)
                .collect();
        }
        // A run that was stopped in its warm-up still gives results of what there is.
        if matches!(ended, EndReason::Idle | EndReason::TimeUp) {
            ended = sim.run_with(self.end, &mut progress)?;
        }
        // A run that lost or made packets has no results worth reading.
        let results = sim.results();
        results.conservation?;
        let ended = match ended {
            // Also one that came about shortly before the end.
            _ if results.deadlock.is_some() => "deadlock",
            EndReason::Deadlock => "deadlock",
            EndReason::PauseStorm => "pause-storm",
            EndReason::Idle => "complete",
            EndReason::TimeUp => "time-up",
            EndReason::Stopped => "stopped",
        };
        let context = SummaryContext {
            topology: &self.topology,
            framing: fabric.framing,
            host_delay: fabric.host_delay,
            queues: &self.measured_links,
            size_groups: &self.size_groups,
            warm_up: self.warm_up,
            before: &before,
        };
        let summary = TransportSummary::new(&results, &context, ended);
        Ok(TransportRun { summary, results })
    }
}
