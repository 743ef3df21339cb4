//! The server's flow table of one session: which flows the client holds, what
//! the service was told of them, their newest rates, and what the client is
//! known to hold of those.

use std::collections::VecDeque;

use super::ServerEvent;
use crate::codes::RateCode;
use crate::records::{EndRecord, FlowId, RateRecord, StartRecord};

/// The client holds a flow on the slot.
const ACTIVE: u16 = 1;
/// The service knows a flow of the slot: `announced`.
const ANNOUNCED: u16 = 1 << 1;
/// The announced flow ended and another began under the same id.
const RESTARTED: u16 = 1 << 2;
/// The announced flow has new parameters.
const UPDATED: u16 = 1 << 3;
/// The slot waits in the event queue.
const EVENT_QUEUED: u16 = 1 << 4;
/// The newest rate is to be sent.
const NEEDED: u16 = 1 << 5;
/// The slot waits in the send queue.
const QUEUED: u16 = 1 << 6;
/// The client is known to hold exactly `acked`.
const CERTAIN: u16 = 1 << 7;
/// The slot waits in the queue of first rates.
const FIRST_QUEUED: u16 = 1 << 8;

#[derive(Clone, Copy, Debug)]
struct Slot {
    record: StartRecord,
    announced: FlowId,
    /// The newest rate, the one sent last, the one acknowledged last.
    rate: RateCode,
    sent: RateCode,
    acked: RateCode,
    flags: u16,
    /// The client datagram that the slot's state came from.
    seen_seq: u64,
    /// The newest datagram that carried a rate of this flow; 0 for none.
    sent_seq: u64,
}

/// What a flow costs, on top of its place in the queues.
const _: () = assert!(size_of::<Slot>() <= 48);

impl Slot {
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

    /// A new flow begins, of which the client holds no rate.
    fn reset_rate(&mut self) {
        self.rate = RateCode::NONE;
        self.acked = RateCode::NONE;
        self.sent_seq = 0;
        self.set(CERTAIN, true);
        self.set(NEEDED, false);
    }
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordOutcome {
    /// It is the slot's newest state.
    Applied,
    /// A newer datagram has overtaken it.
    Stale,
    /// Its slot lies beyond the bound.
    Refused,
}

/// All slots and the two queues over them.
#[derive(Debug)]
pub(super) struct ServerSlots {
    slots: Vec<Slot>,
    limit: u32,
    active: u32,
    /// Slots whose flows' first rates wait; they go before the others.
    first_queue: VecDeque<u32>,
    send_queue: VecDeque<u32>,
    event_queue: VecDeque<u32>,
}

impl ServerSlots {
    pub(super) fn new(limit: u32) -> Self {
        Self {
            slots: Vec::new(),
            limit,
            active: 0,
            first_queue: VecDeque::new(),
            send_queue: VecDeque::new(),
            event_queue: VecDeque::new(),
        }
    }

    pub(super) fn active(&self) -> u32 {
        self.active
    }

    /// A start of client datagram `seq`.
    pub(super) fn start(&mut self, record: StartRecord, seq: u64) -> RecordOutcome {
        let flow = record.flow();
        let index = flow.slot() as usize;
        if flow.slot() >= self.limit {
            return RecordOutcome::Refused;
        }
        if index >= self.slots.len() {
            let empty = Slot {
                record,
                announced: flow,
                rate: RateCode::NONE,
                sent: RateCode::NONE,
                acked: RateCode::NONE,
                flags: 0,
                seen_seq: 0,
                sent_seq: 0,
            };
            self.slots.resize(index + 1, empty);
        }
        let slot = &mut self.slots[index];
        if seq < slot.seen_seq {
            return RecordOutcome::Stale;
        }
        slot.seen_seq = seq;
        let before = slot.has(ACTIVE).then_some(slot.record);
        slot.record = record;
        match before {
            Some(before) if before == record => return RecordOutcome::Applied,
            Some(before) if before.flow() == flow => slot.set(UPDATED, true),
            _ => {
                self.active += u32::from(before.is_none());
                slot.set(ACTIVE, true);
                let known = slot.has(ANNOUNCED) && slot.announced == flow;
                slot.set(RESTARTED, known);
                slot.reset_rate();
            }
        }
        self.announce(flow.slot());
        RecordOutcome::Applied
    }

    /// An end of client datagram `seq`: the slot is idle, whatever flow was on
    /// it.
    pub(super) fn end(&mut self, record: EndRecord, seq: u64) -> RecordOutcome {
        let index = record.flow().slot();
        if index >= self.limit {
            return RecordOutcome::Refused;
        }
        let Some(slot) = self.slots.get_mut(index as usize) else {
            // The start was lost; should it come late, it is older than this.
            // Only the slot's sequence number is worth keeping.
            return self.end_unseen(record, seq);
        };
        if seq < slot.seen_seq {
            return RecordOutcome::Stale;
        }
        slot.seen_seq = seq;
        if slot.has(ACTIVE) {
            slot.set(ACTIVE, false);
            slot.set(NEEDED, false);
            self.active -= 1;
            self.announce(index);
        }
        RecordOutcome::Applied
    }

    fn end_unseen(&mut self, record: EndRecord, seq: u64) -> RecordOutcome {
        let flow = record.flow();
        let start = StartRecord::new(flow, 0, crate::records::FlowPath::Hash(0));
        let taken = self.start(start, seq);
        if taken == RecordOutcome::Applied {
            return self.end(record, seq);
        }
        taken
    }

    fn announce(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if !slot.has(EVENT_QUEUED) {
            slot.set(EVENT_QUEUED, true);
            self.event_queue.push_back(index);
        }
    }

    /// The next change of the flow set that the service does not know.
    pub(super) fn pop_event(&mut self) -> Option<ServerEvent> {
        while let Some(&index) = self.event_queue.front() {
            let slot = &mut self.slots[index as usize];
            let active = slot.has(ACTIVE);
            let flow = slot.record.flow();
            if slot.has(ANNOUNCED) && (!active || slot.has(RESTARTED) || slot.announced != flow) {
                slot.set(ANNOUNCED | RESTARTED, false);
                // The slot stays in front: a start may follow.
                return Some(ServerEvent::End(slot.announced));
            }
            let fresh = active && !slot.has(ANNOUNCED);
            let updated = active && slot.has(UPDATED);
            slot.set(RESTARTED | UPDATED | EVENT_QUEUED, false);
            self.event_queue.pop_front();
            if fresh {
                slot.set(ANNOUNCED, true);
                slot.announced = flow;
                return Some(ServerEvent::Start(slot.record));
            }
            if updated {
                return Some(ServerEvent::Update(slot.record));
            }
        }
        None
    }

    pub(super) fn has_events(&self) -> bool {
        !self.event_queue.is_empty()
    }

    /// Sets a flow's newest rate. `None`: no such flow. True: it is to be sent.
    pub(super) fn set_rate(&mut self, flow: FlowId, rate: RateCode) -> Option<bool> {
        let slot = self
            .slots
            .get_mut(flow.slot() as usize)
            .filter(|slot| slot.has(ACTIVE) && slot.record.flow() == flow)?;
        slot.rate = rate;
        let held = if slot.has(CERTAIN) {
            // Acknowledged, nothing newer sent: send only what differs.
            slot.acked == rate
        } else {
            // The last one sent is still on its way, unless it is to be
            // repeated anyway.
            slot.sent == rate && !slot.has(NEEDED)
        };
        slot.set(NEEDED, !held);
        let none_sent = slot.sent_seq == 0 || slot.sent == RateCode::NONE;
        let first = none_sent && slot.acked == RateCode::NONE;
        if !held {
            self.queue(flow.slot(), first);
        }
        Some(!held)
    }

    /// `first`: the client has no rate of the flow, and none is on its way.
    fn queue(&mut self, index: u32, first: bool) {
        let slot = &mut self.slots[index as usize];
        if first || slot.has(FIRST_QUEUED) {
            // It may stand in the other queue too, from the flow before; there it is passed over.
            if !slot.has(FIRST_QUEUED) {
                slot.set(FIRST_QUEUED, true);
                self.first_queue.push_back(index);
            }
        } else if !slot.has(QUEUED) {
            slot.set(QUEUED, true);
            self.send_queue.push_back(index);
        }
    }

    /// Whether a flow waits for its first rate.
    pub(super) fn has_first(&mut self) -> bool {
        Self::front(&mut self.slots, &mut self.first_queue, FIRST_QUEUED).is_some()
    }

    /// Whether rates may wait to be sent; what has changed since is only seen when they are looked at.
    pub(super) fn rates_wait(&self) -> bool {
        !self.first_queue.is_empty() || !self.send_queue.is_empty()
    }

    /// Whether a rate waits to be sent.
    pub(super) fn peek_rate(&mut self) -> Option<RateRecord> {
        Self::front(&mut self.slots, &mut self.first_queue, FIRST_QUEUED)
            .or_else(|| Self::front(&mut self.slots, &mut self.send_queue, QUEUED))
    }

    fn front(slots: &mut [Slot], queue: &mut VecDeque<u32>, queued: u16) -> Option<RateRecord> {
        while let Some(&index) = queue.front() {
            let slot = &mut slots[index as usize];
            if slot.has(ACTIVE) && slot.has(NEEDED) {
                return Some(RateRecord::new(slot.record.flow(), slot.rate));
            }
            slot.set(queued, false);
            queue.pop_front();
        }
        None
    }

    /// Takes the slot that [`peek_rate`](Self::peek_rate) showed, as sent in
    /// datagram `seq`. True: the client is not known to hold any rate of the
    /// flow.
    pub(super) fn sent_rate(&mut self, seq: u64) -> (u32, bool) {
        let first = self.first_queue.pop_front();
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

    /// Datagram `seq`, which carried a rate of the slot, arrived.
    pub(super) fn acked(&mut self, seq: u64, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.sent_seq == seq {
            slot.acked = slot.sent;
            slot.set(CERTAIN, true);
            let differs = slot.rate != slot.acked;
            slot.set(NEEDED, differs && slot.has(ACTIVE));
        }
    }

    /// Datagram `seq`, which carried a rate of the slot, is given up.
    pub(super) fn lost(&mut self, seq: u64, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.sent_seq == seq && slot.has(ACTIVE) {
            slot.set(NEEDED, true);
            let first = slot.acked == RateCode::NONE;
            self.queue(index, first);
        }
    }

    /// The active flows and their newest rates.
    pub(super) fn iter(&self) -> impl Iterator<Item = (StartRecord, RateCode)> + '_ {
        self.slots
            .iter()
            .filter(|slot| slot.has(ACTIVE))
            .map(|slot| (slot.record, slot.rate))
    }
}
