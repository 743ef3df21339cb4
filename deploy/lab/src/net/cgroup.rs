//! One cgroup v2 directory per host: what a daemon's policy matches on, and how the lab finds every
//! process that it has started.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ratewright_cli::clock;

/// Finds the mount point of the cgroup v2 hierarchy in the text of /proc/mounts.
#[must_use]
pub fn mount_in(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let (_, point, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(point))
    })
}

/// The cgroup v2 mount of this machine; one is made at `fallback` where there is none.
///
/// # Errors
/// When there is none and none can be mounted.
pub fn root(fallback: &Path) -> Result<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").context("reading /proc/mounts")?;
    if let Some(point) = mount_in(&mounts) {
        return Ok(point);
    }
    std::fs::create_dir_all(fallback)
        .with_context(|| format!("creating {}", fallback.display()))?;
    let none: Option<&str> = None;
    nix::mount::mount(
        Some("none"),
        fallback,
        Some("cgroup2"),
        nix::mount::MsFlags::empty(),
        none,
    )
    .with_context(|| format!("mounting cgroup2 at {}", fallback.display()))?;
    Ok(fallback.to_owned())
}

/// Creates the directory `name` below `parent`.
///
/// # Errors
/// When it cannot be made, or the kernel does not make it a control group.
pub fn create(parent: &Path, name: &str) -> Result<PathBuf> {
    let directory = parent.join(name);
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("creating cgroup {}", directory.display()))?;
    // A plain directory, below a version 1 mount or none, has no such file.
    if !directory.join("cgroup.procs").exists() {
        bail!("{} is not a cgroup v2 directory", directory.display());
    }
    Ok(directory)
}

/// All processes in `directory` and below.
fn processes(directory: &Path, out: &mut Vec<i32>) {
    if let Ok(text) = std::fs::read_to_string(directory.join("cgroup.procs")) {
        out.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    }
    for child in children(directory) {
        processes(&child, out);
    }
}

fn children(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory)
        .map(|entries| {
            entries
                .filter_map(Result::ok)
                .map(|e| e.path())
                .filter(|p| p.is_dir())
                .collect()
        })
        .unwrap_or_default()
}

/// Kills every process in `directory` and below, and removes the directories.
pub fn destroy(directory: &Path) {
    // Two seconds: killed processes leave the group only once they are reaped, and one that forks
    // may slip through a round.
    for _ in 0..100 {
        let mut pids = Vec::new();
        processes(directory, &mut pids);
        for pid in &pids {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        // The kernel refuses to remove a group with processes in it.
        if pids.is_empty() && remove(directory) {
            return;
        }
        clock::sleep(Duration::from_millis(20));
    }
}

fn remove(directory: &Path) -> bool {
    for child in children(directory) {
        // Children first: only an empty group can be removed.
        remove(&child);
    }
    std::fs::remove_dir(directory).is_ok() || !directory.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_unified_mount_among_version_1_mounts() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(
            mount_in(mounts),
            Some(PathBuf::from("/sys/fs/cgroup/unified"))
        );
        assert_eq!(mount_in("proc /proc proc rw 0 0\n"), None);
    }
}
