//! Choice of the back end: the one that was asked for, or the first that works.

use super::cgroup::Cgroup;
use super::probe::plain_reason;
use super::sock_ops::SockOps;
use super::tc_htb::{self, TcHtb};
use super::{BackendConfig, BackendError, BackendKind, PacingBackend};

/// Back ends from the best to the last resort.
const PREFERENCE: [BackendKind; 2] = [BackendKind::SockOps, BackendKind::TcHtb];

/// Installs the back end `kind`; without one, sock_ops, or tc_htb where that cannot be installed.
///
/// # Errors
/// When `kind`, or every one, is refused; the reasons of all that were tried are in the error.
pub fn open(
    kind: Option<BackendKind>,
    config: &BackendConfig,
) -> Result<Box<dyn PacingBackend>, BackendError> {
    if let Some(kind) = kind {
        return open_kind(kind, config);
    }
    first_usable(&PREFERENCE, |kind| open_kind(kind, config))
}

/// Checks that the cgroup or device that the configuration names for the back end `kind` exists;
/// touches nothing. Without a `kind` nothing has to exist, because another back end can be used.
///
/// # Errors
/// With what is missing.
pub fn check(kind: Option<BackendKind>, config: &BackendConfig) -> Result<(), BackendError> {
    match (kind, &config.device) {
        (Some(BackendKind::SockOps), _) => Cgroup::open(config.cgroup.as_deref()).map(drop),
        (Some(BackendKind::TcHtb), Some(device)) => tc_htb::index_of(device).map(drop),
        _ => Ok(()),
    }
}

fn open_kind(
    kind: BackendKind,
    config: &BackendConfig,
) -> Result<Box<dyn PacingBackend>, BackendError> {
    Ok(match kind {
        BackendKind::SockOps => Box::new(SockOps::open(config)?),
        BackendKind::TcHtb => Box::new(TcHtb::open(config)?),
    })
}

fn name(kind: BackendKind) -> &'static str {
    match kind {
        BackendKind::SockOps => "sock_ops",
        BackendKind::TcHtb => "tc_htb",
    }
}

fn first_usable<T>(
    kinds: &[BackendKind],
    mut open: impl FnMut(BackendKind) -> Result<T, BackendError>,
) -> Result<T, BackendError> {
    let mut reasons = Vec::new();
    for kind in kinds {
        match open(*kind) {
            Ok(opened) => return Ok(opened),
            Err(error) => {
                let reason = plain_reason(&error);
                // The operator may expect a better mechanism, so the log says why it was not taken.
                tracing::warn!(
                    backend = name(*kind),
                    reason,
                    "this back end cannot be used"
                );
                reasons.push(format!("{}: {reason}", name(*kind)));
            }
        }
    }
    Err(BackendError::Unavailable {
        mechanism: "pacing",
        reason: reasons.join("; "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuse(kind: BackendKind) -> BackendError {
        BackendError::Unavailable {
            mechanism: name(kind),
            reason: format!("no {}", name(kind)),
        }
    }

    #[test]
    fn the_first_that_works_is_taken() {
        let taken = first_usable(&PREFERENCE, |kind| {
            if kind == BackendKind::SockOps {
                Err(refuse(kind))
            } else {
                Ok(kind)
            }
        });
        assert_eq!(taken.ok(), Some(BackendKind::TcHtb));
    }

    #[test]
    fn when_none_works_every_reason_is_given() {
        let error =
            first_usable::<()>(&PREFERENCE, |kind| Err(refuse(kind))).expect_err("all refuse");
        let text = error.to_string();
        for part in ["sock_ops: no sock_ops", "tc_htb: no tc_htb"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
