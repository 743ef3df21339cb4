//! Clean-up whatever happens: names of everything that a lab makes begin with `rwlab-<pid>-`, so
//! that it can be found and removed by the lab itself, by its watchdog when the lab dies, and by
//! the next lab when even the watchdog was killed.

use std::fs::{DirBuilder, File};
use std::io::{IsTerminal, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::termios::{SetArg, tcgetattr, tcsetattr};
use nix::unistd::Pid;

use crate::net::{cgroup, ns};

/// Beginning of every name that a lab gives.
pub const PREFIX: &str = "rwlab-";

/// The sysctl by which the first namespace allows others to make a congestion control their
/// default.
const ALLOWED_CC: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// Remembers that a lab has changed that setting.
const ALLOWED_CC_CHANGED: &str = "/run/ratewright-lab.allowed-congestion-control";

/// Directories of daemons' pinned programs and maps, which outlive a daemon that is killed.
const PINS: [&str; 2] = ["/run/ratewright", "/sys/fs/bpf/ratewright"];

/// Directory for the files of running labs; only root can enter it.
const RUN_DIRS: &str = "/run/ratewright-lab";

/// A new directory for this process's lab, of mode 0700. One to keep stands among temporary files,
/// under a name that cannot be guessed; another goes with the lab.
///
/// # Errors
/// When it cannot be made.
pub fn run_dir(keep: bool) -> Result<PathBuf> {
    // Temporary files of a kept run outlive the lab; /run is cleared at each boot.
    if keep {
        return Ok(tempfile::Builder::new()
            .prefix("ratewright-lab-")
            .tempdir()
            .context("creating the run directory")?
            .keep());
    }
    let directory = Path::new(RUN_DIRS).join(std::process::id().to_string());
    let private = || {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder
    };
    private()
        .create(RUN_DIRS)
        .and_then(|()| private().create(&directory))
        .with_context(|| format!("creating the run directory {}", directory.display()))?;
    Ok(directory)
}

/// Allows cubic as the default of a new namespace; the last lab to leave restores the setting.
///
/// # Errors
/// When the setting cannot be read or written.
pub fn allow_cubic() -> Result<()> {
    let before =
        std::fs::read_to_string(ALLOWED_CC).with_context(|| format!("reading {ALLOWED_CC}"))?;
    let before = before.trim();
    // Untouched where the setting is as needed: then there is nothing to restore.
    if !before.split_whitespace().any(|name| name == "cubic") {
        // The mark before the change: a lab killed in between leaves a mark too many, which is
        // harmless.
        std::fs::write(ALLOWED_CC_CHANGED, before)
            .with_context(|| format!("writing {ALLOWED_CC_CHANGED}"))?;
        std::fs::write(ALLOWED_CC, format!("{before} cubic"))
            .context("allowing cubic in network namespaces")?;
    }
    Ok(())
}

/// Takes back what [`allow_cubic`] allowed, and nothing that others have allowed since, unless
/// another lab still needs it: each has a directory before it asks, or, where that is kept, soon
/// namespaces.
fn restore_allowed() {
    if ns::list(PREFIX).is_empty()
        && names_in(Path::new(RUN_DIRS)).is_empty()
        && Path::new(ALLOWED_CC_CHANGED).exists()
        && let Ok(now) = std::fs::read_to_string(ALLOWED_CC)
    {
        let _ = std::fs::write(ALLOWED_CC, without(&now, "cubic"));
        let _ = std::fs::remove_file(ALLOWED_CC_CHANGED);
    }
}

/// The words of `text` but one.
fn without(text: &str, word: &str) -> String {
    text.split_whitespace()
        .filter(|other| *other != word)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Returns the beginning of the names of a lab's daemons, as its configuration of them has it.
#[must_use]
pub fn instances(lab: u32) -> String {
    format!("{:04x}h", lab & 0xffff)
}

/// Removes what a lab's killed daemons had pinned.
fn remove_pins(lab: u32) {
    for place in PINS.map(Path::new) {
        for name in names_in(place) {
            if name.starts_with(&instances(lab)) {
                let instance = place.join(name);
                // A daemon's own BPF file system, where the machine has none.
                let _ =
                    nix::mount::umount2(&instance.join("bpf"), nix::mount::MntFlags::MNT_DETACH);
                let _ = std::fs::remove_dir_all(instance);
            }
        }
        // Only once it is empty.
        let _ = std::fs::remove_dir(place);
    }
}

/// Resources that a lab must remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabResources {
    /// Process id of the lab.
    pub pid: u32,
    /// cgroup v2 mount.
    pub cgroup_root: PathBuf,
    /// Directory with logs, certificates and sockets; kept if `None`.
    pub run_dir: Option<PathBuf>,
}

impl LabResources {
    /// Returns the beginning of the names of the lab's namespaces.
    #[must_use]
    pub fn prefix(&self) -> String {
        format!("{PREFIX}{}-", self.pid)
    }

    /// The lab's cgroup directory.
    #[must_use]
    pub fn cgroup(&self) -> PathBuf {
        self.cgroup_root.join(format!("{PREFIX}{}", self.pid))
    }

    /// Kills what still runs and removes everything. Doing it twice is harmless.
    pub fn remove(&self) {
        // Processes first: a namespace lives as long as a process in it.
        cgroup::destroy(&self.cgroup());
        for name in ns::list(&self.prefix()) {
            ns::delete(&name);
        }
        remove_pins(self.pid);
        if let Some(directory) = &self.run_dir {
            // A private cgroup2 mount lives in the run directory.
            let _ =
                nix::mount::umount2(&directory.join("cgroup2"), nix::mount::MntFlags::MNT_DETACH);
            let _ = std::fs::remove_dir_all(directory);
            // Only once it is empty.
            let _ = std::fs::remove_dir(RUN_DIRS);
        }
        restore_allowed();
    }
}

/// Message of a lab to its watchdog when it ends by itself.
const LEAVE: &[u8] = b"done\n";

/// The watchdog: a process of its own that removes the lab's resources once the lab's end of a pipe
/// closes.
#[derive(Debug)]
pub struct Watchdog {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Watchdog {
    /// Starts the watchdog out of this program's own executable.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(resources: &LabResources) -> Result<Watchdog> {
        let program = std::env::current_exe().context("finding this program's own file")?;
        let mut command = Command::new(program);
        command
            .arg("lab-watchdog")
            .arg(resources.pid.to_string())
            .arg(&resources.cgroup_root);
        if let Some(directory) = &resources.run_dir {
            command.arg("--run-dir").arg(directory);
        }
        if std::io::stdout().is_terminal()
            && let Ok(terminal) = nix::unistd::ttyname(std::io::stdout())
        {
            command.arg("--terminal").arg(terminal);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A group of its own: Ctrl-C in the terminal reaches the lab only.
            .process_group(0)
            .spawn()
            .context("starting the lab's watchdog")?;
        let pipe = child.stdin.take();
        Ok(Watchdog { child, pipe })
    }

    /// Lets the watchdog go; it finds nothing left to remove.
    pub fn release(mut self) {
        if let Some(mut pipe) = self.pipe.take() {
            let _ = pipe.write_all(LEAVE);
        }
        // Reaped, so that no zombie stays while this process ends.
        let _ = self.child.wait();
    }
}

/// The watchdog's own program. `terminal` is the lab's, if it shows its live view on one.
pub fn watch(resources: &LabResources, terminal: Option<&Path>) {
    let before = terminal.and_then(|path| {
        let file = File::options().read(true).write(true).open(path).ok()?;
        let settings = tcgetattr(&file).ok()?;
        Some((file, settings))
    });
    // A process that is not in the terminal's foreground would be stopped for restoring it.
    let mut background = SigSet::empty();
    background.add(Signal::SIGTTOU);
    let _ = background.thread_block();
    let mut message = Vec::new();
    // Ends with end of file when the lab is gone, for whatever cause; it takes its leave if it can.
    let _ = std::io::stdin().read_to_end(&mut message);
    if message.is_empty()
        && let Some((mut file, settings)) = before
    {
        // The lab was killed in the middle of its live view: main screen, cursor, line editing.
        let _ = file.write_all(b"\x1b[?1049l\x1b[?25h");
        let _ = tcsetattr(&file, SetArg::TCSANOW, &settings);
    }
    resources.remove();
}

/// Removes what labs left behind whose process and watchdog are dead; returns their process ids. A
/// process of this one's number was another lab.
#[must_use]
pub fn remove_stale() -> Vec<u32> {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let cgroup_root = cgroup::mount_in(&mounts).unwrap_or_default();
    let mut pids: Vec<u32> = ns::list(PREFIX)
        .iter()
        .filter_map(|name| pid_in(name))
        .collect();
    pids.extend(
        names_in(&cgroup_root)
            .iter()
            .filter_map(|name| pid_in(name)),
    );
    pids.extend(
        names_in(Path::new(RUN_DIRS))
            .iter()
            .filter_map(|name| name.parse::<u32>().ok()),
    );
    pids.sort_unstable();
    pids.dedup();
    // Signal 0 checks that the process exists (kill(2)). This process's own number can only be a
    // dead lab's.
    let alive =
        |pid: u32| pid != std::process::id() && kill(Pid::from_raw(pid as i32), None).is_ok();
    pids.retain(|pid| !alive(*pid));
    for pid in &pids {
        LabResources {
            pid: *pid,
            cgroup_root: cgroup_root.clone(),
            run_dir: Some(Path::new(RUN_DIRS).join(pid.to_string())),
        }
        .remove();
    }
    // A lab and its watchdog may have been killed before there was anything else.
    restore_allowed();
    pids
}

fn names_in(directory: &Path) -> Vec<String> {
    std::fs::read_dir(directory)
        .map(|entries| {
            entries
                .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                .collect()
        })
        .unwrap_or_default()
}

fn pid_in(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_allowed_meanwhile_stays_allowed() {
        assert_eq!(without("reno bbr cubic rw\n", "cubic"), "reno bbr rw");
        assert_eq!(without("cubic", "cubic"), "");
    }

    #[test]
    fn a_name_tells_its_lab() {
        assert_eq!(pid_in("rwlab-123-with-h1"), Some(123));
        assert_eq!(pid_in("rwlab-123"), Some(123));
        assert_eq!(pid_in("other-123"), None);
        assert_eq!(pid_in("rwlab-x"), None);
    }
}
