//! Price updates of the safeguarded rule: per-link step, common step after events, lift.

use arrayvec::ArrayVec;

use super::{FIRST_STEP, LinkSums, SafeguardedNed};
use crate::num::{MAX_PATH_LINKS, Problem};

/// δ: share of the mean path price q̄ by which a price is shifted, so that it can leave 0.
const SHIFT: f64 = 0.25;
/// g (1 + kδ) of all links in an iteration that follows events, with k the links of the longest
/// path: local stability asks for less than 2.
const QUICK_STEP: f64 = 1.9;
/// Residual of an iteration that does not measure it: not at rest.
const UNMEASURED: f64 = 1.0;
/// A link's longest step, in γ.
const LONGEST_STEP: f64 = 7.5;
/// Factor by which a step grows while the excess keeps its sign.
const GROW: f64 = 1.2;
/// Factor by which a step shrinks when the excess changes its sign.
const SHRINK: f64 = 0.6;
/// Growth of an excess from below [`CALM`] that, within iterations after events, counts as caused
/// by them. The step length that the link has learned at rest no longer holds then.
const DISTURBED: f64 = 4.0;
/// Excess of a link at rest, as a share of its capacity.
const CALM: f64 = 0.01;
/// Bounds the factor by which a price moves in one iteration, before the shift, to 3 and 1/3.
const LARGEST_SHARE: f64 = 0.5;
/// Least price after one iteration, as a share of the price before.
const LARGEST_FALL: f64 = 1.0 / 32.0;
/// Share of the mean path price below which a price counts as 0.
const NEGLIGIBLE: f64 = 1e-10;
/// Share of the saturation price by which a lifted price exceeds it, so that a flow reacts.
const LIFT_BEYOND: f64 = 0.05;
/// Factor by which the price falls of a link whose flows all rest at their demands, and fit.
const UNFELT_FALL: f64 = 0.25;

/// A link's own step length.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepLength {
    pub(super) length: f64,
    /// y − c of the last iteration.
    pub(super) excess: f64,
    /// Change of the price in the last iteration.
    pub(super) moved: f64,
}

impl SafeguardedNed {
    /// Price update of an iteration that follows events: the safeguarded step with one length for
    /// all links, which is faster. Each link's own length is worthless after events, and no caller
    /// stops at such an iteration, so the residual is not measured either.
    pub(super) fn update_prices_quickly(&mut self, problem: &Problem<'_>) -> f64 {
        // 0 if no start was reported: then any path may have the most links.
        let links = match self.longest {
            0 => MAX_PATH_LINKS,
            longest => longest,
        };
        // g (1 + kδ) < 2 is the bound of local stability for k full links on a path.
        let length = QUICK_STEP / (1.0 + SHIFT * links as f64);
        self.lifts.clear();
        for (link, &capacity) in problem.capacities.iter().enumerate() {
            let LinkSums { load, neg_slope } = self.sums[link];
            if load <= 0.0 || capacity <= 0.0 {
                continue;
            }
            let elastic = load + self.elastic_excess[link];
            let excess = load - capacity;
            let price = &mut self.prices[link];
            if elastic > 0.0 && neg_slope > 0.0 {
                let whole = elastic * (load + capacity);
                let limit = LARGEST_SHARE * whole;
                let half = (length * load * excess).clamp(-limit, limit);
                let factor = (whole + half) / (whole - half);
                // E / |H|: each flow's e x / −x' is its path price.
                let mean_path_price = elastic / neg_slope;
                let shift = SHIFT * mean_path_price;
                let next = (*price + shift) * factor - shift;
                let next = next.max(*price * LARGEST_FALL);
                let negligible = NEGLIGIBLE * mean_path_price;
                *price = if next < negligible { 0.0 } else { next };
            } else if excess > 0.0 {
                self.lifts.push((link as u32, f64::INFINITY));
            } else {
                *price *= UNFELT_FALL;
            }
        }
        UNMEASURED
    }

    /// Price update with each link's own step length; returns the residual.
    pub(super) fn update_prices(&mut self, problem: &Problem<'_>) -> f64 {
        let mut worst_excess: f64 = 0.0;
        let mut worst_idle: f64 = 0.0;
        self.lifts.clear();
        for (link, &capacity) in problem.capacities.iter().enumerate() {
            let LinkSums { load, neg_slope } = self.sums[link];
            // Without flows the price waits for the next one; without capacity it has no meaning.
            if load <= 0.0 || capacity <= 0.0 {
                continue;
            }
            let elastic = load + self.elastic_excess[link];
            let excess = load - capacity;
            let price = &mut self.prices[link];
            if elastic > 0.0 && neg_slope > 0.0 {
                let step = &mut self.steps[link];
                // 0 outside the iterations after events: then no link counts as calm, none
                // restarts.
                let calm = if self.fresh > 0 { CALM * capacity } else { 0.0 };
                let length = step.next(excess, calm, self.gamma);
                // (y / c)^(g y / E) as a fraction: see the module's text.
                let whole = elastic * (load + capacity);
                let half =
                    (length * load * excess).clamp(-LARGEST_SHARE * whole, LARGEST_SHARE * whole);
                // One division for factor, mean path price and relative excess alike.
                let inverse = ((whole - half) * capacity * neg_slope).recip();
                let factor = (whole + half) * (capacity * neg_slope * inverse);
                let mean_path_price = elastic * ((whole - half) * capacity * inverse);
                let relative = excess * ((whole - half) * neg_slope * inverse);
                // Spare capacity counts by the link's share of its flows' path prices, at most
                // wholly.
                let felt = if *price < mean_path_price {
                    -relative * *price
                } else {
                    -relative * mean_path_price
                };
                worst_excess = worst_excess.max(relative);
                worst_idle = worst_idle.max(felt * neg_slope / elastic);
                let shift = SHIFT * mean_path_price;
                // Momentum only while the excess still has the sign of the last move.
                let carried = if excess * step.moved > 0.0 {
                    self.momentum * step.moved
                } else {
                    0.0
                };
                let next = (*price + shift) * factor - shift + carried;
                let next = next.max(*price * LARGEST_FALL);
                // The bound on the fall alone would never let a price reach 0.
                let negligible = NEGLIGIBLE * mean_path_price;
                let next = if next < negligible { 0.0 } else { next };
                step.moved = next - *price;
                *price = next;
            } else if excess > 0.0 {
                worst_excess = worst_excess.max(excess / capacity);
                // A price that falls to where no flow reacts, and is lifted again, must shorten its
                // step as any other that changes direction.
                self.steps[link].excess = excess;
                self.lifts.push((link as u32, f64::INFINITY));
            } else {
                *price *= UNFELT_FALL;
            }
        }
        worst_excess.max(worst_idle)
    }

    /// Lifts the prices of over-allocated links without reacting flows to where the first flow
    /// reacts.
    ///
    /// The lifted links of a path share the price that its flow lacks. No flow gets further beyond
    /// its saturation price than [`LIFT_BEYOND`]; the flow that lacks the least per link reaches
    /// it. Costs a pass over the flows, in the rare iteration that needs one.
    pub(super) fn lift_prices(&mut self, problem: &Problem<'_>) {
        for s in 0..problem.flows.len() {
            // Positions in `lifts` of the path's links.
            let lifted: ArrayVec<usize, MAX_PATH_LINKS> = problem.flows.paths[s]
                .iter()
                // Sorted: the price updates push links in ascending order.
                .filter_map(|link| self.lifts.binary_search_by_key(link, |&(l, _)| l).ok())
                .collect();
            if lifted.is_empty() {
                continue;
            }
            let saturation_price = problem.flows.limits[s].saturation_price;
            let missing = (saturation_price - problem.path_price(s, &self.prices)).max(0.0);
            let share = (missing + LIFT_BEYOND * saturation_price) / lifted.len() as f64;
            for index in lifted {
                let lift = &mut self.lifts[index].1;
                *lift = lift.min(share);
            }
        }
        for &(link, lift) in &self.lifts {
            if lift.is_finite() {
                self.prices[link as usize] += lift;
            }
        }
    }
}

impl StepLength {
    /// Returns the step length for `excess`, and keeps the excess for the next call. `calm` is the
    /// excess below which the link was at rest.
    #[inline]
    fn next(&mut self, excess: f64, calm: f64, gamma: f64) -> f64 {
        // Negative when the excess changes its sign: the last step went too far.
        let turn = excess * self.excess;
        let shorter = (self.length * SHRINK).max(gamma);
        let longer = (self.length * GROW).min(LONGEST_STEP * gamma);
        // Selections instead of branches: at rest the signs are random, and branches mispredict.
        let learned = if turn < 0.0 { shorter } else { self.length };
        let learned = if turn > 0.0 { longer } else { learned };
        let was_calm = self.excess.abs() < calm;
        let disturbed = was_calm & (excess.abs() > DISTURBED * self.excess.abs());
        self.length = if disturbed {
            FIRST_STEP * gamma
        } else {
            learned
        };
        self.excess = excess;
        self.length
    }
}
