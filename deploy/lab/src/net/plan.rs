//! Plan of the lab's network: nodes, links, addresses and routes. No I/O.
//!
//! Switches are routers: every host has a link of its own, one IPv4 and one IPv6 address, and an
//! on-link gateway. A single switch stands for the big-switch topology of
//! flowtune §6; leaves and spines make a two-tier Clos.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::qdisc::Shaping;

/// The allocator's UDP port.
pub const ALLOCATOR_PORT: u16 = 7600;
/// Hosts that a plan can hold.
pub const MAX_HOSTS: usize = 200;
const ALLOCATOR: Subnet = Subnet::Edge { rack: 0, index: 1 };
/// Marks that the leaf's classifier sets: this plus the spine's index.
pub const SPINE_MARK_BASE: u32 = 0x100;

/// Returns the share of a link's capacity that is TCP's payload: of a frame of 1514 bytes, headers
/// and time stamps taken off.
#[must_use]
pub fn payload_share(v6: bool) -> f64 {
    if v6 { 1428.0 / 1514.0 } else { 1448.0 / 1514.0 }
}

/// Role of the node that a namespace stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A server with applications and a daemon.
    Host,
    /// The machine of the allocator.
    Allocator,
    /// A switch with the given rack number if it is a leaf.
    Switch(Option<usize>),
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Short name, such as `h1`, `leaf2` or `switch`.
    pub name: String,
    /// Role of the node.
    pub role: Role,
}

/// One end of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkEnd {
    /// Index of the node.
    pub node: usize,
    /// Name of the device in the node's namespace.
    pub device: String,
}

/// Addresses of a link's two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subnet {
    /// A host's or the allocator's link: the host's end has one address per family out of its
    /// rack's slice, as the topology file says; the switch's end is an on-link gateway.
    Edge {
        /// Rack counted from 1; 0 for the allocator.
        rack: u8,
        /// Host counted from 1 within the rack.
        index: u8,
    },
    /// A link between a leaf and a spine, with a subnet of its own: 10.78.x.0/24.
    Fabric(u8),
}

/// Base of the hosts' IPv4 addresses: rack r, host k is 10.77.r.k.
pub const HOSTS_V4: &str = "10.77.0.0/16";
/// Base of the hosts' IPv6 addresses: rack r, host k is fd77:0:0:r::k.
pub const HOSTS_V6: &str = "fd77::/48";

impl Subnet {
    /// IPv4 address of the upper (1) or lower (2) end.
    #[must_use]
    pub fn v4(self, end: u8) -> Ipv4Addr {
        match self {
            Subnet::Edge { rack, index } if end == LOWER => Ipv4Addr::new(10, 77, rack, index),
            // One link-local gateway for all hosts (RFC 3927): no address space is used up.
            Subnet::Edge { .. } => Ipv4Addr::new(169, 254, 1, 1),
            Subnet::Fabric(n) => Ipv4Addr::new(10, 78, n, end),
        }
    }

    /// IPv6 address of the upper (1) or lower (2) end.
    #[must_use]
    pub fn v6(self, end: u8) -> Ipv6Addr {
        match self {
            Subnet::Edge { rack, index } if end == LOWER => {
                Ipv6Addr::new(0xfd77, 0, 0, rack.into(), 0, 0, 0, index.into())
            }
            // Link-local as well; each host has a link of its own, so they never clash.
            Subnet::Edge { .. } => Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1),
            Subnet::Fabric(n) => Ipv6Addr::new(0xfd78, 0, 0, n.into(), 0, 0, 0, end.into()),
        }
    }

    /// Hardware address of an end; fixed, so that no neighbour discovery is needed.
    #[must_use]
    pub fn mac(self, end: u8) -> String {
        match self {
            Subnet::Edge { rack, index } => format!("02:00:77:{rack:02x}:{index:02x}:{end:02x}"),
            Subnet::Fabric(n) => format!("02:00:78:00:{n:02x}:{end:02x}"),
        }
    }
}

/// The upper end of a link.
pub const UPPER: u8 = 1;
/// The lower end of a link.
pub const LOWER: u8 = 2;

/// A cable: `lower` is the host's (or the leaf's) end, `upper` the switch's (or the spine's).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedLink {
    /// The end nearer to the hosts.
    pub lower: LinkEnd,
    /// The other end.
    pub upper: LinkEnd,
    /// Addresses.
    pub subnet: Subnet,
    /// Shaping of what leaves the lower end, if it is shaped.
    pub shape_up: Option<Shaping>,
    /// Shaping of what leaves the upper end.
    pub shape_down: Option<Shaping>,
    /// One-way delay of the cable; zero: a veth pair, else a relay between two TAP devices.
    pub delay: Duration,
}

/// Place at which what TCP builds is split into packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// TCP builds single packets.
    Never,
    /// The hosts' interfaces split, as a NIC does: switches see packets, in bursts.
    Interfaces,
    /// Segments larger than a packet cross all links whole.
    Everywhere,
}

/// Numbers that a plan is built from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacities {
    /// Capacity of a host's link.
    pub host_bps: u64,
    /// Capacity of a leaf–spine link.
    pub fabric_bps: u64,
    /// Drop-tail buffer of a switch port.
    pub buffer_bytes: u64,
    /// True if host uplinks are shaped at the host's own egress. False when a back end owns the
    /// device's root queueing discipline (`tc_htb`): then only the switches' ports bound the rates.
    pub shape_hosts: bool,
    /// True if links are shaped; otherwise they are as fast as the machine moves packets.
    pub shape_links: bool,
    /// Bytes that leave a shaped port at once after a pause, if not the default.
    pub burst_bytes: Option<u64>,
    /// Place at which what TCP builds is split into packets.
    pub offload: Offload,
    /// DSCP of what passes the backlog of every shaped link; 0: nothing does.
    pub control_dscp: u8,
}

/// Depth of a host's own transmit queue: deep enough that TCP's own back-pressure works, as on a
/// NIC.
const HOST_QUEUE_BYTES: u64 = 1 << 20;

/// The whole network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkPlan {
    /// Namespaces: hosts first (index = host number − 1), then the allocator, then the switches.
    pub nodes: Vec<Node>,
    /// Links: one per host in order, the allocator's, then leaf–spine links (leaf-major).
    pub links: Vec<PlannedLink>,
    /// Number of hosts.
    pub hosts: usize,
    /// Racks; 1 for a single switch.
    pub racks: usize,
    /// Spines; 0 for a single switch.
    pub spines: usize,
    /// Capacities that the plan was made for.
    pub capacities: Capacities,
}

impl NetworkPlan {
    /// One switch, `hosts` hosts: the big-switch topology.
    #[must_use]
    pub fn big_switch(hosts: usize, capacities: Capacities) -> NetworkPlan {
        NetworkPlan::two_tier(1, hosts, 0, capacities)
    }

    /// `racks` leaves with `hosts_per_rack` hosts each, every leaf linked to each of `spines`
    /// spines. The allocator sits at the first spine, as in flowtune §5.3, or at the only switch.
    #[must_use]
    pub fn two_tier(
        racks: usize,
        hosts_per_rack: usize,
        spines: usize,
        capacities: Capacities,
    ) -> NetworkPlan {
        // Rack and index are bytes of addresses: the bound keeps them in range.
        let hosts = (racks * hosts_per_rack).min(MAX_HOSTS);
        let node = |name: String, role| Node { name, role };
        let mut nodes: Vec<Node> = (1..=hosts)
            .map(|i| node(format!("h{i}"), Role::Host))
            .collect();
        nodes.push(node("alloc".into(), Role::Allocator));
        let first_leaf = nodes.len();
        nodes.extend((0..racks).map(|rack| {
            let name = if spines == 0 {
                "switch".to_owned()
            } else {
                format!("leaf{}", rack + 1)
            };
            node(name, Role::Switch(Some(rack)))
        }));
        let first_spine = nodes.len();
        nodes.extend((1..=spines).map(|i| node(format!("spine{i}"), Role::Switch(None))));

        let shaping = |rate_bps, buffer_bytes| Shaping {
            rate_bps,
            buffer_bytes,
            burst_bytes: capacities.burst_bytes,
            control_dscp: capacities.control_dscp,
        };
        // Without shaped links a shaped uplink would be the only limit.
        let shape_hosts = capacities.shape_hosts && capacities.shape_links;
        let port = |node: usize, device: String| LinkEnd { node, device };
        let mut links: Vec<PlannedLink> = (0..hosts)
            .map(|host| PlannedLink {
                lower: port(host, "eth0".into()),
                upper: port(
                    first_leaf + host / hosts_per_rack.max(1),
                    format!("p{}", host + 1),
                ),
                subnet: Subnet::Edge {
                    rack: (host / hosts_per_rack.max(1)) as u8 + 1,
                    index: (host % hosts_per_rack.max(1)) as u8 + 1,
                },
                shape_up: shape_hosts.then(|| shaping(capacities.host_bps, HOST_QUEUE_BYTES)),
                shape_down: capacities
                    .shape_links
                    .then(|| shaping(capacities.host_bps, capacities.buffer_bytes)),
                delay: Duration::ZERO,
            })
            .collect();
        // The allocator's link is not a bottleneck of the experiments: it is left at veth speed.
        links.push(PlannedLink {
            lower: port(hosts, "eth0".into()),
            upper: port(
                if spines == 0 { first_leaf } else { first_spine },
                "alloc".into(),
            ),
            subnet: ALLOCATOR,
            shape_up: None,
            shape_down: None,
            delay: Duration::ZERO,
        });
        for rack in 0..racks {
            for spine in 0..spines {
                let shape = capacities
                    .shape_links
                    .then(|| shaping(capacities.fabric_bps, capacities.buffer_bytes));
                links.push(PlannedLink {
                    lower: port(first_leaf + rack, format!("up{}", spine + 1)),
                    upper: port(first_spine + spine, format!("down{}", rack + 1)),
                    // Counted from 1 in the order of `fabric_link`.
                    subnet: Subnet::Fabric((rack * spines + spine) as u8 + 1),
                    shape_up: shape,
                    shape_down: shape,
                    delay: Duration::ZERO,
                });
            }
        }
        NetworkPlan {
            nodes,
            links,
            hosts,
            racks,
            spines,
            capacities,
        }
    }

    /// Hosts of a rack, as indices.
    #[must_use]
    pub fn rack_hosts(&self, rack: usize) -> std::ops::Range<usize> {
        let per_rack = self.hosts / self.racks;
        rack * per_rack..(rack + 1) * per_rack
    }

    /// The fabric link of a leaf to a spine.
    #[must_use]
    pub fn fabric_link(&self, rack: usize, spine: usize) -> &PlannedLink {
        // Behind the hosts' links and the allocator's, leaf-major.
        &self.links[self.hosts + 1 + rack * self.spines + spine]
    }

    /// The allocator's address.
    #[must_use]
    pub fn allocator_addr(&self) -> SocketAddr {
        (self.links[self.hosts].subnet.v4(LOWER), ALLOCATOR_PORT).into()
    }

    /// Address of a host (by index), IPv4 or IPv6.
    #[must_use]
    pub fn host_addr(&self, host: usize, v6: bool) -> IpAddr {
        let subnet = self.links[host].subnet;
        if v6 {
            subnet.v6(LOWER).into()
        } else {
            subnet.v4(LOWER).into()
        }
    }

    /// Routes of a node beyond its own links: (destination subnet, gateway's subnet and end,
    /// table).
    #[must_use]
    pub fn routes(&self, node: usize) -> Vec<Route> {
        let to = |dest: Subnet, via: Subnet, end: u8| Route {
            dest: Some(dest),
            via,
            end,
            table: None,
        };
        let default = |via: Subnet, table| Route {
            dest: None,
            via,
            end: UPPER,
            table,
        };
        match self.nodes[node].role {
            Role::Host | Role::Allocator => vec![default(self.links[node].subnet, None)],
            // One table per spine, which the classifier's mark selects; the main table takes the
            // first spine for packets without a mark, such as those of the leaf itself.
            Role::Switch(Some(rack)) => (0..self.spines)
                .map(|spine| default(self.fabric_link(rack, spine).subnet, Some(spine)))
                .chain((self.spines > 0).then(|| default(self.fabric_link(rack, 0).subnet, None)))
                .collect(),
            Role::Switch(None) => {
                // Spines come last: behind hosts, allocator and leaves.
                let spine = node - (self.hosts + 1 + self.racks);
                (0..self.racks)
                    .flat_map(|rack| self.rack_hosts(rack).map(move |host| (rack, host)))
                    .map(|(rack, host)| {
                        to(
                            self.links[host].subnet,
                            self.fabric_link(rack, spine).subnet,
                            LOWER,
                        )
                    })
                    .collect()
            }
        }
    }

    /// Subnets that a leaf reaches without asking the spines' tables: its own hosts and the
    /// allocator.
    #[must_use]
    pub fn leaf_direct(&self, rack: usize) -> Vec<Subnet> {
        self.rack_hosts(rack)
            .map(|host| self.links[host].subnet)
            .chain([ALLOCATOR])
            .collect()
    }
}

/// One route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Destination; `None` is the default route.
    pub dest: Option<Subnet>,
    /// Subnet of the gateway.
    pub via: Subnet,
    /// End of the gateway's subnet: [`UPPER`] or [`LOWER`].
    pub end: u8,
    /// Index of the spine whose table holds the route; `None` is the main table.
    pub table: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPS: Capacities = Capacities {
        host_bps: 1,
        fabric_bps: 2,
        buffer_bytes: 3,
        shape_hosts: true,
        shape_links: true,
        burst_bytes: None,
        offload: Offload::Never,
        control_dscp: 48,
    };

    #[test]
    fn a_big_switch_has_one_switch_and_a_default_route_per_host() {
        let plan = NetworkPlan::big_switch(9, CAPS);
        assert_eq!(plan.nodes.len(), 11);
        assert_eq!(plan.links.len(), 10);
        assert_eq!(plan.host_addr(8, false).to_string(), "10.77.1.9");
        assert_eq!(plan.host_addr(0, true).to_string(), "fd77:0:0:1::1");
        assert_eq!(plan.routes(0).len(), 1);
        assert!(plan.routes(10).is_empty());
    }

    #[test]
    fn links_without_a_shaper_have_none_in_either_direction() {
        let plan = NetworkPlan::two_tier(
            2,
            4,
            2,
            Capacities {
                shape_links: false,
                ..CAPS
            },
        );
        assert!(
            plan.links
                .iter()
                .all(|link| link.shape_up.is_none() && link.shape_down.is_none())
        );
    }

    #[test]
    fn a_clos_has_a_table_per_spine_at_each_leaf_and_a_way_back_at_each_spine() {
        let plan = NetworkPlan::two_tier(2, 4, 2, CAPS);
        assert_eq!(plan.links.len(), 8 + 1 + 4);
        let leaf2 = plan.nodes.iter().position(|n| n.name == "leaf2").unwrap();
        let tables: Vec<_> = plan.routes(leaf2).iter().map(|r| r.table).collect();
        assert_eq!(tables, [Some(0), Some(1), None]);
        let spine2 = plan.nodes.iter().position(|n| n.name == "spine2").unwrap();
        let routes = plan.routes(spine2);
        assert_eq!(routes.len(), 8);
        assert_eq!(routes[4].via, plan.fabric_link(1, 1).subnet);
    }
}
