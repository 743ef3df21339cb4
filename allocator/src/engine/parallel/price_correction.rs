//! Prices that answer events before the iteration, as those of
//! [`SafeguardedNed`](crate::num::SafeguardedNed) do; see [`price_correction`](crate::num::price_correction) for what is solved.
//!
//! Prices and sums do not change between two iterations, so an event only notes its flow and its links.
//! What the links have is fetched before the iteration, from all of them at once: the cores then wait for
//! many of these cache lines at a time. Each link that an event names is an entry of short lists, in
//! single precision like all of the engine, which the sweeps over newcomers and links walk.

use std::sync::RwLockReadGuard;

use super::ParallelEngine;
use super::cell::{CellFlow, NEVER_NOTIFIED, SaturationPrice};
use super::directory::{FlowDirectory, Location};
use super::dirty_links::{DirtyLinks, LinkResponse};
use super::flow_delta::{FlowDelta, GeneralCurve, PathLinks};
use super::flows::Terms;
use super::lanes::TABLE_SLOTS;
use super::layout::{FlowBlockShape, Layout, LinkBlockShape, LinkPlace, copies_of, slots_of};
use super::link_block::LinkBlockCopy;
use super::price_update::MOST_PRICE;
use super::scalar_flows::ScalarFlow;
use super::sync::{lock, read, write};
use super::worker::ParallelState;
use crate::engine::LinkPath;
use crate::num::price_correction::SWEEPS;
use crate::num::utility::{ClassTable, UtilityKind};
use crate::num::{RateLimit, path_capacity};

/// Beyond this many starts between two iterations the prices start far from where they belong
/// anyway, and the iterations find them faster than the starts' answers to each other do.
const MOST_NEWCOMERS: usize = 1 << 14;
/// So many ends are worked into the sums at once, so that the list of them stays short.
const MOST_LEAVERS: usize = 1 << 12;
const NONE: u32 = u32::MAX;

/// Which flow starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartKind {
    /// One that was not there before.
    Newcomer,
    /// One that was, with another demand or on another path; if `tell`, it is told its rate like a newcomer.
    Known {
        /// See above.
        tell: bool,
    },
}

/// What answered the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Corrected {
    /// Nothing did, or there were none.
    Nothing,
    /// The prices.
    Prices,
    /// Prices, the newcomers' rates, and how far all rates of touched links have to be cut to fit.
    Rates,
}

impl Corrected {
    /// What has answered after this did, and `before` did.
    pub(super) fn and(self, before: Option<Self>) -> Self {
        match (self, before.unwrap_or(Self::Nothing)) {
            (one, Self::Nothing) | (Self::Nothing, one) => one,
            (Self::Rates, Self::Rates) => Self::Rates,
            _ => Self::Prices,
        }
    }
}

/// The links that events touch.
struct DirtyLinkIndex {
    /// By LinkBlock: where its slots begin among those of all.
    firsts: Vec<u32>,
    /// A link's code is its LinkBlock, and its slot in so many bits.
    slot_bits: u32,
    /// By slot, through all LinkBlocks: where its link is in `codes`, or [`NONE`].
    places: Vec<u32>,
    /// In the order in which they were touched.
    codes: Vec<u32>,
}

impl DirtyLinkIndex {
    fn new(layout: &Layout) -> Self {
        let slots_of = |shape: &LinkBlockShape| (shape.tables * TABLE_SLOTS) as u32;
        let most = layout.shapes.iter().map(slots_of).max().unwrap_or(0);
        let mut slots = 0;
        let firsts = layout.shapes.iter().map(|shape| {
            let first = slots;
            slots += slots_of(shape);
            first
        });
        Self {
            firsts: firsts.collect(),
            // A layout's places have no more than 32 bits for both.
            slot_bits: u32::BITS - most.leading_zeros(),
            places: vec![NONE; slots as usize],
            codes: Vec::new(),
        }
    }

    /// The code of the link at a slot of a LinkBlock.
    #[inline]
    fn code(&self, link_block: usize, slot: usize) -> u32 {
        (link_block as u32) << self.slot_bits | slot as u32
    }

    #[inline]
    fn code_at(&self, place: LinkPlace) -> u32 {
        self.code(usize::from(place.link_block), place.index as usize)
    }

    /// LinkBlock and slot.
    #[inline]
    fn split(&self, code: u32) -> (usize, usize) {
        let slot = code & ((1 << self.slot_bits) - 1);
        ((code >> self.slot_bits) as usize, slot as usize)
    }

    /// Where a link is among those that events touch, which it is from now on.
    #[inline]
    fn touch(&mut self, code: u32) -> u32 {
        let (link_block, slot) = self.split(code);
        let place = &mut self.places[self.firsts[link_block] as usize + slot];
        if *place == NONE {
            *place = self.codes.len() as u32;
            self.codes.push(code);
        }
        *place
    }

    fn clear(&mut self) {
        for &code in &self.codes {
            let (link_block, slot) = self.split(code);
            self.places[self.firsts[link_block] as usize + slot] = NONE;
        }
        self.codes.clear();
    }
}

/// The events since the last iteration.
pub(super) struct PriceCorrection {
    links: DirtyLinkIndex,
    /// What they have, as far as it was fetched.
    touched: DirtyLinks,
    newcomers: FlowDelta,
    leavers: FlowDelta,
    /// There were too many events.
    overrun: bool,
}

impl PriceCorrection {
    pub(super) fn new(layout: &Layout) -> Self {
        Self {
            links: DirtyLinkIndex::new(layout),
            touched: DirtyLinks::default(),
            newcomers: FlowDelta::default(),
            leavers: FlowDelta::default(),
            overrun: false,
        }
    }

    /// Bytes of the lists by slot and LinkBlock.
    pub(super) fn bytes(&self) -> usize {
        (self.links.places.capacity() + self.links.firsts.capacity()) * size_of::<u32>()
    }

    /// A flow is about to leave its cell.
    pub(super) fn leave_cell(
        &mut self,
        layout: &Layout,
        shape: &FlowBlockShape,
        leaves: &CellFlow,
    ) {
        let state = &leaves.state;
        if !self.overrun && !self.was_new(state.flow, state.notified == NEVER_NOTIFIED) {
            self.left(layout, shape, leaves);
        }
    }

    /// A flow has left its cell that was there in the last iteration.
    pub(super) fn left(&mut self, layout: &Layout, shape: &FlowBlockShape, left: &CellFlow) {
        if self.overrun {
            return;
        }
        let CellFlow { ends, state } = left;
        let mut places = PathLinks::new();
        for (link_block, index) in slots_of(layout, shape, ends) {
            let index = layout.shapes[link_block].original(index);
            places.push(self.links.code(link_block, index));
        }
        self.leavers
            .push(state.flow, places, state.weight, state.saturation_price);
        self.leavers.had(state.rate);
    }

    /// A flow that no row holds is about to leave its path.
    pub(super) fn leave_links(&mut self, layout: &Layout, flow: &ScalarFlow) {
        if self.overrun || self.was_new(flow.flow, flow.notified == f64::from(NEVER_NOTIFIED)) {
            return;
        }
        let links = flow.links.iter();
        let places = links.map(|&link| self.links.code_at(layout.place(link)));
        let places = places.collect();
        let other = GeneralCurve {
            class: flow.class,
            weight: flow.weight,
            limit: flow.limit,
        };
        self.leavers.push_other(flow.flow, places, other);
        self.leavers.had(flow.rate as f32);
    }

    /// A flow that was about to start has ended.
    pub(super) fn never_came(&mut self, flow: u32) {
        self.newcomers.forget(flow);
    }

    /// Forgets a flow that was there before and came back in another way since the last iteration: it has been noted
    /// as one that left. Returns whether there was one.
    pub(super) fn forget_known(&mut self, flow: u32) -> bool {
        self.newcomers.forget_known(flow)
    }

    /// Forgets a flow that came since the last iteration: it was in no sum.
    fn was_new(&mut self, flow: u32, untold: bool) -> bool {
        if untold {
            self.newcomers.forget(flow)
        } else {
            self.newcomers.forget_known(flow)
        }
    }

    fn forget(&mut self) {
        self.links.clear();
        self.touched.clear();
        self.newcomers.clear();
        self.leavers.clear();
    }

    fn is_empty(&self) -> bool {
        self.links.codes.is_empty() && self.newcomers.len() == 0 && self.leavers.len() == 0
    }

    /// Gives the room of the lists of events back, after so many that it is not needed again soon.
    fn shrink(&mut self) {
        self.links.codes = Vec::new();
        self.touched = DirtyLinks::default();
        self.newcomers = FlowDelta::default();
        self.leavers = FlowDelta::default();
    }

    /// Fetches what the links have that were touched since the last time.
    fn fetch(&mut self, shared: &ParallelState) {
        let link_blocks: Vec<_> = shared.link_blocks.iter().map(read).collect();
        let sums: Vec<_> = shared.sums.iter().map(read).collect();
        for &code in &self.links.codes[self.touched.len()..] {
            let (link_block, slot) = self.links.split(code);
            let links = &link_blocks[link_block];
            let sum = sum_of(shared, &sums, link_block, slot);
            self.touched
                .push(links.price(slot), links.capacity(slot), sum);
        }
    }

    /// Takes the flows that left out of the sums.
    fn take_leavers_out(&mut self, shared: &ParallelState, classes: &ClassTable) {
        self.leavers.find_places(|code| self.links.touch(code));
        self.fetch(shared);
        for ((links, wants), &rate) in self.leavers.iter().zip(self.leavers.rates()) {
            let price = links.iter().map(|&link| self.touched.price(link)).sum();
            let answer = self.leavers.answer(wants, classes, price);
            for &link in links {
                self.touched.leave(link, answer);
                self.touched.add_rate(link, -rate);
            }
        }
        self.leavers.clear();
    }

    /// Finds the rates that the prices suggest for newcomers, and adds these to the links' loads.
    fn find_rates(&mut self, classes: &ClassTable) {
        for index in 0..self.newcomers.len() {
            let (links, wants) = self.newcomers.at(index);
            let price = links.iter().map(|&link| self.touched.price(link)).sum();
            let rate = self.newcomers.answer(wants, classes, price).load;
            for &link in links {
                self.touched.add_rate(link, rate);
            }
            self.newcomers.had(rate);
        }
    }

    /// Gives newcomers their rates.
    fn deliver_first_rates(&self, shared: &ParallelState, directory: &FlowDirectory) {
        let newcomers = self.newcomers.flows().iter().zip(self.newcomers.rates());
        for (&flow, &rate) in newcomers {
            // Where the flow has gone again unnoticed, its place may be another one's.
            match directory.location(flow) {
                Location::Cell { block, cell } => {
                    lock(&shared.batches[usize::from(block)]).queue_first_rate(cell, flow, rate);
                }
                Location::Scalar { worker, index } => {
                    let mut list = lock(&shared.loose[usize::from(worker)]);
                    let of_home = list.flows.get_mut(index as usize);
                    if let Some(own) = of_home.filter(|other| other.flow == flow) {
                        own.rate = f64::from(rate);
                    }
                }
            }
        }
    }

    /// Newcomers with their rates, cut to what the links have room for once all flows answer the prices.
    fn first_rates(&self) -> impl Iterator<Item = (u32, f32)> + '_ {
        let flows = self.newcomers.flows().iter().zip(self.newcomers.rates());
        flows
            .zip(self.newcomers.iter())
            .filter(|((flow, _), _)| self.newcomers.is_told(**flow))
            .map(|((&flow, &rate), (links, _))| {
                let rooms = links.iter().map(|&link| self.touched.room(link));
                (flow, rate * rooms.fold(1.0, f32::min))
            })
    }

    /// Moves the prices of the touched links.
    fn sweep(&mut self, shared: &ParallelState, classes: &ClassTable) {
        self.newcomers.find_places(|code| self.links.touch(code));
        self.fetch(shared);
        for sweep in 0..SWEEPS {
            if sweep > 0 && self.newcomers.len() == 0 {
                break;
            }
            self.touched.forget_newcomers();
            for (links, wants) in self.newcomers.iter() {
                let price = links.iter().map(|&link| self.touched.price(link)).sum();
                let answer = self.newcomers.answer(wants, classes, price);
                for &link in links {
                    self.touched.join(link, answer);
                }
            }
            self.touched.step(shared.kernels, sweep > 0);
        }
    }
}

/// A link's answer in the last iteration, over all workers.
fn sum_of(
    shared: &ParallelState,
    sums: &[RwLockReadGuard<'_, Vec<LinkBlockCopy>>],
    link_block: usize,
    slot: usize,
) -> LinkResponse {
    let mut sum = LinkResponse::default();
    let mut add = |slot: usize| {
        for worker in sums {
            let [load, reaction, elastic] = worker[link_block].at(slot);
            sum.load += load;
            sum.reaction += reaction;
            sum.surplus += elastic - load;
        }
    };
    add(slot);
    let copies = &shared.layout.shapes[link_block].copies;
    if !copies.is_empty() {
        copies_of(copies, slot as u32).for_each(|copy| add(copy as usize));
    }
    sum
}

impl ParallelEngine {
    /// A flow is about to start, or to come back in another way.
    pub(super) fn answer_start(
        &mut self,
        flow: u32,
        links: &LinkPath,
        terms: &Terms,
        start: StartKind,
    ) {
        let Some(answers) = self.answers.as_mut().filter(|answers| !answers.overrun) else {
            return;
        };
        if answers.leavers.len() >= MOST_LEAVERS {
            answers.take_leavers_out(&self.shared, &self.config.classes);
        }
        if answers.newcomers.len() >= MOST_NEWCOMERS {
            answers.forget();
            answers.shrink();
            answers.overrun = true;
            return;
        }
        let classes = &self.config.classes;
        let capacity = path_capacity(links, &self.capacities);
        let layout = &self.shared.layout;
        let places = links
            .iter()
            .map(|&link| answers.links.code_at(layout.place(link)));
        let places = places.collect();
        let utility = classes.utility(terms.class);
        if matches!(utility, UtilityKind::Log) {
            let saturation_price = SaturationPrice::new(terms.weight, terms.demand, capacity);
            answers
                .newcomers
                .push(flow, places, terms.weight as f32, saturation_price);
        } else {
            let other = GeneralCurve {
                class: terms.class,
                weight: terms.weight,
                limit: RateLimit::new(utility, terms.weight, terms.demand, capacity),
            };
            answers.newcomers.push_other(flow, places, other);
        }
        if let StartKind::Known { tell } = start {
            answers.newcomers.is_known(flow, tell);
        }
    }

    /// A link has another capacity.
    pub(super) fn answer_capacity(&mut self, link: u32) {
        if let Some(answers) = self.answers.as_mut().filter(|answers| !answers.overrun) {
            let code = answers.links.code_at(self.shared.layout.place(link));
            let place = answers.links.touch(code) as usize;
            if place < answers.touched.len() {
                let capacity = self.capacities[link as usize];
                answers.touched.set_capacity(place, capacity);
            }
        }
    }

    /// Moves the prices of the links that events touched. With `rates`, newcomers also get the rates that
    /// these prices suggest, and touched links the rooms that go with the rates that there are then. Calls
    /// `tell`, if there is one, with each newcomer and its rate in Gbit/s, normalised.
    pub(super) fn settle_answers(
        &mut self,
        rates: bool,
        tell: Option<&mut dyn FnMut(u32, f32)>,
    ) -> Corrected {
        let Some(answers) = &mut self.answers else {
            return Corrected::Nothing;
        };
        if std::mem::take(&mut answers.overrun) {
            return Corrected::Prices;
        }
        if answers.is_empty() {
            return Corrected::Nothing;
        }
        let classes = &self.config.classes;
        answers.take_leavers_out(&self.shared, classes);
        answers.sweep(&self.shared, classes);
        if rates || tell.is_some() {
            answers.find_rates(classes);
        }
        if let Some(tell) = tell {
            for (flow, rate) in answers.first_rates() {
                tell(flow, rate);
            }
        }
        if rates {
            answers.deliver_first_rates(&self.shared, &self.directory);
        }
        let mut blocks: Vec<_> = self.shared.link_blocks.iter().map(write).collect();
        for (number, &code) in (0u32..).zip(&answers.links.codes) {
            let (link_block, slot) = answers.links.split(code);
            let block = &mut blocks[link_block];
            let price = answers.touched.price(number);
            // Else it stays what it is.
            if (0.0..=MOST_PRICE).contains(&price) {
                block.set_price(slot, price);
            }
            if rates {
                block.set_room(slot, answers.touched.room(number));
            }
        }
        answers.forget();
        if rates {
            Corrected::Rates
        } else {
            Corrected::Prices
        }
    }
}
