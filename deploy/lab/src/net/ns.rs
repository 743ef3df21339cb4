//! Network namespaces, named under /run/netns so that `ip netns exec` reaches them while a lab
//! runs.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns};
use ratewright_cli::tool;

/// Directory in which iproute2 keeps named namespaces.
pub const NETNS_DIR: &str = "/run/netns";

/// A named network namespace, kept open.
#[derive(Debug)]
pub struct Netns {
    name: String,
    file: File,
}

impl Netns {
    /// Creates a namespace called `name`. `parent`, if given, is the namespace whose child it
    /// becomes: it inherits `tcp_child_ehash_entries` from there.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn create(name: &str, parent: Option<&Netns>) -> Result<Netns> {
        match parent {
            Some(parent) => parent.within(|| tool::run("ip", &["netns", "add", name]))??,
            None => tool::run("ip", &["netns", "add", name])?,
        }
        let file = File::open(path_of(name))
            .with_context(|| format!("opening network namespace {name}"))?;
        Ok(Netns {
            name: name.to_owned(),
            file,
        })
    }

    /// The name under /run/netns.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The open namespace, for a child process to enter.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Moves the calling thread into this namespace, for good.
    ///
    /// # Errors
    /// When the kernel refuses (not root).
    pub fn enter(&self) -> Result<()> {
        setns(self.file.as_fd(), CloneFlags::CLONE_NEWNET)
            .with_context(|| format!("entering network namespace {}", self.name))
    }

    /// Runs `work` on a thread of its own inside this namespace.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        std::thread::scope(|scope| {
            scope
                // setns moves the calling thread only; a thread of its own leaves the caller where
                // it is.
                .spawn(|| self.enter().map(|()| work()))
                .join()
                .map_err(|_| anyhow!("a thread in network namespace {} panicked", self.name))?
        })
    }

    /// Runs a program inside this namespace, with this input.
    ///
    /// The program's own way (`ip -n`) makes a namespace of mounts, too. To take that down, the
    /// kernel waits for all readers of RCU: seconds, where programs at idle priority run beside.
    ///
    /// # Errors
    /// When it fails; the error has what it said.
    pub fn run(&self, program: &str, args: &[&str], input: &str) -> Result<()> {
        self.within(|| tool::run_with_input(program, args, input))?
    }

    /// Writes settings below /proc/sys as this namespace sees them.
    ///
    /// # Errors
    /// When one is unknown or refused; the error names it.
    pub fn write_settings(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.within(|| {
            for (key, value) in settings {
                write_setting(key, value)?;
            }
            Ok(())
        })?
    }
}

/// Writes one setting below /proc/sys, in the calling thread's namespace.
///
/// # Errors
/// When it is unknown or refused; the error names it.
pub fn write_setting(key: &str, value: &str) -> Result<()> {
    std::fs::write(Path::new("/proc/sys").join(key), value)
        .with_context(|| format!("cannot set /proc/sys/{key} to `{value}`"))
}

/// The file of the namespace `name`.
#[must_use]
pub fn path_of(name: &str) -> PathBuf {
    Path::new(NETNS_DIR).join(name)
}

/// Names of all namespaces that begin with `prefix`.
#[must_use]
pub fn list(prefix: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(NETNS_DIR) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect();
    // Directory order is arbitrary; messages and tests want a fixed one.
    names.sort();
    names
}

/// Deletes the namespace `name`; one that is not there is as good.
pub fn delete(name: &str) {
    let _ = tool::run("ip", &["netns", "del", name]);
}
