//! Index from a key's hash to a flow's number, in about five bytes per flow.
//!
//! It has many small tables with open addressing. Each grows by an eighth when it is seven eighths
//! full. One table that doubles would be half empty at worst, and the flow that fills it would wait
//! until all others have moved. An entry holds the flow's number and the slot that its hash
//! prefers. A removal therefore closes the gap without reading any key, and a search compares few
//! keys.

use hashbrown::HashTable;

/// Mean flows of a table when the index is full.
const FLOWS: usize = 2048;
/// Empty slot: no flow has this number.
const EMPTY: u32 = u32::MAX;
/// Slots are added in multiples of this.
const STEP: usize = 16;

/// Index by key; see the module.
#[derive(Debug)]
pub(super) struct KeyIndex {
    tables: Vec<IndexTable>,
    /// Bits of an entry for the flow's number. The others are its preferred slot.
    number_bits: u32,
    /// Flows that tables have no space for.
    spilled: HashTable<u32>,
}

#[derive(Clone, Debug, Default)]
struct IndexTable {
    slots: Vec<u32>,
    flows: u32,
}

impl KeyIndex {
    /// Makes an index for up to `max_flows` flows.
    pub(super) fn new(max_flows: usize) -> Self {
        // One number more than there are flows: an entry is never all ones.
        let number_bits = (max_flows + 1).ilog2() + 1;
        // The preferred slot needs at least the bits of `STEP`, the length of the smallest table.
        let number_bits = number_bits.min(u32::BITS - STEP.ilog2());
        let most_slots = 1usize << (u32::BITS - number_bits);
        let tables = max_flows / FLOWS.min(most_slots / 2);
        Self {
            tables: vec![IndexTable::default(); tables.next_power_of_two()],
            number_bits,
            spilled: HashTable::new(),
        }
    }

    /// Table of a hash, and the rest of the hash for a slot of it.
    fn table_of(&self, hash: u64) -> (usize, u32) {
        // High bits choose the table, low bits the slot, so that both spread independently.
        let table = ((hash >> 32) * self.tables.len() as u64) >> 32;
        (table as usize, hash as u32)
    }

    /// Finds the flow of this hash for which `same` is true.
    #[inline]
    pub(super) fn find(&self, hash: u64, same: impl Fn(u32) -> bool) -> Option<u32> {
        let (table, hash_of_slot) = self.table_of(hash);
        let found = self.tables[table].find(self.number_bits, hash_of_slot, &same);
        let found = found.map(|slot| self.number(self.tables[table].slots[slot]));
        if found.is_none() && !self.spilled.is_empty() {
            return self.spilled.find(hash, |&flow| same(flow)).copied();
        }
        found
    }

    /// Inserts a new flow; `hash_of` gives the hashes of others.
    pub(super) fn insert(&mut self, hash: u64, flow: u32, hash_of: impl Fn(u32) -> u64) {
        let (table, hash_of_slot) = self.table_of(hash);
        let bits = self.number_bits;
        let table = &mut self.tables[table];
        // A number that does not fit its bits, or a full table: both are rare, and correct in the
        // spill.
        if flow < (1 << bits) - 1 && table.make_room(bits, |flow| hash_of(flow) as u32) {
            table.put(bits, hash_of_slot, flow);
        } else {
            self.spilled
                .insert_unique(hash, flow, |&flow| hash_of(flow));
        }
    }

    /// Removes a flow.
    pub(super) fn remove(&mut self, hash: u64, flow: u32) {
        let (table, hash_of_slot) = self.table_of(hash);
        let bits = self.number_bits;
        let table = &mut self.tables[table];
        if let Some(slot) = table.find(bits, hash_of_slot, &|other| other == flow) {
            table.close_up(bits, slot);
        } else if let Ok(entry) = self.spilled.find_entry(hash, |&other| other == flow) {
            entry.remove();
        }
    }

    /// Every flow.
    pub(super) fn flows(&self) -> impl Iterator<Item = u32> + '_ {
        let slots = self.tables.iter().flat_map(|table| &table.slots);
        let entries = slots.filter(|&&entry| entry != EMPTY);
        let flows = entries.map(|&entry| self.number(entry));
        flows.chain(self.spilled.iter().copied())
    }

    /// Bytes of all tables.
    pub(super) fn bytes(&self) -> usize {
        let slots = self.tables.iter().map(|table| table.slots.capacity());
        slots.sum::<usize>() * size_of::<u32>()
            + self.tables.capacity() * size_of::<IndexTable>()
            + self.spilled.allocation_size()
    }

    fn number(&self, entry: u32) -> u32 {
        entry & ((1 << self.number_bits) - 1)
    }
}

impl IndexTable {
    /// Preferred slot of a hash.
    fn preferred(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.slots.len() as u64) >> 32) as usize
    }

    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.slots.len() {
            0
        } else {
            slot + 1
        }
    }

    #[inline]
    fn find(&self, number_bits: u32, hash: u32, same: &impl Fn(u32) -> bool) -> Option<usize> {
        if self.flows == 0 {
            return None;
        }
        let preferred = self.preferred(hash);
        let mut slot = preferred;
        // Ends at an empty slot, of which `make_room` leaves one at least.
        loop {
            let entry = self.slots[slot];
            if entry == EMPTY {
                return None;
            }
            let number = entry & ((1 << number_bits) - 1);
            // Comparing the preferred slot first spares most key reads.
            if (entry >> number_bits) as usize == preferred && same(number) {
                return Some(slot);
            }
            slot = self.after(slot);
        }
    }

    /// Makes space for another flow, growing if need be. Returns false if the table is at its
    /// bound.
    fn make_room(&mut self, number_bits: u32, hash_of: impl Fn(u32) -> u32) -> bool {
        let (flows, slots) = (self.flows as usize + 1, self.slots.len());
        if flows * 8 <= slots * 7 {
            return true;
        }
        let most = 1usize << (u32::BITS - number_bits);
        let more = (slots + slots / 8 + 1).next_multiple_of(STEP).min(most);
        if more > slots {
            let mut now = Vec::with_capacity(more);
            now.resize(more, EMPTY);
            let before = std::mem::replace(&mut self.slots, now);
            self.flows = 0;
            // Preferred slots depend on the length, so every entry is placed again.
            for entry in before.into_iter().filter(|&entry| entry != EMPTY) {
                let flow = entry & ((1 << number_bits) - 1);
                self.put(number_bits, hash_of(flow), flow);
            }
        }
        flows < self.slots.len()
    }

    /// Inserts a flow into the first empty slot from its preferred one on. One exists.
    fn put(&mut self, number_bits: u32, hash: u32, flow: u32) {
        let preferred = self.preferred(hash);
        let mut slot = preferred;
        while self.slots[slot] != EMPTY {
            slot = self.after(slot);
        }
        self.slots[slot] = (preferred as u32) << number_bits | flow;
        self.flows += 1;
    }

    /// Empties a slot, and moves up entries that would no longer be found.
    fn close_up(&mut self, number_bits: u32, slot: usize) {
        let slots = self.slots.len();
        let (mut hole, mut next) = (slot, self.after(slot));
        while self.slots[next] != EMPTY {
            let preferred = (self.slots[next] >> number_bits) as usize;
            let distance_from = |from: usize| match next.checked_sub(from) {
                Some(distance) => distance,
                None => next + slots - from,
            };
            // An entry may fill the hole unless its preferred slot lies behind the hole.
            if distance_from(preferred) >= distance_from(hole) {
                self.slots[hole] = self.slots[next];
                hole = next;
            }
            next = self.after(next);
        }
        self.slots[hole] = EMPTY;
        self.flows -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Hashes that crowd a few slots of a few tables.
    fn crowded(key: u16) -> u64 {
        let (high, low) = (u64::from(key % 3) << 62, u64::from(key % 7) << 29);
        high | low
    }

    proptest! {
        /// After any inserts and removals, the index finds exactly what a map by key holds: with
        /// space for all, and with tables of sixteen slots of which several spill.
        #[test]
        fn finds_what_is_there(
            steps in prop::collection::vec((0u16..96, any::<bool>()), 1..400),
            few_slots in any::<bool>(),
        ) {
            let mut index = KeyIndex {
                tables: vec![IndexTable::default(); 4],
                number_bits: if few_slots { 28 } else { 8 },
                spilled: HashTable::new(),
            };
            let mut known: BTreeMap<u16, u32> = BTreeMap::new();
            for (key, comes) in steps {
                // The number of a flow says its key.
                let flow = u32::from(key);
                let hash_of = |flow: u32| crowded(flow as u16);
                match (comes, known.contains_key(&key)) {
                    (true, false) => {
                        index.insert(crowded(key), flow, hash_of);
                        known.insert(key, flow);
                    }
                    (false, true) => {
                        index.remove(crowded(key), flow);
                        known.remove(&key);
                    }
                    _ => {}
                }
                for key in 0..96 {
                    let found = index.find(crowded(key), |flow| flow == u32::from(key));
                    prop_assert_eq!(found, known.get(&key).copied());
                }
                let mut flows: Vec<u32> = index.flows().collect();
                flows.sort_unstable();
                prop_assert_eq!(flows, known.values().copied().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_flow_takes_less_than_six_bytes() {
        // By any multiplication that spreads.
        let hash_of = |flow: u32| {
            let mixed = u64::from(flow).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ mixed >> 32).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        };
        let mut index = KeyIndex::new(200_000);
        for flow in 0..200_000u32 {
            index.insert(hash_of(flow), flow, hash_of);
            if flow >= 50_000 && flow % 10_000 == 0 {
                let per_flow = index.bytes() as f64 / f64::from(flow + 1);
                assert!(per_flow < 6.0, "{per_flow} with {flow}");
            }
        }
        assert!((0..200_000).all(|flow| index.find(hash_of(flow), |f| f == flow) == Some(flow)));
        assert!(index.spilled.is_empty());
    }
}
