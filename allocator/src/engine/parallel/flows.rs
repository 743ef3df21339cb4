//! Starts, ends, reroutes and capacities: where a flow goes, and what it takes to move it.

use std::sync::atomic::Ordering;

use super::directory::{Home, MAX_LOOSE_PER_WORKER};
use super::flow_block::{CellState, End, FlowBlock, UNTOLD};
use super::joint::JointRows;
use super::lanes::{Cell, LANES};
use super::layout::{
    FABRIC_SLOTS, HOST_SLOTS, Layout, LinkBlockShape, Place, Role, TABLE_SLOTS, copies_of,
};
use super::loose::LooseFlow;
use super::pending::EndsOf;
use super::rows::{Slots, split};
use super::worker::{lock, read, write};
use super::{ParallelEngine, derated, derating};
use crate::engine::{EngineError, FlowKey, FlowSpec, LinkPath, MAX_PATH_LINKS};
use crate::num::utility::UtilityKind;
use crate::num::{Limit, RATE_UNIT_BPS, path_capacity};

/// A knee beyond which a rate is nothing: of a flow whose path has no capacity.
const CUT_KNEE: f32 = 1e30;

/// What is kept of a flow wherever it lives.
pub(super) struct Terms {
    pub(super) class: u8,
    pub(super) weight: f64,
    pub(super) demand: f64,
    rate: f64,
    pub(super) told: f64,
}

impl ParallelEngine {
    pub(super) fn start(&mut self, spec: &FlowSpec) -> Result<(), EngineError> {
        self.check_path(spec.key, &spec.links)?;
        let Some(class) = self.config.classes.get(spec.class) else {
            return Err(EngineError::UnknownClass { class: spec.class });
        };
        let weight = class.weight * spec.weight;
        if !(spec.weight > 0.0 && weight.is_finite() && weight > 0.0) {
            return Err(EngineError::BadWeight(spec.weight));
        }
        if spec.demand_bps.is_nan() || spec.demand_bps < 0.0 {
            return Err(EngineError::BadDemand(spec.demand_bps));
        }
        let demand = spec.demand_bps.min(class.max_rate_bps) / RATE_UNIT_BPS;
        let max_flows = self.config.max_flows;
        let known = self.directory.find(spec.key);
        if self.directory.len() >= max_flows && known.is_none() {
            return Err(EngineError::Full { max_flows });
        }
        let flow = match known {
            Some(flow) => {
                self.settle_pending();
                self.take_out(flow);
                flow
            }
            None => self.directory.insert(spec.key),
        };
        let terms = Terms {
            class: spec.class,
            weight,
            demand,
            rate: 0.0,
            told: f64::from(UNTOLD),
        };
        self.answer_start(flow, &spec.links, &terms);
        self.put_in(flow, &spec.links, &terms)
    }

    pub(super) fn end(&mut self, key: FlowKey) -> Result<(), EngineError> {
        let flow = self
            .directory
            .find(key)
            .ok_or(EngineError::UnknownFlow(key))?;
        if !self.go(flow) {
            self.take_out(flow);
        }
        self.directory.remove(flow);
        Ok(())
    }

    pub(super) fn drop_session(&mut self, session: u32) {
        let of_session = |&flow: &u32| self.directory.key(flow).session() == session;
        let flows: Vec<u32> = self.directory.flows().filter(of_session).collect();
        self.settle_pending();
        for flow in flows {
            self.take_out(flow);
            self.directory.remove(flow);
        }
    }

    pub(super) fn reroute(&mut self, key: FlowKey, links: &LinkPath) -> Result<(), EngineError> {
        let flow = self
            .directory
            .find(key)
            .ok_or(EngineError::UnknownFlow(key))?;
        self.check_path(key, links)?;
        self.settle_pending();
        let terms = Terms {
            // On its new links, no sum has its rate.
            rate: 0.0,
            ..self.take_out(flow)
        };
        self.answer_start(flow, links, &terms);
        self.put_in(flow, links, &terms)
    }

    pub(super) fn set_capacity(&mut self, link: u32, capacity_bps: f64) -> Result<(), EngineError> {
        let capacity = derated(capacity_bps, derating(&self.config))?;
        let links = self.capacities.len();
        let Some(known) = self.capacities.get_mut(link as usize) else {
            return Err(EngineError::UnknownLink { link, links });
        };
        *known = capacity as f32;
        self.settle_pending();
        let place = self.shared.layout.place(link);
        write(&self.shared.link_blocks[place.link_block as usize])
            .set_capacity(place.index as usize, capacity as f32);
        self.renew_knees(place);
        self.answer_capacity(link);
        for loose in &self.shared.loose {
            for flow in &mut lock(loose).flows {
                if flow.path().contains(&link) {
                    let capacity = path_capacity(&flow.links, &self.capacities);
                    flow.set_limit(&self.config.classes, capacity);
                }
            }
        }
        Ok(())
    }

    fn check_path(&self, key: FlowKey, links: &LinkPath) -> Result<(), EngineError> {
        if links.is_empty() || links.len() > MAX_PATH_LINKS {
            return Err(EngineError::BadPath(key));
        }
        for (i, &link) in links.iter().enumerate() {
            if link as usize >= self.capacities.len() {
                return Err(EngineError::UnknownLink {
                    link,
                    links: self.capacities.len(),
                });
            }
            if links[..i].contains(&link) {
                return Err(EngineError::BadPath(key));
            }
        }
        Ok(())
    }

    /// The two ends of a path that rows can hold: up its host's link, at most one fabric link and one
    /// core link of that on either side, down its host's link.
    fn ends(&self, links: &LinkPath) -> Option<(usize, [End; 2])> {
        let layout = &self.shared.layout;
        let blocks = layout.blocks;
        let place = |i: usize| layout.place(links[i]);
        let (source, destination) = (place(0), place(links.len() - 1));
        let hosts = source.role == Role::Host && destination.role == Role::Host;
        let [from, to] = [source, destination].map(|place| u32::from(place.link_block));
        if !hosts || from >= blocks || to < blocks {
            return None;
        }
        let to = to - blocks;
        let over_cores = links.len() == 6;
        let index = layout.flow_block(from, to, over_cores)?;
        let shape = layout.flow_block_shape(index);
        let (fabric, cores) = match links.len() {
            2 => ([None; 2], [None; 2]),
            4 => ([Some(place(1)), Some(place(2))], [None; 2]),
            6 => (
                [Some(place(1)), Some(place(4))],
                [Some(place(2)), Some(place(3))],
            ),
            _ => return None,
        };
        let end = |side: usize, host: Place| {
            let table = host.table();
            let of_block = &layout.shapes[host.link_block as usize];
            let slot = match fabric[side] {
                Some(place) => {
                    let of_rack = place.link_block == host.link_block
                        && layout.rack_of(&place) == layout.rack_of(&host);
                    if place.role != Role::Fabric || !of_rack {
                        return None;
                    }
                    place.slot() - HOST_SLOTS as u8
                }
                None => of_block.empty_slot[table]?,
            };
            debug_assert!(usize::from(slot) < FABRIC_SLOTS);
            let plane = match (cores[side], shape.core_links) {
                (Some(place), Some(core_links)) => {
                    let of_pod = place.link_block as usize == core_links[side]
                        && place.table() == of_block.pod_tables[table] as usize;
                    let of_switch = place.slot() % LANES as u8 == slot;
                    if place.role != Role::Core || !of_pod || !of_switch {
                        return None;
                    }
                    Some(place.slot() / LANES as u8)
                }
                _ => None,
            };
            Some(End {
                table: table as u16,
                slots: Slots {
                    host: host.slot(),
                    fabric: slot,
                    no_fabric: fabric[side].is_none(),
                    plane,
                },
            })
        };
        Some((index, [end(0, source)?, end(1, destination)?]))
    }

    fn put_in(&mut self, flow: u32, links: &LinkPath, terms: &Terms) -> Result<(), EngineError> {
        let capacity = path_capacity(links, &self.capacities);
        let is_log = matches!(self.config.classes.utility(terms.class), UtilityKind::Log);
        if is_log
            && terms.class == 0
            && terms.demand == f64::INFINITY
            && let Some((block, ends)) = self.ends(links)
        {
            let state = CellState {
                flow,
                weight: terms.weight as f32,
                knee: knee(terms.weight, capacity),
                rate: terms.rate as f32,
                told: terms.told as f32,
            };
            if !self.immediate {
                self.come(block, ends, state);
                return Ok(());
            }
            let mut cells = lock(&self.shared.flow_blocks[block]);
            let block = block as u16;
            let directory = &mut self.directory;
            let mut moved = |flow, cell| directory.set_home(flow, Home::Cell { block, cell });
            if let Some(cell) = cells.insert(ends, state, &mut moved) {
                self.directory.set_home(flow, Home::Cell { block, cell });
                return Ok(());
            }
        }
        let utility = self.config.classes.utility(terms.class);
        let loose = LooseFlow {
            flow,
            class: terms.class,
            links: links.clone(),
            weight: terms.weight,
            demand: terms.demand,
            limit: Limit::new(utility, terms.weight, terms.demand, capacity),
            rate: terms.rate,
            told: terms.told,
        };
        if self.put_in_list(loose) {
            Ok(())
        } else {
            Err(EngineError::Full {
                max_flows: MAX_LOOSE_PER_WORKER,
            })
        }
    }

    /// Takes a flow out of where it lives, and notes that it is gone; its number stays.
    fn take_out(&mut self, flow: u32) -> Terms {
        match self.directory.home(flow) {
            Home::Cell { block, cell } => {
                let mut cells = lock(&self.shared.flow_blocks[usize::from(block)]);
                let state = cells.state(cell);
                if let Some(answers) = &mut self.answers {
                    let ends = cells.ends(cell);
                    let leaves = EndsOf { ends, state };
                    answers.leave_cell(&self.shared.layout, &cells.shape(), &leaves);
                }
                cells.remove(cell);
                Terms {
                    class: 0,
                    weight: f64::from(state.weight),
                    demand: f64::INFINITY,
                    rate: f64::from(state.rate),
                    told: f64::from(state.told),
                }
            }
            Home::Loose { worker, index } => {
                let mut list = lock(&self.shared.loose[usize::from(worker)]);
                let old = list.flows.swap_remove(index as usize);
                if let Some(answers) = &mut self.answers {
                    answers.leave_links(&self.shared.layout, &old);
                }
                if let Some(moved) = list.flows.get(index as usize) {
                    self.directory
                        .set_home(moved.flow, Home::Loose { worker, index });
                }
                self.shared.loose_count.fetch_sub(1, Ordering::Relaxed);
                Terms {
                    class: old.class,
                    weight: old.weight,
                    demand: old.demand,
                    rate: old.rate,
                    told: old.told,
                }
            }
        }
    }

    /// Computes the knees of the flows over a link anew: of those that share its table, if it has any.
    fn renew_knees(&self, place: Place) {
        if place.role == Role::Loose {
            return;
        }
        let tables: Vec<usize> = std::iter::once(place.table())
            .chain(self.copies_of(place))
            .collect();
        let link_block = place.link_block as usize;
        for block in &self.shared.flow_blocks {
            let mut block = lock(block);
            let cores = block.core_blocks.unwrap_or([usize::MAX; 2]);
            let up = block.up_block == link_block || cores[0] == link_block;
            if !up && block.down_block != link_block && cores[1] != link_block {
                continue;
            }
            for down_cell in cells_over(&self.shared.layout, &block, up, place, &tables) {
                let capacity = self.capacity_of(&block, down_cell);
                let weight = block.state(down_cell).weight;
                let knee = knee(f64::from(weight), f64::from(capacity));
                block.set_terms(down_cell, weight, knee);
            }
        }
    }

    /// The smallest capacity on the path of the flow in a downward cell.
    fn capacity_of(&self, block: &FlowBlock, cell: Cell) -> f32 {
        let link_blocks = [block.up_block, block.down_block];
        let mut least = f32::INFINITY;
        for (side, end) in block.ends(cell).into_iter().enumerate() {
            let link_block = link_blocks[side];
            let (table, slots) = (usize::from(end.table), end.slots);
            let shape = &self.shared.layout.shapes[link_block];
            let links = read(&self.shared.link_blocks[link_block]);
            let base = table * TABLE_SLOTS;
            least = least.min(links.capacity(base + usize::from(slots.host)));
            if shape.empty_slot[table] != Some(slots.fabric) {
                let fabric = base + HOST_SLOTS + usize::from(slots.fabric);
                least = least.min(links.capacity(fabric));
            }
            if let (Some(cores), Some(index)) = (block.core_blocks, pod_index(shape, table, slots))
            {
                least = least.min(read(&self.shared.link_blocks[cores[side]]).capacity(index));
            }
        }
        least
    }

    /// The tables of the rack of a fabric link besides the first.
    fn copies_of(&self, place: Place) -> Vec<usize> {
        let copies = &self.shared.layout.shapes[place.link_block as usize].copies;
        copies_of(copies, place.index)
            .map(|copy| copy as usize / TABLE_SLOTS)
            .collect()
    }
}

/// Where in its pod's LinkBlock the core link of a flow of a table is.
pub(super) fn pod_index(shape: &LinkBlockShape, table: usize, slots: Slots) -> Option<usize> {
    let slot = usize::from(slots.plane?) * LANES + usize::from(slots.fabric);
    Some(shape.pod_tables[table] as usize * TABLE_SLOTS + slot)
}

/// The cells of the flows of a FlowBlock over a link, which `tables` of its LinkBlock hold.
fn cells_over(
    layout: &Layout,
    block: &FlowBlock,
    up: bool,
    place: Place,
    tables: &[usize],
) -> Vec<Cell> {
    let (link_block, apart, joint) = if up {
        (block.up_block, &block.up, &block.joint.up)
    } else {
        (block.down_block, &block.down, &block.joint.down)
    };
    let slot = usize::from(place.slot());
    let of_link = |slots: Slots| {
        let fabric = usize::from(slots.fabric);
        let of_plane = |plane| usize::from(plane) * LANES + fabric == slot;
        match place.role {
            Role::Host => usize::from(slots.host) == slot,
            Role::Fabric => HOST_SLOTS + fabric == slot,
            Role::Core => slots.plane.is_some_and(of_plane),
            Role::Loose => false,
        }
    };
    let mut cells = Vec::new();
    for table in 0..apart.tables() {
        let holder = match place.role {
            Role::Core => layout.shapes[link_block].pod_tables[table] as usize,
            _ => table,
        };
        if !tables.contains(&holder) {
            continue;
        }
        let over = apart
            .cells(table)
            .filter(|&cell| of_link(apart.slots(cell)));
        cells.extend(over.map(|cell| if up { block.down_of(cell) } else { cell }));
        let over = joint
            .cells(table)
            .filter(|&cell| of_link(joint.slots(cell)));
        cells.extend(over.map(|cell| {
            let (row, lane) = split(cell);
            JointRows::cell(row, lane)
        }));
    }
    cells
}

/// The path price below which a log flow has its path's whole capacity.
pub(super) fn knee(weight: f64, capacity: f64) -> f32 {
    ((weight / capacity) as f32).min(CUT_KNEE)
}
