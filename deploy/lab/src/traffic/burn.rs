//! Work that keeps one core busy, at the priority of ordinary programs: arithmetic, and processes
//! that start and end.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// Starts processes whose parents are gone before they are: the system's first process takes them
/// in, time and again, on whichever core it is. Some kernels run no BPF programs meanwhile.
const ORPHANS: &str = "for i in 1 2 3 4 5 6 7 8; do (true &); done";

/// Works on `core` until the process is killed.
///
/// # Errors
/// When there is no such core, or no thread or process can be started.
pub fn run(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .with_context(|| format!("moving to core {core}"))?;
    std::thread::Builder::new()
        .spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        })
        .context("starting a thread")?;
    loop {
        Command::new("sh")
            .args(["-c", ORPHANS])
            .stdin(Stdio::null())
            .status()
            .context("running sh")?;
    }
}
