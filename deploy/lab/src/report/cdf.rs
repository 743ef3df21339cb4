//! Completion times of coflows and of their single transfers as distributions, with and without.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use ratewright_cli::clock::NS_PER_S;
use ratewright_simfabric::report::plot::style::{self, GRID, INK, MUTED, OURS};

use crate::options::{LabOptions, ScenarioKind};
use crate::scenario::outcome::{RunOutcome, ScenarioPhase};

/// Draws the plot into `file`.
///
/// # Errors
/// When it cannot be written.
pub fn draw(file: &Path, options: &LabOptions, outcome: &RunOutcome) -> Result<()> {
    render(file, options, outcome).map_err(|error| anyhow!("drawing {}: {error}", file.display()))
}

/// A name, a colour, sorted times.
type Distribution = (String, RGBColor, Vec<f64>);

fn render(
    file: &Path,
    options: &LabOptions,
    outcome: &RunOutcome,
) -> Result<(), Box<dyn std::error::Error>> {
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
    let root = SVGBackend::new(file, (700 * panels.len().max(1) as u32, 560)).into_drawing_area();
    root.fill(&WHITE)?;
    let (head, body) = root.split_vertically(64);
    head.draw(&Text::new(title, (24, 14), style::font(22, INK)))?;
    let subtitle = format!(
        "{} runs each, alternating · {} Mbit/s links, {} KiB drop-tail buffers · {}",
        options.runs(),
        options.link_mbps(),
        options.buffer_kib,
        super::json::COMMIT
    );
    head.draw(&Text::new(subtitle, (24, 42), style::font(13, MUTED)))?;
    for (area, (name, distributions)) in body
        .split_evenly((1, panels.len().max(1)))
        .iter()
        .zip(&panels)
    {
        draw_panel(area, name, distributions)?;
    }
    root.present()?;
    Ok(())
}

fn coflow_panels(outcome: &RunOutcome) -> Vec<(String, Vec<Distribution>)> {
    let ours = format!("with Ratewright ({})", outcome.backend);
    let of = |times: fn(&ScenarioPhase) -> Vec<f64>| -> Vec<Distribution> {
        [
            ("Cubic alone".to_owned(), style::colour(1), &outcome.without),
            (ours.clone(), OURS, &outcome.with),
        ]
        .into_iter()
        .filter_map(|(name, colour, phase)| Some((name, colour, sorted(times(phase.as_ref()?)))))
        .collect()
    };
    vec![
        ("whole coflows".to_owned(), of(coflow_times)),
        ("single transfers".to_owned(), of(transfer_times)),
    ]
}

/// A panel for each back end; address families are taken together.
fn safety_panels(outcome: &RunOutcome) -> Vec<(String, Vec<Distribution>)> {
    let mut panels: Vec<(String, Vec<Distribution>)> = Vec::new();
    let rows = [&outcome.without, &outcome.with]
        .into_iter()
        .flatten()
        .filter_map(|phase| phase.figures.safety.as_ref())
        .flatten();
    for row in rows {
        let at = panels
            .iter()
            .position(|(name, _)| name == row.backend)
            .unwrap_or_else(|| {
                panels.push((row.backend.to_owned(), Vec::new()));
                panels.len() - 1
            });
        let (name, colour) = match row.fate {
            "cubic" => ("Cubic alone".to_owned(), style::colour(1)),
            "leased" => (row.fate.to_owned(), OURS),
            "lapsed" => (row.fate.to_owned(), style::colour(2)),
            _ => (row.fate.to_owned(), style::colour(3)),
        };
        let distributions = &mut panels[at].1;
        match distributions.iter_mut().find(|(other, ..)| *other == name) {
            // Both families of a fate share a curve.
            Some((_, _, times)) => times.extend(&row.samples_s),
            None => distributions.push((name, colour, row.samples_s.clone())),
        }
    }
    for (_, _, times) in panels.iter_mut().flat_map(|(_, all)| all) {
        times.sort_by(f64::total_cmp);
    }
    panels
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

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

fn draw_panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    name: &str,
    distributions: &[Distribution],
) -> Result<(), Box<dyn std::error::Error>> {
    let longest = distributions
        .iter()
        .filter_map(|(_, _, times)| times.last().copied())
        // At least a tenth of a second, so that an empty panel has an axis.
        .fold(0.1, f64::max)
        * 1.05;
    let mut chart = ChartBuilder::on(area)
        .caption(name, style::font(17, INK))
        .margin(14)
        .x_label_area_size(40)
        .y_label_area_size(58)
        .build_cartesian_2d(0.0..longest, 0.0..100.0)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(MUTED)
        .label_style(style::font(12, INK))
        .axis_desc_style(style::font(13, INK))
        .x_desc("completion time (s)")
        .y_desc("share of runs, transfers or connections (%)")
        .x_labels(10)
        .y_labels(10)
        .draw()?;
    for (label, colour, times) in distributions {
        let colour = *colour;
        let step = 100.0 / times.len().max(1) as f64;
        let stairs = times
            .iter()
            .enumerate()
            // Two points a sample draw the riser of each step.
            .flat_map(|(i, t)| [(*t, i as f64 * step), (*t, (i + 1) as f64 * step)]);
        chart
            .draw_series(LineSeries::new(stairs, style::line(colour, 2)))?
            .label(label)
            .legend(move |(x, y)| {
                PathElement::new(vec![(x, y), (x + 16, y)], style::line(colour, 3))
            });
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(GRID)
        .label_font(style::font(13, INK))
        .margin(12)
        .draw()?;
    Ok(())
}
