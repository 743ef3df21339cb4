//! Flow table of one session at the server: the client's flows, their newest rates, the rates that
//! the client is known to hold, and the caller's state of each flow.

use std::collections::VecDeque;
use std::ops::Range;

use super::FlowChange;
use crate::codes::RateCode;
use crate::records::{EndRecord, FlowId, FlowPath, RateRecord, StartRecord};

/// The client holds a flow on the slot.
const ACTIVE: u16 = 1;
/// The newest rate is to be sent.
const NEEDED: u16 = 1 << 1;
/// The slot is in the send queue.
const QUEUED: u16 = 1 << 2;
/// The client is known to hold exactly `acked`.
const CERTAIN: u16 = 1 << 3;
/// The slot is in the queue of first rates.
const FIRST_QUEUED: u16 = 1 << 4;

#[derive(Clone, Copy, Debug)]
struct Slot<F> {
    record: StartRecord,
    /// The newest rate, the one sent last, the one acknowledged last.
    rate: RateCode,
    sent: RateCode,
    acked: RateCode,
    flags: u16,
    /// Client datagram of the slot's state.
    seen_seq: u64,
    /// Newest datagram with a rate of this flow; 0 for none.
    sent_seq: u64,
    /// The caller's state of the flow; `None` while the slot is idle.
    state: Option<F>,
}

/// Bound on the memory of one flow, without the caller's state and the places in the queues.
const _: () = assert!(size_of::<Slot<()>>() <= 48);

impl<F> Slot<F> {
    const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    const fn set(&mut self, flag: u16, on: bool) {
        if on {
            self.flags |= flag;
        } else {
            self.flags &= !flag;
        }
    }

    /// Clears the rates for a new flow, of which the client holds none.
    fn reset_rate(&mut self) {
        self.rate = RateCode::NONE;
        self.acked = RateCode::NONE;
        self.sent_seq = 0;
        self.set(CERTAIN, true);
        self.set(NEEDED, false);
    }
}

/// Slots for which a table has room once it has one: most hosts have fewer flows at a time, and
/// copy none.
const FIRST_SLOTS: usize = 32;

/// Outcome of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordOutcome {
    /// It is the slot's newest state.
    Applied,
    /// A newer datagram has replaced it.
    Stale,
    /// Its slot lies beyond the bound.
    Refused,
}

/// All slots and the two queues over them.
#[derive(Debug)]
pub(super) struct ServerSlots<F> {
    slots: Vec<Slot<F>>,
    limit: u32,
    active: u32,
    /// Slots with a first rate to be sent; they go before all others.
    first_queue: VecDeque<u32>,
    send_queue: VecDeque<u32>,
}

impl<F: Copy> ServerSlots<F> {
    pub(super) fn new(limit: u32) -> Self {
        Self {
            slots: Vec::new(),
            limit,
            active: 0,
            first_queue: VecDeque::new(),
            send_queue: VecDeque::new(),
        }
    }

    pub(super) fn active_flows(&self) -> u32 {
        self.active
    }

    /// Applies a start of client datagram `seq`, and tells what it changes.
    pub(super) fn start(
        &mut self,
        record: StartRecord,
        seq: u64,
        changes: &mut impl FnMut(FlowChange<F>),
    ) -> RecordOutcome {
        let flow = record.flow();
        let slot = match self.newest(record, seq) {
            Ok(slot) => slot,
            Err(outcome) => return outcome,
        };
        let before = slot.has(ACTIVE).then_some(slot.record);
        slot.record = record;
        match before {
            Some(before) if before == record => {}
            Some(before) if before.flow() == flow => changes(FlowChange::Update { before, record }),
            _ => {
                slot.set(ACTIVE, true);
                slot.reset_rate();
                let state = slot.state.take();
                match before {
                    // A start without the end before it, which was lost, replaces the slot's flow.
                    Some(before) => changes(FlowChange::End(before.flow(), state)),
                    None => self.active += 1,
                }
                changes(FlowChange::Start(record));
            }
        }
        RecordOutcome::Applied
    }

    /// Applies an end of client datagram `seq`, and tells what it changes: the slot becomes idle,
    /// whatever flow it held.
    pub(super) fn end(
        &mut self,
        record: EndRecord,
        seq: u64,
        changes: &mut impl FnMut(FlowChange<F>),
    ) -> RecordOutcome {
        // The start may have been lost, or come late: the slot's sequence number has to be kept
        // for it, with a made-up record.
        let unseen = StartRecord::new(record.flow(), 0, FlowPath::Hash(0));
        let slot = match self.newest(unseen, seq) {
            Ok(slot) => slot,
            Err(outcome) => return outcome,
        };
        if slot.has(ACTIVE) {
            let flow = slot.record.flow();
            slot.set(ACTIVE, false);
            slot.set(NEEDED, false);
            let state = slot.state.take();
            self.active -= 1;
            changes(FlowChange::End(flow, state));
        }
        RecordOutcome::Applied
    }

    /// Returns the slot of a record's flow for the state of client datagram `seq`, with this record
    /// if the table did not have it.
    ///
    /// # Errors
    /// The slot lies beyond the bound, or has a newer state.
    fn newest(&mut self, record: StartRecord, seq: u64) -> Result<&mut Slot<F>, RecordOutcome> {
        let index = record.flow().slot() as usize;
        if record.flow().slot() >= self.limit {
            return Err(RecordOutcome::Refused);
        }
        if index >= self.slots.len() {
            let empty = Slot {
                record,
                rate: RateCode::NONE,
                sent: RateCode::NONE,
                acked: RateCode::NONE,
                flags: 0,
                seen_seq: 0,
                sent_seq: 0,
                state: None,
            };
            if self.slots.is_empty() {
                self.slots
                    .reserve_exact(FIRST_SLOTS.min(self.limit as usize));
            }
            // The table grows with the slots that the client uses; `limit` bounds it.
            self.slots.resize(index + 1, empty);
        }
        let slot = &mut self.slots[index];
        // Datagrams arrive reordered: the slot's state is that of the newest one.
        if seq < slot.seen_seq {
            return Err(RecordOutcome::Stale);
        }
        slot.seen_seq = seq;
        Ok(slot)
    }

    /// Sets a flow's newest rate. Returns `None` if there is no such flow, and true if the rate is
    /// to be sent.
    pub(super) fn set_rate(&mut self, flow: FlowId, rate: RateCode) -> Option<bool> {
        let slot = self.active_mut(flow)?;
        slot.rate = rate;
        let held = if slot.has(CERTAIN) {
            // The last rate sent was acknowledged: send only a different one.
            slot.acked == rate
        } else {
            // The last rate sent is in flight, unless it was lost and is to be repeated.
            slot.sent == rate && !slot.has(NEEDED)
        };
        slot.set(NEEDED, !held);
        // A sent NONE is no rate that the client could pace by.
        let none_sent = slot.sent_seq == 0 || slot.sent == RateCode::NONE;
        let first = none_sent && slot.acked == RateCode::NONE;
        if !held {
            self.queue(flow.slot(), first);
        }
        Some(!held)
    }

    /// Queues a slot for sending. `first`: the client has no rate of the flow, and none is in
    /// flight.
    fn queue(&mut self, index: u32, first: bool) {
        let slot = &mut self.slots[index as usize];
        if first || slot.has(FIRST_QUEUED) {
            // The slot may be in the other queue too, for the flow before; `front` skips it there.
            if !slot.has(FIRST_QUEUED) {
                slot.set(FIRST_QUEUED, true);
                self.first_queue.push_back(index);
            }
        } else if !slot.has(QUEUED) {
            slot.set(QUEUED, true);
            self.send_queue.push_back(index);
        }
    }

    /// Returns true if a first rate is to be sent.
    pub(super) fn has_first(&mut self) -> bool {
        Self::front(&mut self.slots, &mut self.first_queue, FIRST_QUEUED).is_some()
    }

    /// Returns true if rates may be queued. Entries that have become obsolete count until `front`
    /// removes them.
    pub(super) fn rates_wait(&self) -> bool {
        !self.first_queue.is_empty() || !self.send_queue.is_empty()
    }

    /// Returns the next rate to be sent, and leaves its slot in the queue.
    pub(super) fn peek_rate(&mut self) -> Option<RateRecord> {
        Self::front(&mut self.slots, &mut self.first_queue, FIRST_QUEUED)
            .or_else(|| Self::front(&mut self.slots, &mut self.send_queue, QUEUED))
    }

    fn front(slots: &mut [Slot<F>], queue: &mut VecDeque<u32>, queued: u16) -> Option<RateRecord> {
        while let Some(&index) = queue.front() {
            let slot = &mut slots[index as usize];
            if slot.has(ACTIVE) && slot.has(NEEDED) {
                return Some(RateRecord::new(slot.record.flow(), slot.rate));
            }
            // Obsolete: the flow ended, or its rate was acknowledged or sent from the other queue
            // meanwhile.
            slot.set(queued, false);
            queue.pop_front();
        }
        None
    }

    /// Takes the slot that [`peek_rate`](Self::peek_rate) returned, as sent in datagram `seq`. Also
    /// returns true if the client is not known to hold any rate of the flow.
    pub(super) fn sent_rate(&mut self, seq: u64) -> (u32, bool) {
        let first = self.first_queue.pop_front();
        // `peek_rate` has removed obsolete entries from the front, and it takes first rates first.
        let queued = if first.is_some() {
            FIRST_QUEUED
        } else {
            QUEUED
        };
        let Some(index) = first.or_else(|| self.send_queue.pop_front()) else {
            unreachable!("a slot was peeked at")
        };
        let slot = &mut self.slots[index as usize];
        slot.set(NEEDED | queued | CERTAIN, false);
        slot.sent = slot.rate;
        slot.sent_seq = seq;
        (index, slot.acked == RateCode::NONE)
    }

    /// Handles the acknowledgement of datagram `seq`, which had a rate of the slot.
    pub(super) fn acked(&mut self, seq: u64, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.sent_seq == seq {
            slot.acked = slot.sent;
            slot.set(CERTAIN, true);
            // The rate may have changed while this one was in flight, or changed back to it.
            let differs = slot.rate != slot.acked;
            slot.set(NEEDED, differs && slot.has(ACTIVE));
        }
    }

    /// Handles the loss of datagram `seq`, which had a rate of the slot.
    pub(super) fn lost(&mut self, seq: u64, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.sent_seq == seq && slot.has(ACTIVE) {
            slot.set(NEEDED, true);
            let first = slot.acked == RateCode::NONE;
            self.queue(index, first);
        }
    }

    fn active(&self, flow: FlowId) -> Option<&Slot<F>> {
        let slot = self.slots.get(flow.slot() as usize);
        slot.filter(|slot| slot.has(ACTIVE) && slot.record.flow() == flow)
    }

    fn active_mut(&mut self, flow: FlowId) -> Option<&mut Slot<F>> {
        let slot = self.slots.get_mut(flow.slot() as usize);
        slot.filter(|slot| slot.has(ACTIVE) && slot.record.flow() == flow)
    }

    /// The newest rate of an active flow.
    pub(super) fn rate_of(&self, flow: FlowId) -> Option<RateCode> {
        Some(self.active(flow)?.rate)
    }

    /// The active flow on a slot, and the caller's state of it, if that was stored.
    pub(super) fn flow_on(&self, index: u32) -> Option<(&StartRecord, &F)> {
        let slot = self.slots.get(index as usize)?;
        Some((&slot.record, slot.state.as_ref()?))
    }

    /// The caller's state of an active flow, if that was stored.
    pub(super) fn state(&self, flow: FlowId) -> Option<&F> {
        self.active(flow)?.state.as_ref()
    }

    /// The caller's state of an active flow, if that was stored.
    pub(super) fn state_mut(&mut self, flow: FlowId) -> Option<&mut F> {
        self.active_mut(flow)?.state.as_mut()
    }

    /// Stores the caller's state of a flow, unless that is not active.
    pub(super) fn set_state(&mut self, flow: FlowId, state: F) {
        if let Some(slot) = self.active_mut(flow) {
            slot.state = Some(state);
        }
    }

    /// Takes the caller's state of the flow on a slot out of the table.
    pub(super) fn take_state(&mut self, index: u32) -> Option<F> {
        self.slots.get_mut(index as usize)?.state.take()
    }

    /// One more than the highest slot ever used.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    /// The active flows and their newest rates.
    pub(super) fn iter(&self) -> impl Iterator<Item = (StartRecord, RateCode)> + '_ {
        self.iter_on(0..u32::MAX)
    }

    /// The active flows on some slots and their newest rates.
    pub(super) fn iter_on(
        &self,
        slots: Range<u32>,
    ) -> impl Iterator<Item = (StartRecord, RateCode)> + '_ {
        let end = self.slots.len();
        let (from, to) = (slots.start as usize, slots.end as usize);
        self.slots[from.min(end)..to.clamp(from.min(end), end)]
            .iter()
            .filter(|slot| slot.has(ACTIVE))
            .map(|slot| (slot.record, slot.rate))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A flow has the state that was stored for it last, and takes it along when it ends.
        #[test]
        fn the_caller_s_state_is_its_flow_s(
            steps in prop::collection::vec((0..3u8, 0..8u32, 0..3u32), 0..200),
        ) {
            let mut slots = ServerSlots::<u32>::new(8);
            let mut states: BTreeMap<u32, (FlowId, Option<u32>)> = BTreeMap::new();
            for ((kind, slot, generation), seq) in steps.into_iter().zip(1u32..) {
                let flow = FlowId::new(slot, generation);
                let mut ended = None;
                let before = states.get(&slot).copied();
                match kind {
                    0 => {
                        let record = StartRecord::new(flow, 7, FlowPath::Hash(1));
                        slots.start(record, seq.into(), &mut |change| {
                            if let FlowChange::End(flow, state) = change {
                                ended = Some((flow, state));
                            }
                        });
                        let former = before.filter(|(known, _)| *known != flow);
                        prop_assert_eq!(ended, former);
                        let state = before.filter(|(known, _)| *known == flow);
                        states.insert(slot, state.unwrap_or((flow, None)));
                    }
                    1 => {
                        slots.end(EndRecord::new(flow), seq.into(), &mut |change| {
                            if let FlowChange::End(flow, state) = change {
                                ended = Some((flow, state));
                            }
                        });
                        prop_assert_eq!(ended, states.remove(&slot));
                    }
                    _ => {
                        slots.set_state(flow, seq);
                        if let Some((known, state)) = states.get_mut(&slot)
                            && *known == flow
                        {
                            *state = Some(seq);
                        }
                    }
                }
                for slot in 0..8 {
                    let known = states.get(&slot).copied();
                    let known = known.and_then(|(flow, state)| Some((flow, state?)));
                    let found = slots.flow_on(slot);
                    prop_assert_eq!(found.map(|(record, state)| (record.flow(), *state)), known);
                }
            }
        }
    }

    /// A slot is in each queue once, however often its state changes: the table bounds them.
    #[test]
    fn a_slot_waits_once_however_often_its_state_changes() {
        let mut slots = ServerSlots::<()>::new(8);
        for seq in 1..100 {
            for slot in 0..3 {
                let flow = FlowId::new(slot, seq as u32);
                let record = StartRecord::new(flow, 7, FlowPath::Hash(1));
                let outcome = slots.start(record, seq, &mut |_| ());
                assert_eq!(outcome, RecordOutcome::Applied);
                assert_eq!(
                    slots.set_rate(flow, RateCode::encode(1_000_000)),
                    Some(true)
                );
                assert_eq!(
                    slots.set_rate(flow, RateCode::encode(2_000_000)),
                    Some(true)
                );
            }
            assert_eq!(slots.first_queue, [0, 1, 2]);
        }
        for slot in 0..3 {
            assert!(slots.has_first() && slots.peek_rate().is_some());
            assert_eq!(slots.sent_rate(7), (slot, true), "a first rate");
            slots.acked(7, slot);
        }
        assert!(!slots.has_first() && !slots.rates_wait());
        for mbit in 3..100 {
            for slot in 0..3 {
                let rate = RateCode::encode(mbit * 1_000_000);
                assert_eq!(slots.set_rate(FlowId::new(slot, 99), rate), Some(true));
            }
            assert_eq!(slots.send_queue, [0, 1, 2]);
            assert!(!slots.has_first() && slots.rates_wait());
        }
        assert!(slots.peek_rate().is_some());
        assert_eq!(slots.sent_rate(8), (0, false), "a later rate");
    }
}
