//! Feeds: measurements of receivers, senders and links that tell the allocator of traffic which it
//! does not schedule.
//!
//! A [`Telemetry`] message arrives from a host's session or from a collector of switches. The
//! service and the simulator hand it to [`Feeds::take`], and call [`Feeds::apply`] when
//! [`Feeds::next_due_ns`] says so. Every reading ends in one of three things: a link's capacity, a
//! link's dummy flow, or a flow's demand. No clock, no socket and no lock stands here.
//!
//! | module | what |
//! |---|---|
//! | `external` | external traffic per link, told or measured, as capacity and dummy flows |
//! | `receivers` | receiver counts: unknown senders of a receiver |
//! | `credit` | credit: demand of pairs and flows, congested senders |
//! | `int` | in-band telemetry: external load, standing queues, limits below the bandwidth |
//! | [`gnmic`] | readings of switches out of events of a collector |
//! | [`gain`] | gain of the loop through a reading, and its bounds |
//! | `effect` | what all readings of one link come to |
//! | `hosts` | when each host was heard, and which of its words stand |
//! | `standing` | standing readings of links, against what was handed out |
//! | `handed_out` | what the allocator handed out on every link |
//! | `link_map` | map from links to values |
//! | `links` | readings of one link, and who may tell of it |
//! | `status` | figures for operators |
//!
//! # What a message must hold
//!
//! | entry | reporter | contents |
//! |---|---|---|
//! | `ReceiverCount` | the receiver, a collector | all senders with bytes under way to the receiver, announced ones included |
//! | `CreditState` | the sender or the receiver, a collector; of a scheduled flow not the receiver | counters that only grow while the pair exists; the entry repeats in every message while it is active |
//! | `LinkInt` | a host at one end, a collector | counters of one interface; two readings make a measurement, or one with its interval |
//!
//! A reporter repeats its measurements at every [`FeedsConfig::interval_ns`], and at once when a
//! sender begins or is announced. A host may tell a **state** instead ([`TelemetrySender`]):
//! entries that stand until others replace them, as long as any message of the host comes.
//! Silence is no measurement: the effect of the newest one fades from [`FeedsConfig::fresh_ns`] to
//! [`FeedsConfig::max_age_ns`]. A counter that falls begins anew. `age_ns` is the time from the
//! measurement to the sending of the message.
//!
//! # Contradictions
//!
//! Of two fresh readings of one quantity, the one that takes less of the link stands. A wrong
//! reading beside a right one thus moves the answer towards the one without feeds, never beyond.
//! Once one of the two fades, the newer stands alone, and fades by its own age.
//!
//! A host moves its own two links and its own flows alone, whatever it tells. Of a pair's
//! credit, the sender's word counts at its uplink, the receiver's at its downlink; a collector's
//! counts at both, where the host itself says nothing.
//!
//! [`TelemetrySender`]: ratewright_proto::telemetry::TelemetrySender

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ratewright_proto::telemetry::{CreditState, ReceiverCount, Telemetry};
use ratewright_topology::{HostId, LinkId, Topology};
use rustc_hash::FxHashMap;

use crate::engine::EngineEvent;

mod config;
mod credit;
mod effect;
mod external;
pub mod gain;
pub mod gnmic;
mod handed_out;
mod hosts;
mod int;
mod link_map;
mod links;
mod receivers;
mod standing;
mod status;

pub use config::FeedsConfig;
pub use external::{ExternalTraffic, LinkTraffic, MeasuredLoad, ToldLoad};
pub use status::{Feed, FeedStatus, FeedsStatus, LinkEffect, Refused};

use credit::{CreditTaken, Credits, PairKey};
use effect::Evaluation;
use handed_out::HandedOut;
use hosts::Hosts;
use int::Reading;
use link_map::LinkMap;
use links::{LinkReadings, host_of};
use receivers::UnknownSenders;
use standing::Standing;

/// Maximum number of links that one [`Feeds::apply`] evaluates; the others follow in the next one.
pub const MAX_LINKS: usize = 4_096;

/// Maximum number of flows whose demand one [`Feeds::apply`] changes.
pub const MAX_DEMAND_CHANGES: usize = 4_096;

/// Relative change of a flow's demand below which its owner is told nothing.
const DEMAND_HYSTERESIS: f64 = 0.1;

/// Minimum demand of a flow that credit bounds, as a share of its sender's uplink.
const MIN_DEMAND_SHARE: f64 = 0.01;
/// Interval of the loads of which means of a second are made,
const MEANS_NS: u64 = 20_000_000;
/// time for which they become one,
const MEANS_GRAIN_NS: u64 = 100_000_000;
/// time for which they are kept: a mean of a second may have ended a second ago,
const MEANS_SPAN_NS: u64 = 2_000_000_000;
/// and time without any after which the history begins anew.
const MEANS_GAP_NS: u64 = 1_000_000_000;

/// Sender of a telemetry message, as its session or its configuration proves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reporter {
    /// A host. It may tell of itself as a sender and a receiver, and of its own two links.
    Host(HostId),
    /// The configured collector of switches. It may tell of everything.
    Collector,
}

/// Change that a feed asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedChange {
    /// An event for the engine: another capacity of a link, or its dummy flow.
    Engine(EngineEvent),
    /// [`Feeds::demand_bps`] of a flow has changed: the owner of the flow starts it again with the
    /// lesser of this and its own demand.
    Demand {
        /// The sending host.
        sender: HostId,
        /// The flow's id at that host.
        flow: u32,
    },
}

/// Bound of a scheduled flow's demand.
#[derive(Debug, Clone, Copy)]
struct FlowBound {
    receiver: u32,
    applied_bps: f64,
    is_dirty: bool,
}

/// Newest measurements and their effects on links and flows.
#[derive(Debug)]
pub struct Feeds {
    config: FeedsConfig,
    external: ExternalTraffic,
    links: Vec<LinkReadings>,
    handed_out: HandedOut,
    /// Likewise, further back, for whoever compares it with means of a second.
    handed_out_before: HandedOut,
    hosts: Hosts,
    standing: Vec<Standing>,
    /// Links of `standing` that are compared with what was handed out.
    standing_links: usize,
    /// Part of `standing` that is compared next.
    turn: usize,
    /// Links that differ; empty between calls.
    differing: Vec<usize>,
    /// End of the time in which what is handed out has to be known: a reporter that cannot tell
    /// managed traffic apart has been heard.
    needs_loads_until_ns: u64,
    senders: Vec<UnknownSenders>,
    credits: Credits,
    bounds: FxHashMap<(u32, u32), FlowBound>,
    dirty_bounds: VecDeque<(u32, u32)>,
    dirty: VecDeque<LinkId>,
    effects: LinkMap<LinkEffect>,
    /// Links with an effect by readings that do not stand, and links where the collector's reading
    /// keeps the host's from one.
    ageing: BTreeSet<LinkId>,
    applied_ns: u64,
    /// A sender began or was announced: it does not wait for the interval.
    is_urgent: bool,
    figures: [FeedStatus; 3],
    contradictions: BTreeMap<&'static str, u64>,
}

impl Feeds {
    /// Creates feeds without a measurement, for the links and hosts of a topology.
    #[must_use]
    pub fn new(config: FeedsConfig, topology: &Topology) -> Self {
        let mut feeds = Self {
            external: ExternalTraffic::new(config.external_share),
            config,
            links: Vec::new(),
            handed_out: HandedOut::default(),
            handed_out_before: HandedOut::with_grain_ns(MEANS_GRAIN_NS),
            hosts: Hosts::default(),
            standing: Vec::new(),
            standing_links: 0,
            turn: 0,
            differing: Vec::new(),
            needs_loads_until_ns: 0,
            senders: Vec::new(),
            credits: Credits::default(),
            bounds: FxHashMap::default(),
            dirty_bounds: VecDeque::new(),
            dirty: VecDeque::new(),
            effects: LinkMap::default(),
            ageing: BTreeSet::new(),
            applied_ns: 0,
            is_urgent: false,
            figures: <[FeedStatus; 3]>::default(),
            contradictions: BTreeMap::new(),
        };
        feeds.forget(topology);
        feeds
    }

    /// Forgets all measurements.
    fn forget(&mut self, topology: &Topology) {
        let (links, hosts) = (topology.links().len(), topology.hosts().len());
        self.links = vec![LinkReadings::default(); links];
        self.handed_out.clear();
        self.handed_out_before.clear();
        self.hosts = Hosts::new(hosts);
        self.standing = vec![Standing::default(); links];
        self.standing_links = 0;
        self.senders = vec![UnknownSenders::default(); hosts];
        self.dirty.clear();
        self.effects.clear();
        self.ageing.clear();
        for figures in &mut self.figures {
            figures.moved_bps = 0.0;
        }
        self.credits = Credits::default();
        self.bounds.clear();
        self.dirty_bounds.clear();
    }

    /// Puts another configuration in force. Effects of readings that are off end with the next
    /// [`apply`](Self::apply).
    pub fn reconfigure(&mut self, config: FeedsConfig) {
        self.external.set_share(config.external_share);
        self.config = config;
        let links: Vec<LinkId> = self.effects.links_from(LinkId(0)).collect();
        for link in links {
            self.mark(link);
        }
        self.is_urgent = true;
    }

    /// Moves to another topology. Measurements are forgotten, and their reporters repeat them; what
    /// operators told moves to the links between nodes of the same names.
    pub fn replace_topology(&mut self, before: &Topology, after: &Topology) {
        self.external.move_to(before, after);
        self.forget(after);
    }

    /// Returns the configuration in force.
    #[must_use]
    pub fn config(&self) -> &FeedsConfig {
        &self.config
    }

    /// Returns the external traffic of all links.
    #[must_use]
    pub fn external(&self) -> &ExternalTraffic {
        &self.external
    }

    /// Returns the external traffic of all links, for what operators tell.
    pub fn external_mut(&mut self) -> &mut ExternalTraffic {
        &mut self.external
    }

    /// Takes a message. Entries that the reporter may not send are refused and counted; the others
    /// count. `is_managed` tells if the allocator schedules the flows of a host. O(entries).
    pub fn take(
        &mut self,
        now_ns: u64,
        reporter: Reporter,
        telemetry: &Telemetry,
        topology: &Topology,
        is_managed: impl Fn(HostId) -> bool,
    ) {
        if let Reporter::Host(host) = reporter {
            if telemetry.whole {
                self.hosts.take_back(host);
                // What does not stand any more begins to age.
                self.revive(host, topology);
            }
            self.hear(now_ns, host, topology);
        }
        for count in &telemetry.receivers {
            let taken = self.take_count(now_ns, reporter, count, topology, &is_managed);
            self.count(Feed::Receivers, count.age_ns, taken);
        }
        for credit in &telemetry.credits {
            let taken = self.take_credit(now_ns, reporter, credit, topology);
            self.count(Feed::Credit, credit.age_ns, taken);
        }
        for link in &telemetry.links {
            let taken = self.take_int(now_ns, reporter, link, topology);
            self.count(Feed::Int, link.age_ns, taken);
        }
    }

    /// Takes a host's word that what it told as a state still stands, as an empty message says it.
    pub fn hear(&mut self, now_ns: u64, host: HostId, topology: &Topology) {
        if self.hosts.hear(now_ns, host, self.config.fresh_ns) {
            self.revive(host, topology);
        }
    }

    /// Marks the links of a host whose words stand again, or do not stand any more.
    #[cold]
    fn revive(&mut self, host: HostId, topology: &Topology) {
        if host.index() < self.senders.len() {
            self.mark(topology.host_uplink(host));
            self.mark(topology.host_downlink(host));
        }
    }

    /// Returns the generation of a reporter that tells a state, otherwise 0.
    fn generation_of(&self, reporter: Reporter, tells_state: bool) -> u32 {
        match reporter {
            Reporter::Host(host) if tells_state => self.hosts.generation(host),
            _ => 0,
        }
    }

    fn count(&mut self, feed: Feed, age_ns: u64, taken: Result<(), Refused>) {
        let figures = &mut self.figures[feed as usize];
        match taken {
            Ok(()) => figures.aged(age_ns),
            Err(reason) => figures.refused(reason),
        }
    }

    fn is_on(&self, feed: Feed, age_ns: u64) -> Result<(), Refused> {
        let on = match feed {
            Feed::Receivers => self.config.receivers,
            Feed::Credit => self.config.credit,
            Feed::Int => self.config.int,
        };
        if !on {
            Err(Refused::Off)
        } else if age_ns >= self.config.max_age_ns {
            Err(Refused::TooOld)
        } else {
            Ok(())
        }
    }

    fn take_count(
        &mut self,
        now_ns: u64,
        reporter: Reporter,
        count: &ReceiverCount,
        topology: &Topology,
        is_managed: impl Fn(HostId) -> bool,
    ) -> Result<(), Refused> {
        let receiver = HostId(count.receiver);
        let senders = self
            .senders
            .get_mut(receiver.index())
            .ok_or(Refused::Unknown)?;
        if let Reporter::Host(host) = reporter
            && host != receiver
        {
            return Err(Refused::NotOfReporter);
        }
        let before = senders.flows;
        let at_ns = now_ns.saturating_sub(count.age_ns);
        if at_ns < senders.at_ns {
            // A later message has overtaken it.
            return self.is_on(Feed::Receivers, count.age_ns);
        }
        self.is_on(Feed::Receivers, count.age_ns)?;
        let generation = self.generation_of(reporter, count.stands);
        let senders = &mut self.senders[receiver.index()];
        let grew = senders.take(at_ns, generation, count, is_managed);
        let changed = grew || senders.flows != before;
        let link = topology.host_downlink(receiver);
        self.touch(link, at_ns);
        if grew {
            // The measured load does not know the new senders yet.
            self.links[link.index()].dummy_bps = 0.0;
            self.is_urgent = true;
        }
        let counts = self.senders[receiver.index()].flows > 0.0;
        if changed || (counts && self.is_faded(now_ns, link)) {
            self.mark(link);
        }
        Ok(())
    }

    fn take_credit(
        &mut self,
        now_ns: u64,
        reporter: Reporter,
        credit: &CreditState,
        topology: &Topology,
    ) -> Result<(), Refused> {
        let (sender, receiver) = (HostId(credit.sender), HostId(credit.receiver));
        let hosts = self.senders.len();
        if sender.index() >= hosts || receiver.index() >= hosts {
            return Err(Refused::Unknown);
        }
        let host = match reporter {
            Reporter::Host(host) => Some(host),
            Reporter::Collector => None,
        };
        // A receiver does not know its senders' flow numbers, and could bound another one's flow.
        let may =
            host.is_none_or(|host| host == sender || (host == receiver && credit.flow.is_none()));
        if !may {
            return Err(Refused::NotOfReporter);
        }
        self.is_on(Feed::Credit, credit.age_ns)?;
        let at_ns = now_ns.saturating_sub(credit.age_ns);
        match self
            .credits
            .take(at_ns, host, credit, self.config.max_age_ns)
        {
            CreditTaken::Full => return Err(Refused::TooMany),
            CreditTaken::External => {
                for link in [
                    topology.host_uplink(sender),
                    topology.host_downlink(receiver),
                ] {
                    self.touch(link, at_ns);
                    self.mark(link);
                }
            }
            CreditTaken::Flow(flow) => self.bound(now_ns, credit, flow, topology),
        }
        Ok(())
    }

    /// Bounds the demand of a scheduled flow by its credit.
    fn bound(&mut self, now_ns: u64, credit: &CreditState, flow: u32, topology: &Topology) {
        let key = (credit.sender, flow);
        let receiver = credit.receiver;
        let bound = self.bounds.entry(key).or_insert(FlowBound {
            receiver,
            applied_bps: f64::INFINITY,
            is_dirty: false,
        });
        bound.receiver = receiver;
        let (before_bps, is_dirty) = (bound.applied_bps, bound.is_dirty);
        let wanted_bps = self.wanted_demand_bps(now_ns, key, topology);
        if wanted_bps.is_infinite() && before_bps.is_infinite() && !is_dirty {
            // Its credit moves nothing.
            self.bounds.remove(&key);
            return;
        }
        let moved = (wanted_bps.is_infinite() != before_bps.is_infinite())
            || (wanted_bps - before_bps).abs() > DEMAND_HYSTERESIS * before_bps;
        if moved {
            self.mark_bound(key);
        }
    }

    fn mark_bound(&mut self, key: (u32, u32)) {
        if let Some(bound) = self.bounds.get_mut(&key)
            && !std::mem::replace(&mut bound.is_dirty, true)
        {
            self.dirty_bounds.push_back(key);
        }
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "capacities are far below 2^53 bit/s"
    )]
    fn wanted_demand_bps(&self, now_ns: u64, key: (u32, u32), topology: &Topology) -> f64 {
        let Some(bound) = self.bounds.get(&key) else {
            return f64::INFINITY;
        };
        let told_by = |reporter| {
            self.credits.flow_demand(PairKey {
                reporter,
                sender: key.0,
                receiver: bound.receiver,
                flow: Some(key.1),
            })
        };
        let Some((demand_bps, at_ns)) = told_by(Some(key.0)).or_else(|| told_by(None)) else {
            return f64::INFINITY;
        };
        let weight = self.weight(now_ns, at_ns);
        if weight == 0.0 {
            return f64::INFINITY;
        }
        let uplink = topology.host_uplink(HostId(key.0));
        let min_bps = MIN_DEMAND_SHARE * topology.effective_capacity_bps(uplink) as f64;
        // A bound that fades grows without limit.
        (demand_bps / weight).max(min_bps)
    }

    /// Returns true if a link's effect has ended or fades: a new measurement then counts, although
    /// it says what the one before said.
    fn is_faded(&self, now_ns: u64, link: LinkId) -> bool {
        let effect = self.effects.get(link);
        effect.is_none_or(|effect| effect.oldest_ns.saturating_add(self.config.fresh_ns) < now_ns)
    }

    fn touch(&mut self, link: LinkId, at_ns: u64) {
        let newest_ns = &mut self.links[link.index()].newest_ns;
        *newest_ns = (*newest_ns).max(at_ns);
    }

    /// Puts a link into the queue of those that are evaluated, once.
    fn mark(&mut self, link: LinkId) {
        mark(&mut self.links, &mut self.dirty, link);
    }

    /// Takes the load that the engine allocated to every link, in bit/s, by link index. The caller
    /// calls it after iterations, at least once per [`FeedsConfig::interval_ns`] while rates move.
    /// The vector becomes that of an old call, or empty. O(1), unless more than 32 calls come
    /// within the maximum age.
    pub fn observe(&mut self, now_ns: u64, loads_bps: &mut Vec<f64>) {
        // What is read again lies some intervals back.
        let span_ns = self.config.max_age_ns + 4 * self.config.interval_ns;
        self.handed_out.observe(now_ns, span_ns, loads_bps);
    }

    /// Takes the same for means of a second that ended up to a second ago. The caller calls it at
    /// [`next_means_ns`](Self::next_means_ns) while somebody asks for such means. O(links).
    pub fn observe_for_means(&mut self, now_ns: u64, loads_bps: &[f64]) {
        if now_ns.saturating_sub(self.means_ns()) > MEANS_GAP_NS {
            // Nobody has asked meanwhile.
            self.handed_out_before.clear();
        }
        let mut loads_bps = loads_bps.to_vec();
        self.handed_out_before
            .observe(now_ns, MEANS_SPAN_NS, &mut loads_bps);
    }

    /// Returns the time of the next [`observe_for_means`](Self::observe_for_means), if one is
    /// needed.
    #[must_use]
    pub fn next_means_ns(&self) -> u64 {
        self.means_ns().saturating_add(MEANS_NS)
    }

    /// True if [`next_loads_ns`](Self::next_loads_ns) has come.
    #[must_use]
    pub fn wants_loads(&self, now_ns: u64) -> bool {
        self.next_loads_ns().is_some_and(|at_ns| at_ns <= now_ns)
    }

    /// Returns the time of the last [`observe_for_means`](Self::observe_for_means); 0 before the
    /// first one.
    #[must_use]
    pub fn means_ns(&self) -> u64 {
        self.handed_out_before.newest_ns()
    }

    /// Returns the time of the next [`observe`](Self::observe), an interval after the last one;
    /// `None` unless a reporter that needs it was heard within the maximum age.
    #[must_use]
    pub fn next_loads_ns(&self) -> Option<u64> {
        let at_ns = (self.handed_out.newest_ns()).saturating_add(self.config.interval_ns);
        let mut until_ns = self.needs_loads_until_ns;
        if self.standing_links > 0 {
            let heard_ns = self.hosts.newest_ns();
            until_ns = until_ns.max(heard_ns.saturating_add(self.config.max_age_ns));
        }
        (at_ns < until_ns).then_some(at_ns)
    }

    /// Returns the part of its effect that a measurement has: 1 while it is fresh, 0 from the
    /// maximum age on.
    #[allow(clippy::cast_precision_loss, reason = "ages are far below 2^53 ns")]
    fn weight(&self, now_ns: u64, at_ns: u64) -> f64 {
        let age_ns = now_ns.saturating_sub(at_ns);
        let (fresh_ns, max_ns) = (self.config.fresh_ns, self.config.max_age_ns);
        if age_ns <= fresh_ns {
            1.0
        } else if age_ns >= max_ns {
            0.0
        } else {
            (max_ns - age_ns) as f64 / (max_ns - fresh_ns) as f64
        }
    }

    /// Returns the time of the next [`apply`](Self::apply); `None` if nothing is under way.
    #[must_use]
    pub fn next_due_ns(&self) -> Option<u64> {
        let at_work = !self.dirty.is_empty()
            || !self.dirty_bounds.is_empty()
            || !self.effects.is_empty()
            || !self.ageing.is_empty()
            || !self.bounds.is_empty()
            || !self.credits.is_empty();
        let next_ns = if self.is_urgent {
            self.applied_ns
        } else {
            self.applied_ns.saturating_add(self.config.interval_ns)
        };
        [
            self.external.next_expiry_ns(),
            (at_work || self.is_urgent).then_some(next_ns),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Hands over the changes that the measurements ask for, at most [`MAX_LINKS`] links and
    /// [`MAX_DEMAND_CHANGES`] flows at a time. Before the interval is over, it does so only for a
    /// sender that began.
    pub fn apply(&mut self, now_ns: u64, topology: &Topology, changes: &mut dyn FnMut(FeedChange)) {
        let events = &mut |event| changes(FeedChange::Engine(event));
        for link in self.external.expire(now_ns, topology, events) {
            tracing::info!(link = link.0, "external load expired");
        }
        let is_due = self.applied_ns.saturating_add(self.config.interval_ns) <= now_ns;
        if !(is_due || std::mem::take(&mut self.is_urgent)) {
            return;
        }
        self.is_urgent = false;
        if is_due {
            self.applied_ns = now_ns;
            self.mark_stale(now_ns, topology);
            self.compare_standing(now_ns, topology);
        }
        for _ in 0..self.dirty.len().min(MAX_LINKS) {
            let Some(link) = self.dirty.pop_front() else {
                break;
            };
            self.links[link.index()].is_dirty = false;
            self.evaluate(now_ns, topology, link, events);
        }
        for _ in 0..self.dirty_bounds.len().min(MAX_DEMAND_CHANGES) {
            let Some(key) = self.dirty_bounds.pop_front() else {
                break;
            };
            let wanted_bps = self.wanted_demand_bps(now_ns, key, topology);
            if wanted_bps.is_infinite() {
                self.bounds.remove(&key);
            } else if let Some(bound) = self.bounds.get_mut(&key) {
                bound.is_dirty = false;
                bound.applied_bps = wanted_bps;
            }
            changes(FeedChange::Demand {
                sender: HostId(key.0),
                flow: key.1,
            });
        }
    }

    /// Marks links and flows whose measurements fade.
    fn mark_stale(&mut self, now_ns: u64, topology: &Topology) {
        let stale_ns = now_ns.saturating_sub(self.config.fresh_ns);
        let (links, dirty, effects) = (&mut self.links, &mut self.dirty, &self.effects);
        for &link in &self.ageing {
            let oldest_ns = match (effects.get(link), &links[link.index()].collector) {
                (Some(effect), _) => effect.oldest_ns,
                (None, Some(collector)) => collector.at_ns,
                (None, None) => continue,
            };
            if oldest_ns < stale_ns {
                mark(links, dirty, link);
            }
        }
        let fresh_ns = self.config.fresh_ns;
        self.hosts.find_stale(now_ns, fresh_ns, |host| {
            let own = [topology.host_uplink(host), topology.host_downlink(host)];
            let mut has_effect = false;
            for link in own {
                if effects.get(link).is_some() {
                    mark(links, dirty, link);
                }
                // One that waits for its evaluation may get an effect yet.
                has_effect |= links[link.index()].is_dirty;
            }
            has_effect
        });
        let mut gone = Vec::new();
        let max_age_ns = self.config.max_age_ns;
        self.credits
            .expire(now_ns, max_age_ns, |key| gone.push(key));
        for key in gone {
            if let Some(flow) = key.flow {
                self.mark_bound((key.sender, flow));
            }
        }
    }

    fn evaluate(
        &mut self,
        now_ns: u64,
        topology: &Topology,
        link: LinkId,
        events: &mut dyn FnMut(EngineEvent),
    ) {
        let Evaluation {
            effect,
            contradictions,
            ages,
            is_held,
        } = self.effect_of(now_ns, topology, link);
        for feed in contradictions {
            *self.contradictions.entry(feed.label()).or_insert(0) += 1;
        }
        #[allow(
            clippy::cast_precision_loss,
            reason = "capacities are far below 2^53 bit/s"
        )]
        let capacity_bps = topology.effective_capacity_bps(link) as f64;
        let before = self.effects.get(link).copied().unwrap_or_default();
        if ages && (is_held || !effect.is_none()) {
            self.ageing.insert(link);
        } else if !self.ageing.is_empty() {
            self.ageing.remove(&link);
        }
        if !differs(&before, &effect, self.config.hysteresis * capacity_bps) {
            if let Some(known) = self.effects.get_mut(link) {
                known.oldest_ns = effect.oldest_ns;
                known.newest_ns = effect.newest_ns;
                known.external_bps = effect.external_bps;
            }
            return;
        }
        for feed in Feed::ALL {
            let figures = &mut self.figures[feed as usize];
            figures.moved_bps += effect.moved_bps(feed) - before.moved_bps(feed);
        }
        let measured = MeasuredLoad {
            load_bps: effect.load_bps,
            flows: effect.flows,
            demand_bps: effect.demand_bps,
        };
        if effect.is_none() {
            self.effects.remove(link);
        } else {
            self.effects.insert(link, effect);
        }
        self.external.measure(topology, link, measured, events);
    }

    /// Returns the maximum demand of a flow as its credit gives it, in bit/s; infinite without one.
    #[must_use]
    pub fn demand_bps(&self, sender: HostId, flow: u32) -> f64 {
        self.bounds
            .get(&(sender.0, flow))
            .map_or(f64::INFINITY, |bound| bound.applied_bps)
    }

    /// Returns true if credit bounds the demand of any flow.
    #[must_use]
    pub fn bounds_demands(&self) -> bool {
        !self.bounds.is_empty()
    }

    /// Returns the effect of the feeds on a link, if they have one.
    #[must_use]
    pub fn effect(&self, link: LinkId) -> Option<&LinkEffect> {
        self.effects.get(link)
    }

    /// Returns the effects of the feeds on the links from `from` on, in their order.
    pub fn effects_from(&self, from: LinkId) -> impl Iterator<Item = (LinkId, &LinkEffect)> {
        self.effects.from(from)
    }

    /// Returns the figures of all feeds.
    #[must_use]
    pub fn status(&self) -> FeedsStatus {
        let on = [self.config.receivers, self.config.credit, self.config.int];
        FeedsStatus {
            feeds: Feed::ALL
                .into_iter()
                .map(|feed| {
                    let mut figures = self.figures[feed as usize].clone();
                    figures.on = on[feed as usize];
                    figures.moved_bps = figures.moved_bps.max(0.0);
                    (feed.label(), figures)
                })
                .collect(),
            contradictions: self.contradictions.clone(),
            links: self.effects.len() as u64,
            flows: self.bounds.len() as u64,
        }
    }
}

/// Returns true if an effect differs from the one in force by more than the hysteresis.
fn differs(before: &LinkEffect, after: &LinkEffect, hysteresis_bps: f64) -> bool {
    if before.is_none() || after.is_none() {
        return before.is_none() != after.is_none();
    }
    (after.load_bps - before.load_bps).abs() > hysteresis_bps
        || (after.demand_bps - before.demand_bps).abs() > hysteresis_bps
        || (after.flows - before.flows).abs() > 0.1 * before.flows
        || (after.load_bps == 0.0) != (before.load_bps == 0.0)
}

/// Puts a link into the queue of those to evaluate, once.
fn mark(links: &mut [LinkReadings], dirty: &mut VecDeque<LinkId>, link: LinkId) {
    if !std::mem::replace(&mut links[link.index()].is_dirty, true) {
        dirty.push_back(link);
    }
}

#[cfg(test)]
mod tests;
