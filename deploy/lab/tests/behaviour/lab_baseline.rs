//! The lab's network and measurement, without any part of Ratewright.

use anyhow::ensure;

use crate::common::tries::best_of_three;
use crate::common::{number, results};

#[test]
fn a_fairness_baseline_fills_the_link_and_is_not_fair() {
    best_of_three(|| {
        let value = results(&[
            "fairness",
            "--only-baseline",
            "--hosts",
            "5",
            "--duration-scale",
            "0.8",
        ]);
        assert_eq!(value["scenario"], "fairness");
        assert!(value["with"].is_null());
        let used = number(&value, &["without", "utilization_active"]);
        assert!(used <= 1.01, "more than the bottleneck carries: {used}");
        let least = number(&value, &["without", "jain_settled_min"]);
        let median = number(&value, &["without", "jain_settled_median"]);
        assert!(least <= median && median <= 1.0);
        assert!(
            least > 0.0 && least < 0.999,
            "Cubic oscillates (flowtune §5.1 A): {least}"
        );
        assert!(number(&value, &["without", "jain_settled_windows"]) > 10.0);
        ensure!(used >= 0.85, "Cubic keeps the bottleneck busy: {used}");
        Ok(())
    });
}

#[test]
fn a_coflow_takes_at_least_the_time_of_its_bytes() {
    let value = results(&[
        "coflow",
        "--only-baseline",
        "--hosts",
        "5",
        "--runs",
        "2",
        "--duration-scale",
        "0.3",
    ]);
    let completion = &value["without"]["completion_s"];
    assert_eq!(completion["runs"], 2);
    assert!(
        number(completion, &["p50"]) >= 0.45,
        "1.5 s × 0.3 at full speed: {completion}"
    );
    assert!(number(completion, &["p50"]) <= number(completion, &["p95"]));
    assert_eq!(completion["transfers"]["count"], 2 * 4 * 25);
}

/// The packets' path choice must reach every host over either address family, or flows would fail.
#[test]
fn a_clos_carries_cross_traffic_of_both_address_families() {
    let value = results(&["mixed", "--only-baseline", "--duration-scale", "0.4"]);
    let weights = value["without"]["weights"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    assert_eq!(weights.len(), 3);
    for weight in &weights {
        assert!(number(weight, &["rate_mbps"]) > 5.0, "{weight}");
    }
    assert_eq!(number(&value, &["without", "connections_lost"]), 0.0);
    assert!(number(&value, &["without", "short_flow_ms", "count"]) > 50.0);
}
