//! The engine's own speed, in packet-hops per second, with hosts at 100 Gbit/s. A packet-hop is a
//! packet, acknowledgements too, that leaves one queue onto one link.
//!
//! | scene | what is measured |
//! |---|---|
//! | [`permutation`] | packets of long flows on a fat tree |
//! | [`messages`] | begin and end of short flows: Google's RPCs at half of the links' capacity |
//! | [`incast`] | buffers that are shared, pauses and telemetry: many senders to one, again and again |

pub mod growth;
pub mod memory;

use ratewright_topology::{
    BuildError, EcmpConfig, FatTree, HostId, ThreeTierClos, Topology, TwoTierClos,
};
use toml::Table;

use crate::experiment::ExperimentError;
use crate::flow::FlowSpec;
use crate::net::FabricConfig;
use crate::parameters::ParamError;
use crate::plan::{PlanError, PlannedTransport, read_transports};
use crate::scheme::{Configured, Network};
use crate::time::Time;
use crate::workload::{Poisson, SizeDistribution};

const GBIT: u64 = 1_000_000_000;

/// Builds the smallest fat tree at 100 Gbit/s with at least `hosts` hosts; links of 1 µs. With
/// `symmetric` ECMP acknowledgements pass the switches of their data.
///
/// # Errors
/// If there is no such fat tree.
pub fn fabric(hosts: u32, symmetric: bool) -> Result<Topology, BuildError> {
    let k = (2..)
        .step_by(2)
        // A fat tree of k ports per switch has k³/4 hosts.
        .find(|k| k * k * k / 4 >= hosts)
        .unwrap_or(2);
    let ecmp = EcmpConfig { seed: 1, symmetric };
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
/// and 400 Gbit/s); links of 1 µs. With `symmetric` ECMP packets come back the way of those that
/// they answer, for schemes that [need it](needs_symmetric).
///
/// # Errors
/// If there are no hosts.
pub fn racks(hosts: u32, symmetric: bool) -> Result<Topology, BuildError> {
    TwoTierClos {
        racks: hosts.div_ceil(16),
        hosts_per_rack: 16,
        spines: 4,
        host_capacity_bps: 100 * GBIT,
        fabric_capacity_bps: 400 * GBIT,
        host_delay_ns: 1_000,
        fabric_delay_ns: 1_000,
        ecmp: EcmpConfig { seed: 1, symmetric },
        ..TwoTierClos::default()
    }
    .build()
}

/// Returns true if a scheme refuses a network in which packets may come back another way than
/// those that they answer, as ExpressPass does.
///
/// # Errors
/// A name that is of no scheme.
pub fn needs_symmetric(scheme: &str, topology: &Topology) -> Result<bool, ParamError> {
    let fabric = FabricConfig::default();
    let network = Network::new(topology, &fabric);
    let built = Configured::new(scheme, &Table::new())?.build(&network)?;
    Ok(built.needs.needs_symmetric())
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

/// Senders of an incast, at most.
const INCAST_SENDERS: u32 = 15;
/// Bytes of each sender, and the time from one incast of a group to the next. The bytes take 254 µs
/// of the receiver's link, so that one incast of a group ends before the next.
const INCAST_BYTES: u64 = 200_000;
const INCAST_EVERY_NS: u64 = 320_000;

/// Incasts of groups of 16 hosts or fewer, spread over all racks: again and again the members of a
/// group send to one of it, which is another one each time, without end. Groups begin one after
/// another within the time from one incast to the next.
pub fn incast(hosts: u32) -> impl Iterator<Item = FlowSpec> {
    let groups = hosts.div_ceil(INCAST_SENDERS + 1).max(1);
    let incasts = (0_u64..).flat_map(move |round| (0..groups).map(move |group| (round, group)));
    incasts.flat_map(move |(round, group)| {
        let members = (hosts - group).div_ceil(groups);
        let member = move |number: u32| HostId(group + number * groups);
        let to = (round % u64::from(members.max(1))) as u32;
        let offset = u64::from(group) * INCAST_EVERY_NS / u64::from(groups);
        let at = Time::from_ns(round * INCAST_EVERY_NS + offset);
        (0..members)
            .filter(move |from| *from != to)
            .map(move |from| FlowSpec::new(member(from), member(to), INCAST_BYTES, at))
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

/// The transport of incasts: telemetry in every data packet, and pauses, from a threshold on that
/// the first windows of an incast reach.
const LOSSLESS_TRANSPORT: &str = r#"
[[transport]]
name = "hpcc"
xoff_bytes = 200000
"#;

/// Returns the transport of the permutation and of messages, or another scheme's.
///
/// # Errors
/// A name that is of no scheme, and paths that it cannot use.
pub fn transport(topology: &Topology, scheme: Option<&str>) -> Result<PlannedTransport, PlanError> {
    read(TRANSPORT, topology, scheme)
}

/// Returns the transport of incasts, which is lossless and has telemetry, or another scheme's.
///
/// # Errors
/// As [`transport`].
pub fn lossless_transport(
    topology: &Topology,
    scheme: Option<&str>,
) -> Result<PlannedTransport, PlanError> {
    read(LOSSLESS_TRANSPORT, topology, scheme)
}

fn read(
    own: &str,
    topology: &Topology,
    scheme: Option<&str>,
) -> Result<PlannedTransport, PlanError> {
    let other = scheme.map(|name| format!("[[transport]]\nname = {name:?}"));
    let (text, fabric) = (other.as_deref().unwrap_or(own), FabricConfig::default());
    let mut transports = read_transports(text, "the benchmark", topology, fabric, &[])?;
    Ok(transports.swap_remove(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Data of ExpressPass come the way of their credit (ExpressPass §3.1), and FNCC's switches
    /// write into acknowledgements. All others keep the paths that they always had.
    #[test]
    fn racks_suit_every_scheme_if_they_are_symmetric_for_those_that_need_it() {
        let asymmetric = racks(32, false).unwrap();
        let symmetric = racks(32, true).unwrap();
        for scheme in crate::scheme::names() {
            let needs = needs_symmetric(scheme, &asymmetric).unwrap();
            assert_eq!(needs, ["expresspass", "fncc"].contains(&scheme), "{scheme}");
            let racks = if needs { &symmetric } else { &asymmetric };
            transport(racks, Some(scheme)).unwrap();
        }
    }
}
