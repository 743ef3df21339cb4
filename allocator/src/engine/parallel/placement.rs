//! Placement of flows: in rows, by queues that the workers apply, or on the scalar path.

use std::sync::atomic::Ordering;

use super::cell::{CellFlow, CellState, FlowEnd, Terms, queued_cell, queued_position};
use super::directory::{Location, MAX_SCALAR_PER_WORKER};
use super::flows::EngineFlows;
use super::layout::{links_by_slot, row_ends, slots_of};
use super::scalar_flows::{Cause, ScalarFlow};
use super::shared::ParallelState;
use super::state::RowUpdates;
use super::sync::lock;
use crate::engine::{EngineError, LinkPath};
use crate::num::utility::UtilityKind;
use crate::num::{RateLimit, path_capacity};

/// Overflow flows that are tried again in an iteration.
const OVERFLOW_RETRIES: usize = 32;

impl EngineFlows {
    /// Places a flow in rows, or on the scalar path.
    ///
    /// # Errors
    /// The scalar path has no space.
    pub(super) fn place_flow(
        &mut self,
        shared: &ParallelState,
        flow: u32,
        links: &LinkPath,
        terms: &Terms,
    ) -> Result<(), EngineError> {
        let capacity = path_capacity(links, &self.capacities);
        let is_log = terms.is_log(&shared.classes);
        let mut cause = Cause::Utility;
        if is_log {
            cause = Cause::Path;
        }
        // Only log flows stand in rows: passes know one utility.
        if is_log && let Some((block, ends)) = row_ends(&shared.layout, links) {
            let state = terms.state(flow, capacity);
            if self.row_updates != RowUpdates::AtOnce {
                self.queue_insert(shared, block, ends, state);
                return Ok(());
            }
            if self.insert_at_once(shared, block, ends, state) {
                return Ok(());
            }
            cause = Cause::NoRoom;
        }
        let utility = shared.classes.utility(terms.class);
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
        if self.add_scalar(shared, scalar_flow) {
            Ok(())
        } else {
            Err(EngineError::Full {
                max_flows: MAX_SCALAR_PER_WORKER,
            })
        }
    }

    /// Removes a flow from its cell or list, and notes that it is gone. Its number stays.
    pub(super) fn remove_flow(&mut self, shared: &ParallelState, flow: u32) -> Terms {
        match self.directory.location(flow) {
            Location::Cell { block, cell } => {
                let mut cells = lock(&shared.flow_blocks[usize::from(block)]);
                let state = cells.state(cell);
                if let Some(correction) = &mut self.correction {
                    let ends = cells.ends(cell);
                    let leaves = CellFlow { ends, state };
                    correction.note_cell_leaving(&shared.layout, &cells.shape(), &leaves);
                }
                cells.remove(cell);
                drop(cells);
                Terms::of_cell(&shared.classes, &state)
            }
            Location::Scalar { worker, index } => {
                let old = self.remove_scalar(shared, usize::from(worker), index as usize);
                if let Some(correction) = &mut self.correction {
                    correction.note_scalar_leaving(&shared.layout, &old);
                }
                old.terms()
            }
        }
    }

    /// Queues a flow's removal from its cell and returns its terms, so that it can be inserted
    /// elsewhere in the same iteration.
    pub(super) fn queue_move(&mut self, shared: &ParallelState, flow: u32) -> Option<Terms> {
        let Location::Cell { block, cell } = self.directory.location(flow) else {
            return None;
        };
        // Events are applied at once, or the flow has no cell yet: the caller moves it itself.
        if self.row_updates == RowUpdates::AtOnce || queued_position(cell).is_some() {
            return None;
        }
        let cells = lock(&shared.flow_blocks[usize::from(block)]);
        let leaves = CellFlow {
            ends: cells.ends(cell),
            state: cells.state(cell),
        };
        if let Some(correction) = &mut self.correction {
            correction.note_cell_leaving(&shared.layout, &cells.shape(), &leaves);
        }
        drop(cells);
        lock(&shared.batches[usize::from(block)]).queue_noted_remove(cell);
        self.row_updates = RowUpdates::Queued;
        Some(Terms::of_cell(&shared.classes, &leaves.state))
    }

    /// Inserts a flow into a FlowBlock. Returns false if its rows have no space.
    fn insert_at_once(
        &mut self,
        shared: &ParallelState,
        index: usize,
        ends: [FlowEnd; 2],
        state: CellState,
    ) -> bool {
        let block = index as u16;
        let directory = &mut self.directory;
        let mut relocate =
            |flow, cell| directory.set_location(flow, Location::Cell { block, cell });
        let flow = state.flow;
        let cell = lock(&shared.flow_blocks[index]).insert(ends, state, &mut relocate);
        if let Some(cell) = cell {
            relocate(flow, cell);
        }
        cell.is_some()
    }

    /// Queues a flow's insert into a FlowBlock.
    fn queue_insert(
        &mut self,
        shared: &ParallelState,
        index: usize,
        ends: [FlowEnd; 2],
        state: CellState,
    ) {
        let block = index as u16;
        let mut batch = lock(&shared.batches[index]);
        let flow = state.flow;
        let cell = batch.queue_insert(CellFlow { ends, state });
        self.directory
            .set_location(flow, Location::Cell { block, cell });
        let many = batch.is_full();
        // Unlocked first: `apply_batches` locks every batch.
        drop(batch);
        self.row_updates = RowUpdates::Queued;
        if many {
            self.apply_batches(shared);
        }
    }

    /// Queues a flow's removal. Returns false if the flow has to be removed at once.
    pub(super) fn queue_remove(&mut self, shared: &ParallelState, flow: u32) -> bool {
        let Location::Cell { block, cell } = self.directory.location(flow) else {
            return false;
        };
        if self.row_updates == RowUpdates::AtOnce {
            return false;
        }
        let mut batch = lock(&shared.batches[usize::from(block)]);
        if let Some(place) = queued_position(cell) {
            // Not in a row yet: it only leaves the queue, and the last queued flow takes its
            // position.
            if let Some(moved) = batch.cancel_insert(place) {
                let cell = queued_cell(place);
                let location = Location::Cell { block, cell };
                self.directory.set_location(moved, location);
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
                batch.queue_remove(cell);
            }
        }
        self.row_updates = RowUpdates::Queued;
        true
    }

    /// Applies all queued events now, and events until the next iteration at once.
    pub(super) fn apply_batches(&mut self, shared: &ParallelState) {
        let before = std::mem::replace(&mut self.row_updates, RowUpdates::AtOnce);
        if before != RowUpdates::Queued {
            return;
        }
        for (batch, block) in shared.batches.iter().zip(&shared.flow_blocks) {
            lock(batch).apply(&mut lock(block));
        }
        self.collect_batches(shared);
    }

    /// Takes the results of applied events: new locations, removed flows, overflow.
    pub(super) fn collect_batches(&mut self, shared: &ParallelState) {
        let mut unplaced = Vec::new();
        for (index, batch) in shared.batches.iter().enumerate() {
            let mut batch = lock(batch);
            let block = index as u16;
            // In order: a flow may have moved more than once, and the last cell counts.
            for (flow, cell) in batch.relocations.drain(..) {
                self.directory
                    .set_location(flow, Location::Cell { block, cell });
            }
            if let Some(correction) = &mut self.correction {
                let shape = shared.layout.flow_block_shape(index);
                for removed in &batch.removed {
                    correction.note_removed(&shared.layout, &shape, removed);
                }
            }
            batch.removed.clear();
            unplaced.extend(batch.overflow.drain(..).map(|flow| (index, flow)));
            batch.shrink_busy();
        }
        if !unplaced.is_empty() {
            self.add_overflow(shared, &unplaced);
        }
    }

    /// Moves flows that rows have no space for to the scalar path.
    fn add_overflow(&mut self, shared: &ParallelState, flows: &[(usize, CellFlow)]) {
        let links_of = links_by_slot(&shared.layout);
        for (index, CellFlow { ends, state }) in flows {
            let shape = shared.layout.flow_block_shape(*index);
            let links: LinkPath = slots_of(&shared.layout, &shape, ends)
                .into_iter()
                .map(|(link_block, slot)| links_of[link_block][slot])
                .collect();
            let capacity = path_capacity(&links, &self.capacities);
            let [weight, demand] = [state.weight, state.demand].map(f64::from);
            let flow = ScalarFlow {
                flow: state.flow,
                class: shared.classes.log_class(),
                links,
                weight,
                demand,
                limit: RateLimit::new(&UtilityKind::Log, weight, demand, capacity),
                rate: f64::from(state.rate),
                notified: f64::from(state.notified),
                cause: Cause::NoRoom,
            };
            self.add_scalar(shared, flow);
        }
    }

    /// Tries to insert a few overflow flows into rows: other flows have ended since.
    pub(super) fn retry_overflow(&mut self, shared: &ParallelState) {
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
            let list = lock(&shared.scalar_flows[usize::from(worker)]);
            let of_flow = &list.flows[index as usize];
            let (links, cause) = (of_flow.links.clone(), of_flow.cause);
            let capacity = path_capacity(&links, &self.capacities);
            let state = of_flow.terms().state(flow, capacity);
            drop(list);
            // The number may be another flow's by now, on the scalar path for another reason.
            if cause != Cause::NoRoom {
                continue;
            }
            let Some((block, ends)) = row_ends(&shared.layout, &links) else {
                continue;
            };
            if self.insert_at_once(shared, block, ends, state) {
                self.remove_scalar(shared, usize::from(worker), index as usize);
            } else {
                self.scalars.overflow.push_back(flow);
            }
        }
    }

    /// Removes a flow from a worker's scalar flows.
    fn remove_scalar(&mut self, shared: &ParallelState, worker: usize, index: usize) -> ScalarFlow {
        let mut list = lock(&shared.scalar_flows[worker]);
        let old = list.flows.swap_remove(index);
        // `swap_remove` has moved the last flow to this index.
        if let Some(moved) = list.flows.get(index) {
            let location = Location::Scalar {
                worker: worker as u16,
                index: index as u32,
            };
            self.directory.set_location(moved.flow, location);
        }
        shared.scalar_count.fetch_sub(1, Ordering::Relaxed);
        self.scalars.by_cause[old.cause as usize] -= 1;
        old
    }

    /// Adds a flow to a worker's scalar flows. Returns false if the list is full.
    fn add_scalar(&mut self, shared: &ParallelState, flow: ScalarFlow) -> bool {
        let (number, cause) = (flow.flow, flow.cause);
        // By number, so that the workers' lists are about equally long.
        let worker = number as usize % shared.workers;
        let mut list = lock(&shared.scalar_flows[worker]);
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
        shared.scalar_count.fetch_add(1, Ordering::Relaxed);
        true
    }
}
