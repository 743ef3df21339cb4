//! Engine of the service: its making, its figures, and its end.
//!
//! The core's thread drives the engine, between two polls of its port.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ratewright_topology::Topology;
use tokio::sync::Notify;

use crate::engine::driver::{EngineDriver, Snapshot};
use crate::engine::parallel::{ParallelEngine, ParallelOptions, default_workers};
use crate::engine::{
    DurationHistogram, EngineConfig, EngineError, EngineStats, RateEngine, ReferenceEngine,
};
use crate::service::config::{Config, EngineKind, class_table};

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
        // The thread that drives the engine is its first worker; the others are on cores after it.
        cores: match allocation.pin_core {
            Some(first) => (first..).take(workers).collect(),
            None => Vec::new(),
        },
        ..ParallelOptions::default()
    }
}

/// Signals to the service thread that another thread has ended.
#[derive(Debug, Default)]
pub struct EngineSignal {
    notify: Notify,
    died: AtomicBool,
    /// A thread with a port has panicked.
    panicked: AtomicBool,
}

impl EngineSignal {
    /// Wakes the task in [`wait`](Self::wait).
    pub(super) fn notify(&self) {
        self.notify.notify_one();
    }

    /// Waits for the next signal.
    pub async fn wait(&self) {
        self.notify.notified().await;
    }

    /// Records that a thread with a port panicked: its datagrams are lost, so the service must
    /// end.
    pub(super) fn set_panicked(&self) {
        self.panicked.store(true, Ordering::Release);
    }

    /// True if a thread with a port has panicked.
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
    is_expected: bool,
}

impl EngineDeathWatch {
    /// Creates one for the thread that drives the engine. Its end is a death unless
    /// [`expect_end`](Self::expect_end) was called.
    pub(super) fn new(signal: Arc<EngineSignal>) -> Self {
        Self {
            signal,
            is_expected: false,
        }
    }

    /// Announces that the thread ends as it should.
    pub(super) fn expect_end(&mut self) {
        self.is_expected = true;
    }
}

impl Drop for EngineDeathWatch {
    fn drop(&mut self) {
        if !self.is_expected {
            self.signal.died.store(true, Ordering::Release);
            self.signal.notify();
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

/// Engine for the core's thread, which drives it.
pub(super) struct DrivenEngine {
    pub(super) driver: EngineDriver,
    /// Interval between the beginnings of iterations; `None` without a pause.
    pub(super) interval_ns: Option<u64>,
    pub(super) pin_core: Option<usize>,
}

/// The service's engine as others than its thread see it, with what outlives its replacement.
pub(super) struct EngineHost {
    /// The next engine, until the thread that drives it takes it.
    next: Option<Box<DrivenEngine>>,
    snapshot: Snapshot,
    signal: Arc<EngineSignal>,
    histogram: Arc<DurationHistogram>,
    factory: EngineFactory,
    pinned_core: Option<usize>,
    /// Events applied and refused by the engines before this one.
    events_before: (u64, u64),
}

impl EngineHost {
    /// Makes an engine.
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
        let mut host = Self {
            next: None,
            snapshot: Snapshot::default(),
            signal: Arc::default(),
            histogram: Arc::default(),
            factory,
            pinned_core: None,
            events_before: (0, 0),
        };
        host.replace(config, engine);
        Ok(host)
    }

    /// Returns the factory of engines.
    pub(super) fn factory(&self) -> EngineFactory {
        Arc::clone(&self.factory)
    }

    /// Replaces the engine by one without flows.
    pub(super) fn replace(&mut self, config: &Config, engine: Box<dyn RateEngine>) {
        // The present engine's own totals end with it.
        self.events_before = self.event_totals();
        let driver = EngineDriver::new(engine, Arc::clone(&self.histogram));
        self.pinned_core = config.allocation.pin_core;
        self.snapshot = driver.snapshot();
        self.next = Some(Box::new(DrivenEngine {
            driver,
            interval_ns: config.allocation.interval_us.map(|us| us * 1_000),
            pin_core: self.pinned_core,
        }));
    }

    /// Takes the new engine, which the core's thread drives from now on, if there is one.
    pub(super) fn take_engine(&mut self) -> Option<Box<DrivenEngine>> {
        self.next.take()
    }

    pub(super) fn signal(&self) -> Arc<EngineSignal> {
        Arc::clone(&self.signal)
    }

    pub(super) fn stats(&self) -> Arc<EngineStats> {
        self.snapshot.load_full()
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
        let (events_before, refused_before) = self.events_before;
        (
            events_before + stats.events_applied,
            refused_before + refused,
        )
    }
}
