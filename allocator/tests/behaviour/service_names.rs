//! Names that other programs depend on: metrics with the values of their labels, and members of
//! JSON answers.

use std::collections::BTreeSet;

use ratewright_proto::telemetry::{AccessUse, HostFaults, LinkUse};
use serde_json::Value;

use crate::promised::{assert_kept, collect, collect_families, collect_metrics};
use crate::service_support::host::TestHost;
use crate::service_support::process::{AllocatorProcess, TestSite};
use crate::service_support::{PATIENCE, wait_for};

/// Names that stand until a release after the one that says they will go.
const PROMISED: &str = include_str!("names.txt");
const PROMISED_BY_RELAYS: &str = include_str!("names_relay.txt");

/// Source of the allocator's metrics.
const METRICS: &str = include_str!("../../src/service/admin/metrics.rs");

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
    collect_families(METRICS, "ratewright_allocator_", "/v1/metrics", &mut names);
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

    assert_kept(PROMISED, "allocator/tests/behaviour/names.txt", &names);
}

#[test]
fn no_metric_and_no_member_of_a_relays_answer_goes_without_notice() {
    let site = TestSite::new();
    let trust = "[trust.relays]\nrelay-1 = [\"h1\"]\n[transport]\nhot = \"udp\"\n";
    site.write("allocator.toml", &site.config("127.0.0.1:0", trust));
    let allocator = site.start();
    let relay = site.start_relay(&[allocator.listen], "[transport]\nhot = \"udp\"\n");
    let _host = TestHost::connect(&site.authority, relay.listen, "h1").established();
    let mut names = BTreeSet::new();
    let (_, metrics) = relay.request("GET", "/v1/metrics", "");
    collect_metrics(&metrics, "/v1/metrics", &mut names);
    let (code, text) = relay.request("GET", "/v1/status", "");
    assert_eq!(code, 200, "{text}");
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    collect(&answer, "/v1/status ", &mut names);
    assert_kept(
        PROMISED_BY_RELAYS,
        "allocator/tests/behaviour/names_relay.txt",
        &names,
    );
}
