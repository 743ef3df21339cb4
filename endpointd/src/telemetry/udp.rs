//! UDP's own counters of datagrams, as `/proc` has them for this thread's network namespace.
//!
//! UDP counts the frames of VXLAN and WireGuard as datagrams on arrival. Most of what they carry is
//! TCP, so the packets of such devices are counted beside.

use std::fs;
use std::io;

use indexmap::IndexMap;
use nix::net::if_::if_nameindex;
use nix::sys::socket::SockProtocol;
use rustc_hash::FxBuildHasher;

use super::interface::received_packets;
use crate::netlink::{Requests, device_kind};

/// Kinds of devices whose frames are UDP datagrams.
const TUNNELS: [&str; 4] = ["vxlan", "geneve", "wireguard", "bareudp"];
/// Time after which devices are looked for again.
const FRESH_NS: u64 = 2_000_000_000;

/// Datagrams of UDP over IPv4 and IPv6 since the namespace came into being.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UdpCounters {
    /// Datagrams that were read, or that nobody could read.
    pub received: u64,
    /// Datagrams that were sent.
    pub sent: u64,
    /// Datagrams among those received that carried a packet of a tunnel's device, since the reader
    /// found it.
    pub tunnelled: u64,
}

/// Reader of the counters of one network namespace.
#[derive(Debug)]
pub struct UdpReader {
    requests: Requests,
    /// Devices by their numbers: the packets that a tunnel's had received at the last reading.
    devices: IndexMap<u32, Option<u64>, FxBuildHasher>,
    tunnelled: u64,
    fresh_until_ns: u64,
}

impl UdpReader {
    /// Opens a reader for this thread's network namespace.
    ///
    /// # Errors
    /// When the kernel refuses a socket.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            requests: Requests::open(SockProtocol::NetlinkRoute)?,
            devices: IndexMap::default(),
            tunnelled: 0,
            fresh_until_ns: 0,
        })
    }

    /// Reads the counters: two files, some tens of microseconds, and a request for each tunnel.
    ///
    /// # Errors
    /// When `/proc` has no counters of IPv4.
    pub fn read(&mut self, now_ns: u64) -> io::Result<UdpCounters> {
        let v4 = fs::read_to_string("/proc/thread-self/net/snmp")?;
        let v4 = of_ipv4(&v4).ok_or(io::ErrorKind::InvalidData)?;
        // A kernel without IPv6 has none.
        let v6 = fs::read_to_string("/proc/thread-self/net/snmp6").unwrap_or_default();
        let v6 = of_ipv6(&v6);
        if self.fresh_until_ns <= now_ns {
            self.fresh_until_ns = now_ns + FRESH_NS;
            self.find_devices()?;
        }
        for (index, packets) in &mut self.devices {
            let Some(before) = packets else { continue };
            // A device may go at any moment.
            if let Ok(now) = received_packets(&mut self.requests, *index) {
                self.tunnelled += now.saturating_sub(*before);
                *before = now;
            }
        }
        Ok(UdpCounters {
            received: v4.received + v6.received,
            sent: v4.sent + v6.sent,
            tunnelled: self.tunnelled,
        })
    }

    /// Asks for the kinds of devices that are new, and forgets those that are gone.
    fn find_devices(&mut self) -> io::Result<()> {
        let before = std::mem::take(&mut self.devices);
        for device in &if_nameindex()? {
            let index = device.index();
            let packets = match before.get(&index) {
                Some(packets) => *packets,
                None if self.is_tunnel(index) => received_packets(&mut self.requests, index).ok(),
                None => None,
            };
            self.devices.insert(index, packets);
        }
        Ok(())
    }

    fn is_tunnel(&mut self, index: u32) -> bool {
        let mut is_tunnel = false;
        let take = |attributes: &[u8]| is_tunnel = TUNNELS.contains(&device_kind(attributes));
        self.requests.ask_device(index, take);
        is_tunnel
    }
}

/// Finds the counters in `snmp`: a line of names, and one of values.
fn of_ipv4(text: &str) -> Option<UdpCounters> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut counters = UdpCounters::default();
    for (name, value) in names.split_whitespace().zip(values.split_whitespace()) {
        counters.add(name, value);
    }
    Some(counters)
}

/// Finds the counters in `snmp6`: a name and a value on each line.
fn of_ipv6(text: &str) -> UdpCounters {
    let mut counters = UdpCounters::default();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("Udp6")
            && let Some((name, value)) = rest.split_once(char::is_whitespace)
        {
            counters.add(name, value.trim());
        }
    }
    counters
}

impl UdpCounters {
    fn add(&mut self, name: &str, value: &str) {
        let sum = match name {
            // Those that no socket took, and those that found a full one, have crossed the link.
            "InDatagrams" | "NoPorts" | "InErrors" => &mut self.received,
            "OutDatagrams" => &mut self.sent,
            _ => return,
        };
        *sum += value.parse().unwrap_or(0_u64);
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn datagrams_of_both_families_are_found() {
        let v4 = "Tcp: InSegs OutSegs\nTcp: 5 6\n\
                  Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors\n\
                  Udp: 100 20 3 7 3\nUdpLite: InDatagrams\nUdpLite: 9\n";
        let found = of_ipv4(v4).map(|found| (found.received, found.sent));
        assert_eq!(found, Some((123, 7)));
        assert_eq!(of_ipv4("Tcp: InSegs\nTcp: 5\n"), None);
        let v6 = "Ip6InReceives\t 40\nUdp6InDatagrams       \t5\nUdp6NoPorts \t1\n\
                  Udp6OutDatagrams   \t8\nUdpLite6OutDatagrams \t9\n";
        let found = of_ipv6(v6);
        assert_eq!((found.received, found.sent), (6, 8));
    }

    #[test]
    fn what_a_socket_sends_is_counted() {
        let mut reader = UdpReader::open().expect("a netlink socket");
        let mut read = || reader.read(0).expect("Linux has these counters");
        let before = read();
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let to = socket.local_addr().expect("bound");
        for _ in 0..10 {
            socket.send_to(&[0; 100], to).expect("loopback");
            // One counts as received when it is read.
            socket.recv(&mut [0; 100]).expect("it is there");
        }
        let after = read();
        assert!(after.sent >= before.sent + 10 && after.received >= before.received + 10);
    }
}
