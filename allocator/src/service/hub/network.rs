//! The network changes: links and switches fail and come back (flowtune §6), or another topology is loaded.

use std::sync::Arc;

use ratewright_proto::control::{HostInfo, RefusalCode, TopologySnapshot};
use ratewright_topology::{HostId, Link, LinkId, Node, Topology};

use crate::engine::{EngineEvent, FlowKey};
use crate::service::command::{
    LinkChange, SwitchChange, TopologyChange, TopologyChangeError, TopologyReport,
};

use super::Hub;
use super::session::{Flow, LeftAlone, Place};

/// The least capacity that a notification may set: what the smallest rate code can express.
const MIN_CAPACITY_BPS: u64 = 1_000;

impl Hub {
    /// The topology as it is now.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// What every link has for flows now, in bit/s, by link index.
    pub fn capacities_bps(&self) -> Vec<f64> {
        self.capacities_with_share(self.settings.external_share)
    }

    /// The same, if external traffic may take this share at most.
    pub fn capacities_with_share(&self, external_share: f64) -> Vec<f64> {
        let of_link = |link: &Link| {
            self.external
                .capacity_bps(&self.topology, link.id, external_share)
        };
        self.topology.links().iter().map(of_link).collect()
    }

    /// Carries out a notification of a failure, a repair or another capacity.
    ///
    /// # Errors
    /// The notification names something that is not there. Nothing has changed.
    pub fn change_topology(
        &mut self,
        now_ns: u64,
        change: &TopologyChange,
    ) -> Result<TopologyReport, TopologyChangeError> {
        let before = self.topology.clone();
        match change {
            TopologyChange::Link(link) => self.change_link(link)?,
            TopologyChange::Switch(SwitchChange { name, up }) => {
                let switch = self
                    .topology
                    .switch_by_name(name)
                    .ok_or_else(|| TopologyChangeError::UnknownSwitch(name.clone()))?;
                self.topology.set_switch_up(switch, *up);
            }
        }
        Ok(self.follow(now_ns, &before))
    }

    fn change_link(&mut self, change: &LinkChange) -> Result<(), TopologyChangeError> {
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
        for link in links {
            if let Some(up) = change.up {
                self.topology.set_link_up(link, up);
            }
            if let Some(capacity) = change.capacity_bps {
                self.topology.set_capacity_bps(link, capacity);
            }
        }
        Ok(())
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

    /// Tells the engine what differs from the topology `before`, which has the same links: first
    /// what became more, then the flows' new paths, then what became less, so that no flow stands
    /// on a dead link while there is a way around it.
    fn follow(&mut self, now_ns: u64, before: &Topology) -> TopologyReport {
        let share = self.settings.external_share;
        let capacity_bps =
            |topology: &Topology, link| self.external.capacity_bps(topology, link, share);
        let changed: Vec<(LinkId, f64, f64)> = self
            .topology
            .links()
            .iter()
            .map(|link| {
                (
                    link.id,
                    capacity_bps(before, link.id),
                    capacity_bps(&self.topology, link.id),
                )
            })
            .filter(|(_, was, is)| was != is)
            .collect();
        // Hosts on the line need no word of it: what they were told, the hosts and how flows are
        // hashed, is the same. Those that connect from now on learn the new version.
        self.snapshot = snapshot_of(&self.topology).into();
        let event = |&(link, _, capacity_bps): &(LinkId, f64, f64)| EngineEvent::Capacity {
            link: link.0,
            capacity_bps,
        };
        self.engine_events
            .extend(changed.iter().filter(|(_, was, is)| is > was).map(event));
        let flows_rerouted = if changed.is_empty() {
            0
        } else {
            self.reroute(now_ns, before)
        };
        self.engine_events
            .extend(changed.iter().filter(|(_, was, is)| is < was).map(event));
        self.renew_dummies(changed.iter().map(|(link, _, _)| *link));
        TopologyReport {
            topology_epoch: u64::from(self.topology.epoch()),
            links_changed: changed.len(),
            flows_rerouted,
            flows_unroutable: self.left_alone_for(LeftAlone::Unroutable),
        }
    }

    /// Finds every flow's path anew. Returns how many take another one.
    fn reroute(&mut self, now_ns: u64, before: &Topology) -> usize {
        let mut rerouted = 0;
        self.for_each_flow(|hub, id, source, flow| {
            let old = super::flows::links(before, source, &flow.record);
            match (
                flow.place,
                super::flows::links(&hub.topology, source, &flow.record),
            ) {
                (Place::Engine, Ok(links)) => {
                    if old.as_ref() != Ok(&links) {
                        rerouted += 1;
                        let key = FlowKey::new(id, flow.id().0);
                        hub.engine_events
                            .push_back(EngineEvent::Reroute { key, links });
                    }
                    Place::Engine
                }
                _ => hub.place(now_ns, id, &flow.record),
            }
        });
        self.counts.reroutes += rerouted as u64;
        rerouted
    }

    /// Visits every flow of every accepted session; the visitor decides where it stands from now on.
    fn for_each_flow(&mut self, mut visit: impl FnMut(&mut Self, u32, HostId, Flow) -> Place) {
        for at in 0..self.sessions.len() {
            let mut from = 0;
            // Neither sessions nor flows are added or removed on the way, so indices hold.
            while let Some((&id, session)) = self.sessions.get_index(at)
                && let Some(peer) = &session.peer
                && let Some(slot) = session.flows.next_slot(from)
                && let Some(&flow) = session.flows.get(slot)
            {
                let place = visit(self, id, peer.host, flow);
                if let Some(flow) = self.sessions[at].flows.get_mut(slot) {
                    flow.place = place;
                }
                from = slot + 1;
            }
        }
    }

    /// Puts another topology in force. Sessions stay, if every connected host keeps its id; else
    /// ids in datagrams on their way would be misread, so all sessions end and hosts connect anew.
    pub fn replace_topology(&mut self, now_ns: u64, mut topology: Topology) {
        topology.succeed(&self.topology);
        let keeps = |name: &str, id: HostId| topology.host_by_name(name) == Some(id);
        let renumbered = self
            .topology
            .hosts()
            .iter()
            .any(|host| !keeps(&host.name, host.id));
        self.external.move_to(&self.topology, &topology);
        self.topology = topology;
        self.engine_events.clear();
        self.engine_events.push_back(EngineEvent::Reset {
            capacities: self.capacities_bps(),
            topology: Some(Arc::new(self.topology.clone())),
        });
        if renumbered {
            let reason = "the topology's hosts were renumbered; connect again";
            self.refuse_all(now_ns, RefusalCode::Draining, reason);
        }
        self.tell_hosts();
        self.restart_flows(now_ns);
    }

    /// Renews what hosts are told of the topology, and tells those that are connected.
    fn tell_hosts(&mut self) {
        self.snapshot = snapshot_of(&self.topology).into();
        for session in self
            .sessions
            .values_mut()
            .filter(|session| session.peer.is_some())
        {
            if let Err(error) = session.proto.set_topology(self.snapshot.clone()) {
                tracing::error!(%error, "a host cannot be told of the topology");
            }
        }
        self.touch_all();
    }

    /// Hands every flow to an engine that knows none.
    pub fn restart_flows(&mut self, now_ns: u64) {
        self.restart_dummies();
        self.for_each_flow(|hub, id, _, flow| hub.place(now_ns, id, &flow.record));
    }

    fn left_alone_for(&self, reason: LeftAlone) -> usize {
        self.sessions
            .values()
            .flat_map(|session| session.flows.values())
            .filter(|flow| flow.place == Place::Alone(reason))
            .count()
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
    }
}
