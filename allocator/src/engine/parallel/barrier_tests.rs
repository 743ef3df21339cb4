//! The barrier between real threads; `tests/behaviour/barrier_model.rs` tries every interleaving.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::barrier::{Barrier, Closed};

#[test]
fn no_worker_overtakes_another() {
    const ROUNDS: u64 = 2_000;
    // With one core per worker the workers spin, and share the cores that the machine has.
    for (workers, cores) in [(1, 1), (2, 2), (2, 1), (3, 3), (5, 2)] {
        let barrier = Arc::new(Barrier::new(workers, cores));
        let counts: Arc<Vec<AtomicUsize>> =
            Arc::new((0..workers).map(|_| AtomicUsize::new(0)).collect());
        thread::scope(|scope| {
            for worker in 0..workers {
                let (barrier, counts) = (Arc::clone(&barrier), Arc::clone(&counts));
                scope.spawn(move || {
                    barrier.enter(worker);
                    for round in 1..=ROUNDS {
                        counts[worker].store(round as usize, Ordering::Relaxed);
                        barrier.wait(worker, 2 * round - 1).expect("open");
                        for count in counts.iter() {
                            assert_eq!(count.load(Ordering::Relaxed), round as usize);
                        }
                        // The second barrier keeps the next round's store out of these loads.
                        barrier.wait(worker, 2 * round).expect("open");
                    }
                });
            }
        });
    }
}

#[test]
fn a_closed_barrier_lets_sleepers_go() {
    let barrier = Arc::new(Barrier::new(2, 2));
    let sleeper = {
        let barrier = Arc::clone(&barrier);
        thread::spawn(move || {
            barrier.enter(1);
            barrier.wait(1, 1)
        })
    };
    barrier.close();
    assert_eq!(sleeper.join().expect("no panic"), Err(Closed));
}
