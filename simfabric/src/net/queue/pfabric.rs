//! pFabric's switch (pFabric §4.2): a short queue that keeps the most urgent packets. When it is
//! full, the packet with the most bytes to go is dropped. The next packet is the earliest of the
//! flow with the fewest bytes to go, so that a flow is not starved by its own newer packets.
//!
//! Both are linear scans: the queue holds two bandwidth-delay products, some tens of packets, so
//! that hardware can do it, too.

use std::collections::VecDeque;

use super::{
    Discipline, DisciplineConfig, DropReason, Limit, Queue, QueueContext, QueueLimit,
    holds_a_packet,
};
use crate::flow::FlowId;
use crate::packet::{Packet, PacketId, PacketKind, PacketSlab};
use crate::parameters::ParamError;
use crate::rng::Stream;
use ratewright_topology::HostId;

/// Length unless one is given: two bandwidth-delay products of the paper's network (pFabric §5.1).
const USUAL_BYTES: u64 = 36_864;

crate::parameters! {
    /// Keeps and sends the packets with the fewest bytes to go; 36,864 bytes, unless given.
    pub struct Config {
        ..
        /// Capacity.
        limit: Limit = Limit::default(),
    }
}

impl DisciplineConfig for Config {
    const NAME: &'static str = "pfabric";

    fn check(&self, packet_bytes: u16) -> Result<(), ParamError> {
        if self.limit == Limit::default() {
            // The default is for packets of 1,500 bytes; a plan may have larger ones.
            holds_a_packet(USUAL_BYTES, packet_bytes).map_err(ParamError::whole)?;
        }
        self.limit.check(packet_bytes)
    }

    fn build(&self, _: u64, _: &mut Stream) -> Queue {
        let limit = match self.limit.capacity() {
            QueueLimit::Unlimited => QueueLimit::Bytes(USUAL_BYTES),
            limit => limit,
        };
        Queue::PFabric(Box::new(PFabricQueue::new(limit)))
    }
}

/// Returns a packet's urgency: remaining bytes of data packets, 0 (most urgent) for all others.
fn urgency(packet: &Packet) -> u64 {
    if packet.kind == PacketKind::Data {
        packet.ack
    } else {
        0
    }
}

#[derive(Clone, Copy, Debug)]
struct QueuedPacket {
    id: PacketId,
    urgency: u64,
    flow: FlowId,
    src: HostId,
    wire_bytes: u16,
}

/// A queue by urgency.
#[derive(Debug)]
pub struct PFabricQueue {
    /// Packets in order of arrival.
    entries: VecDeque<QueuedPacket>,
    limit: QueueLimit,
    bytes: u64,
}

impl PFabricQueue {
    /// Makes an empty queue.
    #[must_use]
    pub fn new(limit: QueueLimit) -> Self {
        Self {
            entries: VecDeque::new(),
            limit,
            bytes: 0,
        }
    }

    fn take(&mut self, index: usize) -> Option<PacketId> {
        let entry = self.entries.remove(index)?;
        self.bytes -= u64::from(entry.wire_bytes);
        Some(entry.id)
    }
}

impl Discipline for PFabricQueue {
    fn enqueue(&mut self, q: &mut QueueContext<'_>, id: PacketId) {
        let packet = q.packet(id);
        let entry = QueuedPacket {
            id,
            urgency: urgency(packet),
            flow: packet.flow,
            src: packet.src,
            wire_bytes: packet.wire_bytes,
        };
        // A large packet may displace several small ones.
        while !self
            .limit
            .fits(self.packets(), self.bytes, entry.wire_bytes)
        {
            // Of equals the newest goes.
            let worst = (0..self.entries.len()).max_by_key(|&i| self.entries[i].urgency);
            let worst = worst.filter(|&i| self.entries[i].urgency > entry.urgency);
            match worst.and_then(|index| self.take(index)) {
                Some(dropped) => q.drop(dropped, DropReason::Full),
                None => return q.drop(id, DropReason::Full),
            }
        }
        self.bytes += u64::from(entry.wire_bytes);
        self.entries.push_back(entry);
    }

    fn dequeue(&mut self, _: &mut QueueContext<'_>) -> Option<PacketId> {
        let best = *self.entries.iter().min_by_key(|entry| entry.urgency)?;
        let earliest = self
            .entries
            .iter()
            // Acknowledgements of a flow come from its receiver: without `src` they would count as
            // earlier data.
            .position(|entry| entry.flow == best.flow && entry.src == best.src)?;
        self.take(earliest)
    }

    fn visit(&self, packets: &PacketSlab, each: &mut dyn FnMut(&Packet)) {
        let ids = self.entries.iter().map(|entry| entry.id);
        ids.for_each(|id| each(&packets[id]));
    }

    fn packets(&self) -> u32 {
        self.entries.len() as u32
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::queue::testing::{Bench, packet};
    use crate::packet::Packet;
    use proptest::prelude::*;

    fn data(flow: u32, seq: u64, remaining: u64) -> Packet {
        Packet {
            ack: remaining,
            payload_bytes: 1_000,
            ..packet(flow, seq, 1_000)
        }
    }

    #[test]
    fn the_flow_with_the_least_to_go_sends_its_earliest_packet() {
        let mut bench = Bench::new(PFabricQueue::new(QueueLimit::Unlimited));
        bench.put(data(1, 0, 9_000));
        bench.put(data(2, 0, 3_000));
        bench.put(data(2, 1, 2_000));
        bench.put(data(1, 1, 8_000));
        let mut order = Vec::new();
        while let Some(p) = bench.take() {
            order.push((p.flow.0, p.seq));
        }
        assert_eq!(order, [(2, 0), (2, 1), (1, 0), (1, 1)]);
    }

    proptest! {
        /// The definition is the oracle: the queue holds the most urgent packets that fit, and
        /// sends the earliest of the flow that has the most urgent one.
        #[test]
        fn it_keeps_and_sends_what_is_most_urgent(
            steps in proptest::collection::vec((any::<bool>(), 0u32..6, 1u64..50), 1..200),
            limit in 1u32..12,
        ) {
            let mut bench = Bench::new(PFabricQueue::new(QueueLimit::Packets(limit)));
            let mut held: Vec<(u32, u64, u64)> = Vec::new();
            for (i, (put, flow, remaining)) in steps.into_iter().enumerate() {
                let seq = i as u64;
                if put {
                    bench.put(data(flow, seq, remaining));
                    held.push((flow, seq, remaining));
                    if held.len() > limit as usize {
                        let most = held.iter().map(|p| p.2).max().unwrap_or(0);
                        let worst = held.iter().rposition(|p| p.2 == most).unwrap_or(0);
                        held.remove(worst);
                    }
                } else {
                    let taken = bench.take().map(|p| (p.flow.0, p.seq));
                    let expected = held.iter().min_by_key(|p| p.2).copied().map(|best| {
                        let index = held.iter().position(|p| p.0 == best.0).unwrap_or(0);
                        let p = held.remove(index);
                        (p.0, p.1)
                    });
                    prop_assert_eq!(taken, expected);
                }
                prop_assert_eq!(bench.queue.packets() as usize, held.len());
                prop_assert_eq!(bench.queue.bytes(), 1_000 * held.len() as u64);
            }
        }
    }
}
