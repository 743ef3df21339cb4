//! Prices that answer events before the iteration, as those of
//! [`GuardedNed`](crate::num::GuardedNed) do; see its arrivals for what is solved.
//!
//! Only links that an event names are looked at: their prices and sums are fetched from the
//! LinkBlocks at the event, and the prices that come out are put back before the iteration.

use super::ParallelEngine;
use super::flows::Terms;
use super::layout::{Layout, Place, copies_of};
use super::view::links_by_slot;
use super::worker::{Shared, read, write};
use crate::engine::LinkPath;
use crate::num::arrivals::{Arrivals, FlowView};
use crate::num::response::Response;
use crate::num::{Limit, path_capacity};

/// Beyond this many starts between two iterations the prices start far from where they belong
/// anyway, and the iterations find them faster than the starts' answers to each other do.
const MOST_NEWCOMERS: usize = 1 << 14;

/// The events since the last iteration, as prices see them.
pub(super) struct Answers {
    arrivals: Arrivals,
    /// By link; only those of this round's events are up to date.
    prices: Vec<f64>,
    links_of: Vec<Vec<u32>>,
    /// There were too many events.
    overrun: bool,
}

impl Answers {
    pub(super) fn new(layout: &Layout) -> Self {
        Self {
            arrivals: Arrivals::new(layout.links()),
            prices: vec![0.0; layout.links()],
            links_of: links_by_slot(layout),
            overrun: false,
        }
    }

    fn fetch(&mut self, shared: &Shared, path: &[u32]) {
        for &link in path {
            let place = shared.layout.places[link as usize];
            let links = read(&shared.link_blocks[place.link_block as usize]);
            self.prices[link as usize] = f64::from(links.price(place.index as usize));
        }
    }
}

/// A link's answer in the last iteration, over all workers.
fn sum_of(shared: &Shared, link: usize) -> Response {
    let Place {
        link_block, index, ..
    } = shared.layout.places[link];
    let copies = &shared.layout.shapes[link_block as usize].copies;
    let slots = std::iter::once(index).chain(copies_of(copies, index));
    let mut sum = Response::default();
    for slot in slots {
        for worker in &shared.sums {
            let [load, reaction, surplus] = read(worker)[link_block as usize]
                .at(slot as usize)
                .map(f64::from);
            sum.add(Response {
                rate: load,
                reaction,
                elastic: (load + surplus).max(0.0),
            });
        }
    }
    sum
}

impl ParallelEngine {
    /// A flow is about to start, or to come back on another path.
    pub(super) fn answer_start(&mut self, links: &LinkPath, terms: &Terms) {
        let Some(answers) = self.answers.as_mut().filter(|answers| !answers.overrun) else {
            return;
        };
        if answers.arrivals.newcomers() >= MOST_NEWCOMERS {
            answers.arrivals.forget();
            answers.overrun = true;
            return;
        }
        answers.fetch(&self.shared, links);
        let utility = self.config.classes.utility(terms.class);
        let capacity = path_capacity(links, &self.capacities);
        // As rows keep it: the flow's end, which looks for this newcomer, reads it from there.
        let weight = f64::from(terms.weight as f32);
        let flow = FlowView {
            path: links,
            utility,
            weight,
            limit: Limit::new(utility, weight, terms.demand, capacity),
        };
        let shared = &self.shared;
        answers
            .arrivals
            .start(&flow, &answers.prices, |link| sum_of(shared, link));
    }

    /// A flow is about to end, or to leave its path.
    pub(super) fn answer_end(&mut self, flow: u32) {
        let Some(answers) = self.answers.as_ref().filter(|answers| !answers.overrun) else {
            return;
        };
        let view = self.view(flow, &answers.links_of);
        let flow = FlowView {
            path: &view.path,
            utility: self.config.classes.utility(view.class),
            weight: view.weight,
            limit: view.limit,
        };
        let shared = &self.shared;
        if let Some(answers) = &mut self.answers {
            answers.fetch(shared, &view.path);
            answers
                .arrivals
                .end(&flow, &answers.prices, |link| sum_of(shared, link));
        }
    }

    /// A link has another capacity.
    pub(super) fn answer_capacity(&mut self, link: u32) {
        let Some(answers) = self.answers.as_mut().filter(|answers| !answers.overrun) else {
            return;
        };
        answers.fetch(&self.shared, &[link]);
        let price = answers.prices[link as usize];
        let sum = sum_of(&self.shared, link as usize);
        answers.arrivals.change_capacity(link, sum, price);
    }

    /// Moves the prices of the links that events touched. Returns whether there were any events.
    pub(super) fn settle_answers(&mut self) -> bool {
        let Some(answers) = &mut self.answers else {
            return false;
        };
        if std::mem::take(&mut answers.overrun) {
            return true;
        }
        let links: Vec<u32> = answers.arrivals.links().collect();
        let touched = answers
            .arrivals
            .settle(&self.capacities, &mut answers.prices);
        for link in links {
            let place = self.shared.layout.places[link as usize];
            let price = answers.prices[link as usize] as f32;
            write(&self.shared.link_blocks[place.link_block as usize])
                .set_price(place.index as usize, price);
        }
        touched > 0
    }
}
