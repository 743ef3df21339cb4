//! Utilities that the optimiser maximises, and the classes of flows.
//!
//! Rates are in Gbit/s here and prices in utility per Gbit/s (see [`RATE_UNIT_BPS`]).

use std::fmt;
use std::sync::Arc;

/// Rates inside `num` are in units of 1 Gbit/s.
///
/// At a path price of 1, a log flow of weight 1 gets 1 Gbit/s; every link's price starts at 1
/// (flowtune §2). The unit is fixed and not taken from the topology because it is part of the
/// objective: where classes of different utilities share a link, it decides their relative worth.
pub const RATE_UNIT_BPS: f64 = 1e9;

/// A strictly concave, increasing, differentiable function of a rate above zero (flowtune §2).
///
/// NED needs no more than these functions. It inverts the marginal utility to find a rate, and uses
/// the slope of that inverse as the response of rates to a price.
///
/// A utility of one's own implements the four functions and is given to a class. With log(1 + x), a
/// flow's first bits are worth less than under log x, and its rate is 0 at prices above its weight:
///
/// ```
/// use std::sync::Arc;
///
/// use ratewright_allocator::engine::parallel::{Layout, ParallelEngine, ParallelOptions};
/// use ratewright_allocator::engine::{EngineConfig, EngineEvent, FlowNumber, FlowSpec, RateEngine};
/// use ratewright_allocator::num::utility::{Class, ClassTable, Utility, UtilityKind};
///
/// #[derive(Debug)]
/// struct Saturating;
///
/// impl Utility for Saturating {
///     fn value(&self, rate: f64) -> f64 {
///         rate.ln_1p()
///     }
///     fn marginal(&self, rate: f64) -> f64 {
///         1.0 / (1.0 + rate)
///     }
///     fn rate_at(&self, price: f64) -> f64 {
///         (1.0 / price - 1.0).max(0.0)
///     }
///     fn rate_slope_at(&self, price: f64) -> f64 {
///         if price < 1.0 { -1.0 / (price * price) } else { 0.0 }
///     }
/// }
///
/// let class = Class {
///     utility: UtilityKind::Custom(Arc::new(Saturating)),
///     ..Class::default()
/// };
/// let config = EngineConfig {
///     classes: ClassTable::new([(0, class)])?,
///     threshold: 1e-4,
///     ..EngineConfig::default()
/// };
/// // Two flows of weights 1 and 2 share a link of 4 Gbit/s:
/// // 1 / (1 + x) = 2 / (1 + y) at x = 1, y = 3.
/// let mut engine =
///     ParallelEngine::new(config, ParallelOptions::default(), Layout::unknown(1), &[4e9])?;
/// for (flow, weight) in [(0, 1.0), (1, 2.0)] {
///     engine.apply(EngineEvent::Start(FlowSpec {
///         number: FlowNumber::first(flow),
///         links: [0].into_iter().collect(),
///         class: 0,
///         weight,
///         demand_bps: f64::INFINITY,
///     }))?;
/// }
/// let mut rates_bps = [0.0; 2];
/// while !engine.iterate().settled {
///     engine.drain_updates(&mut |update| {
///         rates_bps[update.number.index() as usize] = update.rate_bps;
///     });
/// }
/// assert!((rates_bps[0] / 1e9 - 1.0).abs() < 1e-3);
/// assert!((rates_bps[1] / 1e9 - 3.0).abs() < 1e-3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Utility: fmt::Debug + Send + Sync {
    /// U(x).
    fn value(&self, rate: f64) -> f64;
    /// U'(x) > 0, strictly decreasing.
    fn marginal(&self, rate: f64) -> f64;
    /// x = U'⁻¹(p): the rate whose marginal utility is the price. Infinite for a price of 0.
    fn rate_at(&self, price: f64) -> f64;
    /// dx/dp = (U'⁻¹)'(p) < 0.
    fn rate_slope_at(&self, price: f64) -> f64;
    /// [`Self::rate_at`] and [`Self::rate_slope_at`] in one call, since they often share most of
    /// their work.
    fn rate_and_slope_at(&self, price: f64) -> (f64, f64) {
        (self.rate_at(price), self.rate_slope_at(price))
    }
}

/// log x: proportional fairness (Kelly).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Log;

impl Utility for Log {
    fn value(&self, rate: f64) -> f64 {
        rate.ln()
    }
    fn marginal(&self, rate: f64) -> f64 {
        rate.recip()
    }
    fn rate_at(&self, price: f64) -> f64 {
        price.recip()
    }
    fn rate_slope_at(&self, price: f64) -> f64 {
        -(price * price).recip()
    }
    #[inline]
    fn rate_and_slope_at(&self, price: f64) -> (f64, f64) {
        // One division for both, in the commonest utility.
        let rate = price.recip();
        (rate, -rate * rate)
    }
}

/// α-fairness (Mo and Walrand): U'(x) = (x / r)^(−α) / r. Near α = 0 it is total throughput, at 1
/// proportional fairness, at 2 minimum potential delay, and towards infinity max-min fairness.
///
/// The effective weight of a flow at rate x is x U'(x) = (x / r)^(1−α), relative to a log flow; at
/// the reference rate r it is 1. Where classes of different utilities share links, effective
/// weights differ by orders of magnitude: beside a hundred flows of α = 16 at a tenth of r, a log
/// flow of the same weight would get 10⁻¹⁵ of their rate. [`bounded`](Self::bounded) therefore
/// limits the effective weight to [1 / b, b]. Beyond the rates where it reaches a bound, flows are
/// proportionally fair with that weight.
///
/// Every flow then gets a share, whatever the classes of the others. Let N_l be the flows on link
/// l, all of one weight, and k the links on a path. A flow's rate is v / q, with 1 / b ≤ v ≤ b and
/// q the sum of its links' prices. A link with price p_l > 0 is full of flows that pay at least
/// p_l, so c_l ≤ N_l b / p_l, and q ≤ k b max(N_l / c_l). So the rate is at least min(c_l / N_l) /
/// (k b²): with b = 4 and six links, 1 % of the equal share of the flow's narrowest link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AlphaFair {
    alpha: f64,
    /// Reference rate r, in Gbit/s.
    reference: f64,
    /// Rates below and above which the effective weight is constant, in Gbit/s.
    rates: [f64; 2],
    /// Effective weights below the first rate and above the second.
    weights: [f64; 2],
}

impl AlphaFair {
    /// Smallest α: below it the inverse of the marginal utility overflows.
    pub const MIN_ALPHA: f64 = 0.1;
    /// Largest α: 64 is max-min fairness for every practical purpose.
    pub const MAX_ALPHA: f64 = 64.0;
    /// Bound b for classes of different utilities.
    pub const MIXED_BOUND: f64 = 4.0;
    /// Bound b where all classes have one utility: the range of single precision.
    pub const ALONE_BOUND: f64 = 1e6;

    /// α-fairness for `MIN_ALPHA` ≤ α ≤ `MAX_ALPHA`, with a reference rate of 1 Gbit/s and without
    /// a bound.
    #[must_use]
    pub fn new(alpha: f64) -> Option<Self> {
        Self::bounded(alpha, RATE_UNIT_BPS, f64::INFINITY)
    }

    /// α-fairness with a reference rate, and effective weights from 1 / `bound` to `bound`. None if
    /// an argument is out of range.
    #[must_use]
    pub fn bounded(alpha: f64, reference_bps: f64, bound: f64) -> Option<Self> {
        let reference = reference_bps / RATE_UNIT_BPS;
        let sound = reference > 0.0 && reference.is_finite() && bound > 1.0;
        if !sound || !(Self::MIN_ALPHA..=Self::MAX_ALPHA).contains(&alpha) {
            return None;
        }
        // As far from the reference rate as what it weighs takes to get to the bound.
        let factor = bound.powf((alpha - 1.0).abs().recip());
        // The effective weight (x / r)^(1−α) falls with the rate for α > 1 and rises below: at low
        // rates it meets one bound or the other.
        let at_low = if alpha > 1.0 { bound } else { bound.recip() };
        Some(Self {
            alpha,
            reference,
            rates: [reference / factor, reference * factor],
            weights: [at_low, at_low.recip()],
        })
    }

    /// α.
    #[must_use]
    pub fn alpha(&self) -> f64 {
        self.alpha
    }

    /// Reference rate, in bit/s.
    #[must_use]
    pub fn reference_bps(&self) -> f64 {
        self.reference * RATE_UNIT_BPS
    }

    /// Rates between which utility is α-fair, in bit/s.
    #[must_use]
    pub fn range_bps(&self) -> [f64; 2] {
        self.rates.map(|rate| rate * RATE_UNIT_BPS)
    }

    /// U'(x) between the two rates.
    fn inner_marginal(&self, rate: f64) -> f64 {
        (rate / self.reference).powf(-self.alpha) / self.reference
    }

    /// U(x) between the two rates.
    fn inner_value(&self, rate: f64) -> f64 {
        // The general form divides by 1 − α; up to a constant, its limit is the logarithm.
        if self.alpha == 1.0 {
            return rate.ln();
        }
        (rate / self.reference).powf(1.0 - self.alpha) / (1.0 - self.alpha)
    }

    /// Effective weight at a rate beyond one of the two bounds.
    fn outer_weight(&self, rate: f64) -> Option<f64> {
        if rate < self.rates[0] {
            Some(self.weights[0])
        } else if rate > self.rates[1] {
            Some(self.weights[1])
        } else {
            None
        }
    }
}

impl Utility for AlphaFair {
    fn value(&self, rate: f64) -> f64 {
        let Some(weight) = self.outer_weight(rate) else {
            return self.inner_value(rate);
        };
        // Outer pieces are logarithms that continue the inner one without a step.
        let bound = self.rates[usize::from(rate > self.rates[1])];
        self.inner_value(bound) + weight * (rate / bound).ln()
    }
    fn marginal(&self, rate: f64) -> f64 {
        match self.outer_weight(rate) {
            Some(weight) => weight / rate,
            None => self.inner_marginal(rate),
        }
    }
    fn rate_at(&self, price: f64) -> f64 {
        self.rate_and_slope_at(price).0
    }
    fn rate_slope_at(&self, price: f64) -> f64 {
        self.rate_and_slope_at(price).1
    }
    fn rate_and_slope_at(&self, price: f64) -> (f64, f64) {
        // The rate without bounds decides which piece of U' the price belongs to: U' falls
        // strictly.
        let rate = self.reference * (price * self.reference).powf(-self.alpha.recip());
        match self.outer_weight(rate) {
            Some(weight) => (weight / price, -weight / (price * price)),
            None => (rate, -rate / (self.alpha * price)),
        }
    }
}

/// Utility of a class. The built-in ones are variants of their own, so that the hot loop calls
/// through no pointer.
#[derive(Clone, Debug)]
pub enum UtilityKind {
    /// [`Log`].
    Log,
    /// [`AlphaFair`].
    Alpha(AlphaFair),
    /// A utility of the library's user.
    Custom(Arc<dyn Utility>),
}

impl Utility for UtilityKind {
    #[inline]
    fn value(&self, rate: f64) -> f64 {
        match self {
            Self::Log => Log.value(rate),
            Self::Alpha(u) => u.value(rate),
            Self::Custom(u) => u.value(rate),
        }
    }
    #[inline]
    fn marginal(&self, rate: f64) -> f64 {
        match self {
            Self::Log => Log.marginal(rate),
            Self::Alpha(u) => u.marginal(rate),
            Self::Custom(u) => u.marginal(rate),
        }
    }
    #[inline]
    fn rate_at(&self, price: f64) -> f64 {
        match self {
            Self::Log => Log.rate_at(price),
            Self::Alpha(u) => u.rate_at(price),
            Self::Custom(u) => u.rate_at(price),
        }
    }
    #[inline]
    fn rate_slope_at(&self, price: f64) -> f64 {
        match self {
            Self::Log => Log.rate_slope_at(price),
            Self::Alpha(u) => u.rate_slope_at(price),
            Self::Custom(u) => u.rate_slope_at(price),
        }
    }
    #[inline]
    fn rate_and_slope_at(&self, price: f64) -> (f64, f64) {
        match self {
            Self::Log => Log.rate_and_slope_at(price),
            Self::Alpha(u) => u.rate_and_slope_at(price),
            Self::Custom(u) => u.rate_and_slope_at(price),
        }
    }
}

/// A class of flows: their utility, weight and bound.
#[derive(Clone, Debug)]
pub struct Class {
    /// The utility of a flow of weight 1.
    pub utility: UtilityKind,
    /// Multiplies the utility of every flow of the class, in addition to the flow's own weight. On
    /// a shared bottleneck, log flows get rates in proportion to weight, α-fair ones to
    /// weight^(1/α).
    pub weight: f64,
    /// Upper bound of every flow's rate, in bit/s; infinite without a bound.
    pub max_rate_bps: f64,
}

impl Default for Class {
    fn default() -> Self {
        Self {
            utility: UtilityKind::Log,
            weight: 1.0,
            max_rate_bps: f64::INFINITY,
        }
    }
}

/// A class that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ClassError {
    /// A weight that is not a finite number above zero.
    #[error("class {id}: weight {weight} is not a finite number above zero")]
    Weight {
        /// The class.
        id: u8,
        /// Its weight.
        weight: f64,
    },
    /// A bound that is not above zero.
    #[error("class {id}: max_rate_bps {max_rate_bps} is not above zero")]
    MaxRate {
        /// The class.
        id: u8,
        /// Its bound.
        max_rate_bps: f64,
    },
    /// Two classes of one id.
    #[error("class {id} is defined twice")]
    Duplicate {
        /// The class.
        id: u8,
    },
}

/// The classes by id.
#[derive(Clone, Debug)]
pub struct ClassTable {
    classes: Vec<Option<Class>>,
}

impl Default for ClassTable {
    /// One class, id 0: log, weight 1, no bound.
    fn default() -> Self {
        Self {
            classes: vec![Some(Class::default())],
        }
    }
}

impl ClassTable {
    /// Builds a table of the given classes; ids may have gaps.
    ///
    /// # Errors
    /// A weight or bound that is out of range, or an id that occurs twice.
    pub fn new(classes: impl IntoIterator<Item = (u8, Class)>) -> Result<Self, ClassError> {
        let mut table = Self {
            classes: Vec::new(),
        };
        for (id, class) in classes {
            if !(class.weight.is_finite() && class.weight > 0.0) {
                return Err(ClassError::Weight {
                    id,
                    weight: class.weight,
                });
            }
            // Infinity is allowed: it stands for no bound.
            if class.max_rate_bps.is_nan() || class.max_rate_bps <= 0.0 {
                return Err(ClassError::MaxRate {
                    id,
                    max_rate_bps: class.max_rate_bps,
                });
            }
            let index = usize::from(id);
            if table.classes.len() <= index {
                table.classes.resize_with(index + 1, || None);
            }
            // An id twice is a mistake: the later definition would silently win.
            if table.classes[index].replace(class).is_some() {
                return Err(ClassError::Duplicate { id });
            }
        }
        Ok(table)
    }

    /// Returns the class with that id.
    #[must_use]
    pub fn get(&self, id: u8) -> Option<&Class> {
        self.classes.get(usize::from(id))?.as_ref()
    }

    /// Returns the lowest id of a class of log flows; 0 without such a class.
    pub(crate) fn log_class(&self) -> u8 {
        let is_log = |class: &Option<Class>| {
            let class = class.as_ref();
            class.is_some_and(|class| matches!(class.utility, UtilityKind::Log))
        };
        self.classes.iter().position(is_log).unwrap_or(0) as u8
    }

    /// Returns the utility of class `id`, which the engine has checked; the logarithm for a class
    /// that is not defined.
    #[inline]
    #[must_use]
    pub fn utility(&self, id: u8) -> &UtilityKind {
        match self.classes.get(usize::from(id)) {
            Some(Some(class)) => &class.utility,
            // Unreachable for checked ids. A default costs less in the hot loop than a panic path.
            _ => &UtilityKind::Log,
        }
    }
}
