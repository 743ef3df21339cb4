//! Kill switch: returns every host to plain TCP and proves that it is there.
//!
//! A host is released once it acknowledges that it paces no flow, or at the latest one lease after
//! it was sent the switch. No rate holds longer than a lease without renewal, and a released
//! session renews none.

use crate::service::status::ReleaseReport;

use super::Hub;
use super::session::{Release, Session};

impl Hub {
    /// True while the kill switch is on.
    pub fn is_released(&self) -> bool {
        self.released_ns.is_some()
    }

    /// Turns the kill switch and returns its progress.
    pub fn set_released(&mut self, now_ns: u64, released: bool) -> ReleaseReport {
        if released != self.is_released() {
            self.released_ns = released.then_some(now_ns);
            // Entries of an earlier turn of the switch would count its time for this one.
            self.unanswered.clear();
            self.apply_orders(now_ns);
            if released {
                // Hosts that were released before, and have not acknowledged it yet.
                for session in self.sessions.values() {
                    if let Release::Waiting { since_ns } = session.release
                        && since_ns < now_ns
                    {
                        self.unanswered.push_front((since_ns, session.id));
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
        if let Some(session) = self.sessions.get_mut(&id)
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
        if !self.is_released() {
            return false;
        }
        self.forget_departed(now_ns);
        let lease_ns = self.settings.lease_ns;
        while let Some(&(since_ns, id)) = self.unanswered.front() {
            // The queue is ordered by time, so the first entry that waits is the oldest, and those
            // behind it need no check.
            let waits = self.sessions.get(&id).is_some_and(|session| {
                session.peer.is_some() && matches!(session.release, Release::Waiting { .. })
            });
            if waits && now_ns.saturating_sub(since_ns) < lease_ns {
                return true;
            }
            self.unanswered.pop_front();
        }
        // A host that is back counts with its session. If it leaves again, it is recorded again.
        while let Some((host, _)) = self.departed.front() {
            if !self.has_session(host) {
                return true;
            }
            self.departed.pop_front();
        }
        false
    }

    /// True if a host has a session.
    fn has_session(&self, host: &str) -> bool {
        self.topology
            .host_by_name(host)
            .is_some_and(|host| self.registry.session_of(host.0).is_some())
    }

    /// Returns the progress of the kill switch over all hosts.
    pub fn release_report(&mut self, now_ns: u64) -> ReleaseReport {
        self.forget_departed(now_ns);
        let mut report = ReleaseReport {
            released: self.is_released(),
            lease_ms: self.settings.lease_ns / 1_000_000,
            ..ReleaseReport::default()
        };
        let Some(since_ns) = self.released_ns else {
            report.hosts = self.registry.len() as u64;
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
        for (host, _) in &self.departed {
            if !self.has_session(host) {
                report.hosts += 1;
                report.waiting.push(host.clone());
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

    /// Records that a host's session ended.
    pub(super) fn record_departure(&mut self, now_ns: u64, host: String) {
        self.forget_departed(now_ns);
        self.departed.push_back((host, now_ns));
        // Hosts that connect and leave in a loop must not grow the list without bound.
        let most = self.settings.limits.max_sessions as usize;
        while self.departed.len() > most {
            self.departed.pop_front();
        }
    }

    pub(super) fn forget_departed(&mut self, now_ns: u64) {
        let lease_ns = self.settings.lease_ns;
        while let Some((_, left_ns)) = self.departed.front()
            && now_ns.saturating_sub(*left_ns) >= lease_ns
        {
            self.departed.pop_front();
        }
    }
}
