//! Shared links: links on which flows that are paced meet traffic that nobody paces.
//!
//! A leased rate is a maximum over a living congestion control. On a shared link TCP decides
//! between the two kinds of traffic, and the allocator among its own flows. For that, a maximum has
//! to lie well above the fair share: see [`HEADROOM`].
//!
//! Two sources tell of traffic that nobody paces. Flows of hosts that observe or are released are
//! known one by one, with their paths ([`SharedLinks::add`]). Everything else is known by the hosts
//! at whose own links it begins or ends ([`SharedLinks::tell`]): senders without a session, senders
//! that no host of the topology is, and UDP. A host moves its own two links alone. What hosts tell
//! may leave capacities as they are ([`SharedLinks::set_told_relaxes`]): feeds treat such traffic
//! otherwise. The links are shared all the same.
//!
//! Work per flow is proportional to its path; work per change of a host to the hosts that name it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use indexmap::IndexMap;
use ratewright_proto::telemetry::{AccessUse, LinkUse};
use ratewright_topology::{HostId, LinkId, Topology};
use rustc_hash::FxBuildHasher;

/// Factor on the capacity of a shared link. Each maximum is then twice the fair share among all
/// flows. The windows of a loss-based congestion control swing between 1 and 1.4 times a lower
/// bound (cubic, β = 0.7), so a maximum below 1.4 times the share costs a part of the share itself.
pub const HEADROOM: f64 = 2.0;

/// Time for which a link stays shared after the two kinds last met there. Both come and go with
/// flowlets, and each change of a capacity costs the optimiser some iterations. A host that begins
/// to pace does not come and go: after it nothing is waited for.
pub const HOLD_NS: u64 = 1_000_000_000;

/// Part of its host's uplink that an unpaced flow has to demand to count: one in this many.
pub const MIN_DEMAND_SHARE: u64 = 100;

/// Kind of an active flow by the conduct of its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowKind {
    /// Its host paces it.
    Paced,
    /// Its host only observes it, or is released.
    Unpaced,
}

/// Reason for which a link is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Flows of a host with a session that does not pace.
    Unpaced(HostId),
    /// Traffic of a host of the topology that does not pace, as the other end sees it.
    Host(HostId),
    /// Traffic of an address that no host of the topology has, if one was named.
    Stranger(Option<IpAddr>),
    /// UDP of a host with a session.
    Udp,
}

impl Cause {
    /// Label in metrics and in the log.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Unpaced(_) => "unpaced_flows",
            Self::Host(_) => "unpaced_host",
            Self::Stranger(_) => "unknown_sender",
            Self::Udp => "udp",
        }
    }
}

/// Users of one link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct LinkUsers {
    /// Active flows that are paced.
    paced: u32,
    /// Active flows that are known and not paced.
    unpaced: u32,
    /// Users beside the flows that are known, as the link's host tells them.
    told: u32,
    /// Host of the newest unpaced flow.
    newest_unpaced: u32,
}

impl LinkUsers {
    fn meet(self) -> bool {
        self.paced > 0 && (self.unpaced > 0 || self.told > 0)
    }

    /// The two kinds meet by the flows that are known, whatever hosts tell.
    fn flows_meet(self) -> bool {
        self.paced > 0 && self.unpaced > 0
    }
}

/// State of a link that is shared.
#[derive(Debug, Clone, Copy)]
struct Shared {
    cause: Cause,
    /// Time at which it ends to be shared; `None` while the two kinds meet.
    ends_ns: Option<u64>,
}

/// Links on which the two kinds meet, or have met within [`HOLD_NS`].
#[derive(Debug, Default)]
struct Meetings {
    links: IndexMap<u32, Shared, FxBuildHasher>,
    /// Times at which links may end to be among them, earliest first.
    due: BTreeSet<(u64, u32)>,
}

impl Meetings {
    /// Notes that the two kinds begin to meet on a link, or have parted, so that it ends to be
    /// shared at `ends_ns`. Returns true if it begins to be shared.
    fn turn(&mut self, link: u32, cause: Cause, ends_ns: Option<u64>) -> bool {
        if let Some(shared) = self.links.get_mut(&link) {
            if let Some(before_ns) = std::mem::replace(&mut shared.ends_ns, ends_ns) {
                self.due.remove(&(before_ns, link));
            }
            self.due.extend(ends_ns.map(|at_ns| (at_ns, link)));
            return false;
        }
        let begins = ends_ns.is_none();
        if begins {
            self.links.insert(link, Shared { cause, ends_ns });
        }
        begins
    }

    fn next_due_ns(&self) -> Option<u64> {
        self.due.first().map(|&(at_ns, _)| at_ns)
    }

    /// Takes out a link on which the two kinds have parted for long enough.
    fn take_due(&mut self, now_ns: u64) -> Option<LinkId> {
        self.next_due_ns().filter(|&at_ns| at_ns <= now_ns)?;
        let (_, link) = self.due.pop_first()?;
        self.links.swap_remove(&link);
        Some(LinkId(link))
    }
}

/// Changes of shared links since they were taken last.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SharedChanges {
    /// Links that began or ended to be shared.
    pub shared: Vec<LinkId>,
    /// Links whose headroom began or ended.
    pub relaxed: Vec<LinkId>,
}

/// Shared links of a topology, and the counts from which they follow.
#[derive(Debug, Default)]
pub struct SharedLinks {
    users: Vec<LinkUsers>,
    shared: Meetings,
    /// Links that are shared by the flows that are known, whatever hosts tell.
    shared_by_flows: Meetings,
    /// Hosts' words give shared links headroom.
    told_relaxes: bool,
    changes: SharedChanges,
    /// Hosts that pace, by host index.
    paces: Vec<bool>,
    /// Newest word about the users of a link, by link: that of the host at its end.
    told: IndexMap<u32, Told, FxBuildHasher>,
    /// Senders and the links whose hosts name them.
    named: BTreeSet<(u32, u32)>,
}

/// Word of a host about one of its own links.
#[derive(Debug)]
struct Told {
    host: HostId,
    is_uplink: bool,
    users: LinkUse,
}

impl SharedLinks {
    /// Makes the counts for a topology.
    #[must_use]
    pub fn new(topology: &Topology) -> Self {
        Self {
            users: vec![LinkUsers::default(); topology.links().len()],
            paces: vec![false; topology.hosts().len()],
            told_relaxes: true,
            ..Self::default()
        }
    }

    /// Sets whether what hosts tell gives shared links headroom, as flows that are known do.
    pub fn set_told_relaxes(&mut self, told_relaxes: bool) {
        if std::mem::replace(&mut self.told_relaxes, told_relaxes) != told_relaxes {
            let links = self.shared.links.keys();
            self.changes.relaxed.extend(links.map(|&link| LinkId(link)));
        }
    }

    /// Forgets all flows, because they are counted anew or the links have other numbers. What hosts
    /// told stays.
    pub fn restart(&mut self, now_ns: u64, topology: &Topology) {
        let before = std::mem::replace(self, Self::new(topology));
        self.told_relaxes = before.told_relaxes;
        for (index, paces) in before.paces.into_iter().enumerate() {
            if let Some(known) = self.paces.get_mut(index) {
                *known = paces;
            }
        }
        for told in before.told.into_values() {
            if told.host.index() < self.paces.len() {
                self.tell_link(now_ns, told, topology);
            }
        }
    }

    /// Counts an active flow of `host` on its links.
    pub fn add(&mut self, now_ns: u64, links: &[u32], kind: FlowKind, host: HostId) {
        for &link in links {
            self.change(now_ns, link, |users| match kind {
                FlowKind::Paced => users.paced += 1,
                FlowKind::Unpaced => {
                    users.unpaced += 1;
                    users.newest_unpaced = host.0;
                }
            });
        }
    }

    /// Takes a flow that was counted back.
    pub fn remove(&mut self, now_ns: u64, links: &[u32], kind: FlowKind) {
        for &link in links {
            self.change(now_ns, link, |users| match kind {
                FlowKind::Paced => users.paced -= 1,
                FlowKind::Unpaced => users.unpaced -= 1,
            });
        }
    }

    /// Takes a host's word about its own links, in place of the former one.
    pub fn tell(&mut self, now_ns: u64, host: HostId, access_use: AccessUse, topology: &Topology) {
        if host.index() >= self.paces.len() {
            return;
        }
        let AccessUse {
            uplink, downlink, ..
        } = access_use;
        for (is_uplink, users) in [(true, uplink), (false, downlink)] {
            let told = Told {
                host,
                is_uplink,
                users,
            };
            self.tell_link(now_ns, told, topology);
        }
    }

    /// Forgets a host's word about its own links.
    pub fn forget(&mut self, now_ns: u64, host: HostId, topology: &Topology) {
        self.tell(now_ns, host, AccessUse::default(), topology);
    }

    fn tell_link(&mut self, now_ns: u64, mut told: Told, topology: &Topology) {
        let Told {
            host, is_uplink, ..
        } = told;
        let link = if is_uplink {
            // The flows of a host that paces are paced, whomever they go to.
            told.users.hosts.clear();
            topology.host_uplink(host).0
        } else {
            let hosts = &mut told.users.hosts;
            hosts.retain(|&sender| sender != host.0 && (sender as usize) < self.paces.len());
            hosts.sort_unstable();
            hosts.dedup();
            topology.host_downlink(host).0
        };
        let before = self.told.swap_remove(&link).map(|told| told.users);
        let before = before.unwrap_or_default();
        for &sender in &before.hosts {
            self.named.remove(&(sender, link));
        }
        let named = told.users.hosts.iter();
        self.named.extend(named.map(|&sender| (sender, link)));
        let (was, is) = (self.unpaced_users(&before), self.unpaced_users(&told.users));
        if told.users != LinkUse::default() {
            self.told.insert(link, told);
        }
        self.change(now_ns, link, |users| users.told = users.told - was + is);
    }

    /// Notes if a host paces its flows. A host without a session does not.
    pub fn set_paces(&mut self, now_ns: u64, host: HostId, paces: bool) {
        let Some(known) = self.paces.get_mut(host.index()) else {
            return;
        };
        if std::mem::replace(known, paces) == paces {
            return;
        }
        let links: Vec<u32> = (self.named.range((host.0, 0)..=(host.0, u32::MAX)))
            .map(|&(_, link)| link)
            .collect();
        for link in links {
            if paces {
                self.change_with_hold(now_ns, link, 0, |users| users.told -= 1);
            } else {
                self.change(now_ns, link, |users| users.told += 1);
            }
        }
    }

    /// Returns the users of a link that nobody paces.
    fn unpaced_users(&self, link: &LinkUse) -> u32 {
        let hosts = link.hosts.iter().filter(|&&host| !self.host_paces(host));
        u32::try_from(hosts.count()).unwrap_or(u32::MAX)
            + u32::from(link.strangers > 0)
            + u32::from(link.udp)
    }

    fn host_paces(&self, host: u32) -> bool {
        self.paces.get(host as usize).copied().unwrap_or(false)
    }

    fn change(&mut self, now_ns: u64, link: u32, change: impl FnOnce(&mut LinkUsers)) {
        self.change_with_hold(now_ns, link, HOLD_NS, change);
    }

    fn change_with_hold(
        &mut self,
        now_ns: u64,
        link: u32,
        hold_ns: u64,
        change: impl FnOnce(&mut LinkUsers),
    ) {
        let Some(users) = self.users.get_mut(link as usize) else {
            return;
        };
        let before = *users;
        change(users);
        let after = *users;
        let ends_ns = |meet: bool| (!meet).then_some(now_ns + hold_ns);
        if before.meet() != after.meet() {
            self.turn(link, ends_ns(after.meet()));
        }
        if before.flows_meet() != after.flows_meet() {
            self.turn_flows(link, ends_ns(after.flows_meet()));
        }
    }

    /// Notes that the two kinds begin to meet on a link, or have parted, so that it ends to be
    /// shared at `ends_ns`.
    #[cold]
    fn turn(&mut self, link: u32, ends_ns: Option<u64>) {
        let cause = self.present_cause(link).unwrap_or(Cause::Stranger(None));
        if self.shared.turn(link, cause, ends_ns) {
            self.note_shared(LinkId(link));
        }
    }

    /// As [`turn`](Self::turn), of flows that are known.
    #[cold]
    fn turn_flows(&mut self, link: u32, ends_ns: Option<u64>) {
        let cause = self.present_cause(link).unwrap_or(Cause::Stranger(None));
        if self.shared_by_flows.turn(link, cause, ends_ns) {
            self.note_shared_by_flows(LinkId(link));
        }
    }

    fn note_shared(&mut self, link: LinkId) {
        self.changes.shared.push(link);
        if self.told_relaxes {
            self.changes.relaxed.push(link);
        }
    }

    fn note_shared_by_flows(&mut self, link: LinkId) {
        if !self.told_relaxes {
            self.changes.relaxed.push(link);
        }
    }

    /// Returns the time of the next [`end_due`](Self::end_due).
    #[must_use]
    pub fn next_due_ns(&self) -> Option<u64> {
        let due = [
            self.shared.next_due_ns(),
            self.shared_by_flows.next_due_ns(),
        ];
        due.into_iter().flatten().min()
    }

    /// Ends the links on which the two kinds have parted for long enough.
    pub fn end_due(&mut self, now_ns: u64) {
        while let Some(link) = self.shared.take_due(now_ns) {
            self.note_shared(link);
        }
        while let Some(link) = self.shared_by_flows.take_due(now_ns) {
            self.note_shared_by_flows(link);
        }
    }

    /// Returns true if links have changed since the last [`take_changes`](Self::take_changes).
    #[must_use]
    pub fn has_changed(&self) -> bool {
        !(self.changes.shared.is_empty() && self.changes.relaxed.is_empty())
    }

    /// Returns what has changed since the last call.
    pub fn take_changes(&mut self) -> SharedChanges {
        std::mem::take(&mut self.changes)
    }

    /// Returns the factor on a link's capacity that is in force. External traffic that is known is
    /// left its share by the allocation itself: the capacity is then the exact one.
    #[must_use]
    pub fn headroom(&self, link: LinkId, has_external: bool) -> f64 {
        let relaxing = if self.told_relaxes {
            &self.shared
        } else {
            &self.shared_by_flows
        };
        if relaxing.links.contains_key(&link.0) && !has_external {
            HEADROOM
        } else {
            1.0
        }
    }

    /// Returns true if a link is shared.
    #[must_use]
    pub fn is_shared(&self, link: LinkId) -> bool {
        self.shared.links.contains_key(&link.0)
    }

    /// Returns the number of shared links.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shared.links.len()
    }

    /// Returns the reason for which a link is shared; `None` if it is not. Of several the first:
    /// flows that are known, hosts, strangers, UDP.
    #[must_use]
    pub fn cause(&self, link: LinkId) -> Option<Cause> {
        let shared = self.shared.links.get(&link.0)?;
        // While it only stays shared for a little longer, the reason is that of its beginning.
        Some(self.present_cause(link.0).unwrap_or(shared.cause))
    }

    fn present_cause(&self, link: u32) -> Option<Cause> {
        let users = self.users.get(link as usize)?;
        if users.unpaced > 0 {
            return Some(Cause::Unpaced(HostId(users.newest_unpaced)));
        }
        let told = &self.told.get(&link)?.users;
        let host = told.hosts.iter().find(|&&host| !self.host_paces(host));
        match host {
            Some(&host) => Some(Cause::Host(HostId(host))),
            None if told.strangers > 0 => Some(Cause::Stranger(told.stranger)),
            None => told.udp.then_some(Cause::Udp),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use ratewright_topology::TwoTierClos;

    use super::*;

    /// 4 racks of 4 hosts.
    fn clos() -> Topology {
        TwoTierClos::default()
            .build()
            .expect("the default topology is good")
    }

    fn seen(hosts: &[u32], strangers: u32, udp: bool) -> LinkUse {
        LinkUse {
            hosts: hosts.to_vec(),
            strangers,
            udp,
            ..LinkUse::default()
        }
    }

    #[test]
    fn a_link_is_shared_while_both_kinds_are_on_it_and_a_second_longer() {
        let topology = clos();
        let mut links = SharedLinks::new(&topology);
        let link = topology.host_downlink(HostId(3));
        links.add(0, &[link.0], FlowKind::Unpaced, HostId(1));
        links.add(0, &[link.0], FlowKind::Unpaced, HostId(2));
        assert!(!links.is_shared(link), "nobody is held to a maximum");
        links.add(1, &[link.0], FlowKind::Paced, HostId(0));
        assert_eq!(links.cause(link), Some(Cause::Unpaced(HostId(2))));
        links.remove(2, &[link.0], FlowKind::Paced);
        links.add(3, &[link.0], FlowKind::Paced, HostId(0));
        links.remove(9, &[link.0], FlowKind::Paced);
        assert_eq!(
            links.take_changes().shared,
            [link],
            "once, however often they meet"
        );
        for (now_ns, is_shared) in [(HOLD_NS + 8, true), (HOLD_NS + 9, false)] {
            links.end_due(now_ns);
            assert_eq!(links.is_shared(link), is_shared, "{now_ns} ns");
        }
        assert_eq!(links.take_changes().shared, [link]);
        assert_eq!((links.next_due_ns(), links.count()), (None, 0));
    }

    /// Feeds treat what hosts tell of otherwise; flows that do not pace they do not see as such.
    #[test]
    fn where_what_hosts_tell_relaxes_nothing_flows_that_are_known_do_it_alone() {
        let topology = clos();
        let mut links = SharedLinks::new(&topology);
        links.set_told_relaxes(false);
        let link = topology.host_downlink(HostId(3));
        let headroom = |links: &SharedLinks| links.headroom(link, false);
        links.add(0, &[link.0], FlowKind::Paced, HostId(0));
        let users = AccessUse {
            downlink: seen(&[], 1, false),
            ..AccessUse::default()
        };
        links.tell(1, HostId(3), users, &topology);
        let changes = links.take_changes();
        assert_eq!((changes.shared, changes.relaxed), (vec![link], vec![]));
        assert_eq!((links.count(), headroom(&links)), (1, 1.0));

        links.add(2, &[link.0], FlowKind::Unpaced, HostId(1));
        let changes = links.take_changes();
        assert_eq!((changes.shared, changes.relaxed), (vec![], vec![link]));
        assert_eq!(headroom(&links), HEADROOM);
        links.remove(3, &[link.0], FlowKind::Unpaced);
        assert_eq!(headroom(&links), HEADROOM, "for a second more");
        assert_eq!(links.next_due_ns(), Some(HOLD_NS + 3));
        links.end_due(HOLD_NS + 3);
        assert_eq!(links.take_changes().relaxed, [link]);
        assert_eq!((links.count(), headroom(&links)), (1, 1.0));

        links.set_told_relaxes(true);
        assert_eq!(links.take_changes().relaxed, [link]);
        assert_eq!(headroom(&links), HEADROOM);
        links.set_told_relaxes(false);
        links.restart(HOLD_NS + 4, &topology);
        links.add(HOLD_NS + 5, &[link.0], FlowKind::Paced, HostId(0));
        assert_eq!((links.count(), headroom(&links)), (1, 1.0));
    }

    /// After a restart of the allocator the hosts come one by one: until the last one is back, it
    /// is one that nobody paces.
    #[test]
    fn a_link_is_not_shared_any_more_as_soon_as_the_last_host_on_it_paces() {
        let topology = clos();
        let mut links = SharedLinks::new(&topology);
        let (receiver, link) = (HostId(3), topology.host_downlink(HostId(3)));
        links.set_paces(0, HostId(0), true);
        links.add(0, &[link.0], FlowKind::Paced, HostId(0));
        let users = AccessUse {
            downlink: seen(&[0, 1, 2], 0, false),
            ..AccessUse::default()
        };
        links.tell(1, receiver, users, &topology);
        assert_eq!(links.cause(link), Some(Cause::Host(HostId(1))));
        links.set_paces(2, HostId(1), true);
        links.end_due(2);
        assert!(links.is_shared(link), "the third host does not");
        links.set_paces(3, HostId(2), true);
        assert_eq!(links.next_due_ns(), Some(3));
        links.end_due(3);
        assert!(!links.is_shared(link));
        assert_eq!(links.take_changes().shared, [link, link]);
    }

    #[test]
    fn a_host_moves_its_own_two_links_alone_whatever_it_tells() {
        let topology = clos();
        let mut links = SharedLinks::new(&topology);
        let liar = HostId(5);
        let everybody: Vec<u32> = (0..u32::MAX).step_by(1 << 24).chain(0..16).collect();
        let all: Vec<u32> = topology.links().iter().map(|link| link.id.0).collect();
        links.add(0, &all, FlowKind::Paced, HostId(0));
        let access_use = AccessUse {
            observes: true,
            uplink: seen(&everybody, 9, true),
            downlink: seen(&everybody, 9, true),
            ..AccessUse::default()
        };
        links.tell(0, liar, access_use, &topology);
        let own = [topology.host_uplink(liar), topology.host_downlink(liar)];
        for link in topology.links() {
            assert_eq!(links.is_shared(link.id), own.contains(&link.id));
        }
        links.forget(1, liar, &topology);
        links.end_due(HOLD_NS + 1);
        assert_eq!(links.count(), 0);
    }

    /// Change of the counts, as the tests make it.
    #[derive(Debug, Clone)]
    enum Step {
        Add(u32, bool, u32, u32),
        Remove(u32),
        Tell(u32, Vec<u32>, u32, bool, bool),
        Forget(u32),
        Paces(u32, bool),
        Restart,
        Pass(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let host = 0..16_u32;
        let hosts = prop::collection::vec(0..20_u32, 0..4);
        prop::collection::vec(
            prop_oneof![
                4 => (0..20_u32, any::<bool>(), host.clone(), host.clone())
                    .prop_map(|(flow, paced, from, to)| Step::Add(flow, paced, from, to)),
                4 => (0..20_u32).prop_map(Step::Remove),
                3 => (host.clone(), hosts, 0..2_u32, any::<bool>(), any::<bool>())
                    .prop_map(|(a, b, c, d, e)| Step::Tell(a, b, c, d, e)),
                1 => host.clone().prop_map(Step::Forget),
                2 => (host, any::<bool>()).prop_map(|(host, paces)| Step::Paces(host, paces)),
                1 => Just(Step::Restart),
                2 => (0..2 * HOLD_NS).prop_map(Step::Pass),
            ],
            0..60,
        )
    }

    /// The links on which both kinds are, counted anew from everything that holds.
    fn meeting(
        topology: &Topology,
        flows: &BTreeMap<u32, (Vec<u32>, FlowKind)>,
        told: &BTreeMap<u32, AccessUse>,
        paces: &[bool; 16],
    ) -> BTreeSet<u32> {
        let of_kind = |kind: FlowKind| -> BTreeSet<u32> {
            (flows.values())
                .filter(|(_, of)| *of == kind)
                .flat_map(|(path, _)| path.iter().copied())
                .collect()
        };
        let mut others = of_kind(FlowKind::Unpaced);
        for (&host, told) in told {
            let senders = told.downlink.hosts.iter();
            let unpaced = senders.filter(|&&sender| {
                sender != host && paces.get(sender as usize).is_some_and(|paces| !paces)
            });
            if unpaced.count() > 0 || told.downlink.strangers > 0 || told.downlink.udp {
                others.insert(topology.host_downlink(HostId(host)).0);
            }
            if told.uplink.strangers > 0 || told.uplink.udp {
                others.insert(topology.host_uplink(HostId(host)).0);
            }
        }
        &of_kind(FlowKind::Paced) & &others
    }

    proptest! {
        #[test]
        fn shared_are_the_links_on_which_both_kinds_are_and_counts_return_to_zero(
            steps in steps(),
        ) {
            let topology = clos();
            let mut links = SharedLinks::new(&topology);
            let (mut flows, mut told) = (BTreeMap::new(), BTreeMap::new());
            let mut paces = [false; 16];
            let mut now_ns = 0;
            for step in steps {
                match step {
                    Step::Add(flow, paced, from, to) if !flows.contains_key(&flow) && from != to => {
                        let kind = if paced { FlowKind::Paced } else { FlowKind::Unpaced };
                        let path = vec![
                            topology.host_uplink(HostId(from)).0,
                            topology.host_downlink(HostId(to)).0,
                        ];
                        links.add(now_ns, &path, kind, HostId(from));
                        flows.insert(flow, (path, kind));
                    }
                    Step::Add(..) => {}
                    Step::Remove(flow) => {
                        if let Some((path, kind)) = flows.remove(&flow) {
                            links.remove(now_ns, &path, kind);
                        }
                    }
                    Step::Tell(host, hosts, strangers, udp, both) => {
                        let downlink = seen(&hosts, strangers, udp);
                        let uplink = if both { downlink.clone() } else { LinkUse::default() };
                        let access_use = AccessUse { uplink, downlink, ..AccessUse::default() };
                        links.tell(now_ns, HostId(host), access_use.clone(), &topology);
                        told.insert(host, access_use);
                    }
                    Step::Forget(host) => {
                        links.forget(now_ns, HostId(host), &topology);
                        told.remove(&host);
                    }
                    Step::Paces(host, does) => {
                        links.set_paces(now_ns, HostId(host), does);
                        paces[host as usize] = does;
                    }
                    Step::Restart => {
                        links.restart(now_ns, &topology);
                        flows.clear();
                    }
                    Step::Pass(ns) => {
                        now_ns += ns;
                        links.end_due(now_ns);
                    }
                }
                let by_flows = meeting(&topology, &flows, &BTreeMap::new(), &paces);
                let meeting = meeting(&topology, &flows, &told, &paces);
                for &link in &meeting {
                    prop_assert!(links.is_shared(LinkId(link)));
                    prop_assert!(links.cause(LinkId(link)).is_some());
                }
                // All that have parted did so by now.
                links.end_due(now_ns + HOLD_NS);
                let shared: BTreeSet<u32> = links.shared.links.keys().copied().collect();
                prop_assert_eq!(shared, meeting);
                let shared = links.shared_by_flows.links.keys().copied();
                prop_assert_eq!(shared.collect::<BTreeSet<u32>>(), by_flows);
            }
            for (path, kind) in flows.values() {
                links.remove(now_ns, path, *kind);
            }
            for host in 0..16 {
                links.forget(now_ns, HostId(host), &topology);
            }
            let newest = |users: &LinkUsers| LinkUsers { newest_unpaced: 0, ..*users };
            prop_assert!(links.users.iter().all(|users| newest(users) == LinkUsers::default()));
            prop_assert!(links.named.is_empty() && links.told.is_empty());
        }
    }
}
