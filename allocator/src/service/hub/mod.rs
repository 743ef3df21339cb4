//! The hub: every session, every flow, the topology and the kill switch, without I/O or a clock.
//!
//! | module | what |
//! |---|---|
//! | `mod.rs` | the hub and its interface to transports, operators and the engine |
//! | `settings` | its settings |
//! | `session` | one session: protocol state, flows, budgets |
//! | `pre_hello` | connections before their Hello, by certificate |
//! | `session_flows` | state of a session's flows, by slot |
//! | `admission`, `sealed_offer` | from a Hello to a session or a refusal; ports of sealed datagrams |
//! | `ready` | sessions that have something to send |
//! | `flows` | flowlet starts and ends to engine events, rates to sessions |
//! | `class_rules` | known classes, and whose demands count |
//! | `token_bucket` | rate limits |
//! | `sweep` | a pass over all flows in slices, after a change |
//! | `network` | the network as it is known; failures, repairs, shared links; what the engine is told |
//! | `feeds` | telemetry of hosts, traffic of others as operators tell it |
//! | `checking` | what was handed out against what hosts' interfaces carried |
//! | `conduct`, `orders` | the kill switch, releases of single hosts and the rollout; their progress |
//! | `survey` | flows and links for operators, in slices |
//! | `report` | the view for operators: status of sessions, flows and links |
//! | `link_survey` | loads of links and largest flows, in slices |
//! | `members` | hosts that join at run time, and what sessions are told of them |
//! | `reasons` | labels of reasons in metrics |
//!
//! Work per datagram is proportional to its records; work per rate is constant. Sessions with
//! something to send stand in a list ([`Hub::drain_ready`]), so no call scans the others.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;

use bytes::Bytes;
use ratewright_proto::control::RefusalCode;
use ratewright_proto::records::FlowId;
use ratewright_proto::sealed::Cipher;
use ratewright_proto::server::ServerSession;
use ratewright_topology::{HostId, Tenure, Topology};

use crate::engine::{DurationFigures, EngineEvent};
use crate::feeds::Reporter;
use crate::feeds::gnmic::EventsRead;

use super::admin_request::{TopologyChange, TopologyChangeError, TopologyReport};
use super::config::{PacingOrder, RelayIdentity, Trust};
use super::status::{ReleaseReport, ServiceCounts};
use super::tls::PeerCertificate;

mod admission;
mod checking;
mod class_rules;
mod conduct;
mod feeds;
mod flows;
mod link_survey;
mod members;
mod network;
mod orders;
mod pre_hello;
mod ready;
mod reasons;
mod report;
mod sealed_offer;
mod session;
mod session_flows;
mod settings;
mod survey;
mod sweep;
#[cfg(test)]
mod tests;
mod token_bucket;

use admission::Admission;
pub use admission::check_welcome;
use conduct::Conduct;
use flows::Flows;
pub use link_survey::LinkSurvey;
use members::{Membership, Places};
pub use network::{Network, capacities_bps};
pub use orders::UnknownHost;
pub use ready::ReadySession;
use ready::ReadySessions;
pub use report::{Report, TransportFacts};
use sealed_offer::SealedOffer;
use session::{Hosts, Release, Session, Sessions};
use session_flows::SessionFlows;
pub use session_flows::UnmanagedReason;
pub use settings::{HubSettings, SessionTimers};
pub use survey::SurveyPlace;
pub(in crate::service) use token_bucket::TokenBucket;

/// Maximum backlog of engine events. Beyond it the hub drops datagrams, and the protocol repeats
/// their state.
const MAX_ENGINE_BACKLOG: usize = 1 << 16;

/// Connections beyond the limit of sessions: they wait for their Hello or deliver a last message. A
/// host that is one too many thus learns of the limit in a refusal.
const MAX_UNACCEPTED: usize = 256;

/// Refusal of a connection: the limit of sessions and waiting connections is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{connections} connections are open, which is the limit")]
pub struct SessionsFull {
    /// Open connections.
    pub connections: usize,
}

/// Every session, every flow, the topology and the kill switch.
pub struct Hub {
    settings: HubSettings,
    network: Network,
    admission: Admission,
    sessions: Sessions,
    members: Membership,
    conduct: Conduct,
    flows: Flows,
    ready: ReadySessions,
    counts: ServiceCounts,
}

impl Hub {
    /// Creates a hub without sessions. The engine must already have the topology's capacities.
    pub fn new(settings: HubSettings, topology: Topology, released: bool) -> Self {
        Self {
            admission: Admission::new(&settings),
            sessions: Sessions::default(),
            members: Membership::default(),
            conduct: Conduct::new(released),
            flows: Flows::new(&settings, network::link_count(&topology)),
            ready: ReadySessions::default(),
            counts: ServiceCounts::default(),
            network: Network::new(&settings, topology),
            settings,
        }
    }

    /// Counts since the start.
    pub fn counts(&self) -> &ServiceCounts {
        &self.counts
    }

    /// Counts since the start, for what the transport counts.
    pub fn counts_mut(&mut self) -> &mut ServiceCounts {
        &mut self.counts
    }

    /// Returns the durations from taking a start to handing its first rate to its session.
    pub fn first_rates(&self) -> DurationFigures {
        self.flows.first_rates.figures()
    }

    /// Returns the number of flows to which the engine allocates.
    pub fn flow_count(&self) -> u32 {
        self.flows.tallies.allocated
    }

    /// Returns the numbers of all sessions.
    pub fn session_ids(&self) -> Vec<u32> {
        self.sessions.numbers().collect()
    }

    /// Returns the active flows of a session and their newest rates, in bit/s.
    pub fn rates(&self, id: u32) -> impl Iterator<Item = (FlowId, u64)> + '_ {
        let flows = self.sessions.get(id).map(|session| session.proto.flows());
        let rates = flows.into_iter().flatten();
        rates.map(|(record, rate_bps)| (record.flow(), rate_bps))
    }

    /// Returns the incarnation of the allocator.
    pub fn epoch(&self) -> u64 {
        self.settings.epoch
    }

    /// Returns what operators see.
    pub fn report(&self) -> Report<'_> {
        Report { hub: self }
    }

    /// Returns the network as it is known.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Returns the network, for what operators and the engine say of it.
    pub fn network_mut(&mut self) -> &mut Network {
        &mut self.network
    }

    /// Returns the hosts with a session.
    fn hosts(&self) -> Hosts<'_> {
        self.admission.hosts(&self.sessions)
    }

    /// Returns the number of a host's session.
    fn session_of(&self, host: &str) -> Option<u32> {
        let host = self.network.topology.host_by_name(host)?;
        self.admission.registry.session_of(host.0)
    }

    /// Returns the topology with all changes so far.
    pub fn topology(&self) -> &Topology {
        &self.network.topology
    }

    /// Offers sealed datagrams to hosts. Session `id` uses port `ports[id % ports.len()]`, at
    /// `address` or, without one, at the address of the QUIC session.
    pub fn offer_sealed(&mut self, ports: Vec<u16>, cipher: Cipher, address: Option<Ipv4Addr>) {
        self.admission.sealed = SealedOffer::new(ports, cipher, address);
    }

    /// Withdraws a lost port: no later session is offered it.
    pub fn sealed_port_lost(&mut self, index: usize) {
        self.admission.sealed.lose(index);
    }

    /// Puts other settings in force. The caller then offers all flows to the engine again with
    /// [`restart_flows`](Self::restart_flows), since classes may differ.
    ///
    /// Hosts learn the classes when they connect. If names or ids have changed, all sessions end
    /// and hosts connect again; otherwise flows would land in the wrong class. Sessions of hosts
    /// that are no longer trusted end too.
    pub fn reconfigure(&mut self, now_ns: u64, settings: HubSettings) {
        if admission::class_infos(&settings.classes)
            != admission::class_infos(&self.settings.classes)
        {
            let reason = "the classes have changed; connect again";
            self.refuse_all(now_ns, RefusalCode::Draining, reason);
        }
        // A daemon hears of it with its session. One that measures for nothing may go on.
        let interval_ns = feeds::telemetry_interval_ns(&settings);
        let terms = settings.feeds.sync_terms();
        // Who tells a state has told what was refused, and would not repeat it.
        let misses = terms.is_some() && settings.feeds.takes_more_than(&self.settings.feeds);
        let differs = interval_ns != feeds::telemetry_interval_ns(&self.settings)
            || terms != self.settings.feeds.sync_terms()
            || misses;
        if interval_ns > 0 && differs {
            let reason = "the terms of measurements have changed; connect again";
            self.refuse_all(now_ns, RefusalCode::Draining, reason);
        }
        self.flows.reconfigure(&settings);
        self.admission.reconfigure(&settings);
        for session in self.sessions.values_mut() {
            let limits = &settings.limits;
            session.starts.set_rate(limits.max_starts_per_s);
            session.demands.set_rate(limits.max_demand_changes_per_s);
            session.datagrams.set_rate(limits.max_datagrams_per_s);
            session.control.set_rate(limits.max_control_bytes_per_s);
        }
        self.network.reconfigure(&settings);
        self.settings = settings;
        self.network.push_shared(&mut self.counts);
        self.refuse_distrusted(now_ns);
        self.apply_orders(now_ns);
    }

    /// Applies a notification of a failure, a repair or another capacity. Returns the number of
    /// links whose capacity differs.
    ///
    /// Flows take their new paths as [`sweep`](Self::sweep) visits them; then
    /// [`topology_report`](Self::topology_report) gives the result.
    ///
    /// # Errors
    /// The notification names something that does not exist. Nothing has changed.
    pub fn change_topology(
        &mut self,
        now_ns: u64,
        change: &TopologyChange,
    ) -> Result<usize, TopologyChangeError> {
        let epoch = self.network.topology.epoch();
        let applied = self.network.change(change)?;
        // Connected hosts need no message: the hosts and the hash seed, which they know, are the
        // same. Hosts that connect from now on get the new version.
        if self.network.topology.epoch() != epoch {
            self.admission.snapshot = None;
        }
        if applied.reroutes {
            let all: Vec<u32> = self.sessions.numbers().collect();
            self.flows.sweep.again(now_ns, &all, applied.dead);
        }
        Ok(applied.links)
    }

    /// Returns the result of a notification that changed `links_changed` links when
    /// `reroutes_before` flows had been rerouted since the start.
    pub fn topology_report(&self, links_changed: usize, reroutes_before: u64) -> TopologyReport {
        let rerouted = self.counts.reroutes - reroutes_before;
        TopologyReport {
            topology_epoch: u64::from(self.network.topology.epoch()),
            links_changed,
            flows_rerouted: usize::try_from(rerouted).unwrap_or(usize::MAX),
            flows_unroutable: self.flows.tallies.unroutable as usize,
        }
    }

    /// Puts another topology in force. Sessions stay if every host in it keeps its id. Otherwise
    /// all sessions end and hosts connect again, since ids in datagrams in flight would be misread.
    ///
    /// The caller must have made an engine for this topology; see
    /// [`restart_flows`](Self::restart_flows).
    pub fn replace_topology(&mut self, now_ns: u64, mut topology: Topology) {
        let before = &self.network.topology;
        // Epochs keep growing over a reload, so a host never takes a new version for an old one.
        topology.succeed(before);
        members::carry_members(before, &mut topology);
        let keeps = |name: &str, id: HostId| topology.host_by_name(name) == Some(id);
        // A spare place had no flows: a host may stand there now.
        let mut placed = (before.hosts().iter()).filter(|host| host.tenure != Tenure::Spare);
        let renumbered = placed.any(|host| !keeps(&host.name, host.id));
        // Hosts say all anew.
        let hosts = self.admission.hosts(&self.sessions);
        (self.network).restart_link_check(now_ns, hosts, &mut self.counts);
        self.network.replace_topology(topology);
        if renumbered {
            let reason = "the topology's hosts were renumbered; connect again";
            self.refuse_all(now_ns, RefusalCode::Draining, reason);
        }
        self.broadcast_topology();
        self.members.recount(&self.network.topology, &self.sessions);
    }

    /// Sends the present topology to all connected hosts.
    fn broadcast_topology(&mut self) {
        self.admission.snapshot = None;
        let snapshot = self.admission.snapshot(&self.network.topology);
        for session in self.sessions.values_mut() {
            let Some(peer) = &session.peer else { continue };
            // One that was refused may have no place in this topology.
            if session.proto.is_established() {
                let access = network::access_of(&self.network.topology, peer.host);
                session.proto.set_access(access);
            }
            if let Err(error) = session.proto.set_topology(snapshot.clone()) {
                tracing::error!(%error, "a host cannot be told of the topology");
            }
        }
        self.mark_all_ready();
    }

    /// Hands every flow to a new engine that has none and takes links to have the capacities
    /// `known_bps`.
    ///
    /// Flows follow as [`sweep`](Self::sweep) visits them. Until then
    /// [`is_restarting`](Self::is_restarting) is true, and its rates must not be sent.
    pub fn restart_flows(&mut self, now_ns: u64, known_bps: &[f64]) {
        self.network.restart(now_ns, known_bps);
        let links = network::link_count(&self.network.topology);
        self.flows.restart(links, self.sessions.numbers());
    }

    /// Takes a datagram of the configured collector.
    pub fn on_collector(&mut self, now_ns: u64, read: &EventsRead) {
        self.counts.collector_datagrams += 1;
        self.counts.collector_unknown += read.unknown;
        for (reason, events) in &read.unused {
            let unused = &mut self.counts.collector_unused;
            unused.add(reason.as_str(), events.count);
        }
        let hosts = self.admission.hosts(&self.sessions);
        let (reporter, telemetry) = (Reporter::Collector, &read.telemetry);
        (self.network).take_telemetry(now_ns, reporter, telemetry, hosts);
    }

    /// Applies what the feeds ask for, forgets reports that have expired, and tells sessions of
    /// members: a bounded part.
    pub fn on_own_timeout(&mut self, now_ns: u64) {
        self.apply_feeds(now_ns);
        let mut places = Places {
            settings: &self.settings,
            topology: &mut self.network.topology,
            counts: &mut self.counts,
        };
        let untold = (self.members).advance(now_ns, &mut places, &self.sessions);
        for id in untold {
            self.tell_members(id);
        }
    }

    fn apply_feeds(&mut self, now_ns: u64) {
        // An engine that stalls must not make the queue grow without bound.
        if self.network.engine_events.len() >= MAX_ENGINE_BACKLOG {
            return;
        }
        let hosts = self.admission.hosts(&self.sessions);
        self.network.end_shared(now_ns, &mut self.counts);
        (self.network).check_links(now_ns, hosts, &mut self.counts);
        self.give_room(now_ns);
        for (sender, flow_id) in self.network.apply_feeds(now_ns) {
            let id = self.admission.registry.session_of(sender.0);
            let Some(position) = id.and_then(|id| self.sessions.position(id)) else {
                continue;
            };
            let flow = self.sessions[position].proto.state(flow_id);
            if flow.is_some_and(|flow| flow.number_in(self.flows.engine_number).is_some()) {
                self.push_demand(position, flow_id.slot());
            }
        }
    }

    /// Returns the time of the next [`on_own_timeout`](Self::on_own_timeout).
    pub fn next_own_timeout_ns(&self) -> Option<u64> {
        let due = [
            self.network.feeds.next_due_ns(),
            self.network.shared.next_due_ns(),
            self.network.link_check.next_due_ns(),
            self.next_room_ns(),
            self.members.next_ns(),
        ];
        due.into_iter().flatten().min()
    }

    /// True while the kill switch is on.
    pub fn is_released(&self) -> bool {
        self.conduct.released_ns().is_some()
    }

    /// Turns the kill switch and returns its progress.
    pub fn set_released(&mut self, now_ns: u64, released: bool) -> ReleaseReport {
        if released != self.is_released() {
            self.conduct.turn(now_ns, released);
            self.apply_orders(now_ns);
            if released {
                self.conduct.await_earlier_answers(now_ns, &self.sessions);
            }
        }
        self.report().release_report(now_ns)
    }

    /// True while a host may still act on a rate although the kill switch is on. Each session and
    /// departed host is checked until it is free and then removed, so repeated calls cost little.
    pub fn release_waits(&mut self, now_ns: u64) -> bool {
        let hosts = self.admission.hosts(&self.sessions);
        let (lease_ns, topology) = (self.settings.lease_ns, &self.network.topology);
        self.conduct.waits(now_ns, lease_ns, topology, hosts)
    }

    /// Releases one host, or lets it follow the rollout again. Kept until the allocator ends.
    ///
    /// # Errors
    /// The topology does not have the host.
    pub fn set_host_released(
        &mut self,
        now_ns: u64,
        host: &str,
        released: bool,
    ) -> Result<ReleaseReport, UnknownHost> {
        // The topology bounds the list.
        if self.network.topology.host_by_name(host).is_none() {
            return Err(UnknownHost(host.to_owned()));
        }
        self.conduct.set_host_released(host, released);
        if let Some(id) = self.session_of(host)
            && self.apply_order(now_ns, id)
        {
            self.pacing_changed(now_ns, [id]);
        }
        Ok(self.report().host_release_report(now_ns, host))
    }

    /// Tells every host whose conduct has changed. Visits every session.
    fn apply_orders(&mut self, now_ns: u64) {
        let mut ids: Vec<u32> = self.sessions.numbers().collect();
        ids.retain(|&id| self.apply_order(now_ns, id));
        self.pacing_changed(now_ns, ids);
    }

    /// Tells the host of a session its conduct, if that has changed; returns true if so.
    fn apply_order(&mut self, now_ns: u64, id: u32) -> bool {
        let Some(session) = self.sessions.get_mut(id) else {
            return false;
        };
        let Some(peer) = &session.peer else {
            return false;
        };
        let (host, rollout) = (&peer.hello.host_name, &self.settings.rollout);
        let (order, _) = (self.conduct).order_of(host, &self.network.topology, rollout);
        let changed = self.conduct.apply(now_ns, order, session);
        if changed {
            self.ready.mark(session);
        }
        changed
    }

    /// Opens a session for a new transport connection. It takes no flows before its Hello is
    /// accepted. If its certificate already has the maximum of connections without a Hello, the
    /// oldest of them ends.
    ///
    /// # Errors
    /// The limit is reached; the caller closes the connection.
    pub fn open(&mut self, now_ns: u64, certificate: PeerCertificate) -> Result<u32, SessionsFull> {
        self.open_through(now_ns, certificate, None)
    }

    /// Opens a session for a host that presented its certificate to `relay`, if there is one.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_through(
        &mut self,
        now_ns: u64,
        certificate: PeerCertificate,
        relay: Option<RelayIdentity>,
    ) -> Result<u32, SessionsFull> {
        let connections = self.sessions.len();
        if connections >= self.settings.limits.max_sessions as usize + MAX_UNACCEPTED {
            self.counts.connections_rejected.count("table_full");
            return Err(SessionsFull { connections });
        }
        let id = (self.admission.session_numbers.take()).ok_or(SessionsFull { connections })?;
        // One certificate must not take all places of connections without a Hello.
        if let Some(oldest) = self.admission.pre_hello.add(certificate.fingerprint, id) {
            self.drop_session(now_ns, oldest, "crowded_out");
        }
        let limits = &self.settings.limits;
        let session = Session {
            id,
            proto: ServerSession::new(now_ns, Arc::clone(&self.admission.server_config)),
            certificate,
            relay,
            peer: None,
            flows: SessionFlows::default(),
            allocated: 0,
            unroutable: 0,
            awaiting_credit: 0,
            awaiting_room: 0,
            deferred_ns: None,
            demands: TokenBucket::new(limits.max_demand_changes_per_s, now_ns),
            release: Release::No,
            members_version: None,
            order: PacingOrder::Pace,
            observes: false,
            starts: TokenBucket::new(limits.max_starts_per_s, now_ns),
            datagrams: TokenBucket::new(limits.max_datagrams_per_s, now_ns),
            control: TokenBucket::new(limits.max_control_bytes_per_s, now_ns),
            is_ready: false,
            closing: None,
        };
        self.sessions.insert(id, Box::new(session));
        self.mark_ready(id);
        Ok(id)
    }

    /// Adds a session to the list of ready sessions, once.
    fn mark_ready(&mut self, id: u32) {
        if let Some(session) = self.sessions.get_mut(id) {
            self.ready.mark(session);
        }
    }

    fn mark_all_ready(&mut self) {
        for session in self.sessions.values_mut() {
            self.ready.mark(session);
        }
    }

    /// Moves the ready sessions to `ready`, those with a flow that waits for its first rate first.
    ///
    /// These are urgent. So are sessions that owe their peer a datagram in any case: an answer to a
    /// probe, or an acknowledgement on which the peer waits.
    pub fn drain_ready(&mut self, now_ns: u64, ready: &mut Vec<ReadySession>) {
        self.ready.drain(now_ns, &mut self.sessions, ready);
    }

    /// Returns the rules of trust: which hosts may have a session, and which relays may serve them.
    pub fn trust(&self) -> &Trust {
        &self.settings.trust
    }

    /// True if events wait for the engine.
    pub fn has_engine_events(&self) -> bool {
        !self.network.engine_events.is_empty()
    }

    /// Queue of events for the engine, in order.
    pub fn engine_events(&mut self) -> &mut VecDeque<EngineEvent> {
        &mut self.network.engine_events
    }

    /// Returns the next bytes for a session's control stream: a frame or a part of one.
    pub fn poll_control(&mut self, id: u32) -> Option<Bytes> {
        self.sessions.get_mut(id)?.proto.poll_control()
    }

    /// Writes the next datagram of a session into `out`. False if there is none.
    pub fn poll_datagram(
        &mut self,
        now_ns: u64,
        id: u32,
        max_bytes: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        self.sessions
            .get_mut(id)
            .is_some_and(|session| session.proto.poll_datagram(now_ns, max_bytes, out))
    }

    /// Returns the time of the next [`on_timeout`](Self::on_timeout) of a session.
    pub fn next_timeout(&self, id: u32) -> Option<u64> {
        let session = self.sessions.get(id)?;
        [session.proto.next_timeout(), session.deferred_ns]
            .into_iter()
            .flatten()
            .min()
    }

    /// Serves a session whose timeout has come.
    pub fn on_timeout(&mut self, now_ns: u64, id: u32) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let waited = session.deferred_ns.is_some_and(|at_ns| at_ns <= now_ns);
        session.proto.on_timeout(now_ns);
        self.take_events(now_ns, id);
        if waited && let Some(position) = self.sessions.position(id) {
            self.serve_deferred(now_ns, position);
        }
    }

    /// True while a session's peer has not sent its Hello.
    pub fn awaits_hello(&self, id: u32) -> bool {
        self.sessions
            .get(id)
            .is_some_and(|session| session.peer.is_none() && session.closing.is_none())
    }

    /// True once a session's host has sent a datagram after its Welcome, or if the session is over.
    pub fn has_answered(&self, id: u32) -> bool {
        self.sessions.get(id).is_none_or(|session| {
            session.closing.is_some() || session.proto.counters().datagrams_received > 0
        })
    }

    /// Returns the reason for which a session's transport closes once its control frames are
    /// written.
    pub fn closing(&self, id: u32) -> Option<&'static str> {
        self.sessions.get(id)?.closing
    }
}
