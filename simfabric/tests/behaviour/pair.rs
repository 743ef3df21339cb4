//! Two schemes on one host.

use std::ops::ControlFlow;
use std::path::Path;

use ratewright_simfabric::plan::{Overrides, PlanError, RunPlan};
use ratewright_simfabric::results::{FlowResult, RunResults};
use ratewright_simfabric::{Config, Span, Time};

/// A plan on one switch of six hosts at 10 Gbit/s, over queues that lose packets.
fn plan(transport: &str, flows: &[&str]) -> Result<RunPlan, PlanError> {
    let workloads: String = flows
        .iter()
        .map(|flows| format!("[[workload]]\nkind = \"list\"\nflows = [{flows}]\n"))
        .collect();
    let text = format!(
        r#"
[run]
seed = 3
duration = "20ms"
[topology]
kind = "big-switch"
hosts = 6
host_rate = "10Gbit/s"
link_delay = "5us"
[queue]
discipline = "ecn-threshold"
mark_packets = 15
limit_packets = 25
{transport}
{workloads}"#
    );
    RunPlan::parse(&text, "plan", Path::new(""), &Overrides::default())
}

fn run(transport: &str, flows: &[&str]) -> RunResults {
    let plan = plan(transport, flows).expect("a good plan");
    let run = plan.run(&plan.transports[0], |_| ControlFlow::Continue(()));
    run.expect("it runs, and conserves packets").results
}

/// Times and counters of a flow, without its number.
fn course(flow: &FlowResult) -> String {
    format!(
        "{:?} {:?} {} {}",
        flow.finished, flow.acknowledged, flow.delivered_bytes, flow.retransmits
    )
}

fn counter(results: &RunResults, name: &str) -> f64 {
    let found = results.transport.iter().find(|(known, _)| *known == name);
    found.expect("the counter is there").1
}

const DCTCP: &str = r#"name = "dctcp"
min_rto = "300us"
initial_rto = "1ms""#;
const CUBIC: &str = r#"name = "cubic", min_rto = "200us", initial_rto = "1ms""#;
/// Three to one, which loses packets and takes time-outs.
const TO_2: &str = "{ src = 0, dst = 2, bytes = 2000000 }, { src = 1, dst = 2, bytes = 30000 }, \
                    { src = 1, dst = 2, bytes = 1500000 }";
const TO_5: &str = "{ src = 3, dst = 5, bytes = 2500000 }, { src = 4, dst = 5, bytes = 40000 }, \
                    { src = 4, dst = 5, bytes = 1000000 }";

/// Schemes whose flows share no link do what they do alone, timers and all.
#[test]
fn flows_that_share_no_link_behave_as_alone() {
    let beside =
        |inner: &str| format!("[transport]\n{DCTCP}\nbeside = {{ workloads = [1], {inner} }}");
    let both = run(&beside(CUBIC), &[TO_2, TO_5]);
    let first = run(&format!("[transport]\n{DCTCP}"), &[TO_2]);
    let second = run(
        &format!("[transport]\n{}", CUBIC.replace(", ", "\n")),
        &[TO_5],
    );
    let alone: Vec<String> = first
        .flows
        .iter()
        .chain(&second.flows)
        .map(course)
        .collect();
    let mut together: Vec<_> = both.flows.iter().collect();
    together.sort_by_key(|flow| (flow.spec.label, flow.number));
    let together: Vec<String> = together.into_iter().map(course).collect();
    assert_eq!(together, alone);
    let time_outs = [&both, &first, &second].map(|results| counter(results, "time_outs"));
    assert_eq!(time_outs[0], time_outs[1] + time_outs[2]);
    assert!(second.retransmits > 0, "the queues should lose packets");
}

/// Both schemes of a host have half of its link, whatever the number of their flows; or one of them
/// all that it asks for.
#[test]
fn the_interface_is_shared_by_turns() {
    let three = "{ src = 0, dst = 1 }, { src = 0, dst = 2 }, { src = 0, dst = 3 }";
    for (turns, share) in [("fair", 0.5), ("first", 1.0), ("second", 0.0)] {
        let transport = format!(
            "[transport]\nname = \"fixed-window\"\npackets = 100\nqueue = {{ discipline = \"drop-tail\" }}\n\
             beside = {{ name = \"dctcp\", classes = [1], turns = \"{turns}\", initial_window_packets = 200 }}"
        );
        let results = run(&transport, &[three, "{ src = 0, dst = 4, class = 1 }"]);
        let delivered = |label: u16| -> f64 {
            let flows = results.flows.iter().filter(|flow| flow.spec.label == label);
            flows.map(|flow| flow.delivered_bytes as f64).sum()
        };
        let (first, all) = (delivered(0), delivered(0) + delivered(1));
        assert!(
            (first / all - share).abs() < 0.01,
            "{turns}: {}",
            first / all
        );
        // 1,460 of 1,538 bytes, but for the first round trip.
        assert!(all * 8.0 / 0.02 > 0.99 * 9.49e9, "{turns}: {all}");
    }
}

/// Flows that the allocator does not know, beside such as it does: each scheme works.
#[test]
fn flowtune_allocates_beside_flows_that_it_does_not_know() {
    let with = |transport: &str| run(transport, &[TO_2, TO_5]);
    let both = with(&format!(
        "[transport]\n{DCTCP}\nbeside = {{ name = \"flowtune\", workloads = [1] }}"
    ));
    let alone = with("[transport]\nname = \"flowtune\"");
    assert!(both.flows.iter().all(|flow| flow.finished.is_some()));
    assert_eq!(counter(&both, "flowlet_starts"), 3.0);
    assert_eq!(counter(&alone, "flowlet_starts"), 6.0);
    assert_eq!(counter(&both, "sessions_lost"), 0.0);
    // Flowtune's own flows share no data link with the others. Their notices share links, so that a
    // start may be known an iteration, or 10 µs, earlier or later.
    let fct = |results: &RunResults| -> Vec<f64> {
        let flows = results.flows.iter().filter(|flow| flow.spec.label == 1);
        flows.filter_map(|f| Some(f.fct()?.as_us_f64())).collect()
    };
    for (both, alone) in fct(&both).iter().zip(fct(&alone)) {
        assert!((both - alone).abs() <= 10.0, "{both} µs, {alone} alone");
    }
}

/// Two schemes that share nothing may be simulated in regions, with the same results.
#[test]
fn regions_change_nothing() {
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
load = 0.4
sizes = "web"
[[workload]]
kind = "poisson"
load = 0.3
sizes = "web"
[transport]
name = "dctcp"
min_rto = "200us"
beside = { name = "cubic", workloads = [1], min_rto = "200us" }
"#;
    let plan = RunPlan::parse(text, "plan", Path::new(""), &Overrides::default());
    let plan = plan.expect("a good plan");
    let run = |regions: usize| {
        let config = Config {
            seed: 5,
            regions: Some(regions),
            ..Config::default()
        };
        let flows = plan.flows().expect("flows");
        let mut run = plan.transports[0]
            .start(config, &plan.topology, flows)
            .expect("it starts");
        run.run_until(Time::ZERO + Span::from_ms(2))
            .expect("it runs");
        let results = run.results();
        results.conservation.expect("it conserves");
        let courses: Vec<String> = results.flows.iter().map(course).collect();
        (run.regions(), courses, results.packet_hops)
    };
    let (one, several) = (run(1), run(usize::MAX));
    assert_eq!(one.0, 1);
    assert!(several.0 > 1, "{}", several.0);
    assert_eq!((one.1, one.2), (several.1, several.2));
}

#[test]
fn schemes_that_cannot_share_a_host_are_refused() {
    for (transport, part) in [
        (
            "name = \"dctcp\"\nbeside = { name = \"cubic\" }",
            "either `workloads` or `classes`",
        ),
        (
            "name = \"dctcp\"\nbeside = { name = \"cubic\", workloads = [0], classes = [1] }",
            "either `workloads` or `classes`",
        ),
        (
            "name = \"dctcp\"\nbeside = { name = \"cubic\", workloads = [3] }",
            "the workload 3, which the plan lacks",
        ),
        (
            "name = \"dctcp\"\nbeside = { name = \"cubic\", workloads = [0], gain = 1 }",
            "unknown key `gain`",
        ),
        (
            "name = \"flowtune\"\nbeside = { name = \"flowtune\", workloads = [0] }",
            "both schemes have an allocator",
        ),
        (
            "name = \"dctcp\"\nbeside = { name = \"xcp\", workloads = [0] }",
            "xcp",
        ),
        (
            "name = \"xcp\"\nbeside = { name = \"pfabric\", workloads = [0] }",
            "one scheme needs the queue",
        ),
        (
            "name = \"dctcp\"\nbeside = { name = \"cubic\", workloads = [0], turns = \"last\" }",
            "unknown variant",
        ),
    ] {
        let error = plan(&format!("[transport]\n{transport}"), &[TO_2]);
        let error = error.expect_err(transport).to_string();
        assert!(error.contains(part), "{transport}: {error}");
    }
}
