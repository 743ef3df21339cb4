//! Capacity of a queue, in packets or in bytes.

use crate::parameters::ParamError;

/// Capacity of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum QueueLimit {
    /// Number of packets.
    Packets(u32),
    /// Bytes on the link.
    Bytes(u64),
    /// No limit.
    #[default]
    Unlimited,
}

impl QueueLimit {
    /// Returns true if a packet fits into a queue of this length.
    #[inline]
    #[must_use]
    pub const fn fits(self, packets: u32, bytes: u64, wire_bytes: u16) -> bool {
        Bounds::of(self).fits(packets, bytes, wire_bytes)
    }
}

/// A [`QueueLimit`] as two numbers, so that a comparison does not branch on its kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bounds {
    bytes: u64,
    packets: u32,
}

impl Bounds {
    pub(super) const fn of(limit: QueueLimit) -> Self {
        // A bound that does not apply is the largest value, which no queue reaches.
        let (packets, bytes) = match limit {
            QueueLimit::Packets(packets) => (packets, u64::MAX),
            QueueLimit::Bytes(bytes) => (u32::MAX, bytes),
            QueueLimit::Unlimited => (u32::MAX, u64::MAX),
        };
        Self { bytes, packets }
    }

    /// Returns true if a packet fits into a queue of this length.
    #[inline]
    pub(super) const fn fits(self, packets: u32, bytes: u64, wire_bytes: u16) -> bool {
        // `&` and not `&&`: two comparisons and no branch.
        (packets < self.packets) & (bytes + wire_bytes as u64 <= self.bytes)
    }

    /// Returns true if a queue of this length has reached one of the bounds.
    #[inline]
    pub(super) const fn reached(self, packets: u32, bytes: u64) -> bool {
        (packets >= self.packets) | (bytes >= self.bytes)
    }
}

crate::parameters! {
    /// Capacity of a queue; without either key it has no limit.
    pub struct Limit {
        /// Packets that the queue holds.
        limit_packets: Option<u32> = None,
        /// Bytes on the link that the queue holds, in place of packets.
        limit_bytes: Option<u64> = None,
    }
}

impl Limit {
    /// Holds this number of packets.
    #[must_use]
    pub const fn packets(packets: u32) -> Self {
        Self {
            limit_packets: Some(packets),
            limit_bytes: None,
        }
    }

    /// Holds this number of bytes.
    #[must_use]
    pub const fn bytes(bytes: u64) -> Self {
        Self {
            limit_packets: None,
            limit_bytes: Some(bytes),
        }
    }

    /// Returns the capacity.
    #[must_use]
    pub const fn capacity(&self) -> QueueLimit {
        length(self.limit_packets, self.limit_bytes)
    }

    /// Checks that the queue holds a packet of `packet_bytes`: a shorter one would drop everything.
    ///
    /// # Errors
    /// A capacity of less than a packet, or two capacities.
    pub fn check(&self, packet_bytes: u16) -> Result<(), ParamError> {
        let keys = ["limit_packets", "limit_bytes"];
        check_length(keys, self.limit_packets, self.limit_bytes)?;
        match self.limit_bytes {
            Some(bytes) => holds_a_packet(bytes, packet_bytes)
                .map_err(|message| ParamError::of("limit_bytes", message)),
            None => Ok(()),
        }
    }
}

/// The length that is given in packets or in bytes.
pub(super) const fn length(packets: Option<u32>, bytes: Option<u64>) -> QueueLimit {
    match (packets, bytes) {
        (Some(packets), _) => QueueLimit::Packets(packets),
        (None, Some(bytes)) => QueueLimit::Bytes(bytes),
        (None, None) => QueueLimit::Unlimited,
    }
}

/// Refuses two lengths, and one of 0.
pub(super) fn check_length(
    [in_packets, in_bytes]: [&str; 2],
    packets: Option<u32>,
    bytes: Option<u64>,
) -> Result<(), ParamError> {
    let zero = "a queue's length must not be 0";
    match (packets, bytes) {
        (Some(_), Some(_)) => {
            let message = "a length is given in packets and in bytes; keep one";
            Err(ParamError::of(in_bytes, message))
        }
        (Some(0), None) => Err(ParamError::of(in_packets, zero)),
        (None, Some(0)) => Err(ParamError::of(in_bytes, zero)),
        _ => Ok(()),
    }
}

/// Refuses a capacity of less than a packet of `packet_bytes`.
///
/// # Errors
/// The mistake in words.
pub fn holds_a_packet(bytes: u64, packet_bytes: u16) -> Result<(), String> {
    if bytes >= u64::from(packet_bytes) {
        return Ok(());
    }
    Err(format!(
        "{bytes} bytes hold no packet, and all would be dropped: one takes {packet_bytes} bytes on a link"
    ))
}
