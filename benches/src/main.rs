//! `ratewright-bench`: measures the optimisers, the engine and the allocator.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use ratewright_bench::changes::{self, ChangesOptions};
use ratewright_bench::convergence::{self, ConvergenceOptions};
use ratewright_bench::engine;
use ratewright_bench::engine_options::EngineOptions;
use ratewright_bench::experiment::normalizer::NormalizerFigures;
use ratewright_bench::experiment::over_allocation::OverAllocation;
use ratewright_bench::feeds::{self, FeedsOptions};
use ratewright_bench::scaling::{self, ScalingOptions};
use ratewright_bench::swarm::{self, SwarmOptions};
use ratewright_bench::sweep::{self, SweepOptions};
use ratewright_cli::{broken_pipe, output};

#[derive(Debug, Parser)]
#[command(
    name = "ratewright-bench",
    version,
    about = "Measure the optimisers, the engine and the allocator on this machine"
)]
struct BenchCli {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Measure allocation beyond capacities by optimiser, against load (Flowtune, fig. 16)
    OverAllocation(SweepOptions),
    /// Measure the share of the optimal throughput after U-NORM and F-NORM, against load (Flowtune,
    /// fig. 17)
    Normalizer(SweepOptions),
    /// Measure the time to correct rates after 1 % of the flows were replaced, by step rule
    Convergence(ConvergenceOptions),
    /// Time the engine's iterations on this machine
    Engine(EngineOptions),
    /// Time the engine's pauses over failures, other capacities and another topology
    Changes(ChangesOptions),
    /// Time the feeds while every host reports in every interval
    Feeds(FeedsOptions),
    /// Time iterations for Flowtune's table of sizes, by blocks and workers, next to other solvers
    Scaling(ScalingOptions),
    /// Play thousands of hosts with one allocator and measure it
    Swarm(SwarmOptions),
}

fn main() -> ExitCode {
    let command = BenchCli::parse().command;
    // An allocator that the swarm has started dies with this process.
    broken_pipe::ends_the_process();
    match run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let text = format!("{error:#}").replace('\n', " ");
            output::complain(format_args!("ratewright-bench: {text}"));
            ExitCode::FAILURE
        }
    }
}

fn run(command: BenchCommand) -> Result<()> {
    match command {
        BenchCommand::OverAllocation(options) => sweep::run::<OverAllocation>(&options),
        BenchCommand::Normalizer(options) => sweep::run::<NormalizerFigures>(&options),
        BenchCommand::Convergence(options) => convergence::run(&options),
        BenchCommand::Engine(options) => engine::run(&options),
        BenchCommand::Changes(options) => changes::run(&options),
        BenchCommand::Feeds(options) => feeds::run(&options),
        BenchCommand::Scaling(options) => scaling::run(&options),
        BenchCommand::Swarm(options) => swarm::run(&options),
    }
}
