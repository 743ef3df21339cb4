//! Word to systemd, where it started us; without it, these do nothing.

use std::time::Duration;

use sd_notify::NotifyState;

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "systemd was not told");
    }
}

/// The service takes hosts.
pub fn ready() {
    notify(&[NotifyState::Ready]);
}

/// The configuration is loaded anew; [`ready`] ends it.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "systemd was not told"),
    }
}

/// The service shuts down.
pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// The service thread is alive.
pub fn watchdog() {
    notify(&[NotifyState::Watchdog]);
}

/// How often [`watchdog`] should be called: twice in the time that systemd allows.
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|allowed| (allowed / 2).max(Duration::from_millis(1)))
}
