//! Costs of those that lie under Dart (§III-E): senders that do not heed, and receivers that tell
//! wrong numbers. Notices without data are in `dart.rs`.

use std::ops::ControlFlow;
use std::path::Path;

use ratewright_simfabric::Time;
use ratewright_simfabric::plan::{Overrides, RunPlan};
use ratewright_simfabric::results::RunResults;

/// Payload of a full packet over its bytes on the link.
const PAYLOAD: f64 = 1_000.0 / 1_048.0;

/// A plan on two racks of ten hosts at 40 Gbit/s behind one spine, under Dart with `settings`, and
/// these workloads; the last may be of hosts with the settings of `liars`.
fn run(settings: &str, workloads: &[&str], liars: Option<&str>) -> RunResults {
    let lists: String = workloads
        .iter()
        .map(|flows| format!("[[workload]]\n{flows}\n"))
        .collect();
    let beside = liars.map_or(String::new(), |liars| {
        format!(
            "beside = {{ name = \"dart\", workloads = [{}], {liars} }}",
            workloads.len() - 1
        )
    });
    let text = format!(
        r#"
[run]
seed = 3
duration = "4ms"
[topology]
kind = "leaf-spine"
racks = 2
hosts_per_rack = 10
spines = 1
host_rate = "40Gbit/s"
fabric_rate = "100Gbit/s"
link_delay = "1us"
[packet]
mss_bytes = 1000
header_bytes = 48
[transport]
name = "dart"
{settings}
{beside}
{lists}"#
    );
    let plan = RunPlan::parse(&text, "plan", Path::new(""), &Overrides::default());
    let plan = plan.expect("a good plan");
    let run = plan.run(&plan.transports[0], |_| ControlFlow::Continue(()));
    run.expect("it runs, and conserves packets").results
}

/// Endless flows from each of these hosts to one.
fn flows(senders: impl IntoIterator<Item = u32>, receiver: u32) -> String {
    let flow = |src| format!("{{ src = {src}, dst = {receiver} }}");
    let flows: Vec<String> = senders.into_iter().map(flow).collect();
    format!("kind = \"list\"\nflows = [{}]", flows.join(", "))
}

/// Goodput of each flow of a workload, as a share of a link's payload.
fn shares(results: &RunResults, label: u16) -> Vec<f64> {
    let seconds = results.now.since(Time::ZERO).as_secs_f64();
    let of = |bytes: u64| bytes as f64 * 8.0 / seconds / (40e9 * PAYLOAD);
    let flows = results.flows.iter().filter(|flow| flow.spec.label == label);
    flows.map(|flow| of(flow.delivered_bytes)).collect()
}

/// A sender that stays at the line's rate takes at most three quarters of the n − 1 others' parts.
/// While nothing pauses, those send C / n each and it sends C, which the receiver's port cannot
/// carry; pauses stop all alike, by which others would have 1 / (2 n − 1) of the line. They have
/// less, as marks of paused links reach them, too. Flows that share no paused link lose nothing.
#[test]
fn a_sender_that_does_not_heed_takes_three_quarters_of_the_others_parts_at_most() {
    for n in [2, 4, 8_u32] {
        let honest = flows(10..9 + n, 0);
        let bystander = flows([19], 17);
        let results = run(
            "",
            &[&honest, &bystander, &flows([18], 0)],
            Some("heeds = false"),
        );
        let part = 1.0 / f64::from(n);
        for share in shares(&results, 0) {
            println!("{n} senders: {:.2} of an honest one's part", share / part);
            assert!(share >= 0.25 * part, "{n}: {share} of {part}");
        }
        let bystander = shares(&results, 1)[0];
        assert!(bystander >= 0.95, "{n}: {bystander}");
        assert_eq!(results.drops(), 0);
    }
}

/// A receiver that tells too large a number slows its own senders and nobody else's; these have the
/// part that it told.
#[test]
fn a_receiver_that_tells_too_much_harms_itself() {
    let honest = flows([10, 11], 1);
    let own = flows([12, 13], 0);
    let results = run("", &[&honest, &own], Some("tells = 50"));
    for share in shares(&results, 1) {
        assert!((share * 50.0 - 1.0).abs() < 0.15, "{share}");
    }
    for share in shares(&results, 0) {
        assert!((share * 2.0 - 1.0).abs() < 0.05, "{share}");
    }
}

/// A receiver that tells its senders to take the whole line each fills its port's buffer. Pauses
/// then reach every link that leads there, as under senders without any control: flows to another
/// receiver over the same links suffer, for which the paper has no bound, and others do not.
#[test]
fn a_receiver_that_tells_too_little_harms_those_that_share_its_links_alone() {
    let honest = flows([10, 11], 1);
    let bystander = flows([18], 19);
    let own = flows(12..18, 0);
    let results = run("", &[&honest, &bystander, &own], Some("tells = 1"));
    let all: f64 = shares(&results, 2).iter().sum();
    assert!((0.9..=1.01).contains(&all), "its line is full: {all}");
    for share in shares(&results, 0) {
        println!("over its links: {share:.3} of the line");
        assert!(share > 0.0);
    }
    let bystander = shares(&results, 1)[0];
    assert!(bystander >= 0.95, "{bystander}");
    assert_eq!(results.drops(), 0);
}
