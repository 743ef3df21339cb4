//! Status of sessions, flows and links for operators.

use ratewright_topology::{HostId, LinkId, Topology};

use crate::engine::EngineStats;
use crate::service::status::{
    HostFlow, HostFlows, IterationStatus, LinkStatus, OptimalityStatus, SessionStatus, Status,
    StatusTotals,
};

use super::Hub;

/// Maximum number of links in `/status`.
const MAX_LINKS: usize = 16;

/// Facts of the transport about a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TransportFacts {
    /// Smoothed round-trip time, in microseconds.
    pub rtt_us: u64,
    /// Address from which it connects.
    pub address: String,
}

/// View of the hub for operators. It only reads.
#[derive(Clone, Copy)]
pub struct Report<'a> {
    pub(super) hub: &'a Hub,
}

impl Report<'_> {
    /// Returns the flows of a host in its session; `None` if it has no session.
    pub fn flows_of(&self, host: &str) -> Option<HostFlows> {
        let session = self.hub.sessions.values().find(|session| {
            session.closing.is_none()
                && session
                    .peer
                    .as_ref()
                    .is_some_and(|peer| peer.hello.host_name == host)
        })?;
        let from = session.peer.as_ref().map(|peer| peer.host);
        let mut flows: Vec<HostFlow> = session
            .proto
            .flows()
            .map(|(record, rate_bps)| HostFlow {
                flow: record.flow().0,
                dst_host: record.dst_host(),
                rate_bps,
                max_flow_bps: from.and_then(|from| {
                    self.hub
                        .network
                        .topology
                        .max_flow_bps(from, HostId(record.dst_host()))
                }),
            })
            .collect();
        flows.sort_unstable_by_key(|flow| flow.flow);
        Some(HostFlows {
            host: host.to_owned(),
            flows,
        })
    }

    /// Appends the names of dead links among `max` links from link `from` on. Returns the link to
    /// continue from, if there are more.
    pub fn links_down(&self, from: u32, max: usize, into: &mut Vec<String>) -> Option<u32> {
        let links = self.hub.network.topology.links();
        let rest = links.get(from as usize..).unwrap_or_default();
        for link in rest.iter().take(max) {
            if !self.hub.network.topology.is_usable(link.id) {
                into.push(link_name(&self.hub.network.topology, link.id));
            }
        }
        rest.get(max).map(|link| link.id.0)
    }

    /// Returns the entry of a session in `/status`; `None` if it has no host.
    pub fn session_status(
        &self,
        now_ns: u64,
        id: u32,
        transport: impl FnOnce(u32) -> TransportFacts,
    ) -> Option<SessionStatus> {
        let session = self.hub.sessions.get(id)?;
        let peer = session.peer.as_ref()?;
        let TransportFacts { rtt_us, address } = transport(id);
        Some(SessionStatus {
            host: peer.hello.host_name.clone(),
            state: if session.closing.is_some() {
                "draining"
            } else {
                "established"
            },
            flows: u64::from(session.allocated),
            released: self.release_state(now_ns, session),
            pacing: session.conduct(),
            rtt_us,
            address,
            software: peer.hello.software.clone(),
        })
    }

    /// Returns the totals of the lists in `/status`.
    pub fn totals(&self) -> StatusTotals {
        let links = self.hub.network.topology.links().iter();
        StatusTotals {
            sessions: self.hub.admission.registry.len() as u64,
            links_down: links
                .filter(|l| !self.hub.network.topology.is_usable(l.id))
                .count() as u64,
            external: self.hub.network.feeds.external().len() as u64,
            members: self.hub.members.count(),
            links_named: self.hub.network.link_check.named_counts(),
            links_lowered: self.hub.network.link_check.lowered_count(),
            hosts_named: self.hub.network.link_check.fault_counts(),
        }
    }

    /// Returns the body of `/status` without its lists of sessions, dead links and external
    /// traffic, and without what only the process knows.
    pub fn status(&self, engine: &EngineStats) -> Status {
        let known = self.hub.flows.tallies.known;
        Status {
            version: env!("CARGO_PKG_VERSION"),
            epoch: self.hub.settings.epoch,
            topology_epoch: u64::from(self.hub.network.topology.epoch()),
            released: self.hub.is_released(),
            released_hosts: (self.hub.conduct.released_hosts())
                .map(str::to_owned)
                .collect(),
            sessions: Vec::new(),
            flows: u64::from(self.hub.flows.tallies.allocated),
            flows_left_alone: known - u64::from(self.hub.flows.tallies.allocated),
            iteration: iteration(engine),
            optimality: optimality(engine),
            links: engine
                .top_links
                .iter()
                .take(MAX_LINKS)
                .map(|load| {
                    let link = LinkId(load.link);
                    let headroom = self.hub.network.headroom_of(link);
                    LinkStatus {
                        name: link_name(&self.hub.network.topology, link),
                        load_bps: load.load_bps,
                        capacity_bps: load.capacity_bps / headroom,
                        utilization: load.utilization() * headroom,
                    }
                })
                .collect(),
            links_down: Vec::new(),
            external: Vec::new(),
            links_shared: self.hub.network.shared.count() as u64,
            links_not_as_told: Vec::new(),
            links_not_as_told_total: (self.hub.network.link_check.named_counts().iter())
                .map(|&(_, count)| count)
                .sum(),
            hosts_not_as_told: Vec::new(),
            hosts_not_as_told_total: self.hub.network.link_check.fault_counts().iter().sum(),
            hosts: self.hub.network.topology.host_count() as u64,
            lease_ms: self.hub.settings.lease_ns / 1_000_000,
            sealed_ports_lost: 0,
            pinned_core: None,
        }
    }
}

#[allow(
    clippy::cast_precision_loss,
    reason = "durations in nanoseconds, read as microseconds"
)]
fn iteration(engine: &EngineStats) -> IterationStatus {
    IterationStatus {
        count: engine.iterations,
        p50_us: engine.p50_iteration_ns as f64 / 1e3,
        p99_us: engine.p99_iteration_ns as f64 / 1e3,
        settled: engine.settled,
    }
}

fn optimality(engine: &EngineStats) -> OptimalityStatus {
    // JSON has neither infinity nor NaN.
    let finite = |value: f64| value.is_finite().then_some(value);
    OptimalityStatus {
        relative_gap: finite(engine.optimality.relative_duality_gap),
        kkt_residual: finite(engine.optimality.kkt_residual),
        max_link_load: engine
            .top_links
            .first()
            .map_or(0.0, |link| link.utilization()),
        optimizer_overload: engine.last_report.max_overload,
        proportional_fairness_score: engine.optimality.proportional_fairness_score,
        rated_flows: engine.optimality.rated_flows,
    }
}

/// Returns `from->to`, by the names of the link's ends.
pub(super) fn link_name(topology: &Topology, link: LinkId) -> String {
    topology.links().get(link.index()).map_or_else(
        || format!("link {}", link.0),
        |link| {
            format!(
                "{}->{}",
                topology.node_name(link.from),
                topology.node_name(link.to)
            )
        },
    )
}
