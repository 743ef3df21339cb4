//! Settings of TCP of a network namespace.

use std::fs;
use std::path::{Path, PathBuf};

use super::BackendError;

/// Default congestion control of new sockets.
const DEFAULT_CC: &str = "tcp_congestion_control";
/// Names of all congestion controls registered on this machine.
const AVAILABLE: &str = "tcp_available_congestion_control";

/// Settings of TCP in the calling thread's network namespace, below a mount of procfs. In a
/// container, `/proc/sys` itself is read only.
#[derive(Debug, Clone)]
pub(super) struct Sysctls {
    folder: PathBuf,
}

impl Sysctls {
    /// Returns the settings below the mount `procfs`.
    pub(super) fn below(procfs: &Path) -> Self {
        Self {
            folder: procfs.join("sys/net/ipv4"),
        }
    }

    fn read(&self, name: &str) -> Result<String, BackendError> {
        let path = self.folder.join(name);
        fs::read_to_string(&path)
            .map(|text| text.trim().to_owned())
            .map_err(|source| BackendError::System {
                what: format!("read {}", path.display()),
                source,
            })
    }

    fn write(&self, name: &str, value: &str) -> Result<(), BackendError> {
        let path = self.folder.join(name);
        fs::write(&path, value).map_err(|source| {
            let read_only = source.kind() == std::io::ErrorKind::ReadOnlyFilesystem;
            let hint = if read_only {
                " (mount the machine's /proc into the container, and name its place in pacing.procfs)"
            } else {
                ""
            };
            BackendError::System {
                what: format!("write {value} to {}{hint}", path.display()),
                source,
            }
        })
    }

    /// Returns the value of a setting; `None` if this kernel lacks it.
    pub(super) fn number(&self, name: &str) -> Option<u32> {
        self.read(name).ok()?.parse().ok()
    }

    /// Sets a setting to a value, if there is one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn set_number(&self, name: &str, value: Option<u32>) -> Result<(), BackendError> {
        value.map_or(Ok(()), |value| self.write(name, &value.to_string()))
    }

    /// Returns the name of the default congestion control of new sockets.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn default_congestion_control(&self) -> Result<String, BackendError> {
        self.read(DEFAULT_CC)
    }

    /// Sets the default congestion control of new sockets.
    ///
    /// # Errors
    /// When it cannot be written, or none of that name is registered.
    pub(super) fn set_default_congestion_control(&self, name: &str) -> Result<(), BackendError> {
        self.write(DEFAULT_CC, name)
    }

    /// Returns the names of all congestion controls registered on this machine.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub(super) fn registered(&self) -> Result<Vec<String>, BackendError> {
        let text = self.read(AVAILABLE)?;
        Ok(text.split_whitespace().map(str::to_owned).collect())
    }
}
