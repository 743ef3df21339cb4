//! UDP workers: a port for sealed datagrams and its thread.
//!
//! Session `id` belongs to worker `id % workers`. That worker alone holds its keys, receives on the
//! UDP port that the session's Welcome names, opens and seals. The state machine is the one that
//! serves QUIC datagrams. The thread holds the core's lock only while it hands in opened datagrams
//! and takes those to seal, never during a system call or a cipher.
//!
//! A worker builds datagrams only when it can send them. If the port is full, sessions wait in
//! their queues, and newer rates replace older ones in the flow tables. No worker waits for the
//! engine.
//!
//! The first worker also drives the engine (`co_located_engine`), serves the timers and sweeps. With
//! one port nothing between a start and its first rate waits for another thread. Where QUIC carries
//! everything, that worker has no port.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use ratewright_io::sched;
use ratewright_io::timers::served_until;
use ratewright_io::transport::MAX_DATAGRAM_BYTES;
use ratewright_io::udp::{BATCH, BatchSent, Ends, PacketPort, SendBatch};
use ratewright_proto::sealed::{HEADER_BYTES, SealedConfig, SealedCounters, Secret};

use super::co_located_engine::CoLocatedEngine;
use super::engine_host::EngineSignal;
use super::idle::{IdlePolicy, IdleWait, ThreadWaker};
use super::service_core::SharedCore;
use crate::service::clock;
use crate::service::sealed_peers::SealedPeers;

/// Datagrams with later rates that are sent before the next poll of the port.
const LATER_AT_ONCE: usize = 1;

/// Polls of a busy port between two longer tasks. A datagram may bring the end of a flow, and the
/// next one, a few microseconds later, the start of another on its link.
const POLLS: u32 = 4;

/// Sending later rates takes at most `1 / LATER_SHARE` of the thread's time. A host that gets its
/// rates a little later gets newer ones. Without the bound first rates would wait behind later
/// ones.
const LATER_SHARE: u64 = 4;

/// Bound in place of [`LATER_SHARE`] while the port is behind. Each datagram of later rates brings
/// an acknowledgement, behind which leases and starts wait. Meanwhile newer rates replace older
/// ones.
const LATER_SHARE_BEHIND: u64 = 32;

/// Time without an empty read after which the port counts as behind: it fills as fast as it is
/// read.
const BEHIND_NS: u64 = 1_000_000;

/// Maximum time that counts as sending. What takes longer is an interruption of the thread.
const LONGEST_SENDING_NS: u64 = 100_000;

/// Notice to a UDP worker about a session.
pub(super) enum SessionNotice {
    /// A session has begun.
    Add {
        id: u32,
        secret: Secret,
        address: IpAddr,
    },
    /// A session is over.
    Remove(u32),
}

/// Queue of a UDP worker, which the core holds.
pub(super) struct WorkerQueue {
    pub(super) waker: Arc<ThreadWaker>,
    pub(super) notices: Vec<SessionNotice>,
    /// Sessions with a first rate to send.
    pub(super) first: VecDeque<u32>,
    /// Sessions with other datagrams to send.
    pub(super) ready: VecDeque<u32>,
    /// Newest counters of the worker.
    pub(super) counters: SealedCounters,
    /// Without a port nothing is queued here.
    pub(super) port: PortState,
    /// Newest counters of its port.
    pub(super) port_counters: Vec<(&'static str, u64)>,
}

/// State of a worker's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PortState {
    /// QUIC carries everything.
    Absent,
    /// Its sessions may use it.
    Open,
    /// It cannot be used any more.
    Lost,
}

/// The port of a worker that has none.
pub(super) struct NoPort;

impl PacketPort for NoPort {
    fn receive(&mut self) -> io::Result<usize> {
        Ok(0)
    }

    fn datagram(&mut self, _index: usize) -> (&mut [u8], Option<Ends>) {
        (&mut [], None)
    }

    fn send(&mut self, batch: &mut SendBatch) -> io::Result<BatchSent> {
        batch.clear();
        Ok(BatchSent::default())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Work during one exchange with the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExchangeScope {
    /// Hand in opened datagrams and take the engine's events.
    HandIn,
    /// Hand in, and build urgent datagrams: first rates, acknowledgements, answers to probes.
    Urgent,
    /// Serve timers, hand over and build a few later rates, sweep.
    Background,
}

/// UDP worker: a port and the settings of its thread.
pub(super) struct UdpWorker<P> {
    port: P,
    has_port: bool,
    waker: Arc<ThreadWaker>,
    config: SealedConfig,
    policy: IdlePolicy,
}

/// Threads of all UDP workers; they end when this is dropped.
#[derive(Default)]
pub(super) struct UdpWorkerThreads(Vec<(Arc<ThreadWaker>, JoinHandle<()>)>);

impl Drop for UdpWorkerThreads {
    fn drop(&mut self) {
        for (waker, thread) in self.0.drain(..) {
            waker.stop();
            let _ = thread.join();
        }
    }
}

impl UdpWorker<NoPort> {
    /// Creates a worker without a port, and its queue.
    pub(super) fn without_port(policy: IdlePolicy) -> io::Result<(Self, WorkerQueue)> {
        let (mut worker, mut queue) = Self::new(NoPort, SealedConfig::default(), policy)?;
        worker.has_port = false;
        queue.port = PortState::Absent;
        Ok((worker, queue))
    }
}

impl<P: PacketPort + Send + 'static> UdpWorker<P> {
    /// Creates a worker on `port`, and its queue.
    pub(super) fn new(
        port: P,
        config: SealedConfig,
        policy: IdlePolicy,
    ) -> io::Result<(Self, WorkerQueue)> {
        let waker = Arc::new(ThreadWaker::new()?);
        let queue = WorkerQueue {
            waker: Arc::clone(&waker),
            notices: Vec::new(),
            first: VecDeque::new(),
            ready: VecDeque::new(),
            counters: SealedCounters::default(),
            port: PortState::Open,
            port_counters: Vec::new(),
        };
        let worker = Self {
            port,
            has_port: true,
            waker,
            config,
            policy,
        };
        Ok((worker, queue))
    }
}

/// Starts the workers' threads.
pub(super) fn start<P: PacketPort + Send + 'static>(
    workers: Vec<UdpWorker<P>>,
    shared: &SharedCore,
    signal: &Arc<EngineSignal>,
) -> io::Result<UdpWorkerThreads> {
    let mut threads = UdpWorkerThreads::default();
    for (index, worker) in workers.into_iter().enumerate() {
        let waker = Arc::clone(&worker.waker);
        let name = if worker.has_port {
            format!("sealed-{index}")
        } else {
            "rate-engine".to_owned()
        };
        let engine = (index == 0).then(|| CoLocatedEngine::new(signal));
        let worker_loop =
            WorkerLoop::new(index, worker, shared.clone(), Arc::clone(signal), engine);
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || worker_loop.run())?;
        threads.0.push((waker, thread));
    }
    Ok(threads)
}

/// Records a panic of the loop of a worker with a port, whose datagrams are lost by it.
struct PanicGuard(Arc<EngineSignal>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set_panicked();
            self.0.notify();
        }
    }
}

/// Loop of a UDP worker's thread.
struct WorkerLoop<P> {
    index: usize,
    worker: UdpWorker<P>,
    shared: SharedCore,
    signal: Arc<EngineSignal>,
    peers: SealedPeers<()>,
    outgoing: SendBatch,
    /// Plain datagrams from the core for the cipher, by session.
    plain: Vec<(u32, Vec<u8>)>,
    /// Opened datagrams: session, index in the port's batch, length of the plain text behind the
    /// header.
    opened: Vec<(u32, usize, usize)>,
    /// Sessions with a probe to answer.
    probes: Vec<u32>,
    counters: SealedCounters,
    /// The engine, if this thread drives it.
    engine: Option<CoLocatedEngine>,
    /// There is no port, or none any more.
    port_lost: bool,
    /// The last exchange left rates or first-rate datagrams for the next one.
    more: bool,
    /// Datagrams with later rates wait to be built.
    later_waits: bool,
    /// A sweep after a change of the network has something to do.
    sweep_due: bool,
    /// Time from which later rates may be sent again.
    later_ns: u64,
    /// Time of the newest read that emptied the port: what waits there came later.
    read_ns: u64,
    /// Time of the last iteration.
    last_iteration_ns: u64,
    /// Polls since the last longer task.
    polls: u32,
    /// The last longer task sent rates, so the next one is an iteration.
    sent_background: bool,
}

impl<P: PacketPort> WorkerLoop<P> {
    fn new(
        index: usize,
        worker: UdpWorker<P>,
        shared: SharedCore,
        signal: Arc<EngineSignal>,
        engine: Option<CoLocatedEngine>,
    ) -> Self {
        // Full capacity from the start: no datagram allocates later.
        let plain = (0..BATCH).map(|_| (0, Vec::with_capacity(MAX_DATAGRAM_BYTES)));
        Self {
            index,
            port_lost: !worker.has_port,
            worker,
            shared,
            signal,
            peers: SealedPeers::new(),
            outgoing: SendBatch::default(),
            plain: plain.collect(),
            opened: Vec::with_capacity(BATCH),
            probes: Vec::with_capacity(BATCH),
            counters: SealedCounters::default(),
            engine,
            more: false,
            later_waits: false,
            sweep_due: false,
            later_ns: 0,
            read_ns: 0,
            last_iteration_ns: 0,
            polls: 0,
            sent_background: false,
        }
    }

    fn run(mut self) {
        // Dropped before the engine, whose own death watch must not speak first: the panic is the
        // cause.
        let has_port = self.worker.has_port;
        let _panics = has_port.then(|| PanicGuard(Arc::clone(&self.signal)));
        self.worker.port.on_thread();
        if let Err(error) = sched::ask_for_slices(sched::HOT_SLICE_NS) {
            tracing::debug!(%error, "the thread keeps its time slices");
        }
        let mut waiter = IdleWait::new(self.worker.policy);
        // Sessions may have been added before the thread ran.
        let mut woken = true;
        while !self.worker.waker.stopped() {
            let received = match self.receive() {
                Ok(received) => received,
                Err(error) => {
                    tracing::error!(shard = self.index, %error, "cannot receive");
                    let index = self.index;
                    self.shared
                        .run(|core, now_ns| core.port_lost(now_ns, index));
                    // The engine still needs this thread; without it, the thread has no task left.
                    if self.engine.is_none() {
                        return;
                    }
                    self.port_lost = true;
                    0
                }
            };
            let now_ns = clock::now_ns();
            // A partial batch means that the port was empty at that moment.
            if received < BATCH {
                self.read_ns = now_ns;
            }
            // Starts and their first rates before all else. The core's lock stays free while there
            // is nothing to do.
            let events = self
                .engine
                .as_ref()
                .is_some_and(CoLocatedEngine::has_events);
            if received > 0 || woken || events {
                waiter.busy(now_ns);
                self.serve_urgent();
                self.polls += 1;
            } else {
                // An idle port: the longer task may run at once.
                self.polls = POLLS;
            }
            // Every host waits for the port, and so for at most one longer task.
            if self.polls >= POLLS {
                self.polls = 0;
                if self.run_one_task(now_ns) {
                    waiter.busy(now_ns);
                }
            }
            // Taken before the wait: a wake-up that comes later ends it.
            woken = self.worker.waker.take();
            if received < BATCH && !woken && !self.more && !self.sweep_due && self.polls == 0 {
                let until_ns = self.next_wakeup_ns();
                if until_ns.is_none_or(|until_ns| until_ns > now_ns) {
                    let port = (!self.port_lost).then_some(&self.worker.port);
                    let left = !self.outgoing.is_empty() && !self.port_lost;
                    waiter.wait(port, &self.worker.waker, clock::now_ns(), until_ns, left);
                }
            }
        }
        if let Some(engine) = &mut self.engine {
            // Without this the engine's death watch would report a crash.
            engine.expect_end();
        }
    }

    /// Hands in received datagrams and sends what hosts wait for.
    fn serve_urgent(&mut self) {
        if self.engine.is_some() {
            // A first exchange brings the events, and the second one takes the rates that they led
            // to, so that both leave in one turn and the lock is free in between.
            self.exchange(ExchangeScope::HandIn);
        }
        if let Some(engine) = &mut self.engine {
            engine.apply_events();
        }
        self.exchange(ExchangeScope::Urgent);
    }

    /// Runs one longer task, in turn: sends rates, or lets the engine iterate. True if there was
    /// one.
    fn run_one_task(&mut self, now_ns: u64) -> bool {
        // As of the last empty read: a datagram that still waits in the port may renew what would
        // expire.
        let timers_ns = served_until(self.read_ns, now_ns);
        let has_background = self.more
            || self.sweep_due
            || (self.later_waits && self.later_ns <= now_ns)
            || !self.outgoing.is_empty()
            || self
                .engine
                .as_ref()
                .is_some_and(|engine| engine.is_due(timers_ns));
        // A port that is behind needs the thread more than rates that will change again.
        let may_iterate = !self.is_behind(now_ns) || self.last_iteration_ns + BEHIND_NS <= now_ns;
        let sent_background = std::mem::take(&mut self.sent_background);
        if has_background && !(sent_background && may_iterate) {
            self.exchange(ExchangeScope::Background);
            self.sent_background = true;
            return true;
        }
        if let Some(engine) = self.engine.as_mut().filter(|_| may_iterate)
            && engine.iterate_if_due(now_ns)
        {
            self.last_iteration_ns = now_ns;
            return true;
        }
        if has_background {
            self.exchange(ExchangeScope::Background);
        }
        has_background
    }

    /// True while the port fills as fast as it is read.
    fn is_behind(&self, now_ns: u64) -> bool {
        self.read_ns + BEHIND_NS < now_ns
    }

    /// Returns the time of the next task if nothing comes before.
    fn next_wakeup_ns(&self) -> Option<u64> {
        let later_ns = self.later_waits.then_some(self.later_ns);
        let own_ns = self
            .engine
            .as_ref()
            .and_then(CoLocatedEngine::next_wakeup_ns);
        [later_ns, own_ns].into_iter().flatten().min()
    }

    /// Receives a batch from the port and opens it.
    fn receive(&mut self) -> io::Result<usize> {
        self.opened.clear();
        self.probes.clear();
        if self.port_lost {
            return Ok(0);
        }
        let count = self.worker.port.receive()?;
        for index in 0..count {
            let (bytes, ends) = self.worker.port.datagram(index);
            let Some(opened) = self.peers.open(bytes, ends, &mut self.counters) else {
                continue;
            };
            if opened.length == 0 {
                self.probes.push(opened.session);
            } else {
                self.opened.push((opened.session, index, opened.length));
            }
            // Only a datagram newer than all others proves where the host is now.
            if opened.newest {
                self.worker.port.authentic(index);
            }
        }
        Ok(count)
    }

    /// Hands in opened datagrams, takes those to be sent, seals and sends them, as far as `scope`
    /// has them.
    fn exchange(&mut self, scope: ExchangeScope) {
        let (index, peers, counters) = (self.index, &mut self.peers, &self.counters);
        let (port, opened, plain) = (&mut self.worker.port, &self.opened, &mut self.plain);
        // Datagrams that the port did not take must leave before newer ones are built.
        let may_build =
            scope != ExchangeScope::HandIn && self.outgoing.is_empty() && !self.port_lost;
        let config = self.worker.config;
        let read_ns = self.read_ns;
        let drives = self.engine.is_some();
        let (engine, later_ns) = (&mut self.engine, self.later_ns);
        let exchanged = self.shared.run_on_worker(index, |core, now_ns| {
            core.set_worker_counters(index, counters, |visit| port.counters(visit));
            for notice in core.take_notices(index) {
                match notice {
                    SessionNotice::Add {
                        id,
                        secret,
                        address,
                    } => {
                        peers.add(id, (), config, &secret, address);
                    }
                    SessionNotice::Remove(id) => peers.remove(id),
                }
            }
            for &(id, at, length) in opened {
                let (bytes, _) = port.datagram(at);
                core.on_sealed(now_ns, id, &bytes[HEADER_BYTES..][..length]);
            }
            if scope == ExchangeScope::HandIn {
                if let Some(engine) = engine {
                    engine.take_events(core);
                }
                return None;
            }
            let rates = match engine {
                Some(engine) => {
                    let has_background = scope == ExchangeScope::Background;
                    engine.exchange(core, now_ns, served_until(read_ns, now_ns), has_background)
                }
                // The first worker hands all rates over.
                None => false,
            };
            // Events and rates so far mark sessions ready; the build below sends them.
            core.flush(now_ns);
            let began_ns = clock::now_ns();
            // Later rates have a share of the thread's time, which `later_ns` enforces.
            let later = if scope == ExchangeScope::Background && later_ns <= began_ns {
                LATER_AT_ONCE
            } else {
                0
            };
            let (built, later) = if may_build {
                core.build_sealed(now_ns, index, plain, later)
            } else {
                (0, 0)
            };
            // Last, so that events of the timers above go along.
            if let Some(engine) = engine {
                engine.take_events(core);
            }
            if drives && scope == ExchangeScope::Background {
                core.sweep(now_ns);
            }
            self.sweep_due = drives && core.can_sweep();
            let (first_waits, later_waits) = core.worker_has_datagrams(index);
            self.more = rates || first_waits;
            self.later_waits = later_waits;
            Some((built, later, began_ns))
        });
        // Handed in: a second exchange in this turn must not hand them in again.
        self.opened.clear();
        let Some((built, later, began_ns)) = exchanged else {
            return;
        };
        for at in 0..self.probes.len() {
            self.seal(self.probes[at], None);
        }
        self.probes.clear();
        for at in 0..built {
            self.seal(self.plain[at].0, Some(at));
        }
        self.flush();
        // After a full port only its next free buffer helps, not another turn.
        self.more &= self.outgoing.is_empty();
        if later > 0 {
            let now_ns = clock::now_ns();
            // Time for building, sealing and sending. A pause of (share − 1) times as long keeps
            // the share.
            let took_ns = (now_ns - began_ns).min(LONGEST_SENDING_NS);
            let share = if self.is_behind(now_ns) {
                LATER_SHARE_BEHIND
            } else {
                LATER_SHARE
            };
            self.later_ns = now_ns + (share - 1) * took_ns;
        }
    }

    /// Seals a plain datagram, or an empty one as the answer to a probe, into the batch.
    fn seal(&mut self, id: u32, plain: Option<usize>) {
        if self.outgoing.is_full() {
            self.flush();
        }
        if self.outgoing.is_full() {
            // The port is full. The probe comes again, and so does the datagram's state.
            self.counters.unsent += 1;
            return;
        }
        let text: &[u8] = plain.map_or(&[], |at| &self.plain[at].1);
        let (out, counters) = (self.outgoing.buffer(), &mut self.counters);
        match self.peers.seal(id, text, out, counters) {
            Some(ends) => self.outgoing.push(ends),
            None => self.counters.unsent += 1,
        }
    }

    fn flush(&mut self) {
        if !self.outgoing.is_empty() {
            let port = &mut self.worker.port;
            port.send_sealed(&mut self.outgoing, &mut self.counters);
        }
    }
}

#[cfg(test)]
mod tests;
