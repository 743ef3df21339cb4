//! `ratewright`: the operator's program.

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory as _, Parser, Subcommand};
use ratewright_cli::certs::CertsCommand;
use ratewright_cli::endpointd::EndpointdCommand;
use ratewright_cli::explain::ExplainCommand;
use ratewright_cli::release::SwitchCommand;
use ratewright_cli::status::StatusCommand;
use ratewright_cli::top::TopCommand;
use ratewright_cli::topology_cmd::TopologyCommand;
use ratewright_cli::{broken_pipe, output};

#[derive(Debug, Parser)]
#[command(
    name = "ratewright",
    version,
    about = "Ratewright for operators: topologies, certificates, status, rollout, kill switch"
)]
struct OperatorCli {
    #[command(subcommand)]
    command: OperatorCommand,
}

#[derive(Debug, Subcommand)]
enum OperatorCommand {
    /// Build, check and show topology files
    Topology(TopologyCommand),
    /// Certificates for the lab and for trying Ratewright out
    #[command(subcommand)]
    Certs(CertsCommand),
    /// Show how an allocator is
    Status(StatusCommand),
    /// Show the fastest flows, the fullest links and the busiest hosts
    Top(TopCommand),
    /// Say why the flows from one host to another have their rates
    Explain(ExplainCommand),
    /// Check this host for the endpoint daemon (ratewright-endpointd doctor)
    Doctor(EndpointdCommand),
    /// Remove what a crashed endpoint daemon left (ratewright-endpointd cleanup)
    Cleanup(EndpointdCommand),
    /// Turn the kill switch on: every host, or one, runs plain TCP
    Release(SwitchCommand),
    /// Turn the kill switch off
    Resume(SwitchCommand),
}

fn main() -> ExitCode {
    if let Some(code) = ratewright_pages::write_if_asked(OperatorCli::command()) {
        return code;
    }
    let command = OperatorCli::parse().command;
    // No command here has anything to clean up.
    broken_pipe::ends_the_process();
    match run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line, whatever the causes hold: scripts read it.
            let text = format!("{error:#}").replace('\n', " ");
            output::complain(format_args!("ratewright: {text}"));
            ExitCode::FAILURE
        }
    }
}

fn run(command: OperatorCommand) -> Result<()> {
    match command {
        OperatorCommand::Topology(command) => command.run(),
        OperatorCommand::Certs(command) => command.run(),
        OperatorCommand::Status(command) => command.run(),
        OperatorCommand::Top(command) => command.run(),
        OperatorCommand::Explain(command) => command.run(),
        OperatorCommand::Doctor(command) => command.run("doctor"),
        OperatorCommand::Cleanup(command) => command.run("cleanup"),
        OperatorCommand::Release(command) => command.release(),
        OperatorCommand::Resume(command) => command.resume(),
    }
}
