//! Counters of one network interface and of its root queueing discipline, through rtnetlink.

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

/// Reader of one interface's counters.
#[derive(Debug)]
pub struct InterfaceReader {
    /// Name of the interface.
    pub name: String,
    /// Speed that the device told last, in bit/s; 0 if it tells none.
    pub speed_bps: u64,
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
            speed_bps: speed_bps(name),
            requests: Requests::open(SockProtocol::NetlinkRoute)?,
            index: if_nametoindex(name)?,
        })
    }

    /// Reads the device's speed anew: a bond that loses a member has less.
    pub fn read_speed(&mut self) {
        self.speed_bps = speed_bps(&self.name);
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

/// Returns the speed of an interface with a device or with members, in bit/s; 0 if it tells none. A
/// virtual interface invents one: that of a veth pair says nothing.
fn speed_bps(name: &str) -> u64 {
    let folder = Path::new("/sys/class/net").join(name);
    let is_real = folder.join("device").exists() || folder.join("bonding").exists();
    let mbps = fs::read_to_string(folder.join("speed"))
        .ok()
        // Down or unknown, it is -1 or cannot be read.
        .and_then(|text| text.trim().parse::<u64>().ok())
        .filter(|_| is_real);
    mbps.map_or(0, |mbps| mbps.saturating_mul(1_000_000))
}

/// Returns the addresses of all interfaces, and which are of one that is up: hosts that speak BGP
/// have theirs at loopback.
///
/// # Errors
/// When the kernel does not tell the addresses.
pub(super) fn own_addresses() -> io::Result<Vec<(IpAddr, bool)>> {
    let addresses = getifaddrs()?.filter_map(|entry| {
        let is_up = entry.flags.contains(InterfaceFlags::IFF_UP);
        Some((address_of(&entry)?, is_up))
    });
    Ok(addresses.collect())
}

fn address_of(entry: &InterfaceAddress) -> Option<IpAddr> {
    let address = entry.address.as_ref()?;
    let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
}

/// Finds the interface that has an address of the host `own_host`.
#[must_use]
pub fn interface_of(destinations: &Destinations, own_host: u32) -> Option<String> {
    let addresses = getifaddrs().ok()?;
    addresses
        .filter(|entry| !entry.flags.contains(InterfaceFlags::IFF_LOOPBACK))
        .find(|entry| {
            let host = address_of(entry).and_then(|address| destinations.host_of(address));
            host == Some(own_host)
        })
        .map(|entry| entry.interface_name)
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
        assert_eq!(InterfaceReader::open("lo").unwrap().speed_bps, 0);
    }

    #[test]
    fn an_interface_that_does_not_exist_is_an_error() {
        assert!(InterfaceReader::open("rw-none").is_err());
    }
}
