//! Packets: 64 bytes each, in a slab, chained through the slab by queues and wires.
//!
//! A packet is in one place at a time: in a queue, on a wire, or in a transport's hands. Queues and
//! wires chain packets through `next`. A queued packet therefore costs its 64 bytes and nothing
//! else, and moving it from one to the other allocates nothing.

use crate::cache::prefetch_at;
use crate::flow::FlowId;
use crate::net::mmu::Ingress;
use crate::time::Time;
use ratewright_topology::HostId;

/// Purpose of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum PacketKind {
    /// Payload of a flow.
    #[default]
    Data,
    /// An acknowledgement.
    Ack,
    /// Opens a connection.
    Syn,
    /// Asks for a sign of the receiver (pFabric §4.3's probe mode).
    Probe,
    /// Control traffic of sessions with the allocator.
    Control,
    /// Request for permission to send a message (SIRD §4: a data packet without payload).
    Request,
    /// Permission to send: a grant (Homa §3.2) or credit (SIRD §4).
    Grant,
    /// Request for bytes that a receiver misses (Homa §3.7).
    Resend,
    /// Answer that bytes are not lost, but wait (Homa §3.7).
    Busy,
    /// Acceptance of a grant: the end of a matching's round (dcPIM §3).
    Accept,
    /// Permission to send one packet, which names its bytes (dcPIM §3).
    Token,
    /// A switch's own packet: a [`Notice`](crate::net::Notice).
    Notice,
    /// Notification of congestion to a flow's sender, by its receiver (DCQCN §3.1; RoCEv2's CNP).
    Cnp,
    /// Mark of a free slot in the slab.
    Free,
}

/// Bits that a packet carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// Empty set of bits.
    pub const NONE: Self = Self(0);
    /// The transport understands congestion marks (RFC 3168 §5).
    pub const ECT: Self = Self(1);
    /// A queue marked the packet: congestion experienced (RFC 3168 §5).
    pub const CE: Self = Self(2);
    /// The receiver echoes a mark (RFC 3168 §6.1).
    pub const ECE: Self = Self(4);
    /// The sender is congested (SIRD §4.2: csn), of data: the bit of [`ECE`](Self::ECE), which
    /// only acknowledgements have otherwise.
    pub const CSN: Self = Self(4);
    /// The sender has reduced its window (RFC 3168 §6.1).
    pub const CWR: Self = Self(8);
    /// The last byte of the flow is in this packet.
    pub const FIN: Self = Self(16);
    /// The payload was sent before.
    pub const RETRANSMIT: Self = Self(32);
    /// Switches append their telemetry to the packet as it leaves them (HPCC §3.1).
    pub const INT: Self = Self(64);
    /// The receiver lacks the bytes from `ack` on, and has later ones: a negative acknowledgement
    /// (InfiniBand §9.7.5.2.8).
    pub const NACK: Self = Self(128);
    /// A switch sent the packet by another port than its route's (Dart §IV), of data: the bit of
    /// [`NACK`](Self::NACK), which only acknowledgements have otherwise.
    pub const DEFLECTED: Self = Self(128);

    /// Returns true if all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Sets the bits of `other`.
    pub const fn insert(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Clears the bits of `other`.
    pub const fn remove(&mut self, other: Self) {
        self.0 &= !other.0;
    }

    /// Returns the union of both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Index of a packet in the [`PacketSlab`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PacketId(pub u32);

impl PacketId {
    /// End of a chain.
    pub const NONE: Self = Self(u32::MAX);

    /// Returns the place as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns true unless this is [`PacketId::NONE`].
    #[must_use]
    pub const fn is_some(self) -> bool {
        self.0 != u32::MAX
    }
}

/// A packet of any scheme.
///
/// Fields that a scheme does not use stay 0. `..Packet::default()` fills them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(64))]
pub struct Packet {
    /// First byte of the payload within the flow.
    pub seq: u64,
    /// Next byte expected, or the scheme's own. In pFabric's data packets: the remaining bytes,
    /// which are the packet's priority (pFabric §4.1).
    pub ack: u64,
    /// Sending time by the sender's clock; acknowledgements echo it.
    pub stamp: Time,
    /// Time of entry into the queue; on a wire, arrival time of the packet behind.
    pub(crate) at: Time,
    /// The flow; [`FlowId::NONE`] for traffic between nodes that belongs to no flow.
    pub flow: FlowId,
    /// Source host.
    pub src: HostId,
    /// Destination host.
    pub dst: HostId,
    /// Entropy by which switches choose among equal paths; see
    /// [`Context::path_hash`](crate::Context::path_hash).
    pub path_hash: u16,
    /// Port and class that the packet came by, within a switch whose ports share a buffer.
    pub(crate) ingress: Ingress,
    /// Index + 1 into the [side table](crate::ext); 0: the packet carries no extension.
    pub ext: u32,
    /// The next packet of the queue or wire.
    pub(crate) next: PacketId,
    /// Payload bytes.
    pub payload_bytes: u16,
    /// Bytes on a link, payload and everything around it; see [`Framing`](crate::Framing).
    pub wire_bytes: u16,
    /// Purpose of the packet.
    pub kind: PacketKind,
    /// ECN bits and others.
    pub flags: Flags,
    /// Class in a [queue of classes](crate::net::queue::classes); 0 is the first. The scheme sets
    /// it, and nobody else.
    pub class: u8,
    /// Links crossed so far, 15 at most, and above them the deflection tokens, 4 bits each.
    pub(crate) hops_and_tokens: u8,
}

const _: () = assert!(size_of::<Packet>() == 64, "a packet is one cache line");

impl Default for Packet {
    fn default() -> Self {
        Self {
            seq: 0,
            ack: 0,
            stamp: Time::ZERO,
            at: Time::ZERO,
            flow: FlowId::NONE,
            src: HostId(0),
            dst: HostId(0),
            path_hash: 0,
            ext: 0,
            next: PacketId::NONE,
            ingress: Ingress::default(),
            payload_bytes: 0,
            wire_bytes: 0,
            kind: PacketKind::Data,
            flags: Flags::NONE,
            class: 0,
            hops_and_tokens: 0,
        }
    }
}

impl Packet {
    /// Returns true if queues may mark the packet instead of dropping it.
    #[must_use]
    pub const fn is_ect(&self) -> bool {
        self.flags.contains(Flags::ECT)
    }

    /// Most deflection tokens that a packet can have.
    pub const MAX_TOKENS: u8 = 15;

    /// Returns the links crossed so far; 15 stands for more, too.
    #[must_use]
    pub const fn hops(&self) -> u8 {
        self.hops_and_tokens & 15
    }

    /// Counts one more link.
    #[inline]
    pub(crate) const fn count_hop(&mut self) {
        self.hops_and_tokens += (self.hops() < 15) as u8;
    }

    /// Returns the [deflections](crate::net::deflection) that the packet may still meet.
    #[must_use]
    pub const fn tokens(&self) -> u8 {
        self.hops_and_tokens >> 4
    }

    /// Sets the deflections that the packet may still meet, at most [`Self::MAX_TOKENS`].
    pub const fn set_tokens(&mut self, tokens: u8) {
        self.hops_and_tokens = tokens << 4 | self.hops();
    }

    /// Returns the byte after the payload.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.seq + self.payload_bytes as u64
    }
}

/// All packets of a run. Freed slots are used again, last freed first, while they are in cache.
#[derive(Debug)]
pub struct PacketSlab {
    slots: Vec<Packet>,
    free: PacketId,
    live: u32,
}

impl Default for PacketSlab {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: PacketId::NONE,
            live: 0,
        }
    }
}

impl PacketSlab {
    /// Stores a packet.
    ///
    /// # Panics
    /// If 2³² − 1 packets are live, which are 256 GiB.
    pub fn insert(&mut self, packet: Packet) -> PacketId {
        self.live += 1;
        if self.free.is_some() {
            let id = self.free;
            let slot = &mut self.slots[id.index()];
            self.free = slot.next;
            *slot = packet;
            // The next packet takes that slot, most often not at once.
            self.prefetch(self.free);
            id
        } else {
            // The largest number is `PacketId::NONE`.
            let id = u32::try_from(self.slots.len())
                .ok()
                .filter(|i| *i != u32::MAX);
            let id = PacketId(id.expect("fewer than 2^32 - 1 packets are in flight"));
            self.slots.push(packet);
            id
        }
    }

    /// Frees a packet's slot and returns the packet.
    pub fn remove(&mut self, id: PacketId) -> Packet {
        let slot = &mut self.slots[id.index()];
        debug_assert_ne!(slot.kind, PacketKind::Free, "{id:?} is freed twice");
        let packet = *slot;
        // A free slot keeps its place in the list of free ones in `next`, as packets do in queues.
        slot.kind = PacketKind::Free;
        slot.next = self.free;
        self.free = id;
        self.live -= 1;
        packet
    }

    /// Prefetches a packet's slot, which may be free.
    #[inline]
    pub(crate) fn prefetch(&self, id: PacketId) {
        // The address of `NONE` lies outside the slab. A wrapping offset is no access, and a
        // prefetch of an unmapped address does not fault.
        prefetch_at(self.slots.as_ptr().wrapping_add(id.index()));
    }

    /// Number of packets in the fabric.
    #[must_use]
    pub fn live(&self) -> u32 {
        self.live
    }

    /// Largest number of packets in the fabric at once.
    #[must_use]
    pub fn high_water(&self) -> usize {
        self.slots.len()
    }

    /// Iterates over the packets in the fabric, in order of slot.
    pub fn iter(&self) -> impl Iterator<Item = &Packet> {
        self.slots.iter().filter(|p| p.kind != PacketKind::Free)
    }
}

impl std::ops::Index<PacketId> for PacketSlab {
    type Output = Packet;
    #[inline]
    fn index(&self, id: PacketId) -> &Packet {
        &self.slots[id.index()]
    }
}

impl std::ops::IndexMut<PacketId> for PacketSlab {
    #[inline]
    fn index_mut(&mut self, id: PacketId) -> &mut Packet {
        &mut self.slots[id.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_and_counted() {
        let mut slab = PacketSlab::default();
        let packet = |seq| Packet {
            seq,
            ..Packet::default()
        };
        let a = slab.insert(packet(1));
        let b = slab.insert(packet(2));
        assert_eq!(slab.remove(a).seq, 1);
        assert_eq!(slab.insert(packet(3)), a);
        assert_eq!((slab.live(), slab.high_water()), (2, 2));
        assert_eq!(slab.iter().map(|p| p.seq).collect::<Vec<_>>(), [3, 2]);
        assert_eq!(slab[b].seq, 2);
    }

    #[test]
    fn flags_are_independent_bits() {
        let mut flags = Flags::ECT.with(Flags::FIN);
        flags.insert(Flags::CE);
        flags.remove(Flags::FIN);
        assert!(flags.contains(Flags::ECT.with(Flags::CE)));
        assert!(!flags.contains(Flags::FIN) && !flags.contains(Flags::CE.with(Flags::CWR)));
    }
}
