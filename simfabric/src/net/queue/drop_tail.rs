//! Drop-tail queue with a marking threshold: first in, first out; packets that do not fit are
//! dropped.
//!
//! With a threshold it is DCTCP's switch (DCTCP §3.1): a packet that arrives while the queue is
//! longer than K is marked. The length is the instantaneous one, on arrival, without the packet
//! itself and without the one that is being sent. One type serves hosts and switches, so that
//! packets run the same code in both.

use super::{
    Bounds, Discipline, DisciplineConfig, DropReason, Fifo, Limit, Queue, QueueContext, QueueLimit,
};
use crate::packet::{Packet, PacketId, PacketSlab};
use crate::parameters::ParamError;
use crate::rng::Stream;

crate::parameters! {
    /// First in, first out; packets that do not fit are dropped.
    pub struct Config {
        ..
        /// Capacity.
        limit: Limit = Limit::default(),
    }
}

impl DisciplineConfig for Config {
    const NAME: &'static str = "drop-tail";

    fn check(&self, packet_bytes: u16) -> Result<(), ParamError> {
        self.limit.check(packet_bytes)
    }

    fn build(&self, _: u64, _: &mut Stream) -> Queue {
        Queue::DropTail(DropTail::new(self.limit.capacity(), QueueLimit::Unlimited))
    }
}

/// A drop-tail queue.
#[derive(Debug)]
pub struct DropTail {
    fifo: Fifo,
    mark_at: Bounds,
    limit: Bounds,
}

impl DropTail {
    /// Makes an empty queue of this capacity that marks from a length of `mark_at` on;
    /// [`QueueLimit::Unlimited`] marks nothing. Packets of transports without marks pass unmarked.
    #[must_use]
    pub fn new(limit: QueueLimit, mark_at: QueueLimit) -> Self {
        Self {
            fifo: Fifo::default(),
            mark_at: Bounds::of(mark_at),
            limit: Bounds::of(limit),
        }
    }
}

impl Discipline for DropTail {
    #[inline]
    fn enqueue(&mut self, q: &mut QueueContext<'_>, id: PacketId) {
        let (packets, bytes) = (self.fifo.packets(), self.fifo.bytes());
        let wire_bytes = q.packet(id).wire_bytes;
        if !self.limit.fits(packets, bytes, wire_bytes) {
            q.drop(id, DropReason::Full);
            return;
        }
        // Before the packet is added, which does not count itself.
        if self.mark_at.reached(packets, bytes) {
            q.mark(id);
        }
        self.fifo.push(&mut q.shared.packets, id);
    }

    #[inline]
    fn dequeue(&mut self, q: &mut QueueContext<'_>) -> Option<PacketId> {
        self.fifo.pop(&q.shared.packets)
    }

    #[inline]
    fn front(&self) -> PacketId {
        self.fifo.front().unwrap_or(PacketId::NONE)
    }

    #[inline]
    fn back(&self) -> PacketId {
        self.fifo.back().unwrap_or(PacketId::NONE)
    }

    fn is_transparent(&self) -> bool {
        // A threshold of 0 marks every packet and a small limit may drop one, so neither may be
        // bypassed.
        self.limit.fits(0, 0, u16::MAX) && !self.mark_at.reached(0, 0)
    }

    #[inline]
    fn visit(&self, packets: &PacketSlab, each: &mut dyn FnMut(&Packet)) {
        self.fifo.iter(packets).for_each(each);
    }

    #[inline]
    fn packets(&self) -> u32 {
        self.fifo.packets()
    }

    #[inline]
    fn bytes(&self) -> u64 {
        self.fifo.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::queue::testing::{Bench, packet};
    use crate::packet::{Flags, Packet};

    #[test]
    fn keeps_order_and_drops_what_does_not_fit() {
        let queue = DropTail::new(QueueLimit::Bytes(3_000), QueueLimit::Unlimited);
        let mut bench = Bench::new(queue);
        for seq in 0..4 {
            bench.put(packet(0, seq, 1_000));
        }
        assert_eq!((bench.queue.packets(), bench.queue.bytes()), (3, 3_000));
        assert_eq!(bench.drops(DropReason::Full), 1);
        let out: Vec<u64> = std::iter::from_fn(|| bench.take()).map(|p| p.seq).collect();
        assert_eq!(out, [0, 1, 2]);
        assert_eq!(bench.shared.packets.live(), 0);
    }

    #[test]
    fn a_limit_in_packets_counts_packets() {
        let queue = DropTail::new(QueueLimit::Packets(2), QueueLimit::Unlimited);
        let mut bench = Bench::new(queue);
        for (seq, size) in [(0, 9_000), (1, 64), (2, 64)] {
            bench.put(packet(0, seq, size));
        }
        assert_eq!(bench.queue.packets(), 2);
        assert_eq!(bench.stats.losses().dropped.bytes, 64);
    }

    /// DCTCP §3.1: "marked with the CE codepoint if the queue occupancy is greater than K upon its
    /// arrival", the packet itself included: K packets wait already.
    #[test]
    fn marks_what_finds_k_packets_waiting() {
        let mut bench = Bench::new(DropTail::new(
            QueueLimit::Packets(5),
            QueueLimit::Packets(2),
        ));
        for seq in 0..6 {
            bench.put(packet(0, seq, 1_500));
        }
        let marked: Vec<bool> = std::iter::from_fn(|| bench.take())
            .map(|p| p.flags.contains(Flags::CE))
            .collect();
        assert_eq!(marked, [false, false, true, true, true]);
        assert_eq!((bench.stats.marks, bench.drops(DropReason::Full)), (3, 1));
    }

    #[test]
    fn a_threshold_in_bytes_counts_bytes_and_spares_what_knows_no_marks() {
        let mut bench = Bench::new(DropTail::new(
            QueueLimit::Unlimited,
            QueueLimit::Bytes(3_000),
        ));
        for (seq, flags) in [Flags::ECT, Flags::ECT, Flags::ECT, Flags::NONE]
            .into_iter()
            .enumerate()
        {
            bench.put(Packet {
                flags,
                ..packet(0, seq as u64, 1_500)
            });
        }
        let marked: Vec<u64> = std::iter::from_fn(|| bench.take())
            .filter(|p| p.flags.contains(Flags::CE))
            .map(|p| p.seq)
            .collect();
        assert_eq!(marked, [2]);
    }
}
