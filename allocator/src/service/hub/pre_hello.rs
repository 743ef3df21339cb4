//! Connections that have shown a certificate and not introduced themselves.

use arrayvec::ArrayVec;
use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

use crate::service::config::Fingerprint;

/// Connections of one certificate that may be without a session. A daemon has one, and another one while its last
/// is being taken down.
pub(super) const MAX_PER_CERTIFICATE: usize = 4;

/// Those connections by certificate, the oldest first.
#[derive(Debug, Default)]
pub(super) struct PreHelloConnections {
    of: IndexMap<Fingerprint, ArrayVec<u32, MAX_PER_CERTIFICATE>, FxBuildHasher>,
}

impl PreHelloConnections {
    /// Adds a session's connection. If there are too many of its certificate, the oldest is taken off and returned: the host
    /// itself is behind the newest.
    pub(super) fn add(&mut self, certificate: Fingerprint, session: u32) -> Option<u32> {
        let sessions = self.of.entry(certificate).or_default();
        let oldest = sessions.is_full().then(|| sessions.remove(0));
        sessions.push(session);
        oldest
    }

    /// Takes off one that has introduced itself, or is gone.
    pub(super) fn remove(&mut self, certificate: &Fingerprint, session: u32) {
        if let Some(sessions) = self.of.get_mut(certificate) {
            sessions.retain(|&mut other| other != session);
            if sessions.is_empty() {
                self.of.swap_remove(certificate);
            }
        }
    }
}
