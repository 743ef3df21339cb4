//! Events of a client's session.

use crate::control::{Members, Refusal, TopologySnapshot, Welcome};
use crate::records::FlowId;

/// Reason for the end of a session that the server did not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossReason {
    /// The server did not answer the Hello in time.
    HandshakeTimeout,
    /// Nothing valid arrived from the server for the liveness time.
    Silence,
}

/// Event that the caller of a [`ClientSession`](super::ClientSession) acts on.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientEvent {
    /// The server accepted the session.
    Established(Box<Welcome>),
    /// The topology has changed.
    Topology(TopologySnapshot),
    /// Hosts have joined or left at run time.
    Members(Members),
    /// A flow's rate, to be applied until `expires_ns` on the caller's clock,
    /// or until the next [`LeaseRenewed`](Self::LeaseRenewed). A rate of 0
    /// means that the flow has no allocation: plain TCP.
    Rate {
        /// The flow; it is active.
        flow: FlowId,
        /// Its rate.
        rate_bps: u64,
        /// Expiry of the rate.
        expires_ns: u64,
    },
    /// All rates of this session that have not expired hold until `expires_ns`. If they had
    /// expired, each follows again as a [`Rate`](Self::Rate).
    LeaseRenewed {
        /// New expiry of the rates.
        expires_ns: u64,
    },
    /// The kill switch. `true`: take all pacing off, then call
    /// [`confirm_release`](super::ClientSession::confirm_release). Rates follow again after
    /// `false`.
    Released(bool),
    /// The server refused or ended the session. Without `retry`, another
    /// attempt is pointless until an operator has acted.
    Refused(Refusal),
    /// The session is over; reconnect.
    SessionLost(LossReason),
}
