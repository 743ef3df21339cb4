//! Assembly of hosts, racks, switches and links from checked counts.

use super::{MAX_HOSTS, MAX_LINKS};
use crate::addressing::Addressing;
use crate::error::BuildError;
use crate::frames::Frame;
use crate::ids::{HostId, LinkId, RackId, SwitchId};
use crate::model::{Direction, Host, Link, Node, Rack, Switch, Tenure};
use crate::parameters::Parameters;
use crate::places;
use crate::shape::Shape;
use crate::topology::Topology;
use crate::units::{MAX_CAPACITY_BPS, MAX_DELAY_NS, format_capacity_bps, format_delay_ns};

/// Capacity and delay of the links of one level, with the names of their parameters for errors.
#[derive(Clone, Copy)]
pub(super) struct LevelLinks {
    capacity_key: &'static str,
    delay_key: &'static str,
    capacity_bps: u64,
    delay_ns: u64,
}

impl LevelLinks {
    pub(super) const fn new(name: &'static str, capacity_bps: u64, delay_ns: u64) -> Self {
        let (capacity_key, delay_key) = match name.as_bytes() {
            b"host" => ("host_capacity", "host_delay"),
            b"fabric" => ("fabric_capacity", "fabric_delay"),
            b"core" => ("core_capacity", "core_delay"),
            _ => ("capacity", "delay"),
        };
        Self {
            capacity_key,
            delay_key,
            capacity_bps,
            delay_ns,
        }
    }

    fn check(&self) -> Result<(), BuildError> {
        if self.capacity_bps == 0 {
            return Err(BuildError::Zero {
                key: self.capacity_key,
            });
        }
        if self.capacity_bps > MAX_CAPACITY_BPS {
            let (value, max) = (
                format_capacity_bps(self.capacity_bps),
                format_capacity_bps(MAX_CAPACITY_BPS),
            );
            return Err(BuildError::TooLarge {
                key: self.capacity_key,
                value,
                max,
            });
        }
        if self.delay_ns > MAX_DELAY_NS {
            let (value, max) = (
                format_delay_ns(self.delay_ns),
                format_delay_ns(MAX_DELAY_NS),
            );
            return Err(BuildError::TooLarge {
                key: self.delay_key,
                value,
                max,
            });
        }
        Ok(())
    }
}

/// Counts and links of a network to be built; `*_key` names the parameter to blame.
pub(super) struct FabricPlan<'a> {
    pub(super) big_switch: bool,
    pub(super) pods: u32,
    pub(super) racks_per_pod: u32,
    pub(super) racks_key: &'static str,
    pub(super) hosts_per_rack: u32,
    pub(super) rack_sizes: &'a [u32],
    /// Spare places behind the hosts of each rack.
    pub(super) spare_hosts: u32,
    pub(super) aggs: u32,
    pub(super) aggs_key: &'static str,
    pub(super) cores_per_agg: u32,
    /// One per level: host, fabric, core.
    pub(super) levels: &'a [LevelLinks],
    pub(super) addressing: &'a Addressing,
}

impl FabricPlan<'_> {
    /// Checks every bound before anything is allocated.
    fn shape(&self) -> Result<Shape, BuildError> {
        let racks = u64::from(self.pods) * u64::from(self.racks_per_pod);
        if racks == 0 {
            return Err(BuildError::Zero {
                key: self.racks_key,
            });
        }
        let max_hosts = u64::from(MAX_HOSTS);
        // Every rack has a host, so this bounds the products below as well.
        if racks > max_hosts {
            return Err(BuildError::TooMany {
                key: self.racks_key,
                what: "racks",
                count: racks,
                max: max_hosts,
            });
        }
        if self.aggs == 0 && !self.big_switch {
            return Err(BuildError::Zero { key: self.aggs_key });
        }
        // In u64, since the bound is checked on the product.
        let spare = u64::from(self.spare_hosts);
        let (hosts, hosts_key) = if self.rack_sizes.is_empty() {
            (
                racks * (u64::from(self.hosts_per_rack) + spare),
                "hosts_per_rack",
            )
        } else if self.rack_sizes.len() as u64 != racks {
            return Err(BuildError::RackSizes {
                listed: self.rack_sizes.len(),
                racks,
            });
        } else if self.rack_sizes.contains(&0) && spare == 0 {
            return Err(BuildError::Zero { key: "rack_sizes" });
        } else {
            (
                self.rack_sizes
                    .iter()
                    .map(|&size| u64::from(size) + spare)
                    .sum(),
                "rack_sizes",
            )
        };
        if hosts == 0 {
            return Err(BuildError::Zero { key: hosts_key });
        }
        if hosts > max_hosts {
            return Err(BuildError::TooMany {
                key: if spare > max_hosts / racks {
                    "spare_hosts"
                } else {
                    hosts_key
                },
                what: "hosts",
                count: hosts,
                max: max_hosts,
            });
        }
        let aggs = u64::from(self.pods) * u64::from(self.aggs);
        if aggs > max_hosts {
            return Err(BuildError::TooMany {
                key: self.aggs_key,
                what: "switches",
                count: aggs,
                max: max_hosts,
            });
        }
        let mut rack_sizes = if self.rack_sizes.is_empty() {
            vec![self.hosts_per_rack; racks as usize]
        } else {
            self.rack_sizes.to_vec()
        };
        // A spare place has its links from the start, so the engine never grows.
        rack_sizes
            .iter_mut()
            .for_each(|size| *size += self.spare_hosts);
        let shape = Shape {
            big_switch: self.big_switch,
            pods: self.pods,
            racks_per_pod: self.racks_per_pod,
            aggs: self.aggs,
            cores_per_agg: self.cores_per_agg,
            rack_sizes,
            hosts: hosts as u32,
        };
        let links = shape.link_count();
        if links > u64::from(MAX_LINKS) {
            // In a fat tree every count follows from `k`, so `k` is to blame.
            let key = if self.cores_per_agg > 0 && self.aggs_key != "k" {
                "cores"
            } else {
                self.aggs_key
            };
            return Err(BuildError::TooMany {
                key,
                what: "links",
                count: links,
                max: u64::from(MAX_LINKS),
            });
        }
        self.levels.iter().try_for_each(LevelLinks::check)?;
        Ok(shape)
    }
}

pub(super) fn assemble(
    plan: &FabricPlan<'_>,
    parameters: Parameters,
) -> Result<Topology, BuildError> {
    let shape = plan.shape()?;
    let largest = shape.rack_sizes.iter().copied().max().unwrap_or(0);
    // Spare places have no generated addresses, so they leave those of the hosts as they are.
    let largest = largest - plan.spare_hosts;
    // One slice size for all racks, by the largest, so that addresses follow from the numbers.
    let slice_bits = plan.addressing.check(shape.rack_sizes.len(), largest)?;
    let mut hosts = Vec::with_capacity(shape.hosts as usize);
    let mut racks = Vec::with_capacity(shape.rack_sizes.len());
    // Names count the hosts alone, so spare places change none of them.
    let mut numbered = 0_u32;
    for (rack, size) in (0..).zip(shape.rack_sizes.iter().copied()) {
        let first = hosts.len() as u32;
        racks.push(Rack {
            id: RackId(rack),
            name: format!("rack{}", rack + 1),
            leaf: shape.leaf(rack),
            pod: rack / shape.racks_per_pod,
            hosts: first..first + size,
        });
        let named = size - plan.spare_hosts;
        for index in 0..size {
            let id = HostId(first + index);
            let host = if index < named {
                numbered += 1;
                Host {
                    id,
                    name: format!("h{numbered}"),
                    rack: RackId(rack),
                    prefixes: plan.addressing.prefixes(slice_bits, rack, index),
                    tenure: Tenure::File,
                }
            } else {
                Host {
                    id,
                    name: places::spare_name(rack, index - named),
                    rack: RackId(rack),
                    prefixes: Vec::new(),
                    tenure: Tenure::Spare,
                }
            };
            hosts.push(host);
        }
    }
    let switches = switches(&shape);
    let links = links(&shape, &hosts, plan.levels);
    Ok(Topology::assemble(
        parameters, shape, hosts, racks, switches, links,
    ))
}

fn switches(shape: &Shape) -> Vec<Switch> {
    let three_tier = shape.cores_per_agg > 0;
    let mut switches: Vec<Switch> = Vec::new();
    let mut push = |name: String, tier, rack, pod: Option<u32>| {
        let id = SwitchId(switches.len() as u32);
        switches.push(Switch {
            id,
            name,
            tier,
            rack,
            // Two tiers are one pod inside, but show none.
            pod: pod.filter(|_| three_tier),
            up: true,
        });
    };
    if shape.big_switch {
        push("fabric".into(), 1, None, None);
        return switches;
    }
    for rack in 0..shape.racks() {
        push(
            format!("leaf{}", rack + 1),
            1,
            Some(RackId(rack)),
            Some(rack / shape.racks_per_pod),
        );
    }
    for pod in 0..shape.pods {
        for agg in 0..shape.aggs {
            let name = if three_tier {
                format!("agg{}-{}", pod + 1, agg + 1)
            } else {
                format!("spine{}", agg + 1)
            };
            push(name, 2, None, Some(pod));
        }
    }
    for core in 0..shape.aggs * shape.cores_per_agg {
        push(format!("core{}", core + 1), 3, None, None);
    }
    switches
}

/// Makes the links in the order of their ids in [`Shape`].
fn links(shape: &Shape, hosts: &[Host], levels: &[LevelLinks]) -> Vec<Link> {
    let mut links = Vec::with_capacity(shape.link_count() as usize);
    let mut level = |level: u8, pairs: &[(Node, Node)]| {
        let LevelLinks {
            capacity_bps,
            delay_ns,
            ..
        } = levels[usize::from(level) - 1];
        // All up links before all down links: `Shape` finds the reverse by adding the count.
        for direction in [Direction::Up, Direction::Down] {
            for &(low, high) in pairs {
                let (from, to) = if direction == Direction::Up {
                    (low, high)
                } else {
                    (high, low)
                };
                let id = LinkId(links.len() as u32);
                links.push(Link {
                    id,
                    from,
                    to,
                    capacity_bps,
                    line_rate_bps: capacity_bps,
                    baseline_bps: None,
                    frame: Frame::AS_COUNTED,
                    delay_ns,
                    level,
                    direction,
                    up: true,
                });
            }
        }
    };
    // Edge links exist in every kind; the other levels only where there are switches for them.
    let edge: Vec<_> = hosts
        .iter()
        .map(|h| (Node::Host(h.id), Node::Switch(shape.leaf(h.rack.0))))
        .collect();
    level(1, &edge);
    if shape.aggs > 0 {
        let mut pairs = Vec::with_capacity((shape.racks() * shape.aggs) as usize);
        for rack in 0..shape.racks() {
            let pod = rack / shape.racks_per_pod;
            pairs.extend((0..shape.aggs).map(|a| {
                (
                    Node::Switch(shape.leaf(rack)),
                    Node::Switch(shape.agg(pod, a)),
                )
            }));
        }
        level(2, &pairs);
    }
    if shape.cores_per_agg > 0 {
        let mut pairs =
            Vec::with_capacity((shape.pods * shape.aggs * shape.cores_per_agg) as usize);
        for pod in 0..shape.pods {
            for a in 0..shape.aggs {
                let agg = Node::Switch(shape.agg(pod, a));
                pairs.extend(
                    (0..shape.cores_per_agg).map(|c| (agg, Node::Switch(shape.core(a, c)))),
                );
            }
        }
        level(3, &pairs);
    }
    links
}
