//! The engine's own speed, in packet-hops per second, with hosts at 100 Gbit/s. A packet-hop is a
//! packet, acknowledgements too, that leaves one queue onto one link.
//!
//! | scene | what is measured |
//! |---|---|
//! | [`permutation`] | packets of long flows on a fat tree |
//! | [`messages`] | begin and end of short flows: Google's RPCs at half of the links' capacity |

pub mod growth;
pub mod memory;

use ratewright_topology::{
    BuildError, EcmpConfig, FatTree, HostId, ThreeTierClos, Topology, TwoTierClos,
};

use crate::experiment::ExperimentError;
use crate::flow::FlowSpec;
use crate::net::FabricConfig;
use crate::plan::{PlanError, PlannedTransport, read_transports};
use crate::time::Time;
use crate::workload::{Poisson, SizeDistribution};

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

/// Builds racks of 16 hosts under four spines, with the rates of SIRD's evaluation (SIRD §6.1: 100
/// and 400 Gbit/s); links of 1 µs.
///
/// # Errors
/// If there are no hosts.
pub fn racks(hosts: u32) -> Result<Topology, BuildError> {
    TwoTierClos {
        racks: hosts.div_ceil(16),
        hosts_per_rack: 16,
        spines: 4,
        host_capacity_bps: 100 * GBIT,
        fabric_capacity_bps: 400 * GBIT,
        host_delay_ns: 1_000,
        fabric_delay_ns: 1_000,
        ecmp: EcmpConfig {
            seed: 1,
            symmetric: false,
        },
        ..TwoTierClos::default()
    }
    .build()
}

/// Messages with the sizes of Google's RPCs between random hosts, at half of the links' capacity,
/// without end.
///
/// # Errors
/// If there are fewer than two hosts.
pub fn messages(hosts: u32) -> Result<Poisson, ExperimentError> {
    let sizes = SizeDistribution::published("google-rpc")?;
    let span = (Time::ZERO, Time::MAX);
    Ok(Poisson::new(hosts, 100 * GBIT, 0.5, sizes, span, 1)?)
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

/// The transport of the permutation: a first window and queues for 100 Gbit/s.
const TRANSPORT: &str = r#"
queue = { discipline = "ecn-threshold", mark_packets = 82, limit_packets = 1000 }
nic_queue = { discipline = "drop-tail", limit_packets = 2000 }

[[transport]]
name = "dctcp"
initial_window_packets = 66
min_rto = "200us"
initial_rto = "1ms"
"#;

/// Returns the transport of the permutation.
///
/// # Errors
/// Parameters that the registry does not take: the benchmark's own text is at fault then.
pub fn transport(topology: &Topology) -> Result<PlannedTransport, PlanError> {
    let fabric = FabricConfig::default();
    let mut transports = read_transports(TRANSPORT, "the benchmark", topology, fabric, &[])?;
    Ok(transports.swap_remove(0))
}
