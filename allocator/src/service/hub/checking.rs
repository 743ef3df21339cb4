//! Check of told capacities at the hub: what hosts say of their interfaces, and what follows.
//!
//! [`LinkCheck`] decides. The hub knows the flows' paths and what was
//! handed out, tells the engine of lowered capacities, and tells operators.

use ratewright_proto::telemetry::AccessUse;
use ratewright_topology::{HostId, LinkId};

use super::report::{Report, link_name};
use super::{Hub, HubSettings};
use crate::link_check::{
    HostFault, HostWord, LinkChange, LinkCheck, LinkCheckConfig, LinkEvidence, LinkFacts,
    LinkState, NetworkFacts,
};
use crate::service::status::{CheckedLink, FaultyHost};

/// Maximum number of a host's flows whose paths are looked at for one receiver.
const MAX_FLOWS: u32 = 1_024;

/// Returns the check's part of the settings.
pub(super) fn link_check_config(settings: &HubSettings) -> LinkCheckConfig {
    LinkCheckConfig {
        max_lowering: settings.feeds.max_lowering,
    }
}

impl Hub {
    /// Calls `act` with the facts of the network.
    pub(super) fn with_facts<T>(&self, now_ns: u64, act: impl FnOnce(&dyn LinkFacts) -> T) -> T {
        act(&NetworkFacts {
            now_ns,
            topology: &self.network.topology,
            feeds: &self.network.feeds,
            paths: &|from, to, visit| self.visit_paths(from, to, visit),
        })
    }

    /// Lets the check act on the facts of the network, and tells of the changes that it hands over.
    fn with_link_check(
        &mut self,
        now_ns: u64,
        act: impl FnOnce(&mut LinkCheck, &dyn LinkFacts, &mut dyn FnMut(LinkChange)),
    ) {
        let mut changes = Vec::new();
        let mut check = std::mem::take(&mut self.network.link_check);
        self.with_facts(now_ns, |facts| {
            act(&mut check, facts, &mut |change| changes.push(change));
        });
        self.network.link_check = check;
        self.tell_changes(changes);
    }

    fn visit_paths(&self, from: HostId, to: HostId, visit: &mut dyn FnMut(&[u32])) {
        let session = self.admission.registry.session_of(from.0);
        let Some(session) = session.and_then(|id| self.sessions.get(id)) else {
            return;
        };
        for slot in 0..session.proto.slots().min(MAX_FLOWS) {
            let flow = session.proto.flow_on(slot);
            if flow.is_some_and(|(record, _)| record.dst_host() == to.0) {
                visit(session.flows.path(slot));
            }
        }
    }

    /// Takes what a host says of its interface.
    pub(super) fn tell_link_check(
        &mut self,
        now_ns: u64,
        id: u32,
        host: HostId,
        access_use: &AccessUse,
    ) {
        let paces = self.sessions.get(id).is_some_and(|known| known.paces());
        let word = HostWord::of(access_use, paces);
        self.with_link_check(now_ns, |check, facts, _| {
            check.tell(now_ns, host, word, facts);
        });
    }

    /// Forgets what a host said, because its session has ended.
    pub(super) fn forget_in_link_check(&mut self, host: HostId) {
        if host.index() < self.network.topology.hosts().len() {
            let topology = &self.network.topology;
            let access = [topology.host_uplink(host), topology.host_downlink(host)];
            self.network.link_check.forget(host, access);
        }
    }

    /// Takes the links that are shared from the counts, after these began anew.
    pub(super) fn recheck_shared(&mut self, shared: &[LinkId]) {
        self.network.link_check.part_others();
        for &link in shared {
            self.network.link_check.set_others(link, true);
        }
    }

    /// Judges the links in question, if that is due.
    pub(super) fn check_links(&mut self, now_ns: u64) {
        if (self.network.link_check.next_due_ns()).is_none_or(|due_ns| due_ns > now_ns) {
            return;
        }
        self.with_link_check(now_ns, |check, facts, changes| {
            check.tick(now_ns, facts, changes);
        });
    }

    /// Forgets what hosts said, because another topology follows, and tells what is named no more.
    pub(super) fn restart_link_check(&mut self, now_ns: u64) {
        self.with_link_check(now_ns, |check, facts, changes| {
            check.restart(facts, changes);
        });
    }

    /// Tells the engine and operators of changes of links and hosts.
    fn tell_changes(&mut self, changes: Vec<LinkChange>) {
        for change in changes {
            match change {
                LinkChange::Capacity(link) => self.push_capacity(link),
                LinkChange::State {
                    link,
                    before,
                    evidence,
                } => {
                    if evidence.state > LinkState::AsTold {
                        self.counts.links_named.count(evidence.state.label());
                    }
                    self.log_link_state(link, before, &evidence);
                }
                LinkChange::Fault { host, fault, has } => {
                    let seen_at = self.network.link_check.fault_seen_at(host, fault);
                    let seen_at = seen_at.map(|host| self.network.host_name(host.0));
                    let host = self.network.host_name(host.0);
                    if has {
                        self.counts.hosts_named.count(fault.label());
                        tracing::warn!(host, fault = fault.label(), seen_at, "a host has a fault");
                    } else {
                        tracing::info!(host, fault = fault.label(), "a host has a fault no more");
                    }
                }
            }
        }
    }

    fn log_link_state(&self, link: LinkId, before: LinkState, evidence: &LinkEvidence) {
        let name = link_name(&self.network.topology, link);
        let mbps = |bps: f64| bps / 1e6;
        let LinkEvidence {
            state,
            told_bps,
            handed_out_bps,
            carried_bps,
            speed_bps,
            by_allowance,
            ..
        } = *evidence;
        if state <= LinkState::AsTold {
            tracing::info!(
                link = name,
                before = before.label(),
                state = state.label(),
                "a link is named no more"
            );
            return;
        }
        let cause = self.shared_status(link).map(|shared| shared.cause);
        tracing::warn!(
            link = name,
            state = state.label(),
            told_mbps = mbps(told_bps),
            handed_out_mbps = mbps(handed_out_bps),
            carried_mbps = carried_bps.map(mbps),
            speed_mbps = speed_bps.map(mbps),
            by_allowance,
            cause,
            "a link is not as the allocator was told"
        );
    }

    /// Notes how many flows of a host the allocator has no room for.
    pub(super) fn note_flows_beyond(&mut self, now_ns: u64, position: usize) {
        let session = &self.sessions[position];
        if let Some(peer) = &session.peer {
            let has = session.has_beyond();
            self.network
                .link_check
                .set_flows_beyond(now_ns, peer.host, has);
        }
    }
}

impl Report<'_> {
    /// Returns what is known of a link, as of the newest check.
    pub fn link_evidence(&self, link: LinkId) -> LinkEvidence {
        let now_ns = self.hub.network.feeds.means_ns();
        self.hub.with_facts(now_ns, |facts| {
            self.hub.network.link_check.evidence(link, facts)
        })
    }

    /// Returns the first `max` links that are named, in the order of their numbers.
    pub fn checked_links(&self, max: usize) -> Vec<CheckedLink> {
        (self.hub.network.link_check.named().take(max))
            .map(|(link, _)| self.checked_link(link))
            .collect()
    }

    fn checked_link(&self, link: LinkId) -> CheckedLink {
        CheckedLink {
            name: link_name(&self.hub.network.topology, link),
            evidence: self.link_evidence(link),
            cause: self.hub.shared_status(link).map(|shared| shared.cause),
        }
    }

    /// Returns the link from a host of the topology and the one to it, whatever their state is.
    pub(super) fn access_links(&self, host: HostId) -> Vec<CheckedLink> {
        let topology = &self.hub.network.topology;
        [topology.host_uplink(host), topology.host_downlink(host)]
            .map(|link| self.checked_link(link))
            .into()
    }

    /// Returns the first `max` faults of hosts, in the order of the hosts' numbers.
    pub fn host_faults(&self, max: usize) -> Vec<FaultyHost> {
        (self.hub.network.link_check.faults().take(max))
            .map(|(host, fault)| self.faulty_host(host, fault))
            .collect()
    }

    /// Returns the faults of one host.
    pub(super) fn faults_of(&self, host: HostId) -> Vec<FaultyHost> {
        (self.hub.network.link_check.faults_of(host))
            .map(|fault| self.faulty_host(host, fault))
            .collect()
    }

    fn faulty_host(&self, host: HostId, fault: HostFault) -> FaultyHost {
        let seen_at = self.hub.network.link_check.fault_seen_at(host, fault);
        FaultyHost {
            host: self.hub.network.host_name(host.0),
            fault,
            seen_at: seen_at.map(|host| self.hub.network.host_name(host.0)),
        }
    }
}
