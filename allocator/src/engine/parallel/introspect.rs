//! Introspection: rates, prices, loads and the distance from the optimum.

use super::cell::queued_position;
use super::directory::{FlowDirectory, Location};
use super::layout::{LinkPlace, links_by_slot, slots_of};
use super::shared::ParallelState;
use super::sync::{lock, read};
use crate::engine::{FlowNumber, LinkPath, Scan};
use crate::num::optimality::FlowSample;
use crate::num::utility::UtilityKind;
use crate::num::{RATE_UNIT_BPS, RateLimit, path_capacity};

/// A flow in terms of links.
struct FlowInfo {
    path: LinkPath,
    class: u8,
    weight: f64,
    limit: RateLimit,
    /// Normalised, in Gbit/s.
    rate: f64,
    /// Sum of the prices of its links.
    path_price: f64,
}

impl FlowInfo {
    /// Adds its rate to the loads of its links, in bit/s.
    fn add_load(&self, loads_bps: &mut [f64]) {
        for &link in &self.path {
            loads_bps[link as usize] += self.rate * RATE_UNIT_BPS;
        }
    }
}

/// View of the flows between two calls of the engine's driver.
#[derive(Clone, Copy)]
pub(super) struct FlowReader<'a> {
    pub(super) shared: &'a ParallelState,
    pub(super) directory: &'a FlowDirectory,
    /// Derated capacities in Gbit/s, by link.
    pub(super) capacities: &'a [f32],
}

impl FlowReader<'_> {
    /// Normalised rates of all flows after the last iteration.
    pub(super) fn rates_bps(self) -> Vec<(FlowNumber, f64)> {
        let links_of = links_by_slot(&self.shared.layout);
        let flows = self.directory.flows();
        flows
            .map(|flow| {
                let rate = self.flow_info(flow, &links_of).rate * RATE_UNIT_BPS;
                (self.directory.number(flow), rate)
            })
            .collect()
    }

    /// Normalised rate of a flow after the last iteration, notified or not.
    pub(super) fn rate_bps(self, number: FlowNumber) -> Option<f64> {
        let flow = self.directory.find(number)?;
        let links_of = links_by_slot(&self.shared.layout);
        Some(self.flow_info(flow, &links_of).rate * RATE_UNIT_BPS)
    }

    /// Prices by link, in utility per Gbit/s.
    pub(super) fn prices(self) -> Vec<f64> {
        let blocks: Vec<_> = self.shared.link_blocks.iter().map(read).collect();
        let price = |place: LinkPlace| {
            f64::from(blocks[place.link_block as usize].price(place.index as usize))
        };
        self.shared.layout.places().map(price).collect()
    }

    fn flow_info(self, flow: u32, links_of: &[Vec<u32>]) -> FlowInfo {
        let (block, cell) = match self.directory.location(flow) {
            Location::Cell { block, cell } => (block, cell),
            Location::Scalar { worker, index } => {
                let blocks: Vec<_> = self.shared.link_blocks.iter().map(read).collect();
                let list = lock(&self.shared.scalar_flows[usize::from(worker)]);
                let flow = &list.flows[index as usize];
                let price = |&link: &u32| {
                    let place = self.shared.layout.place(link);
                    f64::from(blocks[usize::from(place.link_block)].price(place.index as usize))
                };
                return FlowInfo {
                    path_price: flow.links.iter().map(price).sum(),
                    path: flow.links.clone(),
                    class: flow.class,
                    weight: flow.weight,
                    limit: flow.limit,
                    rate: flow.normalized_rate(&self.shared.layout, &blocks),
                };
            }
        };
        let shape = self.shared.layout.flow_block_shape(usize::from(block));
        // A queued flow has no cell yet; its batch holds its state.
        let (ends, state) = if let Some(place) = queued_position(cell) {
            let mut batch = lock(&self.shared.batches[usize::from(block)]);
            let queued = batch.insert_at(place);
            (queued.ends, queued.state)
        } else {
            let block = lock(&self.shared.flow_blocks[usize::from(block)]);
            (block.ends(cell), block.state(cell))
        };
        let mut path = LinkPath::new();
        // As the passes compute it: the least scale of the path, then the demand.
        let (mut norm_scale, mut path_price) = (f32::INFINITY, 0.0);
        for (link_block, index) in slots_of(&self.shared.layout, &shape, &ends) {
            let block = read(&self.shared.link_blocks[link_block]);
            norm_scale = norm_scale.min(block.norm_scale(index));
            path_price += f64::from(block.price(index));
            path.push(links_of[link_block][index]);
        }
        let [weight, demand] = [state.weight, state.demand].map(f64::from);
        let capacity = path_capacity(&path, self.capacities);
        FlowInfo {
            limit: RateLimit::new(&UtilityKind::Log, weight, demand, capacity),
            path,
            class: self.shared.classes.log_class(),
            weight,
            rate: f64::from(state.rate * norm_scale).min(demand),
            path_price,
        }
    }

    /// Writes the loads of all links, in bit/s.
    pub(super) fn write_loads(self, loads_bps: &mut Vec<f64>) {
        loads_bps.clear();
        loads_bps.resize(self.capacities.len(), 0.0);
        let links_of = links_by_slot(&self.shared.layout);
        for flow in self.directory.flows() {
            self.flow_info(flow, &links_of).add_load(loads_bps);
        }
    }

    /// Scans `flows` further flows. Returns true if those were the last.
    pub(super) fn resume_scan(self, scan: &mut Scan, flows: usize) -> bool {
        let links = self.capacities.len();
        // A reset to another topology makes what was scanned worthless.
        let other = scan.loads_bps.len() != links;
        if !std::mem::replace(&mut scan.under_way, true) || other {
            scan.next = 0;
            scan.links_by_slot = links_by_slot(&self.shared.layout);
            scan.tally.begin(links);
            scan.loads_bps.clear();
            scan.loads_bps.resize(links, 0.0);
        }
        // Numbers without a flow are free and skipped, so a step may scan fewer flows.
        let (numbers, next) = self.directory.flows_from(scan.next, flows);
        for flow in numbers {
            let flow_info = self.flow_info(flow, &scan.links_by_slot);
            flow_info.add_load(&mut scan.loads_bps);
            scan.tally.add(&FlowSample {
                utility: self.shared.classes.utility(flow_info.class),
                weight: flow_info.weight,
                cap: flow_info.limit.cap,
                path: &flow_info.path,
                path_price: flow_info.path_price,
                rate: flow_info.rate,
            });
        }
        if let Some(next) = next {
            scan.next = next;
            return false;
        }
        let capacities: Vec<f64> = self.capacities.iter().copied().map(f64::from).collect();
        scan.optimality = scan.tally.finish(&self.prices(), &capacities);
        scan.under_way = false;
        true
    }
}
