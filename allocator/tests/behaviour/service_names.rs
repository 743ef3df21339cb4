//! Names that other programs depend on: metrics, and members of JSON answers.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::service_support::host::TestHost;
use crate::service_support::process::TestSite;

/// Names that stand until a release after the one that says they will go.
const PROMISED: &str = include_str!("names.txt");

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

#[test]
fn no_metric_and_no_member_of_an_answer_goes_without_notice() {
    let site = TestSite::new();
    let allocator = site.start();
    let host = TestHost::connect(&site.authority, allocator.listen, "h1").established();
    let flow = host.start(0, "h16");
    host.wait_rate(flow, 9_700_000_000..=10_000_000_000);

    let mut names = BTreeSet::new();
    let (_, metrics) = allocator.request("GET", "/v1/metrics", "");
    for line in metrics.lines() {
        if let Some(name) = line.strip_prefix("# TYPE ") {
            let name = name.split(' ').next().unwrap_or_default();
            names.insert(format!("/v1/metrics {name}"));
        }
    }
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
