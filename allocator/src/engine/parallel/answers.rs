//! Prices that answer events before the iteration, as those of
//! [`GuardedNed`](crate::num::GuardedNed) do; see [`arrivals`](crate::num::arrivals) for what is solved.
//!
//! Prices and sums do not change between two iterations, so an event only notes its flow and its links.
//! What the links have is fetched before the iteration, from all of them at once: the cores then wait for
//! many of these cache lines at a time. Each link that an event names is an entry of short lists, in
//! single precision like all of the engine, which the sweeps over newcomers and links walk.

use std::sync::RwLockReadGuard;

use super::ParallelEngine;
use super::directory::{Directory, Home};
use super::flow_block::UNTOLD;
use super::flows::{Terms, knee};
use super::layout::{FlowBlockShape, Layout, Place, TABLE_SLOTS, copies_of};
use super::link_block::Sums;
use super::loose::LooseFlow;
use super::noted::{Noted, Other, Places};
use super::pending::EndsOf;
use super::touched::{Sum, Touched};
use super::view::slots_of;
use super::worker::{Shared, lock, read, write};
use crate::engine::LinkPath;
use crate::num::arrivals::SWEEPS;
use crate::num::utility::{ClassTable, UtilityKind};
use crate::num::{Limit, path_capacity};

/// Beyond this many starts between two iterations the prices start far from where they belong
/// anyway, and the iterations find them faster than the starts' answers to each other do.
const MOST_NEWCOMERS: usize = 1 << 14;
/// So many ends are worked into the sums at once, so that the list of them stays short.
const MOST_LEAVERS: usize = 1 << 12;
const NONE: u32 = u32::MAX;

/// What answered the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// Nothing did, or there were none.
    Nothing,
    /// The prices.
    Prices,
    /// Prices, the newcomers' rates, and how far all rates of touched links have to be cut to fit.
    Rates,
}

impl Answered {
    /// What has answered after this did, and `before` did.
    pub(super) fn and(self, before: Option<Self>) -> Self {
        match (self, before.unwrap_or(Self::Nothing)) {
            (one, Self::Nothing) | (Self::Nothing, one) => one,
            (Self::Rates, Self::Rates) => Self::Rates,
            _ => Self::Prices,
        }
    }
}

/// The events since the last iteration.
pub(super) struct Answers {
    /// By LinkBlock: where its slots begin among those of all.
    firsts: Vec<usize>,
    /// By slot, through all LinkBlocks: where its link is among those that events touch, or [`NONE`].
    places: Vec<u32>,
    /// The links that events touch, in the order in which they did: LinkBlock and slot.
    links: Vec<(u16, u32)>,
    /// What they have, as far as it was fetched.
    touched: Touched,
    newcomers: Noted,
    leavers: Noted,
    /// Flows that were told a rate may be among the newcomers.
    rerouted: bool,
    /// There were too many events.
    overrun: bool,
}

impl Answers {
    pub(super) fn new(layout: &Layout) -> Self {
        let mut slots = 0;
        let mut firsts = Vec::with_capacity(layout.shapes.len());
        for shape in &layout.shapes {
            firsts.push(slots);
            slots += shape.tables * TABLE_SLOTS;
        }
        Self {
            firsts,
            places: vec![NONE; slots],
            links: Vec::new(),
            touched: Touched::default(),
            newcomers: Noted::default(),
            leavers: Noted::default(),
            rerouted: false,
            overrun: false,
        }
    }

    /// Bytes of the list by slot.
    pub(super) fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<u32>()
    }

    /// The link at a slot of a LinkBlock, which is no copy's.
    fn touch(&mut self, link_block: usize, index: usize) -> u32 {
        let place = &mut self.places[self.firsts[link_block] + index];
        if *place == NONE {
            *place = self.links.len() as u32;
            self.links.push((link_block as u16, index as u32));
        }
        *place
    }

    fn touch_at(&mut self, place: Place) -> u32 {
        self.touch(usize::from(place.link_block), place.index as usize)
    }

    /// A flow is about to leave its cell.
    pub(super) fn leave_cell(&mut self, layout: &Layout, shape: &FlowBlockShape, leaves: &EndsOf) {
        let state = &leaves.state;
        if !self.overrun && !self.was_new(state.flow, state.told == UNTOLD) {
            self.left(layout, shape, leaves);
        }
    }

    /// A flow has left its cell that was there in the last iteration.
    pub(super) fn left(&mut self, layout: &Layout, shape: &FlowBlockShape, left: &EndsOf) {
        if self.overrun {
            return;
        }
        let EndsOf { ends, state } = left;
        let mut places = Places::new();
        for (link_block, index) in slots_of(layout, shape, ends) {
            let index = layout.shapes[link_block].original(index);
            places.push(self.touch(link_block, index));
        }
        self.leavers
            .push(state.flow, places, state.weight, state.knee);
        self.leavers.had(state.rate);
    }

    /// A flow that no row holds is about to leave its path.
    pub(super) fn leave_links(&mut self, layout: &Layout, flow: &LooseFlow) {
        if self.overrun || self.was_new(flow.flow, flow.told == f64::from(UNTOLD)) {
            return;
        }
        let links = flow.links.iter();
        let places = links.map(|&link| self.touch_at(layout.place(link)));
        let places = places.collect();
        let other = Other {
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

    /// Forgets a flow that came since the last iteration: it was in no sum.
    fn was_new(&mut self, flow: u32, untold: bool) -> bool {
        (untold || self.rerouted) && self.newcomers.forget(flow)
    }

    fn forget(&mut self) {
        for &(link_block, index) in &self.links {
            self.places[self.firsts[usize::from(link_block)] + index as usize] = NONE;
        }
        self.links.clear();
        self.touched.clear();
        self.newcomers.clear();
        self.leavers.clear();
        self.rerouted = false;
    }

    /// Gives the room of the lists of events back, after so many that it is not needed again soon.
    fn shrink(&mut self) {
        self.links = Vec::new();
        self.touched = Touched::default();
        self.newcomers = Noted::default();
        self.leavers = Noted::default();
    }

    /// Fetches prices and sums of the links that were touched since the last time, and takes the flows
    /// that left out of the sums.
    fn take_leavers_out(&mut self, shared: &Shared, classes: &ClassTable) {
        let link_blocks: Vec<_> = shared.link_blocks.iter().map(read).collect();
        let sums: Vec<_> = shared.sums.iter().map(read).collect();
        for &(link_block, index) in &self.links[self.touched.len()..] {
            let price = link_blocks[usize::from(link_block)].price(index as usize);
            let sum = sum_of(shared, &sums, usize::from(link_block), index);
            self.touched.push(price, sum);
        }
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
    fn give_rates(&self, shared: &Shared, directory: &Directory) {
        let newcomers = self.newcomers.flows().iter().zip(self.newcomers.rates());
        for (&flow, &rate) in newcomers {
            // Where the flow has gone again unnoticed, its place may be another one's.
            match directory.home(flow) {
                Home::Cell { block, cell } => {
                    lock(&shared.pending[usize::from(block)]).give(cell, flow, rate);
                }
                Home::Loose { worker, index } => {
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
            .map(|((&flow, &rate), (links, _))| {
                let rooms = links.iter().map(|&link| self.touched.room(link));
                (flow, rate * rooms.fold(1.0, f32::min))
            })
    }

    /// Moves the prices of the touched links.
    fn sweep(&mut self, shared: &Shared, classes: &ClassTable) {
        let link_blocks: Vec<_> = shared.link_blocks.iter().map(read).collect();
        for (place, &(link_block, index)) in self.links.iter().enumerate() {
            let capacity = link_blocks[usize::from(link_block)].capacity(index as usize);
            self.touched.set_capacity(place, capacity);
        }
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
            self.touched.step(sweep > 0);
        }
    }
}

/// A link's answer in the last iteration, over all workers.
fn sum_of(
    shared: &Shared,
    sums: &[RwLockReadGuard<'_, Vec<Sums>>],
    link_block: usize,
    index: u32,
) -> Sum {
    let mut sum = Sum::default();
    let mut add = |index: u32| {
        for worker in sums {
            let [load, reaction, surplus] = worker[link_block].at(index as usize);
            sum.load += load;
            sum.reaction += reaction;
            sum.surplus += surplus;
        }
    };
    add(index);
    let copies = &shared.layout.shapes[link_block].copies;
    if !copies.is_empty() {
        copies_of(copies, index).for_each(add);
    }
    sum
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
            answers.shrink();
            answers.overrun = true;
            return;
        }
        let classes = &self.config.classes;
        let capacity = path_capacity(links, &self.capacities);
        let layout = &self.shared.layout;
        let places = links
            .iter()
            .map(|&link| answers.touch_at(layout.place(link)));
        let places = places.collect();
        let utility = classes.utility(terms.class);
        if matches!(utility, UtilityKind::Log) && terms.demand >= capacity {
            let knee = knee(terms.weight, capacity);
            answers
                .newcomers
                .push(flow, places, terms.weight as f32, knee);
        } else {
            let other = Other {
                class: terms.class,
                weight: terms.weight,
                limit: Limit::new(utility, terms.weight, terms.demand, capacity),
            };
            answers.newcomers.push_other(flow, places, other);
        }
        // A flow that was told a rate before comes back.
        answers.rerouted |= terms.told != f64::from(UNTOLD);
    }

    /// A link has another capacity.
    pub(super) fn answer_capacity(&mut self, link: u32) {
        if let Some(answers) = self.answers.as_mut().filter(|answers| !answers.overrun) {
            answers.touch_at(self.shared.layout.place(link));
        }
    }

    /// Moves the prices of the links that events touched. With `rates`, newcomers also get the rates that
    /// these prices suggest, and touched links the rooms that go with the rates that there are then. Calls
    /// `tell`, if there is one, with each newcomer and its rate in Gbit/s, normalised.
    pub(super) fn settle_answers(
        &mut self,
        rates: bool,
        tell: Option<&mut dyn FnMut(u32, f32)>,
    ) -> Answered {
        let Some(answers) = &mut self.answers else {
            return Answered::Nothing;
        };
        if std::mem::take(&mut answers.overrun) {
            return Answered::Prices;
        }
        if answers.links.is_empty() {
            return Answered::Nothing;
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
            answers.give_rates(&self.shared, &self.directory);
        }
        let mut blocks: Vec<_> = self.shared.link_blocks.iter().map(write).collect();
        for (number, &(link_block, index)) in (0u32..).zip(&answers.links) {
            let block = &mut blocks[usize::from(link_block)];
            block.set_price(index as usize, answers.touched.price(number));
            if rates {
                block.set_room(index as usize, answers.touched.room(number));
            }
        }
        answers.forget();
        if rates {
            Answered::Rates
        } else {
            Answered::Prices
        }
    }
}
