//! `ratewright doctor` and `ratewright cleanup`: programs of the endpoint daemon, which knows the
//! kernel.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Result, bail};
use clap::Args;

/// The daemon's program, if none stands beside this one.
const PROGRAM: &str = "ratewright-endpointd";

/// `ratewright doctor` and `ratewright cleanup`
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct EndpointdCommand {
    /// Options for ratewright-endpointd; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<String>,
}

impl EndpointdCommand {
    /// Becomes the daemon's program with this subcommand.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn run(&self, subcommand: &str) -> Result<()> {
        // A build's own folder, or a package's, before the search path.
        let beside = std::env::current_exe()
            .ok()
            .map(|own| own.with_file_name(PROGRAM))
            .filter(|program| program.exists());
        let program = beside.unwrap_or_else(|| PROGRAM.into());
        let error = Command::new(&program)
            .arg(subcommand)
            .args(&self.options)
            .exec();
        bail!(
            "{}: {error}; {subcommand} is for hosts that have the endpoint daemon",
            program.display()
        )
    }
}
