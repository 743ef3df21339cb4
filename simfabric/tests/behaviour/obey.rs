//! An allocator that is wrong: capacities that it is told otherwise, hosts without Ratewright, and
//! rates as maxima over TCP. The oracle is TCP alone, or what the plan says.

use std::path::Path;

use ratewright_simfabric::plan::{Overrides, PlanError, RunPlan, TransportRun};
use ratewright_simfabric::results::{FlowResult, RunResults};
use ratewright_simfabric::{Config, Time};

use super::common::{parse_plan, run_plan};

/// Six hosts at 10 Gbit/s, whose packets are not in phase.
const SWITCH: &str = r#"
kind = "big-switch"
hosts = 6
host_rate = "10Gbit/s"
link_delay = "5us"
host_jitter = "1us""#;

/// A plan of 20 ms over such a network and queues that lose packets.
fn plan(topology: &str, transport: &str, flows: &str, seed: u64) -> Result<RunPlan, PlanError> {
    let text = format!(
        r#"
[run]
duration = "20ms"
warm_up = "5ms"
[topology]{topology}
[queue]
discipline = "drop-tail"
limit_packets = 60
[transport]
{transport}
[[workload]]
kind = "list"
flows = [{flows}]
"#
    );
    parse_plan(&text, seed)
}

fn run(topology: &str, transport: &str, flows: &str) -> TransportRun {
    run_plan(&plan(topology, transport, flows, 3).expect("a good plan"))
}

fn counter(results: &RunResults, name: &str) -> f64 {
    let found = results.transport.iter().find(|(known, _)| *known == name);
    found.expect("the counter is there").1
}

/// Times and counters of a flow.
fn course(flow: &FlowResult) -> String {
    format!(
        "{:?} {:?} {} {}",
        flow.finished, flow.acknowledged, flow.delivered_bytes, flow.retransmits
    )
}

fn gbps(flow: &FlowResult) -> f64 {
    flow.delivered_bytes as f64 * 8.0 / 20e-3 / 1e9
}

const CUBIC: &str = "name = \"cubic\"\nmin_rto = \"200us\"\ninitial_rto = \"1ms\"";
const RATEWRIGHT: &str = "name = \"ratewright\"\nmin_rto = \"200us\"\ninitial_rto = \"1ms\"";
/// CUBIC on other hosts.
fn beside(hosts: &str) -> String {
    format!("beside = {{ name = \"cubic\", {hosts}, min_rto = \"200us\", initial_rto = \"1ms\" }}")
}

/// Two flows without end from two hosts to one.
const TWO_TO_ONE: &str =
    "{ src = 0, dst = 2, start = \"10us\" }, { src = 1, dst = 2, start = \"24us\" }";

#[test]
fn the_allocator_goes_by_what_it_is_told_and_tcp_by_what_is_there() {
    let told = format!("{SWITCH}\ntold = {{ scale = 0.5 }}");
    let one = "{ src = 0, dst = 2 }";
    let paced = run(&told, "name = \"flowtune\"", one);
    // Half of 10 Gbit/s, of which 1,460 of 1,538 bytes are payload.
    let share = gbps(&paced.results.flows[0]) / (5.0 * 1_460.0 / 1_538.0);
    assert!((0.97..=1.01).contains(&share), "{share}");
    let courses = |topology: &str| {
        let flows = run(topology, CUBIC, TWO_TO_ONE).results.flows;
        flows.iter().map(course).collect::<Vec<_>>()
    };
    assert_eq!(courses(&told), courses(SWITCH));
}

#[test]
fn a_share_of_links_is_told_otherwise_by_the_seed() {
    let told = |text: &str, seed| {
        let topology = format!("{SWITCH}\ntold = {text}");
        let plan = plan(&topology, RATEWRIGHT, TWO_TO_ONE, seed).expect("a good plan");
        let told = plan.fabric.told.of(&plan.topology);
        let links = plan.topology.links().iter().zip(told.links());
        links
            .map(|(link, told)| told.capacity_bps as f64 / link.capacity_bps as f64)
            .collect::<Vec<_>>()
    };
    let quarter = |seed| told("{ scale = 1.25, share = 0.25 }", seed);
    let factors = quarter(1);
    assert_eq!(factors.iter().filter(|f| **f == 1.25).count(), 3);
    assert_eq!(factors.iter().filter(|f| **f == 1.0).count(), 9);
    assert_eq!(quarter(1), factors);
    assert!((2..9).any(|seed| quarter(seed) != factors));
    let named = told(
        "{ links = { \"fabric->h3\" = 5, \"h1->fabric\" = 0.97 } }",
        1,
    );
    assert_eq!(named.iter().filter(|f| **f == 1.0).count(), 10);
    assert!(named.contains(&5.0) && named.contains(&0.97));
}

#[test]
fn what_cannot_be_told_or_shared_is_refused_with_its_place() {
    let tolds = [
        ("{ }", "`told` needs `scale`, or `links`"),
        (
            "{ scale = 0 }",
            "`scale` is 0; it must be from 0.001 to 1000",
        ),
        ("{ scale = nan }", "`scale` is NaN; it must be from"),
        (
            "{ share = 0.1 }",
            "`share` says of how many links `scale` is",
        ),
        (
            "{ scale = 2, share = 1.5 }",
            "`share` of the links must be from 0 to 1",
        ),
        (
            "{ links = { \"h1->h2\" = 2 } }",
            "there is no link \"h1->h2\"",
        ),
        (
            "{ links = { \"h1->fabric\" = -1 } }",
            "`h1->fabric` is -1; it must be",
        ),
        ("{ scales = 2 }", "unknown field `scales`"),
    ];
    for (told, part) in tolds {
        let topology = format!("{SWITCH}\ntold = {told}");
        let error = plan(&topology, CUBIC, TWO_TO_ONE, 3).expect_err(told);
        assert_eq!(
            error.place.map(|place| place.0),
            Some(11),
            "{told}: {error}"
        );
        assert!(error.message.contains(part), "{told}: {error}");
    }
    let hosts = [
        ("hosts = [6]", "there is no host 6; hosts are 0 to 5"),
        (
            "hosts = []",
            "the hosts that send them: `hosts`, by number, `racks`, by leaf, or `share`",
        ),
        (
            "hosts = [0], share = 0.5",
            "either `workloads` or `classes`",
        ),
        (
            "hosts = [0], workloads = [0]",
            "either `workloads` or `classes`",
        ),
        (
            "hosts = [0, 1, 2, 3, 4, 5]",
            "both schemes need hosts: some, and not all",
        ),
        ("racks = [\"leaf9\"]", "there is no leaf \"leaf9\""),
        (
            "share = 1.0",
            "`share` of the hosts must be above 0 and below 1",
        ),
        ("share = 0.01", "both schemes need hosts: some, and not all"),
    ];
    for (hosts, part) in hosts {
        let transport = format!("{RATEWRIGHT}\n{}", beside(hosts));
        let error = plan(SWITCH, &transport, TWO_TO_ONE, 3).expect_err(hosts);
        assert!(error.place.is_some(), "{hosts}: {error}");
        assert!(error.message.contains(part), "{hosts}: {error}");
    }
}

#[test]
fn hosts_without_ratewright_are_unknown_to_the_allocator_and_do_what_they_do_alone() {
    let to_2 = "{ src = 0, dst = 2, bytes = 3000000 }, { src = 1, dst = 2, bytes = 2000000 }";
    let to_5 = "{ src = 3, dst = 5, bytes = 2500000 }, { src = 4, dst = 5, bytes = 1500000 }";
    let mixed = format!("{RATEWRIGHT}\n{}", beside("hosts = [3, 4, 5]"));
    let both = run(SWITCH, &mixed, &format!("{to_2}, {to_5}")).results;
    assert!(both.flows.iter().all(|flow| flow.finished.is_some()));
    assert_eq!(counter(&both, "flowlet_starts"), 2.0);
    assert_eq!(counter(&both, "sessions_lost"), 0.0);
    let unmanaged = both.flows.iter().filter(|flow| flow.spec.src.0 >= 3);
    let alone = run(SWITCH, CUBIC, to_5).results;
    let courses: Vec<String> = unmanaged.map(course).collect();
    // Nothing of the allocator's comes to their links: they have no session.
    assert_eq!(courses, alone.flows.iter().map(course).collect::<Vec<_>>());
}

/// By numbers, by leaf and by share: the same kind of split, the same bytes for any regions.
#[test]
fn hosts_of_two_schemes_give_the_same_results_in_any_regions_and_threads() {
    let text = r#"
[run]
duration = "2ms"
[topology]
kind = "leaf-spine"
racks = 4
hosts_per_rack = 4
spines = 2
host_rate = "10Gbit/s"
fabric_rate = "20Gbit/s"
link_delay = "1us"
[[workload]]
kind = "poisson"
load = 0.7
sizes = "web"
[transport]
name = "dctcp"
min_rto = "200us"
beside = { name = "cubic", HOSTS, min_rto = "200us" }
"#;
    for hosts in [
        "share = 0.5",
        "racks = [\"leaf1\", \"leaf3\"]",
        "hosts = [1, 6, 11]",
    ] {
        let text = text.replace("HOSTS", hosts);
        let plan = RunPlan::parse(&text, "plan", Path::new(""), &Overrides::default());
        let plan = plan.expect("a good plan");
        let run = |regions, threads| {
            let config = Config {
                seed: 5,
                regions: Some(regions),
                threads,
                ..Config::default()
            };
            let flows = plan.flows().expect("flows");
            let mut run = plan.transports[0]
                .start(config, &plan.topology, flows)
                .expect("it starts");
            run.run_until(Time::from_ms(2)).expect("it runs");
            let results = run.results();
            results.conservation.expect("it conserves");
            let courses: Vec<String> = results.flows.iter().map(course).collect();
            (run.regions(), (courses, results.packet_hops))
        };
        let (one, whole) = run(1, 1);
        let (several, in_regions) = run(usize::MAX, 1);
        assert!(one == 1 && several > 1, "{hosts}");
        assert!(whole == in_regions, "{hosts}");
        assert!(whole == run(usize::MAX, 3).1, "{hosts}");
    }
}

/// A maximum beyond every link is none.
#[test]
fn a_maximum_that_does_not_bind_leaves_tcp_as_it_is() {
    let told = format!("{SWITCH}\ntold = {{ scale = 1000 }}");
    let sizes = [3_000, 40_000, 600_000, 9_000_000];
    for bytes in sizes {
        let flows = format!("{{ src = 0, dst = 2, bytes = {bytes}, start = \"100us\" }}");
        let took = |transport| {
            let flow = run(&told, transport, &flows).results.flows[0];
            assert_eq!(flow.drops, 0);
            flow.fct().expect("it is complete").as_us_f64()
        };
        let (with, without) = (took(RATEWRIGHT), took(CUBIC));
        // Its notices are before its packets on the first link.
        assert!(
            (with - without).abs() < 1.0,
            "{bytes}: {with} and {without} µs"
        );
    }
}

/// Flows per link and seed; TCP alone beside, and the same hosts without Ratewright.
#[test]
fn told_too_much_or_too_little_two_flows_share_as_under_tcp_alone() {
    let drops = |run: &TransportRun| run.summary.drops;
    let (mut with, mut without) = ([0; 2], 0);
    for seed in 1..=3 {
        let alone = run_plan(&plan(SWITCH, CUBIC, TWO_TO_ONE, seed).expect("a good plan"));
        let share = alone.results.flows.iter().map(gbps).sum::<f64>() / 2.0;
        without += drops(&alone);
        for scale in ["0.97", "1.0", "1.05", "1.25", "5.0"] {
            let told = format!("{SWITCH}\ntold = {{ scale = {scale} }}");
            let neighbour = format!("{RATEWRIGHT}\n{}", beside("hosts = [1]"));
            for (kind, transport) in [&neighbour, RATEWRIGHT].into_iter().enumerate() {
                let plan = plan(&told, transport, TWO_TO_ONE, seed).expect("a good plan");
                let run = run_plan(&plan);
                for (flow, alone) in run.results.flows.iter().zip(&alone.results.flows) {
                    let owed = gbps(alone).min(share);
                    assert!(
                        gbps(flow) >= 0.8 * owed,
                        "told {scale}, seed {seed}, kind {kind}: {} of {owed}",
                        gbps(flow)
                    );
                }
                with[kind] += drops(&run);
            }
        }
    }
    // Five told capacities for each run of TCP alone.
    for with in with {
        assert!(
            with as f64 <= 1.1 * 5.0 * without as f64,
            "{with}, {without} alone"
        );
    }
}

/// In no time a flow has more than its maximum and its credit: 10 packets.
#[test]
fn a_flow_has_at_most_its_maximum_and_its_credit() {
    let told = format!("{SWITCH}\ntold = {{ scale = 0.1 }}");
    let transport = format!("{RATEWRIGHT}\ncredit_time = \"0us\"");
    let text = plan(&told, &transport, "{ src = 0, dst = 2 }", 3).expect("a good plan");
    let config = Config {
        seed: 3,
        sample_every: Some(ratewright_simfabric::Span::from_us(50)),
        sampled_flows: 1,
        ..Config::default()
    };
    let flows = text.flows().expect("flows");
    let mut run = text.transports[0]
        .start(config, &text.topology, flows)
        .expect("it starts");
    run.run_until(Time::from_ms(20)).expect("it runs");
    let series = run.results().series.expect("sampled");
    let bps = series.goodput_bps(ratewright_simfabric::flow::FlowId(0));
    let bytes: Vec<f64> = bps.iter().map(|bps| bps / 8.0 * 50e-6).collect();
    // From a millisecond on: the first window is over.
    let after = &bytes[20..];
    let rate = 1e9 / 8.0 * 1_460.0 / 1_538.0 * 50e-6;
    for first in 0..after.len() {
        let mut sum = 0.0;
        for (passed, bytes) in after[first..].iter().enumerate() {
            sum += bytes;
            let most = rate * (passed + 1) as f64 + 11.0 * 1_460.0;
            assert!(
                sum <= most,
                "{sum} bytes in {passed} samples, {most} at most"
            );
        }
    }
    let all: f64 = after.iter().sum();
    assert!(all >= 0.99 * rate * after.len() as f64, "the rate is used");
}

/// A receiver's link has a tenth of what is told. What its flow cannot use is another's, of the
/// same sender, as under TCP alone; without measuring, it is nobody's.
#[test]
fn a_flow_behind_a_slow_link_leaves_what_it_cannot_use() {
    let dir = tempfile::TempDir::new().expect("a directory");
    let file = dir.path().join("slow.toml");
    let slow = r#"
kind = "big_switch"
[parameters]
racks = 1
hosts_per_rack = 4
host_capacity = "10Gbit/s"
host_delay = "5us"
ipv4_base = "none"
ipv6_base = "none"
[[link]]
from = "fabric"
to = "h2"
capacity = "1Gbit/s"
"#;
    std::fs::write(&file, slow).expect("written");
    let told = "told = { links = { \"fabric->h2\" = 10 } }";
    let topology = format!(
        "\nkind = \"file\"\nfile = {:?}\nhost_jitter = \"1us\"\n{told}",
        file.display().to_string()
    );
    let flows = "{ src = 0, dst = 1 }, { src = 0, dst = 2 }";
    let fast = |transport: &str| {
        let run = run(&topology, transport, flows);
        gbps(&run.results.flows[1]).max(gbps(&run.results.flows[0]))
    };
    let alone = fast(CUBIC);
    let measured = fast(&format!("{RATEWRIGHT}\ndemand_window = \"1ms\""));
    let unmeasured = fast(&format!("{RATEWRIGHT}\ndemand_window = \"0us\""));
    assert!(measured >= 0.9 * alone, "{measured} of {alone}");
    assert!(unmeasured < 0.7 * alone, "{unmeasured} of {alone}");
}
