//! Faults of this host that its daemon finds: no address of its own, another congestion control.
//!
//! A fault counts, and ceases to, once it was found so twice in a row, a second apart.

use std::fs;

use ratewright_proto::telemetry::HostFaults;

use super::interface::has_address_of;
use crate::flows::NetworkView;

/// Interval at which they are looked for.
const INTERVAL_NS: u64 = 1_000_000_000;

/// Name of the congestion control that sockets of this network namespace have by default.
const DEFAULT_CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// Search for faults of this host.
#[derive(Debug)]
pub struct HostFaultSearch {
    /// Default congestion control at the start; `None` if it cannot be read.
    congestion_control: Option<String>,
    found: HostFaults,
    /// Faults of the newest look.
    seen: HostFaults,
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
            due_ns: 0,
        }
    }

    /// Looks for faults, if that is due. Returns those that count.
    pub fn look(&mut self, now_ns: u64, network: &NetworkView) -> HostFaults {
        if now_ns >= self.due_ns {
            self.due_ns = now_ns + INTERVAL_NS;
            let seen = HostFaults {
                no_address: has_address_of(&network.destinations, network.own_host)
                    .is_ok_and(|has| !has),
                other_congestion_control: self.congestion_control.is_some()
                    && congestion_control() != self.congestion_control,
            };
            self.take(seen);
        }
        self.found
    }

    fn take(&mut self, seen: HostFaults) {
        if std::mem::replace(&mut self.seen, seen) == seen {
            self.found = seen;
        }
    }
}

impl Default for HostFaultSearch {
    fn default() -> Self {
        Self::new()
    }
}

fn congestion_control() -> Option<String> {
    let text = fs::read_to_string(DEFAULT_CONGESTION_CONTROL).ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_counts_and_ceases_to_when_it_was_found_so_twice_in_a_row() {
        let mut search = HostFaultSearch::new();
        let fault = HostFaults {
            no_address: true,
            ..HostFaults::default()
        };
        let none = HostFaults::default();
        for (seen, counts) in [
            (fault, false),
            (none, false),
            (fault, false),
            (fault, true),
            (none, true),
            (fault, true),
            (none, true),
            (none, false),
        ] {
            search.take(seen);
            assert_eq!(search.found.no_address, counts);
        }
    }

    #[test]
    fn a_host_without_an_address_of_its_own_is_found_within_two_seconds() {
        let mut search = HostFaultSearch::new();
        let network = NetworkView::default();
        let faults: Vec<bool> = (0..20)
            .map(|tenth| search.look(tenth * 100_000_000, &network).no_address)
            .collect();
        assert!(!faults[0] && faults[19]);
    }
}
