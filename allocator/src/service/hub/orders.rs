//! Orders to hosts with respect to rates, and proof that hosts are back at plain TCP.
//! [`Conduct`](super::conduct::Conduct) knows the kill switch and releases of single hosts.
//!
//! A host is released once it acknowledges that it paces no flow, or at the latest one lease after
//! it was sent the order. No rate holds longer than a lease without renewal, and a released session
//! renews none.

use super::session::{Release, Session};
use super::{Hub, PacingOrder};
use crate::service::status::ReleaseReport;

/// A host that the topology does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the topology has no host {0:?}")]
pub struct UnknownHost(pub String);

impl Hub {
    /// True while the kill switch is on.
    pub fn is_released(&self) -> bool {
        self.conduct.released_ns().is_some()
    }

    /// Turns the kill switch and returns its progress.
    pub fn set_released(&mut self, now_ns: u64, released: bool) -> ReleaseReport {
        if released != self.is_released() {
            self.conduct.turn(now_ns, released);
            self.apply_orders(now_ns);
            if released {
                // Hosts that were released before, and have not acknowledged it yet.
                for session in self.sessions.values() {
                    if let Release::Waiting { since_ns } = session.release
                        && since_ns < now_ns
                    {
                        self.conduct.await_earlier_answer(since_ns, session.id);
                    }
                }
            }
        }
        self.release_report(now_ns)
    }

    /// Takes a host's acknowledgement of the kill switch.
    pub(super) fn release_acknowledged(&mut self, id: u32, released: bool, paced_flows: u32) {
        // An acknowledgement that still counts paced flows proves nothing: the host then counts as
        // released when a lease has passed.
        if let Some(session) = self.sessions.get_mut(id)
            && released
            && paced_flows == 0
            && matches!(session.release, Release::Waiting { .. })
        {
            session.release = Release::Acknowledged;
        }
    }

    /// True while a host may still act on a rate although the kill switch is on. Each session and
    /// departed host is checked until it is free and then removed, so repeated calls cost little.
    pub fn release_waits(&mut self, now_ns: u64) -> bool {
        let (sessions, topology, registry) = (
            &self.sessions,
            &self.network.topology,
            &self.admission.registry,
        );
        self.conduct.waits(
            now_ns,
            self.settings.lease_ns,
            |id| {
                sessions.get(id).is_some_and(|session| {
                    session.peer.is_some() && matches!(session.release, Release::Waiting { .. })
                })
            },
            |host| {
                let host = topology.host_by_name(host);
                host.is_some_and(|host| registry.session_of(host.0).is_some())
            },
        )
    }

    /// Returns the progress of the kill switch over all hosts.
    pub fn release_report(&mut self, now_ns: u64) -> ReleaseReport {
        let lease_ns = self.settings.lease_ns;
        self.conduct.forget_departed(now_ns, lease_ns);
        let mut report = ReleaseReport {
            released: self.is_released(),
            lease_ms: lease_ns / 1_000_000,
            ..ReleaseReport::default()
        };
        let Some(since_ns) = self.conduct.released_ns() else {
            report.hosts = self.admission.registry.len() as u64;
            return report;
        };
        report.elapsed_ms = now_ns.saturating_sub(since_ns) / 1_000_000;
        for session in self.sessions.values() {
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
        for host in self.conduct.departed() {
            if self.session_of(host).is_none() {
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
                if now_ns.saturating_sub(since_ns) >= self.settings.lease_ns =>
            {
                "expired"
            }
            Release::Waiting { .. } => "waiting",
        }
    }

    /// Returns the conduct of a host, and the reason in words.
    pub(super) fn order_of(&self, host: &str) -> (PacingOrder, &'static str) {
        let rack = self
            .network
            .topology
            .host_by_name(host)
            .and_then(|id| self.network.topology.hosts().get(id.index()))
            .and_then(|host| self.network.topology.racks().get(host.rack.index()))
            .map_or("", |rack| rack.name.as_str());
        self.conduct.order(host, rack, &self.settings.rollout)
    }

    /// Tells every host whose conduct has changed. Visits every session.
    pub(super) fn apply_orders(&mut self, now_ns: u64) {
        let mut ids: Vec<u32> = self.sessions.numbers().collect();
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
        let Some(session) = self.sessions.get_mut(id) else {
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
            self.conduct.await_answer(since_ns, id);
        }
        self.mark_ready(id);
        true
    }

    pub(super) fn host_name_of(&self, id: u32) -> Option<String> {
        let peer = self.sessions.get(id)?.peer.as_ref()?;
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
        if self.network.topology.host_by_name(host).is_none() {
            return Err(UnknownHost(host.to_owned()));
        }
        self.conduct.set_host_released(host, released);
        if let Some(id) = self.session_of(host)
            && self.apply_order(now_ns, id)
        {
            self.pacing_changed(now_ns, [id]);
        }
        Ok(self.host_release_report(now_ns, host))
    }

    /// Returns the number of a host's session.
    pub(super) fn session_of(&self, host: &str) -> Option<u32> {
        let host = self.network.topology.host_by_name(host)?;
        self.admission.registry.session_of(host.0)
    }

    /// Returns the progress of one host's release.
    pub fn host_release_report(&mut self, now_ns: u64, host: &str) -> ReleaseReport {
        let lease_ns = self.settings.lease_ns;
        self.conduct.forget_departed(now_ns, lease_ns);
        let mut report = ReleaseReport {
            released: self.is_released() || self.conduct.has_released(host),
            lease_ms: lease_ns / 1_000_000,
            ..ReleaseReport::default()
        };
        let session = self.session_of(host).and_then(|id| self.sessions.get(id));
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
            None if self.conduct.departed().any(|departed| departed == host) => {
                report.hosts = 1;
                report.waiting.push(host.to_owned());
            }
            None => {}
        }
        report
    }

    /// Returns the hosts that an operator has released.
    pub fn released_hosts(&self) -> impl Iterator<Item = &str> {
        self.conduct.released_hosts()
    }
}
