//! Changes of the network: failures and repairs of links and switches (flowtune §6), and reloads of
//! the topology.

use ratewright_proto::control::{
    AccessCapacity, EncodedTopology, HostInfo, RefusalCode, TopologySnapshot,
};
use ratewright_topology::{HostId, Link, LinkId, Node, Tenure, Topology};

use crate::service::admin_request::{
    LinkChange, SwitchChange, TopologyChange, TopologyChangeError, TopologyReport,
};

use super::checking::link_check_config;
use super::feeds::feeds_config;
use super::{Hub, HubSettings};
use crate::feeds::Feeds;
use crate::link_check::{LinkCheck, LinkState};
use crate::shared_links::SharedLinks;

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
}

impl Hub {
    /// Applies a notification of a failure, a repair or another capacity. Returns the number of
    /// links whose capacity differs.
    ///
    /// Flows take their new paths as [`sweep`](Self::sweep) visits them; then
    /// [`topology_report`](Self::topology_report) gives the result.
    ///
    /// # Errors
    /// The notification names something that does not exist. Nothing has changed.
    pub fn change_topology(
        &mut self,
        now_ns: u64,
        change: &TopologyChange,
    ) -> Result<usize, TopologyChangeError> {
        let before: Vec<(LinkId, f64)> = self
            .network
            .links_of(change)?
            .into_iter()
            .map(|link| (link, self.network.capacity_of(link)))
            .collect();
        let epoch = self.network.topology.epoch();
        match change {
            TopologyChange::Link(change) => {
                for &(link, _) in &before {
                    if let Some(up) = change.up {
                        self.network.topology.set_link_up(link, up);
                    }
                    if let Some(capacity) = change.capacity_bps {
                        self.network.topology.set_capacity_bps(link, capacity);
                    }
                }
            }
            TopologyChange::Switch(SwitchChange { name, up }) => {
                if let Some(switch) = self.network.topology.switch_by_name(name) {
                    self.network.topology.set_switch_up(switch, *up);
                }
            }
        }
        // Connected hosts need no message: the hosts and the hash seed, which they know, are the
        // same. Hosts that connect from now on get the new version.
        if self.network.topology.epoch() != epoch {
            self.admission.snapshot = None;
        }
        Ok(self.apply_capacities(now_ns, &before))
    }

    /// Returns the result of a notification that changed `links_changed` links when
    /// `reroutes_before` flows had been rerouted since the start.
    pub fn topology_report(&self, links_changed: usize, reroutes_before: u64) -> TopologyReport {
        let rerouted = self.counts.reroutes - reroutes_before;
        TopologyReport {
            topology_epoch: u64::from(self.network.topology.epoch()),
            links_changed,
            flows_rerouted: usize::try_from(rerouted).unwrap_or(usize::MAX),
            flows_unroutable: self.flows.tallies.unroutable as usize,
        }
    }

    /// Sends the engine the new capacities of links that had the capacities in `before`, and
    /// returns the number that differ.
    ///
    /// Increases go at once, and so do decreases to a capacity that still carries flows. If a link
    /// is dead, its flows leave first, so that none stands on it while another path is usable.
    fn apply_capacities(&mut self, now_ns: u64, before: &[(LinkId, f64)]) -> usize {
        let changed: Vec<(LinkId, f64, f64)> = before
            .iter()
            .map(|&(link, was)| (link, was, self.network.capacity_of(link)))
            .filter(|(_, was, is)| was != is)
            .collect();
        let died = |is: f64| is == 0.0;
        for &(link, _, is) in &changed {
            if !died(is) {
                self.push_capacity(link);
            }
        }
        self.refresh_dummy_flows(changed.iter().map(|(link, _, _)| *link));
        // Paths depend on which links work, not on their capacities.
        if changed.iter().any(|&(_, was, is)| died(was) || died(is)) {
            let dead = changed.iter().filter(|(_, _, is)| died(*is));
            let dead: Vec<LinkId> = dead.map(|(link, _, _)| *link).collect();
            self.sweep_again(now_ns, dead);
        }
        changed.len()
    }

    /// Puts another topology in force. Sessions stay if every host in it keeps its id. Otherwise
    /// all sessions end and hosts connect again, since ids in datagrams in flight would be misread.
    ///
    /// The caller must have made an engine for this topology; see
    /// [`restart_flows`](Self::restart_flows).
    pub fn replace_topology(&mut self, now_ns: u64, mut topology: Topology) {
        // Epochs keep growing over a reload, so a host never takes a new version for an old one.
        topology.succeed(&self.network.topology);
        self.carry_members(&mut topology);
        let keeps = |name: &str, id: HostId| topology.host_by_name(name) == Some(id);
        let renumbered = self
            .network
            .topology
            .hosts()
            .iter()
            // A spare place had no flows: a host may stand there now.
            .filter(|host| host.tenure != Tenure::Spare)
            .any(|host| !keeps(&host.name, host.id));
        // Hosts say all anew.
        self.restart_link_check(now_ns);
        // Needs both topologies: link numbers differ, names of their ends do not.
        self.network
            .feeds
            .replace_topology(&self.network.topology, &topology);
        self.network.nominal_bps = nominal_bps(&topology);
        self.network.topology = topology;
        if renumbered {
            let reason = "the topology's hosts were renumbered; connect again";
            self.refuse_all(now_ns, RefusalCode::Draining, reason);
        }
        self.broadcast_topology();
        self.recount_members();
    }

    /// Returns the encoded topology for Welcomes, built at the first use.
    pub(super) fn snapshot(&mut self) -> EncodedTopology {
        let topology = &self.network.topology;
        self.admission
            .snapshot
            .get_or_insert_with(|| snapshot_of(topology).into())
            .clone()
    }

    /// Sends the present topology to all connected hosts.
    fn broadcast_topology(&mut self) {
        self.admission.snapshot = None;
        let snapshot = self.snapshot();
        for session in self.sessions.values_mut() {
            let Some(peer) = &session.peer else { continue };
            // One that was refused may have no place in this topology.
            if session.proto.is_established() {
                let access = access_of(&self.network.topology, peer.host);
                session.proto.set_access(access);
            }
            if let Err(error) = session.proto.set_topology(snapshot.clone()) {
                tracing::error!(%error, "a host cannot be told of the topology");
            }
        }
        self.mark_all_ready();
    }

    /// Hands every flow to a new engine that has none and takes links to have the capacities
    /// `known_bps`.
    ///
    /// Events that wait were meant for its predecessor and are dropped. Flows follow as
    /// [`sweep`](Self::sweep) visits them. Until then [`is_restarting`](Self::is_restarting) is
    /// true, and its rates must not be sent.
    pub fn restart_flows(&mut self, now_ns: u64, known_bps: &[f64]) {
        self.engine_events.clear();
        self.network.shared.restart(now_ns, &self.network.topology);
        // Whatever has changed is compared below.
        let shared = self.network.shared.take_changes().shared;
        self.recheck_shared(&shared);
        for link in 0..self.network.topology.links().len() {
            let id = self.network.topology.links()[link].id;
            // The engine was made from the topology alone, and notifications may have come
            // meanwhile.
            if known_bps.get(link) != Some(&self.network.engine_capacity_bps(id)) {
                self.push_capacity(id);
            }
        }
        self.restart_dummy_flows();
        self.sweep_for_new_engine();
    }
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
