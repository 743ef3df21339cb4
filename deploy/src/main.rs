//! `ratewright`: the operator's program.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use ratewright_lab::bench_cmd::BenchCommand;
use ratewright_lab::broken_pipe;
use ratewright_lab::certs::CertsCommand;
use ratewright_lab::lab::options::LabOptions;
use ratewright_lab::reaper::{self, Estate};
use ratewright_lab::status::StatusCommand;
use ratewright_lab::swarm::{self, SwarmOptions};
use ratewright_lab::topology_cmd::TopologyCommand;
use ratewright_lab::view::{NobodyListens, output};
use ratewright_lab::{lab, traffic};

#[derive(Debug, Parser)]
#[command(
    name = "ratewright",
    version,
    about = "Ratewright for operators: a local lab, topologies, certificates, status"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build a datacenter on this machine, send real traffic through it, with and without Ratewright
    Lab(LabOptions),
    /// Build, check and show topology files
    Topology(TopologyCommand),
    /// Certificates for the lab and for trying Ratewright out
    #[command(subcommand)]
    Certs(CertsCommand),
    /// Show how an allocator is
    Status(StatusCommand),
    /// Measure the optimisers and the engine on this machine
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Play thousands of hosts with one allocator and measure it
    Swarm(SwarmOptions),
    /// The lab's TCP sender
    #[command(hide = true)]
    LabTraffic,
    /// The lab's TCP receiver
    #[command(hide = true)]
    LabSink {
        /// Ports to listen on
        ports: Vec<u16>,
    },
    /// Keeps a core busy
    #[command(hide = true)]
    LabBurn {
        /// Which core
        core: usize,
    },
    /// Removes what a lab leaves behind when it dies
    #[command(hide = true)]
    LabWatchdog {
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
    let command = Cli::parse().command;
    if matches!(
        command,
        Command::Topology(_)
            | Command::Certs(_)
            | Command::Status(_)
            | Command::Bench(_)
            | Command::Swarm(_)
    ) {
        broken_pipe::ends_the_process();
    }
    match run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<NobodyListens>() => ExitCode::FAILURE,
        Err(error) => {
            let text = format!("{error:#}").replace('\n', " ");
            output::complain(format_args!("ratewright: {text}"));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Lab(options) => lab::run(options),
        Command::Topology(command) => command.run(),
        Command::Certs(command) => command.run(),
        Command::Status(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::Swarm(options) => swarm::run(&options),
        Command::LabTraffic => traffic::sender::run(),
        Command::LabSink { ports } => traffic::sink::run(&ports),
        Command::LabBurn { core } => traffic::burn::run(core),
        Command::LabWatchdog {
            pid,
            cgroup_root,
            run_dir,
            terminal,
        } => {
            reaper::watch(
                &Estate {
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
