//! The hub: every session, every flow, the topology and the kill switch, without I/O or a clock.
//!
//! | module | what |
//! |---|---|
//! | `mod.rs` | the hub, and what a transport calls |
//! | `session` | what is held per session |
//! | `pre_hello` | connections that have not introduced themselves, by certificate |
//! | `session_flows` | a session's flows by slot |
//! | `admission` | from a Hello to a session or a refusal |
//! | `flows` | flowlet starts and ends to engine events, rates to sessions |
//! | `sweep` | a walk over all flows, a few at a time |
//! | `network` | failures, repairs, a new topology |
//! | `external` | traffic that is not ours, as feeds tell |
//! | `release` | the kill switch |
//! | `report` | what is told about it all |
//! | `reasons` | names of reasons in metrics |
//!
//! Work per datagram is proportional to its records; work per rate is constant. Sessions that have
//! something to send stand in a list ([`Hub::drain_ready`]), so nobody walks over the others.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;

use bytes::Bytes;
use indexmap::IndexMap;
use ratewright_proto::control::{EncodedTopology, RefusalCode};
use ratewright_proto::sealed::Cipher;
use ratewright_proto::server::registry::Registry;
use ratewright_proto::server::{ServerConfig, ServerSession};
use ratewright_topology::Topology;
use rustc_hash::FxBuildHasher;

use crate::engine::EngineEvent;

use super::config::{ClassConfig, Limits, MAX_CLASS_ID, RelayIdentity, Trust};
use super::status::ServiceCounts;
use super::tls::PeerCertificate;

mod admission;
mod external;
mod flows;
mod network;
mod pre_hello;
mod reasons;
mod release;
mod report;
mod session;
mod session_flows;
mod sweep;
#[cfg(test)]
mod tests;
mod token_bucket;

pub use admission::check_welcome;
use external::ExternalLoads;
pub use network::capacities_bps;
use pre_hello::PreHelloConnections;
pub use report::TransportFacts;
pub use session::UnmanagedReason;
use session::{Release, Session, Tallies};
use session_flows::SessionFlows;
use sweep::Sweep;
use token_bucket::TokenBucket;

/// Engine events that wait at most before datagrams are dropped (and come again, by the protocol).
const MAX_ENGINE_BACKLOG: usize = 1 << 16;

/// A session that has something to send, or another timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadySession {
    /// The session.
    pub id: u32,
    /// What it has to send is not to wait behind later rates.
    pub urgent: bool,
}

/// What the hub is told at start and at every reload.
#[derive(Debug, Clone, PartialEq)]
pub struct HubSettings {
    /// This incarnation of the allocator.
    pub epoch: u64,
    /// How long a rate holds without word from us.
    pub lease_ns: u64,
    /// Least time between two datagrams that a host is sent for later rates.
    pub update_interval_ns: u64,
    /// How long an acknowledgement that nobody waits for may wait for company.
    pub ack_delay_ns: u64,
    /// A session that is silent for this long is dropped.
    pub liveness_ns: u64,
    /// Relative change of a rate below which no update is sent.
    pub threshold: f64,
    /// Share of a link's capacity that external traffic may take, at most, by what is told of it.
    pub external_share: f64,
    /// Bounds on what peers can make us hold.
    pub limits: Limits,
    /// Which hosts may have a session.
    pub trust: Trust,
    /// Flow classes.
    pub classes: Vec<ClassConfig>,
}

/// Transport connections that may wait for their Hello, or for their last word to arrive, beyond the
/// limit of sessions: a host that comes when it is reached is told so.
const MAX_UNACCEPTED: usize = 256;

/// No session could be opened: the limit is reached, and as many connections wait as may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{connections} connections are open, which is the limit")]
pub struct SessionsFull {
    /// How many.
    pub connections: usize,
}

/// Every session, every flow, the topology and the kill switch.
pub struct Hub {
    settings: HubSettings,
    server_config: Arc<ServerConfig>,
    topology: Topology,
    /// What links can carry by the topology's file, by link index.
    nominal_bps: Vec<u64>,
    /// What hosts are told of the topology.
    snapshot: Option<EncodedTopology>,
    class_known: [bool; MAX_CLASS_ID as usize + 1],
    /// Classes whose flows may take what they get, whatever they are said to use.
    demands_ignored: [bool; MAX_CLASS_ID as usize + 1],
    /// Boxed, so that looking one up touches nothing of the others, nor of itself.
    sessions: IndexMap<u32, Box<Session>, FxBuildHasher>,
    registry: Registry,
    pre_hello: PreHelloConnections,
    last_session: u32,
    /// Flows by where they stand, over all sessions.
    tallies: Tallies,
    /// The engine's number: every new one has another.
    engine: u8,
    sweep: Sweep,
    /// Starts and changes of demands, of all sessions.
    starts: TokenBucket,
    engine_events: VecDeque<EngineEvent>,
    ready: Vec<u32>,
    /// Those of them with a flow that waits for its first rate.
    ready_first: Vec<u32>,
    released_ns: Option<u64>,
    /// Sessions that have been told of the kill switch, and when, oldest first; among them all that have not answered.
    unanswered: VecDeque<(u64, u32)>,
    /// Hosts whose sessions ended within the last lease: they may still act on a rate.
    departed: VecDeque<(String, u64)>,
    counts: ServiceCounts,
    external: ExternalLoads,
    /// Ports that take sealed datagrams, by shard, unless they are lost; none where QUIC carries everything.
    sealed_ports: Vec<Option<u16>>,
    sealed_cipher: Cipher,
    sealed_address: Option<Ipv4Addr>,
}

impl Hub {
    /// A hub without sessions. The engine is expected to know the topology's capacities.
    pub fn new(settings: HubSettings, topology: Topology, released: bool) -> Self {
        Self {
            class_known: classes_that(&settings.classes, |_| true),
            demands_ignored: classes_that(&settings.classes, |class| !class.measured_demand),
            starts: TokenBucket::new(settings.limits.max_total_starts_per_s, 0),
            server_config: server_config(&settings),
            registry: Registry::new(settings.liveness_ns),
            pre_hello: PreHelloConnections::default(),
            settings,
            snapshot: None,
            nominal_bps: network::nominal_bps(&topology),
            topology,
            sessions: IndexMap::default(),
            last_session: 0,
            tallies: Tallies::default(),
            engine: 0,
            sweep: Sweep::default(),
            engine_events: VecDeque::new(),
            ready: Vec::new(),
            ready_first: Vec::new(),
            released_ns: released.then_some(0),
            unanswered: VecDeque::new(),
            departed: VecDeque::new(),
            counts: ServiceCounts::default(),
            external: ExternalLoads::default(),
            sealed_ports: Vec::new(),
            sealed_cipher: Cipher::default(),
            sealed_address: None,
        }
    }

    /// Offers sealed datagrams to hosts that can send them: session `id` is served by port
    /// `ports[id % ports.len()]`, of the QUIC session's address or of another one.
    pub fn offer_sealed(&mut self, ports: Vec<u16>, cipher: Cipher, address: Option<Ipv4Addr>) {
        self.sealed_ports = ports.into_iter().map(Some).collect();
        self.sealed_address = address;
        self.sealed_cipher = cipher;
    }

    /// No session is offered this port any more.
    pub fn sealed_port_lost(&mut self, index: usize) {
        if let Some(port) = self.sealed_ports.get_mut(index) {
            *port = None;
        }
    }

    /// Puts other settings in force. Flows are offered to the engine anew by
    /// [`restart_flows`](Self::restart_flows), since classes may be others. Hosts learn the classes when
    /// they connect: if names or ids have changed, all sessions end and hosts connect anew, or their
    /// flows would be put into classes that are others now. Sessions of hosts that are not trusted any
    /// more end.
    pub fn reconfigure(&mut self, now_ns: u64, settings: HubSettings) {
        if admission::class_infos(&settings.classes)
            != admission::class_infos(&self.settings.classes)
        {
            let reason = "the classes have changed; connect again";
            self.refuse_all(now_ns, RefusalCode::Draining, reason);
        }
        self.class_known = classes_that(&settings.classes, |_| true);
        self.demands_ignored = classes_that(&settings.classes, |class| !class.measured_demand);
        self.starts.set_rate(settings.limits.max_total_starts_per_s);
        self.server_config = server_config(&settings);
        for session in self.sessions.values_mut() {
            let limits = &settings.limits;
            session.starts.set_rate(limits.max_starts_per_s);
            session.demands.set_rate(limits.max_demand_changes_per_s);
            session.datagrams.set_rate(limits.max_datagrams_per_s);
            session.control.set_rate(limits.max_control_bytes_per_s);
        }
        self.settings = settings;
        self.refuse_distrusted(now_ns);
    }

    /// A transport connection is up. Its session takes no flows before it was accepted. Where it would be one too many
    /// of its certificate's that have not introduced themselves, the oldest of these ends.
    ///
    /// # Errors
    /// Too many are there; the connection should be closed.
    pub fn open(&mut self, now_ns: u64, certificate: PeerCertificate) -> Result<u32, SessionsFull> {
        self.open_through(now_ns, certificate, None)
    }

    /// The same for a host that shows its certificate to a relay, if it came through one.
    ///
    /// # Errors
    /// As of [`open`](Self::open).
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
        let id = self.free_session_id();
        if let Some(oldest) = self.pre_hello.add(certificate.fingerprint, id) {
            self.drop_session(now_ns, oldest, "crowded_out");
        }
        let limits = &self.settings.limits;
        let session = Session {
            id,
            proto: ServerSession::new(now_ns, Arc::clone(&self.server_config)),
            certificate,
            relay,
            peer: None,
            flows: SessionFlows::default(),
            allocated: 0,
            unroutable: 0,
            deferred_ns: None,
            demands: TokenBucket::new(limits.max_demand_changes_per_s, now_ns),
            release: Release::No,
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

    /// Session numbers are not used twice before all others were: rates and datagrams of a session
    /// that is over find nobody.
    fn free_session_id(&mut self) -> u32 {
        loop {
            self.last_session = self.last_session.wrapping_add(1).max(1);
            if !self.sessions.contains_key(&self.last_session) {
                return self.last_session;
            }
        }
    }

    /// Puts a session on the list of those that have something to send.
    fn mark_ready(&mut self, id: u32) {
        if let Some(session) = self.sessions.get_mut(&id)
            && !std::mem::replace(&mut session.is_ready, true)
        {
            self.ready.push(id);
        }
    }

    fn mark_all_ready(&mut self) {
        for session in self.sessions.values_mut() {
            if !std::mem::replace(&mut session.is_ready, true) {
                self.ready.push(session.id);
            }
        }
    }

    /// Appends the sessions that have something to send, or another timeout, and clears the list. Those with
    /// a flow that waits for its first rate come first. They are urgent, and so are those whose peers are owed
    /// a datagram whether rates wait or not: that asked whether we are there, or wait for an acknowledgement.
    pub fn drain_ready(&mut self, now_ns: u64, ready: &mut Vec<ReadySession>) {
        let sessions = &mut self.sessions;
        let mut take = |list: &mut Vec<u32>, first: bool| {
            ready.extend(list.drain(..).filter_map(|id| {
                let session = sessions.get_mut(&id)?;
                let urgent = first || session.proto.must_send_now(now_ns);
                std::mem::take(&mut session.is_ready).then_some(ReadySession { id, urgent })
            }));
        };
        take(&mut self.ready_first, true);
        take(&mut self.ready, false);
    }

    /// Which hosts may have a session, and which relays may speak for them.
    pub fn trust(&self) -> &Trust {
        &self.settings.trust
    }

    /// Events that wait for the engine, in order.
    pub fn engine_events(&mut self) -> &mut VecDeque<EngineEvent> {
        &mut self.engine_events
    }

    /// The next bytes for a session's control stream: a frame, or a piece of one.
    pub fn poll_control(&mut self, id: u32) -> Option<Bytes> {
        self.sessions.get_mut(&id)?.proto.poll_control()
    }

    /// The next datagram for a session, into `out`.
    pub fn poll_datagram(
        &mut self,
        now_ns: u64,
        id: u32,
        max_bytes: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        self.sessions
            .get_mut(&id)
            .is_some_and(|session| session.proto.poll_datagram(now_ns, max_bytes, out))
    }

    /// When a session wants [`on_timeout`](Self::on_timeout).
    pub fn next_timeout(&self, id: u32) -> Option<u64> {
        let session = self.sessions.get(&id)?;
        [session.proto.next_timeout(), session.deferred_ns]
            .into_iter()
            .flatten()
            .min()
    }

    /// A session's time has come.
    pub fn on_timeout(&mut self, now_ns: u64, id: u32) {
        if let Some(session) = self.sessions.get_mut(&id) {
            let waited = session.deferred_ns.is_some_and(|at_ns| at_ns <= now_ns);
            session.proto.on_timeout(now_ns);
            self.take_events(now_ns, id);
            if waited {
                self.serve_deferred(now_ns, id);
            }
        }
    }

    /// Whether a session's peer is still to say Hello.
    pub fn awaits_hello(&self, id: u32) -> bool {
        self.sessions
            .get(&id)
            .is_some_and(|session| session.peer.is_none() && session.closing.is_none())
    }

    /// Whether anything was heard of a session's host since it was welcomed, or there is nothing to wait for.
    pub fn has_answered(&self, id: u32) -> bool {
        self.sessions.get(&id).is_none_or(|session| {
            session.closing.is_some() || session.proto.counters().datagrams_received > 0
        })
    }

    /// Why a session's transport is to be closed once its control frames are written.
    pub fn closing(&self, id: u32) -> Option<&'static str> {
        self.sessions.get(&id)?.closing
    }
}

fn classes_that(
    classes: &[ClassConfig],
    are: impl Fn(&ClassConfig) -> bool,
) -> [bool; MAX_CLASS_ID as usize + 1] {
    let mut found = [false; MAX_CLASS_ID as usize + 1];
    for class in classes {
        found[usize::from(class.id)] = are(class);
    }
    found
}

/// From a connection that stands to its Hello: hosts of relays have no other deadline.
const HELLO_TIMEOUT_NS: u64 = 2_000_000_000;

/// Datagrams to a host that may be unacknowledged when it is sent later rates.
const UPDATES_IN_FLIGHT: usize = 2;

fn server_config(settings: &HubSettings) -> Arc<ServerConfig> {
    Arc::new(ServerConfig {
        epoch: settings.epoch,
        lease_ns: settings.lease_ns,
        update_interval_ns: settings.update_interval_ns,
        ack_delay_ns: settings.ack_delay_ns,
        updates_in_flight: UPDATES_IN_FLIGHT,
        liveness_ns: settings.liveness_ns,
        max_flows: settings.limits.max_flows_per_session,
        handshake_timeout_ns: HELLO_TIMEOUT_NS,
        ..ServerConfig::default()
    })
}
