//! What the service tells about itself: the body of `/status` and what `/metrics` is rendered from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::engine::Exceptions;

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
    /// Live sessions by host name.
    pub sessions: Vec<SessionStatus>,
    /// Flows that the engine allocates to.
    pub flows: u64,
    /// Flows that are known and left to plain TCP, for want of a path, a class or room.
    pub flows_left_alone: u64,
    /// How long iterations take.
    pub iteration: IterationStatus,
    /// How far the last rates are from the optimum.
    pub optimality: OptimalityStatus,
    /// The most loaded links, most loaded first.
    pub links: Vec<LinkStatus>,
    /// Names of links that carry nothing, because they or a switch failed.
    pub links_down: Vec<String>,
    /// Links with traffic that is not ours, as it was told.
    pub external: Vec<ExternalStatus>,
    /// Hosts of the topology.
    pub hosts: u64,
    /// How long a rate holds without word from us, in milliseconds.
    pub lease_ms: u64,
    /// Ports of sealed datagrams that are lost. Above zero, sessions that had them are on QUIC
    /// until a restart.
    pub sealed_ports_lost: u64,
    /// Core of the engine thread, if it is pinned.
    pub pinned_core: Option<usize>,
}

/// One session in `/status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SessionStatus {
    /// The host's name.
    pub host: String,
    /// `established`, or `draining` while its refusal is on the way.
    pub state: &'static str,
    /// Its flows that get rates.
    pub flows: u64,
    /// Where the kill switch stands at this host: `no`, `waiting`, `acknowledged`, or `expired` (a
    /// lease has passed, so its rates no longer hold whether or not it answered).
    pub released: &'static str,
    /// Smoothed round-trip time of the transport, in microseconds.
    pub rtt_us: u64,
    /// Where it connects from.
    pub address: String,
    /// What the daemon calls itself.
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
    /// The number that the host knows it by.
    pub flow: u32,
    /// Number of the host that it goes to.
    pub dst_host: u32,
    /// Its newest rate as the host is told it; 0 while it has none.
    pub rate_bps: u64,
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
    /// Whether rates stand still, so that the engine rests.
    pub settled: bool,
}

/// Distance from the optimum in `/status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct OptimalityStatus {
    /// Duality gap over the utility's scale; nothing while it is not a number.
    pub relative_gap: Option<f64>,
    /// Largest violation of the optimality conditions.
    pub kkt_residual: Option<f64>,
    /// Largest load over (derated) capacity among all links: above one would be over-allocation.
    pub max_link_load: f64,
    /// The same before normalisation, in the last iteration: how far the optimiser overshot.
    pub optimizer_overload: f64,
    /// Σ log2 of the rates in bit/s, dummy flows' included: a flow that gets twice the rate adds
    /// one point.
    pub proportional_fairness_score: f64,
    /// Flows with a rate, which the score sums over.
    pub rated_flows: usize,
}

/// One link in `/status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LinkStatus {
    /// `from->to`, by the names of its ends.
    pub name: String,
    /// What is allocated on it.
    pub load_bps: f64,
    /// What it can carry.
    pub capacity_bps: f64,
    /// Load over capacity.
    pub utilization: f64,
}

/// External traffic of one link in `/status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ExternalStatus {
    /// `from->to`, by the names of its ends.
    pub name: String,
    /// What takes its bytes whatever the allocator does, as it was told.
    pub load_bps: u64,
    /// As how many flows the rest weighs.
    pub flows: f64,
    /// What the allocation leaves to these.
    pub granted_bps: f64,
    /// When it is forgotten, if it is not told again.
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
    /// Active flows that were said to use more or less than before.
    pub demand_changes: u64,
    /// Those of them that waited, since their host or all hosts together had told too many.
    pub demand_changes_deferred: u64,
    /// Paths that were looked for in the topology.
    pub paths: u64,
    /// Flows that found another path after a change of the topology.
    pub reroutes: u64,
    /// Rates handed to sessions.
    pub updates: u64,
    /// Rates that found their flow gone.
    pub updates_stale: u64,
    /// Datagrams taken from peers.
    pub datagrams_received: u64,
    /// Datagrams handed to the transport.
    pub datagrams_sent: u64,
    /// Datagrams that changed nothing, by reason.
    pub datagrams_dropped: Reasons,
    /// Control messages that broke the protocol, by reason.
    pub control_errors: Reasons,
    /// How often a control stream was not read for a while since its session had used up its
    /// budget.
    pub control_waits: u64,
    /// Flows that are left to plain TCP, by reason.
    pub flows_unmanaged: Reasons,
    /// Sessions accepted.
    pub sessions_opened: u64,
    /// Sessions refused, by refusal code.
    pub sessions_refused: Reasons,
    /// Sessions that ended, by reason.
    pub sessions_closed: Reasons,
    /// Connections that never became a session, by reason.
    pub connections_rejected: Reasons,
    /// Telemetry messages taken.
    pub telemetry: u64,
    /// Configurations loaded at run time, by result.
    pub reloads: Reasons,
    /// What went to relays and came from them.
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
    /// What relays sent that was turned down, and what could not be sent to them, by reason.
    pub rejected: Reasons,
}

impl RelayCounts {
    /// Calls `visit` with what was counted, the direction and the number.
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
    /// Counts one.
    pub fn count(&mut self, reason: &'static str) {
        *self.0.entry(reason).or_insert(0) += 1;
    }

    /// The count of a reason.
    pub fn get(&self, reason: &str) -> u64 {
        self.0.get(reason).copied().unwrap_or(0)
    }

    /// Every reason that occurred.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().map(|(&reason, &count)| (reason, count))
    }

    /// All of them together.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

/// How many sessions, links and words about external traffic `/status` lists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StatusTotals {
    /// Hosts with a session.
    pub sessions: u64,
    /// Links that carry nothing, because they or a switch failed.
    pub links_down: u64,
    /// Links with traffic that is not ours, as it was told.
    pub external: u64,
}

/// Everything that the admin server needs, taken at one moment, without what `/status` lists.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The body of `/status`.
    pub status: Status,
    /// How many there are of what the body lists.
    pub totals: StatusTotals,
    /// Counts since the start.
    pub counts: ServiceCounts,
    /// Sealed datagrams.
    pub sealed: ratewright_proto::sealed::SealedCounters,
    /// What a kernel-bypass port has counted, by name; nothing where sockets carry the datagrams.
    pub port: Vec<(&'static str, u64)>,
    /// The engine's own figures.
    pub engine: EngineFigures,
}

/// The engine's figures, in base units.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineFigures {
    /// Iterations since the start.
    pub iterations: u64,
    /// Events applied since the start.
    pub events: u64,
    /// Events that the engine refused.
    pub events_refused: u64,
    /// Upper bounds (seconds) and cumulative counts of the iteration time histogram.
    pub iteration_buckets: Vec<(f64, u64)>,
    /// Time spent in iterations, in seconds.
    pub iteration_seconds_sum: f64,
    /// Largest load over capacity before normalisation in the last iteration.
    pub max_overload: f64,
    /// Flows that are worked on one by one, and prices that started anew.
    pub exceptions: Exceptions,
}

/// What `POST /release` and `POST /resume` answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ReleaseReport {
    /// The kill switch is on.
    pub released: bool,
    /// Hosts that had a session when it was turned.
    pub hosts: u64,
    /// Hosts that said so themselves.
    pub acknowledged: u64,
    /// Hosts that did not answer, whose rates have run out.
    pub expired: u64,
    /// Hosts that may still act on a rate.
    pub waiting: Vec<String>,
    /// How long a rate holds without word from us, in milliseconds.
    pub lease_ms: u64,
    /// Time since the switch was turned, in milliseconds.
    pub elapsed_ms: u64,
}
