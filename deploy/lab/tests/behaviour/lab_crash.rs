//! Whatever ends a lab, nothing of it stays: no namespace, no control group, no process, no file in
//! /run or among temporary ones, no changed setting, no congestion control.

#![allow(unsafe_code)] // a terminal as a child's own

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ratewright_cli::clock;
use ratewright_lab::net::cgroup;

const PATIENCE_S: u64 = 30;

/// Kind of lab to crash.
#[derive(Clone, Copy)]
enum LabKind {
    /// Eight senders and a receiver.
    Baseline,
    /// Three senders, a receiver, four daemons with their BPF programs, the allocator.
    Full,
}

const PROCESSES: usize = 9;

fn command(kind: LabKind, directory: &Path) -> Command {
    let mut command = Command::new(crate::common::program());
    command.args(["fairness", "--duration-scale", "20"]);
    match kind {
        LabKind::Baseline => command.arg("--only-baseline"),
        LabKind::Full => command.args(["--no-baseline", "--hosts", "4"]),
    };
    command
        .arg("--json")
        .arg(directory.join("results.json"))
        .env("TMPDIR", directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Starts a long lab and waits until its traffic runs.
fn start(mut command: Command) -> Child {
    let child = command.spawn().unwrap();
    let started = wait_until(|| processes(&group(child.id())).len() >= PROCESSES);
    assert!(
        started,
        "the lab's programs do not run after {PATIENCE_S} s"
    );
    child
}

fn group(lab: u32) -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    cgroup::mount_in(&mounts)
        .unwrap()
        .join(format!("rwlab-{lab}"))
}

fn processes(group: &Path) -> Vec<i32> {
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

fn allowed() -> String {
    std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control").unwrap()
}

/// The machine before a lab and what it has of one that runs.
struct Before {
    allowed: String,
    lab: u32,
    pids: Vec<i32>,
}

impl Before {
    fn of(lab: u32, allowed: String) -> Before {
        Before {
            allowed,
            lab,
            pids: processes(&group(lab)),
        }
    }

    /// Lists the lab's remains.
    fn left(&self) -> Vec<String> {
        let mut left = namespaces(self.lab);
        let mut found = |what: String, is_there: bool| left.extend(is_there.then_some(what));
        found("its control group".to_owned(), group(self.lab).exists());
        for pid in &self.pids {
            let alive = kill(Pid::from_raw(*pid), None).is_ok();
            found(format!("process {pid}"), alive);
        }
        let run_dir = PathBuf::from(format!("/run/ratewright-lab/{}", self.lab));
        found("its run directory".to_owned(), run_dir.exists());
        found(
            "its mark of a changed setting".to_owned(),
            Path::new("/run/ratewright-lab.allowed-congestion-control").exists(),
        );
        found(
            format!("allowed congestion controls: {}", allowed().trim()),
            allowed().trim() != self.allowed.trim(),
        );
        // The daemons' congestion controls have the lab's number in their names.
        let available =
            std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
        let instance = ratewright_lab::cleanup::instances(self.lab);
        found(
            format!("congestion controls: {}", available.trim()),
            available.contains(&instance),
        );
        for place in ["/run/ratewright", "/sys/fs/bpf/ratewright"] {
            let entries = std::fs::read_dir(place).into_iter().flatten();
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            let pins: Vec<_> = names.filter(|name| name.starts_with(&instance)).collect();
            found(format!("pins of {pins:?} in {place}"), !pins.is_empty());
        }
        left
    }

    fn assert_nothing_left(&self) {
        // The watchdog works after the lab's end, so its result is waited for.
        assert!(wait_until(|| self.left().is_empty()), "{:?}", self.left());
    }
}

/// In the folder for temporary files only logs may stay, of a lab that could still write them,
/// where no other user can read them.
fn assert_only_logs_in(directory: &Path) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(name.starts_with("ratewright-lab-failed-"), "{name}");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        for log in std::fs::read_dir(&path).unwrap() {
            let log = log.unwrap().path();
            assert_eq!(log.extension().unwrap(), "log", "{}", log.display());
        }
    }
}

fn nothing_stays_after(kind: LabKind, signal: Signal) {
    crate::common::require_root();
    let _alone = crate::common::alone();
    let directory = tempfile::tempdir().unwrap();
    let allowed = allowed();
    let mut command = command(kind, directory.path());
    let mut lab = start({
        command.arg("--plain");
        command
    });
    let before = Before::of(lab.id(), allowed);
    kill(Pid::from_raw(lab.id() as i32), signal).unwrap();
    let status = lab.wait().unwrap();
    assert!(
        !status.success(),
        "a lab that did not run to its end is no success"
    );
    before.assert_nothing_left();
    assert_only_logs_in(directory.path());
}

#[test]
fn after_sigkill_the_watchdog_removes_everything() {
    nothing_stays_after(LabKind::Baseline, Signal::SIGKILL);
}

#[test]
fn after_ctrl_c_the_lab_removes_everything() {
    nothing_stays_after(LabKind::Baseline, Signal::SIGINT);
}

#[test]
fn after_sigkill_nothing_of_allocator_daemons_and_programs_stays() {
    crate::common::require_control_plane();
    nothing_stays_after(LabKind::Full, Signal::SIGKILL);
}

#[test]
fn after_sigterm_nothing_of_allocator_daemons_and_programs_stays() {
    crate::common::require_control_plane();
    nothing_stays_after(LabKind::Full, Signal::SIGTERM);
}

/// The lab has the terminal as its own, as under a shell, and the terminal's window is closed.
#[test]
fn a_closed_terminal_ends_the_lab() {
    crate::common::require_root();
    let _alone = crate::common::alone();
    let directory = tempfile::tempdir().unwrap();
    let allowed = allowed();
    let terminal = nix::pty::openpty(None, None).unwrap();
    // What it shows is not checked, but it must not wait for a reader.
    let master = File::from(terminal.master);
    // As a terminal's own program has it: not its children's.
    nix::fcntl::fcntl(
        &master,
        nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC),
    )
    .unwrap();
    let mut reader = master.try_clone().unwrap();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let reading = std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while stopped.try_recv().is_err() {
            let mut ready = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
            if poll(&mut ready, 20_u16).unwrap_or(0) > 0 && reader.read(&mut buffer).is_err() {
                return;
            }
        }
    });
    let slave = File::from(terminal.slave);
    let mut command = command(LabKind::Baseline, directory.path());
    command
        .stdin(slave.try_clone().unwrap())
        .stdout(slave.try_clone().unwrap())
        .stderr(slave)
        .env("TERM", "xterm");
    // SAFETY: between fork and exec, two plain system calls.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid()?;
            if libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let mut lab = start(command);
    let before = Before::of(lab.id(), allowed);
    stop.send(()).unwrap();
    reading.join().unwrap();
    // Only now that the reader has ended: the lab's next frame meets a closed terminal.
    drop(master);
    let ended = wait_until(|| {
        // Reaped once it has ended.
        kill(Pid::from_raw(before.lab as i32), None).is_err() || is_zombie(before.lab)
    });
    if !ended {
        lab.kill().unwrap();
    }
    let status = lab.wait().unwrap();
    assert!(ended, "the lab goes on without its terminal");
    assert!(!status.success());
    before.assert_nothing_left();
}

fn is_zombie(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|text| {
        text.rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim().starts_with('Z'))
    })
}

/// `ratewright-lab fairness --plain | head -1`
#[test]
fn a_reader_that_has_seen_enough_ends_the_lab_quietly() {
    crate::common::require_root();
    let _alone = crate::common::alone();
    let directory = tempfile::tempdir().unwrap();
    let allowed = allowed();
    let mut command = command(LabKind::Baseline, directory.path());
    command
        .arg("--plain")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut lab = start(command);
    let before = Before::of(lab.id(), allowed);
    // Closes the pipe's read end: the next line that the lab prints fails.
    drop(lab.stdout.take());
    let output = lab.wait_with_output().unwrap();
    assert!(!output.status.success());
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    before.assert_nothing_left();
    assert_only_logs_in(directory.path());
}
