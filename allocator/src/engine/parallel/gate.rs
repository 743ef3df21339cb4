//! The hand-over between workers: a barrier out of one sequence counter per worker.
//!
//! A worker arrives by raising its own counter, and goes on once every counter has reached the same
//! value. Each counter has its own cache line and one writer, so nothing is contended. Who has spun
//! for long enough sleeps until the last one arrives; an idle engine's workers all sleep.
//!
//! What it synchronises with comes from `super::sync`, so that a model checker can put its own in
//! (`allocator/tests/gate_model.rs`).

use std::sync::PoisonError;

use super::sync::{
    AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, Thread, fence, spins, thread,
};
use crossbeam_utils::CachePadded;

#[derive(Debug, Default)]
struct Counter {
    arrived: AtomicU64,
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A barrier for a fixed set of workers.
#[derive(Debug)]
pub(super) struct Gate {
    counters: Box<[CachePadded<Counter>]>,
    closed: AtomicBool,
    panic: Mutex<Option<usize>>,
    spins: u32,
}

/// The gate was closed: the engine ends, or a worker panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Closed;

impl Gate {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            counters: (0..workers).map(|_| CachePadded::default()).collect(),
            closed: AtomicBool::new(false),
            panic: Mutex::new(None),
            spins: spins(workers),
        }
    }

    /// Says which thread is the worker, before it passes and whenever that changes.
    pub(super) fn enter(&self, worker: usize) {
        *lock(&self.counters[worker].thread) = Some(thread::current());
    }

    /// Arrives for the `round`-th time (from 1), and waits for all others.
    pub(super) fn pass(&self, worker: usize, round: u64) -> Result<(), Closed> {
        self.arrive(worker, round);
        (0..self.counters.len()).try_for_each(|other| self.wait(worker, other, round))
    }

    fn arrive(&self, worker: usize, round: u64) {
        self.counters[worker]
            .arrived
            .store(round, Ordering::Release);
        // Either the sleeper sees the counter, or this sees the sleeper.
        fence(Ordering::SeqCst);
        self.wake();
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

    fn wait(&self, worker: usize, other: usize, round: u64) -> Result<(), Closed> {
        let arrived = || self.counters[other].arrived.load(Ordering::Acquire) >= round;
        for _ in 0..self.spins {
            if arrived() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let asleep = &self.counters[worker].asleep;
        loop {
            asleep.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let there = arrived();
            if there || self.closed.load(Ordering::Relaxed) {
                asleep.store(false, Ordering::Relaxed);
                return if there { Ok(()) } else { Err(Closed) };
            }
            thread::park();
        }
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
