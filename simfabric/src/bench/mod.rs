//! The engine's own speed: a permutation of hosts at 100 Gbit/s, in packet-hops per second. A
//! packet-hop is a packet, acknowledgements too, that leaves one queue onto one link.

pub mod growth;
pub mod memory;

use ratewright_topology::{BuildError, EcmpConfig, FatTree, HostId, ThreeTierClos, Topology};

use crate::flow::FlowSpec;
use crate::net::queue::QueueLimit;
use crate::net::{FabricConfig, QueueConfig};
use crate::run::Config;
use crate::time::Time;
use crate::transport::tcp::congestion::Dctcp;
use crate::transport::tcp::{Tcp, TcpConfig};

const GBIT: u64 = 1_000_000_000;

/// Builds the smallest fat tree at 100 Gbit/s with at least `hosts` hosts; links of 1 µs.
///
/// # Errors
/// If there is no such fat tree.
pub fn fabric(hosts: u32) -> Result<Topology, BuildError> {
    let k = (2..)
        .step_by(2)
        // A fat tree of k ports per switch has k³/4 hosts.
        .find(|k| k * k * k / 4 >= hosts)
        .unwrap_or(2);
    let ecmp = EcmpConfig {
        seed: 1,
        symmetric: false,
    };
    if k * k * k / 4 == hosts {
        let (capacity_bps, delay_ns) = (100 * GBIT, 1_000);
        return FatTree {
            k,
            capacity_bps,
            delay_ns,
            ecmp,
            ..FatTree::default()
        }
        .build();
    }
    // Hosts that fill no fat tree: whole racks of 8 in pods of 4 racks, at full bisection.
    let racks = hosts.div_ceil(8);
    ThreeTierClos {
        pods: racks.div_ceil(4).max(1),
        racks_per_pod: racks.min(4),
        hosts_per_rack: hosts.min(8),
        aggs_per_pod: 4,
        cores: 16,
        host_capacity_bps: 100 * GBIT,
        fabric_capacity_bps: 200 * GBIT,
        core_capacity_bps: 200 * GBIT,
        host_delay_ns: 1_000,
        fabric_delay_ns: 1_000,
        core_delay_ns: 1_000,
        ecmp,
        ..ThreeTierClos::default()
    }
    .build()
}

/// Flows from every host to the host half of the network away, without end.
pub fn permutation(hosts: u32) -> impl Iterator<Item = FlowSpec> {
    (0..hosts).map(move |src| {
        let dst = (src + hosts / 2) % hosts;
        FlowSpec::new(
            HostId(src),
            HostId(dst),
            FlowSpec::UNBOUNDED,
            // A nanosecond apart, so that hosts do not send in lockstep.
            Time::from_ns(u64::from(src)),
        )
    })
}

/// DCTCP with a first window for 100 Gbit/s.
#[must_use]
pub fn transport() -> Tcp<Dctcp> {
    Tcp::new(TcpConfig {
        initial_window_packets: 66,
        ecn: true,
        ..TcpConfig::datacenter()
    })
}

/// DCTCP's queues for 100 Gbit/s.
#[must_use]
pub fn config(seed: u64) -> Config {
    let queue = QueueConfig::EcnThreshold {
        mark_at: QueueLimit::Packets(82),
        limit: QueueLimit::Packets(1_000),
    };
    let fabric = FabricConfig {
        nic: QueueConfig::DropTail {
            limit: QueueLimit::Packets(2_000),
        },
        ..FabricConfig::with_switch_queues(queue)
    };
    Config {
        seed,
        fabric,
        ..Config::default()
    }
}
