//! Starts and ends that are queued for the next iteration, by FlowBlock.
//!
//! The worker that owns a FlowBlock applies its events: it has the rows in its cache. The caller's
//! thread would wait for a dozen of their cache lines, one after the other, and leave them where
//! the worker has to fetch them back. All workers apply their events at once.
//!
//! Removals go before inserts, whatever the order of the events, so queued cells stay valid until
//! then. A flow that comes and goes between two iterations never gets a cell.

use super::cell::{CellFlow, CellState, FlowEnd, queued_cell, queued_position};
use super::directory::{Location, MAX_SCALAR_PER_WORKER};
use super::flow_block::FlowBlock;
use super::lanes::CellIndex;
use super::layout::{links_by_slot, slots_of};
use super::scalar_flows::{Cause, ScalarFlow};
use super::state::RowUpdates;
use super::sync::lock;
use super::{Ordering, ParallelEngine};
use crate::engine::LinkPath;
use crate::num::utility::UtilityKind;
use crate::num::{RateLimit, path_capacity};

/// Bit in a queued removal whose flow the price correction has noted already.
const NOTED: CellIndex = 1 << 31;
/// Queued inserts of a FlowBlock at which the queue is applied. The caller's thread does this alone
/// and with cold caches.
const MAX_BATCH: usize = 1 << 11;

/// Overflow flows that are tried again in an iteration.
const OVERFLOW_RETRIES: usize = 32;

/// Entries that lists keep while no event comes.
const KEPT: usize = 16;
/// Entries that lists keep while events come. Sorting rows relocates all flows of a FlowBlock at
/// once.
const KEPT_BUSY: usize = 1 << 8;

/// Queued events of a FlowBlock, and their results.
#[derive(Debug, Default)]
pub(super) struct EventBatch {
    /// Cells of the flows to remove; see [`NOTED`].
    removes: Vec<CellIndex>,
    inserts: Vec<CellFlow>,
    /// First rates to set before the next pass: cell, flow and rate in Gbit/s.
    rates: Vec<(CellIndex, u32, f32)>,
    /// Result: flows that were removed, for the price correction.
    removed: Vec<CellFlow>,
    /// Result: flows with new cells, in the order of the moves.
    relocations: Vec<(u32, CellIndex)>,
    /// Result: flows that rows have no space for.
    overflow: Vec<CellFlow>,
}

impl EventBatch {
    /// Frees memory that no event needs at present.
    pub(super) fn shrink(&mut self) {
        self.shrink_to(KEPT);
    }

    fn shrink_to(&mut self, kept: usize) {
        self.removes.shrink_to(kept);
        self.inserts.shrink_to(kept);
        self.rates.shrink_to(kept);
        self.removed.shrink_to(kept);
        self.relocations.shrink_to(kept);
        self.overflow.shrink_to(0);
    }

    /// Bytes of all lists.
    pub(super) fn bytes(&self) -> usize {
        let ends = self.inserts.capacity() + self.removed.capacity() + self.overflow.capacity();
        ends * size_of::<CellFlow>()
            + self.removes.capacity() * size_of::<CellIndex>()
            + self.rates.capacity() * size_of::<(CellIndex, u32, f32)>()
            + self.relocations.capacity() * size_of::<(u32, CellIndex)>()
    }

    /// True if events are queued.
    pub(super) fn has_events(&self) -> bool {
        !self.removes.is_empty() || !self.inserts.is_empty()
    }

    /// Queued insert at a position.
    pub(super) fn insert_at(&mut self, place: usize) -> &mut CellFlow {
        &mut self.inserts[place]
    }

    /// Queues the removal of a flow that the price correction has noted already.
    pub(super) fn queue_noted_remove(&mut self, cell: CellIndex) {
        self.removes.push(cell | NOTED);
    }

    pub(super) fn queue_first_rate(&mut self, cell: CellIndex, flow: u32, rate: f32) {
        self.rates.push((cell, flow, rate));
    }

    /// Sets the queued first rates.
    pub(super) fn apply_first_rates(&mut self, block: &mut FlowBlock) {
        for (cell, flow, rate) in self.rates.drain(..) {
            block.set_rate(cell, flow, rate);
        }
    }

    /// Applies the queued removals, then the queued inserts.
    pub(super) fn apply(&mut self, block: &mut FlowBlock) {
        for cell in self.removes.drain(..) {
            if cell & NOTED != 0 {
                block.remove(cell & !NOTED);
                continue;
            }
            // The flow's state is gone once it is removed, and the price correction needs it.
            let (ends, state) = (block.ends(cell), block.state(cell));
            block.remove(cell);
            self.removed.push(CellFlow { ends, state });
        }
        for queued in self.inserts.drain(..) {
            let relocations = &mut self.relocations;
            let mut relocate = |flow, cell| relocations.push((flow, cell));
            match block.insert(queued.ends, queued.state, &mut relocate) {
                Some(cell) => self.relocations.push((queued.state.flow, cell)),
                None => self.overflow.push(queued),
            }
        }
    }

    /// Compacts a FlowBlock and sorts its rows. Returns true if either found something to do.
    pub(super) fn compact(&mut self, block: &mut FlowBlock, tables: usize) -> bool {
        let relocations = &mut self.relocations;
        let mut relocate = |flow, cell| relocations.push((flow, cell));
        let refilled = block.compact(tables, &mut relocate);
        let ordered = block.restore_table_order(&mut relocate);
        refilled || ordered
    }
}

impl ParallelEngine {
    /// Queues a flow's insert into a FlowBlock.
    pub(super) fn queue_insert(&mut self, index: usize, ends: [FlowEnd; 2], state: CellState) {
        let block = index as u16;
        let mut batch = lock(&self.shared.batches[index]);
        let cell = queued_cell(batch.inserts.len());
        self.directory
            .set_location(state.flow, Location::Cell { block, cell });
        batch.inserts.push(CellFlow { ends, state });
        let many = batch.inserts.len() >= MAX_BATCH;
        // Unlocked first: `apply_batches` locks every batch.
        drop(batch);
        self.row_updates = RowUpdates::Queued;
        if many {
            self.apply_batches();
        }
    }

    /// Queues a flow's removal. Returns false if the flow has to be removed at once.
    pub(super) fn queue_remove(&mut self, flow: u32) -> bool {
        let Location::Cell { block, cell } = self.directory.location(flow) else {
            return false;
        };
        if self.row_updates == RowUpdates::AtOnce {
            return false;
        }
        let mut batch = lock(&self.shared.batches[usize::from(block)]);
        if let Some(place) = queued_position(cell) {
            // Not in a row yet: it only leaves the queue, and the last queued flow takes its
            // position.
            batch.inserts.swap_remove(place);
            if let Some(moved) = batch.inserts.get(place) {
                let cell = queued_cell(place);
                let location = Location::Cell { block, cell };
                self.directory.set_location(moved.state.flow, location);
            }
            if let Some(correction) = &mut self.correction {
                correction.cancel_start(flow);
            }
        } else {
            // A known flow with a changed demand was noted when it changed; noting it again would
            // subtract it twice.
            let correction = self.correction.as_mut();
            if correction.is_some_and(|correction| correction.forget_known(flow)) {
                batch.queue_noted_remove(cell);
            } else {
                batch.removes.push(cell);
            }
        }
        self.row_updates = RowUpdates::Queued;
        true
    }

    /// Applies all queued events now, and events until the next iteration at once.
    pub(super) fn apply_batches(&mut self) {
        let before = std::mem::replace(&mut self.row_updates, RowUpdates::AtOnce);
        if before != RowUpdates::Queued {
            return;
        }
        for (batch, block) in self.shared.batches.iter().zip(&self.shared.flow_blocks) {
            lock(batch).apply(&mut lock(block));
        }
        self.collect_batches();
    }

    /// Takes the results of applied events: new locations, removed flows, overflow.
    pub(super) fn collect_batches(&mut self) {
        let mut unplaced = Vec::new();
        for (index, batch) in self.shared.batches.iter().enumerate() {
            let mut batch = lock(batch);
            let block = index as u16;
            // In order: a flow may have moved more than once, and the last cell counts.
            for (flow, cell) in batch.relocations.drain(..) {
                self.directory
                    .set_location(flow, Location::Cell { block, cell });
            }
            if let Some(correction) = &mut self.correction {
                let shape = self.shared.layout.flow_block_shape(index);
                for removed in &batch.removed {
                    correction.note_removed(&self.shared.layout, &shape, removed);
                }
            }
            batch.removed.clear();
            unplaced.extend(batch.overflow.drain(..).map(|flow| (index, flow)));
            batch.shrink_to(KEPT_BUSY);
        }
        if !unplaced.is_empty() {
            self.add_overflow(&unplaced);
        }
    }

    /// Moves flows that rows have no space for to the scalar path.
    fn add_overflow(&mut self, flows: &[(usize, CellFlow)]) {
        let links_of = links_by_slot(&self.shared.layout);
        for (index, CellFlow { ends, state }) in flows {
            let shape = self.shared.layout.flow_block_shape(*index);
            let links: LinkPath = slots_of(&self.shared.layout, &shape, ends)
                .into_iter()
                .map(|(link_block, slot)| links_of[link_block][slot])
                .collect();
            let capacity = path_capacity(&links, &self.capacities);
            let [weight, demand] = [state.weight, state.demand].map(f64::from);
            let flow = ScalarFlow {
                flow: state.flow,
                class: self.config.classes.log_class(),
                links,
                weight,
                demand,
                limit: RateLimit::new(&UtilityKind::Log, weight, demand, capacity),
                rate: f64::from(state.rate),
                notified: f64::from(state.notified),
                cause: Cause::NoRoom,
            };
            self.add_scalar(flow);
        }
    }

    /// Tries to insert a few overflow flows into rows: other flows have ended since.
    pub(super) fn retry_overflow(&mut self) {
        for _ in 0..self.scalars.overflow.len().min(OVERFLOW_RETRIES) {
            let Some(flow) = self.scalars.overflow.pop_front() else {
                return;
            };
            if !self.directory.is_in_use(flow) {
                continue;
            }
            let Location::Scalar { worker, index } = self.directory.location(flow) else {
                continue;
            };
            let list = lock(&self.shared.scalar_flows[usize::from(worker)]);
            let of_flow = &list.flows[index as usize];
            let (links, cause) = (of_flow.links.clone(), of_flow.cause);
            let state = of_flow.state(path_capacity(&links, &self.capacities));
            drop(list);
            // The number may be another flow's by now, on the scalar path for another reason.
            if cause != Cause::NoRoom {
                continue;
            }
            let Some((block, ends)) = self.ends(&links) else {
                continue;
            };
            let mut cells = lock(&self.shared.flow_blocks[block]);
            let directory = &mut self.directory;
            let mut relocate = |flow, cell| {
                let block = block as u16;
                directory.set_location(flow, Location::Cell { block, cell });
            };
            let Some(cell) = cells.insert(ends, state, &mut relocate) else {
                drop(cells);
                self.scalars.overflow.push_back(flow);
                continue;
            };
            drop(cells);
            self.remove_scalar(usize::from(worker), index as usize);
            let block = block as u16;
            self.directory
                .set_location(flow, Location::Cell { block, cell });
        }
    }

    /// Removes a flow from a worker's scalar flows.
    pub(super) fn remove_scalar(&mut self, worker: usize, index: usize) -> ScalarFlow {
        let mut list = lock(&self.shared.scalar_flows[worker]);
        let old = list.flows.swap_remove(index);
        // `swap_remove` has moved the last flow to this index.
        if let Some(moved) = list.flows.get(index) {
            let location = Location::Scalar {
                worker: worker as u16,
                index: index as u32,
            };
            self.directory.set_location(moved.flow, location);
        }
        self.shared.scalar_count.fetch_sub(1, Ordering::Relaxed);
        self.scalars.by_cause[old.cause as usize] -= 1;
        old
    }

    /// Adds a flow to a worker's scalar flows. Returns false if the list is full.
    pub(super) fn add_scalar(&mut self, flow: ScalarFlow) -> bool {
        let (number, cause) = (flow.flow, flow.cause);
        // By number, so that the workers' lists are about equally long.
        let worker = number as usize % self.shared.workers;
        let mut list = lock(&self.shared.scalar_flows[worker]);
        if list.flows.len() >= MAX_SCALAR_PER_WORKER {
            drop(list);
            self.directory.remove(number);
            return false;
        }
        let location = Location::Scalar {
            worker: worker as u16,
            index: list.flows.len() as u32,
        };
        list.flows.push(flow);
        self.directory.set_location(number, location);
        drop(list);
        if cause == Cause::NoRoom {
            self.scalars.overflow.push_back(number);
        }
        self.scalars.by_cause[cause as usize] += 1;
        self.shared.scalar_count.fetch_add(1, Ordering::Relaxed);
        true
    }
}
