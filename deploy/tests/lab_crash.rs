//! Whatever ends a lab, nothing of it stays: no namespace, no control group, no process.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ratewright_lab::clock;
use ratewright_lab::net::cgroup;

const PATIENCE_S: u64 = 15;

/// Starts a long lab and waits until its traffic runs.
fn start(directory: &std::path::Path) -> Child {
    let child = Command::new(common::program())
        .args([
            "lab",
            "fairness",
            "--only-baseline",
            "--plain",
            "--duration-scale",
            "20",
            "--json",
        ])
        .arg(directory.join("results.json"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let started = wait_until(|| processes(&group(child.id())).len() >= 9);
    assert!(
        started,
        "the lab's traffic programs do not run after {PATIENCE_S} s"
    );
    child
}

fn group(lab: u32) -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    cgroup::mount_in(&mounts)
        .unwrap()
        .join(format!("rwlab-{lab}"))
}

fn processes(group: &std::path::Path) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir(group) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("cgroup.procs")).ok())
        .flat_map(|text| {
            text.lines()
                .filter_map(|line| line.parse().ok())
                .collect::<Vec<i32>>()
        })
        .collect()
}

fn wait_until(condition: impl Fn() -> bool) -> bool {
    (0..PATIENCE_S * 20).any(|_| {
        clock::sleep(Duration::from_millis(50));
        condition()
    })
}

fn namespaces(lab: u32) -> Vec<String> {
    ratewright_lab::net::ns::list(&format!("rwlab-{lab}-"))
}

fn nothing_stays_after(signal: Signal) {
    common::require_root();
    let _alone = common::alone();
    let directory = tempfile::tempdir().unwrap();
    let mut lab = start(directory.path());
    let (id, group) = (lab.id(), group(lab.id()));
    let pids = processes(&group);
    assert!(
        namespaces(id).len() >= 11,
        "nine hosts, the allocator's place and the switch"
    );

    kill(Pid::from_raw(id as i32), signal).unwrap();
    let status = lab.wait().unwrap();
    assert!(
        !status.success(),
        "a lab that did not run to its end is no success"
    );
    let clean = || {
        namespaces(id).is_empty()
            && !group.exists()
            && pids
                .iter()
                .all(|pid| kill(Pid::from_raw(*pid), None).is_err())
    };
    assert!(
        wait_until(clean),
        "left: {:?}, {:?}, {:?}",
        namespaces(id),
        group.exists(),
        processes(&group)
    );
}

#[test]
fn after_sigkill_the_watchdog_removes_everything() {
    nothing_stays_after(Signal::SIGKILL);
}

#[test]
fn after_ctrl_c_the_lab_removes_everything() {
    nothing_stays_after(Signal::SIGINT);
}
