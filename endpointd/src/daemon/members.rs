//! Hosts that joined at run time, as the allocator tells of them.

use std::collections::BTreeMap;

use ratewright_proto::control::{HostInfo, Members};

/// Hosts beside those of the topology, by number.
#[derive(Debug, Default)]
pub(super) struct KnownMembers {
    /// Incarnation of the allocator that gave the numbers.
    epoch: u64,
    hosts: BTreeMap<u32, HostInfo>,
}

impl KnownMembers {
    /// Begins a session. Those of the same incarnation stay until it tells of all members, which
    /// follows; another one gives their numbers to others.
    pub(super) fn begin_session(&mut self, epoch: u64) {
        if self.epoch != epoch {
            self.hosts.clear();
        }
        self.epoch = epoch;
    }

    /// Takes a change. Returns true if anything differs.
    pub(super) fn apply(&mut self, change: Members) -> bool {
        let mut changed = false;
        if change.replaces {
            let before = self.hosts.len();
            self.hosts
                .retain(|id, _| change.joined.iter().any(|host| host.id == *id));
            changed |= self.hosts.len() != before;
        }
        for id in change.left {
            changed |= self.hosts.remove(&id).is_some();
        }
        for host in change.joined {
            changed |= self.hosts.get(&host.id) != Some(&host);
            self.hosts.insert(host.id, host);
        }
        changed
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &HostInfo> + Clone {
        self.hosts.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(id: u32, name: &str) -> HostInfo {
        HostInfo {
            id,
            name: name.to_owned(),
            prefixes: Vec::new(),
        }
    }

    fn names(known: &KnownMembers) -> Vec<&str> {
        known.iter().map(|host| host.name.as_str()).collect()
    }

    #[test]
    fn members_stay_over_a_session_of_one_incarnation_and_no_longer() {
        let mut known = KnownMembers::default();
        known.begin_session(7);
        let joined = |hosts: &[HostInfo]| Members {
            joined: hosts.to_vec(),
            ..Members::default()
        };
        assert!(known.apply(joined(&[host(3, "m3"), host(5, "m5")])));
        assert!(!known.apply(joined(&[host(3, "m3")])), "it was known");
        known.begin_session(7);
        assert_eq!(names(&known), ["m3", "m5"]);
        let all = Members {
            replaces: true,
            ..joined(&[host(5, "m5"), host(6, "m6")])
        };
        assert!(known.apply(all.clone()));
        assert_eq!(names(&known), ["m5", "m6"]);
        assert!(!known.apply(all));
        known.begin_session(8);
        assert_eq!(names(&known), [""; 0]);
    }

    /// A place that two hosts hold in turn within one message is its present holder's.
    #[test]
    fn departures_come_before_arrivals() {
        let mut known = KnownMembers::default();
        known.begin_session(1);
        known.apply(Members {
            joined: vec![host(3, "m3")],
            left: vec![3],
            ..Members::default()
        });
        assert_eq!(names(&known), ["m3"]);
    }
}
