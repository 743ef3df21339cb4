//! Links that events make dirty, and the correction step of their prices.

use super::lanes::{LANES, Lanes};
use super::price_update::IDLE_SCALE;
use crate::num::price_correction::{LARGEST_FALL, LARGEST_GROWTH, SHIFT};
use crate::num::response::power;

/// Sum of flows' responses on a link: load, −d(load)/d(price), and elastic load beyond the load,
/// which is 0 for log flows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LinkResponse {
    pub(super) load: f32,
    pub(super) neg_slope: f32,
    pub(super) elastic_excess: f32,
}

/// Share of a sum that rounding may leave behind after rates are added and subtracted again.
const ROUNDING: f32 = 1.0 / 65_536.0;

/// Sixteen links, one per lane.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkVector {
    pub(super) price: Lanes,
    /// Prices of the last iteration.
    pub(super) base_price: Lanes,
    pub(super) capacity: Lanes,
    /// Response of the remaining flows at `base_price`.
    pub(super) remaining: LinkResponses,
    /// Response of the new flows in this sweep.
    pub(super) newcomers: LinkResponses,
    /// Loads by actual rates: those of the last iteration without the flows that left, and the new
    /// flows'.
    load: Lanes,
    /// Rounding error that `load` may hide.
    rounding: Lanes,
}

#[derive(Clone, Debug, Default)]
pub(super) struct LinkResponses {
    pub(super) load: Lanes,
    pub(super) neg_slope: Lanes,
    elastic_excess: Lanes,
}

/// Dirty links, in vectors of sixteen, numbered in the order in which they were marked.
#[derive(Debug, Default)]
pub(super) struct DirtyLinks {
    vectors: Vec<LinkVector>,
    links: usize,
    /// Some flow is no log flow, or is at its demand.
    has_elastic_excess: bool,
}

impl LinkResponse {
    fn elastic(&self) -> f32 {
        (self.load + self.elastic_excess).max(0.0)
    }

    fn reacts(&self) -> bool {
        self.elastic() > 0.0 && self.neg_slope > 0.0
    }
}

impl LinkResponses {
    fn at(&self, lane: usize) -> LinkResponse {
        LinkResponse {
            load: self.load.0[lane],
            neg_slope: self.neg_slope.0[lane],
            elastic_excess: self.elastic_excess.0[lane],
        }
    }
}

impl DirtyLinks {
    pub(super) fn len(&self) -> usize {
        self.links
    }

    pub(super) fn clear(&mut self) {
        self.vectors.clear();
        self.links = 0;
        self.has_elastic_excess = false;
    }

    /// Adds a link with its price, its capacity and its response in the last iteration.
    #[inline]
    pub(super) fn push(&mut self, price: f32, capacity: f32, sum: LinkResponse) {
        let lane = self.links % LANES;
        if lane == 0 {
            self.vectors.push(LinkVector::default());
        }
        let vector = &mut self.vectors[self.links / LANES];
        vector.price.0[lane] = price;
        vector.base_price.0[lane] = price;
        vector.capacity.0[lane] = capacity;
        vector.remaining.load.0[lane] = sum.load;
        vector.load.0[lane] = sum.load;
        vector.rounding.0[lane] = sum.load * ROUNDING;
        vector.remaining.neg_slope.0[lane] = sum.neg_slope;
        vector.remaining.elastic_excess.0[lane] = sum.elastic_excess;
        self.has_elastic_excess |= sum.elastic_excess != 0.0;
        self.links += 1;
    }

    pub(super) fn set_capacity(&mut self, link: usize, capacity: f32) {
        self.vectors[link / LANES].capacity.0[link % LANES] = capacity;
    }

    #[inline]
    pub(super) fn price(&self, link: u32) -> f32 {
        let link = link as usize;
        self.vectors[link / LANES].price.0[link % LANES]
    }

    /// Adds a rate to a link's load; a negative rate is subtracted.
    #[inline]
    pub(super) fn add_rate(&mut self, link: u32, rate: f32) {
        self.vectors[link as usize / LANES].load.0[link as usize % LANES] += rate;
    }

    /// F-NORM scale of a link: capacity over load.
    pub(super) fn norm_scale(&self, link: u32) -> f32 {
        let (vector, lane) = (&self.vectors[link as usize / LANES], link as usize % LANES);
        // Rounding may leave less than the true load, so its bound is added: scales err to the safe
        // side.
        let load = vector.load.0[lane].max(0.0) + vector.rounding.0[lane];
        if load > 0.0 {
            (vector.capacity.0[lane] / load).min(IDLE_SCALE)
        } else {
            IDLE_SCALE
        }
    }

    /// Subtracts a flow's response from that of the remaining flows. Rounding below zero counts as
    /// zero.
    #[inline]
    pub(super) fn remove_flow(&mut self, link: u32, response: LinkResponse) {
        let (vector, lane) = (link as usize / LANES, link as usize % LANES);
        let stays = &mut self.vectors[vector].remaining;
        let left = |list: &Lanes, taken: f32| (list.0[lane] - taken).max(0.0);
        stays.load.0[lane] = left(&stays.load, response.load);
        stays.neg_slope.0[lane] = left(&stays.neg_slope, response.neg_slope);
        if response.elastic_excess != 0.0 || stays.elastic_excess.0[lane] != 0.0 {
            let elastic_excess = stays.elastic_excess.0[lane] - response.elastic_excess;
            // Elastic load is at least 0, thus its excess at least −load.
            stays.elastic_excess.0[lane] = elastic_excess.max(-stays.load.0[lane]);
            self.has_elastic_excess = true;
        }
    }

    /// Clears the new flows' responses for the next sweep.
    pub(super) fn clear_newcomers(&mut self) {
        for vector in &mut self.vectors {
            vector.newcomers = LinkResponses::default();
        }
    }

    /// Adds a new flow's response.
    #[inline]
    pub(super) fn add_flow(&mut self, link: u32, response: LinkResponse) {
        let (vector, lane) = (link as usize / LANES, link as usize % LANES);
        let new = &mut self.vectors[vector].newcomers;
        new.load.0[lane] += response.load;
        new.neg_slope.0[lane] += response.neg_slope;
        if response.elastic_excess != 0.0 {
            new.elastic_excess.0[lane] += response.elastic_excess;
            self.has_elastic_excess = true;
        }
    }

    /// One step of all prices towards those at which links are exactly full. With `only_newcomers`
    /// it moves only links with new flows: where flows only left, one step is exact for log flows.
    /// `step_log` makes the step of links that have log flows alone, as [`LinkVector::step_log`].
    pub(super) fn step(
        &mut self,
        only_newcomers: bool,
        step_log: impl FnOnce(&mut [LinkVector], bool),
    ) {
        if self.has_elastic_excess {
            for vector in &mut self.vectors {
                vector.step_each(only_newcomers);
            }
        } else {
            step_log(&mut self.vectors, only_newcomers);
        }
    }
}

#[inline(always)]
fn select(condition: bool, yes: f32, no: f32) -> f32 {
    if condition { yes } else { no }
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    select(a > b, a, b)
}

#[inline(always)]
fn smaller(a: f32, b: f32) -> f32 {
    select(a < b, a, b)
}

impl LinkVector {
    /// [`newton_step`] for log flows, without branches.
    #[inline(always)]
    pub(super) fn step_log(&mut self, only_newcomers: bool) {
        for i in 0..LANES {
            let (price, capacity) = (self.price.0[i], self.capacity.0[i]);
            let (load, neg_slope) = (self.remaining.load.0[i], self.remaining.neg_slope.0[i]);
            let (new, new_neg_slope) = (self.newcomers.load.0[i], self.newcomers.neg_slope.0[i]);
            // A log flow with mean price m demands in proportion to 1/m, so the load scales as m /
            // shifted.
            let reacts = (load > 0.0) & (neg_slope > 0.0);
            let mean = select(reacts, load, 1.0) / select(reacts, neg_slope, 1.0);
            let shifted = larger(
                mean + price - self.base_price.0[i],
                mean * LARGEST_FALL as f32,
            );
            let inverse = shifted.recip();
            let stays = load * mean * inverse;
            // New flows' other links move too: the smaller this link's share of their path prices,
            // the steeper their response is taken to be, and the shorter the step.
            let joins = (new > 0.0) & (new_neg_slope > 0.0);
            let new_mean = select(joins, new, 1.0) / select(joins, new_neg_slope, 1.0);
            let felt = smaller(price + SHIFT as f32 * new_mean, new_mean);
            let sum = stays + new;
            let neg_slope = stays * inverse + new / felt;
            let solvable = (sum > 0.0) & (neg_slope > 0.0) & (capacity > 0.0);
            let mean = select(solvable, sum, 1.0) / select(solvable, neg_slope, 1.0);
            let fill = sum / select(solvable, capacity, 1.0);
            let next = price + mean * (smaller(fill, LARGEST_GROWTH as f32) - 1.0);
            let next = larger(next, price * LARGEST_FALL as f32);
            let moves = solvable & (!only_newcomers | (new > 0.0));
            self.price.0[i] = select(moves, next, price);
        }
    }

    fn step_each(&mut self, only_newcomers: bool) {
        for i in 0..LANES {
            let new = self.newcomers.at(i);
            if !only_newcomers || new.load > 0.0 {
                let (price, at) = (self.price.0[i], self.base_price.0[i]);
                self.price.0[i] =
                    newton_step(price, at, self.capacity.0[i], self.remaining.at(i), new);
            }
        }
    }
}

/// Response at `price` of the remaining flows, whose response at `at` is `sum`.
fn shifted(sum: LinkResponse, at: f32, price: f32) -> LinkResponse {
    if price == at || !sum.reacts() {
        return sum;
    }
    let elastic = sum.elastic();
    let mean = elastic / sum.neg_slope;
    let shifted = (mean + price - at).max(mean * LARGEST_FALL as f32);
    let elasticity = f64::from(elastic) / f64::from(sum.load);
    let factor = power(f64::from(mean / shifted), elasticity) as f32;
    LinkResponse {
        load: sum.load * factor,
        neg_slope: elastic * factor / shifted,
        elastic_excess: sum.elastic_excess * factor,
    }
}

/// One step towards the price at which the link is exactly full. The remaining flows respond to
/// this link alone; the new flows' response is shared with their paths' other links, which move
/// too.
fn newton_step(price: f32, at: f32, capacity: f32, stays: LinkResponse, new: LinkResponse) -> f32 {
    let stays = shifted(stays, at, price);
    let mut new_neg_slope = new.neg_slope;
    if new.reacts() {
        let mean = new.elastic() / new.neg_slope;
        new_neg_slope *= mean / (price + SHIFT as f32 * mean).min(mean);
    }
    let sum = LinkResponse {
        load: stays.load + new.load,
        neg_slope: stays.neg_slope + new_neg_slope,
        elastic_excess: stays.elastic_excess + new.elastic_excess,
    };
    if !sum.reacts() || capacity <= 0.0 {
        return price;
    }
    let mean = sum.elastic() / sum.neg_slope;
    let exponent = f64::from(sum.load) / f64::from(sum.elastic());
    let factor = power(f64::from(sum.load / capacity), exponent) as f32;
    let next = price + mean * (factor.min(LARGEST_GROWTH as f32) - 1.0);
    next.max(price * LARGEST_FALL as f32)
}

#[cfg(test)]
mod tests {
    use super::super::kernels::{Kernels, Simd};
    use super::*;

    /// Both step functions agree for log flows on every instruction set, whatever a link has: no
    /// flows, remaining ones, new ones, no capacity.
    #[test]
    fn steps_of_log_flows_are_those_of_all_flows() {
        let values = [0.0f32, 0.25, 3.0, 40.0];
        for price in [0.0f32, 0.5, 2.0] {
            let mut links = DirtyLinks::default();
            for (i, load) in values.into_iter().enumerate() {
                for neg_slope in [load / (price + 0.5), load / (price + 4.0)] {
                    for (j, new) in values.into_iter().enumerate() {
                        let link = links.len();
                        let elastic_excess = 0.0;
                        links.push(
                            price,
                            [10.0, 25.0, 0.0][(i + j) % 3],
                            LinkResponse {
                                load,
                                neg_slope,
                                elastic_excess,
                            },
                        );
                        links.add_flow(
                            link as u32,
                            LinkResponse {
                                load: new,
                                neg_slope: new / (price + 1.0),
                                elastic_excess,
                            },
                        );
                    }
                }
            }
            for simd in Simd::available() {
                let mut links = DirtyLinks {
                    vectors: links.vectors.clone(),
                    ..DirtyLinks::default()
                };
                for only_newcomers in [false, true, true] {
                    let mut each = links.vectors.clone();
                    for vector in &mut each {
                        vector.step_each(only_newcomers);
                    }
                    links.step(only_newcomers, |vectors, only_newcomers| {
                        Kernels::new(simd).step_dirty_links(vectors, only_newcomers);
                    });
                    for (log, each) in links.vectors.iter().zip(&each) {
                        for (log, each) in log.price.0.iter().zip(&each.price.0) {
                            let off = (log - each).abs();
                            assert!(off <= 1e-4 * each.abs(), "{log} for {each}, {simd:?}");
                        }
                    }
                }
            }
        }
    }
}
