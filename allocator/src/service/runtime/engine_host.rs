//! Engine of the service: the queues to and from it, its figures, and its end.
//!
//! The only UDP worker drives the engine itself, between two polls of its port. With several UDP
//! workers, or none, the engine has a thread of its own.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ratewright_topology::Topology;
use tokio::sync::Notify;

use super::idle::ThreadWaker;
use crate::engine::parallel::{ParallelEngine, ParallelOptions, default_workers};
use crate::engine::thread::{
    EngineDriver, EngineHandle, EngineThreadConfig, Interval, Snapshot, spawn,
};
use crate::engine::{
    DurationHistogram, EngineConfig, EngineError, EngineEvent, EngineStats, RateEngine, RateUpdate,
    ReferenceEngine,
};
use crate::service::config::{Config, EngineKind, class_table};

/// Age from which loads that an engine told are dropped, in nanoseconds.
const LOADS_MAX_AGE_NS: u64 = 5_000_000;

/// Makes an engine for a configuration, a topology and its links' capacities.
pub type EngineFactory = Arc<
    dyn Fn(&Config, &Topology, &[f64]) -> Result<Box<dyn RateEngine>, EngineError> + Send + Sync,
>;

/// Returns the factory of the engine that the configuration names.
pub fn configured_engine() -> EngineFactory {
    Arc::new(|config, topology, capacities_bps| {
        let settings = EngineConfig {
            gamma: config.allocation.gamma,
            threshold: config.allocation.threshold,
            mice_reserve: config.allocation.mice_reserve,
            // Each link may have a dummy flow beside them.
            max_flows: config.limits.max_flows as usize + topology.links().len(),
            classes: class_table(&config.classes).unwrap_or_default(),
            ..EngineConfig::default()
        };
        Ok(match config.allocation.engine {
            EngineKind::Reference => Box::new(ReferenceEngine::new(settings, capacities_bps)?),
            EngineKind::Parallel => Box::new(ParallelEngine::for_topology(
                settings,
                parallel_options(config, topology),
                topology,
                capacities_bps,
            )?),
        })
    })
}

fn parallel_options(config: &Config, topology: &Topology) -> ParallelOptions {
    let allocation = &config.allocation;
    let default = || match allocation.blocks {
        // Blocks squared is the number of FlowBlocks (flowtune §4): further workers would have
        // none.
        Some(blocks) => default_workers(topology.hosts().len()).min((blocks as usize).pow(2)),
        None => default_workers(topology.hosts().len()),
    };
    let workers = allocation.workers.unwrap_or_else(default);
    ParallelOptions {
        blocks: allocation.blocks,
        workers,
        // The engine thread is the first worker, on its own core; the others on those after it.
        cores: match allocation.pin_core {
            Some(first) => (first..).take(workers).collect(),
            None => Vec::new(),
        },
        // A UDP worker polls its port between two passes.
        single_pass: engine_thread(config) == EngineThread::UdpWorker,
        ..ParallelOptions::default()
    }
}

/// Signals from the engine thread: rates wait, or the thread has ended.
#[derive(Debug, Default)]
pub struct EngineSignal {
    notify: Notify,
    /// Rates were handed over since the last call of [`rates_wait`](Self::rates_wait).
    rates: AtomicBool,
    /// UDP worker that takes the rates, if there is one. It sends most of them, so waking the
    /// runtime first would delay every first rate.
    udp_worker: OnceLock<Arc<ThreadWaker>>,
    died: AtomicBool,
    /// A UDP worker has panicked.
    panicked: AtomicBool,
}

impl EngineSignal {
    /// Lets rates wake this worker, as long as its thread runs.
    pub(super) fn set_udp_worker(&self, waker: Arc<ThreadWaker>) {
        // Set once, at start.
        let _ = self.udp_worker.set(waker);
    }

    /// Wakes the thread that takes the rates.
    fn wake(&self) {
        self.rates.store(true, Ordering::Release);
        match self.udp_worker.get() {
            // A worker whose thread has ended would never take the rates: the runtime does then.
            Some(waker) if !waker.is_gone() => waker.wake(),
            _ => self.notify(),
        }
    }

    /// Wakes the task in [`wait`](Self::wait).
    pub(super) fn notify(&self) {
        self.notify.notify_one();
    }

    /// Waits for the next signal.
    pub async fn wait(&self) {
        self.notify.notified().await;
    }

    /// True if rates may have come since the last call. A plain load comes first, since spinning
    /// threads call this all the time.
    pub fn rates_wait(&self) -> bool {
        self.rates.load(Ordering::Relaxed) && self.rates.swap(false, Ordering::AcqRel)
    }

    /// Records that a UDP worker panicked: the datagrams in its hands are lost, so the service must
    /// end.
    pub(super) fn set_panicked(&self) {
        self.panicked.store(true, Ordering::Release);
    }

    /// True if a UDP worker has panicked.
    pub fn panicked(&self) -> bool {
        self.panicked.load(Ordering::Acquire)
    }

    /// True if the engine's thread ended without a request.
    pub fn died(&self) -> bool {
        self.died.load(Ordering::Acquire)
    }
}

/// Reports the end of the engine's thread when it is dropped there.
pub(super) struct EngineDeathWatch {
    signal: Arc<EngineSignal>,
    /// The service has asked the thread to end.
    expected: Arc<AtomicBool>,
}

impl EngineDeathWatch {
    /// Creates one for the thread that drives the engine. Its end is a death unless
    /// [`expect_end`](Self::expect_end) was called.
    pub(super) fn new(signal: Arc<EngineSignal>) -> Self {
        Self {
            signal,
            expected: Arc::default(),
        }
    }

    /// Announces that the thread may end.
    pub(super) fn expect_end(&self) {
        self.expected.store(true, Ordering::Release);
    }

    fn wake(&self) {
        self.signal.wake();
    }
}

impl Drop for EngineDeathWatch {
    fn drop(&mut self) {
        if !self.expected.load(Ordering::Acquire) {
            self.signal.died.store(true, Ordering::Release);
            self.signal.notify.notify_one();
        }
    }
}

/// Runs `work` on a thread of its own, which frees an engine. Without a thread, `work` is dropped
/// here.
pub(super) fn dispose(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name("engine-end".to_owned());
    if let Err(error) = thread.spawn(work) {
        tracing::warn!(%error, "no thread to take the former engine apart");
    }
}

/// Thread that drives the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EngineThread {
    /// A thread of its own.
    Own,
    /// The only UDP worker.
    UdpWorker,
}

fn engine_thread(config: &Config) -> EngineThread {
    match config.transport.shards() {
        1 => EngineThread::UdpWorker,
        _ => EngineThread::Own,
    }
}

/// Engine for the UDP worker that drives it.
pub(super) struct WorkerEngine {
    pub(super) driver: EngineDriver,
    /// Interval between the beginnings of iterations; `None` without a pause.
    pub(super) interval_ns: Option<u64>,
    pub(super) pin_core: Option<usize>,
}

/// Present state of the engine.
enum RunningEngine {
    Stopped,
    OwnThread(EngineHandle),
    /// The UDP worker takes the engine from here and leaves its figures there.
    UdpWorker(Option<Box<WorkerEngine>>, Snapshot),
}

/// The service's engine, with what outlives its replacement.
pub(super) struct EngineHost {
    running: RunningEngine,
    engine_thread: EngineThread,
    expected_end: Arc<AtomicBool>,
    signal: Arc<EngineSignal>,
    histogram: Arc<DurationHistogram>,
    factory: EngineFactory,
    pinned_core: Option<usize>,
    loads_asked_ns: u64,
    /// Events applied and refused by the engines before this one.
    events_before: AtomicU64,
    refused_before: AtomicU64,
}

impl EngineHost {
    /// Starts an engine.
    ///
    /// # Errors
    /// The engine refuses its settings.
    pub(super) fn start(
        factory: EngineFactory,
        config: &Config,
        topology: &Topology,
        capacities_bps: &[f64],
    ) -> Result<Self, EngineError> {
        let engine = factory(config, topology, capacities_bps)?;
        let mut link = Self {
            running: RunningEngine::Stopped,
            engine_thread: engine_thread(config),
            expected_end: Arc::default(),
            signal: Arc::default(),
            histogram: Arc::default(),
            factory,
            pinned_core: None,
            loads_asked_ns: 0,
            events_before: AtomicU64::new(0),
            refused_before: AtomicU64::new(0),
        };
        link.replace(config, engine);
        Ok(link)
    }

    /// Returns the factory of engines.
    pub(super) fn factory(&self) -> EngineFactory {
        Arc::clone(&self.factory)
    }

    /// Replaces the engine by one without flows. A thread of its own frees the former one, so that
    /// no task waits for that.
    pub(super) fn replace(&mut self, config: &Config, engine: Box<dyn RateEngine>) {
        if let Some(handle) = self.leave() {
            dispose(move || handle.shutdown());
        }
        let driver = EngineDriver::new(engine, Arc::clone(&self.histogram));
        self.pinned_core = config.allocation.pin_core;
        let interval_us = config.allocation.interval_us;
        if self.engine_thread == EngineThread::UdpWorker {
            let engine = WorkerEngine {
                driver,
                interval_ns: interval_us.map(|us| us * 1_000),
                pin_core: self.pinned_core,
            };
            let snapshot = engine.driver.snapshot();
            self.running = RunningEngine::UdpWorker(Some(Box::new(engine)), snapshot);
            return;
        }
        let death_watch = EngineDeathWatch {
            signal: Arc::clone(&self.signal),
            expected: Arc::clone(&self.expected_end),
        };
        let thread = EngineThreadConfig {
            interval: interval_us.map_or(Interval::BackToBack, |us| Interval::Timer(us * 1_000)),
            pin_core: self.pinned_core,
            ..EngineThreadConfig::default()
        };
        let handle = spawn(driver, thread, move || death_watch.wake());
        self.running = RunningEngine::OwnThread(handle);
    }

    /// Ends the engine thread, if there is one, and waits for it.
    pub(super) fn stop(&mut self) {
        if let Some(handle) = self.leave() {
            handle.shutdown();
        }
    }

    /// Adds the engine's totals to those before it, and announces its end.
    fn leave(&mut self) -> Option<EngineHandle> {
        // Before the engine is replaced: its own totals end with it.
        let (events, refused) = self.event_totals();
        self.expected_end.store(true, Ordering::Release);
        let running = std::mem::replace(&mut self.running, RunningEngine::Stopped);
        self.events_before.store(events, Ordering::Relaxed);
        self.refused_before.store(refused, Ordering::Relaxed);
        // The next engine's thread has a flag of its own, or its death would look like a requested
        // end.
        self.expected_end = Arc::default();
        match running {
            RunningEngine::OwnThread(handle) => Some(handle),
            RunningEngine::Stopped | RunningEngine::UdpWorker(..) => None,
        }
    }

    /// Returns the thread that drives the engine.
    pub(super) fn engine_thread(&self) -> EngineThread {
        self.engine_thread
    }

    /// Takes the new engine that the UDP worker drives from now on, if there is one.
    pub(super) fn take_engine(&mut self) -> Option<Box<WorkerEngine>> {
        match &mut self.running {
            RunningEngine::UdpWorker(engine, _) => engine.take(),
            RunningEngine::Stopped | RunningEngine::OwnThread(_) => None,
        }
    }

    pub(super) fn signal(&self) -> Arc<EngineSignal> {
        Arc::clone(&self.signal)
    }

    /// Pushes events to the engine's ring in order. True if all fit. A UDP worker that drives the
    /// engine takes them itself.
    pub(super) fn push_all(&mut self, events: &mut VecDeque<EngineEvent>) -> bool {
        match &mut self.running {
            // No engine will take them; the flows go with the service.
            RunningEngine::Stopped => events.clear(),
            RunningEngine::UdpWorker(..) => {}
            RunningEngine::OwnThread(handle) => {
                while let Some(event) = events.pop_front() {
                    if let Err(event) = handle.push(event) {
                        // Order matters to the engine: an end must not overtake its start.
                        events.push_front(event);
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Takes the next rate of an engine on its own thread.
    pub(super) fn pop_update(&mut self) -> Option<RateUpdate> {
        match &mut self.running {
            RunningEngine::OwnThread(handle) => handle.pop_update(),
            RunningEngine::Stopped | RunningEngine::UdpWorker(..) => None,
        }
    }

    /// Takes the allocated loads of an engine on its own thread, in bit/s, by link index. Without
    /// an answer of late, asks for them.
    pub(super) fn take_link_loads(&mut self, now_ns: u64) -> Option<Vec<f64>> {
        let RunningEngine::OwnThread(handle) = &self.running else {
            return None;
        };
        // An older answer is of a time in which nobody needed it.
        let is_new = now_ns.saturating_sub(self.loads_asked_ns) <= LOADS_MAX_AGE_NS;
        let loads_bps = handle.take_link_loads().filter(|_| is_new);
        if loads_bps.is_none() {
            self.loads_asked_ns = now_ns;
            handle.ask_for_link_loads();
        }
        loads_bps
    }

    pub(super) fn stats(&self) -> Arc<EngineStats> {
        match &self.running {
            RunningEngine::Stopped => Arc::default(),
            RunningEngine::OwnThread(handle) => handle.stats(),
            RunningEngine::UdpWorker(_, snapshot) => snapshot.load_full(),
        }
    }

    pub(super) fn histogram(&self) -> &DurationHistogram {
        &self.histogram
    }

    pub(super) fn pinned_core(&self) -> Option<usize> {
        self.pinned_core
    }

    /// Returns the events applied and refused by all engines since the start.
    pub(super) fn event_totals(&self) -> (u64, u64) {
        let stats = self.stats();
        let refused = stats.events_refused_full
            + stats.events_refused_unknown_flow
            + stats.events_refused_invalid;
        (
            self.events_before.load(Ordering::Relaxed) + stats.events_applied,
            self.refused_before.load(Ordering::Relaxed) + refused,
        )
    }
}
