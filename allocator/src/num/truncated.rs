//! Newton's step with the off-diagonal terms, truncated to a few steps of conjugate gradients.

use super::response::{Response, respond};
use super::{Optimizer, Problem};

/// Least price after one iteration, as a share of the price before.
const LARGEST_FALL: f64 = 1.0 / 32.0;

/// Solves H Δp = G over the links with a price or an excess, by `steps` steps of conjugate
/// gradients with H's diagonal as the preconditioner. (The paper's appendix B inverts H; this needs
/// products only.)
///
/// A product H v is a pass over all flows: gather Σ v over the path, times the flow's slope,
/// scatter. It costs about half an iteration of NED with F-NORM. With 0 steps the rule is NED with
/// γ. Without a line search, the rule may fail far from the optimum, as plain NED may. It serves
/// the comparison in [`safeguarded`](super::safeguarded).
#[derive(Clone, Debug)]
pub struct TruncatedNewton {
    gamma: f64,
    steps: u32,
    prices: Vec<f64>,
    sums: Vec<Response>,
    /// −dx/dq by flow.
    neg_slopes: Vec<f64>,
    /// True for links in the system.
    active: Vec<bool>,
    delta: Vec<f64>,
    residual: Vec<f64>,
    direction: Vec<f64>,
    product: Vec<f64>,
}

impl TruncatedNewton {
    /// An optimiser for `links` links, which makes the share `gamma` of the step that `steps`
    /// conjugate gradient steps find. Prices start at 1.
    #[must_use]
    pub fn new(gamma: f64, steps: u32, links: usize) -> Self {
        let zeros = vec![0.0; links];
        Self {
            gamma,
            steps,
            prices: vec![1.0; links],
            sums: vec![Response::default(); links],
            neg_slopes: Vec::new(),
            active: vec![false; links],
            delta: zeros.clone(),
            residual: zeros.clone(),
            direction: zeros.clone(),
            product: zeros,
        }
    }

    /// Computes rates, sums, active links and the residual at the current prices.
    fn evaluate(&mut self, problem: &Problem<'_>, rates: &mut [f64]) -> f64 {
        self.sums.fill(Response::default());
        self.neg_slopes.clear();
        for (s, rate) in rates.iter_mut().enumerate() {
            let response = if problem.flows.limits[s].cap > 0.0 {
                respond(problem, s, problem.path_price(s, &self.prices))
            } else {
                Response::default()
            };
            *rate = response.rate;
            self.neg_slopes.push(response.neg_slope);
            for &link in &problem.flows.paths[s] {
                self.sums[link as usize].add(response);
            }
        }
        let mut worst: f64 = 0.0;
        for (link, &capacity) in problem.capacities.iter().enumerate() {
            let sum = self.sums[link];
            let excess = sum.rate - capacity;
            let used = sum.reacts() && capacity > 0.0;
            self.active[link] = used && (excess > 0.0 || self.prices[link] > 0.0);
            self.residual[link] = 0.0;
            if self.active[link] {
                self.residual[link] = excess;
                // Spare capacity counts by the link's share of its flows' path prices.
                let felt = (self.prices[link] * sum.neg_slope / sum.elastic).min(1.0);
                let relative = excess / capacity;
                worst = worst.max(relative).max(-relative * felt);
            }
        }
        worst
    }

    /// Computes product = H direction on the active links.
    fn multiply(&mut self, problem: &Problem<'_>) {
        self.product.fill(0.0);
        for (path, &neg_slope) in problem.flows.paths.iter().zip(&self.neg_slopes) {
            let along: f64 = path.iter().map(|&l| self.direction[l as usize]).sum();
            let change = neg_slope * along;
            for &link in path {
                self.product[link as usize] += change;
            }
        }
        for (value, &active) in self.product.iter_mut().zip(&self.active) {
            // Links outside the system must not enter the inner products.
            if !active {
                *value = 0.0;
            }
        }
    }

    /// Preconditioned residual of one link: residual over diagonal.
    fn scaled(&self, link: usize) -> f64 {
        if self.active[link] {
            self.residual[link] / self.sums[link].neg_slope
        } else {
            0.0
        }
    }

    fn solve(&mut self, problem: &Problem<'_>) {
        let links = self.prices.len();
        self.delta.fill(0.0);
        for link in 0..links {
            self.direction[link] = self.scaled(link);
        }
        let mut energy = dot(&self.residual, &self.direction);
        for _ in 0..self.steps {
            self.multiply(problem);
            let curvature = dot(&self.direction, &self.product);
            // Converged, or H is singular along the direction: the step so far stands.
            if curvature <= 0.0 || energy <= 0.0 {
                return;
            }
            let length = energy / curvature;
            for link in 0..links {
                self.delta[link] += length * self.direction[link];
                self.residual[link] -= length * self.product[link];
            }
            let last = energy;
            energy = (0..links).map(|l| self.residual[l] * self.scaled(l)).sum();
            for link in 0..links {
                self.direction[link] = self.scaled(link) + energy / last * self.direction[link];
            }
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

impl Optimizer for TruncatedNewton {
    fn iterate(&mut self, problem: &Problem<'_>, rates: &mut [f64]) -> f64 {
        let worst = self.evaluate(problem, rates);
        // The preconditioner alone: NED's diagonal step.
        if self.steps == 0 {
            for link in 0..self.prices.len() {
                self.delta[link] = self.scaled(link);
            }
        } else {
            self.solve(problem);
        }
        for (price, delta) in self.prices.iter_mut().zip(&self.delta) {
            // Far from the optimum a step past 0 is often wrong: the price keeps a share of itself.
            let least = if *delta < -*price {
                *price * LARGEST_FALL
            } else {
                0.0
            };
            *price = (*price + self.gamma * delta).max(least);
        }
        worst
    }

    fn prices(&self) -> &[f64] {
        &self.prices
    }

    fn warm_start(&mut self, prices: &[f64]) {
        self.prices.copy_from_slice(prices);
    }

    fn reset(&mut self, links: usize) {
        *self = Self::new(self.gamma, self.steps, links);
    }
}
