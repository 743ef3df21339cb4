//! The table `[frames]`, and the same values of single links.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

use crate::frames::{COUNTED_BYTES, Frames};

/// MTU in bytes; no IPv4 host has to take a smaller one for its largest packet.
pub(super) type MtuBytes = Bytes<576, 65_535>;

/// Bytes of a frame beside its packet; rates count 14.
pub(super) type OverheadBytes = Bytes<{ COUNTED_BYTES }, 1_000>;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FramesTable {
    mtu: Option<MtuBytes>,
    overhead: Option<OverheadBytes>,
    fabric_overhead: Option<OverheadBytes>,
}

impl FramesTable {
    pub(super) fn frames(&self) -> Frames {
        let usual = Frames::default();
        let overhead_bytes = self.overhead.map_or(usual.overhead_bytes, |b| b.0);
        Frames {
            mtu_bytes: self.mtu.map_or(usual.mtu_bytes, |b| b.0),
            overhead_bytes,
            fabric_overhead_bytes: self.fabric_overhead.map_or(overhead_bytes, |b| b.0),
        }
    }
}

/// A number of bytes within bounds.
#[derive(Clone, Copy)]
pub(super) struct Bytes<const MIN: u16, const MAX: u16>(pub(super) u16);

impl<'de, const MIN: u16, const MAX: u16> Deserialize<'de> for Bytes<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i64(BytesVisitor)
    }
}

struct BytesVisitor<const MIN: u16, const MAX: u16>;

impl<const MIN: u16, const MAX: u16> Visitor<'_> for BytesVisitor<MIN, MAX> {
    type Value = Bytes<MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number of bytes, {MIN} to {MAX}")
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        u16::try_from(value)
            .ok()
            .filter(|bytes| (MIN..=MAX).contains(bytes))
            .map(Bytes)
            .ok_or_else(|| {
                E::custom(format!(
                    "{value} bytes are out of range; use {MIN} to {MAX}"
                ))
            })
    }
}
