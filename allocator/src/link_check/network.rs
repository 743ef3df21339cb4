//! Congestion between switches: a link that carries less, or flows that take another path.
//!
//! Nobody tells what a link between switches carries. Hosts tell all the same that it is none of
//! theirs: several of them, at both ends, meet congestion at once, and all of their own links have
//! carried before what they are handed out now.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use ratewright_topology::{HostId, LinkId};

use super::{Checked, GAP, LinkCheck, LinkFacts, LinkState, MAX_PAIRS, PROVEN_NS, SECOND_NS, TIE};

/// Senders, and receivers, that have to meet congestion at once: two links of hosts do not break at
/// one time.
pub const MIN_ENDS: usize = 2;
/// Time for which a pair that met it counts beside others: flows that share one queue meet
/// congestion by turns.
pub const REMEMBER_NS: u64 = 4 * SECOND_NS;
/// Links between switches of one path, at most.
pub const MAX_HOPS: usize = 4;

/// Two hosts between which flows meet congestion.
#[derive(Debug, Clone)]
pub(super) struct CongestedPair {
    pub(super) from: HostId,
    pub(super) to: HostId,
    pub(super) uplink: LinkId,
    pub(super) downlink: LinkId,
    /// Links between switches that their flows cross, each once, in the order of their numbers.
    pub(super) inner: Vec<LinkId>,
    /// The sender has backlogged connections that meet none.
    pub(super) has_uncongested: bool,
}

impl CongestedPair {
    /// Makes the pair of two hosts; `None` if the facts know not both.
    pub(super) fn of(
        from: HostId,
        to: HostId,
        has_uncongested: bool,
        facts: &dyn LinkFacts,
    ) -> Option<Self> {
        let (uplink, downlink) = (facts.access(from)?.0, facts.access(to)?.1);
        let mut inner = Vec::new();
        facts.inner_links(from, to, &mut |link| inner.push(link));
        inner.sort_unstable();
        inner.dedup();
        Some(Self {
            from,
            to,
            uplink,
            downlink,
            inner,
            has_uncongested,
        })
    }

    /// Returns the numbers of its hosts.
    fn key(&self) -> (u32, u32) {
        (self.from.0, self.to.0)
    }

    /// Returns the switches at which its path begins and ends. Where links meet that a flow may
    /// take in place of each other, these two are at their ends.
    fn ends(&self, facts: &dyn LinkFacts) -> impl Iterator<Item = (bool, u32)> + use<> {
        let (first, last) = (facts.switch(self.from), facts.switch(self.to));
        (first.map(|switch| (false, switch)).into_iter()).chain(last.map(|switch| (true, switch)))
    }
}

/// Congestion between switches.
#[derive(Debug, Default)]
pub(super) struct InNetwork {
    /// Links that carry less.
    pub(super) less: BTreeSet<LinkId>,
    /// Links whose flows take another path.
    pub(super) misled: BTreeSet<LinkId>,
    /// Links of hosts that are clear while that lasts.
    pub(super) clear: BTreeSet<LinkId>,
    /// Pairs whose congestion that is, by their place in the list.
    pub(super) explained: Vec<bool>,
}

impl LinkCheck {
    /// Finds the pairs whose congestion is between switches, and the links of which it is. Pairs
    /// that met it a moment ago tell of the links, too, where others meet it now.
    pub(super) fn find_in_network(
        &mut self,
        now_ns: u64,
        pairs: &[CongestedPair],
        facts: &dyn LinkFacts,
    ) -> InNetwork {
        self.note_between(now_ns, pairs, facts);
        let mut found = InNetwork {
            explained: vec![false; pairs.len()],
            ..InNetwork::default()
        };
        let present: BTreeSet<_> = pairs.iter().map(CongestedPair::key).collect();
        let remembered: Vec<CongestedPair> = (self.between.keys())
            .filter(|key| !present.contains(key))
            .filter_map(|&(from, to)| CongestedPair::of(HostId(from), HostId(to), false, facts))
            .collect();
        // Pairs that count, with their places among those that meet congestion now.
        let members: Vec<(&CongestedPair, Option<usize>)> = (pairs.iter().enumerate())
            .filter(|(_, pair)| self.between.contains_key(&pair.key()))
            .map(|(at, pair)| (pair, Some(at)))
            .chain(remembered.iter().map(|pair| (pair, None)))
            .filter(|(pair, _)| !pair.inner.is_empty())
            .collect();
        let mut groups: BTreeMap<(bool, u32), Vec<usize>> = BTreeMap::new();
        for (at, (pair, _)) in members.iter().enumerate() {
            for end in pair.ends(facts) {
                groups.entry(end).or_default().push(at);
            }
        }
        // The largest first: what is one link's shows in all pairs that cross it.
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|(end, group)| (Reverse(group.len()), *end));
        let mut doubted = BTreeSet::new();
        let mut is_told = vec![false; members.len()];
        for (end, mut group) in groups {
            group.retain(|&member| !is_told[member]);
            let is_present = group.iter().any(|&member| members[member].1.is_some());
            let of_group: Vec<&CongestedPair> =
                group.iter().map(|&member| members[member].0).collect();
            if !is_present || !has_several_ends(&of_group) {
                continue;
            }
            let common = common_links(&of_group);
            if common.iter().all(|&link| self.is_named_misled(link)) {
                // Some of the flows that meet on a wrong path may meet nothing for a while.
                for pair in &of_group {
                    let links = self.fullest_of(&pair.inner, facts);
                    found.misled.extend(
                        links
                            .filter(|links| links.len() <= MAX_HOPS)
                            .unwrap_or_default(),
                    );
                }
                doubted.insert(end);
            } else {
                match self.fullest_of(&common, facts) {
                    Some(links) if links.len() <= MAX_HOPS => found.less.extend(links),
                    _ => {
                        doubted.insert(end);
                    }
                }
            }
            for member in group {
                is_told[member] = true;
                let (pair, at) = members[member];
                if let Some(at) = at {
                    found.explained[at] = true;
                }
                found.clear.extend([pair.uplink, pair.downlink]);
            }
        }
        found.less.retain(|link| !found.misled.contains(link));
        for (at, pair) in pairs.iter().enumerate() {
            let crosses = |link: &LinkId| found.less.contains(link) || found.misled.contains(link);
            let is_doubted = || pair.ends(facts).any(|end| doubted.contains(&end));
            if pair.inner.iter().any(crosses) || (!pair.inner.is_empty() && is_doubted()) {
                found.explained[at] = true;
            }
        }
        found
    }

    /// Notes the pairs whose congestion is between switches now, and forgets those of long ago.
    fn note_between(&mut self, now_ns: u64, pairs: &[CongestedPair], facts: &dyn LinkFacts) {
        self.between
            .retain(|_, seen_ns| now_ns.saturating_sub(*seen_ns) < REMEMBER_NS);
        for pair in pairs {
            let has_room = self.between.len() < MAX_PAIRS;
            if (has_room || self.between.contains_key(&pair.key()))
                && self.is_between_switches(now_ns, pair, facts)
            {
                self.between.insert(pair.key(), now_ns);
            }
        }
    }

    /// Returns true if a link is named because flows that are told to cross it do not.
    fn is_named_misled(&self, link: LinkId) -> bool {
        let known = self.links.get(&link.0);
        known.is_some_and(|known| known.named == LinkState::WrongPath)
    }

    /// Returns true if the congestion of a pair is none of its hosts' links, as far as these tell,
    /// and nothing else explains it.
    fn is_between_switches(
        &self,
        now_ns: u64,
        pair: &CongestedPair,
        facts: &dyn LinkFacts,
    ) -> bool {
        let explains = |link: &LinkId| self.has_others(*link) || self.is_full(*link, facts);
        let misses = |link: LinkId| self.links.get(&link.0).is_some_and(Checked::misses);
        let (uplink, downlink) = (pair.uplink, pair.downlink);
        let is_held_up = |&link: &LinkId| self.is_held_up_short(link, facts);
        !pair.inner.is_empty()
            && ![uplink, downlink].iter().any(is_held_up)
            && ![uplink, downlink].iter().chain(&pair.inner).any(explains)
            && (self.is_named_between(pair)
                || ((pair.has_uncongested || self.is_clear(now_ns, uplink, facts))
                    && self.is_clear(now_ns, downlink, facts)))
            && ((!pair.has_uncongested && misses(uplink)) || misses(downlink))
    }

    /// Returns true if a link that they are told to cross is named already. Rates move meanwhile,
    /// and hosts' links carry what they may.
    fn is_named_between(&self, pair: &CongestedPair) -> bool {
        pair.inner.iter().any(|link| {
            let named = self.links.get(&link.0).map(|known| known.named);
            matches!(named, Some(LinkState::CarriesLess | LinkState::WrongPath))
        })
    }

    /// Returns true if a host's link has carried within [`PROVEN_NS`] what it is handed out now.
    fn is_clear(&self, now_ns: u64, link: LinkId, facts: &dyn LinkFacts) -> bool {
        let Some(known) = self.links.get(&link.0) else {
            return false;
        };
        let (at_ns, best_bps) = known.best;
        known.carried_bps().is_some()
            && known.lowered_bps().is_none()
            && now_ns.saturating_sub(at_ns) < PROVEN_NS
            && best_bps >= GAP * facts.handed_out_bps(link)
    }

    /// Returns the links that are handed out to the greatest part of their capacity; `None` without
    /// any.
    fn fullest_of(&self, links: &[LinkId], facts: &dyn LinkFacts) -> Option<Vec<LinkId>> {
        let part = |link: LinkId| self.handed_out_part(link, facts);
        let fullest = links.iter().map(|&link| part(link)).reduce(f64::max)?;
        let fullest = links.iter().filter(|&&link| part(link) >= fullest - TIE);
        Some(fullest.copied().collect())
    }
}

fn has_several_ends(group: &[&CongestedPair]) -> bool {
    let senders: BTreeSet<HostId> = group.iter().map(|pair| pair.from).collect();
    let receivers: BTreeSet<HostId> = group.iter().map(|pair| pair.to).collect();
    senders.len() >= MIN_ENDS && receivers.len() >= MIN_ENDS
}

/// Returns the links between switches that flows of all pairs of a group cross.
fn common_links(group: &[&CongestedPair]) -> Vec<LinkId> {
    let Some((first, rest)) = group.split_first() else {
        return Vec::new();
    };
    let mut common = first.inner.clone();
    for pair in rest {
        common.retain(|link| pair.inner.binary_search(link).is_ok());
    }
    common
}
