//! Flow table of the client: newest state of each slot, the server's known state of it, and its
//! rate.

use std::collections::VecDeque;

use crate::codes::RateCode;
use crate::error::SessionError;
use crate::records::{FlowId, StartRecord};

/// A flowlet is active on the slot.
const ACTIVE: u8 = 1;
/// The newest state is to be sent.
const NEEDED: u8 = 1 << 1;
/// The slot is in the send queue.
const QUEUED: u8 = 1 << 2;
/// The server is known to hold no flow of this slot.
const PEER_IDLE: u8 = 1 << 3;
/// The newest state that was sent is "no flow".
const SENT_IDLE: u8 = 1 << 4;
/// A rate was received for the active flowlet in this session.
const HAS_RATE: u8 = 1 << 5;
/// The slot is in the queue of rate events.
const EVENT_QUEUED: u8 = 1 << 6;
/// The slot never held a flowlet.
const UNUSED: u8 = 1 << 7;

#[derive(Clone, Copy, Debug)]
struct Slot {
    record: StartRecord,
    rate: RateCode,
    flags: u8,
    /// Newest datagram with a record of this slot; 0 for none.
    sent_seq: u64,
    /// First datagram that carried this flowlet's start; 0 for none. A server datagram that
    /// acknowledges less does not mean this flowlet.
    start_seq: u64,
    /// Server datagram of the newest rate.
    rate_seq: u64,
}

/// State of one active flow, as [`flows`](super::ClientSession::flows) shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowState {
    /// Record that was reported, or will be.
    pub record: StartRecord,
    /// The newest rate received in this session.
    pub rate_bps: Option<u64>,
}

/// Record that is to be sent for a slot.
#[derive(Clone, Copy, Debug)]
pub(super) enum SlotRecord {
    Start(StartRecord),
    End(FlowId),
}

/// All slots and the two queues over them.
#[derive(Debug)]
pub(super) struct ClientSlots {
    slots: Vec<Slot>,
    max_flows: u32,
    /// Slots that the established session carries; 0 without one.
    limit: u32,
    active: u32,
    send_queue: VecDeque<u32>,
    event_queue: VecDeque<u32>,
}

/// Bound on the memory of one flow, its places in the queues not included.
const _: () = assert!(size_of::<Slot>() <= 48);

impl Slot {
    const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    const fn set(&mut self, flag: u8, on: bool) {
        if on {
            self.flags |= flag;
        } else {
            self.flags &= !flag;
        }
    }
}

impl ClientSlots {
    pub(super) fn new(max_flows: u32) -> Self {
        Self {
            slots: Vec::new(),
            max_flows,
            limit: 0,
            active: 0,
            send_queue: VecDeque::new(),
            event_queue: VecDeque::new(),
        }
    }

    pub(super) fn active(&self) -> u32 {
        self.active
    }

    /// Slots that the established session carries.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Sets a flow's newest state. Returns true if it differs and is to be sent.
    pub(super) fn start(&mut self, record: StartRecord) -> Result<bool, SessionError> {
        let flow = record.flow();
        let index = flow.slot() as usize;
        if flow.slot() >= self.max_flows {
            return Err(SessionError::TableFull {
                flow,
                max_flows: self.max_flows,
            });
        }
        if index >= self.slots.len() {
            let empty = Slot {
                record,
                rate: RateCode::NONE,
                flags: PEER_IDLE | UNUSED,
                sent_seq: 0,
                start_seq: 0,
                rate_seq: 0,
            };
            // The table grows with the slots in use; `max_flows` bounds it.
            self.slots.resize(index + 1, empty);
        }
        let slot = &mut self.slots[index];
        if slot.has(ACTIVE) && slot.record == record {
            return Ok(false);
        }
        // An ended id may still be in flight: only the next generation distinguishes the new
        // flowlet.
        if !slot.has(ACTIVE | UNUSED) && slot.record.flow() == flow {
            return Err(SessionError::GenerationReused(flow));
        }
        slot.set(UNUSED, false);
        if !slot.has(ACTIVE) || slot.record.flow() != flow {
            // A flowlet that replaces an active one leaves the number of active slots as it is.
            self.active += u32::from(!slot.has(ACTIVE));
            slot.start_seq = 0;
            slot.set(ACTIVE, true);
            // The rate was the previous flowlet's.
            slot.set(HAS_RATE, false);
        }
        slot.record = record;
        self.need(flow.slot());
        Ok(true)
    }

    /// Ends a flow.
    pub(super) fn end(&mut self, flow: FlowId) -> Result<(), SessionError> {
        let slot = self
            .slots
            .get_mut(flow.slot() as usize)
            .filter(|slot| slot.has(ACTIVE) && slot.record.flow() == flow)
            .ok_or(SessionError::UnknownFlow(flow))?;
        slot.set(ACTIVE, false);
        slot.set(HAS_RATE, false);
        self.active -= 1;
        self.need(flow.slot());
        Ok(())
    }

    /// Queues a slot for sending.
    fn need(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.set(NEEDED, true);
        if index < self.limit && !slot.has(QUEUED) {
            // At most one entry per slot bounds the queue by the table.
            slot.set(QUEUED, true);
            self.send_queue.push_back(index);
        }
    }

    /// Begins a session: the server holds nothing, so every active flow is to be sent. Returns the
    /// number of active flows beyond the slots that the session carries.
    pub(super) fn open(&mut self, limit: u32) -> u32 {
        self.close();
        self.limit = limit.min(self.max_flows);
        let mut beyond = 0;
        for index in 0..self.slots.len() as u32 {
            if self.slots[index as usize].has(ACTIVE) {
                self.need(index);
                beyond += u32::from(index >= self.limit);
            }
        }
        beyond
    }

    /// Ends the session: clears the server's known state and the rates.
    pub(super) fn close(&mut self) {
        self.limit = 0;
        self.send_queue.clear();
        self.event_queue.clear();
        for slot in &mut self.slots {
            // Flows outlive sessions, everything that a server said does not.
            slot.flags = (slot.flags & (ACTIVE | UNUSED)) | PEER_IDLE;
            slot.sent_seq = 0;
            slot.start_seq = 0;
            slot.rate_seq = 0;
        }
    }

    /// Returns the next record to be sent, and leaves its slot in the queue.
    pub(super) fn peek_record(&mut self) -> Option<SlotRecord> {
        while let Some(&index) = self.send_queue.front() {
            let slot = &mut self.slots[index as usize];
            let active = slot.has(ACTIVE);
            // A flow that began and ended before anything was sent needs no record.
            if slot.has(NEEDED) && (active || !slot.has(PEER_IDLE)) {
                return Some(if active {
                    SlotRecord::Start(slot.record)
                } else {
                    SlotRecord::End(slot.record.flow())
                });
            }
            slot.set(NEEDED, false);
            slot.set(QUEUED, false);
            self.send_queue.pop_front();
        }
        None
    }

    /// Takes the slot that [`peek_record`](Self::peek_record) returned, as sent in datagram `seq`.
    pub(super) fn mark_sent(&mut self, seq: u64) -> u32 {
        let Some(index) = self.send_queue.pop_front() else {
            unreachable!("a slot was peeked at")
        };
        let slot = &mut self.slots[index as usize];
        let active = slot.has(ACTIVE);
        // Until this record is acknowledged, the server may hold either state.
        slot.set(NEEDED | QUEUED | PEER_IDLE, false);
        slot.set(SENT_IDLE, !active);
        slot.sent_seq = seq;
        if active && slot.start_seq == 0 {
            slot.start_seq = seq;
        }
        index
    }

    /// Handles the acknowledgement of datagram `seq`, which had a record of the slot.
    pub(super) fn acked(&mut self, seq: u64, index: u32) {
        let slot = &mut self.slots[index as usize];
        if slot.sent_seq == seq {
            // Nothing newer was sent, and the server keeps the newest.
            slot.set(PEER_IDLE, slot.has(SENT_IDLE));
        }
    }

    /// Handles the loss of datagram `seq`, which had a record of the slot.
    pub(super) fn lost(&mut self, seq: u64, index: u32) {
        // A newer datagram carries the slot's state already; its own loss would be reported.
        if self.slots[index as usize].sent_seq == seq {
            self.need(index);
        }
    }

    /// Takes a rate from server datagram `seq`, which acknowledged client datagrams up to `ack`.
    /// Returns false if newer state has replaced it.
    pub(super) fn rate(
        &mut self,
        flow: FlowId,
        rate: RateCode,
        seq: u64,
        ack: u64,
        announce: bool,
    ) -> bool {
        let Some(slot) = self.slots.get_mut(flow.slot() as usize) else {
            return false;
        };
        // The server must have seen this flowlet's start, or the rate is for an earlier one of the
        // slot.
        let current = slot.has(ACTIVE)
            && slot.record.flow() == flow
            && slot.start_seq != 0
            && ack >= slot.start_seq
            && seq > slot.rate_seq;
        if !current {
            return false;
        }
        slot.rate = rate;
        slot.rate_seq = seq;
        slot.set(HAS_RATE, true);
        if announce {
            self.announce(flow.slot());
        }
        true
    }

    fn announce(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if !slot.has(EVENT_QUEUED) {
            slot.set(EVENT_QUEUED, true);
            self.event_queue.push_back(index);
        }
    }

    /// Queues rate events for all flows that have a rate.
    pub(super) fn announce_all(&mut self) {
        for index in 0..self.slots.len() as u32 {
            if self.slots[index as usize].has(HAS_RATE) {
                self.announce(index);
            }
        }
    }

    /// Drops the rate events that the caller has not taken.
    pub(super) fn withdraw_all(&mut self) {
        for index in self.event_queue.drain(..) {
            self.slots[index as usize].set(EVENT_QUEUED, false);
        }
    }

    /// Takes the next flow with a new rate.
    pub(super) fn pop_rate(&mut self) -> Option<(FlowId, u64)> {
        while let Some(index) = self.event_queue.pop_front() {
            let slot = &mut self.slots[index as usize];
            slot.set(EVENT_QUEUED, false);
            // The flowlet may have ended since the event was queued.
            if slot.has(HAS_RATE) {
                return Some((slot.record.flow(), slot.rate.decode()));
            }
        }
        None
    }

    pub(super) fn has_events(&self) -> bool {
        !self.event_queue.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = FlowState> + '_ {
        self.slots
            .iter()
            .filter(|slot| slot.has(ACTIVE))
            .map(|slot| FlowState {
                record: slot.record,
                rate_bps: slot.has(HAS_RATE).then(|| slot.rate.decode()),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::FlowPath;

    /// A slot is in a queue once, however often its state changes: the table bounds both queues.
    #[test]
    fn a_slot_waits_once_however_often_its_state_changes() {
        let mut slots = ClientSlots::new(8);
        slots.open(8);
        for generation in 0..100 {
            for slot in 0..3 {
                let flow = FlowId::new(slot, generation);
                let record = StartRecord::new(flow, 7, FlowPath::Hash(1));
                slots.start(record).expect("it is in the table");
                slots.lost(0, slot);
            }
            assert_eq!(slots.send_queue, [0, 1, 2]);
        }
        for seq in 1..=3 {
            assert!(slots.peek_record().is_some());
            slots.mark_sent(seq);
        }
        assert!(slots.peek_record().is_none());
        for seq in 1..100 {
            for slot in 0..3 {
                let flow = FlowId::new(slot, 99);
                assert!(slots.rate(flow, RateCode::encode(seq * 1_000_000), seq, 3, true));
            }
            assert_eq!(slots.event_queue, [0, 1, 2]);
        }
        assert_eq!(std::iter::from_fn(|| slots.pop_rate()).count(), 3);
        assert!(!slots.has_events());
    }
}
