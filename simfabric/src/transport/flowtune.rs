//! Flowtune: rates from the production allocator, over production sessions, packet by packet
//! (NSDI 2017, §5.3).
//!
//! Every host has a [`FlowtuneHost`] with an [`Agent`]. The allocator's node, attached to the
//! spines by its own links, runs an [`AllocatorNode`]. Their messages travel as real datagrams
//! ([`Extension::Bytes`]) or in real TCP segments ([`Extension::Segment`]). These take their time
//! on links, wait in queues and are dropped there like any other packet.
//!
//! A flowlet starts like a TCP connection and is reported at once. Its first rate opens the window,
//! and from then on it is paced ([`Allocated`]). Its end is reported when its last byte is
//! acknowledged. When a host's lease expires, its flows go back to their windows.
//!
//! | choice | why |
//! |---|---|
//! | control over TCP, as in the paper's ns-2 model (flowtune §5.3), or over datagrams | production endpoints use datagrams; the sessions repair losses by newest state (flowtune §5.1) |
//! | a message is a datagram of a production session, over TCP too | its header of 32 bytes comes on top of the paper's encoding |
//! | initial window of 10 packets | RFC 6928; the paper does not give its own |
//! | an allocation bounds bytes on the wire | link capacities do, and headers take their share |

use std::sync::Arc;

use rand::RngExt as _;
use ratewright_proto::telemetry::TelemetrySender;
use ratewright_topology::{HostId, Topology};

use self::access::OwnLinks;
use self::audit::Audit;
use self::demand::Meter;
use self::streams::{End, Streams};
use super::tcp::congestion::{Allocated, AllocatedConfig, Congestion};
use super::tcp::stream::StreamConfig;
use super::tcp::{Acknowledged, TcpConfig, TcpHost};
use super::{Context, NO_SLOT, SharedByHosts, TimerId, Transport};
use crate::control::agent::{Agent, FlowletStart, Notice};
use crate::control::allocator::AllocatorNode;
use crate::control::link_check::LinkFinding;
use crate::control::{Carrier, ControlConfig, ControlError, ControlTraffic, datagram_ip_bytes};
use crate::ext::{Extension, StreamSegment};
use crate::flow::FlowId;
use crate::host::{Endpoint, HostSet, Measured, Pull, Side, Timer};
use crate::packet::{Packet, PacketKind};
use crate::time::{Span, Time};

mod access;
mod audit;
pub mod demand;
mod sources;
mod streams;

pub use sources::FeedSources;

/// Settings of the scheme, whose data has this congestion control.
#[derive(Clone, Debug)]
pub struct FlowtuneConfig<C: Congestion = Allocated> {
    /// Control plane. Over TCP, sessions wait longer for each other, see
    /// [`ControlConfig::over_tcp`].
    pub control: ControlConfig,
    /// Transport of control messages.
    pub carrier: Carrier,
    /// TCP connections of the control plane, if it uses TCP.
    pub stream: StreamConfig,
    /// TCP of data. Its handshake goes on while the allocator is notified (flowtune §5.3,
    /// *Servers*); its class is that of data and acknowledgements.
    pub tcp: TcpConfig<C::Config>,
    /// Queue class of control packets; 0 goes first. Where it differs from that of data, the
    /// fabric's queues need a class for each.
    pub control_class: u8,
    /// Share of control packets that is lost on arrival, on top of queues' drops.
    pub control_loss: f64,
    /// Begin of that loss.
    pub control_loss_from: Time,
    /// End of that loss; `None`: never.
    pub control_loss_until: Option<Time>,
    /// Readings of hosts and switches for the allocator's feeds.
    pub feeds: FeedSources,
    /// Window in which hosts measure the use of rates, to tell the allocator of a smaller
    /// [demand]; `None`: all demand is unbounded.
    pub demand_window: Option<Span>,
    /// Hosts that have a session with the allocator; `None`: all. The others only receive.
    pub members: Option<HostSet>,
}

impl Default for FlowtuneConfig {
    fn default() -> Self {
        Self::over(paced_tcp())
    }
}

impl<C: Congestion> FlowtuneConfig<C> {
    /// Makes the defaults over this TCP.
    #[must_use]
    pub fn over(tcp: TcpConfig<C::Config>) -> Self {
        Self {
            control: ControlConfig::default(),
            carrier: Carrier::default(),
            stream: StreamConfig::default(),
            tcp,
            control_class: 0,
            control_loss: 0.0,
            control_loss_from: Time::ZERO,
            control_loss_until: None,
            feeds: FeedSources::default(),
            demand_window: None,
            members: None,
        }
    }
}

/// Settings of the control plane, that hosts and allocator share.
#[derive(Debug)]
struct ControlPlane {
    control: ControlConfig,
    control_class: u8,
    control_loss: f64,
    control_loss_from: Time,
    control_loss_until: Option<Time>,
    feeds: FeedSources,
    demand_window: Option<Span>,
    members: Option<HostSet>,
}

impl ControlPlane {
    /// Returns true if a host has a session with the allocator.
    fn is_member(&self, host: HostId) -> bool {
        let members = self.members.as_ref();
        members.is_none_or(|members| members.contains(host))
    }
}

/// Returns TCP's parameters for flows that are paced at allocated rates: time-outs of at least 200
/// µs, and 400 µs before the first measurement.
#[must_use]
pub fn paced_tcp() -> TcpConfig<AllocatedConfig> {
    TcpConfig {
        initial_rto: Span::from_us(400),
        ..TcpConfig::datacenter()
    }
}

/// The scheme; see the [module](self).
pub struct Flowtune<C: Congestion = Allocated> {
    shared: FlowtuneShared,
    tcp: Arc<TcpConfig<C::Config>>,
    agents: Vec<Agent>,
}

/// State that hosts and allocator share: the node where the connections end, and these.
pub struct FlowtuneShared {
    config: ControlPlane,
    allocator: AllocatorNode,
    /// TCP connections, if control messages use TCP.
    streams: Option<Streams>,
    /// Timers of the allocator's sessions, by host.
    session_timers: Vec<Option<TimerId>>,
    /// Time at which the allocator's check of links is due, and its timer.
    check_due_ns: Option<u64>,
    check_timer: Option<TimerId>,
    iteration_planned: bool,
    failed_handshakes: u64,
    lost_control_packets: u64,
    /// Datagrams that switches sent.
    switch_readings: ControlTraffic,
    /// Truth beside the feeds' readings.
    audit: Audit,
    scratch: Vec<u8>,
    outbox: Vec<(u32, Vec<u8>)>,
    rearm: Vec<(u32, Option<u64>)>,
}

/// A node of a run with Flowtune: every host, and the allocator's behind them.
#[derive(Debug)]
pub enum FlowtuneNode<C: Congestion = Allocated> {
    /// A host.
    Host(Box<FlowtuneHost<C>>),
    /// The allocator's node, whose state is among what is shared.
    Allocator,
}

/// Flowtune at one host: its session with the allocator, and its flows.
#[derive(Debug)]
pub struct FlowtuneHost<C: Congestion = Allocated> {
    agent: Agent,
    tcp: TcpHost<C>,
    /// Bytes of data that it has sent, on the link.
    sent_bytes: u64,
    /// Ids of flows in the session, by the slot of the flow that this host sends; `None` if the
    /// agent's table was full.
    ids: Vec<Option<ratewright_proto::FlowId>>,
    /// Use of their rates, by the same slot, if hosts measure it.
    meters: Vec<Option<Meter>>,
    /// True if a timer for the end of a window is set.
    metering: bool,
    timer: Option<TimerId>,
    /// True if a timer for the lease is set.
    lease_watched: bool,
    telemetry: TelemetrySender,
    own_links: OwnLinks,
}

/// Kinds of timers. That of [`TcpHost::TIMER`] is the flows'.
mod kind {
    pub(super) const AGENT: u8 = 1;
    pub(super) const LEASE: u8 = 2;
    pub(super) const RECONNECT: u8 = 3;
    pub(super) const STREAM: u8 = 4;
    pub(super) const SESSION: u8 = 5;
    pub(super) const ITERATE: u8 = 6;
    pub(super) const ANNOUNCE: u8 = 7;
    pub(super) const SWITCH: u8 = 8;
    pub(super) const FEEDS: u8 = 9;
    pub(super) const METER: u8 = 10;
    pub(super) const CHECK: u8 = 11;
}

type FlowtuneContext<'a> = Context<'a, FlowtuneShared>;

impl<C: Congestion> Flowtune<C> {
    /// Makes the scheme on a topology, as the allocator is told it, with every member connected to
    /// the allocator.
    ///
    /// # Errors
    /// Settings that the engine refuses.
    pub fn new(topology: &Arc<Topology>, config: FlowtuneConfig<C>) -> Result<Self, ControlError> {
        let count = topology.hosts().len() as u32;
        let mut plane = ControlPlane {
            control: config.control,
            control_class: config.control_class,
            control_loss: config.control_loss,
            control_loss_from: config.control_loss_from,
            control_loss_until: config.control_loss_until,
            feeds: config.feeds,
            demand_window: config.demand_window,
            members: config.members,
        };
        let streams = (config.carrier == Carrier::Tcp).then(|| {
            plane.control = plane.control.clone().over_tcp();
            Streams::new(count, config.stream, config.control_class)
        });
        let mut allocator = AllocatorNode::new(topology, &plane.control)?;
        let agents = (topology.hosts().iter())
            .map(|host| {
                let mut agent = Agent::new(&host.name, &plane.control);
                if plane.is_member(host.id) {
                    allocator.connect(0, host.id.0, &mut agent)?;
                }
                Ok(agent)
            })
            .collect::<Result<Vec<_>, ControlError>>()?;
        let shared = FlowtuneShared {
            config: plane,
            allocator,
            streams,
            session_timers: vec![None; count as usize],
            check_due_ns: None,
            check_timer: None,
            iteration_planned: false,
            failed_handshakes: 0,
            lost_control_packets: 0,
            switch_readings: ControlTraffic::default(),
            audit: Audit::default(),
            scratch: Vec::new(),
            outbox: Vec::new(),
            rearm: Vec::new(),
        };
        Ok(Self {
            shared,
            tcp: Arc::new(config.tcp),
            agents,
        })
    }
}

/// Returns the control traffic of a run so far: from the hosts, and from the allocator.
#[must_use]
pub fn control_traffic<'a, C: Congestion>(
    shared: &FlowtuneShared,
    nodes: impl IntoIterator<Item = &'a FlowtuneNode<C>>,
) -> [ControlTraffic; 2] {
    if let Some(streams) = &shared.streams {
        return streams.traffic();
    }
    let hosts = nodes.into_iter().filter_map(FlowtuneNode::host);
    let from_hosts = hosts.fold(ControlTraffic::default(), |sum, host| {
        sum.plus(host.agent.sent())
    });
    [from_hosts, *shared.allocator.sent()]
}

impl SharedByHosts for FlowtuneShared {}

impl FlowtuneShared {
    /// Returns the allocator.
    #[must_use]
    pub fn allocator(&self) -> &AllocatorNode {
        &self.allocator
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

    /// Returns the control packets that were lost on arrival, beside queues' drops.
    #[must_use]
    pub fn lost_control_packets(&self) -> u64 {
        self.lost_control_packets
    }
}

impl<C: Congestion> FlowtuneNode<C> {
    /// Returns the host; `None` for the allocator's node.
    #[must_use]
    pub fn host(&self) -> Option<&FlowtuneHost<C>> {
        match self {
            Self::Host(host) => Some(host),
            Self::Allocator => None,
        }
    }
}

impl<C: Congestion> FlowtuneHost<C> {
    /// Returns the host's end of the control plane.
    #[must_use]
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Returns the number of flowlets that it sends whose last byte is not acknowledged.
    #[must_use]
    pub fn active(&self) -> usize {
        self.tcp.sending()
    }

    /// Returns the rate that a flow in this [slot](Context::slot) is paced at; 0 before its first
    /// and without one.
    #[must_use]
    pub fn rate_bps(&self, slot: u32) -> u64 {
        self.tcp.rate_bps(slot)
    }

    fn start(&mut self, cx: &mut FlowtuneContext<'_>, flow: FlowId) {
        let spec = *cx.flow(flow);
        let start = FlowletStart {
            flow: flow.0,
            dst: spec.dst.0,
            path_hash: cx.path_hash(flow, false).into(),
            class: 0,
            weight: f64::from(spec.weight),
        };
        let id = self.agent.start(cx.now().as_ns(), &start);
        // The notice leaves ahead of the first window: control packets go before data. Notices of
        // the agent may be for this flow, so it has its slot first.
        let slot = self.tcp.start(cx, flow) as usize;
        if slot >= self.ids.len() {
            self.ids.resize(slot + 1, None);
            self.meters.resize(slot + 1, None);
        }
        self.ids[slot] = id;
        self.meters[slot] = None;
        self.drive(cx);
    }

    /// Reports the end of a flow whose last byte is acknowledged.
    fn finish(&mut self, cx: &mut FlowtuneContext<'_>, done: Acknowledged) {
        if let Some(meter) = self.meters.get_mut(done.slot as usize) {
            *meter = None;
        }
        if let Some(id) = self.ids.get_mut(done.slot as usize).and_then(Option::take) {
            self.agent.end(cx.now().as_ns(), id);
            // The end notice is a datagram that leaves now.
            self.drive(cx);
        }
    }

    /// Polls the agent for notices to the host's flows and datagrams to the allocator.
    fn drive(&mut self, cx: &mut FlowtuneContext<'_>) {
        let now_ns = cx.now().as_ns();
        while let Some(notice) = self.agent.poll_notice() {
            match notice {
                Notice::Rate(granted) => {
                    let slot = cx.slot(FlowId(granted.flow), Side::Sender);
                    if slot != NO_SLOT {
                        self.tcp.set_rate(cx, slot, granted.rate_bps);
                        self.meter(cx, slot, granted.rate_bps);
                    }
                    self.watch_lease(cx);
                }
                Notice::Lost => {
                    let reconnect_ns = cx.shared.config.control.reconnect_ns;
                    let at = Time::from_ns(now_ns.saturating_add(reconnect_ns));
                    cx.timer(at, timer(kind::RECONNECT, 0));
                }
            }
        }
        let Some(allocator) = cx.allocator() else {
            return;
        };
        let mut scratch = std::mem::take(&mut cx.shared.scratch);
        while self.agent.poll_message(&mut scratch)
            || self.agent.poll_datagram(now_ns, &mut scratch)
        {
            let host = cx.me();
            if let Some(streams) = &mut cx.shared.streams {
                streams.write(End::Host, host, &scratch);
                continue;
            }
            send_datagram(cx, allocator, host.0, &scratch);
        }
        cx.shared.scratch = scratch;
        flush(cx, End::Host, cx.me());
        if let Some(at_ns) = self.agent.next_timeout_ns() {
            // Never in the present nanosecond: the timer would fire again and again without time
            // going on.
            let at = Time::from_ns(at_ns.max(now_ns + 1));
            cx.restart_timer(&mut self.timer, at, timer(kind::AGENT, 0));
        }
    }

    fn watch_lease(&mut self, cx: &mut FlowtuneContext<'_>) {
        if !std::mem::replace(&mut self.lease_watched, true) {
            let at = Time::from_ns(self.agent.lease_expires_ns());
            cx.timer(at, timer(kind::LEASE, 0));
        }
    }

    /// Checks the lease. If it has expired, no renewal of its rates came in time, and the host's
    /// flows go back to their windows.
    fn check_lease(&mut self, cx: &mut FlowtuneContext<'_>) {
        self.lease_watched = false;
        if self.agent.lease_expires_ns() > cx.now().as_ns() {
            // Renewed meanwhile: the timer is not moved by every datagram but set again when it
            // fires.
            return self.watch_lease(cx);
        }
        for flow in self.agent.flows() {
            let slot = cx.slot(FlowId(flow), Side::Sender);
            self.tcp.set_rate(cx, slot, 0);
        }
        self.meters.fill(None);
    }

    /// Begins to measure the use of a flow's rate, or goes on at another rate.
    fn meter(&mut self, cx: &mut FlowtuneContext<'_>, slot: u32, rate_bps: u64) {
        let Some(window) = cx.shared.config.demand_window else {
            return;
        };
        let (Some(used), Some(meter)) =
            (self.tcp.rate_use(slot), self.meters.get_mut(slot as usize))
        else {
            return;
        };
        let now = cx.now();
        meter
            .get_or_insert_with(|| Meter::new(now, used.sent_bytes))
            .on_rate(now, rate_bps);
        if !std::mem::replace(&mut self.metering, true) {
            cx.timer_in(window, timer(kind::METER, 0));
        }
    }

    /// Ends a window of all meters, and tells the allocator of demands that have changed.
    fn measure_use(&mut self, cx: &mut FlowtuneContext<'_>) {
        self.metering = false;
        let Some(window) = cx.shared.config.demand_window else {
            return;
        };
        let now = cx.now();
        for slot in 0..self.meters.len() {
            let used = self.tcp.rate_use(slot as u32);
            let (Some(meter), Some(used)) = (&mut self.meters[slot], used) else {
                continue;
            };
            self.metering = true;
            if let Some(demand_bps) = meter.end_window(now, window, &used)
                && let Some(id) = self.ids[slot]
            {
                self.tcp.watch(slot as u32);
                self.agent.demand(now.as_ns(), id, Some(demand_bps));
            }
        }
        if self.metering {
            cx.timer_in(window, timer(kind::METER, 0));
        }
        self.drive(cx);
    }

    /// Asks for more for the flows that have met the rate to which their demand had been lowered.
    fn grow(&mut self, cx: &mut FlowtuneContext<'_>) {
        let now = cx.now();
        let mut grown = false;
        while let Some(slot) = self.tcp.poll_limited() {
            let used = self.tcp.rate_use(slot);
            let meter = self.meters.get_mut(slot as usize).and_then(Option::as_mut);
            let (Some(meter), Some(used)) = (meter, used) else {
                continue;
            };
            if !meter.on_limited(now, &used) {
                self.tcp.watch(slot);
            } else if let Some(id) = self.ids[slot as usize] {
                self.agent.demand(now.as_ns(), id, None);
                grown = true;
            }
        }
        if grown {
            self.drive(cx);
        }
    }

    fn on_measured(&mut self, cx: &mut FlowtuneContext<'_>, measured: Measured) {
        if measured.wants_received() {
            self.look(cx, measured);
        } else {
            self.report(cx, measured);
        }
    }

    /// Connects to the allocator again, after the session was lost.
    fn reconnect(&mut self, cx: &mut FlowtuneContext<'_>) {
        let host = cx.me();
        if let Some(mut streams) = cx.shared.streams.take() {
            // A session's frames must not follow the old session's bytes in one stream.
            streams.reopen(cx, host);
            cx.shared.streams = Some(streams);
        }
        let now_ns = cx.now().as_ns();
        let connected = cx.shared.allocator.connect(now_ns, host.0, &mut self.agent);
        cx.shared.failed_handshakes += u64::from(connected.is_err());
        // Another session knows nothing of what the lost one was told.
        self.telemetry.restart();
        self.own_links.begin_session();
        self.drive(cx);
        if let Some(allocator) = cx.allocator() {
            cx.poke(allocator);
        }
    }

    fn on_control(&mut self, cx: &mut FlowtuneContext<'_>, packet: &mut Packet) {
        match take_control(cx, packet) {
            Some(Control::Datagram(bytes)) => {
                self.agent.on_datagram(cx.now().as_ns(), &bytes);
                self.drive(cx);
                cx.extensions().recycle(bytes);
            }
            Some(Control::Segment(segment)) => {
                let host = cx.me();
                let now_ns = cx.now().as_ns();
                let agent = &mut self.agent;
                let heard = on_segment(cx, End::Host, host, segment, |_, message| {
                    agent.on_datagram(now_ns, message);
                });
                if heard {
                    self.drive(cx);
                }
                flush(cx, End::Host, host);
            }
            None => {}
        }
    }
}

const fn timer(kind: u8, slot: u32) -> Timer {
    Timer { kind, slot }
}

/// Content of a control packet that arrived.
enum Control {
    Datagram(Vec<u8>),
    Segment(StreamSegment),
}

/// Takes what a control packet carries, unless the packet is one of those that get lost.
fn take_control(cx: &mut FlowtuneContext<'_>, packet: &mut Packet) -> Option<Control> {
    let content = cx.take_extension(packet);
    let config = &cx.shared.config;
    let (loss, from) = (config.control_loss, config.control_loss_from);
    let before = |until| cx.now() < until;
    let lossy = loss > 0.0 && cx.now() >= from && config.control_loss_until.is_none_or(before);
    // Drawn only where losses are configured, so that all other runs keep their random numbers.
    if lossy && cx.rng().random_bool(loss) {
        cx.shared.lost_control_packets += 1;
        return None;
    }
    match content {
        Some(Extension::Bytes(bytes)) => Some(Control::Datagram(bytes)),
        Some(Extension::Segment(segment)) => Some(Control::Segment(cx.extensions().unbox(segment))),
        _ => None,
    }
}

/// Sends a datagram of the session of `session`, between its host and the allocator.
fn send_datagram(cx: &mut FlowtuneContext<'_>, dst: HostId, session: u32, datagram: &[u8]) {
    let mut packet = Packet {
        kind: PacketKind::Control,
        src: cx.me(),
        dst,
        // Each session keeps to one spine: its datagrams stay in order.
        path_hash: session as u16,
        wire_bytes: cx
            .framing()
            .ip_wire_bytes(datagram_ip_bytes(datagram.len())),
        class: cx.shared.config.control_class,
        stamp: cx.now(),
        ..Packet::default()
    };
    let mut bytes = cx.extensions().buffer();
    bytes.extend_from_slice(datagram);
    cx.attach_extension(&mut packet, Extension::Bytes(bytes));
    cx.send(packet);
}

/// Sends the TCP segments that may leave this node's end of a host's connection now, if control
/// messages use TCP.
fn flush(cx: &mut FlowtuneContext<'_>, end: End, host: HostId) {
    if let Some(mut streams) = cx.shared.streams.take() {
        streams.flush(cx, end, host, timer(kind::STREAM, host.0));
        cx.shared.streams = Some(streams);
    }
}

/// Takes a segment, and shows every message that it completes. Returns true if there was one.
fn on_segment(
    cx: &mut FlowtuneContext<'_>,
    end: End,
    host: HostId,
    segment: StreamSegment,
    mut show: impl FnMut(&mut AllocatorNode, &[u8]),
) -> bool {
    let mut heard = false;
    if let Some(mut streams) = cx.shared.streams.take() {
        streams.on_segment(cx, end, host, &segment);
        while let Some(message) = streams.read(end, host) {
            heard = true;
            show(&mut cx.shared.allocator, message);
        }
        cx.shared.streams = Some(streams);
    }
    cx.extensions().recycle(segment.bytes);
    heard
}

/// The allocator's node.
mod node {
    use super::*;

    /// Polls the allocator for datagrams, and schedules the next iteration if one is needed.
    pub(super) fn drive(cx: &mut FlowtuneContext<'_>) {
        let now_ns = cx.now().as_ns();
        let shared = &mut *cx.shared;
        let mut scratch = std::mem::take(&mut shared.scratch);
        let mut outbox = std::mem::take(&mut shared.outbox);
        let mut rearm = std::mem::take(&mut shared.rearm);
        let extensions = &mut cx.core.shared.extensions;
        shared.allocator.poll_datagrams(
            now_ns,
            &mut scratch,
            &mut |host, datagram| {
                let mut bytes = extensions.buffer();
                bytes.extend_from_slice(datagram);
                outbox.push((host, bytes));
            },
            &mut |host, timeout| rearm.push((host, timeout)),
        );
        cx.shared.scratch = scratch;
        for (host, bytes) in outbox.drain(..) {
            if let Some(streams) = &mut cx.shared.streams {
                streams.write(End::Allocator, HostId(host), &bytes);
            } else {
                send_datagram(cx, HostId(host), host, &bytes);
            }
            cx.extensions().recycle(bytes);
        }
        for (host, timeout) in rearm.drain(..) {
            // All datagrams of the session are written; now those leave that the window allows.
            flush(cx, End::Allocator, HostId(host));
            if let Some(at_ns) = timeout {
                let at = Time::from_ns(at_ns.max(now_ns + 1));
                let mut id = cx.shared.session_timers[host as usize];
                cx.restart_timer(&mut id, at, timer(kind::SESSION, host));
                cx.shared.session_timers[host as usize] = id;
            }
        }
        cx.shared.outbox = outbox;
        cx.shared.rearm = rearm;
        plan_check(cx);
        if !cx.shared.iteration_planned && !cx.shared.allocator.is_settled() {
            cx.shared.iteration_planned = true;
            let interval_ns = cx.shared.config.control.interval_ns.max(1);
            // Iterations run on a fixed grid (10 µs in the paper, §5.3), and only while rates still
            // move.
            let at = Time::from_ns((now_ns / interval_ns + 1) * interval_ns);
            cx.timer(at, timer(kind::ITERATE, 0));
        }
    }

    /// Sets the timer of the check of links, if it is due at another time.
    fn plan_check(cx: &mut FlowtuneContext<'_>) {
        let due_ns = cx.shared.allocator.next_check_ns();
        if due_ns == cx.shared.check_due_ns {
            return;
        }
        cx.shared.check_due_ns = due_ns;
        if let Some(due_ns) = due_ns {
            let at = Time::from_ns(due_ns.max(cx.now().as_ns() + 1));
            let mut id = cx.shared.check_timer;
            cx.restart_timer(&mut id, at, timer(kind::CHECK, 0));
            cx.shared.check_timer = id;
        }
    }

    pub(super) fn on_packet(cx: &mut FlowtuneContext<'_>, packet: &mut Packet) {
        let host = packet.src;
        let now_ns = cx.now().as_ns();
        let switch = cx.core.switch_at(host);
        let sent_at = packet.stamp;
        match take_control(cx, packet) {
            Some(Control::Datagram(bytes)) => {
                if switch.is_some() {
                    cx.shared.allocator.on_reading(now_ns, &bytes);
                } else {
                    cx.shared.allocator.on_message(now_ns, host.0, &bytes);
                }
                sources::audit(cx, sent_at);
                drive(cx);
                cx.extensions().recycle(bytes);
            }
            Some(Control::Segment(segment)) => {
                let sent_at = segment.sent_at;
                let heard = on_segment(cx, End::Allocator, host, segment, |allocator, message| {
                    allocator.on_message(now_ns, host.0, message);
                });
                if heard {
                    sources::audit(cx, sent_at);
                    drive(cx);
                }
                // An acknowledgement may have opened the window.
                flush(cx, End::Allocator, host);
            }
            None => {}
        }
    }

    /// Ends an iteration: its rates leave.
    fn announce(cx: &mut FlowtuneContext<'_>) {
        // Before the allocator is polled, which plans the next iteration.
        cx.shared.iteration_planned = false;
        cx.shared.allocator.announce(cx.now().as_ns());
        drive(cx);
    }

    pub(super) fn on_timer(cx: &mut FlowtuneContext<'_>, timer: Timer) {
        let now_ns = cx.now().as_ns();
        match timer.kind {
            kind::SESSION => {
                cx.shared.session_timers[timer.slot as usize] = None;
                cx.shared.allocator.on_timeout(now_ns, timer.slot);
                drive(cx);
            }
            kind::ITERATE => {
                cx.shared.allocator.iterate(now_ns);
                if cx.shared.config.control.iteration_ns == 0 {
                    return announce(cx);
                }
                // What comes meanwhile is for the next iteration, which begins after this one.
                let at = cx.now() + Span::from_ns(cx.shared.config.control.iteration_ns);
                cx.timer(at, super::timer(kind::ANNOUNCE, 0));
            }
            kind::ANNOUNCE => announce(cx),
            kind::STREAM => on_stream_timer(cx, End::Allocator, HostId(timer.slot)),
            kind::SWITCH => sources::read_switch(cx, timer.slot),
            kind::FEEDS => {
                sources::apply(cx);
                drive(cx);
            }
            kind::CHECK => {
                (cx.shared.check_due_ns, cx.shared.check_timer) = (None, None);
                cx.shared.allocator.apply_feeds(now_ns);
                drive(cx);
            }
            _ => {}
        }
    }
}

/// Handles the retransmission timer of one end of a host's connection.
fn on_stream_timer(cx: &mut FlowtuneContext<'_>, end: End, host: HostId) {
    let now = cx.now();
    if let Some(streams) = &mut cx.shared.streams {
        streams.on_timer(now, end, host);
    }
    flush(cx, end, host);
}

impl<C: Congestion> Transport for Flowtune<C> {
    type Shared = FlowtuneShared;
    type Endpoint = FlowtuneNode<C>;

    fn start(self, nodes: u32) -> (FlowtuneShared, Vec<FlowtuneNode<C>>) {
        let terms = self.shared.config.feeds.config();
        let terms = terms.and_then(|feeds| feeds.sync_terms());
        let host = |(number, agent): (usize, Agent)| {
            let telemetry = TelemetrySender::new(terms, number as u32);
            FlowtuneNode::Host(Box::new(FlowtuneHost {
                agent,
                tcp: TcpHost::new(Arc::clone(&self.tcp)),
                sent_bytes: 0,
                ids: Vec::new(),
                meters: Vec::new(),
                metering: false,
                timer: None,
                lease_watched: false,
                telemetry,
                own_links: OwnLinks::default(),
            }))
        };
        let mut all: Vec<_> = self.agents.into_iter().enumerate().map(host).collect();
        // Without links to the allocator there is no node for it.
        all.resize_with(nodes as usize, || FlowtuneNode::Allocator);
        (self.shared, all)
    }

    fn summary(shared: &FlowtuneShared, nodes: &[&FlowtuneNode<C>]) -> Vec<(&'static str, f64)> {
        let counts = shared.allocator.counts();
        let [from_hosts, from_allocator] = control_traffic(shared, nodes.iter().copied());
        let tcp = shared.streams.as_ref().map(Streams::counts);
        let hosts = nodes.iter().filter_map(|node| node.host());
        let active: usize = hosts.map(FlowtuneHost::active).sum();
        let mut summary: Vec<_> = [
            ("allocator_iterations", counts.iterations),
            ("flowlet_starts", counts.starts),
            ("flowlet_ends", counts.ends),
            ("rate_updates", counts.updates),
            ("starts_refused", counts.refused),
            ("sessions_lost", counts.sessions_lost),
            ("failed_handshakes", shared.failed_handshakes),
            ("control_datagrams_lost", shared.lost_control_packets),
            ("control_ip_bytes_to_allocator", from_hosts.ip_bytes),
            ("control_ip_bytes_from_allocator", from_allocator.ip_bytes),
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
                "control_bare_ip_bytes_to_allocator",
                from_hosts.bare_ip_bytes,
            ),
            (
                "control_bare_ip_bytes_from_allocator",
                from_allocator.bare_ip_bytes,
            ),
            ("flowlets_active", active as u64),
        ]
        .map(|(name, value)| (name, value as f64))
        .into();
        summary.push(("largest_link_load", shared.largest_link_load()));
        if shared.config.feeds.any() {
            summary.extend(sources::summary(shared));
        }
        if let Some(tcp) = tcp {
            summary.push(("control_retransmits", tcp.retransmits as f64));
            summary.push(("control_time_outs", tcp.time_outs as f64));
        }
        summary
    }

    fn findings(shared: &FlowtuneShared, _: &[&FlowtuneNode<C>]) -> Vec<LinkFinding> {
        shared.allocator.findings().to_vec()
    }
}

impl<C: Congestion> Endpoint for FlowtuneNode<C> {
    type Shared = FlowtuneShared;

    fn on_begin(&mut self, cx: &mut FlowtuneContext<'_>) {
        match self {
            Self::Host(host) => {
                if cx.shared.config.is_member(cx.me()) {
                    host.drive(cx);
                    sources::begin_host(cx);
                    access::begin_host(cx);
                }
            }
            Self::Allocator => sources::begin_allocator(cx),
        }
    }

    fn on_measured(&mut self, cx: &mut FlowtuneContext<'_>, measured: Measured) {
        if let Self::Host(host) = self {
            host.on_measured(cx, measured);
        }
    }

    fn on_start(&mut self, cx: &mut FlowtuneContext<'_>, flow: FlowId) {
        if let Self::Host(host) = self {
            host.start(cx, flow);
        }
    }

    fn on_stop(&mut self, cx: &mut FlowtuneContext<'_>, flow: FlowId) {
        if let Self::Host(host) = self {
            host.tcp.stop(cx, flow);
        }
    }

    fn on_packet(&mut self, cx: &mut FlowtuneContext<'_>, packet: &mut Packet) {
        match self {
            Self::Host(host) if packet.kind == PacketKind::Control => host.on_control(cx, packet),
            Self::Host(host) => {
                if let Some(done) = host.tcp.on_packet(cx, packet) {
                    host.finish(cx, done);
                }
                host.grow(cx);
            }
            Self::Allocator => node::on_packet(cx, packet),
        }
    }

    fn on_timer(&mut self, cx: &mut FlowtuneContext<'_>, timer: Timer) {
        let Self::Host(host) = self else {
            return node::on_timer(cx, timer);
        };
        match timer.kind {
            TcpHost::<C>::TIMER => host.tcp.on_timer(cx, timer.slot),
            kind::AGENT => {
                host.timer = None;
                host.agent.on_timeout(cx.now().as_ns());
                host.drive(cx);
            }
            kind::LEASE => host.check_lease(cx),
            kind::RECONNECT => host.reconnect(cx),
            kind::METER => host.measure_use(cx),
            kind::STREAM => on_stream_timer(cx, End::Host, cx.me()),
            // The scheme is alone on the host: a pair asks both.
            Timer::MEASURE => host.on_measured(cx, Measured::at(timer)),
            _ => {}
        }
    }

    fn on_poke(&mut self, cx: &mut FlowtuneContext<'_>) {
        if let Self::Allocator = self {
            node::drive(cx);
        }
    }

    fn pull(&mut self, cx: &mut FlowtuneContext<'_>) -> Pull {
        match self {
            Self::Host(host) => {
                let pulled = host.tcp.pull(cx, |_, _| ());
                if let Pull::Packet(packet) | Pull::Last(packet) = &pulled {
                    host.sent_bytes += u64::from(packet.wire_bytes);
                }
                host.grow(cx);
                pulled
            }
            Self::Allocator => Pull::Nothing,
        }
    }
}

#[cfg(test)]
mod tests;
