//! Transport state of one session.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Notify;

/// Route of a host's QUIC traffic.
pub(in crate::service::runtime) enum Route {
    /// A connection of its own.
    Direct(quinn::Connection),
    /// A channel of a relay's connection.
    Relay {
        relay: u32,
        channel: u32,
        /// Address from which the host connects to the relay.
        address: SocketAddr,
    },
}

/// Transport state of a session.
pub(super) struct SessionTransport {
    pub(super) route: Route,
    /// Control frames that wait for the stream.
    pub(super) outbox: VecDeque<Bytes>,
    pub(super) outbox_bytes: usize,
    /// Wakes the stream's writer.
    pub(super) outbox_ready: Arc<Notify>,
    /// Time of this session's newest entry among the timers.
    pub(super) scheduled_ns: Option<u64>,
    /// Time of the last sealed datagram taken. Datagrams to the host are sealed while it is set; a
    /// change back to QUIC clears it.
    pub(super) sealed_ns: Option<u64>,
    /// It is in its port's queue of sessions with first rates. It may be in the other
    /// queue too: a first rate does not wait where later ones do.
    pub(super) queued_first: bool,
    pub(super) queued: bool,
}
