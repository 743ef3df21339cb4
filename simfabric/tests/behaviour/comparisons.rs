//! `simfabric compare`: files that it compares, and files that it refuses.

use std::path::PathBuf;

use tempfile::TempDir;

use crate::common::{simfabric, text};

/// A file of results in a directory.
fn result_in(dir: &TempDir, name: &str, json: &str) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, json).unwrap();
    path
}

/// A summary and a figure have no number in common: that is a mistake, not a difference.
#[test]
fn only_results_of_a_kind_are_compared() {
    let dir = TempDir::new().unwrap();
    let file = |name: &str, json: &str| result_in(&dir, name, json);
    let summary = file("s.json", r#"{ "transports": { "dctcp": { "drops": 0 } } }"#);
    let figure = file("f.json", r#"{ "rows": [{ "name": "a", "ours": 1.5 }] }"#);
    let other = file("o.json", r#"{ "rows": [{ "name": "a", "ours": 1.5 }] }"#);
    // Nothing on standard output: a script that reads it must not find half a comparison.
    let output = simfabric(&["compare", text(&summary), text(&figure)]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(
        error.starts_with("error: ") && error.trim_end().lines().count() == 1,
        "{error}"
    );
    assert!(
        error.contains("s.json is a summary of a plan") && error.contains("f.json is a figure"),
        "{error}"
    );
    assert!(
        simfabric(&["compare", text(&figure), text(&other)])
            .status
            .success()
    );
}

/// Two different figures, and summaries without a common transport, are refused. Summaries of
/// different plans or seeds are compared, and the output names both.
#[test]
fn results_of_different_things_are_said_to_be() {
    let dir = TempDir::new().unwrap();
    let file = |name: &str, json: &str| result_in(&dir, name, json);
    let figure = |name: &str, figure: &str, quick: bool, ours: f64| {
        let json = serde_json::json!({
            "figure": figure, "seed": 1, "commit": "c", "quick": quick, "rows": [{ "name": "a", "ours": ours }],
        });
        file(name, &json.to_string())
    };
    let summary = |name: &str, plan: &str, seed: u32, transport: &str| {
        let json = serde_json::json!({
            "plan": plan, "seed": seed, "commit": "c", "transports": { transport: { "drops": 1 } },
        });
        file(name, &json.to_string())
    };
    let (e, g) = (
        figure("e.json", "flowtune-e", true, 1.5),
        figure("g.json", "flowtune-g", true, 1.5),
    );
    let output = simfabric(&["compare", text(&e), text(&g)]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(
        error.contains("results of different things")
            && error.contains("e.json is flowtune-e")
            && error.contains("g.json is flowtune-g"),
        "{error}"
    );
    let (one, two, three) = (
        summary("1.json", "a.toml", 1, "dctcp"),
        summary("2.json", "b.toml", 2, "dctcp"),
        summary("3.json", "b.toml", 2, "xcp"),
    );
    let output = simfabric(&["compare", text(&one), text(&three)]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(
        error.contains("results of different things") && error.contains("dctcp in A, xcp in B"),
        "{error}"
    );
    for (a, b, said) in [
        (&one, &two, &["A: a.toml, seed 1", "B: b.toml, seed 2"][..]),
        (&one, &one, &[]),
        (
            &e,
            &figure("f.json", "flowtune-e", false, 1.5),
            &["short form", "long form"],
        ),
    ] {
        let output = simfabric(&["compare", text(a), text(b)]);
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{out}");
        for part in said {
            assert!(out.contains(part), "{out}");
        }
        // The count of numbers is always there; files of different origin have a line each before
        // it.
        assert_eq!(
            out.lines().count(),
            if said.is_empty() { 1 } else { 3 },
            "{out}"
        );
        assert!(out.contains("0 differ"), "{out}");
    }
}
