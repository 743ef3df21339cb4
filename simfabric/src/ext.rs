//! Packet extensions: a side table for data that few packets carry, so that packets stay at 64
//! bytes.

use arrayvec::ArrayVec;

use crate::packet::Packet;
use crate::time::Time;

/// XCP's congestion header (XCP §3.1), which routers read and write in every data packet.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct XcpHeader {
    /// The sender's congestion window, in bytes.
    pub cwnd_bytes: f64,
    /// The sender's estimate of the round-trip time, in seconds; 0: none yet.
    pub rtt_s: f64,
    /// Change of the window, in bytes: first the sender's request, then the least that any router
    /// granted, then the value that the receiver returns.
    pub feedback_bytes: f64,
}

/// Telemetry of one hop (fncc §3.2: bandwidth, time, bytes sent, queue).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IntHop {
    /// The link's rate, in bit/s.
    pub rate_bps: u64,
    /// Time at which the packet left the queue, in picoseconds.
    pub at_ps: u64,
    /// Bytes that the port had sent by then.
    pub tx_bytes: u64,
    /// Bytes left in the port's queue.
    pub queue_bytes: u64,
}

/// A segment of a TCP connection that carries real bytes ([`crate::transport::tcp::stream`]).
#[derive(Clone, PartialEq, Debug, Default)]
pub struct StreamSegment {
    /// Number of the connection; the same two nodes have another number for a later connection.
    pub connection: u32,
    /// Position in the stream of the segment's first byte.
    pub seq: u64,
    /// The next byte that its sender expects.
    pub ack: u64,
    /// The segment's time stamp (RFC 7323 §3.2, TSval).
    pub sent_at: Time,
    /// Echo of the time stamp of the segment that arrived last at the sender (TSecr).
    pub echo: Time,
    /// Ranges [first, end) that the sender holds out of order (RFC 2018 §3).
    pub blocks: ArrayVec<(u64, u64), 3>,
    /// Payload; empty in a bare acknowledgement.
    pub bytes: Vec<u8>,
}

/// Data that a packet carries beyond its header.
#[derive(Clone, PartialEq, Debug)]
pub enum Extension {
    /// Selective acknowledgements: ranges [first, end) of bytes received out of order
    /// (RFC 2018 §3; three blocks fit beside a time stamp).
    Sack(ArrayVec<(u64, u64), 3>),
    /// XCP's congestion header.
    Xcp(XcpHeader),
    /// Bytes of a real protocol, or of the scheme's own.
    Bytes(Vec<u8>),
    /// Segment of a TCP connection with real bytes.
    Segment(StreamSegment),
    /// In-band telemetry, one entry per hop that stamped it.
    Int(ArrayVec<IntHop, 6>),
}

/// The side table. Byte buffers are reused: [`buffer`](Self::buffer) hands one out and
/// [`recycle`](Self::recycle) takes it back, so that steady state allocates nothing.
#[derive(Debug, Default)]
pub struct Extensions {
    slots: Vec<Option<Extension>>,
    free: Vec<u32>,
    buffers: Vec<Vec<u8>>,
}

impl Extensions {
    /// Attaches an extension to a packet and drops the one that it has.
    ///
    /// # Panics
    /// If 2³² − 1 packets carry one.
    pub fn attach(&mut self, packet: &mut Packet, extension: Extension) {
        // Otherwise the slot of the old extension would stay occupied for ever.
        self.discard(packet);
        let index = if let Some(index) = self.free.pop() {
            self.slots[index as usize] = Some(extension);
            index
        } else {
            self.slots.push(Some(extension));
            (self.slots.len() - 1) as u32
        };
        packet.ext = index
            .checked_add(1)
            .expect("fewer than 2^32 - 1 extensions");
    }

    /// Returns the extension of a packet.
    #[must_use]
    pub fn get(&self, packet: &Packet) -> Option<&Extension> {
        // `ext` is the index + 1, so a packet without extension (0) yields `None` here.
        self.slots
            .get((packet.ext as usize).checked_sub(1)?)?
            .as_ref()
    }

    /// Returns the extension of a packet for changes in place.
    pub fn get_mut(&mut self, packet: &Packet) -> Option<&mut Extension> {
        self.slots
            .get_mut((packet.ext as usize).checked_sub(1)?)?
            .as_mut()
    }

    /// Detaches the extension of a packet and returns it.
    pub fn take(&mut self, packet: &mut Packet) -> Option<Extension> {
        let index = std::mem::take(&mut packet.ext).checked_sub(1)?;
        let taken = self.slots.get_mut(index as usize)?.take();
        // Packets are copied; a second copy with this index must not free the slot again.
        if taken.is_some() {
            self.free.push(index);
        }
        taken
    }

    /// Drops the extension of a packet, if it has one.
    pub fn discard(&mut self, packet: &mut Packet) {
        if packet.ext == 0 {
            return;
        }
        match self.take(packet) {
            Some(Extension::Bytes(buffer)) => self.recycle(buffer),
            Some(Extension::Segment(segment)) => self.recycle(segment.bytes),
            _ => {}
        }
    }

    /// Returns an empty buffer for [`Extension::Bytes`].
    #[must_use]
    pub fn buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    /// Takes a buffer back for later use.
    pub fn recycle(&mut self, mut buffer: Vec<u8>) {
        // The capacity stays, which is what makes reuse free of allocations.
        buffer.clear();
        self.buffers.push(buffer);
    }

    /// Number of packets that carry an extension.
    #[must_use]
    pub fn live(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extension_belongs_to_one_packet_and_its_place_is_used_again() {
        let mut table = Extensions::default();
        let (mut a, mut b) = (Packet::default(), Packet::default());
        table.attach(&mut a, Extension::Xcp(XcpHeader::default()));
        table.attach(&mut b, Extension::Bytes(vec![1, 2]));
        assert_eq!(table.live(), 2);
        assert_eq!(
            table.take(&mut a),
            Some(Extension::Xcp(XcpHeader::default()))
        );
        assert_eq!(table.take(&mut a), None);
        assert_eq!(table.get(&b), Some(&Extension::Bytes(vec![1, 2])));
        table.attach(&mut a, Extension::Sack(ArrayVec::new()));
        assert_eq!(a.ext, 1);
        table.discard(&mut b);
        assert_eq!(table.live(), 1);
        assert!(table.buffer().is_empty());
    }
}
