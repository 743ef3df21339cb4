//! Starts and ends that wait for the next iteration, by FlowBlock.
//!
//! What an event changes in a FlowBlock's rows is left to the worker that walks over them: it has them in
//! its cache, where the caller's thread would wait for a dozen of its cache lines, one after the other,
//! and leave them where the worker has to fetch them back from. And all workers do it at once.
//!
//! Flows that go leave before others come, whatever the order of the events: cells that are noted here
//! stay what they are until then. A flow that comes and goes between two iterations never gets a cell.

use super::cell::{CellFlow, CellState, FlowEnd, queued_cell, queued_position};
use super::directory::{Location, MAX_SCALAR_PER_WORKER};
use super::flow_block::FlowBlock;
use super::lanes::CellIndex;
use super::layout::{links_by_slot, slots_of};
use super::scalar_flows::{Cause, ScalarFlow};
use super::sync::lock;
use super::{Ordering, ParallelEngine};
use crate::engine::LinkPath;
use crate::num::utility::UtilityKind;
use crate::num::{RateLimit, path_capacity};

/// Set in the cell of a flow that goes and has been noted as one that left.
const NOTED: CellIndex = 1 << 31;
/// With so many flows that wait for one FlowBlock, they are not left to wait: the caller's thread does alone, and with
/// cold caches, what the workers would do at once.
const MAX_BATCH: usize = 1 << 11;

/// Flows without room in rows for which there is another look in an iteration.
const OVERFLOW_RETRIES: usize = 32;

/// Entries of a list that is kept while nothing happens.
const KEPT: usize = 16;
/// Entries of a list that are kept while events come. Rows that are put in order give all flows of a FlowBlock
/// new cells at once.
const KEPT_BUSY: usize = 1 << 8;

/// What waits for a FlowBlock, and what came of it.
#[derive(Debug, Default)]
pub(super) struct EventBatch {
    /// Cells of the flows that go.
    removes: Vec<CellIndex>,
    inserts: Vec<CellFlow>,
    /// Cells, the flows in them and the rates that they get before the next walk.
    rates: Vec<(CellIndex, u32, f32)>,
    /// Flows that have gone.
    removed: Vec<CellFlow>,
    /// Flows that have another cell now, in the order of their moves.
    relocations: Vec<(u32, CellIndex)>,
    /// Flows that rows have no room for.
    overflow: Vec<CellFlow>,
}

impl EventBatch {
    /// Gives the room back that nothing needs while nothing happens.
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

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        let ends = self.inserts.capacity() + self.removed.capacity() + self.overflow.capacity();
        ends * size_of::<CellFlow>()
            + self.removes.capacity() * size_of::<CellIndex>()
            + self.rates.capacity() * size_of::<(CellIndex, u32, f32)>()
            + self.relocations.capacity() * size_of::<(u32, CellIndex)>()
    }

    /// Whether flows wait.
    pub(super) fn has_events(&self) -> bool {
        !self.removes.is_empty() || !self.inserts.is_empty()
    }

    /// The flow that waits for its cell at a place.
    pub(super) fn insert_at(&mut self, place: usize) -> &mut CellFlow {
        &mut self.inserts[place]
    }

    /// A flow goes that has been noted as one that left.
    pub(super) fn queue_noted_remove(&mut self, cell: CellIndex) {
        self.removes.push(cell | NOTED);
    }

    pub(super) fn queue_first_rate(&mut self, cell: CellIndex, flow: u32, rate: f32) {
        self.rates.push((cell, flow, rate));
    }

    /// Gives flows the rates that were found for them.
    pub(super) fn apply_first_rates(&mut self, block: &mut FlowBlock) {
        for (cell, flow, rate) in self.rates.drain(..) {
            block.set_rate(cell, flow, rate);
        }
    }

    /// Lets flows go and takes others in.
    pub(super) fn apply(&mut self, block: &mut FlowBlock) {
        for cell in self.removes.drain(..) {
            if cell & NOTED != 0 {
                block.remove(cell & !NOTED);
                continue;
            }
            let (ends, state) = (block.ends(cell), block.state(cell));
            block.remove(cell);
            self.removed.push(CellFlow { ends, state });
        }
        for coming in self.inserts.drain(..) {
            let relocations = &mut self.relocations;
            let mut relocate = |flow, cell| relocations.push((flow, cell));
            match block.insert(coming.ends, coming.state, &mut relocate) {
                Some(cell) => self.relocations.push((coming.state.flow, cell)),
                None => self.overflow.push(coming),
            }
        }
    }

    /// Moves flows together and puts rows in order, if they need it. Returns whether they did.
    pub(super) fn compact(&mut self, block: &mut FlowBlock, tables: usize) -> bool {
        let relocations = &mut self.relocations;
        let mut relocate = |flow, cell| relocations.push((flow, cell));
        let packed = block.compact(tables, &mut relocate);
        let ordered = block.restore_table_order(&mut relocate);
        packed || ordered
    }
}

impl ParallelEngine {
    /// A flow is to have a cell of a FlowBlock.
    pub(super) fn queue_insert(&mut self, index: usize, ends: [FlowEnd; 2], state: CellState) {
        let block = index as u16;
        let mut pending = lock(&self.shared.batches[index]);
        let cell = queued_cell(pending.inserts.len());
        self.directory
            .set_location(state.flow, Location::Cell { block, cell });
        pending.inserts.push(CellFlow { ends, state });
        let many = pending.inserts.len() >= MAX_BATCH;
        drop(pending);
        self.has_batched_events = true;
        if many {
            self.apply_batches();
        }
    }

    /// A flow ends. Returns whether that was all, and else how it is to be done at once.
    pub(super) fn queue_remove(&mut self, flow: u32) -> bool {
        let Location::Cell { block, cell } = self.directory.location(flow) else {
            return false;
        };
        if self.applies_at_once {
            return false;
        }
        let mut pending = lock(&self.shared.batches[usize::from(block)]);
        if let Some(place) = queued_position(cell) {
            pending.inserts.swap_remove(place);
            if let Some(moved) = pending.inserts.get(place) {
                let cell = queued_cell(place);
                let location = Location::Cell { block, cell };
                self.directory.set_location(moved.state.flow, location);
            }
            if let Some(correction) = &mut self.correction {
                correction.cancel_start(flow);
            }
        } else {
            let correction = self.correction.as_mut();
            if correction.is_some_and(|correction| correction.forget_known(flow)) {
                pending.queue_noted_remove(cell);
            } else {
                pending.removes.push(cell);
            }
        }
        self.has_batched_events = true;
        true
    }

    /// Does at once what waits, and lets nothing wait until the next iteration.
    pub(super) fn apply_batches(&mut self) {
        self.applies_at_once = true;
        if !self.has_batched_events {
            return;
        }
        for (pending, block) in self.shared.batches.iter().zip(&self.shared.flow_blocks) {
            lock(pending).apply(&mut lock(block));
        }
        self.collect_batches();
    }

    /// Notes where flows are now that the FlowBlocks have done what waited for them.
    pub(super) fn collect_batches(&mut self) {
        self.has_batched_events = false;
        let mut unplaced = Vec::new();
        for (index, pending) in self.shared.batches.iter().enumerate() {
            let mut pending = lock(pending);
            let block = index as u16;
            for (flow, cell) in pending.relocations.drain(..) {
                self.directory
                    .set_location(flow, Location::Cell { block, cell });
            }
            if let Some(correction) = &mut self.correction {
                let shape = self.shared.layout.flow_block_shape(index);
                for left in &pending.removed {
                    correction.note_removed(&self.shared.layout, &shape, left);
                }
            }
            pending.removed.clear();
            unplaced.extend(pending.overflow.drain(..).map(|flow| (index, flow)));
            pending.shrink_to(KEPT_BUSY);
        }
        if !unplaced.is_empty() {
            self.add_overflow(&unplaced);
        }
    }

    /// Flows for which rows have no room are worked on one by one.
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

    /// Tries to find room in rows for a few of the flows that there was none for: others have ended since.
    pub(super) fn retry_overflow(&mut self) {
        for _ in 0..self.overflow.len().min(OVERFLOW_RETRIES) {
            let Some(flow) = self.overflow.pop_front() else {
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
            // Its number may be another flow's by now.
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
                self.overflow.push_back(flow);
                continue;
            };
            drop(cells);
            self.remove_scalar(usize::from(worker), index as usize);
            let block = block as u16;
            self.directory
                .set_location(flow, Location::Cell { block, cell });
        }
    }

    /// Takes a flow off the list of a worker.
    pub(super) fn remove_scalar(&mut self, worker: usize, index: usize) -> ScalarFlow {
        let mut list = lock(&self.shared.scalar_flows[worker]);
        let old = list.flows.swap_remove(index);
        if let Some(moved) = list.flows.get(index) {
            let location = Location::Scalar {
                worker: worker as u16,
                index: index as u32,
            };
            self.directory.set_location(moved.flow, location);
        }
        self.shared.scalar_count.fetch_sub(1, Ordering::Relaxed);
        self.scalar_by_cause[old.cause as usize] -= 1;
        old
    }

    /// Takes a flow into the list of a worker; returns whether there was room.
    pub(super) fn add_scalar(&mut self, flow: ScalarFlow) -> bool {
        let (number, cause) = (flow.flow, flow.cause);
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
            self.overflow.push_back(number);
        }
        self.scalar_by_cause[cause as usize] += 1;
        self.shared.scalar_count.fetch_add(1, Ordering::Relaxed);
        true
    }
}
