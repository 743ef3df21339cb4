//! Queue disciplines, one file each, behind one trait.
//!
//! A discipline sees one port. Above it, where a port has several classes, stands the scheduler
//! ([`classes`]), which is what pauses and shapes.
//!
//! A discipline stores the packets that it accepts, drops others through
//! [`QueueContext::drop`], marks through [`QueueContext::mark`], and selects the next packet. The
//! packet that is being sent has left the queue and counts no more, as in ns-3.
//!
//! Ports are advanced lazily. [`QueueContext::now`] is the moment at which the packet arrives or
//! leaves, and never goes back for one port. A discipline with a clock of its own (XCP's control
//! interval) catches up with it in `enqueue` and `dequeue`: its inputs cannot have changed in
//! between.

pub mod classes;
pub mod codel;
pub mod drop_tail;
mod fifo;
pub mod pfabric;
pub mod red;
pub mod sfq_codel;
pub mod shaper;
pub mod xcp;

use crate::ext::Extensions;
use crate::flow::{FlowId, FlowStore};
pub use crate::net::stats::DropReason;
use crate::net::stats::PortStats;
use crate::packet::{Flags, Packet, PacketId, PacketKind, PacketSlab};
use crate::rng::Stream;
use crate::time::Time;
pub use classes::{ClassConfig, ClassMask, Classes, MAX_CLASSES, Service};
pub use codel::{CodelConfig, CodelQueue};
pub use drop_tail::DropTail;
pub use fifo::Fifo;
pub use pfabric::PFabricQueue;
pub use red::{Red, RedConfig};
pub use sfq_codel::SfqCodel;
pub use shaper::ShaperConfig;
pub use xcp::{XcpConfig, XcpQueue};

/// Capacity of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum QueueLimit {
    /// Number of packets.
    Packets(u32),
    /// Bytes on the link.
    Bytes(u64),
    /// No limit.
    #[default]
    Unlimited,
}

impl QueueLimit {
    /// Returns true if a packet fits into a queue of this length.
    #[inline]
    #[must_use]
    pub const fn fits(self, packets: u32, bytes: u64, wire_bytes: u16) -> bool {
        Bounds::of(self).fits(packets, bytes, wire_bytes)
    }
}

/// A [`QueueLimit`] as two numbers, so that a comparison does not branch on its kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bounds {
    bytes: u64,
    packets: u32,
}

impl Bounds {
    const fn of(limit: QueueLimit) -> Self {
        // A bound that does not apply is the largest value, which no queue reaches.
        let (packets, bytes) = match limit {
            QueueLimit::Packets(packets) => (packets, u64::MAX),
            QueueLimit::Bytes(bytes) => (u32::MAX, bytes),
            QueueLimit::Unlimited => (u32::MAX, u64::MAX),
        };
        Self { bytes, packets }
    }

    /// Returns true if a packet fits into a queue of this length.
    #[inline]
    const fn fits(self, packets: u32, bytes: u64, wire_bytes: u16) -> bool {
        // `&` and not `&&`: two comparisons and no branch.
        (packets < self.packets) & (bytes + wire_bytes as u64 <= self.bytes)
    }

    /// Returns true if a queue of this length has reached one of the bounds.
    #[inline]
    const fn reached(self, packets: u32, bytes: u64) -> bool {
        (packets >= self.packets) | (bytes >= self.bytes)
    }
}

/// State that all ports share.
#[derive(Debug)]
pub struct SharedState {
    /// Packets in the fabric.
    pub packets: PacketSlab,
    /// Extensions of packets.
    pub extensions: Extensions,
    /// Flows, for their counters.
    pub flows: FlowStore,
}

impl SharedState {
    /// Frees a packet and counts it as dropped for its flow.
    pub(crate) fn discard(&mut self, id: PacketId) -> Packet {
        let mut packet = self.packets.remove(id);
        // The extension's slot is not freed with the packet's.
        self.extensions.discard(&mut packet);
        self.flows
            .progress_mut(packet.flow)
            .dropped
            .add(packet.wire_bytes);
        packet
    }
}

/// Access of a discipline to the run.
#[derive(Debug)]
pub struct QueueContext<'a> {
    /// Time at which the packet arrives or leaves.
    pub now: Time,
    /// Packets and extensions.
    pub shared: &'a mut SharedState,
    /// The port's counters.
    pub stats: &'a mut PortStats,
}

impl QueueContext<'_> {
    /// Drops a packet that is in no queue any more.
    pub fn drop(&mut self, id: PacketId, reason: DropReason) {
        let packet = self.shared.discard(id);
        self.stats.count_drop(packet.wire_bytes, reason);
    }

    /// Marks a packet if its transport understands marks, and returns whether it does.
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

    /// Returns a packet.
    #[inline]
    #[must_use]
    pub fn packet(&self, id: PacketId) -> &Packet {
        &self.shared.packets[id]
    }
}

/// Answer of a queue that is asked for a packet to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// This packet, which has left the queue.
    Packet(PacketId),
    /// None before this time, because of a shaper.
    At(Time),
    /// None until a packet comes or a class is resumed.
    Nothing,
}

/// A queue discipline.
pub trait Discipline {
    /// Takes a packet, or drops it, or drops others in its place.
    fn enqueue(&mut self, q: &mut QueueContext<'_>, id: PacketId);
    /// Takes the next packet, whatever is paused or shaped. Returns `None` if the queue is empty,
    /// or became empty because the discipline dropped the rest.
    fn dequeue(&mut self, q: &mut QueueContext<'_>) -> Option<PacketId>;
    /// Takes the packet that is to be sent now, of the classes that are open. A queue without
    /// classes is of class 0.
    #[inline]
    fn select(&mut self, q: &mut QueueContext<'_>, open: ClassMask) -> Next {
        if !open.contains(0) {
            return Next::Nothing;
        }
        self.dequeue(q).map_or(Next::Nothing, Next::Packet)
    }
    /// Takes a mark that waits for the flow's acknowledgements
    /// ([`Tap::Marks`](crate::net::Tap::Marks)); returns true if there was one.
    fn take_mark(&mut self, _flow: FlowId) -> bool {
        false
    }
    /// Returns the packet that goes next, where that costs nothing; a hint for prefetching.
    fn front(&self) -> PacketId {
        PacketId::NONE
    }
    /// Returns the packet that the next one to come is chained to, where that costs nothing; a hint
    /// too.
    fn back(&self) -> PacketId {
        PacketId::NONE
    }
    /// Returns true if a packet that comes to an empty queue and leaves at once passes unchanged,
    /// and leaves the queue unchanged.
    fn is_transparent(&self) -> bool {
        false
    }
    /// Returns the number of packets that wait.
    fn packets(&self) -> u32;
    /// Returns their bytes on the link.
    fn bytes(&self) -> u64;
}

/// A discipline with its parameters.
#[derive(Clone, PartialEq, Debug)]
pub enum QueueConfig {
    /// Drop-tail: first in, first out; packets that do not fit are dropped.
    DropTail {
        /// Capacity of the queue.
        limit: QueueLimit,
    },
    /// DCTCP's switch: marks packets that arrive while the queue is at the threshold or above.
    EcnThreshold {
        /// Length from which packets are marked.
        mark_at: QueueLimit,
        /// Capacity of the queue.
        limit: QueueLimit,
    },
    /// CoDel: marks or drops by sojourn time.
    Codel {
        /// Target, interval, marks.
        control: CodelConfig,
        /// Capacity of the queue.
        limit: QueueLimit,
    },
    /// RED: marks or drops by the mean length.
    Red {
        /// Thresholds, probability, weight, marks.
        control: RedConfig,
        /// Capacity of the queue.
        limit: QueueLimit,
    },
    /// sfqCoDel: 1,024 bins in turn, each under CoDel.
    SfqCodel {
        /// Target, interval, marks.
        control: CodelConfig,
        /// Capacity of all bins together.
        limit: QueueLimit,
    },
    /// pFabric's switch: keeps and sends the packets with the fewest bytes to go.
    PFabric {
        /// Capacity of the queue.
        limit: QueueLimit,
    },
    /// XCP's router.
    Xcp {
        /// Constants of its controllers.
        control: XcpConfig,
        /// Capacity of the queue.
        limit: QueueLimit,
    },
    /// A queue for each class, at most [`MAX_CLASSES`], under a scheduler.
    Classes(Vec<ClassConfig>),
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self::DropTail {
            limit: QueueLimit::Unlimited,
        }
    }
}

impl QueueConfig {
    /// Returns the discipline's name in plans.
    #[must_use]
    pub const fn discipline(&self) -> &'static str {
        match self {
            Self::DropTail { .. } => "drop-tail",
            Self::EcnThreshold { .. } => "ecn-threshold",
            Self::Codel { .. } => "codel",
            Self::SfqCodel { .. } => "sfq-codel",
            Self::Red { .. } => "red",
            Self::PFabric { .. } => "pfabric",
            Self::Xcp { .. } => "xcp",
            Self::Classes(_) => "classes",
        }
    }

    /// Returns the queue of each class: of all classes, or this one.
    pub fn of_classes(&self) -> impl Iterator<Item = &Self> {
        let (classes, own) = match self {
            Self::Classes(classes) => (classes.as_slice(), None),
            own => ([].as_slice(), Some(own)),
        };
        classes.iter().map(|class| &class.queue).chain(own)
    }

    /// Returns true if a queue can be built: classes are 1 to [`MAX_CLASSES`], have no classes of
    /// their own, and weights and shapers are within their ranges.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let Self::Classes(classes) = self else {
            return true;
        };
        (1..=MAX_CLASSES).contains(&classes.len())
            && classes.iter().all(|class| {
                !matches!(class.queue, Self::Classes(_))
                    && class.service != Service::Weighted(0)
                    && (class.shaper).is_none_or(|s| s.share > 0.0 && s.share <= 1.0)
            })
    }

    /// Makes an empty queue of this kind for a port of this rate. `rng` is the port's stream of
    /// random numbers.
    #[must_use]
    pub fn build(&self, rate_bps: u64, rng: &mut Stream) -> Queue {
        match self {
            Self::DropTail { limit } => {
                Queue::DropTail(DropTail::new(*limit, QueueLimit::Unlimited))
            }
            Self::EcnThreshold { mark_at, limit } => {
                Queue::DropTail(DropTail::new(*limit, *mark_at))
            }
            Self::Classes(classes) => {
                Queue::Classes(Box::new(Classes::new(classes, rate_bps, rng)))
            }
            Self::Codel { control, limit } => {
                Queue::Codel(Box::new(CodelQueue::new(*control, *limit)))
            }
            Self::Red { control, limit } => {
                Queue::Red(Box::new(Red::new(*control, *limit, rate_bps, rng.split())))
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
        /// Any discipline. It is an enum, because every packet calls it. Disciplines with much
        /// state keep it elsewhere, so that a port stays small.
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
            fn select(&mut self, q: &mut QueueContext<'_>, open: ClassMask) -> Next {
                match self { $(Self::$variant(d) => d.select(q, open),)* }
            }

            fn take_mark(&mut self, flow: FlowId) -> bool {
                match self { $(Self::$variant(d) => d.take_mark(flow),)* }
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
    /// See [`drop_tail`].
    DropTail(DropTail),
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
    /// See [`classes`].
    Classes(Box<Classes>),
}

const _: () = assert!(size_of::<Queue>() <= 64, "a queue is one cache line");

/// Returns a packet's urgency in pFabric: remaining bytes of data packets, 0 (most urgent) for all
/// others.
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
