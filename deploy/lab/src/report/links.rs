//! Links without a shaper: payload rates and processor time per bit over the link's speed.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use ratewright_simfabric::report::plot::style::{self, GRID, INK, MUTED, OURS};

use crate::options::LabOptions;
use crate::scenario::figures::LinkRow;
use crate::scenario::outcome::{RunOutcome, ScenarioPhase};

/// Draws the plot into `file`.
///
/// # Errors
/// When it cannot be written.
pub fn draw(file: &Path, options: &LabOptions, outcome: &RunOutcome) -> Result<()> {
    render(file, options, outcome).map_err(|error| anyhow!("drawing {}: {error}", file.display()))
}

/// Name, colour, (Gbit/s of the link, value).
type SpeedLine = (String, RGBColor, Vec<(f64, f64)>);

fn render(
    file: &Path,
    options: &LabOptions,
    outcome: &RunOutcome,
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(file, (1_400, 560)).into_drawing_area();
    root.fill(&WHITE)?;
    let (head, body) = root.split_vertically(64);
    head.draw(&Text::new(
        "links: without a shaper, as fast as the topology says",
        (24, 14),
        style::font(22, INK),
    ))?;
    let subtitle = format!(
        "medians of {} runs each, alternating with plain TCP, which nothing limits · {} · {}",
        options.runs(),
        outcome.backend,
        super::json::COMMIT
    );
    head.draw(&Text::new(subtitle, (24, 42), style::font(13, MUTED)))?;
    let (left, right) = body.split_horizontally(700);
    let of = |value: fn(&LinkRow) -> f64| lines(outcome, value);
    draw_panel(&left, "payload", "Gbit/s", &of(|row| row.payload_gbps))?;
    draw_panel(
        &right,
        "processor time of the whole machine",
        "ps per bit of payload",
        &of(|row| row.processor_ps_per_bit),
    )?;
    root.present()?;
    Ok(())
}

fn lines(outcome: &RunOutcome, value: fn(&LinkRow) -> f64) -> Vec<SpeedLine> {
    let rows = |phase: &Option<ScenarioPhase>| {
        phase
            .as_ref()
            .and_then(|phase| phase.figures.links.clone())
            .unwrap_or_default()
    };
    let phases = [
        (
            "with Ratewright",
            rows(&outcome.with),
            OURS,
            style::colour(4),
        ),
        (
            "Cubic alone",
            rows(&outcome.without),
            style::colour(1),
            style::colour(5),
        ),
    ];
    let mut out: Vec<SpeedLine> = Vec::new();
    for (who, rows, one, many) in phases {
        for row in rows {
            let name = format!(
                "{who}, {} flow{}",
                row.flows,
                if row.flows == 1 { "" } else { "s" }
            );
            let point = (f64::from(row.link_mbps) / 1e3, value(&row));
            match out.iter_mut().find(|(other, ..)| *other == name) {
                Some((_, _, points)) => points.push(point),
                None => out.push((name, if row.flows == 1 { one } else { many }, vec![point])),
            }
        }
    }
    out
}

fn draw_panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    name: &str,
    unit: &str,
    lines: &[SpeedLine],
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || lines.iter().flat_map(|(_, _, points)| points);
    let widest = points().map(|(x, _)| *x).fold(1.0, f64::max) * 1.05;
    let highest = points().map(|(_, y)| *y).fold(1.0, f64::max) * 1.3;
    let mut chart = ChartBuilder::on(area)
        .caption(name, style::font(17, INK))
        .margin(14)
        .x_label_area_size(40)
        .y_label_area_size(58)
        .build_cartesian_2d(0.0..widest, 0.0..highest)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(MUTED)
        .label_style(style::font(12, INK))
        .axis_desc_style(style::font(13, INK))
        .x_desc("link (Gbit/s)")
        .y_desc(unit)
        .x_labels(9)
        .y_labels(8)
        .draw()?;
    for (label, colour, points) in lines {
        let colour = *colour;
        chart
            .draw_series(LineSeries::new(
                points.iter().copied(),
                style::line(colour, 2),
            ))?
            .label(label)
            .legend(move |(x, y)| {
                PathElement::new(vec![(x, y), (x + 16, y)], style::line(colour, 3))
            });
        chart.draw_series(points.iter().map(|at| Circle::new(*at, 4, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(GRID)
        .label_font(style::font(13, INK))
        .margin(12)
        .draw()?;
    Ok(())
}
