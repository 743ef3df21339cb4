//! Picture of the use scenario: the reader's rate around each kind of stall, and the rates of the
//! reader and the bulk flow, with and without.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use ratewright_simfabric::report::plot::style::{self, GRID, INK, MUTED, OURS, REFERENCE};

use crate::options::LabOptions;
use crate::scenario::figures::Course;
use crate::scenario::outcome::{RunOutcome, ScenarioPhase};

const PANEL: (u32, u32) = (470, 420);
const HEAD: u32 = 64;

type PlotArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Name, colour, figures.
type ShownPhase<'a> = (&'a str, RGBColor, &'a ScenarioPhase);

/// Draws the plot into `file`.
///
/// # Errors
/// When it cannot be written.
pub fn draw(file: &Path, options: &LabOptions, outcome: &RunOutcome) -> Result<()> {
    render(file, options, outcome).map_err(|error| anyhow!("drawing {}: {error}", file.display()))
}

fn render(
    file: &Path,
    options: &LabOptions,
    outcome: &RunOutcome,
) -> Result<(), Box<dyn std::error::Error>> {
    let ours = format!("with Ratewright ({})", outcome.backend);
    let contenders: Vec<ShownPhase<'_>> = [
        ("Cubic alone", style::colour(1), &outcome.without),
        (ours.as_str(), OURS, &outcome.with),
    ]
    .into_iter()
    .filter_map(|(name, colour, phase)| Some((name, colour, phase.as_ref()?)))
    .collect();
    let kinds: Vec<&str> = contenders
        .first()
        .map(|(_, _, phase)| {
            phase
                .figures
                .courses
                .iter()
                .map(|(kind, _)| *kind)
                .collect()
        })
        .unwrap_or_default();
    let columns = kinds.len() + 1;
    let size = (PANEL.0 * columns as u32, PANEL.1 + HEAD);
    let root = SVGBackend::new(file, size).into_drawing_area();
    root.fill(&WHITE)?;
    let (head, body) = root.split_vertically(HEAD);
    head.draw(&Text::new(
        "use: capacity for those that use it",
        (24, 14),
        style::font(22, INK),
    ))?;
    let subtitle = format!(
        "one uplink of {} Mbit/s, {} runs each, alternating; payload, first run's courses over 20 ms · {}",
        options.link_mbps(),
        options.runs(),
        super::json::COMMIT
    );
    head.draw(&Text::new(subtitle, (24, 42), style::font(13, MUTED)))?;
    let panels = body.split_evenly((1, columns));
    let top = f64::from(options.link_mbps()) * 1.15;
    draw_rates(&panels[0], &contenders, top)?;
    for (panel, kind) in panels[1..].iter().zip(kinds) {
        let courses: Vec<(&str, RGBColor, &Course)> = contenders
            .iter()
            .filter_map(|(name, colour, phase)| {
                let found = phase
                    .figures
                    .courses
                    .iter()
                    .find(|(other, _)| *other == kind)?;
                Some((*name, *colour, &found.1))
            })
            .collect();
        draw_courses(panel, kind, &courses, top, f64::from(options.link_mbps()))?;
    }
    root.present()?;
    Ok(())
}

/// Two groups of bars: the reader, the bulk flow.
fn draw_rates(
    area: &PlotArea<'_>,
    contenders: &[ShownPhase<'_>],
    top: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let groups = ["reader beside 49 unread", "bulk beside small writes"];
    let mut chart = ChartBuilder::on(area)
        .caption("rates", style::font(17, INK))
        .margin(14)
        .x_label_area_size(40)
        .y_label_area_size(58)
        .build_cartesian_2d(0.0..groups.len() as f64, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(MUTED)
        .label_style(style::font(12, INK))
        .axis_desc_style(style::font(13, INK))
        .y_desc("rate (Mbit/s)")
        .x_labels(0)
        .y_labels(8)
        .draw()?;
    // 0.15 is left free at either side of a group.
    let width = 0.7 / contenders.len().max(1) as f64;
    for (group, name) in groups.iter().enumerate() {
        for (i, (_, colour, phase)) in contenders.iter().enumerate() {
            let figures = &phase.figures;
            let rate = [figures.reader_mbps, figures.bulk_mbps][group].unwrap_or(0.0);
            let left = group as f64 + 0.15 + i as f64 * width;
            chart.draw_series(std::iter::once(Rectangle::new(
                [(left, 0.0), (left + width * 0.94, rate)],
                colour.filled(),
            )))?;
            chart.draw_series(std::iter::once(Text::new(
                format!("{rate:.1}"),
                (left + width * 0.25, rate + top * 0.04),
                style::font(12, INK),
            )))?;
        }
        let (x, y) = chart
            .plotting_area()
            // Pixels of the whole picture; the panel's own begin at its base.
            .map_coordinate(&(group as f64 + 0.15, 0.0));
        let (left, upper) = area.get_base_pixel();
        area.draw(&Text::new(
            *name,
            (x - left, y - upper + 8),
            style::font(13, INK),
        ))?;
    }
    Ok(())
}

fn draw_courses(
    area: &PlotArea<'_>,
    kind: &str,
    courses: &[(&str, RGBColor, &Course)],
    top: f64,
    capacity_mbps: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let times = || courses.iter().flat_map(|(_, _, course)| course.iter());
    let from = times().map(|(at, _)| *at).fold(0.0, f64::min);
    let to = times().map(|(at, _)| *at).fold(0.5, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(
            format!("reader's rate; the other receiver {kind}"),
            style::font(15, INK),
        )
        .margin(14)
        .x_label_area_size(40)
        .y_label_area_size(58)
        .build_cartesian_2d(from..to, 0.0..top)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(MUTED)
        .label_style(style::font(12, INK))
        .axis_desc_style(style::font(13, INK))
        .x_desc("time after it (s)")
        .y_desc("rate (Mbit/s)")
        .x_labels(8)
        .y_labels(8)
        .draw()?;
    chart.draw_series(std::iter::once(PathElement::new(
        vec![(from, capacity_mbps), (to, capacity_mbps)],
        style::line(REFERENCE, 1),
    )))?;
    chart.draw_series(DashedLineSeries::new(
        [(0.0, 0.0), (0.0, top)],
        3,
        4,
        style::line(REFERENCE, 1),
    ))?;
    for (name, colour, course) in courses {
        let colour = *colour;
        // Bursts above the axis are cut off at its top.
        let points = course.iter().map(|(at, rate)| (*at, rate.min(top)));
        chart
            .draw_series(LineSeries::new(points, style::line(colour, 2)))?
            .label(*name)
            .legend(move |(x, y)| {
                PathElement::new(vec![(x, y), (x + 16, y)], style::line(colour, 3))
            });
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(GRID)
        .label_font(style::font(12, INK))
        .margin(12)
        .draw()?;
    Ok(())
}
