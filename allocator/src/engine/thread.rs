//! The engine on an OS thread of its own: events in through one ring, rate updates out through
//! another.
//!
//! The thread iterates while rates move (on a timer, or back to back). It parks when they have
//! settled and no event is queued, so an idle allocator costs nothing. It never blocks on its
//! consumer: while the update ring is full, it keeps the newest rate of each flow and offers it
//! again later.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rtrb::{Consumer, Producer, PushError, RingBuffer};

use super::{EngineEvent, EngineStats, RateUpdate};

mod backlog;
mod driver;
mod worker;

pub use driver::{EngineDriver, RATES_AT_ONCE, Snapshot, fullest_links};

/// Cost of the events that a driver applies before an iteration, in starts (see [`cost_of`]).
/// Without the bound, other work would wait for a flood of events.
pub const EVENTS_AT_ONCE: usize = 1 << 13;

/// Cost of an event to an engine, in starts. A reroute takes the flow out of its row and inserts it
/// into another. A capacity applies all queued events first, then visits the link's flows.
#[must_use]
pub fn cost_of(event: &EngineEvent) -> usize {
    match event {
        EngineEvent::Start(_) | EngineEvent::End(_) => 1,
        EngineEvent::Reroute { .. } => 16,
        EngineEvent::EndAll(numbers) => numbers.len().max(1),
        EngineEvent::Capacity { .. } => EVENTS_AT_ONCE / 4,
        EngineEvent::Reset { .. } => EVENTS_AT_ONCE,
    }
}

/// Pace of the iterations while rates move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// Once per this many nanoseconds. An event that finds the engine at rest is served at once.
    Timer(u64),
    /// Without a pause.
    BackToBack,
}

/// Settings of the engine thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineThreadConfig {
    /// Pace of the iterations.
    pub interval: Interval,
    /// The core to pin the thread to.
    pub pin_core: Option<usize>,
    /// Capacity of the event ring, at least 1.
    pub event_ring: usize,
    /// Capacity of the update ring, at least 1.
    pub update_ring: usize,
}

impl Default for EngineThreadConfig {
    fn default() -> Self {
        Self {
            interval: Interval::Timer(100_000),
            pin_core: None,
            event_ring: 1 << 16,
            update_ring: 1 << 16,
        }
    }
}

/// Flags that the thread and its handle share.
struct ThreadFlags {
    /// The thread is about to park, or parked: the next event has to wake it.
    idle: AtomicBool,
    stop: AtomicBool,
    /// The links' loads are asked for.
    loads_wanted: AtomicBool,
    /// Loads that were asked for and not taken yet, in bit/s, by link index.
    loads_bps: Mutex<Option<Vec<f64>>>,
}

/// Handle of the engine thread: its one producer of events and one consumer of updates.
///
/// Dropping it stops the thread, as [`EngineHandle::shutdown`] does.
pub struct EngineHandle {
    events: Producer<EngineEvent>,
    updates: Consumer<RateUpdate>,
    shared: Arc<ThreadFlags>,
    snapshot: Snapshot,
    thread: Option<JoinHandle<()>>,
}

/// Starts the engine on a thread of its own. The thread calls `wake` after it has pushed updates;
/// `wake` must not block.
///
/// # Panics
/// The operating system cannot start a thread.
pub fn spawn(
    driver: EngineDriver,
    cfg: EngineThreadConfig,
    wake: impl Fn() + Send + 'static,
) -> EngineHandle {
    let (event_tx, event_rx) = RingBuffer::new(cfg.event_ring.max(1));
    let (update_tx, update_rx) = RingBuffer::new(cfg.update_ring.max(1));
    let snapshot = driver.snapshot();
    let shared = Arc::new(ThreadFlags {
        idle: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        loads_wanted: AtomicBool::new(false),
        loads_bps: Mutex::new(None),
    });
    let worker = worker::Worker::new(driver, cfg, event_rx, update_tx, Arc::clone(&shared), wake);
    let thread = thread::Builder::new()
        .name("rate-engine".to_owned())
        .spawn(move || worker.run())
        .expect("the operating system starts a thread for the engine");
    EngineHandle {
        events: event_tx,
        updates: update_rx,
        shared,
        snapshot,
        thread: Some(thread),
    }
}

impl EngineHandle {
    /// Hands an event to the engine and wakes it if it rests.
    ///
    /// # Errors
    /// The ring is full. The event is returned, to be offered again once the engine has caught up.
    pub fn push(&mut self, event: EngineEvent) -> Result<(), EngineEvent> {
        self.events
            .push(event)
            .map_err(|PushError::Full(event)| event)?;
        self.wake_if_idle();
        Ok(())
    }

    /// Asks for the allocated load of every link, and wakes the engine if it rests.
    /// [`take_link_loads`](Self::take_link_loads) has it soon.
    pub fn ask_for_link_loads(&self) {
        self.shared.loads_wanted.store(true, Ordering::Relaxed);
        self.wake_if_idle();
    }

    /// Takes the loads that were asked for, in bit/s, by link index; `None` if they have not come.
    #[must_use]
    pub fn take_link_loads(&self) -> Option<Vec<f64>> {
        let loads_bps = self.shared.loads_bps.lock();
        loads_bps.unwrap_or_else(PoisonError::into_inner).take()
    }

    fn wake_if_idle(&self) {
        // Pairs with the fence in the worker: either it sees what is new before it parks, or this
        // sees that it is idle and wakes it.
        fence(Ordering::SeqCst);
        if self.shared.idle.load(Ordering::Relaxed) {
            self.unpark();
        }
    }

    /// The next rate update, if one waits.
    pub fn pop_update(&mut self) -> Option<RateUpdate> {
        self.updates.pop().ok()
    }

    /// Newest snapshot of the thread's figures.
    #[must_use]
    pub fn stats(&self) -> Arc<EngineStats> {
        self.snapshot.load_full()
    }

    /// Stops the thread and waits for it. Events and updates still in the rings are dropped.
    pub fn shutdown(mut self) {
        self.stop();
    }

    fn unpark(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    fn stop(&mut self) {
        // The flag first: the thread checks it after every park.
        self.shared.stop.store(true, Ordering::SeqCst);
        self.unpark();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the engine thread had panicked");
        }
    }
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Longest pause of the thread of a settled engine that has work left for later.
const LONG_PARK: Duration = Duration::from_secs(3600);
