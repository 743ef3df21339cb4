//! Neighbour table: the Ethernet station that answers for each IPv4 address.
//!
//! The table is bounded: a new entry in a full table replaces another one, in turn. ARP asks again
//! for a replaced entry, so a flood of addresses costs lookups and no memory.

use std::net::Ipv4Addr;

use indexmap::IndexMap;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Least time between two ARP requests for one address.
const ASK_AGAIN_NS: u64 = 100_000_000;

/// Neighbour table of one port.
#[derive(Debug)]
pub struct Neighbours {
    entries: IndexMap<Ipv4Addr, NeighbourEntry>,
    capacity: usize,
    /// Index of the entry that is replaced next.
    next_victim: usize,
}

#[derive(Clone, Copy, Debug)]
struct NeighbourEntry {
    mac: Option<Mac>,
    /// Time of the last ARP request, in nanoseconds of the caller's clock.
    asked_ns: Option<u64>,
}

impl Neighbours {
    /// An empty table of at most `capacity` entries (at least one).
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            entries: IndexMap::new(),
            capacity: capacity.max(1),
            next_victim: 0,
        }
    }

    /// The station that answers for `address`, if it is known.
    #[must_use]
    pub fn get(&self, address: Ipv4Addr) -> Option<Mac> {
        self.entries.get(&address).and_then(|entry| entry.mac)
    }

    /// Entries held, resolved or asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Records that `mac` answers for `address`, and replaces an earlier entry.
    pub fn confirm(&mut self, address: Ipv4Addr, mac: Mac) {
        self.insert(
            address,
            NeighbourEntry {
                mac: Some(mac),
                asked_ns: None,
            },
        );
    }

    /// Records that a frame from `address` came from `mac`, only if no station is known. A forged
    /// source address thus cannot divert an established peer's traffic.
    pub fn observe(&mut self, address: Ipv4Addr, mac: Mac) {
        if self.get(address).is_none() {
            self.confirm(address, mac);
        }
    }

    /// Returns true if ARP should ask for `address` now: at most once per 100 ms and address.
    pub fn ask(&mut self, now_ns: u64, address: Ipv4Addr) -> bool {
        match self.entries.get_mut(&address) {
            Some(NeighbourEntry {
                asked_ns: Some(at), ..
            }) if now_ns.saturating_sub(*at) < ASK_AGAIN_NS => false,
            Some(entry) => {
                entry.asked_ns = Some(now_ns);
                true
            }
            None => {
                self.insert(
                    address,
                    NeighbourEntry {
                        mac: None,
                        asked_ns: Some(now_ns),
                    },
                );
                true
            }
        }
    }

    fn insert(&mut self, address: Ipv4Addr, entry: NeighbourEntry) {
        if self.entries.len() >= self.capacity && !self.entries.contains_key(&address) {
            // In turn rather than at random: deterministic, and no entry is spared for ever.
            let victim = self.next_victim % self.entries.len();
            self.entries.swap_remove_index(victim);
            self.next_victim = victim + 1;
        }
        self.entries.insert(address, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const MAC: Mac = [2, 0, 0, 0, 0, 1];
    const OTHER: Mac = [2, 0, 0, 0, 0, 2];

    #[test]
    fn a_forged_source_does_not_replace_a_known_station() {
        let mut table = Neighbours::new(4);
        table.observe(A, MAC);
        table.observe(A, OTHER);
        assert_eq!(table.get(A), Some(MAC));
        table.confirm(A, OTHER);
        assert_eq!(table.get(A), Some(OTHER));
    }

    #[test]
    fn asks_once_per_interval() {
        let mut table = Neighbours::new(4);
        assert!(table.ask(0, A));
        assert!(!table.ask(ASK_AGAIN_NS - 1, A));
        assert!(table.ask(ASK_AGAIN_NS, A));
        assert_eq!(table.get(A), None);
    }

    #[test]
    fn memory_is_bounded_under_a_flood_of_addresses() {
        let mut table = Neighbours::new(16);
        for i in 0..10_000u32 {
            table.observe(Ipv4Addr::from(i), MAC);
            assert!(table.len() <= 16);
        }
        // The newest is there.
        assert_eq!(table.get(Ipv4Addr::from(9_999)), Some(MAC));
    }
}
