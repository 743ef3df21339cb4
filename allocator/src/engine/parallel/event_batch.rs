//! Starts and ends that are queued for the next iteration, by FlowBlock.
//!
//! The worker that owns a FlowBlock applies its events: it has the rows in its cache. The caller's
//! thread would wait for a dozen of their cache lines, one after the other, and leave them where
//! the worker has to fetch them back. All workers apply their events at once.
//!
//! Removals go before inserts, whatever the order of the events, so queued cells stay valid until
//! then. A flow that comes and goes between two iterations never gets a cell.

use super::cell::{CellFlow, queued_cell};
use super::flow_block::FlowBlock;
use super::lanes::CellIndex;

/// Bit in a queued removal whose flow the price correction has noted already.
const NOTED: CellIndex = 1 << 31;
/// Queued inserts of a FlowBlock at which the queue is applied. The caller's thread does this alone
/// and with cold caches.
const MAX_BATCH: usize = 1 << 11;

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
    pub(super) removed: Vec<CellFlow>,
    /// Result: flows with new cells, in the order of the moves.
    pub(super) relocations: Vec<(u32, CellIndex)>,
    /// Result: flows that rows have no space for.
    pub(super) overflow: Vec<CellFlow>,
}

impl EventBatch {
    /// Frees memory that no event needs at present.
    pub(super) fn shrink(&mut self) {
        self.shrink_to(KEPT);
    }

    /// Frees memory that events do not need while they come.
    pub(super) fn shrink_busy(&mut self) {
        self.shrink_to(KEPT_BUSY);
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

    /// Queues an insert. Returns the cell that names its position until it is applied.
    pub(super) fn queue_insert(&mut self, flow: CellFlow) -> CellIndex {
        let cell = queued_cell(self.inserts.len());
        self.inserts.push(flow);
        cell
    }

    /// True if so many inserts are queued that they have to be applied.
    pub(super) fn is_full(&self) -> bool {
        self.inserts.len() >= MAX_BATCH
    }

    /// Takes an insert back. Returns the flow that has its position now, if there is one.
    pub(super) fn cancel_insert(&mut self, place: usize) -> Option<u32> {
        self.inserts.swap_remove(place);
        self.inserts.get(place).map(|moved| moved.state.flow)
    }

    /// Queued insert at a position.
    pub(super) fn insert_at(&mut self, place: usize) -> &mut CellFlow {
        &mut self.inserts[place]
    }

    /// Queues a removal, which the price correction notes once it is applied.
    pub(super) fn queue_remove(&mut self, cell: CellIndex) {
        self.removes.push(cell);
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
