//! Network utility maximisation: pure arithmetic over slices, no threads, no I/O, and no
//! allocation once the buffers have grown to the problem's size.
//!
//! # The problem (flowtune §2)
//!
//! Flows s have rates x_s, utilities w_s U_s and paths L(s); links l have capacities c_l:
//!
//! ```text
//! maximise    Σ_s w_s U_s(x_s)
//! subject to  Σ_{s over l} x_s ≤ c_l     for every link l
//!             0 ≤ x_s ≤ d_s              for every flow s
//! ```
//!
//! U_s is strictly concave, increasing and differentiable: log x (proportional fairness),
//! x^(1−α)/(1−α) (α-fairness), or one's own ([`utility`]).
//!
//! # Its dual (flowtune appendix A)
//!
//! With a price p_l ≥ 0 per link and the path price q_s = Σ_{l∈L(s)} p_l, the problem separates
//! into one per flow. The remaining problem is to find the prices that minimise
//!
//! ```text
//! D(p) = Σ_s max_{0≤x≤d_s} (w_s U_s(x) − q_s x) + Σ_l p_l c_l
//! ```
//!
//! Its gradient is −G_l = c_l − Σ x_s; the diagonal of its Hessian is −H_l = −Σ ∂x_s/∂p_l.
//!
//! # One iteration
//!
//! | step | formula | where |
//! |---|---|---|
//! | rate update | x_s = min(cap_s, (U'_s)⁻¹(q_s / w_s)) | [`Ned`], [`SafeguardedNed`] |
//! | price update | p_l ← max(0, p_l − γ G_l / H_l) | [`Ned`]; its safeguarded form in [`safeguarded`] |
//! | normalisation | x̄_s = min(cap_s, x_s / max_{l∈L(s)} (Σx / c_l)) | [`FNorm`]; [`UNorm`] |
//!
//! cap_s is the smallest of the flow's demand and its path's capacities. For log utilities x = w/q
//! and ∂x/∂p = −w/q²; for α-fair ones x = (w/q)^(1/α) and ∂x/∂p = −x / (α q). Prices start at 1
//! once, when a topology is loaded, and survive every change of flows and capacities.
//!
//! [`safeguarded`] compares price updates on random Clos traffic and shows where the plain one
//! fails. [`optimality`] measures the distance of rates from the optimum. Its bound needs no
//! solver: D(p) of any prices is at least the utility of any feasible rates.
//!
//! Optimisers that only comparisons use are in the crate of the measurements, `benches`. They stand
//! on [`response`], as [`SafeguardedNed`] does. [`MaxMin`] has another objective: max-min fairness.

mod max_min;
mod ned;
mod normalize;
pub mod optimality;
pub mod price_correction;
mod problem;
pub mod response;
pub mod safeguarded;
pub mod utility;

#[cfg(test)]
mod tests;

pub use max_min::MaxMin;
pub use ned::Ned;
pub use normalize::{FNorm, Normalizer, UNorm};
pub use price_correction::FlowView;
pub use problem::{FlowArrays, LinkPath, MAX_PATH_LINKS, Problem, RateLimit, path_capacity};
pub use safeguarded::SafeguardedNed;
pub use utility::RATE_UNIT_BPS;

/// An iterative optimiser of link prices.
pub trait Optimizer: Send {
    /// Runs one iteration: rates from prices, then prices from rates. `rates` has one entry per
    /// flow.
    ///
    /// Returns the residual of the optimality conditions at the prices before the update: the
    /// largest excess of a link over its capacity, or spare capacity of a link with a price. Both
    /// are relative to the capacity; spare capacity also to the link's share of its flows' path
    /// prices. An iteration that follows events may leave the residual unmeasured and return 1.
    fn iterate(&mut self, problem: &Problem<'_>, rates: &mut [f64]) -> f64;

    /// Prices by link, after the last iteration.
    fn prices(&self) -> &[f64];

    /// Continues from other prices, one per link: after a restart, or from another optimiser.
    fn warm_start(&mut self, prices: &[f64]);

    /// Forgets everything, for a new topology with `links` links.
    fn reset(&mut self, links: usize);

    /// Adds a flow to the problem before the next iteration.
    ///
    /// Optimisers with a [`price_correction`] respond at once; the others see it in the next sums.
    fn flow_started(&mut self, _flow: &FlowView<'_>) {}

    /// Removes a flow from the problem before the next iteration.
    fn flow_ended(&mut self, _flow: &FlowView<'_>) {}
}
