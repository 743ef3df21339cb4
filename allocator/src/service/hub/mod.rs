//! The hub: every session, every flow, the topology and the kill switch, without I/O or a clock.
//!
//! | module | what |
//! |---|---|
//! | `mod.rs` | the hub and its interface to transports |
//! | `session` | one session: protocol state, flows, budgets |
//! | `pre_hello` | connections before their Hello, by certificate |
//! | `session_flows` | state of a session's flows, by slot |
//! | `admission`, `sealed_offer` | from a Hello to a session or a refusal; ports of sealed datagrams |
//! | `ready` | sessions that have something to send |
//! | `flows` | flowlet starts and ends to engine events, rates to sessions |
//! | `class_rules` | known classes, and whose demands count |
//! | `token_bucket` | rate limits |
//! | `sweep` | a pass over all flows in slices, after a change |
//! | `network` | the network as it is known; failures, repairs, a new topology |
//! | `feeds` | telemetry of sessions, traffic of others as operators tell it |
//! | `sharing` | links that paced flows share with traffic which nobody paces |
//! | `checking` | what was handed out against what hosts' interfaces carried |
//! | `conduct`, `orders` | the kill switch, releases of single hosts and the rollout; what hosts are told of them |
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
use ratewright_proto::server::{ServerConfig, ServerSession};
use ratewright_topology::Topology;

use crate::engine::{DurationFigures, EngineEvent};
use crate::feeds::FeedsConfig;

use super::config::{
    ClassConfig, Limits, MembershipConfig, PacingOrder, RelayIdentity, Rollout, Trust,
};
use super::status::ServiceCounts;
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
mod sharing;
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
use members::Membership;
pub use network::{Network, capacities_bps};
pub use orders::UnknownHost;
pub use ready::ReadySession;
use ready::ReadySessions;
pub use report::{Report, TransportFacts};
use sealed_offer::SealedOffer;
use session::{Release, Session, Sessions};
use session_flows::SessionFlows;
pub use session_flows::UnmanagedReason;
pub use survey::SurveyPlace;
pub(in crate::service) use token_bucket::TokenBucket;

/// Maximum backlog of engine events. Beyond it the hub drops datagrams, and the protocol repeats
/// their state.
const MAX_ENGINE_BACKLOG: usize = 1 << 16;

/// Settings of the hub, given at start and at every reload.
#[derive(Debug, Clone, PartialEq)]
pub struct HubSettings {
    /// This incarnation of the allocator.
    pub epoch: u64,
    /// Lease: lifetime of a rate after the newest datagram from the allocator.
    pub lease_ns: u64,
    /// Minimum time between two datagrams of later rates to one host.
    pub update_interval_ns: u64,
    /// Maximum delay of an acknowledgement on which no sender waits.
    pub ack_delay_ns: u64,
    /// Liveness time-out of hosts: time without a datagram after which a daemon gives its session
    /// up. The hub ends a session after a multiple of that, but a new one may replace it before.
    pub liveness_ns: u64,
    /// Relative change of a rate below which no update is sent.
    pub threshold: f64,
    /// Maximum share of a link's capacity that reports of external traffic may take.
    pub external_share: f64,
    /// Settings of the feeds.
    pub feeds: FeedsConfig,
    /// Bounds on the state that peers can create.
    pub limits: Limits,
    /// Hosts that may have a session.
    pub trust: Trust,
    /// Hosts that may join at run time.
    pub membership: MembershipConfig,
    /// Hosts that pace.
    pub rollout: Rollout,
    /// Flow classes.
    pub classes: Vec<ClassConfig>,
    /// Timers of sessions.
    pub timers: SessionTimers,
}

/// Timers of sessions that no configuration names: hosts and allocator of every deployment have
/// the same. A simulation of others' parameters has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionTimers {
    /// Multiple of the liveness time-out after which the hub ends a session.
    pub liveness_factor: u64,
    /// Maximum of unacknowledged datagrams at which a host is still sent later rates.
    pub updates_in_flight: usize,
    /// Floor of the retransmission time-out.
    pub min_rto_ns: u64,
    /// Retransmission time-out before the first round trip is measured.
    pub initial_rto_ns: u64,
    /// Ceiling of the retransmission time-out, back-off included.
    pub max_rto_ns: u64,
}

impl Default for SessionTimers {
    fn default() -> Self {
        let ServerConfig {
            liveness_factor,
            min_rto_ns,
            initial_rto_ns,
            max_rto_ns,
            ..
        } = ServerConfig::default();
        Self {
            liveness_factor,
            updates_in_flight: 2,
            min_rto_ns,
            initial_rto_ns,
            max_rto_ns,
        }
    }
}

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
    engine_events: VecDeque<EngineEvent>,
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
            engine_events: VecDeque::new(),
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
        let differs = interval_ns != self.telemetry_interval_ns()
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
        self.push_shared();
        self.refuse_distrusted(now_ns);
        self.apply_orders(now_ns);
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
        !self.engine_events.is_empty()
    }

    /// Queue of events for the engine, in order.
    pub fn engine_events(&mut self) -> &mut VecDeque<EngineEvent> {
        &mut self.engine_events
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
