//! Clocks of the service: no other module of it reads one.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// First value of `now_ns`, an hour: "a lease ago" is never negative.
const ORIGIN_NS: u64 = 3_600_000_000_000;

static ORIGIN: OnceLock<Instant> = OnceLock::new();

#[allow(
    clippy::disallowed_methods,
    reason = "the service is I/O code; the state machines get the time from it"
)]
fn instant() -> Instant {
    Instant::now()
}

/// Returns monotonic time in nanoseconds. Its origin is this process's own: it is never compared
/// across hosts.
pub fn now_ns() -> u64 {
    let elapsed = instant().saturating_duration_since(*ORIGIN.get_or_init(instant));
    ORIGIN_NS + u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX - ORIGIN_NS)
}

/// Returns the instant, for a runtime's timer, at which [`now_ns`] will read `at_ns`; now if that
/// has passed.
pub fn instant_at(at_ns: u64) -> Instant {
    instant() + Duration::from_nanos(at_ns.saturating_sub(now_ns()))
}

/// Returns the wall clock in milliseconds since 1970, for records that people read; nothing is
/// decided by it.
#[allow(clippy::disallowed_methods, reason = "people read it as a date")]
pub fn wall_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        })
}

/// Returns a number that no earlier incarnation of this allocator had: the wall clock in
/// nanoseconds.
#[allow(
    clippy::disallowed_methods,
    reason = "an incarnation has to differ from those before a reboot, which no monotonic clock knows; it is not used as a time"
)]
pub fn incarnation() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(1, |since| {
            u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
        })
        .max(1)
}
