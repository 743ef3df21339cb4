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
//! | `status` | figures for operators |
//!
//! # What a message must hold
//!
//! | entry | reporter | contents |
//! |---|---|---|
//! | `ReceiverCount` | the receiver, a collector | all senders with bytes under way to the receiver, announced ones included |
//! | `CreditState` | the sender or the receiver, a collector; of a scheduled flow not the receiver | counters that only grow while the pair exists; the entry repeats in every message while it is active |
//! | `LinkInt` | a host at one end, a collector | counters of one interface; two readings make a measurement |
//!
//! A reporter repeats its state at every [`FeedsConfig::interval_ns`], and at once when a sender
//! begins or is announced. Silence is no measurement: the effect of the newest one fades from
//! [`FeedsConfig::fresh_ns`] to [`FeedsConfig::max_age_ns`]. A counter that falls begins anew.
//! `age_ns` is the time from the measurement to the sending of the message.
//!
//! # Contradictions
//!
//! Of two fresh readings of one quantity, the one that takes less of the link stands. A wrong
//! reading beside a right one thus moves the answer towards the one without feeds, never beyond.
//!
//! A host moves its own two links and its own flows alone, whatever it tells. Of a pair's
//! credit, the sender's word counts at its uplink, the receiver's at its downlink; a collector's
//! counts at both, where the host itself says nothing.

use std::collections::{BTreeMap, VecDeque};

use ratewright_proto::telemetry::{
    CreditState, LinkInt, OWN_DOWNLINK, OWN_UPLINK, ReceiverCount, Telemetry,
};
use ratewright_topology::{HostId, LinkId, Node, Topology};
use rustc_hash::FxHashMap;

use crate::engine::EngineEvent;

mod config;
mod credit;
mod effect;
mod external;
pub mod gain;
pub mod gnmic;
mod int;
mod receivers;
mod status;

pub use config::FeedsConfig;
pub use external::{EXTERNAL_SESSION, ExternalTraffic, LinkTraffic, MeasuredLoad, ToldLoad};
pub use status::{Feed, FeedStatus, FeedsStatus, LinkEffect, Refused};

use credit::{CreditTaken, Credits, HEADROOM, PairKey};
use effect::Evaluation;
use int::{LinkFacts, Reading};
use receivers::UnknownSenders;

/// Maximum number of links that one [`Feeds::apply`] evaluates; the others follow in the next one.
pub const MAX_LINKS: usize = 4_096;

/// Maximum number of flows whose demand one [`Feeds::apply`] changes.
pub const MAX_DEMAND_CHANGES: usize = 4_096;

/// Relative change of a flow's demand below which its owner is told nothing.
const DEMAND_HYSTERESIS: f64 = 0.1;

/// Minimum demand of a flow that credit bounds, as a share of its sender's uplink.
const MIN_DEMAND_SHARE: f64 = 0.01;

/// Part of a dummy flow's maximum that it keeps per reading that measures less.
const SHRINK: f64 = 0.75;

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

/// Readings of one link.
#[derive(Debug, Clone, Default)]
struct LinkReadings {
    host: Reading,
    collector: Option<Box<Reading>>,
    /// Maximum of the dummy flow that the measured load allows, in bit/s; 0 before a measurement.
    dummy_bps: f64,
    /// Sum that was last marked for evaluation, in bit/s.
    marked_bps: f64,
}

/// Rate and bits that the allocator handed out on one link.
#[derive(Debug, Clone, Copy, Default)]
struct HandedOut {
    bits: f64,
    load_bps: f64,
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
    handed_out: Vec<HandedOut>,
    observed_ns: u64,
    /// End of the time in which what is handed out has to be known: a reporter that cannot tell
    /// managed traffic apart has been heard.
    needs_loads_until_ns: u64,
    senders: Vec<UnknownSenders>,
    credits: Credits,
    bounds: FxHashMap<(u32, u32), FlowBound>,
    dirty_bounds: VecDeque<(u32, u32)>,
    /// Time of the newest measurement of any feed, by link.
    newest_ns: Vec<u64>,
    dirty: VecDeque<LinkId>,
    is_dirty: Vec<bool>,
    effects: BTreeMap<LinkId, LinkEffect>,
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
            handed_out: Vec::new(),
            observed_ns: 0,
            needs_loads_until_ns: 0,
            senders: Vec::new(),
            credits: Credits::default(),
            bounds: FxHashMap::default(),
            dirty_bounds: VecDeque::new(),
            newest_ns: Vec::new(),
            dirty: VecDeque::new(),
            is_dirty: Vec::new(),
            effects: BTreeMap::new(),
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
        self.handed_out = vec![HandedOut::default(); links];
        self.senders = vec![UnknownSenders::default(); hosts];
        self.newest_ns = vec![0; links];
        self.is_dirty = vec![false; links];
        self.dirty.clear();
        self.effects.clear();
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
        let links: Vec<LinkId> = self.effects.keys().copied().collect();
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
        let senders = &mut self.senders[receiver.index()];
        let grew = senders.take(at_ns, count, is_managed);
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
        let before_bps = bound.applied_bps;
        let wanted_bps = self.wanted_demand_bps(now_ns, key, topology);
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

    #[allow(
        clippy::cast_precision_loss,
        reason = "capacities are far below 2^53 bit/s"
    )]
    fn take_int(
        &mut self,
        now_ns: u64,
        reporter: Reporter,
        entry: &LinkInt,
        topology: &Topology,
    ) -> Result<(), Refused> {
        let id = link_of(reporter, entry.link, topology)?;
        self.is_on(Feed::Int, entry.age_ns)?;
        let link = &topology.links()[id.index()];
        let at_ns = now_ns.saturating_sub(entry.age_ns);
        let capacity_bps = topology.effective_capacity_bps(id) as f64;
        if capacity_bps == 0.0 {
            // A dead link carries nothing that could be handed out.
            return Ok(());
        }
        if entry.managed_bytes.is_none() {
            self.needs_loads_until_ns = now_ns.saturating_add(self.config.max_age_ns);
            // Managed traffic would count as external.
            let observed_ns = self.observed_ns;
            if observed_ns == 0 || observed_ns.saturating_add(self.config.max_age_ns) <= now_ns {
                return Err(Refused::Unobserved);
            }
        }
        let handed_out = self.handed_out[id.index()];
        #[allow(clippy::cast_precision_loss, reason = "differences of milliseconds")]
        let since_s = (at_ns as f64 - self.observed_ns as f64) / 1e9;
        let facts = LinkFacts {
            capacity_bps,
            handed_out_bits: handed_out.bits + handed_out.load_bps * since_s,
            sees_queue: match reporter {
                Reporter::Host(host) => link.from == Node::Host(host),
                Reporter::Collector => true,
            },
            max_delay_ns: self.config.max_delay_ns,
        };
        let readings = &mut self.links[id.index()];
        let reading = match reporter {
            Reporter::Host(_) => &mut readings.host,
            Reporter::Collector => readings.collector.get_or_insert_with(Box::default),
        };
        if at_ns < reading.at_ns {
            return Ok(());
        }
        let expected_bps = reading.external_bps;
        let had_measured = reading.is_measured();
        let Some(measured_bps) = reading.take(at_ns, entry, &facts) else {
            return Ok(());
        };
        let sum_bps = reading.external_bps + reading.drain_bps + reading.lost_bps(capacity_bps);
        let hysteresis_bps = self.config.hysteresis * capacity_bps;
        let wanted_bps = measured_bps.max(reading.external_bps) * HEADROOM + hysteresis_bps;
        let former_bps = if readings.dummy_bps > 0.0 {
            readings.dummy_bps
        } else {
            self.config.max_share * capacity_bps
        };
        readings.dummy_bps = wanted_bps.max(former_bps * SHRINK);
        let moved = (sum_bps - readings.marked_bps).abs() > hysteresis_bps / 2.0
            || (readings.dummy_bps - former_bps).abs() > hysteresis_bps / 2.0;
        if moved {
            readings.marked_bps = sum_bps;
        }
        if had_measured {
            let error = (measured_bps - expected_bps).abs() / capacity_bps;
            self.figures[Feed::Int as usize].erred(error);
        }
        let effect = self.effects.get(&id);
        if let Some(effect) = effect
            && let Some(feed) = effect.weighed_by
        {
            let granted_bps = self.external.get(id).map_or(0.0, |link| link.granted_bps);
            let error = (measured_bps - granted_bps).abs() / capacity_bps;
            self.figures[feed as usize].erred(error);
        }
        self.touch(id, at_ns);
        if moved || (sum_bps >= hysteresis_bps && self.is_faded(now_ns, id)) {
            self.mark(id);
        }
        Ok(())
    }

    /// Returns true if a link's effect has ended or fades: a new measurement then counts, although
    /// it says what the one before said.
    fn is_faded(&self, now_ns: u64, link: LinkId) -> bool {
        let effect = self.effects.get(&link);
        effect.is_none_or(|effect| effect.oldest_ns.saturating_add(self.config.fresh_ns) < now_ns)
    }

    fn touch(&mut self, link: LinkId, at_ns: u64) {
        let newest_ns = &mut self.newest_ns[link.index()];
        *newest_ns = (*newest_ns).max(at_ns);
    }

    /// Puts a link into the queue of those that are evaluated, once.
    fn mark(&mut self, link: LinkId) {
        if !std::mem::replace(&mut self.is_dirty[link.index()], true) {
            self.dirty.push_back(link);
        }
    }

    /// Takes the load that the engine allocated to every link, in bit/s, by link index. The caller
    /// calls it after iterations, at least once per [`FeedsConfig::interval_ns`] while rates move.
    /// O(links).
    pub fn observe(&mut self, now_ns: u64, loads_bps: &[f64]) {
        #[allow(
            clippy::cast_precision_loss,
            reason = "intervals are far below 2^53 ns"
        )]
        let seconds = now_ns.saturating_sub(self.observed_ns) as f64 / 1e9;
        self.observed_ns = self.observed_ns.max(now_ns);
        for (handed_out, &load_bps) in self.handed_out.iter_mut().zip(loads_bps) {
            handed_out.bits += handed_out.load_bps * seconds;
            handed_out.load_bps = load_bps;
        }
        // Dummy flows stand for traffic of others.
        for (link, traffic) in self.external.links_from(LinkId(0)) {
            if let Some(handed_out) = self.handed_out.get_mut(link.index()) {
                let managed_bps = handed_out.load_bps - traffic.granted_bps;
                handed_out.load_bps = managed_bps.max(0.0);
            }
        }
    }

    /// True if [`next_loads_ns`](Self::next_loads_ns) has come.
    #[must_use]
    pub fn wants_loads(&self, now_ns: u64) -> bool {
        self.next_loads_ns().is_some_and(|at_ns| at_ns <= now_ns)
    }

    /// Returns the time of the next [`observe`](Self::observe), an interval after the last one;
    /// `None` unless a reporter that needs it was heard within the maximum age.
    #[must_use]
    pub fn next_loads_ns(&self) -> Option<u64> {
        let at_ns = self.observed_ns.saturating_add(self.config.interval_ns);
        (at_ns < self.needs_loads_until_ns).then_some(at_ns)
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
            self.mark_stale(now_ns);
        }
        for _ in 0..self.dirty.len().min(MAX_LINKS) {
            let Some(link) = self.dirty.pop_front() else {
                break;
            };
            self.is_dirty[link.index()] = false;
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
    fn mark_stale(&mut self, now_ns: u64) {
        let stale_ns = now_ns.saturating_sub(self.config.fresh_ns);
        let stale: Vec<LinkId> = self
            .effects
            .iter()
            .filter(|(_, effect)| effect.oldest_ns < stale_ns)
            .map(|(&link, _)| link)
            .collect();
        for link in stale {
            self.mark(link);
        }
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
        } = self.effect_of(now_ns, topology, link);
        for feed in contradictions {
            *self.contradictions.entry(feed.label()).or_insert(0) += 1;
        }
        #[allow(
            clippy::cast_precision_loss,
            reason = "capacities are far below 2^53 bit/s"
        )]
        let capacity_bps = topology.effective_capacity_bps(link) as f64;
        let before = self.effects.get(&link).copied().unwrap_or_default();
        if !differs(&before, &effect, self.config.hysteresis * capacity_bps) {
            if let Some(known) = self.effects.get_mut(&link) {
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
            self.effects.remove(&link);
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
        self.effects.get(&link)
    }

    /// Returns the effects of the feeds on the links from `from` on, in their order.
    pub fn effects_from(&self, from: LinkId) -> impl Iterator<Item = (LinkId, &LinkEffect)> {
        self.effects
            .range(from..)
            .map(|(&link, effect)| (link, effect))
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

/// Returns the link that an entry names, if the reporter may tell of it.
fn link_of(reporter: Reporter, link: u32, topology: &Topology) -> Result<LinkId, Refused> {
    match (reporter, link) {
        (Reporter::Host(host), OWN_UPLINK) => Ok(topology.host_uplink(host)),
        (Reporter::Host(host), OWN_DOWNLINK) => Ok(topology.host_downlink(host)),
        (_, link) => {
            let known = topology
                .links()
                .get(link as usize)
                .ok_or(Refused::Unknown)?;
            match reporter {
                Reporter::Host(host)
                    if known.from != Node::Host(host) && known.to != Node::Host(host) =>
                {
                    Err(Refused::NotOfReporter)
                }
                _ => Ok(known.id),
            }
        }
    }
}

#[cfg(test)]
mod tests;
