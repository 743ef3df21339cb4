//! DCQCN's switch (DCQCN §3.1, fig. 5): first in, first out; packets are marked with a probability
//! that grows with the present length of the queue.
//!
//! The probability is 0 up to Kmin, grows to Pmax at Kmax, and is 1 beyond. Unlike RED's, it goes
//! by the queue's length now, and marks are drawn one by one. As in HPCC's public simulator, a
//! packet is marked as it leaves, by what it leaves behind.

use rand::RngExt as _;

use super::{
    Discipline, DisciplineConfig, DropReason, Fifo, Limit, Queue, QueueContext, QueueLimit,
};
use crate::packet::{Packet, PacketId, PacketSlab};
use crate::parameters::ParamError;
use crate::rng::Stream;

crate::parameters! {
    /// First in, first out; marks with a probability that grows with the queue's present length.
    pub struct Config {
        ..
        /// Capacity.
        limit: Limit = Limit::default(),
        /// Bytes up to which no packet is marked (DCQCN §5.2 at 40 Gbit/s: 5 kB).
        mark_min_bytes: u64 = 5_000,
        /// Bytes beyond which every packet is marked (DCQCN §5.2 at 40 Gbit/s: 200 kB).
        mark_max_bytes: u64 = 200_000,
        /// Probability at `mark_max_bytes` (DCQCN §5.2: 1 %).
        mark_probability: f64 = 0.01,
    }
}

impl DisciplineConfig for Config {
    const NAME: &'static str = "ecn-ramp";

    fn check(&self, packet_bytes: u16) -> Result<(), ParamError> {
        if self.mark_max_bytes < self.mark_min_bytes {
            let message = "it must not be below `mark_min_bytes`";
            return Err(ParamError::of("mark_max_bytes", message));
        }
        if !(0.0..=1.0).contains(&self.mark_probability) {
            let message = "it must be at least 0 and at most 1";
            return Err(ParamError::of("mark_probability", message));
        }
        self.limit.check(packet_bytes)
    }

    fn build(&self, _: u64, rng: &mut Stream) -> Queue {
        Queue::EcnRamp(Box::new(EcnRamp {
            fifo: Fifo::default(),
            limit: self.limit.capacity(),
            min_bytes: self.mark_min_bytes,
            max_bytes: self.mark_max_bytes,
            probability: self.mark_probability,
            rng: rng.split(),
        }))
    }
}

/// A queue that marks by its length.
#[derive(Debug)]
pub struct EcnRamp {
    fifo: Fifo,
    limit: QueueLimit,
    min_bytes: u64,
    max_bytes: u64,
    probability: f64,
    rng: Stream,
}

impl EcnRamp {
    /// Draws a mark for a packet that leaves so many bytes behind.
    #[inline]
    fn marks(&mut self, bytes: u64) -> bool {
        if bytes <= self.min_bytes {
            return false;
        }
        if bytes > self.max_bytes {
            return true;
        }
        // Above the minimum and not above the maximum, so that they differ.
        let share = (bytes - self.min_bytes) as f64 / (self.max_bytes - self.min_bytes) as f64;
        self.rng.random::<f64>() < share * self.probability
    }
}

impl Discipline for EcnRamp {
    #[inline]
    fn enqueue(&mut self, q: &mut QueueContext<'_>, id: PacketId) {
        let wire_bytes = q.packet(id).wire_bytes;
        let (packets, bytes) = (self.fifo.packets(), self.fifo.bytes());
        if !self.limit.fits(packets, bytes, wire_bytes) {
            q.drop(id, DropReason::Full);
            return;
        }
        self.fifo.push(&mut q.shared.packets, id);
    }

    #[inline]
    fn dequeue(&mut self, q: &mut QueueContext<'_>) -> Option<PacketId> {
        let id = self.fifo.pop(&q.shared.packets)?;
        if self.marks(self.fifo.bytes()) {
            q.mark(id);
        }
        Some(id)
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
        // A packet that leaves an empty queue behind is never marked.
        self.limit.fits(0, 0, u16::MAX)
    }

    #[inline]
    fn visit(&self, packets: &PacketSlab, each: &mut dyn FnMut(&Packet)) {
        self.fifo.iter(packets).for_each(each);
    }

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
    use crate::net::queue::testing::{Bench, packet, stream};

    /// Marks among 20,000 departures from a queue that leave so many packets of 1,000 bytes behind.
    fn marks(length: u64) -> f64 {
        let mut bench = Bench::new(EcnRamp {
            fifo: Fifo::default(),
            limit: QueueLimit::Unlimited,
            min_bytes: 10_000,
            max_bytes: 30_000,
            probability: 0.2,
            rng: stream(),
        });
        for seq in 0..length {
            bench.put(packet(0, seq, 1_000));
        }
        for seq in 0..20_000 {
            bench.put(packet(0, seq, 1_000));
            bench.take();
        }
        bench.stats.marks as f64 / 20_000.0
    }

    /// DCQCN fig. 5, within five standard deviations.
    #[test]
    fn the_share_that_is_marked_follows_the_present_length() {
        assert_eq!(marks(10).to_bits(), 0.0_f64.to_bits());
        assert!((marks(20) - 0.1).abs() < 0.011, "{}", marks(20));
        assert!((marks(30) - 0.2).abs() < 0.015, "{}", marks(30));
        assert_eq!(marks(31).to_bits(), 1.0_f64.to_bits());
    }
}
