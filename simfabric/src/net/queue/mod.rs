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
mod fifo;
mod limit;
pub mod shaper;

use toml::Table;

use crate::ext::Extensions;
use crate::flow::{FlowId, FlowStore};
use crate::net::mmu::Mmu;
pub use crate::net::stats::DropReason;
use crate::net::stats::PortStats;
use crate::net::{Notice, Tap};
use crate::packet::{Flags, Packet, PacketId, PacketSlab};
use crate::parameters::{self, ParamError, Parameter, Parameters};
use crate::rng::Stream;
use crate::time::Time;
pub use classes::{ClassConfig, ClassMask, Classes, MAX_CLASSES, Service};
pub use codel::{CodelConfig, CodelQueue};
pub use drop_tail::DropTail;
pub use fifo::Fifo;
use limit::Bounds;
pub use limit::{Limit, QueueLimit, holds_a_packet};
pub use pfabric::PFabricQueue;
pub use red::{Red, RedConfig};
pub use sfq_codel::SfqCodel;
pub use shaper::ShaperConfig;
pub use xcp::{XcpConfig, XcpQueue};

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
        self.flows.dropped(packet.flow, packet.wire_bytes);
        packet
    }
}

/// The switch's buffer, as a port of it sees it.
#[derive(Debug)]
pub struct BufferView<'a> {
    /// The buffer.
    pub(crate) mmu: &'a mut Mmu,
    /// Number of the port within the switch.
    pub(crate) egress: u16,
}

impl BufferView<'_> {
    /// Gives up the place of a packet that leaves the queue.
    #[inline]
    pub(crate) fn release(&mut self, now: Time, packet: &Packet) {
        self.mmu.release(now, self.mmu.place(packet, self.egress));
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
    /// The buffer that the port shares, in which each packet of its queue has its place.
    pub buffer: Option<BufferView<'a>>,
    /// Takes marks in place of packets, where the port has such a one.
    pub marks: Option<&'a mut dyn MarkKeeper>,
}

/// Keeper of marks that do not go into packets.
pub trait MarkKeeper: std::fmt::Debug {
    /// Keeps a mark of a flow. Returns false if the packet itself is to carry it.
    fn keep(&mut self, now: Time, flow: FlowId) -> bool;
}

impl QueueContext<'_> {
    /// Returns the same access, with a keeper of marks.
    pub fn keeping<'b>(&'b mut self, keeper: &'b mut dyn MarkKeeper) -> QueueContext<'b> {
        QueueContext {
            now: self.now,
            shared: self.shared,
            stats: self.stats,
            buffer: self.buffer.as_mut().map(|buffer| BufferView {
                mmu: &mut *buffer.mmu,
                egress: buffer.egress,
            }),
            marks: Some(keeper),
        }
    }

    /// Drops a packet that is in no queue any more.
    pub fn drop(&mut self, id: PacketId, reason: DropReason) {
        let packet = self.shared.discard(id);
        if let Some(buffer) = &mut self.buffer {
            buffer.release(self.now, &packet);
            // A link that fails is no fault of the buffer's.
            if reason != DropReason::LinkDown {
                buffer
                    .mmu
                    .count_drop(buffer.mmu.place(&packet, buffer.egress));
            }
        }
        self.stats.count_drop(packet.wire_bytes, reason);
    }

    /// Marks a packet if its transport understands marks, and returns whether it does.
    #[inline]
    pub fn mark(&mut self, id: PacketId) -> bool {
        let packet = &mut self.shared.packets[id];
        let ect = packet.is_ect();
        if ect {
            let (now, flow) = (self.now, packet.flow);
            let keeper = self.marks.as_mut();
            if !keeper.is_some_and(|keeper| keeper.keep(now, flow)) {
                packet.flags.insert(Flags::CE);
            }
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
    /// Returns the bytes of the packets that wait in a class; a queue without classes has one.
    fn bytes_of(&self, _class: u8) -> u64 {
        self.bytes()
    }
    /// Returns what the switch is to write into acknowledgements of this queue's packets.
    fn tap(&self) -> Tap {
        Tap::None
    }
    /// Takes a mark that waits for the flow's acknowledgements ([`Tap::Marks`]), of which one comes
    /// by now; returns true if there was one.
    fn take_mark(&mut self, _now: Time, _flow: FlowId) -> bool {
        false
    }
    /// Returns the time of the next tick of the queue's clock: `None` if it has no clock,
    /// [`Time::MAX`] while its clock stands. Asked after a packet came, while the clock stands, and
    /// after a tick. A clock that has nothing to do should stand, so that runs may end.
    ///
    /// Clocks tick in ports of switches only.
    fn next_tick(&self) -> Option<Time> {
        None
    }
    /// Handles a tick of the clock, at [`QueueContext::now`] and after all departures and arrivals
    /// until then. The switch sends `notices` at once, in this order.
    fn on_tick(&mut self, _q: &mut QueueContext<'_>, _notices: &mut Vec<Notice>) {}
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
    /// Returns the time from which packets of this class may leave: that of its shaper.
    #[inline]
    fn opens_at(&self, _class: u8) -> Time {
        Time::ZERO
    }
    /// Returns the first time from which a packet that waits may leave, were no class paused.
    #[inline]
    fn next_opens_at(&self) -> Time {
        Time::ZERO
    }
    /// Lets a packet of this class pass that comes while the link is free and no packet that waits
    /// may leave, if it passes unchanged. Returns false if it is to be [enqueued](Self::enqueue)
    /// instead.
    #[inline]
    fn pass(&mut self, _now: Time, _class: u8, _wire_bytes: u16) -> bool {
        false
    }
    /// Shows the packets that wait, in any order.
    fn visit(&self, packets: &PacketSlab, each: &mut dyn FnMut(&Packet));
    /// Returns the number of packets that wait.
    fn packets(&self) -> u32;
    /// Returns their bytes on the link.
    fn bytes(&self) -> u64;
}

impl QueueConfig {
    /// Reads a queue without classes from a table as plans have it, for packets of at most
    /// `packet_bytes` on a link.
    ///
    /// # Errors
    /// An unknown discipline or key, and a value that the discipline cannot work with.
    pub fn from_table(table: &Table, packet_bytes: u16) -> Result<Self, ParamError> {
        let mut given = table.clone();
        let name = given.remove("discipline");
        let entry = DISCIPLINES
            .iter()
            .find(|entry| name.as_ref().and_then(toml::Value::as_str) == Some(entry.name))
            .ok_or_else(|| {
                let names: Vec<&str> = DISCIPLINES.iter().map(|entry| entry.name).collect();
                ParamError::of(
                    "discipline",
                    format!("it must be one of {}", names.join(", ")),
                )
            })?;
        (entry.read)(&given, packet_bytes)
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
}

/// Parameters of a discipline: a structure beside it.
pub trait DisciplineConfig: Parameters {
    /// Name in plans.
    const NAME: &'static str;
    /// True if it can be the queue of one class among several of a port.
    const OF_A_CLASS: bool = true;

    /// Checks values, for packets of at most `packet_bytes` on a link.
    ///
    /// # Errors
    /// The first key whose value the discipline cannot work with.
    fn check(&self, packet_bytes: u16) -> Result<(), ParamError>;

    /// Makes an empty queue for a port of this rate. `rng` is the port's stream of random numbers.
    fn build(&self, rate_bps: u64, rng: &mut Stream) -> Queue;
}

/// A line of the list of disciplines.
#[derive(Clone, Copy, Debug)]
pub struct DisciplineEntry {
    /// Name in plans.
    pub name: &'static str,
    /// The discipline in words.
    pub about: &'static str,
    /// Parameters with their meanings.
    pub parameters: fn() -> Vec<Parameter>,
    /// Defaults.
    pub default: fn() -> Table,
    /// Reads a queue from its parameters, for packets of at most so many bytes on a link.
    pub read: fn(&Table, u16) -> Result<QueueConfig, ParamError>,
}

/// Lists the disciplines: the module, whose parameters are its `Config`; the name in types; and the
/// queue, unless it is that of another one.
macro_rules! disciplines {
    ($($file:ident $Variant:ident $(($Inner:ty))?,)*) => {
        $(pub mod $file;)*

        /// A discipline with its parameters.
        #[derive(Clone, PartialEq, Debug)]
        pub enum QueueConfig {
            $(
                #[doc = concat!("See [`", stringify!($file), "`].")]
                $Variant($file::Config),
            )*
            /// A queue for each class, at most [`MAX_CLASSES`], under a scheduler.
            Classes(Vec<ClassConfig>),
        }

        impl QueueConfig {
            /// Returns the discipline's name in plans.
            #[must_use]
            pub const fn discipline(&self) -> &'static str {
                match self {
                    $(Self::$Variant(_) => <$file::Config as DisciplineConfig>::NAME,)*
                    Self::Classes(_) => "classes",
                }
            }

            /// Returns the table of [`from_table`](Self::from_table); classes have none.
            #[must_use]
            pub fn table(&self) -> Table {
                let mut table = match self {
                    // Structures of parameters have keys that are texts: they are tables.
                    $(Self::$Variant(config) => Table::try_from(config).unwrap_or_default(),)*
                    Self::Classes(_) => Table::new(),
                };
                let name = self.discipline().to_owned();
                table.insert("discipline".to_owned(), toml::Value::String(name));
                table
            }

            /// Returns true if it can be the queue of one class among several of a port. Classes
            /// within classes have no order.
            #[must_use]
            pub const fn can_be_of_a_class(&self) -> bool {
                match self {
                    $(Self::$Variant(_) => <$file::Config as DisciplineConfig>::OF_A_CLASS,)*
                    Self::Classes(_) => false,
                }
            }

            /// Makes an empty queue of this kind for a port of this rate. `rng` is the port's
            /// stream of random numbers.
            #[must_use]
            pub fn build(&self, rate_bps: u64, rng: &mut Stream) -> Queue {
                match self {
                    $(Self::$Variant(config) => config.build(rate_bps, rng),)*
                    Self::Classes(classes) => {
                        Queue::Classes(Box::new(Classes::new(classes, rate_bps, rng)))
                    }
                }
            }
        }

        /// All disciplines; the scheduler of [`classes`] stands above them.
        pub static DISCIPLINES: &[DisciplineEntry] = &[$(DisciplineEntry {
            name: <$file::Config as DisciplineConfig>::NAME,
            about: <$file::Config as Parameters>::ABOUT,
            parameters: <$file::Config as Parameters>::parameters,
            default: <$file::Config as Parameters>::defaults,
            read: |table, packet_bytes| {
                let config: $file::Config = parameters::read(table)?;
                config.check(packet_bytes)?;
                Ok(QueueConfig::$Variant(config))
            },
        },)*];

        queue! { $($($Variant($Inner),)?)* Classes(Box<Classes>), }
    };
}

macro_rules! queue {
    ($($variant:ident($inner:ty),)*) => {
        /// Any queue. It is an enum, because every packet calls it. Disciplines with much state
        /// keep it elsewhere, so that a port stays small.
        #[derive(Debug)]
        pub enum Queue {
            $(#[allow(missing_docs, reason = "named for its type")] $variant($inner),)*
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

            fn bytes_of(&self, class: u8) -> u64 {
                match self { $(Self::$variant(d) => d.bytes_of(class),)* }
            }

            fn tap(&self) -> Tap {
                match self { $(Self::$variant(d) => d.tap(),)* }
            }

            fn take_mark(&mut self, now: Time, flow: FlowId) -> bool {
                match self { $(Self::$variant(d) => d.take_mark(now, flow),)* }
            }

            fn next_tick(&self) -> Option<Time> {
                match self { $(Self::$variant(d) => d.next_tick(),)* }
            }

            fn on_tick(&mut self, q: &mut QueueContext<'_>, notices: &mut Vec<Notice>) {
                match self { $(Self::$variant(d) => d.on_tick(q, notices),)* }
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
            fn opens_at(&self, class: u8) -> Time {
                match self { $(Self::$variant(d) => d.opens_at(class),)* }
            }

            #[inline]
            fn next_opens_at(&self) -> Time {
                match self { $(Self::$variant(d) => d.next_opens_at(),)* }
            }

            #[inline]
            fn pass(&mut self, now: Time, class: u8, wire_bytes: u16) -> bool {
                match self { $(Self::$variant(d) => d.pass(now, class, wire_bytes),)* }
            }

            fn visit(&self, packets: &PacketSlab, each: &mut dyn FnMut(&Packet)) {
                match self { $(Self::$variant(d) => d.visit(packets, each),)* }
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

disciplines! {
    drop_tail DropTail(DropTail),
    ecn_threshold EcnThreshold,
    ecn_ramp EcnRamp(Box<ecn_ramp::EcnRamp>),
    codel Codel(Box<CodelQueue>),
    sfq_codel SfqCodel(Box<SfqCodel>),
    red Red(Box<Red>),
    pfabric PFabric(Box<PFabricQueue>),
    xcp Xcp(Box<XcpQueue>),
    rpm Rpm(Box<rpm::Rpm>),
    rcp Rcp(Box<rcp::RcpQueue>),
    rocc Rocc(Box<rocc::RoccQueue>),
}

impl Queue {
    /// Returns the number of classes; a queue without classes is of one.
    pub(crate) fn classes(&self) -> usize {
        match self {
            Self::Classes(classes) => classes.classes(),
            _ => 1,
        }
    }
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self::DropTail(drop_tail::Config::default())
    }
}

const _: () = assert!(size_of::<Queue>() <= 64, "a queue is one cache line");

#[cfg(test)]
pub(crate) mod testing;
