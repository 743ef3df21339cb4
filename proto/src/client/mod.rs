//! The endpoint daemon's end of a session.
//!
//! The caller reports flowlets with [`start`](ClientSession::start) and [`end`](ClientSession::end)
//! and hands in arriving bytes. After every call it takes control frames, datagrams and events
//! until there are none. Then it waits for input or for
//! [`next_timeout`](ClientSession::next_timeout).
//!
//! ```text
//!                 connected()             Welcome
//!  Disconnected ─────────────► Connecting ───────► Established
//!       ▲  ▲                    │    │                │  │
//!       │  └── disconnected() ──┴────┼────────────────┘  │
//!       └── handshake, liveness time-out (SessionLost) ──┘
//!                                    Refused ──► Refused (until connected())
//! ```
//!
//! Flows outlive sessions: each session begins by sending the active ones. Rates do not: a rate of
//! an earlier session is never surfaced.

use std::collections::VecDeque;
use std::sync::Arc;

use zerocopy::IntoBytes as _;

use crate::VERSION;
use crate::control::{ControlMessage, Hello, TopologySnapshot, Welcome};
use crate::counters::Counters;
use crate::datagram::{Datagram, HEADER_BYTES, MIN_DATAGRAM_BYTES, SessionRole, flags};
use crate::error::{DatagramError, SessionError};
use crate::packet_space::{LivenessTimer, PacketContents, PacketSpace, PacketSpaceConfig};
use crate::queue::ControlQueue;
use crate::records::{EndRecord, FlowId, MAX_SLOTS, StartRecord};
use crate::recovery::{AckOutcome, RecoveryConfig, SentPackets};
use crate::telemetry::Telemetry;

pub use self::config::{ClientConfig, KnownHosts};
pub use self::event::{ClientEvent, LossReason};

use self::lease::Lease;
use self::slots::{ClientSlots, SlotRecord};

mod config;
mod event;
mod lease;
mod slots;

pub use self::slots::FlowState;

#[derive(Debug)]
enum ClientPhase {
    Disconnected,
    Connecting { deadline_ns: u64 },
    Established(Box<Established>),
    Refused,
}

/// State that exists only while a session is established.
#[derive(Debug)]
struct Established {
    packets: PacketSpace,
    lease: Lease,
    liveness: LivenessTimer,
    /// Sending time of the last ack-eliciting datagram.
    last_eliciting_ns: Option<u64>,
    /// A timeout passed: send a keep-alive at once.
    probe: bool,
}

impl Established {
    /// Time of the next keep-alive, or `None` if none is due.
    ///
    /// While flows hold rates, it is due when half of the lease is left. An unanswered one is
    /// repeated after a retransmission timeout, with back-off, about six times before the lease
    /// ends. Everything else that renews the lease puts it off, such as rates that acknowledge
    /// earlier datagrams.
    fn keep_alive_ns(&self, active: u32) -> Option<u64> {
        if !self.packets.sent.has_room() {
            return None;
        }
        let Some(last_ns) = self.last_eliciting_ns.filter(|_| !self.probe) else {
            // Nothing was sent in this session yet, or the last datagram was lost: ask at once.
            return Some(0);
        };
        if self.packets.sent.in_flight() > 0 {
            // Its acknowledgement renews the lease, or its timeout asks again.
            return None;
        }
        let lease_ns = self.lease.duration_ns();
        let due_ns = if active > 0 {
            // An acknowledgement that came too late renews nothing; without this floor, keep-alives
            // would follow each other at once.
            let soonest_ns = last_ns.saturating_add(lease_ns / 8);
            (self.lease.expires_ns() - self.lease.expires_ns().min(lease_ns / 2)).max(soonest_ns)
        } else {
            // Without flows nothing expires: one keep-alive per lease shows the server that the
            // host lives.
            last_ns.saturating_add(lease_ns)
        };
        // Even with a lease of a few ns, polls at one time do not produce two keep-alives.
        Some(due_ns.max(last_ns + 1))
    }
}

/// The endpoint daemon's end of a session; see the [module](self).
#[derive(Debug)]
pub struct ClientSession {
    config: ClientConfig,
    phase: ClientPhase,
    attempt: u64,
    slots: ClientSlots,
    control: ControlQueue,
    /// Established, Refused and SessionLost, in order.
    events: VecDeque<ClientEvent>,
    topology: Option<TopologySnapshot>,
    /// Hosts that a server sent last, in this session or an earlier one.
    known: Option<KnownHosts>,
    released: bool,
    /// While released: rates are still told.
    observe: bool,
    /// Order of release states: twice the number of the server datagram that carried one. One less
    /// if the state came by the stream, ahead of that datagram.
    release_key: u64,
    release_changed: bool,
    lease_renewed: bool,
    /// The lease had expired when the kill switch changed: no rate is surfaced before the next
    /// datagram.
    lease_over: bool,
    /// Ends of the datagram being built.
    ends: Vec<u32>,
    counters: Counters,
}

impl ClientSession {
    /// Makes a session without a transport.
    pub fn new(mut config: ClientConfig) -> Self {
        // A flow id has 20 bits for the slot, and 0 as a sequence number means "none" in the slots.
        config.max_flows = config.max_flows.min(MAX_SLOTS);
        config.first_seq = config.first_seq.max(1);
        Self {
            slots: ClientSlots::new(config.max_flows),
            control: ControlQueue::new(config.max_control_bytes),
            config,
            phase: ClientPhase::Disconnected,
            attempt: 0,
            events: VecDeque::new(),
            topology: None,
            known: None,
            released: false,
            observe: false,
            release_key: 0,
            release_changed: false,
            lease_renewed: false,
            lease_over: false,
            ends: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Sets the time that the next Hello may wait for its answer.
    pub fn set_handshake_timeout(&mut self, timeout_ns: u64) {
        self.config.handshake_timeout_ns = timeout_ns;
    }

    /// Hosts that the next Hello reports as known.
    #[must_use]
    pub fn known_hosts(&self) -> Option<&KnownHosts> {
        self.known.as_ref()
    }

    /// Makes the next Hello report these hosts as known.
    pub fn set_known_hosts(&mut self, known: KnownHosts) {
        self.known = Some(known);
    }

    /// Adds the known hosts to a topology that omits them, or remembers the hosts that it contains.
    fn complete(&mut self, topology: &mut TopologySnapshot) -> Result<(), SessionError> {
        if !topology.known {
            // Without a digest no later message could name these hosts.
            if let Some(digest) = topology.digest {
                self.known = Some(KnownHosts {
                    digest,
                    hosts: Arc::clone(&topology.hosts),
                });
            }
            return Ok(());
        }
        // A digest of other hosts forgets ours, so the next session receives all of them.
        let known = self
            .known
            .take_if(|known| Some(known.digest) == topology.digest);
        let Some(known) = known else {
            self.known = None;
            return Err(SessionError::Invalid {
                field: "Topology.hosts_known",
                problem: "these hosts were never told".to_owned(),
            });
        };
        topology.hosts = Arc::clone(&known.hosts);
        topology.known = false;
        self.known = Some(known);
        Ok(())
    }

    /// Starts a session on a new transport: sends the Hello and waits for the Welcome.
    pub fn connected(&mut self, now_ns: u64) {
        self.close();
        // The server's registry prefers the newer attempt of one incarnation.
        self.attempt += 1;
        self.phase = ClientPhase::Connecting {
            deadline_ns: now_ns.saturating_add(self.config.handshake_timeout_ns),
        };
        let hello = ControlMessage::Hello(Hello {
            version: u32::from(VERSION),
            host_name: self.config.host_name.clone(),
            incarnation: self.config.incarnation,
            attempt: self.attempt,
            software: self.config.software.clone(),
            max_flows: self.config.max_flows,
            ack_delay_ns: self.config.ack_delay_ns,
            first_seq: self.config.first_seq,
            sealed_udp: self.config.sealed_udp,
            known_hosts: self.known.as_ref().map(|known| known.digest),
            members: true,
        });
        // A Hello too large for a frame is not sent, and the handshake times out.
        if let Ok(frame) = hello.to_frame() {
            self.counters.control_sent += 1;
            self.control.push_unbounded(frame);
        }
    }

    /// Ends the session, since the transport is down. Flows are kept for the next session. Rates
    /// that were surfaced expire by themselves.
    pub fn disconnected(&mut self, _now_ns: u64) {
        self.close();
        self.phase = ClientPhase::Disconnected;
    }

    fn close(&mut self) {
        self.slots.close();
        self.control.clear();
        self.topology = None;
        self.release_key = 0;
        self.lease_renewed = false;
        self.lease_over = false;
        self.phase = ClientPhase::Disconnected;
    }

    /// Reports a flowlet, or new parameters of an active one. A new flowlet on a slot ends the
    /// older one.
    pub fn start(&mut self, _now_ns: u64, record: StartRecord) -> Result<(), SessionError> {
        let limit = self.slots.limit();
        match self.slots.start(record) {
            Ok(true) if self.is_established() && record.flow().slot() >= limit => {
                self.counters.flows_beyond_peer_table += 1;
            }
            Ok(_) => {}
            Err(error) => {
                self.counters.starts_refused += 1;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Reports the end of a flowlet.
    pub fn end(&mut self, _now_ns: u64, flow: FlowId) -> Result<(), SessionError> {
        self.slots.end(flow)
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
        mut message: ControlMessage,
    ) -> Result<(), SessionError> {
        // Hosts are completed first, so that an unknown digest is refused before the session
        // changes.
        match (&self.phase, &mut message) {
            (ClientPhase::Connecting { .. }, ControlMessage::Welcome(Welcome { topology, .. }))
            | (ClientPhase::Established(_), ControlMessage::Topology(topology)) => {
                self.complete(topology)?;
            }
            _ => {}
        }
        match (&mut self.phase, message) {
            (ClientPhase::Connecting { .. }, ControlMessage::Welcome(welcome)) => {
                self.establish(now_ns, welcome);
                Ok(())
            }
            (
                ClientPhase::Connecting { .. } | ClientPhase::Established(_),
                ControlMessage::Refused(refusal),
            ) => {
                self.close();
                self.phase = ClientPhase::Refused;
                self.events.push_back(ClientEvent::Refused(refusal));
                Ok(())
            }
            (ClientPhase::Established(established), ControlMessage::Members(members)) => {
                established.liveness.heard(now_ns);
                self.events.push_back(ClientEvent::Members(members));
                Ok(())
            }
            (ClientPhase::Established(established), ControlMessage::Topology(topology)) => {
                established.liveness.heard(now_ns);
                self.topology = Some(topology);
                Ok(())
            }
            (
                ClientPhase::Established(established),
                ControlMessage::ReleaseState {
                    released,
                    observe,
                    next_seq,
                },
            ) => {
                // Rates that wait behind the kill switch may have expired meanwhile. The next
                // datagram renews the lease and surfaces them again.
                self.lease_over = established.lease.expires_ns() <= now_ns;
                established.liveness.heard(now_ns);
                // The stream's message counts as just before the datagram that carries its state in
                // the header.
                let key = next_seq.saturating_mul(2).saturating_sub(1);
                self.release_state(released, key);
                self.observe_state(observe);
                Ok(())
            }
            (ClientPhase::Disconnected | ClientPhase::Refused, _) => Err(SessionError::Closed),
            (ClientPhase::Connecting { .. }, _) => {
                Err(SessionError::NotEstablished("this message"))
            }
            (ClientPhase::Established(_), _) => Err(SessionError::Unexpected(
                "a second Welcome, or a message for a server",
            )),
        }
    }

    fn establish(&mut self, now_ns: u64, welcome: Welcome) {
        let recovery = RecoveryConfig {
            max_in_flight: self.config.max_in_flight,
            min_rto_ns: self.config.min_rto_ns,
            initial_rto_ns: self.config.initial_rto_ns,
            max_rto_ns: self.config.max_rto_ns,
            peer_ack_delay_ns: welcome.ack_delay_ns,
        };
        let packets = PacketSpace::new(PacketSpaceConfig {
            role: SessionRole::Client,
            session: welcome.session,
            epoch: welcome.epoch,
            first_seq: self.config.first_seq,
            peer_first_seq: welcome.first_seq,
            ack_delay_ns: self.config.ack_delay_ns,
            recovery,
        });
        let beyond = self.slots.open(welcome.max_flows);
        self.counters.flows_beyond_peer_table += u64::from(beyond);
        self.phase = ClientPhase::Established(Box::new(Established {
            packets,
            lease: Lease::new(welcome.lease_ns, u64::from(self.config.first_seq)),
            liveness: LivenessTimer::new(now_ns, welcome.liveness_ns),
            last_eliciting_ns: None,
            probe: false,
        }));
        let (released, observe) = (welcome.released, welcome.observe);
        self.events
            .push_back(ClientEvent::Established(Box::new(welcome)));
        // Key 0: every later message of this session overrides the Welcome.
        self.release_state(released, 0);
        self.observe_state(observe);
    }

    /// Applies the newest message about observing. The stream is in order, and only it carries
    /// this: until it comes, a released client looks at no rate.
    fn observe_state(&mut self, observe: bool) {
        if observe != self.observe {
            self.observe = observe;
            // A datagram that was sent later may have ended the release meanwhile.
            if self.released {
                self.release_changed = true;
                if observe {
                    self.slots.announce_all();
                } else {
                    self.slots.withdraw_all();
                }
            }
        }
    }

    /// Tells all rates of the session again, with [`ClientEvent::Rate`].
    pub fn repeat_rates(&mut self) {
        if self.tells_rates() {
            self.slots.announce_all();
        }
    }

    /// Returns true unless rates are of no use to the caller.
    fn tells_rates(&self) -> bool {
        !self.released || self.observe
    }

    /// Applies a release state, unless a newer one is known.
    fn release_state(&mut self, released: bool, key: u64) {
        if key < self.release_key {
            return;
        }
        self.release_key = key;
        if released != self.released {
            self.released = released;
            self.release_changed = true;
            if released && !self.observe {
                // The caller removes all pacing: rates that it has not taken yet would undo that.
                self.slots.withdraw_all();
            } else {
                self.slots.announce_all();
            }
        }
    }

    /// Confirms that [`ClientEvent::Released`] was carried out. The server receives the state that
    /// holds here and the number of flows that are still paced.
    pub fn confirm_release(&mut self, paced_flows: u32) -> Result<(), SessionError> {
        if !self.is_established() {
            return Err(SessionError::NotEstablished("confirm_release"));
        }
        self.control.push(&ControlMessage::ReleaseAck {
            released: self.released,
            paced_flows,
        })?;
        self.counters.control_sent += 1;
        Ok(())
    }

    /// Queues measurements. If the queue is full, they are dropped, counted and refused with
    /// [`SessionError::Backlog`].
    pub fn send_telemetry(&mut self, telemetry: Telemetry) -> Result<(), SessionError> {
        if !self.is_established() {
            return Err(SessionError::NotEstablished("send_telemetry"));
        }
        telemetry.validate()?;
        self.control
            .push(&ControlMessage::Telemetry(telemetry))
            .inspect_err(|_| self.counters.telemetry_dropped += 1)?;
        self.counters.control_sent += 1;
        Ok(())
    }

    /// Takes one datagram. An error is counted by its reason and changes nothing else, with one
    /// exception: a datagram with [`Expired`](DatagramError::Expired) still acknowledges, and it
    /// restarts the liveness timer as of the datagram that it acknowledges.
    pub fn on_datagram(&mut self, now_ns: u64, bytes: &[u8]) -> Result<(), DatagramError> {
        let result = self.datagram(now_ns, bytes);
        if let Err(reason) = result {
            self.counters.dropped(reason);
        }
        result
    }

    fn datagram(&mut self, now_ns: u64, bytes: &[u8]) -> Result<(), DatagramError> {
        let ClientPhase::Established(established) = &mut self.phase else {
            return Err(DatagramError::NotEstablished);
        };
        let datagram = Datagram::parse(bytes, SessionRole::Server)?;
        let numbers = established.packets.check(&datagram)?;
        // A server sends nothing before a client datagram arrived, so its datagrams always
        // acknowledge.
        let ack = numbers.ack.ok_or(DatagramError::Malformed)?;
        let limit = self.slots.limit();
        // All slots are checked before anything changes: a bad record drops the whole datagram.
        for record in datagram.rates {
            let slot = record.flow().slot();
            if slot >= limit {
                return Err(DatagramError::SlotOutOfRange { slot, limit });
            }
        }
        let expires_ns = established.lease.expiry_of(ack);
        let slots = &mut self.slots;
        let bitmap = datagram.header.ack_bitmap.get();
        let mut acknowledge = |sent: &mut SentPackets| {
            sent.on_ack(now_ns, ack, bitmap, |seq, slot, outcome| match outcome {
                AckOutcome::Acked => slots.acked(seq, slot),
                AckOutcome::Lost => slots.lost(seq, slot),
            })
        };
        let Some(expires_ns) = expires_ns.filter(|&expires_ns| expires_ns > now_ns) else {
            // Its rates are too old. Its acknowledgement stays true, and so does that the server
            // lived after the acknowledged datagram had been sent.
            self.counters.datagrams_lost += acknowledge(&mut established.packets.sent);
            if let Some(sent_ns) = established.lease.sent_at(ack) {
                established.liveness.restart_if_later(sent_ns);
            }
            return Err(DatagramError::Expired);
        };

        established.packets.received(now_ns, numbers, &datagram);
        established.liveness.heard(now_ns);
        self.counters.datagrams_lost += acknowledge(&mut established.packets.sent);
        // Before `renew`, which moves the expiry that this compares.
        let lapsed = established.lease.is_lapsing(now_ns);
        self.lease_renewed |= established.lease.renew(expires_ns);
        self.lease_over = false;
        self.counters.datagrams_received += 1;
        self.counters.datagram_bytes_received += bytes.len() as u64;
        self.counters.rates_received += datagram.rates.len() as u64;
        self.release_state(
            datagram.header.has(flags::RELEASED),
            numbers.seq.saturating_mul(2),
        );
        if lapsed && self.tells_rates() {
            // The caller may have dropped its rates, and no renewal restores dropped ones: surface
            // all rates of the session again.
            self.slots.announce_all();
        }
        for record in datagram.rates {
            let taken = self.slots.rate(
                record.flow(),
                record.rate(),
                numbers.seq,
                ack,
                self.observe || !self.released,
            );
            self.counters.records_stale += u64::from(!taken);
        }
        Ok(())
    }

    /// Takes the next frame to write on the stream.
    pub fn poll_control(&mut self) -> Option<Vec<u8>> {
        // A client's frames have one owner, so this conversion takes over their memory.
        self.control.pop().map(Vec::from)
    }

    /// Builds the next datagram of at most `max_bytes`, which must be at least
    /// [`MIN_DATAGRAM_BYTES`]. Returns true if `out` holds one; call again then.
    pub fn poll_datagram(&mut self, now_ns: u64, max_bytes: usize, out: &mut Vec<u8>) -> bool {
        out.clear();
        let ClientPhase::Established(established) = &mut self.phase else {
            return false;
        };
        if max_bytes < MIN_DATAGRAM_BYTES {
            return false;
        }
        let has_room = established.packets.sent.has_room();
        let mut contents = PacketContents::default();
        let mut free = max_bytes - HEADER_BYTES;
        let seq = established.packets.next_seq();
        self.ends.clear();
        while let Some(record) = self.slots.peek_record() {
            if !has_room {
                self.counters.in_flight_full += 1;
                break;
            }
            match record {
                SlotRecord::Start(record) => {
                    if free < StartRecord::BYTES || contents.starts == u16::MAX {
                        break;
                    }
                    free -= StartRecord::BYTES;
                    if out.is_empty() {
                        out.resize(HEADER_BYTES, 0);
                    }
                    out.extend_from_slice(record.as_bytes());
                    contents.starts += 1;
                }
                SlotRecord::End(flow) => {
                    if free < EndRecord::BYTES || contents.ends == u16::MAX {
                        break;
                    }
                    free -= EndRecord::BYTES;
                    self.ends.push(flow.0);
                    contents.ends += 1;
                }
            }
            // Taken only once it fits: a record that does not fit stays at the front for the next
            // datagram.
            let slot = self.slots.mark_sent(seq);
            established.packets.sent.push_slot(slot);
        }
        let records = u32::from(contents.starts) + u32::from(contents.ends);
        let keep_alive = established
            .keep_alive_ns(self.slots.active())
            .is_some_and(|due_ns| due_ns <= now_ns);
        // Bare acknowledgements are not acknowledged: else two idle ends would exchange them for
        // ever.
        contents.eliciting = records > 0 || keep_alive;
        // A start waits for its rate and a keep-alive for the lease. Nothing waits for an end's
        // acknowledgement.
        contents.prompt = contents.starts > 0 || keep_alive;
        if !contents.eliciting && !established.packets.ack_due(now_ns) {
            return false;
        }
        if out.is_empty() {
            out.resize(HEADER_BYTES, 0);
        }
        // The wire has all starts before all ends (see `datagram`), whatever the order in the
        // queue.
        for &flow in &self.ends {
            out.extend_from_slice(EndRecord::new(FlowId(flow)).as_bytes());
        }
        established.packets.seal(out, contents);
        established.lease.sent(seq, now_ns);
        if contents.eliciting {
            established
                .packets
                .sent
                .push(seq, now_ns, records, contents.prompt);
            established.last_eliciting_ns = Some(now_ns);
            established.probe = false;
        }
        self.counters.datagrams_sent += 1;
        self.counters.datagram_bytes_sent += out.len() as u64;
        self.counters.starts_sent += u64::from(contents.starts);
        self.counters.ends_sent += u64::from(contents.ends);
        if records == 0 {
            if contents.eliciting {
                self.counters.keep_alives_sent += 1;
            } else {
                self.counters.acks_sent += 1;
            }
        }
        true
    }

    /// Time of the next [`on_timeout`](Self::on_timeout) and poll, if nothing else happens before.
    pub fn next_timeout(&self) -> Option<u64> {
        match &self.phase {
            ClientPhase::Disconnected | ClientPhase::Refused => None,
            ClientPhase::Connecting { deadline_ns } => Some(*deadline_ns),
            ClientPhase::Established(established) => [
                Some(established.liveness.deadline_ns()),
                established.packets.ack_deadline(),
                established.packets.sent.deadline(),
                established.keep_alive_ns(self.slots.active()),
            ]
            .into_iter()
            .flatten()
            .min(),
        }
    }

    /// Handles timers that are due at `now_ns`.
    pub fn on_timeout(&mut self, now_ns: u64) {
        // One reason at most: each phase has its own time-out.
        let lost = match &mut self.phase {
            ClientPhase::Disconnected | ClientPhase::Refused => return,
            ClientPhase::Connecting { deadline_ns } => {
                (*deadline_ns <= now_ns).then_some(LossReason::HandshakeTimeout)
            }
            ClientPhase::Established(established) => {
                let slots = &mut self.slots;
                let lost = established
                    .packets
                    .sent
                    .on_timeout(now_ns, |seq, slot| slots.lost(seq, slot));
                if lost > 0 {
                    // A loss is the first sign of trouble: an answer to a keep-alive says whether
                    // the server lives.
                    established.probe = true;
                    self.counters.timeouts += 1;
                    self.counters.datagrams_lost += lost;
                }
                established
                    .liveness
                    .has_expired(now_ns)
                    .then_some(LossReason::Silence)
            }
        };
        if let Some(reason) = lost {
            self.close();
            self.events.push_back(ClientEvent::SessionLost(reason));
        }
    }

    /// Takes the next event.
    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        if let Some(topology) = self.topology.take() {
            return Some(ClientEvent::Topology(topology));
        }
        // Only the newest topology and release state matter; a slow caller skips the ones between.
        if self.release_changed {
            self.release_changed = false;
            return Some(ClientEvent::Released(self.released));
        }
        let ClientPhase::Established(established) = &mut self.phase else {
            return None;
        };
        // Released, or expired: the caller must not pace.
        if (self.released && !self.observe) || self.lease_over {
            return None;
        }
        if self.lease_renewed {
            self.lease_renewed = false;
            return Some(ClientEvent::LeaseRenewed {
                expires_ns: established.lease.expires_ns(),
            });
        }
        self.slots
            .pop_rate()
            .map(|(flow, rate_bps)| ClientEvent::Rate {
                flow,
                rate_bps,
                expires_ns: established.lease.expires_ns(),
            })
    }

    /// Returns true if [`poll_event`](Self::poll_event) has an event.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
            || self.topology.is_some()
            || self.release_changed
            || (self.is_established()
                && self.tells_rates()
                && !self.lease_over
                && (self.lease_renewed || self.slots.has_events()))
    }

    /// Returns true if a session is established.
    pub fn is_established(&self) -> bool {
        matches!(self.phase, ClientPhase::Established(_))
    }

    /// Returns true if the kill switch is on, as far as this end knows.
    pub fn is_released(&self) -> bool {
        self.released
    }

    /// Returns true if rates are told although the session is released: the caller compares them
    /// with what it achieves, and applies none.
    pub fn observes(&self) -> bool {
        self.released && self.observe
    }

    /// Expiry of the rates of this session; 0 before the first datagram of the server.
    pub fn lease_expires_ns(&self) -> u64 {
        match &self.phase {
            ClientPhase::Established(established) => established.lease.expires_ns(),
            _ => 0,
        }
    }

    /// The smoothed round-trip time to the server.
    pub fn srtt_ns(&self) -> Option<u64> {
        match &self.phase {
            ClientPhase::Established(established) => established.packets.sent.rtt().srtt_ns(),
            _ => None,
        }
    }

    /// The active flows.
    pub fn flows(&self) -> impl Iterator<Item = FlowState> + '_ {
        self.slots.iter()
    }

    /// Number of active flows.
    pub fn flow_count(&self) -> u32 {
        self.slots.active()
    }

    /// Number of active flows beyond those that the session carries, at least; 0 without a session.
    pub fn flows_beyond_session(&self) -> u32 {
        match &self.phase {
            ClientPhase::Established(_) => self.slots.active().saturating_sub(self.slots.limit()),
            _ => 0,
        }
    }

    /// Counters since the session was made.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The settings.
    pub fn config(&self) -> &ClientConfig {
        &self.config
    }
}
