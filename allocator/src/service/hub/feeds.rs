//! Feeds at the hub: telemetry of sessions, and external traffic (flowtune §6) that operators tell.
//!
//! [`Feeds`](crate::feeds::Feeds) decides; the hub knows which host a session has proven to be,
//! which hosts have sessions, and which engine takes the events.

use ratewright_proto::FlowId;
use ratewright_proto::telemetry::Telemetry;
use ratewright_topology::{HostId, LinkId};

use crate::engine::EngineEvent;
use crate::feeds::{FeedChange, FeedsConfig, FeedsStatus, LinkEffect, Reporter, ToldLoad};
use crate::service::admin_request::{ExternalLoad, ExternalLoadReport, TopologyChangeError};
use crate::service::status::{ExternalStatus, FeedLink, FeedsReport, MAX_FEED_LINKS};

use super::report::link_name;
use super::session::Hosts;
use super::{HubSettings, Network};

/// Maximum weight of a link's dummy flow, in flows.
const MAX_FLOWS: f64 = 1e6;

/// Maximum lifetime of a report, in milliseconds: a day.
const MAX_DURATION_MS: u64 = 86_400_000;

/// Returns the feeds' part of the settings.
pub(super) fn feeds_config(settings: &HubSettings) -> FeedsConfig {
    FeedsConfig {
        external_share: settings.external_share,
        ..settings.feeds.clone()
    }
}

/// Returns the interval at which hosts send telemetry, in nanoseconds; 0 if every reading is off.
pub(super) fn telemetry_interval_ns(settings: &HubSettings) -> u64 {
    let feeds = &settings.feeds;
    if feeds.receivers || feeds.credit || feeds.int {
        feeds.interval_ns
    } else {
        0
    }
}

impl Network {
    /// Takes a message of telemetry from a reporter that has proven who it is.
    pub(super) fn take_telemetry(
        &mut self,
        now_ns: u64,
        reporter: Reporter,
        telemetry: &Telemetry,
        hosts: Hosts<'_>,
    ) {
        self.feeds
            .take(now_ns, reporter, telemetry, &self.topology, |host| {
                hosts.session(host).is_some()
            });
    }

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
        let told = ToldLoad {
            load_bps: report.load_bps,
            flows: report.flows,
            until_ns: report.for_ms.map(|ms| now_ns + ms * 1_000_000),
        };
        let mut events = Vec::new();
        self.feeds
            .external_mut()
            .tell(&self.topology, link, told, &mut |event| events.push(event));
        self.push_external(events);
        Ok(ExternalLoadReport {
            link: link_name(&self.topology, link),
            capacity_bps: self.capacity_of(link),
        })
    }

    /// Sends the engine what the feeds ask for, forgets reports that have expired, and returns the
    /// flows, by sender, whose demands differ by credit.
    pub(super) fn apply_feeds(&mut self, now_ns: u64) -> Vec<(HostId, FlowId)> {
        let (mut events, mut demands) = (Vec::new(), Vec::new());
        self.feeds
            .apply(now_ns, &self.topology, &mut |change| match change {
                FeedChange::Engine(event) => events.push(event),
                FeedChange::Demand { sender, flow } => demands.push((sender, FlowId(flow))),
            });
        self.push_external(events);
        demands
    }

    /// Sends the engine what external traffic asks for. Such traffic takes a shared link its
    /// headroom, and gives it back when it ends.
    fn push_external(&mut self, events: Vec<EngineEvent>) {
        for event in events {
            // Dummy flows have the number of their link.
            let link = LinkId(match &event {
                EngineEvent::Capacity { link, .. } => *link,
                EngineEvent::Start(spec) => spec.number.index(),
                EngineEvent::End(number) => number.index(),
                // External traffic asks for no other event.
                _ => continue,
            });
            if !matches!(event, EngineEvent::Capacity { .. }) {
                self.engine_events.push_back(event);
                if !self.shared.is_shared(link) {
                    continue;
                }
            }
            self.push_capacity(link);
        }
    }

    /// True if [`next_link_loads_ns`](Self::next_link_loads_ns) has come.
    pub fn wants_link_loads(&self, now_ns: u64) -> bool {
        self.next_link_loads_ns()
            .is_some_and(|at_ns| at_ns <= now_ns)
    }

    /// Time from which what the engine allocates on every link is to be told again, if it is: the
    /// feeds ask for it, or the check of links.
    pub fn next_link_loads_ns(&self) -> Option<u64> {
        let for_check_ns = self.link_check.next_due_ns();
        let for_check_ns = for_check_ns.map(|_| self.feeds.next_means_ns());
        let due = [self.feeds.next_loads_ns(), for_check_ns];
        due.into_iter().flatten().min()
    }

    /// Takes the load that the engine allocated to every link, in bit/s, by link index.
    /// The vector becomes an old one.
    pub fn observe_link_loads(&mut self, now_ns: u64, loads_bps: &mut Vec<f64>) {
        if self.link_check.next_due_ns().is_some() {
            self.feeds.observe_for_means(now_ns, loads_bps);
        }
        self.feeds.observe(now_ns, loads_bps);
    }

    /// Updates the dummy flows of links whose capacities have changed.
    pub(super) fn refresh_dummy_flows(&mut self, links: impl IntoIterator<Item = LinkId>) {
        let events = &mut self.engine_events;
        self.feeds
            .external_mut()
            .refresh(&self.topology, links, &mut |event| events.push_back(event));
    }

    /// Hands all dummy flows to an engine that has none.
    pub(super) fn restart_dummy_flows(&mut self) {
        let events = &mut self.engine_events;
        self.feeds
            .external_mut()
            .restart(&self.topology, &mut |event| events.push_back(event));
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
        let mut rest = self.feeds.external().links_from(LinkId(from));
        for (link, traffic) in rest.by_ref().take(max) {
            into.push(ExternalStatus {
                name: link_name(&self.topology, link),
                load_bps: traffic.load_bps(),
                flows: traffic.flows(),
                granted_bps: traffic.granted_bps,
                expires_in_ms: traffic
                    .told
                    .until_ns
                    .map(|until_ns| until_ns.saturating_sub(now_ns) / 1_000_000),
            });
        }
        rest.next().map(|(link, _)| link.0)
    }

    /// Returns the figures of the feeds.
    pub fn feeds_status(&self) -> FeedsStatus {
        self.feeds.status()
    }

    /// Returns the body of `/feeds`.
    pub fn feeds_report(&self, now_ns: u64) -> FeedsReport {
        let links = self.feeds.effects_from(LinkId(0)).take(MAX_FEED_LINKS);
        FeedsReport {
            status: self.feeds.status(),
            effects: links
                .map(|(link, effect)| FeedLink {
                    name: link_name(&self.topology, link),
                    age_ms: self.feeds.age_ns(now_ns, &self.topology, link) / 1_000_000,
                    effect: *effect,
                })
                .collect(),
        }
    }

    /// Returns the effect of the feeds on a link, if they have one.
    pub fn feeds_effect(&self, link: LinkId) -> Option<&LinkEffect> {
        self.feeds.effect(link)
    }
}
