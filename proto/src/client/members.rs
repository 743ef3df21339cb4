//! View of the hosts that joined at run time, as a client keeps it.

use std::collections::BTreeMap;

use ipnet::IpNet;

use crate::control::{Member, Members};

/// Prefixes that changed hands, to be applied in this order: first those that are gone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemberChange {
    /// Ids, each with a prefix that it no longer has.
    pub removed: Vec<(u32, IpNet)>,
    /// Ids, each with a prefix that it has from now on.
    pub added: Vec<(u32, IpNet)>,
}

/// Result of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Applied {
    /// The view differs by this.
    Changed(MemberChange),
    /// Nothing differs, or the rest of the message is to come.
    Unchanged,
    /// A message before it is missing: ask for all members.
    Gap,
}

/// Members by id. An update costs time in proportion to its hosts.
#[derive(Debug, Clone, Default)]
pub struct MemberView {
    epoch: u64,
    /// Version of the view; none before the first whole message of a session.
    version: Option<u32>,
    hosts: BTreeMap<u32, Vec<IpNet>>,
    /// Hosts of a message whose rest is to come, and whether it is whole.
    begun: Option<Members>,
    /// All members were asked for and have not come.
    asked: bool,
}

impl MemberView {
    /// Begins a session. Members of another incarnation of the server are forgotten, since it gives
    /// their ids to others.
    pub(super) fn begin_session(&mut self, epoch: u64) {
        if self.epoch != epoch {
            self.hosts.clear();
        }
        self.epoch = epoch;
        self.version = None;
        self.begun = None;
        self.asked = false;
    }

    pub(super) fn apply(&mut self, message: Members) -> Applied {
        let message = match self.begun.take() {
            Some(mut begun) if (begun.whole, begun.to) == (message.whole, message.to) => {
                begun.hosts.extend(message.hosts);
                begun.more = message.more;
                begun
            }
            _ => message,
        };
        if !message.whole && self.version != Some(message.from) {
            // One question is enough, however many messages follow before its answer.
            return if std::mem::replace(&mut self.asked, true) {
                Applied::Unchanged
            } else {
                Applied::Gap
            };
        }
        if message.more {
            self.begun = Some(message);
            return Applied::Unchanged;
        }
        self.version = Some(message.to);
        let mut change = MemberChange::default();
        if message.whole {
            self.asked = false;
            let kept: BTreeMap<u32, ()> = message.hosts.iter().map(|host| (host.id, ())).collect();
            let left: Vec<u32> = self
                .hosts
                .keys()
                .filter(|id| !kept.contains_key(id))
                .copied()
                .collect();
            for id in left {
                self.set(id, Vec::new(), &mut change);
            }
        }
        for Member {
            id, prefixes, gone, ..
        } in message.hosts
        {
            self.set(id, if gone { Vec::new() } else { prefixes }, &mut change);
        }
        if change == MemberChange::default() {
            return Applied::Unchanged;
        }
        Applied::Changed(change)
    }

    fn set(&mut self, id: u32, prefixes: Vec<IpNet>, change: &mut MemberChange) {
        let before = self.hosts.remove(&id).unwrap_or_default();
        let lost = before.iter().filter(|prefix| !prefixes.contains(prefix));
        change.removed.extend(lost.map(|prefix| (id, *prefix)));
        let new = prefixes.iter().filter(|prefix| !before.contains(prefix));
        change.added.extend(new.map(|prefix| (id, *prefix)));
        if !prefixes.is_empty() {
            self.hosts.insert(id, prefixes);
        }
    }

    /// Members with their prefixes, by id.
    pub fn prefixes(&self) -> impl Iterator<Item = (u32, &IpNet)> {
        self.hosts
            .iter()
            .flat_map(|(&id, prefixes)| prefixes.iter().map(move |prefix| (id, prefix)))
    }

    /// Number of members with prefixes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// Returns true if there is no member.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }
}

#[cfg(test)]
mod tests;
