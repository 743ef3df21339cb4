//! External traffic (flowtune §6): traffic on links that the allocator does not schedule, as feeds
//! report it.
//!
//! Traffic that takes its bytes in any case is subtracted from the link's capacity. Traffic that
//! gives way like the network's own flows becomes a dummy flow of that weight in the engine.
//!
//! A report costs a link at most [`external_share`](super::HubSettings::external_share) of its
//! capacity, and only until it expires. A feed that is wrong or has died does bounded harm.

use std::collections::{BTreeMap, BTreeSet};

use arrayvec::ArrayVec;
use ratewright_topology::{LinkId, Topology};

use crate::engine::{EngineEvent, FlowKey, FlowSpec};
use crate::service::admin_request::{ExternalLoad, ExternalLoadReport, TopologyChangeError};
use crate::service::status::ExternalStatus;

use super::Hub;
use super::report::link_name;

/// Session number of dummy flows, which no host has.
pub(super) const EXTERNAL_SESSION: u32 = 0;

/// Class of dummy flows; every configuration has it.
const CLASS: u8 = 0;

/// Maximum weight of a link's dummy flow, in flows.
const MAX_FLOWS: f64 = 1e6;

/// Maximum lifetime of a report, in milliseconds: a day.
const MAX_DURATION_MS: u64 = 86_400_000;

/// Newest report about one link.
#[derive(Debug, Clone, PartialEq)]
struct ReportedLoad {
    load_bps: u64,
    flows: f64,
    until_ns: Option<u64>,
    /// The engine has the dummy flow.
    is_allocated: bool,
    /// Newest rate that the engine gave it, in bit/s.
    granted_bps: f64,
}

/// Newest reports about all links.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ExternalLoads {
    links: BTreeMap<LinkId, ReportedLoad>,
    /// Expiry times, earliest first: every batch of datagrams reads the first one.
    due: BTreeSet<(u64, LinkId)>,
}

/// Capacity of a link for all flows, and the maximum of its dummy flow, in bit/s.
#[derive(Debug, Clone, Copy, PartialEq)]
struct LinkShare {
    capacity_bps: f64,
    dummy_bps: f64,
}

impl ExternalLoads {
    /// Returns the reported traffic of a link and the rate that the allocation leaves to it, in
    /// bit/s.
    pub(super) fn reported(&self, link: LinkId) -> Option<(u64, f64)> {
        let load = self.links.get(&link)?;
        Some((load.load_bps, load.granted_bps))
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "capacities are far below 2^53 bit/s"
    )]
    fn link_share(&self, topology: &Topology, link: LinkId, share: f64) -> LinkShare {
        let whole_bps = topology.effective_capacity_bps(link) as f64;
        // Load and dummy flow share one bound: what the load takes of it, the dummy flow cannot.
        let max_bps = whole_bps * share;
        let load_bps = self
            .links
            .get(&link)
            .map_or(0.0, |load| (load.load_bps as f64).min(max_bps));
        LinkShare {
            capacity_bps: whole_bps - load_bps,
            dummy_bps: max_bps - load_bps,
        }
    }

    /// Returns a link's capacity in bit/s for scheduled flows and the dummy flow together.
    pub(super) fn capacity_bps(&self, topology: &Topology, link: LinkId, share: f64) -> f64 {
        self.link_share(topology, link, share).capacity_bps
    }

    /// Moves the reports to the links of `after` between nodes of the same names. Reports about
    /// links that are gone are dropped.
    pub(super) fn move_to(&mut self, before: &Topology, after: &Topology) {
        let node = |name: &str| after.node_by_name(name);
        let known = std::mem::take(self);
        for (link, load) in known.links {
            let same = before.links().get(link.index()).and_then(|link| {
                let from = node(before.node_name(link.from))?;
                let to = node(before.node_name(link.to))?;
                after.link_between(from, to)
            });
            if let Some(link) = same {
                self.insert(link, load);
            }
        }
    }

    fn insert(&mut self, link: LinkId, load: ReportedLoad) {
        self.remove(link);
        self.due.extend(load.until_ns.map(|at_ns| (at_ns, link)));
        self.links.insert(link, load);
    }

    fn remove(&mut self, link: LinkId) {
        if let Some(before) = self.links.remove(&link)
            && let Some(until_ns) = before.until_ns
        {
            self.due.remove(&(until_ns, link));
        }
    }

    /// Number of links with a report.
    pub(super) fn len(&self) -> usize {
        self.links.len()
    }
}

impl Hub {
    /// Takes a report about a link's external traffic, which replaces the former one.
    ///
    /// # Errors
    /// The report names a link that does not exist or has an invalid value. Nothing has changed.
    pub fn set_external_load(
        &mut self,
        now_ns: u64,
        report: &ExternalLoad,
    ) -> Result<ExternalLoadReport, TopologyChangeError> {
        if report.load_bps > ratewright_topology::units::MAX_CAPACITY_BPS {
            return Err(TopologyChangeError::Load(report.load_bps));
        }
        if !(0.0..=MAX_FLOWS).contains(&report.flows) {
            return Err(TopologyChangeError::Flows(report.flows.to_string()));
        }
        if let Some(ms) = report
            .for_ms
            .filter(|ms| !(1..=MAX_DURATION_MS).contains(ms))
        {
            return Err(TopologyChangeError::Duration(ms));
        }
        let link = self.link_named(&report.from, &report.to)?;
        // The engine may have the dummy flow of the report before, which this one then updates.
        let is_allocated = self
            .external
            .links
            .get(&link)
            .is_some_and(|before| before.is_allocated);
        let load = ReportedLoad {
            load_bps: report.load_bps,
            flows: report.flows,
            until_ns: report.for_ms.map(|ms| now_ns + ms * 1_000_000),
            is_allocated,
            granted_bps: 0.0,
        };
        self.replace_external(link, load);
        let share = self.link_share(link);
        Ok(ExternalLoadReport {
            link: link_name(&self.topology, link),
            capacity_bps: share.capacity_bps,
        })
    }

    /// Removes reports that have expired.
    pub fn expire_external_loads(&mut self, now_ns: u64) {
        while let Some(&(until_ns, link)) = self.external.due.first()
            && until_ns <= now_ns
        {
            self.external.due.pop_first();
            let Some(before) = self.external.links.get(&link) else {
                continue;
            };
            tracing::info!(
                link = link_name(&self.topology, link),
                "external load expired"
            );
            // An empty report is applied like one from a feed, so that capacity and dummy flow
            // follow.
            let nothing = ReportedLoad {
                load_bps: 0,
                flows: 0.0,
                until_ns: None,
                ..before.clone()
            };
            self.replace_external(link, nothing);
        }
    }

    /// Returns the time of the next [`expire_external_loads`](Self::expire_external_loads).
    pub fn next_external_expiry(&self) -> Option<u64> {
        self.external.due.first().map(|&(until_ns, _)| until_ns)
    }

    /// Appends the status of at most `max` links from link `from` on. Returns the link to continue
    /// from, if there are more.
    pub fn external_status(
        &self,
        now_ns: u64,
        from: u32,
        max: usize,
        into: &mut Vec<ExternalStatus>,
    ) -> Option<u32> {
        let mut rest = self.external.links.range(LinkId(from)..);
        for (&link, load) in rest.by_ref().take(max) {
            into.push(ExternalStatus {
                name: link_name(&self.topology, link),
                load_bps: load.load_bps,
                flows: load.flows,
                granted_bps: load.granted_bps,
                expires_in_ms: load
                    .until_ns
                    .map(|until_ns| until_ns.saturating_sub(now_ns) / 1_000_000),
            });
        }
        rest.next().map(|(link, _)| link.0)
    }

    fn link_share(&self, link: LinkId) -> LinkShare {
        let share = self.settings.external_share;
        self.external.link_share(&self.topology, link, share)
    }

    fn replace_external(&mut self, link: LinkId, load: ReportedLoad) {
        let before = self.link_share(link);
        self.external.insert(link, load);
        let capacity_bps = self.link_share(link).capacity_bps;
        // A feed repeats its reports; only a difference costs the engine an event.
        if capacity_bps != before.capacity_bps {
            self.engine_events.push_back(EngineEvent::Capacity {
                link: link.0,
                capacity_bps,
            });
        }
        self.place_dummy_flow(link);
        if let Some(now) = self.external.links.get(&link)
            && now.load_bps == 0
            && now.flows == 0.0
        {
            self.external.remove(link);
        }
    }

    /// Starts, updates or ends a link's dummy flow in the engine.
    fn place_dummy_flow(&mut self, link: LinkId) {
        let share = self.link_share(link);
        let Some(load) = self.external.links.get_mut(&link) else {
            return;
        };
        let key = FlowKey::new(EXTERNAL_SESSION, link.0);
        let wanted = load.flows > 0.0 && share.dummy_bps > 0.0;
        if wanted {
            self.engine_events.push_back(EngineEvent::Start(FlowSpec {
                key,
                links: ArrayVec::from_iter([link.0]),
                class: CLASS,
                weight: load.flows,
                demand_bps: share.dummy_bps,
            }));
        } else if load.is_allocated {
            self.engine_events.push_back(EngineEvent::End(key));
            load.granted_bps = 0.0;
        }
        load.is_allocated = wanted;
    }

    /// Updates the dummy flows of links whose capacities have changed.
    pub(super) fn refresh_dummy_flows(&mut self, links: impl IntoIterator<Item = LinkId>) {
        links
            .into_iter()
            .for_each(|link| self.place_dummy_flow(link));
    }

    /// Hands all dummy flows to an engine that has none.
    pub(super) fn restart_dummy_flows(&mut self) {
        for load in self.external.links.values_mut() {
            load.is_allocated = false;
        }
        let links: Vec<LinkId> = self.external.links.keys().copied().collect();
        self.refresh_dummy_flows(links);
    }

    /// Takes the engine's rate for a dummy flow.
    pub(super) fn on_dummy_flow_rate(&mut self, link: u32, rate_bps: f64) {
        if let Some(load) = self.external.links.get_mut(&LinkId(link)) {
            load.granted_bps = rate_bps;
        }
    }
}
