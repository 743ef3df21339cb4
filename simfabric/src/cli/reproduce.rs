//! `simfabric reproduce`: a paper's figures, with the paper's numbers beside ours.

use anyhow::{Context as _, Result, bail};
use clap::Args;
use ratewright_simfabric::experiment::choices::Choices;
use ratewright_simfabric::experiment::{Experiment, FLOWTUNE, Settings};
use std::path::PathBuf;

/// What `reproduce` takes.
#[derive(Args, Debug)]
pub(crate) struct ReproduceArgs {
    /// The paper.
    #[arg(value_parser = ["flowtune"])]
    paper: String,
    /// The letters of the experiments, or `all`. H to K share their runs: together they take as long as one.
    #[arg(required = true, value_name = "EXPERIMENT")]
    experiments: Vec<String>,
    /// The short form, a minute at most per experiment.
    #[arg(long)]
    quick: bool,
    /// Another choice where the paper leaves one open, for D and H to K; `simfabric list` has them.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
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
        let mut chosen: Vec<&Experiment> = Vec::new();
        for wanted in &self.experiments {
            let all = wanted == "all";
            let before = chosen.len();
            let known = FLOWTUNE.iter();
            chosen.extend(
                known.filter(|e| all || wanted.eq_ignore_ascii_case(&e.letter.to_string())),
            );
            if chosen.len() == before {
                let known: Vec<String> = FLOWTUNE.iter().map(|e| e.letter.to_string()).collect();
                bail!(
                    "{} has no experiment {wanted}; there are {} and all",
                    self.paper,
                    known.join(", ")
                );
            }
        }
        let mut choices = Choices::default();
        for choice in &self.set {
            choices.set(choice)?;
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(self.jobs.unwrap_or(0))
            .build()
            .context("starting the threads")?;
        let settings = Settings {
            seed: self.seed,
            quick: self.quick,
            choices,
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
