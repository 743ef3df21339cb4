//! No allocation per packet in steady state: once a run's tables have grown, packets reuse their
//! places.
//!
//! The remaining allocations are tables that double at a new highest level (packets in flight,
//! pending events, gaps at a receiver). They are a few in all, however long the run.

use allocation_counter::measure;
use ratewright_simfabric::Time;
use ratewright_simfabric::bench;
use ratewright_simfabric::experiment::contenders::{FLOWTUNE, contender, contenders};
use ratewright_simfabric::experiment::{ExperimentError, Settings, scene};
use ratewright_simfabric::flow::FlowSpec;
use ratewright_simfabric::net::FabricConfig;
use ratewright_simfabric::plan::{PlannedTransport, read_transports};
use ratewright_simfabric::run::Config;
use ratewright_simfabric::scheme::Run;
use ratewright_simfabric::workload::{FlowStream, Poisson, SizeDistribution};
use ratewright_topology::{EcmpConfig, HostId, Topology, TwoTierClos};

use crate::golden::schemes::{OTHERS, RDMA};

/// Most doublings of tables in a span. An allocation for every hundredth packet would be thousands.
const DOUBLINGS: u64 = 8;

/// Most allocations per flowlet, at its begin and end, however many control messages concern it.
const PER_FLOWLET: u64 = 3;

/// Counts over a span of a run.
#[derive(Debug)]
struct SpanCounts {
    allocations: u64,
    hops: u64,
    /// Flows that began.
    flows: u64,
    /// Datagrams, or segments, of the control plane in the whole run.
    control: f64,
    drops: u64,
}

/// Runs to the begin of a span, and counts until its end.
fn count_over(sim: &mut dyn Run, from: Time, to: Time) -> Result<SpanCounts, ExperimentError> {
    sim.run_until(from)?;
    // Nothing else may run in the closure: the counter sees every allocation of this thread.
    let before = sim.progress();
    let mut ran = None;
    let allocations = measure(|| ran = Some(sim.run_until(to))).count_total;
    ran.expect("it ran")?;
    let after = sim.progress();
    let results = sim.results();
    results.conservation?;
    let control = results.transport.iter();
    Ok(SpanCounts {
        allocations,
        hops: after.packet_hops - before.packet_hops,
        flows: after.started - before.started,
        control: control
            .filter(|(name, _)| {
                name.starts_with("control_datagrams_to")
                    || name.starts_with("control_datagrams_from")
            })
            .map(|(_, count)| count)
            .sum(),
        drops: results.drops(),
    })
}

#[test]
fn the_count_counts() {
    let counted = measure(|| {
        let mut words = std::hint::black_box(vec![1_u64]);
        words.reserve_exact(100);
        std::hint::black_box(words);
    });
    assert_eq!(counted.count_total, 2);
}

/// The permutation of `simfabric bench`, in one part and in windows.
#[test]
fn a_dctcp_permutation_does_not_allocate_per_packet() {
    for regions in [1, usize::MAX] {
        // The first 0.5 ms let the tables grow to their level; the span counted begins there.
        let hosts = 16;
        let topology = bench::fabric(hosts, false).expect("a fabric");
        let config = Config {
            seed: 1,
            regions: Some(regions),
            ..Config::default()
        };
        let transport = bench::transport(&topology, None).expect("a transport");
        let flows = Box::new(bench::permutation(hosts));
        let mut run = transport.start(config, &topology, flows).expect("a run");
        let counts = count_over(&mut *run, Time::from_us(500), Time::from_us(1_600));
        let counts = counts.expect("it runs");
        println!("{regions} regions: {counts:?}");
        assert!(counts.hops > 1_000_000, "{regions} regions: {counts:?}");
        assert!(
            counts.allocations <= DOUBLINGS,
            "{regions} regions: {counts:?}"
        );
    }
}

/// The paper's parameters, but for these.
fn settings(options: &[&str]) -> Settings {
    Settings {
        first_seed: 7,
        seed_count: 1,
        quick: true,
        set: options
            .iter()
            .map(|o| o.parse().expect("a setting"))
            .collect(),
        store: None,
    }
}

/// Counts of a run from 20 to 60 ms.
fn settled(
    topology: &Topology,
    transport: &PlannedTransport,
    flows: FlowStream,
) -> Result<SpanCounts, ExperimentError> {
    let mut transport = transport.clone();
    transport.fabric.histograms = false;
    let config = Config {
        seed: 7,
        ..Config::default()
    };
    let mut run = transport.start(config, topology, flows)?;
    count_over(&mut *run, Time::from_ms(20), Time::from_ms(60))
}

/// Eight hosts send without end to two, so that queues are full and lossy schemes lose packets.
fn four_to_one() -> FlowStream {
    let rack = scene::HOSTS_PER_RACK;
    Box::new((0..8).map(move |i| {
        let (src, dst) = (HostId(i), HostId(rack + i % 2));
        FlowSpec::new(src, dst, FlowSpec::UNBOUNDED, Time::from_us(u64::from(i)))
    }))
}

/// Flowlets come and go, which makes much control traffic.
fn flowlets(topology: &Topology) -> FlowStream {
    let hosts = topology.hosts().len() as u32;
    let sizes = SizeDistribution::constant(60_000);
    let window = (Time::ZERO, Time::from_ms(60));
    Box::new(Poisson::new(hosts, 10_000_000_000, 0.6, sizes, window, 7).expect("flows"))
}

/// Allocations of both carriers are in proportion to flowlets, not to messages about them.
#[test]
fn control_traffic_does_not_allocate_per_message() {
    let topology = scene::topology(2).expect("a topology");
    for control in ["flowtune.control=datagram", "flowtune.control=tcp"] {
        let transport = contender(FLOWTUNE, &topology, &settings(&[control])).expect("a transport");
        let counts = settled(&topology, &transport, flowlets(&topology));
        let counts = counts.expect("it runs");
        println!("{control}: {counts:?}");
        // Enough flowlets, and several messages for each, for the bound to mean something.
        assert!(counts.flows > 10_000, "{control}: {counts:?}");
        assert!(
            counts.control > 8.0 * counts.flows as f64,
            "{control}: {counts:?}"
        );
        assert!(
            counts.allocations <= PER_FLOWLET * counts.flows,
            "{control}: {counts:?}"
        );
    }
}

/// Schemes with and without losses, with headers in side tables, and with a control plane.
#[test]
fn no_scheme_allocates_per_packet() {
    let topology = scene::topology(2).expect("a topology");
    let mut transports = contenders(&topology, &settings(&[])).expect("transports");
    let others = read_transports(OTHERS, "others", &topology, FabricConfig::default(), &[]);
    transports.extend(others.expect("transports"));
    for transport in &transports {
        let name = transport.label.as_str();
        let counts = settled(&topology, transport, four_to_one()).expect("it runs");
        println!("{name}: {counts:?}");
        assert!(counts.hops > 500_000, "{name}: {counts:?}");
        assert!(counts.allocations <= DOUBLINGS, "{name}: {counts:?}");
        // A run that should lose packets and does not would leave retransmissions untested.
        let lossy = matches!(name, "pFabric" | "sfqCoDel" | "NewReno" | "CUBIC");
        assert_eq!(counts.drops > 0, lossy, "{name}: {counts:?}");
    }
}

/// Queue pairs with telemetry, notifications, notices of switches, pauses and losses.
#[test]
fn no_rdma_scheme_allocates_per_packet() {
    let topology = TwoTierClos {
        ecmp: EcmpConfig {
            seed: 0,
            symmetric: true,
        },
        racks: 2,
        hosts_per_rack: scene::HOSTS_PER_RACK,
        host_capacity_bps: 10_000_000_000,
        fabric_capacity_bps: 40_000_000_000,
        ..TwoTierClos::default()
    };
    let topology = topology.build().expect("a topology");
    for more in [
        "xoff_bytes = 30000",
        "lossless = false\nbuffer_bytes = 60000",
    ] {
        let text = RDMA.replace("[[transport]]", &format!("[[transport]]\n{more}"));
        let fabric = FabricConfig::default();
        let transports = read_transports(&text, "rdma", &topology, fabric, &[]);
        for transport in transports.expect("transports") {
            let name = transport.label.as_str();
            let counts = settled(&topology, &transport, four_to_one()).expect("it runs");
            println!("{name}: {counts:?}");
            assert!(counts.hops > 100_000, "{name}: {counts:?}");
            assert!(counts.allocations <= DOUBLINGS, "{name}: {counts:?}");
        }
    }
}
