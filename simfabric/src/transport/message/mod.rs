//! Messages: the base of receiver-driven schemes.
//!
//! A flow is a message, whose length both ends know. Its sender may send up to an offset that the
//! scheme *allows*: an unscheduled prefix at once, the rest by grants or credit. Packets may come
//! in any order. When its last byte arrives the message is complete, and the receiver acknowledges
//! it as a whole, so that its sender can forget it.
//!
//! Loss is found by silence (Homa §3.7, SIRD §4.4): of a message that is incomplete, allowed to
//! come, and not heard of for a time-out, the receiver asks for what is missing. A sender that has
//! not come to these bytes yet answers that it is busy. A sender that has sent all it may and hears
//! nothing probes: so the loss of a whole message, of a grant or of the last acknowledgement ends
//! too. Each host looks at its messages once in a time-out, by one timer.
//!
//! | file | what lives there |
//! |---|---|
//! | `outgoing.rs` | a message that a host sends |
//! | `incoming.rs` | a message that a host receives |

mod incoming;
mod outgoing;

pub use incoming::Incoming;
pub use outgoing::{MessageSegment, Outgoing};

use ratewright_topology::HostId;

use super::slots::Slots;
use super::{Context, NO_SLOT, TimerId};
use crate::flow::FlowId;
use crate::host::{Side, Timer};
use crate::packet::{Flags, Packet, PacketKind};
use crate::time::{Span, Time};

/// Gaps that a receiver asks for at once, of one message.
const MOST_GAPS: usize = 16;

/// Parameters of all messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageConfig {
    /// Silence after which a message is looked after.
    pub time_out: Span,
    /// Packets take paths of their own, which the sender draws; otherwise those of their flow.
    pub spray: bool,
    /// Class of control packets, unless the scheme gives one another.
    pub control_class: u8,
}

/// Outcome of a data packet at its receiver.
#[derive(Debug)]
pub enum Arrival<R> {
    /// The message goes on in this slot, with so many new bytes.
    More(u32, u64),
    /// The message is complete with these new bytes. Its slot is free.
    Complete(u32, u64, Incoming<R>),
    /// The message was complete before.
    Late,
}

/// The messages of a host, with state `S` of the scheme for each that it sends, and `R` for each
/// that it receives.
#[derive(Debug)]
pub struct Messages<S, R> {
    config: MessageConfig,
    outgoing: Slots<Outgoing<S>>,
    incoming: Slots<Incoming<R>>,
    timer: Option<TimerId>,
    /// Bits that control packets carry.
    control_flags: Flags,
    /// Ranges that receivers asked for, and probes of senders.
    resends: u64,
    probes: u64,
    extremes: Extremes,
}

/// Largest differences between what receivers allowed by offsets, and what came.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extremes {
    /// Bytes of a data packet behind what its receiver had allowed, by prefix, grants or credit.
    pub unallowed_bytes: u64,
    /// Bytes of a message that were allowed and had not come, when something of it came.
    pub outstanding_bytes: u64,
}

impl<S, R> Messages<S, R> {
    /// Kind of the timer; schemes number their own from the next one.
    pub const TIMER: u8 = 0;

    /// Makes a host without messages.
    #[must_use]
    pub fn new(config: MessageConfig) -> Self {
        Self {
            config,
            outgoing: Slots::default(),
            incoming: Slots::default(),
            timer: None,
            control_flags: Flags::NONE,
            resends: 0,
            probes: 0,
            extremes: Extremes::default(),
        }
    }

    /// Returns the extremes of the messages that this host received, but for packets of messages
    /// that were complete.
    #[must_use]
    pub fn extremes(&self) -> Extremes {
        self.extremes
    }

    /// Adds up, for a scheme's counters, how often hosts asked for bytes again, and how often they
    /// probed.
    pub fn repairs<'a>(hosts: impl Iterator<Item = &'a Self> + Clone) -> [(&'static str, f64); 2]
    where
        Self: 'a,
    {
        let resends: u64 = hosts.clone().map(|host| host.resends).sum();
        let probes: u64 = hosts.map(|host| host.probes).sum();
        [("resends", resends as f64), ("probes", probes as f64)]
    }

    /// Returns a message that this host sends.
    #[inline]
    pub fn outgoing(&mut self, slot: u32) -> Option<&mut Outgoing<S>> {
        self.outgoing.get_mut(slot)
    }

    /// Returns a message that this host receives.
    #[inline]
    pub fn incoming(&mut self, slot: u32) -> Option<&mut Incoming<R>> {
        self.incoming.get_mut(slot)
    }

    /// Begins to send a message of which so many bytes may leave at once. Returns its slot.
    pub fn start<X>(
        &mut self,
        cx: &mut Context<'_, X>,
        id: FlowId,
        allowed_bytes: u64,
        own: S,
    ) -> u32 {
        let spec = *cx.flow(id);
        let path_hash = cx.path_hash(id, false);
        let message = Outgoing::new(id, &spec, allowed_bytes, path_hash, cx.now(), own);
        let slot = self.outgoing.insert(message);
        cx.set_slot(id, Side::Sender, slot);
        self.watch(cx);
        slot
    }

    /// Ends a message after what has left so far. As TCP's FIN does, its end takes one byte more,
    /// by which the receiver learns of it. Returns its slot.
    pub fn stop<X>(&mut self, cx: &mut Context<'_, X>, id: FlowId) -> Option<u32> {
        let slot = cx.slot(id, Side::Sender);
        let message = self.outgoing.get_mut(slot).filter(|m| m.id == id)?;
        message.stop();
        Some(slot)
    }

    /// Makes the packet of a segment, which leaves now.
    pub fn data<X>(
        &mut self,
        cx: &mut Context<'_, X>,
        slot: u32,
        segment: MessageSegment,
        class: u8,
    ) -> Option<Packet> {
        let spray = self.config.spray.then(|| cx.spray());
        let framing = cx.framing();
        let message = self.outgoing.get_mut(slot)?;
        message.sent(segment, cx.now());
        let payload = segment.bytes;
        let mut packet = Packet {
            kind: PacketKind::Data,
            flow: message.id,
            src: cx.me(),
            dst: message.dst,
            seq: segment.seq,
            payload_bytes: payload,
            wire_bytes: framing.wire_bytes(payload),
            path_hash: spray.unwrap_or(message.path_hash),
            class,
            stamp: cx.now(),
            ..Packet::default()
        };
        if packet.end() == message.bytes {
            packet.flags.insert(Flags::FIN);
        }
        if segment.again {
            packet.flags.insert(Flags::RETRANSMIT);
            cx.retransmitted(packet.flow);
        }
        Some(packet)
    }

    /// Makes a control packet of a message, to its other end; `seq` and `ack` are the kind's.
    #[must_use]
    pub fn control<X>(
        &self,
        cx: &mut Context<'_, X>,
        kind: PacketKind,
        (id, to): (FlowId, HostId),
        [seq, ack]: [u64; 2],
    ) -> Packet {
        let path_hash = if self.config.spray {
            cx.spray()
        } else {
            cx.path_hash_to(id, to)
        };
        Packet {
            kind,
            flow: id,
            src: cx.me(),
            dst: to,
            seq,
            ack,
            wire_bytes: cx.framing().wire_bytes(0),
            path_hash,
            class: self.config.control_class,
            flags: self.control_flags,
            stamp: cx.now(),
            ..Packet::default()
        }
    }

    /// Sets the bits that all control packets carry from now on.
    pub fn set_control_flags(&mut self, flags: Flags) {
        self.control_flags = flags;
    }

    /// Takes a data packet, or another one by which the receiver learns of a message. `own` makes
    /// the scheme's state of a new one, and the bytes that may come without further ado.
    pub fn on_data<X>(
        &mut self,
        cx: &mut Context<'_, X>,
        packet: &Packet,
        own: impl FnOnce(&mut Context<'_, X>) -> (u64, R),
    ) -> Arrival<R> {
        let id = packet.flow;
        if cx.progress(id).finished < Time::MAX {
            // Its sender may not know.
            self.acknowledge(cx, id, packet.src);
            return Arrival::Late;
        }
        let mut slot = cx.slot(id, Side::Receiver);
        if slot == NO_SLOT {
            let bytes = cx.flow(id).bytes;
            let (allowed_bytes, own) = own(cx);
            let message = Incoming::new(id, packet.src, bytes, allowed_bytes, cx.now(), own);
            slot = self.incoming.insert(message);
            cx.set_slot(id, Side::Receiver, slot);
            self.watch(cx);
        }
        let Some(message) = self.incoming.get_mut(slot) else {
            return Arrival::Late;
        };
        if packet.kind == PacketKind::Data {
            let extremes = &mut self.extremes;
            let unallowed = packet.end().saturating_sub(message.allowed);
            extremes.unallowed_bytes = extremes.unallowed_bytes.max(unallowed);
            let outstanding = message.allowed.saturating_sub(message.received_bytes());
            extremes.outstanding_bytes = extremes.outstanding_bytes.max(outstanding);
        }
        let new_bytes = message.on_packet(packet, cx.now());
        let complete = message.is_complete();
        cx.delivered(id, new_bytes);
        if !complete {
            return Arrival::More(slot, new_bytes);
        }
        cx.complete(id);
        cx.set_slot(id, Side::Receiver, NO_SLOT);
        self.acknowledge(cx, id, packet.src);
        match self.incoming.take(slot) {
            Some(message) => Arrival::Complete(slot, new_bytes, message),
            None => Arrival::Late,
        }
    }

    /// Acknowledges a complete message.
    fn acknowledge<X>(&mut self, cx: &mut Context<'_, X>, id: FlowId, to: HostId) {
        let ack = self.control(cx, PacketKind::Ack, (id, to), [0; 2]);
        cx.send(ack);
    }

    /// Takes the acknowledgement of a message, which is over. A slot that waits for a turn must be
    /// given up by [`forget`](Self::forget) when the turn comes.
    pub fn on_ack<X>(&mut self, cx: &mut Context<'_, X>, packet: &Packet) -> Option<u32> {
        let slot = self.sent_by(cx, packet)?;
        cx.set_slot(packet.flow, Side::Sender, NO_SLOT);
        cx.acknowledged(packet.flow);
        let message = self.outgoing.get_mut(slot)?;
        message.done = true;
        if !message.queued {
            self.outgoing.remove(slot);
        }
        Some(slot)
    }

    /// Frees the slot of a message that is over.
    pub fn forget(&mut self, slot: u32) {
        self.outgoing.remove(slot);
    }

    /// Returns the slot of the message that a packet of its receiver is about, which was heard of
    /// just now.
    #[inline]
    pub fn sent_by<X>(&mut self, cx: &Context<'_, X>, packet: &Packet) -> Option<u32> {
        if cx.flow(packet.flow).src != cx.me() {
            return None;
        }
        let slot = cx.slot(packet.flow, Side::Sender);
        let message = self.outgoing.get_mut(slot)?;
        if message.id != packet.flow || message.done {
            return None;
        }
        message.heard_at = cx.now();
        Some(slot)
    }

    /// Takes a request for missing bytes, and tells the receiver if they were not sent yet. Returns
    /// the slot of the message, which has something to send now.
    pub fn on_resend<X>(&mut self, cx: &mut Context<'_, X>, packet: &Packet) -> Option<u32> {
        let slot = self.sent_by(cx, packet)?;
        let message = self.outgoing.get_mut(slot)?;
        // A grant may have been lost.
        message.allow(packet.ack);
        if !message.ask_again(packet.seq, packet.ack) {
            let ends = (packet.flow, packet.src);
            let busy = self.control(cx, PacketKind::Busy, ends, [0; 2]);
            cx.send(busy);
        }
        Some(slot)
    }

    /// Returns the slot of the incomplete message that a packet of its sender is about.
    pub fn received_of<X>(&self, cx: &Context<'_, X>, packet: &Packet) -> Option<u32> {
        if cx.flow(packet.flow).dst != cx.me() {
            return None;
        }
        let slot = cx.slot(packet.flow, Side::Receiver);
        self.incoming.get(slot)?;
        Some(slot)
    }

    /// Takes the answer of a sender that has not come to a message yet. Returns the message's slot.
    pub fn on_busy<X>(&mut self, cx: &Context<'_, X>, packet: &Packet) -> Option<u32> {
        let slot = self.received_of(cx, packet)?;
        self.incoming.get_mut(slot)?.heard_at = cx.now();
        Some(slot)
    }

    /// Answers the probe of a sender that hears nothing, of a message that is not complete. The
    /// probe's `ack` is the byte that the sender may send up to.
    pub fn on_probe<X>(&mut self, cx: &mut Context<'_, X>, slot: u32) {
        let Some(message) = self.incoming.get_mut(slot) else {
            return;
        };
        let (id, from) = (message.id, message.src);
        if message.misses_any() {
            self.ask(cx, slot);
        } else {
            // It is this end that holds the message back.
            let busy = self.control(cx, PacketKind::Busy, (id, from), [0; 2]);
            cx.send(busy);
        }
    }

    /// Sets the timer, unless it is.
    fn watch<X>(&mut self, cx: &mut Context<'_, X>) {
        if self.timer.is_none() {
            let timer = Timer {
                kind: Self::TIMER,
                slot: 0,
            };
            self.timer = Some(cx.timer_in(self.config.time_out, timer));
        }
    }

    /// Handles the timer: asks for what is missing of messages that were silent for a time-out, and
    /// probes for those that this host sends. `silent` hears of each incoming one, by its slot.
    pub fn on_timer<X>(
        &mut self,
        cx: &mut Context<'_, X>,
        mut silent: impl FnMut(&mut Context<'_, X>, u32),
    ) {
        self.timer = None;
        let now = cx.now();
        let time_out = self.config.time_out;
        let is_silent = |heard_at: Time| now.since(heard_at) >= time_out;
        for slot in 0..self.incoming.places() {
            if self
                .incoming
                .get(slot)
                .is_some_and(|m| is_silent(m.heard_at))
            {
                self.ask(cx, slot);
                silent(cx, slot);
            }
        }
        for slot in 0..self.outgoing.places() {
            let Some(message) = self.outgoing.get_mut(slot) else {
                continue;
            };
            if message.done || message.has_segment() || !is_silent(message.heard_at) {
                continue;
            }
            message.heard_at = now;
            let (ends, allowed) = ((message.id, message.dst), message.allowed());
            self.probes += 1;
            let probe = self.control(cx, PacketKind::Probe, ends, [0, allowed]);
            cx.send(probe);
        }
        if self.incoming.len() + self.outgoing.len() > 0 {
            self.watch(cx);
        }
    }

    /// Asks for what is missing of a message.
    fn ask<X>(&mut self, cx: &mut Context<'_, X>, slot: u32) {
        let mut from = 0;
        for _ in 0..MOST_GAPS {
            let Some(message) = self.incoming.get_mut(slot) else {
                return;
            };
            message.heard_at = cx.now();
            let ends = (message.id, message.src);
            let Some((first, end)) = message.missing_from(from) else {
                return;
            };
            self.resends += 1;
            let ask = self.control(cx, PacketKind::Resend, ends, [first, end]);
            cx.send(ask);
            from = end;
        }
    }

    /// Iterates over the messages that this host receives.
    pub fn all_incoming(&self) -> impl Iterator<Item = &Incoming<R>> {
        self.incoming.iter()
    }

    /// Iterates over the messages that this host sends, or that wait to be forgotten.
    pub fn all_outgoing(&self) -> impl Iterator<Item = &Outgoing<S>> {
        self.outgoing.iter()
    }

    /// Returns the number of messages that this host receives.
    #[must_use]
    pub fn receiving(&self) -> usize {
        self.incoming.len()
    }
}
