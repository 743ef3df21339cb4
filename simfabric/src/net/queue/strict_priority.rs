//! Strict priorities: a queue for each class, and the first class that has a packet goes
//! (IEEE 802.1Q-2018 §8.6.8.1). A packet that is being sent is not interrupted.
//!
//! A packet's class is its [`priority`](crate::Packet::priority), 0 first; the last class takes all
//! beyond it. Every class has a queue of its own of the same kind, with its own limit.

use super::{Discipline, Queue, QueueConfig, QueueContext};
use crate::packet::PacketId;

/// Queues in the order in which they are served.
#[derive(Debug)]
pub struct StrictPriority {
    classes: Box<[Queue]>,
    packets: u32,
    bytes: u64,
}

impl StrictPriority {
    /// Makes empty queues for `classes` classes (at least one).
    #[must_use]
    pub fn new(classes: u8, each: &QueueConfig, rate_bps: u64) -> Self {
        Self {
            classes: (0..classes.max(1)).map(|_| each.build(rate_bps)).collect(),
            packets: 0,
            bytes: 0,
        }
    }

    /// Updates the sums after a change of one class.
    fn changed(&mut self, class: usize, packets: u32, bytes: u64) {
        let queue = &self.classes[class];
        self.packets = self.packets - packets + queue.packets();
        self.bytes = self.bytes - bytes + queue.bytes();
    }
}

impl Discipline for StrictPriority {
    fn enqueue(&mut self, q: &mut QueueContext<'_>, id: PacketId) {
        let class = usize::from(q.packet(id).priority).min(self.classes.len() - 1);
        let queue = &mut self.classes[class];
        // Sums are updated by the difference: a discipline may drop others for this packet.
        let (packets, bytes) = (queue.packets(), queue.bytes());
        queue.enqueue(q, id);
        self.changed(class, packets, bytes);
    }

    fn dequeue(&mut self, q: &mut QueueContext<'_>) -> Option<PacketId> {
        for class in 0..self.classes.len() {
            let queue = &mut self.classes[class];
            let (packets, bytes) = (queue.packets(), queue.bytes());
            if packets == 0 {
                continue;
            }
            let id = queue.dequeue(q);
            self.changed(class, packets, bytes);
            // A class that dropped all that it had leaves the turn to the next.
            if id.is_some() {
                return id;
            }
        }
        None
    }

    fn packets(&self) -> u32 {
        self.packets
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::queue::testing::{Bench, packet};
    use crate::net::queue::{DropReason, QueueLimit};
    use crate::packet::{Flags, Packet};

    fn of_class(priority: u8, seq: u64) -> Packet {
        Packet {
            priority,
            ..packet(0, seq, 1_000)
        }
    }

    fn two(limit: u32) -> Bench<StrictPriority> {
        let each = QueueConfig::DropTail {
            limit: QueueLimit::Packets(limit),
        };
        Bench::new(StrictPriority::new(2, &each, 10_000_000_000))
    }

    #[test]
    fn the_first_class_goes_first_and_each_in_its_order() {
        let mut bench = two(10);
        for (seq, class) in [1, 0, 1, 0, 7, 0].into_iter().enumerate() {
            bench.put(of_class(class, seq as u64));
        }
        assert_eq!((bench.queue.packets(), bench.queue.bytes()), (6, 6_000));
        let order: Vec<u64> = std::iter::from_fn(|| bench.take()).map(|p| p.seq).collect();
        assert_eq!(order, [1, 3, 5, 0, 2, 4]);
        assert_eq!((bench.queue.packets(), bench.queue.bytes()), (0, 0));
    }

    #[test]
    fn a_full_class_drops_and_the_other_does_not() {
        let mut bench = two(2);
        for seq in 0..5 {
            bench.put(of_class(1, seq));
        }
        bench.put(of_class(0, 9));
        assert_eq!(bench.drops(DropReason::Full), 3);
        let order: Vec<u64> = std::iter::from_fn(|| bench.take()).map(|p| p.seq).collect();
        assert_eq!(order, [9, 0, 1]);
    }

    #[test]
    fn a_class_has_the_marks_of_its_own_queue() {
        let each = QueueConfig::EcnThreshold {
            mark_at: QueueLimit::Packets(1),
            limit: QueueLimit::Unlimited,
        };
        let mut bench = Bench::new(StrictPriority::new(2, &each, 10_000_000_000));
        for (seq, class) in [0, 1, 0, 1].into_iter().enumerate() {
            bench.put(of_class(class, seq as u64));
        }
        let marked: Vec<u64> = std::iter::from_fn(|| bench.take())
            .filter(|p| p.flags.contains(Flags::CE))
            .map(|p| p.seq)
            .collect();
        assert_eq!(marked, [2, 3]);
    }
}
