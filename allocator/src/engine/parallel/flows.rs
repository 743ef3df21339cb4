//! Starts, ends, reroutes and capacities: placement of flows in rows or on the scalar path.

use super::cell::{
    CellFlow, CellState, FlowEnd, NEVER_NOTIFIED, SaturationPrice, Slots, Terms, queued_position,
    split,
};
use super::directory::{Location, MAX_SCALAR_PER_WORKER};
use super::flow_block::FlowBlock;
use super::lanes::{CellIndex, FABRIC_SLOTS, HOST_SLOTS, LANES, TABLE_SLOTS};
use super::layout::{Layout, LinkPlace, Role, pod_index, replicas_of};
use super::price_correction::StartKind;
use super::rack_pair_rows::RackPairRows;
use super::scalar_flows::{Cause, ScalarFlow};
use super::state::RowUpdates;
use super::sync::{lock, read, write};
use super::{ParallelEngine, derated, derating, in_single};
use crate::engine::{EngineError, FlowKey, FlowSpec, LinkPath, MAX_PATH_LINKS};
use crate::num::utility::UtilityKind;
use crate::num::{RATE_UNIT_BPS, RateLimit, path_capacity};

/// Bounds of a weight, which keep passes within single precision.
const WEIGHTS: std::ops::RangeInclusive<f64> = 1e-12..=1e12;

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
        let weight = weight.clamp(*WEIGHTS.start(), *WEIGHTS.end());
        let demand = spec.demand_bps.min(class.max_rate_bps) / RATE_UNIT_BPS;
        let max_flows = self.config.max_flows;
        let known = self.directory.find(spec.key);
        if self.directory.len() >= max_flows && known.is_none() {
            return Err(EngineError::Full { max_flows });
        }
        let terms = Terms {
            class: spec.class,
            weight,
            demand,
            rate: 0.0,
            notified: f64::from(NEVER_NOTIFIED),
        };
        // A second start of a known key is one of two things: new terms in place, or another flow
        // under the same key.
        let flow = match known {
            Some(flow) => {
                if self.change_demand(flow, &spec.links, &terms) {
                    return Ok(());
                }
                // Its cell may still be queued; removing needs a real one.
                self.apply_batches();
                self.remove_flow(flow);
                flow
            }
            None => self.directory.insert(spec.key),
        };
        self.note_start(flow, &spec.links, &terms, StartKind::Newcomer);
        self.place_flow(flow, &spec.links, &terms)
    }

    /// Changes the demand of a flow in place, if nothing else about it changes. Returns true if so.
    /// A flow whose demand grows or stays the same is notified of its rate like one that starts.
    fn change_demand(&mut self, flow: u32, links: &LinkPath, new: &Terms) -> bool {
        match self.directory.location(flow) {
            Location::Cell { block, cell } => {
                let index = usize::from(block);
                // A path through another FlowBlock needs another cell.
                if self.is_log(new.class)
                    && let Some((of_path, ends)) = self.ends(links)
                    && of_path == index
                {
                    return self.change_in_row(flow, (index, cell), ends, links, new);
                }
                false
            }
            Location::Scalar { worker, index } => {
                let mut list = lock(&self.shared.scalar_flows[usize::from(worker)]);
                let of_flow = &mut list.flows[index as usize];
                // Rows keep no class, so a log flow that only lacks space may change between log
                // classes.
                let of_rows = of_flow.cause == Cause::NoRoom && self.is_log(new.class);
                let same_class = of_flow.class == new.class || of_rows;
                if !same_class || of_flow.weight != new.weight || of_flow.links != *links {
                    return false;
                }
                let old = of_flow.clone();
                let grows = new.demand >= old.demand;
                of_flow.demand = new.demand;
                if grows {
                    of_flow.notified = f64::from(NEVER_NOTIFIED);
                }
                if new.demand != old.demand {
                    let capacity = path_capacity(links, &self.capacities);
                    of_flow.set_limit(&self.config.classes, capacity);
                    drop(list);
                    if let Some(correction) = &mut self.correction {
                        correction.note_scalar_leaving(&self.shared.layout, &old);
                    }
                    self.note_start(flow, links, new, StartKind::Known { notify: grows });
                }
                true
            }
        }
    }

    fn change_in_row(
        &mut self,
        flow: u32,
        (block, cell): (usize, CellIndex),
        ends: [FlowEnd; 2],
        links: &LinkPath,
        new: &Terms,
    ) -> bool {
        let capacity = path_capacity(links, &self.capacities);
        let next = new.state(flow, capacity);
        // Compared in single precision, as the cell stores it.
        let same = |old: &CellFlow| old.ends == ends && old.state.weight == next.weight;
        // Not yet in any sum: the queued start is replaced by one with the new demand.
        if let Some(place) = queued_position(cell) {
            let mut batch = lock(&self.shared.batches[block]);
            let queued = batch.insert_at(place);
            if !same(queued) {
                return false;
            }
            queued.state.demand = next.demand;
            queued.state.saturation_price = next.saturation_price;
            queued.state.notified = NEVER_NOTIFIED;
            drop(batch);
            if let Some(correction) = &mut self.correction {
                correction.cancel_start(flow);
            }
            self.note_start(flow, links, new, StartKind::Known { notify: true });
            return true;
        }
        let mut cells = lock(&self.shared.flow_blocks[block]);
        let old = CellFlow {
            ends: cells.ends(cell),
            state: cells.state(cell),
        };
        if !same(&old) {
            return false;
        }
        let grows = next.demand >= old.state.demand;
        if grows {
            cells.forget_notified(cell);
        }
        if next.demand != old.state.demand {
            cells.set_terms(cell, next.weight, next.demand, next.saturation_price);
            let shape = cells.shape();
            drop(cells);
            if let Some(correction) = &mut self.correction {
                correction.note_cell_leaving(&self.shared.layout, &shape, &old);
            }
            self.note_start(flow, links, new, StartKind::Known { notify: grows });
        }
        true
    }

    fn is_log(&self, class: u8) -> bool {
        matches!(self.config.classes.utility(class), UtilityKind::Log)
    }

    pub(super) fn end(&mut self, key: FlowKey) -> Result<(), EngineError> {
        let flow = self
            .directory
            .find(key)
            .ok_or(EngineError::UnknownFlow(key))?;
        if !self.queue_remove(flow) {
            self.remove_flow(flow);
        }
        self.directory.remove(flow);
        Ok(())
    }

    /// Ends the flows of a session. Its cost does not depend on other sessions.
    pub(super) fn drop_session(&mut self, session: u32) {
        while let Some(flow) = self.directory.first_of(session) {
            if !self.queue_remove(flow) {
                self.remove_flow(flow);
            }
            self.directory.remove(flow);
        }
    }

    pub(super) fn reroute(&mut self, key: FlowKey, links: &LinkPath) -> Result<(), EngineError> {
        let flow = self
            .directory
            .find(key)
            .ok_or(EngineError::UnknownFlow(key))?;
        self.check_path(key, links)?;
        let terms = match self.queue_move(flow) {
            Some(terms) => terms,
            None => {
                self.apply_batches();
                self.remove_flow(flow)
            }
        };
        // The sums of its new links do not contain its rate.
        let terms = Terms { rate: 0.0, ..terms };
        self.note_start(flow, links, &terms, StartKind::Known { notify: true });
        self.place_flow(flow, links, &terms)
    }

    /// Queues a flow's removal from its cell and returns its terms, so that it can be inserted
    /// elsewhere in the same iteration.
    fn queue_move(&mut self, flow: u32) -> Option<Terms> {
        let Location::Cell { block, cell } = self.directory.location(flow) else {
            return None;
        };
        // Events are applied at once, or the flow has no cell yet: the caller moves it itself.
        if self.row_updates == RowUpdates::AtOnce || queued_position(cell).is_some() {
            return None;
        }
        let cells = lock(&self.shared.flow_blocks[usize::from(block)]);
        let leaves = CellFlow {
            ends: cells.ends(cell),
            state: cells.state(cell),
        };
        if let Some(correction) = &mut self.correction {
            correction.note_cell_leaving(&self.shared.layout, &cells.shape(), &leaves);
        }
        drop(cells);
        lock(&self.shared.batches[usize::from(block)]).queue_noted_remove(cell);
        self.row_updates = RowUpdates::Queued;
        Some(self.kept(&leaves.state))
    }

    /// Terms of a flow in a cell.
    fn kept(&self, state: &CellState) -> Terms {
        Terms {
            class: self.config.classes.log_class(),
            weight: f64::from(state.weight),
            demand: f64::from(state.demand),
            rate: f64::from(state.rate),
            notified: f64::from(state.notified),
        }
    }

    pub(super) fn set_capacity(&mut self, link: u32, capacity_bps: f64) -> Result<(), EngineError> {
        let capacity = derated(capacity_bps, derating(&self.config))?;
        let links = self.capacities.len();
        let Some(known) = self.capacities.get_mut(link as usize) else {
            return Err(EngineError::UnknownLink { link, links });
        };
        let capacity = in_single(capacity);
        *known = capacity;
        // Saturation prices below are written into cells, so queued flows need theirs first.
        self.apply_batches();
        let place = self.shared.layout.place(link);
        write(&self.shared.link_blocks[place.link_block as usize])
            .set_capacity(place.index as usize, capacity);
        self.update_saturation_prices(place);
        self.note_capacity(link);
        for scalar in &self.shared.scalar_flows {
            for flow in &mut lock(scalar).flows {
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

    /// FlowBlock and ends of a path that rows can hold: up its host's link, at most one fabric link
    /// and one core link on either side, down its host's link.
    pub(super) fn ends(&self, links: &LinkPath) -> Option<(usize, [FlowEnd; 2])> {
        let layout = &self.shared.layout;
        let blocks = layout.blocks;
        let place = |i: usize| layout.place(links[i]);
        let (source, destination) = (place(0), place(links.len() - 1));
        let hosts = source.role == Role::Host && destination.role == Role::Host;
        let [from, to] = [source, destination].map(|place| u32::from(place.link_block));
        // The layout numbers upward LinkBlocks below `blocks` and downward ones above.
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
        let end = |side: usize, host: LinkPlace| {
            let table = host.table();
            let of_block = &layout.shapes[host.link_block as usize];
            let slot = match fabric[side] {
                Some(place) => {
                    // The fabric link has to be of this rack: a row's flows share one table.
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
                    // In a pod's table the lane is the fabric slot, so the core link has to be of
                    // the switch that the fabric link leads to.
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
            Some(FlowEnd {
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

    fn place_flow(
        &mut self,
        flow: u32,
        links: &LinkPath,
        terms: &Terms,
    ) -> Result<(), EngineError> {
        let capacity = path_capacity(links, &self.capacities);
        let is_log = self.is_log(terms.class);
        let mut cause = Cause::Utility;
        if is_log {
            cause = Cause::Path;
        }
        // Only log flows stand in rows: passes know one utility.
        if is_log && let Some((block, ends)) = self.ends(links) {
            let state = terms.state(flow, capacity);
            if self.row_updates != RowUpdates::AtOnce {
                self.queue_insert(block, ends, state);
                return Ok(());
            }
            let mut cells = lock(&self.shared.flow_blocks[block]);
            let block = block as u16;
            let directory = &mut self.directory;
            let mut relocate =
                |flow, cell| directory.set_location(flow, Location::Cell { block, cell });
            if let Some(cell) = cells.insert(ends, state, &mut relocate) {
                self.directory
                    .set_location(flow, Location::Cell { block, cell });
                return Ok(());
            }
            cause = Cause::NoRoom;
        }
        let utility = self.config.classes.utility(terms.class);
        let scalar_flow = ScalarFlow {
            flow,
            class: terms.class,
            links: links.clone(),
            weight: terms.weight,
            demand: terms.demand,
            limit: RateLimit::new(utility, terms.weight, terms.demand, capacity),
            rate: terms.rate,
            notified: terms.notified,
            cause,
        };
        if self.add_scalar(scalar_flow) {
            Ok(())
        } else {
            Err(EngineError::Full {
                max_flows: MAX_SCALAR_PER_WORKER,
            })
        }
    }

    /// Removes a flow from its cell or list, and notes that it is gone. Its number stays.
    fn remove_flow(&mut self, flow: u32) -> Terms {
        match self.directory.location(flow) {
            Location::Cell { block, cell } => {
                let mut cells = lock(&self.shared.flow_blocks[usize::from(block)]);
                let state = cells.state(cell);
                if let Some(correction) = &mut self.correction {
                    let ends = cells.ends(cell);
                    let leaves = CellFlow { ends, state };
                    correction.note_cell_leaving(&self.shared.layout, &cells.shape(), &leaves);
                }
                cells.remove(cell);
                drop(cells);
                self.kept(&state)
            }
            Location::Scalar { worker, index } => {
                let old = self.remove_scalar(usize::from(worker), index as usize);
                if let Some(correction) = &mut self.correction {
                    correction.note_scalar_leaving(&self.shared.layout, &old);
                }
                Terms {
                    class: old.class,
                    weight: old.weight,
                    demand: old.demand,
                    rate: old.rate,
                    notified: old.notified,
                }
            }
        }
    }

    /// Recomputes the saturation prices of all flows over a link.
    fn update_saturation_prices(&self, place: LinkPlace) {
        // No row holds flows over scalar links.
        if place.role == Role::Scalar {
            return;
        }
        // Flows use the link through its own table and through every replica.
        let tables: Vec<usize> = std::iter::once(place.table())
            .chain(self.replica_tables(place))
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
                let CellState { weight, demand, .. } = block.state(down_cell);
                let [of_weight, of_demand] = [weight, demand].map(f64::from);
                let saturation_price =
                    SaturationPrice::new(of_weight, of_demand, f64::from(capacity));
                block.set_terms(down_cell, weight, demand, saturation_price);
            }
        }
    }

    /// Smallest capacity on the path of the flow in a cell, in Gbit/s.
    fn capacity_of(&self, block: &FlowBlock, cell: CellIndex) -> f32 {
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

    /// Further tables of a fabric link's rack, which hold replicas of the link.
    fn replica_tables(&self, place: LinkPlace) -> Vec<usize> {
        let replicas = &self.shared.layout.shapes[place.link_block as usize].replicas;
        replicas_of(replicas, place.index)
            .map(|replica| replica as usize / TABLE_SLOTS)
            .collect()
    }
}

/// Cells of a FlowBlock's flows over a link that the given tables of its LinkBlock hold.
fn cells_over(
    layout: &Layout,
    block: &FlowBlock,
    up: bool,
    place: LinkPlace,
    tables: &[usize],
) -> Vec<CellIndex> {
    let (link_block, in_rack_rows, pairs) = if up {
        (block.up_block, &block.up, &block.pairs.up)
    } else {
        (block.down_block, &block.down, &block.pairs.down)
    };
    let slot = usize::from(place.slot());
    let of_link = |slots: Slots| {
        let fabric = usize::from(slots.fabric);
        let of_plane = |plane| usize::from(plane) * LANES + fabric == slot;
        match place.role {
            Role::Host => usize::from(slots.host) == slot,
            Role::Fabric => HOST_SLOTS + fabric == slot,
            Role::Core => slots.plane.is_some_and(of_plane),
            Role::Scalar => false,
        }
    };
    let mut cells = Vec::new();
    for table in 0..in_rack_rows.tables() {
        let holder = match place.role {
            Role::Core => layout.shapes[link_block].pod_tables[table] as usize,
            _ => table,
        };
        if !tables.contains(&holder) {
            continue;
        }
        let over = in_rack_rows
            .cells(table)
            .filter(|&cell| of_link(in_rack_rows.slots(cell)));
        cells.extend(over.map(|cell| if up { block.down_cell_of(cell) } else { cell }));
        let over = pairs
            .cells(table)
            .filter(|&cell| of_link(pairs.slots(cell)));
        cells.extend(over.map(|cell| {
            let (row, lane) = split(cell);
            RackPairRows::cell(row, lane)
        }));
    }
    cells
}
