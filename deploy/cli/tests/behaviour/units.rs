//! The systemd units stay hardened: `systemd-analyze security` gives each at most the exposure
//! that [SPECIFICATION.md](../../../SPECIFICATION.md) promises.

use std::path::PathBuf;
use std::process::Command;

fn unit(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../systemd")
        .join(name)
}

/// Exposure from 0 (none) to 10, as the command's last line says.
fn exposure(name: &str) -> f64 {
    let output = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--no-pager"])
        .arg(unit(name).canonicalize().expect("the unit is there"))
        .env("LC_ALL", "C")
        .output()
        .expect("systemd-analyze is in Debian's package systemd: scripts/setup.sh check");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{name}: {output:?}");
    let level = text
        .lines()
        .find_map(|line| line.split_once("Overall exposure level for "))
        .and_then(|(_, rest)| rest.split_once(": "))
        .and_then(|(_, rest)| rest.split_whitespace().next())
        .unwrap_or_else(|| panic!("{name}: no overall level in {text}"));
    level
        .parse()
        .unwrap_or_else(|e| panic!("{name}: {level}: {e}"))
}

#[test]
fn the_allocator_and_the_relay_are_exposed_by_two_at_most() {
    for name in ["ratewright-allocator.service", "ratewright-relay.service"] {
        let level = exposure(name);
        assert!(level <= 2.0, "{name}: {level}");
    }
}

#[test]
fn the_endpoint_daemon_is_exposed_by_four_and_a_half_at_most() {
    let level = exposure("ratewright-endpointd.service");
    assert!(level <= 4.5, "{level}");
}

#[test]
fn the_endpoint_daemon_keeps_what_bpf_needs() {
    let text = std::fs::read_to_string(unit("ratewright-endpointd.service")).unwrap();
    let line = |key: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix(key));
        lines.collect::<Vec<_>>().join(" ")
    };
    let capabilities = line("CapabilityBoundingSet=");
    for needed in ["BPF", "PERFMON", "NET_ADMIN", "SYS_ADMIN", "SYS_RESOURCE"] {
        let name = format!("CAP_{needed}");
        assert!(capabilities.contains(&name), "{name}: {capabilities}");
    }
    let calls = line("SystemCallFilter=");
    for needed in ["bpf", "setns", "unshare", "mount", "umount2"] {
        assert!(
            calls.split_whitespace().any(|call| call == needed),
            "{needed}: {calls}"
        );
    }
    assert_eq!(line("LimitMEMLOCK="), "infinity");
    assert!(!text.contains("ProtectKernelTunables=yes"), "sysctls");
}
