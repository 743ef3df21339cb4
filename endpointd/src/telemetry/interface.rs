//! Counters of one network interface and of its root queueing discipline, through rtnetlink.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::SockProtocol;

use crate::flows::Destinations;
use crate::netlink::{Requests, find_attribute, get_u32, get_u64, invalid};

/// `IFLA_STATS_LINK_64`: attribute of the answer, and a bit of the request counted from 1.
const IFLA_STATS_LINK_64: u16 = 1;
/// Bytes of `struct if_stats_msg`.
const IF_STATS_MESSAGE: usize = 12;
/// Parent of a device's root qdisc.
const TC_ROOT: u32 = 0xffff_ffff;
/// Bytes of `struct tcmsg`.
const TC_MESSAGE: usize = 20;
const TCA_STATS2: u16 = 7;
const TCA_STATS_QUEUE: u16 = 3;
/// Folder with a folder for each interface.
const INTERFACES: &str = "/sys/class/net";
/// Most layers of virtual interfaces that are looked through for a device.
const MAX_LAYERS: u32 = 4;

/// Counters of an interface since it came into being, and its present queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct InterfaceCounters {
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets dropped by the host on arrival.
    pub rx_dropped: u64,
    /// Packets dropped by the device on sending.
    pub tx_dropped: u64,
    /// Bytes that wait in the root queueing discipline; 0 without one.
    pub queue_bytes: u32,
    /// Packets that the root queueing discipline dropped.
    pub queue_drops: u32,
}

impl InterfaceCounters {
    /// Returns the sums with another interface's.
    #[must_use]
    pub fn plus(self, other: &Self) -> Self {
        Self {
            rx_bytes: self.rx_bytes.wrapping_add(other.rx_bytes),
            tx_bytes: self.tx_bytes.wrapping_add(other.tx_bytes),
            rx_dropped: self.rx_dropped.wrapping_add(other.rx_dropped),
            tx_dropped: self.tx_dropped.wrapping_add(other.tx_dropped),
            queue_bytes: self.queue_bytes.saturating_add(other.queue_bytes),
            queue_drops: self.queue_drops.wrapping_add(other.queue_drops),
        }
    }
}

/// Reader of one interface's counters.
#[derive(Debug)]
pub struct InterfaceReader {
    /// Name of the interface.
    pub name: String,
    /// Speed that the device told last, in bit/s: 0 without a carrier, `None` if it tells none.
    pub speed_bps: Option<u64>,
    requests: Requests,
    index: u32,
}

impl InterfaceReader {
    /// Opens a reader for the interface `name` in this thread's network namespace.
    ///
    /// # Errors
    /// When there is no such interface, or the kernel refuses a socket.
    pub fn open(name: &str) -> io::Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            speed_bps: speed_bps(&Path::new(INTERFACES).join(name)),
            requests: Requests::open(SockProtocol::NetlinkRoute)?,
            index: if_nametoindex(name)?,
        })
    }

    /// Reads the device's speed anew: a bond that loses a member has less.
    pub fn read_speed(&mut self) {
        self.speed_bps = speed_bps(&Path::new(INTERFACES).join(&self.name));
    }

    /// Reads the counters: two requests, a few microseconds each.
    ///
    /// # Errors
    /// When the interface is gone, or the kernel refuses.
    pub fn read(&mut self) -> io::Result<InterfaceCounters> {
        let index = self.index;
        let mut counters = InterfaceCounters::default();
        ask_statistics(&mut self.requests, index, |statistics| {
            take_statistics(statistics, &mut counters)
        })?;
        // struct tcmsg: family and padding, ifindex, handle, parent, info.
        let body = words(&[0, index, 0, TC_ROOT, 0]);
        let asked = self.requests.ask(libc::RTM_GETQDISC, &body, |payload| {
            take_queue(payload, &mut counters)
        });
        // A device without a queueing discipline has no queue.
        asked.or_else(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::EINVAL) => Ok(()),
            _ => Err(error),
        })?;
        Ok(counters)
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Passes `struct rtnl_link_stats64` of an interface to `take`.
fn ask_statistics(
    requests: &mut Requests,
    index: u32,
    mut take: impl FnMut(&[u8]) -> Option<()>,
) -> io::Result<()> {
    // struct if_stats_msg: family and padding, ifindex, filter.
    let filter = 1 << (IFLA_STATS_LINK_64 - 1);
    let body = words(&[0, index, filter]);
    requests.ask(libc::RTM_GETSTATS, &body, |payload| {
        let attributes = payload.get(IF_STATS_MESSAGE..)?;
        take(find_attribute(attributes, IFLA_STATS_LINK_64)?)
    })
}

/// Returns the packets that an interface has received.
///
/// # Errors
/// When the interface is gone, or the kernel refuses.
pub(super) fn received_packets(requests: &mut Requests, index: u32) -> io::Result<u64> {
    let mut packets = None;
    ask_statistics(requests, index, |statistics| {
        packets = Some(get_u64(statistics, 0)?);
        Some(())
    })?;
    packets.ok_or_else(|| invalid("an interface without statistics"))
}

fn take_statistics(statistics: &[u8], counters: &mut InterfaceCounters) -> Option<()> {
    counters.rx_bytes = get_u64(statistics, 16)?;
    counters.tx_bytes = get_u64(statistics, 24)?;
    counters.rx_dropped = get_u64(statistics, 48)?;
    counters.tx_dropped = get_u64(statistics, 56)?;
    Some(())
}

/// Takes `struct gnet_stats_queue` of an answer to `RTM_GETQDISC`.
fn take_queue(payload: &[u8], counters: &mut InterfaceCounters) -> Option<()> {
    let attributes = payload.get(TC_MESSAGE..)?;
    let queue = find_attribute(find_attribute(attributes, TCA_STATS2)?, TCA_STATS_QUEUE)?;
    counters.queue_bytes = get_u32(queue, 4)?;
    counters.queue_drops = get_u32(queue, 8)?;
    Some(())
}

/// Returns the speed of the interface with this folder in bit/s: 0 without a carrier, `None` if it
/// tells none. A virtual interface invents one: that of a veth pair says nothing.
fn speed_bps(folder: &Path) -> Option<u64> {
    if !is_real(folder) {
        return None;
    }
    let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
    // Down or unknown, it is -1 or cannot be read.
    let mbps = read("speed").and_then(|text| text.trim().parse::<u64>().ok());
    let bps = mbps.map(|mbps| mbps.saturating_mul(1_000_000));
    // That of an interface that is down cannot be read.
    let has_carrier = || read("carrier").is_some_and(|text| text.trim() == "1");
    bps.or_else(|| (!has_carrier()).then_some(0))
}

/// Returns true for an interface with a device, or with members as one device (bonding).
fn is_real(folder: &Path) -> bool {
    folder.join("device").exists() || folder.join("bonding").exists()
}

/// Address that an interface has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldAddress {
    /// Name of the interface.
    pub interface: String,
    /// The address.
    pub address: IpAddr,
    /// The interface is up.
    pub is_up: bool,
}

/// Returns the addresses of all interfaces: hosts that speak BGP have theirs at loopback.
///
/// # Errors
/// When the kernel does not tell the addresses.
pub(super) fn held_addresses() -> io::Result<Vec<HeldAddress>> {
    let addresses = getifaddrs()?.filter_map(|entry| {
        Some(HeldAddress {
            address: address_of(&entry)?,
            is_up: entry.flags.contains(InterfaceFlags::IFF_UP),
            interface: name_of(&entry),
        })
    });
    Ok(addresses.collect())
}

/// Returns the interface's name: an IPv4 address with a label has more behind a colon.
fn name_of(entry: &InterfaceAddress) -> String {
    let name = entry.interface_name.split(':').next();
    name.unwrap_or_default().to_owned()
}

fn address_of(entry: &InterfaceAddress) -> Option<IpAddr> {
    let address = entry.address.as_ref()?;
    let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
}

/// Finds the interfaces that carry the traffic of the host `own_host`: the devices of all that have
/// an address of it. Where there is no device, as in a pod, it is the first of them.
///
/// # Errors
/// When the kernel does not tell the addresses.
pub fn interfaces_of(destinations: &Destinations, own_host: u32) -> io::Result<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for entry in getifaddrs()? {
        let host = address_of(&entry).and_then(|address| destinations.host_of(address));
        let name = name_of(&entry);
        if host == Some(own_host)
            && !entry.flags.contains(InterfaceFlags::IFF_LOOPBACK)
            && !names.contains(&name)
        {
            names.push(name);
        }
    }
    Ok(devices_below(&names, Path::new(INTERFACES)))
}

/// Returns the devices of interfaces, each once; the first of these where none has a device.
///
/// A VLAN or a bridge is above its device, and a bridge of containers is above none.
fn devices_below(names: &[String], interfaces: &Path) -> Vec<String> {
    let mut devices = BTreeSet::new();
    for name in names {
        add_devices(name, interfaces, MAX_LAYERS, &mut devices);
    }
    if devices.is_empty() {
        devices.extend(names.first().cloned());
    }
    devices.into_iter().collect()
}

fn add_devices(name: &str, interfaces: &Path, layers: u32, devices: &mut BTreeSet<String>) {
    let folder = interfaces.join(name);
    if is_real(&folder) {
        devices.insert(name.to_owned());
        return;
    }
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten().filter(|_| layers > 0) {
        let file = entry.file_name();
        let below = file.to_str().and_then(|file| file.strip_prefix("lower_"));
        if let Some(below) = below {
            add_devices(below, interfaces, layers - 1, devices);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn the_loopback_interface_counts_what_is_sent_over_it() {
        let mut reader = InterfaceReader::open("lo").unwrap();
        let before = reader.read().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = socket.local_addr().unwrap();
        for _ in 0..10 {
            socket.send_to(&[0; 1_000], to).unwrap();
        }
        let after = reader.read().unwrap();
        assert!(after.tx_bytes >= before.tx_bytes + 10_000);
        assert!(after.rx_bytes >= before.rx_bytes + 10_000);
    }

    #[test]
    fn an_interface_without_a_device_tells_no_speed() {
        assert_eq!(InterfaceReader::open("lo").unwrap().speed_bps, None);
    }

    /// A folder as sysfs has it, with these files.
    fn sysfs(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn a_device_without_a_carrier_has_no_speed_and_one_that_tells_none_is_unknown() {
        let root = sysfs(&[
            ("eth0/device", ""),
            ("eth0/speed", "25000\n"),
            ("eth0/carrier", "1\n"),
            ("eth1/device", ""),
            ("eth1/speed", "-1\n"),
            ("eth1/carrier", "0\n"),
            // That of an interface that is down cannot be read.
            ("eth2/device", ""),
            ("ens5/device", ""),
            ("ens5/speed", "-1\n"),
            ("ens5/carrier", "1\n"),
            ("bond0/bonding", ""),
            ("bond0/speed", "50000\n"),
            ("veth0/speed", "10000\n"),
            ("veth0/carrier", "1\n"),
        ]);
        for (name, speed) in [
            ("eth0", Some(25_000_000_000)),
            ("eth1", Some(0)),
            ("eth2", Some(0)),
            ("ens5", None),
            ("bond0", Some(50_000_000_000)),
            ("veth0", None),
            ("none", None),
        ] {
            assert_eq!(speed_bps(&root.path().join(name)), speed, "{name}");
        }
    }

    #[test]
    fn all_devices_of_a_host_count_once_and_the_first_interface_where_none_has_one() {
        let root = sysfs(&[
            ("eth0/device", ""),
            ("eth1/device", ""),
            ("bond0/bonding", ""),
            ("bond0/lower_eth1", ""),
            ("eth0.7/lower_eth0", ""),
            ("br0/lower_eth0.7", ""),
            ("br0/lower_veth1", ""),
            ("cni0/lower_veth2", ""),
            ("veth1/speed", ""),
            ("veth2/speed", ""),
            // Two that are above each other, which the kernel does not allow.
            ("loop0/lower_loop1", ""),
            ("loop1/lower_loop0", ""),
        ]);
        for (names, found) in [
            (&["eth0", "eth1"][..], &["eth0", "eth1"][..]),
            (&["eth1", "eth0", "eth0.7", "br0"], &["eth0", "eth1"]),
            (&["br0"], &["eth0"]),
            (&["bond0", "eth0"], &["bond0", "eth0"]),
            // Pods' bridge has an address of the host's own, too.
            (&["cni0", "eth0"], &["eth0"]),
            (&["veth2", "cni0"], &["veth2"]),
            (&["loop0"], &["loop0"]),
            (&["gone"], &["gone"]),
            (&[], &[]),
        ] {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            assert_eq!(devices_below(&names, root.path()), found, "{names:?}");
        }
    }

    #[test]
    fn counters_of_interfaces_are_summed() {
        let of = |factor: u32| InterfaceCounters {
            rx_bytes: u64::from(factor),
            tx_bytes: u64::from(2 * factor),
            rx_dropped: u64::from(3 * factor),
            tx_dropped: u64::from(4 * factor),
            queue_bytes: 5 * factor,
            queue_drops: 6 * factor,
        };
        assert_eq!(of(1).plus(&of(10)), of(11));
    }

    #[test]
    fn an_interface_that_does_not_exist_is_an_error() {
        assert!(InterfaceReader::open("rw-none").is_err());
    }
}
