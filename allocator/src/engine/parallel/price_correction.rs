//! Price correction: moves prices for events before the iteration, as those of
//! [`SafeguardedNed`](crate::num::SafeguardedNed) do.
//! [`num::price_correction`](crate::num::price_correction) states the equation.
//!
//! Prices and sums do not change between two iterations, so an event only notes its flow and links.
//! Before the iteration, the sums of all dirty links are fetched at once: the cores then wait for
//! many of these cache lines at a time. Dirty links stand in short lists, in single precision like
//! the rest of the engine. Sweeps over new flows and links run over these lists.

use std::sync::RwLockReadGuard;

use super::cell::{CellFlow, NEVER_NOTIFIED, SaturationPrice, Terms};
use super::directory::{FlowDirectory, Location};
use super::dirty_links::{DirtyLinks, LinkResponse};
use super::flow_delta::{FlowDelta, GeneralCurve, PathLinks};
use super::lanes::TABLE_SLOTS;
use super::layout::{FlowBlockShape, Layout, LinkBlockShape, LinkPlace, replicas_of, slots_of};
use super::link_block::LinkBlockCopy;
use super::price_update::MOST_PRICE;
use super::scalar_flows::ScalarFlow;
use super::shared::ParallelState;
use super::sync::{lock, read, write};
use crate::engine::LinkPath;
use crate::num::price_correction::SWEEPS;
use crate::num::utility::{ClassTable, UtilityKind};
use crate::num::{RateLimit, path_capacity};

/// Starts between two iterations beyond which nothing is corrected. Prices then begin far from
/// their optimum, and iterations find it faster than corrections do.
const MOST_NEWCOMERS: usize = 1 << 14;
/// Ends after which they are subtracted from the sums, so that their list stays short.
const MOST_LEAVERS: usize = 1 << 12;
const NONE: u32 = u32::MAX;

/// Kind of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartKind {
    /// A flow that was not there before.
    Newcomer,
    /// A known flow with another demand or path.
    Known {
        /// It is notified of its rate like a new flow.
        notify: bool,
    },
}

/// Extent of a correction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Corrected {
    /// Nothing was corrected, or there were no events.
    Nothing,
    /// There were more events than a correction takes.
    Overrun,
    /// Prices were corrected, new flows have rates, and dirty links have the F-NORM scales of all
    /// rates over them.
    Rates,
}

impl Corrected {
    /// Extent of this correction together with an earlier one.
    pub(super) fn and(self, before: Self) -> Self {
        match (self, before) {
            (one, Self::Nothing) | (Self::Nothing, one) => one,
            (Self::Rates, Self::Rates) => Self::Rates,
            _ => Self::Overrun,
        }
    }
}

/// Numbering of the links that events make dirty.
struct DirtyLinkIndex {
    /// First slot of each LinkBlock among the slots of all.
    firsts: Vec<u32>,
    /// Bits of a link's code for its slot; the LinkBlock is above them.
    slot_bits: u32,
    /// Number of a slot's link in `codes`, or [`NONE`], by slot of all LinkBlocks.
    places: Vec<u32>,
    /// Codes of the dirty links, by number.
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

    /// Code of the link at a slot of a LinkBlock.
    #[inline]
    fn code(&self, link_block: usize, slot: usize) -> u32 {
        (link_block as u32) << self.slot_bits | slot as u32
    }

    #[inline]
    fn code_at(&self, place: LinkPlace) -> u32 {
        self.code(usize::from(place.link_block), place.index as usize)
    }

    /// LinkBlock and slot of a code.
    #[inline]
    fn split(&self, code: u32) -> (usize, usize) {
        let slot = code & ((1 << self.slot_bits) - 1);
        ((code >> self.slot_bits) as usize, slot as usize)
    }

    /// Marks a link as dirty, and returns its number.
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
        // Only the dirty slots are reset: a network has hundreds of thousands.
        for &code in &self.codes {
            let (link_block, slot) = self.split(code);
            self.places[self.firsts[link_block] as usize + slot] = NONE;
        }
        self.codes.clear();
    }
}

/// Events since the last iteration, and the links that they make dirty.
pub(super) struct PriceCorrection {
    links: DirtyLinkIndex,
    /// Prices and sums of the dirty links, as far as they were fetched.
    dirty: DirtyLinks,
    newcomers: FlowDelta,
    leavers: FlowDelta,
    /// There were too many events to correct for.
    overrun: bool,
    /// New flows with their normalised rates in Gbit/s, for `first_rates` to hand over.
    pub(super) first_rates: Vec<(u32, f32)>,
}

impl PriceCorrection {
    pub(super) fn new(layout: &Layout) -> Self {
        Self {
            links: DirtyLinkIndex::new(layout),
            dirty: DirtyLinks::default(),
            newcomers: FlowDelta::default(),
            leavers: FlowDelta::default(),
            overrun: false,
            first_rates: Vec::new(),
        }
    }

    /// Bytes of the lists by slot and LinkBlock, which do not shrink.
    pub(super) fn bytes(&self) -> usize {
        (self.links.places.capacity() + self.links.firsts.capacity()) * size_of::<u32>()
    }

    /// Notes a flow that starts, or comes back with other terms.
    pub(super) fn note_start(
        &mut self,
        shared: &ParallelState,
        capacities: &[f32],
        flow: u32,
        links: &LinkPath,
        terms: &Terms,
        start: StartKind,
    ) {
        if self.overrun {
            return;
        }
        if self.leavers.len() >= MOST_LEAVERS {
            self.subtract_leavers(shared);
        }
        if self.newcomers.len() >= MOST_NEWCOMERS {
            // Too many for a correction: iterations alone take over from here.
            self.forget();
            self.shrink();
            self.overrun = true;
            return;
        }
        let capacity = path_capacity(links, capacities);
        let places = links
            .iter()
            .map(|&link| self.links.code_at(shared.layout.place(link)));
        let places = places.collect();
        let utility = shared.classes.utility(terms.class);
        if matches!(utility, UtilityKind::Log) {
            let saturation_price = SaturationPrice::new(terms.weight, terms.demand, capacity);
            self.newcomers
                .push(flow, places, terms.weight as f32, saturation_price);
        } else {
            let curve = GeneralCurve {
                class: terms.class,
                weight: terms.weight,
                limit: RateLimit::new(utility, terms.weight, terms.demand, capacity),
            };
            self.newcomers.push_general(flow, places, curve);
        }
        if let StartKind::Known { notify } = start {
            self.newcomers.mark_known(flow, notify);
        }
    }

    /// Notes a link's new capacity in Gbit/s.
    pub(super) fn note_capacity(&mut self, place: LinkPlace, capacity: f32) {
        if self.overrun {
            return;
        }
        let code = self.links.code_at(place);
        let number = self.links.mark(code) as usize;
        // Already fetched with the former capacity. A link that is not gets the new one with the
        // rest.
        if number < self.dirty.len() {
            self.dirty.set_capacity(number, capacity);
        }
    }

    /// Notes a flow that is about to leave its cell.
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

    /// Notes a flow that has left its cell and was part of the last iteration's sums.
    pub(super) fn note_removed(
        &mut self,
        layout: &Layout,
        shape: &FlowBlockShape,
        removed: &CellFlow,
    ) {
        if self.overrun {
            return;
        }
        let CellFlow { ends, state } = removed;
        let mut places = PathLinks::new();
        for (link_block, index) in slots_of(layout, shape, ends) {
            // Sums are by the original link, not by its replicas.
            let index = layout.shapes[link_block].original(index);
            places.push(self.links.code(link_block, index));
        }
        self.leavers
            .push(state.flow, places, state.weight, state.saturation_price);
        self.leavers.push_rate(state.rate);
    }

    /// Notes a scalar flow that is about to leave its path.
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

    /// Forgets the start of a flow that ended before the iteration.
    pub(super) fn cancel_start(&mut self, flow: u32) {
        self.newcomers.forget(flow);
    }

    /// Forgets a known flow that came back with other terms since the last iteration; it was noted
    /// as one that left. Returns true if there was one.
    pub(super) fn forget_known(&mut self, flow: u32) -> bool {
        self.newcomers.forget_known(flow)
    }

    /// Forgets a flow that came since the last iteration, and so is in no sum. Returns true if it
    /// did.
    fn was_new(&mut self, flow: u32, never_notified: bool) -> bool {
        if never_notified {
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

    /// Frees the lists of events after a flood of them.
    fn shrink(&mut self) {
        self.links.codes = Vec::new();
        self.dirty = DirtyLinks::default();
        self.newcomers = FlowDelta::default();
        self.leavers = FlowDelta::default();
    }

    /// Fetches prices, capacities and sums of the links that became dirty since the last call.
    fn fetch(&mut self, shared: &ParallelState) {
        // Links are numbered in the order of the codes, so the list goes on where it ended.
        let fresh = &self.links.codes[self.dirty.len()..];
        if fresh.is_empty() {
            return;
        }
        let link_blocks: Vec<_> = shared.link_blocks.iter().map(read).collect();
        let copies: Vec<_> = shared.copies.iter().map(read).collect();
        for &code in fresh {
            let (link_block, slot) = self.links.split(code);
            let links = &link_blocks[link_block];
            let sum = link_response(shared, &copies, link_block, slot);
            self.dirty
                .push(links.price(slot), links.capacity(slot), sum);
        }
    }

    /// Subtracts the responses of flows that left from the sums.
    fn subtract_leavers(&mut self, shared: &ParallelState) {
        self.leavers.resolve_links(|code| self.links.mark(code));
        self.fetch(shared);
        for ((links, wants), &rate) in self.leavers.iter().zip(self.leavers.rates()) {
            let price = links.iter().map(|&link| self.dirty.price(link)).sum();
            // Stands for what the flow added to the sums, at prices that are one update older.
            let response = self.leavers.response(wants, &shared.classes, price);
            for &link in links {
                self.dirty.remove_flow(link, response);
                // Its actual rate may differ: the load behind F-NORM is that of rates, not of
                // responses.
                self.dirty.add_rate(link, -rate);
            }
        }
        self.leavers.clear();
    }

    /// Computes new flows' rates at the corrected prices, and adds them to the links' loads.
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

    /// Stores new flows' rates with their rows or lists.
    fn deliver_first_rates(&self, shared: &ParallelState, directory: &FlowDirectory) {
        let newcomers = self.newcomers.flows().iter().zip(self.newcomers.rates());
        for (&flow, &rate) in newcomers {
            // A flow that has ended meanwhile may have left its place to another flow.
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

    /// Lists new flows with their rates, scaled to what the links hold once all flows respond to
    /// the prices.
    fn list_first_rates(&mut self) {
        let flows = self.newcomers.flows().iter().zip(self.newcomers.rates());
        let rates = flows
            .zip(self.newcomers.iter())
            .filter(|((flow, _), _)| self.newcomers.is_notified(**flow))
            .map(|((&flow, &rate), (links, _))| {
                // At most 1: first rates are never raised to fill a link.
                let norm_scales = links.iter().map(|&link| self.dirty.norm_scale(link));
                (flow, rate * norm_scales.fold(1.0, f32::min))
            });
        self.first_rates.extend(rates);
    }

    /// Moves the prices of the dirty links.
    fn sweep(&mut self, shared: &ParallelState) {
        self.newcomers.resolve_links(|code| self.links.mark(code));
        self.fetch(shared);
        for sweep in 0..SWEEPS {
            // Where flows only left, one step is exact for log flows.
            if sweep > 0 && self.newcomers.len() == 0 {
                break;
            }
            self.dirty.clear_newcomers();
            for (links, wants) in self.newcomers.iter() {
                let price = links.iter().map(|&link| self.dirty.price(link)).sum();
                let response = self.newcomers.response(wants, &shared.classes, price);
                for &link in links {
                    self.dirty.add_flow(link, response);
                }
            }
            self.dirty.step(sweep > 0, |vectors, only_newcomers| {
                shared.kernels.step_dirty_links(vectors, only_newcomers);
            });
        }
    }

    /// Moves the prices of the dirty links. New flows take the rates at these prices, and dirty
    /// links the F-NORM scales of the resulting loads, so that the pass that follows can normalise
    /// at once. With `notify`, lists new flows' normalised rates.
    pub(super) fn correct(
        &mut self,
        shared: &ParallelState,
        directory: &FlowDirectory,
        notify: bool,
    ) -> Corrected {
        if std::mem::take(&mut self.overrun) {
            return Corrected::Overrun;
        }
        if self.is_empty() {
            return Corrected::Nothing;
        }
        // Ends first: new flows compete for what they left.
        self.subtract_leavers(shared);
        self.sweep(shared);
        self.compute_first_rates(&shared.classes);
        // The scales are those of the dirty links, which `forget` clears below.
        if notify {
            self.list_first_rates();
        }
        self.deliver_first_rates(shared, directory);
        let mut blocks: Vec<_> = shared.link_blocks.iter().map(write).collect();
        for (number, &code) in (0u32..).zip(&self.links.codes) {
            let (link_block, slot) = self.links.split(code);
            let block = &mut blocks[link_block];
            let price = self.dirty.price(number);
            // A price outside its bounds, or none at all, is not taken over.
            if (0.0..=MOST_PRICE).contains(&price) {
                block.set_price(slot, price);
            }
            block.set_norm_scale(slot, self.dirty.norm_scale(number));
        }
        self.forget();
        Corrected::Rates
    }
}

/// Response of a link's flows in the last iteration, over all workers.
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
    // Flows of further tables of the rack add to the link's replicas.
    let replicas = &shared.layout.shapes[link_block].replicas;
    if !replicas.is_empty() {
        replicas_of(replicas, slot as u32).for_each(|replica| add(replica as usize));
    }
    sum
}
