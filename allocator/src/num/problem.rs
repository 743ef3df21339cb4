//! The optimisation problem, as slices that the optimisers borrow.

use arrayvec::ArrayVec;

use super::utility::{ClassTable, Utility};

/// Links of the longest path: three up and three down (three-tier Clos).
pub const MAX_PATH_LINKS: usize = 6;

/// Directed links of one flow, as indices into [`Problem::capacities`].
pub type LinkPath = ArrayVec<u32, MAX_PATH_LINKS>;

/// Upper bound of a flow's rate, with its response to prices at that point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    /// The smallest of the flow's demand, its class's bound and its path's capacity, in Gbit/s. A
    /// flow with a cap of 0 takes no part in the optimisation.
    pub cap: f64,
    /// w U'(cap): path price above which the flow's rate is below its cap.
    pub saturation_price: f64,
    /// −dx/dp just above the saturation price.
    pub neg_slope: f64,
    /// True if the cap is a demand or a bound of the class, so that a flow at its cap may be at its
    /// optimum. A cap by the path's capacity only bounds rates before convergence; the optimum
    /// respects it anyway.
    pub by_demand: bool,
}

impl RateLimit {
    /// Limit of a flow with a `demand` on a path of `path_capacity`, both in Gbit/s.
    #[must_use]
    pub fn new(utility: &impl Utility, weight: f64, demand: f64, path_capacity: f64) -> Self {
        let cap = demand.min(path_capacity);
        if cap <= 0.0 {
            // A saturation price of infinity keeps the flow at its cap of 0 at every price.
            return Self {
                cap: 0.0,
                saturation_price: f64::INFINITY,
                neg_slope: 0.0,
                by_demand: true,
            };
        }
        let marginal = utility.marginal(cap);
        Self {
            cap,
            saturation_price: weight * marginal,
            // x = U'⁻¹(q / w), so the slope in q has the factor 1 / w.
            neg_slope: -utility.rate_slope_at(marginal) / weight,
            // On a tie the optimum respects the capacity anyway.
            by_demand: demand < path_capacity,
        }
    }
}

/// Flows as a structure of arrays, all of one length.
#[derive(Clone, Copy, Debug)]
pub struct FlowArrays<'a> {
    /// Links of each flow.
    pub paths: &'a [LinkPath],
    /// Class ids, all of them defined in [`Problem::classes`].
    pub classes: &'a [u8],
    /// Weights: the flow's own times its class's.
    pub weights: &'a [f64],
    /// Upper bound of each rate.
    pub limits: &'a [RateLimit],
}

impl FlowArrays<'_> {
    /// Number of flows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// True without flows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }
}

/// max Σ w_s U_s(x_s) over 0 ≤ x_s ≤ cap_s, so that Σ x_s ≤ c_l on every link (flowtune §2, (1) and
/// (2)).
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    /// c_l by link, 0 for a failed link.
    pub capacities: &'a [f64],
    /// Utilities by class.
    pub classes: &'a ClassTable,
    /// The flows.
    pub flows: FlowArrays<'a>,
}

impl Problem<'_> {
    /// Writes Σ x of every link to `loads`.
    pub fn loads(&self, rates: &[f64], loads: &mut [f64]) {
        loads.fill(0.0);
        for (path, &rate) in self.flows.paths.iter().zip(rates) {
            for &link in path {
                loads[link as usize] += rate;
            }
        }
    }

    /// Σ p over a flow's path.
    #[inline(always)]
    #[must_use]
    pub fn path_price(&self, flow: usize, prices: &[f64]) -> f64 {
        self.flows.paths[flow]
            .iter()
            .map(|&link| prices[link as usize])
            .sum()
    }
}

/// Returns the smallest capacity on a path, for capacities in either precision.
#[must_use]
pub fn path_capacity(path: &[u32], capacities: &[impl Copy + Into<f64>]) -> f64 {
    path.iter().fold(f64::INFINITY, |least, &link| {
        least.min(capacities[link as usize].into())
    })
}
