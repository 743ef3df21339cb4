//! Prefixes of hosts: which may stand in a topology, and how many.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// Maximum number of prefixes of one host. A network card of EC2 has some 1,600 addresses at most:
/// 16 interfaces of 50 addresses in each family.
pub const MAX_HOST_PREFIXES: usize = 4_096;

/// Kind of addresses by which no other host reaches a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialUse {
    /// 0.0.0.0/8 and `::`.
    Unspecified,
    /// 127.0.0.0/8 and `::1`.
    Loopback,
    /// 169.254.0.0/16 and fe80::/10.
    LinkLocal,
    /// 224.0.0.0/4 and ff00::/8.
    Multicast,
    /// 255.255.255.255.
    Broadcast,
}

impl fmt::Display for SpecialUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "unspecified",
            Self::Loopback => "loopback",
            Self::LinkLocal => "link-local",
            Self::Multicast => "multicast",
            Self::Broadcast => "broadcast",
        })
    }
}

/// Returns the special use that all addresses of a prefix have; `None` if a host may have the
/// prefix. IPv4 addresses in IPv6 (`::ffff:127.0.0.1`) count as IPv4.
#[must_use]
pub fn special_use(prefix: &IpNet) -> Option<SpecialUse> {
    let (address, length) = match (prefix.network().to_canonical(), prefix) {
        (IpAddr::V4(address), IpNet::V6(_)) => {
            (IpAddr::V4(address), prefix.prefix_len().saturating_sub(96))
        }
        (address, _) => (address, prefix.prefix_len()),
    };
    // A prefix is within a range if its first address is, and if it is no shorter.
    let within = |special, least: u8| (length >= least).then_some(special);
    match address {
        IpAddr::V4(address) => match address.octets() {
            [0, ..] => within(SpecialUse::Unspecified, 8),
            [127, ..] => within(SpecialUse::Loopback, 8),
            [169, 254, ..] => within(SpecialUse::LinkLocal, 16),
            [224..=239, ..] => within(SpecialUse::Multicast, 4),
            [255, 255, 255, 255] => within(SpecialUse::Broadcast, 32),
            _ => None,
        },
        IpAddr::V6(address) => match address.segments() {
            [0xfe80..=0xfebf, ..] => within(SpecialUse::LinkLocal, 10),
            [0xff00..=0xffff, ..] => within(SpecialUse::Multicast, 8),
            _ if address.is_unspecified() => within(SpecialUse::Unspecified, 128),
            _ if address.is_loopback() => within(SpecialUse::Loopback, 128),
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_special_use_are_told_from_those_of_hosts() {
        for (prefix, special) in [
            ("0.0.0.0/32", Some(SpecialUse::Unspecified)),
            ("::/128", Some(SpecialUse::Unspecified)),
            ("127.0.1.1/32", Some(SpecialUse::Loopback)),
            ("127.0.0.0/8", Some(SpecialUse::Loopback)),
            ("::1/128", Some(SpecialUse::Loopback)),
            ("::ffff:127.0.0.1/128", Some(SpecialUse::Loopback)),
            ("169.254.7.7/32", Some(SpecialUse::LinkLocal)),
            ("febf::1/128", Some(SpecialUse::LinkLocal)),
            ("239.255.255.255/32", Some(SpecialUse::Multicast)),
            ("ff02::1/128", Some(SpecialUse::Multicast)),
            ("255.255.255.255/32", Some(SpecialUse::Broadcast)),
            // A gateway to everything else.
            ("0.0.0.0/0", None),
            ("::/0", None),
            ("126.0.0.0/7", None),
            ("169.253.0.1/32", None),
            ("223.255.255.255/32", None),
            ("240.0.0.1/32", None),
            ("fec0::1/128", None),
            ("::2/128", None),
            ("::ffff:10.0.0.1/128", None),
        ] {
            let parsed: IpNet = prefix.parse().expect("a prefix");
            assert_eq!(special_use(&parsed), special, "{prefix}");
        }
    }
}
