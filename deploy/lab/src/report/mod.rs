//! Results of a run: a table and a histogram for people, JSON for programs, a plot for both.
//!
//! | module | what |
//! |---|---|
//! | [`json`] | the results file |
//! | [`table`] | the summary |
//! | [`histogram`] | first-paced latencies as text |
//! | [`plot`] | rates over time, with and without, side by side |
//! | [`cdf`] | completion times, with and without |
//! | [`usage`] | who gets capacity, with and without |
//! | [`links`] | rates and processor time of links without a shaper |
//!
//! Colours and fonts are those of the simulated fabric's pictures.

pub mod cdf;
pub mod histogram;
pub mod json;
pub mod links;
pub mod plot;
pub mod table;
pub mod usage;

use anyhow::{Context, Result};
use ratewright_cli::output;

use crate::options::{LabOptions, ScenarioKind};
use crate::scenario::outcome::RunOutcome;
use crate::view::NobodyListens;

/// Writes the results file and the plot and prints the summary.
///
/// # Errors
/// When a file cannot be written.
pub fn publish(options: &LabOptions, outcome: &RunOutcome) -> Result<()> {
    let path = options.json_path();
    // A bare file name has an empty parent, which cannot be created.
    if let Some(directory) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("creating {}", directory.display()))?;
    }
    let results = json::LabResults::new(options, outcome);
    let text = serde_json::to_string_pretty(&results).context("writing the results")?;
    std::fs::write(&path, text + "\n").with_context(|| format!("writing {}", path.display()))?;
    let picture = path.with_extension("svg");
    match options.scenario {
        ScenarioKind::Coflow | ScenarioKind::Safety => {
            cdf::draw(&picture, options, outcome)?;
        }
        ScenarioKind::Use => usage::draw(&picture, options, outcome)?,
        ScenarioKind::Links => links::draw(&picture, options, outcome)?,
        _ => plot::draw(&picture, options, outcome)?,
    }
    let table = match options.scenario {
        ScenarioKind::Safety => table::safety(outcome),
        ScenarioKind::Links => table::links(outcome),
        _ => table::summary(options, outcome),
    };
    let mut text = format!("\n{table}\n");
    if let Some(phase) = &outcome.with
        && !phase.first_paced_us.is_empty()
    {
        text.push_str(&format!("\n{}\n", histogram::text(&phase.first_paced_us)));
    }
    text.push_str(&format!(
        "\nresults: {}\nplot:    {}",
        path.display(),
        picture.display()
    ));
    output::line(format_args!("{text}")).map_err(|_| NobodyListens.into())
}
