//! The daemon's state in one value, which `/status` shows and the metrics are made of.

use std::collections::BTreeMap;

use ratewright_io::transport::PathCounters;
use serde::Serialize;

use crate::backend::{BackendKind, BackendStats};
use crate::flows::{ClassUse, FlowCounters, PacingState};
use crate::samples::Summary;
use crate::second_line::SecondLineStatus;
use crate::telemetry::TelemetryStatus;

/// Phase of the session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Waiting for the next attempt.
    #[default]
    Disconnected,
    /// An attempt to connect is under way.
    Connecting,
    /// Connected; the allocator has not answered the registration yet.
    Registering,
    /// A session exists: the allocator sends rates.
    Established,
}

/// Counters of the connections to the allocator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ConnectionCounters {
    /// Attempts to connect.
    pub connect_attempts: u64,
    /// Attempts that failed.
    pub connect_failures: u64,
    /// Sessions that were established.
    pub sessions_established: u64,
    /// Established sessions that were lost.
    pub sessions_lost: u64,
    /// Datagrams that the transport did not take.
    pub datagrams_unsent: u64,
    /// Datagrams that QUIC carried to the allocator.
    pub quic_sent: u64,
    /// Datagrams that QUIC brought.
    pub quic_received: u64,
    /// Sealed datagrams sent, probes included.
    pub sealed_sent: u64,
    /// Sealed datagrams received, answers to probes included.
    pub sealed_received: u64,
    /// Received datagrams that did not open: forged, replayed, damaged.
    pub sealed_dropped: u64,
    /// Times that sealed datagrams no longer got through, and QUIC took over.
    pub path_fallbacks: u64,
}

impl ConnectionCounters {
    /// Adds the counters of one connection.
    pub fn add(&mut self, path: &PathCounters) {
        self.datagrams_unsent += path.unsent;
        self.quic_sent += path.quic_sent;
        self.quic_received += path.quic_received;
        self.sealed_sent += path.sealed_sent;
        self.sealed_received += path.sealed_received;
        self.sealed_dropped += path.sealed_dropped;
        self.path_fallbacks += path.fallbacks;
    }
}

/// Present transport of the session's datagrams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HotPathKind {
    /// QUIC.
    #[default]
    Quic,
    /// Sealed UDP.
    Udp,
}

/// Status of the session with the allocator.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SessionStatus {
    /// Phase.
    pub state: SessionState,
    /// The allocator's address, of the connection or of the attempt.
    pub allocator: Option<String>,
    /// Incarnation of the allocator.
    pub epoch: u64,
    /// Version of the topology.
    pub topology_epoch: u32,
    /// Number of the session.
    pub session: u32,
    /// This host's number in the topology.
    pub host_id: u32,
    /// Lifetime of a rate, in seconds.
    pub lease_s: f64,
    /// Round-trip time as QUIC measures it, in seconds.
    pub rtt_s: f64,
    /// Transport of its datagrams.
    pub hot: HotPathKind,
    /// Last reason for a missing session, if known.
    pub last_error: Option<String>,
}

/// Status of the daemon.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// This host.
    pub host: String,
    /// Version of the daemon.
    pub version: &'static str,
    /// Since the start, in seconds.
    pub uptime_s: f64,
    /// Pacing mechanism.
    pub backend: BackendKind,
    /// The session.
    pub session: SessionStatus,
    /// Incarnation of the allocator.
    pub epoch: u64,
    /// Version of the topology.
    pub topology_epoch: u32,
    /// The kill switch is on.
    pub released: bool,
    /// Application of rates: `pace`, `observe` or `release`.
    pub mode: PacingState,
    /// Flowlets that run.
    pub flows: usize,
    /// Flowlets that the allocator knows.
    pub reported_flows: usize,
    /// Flowlets that are paced now.
    pub paced_flows: usize,
    /// Latency from the first byte written to the first paced transmission, in microseconds.
    pub first_paced_us: Summary,
    /// Latency from a flowlet's beginning in the kernel to its first rate in the kernel, in
    /// microseconds.
    pub first_rate_us: Summary,
    /// Rates of each class against what its flows achieve; in observe mode, what pacing would have
    /// given them.
    pub classes: Vec<ClassUse>,
    /// Flowlets that each policy rule decided, in file order.
    pub policy_matches: Vec<u64>,
    /// Counters of the flow table.
    pub counters: FlowCounters,
    /// Counters of the connection.
    pub link: ConnectionCounters,
    /// Counters of the protocol.
    pub protocol: BTreeMap<&'static str, u64>,
    /// Counters of the back end.
    pub backend_stats: BackendStats,
    /// Operations that the back end refused.
    pub backend_errors: u64,
    /// Left-overs of other daemons on this host when this one began.
    pub left_overs: Vec<String>,
    /// Measurements for the allocator's feeds.
    pub telemetry: TelemetryStatus,
    /// Shares of other daemons.
    pub second_line: SecondLineStatus,
}

impl Status {
    /// Returns true while a session is established, so that new flows get rates.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.session.state == SessionState::Established
    }
}

/// Returns a mechanism's name, as `--backend` takes it.
#[must_use]
pub fn backend_name(kind: BackendKind) -> &'static str {
    match kind {
        BackendKind::SockOps => "sock_ops",
        BackendKind::TcHtb => "tc_htb",
    }
}
