//! Status of the service: the body of `/status` and the figures behind `/metrics`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::config::PacingOrder;
use crate::engine::{DurationFigures, Exceptions};
use crate::feeds::{FeedsStatus, LinkEffect};
use crate::link_check::{HostFault, LinkEvidence, LinkState};

/// The body of `GET /status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Status {
    /// Version of this binary.
    pub version: &'static str,
    /// Incarnation of this allocator: larger at every start.
    pub epoch: u64,
    /// Version of the topology: larger at every change of a link, switch or file.
    pub topology_epoch: u64,
    /// The kill switch is on.
    pub released: bool,
    /// Hosts that an operator has released.
    pub released_hosts: Vec<String>,
    /// Live sessions by host name.
    pub sessions: Vec<SessionStatus>,
    /// Flows to which the engine allocates.
    pub flows: u64,
    /// Unmanaged flows: known, but without a path, a class or a place in the engine.
    pub flows_left_alone: u64,
    /// Times of iterations.
    pub iteration: IterationStatus,
    /// Distance of the last rates from the optimum.
    pub optimality: OptimalityStatus,
    /// The most loaded links, most loaded first.
    pub links: Vec<LinkStatus>,
    /// Names of links that carry nothing, because they or a switch failed.
    pub links_down: Vec<String>,
    /// Links with reports about external traffic.
    pub external: Vec<ExternalStatus>,
    /// Links that paced flows share with traffic that nobody paces.
    pub links_shared: u64,
    /// Links that are not as they were told, the first [`MAX_CHECKED_LINKS`] of them.
    pub links_not_as_told: Vec<CheckedLink>,
    /// Number of all of them.
    pub links_not_as_told_total: u64,
    /// Faults of hosts, the first [`MAX_CHECKED_LINKS`] of them.
    pub hosts_not_as_told: Vec<FaultyHost>,
    /// Number of all of them.
    pub hosts_not_as_told_total: u64,
    /// Hosts of the topology.
    pub hosts: u64,
    /// Lease of a rate, in milliseconds.
    pub lease_ms: u64,
    /// Lost UDP ports. Above zero, their sessions use QUIC until a restart.
    pub sealed_ports_lost: u64,
    /// Core of the engine thread, if it is pinned.
    pub pinned_core: Option<usize>,
}

/// One session in `/status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SessionStatus {
    /// The host's name.
    pub host: String,
    /// `established`, or `draining` while its refusal is being sent.
    pub state: &'static str,
    /// Its flows that get rates.
    pub flows: u64,
    /// State of the kill switch at this host: `no`, `waiting`, `acknowledged`, or `expired` (a
    /// lease has passed, so its rates no longer hold, acknowledged or not).
    pub released: &'static str,
    /// Conduct of the host: `pace`, `observe` or `release`.
    pub pacing: PacingOrder,
    /// Smoothed round-trip time of the transport, in microseconds.
    pub rtt_us: u64,
    /// Address from which it connects.
    pub address: String,
    /// Name and version of the host's daemon.
    pub software: String,
}

/// The body of `GET /flows?host=NAME`: the allocator's own view of a host's flows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFlows {
    /// The host's name.
    pub host: String,
    /// Its flows, in the order of their numbers.
    pub flows: Vec<HostFlow>,
}

/// One flow in `/flows`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFlow {
    /// Number of the flow at its host.
    pub flow: u32,
    /// Number of the host that it goes to.
    pub dst_host: u32,
    /// Newest rate for the host, as the wire encodes it, in bit/s; 0 while there is none.
    pub rate_bps: u64,
    /// The topology's bound on a flow between the two hosts, in bit/s; null without one.
    #[serde(default)]
    pub max_flow_bps: Option<u64>,
}

/// The body of `GET /feeds`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FeedsReport {
    /// Figures of the feeds.
    #[serde(flatten)]
    pub status: FeedsStatus,
    /// Effects on links, at most [`MAX_FEED_LINKS`] of them.
    pub effects: Vec<FeedLink>,
}

/// Maximum number of links in [`FeedsReport`].
pub const MAX_FEED_LINKS: usize = 1_024;

/// One link in `/feeds`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FeedLink {
    /// `from->to`, by the names of its ends.
    pub name: String,
    /// Age of the newest measurement, in milliseconds.
    pub age_ms: u64,
    /// Effect of the feeds.
    #[serde(flatten)]
    pub effect: LinkEffect,
}

/// The body of `GET /flows?top=N`: the fastest flows of all hosts.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TopFlows {
    /// Flows that were looked at.
    pub flows_total: u64,
    /// The fastest, fastest first.
    pub flows: Vec<FlowRow>,
}

/// One flow in `/flows?top=N` and `/explain`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FlowRow {
    /// The host that sends.
    pub from: String,
    /// The host that receives.
    pub to: String,
    /// Number of the flow at its host.
    pub flow: u32,
    /// Name of its class.
    pub class: String,
    /// Its own weight, within its class.
    pub weight: f64,
    /// Demand that its host reported, in bit/s; `None` for an unbounded one.
    pub demand_bps: Option<u64>,
    /// Newest rate, in bit/s; 0 while there is none.
    pub rate_bps: u64,
    /// Conduct of its host.
    pub pacing: PacingOrder,
}

/// The body of `GET /links`: links by utilisation, fullest first, as of the engine's last scan.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Links {
    /// Links of the topology.
    pub links_total: u64,
    /// The fullest with a load.
    pub links: Vec<LinkRow>,
}

/// One link in `/links` and `/explain`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LinkRow {
    /// `from->to`, by the names of its ends.
    pub name: String,
    /// Sum of the rates over it, in bit/s.
    pub load_bps: f64,
    /// Capacity for flows, derated by the notification threshold and reduced by external traffic,
    /// in bit/s.
    pub capacity_bps: f64,
    /// Capacity in the topology file, in bit/s.
    pub nominal_bps: u64,
    /// Load over capacity.
    pub utilization: f64,
    /// Price: marginal utility of one Gbit/s more. Only a full link has one above 0.
    pub price: f64,
    /// It carries traffic.
    pub up: bool,
    /// Reported external traffic, in bit/s.
    pub external_load_bps: u64,
    /// Rate that the allocation leaves to it, in bit/s.
    pub external_granted_bps: f64,
    /// Effect of the feeds, if they have one.
    pub feeds: Option<LinkEffect>,
    /// Reason for which it is shared with traffic that nobody paces, if it is.
    pub shared: Option<SharedStatus>,
    /// State of its capacity as it was told, with the evidence.
    pub check: LinkEvidence,
}

/// A shared link in `/links` and `/explain`: TCP decides there between paced flows and others.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SharedStatus {
    /// Traffic that nobody paces, in words.
    pub cause: String,
    /// Factor on the capacity that the rates over it may fill together; 1 where external traffic is
    /// left its share instead, and without `feeds.shared` where hosts' word alone tells of it.
    pub headroom: f64,
}

/// The body of `GET /explain?from=A&to=B`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Explanation {
    /// The sending host.
    pub from: HostView,
    /// The receiving host.
    pub to: HostView,
    /// Flows from one to the other.
    pub flows_total: u64,
    /// The first of them.
    pub flows: Vec<ExplainedFlow>,
}

/// A host in `/explain`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct HostView {
    /// Its name.
    pub host: String,
    /// It has a session.
    pub connected: bool,
    /// Its conduct.
    pub pacing: PacingOrder,
    /// Reason for that.
    pub why: &'static str,
    /// Proof that it paces nothing, as in `/status`.
    pub release: &'static str,
    /// Time since its last datagram, in milliseconds.
    pub heard_ms_ago: Option<u64>,
    /// Lease of its rates, in milliseconds.
    pub lease_ms: u64,
    /// Its faults.
    pub faults: Vec<FaultyHost>,
    /// The links from it and to it, whatever their state is.
    pub links: Vec<CheckedLink>,
}

/// A flow in `/explain`, with the reasons for its rate.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ExplainedFlow {
    /// The flow, with the lesser of its demand and the bound that its receiver's credit puts on it.
    #[serde(flatten)]
    pub row: FlowRow,
    /// Factor of its class on its weight.
    pub class_weight: f64,
    /// Largest rate of its class's flows, in bit/s.
    pub class_cap_bps: Option<u64>,
    /// Reason for its demand.
    pub demand: &'static str,
    /// Reason for which it gets no rate, if it gets none.
    pub unmanaged: Option<&'static str>,
    /// Bound that keeps its rate from being higher.
    pub limit: String,
    /// Links from its host to the other.
    pub links: Vec<LinkRow>,
}

/// Iteration times in `/status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct IterationStatus {
    /// Iterations since the start.
    pub count: u64,
    /// Median, in microseconds.
    pub p50_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
    /// True while rates stand still, so that the engine rests.
    pub settled: bool,
}

/// Distance from the optimum in `/status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct OptimalityStatus {
    /// Duality gap over the utility's scale; `None` while it is not finite.
    pub relative_gap: Option<f64>,
    /// Largest violation of the optimality conditions.
    pub kkt_residual: Option<f64>,
    /// Largest load over (derated) capacity among all links: above one would be over-allocation.
    pub max_link_load: f64,
    /// Largest load over capacity before normalisation, in the last iteration: the optimiser's
    /// overshoot.
    pub optimizer_overload: f64,
    /// Σ log2 of the rates in bit/s, dummy flows' included: a flow that gets twice the rate adds
    /// one point.
    pub proportional_fairness_score: f64,
    /// Flows with a rate, over which the score sums.
    pub rated_flows: usize,
}

/// One link in `/status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LinkStatus {
    /// `from->to`, by the names of its ends.
    pub name: String,
    /// Allocated load, in bit/s.
    pub load_bps: f64,
    /// Capacity, in bit/s.
    pub capacity_bps: f64,
    /// Load over capacity.
    pub utilization: f64,
}

/// Maximum number of links in [`Status::links_not_as_told`], and of faults of hosts.
pub const MAX_CHECKED_LINKS: usize = 64;

/// Link with the state of its capacity as it was told: one that is not so in `/status` and
/// `/overview`, a host's own in `/explain`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CheckedLink {
    /// `from->to`, by the names of its ends.
    pub name: String,
    /// State and evidence.
    #[serde(flatten)]
    pub evidence: LinkEvidence,
    /// Traffic that nobody paces, in words, if it has some.
    pub cause: Option<String>,
}

/// Fault of a host in `/status`, `/overview` and `/explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FaultyHost {
    /// Its name.
    pub host: String,
    /// The fault.
    pub fault: HostFault,
    /// Other host whose daemon tells of it.
    pub seen_at: Option<String>,
}

/// External traffic of one link in `/status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ExternalStatus {
    /// `from->to`, by the names of its ends.
    pub name: String,
    /// Reported traffic that takes its bytes in any case, in bit/s.
    pub load_bps: u64,
    /// Weight of the other traffic, in flows.
    pub flows: f64,
    /// Rate that the allocation leaves to it, in bit/s.
    pub granted_bps: f64,
    /// Time until the report expires, in milliseconds; `None` if it does not.
    pub expires_in_ms: Option<u64>,
}

/// Counts since the start, by reason where there are reasons. No host, flow or link is ever a
/// reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceCounts {
    /// Flowlet starts taken.
    pub starts: u64,
    /// Flowlet ends taken.
    pub ends: u64,
    /// Links that began to be shared with traffic that nobody paces, by cause.
    pub links_shared: Reasons,
    /// Links that were found not to be as told, by state.
    pub links_named: Reasons,
    /// Hosts in which a fault was found, by fault.
    pub hosts_named: Reasons,
    /// Demand changes of active flows.
    pub demand_changes: u64,
    /// Demand changes that waited, because their host or all hosts together sent too many.
    pub demand_changes_deferred: u64,
    /// Paths computed in the topology.
    pub paths: u64,
    /// Flows that changed their path after a change of the topology.
    pub reroutes: u64,
    /// Rates handed to sessions.
    pub updates: u64,
    /// Rates whose flow had ended.
    pub updates_stale: u64,
    /// Datagrams taken from peers.
    pub datagrams_received: u64,
    /// Datagrams handed to the transport.
    pub datagrams_sent: u64,
    /// Datagrams that changed nothing, by reason.
    pub datagrams_dropped: Reasons,
    /// Control messages that broke the protocol, by reason.
    pub control_errors: Reasons,
    /// Pauses in reading a control stream whose session had used up its budget.
    pub control_waits: u64,
    /// Flows that became unmanaged, by reason.
    pub flows_unmanaged: Reasons,
    /// Sessions accepted.
    pub sessions_opened: u64,
    /// Hosts that joined at run time.
    pub members_joined: u64,
    /// Hosts of these that left.
    pub members_left: u64,
    /// Sessions refused, by refusal code.
    pub sessions_refused: Reasons,
    /// Sessions that ended, by reason.
    pub sessions_closed: Reasons,
    /// Connections that never became a session, by reason.
    pub connections_rejected: Reasons,
    /// Telemetry messages taken.
    pub telemetry: u64,
    /// Datagrams of the collector of switches that were taken.
    pub collector_datagrams: u64,
    /// Events in them of interfaces that it may not tell of.
    pub collector_unknown: u64,
    /// Events in them that say nothing, by reason.
    pub collector_unused: Reasons,
    /// Datagrams at the collector's address that were not taken, by reason.
    pub collector_dropped: Reasons,
    /// Configurations loaded at run time, by result.
    pub reloads: Reasons,
    /// Bundles to and from relays.
    pub relay: RelayCounts,
}

/// Bundles of relays' hosts' datagrams.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RelayCounts {
    /// Bundles taken.
    pub bundles_received: u64,
    /// Their bytes.
    pub bytes_received: u64,
    /// The datagrams in them.
    pub datagrams_received: u64,
    /// Bundles handed to the transport.
    pub bundles_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// The datagrams in them.
    pub datagrams_sent: u64,
    /// Bundles and streams of relays that were rejected, and datagrams that could not be sent, by
    /// reason.
    pub rejected: Reasons,
}

impl RelayCounts {
    /// Calls `visit` with the unit, the direction and the count.
    pub fn for_each(&self, mut visit: impl FnMut(&'static str, &'static str, u64)) {
        visit("bundles", "received", self.bundles_received);
        visit("bytes", "received", self.bytes_received);
        visit("datagrams", "received", self.datagrams_received);
        visit("bundles", "sent", self.bundles_sent);
        visit("bytes", "sent", self.bytes_sent);
        visit("datagrams", "sent", self.datagrams_sent);
    }
}

/// Counts by reason; the reasons are few and fixed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reasons(BTreeMap<&'static str, u64>);

impl Reasons {
    /// Counts one occurrence.
    pub fn count(&mut self, reason: &'static str) {
        self.add(reason, 1);
    }

    /// Counts occurrences.
    pub fn add(&mut self, reason: &'static str, count: u64) {
        *self.0.entry(reason).or_insert(0) += count;
    }

    /// Returns the count of a reason.
    pub fn get(&self, reason: &str) -> u64 {
        self.0.get(reason).copied().unwrap_or(0)
    }

    /// Returns every reason that occurred, with its count.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().map(|(&reason, &count)| (reason, count))
    }

    /// Returns the sum over all reasons.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

/// Lengths of the lists in `/status`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StatusTotals {
    /// Hosts with a session.
    pub sessions: u64,
    /// Links that carry nothing, because they or a switch failed.
    pub links_down: u64,
    /// Links with reports about external traffic.
    pub external: u64,
    /// Hosts that joined at run time and have not left.
    pub members: u64,
    /// Links that are not as they were told, by state.
    pub links_named: [(LinkState, u64); LinkState::NAMED.len()],
    /// Links whose capacity is lowered to what they carry.
    pub links_lowered: u64,
    /// Hosts with each fault, in the order of [`HostFault::ALL`].
    pub hosts_named: [u64; HostFault::ALL.len()],
}

/// State of the service at one moment for the admin server, without the lists of `/status`.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The body of `/status`.
    pub status: Status,
    /// Lengths of the lists that the body lacks.
    pub totals: StatusTotals,
    /// Counts since the start.
    pub counts: ServiceCounts,
    /// Sealed datagrams.
    pub sealed: ratewright_proto::sealed::SealedCounters,
    /// Counters of a kernel-bypass port by name; empty where sockets carry the datagrams.
    pub port: Vec<(&'static str, u64)>,
    /// The engine's own figures.
    pub engine: EngineFigures,
    /// End of the validity of our own certificate, in seconds since 1970.
    pub certificate_expires_unix_s: Option<i64>,
    /// Durations from taking a start to handing its first rate to its session.
    pub first_rates: DurationFigures,
    /// Figures of the feeds.
    pub feeds: FeedsStatus,
}

/// The engine's figures, in base units.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineFigures {
    /// Durations of iterations.
    pub iterations: DurationFigures,
    /// Events applied since the start.
    pub events: u64,
    /// Events that the engine refused.
    pub events_refused: u64,
    /// Largest load over capacity before normalisation in the last iteration.
    pub max_overload: f64,
    /// Flows on the scalar path, and prices that started again.
    pub exceptions: Exceptions,
}

/// Reply to `POST /release` and `POST /resume`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ReleaseReport {
    /// The kill switch is on.
    pub released: bool,
    /// Hosts that had a session when it was turned.
    pub hosts: u64,
    /// Hosts that acknowledged it.
    pub acknowledged: u64,
    /// Hosts that did not acknowledge it and whose rates have expired.
    pub expired: u64,
    /// Hosts that may still act on a rate.
    pub waiting: Vec<String>,
    /// Lease of a rate, in milliseconds.
    pub lease_ms: u64,
    /// Time since the switch was turned, in milliseconds.
    pub elapsed_ms: u64,
}
