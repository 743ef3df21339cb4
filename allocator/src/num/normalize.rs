//! Normalisers: from the rates that prices suggest to rates that fit (flowtune §3.1).
//!
//! While prices converge, links are momentarily over-allocated. A normaliser scales rates so that
//! no link is, at any iteration. With the ratio r_l = Σ x_s / c_l of each link:
//!
//! - **U-NORM** divides every rate by the largest ratio in the network: fair, and wasteful.
//! - **F-NORM** divides each rate by the largest ratio on the flow's own path.
//!
//! Why F-NORM never over-allocates although it scales *up* where the whole path is under-used: a
//! flow on link l is divided by at least r_l, so the link's load is at most Σ x_s / r_l = c_l. A
//! clamp to the demand after that only takes load away.

use super::Problem;

/// Scales rates to fit the capacities.
pub trait Normalizer: Send {
    /// Writes rates that fit the capacities to `normalized`, which is as long as `rates`. Returns
    /// the largest finite ratio of load to capacity.
    fn normalize(&mut self, problem: &Problem<'_>, rates: &[f64], normalized: &mut [f64]) -> f64;
}

/// Load over capacity: infinite for a loaded link without capacity.
fn ratio(load: f64, capacity: f64) -> f64 {
    if load <= 0.0 {
        0.0
    } else if capacity > 0.0 {
        load / capacity
    } else {
        f64::INFINITY
    }
}

/// Turns loads into ratios, in place; returns the largest finite one.
fn ratios(problem: &Problem<'_>, rates: &[f64], scratch: &mut Vec<f64>) -> f64 {
    // Kept between calls: no allocation once the network's size is reached.
    scratch.resize(problem.capacities.len(), 0.0);
    problem.loads(rates, scratch);
    let mut largest: f64 = 0.0;
    for (load, &capacity) in scratch.iter_mut().zip(problem.capacities) {
        *load = ratio(*load, capacity);
        // Infinite ratios are those of failed links: they stop their own flows only.
        if load.is_finite() {
            largest = largest.max(*load);
        }
    }
    largest
}

/// True if a path crosses a link without capacity.
fn is_cut(problem: &Problem<'_>, path: &[u32]) -> bool {
    path.iter()
        .any(|&link| problem.capacities[link as usize] <= 0.0)
}

/// F-NORM (flowtune §3.1, (6)): divides each rate by the fullest ratio on its own path, then caps
/// it.
#[derive(Clone, Debug, Default)]
pub struct FNorm {
    ratios: Vec<f64>,
}

impl Normalizer for FNorm {
    fn normalize(&mut self, problem: &Problem<'_>, rates: &[f64], normalized: &mut [f64]) -> f64 {
        let largest = ratios(problem, rates, &mut self.ratios);
        let flows = problem.flows;
        for (((out, &rate), path), limit) in normalized
            .iter_mut()
            .zip(rates)
            .zip(flows.paths)
            .zip(flows.limits)
        {
            let fullest = path
                .iter()
                .fold(0.0, |m: f64, &l| m.max(self.ratios[l as usize]));
            // A flow with a rate loads every link of its path, so the ratio is above 0.
            *out = if rate > 0.0 && fullest.is_finite() {
                (rate / fullest).min(limit.cap)
            } else {
                0.0
            };
        }
        largest
    }
}

/// U-NORM (flowtune §3.1, (5)): divides all rates by the fullest ratio of the network, then caps
/// them. Flows over a link without capacity get nothing and do not scale the others.
#[derive(Clone, Debug, Default)]
pub struct UNorm {
    ratios: Vec<f64>,
}

impl Normalizer for UNorm {
    fn normalize(&mut self, problem: &Problem<'_>, rates: &[f64], normalized: &mut [f64]) -> f64 {
        let largest = ratios(problem, rates, &mut self.ratios);
        let flows = problem.flows;
        for (((out, &rate), path), limit) in normalized
            .iter_mut()
            .zip(rates)
            .zip(flows.paths)
            .zip(flows.limits)
        {
            let usable = rate > 0.0 && largest > 0.0 && !is_cut(problem, path);
            *out = if usable {
                (rate / largest).min(limit.cap)
            } else {
                0.0
            };
        }
        largest
    }
}
