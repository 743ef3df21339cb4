//! Faults of hosts: who tells of them, and when they are named.

use std::collections::{BTreeMap, BTreeSet};

use ratewright_topology::HostId;
use serde::Serialize;

use super::{CLEAR_NS, LinkChange};

/// Time for which flows beyond a bound stand before their host is named: a burst of starts waits
/// for its turn.
pub const BEYOND_NS: u64 = 2_000_000_000;

/// Fault of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HostFault {
    /// None of its addresses is in its prefixes: flows to it find no host, or another one.
    AddressNotInPrefix,
    /// Its default congestion control was changed under its daemon.
    CongestionControlChanged,
    /// Another host has an address in its prefixes: flows to that one count for this one.
    PrefixOfSeveralHosts,
    /// Flows of it have no rate, because a table or a budget is full.
    FlowsBeyondBound,
}

impl HostFault {
    /// All faults.
    pub const ALL: [Self; 4] = [
        Self::AddressNotInPrefix,
        Self::CongestionControlChanged,
        Self::PrefixOfSeveralHosts,
        Self::FlowsBeyondBound,
    ];

    /// Label in metrics and JSON.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::AddressNotInPrefix => "address_not_in_prefix",
            Self::CongestionControlChanged => "congestion_control_changed",
            Self::PrefixOfSeveralHosts => "prefix_of_several_hosts",
            Self::FlowsBeyondBound => "flows_beyond_bound",
        }
    }

    /// Returns the time for which it stands before it is named, and for which it is gone before
    /// that is taken back. What a daemon tells has stood for a second.
    const fn holds_ns(self) -> (u64, u64) {
        match self {
            Self::FlowsBeyondBound => (BEYOND_NS, CLEAR_NS),
            _ => (0, 0),
        }
    }
}

/// Teller of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Teller {
    /// The daemon of this host.
    Host(u32),
    /// The allocator itself.
    Allocator,
}

/// Fault of a host, by the host's number.
type Key = (u32, HostFault);

/// A fault that is told of or named.
#[derive(Debug, Clone, Default)]
struct Told {
    tellers: BTreeSet<Teller>,
    /// Time since which somebody tells of it, or nobody any more.
    since_ns: u64,
    is_named: bool,
}

/// Faults of all hosts.
#[derive(Debug, Default)]
pub(super) struct HostFaults {
    told: BTreeMap<Key, Told>,
    /// Faults that each daemon tells.
    by_host: BTreeMap<u32, BTreeSet<Key>>,
    /// Faults that are to be named or taken back.
    open: BTreeSet<Key>,
    named: [u64; HostFault::ALL.len()],
}

impl HostFaults {
    /// Takes all that a host's daemon tells, in place of what it told before.
    pub(super) fn tell(&mut self, now_ns: u64, host: HostId, faults: BTreeSet<Key>) {
        let before = self.by_host.remove(&host.0).unwrap_or_default();
        for &key in before.symmetric_difference(&faults) {
            self.change(now_ns, Teller::Host(host.0), key, faults.contains(&key));
        }
        if !faults.is_empty() {
            self.by_host.insert(host.0, faults);
        }
    }

    /// Takes one teller's word about one fault. What ends at time 0 is taken back at once.
    pub(super) fn change(&mut self, now_ns: u64, teller: Teller, key: Key, has: bool) {
        if !has && !self.told.contains_key(&key) {
            return;
        }
        let told = self.told.entry(key).or_default();
        let was_told = !told.tellers.is_empty();
        if has {
            told.tellers.insert(teller);
        } else {
            told.tellers.remove(&teller);
        }
        let is_told = !told.tellers.is_empty();
        if was_told != is_told {
            told.since_ns = now_ns;
        }
        if is_told == told.is_named {
            self.open.remove(&key);
        } else {
            self.open.insert(key);
        }
        if !(is_told || told.is_named) {
            self.told.remove(&key);
        }
    }

    /// Returns true while something is to be named or taken back.
    pub(super) fn is_at_work(&self) -> bool {
        !self.open.is_empty()
    }

    /// Names what has stood for long enough, and takes back what is gone.
    pub(super) fn tick(&mut self, now_ns: u64, changes: &mut dyn FnMut(LinkChange)) {
        let HostFaults {
            told, open, named, ..
        } = self;
        open.retain(|key| {
            let Some(known) = told.get_mut(key) else {
                return false;
            };
            let &(host, fault) = key;
            let has = !known.tellers.is_empty();
            let (named_ns, cleared_ns) = fault.holds_ns();
            let hold_ns = if has { named_ns } else { cleared_ns };
            if now_ns.saturating_sub(known.since_ns) < hold_ns {
                return true;
            }
            known.is_named = has;
            if !has {
                told.remove(key);
            }
            for (count, of) in named.iter_mut().zip(HostFault::ALL) {
                *count += u64::from(has && of == fault);
                *count -= u64::from(!has && of == fault);
            }
            changes(LinkChange::Fault {
                host: HostId(host),
                fault,
                has,
            });
            false
        });
    }

    /// Returns the faults that are named, in the order of the hosts' numbers.
    pub(super) fn named(&self) -> impl Iterator<Item = (HostId, HostFault)> {
        (self.told.iter())
            .filter(|(_, told)| told.is_named)
            .map(|(&(host, fault), _)| (HostId(host), fault))
    }

    /// Returns those of one host.
    pub(super) fn named_of(&self, host: HostId) -> impl Iterator<Item = HostFault> {
        HostFault::ALL.into_iter().filter(move |&fault| {
            let told = self.told.get(&(host.0, fault));
            told.is_some_and(|told| told.is_named)
        })
    }

    /// Returns the number of hosts with each fault that is named.
    pub(super) fn named_counts(&self) -> [u64; HostFault::ALL.len()] {
        self.named
    }

    /// Returns the first other host whose daemon tells of a fault.
    pub(super) fn seen_at(&self, host: HostId, fault: HostFault) -> Option<HostId> {
        let tellers = &self.told.get(&(host.0, fault))?.tellers;
        tellers.iter().find_map(|teller| match teller {
            Teller::Host(other) if *other != host.0 => Some(HostId(*other)),
            _ => None,
        })
    }
}
