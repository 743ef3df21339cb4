//! The `-RT` optimisers: single precision, flows packed for the rate update, approximate
//! reciprocals (flowtune §5.4).
//!
//! [`PackedFlows::pack`] copies flows into a layout of their own. It pads a path to four or six
//! links with a link whose price is always 0, so that the rate update has no inner loop of varying
//! length. Log flows, the common case, take 1/q from an estimate by bit arithmetic and two Newton
//! steps, which only multiply and add. Flows of other utilities take a second pass through their
//! utility's own f64 functions, so that a utility of the library's user works here as well.
//!
//! Rates are within 10⁻³ of the f64 reference's at rest (`tests/behaviour/optimizers.rs`). The
//! benchmark `optimizers` measures the gain in time.

use ratewright_allocator::num::utility::{Utility, UtilityKind};
use ratewright_allocator::num::{MAX_PATH_LINKS, Optimizer, Problem};

/// Most links of a short packed path.
const SHORT: usize = 4;

/// A log flow.
#[derive(Clone, Copy, Debug)]
struct Packed<const N: usize> {
    links: [u32; N],
    weight: f32,
    cap: f32,
    flow: u32,
}

/// A problem's flows in the layout of the rate update.
#[derive(Clone, Debug, Default)]
struct PackedFlows {
    short: Vec<Packed<SHORT>>,
    long: Vec<Packed<MAX_PATH_LINKS>>,
    /// Flows whose utility is not log.
    other: Vec<u32>,
}

impl PackedFlows {
    fn pack(&mut self, problem: &Problem<'_>) {
        self.short.clear();
        self.long.clear();
        self.other.clear();
        // The padding's link: one past the network's, with a price of 0.
        let nowhere = problem.capacities.len() as u32;
        let flows = problem.flows;
        for (s, path) in flows.paths.iter().enumerate() {
            let (cap, flow) = (flows.limits[s].cap as f32, s as u32);
            let weight = flows.weights[s] as f32;
            // Not packed: `load` resets its rate to 0, and no pass changes it.
            if cap <= 0.0 {
                continue;
            }
            if !matches!(problem.classes.utility(flows.classes[s]), UtilityKind::Log) {
                self.other.push(flow);
            // Four links hold every path of a two-tier Clos: the shorter layout saves a third of
            // the gathers.
            } else if path.len() <= SHORT {
                let links = padded(path, nowhere);
                self.short.push(Packed {
                    links,
                    weight,
                    cap,
                    flow,
                });
            } else {
                let links = padded(path, nowhere);
                self.long.push(Packed {
                    links,
                    weight,
                    cap,
                    flow,
                });
            }
        }
    }
}

fn padded<const N: usize>(path: &[u32], nowhere: u32) -> [u32; N] {
    std::array::from_fn(|i| path.get(i).copied().unwrap_or(nowhere))
}

/// Returns 1/x for a normal x > 0, within 2·10⁻⁵: an estimate from the bits (the negative exponent,
/// and a line through the mantissa) and two Newton steps.
#[inline]
fn reciprocal(x: f32) -> f32 {
    let estimate = f32::from_bits(0x7EF3_11C7_u32.wrapping_sub(x.to_bits()));
    // Each Newton step squares the relative error.
    let once = estimate * (2.0 - x * estimate);
    once * (2.0 - x * once)
}

/// Path price below which every flow is at its cap; keeps [`reciprocal`] off 0 and denormal
/// numbers.
const LEAST_PRICE: f32 = 1e-20;

/// State and rate update of both optimisers.
#[derive(Clone, Debug)]
struct Core {
    packed: PackedFlows,
    /// One more than there are links: the last one, of the padding, is always 0.
    prices: Vec<f32>,
    /// Load and slope by link.
    sums: Vec<[f32; 2]>,
    rates: Vec<f32>,
    /// Copy in f64, for [`Optimizer::prices`].
    public: Vec<f64>,
}

impl Core {
    fn new(links: usize) -> Self {
        let mut prices = vec![1.0; links + 1];
        prices[links] = 0.0;
        Self {
            packed: PackedFlows::default(),
            prices,
            sums: vec![[0.0; 2]; links + 1],
            rates: Vec::new(),
            public: vec![1.0; links],
        }
    }

    fn load(&mut self, problem: &Problem<'_>) {
        self.packed.pack(problem);
        // Flows may have changed their indices: no rate carries over.
        self.rates.clear();
        self.rates.resize(problem.flows.len(), 0.0);
    }

    fn update_rates(&mut self, problem: &Problem<'_>) {
        self.sums.fill([0.0; 2]);
        let (prices, sums, rates) = (&self.prices, &mut self.sums, &mut self.rates);
        update_log_rates(&self.packed.short, prices, sums, rates);
        update_log_rates(&self.packed.long, prices, sums, rates);
        let flows = problem.flows;
        for &flow in &self.packed.other {
            let s = flow as usize;
            let (weight, cap) = (flows.weights[s], flows.limits[s].cap);
            let path = &flows.paths[s];
            let price: f32 = path.iter().map(|&l| prices[l as usize]).sum();
            // A class's own functions are f64; only the sums are single precision.
            let price = f64::from(price) / weight;
            let utility = problem.classes.utility(flows.classes[s]);
            let free = utility.rate_at(price);
            let slope = if free < cap {
                utility.rate_slope_at(price) / weight
            } else {
                0.0
            };
            let rate = free.min(cap) as f32;
            rates[s] = rate;
            for &link in path {
                let sum = &mut sums[link as usize];
                sum[0] += rate;
                sum[1] += slope as f32;
            }
        }
    }

    /// Updates prices by `step(price, load, slope, capacity)`; returns the residual.
    fn update(&mut self, problem: &Problem<'_>, step: impl Fn(f32, f32, f32, f32) -> f32) -> f64 {
        let mut residual: f32 = 0.0;
        for ((price, sum), &capacity) in self
            .prices
            .iter_mut()
            .zip(&self.sums)
            .zip(problem.capacities)
        {
            let (load, capacity) = (sum[0], capacity as f32);
            if load > 0.0 && capacity > 0.0 {
                let excess = load - capacity;
                if excess > 0.0 || *price > 0.0 {
                    residual = residual.max(excess.abs() / capacity);
                }
                *price = step(*price, load, sum[1], capacity).max(0.0);
            }
        }
        f64::from(residual)
    }

    fn publish(&mut self, rates: &mut [f64]) {
        for (out, &rate) in rates.iter_mut().zip(&self.rates) {
            *out = f64::from(rate);
        }
        for (out, &price) in self.public.iter_mut().zip(&self.prices) {
            *out = f64::from(price);
        }
    }

    fn warm_start(&mut self, prices: &[f64]) {
        // The zip leaves the padding's price, one past the end, at 0.
        self.public.copy_from_slice(prices);
        for (out, &price) in self.prices.iter_mut().zip(prices) {
            *out = price as f32;
        }
    }
}

fn update_log_rates<const N: usize>(
    flows: &[Packed<N>],
    prices: &[f32],
    sums: &mut [[f32; 2]],
    rates: &mut [f32],
) {
    for flow in flows {
        let price: f32 = flow.links.iter().map(|&l| prices[l as usize]).sum();
        // ∂x/∂q = −w/q² = −x/q, so the reciprocal serves rate and slope alike.
        let inverse = reciprocal(price.max(LEAST_PRICE));
        let free = flow.weight * inverse;
        let (rate, slope) = if free < flow.cap {
            (free, -free * inverse)
        } else {
            (flow.cap, 0.0)
        };
        rates[flow.flow as usize] = rate;
        // Padding adds to the sum of the link that does not exist, which no update reads.
        for &link in &flow.links {
            let sum = &mut sums[link as usize];
            sum[0] += rate;
            sum[1] += slope;
        }
    }
}

/// Single-precision version of [`Ned`](ratewright_allocator::num::Ned), Algorithm 1 of the paper.
#[derive(Clone, Debug)]
pub struct NedRt {
    gamma: f64,
    core: Core,
}

impl NedRt {
    /// An optimiser for `links` links with the step `gamma`. Prices start at 1.
    #[must_use]
    pub fn new(gamma: f64, links: usize) -> Self {
        Self {
            gamma,
            core: Core::new(links),
        }
    }

    /// Copies a problem's flows. Must be called after every change of them, before [`Self::step`].
    pub fn load(&mut self, problem: &Problem<'_>) {
        self.core.load(problem);
    }

    /// Runs one iteration over the flows of the last [`Self::load`]; returns the residual.
    pub fn step(&mut self, problem: &Problem<'_>) -> f64 {
        self.core.update_rates(problem);
        let gamma = self.gamma as f32;
        self.core.update(problem, |price, load, slope, capacity| {
            let excess = load - capacity;
            if slope < 0.0 {
                price - gamma * excess / slope
            } else if excess > 0.0 {
                price + gamma * excess / (capacity * capacity)
            } else {
                price * (1.0 - gamma).max(0.0)
            }
        })
    }

    /// Returns the rates of the last [`Self::step`], in Gbit/s.
    #[must_use]
    pub fn rates(&self) -> &[f32] {
        &self.core.rates
    }
}

/// Single-precision version of gradient projection, [`Gradient`](super::Gradient).
#[derive(Clone, Debug)]
pub struct GradientRt {
    gamma: f64,
    core: Core,
}

impl GradientRt {
    /// An optimiser for `links` links with the step `gamma`. Prices start at 1.
    #[must_use]
    pub fn new(gamma: f64, links: usize) -> Self {
        Self {
            gamma,
            core: Core::new(links),
        }
    }

    /// Copies a problem's flows. Must be called after every change of them, before [`Self::step`].
    pub fn load(&mut self, problem: &Problem<'_>) {
        self.core.load(problem);
    }

    /// Runs one iteration over the flows of the last [`Self::load`]; returns the residual.
    pub fn step(&mut self, problem: &Problem<'_>) -> f64 {
        self.core.update_rates(problem);
        let gamma = self.gamma as f32;
        self.core.update(problem, |price, load, _, capacity| {
            price + gamma * (load - capacity) / (capacity * capacity)
        })
    }
}

/// Implements [`Optimizer`] for a type with `load`, `step` and a [`Core`]: copies the flows in each
/// iteration.
macro_rules! optimizer {
    ($name:ident) => {
        impl Optimizer for $name {
            fn iterate(&mut self, problem: &Problem<'_>, rates: &mut [f64]) -> f64 {
                self.load(problem);
                let residual = self.step(problem);
                self.core.publish(rates);
                residual
            }

            fn prices(&self) -> &[f64] {
                &self.core.public
            }

            fn warm_start(&mut self, prices: &[f64]) {
                self.core.warm_start(prices);
            }

            fn reset(&mut self, links: usize) {
                self.core = Core::new(links);
            }
        }
    };
}

optimizer!(NedRt);
optimizer!(GradientRt);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reciprocal_is_within_its_bound() {
        let mut x = 1e-18_f32;
        while x < 1e18 {
            let error = (reciprocal(x) * x - 1.0).abs();
            assert!(error < 2e-5, "1/{x}: {error}");
            x *= 1.003;
        }
    }
}
