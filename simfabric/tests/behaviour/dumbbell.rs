//! The TCP family against other simulators: two flows over one link of 10 Gbit/s, as run with
//! ns-3.37 (DCTCP, Cubic) and ns-2.35 (XCP) outside of this project.
//!
//! Three links with one-way delays of 10 µs. Packets have 1,448 bytes of payload and 1,502 on the
//! wire (IPv4 20, TCP with time stamps 32, PPP 2). The initial window is ten packets; the second
//! flow starts 10 ms after the first.
//!
//! Two flows in step with one bottleneck show phase effects (Floyd and Jacobson, "Traffic phase
//! effects in packet-switched gateways", 1991): a nanosecond decides whose packet is marked. Each
//! figure of theirs is therefore compared with runs whose hosts vary in processing time, by a
//! sixtieth of a packet's time at most.

use ratewright_simfabric::flow::{FlowId, FlowSpec};
use ratewright_simfabric::host::Policy;
use ratewright_simfabric::net::queue::{CodelConfig, Limit, XcpConfig, codel, ecn_threshold, xcp};
use ratewright_simfabric::net::{FabricConfig, Framing, QueueConfig};
use ratewright_simfabric::run::{Config, Sim};
use ratewright_simfabric::transport::Transport;
use ratewright_simfabric::transport::tcp::congestion::{
    Cubic, CubicConfig, CubicGrowth, Dctcp, Xcp,
};
use ratewright_simfabric::transport::tcp::{Tcp, TcpConfig};
use ratewright_simfabric::units::Delay;
use ratewright_simfabric::{Span, Time};
use ratewright_topology::{HostId, LinkId, Topology};

const NS3: Framing = Framing {
    mss_bytes: 1_448,
    header_bytes: 54,
    min_wire_bytes: 54,
};

/// Two hosts on either side. The builder needs a spine; its links to the second leaf have 100
/// Tbit/s and no delay, so they do not show.
fn dumbbell(link_delay_ns: u64) -> Topology {
    let text = format!(
        r#"
kind = "two_tier_clos"
[parameters]
racks = 2
hosts_per_rack = 2
spines = 1
host_capacity = "10Gbit/s"
fabric_capacity = "10Gbit/s"
host_delay = "{link_delay_ns}ns"
fabric_delay = "{link_delay_ns}ns"
ipv4_base = "none"
ipv6_base = "none"
[[link]]
from = "spine1"
to = "leaf2"
capacity = "100Tbit/s"
delay = "0ns"
[[link]]
from = "leaf2"
to = "spine1"
capacity = "100Tbit/s"
delay = "0ns"
"#
    );
    Topology::from_toml_str(&text, "dumbbell").expect("a dumbbell")
}

/// The link that both flows share.
fn bottleneck(topology: &Topology) -> LinkId {
    topology
        .links()
        .iter()
        .find(|link| {
            topology.node_name(link.from) == "leaf1" && topology.node_name(link.to) == "spine1"
        })
        .expect("leaf1 to spine1")
        .id
}

/// Measurements of a run, as the other simulators print them.
#[derive(Debug)]
struct DumbbellResult {
    goodput_gbps: f64,
    /// Jain's index over the last 10 ms.
    jain: f64,
    /// Jain's index from the second flow's start on.
    jain_of_both: f64,
    queue_mean: f64,
    queue_max: u32,
    drops: u64,
}

/// Seeds of the hosts' processing times.
const SEEDS: u64 = 10;

/// Most that a host takes longer for one packet than for another.
const HOST_JITTER: Span = Span::from_ns(20);

/// Runs that differ in their seed alone.
struct Ensemble(Vec<DumbbellResult>);

impl Ensemble {
    fn new(run: impl Fn(u64) -> DumbbellResult) -> Self {
        let runs = Self((1..=SEEDS).map(run).collect());
        assert!(runs.0.iter().all(|r| r.drops == 0), "{:?}", runs.0);
        runs
    }

    fn mean(&self, of: fn(&DumbbellResult) -> f64) -> f64 {
        self.0.iter().map(of).sum::<f64>() / self.0.len() as f64
    }

    /// Checks that the other simulator's one run could be one of these: it lies within the 95 %
    /// prediction interval of a further run, or as close to the mean as `tolerance`.
    #[track_caller]
    fn admits(&self, what: &str, of: fn(&DumbbellResult) -> f64, theirs: f64, tolerance: f64) {
        let n = self.0.len() as f64;
        let mean = self.mean(of);
        let squares: f64 = self.0.iter().map(|r| (of(r) - mean).powi(2)).sum();
        // Student's t for nine degrees of freedom.
        let half = 2.262 * (squares / (n - 1.0) * (1.0 + 1.0 / n)).sqrt();
        close(what, mean, theirs, half.max(tolerance));
    }
}

/// Jain's index of two rates.
fn jain(rates: [f64; 2]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    sum * sum / (2.0 * squares)
}

/// Runs two flows; `chance` is the seed and the hosts' jitter.
fn run<T: Transport>(
    transport: T,
    queue: &QueueConfig,
    framing: Framing,
    link_delay_ns: u64,
    end: Time,
    chance: (u64, Span),
) -> DumbbellResult {
    let (seed, host_jitter) = chance;
    let topology = dumbbell(link_delay_ns);
    let shared = bottleneck(&topology);
    let config = Config {
        seed,
        fabric: FabricConfig {
            framing,
            host_jitter,
            ..FabricConfig::with_switch_queues(queue.clone())
        },
        // Queues are measured once both flows run; goodput counts from the begin.
        warm_up: Time::from_ms(20),
        sample_every: Some(Span::from_ms(10)),
        sampled_flows: 2,
        ..Config::default()
    };
    let flows = [(0, 2, Time::ZERO), (1, 3, Time::from_ms(10))].map(|(src, dst, start)| {
        FlowSpec::new(HostId(src), HostId(dst), FlowSpec::UNBOUNDED, start)
    });
    let mut sim = Sim::new(config, topology, flows.into_iter(), transport).expect("a run");
    sim.run_until(end).expect("it runs");
    let results = sim.results();
    assert_eq!(results.conservation, Ok(()));
    // Goodput over the whole run, slow start included, as the other simulators report it.
    let delivered: u64 = results.flows.iter().map(|f| f.delivered_bytes).sum();
    let series = results.series.as_ref().expect("sampled");
    let goodput = [FlowId(0), FlowId(1)].map(|flow| series.goodput_bps(flow));
    let last = goodput
        .each_ref()
        .map(|g| g.last().copied().unwrap_or_default());
    // The first sample, of 10 ms, is the first flow alone.
    let of_both = goodput.each_ref().map(|g| g[1..].iter().sum());
    let port = &results.ports[shared.index()];
    DumbbellResult {
        goodput_gbps: delivered as f64 * 8.0 / end.as_secs_f64() / 1e9,
        jain: jain(last),
        jain_of_both: jain(of_both),
        queue_mean: port.stats.mean_packets(),
        queue_max: port.stats.max_packets,
        drops: results.drops(),
    }
}

fn dctcp(packets: u32, link_delay_ns: u64, end: Time) -> Ensemble {
    let queue = QueueConfig::EcnThreshold(ecn_threshold::Config::packets(
        packets,
        Limit::packets(1_000),
    ));
    let config = TcpConfig {
        ecn: true,
        ..TcpConfig::default()
    };
    Ensemble::new(|seed| {
        let transport = Tcp::<Dctcp>::new(config);
        run(
            transport,
            &queue,
            NS3,
            link_delay_ns,
            end,
            (seed, HOST_JITTER),
        )
    })
}

#[track_caller]
fn close(what: &str, ours: f64, theirs: f64, tolerance: f64) {
    assert!(
        (ours - theirs).abs() <= tolerance,
        "{what}: {ours} here, {theirs} there (±{tolerance})"
    );
}

#[test]
fn dctcp_of_65_packets_is_as_in_ns_3() {
    let ours = dctcp(65, 10_000, Time::from_ms(200));
    close("goodput", ours.mean(|r| r.goodput_gbps), 9.637, 0.096);
    ours.admits("Jain", |r| r.jain, 0.9998, 0.02);
    close("mean queue", ours.mean(|r| r.queue_mean), 60.3, 6.0);
    close(
        "longest queue",
        ours.mean(|r| r.queue_max.into()),
        68.0,
        6.8,
    );
}

#[test]
fn dctcp_of_20_packets_is_as_in_ns_3() {
    let ours = dctcp(20, 10_000, Time::from_ms(200));
    close("goodput", ours.mean(|r| r.goodput_gbps), 9.637, 0.096);
    ours.admits("Jain", |r| r.jain, 1.0, 0.02);
    close("mean queue", ours.mean(|r| r.queue_mean), 15.5, 1.5);
    close(
        "longest queue",
        ours.mean(|r| r.queue_max.into()),
        23.0,
        2.3,
    );
}

#[test]
fn dctcp_over_300_microseconds_is_as_in_ns_3() {
    let ours = dctcp(65, 50_000, Time::from_ms(100));
    close("goodput", ours.mean(|r| r.goodput_gbps), 9.547, 0.095);
    ours.admits("Jain", |r| r.jain, 0.914, 0.02);
    close("mean queue", ours.mean(|r| r.queue_mean), 48.3, 4.8);
    close(
        "longest queue",
        ours.mean(|r| r.queue_max.into()),
        68.0,
        6.8,
    );
}

/// ns-3.37's CUBIC: no NewReno-friendly region, whole packets of growth, by one per 20 acknowledged
/// while nothing was marked or lost (its `CntClamp`) and later by one per hundred windows; HyStart
/// by time stamps of 1 ms, in which these round trips are none.
#[test]
fn cubic_under_codel_is_as_in_ns_3() {
    let queue = QueueConfig::Codel(codel::Config {
        control: CodelConfig {
            target: Delay::from_us(50),
            interval: Delay::from_us(500),
            ecn: true,
        },
        limit: Limit::packets(1_000),
    });
    let config = TcpConfig {
        ecn: true,
        stamp_step: Span::from_ms(1),
        warm_connections: 0,
        arbiter: Policy::default(),
        class: 0,
        control: CubicConfig {
            growth: CubicGrowth::Counted { first_limit: 20 },
            reno_friendly: false,
            ..CubicConfig::default()
        },
        ..TcpConfig::default()
    };
    let end = Time::from_ms(100);
    let ours = Ensemble::new(|seed| {
        let transport = Tcp::<Cubic>::new(config);
        run(transport, &queue, NS3, 10_000, end, (seed, HOST_JITTER))
    });
    close("goodput", ours.mean(|r| r.goodput_gbps), 9.637, 0.096);
    ours.admits("mean queue", |r| r.queue_mean, 31.9, 3.2);
    // Alone, ns-3's first flow grows its window into its own interface's queue for 10 ms. Hosts
    // here are asked for packets and have no such queue, so the window that the second flow meets
    // is another one.
    close(
        "longest queue",
        ours.mean(|r| r.queue_max.into()),
        36.0,
        7.2,
    );
    // Which flow CoDel's few marks meet is left to chance, and the shares last for tens of
    // milliseconds: one start's share is no property of the scheme.
    ours.admits("Jain", |r| r.jain_of_both, 0.891, 0.02);
    let shares = || ours.0.iter().map(|r| r.jain_of_both);
    let spread = shares().fold(0.0, f64::max) - shares().fold(1.0, f64::min);
    assert!(spread > 0.05, "{spread}");
}

/// ns-2's router begins with an interval of 50 ms without any grants: 1.2 % of the goodput of 4 s.
/// Its flows begin with one packet, and later intervals are 1 ms long.
#[test]
fn xcp_is_as_in_ns_2() {
    let queue = QueueConfig::Xcp(xcp::Config {
        control: XcpConfig {
            first_interval: Delay::from_ms(50),
            idle_interval: Some(Delay::from_ms(50)),
            least_interval: Delay::from_ms(1),
            ..XcpConfig::default()
        },
        limit: Limit::packets(1_000),
    });
    let framing = Framing {
        mss_bytes: 1_460,
        header_bytes: 40,
        min_wire_bytes: 40,
    };
    let end = Time::from_ms(4_000);
    let transport = Tcp::<Xcp>::new(TcpConfig {
        initial_window_packets: 1,
        ..TcpConfig::default()
    });
    // Nothing is marked or lost, so that no phase decides anything.
    let chance = (1, Span::ZERO);
    let ours = run(transport, &queue, framing, 10_000, end, chance);
    close("goodput", ours.goodput_gbps, 9.612, 0.0096);
    close("Jain", ours.jain, 1.0, 0.02);
    assert_eq!((ours.queue_max, ours.drops), (2, 0));
    // The least whole number of packets that keeps the link busy is in flight, and those not on
    // wires wait: a round trip of 60 µs, three packets of 1.2 µs and three acknowledgements of
    // 0.032 µs. ns-2 has 0.71.
    let on_wires = (60.0 + 3.0 * 1.2 + 3.0 * 0.032) / 1.2;
    close("mean queue", ours.queue_mean, 54.0 - on_wires, 0.02);
}
