//! Response of a flow to its path price: its rate, and the slope of that rate.

use super::utility::Utility;
use super::{Problem, RateLimit};

/// Response of a flow to a path price, or a link's sum of responses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Response {
    /// x; for a link, its load y = Σ x.
    pub rate: f64,
    /// −dx/dq; for a link, |H| = Σ −∂x/∂p.
    pub neg_slope: f64,
    /// e x with the elasticity e = −q x'(q) / x; for a link, E = Σ e x.
    pub elastic: f64,
}

impl Response {
    /// Adds another response to the sum.
    #[inline]
    pub fn add(&mut self, other: Response) {
        self.rate += other.rate;
        self.neg_slope += other.neg_slope;
        self.elastic += other.elastic;
    }

    /// Subtracts a response from the sum; rounding leaves no term below zero.
    pub(super) fn subtract(&mut self, other: Response) {
        self.rate = (self.rate - other.rate).max(0.0);
        self.neg_slope = (self.neg_slope - other.neg_slope).max(0.0);
        self.elastic = (self.elastic - other.elastic).max(0.0);
    }

    /// True if any flow in the sum reacts to prices.
    #[inline]
    #[must_use]
    pub fn reacts(&self) -> bool {
        self.elastic > 0.0 && self.neg_slope > 0.0
    }
}

/// Returns base ^ exponent: the base itself for log flows, whose sums have elasticity 1 up to
/// rounding.
#[inline]
#[must_use]
pub fn power(base: f64, exponent: f64) -> f64 {
    if (exponent - 1.0).abs() < 1e-9 {
        base
    } else {
        base.powf(exponent)
    }
}

/// Share of its saturation price above which a flow at its demand reacts to prices.
const RESPONSE_RANGE: f64 = 0.25;

/// Response of flow `s` to the path price `price`.
///
/// A flow at its path's capacity counts with its slope at that point; a flow at its demand with the
/// slope just beyond it, times (price / saturation price)⁴.
#[inline(always)]
#[must_use]
pub fn respond(problem: &Problem<'_>, s: usize, price: f64) -> Response {
    let flows = problem.flows;
    let limit = &flows.limits[s];
    if price >= limit.saturation_price {
        let utility = problem.classes.utility(flows.classes[s]);
        respond_freely(utility, flows.weights[s], price, limit.cap)
    } else {
        respond_at_cap(limit, price)
    }
}

/// Response at a path price above the saturation price.
#[inline(always)]
pub(super) fn respond_freely(
    utility: &impl Utility,
    weight: f64,
    price: f64,
    cap: f64,
) -> Response {
    let scaled = price / weight;
    let (free, slope) = utility.rate_and_slope_at(scaled);
    let rate = free.min(cap);
    let neg_slope = -slope / weight;
    // An infinite slope, at a price near 0, would spoil the link's sums: the flow counts as at its
    // cap.
    if neg_slope.is_finite() {
        Response {
            rate,
            neg_slope,
            elastic: neg_slope * price,
        }
    } else {
        Response {
            rate,
            ..Response::default()
        }
    }
}

/// Response of a flow at its cap.
#[inline]
pub(super) fn respond_at_cap(limit: &RateLimit, price: f64) -> Response {
    let rate = limit.cap;
    let elastic = limit.neg_slope * limit.saturation_price;
    if !limit.by_demand {
        return Response {
            rate,
            neg_slope: limit.neg_slope,
            elastic,
        };
    }
    let nearness = price / limit.saturation_price;
    // Below the range the response is zero, not tiny, so that a link of such flows is lifted at
    // once.
    if nearness < RESPONSE_RANGE || !nearness.is_finite() {
        return Response {
            rate,
            ..Response::default()
        };
    }
    // The fourth power fades the slope in: a step at the demand would make prices alternate for
    // ever.
    let elastic = elastic * nearness.powi(4);
    Response {
        rate,
        neg_slope: elastic / price,
        elastic,
    }
}
