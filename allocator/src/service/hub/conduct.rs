//! Conduct that operators ask of hosts, and hosts that may still act on rates of before.

use std::collections::{BTreeSet, VecDeque};

use ratewright_topology::Topology;

use super::session::{Hosts, Release, Session, Sessions};
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

    /// Returns the order for a host of a topology, and the reason in words. The most careful rule
    /// holds.
    pub(super) fn order_of(
        &self,
        host: &str,
        topology: &Topology,
        rollout: &Rollout,
    ) -> (PacingOrder, &'static str) {
        if self.released_ns.is_some() {
            return (PacingOrder::Release, "the kill switch is on");
        }
        if self.has_released(host) {
            return (PacingOrder::Release, "an operator has released it");
        }
        let known = topology.host_by_name(host);
        let known = known.and_then(|id| topology.hosts().get(id.index()));
        let rack = known.and_then(|host| topology.racks().get(host.rack.index()));
        rollout.order(host, rack.map_or("", |rack| rack.name.as_str()))
    }

    /// Notes a session that received the kill switch at `since_ns`, the latest so far.
    pub(super) fn await_answer(&mut self, since_ns: u64, session: u32) {
        self.unanswered.push_back((since_ns, session));
    }

    /// Notes the sessions that were released before the kill switch, and have not acknowledged it.
    pub(super) fn await_earlier_answers(&mut self, now_ns: u64, sessions: &Sessions) {
        for session in sessions.values() {
            if let Release::Waiting { since_ns } = session.release
                && since_ns < now_ns
            {
                self.unanswered.push_front((since_ns, session.id));
            }
        }
    }

    /// True while a session or a departed host may act on a rate although the kill switch is on.
    /// Each is looked at until it is free and then removed, so repeated calls cost little.
    pub(super) fn waits(
        &mut self,
        now_ns: u64,
        lease_ns: u64,
        topology: &Topology,
        hosts: Hosts<'_>,
    ) -> bool {
        if self.released_ns.is_none() {
            return false;
        }
        self.forget_departed(now_ns, lease_ns);
        while let Some(&(since_ns, id)) = self.unanswered.front() {
            // The queue is ordered by time, so the first entry that waits is the oldest, and those
            // behind it need no check.
            let waits = hosts.sessions.get(id).is_some_and(|session| {
                session.peer.is_some() && matches!(session.release, Release::Waiting { .. })
            });
            if waits && now_ns.saturating_sub(since_ns) < lease_ns {
                return true;
            }
            self.unanswered.pop_front();
        }
        // A host that is back counts with its session. If it leaves again, it is recorded again.
        while let Some((host, _)) = self.departed.front() {
            let host = topology.host_by_name(host);
            if host.and_then(|host| hosts.session(host)).is_none() {
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
    fn forget_departed(&mut self, now_ns: u64, lease_ns: u64) {
        while let Some((_, left_ns)) = self.departed.front()
            && now_ns.saturating_sub(*left_ns) >= lease_ns
        {
            self.departed.pop_front();
        }
    }

    /// Returns the hosts whose rates of ended sessions may still be in force.
    pub(super) fn departed(&self, now_ns: u64, lease_ns: u64) -> impl Iterator<Item = &str> {
        let holds = move |left_ns: u64| now_ns.saturating_sub(left_ns) < lease_ns;
        let departed = self
            .departed
            .iter()
            .filter(move |(_, left_ns)| holds(*left_ns));
        departed.map(|(host, _)| host.as_str())
    }

    /// Gives a session's host this order, and notes whether it has to acknowledge it. True if the
    /// order differs.
    pub(super) fn apply(&mut self, now_ns: u64, order: PacingOrder, session: &mut Session) -> bool {
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
        if self.released_ns.is_some()
            && let Release::Waiting { since_ns } = session.release
        {
            self.await_answer(since_ns, session.id);
        }
        true
    }
}
