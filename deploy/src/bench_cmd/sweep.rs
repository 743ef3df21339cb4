//! What the experiments over loads share.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use ratewright_allocator::num::experiment::flowlets::Stream;
use ratewright_allocator::num::experiment::over_allocation::Length;
use serde::Serialize;

use crate::report::json::COMMIT;

/// Options of an experiment over loads: the paper's network (9 racks of 16 servers at 10 Gbit/s under
/// 4 spines), a web server's flowlets, an iteration every 10 µs.
#[derive(Debug, Clone, Args)]
pub struct SweepOptions {
    /// Mean loads of a server's link
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
pub struct Results<T> {
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
            self.loads.iter().all(|l| *l > 0.0 && *l < 1.0),
            "--loads are above 0 and below 1: at 1 more comes than a link can carry"
        );
        ensure!(!self.loads.is_empty(), "--loads is empty");
        ensure!(self.iterations > 0, "--iterations is 0");
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

    /// How long each run is.
    #[must_use]
    pub fn length(&self) -> Length {
        Length {
            warm_up: self.warm_up,
            measured: self.iterations,
        }
    }

    /// With what stands in every results file.
    #[must_use]
    pub fn results<T>(&self, results: Vec<T>) -> Results<T> {
        Results {
            commit: COMMIT,
            seed: self.seed,
            interval_us: self.interval_us,
            iterations: self.iterations,
            results,
        }
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
