//! Topology: the whole network, and the changes of its state.

use std::net::IpAddr;

use indexmap::IndexMap;

use crate::ecmp::EcmpConfig;
use crate::flow_caps::{FlowCaps, HostGroup};
use crate::frames::{Frames, WITHOUT_FRAMES};
use crate::ids::{HostId, LinkId, RackId, SwitchId};
use crate::lookup::PrefixTable;
use crate::model::{Host, Link, Node, Rack, Switch, Tenure, TopologyKind};
use crate::parameters::Parameters;
use crate::shape::Shape;
use crate::units::MAX_CAPACITY_BPS;

/// Network of hosts, switches and directed links, with its version.
///
/// Ids are indices: `links()[id.index()].id == id`, and likewise for hosts, racks and switches. The
/// set of places for hosts and of links never changes. Their state does, and so do the holders of
/// spare places; each change raises [`epoch`](Self::epoch).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    pub(crate) parameters: Parameters,
    pub(crate) shape: Shape,
    pub(crate) epoch: u32,
    /// A host's prefix may stand inside another host's.
    pub(crate) nested_prefixes: bool,
    pub(crate) frames: Option<Frames>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) racks: Vec<Rack>,
    pub(crate) switches: Vec<Switch>,
    pub(crate) links: Vec<Link>,
    pub(crate) flow_caps: FlowCaps,
    pub(crate) names: IndexMap<String, Node>,
    pub(crate) prefixes: PrefixTable,
    /// By link: the link and the switches at its ends are up.
    usable: Vec<bool>,
    unusable: usize,
}

impl Topology {
    pub(crate) fn assemble(
        parameters: Parameters,
        shape: Shape,
        hosts: Vec<Host>,
        racks: Vec<Rack>,
        switches: Vec<Switch>,
        links: Vec<Link>,
    ) -> Self {
        // A new network is whole; `refresh` computes this again from the links and switches.
        let usable = vec![true; links.len()];
        let mut topology = Self {
            parameters,
            shape,
            epoch: 1,
            nested_prefixes: false,
            frames: None,
            hosts,
            racks,
            switches,
            links,
            flow_caps: FlowCaps::default(),
            names: IndexMap::new(),
            prefixes: PrefixTable::default(),
            usable,
            unusable: 0,
        };
        topology.refresh();
        topology
    }

    /// Rebuilds the derived tables from hosts, switches and links.
    pub(crate) fn refresh(&mut self) {
        // Hosts before switches: `check_names` has made sure that no name is used twice.
        self.names = self
            .hosts
            .iter()
            .map(|h| (h.name.clone(), Node::Host(h.id)))
            .chain(
                self.switches
                    .iter()
                    .map(|s| (s.name.clone(), Node::Switch(s.id))),
            )
            .collect();
        self.prefixes = PrefixTable::new(&self.hosts);
        self.refresh_usable();
    }

    fn refresh_usable(&mut self) {
        let end_up = |node: Node| match node {
            Node::Host(_) => true,
            Node::Switch(id) => self.switches[id.index()].up,
        };
        self.usable = self
            .links
            .iter()
            // A failed switch takes its links along, but keeps their own state for its repair.
            .map(|l| l.up && end_up(l.from) && end_up(l.to))
            .collect();
        // Counted here, so that `is_whole` is free on the path of every flow.
        self.unusable = self.usable.iter().filter(|u| !**u).count();
    }

    /// The version: 1 when built, raised by every change.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Makes this topology the successor of `previous`, which it replaces in a running service:
    /// its epoch will be higher than any that the previous one had.
    pub fn succeed(&mut self, previous: &Self) {
        // A reload must not present a version that the running topology had already.
        self.epoch = self.epoch.max(previous.epoch.wrapping_add(1));
    }

    /// The family of the network.
    #[must_use]
    pub fn kind(&self) -> TopologyKind {
        self.parameters.kind()
    }

    /// Parameters that the network was built from.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// All places for hosts, spare ones included; the index is the id.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// All racks; the index is the id.
    #[must_use]
    pub fn racks(&self) -> &[Rack] {
        &self.racks
    }

    /// All switches; the index is the id.
    #[must_use]
    pub fn switches(&self) -> &[Switch] {
        &self.switches
    }

    /// All directed links; the index is the id.
    #[must_use]
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The number of pods; 1 where the topology has none.
    #[must_use]
    pub fn pods(&self) -> u32 {
        self.shape.pods
    }

    /// The host of this name; a spare place is none.
    #[must_use]
    pub fn host_by_name(&self, name: &str) -> Option<HostId> {
        match self.node_by_name(name) {
            Some(Node::Host(id)) => (self.hosts[id.index()].tenure != Tenure::Spare).then_some(id),
            _ => None,
        }
    }

    /// The switch of this name.
    #[must_use]
    pub fn switch_by_name(&self, name: &str) -> Option<SwitchId> {
        match self.node_by_name(name) {
            Some(Node::Switch(id)) => Some(id),
            _ => None,
        }
    }

    /// The rack of this name.
    #[must_use]
    pub fn rack_by_name(&self, name: &str) -> Option<RackId> {
        self.racks.iter().find(|r| r.name == name).map(|r| r.id)
    }

    /// The host or switch of this name; hosts and switches share one name space.
    #[must_use]
    pub fn node_by_name(&self, name: &str) -> Option<Node> {
        self.names.get(name).copied()
    }

    /// The name of a host or switch.
    ///
    /// # Panics
    /// If the id is of another topology.
    #[must_use]
    pub fn node_name(&self, node: Node) -> &str {
        match node {
            Node::Host(id) => &self.hosts[id.index()].name,
            Node::Switch(id) => &self.switches[id.index()].name,
        }
    }

    /// The host whose prefix covers the address; the longest wins. An IPv4-mapped IPv6 address
    /// counts as IPv4.
    #[must_use]
    pub fn host_by_addr(&self, address: IpAddr) -> Option<HostId> {
        self.prefixes.get(address)
    }

    /// The link from one node to another.
    #[must_use]
    pub fn link_between(&self, from: Node, to: Node) -> Option<LinkId> {
        self.links
            .iter()
            .find(|l| l.from == from && l.to == to)
            .map(|l| l.id)
    }

    /// Link of the other direction of a cable.
    #[must_use]
    pub fn reverse_link(&self, link: LinkId) -> LinkId {
        self.shape.reverse(link)
    }

    /// Uplink of a host.
    #[must_use]
    pub fn host_uplink(&self, host: HostId) -> LinkId {
        self.shape.host_up(host)
    }

    /// Downlink of a host.
    #[must_use]
    pub fn host_downlink(&self, host: HostId) -> LinkId {
        self.shape.host_down(host)
    }

    /// Most that a single flow between two hosts may have, in bit/s; `None` without such a bound.
    /// It is the largest of the [groups](Self::groups) that hold both, else the one of the whole
    /// network. Takes time in the number of the hosts' groups, which is bounded.
    #[must_use]
    pub fn max_flow_bps(&self, from: HostId, to: HostId) -> Option<u64> {
        self.flow_caps.between(from, to)
    }

    /// Most that a single flow may have between hosts that no group holds both, in bit/s.
    #[must_use]
    pub fn default_max_flow_bps(&self) -> Option<u64> {
        self.flow_caps.max_flow_bps
    }

    /// Groups of hosts with a bound of their own for a single flow.
    #[must_use]
    pub fn groups(&self) -> &[HostGroup] {
        &self.flow_caps.groups
    }

    /// ECMP settings of the network.
    #[must_use]
    pub fn ecmp(&self) -> EcmpConfig {
        self.parameters.ecmp()
    }

    /// Frames of the network, if they were given: capacities are then line rates.
    #[must_use]
    pub fn frames(&self) -> Option<Frames> {
        self.frames
    }

    /// Returns a note for whoever reads the file, if its capacities are not line rates.
    #[must_use]
    pub fn note(&self) -> Option<&'static str> {
        self.frames.is_none().then_some(WITHOUT_FRAMES)
    }

    /// Takes all capacities as line rates of links with these frames.
    #[must_use]
    pub fn with_frames(mut self, frames: Frames) -> Self {
        self.frames = Some(frames);
        for link in &mut self.links {
            link.carry(link.line_rate_bps, frames.of_level(link.level));
        }
        self
    }

    /// Present capacity of a link: 0 if it or a switch at its end is down, or if there is no such
    /// link.
    #[must_use]
    pub fn effective_capacity_bps(&self, link: LinkId) -> u64 {
        if self.is_usable(link) {
            self.links[link.index()].capacity_bps
        } else {
            0
        }
    }

    /// Returns true if the link and the switches at its ends are up; false if there is no such
    /// link.
    #[must_use]
    pub fn is_usable(&self, link: LinkId) -> bool {
        self.usable.get(link.index()).copied().unwrap_or(false)
    }

    /// Returns true if all links and switches are up.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.unusable == 0
    }

    /// Fails or repairs a link. Returns true, and raises the epoch, if that changed its state.
    /// Returns false if the link was in that state already or does not exist.
    pub fn set_link_up(&mut self, link: LinkId, up: bool) -> bool {
        let changed = self
            .links
            .get_mut(link.index())
            .is_some_and(|l| std::mem::replace(&mut l.up, up) != up);
        self.changed(changed)
    }

    /// Fails or repairs a switch, and with it all its links. Returns true, and raises the epoch, if
    /// that changed its state. Returns false if the switch was in that state already or does not
    /// exist.
    pub fn set_switch_up(&mut self, switch: SwitchId, up: bool) -> bool {
        let changed = self
            .switches
            .get_mut(switch.index())
            .is_some_and(|s| std::mem::replace(&mut s.up, up) != up);
        self.changed(changed)
    }

    /// Changes the capacity of a link, which is a line rate where [frames](Self::frames) are given.
    /// Returns true, and raises the epoch, if that changed it. Returns false if the link had that
    /// capacity already or does not exist, or if the capacity is 0 (such a link has
    /// [failed](Self::set_link_up)) or above [`MAX_CAPACITY_BPS`].
    pub fn set_capacity_bps(&mut self, link: LinkId, capacity_bps: u64) -> bool {
        // The bound of the file format holds here too, so that a written network reads back.
        let valid = (1..=MAX_CAPACITY_BPS).contains(&capacity_bps);
        let changed = valid
            && self.links.get_mut(link.index()).is_some_and(|l| {
                let changed = l.line_rate_bps != capacity_bps;
                l.carry(capacity_bps, l.frame);
                changed
            });
        self.changed(changed)
    }

    fn changed(&mut self, changed: bool) -> bool {
        if changed {
            // Only real changes get here: a repeated failure must not reach clients as a change.
            self.epoch = self.epoch.wrapping_add(1);
            self.refresh_usable();
        }
        changed
    }
}
