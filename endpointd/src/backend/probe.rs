//! Probes of the back ends: each is really installed, on a throw-away object, and a failure is
//! explained in plain words.

use super::sock_ops::SockOps;
use super::tc_htb::TcHtb;
use super::{BackendError, BackendKind};

/// Result of trying one mechanism.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ProbeResult {
    /// The mechanism.
    pub kind: BackendKind,
    /// It could be installed and removed again.
    pub usable: bool,
    /// Reasons against it and their remedies; empty if usable.
    pub reasons: Vec<String>,
    /// Variant that a usable mechanism takes where kernels differ.
    pub taken: Option<String>,
}

/// Tries every mechanism, the one that is preferred first. Touches no existing socket, cgroup or
/// device:
///
/// - sock_ops: the program is attached to an empty cgroup made for it;
/// - tc_htb: qdisc and filter are put on the loopback device of a new network namespace.
#[must_use]
pub fn probe() -> Vec<ProbeResult> {
    vec![
        ProbeResult {
            taken: (!SockOps::takes_connections_over())
                .then(|| "connections from before the daemon stay plain TCP".to_owned()),
            ..result(BackendKind::SockOps, SockOps::probe())
        },
        result(BackendKind::TcHtb, TcHtb::probe()),
    ]
}

fn result(kind: BackendKind, tried: Result<(), BackendError>) -> ProbeResult {
    ProbeResult {
        kind,
        usable: tried.is_ok(),
        reasons: tried.err().iter().map(plain_reason).collect(),
        taken: None,
    }
}

/// The reason without the mechanism's name before it; the table has that already.
pub(super) fn plain_reason(error: &BackendError) -> String {
    match error {
        BackendError::Unavailable { reason, .. } => reason.clone(),
        system @ BackendError::System { .. } => system.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_without_repeating_the_mechanism() {
        let refused = BackendError::Unavailable {
            mechanism: "sock_ops",
            reason: "no cgroup v2; mount it".to_owned(),
        };
        let told = result(BackendKind::SockOps, Err(refused));
        assert!(!told.usable);
        assert_eq!(told.reasons, ["no cgroup v2; mount it"]);
        assert!(result(BackendKind::TcHtb, Ok(())).reasons.is_empty());
    }
}
