//! Faults of this host that its daemon finds: no address of its own, addresses in other hosts'
//! prefixes, another congestion control, a table that is too small.
//!
//! A fault counts, and ceases to, once it was found so twice in a row, a second apart. Each is
//! judged by itself: one that comes and goes holds up no other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;

use ipnet::IpNet;
use ratewright_proto::telemetry::{HostFaults, MAX_IN_PREFIXES_OF};

use super::interface::{HeldAddress, held_addresses};
use crate::flows::NetworkView;

/// Interval at which they are looked for.
const INTERVAL_NS: u64 = 1_000_000_000;

/// Name of the congestion control that sockets of this network namespace have by default.
const DEFAULT_CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// A table is full from this part of its slots on, in hundredths: processors keep some free ones.
const FULL_PERCENT: u64 = 99;

/// Most prefixes of other hosts that one look compares with this host's addresses.
const MAX_PREFIXES: usize = 256;

/// Use of the table of connections that can have a rate.
#[derive(Debug, Clone, Copy, Default)]
pub struct TableUse {
    /// Slots of the kernel's table.
    pub slots: u32,
    /// Slots in use.
    pub used: u64,
    /// Flowlets that found no slot, since the start.
    pub refused: u64,
    /// Active flows beyond those that the session carries.
    pub beyond_session: u32,
}

/// Search for faults of this host.
#[derive(Debug)]
pub struct HostFaultSearch {
    /// Default congestion control at the start; `None` if it cannot be read.
    congestion_control: Option<String>,
    found: HostFaults,
    /// Faults of the newest look.
    seen: HostFaults,
    /// Flowlets that had found no slot at the newest look.
    refused: u64,
    due_ns: u64,
}

impl HostFaultSearch {
    /// Begins, with the present congestion control as the right one.
    #[must_use]
    pub fn new() -> Self {
        Self {
            congestion_control: congestion_control(),
            found: HostFaults::default(),
            seen: HostFaults::default(),
            refused: 0,
            due_ns: 0,
        }
    }

    /// Returns true if [`look`](Self::look) is due.
    #[must_use]
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns
    }

    /// Looks for faults. Returns those that count.
    pub fn look(&mut self, now_ns: u64, network: &NetworkView, table: TableUse) -> HostFaults {
        self.due_ns = now_ns + INTERVAL_NS;
        // A kernel that does not tell the addresses says nothing of them.
        let (no_address, in_prefixes_of) = held_addresses().map_or_else(
            |_| (self.seen.no_address, self.seen.in_prefixes_of.clone()),
            |addresses| judge_addresses(&addresses, network),
        );
        let seen = HostFaults {
            no_address,
            in_prefixes_of,
            other_congestion_control: self.congestion_control.is_some()
                && congestion_control() != self.congestion_control,
            flows_beyond_table: self.judge_table(table),
        };
        self.take(seen);
        self.found.clone()
    }

    /// Returns true if flows have no rate for want of a slot. One that found none is counted once,
    /// and looks for one again with its next flowlet.
    fn judge_table(&mut self, table: TableUse) -> bool {
        let refused_before = std::mem::replace(&mut self.refused, table.refused);
        let is_full = table.used * 100 >= u64::from(table.slots) * FULL_PERCENT;
        table.beyond_session > 0
            || table.refused > refused_before
            || (self.seen.flows_beyond_table && table.refused > 0 && is_full)
    }

    fn take(&mut self, seen: HostFaults) {
        let before = std::mem::replace(&mut self.seen, seen);
        let (now, found) = (&self.seen, &self.found);
        let settled = |found: bool, before: bool, now: bool| {
            if now == before { now } else { found }
        };
        let hosts: BTreeSet<u32> = [found, &before, now]
            .iter()
            .flat_map(|faults| faults.in_prefixes_of.iter().copied())
            .collect();
        let counts = |host: &u32| {
            let [found, before, now] =
                [found, &before, now].map(|faults| faults.in_prefixes_of.contains(host));
            settled(found, before, now)
        };
        self.found = HostFaults {
            no_address: settled(found.no_address, before.no_address, now.no_address),
            other_congestion_control: settled(
                found.other_congestion_control,
                before.other_congestion_control,
                now.other_congestion_control,
            ),
            flows_beyond_table: settled(
                found.flows_beyond_table,
                before.flows_beyond_table,
                now.flows_beyond_table,
            ),
            in_prefixes_of: (hosts.into_iter().filter(counts))
                .take(MAX_IN_PREFIXES_OF)
                .collect(),
        };
    }
}

impl Default for HostFaultSearch {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns true if no address is of this host, and the other hosts in whose prefixes addresses are.
///
/// A prefix around an address of this host's own is for the rest: that of a gateway, say. Addresses
/// in it are no other host's, such as those of a bridge of containers. An interface that has an
/// address of this host's own is on the network, so all of its addresses count.
fn judge_addresses(held: &[HeldAddress], network: &NetworkView) -> (bool, Vec<u32>) {
    let is_own =
        |held: &&HeldAddress| network.destinations.host_of(held.address) == Some(network.own_host);
    let own: Vec<&HeldAddress> = held.iter().filter(is_own).collect();
    let is_for_the_rest = |prefix: &IpNet| {
        own.iter()
            .any(|own| prefix.contains(&own.address.to_canonical()))
    };
    let own_interfaces: BTreeSet<&str> = own.iter().map(|own| own.interface.as_str()).collect();
    // A prefix, and whether an address in it is on the network.
    let mut prefixes: BTreeMap<(u32, IpNet), bool> = BTreeMap::new();
    for held in held {
        if !(held.is_up && names_one_host(held.address)) {
            continue;
        }
        let found = network.destinations.prefix_of(held.address);
        let Some((host, prefix)) = found.filter(|&(host, _)| host != network.own_host) else {
            continue;
        };
        *prefixes.entry((host, prefix)).or_default() |=
            own_interfaces.contains(held.interface.as_str());
    }
    let of_others: BTreeSet<u32> = (prefixes.iter().take(MAX_PREFIXES))
        .filter(|((_, prefix), is_on_network)| **is_on_network || !is_for_the_rest(prefix))
        .map(|(&(host, _), _)| host)
        .collect();
    let of_others = of_others.into_iter().take(MAX_IN_PREFIXES_OF);
    (own.is_empty(), of_others.collect())
}

/// Returns false for an address that every host has, or none.
fn names_one_host(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            !(address.is_loopback() || address.is_link_local() || address.is_unspecified())
        }
        IpAddr::V6(address) => {
            !(address.is_loopback() || address.is_unicast_link_local() || address.is_unspecified())
        }
    }
}

fn congestion_control() -> Option<String> {
    let text = fs::read_to_string(DEFAULT_CONGESTION_CONTROL).ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::Destinations;

    #[test]
    fn a_fault_counts_and_ceases_to_when_it_was_found_so_twice_in_a_row() {
        let mut search = HostFaultSearch::new();
        let fault = HostFaults {
            no_address: true,
            ..HostFaults::default()
        };
        let none = HostFaults::default();
        for (seen, counts) in [
            (&fault, false),
            (&none, false),
            (&fault, false),
            (&fault, true),
            (&none, true),
            (&fault, true),
            (&none, true),
            (&none, false),
        ] {
            search.take(seen.clone());
            assert_eq!(search.found.no_address, counts);
        }
    }

    fn without_prefixes(faults: &HostFaults) -> HostFaults {
        HostFaults {
            in_prefixes_of: Vec::new(),
            ..faults.clone()
        }
    }

    /// One comes and goes with every look.
    #[test]
    fn a_fault_that_flaps_holds_up_no_other() {
        let looks = [true, true, false, false, true, true];
        let in_prefixes_of = |steady: bool, flaps: bool| -> Vec<u32> {
            let hosts = [steady.then_some(3), flaps.then_some(7)];
            hosts.into_iter().flatten().collect()
        };
        type Make = fn(bool) -> HostFaults;
        let steady: [Make; 3] = [
            |is| HostFaults {
                no_address: is,
                ..HostFaults::default()
            },
            |is| HostFaults {
                other_congestion_control: is,
                ..HostFaults::default()
            },
            |is| HostFaults {
                flows_beyond_table: is,
                ..HostFaults::default()
            },
        ];
        for steady in steady {
            let mut search = HostFaultSearch::new();
            let mut found = Vec::new();
            for (at, is) in looks.into_iter().enumerate() {
                search.take(HostFaults {
                    in_prefixes_of: in_prefixes_of(is, at % 2 == 0),
                    ..steady(is)
                });
                found.push((
                    steady(true) == without_prefixes(&search.found),
                    search.found.in_prefixes_of.clone(),
                ));
            }
            // Found at the second look, taken back at the fourth, found again at the sixth.
            let expected = [false, true, true, false, false, true]
                .map(|counts| (counts, in_prefixes_of(counts, false)));
            assert_eq!(found, expected);
        }
        // The table's fault flaps likewise.
        let mut search = HostFaultSearch::new();
        for flaps in [true, false, true] {
            search.take(HostFaults {
                no_address: true,
                flows_beyond_table: flaps,
                ..HostFaults::default()
            });
        }
        assert!(search.found.no_address && !search.found.flows_beyond_table);
    }

    #[test]
    fn a_host_without_an_address_of_its_own_is_found_within_two_seconds() {
        let mut search = HostFaultSearch::new();
        let network = NetworkView::default();
        let mut faults = Vec::new();
        for tenth in 0..20 {
            let now_ns = tenth * 100_000_000;
            if search.is_due(now_ns) {
                faults.push(
                    search
                        .look(now_ns, &network, TableUse::default())
                        .no_address,
                );
            }
        }
        assert_eq!(faults, [false, true]);
    }

    /// Host 2 is this one; host 9 is a gateway, with what no other host has.
    fn network() -> NetworkView {
        let prefixes: Vec<(u32, IpNet)> = [
            (1, "10.0.1.1/32"),
            (1, "10.0.7.0/24"),
            (2, "10.0.1.2/32"),
            (2, "fd00:0:0:2::/64"),
            (3, "fd00:0:0:3::/64"),
            (9, "0.0.0.0/0"),
        ]
        .map(|(host, prefix)| (host, prefix.parse().unwrap()))
        .into();
        NetworkView {
            own_host: 2,
            destinations: Destinations::new(prefixes.iter().map(|(host, prefix)| (*host, prefix))),
            ..NetworkView::default()
        }
    }

    fn held(interface: &str, address: &str, is_up: bool) -> HeldAddress {
        HeldAddress {
            interface: interface.to_owned(),
            address: address.parse().unwrap(),
            is_up,
        }
    }

    /// Host 2 has a prefix within that of host 1, and holds an address of the rest of it.
    #[test]
    fn an_address_in_a_prefix_around_the_hosts_own_counts_where_the_own_one_is() {
        let prefixes: Vec<(u32, IpNet)> = [(1, "10.0.1.0/24"), (2, "10.0.1.2/32")]
            .map(|(host, prefix)| (host, prefix.parse().unwrap()))
            .into();
        let network = NetworkView {
            own_host: 2,
            destinations: Destinations::new(prefixes.iter().map(|(host, prefix)| (*host, prefix))),
            ..NetworkView::default()
        };
        let further = |interface| {
            let addresses = [
                held("eth0", "10.0.1.2", true),
                held(interface, "10.0.1.100", true),
            ];
            judge_addresses(&addresses, &network)
        };
        assert_eq!(further("eth0"), (false, vec![1]));
        assert_eq!(further("br0"), (false, vec![]));
        // One beside it decides nothing.
        let both = [
            held("br0", "10.0.1.101", true),
            held("eth0", "::ffff:10.0.1.2", true),
            held("eth0", "10.0.1.100", true),
            held("br0", "10.0.1.102", true),
        ];
        assert_eq!(judge_addresses(&both, &network), (false, vec![1]));
    }

    #[test]
    fn an_address_in_another_hosts_prefix_is_that_hosts_fault() {
        let network = network();
        let own = ["10.0.1.2", "fd00:0:0:2::5", "127.0.0.1", "::1", "fe80::1"];
        let judge = |further: &[&str], is_up| {
            let own = own.iter().map(|address| held("eth0", address, true));
            let further = (further.iter()).map(|address| held("br0", address, is_up));
            let addresses: Vec<HeldAddress> = own.chain(further).collect();
            let (no_address, others) = judge_addresses(&addresses, &network);
            assert!(!no_address);
            others
        };
        for (further, others) in [
            (&[] as &[&str], &[] as &[u32]),
            // A virtual address, of two families.
            (&["10.0.1.1"], &[1]),
            (&["fd00:0:0:3::1", "10.0.7.9"], &[1, 3]),
            // A bridge of containers: no host has that prefix, and the gateway's is around ours.
            (&["172.17.0.1"], &[]),
            (&["fd00:1::1", "169.254.0.5"], &[]),
        ] {
            assert_eq!(judge(further, true), others, "{further:?}");
            assert_eq!(judge(further, false), [] as [u32; 0], "down: {further:?}");
        }
    }

    #[test]
    fn thousands_of_addresses_in_others_prefixes_name_a_bounded_number_of_hosts() {
        let prefixes: Vec<(u32, IpNet)> = (0..200_u32)
            .map(|host| (host, IpNet::from(IpAddr::from([10, 0, 0, host as u8]))))
            .collect();
        let network = NetworkView {
            own_host: 500,
            destinations: Destinations::new(prefixes.iter().map(|(host, prefix)| (*host, prefix))),
            ..NetworkView::default()
        };
        let addresses: Vec<HeldAddress> = (0..200)
            .map(|last| held("eth0", &format!("10.0.0.{last}"), true))
            .collect();
        let (no_address, others) = judge_addresses(&addresses, &network);
        assert!(no_address);
        assert_eq!(others, (0..16).collect::<Vec<u32>>());
    }

    #[test]
    fn a_table_is_too_small_while_flows_find_no_slot_and_until_it_has_free_ones() {
        let mut search = HostFaultSearch::new();
        let network = NetworkView::default();
        let mut second = 0;
        let mut found = |used, refused, beyond_session| {
            let table = TableUse {
                slots: 100,
                used,
                refused,
                beyond_session,
            };
            second += 1;
            let faults = search.look(second * INTERVAL_NS, &network, table);
            faults.flows_beyond_table
        };
        // A full table alone is none, nor is one burst that found no slot.
        assert!(!found(100, 0, 0));
        assert!(!found(100, 0, 0));
        assert!(!found(60, 5, 0));
        assert!(!found(60, 5, 0));
        // One flowlet after another finds none; then nothing begins, and nothing ends either.
        assert!(!found(100, 6, 0));
        assert!(found(100, 7, 0));
        assert!(found(100, 7, 0));
        assert!(found(99, 7, 0));
        assert!(found(50, 7, 0));
        assert!(!found(50, 7, 0));
        // The allocator carries fewer than the kernel.
        assert!(!found(50, 7, 3));
        assert!(found(50, 7, 3));
        assert!(found(50, 7, 0));
        assert!(!found(50, 7, 0));
    }
}
