//! The one clock of the lab: CLOCK_MONOTONIC, which all processes and namespaces of a machine
//! share.

use std::time::Duration;

use nix::sys::time::{TimeSpec, TimeValLike};
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};

/// Nanoseconds in a millisecond.
pub const NS_PER_MS: u64 = 1_000_000;
/// Nanoseconds in a second.
pub const NS_PER_S: u64 = 1_000_000_000;

/// Now, in nanoseconds of CLOCK_MONOTONIC.
#[must_use]
pub fn now_ns() -> u64 {
    // The call fails only for clocks that the kernel does not know.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| t.num_nanoseconds() as u64)
}

/// Sleeps until the absolute time `at_ns`; returns at once if it has passed.
pub fn sleep_until_ns(at_ns: u64) {
    // An absolute time: sleeping again after a signal does not add up errors.
    let at = TimeSpec::nanoseconds(at_ns as i64);
    while now_ns() < at_ns {
        // Interrupted by a signal: sleep on for the rest.
        let _ = clock_nanosleep(
            ClockId::CLOCK_MONOTONIC,
            ClockNanosleepFlags::TIMER_ABSTIME,
            &at,
        );
    }
}

/// Sleeps for `duration`.
pub fn sleep(duration: Duration) {
    sleep_until_ns(now_ns() + duration.as_nanos() as u64);
}
