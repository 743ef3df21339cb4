//! Parameters of the four kinds of network, as a file gives them.
//!
//! [`builders`](crate::builders) makes a [`Topology`](crate::Topology) of them, and the topology
//! keeps them: this module stands below both.

use crate::addressing::Addressing;
use crate::ecmp::EcmpConfig;
use crate::model::TopologyKind;

const GBIT: u64 = 1_000_000_000;

/// Only the edge links are modelled: the network between them is taken to be free of congestion
/// (flowtune §6). Racks exist for the partition into blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BigSwitch {
    /// Number of racks.
    pub racks: u32,
    /// Hosts in each rack.
    pub hosts_per_rack: u32,
    /// Hosts of each rack where they differ; empty: all have `hosts_per_rack`.
    pub rack_sizes: Vec<u32>,
    /// Spare places in each rack, for hosts that join at run time.
    pub spare_hosts: u32,
    /// Capacity of a host's link per direction, in bit/s.
    pub host_capacity_bps: u64,
    /// Delay of a host's link per direction, in nanoseconds.
    pub host_delay_ns: u64,
    /// Base prefixes of generated addresses.
    pub addressing: Addressing,
    /// ECMP settings; without effect, since there is one path only.
    pub ecmp: EcmpConfig,
}

impl Default for BigSwitch {
    fn default() -> Self {
        Self {
            racks: 1,
            hosts_per_rack: 9,
            rack_sizes: Vec::new(),
            spare_hosts: 0,
            host_capacity_bps: 10 * GBIT,
            host_delay_ns: 2_000,
            addressing: Addressing::default(),
            ecmp: EcmpConfig::default(),
        }
    }
}

/// Racks under spines; every leaf has one link to every spine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TwoTierClos {
    /// Number of racks.
    pub racks: u32,
    /// Hosts in each rack.
    pub hosts_per_rack: u32,
    /// Hosts of each rack where they differ; empty: all have `hosts_per_rack`.
    pub rack_sizes: Vec<u32>,
    /// Spare places in each rack, for hosts that join at run time.
    pub spare_hosts: u32,
    /// Number of spine switches.
    pub spines: u32,
    /// Capacity of a host's link per direction, in bit/s.
    pub host_capacity_bps: u64,
    /// Capacity of a leaf–spine link per direction, in bit/s.
    pub fabric_capacity_bps: u64,
    /// Delay of a host's link per direction, in nanoseconds.
    pub host_delay_ns: u64,
    /// Delay of a leaf–spine link per direction, in nanoseconds.
    pub fabric_delay_ns: u64,
    /// Base prefixes of generated addresses.
    pub addressing: Addressing,
    /// ECMP settings for the choice of the spine.
    pub ecmp: EcmpConfig,
}

impl Default for TwoTierClos {
    fn default() -> Self {
        Self {
            racks: 4,
            hosts_per_rack: 4,
            rack_sizes: Vec::new(),
            spare_hosts: 0,
            spines: 2,
            host_capacity_bps: 10 * GBIT,
            fabric_capacity_bps: 40 * GBIT,
            host_delay_ns: 2_000,
            fabric_delay_ns: 2_000,
            addressing: Addressing::default(),
            ecmp: EcmpConfig::default(),
        }
    }
}

/// The fat tree of k-port switches: k pods of k/2 racks of k/2 hosts, k/2 aggregation switches
/// per pod, (k/2)² cores, all links alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FatTree {
    /// Ports of a switch; even.
    pub k: u32,
    /// Capacity of every link per direction, in bit/s.
    pub capacity_bps: u64,
    /// Delay of every link per direction, in nanoseconds.
    pub delay_ns: u64,
    /// Base prefixes of generated addresses.
    pub addressing: Addressing,
    /// ECMP settings for the choice of aggregation switch and core.
    pub ecmp: EcmpConfig,
}

impl Default for FatTree {
    fn default() -> Self {
        Self {
            k: 4,
            capacity_bps: 10 * GBIT,
            delay_ns: 2_000,
            addressing: Addressing::default(),
            ecmp: EcmpConfig::default(),
        }
    }
}

/// Pods of racks under aggregation switches, pods under cores. Aggregation switch `a` of every
/// pod is wired to the same `cores / aggs_per_pod` cores.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreeTierClos {
    /// Number of pods.
    pub pods: u32,
    /// Racks in each pod.
    pub racks_per_pod: u32,
    /// Hosts in each rack.
    pub hosts_per_rack: u32,
    /// Hosts of each rack, pod by pod, where they differ; empty: all have `hosts_per_rack`.
    pub rack_sizes: Vec<u32>,
    /// Spare places in each rack, for hosts that join at run time.
    pub spare_hosts: u32,
    /// Aggregation switches in each pod.
    pub aggs_per_pod: u32,
    /// Core switches; a multiple of `aggs_per_pod`.
    pub cores: u32,
    /// Capacity of a host's link per direction, in bit/s.
    pub host_capacity_bps: u64,
    /// Capacity of a leaf–aggregation link per direction, in bit/s.
    pub fabric_capacity_bps: u64,
    /// Capacity of an aggregation–core link per direction, in bit/s.
    pub core_capacity_bps: u64,
    /// Delay of a host's link per direction, in nanoseconds.
    pub host_delay_ns: u64,
    /// Delay of a leaf–aggregation link per direction, in nanoseconds.
    pub fabric_delay_ns: u64,
    /// Delay of an aggregation–core link per direction, in nanoseconds.
    pub core_delay_ns: u64,
    /// Base prefixes of generated addresses.
    pub addressing: Addressing,
    /// ECMP settings for the choice of aggregation switch and core.
    pub ecmp: EcmpConfig,
}

impl Default for ThreeTierClos {
    fn default() -> Self {
        Self {
            pods: 2,
            racks_per_pod: 2,
            hosts_per_rack: 4,
            rack_sizes: Vec::new(),
            spare_hosts: 0,
            aggs_per_pod: 2,
            cores: 4,
            host_capacity_bps: 10 * GBIT,
            fabric_capacity_bps: 20 * GBIT,
            core_capacity_bps: 20 * GBIT,
            host_delay_ns: 2_000,
            fabric_delay_ns: 2_000,
            core_delay_ns: 2_000,
            addressing: Addressing::default(),
            ecmp: EcmpConfig::default(),
        }
    }
}

/// Parameters of a topology, by kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Parameters {
    /// See [`BigSwitch`].
    BigSwitch(BigSwitch),
    /// See [`TwoTierClos`].
    TwoTierClos(TwoTierClos),
    /// See [`FatTree`].
    FatTree(FatTree),
    /// See [`ThreeTierClos`].
    ThreeTierClos(ThreeTierClos),
}

impl Parameters {
    /// The family of the network.
    #[must_use]
    pub const fn kind(&self) -> TopologyKind {
        match self {
            Self::BigSwitch(_) => TopologyKind::BigSwitch,
            Self::TwoTierClos(_) => TopologyKind::TwoTierClos,
            Self::FatTree(_) => TopologyKind::FatTree,
            Self::ThreeTierClos(_) => TopologyKind::ThreeTierClos,
        }
    }

    /// Spare places in each rack.
    #[must_use]
    pub const fn spare_hosts(&self) -> u32 {
        match self {
            Self::BigSwitch(b) => b.spare_hosts,
            Self::TwoTierClos(b) => b.spare_hosts,
            // Every port of a fat tree's leaf has its host.
            Self::FatTree(_) => 0,
            Self::ThreeTierClos(b) => b.spare_hosts,
        }
    }

    /// ECMP settings of the network.
    #[must_use]
    pub const fn ecmp(&self) -> EcmpConfig {
        match self {
            Self::BigSwitch(b) => b.ecmp,
            Self::TwoTierClos(b) => b.ecmp,
            Self::FatTree(b) => b.ecmp,
            Self::ThreeTierClos(b) => b.ecmp,
        }
    }
}
