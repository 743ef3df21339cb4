//! Conduct of single hosts with respect to rates: the kill switch, an operator's release of a host,
//! and the rollout. The most careful of them holds.

use super::session::Release;
use super::{Hub, PacingOrder};
use crate::service::status::ReleaseReport;

/// A host that the topology does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the topology has no host {0:?}")]
pub struct UnknownHost(pub String);

impl Hub {
    /// Returns the conduct of a host, and the reason in words.
    pub(super) fn order_of(&self, host: &str) -> (PacingOrder, &'static str) {
        if self.is_released() {
            return (PacingOrder::Release, "the kill switch is on");
        }
        if self.released_hosts.contains(host) {
            return (PacingOrder::Release, "an operator has released it");
        }
        let rack = self
            .topology
            .host_by_name(host)
            .and_then(|id| self.topology.hosts().get(id.index()))
            .and_then(|host| self.topology.racks().get(host.rack.index()))
            .map_or("", |rack| rack.name.as_str());
        self.settings.rollout.order(host, rack)
    }

    /// Tells every host whose conduct has changed. Visits every session.
    pub(super) fn apply_orders(&mut self, now_ns: u64) {
        let mut ids: Vec<u32> = self.sessions.keys().copied().collect();
        ids.retain(|&id| self.apply_order(now_ns, id));
        self.pacing_changed(now_ns, ids);
    }

    /// Tells the host of a session its conduct, if that has changed; returns true if so.
    fn apply_order(&mut self, now_ns: u64, id: u32) -> bool {
        let Some(host) = self.host_name_of(id) else {
            return false;
        };
        let (order, _) = self.order_of(&host);
        let released = self.is_released();
        let Some(session) = self.sessions.get_mut(&id) else {
            return false;
        };
        let before = std::mem::replace(&mut session.order, order);
        if before == order {
            return false;
        }
        match order {
            PacingOrder::Pace => session.proto.set_released(false),
            PacingOrder::Observe => session.proto.set_observing(),
            PacingOrder::Release => session.proto.set_released(true),
        }
        // A host that has proved that it paces nothing goes on pacing nothing.
        session.release = match (order, session.release) {
            (PacingOrder::Pace, _) => Release::No,
            (_, Release::No) => Release::Waiting { since_ns: now_ns },
            (_, release) => release,
        };
        if released && let Release::Waiting { since_ns } = session.release {
            self.unanswered.push_back((since_ns, id));
        }
        self.mark_ready(id);
        true
    }

    pub(super) fn host_name_of(&self, id: u32) -> Option<String> {
        let peer = self.sessions.get(&id)?.peer.as_ref()?;
        Some(peer.hello.host_name.clone())
    }

    /// Releases one host, or lets it follow the rollout again. Kept until the allocator ends.
    ///
    /// # Errors
    /// The topology does not have the host.
    pub fn set_host_released(
        &mut self,
        now_ns: u64,
        host: &str,
        released: bool,
    ) -> Result<ReleaseReport, UnknownHost> {
        // The topology bounds the list.
        if self.topology.host_by_name(host).is_none() {
            return Err(UnknownHost(host.to_owned()));
        }
        if released {
            self.released_hosts.insert(host.to_owned());
        } else {
            self.released_hosts.remove(host);
        }
        if let Some(id) = self.session_of(host)
            && self.apply_order(now_ns, id)
        {
            self.pacing_changed(now_ns, [id]);
        }
        Ok(self.host_release_report(now_ns, host))
    }

    /// Returns the number of a host's session.
    pub(super) fn session_of(&self, host: &str) -> Option<u32> {
        let host = self.topology.host_by_name(host)?;
        self.registry.session_of(host.0)
    }

    /// Returns the progress of one host's release.
    pub fn host_release_report(&mut self, now_ns: u64, host: &str) -> ReleaseReport {
        self.forget_departed(now_ns);
        let mut report = ReleaseReport {
            released: self.is_released() || self.released_hosts.contains(host),
            lease_ms: self.settings.lease_ns / 1_000_000,
            ..ReleaseReport::default()
        };
        let session = self.session_of(host).and_then(|id| self.sessions.get(&id));
        match session {
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
            None if self.departed.iter().any(|(departed, _)| departed == host) => {
                report.hosts = 1;
                report.waiting.push(host.to_owned());
            }
            None => {}
        }
        report
    }

    /// Returns the hosts that an operator has released.
    pub fn released_hosts(&self) -> impl Iterator<Item = &str> {
        self.released_hosts.iter().map(String::as_str)
    }
}
