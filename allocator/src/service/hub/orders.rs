//! Progress of the kill switch and of releases of single hosts, for operators.
//!
//! A host is released once it acknowledges that it paces no flow, or at the latest one lease after
//! it was sent the order. No rate holds longer than a lease without renewal, and a released session
//! renews none.

use super::report::Report;
use super::session::{Release, Session};
use crate::service::status::ReleaseReport;

/// A host that the topology does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the topology has no host {0:?}")]
pub struct UnknownHost(pub String);

impl Report<'_> {
    /// Returns the progress of the kill switch over all hosts.
    pub fn release_report(&self, now_ns: u64) -> ReleaseReport {
        let (conduct, lease_ns) = (&self.hub.conduct, self.hub.settings.lease_ns);
        let mut report = ReleaseReport {
            released: self.hub.is_released(),
            lease_ms: lease_ns / 1_000_000,
            ..ReleaseReport::default()
        };
        let Some(since_ns) = conduct.released_ns() else {
            report.hosts = self.hub.admission.registry.len() as u64;
            return report;
        };
        report.elapsed_ms = now_ns.saturating_sub(since_ns) / 1_000_000;
        for session in self.hub.sessions.values() {
            let Some(peer) = &session.peer else {
                continue;
            };
            report.hosts += 1;
            match self.release_state(now_ns, session) {
                "acknowledged" => report.acknowledged += 1,
                "expired" => report.expired += 1,
                _ => report.waiting.push(peer.hello.host_name.clone()),
            }
        }
        // A host that left may act on its rates until they run out.
        for host in conduct.departed(now_ns, lease_ns) {
            if self.hub.session_of(host).is_none() {
                report.hosts += 1;
                report.waiting.push(host.to_owned());
            }
        }
        report
    }

    /// Returns the state of the kill switch at one host as a word for `/status`.
    pub(super) fn release_state(&self, now_ns: u64, session: &Session) -> &'static str {
        match session.release {
            Release::No => "no",
            Release::Acknowledged => "acknowledged",
            Release::Waiting { since_ns }
                if now_ns.saturating_sub(since_ns) >= self.hub.settings.lease_ns =>
            {
                "expired"
            }
            Release::Waiting { .. } => "waiting",
        }
    }

    /// Returns the progress of one host's release.
    pub fn host_release_report(&self, now_ns: u64, host: &str) -> ReleaseReport {
        let (conduct, lease_ns) = (&self.hub.conduct, self.hub.settings.lease_ns);
        let mut report = ReleaseReport {
            released: self.hub.is_released() || conduct.has_released(host),
            lease_ms: lease_ns / 1_000_000,
            ..ReleaseReport::default()
        };
        let id = self.hub.session_of(host);
        match id.and_then(|id| self.hub.sessions.get(id)) {
            Some(session) => {
                report.hosts = 1;
                if let Release::Waiting { since_ns } = session.release {
                    report.elapsed_ms = now_ns.saturating_sub(since_ns) / 1_000_000;
                }
                match self.release_state(now_ns, session) {
                    "acknowledged" => report.acknowledged = 1,
                    "expired" => report.expired = 1,
                    "waiting" => report.waiting.push(host.to_owned()),
                    _ => {}
                }
            }
            // It may act on rates of its last session until they run out.
            None if (conduct.departed(now_ns, lease_ns)).any(|departed| departed == host) => {
                report.hosts = 1;
                report.waiting.push(host.to_owned());
            }
            None => {}
        }
        report
    }
}
