//! Queue disciplines, one file each, behind one trait.
//!
//! A discipline sees one port. It stores the packets that it accepts, drops what it must through
//! [`QueueContext::drop`], marks through [`QueueContext::mark`], and says which packet goes next.
//! The packet that is being sent has left the queue and counts no more, as in ns-3.
//!
//! Ports are advanced lazily: [`QueueContext::now`] is the moment at which the packet arrives or
//! leaves, and never goes back for one port. A discipline with a clock of its own (XCP's control
//! interval) catches up with it in `enqueue` and `dequeue`: nothing can have changed between.

pub mod codel;
pub mod drop_tail;
pub mod ecn_threshold;
mod fifo;
pub mod pfabric;
pub mod red;
pub mod sfq_codel;
pub mod strict_priority;
pub mod xcp;

use crate::SimRng;
use crate::ext::Extensions;
use crate::flow::FlowStore;
use crate::net::stats::PortStats;
use crate::packet::{Flags, Packet, PacketId, PacketKind, PacketSlab};
use crate::time::Time;
pub use codel::{CodelConfig, CodelQueue};
pub use ecn_threshold::EcnThreshold;
pub use fifo::Fifo;
pub use pfabric::PFabricQueue;
pub use red::{Red, RedConfig};
pub use sfq_codel::SfqCodel;
pub use strict_priority::StrictPriority;
pub use xcp::{XcpConfig, XcpQueue};

/// How much fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum QueueLimit {
    /// So many packets.
    Packets(u32),
    /// So many bytes on the link.
    Bytes(u64),
    /// Everything.
    #[default]
    Unlimited,
}

impl QueueLimit {
    /// Whether a packet fits into a queue of this length.
    #[inline]
    #[must_use]
    pub const fn fits(self, packets: u32, bytes: u64, wire_bytes: u16) -> bool {
        Bounds::of(self).fits(packets, bytes, wire_bytes)
    }
}

/// A [`QueueLimit`] as two numbers, which are compared without asking which kind it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bounds {
    bytes: u64,
    packets: u32,
}

impl Bounds {
    const fn of(limit: QueueLimit) -> Self {
        let (packets, bytes) = match limit {
            QueueLimit::Packets(packets) => (packets, u64::MAX),
            QueueLimit::Bytes(bytes) => (u32::MAX, bytes),
            QueueLimit::Unlimited => (u32::MAX, u64::MAX),
        };
        Self { bytes, packets }
    }

    /// Whether a packet fits into a queue of this length.
    #[inline]
    const fn fits(self, packets: u32, bytes: u64, wire_bytes: u16) -> bool {
        (packets < self.packets) & (bytes + wire_bytes as u64 <= self.bytes)
    }

    /// Whether a queue of this length has reached them.
    #[inline]
    const fn reached(self, packets: u32, bytes: u64) -> bool {
        (packets >= self.packets) | (bytes >= self.bytes)
    }
}

/// Why a packet was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DropReason {
    /// The queue or the switch's buffer was full.
    Full,
    /// The discipline chose to (RED, CoDel).
    Early,
    /// The link is down, or failed while the packet was on it.
    LinkDown,
    /// No way leads to the destination.
    NoRoute,
}

impl DropReason {
    /// All reasons, in the order in which they are counted.
    pub const ALL: [Self; 4] = [Self::Full, Self::Early, Self::LinkDown, Self::NoRoute];
}

/// What all ports share.
#[derive(Debug)]
pub struct SharedState {
    /// The packets in the fabric.
    pub packets: PacketSlab,
    /// What some of them carry.
    pub extensions: Extensions,
    /// The flows, for their counters.
    pub flows: FlowStore,
    /// Randomness.
    pub rng: SimRng,
}

impl SharedState {
    /// Frees a packet and counts it as dropped for its flow.
    pub(crate) fn discard(&mut self, id: PacketId) -> Packet {
        let mut packet = self.packets.remove(id);
        self.extensions.discard(&mut packet);
        self.flows
            .progress_mut(packet.flow)
            .dropped
            .add(packet.wire_bytes);
        packet
    }
}

/// What a discipline may see and do.
#[derive(Debug)]
pub struct QueueContext<'a> {
    /// When the packet arrives or leaves.
    pub now: Time,
    /// Packets, extensions, randomness.
    pub shared: &'a mut SharedState,
    /// The port's counters.
    pub stats: &'a mut PortStats,
}

impl QueueContext<'_> {
    /// Drops a packet, which must not be in a queue any more.
    pub fn drop(&mut self, id: PacketId, reason: DropReason) {
        let packet = self.shared.discard(id);
        self.stats.count_drop(packet.wire_bytes, reason);
    }

    /// Marks a packet if its transport understands marks; says whether it does.
    #[inline]
    pub fn mark(&mut self, id: PacketId) -> bool {
        let packet = &mut self.shared.packets[id];
        let ect = packet.is_ect();
        if ect {
            packet.flags.insert(Flags::CE);
            self.stats.marks += 1;
        }
        ect
    }

    /// The packet.
    #[inline]
    #[must_use]
    pub fn packet(&self, id: PacketId) -> &Packet {
        &self.shared.packets[id]
    }
}

/// A queue discipline.
pub trait Discipline {
    /// Takes a packet, or drops it, or drops others for it.
    fn enqueue(&mut self, q: &mut QueueContext<'_>, id: PacketId);
    /// The packet that is to be sent now; none if the queue is empty, or became empty because
    /// the discipline dropped what was left.
    fn dequeue(&mut self, q: &mut QueueContext<'_>) -> Option<PacketId>;
    /// The packet that goes next, as far as it can be said at no cost; a hint, to fetch it in time.
    fn front(&self) -> PacketId {
        PacketId::NONE
    }
    /// The packet that the next one to come is chained to, as far as it can be said at no cost; a
    /// hint too.
    fn back(&self) -> PacketId {
        PacketId::NONE
    }
    /// Whether a packet that comes to an empty queue and is sent at once passes through unchanged,
    /// and leaves the queue as it was.
    fn is_transparent(&self) -> bool {
        false
    }
    /// How many packets wait.
    fn packets(&self) -> u32;
    /// Their bytes on the link.
    fn bytes(&self) -> u64;
}

/// Which discipline, with its parameters.
#[derive(Clone, PartialEq, Debug)]
pub enum QueueConfig {
    /// First in, first out; what does not fit is dropped.
    DropTail {
        /// How much fits.
        limit: QueueLimit,
    },
    /// DCTCP's switch: marks what arrives while the queue is at the threshold or above.
    EcnThreshold {
        /// From which length on.
        mark_at: QueueLimit,
        /// How much fits.
        limit: QueueLimit,
    },
    /// CoDel: marks or drops by sojourn time.
    Codel {
        /// Target, interval, marks.
        control: CodelConfig,
        /// How much fits.
        limit: QueueLimit,
    },
    /// RED: marks or drops by the mean length.
    Red {
        /// Thresholds, probability, weight, marks.
        control: RedConfig,
        /// How much fits.
        limit: QueueLimit,
    },
    /// sfqCoDel: 1,024 bins in turn, each under CoDel.
    SfqCodel {
        /// Target, interval, marks.
        control: CodelConfig,
        /// How much fits into all bins together.
        limit: QueueLimit,
    },
    /// pFabric's switch: keeps and sends what has the fewest bytes to go.
    PFabric {
        /// How much fits.
        limit: QueueLimit,
    },
    /// XCP's router.
    Xcp {
        /// Constants of its controllers.
        control: XcpConfig,
        /// How much fits.
        limit: QueueLimit,
    },
    /// Strict priorities of packets' classes.
    StrictPriority {
        /// How many classes.
        classes: u8,
        /// The queue of each.
        each: Box<QueueConfig>,
    },
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self::DropTail {
            limit: QueueLimit::Unlimited,
        }
    }
}

impl QueueConfig {
    /// An empty queue of this kind for a port of this rate.
    #[must_use]
    pub fn build(&self, rate_bps: u64) -> Queue {
        match self {
            Self::StrictPriority { classes, each } => {
                Queue::StrictPriority(Box::new(StrictPriority::new(*classes, each, rate_bps)))
            }
            Self::DropTail { limit } => Queue::EcnThreshold(drop_tail::drop_tail(*limit)),
            Self::EcnThreshold { mark_at, limit } => {
                Queue::EcnThreshold(EcnThreshold::new(*mark_at, *limit))
            }
            Self::Codel { control, limit } => {
                Queue::Codel(Box::new(CodelQueue::new(*control, *limit)))
            }
            Self::Red { control, limit } => {
                Queue::Red(Box::new(Red::new(*control, *limit, rate_bps)))
            }
            Self::SfqCodel { control, limit } => {
                Queue::SfqCodel(Box::new(SfqCodel::new(*control, *limit)))
            }
            Self::PFabric { limit } => Queue::PFabric(Box::new(PFabricQueue::new(*limit))),
            Self::Xcp { control, limit } => {
                Queue::Xcp(Box::new(XcpQueue::new(*control, *limit, rate_bps)))
            }
        }
    }
}

macro_rules! queue {
    ($($(#[$doc:meta])* $variant:ident($inner:ty),)*) => {
        /// Any discipline; an enum, because a call through it is on the path of every packet.
        /// Those with much state keep it elsewhere, so that a port stays small.
        #[derive(Debug)]
        pub enum Queue {
            $($(#[$doc])* $variant($inner),)*
        }

        impl Discipline for Queue {
            #[inline]
            fn enqueue(&mut self, q: &mut QueueContext<'_>, id: PacketId) {
                match self { $(Self::$variant(d) => d.enqueue(q, id),)* }
            }

            #[inline]
            fn dequeue(&mut self, q: &mut QueueContext<'_>) -> Option<PacketId> {
                match self { $(Self::$variant(d) => d.dequeue(q),)* }
            }

            #[inline]
            fn front(&self) -> PacketId {
                match self { $(Self::$variant(d) => d.front(),)* }
            }

            #[inline]
            fn back(&self) -> PacketId {
                match self { $(Self::$variant(d) => d.back(),)* }
            }

            fn is_transparent(&self) -> bool {
                match self { $(Self::$variant(d) => d.is_transparent(),)* }
            }

            #[inline]
            fn packets(&self) -> u32 {
                match self { $(Self::$variant(d) => d.packets(),)* }
            }

            #[inline]
            fn bytes(&self) -> u64 {
                match self { $(Self::$variant(d) => d.bytes(),)* }
            }
        }
    };
}

queue! {
    /// See [`ecn_threshold`] and [`drop_tail`].
    EcnThreshold(EcnThreshold),
    /// See [`codel`].
    Codel(Box<CodelQueue>),
    /// See [`red`].
    Red(Box<Red>),
    /// See [`sfq_codel`].
    SfqCodel(Box<SfqCodel>),
    /// See [`pfabric`].
    PFabric(Box<PFabricQueue>),
    /// See [`xcp`].
    Xcp(Box<XcpQueue>),
    /// See [`strict_priority`].
    StrictPriority(Box<StrictPriority>),
}

const _: () = assert!(size_of::<Queue>() <= 64, "a queue is one cache line");

/// pFabric's notion of a packet's urgency: bytes that remain for data, most urgent for all else.
#[must_use]
pub fn urgency(packet: &Packet) -> u64 {
    if packet.kind == PacketKind::Data {
        packet.ack
    } else {
        0
    }
}

#[cfg(test)]
pub(crate) mod testing;
