//! `ratewright-lab`: a datacenter on one machine.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use ratewright_cli::output;
use ratewright_lab::cleanup::{self, LabResources};
use ratewright_lab::options::LabOptions;
use ratewright_lab::view::NobodyListens;
use ratewright_lab::{run, traffic};
use ratewright_plot::commit::commit;

/// Build a datacenter on this machine, send real traffic through it, with and without Ratewright
#[derive(Debug, Parser)]
#[command(name = "ratewright-lab", version)]
struct LabCli {
    #[command(flatten)]
    options: LabOptions,
}

/// Programs of the lab's own, which it starts by executing itself.
#[derive(Debug, Parser)]
#[command(name = "ratewright-lab")]
enum Helper {
    /// The lab's TCP sender
    #[command(name = "lab-traffic")]
    Traffic,
    /// The lab's TCP receiver
    #[command(name = "lab-sink")]
    Sink {
        /// Ports to listen on
        ports: Vec<u16>,
    },
    /// Keeps a core busy
    #[command(name = "lab-burn")]
    Burn {
        /// Number of the core
        core: usize,
    },
    /// Removes what a lab leaves behind when it dies
    #[command(name = "lab-watchdog")]
    Watchdog {
        /// The lab's process
        pid: u32,
        /// cgroup v2 mount
        cgroup_root: PathBuf,
        /// Directory to remove
        #[arg(long)]
        run_dir: Option<PathBuf>,
        /// Terminal to restore
        #[arg(long)]
        terminal: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    // Before sources may change beside a run of an hour.
    let _ = commit();
    // No scenario has a helper's name, so the first argument decides before either is parsed.
    let first = std::env::args_os().nth(1);
    let is_helper = first.is_some_and(|name| name.to_str().is_some_and(Helper::has_subcommand));
    let result = if is_helper {
        run_helper(Helper::parse())
    } else {
        run::run(LabCli::parse().options)
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Quietly, as other programs end at a closed pipe.
        Err(error) if error.is::<NobodyListens>() => ExitCode::FAILURE,
        Err(error) => {
            // One line, whatever the causes hold: scripts read it.
            let text = format!("{error:#}").replace('\n', " ");
            output::complain(format_args!("ratewright-lab: {text}"));
            ExitCode::FAILURE
        }
    }
}

fn run_helper(helper: Helper) -> Result<()> {
    match helper {
        Helper::Traffic => traffic::sender::run(),
        Helper::Sink { ports } => traffic::sink::run(&ports),
        Helper::Burn { core } => traffic::burn::run(core),
        Helper::Watchdog {
            pid,
            cgroup_root,
            run_dir,
            terminal,
        } => {
            cleanup::watch(
                &LabResources {
                    pid,
                    cgroup_root,
                    run_dir,
                },
                terminal.as_deref(),
            );
            Ok(())
        }
    }
}
