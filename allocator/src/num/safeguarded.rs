//! NED with a safeguarded step: what the engine runs.
//!
//! [`Ned`](super::Ned) takes a Newton step per link, p ← p − γ G / H, with one γ for all links.
//! Before convergence that step fails in five cases, all of which occur in ordinary traffic:
//!
//! 1. *Links that share flows overshoot together.* If one flow crosses k full links, each of them
//!    corrects the whole excess, and the sum of k steps of γ diverges once kγ ≥ 2.
//! 2. *Far from the optimum the linear step is wrong.* A price that is k times too low grows by the
//!    factor 1 + γ per iteration; one that is a few times too high jumps to 0.
//! 3. *A flow at its cap has no slope.* Alone on a link it is always there, so H = 0 when the
//!    second flow comes.
//! 4. *Slopes switch at the demand.* A flow that alternates between its demand and just below makes
//!    H alternate between two values, and the price with it, for ever.
//! 5. *One γ is too long for one link and too short for another.*
//!
//! The safeguarded step has the same fixed points, since G = 0 or (p = 0 and G ≤ 0) stops it, and
//! cures them one by one. Per link, with the load y, with E = Σ e_s x_s where e_s = −q_s x'(q_s) /
//! x_s is the elasticity of the flow's rate in its path price q_s, and with the mean path price q̄
//! = E / |H| of its flows:
//!
//! ```text
//! p ← (p + δ q̄) · (y / c) ^ (g · y / E) − δ q̄,    not below p / 32
//! ```
//!
//! - To first order this is p + g G (p + δ q̄) / E. For a flow whose price is all on this link it
//!   is Newton's step; with the flow's price spread over k links each takes its share of it (1). It
//!   is the minimiser of a separable bound of the dual function (for δ = 0 and log utilities it is
//!   expectation maximisation, which never overshoots); δ = 0.25 lets the price of a link that
//!   costs nothing yet leave 0, and reach 0 again in finite time.
//! - As a power, it is exact for one bottleneck from any distance, for every α (2). What is
//!   computed is a fraction that agrees with the power to second order, (a + b) / (a − b) with a =
//!   E (y + c) and b = g y (y − c): one division where a power takes two functions.
//! - A flow at its path's capacity counts with its slope at that point (3).
//! - A flow at its demand counts with the slope just beyond it, times (q / saturation price)⁴ (4).
//! - g is the link's own (5). It starts at 2.5 γ, and again when events disturb a link at rest. It
//!   grows by 1.2 while the excess keeps its sign, up to 7.5 γ, and shrinks by 0.6 when the sign
//!   flips, down to γ. With γ = 0.4 and paths of up to six links the shortest step is within the
//!   bound of local stability, g (1 + 6δ) < 2.
//! - Where a link is over-allocated and no flow reacts, because all rest at their demands, the
//!   price is lifted to the point where the first flow reacts. Links that are lifted together share
//!   the price that a flow's path lacks. If each lifted it alone, k links would charge k saturation
//!   prices, fall back to where no flow reacts, and be lifted again, for ever.
//!
//! Measured against plain NED (γ = 0.4) from cold prices: the largest number of iterations after
//! which every rate stays within 10⁻⁴ of the optimum, over 30 random instances of 60 flows each
//! with weights 1, 2, 4, and how many of them stayed further away for 2,000 iterations
//! (`tests/behaviour/num_convergence.rs` prints these figures):
//!
//! | instances | plain | safeguarded |
//! |---|---|---|
//! | two-tier Clos, log | 6 of 30 fail | 242 |
//! | the same, a third of the flows with demands | 7 of 30 fail | 277 |
//! | the same, link capacities 0.1 : 1 : 4 | all fail | 717 |
//! | the same, α of 0.5, 1, 2, 8 mixed | all fail | 566 |
//! | six of 30 random links per flow, log, demands | 185 | 124 |
//! | six of 30 random 1 Tbit/s links per flow, α = 8 | all fail | 44 |
//!
//! When 1 to 8 senders to one receiver start and stop one by one, the safeguarded rule has all
//! rates within 1 % after at most 11 iterations at any speed from 100 Mbit/s to 1 Tbit/s, the plain
//! one after at most 15.
//!
//! # Events
//!
//! The safeguarded step makes convergence certain, not fast: in the first iterations after events,
//! plain NED is as good. Two things make these iterations fast. Prices are corrected at the events,
//! before the iteration (see [`price_correction`](super::price_correction)). An iteration that
//! follows events makes one more pass over the flows before it returns rates, with a price update
//! as cheap as plain NED's: all links take the step g = 1.9 / (1 + kδ), where k is the number of
//! links of the longest path.
//!
//! On 1,536 hosts, after 123 of 12,288 flows were replaced at converged prices; time in iterations
//! of plain NED with F-NORM, rate error the 99th percentile after F-NORM, throughput as a share of
//! the optimum, means over five cases (`ratewright-bench convergence --cases 5`):
//!
//! | rule | first rates: time, error, throughput | second rates | third rates |
//! |---|---|---|---|
//! | plain, γ = 0.4 | 1.03: 24.1 %, 0.975 | 2.09: 14.1 %, 0.983 | 3.13: 10.6 %, 0.988 |
//! | plain, γ = 0.6 | 1.03: 24.1 %, 0.975 | 2.09: 11.8 %, 0.985 | 3.15: 11.1 %, 0.989 |
//! | safeguarded step alone | 1.25: 24.1 %, 0.975 | 2.48: 15.1 %, 0.984 | 3.70: 11.0 %, 0.988 |
//! | prices of dirty links × flows now / before, plain | 1.08: 19.2 %, 0.980 | 2.12: 11.9 %, 0.987 | 3.16: 9.3 %, 0.990 |
//! | price correction, plain | 1.22: 9.2 %, 0.987 | 2.26: 7.1 %, 0.992 | 3.28: 6.1 %, 0.994 |
//! | price correction, plain γ = 0.6 | 1.23: 9.2 %, 0.987 | 2.29: 6.5 %, 0.993 | 3.34: 5.3 %, 0.995 |
//! | price correction, plain γ = 0.6, one pass more | 1.88: 6.5 %, 0.993 | 2.92: 5.3 %, 0.995 | 3.94: 4.5 %, 0.996 |
//! | price correction, safeguarded | 1.18: 9.2 %, 0.987 | 2.40: 6.7 %, 0.993 | 3.61: 5.5 %, 0.995 |
//! | **price correction, safeguarded, one pass more** | **1.79: 6.7 %, 0.993** | 3.02: 5.6 %, 0.994 | 4.22: 4.8 %, 0.995 |
//! | that, with momentum 0.4 | 1.80: 6.7 %, 0.993 | 3.04: 5.6 %, 0.994 | 4.25: 4.8 %, 0.995 |
//! | one local sweep over dirty links, plain | 1.62: 8.8 %, 0.989 | 2.66: 7.0 %, 0.992 | 3.67: 6.0 %, 0.994 |
//! | three local sweeps, plain | 2.68: 8.3 %, 0.990 | 3.72: 6.6 %, 0.993 | 4.72: 5.7 %, 0.994 |
//! | coordinate descent over all links | 3.10: 7.7 %, 0.991 | 5.99: 4.1 %, 0.996 | 8.88: 2.6 %, 0.998 |
//!
//! Local sweeps cost far more than price correction and gain no more. The error that either leaves
//! is that of the links next to the dirty ones, whose response takes a pass over all flows.

mod prices;

use self::prices::StepLength;
use super::price_correction::{FlowView, PriceCorrection};
use super::response::{Response, respond};
use super::{Optimizer, Problem};

/// Additional passes in an iteration that follows events. They compute the response of the links
/// next to the dirty ones before rates are returned, at the cost of a rate update each.
const INNER_PASSES: u32 = 1;
/// A link's first step, in γ.
const FIRST_STEP: f64 = 2.5;
/// Iterations after events in which [`StepLength`] may restart a link at rest.
const FRESH: u8 = 3;
/// Largest deviation of an elasticity from 1 that counts as rounding.
const ELASTICITY_TOLERANCE: f64 = 1e-12;

/// NED with the safeguarded step of this module.
#[derive(Clone, Debug)]
pub struct SafeguardedNed {
    gamma: f64,
    /// Heavy-ball momentum: share of a link's last move that is repeated while the excess keeps its
    /// sign.
    momentum: f64,
    /// Additional passes of an iteration that follows events.
    inner: u32,
    /// Remaining iterations of [`FRESH`] since the last events.
    fresh: u8,
    /// Links of the longest path of any flow that started.
    longest: usize,
    prices: Vec<f64>,
    sums: Vec<LinkSums>,
    /// E − y by link, 0 where all flows are log.
    elastic_excess: Vec<f64>,
    steps: Vec<StepLength>,
    /// Links whose price is lifted in this iteration, in ascending order, with the price to add.
    lifts: Vec<(u32, f64)>,
    /// Correction for events since the last iteration; `None` leaves them to the iterations.
    correction: Option<PriceCorrection>,
}

/// Sums over the flows of a link.
#[derive(Clone, Copy, Debug, Default)]
struct LinkSums {
    /// y = Σ x.
    load: f64,
    /// |H| = Σ −∂x/∂p.
    neg_slope: f64,
}

impl SafeguardedNed {
    /// An optimiser for `links` links; `gamma` is the shortest step. Prices start at 1.
    #[must_use]
    pub fn new(gamma: f64, links: usize) -> Self {
        Self {
            gamma,
            momentum: 0.0,
            inner: INNER_PASSES,
            fresh: 0,
            longest: 0,
            prices: vec![1.0; links],
            sums: vec![LinkSums::default(); links],
            elastic_excess: vec![0.0; links],
            steps: vec![
                StepLength {
                    length: FIRST_STEP * gamma,
                    excess: 0.0,
                    moved: 0.0,
                };
                links
            ],
            lifts: Vec::new(),
            correction: Some(PriceCorrection::new(links)),
        }
    }

    /// Variant without price correction at starts and ends, for comparison.
    #[must_use]
    pub fn without_correction(gamma: f64, links: usize) -> Self {
        Self {
            correction: None,
            ..Self::new(gamma, links)
        }
    }

    /// Variant with heavy-ball momentum, for comparison: a link repeats the share `momentum` of its
    /// last move while the excess keeps its sign.
    #[must_use]
    pub fn with_momentum(gamma: f64, momentum: f64, links: usize) -> Self {
        Self {
            momentum,
            ..Self::new(gamma, links)
        }
    }

    /// Variant with `inner` additional passes in an iteration that follows events, where
    /// [`Self::new`] has one. For comparison.
    #[must_use]
    pub fn with_inner_passes(gamma: f64, inner: u32, links: usize) -> Self {
        Self {
            inner,
            ..Self::new(gamma, links)
        }
    }

    /// Makes one pass: rates from prices, then prices from rates.
    fn pass(
        &mut self,
        problem: &Problem<'_>,
        rates: &mut [f64],
        update_prices: fn(&mut Self, &Problem<'_>) -> f64,
    ) -> f64 {
        self.update_rates(problem, rates);
        let residual = update_prices(self, problem);
        // Lifts wait for the end of the update: they share a path's missing price among its links.
        if !self.lifts.is_empty() {
            self.lift_prices(problem);
        }
        residual
    }

    fn update_rates(&mut self, problem: &Problem<'_>, rates: &mut [f64]) {
        let flows = problem.flows;
        self.sums.fill(LinkSums::default());
        self.elastic_excess.fill(0.0);
        for (s, rate) in rates.iter_mut().enumerate() {
            // A failed link or no demand: the flow takes no part in any sum.
            if flows.limits[s].cap <= 0.0 {
                *rate = 0.0;
                continue;
            }
            let response = respond(problem, s, problem.path_price(s, &self.prices));
            *rate = response.rate;
            for &link in &flows.paths[s] {
                let sums = &mut self.sums[link as usize];
                sums.load += response.rate;
                sums.neg_slope += response.neg_slope;
            }
            let elastic_excess = response.elastic - response.rate;
            // Log flows have e = 1: their share of E is in the load already. A second scatter only
            // for flows that are not log, or that rest at their demands.
            if elastic_excess.abs() > ELASTICITY_TOLERANCE * response.rate {
                for &link in &flows.paths[s] {
                    self.elastic_excess[link as usize] += elastic_excess;
                }
            }
        }
    }

    /// Response of all flows of a link, from its sums.
    fn sum_of(sums: &[LinkSums], elastic_excess: &[f64], link: usize) -> Response {
        let LinkSums { load, neg_slope } = sums[link];
        Response {
            rate: load,
            neg_slope,
            // Rounding may leave E slightly below zero where the excess cancels the load.
            elastic: (load + elastic_excess[link]).max(0.0),
        }
    }
}

impl Optimizer for SafeguardedNed {
    fn iterate(&mut self, problem: &Problem<'_>, rates: &mut [f64]) -> f64 {
        let disturbed = self
            .correction
            .as_mut()
            .is_some_and(|correction| correction.correct(problem.capacities, &mut self.prices) > 0);
        // Without events, each link steps by the length that it has learned.
        if !disturbed {
            let residual = self.pass(problem, rates, Self::update_prices);
            self.fresh = self.fresh.saturating_sub(1);
            return residual;
        }
        // Step lengths learned at rest no longer hold, so all links take one length in these
        // passes.
        self.fresh = FRESH;
        for _ in 0..self.inner {
            self.pass(problem, rates, Self::update_prices_quickly);
        }
        self.pass(problem, rates, Self::update_prices_quickly)
    }

    fn prices(&self) -> &[f64] {
        &self.prices
    }

    fn warm_start(&mut self, prices: &[f64]) {
        self.prices.copy_from_slice(prices);
    }

    fn reset(&mut self, links: usize) {
        let correction = self
            .correction
            .is_some()
            .then(|| PriceCorrection::new(links));
        *self = Self {
            correction,
            inner: self.inner,
            ..Self::with_momentum(self.gamma, self.momentum, links)
        };
    }

    fn flow_started(&mut self, flow: &FlowView<'_>) {
        // Never reduced at an end: a shorter step than necessary is stable too.
        self.longest = self.longest.max(flow.path.len());
        if let Some(correction) = &mut self.correction {
            correction.start(flow, &self.prices, |link| {
                Self::sum_of(&self.sums, &self.elastic_excess, link)
            });
        }
    }

    fn flow_ended(&mut self, flow: &FlowView<'_>) {
        if let Some(correction) = &mut self.correction {
            correction.end(flow, &self.prices, |link| {
                Self::sum_of(&self.sums, &self.elastic_excess, link)
            });
        }
    }
}
