//! The allocator's end of a session: one [`ServerSession`] per transport
//! connection.
//!
//! ```text
//!  new() ─► AwaitingHello ─Hello─► Deciding ─accept()─► Established
//!               │                     │                     │
//!               └─ version differs ───┴── refuse() ─────────┤
//!               └─ handshake, liveness time-out (PeerLost) ─┴──► Closed
//! ```
//!
//! The caller hands in arriving bytes, decides on [`ServerEvent::Hello`] (with the [`registry`] and
//! its own checks) and sets rates. After every call it takes control frames, datagrams and events
//! until there are none. Once [`is_closed`](ServerSession::is_closed), it writes the remaining
//! frames and closes the transport.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use zerocopy::IntoBytes as _;

use crate::VERSION;
use crate::codes::RateCode;
use crate::control::{
    AccessCapacity, ClassInfo, ControlMessage, EncodedTopology, Hello, HostsDigest, Refusal,
    RefusalCode, SealedUdp, TopologySnapshot, Welcome,
};
use crate::counters::Counters;
use crate::datagram::{Datagram, HEADER_BYTES, MIN_DATAGRAM_BYTES, SessionRole};
use crate::error::{DatagramError, SessionError};
use crate::packet_space::{LivenessTimer, PacketContents, PacketSpace, PacketSpaceConfig};
use crate::queue::ControlQueue;
use crate::records::{FlowId, MAX_SLOTS, RateRecord, StartRecord};
use crate::recovery::{AckOutcome, RecoveryConfig};
use crate::telemetry::{SyncTerms, Telemetry};

use self::slots::{RecordOutcome, ServerSlots};

pub mod registry;
mod slots;

/// Settings of a server, shared by all its sessions.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Incarnation of the allocator.
    pub epoch: u64,
    /// Lifetime of an allocation.
    pub lease_ns: u64,
    /// Liveness time-out, after which a client gives its session up. The server waits
    /// [`liveness_factor`](Self::liveness_factor) times as long: a daemon that stalled would have
    /// to connect again, while the server only keeps the capacity of flows that may be gone.
    /// Several leases, since an idle client sends once per lease.
    pub liveness_ns: u64,
    /// Multiple of `liveness_ns` after which the server gives a client up.
    pub liveness_factor: u64,
    /// Slots of a session's flow table.
    pub max_flows: u32,
    /// Longest delay of an acknowledgement.
    pub ack_delay_ns: u64,
    /// Least time between two datagrams that are sent to a client for later rates. First rates go
    /// at once, and so does everything that fits beside them or beside an acknowledgement.
    pub update_interval_ns: u64,
    /// Number of datagrams in flight at which later rates wait for an acknowledgement. If either
    /// end or the network is overloaded, newer rates then replace unsent ones instead of queueing
    /// behind them. The datagram that reaches the bound asks for a prompt acknowledgement.
    pub updates_in_flight: usize,
    /// Floor of the retransmission timeout.
    pub min_rto_ns: u64,
    /// Retransmission timeout before the first round trip is measured.
    pub initial_rto_ns: u64,
    /// Ceiling of the retransmission timeout, back-off included.
    pub max_rto_ns: u64,
    /// Ack-eliciting datagrams in flight at most.
    pub max_in_flight: usize,
    /// Time from `new` to the client's Hello at most.
    pub handshake_timeout_ns: u64,
    /// Bytes of control messages that may wait to be written.
    pub max_control_bytes: usize,
    /// Telemetry messages and release confirmations that may wait for the
    /// caller.
    pub max_events: usize,
    /// Sequence number of each session's first datagram, at least 1.
    pub first_seq: u32,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            epoch: 1,
            lease_ns: 300_000_000,
            liveness_ns: 1_500_000_000,
            liveness_factor: 3,
            max_flows: 16_384,
            ack_delay_ns: 20_000_000,
            update_interval_ns: 0,
            updates_in_flight: usize::MAX,
            min_rto_ns: 2_000_000,
            initial_rto_ns: 20_000_000,
            max_rto_ns: 200_000_000,
            max_in_flight: 256,
            handshake_timeout_ns: 10_000_000_000,
            max_control_bytes: 1 << 20,
            max_events: 1024,
            first_seq: 1,
        }
    }
}

/// Contents of the Welcome to an accepted client.
#[derive(Debug, Clone)]
pub struct Admission {
    /// The session's number; no two sessions of an epoch share one.
    pub session: u32,
    /// The client's host in the topology.
    pub host_id: u32,
    /// The topology.
    pub topology: EncodedTopology,
    /// The flow classes.
    pub classes: Vec<ClassInfo>,
    /// Relative rate change below which no update is sent.
    pub threshold: f64,
    /// The kill switch is on.
    pub released: bool,
    /// While released: the client still looks at rates.
    pub observe: bool,
    /// Address for sealed datagrams; offered only to a client that can send them.
    pub sealed_udp: Option<SealedUdp>,
    /// Interval at which the client sends telemetry; 0 if none is wanted.
    pub telemetry_interval_ns: u64,
    /// Terms on which the client may tell telemetry as a state.
    pub telemetry_sync: Option<SyncTerms>,
    /// Capacities of the host's own links.
    pub access: AccessCapacity,
}

/// Reason for giving a client up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerLoss {
    /// No Hello in time.
    HandshakeTimeout,
    /// Nothing valid arrived for `liveness_factor` times the liveness time.
    Silence,
}

/// Change of a client's flows that a datagram brings, with the caller's state of flows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FlowChange<F = ()> {
    /// A flowlet began. The one before it on its slot has ended.
    Start(StartRecord),
    /// An active flowlet has new parameters.
    Update {
        /// Its record so far.
        before: StartRecord,
        /// Its record now.
        record: StartRecord,
    },
    /// A flowlet ended, with the caller's state of it, if that was stored.
    End(FlowId, Option<F>),
}

/// Event that the caller of a [`ServerSession`] acts on.
#[derive(Debug, Clone, PartialEq)]
pub enum ServerEvent {
    /// A client introduces itself: call [`ServerSession::accept`] or
    /// [`ServerSession::refuse`].
    Hello(Hello),
    /// The client has carried a release state out.
    ReleaseAck {
        /// The state.
        released: bool,
        /// Flows that the host still paces.
        paced_flows: u32,
    },
    /// Measurements.
    Telemetry(Telemetry),
    /// The session refused the client by itself (another protocol version).
    Refused(Refusal),
    /// The session gave the client up and is closed.
    PeerLost(PeerLoss),
}

#[derive(Debug)]
enum ServerPhase {
    AwaitingHello { deadline_ns: u64 },
    Deciding(Box<Hello>),
    Established(Box<PacketSpace>),
    Closed,
}

/// The allocator's end of a session; see the [module](self). Its table of flows has the caller's
/// state `F` of each, too.
#[derive(Debug)]
pub struct ServerSession<F = ()> {
    config: Arc<ServerConfig>,
    phase: ServerPhase,
    slots: ServerSlots<F>,
    liveness: LivenessTimer,
    control: ControlQueue,
    /// Latest-state messages that wait to be written.
    topology: Option<EncodedTopology>,
    /// Capacities of the host's own links, which go with a topology.
    access: AccessCapacity,
    /// Hosts that the client knows: sent to it last, or reported in its Hello.
    known_hosts: Option<HostsDigest>,
    release_pending: bool,
    released: bool,
    observe: bool,
    /// The next datagram goes at once, to carry the new release state.
    announce_release: bool,
    /// Time from which later rates may be sent again.
    updates_ns: u64,
    /// The last datagram was full, and the remaining rates follow at once.
    more_rates: bool,
    /// Hello, Refused and PeerLost, then the bounded kinds, in order.
    events: VecDeque<ServerEvent>,
    /// Measurements were dropped since the client told its whole state.
    telemetry_gap: bool,
    counters: Counters,
}

impl<F: Copy> ServerSession<F> {
    /// Makes a session that waits for the client's Hello.
    pub fn new(now_ns: u64, config: Arc<ServerConfig>) -> Self {
        let deadline_ns = now_ns.saturating_add(config.handshake_timeout_ns);
        let timeout_ns = config
            .liveness_ns
            .saturating_mul(config.liveness_factor.max(1));
        Self {
            phase: ServerPhase::AwaitingHello { deadline_ns },
            slots: ServerSlots::new(config.max_flows.min(MAX_SLOTS)),
            liveness: LivenessTimer::new(now_ns, timeout_ns),
            control: ControlQueue::new(config.max_control_bytes),
            config,
            topology: None,
            access: AccessCapacity::default(),
            known_hosts: None,
            release_pending: false,
            released: false,
            observe: false,
            announce_release: false,
            updates_ns: 0,
            more_rates: false,
            events: VecDeque::new(),
            telemetry_gap: false,
            counters: Counters::default(),
        }
    }

    /// Accepts the client that said Hello.
    pub fn accept(&mut self, now_ns: u64, admission: Admission) -> Result<(), SessionError> {
        let ServerPhase::Deciding(hello) = &self.phase else {
            return Err(SessionError::Unexpected("accept without a Hello"));
        };
        let config = &self.config;
        // The slots use 0 for "no datagram".
        let first_seq = config.first_seq.max(1);
        let packets = PacketSpace::new(PacketSpaceConfig {
            role: SessionRole::Server,
            session: admission.session,
            epoch: config.epoch,
            first_seq,
            peer_first_seq: hello.first_seq,
            ack_delay_ns: config.ack_delay_ns,
            recovery: RecoveryConfig {
                max_in_flight: config.max_in_flight,
                min_rto_ns: config.min_rto_ns,
                initial_rto_ns: config.initial_rto_ns,
                max_rto_ns: config.max_rto_ns,
                peer_ack_delay_ns: hello.ack_delay_ns,
            },
        });
        let welcome = Welcome {
            epoch: config.epoch,
            session: admission.session,
            host_id: admission.host_id,
            lease_ns: config.lease_ns,
            liveness_ns: config.liveness_ns,
            max_flows: config.max_flows.min(MAX_SLOTS),
            ack_delay_ns: config.ack_delay_ns,
            first_seq,
            released: admission.released,
            observe: admission.observe,
            threshold: admission.threshold,
            // Encoded without a topology: `welcome_head` appends the shared bytes of
            // `admission.topology`.
            topology: TopologySnapshot::default(),
            classes: admission.classes,
            sealed_udp: admission.sealed_udp.filter(|_| hello.sealed_udp),
            telemetry_interval_ns: admission.telemetry_interval_ns,
            telemetry_sync: admission.telemetry_sync,
            access: admission.access,
        };
        let (topology, known) = (&admission.topology, hello.known_hosts);
        let head = topology.welcome_head(&welcome, known)?;
        self.control.push_unbounded(head);
        // Second piece of the frame that `head` began; `Bytes` are shared, so this copies nothing.
        self.control.push_unbounded(topology.bytes(known).clone());
        self.known_hosts = Some(topology.digest());
        self.access = admission.access;
        self.counters.control_sent += 1;
        self.released = admission.released;
        self.observe = admission.observe;
        self.liveness.heard(now_ns);
        self.phase = ServerPhase::Established(Box::new(packets));
        Ok(())
    }

    /// Queues an encoded [`Members`](crate::control::Members), which sessions share.
    ///
    /// # Errors
    /// No session stands, or the queue is full: the client then has to hear of all members anew.
    pub fn send_members(&mut self, frame: Bytes) -> Result<(), SessionError> {
        if !matches!(self.phase, ServerPhase::Established(_)) {
            return Err(SessionError::NotEstablished("send_members"));
        }
        self.control.push_frame(frame)?;
        self.counters.control_sent += 1;
        Ok(())
    }

    /// Ends the session, before or after it was accepted. The client learns the reason and whether
    /// to try again.
    pub fn refuse(&mut self, refusal: Refusal) {
        if matches!(self.phase, ServerPhase::Closed) {
            return;
        }
        self.close();
        if let Ok(frame) = ControlMessage::Refused(refusal).to_frame() {
            self.control.push_unbounded(frame);
            self.counters.control_sent += 1;
        }
    }

    fn close(&mut self) {
        self.phase = ServerPhase::Closed;
        self.topology = None;
        self.release_pending = false;
    }

    /// Takes the body of one control frame.
    pub fn on_control(&mut self, now_ns: u64, body: &[u8]) -> Result<(), SessionError> {
        let result =
            ControlMessage::decode(body).and_then(|message| self.control_message(now_ns, message));
        match result {
            Ok(()) => self.counters.control_received += 1,
            Err(_) => self.counters.control_invalid += 1,
        }
        result
    }

    fn control_message(
        &mut self,
        now_ns: u64,
        message: ControlMessage,
    ) -> Result<(), SessionError> {
        match (&self.phase, message) {
            (ServerPhase::Closed, _) => return Err(SessionError::Closed),
            (ServerPhase::AwaitingHello { .. }, ControlMessage::Hello(hello)) => self.hello(hello),
            (ServerPhase::AwaitingHello { .. } | ServerPhase::Deciding(_), _) => {
                return Err(SessionError::NotEstablished("this message"));
            }
            (
                ServerPhase::Established(_),
                ControlMessage::ReleaseAck {
                    released,
                    paced_flows,
                },
            ) => {
                self.bounded_event(ServerEvent::ReleaseAck {
                    released,
                    paced_flows,
                });
            }
            (ServerPhase::Established(_), ControlMessage::Telemetry(telemetry)) => {
                self.telemetry(telemetry);
            }
            (ServerPhase::Established(_), _) => {
                return Err(SessionError::Unexpected(
                    "a second Hello, or a message for a client",
                ));
            }
        }
        self.liveness.heard(now_ns);
        Ok(())
    }

    fn hello(&mut self, hello: Hello) {
        if hello.version == u32::from(VERSION) {
            self.phase = ServerPhase::Deciding(Box::new(hello.clone()));
            self.events.push_back(ServerEvent::Hello(hello));
            return;
        }
        let refusal = Refusal {
            code: RefusalCode::VersionMismatch,
            reason: format!(
                "the daemon speaks protocol version {}, this allocator version {VERSION}",
                hello.version
            ),
            retry: false,
        };
        // Not bounded: a session says Hello once.
        self.events.push_back(ServerEvent::Refused(refusal.clone()));
        self.refuse(refusal);
    }

    /// Hands measurements over. Once one was dropped, what the client says to stand is not what the
    /// caller knows: nothing counts until the client tells the whole state.
    fn telemetry(&mut self, telemetry: Telemetry) {
        if self.telemetry_gap && !telemetry.whole && telemetry.is_of_state() {
            self.counters.telemetry_dropped += 1;
            return;
        }
        let whole = telemetry.whole;
        if !self.bounded_event(ServerEvent::Telemetry(telemetry)) {
            self.telemetry_gap = true;
        } else if whole {
            self.telemetry_gap = false;
        }
    }

    /// Queues an event, unless too many wait. Returns false if it was dropped.
    fn bounded_event(&mut self, event: ServerEvent) -> bool {
        // A client could send telemetry faster than the service takes it.
        let fits = self.events.len() < self.config.max_events;
        if fits {
            self.events.push_back(event);
        } else {
            self.counters.telemetry_dropped += 1;
        }
        fits
    }

    /// Takes one datagram, and hands over the changes of the client's flows as it applies them: at
    /// most two for each record. A later record of the datagram may end a flow that an earlier one
    /// started. An error is counted by its reason and changes nothing else.
    pub fn on_datagram(
        &mut self,
        now_ns: u64,
        bytes: &[u8],
        mut changes: impl FnMut(FlowChange<F>),
    ) -> Result<(), DatagramError> {
        let result = self.datagram(now_ns, bytes, &mut changes);
        if let Err(reason) = result {
            self.counters.dropped(reason);
        }
        result
    }

    fn datagram(
        &mut self,
        now_ns: u64,
        bytes: &[u8],
        changes: &mut impl FnMut(FlowChange<F>),
    ) -> Result<(), DatagramError> {
        let ServerPhase::Established(packets) = &mut self.phase else {
            return Err(DatagramError::NotEstablished);
        };
        let datagram = Datagram::parse(bytes, SessionRole::Client)?;
        // Every check comes before the first change: a bad datagram moves one counter only.
        let numbers = packets.check(&datagram)?;

        packets.received(now_ns, numbers, &datagram);
        self.liveness.heard(now_ns);
        let slots = &mut self.slots;
        if let Some(ack) = numbers.ack {
            let bitmap = datagram.header.ack_bitmap.get();
            self.counters.datagrams_lost +=
                packets
                    .sent
                    .on_ack(now_ns, ack, bitmap, |seq, slot, outcome| match outcome {
                        AckOutcome::Acked => slots.acked(seq, slot),
                        AckOutcome::Lost => slots.lost(seq, slot),
                    });
        }
        self.counters.datagrams_received += 1;
        self.counters.datagram_bytes_received += bytes.len() as u64;
        self.counters.starts_received += datagram.starts.len() as u64;
        self.counters.ends_received += datagram.ends.len() as u64;
        // A correct client puts at most one record per slot into a datagram, so the order of starts
        // and ends does not matter.
        let mut stale = 0;
        let mut refused = 0;
        let mut count = |taken| match taken {
            RecordOutcome::Applied => {}
            RecordOutcome::Stale => stale += 1,
            RecordOutcome::Refused => refused += 1,
        };
        for &record in datagram.starts {
            count(slots.start(record, numbers.seq, changes));
        }
        for &record in datagram.ends {
            count(slots.end(record, numbers.seq, changes));
        }
        self.counters.records_stale += stale;
        self.counters.starts_refused += refused;
        Ok(())
    }

    /// Sets a flow's rate, rounded down to a [`RateCode`]. Returns `Ok(true)` if it is to be sent.
    /// A flow that the client has just ended gives [`SessionError::UnknownFlow`], which is no
    /// fault.
    pub fn set_rate(
        &mut self,
        _now_ns: u64,
        flow: FlowId,
        rate_bps: u64,
    ) -> Result<bool, SessionError> {
        self.slots
            .set_rate(flow, RateCode::encode(rate_bps))
            .ok_or(SessionError::UnknownFlow(flow))
    }

    /// Takes the capacities of the host's own links, which the next topology carries.
    pub fn set_access(&mut self, access: AccessCapacity) {
        self.access = access;
    }

    /// Sends a new topology, which replaces one that is not yet written.
    pub fn set_topology(&mut self, topology: EncodedTopology) -> Result<(), SessionError> {
        if !self.is_established() {
            return Err(SessionError::NotEstablished("set_topology"));
        }
        // Only the check of its size: the frame is built when it is written.
        topology.update_head(self.known_hosts, self.access)?;
        self.topology = Some(topology);
        Ok(())
    }

    /// Turns the kill switch on or off for this client. The state goes at once into every
    /// datagram's header, and onto the stream.
    pub fn set_released(&mut self, released: bool) {
        self.set_conduct(released, false);
    }

    /// Makes this client observe: it is released, and still looks at rates.
    pub fn set_observing(&mut self) {
        self.set_conduct(true, true);
    }

    fn set_conduct(&mut self, released: bool, observe: bool) {
        // Before that, the Welcome carries the state.
        if (self.released, self.observe) != (released, observe) && self.is_established() {
            self.released = released;
            self.observe = observe;
            self.release_pending = true;
            self.announce_release = true;
        }
    }

    /// Takes the next bytes to write on the stream: a frame, or a piece of one.
    pub fn poll_control(&mut self) -> Option<Bytes> {
        if let Some(frame) = self.control.pop() {
            return Some(frame);
        }
        let ServerPhase::Established(packets) = &self.phase else {
            return None;
        };
        let frame = if self.release_pending {
            self.release_pending = false;
            let state = ControlMessage::ReleaseState {
                released: self.released,
                observe: self.observe,
                next_seq: packets.next_seq(),
            };
            state.to_frame().map(Bytes::from)
        } else {
            let topology = self.topology.take()?;
            // The stream is in order, so the client knows these hosts when it reads the next
            // topology.
            let known = self.known_hosts.replace(topology.digest());
            self.control.push_unbounded(topology.bytes(known).clone());
            topology.update_head(known, self.access)
        };
        self.counters.control_sent += 1;
        // `set_topology` checked the topology's size and a release state is small, so no frame is
        // lost here.
        frame.ok()
    }

    /// Builds the next datagram of at most `max_bytes`, which must be at least
    /// [`MIN_DATAGRAM_BYTES`]. Returns true if `out` holds one; call again then.
    pub fn poll_datagram(&mut self, now_ns: u64, max_bytes: usize, out: &mut Vec<u8>) -> bool {
        out.clear();
        let ServerPhase::Established(packets) = &mut self.phase else {
            return false;
        };
        // Before a client datagram arrived, there is none that the lease could count from.
        if max_bytes < MIN_DATAGRAM_BYTES || !packets.has_received() {
            return false;
        }
        let has_room = packets.sent.has_room();
        let seq = packets.next_seq();
        let mut rates = 0u16;
        let mut prompt = false;
        let urgent = self.slots.has_first() || self.announce_release || packets.ack_due(now_ns);
        let in_flight = packets.sent.in_flight();
        let paced = self.updates_ns <= now_ns && in_flight < self.config.updates_in_flight;
        // A datagram that goes anyway takes later rates along, whatever the pacing says.
        let may = urgent || self.more_rates || paced;
        self.more_rates = false;
        while may && let Some(record) = self.slots.peek_rate() {
            if !has_room {
                self.counters.in_flight_full += 1;
                break;
            }
            if out.is_empty() {
                out.resize(HEADER_BYTES, 0);
            }
            if out.len() + RateRecord::BYTES > max_bytes || rates == u16::MAX {
                self.more_rates = true;
                break;
            }
            out.extend_from_slice(record.as_bytes());
            rates += 1;
            let (slot, first) = self.slots.sent_rate(seq);
            // The first rate of a flow is what its start waits for: its loss must show soon.
            prompt |= first;
            packets.sent.push_slot(slot);
        }
        // Only obsolete entries were queued: nothing is to be said.
        if rates == 0 && !packets.ack_due(now_ns) && !self.announce_release {
            return false;
        }
        if out.is_empty() {
            out.resize(HEADER_BYTES, 0);
        }
        self.announce_release = false;
        // The last datagram before the bound blocks later rates until its acknowledgement.
        prompt |= in_flight.saturating_add(1) >= self.config.updates_in_flight;
        let contents = PacketContents {
            rates,
            eliciting: rates > 0,
            prompt,
            released: self.released,
            ..PacketContents::default()
        };
        packets.seal(out, contents);
        if contents.eliciting {
            // An urgent datagram restarts the interval as well, since it took the later rates
            // along.
            self.updates_ns = now_ns.saturating_add(self.config.update_interval_ns);
            packets.sent.push(seq, now_ns, u32::from(rates), prompt);
        } else {
            self.counters.acks_sent += 1;
        }
        self.counters.datagrams_sent += 1;
        self.counters.datagram_bytes_sent += out.len() as u64;
        self.counters.rates_sent += u64::from(rates);
        true
    }

    /// Returns true if a datagram must go at once, with rates or without: an acknowledgement is
    /// due, or the kill switch changed.
    pub fn must_send_now(&self, now_ns: u64) -> bool {
        match &self.phase {
            ServerPhase::Established(packets) => self.announce_release || packets.ack_due(now_ns),
            ServerPhase::AwaitingHello { .. } | ServerPhase::Deciding(_) | ServerPhase::Closed => {
                false
            }
        }
    }

    /// Time of the next [`on_timeout`](Self::on_timeout) and poll, if nothing else happens before.
    pub fn next_timeout(&self) -> Option<u64> {
        match &self.phase {
            ServerPhase::AwaitingHello { deadline_ns } => Some(*deadline_ns),
            ServerPhase::Deciding(_) | ServerPhase::Closed => None,
            ServerPhase::Established(packets) => {
                // Rates that wait for an acknowledgement need no timer: the acknowledgement or its
                // timeout frees them.
                let held_back = self.updates_ns > 0
                    && self.slots.rates_wait()
                    && packets.sent.has_room()
                    && packets.sent.in_flight() < self.config.updates_in_flight;
                [
                    Some(self.liveness.deadline_ns()),
                    packets.ack_deadline(),
                    packets.sent.deadline(),
                    held_back.then_some(self.updates_ns),
                ]
                .into_iter()
                .flatten()
                .min()
            }
        }
    }

    /// Handles timers that are due at `now_ns`.
    pub fn on_timeout(&mut self, now_ns: u64) {
        let lost = match &mut self.phase {
            ServerPhase::AwaitingHello { deadline_ns } => {
                (*deadline_ns <= now_ns).then_some(PeerLoss::HandshakeTimeout)
            }
            ServerPhase::Deciding(_) | ServerPhase::Closed => return,
            ServerPhase::Established(packets) => {
                let slots = &mut self.slots;
                let lost = packets
                    .sent
                    .on_timeout(now_ns, |seq, slot| slots.lost(seq, slot));
                // One timeout, however many datagrams it declared lost.
                self.counters.timeouts += u64::from(lost > 0);
                self.counters.datagrams_lost += lost;
                self.liveness
                    .has_expired(now_ns)
                    .then_some(PeerLoss::Silence)
            }
        };
        if let Some(reason) = lost {
            self.close();
            self.events.push_back(ServerEvent::PeerLost(reason));
        }
    }

    /// Takes the next event.
    pub fn poll_event(&mut self) -> Option<ServerEvent> {
        self.events.pop_front()
    }

    /// Returns true if [`poll_event`](Self::poll_event) has an event.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns true if the client was accepted and not given up.
    pub fn is_established(&self) -> bool {
        matches!(self.phase, ServerPhase::Established(_))
    }

    /// Returns true if the session is over. Write the rest of [`poll_control`](Self::poll_control),
    /// then close the transport.
    pub fn is_closed(&self) -> bool {
        matches!(self.phase, ServerPhase::Closed)
    }

    /// Returns true if the kill switch is on for this client.
    pub fn is_released(&self) -> bool {
        self.released
    }

    /// Time of the last valid message or datagram of the client.
    pub fn last_heard_ns(&self) -> u64 {
        self.liveness.heard_ns()
    }

    /// The smoothed round-trip time to the client.
    pub fn srtt_ns(&self) -> Option<u64> {
        match &self.phase {
            ServerPhase::Established(packets) => packets.sent.rtt().srtt_ns(),
            _ => None,
        }
    }

    /// The client's active flows and their newest rates.
    pub fn flows(&self) -> impl Iterator<Item = (StartRecord, u64)> + '_ {
        self.slots
            .iter()
            .map(|(record, rate)| (record, rate.decode()))
    }

    /// The active flows on some slots and their newest rates.
    pub fn flows_on(&self, slots: Range<u32>) -> impl Iterator<Item = (StartRecord, u64)> + '_ {
        self.slots
            .iter_on(slots)
            .map(|(record, rate)| (record, rate.decode()))
    }

    /// The newest rate of an active flow as the wire encodes it, in bit/s; 0 before the first.
    pub fn rate_of(&self, flow: FlowId) -> Option<u64> {
        self.slots.rate_of(flow).map(RateCode::decode)
    }

    /// Number of the client's active flows.
    pub fn flow_count(&self) -> u32 {
        self.slots.active_flows()
    }

    /// One more than the highest slot that the client has used.
    pub fn slots(&self) -> u32 {
        self.slots.len()
    }

    /// The flow on a slot with the caller's state of it; `None` without a state.
    pub fn flow_on(&self, slot: u32) -> Option<(&StartRecord, &F)> {
        self.slots.flow_on(slot)
    }

    /// The caller's state of an active flow, if it was stored.
    pub fn state(&self, flow: FlowId) -> Option<&F> {
        self.slots.state(flow)
    }

    /// The caller's state of an active flow, if it was stored.
    pub fn state_mut(&mut self, flow: FlowId) -> Option<&mut F> {
        self.slots.state_mut(flow)
    }

    /// Stores the caller's state of a flow. A flow that has ended meanwhile has none.
    pub fn set_state(&mut self, flow: FlowId, state: F) {
        self.slots.set_state(flow, state);
    }

    /// Takes the caller's state of the flow on a slot out of the table.
    pub fn take_state(&mut self, slot: u32) -> Option<F> {
        self.slots.take_state(slot)
    }

    /// Counters since the session was made.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
