//! What the hub holds for one session.

use ratewright_proto::control::Hello;
use ratewright_proto::records::{FlowId, StartRecord};
use ratewright_proto::server::ServerSession;
use ratewright_topology::HostId;

use super::session_flows::SessionFlows;
use super::token_bucket::TokenBucket;
use crate::service::config::RelayIdentity;
use crate::service::tls::PeerCertificate;

/// One transport connection, from its first byte to its last.
pub(super) struct Session {
    pub(super) id: u32,
    /// The protocol's state machine.
    pub(super) proto: ServerSession,
    /// The certificate that the peer showed.
    pub(super) certificate: PeerCertificate,
    /// The relay that it came through, if it did.
    pub(super) relay: Option<RelayIdentity>,
    /// Who it is, once it was accepted.
    pub(super) peer: Option<AcceptedHost>,
    /// What is active, by slot.
    pub(super) flows: SessionFlows,
    /// How many of them have a place in the engine.
    pub(super) allocated: u32,
    /// How many of them have no path.
    pub(super) unroutable: u32,
    /// When flows that wait for credit are looked at again; nothing if none waits.
    pub(super) deferred_ns: Option<u64>,
    /// Changes of demands.
    pub(super) demands: TokenBucket,
    pub(super) release: Release,
    pub(super) starts: TokenBucket,
    pub(super) datagrams: TokenBucket,
    /// In bytes.
    pub(super) control: TokenBucket,
    /// It stands in the list of sessions that have something to send.
    pub(super) is_ready: bool,
    /// Why the transport is to be closed, once what is queued has left.
    pub(super) closing: Option<&'static str>,
}

/// An accepted host.
pub(super) struct AcceptedHost {
    pub(super) host: HostId,
    pub(super) hello: Hello,
}

/// A flow that its endpoint declared active.
#[derive(Debug, Clone, Copy)]
pub(super) struct HubFlow {
    pub(super) record: StartRecord,
    pub(super) placement: Placement,
    /// It has been given a rate since it started, or since it was said to use more.
    pub(super) has_rate: bool,
    /// The engine that it was put before, if it stands before one; they are counted.
    pub(super) engine: u8,
}

/// Where a flow stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    /// The engine allocates to it.
    Allocated,
    /// It is left to plain TCP.
    Unmanaged(UnmanagedReason),
}

/// Why a flow gets no rate. It is counted, and its endpoint is told that it has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnmanagedReason {
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
    /// More flowlets started than all hosts together may start in a second.
    StartRate,
}

impl UnmanagedReason {
    /// The reason in metrics.
    pub fn reason(self) -> &'static str {
        match self {
            Self::UnknownHost => "unknown_host",
            Self::SameHost => "same_host",
            Self::Unroutable => "unroutable",
            Self::UnknownClass => "unknown_class",
            Self::TableFull => "table_full",
            Self::StartRate => "start_rate",
        }
    }
}

/// Flows by where they stand, of all sessions; each session counts its own.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    /// Flows that are known.
    pub(super) known: u64,
    /// Flows that the engine allocates to.
    pub(super) allocated: u32,
    /// Flows without a path.
    pub(super) unroutable: u32,
}

impl Tallies {
    /// Counts that a flow of a session begins, ends or stands elsewhere.
    pub(super) fn change(
        &mut self,
        session: &mut Session,
        before: Option<Placement>,
        after: Option<Placement>,
    ) {
        for (placement, plus) in [(before, false), (after, true)] {
            let Some(placement) = placement else { continue };
            let add = |count: &mut u32| if plus { *count += 1 } else { *count -= 1 };
            if plus {
                self.known += 1;
            } else {
                self.known -= 1;
            }
            match placement {
                Placement::Allocated => [&mut self.allocated, &mut session.allocated].map(add),
                Placement::Unmanaged(UnmanagedReason::Unroutable) => {
                    [&mut self.unroutable, &mut session.unroutable].map(add)
                }
                Placement::Unmanaged(_) => continue,
            };
        }
    }

    /// Counts that all flows of a session end. True if the engine allocated to some.
    pub(super) fn forget(&mut self, session: &mut Session) -> bool {
        let allocated = std::mem::take(&mut session.allocated);
        self.known -= session.flows.len() as u64;
        self.allocated -= allocated;
        self.unroutable -= std::mem::take(&mut session.unroutable);
        allocated > 0
    }
}

impl HubFlow {
    /// The engine of this number allocates to it, or will when it has taken its events.
    pub(super) fn is_allocated_by(&self, engine: u8) -> bool {
        self.placement == Placement::Allocated && self.engine == engine
    }

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
