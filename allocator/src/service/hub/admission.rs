//! Admission of hosts, from a Hello to a session or a refusal, and the end of sessions.

use std::sync::Arc;

use ratewright_proto::SessionError;
use ratewright_proto::control::{
    AccessCapacity, ClassInfo, ControlMessage, EncodedTopology, FrameDecoder, HOSTS_DIGEST_BYTES,
    Hello, HostsDigest, Refusal, RefusalCode, SealedUdp, TopologySnapshot, Welcome,
};
use ratewright_proto::sealed::Cipher;
use ratewright_proto::server::registry::{Claim, Decision, Registry, superseded};
use ratewright_proto::server::{self, ServerConfig, ServerEvent};
use ratewright_proto::telemetry::Telemetry;
use ratewright_topology::Topology;

use crate::engine::EngineEvent;
use crate::feeds::Reporter;
use crate::service::config::{CONTROL_FRAME_COST_BYTES, ClassConfig, PacingOrder};
use crate::service::session_table::SessionNumbers;

use super::feeds::telemetry_interval_ns;
use super::members::{Places, is_member, prefixes_of};
use super::network::{access_of, snapshot_of};
use super::pre_hello::PreHelloConnections;
use super::sealed_offer::SealedOffer;
use super::session::{AcceptedHost, Hosts, Release, Sessions};
use super::{Hub, HubSettings, reasons};

/// Returns the classes as a Welcome carries them.
pub(super) fn class_infos(classes: &[ClassConfig]) -> Vec<ClassInfo> {
    classes
        .iter()
        .map(|class| ClassInfo {
            id: class.id,
            name: class.name.clone(),
        })
        .collect()
}

/// Checks that a Welcome with this topology fits a frame and that a host accepts it.
///
/// # Errors
/// The fault of the message.
pub fn check_welcome(settings: &HubSettings, topology: &Topology) -> Result<(), SessionError> {
    // Numbers with the longest encoding, so that no later Welcome is larger.
    let welcome = Welcome {
        epoch: u64::MAX,
        session: u32::MAX,
        host_id: u32::MAX,
        lease_ns: settings.lease_ns,
        liveness_ns: settings.liveness_ns,
        max_flows: settings.limits.max_flows_per_session,
        ack_delay_ns: settings.ack_delay_ns,
        first_seq: u32::MAX,
        released: true,
        observe: false,
        threshold: settings.threshold,
        topology: TopologySnapshot {
            version: u32::MAX,
            digest: Some(HostsDigest([u8::MAX; HOSTS_DIGEST_BYTES])),
            ..snapshot_of(topology)
        },
        classes: class_infos(&settings.classes),
        sealed_udp: Some(SealedUdp {
            port: u16::MAX,
            cipher: Cipher::default(),
            address: Some(std::net::Ipv4Addr::LOCALHOST),
        }),
        telemetry_interval_ns: u64::MAX,
        telemetry_sync: Some(ratewright_proto::telemetry::SyncTerms {
            hysteresis: 0.5,
            repeat_ns: u64::MAX,
        }),
        access: AccessCapacity::new(u64::MAX, u64::MAX).with_line_rates(u64::MAX, u64::MAX),
    };
    let frame = ControlMessage::Welcome(welcome).to_frame()?;
    let mut decoder = FrameDecoder::new();
    decoder.push(&frame);
    if let Some(body) = decoder.next_frame()? {
        ControlMessage::decode(body)?;
    }
    Ok(())
}

/// Admission: who may have a session, and what such hosts are offered.
pub(super) struct Admission {
    /// Sessions of hosts.
    pub(super) registry: Registry,
    pub(super) pre_hello: PreHelloConnections,
    pub(super) session_numbers: SessionNumbers,
    /// Settings of the sessions' state machines.
    pub(super) server_config: Arc<ServerConfig>,
    /// Encoded topology for Welcomes. Built on demand; a change of the topology clears it.
    pub(super) snapshot: Option<EncodedTopology>,
    pub(super) sealed: SealedOffer,
}

impl Admission {
    /// Begins without a session.
    pub(super) fn new(settings: &HubSettings) -> Self {
        Self {
            registry: Registry::new(settings.liveness_ns),
            pre_hello: PreHelloConnections::default(),
            session_numbers: SessionNumbers::default(),
            server_config: server_config(settings),
            snapshot: None,
            sealed: SealedOffer::default(),
        }
    }

    /// Puts other settings in force, for sessions that open from now on.
    pub(super) fn reconfigure(&mut self, settings: &HubSettings) {
        self.server_config = server_config(settings);
    }

    /// Returns the hosts with a session.
    pub(super) fn hosts<'a>(&'a self, sessions: &'a Sessions) -> Hosts<'a> {
        Hosts {
            registry: &self.registry,
            sessions,
        }
    }

    /// Returns the encoded topology for Welcomes, built at the first use.
    pub(super) fn snapshot(&mut self, topology: &Topology) -> EncodedTopology {
        self.snapshot
            .get_or_insert_with(|| snapshot_of(topology).into())
            .clone()
    }
}

impl Hub {
    /// Takes the body of one frame of a session's control stream.
    pub fn on_control(&mut self, now_ns: u64, id: u32, body: &[u8]) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if session.closing.is_some() {
            return;
        }
        let bytes = u32::try_from(body.len()).unwrap_or(u32::MAX);
        // Every frame costs a minimum, so that a flood of empty frames is slowed down too.
        let cost = bytes.saturating_add(CONTROL_FRAME_COST_BYTES);
        session.control.spend(cost);
        if let Err(error) = session.proto.on_control(now_ns, body) {
            self.counts.control_errors.count(reasons::control(&error));
            self.refuse(
                now_ns,
                id,
                RefusalCode::ProtocolError,
                error.to_string(),
                false,
            );
        }
        self.take_events(now_ns, id);
    }

    /// Returns the time to wait before reading more of a session's control stream; `None` if none.
    pub fn control_wait_ns(&mut self, now_ns: u64, id: u32) -> Option<u64> {
        let wait_ns = self.sessions.get_mut(id)?.control.wait_ns(now_ns)?;
        self.counts.control_waits += 1;
        Some(wait_ns)
    }

    /// Refuses a session whose control stream carries no valid frame.
    pub fn on_broken_control(&mut self, now_ns: u64, id: u32, error: &str) {
        self.counts.control_errors.count("framing");
        self.refuse(
            now_ns,
            id,
            RefusalCode::ProtocolError,
            error.to_owned(),
            false,
        );
    }

    /// Handles the events of a session's state machine. The session may leave with one of them.
    pub(super) fn take_events(&mut self, now_ns: u64, id: u32) {
        while let Some(session) = self.sessions.get_mut(id)
            && let Some(event) = session.proto.poll_event()
        {
            match event {
                ServerEvent::Hello(hello) => self.on_hello(now_ns, id, hello),
                ServerEvent::ReleaseAck {
                    released,
                    paced_flows,
                } => {
                    session.acknowledge_release(released, paced_flows);
                }
                ServerEvent::Telemetry(telemetry) => self.on_telemetry(now_ns, id, &telemetry),
                ServerEvent::Refused(refusal) => {
                    tracing::warn!(reason = refusal.reason, "session refused");
                    self.end_session(now_ns, id, reasons::refusal(refusal.code), true);
                }
                ServerEvent::PeerLost(loss) => {
                    self.end_session(now_ns, id, reasons::loss(loss), false);
                }
            }
        }
        self.mark_ready(id);
    }

    /// Returns the offer of sealed datagrams to a session, if there is one.
    fn sealed_offer(&self, id: u32) -> Option<SealedUdp> {
        // The relay and its host agree on the transport between them.
        if self.sessions.get(id)?.relay.is_some() {
            return None;
        }
        self.admission.sealed.of_session(id)
    }

    /// Accepts or refuses a host that sent its Hello.
    fn on_hello(&mut self, now_ns: u64, id: u32, hello: Hello) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        // Identity first: all later checks go by a name that the certificate proves.
        let name = &hello.host_name;
        if !session
            .certificate
            .names
            .iter()
            .any(|certified| certified == name)
        {
            let certified = if session.certificate.names.is_empty() {
                "no host".to_owned()
            } else {
                session.certificate.names.join(", ")
            };
            let reason = format!(
                "the host calls itself {name:?}, its certificate names {certified}; the certificate \
                 needs the host's name as a DNS subject alternative name"
            );
            return self.refuse(now_ns, id, RefusalCode::CertificateMismatch, reason, false);
        }
        if let Err(distrust) = self
            .settings
            .trust
            .check(name, &session.certificate.fingerprint)
        {
            let reason = distrust.to_string();
            return self.refuse(now_ns, id, RefusalCode::NotAllowed, reason, false);
        }
        if let Some(relay) = &session.relay
            && let Err(distrust) = self.settings.trust.check_relay(relay, name)
        {
            self.counts.relay.rejected.count("not_of_relay");
            let reason = distrust.to_string();
            return self.refuse(now_ns, id, RefusalCode::NotAllowed, reason, false);
        }
        let topology = &mut self.network.topology;
        let of_file = topology.host_by_name(name);
        let host = match of_file.filter(|host| !is_member(topology, *host)) {
            Some(host) => host,
            None => {
                let mut places = Places {
                    settings: &self.settings,
                    topology,
                    counts: &mut self.counts,
                };
                let (certificate, registry) = (&session.certificate, &self.admission.registry);
                match (self.members).join(now_ns, &mut places, name, certificate, registry) {
                    Ok(host) => host,
                    Err(refusal) => return self.refuse_with(now_ns, id, refusal),
                }
            }
        };
        // The present session's state machine has the newest time at which it heard from the host.
        if let Some(holder) = self.admission.registry.session_of(host.0)
            && let Some(session) = self.sessions.get(holder)
        {
            self.admission
                .registry
                .heard(session.proto.last_heard_ns(), host.0, holder);
        }
        let claim = Claim {
            incarnation: hello.incarnation,
            attempt: hello.attempt,
        };
        // Two daemons may claim one host. The registry lets the later incarnation or attempt win,
        // and refuses others while the present session is alive.
        match self.admission.registry.register(now_ns, host.0, id, claim) {
            Decision::Refuse(refusal) => return self.refuse_with(now_ns, id, refusal),
            Decision::Supersede { session } => self.refuse_with(now_ns, session, superseded()),
            Decision::Accept => {}
        }
        let max_sessions = self.settings.limits.max_sessions;
        // Counted after registration: a host that replaces its own session needs no further place.
        if self.admission.registry.len() > max_sessions as usize {
            self.admission.registry.remove(host.0, id);
            let reason = format!("{max_sessions} hosts have a session, which is the limit");
            return self.refuse(now_ns, id, RefusalCode::TableFull, reason, true);
        }
        let topology = self.admission.snapshot(&self.network.topology);
        let rollout = &self.settings.rollout;
        let (order, _) = (self.conduct).order_of(name, &self.network.topology, rollout);
        let admission = server::Admission {
            session: id,
            host_id: host.0,
            topology,
            classes: class_infos(&self.settings.classes),
            threshold: self.settings.threshold,
            released: order != PacingOrder::Pace,
            observe: order == PacingOrder::Observe,
            sealed_udp: self.sealed_offer(id),
            telemetry_interval_ns: telemetry_interval_ns(&self.settings),
            telemetry_sync: self.settings.feeds.sync_terms(),
            access: access_of(&self.network.topology, host),
        };
        let released = self.is_released();
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if let Err(error) = session.proto.accept(now_ns, admission) {
            self.admission.registry.remove(host.0, id);
            let reason = format!("the topology cannot be sent: {error}");
            tracing::error!(host = name, %error, "cannot welcome a host");
            return self.refuse(now_ns, id, RefusalCode::ProtocolError, reason, true);
        }
        session.order = order;
        session.release = if order == PacingOrder::Pace {
            Release::No
        } else {
            // The host may still act on rates of a former session, so it counts until it
            // acknowledges.
            if released {
                self.conduct.await_answer(now_ns, id);
            }
            Release::Waiting { since_ns: now_ns }
        };
        tracing::info!(
            host = name,
            session = id,
            software = hello.software,
            "session established"
        );
        session.peer = Some(AcceptedHost { host, hello });
        let paces = session.paces();
        let fingerprint = session.certificate.fingerprint;
        self.admission.pre_hello.remove(&fingerprint, id);
        self.counts.sessions_opened += 1;
        let addresses = std::mem::take(&mut session.certificate.addresses);
        let pods = std::mem::take(&mut session.certificate.pod_prefixes);
        self.network.shared.set_paces(now_ns, host, paces);
        self.network.push_shared(&mut self.counts);
        let topology = &mut self.network.topology;
        let prefixes = prefixes_of(&addresses, &pods);
        (self.members).note_present(now_ns, topology, host, prefixes);
        self.tell_members(id);
    }

    /// Sends a session what it has not heard of the members.
    pub(super) fn tell_members(&mut self, id: u32) {
        if let Some(session) = self.sessions.get_mut(id)
            && self.members.tell(&self.network.topology, session)
        {
            self.ready.mark(session);
        }
    }

    /// Takes a telemetry message of a session. Only an accepted host is a reporter.
    fn on_telemetry(&mut self, now_ns: u64, id: u32, telemetry: &Telemetry) {
        self.counts.telemetry += 1;
        if let Some(access_use) = &telemetry.access_use {
            self.on_access_use(now_ns, id, access_use);
            if telemetry.has_access_use_alone() {
                // No feed has anything to do with it.
                return;
            }
        }
        if let Some(session) = self.sessions.get(id)
            && let Some(peer) = &session.peer
        {
            let hosts = self.admission.hosts(&self.sessions);
            let reporter = Reporter::Host(peer.host);
            (self.network).take_telemetry(now_ns, reporter, telemetry, hosts);
        }
    }

    fn refuse(&mut self, now_ns: u64, id: u32, code: RefusalCode, reason: String, retry: bool) {
        self.refuse_with(
            now_ns,
            id,
            Refusal {
                code,
                reason,
                retry,
            },
        );
    }

    /// Refuses a session or ends an accepted one, and sends the host the reason.
    fn refuse_with(&mut self, now_ns: u64, id: u32, refusal: Refusal) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if session.closing.is_some() {
            return;
        }
        let host = session
            .peer
            .as_ref()
            .map_or("unknown", |peer| &peer.hello.host_name);
        tracing::warn!(
            host,
            session = id,
            reason = refusal.reason,
            "session refused"
        );
        let code = reasons::refusal(refusal.code);
        session.proto.refuse(refusal);
        self.end_session(now_ns, id, code, true);
    }

    /// Ends the sessions of hosts that are no longer trusted.
    pub(super) fn refuse_distrusted(&mut self, now_ns: u64) {
        let trust = &self.settings.trust;
        let distrusted: Vec<_> = self
            .sessions
            .values()
            .filter_map(|session| {
                let name = &session.peer.as_ref()?.hello.host_name;
                let relay = session.relay.as_ref();
                let distrust = trust
                    .check(name, &session.certificate.fingerprint)
                    .and_then(|()| relay.map_or(Ok(()), |relay| trust.check_relay(relay, name)))
                    .err()?;
                Some((session.id, distrust.to_string()))
            })
            .collect();
        for (id, reason) in distrusted {
            self.refuse(now_ns, id, RefusalCode::NotAllowed, reason, false);
        }
    }

    /// Ends every session and sends the hosts the reason. They may connect again.
    pub fn refuse_all(&mut self, now_ns: u64, code: RefusalCode, reason: &str) {
        let ids: Vec<u32> = self.sessions.numbers().collect();
        for id in ids {
            self.refuse(now_ns, id, code, reason.to_owned(), true);
        }
    }

    /// Ends a session: its flows leave the engine at once, and its transport closes when the queued
    /// frames have been written.
    fn end_session(&mut self, now_ns: u64, id: u32, reason: &'static str, refused: bool) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if session.closing.is_some() {
            return;
        }
        session.closing = Some(reason);
        if refused {
            self.counts.sessions_refused.count(reason);
        }
        // One event takes all flows of the session from the engine.
        let mut numbers = Vec::with_capacity(session.allocated as usize);
        let mut flows = 0;
        for slot in 0..session.proto.slots() {
            let Some(flow) = session.proto.take_state(slot) else {
                continue;
            };
            flows += 1;
            if let Some(kind) = flow.counted_by(self.flows.engine_number) {
                self.network
                    .shared
                    .remove(now_ns, session.flows.path(slot), kind);
            }
            if let Some(number) = flow.number_in(self.flows.engine_number) {
                self.flows.numbers.give_back(number);
                numbers.push(number);
            }
        }
        self.flows.tallies.forget(session, flows);
        session.flows.clear();
        session.deferred_ns = None;
        if !numbers.is_empty() {
            let events = &mut self.network.engine_events;
            events.push_back(EngineEvent::EndAll(numbers));
        }
        if let Some(peer) = session.peer.take() {
            tracing::info!(
                host = peer.hello.host_name,
                session = id,
                reason,
                "session ended"
            );
            self.counts.sessions_closed.count(reason);
            self.admission.registry.remove(peer.host.0, id);
            self.network.shared.set_paces(now_ns, peer.host, false);
            self.network
                .shared
                .forget(now_ns, peer.host, &self.network.topology);
            self.network.forget_in_link_check(peer.host);
            if self.admission.registry.session_of(peer.host.0).is_none() {
                let (settings, topology) = (&self.settings, &self.network.topology);
                (self.members).note_absent(now_ns, settings, topology, peer.host);
            }
            // Its last rates hold until their leases end, which the kill switch has to wait for.
            let most = self.settings.limits.max_sessions as usize;
            let host = peer.hello.host_name;
            self.conduct
                .depart(now_ns, self.settings.lease_ns, host, most);
        } else if !refused {
            self.counts.connections_rejected.count(reason);
        }
        self.network.push_shared(&mut self.counts);
        self.mark_ready(id);
    }

    /// Ends a session without a message to its host.
    pub fn drop_session(&mut self, now_ns: u64, id: u32, reason: &'static str) {
        self.end_session(now_ns, id, reason, false);
    }

    /// Removes a session whose transport is gone.
    pub fn remove_session(&mut self, now_ns: u64, id: u32, reason: &'static str) {
        self.end_session(now_ns, id, reason, false);
        if let Some(session) = self.sessions.remove(id) {
            self.admission.session_numbers.give_back(id);
            // Still listed if it never sent a valid Hello.
            self.admission
                .pre_hello
                .remove(&session.certificate.fingerprint, id);
        }
    }
}

/// Maximum time from connection to Hello. Hosts of relays have no other deadline.
const HELLO_TIMEOUT_NS: u64 = 2_000_000_000;

fn server_config(settings: &HubSettings) -> Arc<ServerConfig> {
    Arc::new(ServerConfig {
        epoch: settings.epoch,
        lease_ns: settings.lease_ns,
        update_interval_ns: settings.update_interval_ns,
        ack_delay_ns: settings.ack_delay_ns,
        updates_in_flight: settings.timers.updates_in_flight,
        liveness_ns: settings.liveness_ns,
        liveness_factor: settings.timers.liveness_factor,
        min_rto_ns: settings.timers.min_rto_ns,
        initial_rto_ns: settings.timers.initial_rto_ns,
        max_rto_ns: settings.timers.max_rto_ns,
        max_flows: settings.limits.max_flows_per_session,
        handshake_timeout_ns: HELLO_TIMEOUT_NS,
        ..ServerConfig::default()
    })
}
