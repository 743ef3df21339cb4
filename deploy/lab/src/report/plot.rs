//! Rates over time per flow, the baseline on the left and Ratewright on the right, over a strip
//! with link use and Jain's index.

use std::path::Path;

use anyhow::{Result, anyhow};
use indexmap::IndexMap;
use plotters::coord::Shift;
use plotters::prelude::*;
use ratewright_cli::clock::{NS_PER_MS, NS_PER_S};
use ratewright_simfabric::report::plot::style::{self, GRID, INK, MUTED, REFERENCE};

use crate::measure::recording::Recording;
use crate::measure::stats::jain;
use crate::measure::windows::active_rates;
use crate::options::{LabOptions, ScenarioKind};
use crate::scenario::outcome::{RunOutcome, ScenarioPhase};
use crate::traffic::protocol::BIN_NS;

const WIDTH: u32 = 1_400;
const HEIGHT: u32 = 664;
const HEAD: u32 = 88;
const STRIP: u32 = 170;
/// Rates are averaged over this.
const SMOOTHING_NS: u64 = 50 * NS_PER_MS;
/// With more events than this, they are marked without their names.
const MAX_NAMED_EVENTS: usize = 8;

type PlotArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;

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
    let root = SVGBackend::new(file, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let (head, body) = root.split_vertically(HEAD);
    head.draw(&Text::new(title(options), (24, 14), style::font(22, INK)))?;
    let subtitle = format!(
        "payload received per flow, 50 ms averages · {} Mbit/s links, {} KiB drop-tail buffers · {}",
        options.link_mbps(),
        options.buffer_kib,
        super::json::COMMIT
    );
    head.draw(&Text::new(subtitle, (24, 42), style::font(13, MUTED)))?;

    let ours = format!("with Ratewright ({})", outcome.backend);
    let phases: Vec<(&str, &ScenarioPhase)> = [
        ("Cubic alone", &outcome.without),
        (ours.as_str(), &outcome.with),
    ]
    .into_iter()
    .filter_map(|(name, phase)| Some((name, phase.as_ref()?)))
    .collect();
    draw_legend(&head, &phases)?;
    let span_s = phases
        .iter()
        .map(|(_, phase)| Series::of(&phase.recording).span_s)
        .fold(1.0, f64::max);
    let panels = body.split_evenly((1, phases.len().max(1)));
    for (panel, (name, phase)) in panels.iter().zip(&phases) {
        let (rates, strip) = panel.split_vertically(HEIGHT - HEAD - STRIP);
        let series = Series::of(&phase.recording);
        draw_rates(
            &rates,
            name,
            &series,
            span_s,
            f64::from(options.link_mbps()),
        )?;
        draw_strip(
            &strip,
            &series,
            span_s,
            options.scenario != ScenarioKind::Mixed,
        )?;
    }
    root.present()?;
    Ok(())
}

fn title(options: &LabOptions) -> String {
    let what = match options.scenario.name() {
        "fairness" => "Many senders to one receiver, starting and stopping in turn",
        "failover" => "Eight flows while the allocator, then a daemon, is killed and restarted",
        "mixed" => "Long flows of weights 1 : 2 : 4 and short flows across a two-tier Clos",
        other => other,
    };
    format!("{}: {what}", options.scenario.name())
}

/// Curves drawn of a recording; times are in seconds since the first flow's start.
struct Series {
    span_s: f64,
    rates: IndexMap<String, Vec<(f64, f64)>>,
    jain: Vec<(f64, f64)>,
    utilization: Vec<(f64, f64)>,
    events: Vec<(f64, String)>,
}

impl Series {
    fn of(recording: &Recording) -> Series {
        let begin = recording
            .flows
            .values()
            .filter_map(|f| f.started_ns)
            .min()
            .unwrap_or(recording.begin_ns);
        let end = recording
            .flows
            .values()
            .filter_map(|f| f.ended_ns)
            .max()
            .unwrap_or(begin)
            + 100 * NS_PER_MS;
        let seconds = |ns: u64| ns.saturating_sub(begin) as f64 / NS_PER_S as f64;
        let windows: Vec<u64> = (begin / BIN_NS * BIN_NS..end)
            .step_by(SMOOTHING_NS as usize)
            .collect();
        let mut rates: IndexMap<String, Vec<(f64, f64)>> = IndexMap::new();
        for flow in recording.flows.values() {
            let (Some(from), to) = (flow.started_ns, flow.ended_ns.unwrap_or(end)) else {
                continue;
            };
            let line = rates.entry(flow.label.clone()).or_insert_with(|| {
                windows
                    .iter()
                    .map(|at| (seconds(at + SMOOTHING_NS / 2), 0.0))
                    .collect()
            });
            for (at, point) in windows.iter().zip(line) {
                // Windows that the flow was not active in stay 0.
                if at + SMOOTHING_NS > from && *at < to {
                    point.1 += flow.rate_bps(*at, at + SMOOTHING_NS) / 1e6;
                }
            }
        }
        let settled = |at: &u64| active_rates(recording, *at, at + SMOOTHING_NS);
        let jain = windows
            .iter()
            .filter_map(|at| {
                Some((seconds(*at), settled(at))).filter(|(_, rates)| rates.len() >= 2)
            })
            .map(|(at, rates)| (at, jain(&rates)))
            .collect();
        let utilization = recording
            .ports
            .first()
            .map(|port| {
                windows
                    .iter()
                    .map(|at| (seconds(*at), port.utilization(*at, at + SMOOTHING_NS)))
                    .collect()
            })
            .unwrap_or_default();
        let events = recording
            .events
            .iter()
            .map(|(at, text)| (seconds(*at), text.clone()))
            .collect();
        Series {
            span_s: seconds(end),
            rates,
            jain,
            utilization,
            events,
        }
    }
}

fn draw_rates(
    area: &PlotArea<'_>,
    name: &str,
    series: &Series,
    span_s: f64,
    capacity_mbps: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let top = capacity_mbps * 1.12;
    let mut chart = ChartBuilder::on(area)
        .caption(name, style::font(17, INK))
        .margin_left(14)
        .margin_right(20)
        .x_label_area_size(28)
        .y_label_area_size(58)
        .build_cartesian_2d(0.0..span_s, 0.0..top)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(MUTED)
        .label_style(style::font(12, INK))
        .y_desc("rate (Mbit/s)")
        .axis_desc_style(style::font(13, INK))
        .x_labels(10)
        .y_labels(8)
        .draw()?;
    chart.draw_series(std::iter::once(PathElement::new(
        vec![(0.0, capacity_mbps), (span_s, capacity_mbps)],
        style::line(REFERENCE, 1),
    )))?;
    chart.draw_series(std::iter::once(Text::new(
        "link capacity",
        (span_s * 0.005, capacity_mbps * 1.045),
        style::font(11, MUTED),
    )))?;
    // More names than this would cover one another.
    let named = series.events.len() <= MAX_NAMED_EVENTS;
    for (i, (at, text)) in series.events.iter().enumerate() {
        let height = if named { top } else { capacity_mbps };
        chart.draw_series(DashedLineSeries::new(
            [(*at, 0.0), (*at, height)],
            3,
            4,
            style::line(REFERENCE, 1),
        ))?;
        if named {
            // Four heights in turn, so that neighbours' names do not overlap.
            let y = capacity_mbps * (0.97 - 0.06 * (i % 4) as f64);
            chart.draw_series(std::iter::once(Text::new(
                text.clone(),
                (*at + span_s * 0.004, y),
                style::font(11, INK),
            )))?;
        }
    }
    for (i, (label, points)) in series.rates.iter().enumerate() {
        let line = style_of(i, label);
        let points = points.iter().map(|(at, rate)| (*at, rate.min(top)));
        chart.draw_series(LineSeries::new(points, line))?;
    }
    Ok(())
}

/// Flows in colours; the sum of short flows stays in the background.
fn style_of(index: usize, label: &str) -> ShapeStyle {
    if label.starts_with("short") {
        style::line(REFERENCE, 1)
    } else {
        style::line(style::colour(index), 2)
    }
}

/// One row under the title: a flow has the same colour in both panels.
fn draw_legend(
    head: &PlotArea<'_>,
    phases: &[(&str, &ScenarioPhase)],
) -> Result<(), Box<dyn std::error::Error>> {
    let labels = phases
        .first()
        .map(|(_, phase)| Series::of(&phase.recording).rates)
        .unwrap_or_default();
    let mut x = 24;
    for (i, label) in labels.keys().enumerate() {
        head.draw(&PathElement::new(
            vec![(x, 74), (x + 18, 74)],
            ShapeStyle {
                stroke_width: 4,
                ..style_of(i, label)
            },
        ))?;
        head.draw(&Text::new(
            label.clone(),
            (x + 24, 68),
            style::font(12, INK),
        ))?;
        // About 7 pixels a character at this size.
        x += 44 + label.chars().count() as i32 * 7;
    }
    Ok(())
}

/// Draws link use and, for flows that are meant to have equal rates (`equal`), Jain's index.
fn draw_strip(
    area: &PlotArea<'_>,
    series: &Series,
    span_s: f64,
    equal: bool,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut chart = ChartBuilder::on(area)
        .margin_left(14)
        .margin_right(20)
        .margin_bottom(8)
        .x_label_area_size(40)
        .y_label_area_size(58)
        .build_cartesian_2d(0.0..span_s, 0.0..1.09)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(MUTED)
        .label_style(style::font(12, INK))
        .axis_desc_style(style::font(13, INK))
        .x_desc("time (s)")
        .x_labels(10)
        .y_labels(3)
        .draw()?;
    let lines = [
        ("link use (share of capacity)", &series.utilization, MUTED),
        ("Jain's index", &series.jain, style::OURS),
    ];
    // Jain's index says nothing about flows of different weights.
    for (label, points, colour) in lines.into_iter().take(if equal { 2 } else { 1 }) {
        chart
            .draw_series(LineSeries::new(
                points.iter().copied(),
                style::line(colour, 2),
            ))?
            .label(label)
            .legend(move |(x, y)| {
                PathElement::new(vec![(x, y), (x + 16, y)], style::line(colour, 3))
            });
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerMiddle)
        .background_style(WHITE.mix(0.85))
        .border_style(GRID)
        .label_font(style::font(12, INK))
        .draw()?;
    Ok(())
}
