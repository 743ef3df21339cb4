//! A bench for one discipline: packets in, packets out, without ports.

use super::{ClassMask, Discipline, DropReason, Next, QueueContext, SharedState};
use crate::ext::Extensions;
use crate::flow::{FlowId, FlowSpec, FlowStore};
use crate::net::stats::PortStats;
use crate::packet::{Flags, Packet, PacketSlab};
use crate::rng::{Purpose, Stream};
use crate::time::Time;
use ratewright_topology::HostId;

/// A queue under test.
#[derive(Debug)]
pub(crate) struct Bench<D> {
    pub(crate) queue: D,
    pub(crate) shared: SharedState,
    pub(crate) stats: PortStats,
    pub(crate) now: Time,
}

impl<D: Discipline> Bench<D> {
    pub(crate) fn new(queue: D) -> Self {
        let mut flows = FlowStore::default();
        for _ in 0..64 {
            flows.push(FlowSpec::new(HostId(0), HostId(1), 1, Time::ZERO));
        }
        Self {
            queue,
            shared: SharedState {
                packets: PacketSlab::default(),
                extensions: Extensions::default(),
                flows,
            },
            stats: PortStats::default(),
            now: Time::ZERO,
        }
    }

    pub(crate) fn put(&mut self, packet: Packet) {
        let id = self.shared.packets.insert(Packet {
            at: self.now,
            ..packet
        });
        let mut q = QueueContext {
            now: self.now,
            shared: &mut self.shared,
            stats: &mut self.stats,
            buffer: None,
            marks: None,
        };
        self.queue.enqueue(&mut q, id);
    }

    pub(crate) fn select(&mut self, open: ClassMask) -> Next {
        let mut q = QueueContext {
            now: self.now,
            shared: &mut self.shared,
            stats: &mut self.stats,
            buffer: None,
            marks: None,
        };
        self.queue.select(&mut q, open)
    }

    pub(crate) fn take_open(&mut self, open: ClassMask) -> Option<Packet> {
        match self.select(open) {
            Next::Packet(id) => Some(self.shared.packets.remove(id)),
            Next::At(_) | Next::Nothing => None,
        }
    }

    pub(crate) fn take(&mut self) -> Option<Packet> {
        self.take_open(ClassMask::ALL)
    }

    pub(crate) fn drops(&self, reason: DropReason) -> u64 {
        self.stats.losses().by_reason[reason as usize]
    }
}

/// Makes a stream of random numbers.
pub(crate) fn stream() -> Stream {
    Stream::new(1, Purpose::Test, 0)
}

/// Makes a packet of a flow that understands marks.
pub(crate) fn packet(flow: u32, seq: u64, wire_bytes: u16) -> Packet {
    Packet {
        flow: FlowId(flow),
        seq,
        wire_bytes,
        flags: Flags::ECT,
        ..Packet::default()
    }
}
