//! Check of told capacities at the hub: what hosts say of their interfaces, and what follows.
//!
//! [`LinkCheck`] decides. The network knows what was handed out, sessions know their flows' paths;
//! the engine hears of lowered capacities, and operators of all.

use ratewright_proto::telemetry::AccessUse;
use ratewright_topology::{HostId, LinkId};

use super::HubSettings;
use super::network::Network;
use super::report::{Report, link_name};
use super::session::{Hosts, Session};
use crate::link_check::{
    HostFault, HostWord, LinkChange, LinkCheck, LinkCheckConfig, LinkEvidence, LinkFacts,
    LinkState, NetworkFacts,
};
use crate::service::status::{CheckedLink, FaultyHost, ServiceCounts, SharedStatus};

/// Maximum number of a host's flows whose paths are looked at for one receiver.
const MAX_FLOWS: u32 = 1_024;

/// Returns the check's part of the settings.
pub(super) fn link_check_config(settings: &HubSettings) -> LinkCheckConfig {
    LinkCheckConfig {
        max_lowering: settings.feeds.max_lowering,
    }
}

impl Network {
    /// Calls `act` with the facts of the network.
    fn with_facts<T>(
        &self,
        now_ns: u64,
        hosts: Hosts<'_>,
        act: impl FnOnce(&dyn LinkFacts) -> T,
    ) -> T {
        act(&NetworkFacts {
            now_ns,
            topology: &self.topology,
            feeds: &self.feeds,
            paths: &|from, to, visit| visit_paths(hosts, from, to, visit),
        })
    }

    /// Lets the check act on the facts of the network.
    fn with_link_check(
        &mut self,
        now_ns: u64,
        hosts: Hosts<'_>,
        act: impl FnOnce(&mut LinkCheck, &dyn LinkFacts),
    ) {
        let mut check = std::mem::take(&mut self.link_check);
        self.with_facts(now_ns, hosts, |facts| act(&mut check, facts));
        self.link_check = check;
    }

    /// Lets the check judge by the facts of the network, and tells of the changes that it hands
    /// over.
    fn judge(
        &mut self,
        now_ns: u64,
        hosts: Hosts<'_>,
        counts: &mut ServiceCounts,
        act: impl FnOnce(&mut LinkCheck, &dyn LinkFacts, &mut dyn FnMut(LinkChange)),
    ) {
        let mut changes = Vec::new();
        self.with_link_check(now_ns, hosts, |check, facts| {
            act(check, facts, &mut |change| changes.push(change));
        });
        for change in changes {
            self.tell_change(change, hosts, counts);
        }
    }

    /// Takes what a host says of its interface.
    pub(super) fn tell_link_check(
        &mut self,
        now_ns: u64,
        session: &Session,
        access_use: &AccessUse,
        hosts: Hosts<'_>,
    ) {
        let Some(peer) = &session.peer else { return };
        let word = HostWord::of(access_use, session.paces());
        self.with_link_check(now_ns, hosts, |check, facts| {
            check.tell(now_ns, peer.host, word, facts);
        });
    }

    /// Forgets what a host said, because its session has ended.
    pub(super) fn forget_in_link_check(&mut self, host: HostId) {
        if host.index() < self.topology.hosts().len() {
            let access = [
                self.topology.host_uplink(host),
                self.topology.host_downlink(host),
            ];
            self.link_check.forget(host, access);
        }
    }

    /// Judges the links in question, if that is due.
    pub(super) fn check_links(
        &mut self,
        now_ns: u64,
        hosts: Hosts<'_>,
        counts: &mut ServiceCounts,
    ) {
        if (self.link_check.next_due_ns()).is_none_or(|due_ns| due_ns > now_ns) {
            return;
        }
        self.judge(now_ns, hosts, counts, |check, facts, changes| {
            check.tick(now_ns, facts, changes);
        });
    }

    /// Forgets what hosts said, because another topology follows, and tells what is named no more.
    pub(super) fn restart_link_check(
        &mut self,
        now_ns: u64,
        hosts: Hosts<'_>,
        counts: &mut ServiceCounts,
    ) {
        self.judge(now_ns, hosts, counts, |check, facts, changes| {
            check.restart(facts, changes);
        });
    }

    /// Tells the engine and operators of a change of a link or a host.
    fn tell_change(&mut self, change: LinkChange, hosts: Hosts<'_>, counts: &mut ServiceCounts) {
        match change {
            LinkChange::Capacity(link) => self.push_capacity(link),
            LinkChange::State {
                link,
                before,
                evidence,
            } => {
                if evidence.state > LinkState::AsTold {
                    counts.links_named.count(evidence.state.label());
                }
                self.log_link_state(link, before, &evidence, hosts);
            }
            LinkChange::Fault { host, fault, has } => {
                let seen_at = self.link_check.fault_seen_at(host, fault);
                let seen_at = seen_at.map(|host| self.host_name(host.0));
                let host = self.host_name(host.0);
                if has {
                    counts.hosts_named.count(fault.label());
                    tracing::warn!(host, fault = fault.label(), seen_at, "a host has a fault");
                } else {
                    tracing::info!(host, fault = fault.label(), "a host has a fault no more");
                }
            }
        }
    }

    fn log_link_state(
        &self,
        link: LinkId,
        before: LinkState,
        evidence: &LinkEvidence,
        hosts: Hosts<'_>,
    ) {
        let name = link_name(&self.topology, link);
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
        let cause = self.shared_status(link, hosts).map(|shared| shared.cause);
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

    /// Notes whether the allocator has room for all flows of a session's host.
    pub(super) fn note_flows_beyond(&mut self, now_ns: u64, session: &Session) {
        if let Some(peer) = &session.peer {
            let has = session.has_beyond();
            self.link_check.set_flows_beyond(now_ns, peer.host, has);
        }
    }
}

fn visit_paths(hosts: Hosts<'_>, from: HostId, to: HostId, visit: &mut dyn FnMut(&[u32])) {
    let Some(session) = hosts.session(from) else {
        return;
    };
    for slot in 0..session.proto.slots().min(MAX_FLOWS) {
        let flow = session.proto.flow_on(slot);
        if flow.is_some_and(|(record, _)| record.dst_host() == to.0) {
            visit(session.flows.path(slot));
        }
    }
}

impl Report<'_> {
    /// Returns what is known of a link, as of the newest check.
    pub fn link_evidence(&self, link: LinkId) -> LinkEvidence {
        let now_ns = self.hub.network.feeds.means_ns();
        let network = &self.hub.network;
        network.with_facts(now_ns, self.hub.hosts(), |facts| {
            network.link_check.evidence(link, facts)
        })
    }

    /// Returns the state of a shared link; `None` if it is not shared.
    pub(super) fn shared_status(&self, link: LinkId) -> Option<SharedStatus> {
        self.hub.network.shared_status(link, self.hub.hosts())
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
            cause: self.shared_status(link).map(|shared| shared.cause),
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
