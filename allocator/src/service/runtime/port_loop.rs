//! Thread of a further port: it opens what comes and seals what goes, and reaches the core by two
//! rings.

use std::sync::Arc;

use ratewright_io::sched;
use ratewright_io::udp::{BATCH, PacketPort};
use ratewright_proto::sealed::SealedCounters;
use rtrb::{Consumer, Producer, RingBuffer};

use super::core_loop::PanicGuard;
use super::engine_host::EngineSignal;
use super::idle::{IdlePolicy, IdleWait, ThreadWaker};
use super::sealed_port::{SealedPort, SessionNotice};
use crate::service::clock;

/// Batches of opened datagrams that may wait for the core. Beyond them the kernel's buffer holds
/// what comes.
const BATCHES_TO_CORE: usize = 8;

/// Datagrams and notices that may wait for a port's thread: what one batch has. Newer rates replace
/// those beyond it in the flow tables.
const PLACES_TO_PORT: usize = 2 * BATCH;

/// Interval at which the thread tells its counters.
const FIGURES_EVERY_NS: u64 = 100_000_000;

/// Message of the core to a port's thread.
pub(super) enum ToPort {
    /// Of a session's begin or end.
    Notice(SessionNotice),
    /// A plain datagram of a session, to be sealed and sent.
    Datagram(u32, Vec<u8>),
}

/// Message of a port's thread to the core.
pub(super) enum FromPort {
    /// Opened datagrams by session.
    Datagrams(Vec<(u32, Vec<u8>)>),
    /// Counters of the thread, and of its port.
    Figures(SealedCounters, Vec<(&'static str, u64)>),
    /// The port is lost.
    Lost,
}

/// The core's ends of the rings, with the thread's waker.
pub(super) struct PortRings {
    pub(super) to_port: Producer<ToPort>,
    pub(super) from_port: Consumer<FromPort>,
}

/// A port's thread.
pub(super) struct PortLoop<P> {
    index: usize,
    port: SealedPort<P>,
    policy: IdlePolicy,
    from_core: Consumer<ToPort>,
    to_core: Producer<FromPort>,
    waker: Arc<ThreadWaker>,
    core: Arc<ThreadWaker>,
    signal: Arc<EngineSignal>,
    /// Messages taken since the core was woken: it may wait for room in the ring.
    taken: usize,
}

impl<P: PacketPort> PortLoop<P> {
    /// Makes the loop of port `index`, woken by `waker`, and the core's ends of its rings.
    pub(super) fn new(
        index: usize,
        port: SealedPort<P>,
        policy: IdlePolicy,
        waker: Arc<ThreadWaker>,
        core: Arc<ThreadWaker>,
        signal: Arc<EngineSignal>,
    ) -> (Self, PortRings) {
        let (to_port, from_core) = RingBuffer::new(PLACES_TO_PORT);
        let (to_core, from_port) = RingBuffer::new(BATCHES_TO_CORE);
        let rings = PortRings { to_port, from_port };
        let port_loop = Self {
            index,
            port,
            policy,
            from_core,
            to_core,
            waker,
            core,
            signal,
            taken: 0,
        };
        (port_loop, rings)
    }

    pub(super) fn run(mut self) {
        let _panics = PanicGuard(Arc::clone(&self.signal));
        self.port.port.on_thread();
        if let Err(error) = sched::ask_for_slices(sched::HOT_SLICE_NS) {
            tracing::debug!(%error, "the thread keeps its time slices");
        }
        let mut waiter = IdleWait::new(self.policy);
        let (mut told, mut told_ns) = (SealedCounters::default(), 0);
        while !self.waker.stopped() {
            let sent = self.send();
            let received = match self.receive() {
                Ok(received) => received,
                Err(error) => {
                    tracing::error!(shard = self.index, %error, "cannot receive");
                    return self.tell_loss();
                }
            };
            let now_ns = clock::now_ns();
            if received > 0 || sent {
                waiter.busy(now_ns);
            }
            let is_new = self.port.counters != told;
            if is_new && now_ns.saturating_sub(told_ns) >= FIGURES_EVERY_NS && self.tell_figures() {
                (told, told_ns) = (self.port.counters, now_ns);
            }
            let woken = self.waker.take();
            if received < BATCH && !woken && !sent {
                let port = self.port.to_wait_for();
                let left = self.port.is_full();
                let until_ns = (self.port.counters != told).then_some(told_ns + FIGURES_EVERY_NS);
                waiter.wait(port, &self.waker, clock::now_ns(), until_ns, left);
            }
        }
    }

    /// Seals and sends what the core has handed over, as far as the port takes it. True if there
    /// was something.
    fn send(&mut self) -> bool {
        let mut any = false;
        while self.port.may_build()
            && let Ok(message) = self.from_core.pop()
        {
            any = true;
            self.taken += 1;
            match message {
                ToPort::Notice(notice) => self.port.heed(notice),
                ToPort::Datagram(id, plain) => self.port.seal(id, &plain),
            }
        }
        if self.taken >= BATCH {
            self.taken = 0;
            self.core.wake();
        }
        self.port.answer_probes();
        self.port.flush();
        any
    }

    /// Hands a batch of opened datagrams to the core, if that has room for it.
    fn receive(&mut self) -> std::io::Result<usize> {
        if self.to_core.is_full() {
            return Ok(0);
        }
        let received = self.port.receive()?;
        let mut batch = Vec::new();
        (self.port).take_opened(|id, bytes| batch.push((id, bytes.to_vec())));
        if !batch.is_empty() {
            // There is room: this thread alone fills the ring.
            let _ = self.to_core.push(FromPort::Datagrams(batch));
            self.core.wake();
        }
        Ok(received)
    }

    fn tell_figures(&mut self) -> bool {
        let mut of_port = Vec::new();
        (self.port.port).counters(&mut |name, count| of_port.push((name, count)));
        let figures = FromPort::Figures(self.port.counters, of_port);
        self.to_core.push(figures).is_ok()
    }

    fn tell_loss(&mut self) {
        // The core empties the ring in each turn.
        while self.to_core.push(FromPort::Lost).is_err() && !self.waker.stopped() {
            self.core.wake();
            std::thread::yield_now();
        }
        self.core.wake();
    }
}
