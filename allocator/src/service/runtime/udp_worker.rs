//! Sealed datagrams: a port and a thread per shard.
//!
//! Session `id` belongs to shard `id % shards`, which alone holds its keys, receives on the UDP
//! port that the session's Welcome names, opens and seals. The state machine is the one that QUIC
//! datagrams go through; the thread holds the state's lock only while it hands in what it has
//! opened and takes out what is to be sealed, never during a system call or a cipher.
//!
//! Datagrams are built when they can be sent and not before: what the port does not take holds back
//! further building, meanwhile newer rates replace older ones in the flow table, and the engine is
//! not waited for anywhere.
//!
//! Where there is one shard only, its thread drives the engine too (`co_located_engine`), and
//! nothing on the way from a start to its first rate waits for another thread.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use ratewright_io::sched;
use ratewright_io::timers::served_until;
use ratewright_io::transport::MAX_DATAGRAM_BYTES;
use ratewright_io::udp::{BATCH, PacketPort, SendBatch};
use ratewright_proto::sealed::{HEADER_BYTES, SealedConfig, SealedCounters, Secret};

use super::co_located_engine::CoLocatedEngine;
use super::engine_host::{EngineSignal, EngineThread};
use super::idle::{IdlePolicy, IdleWait, ThreadWaker};
use super::service_core::SharedCore;
use crate::service::clock;
use crate::service::sealed_peers::SealedPeers;

/// Rates that are taken in one go, as many as the engine may have waiting: in the flow tables newer
/// ones replace them and first ones overtake them, in the engine's ring they do not.
const MAX_RATES_PER_TURN: usize = 1 << 16;

/// Datagrams with later rates that are sent before the port is looked at again.
const LATER_AT_ONCE: usize = 1;

/// As long as something comes, starts are answered so many times before anything that takes longer
/// is done. What has come may be the end of a flow, whose link's next one starts a few microseconds
/// later.
const POLLS: u32 = 4;

/// Sending later rates takes one part of the thread's time in so many. A host that is told its
/// rates a little later is told newer ones; and hosts that were sent as much as can be sent would
/// have first rates wait behind it.
const LATER_SHARE: u64 = 4;

/// What they get while the port holds more than is read at once. Each later rate brings an
/// acknowledgement, and what waits behind those is leases, and starts; the hosts' rates come
/// together meanwhile, newer ones in the place of older ones.
const LATER_SHARE_BEHIND: u64 = 32;

/// From when on the port counts as one that is not read as fast as it fills.
const BEHIND_NS: u64 = 1_000_000;

/// Longer than sending a few datagrams takes: the thread was held up meanwhile.
const LONGEST_SENDING_NS: u64 = 100_000;

/// What a shard's thread is told.
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

/// The state's side of a shard.
pub(super) struct WorkerQueue {
    pub(super) waker: Arc<ThreadWaker>,
    pub(super) notices: Vec<SessionNotice>,
    /// Sessions with a datagram to send: those with a flow that waits for its first rate, and the
    /// others.
    pub(super) first: VecDeque<u32>,
    pub(super) ready: VecDeque<u32>,
    /// What the thread has counted, and its port.
    pub(super) counters: SealedCounters,
    /// Its port is lost, and nothing goes this way any more.
    pub(super) lost: bool,
    pub(super) port_counters: Vec<(&'static str, u64)>,
}

/// What is done while the state's lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExchangeScope {
    /// What was opened is handed in.
    HandIn,
    /// The same, and what somebody waits for is built: first rates, and answers.
    Urgent,
    /// Timers are served, and a few later rates told and built.
    Background,
}

/// A shard before its thread runs.
pub(super) struct UdpWorker<P> {
    port: P,
    waker: Arc<ThreadWaker>,
    config: SealedConfig,
    policy: IdlePolicy,
}

/// The threads of all shards; they end with this.
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

impl<P: PacketPort + Send + 'static> UdpWorker<P> {
    /// A shard on `port`.
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
            lost: false,
            port_counters: Vec::new(),
        };
        let worker = Self {
            port,
            waker,
            config,
            policy,
        };
        Ok((worker, queue))
    }
}

/// Starts the shards' threads.
pub(super) fn start<P: PacketPort + Send + 'static>(
    workers: Vec<UdpWorker<P>>,
    shared: &SharedCore,
    signal: &Arc<EngineSignal>,
) -> io::Result<UdpWorkerThreads> {
    let mut threads = UdpWorkerThreads::default();
    let engine_thread = shared.lock().engine.engine_thread();
    for (index, worker) in workers.into_iter().enumerate() {
        let waker = Arc::clone(&worker.waker);
        let engine =
            (engine_thread == EngineThread::UdpWorker).then(|| CoLocatedEngine::new(signal));
        let worker_loop =
            WorkerLoop::new(index, worker, shared.clone(), Arc::clone(signal), engine);
        let thread = std::thread::Builder::new()
            .name(format!("sealed-{index}"))
            .spawn(move || {
                let _ending = EndGuard(
                    Arc::clone(&worker_loop.worker.waker),
                    Arc::clone(&worker_loop.signal),
                );
                worker_loop.run();
            })?;
        threads.0.push((waker, thread));
    }
    Ok(threads)
}

/// When a shard's thread ends, for whatever reason, the runtime takes the rates. If it has
/// panicked, the service ends.
struct EndGuard(Arc<ThreadWaker>, Arc<EngineSignal>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.set_gone();
        if std::thread::panicking() {
            self.1.set_panicked();
        }
        // The engine may have woken just now, in vain.
        self.1.notify();
    }
}

struct WorkerLoop<P> {
    index: usize,
    worker: UdpWorker<P>,
    shared: SharedCore,
    signal: Arc<EngineSignal>,
    peers: SealedPeers<()>,
    outgoing: SendBatch,
    /// Plain datagrams between the state and the cipher.
    plain: Vec<(u32, Vec<u8>)>,
    /// Session, index in the port's batch, length of the plain text behind the header.
    opened: Vec<(u32, usize, usize)>,
    /// Sessions whose probe is to be answered.
    probes: Vec<u32>,
    counters: SealedCounters,
    /// The engine, if this thread drives it.
    engine: Option<CoLocatedEngine>,
    port_lost: bool,
    /// There is more to be built or taken at once.
    more: bool,
    /// Datagrams with later rates wait to be built.
    later_waits: bool,
    /// Flows are to be looked at, since the network has changed.
    sweeps: bool,
    /// From when on later rates may be sent again.
    later_ns: u64,
    /// What may still wait in the port came after this.
    read_ns: u64,
    /// When the engine last iterated.
    last_iteration_ns: u64,
    /// How many times starts were answered since something else was done.
    polls: u32,
    /// The last thing that took longer was telling rates, so the next one is an iteration.
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
        // Buffers as large as they get: nothing is allocated for a datagram later on.
        let plain = (0..BATCH).map(|_| (0, Vec::with_capacity(MAX_DATAGRAM_BYTES)));
        Self {
            index,
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
            port_lost: false,
            more: false,
            later_waits: false,
            sweeps: false,
            later_ns: 0,
            read_ns: 0,
            last_iteration_ns: 0,
            polls: 0,
            sent_background: false,
        }
    }

    fn run(mut self) {
        self.worker.port.on_thread();
        if let Err(error) = sched::ask_for_slices(sched::HOT_SLICE_NS) {
            tracing::debug!(%error, "the thread keeps its time slices");
        }
        let mut waiter = IdleWait::new(self.worker.policy);
        // It may have been given something before it ran.
        let mut woken = true;
        while !self.worker.waker.stopped() {
            let received = match self.receive() {
                Ok(received) => received,
                Err(error) => {
                    tracing::error!(shard = self.index, %error, "cannot receive");
                    let index = self.index;
                    self.shared
                        .run(|core, now_ns| core.port_lost(now_ns, index));
                    if self.engine.is_none() {
                        return;
                    }
                    self.port_lost = true;
                    0
                }
            };
            let now_ns = clock::now_ns();
            if received < BATCH {
                self.read_ns = now_ns;
            }
            // Starts first, and their first rates; the state's lock is left alone while nothing is
            // to be done.
            let events = self
                .engine
                .as_ref()
                .is_some_and(CoLocatedEngine::has_events);
            if received > 0 || woken || events || self.signal.rates_wait() {
                waiter.busy(now_ns);
                self.answer();
                self.polls += 1;
            } else {
                self.polls = POLLS;
            }
            // Everybody waits for the port, and for no more than one of these.
            if self.polls >= POLLS {
                self.polls = 0;
                if self.work(now_ns) {
                    waiter.busy(now_ns);
                }
            }
            woken = self.worker.waker.take();
            if received < BATCH && !woken && !self.more && !self.sweeps && self.polls == 0 {
                let until_ns = self.wakes_ns();
                if until_ns.is_none_or(|until_ns| until_ns > now_ns) {
                    let port = (!self.port_lost).then_some(&self.worker.port);
                    let left = !self.outgoing.is_empty() && !self.port_lost;
                    waiter.wait(port, &self.worker.waker, clock::now_ns(), until_ns, left);
                }
            }
        }
        if let Some(engine) = &self.engine {
            engine.expect_end();
        }
    }

    /// Hands in what has come, and sends what somebody waits for.
    fn answer(&mut self) {
        if self.engine.is_some() {
            self.exchange(ExchangeScope::HandIn);
        }
        if let Some(engine) = &mut self.engine {
            engine.answer();
        }
        self.exchange(ExchangeScope::Urgent);
    }

    /// Does one thing that takes longer, by turns: tells rates, or has the engine iterate. True if
    /// there was something to do.
    fn work(&mut self, now_ns: u64) -> bool {
        let timers_ns = served_until(self.read_ns, now_ns);
        let tells = self.more
            || self.sweeps
            || (self.later_waits && self.later_ns <= now_ns)
            || !self.outgoing.is_empty()
            || self
                .engine
                .as_ref()
                .is_some_and(|engine| engine.is_due(timers_ns));
        let may_iterate = !self.is_behind(now_ns) || self.last_iteration_ns + BEHIND_NS <= now_ns;
        let sent_background = std::mem::take(&mut self.sent_background);
        if tells && !(sent_background && may_iterate) {
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
        if tells {
            self.exchange(ExchangeScope::Background);
        }
        tells
    }

    /// Whether the port fills faster than it is read.
    fn is_behind(&self, now_ns: u64) -> bool {
        self.read_ns + BEHIND_NS < now_ns
    }

    /// When there will be something to do if nothing comes.
    fn wakes_ns(&self) -> Option<u64> {
        let later_ns = self.later_waits.then_some(self.later_ns);
        let own_ns = self.engine.as_ref().and_then(CoLocatedEngine::wakes_ns);
        [later_ns, own_ns].into_iter().flatten().min()
    }

    /// Takes a batch from the port and opens it.
    fn receive(&mut self) -> io::Result<usize> {
        self.opened.clear();
        self.probes.clear();
        if self.port_lost {
            return Ok(0);
        }
        let count = self.worker.port.receive()?;
        for index in 0..count {
            let (bytes, from) = self.worker.port.datagram(index);
            let Some(opened) = self.peers.open(bytes, from, &mut self.counters) else {
                continue;
            };
            if opened.length == 0 {
                self.probes.push(opened.session);
            } else {
                self.opened.push((opened.session, index, opened.length));
            }
            if opened.newest {
                self.worker.port.authentic(index);
            }
        }
        Ok(count)
    }

    /// Hands in what was opened, takes out what is to be sent, and sends it, as far as that belongs
    /// to the step.
    fn exchange(&mut self, step: ExchangeScope) {
        let (index, peers, counters) = (self.index, &mut self.peers, &self.counters);
        let (port, opened, plain) = (&mut self.worker.port, &self.opened, &mut self.plain);
        let may_build =
            step != ExchangeScope::HandIn && self.outgoing.is_empty() && !self.port_lost;
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
            if step == ExchangeScope::HandIn {
                if let Some(engine) = engine {
                    engine.take_events(core);
                }
                return None;
            }
            let rates = match engine {
                Some(engine) => {
                    let tells = step == ExchangeScope::Background;
                    engine.exchange(core, now_ns, served_until(read_ns, now_ns), tells)
                }
                None => core.take_rates(now_ns, MAX_RATES_PER_TURN),
            };
            core.flush(now_ns);
            let began_ns = clock::now_ns();
            let later = if step == ExchangeScope::Background && later_ns <= began_ns {
                LATER_AT_ONCE
            } else {
                0
            };
            let (built, later) = if may_build {
                core.build_sealed(now_ns, index, plain, later)
            } else {
                (0, 0)
            };
            if let Some(engine) = engine {
                engine.take_events(core);
            }
            if drives && step == ExchangeScope::Background {
                core.sweep(now_ns);
            }
            self.sweeps = drives && core.can_sweep();
            let (first_waits, later_waits) = core.worker_has_datagrams(index);
            self.more = rates || first_waits;
            self.later_waits = later_waits;
            Some((built, later, began_ns))
        });
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
        // What a full port holds back is built when that takes the rest.
        self.more &= self.outgoing.is_empty();
        if later > 0 {
            let now_ns = clock::now_ns();
            let took_ns = (now_ns - began_ns).min(LONGEST_SENDING_NS);
            let share = if self.is_behind(now_ns) {
                LATER_SHARE_BEHIND
            } else {
                LATER_SHARE
            };
            self.later_ns = now_ns + (share - 1) * took_ns;
        }
    }

    /// Seals a plain datagram, or an empty one, into the batch.
    fn seal(&mut self, id: u32, plain: Option<usize>) {
        if self.outgoing.is_full() {
            self.flush();
        }
        if self.outgoing.is_full() {
            // The port is full: an answer to a probe is not worth waiting for, and a datagram's
            // state comes again.
            self.counters.unsent += 1;
            return;
        }
        let text: &[u8] = plain.map_or(&[], |at| &self.plain[at].1);
        let (out, counters) = (self.outgoing.buffer(), &mut self.counters);
        match self.peers.seal(id, text, out, counters) {
            Some(remote) => self.outgoing.push(remote),
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
