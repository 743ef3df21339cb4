//! The price updates of the safeguarded rule: the careful one, the quick one, the lift.

use arrayvec::ArrayVec;

use super::{FIRST_STEP, LinkSums, SafeguardedNed};
use crate::num::{MAX_PATH_LINKS, Problem};

/// δ: what a link may charge of its flows' path prices before it has a price of its own.
const SHIFT: f64 = 0.25;
/// g (1 + kδ) of all links in an iteration that follows events, with k the links of the longest path:
/// local stability asks for less than 2.
const QUICK_STEP: f64 = 1.9;
/// The residual of an iteration that does not measure it: not at rest.
const UNMEASURED: f64 = 1.0;
/// A link's longest step, in γ.
const LONGEST_STEP: f64 = 7.5;
/// A step grows by this while the excess keeps its sign.
const GROW: f64 = 1.2;
/// A step shrinks by this when the excess changes its sign.
const SHRINK: f64 = 0.6;
/// An excess that grows by more than this factor, from below [`CALM`], soon after events, comes from
/// them: what the link learned about its step at rest does not hold any more.
const DISTURBED: f64 = 4.0;
/// A link whose excess is below this share of its capacity is at rest.
const CALM: f64 = 0.01;
/// Bounds the factor by which a price moves in one iteration, before the shift, to 3 and 1/3.
const LARGEST_SHARE: f64 = 0.5;
/// A price falls to no less than this share of itself in one iteration.
const LARGEST_FALL: f64 = 1.0 / 32.0;
/// A price below this share of its flows' path prices is 0.
const NEGLIGIBLE: f64 = 1e-10;
/// What a lifted price gets beyond the first saturation price, relative to it.
const LIFT_BEYOND: f64 = 0.05;
/// The fall of the price of a link whose flows all rest at their demands, and fit.
const UNFELT_FALL: f64 = 0.25;

/// A link's own step length.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepLength {
    pub(super) length: f64,
    /// y − c of the last iteration.
    pub(super) excess: f64,
    /// By how much the price moved in the last iteration.
    pub(super) moved: f64,
}

impl SafeguardedNed {
    /// The price update of an iteration that follows events: the same step with one length for all
    /// links. Time matters more then than a link's own length, which the events have just made
    /// worthless, and nobody rests on what comes out of it: the residual is not measured either.
    pub(super) fn update_prices_quickly(&mut self, problem: &Problem<'_>) -> f64 {
        let links = match self.longest {
            0 => MAX_PATH_LINKS,
            longest => longest,
        };
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

    pub(super) fn update_prices(&mut self, problem: &Problem<'_>) -> f64 {
        let mut worst_excess: f64 = 0.0;
        let mut worst_idle: f64 = 0.0;
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
                let step = &mut self.steps[link];
                let calm = if self.fresh > 0 { CALM * capacity } else { 0.0 };
                let length = step.next(excess, calm, self.gamma);
                // (y / c)^(g y / E) as a fraction: see the module's text.
                let whole = elastic * (load + capacity);
                let half =
                    (length * load * excess).clamp(-LARGEST_SHARE * whole, LARGEST_SHARE * whole);
                let inverse = ((whole - half) * capacity * neg_slope).recip();
                let factor = (whole + half) * (capacity * neg_slope * inverse);
                let mean_path_price = elastic * ((whole - half) * capacity * inverse);
                let relative = excess * ((whole - half) * neg_slope * inverse);
                let felt = if *price < mean_path_price {
                    -relative * *price
                } else {
                    -relative * mean_path_price
                };
                worst_excess = worst_excess.max(relative);
                worst_idle = worst_idle.max(felt * neg_slope / elastic);
                let shift = SHIFT * mean_path_price;
                let carried = if excess * step.moved > 0.0 {
                    self.momentum * step.moved
                } else {
                    0.0
                };
                let next = (*price + shift) * factor - shift + carried;
                let next = next.max(*price * LARGEST_FALL);
                let negligible = NEGLIGIBLE * mean_path_price;
                let next = if next < negligible { 0.0 } else { next };
                step.moved = next - *price;
                *price = next;
            } else if excess > 0.0 {
                worst_excess = worst_excess.max(excess / capacity);
                // A price that falls to where nobody reacts, and is lifted again, turns as any other does.
                self.steps[link].excess = excess;
                self.lifts.push((link as u32, f64::INFINITY));
            } else {
                *price *= UNFELT_FALL;
            }
        }
        worst_excess.max(worst_idle)
    }

    /// Lifts the price of overloaded links on which no flow reacts to where the first one does.
    /// Another walk over the flows, in the rare iteration that needs one.
    ///
    /// The lifted links of a path share what its flow's price misses: no flow comes further beyond its saturation price than
    /// [`LIFT_BEYOND`], and the one that has the least to go for each of its links comes to its saturation price.
    pub(super) fn lift_prices(&mut self, problem: &Problem<'_>) {
        for s in 0..problem.flows.len() {
            let lifted: ArrayVec<usize, MAX_PATH_LINKS> = problem.flows.paths[s]
                .iter()
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
    /// The step for this excess, and its sign remembered for the next. `calm` is the excess below
    /// which the link was at rest.
    #[inline]
    fn next(&mut self, excess: f64, calm: f64, gamma: f64) -> f64 {
        let turn = excess * self.excess;
        let shorter = (self.length * SHRINK).max(gamma);
        let longer = (self.length * GROW).min(LONGEST_STEP * gamma);
        // Selections, since signs at rest are anyone's guess, and the processor's in particular.
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
