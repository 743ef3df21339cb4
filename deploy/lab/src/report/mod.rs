//! Results of a run: a table and a histogram for people, JSON for programs, a plot for both.
//!
//! | module | what |
//! |---|---|
//! | [`json`] | the results file |
//! | [`table`] | the summary |
//! | [`histogram`] | first-paced latencies as text |
//! | [`plot`] | rates over time, with and without, side by side |
//! | [`cdf`] | completion times, with and without |
//! | [`usage`] | flows that get capacity, with and without |
//! | [`obey`] | rates over what is due to each flow |
//! | [`check`] | times until what is not as told is named |
//! | [`links`] | rates and processor time of links without a shaper |
//!
//! Pictures are drawn by the simulated fabric's plotting module.

pub mod cdf;
pub mod check;
pub mod histogram;
pub mod json;
pub mod links;
pub mod obey;
pub mod plot;
pub mod table;
pub mod usage;

#[cfg(test)]
mod tests;

use anyhow::{Context, Result};
use ratewright_cli::output;
use ratewright_plot::Picture;
use ratewright_plot::style::{self, RGBColor};

use crate::options::{LabOptions, ScenarioKind};
use crate::scenario::check::CheckRow;
use crate::scenario::obey::judge::ObeyRow;
use crate::scenario::outcome::{RunOutcome, ScenarioPhase};
use crate::view::NobodyListens;

/// Name and colour of a phase in pictures, and its results.
type ShownPhase<'a> = (String, RGBColor, &'a ScenarioPhase);

/// Phases that were run, the baseline first.
fn phases(outcome: &RunOutcome) -> Vec<ShownPhase<'_>> {
    let ours = format!("with Ratewright ({})", outcome.backend);
    [
        ("Cubic alone".to_owned(), style::colour(1), &outcome.without),
        (ours, style::OURS, &outcome.with),
    ]
    .into_iter()
    .filter_map(|(name, colour, phase)| Some((name, colour, phase.as_ref()?)))
    .collect()
}

/// Cases of the obey scenario.
fn cases(outcome: &RunOutcome) -> &[ObeyRow] {
    outcome.cases.as_deref().unwrap_or_default()
}

/// Cases of the check scenario.
fn checks(outcome: &RunOutcome) -> &[CheckRow] {
    outcome.checks.as_deref().unwrap_or_default()
}

/// Builds the picture of a run.
fn picture(options: &LabOptions, outcome: &RunOutcome) -> Picture {
    match options.scenario {
        ScenarioKind::Coflow | ScenarioKind::Safety => cdf::picture(options, outcome),
        ScenarioKind::Use => usage::picture(options, outcome),
        ScenarioKind::Links => links::picture(options, outcome),
        ScenarioKind::Obey => obey::picture(options, cases(outcome)),
        ScenarioKind::Check => check::picture(options, checks(outcome)),
        _ => plot::picture(options, outcome),
    }
}

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
    let file = path.with_extension("svg");
    picture(options, outcome).write(&file)?;
    let table = match options.scenario {
        ScenarioKind::Safety => table::safety(outcome),
        ScenarioKind::Links => table::links(outcome),
        ScenarioKind::Obey => obey::table(cases(outcome)),
        ScenarioKind::Check => check::table(checks(outcome)),
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
        file.display()
    ));
    output::line(format_args!("{text}")).map_err(|_| NobodyListens.into())
}
