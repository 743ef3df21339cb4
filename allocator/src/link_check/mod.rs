//! Check of told capacities: what was handed out on a link against what the link carried.
//!
//! The allocator knows what it handed out. The host at a link's end tells what its interface
//! carried, the speed that it tells, and to which hosts backlogged connections meet congestion
//! ([`LinkWord`], [`HostWord`]). A congested link is a full one. If it is full and carries less
//! than it was told, the topology is wrong. [`LinkCheck`] joins the two, without clock or socket.
//!
//! # Rules
//!
//! | state | evidence |
//! |---|---|
//! | [`CarriesLess`](LinkState::CarriesLess) | congestion on a link that carries less than [`SHORT`] of its capacity and less than [`GAP`] of what was handed out; or an interface of less than [`SLOW`] of it |
//! | [`CarriesMore`](LinkState::CarriesMore) | more than [`ABOVE`] of its capacity is carried; or an interface of more than [`FAST`] of it |
//! | [`HasOthersTraffic`](LinkState::HasOthersTraffic) | flows that are paced meet traffic that nobody paces |
//! | [`AsTold`](LinkState::AsTold) | its host tells what it carries, and nothing of the above |
//! | [`Unknown`](LinkState::Unknown) | nobody tells what it carries |
//!
//! Congestion between two hosts is one link's. Nobody is named where a link of their path explains
//! it: one that carries [`PROVEN`] of its capacity, or has others' traffic. Otherwise it is the one
//! that is handed out to the greatest part of its capacity: of a right network's links, that one is
//! full. The sender's uplink is cleared while it has backlogged connections without congestion. So
//! is a link that was full within [`PROVEN_NS`], if another one was not. A link between switches is
//! named if it is the only one; its carried rate is not known. Where the end of the way tells
//! nothing, nobody is named.
//!
//! | constant | reason |
//! |---|---|
//! | [`SHORT`] 0.88 | a capacity that is 1.25 times too high is carried to 0.8; what hosts tell is off by 1/64 at most; few flows of TCP fill 0.9 |
//! | [`GAP`] 0.94 | a flow that yields is rated 9/8 of its use, so that it uses 0.89; one that its rate holds back uses 0.97 |
//! | [`ABOVE`] 1.05, [`FAST`] 1.1, [`SLOW`] 0.95 | what is told may be payload, or less framing: 0.95 to 0.99 of the line |
//! | [`TARGET`] 0.96 | what hosts tell may be 1/64 too much, and the queue has to drain |
//! | [`NAME_NS`] 1 s | with a second at the host, half of one between its words and [`SAMPLES`] ticks, a link is named within 5 s, and starts and their first losses are over |
//! | [`CLEAR_NS`] 5 s | longer than bursts are apart; shorter than the 10 s in which a state is taken back |
//!
//! A host is named by its daemon's word alone ([`HostFault`]): the daemon has seen the fault for a
//! second.
//!
//! # Lowering
//!
//! A link that carries less by congestion is lowered to [`TARGET`] of what it carries, by at most
//! [`LinkCheckConfig::max_lowering`] of its capacity. From then on its queue drains. After
//! [`PAUSE_NS`] it is probed: its capacity grows by [`STEP`], then by twice as much, every
//! [`PROBE_NS`], until it is the told one or congestion comes back. A link that is not in use is
//! not probed. What lowering does not end is no matter of capacity (a lossy line, say): after
//! [`FUTILE_NS`] the told one is in force again, and is not lowered for [`GIVEN_UP_NS`]. A link
//! that carries more is only named.
//!
//! Work: O(1) for a word, and for each tick O(path) for at most [`MAX_PAIRS`] congested pairs and
//! O(1) for at most [`MAX_LINKS`] links that are named or about to be.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;
use ratewright_topology::{HostId, LinkId};
use rustc_hash::FxBuildHasher;
use serde::Serialize;

mod network;

pub use network::{NetworkFacts, VisitPaths};

/// Part of its capacity below which a congested link carries less.
pub const SHORT: f64 = 0.88;
/// Part of what was handed out below which a congested link carries less.
pub const GAP: f64 = 0.94;
/// Part of its capacity above which a link carries more.
pub const ABOVE: f64 = 1.05;
/// Part of its capacity from which on its interface's speed says that a link carries more,
pub const FAST: f64 = 1.1;
/// and below which it says that it carries less.
pub const SLOW: f64 = 0.95;
/// Part of its capacity with which a link has proven it,
pub const PROVEN: f64 = 0.92;
/// and time for which the proof counts.
pub const PROVEN_NS: u64 = 60 * SECOND_NS;
/// Links whose handed-out parts differ by less than this count as equally full.
pub const TIE: f64 = 0.05;
/// Part of a link's capacity that is handed out on a full link between switches.
pub const FULL: f64 = 0.9;
/// Time for which evidence stands before a link is named.
pub const NAME_NS: u64 = SECOND_NS;
/// Time without evidence after which a state is taken back,
pub const CLEAR_NS: u64 = 5 * SECOND_NS;
/// and of a congested link that is not in use since.
pub const IDLE_NS: u64 = 60 * SECOND_NS;
/// Ticks of which what was handed out counts with its least: what a host tells is a mean of one
/// second that may have ended a second ago.
pub const SAMPLES: usize = 3;
/// Interval of ticks.
pub const TICK_NS: u64 = SECOND_NS / 2;
/// Part of what a link carries to which it is lowered: its queue drains.
pub const TARGET: f64 = 0.96;
/// Time from lowering to the first probe,
pub const PAUSE_NS: u64 = 4 * SECOND_NS;
/// and from a probe to the next.
pub const PROBE_NS: u64 = SECOND_NS * 3 / 2;
/// Growth of the first probe.
pub const STEP: f64 = 0.08;
/// Time after which lowering that did not end the congestion is given up,
pub const FUTILE_NS: u64 = 4 * SECOND_NS;
/// and for which it is not tried again.
pub const GIVEN_UP_NS: u64 = 60 * SECOND_NS;
/// Time without congestion at the told capacity that ends a lowering.
pub const RESTORED_NS: u64 = 2 * SECOND_NS;
/// Pairs of hosts whose congestion one tick looks at.
pub const MAX_PAIRS: usize = 4_096;
/// Links that one tick looks at.
pub const MAX_LINKS: usize = 4_096;

const SECOND_NS: u64 = 1_000_000_000;

/// Settings of the check.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkCheckConfig {
    /// Largest part of a told capacity that measured carriage takes away; 0: it is only named.
    pub max_lowering: f64,
}

impl Default for LinkCheckConfig {
    fn default() -> Self {
        Self { max_lowering: 0.5 }
    }
}

/// State of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkState {
    /// Nobody tells what it carries.
    #[default]
    Unknown,
    /// Nothing contradicts its capacity.
    AsTold,
    /// It is congested and carries less than its capacity, or its interface is slower.
    CarriesLess,
    /// It carries more than its capacity, or its interface is faster.
    CarriesMore,
    /// Traffic that nobody paces is on it.
    HasOthersTraffic,
}

impl LinkState {
    /// States that are named.
    pub const NAMED: [Self; 3] = [Self::CarriesLess, Self::CarriesMore, Self::HasOthersTraffic];

    /// Label in metrics and JSON.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::AsTold => "as_told",
            Self::CarriesLess => "carries_less",
            Self::CarriesMore => "carries_more",
            Self::HasOthersTraffic => "has_others_traffic",
        }
    }
}

/// Word of the host at a link's end about it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LinkWord {
    /// Rate of all that the interface carried in the last second, in bit/s, if it is known.
    pub carried_bps: Option<f64>,
    /// Speed that the interface tells, in bit/s; 0 if it tells none.
    pub speed_bps: f64,
}

/// Fault of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HostFault {
    /// None of its addresses is in its prefixes: flows to it find no host, or another one.
    AddressNotInPrefix,
    /// Its default congestion control was changed under its daemon.
    CongestionControlChanged,
}

impl HostFault {
    /// All faults.
    pub const ALL: [Self; 2] = [Self::AddressNotInPrefix, Self::CongestionControlChanged];

    /// Label in metrics and JSON.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::AddressNotInPrefix => "address_not_in_prefix",
            Self::CongestionControlChanged => "congestion_control_changed",
        }
    }
}

/// Word of a host about its own two links. It stands until another one comes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostWord {
    /// The link from it.
    pub uplink: LinkWord,
    /// The link to it.
    pub downlink: LinkWord,
    /// Hosts to which its backlogged connections meet congestion.
    pub congested: Vec<HostId>,
    /// Others of its backlogged connections meet none.
    pub has_uncongested: bool,
    /// Its faults.
    pub faults: BTreeSet<HostFault>,
}

/// Evidence for a link's state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct LinkEvidence {
    /// State of the link.
    pub state: LinkState,
    /// Capacity that the allocator was told, in bit/s.
    pub told_bps: f64,
    /// Rates handed out over it, in bit/s.
    pub handed_out_bps: f64,
    /// Rate that its interface carried, in bit/s; `None` if nobody tells.
    pub carried_bps: Option<f64>,
    /// Speed that its interface tells, in bit/s; `None` if it tells none.
    pub speed_bps: Option<f64>,
    /// Capacity to which it is lowered, in bit/s, if it is.
    pub lowered_bps: Option<f64>,
    /// Time for which a state that is named has stood, in milliseconds; 0 of any other.
    pub for_ms: u64,
}

/// Facts that the check asks for.
pub trait LinkFacts {
    /// Returns the capacity of a link as it was told, in bit/s.
    fn told_bps(&self, link: LinkId) -> f64;
    /// Returns what was handed out over a link within the last second, in bit/s.
    fn handed_out_bps(&self, link: LinkId) -> f64;
    /// Returns the links from a host and to it.
    fn access(&self, host: HostId) -> Option<(LinkId, LinkId)>;
    /// Visits the links between switches that flows from one host to another cross.
    fn inner_links(&self, from: HostId, to: HostId, visit: &mut dyn FnMut(LinkId));
}

/// Change of a link that the check asks for or tells.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LinkChange {
    /// The link has another state than the one given.
    State {
        /// The link.
        link: LinkId,
        /// Its state before.
        before: LinkState,
        /// Evidence for the present one.
        evidence: LinkEvidence,
    },
    /// [`LinkCheck::lowered_bps`] of the link has changed.
    Capacity(LinkId),
    /// A host has a fault, or has it no more.
    Fault {
        /// The host.
        host: HostId,
        /// The fault.
        fault: HostFault,
        /// The host has it.
        has: bool,
    },
}

/// Lowered capacity of a link.
#[derive(Debug, Clone, Copy)]
struct Lowering {
    capacity_bps: f64,
    /// Growth of the next probe.
    step: f64,
    /// Time of the next probe.
    probe_ns: u64,
    /// Time since which congestion has not ended; `None` without congestion.
    congested_ns: Option<u64>,
    /// Time at which the told capacity was reached again.
    restored_ns: Option<u64>,
}

/// Figures of one link.
#[derive(Debug, Clone, Copy, Default)]
struct Checked {
    word: Option<LinkWord>,
    has_others: bool,
    /// The session of the host at its end is over.
    is_left: bool,
    /// Last time at which congestion was this link's.
    congested_ns: Option<u64>,
    /// Last time at which it was judged.
    judged_ns: u64,
    /// Last time at which it carried its capacity.
    proven_ns: Option<u64>,
    /// Loads handed out in the last ticks in which it was in question, and the time of the newest.
    handed_out_bps: [f64; SAMPLES],
    sampled_ns: u64,
    /// State that is named; [`LinkState::Unknown`] without one.
    named: LinkState,
    since_ns: u64,
    /// Last time with evidence for it, and what was carried then.
    seen_ns: u64,
    seen_bps: f64,
    /// Other state that the evidence asks for, and since when.
    asked: Option<(LinkState, u64)>,
    lowering: Option<Lowering>,
    given_up_until_ns: u64,
}

/// Check of all links.
#[derive(Debug, Default)]
pub struct LinkCheck {
    config: LinkCheckConfig,
    links: IndexMap<u32, Checked, FxBuildHasher>,
    /// Hosts with a word about congestion.
    congested: BTreeMap<u32, (Vec<HostId>, bool)>,
    /// Hosts with faults.
    faults: BTreeMap<u32, BTreeSet<HostFault>>,
    /// Faults as the last tick handed them over, and hosts that told others since.
    named_faults: BTreeMap<u32, BTreeSet<HostFault>>,
    told_faults: BTreeSet<u32>,
    /// Host from which the next tick goes on.
    turn: u32,
    /// Links that ticks look at: named, asked for or lowered.
    active: BTreeSet<u32>,
    /// Link from which the next tick goes on.
    link_turn: u32,
    named: [u64; LinkState::NAMED.len()],
    lowered: u64,
    ticked_ns: u64,
}

impl LinkCheck {
    /// Makes a check that knows nothing.
    #[must_use]
    pub fn new(config: LinkCheckConfig) -> Self {
        Self {
            config,
            ..Self::default()
        }
    }

    /// Puts other settings in force. Lowered capacities end with the next tick, if they go too far.
    pub fn reconfigure(&mut self, config: LinkCheckConfig) {
        self.config = config;
    }

    /// Forgets all words and states, because links have other numbers.
    pub fn restart(&mut self) {
        *self = Self::new(self.config.clone());
    }

    /// Takes a host's word in place of the former one. O(1).
    pub fn tell(&mut self, now_ns: u64, host: HostId, word: HostWord, facts: &dyn LinkFacts) {
        let Some((uplink, downlink)) = facts.access(host) else {
            return;
        };
        if self.next_due_ns().is_none() {
            // What was handed out is asked for now, and known by the next tick.
            self.ticked_ns = now_ns;
        }
        for (link, word) in [(uplink, word.uplink), (downlink, word.downlink)] {
            let told_bps = facts.told_bps(link);
            let checked = self.links.entry(link.0).or_default();
            (checked.word, checked.is_left) = (Some(word), false);
            if told_bps > 0.0 && word.carried_bps >= Some(PROVEN * told_bps) {
                checked.proven_ns = Some(now_ns);
            }
            if checked.evidence_of(told_bps).is_some() {
                self.activate(link);
            }
        }
        self.set_faults(host, word.faults);
        if word.congested.is_empty() {
            self.congested.remove(&host.0);
        } else {
            let congested = (word.congested, word.has_uncongested);
            self.congested.insert(host.0, congested);
        }
    }

    /// Forgets a host's word about its links, `access`, because its session has ended. O(1).
    pub fn forget(&mut self, host: HostId, access: [LinkId; 2]) {
        self.congested.remove(&host.0);
        self.set_faults(host, BTreeSet::new());
        for link in access {
            if let Some(checked) = self.links.get_mut(&link.0) {
                (checked.word, checked.is_left) = (None, true);
            }
        }
    }

    fn set_faults(&mut self, host: HostId, faults: BTreeSet<HostFault>) {
        let before = if faults.is_empty() {
            self.faults.remove(&host.0)
        } else {
            self.faults.insert(host.0, faults)
        };
        if before.as_ref() != self.faults.get(&host.0) {
            self.told_faults.insert(host.0);
        }
    }

    fn name_faults(&mut self, changes: &mut dyn FnMut(LinkChange)) {
        for host in std::mem::take(&mut self.told_faults) {
            let faults = self.faults.get(&host).cloned().unwrap_or_default();
            let before = self.named_faults.remove(&host).unwrap_or_default();
            for &fault in faults.symmetric_difference(&before) {
                changes(LinkChange::Fault {
                    host: HostId(host),
                    fault,
                    has: faults.contains(&fault),
                });
            }
            if !faults.is_empty() {
                self.named_faults.insert(host, faults);
            }
        }
    }

    /// Returns the hosts with faults, in the order of their numbers.
    pub fn faults(&self) -> impl Iterator<Item = (HostId, HostFault)> {
        (self.named_faults.iter()).flat_map(|(&host, faults)| {
            let host = HostId(host);
            faults.iter().map(move |&fault| (host, fault))
        })
    }

    /// Notes that flows which are paced meet traffic that nobody paces on a link, or have parted.
    pub fn set_others(&mut self, link: LinkId, has_others: bool) {
        if has_others || self.links.contains_key(&link.0) {
            self.links.entry(link.0).or_default().has_others = has_others;
        }
        if has_others {
            self.activate(link);
        }
    }

    /// Notes that they have parted on all links.
    pub fn part_others(&mut self) {
        for checked in self.links.values_mut() {
            checked.has_others = false;
        }
    }

    fn activate(&mut self, link: LinkId) {
        self.active.insert(link.0);
    }

    /// Returns the time of the next [`tick`](Self::tick); `None` while no link is in question.
    #[must_use]
    pub fn next_due_ns(&self) -> Option<u64> {
        let at_work =
            !(self.active.is_empty() && self.congested.is_empty() && self.told_faults.is_empty());
        at_work.then(|| self.ticked_ns.saturating_add(TICK_NS))
    }

    /// Judges the links in question, if a tick is due, and hands over what has changed.
    pub fn tick(
        &mut self,
        now_ns: u64,
        facts: &dyn LinkFacts,
        changes: &mut dyn FnMut(LinkChange),
    ) {
        if self.next_due_ns().is_none_or(|due_ns| due_ns > now_ns) {
            return;
        }
        self.ticked_ns = now_ns;
        self.name_faults(changes);
        self.find_congested(now_ns, facts);
        let from = self.link_turn;
        let (first, last) = (self.active.range(from..), self.active.range(..from));
        let links: Vec<u32> = first.chain(last).copied().take(MAX_LINKS).collect();
        self.link_turn = links.last().map_or(0, |last| last + 1);
        for link in links {
            self.judge(now_ns, LinkId(link), facts, changes);
        }
    }

    /// Finds the links whose congestion the words are about.
    fn find_congested(&mut self, now_ns: u64, facts: &dyn LinkFacts) {
        let mut pairs = Vec::new();
        let turn = std::mem::take(&mut self.turn);
        let later = self.congested.range(turn..);
        for (&from, (receivers, has_uncongested)) in later.chain(self.congested.range(..turn)) {
            if pairs.len() + receivers.len() > MAX_PAIRS {
                self.turn = from;
                break;
            }
            let from = HostId(from);
            pairs.extend(receivers.iter().map(|&to| (from, to, *has_uncongested)));
        }
        for &(from, to, _) in &pairs {
            let access = (facts.access(from), facts.access(to));
            if let (Some((uplink, _)), Some((_, downlink))) = access {
                for link in [uplink, downlink] {
                    let sampled = self.links.entry(link.0).or_default();
                    sampled.sample(now_ns, facts.handed_out_bps(link));
                }
            }
        }
        let mut found = Vec::new();
        for (from, to, has_uncongested) in pairs {
            self.congested_of((from, to), has_uncongested, now_ns, facts, &mut found);
        }
        for link in found {
            self.links.entry(link.0).or_default().congested_ns = Some(now_ns);
            self.activate(link);
        }
    }

    /// Appends the links that the congestion from one host to another may be of.
    fn congested_of(
        &self,
        (from, to): (HostId, HostId),
        has_uncongested: bool,
        now_ns: u64,
        facts: &dyn LinkFacts,
        found: &mut Vec<LinkId>,
    ) {
        let (Some((uplink, _)), Some((_, downlink))) = (facts.access(from), facts.access(to))
        else {
            return;
        };
        let mut candidates = Vec::new();
        if !has_uncongested {
            candidates.push((uplink, true));
        }
        candidates.push((downlink, true));
        facts.inner_links(from, to, &mut |link| candidates.push((link, false)));
        let explains = |link: LinkId| self.has_others(link) || self.is_full(link, facts);
        if explains(uplink) || candidates.iter().any(|&(link, _)| explains(link)) {
            return;
        }
        let part = |link: LinkId| {
            let capacity_bps = self.capacity_bps(link, facts);
            if capacity_bps > 0.0 {
                facts.handed_out_bps(link) / capacity_bps
            } else {
                0.0
            }
        };
        let fullest = (candidates.iter())
            .map(|&(link, _)| part(link))
            .fold(0.0, f64::max);
        candidates.retain(|&(link, _)| part(link) >= fullest - TIE);
        let is_access = |&(_, is_access): &(LinkId, bool)| is_access;
        let told = |&(link, is_access): &(LinkId, bool)| {
            !is_access
                || self
                    .links
                    .get(&link.0)
                    .is_some_and(|known| known.carried_bps().is_some())
        };
        if !candidates.iter().all(told) {
            // It may be that of a host which tells nothing.
            return;
        }
        if candidates.iter().any(is_access) {
            candidates.retain(is_access);
            let short = |&(link, _): &(LinkId, bool)| self.is_short(link, facts);
            candidates.retain(short);
            let is_proven = |&(link, _): &(LinkId, bool)| self.is_proven(now_ns, link);
            if !candidates.iter().all(is_proven) {
                candidates.retain(|candidate| !is_proven(candidate));
            }
        } else {
            // Nobody tells what it carries: its flows have to miss what they were handed.
            let misses = |link: LinkId| {
                let known = self.links.get(&link.0);
                known.is_some_and(Checked::misses)
            };
            let are_missing = (!has_uncongested && misses(uplink)) || misses(downlink);
            candidates.retain(|&(link, _)| are_missing && part(link) >= FULL);
        }
        found.extend(candidates.into_iter().map(|(link, _)| link));
    }

    fn has_others(&self, link: LinkId) -> bool {
        let known = self.links.get(&link.0);
        known.is_some_and(|known| known.has_others)
    }

    /// Returns true if a link carries its capacity.
    fn is_full(&self, link: LinkId, facts: &dyn LinkFacts) -> bool {
        let carried_bps = self.links.get(&link.0).and_then(Checked::carried_bps);
        carried_bps.is_some_and(|bps| bps >= PROVEN * facts.told_bps(link))
    }

    /// Returns the capacity of a link in force, in bit/s.
    fn capacity_bps(&self, link: LinkId, facts: &dyn LinkFacts) -> f64 {
        let told_bps = facts.told_bps(link);
        self.lowered_bps(link)
            .map_or(told_bps, |bps| bps.min(told_bps))
    }

    fn is_short(&self, link: LinkId, facts: &dyn LinkFacts) -> bool {
        let Some((known, carried_bps)) =
            (self.links.get(&link.0)).and_then(|known| Some((known, known.carried_bps()?)))
        else {
            return false;
        };
        match known.lowered_bps() {
            // Known to carry less: probes go by small steps.
            Some(lowered_bps) => carried_bps < lowered_bps,
            None => carried_bps < SHORT * facts.told_bps(link) && known.misses(),
        }
    }

    fn is_proven(&self, now_ns: u64, link: LinkId) -> bool {
        let proven_ns = self.links.get(&link.0).and_then(|known| known.proven_ns);
        proven_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) < PROVEN_NS)
    }

    /// Judges one link by the evidence of this tick.
    fn judge(
        &mut self,
        now_ns: u64,
        link: LinkId,
        facts: &dyn LinkFacts,
        changes: &mut dyn FnMut(LinkChange),
    ) {
        let told_bps = facts.told_bps(link);
        let max_lowering = self.config.max_lowering;
        let Some(checked) = self.links.get_mut(&link.0) else {
            self.active.remove(&link.0);
            return;
        };
        let before = (checked.named, checked.lowered_bps());
        let evidence = checked.evidence_of(told_bps);
        checked.name(now_ns, evidence);
        checked.lower(now_ns, told_bps, max_lowering);
        checked.judged_ns = now_ns;
        let after = (checked.named, checked.lowered_bps());
        let is_quiet =
            after == (LinkState::Unknown, None) && checked.asked.is_none() && !checked.has_others;
        if is_quiet {
            self.active.remove(&link.0);
        }
        if before.1 != after.1 {
            self.lowered += u64::from(after.1.is_some());
            self.lowered -= u64::from(before.1.is_some());
            changes(LinkChange::Capacity(link));
        }
        if before.0 != after.0 {
            for (count, state) in self.named.iter_mut().zip(LinkState::NAMED) {
                *count += u64::from(state == after.0);
                *count -= u64::from(state == before.0);
            }
            changes(LinkChange::State {
                link,
                before: before.0,
                evidence: self.evidence(link, facts),
            });
        }
    }

    /// Returns the capacity to which a link is lowered, in bit/s, if it is.
    #[must_use]
    pub fn lowered_bps(&self, link: LinkId) -> Option<f64> {
        self.links.get(&link.0)?.lowered_bps()
    }

    /// Returns the state of a link with its evidence.
    #[must_use]
    pub fn evidence(&self, link: LinkId, facts: &dyn LinkFacts) -> LinkEvidence {
        let known = self.links.get(&link.0).copied().unwrap_or_default();
        let state = match (known.named, known.word) {
            (LinkState::Unknown, Some(_)) => LinkState::AsTold,
            (named, _) => named,
        };
        let speed_bps = known.word.map(|word| word.speed_bps);
        LinkEvidence {
            state,
            told_bps: facts.told_bps(link),
            handed_out_bps: facts.handed_out_bps(link),
            carried_bps: known.carried_bps(),
            speed_bps: speed_bps.filter(|&bps| bps > 0.0),
            lowered_bps: known.lowered_bps(),
            for_ms: if known.named == LinkState::Unknown {
                0
            } else {
                self.ticked_ns.saturating_sub(known.since_ns) / 1_000_000
            },
        }
    }

    /// Returns the links that are named, in the order of their numbers.
    pub fn named(&self) -> impl Iterator<Item = (LinkId, LinkState)> {
        self.active.iter().filter_map(|&link| {
            let named = self.links.get(&link)?.named;
            (named != LinkState::Unknown).then_some((LinkId(link), named))
        })
    }

    /// Returns the number of links in each state that is named.
    #[must_use]
    pub fn named_counts(&self) -> [(LinkState, u64); LinkState::NAMED.len()] {
        std::array::from_fn(|at| (LinkState::NAMED[at], self.named[at]))
    }

    /// Returns the number of links whose capacity is lowered.
    #[must_use]
    pub fn lowered_count(&self) -> u64 {
        self.lowered
    }
}

impl Checked {
    fn carried_bps(&self) -> Option<f64> {
        self.word?.carried_bps
    }

    fn lowered_bps(&self) -> Option<f64> {
        self.lowering.map(|lowering| lowering.capacity_bps)
    }

    /// Notes what was handed out. A link that was not in question in between begins anew.
    fn sample(&mut self, now_ns: u64, handed_out_bps: f64) {
        if self.sampled_ns == now_ns {
            return;
        }
        if now_ns.saturating_sub(self.sampled_ns) > 2 * TICK_NS {
            self.handed_out_bps = [0.0; SAMPLES];
        }
        self.sampled_ns = now_ns;
        self.handed_out_bps.rotate_right(1);
        self.handed_out_bps[0] = handed_out_bps;
    }

    /// Returns true if it carries less than was handed out, throughout the samples.
    fn misses(&self) -> bool {
        let least_bps = self
            .handed_out_bps
            .iter()
            .copied()
            .fold(f64::INFINITY, f64::min);
        self.carried_bps().is_some_and(|bps| bps < GAP * least_bps)
    }

    /// Returns true if congestion was this link's since it was judged last.
    fn is_congested(&self) -> bool {
        self.congested_ns > Some(self.judged_ns)
    }

    /// Returns the state that the evidence of this moment asks for, if it asks for one.
    fn evidence_of(&self, told_bps: f64) -> Option<LinkState> {
        if told_bps <= 0.0 {
            // A dead link carries nothing, as it was told.
            return None;
        }
        let word = self.word.unwrap_or_default();
        if self.is_congested() || (0.0 < word.speed_bps && word.speed_bps < SLOW * told_bps) {
            Some(LinkState::CarriesLess)
        } else if word.carried_bps > Some(ABOVE * told_bps) || word.speed_bps > FAST * told_bps {
            Some(LinkState::CarriesMore)
        } else if self.has_others {
            Some(LinkState::HasOthersTraffic)
        } else {
            None
        }
    }

    /// Names the state that evidence has asked for long enough, or takes back one that it has not
    /// asked for.
    fn name(&mut self, now_ns: u64, evidence: Option<LinkState>) {
        let carried_bps = self.carried_bps().unwrap_or(0.0);
        if evidence == Some(self.named) {
            (self.seen_ns, self.asked) = (now_ns, None);
            self.seen_bps = carried_bps;
            return;
        }
        self.asked = match (evidence, self.asked) {
            (Some(state), Some((asked, since_ns))) if state == asked => Some((asked, since_ns)),
            (Some(state), _) => Some((state, now_ns)),
            (None, _) => None,
        };
        if let Some((state, since_ns)) = self.asked
            && now_ns.saturating_sub(since_ns) >= NAME_NS
            // A probe that goes well for a moment does not end it.
            && self.lowering.is_none()
        {
            (self.named, self.since_ns, self.seen_ns) = (state, now_ns, now_ns);
            (self.seen_bps, self.asked) = (carried_bps, None);
            return;
        }
        if self.named == LinkState::Unknown {
            return;
        }
        let is_used = self.named != LinkState::CarriesLess || carried_bps >= self.seen_bps / 2.0;
        let clear_ns = if is_used { CLEAR_NS } else { IDLE_NS };
        let is_over = self.is_left && self.named != LinkState::HasOthersTraffic;
        if is_over || (now_ns.saturating_sub(self.seen_ns) >= clear_ns && self.lowering.is_none()) {
            (self.named, self.since_ns, self.lowering) = (LinkState::Unknown, now_ns, None);
        }
    }

    /// Lowers, probes or restores the capacity.
    fn lower(&mut self, now_ns: u64, told_bps: f64, max_lowering: f64) {
        let floor_bps = (1.0 - max_lowering) * told_bps;
        let is_less = self.named == LinkState::CarriesLess;
        let Some(carried_bps) = self.carried_bps().filter(|_| is_less) else {
            self.lowering = None;
            return;
        };
        let is_congested = self.is_congested();
        let target_bps = (TARGET * carried_bps).max(floor_bps);
        let Some(mut lowering) = self.lowering else {
            if is_congested && target_bps < told_bps && self.given_up_until_ns <= now_ns {
                self.lowering = Some(Lowering::to(now_ns, target_bps));
            }
            return;
        };
        if max_lowering == 0.0 || lowering.capacity_bps < floor_bps {
            self.lowering = None;
            return;
        }
        if lowering.capacity_bps >= told_bps && lowering.restored_ns.is_none() {
            // The told one is another.
            lowering.restored_ns = Some(now_ns);
        }
        let was_congested = lowering.congested_ns.is_some();
        match (is_congested, lowering.congested_ns) {
            (true, None) if target_bps < lowering.capacity_bps => {
                lowering = Lowering::to(now_ns, target_bps);
            }
            (true, Some(since_ns)) if now_ns.saturating_sub(since_ns) >= FUTILE_NS => {
                self.given_up_until_ns = now_ns.saturating_add(GIVEN_UP_NS);
                self.lowering = None;
                return;
            }
            (true, since_ns) => {
                lowering.congested_ns = since_ns.or(Some(now_ns));
                lowering.probe_ns = now_ns.saturating_add(PAUSE_NS);
            }
            (false, _) => lowering.congested_ns = None,
        }
        if was_congested || is_congested {
            self.lowering = Some(lowering);
            return;
        }
        if let Some(restored_ns) = lowering.restored_ns {
            if now_ns.saturating_sub(restored_ns) >= RESTORED_NS {
                self.lowering = None;
                (self.named, self.since_ns) = (LinkState::Unknown, now_ns);
                return;
            }
        } else if now_ns.saturating_sub(self.seen_ns) >= IDLE_NS {
            self.lowering = None;
            (self.named, self.since_ns) = (LinkState::Unknown, now_ns);
            return;
        } else if lowering.probe_ns <= now_ns && carried_bps >= IN_USE * lowering.capacity_bps {
            lowering.capacity_bps *= 1.0 + lowering.step;
            lowering.step *= 2.0;
            lowering.probe_ns = now_ns.saturating_add(PROBE_NS);
            if lowering.capacity_bps >= told_bps {
                lowering.capacity_bps = told_bps;
                lowering.restored_ns = Some(now_ns);
            }
        }
        self.lowering = Some(lowering);
    }
}

/// Part of a lowered capacity that a link in use carries.
const IN_USE: f64 = 0.5;

impl Lowering {
    fn to(now_ns: u64, capacity_bps: f64) -> Self {
        Self {
            capacity_bps,
            step: STEP,
            probe_ns: now_ns.saturating_add(PAUSE_NS),
            congested_ns: Some(now_ns),
            restored_ns: None,
        }
    }
}

#[cfg(test)]
mod tests;
