//! Dart's deflection on random fat trees whose links and switches fail (§IV): messages stay in
//! order, nothing is lost but by failures, and escape lanes keep buffers from waiting in a circle.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use ratewright_simfabric::plan::{PlannedTransport, read_transports};
use ratewright_simfabric::results::{RunResults, SwitchResult};
use ratewright_simfabric::run::{Change, EndReason};
use ratewright_simfabric::scheme::Run;
use ratewright_simfabric::{Config, FabricConfig, FlowSpec, Framing, HostId, Span, Time};
use ratewright_topology::{Node, ThreeTierClos, Topology};

const RATE_BPS: u64 = 10_000_000_000;
/// Buffers that are small enough for many pauses: ten packets of a port and class.
const SMALL_BUFFERS: &str = "xoff_bytes = 12000\nhysteresis_bytes = 3000\nwatchdog = \"1ms\"\n\
                             deflection_bytes = 4000\nmark_bytes = 100000\n";

fn transport(topology: &Topology, settings: &str) -> PlannedTransport {
    let text = format!("[[transport]]\nname = \"dart\"\n{SMALL_BUFFERS}{settings}");
    let fabric = FabricConfig {
        framing: Framing {
            mss_bytes: 1_000,
            header_bytes: 48,
            min_wire_bytes: 60,
        },
        host_delay: Span::ZERO,
        ..FabricConfig::default()
    };
    let transports = read_transports(&text, "dart", topology, fabric, &[]);
    let transports = transports.expect("a transport");
    transports.into_iter().next().expect("one transport")
}

/// A fat tree of two to four pods, with more capacity at hosts than above them.
fn fat_tree(rng: &mut StdRng) -> Topology {
    let aggs_per_pod = rng.random_range(2..=3);
    ThreeTierClos {
        pods: rng.random_range(2..=4),
        racks_per_pod: rng.random_range(1..=3),
        hosts_per_rack: rng.random_range(2..=6),
        aggs_per_pod,
        cores: aggs_per_pod * rng.random_range(1..=2),
        host_capacity_bps: RATE_BPS,
        fabric_capacity_bps: RATE_BPS,
        core_capacity_bps: RATE_BPS,
        host_delay_ns: 500,
        fabric_delay_ns: 500,
        core_delay_ns: 500,
        ..ThreeTierClos::default()
    }
    .build()
    .expect("a fat tree")
}

/// Short messages in bursts, and some long ones, between random hosts.
fn messages(rng: &mut StdRng, hosts: u32) -> Vec<FlowSpec> {
    let mut flows = Vec::new();
    for round in 0..6_u64 {
        for src in 0..hosts {
            for _ in 0..rng.random_range(0..4_u32) {
                let dst = (src + rng.random_range(1..hosts)) % hosts;
                let long = rng.random_range(0..8_u32) == 0;
                let bytes = if long {
                    rng.random_range(20_000..80_000)
                } else {
                    rng.random_range(1..=8_192)
                };
                let at = Time::from_us(30 * round + rng.random_range(0..10));
                flows.push(FlowSpec::new(HostId(src), HostId(dst), bytes, at));
            }
        }
    }
    flows.sort_by_key(|flow| flow.start);
    flows
}

/// Up to three links or switches that fail for a while. Leaves stay, and so does a way.
fn failures(rng: &mut StdRng, topology: &Topology) -> Vec<(Time, Change)> {
    let mut changes = Vec::new();
    let fabric: Vec<_> = (topology.links().iter())
        .filter(|link| matches!((link.from, link.to), (Node::Switch(_), Node::Switch(_))))
        .map(|link| link.id)
        .collect();
    for _ in 0..rng.random_range(1..=3_u32) {
        let link = fabric[rng.random_range(0..fabric.len())];
        let down = Time::from_us(rng.random_range(5..150));
        let up = down + Span::from_us(rng.random_range(20..200));
        if rng.random_range(0..3_u32) == 0 {
            let Node::Switch(switch) = topology.links()[link.index()].to else {
                continue;
            };
            if topology.racks().iter().any(|rack| rack.leaf == switch) {
                continue;
            }
            changes.push((down, Change::Switch { switch, up: false }));
            changes.push((up, Change::Switch { switch, up: true }));
        } else {
            changes.push((down, Change::Link { link, up: false }));
            changes.push((up, Change::Link { link, up: true }));
        }
    }
    changes.sort_by_key(|change| change.0);
    changes
}

struct Outcome {
    end: EndReason,
    results: RunResults,
    overtaken: f64,
}

fn run(
    topology: &Topology,
    settings: &str,
    seed: u64,
    flows: Vec<FlowSpec>,
    changes: Vec<(Time, Change)>,
) -> Outcome {
    let config = Config {
        seed,
        changes,
        ..Config::default()
    };
    let mut run: Box<dyn Run> = transport(topology, settings)
        .start(config, topology, Box::new(flows.into_iter()))
        .expect("a run");
    let end = run.run_until(Time::MAX).expect("a run");
    let counters = run.counters();
    let overtaken = counters.iter().find(|(key, _)| *key == "overtaken");
    Outcome {
        end,
        results: run.results(),
        overtaken: overtaken.expect("a counter").1,
    }
}

fn deflected(results: &RunResults) -> u64 {
    let of = |switch: &SwitchResult| switch.deflections.messages;
    results.switches.iter().map(of).sum()
}

/// A fat tree, its messages, and what fails, by a seed.
struct Case {
    topology: Topology,
    flows: Vec<FlowSpec>,
    changes: Vec<(Time, Change)>,
    seed: u64,
}

/// Ten loads on each of a hundred fat trees.
fn cases() -> impl Iterator<Item = Case> {
    (0..1_000).map(|seed| {
        let topology = fat_tree(&mut StdRng::seed_from_u64(seed / 10));
        let mut rng = StdRng::seed_from_u64(1_000_000 + seed);
        let flows = messages(&mut rng, topology.hosts().len() as u32);
        let changes = failures(&mut rng, &topology);
        Case {
            topology,
            flows,
            changes,
            seed,
        }
    })
}

/// A thousand runs on networks that stay whole: no packet overtakes another of its message, none is
/// lost, every message arrives, and buffers never wait in a circle.
#[test]
fn deflected_messages_stay_in_order_on_random_fat_trees() {
    let mut all = 0;
    for case in cases() {
        let outcome = run(&case.topology, "", case.seed, case.flows, Vec::new());
        let results = &outcome.results;
        assert_eq!(outcome.end, EndReason::Idle, "seed {}", case.seed);
        assert_eq!((outcome.overtaken, results.drops()), (0.0, 0));
        assert!(results.flows.iter().all(|flow| flow.fct().is_some()));
        all += deflected(results);
    }
    assert!(all > 100_000, "{all} messages were deflected");
}

/// A thousand runs while links and switches fail and return: what was on its way on another route
/// than the present one is lost, nothing is overtaken, and every message arrives by repetition.
#[test]
fn failures_lose_packets_and_never_their_order() {
    let (mut all, mut lost) = (0, 0);
    for case in cases() {
        let outcome = run(&case.topology, "", case.seed, case.flows, case.changes);
        let results = &outcome.results;
        assert_eq!(outcome.end, EndReason::Idle, "seed {}", case.seed);
        assert_eq!(outcome.overtaken, 0.0, "seed {}", case.seed);
        assert!(results.flows.iter().all(|flow| flow.fct().is_some()));
        all += deflected(results);
        lost += results.drops();
    }
    assert!(
        all > 50_000 && lost > 10_000,
        "{all} deflected, {lost} lost"
    );
}

/// The first hundred of these in one lane: deflection leads messages down and up again, by which
/// buffers come to wait in a circle. The run ends there, and names the links of the circle.
#[test]
fn without_escape_lanes_buffers_wait_in_a_circle() {
    let mut dead = 0;
    for case in cases().take(100) {
        let outcome = run(
            &case.topology,
            "escape = false",
            case.seed,
            case.flows,
            Vec::new(),
        );
        if outcome.end == EndReason::Deadlock {
            let deadlock = outcome.results.deadlock.expect("it is in the results");
            let levels = |at: usize| {
                let link = &case.topology.links()[deadlock.cycle[at].link.index()];
                (link.from, link.to)
            };
            let next = |at: usize| (at + 1) % deadlock.cycle.len();
            assert!((0..deadlock.cycle.len()).all(|at| levels(at).1 == levels(next(at)).0));
            dead += 1;
        }
    }
    assert!(dead >= 1, "no run locked up without lanes");
}
