//! Ctrl-C on a real process: SIGINT stops the runs, and the program reports their progress.

use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// Starts the program and interrupts it once it has created `out`, which it does after it listens
/// for signals. Returns its exit code and standard error.
fn interrupted(arguments: &[&str], out: &Path) -> (Option<i32>, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_simfabric"))
        .args(arguments)
        .arg("--out")
        .arg(out)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut ended = None;
    // No sleep and no bound on time: a busy machine may take long to get here.
    while !out.exists() && ended.is_none() {
        ended = child.try_wait().expect("a child can be waited for");
        std::thread::yield_now();
    }
    if ended.is_none() {
        // The handler stands before `out` does, so the signal cannot end the program by default.
        let pid = i32::try_from(child.id()).expect("process numbers are small");
        kill(Pid::from_raw(pid), Signal::SIGINT).expect("the child is there");
    }
    let output = child.wait_with_output().expect("the program ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

#[test]
fn an_interrupted_run_says_how_far_it_got_and_writes_what_there_is() {
    let dir = TempDir::new().unwrap();
    let (plan, out) = (dir.path().join("plan.toml"), dir.path().join("out"));
    // Ten simulated seconds: only the stop ends the run.
    std::fs::write(&plan, crate::common::GOOD.replace("1ms", "10s")).unwrap();
    let (code, said) = interrupted(&["run", plan.to_str().unwrap()], &out);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("stopped: fixed-window at ") && said.contains(" ms;"),
        "{said}"
    );
    let summary = std::fs::read_to_string(out.join("summary.json")).unwrap();
    let summary: Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(summary["complete"], false);
    assert!(out.join("flows-fixed-window.csv").exists());
}

#[test]
fn an_interrupted_reproduction_says_how_far_it_got() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out");
    let (code, said) = interrupted(&["reproduce", "flowtune", "G"], &out);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("stopped: G had simulated ") && said.contains("no figure is written"),
        "{said}"
    );
    // Figure 11 in its long form takes minutes; nothing of it can be done yet.
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0);
}
