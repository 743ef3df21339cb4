//! The hand-over between workers: a barrier out of one sequence counter per worker.
//!
//! A worker arrives by raising its own counter, and goes on once every counter has reached the same
//! value. Each counter has its own cache line and one writer, so nothing is contended. Who has spun
//! for long enough sleeps until the last one arrives, who wakes all that sleep; an idle engine's workers all
//! sleep. Who finds that it has the core of the worker that it waits for sleeps at once: the scheduler puts
//! two workers together where another process has a core for itself, and each would spin through the other's
//! time.
//!
//! What it synchronises with comes from `super::sync`, so that a model checker can put its own in
//! (`allocator/tests/barrier_model.rs`).

use std::sync::PoisonError;

use super::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, SPINS, Thread, current_core,
    fence, thread,
};
use crossbeam_utils::CachePadded;

/// Rounds of spinning between two looks at the awaited worker's core: about a microsecond.
const CORE_CHECK_SPINS: u32 = if SPINS < 64 { 1 } else { 64 };

/// The kernel does not say.
const NO_CORE: usize = usize::MAX;

#[derive(Debug, Default)]
struct Counter {
    arrived: AtomicU64,
    asleep: AtomicBool,
    /// The core on which it arrived last.
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
    /// A barrier for workers that may run on so many cores. If there are fewer than workers, whoever spins
    /// keeps the awaited from running, so nobody does.
    pub(super) fn new(workers: usize, cores: usize) -> Self {
        Self {
            counters: (0..workers).map(|_| CachePadded::default()).collect(),
            closed: AtomicBool::new(false),
            panic: Mutex::new(None),
            spins: if workers > cores { 0 } else { SPINS },
        }
    }

    /// Says which thread is the worker, before it passes and whenever that changes.
    pub(super) fn enter(&self, worker: usize) {
        *lock(&self.counters[worker].thread) = Some(thread::current());
    }

    /// Arrives for the `phase`-th time (from 1), and waits for all others.
    pub(super) fn wait(&self, worker: usize, phase: u64) -> Result<(), Closed> {
        self.arrive(worker, phase);
        (0..self.counters.len()).try_for_each(|other| self.wait_for(worker, other, phase))
    }

    fn arrive(&self, worker: usize, phase: u64) {
        let counter = &self.counters[worker];
        counter
            .core
            .store(current_core().unwrap_or(NO_CORE), Ordering::Relaxed);
        counter.arrived.store(phase, Ordering::Release);
        // Whose fence is the last of all sees every counter; and either a sleeper does, too, or this sees the
        // sleeper. If every arrival woke them, they would sleep again until the next one.
        fence(Ordering::SeqCst);
        if self.have_arrived(phase) {
            self.wake();
        }
    }

    /// All have.
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
            if spin.is_multiple_of(CORE_CHECK_SPINS) && self.shares_core(other) {
                break;
            }
            std::hint::spin_loop();
        }
        let asleep = &self.counters[worker].asleep;
        loop {
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

    /// The awaited was last seen on this core: it cannot run before this worker sleeps.
    fn shares_core(&self, other: usize) -> bool {
        current_core() == Some(self.counters[other].core.load(Ordering::Relaxed))
    }

    /// Lets everyone go.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.wake();
    }

    /// Lets everyone go because a worker panicked.
    pub(super) fn close_after_panic(&self, worker: usize) {
        lock(&self.panic).get_or_insert(worker);
        self.close();
    }

    /// The worker that panicked.
    pub(super) fn panicked(&self) -> Option<usize> {
        *lock(&self.panic)
    }
}
