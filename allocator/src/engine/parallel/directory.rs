//! Flow directory: the location of each flow, by the index of its number. Numbers stay while flows
//! move.

use super::lanes::CellIndex;
use super::rows::CELL_BITS;
use crate::engine::FlowNumber;
use crate::engine::flow_number::NO_GENERATION;

/// Location of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// In a FlowBlock, at a downward cell.
    Cell {
        /// The FlowBlock.
        block: u16,
        /// The cell.
        cell: CellIndex,
    },
    /// Among a worker's scalar flows.
    Scalar {
        /// The worker.
        worker: u16,
        /// The flow's index there.
        index: u32,
    },
}

const SCALAR: u32 = 1 << 31;
const SCALAR_INDEX_BITS: u32 = 22;

/// Upper bound of a worker's scalar flows, by the bits of a location.
pub(super) const MAX_SCALAR_PER_WORKER: usize = 1 << SCALAR_INDEX_BITS;

/// All flows, with 8 bytes each.
#[derive(Debug, Default)]
pub(super) struct FlowDirectory {
    generations: Vec<u32>,
    locations: Vec<u32>,
    len: usize,
}

impl FlowDirectory {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Index of a flow; `None` if the directory does not have it.
    pub(super) fn find(&self, number: FlowNumber) -> Option<u32> {
        let generation = *self.generations.get(number.index() as usize)?;
        (generation == number.generation()).then_some(number.index())
    }

    /// Number of the flow with this index.
    pub(super) fn number(&self, flow: u32) -> FlowNumber {
        FlowNumber::new(flow, self.generations[flow as usize])
    }

    pub(super) fn location(&self, flow: u32) -> Location {
        // A marker bit, then 13 bits of block and 18 of cell, or 9 of worker and 22 of index.
        let location = self.locations[flow as usize];
        if location & SCALAR == 0 {
            Location::Cell {
                block: (location >> CELL_BITS) as u16,
                cell: location & ((1 << CELL_BITS) - 1),
            }
        } else {
            Location::Scalar {
                worker: (location >> SCALAR_INDEX_BITS & 0x1ff) as u16,
                index: location & ((1 << SCALAR_INDEX_BITS) - 1),
            }
        }
    }

    pub(super) fn set_location(&mut self, flow: u32, location: Location) {
        self.locations[flow as usize] = match location {
            Location::Cell { block, cell } => u32::from(block) << CELL_BITS | cell,
            Location::Scalar { worker, index } => {
                SCALAR | u32::from(worker) << SCALAR_INDEX_BITS | index
            }
        };
    }

    /// True if a flow has this index.
    pub(super) fn is_in_use(&self, flow: u32) -> bool {
        let generation = self.generations.get(flow as usize);
        generation.is_some_and(|&generation| generation != NO_GENERATION)
    }

    /// Takes a new flow, which has no location yet. Returns its index.
    pub(super) fn insert(&mut self, number: FlowNumber) -> u32 {
        let flow = number.index() as usize;
        if flow >= self.generations.len() {
            if flow >= self.generations.capacity() {
                // A sixteenth at a time: doubling would leave a third of the memory unused.
                let more = flow - self.generations.len() + flow / 16 + 64;
                self.generations.reserve_exact(more);
                self.locations.reserve_exact(more);
            }
            self.generations.resize(flow + 1, NO_GENERATION);
            self.locations.resize(flow + 1, 0);
        }
        let before = std::mem::replace(&mut self.generations[flow], number.generation());
        self.len += usize::from(before == NO_GENERATION);
        number.index()
    }

    pub(super) fn remove(&mut self, flow: u32) {
        let before = std::mem::replace(&mut self.generations[flow as usize], NO_GENERATION);
        self.len -= usize::from(before != NO_GENERATION);
    }

    /// Every flow.
    pub(super) fn flows(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.locations.len() as u32).filter(|&flow| self.is_in_use(flow))
    }

    /// Flows among `most` indexes from `first` on, and the index to continue with, if any are left.
    pub(super) fn flows_from(
        &self,
        first: u32,
        most: usize,
    ) -> (impl Iterator<Item = u32> + '_, Option<u32>) {
        let end = (first as usize)
            .saturating_add(most)
            .min(self.locations.len());
        let next = (end < self.locations.len()).then_some(end as u32);
        let used = (first..end as u32).filter(|&flow| self.is_in_use(flow));
        (used, next)
    }

    /// Bytes of its lists.
    pub(super) fn bytes(&self) -> usize {
        (self.generations.capacity() + self.locations.capacity()) * 4
    }
}
