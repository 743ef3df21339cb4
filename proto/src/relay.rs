//! Protocol between a relay and the allocator: many hosts' sessions over one connection (flowtune
//! §6, "More scalable rate update schemes").
//!
//! A relay ends the transport of its hosts' sessions and nothing else: the session itself is
//! between host and allocator. On a QUIC connection of the protocol [`ALPN`],
//!
//! - the relay opens a stream for each host. It begins with one frame, an
//!   [`Attach`]; after it comes the host's control stream, byte by byte;
//! - that stream's index names the host in datagrams: its **channel**. A
//!   channel means nothing on another connection, and is not used twice;
//! - each datagram is a [bundle](Bundle): datagrams of any number of hosts'
//!   sessions, in either direction. It waits for nothing but its like that is
//!   there already, so bundles grow with the load.
//!
//! A bundle is a row of entries, without a header:
//!
//! | bytes | what |
//! |---|---|
//! | 1 to 5 | the channel: seven bits a byte, the lowest first, the top bit on all but the last |
//! | 1 to 2 | the datagram's length, in the same way; never 0 |
//! | that length | the datagram |
//!
//! A number has one encoding only, the shortest. A bundle that is not a row of such entries to its
//! last byte is dropped as a whole.

use std::net::SocketAddr;

use prost::Message as _;
use thiserror::Error;

use crate::error::SessionError;
use crate::wire;

#[cfg(test)]
mod tests;

/// The name of this protocol in the TLS handshake.
pub const ALPN: &[u8] = b"ratewright-relay/1";

/// Largest UDP payload that a relay takes from a host, and the smallest that every path carries.
/// With it, a host's datagram always fits a bundle.
pub const HOST_MTU_BYTES: u16 = 1_200;

/// Smallest UDP payload between relay and allocator. It exceeds what the least MTU of IPv6 allows;
/// networks of these hosts have a larger one.
pub const RELAY_MTU_BYTES: u16 = 1_280;

/// The largest datagram that the allocator builds for a host behind a relay.
/// It fits a QUIC datagram in a UDP payload of [`HOST_MTU_BYTES`], alone in its
/// bundle too.
pub const MAX_DATAGRAM_BYTES: usize = 1_150;

/// The largest datagram that an entry can hold.
pub const MAX_ENTRY_DATAGRAM_BYTES: usize = (1 << 14) - 1;

/// Maximum number of bytes that an entry adds to its datagram.
pub const MAX_ENTRY_OVERHEAD_BYTES: usize = 7;

/// The longest body of an [`Attach`].
pub const MAX_ATTACH_BYTES: usize = 16 * 1024;

/// Reason for dropping a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BundleError {
    /// It ends within an entry.
    #[error("the bundle ends within an entry")]
    Truncated,
    /// A number that is too large, or not in its shortest form.
    #[error("a number that is too large or not in its shortest form")]
    Number,
    /// An entry without a datagram.
    #[error("an entry without a datagram")]
    Empty,
}

/// A datagram that no bundle of that size can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a datagram of {bytes} bytes does not fit a bundle of {max_bytes}")]
pub struct DatagramTooLarge {
    /// The datagram's size.
    pub bytes: usize,
    /// The bundle's.
    pub max_bytes: usize,
}

/// Builder that collects datagrams until a bundle is full.
#[derive(Debug, Clone, Default)]
pub struct Bundler {
    bytes: Vec<u8>,
    entries: usize,
}

impl Bundler {
    /// Adds a datagram. If the bundle of at most `max_bytes` is full, it is returned and must be
    /// sent; the datagram then begins the next one.
    ///
    /// # Errors
    /// The datagram is empty, or a bundle of this size cannot hold it alone; nothing has changed.
    pub fn push(
        &mut self,
        max_bytes: usize,
        channel: u32,
        datagram: &[u8],
    ) -> Result<Option<Vec<u8>>, DatagramTooLarge> {
        let bytes = datagram.len();
        let entry = length_of(channel) + length_of(bytes as u32) + bytes;
        // The parser refuses an empty entry, and a length of more than two bytes.
        if bytes == 0 || bytes > MAX_ENTRY_DATAGRAM_BYTES || entry > max_bytes {
            return Err(DatagramTooLarge { bytes, max_bytes });
        }
        // Never splits a datagram: a lost bundle loses whole datagrams only.
        let full = if self.bytes.len() + entry > max_bytes {
            self.take()
        } else {
            None
        };
        // `take` leaves an empty vector: one allocation per bundle, at its final size.
        if self.bytes.capacity() == 0 {
            self.bytes.reserve_exact(max_bytes);
        }
        put(&mut self.bytes, channel);
        put(&mut self.bytes, bytes as u32);
        self.bytes.extend_from_slice(datagram);
        self.entries += 1;
        Ok(full)
    }

    /// Takes the bundle so far, or `None` if it is empty.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        self.entries = 0;
        (!self.bytes.is_empty()).then(|| std::mem::take(&mut self.bytes))
    }

    /// Datagrams in the bundle so far.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Returns true if the bundle has no datagram.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }
}

/// A bundle whose layout has been checked, borrowed from its bytes.
#[derive(Debug, Clone, Copy)]
pub struct Bundle<'a> {
    bytes: &'a [u8],
}

impl<'a> Bundle<'a> {
    /// Checks a bundle from its first byte to its last.
    ///
    /// # Errors
    /// What is wrong with it. An empty one is well-formed.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BundleError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            (_, _, rest) = entry(rest)?;
        }
        Ok(Self { bytes })
    }

    /// The channel and the datagram of each entry, in order.
    pub fn entries(self) -> impl Iterator<Item = (u32, &'a [u8])> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || {
            // `parse` has checked every entry, so this ends only at the last byte.
            let (channel, datagram, after) = entry(rest).ok()?;
            rest = after;
            Some((channel, datagram))
        })
    }
}

/// The first entry's channel and datagram, and what comes after it.
fn entry(bytes: &[u8]) -> Result<(u32, &[u8], &[u8]), BundleError> {
    let (channel, rest) = number(bytes)?;
    let (length, rest) = number(rest)?;
    let length = length as usize;
    if length == 0 {
        return Err(BundleError::Empty);
    }
    if length > MAX_ENTRY_DATAGRAM_BYTES {
        return Err(BundleError::Number);
    }
    let (datagram, rest) = rest
        .split_at_checked(length)
        .ok_or(BundleError::Truncated)?;
    Ok((channel, datagram, rest))
}

/// Bytes of a number: seven bits in each.
fn length_of(value: u32) -> usize {
    // Zero takes one byte as well.
    (32 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

fn put(bytes: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn number(bytes: &[u8]) -> Result<(u32, &[u8]), BundleError> {
    let mut value = 0u64;
    // Five bytes of seven bits hold every u32; the sum needs 35 bits.
    for (at, &byte) in bytes.iter().take(5).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            // A last byte of zero adds no bits: the number has a shorter form.
            let shortest = byte != 0 || at == 0;
            return match u32::try_from(value) {
                Ok(value) if shortest => Ok((value, &bytes[at + 1..])),
                _ => Err(BundleError::Number),
            };
        }
    }
    Err(if bytes.len() < 5 {
        BundleError::Truncated
    } else {
        BundleError::Number
    })
}

/// First frame of a host's stream: certificate and address of the host, as the relay saw them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attach {
    /// The certificate that the host showed to the relay, in DER form.
    pub certificate: Vec<u8>,
    /// Certificates between it and the authority, in DER form.
    pub intermediates: Vec<Vec<u8>>,
    /// Address of the host's connection.
    pub address: SocketAddr,
}

impl Attach {
    /// The frame, length included.
    pub fn to_frame(&self) -> Vec<u8> {
        wire::RelayAttach {
            certificate: self.certificate.clone(),
            address: self.address.to_string(),
            intermediates: self.intermediates.clone(),
        }
        .encode_length_delimited_to_vec()
    }

    /// Decodes and checks a frame's body.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(body: &[u8]) -> Result<Self, SessionError> {
        if body.len() > MAX_ATTACH_BYTES {
            return Err(SessionError::FrameTooLarge {
                bytes: body.len(),
                max: MAX_ATTACH_BYTES,
            });
        }
        let message = wire::RelayAttach::decode(body)
            .map_err(|error| SessionError::Decode(error.to_string()))?;
        let invalid = |field, problem: &str| SessionError::Invalid {
            field,
            problem: problem.to_owned(),
        };
        // The allocator authenticates the host by this certificate: without it the stream has no
        // owner.
        if message.certificate.is_empty() {
            return Err(invalid("RelayAttach.certificate", "is missing"));
        }
        Ok(Self {
            certificate: message.certificate,
            intermediates: message.intermediates,
            address: message
                .address
                .parse()
                .map_err(|_| invalid("RelayAttach.address", "is no address and port"))?,
        })
    }
}
