//! Experiment (L), fig. 16: total rate that an optimiser allocates beyond capacities.

use ratewright_allocator::num::{Ned, SafeguardedNed};
use ratewright_topology::TwoTierClos;

use super::NamedOptimizer;
use super::flow_set::FlowSetError;
use super::flowlets::{Flowlets, Stream};
use crate::optimizers::{Fgm, Gradient, GradientRt, NedRt, NewtonLike};

/// γ of NED, as in the paper.
pub const NED_GAMMA: f64 = 0.4;
/// γ of gradient projection: the largest that is stable for one flow alone on four links.
pub const GRADIENT_GAMMA: f64 = 0.4;

/// Optimisers of the figure, and Ratewright's.
pub const OPTIMIZERS: [NamedOptimizer; 7] = [
    ("NED", |links| Box::new(Ned::new(NED_GAMMA, links))),
    ("NED-RT", |links| Box::new(NedRt::new(NED_GAMMA, links))),
    ("Gradient", |links| {
        Box::new(Gradient::new(GRADIENT_GAMMA, links))
    }),
    ("Gradient-RT", |links| {
        Box::new(GradientRt::new(GRADIENT_GAMMA, links))
    }),
    ("FGM", |links| Box::new(Fgm::new(links))),
    ("Newton-like", |links| {
        Box::new(NewtonLike::new(NED_GAMMA, links))
    }),
    ("Ratewright", |links| {
        Box::new(SafeguardedNed::new(NED_GAMMA, links))
    }),
];

/// Length of a run, in iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    /// Iterations that are not measured, in which the network fills.
    pub warm_up: u32,
    /// Iterations that are measured.
    pub measured: u32,
}

/// Figures of one optimiser under one load.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct OverAllocation {
    /// The optimiser.
    pub optimizer: &'static str,
    /// Mean load of a server's link.
    pub load: f64,
    /// Σ over links of load beyond capacity: mean over iterations.
    pub mean_gbps: f64,
    /// Its 99th percentile.
    pub p99_gbps: f64,
    /// Mean number of active flowlets.
    pub mean_flows: f64,
}

/// Runs one optimiser under one load.
///
/// # Errors
/// A network that cannot be built.
pub fn run(
    network: &TwoTierClos,
    stream: Stream,
    length: Length,
    (name, make): NamedOptimizer,
) -> Result<OverAllocation, FlowSetError> {
    let mut flowlets = Flowlets::new(network, stream, make)?;
    let mut loads = vec![0.0; flowlets.flow_set().links()];
    let mut totals = Vec::with_capacity(length.measured as usize);
    let mut flows = 0.0;
    for iteration in 0..length.warm_up + length.measured {
        flowlets.step()?;
        // The network starts empty, and its load is below the stream's until it fills.
        if iteration < length.warm_up {
            continue;
        }
        let problem = flowlets.flow_set().problem();
        // Rates before normalisation: the figure shows what F-NORM has to correct.
        problem.loads(flowlets.rates(), &mut loads);
        // Spare capacity on one link does not make up for excess on another.
        let beyond = |(load, capacity): (&f64, &f64)| (load - capacity).max(0.0);
        totals.push(loads.iter().zip(problem.capacities).map(beyond).sum());
        flows += flowlets.flow_set().flows() as f64;
    }
    let count = f64::from(length.measured.max(1));
    Ok(OverAllocation {
        optimizer: name,
        load: stream.load,
        mean_gbps: totals.iter().sum::<f64>() / count,
        p99_gbps: super::quantile(&mut totals, 0.99),
        mean_flows: flows / count,
    })
}
