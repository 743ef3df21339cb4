//! FNCC fig. 10: two flows that meet at the first switch, at 100, 200 and 400 Gbit/s: when the
//! first one slows down, when both have fair rates, the queue, and the throughput.
//!
//! The text has four times off fig. 10b, of which the join's 300 µs are taken here. All else it has
//! in words: FNCC is the first to slow down and to have fair rates, and has the shortest queue, at
//! every rate, and at 200 and 400 Gbit/s the highest use.

use super::label;
use super::scene::Hop;
use super::two_flows::{JOIN, TwoFlowCase, TwoFlowSample, two_flows};
use crate::experiment::sweep::Replicas;
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::figure::{Claim, Figure, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture, style};

/// Rates of links, in Gbit/s.
const RATES_GBPS: [u64; 3] = [100, 200, 400];
/// Compared schemes, in the order in which the paper has them slow down.
const LABELS: [&str; 2] = [label::FNCC, label::HPCC];
/// First slow-downs of the paper at 100 Gbit/s, in µs after the join.
const PAPER_US: [f64; 2] = [0.0, 30.0];
/// Accuracy of a time off a plot, in µs.
const READING_US: f64 = 5.0;

/// Rows of one rate.
fn judge(figure: &mut Figure, rate: u64, runs: &[Replicas<TwoFlowSample>]) {
    for ((label, runs), paper) in LABELS.iter().zip(runs).zip(PAPER_US) {
        let claim = if rate == RATES_GBPS[0] {
            Claim::number(paper, 0.0)
                .at_least(paper - READING_US)
                .at_most(paper + READING_US)
        } else {
            Claim::nothing()
        };
        figure.rows.push(Row::judge(
            format!("{rate}G, {label}: first slow-down after the join"),
            claim,
            runs.estimate(|sample| sample.slow_down_us),
            "µs",
        ));
    }
    for (i, pair) in runs.windows(2).enumerate() {
        figure.rows.push(Row::judge(
            format!(
                "{rate}G: first slow-down, {} less {}",
                LABELS[i + 1],
                LABELS[i]
            ),
            Claim::words("later").at_least(0.0),
            pair[1].paired(&pair[0], |later, sooner| {
                Some(later.slow_down_us? - sooner.slow_down_us?)
            }),
            "µs",
        ));
    }
    for (label, runs) in LABELS.iter().zip(runs) {
        figure.rows.push(Row::judge(
            format!("{rate}G, {label}: fair from"),
            Claim::nothing(),
            runs.estimate(|sample| sample.fair_us),
            "µs",
        ));
    }
    let [fncc, others @ ..] = runs else { return };
    figure.rows.push(Row::judge(
        format!("{rate}G: fair from, FNCC over HPCC"),
        Claim::words("sooner").at_most(1.0),
        fncc.paired(&others[0], |fncc, hpcc| Some(fncc.fair_us? / hpcc.fair_us?)),
        "ratio",
    ));
    for (what, unit, value) in [
        (
            "largest queue",
            "kB",
            (|s| s.peak_kb) as fn(&TwoFlowSample) -> f64,
        ),
        ("mean queue", "kB", |s| s.mean_kb),
        ("use of the link", "share", |s| s.used),
    ] {
        for (label, runs) in LABELS.iter().zip(runs) {
            figure.rows.push(Row::judge(
                format!("{rate}G, {label}: {what}"),
                Claim::nothing(),
                runs.estimate(|sample| Some(value(sample))),
                unit,
            ));
        }
    }
    for (label, other) in LABELS[1..].iter().zip(others) {
        figure.rows.push(Row::judge(
            format!("{rate}G: largest queue, FNCC over {label}"),
            Claim::words("shortest").at_most(1.0),
            fncc.paired(other, |fncc, other| Some(fncc.peak_kb / other.peak_kb)),
            "ratio",
        ));
        let claim = if rate == RATES_GBPS[0] {
            Claim::nothing()
        } else {
            Claim::words("highest").at_least(1.0)
        };
        figure.rows.push(Row::judge(
            format!("{rate}G: use, FNCC over {label}"),
            claim,
            fncc.paired(other, |fncc, other| Some(fncc.used / other.used)),
            "ratio",
        ));
    }
}

/// Panels of one rate: queue, rates, throughput.
fn panels(rate: u64, runs: &[Replicas<TwoFlowSample>]) -> [Panel; 3] {
    let time = || Axis::linear("Time (µs)").over(250.0, 1_000.0);
    let of = |curve: fn(&TwoFlowSample) -> &Vec<(f64, f64)>| {
        let curves = LABELS.iter().zip(runs).enumerate();
        curves
            .map(|(i, (label, runs))| {
                let points = runs.0.first().map(|sample| curve(sample).clone());
                Curve::new(*label, points.unwrap_or_default()).colour(style::colour(i))
            })
            .collect::<Vec<_>>()
    };
    let mut rates = of(|sample| &sample.rates[0]);
    rates.extend(of(|sample| &sample.rates[1]).into_iter().map(|curve| {
        // Its flow 0 has the entry of the legend.
        Curve {
            name: String::new(),
            ..curve.dashed()
        }
    }));
    let panel = |title: &str, y: Axis, curves| {
        let title = format!("{rate} Gbit/s: {title}");
        Panel::curves(title, time(), y, curves).event(JOIN.as_us_f64(), "flow 1 joins")
    };
    [
        panel(
            "queue",
            Axis::linear("Queue (kB)").starting_at(0.0),
            of(|sample| &sample.queue),
        ),
        panel(
            "senders' rates (flow 1 dashed)",
            Axis::linear("Rate (Gbit/s)").over(0.0, 1.05 * rate as f64),
            rates,
        ),
        panel(
            "throughput of both flows",
            Axis::linear("Share of the link").over(0.0, 1.05),
            of(|sample| &sample.throughput),
        ),
    ]
}

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let cases: Vec<TwoFlowCase> = RATES_GBPS
        .into_iter()
        .flat_map(|rate_gbps| {
            LABELS.map(|label| TwoFlowCase {
                label,
                hop: Hop::First,
                rate_gbps,
            })
        })
        .collect();
    let samples = two_flows(settings, &cases)?;
    let mut figure = settings.figure(
        "fncc-fig10",
        "Response of a flow to another one that joins it (FNCC fig. 10)",
    );
    figure.scenario = super::two_flow_scenario(Hop::First);
    let mut all = Vec::new();
    for (rate, runs) in RATES_GBPS.iter().zip(samples.chunks(LABELS.len())) {
        judge(&mut figure, *rate, runs);
        all.extend(panels(*rate, runs));
    }
    figure.data = serde_json::json!({ "cases": cases, "samples": samples });
    let picture = Picture::new(
        "Two flows that meet at the first switch",
        "FNCC fig. 10; first seed",
        all,
    )
    .columns(3)
    .panel_size(460, 320);
    Ok(Reproduction { figure, picture })
}
