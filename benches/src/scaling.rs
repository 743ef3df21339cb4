//! `ratewright-bench scaling`: Flowtune's table of sizes, by blocks and workers, with peers.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use ratewright_allocator::engine::{EngineEvent, LinkPath, RateEngine};
use ratewright_allocator::num::RATE_UNIT_BPS;
use ratewright_plot::commit::commit;
use ratewright_plot::{Axis, Curve, Panel, Picture, style};
use serde::Serialize;

use super::engine::{build, capacities_bps, measure, network};
use super::engine_options::EngineOptions;
use super::engine_traffic::EngineTraffic;
use super::iterations::IterationQuantiles;
use super::peers::{CLARABEL, MAX_MIN, PeerFigures, Problem};
use super::sweep::{announce, print_json};

/// Hosts, flows, Flowtune's time for an iteration in µs, and its cores (flowtune §5, table of the
/// multicore allocator's speed).
const PAPER: [(u32, usize, f64, u32); 7] = [
    (384, 3_072, 8.29, 4),
    (768, 6_144, 8.86, 16),
    (1_536, 12_288, 12.63, 64),
    (1_536, 24_576, 13.99, 64),
    (1_536, 49_152, 16.93, 64),
    (3_072, 49_152, 23.76, 64),
    (4_608, 49_152, 30.71, 64),
];
/// Iterations after which rates are compared with peers'.
const REST_ITERATIONS: usize = 4_000;

/// A network and its flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size {
    hosts: u32,
    flows: usize,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || format!("{text:?} is not HOSTSxFLOWS, as in 384x3072");
        let (hosts, flows) = text.split_once('x').ok_or_else(wrong)?;
        Ok(Self {
            hosts: hosts.parse().map_err(|_| wrong())?,
            flows: flows.parse().map_err(|_| wrong())?,
        })
    }
}

/// Options.
#[derive(Debug, Clone, Args)]
pub struct ScalingOptions {
    /// Networks and their flows, with commas between them; those of Flowtune's table if not given
    #[arg(long, value_delimiter = ',', value_name = "HOSTSxFLOWS")]
    sizes: Vec<Size>,
    /// Blocks, each a power of two, with commas between them
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4, 8])]
    blocks: Vec<u32>,
    /// Workers, likewise; more than the square of the blocks are left out
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    workers: Vec<usize>,
    /// Iterations of each
    #[arg(long, default_value_t = 2_000)]
    iterations: usize,
    /// Most flows that Clarabel is given: it takes seconds for a few thousand
    #[arg(long, default_value_t = 6_144)]
    clarabel_flows: usize,
    /// Seed of the flows
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Draw the figure here
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// One engine.
#[derive(Debug, Clone, Serialize)]
struct EngineCell {
    blocks: u32,
    workers: usize,
    iteration_us: IterationQuantiles,
    bytes_per_flow: f64,
}

/// Flowtune's figures.
#[derive(Debug, Clone, Copy, Serialize)]
struct Paper {
    iteration_us: f64,
    cores: u32,
}

/// One size.
#[derive(Debug, Clone, Serialize)]
struct SizeFigures {
    hosts: u32,
    flows: usize,
    links: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    flowtune: Option<Paper>,
    engines: Vec<EngineCell>,
    peers: Vec<PeerFigures>,
}

/// The results.
#[derive(Debug, Clone, Serialize)]
struct ScalingResults {
    commit: &'static str,
    simd: &'static str,
    iterations: usize,
    seed: u64,
    sizes: Vec<SizeFigures>,
}

impl SizeFigures {
    fn cell(&self, blocks: u32, workers: usize) -> Option<&EngineCell> {
        self.engines
            .iter()
            .find(|cell| cell.blocks == blocks && cell.workers == workers)
    }

    /// Returns the engine with the fastest number of blocks for this number of workers.
    fn best(&self, workers: usize) -> Option<&EngineCell> {
        let of_workers = self.engines.iter().filter(|cell| cell.workers == workers);
        of_workers.min_by(|a, b| a.iteration_us.p50.total_cmp(&b.iteration_us.p50))
    }

    fn peer(&self, name: &str) -> Option<&PeerFigures> {
        self.peers.iter().find(|peer| peer.name == name)
    }

    fn name(&self) -> String {
        format!("{} × {}", self.hosts, self.flows)
    }
}

/// Returns the options of `ratewright-bench engine` at their defaults, but for what is varied here.
fn engine_options(options: &ScalingOptions, size: Size) -> Result<EngineOptions> {
    #[derive(Parser)]
    struct Defaults {
        #[command(flatten)]
        options: EngineOptions,
    }
    // Through the parser, which alone knows the defaults.
    let defaults = Defaults::try_parse_from(["engine"]).context("the defaults of bench engine")?;
    Ok(EngineOptions {
        hosts: size.hosts,
        flows: size.flows,
        iterations: options.iterations,
        seed: options.seed,
        ..defaults.options
    })
}

/// Runs it.
///
/// # Errors
/// If options make no sense, or a network cannot be built or cut.
pub fn run(options: &ScalingOptions) -> Result<()> {
    ensure!(!options.blocks.is_empty(), "--blocks is empty");
    ensure!(!options.workers.is_empty(), "--workers is empty");
    let most = options
        .blocks
        .iter()
        .max()
        .map_or(0, |b| (*b as usize).saturating_pow(2));
    ensure!(
        options.workers.iter().any(|workers| *workers <= most),
        "--workers are all above {most}, the square of the blocks"
    );
    let sizes = if options.sizes.is_empty() {
        PAPER
            .iter()
            .map(|&(hosts, flows, ..)| Size { hosts, flows })
            .collect()
    } else {
        options.sizes.clone()
    };
    let mut simd = "";
    let mut figures = Vec::new();
    for size in sizes {
        let (of_size, with) = measure_size(options, size)?;
        simd = with;
        figures.push(of_size);
    }
    let results = ScalingResults {
        commit: commit(),
        simd,
        iterations: options.iterations,
        seed: options.seed,
        sizes: figures,
    };
    if let Some(file) = &options.svg {
        picture(options, &results).write(file)?;
        announce(file);
    }
    if options.json {
        return print_json(&results);
    }
    println!("{}", engines_table(options, &results));
    println!("{}", peers_table(&results));
    Ok(())
}

fn measure_size(options: &ScalingOptions, size: Size) -> Result<(SizeFigures, &'static str)> {
    let base = engine_options(options, size)?;
    let mut engines = Vec::new();
    let (mut links, mut simd) = (0, "");
    for &blocks in &options.blocks {
        for &workers in &options.workers {
            // A worker has at least one FlowBlock, of which there are blocks².
            if workers > (blocks as usize).pow(2) {
                continue;
            }
            let result = measure(&EngineOptions {
                blocks: Some(blocks),
                workers,
                ..base.clone()
            })?;
            // Equal in all runs of a size.
            (links, simd) = (result.links, result.simd);
            engines.push(EngineCell {
                blocks,
                workers,
                iteration_us: result.iteration_us,
                bytes_per_flow: result.bytes_per_flow,
            });
        }
    }
    // One problem for all peers: the engine's own flows, capacities and rates.
    let problem = problem(&base)?;
    let mut peers = vec![problem.max_min()?];
    // An interior-point solver takes minutes for large problems.
    if size.flows <= options.clarabel_flows {
        peers.push(problem.clarabel()?);
    }
    let flowtune = PAPER
        .iter()
        .find(|row| (row.0, row.1) == (size.hosts, size.flows))
        .map(|&(_, _, iteration_us, cores)| Paper {
            iteration_us,
            cores,
        });
    let figures = SizeFigures {
        hosts: size.hosts,
        flows: size.flows,
        links,
        flowtune,
        engines,
        peers,
    };
    Ok((figures, simd))
}

/// The flows that `measure` starts with, and the engine's rates for them at rest.
fn problem(options: &EngineOptions) -> Result<Problem> {
    let topology = network(options)?;
    let capacities = capacities_bps(&topology);
    let (mut engine, _) = build(options, &topology, &capacities)?;
    let mut traffic = EngineTraffic::new(&topology, options.seed);
    let mut paths: Vec<LinkPath> = Vec::new();
    for _ in 0..options.flows {
        let event = traffic.start()?;
        if let EngineEvent::Start(spec) = &event {
            paths.push(spec.links.clone());
        }
        engine.apply(event)?;
    }
    for _ in 0..REST_ITERATIONS {
        engine.iterate();
        engine.drain_updates(&mut |_| {});
    }
    // As the engine shares them out: a part is kept back for what the threshold leaves unsaid.
    let mut shared_bps = Vec::new();
    engine.link_capacities(&mut shared_bps);
    let mut rates = engine.rates_bps();
    // Numbers count up from 0, so the order is that of `paths`.
    rates.sort_unstable_by_key(|&(number, _)| number);
    Ok(Problem {
        paths,
        capacities: shared_bps.iter().map(|c| c / RATE_UNIT_BPS).collect(),
        rates: rates
            .into_iter()
            .map(|(_, rate)| rate / RATE_UNIT_BPS)
            .collect(),
    })
}

/// Right-aligned but for the first columns.
fn align(table: &mut Table, names: usize, columns: usize) {
    for column in names..columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

fn engines_table(options: &ScalingOptions, results: &ScalingResults) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    let mut header = vec!["hosts × flows".to_owned()];
    for &blocks in &options.blocks {
        header.extend(options.workers.iter().map(|w| format!("B {blocks}, W {w}")));
    }
    header.extend(["Flowtune".to_owned(), "its cores".to_owned()]);
    let columns = header.len();
    table.set_header(header);
    for size in &results.sizes {
        let mut row = vec![size.name()];
        for &blocks in &options.blocks {
            row.extend(options.workers.iter().map(|&workers| {
                size.cell(blocks, workers).map_or_else(String::new, |cell| {
                    let times = cell.iteration_us;
                    format!("{:.1} ({:.1})", times.p50, times.min)
                })
            }));
        }
        row.extend(match size.flowtune {
            Some(paper) => [
                format!("{:.2}", paper.iteration_us),
                paper.cores.to_string(),
            ],
            None => [String::new(), String::new()],
        });
        table.add_row(row);
    }
    align(&mut table, 1, columns);
    table
}

fn peers_table(results: &ScalingResults) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header([
        "hosts × flows",
        "peer",
        "all rates, ms",
        "largest difference of a rate",
        "throughput",
    ]);
    for size in &results.sizes {
        for peer in &size.peers {
            let unsolved = if peer.solved { "" } else { " (gave up)" };
            table.add_row([
                size.name(),
                format!("{}{unsolved}", peer.name),
                format!("{:.2}", peer.ms),
                format!("{:.1e}", peer.max_relative_difference),
                format!("{:.4}", peer.throughput),
            ]);
        }
    }
    align(&mut table, 2, 5);
    table
}

/// A curve through the sizes for which there is a figure, in µs.
fn curve(
    results: &ScalingResults,
    name: impl Into<String>,
    colour: usize,
    us: impl Fn(&SizeFigures) -> Option<f64>,
) -> Curve {
    let places = (1u32..).map(f64::from).zip(&results.sizes);
    let points = places.filter_map(|(x, size)| Some((x, us(size)?)));
    Curve::new(name, points.collect())
        .colour(style::colour(colour))
        .dots()
}

fn picture(options: &ScalingOptions, results: &ScalingResults) -> Picture {
    let paper = |size: &SizeFigures| Some(size.flowtune?.iteration_us);
    let flowtune = curve(results, "Flowtune, 4 to 64 cores", 8, paper);
    let flowtune = flowtune.dashed().rings();
    let mut engines = vec![flowtune.clone()];
    let mut all = vec![flowtune];
    for (w, &workers) in options.workers.iter().enumerate() {
        for (b, &blocks) in options.blocks.iter().enumerate() {
            let name = format!("B {blocks}, W {workers}");
            // One colour for each pair, and those of a worker count beside each other.
            let colour = w * options.blocks.len() + b;
            engines.push(curve(results, name, colour, |size| {
                Some(size.cell(blocks, workers)?.iteration_us.p50)
            }));
        }
        let name = format!("an iteration, W {workers}");
        let best = |size: &SizeFigures| Some(size.best(workers)?.iteration_us.p50);
        all.push(curve(results, name, w * options.blocks.len(), best).width(3));
    }
    for (name, colour) in [(MAX_MIN, 6), (CLARABEL, 7)] {
        all.push(curve(results, name, colour, |size| {
            Some(size.peer(name)?.ms * 1e3)
        }));
    }
    let panel = |title: &str, y, mut curves: Vec<Curve>| {
        // A solver that was given no size, and Flowtune where it has none of the sizes.
        curves.retain(|curve| !curve.points.is_empty());
        let names = results.sizes.iter().map(SizeFigures::name).collect();
        Panel::curves(title, Axis::names("hosts × flows", names), y, curves)
    };
    let subtitle = format!(
        "{} · median of {} iterations, F-NORM and output included · seed {}",
        results.simd, results.iterations, results.seed
    );
    let panels = vec![
        panel(
            "By blocks and workers",
            Axis::linear("µs per iteration"),
            engines,
        ),
        panel(
            "The fastest blocks, and peers that compute all rates from nothing",
            Axis::log("µs (logarithmic)"),
            all,
        ),
    ];
    let title = "An iteration of the engine, by size, blocks and workers";
    Picture::new(title, subtitle, panels).panel_size(760, 480)
}
