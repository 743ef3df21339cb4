//! The engine as the service sees it: where events go and rates come from, its figures, and whether
//! it lives.
//!
//! One shard that takes sealed datagrams drives the engine itself, between two looks at its port.
//! Where there are more shards, or none, the engine has a thread of its own.

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
    EngineConfig, EngineError, EngineEvent, EngineStats, RateEngine, RateUpdate, ReferenceEngine,
};
use crate::service::config::{Config, EngineKind, class_table};
use crate::service::instrumented_engine::{InstrumentedEngine, IterationHistogram};

/// Makes an engine for a configuration, a topology and its links' capacities.
pub type EngineFactory = Arc<
    dyn Fn(&Config, &Topology, &[f64]) -> Result<Box<dyn RateEngine>, EngineError> + Send + Sync,
>;

/// The engine that the configuration names.
pub fn configured_engine() -> EngineFactory {
    Arc::new(|config, topology, capacities_bps| {
        let settings = EngineConfig {
            gamma: config.allocation.gamma,
            threshold: config.allocation.threshold,
            mice_reserve: config.allocation.mice_reserve,
            max_flows: config.limits.max_flows as usize,
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
        // A shard that drives the engine looks at its port between two walks.
        single_pass: engine_thread(config) == EngineThread::UdpWorker,
        ..ParallelOptions::default()
    }
}

/// Told by the engine thread: rates wait, or the thread has ended.
#[derive(Debug, Default)]
pub struct EngineSignal {
    notify: Notify,
    /// Rates were handed over since somebody last looked at [`rates_wait`](Self::rates_wait).
    rates: AtomicBool,
    /// The thread that takes the rates, if there is a shard: it sends most of them, and a wake-up
    /// of the runtime, only to have that wake the shard, would make every first rate later.
    udp_worker: OnceLock<Arc<ThreadWaker>>,
    died: AtomicBool,
    /// A shard's thread has panicked.
    panicked: AtomicBool,
}

impl EngineSignal {
    /// From now on this thread is woken for rates, as long as it is there.
    pub(super) fn set_udp_worker(&self, waker: Arc<ThreadWaker>) {
        // Set once, at start.
        let _ = self.udp_worker.set(waker);
    }

    /// Rates wait: wakes whoever takes them.
    fn wake(&self) {
        self.rates.store(true, Ordering::Release);
        match self.udp_worker.get() {
            Some(waker) if !waker.is_gone() => waker.wake(),
            _ => self.notify(),
        }
    }

    /// Wakes who is in [`wait`](Self::wait).
    pub(super) fn notify(&self) {
        self.notify.notify_one();
    }

    /// Waits until the engine thread has something to say.
    pub async fn wait(&self) {
        self.notify.notified().await;
    }

    /// Whether there may be rates that were not there when this was asked before. A plain load
    /// first, since spinning threads ask all the time.
    pub fn rates_wait(&self) -> bool {
        self.rates.load(Ordering::Relaxed) && self.rates.swap(false, Ordering::AcqRel)
    }

    /// A shard's thread has panicked: what it had in its hands is lost, so nothing is to go on.
    pub(super) fn set_panicked(&self) {
        self.panicked.store(true, Ordering::Release);
    }

    /// A shard's thread has panicked.
    pub fn panicked(&self) -> bool {
        self.panicked.load(Ordering::Acquire)
    }

    /// The thread ended without having been asked to.
    pub fn died(&self) -> bool {
        self.died.load(Ordering::Acquire)
    }
}

/// Lives on the engine's thread, and is dropped when that ends.
pub(super) struct EngineDeathWatch {
    signal: Arc<EngineSignal>,
    /// The service asked the thread to end.
    expected: Arc<AtomicBool>,
}

impl EngineDeathWatch {
    /// On the thread that drives the engine itself. Its end is a death unless
    /// [`expect_end`](Self::expect_end) was called.
    pub(super) fn new(signal: Arc<EngineSignal>) -> Self {
        Self {
            signal,
            expected: Arc::default(),
        }
    }

    /// From now on the thread may end.
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

/// Runs `work` on a thread of its own; here, if there is none to be had.
pub(super) fn dispose(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name("engine-end".to_owned());
    if let Err(error) = thread.spawn(work) {
        tracing::warn!(%error, "no thread to take the former engine apart");
    }
}

/// Who drives the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EngineThread {
    /// A thread of its own.
    Own,
    /// The one shard that there is.
    UdpWorker,
}

fn engine_thread(config: &Config) -> EngineThread {
    match config.transport.shards() {
        1 => EngineThread::UdpWorker,
        _ => EngineThread::Own,
    }
}

/// An engine for the shard that drives it.
pub(super) struct WorkerEngine {
    pub(super) driver: EngineDriver,
    /// Nanoseconds from one iteration's beginning to the next one's; nothing: without a pause.
    pub(super) interval_ns: Option<u64>,
    pub(super) pin_core: Option<usize>,
}

enum RunningEngine {
    Stopped,
    OwnThread(EngineHandle),
    /// The shard takes the engine from here, and leaves figures there.
    UdpWorker(Option<Box<WorkerEngine>>, Snapshot),
}

/// The running engine.
pub(super) struct EngineHost {
    running: RunningEngine,
    engine_thread: EngineThread,
    expected_end: Arc<AtomicBool>,
    signal: Arc<EngineSignal>,
    histogram: Arc<IterationHistogram>,
    factory: EngineFactory,
    pinned_core: Option<usize>,
    /// Totals of the engines before this one.
    events_before: AtomicU64,
    refused_before: AtomicU64,
}

impl EngineHost {
    /// Starts an engine.
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
            events_before: AtomicU64::new(0),
            refused_before: AtomicU64::new(0),
        };
        link.replace(config, engine);
        Ok(link)
    }

    /// Makes engines.
    pub(super) fn factory(&self) -> EngineFactory {
        Arc::clone(&self.factory)
    }

    /// Puts another engine, which knows no flows, in the place of the one before. That one is taken
    /// apart on a thread of its own, since nobody is to wait for it.
    pub(super) fn replace(&mut self, config: &Config, engine: Box<dyn RateEngine>) {
        if let Some(handle) = self.leave() {
            dispose(move || handle.shutdown());
        }
        let engine = InstrumentedEngine::new(engine, Arc::clone(&self.histogram));
        self.pinned_core = config.allocation.pin_core;
        let interval_us = config.allocation.interval_us;
        if self.engine_thread == EngineThread::UdpWorker {
            let engine = WorkerEngine {
                driver: EngineDriver::new(Box::new(engine)),
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
        let handle = spawn(Box::new(engine), thread, move || death_watch.wake());
        self.running = RunningEngine::OwnThread(handle);
    }

    /// Ends the engine thread, if there is one.
    pub(super) fn stop(&mut self) {
        if let Some(handle) = self.leave() {
            handle.shutdown();
        }
    }

    /// Notes the engine's totals, and that it may end.
    fn leave(&mut self) -> Option<EngineHandle> {
        let (events, refused) = self.event_totals();
        self.expected_end.store(true, Ordering::Release);
        let running = std::mem::replace(&mut self.running, RunningEngine::Stopped);
        self.events_before.store(events, Ordering::Relaxed);
        self.refused_before.store(refused, Ordering::Relaxed);
        self.expected_end = Arc::default();
        match running {
            RunningEngine::OwnThread(handle) => Some(handle),
            RunningEngine::Stopped | RunningEngine::UdpWorker(..) => None,
        }
    }

    /// Who drives the engine.
    pub(super) fn engine_thread(&self) -> EngineThread {
        self.engine_thread
    }

    /// The engine that the shard is to drive from now on, if it is another than before.
    pub(super) fn take_engine(&mut self) -> Option<Box<WorkerEngine>> {
        match &mut self.running {
            RunningEngine::UdpWorker(engine, _) => engine.take(),
            RunningEngine::Stopped | RunningEngine::OwnThread(_) => None,
        }
    }

    pub(super) fn signal(&self) -> Arc<EngineSignal> {
        Arc::clone(&self.signal)
    }

    /// Hands over events in order, as far as the ring has room. True if all went. A shard that
    /// drives the engine takes them by itself.
    pub(super) fn push_all(&mut self, events: &mut VecDeque<EngineEvent>) -> bool {
        match &mut self.running {
            RunningEngine::Stopped => events.clear(),
            RunningEngine::UdpWorker(..) => {}
            RunningEngine::OwnThread(handle) => {
                while let Some(event) = events.pop_front() {
                    if let Err(event) = handle.push(event) {
                        events.push_front(event);
                        return false;
                    }
                }
            }
        }
        true
    }

    /// The next rate of an engine on its own thread.
    pub(super) fn pop_update(&mut self) -> Option<RateUpdate> {
        match &mut self.running {
            RunningEngine::OwnThread(handle) => handle.pop_update(),
            RunningEngine::Stopped | RunningEngine::UdpWorker(..) => None,
        }
    }

    pub(super) fn stats(&self) -> Arc<EngineStats> {
        match &self.running {
            RunningEngine::Stopped => Arc::default(),
            RunningEngine::OwnThread(handle) => handle.stats(),
            RunningEngine::UdpWorker(_, snapshot) => snapshot.load_full(),
        }
    }

    pub(super) fn histogram(&self) -> &IterationHistogram {
        &self.histogram
    }

    pub(super) fn pinned_core(&self) -> Option<usize> {
        self.pinned_core
    }

    /// Events applied and events refused, over all engines since the start.
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
