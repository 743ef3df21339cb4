//! The hand-over between workers: a barrier out of one sequence counter per worker.
//!
//! A worker arrives by raising its own counter, and goes on once every counter has reached the same
//! value. Each counter has its own cache line and one writer, so nothing is contended. Who has spun
//! for long enough sleeps until the last one arrives; an idle engine's workers all sleep.

#[cfg(not(ratewright_loom))]
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering, fence},
    sync::{Mutex, MutexGuard, PoisonError},
    thread::{self, Thread},
};

#[cfg(ratewright_loom)]
use loom::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering, fence},
    sync::{Mutex, MutexGuard},
    thread::{self, Thread},
};
#[cfg(ratewright_loom)]
use std::sync::PoisonError;

use crossbeam_utils::CachePadded;

/// Rounds of looking before a worker sleeps.
#[cfg(not(ratewright_loom))]
const SPINS: u32 = 20_000;

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

/// With more workers than cores, whoever spins keeps the awaited from running.
#[cfg(not(ratewright_loom))]
fn spins(workers: usize) -> u32 {
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if workers > cores { 0 } else { SPINS }
}

/// A model checker tries every order anyway.
#[cfg(ratewright_loom)]
fn spins(_workers: usize) -> u32 {
    0
}

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

#[cfg(all(test, not(ratewright_loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn nobody_overtakes() {
        const ROUNDS: u64 = 2_000;
        for workers in [1, 2, 3, 5] {
            let gate = Arc::new(Gate::new(workers));
            let counts: Arc<Vec<AtomicUsize>> =
                Arc::new((0..workers).map(|_| AtomicUsize::new(0)).collect());
            thread::scope(|scope| {
                for worker in 0..workers {
                    let (gate, counts) = (Arc::clone(&gate), Arc::clone(&counts));
                    scope.spawn(move || {
                        gate.enter(worker);
                        for round in 1..=ROUNDS {
                            counts[worker].store(round as usize, Ordering::Relaxed);
                            gate.pass(worker, 2 * round - 1).expect("open");
                            for count in counts.iter() {
                                assert_eq!(count.load(Ordering::Relaxed), round as usize);
                            }
                            gate.pass(worker, 2 * round).expect("open");
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn a_closed_gate_lets_sleepers_go() {
        let gate = Arc::new(Gate::new(2));
        let sleeper = {
            let gate = Arc::clone(&gate);
            thread::spawn(move || {
                gate.enter(1);
                gate.pass(1, 1)
            })
        };
        gate.close();
        assert_eq!(sleeper.join().expect("no panic"), Err(Closed));
    }
}

/// Every interleaving: `RUSTFLAGS="--cfg ratewright_loom" cargo test -p ratewright-allocator --lib gate`.
#[cfg(all(test, ratewright_loom))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn nobody_overtakes_and_nobody_sleeps_for_ever() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let gate = Arc::new(Gate::new(2));
            let data = Arc::new(AtomicUsize::new(0));
            // Not joined: a wake-up that comes late must find no one who waits for anything else,
            // which is more than this model checker can tell apart.
            let _ = {
                let (gate, data) = (Arc::clone(&gate), Arc::clone(&data));
                thread::spawn(move || {
                    gate.enter(1);
                    data.store(1, Ordering::Relaxed);
                    gate.pass(1, 1).expect("open");
                    gate.pass(1, 2).expect("open");
                    assert_eq!(data.load(Ordering::Relaxed), 2);
                })
            };
            gate.enter(0);
            gate.pass(0, 1).expect("open");
            assert_eq!(data.load(Ordering::Relaxed), 1);
            data.store(2, Ordering::Relaxed);
            gate.pass(0, 2).expect("open");
        });
    }

    #[test]
    fn a_closed_gate_lets_everyone_go() {
        loom::model(|| {
            let gate = Arc::new(Gate::new(2));
            let other = {
                let gate = Arc::clone(&gate);
                thread::spawn(move || {
                    gate.enter(1);
                    gate.pass(1, 1)
                })
            };
            gate.close();
            assert_eq!(other.join().expect("no panic"), Err(Closed));
        });
    }
}
