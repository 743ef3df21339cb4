//! The network changes: links and switches fail and come back (flowtune §6), or another topology is loaded.

use ratewright_proto::control::{EncodedTopology, HostInfo, RefusalCode, TopologySnapshot};
use ratewright_topology::{HostId, Link, LinkId, Node, Topology};

use crate::service::admin_request::{
    LinkChange, SwitchChange, TopologyChange, TopologyChangeError, TopologyReport,
};

use super::Hub;

/// The least capacity that a notification may set: what the smallest rate code can express.
const MIN_CAPACITY_BPS: u64 = 1_000;

/// A notification sets no capacity below this part of what the topology file says, unless it is forced to.
const FLOOR_DIVISOR: u64 = 100;

/// What links can carry by their topology's file, by link index.
pub(super) fn nominal_bps(topology: &Topology) -> Vec<u64> {
    let links = topology.links().iter();
    links.map(|link| link.capacity_bps).collect()
}

impl Hub {
    /// The topology as it is now.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// What every link has for flows now, in bit/s, by link index.
    pub fn capacities_bps(&self) -> Vec<f64> {
        let of_link = |link: &Link| self.capacity_of(link.id);
        self.topology.links().iter().map(of_link).collect()
    }

    /// What a link has for flows now, in bit/s.
    pub(super) fn capacity_of(&self, link: LinkId) -> f64 {
        self.external
            .capacity_bps(&self.topology, link, self.settings.external_share)
    }

    /// Carries out a notification of a failure, a repair or another capacity. Returns how many links have
    /// another capacity now. Flows take their new paths as [`sweep`](Self::sweep) is done;
    /// [`topology_report`](Self::topology_report) says what came of it then.
    ///
    /// # Errors
    /// The notification names something that is not there. Nothing has changed.
    pub fn change_topology(
        &mut self,
        now_ns: u64,
        change: &TopologyChange,
    ) -> Result<usize, TopologyChangeError> {
        let before: Vec<(LinkId, f64)> = self
            .links_of(change)?
            .into_iter()
            .map(|link| (link, self.capacity_of(link)))
            .collect();
        let epoch = self.topology.epoch();
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
        // Hosts on the line need no word of it: what they were told, the hosts and how flows are
        // hashed, is the same. Those that connect from now on learn the new version.
        if self.topology.epoch() != epoch {
            self.snapshot = None;
        }
        Ok(self.apply_capacities(now_ns, &before))
    }

    /// What came of a notification, when this many links had changed and this many flows had been rerouted before.
    pub fn topology_report(&self, links_changed: usize, reroutes_before: u64) -> TopologyReport {
        let rerouted = self.counts.reroutes - reroutes_before;
        TopologyReport {
            topology_epoch: u64::from(self.topology.epoch()),
            links_changed,
            flows_rerouted: usize::try_from(rerouted).unwrap_or(usize::MAX),
            flows_unroutable: self.tallies.unroutable as usize,
        }
    }

    /// The links that a notification is about, if it makes sense.
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

    /// The link between two nodes, by their names.
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

    /// Tells the engine what these links have that had this much `before`: at once what became more, and what
    /// became less but still carries flows. If a link carries nothing any more, flows go first, so that none
    /// stands on a dead link while there is a way around it. Returns how many differ.
    fn apply_capacities(&mut self, now_ns: u64, before: &[(LinkId, f64)]) -> usize {
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
        // Which links work decides on paths; what they carry does not.
        if changed.iter().any(|&(_, was, is)| died(was) || died(is)) {
            let dead = changed.iter().filter(|(_, _, is)| died(*is));
            let dead: Vec<LinkId> = dead.map(|(link, _, _)| *link).collect();
            self.sweep_again(now_ns, dead);
        }
        changed.len()
    }

    /// Puts another topology in force. Sessions stay, if every connected host keeps its id; else
    /// ids in datagrams on their way would be misread, so all sessions end and hosts connect anew.
    /// The engine is expected to be a new one, made for this topology; see
    /// [`restart_flows`](Self::restart_flows).
    pub fn replace_topology(&mut self, now_ns: u64, mut topology: Topology) {
        topology.succeed(&self.topology);
        let keeps = |name: &str, id: HostId| topology.host_by_name(name) == Some(id);
        let renumbered = self
            .topology
            .hosts()
            .iter()
            .any(|host| !keeps(&host.name, host.id));
        self.external.move_to(&self.topology, &topology);
        self.nominal_bps = nominal_bps(&topology);
        self.topology = topology;
        if renumbered {
            let reason = "the topology's hosts were renumbered; connect again";
            self.refuse_all(now_ns, RefusalCode::Draining, reason);
        }
        self.broadcast_topology();
    }

    /// What hosts are told of the topology, made when the first one needs it.
    pub(super) fn snapshot(&mut self) -> EncodedTopology {
        let topology = &self.topology;
        self.snapshot
            .get_or_insert_with(|| snapshot_of(topology).into())
            .clone()
    }

    /// Renews what hosts are told of the topology, and tells those that are connected.
    fn broadcast_topology(&mut self) {
        self.snapshot = None;
        let snapshot = self.snapshot();
        for session in self
            .sessions
            .values_mut()
            .filter(|session| session.peer.is_some())
        {
            if let Err(error) = session.proto.set_topology(snapshot.clone()) {
                tracing::error!(%error, "a host cannot be told of the topology");
            }
        }
        self.mark_all_ready();
    }

    /// Hands every flow to an engine that knows none, and that links have these capacities. What waited was
    /// meant for the one before it. Flows go as [`sweep`](Self::sweep) is done; until then
    /// [`is_restarting`](Self::is_restarting), and what is told is not to be acted on.
    pub fn restart_flows(&mut self, known_bps: &[f64]) {
        self.engine_events.clear();
        for link in 0..self.topology.links().len() {
            let id = self.topology.links()[link].id;
            if known_bps.get(link) != Some(&self.capacity_of(id)) {
                self.push_capacity(id);
            }
        }
        self.restart_dummy_flows();
        self.sweep_for_new_engine();
    }
}

/// What every link of a topology can carry, in bit/s, by link index.
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

pub(super) fn snapshot_of(topology: &Topology) -> TopologySnapshot {
    TopologySnapshot {
        version: topology.epoch(),
        ecmp_seed: topology.ecmp().seed,
        ecmp_symmetric: topology.ecmp().symmetric,
        hosts: topology
            .hosts()
            .iter()
            .map(|host| HostInfo {
                id: host.id.0,
                name: host.name.clone(),
                prefixes: host.prefixes.clone(),
            })
            .collect(),
        ..TopologySnapshot::default()
    }
}
