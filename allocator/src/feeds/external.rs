//! External traffic (flowtune §6): traffic on links that the allocator does not schedule, as
//! operators tell it and feeds measure it.
//!
//! Traffic that takes its bytes in any case is subtracted from the link's capacity. Traffic that
//! gives way like the network's own flows becomes a dummy flow of that weight in the engine.
//!
//! All reports together cost a link at most [`FeedsConfig::external_share`] of its capacity. What
//! an operator tells holds until it expires; what feeds measure holds until they take it back.
//!
//! [`FeedsConfig::external_share`]: super::FeedsConfig::external_share

use std::collections::BTreeSet;

use arrayvec::ArrayVec;
use ratewright_topology::{LinkId, Topology};

use super::link_map::LinkMap;
use crate::engine::{EngineEvent, FlowNumber, FlowSpec, RateUpdate};

/// Class of dummy flows; every configuration has it.
const CLASS: u8 = 0;

/// External traffic of a link as an operator tells it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ToldLoad {
    /// Traffic that takes its bytes in any case, in bit/s.
    pub load_bps: u64,
    /// Weight of traffic that gives way, in flows.
    pub flows: f64,
    /// Time at which it is forgotten; `None` if never.
    pub until_ns: Option<u64>,
}

/// External traffic of a link as feeds measure it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MeasuredLoad {
    /// Traffic that takes its bytes in any case, in bit/s.
    pub load_bps: f64,
    /// Weight of traffic that gives way, in flows.
    pub flows: f64,
    /// Maximum rate that this traffic can use, in bit/s.
    pub demand_bps: f64,
}

/// External traffic of one link.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LinkTraffic {
    /// Traffic that an operator tells.
    pub told: ToldLoad,
    /// Traffic that feeds measure.
    pub measured: MeasuredLoad,
    /// Newest rate that the engine gave the dummy flow, in bit/s.
    pub granted_bps: f64,
    /// The engine has the dummy flow.
    is_allocated: bool,
}

impl LinkTraffic {
    /// Returns the traffic that takes its bytes in any case, in bit/s.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "loads are finite, not negative and far below 2^53 bit/s"
    )]
    #[must_use]
    pub fn load_bps(&self) -> u64 {
        self.told.load_bps + self.measured.load_bps as u64
    }

    /// Returns the weight of traffic that gives way, in flows.
    #[must_use]
    pub fn flows(&self) -> f64 {
        self.told.flows + self.measured.flows
    }

    fn is_empty(&self) -> bool {
        self.told.load_bps == 0
            && self.told.flows == 0.0
            && self.measured.load_bps == 0.0
            && self.measured.flows == 0.0
    }
}

/// External traffic of all links.
#[derive(Debug, Clone, PartialEq)]
pub struct ExternalTraffic {
    share: f64,
    links: LinkMap<LinkTraffic>,
    /// Newest rate that the engine gave a link's dummy flow, in bit/s; shorter than the topology if
    /// the links beyond have none.
    granted_bps: Vec<f32>,
    /// Expiry times, earliest first.
    due: BTreeSet<(u64, LinkId)>,
}

/// Capacity of a link for all flows, and the maximum of its dummy flow, in bit/s.
#[derive(Debug, Clone, Copy, PartialEq)]
struct LinkShare {
    capacity_bps: f64,
    dummy_bps: f64,
}

impl ExternalTraffic {
    /// Creates it without traffic. `share` is the maximum share of a link's capacity.
    pub(super) fn new(share: f64) -> Self {
        Self {
            share,
            links: LinkMap::default(),
            granted_bps: Vec::new(),
            due: BTreeSet::new(),
        }
    }

    pub(super) fn set_share(&mut self, share: f64) {
        self.share = share;
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "capacities are far below 2^53 bit/s"
    )]
    fn link_share(&self, topology: &Topology, link: LinkId) -> LinkShare {
        let whole_bps = topology.effective_capacity_bps(link) as f64;
        // Load and dummy flow share one bound: what the load takes of it, the dummy flow cannot.
        let max_bps = whole_bps * self.share;
        let Some(traffic) = self.links.get(link) else {
            return LinkShare {
                capacity_bps: whole_bps,
                dummy_bps: max_bps,
            };
        };
        let load_bps = (traffic.told.load_bps as f64 + traffic.measured.load_bps).min(max_bps);
        let demand_bps = if traffic.told.flows > 0.0 {
            f64::INFINITY
        } else {
            traffic.measured.demand_bps
        };
        LinkShare {
            capacity_bps: whole_bps - load_bps,
            dummy_bps: (max_bps - load_bps).min(demand_bps),
        }
    }

    /// Returns a link's capacity in bit/s for scheduled flows and the dummy flow together.
    #[must_use]
    pub fn capacity_bps(&self, topology: &Topology, link: LinkId) -> f64 {
        self.link_share(topology, link).capacity_bps
    }

    /// Returns the external traffic of a link, if there is any.
    #[must_use]
    pub fn get(&self, link: LinkId) -> Option<&LinkTraffic> {
        self.links.get(link)
    }

    /// Returns the newest rates of dummy flows by link, in bit/s; 0 for links beyond its end.
    pub(super) fn granted_bps(&self) -> &[f32] {
        &self.granted_bps
    }

    /// Returns the external traffic of the links from `from` on, in their order.
    pub fn links_from(&self, from: LinkId) -> impl Iterator<Item = (LinkId, &LinkTraffic)> {
        self.links.from(from)
    }

    /// Returns the number of links with external traffic.
    #[must_use]
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// Returns true if no link has external traffic.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Takes what an operator tells of a link, in place of what he told before.
    pub fn tell(
        &mut self,
        topology: &Topology,
        link: LinkId,
        told: ToldLoad,
        events: &mut dyn FnMut(EngineEvent),
    ) {
        let before = self
            .links
            .get(link)
            .and_then(|traffic| traffic.told.until_ns);
        if let Some(until_ns) = before {
            self.due.remove(&(until_ns, link));
        }
        self.due.extend(told.until_ns.map(|at_ns| (at_ns, link)));
        self.replace(topology, link, events, |traffic| traffic.told = told);
    }

    /// Takes what feeds measure on a link, in place of what they measured before.
    pub(super) fn measure(
        &mut self,
        topology: &Topology,
        link: LinkId,
        measured: MeasuredLoad,
        events: &mut dyn FnMut(EngineEvent),
    ) {
        self.replace(topology, link, events, |traffic| {
            traffic.measured = measured;
        });
    }

    fn replace(
        &mut self,
        topology: &Topology,
        link: LinkId,
        events: &mut dyn FnMut(EngineEvent),
        change: impl FnOnce(&mut LinkTraffic),
    ) {
        let before = self.link_share(topology, link);
        change(self.links.or_default(link));
        let capacity_bps = self.link_share(topology, link).capacity_bps;
        // Reports repeat; only a difference costs the engine an event.
        if capacity_bps != before.capacity_bps {
            events(EngineEvent::Capacity {
                link: link.0,
                capacity_bps,
            });
        }
        self.place_dummy_flow(topology, link, events);
        if self.links.get(link).is_some_and(LinkTraffic::is_empty) {
            self.links.remove(link);
        }
    }

    /// Starts, updates or ends a link's dummy flow in the engine.
    fn place_dummy_flow(
        &mut self,
        topology: &Topology,
        link: LinkId,
        events: &mut dyn FnMut(EngineEvent),
    ) {
        let share = self.link_share(topology, link);
        let Some(traffic) = self.links.get_mut(link) else {
            return;
        };
        let number = FlowNumber::of_dummy(link.0);
        let weight = traffic.told.flows + traffic.measured.flows;
        let wanted = weight > 0.0 && share.dummy_bps > 0.0;
        if wanted {
            events(EngineEvent::Start(FlowSpec {
                number,
                links: ArrayVec::from_iter([link.0]),
                class: CLASS,
                weight,
                demand_bps: share.dummy_bps,
            }));
        } else if traffic.is_allocated {
            events(EngineEvent::End(number));
            traffic.granted_bps = 0.0;
            if let Some(granted_bps) = self.granted_bps.get_mut(link.index()) {
                *granted_bps = 0.0;
            }
        }
        traffic.is_allocated = wanted;
    }

    /// Forgets what has expired. Returns the links concerned.
    pub fn expire(
        &mut self,
        now_ns: u64,
        topology: &Topology,
        events: &mut dyn FnMut(EngineEvent),
    ) -> Vec<LinkId> {
        let mut expired = Vec::new();
        while let Some(&(until_ns, link)) = self.due.first()
            && until_ns <= now_ns
        {
            self.due.pop_first();
            expired.push(link);
            self.tell(topology, link, ToldLoad::default(), events);
        }
        expired
    }

    /// Returns the time of the next [`expire`](Self::expire).
    #[must_use]
    pub fn next_expiry_ns(&self) -> Option<u64> {
        self.due.first().map(|&(until_ns, _)| until_ns)
    }

    /// Moves what operators told to the links of `after` between nodes of the same names. Links
    /// that are gone are dropped, and so are measurements, which their reporters repeat.
    pub fn move_to(&mut self, before: &Topology, after: &Topology) {
        let node = |name: &str| after.node_by_name(name);
        self.due.clear();
        self.granted_bps.clear();
        for (link, mut traffic) in self.links.take() {
            traffic.measured = MeasuredLoad::default();
            let same = before.links().get(link.index()).and_then(|link| {
                let from = node(before.node_name(link.from))?;
                let to = node(before.node_name(link.to))?;
                after.link_between(from, to)
            });
            if let Some(link) = same
                && !traffic.is_empty()
            {
                self.due
                    .extend(traffic.told.until_ns.map(|at_ns| (at_ns, link)));
                self.links.insert(link, traffic);
            }
        }
    }

    /// Updates the dummy flows of links whose capacities have changed.
    pub fn refresh(
        &mut self,
        topology: &Topology,
        links: impl IntoIterator<Item = LinkId>,
        events: &mut dyn FnMut(EngineEvent),
    ) {
        for link in links {
            self.place_dummy_flow(topology, link, events);
        }
    }

    /// Hands all dummy flows to an engine that has none.
    pub fn restart(&mut self, topology: &Topology, events: &mut dyn FnMut(EngineEvent)) {
        let links: Vec<LinkId> = self.links.links_from(LinkId(0)).collect();
        for traffic in self.links.values_mut() {
            traffic.is_allocated = false;
        }
        self.refresh(topology, links, events);
    }

    /// Takes the engine's rate, if it is that of a dummy flow. Returns false if it is a session's.
    pub fn on_rate(&mut self, update: &RateUpdate) -> bool {
        let Some(link) = update.number.dummy_link().map(LinkId) else {
            return false;
        };
        if let Some(traffic) = self.links.get_mut(link) {
            traffic.granted_bps = update.rate_bps;
            if link.index() >= self.granted_bps.len() {
                self.granted_bps.resize(link.index() + 1, 0.0);
            }
            #[allow(clippy::cast_possible_truncation, reason = "a ten-millionth is enough")]
            let granted_bps = update.rate_bps as f32;
            self.granted_bps[link.index()] = granted_bps;
        }
        true
    }
}
