//! The fabric against independent formulae: queueing theory, the binomial distribution, and counts
//! made by hand. No expected value comes from the simulator.

use rand::RngExt as _;
use ratewright_simfabric::host::Policy;
use ratewright_simfabric::net::mmu::SharedBuffer;
use ratewright_simfabric::net::queue::{
    ClassConfig, DropReason, Limit, RedConfig, Service, drop_tail, ecn_threshold, red,
};
use ratewright_simfabric::results::{PortResult, RunResults};
use ratewright_simfabric::rng::{Purpose, Stream};
use ratewright_simfabric::scheme::constant::ConstantRate;
use ratewright_simfabric::transport::tcp::congestion::NewReno;
use ratewright_simfabric::transport::tcp::{Tcp, TcpConfig};
use ratewright_simfabric::{Config, FabricConfig, FlowSpec, HostId, QueueConfig, Sim, Span, Time};
use ratewright_topology::{BigSwitch, Link, Node, Topology, TwoTierClos};

const RATE_BPS: u64 = 10_000_000_000;
/// A full packet on the link, with the default framing.
const PACKET_BYTES: u64 = 1_538;
const MSS: u64 = 1_460;

/// One switch with hosts at 10 Gbit/s.
fn switch(hosts: u32) -> Topology {
    BigSwitch {
        racks: 1,
        hosts_per_rack: hosts,
        host_capacity_bps: RATE_BPS,
        host_delay_ns: 1_000,
        ..BigSwitch::default()
    }
    .build()
    .expect("a switch")
}

fn run(
    topology: Topology,
    fabric: FabricConfig,
    flows: impl Iterator<Item = FlowSpec>,
    transport: ConstantRate,
    (warm_up, end): (Time, Time),
) -> RunResults {
    let config = Config {
        seed: 11,
        fabric,
        warm_up,
        ..Config::default()
    };
    let mut sim = Sim::new(config, topology, flows, transport).expect("a good configuration");
    sim.run_until(end).expect("a good workload");
    let results = sim.results();
    results.conservation.expect("nothing is lost unseen");
    results
}

/// Flows of one full packet each from host 0 to host 1 that arrive as a Poisson process with this
/// load; each is of class 0 with probability `first`, else of class 1.
fn poisson(load: f64, first: f64, packets: u32) -> impl Iterator<Item = FlowSpec> {
    let mut rng = Stream::new(5, Purpose::Test, 0);
    let service_ps = (PACKET_BYTES * 8_000_000_000_000 / RATE_BPS) as f64;
    let mut at = 0.0;
    (0..packets).map(move |_| {
        // Exponential gaps by inversion; 1 − x is never 0, whose logarithm would be infinite.
        at -= (1.0 - rng.random::<f64>()).ln() * service_ps / load;
        let class = u8::from(rng.random::<f64>() >= first);
        FlowSpec {
            class,
            ..FlowSpec::new(HostId(0), HostId(1), MSS, Time::from_ps(at as u64))
        }
    })
}

/// Mean waiting times at the receiver's port of classes 0 and 1, in service times.
fn waits(edge: QueueConfig, load: f64, first: f64) -> [f64; 2] {
    let fabric = FabricConfig {
        edge,
        ..FabricConfig::default()
    };
    let flows = poisson(load, first, 300_000);
    let times = (Time::ZERO, Time::from_ms(10_000));
    let mut topology = switch(2);
    // The sender's link is so fast that packets reach the port as the process has them.
    let of_sender = |link: &&Link| link.from == Node::Host(HostId(0));
    let uplink = topology.links().iter().find(of_sender).expect("a link").id;
    topology.set_capacity_bps(uplink, 1_000 * RATE_BPS);
    let results = run(topology, fabric, flows, ConstantRate::blast(), times);
    let service_ps = PACKET_BYTES * 8_000_000_000_000 / RATE_BPS;
    // Two links, each with its transmission and delay.
    let empty_ps = service_ps + service_ps / 1_000 + 2_000_000;
    let (mut sums, mut counts) = ([0.0; 2], [0_u32; 2]);
    for flow in &results.flows {
        let took = flow.fct().expect("nothing is dropped").as_ps();
        let class = usize::from(flow.spec.class);
        sums[class] += (took - empty_ps) as f64 / service_ps as f64;
        counts[class] += 1;
    }
    std::array::from_fn(|class| sums[class] / f64::from(counts[class].max(1)))
}

/// Asserts a value within a relative distance of a formula's.
fn near(found: f64, expected: f64, share: f64, what: &str) {
    assert!(
        (found - expected).abs() <= share * expected,
        "{what}: {found}, and by the formula {expected}"
    );
}

/// M/D/1: the Pollaczek–Khinchine formula, W = ρ / (2 (1 − ρ)) service times.
#[test]
fn first_in_first_out_waits_as_in_an_m_d_1_queue() {
    for load in [0.3, 0.7] {
        let [wait, _] = waits(QueueConfig::default(), load, 1.0);
        near(wait, load / (2.0 * (1.0 - load)), 0.02, "mean wait");
    }
}

/// Cobham, *Priority Assignment in Waiting Line Problems* (1954), for service times that are all
/// the same: W₀ = ρ / 2, W₁ = W₀ / (1 − ρ₁), W₂ = W₀ / ((1 − ρ₁) (1 − ρ)).
#[test]
fn strict_priorities_wait_as_cobham_says() {
    let (load, first) = (0.7, 0.4);
    let nic = QueueConfig::Classes(vec![ClassConfig::default(); 2]);
    let [urgent, other] = waits(nic, load, first);
    let residual = load / 2.0;
    let free = 1.0 - load * first;
    near(
        urgent,
        residual / free,
        0.02,
        "mean wait of the first class",
    );
    near(
        other,
        residual / (free * (1.0 - load)),
        0.02,
        "mean wait of the second class",
    );
}

/// Two senders with n packets each at the receiver's rate. In every packet's time two arrive and
/// one leaves. A queue of k packets is full after k such times, and then drops one of two.
#[test]
fn a_full_queue_drops_what_can_be_counted_by_hand() {
    let (packets, limit) = (1_000, 100);
    let fabric = FabricConfig {
        edge: QueueConfig::DropTail(drop_tail::Config {
            limit: Limit::packets(limit),
        }),
        ..FabricConfig::default()
    };
    let flows = (0..2).map(|i| FlowSpec::new(HostId(i), HostId(2), packets * MSS, Time::ZERO));
    let times = (Time::ZERO, Time::from_ms(10));
    let results = run(switch(3), fabric, flows, ConstantRate::blast(), times);
    let expected = packets - u64::from(limit);
    assert_eq!(results.drops_by(DropReason::Full), expected);
    assert_eq!(results.drops(), expected);
    let of_flows: u64 = results.flows.iter().map(|f| f.drops).sum();
    assert_eq!(of_flows, expected, "what ports drop, flows miss");
    let delivered: u64 = results
        .ports
        .iter()
        .filter(|p| p.to_host)
        .map(|p| p.arrived.packets)
        .sum();
    assert_eq!(delivered, 2 * packets - expected);
    let most = results.ports.iter().map(|p| p.stats.max_packets).max();
    // Nothing waits in the NICs, which ask for a packet when their links are free.
    assert_eq!(most, Some(limit));
    // The packet being sent does not count as queued, here as in `limit`.
    let edge = results.ports.iter().filter(|p| p.to_host);
    assert_eq!(edge.map(|p| p.stats.max_packets).max(), Some(limit));
}

/// Choudhury and Hahne 1998, §III: with n overloaded queues each holds α / (1 + n α) of the buffer.
#[test]
fn overloaded_ports_share_a_buffer_as_choudhury_and_hahne_say() {
    let bytes = 2_000_000;
    for (alpha, ports) in [(1.0, 1), (1.0, 2), (2.0, 2), (0.5, 4)] {
        let fabric = FabricConfig {
            shared_buffer: Some(SharedBuffer {
                bytes,
                alpha,
                lossless: None,
            }),
            ..FabricConfig::default()
        };
        // Two senders at full rate for each receiver.
        let flows = (0..ports * 2).map(move |i| {
            FlowSpec::new(
                HostId(i),
                HostId(2 * ports + i / 2),
                FlowSpec::UNBOUNDED,
                Time::ZERO,
            )
        });
        // The buffer fills well within the warm-up of 5 ms: 2 MB at 10 Gbit/s take 1.6 ms.
        let senders = ConstantRate::new(RATE_BPS);
        let times = (Time::from_ms(5), Time::from_ms(8));
        let results = run(switch(3 * ports), fabric, flows, senders, times);
        let expected = bytes as f64 * alpha / (1.0 + f64::from(ports) * alpha);
        let mut held = 0;
        for port in results
            .ports
            .iter()
            .filter(|p| p.to_host && p.stats.offered.packets > 0)
        {
            // A port's length moves by the packet that comes and the one that goes, at every port.
            let difference = (port.stats.mean_bytes() - expected).abs();
            assert!(
                difference < 2.0 * PACKET_BYTES as f64 * f64::from(ports),
                "α {alpha}, {ports} ports: {} of {expected} bytes",
                port.stats.mean_bytes()
            );
            held += 1;
        }
        assert_eq!(held, ports);
    }
}

/// Floyd and Jacobson 1993, §4 and 7: of traffic that does not slow down, RED drops the excess.
/// Gaps between drops are uniform with the mean 1 / (2 p), which gives p, and p gives the mean
/// length between the thresholds.
#[test]
fn red_settles_where_its_probability_drops_the_excess() {
    let control = RedConfig {
        min_packets: 20.0,
        max_packets: 80.0,
        max_probability: 0.1,
        weight: 0.002,
        ecn: false,
    };
    let fabric = FabricConfig {
        edge: QueueConfig::Red(red::Config {
            control,
            limit: Limit::default(),
        }),
        ..FabricConfig::default()
    };
    let excess = 0.05;
    let flows = (0..2).map(|i| {
        FlowSpec::new(
            HostId(i),
            HostId(2),
            FlowSpec::UNBOUNDED,
            Time::from_ns(u64::from(i) * 600),
        )
    });
    let senders = ConstantRate::new((RATE_BPS as f64 * (1.0 + excess) / 2.0) as u64);
    let times = (Time::from_ms(50), Time::from_ms(250));
    let results = run(switch(3), fabric, flows, senders, times);
    let port = results
        .ports
        .iter()
        .find(|p| p.to_host && p.stats.offered.packets > 0);
    let stats = &port.expect("the receiver's port").stats;
    let share = stats.losses().dropped.packets as f64 / stats.offered.packets as f64;
    let expected = excess / (1.0 + excess);
    near(share, expected, 0.02, "share of packets that are dropped");
    // One packet of every 1 / (2 p) is dropped, so p is half the share. It grows over 60 packets.
    let length = 20.0 + 60.0 * (expected / 2.0) / 0.1;
    near(stats.mean_packets(), length, 0.04, "mean length");
    assert_eq!(results.drops_by(DropReason::Full), 0);
}

/// Packets on each of the uplinks of the first rack.
fn uplinks(spraying: bool, flows: impl Iterator<Item = FlowSpec>) -> Vec<u64> {
    let topology = TwoTierClos {
        racks: 2,
        hosts_per_rack: 4,
        spines: 8,
        host_capacity_bps: RATE_BPS,
        fabric_capacity_bps: RATE_BPS,
        ..TwoTierClos::default()
    }
    .build()
    .expect("a leaf-spine network");
    let ups: Vec<usize> = topology
        .links()
        .iter()
        .filter(|l| {
            l.from == Node::Switch(topology.racks()[0].leaf) && matches!(l.to, Node::Switch(_))
        })
        .map(|l| l.id.index())
        .collect();
    let fabric = FabricConfig {
        spraying,
        ..FabricConfig::default()
    };
    let times = (Time::ZERO, Time::from_ms(100));
    let results = run(topology, fabric, flows, ConstantRate::blast(), times);
    ups.iter()
        .map(|i| results.ports[*i].stats.sent.packets)
        .collect()
}

/// Pearson's χ² of counts that should be equal. Of eight, 24.3 is exceeded once in a thousand
/// times.
fn chi_squared(counts: &[u64]) -> f64 {
    let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    counts
        .iter()
        .map(|c| (*c as f64 - expected).powi(2) / expected)
        .sum()
}

const ONE_IN_A_THOUSAND: f64 = 24.3;

#[test]
fn hashes_spread_flows_over_equal_paths_and_keep_each_on_one() {
    let many = (0..8_000).map(|i| {
        FlowSpec::new(
            HostId(i % 4),
            HostId(4 + i / 4 % 4),
            MSS,
            Time::from_ns(u64::from(i)),
        )
    });
    let counts = uplinks(false, many);
    assert_eq!((counts.len(), counts.iter().sum::<u64>()), (8, 8_000));
    assert!(chi_squared(&counts) < ONE_IN_A_THOUSAND, "{counts:?}");
    // One flow of many packets: a path of its own, or the receiver would see reordering.
    let one = std::iter::once(FlowSpec::new(HostId(0), HostId(4), 1_000 * MSS, Time::ZERO));
    let mut counts = uplinks(false, one);
    counts.sort_unstable();
    assert_eq!(counts, [0, 0, 0, 0, 0, 0, 0, 1_000]);
}

#[test]
fn spraying_spreads_the_packets_of_one_flow_over_all_paths() {
    let one = std::iter::once(FlowSpec::new(HostId(0), HostId(4), 8_000 * MSS, Time::ZERO));
    let counts = uplinks(true, one);
    assert_eq!((counts.len(), counts.iter().sum::<u64>()), (8, 8_000));
    assert!(chi_squared(&counts) < ONE_IN_A_THOUSAND, "{counts:?}");
    // Round robin would give each path exactly 1,000; paths are drawn at random.
    assert!(counts.iter().any(|c| *c != 1_000), "{counts:?}");
}

/// Counts before a warm-up's end and after it add up to those of a run without one: drops, marks
/// and packets of every port, and retransmissions.
#[test]
fn counts_begin_at_the_end_of_the_warm_up() {
    let fabric = FabricConfig {
        edge: QueueConfig::EcnThreshold(ecn_threshold::Config::packets(5, Limit::packets(20))),
        ..FabricConfig::default()
    };
    let config = Config {
        seed: 3,
        fabric,
        ..Config::default()
    };
    let flows = || (0..8).map(|i| FlowSpec::new(HostId(i), HostId(8), 400_000, Time::ZERO));
    let transport = || Tcp::<NewReno>::new(TcpConfig::datacenter());
    let new = || Sim::new(config.clone(), switch(9), flows(), transport()).expect("a run");
    let (middle, end) = (Time::from_us(300), Time::from_ms(40));
    let mut whole = new();
    whole.run_until(end).expect("it runs");
    let whole = whole.results();
    let mut halves = new();
    halves.run_until(middle).expect("it runs");
    let before = halves.results();
    halves.end_warm_up();
    halves.run_until(end).expect("it runs");
    let after = halves.results();
    after.conservation.expect("nothing is lost unseen");
    assert!(before.drops() > 0 && after.drops() > 0 && after.retransmits > 0);
    assert_eq!(before.drops() + after.drops(), whole.drops());
    assert_eq!(before.retransmits + after.retransmits, whole.retransmits);
    for ((before, after), whole) in before.ports.iter().zip(&after.ports).zip(&whole.ports) {
        assert_eq!(before.stats.sent + after.stats.sent, whole.stats.sent);
        assert_eq!(before.stats.marks + after.stats.marks, whole.stats.marks);
        assert_eq!(before.arrived + after.arrived, whole.arrived);
        let dropped = |port: &PortResult| port.stats.losses().dropped;
        assert_eq!(dropped(before) + dropped(after), dropped(whole));
    }
}

/// Time of a full packet on a link, and a link's delay.
const PACKET: Span = Span::from_ps(1_230_400);
const DELAY: Span = Span::from_ns(1_000);

/// Flows of 20 and 10 packets begin while one of 40 sends its first packet, and one of 5 while that
/// sends its sixth. The shortest goes first, as soon as the packet before it has left.
#[test]
fn a_host_sends_the_flow_with_the_fewest_bytes_to_go() {
    let soon = Time::from_ns(500);
    let late = soon + PACKET * 35;
    let flows = [(40, Time::ZERO), (20, soon), (10, soon), (5, late)]
        .map(|(packets, start)| FlowSpec::new(HostId(0), HostId(1), packets * MSS, start));
    let transport = Tcp::<NewReno>::new(TcpConfig {
        initial_window_packets: 1_000,
        arbiter: Policy::Srpt,
        ..TcpConfig::default()
    });
    let mut sim = Sim::new(Config::default(), switch(2), flows.into_iter(), transport)
        .expect("a good configuration");
    sim.run_until(Time::from_ms(1)).expect("a good workload");
    let results = sim.results();
    let finished: Vec<_> = results.flows.iter().map(|flow| flow.finished).collect();
    // Packet k of all leaves the host at k times a packet's time, and the switch sends it on.
    let of_packet = |k: u64| Some(Time::ZERO + PACKET * (k + 1) + DELAY * 2);
    assert_eq!(finished, [75, 1 + 10 + 20, 1 + 10, 36 + 5].map(of_packet));
}

/// Shreedhar and Varghese 1996, §III: backlogged classes have shares by their weights.
#[test]
fn backlogged_classes_share_a_link_by_their_weights() {
    let weights = [1, 2, 5];
    let classes = weights.map(|weight| ClassConfig {
        service: Service::Weighted(weight),
        ..ClassConfig::default()
    });
    let fabric = FabricConfig {
        edge: QueueConfig::Classes(classes.to_vec()),
        ..FabricConfig::default()
    };
    let flows = (0..3_u8).map(|class| FlowSpec {
        class,
        ..FlowSpec::new(HostId(class.into()), HostId(3), 100_000 * MSS, Time::ZERO)
    });
    let end = Time::from_ms(20);
    let times = (Time::ZERO, end);
    let results = run(switch(4), fabric, flows, ConstantRate::blast(), times);
    let packets = (end.as_ps() / PACKET.as_ps()) as f64;
    for (flow, weight) in results.flows.iter().zip(weights) {
        let share = (flow.delivered_bytes / MSS) as f64 / packets;
        near(share, f64::from(weight) / 8.0, 0.01, "the share of a class");
    }
}

/// A packet costs an event per hop, and one more for the question of its host's interface.
#[test]
fn a_pull_costs_one_event_per_packet() {
    let packets = 2_000;
    let flow = FlowSpec::new(HostId(0), HostId(1), packets * MSS, Time::ZERO);
    let times = (Time::ZERO, Time::from_ms(10));
    let fabric = FabricConfig::default();
    let flows = [flow].into_iter();
    let results = run(switch(2), fabric, flows, ConstantRate::blast(), times);
    assert_eq!(results.packet_hops, 2 * packets);
    // The flow's arrival and its start, and the question to which there is nothing more.
    let most = results.packet_hops + packets + 3;
    assert!(results.events <= most, "{} events", results.events);
}
