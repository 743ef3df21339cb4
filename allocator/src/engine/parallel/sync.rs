//! What the gate synchronises with: the standard library's, outside its model.

pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
pub(super) use std::sync::{Mutex, MutexGuard};
pub(super) use std::thread::{self, Thread};

/// Rounds of looking before a worker sleeps.
const SPINS: u32 = 20_000;

/// With more workers than cores, whoever spins keeps the awaited from running.
pub(super) fn spins(workers: usize) -> u32 {
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if workers > cores { 0 } else { SPINS }
}
