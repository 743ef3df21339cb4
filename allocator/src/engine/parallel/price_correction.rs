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
use super::layout::{FlowBlockShape, Layout, LinkBlockShape, LinkPlace, replicas_of, slots_of};
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
    /// One that was, with another demand or on another path; if `notify`, it is told its rate like a newcomer.
    Known {
        /// See above.
        notify: bool,
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
    fn mark(&mut self, code: u32) -> u32 {
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
    dirty: DirtyLinks,
    newcomers: FlowDelta,
    leavers: FlowDelta,
    /// There were too many events.
    overrun: bool,
}

impl PriceCorrection {
    pub(super) fn new(layout: &Layout) -> Self {
        Self {
            links: DirtyLinkIndex::new(layout),
            dirty: DirtyLinks::default(),
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
    pub(super) fn note_cell_leaving(
        &mut self,
        layout: &Layout,
        shape: &FlowBlockShape,
        leaves: &CellFlow,
    ) {
        let state = &leaves.state;
        if !self.overrun && !self.was_new(state.flow, state.notified == NEVER_NOTIFIED) {
            self.note_removed(layout, shape, leaves);
        }
    }

    /// A flow has left its cell that was there in the last iteration.
    pub(super) fn note_removed(
        &mut self,
        layout: &Layout,
        shape: &FlowBlockShape,
        left: &CellFlow,
    ) {
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
        self.leavers.push_rate(state.rate);
    }

    /// A flow that no row holds is about to leave its path.
    pub(super) fn note_scalar_leaving(&mut self, layout: &Layout, flow: &ScalarFlow) {
        if self.overrun || self.was_new(flow.flow, flow.notified == f64::from(NEVER_NOTIFIED)) {
            return;
        }
        let links = flow.links.iter();
        let places = links.map(|&link| self.links.code_at(layout.place(link)));
        let places = places.collect();
        let curve = GeneralCurve {
            class: flow.class,
            weight: flow.weight,
            limit: flow.limit,
        };
        self.leavers.push_general(flow.flow, places, curve);
        self.leavers.push_rate(flow.rate as f32);
    }

    /// A flow that was about to start has ended.
    pub(super) fn cancel_start(&mut self, flow: u32) {
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
        self.dirty.clear();
        self.newcomers.clear();
        self.leavers.clear();
    }

    fn is_empty(&self) -> bool {
        self.links.codes.is_empty() && self.newcomers.len() == 0 && self.leavers.len() == 0
    }

    /// Gives the room of the lists of events back, after so many that it is not needed again soon.
    fn shrink(&mut self) {
        self.links.codes = Vec::new();
        self.dirty = DirtyLinks::default();
        self.newcomers = FlowDelta::default();
        self.leavers = FlowDelta::default();
    }

    /// Fetches what the links have that were touched since the last time.
    fn fetch(&mut self, shared: &ParallelState) {
        let link_blocks: Vec<_> = shared.link_blocks.iter().map(read).collect();
        let copies: Vec<_> = shared.copies.iter().map(read).collect();
        for &code in &self.links.codes[self.dirty.len()..] {
            let (link_block, slot) = self.links.split(code);
            let links = &link_blocks[link_block];
            let sum = link_response(shared, &copies, link_block, slot);
            self.dirty
                .push(links.price(slot), links.capacity(slot), sum);
        }
    }

    /// Takes the flows that left out of the sums.
    fn subtract_leavers(&mut self, shared: &ParallelState, classes: &ClassTable) {
        self.leavers.resolve_links(|code| self.links.mark(code));
        self.fetch(shared);
        for ((links, wants), &rate) in self.leavers.iter().zip(self.leavers.rates()) {
            let price = links.iter().map(|&link| self.dirty.price(link)).sum();
            let response = self.leavers.response(wants, classes, price);
            for &link in links {
                self.dirty.remove_flow(link, response);
                self.dirty.add_rate(link, -rate);
            }
        }
        self.leavers.clear();
    }

    /// Finds the rates that the prices suggest for newcomers, and adds these to the links' loads.
    fn compute_first_rates(&mut self, classes: &ClassTable) {
        for index in 0..self.newcomers.len() {
            let (links, wants) = self.newcomers.at(index);
            let price = links.iter().map(|&link| self.dirty.price(link)).sum();
            let rate = self.newcomers.response(wants, classes, price).load;
            for &link in links {
                self.dirty.add_rate(link, rate);
            }
            self.newcomers.push_rate(rate);
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
                    let mut list = lock(&shared.scalar_flows[usize::from(worker)]);
                    let of_home = list.flows.get_mut(index as usize);
                    if let Some(own) = of_home.filter(|other| other.flow == flow) {
                        own.rate = f64::from(rate);
                    }
                }
            }
        }
    }

    /// Newcomers with their rates, cut to what the links have room for once all flows answer the prices.
    fn normalized_first_rates(&self) -> impl Iterator<Item = (u32, f32)> + '_ {
        let flows = self.newcomers.flows().iter().zip(self.newcomers.rates());
        flows
            .zip(self.newcomers.iter())
            .filter(|((flow, _), _)| self.newcomers.is_notified(**flow))
            .map(|((&flow, &rate), (links, _))| {
                let norm_scales = links.iter().map(|&link| self.dirty.norm_scale(link));
                (flow, rate * norm_scales.fold(1.0, f32::min))
            })
    }

    /// Moves the prices of the touched links.
    fn sweep(&mut self, shared: &ParallelState, classes: &ClassTable) {
        self.newcomers.resolve_links(|code| self.links.mark(code));
        self.fetch(shared);
        for sweep in 0..SWEEPS {
            if sweep > 0 && self.newcomers.len() == 0 {
                break;
            }
            self.dirty.clear_newcomers();
            for (links, wants) in self.newcomers.iter() {
                let price = links.iter().map(|&link| self.dirty.price(link)).sum();
                let response = self.newcomers.response(wants, classes, price);
                for &link in links {
                    self.dirty.add_flow(link, response);
                }
            }
            self.dirty.step(shared.kernels, sweep > 0);
        }
    }
}

/// A link's answer in the last iteration, over all workers.
fn link_response(
    shared: &ParallelState,
    copies: &[RwLockReadGuard<'_, Vec<LinkBlockCopy>>],
    link_block: usize,
    slot: usize,
) -> LinkResponse {
    let mut sum = LinkResponse::default();
    let mut add = |slot: usize| {
        for worker in copies {
            let [load, neg_slope, elastic] = worker[link_block].at(slot);
            sum.load += load;
            sum.neg_slope += neg_slope;
            sum.elastic_excess += elastic - load;
        }
    };
    add(slot);
    let replicas = &shared.layout.shapes[link_block].replicas;
    if !replicas.is_empty() {
        replicas_of(replicas, slot as u32).for_each(|replica| add(replica as usize));
    }
    sum
}

impl ParallelEngine {
    /// A flow is about to start, or to come back in another way.
    pub(super) fn note_start(
        &mut self,
        flow: u32,
        links: &LinkPath,
        terms: &Terms,
        start: StartKind,
    ) {
        let Some(correction) = self
            .correction
            .as_mut()
            .filter(|correction| !correction.overrun)
        else {
            return;
        };
        if correction.leavers.len() >= MOST_LEAVERS {
            correction.subtract_leavers(&self.shared, &self.config.classes);
        }
        if correction.newcomers.len() >= MOST_NEWCOMERS {
            correction.forget();
            correction.shrink();
            correction.overrun = true;
            return;
        }
        let classes = &self.config.classes;
        let capacity = path_capacity(links, &self.capacities);
        let layout = &self.shared.layout;
        let places = links
            .iter()
            .map(|&link| correction.links.code_at(layout.place(link)));
        let places = places.collect();
        let utility = classes.utility(terms.class);
        if matches!(utility, UtilityKind::Log) {
            let saturation_price = SaturationPrice::new(terms.weight, terms.demand, capacity);
            correction
                .newcomers
                .push(flow, places, terms.weight as f32, saturation_price);
        } else {
            let curve = GeneralCurve {
                class: terms.class,
                weight: terms.weight,
                limit: RateLimit::new(utility, terms.weight, terms.demand, capacity),
            };
            correction.newcomers.push_general(flow, places, curve);
        }
        if let StartKind::Known { notify } = start {
            correction.newcomers.mark_known(flow, notify);
        }
    }

    /// A link has another capacity.
    pub(super) fn note_capacity(&mut self, link: u32) {
        if let Some(correction) = self
            .correction
            .as_mut()
            .filter(|correction| !correction.overrun)
        {
            let code = correction.links.code_at(self.shared.layout.place(link));
            let place = correction.links.mark(code) as usize;
            if place < correction.dirty.len() {
                let capacity = self.capacities[link as usize];
                correction.dirty.set_capacity(place, capacity);
            }
        }
    }

    /// Moves the prices of the links that events touched. With `rates`, newcomers also get the rates that
    /// these prices suggest, and touched links the rooms that go with the rates that there are then. Calls
    /// `notify`, if there is one, with each newcomer and its rate in Gbit/s, normalised.
    pub(super) fn correct_prices(
        &mut self,
        rates: bool,
        notify: Option<&mut dyn FnMut(u32, f32)>,
    ) -> Corrected {
        let Some(correction) = &mut self.correction else {
            return Corrected::Nothing;
        };
        if std::mem::take(&mut correction.overrun) {
            return Corrected::Prices;
        }
        if correction.is_empty() {
            return Corrected::Nothing;
        }
        let classes = &self.config.classes;
        correction.subtract_leavers(&self.shared, classes);
        correction.sweep(&self.shared, classes);
        if rates || notify.is_some() {
            correction.compute_first_rates(classes);
        }
        if let Some(notify) = notify {
            for (flow, rate) in correction.normalized_first_rates() {
                notify(flow, rate);
            }
        }
        if rates {
            correction.deliver_first_rates(&self.shared, &self.directory);
        }
        let mut blocks: Vec<_> = self.shared.link_blocks.iter().map(write).collect();
        for (number, &code) in (0u32..).zip(&correction.links.codes) {
            let (link_block, slot) = correction.links.split(code);
            let block = &mut blocks[link_block];
            let price = correction.dirty.price(number);
            // Else it stays what it is.
            if (0.0..=MOST_PRICE).contains(&price) {
                block.set_price(slot, price);
            }
            if rates {
                block.set_norm_scale(slot, correction.dirty.norm_scale(number));
            }
        }
        correction.forget();
        if rates {
            Corrected::Rates
        } else {
            Corrected::Prices
        }
    }
}
