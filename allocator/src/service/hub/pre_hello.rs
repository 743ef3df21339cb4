//! Connections that have presented a certificate and not sent their Hello.

use arrayvec::ArrayVec;
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

use crate::service::config::Fingerprint;

/// Maximum of such connections of one certificate. A daemon has one, and a second one while the
/// first is taken down.
pub(super) const MAX_PER_CERTIFICATE: usize = 4;

/// Connections without a Hello by certificate, oldest first.
#[derive(Debug, Default)]
pub(super) struct PreHelloConnections {
    by_certificate: IndexMap<Fingerprint, ArrayVec<u32, MAX_PER_CERTIFICATE>, FxBuildHasher>,
}

impl PreHelloConnections {
    /// Adds a session's connection. Beyond the maximum of its certificate it removes and returns
    /// the oldest: the host itself is behind the newest.
    pub(super) fn add(&mut self, certificate: Fingerprint, session: u32) -> Option<u32> {
        let sessions = self.by_certificate.entry(certificate).or_default();
        let oldest = sessions.is_full().then(|| sessions.remove(0));
        sessions.push(session);
        oldest
    }

    /// Removes a connection that sent its Hello or is gone.
    pub(super) fn remove(&mut self, certificate: &Fingerprint, session: u32) {
        if let Some(sessions) = self.by_certificate.get_mut(certificate) {
            sessions.retain(|&mut other| other != session);
            // Certificates come and go: an empty entry per certificate ever seen would grow without
            // bound.
            if sessions.is_empty() {
                self.by_certificate.swap_remove(certificate);
            }
        }
    }
}
