//! A chain of packets through the slab, first in, first out.

use crate::packet::{Packet, PacketId, PacketSlab};

/// Packets in order of arrival, with their number and bytes.
#[derive(Clone, Debug)]
pub struct Fifo {
    head: PacketId,
    tail: PacketId,
    packets: u32,
    bytes: u64,
}

impl Default for Fifo {
    fn default() -> Self {
        Self {
            head: PacketId::NONE,
            tail: PacketId::NONE,
            packets: 0,
            bytes: 0,
        }
    }
}

impl Fifo {
    /// Appends a packet.
    #[inline]
    pub fn push(&mut self, slab: &mut PacketSlab, id: PacketId) {
        let packet = &mut slab[id];
        packet.next = PacketId::NONE;
        self.bytes += u64::from(packet.wire_bytes);
        self.packets += 1;
        if self.tail.is_some() {
            slab[self.tail].next = id;
        } else {
            self.head = id;
        }
        self.tail = id;
    }

    /// Takes the oldest packet.
    #[inline]
    pub fn pop(&mut self, slab: &PacketSlab) -> Option<PacketId> {
        let id = self.head;
        if !id.is_some() {
            return None;
        }
        let packet = &slab[id];
        self.head = packet.next;
        // It is read when it is taken, one serialisation later.
        slab.prefetch(self.head);
        if !self.head.is_some() {
            self.tail = PacketId::NONE;
        }
        self.packets -= 1;
        self.bytes -= u64::from(packet.wire_bytes);
        Some(id)
    }

    /// Returns the oldest packet.
    #[must_use]
    pub fn front(&self) -> Option<PacketId> {
        self.head.is_some().then_some(self.head)
    }

    /// Returns the newest packet.
    #[must_use]
    pub fn back(&self) -> Option<PacketId> {
        self.tail.is_some().then_some(self.tail)
    }

    /// Iterates over the packets, oldest first.
    pub fn iter<'a>(&self, slab: &'a PacketSlab) -> impl Iterator<Item = &'a Packet> + use<'a> {
        let some = |id: PacketId| id.is_some().then(|| &slab[id]);
        std::iter::successors(some(self.head), move |packet| some(packet.next))
    }

    /// Returns the number of packets.
    #[must_use]
    pub const fn packets(&self) -> u32 {
        self.packets
    }

    /// Returns their bytes on the link.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}
