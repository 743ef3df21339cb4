//! Flows: specification, progress, and each flow's share of the conservation law.

use crate::cache::prefetch;
use crate::host::Side;
use crate::time::Time;
use ratewright_topology::HostId;

/// A flow's number, counted from 0 in order of arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlowId(pub u32);

impl FlowId {
    /// Stands for traffic between nodes that belongs to no flow.
    pub const NONE: Self = Self(u32::MAX);

    /// Returns the number as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A flow as the workload specifies it: source, destination, bytes, and times.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FlowSpec {
    /// The sender.
    pub src: HostId,
    /// The receiver.
    pub dst: HostId,
    /// Payload bytes; [`FlowSpec::UNBOUNDED`] for a flow that sends as long as it may.
    pub bytes: u64,
    /// Time at which the application has the bytes ready.
    pub start: Time,
    /// Time from which unsent bytes are no longer sent; [`Time::MAX`]: never.
    pub stop: Time,
    /// Weight of the flow in schemes with weights; 1 is normal.
    pub weight: f32,
    /// Class of the flow in the workload. Where queues have priorities, it is the class of its
    /// packets, unless the scheme puts them into a later one.
    pub class: u16,
}

impl FlowSpec {
    /// Bytes of a flow without end.
    pub const UNBOUNDED: u64 = u64::MAX;

    /// Makes a flow of weight 1 and class 0 that never stops.
    #[must_use]
    pub const fn new(src: HostId, dst: HostId, bytes: u64, start: Time) -> Self {
        Self {
            src,
            dst,
            bytes,
            start,
            stop: Time::MAX,
            weight: 1.0,
            class: 0,
        }
    }
}

/// Packets, and the bytes that they took up on links.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PacketCount {
    /// Packets.
    pub packets: u64,
    /// Bytes on the link, headers included.
    pub bytes: u64,
}

impl PacketCount {
    /// Counts one packet.
    #[inline]
    pub fn add(&mut self, wire_bytes: u16) {
        self.packets += 1;
        self.bytes += u64::from(wire_bytes);
    }
}

impl std::ops::Add for PacketCount {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl std::ops::Sub for PacketCount {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self {
            packets: self.packets - other.packets,
            bytes: self.bytes - other.bytes,
        }
    }
}

impl std::iter::Sum for PacketCount {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |a, b| a + b)
    }
}

/// Progress of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowProgress {
    /// Time at which the receiver had every byte; [`Time::MAX`]: not yet.
    pub finished: Time,
    /// Bytes that the receiver has in order.
    pub delivered_bytes: u64,
    /// Retransmitted packets with payload.
    pub retransmits: u64,
    /// Packets of either direction that hosts sent.
    pub sent: PacketCount,
    /// Packets of either direction that reached their host.
    pub arrived: PacketCount,
    /// Packets of either direction that the fabric dropped.
    pub dropped: PacketCount,
}

impl Default for FlowProgress {
    fn default() -> Self {
        Self {
            finished: Time::MAX,
            delivered_bytes: 0,
            retransmits: 0,
            sent: PacketCount::default(),
            arrived: PacketCount::default(),
            dropped: PacketCount::default(),
        }
    }
}

/// All flows that have begun.
#[derive(Debug, Default)]
pub struct FlowStore {
    specs: Vec<FlowSpec>,
    progress: Vec<FlowProgress>,
    /// Slots in which a flow's two ends keep its state.
    slots: Vec<[u32; 2]>,
    /// Packets that belong to no flow.
    none: FlowProgress,
}

/// Mark of an end of a flow that keeps no state.
pub const NO_SLOT: u32 = u32::MAX;

impl FlowStore {
    pub(crate) fn push(&mut self, spec: FlowSpec) -> FlowId {
        // `u32::MAX` is `FlowId::NONE`.
        let id = u32::try_from(self.specs.len())
            .ok()
            .filter(|i| *i != u32::MAX);
        self.specs.push(spec);
        self.progress.push(FlowProgress::default());
        self.slots.push([NO_SLOT; 2]);
        FlowId(id.expect("fewer than 2^32 - 1 flows"))
    }

    /// Number of flows that have begun.
    #[must_use]
    pub fn len(&self) -> usize {
        self.specs.len()
    }

    /// Returns true if no flow has begun.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.specs.is_empty()
    }

    /// Returns a flow's specification.
    ///
    /// # Panics
    /// If the flow has not begun, or is [`FlowId::NONE`].
    #[must_use]
    pub fn spec(&self, flow: FlowId) -> &FlowSpec {
        &self.specs[flow.index()]
    }

    /// Returns a flow's progress; for [`FlowId::NONE`], that of traffic without a flow.
    ///
    /// # Panics
    /// If the flow has not begun.
    #[must_use]
    pub fn progress(&self, flow: FlowId) -> &FlowProgress {
        if flow == FlowId::NONE {
            &self.none
        } else {
            &self.progress[flow.index()]
        }
    }

    #[inline]
    pub(crate) fn progress_mut(&mut self, flow: FlowId) -> &mut FlowProgress {
        // Traffic without a flow is in the books, too, so that conservation covers it.
        if flow == FlowId::NONE {
            &mut self.none
        } else {
            &mut self.progress[flow.index()]
        }
    }

    /// Returns the slot in which an end of a flow keeps its state; [`NO_SLOT`] if it keeps none.
    ///
    /// # Panics
    /// If the flow has not begun, or is [`FlowId::NONE`].
    #[inline]
    #[must_use]
    pub fn slot(&self, flow: FlowId, side: Side) -> u32 {
        self.slots[flow.index()][side as usize]
    }

    /// Sets the slot in which an end of a flow keeps its state.
    #[inline]
    pub(crate) fn set_slot(&mut self, flow: FlowId, side: Side, slot: u32) {
        self.slots[flow.index()][side as usize] = slot;
    }

    /// Returns a flow's class; 0 for [`FlowId::NONE`].
    #[inline]
    pub(crate) fn class(&self, flow: FlowId) -> u16 {
        // `FlowId::NONE` is out of range and has class 0.
        self.specs.get(flow.index()).map_or(0, |spec| spec.class)
    }

    /// Prefetches a flow's counters.
    #[inline]
    pub(crate) fn prefetch(&self, flow: FlowId) {
        if let Some(progress) = self.progress.get(flow.index()) {
            // 72 bytes, aligned to 8: two cache lines wherever they begin.
            prefetch::<FlowProgress, 2>(progress);
        }
        if let Some(spec) = self.specs.get(flow.index()) {
            prefetch::<FlowSpec, 1>(spec);
        }
    }

    /// All flows in order of arrival.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&FlowSpec, &FlowProgress)> {
        self.specs.iter().zip(&self.progress)
    }
}
