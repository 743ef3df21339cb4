//! A message that a host receives.

use ratewright_topology::HostId;

use crate::flow::FlowId;
use crate::packet::{Flags, Packet};
use crate::time::Time;
use crate::transport::ranges::RangeSet;

/// A message that a host receives.
#[derive(Debug)]
pub struct Incoming<R> {
    /// The flow.
    pub id: FlowId,
    /// The sender.
    pub src: HostId,
    /// Length; less than the flow's once the application has stopped.
    pub bytes: u64,
    /// Bytes before this one may come: the unscheduled prefix, and what was granted.
    pub allowed: u64,
    /// State of the scheme.
    pub own: R,
    /// Time at which something of it came, or was last asked for.
    pub heard_at: Time,
    received: RangeSet,
}

impl<R> Incoming<R> {
    pub(super) fn new(
        id: FlowId,
        src: HostId,
        bytes: u64,
        allowed_bytes: u64,
        now: Time,
        own: R,
    ) -> Self {
        Self {
            id,
            src,
            bytes,
            allowed: allowed_bytes.min(bytes),
            own,
            heard_at: now,
            received: RangeSet::default(),
        }
    }

    /// Returns the bytes that have come.
    #[inline]
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        self.received.bytes()
    }

    /// Returns the bytes that have not come.
    #[inline]
    #[must_use]
    pub fn remaining_bytes(&self) -> u64 {
        self.bytes - self.received.bytes()
    }

    /// Returns true if all bytes have come.
    #[inline]
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.received.bytes() >= self.bytes
    }

    /// Takes a packet. Returns its bytes that had not come before.
    #[inline]
    pub(super) fn on_packet(&mut self, packet: &Packet, now: Time) -> u64 {
        self.heard_at = now;
        if packet.flags.contains(Flags::FIN) {
            self.bytes = self.bytes.min(packet.end());
            self.allowed = self.allowed.min(self.bytes);
        }
        let before = self.received.bytes();
        self.received.insert(packet.seq, packet.end());
        self.received.bytes() - before
    }

    /// Returns the first range at or behind `from` that may have come and has not.
    #[must_use]
    pub(super) fn missing_from(&self, from: u64) -> Option<(u64, u64)> {
        self.gap_from(from, self.allowed)
    }

    /// Returns the first range from `from` to `before` that has not come.
    #[must_use]
    pub fn gap_from(&self, from: u64, before: u64) -> Option<(u64, u64)> {
        let (first, end) = self.received.gap_from(from);
        let end = end.unwrap_or(u64::MAX).min(before);
        (first < end).then_some((first, end))
    }

    /// Returns true if something that may have come has not.
    #[must_use]
    pub fn misses_any(&self) -> bool {
        self.missing_from(0).is_some()
    }
}
