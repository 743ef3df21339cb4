//! The network of the paper's simulations (flowtune §5.3, *Topology*).

use ratewright_topology::{BuildError, Topology, TwoTierClos};

use crate::net::{AllocatorLinks, FabricConfig};
use crate::time::Span;

/// Every server's link, in bit/s.
pub const HOST_BPS: u64 = 10_000_000_000;
/// Servers under one top-of-rack switch.
pub const HOSTS_PER_RACK: u32 = 16;
/// Racks in the paper's network.
pub const RACKS: u32 = 9;
/// Processing time of a packet in a server, outbound as well as inbound.
pub const HOST_DELAY: Span = Span::from_us(2);
/// Propagation over any link.
pub const LINK_DELAY: Span = Span::from_ns(1_500);

/// Racks of 16 servers under 4 spines with full bisection: 10 Gbit/s to servers, 40 Gbit/s between
/// switches, 1.5 µs per link.
///
/// With the servers' 2 µs, a round trip over two links takes 14 µs, as in the paper. Over four
/// links it takes 20 µs, for which the paper has 22.
///
/// # Errors
/// If there are no racks.
pub fn topology(racks: u32) -> Result<Topology, BuildError> {
    TwoTierClos {
        racks,
        hosts_per_rack: HOSTS_PER_RACK,
        spines: 4,
        host_capacity_bps: HOST_BPS,
        fabric_capacity_bps: 4 * HOST_BPS,
        // The builder's host delay is that of a link to a host; HOST_DELAY, the processing in a
        // host,
        // is the fabric's.
        host_delay_ns: LINK_DELAY.as_ps() / 1_000,
        fabric_delay_ns: LINK_DELAY.as_ps() / 1_000,
        ..TwoTierClos::default()
    }
    .build()
}

/// The allocator's links: 40 Gbit/s to every spine (flowtune §5.3), and in proportion to the
/// servers beyond the paper's 144. At 2,048 servers one per cent of their capacity is more than 160
/// Gbit/s.
#[must_use]
pub fn allocator_links(hosts: u32) -> AllocatorLinks {
    // Smaller networks keep the paper's links.
    let servers = u64::from(hosts.max(RACKS * HOSTS_PER_RACK));
    AllocatorLinks {
        rate_bps: 40_000_000_000 * servers / u64::from(RACKS * HOSTS_PER_RACK),
        delay: LINK_DELAY,
        processing: HOST_DELAY,
    }
}

/// The fabric around the topology, with the default queues.
#[must_use]
pub fn fabric(hosts: u32) -> FabricConfig {
    FabricConfig {
        host_delay: HOST_DELAY,
        allocator: Some(allocator_links(hosts)),
        ..FabricConfig::default()
    }
}
