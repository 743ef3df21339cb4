//! The loop of the core, against the client's state machines, over a wire in memory.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::Path;

use allocation_counter::measure;
use ratewright_io::udp::{BatchSent, Ends, SendBatch};
use ratewright_proto::client::{ClientConfig, ClientEvent, ClientSession};
use ratewright_proto::control::FrameDecoder;
use ratewright_proto::datagram::SessionRole;
use ratewright_proto::sealed::{OVERHEAD_BYTES, SealedConfig, SealedSession, Secret};
use ratewright_proto::{DatagramError, FlowId, FlowPath, StartRecord};
use ratewright_topology::TwoTierClos;

use super::super::core_handle::CoreHandle;
use super::super::engine_host::{EngineHost, configured_engine};
use super::super::sealed_port::SessionNotice;
use super::super::service_core::{NextFrame, PortQueue, Route};
use super::super::{UdpPorts, hub_settings, start_on};
use super::*;
use crate::service::config::tests::GOOD;
use crate::service::config::{Config, Fingerprint};
use crate::service::hub::Hub;
use crate::service::status::Reasons;
use crate::service::tls::PeerCertificate;

const HOSTS: usize = 16;

/// Datagrams in memory; buffers are used again.
#[derive(Default)]
struct Wire {
    up: Vec<Vec<u8>>,
    arrived: usize,
    down: Vec<Vec<u8>>,
    sent: usize,
    /// It takes nothing more.
    full: bool,
}

fn next<'a>(buffers: &'a mut Vec<Vec<u8>>, used: &mut usize) -> &'a mut Vec<u8> {
    if buffers.len() == *used {
        buffers.push(Vec::with_capacity(MAX_DATAGRAM_BYTES + OVERHEAD_BYTES));
    }
    *used += 1;
    &mut buffers[*used - 1]
}

impl PacketPort for Wire {
    fn receive(&mut self) -> io::Result<usize> {
        Ok(std::mem::take(&mut self.arrived))
    }

    fn datagram(&mut self, index: usize) -> (&mut [u8], Option<Ends>) {
        let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        (&mut self.up[index], Some(from.into()))
    }

    fn send(&mut self, batch: &mut SendBatch) -> io::Result<BatchSent> {
        let mut sent = BatchSent::default();
        if !self.full {
            batch.drain(|bytes, _| {
                let buffer = next(&mut self.down, &mut self.sent);
                buffer.clear();
                buffer.extend_from_slice(bytes);
                sent.count(bytes.len());
            });
        }
        Ok(sent)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

struct SealedHost {
    session: ClientSession,
    sealed: SealedSession,
    id: u32,
    rates: u64,
}

/// The hub and the engine of a small fabric, with these further settings of the transport.
fn hub_and_engine(transport: &str) -> (Config, Hub, EngineHost) {
    let text = format!("{GOOD}[transport]\nhot = \"udp\"\n{transport}");
    let config = Config::from_toml_str(&text, "a.toml", Path::new("/")).expect("good");
    let topology = TwoTierClos::default().build().expect("good");
    let hub = Hub::new(hub_settings(&config, 1), topology, false);
    let capacities = hub.network().capacities_bps();
    let engine = EngineHost::start(configured_engine(), &config, hub.topology(), &capacities);
    (config, hub, engine.expect("the engine starts"))
}

struct CoreWorld {
    core_loop: CoreLoop<Wire>,
    hosts: Vec<SealedHost>,
    plain: Vec<u8>,
    /// Datagrams in either direction, and allocations of the core: while receiving, and per
    /// scope.
    datagrams: u64,
    allocated: [u64; 4],
}

impl CoreWorld {
    /// All hosts of a small fabric have a session and have been heard by sealed datagrams.
    fn new() -> Self {
        let (_, hub, engine) = hub_and_engine("");
        let port = SealedPort::new(Wire::default(), PortState::Open, SealedConfig::default());
        let queues = vec![PortQueue::new(PortState::Open, None)];
        let core = ServiceCore::new(hub, engine, queues, 0);
        let waker = Arc::new(ThreadWaker::new().expect("an event descriptor"));
        let (_, work) = CoreHandle::new(Arc::clone(&waker));
        let core_loop = CoreLoop::new(core, port, work, waker, IdlePolicy::Spin);
        let mut world = Self {
            core_loop,
            hosts: Vec::new(),
            plain: Vec::with_capacity(MAX_DATAGRAM_BYTES),
            datagrams: 0,
            allocated: [0; 4],
        };
        for number in 1..=HOSTS {
            let host = world.connect(&format!("h{number}"));
            world.hosts.push(host);
        }
        // The first starts show the core where the hosts are.
        for slot in 0..4 {
            world.start_all(slot, 1);
        }
        world
    }

    fn connect(&mut self, name: &str) -> SealedHost {
        let mut session = ClientSession::new(ClientConfig {
            host_name: name.to_owned(),
            ..ClientConfig::default()
        });
        let certificate = PeerCertificate {
            addresses: Vec::new(),
            pod_prefixes: Vec::new(),
            names: vec![name.to_owned()],
            fingerprint: Fingerprint([0; 32]),
        };
        // The control stream is the test's to carry: such a host has no connection of its own.
        let route = Route::Relay {
            relay: 0,
            channel: 0,
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
        };
        let now_ns = clock::now_ns();
        session.connected(now_ns);
        let core = &mut self.core_loop.core;
        let (id, _) = core
            .open_through(now_ns, route, certificate, None)
            .expect("there is room");
        let (mut up, mut down) = (FrameDecoder::new(), FrameDecoder::new());
        while let Some(frame) = session.poll_control() {
            up.push(&frame);
        }
        while let Some(body) = up.next_frame().expect("our own frames are good") {
            core.hub.on_control(now_ns, id, body);
            core.flush(now_ns);
        }
        while let NextFrame::Frame(frame) = core.next_frame(id) {
            down.push(&frame);
        }
        while let Some(body) = down.next_frame().expect("good frames") {
            session.on_control(now_ns, body).expect("a Welcome");
        }
        let secret = || Secret::new([id as u8; Secret::BYTES]);
        self.core_loop.port.heed(SessionNotice::Add {
            id,
            secret: secret(),
            address: Ipv4Addr::LOCALHOST.into(),
        });
        let (config, secret) = (SealedConfig::default(), &secret());
        SealedHost {
            session,
            sealed: SealedSession::new(config, SessionRole::Client, id, secret),
            id,
            rates: 0,
        }
    }

    /// Every host starts a flow to its neighbour on a slot.
    fn start_all(&mut self, slot: u32, generation: u32) {
        for at in 0..HOSTS {
            let flow = FlowId::new(slot, generation);
            let to = ((at + 1) % HOSTS) as u32;
            let record = StartRecord::new(flow, to, FlowPath::Hash(slot));
            let session = &mut self.hosts[at].session;
            session.start(clock::now_ns(), record).expect("a free slot");
        }
    }

    /// Carries the hosts' datagrams to the core and gives it a turn.
    fn turn(&mut self) {
        let now_ns = clock::now_ns();
        for host in &mut self.hosts {
            let wire = &mut self.core_loop.port.port;
            if wire.arrived < BATCH
                && host
                    .session
                    .poll_datagram(now_ns, MAX_DATAGRAM_BYTES, &mut self.plain)
            {
                let buffer = next(&mut wire.up, &mut wire.arrived);
                host.sealed.seal(&self.plain, buffer).expect("small");
            }
            if host.session.next_timeout().is_some_and(|at| at <= now_ns) {
                host.session.on_timeout(now_ns);
            }
        }
        let (core_loop, datagrams) = (&mut self.core_loop, &mut self.datagrams);
        let receive = || *datagrams += core_loop.port.receive().expect("a wire") as u64;
        self.allocated[0] += measure(receive).count_total;
        core_loop.read_ns = clock::now_ns();
        // As the thread does it, and between the engine's pieces, which are its own affair.
        self.allocated[1] += measure(|| core_loop.take_in()).count_total;
        core_loop.apply_events();
        self.allocated[2] += measure(|| core_loop.send(clock::now_ns(), 0)).count_total;
        let background = || core_loop.serve_background(clock::now_ns());
        self.allocated[3] += measure(background).count_total;
        let now_ns = clock::now_ns();
        core_loop.engine.iterate_if_due(&core_loop.core, now_ns);
    }

    /// Carries the core's datagrams to the hosts. Returns the number of rates in them.
    fn take(&mut self) -> u64 {
        let wire = &mut self.core_loop.port.port;
        let now_ns = clock::now_ns();
        let mut rates = 0;
        for bytes in &mut wire.down[..std::mem::take(&mut wire.sent)] {
            self.datagrams += 1;
            let id = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            let host = self.hosts.iter_mut().find(|host| host.id == id);
            let host = host.expect("a host's session");
            let text = host.sealed.open(bytes).expect("sealed by the shard");
            match host.session.on_datagram(now_ns, text) {
                // A host without a core for a lease's time comes too late for the rates; they are
                // sent again.
                Ok(()) | Err(DatagramError::Expired) => {}
                Err(error) => panic!("{error}"),
            }
            while let Some(event) = host.session.poll_event() {
                if matches!(event, ClientEvent::Rate { .. }) {
                    host.rates += 1;
                    rates += 1;
                }
            }
        }
        rates
    }

    /// Lets both sides speak until nothing has been said for a while.
    fn settle(&mut self) {
        let mut quiet = 0;
        while quiet < 2_000 {
            let before = self.datagrams;
            self.turn();
            self.take();
            quiet = if self.datagrams == before {
                quiet + 1
            } else {
                0
            };
        }
    }

    fn iterations(&self) -> u64 {
        self.core_loop.core.engine.histogram().count()
    }
}

#[test]
fn nothing_is_allocated_for_a_datagram() {
    let mut world = CoreWorld::new();
    // Everything finds its size.
    for generation in 2..60 {
        world.settle();
        world.start_all(generation % 4, generation);
    }
    (world.datagrams, world.allocated) = (0, [0; 4]);
    for generation in 60..120 {
        world.settle();
        world.start_all(generation % 4, generation);
    }
    assert!(world.datagrams > 2_000, "{} datagrams", world.datagrams);
    let [received, taken, answered, told] = world.allocated;
    assert_eq!((received, taken), (0, 0), "what comes costs none");
    // Nor does what goes, but the timers' wheels have slots for nine seconds, each of which grows
    // when it is first used.
    assert!(
        answered + told <= world.datagrams / 5,
        "{:?} allocations for {} datagrams",
        world.allocated,
        world.datagrams
    );
}

#[test]
fn a_port_that_takes_nothing_holds_up_no_engine_and_gets_the_newest_rates_only() {
    let mut world = CoreWorld::new();
    world.settle();
    world.core_loop.port.port.full = true;
    let before = world.iterations();
    // Every start changes the rates of the flows that share its links, again and again.
    for generation in 2..12 {
        for slot in 0..4 {
            world.start_all(slot, generation);
        }
        for _ in 0..50 {
            world.turn();
        }
    }
    let iterations = world.iterations() - before;
    assert!(iterations >= 10, "{iterations} while the port was full");
    assert_eq!(world.take(), 0, "nothing got through");
    world.core_loop.port.port.full = false;
    for host in &mut world.hosts {
        host.rates = 0;
    }
    world.settle();
    for host in &world.hosts {
        // Those of before are gone: at most a batch of them was built when the port filled.
        assert_eq!(host.session.flows().count(), 4);
        for flow in host.session.flows() {
            assert!(flow.rate_bps.is_some_and(|rate| rate > 0), "{flow:?}");
        }
    }
    let told: u64 = world.hosts.iter().map(|host| host.rates).sum();
    assert!(told <= 4 * 64 + BATCH as u64, "{told} rates for 64 flows");
}

/// A port that breaks.
struct Broken {
    panics: bool,
    wire: Wire,
}

impl PacketPort for Broken {
    fn receive(&mut self) -> io::Result<usize> {
        assert!(!self.panics, "the test's port panics");
        Err(io::Error::other("the test's port is lost"))
    }

    fn datagram(&mut self, index: usize) -> (&mut [u8], Option<Ends>) {
        self.wire.datagram(index)
    }

    fn send(&mut self, batch: &mut SendBatch) -> io::Result<BatchSent> {
        self.wire.send(batch)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The core and two ports that fail, on their threads.
fn broken_ports(panics: bool) -> (CoreHandle, Arc<EngineSignal>, ServiceThreads) {
    let (config, hub, engine) = hub_and_engine("shards = 2\n");
    let signal = engine.signal();
    let port = || Broken {
        panics,
        wire: Wire::default(),
    };
    let ports = UdpPorts {
        ports: vec![port(), port()],
        numbers: vec![1, 2],
        address: None,
        policy: IdlePolicy::Sleep,
    };
    let started = start_on(&config, hub, engine, ports, |_| {});
    let (core, threads) = started.expect("threads");
    (core, signal, threads)
}

/// Calls `work` with the core, as a task of the service thread does.
fn call<T: Send + 'static>(
    core: &CoreHandle,
    work: impl FnOnce(&mut ServiceCore) -> T + Send + 'static,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    (runtime.expect("a runtime")).block_on(core.call(|core, _| work(core)))
}

#[allow(
    clippy::disallowed_methods,
    reason = "the test waits for other threads"
)]
fn wait_for(what: &str, mut is: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !is() {
        assert!(std::time::Instant::now() < until, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn a_panic_of_one_of_several_ports_ends_the_service() {
    let (_core, signal, threads) = broken_ports(true);
    wait_for("whoever serves is told", || signal.panicked());
    drop(threads);
}

#[test]
fn nothing_goes_on_with_a_half_changed_state() {
    let (core, signal, threads) = broken_ports(false);
    let lost = |core: &mut ServiceCore| core.snapshot(&Reasons::default()).status.sealed_ports_lost;
    wait_for("the ports are lost", || call(&core, lost) == 2);
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let panics = core.call(|_, _| panic!("in the middle of a change"));
        let mut panics = std::pin::pin!(panics);
        let never = std::future::poll_fn(|context| {
            let answer: std::task::Poll<()> = panics.as_mut().poll(context);
            assert!(answer.is_pending());
            std::task::Poll::Ready(())
        });
        never.await;
    });
    wait_for("whoever serves is told", || signal.panicked());
    drop(threads);
}

#[test]
fn sessions_of_a_lost_port_go_on_without_it_and_it_is_said() {
    let mut world = CoreWorld::new();
    let id = world.hosts[0].id;
    world.start_all(4, 1);
    let core = &mut world.core_loop.core;
    core.port_lost(clock::now_ns(), 0);
    let snapshot = core.snapshot(&Reasons::default());
    assert_eq!(snapshot.status.sealed_ports_lost, 1);
    let waits = |core: &ServiceCore| core.has_first(0) || core.has_later();
    assert!(!waits(core), "nothing waits for the port");
    // Datagrams of the host over QUIC are answered over QUIC.
    core.hub.on_timeout(u64::MAX / 4, id);
    core.flush(u64::MAX / 4);
    assert!(!waits(core));
}
