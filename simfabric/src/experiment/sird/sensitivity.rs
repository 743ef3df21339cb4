//! SIRD figures 2 and 9 to 11: goodput and queues over the overcommitment of SIRD and Homa, over B
//! and SThr; slowdown over UnschT, and over the use of priorities.

use super::runs::{ALL_SIZES, BySeed, Case, GROUPS, Sample, estimate, paired, runs};
use super::scene::{Configuration, HOSTS, Workload};
use super::tables::HALF;
use super::{label, reproduction};
use crate::experiment::sweep::Replicas;
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::estimate::Estimate;
use crate::report::figure::{Claim, Figure, Row};
use crate::report::plot::{Axis, Bars, Curve, Panel, Picture};

/// Load under which goodput is largest (§3: 95 Gbit/s).
const FULL: f64 = 0.95;
const WEB_SEARCH: (Configuration, Workload) = (Configuration::Balanced, Workload::WKc);

/// Cases with the runs of each.
struct Swept<K> {
    keys: Vec<K>,
    runs: Vec<Replicas<Sample>>,
}

impl<K: PartialEq> Swept<K> {
    fn run(settings: &Settings, cases: Vec<(K, Case)>) -> Result<Self, ExperimentError> {
        let (keys, cases): (Vec<K>, Vec<Case>) = cases.into_iter().unzip();
        let runs = runs(settings, &cases)?;
        Ok(Self { keys, runs })
    }

    fn of(&self, key: &K) -> Option<&Replicas<Sample>> {
        let place = self.keys.iter().position(|of| of == key)?;
        self.runs.get(place)
    }

    fn values(&self, key: &K, value: impl Fn(&Sample) -> Option<f64>) -> BySeed {
        self.of(key)
            .map_or_else(Vec::new, |runs| runs.values(value))
    }
}

fn goodput(sample: &Sample) -> Option<f64> {
    Some(sample.goodput_gbps)
}

/// Adds rows of goodput and queues without verdicts.
fn levels(figure: &mut Figure, name: &str, runs: &Replicas<Sample>) {
    type Value = fn(&Sample) -> f64;
    let measures: [(&str, &str, Value); 3] = [
        ("goodput", "Gbit/s", |sample| sample.goodput_gbps),
        ("mean queue of a rack", "MB", |sample| sample.mean_mb),
        ("largest queue of a rack", "MB", |sample| sample.peak_mb),
    ];
    for (what, unit, value) in measures {
        let estimate = runs.estimate(|sample| Some(value(sample)));
        figure.rows.push(Row::judge(
            format!("{name}: {what}"),
            Claim::nothing(),
            estimate,
            unit,
        ));
    }
}

/// Figure 2.
///
/// # Errors
/// See [`ExperimentError`].
pub fn fig02(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let (credits, counts): (&[&str], &[&str]) = if settings.quick {
        (&["1.0", "1.5"], &["1", "7"])
    } else {
        (
            &["1.0", "1.25", "1.5", "2.0", "3.0"],
            &["1", "2", "3", "4", "5", "6", "7"],
        )
    };
    let mut cases = Vec::new();
    for credit in credits {
        let case = Case::new(label::SIRD, WEB_SEARCH, FULL);
        let option = format!("sird.credit={credit}");
        cases.push(((label::SIRD, *credit), case.with(&[&option])?));
    }
    for count in counts {
        let case = Case::new(label::HOMA, WEB_SEARCH, FULL);
        let option = format!("homa.overcommitment={count}");
        cases.push(((label::HOMA, *count), case.with(&[&option])?));
    }
    let swept = Swept::run(settings, cases)?;
    let mut figure = settings.figure(
        "sird-fig2",
        "Queues against goodput over the overcommitment (SIRD fig. 2)",
    );
    figure.scenario = vec!["WKc, balanced, 95 Gbit/s applied by each host".to_owned()];
    let over = |value: fn(&Sample) -> Option<f64>| {
        let homa = swept.values(&(label::HOMA, "7"), value);
        let sird = swept.values(&(label::SIRD, "1.5"), value);
        estimate(&paired(&homa, &sird, |homa, sird| homa / sird))
    };
    figure.rows = vec![
        Row::judge(
            "Homa's k = 7 over SIRD's B = 1.5: mean queue",
            Claim::number(13.0, QUEUE_TOLERANCE),
            over(|sample| Some(sample.mean_mb)),
            "ratio",
        ),
        Row::judge(
            "Homa's k = 7 over SIRD's B = 1.5: goodput",
            Claim::words("the same").at_least(0.95).at_most(1.05),
            over(goodput),
            "ratio",
        ),
    ];
    let mut curves = Vec::new();
    for label in [label::SIRD, label::HOMA] {
        let mut points = Vec::new();
        for (key, runs) in swept.keys.iter().zip(&swept.runs) {
            if key.0 == label {
                let sign = if label == label::SIRD { "B" } else { "k" };
                levels(&mut figure, &format!("{label}, {sign} = {}", key.1), runs);
                let at = runs.estimate(goodput);
                let queue = runs.estimate(|sample| Some(sample.mean_mb));
                points.extend(at.zip(queue).map(|(at, queue)| (at.mean, queue)));
            }
        }
        curves.push(Curve::estimates(label, points).colour(super::colour(label)));
    }
    let panel = Panel::curves(
        "",
        Axis::linear("Goodput (Gbit/s)"),
        Axis::log("Mean queue of a rack (MB)").over(0.01, 20.0),
        curves,
    );
    let picture = Picture::new(
        "Queues against goodput over the overcommitment",
        "SIRD fig. 2; points from little to much credit",
        vec![panel],
    );
    Ok(reproduction(figure, picture))
}

/// Accepted distance from the paper's ratio of queues.
const QUEUE_TOLERANCE: f64 = 0.3;

/// Figure 9.
///
/// # Errors
/// See [`ExperimentError`].
pub fn fig09(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let (credits, thresholds): (&[&str], &[&str]) = if settings.quick {
        (&["1.5"], &["0.5", "inf"])
    } else {
        (
            &["1.0", "1.5", "2.0", "3.0", "4.0"],
            &["0.5", "1.0", "2.0", "inf"],
        )
    };
    let mut cases = Vec::new();
    for threshold in thresholds {
        for credit in credits {
            let case = Case::new(label::SIRD, WEB_SEARCH, FULL);
            let options = [
                format!("sird.credit={credit}"),
                format!("sird.sender_threshold={threshold}"),
            ];
            let options = [options[0].as_str(), options[1].as_str()];
            cases.push(((*credit, *threshold), case.with(&options)?));
        }
    }
    let swept = Swept::run(settings, cases)?;
    let mut figure = settings.figure("sird-fig9", "Goodput over B and SThr; credit (SIRD fig. 9)");
    figure.scenario = vec!["WKc, balanced, 95 Gbit/s applied by each host".to_owned()];
    let gain = paired(
        &swept.values(&("1.5", "0.5"), goodput),
        &swept.values(&("1.5", "inf"), goodput),
        |with, without| 100.0 * (with / without - 1.0),
    );
    figure.rows.push(Row::judge(
        "B = 1.5: goodput gained by SThr = 0.5",
        Claim::number(25.0, QUEUE_TOLERANCE),
        estimate(&gain),
        "%",
    ));
    let products = |sample: &Sample, place: usize| {
        Some(sample.credit_bytes?[place] / f64::from(HOSTS) / super::scene::BDP_BYTES as f64)
    };
    let stored = |threshold| swept.values(&("1.5", threshold), |sample| products(sample, 0));
    figure.rows.push(Row::judge(
        "B = 1.5: credit at senders, SThr = ∞ over 0.5",
        Claim::words("accumulates without").at_least(1.0),
        estimate(&paired(&stored("inf"), &stored("0.5"), |without, with| {
            without / with
        })),
        "ratio",
    ));
    let places = ["at senders", "in flight", "at receivers"];
    for ((credit, threshold), runs) in swept.keys.iter().zip(&swept.runs) {
        let name = format!("B = {credit}, SThr = {threshold}");
        levels(&mut figure, &name, runs);
        for (place, of) in places.iter().enumerate() {
            figure.rows.push(Row::judge(
                format!("{name}: credit {of}, by host"),
                Claim::nothing(),
                runs.estimate(|sample| products(sample, place)),
                "BDP",
            ));
        }
    }
    let curves = thresholds.iter().map(|threshold| {
        let points = credits.iter().filter_map(|credit| {
            let runs = swept.of(&(*credit, *threshold))?;
            Some((credit.parse().ok()?, runs.estimate(goodput)?))
        });
        Curve::estimates(format!("SThr = {threshold}"), points)
    });
    let bars = places.iter().enumerate().map(|(place, name)| {
        let values = thresholds.iter().map(|threshold| {
            let runs = swept.of(&("1.5", *threshold))?;
            runs.estimate(|sample| products(sample, place))
        });
        Bars::estimates(*name, &values.collect::<Vec<Option<Estimate>>>())
    });
    let panels = vec![
        Panel::curves(
            "Goodput",
            Axis::linear("B (BDP)").over(0.8, 4.2),
            Axis::linear("Goodput (Gbit/s)").over(50.0, 95.0),
            curves.collect(),
        ),
        Panel::bars(
            "Credit by host, B = 1.5",
            "SThr (BDP)",
            Axis::linear("Credit (BDP)").over(0.0, 1.6),
            thresholds
                .iter()
                .map(|threshold| (*threshold).to_owned())
                .collect(),
            bars.collect(),
        ),
    ];
    let picture = Picture::new(
        "Informed overcommitment at full load",
        "SIRD fig. 9",
        panels,
    );
    Ok(reproduction(figure, picture))
}

/// Groups of a figure's panels, with all messages.
fn groups() -> Vec<String> {
    let short = |(name, _): &(&str, u64)| name.split(':').next().unwrap_or(name).to_owned();
    let all = std::iter::once("all".to_owned());
    GROUPS.iter().map(short).chain(all).collect()
}

/// Panels of slowdown by group for each workload, medians and 99 %, and their rows.
fn slowdowns<K: PartialEq>(
    figure: &mut Figure,
    swept: &Swept<K>,
    keys: impl Fn(Workload) -> Vec<(String, K)>,
) -> Vec<Panel> {
    let mut panels = Vec::new();
    for workload in [Workload::WKa, Workload::WKc] {
        for (statistic, words) in ["median", "99 %"].into_iter().enumerate() {
            let mut bars = Vec::new();
            for (name, key) in keys(workload) {
                let Some(runs) = swept.of(&key) else { continue };
                let of = |group: usize| {
                    estimate(&runs.values(|sample| Some(sample.slowdown[group]?[statistic])))
                };
                let values: Vec<Option<Estimate>> = (0..=ALL_SIZES).map(of).collect();
                for (group, value) in groups().iter().zip(&values) {
                    if value.is_some() {
                        figure.rows.push(Row::judge(
                            format!("{}, {name}, {group}: {words} slowdown", workload.name()),
                            Claim::nothing(),
                            *value,
                            "",
                        ));
                    }
                }
                bars.push(Bars::estimates(name, &values));
            }
            panels.push(Panel::bars(
                format!("{}: {words}", workload.name()),
                "",
                Axis::log("Slowdown").over(0.9, 30.0),
                groups(),
                bars,
            ));
        }
    }
    panels
}

/// UnschT in bandwidth-delay products: a packet, one product, and more.
const PACKET: &str = "0.01538";

/// Figure 10.
///
/// # Errors
/// See [`ExperimentError`].
pub fn fig10(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let lengths: &[&str] = if settings.quick {
        &[PACKET, "1.0", "16.0"]
    } else {
        &[PACKET, "0.5", "1.0", "2.0", "4.0", "16.0", "1000000.0"]
    };
    type Key = (Workload, Configuration, &'static str);
    let case = |(workload, configuration, length): Key| {
        let case = Case::new(label::SIRD, (configuration, workload), HALF);
        let option = format!("sird.unscheduled={length}");
        Ok(((workload, configuration, length), case.with(&[&option])?))
    };
    let balanced = [Workload::WKa, Workload::WKc]
        .into_iter()
        .flat_map(|workload| {
            let of = move |length: &&'static str| (workload, Configuration::Balanced, *length);
            lengths.iter().map(of)
        });
    let incast = ["4.0", "16.0"].map(|length| (Workload::WKc, Configuration::Incast, length));
    let cases: Result<Vec<_>, ExperimentError> = balanced.chain(incast).map(case).collect();
    let swept = Swept::run(settings, cases?)?;
    let mut figure = settings.figure("sird-fig10", "Slowdown over UnschT (SIRD fig. 10)");
    figure.scenario = vec!["balanced, 50 %; and WKc with incast".to_owned()];
    let of = |key: Key, value: fn(&Sample) -> Option<f64>| swept.values(&key, value);
    let over = |keys: [Key; 2], value: fn(&Sample) -> Option<f64>| {
        estimate(&paired(&of(keys[0], value), &of(keys[1], value), |a, b| {
            a / b
        }))
    };
    let balanced = |workload, length| (workload, Configuration::Balanced, length);
    let incast = |length| (Workload::WKc, Configuration::Incast, length);
    let b_median = |sample: &Sample| sample.slowdown[1].map(|[median, _]| median);
    for workload in [Workload::WKa, Workload::WKc] {
        let keys = [balanced(workload, PACKET), balanced(workload, "1.0")];
        figure.rows.push(Row::judge(
            format!(
                "{}, B: median slowdown, UnschT of a packet over 1 BDP",
                workload.name()
            ),
            Claim::words("meaningfully increases").at_least(1.1),
            over(keys, b_median),
            "ratio",
        ));
        let keys = [balanced(workload, "16.0"), balanced(workload, "1.0")];
        figure.rows.push(Row::judge(
            format!(
                "{}: 99 % slowdown of all, UnschT of 16 BDP over 1",
                workload.name()
            ),
            Claim::words("no appreciable net benefit").at_least(0.9),
            over(keys, Sample::p99),
            "ratio",
        ));
    }
    let peak = |sample: &Sample| Some(sample.peak_mb);
    let mean = |sample: &Sample| Some(sample.mean_mb);
    let wkc = [
        balanced(Workload::WKc, "16.0"),
        balanced(Workload::WKc, "1.0"),
    ];
    let wka = [
        balanced(Workload::WKa, "16.0"),
        balanced(Workload::WKa, PACKET),
    ];
    let burst = [incast("16.0"), incast("4.0")];
    type Value = fn(&Sample) -> Option<f64>;
    let ratios: [(&str, Claim, [Key; 2], Value); 6] = [
        // 696 to 747 kB, and 363 to 378.
        (
            "WKc: largest queue, 16 BDP over 1",
            little(747.0 / 696.0),
            wkc,
            peak,
        ),
        (
            "WKc: mean queue, 16 BDP over 1",
            little(378.0 / 363.0),
            wkc,
            mean,
        ),
        (
            "WKa: largest queue, 16 BDP over a packet",
            ratio(1_016.0 / 501.0),
            wka,
            peak,
        ),
        (
            "WKa: mean queue, 16 BDP over a packet",
            ratio(435.0 / 220.0),
            wka,
            mean,
        ),
        (
            "WKc Incast: largest queue, 16 BDP over 4",
            ratio(5.7),
            burst,
            peak,
        ),
        (
            "WKc Incast: mean queue, 16 BDP over 4",
            ratio(1.8),
            burst,
            mean,
        ),
    ];
    for (name, claim, keys, value) in ratios {
        figure
            .rows
            .push(Row::judge(name, claim, over(keys, value), "ratio"));
    }
    figure.rows.push(Row::judge(
        "WKc Incast: 99 % slowdown of all, 16 BDP over 4",
        ratio(1.34),
        over(burst, Sample::p99),
        "ratio",
    ));
    for (key, runs) in swept.keys.iter().zip(&swept.runs) {
        let (workload, configuration, length) = key;
        let name = format!(
            "{} {}, UnschT = {length}",
            workload.name(),
            configuration.name()
        );
        levels(&mut figure, &name, runs);
    }
    let panels = slowdowns(&mut figure, &swept, |workload| {
        let name = |length: &&'static str| {
            let words = if *length == PACKET {
                "a packet"
            } else {
                length
            };
            (format!("UnschT = {words}"), balanced(workload, *length))
        };
        lengths.iter().map(name).collect()
    });
    let picture =
        Picture::new("Slowdown over UnschT, in BDP", "SIRD fig. 10", panels).panel_size(560, 280);
    Ok(reproduction(figure, picture))
}

/// A ratio of the paper's numbers.
fn ratio(value: f64) -> Claim {
    Claim::number(value, QUEUE_TOLERANCE)
}

/// A ratio near 1, of "little impact".
fn little(value: f64) -> Claim {
    Claim::number(value, 0.1)
}

/// Uses of priorities: names, and values of `first_priority`.
const PRIORITIES: [(&str, &str); 3] = [
    ("none", "sird.first_priority=none"),
    ("control", "sird.first_priority=control"),
    ("control and unscheduled", "sird.first_priority=unscheduled"),
];

/// Figure 11.
///
/// # Errors
/// See [`ExperimentError`].
pub fn fig11(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let workloads = [Workload::WKa, Workload::WKc];
    let mut cases = Vec::new();
    for workload in workloads {
        for (name, option) in PRIORITIES {
            let case = Case::new(label::SIRD, (Configuration::Balanced, workload), HALF);
            cases.push(((workload, name), case.with(&[option])?));
        }
    }
    let swept = Swept::run(settings, cases)?;
    let mut figure = settings.figure("sird-fig11", "Slowdown over priorities (SIRD fig. 11)");
    figure.scenario = vec!["balanced, 50 %".to_owned()];
    for workload in workloads {
        let over = |value: fn(&Sample) -> Option<f64>| {
            let [none, both] = ["none", "control and unscheduled"]
                .map(|name| swept.values(&(workload, name), value));
            estimate(&paired(&none, &both, |none, both| none / both))
        };
        let name = workload.name();
        figure.rows.push(Row::judge(
            format!("{name}: median slowdown of all, no priorities over two"),
            Claim::words("largely unaffected")
                .at_least(0.9)
                .at_most(1.1),
            over(|sample| sample.slowdown[ALL_SIZES].map(|[median, _]| median)),
            "ratio",
        ));
        figure.rows.push(Row::judge(
            format!("{name}: 99 % slowdown of all, no priorities over two"),
            Claim::words("the tail benefits in some cases").at_least(0.95),
            over(Sample::p99),
            "ratio",
        ));
        figure.rows.push(Row::judge(
            format!("{name}: mean queue, no priorities over two"),
            Claim::words("insensitive").at_least(0.9).at_most(1.1),
            over(|sample| Some(sample.mean_mb)),
            "ratio",
        ));
    }
    let panels = slowdowns(&mut figure, &swept, |workload| {
        PRIORITIES
            .map(|(name, _)| (name.to_owned(), (workload, name)))
            .into()
    });
    let picture = Picture::new(
        "Slowdown over the use of priorities",
        "SIRD fig. 11",
        panels,
    )
    .panel_size(560, 280);
    Ok(reproduction(figure, picture))
}
