//! The flows by key: numbers that stay, and where each flow is kept.

use rustc_hash::FxHashMap;

use super::key_index::KeyIndex;
use super::lanes::CellIndex;
use super::rows::CELL_BITS;
use crate::engine::FlowKey;

/// Where a flow is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// In a FlowBlock, at a downward cell.
    Cell {
        /// The FlowBlock.
        block: u16,
        /// The cell.
        cell: CellIndex,
    },
    /// Among a worker's loose flows.
    Scalar {
        /// The worker.
        worker: u16,
        /// Its place there.
        index: u32,
    },
}

const SCALAR: u32 = 1 << 31;
const SCALAR_INDEX_BITS: u32 = 22;
const FREE: u64 = u64::MAX;

/// Scalar flows of one worker are numbered with this many bits.
pub(super) const MAX_SCALAR_PER_WORKER: usize = 1 << SCALAR_INDEX_BITS;

/// No flow.
const NONE: u32 = u32::MAX;

/// The flows of the same session around a flow.
#[derive(Clone, Copy, Debug)]
struct Neighbours {
    before: u32,
    after: u32,
}

/// All flows. A flow is 20 bytes here, and some 5 in the index.
#[derive(Debug)]
pub(super) struct FlowDirectory {
    index: KeyIndex,
    keys: Vec<u64>,
    locations: Vec<u32>,
    /// The flows of each session, in a list of their own: a session ends without a look at other sessions' flows.
    neighbours: Vec<Neighbours>,
    /// The first flow of each session.
    firsts: FxHashMap<u32, u32>,
    free: Vec<u32>,
    /// Flows that were looked at.
    #[cfg(test)]
    pub(super) looks: std::cell::Cell<usize>,
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, fig. 13): keys
/// are numbers in sequence, and all bits of a hash are used.
fn hash(key: u64) -> u64 {
    let mixed = (key ^ key >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

impl FlowDirectory {
    /// A directory for so many flows.
    pub(super) fn new(max_flows: usize) -> Self {
        Self {
            index: KeyIndex::new(max_flows),
            keys: Vec::new(),
            locations: Vec::new(),
            neighbours: Vec::new(),
            firsts: FxHashMap::default(),
            free: Vec::new(),
            #[cfg(test)]
            looks: std::cell::Cell::default(),
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
        self.looks.set(self.looks.get() + 1);
        FlowKey(self.keys[flow as usize])
    }

    pub(super) fn location(&self, flow: u32) -> Location {
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

    /// Tells whether a number is a flow's.
    pub(super) fn is_in_use(&self, flow: u32) -> bool {
        self.keys[flow as usize] != FREE
    }

    /// Takes a key in that is not there yet; returns the flow's number.
    pub(super) fn insert(&mut self, key: FlowKey) -> u32 {
        let flow = self.free.pop().unwrap_or_else(|| {
            if self.keys.len() == self.keys.capacity() {
                // A sixteenth at a time: doubling would leave a third of the room unused.
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

    /// A flow of a session, if it has any.
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
        } else if after == NONE {
            self.firsts.remove(&session);
        } else {
            self.firsts.insert(session, after);
        }
    }

    pub(super) fn remove(&mut self, flow: u32) {
        self.leave_session(flow, self.key(flow).session());
        let key = std::mem::replace(&mut self.keys[flow as usize], FREE);
        self.index.remove(hash(key), flow);
        self.free.push(flow);
    }

    /// Every flow.
    pub(super) fn flows(&self) -> impl Iterator<Item = u32> + '_ {
        self.index.flows()
    }

    /// The numbers of flows from `first` on, as far as they are in use, and of so many at most; and the number
    /// to go on with, if there are more.
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

    /// Bytes that the index takes.
    pub(super) fn index_bytes(&self) -> usize {
        self.index.bytes()
    }

    /// Bytes that the rest takes.
    pub(super) fn bytes(&self) -> usize {
        let of_sessions = self.neighbours.capacity() * size_of::<Neighbours>()
            + self.firsts.capacity() * size_of::<(u32, u32)>();
        let numbers = self.locations.capacity() + self.free.capacity();
        self.keys.capacity() * 8 + numbers * 4 + of_sessions
    }
}
