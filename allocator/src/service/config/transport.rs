//! The table `[transport]`: transport of datagrams, and the network interface that DPDK drives.

use std::net::Ipv4Addr;

use toml::Spanned;

use super::TransportConfig;
use super::check::Checker;
use super::error::ConfigError;
use super::raw::{RawDpdk, RawTransport};
use ratewright_io::dscp::Dscp;
use ratewright_proto::sealed::Cipher;

/// First UDP port on DPDK, where no other program can hold it.
const DPDK_UDP_PORT: u16 = 7_601;

/// An interface that DPDK drives and the kernel does not see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DpdkTransport {
    /// Options of DPDK's environment (EAL), as on a DPDK program's command line.
    pub eal: Vec<String>,
    /// Number of the port, in the order in which the options bring ports up.
    pub port: u16,
    /// Address of the interface.
    pub address: Ipv4Addr,
    /// Length of the prefix that is on the link, in bits.
    pub prefix_len: u8,
    /// Gateway of datagrams to other prefixes.
    pub gateway: Option<Ipv4Addr>,
    /// Ethernet address that the port must have, as a protection against a wrong `port`.
    pub mac: Option<[u8; 6]>,
    /// Descriptors of every ring.
    pub descriptors: u16,
    /// Packet buffers of every queue.
    pub buffers: u32,
    /// Most entries of the neighbour table.
    pub neighbours: u32,
}

pub(super) fn checked(
    check: &Checker<'_>,
    raw: RawTransport,
) -> Result<TransportConfig, ConfigError> {
    let default = TransportConfig::default();
    let (sealed_udp, on_dpdk) = match &raw.hot {
        None => (default.sealed_udp, false),
        Some(name) => match name.get_ref().as_str() {
            "quic" => (false, false),
            "udp" => (true, false),
            "dpdk" if cfg!(feature = "dpdk") => (true, true),
            "dpdk" => {
                return Err(check.wrong(
                    "transport.hot",
                    name,
                    r#"this allocator was built without DPDK; build it with `--features dpdk`, or use "udp""#,
                ));
            }
            _ => {
                return Err(check.wrong(
                    "transport.hot",
                    name,
                    r#"must be "quic", "udp" or "dpdk""#,
                ));
            }
        },
    };
    let udp_shards = check.within(
        raw.shards,
        default.udp_shards,
        "transport.shards",
        |shards| (1..=64).contains(&shards),
        "must be 1 to 64 threads; 1 is the default",
    )?;
    let udp_port = match raw.udp_port {
        // The ports have consecutive numbers, so the last one must exist as well.
        Some(port) if *port.get_ref() == 0 || *port.get_ref() > u16::MAX - udp_shards => {
            return Err(check.wrong(
                "transport.udp_port",
                &port,
                "must be a UDP port above 0, the first of as many as there are shards",
            ));
        }
        port => port.map(Spanned::into_inner),
    };
    let cipher = match &raw.cipher {
        None => default.cipher,
        Some(name) => Cipher::from_name(name.get_ref()).ok_or_else(|| {
            check.wrong(
                "transport.cipher",
                name,
                r#"must be "aes-128-gcm" or "chacha20-poly1305""#,
            )
        })?,
    };
    let control_dscp = match raw.control_dscp {
        None => default.control_dscp,
        Some(value) => Dscp::try_from(*value.get_ref())
            .map_err(|no| check.wrong("transport.control_dscp", &value, no.to_string()))?,
    };
    let table = raw
        .dpdk
        .map(|table| dpdk(check, table.into_inner()))
        .transpose()?;
    let dpdk = match (table, on_dpdk) {
        (Some(table), true) => Some(table),
        (None, true) => {
            return check
                .need::<String>(
                    None,
                    "transport.dpdk",
                    r#"the table [transport.dpdk], with eal = [...] and interface = "10.0.0.2/24""#,
                )
                .map(|_| default);
        }
        // Checked above, so that its mistakes show before `hot` names it again.
        (_, false) => None,
    };
    // No system assigns ports on DPDK, so the default is a fixed one.
    let udp_port = udp_port.or(dpdk.as_ref().map(|_| DPDK_UDP_PORT));
    Ok(TransportConfig {
        dpdk,
        sealed_udp,
        udp_shards,
        udp_port,
        cipher,
        busy_poll: raw.busy_poll.is_some_and(Spanned::into_inner),
        control_dscp,
    })
}

fn dpdk(check: &Checker<'_>, raw: RawDpdk) -> Result<DpdkTransport, ConfigError> {
    let eal = check.need(
        raw.eal,
        "transport.dpdk.eal",
        r#"the options of DPDK's environment, such as eal = ["-a", "0000:00:06.0"]"#,
    )?;
    // Options become C strings, which end at a NUL byte.
    if let Some(option) = eal.get_ref().iter().find(|option| option.contains('\0')) {
        return Err(check.wrong(
            "transport.dpdk.eal",
            &eal,
            format!("{option:?} holds a NUL byte"),
        ));
    }
    let interface = check.need(
        raw.interface,
        "transport.dpdk.interface",
        r#"the address that DPDK's port answers for, such as interface = "10.0.0.2/24""#,
    )?;
    let Some((address, prefix_len)) = address_and_prefix(interface.get_ref()) else {
        return Err(check.wrong(
            "transport.dpdk.interface",
            &interface,
            r#"must be an IPv4 address of one station and the length of its prefix, such as "10.0.0.2/24""#,
        ));
    };
    let gateway = match &raw.gateway {
        None => None,
        Some(text) => Some(
            text.get_ref()
                .parse()
                .ok()
                .filter(|&gateway| {
                    of_one_station(gateway)
                        && gateway != address
                        && on_link(address, prefix_len, gateway)
                })
                .ok_or_else(|| {
                    check.wrong(
                        "transport.dpdk.gateway",
                        text,
                        "must be another IPv4 address within the interface's prefix",
                    )
                })?,
        ),
    };
    let mac = match &raw.mac {
        None => None,
        Some(text) => Some(mac_of(text.get_ref()).ok_or_else(|| {
            check.wrong(
                "transport.dpdk.mac",
                text,
                r#"must be an Ethernet address, such as "02:00:00:00:00:01""#,
            )
        })?),
    };
    let descriptors = check.within(
        raw.descriptors,
        1_024,
        "transport.dpdk.descriptors",
        |count| (64..=16_384).contains(&count) && count.is_power_of_two(),
        "must be a power of two, 64 to 16384; 1024 is the default",
    )?;
    let buffers = check.within(
        raw.buffers,
        8_191,
        "transport.dpdk.buffers",
        |count| (1_023..=1_048_575).contains(&count),
        "must be 1023 to 1048575 packet buffers of 2.3 KB; 8191 is the default",
    )?;
    let neighbours = check.within(
        raw.neighbours,
        16_384,
        "transport.dpdk.neighbours",
        |count| (1..=1_048_576).contains(&count),
        "must be 1 to 1048576 neighbours; 16384 is the default",
    )?;
    Ok(DpdkTransport {
        eal: eal.into_inner(),
        port: raw.port.map_or(0, Spanned::into_inner),
        address,
        prefix_len,
        gateway,
        mac,
        descriptors,
        buffers,
        neighbours,
    })
}

fn of_one_station(address: Ipv4Addr) -> bool {
    !(address.is_unspecified() || address.is_broadcast() || address.is_multicast())
}

fn on_link(address: Ipv4Addr, prefix_len: u8, other: Ipv4Addr) -> bool {
    // A shift by 32, for a prefix of no bits, overflows: the mask is 0 then.
    let mask = u32::MAX
        .checked_shl(32 - u32::from(prefix_len))
        .unwrap_or(0);
    (u32::from(address) ^ u32::from(other)) & mask == 0
}

fn address_and_prefix(text: &str) -> Option<(Ipv4Addr, u8)> {
    let (address, bits) = text.split_once('/')?;
    let address = address.parse().ok().filter(|&ip| of_one_station(ip))?;
    let bits = bits.parse().ok().filter(|bits| *bits <= 32)?;
    Some((address, bits))
}

fn mac_of(text: &str) -> Option<[u8; 6]> {
    let mut parts = text.split(':');
    let mut mac = [0; 6];
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    // The lowest bit of the first byte marks group addresses (IEEE 802).
    let unicast = mac[0] & 1 == 0 && mac != [0; 6];
    (parts.next().is_none() && unicast).then_some(mac)
}
