//! Several threads, each of which simulates a partition, window by window.
//!
//! In a window no partition can affect another (`net/regions.rs`). Between two windows the main
//! thread has all partitions for itself: it exchanges their traffic, draws flows, and retires those
//! of which nothing is left. This is the scheme of parallel simulation with conservative windows
//! (Nicol 1993), as UNISON (Bai et al., EuroSys 2024) has it for ns-3 and DONS (Gao et al., SIGCOMM
//! 2023) for its own engine. UNISON hands small partitions to threads by their last load; here a
//! thread keeps its partition, and with it its caches.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};

use crate::run::partition::Partition;
use crate::run::scheduler::Window;
use crate::transport::Transport;

/// Looks at a shared variable in a row before a thread goes to sleep: some 10 µs.
const SPINS: u32 = 1 << 12;

/// Events of a window from which on the next one is worth more than one thread: some 20 µs of work.
const WORTH_THREADS: u64 = 256;

/// State that the threads share.
struct Crew<'a, T: Transport> {
    partitions: Vec<Mutex<&'a mut Partition<T>>>,
    /// The present window.
    window: Mutex<Option<Window>>,
    /// Windows that were begun.
    begun: AtomicU64,
    /// Threads beside the main one that have finished the last of them.
    finished: AtomicUsize,
    /// No window follows.
    over: AtomicBool,
    /// A thread has panicked.
    failed: AtomicBool,
    main: Thread,
}

/// Locks what no other thread holds now.
fn lock<P>(mutex: &Mutex<P>) -> MutexGuard<'_, P> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until a condition holds; who makes it true wakes this thread.
fn wait_until(condition: impl Fn() -> bool) {
    for _ in 0..SPINS {
        if condition() {
            return;
        }
        std::hint::spin_loop();
    }
    while !condition() {
        thread::park();
    }
}

/// The end of a thread's work. It says so by a panic too, so that no other thread waits for ever.
struct End<'a, 'b, T: Transport>(&'a Crew<'b, T>);

impl<T: Transport> Drop for End<'_, '_, T> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.failed.store(true, Ordering::Release);
        }
        self.0.main.unpark();
    }
}

impl<T: Transport> Crew<'_, T> {
    fn simulate(&self, number: usize) {
        let window = *lock(&self.window);
        if let Some(window) = window {
            lock(&self.partitions[number]).simulate(window);
        }
    }

    /// Simulates a partition's windows until there are no more.
    fn work(&self, number: usize) {
        let _end = End(self);
        let mut begun = 0;
        loop {
            let next = || self.begun.load(Ordering::Acquire);
            wait_until(|| next() > begun || self.over.load(Ordering::Acquire));
            if next() == begun {
                return;
            }
            // Windows that the main thread simulated by itself are not among them.
            begun += 1;
            self.simulate(number);
            self.finished.fetch_add(1, Ordering::Release);
            self.main.unpark();
        }
    }
}

/// The other threads, which are told when the work is over, by a panic too.
struct Others<'a, 'b, T: Transport> {
    crew: &'a Crew<'b, T>,
    threads: Vec<Thread>,
}

impl<T: Transport> Others<'_, '_, T> {
    /// Simulates a window with all threads. Returns false if one of them has panicked.
    fn simulate(&self, window: Window) -> bool {
        let crew = self.crew;
        *lock(&crew.window) = Some(window);
        crew.finished.store(0, Ordering::Relaxed);
        crew.begun.fetch_add(1, Ordering::Release);
        self.threads.iter().for_each(Thread::unpark);
        crew.simulate(0);
        let failed = || crew.failed.load(Ordering::Acquire);
        let finished = || crew.finished.load(Ordering::Acquire) == self.threads.len();
        wait_until(|| finished() || failed());
        !failed()
    }
}

impl<T: Transport> Drop for Others<'_, '_, T> {
    fn drop(&mut self) {
        self.crew.over.store(true, Ordering::Release);
        self.threads.iter().for_each(Thread::unpark);
    }
}

/// Simulates the windows that `next` returns, with a thread for each partition. `next` has all
/// partitions, and ends the work with `None`.
pub(crate) fn simulate<T: Transport>(
    partitions: &mut [Partition<T>],
    mut next: impl FnMut(&mut [MutexGuard<'_, &mut Partition<T>>]) -> Option<Window>,
) {
    let others = partitions.len() - 1;
    let crew = &Crew {
        partitions: partitions.iter_mut().map(Mutex::new).collect(),
        window: Mutex::new(None),
        begun: AtomicU64::new(0),
        finished: AtomicUsize::new(0),
        over: AtomicBool::new(false),
        failed: AtomicBool::new(false),
        main: thread::current(),
    };
    thread::scope(|scope| {
        let start = |number| scope.spawn(move || crew.work(number)).thread().clone();
        let others = Others {
            crew,
            threads: (1..=others).map(start).collect(),
        };
        let mut events = 0;
        loop {
            let window = {
                let mut partitions: Vec<_> = crew.partitions.iter().map(lock).collect();
                let of_all = partitions.iter().map(|p| p.core.events).sum();
                let of_last = of_all - std::mem::replace(&mut events, of_all);
                let window = next(&mut partitions);
                // Waking the others would take longer than a window of few events.
                if let Some(window) = window
                    && of_last < WORTH_THREADS
                {
                    partitions.iter_mut().for_each(|p| p.simulate(window));
                    continue;
                }
                window
            };
            // The scope's end raises the panic of a thread that failed.
            if !window.is_some_and(|window| others.simulate(window)) {
                return;
            }
        }
    });
}
