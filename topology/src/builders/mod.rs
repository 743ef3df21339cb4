//! Builders of the four kinds of network.
//!
//! ```
//! use ratewright_topology::TwoTierClos;
//!
//! let net = TwoTierClos { racks: 9, hosts_per_rack: 16, spines: 4, ..TwoTierClos::default() }.build()?;
//! assert_eq!(net.hosts().len(), 144);
//! # Ok::<(), ratewright_topology::BuildError>(())
//! ```
//!
//! Hosts are named `h1`, `h2`, … through all racks; racks `rack1`, …; switches `leaf1`, …,
//! `spine1`, …, or `agg1-1` (pod 1), …, `core1`, …

mod addressing;
mod assemble;

pub use addressing::Addressing;

use crate::ecmp::EcmpConfig;
use crate::error::BuildError;
use crate::model::TopologyKind;
use crate::topology::Topology;
use assemble::{FabricPlan, LevelLinks, assemble};

/// The most hosts in one topology.
pub const MAX_HOSTS: u32 = 262_144;

/// The most directed links in one topology.
pub const MAX_LINKS: u32 = 2_097_152;

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
    /// Capacity of a host's link, each way, in bit/s.
    pub host_capacity_bps: u64,
    /// Delay of a host's link, each way, in nanoseconds.
    pub host_delay_ns: u64,
    /// Where generated addresses come from.
    pub addressing: Addressing,
    /// Carried for completeness: there is one path only.
    pub ecmp: EcmpConfig,
}

impl Default for BigSwitch {
    fn default() -> Self {
        Self {
            racks: 1,
            hosts_per_rack: 9,
            rack_sizes: Vec::new(),
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
    /// Number of spine switches.
    pub spines: u32,
    /// Capacity of a host's link, each way, in bit/s.
    pub host_capacity_bps: u64,
    /// Capacity of a leaf–spine link, each way, in bit/s.
    pub fabric_capacity_bps: u64,
    /// Delay of a host's link, each way, in nanoseconds.
    pub host_delay_ns: u64,
    /// Delay of a leaf–spine link, each way, in nanoseconds.
    pub fabric_delay_ns: u64,
    /// Where generated addresses come from.
    pub addressing: Addressing,
    /// How flows are spread over the spines.
    pub ecmp: EcmpConfig,
}

impl Default for TwoTierClos {
    fn default() -> Self {
        Self {
            racks: 4,
            hosts_per_rack: 4,
            rack_sizes: Vec::new(),
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
    /// Capacity of every link, each way, in bit/s.
    pub capacity_bps: u64,
    /// Delay of every link, each way, in nanoseconds.
    pub delay_ns: u64,
    /// Where generated addresses come from.
    pub addressing: Addressing,
    /// How flows are spread over aggregation switches and cores.
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
    /// Aggregation switches in each pod.
    pub aggs_per_pod: u32,
    /// Core switches; a multiple of `aggs_per_pod`.
    pub cores: u32,
    /// Capacity of a host's link, each way, in bit/s.
    pub host_capacity_bps: u64,
    /// Capacity of a leaf–aggregation link, each way, in bit/s.
    pub fabric_capacity_bps: u64,
    /// Capacity of an aggregation–core link, each way, in bit/s.
    pub core_capacity_bps: u64,
    /// Delay of a host's link, each way, in nanoseconds.
    pub host_delay_ns: u64,
    /// Delay of a leaf–aggregation link, each way, in nanoseconds.
    pub fabric_delay_ns: u64,
    /// Delay of an aggregation–core link, each way, in nanoseconds.
    pub core_delay_ns: u64,
    /// Where generated addresses come from.
    pub addressing: Addressing,
    /// How flows are spread over aggregation switches and cores.
    pub ecmp: EcmpConfig,
}

impl Default for ThreeTierClos {
    fn default() -> Self {
        Self {
            pods: 2,
            racks_per_pod: 2,
            hosts_per_rack: 4,
            rack_sizes: Vec::new(),
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

impl BigSwitch {
    /// Builds the network, all up, at epoch 1.
    ///
    /// # Errors
    /// If the parameters describe no network; see [`BuildError`].
    pub fn build(&self) -> Result<Topology, BuildError> {
        assemble(
            &FabricPlan {
                big_switch: true,
                pods: 1,
                racks_per_pod: self.racks,
                racks_key: "racks",
                hosts_per_rack: self.hosts_per_rack,
                rack_sizes: &self.rack_sizes,
                aggs: 0,
                aggs_key: "",
                cores_per_agg: 0,
                levels: &[LevelLinks::new(
                    "host",
                    self.host_capacity_bps,
                    self.host_delay_ns,
                )],
                addressing: &self.addressing,
            },
            Parameters::BigSwitch(Self {
                hosts_per_rack: hosts_per_rack(self.hosts_per_rack, &self.rack_sizes),
                ..self.clone()
            }),
        )
    }
}

impl TwoTierClos {
    /// Builds the network, all up, at epoch 1.
    ///
    /// # Errors
    /// If the parameters describe no network; see [`BuildError`].
    pub fn build(&self) -> Result<Topology, BuildError> {
        assemble(
            &FabricPlan {
                big_switch: false,
                pods: 1,
                racks_per_pod: self.racks,
                racks_key: "racks",
                hosts_per_rack: self.hosts_per_rack,
                rack_sizes: &self.rack_sizes,
                aggs: self.spines,
                aggs_key: "spines",
                cores_per_agg: 0,
                levels: &[
                    LevelLinks::new("host", self.host_capacity_bps, self.host_delay_ns),
                    LevelLinks::new("fabric", self.fabric_capacity_bps, self.fabric_delay_ns),
                ],
                addressing: &self.addressing,
            },
            Parameters::TwoTierClos(Self {
                hosts_per_rack: hosts_per_rack(self.hosts_per_rack, &self.rack_sizes),
                ..self.clone()
            }),
        )
    }
}

impl FatTree {
    /// Builds the network, all up, at epoch 1.
    ///
    /// # Errors
    /// If the parameters describe no network; see [`BuildError`].
    pub fn build(&self) -> Result<Topology, BuildError> {
        if self.k == 0 || !self.k.is_multiple_of(2) {
            return Err(BuildError::FatTreeSize { k: self.k });
        }
        let half = self.k / 2;
        let hosts = u64::from(self.k)
            .saturating_mul(u64::from(half))
            .saturating_mul(u64::from(half));
        if hosts > u64::from(MAX_HOSTS) {
            return Err(BuildError::TooMany {
                key: "k",
                what: "hosts",
                count: hosts,
                max: u64::from(MAX_HOSTS),
            });
        }
        let links = LevelLinks::new("", self.capacity_bps, self.delay_ns);
        assemble(
            &FabricPlan {
                big_switch: false,
                pods: self.k,
                racks_per_pod: half,
                racks_key: "k",
                hosts_per_rack: half,
                rack_sizes: &[],
                aggs: half,
                aggs_key: "k",
                cores_per_agg: half,
                levels: &[links, links, links],
                addressing: &self.addressing,
            },
            Parameters::FatTree(self.clone()),
        )
    }
}

impl ThreeTierClos {
    /// Builds the network, all up, at epoch 1.
    ///
    /// # Errors
    /// If the parameters describe no network; see [`BuildError`].
    pub fn build(&self) -> Result<Topology, BuildError> {
        for (key, count) in [
            ("pods", self.pods),
            ("aggs_per_pod", self.aggs_per_pod),
            ("cores", self.cores),
        ] {
            if count == 0 {
                return Err(BuildError::Zero { key });
            }
        }
        if !self.cores.is_multiple_of(self.aggs_per_pod) {
            return Err(BuildError::CoresNotShared {
                cores: self.cores,
                aggs_per_pod: self.aggs_per_pod,
            });
        }
        assemble(
            &FabricPlan {
                big_switch: false,
                pods: self.pods,
                racks_per_pod: self.racks_per_pod,
                racks_key: "racks_per_pod",
                hosts_per_rack: self.hosts_per_rack,
                rack_sizes: &self.rack_sizes,
                aggs: self.aggs_per_pod,
                aggs_key: "aggs_per_pod",
                cores_per_agg: self.cores / self.aggs_per_pod,
                levels: &[
                    LevelLinks::new("host", self.host_capacity_bps, self.host_delay_ns),
                    LevelLinks::new("fabric", self.fabric_capacity_bps, self.fabric_delay_ns),
                    LevelLinks::new("core", self.core_capacity_bps, self.core_delay_ns),
                ],
                addressing: &self.addressing,
            },
            Parameters::ThreeTierClos(Self {
                hosts_per_rack: hosts_per_rack(self.hosts_per_rack, &self.rack_sizes),
                ..self.clone()
            }),
        )
    }
}

/// Beside a list of sizes the uniform size says nothing; it is kept as their maximum, so that
/// equal networks have equal parameters.
fn hosts_per_rack(uniform: u32, rack_sizes: &[u32]) -> u32 {
    rack_sizes.iter().copied().max().unwrap_or(uniform)
}

/// What a topology was built from.
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

    /// How flows are spread over equal paths.
    #[must_use]
    pub const fn ecmp(&self) -> EcmpConfig {
        match self {
            Self::BigSwitch(b) => b.ecmp,
            Self::TwoTierClos(b) => b.ecmp,
            Self::FatTree(b) => b.ecmp,
            Self::ThreeTierClos(b) => b.ecmp,
        }
    }

    /// Builds the network, all up, at epoch 1.
    ///
    /// # Errors
    /// If the parameters describe no network; see [`BuildError`].
    pub fn build(&self) -> Result<Topology, BuildError> {
        match self {
            Self::BigSwitch(b) => b.build(),
            Self::TwoTierClos(b) => b.build(),
            Self::FatTree(b) => b.build(),
            Self::ThreeTierClos(b) => b.build(),
        }
    }
}
