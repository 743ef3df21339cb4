//! Left-overs of a daemon that was killed: what it is, and its removal.
//!
//! A back end that is opened adopts what an earlier one left, and gives it back at its end. Removal
//! is exactly that, without a rate in between. The lock of the network namespace keeps it away from
//! a daemon that runs.

use crate::backend::left_behind::{LeftOver, find};
use crate::backend::namespaces::NAMESPACES_MAX;
use crate::backend::{BackendConfig, BackendError, BackendKind, PacingBackend, open};
use crate::clock::now_ns;
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

/// Part of a configuration that says where left-overs may be. A host whose configuration is gone
/// may still have some.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// Instance whose pins count; `None`: those of every instance that no daemon holds.
    pub instance: Option<String>,
    /// Patterns of files of pods' network namespaces.
    pub network_namespaces: Vec<String>,
}

impl From<&BackendConfig> for Places {
    fn from(config: &BackendConfig) -> Self {
        Self {
            instance: Some(config.instance.clone()),
            network_namespaces: config.network_namespaces.clone(),
        }
    }
}

/// Returns what a killed daemon left in this network namespace, and in those of pods.
#[must_use]
pub fn left_overs(places: &Places) -> Vec<LeftOver> {
    find(places.instance.as_deref())
}

/// Returns what daemons left here that is not of the one that runs, whose back end is `kind`, on
/// `device` if that has one. Its own pins are held, and so are those of other running daemons.
#[must_use]
pub fn left_by_others(kind: BackendKind, device: Option<&str>) -> Vec<LeftOver> {
    let mut found = find(None);
    found.retain(|left| {
        let same_device = left.device.as_deref() == device;
        left.backend != BackendKind::TcHtb || kind != BackendKind::TcHtb || !same_device
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

/// Has a back end take over the pods that are there, which it does one a poll.
fn adopt_pods(backend: &mut dyn PacingBackend) -> Result<(), BackendError> {
    let mut result = Ok(());
    // Pods that keep coming must not keep this from its end.
    for _ in 0..=NAMESPACES_MAX {
        result = result.and(backend.poll_events(now_ns(), &mut Vec::new()));
        if backend.next_poll_ns() != Some(0) {
            break;
        }
    }
    result
}

/// Removes what [`left_overs`] returns. Returns what was there.
///
/// # Errors
/// When a daemon runs, or something stays.
pub fn clean_up(places: &Places) -> Result<Vec<LeftOver>, CleanupError> {
    // Held until the end: no daemon starts meanwhile.
    let _lock = InstanceLock::take()
        .map_err(CleanupError::Lock)?
        .ok_or(CleanupError::Running)?;
    let found = left_overs(places);
    let mut stay = Vec::new();
    for left in &found {
        // It may have gone with the one before.
        if !left_overs(places).contains(left) {
            continue;
        }
        let config = BackendConfig {
            instance: left.instance.clone(),
            max_flows: 1,
            min_flowlet_bytes: 1,
            cgroup: None,
            device: left.device.clone(),
            take_over: true,
            network_namespaces: places.network_namespaces.clone(),
            tunnel_bytes: 0,
            // Nothing that only pacing needs is installed on the way.
            observe: true,
        };
        let removed = open(Some(left.backend), &config).and_then(|mut backend| {
            let adopted = adopt_pods(backend.as_mut());
            backend.shut_down().and(adopted)
        });
        if let Err(error) = removed {
            stay.push(format!("{}: {error}", left.what));
        }
    }
    stay.extend(left_overs(places).into_iter().map(|left| left.what));
    if stay.is_empty() {
        Ok(found)
    } else {
        Err(CleanupError::Stay(stay))
    }
}
