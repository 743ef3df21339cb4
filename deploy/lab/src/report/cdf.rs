//! Completion times of coflows and of their single transfers as distributions, with and without.

use indexmap::IndexMap;
use ratewright_cli::clock::NS_PER_S;
use ratewright_plot::{Axis, Curve, Panel, Picture, style};

use crate::options::{LabOptions, ScenarioKind};
use crate::scenario::outcome::{RunOutcome, ScenarioPhase};

/// Title and curves of a panel.
type Distributions = (&'static str, Vec<Curve>);

/// Builds the picture.
#[must_use]
pub fn picture(options: &LabOptions, outcome: &RunOutcome) -> Picture {
    let (title, panels) = match options.scenario {
        ScenarioKind::Safety => (
            "safety: hundreds of slow connections on busy cores",
            safety_panels(outcome),
        ),
        _ => (
            "coflow: many parallel transfers to one receiver",
            coflow_panels(outcome),
        ),
    };
    let subtitle = format!(
        "{} runs each, alternating · {} Mbit/s links, {} KiB drop-tail buffers",
        options.runs(),
        options.link_mbps(),
        options.buffer_kib
    );
    let panel = |(name, curves)| {
        let time = Axis::linear("completion time (s)").starting_at(0.0);
        let share = Axis::linear("share of runs, transfers or connections (%)").over(0.0, 100.0);
        Panel::curves(name, time, share, curves)
    };
    let columns = panels.len();
    Picture::new(title, subtitle, panels.into_iter().map(panel).collect())
        .columns(columns)
        .panel_size(700, 496)
}

fn coflow_panels(outcome: &RunOutcome) -> Vec<Distributions> {
    let of = |times: fn(&ScenarioPhase) -> Vec<f64>| -> Vec<Curve> {
        let phases = super::phases(outcome).into_iter();
        phases
            .map(|(name, colour, phase)| Curve::distribution(name, times(phase)).colour(colour))
            .collect()
    };
    vec![
        ("whole coflows", of(coflow_times)),
        ("single transfers", of(transfer_times)),
    ]
}

/// A panel for each back end; address families are taken together.
fn safety_panels(outcome: &RunOutcome) -> Vec<Distributions> {
    let mut backends: IndexMap<&str, IndexMap<&str, Vec<f64>>> = IndexMap::new();
    let rows = [&outcome.without, &outcome.with]
        .into_iter()
        .flatten()
        .filter_map(|phase| phase.figures.safety.as_ref())
        .flatten();
    for row in rows {
        // Both families of a fate share a curve.
        let fates = backends.entry(row.backend).or_default();
        fates.entry(row.fate).or_default().extend(&row.samples_s);
    }
    let curve = |(fate, times)| {
        let (name, colour) = match fate {
            "cubic" => ("Cubic alone", style::colour(1)),
            "leased" => (fate, style::OURS),
            "lapsed" => (fate, style::colour(2)),
            _ => (fate, style::colour(3)),
        };
        Curve::distribution(name, times).colour(colour)
    };
    backends
        .into_iter()
        .map(|(backend, fates)| (backend, fates.into_iter().map(curve).collect()))
        .collect()
}

fn coflow_times(phase: &ScenarioPhase) -> Vec<f64> {
    phase
        .figures
        .completion_s
        .as_ref()
        .map(|c| c.samples.clone())
        .unwrap_or_default()
}

fn transfer_times(phase: &ScenarioPhase) -> Vec<f64> {
    let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 / NS_PER_S as f64;
    phase
        .recording
        .flows
        .values()
        .filter_map(|f| Some(seconds(f.started_ns?, f.ended_ns?)))
        .collect()
}
