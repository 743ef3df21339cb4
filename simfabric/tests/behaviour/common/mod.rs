//! Helpers for tests of the commands and of plans: running them, and a valid plan.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use ratewright_simfabric::plan::{Overrides, PlanError, RunPlan, TransportRun};
use serde_json::Value;

/// Runs the program.
pub(crate) fn simfabric(arguments: &[&str]) -> Output {
    // The real program, not its functions: exit codes and streams are part of what it promises.
    let mut command = Command::cargo_bin("simfabric").expect("the program is built with its tests");
    command
        .args(arguments)
        .output()
        .expect("the program starts")
}

/// Reads a plan, with this seed in place of its own.
pub(crate) fn parse_plan(text: &str, seed: u64) -> Result<RunPlan, PlanError> {
    let overrides = Overrides {
        seed: Some(seed),
        ..Overrides::default()
    };
    RunPlan::parse(text, "plan", Path::new(""), &overrides)
}

/// Runs a plan's first transport to its end.
pub(crate) fn run_plan(plan: &RunPlan) -> TransportRun {
    plan.run(&plan.transports[0], |_| ControlFlow::Continue(()))
        .expect("it runs, and conserves packets")
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
