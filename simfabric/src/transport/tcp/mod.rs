//! TCP: a window per flow, selective acknowledgements, one acknowledgement per packet.
//!
//! | file | what |
//! |---|---|
//! | `sender` | both sides of a flow: window, scoreboard, recovery; reassembly |
//! | [`rtt`] | round-trip time and time-out (RFC 6298) |
//! | [`stream`] | a connection that carries real bytes |
//! | [`congestion`] | how large the window is: NewReno, CUBIC, DCTCP, XCP, pFabric |
//!
//! There is no handshake: a flow's first packets leave when it starts, as on a connection that is
//! kept open, which is how the papers' flowlets run (flowtune §6.3). The connection closes without
//! packets of its own.

pub mod congestion;
pub mod rtt;
mod sender;
pub mod stream;

use std::collections::VecDeque;

use ratewright_topology::HostId;

use self::congestion::Congestion;
use self::sender::{Ack, TcpReceiver, TcpSender};
use crate::cache::prefetch;
use crate::ext::Extension;
use crate::flow::FlowId;
use crate::packet::{Flags, Packet, PacketKind};
use crate::time::{Span, Time};
use crate::transport::{Context, TimerId, Transport};

/// Parameters of every flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TcpConfig<C> {
    /// Packets before the first acknowledgement (RFC 6928: 10).
    pub initial_window_packets: u32,
    /// Least retransmission time-out.
    pub min_rto: Span,
    /// Retransmission time-out before the first measurement.
    pub initial_rto: Span,
    /// Fixed retransmission time-out, which replaces measurement and back-off (pFabric §4.3).
    pub fixed_rto: Option<Span>,
    /// True if a flow begins with a SYN and its answer, as TCP connections do.
    pub handshake: bool,
    /// Step of the clock that packets are stamped with; a round trip within one step counts as 1
    /// µs. Zero: exact. Linux' and ns-3's time stamps are in milliseconds.
    pub stamp_step: Span,
    /// True if packets may be marked instead of dropped.
    pub ecn: bool,
    /// Packets in a host's NIC from which its flows wait, each in its turn, as in Linux (TCP small
    /// queues). Without it a window grows into the sender's own NIC, where no queue marks or drops.
    pub nic_limit_packets: u32,
    /// Parameters of the congestion control.
    pub control: C,
}

impl<C: Default> Default for TcpConfig<C> {
    fn default() -> Self {
        Self {
            initial_window_packets: 10,
            min_rto: Span::from_ms(200),
            initial_rto: Span::from_ms(1_000),
            fixed_rto: None,
            handshake: false,
            stamp_step: Span::ZERO,
            ecn: false,
            nic_limit_packets: 10,
            control: C::default(),
        }
    }
}

impl<C: Default> TcpConfig<C> {
    /// Makes parameters for round trips of microseconds: time-outs of at least 200 µs, and 1 ms
    /// before the first measurement.
    #[must_use]
    pub fn datacenter() -> Self {
        Self {
            min_rto: Span::from_us(200),
            initial_rto: Span::from_ms(1),
            ..Self::default()
        }
    }
}

impl<C> TcpConfig<C> {
    /// Returns the round-trip time of a packet as its sender's clock measures it.
    #[inline]
    fn round_trip(&self, stamp: Time, now: Time) -> Span {
        if self.stamp_step == Span::ZERO {
            return now.since(stamp);
        }
        let steps = now.0 / self.stamp_step.0 - stamp.0 / self.stamp_step.0;
        if steps == 0 {
            Span::from_us(1)
        } else {
            Span(steps * self.stamp_step.0)
        }
    }
}

#[derive(Debug)]
struct TcpFlow<C> {
    sender: TcpSender<C>,
    timer: Option<TimerId>,
    path_hash: u16,
    src: HostId,
    dst: HostId,
    /// True until the handshake's answer has come; no data is sent before.
    handshaking: bool,
    /// True if it waits in its host's queue.
    held_back: bool,
    /// True if the window stopped the flow when it last sent.
    window_limited: bool,
    /// Time-outs since the last acknowledgement of anything.
    time_outs_in_a_row: u32,
}

/// Queue of a host's flows that wait for its NIC.
#[derive(Debug, Default)]
struct FlowQueue {
    flows: VecDeque<FlowId>,
    timer_set: bool,
}

/// Mark of host timers' tokens; those of flows are flow numbers below it.
const HOST_TIMER: u64 = 1 << 32;

/// TCP with a congestion control, for all flows of a run.
#[derive(Debug)]
pub struct Tcp<C: Congestion> {
    config: TcpConfig<C::Config>,
    flows: Vec<TcpFlow<C>>,
    receivers: Vec<TcpReceiver>,
    /// Queues by host.
    queues: Vec<FlowQueue>,
    time_outs: u64,
}

impl<C: Congestion> Tcp<C> {
    /// Makes the scheme without flows.
    #[must_use]
    pub fn new(config: TcpConfig<C::Config>) -> Self {
        Self {
            config,
            flows: Vec::new(),
            receivers: Vec::new(),
            queues: Vec::new(),
            time_outs: 0,
        }
    }

    /// Adds a flow, which may begin later.
    fn prepare(&mut self, cx: &Context<'_>, id: FlowId) {
        let spec = *cx.flow(id);
        let mss_bytes = u64::from(cx.framing().mss_bytes);
        let initial = mss_bytes * u64::from(self.config.initial_window_packets);
        let control = C::new(&self.config.control, mss_bytes, initial);
        self.flows.push(TcpFlow {
            sender: TcpSender::new(control, self.config.initial_rto, mss_bytes, spec.bytes),
            timer: None,
            path_hash: cx.path_hash(id, false),
            src: spec.src,
            dst: spec.dst,
            handshaking: self.config.handshake,
            held_back: false,
            window_limited: false,
            time_outs_in_a_row: 0,
        });
        self.receivers.push(TcpReceiver::default());
    }

    /// Sends the packets that window and NIC allow, and sets the timer.
    #[inline]
    fn transmit(&mut self, cx: &mut Context<'_>, id: FlowId) {
        if self.flows[id.index()].held_back {
            return;
        }
        let src = self.flows[id.index()].src;
        // First come, first served: a flow with a free window may not overtake those that wait for
        // the NIC.
        let others_wait = !self.queues[src.index()].flows.is_empty();
        if others_wait || !self.send_allowed(cx, id) {
            self.enqueue_flow(cx, id);
        }
    }

    /// Sends packets. Returns true when the window is full or the flow has no more, and false when
    /// the NIC is full.
    #[inline]
    fn send_allowed(&mut self, cx: &mut Context<'_>, id: FlowId) -> bool {
        let now = cx.now();
        let framing = cx.framing();
        let limit_bytes = u64::from(self.config.nic_limit_packets)
            * u64::from(framing.wire_bytes(framing.mss_bytes));
        let flow = &mut self.flows[id.index()];
        let mut nic_is_full = false;
        while let Some(segment) = flow.sender.peek_segment() {
            if cx.nic_backlog_bytes(flow.src) >= limit_bytes {
                nic_is_full = true;
                break;
            }
            flow.sender.sent(now, segment);
            let payload = segment.bytes as u16;
            let mut flags = Flags::NONE;
            if self.config.ecn {
                flags.insert(Flags::ECT);
            }
            if segment.again {
                flags.insert(Flags::RETRANSMIT);
                cx.retransmitted(id);
            }
            let mut packet = Packet {
                kind: PacketKind::Data,
                flow: id,
                src: flow.src,
                dst: flow.dst,
                seq: segment.seq,
                // What is left to be acknowledged: pFabric's switches go by it.
                ack: flow.sender.limit - flow.sender.una,
                payload_bytes: payload,
                wire_bytes: framing.wire_bytes(payload),
                flags,
                path_hash: flow.path_hash,
                stamp: now,
                ..Packet::default()
            };
            if packet.end() == flow.sender.limit {
                packet.flags.insert(Flags::FIN);
            }
            let smoothed = flow.sender.rtt.smoothed();
            if let Some(header) = flow.sender.control.congestion_header(smoothed) {
                cx.attach_extension(&mut packet, Extension::Xcp(header));
            }
            cx.send(flow.src, packet);
        }
        // A flow that the NIC stopped or that ran out of data has not tested its window.
        flow.window_limited = !nic_is_full && flow.sender.next < flow.sender.limit;
        // RFC 6298 §5.1: the timer runs while anything is unacknowledged.
        if flow.timer.is_none() && !flow.sender.is_idle() {
            let rto = self.config.fixed_rto.unwrap_or(flow.sender.rtt.rto());
            flow.timer = Some(cx.timer_in(rto, u64::from(id.0)));
        }
        !nic_is_full
    }

    /// Appends a flow to its host's queue.
    fn enqueue_flow(&mut self, cx: &mut Context<'_>, id: FlowId) {
        let flow = &mut self.flows[id.index()];
        if flow.sender.peek_segment().is_none() {
            return;
        }
        flow.held_back = true;
        flow.window_limited = false;
        let host = flow.src;
        self.queues[host.index()].flows.push_back(id);
        self.arm_host_timer(cx, host);
    }

    /// Sets a host's timer to the time at which its NIC has room for a packet.
    fn arm_host_timer(&mut self, cx: &mut Context<'_>, host: HostId) {
        let queue = &mut self.queues[host.index()];
        if queue.timer_set || queue.flows.is_empty() {
            return;
        }
        queue.timer_set = true;
        let framing = cx.framing();
        let packet_bytes = u64::from(framing.wire_bytes(framing.mss_bytes));
        let limit_bytes = u64::from(self.config.nic_limit_packets) * packet_bytes;
        // Until one packet fits below the limit.
        let above = cx.nic_backlog_bytes(host).saturating_sub(limit_bytes) + packet_bytes;
        let picoseconds =
            u128::from(above) * 8 * 1_000_000_000_000 / u128::from(cx.nic_rate_bps(host).max(1));
        let token = HOST_TIMER | u64::from(host.0);
        cx.timer_in(Span(picoseconds as u64), token);
    }

    /// Lets the flows of a host's queue send in turn, because its NIC has room.
    fn serve_queue(&mut self, cx: &mut Context<'_>, host: HostId) {
        // Cleared first, since `enqueue_flow` arms the timer again.
        self.queues[host.index()].timer_set = false;
        while let Some(id) = self.queues[host.index()].flows.pop_front() {
            self.flows[id.index()].held_back = false;
            if !self.send_allowed(cx, id) {
                self.enqueue_flow(cx, id);
                break;
            }
        }
        self.arm_host_timer(cx, host);
    }

    /// Sends an empty packet to elicit an acknowledgement, and sets the timer to repeat it.
    fn probe(&mut self, cx: &mut Context<'_>, id: FlowId) {
        let flow = &mut self.flows[id.index()];
        let packet = Packet {
            kind: if flow.handshaking {
                PacketKind::Syn
            } else {
                PacketKind::Probe
            },
            flow: id,
            src: flow.src,
            dst: flow.dst,
            seq: flow.sender.una,
            wire_bytes: cx.framing().wire_bytes(0),
            path_hash: flow.path_hash,
            stamp: cx.now(),
            ..Packet::default()
        };
        let rto = self.config.fixed_rto.unwrap_or(flow.sender.rtt.rto());
        flow.timer = Some(cx.timer_in(rto, u64::from(id.0)));
        cx.send(flow.src, packet);
    }

    fn on_ack(&mut self, cx: &mut Context<'_>, mut packet: Packet) {
        let extension = cx.take_extension(&mut packet);
        let flow = &mut self.flows[packet.flow.index()];
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
            blocks,
        };
        // Any acknowledgement shows that the path works, even one that acknowledges no new data.
        flow.time_outs_in_a_row = 0;
        if std::mem::replace(&mut flow.handshaking, false)
            && let Some(timer) = flow.timer.take()
        {
            cx.cancel(timer);
        }
        let limited = flow.window_limited;
        let advanced = flow
            .sender
            .on_ack(cx.now(), &ack, self.config.min_rto, limited);
        // RFC 6298 §5.2, §5.3: off when all is acknowledged, restarted by every advance.
        if advanced && let Some(timer) = flow.timer.take() {
            if flow.sender.is_idle() {
                cx.cancel(timer);
            } else {
                let rto = self.config.fixed_rto.unwrap_or(flow.sender.rtt.rto());
                flow.timer = cx.move_timer(timer, cx.now() + rto);
            }
        }
        self.transmit(cx, packet.flow);
    }

    fn on_data(&mut self, cx: &mut Context<'_>, host: HostId, mut packet: Packet) {
        let receiver = &mut self.receivers[packet.flow.index()];
        let (in_order, blocks) = receiver.on_segment(packet.seq, packet.end());
        let expected = receiver.expected;
        if in_order > 0 {
            cx.delivered(packet.flow, in_order);
            if expected == self.flows[packet.flow.index()].sender.limit {
                cx.complete(packet.flow);
            }
        }
        let mut reply = cx.reply(&packet);
        reply.ack = expected;
        // Selective acknowledgements first: a window that stands still needs no feedback.
        if !blocks.is_empty() {
            cx.attach_extension(&mut reply, Extension::Sack(blocks));
        } else if let Some(header @ Extension::Xcp(_)) = cx.take_extension(&mut packet) {
            cx.attach_extension(&mut reply, header);
        }
        cx.send(host, reply);
    }
}

impl<C: Congestion> Transport for Tcp<C> {
    fn on_begin(&mut self, cx: &mut Context<'_>) {
        self.queues
            .resize_with(cx.hosts() as usize, FlowQueue::default);
    }

    fn on_start(&mut self, cx: &mut Context<'_>, id: FlowId) {
        // In windows, flows of other regions may start first, with higher numbers.
        while self.flows.len() <= id.index() {
            let next = FlowId(self.flows.len() as u32);
            self.prepare(cx, next);
        }
        if self.config.handshake {
            self.probe(cx, id);
        } else {
            self.transmit(cx, id);
        }
    }

    fn on_stop(&mut self, cx: &mut Context<'_>, id: FlowId) {
        let sender = &mut self.flows[id.index()].sender;
        sender.limit = sender.next;
        // All sent bytes may have arrived already; then no data packet comes to complete the flow.
        if self.receivers[id.index()].expected == sender.limit {
            cx.complete(id);
        }
    }

    fn on_packet(&mut self, cx: &mut Context<'_>, host: HostId, packet: Packet) {
        match packet.kind {
            PacketKind::Ack => self.on_ack(cx, packet),
            _ => self.on_data(cx, host, packet),
        }
    }

    #[inline]
    fn prefetch(&self, packet: &Packet) {
        let flow = packet.flow.index();
        if packet.kind == PacketKind::Ack {
            self.flows.get(flow).map(prefetch::<_, 8>);
            self.queues.get(packet.dst.index()).map(prefetch::<_, 2>);
        } else {
            self.receivers.get(flow).map(prefetch::<_, 2>);
            let limit = self.flows.get(flow).map(|f| &f.sender.limit);
            limit.map(prefetch::<_, 1>);
        }
    }

    #[inline]
    fn prefetch_again(&self, packet: &Packet) -> Option<TimerId> {
        let flow = self.flows.get(packet.flow.index())?;
        flow.timer.filter(|_| packet.kind == PacketKind::Ack)
    }

    #[inline]
    fn prefetch_timer(&self, token: u64, step: u32) -> Option<HostId> {
        if token & HOST_TIMER == 0 {
            self.flows.get(token as usize).map(prefetch::<_, 8>);
            return None;
        }
        let host = HostId(token as u32);
        let queue = self.queues.get(host.index())?;
        // Where the first flow's number is can be said without reading it.
        let first = queue.flows.as_slices().0.first();
        match step {
            0 => prefetch::<_, 2>(queue),
            1 => prefetch::<_, 1>(first?),
            _ => prefetch::<_, 8>(self.flows.get(first?.index())?),
        }
        Some(host)
    }

    fn on_timer(&mut self, cx: &mut Context<'_>, token: u64) {
        if token & HOST_TIMER != 0 {
            return self.serve_queue(cx, HostId(token as u32));
        }
        let id = FlowId(token as u32);
        let flow = &mut self.flows[id.index()];
        flow.timer = None;
        if flow.handshaking {
            self.time_outs += 1;
            flow.sender.rtt.back_off();
            return self.probe(cx, id);
        }
        if flow.sender.is_idle() {
            return;
        }
        self.time_outs += 1;
        flow.time_outs_in_a_row = flow.time_outs_in_a_row.saturating_add(1);
        flow.sender.on_time_out(cx.now());
        if flow.time_outs_in_a_row > C::PROBE_AFTER {
            self.probe(cx, id);
        } else {
            self.transmit(cx, id);
        }
    }

    /// A receiver also reads the number of bytes of its flow. Only [`on_stop`](Transport::on_stop)
    /// changes it, in a global event, when all hosts are at the same time.
    fn is_local(&self) -> bool {
        true
    }

    fn summary(&self) -> Vec<(&'static str, f64)> {
        vec![("time_outs", self.time_outs as f64)]
    }
}
