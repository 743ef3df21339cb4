//! FNCC figures 14 and 15: slowdown by size of web search and Hadoop on the fat tree at load 0.5,
//! under DCQCN, HPCC and FNCC.
//!
//! Flows are between random hosts as a Poisson process. Those that start in the counted time after
//! the warm-up count; the load stays while they finish, up to a bound, and one that is not finished
//! then counts with its age. Slowdown is the time to the receiver's last byte over that on an empty
//! network without telemetry.

use std::ops::RangeInclusive;

use ratewright_topology::{HostId, Topology};

use super::scene::fat_tree;
use super::{colour, drops_row, label, transport};
use crate::experiment::comparison::is_stationary;
use crate::experiment::monitor::MONITOR;
use crate::experiment::schedule::Schedule;
use crate::experiment::sweep::{CasePlan, Replicas, sweep};
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::estimate::Estimate;
use crate::report::figure::{Claim, Figure, Row, Verdict};
use crate::report::ideal;
use crate::report::plot::{Axis, Bars, Panel, Picture};
use crate::report::stats::{mean, quantile};
use crate::run::Config;
use crate::time::{Span, Time};
use crate::workload::{Poisson, SizeDistribution};

/// Rate of all links (§5.5), in bit/s.
const RATE_BPS: u64 = 100_000_000_000;
/// Load of hosts' links (§5.5).
const LOAD: f64 = 0.5;
/// Compared schemes, the paper's own last.
const LABELS: [&str; 3] = [label::DCQCN, label::HPCC, label::FNCC];
/// Groups of sizes: name, from, up to. The first two together are the paper's short flows.
const GROUPS: [(&str, u64, u64); 5] = [
    ("up to 10 kB", 0, 10_000),
    ("10 to 100 kB", 10_001, 100_000),
    ("0.1 to 1 MB", 100_001, 1_000_000),
    ("above 1 MB", 1_000_001, u64::MAX),
    ("up to 100 kB", 0, 100_000),
];
/// Index of the group of 0.1 to 1 MB.
const MIDDLE: usize = 2;
/// Indices of the groups that LHCS holds back in the long form.
const HELD: RangeInclusive<usize> = 1..=MIDDLE;
/// Statistics of the figures' panels.
const STATISTICS: [&str; 4] = ["mean", "median", "95 %", "99 %"];
/// Interval at which active flows are counted, for the warm-up's test.
const SAMPLE: Span = Span::from_us(20);
/// Accepted relative distance from the paper's reductions.
const TOLERANCE: f64 = 0.25;

/// A workload with the paper's numbers.
struct Workload {
    name: &'static str,
    /// Published sizes.
    sizes: &'static str,
    figure: &'static str,
    title: &'static str,
    /// Group and statistic of the paper's reductions, in per cent, and the schemes that they are
    /// against.
    paper: (usize, usize, [(&'static str, f64); 2]),
    /// Rows that disagree: group, statistic, the other scheme, and the measured cause.
    disagrees: &'static [(usize, usize, &'static str, &'static str)],
}

impl Workload {
    /// Records the verdict of a row that compares FNCC with another scheme. Seeds of the short form
    /// leave more of them undecided.
    fn record(&self, quick: bool, row: Row, group: usize, statistic: usize, other: &str) -> Row {
        let of = (group, statistic, other);
        let known = self.disagrees.iter().find(|d| (d.0, d.1, d.2) == of);
        match known {
            Some((.., cause)) => row.disagrees_because(*cause),
            None if !quick && HELD.contains(&group) && row.verdict == Verdict::Disagrees => {
                row.disagrees_because(LHCS_HOLDS)
            }
            // DCQCN's distance is many times the spread, but for flows of 0.1 to 1 MB.
            None if !quick || (other == label::DCQCN && group != MIDDLE) => row,
            None => row.undecided_because(SPREAD),
        }
    }
}

/// Reason why rows may stay undecided.
const SPREAD: &str = "the schemes differ by less than the spread over seeds";
/// Cause of FNCC's slowdown of flows of 0.1 to 1 MB.
const LHCS_HOLDS: &str = "LHCS sets a flow to β B/N for all N flows of its receiver, though \
                          others of them are limited elsewhere or nearly done, and it acts on the \
                          load between two acknowledgements; without it FNCC's is at or below \
                          HPCC's";
/// Cause of the reduction of short flows against HPCC.
const SHORT_FLOWS: &str = "flows of up to 100 kB are sent before their first acknowledgement \
                           comes, under both schemes; what differs is the queues that they meet, \
                           which FNCC shortens by a quarter (fig. 10)";
/// Cause of the median of long flows against HPCC.
const LONG_FLOWS: &str = "LHCS costs some flows what others gain: the mean is below HPCC's, and \
                          without LHCS the median is, too";
/// Cause of the median of long flows against DCQCN.
const WIDER_SPREAD: &str = "DCQCN's slowdowns are spread wider: its median of long flows is below \
                            HPCC's, too, its mean above FNCC's by a third or more, and its 99 % \
                            twice FNCC's";

/// Returns the times of a run.
fn schedule(quick: bool) -> Schedule {
    let ms = Span::from_ms;
    if quick {
        Schedule {
            warm_up: ms(1),
            counted: ms(3),
            most_drain: ms(6),
            drain: ms(1),
        }
    } else {
        Schedule {
            warm_up: ms(10),
            counted: ms(20),
            most_drain: ms(40),
            drain: ms(5),
        }
    }
}

/// Measurements of one scheme.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SlowdownSample {
    /// Slowdown by group of `GROUPS` and by `STATISTICS`.
    pub slowdown: [[Option<f64>; 4]; 5],
    /// Flows counted, by group.
    pub flows: [usize; 5],
    /// Counted flows that did not finish.
    pub unfinished: usize,
    /// True if the number of active flows was stationary from the warm-up's end on.
    pub stationary: bool,
    /// Largest queue of any port, in kB.
    pub peak_kb: f64,
    /// Pauses that switches sent.
    pub pauses: u64,
    /// Packets that were dropped.
    pub drops: u64,
}

fn sample(
    settings: &Settings,
    topology: &Topology,
    (sizes, label): (&SizeDistribution, &str),
    seed: u64,
) -> Result<SlowdownSample, ExperimentError> {
    let schedule = schedule(settings.quick);
    let transport = transport(label, topology, settings)?;
    let bound = Time::ZERO + schedule.most();
    let hosts = topology.hosts().len() as u32;
    let flows = Poisson::new(
        hosts,
        RATE_BPS,
        LOAD,
        sizes.clone(),
        (Time::ZERO, bound),
        seed,
    )?;
    let config = Config {
        seed,
        sample_every: Some(SAMPLE),
        ..Config::default()
    };
    let mut run = transport.start(config, topology, Box::new(flows))?;
    MONITOR.run_until(&mut *run, schedule.last())?;
    let stationary = (run.series()).is_some_and(|s| is_stationary(s, schedule.begin()));
    let results = schedule.drain(&mut *run)?;
    let mut by_group: [Vec<f64>; 5] = Default::default();
    let mut unfinished = 0;
    for flow in results.flows.iter().filter(|flow| schedule.counts(flow)) {
        let ends: (HostId, HostId) = (flow.spec.src, flow.spec.dst);
        let fabric = &transport.fabric;
        let (framing, host_delay) = (fabric.framing, fabric.host_delay);
        let empty = ideal::completion_time(topology, framing, host_delay, ends, flow.spec.bytes)?;
        // It will take as long as on an empty network at least.
        let age = || results.now.since(flow.spec.start).max(empty);
        unfinished += usize::from(flow.finished.is_none());
        let slowdown = flow.fct().unwrap_or_else(age).as_us_f64() / empty.as_us_f64();
        let own = GROUPS.iter().zip(&mut by_group);
        for ((_, from, up_to), group) in own {
            if (*from..=*up_to).contains(&flow.spec.bytes) {
                group.push(slowdown);
            }
        }
    }
    let peak = results.ports.iter().map(|port| port.stats.max_bytes).max();
    Ok(SlowdownSample {
        flows: std::array::from_fn(|group| by_group[group].len()),
        slowdown: by_group.map(|mut values| {
            let mean = mean(&values);
            let mut at = |share| quantile(&mut values, share);
            [mean, at(0.5), at(0.95), at(0.99)]
        }),
        unfinished,
        stationary,
        peak_kb: peak.unwrap_or(0) as f64 / 1e3,
        pauses: results.switches.iter().map(|switch| switch.pauses).sum(),
        drops: results.drops(),
    })
}

/// Runs figure 14.
///
/// # Errors
/// See [`ExperimentError`].
pub fn web_search(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    reproduce(
        settings,
        &Workload {
            name: "web search",
            sizes: "web-search",
            figure: "fncc-fig14",
            title: "Slowdown of web search (FNCC fig. 14)",
            paper: (3, 1, [(label::HPCC, 12.4), (label::DCQCN, 42.8)]),
            disagrees: &[
                (3, 1, label::HPCC, LONG_FLOWS),
                (3, 1, label::DCQCN, WIDER_SPREAD),
                (MIDDLE, 0, label::HPCC, LHCS_HOLDS),
                (MIDDLE, 0, label::DCQCN, LHCS_HOLDS),
            ],
        },
    )
}

/// Runs figure 15.
///
/// # Errors
/// See [`ExperimentError`].
pub fn hadoop(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    reproduce(
        settings,
        &Workload {
            name: "Hadoop",
            sizes: "hadoop",
            figure: "fncc-fig15",
            title: "Slowdown of Hadoop (FNCC fig. 15)",
            paper: (4, 2, [(label::HPCC, 27.4), (label::DCQCN, 88.9)]),
            disagrees: &[
                (4, 2, label::HPCC, SHORT_FLOWS),
                (MIDDLE, 0, label::HPCC, LHCS_HOLDS),
                (MIDDLE, 3, label::DCQCN, LHCS_HOLDS),
            ],
        },
    )
}

/// Runs published sizes on the fat tree under these schemes.
pub(super) fn samples(
    settings: &Settings,
    name: &str,
    labels: &[&'static str],
) -> Result<Vec<Replicas<SlowdownSample>>, ExperimentError> {
    let topology = fat_tree(RATE_BPS)?;
    let sizes = SizeDistribution::published(name)?;
    let times = schedule(settings.quick);
    let plan = |label: &&str| {
        Ok(CasePlan {
            name: format!("{name}-{label}"),
            key: format!(
                "{times:?}\n{}",
                transport(label, &topology, settings)?.key()
            ),
            time: times.most(),
        })
    };
    sweep(settings, labels, plan, |label, seed| {
        sample(settings, &topology, (&sizes, label), seed)
    })
}

/// Scenario in words.
pub(super) fn scenario(settings: &Settings, workload: &str) -> [String; 3] {
    let schedule = schedule(settings.quick);
    let ms = |span: Span| span.as_us_f64() / 1e3;
    [
        "fat tree of k = 8: 128 hosts, all links 100 Gbit/s and 1.5 µs, symmetric ECMP".to_owned(),
        format!("{workload} between random hosts at load {LOAD}"),
        format!(
            "flows that start from {} to {} ms",
            ms(schedule.warm_up),
            ms(schedule.warm_up + schedule.counted)
        ),
    ]
}

fn reproduce(settings: &Settings, of: &Workload) -> Result<Reproduction, ExperimentError> {
    let samples = samples(settings, of.sizes, &LABELS)?;
    let mut figure = settings.figure(of.figure, of.title);
    figure.scenario = scenario(settings, of.name).into();
    judge(&mut figure, of, &samples);
    for (label, runs) in LABELS.iter().zip(&samples) {
        let drops = runs.estimate(|sample| Some(sample.drops as f64));
        figure.rows.push(drops_row(label, drops));
    }
    measured(&mut figure, &LABELS, &samples);
    figure.data = serde_json::json!({ "cases": LABELS, "samples": samples });
    let picture = picture(of, &samples);
    Ok(Reproduction { figure, picture })
}

fn judge(figure: &mut Figure, of: &Workload, samples: &[Replicas<SlowdownSample>]) {
    let Some((fncc, others)) = samples.split_last() else {
        return;
    };
    let others = || LABELS.iter().zip(others);
    let (group, statistic, paper) = of.paper;
    for (label, reduction) in paper {
        let Some((_, other)) = others().find(|(other, _)| **other == label) else {
            continue;
        };
        let row = Row::judge(
            format!(
                "{}: reduction of the {} slowdown, FNCC against {label}",
                GROUPS[group].0, STATISTICS[statistic]
            ),
            Claim::number(reduction, TOLERANCE),
            fncc.paired(other, |fncc, other| {
                let [own, other] = [fncc, other].map(|s| s.slowdown[group][statistic]);
                Some(100.0 * (1.0 - own? / other?))
            }),
            "%",
        );
        figure
            .rows
            .push(of.record(figure.quick, row, group, statistic, label));
    }
    for (group, (name, ..)) in GROUPS.iter().enumerate().take(4) {
        for (statistic, words) in [(0, "lowest average"), (3, "lowest tail")] {
            for (label, other) in others() {
                let row = Row::judge(
                    format!(
                        "{name}: {} slowdown, FNCC over {label}",
                        STATISTICS[statistic]
                    ),
                    Claim::words(words).at_most(1.0),
                    fncc.paired(other, |fncc, other| {
                        let [own, other] = [fncc, other].map(|s| s.slowdown[group][statistic]);
                        Some(own? / other?)
                    }),
                    "ratio",
                );
                figure
                    .rows
                    .push(of.record(figure.quick, row, group, statistic, label));
            }
        }
    }
}

/// Adds what was measured, without a claim.
pub(super) fn measured(figure: &mut Figure, labels: &[&str], samples: &[Replicas<SlowdownSample>]) {
    for (group, (name, ..)) in GROUPS.iter().enumerate() {
        for (statistic, of) in STATISTICS.iter().enumerate() {
            for (label, runs) in labels.iter().zip(samples) {
                figure.rows.push(Row::judge(
                    format!("{name}, {label}: {of} slowdown"),
                    Claim::nothing(),
                    runs.estimate(|s| s.slowdown[group][statistic]),
                    "",
                ));
            }
        }
    }
    for (label, runs) in labels.iter().zip(samples) {
        for (what, unit, value) in [
            (
                "largest queue",
                "kB",
                (|s| s.peak_kb) as fn(&SlowdownSample) -> f64,
            ),
            ("pauses", "pauses", |s| s.pauses as f64),
        ] {
            figure.rows.push(Row::judge(
                format!("{label}: {what}"),
                Claim::nothing(),
                runs.estimate(|sample| Some(value(sample))),
                unit,
            ));
        }
        let counted = runs.total(|s| s.flows[3] + s.flows[2] + s.flows[4]);
        let unfinished = runs.total(|s| s.unfinished);
        let unstable = runs.total(|s| usize::from(!s.stationary));
        figure.notes.push(format!(
            "{label}: {unfinished} of {counted} flows were unfinished at the end and count with \
             their age; in {unstable} of {} runs the number of active flows was not stationary \
             from the warm-up's end on",
            runs.count()
        ));
    }
}

/// Slowdown by size, a panel for each statistic.
pub(super) fn panels(labels: &[&str], samples: &[Replicas<SlowdownSample>]) -> Vec<Panel> {
    let groups: Vec<String> = GROUPS[..4].iter().map(|group| group.0.to_owned()).collect();
    let panels = STATISTICS.iter().enumerate().map(|(statistic, name)| {
        let bars = labels.iter().zip(samples).map(|(label, runs)| {
            let values: Vec<Option<Estimate>> = (0..groups.len())
                .map(|group| runs.estimate(|s| s.slowdown[group][statistic]))
                .collect();
            Bars::estimates(*label, &values).colour(colour(label))
        });
        Panel::bars(
            format!("Slowdown: {name}"),
            "size of flows",
            Axis::linear("Slowdown"),
            groups.clone(),
            bars.collect(),
        )
    });
    panels.collect()
}

fn picture(of: &Workload, samples: &[Replicas<SlowdownSample>]) -> Picture {
    Picture::new(
        format!("Slowdown of {} on a fat tree at load {LOAD}", of.name),
        of.title,
        panels(&LABELS, samples),
    )
    .columns(2)
    .panel_size(560, 320)
}
