//! RDMA at one host: its queue pairs, those that send and those that receive.

use std::sync::Arc;

use ratewright_topology::HostId;

use super::RdmaConfig;
use super::control::{Acked, Control, PathFacts};
use super::dasr::{self, Congestion, Dasr};
use super::receiver::{Answer, Receiver, Rules};
use super::sequence::Sequence;
use crate::ext::{Extension, Trail};
use crate::flow::FlowId;
use crate::host::{Arbiter, Endpoint, Measured, Pull, Side, Timer, Turn};
use crate::net::{Notice, Telemetry};
use crate::packet::{Flags, Packet, PacketKind};
use crate::time::{Span, Time};
use crate::transport::slots::Slots;
use crate::transport::{Context, NO_SLOT, TimerId};

/// Kinds of timers, one each per queue pair that sends.
const RTO: u8 = 0;
const CONTROL: u8 = 1;

/// A queue pair that sends.
#[derive(Debug)]
struct QueuePair<C> {
    id: FlowId,
    dst: HostId,
    path_hash: u16,
    class: u8,
    /// True while it waits for its turn.
    queued: bool,
    /// True once all is acknowledged; its slot is free when its turn has passed.
    done: bool,
    /// Time of its turn while it waits for its pacer.
    turn_at: Time,
    /// Time that it has waited beyond its turns since it last had one on time.
    late: Span,
    /// Time at which its last packet left, and that packet's bits on the link.
    sent_at: Time,
    sent_bits: f64,
    /// Time from the last packet to the next at the rate of the last time that it was computed.
    gap: Span,
    gap_rate_bps: f64,
    line_bps: f64,
    sequence: Sequence,
    control: C,
    /// Time of the retransmission time-out; the greatest while nothing is to be acknowledged.
    rto_at: Time,
    control_timer: Option<TimerId>,
    /// Time that the control's timer is set to.
    control_at: Time,
}

impl<C: Control> QueuePair<C> {
    /// Returns the time at which the pacer releases the next packet.
    #[inline]
    fn next_at(&mut self) -> Time {
        let rate_bps = self.control.rate_bps();
        let is_set = self.gap_rate_bps > 0.0 && self.control.keeps_turns();
        if !is_set && rate_bps.to_bits() != self.gap_rate_bps.to_bits() {
            self.gap_rate_bps = rate_bps;
            // A queue pair at the line's rate is paced by the link.
            self.gap = if rate_bps >= self.line_bps {
                Span::ZERO
            } else {
                Span::from_secs_f64(self.sent_bits / rate_bps)
            };
        }
        self.sent_at + self.gap
    }

    #[inline]
    fn can_send(&self) -> bool {
        self.sequence.peek(self.control.window_bytes()).is_some()
    }
}

/// Retransmission timer of a slot.
///
/// It stays when a flow ends or an acknowledgement moves the time-out, and looks for the time-out
/// when it fires: each short flow would otherwise leave an event behind.
#[derive(Clone, Copy, Debug)]
struct RtoTimer {
    id: Option<TimerId>,
    fires_at: Time,
}

impl RtoTimer {
    const OFF: Self = Self {
        id: None,
        fires_at: Time::MAX,
    };

    /// Makes it fire at this time or before it.
    #[inline]
    fn fire_by(&mut self, cx: &mut Context<'_>, at: Time, slot: u32) {
        if at < self.fires_at {
            self.fires_at = at;
            cx.restart_timer(&mut self.id, at, Timer { kind: RTO, slot });
        }
    }
}

/// Events of one host, counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RdmaCounts {
    /// Retransmission time-outs.
    pub time_outs: u64,
    /// Negative acknowledgements that it sent.
    pub nacks: u64,
    /// Notifications of congestion that it sent.
    pub cnps: u64,
    /// Data packets of short flows that it received.
    pub short_packets: u64,
    /// Of these, those that were marked.
    pub short_marked: u64,
    /// Links that these crossed, counting at most 15 of a packet.
    pub short_hops: u64,
    /// Marked packets that it received of which it told no sender, since its own line was full.
    pub marks_withheld: u64,
    /// Packets that it marked as a congested source.
    pub source_marks: u64,
    /// Packets, sent once, that came behind a later one of their flow.
    pub overtaken: u64,
}

/// RDMA with a congestion control at one host.
#[derive(Debug)]
pub struct RdmaHost<C: Control> {
    config: Arc<RdmaConfig<C::Config>>,
    senders: Slots<QueuePair<C>>,
    /// Retransmission timers of the senders' slots.
    rto_timers: Vec<RtoTimer>,
    receivers: Slots<Receiver>,
    /// The senders that it apportions its line to; none before the first packet.
    dasr: Option<Box<Dasr>>,
    arbiter: Arbiter,
    counts: RdmaCounts,
}

impl<C: Control> RdmaHost<C> {
    /// Makes a host without flows.
    #[must_use]
    pub fn new(config: Arc<RdmaConfig<C::Config>>) -> Self {
        Self {
            arbiter: Arbiter::new(config.arbiter),
            config,
            senders: Slots::default(),
            rto_timers: Vec::new(),
            receivers: Slots::default(),
            dasr: None,
            counts: RdmaCounts::default(),
        }
    }

    /// Returns the events so far.
    #[must_use]
    pub fn counts(&self) -> RdmaCounts {
        self.counts
    }

    /// Returns the control of the flow in this slot.
    #[must_use]
    pub fn control(&self, slot: u32) -> Option<&C> {
        self.senders.get(slot).map(|pair| &pair.control)
    }

    /// Returns the number of flows that it receives: begun and not complete.
    #[must_use]
    pub fn receiving(&self) -> usize {
        self.receivers.len()
    }

    /// Returns the number of senders that it counts, and what congests it.
    #[must_use]
    pub fn senders(&self) -> (usize, Congestion) {
        let dasr = self.dasr.as_ref();
        dasr.map_or_else(Default::default, |d| (d.active(), d.congestion()))
    }

    /// Gives a queue pair its place among those that wait for the interface.
    #[inline]
    fn enqueue(&mut self, cx: &mut Context<'_>, slot: u32) {
        let Some(pair) = self.senders.get_mut(slot).filter(|pair| pair.can_send()) else {
            return;
        };
        let at = pair.next_at();
        let remaining = pair.sequence.limit - pair.sequence.una;
        if pair.queued {
            // A rate that rose makes the turn earlier; one that fell is seen when the turn comes.
            if at < pair.turn_at && pair.turn_at > cx.now() {
                pair.turn_at = at;
                self.arbiter.ready_at(slot, remaining, at);
                cx.wake();
            }
            return;
        }
        pair.queued = true;
        if at > cx.now() {
            pair.turn_at = at;
            self.arbiter.ready_at(slot, remaining, at);
        } else {
            pair.turn_at = Time::ZERO;
            self.arbiter.ready(slot, remaining);
        }
        cx.wake();
    }

    /// Moves the control's timer to where the control wants it.
    #[inline]
    fn follow_control(&mut self, cx: &mut Context<'_>, slot: u32) {
        let Some(pair) = self.senders.get_mut(slot) else {
            return;
        };
        let at = pair.control.timer();
        if at == pair.control_at {
            return;
        }
        pair.control_at = at;
        if at == Time::MAX {
            if let Some(timer) = pair.control_timer.take() {
                cx.cancel(timer);
            }
        } else {
            let kind = CONTROL;
            cx.restart_timer(&mut pair.control_timer, at, Timer { kind, slot });
        }
    }

    /// Returns the time-out of a queue pair.
    fn rto(config: &RdmaConfig<C::Config>, pair: &QueuePair<C>, mss_bytes: u16) -> Span {
        match config.rto_low {
            Some((packets, rto))
                if pair.sequence.highest - pair.sequence.una
                    <= u64::from(packets) * u64::from(mss_bytes) =>
            {
                rto
            }
            _ => config.rto,
        }
    }

    #[inline]
    fn on_ack(&mut self, cx: &mut Context<'_>, packet: &mut Packet) {
        let extension = cx.take_extension(packet);
        let slot = cx.slot(packet.flow, Side::Sender);
        let Some(pair) = self.senders.get_mut(slot) else {
            return;
        };
        // A flow that is done has no state left for late acknowledgements.
        if pair.id != packet.flow || pair.done {
            return;
        }
        let newly = pair.sequence.on_ack(packet.ack);
        if packet.flags.contains(Flags::NACK) {
            pair.sequence.on_nack(packet.seq);
        }
        let trail = match &extension {
            Some(Extension::Int(trail)) => *trail,
            _ => Trail::default(),
        };
        let rcp = match extension {
            Some(Extension::Rcp(header)) => Some(header),
            _ => None,
        };
        pair.control.on_ack(&Acked {
            now: cx.now(),
            ack: packet.ack,
            next: pair.sequence.next,
            rtt: cx.now().since(packet.stamp),
            marked: packet.flags.contains(Flags::ECE),
            hops: trail.hops(),
            flows: trail.flows(),
            rcp,
        });
        if pair.sequence.is_done() {
            self.finish(cx, slot);
            return;
        }
        if newly > 0 {
            pair.rto_at = Time::MAX;
            if !pair.sequence.is_idle() {
                pair.rto_at = cx.now() + Self::rto(&self.config, pair, cx.framing().mss_bytes);
                self.rto_timers[slot as usize].fire_by(cx, pair.rto_at, slot);
            }
        }
        self.follow_control(cx, slot);
        self.enqueue(cx, slot);
    }

    /// Ends a flow of which all is acknowledged.
    fn finish(&mut self, cx: &mut Context<'_>, slot: u32) {
        let Some(pair) = self.senders.get_mut(slot) else {
            return;
        };
        pair.rto_at = Time::MAX;
        if let Some(timer) = pair.control_timer.take() {
            cx.cancel(timer);
        }
        pair.done = true;
        let (flow, queued) = (pair.id, pair.queued);
        // One that waits for its turn keeps its slot until then.
        if !queued {
            self.senders.remove(slot);
        }
        cx.set_slot(flow, Side::Sender, NO_SLOT);
        cx.acknowledged(flow);
    }

    #[inline]
    fn on_data(&mut self, cx: &mut Context<'_>, packet: &mut Packet) {
        let id = packet.flow;
        let progress = cx.progress(id);
        let (expected, answer);
        // Number by which the sender divides this host's line; 0: it is not told.
        let mut share = 0;
        if progress.finished < Time::MAX {
            // A flow that is complete has no state left; what still comes is acknowledged.
            (expected, answer) = (progress.delivered_bytes, Answer::Ack);
        } else {
            let mut slot = cx.slot(id, Side::Receiver);
            if slot == NO_SLOT {
                let mut receiver = Receiver::new(packet.src, cx.flow(id).bytes);
                if self.config.dasr.is_some() {
                    (receiver.tenant, receiver.sender) = self.count_sender(cx, packet);
                }
                slot = self.receivers.insert(receiver);
                cx.set_slot(id, Side::Receiver, slot);
            }
            let Some(receiver) = self.receivers.get_mut(slot) else {
                return;
            };
            if !packet.flags.contains(Flags::RETRANSMIT) {
                self.counts.overtaken += u64::from(receiver.was_overtaken(packet.seq));
            }
            if receiver.total_bytes <= self.config.short_bytes {
                self.counts.short_packets += 1;
                self.counts.short_marked += u64::from(packet.flags.contains(Flags::CE));
                self.counts.short_hops += u64::from(packet.hops());
            }
            if let Some(dasr) = &mut self.dasr {
                let key = (receiver.tenant, packet.src);
                let marked = packet.flags.contains(Flags::CE);
                let wire_bytes = packet.wire_bytes;
                receiver.sender = dasr.on_data(cx.now(), receiver.sender, key, wire_bytes, marked);
                share = dasr.share(receiver.sender);
                if marked && !dasr.tells_marks() {
                    self.counts.marks_withheld += 1;
                    packet.flags.remove(Flags::CE);
                }
            }
            let is_last = packet.flags.contains(Flags::FIN);
            if is_last {
                // The application may have stopped before all of its bytes were sent.
                receiver.total_bytes = receiver.total_bytes.min(packet.end());
            }
            let rules = Rules {
                recovery: self.config.recovery,
                nack_interval: self.config.nack_interval,
                ack_every: self.config.ack_every,
            };
            // A data packet's `ack` asks for an acknowledgement if it is not 0 (InfiniBand's AckReq
            // bit, §9.2.4).
            let asks = is_last || packet.ack != 0;
            let range = (packet.seq, packet.end());
            let in_order;
            (in_order, answer) = receiver.on_data(cx.now(), range, asks, &rules);
            expected = receiver.expected;
            let notifies = packet.flags.contains(Flags::CE)
                && (self.config.cnp_interval).is_some_and(|i| receiver.notifies(cx.now(), i));
            if in_order > 0 {
                cx.delivered(id, in_order);
            }
            if expected >= receiver.total_bytes {
                if let Some(dasr) = &mut self.dasr {
                    dasr.end(cx.now(), receiver.sender, (receiver.tenant, packet.src));
                }
                cx.complete(id);
                self.receivers.remove(slot);
                cx.set_slot(id, Side::Receiver, NO_SLOT);
            }
            if notifies {
                self.counts.cnps += 1;
                let mut cnp = self.reply(cx, packet);
                cnp.kind = PacketKind::Cnp;
                cnp.flags = Flags::NONE;
                cx.send(cnp);
            }
        }
        if answer == Answer::Nothing {
            return;
        }
        let mut reply = self.reply(cx, packet);
        reply.ack = expected;
        // The packet that is answered: selective repeat learns from it what arrived.
        reply.seq = packet.seq;
        if answer == Answer::Nack {
            self.counts.nacks += 1;
            reply.flags.insert(Flags::NACK);
        }
        if share > 0 {
            cx.attach_extension(&mut reply, Extension::Int(Trail::of_flows(share)));
        }
        match C::TELEMETRY {
            Telemetry::Acknowledgements => {
                // A flow that this packet completed counts no more: what it is told moves nothing.
                let flows = u16::try_from(self.receivers.len().max(1)).unwrap_or(u16::MAX);
                reply.wire_bytes += self.config.int_bytes;
                cx.attach_extension(&mut reply, Extension::Int(Trail::of_flows(flows)));
            }
            Telemetry::Asked => reply.wire_bytes += self.config.int_bytes,
            Telemetry::None => {}
        }
        // Data's telemetry, or the rate that switches wrote into it, goes back to the sender.
        if let Some(extension) = cx.take_extension(packet) {
            cx.attach_extension(&mut reply, extension);
        }
        cx.send(reply);
    }

    /// Counts the sender of a message by its first packet, and those of its incast that the packet
    /// names. Returns its tenant and its place.
    fn count_sender(&mut self, cx: &mut Context<'_>, packet: &mut Packet) -> (u16, u32) {
        let Some(config) = self.config.dasr else {
            return (0, NO_SLOT);
        };
        let line_bps = cx.nic_rate_bps(cx.me());
        let dasr = (self.dasr).get_or_insert_with(|| Box::new(Dasr::new(config, line_bps)));
        let spec = *cx.flow(packet.flow);
        let tenant = dasr.tenant(spec.label);
        let group = (spec.group != 0).then_some((tenant, spec.group));
        if let Some(group) = group
            && let Some(Extension::Bytes(list)) = cx.take_extension(packet)
        {
            dasr.announce(cx.now(), group, packet.src, dasr::hosts_of(&list));
            cx.extensions().recycle(list);
        }
        (tenant, dasr.begin(cx.now(), (tenant, packet.src), group))
    }

    /// Names the senders of an incast in the first packet of a message (Dart §III-D).
    fn announce(cx: &mut Context<'_>, packet: &mut Packet) {
        let group = cx.flow(packet.flow).group;
        if group == 0 {
            return;
        }
        let mut list = cx.extensions().buffer();
        let members = cx.group(group);
        dasr::list_of(members, &mut list);
        packet.wire_bytes += dasr::wire_bytes(members.len());
        cx.attach_extension(packet, Extension::Bytes(list));
    }

    /// Makes an answer without telemetry.
    #[inline]
    fn reply(&self, cx: &Context<'_>, packet: &Packet) -> Packet {
        let mut reply = cx.reply(packet);
        if let Some(class) = self.config.ack_class {
            reply.class = class;
        }
        if let Some(wire_bytes) = self.config.ack_wire_bytes {
            reply.wire_bytes = wire_bytes;
        }
        reply
    }

    fn on_rto(&mut self, cx: &mut Context<'_>, slot: u32) {
        let timer = &mut self.rto_timers[slot as usize];
        *timer = RtoTimer::OFF;
        let Some(pair) = self.senders.get_mut(slot).filter(|p| p.rto_at < Time::MAX) else {
            return;
        };
        if pair.rto_at > cx.now() {
            return timer.fire_by(cx, pair.rto_at, slot);
        }
        self.counts.time_outs += 1;
        pair.sequence.on_time_out();
        // What is sent again may be lost, too.
        pair.rto_at = cx.now() + Self::rto(&self.config, pair, cx.framing().mss_bytes);
        timer.fire_by(cx, pair.rto_at, slot);
        self.enqueue(cx, slot);
    }

    fn on_control_timer(&mut self, cx: &mut Context<'_>, slot: u32) {
        let Some(pair) = self.senders.get_mut(slot) else {
            return;
        };
        (pair.control_timer, pair.control_at) = (None, Time::MAX);
        pair.control.on_timer(cx.now());
        self.follow_control(cx, slot);
        self.enqueue(cx, slot);
    }
}

impl<C: Control> Endpoint for RdmaHost<C> {
    type Shared = ();

    fn measure(&self, measured: &mut Measured) {
        let Some(dasr) = &self.dasr else {
            let receivers = self.receivers.iter();
            return receivers.for_each(|receiver| measured.sender(receiver.src));
        };
        for (host, announced) in dasr.active_senders() {
            if announced {
                measured.announced(host);
            } else {
                measured.sender(host);
            }
        }
    }

    fn on_start(&mut self, cx: &mut Context<'_>, id: FlowId) {
        let spec = *cx.flow(id);
        let line_bps = cx.nic_rate_bps(cx.me()) as f64;
        let path = PathFacts {
            line_bps,
            receiver_bps: cx.nic_rate_bps(spec.dst) as f64,
            base_rtt: self.config.base_rtt,
            begins: cx.now(),
        };
        let mss_bytes = u64::from(cx.framing().mss_bytes);
        let slot = self.senders.insert(QueuePair {
            id,
            dst: spec.dst,
            path_hash: cx.path_hash(id, false),
            // A later class, if the application asks for one.
            class: spec.class.max(if spec.bytes <= self.config.short_bytes {
                self.config.data_class
            } else {
                self.config.long_class
            }),
            queued: false,
            done: false,
            turn_at: Time::ZERO,
            late: Span::ZERO,
            sent_at: Time::ZERO,
            sent_bits: 0.0,
            gap: Span::ZERO,
            gap_rate_bps: 0.0,
            line_bps,
            sequence: Sequence::new(self.config.recovery, mss_bytes, spec.bytes),
            control: C::new(&self.config.control, path),
            rto_at: Time::MAX,
            control_timer: None,
            control_at: Time::MAX,
        });
        if slot as usize >= self.rto_timers.len() {
            self.rto_timers.push(RtoTimer::OFF);
        }
        cx.set_slot(id, Side::Sender, slot);
        self.follow_control(cx, slot);
        self.enqueue(cx, slot);
    }

    fn on_stop(&mut self, cx: &mut Context<'_>, id: FlowId) {
        let slot = cx.slot(id, Side::Sender);
        if let Some(pair) = self.senders.get_mut(slot).filter(|pair| pair.id == id) {
            pair.sequence.stop();
            self.enqueue(cx, slot);
        }
    }

    #[inline]
    fn on_packet(&mut self, cx: &mut Context<'_>, packet: &mut Packet) {
        match packet.kind {
            PacketKind::Ack => self.on_ack(cx, packet),
            PacketKind::Cnp => {
                let slot = cx.slot(packet.flow, Side::Sender);
                let pair = self.senders.get_mut(slot);
                if let Some(pair) = pair.filter(|pair| pair.id == packet.flow && !pair.done) {
                    pair.control.on_cnp(cx.now());
                    self.follow_control(cx, slot);
                    self.enqueue(cx, slot);
                }
            }
            PacketKind::Notice => {
                let Some(notice) = Notice::of(packet) else {
                    return;
                };
                let Some(slot) = cx.find_slot(notice.flow, Side::Sender) else {
                    return;
                };
                let pair = self.senders.get_mut(slot);
                if let Some(pair) = pair.filter(|pair| pair.id == notice.flow && !pair.done) {
                    pair.control.on_notice(cx.now(), notice.value, packet.src);
                    self.follow_control(cx, slot);
                    self.enqueue(cx, slot);
                }
            }
            _ => self.on_data(cx, packet),
        }
    }

    fn on_timer(&mut self, cx: &mut Context<'_>, timer: Timer) {
        match timer.kind {
            RTO => self.on_rto(cx, timer.slot),
            _ => self.on_control_timer(cx, timer.slot),
        }
    }

    #[inline]
    fn rate_bps(&self, slot: u32) -> Option<f64> {
        self.control(slot).map(C::rate_bps)
    }

    fn pull(&mut self, cx: &mut Context<'_>) -> Pull {
        let now = cx.now();
        let open = cx.open_classes();
        self.arbiter.release(open);
        loop {
            let slot = match self.arbiter.next(now) {
                Turn::Slot(slot) => slot,
                Turn::At(at) => return Pull::At(at),
                Turn::Nothing => return Pull::Nothing,
            };
            let Some(pair) = self.senders.get_mut(slot) else {
                continue;
            };
            if pair.done {
                self.senders.remove(slot);
                continue;
            }
            if !open.contains(pair.class.into()) {
                let remaining = pair.sequence.limit - pair.sequence.una;
                pair.turn_at = Time::ZERO;
                self.arbiter.hold(slot, remaining, pair.class);
                continue;
            }
            pair.queued = false;
            let window_bytes = pair.control.window_bytes();
            let Some(outgoing) = pair.sequence.peek(window_bytes) else {
                continue;
            };
            let at = pair.next_at();
            if at > now {
                // The rate has fallen since its turn was set.
                pair.queued = true;
                pair.turn_at = at;
                let remaining = pair.sequence.limit - pair.sequence.una;
                self.arbiter.ready_at(slot, remaining, at);
                continue;
            }
            pair.sequence.sent(outgoing);
            let more = pair.sequence.peek(window_bytes).is_some();
            let framing = cx.framing();
            // A window that is about to close would wait for an acknowledgement that covers several
            // packets in vain.
            let one_ack_bytes = u64::from(self.config.ack_every) * u64::from(framing.mss_bytes);
            let asks = !more || window_bytes < 2 * one_ack_bytes;
            let payload = outgoing.bytes as u16;
            let mut packet = Packet {
                kind: PacketKind::Data,
                flow: pair.id,
                src: cx.me(),
                dst: pair.dst,
                seq: outgoing.seq,
                ack: asks.into(),
                payload_bytes: payload,
                wire_bytes: (framing.wire_bytes(payload)).saturating_add(self.config.stamp_bytes),
                path_hash: pair.path_hash,
                stamp: now,
                class: pair.class,
                ..Packet::default()
            };
            if C::MARKS {
                packet.flags.insert(Flags::ECT);
            }
            if C::TELEMETRY == Telemetry::Asked {
                packet.flags.insert(Flags::INT);
                packet.wire_bytes = packet.wire_bytes.saturating_add(self.config.int_bytes);
            }
            if outgoing.again {
                packet.flags.insert(Flags::RETRANSMIT);
                cx.retransmitted(pair.id);
            }
            if packet.end() == pair.sequence.limit {
                packet.flags.insert(Flags::FIN);
            }
            if let Some(most) = self.config.source_mark_bytes {
                let rate_bps = pair.control.rate_bps().min(pair.line_bps);
                let due = pair.sent_at + Span::from_secs_f64(pair.sent_bits / rate_bps);
                // One that has a turn on time has made up for what it waited before.
                pair.late = if now > due && pair.sent_bits > 0.0 {
                    pair.late + now.since(due)
                } else {
                    Span::ZERO
                };
                let behind = pair.late.as_secs_f64() * rate_bps / 8.0;
                if behind > most as f64 {
                    self.counts.source_marks += 1;
                    packet.flags.insert(Flags::CE);
                }
            }
            if outgoing.seq == 0 && self.config.dasr.is_some_and(|dasr| dasr.look_ahead) {
                Self::announce(cx, &mut packet);
            }
            if let Some(header) = pair.control.header() {
                cx.attach_extension(&mut packet, Extension::Rcp(header));
            }
            pair.control.on_sent(now, packet.wire_bytes);
            pair.sent_at = now;
            pair.sent_bits = f64::from(packet.wire_bytes) * 8.0;
            // Of another packet; it is computed anew.
            pair.gap_rate_bps = 0.0;
            if pair.rto_at == Time::MAX {
                pair.rto_at = now + Self::rto(&self.config, pair, framing.mss_bytes);
                self.rto_timers[slot as usize].fire_by(cx, pair.rto_at, slot);
            }
            if more {
                pair.queued = true;
                let remaining = pair.sequence.limit - pair.sequence.una;
                let at = pair.next_at();
                if at > now {
                    pair.turn_at = at;
                    self.arbiter.ready_at(slot, remaining, at);
                } else {
                    pair.turn_at = Time::ZERO;
                    self.arbiter.again(slot, remaining);
                }
            }
            self.follow_control(cx, slot);
            return self.arbiter.pulled(packet);
        }
    }
}
