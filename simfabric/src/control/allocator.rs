//! The allocator's node: the production's hub and engine.

use std::collections::BTreeMap;

use ratewright_allocator::engine::parallel::{Layout, ParallelEngine, ParallelOptions};
use ratewright_allocator::engine::{EngineEvent, IterationReport, RateEngine, ReferenceEngine};
use ratewright_allocator::feeds::FeedsConfig;
use ratewright_allocator::feeds::gnmic::EventsRead;
use ratewright_allocator::service::config::{
    ClassConfig, Fingerprint, Limits, MembershipConfig, Rollout, Trust,
};
use ratewright_allocator::service::hub::{Hub, HubSettings, ReadySession, SessionTimers};
use ratewright_allocator::service::tls::PeerCertificate;
use ratewright_proto::client::KnownHosts;
use ratewright_proto::control::{ControlMessage, FrameDecoder};
use ratewright_proto::records::FlowId;
use ratewright_proto::telemetry::Telemetry;
use ratewright_proto::{SessionError, VERSION};
use ratewright_topology::{LinkId, Topology};

use super::agent::Agent;
use super::link_check::{Findings, LinkFinding};
use super::{ControlConfig, ControlError, ControlTraffic, EngineChoice, MAX_DATAGRAM_BYTES};

/// Counters of the allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct AllocatorCounts {
    /// Engine iterations.
    pub iterations: u64,
    /// Flowlet starts taken.
    pub starts: u64,
    /// Flowlet ends taken.
    pub ends: u64,
    /// Rates handed to sessions.
    pub updates: u64,
    /// Rates of flows that had ended before.
    pub updates_stale: u64,
    /// Starts without a path, or refused by the engine.
    pub refused: u64,
    /// Sessions that timed out or were refused.
    pub sessions_lost: u64,
}

impl AllocatorCounts {
    /// Returns the difference from `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            iterations: self.iterations - earlier.iterations,
            starts: self.starts - earlier.starts,
            ends: self.ends - earlier.ends,
            updates: self.updates - earlier.updates,
            updates_stale: self.updates_stale - earlier.updates_stale,
            refused: self.refused - earlier.refused,
            sessions_lost: self.sessions_lost - earlier.sessions_lost,
        }
    }
}

/// The allocator, without a network.
pub struct AllocatorNode {
    hub: Hub,
    engine: Box<dyn RateEngine>,
    /// Session of each host; `None` without one.
    sessions: Vec<Option<u32>>,
    /// Host of each session.
    hosts: BTreeMap<u32, u32>,
    /// Hosts of the fabric, as the first session was told them. Every host knows them.
    known_hosts: Option<KnownHosts>,
    /// Sessions that may have datagrams to send.
    ready: Vec<ReadySession>,
    settled: bool,
    /// Messages for the feeds, if these hear any, for an audit.
    hears_feeds: bool,
    taken: Vec<Telemetry>,
    /// Load of every link by the last iteration, if the feeds hear anything.
    loads_bps: Vec<f64>,
    checks: bool,
    findings: Findings,
    /// Datagrams sent towards the hosts.
    sent: ControlTraffic,
    iterations: u64,
    /// Starts that the engine refused.
    refused: u64,
    sessions_lost: u64,
}

impl AllocatorNode {
    /// Makes an allocator for all hosts of the topology, without flows or established sessions.
    ///
    /// # Errors
    /// Settings that the engine refuses.
    pub fn new(topology: &Topology, config: &ControlConfig) -> Result<Self, ControlError> {
        let hub = Hub::new(hub_settings(topology, config), topology.clone(), false);
        let capacities_bps = hub.network().capacities_bps();
        let settings = config.engine_config();
        let engine: Box<dyn RateEngine> = match config.engine {
            EngineChoice::Reference => Box::new(ReferenceEngine::new(settings, &capacities_bps)?),
            EngineChoice::Parallel { blocks } => Box::new(ParallelEngine::new(
                settings,
                ParallelOptions::default(),
                Layout::of(topology, blocks)?,
                &capacities_bps,
            )?),
        };
        Ok(Self {
            hub,
            engine,
            sessions: vec![None; topology.hosts().len()],
            hosts: BTreeMap::new(),
            known_hosts: None,
            ready: Vec::new(),
            // Without flows an iteration changes nothing.
            settled: true,
            hears_feeds: config.feeds.is_some(),
            taken: Vec::new(),
            loads_bps: Vec::new(),
            checks: config.link_check.is_some(),
            findings: Findings::default(),
            sent: ControlTraffic::default(),
            iterations: 0,
            refused: 0,
            sessions_lost: 0,
        })
    }

    /// Opens a session with the agent of host `host`. The frames of the control stream are
    /// exchanged at once.
    ///
    /// Hosts connect when they boot, long before the flowlets of an experiment. The handshake
    /// leaves out the list of hosts, because a simulated host knows the fabric.
    ///
    /// # Errors
    /// A frame that one of the ends refuses, or a session that the hub refuses.
    pub fn connect(
        &mut self,
        now_ns: u64,
        host: u32,
        agent: &mut Agent,
    ) -> Result<(), ControlError> {
        let refused = |reason: String| ControlError::Handshake { host, reason };
        let failed = |error: SessionError| refused(error.to_string());
        let certificate = certificate_of(host, &self.hub.topology().hosts()[host as usize].name);
        let opened = self.hub.open(now_ns, certificate);
        let id = opened.map_err(|full| refused(full.to_string()))?;
        let former = self.sessions[host as usize].replace(id);
        self.hosts.insert(id, host);
        let client = agent.session_mut();
        if let Some(known) = &self.known_hosts {
            client.set_known_hosts(known.clone());
        }
        client.connected(now_ns);
        let (mut to_hub, mut to_client) = (FrameDecoder::new(), FrameDecoder::new());
        loop {
            let mut quiet = true;
            while let Some(frame) = client.poll_control() {
                to_hub.push(&frame);
                quiet = false;
            }
            while let Some(body) = to_hub.next_frame().map_err(failed)? {
                self.hub.on_control(now_ns, id, body);
            }
            while let Some(bytes) = self.hub.poll_control(id) {
                to_client.push(&bytes);
                quiet = false;
            }
            while let Some(body) = to_client.next_frame().map_err(failed)? {
                client.on_control(now_ns, body).map_err(failed)?;
            }
            if quiet {
                break;
            }
        }
        if self.known_hosts.is_none() {
            self.known_hosts = client.known_hosts().cloned();
        }
        // The client reports the flows of its former session again. Rates for that one's flows no
        // longer match and count as stale.
        if let Some(former) = former {
            self.remove(now_ns, former, "replaced");
        }
        let closing = self.hub.closing(id);
        self.apply_events();
        closing.map_or(Ok(()), |reason| {
            self.remove(now_ns, id, reason);
            Err(refused(reason.to_owned()))
        })
    }

    /// Forgets a session whose connection is gone.
    fn remove(&mut self, now_ns: u64, id: u32, reason: &'static str) {
        self.hub.remove_session(now_ns, id, reason);
        if let Some(host) = self.hosts.remove(&id)
            && self.sessions[host as usize] == Some(id)
        {
            self.sessions[host as usize] = None;
        }
    }

    /// Takes one datagram of host `host`, or one message of its control stream; a bad one changes
    /// nothing but a counter.
    pub fn on_message(&mut self, now_ns: u64, host: u32, bytes: &[u8]) {
        let Some(id) = self.session_of(host) else {
            return;
        };
        // A message of the control stream begins with the tag of its field.
        if bytes.first() == Some(&VERSION) {
            self.hub.on_datagram(now_ns, id, bytes);
        } else {
            self.hub.on_control(now_ns, id, bytes);
            if let Ok(ControlMessage::Telemetry(telemetry)) = ControlMessage::decode(bytes)
                && !telemetry.has_access_use_alone()
            {
                self.note_taken(telemetry);
            }
        }
        self.end_if_closing(now_ns, id);
        self.apply_events();
    }

    /// Takes a reading of a switch; a bad one changes nothing.
    pub fn on_reading(&mut self, now_ns: u64, frame: &[u8]) {
        let mut frames = FrameDecoder::new();
        frames.push(frame);
        let body = frames.next_frame().ok().flatten();
        if let Some(Ok(ControlMessage::Telemetry(telemetry))) = body.map(ControlMessage::decode) {
            let read = EventsRead {
                telemetry,
                ..EventsRead::default()
            };
            self.hub.on_collector(now_ns, &read);
            self.note_taken(read.telemetry);
            self.apply_events();
        }
    }

    fn note_taken(&mut self, telemetry: Telemetry) {
        if self.hears_feeds {
            self.taken.push(telemetry);
        }
    }

    /// Removes the next message that the feeds took, for an audit.
    pub(crate) fn poll_taken(&mut self) -> Option<Telemetry> {
        self.taken.pop()
    }

    /// Tells the hub what is handed out, if it asks for that.
    fn tell_loads(&mut self, now_ns: u64) {
        if self.hub.network().wants_link_loads(now_ns) {
            let mut loads_bps = Vec::new();
            self.engine.link_loads(&mut loads_bps);
            let network = self.hub.network_mut();
            network.observe_link_loads(now_ns, &mut loads_bps);
        }
    }

    /// Carries out what the feeds and the check of links ask for.
    pub fn apply_feeds(&mut self, now_ns: u64) {
        self.tell_loads(now_ns);
        self.hub.on_own_timeout(now_ns);
        self.findings.note(now_ns, &self.hub);
        self.apply_events();
    }

    /// Returns the time at which the check of links calls for [`apply_feeds`](Self::apply_feeds).
    #[must_use]
    pub fn next_check_ns(&self) -> Option<u64> {
        let due = [
            self.hub.next_own_timeout_ns(),
            self.hub.network().next_link_loads_ns(),
        ];
        due.into_iter().flatten().min().filter(|_| self.checks)
    }

    /// Returns the links that the check named, in the order of time.
    #[must_use]
    pub fn findings(&self) -> &[LinkFinding] {
        self.findings.all()
    }

    /// Returns what the last iteration handed out to flows of sessions on a link, in bit/s.
    #[must_use]
    pub fn handed_out_bps(&self, link: u32) -> f64 {
        let load_bps = self.loads_bps.get(link as usize).copied().unwrap_or(0.0);
        (load_bps - self.hub.network().external_bps(LinkId(link))).max(0.0)
    }

    /// Runs the timers of the session of `host`.
    pub fn on_timeout(&mut self, now_ns: u64, host: u32) {
        if let Some(id) = self.session_of(host) {
            self.hub.on_timeout(now_ns, id);
            self.end_if_closing(now_ns, id);
            self.apply_events();
        }
    }

    /// Returns the time at which to call [`on_timeout`](Self::on_timeout) for `host` and poll
    /// again.
    #[must_use]
    pub fn next_timeout_ns(&self, host: u32) -> Option<u64> {
        self.hub.next_timeout(self.session_of(host)?)
    }

    fn session_of(&self, host: u32) -> Option<u32> {
        self.sessions.get(host as usize).copied().flatten()
    }

    /// Forgets a session that the hub has ended. Its host learns of it by its own timers.
    fn end_if_closing(&mut self, now_ns: u64, id: u32) {
        if let Some(reason) = self.hub.closing(id) {
            self.sessions_lost += 1;
            self.remove(now_ns, id, reason);
        }
    }

    /// Hands the engine the hub's events.
    fn apply_events(&mut self) {
        for event in self.hub.engine_events().drain(..) {
            self.settled = false;
            let is_start = matches!(event, EngineEvent::Start(_));
            let applied = self.engine.apply(event);
            self.refused += u64::from(is_start && applied.is_err());
        }
    }

    /// Returns true if another iteration would change nothing.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// Runs one iteration over the flows that are known now. Its rates are kept for
    /// [`announce`](Self::announce).
    pub fn iterate(&mut self, now_ns: u64) -> IterationReport {
        let report = self.engine.iterate();
        self.iterations += 1;
        if self.hears_feeds {
            self.engine.link_loads(&mut self.loads_bps);
        }
        self.tell_loads(now_ns);
        self.settled = report.settled;
        report
    }

    /// Hands the rates that moved to the sessions.
    pub fn announce(&mut self, now_ns: u64) {
        let hub = &mut self.hub;
        self.engine
            .drain_updates(&mut |update| hub.on_rate(now_ns, update));
    }

    /// Builds the datagrams of all ready sessions: calls `send(host, datagram)`, then `rearm(host,
    /// timeout)` for each session. All rates of one host and iteration share datagrams.
    pub fn poll_datagrams(
        &mut self,
        now_ns: u64,
        scratch: &mut Vec<u8>,
        send: &mut dyn FnMut(u32, &[u8]),
        rearm: &mut dyn FnMut(u32, Option<u64>),
    ) {
        self.hub.drain_ready(now_ns, &mut self.ready);
        for ReadySession { id, .. } in self.ready.drain(..) {
            let Some(&host) = self.hosts.get(&id) else {
                continue;
            };
            while (self.hub).poll_datagram(now_ns, id, MAX_DATAGRAM_BYTES, scratch) {
                self.sent.count_datagram(scratch);
                send(host, scratch);
            }
            rearm(host, self.hub.next_timeout(id));
        }
    }

    /// Returns the engine.
    #[must_use]
    pub fn engine(&self) -> &dyn RateEngine {
        &*self.engine
    }

    /// Returns the datagrams sent towards the hosts so far.
    #[must_use]
    pub fn sent(&self) -> &ControlTraffic {
        &self.sent
    }

    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> AllocatorCounts {
        let counts = self.hub.counts();
        AllocatorCounts {
            iterations: self.iterations,
            starts: counts.starts,
            ends: counts.ends,
            updates: counts.updates,
            updates_stale: counts.updates_stale,
            refused: counts.flows_unmanaged.total() + self.refused,
            sessions_lost: self.sessions_lost,
        }
    }

    /// Returns the flows of `host` and the rates notified to it, by flow id.
    #[must_use]
    pub fn view(&self, host: u32) -> Vec<(FlowId, u64)> {
        let rates = self.session_of(host).map(|id| self.hub.rates(id));
        let mut view: Vec<_> = rates.into_iter().flatten().collect();
        view.sort_unstable_by_key(|&(id, _)| id);
        view
    }
}

/// Returns the hub's settings. Budgets of single sessions are the production's.
fn hub_settings(topology: &Topology, config: &ControlConfig) -> HubSettings {
    let hosts = topology.hosts().len() as u32;
    // Feeds that hear nothing know what was handed out, for the check.
    let feeds = config.feeds.clone().unwrap_or_else(|| FeedsConfig {
        receivers: false,
        credit: false,
        int: false,
        ..FeedsConfig::default()
    });
    HubSettings {
        epoch: 1,
        lease_ns: config.lease_ns,
        update_interval_ns: 0,
        ack_delay_ns: config.ack_delay_ns,
        liveness_ns: config.liveness_ns,
        threshold: config.threshold,
        external_share: feeds.external_share,
        feeds: FeedsConfig {
            max_lowering: config.link_check.map_or(0.0, |check| check.max_lowering),
            ..feeds
        },
        limits: Limits {
            max_sessions: hosts.max(1),
            max_flows_per_session: config.max_flows_per_host,
            max_flows: 1 << 24,
            // Fabrics of the papers start more than one allocator of today is given.
            max_total_starts_per_s: u32::MAX,
            ..Limits::default()
        },
        trust: Trust::default(),
        membership: MembershipConfig::default(),
        rollout: Rollout::default(),
        classes: vec![ClassConfig::default()],
        timers: SessionTimers {
            liveness_factor: 1,
            updates_in_flight: usize::MAX,
            min_rto_ns: config.min_rto_ns,
            initial_rto_ns: config.initial_rto_ns,
            max_rto_ns: config.max_rto_ns,
        },
    }
}

/// Returns the certificate of a host.
fn certificate_of(host: u32, name: &str) -> PeerCertificate {
    let mut fingerprint = Fingerprint([0; 32]);
    fingerprint.0[..4].copy_from_slice(&host.to_be_bytes());
    PeerCertificate {
        names: vec![name.to_owned()],
        addresses: Vec::new(),
        pod_prefixes: Vec::new(),
        fingerprint,
    }
}
