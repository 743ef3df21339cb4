//! The network as it is known, and its changes: failures and repairs of links and switches
//! (flowtune §6), links that are shared, and reloads of the topology. The engine is told of them.

use std::collections::VecDeque;

use ratewright_proto::control::{AccessCapacity, HostInfo, TopologySnapshot};
use ratewright_topology::{HostId, Link, LinkId, Node, Tenure, Topology};

use crate::service::admin_request::{
    LinkChange, SwitchChange, TopologyChange, TopologyChangeError,
};

use super::HubSettings;
use super::checking::link_check_config;
use super::feeds::feeds_config;
use super::session::{Hosts, Session};
use crate::engine::EngineEvent;
use crate::feeds::Feeds;
use crate::link_check::{LinkCheck, LinkState};
use crate::service::config::PacingOrder;
use crate::service::status::{ServiceCounts, SharedStatus};
use crate::shared_links::{Cause, SharedChanges, SharedLinks};

/// Minimum capacity that a notification may set, in bit/s: the smallest rate code.
const MIN_CAPACITY_BPS: u64 = 1_000;

/// Divisor of the nominal capacity that gives the minimum without `force`.
const FLOOR_DIVISOR: u64 = 100;

/// Returns the capacities in the topology file, in bit/s, by link index.
fn nominal_bps(topology: &Topology) -> Vec<u64> {
    let links = topology.links().iter();
    links.map(|link| link.capacity_bps).collect()
}

/// The network as it is known: its topology, the traffic of others on it, and what its links carry.
pub struct Network {
    pub(super) topology: Topology,
    /// Capacities in the topology file, in bit/s, by link index.
    pub(super) nominal_bps: Vec<u64>,
    pub(super) feeds: Feeds,
    pub(super) shared: SharedLinks,
    pub(super) link_check: LinkCheck,
    /// Events that the engine has not taken yet, in order: of links, and of flows.
    pub(super) engine_events: VecDeque<EngineEvent>,
}

impl Network {
    /// Makes the network of a topology of which nothing else is known.
    pub(super) fn new(settings: &HubSettings, topology: Topology) -> Self {
        let mut shared = SharedLinks::new(&topology);
        shared.set_told_relaxes(settings.feeds.shared);
        Self {
            nominal_bps: nominal_bps(&topology),
            feeds: Feeds::new(feeds_config(settings), &topology),
            shared,
            link_check: LinkCheck::new(link_check_config(settings)),
            engine_events: VecDeque::new(),
            topology,
        }
    }

    /// Puts other settings in force.
    pub(super) fn reconfigure(&mut self, settings: &HubSettings) {
        self.feeds.reconfigure(feeds_config(settings));
        self.link_check.reconfigure(link_check_config(settings));
        self.shared.set_told_relaxes(settings.feeds.shared);
    }

    /// Returns the capacity of every link for flows, in bit/s, by link index.
    pub fn capacities_bps(&self) -> Vec<f64> {
        let of_link = |link: &Link| self.capacity_of(link.id);
        self.topology.links().iter().map(of_link).collect()
    }

    /// Returns the capacity of a link for flows, in bit/s: without what external traffic takes, and
    /// at most what it was measured to carry where it carries less than it was told.
    pub(super) fn capacity_of(&self, link: LinkId) -> f64 {
        let capacity_bps = self.feeds.external().capacity_bps(&self.topology, link);
        let lowered_bps = self.link_check.lowered_bps(link);
        lowered_bps.map_or(capacity_bps, |bps| bps.min(capacity_bps))
    }

    /// Returns the links that the check names, in the order of their numbers, with their states.
    pub fn named_links(&self) -> impl Iterator<Item = (LinkId, LinkState)> {
        self.link_check.named()
    }

    /// Returns the capacity to which a link is lowered, in bit/s, if it is.
    pub fn lowered_bps(&self, link: LinkId) -> Option<f64> {
        self.link_check.lowered_bps(link)
    }

    /// Returns the rate of a link's dummy flow, which stands for traffic of others, in bit/s.
    pub fn external_bps(&self, link: LinkId) -> f64 {
        let traffic = self.feeds.external().get(link);
        traffic.map_or(0.0, |traffic| traffic.granted_bps)
    }

    /// Returns load over capacity, in thousandths; 1 for a load on a link without capacity.
    pub(super) fn utilisation(&self, link: LinkId, load_bps: f64) -> f64 {
        let capacity_bps = self.capacity_of(link);
        let ratio = if capacity_bps > 0.0 {
            load_bps / capacity_bps
        } else {
            1.0
        };
        (ratio * 1_000.0).round() / 1_000.0
    }

    /// Returns the name of a host by its number.
    pub(super) fn host_name(&self, host: u32) -> String {
        self.topology
            .hosts()
            .get(host as usize)
            .map_or_else(|| format!("host {host}"), |host| host.name.clone())
    }

    /// Returns the links that a notification concerns.
    ///
    /// # Errors
    /// It names something that does not exist, or asks for an invalid change.
    fn links_of(&self, change: &TopologyChange) -> Result<Vec<LinkId>, TopologyChangeError> {
        match change {
            TopologyChange::Link(change) => self.links_of_change(change),
            TopologyChange::Switch(SwitchChange { name, .. }) => {
                let switch = self
                    .topology
                    .switch_by_name(name)
                    .ok_or_else(|| TopologyChangeError::UnknownSwitch(name.clone()))?;
                let end = Node::Switch(switch);
                let links = self.topology.links().iter();
                let touching = links.filter(|link| link.from == end || link.to == end);
                Ok(touching.map(|link| link.id).collect())
            }
        }
    }

    fn links_of_change(&self, change: &LinkChange) -> Result<Vec<LinkId>, TopologyChangeError> {
        if change.up.is_none() && change.capacity_bps.is_none() {
            return Err(TopologyChangeError::Nothing);
        }
        if let Some(capacity) = change.capacity_bps
            && !(MIN_CAPACITY_BPS..=ratewright_topology::units::MAX_CAPACITY_BPS)
                .contains(&capacity)
        {
            return Err(TopologyChangeError::Capacity(capacity));
        }
        let mut links = vec![self.link_named(&change.from, &change.to)?];
        if !change.one_way {
            links.push(self.link_named(&change.to, &change.from)?);
        }
        if let Some(capacity_bps) = change.capacity_bps.filter(|_| !change.force) {
            for link in &links {
                // Against the file, not the last notification: repeated halving must not pass the
                // floor step by step.
                let nominal_bps = self.nominal_bps.get(link.index()).copied().unwrap_or(0);
                if capacity_bps < nominal_bps / FLOOR_DIVISOR {
                    return Err(TopologyChangeError::CapacityFloor {
                        capacity_bps,
                        nominal_bps,
                    });
                }
            }
        }
        Ok(links)
    }

    /// Returns the link between two nodes by their names.
    pub(super) fn link_named(&self, from: &str, to: &str) -> Result<LinkId, TopologyChangeError> {
        self.topology
            .link_between(self.node(from)?, self.node(to)?)
            .ok_or_else(|| TopologyChangeError::UnknownLink {
                from: from.to_owned(),
                to: to.to_owned(),
            })
    }

    fn node(&self, name: &str) -> Result<Node, TopologyChangeError> {
        self.topology
            .node_by_name(name)
            .ok_or_else(|| TopologyChangeError::UnknownNode(name.to_owned()))
    }

    /// Returns the capacity that the engine is to take for a link, in bit/s.
    ///
    /// External traffic on a link, told by an operator or measured by a feed, is left its share
    /// there by the allocation itself. It wins: the capacity is then the exact one.
    pub(super) fn engine_capacity_bps(&self, link: LinkId) -> f64 {
        self.headroom_of(link) * self.capacity_of(link)
    }

    /// Returns the factor on a link's capacity that is in force.
    pub(super) fn headroom_of(&self, link: LinkId) -> f64 {
        let has_external = self.feeds.external().get(link).is_some();
        self.shared.headroom(link, has_external)
    }

    /// Sends a link's present capacity for flows to the engine.
    pub(super) fn push_capacity(&mut self, link: LinkId) {
        let capacity_bps = self.engine_capacity_bps(link);
        self.engine_events.push_back(EngineEvent::Capacity {
            link: link.0,
            capacity_bps,
        });
    }

    /// Applies a notification of a failure, a repair or another capacity, and tells the engine, but
    /// for links that are dead: their flows leave first, so that none stands on such a link while
    /// another path is usable.
    ///
    /// # Errors
    /// The notification names something that does not exist. Nothing has changed.
    pub(super) fn change(
        &mut self,
        change: &TopologyChange,
    ) -> Result<Applied, TopologyChangeError> {
        let links = self.links_of(change)?.into_iter();
        let before: Vec<(LinkId, f64)> = links.map(|link| (link, self.capacity_of(link))).collect();
        match change {
            TopologyChange::Link(change) => {
                for &(link, _) in &before {
                    if let Some(up) = change.up {
                        self.topology.set_link_up(link, up);
                    }
                    if let Some(capacity) = change.capacity_bps {
                        self.topology.set_capacity_bps(link, capacity);
                    }
                }
            }
            TopologyChange::Switch(SwitchChange { name, up }) => {
                if let Some(switch) = self.topology.switch_by_name(name) {
                    self.topology.set_switch_up(switch, *up);
                }
            }
        }
        let changed: Vec<(LinkId, f64, f64)> = before
            .iter()
            .map(|&(link, was)| (link, was, self.capacity_of(link)))
            .filter(|(_, was, is)| was != is)
            .collect();
        let died = |is: f64| is == 0.0;
        for &(link, _, is) in &changed {
            if !died(is) {
                self.push_capacity(link);
            }
        }
        self.refresh_dummy_flows(changed.iter().map(|(link, _, _)| *link));
        let dead = changed.iter().filter(|(_, _, is)| died(*is));
        Ok(Applied {
            links: changed.len(),
            // Paths depend on which links work, not on their capacities.
            reroutes: changed.iter().any(|&(_, was, is)| died(was) || died(is)),
            dead: dead.map(|(link, _, _)| *link).collect(),
        })
    }

    /// Puts another topology in force.
    pub(super) fn replace_topology(&mut self, topology: Topology) {
        // Needs both topologies: link numbers differ, names of their ends do not.
        self.feeds.replace_topology(&self.topology, &topology);
        self.nominal_bps = nominal_bps(&topology);
        self.topology = topology;
    }

    /// Tells a new engine, which takes links to have the capacities `known_bps`, what it does not
    /// know. Events that wait were meant for its predecessor and are dropped.
    pub(super) fn restart(&mut self, now_ns: u64, known_bps: &[f64]) {
        self.engine_events.clear();
        self.shared.restart(now_ns, &self.topology);
        // Whatever has changed is compared below.
        let shared = self.shared.take_changes().shared;
        // The check takes them from the counts, after these began anew.
        self.link_check.part_others();
        for link in shared {
            self.link_check.set_others(link, true);
        }
        for link in 0..self.topology.links().len() {
            let id = self.topology.links()[link].id;
            // The engine was made from the topology alone, and notifications may have come
            // meanwhile.
            if known_bps.get(link) != Some(&self.engine_capacity_bps(id)) {
                self.push_capacity(id);
            }
        }
        self.restart_dummy_flows();
    }

    /// Ends links that have been shared for long enough.
    pub(super) fn end_shared(&mut self, now_ns: u64, counts: &mut ServiceCounts) {
        self.shared.end_due(now_ns);
        self.push_shared(counts);
    }

    /// Sends the engine the capacities of links whose headroom began or ended, and notes the links
    /// that began or ended to be shared.
    pub(super) fn push_shared(&mut self, counts: &mut ServiceCounts) {
        if !self.shared.has_changed() {
            return;
        }
        let SharedChanges { shared, relaxed } = self.shared.take_changes();
        for link in relaxed {
            self.push_capacity(link);
        }
        for link in shared {
            self.link_check
                .set_others(link, self.shared.is_shared(link));
            if let Some(cause) = self.shared.cause(link) {
                counts.links_shared.count(cause.label());
            }
        }
    }

    /// Returns the state of a shared link for operators; `None` if it is not shared.
    pub(super) fn shared_status(&self, link: LinkId, hosts: Hosts<'_>) -> Option<SharedStatus> {
        let cause = self.shared.cause(link)?;
        Some(SharedStatus {
            cause: self.cause_in_words(cause, hosts),
            headroom: self.headroom_of(link),
        })
    }

    fn cause_in_words(&self, cause: Cause, hosts: Hosts<'_>) -> String {
        match cause {
            Cause::Unpaced(host) | Cause::Host(host) => {
                let known = self.topology.hosts().get(host.index());
                let name = known.map_or("", |host| host.name.as_str());
                match hosts.session(host).map(Session::conduct) {
                    None => format!("host {name} without a session"),
                    Some(PacingOrder::Pace) => format!("host {name}, which paces by now"),
                    Some(PacingOrder::Observe) => format!("observing host {name}"),
                    Some(PacingOrder::Release) => format!("released host {name}"),
                }
            }
            Cause::Stranger(Some(address)) => format!("unknown address {address}"),
            Cause::Stranger(None) => "unknown addresses".to_owned(),
            Cause::Udp => "UDP".to_owned(),
        }
    }
}

/// Result of a change of the network.
pub(super) struct Applied {
    /// Number of links whose capacity differs.
    pub(super) links: usize,
    /// Flows may have to take other paths.
    pub(super) reroutes: bool,
    /// Links that carry nothing from now on, of which the engine does not know yet.
    pub(super) dead: Vec<LinkId>,
}

/// Returns the number of links of a topology.
#[allow(
    clippy::cast_possible_truncation,
    reason = "links have numbers of 32 bits"
)]
pub(super) fn link_count(topology: &Topology) -> u32 {
    topology.links().len() as u32
}

/// Returns the capacity of every link of a topology, in bit/s, by link index.
pub fn capacities_bps(topology: &Topology) -> Vec<f64> {
    let links = topology.links().iter();
    links.map(|link| capacity_bps(topology, link)).collect()
}

#[allow(
    clippy::cast_precision_loss,
    reason = "capacities are far below 2^53 bit/s"
)]
fn capacity_bps(topology: &Topology, link: &Link) -> f64 {
    topology.effective_capacity_bps(link.id) as f64
}

/// Returns the capacities of a host's own links, as its daemon is told them.
pub(super) fn access_of(topology: &Topology, host: HostId) -> AccessCapacity {
    let (uplink, downlink) = (topology.host_uplink(host), topology.host_downlink(host));
    let line_rate_bps = |link: LinkId| topology.links()[link.index()].line_rate_bps;
    AccessCapacity::new(
        topology.effective_capacity_bps(uplink),
        topology.effective_capacity_bps(downlink),
    )
    .with_line_rates(line_rate_bps(uplink), line_rate_bps(downlink))
}

pub(super) fn snapshot_of(topology: &Topology) -> TopologySnapshot {
    TopologySnapshot {
        version: topology.epoch(),
        ecmp_seed: topology.ecmp().seed,
        ecmp_symmetric: topology.ecmp().symmetric,
        hosts: topology
            .hosts()
            .iter()
            // Nobody is at a spare place, so hosts need not hear of it.
            .filter(|host| host.tenure == Tenure::File)
            .map(|host| HostInfo {
                id: host.id.0,
                name: host.name.clone(),
                prefixes: host.prefixes.clone(),
            })
            .collect(),
        ..TopologySnapshot::default()
    }
}
