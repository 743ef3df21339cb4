//! A message that a host sends.

use ratewright_topology::HostId;

use crate::flow::{FlowId, FlowSpec};
use crate::time::Time;
use crate::transport::ranges::RangeSet;

/// Part of a message that fits a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageSegment {
    /// First byte.
    pub seq: u64,
    /// Bytes.
    pub bytes: u16,
    /// True if it was sent before.
    pub again: bool,
}

/// A message that a host sends.
#[derive(Debug)]
pub struct Outgoing<S> {
    /// The flow.
    pub id: FlowId,
    /// The receiver.
    pub dst: HostId,
    /// Length; less than the flow's once the application has stopped.
    pub bytes: u64,
    /// True while it waits for its turn on the link.
    pub queued: bool,
    /// True once it is acknowledged.
    pub done: bool,
    /// State of the scheme.
    pub own: S,
    pub(super) path_hash: u16,
    /// Time at which something of its receiver came, or of its sender left.
    pub(super) heard_at: Time,
    /// First byte that was never sent.
    next: u64,
    /// Bytes before this one may be sent.
    allowed: u64,
    /// Bytes that the receiver asked for again.
    again: RangeSet,
}

impl<S> Outgoing<S> {
    pub(super) fn new(
        id: FlowId,
        spec: &FlowSpec,
        allowed_bytes: u64,
        path_hash: u16,
        now: Time,
        own: S,
    ) -> Self {
        Self {
            id,
            dst: spec.dst,
            bytes: spec.bytes,
            queued: false,
            done: false,
            own,
            path_hash,
            heard_at: now,
            next: 0,
            allowed: allowed_bytes.min(spec.bytes),
            again: RangeSet::default(),
        }
    }

    /// Allows the bytes before this one.
    #[inline]
    pub fn allow(&mut self, end: u64) {
        self.allowed = self.allowed.max(end.min(self.bytes));
    }

    /// Returns the first byte that may not be sent.
    #[must_use]
    pub fn allowed(&self) -> u64 {
        self.allowed
    }

    /// Returns the first byte that was never sent.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.next
    }

    /// Returns the bytes that were never sent.
    #[inline]
    #[must_use]
    pub fn unsent_bytes(&self) -> u64 {
        self.bytes - self.next
    }

    /// Returns the bytes that are still to be sent, perhaps again.
    #[inline]
    #[must_use]
    pub fn remaining_bytes(&self) -> u64 {
        self.unsent_bytes() + self.again.bytes()
    }

    /// Returns true if something may be sent.
    #[inline]
    #[must_use]
    pub fn has_segment(&self) -> bool {
        self.next < self.allowed || !self.again.is_empty()
    }

    /// Returns the next part to be sent of those that may be: what was asked for again goes first.
    #[inline]
    #[must_use]
    pub fn segment(&self, mss_bytes: u16) -> Option<MessageSegment> {
        let mss = u64::from(mss_bytes);
        if let Some(&(first, end)) = self.again.ranges().first() {
            return Some(MessageSegment {
                seq: first,
                bytes: (end - first).min(mss) as u16,
                again: true,
            });
        }
        (self.next < self.allowed).then(|| MessageSegment {
            seq: self.next,
            bytes: (self.allowed - self.next).min(mss) as u16,
            again: false,
        })
    }

    /// Notes that a part leaves.
    #[inline]
    pub(super) fn sent(&mut self, segment: MessageSegment, now: Time) {
        let end = segment.seq + u64::from(segment.bytes);
        if segment.again {
            self.again.remove_before(end);
        } else {
            self.next = end;
        }
        self.heard_at = now;
    }

    /// Takes a receiver's word that it misses these bytes. Returns false if none of them was sent.
    pub(super) fn ask_again(&mut self, first: u64, end: u64) -> bool {
        let end = end.min(self.next);
        if first >= end {
            return false;
        }
        self.again.insert(first, end);
        true
    }

    /// Ends the message one byte after what was sent.
    pub(super) fn stop(&mut self) {
        self.bytes = self.bytes.min(self.next + 1);
        self.allowed = self.allowed.min(self.bytes);
    }
}
