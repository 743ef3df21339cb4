//! Longest-prefix lookup from an address to its host.

use std::net::IpAddr;

use indexmap::IndexMap;
use ipnet::IpNet;

use crate::ids::HostId;
use crate::model::Host;

/// Tables by prefix length, the longest first. Networks use one or two lengths per family, so a
/// lookup is one or two hash probes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct PrefixTable {
    v4: Vec<(u8, IndexMap<IpNet, HostId>)>,
    v6: Vec<(u8, IndexMap<IpNet, HostId>)>,
}

impl PrefixTable {
    pub(crate) fn new(hosts: &[Host]) -> Self {
        let mut table = Self::default();
        for host in hosts {
            for prefix in &host.prefixes {
                table.insert(prefix.trunc(), host.id);
            }
        }
        table
    }

    pub(crate) fn insert(&mut self, prefix: IpNet, host: HostId) {
        let family = match prefix {
            IpNet::V4(_) => &mut self.v4,
            IpNet::V6(_) => &mut self.v6,
        };
        let length = prefix.prefix_len();
        // Kept in falling order of the length, which `get` relies on.
        let at = family.partition_point(|(l, _)| *l > length);
        if family.get(at).is_none_or(|(l, _)| *l != length) {
            family.insert(at, (length, IndexMap::new()));
        }
        family[at].1.insert(prefix, host);
    }

    /// Removes a prefix of `host`; another host's equal prefix stays.
    pub(crate) fn remove(&mut self, prefix: IpNet, host: HostId) {
        let family = match prefix {
            IpNet::V4(_) => &mut self.v4,
            IpNet::V6(_) => &mut self.v6,
        };
        let length = prefix.prefix_len();
        let Some(at) = family.iter().position(|(l, _)| *l == length) else {
            return;
        };
        let hosts = &mut family[at].1;
        if hosts.get(&prefix) == Some(&host) {
            hosts.swap_remove(&prefix);
        }
        // Lookups probe every length, so an unused one must not stay.
        if hosts.is_empty() {
            family.remove(at);
        }
    }

    pub(crate) fn get(&self, address: IpAddr) -> Option<HostId> {
        // A dual-stack socket reports IPv4 peers in their mapped form.
        let address = address.to_canonical();
        let family = if address.is_ipv4() {
            &self.v4
        } else {
            &self.v6
        };
        // The longest length comes first, so the first hit is the longest match.
        family.iter().find_map(|(length, hosts)| {
            let prefix = IpNet::new(address, *length).ok()?.trunc();
            hosts.get(&prefix).copied()
        })
    }
}
