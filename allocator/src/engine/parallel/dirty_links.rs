//! The links that events touch, and the step of their prices.

use super::kernels::Kernels;
use super::lanes::{LANES, Lanes};
use super::price_update::IDLE_SCALE;
use crate::num::price_correction::{LARGEST_FALL, LARGEST_GROWTH, SHIFT};
use crate::num::response::power;

/// A link's sum of answers: load, −d(load)/d(price), and what its elastic load is beyond its load, which
/// is nothing for log flows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LinkResponse {
    pub(super) load: f32,
    pub(super) reaction: f32,
    pub(super) surplus: f32,
}

/// Rates that are added to a sum and taken out again leave less than this share of the sum behind.
const ROUNDING: f32 = 1.0 / 65_536.0;

/// Sixteen links.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkVector {
    pub(super) price: Lanes,
    /// The price before.
    pub(super) at: Lanes,
    pub(super) capacity: Lanes,
    /// The answer of the flows that stay, at the price before.
    pub(super) stays: LinkResponses,
    /// The newcomers' answer in this sweep.
    pub(super) new: LinkResponses,
    /// The rates that the flows have that are there now: those of the last iteration, and the newcomers'.
    load: Lanes,
    /// What rounding may have left out of that.
    rounding: Lanes,
}

#[derive(Clone, Debug, Default)]
pub(super) struct LinkResponses {
    pub(super) load: Lanes,
    pub(super) reaction: Lanes,
    surplus: Lanes,
}

/// Links, numbered as they come.
#[derive(Debug, Default)]
pub(super) struct DirtyLinks {
    groups: Vec<LinkVector>,
    links: usize,
    /// Not all flows are log flows.
    has_surplus: bool,
}

impl LinkResponse {
    fn elastic(&self) -> f32 {
        (self.load + self.surplus).max(0.0)
    }

    fn reacts(&self) -> bool {
        self.elastic() > 0.0 && self.reaction > 0.0
    }
}

impl LinkResponses {
    fn at(&self, lane: usize) -> LinkResponse {
        LinkResponse {
            load: self.load.0[lane],
            reaction: self.reaction.0[lane],
            surplus: self.surplus.0[lane],
        }
    }
}

impl DirtyLinks {
    pub(super) fn len(&self) -> usize {
        self.links
    }

    pub(super) fn clear(&mut self) {
        self.groups.clear();
        self.links = 0;
        self.has_surplus = false;
    }

    /// Another link, with its price, its capacity and its sum in the last iteration.
    #[inline]
    pub(super) fn push(&mut self, price: f32, capacity: f32, sum: LinkResponse) {
        let lane = self.links % LANES;
        if lane == 0 {
            self.groups.push(LinkVector::default());
        }
        let group = &mut self.groups[self.links / LANES];
        group.price.0[lane] = price;
        group.at.0[lane] = price;
        group.capacity.0[lane] = capacity;
        group.stays.load.0[lane] = sum.load;
        group.load.0[lane] = sum.load;
        group.rounding.0[lane] = sum.load * ROUNDING;
        group.stays.reaction.0[lane] = sum.reaction;
        group.stays.surplus.0[lane] = sum.surplus;
        self.has_surplus |= sum.surplus != 0.0;
        self.links += 1;
    }

    pub(super) fn set_capacity(&mut self, link: usize, capacity: f32) {
        self.groups[link / LANES].capacity.0[link % LANES] = capacity;
    }

    #[inline]
    pub(super) fn price(&self, link: u32) -> f32 {
        let link = link as usize;
        self.groups[link / LANES].price.0[link % LANES]
    }

    /// Adds a rate to what the flows have, or takes one away.
    #[inline]
    pub(super) fn add_rate(&mut self, link: u32, rate: f32) {
        self.groups[link as usize / LANES].load.0[link as usize % LANES] += rate;
    }

    /// The factor by which rates have to be cut for a link to hold them, or could be raised.
    pub(super) fn room(&self, link: u32) -> f32 {
        let (group, lane) = (&self.groups[link as usize / LANES], link as usize % LANES);
        let load = group.load.0[lane].max(0.0) + group.rounding.0[lane];
        if load > 0.0 {
            (group.capacity.0[lane] / load).min(IDLE_SCALE)
        } else {
            IDLE_SCALE
        }
    }

    /// Takes a flow's answer out of those that stay. What rounding would leave below zero is zero.
    #[inline]
    pub(super) fn leave(&mut self, link: u32, answer: LinkResponse) {
        let (group, lane) = (link as usize / LANES, link as usize % LANES);
        let stays = &mut self.groups[group].stays;
        let left = |list: &Lanes, taken: f32| (list.0[lane] - taken).max(0.0);
        stays.load.0[lane] = left(&stays.load, answer.load);
        stays.reaction.0[lane] = left(&stays.reaction, answer.reaction);
        if answer.surplus != 0.0 || stays.surplus.0[lane] != 0.0 {
            let surplus = stays.surplus.0[lane] - answer.surplus;
            stays.surplus.0[lane] = surplus.max(-stays.load.0[lane]);
            self.has_surplus = true;
        }
    }

    /// Another sweep begins.
    pub(super) fn forget_newcomers(&mut self) {
        for group in &mut self.groups {
            group.new = LinkResponses::default();
        }
    }

    /// Adds a newcomer's answer.
    #[inline]
    pub(super) fn join(&mut self, link: u32, answer: LinkResponse) {
        let (group, lane) = (link as usize / LANES, link as usize % LANES);
        let new = &mut self.groups[group].new;
        new.load.0[lane] += answer.load;
        new.reaction.0[lane] += answer.reaction;
        if answer.surplus != 0.0 {
            new.surplus.0[lane] += answer.surplus;
            self.has_surplus = true;
        }
    }

    /// One step of all prices towards those at which the links are exactly full; or only of those of links
    /// with newcomers: where flows only ended, one step is exact for log flows.
    pub(super) fn step(&mut self, kernels: Kernels, only_joined: bool) {
        if self.has_surplus {
            for group in &mut self.groups {
                group.step_each(only_joined);
            }
        } else {
            kernels.step_touched(&mut self.groups, only_joined);
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
    /// What [`solved`] does, for log flows, without branches.
    #[inline(always)]
    pub(super) fn step_log(&mut self, only_joined: bool) {
        for i in 0..LANES {
            let (price, capacity) = (self.price.0[i], self.capacity.0[i]);
            let (load, reaction) = (self.stays.load.0[i], self.stays.reaction.0[i]);
            let (new, new_reaction) = (self.new.load.0[i], self.new.reaction.0[i]);
            let reacts = (load > 0.0) & (reaction > 0.0);
            let mean = select(reacts, load, 1.0) / select(reacts, reaction, 1.0);
            let moved = larger(mean + price - self.at.0[i], mean * LARGEST_FALL as f32);
            let inverse = moved.recip();
            let stays = load * mean * inverse;
            let joins = (new > 0.0) & (new_reaction > 0.0);
            let new_mean = select(joins, new, 1.0) / select(joins, new_reaction, 1.0);
            let felt = smaller(price + SHIFT as f32 * new_mean, new_mean);
            let sum = stays + new;
            let reaction = stays * inverse + new / felt;
            let solvable = (sum > 0.0) & (reaction > 0.0) & (capacity > 0.0);
            let mean = select(solvable, sum, 1.0) / select(solvable, reaction, 1.0);
            let fill = sum / select(solvable, capacity, 1.0);
            let next = price + mean * (smaller(fill, LARGEST_GROWTH as f32) - 1.0);
            let next = larger(next, price * LARGEST_FALL as f32);
            let moves = solvable & (!only_joined | (new > 0.0));
            self.price.0[i] = select(moves, next, price);
        }
    }

    fn step_each(&mut self, only_joined: bool) {
        for i in 0..LANES {
            let new = self.new.at(i);
            if !only_joined || new.load > 0.0 {
                let (price, at) = (self.price.0[i], self.at.0[i]);
                self.price.0[i] = solved(price, at, self.capacity.0[i], self.stays.at(i), new);
            }
        }
    }
}

/// The answer at `price` of the flows that stay, whose answer at `at` is `sum`.
fn moved(sum: LinkResponse, at: f32, price: f32) -> LinkResponse {
    if price == at || !sum.reacts() {
        return sum;
    }
    let elastic = sum.elastic();
    let mean = elastic / sum.reaction;
    let moved = (mean + price - at).max(mean * LARGEST_FALL as f32);
    let elasticity = f64::from(elastic) / f64::from(sum.load);
    let factor = power(f64::from(mean / moved), elasticity) as f32;
    LinkResponse {
        load: sum.load * factor,
        reaction: elastic * factor / moved,
        surplus: sum.surplus * factor,
    }
}

/// One step towards the price at which the link is exactly full. The flows that stay answer this
/// link alone; the newcomers' answer is shared with the other links of their paths, which move too.
fn solved(price: f32, at: f32, capacity: f32, stays: LinkResponse, new: LinkResponse) -> f32 {
    let stays = moved(stays, at, price);
    let mut new_reaction = new.reaction;
    if new.reacts() {
        let mean = new.elastic() / new.reaction;
        new_reaction *= mean / (price + SHIFT as f32 * mean).min(mean);
    }
    let sum = LinkResponse {
        load: stays.load + new.load,
        reaction: stays.reaction + new_reaction,
        surplus: stays.surplus + new.surplus,
    };
    if !sum.reacts() || capacity <= 0.0 {
        return price;
    }
    let mean = sum.elastic() / sum.reaction;
    let exponent = f64::from(sum.load) / f64::from(sum.elastic());
    let factor = power(f64::from(sum.load / capacity), exponent) as f32;
    let next = price + mean * (factor.min(LARGEST_GROWTH as f32) - 1.0);
    next.max(price * LARGEST_FALL as f32)
}

#[cfg(test)]
mod tests {
    use super::super::kernels::Simd;
    use super::*;

    /// Both ways to step are one step for log flows, whatever the instruction set and whatever a link has: no
    /// flows, some that stay, some that joined, no capacity.
    #[test]
    fn steps_of_log_flows_are_those_of_all_flows() {
        let values = [0.0f32, 0.25, 3.0, 40.0];
        for price in [0.0f32, 0.5, 2.0] {
            let mut links = DirtyLinks::default();
            for (i, load) in values.into_iter().enumerate() {
                for reaction in [load / (price + 0.5), load / (price + 4.0)] {
                    for (j, new) in values.into_iter().enumerate() {
                        let link = links.len();
                        let surplus = 0.0;
                        links.push(
                            price,
                            [10.0, 25.0, 0.0][(i + j) % 3],
                            LinkResponse {
                                load,
                                reaction,
                                surplus,
                            },
                        );
                        links.join(
                            link as u32,
                            LinkResponse {
                                load: new,
                                reaction: new / (price + 1.0),
                                surplus,
                            },
                        );
                    }
                }
            }
            for simd in Simd::available() {
                let mut links = DirtyLinks {
                    groups: links.groups.clone(),
                    ..DirtyLinks::default()
                };
                for only_joined in [false, true, true] {
                    let mut each = links.groups.clone();
                    for group in &mut each {
                        group.step_each(only_joined);
                    }
                    links.step(Kernels::new(simd), only_joined);
                    for (log, each) in links.groups.iter().zip(&each) {
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
