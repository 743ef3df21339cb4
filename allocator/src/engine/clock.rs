//! The one place of the engine that reads a clock.

use std::time::Instant;

/// Now, on the monotonic clock.
#[allow(
    clippy::disallowed_methods,
    reason = "the driver is I/O code: it measures its iterations"
)]
pub(super) fn now() -> Instant {
    Instant::now()
}
