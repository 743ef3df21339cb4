//! DCTCP's switch (DCTCP §3.1): a packet that arrives while the queue is longer than K is
//! marked. The length is the instantaneous one, on arrival, without the packet itself and
//! without the one that is being sent.

use super::{Bounds, Discipline, DropReason, Fifo, QueueContext, QueueLimit};
use crate::packet::PacketId;

/// A queue with a marking threshold.
#[derive(Debug)]
pub struct EcnThreshold {
    fifo: Fifo,
    mark_at: Bounds,
    limit: Bounds,
}

impl EcnThreshold {
    /// Makes an empty queue that marks from a length of `mark_at` on. Packets of transports without
    /// marks pass unmarked.
    #[must_use]
    pub fn new(mark_at: QueueLimit, limit: QueueLimit) -> Self {
        Self {
            fifo: Fifo::default(),
            mark_at: Bounds::of(mark_at),
            limit: Bounds::of(limit),
        }
    }
}

impl Discipline for EcnThreshold {
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

    /// DCTCP §3.1: "marked with the CE codepoint if the queue occupancy is greater than K upon its
    /// arrival", the packet itself included: K packets wait already.
    #[test]
    fn marks_what_finds_k_packets_waiting() {
        let mut bench = Bench::new(EcnThreshold::new(
            QueueLimit::Packets(2),
            QueueLimit::Packets(5),
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
        let mut bench = Bench::new(EcnThreshold::new(
            QueueLimit::Bytes(3_000),
            QueueLimit::Unlimited,
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
