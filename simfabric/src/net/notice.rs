//! Packets that a switch originates.
//!
//! A queue with a clock ([`Discipline::next_tick`](crate::net::queue::Discipline::next_tick)) may
//! send a [`Notice`] at each tick, as RoCC's switches do (RoCC §3.3: congestion notification
//! packets to the sources of a queue's flows). Its switch sends it as a packet with the switch's
//! own address, by the route and through the queues that any packet to that host takes, from the
//! moment of the tick on.
//!
//! A notice belongs to no flow of the run, though it tells of one: the conservation law counts it
//! with [`FlowId::NONE`]. The flow may therefore be over when the notice arrives. Its host looks
//! the flow up by [`Context::find_slot`](crate::Context::find_slot), which allows for that.
//!
//! A notice pauses no one. In a shared buffer it counts as a packet of a class that may be dropped,
//! whatever its class is.

use ratewright_topology::HostId;

use crate::flow::FlowId;
use crate::packet::{Flags, Packet, PacketKind};
use crate::time::Time;

/// Information of a switch for one end of a flow.
///
/// The end gets it as a packet of [`PacketKind::Notice`] and reads it by [`Notice::of`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Notice {
    /// The flow.
    pub flow: FlowId,
    /// The host that is told.
    pub to: HostId,
    /// Number that is told, such as a fair rate in bit/s.
    pub value: u64,
    /// Queue class.
    pub class: u8,
    /// Bytes on the link.
    pub wire_bytes: u16,
    /// Entropy by which switches choose the notice's path.
    pub path_hash: u16,
    /// ECN bits and others.
    pub flags: Flags,
}

impl Notice {
    /// Makes the packet of a notice, sent now by the node of this address.
    pub(crate) fn packet(self, from: HostId, now: Time) -> Packet {
        Packet {
            kind: PacketKind::Notice,
            flow: FlowId::NONE,
            src: from,
            dst: self.to,
            seq: self.flow.0.into(),
            ack: self.value,
            stamp: now,
            class: self.class,
            wire_bytes: self.wire_bytes,
            path_hash: self.path_hash,
            flags: self.flags,
            ..Packet::default()
        }
    }

    /// Reads the notice of a packet; `None` if it is another kind of packet.
    #[must_use]
    pub fn of(packet: &Packet) -> Option<Self> {
        (packet.kind == PacketKind::Notice).then_some(Self {
            flow: FlowId(packet.seq as u32),
            to: packet.dst,
            value: packet.ack,
            class: packet.class,
            wire_bytes: packet.wire_bytes,
            path_hash: packet.path_hash,
            flags: packet.flags,
        })
    }
}
