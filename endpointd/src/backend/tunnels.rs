//! Bytes that tunnels add to frames, as far as this host's devices tell.
//!
//! A frame that leaves a socket for a tunnel is larger on the wire. The route to the destination
//! names a device, and the device its kind, and the device below it:
//!
//! | kind | adds | of which |
//! |---|---|---|
//! | VXLAN | 50, over IPv6 70 | outer IP 20 or 40, UDP 8, VXLAN 8, inner Ethernet 14 |
//! | WireGuard | 80 | outer IP up to 40, UDP 8, WireGuard 32 |
//! | Geneve | 50, over IPv6 70 | as VXLAN, without options |
//! | IPIP, SIT | 20 | outer IPv4 |
//! | GRE | 24, with an Ethernet header 38 | outer IPv4 20, GRE 4 and 4 for each of its fields |
//! | IPv4 or IPv6 in IPv6 | 48 | outer IPv6 40, its limit of encapsulations 8 |
//! | VLAN | 4 | the tag |
//! | macvlan, ipvlan | 0 | what the device below adds |
//!
//! The larger outer IP counts where it is not known. What routes do not show (a switch that
//! encapsulates, a program that redirects packets, IPsec) is the configuration's to say.

use std::io;
use std::net::IpAddr;

use indexmap::IndexMap;
use nix::sys::socket::SockProtocol;
use rustc_hash::FxBuildHasher;

use crate::netlink::{Requests, attribute, device_kind, find_attribute, get_u32};

/// Most destinations that are remembered.
const REMEMBERED: usize = 4_096;
/// Time after which routes and devices are asked for again.
const FRESH_NS: u64 = 10_000_000_000;
/// Most devices above each other that are followed.
const DEPTH: usize = 4;

/// Bytes of `struct rtmsg`.
const ROUTE_MESSAGE: usize = 12;
/// Attributes of a VXLAN device.
const VXLAN_LINK: u16 = 3;
const VXLAN_GROUP6: u16 = 16;
const VXLAN_LOCAL6: u16 = 17;
const VXLAN_COLLECT_METADATA: u16 = 25;

/// Attribute of a Geneve device with an IPv4 remote end.
const GENEVE_REMOTE: u16 = 2;
/// Attributes of an IP or GRE tunnel: the device below, and the fields of its GRE headers.
const TUNNEL_LINK: u16 = 1;
const GRE_FLAGS: u16 = 3;
/// Fields of 4 bytes each, in the first byte of the flags.
const GRE_CHECKSUM: u8 = 0x80;
const GRE_KEY: u8 = 0x20;
const GRE_SEQUENCE: u8 = 0x10;

const ETHERNET_BYTES: u16 = 14;
const IPV4_BYTES: u16 = 20;
const IN_IPV6_BYTES: u16 = 48;
const VLAN_BYTES: u16 = 4;
const VXLAN_BYTES: u16 = 20 + 8 + 8 + 14;
const VXLAN_OVER_IPV6_BYTES: u16 = 40 + 8 + 8 + 14;
const WIREGUARD_BYTES: u16 = 40 + 8 + 32;

/// Reader of routes and devices in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(super) struct Tunnels {
    requests: Requests,
    /// Least bytes of any frame.
    least_bytes: u16,
    destinations: IndexMap<IpAddr, u16, FxBuildHasher>,
    devices: IndexMap<u32, u16, FxBuildHasher>,
    /// Devices whose bytes the log has.
    logged: IndexMap<u32, u16, FxBuildHasher>,
    fresh_until_ns: u64,
}

impl Tunnels {
    /// Opens a reader; every frame gets `least_bytes` at least.
    pub(super) fn open(least_bytes: u16) -> io::Result<Self> {
        Ok(Self {
            requests: Requests::open(SockProtocol::NetlinkRoute)?,
            least_bytes,
            destinations: IndexMap::default(),
            devices: IndexMap::default(),
            logged: IndexMap::default(),
            fresh_until_ns: 0,
        })
    }

    /// Returns what is added to each frame to `destination`. A new destination costs a few
    /// microseconds, and one without a route nothing is added to.
    pub(super) fn bytes_to(&mut self, destination: IpAddr, now_ns: u64) -> u16 {
        if now_ns >= self.fresh_until_ns || self.destinations.len() >= REMEMBERED {
            self.fresh_until_ns = now_ns + FRESH_NS;
            self.destinations.clear();
            self.devices.clear();
            if self.logged.len() >= REMEMBERED {
                self.logged.clear();
            }
        }
        if let Some(bytes) = self.destinations.get(&destination) {
            return *bytes;
        }
        let bytes = match self.device_to(destination) {
            Some(device) => self.bytes_of_device(device),
            None => self.least_bytes,
        };
        self.destinations.insert(destination, bytes);
        bytes
    }

    /// Returns what is added to each frame that a device sends, by the kernel's number of it.
    pub(super) fn bytes_of_device(&mut self, index: u32) -> u16 {
        if let Some(bytes) = self.devices.get(&index) {
            return *bytes;
        }
        let mut seen = 0;
        let mut names = Vec::new();
        let mut next = Some(index);
        while let Some(device) = next
            .filter(|_| names.len() < DEPTH)
            .and_then(|i| self.device(i))
        {
            seen += device.added_bytes;
            next = device.below;
            names.push(device.name);
        }
        if seen > 0 && self.logged.insert(index, seen) != Some(seen) {
            let device = names.join(" over ");
            tracing::info!(
                device,
                bytes = seen,
                "flows count what this device's tunnel adds"
            );
        }
        let bytes = seen.max(self.least_bytes);
        self.devices.insert(index, bytes);
        bytes
    }

    fn device_to(&mut self, destination: IpAddr) -> Option<u32> {
        let (family, octets) = match destination {
            IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
            IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
        };
        let mut body = vec![0; ROUTE_MESSAGE];
        body[0] = family as u8;
        body[1] = 8 * octets.len() as u8;
        attribute(&mut body, libc::RTA_DST, |out| out.extend(octets));
        let mut device = None;
        // An address without a route is an error, and shows no device.
        let _ = self.requests.ask(libc::RTM_GETROUTE, &body, |route| {
            let of_device = find_attribute(route.get(ROUTE_MESSAGE..)?, libc::RTA_OIF)?;
            device = get_u32(of_device, 0);
            Some(())
        });
        device
    }

    fn device(&mut self, index: u32) -> Option<Device> {
        let mut found = None;
        let take = |attributes: &[u8]| found = Some(device_in(attributes));
        self.requests.ask_device(index, take);
        found
    }
}

/// A network device.
#[derive(Debug, PartialEq, Eq)]
struct Device {
    name: String,
    /// Bytes that it adds to each frame.
    added_bytes: u16,
    /// Number of the device that carries its frames, in this namespace.
    below: Option<u32>,
}

/// Reads a device's attributes.
fn device_in(attributes: &[u8]) -> Device {
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|byte| *byte == 0);
        String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
    };
    let name = find_attribute(attributes, libc::IFLA_IFNAME).map(text);
    let info = find_attribute(attributes, libc::IFLA_LINKINFO).unwrap_or_default();
    let data = find_attribute(info, libc::IFLA_INFO_DATA).unwrap_or_default();
    let here = find_attribute(attributes, libc::IFLA_LINK_NETNSID).is_none();
    let number = |from, kind| find_attribute(from, kind).and_then(|bytes| get_u32(bytes, 0));
    let parent = || number(attributes, libc::IFLA_LINK).filter(|_| here);
    let (added_bytes, below) = match device_kind(attributes) {
        "vlan" => (VLAN_BYTES, parent()),
        "vxlan" => (vxlan_bytes(data), number(data, VXLAN_LINK).filter(|_| here)),
        "wireguard" => (WIREGUARD_BYTES, None),
        "geneve" => (geneve_bytes(data), None),
        "ipip" | "sit" => (IPV4_BYTES, number(data, TUNNEL_LINK).filter(|_| here)),
        "gre" => (gre_bytes(data), number(data, TUNNEL_LINK).filter(|_| here)),
        "gretap" => (
            gre_bytes(data) + ETHERNET_BYTES,
            number(data, TUNNEL_LINK).filter(|_| here),
        ),
        "ip6tnl" => (IN_IPV6_BYTES, number(data, TUNNEL_LINK).filter(|_| here)),
        "macvlan" | "ipvlan" => (0, parent()),
        _ => (0, None),
    };
    Device {
        name: name.unwrap_or_default(),
        added_bytes,
        below,
    }
}

fn vxlan_bytes(data: &[u8]) -> u16 {
    let has = |kind| find_attribute(data, kind).is_some();
    // Such a device takes the outer addresses from each packet.
    let any = find_attribute(data, VXLAN_COLLECT_METADATA).is_some_and(|flag| flag != [0]);
    if has(VXLAN_GROUP6) || has(VXLAN_LOCAL6) || any {
        VXLAN_OVER_IPV6_BYTES
    } else {
        VXLAN_BYTES
    }
}

fn geneve_bytes(data: &[u8]) -> u16 {
    if find_attribute(data, GENEVE_REMOTE).is_some() {
        VXLAN_BYTES
    } else {
        // Such a device takes the outer addresses from each packet, or has IPv6 ones.
        VXLAN_OVER_IPV6_BYTES
    }
}

fn gre_bytes(data: &[u8]) -> u16 {
    let flags = find_attribute(data, GRE_FLAGS).and_then(|bytes| bytes.first().copied());
    let fields = flags.unwrap_or_default() & (GRE_CHECKSUM | GRE_KEY | GRE_SEQUENCE);
    IPV4_BYTES + 4 + 4 * fields.count_ones() as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::put_u32;

    /// Attributes as the kernel sends them for a device of `kind`.
    fn link(name: &str, kind: &str, lower: Option<u32>, data: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
        let string = |out: &mut Vec<u8>, text: &str| {
            out.extend(text.as_bytes());
            out.push(0);
        };
        let mut out = Vec::new();
        attribute(&mut out, libc::IFLA_IFNAME, |out| string(out, name));
        if let Some(lower) = lower {
            attribute(&mut out, libc::IFLA_LINK, |out| put_u32(out, lower));
        }
        attribute(&mut out, libc::IFLA_LINKINFO, |out| {
            attribute(out, libc::IFLA_INFO_KIND, |out| string(out, kind));
            attribute(out, libc::IFLA_INFO_DATA, &data);
        });
        out
    }

    fn of(link: &[u8]) -> (u16, Option<u32>) {
        let device = device_in(link);
        (device.added_bytes, device.below)
    }

    /// Headers by hand; an inner packet of an MTU less by them makes a full outer frame again.
    #[test]
    fn kinds_of_devices_add_the_headers_of_their_tunnel() {
        let none = |_: &mut Vec<u8>| {};
        assert_eq!(of(&link("e0.7", "vlan", Some(2), none)), (4, Some(2)));
        // Flannel's: a local IPv4 address, and the device below.
        let v4 = |out: &mut Vec<u8>| {
            attribute(out, VXLAN_LINK, |out| put_u32(out, 2));
            attribute(out, 4, |out| out.extend([10, 0, 0, 1]));
            attribute(out, VXLAN_COLLECT_METADATA, |out| out.push(0));
        };
        assert_eq!(of(&link("flannel.1", "vxlan", None, v4)), (50, Some(2)));
        let v6 = |out: &mut Vec<u8>| attribute(out, VXLAN_GROUP6, |out| out.extend([0xfd; 16]));
        assert_eq!(of(&link("vx6", "vxlan", None, v6)), (70, None));
        let any = |out: &mut Vec<u8>| attribute(out, VXLAN_COLLECT_METADATA, |out| out.push(1));
        assert_eq!(of(&link("any", "vxlan", None, any)), (70, None));
        assert_eq!(of(&link("wg0", "wireguard", None, none)), (80, None));
        // Calico's, and its like over IPv6.
        assert_eq!(of(&link("tunl0", "ipip", None, none)), (20, None));
        let over = |out: &mut Vec<u8>| attribute(out, TUNNEL_LINK, |out| put_u32(out, 2));
        assert_eq!(of(&link("sit1", "sit", None, over)), (20, Some(2)));
        assert_eq!(of(&link("ip6tnl1", "ip6tnl", None, over)), (48, Some(2)));
        assert_eq!(of(&link("gre1", "gre", None, over)), (24, Some(2)));
        let keyed = |out: &mut Vec<u8>| attribute(out, GRE_FLAGS, |out| out.extend([0x20, 0]));
        assert_eq!(of(&link("gre2", "gre", None, keyed)), (28, None));
        assert_eq!(of(&link("gretap1", "gretap", None, none)), (38, None));
        let remote =
            |out: &mut Vec<u8>| attribute(out, GENEVE_REMOTE, |out| out.extend([10, 0, 0, 2]));
        assert_eq!(of(&link("gnv0", "geneve", None, remote)), (50, None));
        assert_eq!(of(&link("gnv6", "geneve", None, none)), (70, None));
        assert_eq!(of(&link("m0", "macvlan", Some(3), none)), (0, Some(3)));
        // The other end of a veth is no device below.
        assert_eq!(of(&link("v0", "veth", Some(9), none)), (0, None));
    }

    #[test]
    fn a_device_in_another_namespace_is_not_followed() {
        let mut away = link("m0", "macvlan", Some(3), |_| {});
        attribute(&mut away, libc::IFLA_LINK_NETNSID, |out| put_u32(out, 0));
        assert_eq!(of(&away), (0, None));
    }

    #[test]
    fn truncated_answers_name_no_tunnel() {
        let whole = link("e0.7", "vlan", Some(2), |_| {});
        for length in 0..whole.len() {
            let (bytes, _) = of(&whole[..length]);
            assert!(bytes == 0 || bytes == 4, "{length}");
        }
    }

    #[test]
    fn what_the_configuration_says_is_the_least() {
        let mut tunnels = Tunnels::open(50).expect("a netlink socket");
        let here = "127.0.0.1".parse().expect("an address");
        assert_eq!(tunnels.bytes_to(here, 1), 50);
        // 240.0.0.0/4 has no route.
        let nowhere = "240.0.0.1".parse().expect("an address");
        assert_eq!(tunnels.bytes_to(nowhere, 1), 50);
        let mut plain = Tunnels::open(0).expect("a netlink socket");
        assert_eq!(plain.bytes_to(here, 1), 0);
    }

    #[test]
    fn destinations_are_bounded() {
        let mut tunnels = Tunnels::open(0).expect("a netlink socket");
        for number in 0..10_000u32 {
            tunnels.bytes_to(std::net::Ipv4Addr::from(0x7f00_0000 + number).into(), 1);
            assert!(tunnels.destinations.len() <= REMEMBERED);
        }
    }
}
