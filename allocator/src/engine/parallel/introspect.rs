//! What the engine says about itself.

use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;

use super::ParallelEngine;
use super::directory::Home;
use super::event_batch::coming_place;
use super::flow_block::End;
use super::flows::pod_index;
use super::layout::{FlowBlockShape, HOST_SLOTS, Layout, TABLE_SLOTS};
use super::worker::{PhaseTimes, lock, read};
use crate::engine::{FlowKey, LinkPath, MAX_PATH_LINKS, Survey};
use crate::num::optimality::FlowSample;
use crate::num::utility::UtilityKind;
use crate::num::{RATE_UNIT_BPS, RateLimit, path_capacity};

/// How long the first worker spent in the parts of its iterations, summed up, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseNanos {
    /// Rates of the last iteration normalised and told, new rates, their sums.
    pub rate_update: u64,
    /// Waiting for the sums of the others.
    pub aggregation: u64,
    /// Adding the sums of all workers up, and updating prices.
    pub price_update: u64,
    /// Waiting for the prices of the others.
    pub distribution: u64,
    /// The second walk of iterations that follow an event.
    pub normalization: u64,
    /// Taking flows out of rows and into others, moving them together and putting rows in order, before the
    /// iteration.
    pub packing: u64,
    /// What of that flows that start and end take.
    pub settling: u64,
    /// Prices that answer events, before the iteration.
    pub answers: u64,
    /// The pass of the optimiser between those and the iteration, all its parts.
    pub extra_pass: u64,
}

impl PhaseNanos {
    pub(super) fn add(&mut self, times: &PhaseTimes) {
        self.rate_update += times.rates_ns;
        self.aggregation += times.aggregation_ns;
        self.price_update += times.prices_ns;
        self.distribution += times.distribution_ns;
        self.normalization += times.normalization_ns;
        self.settling += times.settling_ns;
    }

    /// What was added since it was `before`.
    #[must_use]
    pub fn since(&self, before: Self) -> Self {
        Self {
            rate_update: self.rate_update - before.rate_update,
            aggregation: self.aggregation - before.aggregation,
            price_update: self.price_update - before.price_update,
            distribution: self.distribution - before.distribution,
            normalization: self.normalization - before.normalization,
            packing: self.packing - before.packing,
            settling: self.settling - before.settling,
            answers: self.answers - before.answers,
            extra_pass: self.extra_pass - before.extra_pass,
        }
    }

    /// Times of a pass whose rates nobody is told.
    pub(super) fn add_extra_pass(&mut self, times: &PhaseTimes) {
        self.extra_pass += times.rates_ns
            + times.aggregation_ns
            + times.prices_ns
            + times.distribution_ns
            + times.normalization_ns;
    }
}

/// What a flow is, in terms of links.
pub(super) struct FlowView {
    pub(super) path: LinkPath,
    pub(super) class: u8,
    pub(super) weight: f64,
    pub(super) limit: RateLimit,
    /// Normalised, in Gbit/s.
    rate: f64,
    /// The sum of the prices of its links.
    path_price: f64,
}

impl FlowView {
    /// Adds its rate to the loads of its links, in bit/s.
    fn add_load(&self, loads_bps: &mut [f64]) {
        for &link in &self.path {
            loads_bps[link as usize] += self.rate * RATE_UNIT_BPS;
        }
    }
}

impl ParallelEngine {
    /// Measures the parts of iterations from now on, or no longer. Starts the sums anew.
    pub fn time_phases(&mut self, timed: bool) {
        self.shared.timed.store(timed, Ordering::Relaxed);
        self.phases = PhaseNanos::default();
    }

    /// The sums since [`time_phases`](Self::time_phases).
    #[must_use]
    pub fn phases(&self) -> PhaseNanos {
        self.phases
    }

    /// The normalised rates of all flows after the last iteration.
    #[must_use]
    pub fn rates_bps(&self) -> Vec<(FlowKey, f64)> {
        let links_of = links_by_slot(&self.shared.layout);
        let flows = self.directory.flows();
        flows
            .map(|flow| {
                let rate = self.view(flow, &links_of).rate * RATE_UNIT_BPS;
                (self.directory.key(flow), rate)
            })
            .collect()
    }

    /// The normalised rate of a flow after the last iteration, whether it was told or not.
    #[must_use]
    pub fn rate_bps(&self, key: FlowKey) -> Option<f64> {
        let flow = self.directory.find(key)?;
        let links_of = links_by_slot(&self.shared.layout);
        Some(self.view(flow, &links_of).rate * RATE_UNIT_BPS)
    }

    /// The prices by link, in utility per Gbit/s.
    #[must_use]
    pub fn prices(&self) -> Vec<f64> {
        let blocks: Vec<_> = self.shared.link_blocks.iter().map(read).collect();
        let price = |place: super::layout::Place| {
            f64::from(blocks[place.link_block as usize].price(place.index as usize))
        };
        self.shared.layout.places().map(price).collect()
    }

    /// Flows that rows hold; the others are worked on one by one.
    #[must_use]
    pub fn flows_in_rows(&self) -> usize {
        self.directory.len() - self.shared.loose_count.load(Ordering::Relaxed) as usize
    }

    pub(super) fn view(&self, flow: u32, links_of: &[Vec<u32>]) -> FlowView {
        let (block, cell) = match self.directory.home(flow) {
            Home::Cell { block, cell } => (block, cell),
            Home::Loose { worker, index } => {
                let blocks: Vec<_> = self.shared.link_blocks.iter().map(read).collect();
                let list = lock(&self.shared.loose[usize::from(worker)]);
                let flow = &list.flows[index as usize];
                let price = |&link: &u32| {
                    let place = self.shared.layout.place(link);
                    f64::from(blocks[usize::from(place.link_block)].price(place.index as usize))
                };
                return FlowView {
                    path_price: flow.links.iter().map(price).sum(),
                    path: flow.links.clone(),
                    class: flow.class,
                    weight: flow.weight,
                    limit: flow.limit,
                    rate: flow.fitting_rate(&self.shared.layout, &blocks),
                };
            }
        };
        let shape = self.shared.layout.flow_block_shape(usize::from(block));
        let (ends, state) = if let Some(place) = coming_place(cell) {
            let mut pending = lock(&self.shared.pending[usize::from(block)]);
            let coming = pending.coming_at(place);
            (coming.ends, coming.state)
        } else {
            let block = lock(&self.shared.flow_blocks[usize::from(block)]);
            (block.ends(cell), block.state(cell))
        };
        let mut path = LinkPath::new();
        let (mut room, mut path_price) = (f32::INFINITY, 0.0);
        for (link_block, index) in slots_of(&self.shared.layout, &shape, &ends) {
            let block = read(&self.shared.link_blocks[link_block]);
            room = room.min(block.room(index));
            path_price += f64::from(block.price(index));
            path.push(links_of[link_block][index]);
        }
        let [weight, demand] = [state.weight, state.demand].map(f64::from);
        let capacity = path_capacity(&path, &self.capacities);
        FlowView {
            limit: RateLimit::new(&UtilityKind::Log, weight, demand, capacity),
            path,
            class: self.config.classes.log_class(),
            weight,
            rate: f64::from(state.rate * room).min(demand),
            path_price,
        }
    }

    pub(super) fn write_loads(&self, loads_bps: &mut Vec<f64>) {
        loads_bps.clear();
        loads_bps.resize(self.capacities.len(), 0.0);
        let links_of = links_by_slot(&self.shared.layout);
        for flow in self.directory.flows() {
            self.view(flow, &links_of).add_load(loads_bps);
        }
    }

    /// Looks at so many flows more; true if those were the last.
    pub(super) fn go_on_surveying(&self, survey: &mut Survey, flows: usize) -> bool {
        let links = self.capacities.len();
        // Another topology has come meanwhile.
        let other = survey.loads_bps.len() != links;
        if !std::mem::replace(&mut survey.begun, true) || other {
            survey.next = 0;
            survey.links_of = links_by_slot(&self.shared.layout);
            survey.tally.begin(links);
            survey.loads_bps.clear();
            survey.loads_bps.resize(links, 0.0);
        }
        let (numbers, next) = self.directory.flows_from(survey.next, flows);
        for flow in numbers {
            let view = self.view(flow, &survey.links_of);
            view.add_load(&mut survey.loads_bps);
            survey.tally.add(&FlowSample {
                utility: self.config.classes.utility(view.class),
                weight: view.weight,
                cap: view.limit.cap,
                path: &view.path,
                path_price: view.path_price,
                rate: view.rate,
            });
        }
        if let Some(next) = next {
            survey.next = next;
            return false;
        }
        let capacities: Vec<f64> = self.capacities.iter().copied().map(f64::from).collect();
        survey.optimality = survey.tally.finish(&self.prices(), &capacities);
        survey.begun = false;
        true
    }
}

/// Where the links on the path of a FlowBlock's flow are, in the order in which it crosses them.
pub(super) fn slots_of(
    layout: &Layout,
    shape: &FlowBlockShape,
    ends: &[End; 2],
) -> ArrayVec<(usize, usize), MAX_PATH_LINKS> {
    let mut path = ArrayVec::new();
    let link_blocks = shape.links;
    for (side, end) in ends.iter().enumerate() {
        let link_block = link_blocks[side];
        let (table, slots) = (usize::from(end.table), end.slots);
        let base = table * TABLE_SLOTS;
        let host = (link_block, base + usize::from(slots.host));
        let of_fabric = base + HOST_SLOTS + usize::from(slots.fabric);
        let fabric = (!end.slots.no_fabric).then_some((link_block, of_fabric));
        let core = shape.core_links.and_then(|cores| {
            let index = pod_index(&layout.shapes[link_block], table, slots)?;
            Some((cores[side], index))
        });
        if side == 0 {
            path.push(host);
            path.extend(fabric);
            path.extend(core);
        } else {
            path.extend(core);
            path.extend(fabric);
            path.push(host);
        }
    }
    path
}

/// Links by LinkBlock and slot.
pub(super) fn links_by_slot(layout: &Layout) -> Vec<Vec<u32>> {
    let mut links: Vec<Vec<u32>> = layout
        .shapes
        .iter()
        .map(|shape| vec![u32::MAX; shape.tables * TABLE_SLOTS])
        .collect();
    for (link, place) in (0u32..).zip(layout.places()) {
        links[place.link_block as usize][place.index as usize] = link;
    }
    for (links, shape) in links.iter_mut().zip(&layout.shapes) {
        for &(copy, original) in &shape.copies {
            links[copy as usize] = links[original as usize];
        }
    }
    links
}
