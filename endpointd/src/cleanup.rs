//! Left-overs of a daemon that was killed: what it is, and its removal.
//!
//! A back end that is opened adopts what an earlier one left, and gives it back at its end. Removal
//! is exactly that, without a rate in between. The lock of the network namespace keeps it away from
//! a daemon that runs.

use crate::backend::left_behind::{LeftOver, find};
use crate::backend::{BackendConfig, BackendKind, open};
use crate::instance_lock::InstanceLock;

/// Reason for which left-overs stay.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// A daemon runs here: they are its own.
    #[error(
        "a daemon runs in this network namespace; stop it first (systemctl stop ratewright-endpointd)"
    )]
    Running,
    /// The lock cannot be had.
    #[error("cannot take the daemon's lock ({0}); root is needed")]
    Lock(std::io::Error),
    /// Some could not be removed.
    #[error("some left-overs stay: {}", .0.join("; "))]
    Stay(Vec<String>),
}

/// Returns what a killed daemon left in this network namespace. Pins are those of `instance`, or,
/// without one, of every instance that no daemon holds.
#[must_use]
pub fn left_overs(instance: Option<&str>) -> Vec<LeftOver> {
    let mut found = find();
    found.retain(|left| {
        left.backend != BackendKind::SockOps
            || instance.is_none_or(|instance| instance == left.instance)
    });
    found
}

/// Returns true if a daemon runs in this network namespace.
///
/// # Errors
/// When the lock cannot be looked at.
pub fn daemon_runs() -> Result<bool, CleanupError> {
    InstanceLock::take()
        .map(|lock| lock.is_none())
        .map_err(CleanupError::Lock)
}

/// Removes what [`left_overs`] returns. Returns what was there.
///
/// # Errors
/// When a daemon runs, or something stays.
pub fn clean_up(instance: Option<&str>) -> Result<Vec<LeftOver>, CleanupError> {
    // Held until the end: no daemon starts meanwhile.
    let _lock = InstanceLock::take()
        .map_err(CleanupError::Lock)?
        .ok_or(CleanupError::Running)?;
    let found = left_overs(instance);
    let mut stay = Vec::new();
    for left in &found {
        let config = BackendConfig {
            instance: left.instance.clone(),
            max_flows: 1,
            min_flowlet_bytes: 1,
            max_burst_ns: 0,
            cgroup: None,
            device: left.device.clone(),
            take_over: true,
            // Nothing that only pacing needs is installed on the way.
            observe: true,
        };
        let removed = open(Some(left.backend), &config).and_then(|mut backend| backend.shut_down());
        if let Err(error) = removed {
            stay.push(format!("{}: {error}", left.what));
        }
    }
    stay.extend(left_overs(instance).into_iter().map(|left| left.what));
    if stay.is_empty() {
        Ok(found)
    } else {
        Err(CleanupError::Stay(stay))
    }
}
