//! `simfabric bench`: the engine's own speed.

use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use ratewright_simfabric::bench::growth::{self, Fit};
use ratewright_simfabric::bench::{self, memory::CacheLines};
use ratewright_simfabric::plan::PlannedTransport;
use ratewright_simfabric::scheme::Run;
use ratewright_simfabric::workload::FlowStream;
use ratewright_simfabric::{Config, RunResults, Time};
use ratewright_topology::Topology;
use serde::Serialize;

/// Arguments of `bench`.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// Traffic that is simulated.
    #[arg(long, value_enum, default_value_t)]
    scene: Scene,
    /// A scheme of the registry in place of the scene's own, with its own parameters and queues.
    /// Paths are symmetric in the permutation, and otherwise for schemes that need it.
    #[arg(long)]
    scheme: Option<String>,
    /// Hosts, at least: by default 128 of the permutation, and 144 of the other scenes.
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=65_536))]
    hosts: Option<u32>,
    /// Packet-hops to simulate at least; the run ends at most 65,536 events later, or with the
    /// window of a large fabric.
    #[arg(long, default_value_t = 20_000_000)]
    packet_hops: u64,
    /// Threads that simulate the scene, at most.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// Measure instead how long cache lines take of so much memory, which bounds large runs.
    #[arg(long, conflicts_with_all = ["scene", "scheme", "hosts", "packet_hops", "threads", "json"])]
    memory: bool,
    /// Measure instead how the time grows with the packet-hops: sizes from 16 to 2,048 hosts, each
    /// for the same simulated time, in turns.
    #[arg(long, conflicts_with_all = ["scene", "scheme", "hosts", "packet_hops", "threads", "memory"])]
    growth: bool,
    /// Simulated microseconds of each run of `--growth`.
    #[arg(long, default_value_t = 500, requires = "growth", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    simulated_us: u64,
    /// Runs of each size of `--growth`.
    #[arg(long, default_value_t = 5, requires = "growth", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
}

/// Traffic of a measurement.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Scene {
    /// Long flows, each between two hosts of its own.
    #[default]
    Permutation,
    /// Google's RPCs at half of the links' capacity, with histograms of all queues.
    Messages,
    /// Incasts of 15 to one by HPCC, with pauses, telemetry and histograms.
    Incast,
}

/// Result of a scene; its fields are the JSON.
#[derive(Serialize, Debug)]
struct BenchResult {
    scenario: String,
    threads: u16,
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

    /// Runs the work and measures its time.
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

/// Largest resident memory of the process so far, from the kernel.
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

/// Sizes of memory whose cache lines are measured, in KiB: from a second-level cache to main
/// memory.
const MEMORY_KIB: [usize; 9] = [256, 512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536];
/// Number of lines that are waited for, and of lines that are fetched ahead, per size.
const LINES: [usize; 2] = [1_000_000, 8_000_000];

/// Prints the times of cache lines by size of memory.
fn run_memory_bench() -> anyhow::Result<()> {
    for kib in MEMORY_KIB {
        let mut lines = CacheLines::new(kib * 1_024, 1);
        // Once without a clock: pages are mapped and caches hold as much as they can.
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

impl BenchArgs {
    /// Measures memory, growth, or a scene.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        if self.memory {
            return run_memory_bench();
        }
        if self.growth {
            return run_growth_bench(self);
        }
        let scheme = self.scheme.as_deref();
        let (hosts, results, wall) = match self.scene {
            Scene::Permutation => {
                let until = (Time::MAX, self.packet_hops);
                permutation(self.hosts.unwrap_or(128), self.threads, scheme, until)?
            }
            Scene::Messages => self.messages(scheme)?,
            Scene::Incast => self.incast(scheme)?,
        };
        report(self, hosts, &results, wall)
    }

    /// Builds racks, with symmetric ECMP for a scheme that needs it.
    fn racks(&self, scheme: Option<&str>) -> anyhow::Result<Topology> {
        let hosts = self.hosts.unwrap_or(144);
        let racks = bench::racks(hosts, false)?;
        match scheme {
            Some(name) if bench::needs_symmetric(name, &racks)? => Ok(bench::racks(hosts, true)?),
            _ => Ok(racks),
        }
    }

    /// Runs the messages.
    fn messages(&self, scheme: Option<&str>) -> anyhow::Result<(u32, RunResults, Duration)> {
        let topology = self.racks(scheme)?;
        let flows = Box::new(bench::messages(topology.hosts().len() as u32)?);
        let mut transport = bench::transport(&topology, scheme)?;
        transport.fabric.histograms = true;
        let until = (Time::MAX, self.packet_hops);
        simulate(&transport, &topology, flows, self.threads, until)
    }

    /// Runs the incasts.
    fn incast(&self, scheme: Option<&str>) -> anyhow::Result<(u32, RunResults, Duration)> {
        let topology = self.racks(scheme)?;
        let flows = Box::new(bench::incast(topology.hosts().len() as u32));
        let mut transport = bench::lossless_transport(&topology, scheme)?;
        transport.fabric.histograms = true;
        let until = (Time::MAX, self.packet_hops);
        simulate(&transport, &topology, flows, self.threads, until)
    }
}

/// Runs the permutation of at least `hosts` hosts until a time, or until there were so many
/// packet-hops.
fn permutation(
    hosts: u32,
    threads: u16,
    scheme: Option<&str>,
    until: (Time, u64),
) -> anyhow::Result<(u32, RunResults, Duration)> {
    // Schemes that read acknowledgements need them on the way of their data.
    let topology = bench::fabric(hosts, scheme.is_some())?;
    let flows = Box::new(bench::permutation(topology.hosts().len() as u32));
    let transport = bench::transport(&topology, scheme)?;
    simulate(&transport, &topology, flows, threads, until)
}

/// Runs flows until a time, or until there were so many packet-hops. Returns the number of hosts,
/// the results without flows, and the time that the run took.
fn simulate(
    transport: &PlannedTransport,
    topology: &Topology,
    flows: FlowStream,
    threads: u16,
    (end, packet_hops): (Time, u64),
) -> anyhow::Result<(u32, RunResults, Duration)> {
    let config = Config {
        seed: 1,
        threads: threads.into(),
        ..Config::default()
    };
    let mut sim = transport.start(config, topology, flows)?;
    // Results of millions of messages would be most of the memory.
    sim.stream_flows(Box::new(|_| {}));
    let (results, wall) = measure(sim, end, packet_hops)?;
    Ok((topology.hosts().len() as u32, results, wall))
}

/// Runs until `end`, or until there were `packet_hops`, and measures the time.
fn measure(
    mut sim: Box<dyn Run>,
    end: Time,
    packet_hops: u64,
) -> anyhow::Result<(RunResults, Duration)> {
    // The clock runs over the events alone, not over building the fabric and its tables.
    let (ended, wall) = clock::timed(|| {
        sim.run_with(end, &mut |progress| {
            if progress.packet_hops < packet_hops {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })
    });
    ended?;
    let results = sim.results();
    results.conservation?;
    Ok((results, wall))
}

/// Result of `--growth`; its fields are the JSON.
#[derive(Serialize, Debug)]
struct GrowthResult {
    simulated_us: u64,
    rounds: u32,
    sizes: Vec<SizeResult>,
    least: Option<Fit>,
    median: Option<Fit>,
}

/// Times of one size of the permutation.
#[derive(Serialize, Debug)]
struct SizeResult {
    hosts: u32,
    packet_hops: u64,
    least_s: f64,
    median_s: f64,
}

/// Prints the times of all sizes, and lines fitted to them.
fn run_growth_bench(args: &BenchArgs) -> anyhow::Result<()> {
    let end = Time::from_us(args.simulated_us);
    let mut hops = [0; growth::HOSTS.len()];
    let mut walls: [Vec<f64>; growth::HOSTS.len()] = Default::default();
    // Sizes take turns within a round, so that a slow spell of the machine meets all of them.
    for _ in 0..args.rounds {
        for (i, hosts) in growth::HOSTS.into_iter().enumerate() {
            let (_, results, wall) = permutation(hosts, 1, None, (end, u64::MAX))?;
            // The same in every round: runs are deterministic.
            hops[i] = results.packet_hops;
            walls[i].push(wall.as_secs_f64());
        }
    }
    let sizes: Vec<SizeResult> = growth::HOSTS
        .into_iter()
        .zip(hops)
        .zip(&mut walls)
        .map(|((hosts, packet_hops), walls)| {
            // The least time is the one that other programs disturbed least; the median shows how
            // much they did.
            walls.sort_by(f64::total_cmp);
            SizeResult {
                hosts,
                packet_hops,
                least_s: walls[0],
                median_s: walls[walls.len() / 2],
            }
        })
        .collect();
    let fit = |of: fn(&SizeResult) -> f64| {
        let runs: Vec<_> = sizes
            .iter()
            .map(|s| (s.packet_hops as f64, of(s)))
            .collect();
        Fit::of(&runs)
    };
    let result = GrowthResult {
        simulated_us: args.simulated_us,
        rounds: args.rounds,
        least: fit(|size| size.least_s),
        median: fit(|size| size.median_s),
        sizes,
    };
    if args.json {
        say!("{}", serde_json::to_string_pretty(&result)?);
        return Ok(());
    }
    say!(
        "DCTCP permutations at 100 Gbit/s, {} us simulated, {} runs each:",
        result.simulated_us,
        result.rounds
    );
    say!(" hosts  packet-hops  least ms  (median)  least ns/hop  (median)");
    for size in &result.sizes {
        let per_hop = |s: f64| s * 1e9 / size.packet_hops as f64;
        say!(
            "{:>6} {:>12} {:>9.1} {:>9} {:>13.1} {:>9}",
            size.hosts,
            size.packet_hops,
            size.least_s * 1e3,
            format!("({:.1})", size.median_s * 1e3),
            per_hop(size.least_s),
            format!("({:.1})", per_hop(size.median_s)),
        );
    }
    for (name, fit) in [("least", result.least), ("median", result.median)] {
        let Some(fit) = fit else { continue };
        say!(
            "{name}: time grows as hops^{:.3}; straight line {:.1} ns per hop and {:.0} ms, R2 {:.4}, at most {:.1} % of the longest time off",
            fit.exponent,
            fit.line_ns_per_hop,
            fit.line_begins_s * 1e3,
            fit.line_r2,
            fit.line_worst * 100.0
        );
    }
    Ok(())
}

/// Prints the result of a scene.
fn report(
    args: &BenchArgs,
    hosts: u32,
    results: &RunResults,
    wall: Duration,
) -> anyhow::Result<()> {
    let wall_s = wall.as_secs_f64();
    let scheme = |own: &'static str| args.scheme.as_deref().unwrap_or(own);
    let result = BenchResult {
        scenario: match args.scene {
            Scene::Permutation => {
                let scheme = scheme("DCTCP");
                format!("Permutation of {hosts} hosts over {scheme} at 100 Gbit/s")
            }
            Scene::Messages => {
                let scheme = scheme("DCTCP");
                format!("Google's RPCs over {scheme} between {hosts} hosts at 100 Gbit/s, load 0.5")
            }
            Scene::Incast => {
                let scheme = scheme("HPCC");
                format!("Incasts of 15 to one by {scheme} among {hosts} hosts at 100 Gbit/s")
            }
        },
        threads: args.threads,
        packet_hops: results.packet_hops,
        packet_hops_per_s: results.packet_hops as f64 / wall_s,
        events_per_s: results.events as f64 / wall_s,
        wall_s,
        simulated_us: results.now.as_us_f64(),
        peak_rss_bytes: peak_rss_bytes()?,
        packets_high_water: results.packets_high_water,
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
