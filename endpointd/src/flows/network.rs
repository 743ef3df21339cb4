//! The network as the allocator's Welcome and topology updates describe it: hosts by address, the
//! ECMP hash, and the classes.

use std::net::IpAddr;

use indexmap::IndexMap;
use ipnet::IpNet;
use rustc_hash::FxBuildHasher;

/// The prefixes of one length of one address family.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Level {
    mask: u128,
    length: u8,
    hosts: IndexMap<u128, u32, FxBuildHasher>,
}

/// Longest-prefix match from an address to a host, as one hash table per prefix length. A
/// datacenter has one or two lengths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Destinations {
    v4: Vec<Level>,
    v6: Vec<Level>,
}

impl Destinations {
    /// Builds the tables. If two hosts claim one prefix, the first keeps it.
    #[must_use]
    pub fn new<'a>(prefixes: impl IntoIterator<Item = (u32, &'a IpNet)>) -> Self {
        let mut table = Self::default();
        for (host, prefix) in prefixes {
            let (levels, address, length, width) = match prefix {
                IpNet::V4(net) => (
                    &mut table.v4,
                    u128::from(net.network().to_bits()),
                    net.prefix_len(),
                    32_u8,
                ),
                IpNet::V6(net) => (
                    &mut table.v6,
                    net.network().to_bits(),
                    net.prefix_len(),
                    128,
                ),
            };
            // Levels stand from the longest prefix to the shortest, so the first match is the
            // longest.
            let at = levels.partition_point(|level| level.length > length);
            if levels.get(at).is_none_or(|level| level.length != length) {
                // A shift by the whole width is the empty mask of the default route.
                let mask = u128::MAX
                    .checked_shl(u32::from(width - length))
                    .unwrap_or(0);
                levels.insert(
                    at,
                    Level {
                        mask,
                        length,
                        hosts: IndexMap::default(),
                    },
                );
            }
            levels[at].hosts.entry(address).or_insert(host);
        }
        table
    }

    /// Finds the host with the longest prefix of `address`.
    #[must_use]
    pub fn host_of(&self, address: IpAddr) -> Option<u32> {
        self.longest_of(address).map(|(host, _)| host)
    }

    /// Finds the longest prefix of `address`, and its host.
    #[must_use]
    pub fn prefix_of(&self, address: IpAddr) -> Option<(u32, IpNet)> {
        let (host, length) = self.longest_of(address)?;
        let prefix = IpNet::new(address.to_canonical(), length).ok()?;
        Some((host, prefix.trunc()))
    }

    fn longest_of(&self, address: IpAddr) -> Option<(u32, u8)> {
        // A dual-stack socket shows IPv4 peers as ::ffff:a.b.c.d, but prefixes are configured as
        // IPv4.
        let (levels, bits) = match address.to_canonical() {
            IpAddr::V4(address) => (&self.v4, u128::from(address.to_bits())),
            IpAddr::V6(address) => (&self.v6, address.to_bits()),
        };
        levels.iter().find_map(|level| {
            let host = level.hosts.get(&(bits & level.mask))?;
            Some((*host, level.length))
        })
    }
}

/// The network as the allocator describes it to this host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkView {
    /// This host.
    pub own_host: u32,
    /// Hosts by address.
    pub destinations: Destinations,
    /// Seed of the switches' ECMP hash.
    pub ecmp_seed: u32,
    /// The hash gives a flow and its acknowledgements the same path.
    pub ecmp_symmetric: bool,
    /// The allocator's classes, by number and name.
    pub classes: Vec<(u8, String)>,
}

impl NetworkView {
    /// Finds a class's name by its number.
    #[must_use]
    pub fn class_name(&self, class: u8) -> Option<&str> {
        self.classes
            .iter()
            .find(|(id, _)| *id == class)
            .map(|(_, name)| name.as_str())
    }

    /// Finds a class's number by its name.
    #[must_use]
    pub fn class_id(&self, name: &str) -> Option<u8> {
        self.classes
            .iter()
            .find(|(_, known)| known == name)
            .map(|(id, _)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_wins() {
        let prefixes: Vec<(u32, IpNet)> = [
            (1, "10.0.0.0/8"),
            (2, "10.1.0.0/16"),
            (3, "10.1.2.3/32"),
            (4, "fd00::/8"),
            (5, "fd00:0:0:5::/64"),
            (6, "0.0.0.0/0"),
            (7, "10.1.0.0/16"),
        ]
        .map(|(host, prefix)| (host, prefix.parse().unwrap()))
        .into();
        let table = Destinations::new(prefixes.iter().map(|(host, prefix)| (*host, prefix)));
        for (address, host) in [
            ("10.200.0.1", Some(1)),
            ("10.1.9.9", Some(2)),
            ("10.1.2.3", Some(3)),
            ("::ffff:10.1.2.3", Some(3)),
            ("fd12::1", Some(4)),
            ("fd00:0:0:5::9", Some(5)),
            ("192.0.2.1", Some(6)),
            ("2001:db8::1", None),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(table.host_of(address), host, "{address}");
            let prefix = table.prefix_of(address);
            assert_eq!(prefix.map(|(host, _)| host), host);
            let is_one = |(of, prefix): (u32, IpNet)| {
                prefix.contains(&address.to_canonical()) && prefixes.contains(&(of, prefix))
            };
            assert!(prefix.is_none_or(is_one), "{address}: {prefix:?}");
        }
        assert_eq!(
            Destinations::default().host_of("10.0.0.1".parse().unwrap()),
            None
        );
    }

    #[test]
    fn classes_are_found_by_number_and_by_name() {
        let network = NetworkView {
            classes: vec![(0, "default".into()), (2, "gold".into())],
            ..NetworkView::default()
        };
        for (id, name) in [(0, "default"), (2, "gold")] {
            assert_eq!(network.class_name(id), Some(name));
            assert_eq!(network.class_id(name), Some(id));
        }
        assert_eq!(
            (network.class_name(1), network.class_id("silver")),
            (None, None)
        );
    }
}
