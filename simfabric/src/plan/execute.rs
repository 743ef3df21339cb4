//! Runs a plan, one scheme at a time.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::{PlannedTransport, RunPlan, SchemeConfig};
use crate::control::ControlError;
use crate::net::{FabricConfig, FabricError};
use crate::report::summary::{SummaryContext, TransportSummary};
use crate::results::{ConservationError, RunResults};
use crate::run::{EndReason, Progress};
use crate::transport::Transport;
use crate::transport::constant::ConstantRate;
use crate::transport::flowtune::Flowtune;
use crate::transport::ideal::Ideal;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::congestion::{Cubic, Dctcp, NewReno, PFabric, Xcp};
use crate::transport::window::ConstantWindow;
use crate::workload::TraceError;
use crate::{Config, Sim};

/// A run that failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The allocator's sessions or engine.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The fabric cannot be built, or a flow cannot run on it.
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
        progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<TransportRun, RunError> {
        let fabric = &transport.fabric;
        match transport.scheme {
            SchemeConfig::Xcp(config) => self.run_with(fabric, Tcp::<Xcp>::new(config), progress),
            SchemeConfig::PFabric(config) => {
                self.run_with(fabric, Tcp::<PFabric>::new(config), progress)
            }
            SchemeConfig::Flowtune { ref config, links } => {
                // Only Flowtune has an allocator in the network; for the others it would be a host
                // more.
                let fabric = FabricConfig {
                    allocator: Some(links),
                    ..fabric.clone()
                };
                let topology = Arc::new(self.topology.clone());
                let flowtune = Flowtune::new(&topology, (**config).clone())?;
                self.run_with(&fabric, flowtune, progress)
            }
            SchemeConfig::Ideal(ref config) => {
                let topology = Arc::new(self.topology.clone());
                let ideal = Ideal::new(&topology, config.clone()).map_err(ControlError::from)?;
                self.run_with(fabric, ideal, progress)
            }
            SchemeConfig::Constant { rate_bps } => {
                self.run_with(fabric, ConstantRate::new(rate_bps), progress)
            }
            SchemeConfig::FixedWindow { packets } => {
                self.run_with(fabric, ConstantWindow::new(packets), progress)
            }
            SchemeConfig::NewReno(config) => {
                self.run_with(fabric, Tcp::<NewReno>::new(config), progress)
            }
            SchemeConfig::Cubic(config) => {
                self.run_with(fabric, Tcp::<Cubic>::new(config), progress)
            }
            SchemeConfig::Dctcp(config) => {
                self.run_with(fabric, Tcp::<Dctcp>::new(config), progress)
            }
        }
    }

    fn run_with<T: Transport>(
        &self,
        fabric: &FabricConfig,
        transport: T,
        mut progress: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<TransportRun, RunError> {
        let config = Config {
            seed: self.seed,
            fabric: fabric.clone(),
            sample_every: self.series.map(|s| s.0),
            sampled_flows: self.series.map_or(0, |s| s.1),
            // Queues' lengths are sampled at the interval of the series, and only with one.
            watched: if self.series.is_some() {
                self.measured_links.clone()
            } else {
                Vec::new()
            },
            warm_up: self.warm_up,
            ..Config::default()
        };
        let mut sim = Sim::new(config, self.topology.clone(), self.flows()?, transport)?;
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
        if ended != EndReason::Stopped {
            ended = sim.run_with(self.end, &mut progress)?;
        }
        // A run that lost or made packets has no results worth reading.
        let results = sim.results();
        results.conservation?;
        let ended = match ended {
            EndReason::Idle => "complete",
            EndReason::TimeUp => "time-up",
            EndReason::Stopped => "stopped",
        };
        let context = SummaryContext {
            topology: &self.topology,
            framing: fabric.framing,
            host_delay: fabric.host_delay,
            queues: &self.measured_links,
            warm_up: self.warm_up,
            before: &before,
        };
        let summary = TransportSummary::new(&results, &context, ended);
        Ok(TransportRun { summary, results })
    }
}
