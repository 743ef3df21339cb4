//! Sources of the allocator's feeds: what hosts and switches tell, against what is true.

use std::ops::ControlFlow;
use std::path::Path;

use ratewright_simfabric::plan::{Overrides, RunPlan};
use ratewright_simfabric::results::RunResults;

/// Two racks of four hosts. Ratewright's flows are of workload 0, the other scheme's of 1.
fn run(beside: &str, feeds: &str, flows: [&str; 2]) -> RunResults {
    let text = format!(
        r#"
[run]
seed = 3
duration = "6ms"
[topology]
kind = "leaf-spine"
racks = 2
hosts_per_rack = 4
spines = 2
host_rate = "10Gbit/s"
fabric_rate = "40Gbit/s"
link_delay = "1us"
fabric_delay = "1us"
symmetric = true
[transport]
name = "flowtune"
control = "datagram"
control_first = true
beside = {{ {beside}, workloads = [1] }}
feeds = {{ {feeds} }}
[[workload]]
kind = "list"
flows = [{}]
[[workload]]
kind = "list"
flows = [{}]"#,
        flows[0], flows[1]
    );
    let plan = RunPlan::parse(&text, "plan", Path::new(""), &Overrides::default());
    let plan = plan.expect("a good plan");
    let run = plan.run(&plan.transports[0], |_| ControlFlow::Continue(()));
    run.expect("it runs, and conserves packets").results
}

fn counter(results: &RunResults, name: &str) -> f64 {
    let found = results.transport.iter().find(|(known, _)| *known == name);
    found
        .unwrap_or_else(|| panic!("there is a counter {name}"))
        .1
}

fn mean(results: &RunResults, kind: &str, what: &str) -> f64 {
    let sum = counter(results, &format!("feed_{kind}_{what}"));
    sum / counter(results, &format!("feed_{kind}_readings"))
}

const OWN: &str = "{ src = 0, dst = 4 }";
const EXTERNAL: &str = "{ src = 1, dst = 4 }, { src = 2, dst = 4 }, { src = 3, dst = 5 }";
const SIRD: &str = "name = \"sird\", bdp_rate = \"10Gbit/s\", bdp_bytes = 20000";

/// With flows that neither begin nor end between two readings, every count is exact but the first
/// of a period; 8 hosts read 60 times.
#[test]
fn receivers_count_the_senders_that_the_allocator_does_not_know() {
    for beside in [
        "name = \"dctcp\"",
        SIRD,
        "name = \"homa\"",
        "name = \"dcqcn\"",
    ] {
        let results = run(beside, "receivers = true", [OWN, EXTERNAL]);
        let readings = counter(&results, "feed_receivers_readings");
        assert!((460.0..=480.0).contains(&readings), "{beside}: {readings}");
        // Three senders at two of eight hosts.
        let truth = mean(&results, "receivers", "truth");
        assert!((truth - 3.0 / 8.0).abs() < 0.02, "{beside}: {truth}");
        let error = mean(&results, "receivers", "error");
        assert!(error < 0.02, "{beside}: {error}");
        // Four links of 1 µs to a spine and the allocator at most, with what waits there.
        let age_us = mean(&results, "receivers", "age_ns") / 1e3;
        assert!((3.0..20.0).contains(&age_us), "{beside}: {age_us}");
    }
}

/// Credit that comes back is the rate at which a SIRD sender's data comes, its headers included.
#[test]
fn credit_tells_the_rate_of_a_sird_sender() {
    let results = run(SIRD, "credit = true", [OWN, EXTERNAL]);
    let (error, truth) = (
        mean(&results, "credit", "error"),
        mean(&results, "credit", "truth"),
    );
    assert!(truth > 1e9 && error < 0.1 * truth, "{error} of {truth}");
}

/// Hosts and switches read all links but the allocator's. External load is what a link carried less
/// what was handed out, which managed flows do not always use: a third is left for that.
#[test]
fn links_tell_external_load_and_queue() {
    let results = run("name = \"dctcp\"", "int = true", [OWN, EXTERNAL]);
    // 8 links up from hosts, 8 down to them, 8 between switches; 60 readings of each.
    let readings = counter(&results, "feed_queue_readings");
    assert!((1_400.0..=1_440.0).contains(&readings), "{readings}");
    let (error, truth) = (
        mean(&results, "load", "error"),
        mean(&results, "load", "truth"),
    );
    assert!(truth > 1e9 && error < truth / 3.0, "{error} of {truth}");
    let (error, truth) = (
        mean(&results, "queue", "error"),
        mean(&results, "queue", "truth"),
    );
    assert!(truth > 0.0 && error < 0.1 * truth, "{error} of {truth}");
    assert!(counter(&results, "feed_datagrams_of_switches") >= 236.0);
}

#[test]
fn nothing_is_read_unless_asked_for() {
    let results = run("name = \"dctcp\"", "receivers = false", [OWN, EXTERNAL]);
    let known = |(name, _): &(&str, f64)| name.starts_with("feed_");
    assert!(!results.transport.iter().any(known));
}
