//! Work that keeps one core busy, at the priority of ordinary programs: arithmetic, and processes
//! that start and end.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use ratewright_cli::clock;

/// Starts processes whose parents are gone before they are: the system's first process takes them
/// in, time and again, on whichever core it is. Some kernels run no BPF programs meanwhile.
const ORPHANS: &str = "for i in 1 2 3 4 5 6 7 8; do (true &); done";

/// Processes and threads beyond those at the beginning at which no more are started. A first
/// process that is slow to take orphans in would leave no numbers for others.
const MAX_MORE: u32 = 2_000;

/// Pause until they are counted again.
const COUNT_INTERVAL: Duration = Duration::from_millis(5);

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
    let most = running()?.saturating_add(MAX_MORE);
    loop {
        while running()? > most {
            clock::sleep(COUNT_INTERVAL);
        }
        Command::new("sh")
            .args(["-c", ORPHANS])
            .stdin(Stdio::null())
            .status()
            .context("running sh")?;
    }
}

/// Returns the number of processes and threads of the machine, ended ones that nobody has taken in
/// included.
fn running() -> Result<u32> {
    let text = std::fs::read_to_string("/proc/loadavg").context("reading /proc/loadavg")?;
    // The fourth field is `runnable/all`.
    let all = text.split([' ', '/']).nth(4);
    all.and_then(|all| all.parse().ok())
        .context("/proc/loadavg: no number of processes")
}

#[cfg(test)]
mod tests {
    use super::running;

    #[test]
    fn a_process_that_nobody_has_taken_in_is_counted() {
        let children: Vec<_> = (0..200)
            .map(|_| std::process::Command::new("true").spawn().expect("a child"))
            .collect();
        let with_them = running().expect("a number");
        for mut child in children {
            child.wait().expect("it ends");
        }
        // Compared with later, since the first process may be taking in others meanwhile.
        let after = running().expect("a number");
        assert!(after > 0 && with_them > after + 100, "{with_them} {after}");
    }
}
