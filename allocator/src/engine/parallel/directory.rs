//! The flows by key: numbers that stay, and where each flow is kept.

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;
use std::hash::BuildHasher;

use super::lanes::Cell;
use super::rows::CELL_BITS;
use crate::engine::FlowKey;

/// Where a flow is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// In a FlowBlock, at a downward cell.
    Cell {
        /// The FlowBlock.
        block: u16,
        /// The cell.
        cell: Cell,
    },
    /// Among a worker's loose flows.
    Loose {
        /// The worker.
        worker: u16,
        /// Its place there.
        index: u32,
    },
}

const LOOSE: u32 = 1 << 31;
const LOOSE_INDEX_BITS: u32 = 22;
const FREE: u64 = u64::MAX;

/// Loose flows of one worker are numbered with this many bits.
pub(super) const MAX_LOOSE_PER_WORKER: usize = 1 << LOOSE_INDEX_BITS;

/// Tables of the index. Each doubles when it is full, which would leave a single one half empty on the worst
/// day, and make the flow that fills it wait for all others.
const PARTS: usize = 8;
/// Where parts end, in 65,536ths of all hashes: each is 2^(1/8) times as large as the one before, so that
/// they double one by one.
const PART_ENDS: [u16; PARTS - 1] = [5_932, 12_400, 19_454, 27_146, 35_534, 44_682, 54_658];

/// All flows. A flow is 12 bytes here, and 5 in the index over its free space.
#[derive(Debug, Default)]
pub(super) struct Directory {
    index: [HashTable<u32>; PARTS],
    keys: Vec<u64>,
    homes: Vec<u32>,
    free: Vec<u32>,
}

fn hash(key: u64) -> u64 {
    FxBuildHasher.hash_one(key)
}

/// The part of the index for a hash, by bits that the parts themselves do not look at first.
fn part(hash: u64) -> usize {
    let along = (hash >> 32) as u16;
    PART_ENDS.iter().filter(|&&end| end <= along).count()
}

impl Directory {
    pub(super) fn len(&self) -> usize {
        self.keys.len() - self.free.len()
    }

    pub(super) fn find(&self, key: FlowKey) -> Option<u32> {
        let same = |&flow: &u32| self.keys[flow as usize] == key.0;
        let hash = hash(key.0);
        self.index[part(hash)].find(hash, same).copied()
    }

    pub(super) fn key(&self, flow: u32) -> FlowKey {
        FlowKey(self.keys[flow as usize])
    }

    pub(super) fn home(&self, flow: u32) -> Home {
        let home = self.homes[flow as usize];
        if home & LOOSE == 0 {
            Home::Cell {
                block: (home >> CELL_BITS) as u16,
                cell: home & ((1 << CELL_BITS) - 1),
            }
        } else {
            Home::Loose {
                worker: (home >> LOOSE_INDEX_BITS & 0x1ff) as u16,
                index: home & ((1 << LOOSE_INDEX_BITS) - 1),
            }
        }
    }

    pub(super) fn set_home(&mut self, flow: u32, home: Home) {
        self.homes[flow as usize] = match home {
            Home::Cell { block, cell } => u32::from(block) << CELL_BITS | cell,
            Home::Loose { worker, index } => LOOSE | u32::from(worker) << LOOSE_INDEX_BITS | index,
        };
    }

    /// Takes a key in that is not there yet; returns the flow's number.
    pub(super) fn insert(&mut self, key: FlowKey) -> u32 {
        let flow = self.free.pop().unwrap_or_else(|| {
            if self.keys.len() == self.keys.capacity() {
                // A sixteenth at a time: doubling would leave a third of the room unused.
                let more = self.keys.len() / 16 + 64;
                self.keys.reserve_exact(more);
                self.homes.reserve_exact(more);
            }
            self.keys.push(FREE);
            self.homes.push(0);
            // `max_flows` keeps the table below 2³⁰.
            (self.keys.len() - 1) as u32
        });
        self.keys[flow as usize] = key.0;
        let keys = &self.keys;
        let of_key = hash(key.0);
        self.index[part(of_key)].insert_unique(of_key, flow, |&flow| hash(keys[flow as usize]));
        flow
    }

    pub(super) fn remove(&mut self, flow: u32) {
        let key = std::mem::replace(&mut self.keys[flow as usize], FREE);
        let hash = hash(key);
        let part = &mut self.index[part(hash)];
        if let Ok(entry) = part.find_entry(hash, |&other| other == flow) {
            entry.remove();
        }
        self.free.push(flow);
    }

    /// Every flow.
    pub(super) fn flows(&self) -> impl Iterator<Item = u32> + '_ {
        self.index.iter().flatten().copied()
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.keys.capacity() * 8
            + self.homes.capacity() * 4
            + self.free.capacity() * 4
            + self
                .index
                .iter()
                .map(HashTable::allocation_size)
                .sum::<usize>()
    }
}
