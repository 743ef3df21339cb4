//! Links and hosts that are not as told: from hosts' words over real sessions to every place where
//! operators look.

use std::time::Duration;

use ratewright_proto::telemetry::{AccessUse, HostFaults, LinkUse};
use serde_json::Value;

use crate::service_support::host::TestHost;
use crate::service_support::process::{AllocatorProcess, TestSite};
use crate::service_support::{PATIENCE, pause, wait_for};

const GBIT: u64 = 1_000_000_000;
const LINK: &str = "leaf4->h16";
const LINK_LINE: &str = "a link is not as the allocator was told";
const HOST_LINE: &str = "a host has a fault";

fn ask(allocator: &AllocatorProcess, path: &str) -> Value {
    let (code, body) = allocator.request("GET", path, "");
    assert_eq!(code, 200, "{path}: {body}");
    serde_json::from_str(&body).expect("JSON")
}

/// Returns the state of the link in a list of links, if it is there.
fn state_in(links: &Value) -> Option<&str> {
    let mut links = links.as_array()?.iter();
    links.find(|link| link["name"] == LINK)?["state"].as_str()
}

/// Returns the faults in a list as host, fault, and the host that has seen it.
fn faults_in(hosts: &Value) -> Vec<[&str; 3]> {
    let hosts = hosts.as_array().into_iter().flatten();
    hosts
        .map(|host| ["host", "fault", "seen_at"].map(|key| host[key].as_str().unwrap_or_default()))
        .collect()
}

/// Returns the state of the link in the answer to `explain` about the flow over it.
fn explained(answer: &Value) -> Option<&str> {
    let links = answer["flows"][0]["links"].as_array()?;
    let link = links.iter().find(|link| link["name"] == LINK)?;
    link["check"]["state"].as_str()
}

/// Counts the lines of the log that have all of these words.
fn logged(allocator: &AllocatorProcess, words: &[&str]) -> usize {
    let log = allocator.log();
    log.lines()
        .filter(|line| words.iter().all(|word| line.contains(word)))
        .count()
}

/// Tells of an interface of this speed to the host.
fn speed(gbps: u64) -> AccessUse {
    AccessUse {
        downlink: LinkUse {
            speed_bps: gbps * GBIT,
            ..LinkUse::default()
        },
        ..AccessUse::default()
    }
}

fn has_faults(faults: HostFaults) -> AccessUse {
    AccessUse {
        faults,
        ..AccessUse::default()
    }
}

#[test]
fn a_slow_link_and_faulty_hosts_are_named_in_every_place_and_logged_once() {
    let site = TestSite::new();
    let allocator = site.start();
    let host = |name| TestHost::connect(&site.authority, allocator.listen, name).established();
    let (sender, other, receiver) = (host("h1"), host("h2"), host("h16"));
    let flow = sender.start(0, "h16");
    sender.wait_rate(flow, 9_700_000_000..=10_000_000_000);
    receiver.tell(speed(10));
    wait_for("the receiver's link is as told", PATIENCE, || {
        explained(&ask(&allocator, "/explain?from=h1&to=h16")) == Some("as_told")
    });
    let status = allocator.status();
    assert_eq!(status["links_not_as_told"], serde_json::json!([]));
    assert_eq!(status["hosts_not_as_told"], serde_json::json!([]));

    // An interface of 8 of 10 Gbit/s; a host that has its address no more; one with an address in
    // the first one's prefixes.
    let words = || {
        let in_prefixes_of = vec![other.number_of("h1")];
        receiver.tell(speed(8));
        sender.tell(has_faults(HostFaults {
            no_address: true,
            ..HostFaults::default()
        }));
        other.tell(has_faults(HostFaults {
            in_prefixes_of,
            ..HostFaults::default()
        }));
    };
    words();
    let expected = [
        ["h1", "address_not_in_prefix", ""],
        ["h1", "prefix_of_several_hosts", "h2"],
    ];
    wait_for("all are named", PATIENCE, || {
        let status = allocator.status();
        state_in(&status["links_not_as_told"]) == Some("carries_less")
            && faults_in(&status["hosts_not_as_told"]) == expected
    });
    let status = allocator.status();
    let link = &status["links_not_as_told"][0];
    assert_eq!(link["speed_bps"], 8e9, "{link}");
    assert!(link["told_bps"].as_f64() > Some(9.7e9), "{link}");
    // Nothing tells that it is congested: its flows keep their rates.
    assert_eq!(link["lowered_bps"], Value::Null, "{link}");

    let overview = ask(&allocator, "/overview");
    assert_eq!(overview["links_not_as_told"], 1);
    assert_eq!(state_in(&overview["not_as_told"]), Some("carries_less"));
    assert_eq!(faults_in(&overview["faults"]), expected);

    let explanation = ask(&allocator, "/explain?from=h1&to=h16");
    assert_eq!(explained(&explanation), Some("carries_less"));
    let faults = explanation["from"]["faults"].to_string();
    for [_, fault, _] in expected {
        assert!(faults.contains(fault), "{explanation}");
    }
    assert_eq!(explanation["to"]["faults"], serde_json::json!([]));

    let of_link = r#"{state="carries_less"}"#;
    let of_faults = [
        r#"{fault="address_not_in_prefix"}"#,
        r#"{fault="prefix_of_several_hosts"}"#,
    ];
    let metric = |what: &str, label: &str| {
        allocator.metric(&format!("ratewright_allocator_{what}_not_as_told{label}"))
    };
    let counted = |what: &str, label: &str| metric(what, &format!("_total{label}"));
    assert_eq!(metric("links", of_link), 1.0);
    for label in of_faults {
        assert_eq!(metric("hosts", label), 1.0, "{label}");
    }

    // A daemon repeats its word now and then. Each name has one line.
    words();
    pause(Duration::from_millis(1_500));
    assert_eq!(counted("links", of_link), 1.0);
    assert_eq!(logged(&allocator, &[LINK_LINE]), 1);
    assert_eq!(logged(&allocator, &[LINK_LINE, LINK, "carries_less"]), 1);
    for ([host, fault, seen_at], label) in expected.into_iter().zip(of_faults) {
        assert_eq!(counted("hosts", label), 1.0, "{label}");
        assert_eq!(logged(&allocator, &[HOST_LINE, host, fault, seen_at]), 1);
    }
    assert_eq!(logged(&allocator, &[HOST_LINE]), 2);

    receiver.tell(speed(10));
    sender.tell(AccessUse::default());
    other.tell(AccessUse::default());
    wait_for("all are taken back", PATIENCE, || {
        let status = allocator.status();
        [&status["links_not_as_told"], &status["hosts_not_as_told"]]
            .into_iter()
            .all(|list| list.as_array().is_some_and(Vec::is_empty))
    });
    let explanation = ask(&allocator, "/explain?from=h1&to=h16");
    assert_eq!(explained(&explanation), Some("as_told"));
    assert_eq!(explanation["from"]["faults"], serde_json::json!([]));
    // The gauges are as of the newest snapshot, the counters stay.
    wait_for("nothing is counted as named", PATIENCE, || {
        metric("links", of_link) == 0.0 && of_faults.map(|label| metric("hosts", label)) == [0.0; 2]
    });
    assert_eq!(counted("links", of_link), 1.0);
    wait_for("each is said to be over", PATIENCE, || {
        logged(&allocator, &[LINK, "before=", "carries_less"]) == 1
            && logged(&allocator, &["a host has a fault no more"]) == 2
    });
}

#[test]
fn the_traffic_of_others_is_named_with_its_sender_and_logged_once() {
    const STRANGER: &str = "192.0.2.7";
    let site = TestSite::new();
    let allocator = site.start();
    let host = |name| TestHost::connect(&site.authority, allocator.listen, name).established();
    let (sender, receiver) = (host("h1"), host("h16"));
    let flow = sender.start(0, "h16");
    sender.wait_rate(flow, 9_700_000_000..=10_000_000_000);
    receiver.tell(AccessUse {
        downlink: LinkUse {
            strangers: 1,
            stranger: STRANGER.parse().ok(),
            ..LinkUse::default()
        },
        ..AccessUse::default()
    });
    let state = Some("has_others_traffic");
    wait_for("others' traffic is named", PATIENCE, || {
        state_in(&allocator.status()["links_not_as_told"]) == state
    });
    let cause = format!("unknown address {STRANGER}");
    let named = allocator.status()["links_not_as_told"][0].clone();
    assert_eq!(named["cause"], cause.as_str(), "{named}");
    let shown = ask(&allocator, "/overview")["not_as_told"][0].clone();
    assert_eq!(state_in(&serde_json::json!([shown])), state);
    assert_eq!(shown["cause"], cause.as_str(), "{shown}");
    let explanation = ask(&allocator, "/explain?from=h1&to=h16");
    assert_eq!(explained(&explanation), state);
    assert!(explanation.to_string().contains(&cause), "{explanation}");
    let label = r#"{state="has_others_traffic"}"#;
    let metric = format!("ratewright_allocator_links_not_as_told{label}");
    assert_eq!(allocator.metric(&metric), 1.0);
    pause(Duration::from_millis(1_500));
    assert_eq!(logged(&allocator, &[STRANGER]), 1, "{}", allocator.log());
    receiver.tell(AccessUse::default());
    wait_for("it is taken back", PATIENCE, || {
        state_in(&allocator.status()["links_not_as_told"]).is_none()
    });
}
