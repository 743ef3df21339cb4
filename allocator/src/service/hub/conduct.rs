//! Conduct that operators ask of hosts, and hosts that may still act on rates of before.

use std::collections::{BTreeSet, VecDeque};

use crate::service::config::{PacingOrder, Rollout};

/// Kill switch, hosts that an operator has released, and who has to follow yet.
#[derive(Debug, Default)]
pub(super) struct Conduct {
    /// Time of the kill switch, while it is on.
    released_ns: Option<u64>,
    /// Hosts that an operator has released.
    released_hosts: BTreeSet<String>,
    /// Sessions that received the kill switch, with the time, oldest first. Every session that has
    /// not acknowledged is among them.
    pub(super) unanswered: VecDeque<(u64, u32)>,
    /// Hosts whose sessions ended less than one lease ago: their rates may still be in force.
    pub(super) departed: VecDeque<(String, u64)>,
}

impl Conduct {
    /// Makes the conduct at the begin of a process, with the kill switch on if `released`.
    pub(super) fn new(released: bool) -> Self {
        Self {
            released_ns: released.then_some(0),
            ..Self::default()
        }
    }

    /// Returns the time of the kill switch, while it is on.
    pub(super) fn released_ns(&self) -> Option<u64> {
        self.released_ns
    }

    /// Turns the kill switch.
    pub(super) fn turn(&mut self, now_ns: u64, released: bool) {
        self.released_ns = released.then_some(now_ns);
        // Entries of an earlier turn of the switch would count its time for this one.
        self.unanswered.clear();
    }

    /// Releases a host, or lets it follow the rollout again.
    pub(super) fn set_host_released(&mut self, host: &str, released: bool) {
        if released {
            self.released_hosts.insert(host.to_owned());
        } else {
            self.released_hosts.remove(host);
        }
    }

    /// True if an operator has released the host.
    pub(super) fn has_released(&self, host: &str) -> bool {
        self.released_hosts.contains(host)
    }

    /// Returns the hosts that an operator has released.
    pub(super) fn released_hosts(&self) -> impl Iterator<Item = &str> {
        self.released_hosts.iter().map(String::as_str)
    }

    /// Returns the order for a host, and the reason in words. The most careful rule holds.
    pub(super) fn order(
        &self,
        host: &str,
        rack: &str,
        rollout: &Rollout,
    ) -> (PacingOrder, &'static str) {
        if self.released_ns.is_some() {
            return (PacingOrder::Release, "the kill switch is on");
        }
        if self.has_released(host) {
            return (PacingOrder::Release, "an operator has released it");
        }
        rollout.order(host, rack)
    }

    /// Notes a session that received the kill switch at `since_ns`, the latest so far.
    pub(super) fn await_answer(&mut self, since_ns: u64, session: u32) {
        self.unanswered.push_back((since_ns, session));
    }

    /// Notes a session that was released before the kill switch, and has not acknowledged it.
    pub(super) fn await_earlier_answer(&mut self, since_ns: u64, session: u32) {
        self.unanswered.push_front((since_ns, session));
    }

    /// True while a session or a departed host may act on a rate although the kill switch is on.
    /// `session_waits` says whether a session has not acknowledged it, `has_session` whether a host
    /// has one. Each is asked about until it is free and then removed, so repeated calls cost
    /// little.
    pub(super) fn waits(
        &mut self,
        now_ns: u64,
        lease_ns: u64,
        session_waits: impl Fn(u32) -> bool,
        has_session: impl Fn(&str) -> bool,
    ) -> bool {
        if self.released_ns.is_none() {
            return false;
        }
        self.forget_departed(now_ns, lease_ns);
        while let Some(&(since_ns, id)) = self.unanswered.front() {
            // The queue is ordered by time, so the first entry that waits is the oldest, and those
            // behind it need no check.
            if session_waits(id) && now_ns.saturating_sub(since_ns) < lease_ns {
                return true;
            }
            self.unanswered.pop_front();
        }
        // A host that is back counts with its session. If it leaves again, it is recorded again.
        while let Some((host, _)) = self.departed.front() {
            if !has_session(host) {
                return true;
            }
            self.departed.pop_front();
        }
        false
    }

    /// Records that a host's session ended, beside at most `most` hosts in all.
    pub(super) fn depart(&mut self, now_ns: u64, lease_ns: u64, host: String, most: usize) {
        self.forget_departed(now_ns, lease_ns);
        self.departed.push_back((host, now_ns));
        // Hosts that connect and leave in a loop must not grow the list without bound.
        while self.departed.len() > most {
            self.departed.pop_front();
        }
    }

    /// Forgets hosts whose rates have run out.
    pub(super) fn forget_departed(&mut self, now_ns: u64, lease_ns: u64) {
        while let Some((_, left_ns)) = self.departed.front()
            && now_ns.saturating_sub(*left_ns) >= lease_ns
        {
            self.departed.pop_front();
        }
    }

    /// Returns the hosts whose rates of ended sessions may still be in force.
    pub(super) fn departed(&self) -> impl Iterator<Item = &str> {
        self.departed.iter().map(|(host, _)| host.as_str())
    }
}
