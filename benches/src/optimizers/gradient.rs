//! First-order methods, which use no slope of the flows' rates (flowtune appendix B).

use ratewright_allocator::num::utility::Utility as _;
use ratewright_allocator::num::{Optimizer, Problem};

/// Computes the rates at `prices`, clamped to each flow's cap, and the loads of all links.
fn rates_and_loads(problem: &Problem<'_>, prices: &[f64], rates: &mut [f64], loads: &mut [f64]) {
    let flows = problem.flows;
    loads.fill(0.0);
    for (s, rate) in rates.iter_mut().enumerate() {
        let cap = flows.limits[s].cap;
        if cap <= 0.0 {
            *rate = 0.0;
            continue;
        }
        // w U'(x) = q: the weight scales the price.
        let price = problem.path_price(s, prices) / flows.weights[s];
        let utility = problem.classes.utility(flows.classes[s]);
        *rate = utility.rate_at(price).min(cap);
        for &link in &flows.paths[s] {
            loads[link as usize] += *rate;
        }
    }
}

/// Residual of [`Optimizer::iterate`] on one link.
fn residual_of(load: f64, capacity: f64, price: f64) -> f64 {
    let excess = load - capacity;
    if load > 0.0 && (excess > 0.0 || price > 0.0) {
        excess.abs() / capacity
    } else {
        0.0
    }
}

/// Gradient projection (Low and Lapsley 1999): p ← max(0, p + γ G / c²).
///
/// With c², a step of γ is NED's on a link with one log flow, where flows react the most. On a link
/// of n flows it is n times shorter than NED's, so the price of a busy link moves slowly.
#[derive(Clone, Debug)]
pub struct Gradient {
    gamma: f64,
    prices: Vec<f64>,
    loads: Vec<f64>,
}

impl Gradient {
    /// An optimiser for `links` links with the step `gamma`. Prices start at 1.
    #[must_use]
    pub fn new(gamma: f64, links: usize) -> Self {
        Self {
            gamma,
            prices: vec![1.0; links],
            loads: vec![0.0; links],
        }
    }
}

impl Optimizer for Gradient {
    fn iterate(&mut self, problem: &Problem<'_>, rates: &mut [f64]) -> f64 {
        rates_and_loads(problem, &self.prices, rates, &mut self.loads);
        let mut residual: f64 = 0.0;
        for ((price, &load), &capacity) in self
            .prices
            .iter_mut()
            .zip(&self.loads)
            .zip(problem.capacities)
        {
            if load > 0.0 && capacity > 0.0 {
                residual = residual.max(residual_of(load, capacity, *price));
                let step = self.gamma * (load - capacity) / (capacity * capacity);
                *price = (*price + step).max(0.0);
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
        *self = Self::new(self.gamma, links);
    }
}

/// FGM: the fast weighted gradient method of Beck, Nedić, Ozdaglar and Teboulle (*An O(1/k)
/// Gradient Method for Network Resource Allocation Problems*, 2014).
///
/// A projected gradient step from Nesterov's extrapolated point:
///
/// ```text
/// p_k = max(0, z_k + G(z_k) / L)      with  L_l = Σ_{s over l} |L(s)| / σ_s
/// t_{k+1} = (1 + √(1 + 4 t_k²)) / 2
/// z_{k+1} = p_k + (t_k − 1) / t_{k+1} · (p_k − p_{k−1})
/// ```
///
/// σ_s is the least curvature of the flow's utility between 0 and its cap: a crude bound in place
/// of H. The method is for static problems. Its extrapolation grows towards 1 and never restarts,
/// so that prices overshoot under a stream of starts and ends (flowtune §5.4, (L)).
#[derive(Clone, Debug)]
pub struct Fgm {
    prices: Vec<f64>,
    /// p of the last iteration; `prices` holds the extrapolated z.
    last: Vec<f64>,
    loads: Vec<f64>,
    lipschitz: Vec<f64>,
    momentum: f64,
}

impl Fgm {
    /// An optimiser for `links` links. Prices start at 1.
    #[must_use]
    pub fn new(links: usize) -> Self {
        Self {
            prices: vec![1.0; links],
            last: vec![1.0; links],
            loads: vec![0.0; links],
            lipschitz: vec![0.0; links],
            momentum: 1.0,
        }
    }
}

impl Optimizer for Fgm {
    fn iterate(&mut self, problem: &Problem<'_>, rates: &mut [f64]) -> f64 {
        rates_and_loads(problem, &self.prices, rates, &mut self.loads);
        self.lipschitz.fill(0.0);
        for (path, limit) in problem.flows.paths.iter().zip(problem.flows.limits) {
            for &link in path {
                self.lipschitz[link as usize] += path.len() as f64 * limit.neg_slope;
            }
        }
        let next = (1.0 + (1.0 + 4.0 * self.momentum * self.momentum).sqrt()) / 2.0;
        // 0 in the first iteration, and towards 1 with time.
        let extrapolation = (self.momentum - 1.0) / next;
        self.momentum = next;
        let mut residual: f64 = 0.0;
        for (link, &capacity) in problem.capacities.iter().enumerate() {
            let (load, bound) = (self.loads[link], self.lipschitz[link]);
            if load <= 0.0 || capacity <= 0.0 || bound <= 0.0 {
                continue;
            }
            let point = self.prices[link];
            residual = residual.max(residual_of(load, capacity, point));
            let price = (point + (load - capacity) / bound).max(0.0);
            let ahead = price + extrapolation * (price - self.last[link]);
            self.last[link] = price;
            // Rates are defined for prices from 0 on.
            self.prices[link] = ahead.max(0.0);
        }
        residual
    }

    fn prices(&self) -> &[f64] {
        &self.prices
    }

    fn warm_start(&mut self, prices: &[f64]) {
        self.prices.copy_from_slice(prices);
        self.last.copy_from_slice(prices);
        // The extrapolation belongs to the old prices' trajectory.
        self.momentum = 1.0;
    }

    fn reset(&mut self, links: usize) {
        *self = Self::new(links);
    }
}

/// The Newton-like method of Athuraliya and Low (*Optimization flow control with Newton-like
/// algorithm*, 2000): NED's step with a measured slope in place of the computed one.
///
/// H is the ratio of the last changes of a link's load and price, Δy / Δp, averaged over time. The
/// measurement includes the effect of the neighbours' changes, which is its weakness (flowtune §7,
/// appendix B). The estimate stays between the slopes of one and of 10⁴ log flows that fill the
/// link.
#[derive(Clone, Debug)]
pub struct NewtonLike {
    gamma: f64,
    prices: Vec<f64>,
    loads: Vec<f64>,
    /// Load of the last iteration, and the change of the price that followed it.
    before: Vec<(f64, f64)>,
    /// |H| as measured; 0 before the first measurement.
    slopes: Vec<f64>,
}

/// Weight of a new measurement in the average of a slope.
const MEASUREMENT_WEIGHT: f64 = 0.2;

impl NewtonLike {
    /// An optimiser for `links` links with the step `gamma`. Prices start at 1.
    #[must_use]
    pub fn new(gamma: f64, links: usize) -> Self {
        Self {
            gamma,
            prices: vec![1.0; links],
            loads: vec![0.0; links],
            before: vec![(0.0, 0.0); links],
            slopes: vec![0.0; links],
        }
    }
}

impl Optimizer for NewtonLike {
    fn iterate(&mut self, problem: &Problem<'_>, rates: &mut [f64]) -> f64 {
        rates_and_loads(problem, &self.prices, rates, &mut self.loads);
        let mut residual: f64 = 0.0;
        for (link, &capacity) in problem.capacities.iter().enumerate() {
            let load = self.loads[link];
            if load <= 0.0 || capacity <= 0.0 {
                continue;
            }
            let price = &mut self.prices[link];
            residual = residual.max(residual_of(load, capacity, *price));
            // −H of one log flow that fills the link is c², of n equal ones c² / n.
            let most = capacity * capacity;
            let (old_load, moved) = self.before[link];
            let slope = &mut self.slopes[link];
            // A tiny move would divide the neighbours' effect on the load by almost nothing.
            if old_load > 0.0 && moved.abs() > 1e-9 * price.abs() {
                let measured = ((old_load - load) / moved).clamp(1e-4 * most, most);
                *slope = if *slope > 0.0 {
                    *slope + MEASUREMENT_WEIGHT * (measured - *slope)
                } else {
                    measured
                };
            }
            let slope = if *slope > 0.0 { *slope } else { most };
            let next = (*price + self.gamma * (load - capacity) / slope).max(0.0);
            self.before[link] = (load, next - *price);
            *price = next;
        }
        residual
    }

    fn prices(&self) -> &[f64] {
        &self.prices
    }

    fn warm_start(&mut self, prices: &[f64]) {
        self.prices.copy_from_slice(prices);
        // Changes across a warm start measure no slope.
        self.before.fill((0.0, 0.0));
    }

    fn reset(&mut self, links: usize) {
        *self = Self::new(self.gamma, links);
    }
}
