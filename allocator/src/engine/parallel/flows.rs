//! Flows under events: starts, ends, reroutes and capacities.

use super::cell::{
    CellFlow, CellState, FlowEnd, NEVER_NOTIFIED, SaturationPrice, Slots, Terms, queued_position,
    split,
};
use super::directory::{FlowDirectory, Location};
use super::flow_block::FlowBlock;
use super::lanes::{CellIndex, HOST_SLOTS, LANES, TABLE_SLOTS};
use super::layout::{Layout, LinkPlace, Role, pod_index, replicas_of, row_ends};
use super::price_correction::{Corrected, PriceCorrection, StartKind};
use super::rack_pair_rows::RackPairRows;
use super::scalar_flows::{Cause, ScalarTally};
use super::shared::ParallelState;
use super::state::RowUpdates;
use super::sync::{lock, read, write};
use crate::engine::{
    EngineConfig, EngineError, FlowNumber, FlowSpec, LinkPath, MAX_PATH_LINKS, StepRule,
};
use crate::num::{RATE_UNIT_BPS, path_capacity};

/// Bounds of a weight, which keep passes within single precision.
const WEIGHTS: std::ops::RangeInclusive<f64> = 1e-12..=1e12;

/// Upper bound of a capacity, in Gbit/s; a larger one counts as this.
const MOST_CAPACITY: f64 = 1e12;

/// Flows of the engine, as far as events change them: numbers, places, and what prices are
/// corrected for. Rates and terms are in rows and lists, which workers share.
pub(super) struct EngineFlows {
    max_flows: usize,
    derating: f64,
    /// Derated capacities in Gbit/s, by link.
    pub(super) capacities: Vec<f32>,
    pub(super) directory: FlowDirectory,
    pub(super) row_updates: RowUpdates,
    /// Events that prices are corrected for, under the safeguarded rule.
    pub(super) correction: Option<PriceCorrection>,
    pub(super) scalars: ScalarTally,
}

impl EngineFlows {
    /// Makes the state without flows, for links of these capacities.
    ///
    /// # Errors
    /// A capacity is out of range.
    pub(super) fn new(
        config: &EngineConfig,
        layout: &Layout,
        capacities_bps: &[f64],
    ) -> Result<Self, EngineError> {
        let derating = derating(config);
        let mut capacities = Vec::with_capacity(capacities_bps.len());
        for &capacity_bps in capacities_bps {
            capacities.push(derated(capacity_bps, derating)?);
        }
        Ok(Self {
            max_flows: config.max_flows,
            derating,
            capacities,
            directory: FlowDirectory::default(),
            row_updates: RowUpdates::Current,
            correction: (config.step_rule == StepRule::Safeguarded)
                .then(|| PriceCorrection::new(layout)),
            scalars: ScalarTally::default(),
        })
    }

    /// Corrects prices for the events since the last correction; see [`PriceCorrection::correct`].
    pub(super) fn correct_prices(&mut self, shared: &ParallelState, notify: bool) -> Corrected {
        match &mut self.correction {
            Some(correction) => correction.correct(shared, &self.directory, notify),
            None => Corrected::Nothing,
        }
    }

    /// Notes a flow that starts, or comes back with other terms.
    fn note_start(
        &mut self,
        shared: &ParallelState,
        flow: u32,
        links: &LinkPath,
        terms: &Terms,
        start: StartKind,
    ) {
        if let Some(correction) = &mut self.correction {
            correction.note_start(shared, &self.capacities, flow, links, terms, start);
        }
    }

    pub(super) fn start(
        &mut self,
        shared: &ParallelState,
        spec: &FlowSpec,
    ) -> Result<(), EngineError> {
        self.check_path(spec.number, &spec.links)?;
        let Some(class) = shared.classes.get(spec.class) else {
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
        let max_flows = self.max_flows;
        let known = self.directory.find(spec.number);
        // Indexes are handed out densely, behind those of dummy flows.
        let has_room = self.directory.len() < max_flows
            && (spec.number.index() as usize) < max_flows + self.capacities.len();
        if known.is_none() && !has_room {
            return Err(EngineError::Full { max_flows });
        }
        let terms = Terms {
            class: spec.class,
            weight,
            demand,
            rate: 0.0,
            notified: f64::from(NEVER_NOTIFIED),
        };
        // A second start of a known number is one of two things: new terms in place, or another
        // path or class.
        let flow = match known {
            Some(flow) => {
                if self.change_demand(shared, flow, &spec.links, &terms) {
                    return Ok(());
                }
                // Its cell may still be queued; removing needs a real one.
                self.apply_batches(shared);
                self.remove_flow(shared, flow);
                flow
            }
            None => self.directory.insert(spec.number),
        };
        self.note_start(shared, flow, &spec.links, &terms, StartKind::Newcomer);
        self.place_flow(shared, flow, &spec.links, &terms)
    }

    /// Changes the demand of a flow in place, if nothing else about it changes. Returns true if so.
    /// A flow whose demand grows or stays the same is notified of its rate like one that starts.
    fn change_demand(
        &mut self,
        shared: &ParallelState,
        flow: u32,
        links: &LinkPath,
        new: &Terms,
    ) -> bool {
        match self.directory.location(flow) {
            Location::Cell { block, cell } => {
                let index = usize::from(block);
                // A path through another FlowBlock needs another cell.
                if new.is_log(&shared.classes)
                    && let Some((of_path, ends)) = row_ends(&shared.layout, links)
                    && of_path == index
                {
                    return self.change_in_row(shared, flow, (index, cell), ends, links, new);
                }
                false
            }
            Location::Scalar { worker, index } => {
                let mut list = lock(&shared.scalar_flows[usize::from(worker)]);
                let of_flow = &mut list.flows[index as usize];
                // Rows keep no class, so a log flow that only lacks space may change between log
                // classes.
                let of_rows = of_flow.cause == Cause::NoRoom && new.is_log(&shared.classes);
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
                    of_flow.set_limit(&shared.classes, capacity);
                    drop(list);
                    if let Some(correction) = &mut self.correction {
                        correction.note_scalar_leaving(&shared.layout, &old);
                    }
                    self.note_start(shared, flow, links, new, StartKind::Known { notify: grows });
                }
                true
            }
        }
    }

    fn change_in_row(
        &mut self,
        shared: &ParallelState,
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
            let mut batch = lock(&shared.batches[block]);
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
            self.note_start(shared, flow, links, new, StartKind::Known { notify: true });
            return true;
        }
        let mut cells = lock(&shared.flow_blocks[block]);
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
                correction.note_cell_leaving(&shared.layout, &shape, &old);
            }
            self.note_start(shared, flow, links, new, StartKind::Known { notify: grows });
        }
        true
    }

    pub(super) fn end(
        &mut self,
        shared: &ParallelState,
        number: FlowNumber,
    ) -> Result<(), EngineError> {
        let flow = self
            .directory
            .find(number)
            .ok_or(EngineError::UnknownFlow(number))?;
        if !self.queue_remove(shared, flow) {
            self.remove_flow(shared, flow);
        }
        self.directory.remove(flow);
        Ok(())
    }

    pub(super) fn reroute(
        &mut self,
        shared: &ParallelState,
        number: FlowNumber,
        links: &LinkPath,
    ) -> Result<(), EngineError> {
        let flow = self
            .directory
            .find(number)
            .ok_or(EngineError::UnknownFlow(number))?;
        self.check_path(number, links)?;
        let terms = match self.queue_move(shared, flow) {
            Some(terms) => terms,
            None => {
                self.apply_batches(shared);
                self.remove_flow(shared, flow)
            }
        };
        // The sums of its new links do not contain its rate.
        let terms = Terms { rate: 0.0, ..terms };
        let start = StartKind::Known { notify: true };
        self.note_start(shared, flow, links, &terms, start);
        self.place_flow(shared, flow, links, &terms)
    }

    pub(super) fn set_capacity(
        &mut self,
        shared: &ParallelState,
        link: u32,
        capacity_bps: f64,
    ) -> Result<(), EngineError> {
        let capacity = derated(capacity_bps, self.derating)?;
        let links = self.capacities.len();
        let Some(known) = self.capacities.get_mut(link as usize) else {
            return Err(EngineError::UnknownLink { link, links });
        };
        *known = capacity;
        // Saturation prices below are written into cells, so queued flows need theirs first.
        self.apply_batches(shared);
        let place = shared.layout.place(link);
        write(&shared.link_blocks[place.link_block as usize])
            .set_capacity(place.index as usize, capacity);
        update_saturation_prices(shared, place);
        if let Some(correction) = &mut self.correction {
            correction.note_capacity(place, capacity);
        }
        for scalar in &shared.scalar_flows {
            for flow in &mut lock(scalar).flows {
                if flow.path().contains(&link) {
                    let capacity = path_capacity(&flow.links, &self.capacities);
                    flow.set_limit(&shared.classes, capacity);
                }
            }
        }
        Ok(())
    }

    fn check_path(&self, number: FlowNumber, links: &LinkPath) -> Result<(), EngineError> {
        if links.is_empty() || links.len() > MAX_PATH_LINKS {
            return Err(EngineError::BadPath(number));
        }
        for (i, &link) in links.iter().enumerate() {
            if link as usize >= self.capacities.len() {
                return Err(EngineError::UnknownLink {
                    link,
                    links: self.capacities.len(),
                });
            }
            if links[..i].contains(&link) {
                return Err(EngineError::BadPath(number));
            }
        }
        Ok(())
    }
}

/// Share of a link that is allocated: the threshold and the mice's reserve are kept back (flowtune
/// §5.3.2, §6).
pub(super) fn derating(config: &EngineConfig) -> f64 {
    (1.0 - config.threshold) * (1.0 - config.mice_reserve)
}

/// Derated capacity in Gbit/s, bounded so that sums in single precision stay finite.
fn derated(capacity_bps: f64, derating: f64) -> Result<f32, EngineError> {
    if capacity_bps.is_finite() && capacity_bps >= 0.0 {
        Ok((capacity_bps * derating / RATE_UNIT_BPS).min(MOST_CAPACITY) as f32)
    } else {
        Err(EngineError::BadCapacity(capacity_bps))
    }
}

/// Recomputes the saturation prices of all flows over a link.
fn update_saturation_prices(shared: &ParallelState, place: LinkPlace) {
    // No row holds flows over scalar links.
    if place.role == Role::Scalar {
        return;
    }
    // Flows use the link through its own table and through every replica.
    let tables: Vec<usize> = std::iter::once(place.table())
        .chain(replica_tables(&shared.layout, place))
        .collect();
    let link_block = place.link_block as usize;
    for block in &shared.flow_blocks {
        let mut block = lock(block);
        let cores = block.core_blocks.unwrap_or([usize::MAX; 2]);
        let up = block.up_block == link_block || cores[0] == link_block;
        if !up && block.down_block != link_block && cores[1] != link_block {
            continue;
        }
        for down_cell in cells_over(&shared.layout, &block, up, place, &tables) {
            let capacity = capacity_of(shared, &block, down_cell);
            let CellState { weight, demand, .. } = block.state(down_cell);
            let [of_weight, of_demand] = [weight, demand].map(f64::from);
            let saturation_price = SaturationPrice::new(of_weight, of_demand, f64::from(capacity));
            block.set_terms(down_cell, weight, demand, saturation_price);
        }
    }
}

/// Smallest capacity on the path of the flow in a cell, in Gbit/s.
fn capacity_of(shared: &ParallelState, block: &FlowBlock, cell: CellIndex) -> f32 {
    let link_blocks = [block.up_block, block.down_block];
    let mut least = f32::INFINITY;
    for (side, end) in block.ends(cell).into_iter().enumerate() {
        let link_block = link_blocks[side];
        let (table, slots) = (usize::from(end.table), end.slots);
        let shape = &shared.layout.shapes[link_block];
        let links = read(&shared.link_blocks[link_block]);
        let base = table * TABLE_SLOTS;
        least = least.min(links.capacity(base + usize::from(slots.host)));
        if shape.empty_slot[table] != Some(slots.fabric) {
            let fabric = base + HOST_SLOTS + usize::from(slots.fabric);
            least = least.min(links.capacity(fabric));
        }
        if let (Some(cores), Some(index)) = (block.core_blocks, pod_index(shape, table, slots)) {
            least = least.min(read(&shared.link_blocks[cores[side]]).capacity(index));
        }
    }
    least
}

/// Further tables of a fabric link's rack, which hold replicas of the link.
fn replica_tables(layout: &Layout, place: LinkPlace) -> Vec<usize> {
    let replicas = &layout.shapes[place.link_block as usize].replicas;
    replicas_of(replicas, place.index)
        .map(|replica| replica as usize / TABLE_SLOTS)
        .collect()
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
