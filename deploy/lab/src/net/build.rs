//! Realises a [`NetworkPlan`]: namespaces, veth pairs, addresses, routes, queues.

use std::fmt::Write as _;

use anyhow::{Context, Result};

use super::ecmp::{EcmpProgram, LeafConfig};
use super::ns::{self, Netns};
use super::plan::{
    LOWER, NetworkPlan, Node, Offload, PlannedLink, Role, SPINE_MARK_BASE, Subnet, UPPER,
};
use super::qdisc::Shaping;
use super::relay::Relay;
use super::segmentation::split_at;

/// Entries of a namespace's own TCP hash table: passes over all sockets of a host stay short.
const EHASH_ENTRIES: &str = "2048";

/// The built network. Dropping it closes the namespaces; the lab's clean-up removes them.
#[derive(Debug)]
pub struct BuiltNetwork {
    /// Plan that this network realises.
    pub plan: NetworkPlan,
    namespaces: Vec<Netns>,
    _ecmp: Vec<EcmpProgram>,
    _relays: Vec<Relay>,
}

impl BuiltNetwork {
    /// Builds `plan` with namespaces called `<prefix><node>`.
    ///
    /// # Errors
    /// When the kernel or a tool refuses; what was built so far is left to the lab's clean-up.
    pub fn build(plan: NetworkPlan, prefix: &str, ecmp_seed: u32) -> Result<BuiltNetwork> {
        // The first switch is made first: the others inherit their hash table's size from it.
        let nursery = Netns::create(&format!("{prefix}nursery"), None)?;
        nursery.write_settings(&[("net/ipv4/tcp_child_ehash_entries", EHASH_ENTRIES)])?;
        let namespaces = plan
            .nodes
            .iter()
            .map(|node| Netns::create(&format!("{prefix}{}", node.name), Some(&nursery)))
            .collect::<Result<Vec<_>>>()?;
        for (node, ns) in plan.nodes.iter().zip(&namespaces) {
            ns.write_settings(&settings(node))
                .with_context(|| format!("settings of {}", node.name))?;
        }
        let mut network = BuiltNetwork {
            plan,
            namespaces,
            _ecmp: Vec::new(),
            _relays: Vec::new(),
        };
        // In this order: routes need addresses, queues and the classifier need devices.
        network.connect()?;
        network.route()?;
        network.shape()?;
        network.attach_ecmp(ecmp_seed)?;
        // Its children keep the size that they inherited.
        ns::delete(nursery.name());
        Ok(network)
    }

    /// The namespace of a node, by its index in the plan.
    #[must_use]
    pub fn netns(&self, node: usize) -> &Netns {
        &self.namespaces[node]
    }

    /// Takes a host's interface away: neither end of its link carries anything any more.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn unplug(&self, host: usize) -> Result<()> {
        let port = &self.plan.links[host].lower;
        // A veth whose peer is down has no carrier, so this end is enough.
        self.ip(port.node, &format!("link set {} down\n", port.device))
    }

    /// Gives a host its interface back, with the addresses, neighbours and routes that went with
    /// it.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn plug(&self, host: usize) -> Result<()> {
        let link = &self.plan.links[host];
        let mut batch = String::new();
        let device = &link.lower.device;
        // What the kernel kept (IPv4 addresses) is given once more: all of it is replaced.
        address(&mut batch, link, device, LOWER);
        let batch = batch.replace("addr add", "addr replace");
        self.ip(link.lower.node, &batch)?;
        for v6 in [false, true] {
            let mut batches = vec![String::new(); self.namespaces.len()];
            self.add_routes(link.lower.node, v6, &mut batches[link.lower.node]);
            self.run_ip(&batches, if v6 { &["-6"] } else { &[] })?;
        }
        Ok(())
    }

    fn connect(&mut self) -> Result<()> {
        let mut batches = vec![String::new(); self.namespaces.len()];
        // Without offload each packet is one segment, so that queues drop packets as a switch does
        // and not bursts.
        let segments = match self.plan.capacities.offload {
            Offload::Never => "gso_max_segs 1",
            Offload::Interfaces | Offload::Everywhere => "",
        };
        for link in &self.plan.links {
            if !link.delay.is_zero() {
                let ends = [&link.lower, &link.upper]
                    .map(|end| (&self.namespaces[end.node], end.device.as_str()));
                self._relays.push(Relay::start(ends, link.delay)?);
                for (port, end) in [(&link.lower, LOWER), (&link.upper, UPPER)] {
                    let mac = link.subnet.mac(end);
                    let _ = writeln!(
                        batches[port.node],
                        "link set dev {} address {mac} mtu 1500",
                        port.device
                    );
                }
                continue;
            }
            // The peer is created in the other namespace at once: names need be unique per node
            // only.
            let upper_ns = self.namespaces[link.upper.node].name();
            let _ = writeln!(
                batches[link.lower.node],
                "link add name {} mtu 1500 numtxqueues 1 numrxqueues 1 {segments} address {} type veth \
                 peer name {} netns {upper_ns} mtu 1500 numtxqueues 1 numrxqueues 1 {segments} address {}",
                link.lower.device,
                link.subnet.mac(LOWER),
                link.upper.device,
                link.subnet.mac(UPPER),
            );
        }
        self.run_ip(&batches, &[])?;
        if self.plan.capacities.offload == Offload::Interfaces {
            for link in self.plan.links.iter().filter(|link| link.delay.is_zero()) {
                split_at(&self.namespaces[link.lower.node], &link.lower.device)?;
            }
        }
        // One `ip -batch` per namespace: a process for each command would be slow.
        let mut batches: Vec<String> = self
            .plan
            .nodes
            .iter()
            .map(|_| "link set lo up\n".to_owned())
            .collect();
        for link in &self.plan.links {
            address(
                &mut batches[link.lower.node],
                link,
                &link.lower.device,
                LOWER,
            );
            address(
                &mut batches[link.upper.node],
                link,
                &link.upper.device,
                UPPER,
            );
        }
        self.run_ip(&batches, &[])
    }

    fn route(&self) -> Result<()> {
        for v6 in [false, true] {
            let mut batches = vec![String::new(); self.namespaces.len()];
            for (node, batch) in batches.iter_mut().enumerate() {
                self.add_routes(node, v6, batch);
                let Role::Switch(Some(rack)) = self.plan.nodes[node].role else {
                    continue;
                };
                if self.plan.spines == 0 {
                    continue;
                }
                for subnet in self.plan.leaf_direct(rack) {
                    let _ = writeln!(
                        batch,
                        // Before the rules below: the main table has the rack's own hosts, and the
                        // first spine, where the allocator sits.
                        "rule add pref 100 to {} lookup main",
                        end_address(subnet, LOWER, v6)
                    );
                }
                for spine in 0..self.plan.spines {
                    let _ = writeln!(
                        batch,
                        "rule add pref 200 fwmark {0} lookup {0}",
                        table(spine)
                    );
                }
            }
            self.run_ip(&batches, if v6 { &["-6"] } else { &[] })?;
        }
        Ok(())
    }

    /// The routes of a node beyond its own links.
    fn add_routes(&self, node: usize, v6: bool, batch: &mut String) {
        for route in self.plan.routes(node) {
            let dest = route.dest.map_or_else(
                || "default".to_owned(),
                |subnet| end_address(subnet, LOWER, v6),
            );
            let table = route
                .table
                .map_or_else(|| "main".to_owned(), |spine| table(spine).to_string());
            let _ = writeln!(
                batch,
                "route add {dest} via {} dev {} onlink table {table}",
                end_address(route.via, route.end, v6),
                self.device(node, route.via)
            );
        }
    }

    fn shape(&self) -> Result<()> {
        let mut batches = vec![String::new(); self.namespaces.len()];
        for link in &self.plan.links {
            for (port, shaping) in [(&link.lower, link.shape_up), (&link.upper, link.shape_down)] {
                if let Some(shaping) = shaping {
                    batches[port.node] += &shaping.commands(&port.device);
                }
            }
        }
        for (node, batch) in batches.iter().enumerate() {
            if !batch.is_empty() {
                self.tc(node, batch)?;
            }
        }
        Ok(())
    }

    /// Runs a batch of `tc` in a node's namespace.
    ///
    /// # Errors
    /// When `tc` fails.
    pub fn tc(&self, node: usize, batch: &str) -> Result<()> {
        self.namespaces[node].run("tc", &["-batch", "-"], batch)
    }

    /// Gives the link to a host this share of its capacity in the plan.
    ///
    /// # Errors
    /// When it has no shaper, or `tc` fails.
    pub fn scale_downlink(&self, host: usize, share: f64) -> Result<()> {
        let link = &self.plan.links[host];
        let shaping = link.shape_down.context("a link without a shaper")?;
        let changed = Shaping {
            rate_bps: (shaping.rate_bps as f64 * share) as u64,
            ..shaping
        };
        self.tc(link.upper.node, &changed.change_rate(&link.upper.device))
    }

    /// Runs a batch of `ip` in a node's namespace.
    ///
    /// # Errors
    /// When `ip` fails.
    pub fn ip(&self, node: usize, batch: &str) -> Result<()> {
        self.namespaces[node].run("ip", &["-batch", "-"], batch)
    }

    fn attach_ecmp(&mut self, seed: u32) -> Result<()> {
        if self.plan.spines == 0 {
            return Ok(());
        }
        (0..self.plan.racks).try_for_each(|rack| self.route_by_ecmp(rack, self.plan.spines, seed))
    }

    /// Has a rack's leaf spread its hosts' flows over the first `spines` spines, in place of what
    /// it did before.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn route_by_ecmp(&mut self, rack: usize, spines: usize, seed: u32) -> Result<()> {
        let config = LeafConfig {
            seed,
            symmetric: true,
            spines: spines as u32,
            mark_base: SPINE_MARK_BASE,
        };
        // All hosts of a rack hang on one leaf, so the first one's link names it.
        let leaf = self.plan.links[self.plan.rack_hosts(rack).start].upper.node;
        let ports: Vec<String> = self
            .plan
            .rack_hosts(rack)
            .map(|host| self.plan.links[host].upper.device.clone())
            .collect();
        let program = EcmpProgram::attach(config, &self.namespaces[leaf], &ports)?;
        self._ecmp.push(program);
        Ok(())
    }

    /// The node's device on the link with this subnet.
    fn device(&self, node: usize, subnet: Subnet) -> &str {
        let ends = self
            .plan
            .links
            .iter()
            .filter(|l| l.subnet == subnet)
            .flat_map(|l| [&l.lower, &l.upper]);
        ends.filter(|port| port.node == node)
            .map(|port| port.device.as_str())
            .next()
            // Not reached for subnets of the plan: each is on a link of the node that asks.
            .unwrap_or("eth0")
    }

    fn run_ip(&self, batches: &[String], family: &[&str]) -> Result<()> {
        for (ns, batch) in self.namespaces.iter().zip(batches) {
            if !batch.is_empty() {
                ns.run("ip", &[family, &["-batch", "-"]].concat(), batch)?;
            }
        }
        Ok(())
    }
}

/// Address of one end of a link, in text.
fn end_address(subnet: Subnet, end: u8, v6: bool) -> String {
    if v6 {
        subnet.v6(end).to_string()
    } else {
        subnet.v4(end).to_string()
    }
}

/// Routing table (and packet mark) of a spine.
fn table(spine: usize) -> u32 {
    SPINE_MARK_BASE + spine as u32
}

/// Addresses, fixed neighbours and, at a switch, the route to the host.
fn address(batch: &mut String, link: &PlannedLink, device: &str, end: u8) {
    let subnet = link.subnet;
    let (v4_bits, v6_bits) = if matches!(subnet, Subnet::Fabric(_)) {
        // Fabric links have subnets; hosts have single addresses and an on-link gateway.
        (24, 64)
    } else {
        (32, 128)
    };
    // The gateway's address is never configured: permanent neighbour entries make hosts reach it.
    let gateway = matches!(subnet, Subnet::Edge { .. }) && end == UPPER;
    if !gateway {
        let _ = writeln!(batch, "addr add {}/{v4_bits} dev {device}", subnet.v4(end));
        let _ = writeln!(
            batch,
            // Duplicate address detection would keep the address tentative for a second.
            "addr add {}/{v6_bits} dev {device} nodad",
            subnet.v6(end)
        );
    }
    let _ = writeln!(batch, "link set {device} up");
    let other = if end == UPPER { LOWER } else { UPPER };
    for peer in [subnet.v4(other).to_string(), subnet.v6(other).to_string()] {
        let _ = writeln!(
            batch,
            "neigh replace {peer} lladdr {} dev {device} nud permanent",
            subnet.mac(other)
        );
        if gateway {
            let _ = writeln!(batch, "route add {peer} dev {device}");
        }
    }
}

/// Settings of a node's namespace: plain Cubic with the kernel's own defaults, nothing remembered
/// from one connection to the next, no router discovery.
fn settings(node: &Node) -> Vec<(&'static str, &'static str)> {
    let mut settings = vec![
        ("net/ipv6/conf/all/disable_ipv6", "0"),
        ("net/ipv6/conf/default/accept_dad", "0"),
        ("net/ipv6/conf/default/accept_ra", "0"),
        ("net/ipv6/conf/default/router_solicitations", "0"),
        ("net/ipv4/conf/all/rp_filter", "0"),
        ("net/ipv4/conf/default/rp_filter", "0"),
    ];
    match node.role {
        Role::Host | Role::Allocator => settings.extend([
            ("net/ipv4/tcp_congestion_control", "cubic"),
            ("net/ipv4/tcp_no_metrics_save", "1"),
            ("net/ipv4/tcp_wmem", "4096 16384 4194304"),
            ("net/ipv4/tcp_rmem", "4096 131072 6291456"),
        ]),
        Role::Switch(_) => {
            settings.extend([
                ("net/ipv4/ip_forward", "1"),
                ("net/ipv6/conf/all/forwarding", "1"),
            ]);
        }
    }
    settings
}
