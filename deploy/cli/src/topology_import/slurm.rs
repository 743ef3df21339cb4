//! Topologies out of Slurm's `topology.conf`: its leaf switches and blocks are racks.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use ratewright_topology::units::parse_capacity_bps;

use super::hostlist::expand;
use super::network::{ImportedHost, ImportedNetwork, ImportedRack, without_covered};
use super::{printable, read};

/// Inputs of `from-slurm`.
#[derive(Debug, Args)]
pub struct SlurmInputs {
    /// Slurm's topology.conf (topology/tree or topology/block)
    #[arg(long, value_name = "FILE")]
    topology: PathBuf,
    /// Addresses of the nodes, a line each as in /etc/hosts: address, name, further names
    #[arg(long, value_name = "FILE")]
    hosts: PathBuf,
    /// Capacity of a host's link, each way
    #[arg(long, value_parser = parse_capacity_bps, value_name = "RATE")]
    host_capacity: u64,
    /// Most that a single flow gets, where the network bounds it
    #[arg(long, value_parser = parse_capacity_bps, value_name = "RATE")]
    max_flow: Option<u64>,
}

impl SlurmInputs {
    /// Reads the inputs and puts the network together.
    ///
    /// # Errors
    /// An input cannot be read or is not what it should be, a node stands in two racks, or one has
    /// no address.
    pub fn import(&self) -> Result<ImportedNetwork> {
        let text = read(&self.topology)?;
        let addresses = self.addresses()?;
        let mut racks = Vec::new();
        let mut seen = BTreeMap::<String, String>::new();
        for (line, entry) in entries(&text) {
            let place = || format!("{}:{line}", self.topology.display());
            let Some(rack) = leaf(&entry).with_context(place)? else {
                continue;
            };
            let mut hosts = Vec::new();
            for name in expand(rack.nodes).with_context(place)? {
                if let Some(other) = seen.insert(name.clone(), rack.name.to_owned()) {
                    bail!(
                        "{}: node {} is in {} already; a host has one rack",
                        place(),
                        printable(&name),
                        printable(&other)
                    );
                }
                let found = addresses.get(&name).with_context(|| {
                    format!(
                        "{}: {} has no address of node {}; add it, as `getent hosts {0}` prints it",
                        place(),
                        self.hosts.display(),
                        printable(&name)
                    )
                })?;
                hosts.push(ImportedHost {
                    name,
                    prefixes: without_covered(found.iter().map(|a| (*a).into()).collect()),
                    capacity_bps: self.host_capacity,
                });
            }
            if !hosts.is_empty() {
                racks.push(ImportedRack {
                    label: rack.name.to_owned(),
                    hosts,
                });
            }
        }
        if racks.is_empty() {
            bail!(
                "{} has no line with SwitchName or BlockName and Nodes; is it a topology.conf?",
                self.topology.display()
            );
        }
        let notes = [
            "Written by `ratewright topology from-slurm`.",
            "A rack is a leaf switch or a block. Links between switches are not modelled.",
        ];
        Ok(ImportedNetwork {
            notes: notes.map(str::to_owned).to_vec(),
            racks,
            max_flow_bps: self.max_flow,
            groups: Vec::new(),
        })
    }

    /// Reads the nodes' addresses by name.
    fn addresses(&self) -> Result<BTreeMap<String, Vec<IpAddr>>> {
        let text = read(&self.hosts)?;
        let mut all = BTreeMap::<String, Vec<IpAddr>>::new();
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.split('#').next().unwrap_or_default();
            let mut words = text.split_whitespace();
            let Some(address) = words.next() else {
                continue;
            };
            let address: IpAddr = address.parse().with_context(|| {
                format!(
                    "{}:{line}: {:?} is no address; a line holds an address and names",
                    self.hosts.display(),
                    printable(address)
                )
            })?;
            for name in words {
                all.entry(name.to_owned()).or_default().push(address);
            }
        }
        Ok(all)
    }
}

/// Lines with their numbers: without comments, and with what a `\` at the end continues.
fn entries(text: &str) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    let mut continues = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim_end();
        let (line, more) = match line.strip_suffix('\\') {
            Some(line) => (line, true),
            None => (line, false),
        };
        match all.last_mut().filter(|_| continues) {
            Some((_, entry)) => {
                entry.push(' ');
                entry.push_str(line.trim());
            }
            None => all.push((number, line.trim().to_owned())),
        }
        continues = more;
    }
    all.retain(|(_, entry)| !entry.is_empty());
    all
}

/// A line that names a switch or a block with nodes.
struct Leaf<'a> {
    name: &'a str,
    nodes: &'a str,
}

/// Returns the leaf that a line describes; `None` for switches of switches and for block sizes.
fn leaf(entry: &str) -> Result<Option<Leaf<'_>>> {
    let (mut name, mut nodes) = (None, None);
    for word in entry.split_whitespace() {
        let (key, value) = word
            .split_once('=')
            .with_context(|| format!("{:?} is no KEY=VALUE", printable(word)))?;
        match key.to_ascii_lowercase().as_str() {
            "switchname" | "blockname" => name = Some(value),
            "nodes" => nodes = Some(value),
            "switches" | "linkspeed" | "blocksizes" | "comment" => {}
            _ => bail!(
                "there is no key {:?}; known are SwitchName, BlockName, Nodes, Switches, LinkSpeed, BlockSizes",
                printable(key)
            ),
        }
    }
    match (name, nodes) {
        (Some(name), Some(nodes)) => Ok(Some(Leaf { name, nodes })),
        (None, Some(_)) => bail!("Nodes without SwitchName or BlockName"),
        _ => Ok(None),
    }
}
