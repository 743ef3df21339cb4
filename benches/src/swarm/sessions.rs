//! The sessions' thread: every host's session, driven by its datagrams, its flows and its timers.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use indexmap::IndexMap;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::{TimeSpec, TimeValLike};
use quinn::Connection;
use ratewright_cli::clock;
use ratewright_io::dscp::Dscp;
use ratewright_io::sched::LEAST_SLEEP_NS;
use ratewright_io::timers::{Timers, served_until};
use ratewright_io::transport::{MAX_DATAGRAM_BYTES, SealedPort, SendOutcome};
use ratewright_io::udp::BATCH;
use ratewright_proto::Counters;
use ratewright_proto::client::{ClientConfig, ClientEvent, ClientSession};
use ratewright_proto::control::{FrameDecoder, Welcome};
use ratewright_proto::path::{DatagramPath, PathConfig};
use ratewright_proto::telemetry::Telemetry;
use rustc_hash::FxBuildHasher;
use tokio::sync::mpsc::UnboundedSender;

use super::net::{Inbox, SessionInput};
use super::network_faults::NetworkFaults;
use super::options::{SwarmOptions, SwarmPlan, TransportKind};
use super::own_links::OwnLinks;
use super::time_dilation::TimeDilation;
use super::topology_cache::TopologyCache;
use super::traffic::{Traffic, TrafficAction};
use super::views::FlowSnapshot;

/// IPv4 and UDP headers.
const PACKET_OVERHEAD_BYTES: u64 = 28;
/// Time for which an idle program polls before it sleeps, as a thread that is to report flowlets at
/// once would. A wake-up takes tens of microseconds.
const SPIN_NS: u64 = 300_000;
/// A rest of one that takes rests: far less than a lease.
const REST: Duration = Duration::from_millis(1);
/// A session that is polled and wants its timeout at once all the same waits this long.
const MIN_TIMER_NS: u64 = 100_000;
/// The loop polls at least this often.
const LONGEST_WAIT_NS: u64 = 50_000_000;

/// Counts since the beginning of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SwarmTotals {
    /// Rates delivered by the sessions.
    pub updates: u64,
    /// Flowlets started.
    pub starts: u64,
    /// Bytes to the allocator, from the IP header on.
    pub bytes_up: u64,
    /// Bytes from the allocator, from the IP header on.
    pub bytes_down: u64,
    /// Packets to the allocator.
    pub packets_up: u64,
    /// Packets from the allocator.
    pub packets_down: u64,
    /// Sum of the sessions' counters.
    pub sessions: Counters,
}

struct HostSession {
    session: ClientSession,
    decoder: FrameDecoder,
    connection: Option<Connection>,
    frames: Option<UnboundedSender<Vec<u8>>>,
    /// The session's number, once it has one.
    number: Option<u32>,
    established: bool,
    dirty: bool,
    scheduled_ns: Option<u64>,
    /// Time at which the newest datagram was opened.
    heard_ns: u64,
    /// Time until which its rates hold.
    lease_ns: u64,
    /// Since when its flows have had rates, without a time in which it had none.
    rated_ns: u64,
}

/// All hosts of a swarm.
pub struct SwarmSessions {
    transport: TransportKind,
    sessions: Vec<HostSession>,
    names: Vec<String>,
    inbox: Arc<Inbox>,
    arrivals: Vec<SessionInput>,
    port: Option<SealedPort>,
    by_number: IndexMap<u32, usize, FxBuildHasher>,
    timers: Timers<usize>,
    /// Topology that every Welcome repeats.
    topology: TopologyCache,
    /// Time of the last complete read of the socket: datagrams that still wait there came later.
    read_ns: u64,
    dirty: Vec<usize>,
    buffer: Vec<u8>,
    actions: Vec<TrafficAction>,
    late_ns: Vec<u64>,
    /// The hosts' numbers in the topology.
    hosts: Vec<u32>,
    up: NetworkFaults,
    down: NetworkFaults,
    /// Meters of the hosts' own links, if they tell of them.
    own_links: Option<OwnLinks>,
    interrupted: Arc<AtomicBool>,
    /// Flowlets of all hosts.
    pub traffic: Traffic,
    /// From a start to its first rate, in nanoseconds.
    pub waits: Histogram<u64>,
    /// By how much this program was late with starts, in nanoseconds.
    pub late: Histogram<u64>,
    /// Rates delivered.
    pub updates: u64,
    /// Sessions that ended and came back.
    pub sessions_lost: u64,
    /// Leases of hosts with rates that ran out before the next datagram.
    pub leases_lapsed: u64,
    /// Changes of the members that the first host was told of.
    pub members_heard: u64,
    /// Reason of the last session's end.
    pub last_loss: String,
    /// Longest time between two turns of the sessions' loop, in nanoseconds.
    pub longest_turn_ns: u64,
    turned_ns: Option<u64>,
    /// Time of the last work.
    busy_ns: u64,
    /// Time to poll for something to do before going to sleep.
    spin_ns: u64,
    /// Minimum length of a sleep.
    rest: Duration,
}

impl SwarmSessions {
    /// Hosts without connections.
    ///
    /// # Errors
    /// When there is no socket.
    pub fn new(
        options: &SwarmOptions,
        plan: &SwarmPlan,
        names: Vec<String>,
        allocator: SocketAddr,
        inbox: Arc<Inbox>,
        interrupted: Arc<AtomicBool>,
    ) -> Result<Self> {
        let (transport, dilation) = (options.transport, &plan.dilation);
        let faults = |direction: u64| {
            // Each direction draws its own faults.
            let seed = options.seed ^ (direction << 32);
            NetworkFaults::new(options.loss, options.reorder, seed)
        };
        let mut traffic = Traffic::new(plan.offer.clone(), options.seed);
        let own_links = (options.tell_links).then(|| OwnLinks::new(names.len(), plan.host_bps));
        if own_links.is_some() {
            traffic.count_carried();
        }
        if let Some(after_s) = options.misled_after {
            traffic.mislead_after(Duration::from_secs(after_s.into()));
        }
        let local = match allocator {
            // A socket of one family sends to no address of the other.
            SocketAddr::V4(_) => SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, 0)),
        };
        // The answer may be held back for longer than usual.
        let usual = PathConfig::default();
        let held_back = dilation
            .ack_delay
            .saturating_sub(TimeDilation::usual().ack_delay);
        let path = PathConfig {
            answer_timeout_ns: usual.answer_timeout_ns + held_back.as_nanos() as u64,
            ..usual
        };
        let port = match transport {
            TransportKind::Quic => None,
            TransportKind::Udp | TransportKind::Dpdk => Some(
                SealedPort::bind(local, path, Dscp::CS6)
                    .with_context(|| format!("binding {local}"))?,
            ),
        };
        let host = |name: &String| HostSession {
            session: ClientSession::new(ClientConfig {
                host_name: name.clone(),
                // Higher than in earlier runs against the same allocator.
                incarnation: clock::now_ns(),
                software: concat!("ratewright-bench swarm ", env!("CARGO_PKG_VERSION")).to_owned(),
                sealed_udp: transport != TransportKind::Quic,
                ack_delay_ns: dilation.ack_delay_ns(),
                ..ClientConfig::default()
            }),
            decoder: FrameDecoder::new(),
            connection: None,
            frames: None,
            number: None,
            established: false,
            dirty: false,
            scheduled_ns: None,
            heard_ns: 0,
            lease_ns: 0,
            rated_ns: u64::MAX,
        };
        let histogram = || {
            // From 1 ns to a minute, in nanoseconds.
            Histogram::new_with_bounds(1, 60_000_000_000, 3)
                .context("three digits over a minute are valid")
        };
        Ok(Self {
            transport,
            sessions: names.iter().map(host).collect(),
            names,
            inbox,
            arrivals: Vec::new(),
            port,
            by_number: IndexMap::default(),
            timers: Timers::new(),
            topology: TopologyCache::default(),
            read_ns: 0,
            dirty: Vec::new(),
            buffer: Vec::new(),
            actions: Vec::new(),
            late_ns: Vec::new(),
            hosts: Vec::new(),
            up: faults(1),
            down: faults(2),
            own_links,
            interrupted,
            traffic,
            waits: histogram()?,
            late: histogram()?,
            updates: 0,
            sessions_lost: 0,
            leases_lapsed: 0,
            members_heard: 0,
            last_loss: String::new(),
            longest_turn_ns: 0,
            turned_ns: None,
            busy_ns: 0,
            spin_ns: SPIN_NS,
            rest: Duration::ZERO,
        })
    }

    /// Returns the number of hosts whose session's datagrams travel over the transport of the
    /// options.
    #[must_use]
    pub fn ready(&self) -> usize {
        let on_path = |host: &&HostSession| match (&self.port, host.number) {
            (None, number) => number.is_some(),
            (Some(port), Some(number)) => port.path(number) == DatagramPath::Sealed,
            (Some(_), None) => false,
        };
        self.sessions
            .iter()
            .filter(|host| host.established)
            .filter(on_path)
            .count()
    }

    /// Gives all sessions the topology's hosts that the first one has received.
    pub fn share_topology(&mut self) {
        let Some(known) = self.sessions[0].session.known_hosts().cloned() else {
            return;
        };
        for host in &mut self.sessions {
            host.session.set_known_hosts(known.clone());
        }
    }

    /// Returns true if a host has a session.
    #[must_use]
    pub fn is_established(&self, at: usize) -> bool {
        self.sessions[at].established
    }

    /// Closes a host's connection, as a host that goes away.
    pub fn leave(&mut self, at: usize) {
        close_connection(&self.sessions[at]);
    }

    /// The hosts' numbers in the topology, in the order of their names.
    #[must_use]
    pub fn hosts(&self) -> Vec<u32> {
        self.hosts.clone()
    }

    /// Leaves the cores to the connections: input may wait for some milliseconds.
    pub fn take_rests(&mut self) {
        self.spin_ns = 0;
        self.rest = REST;
    }

    /// Serves the sessions until `until_ns`, or until `done` returns true.
    ///
    /// # Errors
    /// When the socket is lost, or the user interrupts.
    pub fn run_until(&mut self, until_ns: u64, mut done: impl FnMut(&Self) -> bool) -> Result<()> {
        loop {
            let now_ns = clock::now_ns();
            if now_ns >= until_ns || done(self) {
                return Ok(());
            }
            // Checked each turn: the allocator's child must be ended in order.
            if self.interrupted.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            if self.turn(now_ns)? {
                self.busy_ns = now_ns;
                if !self.rest.is_zero() {
                    clock::sleep(self.rest);
                }
            } else {
                self.wait(now_ns, until_ns);
            }
        }
    }

    /// Runs one turn of the loop, input first. Returns true if there was work.
    fn turn(&mut self, now_ns: u64) -> Result<bool> {
        let turned_ns = self.turned_ns.replace(now_ns).unwrap_or(now_ns);
        self.longest_turn_ns = self.longest_turn_ns.max(now_ns - turned_ns);
        // Input before timers: a datagram that waits in the socket may be the one that a timer
        // gives up on.
        self.take_arrivals(now_ns);
        let received = self.receive_sealed(now_ns)?;
        let mut busy = received > 0;
        if received < BATCH {
            self.read_ns = now_ns;
        }
        self.pass_late(now_ns);
        busy |= self.pump_dirty();
        // Starts wait for no other datagrams than those of a batch.
        self.act();
        self.tell_links(now_ns);
        busy |= self.pump_dirty();
        self.flush();
        // Timers never run ahead of what was read: a busy program must not look like a dead peer.
        let timers_ns = served_until(self.read_ns, now_ns);
        self.on_timers(timers_ns);
        busy |= self.pump_dirty();
        if let Some(port) = &mut self.port {
            port.on_timeout(timers_ns);
        }
        self.flush();
        Ok(busy || !self.dirty.is_empty())
    }

    fn flush(&mut self) {
        if let Some(port) = &mut self.port {
            port.flush();
        }
    }

    fn wait(&self, now_ns: u64, until_ns: u64) {
        let mut next_ns = until_ns;
        let due = [
            self.timers.next_ns(),
            self.port.as_ref().and_then(SealedPort::next_timeout),
            self.traffic.next_ns(),
            self.up.next_ns(),
            self.down.next_ns(),
            self.own_links.as_ref().map(OwnLinks::next_ns),
        ];
        for at_ns in due.into_iter().flatten() {
            next_ns = next_ns.min(at_ns);
        }
        let wait_ns = next_ns.saturating_sub(now_ns).min(LONGEST_WAIT_NS);
        // A sleep takes longer than this, and its wake-up delays the next flowlet.
        if wait_ns < LEAST_SLEEP_NS || now_ns - self.busy_ns < self.spin_ns {
            // The thread of the QUIC connections may need the core.
            std::thread::yield_now();
            return;
        }
        let mut descriptors = vec![PollFd::new(self.inbox.event().as_fd(), PollFlags::POLLIN)];
        if let Some(port) = &self.port {
            descriptors.push(PollFd::new(port.as_fd(), PollFlags::POLLIN));
        }
        // An interrupted wait is as good as a wake-up.
        let _ = ppoll(
            &mut descriptors,
            Some(TimeSpec::nanoseconds(wait_ns as i64)),
            None,
        );
    }

    fn take_arrivals(&mut self, now_ns: u64) {
        // Taken out, since the handlers below borrow all of `self`; its capacity is kept.
        let mut arrivals = std::mem::take(&mut self.arrivals);
        self.inbox.take(&mut arrivals);
        for arrival in arrivals.drain(..) {
            match arrival {
                SessionInput::Up(at, connection, frames) => {
                    let host = &mut self.sessions[at];
                    host.connection = Some(connection);
                    host.frames = Some(frames);
                    // Half a frame of the former connection must not meet the new stream.
                    host.decoder = FrameDecoder::new();
                    host.session.connected(now_ns);
                    self.touch(at);
                }
                SessionInput::Control(at, bytes) => self.on_control(now_ns, at, &bytes),
                SessionInput::Datagram(at, bytes) => {
                    // Faults hit both transports alike.
                    if self.down.passes(now_ns, at, &bytes) {
                        self.on_datagram(now_ns, at, &bytes);
                    }
                }
                SessionInput::Down(at, reason) => self.on_down(now_ns, at, reason),
            }
        }
        self.arrivals = arrivals;
    }

    fn on_control(&mut self, now_ns: u64, at: usize, bytes: &[u8]) {
        let host = &mut self.sessions[at];
        host.decoder.push(bytes);
        loop {
            match host.decoder.next_frame() {
                Ok(Some(body)) => {
                    // What breaks the protocol shows in the session's counters and its end.
                    let body = self.topology.strip(body);
                    let _ = host.session.on_control(now_ns, &body);
                }
                Ok(None) => break,
                Err(_) => {
                    close_connection(host);
                    break;
                }
            }
        }
        self.touch(at);
    }

    fn on_datagram(&mut self, now_ns: u64, at: usize, bytes: &[u8]) {
        let host = &mut self.sessions[at];
        host.heard_ns = clock::now_ns();
        let _ = host.session.on_datagram(now_ns, bytes);
        self.touch(at);
    }

    fn on_down(&mut self, now_ns: u64, at: usize, reason: String) {
        let host = &mut self.sessions[at];
        if host.established {
            self.sessions_lost += 1;
            // Our own close says nothing; why we closed was noted before.
            if reason != quinn::ConnectionError::LocallyClosed.to_string() {
                self.last_loss = reason;
            }
        // An attempt that failed is reported only while no session was lost.
        } else if self.last_loss.is_empty() {
            self.last_loss = reason;
        }
        host.established = false;
        host.lease_ns = 0;
        host.connection = None;
        host.frames = None;
        if let Some(number) = host.number.take() {
            // The number is the lost session's; the next one brings its own.
            self.by_number.swap_remove(&number);
            if let Some(port) = &mut self.port {
                port.remove(number);
            }
        }
        host.session.disconnected(now_ns);
        self.touch(at);
    }

    /// Takes a batch of sealed datagrams; returns how many those were.
    fn receive_sealed(&mut self, now_ns: u64) -> Result<usize> {
        let Some(port) = &mut self.port else {
            return Ok(0);
        };
        // Split borrows: the port is borrowed by `receive` while the closure runs.
        let (sessions, by_number) = (&mut self.sessions, &self.by_number);
        let (down, dirty) = (&mut self.down, &mut self.dirty);
        port.receive(now_ns, |number, text| {
            let Some(&at) = by_number.get(&number) else {
                return;
            };
            if down.passes(now_ns, at, text) {
                let host = &mut sessions[at];
                host.heard_ns = clock::now_ns();
                // At the time of this datagram and not of the batch, whose later ones have waited
                // longer.
                let _ = host.session.on_datagram(host.heard_ns, text);
                if !std::mem::replace(&mut host.dirty, true) {
                    dirty.push(at);
                }
            }
        })
        .context("receiving sealed datagrams")
    }

    /// Delivers datagrams whose injected delay is over.
    fn pass_late(&mut self, now_ns: u64) {
        while let Some((at, bytes)) = self.down.due(now_ns) {
            self.on_datagram(now_ns, at, &bytes);
        }
        while let Some((at, bytes)) = self.up.due(now_ns) {
            self.transmit(now_ns, at, bytes);
        }
    }

    /// Starts and ends flows.
    fn act(&mut self) {
        // Not the turn's beginning: what was received meanwhile does not delay these flowlets.
        let now_ns = clock::now_ns();
        let mut actions = std::mem::take(&mut self.actions);
        self.traffic.due(now_ns, &mut actions, &mut self.late_ns);
        for late_ns in self.late_ns.drain(..) {
            self.late.saturating_record(late_ns.max(1));
        }
        for action in actions.drain(..) {
            // Fails for a full table only, which `Traffic` does not fill, and for a flow that is
            // unknown, which none of its own is.
            let at = match action {
                TrafficAction::Start(at, record) => {
                    let host = &mut self.sessions[at];
                    if host.session.flows().next().is_none() {
                        host.rated_ns = u64::MAX;
                    }
                    let _ = host.session.start(now_ns, record);
                    at
                }
                TrafficAction::End(at, flow) => {
                    let _ = self.sessions[at].session.end(now_ns, flow);
                    at
                }
            };
            self.touch(at);
        }
        self.actions = actions;
    }

    /// Lets the host whose turn it is tell what its links carry.
    fn tell_links(&mut self, now_ns: u64) {
        let Some(own_links) = &mut self.own_links else {
            return;
        };
        let Some(at) = own_links.take_turn(now_ns) else {
            return;
        };
        let bytes = self.traffic.carried_bytes(now_ns, at);
        let congested = self.traffic.congested(at);
        let Some(access_use) = own_links.look(now_ns, at, bytes, congested) else {
            return;
        };
        let message = Telemetry {
            access_use: Some(Box::new(access_use.clone())),
            ..Telemetry::default()
        };
        // Refused without a session: then the next turn tells it.
        if self.sessions[at].session.send_telemetry(message).is_ok() {
            own_links.told(now_ns, at, access_use);
            self.touch(at);
        }
    }

    fn on_timers(&mut self, now_ns: u64) {
        while let Some((at_ns, at)) = self.timers.pop_due(now_ns) {
            let host = &mut self.sessions[at];
            // An entry that an earlier one has replaced.
            if host.scheduled_ns != Some(at_ns) {
                continue;
            }
            host.scheduled_ns = None;
            host.session.on_timeout(now_ns);
            self.touch(at);
        }
    }

    fn touch(&mut self, at: usize) {
        if !std::mem::replace(&mut self.sessions[at].dirty, true) {
            self.dirty.push(at);
        }
    }

    /// Takes the events and the output of sessions with work. Returns true if there was any.
    fn pump_dirty(&mut self) -> bool {
        if self.dirty.is_empty() {
            return false;
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        let now_ns = clock::now_ns();
        for &at in &dirty {
            self.sessions[at].dirty = false;
            self.take_events(now_ns, at);
        }
        for at in dirty.drain(..) {
            self.pump(now_ns, at);
        }
        // What events brought about is pumped in the next turn, at once.
        dirty.append(&mut self.dirty);
        self.dirty = dirty;
        true
    }

    /// Takes the session's events.
    fn take_events(&mut self, now_ns: u64, at: usize) {
        while let Some(event) = self.sessions[at].session.poll_event() {
            match event {
                ClientEvent::Rate { flow, rate_bps, .. } => {
                    self.updates += 1;
                    // Not when this program gets round to it, but when the datagram was opened.
                    let heard_ns = self.sessions[at].heard_ns;
                    let rated_ns = &mut self.sessions[at].rated_ns;
                    *rated_ns = heard_ns.min(*rated_ns);
                    if let Some(wait_ns) = self.traffic.on_rate(heard_ns, at, flow, rate_bps) {
                        self.waits.saturating_record(wait_ns.max(1));
                    }
                }
                ClientEvent::Established(welcome) => self.on_welcome(now_ns, at, &welcome),
                ClientEvent::Released(_) => {
                    let _ = self.sessions[at].session.confirm_release(0);
                }
                ClientEvent::Refused(refusal) => {
                    self.last_loss.clone_from(&refusal.reason);
                    close_connection(&self.sessions[at]);
                }
                ClientEvent::SessionLost(reason) => {
                    self.last_loss = format!("{reason:?}");
                    close_connection(&self.sessions[at]);
                }
                ClientEvent::LeaseRenewed { expires_ns } => {
                    let host = &mut self.sessions[at];
                    // A host without flows has no rate to lose: it lets its lease run down to the
                    // next keep-alive, and may start a flow beyond it.
                    let had_rates =
                        host.rated_ns < host.lease_ns && host.session.flows().next().is_some();
                    if had_rates && host.heard_ns > host.lease_ns {
                        self.leases_lapsed += 1;
                    }
                    host.lease_ns = expires_ns;
                }
                ClientEvent::Members(change) => {
                    if at == 0 {
                        self.members_heard += (change.joined.len() + change.left.len()) as u64;
                    }
                }
                ClientEvent::Topology(_) => {}
            }
        }
    }

    fn on_welcome(&mut self, now_ns: u64, at: usize, welcome: &Welcome) {
        // Only the first Welcome has the topology; the cache strips it from all others.
        if self.hosts.is_empty() {
            let by_name: IndexMap<&str, u32, FxBuildHasher> = welcome
                .topology
                .hosts
                .iter()
                .map(|host| (host.name.as_str(), host.id))
                .collect();
            let number = |name: &String| by_name.get(name.as_str()).copied();
            self.hosts = self.names.iter().filter_map(number).collect();
        }
        if let Some(own_links) = &mut self.own_links {
            own_links.begin_session(at, welcome.access);
        }
        let host = &mut self.sessions[at];
        host.established = true;
        host.number = Some(welcome.session);
        self.by_number.insert(welcome.session, at);
        if let (Some(port), Some(connection)) = (&mut self.port, &host.connection)
            && let Err(error) = port.add(now_ns, connection, welcome)
        {
            self.last_loss = error.to_string();
            close_connection(host);
        }
    }

    /// Sends the session's output, and schedules its next time-out.
    fn pump(&mut self, now_ns: u64, at: usize) {
        let host = &mut self.sessions[at];
        while let Some(frame) = host.session.poll_control() {
            if let Some(frames) = &host.frames {
                // Fails when the connection is gone; `SessionInput::Down` follows.
                let _ = frames.send(frame);
            }
        }
        // Datagrams wait in the session until there is a connection.
        let Some(connection) = &host.connection else {
            return;
        };
        // `None` if the peer takes no datagrams.
        if let Some(quic_bytes) = connection.max_datagram_size() {
            let max_bytes = match self.port {
                Some(_) => MAX_DATAGRAM_BYTES.min(quic_bytes),
                None => quic_bytes,
            };
            let mut buffer = std::mem::take(&mut self.buffer);
            while self.sessions[at]
                .session
                .poll_datagram(now_ns, max_bytes, &mut buffer)
            {
                if self.up.passes(now_ns, at, &buffer) {
                    buffer = self.transmit(now_ns, at, buffer);
                }
            }
            self.buffer = buffer;
        }
        let host = &mut self.sessions[at];
        if let Some(next_ns) = host.session.next_timeout() {
            // A session that wants its time-out at once would keep this loop from everything else.
            let next_ns = next_ns.max(now_ns + MIN_TIMER_NS);
            // A later time-out finds the earlier entry, which then asks again: no entry is ever
            // removed.
            if host.scheduled_ns.is_none_or(|at_ns| next_ns < at_ns) {
                host.scheduled_ns = Some(next_ns);
                self.timers.insert(now_ns, next_ns, at);
            }
        }
    }

    /// Sends a datagram by the session's path; returns a buffer for the next.
    fn transmit(&mut self, now_ns: u64, at: usize, datagram: Vec<u8>) -> Vec<u8> {
        let host = &self.sessions[at];
        if let (Some(port), Some(number)) = (&mut self.port, host.number)
            // Not sealed: the path is not there (yet), and QUIC carries the datagram.
            && port.send(now_ns, number, &datagram) == SendOutcome::Sealed
        {
            return datagram;
        }
        if let Some(connection) = &host.connection {
            // What cannot be sent is lost, which the protocol mends.
            let _ = connection.send_datagram(datagram.into());
        }
        Vec::new()
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn totals(&self) -> SwarmTotals {
        let mut totals = SwarmTotals {
            updates: self.updates,
            starts: self.traffic.starts,
            ..SwarmTotals::default()
        };
        for host in &self.sessions {
            totals.sessions.add(host.session.counters());
        }
        for connection in self.sessions.iter().filter_map(|p| p.connection.as_ref()) {
            let stats = connection.stats();
            totals.packets_up += stats.udp_tx.datagrams;
            totals.packets_down += stats.udp_rx.datagrams;
            totals.bytes_up += stats.udp_tx.bytes;
            totals.bytes_down += stats.udp_rx.bytes;
        }
        if let Some(port) = &self.port {
            let counters = port.counters();
            totals.packets_up += counters.sealed;
            totals.bytes_up += counters.sealed_bytes;
            totals.packets_down += counters.opened;
            totals.bytes_down += counters.opened_bytes;
        }
        // Sockets count UDP payload; the link carries IP and UDP headers too.
        totals.bytes_up += totals.packets_up * PACKET_OVERHEAD_BYTES;
        totals.bytes_down += totals.packets_down * PACKET_OVERHEAD_BYTES;
        totals
    }

    /// Times that sessions went back from sealed datagrams to QUIC.
    #[must_use]
    pub fn fallbacks(&self) -> u64 {
        self.port.as_ref().map_or(0, SealedPort::fallbacks)
    }

    /// Returns the number of datagrams lost on purpose.
    #[must_use]
    pub fn datagrams_lost(&self) -> u64 {
        self.up.lost + self.down.lost
    }

    /// The flows that a host's session knows.
    #[must_use]
    pub fn view(&self, at: usize) -> FlowSnapshot {
        let flows = self.sessions[at].session.flows();
        flows
            .map(|flow| {
                let state = (flow.record.dst_host(), flow.rate_bps.unwrap_or(0));
                (flow.record.flow().0, state)
            })
            .collect()
    }

    /// Returns the transport of the datagrams.
    #[must_use]
    pub fn transport(&self) -> TransportKind {
        self.transport
    }
}

fn close_connection(host: &HostSession) {
    if let Some(connection) = &host.connection {
        connection.close(0u32.into(), b"the session is over");
    }
}
