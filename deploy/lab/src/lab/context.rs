//! The state of a run that scenarios share: options, directories, the live view, the user's wish to
//! leave.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use ratewright_cli::clock::{NS_PER_MS, now_ns, sleep_until_ns};

use super::preflight::Binaries;
use crate::cancel::Cancel;
use crate::cleanup::LabResources;
use crate::net::cgroup;
use crate::options::LabOptions;
use crate::view::live::Live;

/// One run.
#[derive(Debug)]
pub struct Lab {
    /// The command line.
    pub options: LabOptions,
    /// Programs of the control plane, checked to be there.
    pub binaries: Binaries,
    /// Directory of this run: configurations, certificates, sockets, logs.
    pub run_dir: PathBuf,
    /// State that the view shows.
    pub live: Arc<Live>,
    pub(crate) cancel: Cancel,
    pub(crate) resources: LabResources,
}

impl Lab {
    /// Creates the cgroup of a testbed's node and returns its directory.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn cgroup(&self, testbed: &str, node: &str) -> Result<PathBuf> {
        cgroup::create(&self.resources.cgroup(), &format!("{testbed}-{node}"))
    }

    /// Returns the beginning of the names of a testbed's namespaces.
    #[must_use]
    pub fn prefix(&self, testbed: &str) -> String {
        format!("{}{testbed}-", self.resources.prefix())
    }

    /// A span of the scenario's plan, scaled by `--duration-scale`.
    #[must_use]
    pub fn scaled(&self, span: Duration) -> u64 {
        (span.as_nanos() as f64 * self.options.duration_scale) as u64
    }

    /// Fails if the user wants to leave.
    ///
    /// # Errors
    /// Then.
    pub fn check(&self) -> Result<()> {
        if self.cancel.is_set() {
            bail!("interrupted");
        }
        Ok(())
    }

    /// Sleeps until `at_ns`, or fails early if the user wants to leave.
    ///
    /// # Errors
    /// Then.
    pub fn sleep_until(&self, at_ns: u64) -> Result<()> {
        while now_ns() < at_ns {
            self.check()?;
            // In short pieces, so that the user's wish to leave is heeded soon.
            sleep_until_ns(at_ns.min(now_ns() + 20 * NS_PER_MS));
        }
        self.check()
    }

    /// Waits until `condition` holds; false if it does not within `patience`.
    ///
    /// # Errors
    /// When the user wants to leave, or the condition fails.
    pub fn wait_for(
        &self,
        patience: Duration,
        mut condition: impl FnMut() -> Result<bool>,
    ) -> Result<bool> {
        let until = now_ns() + patience.as_nanos() as u64;
        while now_ns() < until {
            if condition()? {
                return Ok(true);
            }
            self.sleep_until(now_ns() + 10 * NS_PER_MS)?;
        }
        Ok(false)
    }
}
