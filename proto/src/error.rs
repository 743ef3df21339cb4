//! Errors of datagrams and of calls on a session.

use thiserror::Error;

use crate::records::FlowId;

/// Reason for dropping a datagram. Only the counter of this reason has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DatagramError {
    /// No session is established yet, or it is over.
    #[error("no session is established")]
    NotEstablished,
    /// Too short for its header, or of another length than the header's counts require.
    #[error("{got} bytes, where the header and its counts ask for {want}")]
    Length {
        /// Bytes that were received.
        got: usize,
        /// Bytes that the header asks for.
        want: usize,
    },
    /// The first byte names another protocol version.
    #[error("protocol version {got}, this side speaks {want}")]
    Version {
        /// The datagram's version.
        got: u8,
        /// This side's version.
        want: u8,
    },
    /// Unknown flag bits, the wrong direction, or records of the wrong kind.
    #[error("flags or record kinds that this direction does not carry")]
    Malformed,
    /// A record with a slot beyond the agreed flow table.
    #[error("slot {slot} lies beyond the table of {limit} flows")]
    SlotOutOfRange {
        /// The record's slot.
        slot: u32,
        /// Slots that were agreed.
        limit: u32,
    },
    /// Belongs to another session or to another allocator epoch.
    #[error("another session or epoch")]
    WrongSession,
    /// Acknowledges a datagram that was never sent.
    #[error("acknowledges a datagram that was not sent")]
    AckOfUnsent,
    /// Was received before.
    #[error("received before")]
    Duplicate,
    /// Too far behind the newest datagram to be acknowledged.
    #[error("too far behind the newest datagram")]
    TooOld,
    /// Its lease ran out before it arrived, or cannot be dated any more.
    #[error("its lease ran out on the way")]
    Expired,
}

/// Reason for the failure of a call on a session, or for refusing a control frame.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SessionError {
    /// The flow's slot lies beyond the flow table's bound.
    #[error("flow {flow}: the flow table has {max_flows} slots")]
    TableFull {
        /// The flow.
        flow: FlowId,
        /// Slots of the table.
        max_flows: u32,
    },
    /// The slot's last flowlet had this id and is over: a new one needs the
    /// next generation.
    #[error("flow {0} is over; a new flowlet on its slot needs the next generation")]
    GenerationReused(FlowId),
    /// No flow of that id is active.
    #[error("flow {0} is not active")]
    UnknownFlow(FlowId),
    /// The call needs an established session, or the peer sent a message
    /// before its turn.
    #[error("{0} needs an established session")]
    NotEstablished(&'static str),
    /// The session was refused or is over.
    #[error("the session is closed")]
    Closed,
    /// The peer sent a message that only this side sends, or sent it twice.
    #[error("unexpected message: {0}")]
    Unexpected(&'static str),
    /// The bytes are no control message.
    #[error("undecodable control message: {0}")]
    Decode(String),
    /// A field of a message has a value that it cannot have.
    #[error("{field}: {problem}")]
    Invalid {
        /// The message and the field.
        field: &'static str,
        /// Description of the mistake.
        problem: String,
    },
    /// The frame is larger than the protocol allows.
    #[error("a control frame of {bytes} bytes; the bound is {max}")]
    FrameTooLarge {
        /// Its size.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// More control messages wait to be written than the bound allows.
    #[error("{bytes} bytes of control messages wait already; the bound is {max}")]
    Backlog {
        /// Bytes that wait.
        bytes: usize,
        /// The bound.
        max: usize,
    },
}
