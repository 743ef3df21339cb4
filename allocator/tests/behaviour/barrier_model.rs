//! The barrier of the parallel engine under a model checker: its own source, on the model's
//! atomics, locks and threads, in every interleaving within the bound below.

use loom::sync::Arc;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use loom::sync::{Mutex, MutexGuard};
    pub(crate) use loom::thread::{self, Thread};

    /// One spin: the model tries every order anyway.
    pub(crate) const SPINS: u32 = 1;

    /// Every thread shares core 0, so workers park early.
    pub(crate) fn current_core() -> Option<usize> {
        Some(0)
    }
}

#[path = "../../src/engine/parallel/barrier.rs"]
mod barrier;

use barrier::{Barrier, Closed};
use sync::{AtomicUsize, Ordering, thread};

/// Preemptions per interleaving at most; most orders of a few steps need fewer.
const PREEMPTIONS: usize = 3;

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

/// Checks with a core per worker, and with fewer.
fn check_spinning_and_not(model: impl Fn(usize) + Send + Sync + Copy + 'static) {
    for cores in [2, 1] {
        check(move || model(cores));
    }
}

/// The last of three workers to arrive wakes the others, in any order.
#[test]
fn the_last_one_wakes_the_others() {
    check(|| {
        let barrier = Arc::new(Barrier::new(3, 1));
        for worker in 1..3 {
            let barrier = Arc::clone(&barrier);
            // Not joined, as below.
            let _ = thread::spawn(move || {
                barrier.enter(worker);
                barrier.wait(worker, 1).expect("open");
            });
        }
        barrier.enter(0);
        barrier.wait(0, 1).expect("open");
    });
}

/// Relaxed stores before a phase are seen after it, and no worker sleeps for ever. A sleeper with a
/// lost wake-up would be a deadlock, which the model reports.
#[test]
fn no_worker_overtakes_another_or_sleeps_for_ever() {
    check_spinning_and_not(|cores| {
        let barrier = Arc::new(Barrier::new(2, cores));
        let data = Arc::new(AtomicUsize::new(0));
        // Not joined: a late wake-up must not find a thread that waits for anything else, which
        // this model checker cannot distinguish.
        let _ = {
            let (barrier, data) = (Arc::clone(&barrier), Arc::clone(&data));
            thread::spawn(move || {
                barrier.enter(1);
                data.store(1, Ordering::Relaxed);
                barrier.wait(1, 1).expect("open");
                barrier.wait(1, 2).expect("open");
                assert_eq!(data.load(Ordering::Relaxed), 2);
            })
        };
        barrier.enter(0);
        barrier.wait(0, 1).expect("open");
        assert_eq!(data.load(Ordering::Relaxed), 1);
        data.store(2, Ordering::Relaxed);
        barrier.wait(0, 2).expect("open");
    });
}

#[test]
fn a_closed_barrier_lets_everyone_go() {
    check_spinning_and_not(|cores| {
        let barrier = Arc::new(Barrier::new(2, cores));
        let other = {
            let barrier = Arc::clone(&barrier);
            thread::spawn(move || {
                barrier.enter(1);
                barrier.wait(1, 1)
            })
        };
        barrier.close();
        assert_eq!(other.join().expect("no panic"), Err(Closed));
    });
}

/// A worker that waits for one that panicked returns, and the panic names its worker.
#[test]
fn a_panic_lets_everyone_go() {
    check_spinning_and_not(|cores| {
        let barrier = Arc::new(Barrier::new(2, cores));
        // Not joined: as above.
        let _ = {
            let barrier = Arc::clone(&barrier);
            thread::spawn(move || {
                barrier.enter(1);
                barrier.close_after_panic(1);
            })
        };
        barrier.enter(0);
        assert_eq!(barrier.wait(0, 1), Err(Closed));
        assert_eq!(barrier.panicked(), Some(1));
    });
}

/// The model does try orders: without a barrier, the reader comes first in some and last in others.
#[test]
fn without_the_barrier_both_orders_occur() {
    let seen = std::sync::Arc::new([const { std::sync::atomic::AtomicBool::new(false) }; 2]);
    let orders = std::sync::Arc::clone(&seen);
    check(move || {
        let data = Arc::new(AtomicUsize::new(0));
        let writer = {
            let data = Arc::clone(&data);
            thread::spawn(move || data.store(1, Ordering::Relaxed))
        };
        orders[data.load(Ordering::Relaxed)].store(true, Ordering::Relaxed);
        writer.join().expect("no panic");
    });
    assert!(seen.iter().all(|order| order.load(Ordering::Relaxed)));
}
