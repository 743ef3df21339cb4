//! Core of the service: the hub, the transports, the timers, and the queues of ports.
//!
//! One thread owns it (`core_loop`). Tasks of the service thread hand it work through a ring
//! (`core_handle`), threads of further ports through rings of theirs (`port_loop`). What takes long
//! stays outside: handshakes, keys, the making of an engine.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use quinn::SendDatagramError;
use ratewright_io::timers::Timers;
use ratewright_io::transport::MAX_DATAGRAM_BYTES;
use ratewright_proto::sealed::{SealedCounters, Secret};
use tokio::sync::{Notify, oneshot};

use super::engine_host::EngineHost;
use super::idle::ThreadWaker;
use super::port_loop::{FromPort, PortRings, ToPort};
use super::relayed::Relays;
use super::sealed_port::{PortState, SessionNotice};
use crate::service::admin_request::{TopologyChange, TopologyChangeError, TopologyReport};
use crate::service::config::RelayIdentity;
use crate::service::hub::{Hub, ReadySession};
use crate::service::session_table::SessionTable;
use crate::service::tls::PeerCertificate;

pub(super) mod overview;
mod report;
mod session_transport;

pub(super) use session_transport::Route;
use session_transport::SessionTransport;

/// Delay until what could not be done at its time is tried again.
const RETRY_NS: u64 = 1_000_000;

/// Minimum time to a session's next timeout, even if it asks for none.
const MIN_TIMER_NS: u64 = 100_000;

/// Maximum of control bytes that wait for a peer that does not read.
const MAX_OUTBOX_BYTES: usize = 8 << 20;

/// Time after a sealed datagram during which a QUIC datagram may have been sent before it.
pub(in crate::service) const OVERTAKEN_NS: u64 = 20_000_000;

/// Slots of flow tables per slice of a sweep. The engine's share keeps it small: several
/// microseconds for a flow that takes another path.
const SLOTS_PER_SLICE: usize = 512;

/// Timer entry of the feeds and of members. Sessions start at 1.
const OWN_TIMER: u32 = 0;

/// Part of its life in which the service is.
enum Phase {
    /// No rate is sent before this time: hosts of a former incarnation connect again.
    Grace { ends_ns: u64 },
    /// Rates are sent.
    Serving,
    /// The service is shutting down.
    Draining,
}

/// Timers of sessions, and the one of the core.
struct CoreTimers {
    wheel: Timers<u32>,
    /// Time of the newest entry of the core itself.
    own_ns: Option<u64>,
}

/// Notification of a network change whose sweep is not over.
struct PendingTopologyChange {
    reply: ChangeReply,
    links_changed: usize,
    reroutes_before: u64,
}

/// Sender for the result of a notification.
pub(super) type ChangeReply = oneshot::Sender<Result<TopologyReport, TopologyChangeError>>;

/// Hub, engine, transports and timers of the service; see the [module](self).
pub(super) struct ServiceCore {
    pub(super) hub: Hub,
    pub(super) engine: EngineHost,
    transports: SessionTable<Box<SessionTransport>>,
    timers: CoreTimers,
    ready: Vec<ReadySession>,
    buffer: Vec<u8>,
    /// Sessions with a connection of their own that have later rates to send.
    later: VecDeque<u32>,
    /// Queues of the ports; of one that is absent where QUIC carries everything.
    ports: Vec<PortQueue>,
    phase: Phase,
    /// Notifications whose requesters wait for the end of the sweep.
    pending_changes: Vec<PendingTopologyChange>,
    pub(super) relays: Relays,
    /// End of the validity of our own certificate, in seconds since 1970.
    pub(super) certificate_expires_unix_s: Option<i64>,
}

/// Queue of a port.
pub(super) struct PortQueue {
    pub(super) notices: Vec<SessionNotice>,
    /// Sessions with a first rate to send.
    first: VecDeque<u32>,
    /// Sessions with other datagrams to send.
    ready: VecDeque<u32>,
    /// Newest counters of its thread.
    counters: SealedCounters,
    /// Unless it is open, nothing is queued here.
    state: PortState,
    /// Newest counters of the port.
    port_counters: Vec<(&'static str, u64)>,
    /// Rings to its thread; `None` for the port that the core's own thread serves.
    thread: Option<(PortRings, Arc<ThreadWaker>)>,
}

impl PortQueue {
    /// Makes the queue of a port in this state, which the core's own thread serves, or another one
    /// by rings.
    pub(super) fn new(state: PortState, thread: Option<(PortRings, Arc<ThreadWaker>)>) -> Self {
        Self {
            notices: Vec::new(),
            first: VecDeque::new(),
            ready: VecDeque::new(),
            counters: SealedCounters::default(),
            state,
            port_counters: Vec::new(),
            thread,
        }
    }
}

/// Session that was opened for a connection.
pub(super) struct OpenedSession {
    pub(super) id: u32,
    /// Wakes the writer of its control stream.
    pub(super) outbox_ready: Arc<Notify>,
    /// The allocator's incarnation, if the session may have keys for sealed datagrams.
    pub(super) sealed_epoch: Option<u64>,
}

/// The next step of the writer of a control stream.
pub(super) enum NextFrame {
    /// Write this frame.
    Frame(Bytes),
    /// End the stream, for this reason.
    End(&'static str),
    /// Wait for the outbox.
    None,
}

impl ServiceCore {
    /// Makes the core over the queues of at least one port. No rate is sent before `grace_ends_ns`.
    pub(super) fn new(
        hub: Hub,
        engine: EngineHost,
        ports: Vec<PortQueue>,
        grace_ends_ns: u64,
    ) -> Self {
        Self {
            hub,
            engine,
            transports: SessionTable::default(),
            timers: CoreTimers {
                wheel: Timers::new(),
                own_ns: None,
            },
            ready: Vec::new(),
            buffer: Vec::new(),
            later: VecDeque::new(),
            ports,
            phase: Phase::Grace {
                ends_ns: grace_ends_ns,
            },
            pending_changes: Vec::new(),
            relays: Relays::default(),
            certificate_expires_unix_s: None,
        }
    }

    /// Opens a session for a connection; `None` if the limit is reached.
    pub(super) fn open(
        &mut self,
        now_ns: u64,
        connection: quinn::Connection,
        certificate: PeerCertificate,
    ) -> Option<OpenedSession> {
        let route = Route::Direct(connection);
        let (id, outbox_ready) = self.open_through(now_ns, route, certificate, None)?;
        let sealed_epoch = (self.port_of(id).state == PortState::Open).then(|| self.hub.epoch());
        Some(OpenedSession {
            id,
            outbox_ready,
            sealed_epoch,
        })
    }

    /// Gives a session's port the secret of its keys, before the host's first sealed datagram: its
    /// Welcome, which names the port, follows its Hello.
    pub(super) fn add_secret(&mut self, id: u32, secret: Secret, address: IpAddr) {
        let queue = self.port_of(id);
        if queue.state == PortState::Open {
            queue.notices.push(SessionNotice::Add {
                id,
                secret,
                address,
            });
        }
    }

    /// Returns the queue of a session's port. Session numbers choose it, as the port in the Welcome
    /// does.
    fn port_of(&mut self, id: u32) -> &mut PortQueue {
        let ports = self.ports.len();
        &mut self.ports[id as usize % ports]
    }

    /// Opens a session for a host on this route; `None` if the limit is reached.
    pub(super) fn open_through(
        &mut self,
        now_ns: u64,
        route: Route,
        certificate: PeerCertificate,
        relay: Option<RelayIdentity>,
    ) -> Option<(u32, Arc<Notify>)> {
        let id = self.hub.open_through(now_ns, certificate, relay).ok()?;
        let outbox_ready = Arc::new(Notify::new());
        self.transports.insert(
            id,
            Box::new(SessionTransport {
                route,
                outbox: VecDeque::new(),
                outbox_bytes: 0,
                outbox_ready: Arc::clone(&outbox_ready),
                scheduled_ns: None,
                sealed_ns: None,
                queued_first: false,
                queued: false,
            }),
        );
        Some((id, outbox_ready))
    }

    /// Closes a session whose connection is gone.
    pub(super) fn close(&mut self, now_ns: u64, id: u32, reason: &'static str) {
        self.transports.remove(id);
        let queue = self.port_of(id);
        if queue.state == PortState::Open {
            queue.notices.push(SessionNotice::Remove(id));
        }
        self.hub.remove_session(now_ns, id, reason);
    }

    /// Takes the next frame for the control stream, or says why there is none.
    pub(super) fn next_frame(&mut self, id: u32) -> NextFrame {
        if let Some(transport) = self.transports.get_mut(id)
            && let Some(frame) = transport.outbox.pop_front()
        {
            transport.outbox_bytes -= frame.len();
            return NextFrame::Frame(frame);
        }
        // What the session has said since the last flush goes before its end.
        if let Some(frame) = self.hub.poll_control(id) {
            return NextFrame::Frame(frame);
        }
        self.hub.closing(id).map_or(NextFrame::None, NextFrame::End)
    }

    /// Returns the number of connections with a session.
    pub(super) fn connection_count(&self) -> usize {
        self.transports.len()
    }

    /// Sends the datagrams and frames of ready sessions, and sets the timer of feeds and members.
    pub(super) fn flush(&mut self, now_ns: u64) {
        self.schedule_own(now_ns);
        // Taken out for the loop, which borrows the core, and put back to keep its allocation.
        let mut ready = std::mem::take(&mut self.ready);
        self.hub.drain_ready(now_ns, &mut ready);
        for ReadySession { id, urgent } in ready.drain(..) {
            self.send(now_ns, id, urgent);
        }
        self.ready = ready;
        // Relays' bundles after the sessions that fill them.
        self.relays.flush(&mut self.hub.counts_mut().relay);
    }

    /// Schedules the core's own next timeout: of feeds, members and the start grace.
    fn schedule_own(&mut self, now_ns: u64) {
        let grace_ends_ns = match self.phase {
            Phase::Grace { ends_ns } => Some(ends_ns),
            Phase::Serving | Phase::Draining => None,
        };
        let due = [
            self.hub.next_own_timeout_ns(),
            self.hub.network().next_link_loads_ns(),
            grace_ends_ns,
        ];
        let own_ns = match (due.into_iter().flatten().min(), self.timers.own_ns) {
            // A full queue of engine events puts the feeds off until they are offered again, and
            // sessions hear of members in slices.
            (Some(due_ns), armed_ns) if due_ns <= now_ns => Some(
                armed_ns
                    .filter(|at_ns| *at_ns > now_ns)
                    .unwrap_or(now_ns + RETRY_NS),
            ),
            (due_ns, _) => due_ns,
        };
        // One entry per new time: an outdated entry finds nothing to do.
        if own_ns != self.timers.own_ns {
            self.timers.own_ns = own_ns;
            if let Some(own_ns) = own_ns {
                self.timers.wheel.insert(now_ns, own_ns, OWN_TIMER);
            }
        }
    }

    /// Sends or queues what a session has for its host, and schedules its next timeout. Datagrams
    /// with a first rate (`first`) go ahead of later ones.
    fn send(&mut self, now_ns: u64, id: u32, first: bool) {
        let Some(transport) = self.transports.get_mut(id) else {
            return;
        };
        if transport.sealed_ns.is_some() {
            let port = id as usize % self.ports.len();
            let queue = &mut self.ports[port];
            if first {
                if !std::mem::replace(&mut transport.queued_first, true) {
                    queue.first.push_back(id);
                }
            } else if !std::mem::replace(&mut transport.queued, true) {
                queue.ready.push_back(id);
            }
        } else if let Route::Relay { relay, channel, .. } = transport.route {
            let max_bytes = ratewright_proto::relay::MAX_DATAGRAM_BYTES;
            while self
                .hub
                .poll_datagram(now_ns, id, max_bytes, &mut self.buffer)
            {
                let counts = self.hub.counts_mut();
                counts.datagrams_sent += 1;
                self.relays
                    .bundle(&mut counts.relay, relay, channel, &self.buffer);
            }
        } else if !first && matches!(transport.route, Route::Direct(_)) {
            // Queued, so that connections with first rates do not wait for the others.
            if !std::mem::replace(&mut transport.queued, true) {
                self.later.push_back(id);
            }
        } else if let Route::Direct(connection) = &transport.route
            // `None` if the peer takes no datagrams, so it does not speak our protocol.
            && let Some(max_bytes) = connection.max_datagram_size()
        {
            while self
                .hub
                .poll_datagram(now_ns, id, max_bytes, &mut self.buffer)
            {
                let datagram = std::mem::take(&mut self.buffer);
                match connection.send_datagram(datagram.into()) {
                    Ok(()) => self.hub.counts_mut().datagrams_sent += 1,
                    Err(SendDatagramError::TooLarge) => {
                        // The path's MTU shrank between the two calls. The protocol repeats the
                        // state.
                        self.hub
                            .counts_mut()
                            .datagrams_dropped
                            .count("too_large_to_send");
                    }
                    Err(
                        SendDatagramError::ConnectionLost(_)
                        | SendDatagramError::UnsupportedByPeer
                        | SendDatagramError::Disabled,
                    ) => break,
                }
            }
        }
        while let Some(frame) = self.hub.poll_control(id) {
            transport.outbox_bytes += frame.len();
            transport.outbox.push_back(frame);
        }
        // Memory per session is bounded: a peer that does not read loses its session.
        if transport.outbox_bytes > MAX_OUTBOX_BYTES {
            self.hub.drop_session(now_ns, id, "does_not_read");
        }
        if !transport.outbox.is_empty() || self.hub.closing(id).is_some() {
            transport.outbox_ready.notify_one();
        }
        self.schedule(now_ns, id);
    }

    /// Sends later rates on at most `most` connections, and returns their number.
    pub(super) fn send_later_on_connections(&mut self, now_ns: u64, most: usize) -> usize {
        let mut sent = 0;
        while sent < most
            && let Some(id) = self.later.pop_front()
        {
            if let Some(transport) = self.transports.get_mut(id) {
                transport.queued = false;
                // The host may have changed to sealed datagrams meanwhile.
                let on_quic = transport.sealed_ns.is_none();
                self.send(now_ns, id, on_quic);
                sent += 1;
            }
        }
        sent
    }

    /// Schedules a session's next timeout, unless an earlier entry exists.
    fn schedule(&mut self, now_ns: u64, id: u32) {
        let Some(next_ns) = self.hub.next_timeout(id) else {
            return;
        };
        let next_ns = next_ns.max(now_ns + MIN_TIMER_NS);
        if let Some(transport) = self.transports.get_mut(id)
            && transport
                .scheduled_ns
                .is_none_or(|scheduled_ns| next_ns < scheduled_ns)
        {
            transport.scheduled_ns = Some(next_ns);
            self.timers.wheel.insert(now_ns, next_ns, id);
        }
    }

    /// Returns the time of the earliest timer.
    pub(super) fn next_timer_ns(&self) -> Option<u64> {
        self.timers.wheel.next_ns()
    }

    /// Serves the timers that are due.
    pub(super) fn on_timers(&mut self, now_ns: u64) {
        while let Some((at_ns, id)) = self.timers.wheel.pop_due(now_ns) {
            if id == OWN_TIMER {
                if matches!(self.phase, Phase::Grace { ends_ns } if ends_ns <= now_ns) {
                    self.phase = Phase::Serving;
                }
                self.hub.on_own_timeout(now_ns);
                continue;
            }
            let Some(transport) = self.transports.get_mut(id) else {
                continue;
            };
            // The wheel cannot remove entries. One that a newer entry has replaced is skipped.
            if transport.scheduled_ns != Some(at_ns) {
                continue;
            }
            transport.scheduled_ns = None;
            if self
                .hub
                .next_timeout(id)
                .is_some_and(|due_ns| due_ns <= now_ns)
            {
                // The session becomes ready by it, and is then polled and scheduled again.
                self.hub.on_timeout(now_ns, id);
            } else {
                self.schedule(now_ns, id);
            }
        }
    }

    /// Takes a QUIC datagram of a session. The host may have gone back from sealed datagrams.
    pub(super) fn on_quic(&mut self, now_ns: u64, id: u32, bytes: &[u8]) {
        if self.hub.on_datagram(now_ns, id, bytes)
            && let Some(transport) = self.transports.get_mut(id)
            // A QUIC datagram that sealed ones have overtaken is no change back.
            && transport
                .sealed_ns
                .is_some_and(|at_ns| now_ns.saturating_sub(at_ns) > OVERTAKEN_NS)
        {
            transport.sealed_ns = None;
        }
    }

    /// Takes a sealed datagram of a session, opened.
    pub(super) fn on_sealed(&mut self, now_ns: u64, id: u32, bytes: &[u8]) {
        if self.hub.on_datagram(now_ns, id, bytes)
            && let Some(transport) = self.transports.get_mut(id)
        {
            transport.sealed_ns = Some(now_ns);
        }
    }

    /// Takes the notices for a port.
    pub(super) fn take_notices(&mut self, port: usize) -> Vec<SessionNotice> {
        std::mem::take(&mut self.ports[port].notices)
    }

    /// Stores the counters of a port.
    pub(super) fn set_port_counters(
        &mut self,
        port: usize,
        counters: &SealedCounters,
        of_port: impl FnOnce(&mut dyn FnMut(&'static str, u64)),
    ) {
        let queue = &mut self.ports[port];
        queue.counters = *counters;
        queue.port_counters.clear();
        of_port(&mut |name, count| queue.port_counters.push((name, count)));
    }

    /// Takes what has come from the threads of further ports. True if there was something.
    pub(super) fn take_from_ports(&mut self, now_ns: u64) -> bool {
        let mut any = false;
        for port in 1..self.ports.len() {
            while let Some((rings, _)) = &mut self.ports[port].thread
                && let Ok(message) = rings.from_port.pop()
            {
                any = true;
                match message {
                    FromPort::Datagrams(batch) => {
                        for (id, bytes) in &batch {
                            self.on_sealed(now_ns, *id, bytes);
                        }
                    }
                    FromPort::Figures(counters, of_port) => {
                        let queue = &mut self.ports[port];
                        (queue.counters, queue.port_counters) = (counters, of_port);
                    }
                    FromPort::Lost => self.port_lost(now_ns, port),
                }
            }
        }
        any
    }

    /// Hands the threads of further ports notices and datagrams, as far as they have room: those
    /// with first rates, and at most `later` with later rates each.
    pub(super) fn build_for_ports(&mut self, now_ns: u64, later: usize) {
        for port in 1..self.ports.len() {
            let queue = &mut self.ports[port];
            let Some((rings, waker)) = &mut queue.thread else {
                continue;
            };
            let mut room = rings.to_port.slots();
            let before = room;
            // A session's begin goes before its datagrams.
            let notices = queue.notices.len().min(room);
            for notice in queue.notices.drain(..notices) {
                let _ = rings.to_port.push(ToPort::Notice(notice));
            }
            room -= notices;
            let waker = Arc::clone(waker);
            let mut others = 0;
            while room > 0 && (self.has_first(port) || (others < later && self.has_ready(port))) {
                let mut plain = [(0, Vec::new())];
                let (built, more) = self.build_sealed(now_ns, port, &mut plain, later - others);
                others += more;
                let [(id, plain)] = plain;
                if built > 0
                    && let Some((rings, _)) = &mut self.ports[port].thread
                {
                    let _ = rings.to_port.push(ToPort::Datagram(id, plain));
                    room -= 1;
                }
            }
            if room < before {
                waker.wake();
            }
        }
    }

    /// Records that a port is lost. Its sessions go on with QUIC, and no later session uses it.
    pub(super) fn port_lost(&mut self, now_ns: u64, port: usize) {
        let ports = self.ports.len();
        let queue = &mut self.ports[port];
        queue.state = PortState::Lost;
        queue.notices.clear();
        // No thread builds from these queues any more; the loop below sends their sessions by QUIC.
        queue.first.clear();
        queue.ready.clear();
        self.hub.sealed_port_lost(port);
        let moved: Vec<u32> = self
            .transports
            .iter_mut()
            .filter(|(id, transport)| *id as usize % ports == port && transport.sealed_ns.is_some())
            .map(|(id, transport)| {
                transport.sealed_ns = None;
                (transport.queued, transport.queued_first) = (false, false);
                id
            })
            .collect();
        tracing::error!(
            shard = port,
            sessions = moved.len(),
            "the port of sealed datagrams is lost; its sessions go on with QUIC"
        );
        for id in moved {
            // What was queued for the port leaves by QUIC now.
            self.send(now_ns, id, true);
        }
    }

    /// True while rates may go to sessions: after the start grace, and while the engine has all
    /// flows.
    pub(super) fn rates_open(&self) -> bool {
        // An engine without all flows gives those that it has too much.
        !matches!(self.phase, Phase::Grace { .. }) && !self.hub.is_restarting()
    }

    /// Notes that the service is shutting down.
    pub(super) fn begin_draining(&mut self) {
        self.phase = Phase::Draining;
    }

    /// True once the service is shutting down.
    pub(super) fn is_draining(&self) -> bool {
        matches!(self.phase, Phase::Draining)
    }

    /// Applies a notification of a network change. The reply follows at the end of its sweep.
    pub(super) fn change_topology(
        &mut self,
        now_ns: u64,
        change: &TopologyChange,
        reply: ChangeReply,
    ) {
        let reroutes_before = self.hub.counts().reroutes;
        match self.hub.change_topology(now_ns, change) {
            Ok(links_changed) => {
                tracing::warn!(?change, links_changed, "topology changed");
                self.pending_changes.push(PendingTopologyChange {
                    reply,
                    links_changed,
                    reroutes_before,
                });
                // A small network is swept in this one slice.
                self.sweep(now_ns);
            }
            Err(error) => {
                tracing::warn!(?change, %error, "topology notification refused");
                drop(reply.send(Err(error)));
            }
        }
    }

    /// Sweeps a slice of flows after a change. True if more remain.
    pub(super) fn sweep(&mut self, now_ns: u64) -> bool {
        let restarted = self.hub.is_restarting();
        let more = self.hub.sweep(now_ns, SLOTS_PER_SLICE);
        if restarted && !self.hub.is_restarting() {
            tracing::info!("the engine knows all flows");
        }
        if !more {
            // A requester that is gone needs no reply.
            for change in self.pending_changes.drain(..) {
                let report = self
                    .hub
                    .topology_report(change.links_changed, change.reroutes_before);
                drop(change.reply.send(Ok(report)));
            }
        }
        more
    }

    /// Builds the next datagrams of a port, those with first rates first, then at most
    /// `later` with later rates. Returns the number of all, and of those with later rates.
    pub(super) fn build_sealed(
        &mut self,
        now_ns: u64,
        port: usize,
        plain: &mut [(u32, Vec<u8>)],
        later: usize,
    ) -> (usize, usize) {
        let (mut built, mut others) = (0, 0);
        while built < plain.len() {
            let queue = &mut self.ports[port];
            let (id, first) = match queue.first.pop_front() {
                Some(id) => (id, true),
                // Later rates wait in the queue: newer ones replace them there at no cost.
                None if others >= later => break,
                None => match queue.ready.pop_front() {
                    Some(id) => (id, false),
                    None => break,
                },
            };
            let Some(transport) = self.transports.get_mut(id) else {
                continue;
            };
            if first {
                transport.queued_first = false;
            } else {
                transport.queued = false;
            }
            if transport.sealed_ns.is_none() {
                // The host has gone back to QUIC meanwhile.
                self.send(now_ns, id, first);
                continue;
            }
            let before = built;
            while built < plain.len()
                && self
                    .hub
                    .poll_datagram(now_ns, id, MAX_DATAGRAM_BYTES, &mut plain[built].1)
            {
                plain[built].0 = id;
                built += 1;
            }
            self.hub.counts_mut().datagrams_sent += (built - before) as u64;
            if !first {
                others += built - before;
            }
            if built == plain.len() {
                // The buffers are full, and the session may have more.
                self.send(now_ns, id, first);
            }
            self.schedule(now_ns, id);
        }
        (built, others)
    }

    /// True if a port has datagrams with first rates to build.
    pub(super) fn has_first(&self, port: usize) -> bool {
        !self.ports[port].first.is_empty()
    }

    fn has_ready(&self, port: usize) -> bool {
        !self.ports[port].ready.is_empty()
    }

    /// True if later rates wait for a port or for a connection.
    pub(super) fn has_later(&self) -> bool {
        !self.later.is_empty() || (0..self.ports.len()).any(|port| self.has_ready(port))
    }
}
