//! Builders of the four kinds of network.
//!
//! ```
//! use ratewright_topology::TwoTierClos;
//!
//! let shape = TwoTierClos { racks: 9, hosts_per_rack: 16, spines: 4, ..TwoTierClos::default() };
//! let net = shape.build()?;
//! assert_eq!(net.hosts().len(), 144);
//! # Ok::<(), ratewright_topology::BuildError>(())
//! ```
//!
//! Hosts are named `h1`, `h2`, … through all racks; racks `rack1`, …; switches `leaf1`, …,
//! `spine1`, …, or `agg1-1` (pod 1), …, `core1`, … Spare places stand behind the hosts of their
//! rack, as `rack1/spare1`, …, which no host can be called.

mod assemble;

use crate::error::BuildError;
use crate::parameters::{BigSwitch, FatTree, Parameters, ThreeTierClos, TwoTierClos};
use crate::topology::Topology;
use assemble::{FabricPlan, LevelLinks, assemble};

/// The most hosts in one topology.
pub const MAX_HOSTS: u32 = 262_144;

/// The most directed links in one topology.
pub const MAX_LINKS: u32 = 2_097_152;

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
                spare_hosts: self.spare_hosts,
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
                spare_hosts: self.spare_hosts,
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
        // The cube of a large k overflows u32; saturation keeps it above the bound.
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
        // Without a name: a fat tree's parameters are `capacity` and `delay` at all levels.
        let links = LevelLinks::new("", self.capacity_bps, self.delay_ns);
        assemble(
            &FabricPlan {
                big_switch: false,
                pods: self.k,
                racks_per_pod: half,
                racks_key: "k",
                hosts_per_rack: half,
                rack_sizes: &[],
                spare_hosts: 0,
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
        // Aggregation switch `a` of every pod is wired to one group of cores, and the groups are
        // equal.
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
                spare_hosts: self.spare_hosts,
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

/// Returns the maximum of a list of sizes, or the uniform size. Beside a list the uniform size has
/// no meaning, and with their maximum in its place, equal networks have equal parameters.
fn hosts_per_rack(uniform: u32, rack_sizes: &[u32]) -> u32 {
    rack_sizes.iter().copied().max().unwrap_or(uniform)
}

impl Parameters {
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
