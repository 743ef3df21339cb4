//! Flows: specification, progress, and each flow's share of the conservation law.

use std::collections::VecDeque;

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
    /// Number of the workload that the flow is of.
    pub label: u16,
    /// Class that the application asks of the network for its packets, as by a DSCP. Schemes with
    /// classes of their own do not heed it.
    pub class: u8,
    /// Number of the application's group of senders that sends at the same moment to the same host;
    /// 0: none. [`Context::group`](crate::Context::group) returns its members.
    pub group: u8,
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
            label: 0,
            class: 0,
            group: 0,
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
    /// Time at which the sender knew that, by its last acknowledgement; [`Time::MAX`]: not yet.
    pub acknowledged: Time,
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
            acknowledged: Time::MAX,
            delivered_bytes: 0,
            retransmits: 0,
            sent: PacketCount::default(),
            arrived: PacketCount::default(),
            dropped: PacketCount::default(),
        }
    }
}

impl std::ops::Add for FlowProgress {
    type Output = Self;
    /// Adds what two partitions know of a flow.
    fn add(self, other: Self) -> Self {
        Self {
            finished: self.finished.min(other.finished),
            acknowledged: self.acknowledged.min(other.acknowledged),
            delivered_bytes: self.delivered_bytes + other.delivered_bytes,
            retransmits: self.retransmits + other.retransmits,
            sent: self.sent + other.sent,
            arrived: self.arrived + other.arrived,
            dropped: self.dropped + other.dropped,
        }
    }
}

impl FlowProgress {
    /// Returns true if both ends are done and no packet is in the fabric.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.ends_are_done() && self.sent.packets == self.arrived.packets + self.dropped.packets
    }

    /// Returns true if both ends are done.
    #[inline]
    pub(crate) fn ends_are_done(&self) -> bool {
        self.finished < Time::MAX && self.acknowledged < Time::MAX
    }
}

/// A flow with its progress: two cache lines.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct FlowSlot {
    progress: FlowProgress,
    spec: FlowSpec,
    /// Slots in which its two ends keep its state.
    ends: [u32; 2],
}

const _: () = assert!(size_of::<FlowSlot>() == 128, "a flow is two cache lines");

/// Mark of a retired flow among the slots' numbers.
const RETIRED: u32 = u32::MAX;

/// Mark of an end of a flow that keeps no state.
pub const NO_SLOT: u32 = u32::MAX;

/// Flows that are active: begun, and not retired.
///
/// A flow retires when its receiver has all bytes, its sender knows that, and none of its packets
/// is in the fabric. Its slot is then used again, so that memory follows active flows; one that
/// lives long costs four bytes for every flow that begins after it. Flows of schemes that do not
/// report the sender's last acknowledgement stay.
#[derive(Debug, Default)]
pub struct FlowStore {
    slots: Vec<FlowSlot>,
    /// Slots to be used again, last freed first, while they are in cache.
    free: Vec<u32>,
    /// Slot of each flow from number `first` on.
    slot_of: VecDeque<u32>,
    /// The first flow that is not retired, or the next to begin.
    first: u32,
    /// Flows that can retire.
    ready: Vec<FlowId>,
    /// Flows of which other partitions must be asked.
    candidates: Vec<FlowId>,
    /// True if this is the store of one of several partitions: each knows a part of a flow's
    /// progress.
    partial: bool,
    /// Packets that belong to no flow.
    none: FlowProgress,
    /// Retransmitted packets with payload of all flows.
    pub(crate) retransmits: u64,
}

impl FlowStore {
    /// Makes the store of one of several partitions.
    pub(crate) fn of_partition() -> Self {
        Self {
            partial: true,
            ..Self::default()
        }
    }

    pub(crate) fn push(&mut self, spec: FlowSpec) -> FlowId {
        let number = u32::try_from(self.len()).ok();
        // `u32::MAX` is `FlowId::NONE`.
        let number = number.filter(|number| *number != u32::MAX);
        let slot = FlowSlot {
            progress: FlowProgress::default(),
            spec,
            ends: [NO_SLOT; 2],
        };
        let place = if let Some(place) = self.free.pop() {
            self.slots[place as usize] = slot;
            place
        } else {
            self.slots.push(slot);
            self.slots.len() as u32 - 1
        };
        self.slot_of.push_back(place);
        FlowId(number.expect("fewer than 2^32 - 1 flows"))
    }

    /// Number of flows that have begun.
    #[must_use]
    pub fn len(&self) -> usize {
        self.first as usize + self.slot_of.len()
    }

    /// Returns true if no flow has begun.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Largest number of flows that were active at once.
    #[must_use]
    pub fn high_water(&self) -> usize {
        self.slots.len()
    }

    /// Returns the place of an active flow.
    #[inline]
    pub(crate) fn place(&self, flow: FlowId) -> Option<usize> {
        // A retired flow's number wraps around or has the mark; both are out of range.
        let since = flow.0.wrapping_sub(self.first);
        self.slot_of
            .get(since as usize)
            .map(|place| *place as usize)
    }

    /// Returns true if a flow has begun and is not retired.
    #[must_use]
    pub fn is_active(&self, flow: FlowId) -> bool {
        self.place(flow)
            .is_some_and(|place| place != RETIRED as usize)
    }

    #[inline]
    fn active(&self, flow: FlowId) -> &FlowSlot {
        let place = self.place(flow).expect("the flow has begun and is active");
        &self.slots[place]
    }

    /// Returns a flow's specification.
    ///
    /// # Panics
    /// If the flow is not active, or is [`FlowId::NONE`].
    #[inline]
    #[must_use]
    pub fn spec(&self, flow: FlowId) -> &FlowSpec {
        &self.active(flow).spec
    }

    /// Returns a flow's progress; for [`FlowId::NONE`], that of traffic without a flow.
    ///
    /// # Panics
    /// If the flow is not active.
    #[must_use]
    pub fn progress(&self, flow: FlowId) -> &FlowProgress {
        if flow == FlowId::NONE {
            &self.none
        } else {
            &self.active(flow).progress
        }
    }

    #[inline]
    pub(crate) fn progress_mut(&mut self, flow: FlowId) -> &mut FlowProgress {
        // Traffic without a flow is in the books, too, so that conservation covers it.
        if flow == FlowId::NONE {
            return &mut self.none;
        }
        let place = self.place(flow).expect("the flow has begun and is active");
        &mut self.slots[place].progress
    }

    /// Returns the slot in which an end of a flow keeps its state; [`NO_SLOT`] if it keeps none.
    ///
    /// # Panics
    /// If the flow is not active, or is [`FlowId::NONE`].
    #[inline]
    #[must_use]
    pub fn slot(&self, flow: FlowId, side: Side) -> u32 {
        self.active(flow).ends[side as usize]
    }

    /// Sets the slot in which an end of a flow keeps its state.
    #[inline]
    pub(crate) fn set_slot(&mut self, flow: FlowId, side: Side, slot: u32) {
        let place = self.place(flow).expect("the flow has begun and is active");
        self.slots[place].ends[side as usize] = slot;
    }

    /// Counts a packet that reached its host.
    #[inline]
    pub(crate) fn arrived(&mut self, flow: FlowId, wire_bytes: u16) {
        self.update(flow, |progress| progress.arrived.add(wire_bytes));
    }

    /// Counts a retransmission.
    pub(crate) fn retransmitted(&mut self, flow: FlowId) {
        self.progress_mut(flow).retransmits += 1;
        self.retransmits += 1;
    }

    /// Counts a packet that the fabric dropped.
    pub(crate) fn dropped(&mut self, flow: FlowId, wire_bytes: u16) {
        self.update(flow, |progress| progress.dropped.add(wire_bytes));
    }

    /// Notes that the receiver has every byte. Returns false if that was known.
    pub(crate) fn finished(&mut self, flow: FlowId, now: Time) -> bool {
        // Schemes may say so for every late duplicate; the first call counts.
        let first = self.progress(flow).finished == Time::MAX;
        if first {
            self.update(flow, |progress| progress.finished = now);
        }
        first
    }

    /// Notes that the sender knows that the receiver has every byte.
    pub(crate) fn acknowledged(&mut self, flow: FlowId, now: Time) {
        if self.progress(flow).acknowledged == Time::MAX {
            self.update(flow, |progress| progress.acknowledged = now);
        }
    }

    /// Changes a flow's progress, and puts the flow among those that can retire if it can.
    #[inline]
    fn update(&mut self, flow: FlowId, change: impl FnOnce(&mut FlowProgress)) {
        let partial = self.partial;
        let progress = self.progress_mut(flow);
        change(progress);
        // Most have an end that is not done.
        if progress.finished == Time::MAX && progress.acknowledged == Time::MAX {
            return;
        }
        let is_over = progress.is_over();
        if partial {
            // Of several partitions none knows more than this.
            self.candidates.push(flow);
        } else if is_over {
            self.ready.push(flow);
        }
    }

    /// Returns true if a flow can retire; false where several partitions must be asked.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes a flow that may be able to retire.
    pub(crate) fn take_ready(&mut self) -> Option<FlowId> {
        self.ready.pop().or_else(|| self.candidates.pop())
    }

    /// Retires an active flow.
    pub(crate) fn retire(&mut self, flow: FlowId) {
        let since = flow.0.wrapping_sub(self.first) as usize;
        let place = std::mem::replace(&mut self.slot_of[since], RETIRED);
        self.free.push(place);
        while self.slot_of.front() == Some(&RETIRED) {
            self.slot_of.pop_front();
            self.first += 1;
        }
    }

    /// Prefetches a flow's counters.
    #[inline]
    pub(crate) fn prefetch(&self, flow: FlowId) {
        if let Some(slot) = self.place(flow).and_then(|place| self.slots.get(place)) {
            prefetch::<FlowSlot, 2>(slot);
        }
    }

    /// All active flows in order of arrival.
    pub fn iter(&self) -> impl Iterator<Item = (FlowId, &FlowSpec, &FlowProgress)> {
        (self.first..)
            .zip(&self.slot_of)
            .filter(|(_, place)| **place != RETIRED)
            .map(|(number, place)| {
                let slot = &self.slots[*place as usize];
                (FlowId(number), &slot.spec, &slot.progress)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> FlowSpec {
        FlowSpec::new(HostId(0), HostId(1), 100, Time::ZERO)
    }

    /// Retires the flows that can, as a run does.
    fn retire(flows: &mut FlowStore) -> Vec<(FlowId, FlowProgress)> {
        let mut retired = Vec::new();
        while let Some(flow) = flows.take_ready() {
            if flows.is_active(flow) && flows.progress(flow).is_over() {
                retired.push((flow, *flows.progress(flow)));
                flows.retire(flow);
            }
        }
        retired
    }

    /// A flow retires once its receiver has all, its sender knows, and its packets are gone: the
    /// last of these three decides, in any order.
    #[test]
    fn a_flow_retires_when_nothing_of_it_is_left() {
        for last in 0..3 {
            let mut flows = FlowStore::default();
            let id = flows.push(flow());
            flows.progress_mut(id).sent.add(84);
            for step in [(last + 1) % 3, (last + 2) % 3, last] {
                assert!(retire(&mut flows).is_empty(), "{last} {step}");
                match step {
                    0 => assert!(flows.finished(id, Time::from_us(1))),
                    1 => flows.acknowledged(id, Time::from_us(2)),
                    _ => flows.dropped(id, 84),
                }
            }
            let retired = retire(&mut flows);
            assert_eq!(
                (retired[0].0, retired[0].1.finished),
                (id, Time::from_us(1))
            );
            assert!(retire(&mut flows).is_empty() && !flows.is_active(id));
            assert_eq!(flows.len(), 1);
        }
    }

    /// The last packet may go anywhere: what partitions know adds up, in any order.
    #[test]
    fn a_flow_of_several_partitions_is_a_candidate_until_it_is_over() {
        let mut stores = [(); 3].map(|()| FlowStore::of_partition());
        let [sender, between, receiver] = &mut stores;
        let id = sender.push(flow());
        between.push(flow());
        receiver.push(flow());
        sender.progress_mut(id).sent.add(84);
        sender.progress_mut(id).sent.add(84);
        receiver.arrived(id, 84);
        assert!(!receiver.has_ready() && receiver.take_ready().is_none());
        receiver.finished(id, Time::from_us(1));
        sender.acknowledged(id, Time::from_us(2));
        assert_eq!([receiver.take_ready(), sender.take_ready()], [Some(id); 2]);
        between.dropped(id, 84);
        assert_eq!(between.take_ready(), None);
        let all = stores.each_ref().map(|store| *store.progress(id));
        for [a, b, c] in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
            let total = all[a] + all[b] + all[c];
            assert!(total.is_over() && total.finished == Time::from_us(1));
            assert!(!(all[a] + all[b]).is_over());
        }
    }

    /// Memory is that of the active flows, and numbers go on.
    #[test]
    fn slots_are_used_again_beside_a_flow_that_stays() {
        let mut flows = FlowStore::default();
        let stays = flows.push(flow());
        for number in 1..1_000 {
            let id = flows.push(flow());
            assert_eq!(id, FlowId(number));
            flows.finished(id, Time::ZERO);
            flows.acknowledged(id, Time::ZERO);
            assert_eq!(retire(&mut flows)[0].0, id);
        }
        assert_eq!((flows.len(), flows.high_water()), (1_000, 2));
        assert!(flows.is_active(stays) && !flows.is_active(FlowId(500)));
        assert_eq!(flows.iter().map(|(id, ..)| id).collect::<Vec<_>>(), [stays]);
        flows.finished(stays, Time::ZERO);
        flows.acknowledged(stays, Time::ZERO);
        assert_eq!(retire(&mut flows).len(), 1);
        assert_eq!((flows.len(), flows.iter().count()), (1_000, 0));
        assert_eq!(flows.push(flow()), FlowId(1_000));
    }
}
