//! The hub against real client state machines and a real engine, in memory: no sockets, no clock.

mod checking;
mod demands;
mod external;
mod feeds;
mod flow_caps;
mod flows;
mod members;
mod network;
mod orders;
mod release;
mod sessions;
mod shared;
mod sweep;
mod trust;

use std::collections::BTreeMap;

use ratewright_proto::client::{ClientConfig, ClientEvent, ClientSession};
use ratewright_proto::control::{AccessCapacity, ClassInfo, FrameDecoder, Refusal, SealedUdp};
use ratewright_proto::{FlowId, FlowPath, StartRecord};
use ratewright_topology::{Topology, TwoTierClos};

use super::{Hub, HubSettings, SessionTimers};
use crate::engine::parallel::{ParallelEngine, ParallelOptions};
use crate::engine::{EngineConfig, EngineEvent, RateEngine};
use crate::feeds::FeedsConfig;
use crate::service::admin_request::{TopologyChange, TopologyChangeError, TopologyReport};
use crate::service::config::{ClassConfig, Fingerprint, Limits, MembershipConfig, Trust};
use crate::service::tls::PeerCertificate;

const LEASE_NS: u64 = 300_000_000;
const DATAGRAM_BYTES: usize = 1_200;

/// 4 racks of 4 hosts (h1 to h16), 2 spines, 10 Gbit/s at the hosts, 40 above.
fn clos() -> Topology {
    TwoTierClos::default()
        .build()
        .expect("the default topology is good")
}

fn settings() -> HubSettings {
    HubSettings {
        epoch: 7,
        lease_ns: LEASE_NS,
        update_interval_ns: 0,
        ack_delay_ns: 20_000_000,
        liveness_ns: 1_000_000_000,
        threshold: 0.01,
        external_share: 0.9,
        feeds: FeedsConfig::default(),
        limits: Limits::default(),
        rollout: crate::service::config::Rollout::default(),
        trust: Trust::default(),
        membership: MembershipConfig::default(),
        classes: vec![ClassConfig::default()],
        timers: SessionTimers::default(),
    }
}

/// Makes a certificate of these names, with a fingerprint that differs from those of other names.
fn certificate_of(names: &[&str]) -> PeerCertificate {
    let mut fingerprint = Fingerprint([0; 32]);
    for (at, byte) in names.join(",").bytes().enumerate() {
        fingerprint.0[at % 32] ^= byte;
    }
    PeerCertificate {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        addresses: Vec::new(),
        pod_prefixes: Vec::new(),
        fingerprint,
    }
}

/// A host's daemon, as far as the protocol goes.
struct WorldHost {
    session: ClientSession,
    /// Its session at the hub, while its transport is up.
    id: Option<u32>,
    decoder: FrameDecoder,
    rates: BTreeMap<FlowId, u64>,
    refused: Option<Refusal>,
    established: bool,
    released: bool,
    topology_version: u32,
    /// Capacities of its own links.
    access: AccessCapacity,
    /// Classes and offer of its Welcome.
    classes: Vec<ClassInfo>,
    sealed_udp: Option<SealedUdp>,
    /// Hosts that it was told have joined.
    members: BTreeMap<u32, String>,
    /// Acknowledges the kill switch.
    answers_release: bool,
    /// Its datagrams and frames reach the hub, and the hub's reach it.
    connected: bool,
}

/// The hub, its engine, and hosts by name.
struct HubWorld {
    hub: Hub,
    engine: ParallelEngine,
    hosts: BTreeMap<String, WorldHost>,
    now_ns: u64,
}

/// The engine that the service runs by default.
fn engine(config: EngineConfig, hub: &Hub) -> ParallelEngine {
    let options = ParallelOptions::default();
    ParallelEngine::for_topology(
        config,
        options,
        hub.topology(),
        &hub.network().capacities_bps(),
    )
    .expect("the settings are good")
}

impl HubWorld {
    fn new(settings: HubSettings) -> Self {
        Self::of(settings, clos())
    }

    /// A world of another topology.
    fn of(settings: HubSettings, topology: Topology) -> Self {
        let hub = Hub::new(settings, topology, false);
        let engine = engine(EngineConfig::default(), &hub);
        Self {
            hub,
            engine,
            hosts: BTreeMap::new(),
            now_ns: 1_000_000_000_000,
        }
    }

    /// A world in which these hosts have sessions.
    fn with_hosts(settings: HubSettings, names: &[&str]) -> Self {
        let mut world = Self::new(settings);
        world.connect_all(names);
        world
    }

    /// Gives these hosts sessions.
    fn connect_all(&mut self, names: &[&str]) {
        for name in names {
            self.connect(name, name, 1, &[name]);
        }
        self.settle();
        for name in names {
            assert!(self.hosts[*name].established, "{name} has a session");
        }
    }

    /// Connects `host` under a `key` of the test's, with certificate names of the test's choice.
    fn connect(&mut self, key: &str, host: &str, incarnation: u64, certificate: &[&str]) {
        self.connect_as(key, host, incarnation, certificate_of(certificate));
    }

    /// Connects `host` under a `key` of the test's with a certificate.
    fn connect_as(
        &mut self,
        key: &str,
        host: &str,
        incarnation: u64,
        certificate: PeerCertificate,
    ) {
        let mut session = ClientSession::new(ClientConfig {
            host_name: host.to_owned(),
            incarnation,
            sealed_udp: true,
            ..ClientConfig::default()
        });
        session.connected(self.now_ns);
        let id = self
            .hub
            .open(self.now_ns, certificate)
            .expect("there is room");
        let host = WorldHost {
            session,
            id: Some(id),
            decoder: FrameDecoder::new(),
            rates: BTreeMap::new(),
            refused: None,
            established: false,
            released: false,
            topology_version: 0,
            access: AccessCapacity::default(),
            classes: Vec::new(),
            sealed_udp: None,
            members: BTreeMap::new(),
            answers_release: true,
            connected: true,
        };
        self.hosts.insert(key.to_owned(), host);
    }

    fn host(&mut self, name: &str) -> &mut WorldHost {
        self.hosts.get_mut(name).expect("the test connected it")
    }

    /// Starts a flow of `host` to `destination` on a slot; its hash is the slot.
    fn start(&mut self, host: &str, slot: u32, destination: &str) -> FlowId {
        let to = self
            .hub
            .topology()
            .host_by_name(destination)
            .expect("it is in the topology")
            .0;
        let flow = FlowId::new(slot, 1);
        self.start_record(host, StartRecord::new(flow, to, FlowPath::Hash(slot)));
        flow
    }

    fn start_record(&mut self, host: &str, record: StartRecord) {
        let now_ns = self.now_ns;
        self.host(host)
            .session
            .start(now_ns, record)
            .expect("the slot is in the table");
    }

    fn end(&mut self, host: &str, flow: FlowId) {
        let now_ns = self.now_ns;
        self.host(host)
            .session
            .end(now_ns, flow)
            .expect("the flow is active");
    }

    fn rate(&self, host: &str, flow: FlowId) -> Option<u64> {
        self.hosts[host]
            .rates
            .get(&flow)
            .copied()
            .filter(|&rate| rate > 0)
    }

    /// Carries everything that waits to the other side, and sweeps, once.
    fn exchange(&mut self) {
        self.carry_datagrams();
        self.sweep();
        self.drive_engine();
        self.carry_answers();
    }

    /// Carries everything that waits to the other side, once, without a sweep.
    fn exchange_without_sweep(&mut self) {
        self.carry_datagrams();
        self.drive_engine();
        self.carry_answers();
    }

    /// Carries everything that waits at the hosts to the hub.
    fn carry_datagrams(&mut self) {
        let mut datagram = Vec::new();
        let now_ns = self.now_ns;
        for host in self.hosts.values_mut().filter(|host| host.connected) {
            let Some(id) = host.id else {
                continue;
            };
            let mut decoder = FrameDecoder::new();
            while let Some(frame) = host.session.poll_control() {
                decoder.push(&frame);
            }
            while let Some(body) = decoder.next_frame().expect("our own frames are good") {
                self.hub.on_control(now_ns, id, body);
            }
            while host
                .session
                .poll_datagram(now_ns, DATAGRAM_BYTES, &mut datagram)
            {
                self.hub.on_datagram(now_ns, id, &datagram);
            }
        }
    }

    /// Carries everything that waits at the hub to the hosts.
    fn carry_answers(&mut self) {
        let mut datagram = Vec::new();
        let now_ns = self.now_ns;
        for host in self.hosts.values_mut().filter(|host| host.connected) {
            let Some(id) = host.id else {
                continue;
            };
            while let Some(frame) = self.hub.poll_control(id) {
                host.decoder.push(&frame);
            }
            while let Some(body) = host
                .decoder
                .next_frame()
                .expect("the hub's frames are good")
            {
                host.session
                    .on_control(now_ns, body)
                    .expect("the hub keeps to the protocol");
            }
            while self
                .hub
                .poll_datagram(now_ns, id, DATAGRAM_BYTES, &mut datagram)
            {
                let _ = host.session.on_datagram(now_ns, &datagram);
            }
            host.take_events();
            if self.hub.closing(id).is_some() {
                self.hub.remove_session(now_ns, id, "test");
                host.session.disconnected(now_ns);
                host.id = None;
            }
        }
    }

    /// Applies a notification and sweeps to the end.
    fn change_topology(
        &mut self,
        change: &TopologyChange,
    ) -> Result<TopologyReport, TopologyChangeError> {
        let reroutes = self.hub.counts().reroutes;
        let changed = self.hub.change_topology(self.now_ns, change)?;
        self.sweep();
        Ok(self.hub.topology_report(changed, reroutes))
    }

    /// Replaces the topology and the engine, as a reload does.
    fn replace_topology(&mut self, topology: Topology) {
        let known_bps = super::capacities_bps(&topology);
        self.hub.replace_topology(self.now_ns, topology);
        self.engine = ParallelEngine::for_topology(
            EngineConfig::default(),
            ParallelOptions::default(),
            self.hub.topology(),
            &known_bps,
        )
        .expect("the settings are good");
        self.hub.restart_flows(self.now_ns, &known_bps);
    }

    /// Sweeps to the end.
    fn sweep(&mut self) {
        while self.hub.sweep(self.now_ns, 100) {
            if !self.hub.can_sweep() {
                self.drive_engine();
            }
        }
    }

    fn drive_engine(&mut self) {
        for event in std::mem::take(self.hub.engine_events()) {
            let ends = matches!(event, EngineEvent::End(_));
            let result = self.engine.apply(event);
            assert!(
                result.is_ok() || ends,
                "the hub sends what the engine takes: {result:?}"
            );
        }
        for _ in 0..300 {
            let settled = self.engine.iterate().settled;
            let (hub, now_ns) = (&mut self.hub, self.now_ns);
            self.engine
                .drain_updates(&mut |update| hub.on_rate(now_ns, update));
            if settled {
                break;
            }
        }
    }

    /// Lets `duration_ns` pass in steps of a millisecond.
    fn pass(&mut self, duration_ns: u64) {
        let end_ns = self.now_ns + duration_ns;
        while self.now_ns < end_ns {
            self.now_ns += 1_000_000;
            let now_ns = self.now_ns;
            if (self.hub.next_own_timeout_ns()).is_some_and(|at_ns| at_ns <= now_ns) {
                self.hub.on_own_timeout(now_ns);
            }
            for host in self.hosts.values_mut() {
                if host
                    .session
                    .next_timeout()
                    .is_some_and(|at_ns| at_ns <= now_ns)
                {
                    host.session.on_timeout(now_ns);
                }
                if let Some(id) = host.id
                    && self
                        .hub
                        .next_timeout(id)
                        .is_some_and(|at_ns| at_ns <= now_ns)
                {
                    self.hub.on_timeout(now_ns, id);
                }
            }
            self.exchange();
        }
    }

    /// Lets time pass until all messages have arrived.
    fn settle(&mut self) {
        self.pass(20_000_000);
    }

    /// Asserts that no link carries more than it can, by the rates that the hosts have.
    fn assert_no_link_overfull(&self) {
        let topology = self.hub.topology();
        let mut loads = vec![0; topology.links().len()];
        for (name, host) in &self.hosts {
            let source = topology
                .host_by_name(name)
                .expect("keys are host names here");
            for state in host.session.flows() {
                if let Ok(links) = super::flows::links(topology, source, &state.record) {
                    let rate = state.rate_bps.unwrap_or(0);
                    links.iter().for_each(|&link| loads[link as usize] += rate);
                }
            }
        }
        for (link, load) in topology.links().iter().zip(loads) {
            assert!(
                load <= topology.effective_capacity_bps(link.id),
                "{link:?} carries {load}"
            );
        }
    }
}

impl WorldHost {
    fn take_events(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                ClientEvent::Established(welcome) => {
                    self.established = true;
                    self.released = welcome.released;
                    self.topology_version = welcome.topology.version;
                    self.access = welcome.access;
                    self.classes = welcome.classes;
                    self.sealed_udp = welcome.sealed_udp;
                }
                ClientEvent::Topology(topology) => {
                    self.topology_version = topology.version;
                    self.access = topology.access.unwrap_or(self.access);
                }
                ClientEvent::Members(change) => {
                    if change.replaces {
                        self.members.clear();
                    }
                    self.members.retain(|id, _| !change.left.contains(id));
                    let joined = change.joined.into_iter();
                    self.members.extend(joined.map(|host| (host.id, host.name)));
                }
                ClientEvent::Rate { flow, rate_bps, .. } => drop(self.rates.insert(flow, rate_bps)),
                ClientEvent::Released(released) => {
                    self.released = released;
                    if released {
                        self.rates.clear();
                    }
                    if self.answers_release {
                        self.session.confirm_release(0).expect("it has a session");
                    }
                }
                ClientEvent::Refused(refusal) => {
                    self.established = false;
                    self.refused = Some(refusal);
                }
                ClientEvent::SessionLost(_) => self.established = false,
                ClientEvent::LeaseRenewed { .. } => {}
            }
        }
    }
}
