//! The commands that work with plans and results.

mod bench;
mod compare;
mod reproduce;
mod run;
mod stop;
mod trace;

use anyhow::{Context as _, Result};
use clap::Args;
use ratewright_simfabric::experiment::PAPERS;
use ratewright_simfabric::experiment::scene::{self, SceneConfig};
use ratewright_simfabric::net::queue::DISCIPLINES;
use ratewright_simfabric::parameters::{Parameter, Parameters as _};
use ratewright_simfabric::plan;
use ratewright_simfabric::report::size_groups::BY_PACKETS;
use ratewright_simfabric::scheme;
use ratewright_sizes::SizeDistribution;
use std::io::Write as _;
use std::path::{Path, PathBuf};

pub(crate) use bench::BenchArgs;
pub(crate) use compare::CompareArgs;
pub(crate) use reproduce::ReproduceArgs;
pub(crate) use run::RunArgs;
pub(crate) use trace::TraceArgs;

/// Arguments of `check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// The plan.
    plan: PathBuf,
}

impl CheckArgs {
    /// Reads a plan without running it.
    pub(crate) fn run(&self) -> Result<()> {
        let plan = plan::RunPlan::load(&self.plan, &plan::Overrides::default())?;
        let names: Vec<&str> = plan
            .transports
            .iter()
            .map(|transport| transport.label.as_str())
            .collect();
        say!(
            "{}: {} hosts, {} links, transports: {}",
            self.plan.display(),
            plan.topology.hosts().len(),
            plan.topology.links().len(),
            names.join(", ")
        );
        Ok(())
    }
}

/// Prints a line. A reader such as `head` that has seen enough is no failure.
pub(crate) fn say(line: std::fmt::Arguments<'_>) -> Result<()> {
    match writeln!(std::io::stdout().lock(), "{line}") {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to standard output"),
    }
}

/// Makes a directory for results. Called before the runs, so that a place that cannot be written
/// fails at once.
fn create(out: &Path) -> Result<()> {
    std::fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))
}

/// Prints the names that plans can use, the experiments, and all parameters with their defaults.
pub(crate) fn list() -> Result<()> {
    say!("schemes: {}", scheme::names().join(", "));
    say!("queues: {}", plan::disciplines().join(", "));
    say!("topologies: {}", plan::TOPOLOGIES.join(", "));
    say!("workloads: {}", plan::WORKLOADS.join(", "));
    say!("\nsize distributions, with the mean of the sampler:");
    // The mean is the sampler's own: curves are published without one.
    for name in ratewright_sizes::NAMES {
        let sizes = SizeDistribution::published(name)?;
        say!("  {name:<16} {:>12.0} bytes", sizes.mean_bytes());
    }
    let classes: Vec<&str> = BY_PACKETS.iter().map(|c| c.0).collect();
    say!(
        "\nsize groups of flow completion times, unless a plan gives others: {}",
        classes.join(", ")
    );
    for paper in PAPERS {
        say!("\nexperiments of `simfabric reproduce {}`:", paper.name);
        for experiment in paper.experiments {
            say!("  {}  {}", experiment.name, experiment.title);
        }
    }
    say!("\nparameters of queues, beside `discipline`:");
    for entry in DISCIPLINES {
        parameters(
            entry.name,
            entry.about,
            &(entry.parameters)(),
            &(entry.default)(),
        )?;
    }
    say!("\nparameters of schemes, beside `name`, and for --set NAME.KEY=VALUE:");
    for entry in scheme::SCHEMES {
        parameters(
            entry.name,
            entry.about,
            &(entry.parameters)(),
            &(entry.default)(),
        )?;
    }
    parameters(
        scene::NAME,
        SceneConfig::ABOUT,
        &SceneConfig::parameters(),
        &SceneConfig::defaults(),
    )
}

/// Prints a structure of parameters: a line for each with its default, if it has one.
fn parameters(name: &str, about: &str, all: &[Parameter], defaults: &toml::Table) -> Result<()> {
    say!("\n{name}: {}", about.trim());
    for Parameter { key, doc } in all {
        let default = defaults.get(*key).map(|value| format!(" [{value}]"));
        let doc = doc.trim();
        say!("  {key}{}: {doc}", default.unwrap_or_default());
    }
    Ok(())
}
