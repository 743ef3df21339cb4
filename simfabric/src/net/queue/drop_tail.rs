//! Drop-tail queue: first in, first out; packets that do not fit are dropped.

use super::{EcnThreshold, QueueLimit};

/// Makes a queue of this limit whose [marking threshold](super::ecn_threshold) is never reached.
/// Ports of hosts and of switches thus have the same kind of queue, and packets run the same code
/// in both.
#[must_use]
pub fn drop_tail(limit: QueueLimit) -> EcnThreshold {
    EcnThreshold::new(QueueLimit::Unlimited, limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::queue::testing::{Bench, packet};
    use crate::net::queue::{Discipline as _, DropReason};

    #[test]
    fn keeps_order_and_drops_what_does_not_fit() {
        let mut bench = Bench::new(drop_tail(QueueLimit::Bytes(3_000)));
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
        let mut bench = Bench::new(drop_tail(QueueLimit::Packets(2)));
        for (seq, size) in [(0, 9_000), (1, 64), (2, 64)] {
            bench.put(packet(0, seq, size));
        }
        assert_eq!(bench.queue.packets(), 2);
        assert_eq!(bench.stats.losses().dropped.bytes, 64);
    }
}
