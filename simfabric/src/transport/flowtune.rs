//! Flowtune: rates from the production allocator, over production sessions, packet by packet
//! (NSDI 2017, §5.3).
//!
//! Every host has an [`Endpoint`]; the allocator's node, attached to the spines by its own links,
//! runs an [`AllocatorNode`]. Their messages travel as real datagrams ([`Extension::Bytes`]) or in
//! real TCP segments ([`Extension::Segment`]), which take their time on links, wait in queues and
//! are dropped there like any other packet.
//!
//! A flowlet starts like a TCP connection and is reported at once. Its first rate opens the window,
//! and from then on it is paced ([`crate::transport::paced`]). Its end is reported when its last
//! byte is acknowledged. When a host's lease expires, its flows go back to their windows.
//!
//! | choice | why |
//! |---|---|
//! | control over datagrams unless [`Carrier::Tcp`] is asked for, which the paper's ns-2 model has | production endpoints use them; the sessions repair losses by newest state (flowtune §5.1) |
//! | initial window of 10 packets | RFC 6928; the paper does not give its own |
//! | an allocation bounds bytes on the wire | link capacities do, and headers take their share |

use std::sync::Arc;

use rand::RngExt as _;
use ratewright_topology::{HostId, Topology};

use self::streams::{Side, Streams};
use super::paced::{FlowMap, PacedReceiver, PacedSender, SenderConfig, receive};
use super::tcp::stream::StreamConfig;
use super::{Context, TimerId, Transport};
use crate::control::allocator::AllocatorNode;
use crate::control::endpoint::{Endpoint, FlowletStart, Notice};
use crate::control::{
    Carrier, ControlConfig, ControlError, ControlTraffic, PREAMBLE_AND_GAP_BYTES,
    datagram_wire_bytes,
};
use crate::ext::{Extension, StreamSegment};
use crate::flow::{FlowId, FlowSpec};
use crate::packet::{Flags, Packet, PacketKind};
use crate::time::Time;

mod streams;

/// Settings of the scheme.
#[derive(Clone, Debug, Default)]
pub struct FlowtuneConfig {
    /// Control plane. Over TCP, sessions wait longer for each other, see
    /// [`ControlConfig::over_tcp`].
    pub control: ControlConfig,
    /// Transport of control messages.
    pub carrier: Carrier,
    /// TCP connections of the control plane, if it uses TCP.
    pub stream: StreamConfig,
    /// Senders of data.
    pub sender: SenderConfig,
    /// True if a flow begins with a SYN and its answer, as TCP connections do. The allocator is
    /// notified in parallel (flowtune §5.3, *Servers*).
    pub handshake: bool,
    /// Priority class of control packets; 0 goes first. Where it differs from that of data, the
    /// fabric's queues need a class for each.
    pub control_priority: u8,
    /// Priority class of data and acknowledgements.
    pub data_priority: u8,
    /// Share of control packets that is lost on arrival, on top of queues' drops.
    pub control_loss: f64,
    /// Begin of that loss.
    pub control_loss_from: Time,
    /// End of that loss; `None`: never.
    pub control_loss_until: Option<Time>,
}

struct FlowtuneFlow {
    sender: PacedSender,
    spec: FlowSpec,
    /// Id of the flow in the session; `None` if the endpoint's table was full.
    id: Option<ratewright_proto::FlowId>,
    timer: Option<TimerId>,
    /// True until the handshake's answer has come; no data is sent before.
    handshaking: bool,
}

struct FlowtuneHost {
    endpoint: Endpoint,
    /// Timers of the endpoint, and of the allocator's session of this host.
    timers: [Option<TimerId>; 2],
    /// True if a timer for the lease is set.
    lease_watched: bool,
}

/// Purpose of a timer, in the high byte of its token.
#[derive(Clone, Copy)]
#[repr(u8)]
enum TimerKind {
    Flow,
    Endpoint,
    Session,
    Lease,
    Reconnect,
    Iterate,
    HostStream,
    AllocatorStream,
}

impl TimerKind {
    const fn token(self, of: u32) -> u64 {
        // The low word holds the number of a flow or host.
        (self as u64) << 56 | of as u64
    }

    const fn of(token: u64) -> Option<(Self, u32)> {
        let alarm = match token >> 56 {
            0 => Self::Flow,
            1 => Self::Endpoint,
            2 => Self::Session,
            3 => Self::Lease,
            4 => Self::Reconnect,
            5 => Self::Iterate,
            6 => Self::HostStream,
            7 => Self::AllocatorStream,
            _ => return None,
        };
        Some((alarm, token as u32))
    }

    const fn of_stream(side: Side) -> Self {
        match side {
            Side::Host => Self::HostStream,
            Side::Allocator => Self::AllocatorStream,
        }
    }
}

/// The scheme; see the [module](self).
pub struct Flowtune {
    config: FlowtuneConfig,
    allocator: AllocatorNode,
    hosts: Vec<FlowtuneHost>,
    /// TCP connections, if control messages use TCP.
    streams: Option<Streams>,
    senders: FlowMap<FlowtuneFlow>,
    receivers: FlowMap<PacedReceiver>,
    iteration_planned: bool,
    failed_handshakes: u64,
    lost_control_packets: u64,
    scratch: Vec<u8>,
    outbox: Vec<(u32, Vec<u8>)>,
    rearm: Vec<(u32, Option<u64>)>,
}

impl Flowtune {
    /// Makes the scheme on a topology, with every host connected to the allocator.
    ///
    /// # Errors
    /// Settings that the engine refuses.
    pub fn new(topology: &Arc<Topology>, config: FlowtuneConfig) -> Result<Self, ControlError> {
        let mut config = config;
        let count = topology.hosts().len() as u32;
        let streams = (config.carrier == Carrier::Tcp).then(|| {
            config.control = config.control.clone().over_tcp();
            Streams::new(count, config.stream, config.control_priority)
        });
        let mut allocator = AllocatorNode::new(Arc::clone(topology), &config.control)?;
        let hosts = (0..count)
            .map(|host| {
                let mut endpoint = Endpoint::new(host, &config.control);
                allocator.connect(0, host, &mut endpoint)?;
                Ok(FlowtuneHost {
                    endpoint,
                    timers: [None; 2],
                    lease_watched: false,
                })
            })
            .collect::<Result<Vec<_>, ControlError>>()?;
        Ok(Self {
            config,
            allocator,
            hosts,
            streams,
            senders: FlowMap::default(),
            receivers: FlowMap::default(),
            iteration_planned: false,
            failed_handshakes: 0,
            lost_control_packets: 0,
            scratch: Vec::new(),
            outbox: Vec::new(),
            rearm: Vec::new(),
        })
    }

    /// Returns the allocator.
    #[must_use]
    pub fn allocator(&self) -> &AllocatorNode {
        &self.allocator
    }

    /// Returns the endpoint of a host.
    #[must_use]
    pub fn endpoint(&self, host: HostId) -> &Endpoint {
        &self.hosts[host.index()].endpoint
    }

    /// Returns the control traffic so far: from the hosts, and from the allocator.
    #[must_use]
    pub fn control_traffic(&self) -> [ControlTraffic; 2] {
        if let Some(streams) = &self.streams {
            return streams.traffic();
        }
        let mut from_hosts = ControlTraffic::default();
        for host in &self.hosts {
            from_hosts = from_hosts.plus(host.endpoint.sent());
        }
        [from_hosts, *self.allocator.sent()]
    }

    /// Returns the largest load over capacity of any link that the last iteration handed out.
    #[must_use]
    pub fn largest_link_load(&self) -> f64 {
        let (mut loads, mut capacities) = (Vec::new(), Vec::new());
        self.allocator.engine().link_loads(&mut loads);
        self.allocator.engine().link_capacities(&mut capacities);
        let shares = loads.iter().zip(&capacities).map(|(load, of)| load / of);
        shares.fold(0.0, f64::max)
    }

    /// Returns the number of flowlets whose last byte is not acknowledged.
    #[must_use]
    pub fn active(&self) -> usize {
        self.senders.len()
    }

    /// Returns the rate that a flow is paced at; 0 before its first and without one.
    #[must_use]
    pub fn rate_bps(&self, flow: FlowId) -> u64 {
        self.senders
            .get(flow)
            .map_or(0, |flow| flow.sender.rate_bps())
    }

    /// Sends what a flow may send now, and sets its timer.
    fn transmit(&mut self, cx: &mut Context<'_>, id: FlowId) {
        let Some(flow) = self.senders.get_mut(id) else {
            return;
        };
        if flow.handshaking {
            return;
        }
        let framing = cx.framing();
        let now = cx.now();
        let wire = |payload| framing.wire_bytes(payload);
        while let Some(segment) = flow.sender.poll(&self.config.sender, now, wire) {
            let mut flags = Flags::NONE;
            if segment.last {
                flags.insert(Flags::FIN);
            }
            if segment.retransmit {
                flags.insert(Flags::RETRANSMIT);
                cx.retransmitted(id);
            }
            let packet = Packet {
                kind: PacketKind::Data,
                flow: id,
                src: flow.spec.src,
                dst: flow.spec.dst,
                path_hash: cx.path_hash(id, false),
                seq: segment.seq,
                stamp: now,
                payload_bytes: segment.payload_bytes,
                wire_bytes: framing.wire_bytes(segment.payload_bytes),
                flags,
                priority: self.config.data_priority,
                ..Packet::default()
            };
            cx.send(flow.spec.src, packet);
        }
        if let Some(at) = flow.sender.deadline(&self.config.sender) {
            set_timer(cx, &mut flow.timer, at, TimerKind::Flow.token(id.0));
        }
    }

    /// Sends a SYN, and sets a timer to repeat it.
    fn send_syn(&mut self, cx: &mut Context<'_>, id: FlowId) {
        let Some(flow) = self.senders.get_mut(id) else {
            return;
        };
        let packet = Packet {
            kind: PacketKind::Syn,
            flow: id,
            src: flow.spec.src,
            dst: flow.spec.dst,
            path_hash: cx.path_hash(id, false),
            stamp: cx.now(),
            wire_bytes: cx.framing().wire_bytes(0),
            priority: self.config.data_priority,
            ..Packet::default()
        };
        cx.send(flow.spec.src, packet);
        let again = cx.now() + self.config.sender.initial_rto;
        set_timer(cx, &mut flow.timer, again, TimerKind::Flow.token(id.0));
    }

    /// Handles the answer to the SYN: data may leave.
    fn on_handshake_reply(&mut self, cx: &mut Context<'_>, id: FlowId) {
        if let Some(flow) = self.senders.get_mut(id)
            && std::mem::replace(&mut flow.handshaking, false)
        {
            if let Some(timer) = flow.timer.take() {
                cx.cancel(timer);
            }
            self.transmit(cx, id);
        }
    }

    /// Ends a flow whose last byte is acknowledged, and reports the end.
    fn finish_if_done(&mut self, cx: &mut Context<'_>, id: FlowId) {
        let done = self
            .senders
            .get(id)
            .is_some_and(|flow| flow.sender.is_done(&self.config.sender));
        if done && let Some(flow) = self.senders.remove(id) {
            if let Some(timer) = flow.timer {
                cx.cancel(timer);
            }
            if let Some(name) = flow.id {
                let host = flow.spec.src;
                let endpoint = &mut self.hosts[host.index()].endpoint;
                endpoint.end(cx.now().as_ns(), name);
                // The end notice is a datagram that leaves now.
                self.drive_endpoint(cx, host);
            }
        }
    }

    fn control_packet(
        &self,
        cx: &Context<'_>,
        src: HostId,
        dst: HostId,
        host: u32,
        len: usize,
    ) -> Packet {
        // Without preamble and gap, a fabric's smallest packet is Ethernet's smallest frame.
        let counted = u32::from(cx.framing().min_wire_bytes.saturating_sub(64));
        let wire = datagram_wire_bytes(len) - PREAMBLE_AND_GAP_BYTES + counted;
        Packet {
            kind: PacketKind::Control,
            src,
            dst,
            // Each session keeps to one spine: its datagrams stay in order.
            path_hash: host as u16,
            wire_bytes: wire as u16,
            priority: self.config.control_priority,
            ..Packet::default()
        }
    }

    /// Polls a host's endpoint for notices to its flows and datagrams to the allocator.
    fn drive_endpoint(&mut self, cx: &mut Context<'_>, host: HostId) {
        let now_ns = cx.now().as_ns();
        while let Some(notice) = self.hosts[host.index()].endpoint.poll_notice() {
            match notice {
                Notice::Rate(granted) => {
                    let id = FlowId(granted.flow);
                    if let Some(flow) = self.senders.get_mut(id) {
                        flow.sender.set_rate(cx.now(), granted.rate_bps);
                        self.transmit(cx, id);
                    }
                    self.watch_lease(cx, host);
                }
                Notice::Lost => {
                    let at = Time::from_ns(now_ns.saturating_add(self.config.control.reconnect_ns));
                    cx.timer(at, TimerKind::Reconnect.token(host.0));
                }
            }
        }
        let Some(allocator) = cx.allocator() else {
            return;
        };
        let mut scratch = std::mem::take(&mut self.scratch);
        while self.hosts[host.index()]
            .endpoint
            .poll_datagram(now_ns, &mut scratch)
        {
            if let Some(streams) = &mut self.streams {
                streams.write(Side::Host, host, &scratch);
                continue;
            }
            let mut packet = self.control_packet(cx, host, allocator, host.0, scratch.len());
            let mut bytes = cx.extensions().buffer();
            bytes.extend_from_slice(&scratch);
            cx.attach_extension(&mut packet, Extension::Bytes(bytes));
            cx.send(host, packet);
        }
        self.scratch = scratch;
        self.flush(cx, Side::Host, host);
        let entry = &mut self.hosts[host.index()];
        if let Some(at_ns) = entry.endpoint.next_timeout_ns() {
            // Never in the present nanosecond: the timer would fire again and again without time
            // going on.
            let at = Time::from_ns(at_ns.max(now_ns + 1));
            set_timer(
                cx,
                &mut entry.timers[0],
                at,
                TimerKind::Endpoint.token(host.0),
            );
        }
    }

    /// Polls the allocator for datagrams, and schedules the next iteration if one is needed.
    fn drive_allocator(&mut self, cx: &mut Context<'_>) {
        let Some(allocator) = cx.allocator() else {
            return;
        };
        let now_ns = cx.now().as_ns();
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut outbox = std::mem::take(&mut self.outbox);
        let mut rearm = std::mem::take(&mut self.rearm);
        self.allocator.poll_datagrams(
            now_ns,
            &mut scratch,
            &mut |host, datagram| {
                let mut bytes = cx.extensions().buffer();
                bytes.extend_from_slice(datagram);
                outbox.push((host, bytes));
            },
            &mut |host, timeout| rearm.push((host, timeout)),
        );
        self.scratch = scratch;
        for (host, bytes) in outbox.drain(..) {
            if let Some(streams) = &mut self.streams {
                streams.write(Side::Allocator, HostId(host), &bytes);
                cx.extensions().recycle(bytes);
                continue;
            }
            let mut packet = self.control_packet(cx, allocator, HostId(host), host, bytes.len());
            cx.attach_extension(&mut packet, Extension::Bytes(bytes));
            cx.send(allocator, packet);
        }
        for (host, timeout) in rearm.drain(..) {
            // All datagrams of the session are written; now those leave that the window allows.
            self.flush(cx, Side::Allocator, HostId(host));
            if let Some(at_ns) = timeout {
                let at = Time::from_ns(at_ns.max(now_ns + 1));
                let timer = &mut self.hosts[host as usize].timers[1];
                set_timer(cx, timer, at, TimerKind::Session.token(host));
            }
        }
        self.outbox = outbox;
        self.rearm = rearm;
        if !self.iteration_planned && !self.allocator.is_settled() {
            self.iteration_planned = true;
            let interval_ns = self.config.control.interval_ns.max(1);
            // Iterations run on a fixed grid (10 µs in the paper, §5.3), and only while rates still
            // move.
            let at = Time::from_ns((now_ns / interval_ns + 1) * interval_ns);
            cx.timer(at, TimerKind::Iterate.token(0));
        }
    }

    /// Sends the TCP segments that may leave one end now, if control messages use TCP.
    fn flush(&mut self, cx: &mut Context<'_>, side: Side, host: HostId) {
        if let Some(streams) = &mut self.streams {
            let token = TimerKind::of_stream(side).token(host.0);
            streams.flush(cx, side, host, token);
        }
    }

    fn watch_lease(&mut self, cx: &mut Context<'_>, host: HostId) {
        let entry = &mut self.hosts[host.index()];
        if !std::mem::replace(&mut entry.lease_watched, true) {
            let at = Time::from_ns(entry.endpoint.lease_expires_ns());
            cx.timer(at, TimerKind::Lease.token(host.0));
        }
    }

    /// Checks a host's lease. If it has expired, no renewal of its rates came in time, and its
    /// flows go back to their windows.
    fn check_lease(&mut self, cx: &mut Context<'_>, host: HostId) {
        self.hosts[host.index()].lease_watched = false;
        if self.hosts[host.index()].endpoint.lease_expires_ns() > cx.now().as_ns() {
            // Renewed meanwhile: the timer is not moved by every datagram but set again when it
            // fires.
            self.watch_lease(cx, host);
            return;
        }
        let flows: Vec<_> = self.hosts[host.index()].endpoint.flows().collect();
        for flow in flows {
            let id = FlowId(flow);
            if let Some(flow) = self.senders.get_mut(id) {
                flow.sender.clear_rate();
                self.transmit(cx, id);
            }
        }
    }

    fn on_data(&mut self, cx: &mut Context<'_>, host: HostId, packet: &Packet) {
        let mut reply = receive(cx, &mut self.receivers, packet);
        reply.priority = self.config.data_priority;
        cx.send(host, reply);
    }

    fn on_control(&mut self, cx: &mut Context<'_>, host: HostId, mut packet: Packet) {
        let loss = self.config.control_loss;
        let (from, until) = (
            self.config.control_loss_from,
            self.config.control_loss_until,
        );
        let lossy = loss > 0.0 && cx.now() >= from && until.is_none_or(|until| cx.now() < until);
        // Drawn only where losses are configured, so that all other runs keep their random numbers.
        if lossy && cx.rng(host).random_bool(loss) {
            // What it carried is freed with it.
            self.lost_control_packets += 1;
            return;
        }
        let bytes = match cx.take_extension(&mut packet) {
            Some(Extension::Bytes(bytes)) => bytes,
            Some(Extension::Segment(segment)) => {
                return self.on_segment(cx, host, packet.src, segment);
            }
            _ => return,
        };
        if Some(host) == cx.allocator() {
            let now_ns = cx.now().as_ns();
            self.allocator.on_datagram(now_ns, packet.src.0, &bytes);
            self.drive_allocator(cx);
        } else {
            let endpoint = &mut self.hosts[host.index()].endpoint;
            endpoint.on_datagram(cx.now().as_ns(), &bytes);
            self.drive_endpoint(cx, host);
        }
        cx.extensions().recycle(bytes);
    }

    /// Takes a segment and every message that it completes.
    fn on_segment(
        &mut self,
        cx: &mut Context<'_>,
        at: HostId,
        from: HostId,
        segment: StreamSegment,
    ) {
        let (side, host) = if Some(at) == cx.allocator() {
            (Side::Allocator, from)
        } else {
            (Side::Host, at)
        };
        let now_ns = cx.now().as_ns();
        let mut heard = false;
        if let Some(streams) = &mut self.streams {
            streams.on_segment(cx, side, host, &segment);
            while let Some(message) = streams.read(side, host) {
                heard = true;
                match side {
                    Side::Host => {
                        let endpoint = &mut self.hosts[host.index()].endpoint;
                        endpoint.on_datagram(now_ns, message);
                    }
                    Side::Allocator => self.allocator.on_datagram(now_ns, host.0, message),
                }
            }
        }
        cx.extensions().recycle(segment.bytes);
        match side {
            Side::Host if heard => self.drive_endpoint(cx, host),
            Side::Allocator if heard => self.drive_allocator(cx),
            // An acknowledgement: it may have opened the window.
            _ => {}
        }
        self.flush(cx, side, host);
    }
}

/// Sets a timer or moves it.
fn set_timer(cx: &mut Context<'_>, timer: &mut Option<TimerId>, at: Time, token: u64) {
    let moved = timer.and_then(|timer| cx.move_timer(timer, at));
    *timer = Some(moved.unwrap_or_else(|| cx.timer(at, token)));
}

impl Transport for Flowtune {
    fn on_begin(&mut self, cx: &mut Context<'_>) {
        for host in 0..self.hosts.len() as u32 {
            self.drive_endpoint(cx, HostId(host));
        }
    }

    fn on_start(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        let spec = *cx.flow(flow);
        let start = FlowletStart {
            flow: flow.0,
            dst: spec.dst.0,
            path_hash: cx.path_hash(flow, false).into(),
            class: 0,
            weight: f64::from(spec.weight),
        };
        let endpoint = &mut self.hosts[spec.src.index()].endpoint;
        let id = endpoint.start(cx.now().as_ns(), &start);
        let entry = FlowtuneFlow {
            sender: PacedSender::new(&self.config.sender, spec.bytes),
            spec,
            id,
            timer: None,
            handshaking: self.config.handshake,
        };
        // Before the endpoint is polled: its notices may be for this flow.
        self.senders.insert(flow, entry);
        // The notice leaves ahead of the first window.
        self.drive_endpoint(cx, spec.src);
        if self.config.handshake {
            self.send_syn(cx, flow);
        } else {
            self.transmit(cx, flow);
        }
    }

    fn on_stop(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        if let Some(entry) = self.senders.get_mut(flow) {
            entry.sender.stop(&self.config.sender);
            self.finish_if_done(cx, flow);
        }
    }

    fn on_packet(&mut self, cx: &mut Context<'_>, host: HostId, packet: Packet) {
        match packet.kind {
            PacketKind::Data => self.on_data(cx, host, &packet),
            PacketKind::Ack => {
                if let Some(flow) = self.senders.get_mut(packet.flow) {
                    let config = &self.config.sender;
                    let now = cx.now();
                    flow.sender
                        .on_ack(config, now, packet.ack, packet.seq, packet.stamp);
                    self.transmit(cx, packet.flow);
                    self.finish_if_done(cx, packet.flow);
                }
            }
            PacketKind::Control => self.on_control(cx, host, packet),
            // The SYN has number 0 and its answer 1.
            PacketKind::Syn if host == packet.dst && packet.seq == 0 => {
                let answer = Packet {
                    kind: PacketKind::Syn,
                    seq: 1,
                    priority: self.config.data_priority,
                    ..cx.reply(&packet)
                };
                cx.send(host, answer);
            }
            PacketKind::Syn => self.on_handshake_reply(cx, packet.flow),
            _ => {}
        }
    }

    fn on_timer(&mut self, cx: &mut Context<'_>, token: u64) {
        let now_ns = cx.now().as_ns();
        let Some((alarm, of)) = TimerKind::of(token) else {
            return;
        };
        match alarm {
            TimerKind::Flow => {
                if let Some(flow) = self.senders.get_mut(FlowId(of)) {
                    flow.timer = None;
                    if flow.handshaking {
                        return self.send_syn(cx, FlowId(of));
                    }
                    flow.sender.on_timeout(&self.config.sender, cx.now());
                    self.transmit(cx, FlowId(of));
                }
            }
            TimerKind::Endpoint => {
                let host = &mut self.hosts[of as usize];
                host.timers[0] = None;
                host.endpoint.on_timeout(now_ns);
                self.drive_endpoint(cx, HostId(of));
            }
            TimerKind::Session => {
                self.hosts[of as usize].timers[1] = None;
                self.allocator.on_timeout(now_ns, of);
                self.drive_allocator(cx);
            }
            TimerKind::Lease => self.check_lease(cx, HostId(of)),
            TimerKind::Reconnect => {
                if let Some(streams) = &mut self.streams {
                    // A session's frames must not follow the old session's bytes in one stream.
                    streams.reopen(cx, HostId(of));
                }
                let endpoint = &mut self.hosts[of as usize].endpoint;
                if self.allocator.connect(now_ns, of, endpoint).is_err() {
                    self.failed_handshakes += 1;
                }
                self.drive_endpoint(cx, HostId(of));
                self.drive_allocator(cx);
            }
            TimerKind::HostStream | TimerKind::AllocatorStream => {
                let side = if matches!(alarm, TimerKind::HostStream) {
                    Side::Host
                } else {
                    Side::Allocator
                };
                if let Some(streams) = &mut self.streams {
                    streams.on_timer(cx, side, HostId(of));
                }
                self.flush(cx, side, HostId(of));
            }
            TimerKind::Iterate => {
                // Before the allocator is polled, which plans the next iteration.
                self.iteration_planned = false;
                self.allocator.iterate(now_ns);
                self.drive_allocator(cx);
            }
        }
    }

    fn summary(&self) -> Vec<(&'static str, f64)> {
        let counts = self.allocator.counts();
        let [from_hosts, from_allocator] = self.control_traffic();
        let tcp = self.streams.as_ref().map(|streams| streams.counts());
        let mut summary: Vec<_> = [
            ("allocator_iterations", counts.iterations),
            ("flowlet_starts", counts.starts),
            ("flowlet_ends", counts.ends),
            ("rate_updates", counts.updates),
            ("starts_refused", counts.refused),
            ("sessions_lost", counts.sessions_lost),
            ("failed_handshakes", self.failed_handshakes),
            ("control_datagrams_lost", self.lost_control_packets),
            ("control_wire_bytes_to_allocator", from_hosts.wire_bytes),
            (
                "control_wire_bytes_from_allocator",
                from_allocator.wire_bytes,
            ),
            ("control_datagrams_to_allocator", from_hosts.datagrams),
            ("control_datagrams_from_allocator", from_allocator.datagrams),
            (
                "control_bare_datagrams_to_allocator",
                from_hosts.bare_datagrams,
            ),
            (
                "control_bare_datagrams_from_allocator",
                from_allocator.bare_datagrams,
            ),
            (
                "control_bare_wire_bytes_to_allocator",
                from_hosts.bare_wire_bytes,
            ),
            (
                "control_bare_wire_bytes_from_allocator",
                from_allocator.bare_wire_bytes,
            ),
            ("flowlets_active", self.active() as u64),
        ]
        .map(|(name, value)| (name, value as f64))
        .into();
        summary.push(("largest_link_load", self.largest_link_load()));
        if let Some(tcp) = tcp {
            summary.push(("control_retransmits", tcp.retransmits as f64));
            summary.push(("control_time_outs", tcp.time_outs as f64));
        }
        summary
    }
}

#[cfg(test)]
mod tests;
