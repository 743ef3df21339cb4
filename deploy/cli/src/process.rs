//! Child processes that end with the program that started them, with their output in files.

#![allow(unsafe_code)] // pre_exec

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::clock;

/// A child of this program; killed when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
}

impl Process {
    /// Starts `command`, which is prepared already, as the process `name`.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn spawn(name: &str, mut command: Command) -> Result<Process> {
        let child = command
            .spawn()
            .with_context(|| format!("starting {name} ({})", command.get_program().display()))?;
        Ok(Process {
            name: name.to_owned(),
            child,
        })
    }

    /// Starts `command` where this program runs, its output appended to `log`. It dies with the
    /// thread that called this.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start_here(name: &str, mut command: Command, log: &Path) -> Result<Process> {
        let out = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("opening {}", log.display()))?;
        let errors = out.try_clone().context("opening the log twice")?;
        command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(errors)
            // A group of its own: Ctrl-C in the terminal reaches this program only, which then ends
            // the child.
            .process_group(0);
        // SAFETY: the closure runs between fork and exec and makes one async-signal-safe system
        // call.
        unsafe {
            command.pre_exec(|| {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            });
        }
        Process::spawn(name, command)
    }

    /// Returns the process's name in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the child with its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Returns the exit status if the process has ended.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Kills the process at once (SIGKILL), as a crash would, and reaps it.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        // Reaped at once, so that its number cannot be taken for a live process.
        let _ = self.child.wait();
    }

    /// Sends SIGTERM without waiting for the end.
    pub fn terminate(&self) {
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM);
    }

    /// Waits for the process to end; kills it after the time-out `patience`. Returns its status if
    /// it ended by itself.
    pub fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let until = clock::now_ns() + patience.as_nanos() as u64;
        while clock::now_ns() < until {
            if let Some(status) = self.exited() {
                return Some(status);
            }
            clock::sleep(Duration::from_millis(5));
        }
        self.kill();
        None
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.exited().is_none() {
            self.kill();
        }
    }
}

/// A process's resident memory in bytes, as the kernel counts it; none if there is no such process.
#[must_use]
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1_024)
}
