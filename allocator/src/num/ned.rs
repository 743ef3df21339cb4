//! Newton-Exact-Diagonal as the paper has it: flowtune §2, Algorithm 1.
//!
//! This is the yardstick. The engine runs [`SafeguardedNed`](super::SafeguardedNed) by default,
//! whose module shows where and why the plain rule fails.

use super::price_correction::{FlowView, PriceCorrection};
use super::response::Response;
use super::utility::Utility;
use super::{Optimizer, Problem};

/// Algorithm 1 of the paper.
///
/// Rate update: x_s = U'⁻¹(Σ p / w), clamped to the flow's cap. Price update: p ← max(0, p − γ G /
/// H) with G = Σ x − c and H = Σ ∂x/∂p, where a flow at its cap has ∂x/∂p = 0. The paper leaves
/// open the case in which no flow reacts (H = 0). Here, an over-allocated link takes the step of a
/// link whose whole capacity one log flow uses, and the price of any other falls by the factor 1 −
/// γ. A link without flows, or without capacity, keeps its price.
#[derive(Clone, Debug)]
pub struct Ned {
    gamma: f64,
    prices: Vec<f64>,
    sums: Vec<LoadAndSlope>,
    correction: Option<PriceCorrection>,
}

/// Sums over the flows of a link.
#[derive(Clone, Copy, Debug, Default)]
struct LoadAndSlope {
    load: f64,
    /// H = Σ ∂x/∂p ≤ 0.
    slope: f64,
}

impl LoadAndSlope {
    /// Response of the link's flows, taken as log flows, of elasticity 1.
    fn response(self) -> Response {
        Response {
            rate: self.load,
            neg_slope: -self.slope,
            elastic: if self.slope < 0.0 { self.load } else { 0.0 },
        }
    }
}

impl Ned {
    /// An optimiser for `links` links with the step `gamma`. Prices start at 1.
    #[must_use]
    pub fn new(gamma: f64, links: usize) -> Self {
        Self {
            gamma,
            prices: vec![1.0; links],
            sums: vec![LoadAndSlope::default(); links],
            correction: None,
        }
    }

    /// Variant with [price correction](super::price_correction) at starts and ends.
    #[must_use]
    pub fn with_correction(gamma: f64, links: usize) -> Self {
        Self {
            correction: Some(PriceCorrection::new(links)),
            ..Self::new(gamma, links)
        }
    }

    fn update_rates(&mut self, problem: &Problem<'_>, rates: &mut [f64]) {
        let flows = problem.flows;
        self.sums.fill(LoadAndSlope::default());
        for (s, rate) in rates.iter_mut().enumerate() {
            let (cap, weight) = (flows.limits[s].cap, flows.weights[s]);
            if cap <= 0.0 {
                *rate = 0.0;
                continue;
            }
            let utility = problem.classes.utility(flows.classes[s]);
            let price = problem.path_price(s, &self.prices) / weight;
            let (free, slope) = utility.rate_and_slope_at(price);
            // x = U'⁻¹(q / w), so dx/dq has the factor 1 / w; at the cap the rate no longer reacts.
            let slope = if free < cap { slope / weight } else { 0.0 };
            *rate = free.min(cap);
            for &link in &flows.paths[s] {
                let sums = &mut self.sums[link as usize];
                sums.load += *rate;
                sums.slope += slope;
            }
        }
    }
}

impl Optimizer for Ned {
    fn iterate(&mut self, problem: &Problem<'_>, rates: &mut [f64]) -> f64 {
        if let Some(correction) = &mut self.correction {
            // Before the rates, so that this iteration's are already at corrected prices.
            correction.correct(problem.capacities, &mut self.prices);
        }
        self.update_rates(problem, rates);
        let mut residual: f64 = 0.0;
        for ((price, sums), &capacity) in self
            .prices
            .iter_mut()
            .zip(&self.sums)
            .zip(problem.capacities)
        {
            if sums.load <= 0.0 || capacity <= 0.0 {
                continue;
            }
            // G_l of Algorithm 1.
            let excess = sums.load - capacity;
            if excess > 0.0 || *price > 0.0 {
                residual = residual.max(excess.abs() / capacity);
            }
            if sums.slope < 0.0 {
                *price = (*price - self.gamma * excess / sums.slope).max(0.0);
            } else if excess > 0.0 {
                // −H of one log flow of weight 1 that fills the link is c².
                *price += self.gamma * excess / (capacity * capacity);
            } else {
                *price *= (1.0 - self.gamma).max(0.0);
            }
        }
        residual
    }

    fn prices(&self) -> &[f64] {
        &self.prices
    }

    fn warm_start(&mut self, prices: &[f64]) {
        self.prices.copy_from_slice(prices);
    }

    fn reset(&mut self, links: usize) {
        // The variant survives a new topology.
        let correction = self
            .correction
            .is_some()
            .then(|| PriceCorrection::new(links));
        *self = Self {
            correction,
            ..Self::new(self.gamma, links)
        };
    }

    fn flow_started(&mut self, flow: &FlowView<'_>) {
        if let Some(correction) = &mut self.correction {
            correction.start(flow, &self.prices, |link| self.sums[link].response());
        }
    }

    fn flow_ended(&mut self, flow: &FlowView<'_>) {
        if let Some(correction) = &mut self.correction {
            correction.end(flow, &self.prices, |link| self.sums[link].response());
        }
    }
}
