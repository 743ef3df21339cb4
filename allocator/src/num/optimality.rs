//! How far rates are from the optimum, and how fair they are.

use super::Problem;
use super::utility::Utility;

/// The distance from the optimum. Everything is 0 for a problem without flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Optimality {
    /// (D(p) − Σ w U(x̄)) / Σ x̄ w U'(x̄), with the dual value D of the prices and the feasible,
    /// normalised rates x̄: an upper bound of what the utility can still gain, counted as a relative
    /// change of all rates. For log utilities, 0.01 says that rates are at most one per cent below
    /// the optimum in their weighted geometric mean.
    pub relative_duality_gap: f64,
    /// The largest violation of the optimality conditions by the prices' own rates: overload of a
    /// link relative to its capacity, or the share of all charges that is paid on links with room to spare.
    pub kkt_residual: f64,
    /// Σ log2 of the rates in bit/s (flowtune §5.3, (K)): a flow that gets twice the rate adds one point.
    pub proportional_fairness_score: f64,
    /// Flows with a rate above zero, which is what the score sums over.
    pub rated_flows: usize,
}

/// Measures normalised rates `normalized` and the prices behind them.
///
/// Costs about one iteration; `loads` is scratch. Flows that can get nothing (a failed link on
/// their path) are left out on both sides.
pub fn measure(
    problem: &Problem<'_>,
    prices: &[f64],
    normalized: &[f64],
    loads: &mut Vec<f64>,
) -> Optimality {
    let flows = problem.flows;
    loads.clear();
    loads.resize(problem.capacities.len(), 0.0);
    // D(p) − P(x̄), summed flow by flow so that two large, nearly equal totals never meet.
    let mut gap = 0.0;
    let mut worth = 0.0;
    let mut score = 0.0;
    let mut rated_flows = 0;
    for (s, &rate) in normalized.iter().enumerate() {
        let (cap, weight) = (flows.limits[s].cap, flows.weights[s]);
        if cap <= 0.0 {
            continue;
        }
        let utility = problem.classes.utility(flows.classes[s]);
        let path_price = problem.path_price(s, prices);
        let priced = utility.rate_at(path_price / weight).min(cap);
        for &link in &flows.paths[s] {
            loads[link as usize] += priced;
        }
        if rate > 0.0 {
            score += (rate * super::RATE_UNIT_BPS).log2();
            rated_flows += 1;
        }
        let floor = rate.max(f64::MIN_POSITIVE);
        gap += weight * (utility.value(priced) - utility.value(floor)) - path_price * priced;
        worth += weight * floor * utility.marginal(floor);
    }
    let mut charges = 0.0;
    let mut idle_charges = 0.0;
    let mut overload: f64 = 0.0;
    for ((&load, &price), &capacity) in loads.iter().zip(prices).zip(problem.capacities) {
        // The price of a link that nobody uses means nothing: it waits for the next flow.
        if capacity > 0.0 && load > 0.0 {
            charges += price * capacity;
            idle_charges += price * (capacity - load).max(0.0);
            overload = overload.max(load / capacity - 1.0);
        }
    }
    gap += charges;
    let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
    Optimality {
        relative_duality_gap: share(gap.max(0.0), worth),
        kkt_residual: overload.max(share(idle_charges, charges)),
        proportional_fairness_score: score,
        rated_flows,
    }
}
