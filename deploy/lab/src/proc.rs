//! Starts the lab's processes: inside a host's network namespace and control group, bound to the
//! lab's life, with their output in files or pipes.

#![allow(unsafe_code)] // pre_exec

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use ratewright_cli::process::Process;

use crate::net::ns::Netns;

/// Priority of the lab's processes: before ordinary ones, as on machines of their own.
const NICE: i32 = -10;

/// Kind of a process's work, which decides the cores that it may use.
///
/// The kernel moves a packet through all of the lab's namespaces on the core of the process that
/// sent it, in long runs that nothing interrupts. A real host's daemon and a real allocator share
/// no core with the whole network; so data keeps to the first half of the cores and control to the
/// rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Sends and receives data.
    Data,
    /// The allocator, a daemon.
    Control,
}

impl Work {
    /// The cores for this work on a machine with `count`: all of them if there is only one.
    #[must_use]
    pub fn cores(self, count: usize) -> std::ops::Range<usize> {
        // The odd core goes to data, whose packets also run the switches.
        let half = count.div_ceil(2);
        match self {
            _ if count < 2 => 0..count,
            Work::Data => 0..half,
            Work::Control => half..count,
        }
    }
}

/// Namespace, cgroup and cores for a process.
#[derive(Debug)]
pub struct Placement<'a> {
    /// Kind of its work.
    pub work: Work,
    /// Network namespace.
    pub netns: &'a Netns,
    /// cgroup v2 directory.
    pub cgroup: &'a Path,
}

/// Starts `command` at `place`, its standard error appended to `log`.
///
/// Must be called from the lab's main thread: the child dies with the thread that started it.
///
/// # Errors
/// When the process cannot be started there.
pub fn start(
    name: &str,
    mut command: Command,
    place: &Placement<'_>,
    log: &Path,
) -> Result<Process> {
    let log_file = File::options()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("opening log file {}", log.display()))?;
    let procs = place.cgroup.join("cgroup.procs");
    let procs = File::options()
        .write(true)
        .open(&procs)
        .with_context(|| format!("opening {}", procs.display()))?;
    let netns = place
        .netns
        .file()
        .try_clone()
        .context("keeping the network namespace open")?;
    let cores = place
        .work
        .cores(std::thread::available_parallelism().map_or(1, usize::from));
    // A group of its own: Ctrl-C in the terminal reaches the lab, which ends its processes in
    // order.
    command.stderr(log_file).process_group(0);
    // SAFETY: the closure runs between fork and exec and makes only async-signal-safe system
    // calls (prctl, write, setns) on descriptors that it owns; it does not allocate.
    unsafe {
        command.pre_exec(move || enter(procs.as_raw_fd(), netns.as_raw_fd(), &cores));
    }
    Process::spawn(name, command)
}

/// As [`start`], with standard output in the log as well and no standard input.
///
/// # Errors
/// As [`start`].
pub fn start_logged(
    name: &str,
    mut command: Command,
    place: &Placement<'_>,
    log: &Path,
) -> Result<Process> {
    let out = File::options()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("opening {}", log.display()))?;
    command.stdin(Stdio::null()).stdout(out);
    start(name, command, place, log)
}

/// Gives the calling thread the priority of the lab's processes.
pub fn before_others() {
    // SAFETY: a plain system call on the calling thread; as root this cannot fail.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

fn enter(procs: i32, netns: i32, cores: &std::ops::Range<usize>) -> io::Result<()> {
    let check = |result: i64| {
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    };
    // SAFETY: plain system calls; the descriptors are open, the buffer is one static byte, the
    // signal set is initialised by sigemptyset before it is used.
    unsafe {
        // The lab waits for its signals on a thread and blocks them elsewhere; a child must not
        // inherit that.
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        check(i64::from(libc::sigprocmask(
            libc::SIG_SETMASK,
            &raw const none,
            std::ptr::null_mut(),
        )))?;
        // Other work on the machine must not look like a property of the network. As root this
        // cannot fail.
        before_others();
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for core in cores.clone().take(libc::CPU_SETSIZE as usize) {
            libc::CPU_SET(core, &mut set);
        }
        // Where cores are restricted from outside, theirs are used.
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
        check(i64::from(libc::prctl(
            libc::PR_SET_PDEATHSIG,
            libc::SIGKILL,
        )))?;
        check(libc::write(procs, b"0".as_ptr().cast(), 1) as i64)?;
        check(i64::from(libc::setns(netns, libc::CLONE_NEWNET)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_and_control_share_cores_only_where_there_is_one() {
        assert_eq!((Work::Data.cores(1), Work::Control.cores(1)), (0..1, 0..1));
        assert_eq!((Work::Data.cores(2), Work::Control.cores(2)), (0..1, 1..2));
        assert_eq!((Work::Data.cores(5), Work::Control.cores(5)), (0..3, 3..5));
    }
}
