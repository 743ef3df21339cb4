//! Loop of the thread that owns the core: it serves a port of its own, the work of other threads,
//! the engine, timers and sweeps.
//!
//! Session `id` belongs to port `id % ports`. The first port is served here: nothing between a
//! start and its first rate waits for another thread. Further ports have a thread each
//! (`port_loop`), which opens and seals, and reaches the core by two rings. Where QUIC carries
//! everything, the owner has no port.
//!
//! Datagrams are built only when they can be sent. If a port is full, sessions wait in their
//! queues, and newer rates replace older ones in the flow tables. Nobody waits for the engine.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use ratewright_io::sched;
use ratewright_io::timers::served_until;
use ratewright_io::transport::MAX_DATAGRAM_BYTES;
use ratewright_io::udp::{BATCH, PacketPort};

use super::co_located_engine::CoLocatedEngine;
use super::core_handle::WorkReceiver;
use super::engine_host::EngineSignal;
use super::idle::{IdlePolicy, IdleWait, ThreadWaker};
use super::sealed_port::{PortState, SealedPort};
use super::service_core::ServiceCore;
use crate::service::clock;

/// Pieces of other threads' work that are done before the port is read again.
const WORK_AT_ONCE: usize = 32;

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

/// Threads of the core and of further ports; they end when this is dropped, the core's last.
#[derive(Default)]
pub(super) struct ServiceThreads(Vec<(Arc<ThreadWaker>, JoinHandle<()>)>);

impl ServiceThreads {
    /// Starts a thread that `waker` wakes and stops.
    pub(super) fn start(
        &mut self,
        name: String,
        waker: &Arc<ThreadWaker>,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(name).spawn(run)?;
        self.0.push((Arc::clone(waker), thread));
        Ok(())
    }
}

impl Drop for ServiceThreads {
    fn drop(&mut self) {
        for (waker, thread) in self.0.drain(..).rev() {
            waker.stop();
            let _ = thread.join();
        }
    }
}

/// Records a panic of a thread, whose datagrams are lost by it.
pub(super) struct PanicGuard(pub(super) Arc<EngineSignal>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set_panicked();
            self.0.notify();
        }
    }
}

/// The core on its thread.
pub(super) struct CoreLoop<P> {
    core: ServiceCore,
    engine: CoLocatedEngine,
    port: SealedPort<P>,
    work: WorkReceiver,
    waker: Arc<ThreadWaker>,
    policy: IdlePolicy,
    /// Plain datagrams from the core for the cipher, by session.
    plain: Vec<(u32, Vec<u8>)>,
    /// Something was left for the next turn.
    more: bool,
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

impl<P: PacketPort> CoreLoop<P> {
    pub(super) fn new(
        core: ServiceCore,
        port: SealedPort<P>,
        work: WorkReceiver,
        waker: Arc<ThreadWaker>,
        policy: IdlePolicy,
    ) -> Self {
        // Full capacity from the start: no datagram allocates later.
        let plain = (0..BATCH).map(|_| (0, Vec::with_capacity(MAX_DATAGRAM_BYTES)));
        Self {
            engine: CoLocatedEngine::new(core.engine.signal()),
            core,
            port,
            work,
            waker,
            policy,
            plain: plain.collect(),
            more: false,
            later_ns: 0,
            read_ns: 0,
            last_iteration_ns: 0,
            polls: 0,
            sent_background: false,
        }
    }

    pub(super) fn run(mut self) {
        // Dropped before the engine, whose own death watch must not speak first: the panic is the
        // cause. Without a port no datagram is lost.
        let has_port = self.port.state != PortState::Absent;
        let _panics = has_port.then(|| PanicGuard(self.core.engine.signal()));
        self.port.port.on_thread();
        if let Err(error) = sched::ask_for_slices(sched::HOT_SLICE_NS) {
            tracing::debug!(%error, "the thread keeps its time slices");
        }
        let mut waiter = IdleWait::new(self.policy);
        // Work may have come before the thread ran.
        let mut woken = true;
        while !self.waker.stopped() {
            let received = match self.port.receive() {
                Ok(received) => received,
                Err(error) => {
                    self.lose_port(&error);
                    0
                }
            };
            let now_ns = clock::now_ns();
            // A partial batch means that the port was empty at that moment.
            if received < BATCH {
                self.read_ns = now_ns;
            }
            // Starts and their first rates before all else.
            if received > 0 || woken || self.more || self.core.hub.has_engine_events() {
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
            woken = self.waker.take();
            if received < BATCH
                && !woken
                && !self.more
                && self.polls == 0
                && !self.core.hub.can_sweep()
            {
                let until_ns = self.next_wakeup_ns();
                if until_ns.is_none_or(|until_ns| until_ns > now_ns) {
                    let port = self.port.to_wait_for();
                    let left = self.port.is_full();
                    waiter.wait(port, &self.waker, clock::now_ns(), until_ns, left);
                }
            }
        }
        // Without this the engine's death watch would report a crash.
        self.engine.expect_end();
    }

    fn lose_port(&mut self, error: &io::Error) {
        tracing::error!(shard = 0, %error, "cannot receive");
        self.port.state = PortState::Lost;
        let now_ns = clock::now_ns();
        self.core.port_lost(now_ns, 0);
        self.core.flush(now_ns);
    }

    /// Takes what has come, hands over first rates, and sends what hosts wait for.
    fn serve_urgent(&mut self) {
        self.take_in();
        self.apply_events();
        self.send(clock::now_ns(), 0);
    }

    fn apply_events(&mut self) {
        let rates_open = self.core.rates_open();
        self.engine.apply_events(&mut self.core.hub, rates_open);
    }

    /// Takes datagrams of the port, work of other threads, and a new engine.
    fn take_in(&mut self) {
        let done = self.work.serve(&mut self.core, WORK_AT_ONCE);
        let now_ns = clock::now_ns();
        let came = self.core.take_from_ports(now_ns);
        self.more = came || done == WORK_AT_ONCE;
        self.heed_notices();
        let core = &mut self.core;
        (self.port).take_opened(|id, bytes| core.on_sealed(now_ns, id, bytes));
        self.engine.take_engine(&mut self.core.engine);
    }

    fn heed_notices(&mut self) {
        for notice in self.core.take_notices(0) {
            self.port.heed(notice);
        }
    }

    /// Runs one longer task, in turn: sends rates, or lets the engine iterate. True if there was
    /// one.
    fn run_one_task(&mut self, now_ns: u64) -> bool {
        // As of the last empty read: a datagram that still waits in the port may renew what would
        // expire.
        let timers_ns = served_until(self.read_ns, now_ns);
        let has_background = self.more
            || self.core.hub.can_sweep()
            || (self.core.has_later() && self.later_ns <= now_ns)
            || self.port.is_full()
            || self.engine.has_rates()
            || (self.core.next_timer_ns()).is_some_and(|timer_ns| timer_ns <= timers_ns);
        // A port that is behind needs the thread more than rates that will change again.
        let may_iterate = !self.is_behind(now_ns) || self.last_iteration_ns + BEHIND_NS <= now_ns;
        let sent_background = std::mem::take(&mut self.sent_background);
        if has_background && !(sent_background && may_iterate) {
            self.serve_background(now_ns);
            self.sent_background = true;
            return true;
        }
        if may_iterate && self.engine.iterate_if_due(&self.core, now_ns) {
            self.last_iteration_ns = now_ns;
            return true;
        }
        if has_background {
            self.serve_background(now_ns);
        }
        has_background
    }

    /// Serves timers, hands over and sends a few later rates, sweeps.
    fn serve_background(&mut self, now_ns: u64) {
        let timers_ns = served_until(self.read_ns, now_ns);
        self.engine.tell_loads(&mut self.core.hub, now_ns);
        self.core.on_timers(timers_ns);
        self.engine.hand_over_rates(&mut self.core.hub, now_ns);
        let later = if self.later_ns <= now_ns {
            LATER_AT_ONCE
        } else {
            0
        };
        self.send(now_ns, later);
        self.core.sweep(now_ns);
    }

    /// Sends what sessions have for their hosts: all urgent datagrams that the port takes, and at
    /// most `later` of later rates.
    fn send(&mut self, now_ns: u64, later: usize) {
        self.core.flush(now_ns);
        let began_ns = clock::now_ns();
        let mut sent_later = self.core.send_later_on_connections(now_ns, later);
        self.port.answer_probes();
        if self.port.may_build() {
            let (built, others) = self.core.build_sealed(now_ns, 0, &mut self.plain, later);
            for (id, plain) in &self.plain[..built] {
                self.port.seal(*id, plain);
            }
            sent_later += others;
        }
        self.port.flush();
        self.core.build_for_ports(now_ns, later);
        let port = &self.port;
        (self.core).set_port_counters(0, &port.counters, |visit| port.port.counters(visit));
        // After a full port only its next free buffer helps, not another turn.
        self.more |= self.core.has_first(0) && self.port.may_build();
        if sent_later > 0 {
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

    /// True while the port fills as fast as it is read.
    fn is_behind(&self, now_ns: u64) -> bool {
        self.read_ns + BEHIND_NS < now_ns
    }

    /// Returns the time of the next task if nothing comes before.
    fn next_wakeup_ns(&self) -> Option<u64> {
        // Events of timers and of the sweep.
        if self.core.hub.has_engine_events() {
            return Some(0);
        }
        let later_ns = self.core.has_later().then_some(self.later_ns);
        let engine_ns = self.engine.next_wakeup_ns();
        [later_ns, engine_ns, self.core.next_timer_ns()]
            .into_iter()
            .flatten()
            .min()
    }
}

#[cfg(test)]
mod tests;
