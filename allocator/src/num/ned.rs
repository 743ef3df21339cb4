//! Newton-Exact-Diagonal, the optimiser of flowtune §2.

use super::utility::Utility;
use super::{Optimizer, Problem};

/// Algorithm 1 of the paper.
#[derive(Clone, Debug)]
pub struct Ned {
    gamma: f64,
    prices: Vec<f64>,
    /// Per link: Σ x and Σ dx/dp.
    loads: Vec<(f64, f64)>,
}

impl Ned {
    /// An optimiser for `links` links with the step `gamma`. Prices start at 1.
    #[must_use]
    pub fn new(gamma: f64, links: usize) -> Self {
        Self { gamma, prices: vec![1.0; links], loads: vec![(0.0, 0.0); links] }
    }
}

impl Optimizer for Ned {
    fn iterate(&mut self, problem: &Problem<'_>, rates: &mut [f64]) {
        let flows = problem.flows;
        self.loads.fill((0.0, 0.0));
        for (s, rate) in rates.iter_mut().enumerate() {
            let (cap, weight, path) = (flows.caps[s], flows.weights[s], &flows.paths[s]);
            if cap <= 0.0 {
                *rate = 0.0;
                continue;
            }
            let utility = problem.classes.utility(flows.classes[s]);
            let price = path.iter().map(|&l| self.prices[l as usize]).sum::<f64>() / weight;
            let free = utility.rate_at(price);
            let slope = if free < cap { utility.rate_slope_at(price) / weight } else { 0.0 };
            *rate = free.min(cap);
            for &link in path {
                let (load, reaction) = &mut self.loads[link as usize];
                *load += *rate;
                *reaction += slope;
            }
        }
        for ((price, &(load, reaction)), &capacity) in
            self.prices.iter_mut().zip(&self.loads).zip(problem.capacities)
        {
            let excess = load - capacity;
            if reaction < 0.0 {
                *price = (*price - self.gamma * excess / reaction).max(0.0);
            } else if excess > 0.0 {
                *price *= 1.0 + self.gamma;
            } else if load > 0.0 {
                *price *= 1.0 - self.gamma;
            }
        }
    }

    fn prices(&self) -> &[f64] {
        &self.prices
    }

    fn reset(&mut self, links: usize) {
        *self = Self::new(self.gamma, links);
    }
}
