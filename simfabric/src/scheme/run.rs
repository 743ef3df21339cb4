//! A run whose scheme is known by name only.

use std::ops::ControlFlow;

use ratewright_topology::Topology;

use crate::control::ControlError;
use crate::flow::FlowId;
use crate::host::Endpoint;
use crate::net::FabricError;
use crate::parameters::ParamError;
use crate::results::{FlowSink, RunResults, Series};
use crate::run::{Config, EndReason, Progress, Sim};
use crate::time::Time;
use crate::transport::Transport;
use crate::workload::{Arrivals, FlowStream};

/// A run's settings, network and workload.
pub struct Setup {
    /// Settings beside topology, workload and scheme.
    pub config: Config,
    /// The network.
    pub topology: Topology,
    /// The flows in the order of their starts.
    pub flows: FlowStream,
}

/// A run that cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The control plane.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The fabric.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The scheme's parameters.
    #[error(transparent)]
    Parameters(#[from] ParamError),
}

/// A run of any scheme.
pub trait Run {
    /// Runs until `end`, or until no event is left. The callback gets the progress, and may stop
    /// the run, which can be continued.
    ///
    /// # Errors
    /// If the workload's flows are out of order or lead nowhere.
    fn run_with(
        &mut self,
        end: Time,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<EndReason, FabricError>;

    /// Returns the progress so far.
    fn progress(&self) -> Progress;

    /// Returns the rate that a flow's sender has set, in bit/s on the link: see
    /// [`Endpoint::rate_bps`]. `None` as well before the flow begins and after its end.
    fn rate_bps(&self, flow: FlowId) -> Option<f64>;

    /// Returns the number of regions that take turns.
    fn regions(&self) -> usize;

    /// Returns the number of threads that simulate the fabric.
    fn threads(&self) -> usize;

    /// Returns the scheme's own counters, by name.
    fn counters(&self) -> Vec<(&'static str, f64)>;

    /// Ends the warm-up now: see [`Sim::end_warm_up`].
    fn end_warm_up(&mut self);

    /// Hands the results of flows that retire to a function: see [`Sim::stream_flows`].
    fn stream_flows(&mut self, sink: FlowSink);

    /// Returns the samples so far, if the run takes any.
    fn series(&self) -> Option<&Series>;

    /// Returns the results so far.
    fn results(&mut self) -> RunResults;

    /// Runs until `end`, or until no event is left.
    ///
    /// # Errors
    /// As [`run_with`](Self::run_with).
    fn run_until(&mut self, end: Time) -> Result<EndReason, FabricError> {
        self.run_with(end, &mut |_| ControlFlow::Continue(()))
    }
}

impl<T: Transport, A: Arrivals> Run for Sim<T, A> {
    fn run_with(
        &mut self,
        end: Time,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<EndReason, FabricError> {
        self.run_with(end, progress)
    }

    fn progress(&self) -> Progress {
        self.progress()
    }

    fn rate_bps(&self, flow: FlowId) -> Option<f64> {
        let (endpoint, slot) = self.sender_of(flow)?;
        endpoint.rate_bps(slot)
    }

    fn regions(&self) -> usize {
        self.regions()
    }

    fn threads(&self) -> usize {
        self.threads()
    }

    fn counters(&self) -> Vec<(&'static str, f64)> {
        self.counters()
    }

    fn end_warm_up(&mut self) {
        self.end_warm_up();
    }

    fn stream_flows(&mut self, sink: FlowSink) {
        self.stream_flows(sink);
    }

    fn series(&self) -> Option<&Series> {
        self.series()
    }

    fn results(&mut self) -> RunResults {
        self.results()
    }
}
