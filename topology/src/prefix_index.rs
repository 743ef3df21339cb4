//! Prefixes in the order of addresses, so that overlaps are found without a look at all of them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::ids::HostId;
use crate::model::Host;

/// Ordered prefixes with their hosts. Insertion, removal and the search for an overlap take time
/// logarithmic in the number of prefixes, times the number of prefix lengths in use.
#[derive(Debug, Clone, Default)]
pub struct PrefixIndex {
    prefixes: BTreeMap<(IpAddr, u8), HostId>,
    /// Number of IPv4 and IPv6 prefixes by length.
    lengths: [BTreeMap<u8, usize>; 2],
}

impl PrefixIndex {
    /// Makes the index of all prefixes of these hosts.
    #[must_use]
    pub fn new<'a>(hosts: impl IntoIterator<Item = &'a Host>) -> Self {
        let mut index = Self::default();
        for host in hosts {
            for prefix in &host.prefixes {
                index.insert(*prefix, host.id);
            }
        }
        index
    }

    fn family(prefix: &IpNet) -> usize {
        usize::from(matches!(prefix, IpNet::V6(_)))
    }

    /// Adds a prefix, or gives it to another host.
    pub fn insert(&mut self, prefix: IpNet, host: HostId) {
        let key = (prefix.network(), prefix.prefix_len());
        if self.prefixes.insert(key, host).is_none() {
            *self.lengths[Self::family(&prefix)]
                .entry(key.1)
                .or_default() += 1;
        }
    }

    /// Removes a prefix, if `host` has it.
    pub fn remove(&mut self, prefix: IpNet, host: HostId) {
        let key = (prefix.network(), prefix.prefix_len());
        if self.prefixes.get(&key) != Some(&host) {
            return;
        }
        self.prefixes.remove(&key);
        let lengths = &mut self.lengths[Self::family(&prefix)];
        if let Some(count) = lengths.get_mut(&key.1) {
            *count -= 1;
            if *count == 0 {
                lengths.remove(&key.1);
            }
        }
    }

    /// Finds a prefix, with its host, that covers `prefix` or equals it: the shortest.
    fn covering(&self, prefix: &IpNet) -> impl Iterator<Item = (IpNet, HostId)> {
        let prefix = *prefix;
        let lengths = &self.lengths[Self::family(&prefix)];
        lengths
            .range(..=prefix.prefix_len())
            .filter_map(move |(&length, _)| {
                let outer = IpNet::new(prefix.addr(), length).ok()?.trunc();
                let host = self.prefixes.get(&(outer.network(), length))?;
                Some((outer, *host))
            })
    }

    /// Finds the prefixes that lie inside `prefix`, in the order of their addresses.
    fn covered(&self, prefix: &IpNet) -> impl Iterator<Item = (IpNet, HostId)> {
        let (first, last) = (prefix.network(), prefix.broadcast());
        let length = prefix.prefix_len();
        self.prefixes
            .range((first, length)..=(last, u8::MAX))
            // An equal prefix is among those that cover.
            .filter(move |&(&(_, inner), _)| inner > length)
            .filter_map(|(&(address, length), &host)| {
                Some((IpNet::new(address, length).ok()?, host))
            })
    }

    /// Returns the prefixes that share addresses with `prefix`: first those that cover it, from the
    /// shortest on, then those inside.
    pub fn overlaps(&self, prefix: &IpNet) -> impl Iterator<Item = (IpNet, HostId)> {
        self.covering(prefix).chain(self.covered(prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every answer equals that of a comparison of all pairs.
    #[test]
    fn overlaps_are_those_of_a_comparison_of_all_pairs() {
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let mut prefix = || -> IpNet {
            if random(2) == 0 {
                let length = u8::try_from(24 + random(9)).unwrap();
                let address = std::net::Ipv4Addr::from_bits(0x0a00_0000 + random(256) as u32);
                IpNet::new(address.into(), length).unwrap().trunc()
            } else {
                let length = u8::try_from(120 + random(9)).unwrap();
                let address =
                    std::net::Ipv6Addr::from_bits((0xfd << 120) + u128::from(random(256)));
                IpNet::new(address.into(), length).unwrap().trunc()
            }
        };
        let mut all: Vec<(IpNet, HostId)> = Vec::new();
        let mut index = PrefixIndex::default();
        for step in 0..4_000_u32 {
            let asked = prefix();
            let mut found: Vec<_> = index.overlaps(&asked).collect();
            let mut expected: Vec<_> = all
                .iter()
                .copied()
                .filter(|(other, _)| other.contains(&asked) || asked.contains(other))
                .collect();
            found.sort();
            expected.sort();
            assert_eq!(found, expected, "step {step}: {asked}");
            let changed = prefix();
            match all.iter().position(|(other, _)| *other == changed) {
                Some(at) => {
                    let (_, host) = all.swap_remove(at);
                    index.remove(changed, HostId(host.0 + 1));
                    index.remove(changed, host);
                }
                None => {
                    all.push((changed, HostId(step)));
                    index.insert(changed, HostId(step));
                }
            }
        }
    }
}
