//! What the gate synchronises with: the standard library's, outside its model.

pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
pub(super) use std::sync::{Mutex, MutexGuard};
pub(super) use std::thread::{self, Thread};

pub(super) use crate::engine::affinity::current_core;

/// Rounds of looking before a worker sleeps.
pub(super) const SPINS: u32 = 20_000;
