//! Helpers for tests of the commands: running the program, and a valid plan.

#![allow(dead_code, reason = "each test program uses a part of this module")]

use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

/// Schemes that the Flowtune paper does not compare. Those of senders run over a queue that loses
/// packets at random. Not over drop-tail: with hosts and bottleneck at one rate and nothing random,
/// one flow's packets always come when a place falls free, and the others' never (Floyd and
/// Jacobson, "Traffic phase effects in packet-switched gateways", 1991).
pub(crate) const OTHERS: &str = r#"
queue = { discipline = "red", min_packets = 15, max_packets = 45, limit_packets = 100 }

[[transport]]
name = "newreno"
label = "NewReno"
min_rto = "200us"
initial_rto = "1ms"

[[transport]]
name = "cubic"
label = "CUBIC"
min_rto = "200us"
initial_rto = "1ms"

[[transport]]
name = "dctcp"
label = "DCTCP over RPM"
queue = { discipline = "rpm", each = { discipline = "ecn-threshold", mark_packets = 65 } }

[[transport]]
name = "swift"
label = "Swift"
queue = { discipline = "drop-tail" }

[[transport]]
name = "homa"
label = "Homa"
rtt_bytes = 250000
queue = { discipline = "drop-tail" }

[[transport]]
name = "sird"
label = "SIRD"
bdp_bytes = 250000
queue = { discipline = "ecn-threshold", mark_bytes = 31250 }

[[transport]]
name = "dcpim"
label = "dcPIM"
queue = { discipline = "drop-tail" }
"#;

/// Schemes whose packets must come back the way of those that they answer, but for RDMA's.
pub(crate) const SYMMETRIC: &str = r#"
[[transport]]
name = "expresspass"
"#;

/// The RDMA schemes, over the buffers that they bring.
pub(crate) const RDMA: &str = r#"
[[transport]]
name = "hpcc"

[[transport]]
name = "fncc"

[[transport]]
name = "powertcp"

[[transport]]
name = "theta-powertcp"

[[transport]]
name = "dcqcn"

[[transport]]
name = "dcqcn"
label = "dcqcn-nic"
reaction = "periodic"

[[transport]]
name = "dart"

[[transport]]
name = "timely"

[[transport]]
name = "timely"
label = "timely-patched"
patched = true

[[transport]]
name = "rocc"

[[transport]]
name = "rcp"
"#;

/// Runs the program.
pub(crate) fn simfabric(arguments: &[&str]) -> Output {
    // The real program, not its functions: exit codes and streams are part of what it promises.
    let mut command = Command::cargo_bin("simfabric").expect("the program is built with its tests");
    command
        .args(arguments)
        .output()
        .expect("the program starts")
}

/// Directory of the project's plans.
pub(crate) fn plans() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("plans")
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are UTF-8")
}

/// Runs a plan and returns its summary.
pub(crate) fn run(plan: &Path, out: &Path, more: &[&str]) -> Value {
    let mut arguments = vec!["run", text(plan), "--out", text(out)];
    arguments.extend(more);
    let output = simfabric(&arguments);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let summary = std::fs::read_to_string(out.join("summary.json")).expect("a summary is written");
    serde_json::from_str(&summary).expect("the summary is JSON")
}

/// A valid plan: eight hosts for a millisecond.
pub(crate) const GOOD: &str = r#"
[run]
duration = "1ms"

[topology]
kind = "leaf-spine"
racks = 2
hosts_per_rack = 4
spines = 2
host_rate = "10Gbit/s"
fabric_rate = "20Gbit/s"
link_delay = "1us"

[queue]
discipline = "drop-tail"

[transport]
name = "fixed-window"
packets = 10

[[workload]]
kind = "poisson"
load = 0.5
sizes = "web"
"#;
