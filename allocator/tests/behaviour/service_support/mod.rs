//! Support for whole-process tests: certificates, the real binary on loopback, an admin client, and
//! hosts that speak QUIC with the production client state machine.

pub(crate) mod certificates;
pub(crate) mod host;
pub(crate) mod process;

use std::time::{Duration, Instant};

/// Waits until `condition` holds; panics with `what` after `limit`.
#[allow(
    clippy::disallowed_methods,
    reason = "a test waits for another process"
)]
pub(crate) fn wait_for(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < limit, "waited {limit:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sleeps.
#[allow(
    clippy::disallowed_methods,
    reason = "a test watches that nothing happens for a while"
)]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Returns the duration and the result of `act`.
#[allow(clippy::disallowed_methods, reason = "a test measures a bound")]
pub(crate) fn timed<T>(act: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = act();
    (start.elapsed(), result)
}

/// Time limit that suffices on a busy machine with two cores.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
