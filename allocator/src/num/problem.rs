//! The problem as the optimisers see it: slices, nothing owned.

use arrayvec::ArrayVec;

use super::utility::{ClassTable, Utility};

/// The longest path: three links up and three down.
pub const MAX_PATH_LINKS: usize = 6;

/// Rates inside `num` are in units of 1 Gbit/s.
///
/// A price of 1, where every link starts (flowtune §2), then means that one log flow of weight 1 is
/// worth 1 Gbit/s. The unit is fixed and not taken from the topology because it is part of the
/// objective: where classes of different utilities meet, it decides what they are worth to each other.
pub const RATE_UNIT_BPS: f64 = 1e9;

/// The directed links of one flow.
pub type Path = ArrayVec<u32, MAX_PATH_LINKS>;

/// The most that a flow can get, and what happens to its rate around that point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// The smallest of the flow's demand, its class's bound and its path's capacity. 0 for a flow
    /// that can get nothing, which then takes no part in the optimisation.
    pub cap: f64,
    /// w U'(cap): at path prices above this knee the flow wants less than its cap.
    pub knee: f64,
    /// −dx/dp just above the knee.
    pub reaction: f64,
    /// The cap is a demand or a bound of the class, so a flow at its cap may well be at its optimum.
    /// A cap by the path's capacity only keeps the start of an optimisation within sense: the
    /// optimum respects it anyway.
    pub by_demand: bool,
}

impl Limit {
    /// The limit of a flow of that utility and weight with that demand on a path of that capacity.
    #[must_use]
    pub fn new(utility: &impl Utility, weight: f64, demand: f64, path_capacity: f64) -> Self {
        let cap = demand.min(path_capacity);
        if cap <= 0.0 {
            return Self {
                cap: 0.0,
                knee: f64::INFINITY,
                reaction: 0.0,
                by_demand: true,
            };
        }
        let marginal = utility.marginal(cap);
        Self {
            cap,
            knee: weight * marginal,
            reaction: -utility.rate_slope_at(marginal) / weight,
            by_demand: demand < path_capacity,
        }
    }
}

/// Flows as a structure of arrays, all of one length.
#[derive(Clone, Copy, Debug)]
pub struct Flows<'a> {
    /// The links each crosses.
    pub paths: &'a [Path],
    /// Class ids, all of them defined in [`Problem::classes`].
    pub classes: &'a [u8],
    /// Weights: the flow's own times its class's.
    pub weights: &'a [f64],
    /// The most each can get.
    pub limits: &'a [Limit],
}

impl Flows<'_> {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }
}

/// max Σ w_s U_s(x_s) over 0 ≤ x_s ≤ cap_s, so that Σ x_s ≤ c_l on every link (flowtune §2, (1) and (2)).
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    /// c_l by link, 0 for a failed link.
    pub capacities: &'a [f64],
    /// What rates are worth.
    pub classes: &'a ClassTable,
    /// The flows.
    pub flows: Flows<'a>,
}

impl Problem<'_> {
    /// Σ x over every link.
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
    pub(super) fn path_price(&self, flow: usize, prices: &[f64]) -> f64 {
        self.flows.paths[flow]
            .iter()
            .map(|&link| prices[link as usize])
            .sum()
    }
}

/// The smallest capacity on a path, of capacities in either precision.
#[must_use]
pub fn path_capacity(path: &[u32], capacities: &[impl Copy + Into<f64>]) -> f64 {
    path.iter().fold(f64::INFINITY, |least, &link| {
        least.min(capacities[link as usize].into())
    })
}
