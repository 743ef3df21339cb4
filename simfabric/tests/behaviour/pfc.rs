//! Priority flow control (IEEE 802.1Qbb) against times and bytes computed by hand.

use std::ops::ControlFlow;
use std::path::Path;

use ratewright_simfabric::net::FabricError;
use ratewright_simfabric::net::mmu::{Lossless, SharedBuffer, USUAL_WATCHDOG, Xoff};
use ratewright_simfabric::net::queue::{ClassConfig, ClassMask, ShaperConfig};
use ratewright_simfabric::plan::{Overrides, RunPlan, TransportRun};
use ratewright_simfabric::results::{ConservationError, RunResults};
use ratewright_simfabric::run::{Change, EndReason, PausedClass};
use ratewright_simfabric::scheme::constant::ConstantRate;
use ratewright_simfabric::scheme::fixed_window::ConstantWindow;
use ratewright_simfabric::transport::Transport;
use ratewright_simfabric::transport::tcp::congestion::NewReno;
use ratewright_simfabric::transport::tcp::{Tcp, TcpConfig};
use ratewright_simfabric::{Config, FabricConfig, FlowSpec, HostId, QueueConfig, Sim, Span, Time};
use ratewright_topology::{BigSwitch, LinkId, Node, Topology, TwoTierClos};

const RATE_BPS: u64 = 10_000_000_000;
/// A full packet on the link, and a pause.
const PACKET_BYTES: u64 = 1_538;
const MSS: u64 = 1_460;
/// Their times on a link, and a link's delay.
const PACKET: Span = Span::from_ps(1_230_400);
const PAUSE: Span = Span::from_ps(67_200);
const DELAY: Span = Span::from_ns(1_000);
/// Processing in hosts, of packets and not of pauses.
const HOST: Span = Span::from_ns(700);
/// Rate of the receiver's link, and a packet's time on it.
const SLOW_BPS: u64 = 100_000_000;
const SLOW_PACKET: Span = Span::from_ps(123_040_000);

fn switch(hosts: u32) -> Topology {
    BigSwitch {
        racks: 1,
        hosts_per_rack: hosts,
        host_capacity_bps: RATE_BPS,
        host_delay_ns: DELAY.as_ps() / 1_000,
        ..BigSwitch::default()
    }
    .build()
    .expect("a switch")
}

fn link(topology: &Topology, from: Node, to: Node) -> LinkId {
    let links = topology.links().iter();
    let mut found = links.filter(|l| l.from == from && l.to == to).map(|l| l.id);
    found.next().expect("a link")
}

fn lossless(xoff_bytes: u64, hysteresis_bytes: u64, headroom_bytes: u64) -> SharedBuffer {
    SharedBuffer {
        bytes: 1_000_000,
        alpha: 1.0,
        lossless: Some(Lossless {
            classes: ClassMask::of(0),
            xoff: Xoff::Bytes(xoff_bytes),
            hysteresis_bytes,
            headroom_bytes,
            watchdog: USUAL_WATCHDOG,
        }),
    }
}

/// A run of flows whose packets are all in the senders' NICs from the start.
struct Scene {
    topology: Topology,
    fabric: FabricConfig,
    /// Links that are slow from the start.
    slow: Vec<LinkId>,
    flows: Vec<FlowSpec>,
}

impl Scene {
    /// Host 0 sends to host 1, whose link is slow, and the buffer pauses host 0.
    fn new(buffer: SharedBuffer, flows: Vec<FlowSpec>) -> Self {
        let topology = switch(3);
        let leaf = topology.racks()[0].leaf;
        let slow = link(&topology, Node::Switch(leaf), Node::Host(HostId(1)));
        Self {
            topology,
            fabric: FabricConfig {
                shared_buffer: Some(buffer),
                host_delay: HOST,
                ..FabricConfig::default()
            },
            slow: vec![slow],
            flows,
        }
    }

    fn run(&self, end: Time) -> RunResults {
        self.run_with(ConstantRate::blast(), end)
    }

    fn run_with<T: Transport>(&self, transport: T, end: Time) -> RunResults {
        let slow = |link: &LinkId| {
            let (link, rate_bps) = (*link, SLOW_BPS);
            (Time::ZERO, Change::Rate { link, rate_bps })
        };
        let config = Config {
            fabric: self.fabric.clone(),
            changes: self.slow.iter().map(slow).collect(),
            ..Config::default()
        };
        let flows = self.flows.clone().into_iter();
        let mut sim = Sim::new(config, self.topology.clone(), flows, transport)
            .expect("a good configuration");
        sim.run_until(end).expect("good flows");
        sim.results()
    }

    /// Pauses that host 0 has heard until a time.
    fn pauses(&self, until: Time) -> (u64, Span) {
        let topology = &self.topology;
        let leaf = topology.racks()[0].leaf;
        let nic = link(topology, Node::Host(HostId(0)), Node::Switch(leaf));
        let results = self.run(until);
        results.conservation.expect("nothing is lost");
        let pauses = results.ports[nic.index()].stats.pauses();
        (pauses.count, pauses.time)
    }
}

fn flow(src: u32, dst: u32, packets: u64, start: Time) -> FlowSpec {
    FlowSpec::new(HostId(src), HostId(dst), packets * MSS, start)
}

/// Time at which packet `n` of a sender has reached the switch, from 0.
fn at_switch(n: u64) -> Time {
    Time::ZERO + PACKET * (n + 1) + DELAY + HOST
}

/// Packet 0 is being sent to the receiver; packets 1, 2, … wait, so that packet n brings n packets'
/// bytes. A pause goes back at once, behind nothing, and takes no time in the host.
fn heard(n: u64) -> Time {
    at_switch(n) + PAUSE + DELAY
}

#[test]
fn a_pause_goes_out_at_the_very_byte_and_is_heard_after_the_links_delay() {
    for (xoff, packet) in [
        (2 * PACKET_BYTES - 1, 2),
        (2 * PACKET_BYTES, 2),
        (2 * PACKET_BYTES + 1, 3),
    ] {
        let scene = Scene::new(lossless(xoff, 0, 10_000), vec![flow(0, 1, 30, Time::ZERO)]);
        let at = heard(packet);
        assert_eq!(scene.pauses(at - Span::from_ps(1)).0, 0, "XOFF at {xoff}");
        assert_eq!(scene.pauses(at).0, 1, "XOFF at {xoff}");
    }
}

/// Host 0 hears the pause of packet 2 at 5.76 µs + 0.7 µs, in which it has begun packet 5, which
/// it began before. Packets 3, 4 and 5 arrive after XOFF.
#[test]
fn headroom_is_enough_for_what_arrives_until_the_pause_is_heard_and_no_more() {
    let begun = heard(2).as_ps() / PACKET.as_ps();
    let needed = (begun - 2) * PACKET_BYTES;
    let run = |headroom| {
        let buffer = lossless(2 * PACKET_BYTES, 0, headroom);
        let scene = Scene::new(buffer, vec![flow(0, 1, 30, Time::ZERO)]);
        scene.run(Time::from_ms(20))
    };
    let enough = run(needed);
    enough.conservation.expect("no loss");
    assert_eq!(enough.drops(), 0);
    assert_eq!(enough.flows[0].delivered_bytes, 30 * MSS);
    let most = enough.switches[0].max_bytes;
    assert_eq!(most, Some(2 * PACKET_BYTES + needed));
    let short = run(needed - 1);
    let is_lossless = matches!(short.conservation, Err(ConservationError::Lossless { .. }));
    assert!(is_lossless, "{:?}", short.conservation);
}

/// XON is XOFF less the hysteresis. The queue's packets leave one by one on the slow link.
#[test]
fn a_sender_resumes_when_the_ingress_is_below_xon() {
    let waiting = heard(2).as_ps() / PACKET.as_ps();
    for (hysteresis, left) in [(0, 1), (PACKET_BYTES - 1, 1), (PACKET_BYTES, 0)] {
        let buffer = lossless(2 * PACKET_BYTES, hysteresis, 10_000);
        let scene = Scene::new(buffer, vec![flow(0, 1, 30, Time::ZERO)]);
        // The n-th departure after that of packet 0 leaves waiting − n.
        let below_xon = at_switch(0) + SLOW_PACKET * (waiting - left);
        let resumed = below_xon + PAUSE + DELAY;
        let (count, time) = scene.pauses(resumed);
        assert_eq!((count, time), (1, resumed.since(heard(2))), "{hysteresis}");
        // Later it is the same, until the next pause.
        let later = scene.pauses(resumed + PACKET);
        assert_eq!(later, (1, time), "{hysteresis}");
    }
}

/// The pause waits for the packet that is being sent to the paused host, and for no other.
#[test]
fn a_pause_goes_behind_the_packet_that_is_being_sent_and_ahead_of_those_that_wait() {
    let offset = Span::from_ns(300);
    let buffer = lossless(2 * PACKET_BYTES, 0, 10_000);
    let mut flows = vec![flow(0, 1, 30, Time::ZERO)];
    // Two hosts' packets to host 0: one is always being sent, and a queue grows.
    flows.push(flow(2, 0, 30, Time::ZERO + offset));
    let scene = Scene::new(buffer, flows);
    // Packet 1 of host 2 leaves the switch when packet 2 has come.
    let at = at_switch(2) + offset + PAUSE + DELAY;
    assert_eq!(scene.pauses(at - Span::from_ps(1)).0, 0);
    assert_eq!(scene.pauses(at).0, 1);
    // Packet 2 is sent behind the pause: its last bit reaches host 0 so much later.
    let last_bit = at_switch(2) + offset + PAUSE + PACKET + DELAY + HOST;
    let delivered = |until| scene.run(until).flows[1].delivered_bytes;
    assert_eq!(delivered(last_bit - Span::from_ps(1)), 2 * MSS);
    assert_eq!(delivered(last_bit), 3 * MSS);
}

/// Congestion spreads by pauses: a flow that shares no congested port with another is slowed down
/// to its rate, if it is of its class, and not otherwise.
#[test]
fn a_victim_has_the_congested_flows_rate_in_its_class_and_its_own_in_another() {
    let topology = TwoTierClos {
        racks: 2,
        hosts_per_rack: 2,
        spines: 1,
        host_capacity_bps: RATE_BPS,
        fabric_capacity_bps: RATE_BPS,
        ..TwoTierClos::default()
    }
    .build()
    .expect("two racks");
    let leaf = topology.racks()[1].leaf;
    let slow = link(&topology, Node::Switch(leaf), Node::Host(HostId(2)));
    let run = |victim_class: u8| {
        let mut flows = vec![
            flow(0, 2, 2_000, Time::ZERO),
            flow(1, 3, 20_000, Time::ZERO),
        ];
        flows[1].class = victim_class;
        let classes = QueueConfig::Classes(vec![ClassConfig::default(); 2]);
        let mut buffer = lossless(20_000, 3_000, 60_000);
        if let Some(lossless) = &mut buffer.lossless {
            lossless.classes = ClassMask::ALL;
        }
        let scene = Scene {
            topology: topology.clone(),
            fabric: FabricConfig {
                nic: classes.clone(),
                shared_buffer: Some(buffer),
                ..FabricConfig::with_switch_queues(classes)
            },
            slow: vec![slow],
            flows,
        };
        let results = scene.run(Time::from_ms(20));
        results.conservation.expect("no loss");
        assert!(results.switches.iter().all(|s| s.pauses > 0) || victim_class > 0);
        let rate_of = |flow: usize| results.flows[flow].delivered_bytes as f64 * 8.0 / 0.02;
        [rate_of(0), rate_of(1)]
    };
    let goodput = SLOW_BPS as f64 * MSS as f64 / PACKET_BYTES as f64;
    let [congested, victim] = run(0);
    assert!((congested / goodput - 1.0).abs() < 0.02, "{congested}");
    // Packets of both take turns in the queues that are paused.
    assert!(victim < 1.5 * goodput, "the victim has {victim}");
    let [congested, other] = run(1);
    assert!((congested / goodput - 1.0).abs() < 0.02, "{congested}");
    let rest = (RATE_BPS - SLOW_BPS) as f64 * MSS as f64 / PACKET_BYTES as f64;
    assert!(other > 0.98 * rest, "in another class it has {other}");
}

/// A pause stops the flows of its class at their host, whatever the endpoint: their data stays in
/// the flow and not in the interface, and a flow of another class has the rest of the link.
#[test]
fn a_pause_stops_the_flows_of_its_class_and_no_other_of_the_host() {
    let classes = QueueConfig::Classes(vec![ClassConfig::default(); 2]);
    let mut buffer = lossless(20_000, 3_000, 60_000);
    if let Some(lossless) = &mut buffer.lossless {
        lossless.classes = ClassMask::ALL;
    }
    let mut scene = Scene::new(
        buffer,
        vec![
            flow(0, 1, 20_000, Time::ZERO),
            flow(0, 2, 20_000, Time::ZERO),
        ],
    );
    // A class beyond the last one of the queues is of that.
    (scene.flows[0].class, scene.flows[1].class) = (7, 0);
    scene.fabric.nic = classes.clone();
    (scene.fabric.edge, scene.fabric.core) = (classes.clone(), classes);
    let end = Time::from_ms(20);
    let leaf = scene.topology.racks()[0].leaf;
    let nic = link(&scene.topology, Node::Host(HostId(0)), Node::Switch(leaf));
    let goodput = |bps: u64| bps as f64 * MSS as f64 / PACKET_BYTES as f64;
    // A window of more than the buffer.
    let tcp = Tcp::<NewReno>::new(TcpConfig {
        initial_window_packets: 100,
        ..TcpConfig::datacenter()
    });
    for results in [
        scene.run(end),
        scene.run_with(ConstantWindow::new(100), end),
        scene.run_with(tcp, end),
    ] {
        results.conservation.expect("no loss");
        let rates = [0, 1].map(|i| results.flows[i].delivered_bytes as f64 * 8.0 / 0.02);
        assert!(
            (rates[0] / goodput(SLOW_BPS) - 1.0).abs() < 0.02,
            "{rates:?}"
        );
        assert!(rates[1] > 0.98 * goodput(RATE_BPS - SLOW_BPS), "{rates:?}");
        let stats = &results.ports[nic.index()].stats;
        assert!(
            stats.pauses().count > 1 && stats.max_packets <= 1,
            "{stats:?}"
        );
    }
}

/// Many senders to one receiver: nothing is lost, whatever the threshold, and all arrives.
#[test]
fn an_incast_loses_nothing() {
    for xoff in [Xoff::Bytes(10_000), Xoff::Alpha(0.125)] {
        let mut buffer = lossless(0, 2_000, 10_000);
        buffer.bytes = 300_000;
        if let Some(lossless) = &mut buffer.lossless {
            lossless.xoff = xoff;
        }
        let flows: Vec<FlowSpec> = (0..20).map(|src| flow(src, 20, 100, Time::ZERO)).collect();
        let scene = Scene {
            topology: switch(21),
            fabric: FabricConfig {
                shared_buffer: Some(buffer),
                ..FabricConfig::default()
            },
            slow: Vec::new(),
            flows,
        };
        let results = scene.run(Time::from_ms(100));
        results.conservation.expect("no loss");
        assert_eq!(results.drops(), 0);
        let delivered: u64 = results.flows.iter().map(|f| f.delivered_bytes).sum();
        assert_eq!(delivered, 20 * 100 * MSS);
        assert!(results.switches[0].pauses > 0);
        // The link is never idle: it sends all packets one after another.
        let finished = results.flows.iter().filter_map(|f| f.finished).max();
        let expected = at_switch(0) - HOST + PACKET * 2_000 + DELAY;
        assert_eq!(finished, Some(expected));
    }
}

/// A class that is shaped sends alone, so that nothing but its shaper makes events.
#[test]
fn a_shaped_class_leaves_at_its_rate_to_the_picosecond() {
    let shaped = ClassConfig {
        shaper: Some(ShaperConfig {
            share: 0.1,
            burst_bytes: 0,
        }),
        ..ClassConfig::default()
    };
    let mut scene = Scene::new(SharedBuffer::UNLIMITED, vec![flow(0, 2, 50, Time::ZERO)]);
    scene.fabric.nic = QueueConfig::Classes(vec![shaped, ClassConfig::default()]);
    let results = scene.run(Time::from_ms(10));
    results.conservation.expect("no loss");
    let expected = at_switch(0) + PACKET * 10 * 49 + PACKET + DELAY + HOST;
    assert_eq!(results.flows[0].finished, Some(expected));
}

/// Two senders of n packets each: in every packet's time two come and one leaves.
#[test]
fn a_switchs_buffer_holds_what_can_be_counted_by_hand() {
    let flows = vec![flow(0, 2, 100, Time::ZERO), flow(1, 2, 100, Time::ZERO)];
    let mut scene = Scene::new(SharedBuffer::UNLIMITED, flows);
    scene.slow.clear();
    scene.fabric.histograms = true;
    let results = scene.run(Time::from_ms(1));
    let switch = &results.switches[0];
    assert_eq!(switch.max_bytes, Some(100 * PACKET_BYTES));
    // 1 + 2 + … + 100 + 99 + … + 1 packets, each for a packet's time.
    let area = (100 * PACKET_BYTES * 100) as f64 * PACKET.as_ps() as f64;
    let mean = area / results.now.as_ps() as f64;
    assert!(
        (switch.mean_bytes - mean).abs() < 1e-6 * mean,
        "{switch:?} {mean}"
    );
    // More than n wait for 2 (100 − n) − 1 packets' times.
    let occupancy = switch.occupancy.as_ref().expect("it is kept");
    for n in [0, 1, 10, 50, 99] {
        let longer = PACKET * (2 * (100 - n) - 1);
        let share = 1.0 - longer.as_ps() as f64 / results.now.as_ps() as f64;
        for (share, packets) in [(share - 1e-9, n), (share + 1e-9, n + 1)] {
            let bytes = occupancy.quantile(share);
            let exact = packets * PACKET_BYTES;
            assert!(
                exact <= bytes && bytes <= exact + exact / 32,
                "{n}: {bytes}"
            );
        }
    }
}

/// A plan of the repository, with other text in it.
fn planned(name: &str, replace: &[(&str, &str)]) -> RunPlan {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans");
    let mut text = std::fs::read_to_string(dir.join(name)).expect("the plan is there");
    for (from, to) in replace {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    RunPlan::parse(&text, name, &dir, &Overrides::default()).expect("a good plan")
}

fn run_plan(mut plan: RunPlan, threads: usize) -> TransportRun {
    plan.threads = threads;
    let never = |_| ControlFlow::Continue(());
    plan.run(&plan.transports[0], never).expect("a good run")
}

/// Four links whose buffers wait for each other in a circle: made by hand, in the plan's routes.
#[test]
fn a_circle_of_buffers_is_found_and_named_and_ends_the_run() {
    let plan = || planned("pfc-deadlock.toml", &[]);
    let TransportRun { summary, results } = run_plan(plan(), 1);
    assert_eq!((summary.ended.as_str(), summary.drops), ("deadlock", 0));
    assert_eq!(
        summary.deadlock,
        [
            "leaf1->spine2, class 0",
            "spine2->leaf2, class 0",
            "leaf2->spine1, class 0",
            "spine1->leaf1, class 0"
        ]
    );
    // The watchdog's first look, long after the packets have stopped.
    assert_eq!(results.now, Time::from_ms(1));
    let deadlock = results.deadlock.clone().expect("it is in the results");
    let stats = |port: &PausedClass| &results.ports[port.link.index()].stats;
    assert!(deadlock.cycle.iter().all(|port| {
        let since = stats(port).pauses().longest.map(|l| l.span);
        stats(port).mean_bytes() > 0.0 && since > Some(Span::from_us(500))
    }));
    // Hosts wait for the circle, too.
    assert!(deadlock.stuck > deadlock.cycle.len());
    // Several threads find it at the same time.
    let threads = run_plan(plan(), 2);
    assert_eq!(threads.results.deadlock, Some(deadlock));
    assert_eq!(threads.summary, summary);
    // Without an end there would be nothing to wait for: it never moves again.
    let later = run_plan(planned("pfc-deadlock.toml", &[("1ms", "50ms")]), 1);
    let delivered = |run: &RunResults| -> Vec<u64> {
        let flows = run.flows.iter();
        flows.map(|flow| flow.delivered_bytes).collect()
    };
    assert_eq!(later.results.now, Time::from_ms(50));
    assert_eq!(delivered(&later.results), delivered(&results));
    // A run that ends before the watchdog looks tells it all the same.
    let short = [
        ("1ms", "50ms"),
        ("until = \"complete\"", "duration = \"2ms\""),
    ];
    let short = run_plan(planned("pfc-deadlock.toml", &short), 1);
    assert_eq!(short.summary.ended, "deadlock");
    assert_eq!(short.results.deadlock, threads.results.deadlock);
}

/// Buffers that hold all, under those routes: nobody is paused, and everything arrives.
#[test]
fn the_same_routes_lock_nothing_while_buffers_last() {
    let roomy = planned("pfc-deadlock.toml", &[("20000", "30000000")]);
    let TransportRun { summary, results } = run_plan(roomy, 1);
    assert_eq!(
        (summary.ended.as_str(), results.deadlock),
        ("complete", None)
    );
    assert_eq!((summary.flows, summary.pauses.count), ([6, 6], 0));
    // Without the routes every packet goes up and then down, which cannot lock.
    let mut plan = planned("pfc-deadlock.toml", &[]);
    plan.transports[0].fabric.routes.clear();
    let TransportRun { summary, results } = run_plan(plan, 1);
    assert_eq!(
        (summary.ended.as_str(), results.deadlock),
        ("complete", None)
    );
    assert!(summary.pauses.count > 0, "{summary:?}");
}

/// Endpoints without timers leave nothing to happen in a deadlock: the run says so at once.
#[test]
fn a_run_that_becomes_idle_in_a_deadlock_says_so() {
    let plan = planned("pfc-deadlock.toml", &[]);
    let flows = plan.flows().expect("a list");
    let config = Config {
        fabric: plan.transports[0].fabric.clone(),
        ..Config::default()
    };
    let mut sim = Sim::new(config, plan.topology, flows, ConstantRate::blast()).expect("a run");
    assert_eq!(sim.run_until(Time::MAX), Ok(EndReason::Deadlock));
    let results = sim.results();
    assert_eq!(
        results.deadlock.map(|deadlock| deadlock.cycle.len()),
        Some(4)
    );
    results.conservation.expect("nothing is lost");
}

#[test]
fn a_host_that_pauses_for_ever_is_found_and_named_and_ends_the_run() {
    let plan = |replace: &[(&str, &str)]| planned("pfc-storm.toml", replace);
    let TransportRun { summary, results } = run_plan(plan(&[]), 1);
    assert_eq!(summary.ended, "pause-storm");
    // The first look at which it has lasted 10 ms.
    assert_eq!(results.now, Time::from_ms(20));
    let storm = results.storms.first().expect("it is in the results");
    let (since, lasted) = (Time::from_ms(1), Span::from_ms(19));
    assert_eq!((storm.since, storm.lasted), (since, lasted));
    assert_eq!(summary.pause_storms[0], "leaf2->h4, class 0");
    assert_eq!((summary.deadlock.len(), summary.drops), (0, 0));
    let threads = run_plan(plan(&[]), 2);
    assert_eq!(threads.results.storms, results.storms);
    assert_eq!(threads.summary, summary);
    // It spreads to the sender, if switches cannot hold its window.
    let spread = [("watchdog =", "xoff_bytes = 20000\nwatchdog =")];
    let names = run_plan(plan(&spread), 1).summary.pause_storms;
    assert_eq!(names[0], "leaf2->h4, class 0");
    assert!(
        names.contains(&"h1->leaf1, class 0".to_owned()),
        "{names:?}"
    );
    // One that ends in time is none, and all arrives.
    let healed = "pauses = true\n[[fault]]\nat = \"9ms\"\nhost = 3\npauses = false";
    let TransportRun { summary, results } = run_plan(plan(&[("pauses = true", healed)]), 1);
    assert_eq!(
        (summary.ended.as_str(), summary.flows),
        ("complete", [2, 2])
    );
    assert!(results.storms.is_empty());
    let longest = summary.pauses.longest_us;
    assert!((longest - 8_000.0).abs() < 1e-9, "{longest}");
}

#[test]
fn routes_and_faults_that_cannot_be_are_refused_by_name() {
    let complaint = |name: &str, from: &str, to: &str| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans");
        let text = std::fs::read_to_string(dir.join(name)).expect("the plan is there");
        let text = text.replacen(from, to, 1);
        let plan = RunPlan::parse(&text, name, &dir, &Overrides::default());
        plan.expect_err("it is wrong").to_string()
    };
    for (from, to, says) in [
        // leaf1 hands back to spine1 what that hands to it.
        (
            "by = \"leaf1->spine2\"",
            "by = \"leaf1->spine1\"",
            "back to leaf1",
        ),
        ("by = \"leaf3->spine1\"", "by = \"leaf3->h1\"", "no link"),
        ("by = \"leaf3->spine1\"", "by = \"h9->leaf3\"", "is no way"),
        ("to = \"leaf2\"", "to = \"spine1\"", "no leaf"),
        ("name = \"dcqcn\"", "name = \"fncc\"", "leaf3"),
    ] {
        let complaint = complaint("pfc-deadlock.toml", from, to);
        assert!(complaint.contains(says), "{complaint}");
    }
    let complaint = complaint("pfc-storm.toml", "host = 3", "host = 4");
    assert!(complaint.contains("0 to 3"), "{complaint}");
    // Links that fail have no routes by hand.
    let plan = planned("pfc-deadlock.toml", &[]);
    let config = Config {
        fabric: plan.transports[0].fabric.clone(),
        changes: vec![(
            Time::ZERO,
            Change::Link {
                link: LinkId(0),
                up: false,
            },
        )],
        ..Config::default()
    };
    let sim = Sim::new(
        config,
        plan.topology,
        std::iter::empty(),
        ConstantRate::blast(),
    );
    assert_eq!(sim.err(), Some(FabricError::RouteFails));
    // Nobody hears a pause where nothing is lossless.
    let plan = planned(
        "pfc-storm.toml",
        &[("watchdog = \"10ms\"", "lossless = false")],
    );
    let error = plan.run(&plan.transports[0], |_| ControlFlow::Continue(()));
    assert!(
        error
            .expect_err("it is wrong")
            .to_string()
            .contains("lossless")
    );
}
