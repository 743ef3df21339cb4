//! `simfabric reproduce`: a paper's figures, with the paper's numbers beside ours.

use anyhow::{Context as _, Result, bail};
use clap::Args;
use ratewright_simfabric::experiment::{Experiment, FLOWTUNE, Settings};
use std::path::PathBuf;

/// What `reproduce` takes.
#[derive(Args, Debug)]
pub(crate) struct ReproduceArgs {
    /// The paper.
    #[arg(value_parser = ["flowtune"])]
    paper: String,
    /// The letter of the experiment, or `all`.
    experiment: String,
    /// The short form, a minute at most per experiment.
    #[arg(long)]
    quick: bool,
    /// Where the results go.
    #[arg(long)]
    out: PathBuf,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs at the same time; by default as many as there are cores.
    #[arg(long)]
    jobs: Option<usize>,
}

impl ReproduceArgs {
    /// Runs the experiments and writes their results.
    pub(crate) fn run(&self) -> Result<()> {
        let all = self.experiment == "all";
        let chosen: Vec<&Experiment> = FLOWTUNE
            .iter()
            .filter(|e| all || self.experiment.eq_ignore_ascii_case(&e.letter.to_string()))
            .collect();
        if chosen.is_empty() {
            let known: Vec<String> = FLOWTUNE.iter().map(|e| e.letter.to_string()).collect();
            bail!(
                "{} has no experiment {}; there are {} and all",
                self.paper,
                self.experiment,
                known.join(", ")
            );
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(self.jobs.unwrap_or(0))
            .build()
            .context("starting the threads")?;
        let settings = Settings {
            seed: self.seed,
            quick: self.quick,
        };
        for experiment in chosen {
            eprintln!("{}: {}", experiment.letter, experiment.title);
            let result = pool.install(|| (experiment.run)(settings))?;
            result.figure.write(&self.out, &result.picture)?;
            println!("{}", result.figure.table());
        }
        Ok(())
    }
}
