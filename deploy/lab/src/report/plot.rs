//! Rates over time per flow, the baseline on the left and Ratewright on the right, over a strip
//! with link use and Jain's index.

use indexmap::IndexMap;
use ratewright_cli::clock::{NS_PER_MS, NS_PER_S};
use ratewright_plot::style::{self, INK, MUTED, REFERENCE};
use ratewright_plot::{Axis, Curve, Panel, Picture};

use crate::measure::recording::Recording;
use crate::measure::stats::jain;
use crate::measure::windows::active_rates;
use crate::options::{LabOptions, ScenarioKind};
use crate::scenario::outcome::RunOutcome;
use crate::traffic::protocol::BIN_NS;

/// Width of the picture in pixels.
const WIDTH: u32 = 1_400;
/// Heights of the rates and of the strip in pixels.
const HEIGHTS: [u32; 2] = [420, 180];
/// Rates are averaged over this.
const SMOOTHING_NS: u64 = 50 * NS_PER_MS;
/// Flows that the legend names: with more, each colour has stood for two of them.
const MOST_NAMED_FLOWS: usize = 18;

/// Builds the picture.
#[must_use]
pub fn picture(options: &LabOptions, outcome: &RunOutcome) -> Picture {
    let phases: Vec<(String, Series)> = super::phases(outcome)
        .into_iter()
        .map(|(name, _, phase)| (name, Series::of(&phase.recording)))
        .collect();
    let spans = phases.iter().map(|(_, series)| series.span_s);
    let span_s = spans.fold(1.0, f64::max);
    let capacity_mbps = f64::from(options.link_mbps());
    // Jain's index says nothing about flows of different weights.
    let equal = options.scenario != ScenarioKind::Mixed;
    let rates = phases
        .iter()
        .map(|(name, series)| series.rates_panel(name, span_s, capacity_mbps));
    let strips = phases
        .iter()
        .map(|(_, series)| series.strip_panel(span_s, equal));
    let subtitle = format!(
        "payload received per flow, 50 ms averages · {} Mbit/s links, {} KiB drop-tail buffers",
        options.link_mbps(),
        options.buffer_kib
    );
    let columns = phases.len().max(1);
    Picture::new(title(options), subtitle, rates.chain(strips).collect())
        .columns(columns)
        .panel_size(WIDTH / columns as u32, HEIGHTS[0])
        .row_heights(&HEIGHTS)
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

    /// Rates of the flows, with the link's capacity and the events.
    fn rates_panel(&self, name: &str, span_s: f64, capacity_mbps: f64) -> Panel {
        let flow = |(i, flow): (usize, (&String, &Vec<_>))| {
            let (label, points) = flow;
            // The sum of short flows stays in the background.
            if label.starts_with("short") {
                return Curve::new(label, points.clone()).colour(REFERENCE).width(1);
            }
            let name = if i < MOST_NAMED_FLOWS { label } else { "" };
            Curve::new(name, points.clone()).colour(style::colour(i))
        };
        let time = Axis::linear("").over(0.0, span_s);
        // The names of events stand above the capacity.
        let rate = Axis::linear("rate (Mbit/s)").over(0.0, capacity_mbps * 1.25);
        let flows = self.rates.iter().enumerate().map(flow).collect();
        let panel = Panel::curves(name, time, rate, flows).mark(capacity_mbps, "link capacity");
        Panel {
            events: self.events.clone(),
            ..panel
        }
    }

    /// Link use and, if the flows are meant to have equal rates, Jain's index.
    fn strip_panel(&self, span_s: f64, equal: bool) -> Panel {
        let used = Curve::new("link use (share of capacity)", self.utilization.clone());
        // Not in the colour of a flow: all curves share one legend.
        let jain = Curve::new("Jain's index", self.jain.clone()).colour(INK);
        let curves = std::iter::once(used.colour(MUTED)).chain(equal.then_some(jain));
        let time = Axis::linear("time (s)").over(0.0, span_s);
        let share = Axis::linear("").over(0.0, 1.09);
        Panel::curves("", time, share, curves.collect())
    }
}
