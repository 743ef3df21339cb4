//! The barrier between workers: one sequence counter per worker.
//!
//! A worker arrives by raising its own counter, and goes on once every counter has reached the same
//! value. Each counter has a cache line and a writer of its own, so no line is contended.
//!
//! A worker spins for a bounded time, then parks; the last to arrive wakes all that sleep. The
//! workers of an idle engine all sleep. A worker that shares a core with the one it waits for parks
//! at once. The scheduler puts two workers on one core where another process keeps a core busy, and
//! each would spin through the other's time.
//!
//! Its primitives come from `super::sync`, so that a model checker can substitute its own
//! (`allocator/tests/behaviour/barrier_model.rs`).

use std::sync::PoisonError;

use super::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, SPINS, Thread, current_core,
    fence, thread,
};
use crossbeam_utils::CachePadded;

/// Spins between two checks of the awaited worker's core: about a microsecond.
const CORE_CHECK_SPINS: u32 = if SPINS < 64 { 1 } else { 64 };

/// Core of a worker for which the kernel names none.
const NO_CORE: usize = usize::MAX;

#[derive(Debug, Default)]
struct Counter {
    arrived: AtomicU64,
    asleep: AtomicBool,
    /// Core of its last arrival.
    core: AtomicUsize,
    thread: Mutex<Option<Thread>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A barrier for a fixed set of workers.
#[derive(Debug)]
pub(super) struct Barrier {
    counters: Box<[CachePadded<Counter>]>,
    closed: AtomicBool,
    panic: Mutex<Option<usize>>,
    spins: u32,
}

/// The barrier was closed: the engine ends, or a worker panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Closed;

impl Barrier {
    /// A barrier for workers that may run on `cores` cores. With more workers than cores none
    /// spins: a spinning worker would keep the awaited one from running.
    pub(super) fn new(workers: usize, cores: usize) -> Self {
        Self {
            counters: (0..workers).map(|_| CachePadded::default()).collect(),
            closed: AtomicBool::new(false),
            panic: Mutex::new(None),
            spins: if workers > cores { 0 } else { SPINS },
        }
    }

    /// Registers the calling thread as the worker's, before its first wait and whenever it changes.
    pub(super) fn enter(&self, worker: usize) {
        *lock(&self.counters[worker].thread) = Some(thread::current());
    }

    /// Arrives at `phase` (from 1), and waits for all other workers.
    ///
    /// # Errors
    /// The barrier was closed before all arrived.
    pub(super) fn wait(&self, worker: usize, phase: u64) -> Result<(), Closed> {
        self.arrive(worker, phase);
        (0..self.counters.len()).try_for_each(|other| self.wait_for(worker, other, phase))
    }

    fn arrive(&self, worker: usize, phase: u64) {
        let counter = &self.counters[worker];
        counter
            .core
            .store(current_core().unwrap_or(NO_CORE), Ordering::Relaxed);
        // Release publishes everything that this worker wrote in the phase; `wait_for` acquires it.
        counter.arrived.store(phase, Ordering::Release);
        // The worker whose fence is last of all sees every counter. Either a sleeper's own check
        // sees them too, or this worker sees the sleeper's flag. Waking at every arrival would have
        // sleepers go back to sleep until the next one.
        fence(Ordering::SeqCst);
        if self.have_arrived(phase) {
            self.wake();
        }
    }

    /// True if every worker has arrived.
    fn have_arrived(&self, phase: u64) -> bool {
        let mut counters = self.counters.iter();
        counters.all(|counter| counter.arrived.load(Ordering::Acquire) >= phase)
    }

    fn wake(&self) {
        for counter in &self.counters {
            if counter.asleep.load(Ordering::Relaxed)
                && let Some(thread) = &*lock(&counter.thread)
            {
                thread.unpark();
            }
        }
    }

    fn wait_for(&self, worker: usize, other: usize, phase: u64) -> Result<(), Closed> {
        let arrived = || self.counters[other].arrived.load(Ordering::Acquire) >= phase;
        for spin in 1..=self.spins {
            if arrived() {
                return Ok(());
            }
            // On the awaited worker's core it cannot arrive while this one spins.
            if spin.is_multiple_of(CORE_CHECK_SPINS) && self.shares_core(other) {
                break;
            }
            std::hint::spin_loop();
        }
        let asleep = &self.counters[worker].asleep;
        loop {
            // The flag goes up before the check (see the fence in `arrive`): an arrival in between
            // either sees the flag or is seen here. A stale token of `unpark` only costs another
            // turn.
            asleep.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let there = self.have_arrived(phase);
            if there || self.closed.load(Ordering::Relaxed) {
                asleep.store(false, Ordering::Relaxed);
                return if there { Ok(()) } else { Err(Closed) };
            }
            thread::park();
        }
    }

    /// True if the awaited worker was last seen on this core: it cannot run before this worker
    /// parks.
    fn shares_core(&self, other: usize) -> bool {
        current_core() == Some(self.counters[other].core.load(Ordering::Relaxed))
    }

    /// Closes the barrier: every waiting worker returns [`Closed`] unless its phase is complete.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.wake();
    }

    /// Closes the barrier because a worker panicked.
    pub(super) fn close_after_panic(&self, worker: usize) {
        // The first panic is the cause; later ones may follow from it.
        lock(&self.panic).get_or_insert(worker);
        self.close();
    }

    /// The first worker that panicked, if one did.
    pub(super) fn panicked(&self) -> Option<usize> {
        *lock(&self.panic)
    }
}
