//! FNCC beside PowerTCP, θ-PowerTCP and Swift, which its paper does not compare: two flows that
//! meet at the first, middle or last hop, and web search on the fat tree at load 0.5.
//!
//! The scenes, framing, pauses and measures are those of figures 10, 13 and 14; HPCC stands beside.
//! Nothing is claimed, so that no row has a verdict.

use super::scene::Hop;
use super::two_flows::{JOIN, TwoFlowCase, TwoFlowSample, data, two_flows};
use super::{curve, label, slowdown};
use crate::experiment::sweep::Replicas;
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Panel, Picture};

/// Rate of links, in Gbit/s.
const RATE_GBPS: u64 = 100;
/// Compared schemes.
const LABELS: [&str; 5] = [
    label::FNCC,
    label::HPCC,
    label::POWER_TCP,
    label::THETA_POWER_TCP,
    label::SWIFT,
];
/// Those that the fat tree compares; fig. 14 has HPCC.
const OF_TREE: [&str; 4] = [
    label::FNCC,
    label::POWER_TCP,
    label::THETA_POWER_TCP,
    label::SWIFT,
];
/// Times that the picture shows, in µs.
const SHOWN_US: (f64, f64) = (280.0, 700.0);

/// Measures of two flows: name, unit, value.
type Measure = (
    &'static str,
    &'static str,
    fn(&TwoFlowSample) -> Option<f64>,
);
const MEASURES: [Measure; 5] = [
    ("first slow-down after the join", "µs", |s| s.slow_down_us),
    ("fair from, after the join", "µs", |s| {
        // Of flows that set rates.
        s.slow_down_us.map(|_| s.fair_us)
    }),
    ("largest queue", "kB", |s| Some(s.peak_kb)),
    ("mean queue", "kB", |s| Some(s.mean_kb)),
    ("use of the link", "share", |s| Some(s.used)),
];

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let at_hop = |hop| {
        LABELS.map(|label| TwoFlowCase {
            label,
            hop,
            rate_gbps: RATE_GBPS,
        })
    };
    let cases = Hop::ALL.map(at_hop).concat();
    let flows = two_flows(settings, &cases)?;
    let tree = slowdown::samples(settings, "web-search", &OF_TREE)?;
    let title = "FNCC beside PowerTCP, θ-PowerTCP and Swift (beyond the paper)";
    let mut figure = settings.figure("fncc-beyond", title);
    figure.scenario = super::two_flow_scenario(Hop::First);
    figure.scenario[0] = "two flows over three switches meet at each hop in turn".to_owned();
    figure
        .scenario
        .extend(slowdown::scenario(settings, "web search"));
    let mut panels = Vec::new();
    for (hop, runs) in Hop::ALL.into_iter().zip(flows.chunks(LABELS.len())) {
        for (what, unit, value) in MEASURES {
            for (label, runs) in LABELS.iter().zip(runs) {
                figure.rows.push(Row::judge(
                    format!("{}, {label}: {what}", hop.name()),
                    Claim::nothing(),
                    runs.estimate(value),
                    unit,
                ));
            }
        }
        panels.push(queues(hop, runs));
    }
    slowdown::measured(&mut figure, &OF_TREE, &tree);
    figure
        .notes
        .push("Swift sets windows and no rates, and so has no time of them".to_owned());
    panels.extend(slowdown::panels(&OF_TREE, &tree));
    figure.data = serde_json::json!({
        "two_flows": data(&cases, &flows),
        "tree": { "cases": OF_TREE, "samples": tree },
    });
    let subtitle = "queues where two flows meet, first seed; slowdown of web search";
    let picture = Picture::new(title, subtitle, panels)
        .columns(3)
        .panel_size(460, 320);
    Ok(Reproduction { figure, picture })
}

/// Queues of all schemes at one hop.
fn queues(hop: Hop, runs: &[Replicas<TwoFlowSample>]) -> Panel {
    let curves = LABELS.iter().zip(runs).map(|(label, runs)| {
        let first = runs.first().map(|sample| &sample.curves.queue);
        curve(label, first, SHOWN_US)
    });
    let time = Axis::linear("Time (µs)").over(SHOWN_US.0, SHOWN_US.1);
    let queue = Axis::linear("Queue (kB)").starting_at(0.0);
    Panel::curves(hop.name(), time, queue, curves.collect()).event(JOIN.as_us_f64(), "flow 1 joins")
}
