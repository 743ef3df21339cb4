//! Prices that answer events before the iteration, as those of
//! [`GuardedNed`](crate::num::GuardedNed) do; see [`arrivals`](crate::num::arrivals) for what is solved.
//!
//! Prices and sums do not change between two iterations, so an event only notes its flow and its links.
//! What the links have is fetched before the iteration, from all of them at once: the cores then wait for
//! many of these cache lines at a time. Each link that an event names is an entry of short lists, in
//! single precision like all of the engine, which the sweeps over newcomers and links walk.

use std::sync::RwLockReadGuard;

use super::ParallelEngine;
use super::flow_block::{CellState, End, FlowBlock, UNTOLD};
use super::flows::{Terms, knee};
use super::layout::{Layout, Place, copies_of};
use super::link_block::Sums;
use super::loose::LooseFlow;
use super::noted::{Noted, Places, Wants};
use super::view::{links_by_slot, slots_of};
use super::worker::{Shared, read, write};
use crate::engine::LinkPath;
use crate::num::arrivals::{LARGEST_FALL, LARGEST_GROWTH, SHIFT, SWEEPS};
use crate::num::response::power;
use crate::num::utility::{ClassTable, UtilityKind};
use crate::num::{Limit, path_capacity};

/// Beyond this many starts between two iterations the prices start far from where they belong
/// anyway, and the iterations find them faster than the starts' answers to each other do.
const MOST_NEWCOMERS: usize = 1 << 14;
/// So many ends are worked into the sums at once, so that the list of them stays short.
const MOST_LEAVERS: usize = 1 << 12;
const NONE: u32 = u32::MAX;

/// A link's sum of answers: load, −d(load)/d(price), and what its elastic load is beyond its load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sum {
    pub(super) load: f32,
    pub(super) reaction: f32,
    pub(super) surplus: f32,
}

impl Sum {
    fn add(&mut self, [load, reaction, surplus]: [f32; 3]) {
        self.load += load;
        self.reaction += reaction;
        self.surplus += surplus;
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            load: self.load + other.load,
            reaction: self.reaction + other.reaction,
            surplus: self.surplus + other.surplus,
        }
    }

    /// Takes another out. What rounding would leave below zero is zero.
    fn take(&mut self, other: Self) {
        self.load = (self.load - other.load).max(0.0);
        self.reaction = (self.reaction - other.reaction).max(0.0);
        self.surplus = (self.surplus - other.surplus).max(-self.load);
    }

    fn elastic(&self) -> f32 {
        (self.load + self.surplus).max(0.0)
    }

    fn reacts(&self) -> bool {
        self.elastic() > 0.0 && self.reaction > 0.0
    }
}

/// The links that events touch, each list by the order in which they were.
#[derive(Debug, Default)]
struct Touched {
    links: Vec<u32>,
    /// Up to here the lists below are filled.
    prices: Vec<f32>,
    /// The prices before.
    at: Vec<f32>,
    /// The answers of the flows that stay, at the prices before.
    stays: Vec<Sum>,
    /// The newcomers' answers in this sweep.
    new: Vec<Sum>,
}

/// The events since the last iteration.
pub(super) struct Answers {
    /// By link: where it is in the lists of [`Touched`], or [`NONE`].
    places: Vec<u32>,
    touched: Touched,
    /// Those of the touched links.
    capacities: Vec<f32>,
    newcomers: Noted,
    leavers: Noted,
    /// Flows that were told a rate may be among the newcomers.
    rerouted: bool,
    links_of: Vec<Vec<u32>>,
    /// There were too many events.
    overrun: bool,
}

impl Answers {
    pub(super) fn new(layout: &Layout) -> Self {
        Self {
            places: vec![NONE; layout.links()],
            touched: Touched::default(),
            capacities: Vec::new(),
            newcomers: Noted::default(),
            leavers: Noted::default(),
            rerouted: false,
            links_of: links_by_slot(layout),
            overrun: false,
        }
    }

    fn touch(&mut self, link: u32) -> u32 {
        let place = &mut self.places[link as usize];
        if *place == NONE {
            *place = self.touched.links.len() as u32;
            self.touched.links.push(link);
        }
        *place
    }

    /// A flow is about to leave its cell.
    pub(super) fn leave_cell(
        &mut self,
        layout: &Layout,
        block: &FlowBlock,
        ends: &[End; 2],
        state: &CellState,
    ) {
        if self.overrun || self.was_new(state.flow, state.told == UNTOLD) {
            return;
        }
        let mut places = Places::new();
        for (link_block, index) in slots_of(layout, block, ends) {
            let link = self.links_of[link_block][index];
            if link != NONE {
                places.push(self.touch(link));
            }
        }
        let (weight, knee) = (state.weight, state.knee);
        self.leavers
            .push(state.flow, places, Wants::Log { weight, knee });
    }

    /// A flow that no row holds is about to leave its path.
    pub(super) fn leave_links(&mut self, flow: &LooseFlow) {
        if self.overrun || self.was_new(flow.flow, flow.told == f64::from(UNTOLD)) {
            return;
        }
        let places = flow.links.iter().map(|&link| self.touch(link)).collect();
        let wants = Wants::Other {
            class: flow.class,
            weight: flow.weight,
            limit: flow.limit,
        };
        self.leavers.push(flow.flow, places, wants);
    }

    /// Forgets a flow that came since the last iteration: it was in no sum.
    fn was_new(&mut self, flow: u32, untold: bool) -> bool {
        (untold || self.rerouted) && self.newcomers.forget(flow)
    }

    fn forget(&mut self) {
        for &link in &self.touched.links {
            self.places[link as usize] = NONE;
        }
        self.touched.clear();
        self.newcomers.clear();
        self.leavers.clear();
        self.rerouted = false;
    }

    /// Fetches prices and sums of the links that were touched since the last time, and takes the flows
    /// that left out of the sums.
    fn take_leavers_out(&mut self, shared: &Shared, classes: &ClassTable) {
        self.touched.fetch(shared);
        let Touched { at, stays, .. } = &mut self.touched;
        self.leavers.answer(classes, at, |links, answer| {
            for &link in links {
                stays[link as usize].take(answer);
            }
        });
        self.leavers.clear();
    }

    /// Moves the prices of the touched links.
    fn sweep(&mut self, capacities: &[f64], classes: &ClassTable) {
        let Touched {
            prices,
            links,
            at,
            stays,
            new,
        } = &mut self.touched;
        let capacities = |link: &u32| capacities[*link as usize] as f32;
        self.capacities.clear();
        self.capacities.extend(links.iter().map(capacities));
        for sweep in 0..SWEEPS {
            new.fill(Sum::default());
            self.newcomers.answer(classes, prices, |links, answer| {
                for &link in links {
                    let sum = &mut new[link as usize];
                    *sum = sum.plus(answer);
                }
            });
            let lists = prices.iter_mut().zip(&*at).zip(&self.capacities);
            for (((price, &at), &capacity), (stays, new)) in lists.zip(stays.iter().zip(&*new)) {
                // Where flows only ended, one step is exact for log flows.
                if sweep == 0 || new.load > 0.0 {
                    *price = solved(*price, at, capacity, *stays, *new);
                }
            }
            if self.newcomers.len() == 0 {
                break;
            }
        }
    }
}

impl Touched {
    fn clear(&mut self) {
        self.links.clear();
        self.prices.clear();
        self.at.clear();
        self.stays.clear();
        self.new.clear();
    }

    fn fetch(&mut self, shared: &Shared) {
        let links: Vec<_> = shared.link_blocks.iter().map(read).collect();
        let sums: Vec<_> = shared.sums.iter().map(read).collect();
        for &link in &self.links[self.prices.len()..] {
            let place = shared.layout.places[link as usize];
            let price = links[place.link_block as usize].price(place.index as usize);
            self.prices.push(price);
            self.stays.push(sum_of(shared, &sums, place));
        }
        self.at.extend_from_slice(&self.prices[self.at.len()..]);
        self.new.resize(self.prices.len(), Sum::default());
    }
}

/// A link's answer in the last iteration, over all workers.
fn sum_of(shared: &Shared, sums: &[RwLockReadGuard<'_, Vec<Sums>>], place: Place) -> Sum {
    let mut sum = Sum::default();
    for worker in sums {
        sum.add(worker[place.link_block as usize].at(place.index as usize));
    }
    let copies = &shared.layout.shapes[place.link_block as usize].copies;
    if !copies.is_empty() {
        for copy in copies_of(copies, place.index) {
            for worker in sums {
                sum.add(worker[place.link_block as usize].at(copy as usize));
            }
        }
    }
    sum
}

/// The answer at `price` of the flows that stay, whose answer at `at` is `sum`.
fn moved(sum: Sum, at: f32, price: f32) -> Sum {
    if price == at || !sum.reacts() {
        return sum;
    }
    let elastic = sum.elastic();
    let mean = elastic / sum.reaction;
    let moved = (mean + price - at).max(mean * LARGEST_FALL as f32);
    let factor = powered(mean / moved, sum, false);
    Sum {
        load: sum.load * factor,
        reaction: elastic * factor / moved,
        surplus: sum.surplus * factor,
    }
}

/// A base to the power of a sum's elasticity, or of its inverse.
fn powered(base: f32, sum: Sum, inverse: bool) -> f32 {
    // Log flows.
    if sum.surplus == 0.0 {
        return base;
    }
    let elasticity = f64::from(sum.elastic()) / f64::from(sum.load);
    let exponent = if inverse {
        elasticity.recip()
    } else {
        elasticity
    };
    power(f64::from(base), exponent) as f32
}

/// One step towards the price at which the link is exactly full. The flows that stay answer this
/// link alone; the newcomers' answer is shared with the other links of their paths, which move too.
fn solved(price: f32, at: f32, capacity: f32, stays: Sum, new: Sum) -> f32 {
    let mut sum = moved(stays, at, price);
    let mut added = new;
    if new.reacts() {
        let mean = new.elastic() / new.reaction;
        added.reaction *= mean / (price + SHIFT as f32 * mean).min(mean);
    }
    sum = sum.plus(added);
    if !sum.reacts() || capacity <= 0.0 {
        return price;
    }
    let mean = sum.elastic() / sum.reaction;
    let factor = powered(sum.load / capacity, sum, true);
    let next = price + mean * (factor.min(LARGEST_GROWTH as f32) - 1.0);
    next.max(price * LARGEST_FALL as f32)
}

impl ParallelEngine {
    /// A flow is about to start, or to come back on another path.
    pub(super) fn answer_start(&mut self, flow: u32, links: &LinkPath, terms: &Terms) {
        let Some(answers) = self.answers.as_mut().filter(|answers| !answers.overrun) else {
            return;
        };
        if answers.leavers.len() >= MOST_LEAVERS {
            answers.take_leavers_out(&self.shared, &self.config.classes);
        }
        if answers.newcomers.len() >= MOST_NEWCOMERS {
            answers.forget();
            answers.overrun = true;
            return;
        }
        let classes = &self.config.classes;
        let capacity = path_capacity(links, &self.capacities);
        let is_log = matches!(classes.utility(terms.class), UtilityKind::Log);
        let wants = if is_log && terms.demand >= capacity {
            Wants::Log {
                weight: terms.weight as f32,
                knee: knee(terms.weight, capacity),
            }
        } else {
            let utility = classes.utility(terms.class);
            Wants::Other {
                class: terms.class,
                weight: terms.weight,
                limit: Limit::new(utility, terms.weight, terms.demand, capacity),
            }
        };
        let places = links.iter().map(|&link| answers.touch(link)).collect();
        answers.newcomers.push(flow, places, wants);
        // A flow that was told a rate before comes back.
        answers.rerouted |= terms.told != f64::from(UNTOLD);
    }

    /// A link has another capacity.
    pub(super) fn answer_capacity(&mut self, link: u32) {
        if let Some(answers) = self.answers.as_mut().filter(|answers| !answers.overrun) {
            answers.touch(link);
        }
    }

    /// Moves the prices of the links that events touched. Returns whether there were any events.
    pub(super) fn settle_answers(&mut self) -> bool {
        let Some(answers) = &mut self.answers else {
            return false;
        };
        if std::mem::take(&mut answers.overrun) {
            return true;
        }
        if answers.touched.links.is_empty() {
            return false;
        }
        let classes = &self.config.classes;
        answers.take_leavers_out(&self.shared, classes);
        answers.sweep(&self.capacities, classes);
        let mut blocks: Vec<_> = self.shared.link_blocks.iter().map(write).collect();
        for (&link, &price) in answers.touched.links.iter().zip(&answers.touched.prices) {
            let place = self.shared.layout.places[link as usize];
            blocks[place.link_block as usize].set_price(place.index as usize, price);
        }
        answers.forget();
        true
    }
}
