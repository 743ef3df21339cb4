//! The allocator's check of told capacities in the fabric. The oracle is what the plan does to the
//! network: what is wrong is named within 5 s, and taken back within 10 s after it is right again.

use ratewright_simfabric::plan::{PlanError, RunPlan};
use ratewright_simfabric::report::summary::Finding;

use super::common::{parse_plan, run_plan};

/// Begin and end of a fault, in seconds.
const FAULT: [f64; 2] = [4.0, 12.0];

/// Three flows without end to host 2.
const TO_ONE: &str = "kind = \"list\"\nflows = [{ src = 0, dst = 2 }, \
                      { src = 1, dst = 2, start = \"20us\" }, { src = 3, dst = 2, start = \"50us\" }]";

/// A plan over six hosts with links of 100 Mbit/s at one switch.
fn plan(
    duration: &str,
    faults: &str,
    transport: &str,
    workload: &str,
    seed: u64,
) -> Result<RunPlan, PlanError> {
    let text = format!(
        r#"
[run]
duration = "{duration}"
[topology]
kind = "big-switch"
hosts = 6
host_rate = "100Mbit/s"
link_delay = "5us"
host_jitter = "20us"
[queue]
discipline = "drop-tail"
limit_packets = 150
{faults}
[transport]
name = "ratewright"
control_first = true
{transport}
[[workload]]
{workload}
"#
    );
    parse_plan(&text, seed)
}

fn findings(faults: &str, transport: &str, workload: &str, seed: u64) -> Vec<Finding> {
    let plan = plan("24s", faults, transport, workload, seed).expect("a good plan");
    run_plan(&plan).summary.findings
}

/// The link to host 2 has another rate during the fault.
fn rate_of(links: &[&str], rate: &str) -> String {
    let [begin, end] = FAULT;
    let fault = |link: &&str| {
        format!(
            "[[fault]]\nat = \"{begin}s\"\nlink = \"{link}\"\nrate = \"{rate}\"\n\
             [[fault]]\nat = \"{end}s\"\nlink = \"{link}\"\nrate = \"100Mbit/s\"\n"
        )
    };
    links.iter().map(fault).collect()
}

/// Asserts that these links were named in this state within 5 s, that nothing else was, and that
/// all was taken back within 10 s.
fn named_in_time(found: &[Finding], links: &[&str], state: &str) {
    let [begin, end] = FAULT.map(|seconds| seconds * 1e6);
    for finding in found {
        assert!(links.contains(&&*finding.link), "{found:?}");
        assert!(
            finding.state == state && finding.named_us >= begin,
            "{found:?}"
        );
        let back_us = finding.taken_back_us.expect("it is taken back");
        assert!(back_us <= end + 10e6, "{found:?}");
    }
    for link in links {
        let first = found.iter().find(|finding| finding.link == *link);
        let named_us = first.map(|finding| finding.named_us);
        assert!(named_us.is_some_and(|us| us <= begin + 5e6), "{found:?}");
        let stood = found.iter().any(|finding| {
            finding.link == *link && finding.taken_back_us.is_some_and(|us| us >= end)
        });
        assert!(stood, "{link} is named to the fault's end: {found:?}");
    }
}

#[test]
fn a_link_that_carries_less_is_named_lowered_and_taken_back_in_time() {
    for seed in 1..=3 {
        let faults = rate_of(&["fabric->h3"], "80Mbit/s");
        let found = findings(&faults, "link_check = {}", TO_ONE, seed);
        named_in_time(&found, &["fabric->h3"], "carries_less");
        for finding in &found {
            let carried = finding.carried_gbps.expect("its host tells");
            assert!((0.07..=0.082).contains(&carried), "{finding:?}");
            let lowered = finding.lowered_gbps.expect("it is lowered");
            assert!((0.05..0.08).contains(&lowered), "{finding:?}");
        }
    }
}

#[test]
fn a_link_that_is_only_named_keeps_its_capacity() {
    let faults = rate_of(&["fabric->h3"], "80Mbit/s");
    let found = findings(&faults, "link_check = { max_lowering = 0 }", TO_ONE, 4);
    named_in_time(&found, &["fabric->h3"], "carries_less");
    assert!(found.iter().all(|finding| finding.lowered_gbps.is_none()));
}

#[test]
fn a_faster_interface_is_named_where_interfaces_tell_their_speed() {
    let faults = rate_of(&["h3->fabric", "fabric->h3"], "125Mbit/s");
    let told = findings(&faults, "link_check = { speeds = true }", TO_ONE, 5);
    named_in_time(&told, &["h3->fabric", "fabric->h3"], "carries_more");
    // Nobody uses what is not told.
    assert_eq!(findings(&faults, "link_check = {}", TO_ONE, 5), []);
}

#[test]
fn a_sender_without_ratewright_is_named_at_the_link_to_its_receiver() {
    let [begin, end] = FAULT;
    for seed in 1..=3 {
        let workload = format!(
            "{TO_ONE}\n[[workload]]\nkind = \"list\"\nclass = 1\n\
             flows = [{{ src = 5, dst = 2, start = \"{begin}s\", stop = \"{end}s\" }}]"
        );
        let transport = "link_check = {}\nbeside = { name = \"cubic\", hosts = [5] }";
        let found = findings("", transport, &workload, seed);
        named_in_time(&found, &["fabric->h3"], "has_others_traffic");
        assert!(found.iter().all(|finding| finding.lowered_gbps.is_none()));
    }
}

/// Two racks of three hosts under two spines, each of which sends to its like, by CUBIC or DCTCP.
fn across(change: [&str; 2], over: &str, seed: u64) -> Vec<Finding> {
    let [begin, end] = FAULT;
    let [fault, repair] = change;
    let queue = match over {
        "cubic" => "discipline = \"drop-tail\"\nlimit_packets = 150",
        _ => "discipline = \"ecn-threshold\"\nmark_packets = 20\nlimit_packets = 150",
    };
    let flows: Vec<String> = (0..3)
        .map(|host| {
            let start_us = 10 + (seed % 7 + 3) * host;
            let dst = host + 3;
            format!("{{ src = {host}, dst = {dst}, start = \"{start_us}us\" }}")
        })
        .collect();
    let text = format!(
        r#"
[run]
duration = "24s"
[topology]
kind = "leaf-spine"
racks = 2
hosts_per_rack = 3
spines = 2
host_rate = "100Mbit/s"
fabric_rate = "100Mbit/s"
link_delay = "5us"
host_jitter = "20us"
[queue]
{queue}
[[fault]]
at = "{begin}s"
link = "leaf1->spine1"
{fault}
[[fault]]
at = "{end}s"
link = "leaf1->spine1"
{repair}
[transport]
name = "ratewright"
over = "{over}"
control_first = true
link_check = {{}}
[[workload]]
kind = "list"
flows = [{}]
"#,
        flows.join(", ")
    );
    let plan = parse_plan(&text, seed).expect("a good plan");
    run_plan(&plan).summary.findings
}

/// The first uplink fails, so that all flows take the other one, and the allocator is not told.
#[test]
fn flows_that_share_a_link_which_they_are_not_told_to_share_have_a_wrong_path_in_time() {
    let inner = [
        "leaf1->spine1",
        "leaf1->spine2",
        "spine1->leaf2",
        "spine2->leaf2",
    ];
    for over in ["cubic", "dctcp"] {
        for seed in 1..=4 {
            let found = across(["up = false", "up = true"], over, seed);
            named_in_time(&found, &inner, "wrong_path");
        }
    }
}

/// Two of three flows cross it, and the links of one path cannot be told apart.
#[test]
fn a_link_between_switches_that_carries_less_is_no_wrong_path() {
    let inner = ["leaf1->spine1", "spine1->leaf2"];
    for over in ["cubic", "dctcp"] {
        for seed in [1, 3, 5] {
            let rates = ["rate = \"50Mbit/s\"", "rate = \"100Mbit/s\""];
            let found = across(rates, over, seed);
            named_in_time(&found, &inner, "carries_less");
            assert!(found.iter().all(|finding| finding.lowered_gbps.is_none()));
        }
    }
}

#[test]
fn in_a_right_network_nothing_is_named() {
    let workload = "kind = \"poisson\"\nload = 0.6\nsizes = \"web-search\"";
    for seed in 1..=3 {
        let checks = "link_check = { speeds = true }";
        let plan = plan("20s", "", checks, workload, seed).expect("a good plan");
        let run = run_plan(&plan);
        assert!(run.summary.flows[1] > 100, "{:?}", run.summary.flows);
        assert_eq!(run.summary.findings, []);
    }
}

/// Without the check hosts tell nothing of their links, and a wrong capacity is nobody's matter.
#[test]
fn without_the_check_nothing_is_named() {
    let faults = rate_of(&["fabric->h3"], "80Mbit/s");
    assert_eq!(findings(&faults, "", TO_ONE, 1), []);
}

#[test]
fn findings_are_the_same_for_any_number_of_threads() {
    let faults = rate_of(&["fabric->h3"], "80Mbit/s");
    let summary = |threads| {
        let mut plan = plan("14s", &faults, "link_check = {}", TO_ONE, 7).expect("a good plan");
        plan.threads = threads;
        serde_json::to_string(&run_plan(&plan).summary).expect("JSON")
    };
    let alone = summary(1);
    assert!(alone.contains("\"state\":\"carries_less\""), "{alone}");
    for threads in [2, 4] {
        assert_eq!(summary(threads), alone, "{threads} threads");
    }
}

#[test]
fn faults_of_links_that_cannot_be_are_refused_with_their_place() {
    for (fault, part) in [
        (
            "link = \"h1->h2\"\nup = false",
            "there is no link \"h1->h2\"",
        ),
        (
            "link = \"h1->fabric\"",
            "a fault has a `host` that `pauses`",
        ),
        ("host = 1\nup = false", "a fault has a `host` that `pauses`"),
        (
            "link = \"h1->fabric\"\nup = true\nrate = \"1Gbit/s\"",
            "a `link` with another `rate` or that is `up`",
        ),
        ("host = 6\npauses = true", "there is no host 6"),
    ] {
        let faults = format!("[[fault]]\nat = \"1s\"\n{fault}");
        let error = plan("2s", &faults, "", TO_ONE, 1).expect_err(fault);
        assert!(error.place.is_some(), "{fault}: {error}");
        assert!(error.message.contains(part), "{fault}: {error}");
    }
    let error = plan("2s", "", "link_check = { max_lowering = 1 }", TO_ONE, 1);
    let error = error.expect_err("too much");
    assert!(error.message.contains("from 0 to 0.9"), "{error}");
}
