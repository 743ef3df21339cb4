//! `simfabric`: runs plans and experiments on the simulated fabric.

/// Prints a line.
macro_rules! say {
    ($($line:tt)*) => {
        $crate::cli::say(format_args!($($line)*))?
    };
}

mod cli;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ratewright_plot::commit::commit;

/// The simulated fabric of Ratewright.
#[derive(Parser, Debug)]
#[command(version)]
struct SimfabricArgs {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Subcommand, Debug)]
enum SimCommand {
    /// Measure the engine: packet-hops per second of a permutation at 100 Gbit/s.
    Bench(cli::BenchArgs),
    /// Run a plan, and write its results.
    Run(cli::RunArgs),
    /// Read a plan without running it.
    Check(cli::CheckArgs),
    /// Print what plans can name, and which experiments there are.
    List,
    /// Reproduce a paper's figures, with the paper's numbers beside ours.
    Reproduce(cli::ReproduceArgs),
    /// Compare two results number by number.
    Compare(cli::CompareArgs),
    /// Write the flows of a plan as CSV.
    Trace(cli::TraceArgs),
}

/// Runs the command. An error is one line, even where backtraces are switched on.
fn main() -> ExitCode {
    // Named now, since sources may change while a run goes on.
    let _ = commit();
    let done = match SimfabricArgs::parse().command {
        SimCommand::Bench(args) => args.run(),
        SimCommand::Run(args) => args.run(),
        SimCommand::Reproduce(args) => args.run(),
        SimCommand::Check(args) => args.run(),
        SimCommand::List => cli::list(),
        SimCommand::Compare(args) => args.run(),
        SimCommand::Trace(args) => args.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // `eprintln!` would panic if standard error is closed.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
