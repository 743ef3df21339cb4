//! First in, first out; what does not fit is dropped.

use super::{Discipline, DropReason, Fifo, Limit, QueueContext};
use crate::packet::PacketId;

/// A plain queue.
#[derive(Debug)]
pub struct DropTail {
    fifo: Fifo,
    limit: Limit,
}

impl DropTail {
    /// An empty queue that takes as much as `limit` says.
    #[must_use]
    pub fn new(limit: Limit) -> Self {
        Self {
            fifo: Fifo::default(),
            limit,
        }
    }
}

impl Discipline for DropTail {
    #[inline]
    fn enqueue(&mut self, q: &mut QueueContext<'_>, id: PacketId) {
        let wire_bytes = q.packet(id).wire_bytes;
        if self
            .limit
            .fits(self.fifo.packets(), self.fifo.bytes(), wire_bytes)
        {
            self.fifo.push(&mut q.shared.packets, id);
        } else {
            q.drop(id, DropReason::Full);
        }
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

    #[test]
    fn keeps_order_and_drops_what_does_not_fit() {
        let mut bench = Bench::new(DropTail::new(Limit::Bytes(3_000)));
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
        let mut bench = Bench::new(DropTail::new(Limit::Packets(2)));
        for (seq, size) in [(0, 9_000), (1, 64), (2, 64)] {
            bench.put(packet(0, seq, size));
        }
        assert_eq!(bench.queue.packets(), 2);
        assert_eq!(bench.stats.dropped.bytes, 64);
    }
}
