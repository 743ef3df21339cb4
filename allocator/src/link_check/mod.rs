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
//! | [`CarriesLess`](LinkState::CarriesLess) | congestion on a link that carries less than [`SHORT`] of its capacity and less than [`GAP`] of what was handed out; or an interface of less than [`SLOW`] of its line rate |
//! | [`CarriesMore`](LinkState::CarriesMore) | more than [`ABOVE`] of its capacity is carried; or an interface of more than [`FAST`] of its line rate |
//! | [`WrongPath`](LinkState::WrongPath) | flows that are told to cross different links between switches meet congestion at once, and no host's link explains it |
//! | [`HasOthersTraffic`](LinkState::HasOthersTraffic) | flows that are paced meet traffic that nobody paces |
//! | [`AsTold`](LinkState::AsTold) | its host tells what it carries, and nothing of the above |
//! | [`Unknown`](LinkState::Unknown) | nobody tells what it carries |
//!
//! Congestion between two hosts is one link's. Nobody is named where a link of their path explains
//! it: one that carries [`PROVEN`] of its capacity, or has others' traffic. Otherwise it is the one
//! that is handed out to the greatest part of its capacity: of a right network's links, that one is
//! full. The sender's uplink is cleared while it has backlogged connections without congestion. So
//! is a link that was full within [`PROVEN_NS`], if another one was not. A probe of a link that is
//! lowered explains congestion beside others. Nobody is named where the receiver's other senders
//! have what they were handed out, and that is most of its load: the link to it serves them, and a
//! queue of the sender's host may hold its flows up. A link between switches is named if it is the
//! only one; its carried rate is not known. Where the end of the way tells nothing, nobody is
//! named, and neither between two switches where the facts know no link: a host's first flows are
//! looked at.
//!
//! A network device that counts what an allowance held up ([`LinkWord::is_held_up`]: Amazon's ENA)
//! says which link it is. If its link carries less by the figures above, it is named before any
//! comparison with others, and whatever the other end tells. Counts without congestion name
//! nothing: an allowance holds up bursts of a few packets, too. Nor do they where others' traffic
//! is on the path: that is named, and lowering would not bind it.
//!
//! # Between switches
//!
//! Pairs of hosts whose own links are clear meet congestion between switches. A host's link is
//! clear if it carried, within [`PROVEN_NS`], [`GAP`] of what it is handed out now. It stays clear
//! while such congestion lasts, and is not asked once a link between switches is named. The
//! sender's is clear, too, while it has backlogged connections without congestion. Nothing else may
//! explain the congestion, nor an allowance of their own links, and the flows have to miss what
//! they were handed out.
//!
//! Such pairs are looked at together, by the switch of their senders, and by that of their
//! receivers. They count where there are [`MIN_ENDS`] senders and receivers or more: one host's
//! link alone would be that of one end. Flows that share a queue meet congestion by turns, so that
//! each pair counts for [`REMEMBER_NS`] beside others that meet it now.
//!
//! - If they are all told to cross one link, that link carries less: a LAG has lost a member, say.
//!   A link of right capacity is overrun only by a flow that is told to be elsewhere.
//! - If no link is common to all, some flows are not where they are told to be. The links that they
//!   are told to cross are a *wrong path*: ECMP hashes otherwise, say. Links that are named so stay
//!   a wrong path while any of the pairs go on.
//!
//! The two are one complaint: it is named [`NAME_NS`] after its begin as a wrong path, and
//! [`NAME_INNER_NS`] after it as a link that carries less.
//!
//! Of several common links, that or those are named which are handed out to the greatest part of
//! their capacity, unless these are more than one path has ([`MAX_HOPS`]): connections between two
//! hosts that take all paths tell none apart. Other congestion of pairs over the same links, or at
//! the same switch if a path is wrong, names no host's link meanwhile.
//!
//! | constant | reason |
//! |---|---|
//! | [`SHORT`] 0.88 | a capacity that is 1.25 times too high is carried to 0.8; what hosts tell is off by 1/64 at most; few flows of TCP fill 0.9 |
//! | [`GAP`] 0.94 | a flow that yields is rated 9/8 of its use, so that it uses 0.89; one that its rate holds back uses 0.97 |
//! | [`ABOVE`] 1.05, [`FAST`] 1.1, [`SLOW`] 0.95 | what is told may be payload, or less framing: 0.95 to 0.99 of the line |
//! | [`MIN_ENDS`] 2 | with one sender or one receiver, its own link explains all; links of two hosts at each end do not break at one time, just after they carried as much |
//! | [`NAME_NS`] 1 s | with a second at the host, half of one between its words and [`SAMPLES`] ticks, a link is named within 5 s, and starts and their first losses are over |
//! | [`NAME_INNER_NS`] 1.5 s | on a wrong path flows that are told to cross one link may meet congestion before the others do |
//! | [`REMEMBER_NS`] 4 s | longer than flows of TCP take turns; shorter than [`CLEAR_NS`] |
//! | [`CLEAR_NS`] 5 s | longer than bursts are apart; shorter than the 10 s in which a state is taken back |
//!
//! A host is named by a daemon's word alone ([`HostFault`]): the daemon has seen the fault for a
//! second. The daemon of another host tells that it has an address in this one's prefixes. That
//! flows are beyond a bound is told by their daemon, if its table is full, or by the allocator, if
//! its own is; it has to stand for [`BEYOND_NS`], and be gone for [`CLEAR_NS`].
//!
//! # Lowering
//!
//! A link that carries less by congestion is lowered to what it carries, by at most
//! [`LinkCheckConfig::max_lowering`] of its capacity or to its baseline, and probed until it
//! carries what was told: see `lowering.rs`. A link that carries more is only named.
//!
//! Work: O(1) for a word, and for each tick O(path) for at most [`MAX_PAIRS`] congested pairs and
//! O(1) for at most [`MAX_LINKS`] links that are named or about to be.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;
use ratewright_topology::{HostId, LinkId};
use rustc_hash::FxBuildHasher;
use serde::Serialize;

mod facts;
mod hosts;
mod lowering;
mod network;

pub use facts::{NetworkFacts, VisitPaths};
pub use hosts::{BEYOND_NS, HostFault};
use hosts::{HostFaults, Teller};
use lowering::{Carriage, Lowering};
use network::CongestedPair;
pub use network::{MAX_HOPS, MIN_ENDS, REMEMBER_NS};

/// Part of its capacity below which a congested link carries less.
pub const SHORT: f64 = 0.88;
/// Part of what was handed out below which a congested link carries less.
pub const GAP: f64 = 0.94;
/// Part of its capacity above which a link carries more.
pub const ABOVE: f64 = 1.05;
/// Part of its line rate from which on its interface's speed says that a link carries more,
pub const FAST: f64 = 1.1;
/// and below which it says that it carries less.
pub const SLOW: f64 = 0.95;
/// Part of its capacity with which a link has proven it,
pub const PROVEN: f64 = 0.92;
/// and time for which the proof counts.
pub const PROVEN_NS: u64 = 60 * SECOND_NS;
/// Part of the most that a link has carried from which on it is carried anew.
pub const RENEWED: f64 = 0.97;
/// Links whose handed-out parts differ by less than this count as equally full.
pub const TIE: f64 = 0.05;
/// Part of a link's capacity that is handed out on a full link between switches.
pub const FULL: f64 = 0.9;
/// Time for which evidence stands before a link is named.
pub const NAME_NS: u64 = SECOND_NS;
/// Time for which evidence that a link between switches carries less stands before: on a wrong path
/// some flows meet congestion before others.
pub const NAME_INNER_NS: u64 = 3 * SECOND_NS / 2;
/// Time without evidence after which a state is taken back,
pub const CLEAR_NS: u64 = 5 * SECOND_NS;
/// and of a congested link that is not in use since.
pub const IDLE_NS: u64 = 60 * SECOND_NS;
/// Ticks of which what was handed out counts with its least: what a host tells is a mean of one
/// second that may have ended a second ago.
pub const SAMPLES: usize = 3;
/// Interval of ticks.
pub const TICK_NS: u64 = SECOND_NS / 2;
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

impl LinkCheckConfig {
    /// Returns the least capacity to which a link may be lowered, in bit/s.
    fn floor_bps(&self, told_bps: f64, baseline_bps: Option<f64>) -> f64 {
        let floor_bps = (1.0 - self.max_lowering) * told_bps;
        match baseline_bps {
            Some(baseline_bps) if self.max_lowering > 0.0 => {
                floor_bps.min(lowering::BELOW_BASELINE * baseline_bps)
            }
            _ => floor_bps,
        }
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
    /// Flows that are told to cross it take another path.
    WrongPath,
    /// Traffic that nobody paces is on it.
    HasOthersTraffic,
}

impl LinkState {
    /// States that are named.
    pub const NAMED: [Self; 4] = [
        Self::CarriesLess,
        Self::CarriesMore,
        Self::WrongPath,
        Self::HasOthersTraffic,
    ];

    /// Label in metrics and JSON.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::AsTold => "as_told",
            Self::CarriesLess => "carries_less",
            Self::CarriesMore => "carries_more",
            Self::WrongPath => "wrong_path",
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
    /// The interface counts packets of the last second that an allowance held up.
    pub is_held_up: bool,
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
    /// Other hosts in whose prefixes an address of it is.
    pub in_prefixes_of: Vec<HostId>,
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
    /// It carries less because of an allowance, by its interface's counters.
    pub by_allowance: bool,
    /// Time for which a state that is named has stood, in milliseconds; 0 of any other.
    pub for_ms: u64,
}

/// Facts that the check asks for.
pub trait LinkFacts {
    /// Returns the capacity of a link as it was told, in bit/s, as rates count.
    fn told_bps(&self, link: LinkId) -> f64;
    /// Returns the part of that which the link always has, in bit/s, where the rest is credit.
    fn baseline_bps(&self, _: LinkId) -> Option<f64> {
        None
    }
    /// Returns all that a link was told to carry, in bit/s: what a device tells as its speed.
    fn line_rate_bps(&self, link: LinkId) -> f64;
    /// Returns what was handed out over a link within the last second, in bit/s.
    fn handed_out_bps(&self, link: LinkId) -> f64;
    /// Returns the same of the second before a time, which is at most a second ago.
    fn handed_out_before_bps(&self, link: LinkId, at_ns: u64) -> f64;
    /// Returns the links from a host and to it.
    fn access(&self, host: HostId) -> Option<(LinkId, LinkId)>;
    /// Returns the number of the switch at the other end of these.
    fn switch(&self, host: HostId) -> Option<u32>;
    /// Visits the links between switches that flows from one host to another cross.
    fn inner_links(&self, from: HostId, to: HostId, visit: &mut dyn FnMut(LinkId));
}

/// Capacity of a link as it was told.
#[derive(Debug, Clone, Copy)]
struct Told {
    /// Capacity as rates count, in bit/s.
    bps: f64,
    /// All that it carries, in bit/s.
    line_rate_bps: f64,
}

impl Told {
    fn of(link: LinkId, facts: &dyn LinkFacts) -> Self {
        Self {
            bps: facts.told_bps(link),
            line_rate_bps: facts.line_rate_bps(link),
        }
    }
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

/// Load of a link or of several: handed out, and carried.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    handed_out_bps: f64,
    carried_bps: f64,
}

/// Loads of the links from all senders that meet congestion to a host, by the link to it.
type Complaints = BTreeMap<LinkId, Load>;

impl Load {
    fn add(&mut self, other: Load) {
        self.handed_out_bps += other.handed_out_bps;
        self.carried_bps += other.carried_bps;
    }

    /// Returns true if most of this load is others' than that of some senders, and they have it.
    fn serves_all_but(self, senders: Load) -> bool {
        let handed_out_bps = self.handed_out_bps - senders.handed_out_bps;
        let carried_bps = self.carried_bps - senders.carried_bps;
        handed_out_bps > self.handed_out_bps / 2.0 && carried_bps >= SHORT * handed_out_bps
    }
}

/// Figures of one link.
#[derive(Debug, Clone, Copy, Default)]
struct Checked {
    word: Option<LinkWord>,
    /// Time of the first word with this carried rate.
    told_ns: u64,
    has_others: bool,
    /// The session of the host at its end is over.
    is_left: bool,
    /// Last time at which congestion was this link's,
    congested_ns: Option<u64>,
    /// and its interface counted packets that an allowance had held up.
    by_allowance: bool,
    /// Last time at which flows that are told to cross it took another path.
    misled_ns: Option<u64>,
    /// Last time at which it was judged.
    judged_ns: u64,
    /// Last time at which it carried its capacity.
    proven_ns: Option<u64>,
    /// Most that it has carried within [`PROVEN_NS`], in bit/s, after the time of that.
    best: (u64, f64),
    /// Loads handed out and carried in the last ticks in which it was in question, and the time of
    /// the newest.
    handed_out_bps: [f64; SAMPLES],
    sampled_bps: [f64; SAMPLES],
    sampled_ns: u64,
    /// State that is named; [`LinkState::Unknown`] without one.
    named: LinkState,
    since_ns: u64,
    /// Last time with evidence for it, and what was carried then.
    seen_ns: u64,
    seen_bps: f64,
    /// Other state that the evidence asks for, and since when.
    asked: Option<(LinkState, u64)>,
    lowering: Lowering,
}

/// Check of all links.
#[derive(Debug, Default)]
pub struct LinkCheck {
    config: LinkCheckConfig,
    links: IndexMap<u32, Checked, FxBuildHasher>,
    /// Hosts with a word about congestion.
    congested: BTreeMap<u32, (Vec<HostId>, bool)>,
    /// Pairs of hosts that met congestion between switches within [`REMEMBER_NS`], and when.
    between: BTreeMap<(u32, u32), u64>,
    faults: HostFaults,
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

    /// Forgets all words and states, because links have other numbers, and hands over what is named
    /// no more. Lowered capacities end, too; no change says so.
    pub fn restart(&mut self, facts: &dyn LinkFacts, changes: &mut dyn FnMut(LinkChange)) {
        let fresh = Self::new(self.config.clone());
        let before = std::mem::replace(self, fresh);
        for (link, state) in before.named() {
            changes(LinkChange::State {
                link,
                before: state,
                evidence: self.evidence(link, facts),
            });
        }
        for (host, fault) in before.faults() {
            let has = false;
            changes(LinkChange::Fault { host, fault, has });
        }
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
            let told = Told::of(link, facts);
            let checked = self.links.entry(link.0).or_default();
            if checked.carried_bps() != word.carried_bps {
                checked.told_ns = now_ns;
            }
            (checked.word, checked.is_left) = (Some(word), false);
            if told.bps > 0.0 && word.carried_bps >= Some(PROVEN * told.bps) {
                checked.proven_ns = Some(now_ns);
            }
            checked.note_carried(now_ns);
            if checked.evidence_of(told).is_some() {
                self.activate(link);
            }
        }
        self.faults
            .tell(now_ns, host, faults_of(host, &word, facts));
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
        self.faults.tell(0, host, BTreeSet::new());
        self.set_flows_beyond(0, host, false);
        for link in access {
            if let Some(checked) = self.links.get_mut(&link.0) {
                (checked.word, checked.is_left) = (None, true);
            }
        }
    }

    /// Notes that flows of a host have no rate because the allocator holds as many as it may, or
    /// that it has none such any more. O(log faults).
    pub fn set_flows_beyond(&mut self, now_ns: u64, host: HostId, has: bool) {
        let key = (host.0, HostFault::FlowsBeyondBound);
        self.faults.change(now_ns, Teller::Allocator, key, has);
    }

    /// Returns the faults that are named, in the order of the hosts' numbers.
    pub fn faults(&self) -> impl Iterator<Item = (HostId, HostFault)> {
        self.faults.named()
    }

    /// Returns the faults of a host that are named.
    pub fn faults_of(&self, host: HostId) -> impl Iterator<Item = HostFault> {
        self.faults.named_of(host)
    }

    /// Returns the number of hosts with each fault, in the order of [`HostFault::ALL`].
    #[must_use]
    pub fn fault_counts(&self) -> [u64; HostFault::ALL.len()] {
        self.faults.named_counts()
    }

    /// Returns the first other host that tells of a host's fault.
    #[must_use]
    pub fn fault_seen_at(&self, host: HostId, fault: HostFault) -> Option<HostId> {
        self.faults.seen_at(host, fault)
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
            !self.active.is_empty() || !self.congested.is_empty() || self.faults.is_at_work();
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
        self.faults.tick(now_ns, changes);
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
        let mut congested = Vec::new();
        for (from, to, has_uncongested) in pairs {
            let Some(pair) = CongestedPair::of(from, to, has_uncongested, facts) else {
                continue;
            };
            if pair.inner.is_empty() && facts.switch(from) != facts.switch(to) {
                // Nobody knows which links its flows cross: it may be that of any of them.
                continue;
            }
            for link in [pair.uplink, pair.downlink] {
                let sampled = self.links.entry(link.0).or_default();
                sampled.sample(now_ns, facts.handed_out_bps(link));
            }
            congested.push(pair);
        }
        let mut complaints = Complaints::new();
        for pair in &congested {
            let at_ns = self.told_ns(now_ns, pair.downlink);
            let sender = self.load(pair.uplink, at_ns, facts);
            complaints.entry(pair.downlink).or_default().add(sender);
        }
        let in_network = self.find_in_network(now_ns, &congested, facts);
        let mut found: Vec<LinkId> = in_network.less.into_iter().collect();
        for (pair, is_explained) in congested.iter().zip(in_network.explained) {
            if !is_explained {
                self.congested_of(pair, now_ns, facts, &complaints, &mut found);
            }
        }
        for link in in_network.clear {
            self.links.entry(link.0).or_default().best.0 = now_ns;
        }
        for link in found {
            let checked = self.links.entry(link.0).or_default();
            checked.congested_ns = Some(now_ns);
            checked.by_allowance = checked.is_held_up();
            self.activate(link);
        }
        for link in in_network.misled {
            self.links.entry(link.0).or_default().misled_ns = Some(now_ns);
            self.activate(link);
        }
    }

    /// Appends the links that the congestion from one host to another may be of.
    fn congested_of(
        &self,
        pair: &CongestedPair,
        now_ns: u64,
        facts: &dyn LinkFacts,
        complaints: &Complaints,
        found: &mut Vec<LinkId>,
    ) {
        let &CongestedPair {
            uplink,
            downlink,
            has_uncongested,
            ..
        } = pair;
        let mut candidates = Vec::new();
        if !has_uncongested {
            candidates.push((uplink, true));
        }
        candidates.push((downlink, true));
        candidates.extend(pair.inner.iter().map(|&link| (link, false)));
        let explains = |link: LinkId| self.has_others(link) || self.is_full(link, facts);
        if explains(uplink) || candidates.iter().any(|&(link, _)| explains(link)) {
            return;
        }
        let held_up = |&&(link, _): &&(LinkId, bool)| self.is_held_up_short(link, facts);
        let before = found.len();
        found.extend(candidates.iter().filter(held_up).map(|&(link, _)| link));
        if found.len() > before {
            return;
        }
        let of_senders = complaints.get(&downlink).copied().unwrap_or_default();
        let load = self.load(downlink, self.told_ns(now_ns, downlink), facts);
        if load.serves_all_but(of_senders) {
            return;
        }
        let part = |link: LinkId| self.handed_out_part(link, facts);
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
            let is_lowered = |&(link, _): &(LinkId, bool)| self.lowered_bps(link).is_some();
            if candidates.iter().any(is_lowered) {
                candidates.retain(is_lowered);
            }
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

    /// Returns the time up to which the host at a link's end has told what it carried. A word that
    /// still stands is told anew once this has changed.
    fn told_ns(&self, now_ns: u64, link: LinkId) -> u64 {
        let told_ns = self.links.get(&link.0).map_or(0, |known| known.told_ns);
        told_ns.max(now_ns.saturating_sub(SECOND_NS))
    }

    /// Returns what a link carries, and what was handed out on it by the time `at_ns`.
    fn load(&self, link: LinkId, at_ns: u64, facts: &dyn LinkFacts) -> Load {
        let carried_bps = self.links.get(&link.0).and_then(Checked::carried_bps);
        Load {
            handed_out_bps: facts.handed_out_before_bps(link, at_ns),
            carried_bps: carried_bps.unwrap_or(0.0),
        }
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

    /// Returns the part of a link's capacity in force that is handed out.
    fn handed_out_part(&self, link: LinkId, facts: &dyn LinkFacts) -> f64 {
        let capacity_bps = self.capacity_bps(link, facts);
        if capacity_bps > 0.0 {
            facts.handed_out_bps(link) / capacity_bps
        } else {
            0.0
        }
    }

    fn is_short(&self, link: LinkId, facts: &dyn LinkFacts) -> bool {
        let Some((known, carried_bps)) =
            (self.links.get(&link.0)).and_then(|known| Some((known, known.carried_bps()?)))
        else {
            return false;
        };
        carried_bps < SHORT * self.capacity_bps(link, facts) && known.misses()
    }

    /// Returns true if an allowance holds up what a link would carry.
    fn is_held_up_short(&self, link: LinkId, facts: &dyn LinkFacts) -> bool {
        let known = self.links.get(&link.0);
        known.is_some_and(Checked::is_held_up) && self.is_short(link, facts)
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
        let told = Told::of(link, facts);
        let floor_bps = self.config.floor_bps(told.bps, facts.baseline_bps(link));
        let Some(checked) = self.links.get_mut(&link.0) else {
            self.active.remove(&link.0);
            return;
        };
        let before = (checked.named, checked.lowered_bps());
        let evidence = checked.evidence_of(told);
        checked.name(now_ns, evidence);
        checked.lower(now_ns, told.bps, floor_bps);
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
            by_allowance: state == LinkState::CarriesLess && known.by_allowance,
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

    fn is_held_up(&self) -> bool {
        self.word.is_some_and(|word| word.is_held_up)
    }

    fn lowered_bps(&self) -> Option<f64> {
        self.lowering.capacity_bps()
    }

    /// Notes the most that it carried. What is nearly as much renews it.
    fn note_carried(&mut self, now_ns: u64) {
        let Some(carried_bps) = self.carried_bps() else {
            return;
        };
        let (at_ns, best_bps) = self.best;
        let is_old = now_ns.saturating_sub(at_ns) >= PROVEN_NS;
        if is_old || carried_bps >= RENEWED * best_bps {
            self.best = (now_ns, carried_bps);
        }
    }

    /// Notes what was handed out and carried. A link that was not in question begins anew.
    fn sample(&mut self, now_ns: u64, handed_out_bps: f64) {
        if self.sampled_ns == now_ns {
            return;
        }
        if now_ns.saturating_sub(self.sampled_ns) > 2 * TICK_NS {
            (self.handed_out_bps, self.sampled_bps) = Default::default();
        }
        self.sampled_ns = now_ns;
        self.handed_out_bps.rotate_right(1);
        self.handed_out_bps[0] = handed_out_bps;
        self.sampled_bps.rotate_right(1);
        self.sampled_bps[0] = self.carried_bps().unwrap_or(0.0);
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

    /// Returns true if flows that are told to cross it took another path since then.
    fn is_misled(&self) -> bool {
        self.misled_ns > Some(self.judged_ns)
    }

    /// Returns the state that the evidence of this moment asks for, if it asks for one.
    fn evidence_of(&self, told: Told) -> Option<LinkState> {
        if told.bps <= 0.0 {
            // A dead link carries nothing, as it was told.
            return None;
        }
        let word = self.word.unwrap_or_default();
        let is_slow = 0.0 < word.speed_bps && word.speed_bps < SLOW * told.line_rate_bps;
        let is_fast = word.speed_bps > FAST * told.line_rate_bps;
        if self.is_congested() || is_slow {
            Some(LinkState::CarriesLess)
        } else if word.carried_bps > Some(ABOVE * told.bps) || is_fast {
            Some(LinkState::CarriesMore)
        } else if self.is_misled() {
            Some(LinkState::WrongPath)
        } else if self.has_others {
            Some(LinkState::HasOthersTraffic)
        } else {
            None
        }
    }

    /// Returns the time for which evidence of a state has to stand.
    fn name_ns(&self, state: LinkState) -> u64 {
        if state == LinkState::CarriesLess && self.word.is_none() {
            NAME_INNER_NS
        } else {
            NAME_NS
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
            (Some(state), Some((asked, since_ns))) if state == asked || are_one(state, asked) => {
                Some((state, since_ns))
            }
            (Some(state), _) => Some((state, now_ns)),
            (None, _) => None,
        };
        if let Some((state, since_ns)) = self.asked
            && now_ns.saturating_sub(since_ns) >= self.name_ns(state)
            // A probe that goes well for a moment does not end it.
            && self.lowered_bps().is_none()
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
        let is_seen = now_ns.saturating_sub(self.seen_ns) < clear_ns;
        if is_over || !(is_seen || self.lowered_bps().is_some()) {
            (self.named, self.since_ns) = (LinkState::Unknown, now_ns);
            self.lowering.end();
        }
    }

    /// Lowers, probes or restores the capacity.
    fn lower(&mut self, now_ns: u64, told_bps: f64, floor_bps: f64) {
        let is_less = self.named == LinkState::CarriesLess;
        let Some(carried_bps) = self.carried_bps().filter(|_| is_less) else {
            self.lowering.end();
            return;
        };
        let carriage = Carriage {
            told_bps,
            floor_bps,
            carried_bps,
            most_bps: self.sampled_bps.iter().copied().fold(carried_bps, f64::max),
            is_congested: self.is_congested(),
            seen_ns: self.seen_ns,
        };
        if self.lowering.judge(now_ns, &carriage) {
            (self.named, self.since_ns) = (LinkState::Unknown, now_ns);
        }
    }
}

/// Returns true if two states are of one complaint, which goes on if further pairs of hosts make it
/// another: congestion between switches.
fn are_one(one: LinkState, other: LinkState) -> bool {
    let of_paths = [LinkState::CarriesLess, LinkState::WrongPath];
    of_paths.contains(&one) && of_paths.contains(&other)
}

/// Returns the faults that a host's word is about: its own, and those of hosts in whose prefixes it
/// has addresses.
fn faults_of(host: HostId, word: &HostWord, facts: &dyn LinkFacts) -> BTreeSet<(u32, HostFault)> {
    let own = word.faults.iter().map(|&fault| (host.0, fault));
    let others = word.in_prefixes_of.iter();
    let others = others.filter(|&&other| other != host && facts.access(other).is_some());
    own.chain(others.map(|other| (other.0, HostFault::PrefixOfSeveralHosts)))
        .collect()
}

#[cfg(test)]
mod tests;
