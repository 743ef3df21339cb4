//! Notifications to systemd. They do nothing if systemd did not start the process.

use std::time::Duration;

use sd_notify::NotifyState;

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "systemd was not told");
    }
}

/// Reports that the service takes hosts.
pub fn ready() {
    notify(&[NotifyState::Ready]);
}

/// Reports that a reload has begun; [`ready`] ends it.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "systemd was not told"),
    }
}

/// Reports that the service shuts down.
pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Reports that the service thread is alive.
pub fn watchdog() {
    notify(&[NotifyState::Watchdog]);
}

/// Returns the interval of [`watchdog`]: half of the time that systemd allows.
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|allowed| (allowed / 2).max(Duration::from_millis(1)))
}
