//! Survey of all flows in slices: the loads of the links and the flows with the largest rates.
//!
//! Loads are sums of the rates that hosts were told. A survey that goes on across events is as
//! inexact as these are large.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ratewright_topology::{Direction, HostId, Node, Rack, Tenure, Topology};

use super::report::link_name;
use super::{Hub, Network};
use crate::service::overview::{
    FlowView, LinkView, MAX_BUSIEST, MAX_LINKS, MAX_NAMES, MAX_RACKS, Overview, RackView,
};

/// Slots that cost as much as entering a session.
const SESSION_COST: u32 = 8;

/// A survey under way, or over.
#[derive(Debug, Default)]
pub struct LinkSurvey {
    /// Sum of the rates by link, in bit/s.
    loads_bps: Vec<f64>,
    /// Flows by link.
    flows: Vec<u32>,
    /// Hosts with a session.
    present: Vec<bool>,
    /// The largest flows so far: rate, session, host and flow.
    largest: BinaryHeap<Reverse<(u64, FlowPlace)>>,
    /// Number of flows to keep.
    top: usize,
    /// Keeps flows over this link only.
    over: Option<u32>,
    sessions: Vec<u32>,
    /// Session and slot at which the survey continues.
    session: usize,
    slot: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FlowPlace {
    from: HostId,
    to: u32,
    flow: u32,
    class: u8,
}

impl LinkSurvey {
    /// Begins a survey that keeps the `top` largest flows, of all or of those over one link.
    pub fn begin(hub: &Hub, top: usize, over: Option<u32>) -> Self {
        Self {
            loads_bps: vec![0.0; hub.network.topology.links().len()],
            flows: vec![0; hub.network.topology.links().len()],
            present: vec![false; hub.network.topology.hosts().len()],
            top,
            over,
            sessions: hub.session_ids(),
            ..Self::default()
        }
    }

    /// Visits about `max` further slots of flow tables. True if more remain.
    #[allow(clippy::cast_precision_loss, reason = "rates are far below 2^53 bit/s")]
    pub fn advance(&mut self, hub: &Hub, max: u32) -> bool {
        let mut left = max;
        while left > 0 {
            let Some(&id) = self.sessions.get(self.session) else {
                return false;
            };
            left = left.saturating_sub(SESSION_COST);
            let accepted = hub.sessions.get(id).filter(|s| s.closing.is_none());
            let Some((session, peer)) = accepted.and_then(|s| Some((s, s.peer.as_ref()?))) else {
                (self.session, self.slot) = (self.session + 1, 0);
                continue;
            };
            if let Some(present) = self.present.get_mut(peer.host.index()) {
                *present = true;
            }
            let end = session.proto.slots();
            let until = end.min(self.slot.saturating_add(left.max(1)));
            for (record, rate_bps) in session.proto.flows_on(self.slot..until) {
                if rate_bps == 0 {
                    continue;
                }
                let path = session.flows.path(record.flow().slot());
                for &link in path {
                    // A topology that came during the survey may have fewer links.
                    if let Some(load) = self.loads_bps.get_mut(link as usize) {
                        *load += rate_bps as f64;
                        self.flows[link as usize] += 1;
                    }
                }
                if self.over.is_none_or(|link| path.contains(&link)) {
                    let place = FlowPlace {
                        from: peer.host,
                        to: record.dst_host(),
                        flow: record.flow().0,
                        class: record.class(),
                    };
                    self.keep(rate_bps, place);
                }
            }
            left = left.saturating_sub(until.saturating_sub(self.slot));
            if until < end {
                self.slot = until;
            } else {
                (self.session, self.slot) = (self.session + 1, 0);
            }
        }
        self.session < self.sessions.len()
    }

    /// Returns the largest flows of a survey, the largest first.
    pub fn largest_flows(&self, topology: &Topology) -> Vec<FlowView> {
        let mut largest: Vec<_> = self.largest.iter().map(|&Reverse(flow)| flow).collect();
        largest.sort_unstable_by_key(|&flow| Reverse(flow));
        let name = |host: u32| {
            let host = topology.hosts().get(host as usize);
            host.map_or_else(String::new, |host| host.name.clone())
        };
        let view = |(rate_bps, place): (u64, FlowPlace)| FlowView {
            from: name(place.from.0),
            to: name(place.to),
            flow: place.flow,
            class: place.class,
            rate_bps,
        };
        largest.into_iter().map(view).collect()
    }

    /// Returns a link of a survey; `None` if the topology has no such link.
    pub fn link_view(&self, network: &Network, link: u32) -> Option<LinkView> {
        let id = network.topology.links().get(link as usize)?.id;
        Some(LinkView {
            id: link,
            name: link_name(&network.topology, id),
            load_bps: *self.loads_bps.get(link as usize)?,
            capacity_bps: network.capacity_of(id),
            flows: *self.flows.get(link as usize)?,
        })
    }

    /// Fills in what a survey knows.
    pub fn fill_overview(&self, network: &Network, overview: &mut Overview) {
        overview.top_flows = self.largest_flows(&network.topology);
        overview.hosts_missing = (network.topology.hosts().iter().zip(&self.present))
            .filter(|&(host, &present)| !present && host.tenure != Tenure::Spare)
            .take(MAX_NAMES)
            .map(|(host, _)| host.name.clone())
            .collect();
        let mut used: Vec<(u32, f64)> = network
            .topology
            .links()
            .iter()
            .zip(&self.loads_bps)
            .filter(|&(_, &load_bps)| load_bps > 0.0)
            .map(|(link, &load_bps)| (link.id.0, network.utilisation(link.id, load_bps)))
            .collect();
        overview.racks = self.rack_views(network, &used);
        used.sort_unstable_by(|a, b| b.1.total_cmp(&a.1));
        used.truncate(MAX_LINKS);
        overview.busiest = (used.iter().take(MAX_BUSIEST))
            .filter_map(|&(link, _)| self.link_view(network, link))
            .collect();
        overview.links = used;
    }

    fn rack_views(&self, network: &Network, used: &[(u32, f64)]) -> Vec<RackView> {
        let present = |hosts: std::ops::Range<u32>| {
            let of_rack = self.present.get(hosts.start as usize..hosts.end as usize);
            of_rack.map_or(0, |of_rack| of_rack.iter().filter(|&&here| here).count())
        };
        let hosts = |rack: &Rack| {
            let places = rack
                .host_ids()
                .map(|id| network.topology.hosts()[id.index()].tenure);
            let hosts = places.filter(|&tenure| tenure != Tenure::Spare).count();
            u32::try_from(hosts).unwrap_or(u32::MAX)
        };
        let mut views: Vec<RackView> = network
            .topology
            .racks()
            .iter()
            .take(MAX_RACKS)
            .map(|rack| RackView {
                id: rack.id.0,
                name: rack.name.clone(),
                hosts: hosts(rack),
                sessions: u32::try_from(present(rack.hosts.clone())).unwrap_or(u32::MAX),
                ..RackView::default()
            })
            .collect();
        for &(link, utilisation) in used {
            let Some(link) = network.topology.links().get(link as usize) else {
                continue;
            };
            let lower = match link.direction {
                Direction::Up => link.from,
                Direction::Down => link.to,
            };
            let rack = match lower {
                Node::Host(host) => network.topology.hosts().get(host.index()).map(|h| h.rack),
                Node::Switch(switch) => {
                    let switch = network.topology.switches().get(switch.index());
                    switch.and_then(|switch| switch.rack)
                }
            };
            let Some(view) = rack.and_then(|rack| views.get_mut(rack.index())) else {
                continue;
            };
            let largest = match (link.level, link.direction) {
                (1, Direction::Up) => &mut view.up,
                (1, Direction::Down) => &mut view.down,
                _ => &mut view.fabric,
            };
            *largest = largest.max(utilisation);
        }
        views
    }

    fn keep(&mut self, rate_bps: u64, place: FlowPlace) {
        self.largest.push(Reverse((rate_bps, place)));
        if self.largest.len() > self.top {
            self.largest.pop();
        }
    }
}
