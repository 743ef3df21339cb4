//! The way of a flowlet's start through the allocator, to the datagram with its first rate:
//! session, hub, engine and session again, on one thread, without sockets and ciphers.
//!
//! The steps are those of the allocator's core. Every host has a session and flows;
//! the datagrams with further starts are made in advance, one by each host.

use std::collections::VecDeque;
use std::sync::Arc;

use rand::RngExt as _;
use ratewright_allocator::engine::driver::EngineDriver;
use ratewright_allocator::engine::parallel::{ParallelEngine, ParallelOptions, Simd};
use ratewright_allocator::engine::{EngineConfig, RateEngine};
use ratewright_allocator::feeds::FeedsConfig;
use ratewright_allocator::service::clock;
use ratewright_allocator::service::config::{
    ClassConfig, Fingerprint, Limits, MembershipConfig, Rollout, Trust,
};
use ratewright_allocator::service::hub::{Hub, HubSettings, ReadySession, SessionTimers};
use ratewright_allocator::service::tls::PeerCertificate;
use ratewright_proto::client::{ClientConfig, ClientEvent, ClientSession};
use ratewright_proto::control::FrameDecoder;
use ratewright_proto::{FlowId, FlowPath, StartRecord};
use ratewright_topology::Topology;

use crate::rng;

const MS: u64 = 1_000_000;
/// Time at which hosts connect.
const BEGIN_NS: u64 = 1_000_000 * MS;
/// Rounds of a millisecond in which sessions open, first rates arrive and are acknowledged.
const QUIET_ROUNDS: u32 = 60;
/// Iterations before the starts that count.
const WARM_UP: u32 = 300;
const DATAGRAM_BYTES: usize = 1_200;

/// A host's daemon, as far as the protocol goes.
struct Daemon {
    session: ClientSession,
    /// Number of its session at the hub.
    id: u32,
    frames: FrameDecoder,
}

/// The allocator and its hosts' daemons, with a datagram of a start under way from each.
pub struct StartPath {
    hub: Hub,
    driver: EngineDriver,
    daemons: Vec<Daemon>,
    /// Index of each daemon whose start is under way, the start and its datagram.
    under_way: VecDeque<(usize, FlowId, Vec<u8>)>,
    now_ns: u64,
    ready: Vec<ReadySession>,
    /// The datagram of the last start's first rate.
    reply: Vec<u8>,
}

impl StartPath {
    /// Makes an allocator at rest in which every host has a session and `flows_per_host` flows.
    #[must_use]
    pub fn new(topology: &Topology, flows_per_host: u32, simd: Simd) -> Self {
        let hub = Hub::new(settings(), topology.clone(), false);
        let engine = ParallelEngine::for_topology(
            EngineConfig::default(),
            ParallelOptions {
                simd,
                ..ParallelOptions::default()
            },
            topology,
            &hub.network().capacities_bps(),
        );
        let engine: Box<dyn RateEngine> = Box::new(engine.expect("valid settings"));
        let mut path = Self {
            hub,
            driver: EngineDriver::new(engine, Arc::default()),
            daemons: Vec::new(),
            under_way: VecDeque::new(),
            now_ns: BEGIN_NS,
            ready: Vec::new(),
            reply: Vec::new(),
        };
        for (number, host) in (0u32..).zip(topology.hosts()) {
            path.connect(number, &host.name);
        }
        path.exchange();
        let hosts = path.daemons.len();
        let mut random = rng();
        // The last start of each host is the one that counts: its datagram is not sent yet.
        for slot in 0..=flows_per_host {
            if slot == flows_per_host {
                path.exchange();
            }
            for index in 0..hosts {
                let destination = (index + random.random_range(1..hosts)) % hosts;
                let flow = FlowId::new(slot, 1);
                let hash = FlowPath::Hash(random.random());
                let record = StartRecord::new(flow, destination as u32, hash);
                let daemon = &mut path.daemons[index];
                daemon
                    .session
                    .start(path.now_ns, record)
                    .expect("a free slot");
                if slot == flows_per_host {
                    let mut datagram = Vec::new();
                    let made =
                        daemon
                            .session
                            .poll_datagram(path.now_ns, DATAGRAM_BYTES, &mut datagram);
                    assert!(made, "a start is sent at once");
                    path.under_way.push_back((index, flow, datagram));
                }
            }
        }
        path
    }

    fn connect(&mut self, number: u32, name: &str) {
        let mut session = ClientSession::new(ClientConfig {
            host_name: name.to_owned(),
            incarnation: 1,
            sealed_udp: true,
            ..ClientConfig::default()
        });
        session.connected(self.now_ns);
        let mut fingerprint = Fingerprint([0; 32]);
        fingerprint.0[..4].copy_from_slice(&number.to_be_bytes());
        let certificate = PeerCertificate {
            names: vec![name.to_owned()],
            addresses: Vec::new(),
            pod_prefixes: Vec::new(),
            fingerprint,
        };
        let id = self.hub.open(self.now_ns, certificate);
        self.daemons.push(Daemon {
            session,
            id: id.expect("room for every host"),
            frames: FrameDecoder::new(),
        });
    }

    /// Lets time pass until nothing is under way and the engine has iterated for long.
    fn exchange(&mut self) {
        for _ in 0..QUIET_ROUNDS {
            self.now_ns += MS;
            self.carry_to_hub();
            self.iterate(WARM_UP / QUIET_ROUNDS);
            self.carry_to_daemons();
        }
    }

    fn carry_to_hub(&mut self) {
        let now_ns = self.now_ns;
        let mut datagram = Vec::new();
        for daemon in &mut self.daemons {
            if (daemon.session.next_timeout()).is_some_and(|at_ns| at_ns <= now_ns) {
                daemon.session.on_timeout(now_ns);
            }
            let mut frames = FrameDecoder::new();
            while let Some(frame) = daemon.session.poll_control() {
                frames.push(&frame);
            }
            while let Some(body) = frames.next_frame().expect("a daemon's frames are good") {
                self.hub.on_control(now_ns, daemon.id, body);
            }
            while daemon
                .session
                .poll_datagram(now_ns, DATAGRAM_BYTES, &mut datagram)
            {
                self.hub.on_datagram(now_ns, daemon.id, &datagram);
            }
        }
    }

    fn carry_to_daemons(&mut self) {
        let now_ns = self.now_ns;
        self.ready.clear();
        self.hub.drain_ready(now_ns, &mut self.ready);
        let mut datagram = Vec::new();
        for daemon in &mut self.daemons {
            if (self.hub.next_timeout(daemon.id)).is_some_and(|at_ns| at_ns <= now_ns) {
                self.hub.on_timeout(now_ns, daemon.id);
            }
            while let Some(frame) = self.hub.poll_control(daemon.id) {
                daemon.frames.push(&frame);
            }
            while let Some(body) = daemon.frames.next_frame().expect("good frames") {
                let taken = daemon.session.on_control(now_ns, body);
                taken.expect("the hub keeps to the protocol");
            }
            while self
                .hub
                .poll_datagram(now_ns, daemon.id, DATAGRAM_BYTES, &mut datagram)
            {
                let taken = daemon.session.on_datagram(now_ns, &datagram);
                taken.expect("the hub keeps to the protocol");
            }
            while daemon.session.poll_event().is_some() {}
        }
    }

    fn iterate(&mut self, iterations: u32) {
        for event in self.hub.engine_events().drain(..) {
            self.driver.apply(event);
        }
        for _ in 0..iterations {
            self.driver.iterate(clock::instant_at(0));
            let (hub, now_ns) = (&mut self.hub, self.now_ns);
            self.driver.drain_into(|update| {
                hub.on_rate(now_ns, update);
                true
            });
        }
    }

    /// Takes the next start that is under way, and builds the datagram with its first rate.
    ///
    /// # Panics
    /// No start is under way any more, or none or several datagrams were built.
    pub fn start(&mut self) -> (usize, FlowId) {
        let next = self.under_way.pop_front();
        let (daemon, flow, datagram) = next.expect("a start for each host");
        let (hub, driver, now_ns) = (&mut self.hub, &mut self.driver, self.now_ns);
        hub.on_datagram(now_ns, self.daemons[daemon].id, &datagram);
        for event in hub.engine_events().drain(..) {
            driver.apply(event);
        }
        driver.first_rates(|update| hub.on_rate(now_ns, update));
        hub.drain_ready(now_ns, &mut self.ready);
        let mut built = 0;
        for ReadySession { id, .. } in self.ready.drain(..) {
            built += u32::from(hub.poll_datagram(now_ns, id, DATAGRAM_BYTES, &mut self.reply));
        }
        assert_eq!(built, 1, "a start makes one datagram");
        (daemon, flow)
    }

    /// Hands a host the last datagram. Returns the rates in it, in bit/s.
    ///
    /// # Panics
    /// The datagram is not for this host.
    pub fn rates_bps(&mut self, daemon: usize) -> Vec<(FlowId, u64)> {
        let session = &mut self.daemons[daemon].session;
        let taken = session.on_datagram(self.now_ns, &self.reply);
        taken.expect("the hub keeps to the protocol");
        std::iter::from_fn(|| session.poll_event())
            .filter_map(|event| match event {
                ClientEvent::Rate { flow, rate_bps, .. } => Some((flow, rate_bps)),
                _ => None,
            })
            .collect()
    }
}

fn settings() -> HubSettings {
    HubSettings {
        epoch: 1,
        lease_ns: 300 * MS,
        update_interval_ns: 0,
        ack_delay_ns: 20 * MS,
        liveness_ns: 1_000 * MS,
        threshold: 0.01,
        external_share: 0.9,
        feeds: FeedsConfig::default(),
        limits: Limits::default(),
        trust: Trust::default(),
        membership: MembershipConfig::default(),
        rollout: Rollout::default(),
        classes: vec![ClassConfig::default()],
        timers: SessionTimers::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::two_tiers;

    /// Each start's datagram carries its rate and no other, and the rate fits the host's link.
    #[test]
    fn a_start_is_replied_to_with_its_rate() {
        let topology = two_tiers(96);
        let mut path = StartPath::new(&topology, 8, Simd::best());
        for _ in 0..40 {
            let (daemon, flow) = path.start();
            let rates = path.rates_bps(daemon);
            let [(rated, rate_bps)] = rates[..] else {
                panic!("one rate: {rates:?}");
            };
            let uplink = topology.host_uplink(topology.hosts()[daemon].id);
            assert_eq!(rated, flow);
            assert!((1..=topology.effective_capacity_bps(uplink)).contains(&rate_bps));
        }
    }
}
