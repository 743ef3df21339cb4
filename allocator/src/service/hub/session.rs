//! What the hub holds for one session.

use indexmap::IndexMap;
use ratewright_proto::control::Hello;
use ratewright_proto::records::{FlowId, StartRecord};
use ratewright_proto::server::ServerSession;
use ratewright_topology::HostId;
use rustc_hash::FxBuildHasher;

/// One transport connection, from its first byte to its last.
pub(super) struct Session {
    pub(super) id: u32,
    /// The protocol's state machine.
    pub(super) proto: ServerSession,
    /// DNS names in the certificate that the peer showed.
    pub(super) certificate_names: Vec<String>,
    /// Who it is, once it was accepted.
    pub(super) peer: Option<Peer>,
    /// What is active, by slot.
    pub(super) flows: IndexMap<u32, Flow, FxBuildHasher>,
    /// How many of them have a place in the engine.
    pub(super) placed: u32,
    pub(super) release: Release,
    pub(super) starts: StartBudget,
    /// It stands in the list of sessions that have something to send.
    pub(super) touched: bool,
    /// Why the transport is to be closed, once what is queued has left.
    pub(super) closing: Option<&'static str>,
}

/// An accepted host.
pub(super) struct Peer {
    pub(super) host: HostId,
    pub(super) hello: Hello,
}

/// A flow that its endpoint declared active.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flow {
    pub(super) record: StartRecord,
    pub(super) place: Place,
    /// It has been given a rate since it started.
    pub(super) answered: bool,
}

/// Where a flow stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The engine allocates to it.
    Engine,
    /// It is left to plain TCP.
    Alone(LeftAlone),
}

/// Why a flow gets no rate. It is counted, and its endpoint is told that it has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftAlone {
    /// Its destination is no host of the topology.
    UnknownHost,
    /// Source and destination are the same host: no link is crossed.
    SameHost,
    /// No path is usable, or the reported one is not.
    Unroutable,
    /// Its class is not configured.
    UnknownClass,
    /// The engine holds as many flows as the limits allow.
    TableFull,
}

impl LeftAlone {
    /// The reason in metrics.
    pub fn reason(self) -> &'static str {
        match self {
            Self::UnknownHost => "unknown_host",
            Self::SameHost => "same_host",
            Self::Unroutable => "unroutable",
            Self::UnknownClass => "unknown_class",
            Self::TableFull => "table_full",
        }
    }
}

impl Flow {
    pub(super) fn id(&self) -> FlowId {
        self.record.flow()
    }
}

/// Where the kill switch stands at one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Release {
    /// Rates are handed out.
    No,
    /// The host was told at this time, and has not answered.
    Waiting { since_ns: u64 },
    /// The host said that it runs plain TCP.
    Acknowledged,
}

/// A token bucket with debt: a datagram is taken whole while there is credit, and the debt that it
/// may leave keeps the session's next ones out. They are dropped before the protocol sees them, so
/// they are not acknowledged, and their state comes again: a flood is slowed down and loses nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct StartBudget {
    per_s: u32,
    tokens: f64,
    filled_ns: u64,
}

impl StartBudget {
    pub(super) fn new(per_s: u32, now_ns: u64) -> Self {
        Self {
            per_s,
            tokens: f64::from(per_s),
            filled_ns: now_ns,
        }
    }

    pub(super) fn set_rate(&mut self, per_s: u32) {
        self.per_s = per_s;
        self.tokens = self.tokens.min(f64::from(per_s));
    }

    /// Whether a datagram may be taken now.
    #[allow(
        clippy::cast_precision_loss,
        reason = "a duration of at most a second in nanoseconds"
    )]
    pub(super) fn has_credit(&mut self, now_ns: u64) -> bool {
        let elapsed_ns = now_ns.saturating_sub(self.filled_ns);
        self.filled_ns = self.filled_ns.max(now_ns);
        // Debt is bounded by one datagram's starts, so a second always pays it off.
        let elapsed_s = elapsed_ns as f64 / 1e9;
        self.tokens = (self.tokens + elapsed_s * f64::from(self.per_s)).min(f64::from(self.per_s));
        self.tokens > 0.0
    }

    /// Takes what a datagram's starts cost.
    pub(super) fn spend(&mut self, starts: u32) {
        self.tokens -= f64::from(starts);
    }
}
