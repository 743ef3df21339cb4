//! `simfabric`: runs plans and experiments on the simulated fabric.

/// Prints a line.
macro_rules! say {
    ($($line:tt)*) => {
        $crate::cli::say(format_args!($($line)*))?
    };
}

mod cli;

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use ratewright_simfabric::bench::{self, memory::Lines};
use ratewright_simfabric::{Sim, Time};
use serde::Serialize;

/// The simulated fabric of Ratewright.
#[derive(Parser, Debug)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Measure the engine: packet-hops per second of a permutation at 100 Gbit/s.
    Bench(BenchArgs),
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

#[derive(Args, Debug)]
struct BenchArgs {
    /// Hosts of the permutation.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..=65_536))]
    hosts: u32,
    /// Packet-hops to simulate at least; the run ends at most 65,536 events later, or with the window of a large fabric.
    #[arg(long, default_value_t = 20_000_000)]
    packet_hops: u64,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// Measure instead how long cache lines take of so much memory, which bounds large runs.
    #[arg(long, conflicts_with_all = ["hosts", "packet_hops", "json"])]
    memory: bool,
}

#[derive(Serialize, Debug)]
struct BenchResult {
    scenario: String,
    packet_hops: u64,
    packet_hops_per_s: f64,
    events_per_s: f64,
    wall_s: f64,
    simulated_us: f64,
    peak_rss_bytes: u64,
    packets_high_water: usize,
}

mod clock {
    use std::time::{Duration, Instant};

    /// Runs something and says how long it took.
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place that measures time"
    )]
    pub(crate) fn timed<R>(work: impl FnOnce() -> R) -> (R, Duration) {
        let begin = Instant::now();
        let result = work();
        (result, begin.elapsed())
    }
}

/// The most memory that the process had, from the kernel.
fn peak_rss_bytes() -> anyhow::Result<u64> {
    let status =
        std::fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .context("no VmHWM in /proc/self/status")?;
    let kib: u64 = line
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .context("VmHWM is no number")?;
    Ok(kib * 1_024)
}

/// Kibibytes of memory whose lines are measured.
const MEMORY_KIB: [usize; 9] = [256, 512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536];
/// Lines that are waited for, and that are fetched ahead, per size.
const LINES: [usize; 2] = [1_000_000, 8_000_000];

fn run_memory_bench() -> anyhow::Result<()> {
    for kib in MEMORY_KIB {
        let mut lines = Lines::new(kib * 1_024, 1);
        // Once, so that all of it is there.
        lines.touch(LINES[1] / 4);
        std::hint::black_box(lines.chase(LINES[0] / 4));
        let (_, waited) = clock::timed(|| std::hint::black_box(lines.chase(LINES[0])));
        let ((), fetched) = clock::timed(|| lines.touch(LINES[1]));
        std::hint::black_box(lines.touched());
        let per_line = |took: Duration, lines: usize| took.as_secs_f64() * 1e9 / lines as f64;
        say!(
            "{:>6.2} MiB: {:>6.1} ns for a line that is waited for, {:>5.2} ns for one that was fetched ahead",
            kib as f64 / 1_024.0,
            per_line(waited, LINES[0]),
            per_line(fetched, LINES[1])
        );
    }
    Ok(())
}

fn run_bench(args: &BenchArgs) -> anyhow::Result<()> {
    if args.memory {
        return run_memory_bench();
    }
    let topology = bench::fabric(args.hosts)?;
    let hosts = topology.hosts().len() as u32;
    let mut sim = Sim::new(
        bench::config(1),
        topology,
        bench::permutation(hosts),
        bench::transport(),
    )?;
    let (ended, wall) = clock::timed(|| {
        sim.run_with(Time::MAX, |progress| {
            if progress.packet_hops < args.packet_hops {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })
    });
    ended?;
    let records = sim.records();
    records.conservation?;
    report(args, hosts, &records, wall)
}

fn report(
    args: &BenchArgs,
    hosts: u32,
    records: &ratewright_simfabric::Records,
    wall: Duration,
) -> anyhow::Result<()> {
    let wall_s = wall.as_secs_f64();
    let result = BenchResult {
        scenario: format!("DCTCP permutation of {hosts} hosts at 100 Gbit/s"),
        packet_hops: records.packet_hops,
        packet_hops_per_s: records.packet_hops as f64 / wall_s,
        events_per_s: records.events as f64 / wall_s,
        wall_s,
        simulated_us: records.now.as_us_f64(),
        peak_rss_bytes: peak_rss_bytes()?,
        packets_high_water: records.packets_high_water,
    };
    if args.json {
        say!("{}", serde_json::to_string_pretty(&result)?);
    } else {
        say!("{}", result.scenario);
        say!(
            "  {:.2} M packet-hops/s ({} in {wall_s:.2} s)",
            result.packet_hops_per_s / 1e6,
            result.packet_hops
        );
        say!("  {:.2} M events/s", result.events_per_s / 1e6);
        say!(
            "  {:.0} us simulated, {} packets at most, {:.1} MiB of memory",
            result.simulated_us,
            result.packets_high_water,
            result.peak_rss_bytes as f64 / 1_048_576.0
        );
    }
    Ok(())
}

/// One line for whatever went wrong, also where backtraces are switched on.
fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Bench(args) => run_bench(&args),
        Command::Run(args) => args.run(),
        Command::Reproduce(args) => args.run(),
        Command::Check(args) => args.run(),
        Command::List => cli::list(),
        Command::Compare(args) => args.run(),
        Command::Trace(args) => args.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
