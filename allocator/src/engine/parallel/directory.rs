//! Flow directory: flow numbers by key, and the location of each flow. Numbers stay while flows
//! move.

use rustc_hash::FxHashMap;

use super::key_index::KeyIndex;
use super::lanes::CellIndex;
use super::rows::CELL_BITS;
use crate::engine::FlowKey;

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
const FREE: u64 = u64::MAX;

/// Upper bound of a worker's scalar flows, by the bits of a location.
pub(super) const MAX_SCALAR_PER_WORKER: usize = 1 << SCALAR_INDEX_BITS;

/// No flow.
const NONE: u32 = u32::MAX;

/// Neighbours of a flow in the list of its session.
#[derive(Clone, Copy, Debug)]
struct Neighbours {
    before: u32,
    after: u32,
}

/// All flows. A flow takes 20 bytes here, and some 5 in the index.
#[derive(Debug)]
pub(super) struct FlowDirectory {
    index: KeyIndex,
    keys: Vec<u64>,
    locations: Vec<u32>,
    /// Lists of the flows of each session, so that a session ends without reading other sessions'
    /// flows.
    neighbours: Vec<Neighbours>,
    /// First flow of each session.
    firsts: FxHashMap<u32, u32>,
    free: Vec<u32>,
    /// Keys that were read.
    #[cfg(test)]
    pub(super) key_reads: std::cell::Cell<usize>,
}

/// Hash of a key: the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom
/// number generators, fig. 13). Keys are numbers in sequence, and every bit of a hash is used.
fn hash(key: u64) -> u64 {
    let mixed = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

impl FlowDirectory {
    /// Makes a directory for up to `max_flows` flows.
    pub(super) fn new(max_flows: usize) -> Self {
        Self {
            index: KeyIndex::new(max_flows),
            keys: Vec::new(),
            locations: Vec::new(),
            neighbours: Vec::new(),
            firsts: FxHashMap::default(),
            free: Vec::new(),
            #[cfg(test)]
            key_reads: std::cell::Cell::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len() - self.free.len()
    }

    pub(super) fn find(&self, key: FlowKey) -> Option<u32> {
        let same = |flow: u32| self.keys[flow as usize] == key.0;
        self.index.find(hash(key.0), same)
    }

    pub(super) fn key(&self, flow: u32) -> FlowKey {
        #[cfg(test)]
        self.key_reads.set(self.key_reads.get() + 1);
        FlowKey(self.keys[flow as usize])
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

    /// True if a number is a flow's.
    pub(super) fn is_in_use(&self, flow: u32) -> bool {
        self.keys[flow as usize] != FREE
    }

    /// Inserts a new key, and returns its flow's number.
    pub(super) fn insert(&mut self, key: FlowKey) -> u32 {
        let flow = self.free.pop().unwrap_or_else(|| {
            if self.keys.len() == self.keys.capacity() {
                // A sixteenth at a time: doubling would leave a third of the memory unused.
                let more = self.keys.len() / 16 + 64;
                self.keys.reserve_exact(more);
                self.locations.reserve_exact(more);
                self.neighbours.reserve_exact(more);
            }
            self.keys.push(FREE);
            self.locations.push(0);
            self.neighbours.push(Neighbours {
                before: NONE,
                after: NONE,
            });
            // `max_flows` keeps the table below 2³⁰.
            (self.keys.len() - 1) as u32
        });
        self.keys[flow as usize] = key.0;
        let keys = &self.keys;
        let hash_of = |flow: u32| hash(keys[flow as usize]);
        self.index.insert(hash(key.0), flow, hash_of);
        // The new flow becomes the first of its session: no search for the last.
        let after = self.firsts.insert(key.session(), flow).unwrap_or(NONE);
        self.neighbours[flow as usize] = Neighbours {
            before: NONE,
            after,
        };
        if let Some(next) = self.neighbours.get_mut(after as usize) {
            next.before = flow;
        }
        flow
    }

    /// Any flow of a session.
    pub(super) fn first_of(&self, session: u32) -> Option<u32> {
        self.firsts.get(&session).copied()
    }

    fn leave_session(&mut self, flow: u32, session: u32) {
        let Neighbours { before, after } = self.neighbours[flow as usize];
        if let Some(next) = self.neighbours.get_mut(after as usize) {
            next.before = before;
        }
        if let Some(last) = self.neighbours.get_mut(before as usize) {
            last.after = after;
        // No neighbour before: the flow was the first of its session.
        } else if after == NONE {
            self.firsts.remove(&session);
        } else {
            self.firsts.insert(session, after);
        }
    }

    pub(super) fn remove(&mut self, flow: u32) {
        // The key names the session, so the lists come before it is freed.
        self.leave_session(flow, self.key(flow).session());
        let key = std::mem::replace(&mut self.keys[flow as usize], FREE);
        self.index.remove(hash(key), flow);
        self.free.push(flow);
    }

    /// Every flow.
    pub(super) fn flows(&self) -> impl Iterator<Item = u32> + '_ {
        self.index.flows()
    }

    /// Flows among `most` numbers from `first` on, and the number to continue with, if any are
    /// left.
    pub(super) fn flows_from(
        &self,
        first: u32,
        most: usize,
    ) -> (impl Iterator<Item = u32> + '_, Option<u32>) {
        let end = (first as usize).saturating_add(most).min(self.keys.len());
        let used = move |&flow: &u32| self.keys[flow as usize] != FREE;
        let next = (end < self.keys.len()).then_some(end as u32);
        ((first..end as u32).filter(used), next)
    }

    /// Bytes of the index.
    pub(super) fn index_bytes(&self) -> usize {
        self.index.bytes()
    }

    /// Bytes of everything else.
    pub(super) fn bytes(&self) -> usize {
        let of_sessions = self.neighbours.capacity() * size_of::<Neighbours>()
            + self.firsts.capacity() * size_of::<(u32, u32)>();
        let numbers = self.locations.capacity() + self.free.capacity();
        self.keys.capacity() * 8 + numbers * 4 + of_sessions
    }
}
