//! Price update of sixteen links at a time, and the F-NORM scale that belongs to it.

use super::lanes::{LANES, Lanes};

/// F-NORM scale of a link without load.
pub(super) const IDLE_SCALE: f32 = 1e30;
/// Largest price: path prices and their products stay within single precision.
pub(super) const MOST_PRICE: f32 = 1e30;
/// First price of a link (flowtune §2), and the price of one that is reset.
pub(super) const FIRST_PRICE: f32 = 1.0;

/// Constants of [`SafeguardedNed`](crate::num::SafeguardedNed), which explains them. All but
/// `LARGEST_SHARE` have its values.
pub(super) mod safeguard {
    pub(in crate::engine::parallel) const SHIFT: f32 = 0.25;
    pub(in crate::engine::parallel) const FIRST_STEP: f32 = 2.5;
    pub(in crate::engine::parallel) const LONGEST_STEP: f32 = 7.5;
    pub(in crate::engine::parallel) const GROW: f32 = 1.2;
    pub(in crate::engine::parallel) const SHRINK: f32 = 0.6;
    pub(in crate::engine::parallel) const DISTURBED: f32 = 4.0;
    pub(in crate::engine::parallel) const CALM: f32 = 0.01;
    /// Bounds the factor by which a price moves, before the shift, to 2 and 1/2.
    ///
    /// `SafeguardedNed` allows 3 and 1/3. Flows far below their demands count there with no
    /// response at all, so the links of a path are lifted together, once. Here they count with a
    /// little. With 3, five or six full links of one path can then rise together and fall together
    /// for ever.
    pub(in crate::engine::parallel) const LARGEST_SHARE: f32 = 1.0 / 3.0;
    pub(in crate::engine::parallel) const LARGEST_FALL: f32 = 1.0 / 32.0;
    pub(in crate::engine::parallel) const NEGLIGIBLE: f32 = 1e-10;
    pub(in crate::engine::parallel) const UNFELT_FALL: f32 = 0.25;
}

/// Kind of the price update.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpdateRule {
    /// γ: the step of NED, or the shortest step of the safeguarded rule.
    pub(super) gamma: f32,
    /// The safeguarded rule; otherwise NED.
    pub(super) safeguarded: bool,
}

/// Report of a price update by lane; see [`UpdateReport::NOTHING`].
pub(super) type LaneReports = [Lanes; 4];

/// Report of a price update.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UpdateReport {
    /// Largest relative excess of a link, or spare capacity on a link with a price.
    pub(super) residual: f32,
    /// Largest load over capacity.
    pub(super) overload: f32,
    /// Largest relative change of a rate that the new prices and scales cause, by link.
    pub(super) change: f32,
    /// Links whose price was not a number, and was reset.
    pub(super) resets: u32,
}

impl UpdateReport {
    /// Initial values: largest residual, excess and change by lane, and the number of resets.
    pub(super) const NOTHING: LaneReports = [
        Lanes([0.0; LANES]),
        Lanes([-1.0; LANES]),
        Lanes([0.0; LANES]),
        Lanes([0.0; LANES]),
    ];

    /// Combines all lanes.
    pub(super) fn of([residuals, excesses, changes, resets]: &LaneReports) -> Self {
        let largest = |lanes: &Lanes| lanes.0.iter().copied().fold(-1.0, f32::max);
        Self {
            residual: largest(residuals),
            overload: largest(excesses) + 1.0,
            change: largest(changes),
            resets: resets.0.iter().sum::<f32>() as u32,
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.residual = self.residual.max(other.residual);
        self.overload = self.overload.max(other.overload);
        self.change = self.change.max(other.change);
        self.resets += other.resets;
    }
}

/// Operands of a price update, by register of links.
pub(super) struct LinkLanes<'a> {
    pub(super) capacities: &'a [Lanes],
    /// Registers that have a link; others stay unchanged.
    pub(super) linked: &'a [bool],
    pub(super) prices: &'a mut [Lanes],
    pub(super) norm_scales: &'a mut [Lanes],
    pub(super) steps: &'a mut [Lanes],
    pub(super) excesses: &'a mut [Lanes],
}

#[inline(always)]
fn select(condition: bool, yes: f32, no: f32) -> f32 {
    if condition { yes } else { no }
}

/// The larger value. Unlike [`f32::max`] it is one instruction, since no operand is NaN here.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    select(a > b, a, b)
}

/// The smaller value, likewise.
#[inline(always)]
pub(super) fn smaller(a: f32, b: f32) -> f32 {
    select(a < b, a, b)
}

/// A price within its bounds, and 1 if it was not a number and is reset.
#[inline(always)]
fn sound(price: f32) -> (f32, f32) {
    let bounded = smaller(price, MOST_PRICE);
    let is_number = !price.is_nan();
    (
        select(is_number, bounded, FIRST_PRICE),
        select(is_number, 0.0, 1.0),
    )
}

/// Safeguarded step of [`SafeguardedNed`](crate::num::SafeguardedNed) on sixteen links, without
/// branches.
#[inline(always)]
pub(super) fn safeguarded_ned_step(
    gamma: f32,
    capacities: &Lanes,
    [loads, neg_slopes, elastics]: [&Lanes; 3],
    [prices, norm_scales, steps, excesses]: [&mut Lanes; 4],
    [residuals, excess_reports, changes, resets]: &mut LaneReports,
) {
    let (grow, shrink) = (safeguard::GROW, safeguard::SHRINK);
    let longest = safeguard::LONGEST_STEP * gamma;
    for i in 0..LANES {
        let (load, capacity, neg_slope) = (loads.0[i], capacities.0[i], neg_slopes.0[i]);
        let elastic = elastics.0[i];
        let price = prices.0[i];
        // A load that is not a number makes the scale 0.
        let busy = (load > 0.0) | load.is_nan();
        let active = busy & (capacity > 0.0);
        let reacts = (elastic > 0.0) & (neg_slope > 0.0);
        let steps_on = active & reacts;
        let excess = load - capacity;
        let idle = (price == 0.0) & (excess <= 0.0);
        let last = excesses.0[i];
        // The excess kept its sign: the step may grow. It changed its sign: the step overshot and
        // shrinks.
        let sign_turn = excess * last;
        let length = steps.0[i];
        let length = select(sign_turn < 0.0, larger(steps.0[i] * shrink, gamma), length);
        let length = select(sign_turn > 0.0, smaller(steps.0[i] * grow, longest), length);
        let calm = last.abs() < safeguard::CALM * capacity;
        // A link that was near its optimum and is suddenly far from it met events: it starts
        // afresh.
        let disturbed = calm & (excess.abs() > safeguard::DISTURBED * last.abs());
        let length = select(disturbed, safeguard::FIRST_STEP * gamma, length);
        let length = select(idle, longest, length);
        steps.0[i] = select(steps_on, length, steps.0[i]);
        excesses.0[i] = select(steps_on, excess, last);
        let inverse_capacity = select(capacity > 0.0, capacity, 1.0).recip();
        // Two more divisions serve all quotients of a link; divisions dominate the cost of this
        // step.
        let shared = select(steps_on, elastic * neg_slope, 1.0).recip();
        // In this order, no square can overflow that the product of both would not.
        let mean = select(steps_on, elastic * (elastic * shared), 1.0);
        let inverse_mean = select(steps_on, neg_slope * (neg_slope * shared), 1.0);
        let relative = select(active, excess * inverse_capacity, 0.0);
        // The residual of a link with spare capacity counts only as far as its price matters to its
        // flows.
        let felt = smaller(price * inverse_mean, 1.0);
        let off = larger(relative, -relative * felt);
        // (y / c)^(g y / E), to second order.
        let whole = select(steps_on, elastic * (load + capacity), 1.0);
        let bound = safeguard::LARGEST_SHARE * whole;
        let half = select(steps_on, length * load * excess, 0.0);
        let half = smaller(larger(half, -bound), bound);
        let divisor = select(busy, load, 1.0);
        // One division for the price's factor and for the scale: both share the denominator.
        let shared = ((whole - half) * divisor).recip();
        let factor = (whole + half) * divisor * shared;
        // Capacity over load: the first factor of the denominator cancels.
        let scale = capacity * (whole - half) * shared;
        let shift = safeguard::SHIFT * mean;
        let next = larger(
            (price + shift) * factor - shift,
            price * safeguard::LARGEST_FALL,
        );
        let next = select(next < safeguard::NEGLIGIBLE * mean, 0.0, next);
        let unfelt = select(
            active & (excess <= 0.0),
            price * safeguard::UNFELT_FALL,
            price,
        );
        let next = select(steps_on, next, unfelt);
        let (next, reset) = sound(next);
        resets.0[i] += reset;
        prices.0[i] = next;
        let norm_scale = select(busy, select(active, larger(scale, 0.0), 0.0), IDLE_SCALE);
        let price_change = (next - price).abs() * inverse_mean;
        let scale_change =
            (norm_scale - norm_scales.0[i]).abs() * larger(load * inverse_capacity, 1.0);
        norm_scales.0[i] = norm_scale;
        changes.0[i] = larger(
            changes.0[i],
            select(active, price_change + scale_change, 0.0),
        );
        residuals.0[i] = larger(residuals.0[i], select(steps_on, off, larger(relative, 0.0)));
        excess_reports.0[i] = larger(excess_reports.0[i], select(active, relative, -1.0));
    }
}

/// Step of [`Ned`](crate::num::Ned) on sixteen links.
#[inline(always)]
pub(super) fn ned_step(
    gamma: f32,
    capacities: &Lanes,
    [loads, neg_slopes, _]: [&Lanes; 3],
    [prices, norm_scales]: [&mut Lanes; 2],
    [residuals, excess_reports, changes, resets]: &mut LaneReports,
) {
    for i in 0..LANES {
        let (load, capacity, neg_slope) = (loads.0[i], capacities.0[i], neg_slopes.0[i]);
        let price = prices.0[i];
        let busy = (load > 0.0) | load.is_nan();
        let active = busy & (capacity > 0.0);
        let excess = load - capacity;
        let reacts = neg_slope > 0.0;
        let step = gamma * excess / select(reacts, neg_slope, capacity * capacity);
        // No flow responds: the price falls while the link has spare capacity, and otherwise takes
        // a step by its capacity.
        let falls = !reacts & (excess <= 0.0);
        let next = select(
            falls,
            price * (1.0 - gamma).max(0.0),
            (price + step).max(0.0),
        );
        let next = select(active, next, price);
        let (next, reset) = sound(next);
        resets.0[i] += reset;
        prices.0[i] = next;
        let norm_scale = select(
            busy,
            select(active, larger(capacity / load, 0.0), 0.0),
            IDLE_SCALE,
        );
        let scale_change = select(
            active,
            (norm_scale - norm_scales.0[i]).abs() / norm_scale.min(1.0),
            0.0,
        );
        norm_scales.0[i] = norm_scale;
        let counts = active & ((excess > 0.0) | (price > 0.0));
        residuals.0[i] = larger(residuals.0[i], select(counts, excess.abs() / capacity, 0.0));
        excess_reports.0[i] = larger(excess_reports.0[i], select(active, excess / capacity, -1.0));
        let price_change = select(active, (next - price).abs() * neg_slope / load, 0.0);
        changes.0[i] = larger(changes.0[i], price_change + scale_change);
    }
}
