//! `ratewright-allocator`: see `ratewright_allocator::service`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser, Subcommand};
use ratewright_allocator::service::config::{class_meaning, example_config, example_relay_config};
use ratewright_allocator::service::relay::{self, LoadedRelay};
use ratewright_allocator::service::run::{self, LoadedConfig, with_causes};
use ratewright_allocator::service::runtime::engine_host::configured_engine;

/// Ratewright's allocator: computes the rate of every active flowlet and tells the hosts.
#[derive(Debug, Parser)]
#[command(name = "ratewright-allocator", version, about)]
struct Arguments {
    /// Configuration file.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Task>,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum Task {
    /// Serve hosts (what happens without a subcommand).
    Run,
    /// Load the configuration and the files that it names, say what is wrong or in force, and exit.
    CheckConfig,
    /// Print a commented configuration with every key at its default.
    ExampleConfig,
    /// Serve some of the hosts in an allocator's place, and carry their sessions to it in bundles.
    Relay {
        #[command(subcommand)]
        command: Option<RelayTask>,
    },
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum RelayTask {
    /// Serve hosts (what happens without a subcommand).
    Run,
    /// Load the relay's configuration and certificates, say what is wrong or in force, and exit.
    CheckConfig,
    /// Print a commented configuration of a relay with every key.
    ExampleConfig,
}

fn main() -> ExitCode {
    if let Some(code) = ratewright_pages::write_if_asked(Arguments::command()) {
        return code;
    }
    // One line for a panic too, so that every failure has one shape in the log.
    std::panic::set_hook(Box::new(|panic| {
        let text = panic.to_string().replace('\n', " ");
        eprintln!("ratewright-allocator: {text}");
    }));
    match execute(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ratewright-allocator: {}", with_causes(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn execute(arguments: &Arguments) -> anyhow::Result<()> {
    let config = || {
        arguments.config.as_deref().context(
            "--config FILE is missing (`ratewright-allocator example-config` prints one to start from)",
        )
    };
    match arguments.command.unwrap_or(Task::Run) {
        Task::Run => run::run(config()?, configured_engine())?,
        Task::CheckConfig => {
            let path = config()?;
            let loaded = LoadedConfig::load(path)?;
            // To standard error, so that standard output has the result alone.
            for warning in loaded.config.warnings() {
                eprintln!(
                    "ratewright-allocator: {}: warning: {warning}",
                    path.display()
                );
            }
            if let Some(note) = loaded.topology_note() {
                eprintln!("ratewright-allocator: note: {note}");
            }
            println!("{}: ok: {}", path.display(), loaded.summary());
            for line in class_meaning(&loaded.config.classes) {
                println!("  {line}");
            }
        }
        Task::ExampleConfig => print!("{}", example_config()),
        Task::Relay { command } => match command.unwrap_or(RelayTask::Run) {
            RelayTask::Run => relay::run(config()?)?,
            RelayTask::CheckConfig => {
                let path = config()?;
                println!(
                    "{}: ok: {}",
                    path.display(),
                    LoadedRelay::load(path)?.summary()
                );
            }
            RelayTask::ExampleConfig => print!("{}", example_relay_config()),
        },
    }
    Ok(())
}
