//! Experiments over loads: each is what it measures at one load, and the form of table and figure.

use std::path::{Path, PathBuf};

use crate::experiment::NamedOptimizer;
use crate::experiment::flow_set::FlowSetError;
use crate::experiment::flowlets::{Stream, paper_network};
use crate::experiment::over_allocation::Length;
use anyhow::{Context, Result, ensure};
use clap::Args;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use ratewright_plot::commit::commit;
use ratewright_plot::{Axis, Picture};
use ratewright_topology::TwoTierClos;
use serde::Serialize;

/// Iterations of either kind, at most.
const MOST_ITERATIONS: u32 = 100_000_000;

/// Figures of an experiment for one optimiser at one load.
pub trait Figures: Serialize + Sized {
    /// The optimisers that it compares.
    const OPTIMIZERS: &'static [NamedOptimizer];

    /// Runs one of them under one load.
    ///
    /// # Errors
    /// A network that cannot be built.
    fn measure(
        network: &TwoTierClos,
        stream: Stream,
        length: Length,
        named: NamedOptimizer,
    ) -> Result<Self, FlowSetError>;

    /// The optimiser.
    fn optimizer(&self) -> &'static str;

    /// The load.
    fn load(&self) -> f64;

    /// All results as a table, with a column for each load.
    fn table(options: &SweepOptions, results: &[Self]) -> Table;

    /// All results as a figure.
    fn picture(options: &SweepOptions, results: &[Self]) -> Picture;
}

/// Runs an experiment and prints it.
///
/// # Errors
/// When options make no sense or the figure cannot be written.
pub fn run<F: Figures>(options: &SweepOptions) -> Result<()> {
    options.check()?;
    let network = paper_network();
    let mut results: Vec<F> = Vec::new();
    for &load in &options.loads {
        for &named in F::OPTIMIZERS {
            let (stream, length) = (options.stream(load), options.length());
            results.push(F::measure(&network, stream, length, named)?);
        }
    }
    if let Some(file) = &options.svg {
        F::picture(options, &results).write(file)?;
        announce(file);
    }
    if options.json {
        return print_json(&options.results(results));
    }
    println!("{}", F::table(options, &results));
    Ok(())
}

/// The result of an optimiser at a load.
fn find<'a, F: Figures>(results: &'a [F], optimizer: &str, load: f64) -> Option<&'a F> {
    results
        .iter()
        .find(|r| r.optimizer() == optimizer && r.load() == load)
}

/// An optimiser's line in a figure: a value at each load.
#[must_use]
pub fn points<F: Figures>(
    options: &SweepOptions,
    results: &[F],
    optimizer: &str,
    value: impl Fn(&F) -> f64,
) -> Vec<(f64, f64)> {
    let loads = options.loads.iter();
    let at = |&load: &f64| Some((load, value(find(results, optimizer, load)?)));
    let mut points: Vec<(f64, f64)> = loads.filter_map(at).collect();
    // Loads come in the order of the command line; a line needs ascending x.
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

/// A row of a table: its name, the optimiser, and what stands in a cell.
pub type Row<F> = (String, &'static str, fn(&F) -> String);

/// A table with a column for each load.
#[must_use]
pub fn load_table<F: Figures>(
    options: &SweepOptions,
    results: &[F],
    title: &str,
    rows: &[Row<F>],
) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    let loads = options.loads.iter().map(|l| format!("load {l}"));
    table.set_header(std::iter::once(title.to_owned()).chain(loads));
    for (name, optimizer, cell) in rows {
        let cells = options
            .loads
            .iter()
            .map(|&load| find(results, optimizer, load).map_or_else(String::new, cell));
        table.add_row(std::iter::once(name.clone()).chain(cells));
    }
    for column in 1..=options.loads.len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Options of an experiment over loads: the paper's network (9 racks of 16 servers at 10 Gbit/s
/// under 4 spines), a web server's flowlets, an iteration every 10 µs.
#[derive(Debug, Clone, Args)]
pub struct SweepOptions {
    /// Mean loads of a server's link, with commas between them
    #[arg(long, value_delimiter = ',', default_values_t = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])]
    pub loads: Vec<f64>,
    /// Iterations before the first that counts
    #[arg(long, default_value_t = 1_000)]
    pub warm_up: u32,
    /// Iterations that count
    #[arg(long, default_value_t = 2_000)]
    pub iterations: u32,
    /// Time between two iterations, in microseconds
    #[arg(long, default_value_t = 10)]
    pub interval_us: u64,
    /// Seed of arrivals, sizes and paths
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Draw the figure here
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// A results file of an experiment over loads.
#[derive(Debug, Clone, Serialize)]
pub struct SweepResults<T> {
    /// Commit of the program.
    pub commit: &'static str,
    /// Seed.
    pub seed: u64,
    /// Time between two iterations.
    pub interval_us: u64,
    /// Iterations that count, for each load and optimiser.
    pub iterations: u32,
    /// By load and optimiser.
    pub results: Vec<T>,
}

impl SweepOptions {
    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// Names the option.
    pub fn check(&self) -> Result<()> {
        ensure!(
            // Written so that NaN is refused too.
            self.loads.iter().all(|l| *l > 0.0 && *l < 1.0),
            "--loads are above 0 and below 1: at 1 more comes than a link can carry"
        );
        ensure!(!self.loads.is_empty(), "--loads is empty");
        ensure!(
            (1..=MOST_ITERATIONS).contains(&self.iterations),
            "--iterations is 1 to {MOST_ITERATIONS}"
        );
        ensure!(
            self.warm_up <= MOST_ITERATIONS,
            "--warm-up is 0 to {MOST_ITERATIONS}"
        );
        ensure!(
            (1..=1_000_000).contains(&self.interval_us),
            "--interval-us is 1 to 1000000"
        );
        Ok(())
    }

    /// The stream at one load.
    #[must_use]
    pub fn stream(&self, load: f64) -> Stream {
        Stream {
            load,
            interval_ns: self.interval_us * 1_000,
            seed: self.seed,
        }
    }

    /// Returns the length of each run.
    #[must_use]
    pub fn length(&self) -> Length {
        Length {
            warm_up: self.warm_up,
            measured: self.iterations,
        }
    }

    /// With what stands in every results file.
    #[must_use]
    pub fn results<T>(&self, results: Vec<T>) -> SweepResults<T> {
        SweepResults {
            commit: commit(),
            seed: self.seed,
            interval_us: self.interval_us,
            iterations: self.iterations,
            results,
        }
    }

    /// The load axis: a little beyond the least and the largest load.
    #[must_use]
    pub fn load_axis(&self) -> Axis {
        let least = self.loads.iter().copied().fold(1.0, f64::min);
        let most = self.loads.iter().copied().fold(0.0, f64::max);
        Axis::linear("mean load of a server's link").over(least - 0.02, most + 0.02)
    }

    /// In a few words, for plots.
    #[must_use]
    pub fn describe(&self) -> String {
        format!(
            "144 servers at 10 Gbit/s, two-tier Clos, Web flowlets · an iteration every {} µs, {} of them · seed {}",
            self.interval_us, self.iterations, self.seed
        )
    }
}

/// Prints `value` as JSON.
///
/// # Errors
/// When it cannot be written.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    println!(
        "{}",
        serde_json::to_string_pretty(value).context("writing the results")?
    );
    Ok(())
}

/// Says where a figure went, on stderr so that it does not mix with results.
pub fn announce(file: &Path) {
    eprintln!("figure: {}", file.display());
}
