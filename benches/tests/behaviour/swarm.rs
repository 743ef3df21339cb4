//! `ratewright-bench swarm` plays real sessions with a real allocator, and both ends agree at its
//! end.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

fn swarm(args: &[&str]) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_ratewright-bench"));
    // The allocator stands beside the program.
    let allocator = program.with_file_name("ratewright-allocator");
    assert!(
        allocator.is_file(),
        "{} is missing: cargo build -p ratewright-allocator",
        allocator.display()
    );
    std::process::Command::new(program)
        .arg("swarm")
        .args(args)
        .output()
        .unwrap()
}

fn json_of(args: &[&str]) -> Value {
    let output = swarm(&[args, &["--json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {said}");
    // Scripts read standard output and may merge standard error into it.
    assert_eq!(said, "", "nothing but the object is printed");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn check(result: &Value) {
    for quantile in ["p50", "p99", "p999"] {
        assert!(
            result["start_to_rate_us"][quantile].as_f64().unwrap() > 0.0,
            "{result}"
        );
    }
    for figure in [
        "updates_per_s",
        "updates_per_s_per_core",
        "control_share_of_capacity",
        "allocator_cpu_s",
    ] {
        assert!(result[figure].as_f64().unwrap() > 0.0, "{figure}: {result}");
    }
    assert_eq!(result["lost_views"], 0, "{result}");
}

/// Hosts that join and leave cost the others neither a session nor a lease, and these hear of each.
#[test]
fn guests_come_and_go_beside_others() {
    let result = json_of(&[
        "--sessions",
        "32",
        "--flows",
        "64",
        "--churn",
        "100",
        "--guests",
        "40",
        "--guest-rate",
        "10",
        "--seconds",
        "9",
    ]);
    let count = |name: &str| result[name].as_u64().unwrap();
    assert!(count("joins") >= 85, "{result}");
    // Half a round after the beginning the first one leaves, ten a second from then on.
    assert!(count("left") >= 65, "{result}");
    assert_eq!(count("joined"), count("left"), "{result}");
    assert!(count("changes_heard") >= 100, "{result}");
    assert_eq!(
        (count("sessions_lost"), count("leases_lapsed")),
        (0, 0),
        "{result}"
    );
}

/// Runs eight hosts with 64 flows under churn for a second, and returns the figures.
fn json_of_churn(transport: &str) -> Value {
    json_of(&[
        "--transport",
        transport,
        "--sessions",
        "8",
        "--flows",
        "64",
        "--seconds",
        "1",
        "--churn",
        "500",
    ])
}

#[test]
fn sealed_sessions_keep_their_flows_and_agree_at_the_end() {
    let result = json_of_churn("udp");
    // Both transports keep the same promises.
    check(&result);
    assert_eq!(result["flows"], 64);
    assert_eq!(result["transport"], "udp");
}

#[test]
fn quic_sessions_keep_their_flows_and_agree_at_the_end() {
    let result = json_of_churn("quic");
    check(&result);
    assert_eq!(result["flows"], 64);
    assert_eq!(result["fallbacks"], 0);
}

#[test]
fn a_workload_over_a_bad_network_leaves_both_ends_with_the_same_view() {
    let result = json_of(&[
        "--sessions",
        "20",
        "--workload",
        "web",
        "--load",
        "0.5",
        "--churn",
        "400",
        "--seconds",
        "1",
        "--loss",
        "0.1",
        "--reorder",
        "0.2",
        // As it is: what is lost is repeated within milliseconds.
        "--nominal-bps",
        "10000",
    ]);
    check(&result);
    assert_eq!(result["slow_motion"], 1.0);
    assert!(result["datagrams_lost_on_purpose"].as_u64().unwrap() > 0);
    assert_eq!(result["load"], 0.5);
}

#[test]
fn a_fabric_in_slow_motion_leaves_both_ends_with_the_same_view() {
    let args = [
        "--sessions",
        "20",
        "--workload",
        "web",
        "--churn",
        "400",
        "--seconds",
        "1",
    ];
    let result = json_of(&args);
    check(&result);
    // 400 flowlets of the workload's mean size are 0.8 of the capacity of 20 hosts.
    let slow_motion = result["slow_motion"].as_f64().unwrap();
    let host_bps = result["host_bps"].as_f64().unwrap();
    assert!(
        (slow_motion * host_bps / 10e9 - 1.0).abs() < 1e-6,
        "{slow_motion} {host_bps}"
    );
    assert_eq!(result["fallbacks"], 0);
}

#[test]
fn the_settings_of_a_slow_fabric_are_printed_for_an_allocator_of_ones_own() {
    let nominal = [
        "--workload",
        "web",
        "--host-bps",
        "1000000",
        "--nominal-bps",
        "10000000",
    ];
    let output = swarm(&[&nominal[..], &["--print-settings"]].concat());
    assert!(output.status.success());
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        table,
        "[allocation]\nlease_ms = 3000\nliveness_ms = 10000\nack_delay_ms = 200\nupdate_interval_us = 300\n"
    );
}

#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    for (args, names) in [
        (["--seconds", "0"], "--seconds"),
        (["--workload", "nonsense"], "nonsense"),
        (["--loss", "1.5"], "--loss"),
        (["--bin-dir", "/nonexistent"], "--bin-dir"),
    ] {
        let output = swarm(&args);
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(names), "{args:?}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
        assert!(output.stdout.is_empty());
    }
}
