//! Price correction: prices that move when a flow starts or ends, before any iteration.
//!
//! Between two iterations a few flows start and end. An optimiser that learns of them by the next
//! sums G and H spends that iteration on rates which the new flows over-allocate: on a network of
//! 1,536 hosts, after 1 % of 12,288 flows were replaced, the 99th percentile of rate errors is 28
//! %. Yet each event's links already have what a correction needs: load y, slope H and elastic load
//! E of the last iteration, and the rate of the one flow that changes.
//!
//! For the dirty links, which are those on the paths of the events' flows, this module solves
//!
//! ```text
//! y'_l(p_l) + Σ x_s(p) = c_l      or  p_l = 0
//! ```
//!
//! where y' is the load of the remaining flows. It responds to a change of the link's own price as
//! one flow of their sum and elasticity would: y' = y₀ (q̄ / q̄₀)^(−E/y). The sum runs over the new
//! flows, which just started. Their rates follow from their path prices. A few sweeps over the new
//! flows suffice, because the sums of the remaining flows are known.
//!
//! Cost: O(path) per event and sweep. No step needs a flow's neighbours, so the method fits the
//! parallel engine as well as the reference.

use super::response::{Response, power, respond_at_cap, respond_freely};
use super::utility::UtilityKind;
use super::{LinkPath, RateLimit};

/// Sweeps over the new flows. The first responds to the change of the sums, the others to the new
/// flows' responses to each other's prices and their own.
pub(crate) const SWEEPS: u32 = 3;
/// Least price of a link after a correction, as a share of its price before.
pub(crate) const LARGEST_FALL: f64 = 1.0 / 32.0;
/// Largest factor by which the mean path price of a link grows in one sweep.
pub(crate) const LARGEST_GROWTH: f64 = 4.0;

/// Newest starts that are searched for a flow that ends.
const LOOK_BACK: usize = 16;
/// δ: share of the new flows' mean path price that a link without a price of its own counts as its
/// own, as in [`safeguarded`](super::safeguarded).
pub(crate) const SHIFT: f64 = 0.25;

/// A flow of an event: the view that [`Optimizer`](super::Optimizer) gets of it.
#[derive(Clone, Copy, Debug)]
pub struct FlowView<'a> {
    /// Links of its path.
    pub path: &'a [u32],
    /// Utility of its class.
    pub utility: &'a UtilityKind,
    /// Its weight times its class's.
    pub weight: f64,
    /// Upper bound of its rate.
    pub limit: RateLimit,
}

impl FlowView<'_> {
    fn response(&self, prices: &[f64]) -> Response {
        self.response_at(self.path.iter().map(|&l| prices[l as usize]).sum())
    }

    /// Response to a path price; zero for a flow that can get nothing.
    pub(crate) fn response_at(&self, price: f64) -> Response {
        if self.limit.cap <= 0.0 {
            Response::default()
        } else if price >= self.limit.saturation_price {
            respond_freely(self.utility, self.weight, price, self.limit.cap)
        } else {
            respond_at_cap(&self.limit, price)
        }
    }
}

/// A flow that started since the last iteration.
#[derive(Clone, Debug)]
struct Newcomer {
    path: LinkPath,
    utility: UtilityKind,
    weight: f64,
    limit: RateLimit,
}

/// A link on the path of a flow that started or ended since the last iteration.
#[derive(Clone, Copy, Debug)]
struct DirtyLink {
    link: u32,
    /// Response of the flows that remain, at the link price `at_price`.
    remaining: Response,
    at_price: f64,
    /// Response of the new flows in this sweep.
    newcomers: Response,
}

/// Corrects prices for the events since the last iteration.
#[derive(Clone, Debug, Default)]
pub(crate) struct PriceCorrection {
    newcomers: Vec<Newcomer>,
    dirty_links: Vec<DirtyLink>,
    /// Index into `dirty_links` by link, or [`NONE`].
    index: Vec<u32>,
}

const NONE: u32 = u32::MAX;

impl PriceCorrection {
    /// A correction without events, for `links` links.
    pub(crate) fn new(links: usize) -> Self {
        Self {
            index: vec![NONE; links],
            ..Self::default()
        }
    }

    /// Marks a link dirty and returns its entry; `sum` is its sum in the last iteration.
    fn mark_dirty(&mut self, link: u32, sum: Response, at_price: f64) -> &mut DirtyLink {
        let index = &mut self.index[link as usize];
        // The sum is taken once: earlier events may have subtracted from the entry already.
        if *index == NONE {
            *index = self.dirty_links.len() as u32;
            self.dirty_links.push(DirtyLink {
                link,
                remaining: sum,
                at_price,
                newcomers: Response::default(),
            });
        }
        &mut self.dirty_links[*index as usize]
    }

    /// Forgets the events, and leaves them to the iterations.
    pub(crate) fn forget(&mut self) {
        // O(dirty links): the index of a large network is not cleared for a few events.
        for dirty in self.dirty_links.drain(..) {
            self.index[dirty.link as usize] = NONE;
        }
        self.newcomers.clear();
    }

    /// Records the start of a flow. `sum_of` returns a link's sum of responses in the last
    /// iteration.
    pub(crate) fn start(
        &mut self,
        flow: &FlowView<'_>,
        prices: &[f64],
        sum_of: impl Fn(usize) -> Response,
    ) {
        for &link in flow.path {
            self.mark_dirty(link, sum_of(link as usize), prices[link as usize]);
        }
        self.newcomers.push(Newcomer {
            path: flow.path.iter().copied().collect(),
            utility: flow.utility.clone(),
            weight: flow.weight,
            limit: flow.limit,
        });
    }

    /// Records the end of a flow. `sum_of` returns a link's sum of responses in the last iteration.
    pub(crate) fn end(
        &mut self,
        flow: &FlowView<'_>,
        prices: &[f64],
        sum_of: impl Fn(usize) -> Response,
    ) {
        // A flow that starts and ends between two iterations was in no sum. If too many others
        // started after it to find it, its response is subtracted all the same; the next iteration
        // has exact sums.
        let same = |n: &Newcomer| {
            // The last link is the receiver's: it distinguishes most paths before the whole
            // comparison.
            n.path.last() == flow.path.last()
                && n.path[..] == *flow.path
                && n.weight == flow.weight
                && n.limit == flow.limit
        };
        let first = self.newcomers.len().saturating_sub(LOOK_BACK);
        if let Some(index) = self.newcomers[first..].iter().rposition(same) {
            self.newcomers.swap_remove(first + index);
            return;
        }
        let response = flow.response(prices);
        for &link in flow.path {
            self.mark_dirty(link, sum_of(link as usize), prices[link as usize])
                .remaining
                .subtract(response);
        }
    }

    /// Corrects the prices of the dirty links, and forgets the events. Returns the number of dirty
    /// links.
    pub(crate) fn correct(&mut self, capacities: &[f64], prices: &mut [f64]) -> usize {
        let links = self.dirty_links.len();
        if links == 0 {
            return 0;
        }
        for sweep in 0..SWEEPS {
            self.dirty_links
                .iter_mut()
                .for_each(|dirty| dirty.newcomers = Response::default());
            for newcomer in &self.newcomers {
                let view = FlowView {
                    path: &newcomer.path,
                    utility: &newcomer.utility,
                    weight: newcomer.weight,
                    limit: newcomer.limit,
                };
                let response = view.response(prices);
                for &link in &newcomer.path {
                    // Never NONE: `start` marked every link of a new flow's path.
                    let entry = self.index[link as usize] as usize;
                    self.dirty_links[entry].newcomers.add(response);
                }
            }
            // All responses come before all prices, so that the order of events does not matter.
            for dirty in &self.dirty_links {
                // Where flows only ended, one step is exact for log flows.
                if sweep == 0 || dirty.newcomers.rate > 0.0 {
                    let link = dirty.link as usize;
                    prices[link] = dirty.next_price(capacities[link], prices[link]);
                }
            }
        }
        self.forget();
        links
    }
}

impl DirtyLink {
    /// Response of the remaining flows at the link price `price`: y' of the module's text.
    fn remaining_at(&self, price: f64) -> Response {
        if price == self.at_price || !self.remaining.reacts() {
            return self.remaining;
        }
        let mean = self.remaining.elastic / self.remaining.neg_slope;
        // A path price above zero keeps the power finite, however far the link's own price falls.
        let moved = (mean + price - self.at_price).max(mean * LARGEST_FALL);
        let elasticity = self.remaining.elastic / self.remaining.rate;
        let factor = power(mean / moved, elasticity);
        let elastic = self.remaining.elastic * factor;
        Response {
            rate: self.remaining.rate * factor,
            neg_slope: elastic / moved,
            elastic,
        }
    }

    /// One step towards the price at which the link is exactly full.
    ///
    /// The remaining flows respond to this link alone. The new flows' response is shared with the
    /// other links of their paths, whose prices move too.
    fn next_price(&self, capacity: f64, price: f64) -> f64 {
        let mut sum = self.remaining_at(price);
        if self.newcomers.reacts() {
            let mean = self.newcomers.elastic / self.newcomers.neg_slope;
            // A larger slope makes a shorter step: the other links of the new flows' paths take
            // theirs.
            let shared = mean / (price + SHIFT * mean).min(mean);
            sum.add(Response {
                neg_slope: self.newcomers.neg_slope * shared,
                ..self.newcomers
            });
        } else {
            sum.add(self.newcomers);
        }
        // Without capacity no price fits; without a slope no price helps.
        if !sum.reacts() || capacity <= 0.0 {
            return price;
        }
        let mean = sum.elastic / sum.neg_slope;
        let fill = sum.rate / capacity;
        let exponent = sum.rate / sum.elastic;
        let factor = power(fill, exponent);
        let next = price + mean * (factor.min(LARGEST_GROWTH) - 1.0);
        next.max(price * LARGEST_FALL)
    }
}
