//! Hundreds of slow connections on busy cores, through lapse: every byte arrives. The whole of it
//! is `make lab SCENARIO=safety`. Kernels differ in when they leave BPF programs out. The daemon's
//! own test `slow_flows_all_end` provokes it more often than a whole lab does.

use crate::common::{number, require_control_plane, results};

#[test]
fn hundreds_of_slow_connections_all_end() {
    require_control_plane();
    let value = results(&[
        "safety",
        "--no-baseline",
        "--connections",
        "150",
        "--duration-scale",
        "0.14",
        "--backend",
        "sock_ops",
        "--fates",
        "leased,lapsed",
        "--family",
        "4",
        "--runs",
        "1",
    ]);
    let rows = value["with"]["safety"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    assert_eq!(rows.len(), 2, "{value:#}");
    for row in &rows {
        // One run of each fate.
        assert_eq!(number(row, &["connections"]), 150.0, "{row}");
        for key in ["unfinished", "broken", "missing_bytes", "silent_backoff"] {
            assert_eq!(number(row, &[key]), 0.0, "{key}: {row}");
        }
        // A third is bulk. The others are limited by themselves, and run as plain TCP. So does a
        // bulk flow that busy cores keep from its rate. Without rates in force nothing would be
        // shown.
        assert!(number(row, &["held"]) >= 25.0, "few had a rate: {row}");
    }
}
