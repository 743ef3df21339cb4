//! Primitives of the barrier and locks of the shared state. The barrier's model substitutes its own
//! (`tests/behaviour/barrier_model.rs`).

pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
pub(super) use std::sync::{Mutex, MutexGuard};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub(super) use std::thread::{self, Thread};

pub(super) use crate::engine::affinity::current_core;

/// Spins before a worker parks.
pub(super) const SPINS: u32 = 20_000;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
