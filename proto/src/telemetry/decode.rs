//! Decoding of telemetry straight from a frame's body, without the generated types between.
//!
//! It takes what this project's encoder writes. Anything else (unknown fields, other wire types, a
//! body in parts) is left to the generated decoder, which decides what it means.

use super::{CreditState, LinkInt, ReceiverCount, Telemetry};

/// Key of `ControlMessage.telemetry`: field 7, with a length.
const TELEMETRY: u8 = 7 << 3 | LENGTH as u8;
/// Wire type of a varint.
const VARINT: u64 = 0;
/// Wire type of bytes with a length.
const LENGTH: u64 = 2;

/// Body of a message without entries, which says that what was told still stands.
const STANDS: [u8; 2] = [TELEMETRY, 0];

/// Bytes that are still to be read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads a varint; `None` if it is cut off or longer than 64 bits.
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for (index, &byte) in self.0.iter().take(10).enumerate() {
            if index == 9 && byte > 1 {
                return None;
            }
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.0 = &self.0[index + 1..];
                return Some(value);
            }
        }
        None
    }

    /// Reads a 32-bit varint; `None` also if it is longer.
    fn varint32(&mut self) -> Option<u32> {
        u32::try_from(self.varint()?).ok()
    }

    /// Reads a length and that many bytes.
    fn part(&mut self) -> Option<Self> {
        let length = usize::try_from(self.varint()?).ok()?;
        let (part, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(Reader(part))
    }

    /// Reads a key: field number and wire type.
    fn key(&mut self) -> Option<(u64, u64)> {
        let key = self.varint()?;
        Some((key >> 3, key & 7))
    }

    /// Reads all numbers of a packed field.
    fn numbers(&mut self) -> Option<Vec<u32>> {
        let mut part = self.part()?;
        let mut numbers = Vec::with_capacity(part.0.len().min(super::MAX_ENTRIES));
        while !part.is_empty() {
            numbers.push(part.varint32()?);
        }
        Some(numbers)
    }
}

fn receiver_count(mut from: Reader<'_>) -> Option<ReceiverCount> {
    let mut count = ReceiverCount::default();
    while !from.is_empty() {
        match from.key()? {
            (1, VARINT) => count.receiver = from.varint32()?,
            (2, VARINT) => count.active_senders = from.varint32()?,
            (3, VARINT) => count.lookahead_senders = from.varint32()?,
            (4, LENGTH) if count.senders.is_empty() => count.senders = from.numbers()?,
            (5, VARINT) => count.age_ns = from.varint()?,
            (6, LENGTH) if count.sender_flows.is_empty() => count.sender_flows = from.numbers()?,
            (7, VARINT) => count.excludes_managed = from.varint()? != 0,
            (8, VARINT) => count.stands = from.varint()? != 0,
            _ => return None,
        }
    }
    Some(count)
}

fn credit_state(mut from: Reader<'_>) -> Option<CreditState> {
    let mut credit = CreditState::default();
    while !from.is_empty() {
        match from.key()? {
            (1, VARINT) => credit.sender = from.varint32()?,
            (2, VARINT) => credit.receiver = from.varint32()?,
            (3, VARINT) => credit.granted_bytes = from.varint()?,
            (4, VARINT) => credit.consumed_bytes = from.varint()?,
            (5, VARINT) => credit.accumulated_bytes = from.varint()?,
            (6, VARINT) => credit.csn_marked_packets = from.varint()?,
            (7, VARINT) => credit.packets = from.varint()?,
            (8, VARINT) => credit.sender_bucket_bytes = from.varint()?,
            (9, VARINT) => credit.global_bucket_bytes = from.varint()?,
            (10, VARINT) => credit.age_ns = from.varint()?,
            (11, VARINT) => credit.flow = Some(from.varint32()?),
            _ => return None,
        }
    }
    Some(credit)
}

fn link_int(mut from: Reader<'_>) -> Option<LinkInt> {
    let mut link = LinkInt::default();
    while !from.is_empty() {
        match from.key()? {
            (1, VARINT) => link.link = from.varint32()?,
            (2, VARINT) => link.queue_bytes = from.varint()?,
            (3, VARINT) => link.tx_bytes = from.varint()?,
            (4, VARINT) => link.timestamp_ns = from.varint()?,
            (5, VARINT) => link.bandwidth_bps = from.varint()?,
            (6, VARINT) => link.age_ns = from.varint()?,
            (7, VARINT) => link.managed_bytes = Some(from.varint()?),
            (8, VARINT) => link.shaped_packets = from.varint()?,
            (9, VARINT) => link.interval_ns = from.varint()?,
            (10, VARINT) => link.former_queue_bytes = from.varint()?,
            _ => return None,
        }
    }
    Some(link)
}

impl Telemetry {
    /// Decodes the body of a control frame that is one telemetry message, without checking its
    /// values. `None` if it is anything else, or not as this project encodes it.
    pub(crate) fn decode_body(body: &[u8]) -> Option<Self> {
        if body == STANDS {
            return Some(Self::default());
        }
        let (&TELEMETRY, rest) = body.split_first()? else {
            return None;
        };
        let mut rest = Reader(rest);
        let mut from = rest.part()?;
        if !rest.is_empty() {
            return None;
        }
        let mut telemetry = Self::default();
        while !from.is_empty() {
            match from.key()? {
                (1, LENGTH) => telemetry.receivers.push(receiver_count(from.part()?)?),
                (2, LENGTH) => telemetry.credits.push(credit_state(from.part()?)?),
                (3, LENGTH) => telemetry.links.push(link_int(from.part()?)?),
                (4, VARINT) => telemetry.whole = from.varint()? != 0,
                _ => return None,
            }
        }
        Some(telemetry)
    }
}
