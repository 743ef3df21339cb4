//! Sealed datagrams: the hot path without QUIC.
//!
//! A QUIC session authenticates both ends and carries the control stream; the
//! datagrams of [`crate::datagram`] may then travel through any transport that
//! moves bytes (plain UDP sockets, a kernel-bypass driver), each sealed by an
//! AEAD whose keys come from that session's TLS exporter (RFC 8446 §7.5). The
//! construction is that of QUIC packet protection (RFC 9001 §5, §6) with fixed
//! header fields in the clear.
//!
//! ```text
//!  0      1      2          4            8               12
//!  ┌──────┬──────┬──────────┬────────────┬───────────────┬────────────┬─────┐
//!  │ 0xd1 │flags │ seq high │  session   │   seq low     │ cipher text│ tag │
//!  └──────┴──────┴──────────┴────────────┴───────────────┴────────────┴─────┘
//!   associated data: the 12 bytes of the header             n bytes     16
//! ```
//!
//! * **Numbers.** Each direction counts its datagrams with 48 bits, which is
//!   also the nonce (xor-ed with a secret IV), so no nonce repeats under a key.
//! * **Replay.** The receiver remembers which of the newest
//!   [`REPLAY_WINDOW`] numbers it has opened ([`window`]).
//! * **Key update.** Each direction changes its key by itself after a number
//!   of datagrams or bytes, or when asked to. A bit of the header says which
//!   of two neighbouring keys sealed the datagram, another which key of the
//!   opposite direction its sender has seen in use: only then may that
//!   direction change again, so one bit is always enough.
//!
//! A datagram that does not open changes nothing; [`OpenError`] is the reason
//! to count ([`SealedCounters`]).

use thiserror::Error;

pub mod keys;
mod session;
pub mod window;

pub use keys::{Cipher, Secret};
pub use session::{OpenedDatagram, SealedConfig, SealedSession};
pub use window::REPLAY_WINDOW;

/// Bytes of the header in the clear.
pub const HEADER_BYTES: usize = 12;

/// Bytes of the authentication tag.
pub const TAG_BYTES: usize = 16;

/// Number of bytes that sealing adds to a datagram.
pub const OVERHEAD_BYTES: usize = HEADER_BYTES + TAG_BYTES;

/// The largest sealed datagram: an Ethernet frame's worth over IPv6.
pub const MAX_SEALED_BYTES: usize = 1_452;

/// The first byte: version 1 of this format. QUIC's first byte is different in
/// every packet that could be mistaken for one (RFC 9000 §17 sets bit 0x40 and,
/// in long headers, a version behind it); the two use different ports anyway.
const MAGIC: u8 = 0xd1;

/// Parity of the generation of the key that sealed the datagram.
const FLAG_PHASE: u8 = 1;
/// The low bit of the newest key of the other direction that the sender knows
/// to be in use.
const FLAG_SEEN: u8 = 1 << 1;

/// Numbers that 48 bits can hold.
const MAX_SEQ: u64 = (1 << 48) - 1;

/// Reason for not opening a sealed datagram, which changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum OpenError {
    /// Too short to hold a header and a tag.
    #[error("too short for a sealed datagram")]
    Truncated,
    /// Longer than any that is sent.
    #[error("longer than any sealed datagram")]
    Oversized,
    /// Another format, or flags that this version does not know.
    #[error("no sealed datagram of this version")]
    Malformed,
    /// Names an unknown session.
    #[error("names no session")]
    UnknownSession,
    /// Was opened before, or is older than the replay window.
    #[error("opened before, or too old to tell")]
    Replayed,
    /// Sealed under a key that is no longer kept.
    #[error("sealed under a key that is no longer kept")]
    OldKey,
    /// The tag does not fit: not sealed by the peer, or changed in transit.
    #[error("the tag does not fit")]
    Forged,
    /// The session's keys reached their integrity limit: too many datagrams failed to open.
    #[error("too many datagrams did not open under this session's keys")]
    Spent,
}

/// Reason for not sealing a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SealError {
    /// The datagram is too large.
    #[error("{bytes} bytes; at most {max} can be sealed")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// The key reached its limit and the peer has not followed the last update, or all sequence
    /// numbers are used: send by QUIC.
    #[error("the key is used up")]
    KeyExhausted,
}

/// The header of a sealed datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedHeader {
    /// Session number in the header, not authenticated.
    pub session: u32,
    /// Sequence number of the datagram.
    pub seq: u64,
    phase: bool,
    seen: bool,
}

impl SealedHeader {
    /// Reads the header; nothing of it is authenticated yet.
    ///
    /// # Errors
    /// The datagram cannot be one that [`SealedSession::seal`] made.
    pub fn parse(bytes: &[u8]) -> Result<Self, OpenError> {
        // A probe has no plain text: header and tag alone are valid.
        if bytes.len() < OVERHEAD_BYTES {
            return Err(OpenError::Truncated);
        }
        if bytes.len() > MAX_SEALED_BYTES {
            return Err(OpenError::Oversized);
        }
        // The 48-bit number is split around the session's: its high part before, its low part
        // behind it.
        let &[magic, flags, h0, h1, s0, s1, s2, s3, l0, l1, l2, l3, ..] = bytes else {
            return Err(OpenError::Truncated);
        };
        // Unknown flags belong to a later version, whose layout this one cannot know.
        if magic != MAGIC || flags & !(FLAG_PHASE | FLAG_SEEN) != 0 {
            return Err(OpenError::Malformed);
        }
        let high = u64::from(u16::from_le_bytes([h0, h1]));
        let low = u64::from(u32::from_le_bytes([l0, l1, l2, l3]));
        Ok(Self {
            session: u32::from_le_bytes([s0, s1, s2, s3]),
            seq: high << 32 | low,
            phase: flags & FLAG_PHASE != 0,
            seen: flags & FLAG_SEEN != 0,
        })
    }

    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let flag = |on: bool, flag: u8| if on { flag } else { 0 };
        let mut bytes = [0; HEADER_BYTES];
        // The whole header is associated data, so no bit of it can be changed in transit.
        bytes[0] = MAGIC;
        bytes[1] = flag(self.phase, FLAG_PHASE) | flag(self.seen, FLAG_SEEN);
        bytes[2..4].copy_from_slice(&((self.seq >> 32) as u16).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.session.to_le_bytes());
        bytes[8..12].copy_from_slice(&(self.seq as u32).to_le_bytes());
        bytes
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Sealed datagrams of one socket, or of one process.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct SealedCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl SealedCounters {
            /// Calls `visit` with the name and value of every counter.
            pub fn for_each(&self, mut visit: impl FnMut(&'static str, u64)) {
                $(visit(stringify!($name), self.$name);)*
            }

            /// Adds another socket's counters to these.
            pub fn add(&mut self, other: &Self) {
                $(self.$name = self.$name.saturating_add(other.$name);)*
            }
        }
    };
}

counters! {
    /// Datagrams sealed and handed to the socket.
    sealed,
    /// Bytes of them, headers and tags included.
    sealed_bytes,
    /// Datagrams opened.
    opened,
    /// Bytes of them, headers and tags included.
    opened_bytes,
    /// Datagrams that the socket did not take.
    unsent,
    /// Keys that were replaced, in either direction.
    key_updates,
    /// Dropped: too short.
    truncated,
    /// Dropped: too long.
    oversized,
    /// Dropped: another format.
    malformed,
    /// Dropped: no such session.
    unknown_session,
    /// Dropped: opened before, or older than the replay window.
    replayed,
    /// Dropped: the key is no longer kept.
    old_key,
    /// Dropped: the tag does not fit.
    forged,
    /// Dropped: too many were forged before it; the session goes on with QUIC.
    spent,
    /// Times that the socket could not be read.
    receive_errors,
    /// Dropped: from an address that is not the session's.
    wrong_address,
}

impl SealedCounters {
    /// Reads a datagram's header, or counts what is wrong with it.
    pub fn header_of(&mut self, bytes: &[u8]) -> Option<SealedHeader> {
        SealedHeader::parse(bytes)
            .inspect_err(|&reason| self.dropped(reason))
            .ok()
    }

    /// Counts a datagram that was not opened.
    pub fn dropped(&mut self, reason: OpenError) {
        let counter = match reason {
            OpenError::Truncated => &mut self.truncated,
            OpenError::Oversized => &mut self.oversized,
            OpenError::Malformed => &mut self.malformed,
            OpenError::UnknownSession => &mut self.unknown_session,
            OpenError::Replayed => &mut self.replayed,
            OpenError::OldKey => &mut self.old_key,
            OpenError::Forged => &mut self.forged,
            OpenError::Spent => &mut self.spent,
        };
        *counter += 1;
    }

    /// Datagrams dropped for any reason.
    pub fn dropped_total(&self) -> u64 {
        self.truncated
            + self.oversized
            + self.malformed
            + self.unknown_session
            + self.replayed
            + self.old_key
            + self.forged
            + self.spent
            + self.wrong_address
    }
}

#[cfg(test)]
mod tests;
