//! The allocator's node: one production session per host, one production engine.

use std::sync::Arc;

use ratewright_allocator::engine::parallel::{Layout, ParallelEngine, ParallelOptions};
use ratewright_allocator::engine::{
    EngineEvent, FlowNumber, FlowNumbers, FlowSpec, IterationReport, RateEngine, ReferenceEngine,
};
use ratewright_allocator::feeds::{FeedChange, Feeds, FeedsConfig, Reporter};
use ratewright_proto::control::{
    AccessCapacity, ControlMessage, EncodedTopology, FrameDecoder, TopologySnapshot,
};
use ratewright_proto::records::{FlowId, FlowPath, StartRecord};
use ratewright_proto::server::{Admission, FlowChange, ServerConfig, ServerEvent, ServerSession};
use ratewright_proto::telemetry::{AccessUse, SyncTerms, Telemetry};
use ratewright_proto::{Counters, RateCode, SessionError, VERSION};
use ratewright_topology::{HostId, LinkId, PathChoice, Topology};

use super::agent::Agent;
use super::link_check::{Checking, Known, LinkFinding};
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
    /// Changes that feeds asked for.
    pub feed_changes: u64,
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
            feed_changes: self.feed_changes - earlier.feed_changes,
        }
    }
}

struct HostSession {
    session: ServerSession,
    /// The session's number: `attempt × hosts + host`.
    number: u32,
    ready: bool,
    /// Flows that the engine has, by slot.
    flows: Vec<Option<(FlowId, FlowNumber)>>,
}

impl HostSession {
    /// Returns the number of a flow that the engine has.
    fn number_of(&self, flow: FlowId) -> Option<FlowNumber> {
        let (known, number) = (*self.flows.get(flow.slot() as usize)?)?;
        (known == flow).then_some(number)
    }
}

/// The allocator, without a network.
pub struct AllocatorNode {
    topology: Arc<Topology>,
    config: Arc<ServerConfig>,
    threshold: f64,
    engine: Box<dyn RateEngine>,
    /// Numbers of the flows that the engine has, with their hosts.
    numbers: FlowNumbers<(u32, FlowId)>,
    sessions: Vec<HostSession>,
    /// Changes that a datagram brings, while they are taken.
    changes: Vec<FlowChange>,
    /// Hosts whose session may have datagrams to send.
    ready: Vec<u32>,
    settled: bool,
    last: IterationReport,
    /// Feeds. Those that hear nothing know what was handed out, for the check.
    feeds: Option<Feeds>,
    hears_feeds: bool,
    checking: Option<Checking>,
    /// Messages that the feeds took.
    taken: Vec<Telemetry>,
    telemetry_interval_ns: u64,
    telemetry_sync: Option<SyncTerms>,
    /// Load of every link by the last iteration, if there are feeds.
    loads_bps: Vec<f64>,
    /// Datagrams sent towards the hosts.
    sent: ControlTraffic,
    counts: AllocatorCounts,
}

impl AllocatorNode {
    /// Makes an allocator for all hosts of the topology, without flows or established sessions.
    ///
    /// # Errors
    /// Settings that the engine refuses.
    pub fn new(topology: Arc<Topology>, config: &ControlConfig) -> Result<Self, ControlError> {
        let capacities_bps: Vec<f64> = topology
            .links()
            .iter()
            .map(|link| topology.effective_capacity_bps(link.id) as f64)
            .collect();
        let settings = config.engine_config();
        let engine: Box<dyn RateEngine> = match config.engine {
            EngineChoice::Reference => Box::new(ReferenceEngine::new(settings, &capacities_bps)?),
            EngineChoice::Parallel { blocks } => Box::new(ParallelEngine::new(
                settings,
                ParallelOptions::default(),
                Layout::of(&topology, blocks)?,
                &capacities_bps,
            )?),
        };
        let server = Arc::new(ServerConfig {
            epoch: 1,
            lease_ns: config.lease_ns,
            liveness_ns: config.liveness_ns,
            liveness_factor: 1,
            max_flows: config.max_flows_per_host,
            ack_delay_ns: config.ack_delay_ns,
            min_rto_ns: config.min_rto_ns,
            initial_rto_ns: config.initial_rto_ns,
            max_rto_ns: config.max_rto_ns,
            ..ServerConfig::default()
        });
        let sessions = (0..topology.hosts().len() as u32)
            .map(|host| HostSession {
                session: ServerSession::new(0, Arc::clone(&server)),
                number: host,
                ready: false,
                flows: Vec::new(),
            })
            .collect();
        let deaf = config.link_check.map(|_| FeedsConfig {
            receivers: false,
            credit: false,
            int: false,
            ..FeedsConfig::default()
        });
        let feeds = config.feeds.clone().or(deaf);
        Ok(Self {
            feeds: feeds.map(|feeds| Feeds::new(feeds, &topology)),
            hears_feeds: config.feeds.is_some(),
            checking: (config.link_check).map(|settings| Checking::new(settings, &topology)),
            taken: Vec::new(),
            telemetry_interval_ns: (config.feeds.as_ref()).map_or(0, |feeds| feeds.interval_ns),
            telemetry_sync: config.feeds.as_ref().and_then(FeedsConfig::sync_terms),
            loads_bps: Vec::new(),
            topology,
            config: server,
            threshold: config.threshold,
            engine,
            numbers: FlowNumbers::new(capacities_bps.len() as u32),
            sessions,
            changes: Vec::new(),
            ready: Vec::new(),
            // Without flows an iteration changes nothing.
            settled: true,
            last: IterationReport::default(),
            sent: ControlTraffic::default(),
            counts: AllocatorCounts::default(),
        })
    }

    /// Opens a session with the agent of host `host`. The frames of the control stream are
    /// exchanged at once.
    ///
    /// Hosts connect when they boot, long before the flowlets of an experiment. The handshake
    /// leaves out the list of hosts, because a simulated host knows the fabric.
    ///
    /// # Errors
    /// A frame that one of the ends refuses.
    pub fn connect(
        &mut self,
        now_ns: u64,
        host: u32,
        agent: &mut Agent,
    ) -> Result<(), ControlError> {
        let failed = |error: SessionError| ControlError::Handshake {
            host,
            reason: error.to_string(),
        };
        // The client reports the flows of an earlier session again. Rates for that one's flows no
        // longer match and count as stale.
        self.end_flows(host);
        let hosts = self.sessions.len() as u32;
        let host_session = &mut self.sessions[host as usize];
        host_session.session = ServerSession::new(now_ns, Arc::clone(&self.config));
        host_session.number = host_session.number.wrapping_add(hosts);
        if let Some(checking) = &mut self.checking {
            checking.leave(now_ns, HostId(host), &self.topology);
            checking.join(now_ns, HostId(host));
        }
        let topology = &self.topology;
        let access = AccessCapacity::new(
            topology.effective_capacity_bps(topology.host_uplink(HostId(host))),
            topology.effective_capacity_bps(topology.host_downlink(HostId(host))),
        );
        let client = agent.session_mut();
        client.connected(now_ns);
        let (mut to_server, mut to_client) = (FrameDecoder::new(), FrameDecoder::new());
        loop {
            let mut quiet = true;
            while let Some(frame) = client.poll_control() {
                to_server.push(&frame);
                quiet = false;
            }
            while let Some(body) = to_server.next_frame().map_err(failed)? {
                host_session
                    .session
                    .on_control(now_ns, body)
                    .map_err(failed)?;
            }
            while let Some(event) = host_session.session.poll_event() {
                if let ServerEvent::Hello(_) = event {
                    let admission = Admission {
                        session: host_session.number,
                        host_id: host,
                        topology: EncodedTopology::from(TopologySnapshot {
                            version: self.topology.epoch(),
                            ecmp_seed: self.topology.ecmp().seed,
                            ecmp_symmetric: self.topology.ecmp().symmetric,
                            ..TopologySnapshot::default()
                        }),
                        classes: Vec::new(),
                        threshold: self.threshold,
                        released: false,
                        observe: false,
                        sealed_udp: None,
                        telemetry_interval_ns: self.telemetry_interval_ns,
                        telemetry_sync: self.telemetry_sync,
                        access,
                    };
                    host_session
                        .session
                        .accept(now_ns, admission)
                        .map_err(failed)?;
                }
            }
            while let Some(frame) = host_session.session.poll_control() {
                to_client.push(&frame);
                quiet = false;
            }
            while let Some(body) = to_client.next_frame().map_err(failed)? {
                client.on_control(now_ns, body).map_err(failed)?;
            }
            if quiet {
                return Ok(());
            }
        }
    }

    /// Takes one datagram of host `host`, or one message of its control stream; a bad one changes
    /// nothing but a counter.
    pub fn on_message(&mut self, now_ns: u64, host: u32, bytes: &[u8]) {
        let Some(host_session) = self.sessions.get_mut(host as usize) else {
            return;
        };
        // A message of the control stream begins with the tag of its field.
        if bytes.first() == Some(&VERSION) {
            let mut changes = std::mem::take(&mut self.changes);
            let told = |change| changes.push(change);
            let _ = host_session.session.on_datagram(now_ns, bytes, told);
            for change in changes.drain(..) {
                self.change_flow(now_ns, host, change);
            }
            self.changes = changes;
        } else {
            let _ = host_session.session.on_control(now_ns, bytes);
        }
        self.take_events(now_ns, host);
    }

    /// Takes a reading of a switch; a bad one changes nothing.
    pub fn on_reading(&mut self, now_ns: u64, frame: &[u8]) {
        let mut frames = FrameDecoder::new();
        frames.push(frame);
        let body = frames.next_frame().ok().flatten();
        if let Some(Ok(ControlMessage::Telemetry(telemetry))) = body.map(ControlMessage::decode) {
            self.take(now_ns, Reporter::Collector, telemetry);
        }
    }

    /// Hands a message to the feeds.
    fn take(&mut self, now_ns: u64, reporter: Reporter, telemetry: Telemetry) {
        if let Some(feeds) = self.feeds.as_mut().filter(|_| self.hears_feeds) {
            let (sessions, hosts) = (&self.sessions, self.sessions.len() as u32);
            // The number of a session that was never opened is the host's.
            let is_managed = |host: HostId| {
                let session = sessions.get(host.index());
                session.is_some_and(|session| session.number >= hosts)
            };
            feeds.take(now_ns, reporter, &telemetry, &self.topology, is_managed);
            self.taken.push(telemetry);
        }
    }

    /// Removes the next message that the feeds took, for an audit.
    pub(crate) fn poll_taken(&mut self) -> Option<Telemetry> {
        self.taken.pop()
    }

    /// Carries out what the feeds ask for, once in their interval.
    pub fn apply_feeds(&mut self, now_ns: u64) {
        let Some(feeds) = &mut self.feeds else {
            return;
        };
        if feeds.wants_loads(now_ns) {
            // No iteration has come since: the loads are the same.
            feeds.observe(now_ns, &mut self.loads_bps.clone());
        }
        let mut changes = Vec::new();
        feeds.apply(now_ns, &self.topology, &mut |change| changes.push(change));
        for change in changes {
            self.counts.feed_changes += 1;
            self.settled = false;
            match change {
                FeedChange::Engine(event) => self.apply_external(event),
                FeedChange::Demand { sender, flow } => {
                    self.restart(now_ns, sender.0, FlowId(flow));
                }
            }
        }
    }

    /// Hands the engine what external traffic asks for. It takes a shared link its headroom, and
    /// gives it back when it ends.
    fn apply_external(&mut self, event: EngineEvent) {
        let link = match &event {
            EngineEvent::Capacity { link, .. } => *link,
            // Dummy flows have the number of their link.
            EngineEvent::Start(spec) => spec.number.index(),
            EngineEvent::End(number) => number.index(),
            // External traffic asks for no other event.
            _ => return,
        };
        let is_capacity = matches!(event, EngineEvent::Capacity { .. });
        if !(is_capacity && self.checking.is_some()) && self.engine.apply(event).is_err() {
            self.counts.refused += 1;
        }
        self.push_capacities([LinkId(link)]);
    }

    /// Hands the engine the capacities of links by what the check knows of them.
    fn push_capacities(&mut self, links: impl IntoIterator<Item = LinkId>) {
        let (Some(checking), Some(feeds)) = (&self.checking, &self.feeds) else {
            return;
        };
        let known = Known {
            topology: &self.topology,
            feeds,
        };
        for link in links {
            self.settled = false;
            let capacity = EngineEvent::Capacity {
                link: link.0,
                capacity_bps: checking.capacity_bps(link, known),
            };
            if self.engine.apply(capacity).is_err() {
                self.counts.refused += 1;
            }
        }
    }

    /// Takes what a host tells of its own links.
    fn take_access_use(&mut self, now_ns: u64, host: u32, access_use: &AccessUse) {
        if let (Some(checking), Some(feeds)) = (&mut self.checking, &self.feeds) {
            let known = Known {
                topology: &self.topology,
                feeds,
            };
            checking.tell(now_ns, HostId(host), access_use, known);
            self.observe_for_check(now_ns);
        }
    }

    /// Hands the engine the capacities of links that began or ended to have traffic that nobody
    /// paces.
    fn push_shared(&mut self) {
        let changed = self.checking.as_mut().map(Checking::take_shared);
        self.push_capacities(changed.unwrap_or_default());
    }

    /// Notes what is handed out, if links are in question and the last note is old.
    fn observe_for_check(&mut self, now_ns: u64) {
        let (Some(checking), Some(feeds)) = (&self.checking, &mut self.feeds) else {
            return;
        };
        if checking.wants_loads() && feeds.next_means_ns() <= now_ns {
            self.engine.link_loads(&mut self.loads_bps);
            feeds.observe_for_means(now_ns, &self.loads_bps);
        }
    }

    /// Judges the links in question, if that is due.
    pub fn check_links(&mut self, now_ns: u64) {
        self.observe_for_check(now_ns);
        let (Some(checking), Some(feeds)) = (&mut self.checking, &self.feeds) else {
            return;
        };
        let known = Known {
            topology: &self.topology,
            feeds,
        };
        let changed = checking.tick(now_ns, known);
        self.push_capacities(changed);
    }

    /// Returns the time of the next [`check_links`](Self::check_links).
    #[must_use]
    pub fn next_check_ns(&self) -> Option<u64> {
        self.checking.as_ref()?.next_due_ns()
    }

    /// Returns the links that the check named, in the order of time.
    #[must_use]
    pub fn findings(&self) -> &[LinkFinding] {
        self.checking.as_ref().map_or(&[], Checking::findings)
    }

    /// Starts a flow again whose demand a feed has changed.
    fn restart(&mut self, now_ns: u64, host: u32, flow: FlowId) {
        let Some(host_session) = self.sessions.get(host as usize) else {
            return;
        };
        let record = {
            let mut flows = host_session.session.flows();
            flows.find(|(record, _)| record.flow() == flow)
        };
        if let Some((record, _)) = record {
            self.counts.starts += 1;
            self.start(now_ns, host, &record);
        }
    }

    /// Returns what the last iteration handed out to flows of sessions on a link, in bit/s.
    #[must_use]
    pub fn handed_out_bps(&self, link: u32) -> f64 {
        let load_bps = self.loads_bps.get(link as usize).copied().unwrap_or(0.0);
        let feeds = self.feeds.as_ref();
        let traffic = feeds.and_then(|feeds| feeds.external().get(LinkId(link)));
        // A dummy flow stands for traffic of others.
        (load_bps - traffic.map_or(0.0, |traffic| traffic.granted_bps)).max(0.0)
    }

    /// Runs the timers of the session of `host`.
    pub fn on_timeout(&mut self, now_ns: u64, host: u32) {
        if let Some(host_session) = self.sessions.get_mut(host as usize) {
            host_session.session.on_timeout(now_ns);
            self.take_events(now_ns, host);
        }
    }

    /// Returns the time at which to call [`on_timeout`](Self::on_timeout) for `host` and poll
    /// again.
    #[must_use]
    pub fn next_timeout_ns(&self, host: u32) -> Option<u64> {
        self.sessions.get(host as usize)?.session.next_timeout()
    }

    fn take_events(&mut self, now_ns: u64, host: u32) {
        // Every datagram may have to be acknowledged, even one without events.
        self.mark_ready(host);
        while let Some(event) = self.sessions[host as usize].session.poll_event() {
            match event {
                ServerEvent::PeerLost(_) | ServerEvent::Refused(_) => {
                    self.counts.sessions_lost += 1;
                    self.settled = false;
                    self.end_flows(host);
                    if let Some(checking) = &mut self.checking {
                        checking.leave(now_ns, HostId(host), &self.topology);
                    }
                }
                ServerEvent::Telemetry(telemetry) => {
                    if let Some(access_use) = &telemetry.access_use {
                        self.take_access_use(now_ns, host, access_use);
                    }
                    if !telemetry.has_access_use_alone() {
                        self.take(now_ns, Reporter::Host(HostId(host)), telemetry);
                    }
                }
                ServerEvent::Hello(_) | ServerEvent::ReleaseAck { .. } => {}
            }
        }
        self.push_shared();
    }

    fn change_flow(&mut self, now_ns: u64, host: u32, change: FlowChange) {
        match change {
            FlowChange::Start(record) => {
                self.counts.starts += 1;
                self.start(now_ns, host, &record);
            }
            FlowChange::Update(record) => self.start(now_ns, host, &record),
            FlowChange::End(flow) => {
                self.counts.ends += 1;
                self.settled = false;
                // A flow that had no path is not in the engine.
                if let Some(number) = self.forget_flow(host, flow) {
                    let _ = self.engine.apply(EngineEvent::End(number));
                }
                if let Some(checking) = &mut self.checking {
                    checking.end(now_ns, HostId(host), flow.0);
                }
            }
        }
    }

    /// Forgets a flow. Returns its number if the engine has it.
    fn forget_flow(&mut self, host: u32, flow: FlowId) -> Option<FlowNumber> {
        let host_session = &mut self.sessions[host as usize];
        let number = host_session.number_of(flow)?;
        host_session.flows[flow.slot() as usize] = None;
        self.numbers.give_back(number);
        Some(number)
    }

    /// Ends all flows of a host in the engine.
    fn end_flows(&mut self, host: u32) {
        let flows = std::mem::take(&mut self.sessions[host as usize].flows);
        let numbers: Vec<FlowNumber> = flows.into_iter().flatten().map(|(_, of)| of).collect();
        for &number in &numbers {
            self.numbers.give_back(number);
        }
        let _ = self.engine.apply(EngineEvent::EndAll(numbers));
    }

    fn start(&mut self, now_ns: u64, host: u32, record: &StartRecord) {
        self.settled = false;
        let choice = match record.path() {
            FlowPath::Hash(hash) => PathChoice::Hash(hash),
            FlowPath::Explicit(route) => PathChoice::Explicit(route),
        };
        let (from, to) = (HostId(host), HostId(record.dst_host()));
        let Ok(path) = self.topology.path(from, to, choice) else {
            self.counts.refused += 1;
            return;
        };
        let bound = self.topology.max_flow_bps(from, to);
        let demand_bps = match record.demand() {
            // The wire has a code for "no demand"; the engine takes infinity.
            RateCode::NONE => f64::INFINITY,
            code => code.decode() as f64,
        };
        let by_feeds = self.feeds.as_ref();
        let by_feeds = by_feeds.map(|feeds| feeds.demand_bps(HostId(host), record.flow().0));
        let demand_bps = demand_bps.min(by_feeds.unwrap_or(f64::INFINITY));
        let flow = record.flow();
        let known = self.sessions[host as usize].number_of(flow);
        let number = known.unwrap_or_else(|| self.numbers.take((host, flow)));
        let spec = FlowSpec {
            number,
            links: path.iter().map(|link| link.0).collect(),
            class: record.class(),
            weight: record.weight().decode(),
            demand_bps: bound.map_or(demand_bps, |bps| demand_bps.min(bps as f64)),
        };
        if let Some(checking) = &mut self.checking {
            checking.start(now_ns, from, (record.flow().0, to), &spec.links);
        }
        if self.engine.apply(EngineEvent::Start(spec)).is_err() {
            self.counts.refused += 1;
            if known.is_none() {
                self.numbers.give_back(number);
            }
            return;
        }
        let flows = &mut self.sessions[host as usize].flows;
        let slot = flow.slot() as usize;
        if slot >= flows.len() {
            flows.resize(slot + 1, None);
        }
        flows[slot] = Some((flow, number));
    }

    /// Returns true if another iteration would change nothing.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// Runs one iteration over the flows that are known now. Its rates are kept for
    /// [`announce`](Self::announce).
    pub fn iterate(&mut self, now_ns: u64) -> IterationReport {
        self.last = self.engine.iterate();
        self.counts.iterations += 1;
        if let Some(feeds) = self.feeds.as_mut().filter(|_| self.hears_feeds) {
            self.engine.link_loads(&mut self.loads_bps);
            feeds.observe(now_ns, &mut self.loads_bps.clone());
        }
        self.observe_for_check(now_ns);
        self.settled = self.last.settled;
        self.last
    }

    /// Hands the rates that moved to the sessions.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the engine's rates are finite and not negative; rounding down never over-allocates"
    )]
    pub fn announce(&mut self, now_ns: u64) {
        let (sessions, ready, counts) = (&mut self.sessions, &mut self.ready, &mut self.counts);
        let numbers = &self.numbers;
        let mut feeds = self.feeds.as_mut();
        self.engine.drain_updates(&mut |update| {
            if let Some(feeds) = &mut feeds
                && feeds.external_mut().on_rate(&update)
            {
                return;
            }
            if let Some(&(host, flow)) = numbers.owner(update.number)
                && let host_session = &mut sessions[host as usize]
                && (host_session.session)
                    .set_rate(now_ns, flow, update.rate_bps as u64)
                    .is_ok()
            {
                counts.updates += 1;
                if !std::mem::replace(&mut host_session.ready, true) {
                    ready.push(host);
                }
            } else {
                counts.updates_stale += 1;
            }
        });
    }

    fn mark_ready(&mut self, host: u32) {
        if !std::mem::replace(&mut self.sessions[host as usize].ready, true) {
            self.ready.push(host);
        }
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
        for host in self.ready.drain(..) {
            let host_session = &mut self.sessions[host as usize];
            host_session.ready = false;
            while host_session
                .session
                .poll_datagram(now_ns, MAX_DATAGRAM_BYTES, scratch)
            {
                self.sent.count_datagram(scratch);
                send(host, scratch);
            }
            rearm(host, host_session.session.next_timeout());
        }
    }

    /// Returns the engine.
    #[must_use]
    pub fn engine(&self) -> &dyn RateEngine {
        &*self.engine
    }

    /// Returns the report of the last iteration.
    #[must_use]
    pub fn last_iteration(&self) -> &IterationReport {
        &self.last
    }

    /// Returns the datagrams sent towards the hosts so far.
    #[must_use]
    pub fn sent(&self) -> &ControlTraffic {
        &self.sent
    }

    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> &AllocatorCounts {
        &self.counts
    }

    /// Returns the counters of the session of `host`.
    #[must_use]
    pub fn counters(&self, host: u32) -> &Counters {
        self.sessions[host as usize].session.counters()
    }

    /// Returns the flows of `host` and the rates notified to it, by flow id.
    #[must_use]
    pub fn view(&self, host: u32) -> Vec<(FlowId, u64)> {
        let mut view: Vec<_> = self.sessions[host as usize]
            .session
            .flows()
            .map(|(record, rate_bps)| (record.flow(), rate_bps))
            .collect();
        view.sort_unstable_by_key(|&(id, _)| id);
        view
    }
}
