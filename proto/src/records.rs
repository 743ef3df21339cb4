//! The fixed records of the hot path (flowtune §5.1): a flowlet start is
//! 16 bytes, an end 4, a rate update 6, all little endian and unaligned.

use std::fmt;

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::codes::{RateCode, WeightCode};

/// Bits of a flow id that name the slot in the endpoint's flow table.
pub const SLOT_BITS: u32 = 20;
/// Slots that a flow id can name.
pub const MAX_SLOTS: u32 = 1 << SLOT_BITS;
/// Generations of a slot before the count wraps.
pub const GENERATIONS: u32 = 1 << (32 - SLOT_BITS);

/// A flowlet: a slot of the endpoint's flow table (low 20 bits) and the slot's
/// generation (high 12 bits), which grows by one, wrapping, with each new
/// flowlet on the slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FlowId(pub u32);

impl FlowId {
    /// Puts an id together; bits beyond the fields' widths are dropped.
    pub const fn new(slot: u32, generation: u32) -> Self {
        Self((generation << SLOT_BITS) | (slot & (MAX_SLOTS - 1)))
    }

    /// The slot in the endpoint's flow table.
    pub const fn slot(self) -> u32 {
        self.0 & (MAX_SLOTS - 1)
    }

    /// The slot's generation.
    pub const fn generation(self) -> u32 {
        self.0 >> SLOT_BITS
    }

    /// The id of the next flowlet on the same slot.
    #[must_use]
    pub const fn next_generation(self) -> Self {
        // The overflow of the generation falls off the top, so the slot stays as it is.
        Self(self.0.wrapping_add(1 << SLOT_BITS))
    }
}

impl fmt::Debug for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlowId({}.{})", self.slot(), self.generation())
    }
}

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot(), self.generation())
    }
}

/// Top bit of [`StartRecord`]'s class byte: the path is an explicit route.
const EXPLICIT_PATH: u8 = 0x80;

/// Start of a flowlet: 16 bytes. A second one with an equal flow id replaces the flow's parameters.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct StartRecord {
    flow: U32,
    dst_host: U32,
    path: U32,
    class: u8,
    weight: u8,
    demand: U16,
}

/// Path of a flow, as its start record gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowPath {
    /// The ECMP hash of the flow's 5-tuple.
    Hash(u32),
    /// The index of a route that the endpoint has chosen.
    Explicit(u32),
}

impl StartRecord {
    /// Bytes on the wire.
    pub const BYTES: usize = size_of::<Self>();

    /// A start with class 0, the class's weight and no demand limit.
    pub fn new(flow: FlowId, dst_host: u32, path: FlowPath) -> Self {
        // The path's kind travels in the class byte's top bit, so a start stays at 16 bytes
        // (flowtune §5.1).
        let (path, class) = match path {
            FlowPath::Hash(hash) => (hash, 0),
            FlowPath::Explicit(route) => (route, EXPLICIT_PATH),
        };
        Self {
            flow: flow.0.into(),
            dst_host: dst_host.into(),
            path: path.into(),
            class,
            weight: WeightCode::CLASS_DEFAULT.0,
            demand: RateCode::NONE.0.into(),
        }
    }

    /// Sets the flow class (the low 7 bits of `class`).
    #[must_use]
    pub fn with_class(mut self, class: u8) -> Self {
        // The top bit belongs to the path, whatever the caller passes.
        self.class = (self.class & EXPLICIT_PATH) | (class & !EXPLICIT_PATH);
        self
    }

    /// Sets the weight, which multiplies the class's.
    #[must_use]
    pub fn with_weight(mut self, weight: WeightCode) -> Self {
        self.weight = weight.0;
        self
    }

    /// Sets the demand; [`RateCode::NONE`] is unlimited.
    #[must_use]
    pub fn with_demand(mut self, demand: RateCode) -> Self {
        self.demand = demand.0.into();
        self
    }

    /// The flowlet.
    pub fn flow(&self) -> FlowId {
        FlowId(self.flow.get())
    }

    /// The destination host's id in the topology.
    pub fn dst_host(&self) -> u32 {
        self.dst_host.get()
    }

    /// The path.
    pub fn path(&self) -> FlowPath {
        if self.class & EXPLICIT_PATH != 0 {
            FlowPath::Explicit(self.path.get())
        } else {
            FlowPath::Hash(self.path.get())
        }
    }

    /// The flow class, 0 to 127.
    pub fn class(&self) -> u8 {
        self.class & !EXPLICIT_PATH
    }

    /// The weight.
    pub fn weight(&self) -> WeightCode {
        WeightCode(self.weight)
    }

    /// The demand; [`RateCode::NONE`] is unlimited.
    pub fn demand(&self) -> RateCode {
        RateCode(self.demand.get())
    }
}

impl fmt::Debug for StartRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartRecord")
            .field("flow", &self.flow())
            .field("dst_host", &self.dst_host())
            .field("path", &self.path())
            .field("class", &self.class())
            .field("weight", &self.weight())
            .field("demand", &self.demand())
            .finish()
    }
}

/// End of a flowlet and of any older one on its slot: 4 bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct EndRecord {
    flow: U32,
}

impl EndRecord {
    /// Bytes on the wire.
    pub const BYTES: usize = size_of::<Self>();

    /// The end of `flow`.
    pub fn new(flow: FlowId) -> Self {
        Self {
            flow: flow.0.into(),
        }
    }

    /// The flowlet.
    pub fn flow(&self) -> FlowId {
        FlowId(self.flow.get())
    }
}

impl fmt::Debug for EndRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EndRecord({})", self.flow())
    }
}

/// Rate update of a flowlet: 6 bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct RateRecord {
    flow: U32,
    rate: U16,
}

impl RateRecord {
    /// Bytes on the wire.
    pub const BYTES: usize = size_of::<Self>();

    /// `flow`'s new rate.
    pub fn new(flow: FlowId, rate: RateCode) -> Self {
        Self {
            flow: flow.0.into(),
            rate: rate.0.into(),
        }
    }

    /// The flowlet.
    pub fn flow(&self) -> FlowId {
        FlowId(self.flow.get())
    }

    /// The rate.
    pub fn rate(&self) -> RateCode {
        RateCode(self.rate.get())
    }
}

impl fmt::Debug for RateRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RateRecord({}, {:?})", self.flow(), self.rate())
    }
}

const _: () = assert!(StartRecord::BYTES == 16 && EndRecord::BYTES == 4 && RateRecord::BYTES == 6);
