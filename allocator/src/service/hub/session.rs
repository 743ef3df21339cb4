//! What the hub holds for one session.

use ratewright_proto::control::Hello;
use ratewright_proto::records::{FlowId, StartRecord};
use ratewright_proto::server::ServerSession;
use ratewright_topology::HostId;

use super::budget::Budget;
use super::table::FlowTable;
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
    pub(super) peer: Option<Peer>,
    /// What is active, by slot.
    pub(super) flows: FlowTable,
    /// How many of them have a place in the engine.
    pub(super) placed: u32,
    pub(super) release: Release,
    pub(super) starts: Budget,
    pub(super) datagrams: Budget,
    /// In bytes.
    pub(super) control: Budget,
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
