//! Experiment (M), fig. 17: throughput after normalisers, relative to the optimum.

use ratewright_allocator::num::{Ned, Normalizer, SafeguardedNed, UNorm};
use ratewright_topology::TwoTierClos;

use super::flow_set::FlowSetError;
use super::flowlets::{Flowlets, Stream};
use super::over_allocation::{GRADIENT_GAMMA, Length, NED_GAMMA};
use super::{NamedOptimizer, optimum};
use crate::optimizers::{CoordinateDescent, Gradient};

/// Optimisers of the figure, and Ratewright's: with the engine's one additional pass after events,
/// and with the nine that a fast engine has time for.
pub const OPTIMIZERS: [NamedOptimizer; 4] = [
    ("NED", |links| Box::new(Ned::new(NED_GAMMA, links))),
    ("Gradient", |links| {
        Box::new(Gradient::new(GRADIENT_GAMMA, links))
    }),
    ("Ratewright", |links| {
        Box::new(SafeguardedNed::new(NED_GAMMA, links))
    }),
    ("Ratewright, 10 passes", |links| {
        Box::new(SafeguardedNed::with_inner_passes(NED_GAMMA, 9, links))
    }),
];

/// Residual up to which the optimum is computed.
const OPTIMUM_RESIDUAL: f64 = 1e-6;
/// Iterations from one comparison with the optimum to the next.
const SAMPLE_EVERY: u32 = 5;

/// Figures of one optimiser under one load: means over the iterations that were compared.
/// Throughput is the sum of all rates, as a share of the sum of the optimal rates of the same
/// flows.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct NormalizerFigures {
    /// The optimiser.
    pub optimizer: &'static str,
    /// Mean load of a server's link.
    pub load: f64,
    /// Throughput after F-NORM.
    pub f_norm: f64,
    /// Throughput after U-NORM.
    pub u_norm: f64,
    /// The 1st percentile over iterations of the throughput after F-NORM.
    pub f_norm_p1: f64,
    /// The 99th percentile of rate errors after F-NORM, mean over iterations.
    pub f_norm_p99_rate_error: f64,
    /// Mean number of active flowlets.
    pub mean_flows: f64,
}

/// Runs one optimiser under one load. Flowlets drain at the rates after F-NORM; U-NORM only
/// measures the same allocations.
///
/// # Errors
/// A network that cannot be built.
pub fn run(
    network: &TwoTierClos,
    stream: Stream,
    length: Length,
    (name, make): NamedOptimizer,
) -> Result<NormalizerFigures, FlowSetError> {
    let mut flowlets = Flowlets::new(network, stream, make)?;
    let mut solver = CoordinateDescent::new(flowlets.flow_set().links());
    let mut uniform = UNorm::default();
    let (mut truth, mut u_rates) = (Vec::new(), Vec::new());
    let (mut f_shares, mut u_sum, mut error_sum, mut flows) = (Vec::new(), 0.0, 0.0, 0.0);
    for iteration in 0..length.warm_up + length.measured {
        flowlets.step()?;
        // An optimum costs far more than an iteration, so only every fifth is compared.
        if iteration < length.warm_up
            || iteration % SAMPLE_EVERY != 0
            || flowlets.flow_set().flows() == 0
        {
            continue;
        }
        let problem = flowlets.flow_set().problem();
        // From the last optimum's prices, which makes the search short.
        optimum(&mut solver, &problem, OPTIMUM_RESIDUAL, &mut truth);
        u_rates.clear();
        u_rates.resize(truth.len(), 0.0);
        // On the same rates; its result drains nothing.
        uniform.normalize(&problem, flowlets.rates(), &mut u_rates);
        let best: f64 = truth.iter().sum();
        f_shares.push(flowlets.normalized().iter().sum::<f64>() / best);
        u_sum += u_rates.iter().sum::<f64>() / best;
        let error = |(x, t): (&f64, &f64)| (x / t - 1.0).abs();
        let mut errors: Vec<f64> = flowlets
            .normalized()
            .iter()
            .zip(&truth)
            .map(error)
            .collect();
        error_sum += super::quantile(&mut errors, 0.99);
        flows += truth.len() as f64;
    }
    let count = f_shares.len().max(1) as f64;
    Ok(NormalizerFigures {
        optimizer: name,
        load: stream.load,
        f_norm: f_shares.iter().sum::<f64>() / count,
        u_norm: u_sum / count,
        f_norm_p1: super::quantile(&mut f_shares, 0.01),
        f_norm_p99_rate_error: error_sum / count,
        mean_flows: flows / count,
    })
}
