//! Topologies of EC2 out of the AWS CLI's own JSON: no SDK, no credentials, no network.

mod json;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use ratewright_topology::IpNet;
use ratewright_topology::units::parse_capacity_bps;

use super::network::{ImportedGroup, ImportedHost, ImportedNetwork, ImportedRack, without_covered};
use super::printable;
use json::{
    Instance, InstanceTopologies, InstanceTypes, NetworkInterface, Placement, PlacementGroups,
    Reservations, load,
};

/// The largest capacity of a card that is believed, in Gbit/s.
const MAX_CARD_GBPS: f64 = 100_000.0;

/// Inputs of `from-ec2`, each an output of the AWS CLI.
#[derive(Debug, Args)]
pub struct Ec2Inputs {
    /// Output of `aws ec2 describe-instance-topology`; may be given several times
    #[arg(long, value_name = "FILE")]
    topology: Vec<PathBuf>,
    /// Output of `aws ec2 describe-instances`; may be given several times
    #[arg(long, required = true, value_name = "FILE")]
    instances: Vec<PathBuf>,
    /// Output of `aws ec2 describe-instance-types`; may be given several times
    #[arg(long, required = true, value_name = "FILE")]
    types: Vec<PathBuf>,
    /// Output of `aws ec2 describe-placement-groups`; without it every group without partitions
    /// counts as a cluster placement group
    #[arg(long, value_name = "FILE")]
    placement_groups: Vec<PathBuf>,
    /// Bandwidth of an instance type that counts; a rate is a bound on TCP, which finds less by
    /// itself
    #[arg(long, value_enum, default_value_t = CapacityKind::Peak)]
    capacity: CapacityKind,
    /// Capacity of hosts whose instance type names none
    #[arg(long, value_parser = parse_capacity_bps, value_name = "RATE")]
    host_capacity: Option<u64>,
    /// Tag that names a host, in place of the instance's id
    #[arg(long, value_name = "KEY")]
    name_tag: Option<String>,
    /// Bound of one flow between hosts that share no cluster placement group
    #[arg(long, default_value = "5Gbit/s", value_parser = parse_capacity_bps, value_name = "RATE")]
    max_flow: u64,
    /// Bound of one flow within a cluster placement group
    #[arg(long, default_value = "10Gbit/s", value_parser = parse_capacity_bps, value_name = "RATE")]
    max_flow_cluster: u64,
    /// Bound of one flow between hosts of one zone that both have ENA Express
    #[arg(long, default_value = "25Gbit/s", value_parser = parse_capacity_bps, value_name = "RATE")]
    max_flow_ena_express: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CapacityKind {
    /// Bandwidth that the instance may always use
    Baseline,
    /// Bandwidth that it may use for a while
    Peak,
}

impl CapacityKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Peak => "peak",
        }
    }
}

/// Bandwidth of a network card in bit/s, and what it always has of that, if that is less.
#[derive(Debug, Clone, Copy)]
struct CardRates {
    capacity_bps: u64,
    baseline_bps: Option<u64>,
}

/// Place of a rack: its network nodes from the top down, or a partition or zone in their stead.
/// Racks are numbered in its order, so those under one switch are neighbours.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum RackPlace {
    Nodes(Vec<String>),
    Partition(String, u32),
    Zone(String),
}

impl RackPlace {
    fn label(&self) -> String {
        match self {
            Self::Nodes(nodes) => format!("network nodes {}", nodes.join(" / ")),
            Self::Partition(group, partition) => format!(
                "partition {partition} of placement group {group}: no network nodes are known"
            ),
            Self::Zone(zone) => format!("zone {zone}: no network nodes are known"),
        }
    }
}

/// Hosts and counts gathered on the way.
#[derive(Default)]
struct Gathered {
    racks: BTreeMap<RackPlace, Vec<ImportedHost>>,
    clusters: BTreeMap<String, Vec<String>>,
    ena_express: BTreeMap<String, Vec<String>>,
    without_nodes: usize,
    not_running: usize,
    without_address: usize,
    several_cards: usize,
}

impl Ec2Inputs {
    /// Reads the inputs and puts the network together.
    ///
    /// # Errors
    /// An input cannot be read, is not what the command prints, or contradicts another.
    pub fn import(&self) -> Result<ImportedNetwork> {
        let nodes = self.network_nodes()?;
        let cards = self.cards()?;
        let clusters = self.cluster_groups()?;
        let mut gathered = Gathered::default();
        let mut seen = BTreeSet::new();
        for path in &self.instances {
            let output: Reservations = load(path)?;
            for instance in output.reservations.into_iter().flat_map(|r| r.instances) {
                let id = printable(&instance.instance_id);
                let place = || format!("{}: instance {id}", path.display());
                if !seen.insert(instance.instance_id.clone()) {
                    bail!("{} is listed twice; keep one entry", place());
                }
                if !matches!(instance.state.name.as_str(), "running" | "pending") {
                    gathered.not_running += 1;
                    continue;
                }
                self.add(&mut gathered, &instance, &nodes, &cards, clusters.as_ref())
                    .with_context(place)?;
            }
        }
        Ok(self.network(gathered))
    }

    /// Returns the network nodes of each instance that has any, from the top down.
    fn network_nodes(&self) -> Result<BTreeMap<String, Vec<String>>> {
        let mut all = BTreeMap::<String, Vec<String>>::new();
        for path in &self.topology {
            let output: InstanceTopologies = load(path)?;
            for instance in output.instances {
                let nodes = instance.network_nodes.unwrap_or_default();
                if nodes.is_empty() {
                    continue;
                }
                let id = instance.instance_id;
                if let Some(before) = all.insert(id.clone(), nodes)
                    && before != all[&id]
                {
                    bail!(
                        "{}: instance {} hangs on other network nodes than in an earlier entry; describe all instances again",
                        path.display(),
                        printable(&id)
                    );
                }
            }
        }
        Ok(all)
    }

    /// Returns the bandwidths of each type's cards, by the card's index; `None` where the type
    /// names none.
    fn cards(&self) -> Result<BTreeMap<String, BTreeMap<u32, Option<CardRates>>>> {
        let mut all = BTreeMap::new();
        for path in &self.types {
            let output: InstanceTypes = load(path)?;
            for instance_type in output.types {
                let mut cards = BTreeMap::new();
                for card in &instance_type.network_info.network_cards {
                    let bps = |gbps: Option<f64>| {
                        gbps.map(capacity_bps).transpose().with_context(|| {
                            format!(
                                "{}: instance type {}",
                                path.display(),
                                printable(&instance_type.instance_type)
                            )
                        })
                    };
                    let baseline_bps = bps(card.baseline_gbps)?;
                    let rates = match self.capacity {
                        CapacityKind::Baseline => baseline_bps.map(|bps| (bps, None)),
                        CapacityKind::Peak => {
                            let peak_bps = bps(card.peak_gbps)?.or(baseline_bps);
                            peak_bps.map(|bps| (bps, baseline_bps.filter(|&base| base < bps)))
                        }
                    };
                    let rates = rates.map(|(capacity_bps, baseline_bps)| CardRates {
                        capacity_bps,
                        baseline_bps,
                    });
                    cards.insert(card.network_card_index, rates);
                }
                all.insert(instance_type.instance_type, cards);
            }
        }
        Ok(all)
    }

    /// Returns the cluster placement groups; `None` if nobody said which they are.
    fn cluster_groups(&self) -> Result<Option<BTreeSet<String>>> {
        if self.placement_groups.is_empty() {
            return Ok(None);
        }
        let mut clusters = BTreeSet::new();
        for path in &self.placement_groups {
            let output: PlacementGroups = load(path)?;
            let of_clusters = output
                .groups
                .into_iter()
                .filter(|group| group.strategy.as_deref() == Some("cluster"));
            clusters.extend(of_clusters.map(|group| group.group_name));
        }
        Ok(Some(clusters))
    }

    /// Adds an instance: one host for each of its network cards that has an address.
    fn add(
        &self,
        gathered: &mut Gathered,
        instance: &Instance,
        nodes: &BTreeMap<String, Vec<String>>,
        cards: &BTreeMap<String, BTreeMap<u32, Option<CardRates>>>,
        clusters: Option<&BTreeSet<String>>,
    ) -> Result<()> {
        let of_type = cards.get(&instance.instance_type).with_context(|| {
            let name = printable(&instance.instance_type);
            format!("no --types file has its type {name}; run `aws ec2 describe-instance-types --instance-types {name}` and give the output too")
        })?;
        let name = self.name_of(instance)?;
        let mut interfaces = BTreeMap::<u32, Vec<&NetworkInterface>>::new();
        for interface in &instance.network_interfaces {
            let card = interface.attachment.network_card_index;
            interfaces.entry(card).or_default().push(interface);
        }
        let mut hosts = Vec::new();
        for (card, interfaces) in interfaces {
            let mut prefixes = Vec::new();
            for interface in &interfaces {
                addresses(interface, &mut prefixes)?;
            }
            let prefixes = without_covered(prefixes);
            if prefixes.is_empty() {
                continue;
            }
            let known = of_type.get(&card).copied().flatten();
            let given = self.host_capacity.map(|capacity_bps| CardRates {
                capacity_bps,
                baseline_bps: None,
            });
            let rates = known.or(given).with_context(|| {
                format!(
                    "its type {} names no {} bandwidth of network card {card}; describe the types with a newer AWS CLI, or set --host-capacity",
                    printable(&instance.instance_type),
                    self.capacity.name()
                )
            })?;
            let host = ImportedHost {
                name: match card {
                    0 => name.clone(),
                    _ => format!("{name}-card{card}"),
                },
                prefixes,
                capacity_bps: rates.capacity_bps,
                baseline_bps: rates.baseline_bps,
            };
            let express = |interface: &&NetworkInterface| {
                interface.attachment.ena_srd_specification.ena_srd_enabled
            };
            hosts.push((host, interfaces.iter().all(express)));
        }
        if hosts.is_empty() {
            gathered.without_address += 1;
            return Ok(());
        }
        gathered.several_cards += usize::from(hosts.len() > 1);
        let place = rack_place(instance, nodes)?;
        gathered.without_nodes += usize::from(!matches!(place, RackPlace::Nodes(_)));
        let cluster = cluster_of(&instance.placement, clusters);
        let rack = gathered.racks.entry(place).or_default();
        for (host, ena_express) in hosts {
            if let Some(cluster) = cluster {
                let members = gathered.clusters.entry(cluster.to_owned()).or_default();
                members.push(host.name.clone());
            }
            if ena_express && let Some(zone) = &instance.placement.availability_zone {
                let members = gathered.ena_express.entry(zone.clone()).or_default();
                members.push(host.name.clone());
            }
            rack.push(host);
        }
        Ok(())
    }

    fn name_of(&self, instance: &Instance) -> Result<String> {
        let Some(key) = &self.name_tag else {
            return Ok(instance.instance_id.clone());
        };
        let tag = instance.tags.iter().find(|tag| tag.key == *key);
        let value = tag
            .map(|tag| tag.value.as_str())
            .filter(|value| !value.is_empty());
        Ok(value
            .with_context(|| {
                format!(
                    "it has no tag {}; tag it, or leave out --name-tag",
                    printable(key)
                )
            })?
            .to_owned())
    }

    fn network(&self, gathered: Gathered) -> ImportedNetwork {
        let mut notes = vec![
            "Written by `ratewright topology from-ec2`.".to_owned(),
            format!(
                "A rack is a bottom network node. Links have the {} bandwidth of the instance's type.",
                self.capacity.name()
            ),
        ];
        let mut note = |count: usize, text: &str| {
            if count > 0 {
                notes.push(format!("{count} {text}"));
            }
        };
        note(
            gathered.without_nodes,
            "instances have no network nodes (EC2 tells them of some types): by partition or zone.",
        );
        note(
            gathered.several_cards,
            "instances have several network cards: each card is a host, card 0 under the plain name.",
        );
        note(
            gathered.not_running,
            "instances do not run and are left out.",
        );
        note(
            gathered.without_address,
            "instances have no address and are left out.",
        );
        let groups = |of: BTreeMap<String, Vec<String>>, what: &str, max_flow_bps: u64| {
            // A group of one has no flow within it.
            let of_many = of.into_iter().filter(|(_, hosts)| hosts.len() > 1);
            of_many
                .map(|(name, mut hosts)| {
                    hosts.sort_unstable();
                    ImportedGroup {
                        name: format!("{what} {}", printable(&name)),
                        max_flow_bps,
                        hosts,
                    }
                })
                .collect::<Vec<_>>()
        };
        let mut bounds = groups(
            gathered.clusters,
            "cluster placement group",
            self.max_flow_cluster,
        );
        bounds.extend(groups(
            gathered.ena_express,
            "ENA Express in",
            self.max_flow_ena_express,
        ));
        let racks = gathered.racks.into_iter().map(|(place, mut hosts)| {
            hosts.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            ImportedRack {
                label: place.label(),
                hosts,
            }
        });
        ImportedNetwork {
            notes,
            racks: racks.collect(),
            max_flow_bps: Some(self.max_flow),
            groups: bounds,
        }
    }
}

fn rack_place(instance: &Instance, nodes: &BTreeMap<String, Vec<String>>) -> Result<RackPlace> {
    if let Some(nodes) = nodes.get(&instance.instance_id) {
        return Ok(RackPlace::Nodes(nodes.clone()));
    }
    let placement = &instance.placement;
    match (placement.partition_number, &placement.group_name) {
        (Some(partition), Some(group)) if partition > 0 => {
            Ok(RackPlace::Partition(group.clone(), partition))
        }
        _ => Ok(RackPlace::Zone(
            placement
                .availability_zone
                .clone()
                .context("it has neither network nodes nor a placement with a zone")?,
        )),
    }
}

/// Returns the cluster placement group of an instance.
fn cluster_of<'a>(
    placement: &'a Placement,
    clusters: Option<&BTreeSet<String>>,
) -> Option<&'a str> {
    let group = placement
        .group_name
        .as_deref()
        .filter(|name| !name.is_empty())?;
    let is_cluster = match clusters {
        Some(clusters) => clusters.contains(group),
        // A bound that is too high costs nothing, one that is too low costs bandwidth.
        None => placement.partition_number.is_none_or(|number| number == 0),
    };
    is_cluster.then_some(group)
}

/// Adds the addresses and delegated prefixes of an interface.
fn addresses(interface: &NetworkInterface, into: &mut Vec<IpNet>) -> Result<()> {
    let single = interface
        .private_ip_address
        .iter()
        .chain(
            interface
                .private_ip_addresses
                .iter()
                .map(|a| &a.private_ip_address),
        )
        .chain(interface.ipv6_addresses.iter().map(|a| &a.ipv6_address));
    for text in single {
        let address: std::net::IpAddr = text
            .parse()
            .with_context(|| format!("{:?} is no address", printable(text)))?;
        into.push(address.into());
    }
    let delegated = interface
        .ipv4_prefixes
        .iter()
        .map(|p| &p.ipv4_prefix)
        .chain(interface.ipv6_prefixes.iter().map(|p| &p.ipv6_prefix));
    for text in delegated {
        let prefix: IpNet = text
            .parse()
            .with_context(|| format!("{:?} is no prefix", printable(text)))?;
        into.push(prefix.trunc());
    }
    Ok(())
}

/// Returns a bandwidth of the API in bit/s.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the value is checked to be positive and far below 2^53"
)]
fn capacity_bps(gbps: f64) -> Result<u64> {
    let bps = (gbps * 1e9).round();
    if !(1.0..=MAX_CARD_GBPS * 1e9).contains(&bps) {
        bail!("a bandwidth of {gbps} Gbit/s is not believed");
    }
    Ok(bps as u64)
}
