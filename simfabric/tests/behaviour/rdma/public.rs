//! Figures of public simulators, on their networks and with their parameters.
//!
//! HPCC's is alibaba-edu/High-Precision-Congestion-Control at 9f4be2a, PowerTCP's is
//! inet-tub/ns3-datacenter at 6ddb4a4; the figures are of runs on 22 November 2026. Their packets
//! take whole nanoseconds on links.

use std::ops::ControlFlow;
use std::path::Path;

use ratewright_simfabric::net::Telemetry;
use ratewright_simfabric::net::queue::{Limit, ecn_ramp};
use ratewright_simfabric::plan::{Overrides, RunPlan, TransportRun};
use ratewright_simfabric::transport::rdma::control::{
    Control, Dcqcn, DcqcnConfig, Hpcc, HpccConfig, PowerTcp, PowerTcpConfig, Reaction,
    ThetaPowerTcp, Timely, TimelyConfig,
};
use ratewright_simfabric::transport::rdma::{Rdma, RdmaConfig};
use ratewright_simfabric::{
    Config, FabricConfig, FlowId, FlowSpec, Framing, QueueConfig, Sim, Span, Time,
};
use ratewright_topology::{EcmpConfig, Topology, TwoTierClos};

use super::{DELAY_NS, FRAMING, Fixed, RATE_BPS, config, flow, run, star};

/// Parameters of a scheme with HPCC's header and this T in nanoseconds.
fn telemetric<C>(base_rtt_ns: u64, control: C) -> RdmaConfig<C> {
    RdmaConfig {
        int_bytes: 42,
        ack_wire_bytes: Some(46),
        base_rtt: Span::from_ns(base_rtt_ns),
        ..config(control)
    }
}

/// Hosts 0 and 1 behind three switches from hosts 2 and 3.
fn dumbbell(rate_bps: u64) -> Topology {
    TwoTierClos {
        racks: 2,
        hosts_per_rack: 2,
        spines: 1,
        host_capacity_bps: rate_bps,
        fabric_capacity_bps: rate_bps,
        host_delay_ns: DELAY_NS,
        fabric_delay_ns: DELAY_NS,
        ecmp: EcmpConfig {
            symmetric: true,
            ..EcmpConfig::default()
        },
        ..TwoTierClos::default()
    }
    .build()
    .expect("a dumbbell")
}

/// HPCC with additive steps of 40 Mbit/s at 100 Gbit/s.
pub(super) fn hpcc(max_stage: u32) -> HpccConfig {
    HpccConfig {
        eta: 0.95,
        max_stage,
        increase_share: 0.0004,
        min_rate_bps: 1e9,
        per_ack: true,
    }
}

/// TIMELY without a window.
pub(super) fn timely() -> TimelyConfig {
    TimelyConfig {
        low: Span::from_us(50),
        high: Span::from_us(500),
        least_rtt: Span::from_us(20),
        weight: 0.875,
        beta: 0.8,
        increase_share: 0.001,
        hyper_share: 0.005,
        min_rate_bps: 1e9,
        patched: false,
        window: false,
        keep_turns: true,
    }
}

/// Sizes of the lone flows, in bytes.
const LONE_BYTES: [u64; 5] = [1_000, 10_000, 64_000, 1_000_000, 10_000_000];

/// Times from the start of a lone flow of each size to its last acknowledgement, in nanoseconds.
fn lone<C: Control>(topology: &Topology, to: u32, rdma: &RdmaConfig<C::Config>) -> [u64; 5] {
    let fabric = FabricConfig {
        framing: FRAMING,
        telemetry: C::TELEMETRY,
        whole_ns: true,
        ..FabricConfig::default()
    };
    LONE_BYTES.map(|bytes| {
        let flows = vec![flow(0, to, bytes)];
        let (topology, fabric) = (topology.clone(), fabric.clone());
        let results = run::<C>(topology, fabric, rdma.clone(), flows, Time::from_ms(10));
        let known = results.flows[0].acknowledged.expect("acknowledged");
        known.as_ns()
    })
}

/// Over one switch and over three: HPCC's public simulator with DCQCN's packets and TIMELY's, whose
/// lone flows never leave the line's rate, and with HPCC.
///
/// HPCC's long flows are paced, there in whole nanoseconds and by telemetry in units of 512 bytes:
/// they are up to 235 ns off.
#[test]
fn lone_flows_complete_in_the_public_simulators_nanoseconds() {
    let stamped = RdmaConfig {
        stamp_bytes: 8,
        ..config(timely())
    };
    let at_line = config((1.0, u64::MAX));
    let (one, three) = (star(2), dumbbell(RATE_BPS));
    for (name, ours, theirs, later) in [
        (
            "DCQCN's packets, one switch",
            lone::<Fixed>(&one, 1, &at_line),
            [6_174, 6_921, 11_403, 89_091, 836_091],
            [0; 5],
        ),
        (
            "DCQCN's packets, three switches",
            lone::<Fixed>(&three, 2, &at_line),
            [12_348, 13_095, 17_577, 95_265, 842_265],
            [0; 5],
        ),
        (
            "TIMELY, one switch",
            lone::<Timely>(&one, 1, &stamped),
            [6_176, 6_932, 11_468, 90_092, 846_092],
            [0; 5],
        ),
        (
            "TIMELY, three switches",
            lone::<Timely>(&three, 2, &stamped),
            [12_352, 13_108, 17_644, 96_268, 852_268],
            [0; 5],
        ),
        (
            "HPCC, one switch",
            lone::<Hpcc>(&one, 1, &telemetric(6_160, hpcc(0))),
            [6_188, 6_971, 11_669, 97_735, 923_478],
            [0, 0, 0, 3, -13],
        ),
        (
            "HPCC, three switches",
            lone::<Hpcc>(&three, 2, &telemetric(12_320, hpcc(0))),
            [12_376, 13_159, 17_857, 103_607, 929_305],
            [0, 0, 0, 143, 235],
        ),
    ] {
        let apart = ours.iter().zip(theirs);
        let apart: Vec<i64> = apart.map(|(ours, theirs)| *ours as i64 - theirs).collect();
        assert_eq!(apart, later, "{name}");
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

/// Runs the transport of a label.
fn run_plan(plan: &RunPlan, label: &str) -> TransportRun {
    let transport = plan.transports.iter().find(|t| t.label == label);
    let never = |_| ControlFlow::Continue(());
    let run = plan.run(transport.expect("it is in the plan"), never);
    run.expect("a good run")
}

/// Switches of 2 MiB.
///
/// 17 ports have a reserve of 56,250 bytes each for what comes after XOFF, and one of 4,096 bytes
/// that counts before the shared 1,071,270. Here all of it is shared: the threshold of sixteen
/// ports at once, a 24th of it, is the same with 24 times 4,096 more.
const SMALL_BUFFER: (&str, &str) = (
    "[[transport]]",
    "[[transport]]\nbuffer_bytes = 1169574\nheadroom_bytes = 56250",
);

/// Sixteen senders at once.
struct Incast {
    /// First, median and last time of a flow's last acknowledgement, in µs.
    took_us: [f64; 3],
    queue_kb: f64,
    pauses: u64,
}

fn incast(plan: &RunPlan, label: &str) -> Incast {
    let TransportRun { summary, results } = run_plan(plan, label);
    assert_eq!(summary.drops, 0, "{label}");
    let flows = results.flows.iter();
    let known = flows.map(|flow| flow.acknowledged.expect("acknowledged"));
    let mut took_us: Vec<f64> = known.map(|at| at.as_us_f64()).collect();
    took_us.sort_by(f64::total_cmp);
    let [first, .., last] = took_us[..] else {
        panic!("sixteen flows")
    };
    Incast {
        took_us: [first, f64::midpoint(took_us[7], took_us[8]), last],
        queue_kb: summary.queue_bytes.max / 1e3,
        pauses: summary.pauses.count,
    }
}

/// Notes a measure that is more than a share away from theirs.
fn compare(wrong: &mut Vec<String>, what: &str, ours: f64, theirs: f64, share: f64) {
    println!("{what}: {ours:.2} / {theirs}");
    if (ours / theirs - 1.0).abs() > share {
        wrong.push(format!("{what}: {ours} for {theirs}"));
    }
}

/// Flows that fit into a round trip test framing and link times alone: each time and the queue
/// within 1 %. A small buffer pauses each sender once, when all is out.
#[test]
fn short_incasts_take_the_public_simulators_times() {
    let name = "rdma-incast-64kb.toml";
    let (large, small) = (planned(name, &[]), planned(name, &[SMALL_BUFFER]));
    let mut wrong = Vec::new();
    for (labels, took_us, queue_kb) in [
        (
            &["hp", "hpmi5", "power", "theta"][..],
            [93.9, 94.6, 95.2],
            1_042.0,
        ),
        (&["dcqcn", "dcqcn_paper"], [89.8, 90.5, 91.1], 1_004.0),
        (&["timely"], [90.8, 91.5, 92.1], 1_012.7),
    ] {
        for label in labels {
            for (plan, pauses) in [(&large, 0), (&small, 16)] {
                let ours = incast(plan, label);
                for (ours, theirs) in ours.took_us.into_iter().zip(took_us) {
                    compare(&mut wrong, &format!("{label}, µs"), ours, theirs, 0.01);
                }
                let what = format!("{label}, kB");
                compare(&mut wrong, &what, ours.queue_kb, queue_kb, 0.01);
                if ours.pauses != pauses {
                    wrong.push(format!("{label}: {} pauses for {pauses}", ours.pauses));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Median times within 8 %, and no pauses, but with a small buffer.
#[test]
fn long_incasts_take_the_public_simulators_times() {
    let name = "rdma-incast.toml";
    let (large, small) = (planned(name, &[]), planned(name, &[SMALL_BUFFER]));
    let mut wrong = Vec::new();
    for (label, median_us) in [
        ("hp", 1_438.0),
        ("hpmi5", 1_482.0),
        ("power", 1_424.0),
        ("theta", 1_382.0),
        ("timely", 1_349.5),
        ("dcqcn", 1_589.0),
        ("dcqcn_paper", 1_329.0),
    ] {
        let ours = incast(&large, label);
        println!("{label}: {:?} µs, {} kB", ours.took_us, ours.queue_kb);
        compare(&mut wrong, label, ours.took_us[1], median_us, 0.08);
        assert_eq!(ours.pauses, 0, "{label}");
    }
    for (label, median_us) in [("hp", 1_467.0), ("dcqcn", 1_300.0)] {
        let ours = incast(&small, label);
        println!("{label}: {:?} µs, {} pauses", ours.took_us, ours.pauses);
        compare(&mut wrong, label, ours.took_us[1], median_us, 0.08);
    }
    assert_eq!(incast(&small, "hp").pauses, 16);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Goodput in Gbit/s and mean queue in kB of so many long flows, under the seed of this draw. They
/// begin together; TIMELY's, where nothing else is drawn, within a microsecond.
fn long_flows(label: &str, count: u64, draw: u64) -> [f64; 2] {
    let apart_ns = if label == "timely" { 137 * draw } else { 0 };
    let mut changes = vec![("seed = 1".to_owned(), format!("seed = {}", 1 + draw))];
    changes.extend((1..=16).map(|src| {
        let line = format!("  {{ src = {src}, dst = 0 }},\n");
        let start_ns = src * apart_ns % 1_000;
        let shifted = format!("  {{ src = {src}, dst = 0, start = \"{start_ns}ns\" }},\n");
        (line, if src <= count { shifted } else { String::new() })
    }));
    let changes: Vec<(&str, &str)> = changes.iter().map(|(a, b)| (&**a, &**b)).collect();
    let TransportRun { summary, .. } = run_plan(&planned("rdma-long.toml", &changes), label);
    assert_eq!((summary.drops, summary.flows[0]), (0, count), "{label}");
    [summary.goodput_gbps, summary.queue_bytes.mean / 1e3]
}

/// Goodput within 1 %, mean queue within 25 % and half of the last digit. DCQCN, whose marks are
/// drawn, and TIMELY, which swings for ever, have the median of five runs.
#[test]
fn long_flows_use_a_link_as_in_the_public_simulators() {
    let mut wrong = Vec::new();
    for (label, draws, of_counts) in [
        ("hp", 1, [[87.23, 0.3], [87.23, 0.7], [87.03, 1.7]]),
        ("hpmi5", 1, [[87.06, 0.2], [87.09, 0.7], [86.75, 1.7]]),
        ("power", 1, [[87.43, 0.3], [87.41, 0.6], [87.86, 1.7]]),
        ("theta", 1, [[91.64, 3.4], [91.77, 4.0], [91.93, 5.5]]),
        (
            "timely",
            5,
            [[84.10, 195.0], [81.19, 242.0], [81.17, 415.0]],
        ),
        ("dcqcn", 5, [[94.94, 174.0], [95.73, 214.0], [95.51, 340.0]]),
        (
            "dcqcn_paper",
            5,
            [[95.27, 276.0], [95.67, 303.0], [96.39, 430.0]],
        ),
    ] {
        for (count, theirs) in [2, 4, 16].into_iter().zip(of_counts) {
            let runs: Vec<[f64; 2]> = (0..draws).map(|d| long_flows(label, count, d)).collect();
            let median = |measure: usize| {
                let mut values: Vec<f64> = runs.iter().map(|run| run[measure]).collect();
                values.sort_by(f64::total_cmp);
                values[values.len() / 2]
            };
            let (what, [gbps, kb]) = (format!("{label}, {count} flows"), theirs);
            compare(
                &mut wrong,
                &format!("{what}, Gbit/s"),
                median(0),
                gbps,
                0.01,
            );
            let last_digit = if kb < 100.0 { 0.05 } else { 0.5 };
            let share = 0.25 + last_digit / kb;
            compare(&mut wrong, &format!("{what}, kB"), median(1), kb, share);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Two flows on the dumbbell, the second 300 µs after the first.
#[derive(Clone, Copy, Debug)]
struct Joined {
    /// Time from the join until the first sender's rate is below a threshold, in µs.
    slows_after_us: f64,
    /// Largest queue, in kB.
    queue_kb: f64,
}

/// Dumbbell in which two flows meet.
struct Meeting {
    rate_bps: u64,
    telemetry: Telemetry,
    framing: Framing,
    queue: QueueConfig,
    /// Rate below which the first sender has slowed down, in bit/s.
    slow_bps: f64,
    seed: u64,
}

fn join<C: Control>(meeting: &Meeting, rdma: RdmaConfig<C::Config>) -> Joined {
    let config = Config {
        fabric: FabricConfig {
            framing: meeting.framing,
            telemetry: meeting.telemetry,
            whole_ns: true,
            ..FabricConfig::with_switch_queues(meeting.queue.clone())
        },
        seed: meeting.seed,
        ..Config::default()
    };
    let (topology, long) = (dumbbell(meeting.rate_bps), FlowSpec::UNBOUNDED);
    let mut flows = [flow(0, 2, long), flow(1, 3, long)];
    let joins = Time::from_us(300);
    flows[1].start = joins;
    let transport = Rdma::<C>::new(rdma);
    let mut sim = Sim::new(config, topology, flows.into_iter(), transport).expect("a good run");
    let mut slows_at = None;
    for step in 3_000..13_000_u64 {
        let now = Time::from_ns(step * 100);
        sim.run_until(now).expect("good flows");
        let sender = sim.sender_of(FlowId(0));
        let control = sender.and_then(|(host, slot)| host.control(slot));
        if control.expect("it sends").rate_bps() < meeting.slow_bps {
            slows_at = slows_at.or(Some(now));
        }
    }
    let results = sim.results();
    results.conservation.expect("the books are right");
    let queues = results.ports.iter().map(|port| port.stats.max_bytes);
    Joined {
        slows_after_us: slows_at.map_or(f64::INFINITY, |at| at.since(joins).as_us_f64()),
        queue_kb: queues.max().unwrap_or(0) as f64 / 1e3,
    }
}

/// Slow-down within 1 µs of the public simulators', whose link times are whole nanoseconds, and
/// largest queue within 3 %. A sender has slowed down when its rate is 2 % below the least that it
/// had there before the second flow joined. DCQCN's marks are drawn: the median of five seeds is
/// within the range of ten seeds there.
#[test]
fn two_flows_meet_as_in_the_public_simulators() {
    let power = |gamma, eta, ns| {
        telemetric(
            ns,
            PowerTcpConfig {
                gamma,
                increase_bps: 150e6,
                eta,
                tolerance: 1.05,
                min_rate_bps: 100e6,
                first_reacts: true,
            },
        )
    };
    let dcqcn = |alpha, decrease, increase| {
        config(DcqcnConfig {
            reaction: Reaction::Periodic,
            gain: 1.0 / 256.0,
            alpha_interval: Span::from_us(alpha),
            decrease_interval: Span::from_us(decrease),
            increase_interval: Span::from_us(increase),
            byte_counter: u64::MAX,
            fast_recovery: 1,
            additive_bps: 20e6,
            hyper_bps: 200e6,
            min_rate_bps: 1e9,
            window: false,
        })
    };
    let marking = QueueConfig::EcnRamp(ecn_ramp::Config {
        limit: Limit::default(),
        mark_min_bytes: 400_000,
        mark_max_bytes: 1_600_000,
        mark_probability: 0.2,
    });
    let meeting = |gbps: u64, least_gbps: f64| Meeting {
        rate_bps: gbps * 1_000_000_000,
        telemetry: Telemetry::Asked,
        framing: FRAMING,
        queue: QueueConfig::default(),
        slow_bps: 0.98e9 * least_gbps,
        seed: 1,
    };
    let header = |gbps: u64, header_bytes| Meeting {
        telemetry: Telemetry::None,
        framing: Framing {
            header_bytes,
            ..FRAMING
        },
        ..meeting(gbps, gbps as f64)
    };
    let drawn = |rdma: RdmaConfig<DcqcnConfig>| {
        let mut all: Vec<Joined> = (1..6)
            .map(|seed| {
                let meeting = Meeting {
                    queue: marking.clone(),
                    seed,
                    ..header(100, 48)
                };
                join::<Dcqcn>(&meeting, rdma.clone())
            })
            .collect();
        all.sort_by(|a, b| a.slows_after_us.total_cmp(&b.slows_after_us));
        let slows_after_us = all[2].slows_after_us;
        all.sort_by(|a, b| a.queue_kb.total_cmp(&b.queue_kb));
        Joined {
            slows_after_us,
            queue_kb: all[2].queue_kb,
        }
    };
    let three_percent = |kb: f64| [0.97 * kb, 1.03 * kb];
    let one_us = |us: f64| [us - 1.0, us + 1.0];
    let cases = [
        (
            "HPCC, no additive steps",
            one_us(15.0),
            three_percent(160.2),
            join::<Hpcc>(&meeting(100, 93.9), telemetric(12_320, hpcc(0))),
        ),
        (
            "HPCC",
            one_us(15.5),
            three_percent(160.2),
            join::<Hpcc>(&meeting(100, 93.7), telemetric(12_320, hpcc(5))),
        ),
        (
            "HPCC, 400 Gbit/s, no additive steps",
            one_us(16.0),
            three_percent(597.3),
            join::<Hpcc>(&meeting(400, 363.7), telemetric(12_080, hpcc(0))),
        ),
        (
            "PowerTCP",
            one_us(13.0),
            three_percent(157.0),
            join::<PowerTcp>(&meeting(100, 94.0), power(0.9, 0.95, 12_320)),
        ),
        (
            "PowerTCP, 400 Gbit/s",
            one_us(13.0),
            three_percent(607.1),
            join::<PowerTcp>(&meeting(400, 370.4), power(0.9, 0.95, 12_080)),
        ),
        (
            // Its packets have PowerTCP's header, too.
            "θ-PowerTCP",
            one_us(14.5),
            three_percent(174.4),
            join::<ThetaPowerTcp>(&header(100, 90), power(0.7, 1.0, 12_320)),
        ),
        (
            "θ-PowerTCP, 400 Gbit/s",
            one_us(14.0),
            three_percent(682.3),
            join::<ThetaPowerTcp>(&header(400, 90), power(0.7, 1.0, 12_080)),
        ),
        (
            "TIMELY",
            one_us(174.0),
            three_percent(2_185.9),
            join::<Timely>(&header(100, 56), config(timely())),
        ),
        (
            "TIMELY, 400 Gbit/s",
            one_us(104.0),
            three_percent(5_239.9),
            join::<Timely>(&header(400, 56), config(timely())),
        ),
        (
            "DCQCN, short intervals",
            [50.0, 69.5],
            [746.0, 824.0],
            drawn(dcqcn(1, 4, 300)),
        ),
        (
            "DCQCN, long intervals",
            [96.0, 115.5],
            [1_217.0, 1_419.0],
            drawn(dcqcn(50, 50, 55)),
        ),
    ];
    let mut wrong = Vec::new();
    for (name, slows_after_us, queue_kb, ours) in cases {
        println!("{name}: {} µs, {} kB", ours.slows_after_us, ours.queue_kb);
        let within = |[least, most]: [f64; 2], value: f64| (least..=most).contains(&value);
        if !within(slows_after_us, ours.slows_after_us) || !within(queue_kb, ours.queue_kb) {
            wrong.push((name, ours.slows_after_us, ours.queue_kb));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
