//! Packet extensions: a side table for data that few packets carry, so that packets stay at 64
//! bytes. Each extension is one cache line. The engine frees it with its packet: when the packet is
//! dropped, and after its host has handled it, unless the host took it.

use arrayvec::ArrayVec;

use crate::packet::Packet;
use crate::time::{Span, Time};

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

/// Telemetry of one hop in 64 bits (FNCC §4.3): 4 bits of rate, 24 of time, 20 of bytes sent, 16 of
/// queue. Units are those of HPCC's public simulator: nanoseconds, 128 bytes, 80 bytes. Time and
/// bytes sent wrap around, so that receivers take differences; the queue saturates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IntHop(u64);

impl IntHop {
    /// Telemetry of no port: a link without a rate.
    pub const NONE: Self = Self(0);
    /// Rates that the code stands for, in Gbit/s; 0 is that of no port. FNCC does not list them.
    pub const RATES_GBPS: [u64; 16] = [
        0, 1, 2, 5, 10, 20, 25, 40, 50, 80, 100, 160, 200, 400, 800, 1_600,
    ];
    const TIME_BITS: u32 = 24;
    const BYTES_BITS: u32 = 20;
    const QUEUE_BITS: u32 = 16;
    const BYTES_UNIT: u64 = 128;
    const QUEUE_UNIT: u64 = 80;

    /// Makes the telemetry of a port at a moment. The rate becomes the largest listed one that does
    /// not exceed it.
    #[must_use]
    pub fn new(rate_bps: u64, at: Time, sent_bytes: u64, queue_bytes: u64) -> Self {
        let whole_gbps = rate_bps / 1_000_000_000;
        let code = Self::RATES_GBPS.partition_point(|gbps| *gbps <= whole_gbps) - 1;
        let time = at.as_ns() & ((1 << Self::TIME_BITS) - 1);
        let sent = (sent_bytes / Self::BYTES_UNIT) & ((1 << Self::BYTES_BITS) - 1);
        let queue = (queue_bytes / Self::QUEUE_UNIT).min((1 << Self::QUEUE_BITS) - 1);
        let word = (code as u64) << Self::TIME_BITS | time;
        Self((word << Self::BYTES_BITS | sent) << Self::QUEUE_BITS | queue)
    }

    /// Returns true if the code stands for this very rate of a link.
    #[must_use]
    pub fn has_rate(rate_bps: u64) -> bool {
        let mut rates = Self::RATES_GBPS[1..].iter();
        rates.any(|gbps| gbps * 1_000_000_000 == rate_bps)
    }

    /// Returns the link's rate, in bit/s.
    #[must_use]
    pub const fn rate_bps(self) -> u64 {
        Self::RATES_GBPS[(self.0 >> 60) as usize] * 1_000_000_000
    }

    /// Returns the bytes in the queue.
    #[must_use]
    pub const fn queue_bytes(self) -> u64 {
        (self.0 & ((1 << Self::QUEUE_BITS) - 1)) * Self::QUEUE_UNIT
    }

    /// Returns the time and the bytes sent since an earlier stamp of the same port, which is less
    /// than 16.7 ms and 134 MB old.
    #[must_use]
    pub const fn since(self, earlier: Self) -> (Span, u64) {
        let sent_shift = Self::QUEUE_BITS;
        let time_shift = sent_shift + Self::BYTES_BITS;
        // Subtracted at the top of a word, fields wrap as they were cut off.
        let time = ((self.0 >> time_shift).wrapping_sub(earlier.0 >> time_shift))
            & ((1 << Self::TIME_BITS) - 1);
        let sent = ((self.0 >> sent_shift).wrapping_sub(earlier.0 >> sent_shift))
            & ((1 << Self::BYTES_BITS) - 1);
        (Span::from_ns(time), sent * Self::BYTES_UNIT)
    }
}

/// Most hops of a path: up and down through three tiers of switches.
pub const MAX_HOPS: usize = 6;

/// Telemetry of a path, hop by hop, in the order in which it was stamped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trail {
    len: u8,
    flows: u16,
    hops: [IntHop; MAX_HOPS],
}

impl Trail {
    /// Makes an empty trail in an acknowledgement of a host that receives so many flows.
    #[must_use]
    pub fn of_flows(flows: u16) -> Self {
        Self {
            flows,
            ..Self::default()
        }
    }

    /// Returns the number of flows that the receiver receives (N in FNCC §3.2.3); 0 if it does not
    /// tell.
    #[must_use]
    pub fn flows(&self) -> u16 {
        self.flows
    }

    /// Appends a hop. Returns false if there is no room.
    pub fn push(&mut self, hop: IntHop) -> bool {
        let Some(slot) = self.hops.get_mut(usize::from(self.len)) else {
            return false;
        };
        *slot = hop;
        self.len += 1;
        true
    }

    /// Returns the hops.
    #[must_use]
    pub fn hops(&self) -> &[IntHop] {
        &self.hops[..usize::from(self.len)]
    }
}

/// RCP's congestion header, which data carries to the receiver and acknowledgements carry back.
///
/// A sender asks for [`u64::MAX`]; each port lowers the rate to its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RcpHeader {
    /// The least rate of the ports so far, on the link, in bit/s.
    pub rate_bps: u64,
    /// The sender's estimate of its round-trip time; zero: none yet.
    pub rtt: Span,
}

impl RcpHeader {
    /// Asks for any rate, in a packet of a flow with this round-trip time.
    #[must_use]
    pub const fn any(rtt: Span) -> Self {
        Self {
            rate_bps: u64::MAX,
            rtt,
        }
    }
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
#[repr(align(64))]
pub enum Extension {
    /// Selective acknowledgements: ranges [first, end) of bytes received out of order
    /// (RFC 2018 §3; three blocks fit beside a time stamp).
    Sack(ArrayVec<(u64, u64), 3>),
    /// XCP's congestion header.
    Xcp(XcpHeader),
    /// Bytes of a real protocol, or of the scheme's own.
    Bytes(Vec<u8>),
    /// Segment of a TCP connection with real bytes.
    Segment(Box<StreamSegment>),
    /// In-band telemetry, one entry per hop that stamped it.
    Int(Trail),
    /// RCP's congestion header.
    Rcp(RcpHeader),
}

const _: () = assert!(
    size_of::<Option<Extension>>() == 64,
    "an extension is one cache line"
);

/// The side table. Byte buffers are reused: [`buffer`](Self::buffer) hands one out and
/// [`recycle`](Self::recycle) takes it back, so that steady state allocates nothing. Segments'
/// boxes are reused likewise.
#[derive(Debug, Default)]
pub struct Extensions {
    slots: Vec<Option<Extension>>,
    free: Vec<u32>,
    buffers: Vec<Vec<u8>>,
    #[expect(clippy::vec_box, reason = "boxes are handed out and come back")]
    boxes: Vec<Box<StreamSegment>>,
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

    /// Appends a hop's telemetry to a packet. A packet with another extension, or with a full
    /// trail, stays as it is.
    pub(crate) fn stamp(&mut self, packet: &mut Packet, hop: IntHop) {
        if let Some(extension) = self.get_mut(packet) {
            if let Extension::Int(trail) = extension {
                trail.push(hop);
            }
            return;
        }
        let mut trail = Trail::default();
        trail.push(hop);
        self.attach(packet, Extension::Int(trail));
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
    #[inline]
    pub fn discard(&mut self, packet: &mut Packet) {
        if packet.ext != 0 {
            self.discard_some(packet);
        }
    }

    #[inline(never)]
    fn discard_some(&mut self, packet: &mut Packet) {
        match self.take(packet) {
            Some(Extension::Bytes(buffer)) => self.recycle(buffer),
            Some(Extension::Segment(segment)) => {
                let segment = self.unbox(segment);
                self.recycle(segment.bytes);
            }
            _ => {}
        }
    }

    /// Returns an empty buffer for [`Extension::Bytes`].
    #[must_use]
    pub fn buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    /// Makes an [`Extension::Segment`].
    #[must_use]
    pub fn segment(&mut self, segment: StreamSegment) -> Extension {
        let mut place = self.boxes.pop().unwrap_or_default();
        *place = segment;
        Extension::Segment(place)
    }

    /// Returns the segment of an [`Extension::Segment`] and keeps its box for later use.
    #[must_use]
    pub fn unbox(&mut self, mut segment: Box<StreamSegment>) -> StreamSegment {
        let taken = std::mem::take(&mut *segment);
        self.boxes.push(segment);
        taken
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

    /// Two stamps either side of the moment at which both fields wrap.
    #[test]
    fn telemetry_survives_its_packing() {
        let at = Time::from_ns((1 << 24) - 1_000);
        let sent = (128 << 20) - 64_000;
        let before = IntHop::new(100_000_000_000, at, sent, 8_079);
        let after = IntHop::new(
            100_000_000_000,
            at + Span::from_us(3),
            sent + 12_800,
            u64::MAX,
        );
        assert_eq!(
            (before.rate_bps(), before.queue_bytes()),
            (100_000_000_000, 8_000)
        );
        assert_eq!(after.since(before), (Span::from_us(3), 12_800));
        let later = IntHop::new(400_000_000_000, at + Span::from_us(9), sent + 128_000, 0);
        assert_eq!(later.since(before), (Span::from_us(9), 128_000));
        // 16 bits of 80 bytes.
        assert_eq!(after.queue_bytes(), 65_535 * 80);
        // No rate between those listed.
        assert_eq!(
            IntHop::new(39_000_000_000, at, 0, 0).rate_bps(),
            25_000_000_000
        );
        assert!(IntHop::has_rate(1_000_000_000) && IntHop::has_rate(1_600_000_000_000));
        let others = [0, 999_999_999, 39_000_000_000, 100_000_000_001];
        assert!(others.iter().all(|bps| !IntHop::has_rate(*bps)));
    }

    #[test]
    fn a_trail_has_room_for_the_longest_path() {
        let mut trail = Trail::default();
        let hop = |n: u64| IntHop::new(10_000_000_000, Time::ZERO, 0, n * 80);
        assert!((0..6).all(|n| trail.push(hop(n))));
        assert!(!trail.push(hop(6)));
        let queues = trail.hops().iter().map(|hop| hop.queue_bytes());
        assert_eq!(queues.collect::<Vec<_>>(), [0, 80, 160, 240, 320, 400]);
    }
}
