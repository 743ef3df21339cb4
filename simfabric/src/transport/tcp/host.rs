//! TCP at one host: the flows that it sends, in turn, and those that it receives.

use std::collections::BTreeMap;
use std::sync::Arc;

use ratewright_proto::telemetry::SendFacts;
use ratewright_topology::HostId;

use super::TcpConfig;
use super::congestion::Congestion;
use super::rtt::RttEstimator;
use super::sender::{Ack, TcpReceiver, TcpSender};
use crate::ext::Extension;
use crate::flow::FlowId;
use crate::host::{Arbiter, Measured, Pool, Pull, Side, Timer, Turn};
use crate::packet::{Flags, Packet, PacketKind};
use crate::time::{Span, Time};
use crate::transport::slots::Slots;
use crate::transport::{Context, NO_SLOT, TimerId};

/// Packets of a paced flow that may follow each other without a gap, because they waited for their
/// turn on the host's link.
const LATE_PACKETS: u64 = 16;

/// A flow that this host sends.
#[derive(Debug)]
struct SendingFlow<C> {
    sender: TcpSender<C>,
    id: FlowId,
    timer: Option<TimerId>,
    /// True while the timer counts; otherwise it means nothing when it fires.
    timed: bool,
    path_hash: u16,
    class: u8,
    dst: HostId,
    /// True until the handshake's answer has come; no data is sent before.
    handshaking: bool,
    /// True while it waits for its turn.
    queued: bool,
    /// First byte that was never sent when the window last stopped the flow. Until it is
    /// acknowledged, the window counts as filled, even while packets wait for the link.
    filled_until: u64,
    /// True once all is acknowledged; its slot is free when its turn has passed.
    done: bool,
    /// Time-outs since the last acknowledgement of anything.
    time_outs_in_a_row: u32,
    /// Rate on the link at which packets leave; 0: as the window allows.
    rate_bps: u64,
    /// Time at which the pacer releases the next packet. Under a maximum, the time that it is past
    /// is credit.
    next_at: Time,
    /// Its use of its maximum.
    rate_use: RateUse,
    /// True if it is to be told when its maximum limits it.
    watched: bool,
    /// Acknowledgements with a mark.
    marked_acks: u32,
}

/// A flow's use of its [`Maximum`](super::Maximum).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RateUse {
    /// Bytes that it has sent, on the link.
    pub sent_bytes: u64,
    /// Last time at which the maximum limited it, if it ever did.
    pub limited_at: Option<Time>,
}

impl<C: Congestion> SendingFlow<C> {
    /// Paces the flow as its control says: the next packet leaves a gap after the one that left at
    /// `sent_at`.
    fn pace(&mut self, full_wire_bytes: u16, sent_at: Time) {
        let before = self.rate_bps;
        self.rate_bps = 0;
        if let Some(gap) = self.sender.control.pacing_gap() {
            let bits = f64::from(full_wire_bytes) * 8.0;
            self.rate_bps = ((bits / gap.as_secs_f64()) as u64).max(1);
            if before == 0 {
                self.next_at = sent_at + gap;
            }
        }
    }

    /// Notes whether the window stopped the flow, which has nothing to send now, or its data.
    #[inline]
    fn ran_dry(&mut self) {
        self.filled_until = if self.sender.next < self.sender.limit {
            self.sender.next
        } else {
            0
        };
    }
}

/// A flow that this host receives.
#[derive(Debug)]
struct ReceivingFlow {
    receiver: TcpReceiver,
    /// The flow's bytes.
    total_bytes: u64,
    src: HostId,
}

/// A flow as a kernel tells of its socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Socket {
    /// The flow.
    pub flow: FlowId,
    /// Its receiver.
    pub dst: HostId,
    /// Its sending side.
    pub sending: SendFacts,
}

/// The end of a flow at its sender: all its bytes are acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acknowledged {
    /// The flow.
    pub flow: FlowId,
    /// Slot that it had.
    pub slot: u32,
}

/// TCP with a congestion control at one host.
///
/// Schemes of their own embed it: they pass on what is TCP's and set rates with
/// [`set_rate`](Self::set_rate). Timers of kind [`TIMER`](Self::TIMER) are its own.
#[derive(Debug)]
pub struct TcpHost<C: Congestion> {
    config: Arc<TcpConfig<C::Config>>,
    senders: Slots<SendingFlow<C>>,
    /// Timers of free slots of the senders. A timer outlives its flow, and the slot's next flow
    /// moves it: each short flow would otherwise leave an event behind for a time-out.
    idle_timers: Vec<Option<TimerId>>,
    receivers: Slots<ReceivingFlow>,
    /// Payload of complete flows, by sender.
    received_bytes: BTreeMap<u32, u64>,
    arbiter: Arbiter,
    /// Windows and round-trip times of idle connections.
    connections: Pool<(C, RttEstimator)>,
    time_outs: u64,
    /// Slots of watched flows that their maximum has limited.
    limited: Vec<u32>,
}

impl<C: Congestion> TcpHost<C> {
    /// Kind of its timers, one per flow that it sends.
    pub const TIMER: u8 = 0;

    /// Makes a host without flows.
    #[must_use]
    pub fn new(config: Arc<TcpConfig<C::Config>>) -> Self {
        Self {
            arbiter: Arbiter::new(config.arbiter),
            connections: Pool::new(config.warm_connections as usize),
            config,
            senders: Slots::default(),
            idle_timers: Vec::new(),
            receivers: Slots::default(),
            received_bytes: BTreeMap::new(),
            time_outs: 0,
            limited: Vec::new(),
        }
    }

    /// Returns the number of flows that it sends.
    #[must_use]
    pub fn sending(&self) -> usize {
        let done = |flow: &&SendingFlow<C>| flow.done;
        self.senders.len() - self.senders.iter().filter(done).count()
    }

    /// Iterates over the senders of the flows that it receives, one for each flow.
    pub fn senders(&self) -> impl Iterator<Item = HostId> {
        self.receivers.iter().map(|flow| flow.src)
    }

    /// Adds the payload that arrived in order so far, by sender.
    pub fn measure_received(&self, measured: &mut Measured) {
        if !measured.wants_received() {
            return;
        }
        for (&src, &bytes) in &self.received_bytes {
            measured.received(HostId(src), bytes);
        }
        for flow in self.receivers.iter() {
            measured.received(flow.src, flow.receiver.expected);
        }
    }

    /// Returns what a kernel would tell of a flow that this host sends; `None` once it is done.
    #[must_use]
    pub fn socket<S>(&self, cx: &Context<'_, S>, slot: u32) -> Option<Socket> {
        let flow = self.senders.get(slot).filter(|flow| !flow.done)?;
        let sender = &flow.sender;
        let bound = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let us = |span: Span| bound(span.as_ns() / 1_000);
        Some(Socket {
            flow: flow.id,
            dst: flow.dst,
            sending: SendFacts {
                acked_bytes: sender.una,
                unsent_bytes: bound(sender.limit - sender.next),
                segment_bytes: cx.framing().mss_bytes.into(),
                rtt_us: us(sender.rtt.smoothed()),
                least_rtt_us: us(sender.rtt.least()),
                retransmitted: bound(cx.progress(flow.id).retransmits),
                delivered_ce: flow.marked_acks,
                // No receiver closes its window.
                ..SendFacts::default()
            },
        })
    }

    /// Returns the retransmission time-outs so far.
    #[must_use]
    pub fn time_outs(&self) -> u64 {
        self.time_outs
    }

    /// Returns the rate that a flow is paced at; 0 without one.
    #[must_use]
    pub fn rate_bps(&self, slot: u32) -> u64 {
        self.senders.get(slot).map_or(0, |flow| flow.rate_bps)
    }

    /// Begins to send a flow, and returns its slot.
    pub fn start<S>(&mut self, cx: &mut Context<'_, S>, id: FlowId) -> u32 {
        let spec = *cx.flow(id);
        let mss_bytes = u64::from(cx.framing().mss_bytes);
        let initial = mss_bytes * u64::from(self.config.initial_window_packets);
        let mut control = C::new(&self.config.control, mss_bytes, initial);
        let mut rtt = RttEstimator::new(self.config.initial_rto);
        if let Some(warm) = self.connections.take(spec.dst) {
            (control, rtt) = warm;
            control.begin_next_flow();
        }
        let slot = self.senders.insert(SendingFlow {
            sender: TcpSender::new(control, rtt, mss_bytes, spec.bytes),
            id,
            timer: None,
            timed: false,
            path_hash: cx.path_hash(id, false),
            // A later class, if the application asks for one.
            class: self.config.class.max(spec.class),
            dst: spec.dst,
            handshaking: self.config.handshake,
            queued: false,
            filled_until: 0,
            done: false,
            time_outs_in_a_row: 0,
            rate_bps: 0,
            next_at: Time::ZERO,
            rate_use: RateUse::default(),
            watched: false,
            marked_acks: 0,
        });
        match self.idle_timers.get_mut(slot as usize) {
            Some(idle) => {
                if let Some(flow) = self.senders.get_mut(slot) {
                    flow.timer = idle.take();
                }
            }
            None => self.idle_timers.push(None),
        }
        cx.set_slot(id, Side::Sender, slot);
        if self.config.handshake {
            self.probe(cx, slot);
        } else {
            self.enqueue(cx, slot);
        }
        slot
    }

    /// Ends a flow that this host sends after what has left so far. As a FIN does (RFC 9293 §3.4),
    /// its end takes one byte more, by which the receiver learns of it.
    pub fn stop<S>(&mut self, cx: &mut Context<'_, S>, id: FlowId) {
        let slot = cx.slot(id, Side::Sender);
        if let Some(flow) = self.senders.get_mut(slot).filter(|flow| flow.id == id) {
            let sender = &mut flow.sender;
            sender.limit = sender.limit.min(sender.next + 1);
            self.enqueue(cx, slot);
        }
    }

    /// Gives a flow its place among those that wait for the interface.
    #[inline]
    fn enqueue<S>(&mut self, cx: &mut Context<'_, S>, slot: u32) {
        let Some(flow) = self.senders.get_mut(slot) else {
            return;
        };
        if flow.queued || flow.handshaking || flow.sender.peek_segment().is_none() {
            return;
        }
        flow.queued = true;
        let now = cx.now();
        let remaining = flow.sender.limit - flow.sender.una;
        if flow.rate_bps > 0 && flow.next_at > now {
            self.arbiter.ready_at(slot, remaining, flow.next_at);
            self.note_limit(now, slot);
        } else {
            // Without a maximum, an idle pacer saves up no credit for a burst.
            let framing = cx.framing();
            let credit = self.config.maximum.map_or(Span::ZERO, |maximum| {
                maximum.credit(flow.rate_bps, framing.wire_bytes(framing.mss_bytes))
            });
            flow.next_at = flow.next_at.max(now - credit);
            self.arbiter.ready(slot, remaining);
        }
        cx.wake();
    }

    /// Notes that a flow waits for its pacer, and can send: its maximum limits it, if the packet is
    /// a full one.
    #[inline]
    fn note_limit(&mut self, now: Time, slot: u32) {
        if self.config.maximum.is_none() {
            return;
        }
        let Some(flow) = self.senders.get_mut(slot) else {
            return;
        };
        if flow
            .sender
            .peek_segment()
            .is_some_and(|next| flow.sender.is_full(next))
        {
            flow.rate_use.limited_at = Some(now);
            if std::mem::take(&mut flow.watched) {
                self.limited.push(slot);
            }
        }
    }

    /// Returns the next packet of the flow whose turn it is. `last` is told of a flow whose last
    /// byte leaves, perhaps again.
    #[inline]
    pub fn pull<S>(
        &mut self,
        cx: &mut Context<'_, S>,
        mut last: impl FnMut(&mut Context<'_, S>, FlowId),
    ) -> Pull {
        let now = cx.now();
        let open = cx.open_classes();
        self.arbiter.release(open);
        loop {
            let slot = match self.arbiter.next(now) {
                Turn::Slot(slot) => slot,
                Turn::At(at) => return Pull::At(at),
                Turn::Nothing => return Pull::Nothing,
            };
            let Some(flow) = self.senders.get_mut(slot) else {
                continue;
            };
            if flow.done {
                self.free(slot);
                continue;
            }
            if !flow.queued || (flow.rate_bps > 0 && flow.next_at > now) {
                continue;
            }
            if !open.contains(flow.class.into()) {
                let remaining = flow.sender.limit - flow.sender.una;
                self.arbiter.hold(slot, remaining, flow.class);
                continue;
            }
            flow.queued = false;
            let Some(segment) = flow.sender.peek_segment() else {
                flow.ran_dry();
                continue;
            };
            flow.sender.sent(now, segment);
            let framing = cx.framing();
            let payload = segment.bytes as u16;
            let mut flags = Flags::NONE;
            // RFC 3168 §6.1.5: what is sent again is dropped rather than marked, so that a loss in
            // congestion is heard. DCTCP's packets all understand marks, as in Linux.
            if self.config.ecn && (C::ECHOES_EACH_MARK || !segment.again) {
                flags.insert(Flags::ECT);
            }
            if self.config.ecn && segment.cwr {
                flags.insert(Flags::CWR);
            }
            if segment.again {
                flags.insert(Flags::RETRANSMIT);
                cx.retransmitted(flow.id);
            }
            let mut packet = Packet {
                kind: PacketKind::Data,
                flow: flow.id,
                src: cx.me(),
                dst: flow.dst,
                seq: segment.seq,
                // What is left to be acknowledged: pFabric's switches go by it.
                ack: flow.sender.limit - flow.sender.una,
                payload_bytes: payload,
                wire_bytes: framing.wire_bytes(payload),
                flags,
                path_hash: flow.path_hash,
                stamp: now,
                class: flow.class,
                ..Packet::default()
            };
            if packet.end() == flow.sender.limit {
                packet.flags.insert(Flags::FIN);
                last(cx, flow.id);
            }
            let smoothed = flow.sender.rtt.smoothed();
            if let Some(header) = flow.sender.control.congestion_header(smoothed) {
                cx.attach_extension(&mut packet, Extension::Xcp(header));
            }
            // RFC 6298 §5.1: the timer runs while anything is unacknowledged.
            if !flow.timed {
                flow.timed = true;
                let kind = Self::TIMER;
                let at = now + self.config.rto(&flow.sender.rtt);
                cx.restart_timer(&mut flow.timer, at, Timer { kind, slot });
            }
            let more = flow.sender.peek_segment().is_some();
            let mut limited = false;
            let remaining = flow.sender.limit - flow.sender.una;
            if flow.rate_bps > 0 {
                let bits = f64::from(packet.wire_bytes) * 8.0;
                let gap = Span::from_secs_f64(bits / flow.rate_bps as f64);
                // The time that others' packets had on the link is made up for, but not without
                // bound: rates may add up to more than the link for a while.
                let most = self.config.maximum.map_or(gap * LATE_PACKETS, |maximum| {
                    maximum.credit(flow.rate_bps, framing.wire_bytes(framing.mss_bytes))
                });
                let late = now.since(flow.next_at).min(most);
                flow.next_at = now - late + gap;
                if more {
                    self.arbiter.ready_at(slot, remaining, flow.next_at);
                    limited = flow.next_at > now;
                }
            } else if more {
                self.arbiter.again(slot, remaining);
            }
            flow.rate_use.sent_bytes += u64::from(packet.wire_bytes);
            flow.queued = more;
            if !more {
                flow.ran_dry();
            }
            if limited {
                self.note_limit(now, slot);
            }
            return self.arbiter.pulled(packet);
        }
    }

    /// Sends an empty packet to elicit an acknowledgement, and sets the timer to repeat it.
    fn probe<S>(&mut self, cx: &mut Context<'_, S>, slot: u32) {
        let Some(flow) = self.senders.get_mut(slot) else {
            return;
        };
        let packet = Packet {
            kind: if flow.handshaking {
                PacketKind::Syn
            } else {
                PacketKind::Probe
            },
            flow: flow.id,
            src: cx.me(),
            dst: flow.dst,
            seq: flow.sender.una,
            wire_bytes: cx.framing().wire_bytes(0),
            path_hash: flow.path_hash,
            stamp: cx.now(),
            class: flow.class,
            ..Packet::default()
        };
        flow.timed = true;
        let kind = Self::TIMER;
        let at = cx.now() + self.config.rto(&flow.sender.rtt);
        cx.restart_timer(&mut flow.timer, at, Timer { kind, slot });
        cx.send(packet);
    }

    /// Frees the slot of a flow that it sent.
    fn free(&mut self, slot: u32) {
        if let Some(flow) = self.senders.get_mut(slot) {
            self.idle_timers[slot as usize] = flow.timer.take();
        }
        self.senders.remove(slot);
    }

    /// Takes a packet of a flow. Returns the flow if it acknowledges the last of its bytes.
    #[inline]
    pub fn on_packet<S>(
        &mut self,
        cx: &mut Context<'_, S>,
        packet: &mut Packet,
    ) -> Option<Acknowledged> {
        if packet.kind == PacketKind::Ack {
            self.on_ack(cx, packet)
        } else {
            self.on_data(cx, packet);
            None
        }
    }

    #[inline]
    fn on_ack<S>(&mut self, cx: &mut Context<'_, S>, packet: &mut Packet) -> Option<Acknowledged> {
        let extension = cx.take_extension(packet);
        let slot = cx.slot(packet.flow, Side::Sender);
        // A flow that is done has no state left for late acknowledgements.
        let flow = self.senders.get_mut(slot)?;
        if flow.id != packet.flow || flow.done {
            return None;
        }
        let blocks: &[(u64, u64)] = match &extension {
            Some(Extension::Sack(blocks)) => blocks,
            Some(Extension::Xcp(header)) => {
                flow.sender.control.on_feedback(header.feedback_bytes);
                &[]
            }
            _ => &[],
        };
        let ack = Ack {
            ack: packet.ack,
            stamp: packet.stamp,
            rtt: self.config.round_trip(packet.stamp, cx.now()),
            marked: packet.flags.contains(Flags::ECE),
            switches: packet.seq as u8,
            blocks,
        };
        flow.marked_acks += u32::from(ack.marked);
        // Any acknowledgement shows that the path works, even one that acknowledges no new data.
        flow.time_outs_in_a_row = 0;
        if std::mem::replace(&mut flow.handshaking, false) {
            flow.timed = false;
        }
        let limited = flow.sender.una < flow.filled_until;
        let advanced = flow
            .sender
            .on_ack(cx.now(), &ack, self.config.min_rto, limited);
        if C::MEASURES_DELAY {
            let framing = cx.framing();
            flow.pace(framing.wire_bytes(framing.mss_bytes), packet.stamp);
        }
        // RFC 6298 §5.2, §5.3: off when all is acknowledged, restarted by every advance.
        if advanced
            && flow.timed
            && let Some(timer) = flow.timer
        {
            flow.timed = !flow.sender.is_idle();
            if flow.timed {
                let rto = self.config.rto(&flow.sender.rtt);
                flow.timer = cx.move_timer(timer, cx.now() + rto);
            }
        }
        if flow.sender.una == flow.sender.limit {
            let connection = (flow.sender.control, flow.sender.rtt);
            self.connections.keep(flow.dst, connection);
            // A flow that waits for its turn keeps its slot until then.
            flow.done = true;
            if !flow.queued {
                self.free(slot);
            }
            let flow = packet.flow;
            cx.set_slot(flow, Side::Sender, NO_SLOT);
            cx.acknowledged(flow);
            return Some(Acknowledged { flow, slot });
        }
        self.enqueue(cx, slot);
        None
    }

    #[inline]
    fn on_data<S>(&mut self, cx: &mut Context<'_, S>, packet: &mut Packet) {
        let id = packet.flow;
        let mut expected;
        let mut blocks = arrayvec::ArrayVec::new();
        let mut echoes = false;
        let progress = cx.progress(id);
        if progress.finished < Time::MAX {
            // A flow that is complete has no state left; what still comes is acknowledged.
            expected = progress.delivered_bytes;
        } else {
            let mut slot = cx.slot(id, Side::Receiver);
            if slot == NO_SLOT {
                let total_bytes = cx.flow(id).bytes;
                slot = self.receivers.insert(ReceivingFlow {
                    receiver: TcpReceiver::default(),
                    total_bytes,
                    src: packet.src,
                });
                cx.set_slot(id, Side::Receiver, slot);
            }
            let flow = self.receivers.get_mut(slot);
            let Some(flow) = flow else { return };
            if packet.flags.contains(Flags::FIN) {
                // The application may have stopped before all of its bytes were sent.
                flow.total_bytes = flow.total_bytes.min(packet.end());
            }
            let in_order;
            (in_order, blocks) = flow.receiver.on_segment(packet.seq, packet.end());
            expected = flow.receiver.expected;
            echoes = flow.receiver.on_flags(packet.flags);
            if in_order > 0 {
                cx.delivered(id, in_order);
            }
            if expected >= flow.total_bytes {
                expected = flow.total_bytes;
                cx.complete(id);
                *self.received_bytes.entry(packet.src.0).or_default() += expected;
                self.receivers.remove(slot);
                cx.set_slot(id, Side::Receiver, NO_SLOT);
            }
        }
        let mut reply = cx.reply(packet);
        reply.ack = expected;
        if C::MEASURES_DELAY {
            reply.seq = packet.hops().saturating_sub(1).into();
        }
        if echoes && !C::ECHOES_EACH_MARK {
            reply.flags.insert(Flags::ECE);
        }
        // Selective acknowledgements first: a window that stands still needs no feedback.
        if !blocks.is_empty() {
            cx.attach_extension(&mut reply, Extension::Sack(blocks));
        } else if let Some(header @ Extension::Xcp(_)) = cx.take_extension(packet) {
            cx.attach_extension(&mut reply, header);
        }
        cx.send(reply);
    }

    /// Handles a timer of kind [`TIMER`](Self::TIMER).
    pub fn on_timer<S>(&mut self, cx: &mut Context<'_, S>, slot: u32) {
        let Some(flow) = self.senders.get_mut(slot) else {
            self.idle_timers[slot as usize] = None;
            return;
        };
        flow.timer = None;
        if !std::mem::take(&mut flow.timed) {
            return;
        }
        if flow.handshaking {
            self.time_outs += 1;
            flow.sender.rtt.back_off();
            return self.probe(cx, slot);
        }
        if flow.done || flow.sender.is_idle() {
            return;
        }
        self.time_outs += 1;
        flow.time_outs_in_a_row = flow.time_outs_in_a_row.saturating_add(1);
        flow.sender.on_time_out(cx.now());
        if flow.time_outs_in_a_row > C::PROBE_AFTER {
            self.probe(cx, slot);
        } else {
            self.enqueue(cx, slot);
        }
    }

    /// Gives a flow this rate on the link from now on, see [`TcpConfig::maximum`]; with 0 its
    /// window alone holds. The rest of the pacer's wait at the old rate is scaled to the new one,
    /// and so is a credit.
    pub fn set_rate<S>(&mut self, cx: &mut Context<'_, S>, slot: u32, rate_bps: u64) {
        let now = cx.now();
        let Some(flow) = self.senders.get_mut(slot).filter(|flow| !flow.done) else {
            return;
        };
        let in_flight_bytes = flow.sender.in_flight_bytes();
        flow.sender.control.on_rate(rate_bps, in_flight_bytes);
        let old_bps = std::mem::replace(&mut flow.rate_bps, rate_bps);
        flow.next_at = if old_bps > 0 && rate_bps > 0 {
            // Otherwise a rise from a very low rate would take effect only after the old gap.
            let scale = old_bps as f64 / rate_bps as f64;
            let credit = now.since(flow.next_at).mul_f64(scale);
            let kept = self.config.maximum.map_or(Span::ZERO, |_| credit);
            now - kept + flow.next_at.since(now).mul_f64(scale)
        } else {
            now
        };
        // A flow that waits for its pacer gets another turn, at the new time; the turn at the old
        // one finds nothing to do.
        flow.queued = false;
        self.enqueue(cx, slot);
    }

    /// Returns what a flow has made of its maximum so far; `None` once it is done.
    #[must_use]
    pub fn rate_use(&self, slot: u32) -> Option<RateUse> {
        let flow = self.senders.get(slot).filter(|flow| !flow.done)?;
        Some(flow.rate_use)
    }

    /// Watches a flow until its maximum limits it next, see [`poll_limited`](Self::poll_limited).
    pub fn watch(&mut self, slot: u32) {
        if let Some(flow) = self.senders.get_mut(slot) {
            flow.watched = true;
        }
    }

    /// Returns the slot of the next watched flow that its maximum has limited.
    pub fn poll_limited(&mut self) -> Option<u32> {
        self.limited.pop()
    }
}
