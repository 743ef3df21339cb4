//! SIRD tables 4 and 5 with the figures of the same runs (5 to 8, 12 and 13): six protocols, three
//! workloads, three configurations.
//!
//! | row | definition |
//! |---|---|
//! | slowdown | 99 % of all messages at an applied load of 50 %, over the least of all protocols, seed by seed |
//! | goodput | the largest over the applied loads |
//! | peak | the largest over the applied loads |
//! | order | Kendall's τ-b of a column's protocols by slowdown against the paper's; what is unstable comes last |

use super::paper::{Column, Measure, column_name, columns};
use super::runs::{ALL_SIZES, BySeed, Case, GROUPS, Sample, estimate, paired, runs};
use super::scene::{Configuration, Workload};
use super::{PROTOCOLS, colour, label, reproduction};
use crate::experiment::sweep::Replicas;
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::estimate::Estimate;
use crate::report::figure::{Claim, Figure, Paper, Row};
use crate::report::plot::{Axis, Bars, Curve, Panel, Picture};

/// Load of table 4 and figures 7 and 12, and of figure 8.
pub const HALF: f64 = 0.5;
const HIGH: f64 = 0.7;
/// The highest load (§6.2).
const HIGHEST: f64 = 0.95;
/// Accepted distance from the paper's slowdowns, and from its goodput and queues.
const SLOWDOWN_TOLERANCE: f64 = 0.25;
const LEVEL_TOLERANCE: f64 = 0.15;
/// Least τ of a column that is in the paper's order.
pub const IN_ORDER: f64 = 0.7;

/// Returns the applied loads (§6.2: from 25 to 95 %).
#[must_use]
pub const fn loads(quick: bool) -> &'static [f64] {
    if quick {
        &[HALF, HIGHEST]
    } else {
        &[0.25, HALF, HIGH, 0.8, HIGHEST]
    }
}

/// Returns true if the form has runs of a protocol in a column at a load. The short form has table
/// 4's load, the highest for balanced WKb, and figure 8's for SIRD and Homa.
fn is_run(label: &str, column: Column, load: f64, quick: bool) -> bool {
    let is_compared = label == label::SIRD || label == label::HOMA;
    let is_highest = load >= HIGHEST && column == (Configuration::Balanced, Workload::WKb);
    !quick || load <= HALF || is_highest || (load <= HIGH && is_compared)
}

/// Runs of protocols in columns at loads.
pub struct Table {
    cases: Vec<Case>,
    runs: Vec<Replicas<Sample>>,
    quick: bool,
}

impl Table {
    /// Does the runs.
    ///
    /// # Errors
    /// See [`ExperimentError`].
    pub fn run(
        settings: &Settings,
        columns: &[Column],
        loads: &[f64],
    ) -> Result<Self, ExperimentError> {
        let mut cases = Vec::new();
        // Of a form that is stopped, the highest load says most.
        for &load in loads.iter().rev() {
            for &column in columns {
                for label in PROTOCOLS {
                    if is_run(label, column, load, settings.quick) {
                        cases.push(Case::new(label, column, load));
                    }
                }
            }
        }
        let runs = runs(settings, &cases)?;
        let quick = settings.quick;
        Ok(Self { cases, runs, quick })
    }

    /// Returns true if the form has the runs of a measure: those of the highest load for what is
    /// largest over the loads.
    #[must_use]
    pub fn has(&self, measure: Measure, label: &str, column: Column) -> bool {
        let highest = match measure {
            Measure::Slowdown => HALF,
            Measure::Goodput | Measure::Peak => HIGHEST,
        };
        is_run(label, column, highest, self.quick)
    }

    /// Returns the loads of a protocol in a column, with their runs, from the least on.
    fn of(&self, label: &str, column: Column) -> impl Iterator<Item = (f64, &Replicas<Sample>)> {
        let all = self.cases.iter().zip(&self.runs).rev();
        all.filter_map(move |(case, runs)| {
            let of = (case.configuration, case.workload);
            (case.label == label && of == column).then_some((case.load, runs))
        })
    }

    /// Returns the runs of a protocol in a column at a load.
    #[must_use]
    pub fn at(&self, label: &str, column: Column, load: f64) -> Option<&Replicas<Sample>> {
        let mut all = self.of(label, column);
        all.find(|(of, _)| (of - load).abs() < 1e-9)
            .map(|(_, runs)| runs)
    }

    /// Returns the largest value over the loads whose runs are there, seed by seed; none without
    /// the highest load's.
    fn largest(&self, label: &str, column: Column, value: fn(&Sample) -> f64) -> BySeed {
        let values = |runs: &Replicas<Sample>| runs.values(|sample| Some(value(sample)));
        let highest = self.at(label, column, HIGHEST);
        let mut largest = highest.map_or_else(Vec::new, values);
        for (_, runs) in self.of(label, column) {
            for (largest, value) in largest.iter_mut().zip(values(runs)) {
                *largest = largest.map(|most| value.map_or(most, |value| most.max(value)));
            }
        }
        largest
    }

    /// Returns a measure of a protocol in a column, seed by seed.
    #[must_use]
    pub fn values(&self, measure: Measure, label: &str, column: Column) -> BySeed {
        match measure {
            Measure::Slowdown => self
                .at(label, column, HALF)
                .map_or_else(Vec::new, |runs| runs.values(Sample::p99)),
            Measure::Goodput => self.largest(label, column, |sample| sample.goodput_gbps),
            Measure::Peak => self.largest(label, column, |sample| sample.peak_mb),
        }
    }

    /// Returns 1 for each seed in which a measure is unstable, 0 for the others.
    fn unstable(&self, measure: Measure, label: &str, column: Column) -> BySeed {
        match measure {
            Measure::Slowdown => {
                let is = |sample: &Sample| Some(f64::from(u8::from(sample.is_unstable())));
                let runs = self.at(label, column, HALF);
                runs.map_or_else(Vec::new, |runs| runs.values(is))
            }
            Measure::Goodput => Vec::new(),
            Measure::Peak => self.largest(label, column, |sample| {
                f64::from(u8::from(sample.is_growing))
            }),
        }
    }

    /// Returns a measure over the best of all protocols in a column, seed by seed.
    #[must_use]
    pub fn normalised(&self, measure: Measure, label: &str, column: Column) -> BySeed {
        if !self.has(measure, label, column) {
            return Vec::new();
        }
        let all = PROTOCOLS
            .into_iter()
            .filter(|label| self.has(measure, label, column));
        let all = all.map(|label| self.values(measure, label, column));
        let better = measure.better();
        let best = all
            .reduce(|a, b| paired(&a, &b, better))
            .unwrap_or_default();
        paired(&self.values(measure, label, column), &best, |own, best| {
            own / best
        })
    }

    /// Counts figures of table 5 that are within the tolerance or in our interval, and all: SIRD's
    /// and the others'. A figure *unstable* is one if most runs are.
    #[must_use]
    pub fn within(&self) -> [[usize; 2]; 2] {
        let mut counts = [[0; 2]; 2];
        for column in columns() {
            for measure in [Measure::Goodput, Measure::Peak] {
                for label in PROTOCOLS
                    .into_iter()
                    .filter(|l| self.has(measure, l, column))
                {
                    let row = row(self, measure, label, column);
                    let [within, all] = &mut counts[usize::from(label != label::SIRD)];
                    *all += 1;
                    *within += usize::from(is_within(&row));
                }
            }
        }
        counts
    }

    /// Counts SIRD's figures of table 4 that are within the tolerance or in our interval, and all.
    #[must_use]
    pub fn slowdowns_within(&self) -> [usize; 2] {
        let rows = columns().into_iter();
        let rows = rows.map(|column| row(self, Measure::Slowdown, label::SIRD, column));
        let rows: Vec<Row> = rows.collect();
        [rows.iter().filter(|row| is_within(row)).count(), rows.len()]
    }

    /// Counts columns of table 4 whose protocols are in the paper's order by means over the seeds,
    /// and all.
    #[must_use]
    pub fn in_order(&self) -> [usize; 2] {
        let all: Vec<f64> = columns()
            .into_iter()
            .filter_map(|c| self.order_of_means(c))
            .collect();
        [
            all.iter().filter(|tau| **tau >= IN_ORDER).count(),
            columns().len(),
        ]
    }

    /// Returns Kendall's τ-b of a column's order by means over the seeds.
    fn order_of_means(&self, column: Column) -> Option<f64> {
        let pairs = PROTOCOLS.into_iter().filter_map(|label| {
            let unstable = estimate(&self.unstable(Measure::Slowdown, label, column))?;
            let ours = estimate(&self.values(Measure::Slowdown, label, column))?;
            let ours = if unstable.mean >= 0.5 {
                f64::INFINITY
            } else {
                ours.mean
            };
            let paper = Measure::Slowdown.paper(label, column);
            Some((paper.unwrap_or(f64::INFINITY), ours))
        });
        kendall(&pairs.collect::<Vec<_>>())
    }

    /// Returns Kendall's τ-b of a column's order against the paper's, seed by seed.
    fn order(&self, column: Column) -> BySeed {
        let seeds = self.runs.first().map_or(0, |runs| runs.0.len());
        let ours = PROTOCOLS.map(|label| {
            let unstable = self.unstable(Measure::Slowdown, label, column);
            let values = self.values(Measure::Slowdown, label, column);
            paired(&values, &unstable, |value, unstable| {
                if unstable > 0.5 { f64::INFINITY } else { value }
            })
        });
        let of_seed = |seed: usize| {
            let pairs = PROTOCOLS.iter().zip(&ours).filter_map(|(label, values)| {
                let paper = Measure::Slowdown.paper(label, column);
                Some((paper.unwrap_or(f64::INFINITY), values.get(seed).copied()??))
            });
            kendall(&pairs.collect::<Vec<_>>())
        };
        (0..seeds).map(of_seed).collect()
    }
}

/// Returns true if our mean is in the accepted range, or the paper's number in our interval.
fn is_within(row: &Row) -> bool {
    let Some(ours) = row.ours else { return false };
    let accepted = row.accepted.is_some_and(|[low, high]| {
        low.is_none_or(|low| low <= ours) && high.is_none_or(|high| ours <= high)
    });
    let holds = match (&row.paper, row.interval) {
        (Paper::Number(paper), Some([low, high])) => (low..=high).contains(paper),
        _ => false,
    };
    accepted || holds
}

/// Kendall's τ-b of pairs; `None` if all of one side are equal.
fn kendall(pairs: &[(f64, f64)]) -> Option<f64> {
    let (mut concordant, mut ties) = (0.0, [0.0; 2]);
    let mut all = 0.0;
    for (i, a) in pairs.iter().enumerate() {
        for b in &pairs[..i] {
            let orders = [a.0.total_cmp(&b.0), a.1.total_cmp(&b.1)].map(|order| order as i8);
            all += 1.0;
            for (tie, order) in ties.iter_mut().zip(orders) {
                *tie += f64::from(u8::from(order == 0));
            }
            concordant += f64::from(orders[0] * orders[1]);
        }
    }
    let [by_first, by_second] = ties.map(|tie| all - tie);
    let scale = f64::sqrt(by_first * by_second);
    (scale > 0.0).then(|| concordant / scale)
}

/// The row of a protocol in a column.
fn row(table: &Table, measure: Measure, label: &str, column: Column) -> Row {
    let (what, unit, tolerance) = match measure {
        Measure::Slowdown => ("99 % slowdown over the least", "ratio", SLOWDOWN_TOLERANCE),
        Measure::Goodput => ("largest goodput", "Gbit/s", LEVEL_TOLERANCE),
        Measure::Peak => ("largest queue of a rack", "MB", LEVEL_TOLERANCE),
    };
    let name = format!("{}, {label}: {what}", column_name(column));
    let values = match measure {
        Measure::Slowdown => table.normalised(measure, label, column),
        Measure::Goodput | Measure::Peak => table.values(measure, label, column),
    };
    let unstable = estimate(&table.unstable(measure, label, column));
    let Some(paper) = measure.paper(label, column) else {
        let row = Row::judge(
            format!(
                "{}, {label}: {what}, runs that are unstable",
                column_name(column)
            ),
            // The short form cannot see growth.
            match measure {
                Measure::Peak if table.quick => Claim::words("unstable"),
                _ => Claim::words("unstable").at_least(0.5),
            },
            unstable,
            "share",
        );
        return match estimate(&values) {
            Some(value) => row.note(format!("where it is not, {:.3} {unit}", value.mean)),
            None => row,
        };
    };
    let row = Row::judge(
        name,
        Claim::number(paper, tolerance),
        estimate(&values),
        unit,
    );
    match unstable.filter(|share| share.mean > 0.0) {
        Some(share) => row.note(format!(
            "{:.0} % of the runs are unstable",
            100.0 * share.mean
        )),
        None => row,
    }
}

/// Words on the runs of the tables.
fn scenario(loads: &[f64]) -> Vec<String> {
    let loads: Vec<String> = loads
        .iter()
        .map(|load| format!("{:.0}", 100.0 * load))
        .collect();
    vec![
        "144 hosts in 9 racks under 4 spines, 100 Gbit/s to hosts and 400 to spines (Core: 200), \
         queues without limit"
            .to_owned(),
        format!("applied loads of {} %", loads.join(", ")),
    ]
}

/// Adds which of the tables' runs are unstable.
fn remarks(figure: &mut Figure, table: &Table) {
    for (case, runs) in table.cases.iter().zip(&table.runs) {
        let count = |of: fn(&Sample) -> bool| runs.samples().filter(|sample| of(sample)).count();
        let parts = [
            (
                count(|sample| sample.is_not_delivered),
                "do not deliver the load",
            ),
            (count(|sample| sample.is_growing), "have queues that grow"),
        ];
        let parts: Vec<String> = parts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} of {} runs {what}", runs.count()))
            .collect();
        if !parts.is_empty() {
            let column = column_name((case.configuration, case.workload));
            figure.notes.push(format!(
                "{}, {column}, {:.0} %: {}",
                case.label,
                100.0 * case.load,
                parts.join(", ")
            ));
        }
    }
}

/// Samples of all runs.
fn data(table: &Table) -> serde_json::Value {
    let cases = table.cases.iter().zip(&table.runs).map(|(case, runs)| {
        serde_json::json!({
            "protocol": case.label,
            "workload": case.workload,
            "configuration": case.configuration,
            "load": case.load,
            "samples": runs,
        })
    });
    serde_json::Value::Array(cases.collect())
}

/// Bars of a measure over the best, one group for each column.
fn normalised_panel(table: &Table, measure: Measure, title: &str, y: Axis) -> Panel {
    let bars = PROTOCOLS.map(|label| {
        let of = |column| estimate(&table.normalised(measure, label, column));
        let values: Vec<Option<Estimate>> = columns().into_iter().map(of).collect();
        Bars::estimates(label, &values).colour(colour(label))
    });
    let groups = columns().into_iter().map(|(configuration, workload)| {
        let short = &configuration.name()[..3];
        format!("{} {short}.", workload.name())
    });
    Panel::bars(title, "", y, groups.collect(), bars.into()).mark(1.0, "")
}

/// Table 4, with figure 5a.
///
/// # Errors
/// See [`ExperimentError`].
pub fn table4(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let table = Table::run(settings, &columns(), &[HALF])?;
    let mut figure = settings.figure("sird-table4", "Slowdown at 50 % (SIRD table 4, fig. 5a)");
    figure.scenario = scenario(&[HALF]);
    for column in columns() {
        for label in PROTOCOLS {
            figure
                .rows
                .push(row(&table, Measure::Slowdown, label, column));
        }
        figure.rows.push(Row::judge(
            format!(
                "{}: Kendall's τ of the protocols' order",
                column_name(column)
            ),
            Claim::words("the order of the table").at_least(IN_ORDER),
            estimate(&table.order(column)),
            "",
        ));
    }
    for column in columns() {
        for label in PROTOCOLS {
            let runs = table.at(label, column, HALF);
            figure.rows.push(Row::judge(
                format!("{}, {label}: 99 % slowdown", column_name(column)),
                Claim::nothing(),
                runs.and_then(|runs| estimate(&runs.values(Sample::p99))),
                "",
            ));
        }
    }
    remarks(&mut figure, &table);
    figure.data = data(&table);
    let panel = normalised_panel(
        &table,
        Measure::Slowdown,
        "99 % slowdown of all messages over the least",
        Axis::log("Slowdown over the least").over(0.9, 100.0),
    );
    let picture = Picture::new(
        "Slowdown at a load of 50 %",
        "SIRD table 4, fig. 5a",
        vec![panel],
    )
    .panel_size(1_100, 420);
    Ok(reproduction(figure, picture))
}

/// Table 5, with figures 5b and 5c.
///
/// # Errors
/// See [`ExperimentError`].
pub fn table5(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let loads = loads(settings.quick);
    let table = Table::run(settings, &columns(), loads)?;
    let mut figure = settings.figure(
        "sird-table5",
        "Goodput and queues over the loads (SIRD table 5, figures 5b and 5c)",
    );
    figure.scenario = scenario(loads);
    for measure in [Measure::Goodput, Measure::Peak] {
        for column in columns() {
            for label in PROTOCOLS {
                if table.has(measure, label, column) {
                    figure.rows.push(row(&table, measure, label, column));
                }
            }
        }
    }
    remarks(&mut figure, &table);
    figure.data = data(&table);
    let panels = vec![
        normalised_panel(
            &table,
            Measure::Goodput,
            "Largest goodput over the largest of all",
            Axis::linear("Goodput over the most").over(0.0, 1.1),
        ),
        normalised_panel(
            &table,
            Measure::Peak,
            "Largest queue of a rack over the least of all",
            Axis::log("Queue over the least").over(0.9, 1_000.0),
        ),
    ];
    let picture = Picture::new(
        "Goodput and queues over the loads",
        "SIRD table 5, figures 5b and 5c",
        panels,
    )
    .columns(1)
    .panel_size(1_100, 380);
    Ok(reproduction(figure, picture))
}

/// Curves of a queue over goodput, a panel for each column.
fn queues(
    settings: &Settings,
    (name, title): (&str, &str),
    what: &str,
    value: fn(&Sample) -> f64,
) -> Result<Reproduction, ExperimentError> {
    let loads = loads(settings.quick);
    let table = Table::run(settings, &columns(), loads)?;
    let mut figure = settings.figure(name, title);
    figure.scenario = scenario(loads);
    let mut panels = Vec::new();
    for column in columns() {
        let mut curves = Vec::new();
        for label in PROTOCOLS {
            let mut points = Vec::new();
            for (load, runs) in table.of(label, column) {
                let at = runs.estimate(|sample| Some(sample.goodput_gbps));
                let queue = runs.estimate(|sample| Some(value(sample)));
                points.extend(at.zip(queue).map(|(at, queue)| (at.mean, queue)));
                figure.rows.push(Row::judge(
                    format!(
                        "{}, {label}, {:.0} %: {what} queue of a rack",
                        column_name(column),
                        100.0 * load
                    ),
                    Claim::nothing(),
                    queue,
                    "MB",
                ));
            }
            curves.push(Curve::estimates(label, points).colour(colour(label)));
        }
        panels.push(Panel::curves(
            column_name(column),
            Axis::linear("Goodput (Gbit/s)").over(0.0, 95.0),
            Axis::log(format!("{what} queue (MB)")).over(0.001, 100.0),
            curves,
        ));
    }
    let picture = Picture::new(title, "means over seeds, a point for each load", panels)
        .columns(3)
        .panel_size(400, 300);
    Ok(reproduction(figure, picture))
}

/// Figure 6.
///
/// # Errors
/// See [`ExperimentError`].
pub fn fig06(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let of = ("sird-fig6", "Largest queues against goodput (SIRD fig. 6)");
    queues(settings, of, "largest", |sample| sample.peak_mb)
}

/// Figure 13.
///
/// # Errors
/// See [`ExperimentError`].
pub fn fig13(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let of = ("sird-fig13", "Mean queues against goodput (SIRD fig. 13)");
    queues(settings, of, "mean", |sample| sample.mean_mb)
}

/// Slowdowns by group of sizes, two panels for each column: medians and 99 %.
fn slowdowns(
    settings: &Settings,
    (name, title): (&str, &str),
    columns: &[Column],
    load: f64,
) -> Result<(Figure, Picture, Table), ExperimentError> {
    let table = Table::run(settings, columns, &[load])?;
    let mut figure = settings.figure(name, title);
    figure.scenario = scenario(&[load]);
    let groups = || GROUPS.map(|(name, _)| name).into_iter().chain(["all"]);
    let mut panels = Vec::new();
    for &column in columns {
        for (statistic, words) in ["median", "99 %"].into_iter().enumerate() {
            let mut bars = Vec::new();
            for label in PROTOCOLS {
                let Some(runs) = table.at(label, column, load) else {
                    continue;
                };
                let of = |group: usize| {
                    estimate(&runs.values(|sample| Some(sample.slowdown[group]?[statistic])))
                };
                let values: Vec<Option<Estimate>> = (0..=ALL_SIZES).map(of).collect();
                for (group, value) in groups().zip(&values).filter(|(_, value)| value.is_some()) {
                    figure.rows.push(Row::judge(
                        format!(
                            "{}, {label}, {group}: {words} slowdown",
                            column_name(column)
                        ),
                        Claim::nothing(),
                        *value,
                        "",
                    ));
                }
                bars.push(Bars::estimates(label, &values).colour(colour(label)));
            }
            let short = |name: &str| name.split(':').next().unwrap_or(name).to_owned();
            panels.push(Panel::bars(
                format!("{}: {words}", column_name(column)),
                "",
                Axis::log("Slowdown").over(0.9, 200.0),
                groups().map(short).collect(),
                bars,
            ));
        }
    }
    let picture = Picture::new(
        title,
        "A below a packet, B below 1 BDP, C below 8, D larger",
        panels,
    )
    .columns(2)
    .panel_size(560, 280);
    Ok((figure, picture, table))
}

/// Claims about groups in words (§6.2.3), over the columns of a figure.
fn judge_groups(figure: &mut Figure, table: &Table, columns: &[Column], load: f64) {
    let p99 = |label: &str, column: Column, group: usize| {
        let runs = table.at(label, column, load);
        runs.map_or_else(Vec::new, |runs| {
            runs.values(|sample| sample.slowdown[group].map(|[_, p99]| p99))
        })
    };
    let mut rows = Vec::new();
    for &column in columns {
        let name = column_name(column);
        let groups = GROUPS.iter().enumerate().take(2);
        for (group, (of, _)) in groups {
            for label in [label::SIRD, label::HOMA, label::DCPIM] {
                let values = p99(label, column, group);
                // WKc has no messages below a packet.
                if let Some(value) = estimate(&values) {
                    rows.push(Row::judge(
                        format!("{name}, {label}, {of}: 99 % slowdown, near hardware latency"),
                        Claim::words("close to hardware latency").at_most(3.0),
                        Some(value),
                        "",
                    ));
                }
            }
            for label in [label::DCTCP, label::SWIFT] {
                let values = paired(
                    &p99(label, column, group),
                    &p99(label::SIRD, column, group),
                    |own, sird| own / sird,
                );
                if let Some(value) = estimate(&values) {
                    rows.push(Row::judge(
                        format!("{name}, {of}: 99 % slowdown, {label} over SIRD"),
                        Claim::words("an order of magnitude").at_least(5.0),
                        Some(value),
                        "ratio",
                    ));
                }
            }
        }
    }
    figure.rows.splice(0..0, rows);
}

/// The row on SIRD against Homa for messages of 1 to 8 products (§6.2.3: of the balanced
/// configuration, without a workload; here the mean of those of the figure).
fn group_c(figure: &mut Figure, table: &Table, columns: &[Column], load: f64, paper: f64) {
    let of = |column: Column| {
        let p99 = |label: &str| {
            let runs = table.at(label, column, load);
            runs.map_or_else(Vec::new, |runs| {
                runs.values(|sample| sample.slowdown[2].map(|[_, p99]| p99))
            })
        };
        paired(&p99(label::SIRD), &p99(label::HOMA), |sird, homa| {
            sird / homa
        })
    };
    let balanced = columns
        .iter()
        .filter(|column| column.0 == Configuration::Balanced);
    let all: Vec<BySeed> = balanced.map(|column| of(*column)).collect();
    let count = all.len().max(1) as f64;
    let sum = all.into_iter().reduce(|a, b| paired(&a, &b, |a, b| a + b));
    let mean: BySeed = sum
        .into_iter()
        .flatten()
        .map(|sum| Some(sum? / count))
        .collect();
    let row = Row::judge(
        "Balanced, C: below 8 BDP: 99 % slowdown, SIRD over Homa",
        Claim::number(paper, SLOWDOWN_TOLERANCE),
        estimate(&mean),
        "ratio",
    );
    figure.rows.insert(0, row);
}

/// Columns of workloads.
fn columns_of(workloads: &[Workload]) -> Vec<Column> {
    let all = columns().into_iter();
    all.filter(|column| workloads.contains(&column.1)).collect()
}

/// Figure 7.
///
/// # Errors
/// See [`ExperimentError`].
pub fn fig07(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let columns = columns_of(&[Workload::WKa, Workload::WKc]);
    let of = ("sird-fig7", "Slowdown by size at 50 % (SIRD fig. 7)");
    let (mut figure, picture, table) = slowdowns(settings, of, &columns, HALF)?;
    judge_groups(&mut figure, &table, &columns, HALF);
    group_c(&mut figure, &table, &columns, HALF, 1.85);
    Ok(reproduction(figure, picture))
}

/// Figure 8.
///
/// # Errors
/// See [`ExperimentError`].
pub fn fig08(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let balanced = |workload| (Configuration::Balanced, workload);
    let columns = [Workload::WKa, Workload::WKc].map(balanced);
    let of = ("sird-fig8", "Slowdown by size at 70 % (SIRD fig. 8)");
    let (mut figure, picture, table) = slowdowns(settings, of, &columns, HIGH)?;
    group_c(&mut figure, &table, &columns, HIGH, 2.68);
    Ok(reproduction(figure, picture))
}

/// Figure 12.
///
/// # Errors
/// See [`ExperimentError`].
pub fn fig12(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let columns = columns_of(&[Workload::WKb]);
    let of = (
        "sird-fig12",
        "Slowdown of WKb by size at 50 % (SIRD fig. 12)",
    );
    let (mut figure, picture, table) = slowdowns(settings, of, &columns, HALF)?;
    judge_groups(&mut figure, &table, &columns, HALF);
    Ok(reproduction(figure, picture))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: of 6 pairs of 4 values 5 agree and 1 does not; τ-b of a tie on one side.
    #[test]
    fn tau_counts_pairs_in_order() {
        let pairs = [(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 4.0)];
        assert!((kendall(&pairs).unwrap() - 4.0 / 6.0).abs() < 1e-12);
        let unstable = f64::INFINITY;
        let same = [(1.0, 2.0), (3.0, 9.0), (unstable, unstable)];
        assert_eq!(kendall(&same), Some(1.0));
        let tie = [
            (1.0, 1.0),
            (2.0, 2.0),
            (unstable, unstable),
            (unstable, 5.0),
        ];
        assert!((kendall(&tie).unwrap() - 5.0 / 30.0_f64.sqrt()).abs() < 1e-12);
        assert_eq!(kendall(&[(1.0, 1.0), (1.0, 2.0)]), None);
    }
}
