//! The clock: the only module that reads the time.
//!
//! All times in the daemon are CLOCK_MONOTONIC nanoseconds, the base of `bpf_ktime_get_ns`. So an
//! event's time, a lease's end and the expiry in a kernel map compare directly.

use nix::time::{ClockId, clock_gettime};

/// Reads CLOCK_MONOTONIC, in nanoseconds.
#[must_use]
pub fn now_ns() -> u64 {
    // The monotonic clock exists on every Linux kernel, and starts at zero: neither can fail.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("CLOCK_MONOTONIC exists");
    u64::try_from(now.tv_sec()).unwrap_or(0) * 1_000_000_000
        + u64::try_from(now.tv_nsec()).unwrap_or(0)
}

/// Returns the runtime's present instant, for its timers.
#[must_use]
pub fn instant_now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// Converts a CLOCK_MONOTONIC time to the runtime's instant; past times become "now".
#[must_use]
pub fn instant_at(at_ns: u64) -> tokio::time::Instant {
    // An `Instant` has no number: only the distance from now converts.
    instant_now() + std::time::Duration::from_nanos(at_ns.saturating_sub(now_ns()))
}

/// Returns a number that grows with each life of this process on this machine: the time since the
/// epoch in microseconds.
#[must_use]
pub fn incarnation() -> u64 {
    // The monotonic clock restarts with the machine; the wall clock distinguishes the lives.
    let now = clock_gettime(ClockId::CLOCK_REALTIME).expect("CLOCK_REALTIME exists");
    u64::try_from(now.tv_sec()).unwrap_or(0) * 1_000_000
        + u64::try_from(now.tv_nsec()).unwrap_or(0) / 1_000
}
