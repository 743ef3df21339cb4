//! Distance of rates from the optimum, and their fairness.

use super::Problem;
use super::utility::{Utility, UtilityKind};

/// Distance from the optimum. All figures are 0 for a problem without flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Optimality {
    /// (D(p) − Σ w U(x̄)) / Σ x̄ w U'(x̄), with the dual value D of the prices and the feasible,
    /// normalised rates x̄: an upper bound of the utility's possible gain, as a relative change of
    /// all rates. For log utilities, 0.01 means that rates are at most one per cent below the
    /// optimum in their weighted geometric mean.
    pub relative_duality_gap: f64,
    /// Largest violation of the optimality conditions by the prices' own rates: overload of a link
    /// relative to its capacity, or the share of all charges on links with spare capacity.
    pub kkt_residual: f64,
    /// Σ log2 of the rates in bit/s (flowtune §5.3, (K)): doubling one rate adds one point.
    pub proportional_fairness_score: f64,
    /// Flows with a rate above zero, over which the score sums.
    pub rated_flows: usize,
}

/// Sums from which the figures are computed, flow by flow.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Link loads of the prices' own rates.
    loads: Vec<f64>,
    /// D(p) − P(x̄) without the charges Σ p c, summed flow by flow: the difference of two large,
    /// nearly equal totals would lose precision.
    gap: f64,
    worth: f64,
    score: f64,
    rated_flows: usize,
}

/// A flow's terms, price and rate, for a [`Tally`].
#[derive(Clone, Copy, Debug)]
pub struct FlowSample<'a> {
    /// Utility of its class.
    pub utility: &'a UtilityKind,
    /// Its weight.
    pub weight: f64,
    /// Upper bound of its rate.
    pub cap: f64,
    /// Its links.
    pub path: &'a [u32],
    /// Sum of their prices.
    pub path_price: f64,
    /// Its normalised rate.
    pub rate: f64,
}

impl Tally {
    /// Resets the sums, for `links` links.
    pub fn begin(&mut self, links: usize) {
        self.loads.clear();
        self.loads.resize(links, 0.0);
        (self.gap, self.worth, self.score, self.rated_flows) = (0.0, 0.0, 0.0, 0);
    }

    /// Adds a flow. Skips a flow that can get nothing, because a link on its path failed.
    pub fn add(&mut self, flow: &FlowSample<'_>) {
        if flow.cap <= 0.0 {
            return;
        }
        let (utility, weight, rate) = (flow.utility, flow.weight, flow.rate);
        let priced = utility.rate_at(flow.path_price / weight).min(flow.cap);
        for &link in flow.path {
            self.loads[link as usize] += priced;
        }
        // log2 0 is −∞: one flow without a rate would hide all others in the score.
        if rate > 0.0 {
            self.score += (rate * super::RATE_UNIT_BPS).log2();
            self.rated_flows += 1;
        }
        // U(0) may be −∞: a flow without a rate makes the gap huge, not undefined.
        let floor = rate.max(f64::MIN_POSITIVE);
        self.gap +=
            weight * (utility.value(priced) - utility.value(floor)) - flow.path_price * priced;
        self.worth += weight * floor * utility.marginal(floor);
    }

    /// Computes the figures from the sums, the links' prices and their capacities.
    #[must_use]
    pub fn finish(&self, prices: &[f64], capacities: &[f64]) -> Optimality {
        let mut charges = 0.0;
        let mut idle_charges = 0.0;
        let mut overload: f64 = 0.0;
        for ((&load, &price), &capacity) in self.loads.iter().zip(prices).zip(capacities) {
            // The price of an unused link means nothing: it is kept for the next flow.
            if capacity > 0.0 && load > 0.0 {
                charges += price * capacity;
                idle_charges += price * (capacity - load).max(0.0);
                overload = overload.max(load / capacity - 1.0);
            }
        }
        let gap = self.gap + charges;
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        Optimality {
            // Rounding may leave a gap of 0 slightly negative.
            relative_duality_gap: share(gap.max(0.0), self.worth),
            kkt_residual: overload.max(share(idle_charges, charges)),
            proportional_fairness_score: self.score,
            rated_flows: self.rated_flows,
        }
    }
}

/// Measures the distance from the optimum of the rates `normalized` and the prices behind them.
///
/// Costs about one iteration; `loads` is scratch. Flows that can get nothing, because a link on
/// their path failed, count neither for the rates nor for the optimum.
pub fn measure(
    problem: &Problem<'_>,
    prices: &[f64],
    normalized: &[f64],
    loads: &mut Vec<f64>,
) -> Optimality {
    let flows = problem.flows;
    let mut tally = Tally {
        loads: std::mem::take(loads),
        ..Tally::default()
    };
    tally.begin(problem.capacities.len());
    for (s, &rate) in normalized.iter().enumerate() {
        tally.add(&FlowSample {
            utility: problem.classes.utility(flows.classes[s]),
            weight: flows.weights[s],
            cap: flows.limits[s].cap,
            path: &flows.paths[s],
            path_price: problem.path_price(s, prices),
            rate,
        });
    }
    let measured = tally.finish(prices, problem.capacities);
    *loads = tally.loads;
    measured
}
