//! sfqCoDel, as in ns-2: flows are hashed into bins, each of which is a queue under CoDel of its
//! own; bins send one packet in turn, those that just became busy first; what does not fit makes
//! the longest bin lose its oldest packet.

use std::collections::VecDeque;

use super::codel::{Codel, CodelConfig};
use super::{
    Discipline, DisciplineConfig, DropReason, Fifo, Limit, Queue, QueueContext, QueueLimit,
};
use crate::packet::{Packet, PacketId, PacketSlab};
use crate::parameters::ParamError;
use crate::rng::Stream;

crate::parameters! {
    /// sfqCoDel: 1,024 bins in turn, each under CoDel.
    pub struct Config {
        ..
        /// Target, interval, marks.
        control: CodelConfig = CodelConfig::default(),
        ..
        /// Capacity of all bins together.
        limit: Limit = Limit::default(),
    }
}

impl DisciplineConfig for Config {
    const NAME: &'static str = "sfq-codel";

    fn check(&self, packet_bytes: u16) -> Result<(), ParamError> {
        self.limit.check(packet_bytes)
    }

    fn build(&self, _: u64, _: &mut Stream) -> Queue {
        let queue = SfqCodel::new(self.control.clone(), self.limit.capacity());
        Queue::SfqCodel(Box::new(queue))
    }
}

/// Bins of a queue.
pub const BINS: usize = 1_024;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum BinState {
    #[default]
    Idle,
    New,
    Old,
}

#[derive(Debug, Default)]
struct Bin {
    fifo: Fifo,
    control: Codel,
    state: BinState,
}

/// A queue of bins.
#[derive(Debug)]
pub struct SfqCodel {
    bins: Vec<Bin>,
    new: VecDeque<u16>,
    old: VecDeque<u16>,
    config: CodelConfig,
    limit: QueueLimit,
    packets: u32,
    bytes: u64,
}

impl SfqCodel {
    /// Makes an empty queue; `limit` holds for all bins together.
    #[must_use]
    pub fn new(config: CodelConfig, limit: QueueLimit) -> Self {
        Self {
            bins: Vec::new(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            config,
            limit,
            packets: 0,
            bytes: 0,
        }
    }

    /// Returns the bin of a packet's flow. Multiplicative hashing spreads consecutive numbers
    /// evenly.
    fn bin_of(packet: &Packet) -> u16 {
        // A prime next to 2³² over the golden ratio; the upper 10 bits of the product select one of
        // 1,024 bins.
        (packet.flow.0.wrapping_mul(0x9E37_79B1) >> 22) as u16
    }

    /// Drops the oldest packet of the longest bin.
    fn shrink(&mut self, q: &mut QueueContext<'_>) {
        let longest = self
            .new
            .iter()
            .chain(&self.old)
            .copied()
            .max_by_key(|&bin| (self.bins[usize::from(bin)].fifo.packets(), bin));
        if let Some(bin) = longest
            && let Some(id) = self.bins[usize::from(bin)].fifo.pop(&q.shared.packets)
        {
            self.packets -= 1;
            self.bytes -= u64::from(q.packet(id).wire_bytes);
            q.drop(id, DropReason::Full);
        }
    }
}

impl Discipline for SfqCodel {
    fn enqueue(&mut self, q: &mut QueueContext<'_>, id: PacketId) {
        if self.bins.is_empty() {
            // Allocated with the first packet, so that idle ports cost no memory.
            self.bins.resize_with(BINS, Bin::default);
        }
        let packet = q.packet(id);
        let (index, wire_bytes) = (Self::bin_of(packet), packet.wire_bytes);
        let bin = &mut self.bins[usize::from(index)];
        bin.fifo.push(&mut q.shared.packets, id);
        if bin.state == BinState::Idle {
            bin.state = BinState::New;
            self.new.push_back(index);
        }
        self.packets += 1;
        self.bytes += u64::from(wire_bytes);
        // The packet itself is counted: its bin may be the longest.
        while self.packets > 0 && !self.limit.fits(self.packets - 1, self.bytes, 0) {
            self.shrink(q);
        }
    }

    fn dequeue(&mut self, q: &mut QueueContext<'_>) -> Option<PacketId> {
        loop {
            let (index, was_new) = match self.new.pop_front() {
                Some(index) => (index, true),
                None => (self.old.pop_front()?, false),
            };
            let bin = &mut self.bins[usize::from(index)];
            let (packets, bytes) = (bin.fifo.packets(), bin.fifo.bytes());
            let id = bin.control.dequeue(&self.config, q, &mut bin.fifo);
            // CoDel may have dropped several packets before the one that it returned.
            self.packets -= packets - bin.fifo.packets();
            self.bytes -= bytes - bin.fifo.bytes();
            if id.is_some() || (was_new && !self.old.is_empty()) {
                // One packet in turn. A new bin that is empty waits for one turn, so that it cannot
                // come first again and again.
                bin.state = BinState::Old;
                self.old.push_back(index);
            } else {
                bin.state = BinState::Idle;
            }
            if id.is_some() {
                return id;
            }
        }
    }

    fn visit(&self, packets: &PacketSlab, each: &mut dyn FnMut(&Packet)) {
        let bins = self.bins.iter();
        bins.for_each(|bin| bin.fifo.iter(packets).for_each(&mut *each));
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

    fn bench(packets: u32) -> Bench<SfqCodel> {
        Bench::new(SfqCodel::new(
            CodelConfig::default(),
            QueueLimit::Packets(packets),
        ))
    }

    #[test]
    fn flows_send_in_turn_and_a_new_one_first() {
        let mut bench = bench(1_000);
        for seq in 0..4 {
            bench.put(packet(1, seq, 1_500));
        }
        for seq in 0..4 {
            bench.put(packet(2, seq, 1_500));
        }
        let mut order = Vec::new();
        for _ in 0..4 {
            order.push(bench.take().map(|p| (p.flow.0, p.seq)));
        }
        assert_eq!(
            order,
            [Some((1, 0)), Some((2, 0)), Some((1, 1)), Some((2, 1))]
        );
        bench.put(packet(3, 0, 1_500));
        assert_eq!(bench.take().map(|p| p.flow.0), Some(3));
        assert_eq!(bench.take().map(|p| (p.flow.0, p.seq)), Some((1, 2)));
    }

    #[test]
    fn what_does_not_fit_is_taken_from_the_longest_bin() {
        let mut bench = bench(10);
        for seq in 0..9 {
            bench.put(packet(1, seq, 1_500));
        }
        for seq in 0..5 {
            bench.put(packet(2, seq, 1_500));
        }
        // Ten fit: flow 1 lost four, its oldest ones; flow 2 none.
        assert_eq!(bench.drops(DropReason::Full), 4);
        let mut left = Vec::new();
        while let Some(p) = bench.take() {
            left.push((p.flow.0, p.seq));
        }
        let of = |flow| -> Vec<u64> { left.iter().filter(|p| p.0 == flow).map(|p| p.1).collect() };
        assert_eq!(of(1), [4, 5, 6, 7, 8]);
        assert_eq!(of(2), [0, 1, 2, 3, 4]);
        assert_eq!((bench.queue.packets(), bench.queue.bytes()), (0, 0));
    }
}
