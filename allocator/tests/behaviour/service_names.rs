//! Names that other programs depend on: metrics with the values of their labels, and members of
//! JSON answers.

use std::collections::BTreeSet;

use ratewright_proto::telemetry::{AccessUse, HostFaults, LinkUse};
use serde_json::Value;

use crate::service_support::host::TestHost;
use crate::service_support::process::{AllocatorProcess, TestSite};
use crate::service_support::{PATIENCE, wait_for};

/// Names that stand until a release after the one that says they will go.
const PROMISED: &str = include_str!("names.txt");
/// Labels whose values are all there from the start. Reasons have a series once they occur.
const LABELS: [&str; 5] = ["cause", "fault", "feed", "result", "state"];

/// Adds each member as `path member.member`; elements of an array count as one.
fn collect(value: &Value, prefix: &str, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let separator = if prefix.ends_with(' ') { "" } else { "." };
                let path = format!("{prefix}{separator}{name}");
                collect(member, &path, names);
                names.insert(path);
            }
        }
        Value::Array(elements) => {
            for element in elements {
                collect(element, prefix, names);
            }
        }
        _ => {}
    }
}

/// Adds the names of metrics, and their series by one of [`LABELS`].
fn collect_metrics(text: &str, path: &str, names: &mut BTreeSet<String>) {
    for line in text.lines() {
        let (series, _) = line.rsplit_once(' ').unwrap_or_default();
        if let Some(name) = series.strip_prefix("# TYPE ") {
            names.insert(format!("{path} {name}"));
        } else if let Some((_, labels)) = series.split_once('{')
            && LABELS.iter().any(|label| {
                let value = labels.strip_prefix(label);
                value.is_some_and(|value| value.starts_with('='))
            })
        {
            names.insert(format!("{path} {series}"));
        }
    }
}

/// Has lists that are empty at rest show their members: a slow link with a stranger's traffic, and
/// a host without its address.
fn name_something(allocator: &AllocatorProcess, sender: &TestHost, receiver: &TestHost) {
    receiver.tell(AccessUse {
        downlink: LinkUse {
            speed_bps: 8_000_000_000,
            strangers: 1,
            ..LinkUse::default()
        },
        ..AccessUse::default()
    });
    sender.tell(AccessUse {
        faults: HostFaults {
            no_address: true,
            ..HostFaults::default()
        },
        ..AccessUse::default()
    });
    wait_for("they are named", PATIENCE, || {
        let status = allocator.status();
        status["links_shared"] == 1
            && status["links_not_as_told"][0]["state"] == "carries_less"
            && status["hosts_not_as_told"][0]["host"] == "h1"
    });
}

#[test]
fn no_metric_and_no_member_of_an_answer_goes_without_notice() {
    let site = TestSite::new();
    let allocator = site.start();
    let host = TestHost::connect(&site.authority, allocator.listen, "h1").established();
    let flow = host.start(0, "h16");
    host.wait_rate(flow, 9_700_000_000..=10_000_000_000);
    let receiver = TestHost::connect(&site.authority, allocator.listen, "h16").established();
    name_something(&allocator, &host, &receiver);

    let mut names = BTreeSet::new();
    let (_, metrics) = allocator.request("GET", "/v1/metrics", "");
    collect_metrics(&metrics, "/v1/metrics", &mut names);
    for (path, query) in [
        ("/v1/status", ""),
        ("/v1/flows", "?host=h1"),
        ("/v1/links", "?top=5"),
        ("/v1/explain", "?from=h1&to=h16"),
        ("/v1/feeds", ""),
        ("/v1/overview", ""),
    ] {
        let (code, text) = allocator.request("GET", &format!("{path}{query}"), "");
        assert_eq!(code, 200, "{path}: {text}");
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        collect(&answer, &format!("{path} "), &mut names);
    }

    let promised: BTreeSet<String> = PROMISED.lines().map(str::to_owned).collect();
    let gone: Vec<_> = promised.difference(&names).collect();
    assert!(
        gone.is_empty(),
        "keep them for a release (docs/operating/compatibility.md): {gone:#?}"
    );
    let new: Vec<_> = names.difference(&promised).collect();
    assert!(
        new.is_empty(),
        "add them to allocator/tests/behaviour/names.txt: {new:#?}"
    );
}
