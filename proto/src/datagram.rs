//! A datagram: one fixed header, then start, end and rate records.
//!
//! A client sends starts and ends, a server rates; a datagram without records is an acknowledgement
//! or a keep-alive. All integers are little endian. Three flag bits are free. A transport that
//! seals datagrams itself carries this layout as its plain text.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::VERSION;
use crate::error::DatagramError;
use crate::records::{EndRecord, RateRecord, StartRecord};

/// Bytes of the header.
pub const HEADER_BYTES: usize = size_of::<Header>();

/// The smallest bound on a datagram's size under which sessions make progress:
/// a header and one record of any kind, rounded up.
pub const MIN_DATAGRAM_BYTES: usize = 64;

/// Delay of the acknowledgement of a datagram with [`flags::PROMPT_ACK`], at a peer whose other
/// acknowledgements are delayed by up to `ack_delay_ns`.
///
/// 1 ms, or a twentieth of a delay above 20 ms, which peers with slower links have; never more than
/// the delay itself. That is long enough for the first rate of a start, so this rate carries the
/// acknowledgement. It is short enough to repeat a lost datagram early.
pub const fn prompt_ack_delay_ns(ack_delay_ns: u64) -> u64 {
    const LEAST_NS: u64 = 1_000_000;
    let part_ns = ack_delay_ns / 20;
    let soon_ns = if part_ns > LEAST_NS {
        part_ns
    } else {
        LEAST_NS
    };
    if soon_ns < ack_delay_ns {
        soon_ns
    } else {
        ack_delay_ns
    }
}

/// Header flags.
pub mod flags {
    /// The receiver must acknowledge the datagram.
    pub const ACK_ELICITING: u8 = 1;
    /// Acknowledgement fields are valid.
    pub const HAS_ACK: u8 = 1 << 1;
    /// Sent by the server.
    pub const FROM_SERVER: u8 = 1 << 2;
    /// The kill switch is on (server only).
    pub const RELEASED: u8 = 1 << 3;
    /// The receiver must acknowledge within [`prompt_ack_delay_ns`](super::prompt_ack_delay_ns).
    pub const PROMPT_ACK: u8 = 1 << 4;
    /// All flags that this version knows.
    pub const ALL: u8 = ACK_ELICITING | HAS_ACK | FROM_SERVER | RELEASED | PROMPT_ACK;
}

/// The fixed header: 32 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Header {
    /// Protocol version, [`VERSION`].
    pub version: u8,
    /// See [`flags`].
    pub flags: u8,
    /// Start records that follow the header.
    pub starts: U16,
    /// End records after the starts.
    pub ends: U16,
    /// Rate records after the ends.
    pub rates: U16,
    /// The session, as the server's Welcome named it.
    pub session: U32,
    /// Low half of the allocator's epoch.
    pub epoch: U32,
    /// Low half of this datagram's sequence number.
    pub seq: U32,
    /// Low half of the newest sequence number received from the peer. In a server's datagram, the
    /// lease counts from that client datagram: the contents are valid until one lease after the
    /// client sent it.
    pub ack: U32,
    /// Bit `i`: `ack − 1 − i` was received as well.
    pub ack_bitmap: U64,
}

const _: () = assert!(HEADER_BYTES == 32);

impl Header {
    /// Returns true if all bits of `flag` are set.
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag == flag
    }
}

/// A datagram whose layout has been checked, borrowed from its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The header.
    pub header: &'a Header,
    /// Starts (from a client).
    pub starts: &'a [StartRecord],
    /// Ends (from a client).
    pub ends: &'a [EndRecord],
    /// Rates (from a server).
    pub rates: &'a [RateRecord],
}

/// End of a session: the sender of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionRole {
    /// The endpoint daemon.
    Client,
    /// The allocator.
    Server,
}

impl<'a> Datagram<'a> {
    /// Returns true if the datagram holds no record: an acknowledgement or a keep-alive.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty() && self.ends.is_empty() && self.rates.is_empty()
    }

    /// Checks the layout of a datagram that the end `role` sent.
    pub fn parse(bytes: &'a [u8], role: SessionRole) -> Result<Self, DatagramError> {
        let length = |want| DatagramError::Length {
            got: bytes.len(),
            want,
        };
        // The version comes first: another version's header may be shorter.
        match bytes.first() {
            None => return Err(length(HEADER_BYTES)),
            Some(&got) if got != VERSION => {
                return Err(DatagramError::Version { got, want: VERSION });
            }
            Some(_) => {}
        }
        let Ok((header, rest)) = Header::ref_from_prefix(bytes) else {
            return Err(length(HEADER_BYTES));
        };
        let from_server = header.has(flags::FROM_SERVER);
        let (starts, ends, rates) = (header.starts.get(), header.ends.get(), header.rates.get());
        // A datagram reflected to its sender, or with the peer's kinds of record, is malformed.
        let well_placed = match role {
            SessionRole::Client => !from_server && rates == 0 && !header.has(flags::RELEASED),
            SessionRole::Server => from_server && starts == 0 && ends == 0,
        };
        if !well_placed || header.flags & !flags::ALL != 0 {
            return Err(DatagramError::Malformed);
        }
        let (starts, ends, rates) = (usize::from(starts), usize::from(ends), usize::from(rates));
        // The counts are 16 bits each, so this sum cannot overflow.
        let want = HEADER_BYTES
            + starts * StartRecord::BYTES
            + ends * EndRecord::BYTES
            + rates * RateRecord::BYTES;
        // The last part takes exactly the rest, so a datagram with bytes to spare is refused as
        // well.
        let split = || {
            let (starts, rest) = <[StartRecord]>::ref_from_prefix_with_elems(rest, starts).ok()?;
            let (ends, rest) = <[EndRecord]>::ref_from_prefix_with_elems(rest, ends).ok()?;
            let rates = <[RateRecord]>::ref_from_bytes_with_elems(rest, rates).ok()?;
            Some((starts, ends, rates))
        };
        let (starts, ends, rates) = split().ok_or_else(|| length(want))?;
        Ok(Self {
            header,
            starts,
            ends,
            rates,
        })
    }
}

#[cfg(test)]
mod tests;
