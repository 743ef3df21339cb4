//! Numeric experiments with optimisers and normalisers (flowtune §5.4): seeded, deterministic, no
//! clock of their own.
//!
//! | module | contents |
//! |---|---|
//! | [`flow_set`] | flows that an experiment changes, on a two-tier Clos |
//! | [`web`] | sizes of a web server's flowlets |
//! | [`flowlets`] | flowlets that start as a Poisson process and drain at their allocated rates |
//! | [`over_allocation`] | experiment (L), fig. 16: over-allocation by optimiser |
//! | [`normalizer`] | experiment (M), fig. 17: throughput after normalisers, relative to the optimum |
//! | [`convergence`] | time to the new optimum after some flows were replaced, by step rule |
//! | [`rules`] | those step rules |

pub mod convergence;
pub mod flow_set;
pub mod flowlets;
pub mod normalizer;
pub mod over_allocation;
pub mod rules;
pub mod web;

#[cfg(test)]
mod tests;

use ratewright_allocator::num::{Optimizer, Problem};

use crate::optimizers::CoordinateDescent;

/// Sweeps after which the search for an optimum ends, whatever its residual.
const MOST_SWEEPS: u32 = 20_000;

/// Computes the optimal rates of a problem, by coordinate descent from the solver's prices, to
/// within `residual` of each link's capacity. Returns the residual that was reached.
pub fn optimum(
    solver: &mut CoordinateDescent,
    problem: &Problem<'_>,
    residual: f64,
    rates: &mut Vec<f64>,
) -> f64 {
    solver.index(problem);
    let mut reached = f64::INFINITY;
    for _ in 0..MOST_SWEEPS {
        reached = solver.sweep(problem, 0..problem.capacities.len());
        if reached <= residual {
            break;
        }
    }
    // One more sweep, which also computes the rates.
    rates.clear();
    rates.resize(problem.flows.len(), 0.0);
    solver.iterate(problem, rates);
    reached
}

/// An experiment's optimiser: its name in the paper's figures, and its constructor by number of
/// links.
pub type NamedOptimizer = (&'static str, fn(usize) -> Box<dyn Optimizer>);

/// Returns the value at quantile `q` of unsorted values; 0 without values.
fn quantile(values: &mut [f64], q: f64) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let at = ((values.len() - 1) as f64 * q) as usize;
    *values.select_nth_unstable_by(at, f64::total_cmp).1
}
