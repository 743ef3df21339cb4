//! ServiceCore that the service thread's tasks and the shards' threads share: the hub, the engine's rings,
//! the connections, the timers.
//!
//! One lock guards it. The service thread takes it for QUIC and control streams, each shard's thread to hand
//! in what it has opened and to take out what is to be sealed. Nobody holds it while a shard makes a system
//! call or seals, or while the engine iterates. With QUIC alone there is one thread, and no contention.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use indexmap::IndexMap;
use quinn::SendDatagramError;
use ratewright_io::timers::Timers;
use ratewright_io::transport::{MAX_DATAGRAM_BYTES, secret_of};
use ratewright_proto::sealed::SealedCounters;
use rustc_hash::FxBuildHasher;
use rustls::server::danger::ClientCertVerifier;
use tokio::sync::{Notify, oneshot};

use super::engine_host::{EngineHost, EngineThread, WorkerEngine};
use super::relayed::Relays;
use super::udp_worker::{SessionNotice, WorkerQueue};
use crate::engine::{EngineEvent, RateEngine};
use crate::service::admin_request::{TopologyChange, TopologyChangeError, TopologyReport};
use crate::service::clock;
use crate::service::config::{Config, RelayIdentity};
use crate::service::hub::{Hub, ReadySession, TransportFacts};
use crate::service::status::{EngineFigures, SessionStatus, Snapshot, Status};
use crate::service::tls::PeerCertificate;

/// How soon events are offered again to an engine whose ring was full.
const RING_RETRY_NS: u64 = 1_000_000;

/// A session that is polled and wants its timeout at once all the same waits this long.
const MIN_TIMER_NS: u64 = 100_000;

/// Control bytes that may wait for a peer that does not read them.
const MAX_OUTBOX_BYTES: usize = 8 << 20;

/// A QUIC datagram this soon after a sealed one may have been sent before it.
pub(in crate::service) const OVERTAKEN_NS: u64 = 20_000_000;

/// Slots of flow tables that are looked at in one go after a change of the network. It is the engine's share, several
/// microseconds for a flow that takes another path, that keeps this small.
const FLOWS_AT_ONCE: usize = 512;

/// Sessions, or links, that `/status` looks at in one go.
const LISTED_AT_ONCE: usize = 256;

/// The timer entry of the engine's ring and of external loads that expire; sessions start at 1.
const OWN_TIMER: u32 = 0;

/// How a host's QUIC traffic comes and goes.
pub(super) enum Route {
    /// By a connection of its own.
    Direct(quinn::Connection),
    /// By a relay's connection.
    Relay {
        relay: u32,
        channel: u32,
        /// Where the relay has it from.
        address: SocketAddr,
    },
}

/// The transport's side of a session.
struct SessionTransport {
    route: Route,
    /// Control frames on their way to the stream.
    outbox: VecDeque<Bytes>,
    outbox_bytes: usize,
    /// Wakes the stream's writer.
    outbox_ready: Arc<Notify>,
    /// The time of this session's newest entry among the timers.
    scheduled_ns: Option<u64>,
    /// When a sealed datagram was last taken; answers go there unless the host has gone back to QUIC.
    sealed_ns: Option<u64>,
    /// It stands in its shard's queue of sessions with first rates, and in the other one. It may stand in
    /// both: a first rate does not wait where later ones do.
    queued_first: bool,
    queued: bool,
}

/// A notification whose flows have not all been looked at yet.
struct PendingChange {
    reply: ChangeReply,
    links_changed: usize,
    reroutes_before: u64,
}

/// Takes what came of a notification.
pub(super) type ChangeReply = oneshot::Sender<Result<TopologyReport, TopologyChangeError>>;

/// Hub, engine and connections of the service; see the module.
pub(super) struct ServiceCore {
    pub(super) hub: Hub,
    pub(super) engine: EngineHost,
    transports: IndexMap<u32, Box<SessionTransport>, FxBuildHasher>,
    timers: Timers<u32>,
    timers_changed: Arc<Notify>,
    /// The shard that drives the engine and serves the timers has something to look at.
    wake_engine_worker: bool,
    ring_timer_ns: Option<u64>,
    expiry_timer_ns: Option<u64>,
    ready: Vec<ReadySession>,
    buffer: Vec<u8>,
    /// Sessions with a connection of their own that have later rates to send.
    later: VecDeque<u32>,
    /// There is something in it.
    later_waits: Arc<Notify>,
    /// The shards of sealed datagrams; none where QUIC carries everything.
    workers: Vec<WorkerQueue>,
    /// Rates may be handed out.
    rates_open: bool,
    /// Who waits until all flows have been looked at after a change of the network.
    changes: Vec<PendingChange>,
    /// Wakes the task that looks at flows, where no shard does.
    sweep_due: Arc<Notify>,
    epoch: u64,
    pub(super) relays: Relays,
    /// What certificates of relays' hosts are checked with.
    pub(super) peers: Option<Arc<dyn ClientCertVerifier>>,
    /// Hosts that a relay may have at a time.
    pub(super) max_relay_streams: u32,
    /// The service is shutting down.
    pub(super) draining: bool,
}

/// The state, as tasks hold it.
#[derive(Clone)]
pub(super) struct SharedCore(Arc<Mutex<ServiceCore>>);

impl SharedCore {
    pub(super) fn new(hub: Hub, engine: EngineHost, workers: Vec<WorkerQueue>, epoch: u64) -> Self {
        Self(Arc::new(Mutex::new(ServiceCore {
            hub,
            engine,
            transports: IndexMap::default(),
            timers: Timers::new(),
            timers_changed: Arc::new(Notify::new()),
            wake_engine_worker: false,
            ring_timer_ns: None,
            expiry_timer_ns: None,
            ready: Vec::new(),
            buffer: Vec::new(),
            later: VecDeque::new(),
            later_waits: Arc::new(Notify::new()),
            workers,
            rates_open: false,
            changes: Vec::new(),
            sweep_due: Arc::new(Notify::new()),
            epoch,
            relays: Relays::default(),
            peers: None,
            max_relay_streams: 0,
            draining: false,
        })))
    }

    /// The state.
    ///
    /// # Panics
    /// If a thread has panicked while it changed the state: nobody is to go on with half a change. The process
    /// ends by it.
    pub(super) fn lock(&self) -> MutexGuard<'_, ServiceCore> {
        match self.0.lock() {
            Ok(core) => core,
            Err(_) => panic!("another thread panicked while it changed the service's state"),
        }
    }

    /// Calls `work` with the state and the time, then sends whatever it brought about.
    pub(super) fn run<T>(&self, work: impl FnOnce(&mut ServiceCore, u64) -> T) -> T {
        let mut core = self.lock();
        let now_ns = clock::now_ns();
        let result = work(&mut core, now_ns);
        core.flush(now_ns);
        core.flush_relays();
        core.wake_workers(None);
        result
    }

    /// As [`run`](Self::run), on the thread of a shard, which sends for itself.
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
    /// A session for a connection; nothing if the limit is reached.
    pub(super) fn open(
        &mut self,
        now_ns: u64,
        connection: &quinn::Connection,
        certificate: PeerCertificate,
    ) -> Option<(u32, Arc<Notify>)> {
        let route = Route::Direct(connection.clone());
        let (id, outbox_ready) = self.open_through(now_ns, route, certificate, None)?;
        if let Some(worker) = (id as usize).checked_rem(self.workers.len())
            && !self.workers[worker].lost
            && let Ok(secret) = secret_of(connection, self.epoch, id)
        {
            let queue = &mut self.workers[worker];
            queue.notices.push(SessionNotice::Add {
                id,
                secret,
                address: connection.remote_address().ip().to_canonical(),
            });
            queue.waker.wake();
        }
        Some((id, outbox_ready))
    }

    /// A session for a host that comes this way; nothing if the limit is reached.
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

    /// Sends what was put into relays' bundles.
    fn flush_relays(&mut self) {
        self.relays.flush(&mut self.hub.counts_mut().relay);
    }

    /// The connection of a session is gone.
    pub(super) fn close(&mut self, now_ns: u64, id: u32, reason: &'static str) {
        self.transports.swap_remove(&id);
        if let Some(worker) = (id as usize).checked_rem(self.workers.len())
            && !self.workers[worker].lost
        {
            self.workers[worker].notices.push(SessionNotice::Remove(id));
        }
        self.hub.remove_session(now_ns, id, reason);
    }

    /// The next bytes to write on the control stream.
    pub(super) fn next_frame(&mut self, id: u32) -> Option<Bytes> {
        let transport = self.transports.get_mut(&id)?;
        let frame = transport.outbox.pop_front()?;
        transport.outbox_bytes -= frame.len();
        Some(frame)
    }

    /// Connections with a session.
    pub(super) fn connection_count(&self) -> usize {
        self.transports.len()
    }

    /// Takes so many rates from the engine at most, if they are handed out already. True if more may wait.
    pub(super) fn take_rates(&mut self, now_ns: u64, most: usize) -> bool {
        if !self.rates_open() {
            return false;
        }
        for _ in 0..most {
            match self.engine.pop_update() {
                Some(update) => self.hub.on_rate(now_ns, update),
                None => return false,
            }
        }
        true
    }

    /// Hands events to the engine, and sends what touched sessions have to say.
    pub(super) fn flush(&mut self, now_ns: u64) {
        if self.engine.push_all(self.hub.engine_events()) {
            self.ring_timer_ns = None;
        } else if self.ring_timer_ns.is_none() {
            self.ring_timer_ns = Some(now_ns + RING_RETRY_NS);
            self.add_timer(now_ns, now_ns + RING_RETRY_NS, OWN_TIMER);
        }
        let expiry_ns = self.hub.next_external_expiry();
        if expiry_ns != self.expiry_timer_ns {
            self.expiry_timer_ns = expiry_ns;
            if let Some(expiry_ns) = expiry_ns {
                self.add_timer(now_ns, expiry_ns, OWN_TIMER);
            }
        }
        let mut ready = std::mem::take(&mut self.ready);
        self.hub.drain_ready(now_ns, &mut ready);
        for ReadySession { id, urgent } in ready.drain(..) {
            self.send(now_ns, id, urgent);
        }
        self.ready = ready;
    }

    fn send(&mut self, now_ns: u64, id: u32, first: bool) {
        let Some(transport) = self.transports.get_mut(&id) else {
            return;
        };
        // No datagrams: the connection is closing, or its peer does not speak our protocol.
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
            // Those whose flows wait for a first rate do not wait for the others.
            if !std::mem::replace(&mut transport.queued, true) {
                self.later.push_back(id);
                if self.later.len() == 1 {
                    self.later_waits.notify_one();
                }
            }
        } else if let Route::Direct(connection) = &transport.route
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
                        // The path's MTU shrank between the two calls; the protocol sends it again.
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
        if transport.outbox_bytes > MAX_OUTBOX_BYTES {
            self.hub.drop_session(now_ns, id, "does_not_read");
        }
        if !transport.outbox.is_empty() || self.hub.closing(id).is_some() {
            transport.outbox_ready.notify_one();
        }
        self.schedule(now_ns, id);
    }

    /// Sends later rates on so many connections at most. True if others wait.
    pub(super) fn send_later(&mut self, now_ns: u64, most: usize) -> bool {
        for _ in 0..most {
            let Some(id) = self.later.pop_front() else {
                break;
            };
            if let Some(transport) = self.transports.get_mut(&id) {
                transport.queued = false;
                // The host may have begun to speak sealed datagrams meanwhile.
                let on_quic = transport.sealed_ns.is_none();
                self.send(now_ns, id, on_quic);
            }
        }
        !self.later.is_empty()
    }

    /// Woken when a connection has later rates to send.
    pub(super) fn later_waits(&self) -> Arc<Notify> {
        Arc::clone(&self.later_waits)
    }

    /// Puts a session's next timeout among the timers, unless an entry wakes us before it anyway.
    fn schedule(&mut self, now_ns: u64, id: u32) {
        let Some(next_ns) = self.hub.next_timeout(id) else {
            return;
        };
        let next_ns = next_ns.max(now_ns + MIN_TIMER_NS);
        if let Some(transport) = self.transports.get_mut(&id)
            && transport
                .scheduled_ns
                .is_none_or(|scheduled_ns| next_ns < scheduled_ns)
        {
            transport.scheduled_ns = Some(next_ns);
            self.add_timer(now_ns, next_ns, id);
        }
    }

    fn add_timer(&mut self, now_ns: u64, at_ns: u64, id: u32) {
        let is_first = self.next_timer_ns().is_none_or(|first_ns| at_ns < first_ns);
        self.timers.insert(now_ns, at_ns, id);
        if is_first {
            match self.engine.engine_thread() {
                EngineThread::Own => self.timers_changed.notify_one(),
                EngineThread::UdpWorker => self.wake_engine_worker = true,
            }
        }
    }

    /// When the timers want to be looked at.
    pub(super) fn next_timer_ns(&self) -> Option<u64> {
        self.timers.next_ns()
    }

    /// Wakes the timers' task when an earlier entry came.
    pub(super) fn timers_changed(&self) -> Arc<Notify> {
        Arc::clone(&self.timers_changed)
    }

    /// Serves the timers that are due.
    pub(super) fn on_timers(&mut self, now_ns: u64) {
        while let Some((at_ns, id)) = self.timers.pop_due(now_ns) {
            if id == OWN_TIMER {
                self.ring_timer_ns = None;
                self.hub.expire_external_loads(now_ns);
                continue;
            }
            let Some(transport) = self.transports.get_mut(&id) else {
                continue;
            };
            if transport.scheduled_ns != Some(at_ns) {
                continue;
            }
            transport.scheduled_ns = None;
            if self
                .hub
                .next_timeout(id)
                .is_some_and(|due_ns| due_ns <= now_ns)
            {
                // The session is touched by it, so that it is polled and then scheduled anew.
                self.hub.on_timeout(now_ns, id);
            } else {
                self.schedule(now_ns, id);
            }
        }
    }

    /// A QUIC datagram of a session: the host may have gone back from sealed ones.
    pub(super) fn on_quic(&mut self, now_ns: u64, id: u32, bytes: &[u8]) {
        if self.hub.on_datagram(now_ns, id, bytes)
            && let Some(transport) = self.transports.get_mut(&id)
            // One that sealed datagrams have overtaken means no change of mind.
            && transport
                .sealed_ns
                .is_some_and(|at_ns| now_ns.saturating_sub(at_ns) > OVERTAKEN_NS)
        {
            transport.sealed_ns = None;
        }
    }

    /// A sealed datagram of a session, opened.
    pub(super) fn on_sealed(&mut self, now_ns: u64, id: u32, bytes: &[u8]) {
        if self.hub.on_datagram(now_ns, id, bytes)
            && let Some(transport) = self.transports.get_mut(&id)
        {
            transport.sealed_ns = Some(now_ns);
        }
    }

    /// The shard's thread takes what it was told.
    pub(super) fn sealed_notices(&mut self, worker: usize) -> Vec<SessionNotice> {
        std::mem::take(&mut self.workers[worker].notices)
    }

    /// The shard's thread tells what it has counted, and has its port tell.
    pub(super) fn sealed_counted(
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

    /// A shard has lost its port: its sessions go on with QUIC, and no other is sent there.
    pub(super) fn port_lost(&mut self, now_ns: u64, worker: usize) {
        let workers = self.workers.len();
        let queue = &mut self.workers[worker];
        queue.lost = true;
        queue.notices.clear();
        queue.first.clear();
        queue.ready.clear();
        self.hub.sealed_port_lost(worker);
        let moved: Vec<u32> = self
            .transports
            .iter_mut()
            .filter(|(id, transport)| {
                **id as usize % workers == worker && transport.sealed_ns.is_some()
            })
            .map(|(&id, transport)| {
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
            // What was queued there leaves by QUIC now.
            self.send(now_ns, id, true);
        }
    }

    /// From now on rates are handed out.
    pub(super) fn open_rates(&mut self) {
        self.rates_open = true;
        self.wake_engine_worker = true;
    }

    /// Whether rates are handed out. Not while a new engine does not know all flows.
    pub(super) fn rates_open(&self) -> bool {
        self.rates_open && !self.hub.is_restarting()
    }

    /// Carries out a notification about the network, and answers it when all flows have been looked at.
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
                self.changes.push(PendingChange {
                    reply,
                    links_changed,
                    reroutes_before,
                });
                // Where there are few flows, that is all.
                self.sweep(now_ns);
            }
            Err(error) => {
                tracing::warn!(?change, %error, "topology notification refused");
                drop(reply.send(Err(error)));
            }
        }
    }

    /// Looks at some flows after a change. True if there are more.
    pub(super) fn sweep(&mut self, now_ns: u64) -> bool {
        let restarted = self.hub.is_restarting();
        let more = self.hub.sweep(now_ns, FLOWS_AT_ONCE);
        if restarted && !self.hub.is_restarting() {
            tracing::info!("the engine knows all flows");
            // What it has told may be handed out.
            self.engine.signal().notify();
        }
        if !more {
            // An asker that is gone needs no answer.
            for change in self.changes.drain(..) {
                let report = self
                    .hub
                    .topology_report(change.links_changed, change.reroutes_before);
                drop(change.reply.send(Ok(report)));
            }
        }
        more
    }

    /// Whether flows are to be looked at.
    pub(super) fn can_sweep(&self) -> bool {
        self.hub.can_sweep()
    }

    /// Woken when flows are to be looked at, where no shard does it.
    pub(super) fn sweep_due(&self) -> Arc<Notify> {
        Arc::clone(&self.sweep_due)
    }

    /// Puts another engine in the place of the one before. It knows no flows.
    pub(super) fn replace_engine(&mut self, config: &Config, engine: Box<dyn RateEngine>) {
        self.engine.replace(config, engine);
        self.wake_engine_worker = true;
    }

    /// For the shard that drives the engine: another engine, if there is one, and the events that wait. Those
    /// before the engine were meant for the one before it, and are gone.
    pub(super) fn drive(
        &mut self,
        events: &mut VecDeque<EngineEvent>,
    ) -> Option<Box<WorkerEngine>> {
        let engine = self.engine.take_engine();
        if engine.is_some() {
            events.clear();
        }
        events.append(self.hub.engine_events());
        engine
    }

    /// Builds a shard's next datagrams, those with a first rate before the others, of which there are to be no
    /// more than `later`; returns how many, and how many of them are such others.
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
                None if others >= later => break,
                None => match queue.ready.pop_front() {
                    Some(id) => (id, false),
                    None => break,
                },
            };
            let Some(transport) = self.transports.get_mut(&id) else {
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
                // There may be more of this session.
                self.send(now_ns, id, first);
            }
            self.schedule(now_ns, id);
        }
        (built, others)
    }

    /// Whether a shard has datagrams with first rates to build, and others.
    pub(super) fn sealed_waits(&self, worker: usize) -> (bool, bool) {
        let queue = &self.workers[worker];
        (!queue.first.is_empty(), !queue.ready.is_empty())
    }

    /// Wakes the shards that have something to send, and the one that drives the engine if that has
    /// something to do.
    fn wake_workers(&mut self, but: Option<usize>) {
        let by_worker = self.engine.engine_thread() == EngineThread::UdpWorker;
        let sweeps = self.hub.can_sweep();
        if sweeps && !by_worker {
            self.sweep_due.notify_one();
        }
        let for_driver = std::mem::take(&mut self.wake_engine_worker)
            | (by_worker && (sweeps || !self.hub.engine_events().is_empty()));
        for (index, queue) in self.workers.iter().enumerate() {
            let waits = !(queue.first.is_empty() && queue.ready.is_empty());
            if Some(index) != but && (waits || (for_driver && index == 0)) {
                queue.waker.wake();
            }
        }
    }

    /// What all shards have counted.
    fn sealed_counters(&self) -> SealedCounters {
        let mut total = SealedCounters::default();
        for queue in &self.workers {
            total.add(&queue.counters);
        }
        total
    }

    /// What all ports have counted.
    fn port_counters(&self) -> Vec<(&'static str, u64)> {
        let mut total: IndexMap<&'static str, u64> = IndexMap::new();
        for &(name, count) in self.workers.iter().flat_map(|queue| &queue.port_counters) {
            *total.entry(name).or_default() += count;
        }
        total.into_iter().collect()
    }

    fn facts(&self, transport: &SessionTransport) -> TransportFacts {
        let (rtt, address) = match &transport.route {
            Route::Direct(connection) => {
                (connection.rtt(), connection.remote_address().to_string())
            }
            Route::Relay { relay, address, .. } => {
                let (rtt, name) = self.relays.facts(*relay).unwrap_or_default();
                (rtt, format!("{address} by {name}"))
            }
        };
        TransportFacts {
            rtt_us: u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX),
            address,
        }
    }

    /// Counts and figures: what `/metrics` and the head of `/status` are made of. Looks at no session.
    pub(super) fn snapshot(&self) -> Snapshot {
        let stats = self.engine.stats();
        let histogram = self.engine.histogram();
        let mut status = self.hub.status(&stats);
        status.sealed_ports_lost = self.workers.iter().filter(|queue| queue.lost).count() as u64;
        status.pinned_core = self.engine.pinned_core();
        status.iteration.count = histogram.iterations();
        let (events, events_refused) = self.engine.event_totals();
        Snapshot {
            status,
            totals: self.hub.totals(),
            counts: self.hub.counts().clone(),
            sealed: self.sealed_counters(),
            port: self.port_counters(),
            engine: EngineFigures {
                events,
                events_refused,
                iterations: histogram.iterations(),
                iteration_buckets: histogram.cumulative(),
                iteration_seconds_sum: histogram.seconds_sum(),
                max_overload: stats.last_report.max_overload,
                exceptions: stats.exceptions,
            },
        }
    }

    /// What `/status` says of these sessions.
    fn session_statuses(&self, now_ns: u64, ids: &[u32], into: &mut Vec<SessionStatus>) {
        into.extend(ids.iter().filter_map(|&id| {
            let facts = |id| {
                let transport = self.transports.get(&id);
                transport.map_or_else(TransportFacts::default, |transport| self.facts(transport))
            };
            self.hub.session_status(now_ns, id, facts)
        }));
    }
}

impl SharedCore {
    /// The body of `/status`. What it lists is looked at a few at a time: who hands in datagrams waits for no more.
    pub(super) async fn status(&self) -> Status {
        let (mut status, ids) = {
            let core = self.lock();
            (core.snapshot().status, core.hub.session_ids())
        };
        for some in ids.chunks(LISTED_AT_ONCE) {
            self.lock()
                .session_statuses(clock::now_ns(), some, &mut status.sessions);
            tokio::task::yield_now().await;
        }
        status.sessions.sort_by(|a, b| a.host.cmp(&b.host));
        let mut from = Some(0);
        while let Some(link) = from {
            let into = &mut status.external;
            let now_ns = clock::now_ns();
            from = (self.lock().hub).external_status(now_ns, link, LISTED_AT_ONCE, into);
            tokio::task::yield_now().await;
        }
        from = Some(0);
        while let Some(link) = from {
            let into = &mut status.links_down;
            from = self.lock().hub.links_down(link, LISTED_AT_ONCE, into);
            tokio::task::yield_now().await;
        }
        status
    }
}
