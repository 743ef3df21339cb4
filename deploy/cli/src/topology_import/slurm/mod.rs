//! Topologies out of Slurm's `topology.conf` or `topology.yaml`: racks are leaf switches or blocks.
//!
//! | module | holds |
//! |---|---|
//! | `conf`, `yaml` | the two forms of the file |
//! | `hostlist` | lists of hosts |
//! | `hosts` | addresses by name |

mod conf;
mod hostlist;
mod hosts;
mod yaml;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use ratewright_topology::builders::MAX_HOSTS;
use ratewright_topology::units::parse_capacity_bps;

use super::network::{ImportedHost, ImportedNetwork, ImportedRack, without_covered};
use super::{printable, read};
use hosts::Hosts;

/// Inputs of `from-slurm`.
#[derive(Debug, Args)]
pub struct SlurmInputs {
    /// Slurm's topology.conf or topology.yaml (topology/tree or topology/block)
    #[arg(long, value_name = "FILE")]
    topology: PathBuf,
    /// Topology of a topology.yaml; without it, the cluster's default or the only one
    #[arg(long, value_name = "NAME")]
    topology_name: Option<String>,
    /// Addresses of the nodes, as in /etc/hosts or as `getent ahosts` prints them
    #[arg(long, value_name = "FILE")]
    hosts: PathBuf,
    /// Leave out nodes without an address, and say so in the file
    #[arg(long)]
    skip_without_address: bool,
    /// Capacity of a host's link, each way
    #[arg(long, value_parser = parse_capacity_bps, value_name = "RATE")]
    host_capacity: u64,
    /// Most that a single flow gets, where the network bounds it
    #[arg(long, value_parser = parse_capacity_bps, value_name = "RATE")]
    max_flow: Option<u64>,
}

/// Kind of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum GroupKind {
    Switch,
    Block,
}

impl GroupKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Switch => "switch",
            Self::Block => "block",
        }
    }
}

/// Switch or block, with the list of its nodes unless it is a switch of switches.
#[derive(Debug)]
struct Group {
    /// File and line.
    place: String,
    kind: GroupKind,
    name: String,
    nodes: Option<String>,
}

impl SlurmInputs {
    /// Reads the inputs and puts the network together.
    ///
    /// # Errors
    /// An input cannot be read or is not what it should be. A node stands in two racks or has no
    /// address, or a switch or block is defined twice.
    pub fn import(&self) -> Result<ImportedNetwork> {
        let groups = self.groups()?;
        let addresses = Hosts::load(&self.hosts)?;
        let mut racks = Vec::new();
        let mut rack_of = BTreeMap::<String, String>::new();
        let mut missing = Vec::new();
        for group in groups {
            let place = || group.place.clone();
            let mut hosts = Vec::new();
            let nodes = group.nodes.as_deref().unwrap_or_default();
            for name in hostlist::expand(nodes).with_context(place)? {
                if let Some(other) = rack_of.insert(name.clone(), group.name.clone()) {
                    bail!(
                        "{}: node {} is in {} already; a host has one rack",
                        place(),
                        printable(&name),
                        printable(&other)
                    );
                }
                let node = || format!("{}: node {}", self.hosts.display(), printable(&name));
                let Some(found) = addresses.of(&name).with_context(node)? else {
                    missing.push(name);
                    continue;
                };
                hosts.push(ImportedHost {
                    name,
                    prefixes: without_covered(found.into_iter().map(Into::into).collect()),
                    capacity_bps: self.host_capacity,
                    baseline_bps: None,
                });
            }
            if rack_of.len() > MAX_HOSTS as usize {
                bail!("{}: more than {MAX_HOSTS} nodes", place());
            }
            if !hosts.is_empty() {
                racks.push(ImportedRack {
                    label: group.name,
                    hosts,
                });
            }
        }
        if rack_of.is_empty() {
            bail!(
                "{} has no switch or block with nodes; is it a topology.conf or topology.yaml?",
                self.topology.display()
            );
        }
        let mut notes = vec![
            "Written by `ratewright topology from-slurm`.".to_owned(),
            "A rack is a leaf switch or a block. Links between switches are not modelled."
                .to_owned(),
        ];
        if let Some(first) = missing.first() {
            let (count, list) = (missing.len(), hostlist::compress(&missing));
            if !self.skip_without_address {
                bail!(
                    "{} has no address of {count} nodes: {list}; add them, as `getent ahosts {}` prints them, or leave them out with --skip-without-address",
                    self.hosts.display(),
                    printable(first)
                );
            }
            notes.push(format!(
                "{count} nodes without an address are left out: {list}"
            ));
        }
        Ok(ImportedNetwork {
            notes,
            racks,
            max_flow_bps: self.max_flow,
            groups: Vec::new(),
        })
    }

    /// Reads the switches and blocks, each defined once.
    fn groups(&self) -> Result<Vec<Group>> {
        let text = read(&self.topology)?;
        let wanted = self.topology_name.as_deref();
        let groups = if yaml::is_yaml(&self.topology, &text) {
            yaml::groups(&self.topology, &text, wanted)?
        } else if wanted.is_some() {
            bail!(
                "{} is a topology.conf, which has one topology without a name; leave out --topology-name",
                self.topology.display()
            );
        } else {
            conf::groups(&self.topology, &text)?
        };
        let mut places = BTreeMap::new();
        for group in &groups {
            if let Some(other) = places.insert((group.kind, &group.name), &group.place) {
                bail!(
                    "{}: {} {} is defined at {other} already",
                    group.place,
                    group.kind.name(),
                    printable(&group.name)
                );
            }
        }
        Ok(groups)
    }
}
