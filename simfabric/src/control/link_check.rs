//! The production's check of told capacities, in the simulated allocator.
//!
//! [`LinkCheck`] judges words that simulated hosts tell by the daemon's own meter, and
//! [`SharedLinks`] counts the links with traffic that nobody paces. The service's hub drives both
//! in the same way. Simulated hosts have no addresses and keep their congestion control: no host
//! is named.

use std::collections::BTreeMap;

use ratewright_allocator::feeds::Feeds;
use ratewright_allocator::link_check::{
    HostWord, LinkChange, LinkCheck, LinkCheckConfig, LinkEvidence, LinkState, NetworkFacts,
    VisitPaths,
};
use ratewright_allocator::shared_links::{FlowKind, SharedLinks};
use ratewright_proto::telemetry::AccessUse;
use ratewright_topology::{HostId, LinkId, Topology};
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// Settings of the check, and of what hosts tell for it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckSettings {
    /// Largest part of a told capacity that measured carriage takes away; 0: links are only named.
    pub max_lowering: f64,
    /// Interfaces tell the rate of the link from their host as their speed. Otherwise they tell
    /// none, as virtual ones.
    pub speeds: bool,
}

impl Default for CheckSettings {
    fn default() -> Self {
        Self {
            max_lowering: LinkCheckConfig::default().max_lowering,
            speeds: false,
        }
    }
}

/// A link that the check named.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkFinding {
    /// The link.
    pub link: LinkId,
    /// Evidence at the time at which it was named, with its state.
    pub evidence: LinkEvidence,
    /// That time.
    pub named: Time,
    /// Time at which the state was taken back; `None` if it stands.
    pub taken_back: Option<Time>,
    /// Least capacity to which the link was lowered meanwhile, in bit/s; `None` if it was not.
    pub lowered_bps: Option<f64>,
}

/// A flow on the links that count it.
#[derive(Debug)]
struct CountedFlow {
    dst: u32,
    links: Vec<u32>,
}

/// Knowledge of the network beside the words.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) topology: &'a Topology,
    pub(super) feeds: &'a Feeds,
}

impl<'a> Known<'a> {
    fn facts(self, now_ns: u64, paths: &'a VisitPaths<'a>) -> NetworkFacts<'a> {
        let Self { topology, feeds } = self;
        NetworkFacts {
            now_ns,
            topology,
            feeds,
            paths,
        }
    }
}

/// The check, with the traffic that nobody paces.
#[derive(Debug)]
pub(super) struct Checking {
    check: LinkCheck,
    shared: SharedLinks,
    /// Active flows by sender and id.
    flows: BTreeMap<(u32, u32), CountedFlow>,
    findings: Vec<LinkFinding>,
    /// Findings that stand, by link.
    standing: BTreeMap<u32, usize>,
}

impl Checking {
    pub(super) fn new(settings: CheckSettings, topology: &Topology) -> Self {
        let CheckSettings { max_lowering, .. } = settings;
        Self {
            check: LinkCheck::new(LinkCheckConfig { max_lowering }),
            shared: SharedLinks::new(topology),
            flows: BTreeMap::new(),
            findings: Vec::new(),
            standing: BTreeMap::new(),
        }
    }

    pub(super) fn findings(&self) -> &[LinkFinding] {
        &self.findings
    }

    /// Notes that a host has a session: it paces its flows.
    pub(super) fn join(&mut self, now_ns: u64, host: HostId) {
        self.shared.set_paces(now_ns, host, true);
    }

    /// Forgets a host whose session is over.
    pub(super) fn leave(&mut self, now_ns: u64, host: HostId, topology: &Topology) {
        let flows = self.flows.range((host.0, 0)..=(host.0, u32::MAX));
        let flows: Vec<u32> = flows.map(|(&(_, flow), _)| flow).collect();
        for flow in flows {
            self.end(now_ns, host, flow);
        }
        self.shared.set_paces(now_ns, host, false);
        self.shared.forget(now_ns, host, topology);
        let access = [topology.host_uplink(host), topology.host_downlink(host)];
        self.check.forget(host, access);
    }

    /// Counts a flow that has begun, or that is told again.
    pub(super) fn start(&mut self, now_ns: u64, host: HostId, flow: (u32, HostId), links: &[u32]) {
        let (flow, dst) = flow;
        let known = self.flows.get(&(host.0, flow));
        if known.is_some_and(|known| known.links == links) {
            return;
        }
        self.end(now_ns, host, flow);
        self.shared.add(now_ns, links, FlowKind::Paced, host);
        let counted = CountedFlow {
            dst: dst.0,
            links: links.to_vec(),
        };
        self.flows.insert((host.0, flow), counted);
    }

    /// Takes a flow back that has ended.
    pub(super) fn end(&mut self, now_ns: u64, host: HostId, flow: u32) {
        if let Some(known) = self.flows.remove(&(host.0, flow)) {
            self.shared.remove(now_ns, &known.links, FlowKind::Paced);
        }
    }

    /// Takes what a host tells of its own links.
    pub(super) fn tell(
        &mut self,
        now_ns: u64,
        host: HostId,
        access_use: &AccessUse,
        known: Known<'_>,
    ) {
        self.shared
            .tell(now_ns, host, access_use.clone(), known.topology);
        let (check, flows) = (&mut self.check, &self.flows);
        let paths = |from, to, visit: &mut dyn FnMut(&[u32])| visit_paths(flows, from, to, visit);
        let facts = known.facts(now_ns, &paths);
        check.tell(now_ns, host, HostWord::of(access_use, true), &facts);
    }

    /// Returns the links that began or ended to have traffic that nobody paces.
    pub(super) fn take_shared(&mut self) -> Vec<LinkId> {
        let changed = self.shared.take_changes().shared;
        for &link in &changed {
            let has_others = self.shared.is_shared(link);
            self.check.set_others(link, has_others);
        }
        changed
    }

    /// Returns the time of the next [`tick`](Self::tick).
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        let due = [self.check.next_due_ns(), self.shared.next_due_ns()];
        due.into_iter().flatten().min()
    }

    /// Returns true if links are in question, so that what is handed out has to be known.
    pub(super) fn wants_loads(&self) -> bool {
        self.check.next_due_ns().is_some()
    }

    /// Judges the links in question, if that is due. Returns those with another capacity.
    pub(super) fn tick(&mut self, now_ns: u64, known: Known<'_>) -> Vec<LinkId> {
        self.shared.end_due(now_ns);
        let mut changed = self.take_shared();
        let (check, flows) = (&mut self.check, &self.flows);
        let paths = |from, to, visit: &mut dyn FnMut(&[u32])| visit_paths(flows, from, to, visit);
        let facts = known.facts(now_ns, &paths);
        let mut changes = Vec::new();
        check.tick(now_ns, &facts, &mut |change| changes.push(change));
        for change in changes {
            match change {
                LinkChange::Capacity(link) => {
                    self.note_lowered(link);
                    changed.push(link);
                }
                LinkChange::State { link, evidence, .. } => self.note(now_ns, link, evidence),
                LinkChange::Fault { .. } => {}
            }
        }
        changed
    }

    fn note(&mut self, now_ns: u64, link: LinkId, evidence: LinkEvidence) {
        if let Some(former) = self.standing.remove(&link.0) {
            self.findings[former].taken_back = Some(Time::from_ns(now_ns));
        }
        if evidence.state <= LinkState::AsTold {
            return;
        }
        self.standing.insert(link.0, self.findings.len());
        self.findings.push(LinkFinding {
            link,
            evidence,
            named: Time::from_ns(now_ns),
            taken_back: None,
            lowered_bps: None,
        });
        self.note_lowered(link);
    }

    fn note_lowered(&mut self, link: LinkId) {
        let finding = self.standing.get(&link.0).map(|&at| &mut self.findings[at]);
        if let Some((finding, bps)) = finding.zip(self.check.lowered_bps(link)) {
            let least_bps = finding.lowered_bps.map_or(bps, |least| least.min(bps));
            finding.lowered_bps = Some(least_bps);
        }
    }

    /// Returns the capacity that the engine is to take for a link, in bit/s.
    pub(super) fn capacity_bps(&self, link: LinkId, known: Known<'_>) -> f64 {
        let external = known.feeds.external();
        let capacity_bps = external.capacity_bps(known.topology, link);
        let lowered_bps = self.check.lowered_bps(link).unwrap_or(f64::INFINITY);
        let has_external = external.get(link).is_some();
        self.shared.headroom(link, has_external) * capacity_bps.min(lowered_bps)
    }
}

fn visit_paths(
    flows: &BTreeMap<(u32, u32), CountedFlow>,
    from: HostId,
    to: HostId,
    visit: &mut dyn FnMut(&[u32]),
) {
    let own = flows.range((from.0, 0)..=(from.0, u32::MAX));
    for (_, flow) in own.filter(|(_, flow)| flow.dst == to.0) {
        visit(&flow.links);
    }
}
