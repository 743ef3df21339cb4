//! Simulation by regions, window by window, and by several threads, against the whole fabric at
//! once: equal results to the last picosecond for any number of either, whatever is left to chance.

use proptest::prelude::*;
use ratewright_simfabric::bench;
use ratewright_simfabric::experiment::contenders::{FLOWTUNE, PAPER, contender};
use ratewright_simfabric::experiment::{ExperimentError, Settings};
use ratewright_simfabric::net::deflection::Deflection;
use ratewright_simfabric::net::mmu::{Lossless, SharedBuffer, USUAL_WATCHDOG, Xoff};
use ratewright_simfabric::net::queue::{ClassMask, Limit, RedConfig, red, rpm};
use ratewright_simfabric::net::{FabricConfig, QueueConfig};
use ratewright_simfabric::plan::{PlannedTransport, read_transports};
use ratewright_simfabric::results::ConservationError;
use ratewright_simfabric::run::{Change, Config};
use ratewright_simfabric::scheme::SCHEMES;
use ratewright_simfabric::{FlowSpec, RunResults, Span, Time};
use ratewright_topology::{EcmpConfig, HostId, LinkId, ThreeTierClos, Topology, TwoTierClos};

/// A fabric with flows and changes, to be run with any number of regions.
#[derive(Clone, Debug)]
struct WindowScene {
    topology: Topology,
    /// Source, destination, bytes, start in ns, and stop in ns after that.
    flows: Vec<(u32, u32, u64, u64, Option<u64>)>,
    changes: Vec<(Time, Change)>,
    shared_buffer: Option<SharedBuffer>,
    sample_every: Option<Span>,
    warm_up: Time,
    /// Moments at which the run is interrupted and continued.
    ends: Vec<Time>,
    /// Four sources of chance: paths of packets, processing times, RED in place of the scheme's own
    /// queues, whose marks may go back in acknowledgements, and ports that flows are deflected to.
    spraying: bool,
    host_jitter: Span,
    red: bool,
    rpm: bool,
    deflects: bool,
}

/// Runs a scene with at most so many regions and threads.
fn run_scene(
    scene: &WindowScene,
    transport: &PlannedTransport,
    (regions, threads): (usize, usize),
) -> Result<RunResults, ExperimentError> {
    // Schemes whose hosts act on each other by more than packets must stay in one part.
    let may = ![FLOWTUNE, "flowtune", "ratewright", "ideal"].contains(&transport.label.as_str());
    let mut transport = transport.clone();
    let fabric = &mut transport.fabric;
    fabric.spraying = scene.spraying;
    fabric.host_jitter = scene.host_jitter;
    fabric.histograms = true;
    if scene.deflects {
        // A threshold and a length that these flows reach.
        fabric.deflection = Some(Deflection {
            threshold_bytes: 2_000,
            short_bytes: 100_000,
            ..Deflection::default()
        });
    }
    if scene.red {
        // Thresholds that these short flows reach.
        let control = RedConfig {
            min_packets: 1.0,
            max_packets: 5.0,
            weight: 0.1,
            ..RedConfig::default()
        };
        let limit = Limit::packets(50);
        fabric.edge = QueueConfig::Red(red::Config { control, limit });
        if scene.rpm {
            fabric.edge = QueueConfig::Rpm(rpm::Config {
                each: fabric.edge.clone().into(),
                ..rpm::Config::default()
            });
        }
        fabric.core = fabric.edge.clone();
    }
    // Sampled flows and watched links too, so that the series of both are compared.
    let config = Config {
        seed: 5,
        changes: scene.changes.clone(),
        sample_every: scene.sample_every,
        sampled_flows: 4,
        watched: vec![LinkId(0), LinkId(3)],
        warm_up: scene.warm_up,
        regions: Some(regions),
        threads,
        ..Config::default()
    };
    // Starts are distances from the flow before, so that shrinking keeps them in order.
    let mut start_ns = 0;
    let flows = scene
        .flows
        .clone()
        .into_iter()
        .map(move |(src, dst, bytes, after_ns, stop)| {
            start_ns += after_ns;
            let mut spec = FlowSpec::new(HostId(src), HostId(dst), bytes, Time::from_ns(start_ns));
            if let Some(stop) = stop {
                spec.stop = Time::from_ns(start_ns + stop);
            }
            spec
        });
    let mut sim = transport.start(config, &scene.topology, Box::new(flows))?;
    // Otherwise the test would compare a run with itself.
    assert_eq!(sim.regions() > 1, may && regions > 1);
    assert_eq!(sim.threads() > 1, may && regions > 1 && threads > 1);
    for end in &scene.ends {
        sim.run_until(*end)?;
    }
    let records = sim.results();
    // Routes that go up and then down have no circle (Dally and Seitz 1987). Those of deflected
    // packets, and round what failed, may have one.
    let is_rate = |change: &(Time, Change)| matches!(change.1, Change::Rate { .. });
    if !scene.deflects && scene.changes.iter().all(is_rate) {
        assert_eq!(records.deadlock, None);
    }
    match records.conservation {
        // Queues of most schemes drop on their own; some links are longer than the headroom.
        Ok(()) | Err(ConservationError::Lossless { .. }) => Ok(records),
        Err(error) => Err(error.into()),
    }
}

/// Results that must not depend on the regions. Numbers of events and of packets in memory may.
fn results(records: &RunResults) -> String {
    // Field by field, so that a new field must be thought of here.
    let RunResults {
        now,
        flows,
        flows_high_water: _,
        ports,
        switches,
        series,
        packet_hops,
        events: _,
        control,
        no_route,
        retransmits,
        packets_high_water: _,
        deadlock,
        storms,
        transport,
        findings,
        conservation,
    } = records;
    format!(
        "{now:?}\n{flows:#?}\n{ports:#?}\n{switches:#?}\n{series:#?}\n{packet_hops} {control:?} {no_route:?} {retransmits} {transport:?} {findings:?} {conservation:?} {deadlock:?} {storms:?}"
    )
}

fn topology(symmetric: bool) -> impl Strategy<Value = Topology> {
    let ecmp = EcmpConfig { seed: 1, symmetric };
    let two = (2_u32..5, 1_u32..4, 1_u32..4, 1_u64..3_000, 1_u64..3_000).prop_map(
        move |(racks, hosts_per_rack, spines, host_delay_ns, fabric_delay_ns)| {
            TwoTierClos {
                racks,
                hosts_per_rack,
                spines,
                host_capacity_bps: 10_000_000_000,
                fabric_capacity_bps: 40_000_000_000,
                host_delay_ns,
                fabric_delay_ns,
                ecmp,
                ..TwoTierClos::default()
            }
            .build()
        },
    );
    let three = (2_u32..4, 1_u32..3, 1_u32..3, 1_u64..2_000).prop_map(
        move |(pods, racks_per_pod, hosts_per_rack, delay_ns)| {
            ThreeTierClos {
                pods,
                racks_per_pod,
                hosts_per_rack,
                aggs_per_pod: 2,
                cores: 4,
                host_capacity_bps: 100_000_000_000,
                fabric_capacity_bps: 100_000_000_000,
                core_capacity_bps: 100_000_000_000,
                host_delay_ns: delay_ns / 2,
                fabric_delay_ns: delay_ns,
                core_delay_ns: delay_ns,
                ecmp,
                ..ThreeTierClos::default()
            }
            .build()
        },
    );
    prop_oneof![two, three].prop_map(|topology| topology.expect("a topology"))
}

/// No buffer that is shared, one that drops, and ones that pause, by both kinds of threshold.
fn shared_buffer() -> impl Strategy<Value = Option<SharedBuffer>> {
    fn lossless(xoff: Xoff) -> Lossless {
        Lossless {
            classes: ClassMask::of(0),
            xoff,
            hysteresis_bytes: 1_600,
            headroom_bytes: 60_000,
            watchdog: USUAL_WATCHDOG,
        }
    }
    let xoff = prop_oneof![
        Just(None),
        (1_500_u64..20_000).prop_map(|bytes| Some(lossless(Xoff::Bytes(bytes)))),
        (0.05_f64..0.5).prop_map(|alpha| Some(lossless(Xoff::Alpha(alpha)))),
    ];
    let buffer = (10_000_u64..100_000, xoff).prop_map(|(bytes, lossless)| SharedBuffer {
        bytes,
        alpha: 1.0,
        lossless,
    });
    prop::option::weighted(0.7, buffer)
}

fn scene(symmetric: bool) -> impl Strategy<Value = WindowScene> {
    topology(symmetric).prop_flat_map(|topology| {
        let hosts = topology.hosts().len() as u32;
        let links = topology.links().len() as u32;
        // Starts at multiples of 500 ns, so that ties between regions are frequent.
        let flow = (
            0..hosts,
            1..hosts,
            1_u64..200_000,
            (0_u64..8).prop_map(|n| n * 500),
            prop::option::weighted(0.2, 0_u64..60_000),
        )
            .prop_map(move |(src, by, bytes, after, stop)| {
                (src, (src + by) % hosts, bytes, after, stop)
            });
        let change = (0_u64..150_000, 0..links, 0_u32..3).prop_map(|(at_ns, link, what)| {
            let link = LinkId(link);
            let change = match what {
                0 => Change::Link { link, up: false },
                1 => Change::Link { link, up: true },
                _ => Change::Rate {
                    link,
                    rate_bps: 25_000_000_000,
                },
            };
            (Time::from_ns(at_ns), change)
        });
        (
            Just(topology),
            prop::collection::vec(flow, 1..20),
            prop::collection::vec(change, 0..6),
            shared_buffer(),
            prop::option::of((1_000_u64..40_000).prop_map(Span::from_ns)),
            prop_oneof![Just(Time::ZERO), (1_u64..40_000).prop_map(Time::from_ns)],
            prop::collection::btree_set(1_u64..300_000_000, 1..4),
            (any::<bool>(), 0_u64..3, any::<[bool; 2]>(), any::<bool>()),
        )
            .prop_map(
                |(topology, flows, changes, shared_buffer, sample_every, warm_up, ends, chance)| {
                    let (spraying, jitter, [red, rpm], deflects) = chance;
                    WindowScene {
                        topology,
                        flows,
                        changes,
                        shared_buffer,
                        sample_every,
                        warm_up,
                        ends: ends.into_iter().map(Time).collect(),
                        spraying,
                        host_jitter: Span::from_ns(100 * jitter),
                        red,
                        rpm,
                        deflects,
                    }
                },
            )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_number_of_regions_or_threads_changes_nothing(
        scene in scene(false),
        scheme in 0_usize..PAPER.len(),
        regions in prop_oneof![2_usize..8, Just(usize::MAX)],
        threads in 1_usize..5,
    ) {
        let settings = Settings { first_seed: 5, seed_count: 1, quick: true, set: Vec::new(), store: None };
        let contender = contender(PAPER[scheme], &scene.topology, &settings);
        let mut transport = contender.expect("a transport");
        transport.fabric.shared_buffer = scene.shared_buffer;
        let run = |parts| run_scene(&scene, &transport, parts).expect("a run");
        let (several, one) = (results(&run((regions, threads))), results(&run((1, 1))));
        // The first line that differs: the whole text would be thousands.
        if several != one {
            let differ = several.lines().zip(one.lines()).find(|(s, o)| s != o);
            prop_assert!(false, "{}: {differ:?}", transport.label);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// No scheme differs either, over the queues and buffers that each needs. Some read the path
    /// of their data from acknowledgements, which must come back by it.
    #[test]
    fn no_scheme_depends_on_regions_or_threads(
        scene in scene(true),
        scheme in 0_usize..SCHEMES.len(),
        regions in prop_oneof![2_usize..8, Just(usize::MAX)],
        threads in 1_usize..5,
    ) {
        let text = format!("[[transport]]\nname = \"{}\"\n", SCHEMES[scheme].name);
        let fabric = FabricConfig::default();
        let transports = read_transports(&text, "registry", &scene.topology, fabric, &[]);
        let transport = transports.expect("a scheme with its defaults").swap_remove(0);
        let scene = WindowScene { red: false, ..scene };
        let run = |parts| run_scene(&scene, &transport, parts).expect("a run");
        let (several, one) = (results(&run((regions, threads))), results(&run((1, 1))));
        if several != one {
            let differ = several.lines().zip(one.lines()).find(|(s, o)| s != o);
            prop_assert!(false, "{}: {differ:?}", transport.label);
        }
    }
}

/// The number of the fabric's links decides between one region and several.
#[test]
fn large_fabrics_go_in_windows_by_themselves() {
    for (hosts, windows) in [(128, false), (686, true)] {
        let topology = bench::fabric(hosts, false).expect("a fabric");
        let transport = bench::transport(&topology, None).expect("a transport");
        let flows = Box::new(bench::permutation(hosts));
        let sim = transport.start(Config::default(), &topology, flows);
        let sim = sim.expect("a run");
        assert_eq!(sim.regions() > 1, windows, "{hosts} hosts");
    }
}
