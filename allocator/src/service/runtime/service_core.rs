//! Core of the service, which the service thread's tasks and the UDP workers share: the hub, the
//! engine's queues, the transports, the timers.
//!
//! One lock guards it. The service thread takes it for QUIC and control streams. A worker takes it
//! to hand in the datagrams that it has opened and to take those that it will seal; the first one
//! also for the engine's events and rates, and for timers. No thread holds it during a system call,
//! a cipher or an iteration.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use quinn::SendDatagramError;
use ratewright_io::timers::Timers;
use ratewright_io::transport::{MAX_DATAGRAM_BYTES, secret_of};
use ratewright_proto::sealed::SealedCounters;
use rustls::server::danger::ClientCertVerifier;
use tokio::sync::{Notify, oneshot};

use super::engine_host::{EngineHost, WorkerEngine};
use super::relayed::Relays;
use super::udp_worker::{PortState, SessionNotice, WorkerQueue};
use crate::engine::{EngineEvent, RateEngine};
use crate::service::admin_request::{TopologyChange, TopologyChangeError, TopologyReport};
use crate::service::clock;
use crate::service::config::{Config, RelayIdentity};
use crate::service::hub::{Hub, ReadySession};
use crate::service::session_table::SessionTable;
use crate::service::tls::PeerCertificate;

mod overview;
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
    timers: Timers<u32>,
    /// The first worker, which drives the engine, serves the timers and sweeps, has something to
    /// do.
    wake_driver: bool,
    expiry_timer_ns: Option<u64>,
    ready: Vec<ReadySession>,
    buffer: Vec<u8>,
    /// Sessions with a connection of their own that have later rates to send.
    later: VecDeque<u32>,
    /// Wakes the rates' task when `later` has an entry.
    later_waits: Arc<Notify>,
    /// Queues of the workers; one without a port where QUIC carries everything.
    workers: Vec<WorkerQueue>,
    /// The start grace is over.
    rates_open: bool,
    /// Notifications whose requesters wait for the end of the sweep.
    pending_changes: Vec<PendingTopologyChange>,
    epoch: u64,
    pub(super) relays: Relays,
    /// Verifier of the certificates of relays' hosts.
    pub(super) peers: Option<Arc<dyn ClientCertVerifier>>,
    /// End of the validity of our own certificate, in seconds since 1970.
    pub(super) certificate_expires_unix_s: Option<i64>,
    /// Maximum number of hosts of a relay.
    pub(super) max_relay_streams: u32,
    /// The service is shutting down.
    pub(super) draining: bool,
}

/// Handle to the core. Clones share it.
#[derive(Clone)]
pub(super) struct SharedCore(Arc<Mutex<ServiceCore>>);

impl SharedCore {
    pub(super) fn new(hub: Hub, engine: EngineHost, workers: Vec<WorkerQueue>, epoch: u64) -> Self {
        Self(Arc::new(Mutex::new(ServiceCore {
            hub,
            engine,
            transports: SessionTable::default(),
            timers: Timers::new(),
            wake_driver: false,
            expiry_timer_ns: None,
            ready: Vec::new(),
            buffer: Vec::new(),
            later: VecDeque::new(),
            later_waits: Arc::new(Notify::new()),
            workers,
            rates_open: false,
            pending_changes: Vec::new(),
            epoch,
            relays: Relays::default(),
            peers: None,
            max_relay_streams: 0,
            certificate_expires_unix_s: None,
            draining: false,
        })))
    }

    /// Locks the core.
    ///
    /// # Panics
    /// A thread has panicked while it changed the core: none may go on with half a change. The
    /// process ends by it.
    pub(super) fn lock(&self) -> MutexGuard<'_, ServiceCore> {
        match self.0.lock() {
            Ok(core) => core,
            Err(_) => panic!("another thread panicked while it changed the service's state"),
        }
    }

    /// Calls `work` with the core and the time, then sends all datagrams and frames that result.
    pub(super) fn run<T>(&self, work: impl FnOnce(&mut ServiceCore, u64) -> T) -> T {
        let mut core = self.lock();
        // Read under the lock, so that the core's time never goes back.
        let now_ns = clock::now_ns();
        let result = work(&mut core, now_ns);
        // Relays' bundles after the sessions that fill them, wake-ups last, when all queues are
        // filled.
        core.flush(now_ns);
        core.flush_relays();
        core.wake_workers(None);
        result
    }

    /// Calls `work` as [`run`](Self::run) does, on a UDP worker, which sends for itself.
    pub(super) fn run_on_worker<T>(
        &self,
        worker: usize,
        work: impl FnOnce(&mut ServiceCore, u64) -> T,
    ) -> T {
        let mut core = self.lock();
        let result = work(&mut core, clock::now_ns());
        core.flush_relays();
        core.wake_workers(Some(worker));
        result
    }
}

impl ServiceCore {
    /// Opens a session for a connection; `None` if the limit is reached.
    pub(super) fn open(
        &mut self,
        now_ns: u64,
        connection: &quinn::Connection,
        certificate: PeerCertificate,
    ) -> Option<(u32, Arc<Notify>)> {
        let route = Route::Direct(connection.clone());
        let (id, outbox_ready) = self.open_through(now_ns, route, certificate, None)?;
        // Session numbers choose the worker, as the port in the Welcome does.
        if let Some(worker) = (id as usize).checked_rem(self.workers.len())
            && self.workers[worker].port == PortState::Open
            && let Ok(secret) = secret_of(connection, self.epoch, id)
        {
            let queue = &mut self.workers[worker];
            queue.notices.push(SessionNotice::Add {
                id,
                secret,
                address: connection.remote_address().ip().to_canonical(),
            });
            // Woken now, so that it has the keys before the host's first sealed datagram.
            queue.waker.wake();
        }
        Some((id, outbox_ready))
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

    /// Sends the bundles of relays that have begun.
    fn flush_relays(&mut self) {
        self.relays.flush(&mut self.hub.counts_mut().relay);
    }

    /// Closes a session whose connection is gone.
    pub(super) fn close(&mut self, now_ns: u64, id: u32, reason: &'static str) {
        self.transports.remove(id);
        if let Some(worker) = (id as usize).checked_rem(self.workers.len())
            && self.workers[worker].port == PortState::Open
        {
            self.workers[worker].notices.push(SessionNotice::Remove(id));
        }
        self.hub.remove_session(now_ns, id, reason);
    }

    /// Takes the next frame for the control stream.
    pub(super) fn next_frame(&mut self, id: u32) -> Option<Bytes> {
        let transport = self.transports.get_mut(id)?;
        let frame = transport.outbox.pop_front()?;
        transport.outbox_bytes -= frame.len();
        Some(frame)
    }

    /// Returns the number of connections with a session.
    pub(super) fn connection_count(&self) -> usize {
        self.transports.len()
    }

    /// Sends the datagrams and frames of ready sessions, and sets the timer of feeds and members.
    pub(super) fn flush(&mut self, now_ns: u64) {
        // Only the thread that drives the engine knows the loads, and it may sleep.
        let due = [
            self.hub.next_feeds_ns(),
            self.hub.next_link_loads_ns(),
            self.hub.next_members_ns(),
        ];
        let expiry_ns = match (due.into_iter().flatten().min(), self.expiry_timer_ns) {
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
        if expiry_ns != self.expiry_timer_ns {
            self.expiry_timer_ns = expiry_ns;
            if let Some(expiry_ns) = expiry_ns {
                self.add_timer(now_ns, expiry_ns, OWN_TIMER);
            }
        }
        // Taken out for the loop, which borrows the core, and put back to keep its allocation.
        let mut ready = std::mem::take(&mut self.ready);
        self.hub.drain_ready(now_ns, &mut ready);
        for ReadySession { id, urgent } in ready.drain(..) {
            self.send(now_ns, id, urgent);
        }
        self.ready = ready;
    }

    /// Sends or queues what a session has for its host, and schedules its next timeout. Datagrams
    /// with a first rate (`first`) go ahead of later ones.
    fn send(&mut self, now_ns: u64, id: u32, first: bool) {
        let Some(transport) = self.transports.get_mut(id) else {
            return;
        };
        if transport.sealed_ns.is_some() {
            let worker = id as usize % self.workers.len();
            let queue = &mut self.workers[worker];
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
                if self.later.len() == 1 {
                    self.later_waits.notify_one();
                }
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

    /// Sends later rates on at most `max` connections. True if others wait.
    pub(super) fn send_later(&mut self, now_ns: u64, max: usize) -> bool {
        for _ in 0..max {
            let Some(id) = self.later.pop_front() else {
                break;
            };
            if let Some(transport) = self.transports.get_mut(id) {
                transport.queued = false;
                // The host may have changed to sealed datagrams meanwhile.
                let on_quic = transport.sealed_ns.is_none();
                self.send(now_ns, id, on_quic);
            }
        }
        !self.later.is_empty()
    }

    /// Returns the wake-up for later rates on connections.
    pub(super) fn later_waits(&self) -> Arc<Notify> {
        Arc::clone(&self.later_waits)
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
            self.add_timer(now_ns, next_ns, id);
        }
    }

    fn add_timer(&mut self, now_ns: u64, at_ns: u64, id: u32) {
        // The thread that serves the timers sleeps until the earliest one, so only an earlier one
        // has to wake it.
        let is_first = self.next_timer_ns().is_none_or(|first_ns| at_ns < first_ns);
        self.timers.insert(now_ns, at_ns, id);
        self.wake_driver |= is_first;
    }

    /// Returns the time of the earliest timer.
    pub(super) fn next_timer_ns(&self) -> Option<u64> {
        self.timers.next_ns()
    }

    /// Serves the timers that are due.
    pub(super) fn on_timers(&mut self, now_ns: u64) {
        while let Some((at_ns, id)) = self.timers.pop_due(now_ns) {
            if id == OWN_TIMER {
                self.hub.apply_feeds(now_ns);
                self.hub.advance_members(now_ns);
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

    /// Takes the notices for a UDP worker.
    pub(super) fn take_notices(&mut self, worker: usize) -> Vec<SessionNotice> {
        std::mem::take(&mut self.workers[worker].notices)
    }

    /// Stores the counters of a UDP worker and of its port.
    pub(super) fn set_worker_counters(
        &mut self,
        worker: usize,
        counters: &SealedCounters,
        port: impl FnOnce(&mut dyn FnMut(&'static str, u64)),
    ) {
        let queue = &mut self.workers[worker];
        queue.counters = *counters;
        queue.port_counters.clear();
        port(&mut |name, count| queue.port_counters.push((name, count)));
    }

    /// Records that a UDP worker lost its port. Its sessions go on with QUIC, and no later session
    /// uses it.
    pub(super) fn port_lost(&mut self, now_ns: u64, worker: usize) {
        let workers = self.workers.len();
        let queue = &mut self.workers[worker];
        queue.port = PortState::Lost;
        queue.notices.clear();
        // No thread builds from these queues any more; the loop below sends their sessions by QUIC.
        queue.first.clear();
        queue.ready.clear();
        self.hub.sealed_port_lost(worker);
        let moved: Vec<u32> = self
            .transports
            .iter_mut()
            .filter(|(id, transport)| {
                *id as usize % workers == worker && transport.sealed_ns.is_some()
            })
            .map(|(id, transport)| {
                transport.sealed_ns = None;
                (transport.queued, transport.queued_first) = (false, false);
                id
            })
            .collect();
        tracing::error!(
            shard = worker,
            sessions = moved.len(),
            "the port of sealed datagrams is lost; its sessions go on with QUIC"
        );
        for id in moved {
            // What was queued for the worker leaves by QUIC now.
            self.send(now_ns, id, true);
        }
    }

    /// Ends the start grace: rates are handed to sessions from now on.
    pub(super) fn open_rates(&mut self) {
        self.rates_open = true;
        self.wake_driver = true;
    }

    /// True while rates may go to sessions: after the start grace, and while the engine has all
    /// flows.
    pub(super) fn rates_open(&self) -> bool {
        // An engine without all flows gives those that it has too much.
        self.rates_open && !self.hub.is_restarting()
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
            // Its rates may go to sessions now.
            self.wake_driver = true;
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

    /// True if a sweep has something to do.
    pub(super) fn can_sweep(&self) -> bool {
        self.hub.can_sweep()
    }

    /// Replaces the engine by one without flows.
    pub(super) fn replace_engine(&mut self, config: &Config, engine: Box<dyn RateEngine>) {
        self.engine.replace(config, engine);
        self.wake_driver = true;
    }

    /// Hands the waiting events to the worker that drives the engine, and a new engine if there
    /// is one. Events from before a new engine were meant for its predecessor and are dropped.
    pub(super) fn take_engine_work(
        &mut self,
        events: &mut VecDeque<EngineEvent>,
    ) -> Option<Box<WorkerEngine>> {
        let engine = self.engine.take_engine();
        // A new engine gets all flows from the sweep that `restart_flows` has begun.
        if engine.is_some() {
            events.clear();
        }
        events.append(self.hub.engine_events());
        engine
    }

    /// Builds the next datagrams of a UDP worker, those with first rates first, then at most
    /// `later` with later rates. Returns the number of all, and of those with later rates.
    pub(super) fn build_sealed(
        &mut self,
        now_ns: u64,
        worker: usize,
        plain: &mut [(u32, Vec<u8>)],
        later: usize,
    ) -> (usize, usize) {
        let (mut built, mut others) = (0, 0);
        while built < plain.len() {
            let queue = &mut self.workers[worker];
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

    /// Returns whether a UDP worker has datagrams with first rates to build, and whether others.
    pub(super) fn worker_has_datagrams(&self, worker: usize) -> (bool, bool) {
        let queue = &self.workers[worker];
        (!queue.first.is_empty(), !queue.ready.is_empty())
    }

    /// Wakes the workers that have something to send, and the one that drives the engine if it has
    /// something to do; not the worker `except`, which runs already.
    fn wake_workers(&mut self, except: Option<usize>) {
        let wakes_driver = std::mem::take(&mut self.wake_driver)
            | self.hub.can_sweep()
            | !self.hub.engine_events().is_empty();
        for (index, queue) in self.workers.iter().enumerate() {
            let waits = !(queue.first.is_empty() && queue.ready.is_empty());
            if Some(index) != except && (waits || (wakes_driver && index == 0)) {
                queue.waker.wake();
            }
        }
    }
}
