//! The paper's headlines (abstract of §1, §6.2.1) beside ours, and how much of tables 4 and 5 is
//! as in the paper.
//!
//! A headline is a ratio of two protocols' means over the columns in which they are stable, of
//! values over the best of each column, as in tables 4 and 5. Where a form lacks runs of a
//! protocol or a column, the paper's number is that of its table's other cells.

use super::paper::{Column, Measure, columns};
use super::runs::{BySeed, estimate, paired};
use super::tables::{IN_ORDER, Table, loads};
use super::{PROTOCOLS, label, reproduction};
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::estimate::Estimate;
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Bars, Panel, Picture};

/// A headline: its words, the measure, the other protocol, and the value of SIRD's mean and the
/// other's.
struct Headline {
    words: &'static str,
    measure: Measure,
    other: &'static str,
    unit: &'static str,
    value: fn(f64, f64) -> f64,
}

const HEADLINES: [Headline; 6] = [
    Headline {
        words: "peak queue, Homa over SIRD (headline: 12)",
        measure: Measure::Peak,
        other: label::HOMA,
        unit: "ratio",
        value: |sird, other| other / sird,
    },
    Headline {
        words: "goodput, SIRD above dcPIM (headline: 9)",
        measure: Measure::Goodput,
        other: label::DCPIM,
        unit: "%",
        value: |sird, other| 100.0 * (sird / other - 1.0),
    },
    Headline {
        words: "peak queue, SIRD below dcPIM (headline: 43)",
        measure: Measure::Peak,
        other: label::DCPIM,
        unit: "%",
        value: |sird, other| 100.0 * (1.0 - sird / other),
    },
    Headline {
        words: "99 % slowdown, SIRD below dcPIM (headline: 46)",
        measure: Measure::Slowdown,
        other: label::DCPIM,
        unit: "%",
        value: |sird, other| 100.0 * (1.0 - sird / other),
    },
    Headline {
        words: "99 % slowdown, ExpressPass over SIRD (headline: 10)",
        measure: Measure::Slowdown,
        other: label::EXPRESSPASS,
        unit: "ratio",
        value: |sird, other| other / sird,
    },
    Headline {
        words: "goodput, SIRD above ExpressPass (headline: 26)",
        measure: Measure::Goodput,
        other: label::EXPRESSPASS,
        unit: "%",
        value: |sird, other| 100.0 * (sird / other - 1.0),
    },
];

/// Accepted distance from a headline.
const TOLERANCE: f64 = 0.25;

/// The mean of a protocol's values over the best, over columns where the paper has it stable.
fn ours(table: &Table, measure: Measure, label: &str, columns: &[Column]) -> BySeed {
    let stable = columns
        .iter()
        .filter(|column| measure.paper(label, **column).is_some());
    let all: Vec<BySeed> = stable
        .map(|column| table.normalised(measure, label, *column))
        .collect();
    let count = all.len().max(1) as f64;
    let sum = all.into_iter().reduce(|a, b| paired(&a, &b, |a, b| a + b));
    sum.into_iter()
        .flatten()
        .map(|sum| Some(sum? / count))
        .collect()
}

/// A mean like that of the paper's table, over the best of the protocols that have runs here.
fn papers(table: &Table, measure: Measure, label: &str, columns: &[Column]) -> Option<f64> {
    let values = columns.iter().filter_map(|column| {
        let value = measure.paper(label, *column)?;
        let all = PROTOCOLS
            .into_iter()
            .filter(|label| table.has(measure, label, *column));
        let best = all
            .filter_map(|label| measure.paper(label, *column))
            .reduce(measure.better())?;
        Some(value / best)
    });
    crate::report::stats::mean(&values.collect::<Vec<f64>>())
}

/// An estimate that is a count, and certain.
fn count(of: usize) -> Option<Estimate> {
    Some(Estimate {
        mean: of as f64,
        half_width: Some(0.0),
        runs: 1,
    })
}

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let table = Table::run(settings, &columns(), loads(settings.quick))?;
    let mut figure = settings.figure("sird-headlines", "SIRD's headlines (§1, §6.2.1)");
    figure.scenario = vec![
        "means over columns of tables 4 and 5 of values over the best of each, seed by seed"
            .to_owned(),
    ];
    let mut bars = [Vec::new(), Vec::new()];
    let mut groups = Vec::new();
    for headline in HEADLINES
        .iter()
        .filter(|headline| PROTOCOLS.contains(&headline.other))
    {
        let (measure, other) = (headline.measure, headline.other);
        let both = |column: &Column| {
            [label::SIRD, other]
                .iter()
                .all(|label| table.has(measure, label, *column))
        };
        let common: Vec<Column> = columns().into_iter().filter(both).collect();
        let ours = paired(
            &ours(&table, measure, label::SIRD, &common),
            &ours(&table, measure, other, &common),
            headline.value,
        );
        let paper = papers(&table, measure, label::SIRD, &common)
            .zip(papers(&table, measure, other, &common))
            .map(|(sird, other)| (headline.value)(sird, other));
        let claim = paper.map_or(Claim::nothing(), |paper| Claim::number(paper, TOLERANCE));
        let row = Row::judge(headline.words, claim, estimate(&ours), headline.unit);
        groups.push(format!("{}", groups.len() + 1));
        bars[0].push(paper);
        bars[1].push(row.ours);
        figure
            .rows
            .push(row.note(format!("{} of 9 columns", common.len())));
    }
    let [sird, others] = table.within();
    let order = table.in_order();
    let slowdowns = table.slowdowns_within();
    // The claims are those that the evaluation is to reach, in proportion to the cells of a form.
    for (name, [within, all], of, most) in [
        (
            "table 5, SIRD: figures within 15 % or in our interval",
            sird,
            15,
            18,
        ),
        (
            "table 5, others: figures within 15 % or in our interval",
            others,
            60,
            90,
        ),
        (
            "table 4: columns with Kendall's τ of at least 0.7",
            order,
            7,
            9,
        ),
        ("table 4, SIRD: figures within 25 %", slowdowns, 7, 9),
    ] {
        let least = (all as f64 * f64::from(of) / f64::from(most)).ceil();
        let claim = Claim::words(format!("{least} of {all}")).at_least(least);
        figure
            .rows
            .push(Row::judge(name, claim, count(within), "cells"));
    }
    figure.notes.push(format!(
        "a column is in order from a τ of {IN_ORDER} on, of means over the seeds"
    ));
    let panel = Panel::bars(
        "Headlines in the order of the table",
        "",
        Axis::linear("Ratio or per cent"),
        groups,
        vec![
            Bars::new("the paper", bars[0].clone()).hollow(),
            Bars::new("ours", bars[1].clone()),
        ],
    );
    let picture =
        Picture::new("SIRD's headlines", "ratios and per cents", vec![panel]).panel_size(800, 360);
    Ok(reproduction(figure, picture))
}
