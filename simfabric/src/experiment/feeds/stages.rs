//! One picture per feed: a link that Ratewright shares while external flows come and go, with the
//! feed and without.
//!
//! | experiment | shared link | Ratewright | external, from 2 to 6 ms |
//! |---|---|---|---|
//! | `int` | a rack's only uplink | two flows to two hosts | two DCTCP flows to two others |
//! | `receivers` | a receiver's | one flow | three DCTCP flows |
//! | `credit` | a receiver's | one flow | three SIRD flows |

use ratewright_topology::{HostId, LinkId, PathChoice, Topology};
use serde::{Deserialize, Serialize};

use super::{Feeds, HOST_BPS, topology, transport};
use crate::experiment::monitor::MONITOR;
use crate::experiment::sweep::{CasePlan, Replicas, sweep};
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::flow::{FlowId, FlowSpec};
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture, style};
use crate::run::Config;
use crate::time::{Span, Time};

/// Time in which external flows are there.
const EXTERNAL: [Time; 2] = [Time::from_ms(2), Time::from_ms(6)];
/// End of a run.
const END: Time = Time::from_ms(8);
/// Interval of samples.
const EVERY: Span = Span::from_us(50);
/// Time after a change that belongs to neither state.
const SETTLING: Span = Span::from_ms(1);

/// A stage: who shares which link.
struct Stage {
    /// Name of the experiment and figure.
    name: &'static str,
    title: &'static str,
    feed: Feeds,
    /// Label of the transport.
    scheme: &'static str,
    /// Senders and receivers of both schemes. The first flow passes the shared link.
    flows: [&'static [(u32, u32)]; 2],
    /// Link of the first flow's path that is shared.
    shared: usize,
    /// Rate of links between switches, in bit/s.
    fabric_bps: u64,
}

const INT: Stage = Stage {
    name: "feeds-int",
    title: "INT: a shared uplink",
    feed: Feeds::Int,
    scheme: "DCTCP",
    flows: [&[(0, 4), (1, 5)], &[(2, 6), (3, 7)]],
    shared: 1,
    fabric_bps: HOST_BPS,
};
const RECEIVERS: Stage = Stage {
    name: "feeds-receivers",
    title: "Receiver counts: a receiver's link",
    feed: Feeds::Receivers,
    scheme: "DCTCP",
    flows: [&[(0, 4)], &[(1, 4), (2, 4), (3, 4)]],
    shared: 3,
    fabric_bps: 4 * HOST_BPS,
};
const CREDIT: Stage = Stage {
    name: "feeds-credit",
    title: "Credit: a receiver's link",
    feed: Feeds::Credit,
    scheme: "SIRD",
    flows: [&[(0, 4)], &[(1, 4), (2, 4), (3, 4)]],
    shared: 3,
    fabric_bps: 4 * HOST_BPS,
};

/// Course of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Course {
    times_ms: Vec<f64>,
    queue_kb: Vec<f64>,
    /// Goodput of Ratewright and of the other scheme.
    goodput_gbps: [Vec<f64>; 2],
}

impl Course {
    /// Mean of a series in a time.
    fn mean(&self, series: &[f64], [from, to]: [Time; 2]) -> Option<f64> {
        let ms = |time: Time| time.since(Time::ZERO).as_us_f64() / 1e3;
        let (from, to) = (ms(from), ms(to));
        let within = self.times_ms.iter().zip(series);
        let within: Vec<f64> = within
            .filter(|(at, _)| (from..=to).contains(*at))
            .map(|(_, value)| *value)
            .collect();
        crate::report::stats::mean(&within)
    }
}

/// Runs the picture of INT.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run_int(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    run(&INT, settings)
}

/// Runs the picture of receiver counts.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run_receivers(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    run(&RECEIVERS, settings)
}

/// Runs the picture of credit.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run_credit(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    run(&CREDIT, settings)
}

fn course(
    stage: &Stage,
    settings: &Settings,
    topology: &Topology,
    feeds: Feeds,
    seed: u64,
) -> Result<Course, ExperimentError> {
    let transport = transport(stage.scheme, feeds, topology, settings)?;
    let [own, external] = stage.flows;
    let mut flows = Vec::new();
    // Some microseconds apart, by the seed.
    let apart = |number: usize| Span::from_us((seed % 7 + 3) * number as u64);
    for (number, (src, dst)) in own.iter().enumerate() {
        let start = Time::ZERO + apart(number);
        flows.push(FlowSpec::new(
            HostId(*src),
            HostId(*dst),
            FlowSpec::UNBOUNDED,
            start,
        ));
    }
    for (number, (src, dst)) in external.iter().enumerate() {
        let start = EXTERNAL[0] + apart(number);
        flows.push(FlowSpec {
            label: 1,
            stop: EXTERNAL[1],
            ..FlowSpec::new(HostId(*src), HostId(*dst), FlowSpec::UNBOUNDED, start)
        });
    }
    let count = flows.len() as u32;
    let (src, dst) = own[0];
    let path = topology.path(HostId(src), HostId(dst), PathChoice::Hash(0))?;
    let shared: Vec<LinkId> = path.iter().copied().collect();
    let config = Config {
        seed,
        sample_every: Some(EVERY),
        sampled_flows: count,
        watched: vec![shared[stage.shared]],
        ..Config::default()
    };
    let mut run = transport.start(config, topology, Box::new(flows.into_iter()))?;
    MONITOR.run_until(&mut *run, END)?;
    let results = run.results();
    results.conservation?;
    let Some(series) = results.series else {
        return Ok(Course {
            times_ms: Vec::new(),
            queue_kb: Vec::new(),
            goodput_gbps: Default::default(),
        });
    };
    let sum = |flows: std::ops::Range<u32>| {
        let mut sum = vec![0.0; series.times.len()];
        for flow in flows {
            let goodput = series.goodput_bps(FlowId(flow));
            sum.iter_mut()
                .zip(goodput)
                .for_each(|(sum, bps)| *sum += bps / 1e9);
        }
        sum
    };
    let own = own.len() as u32;
    let ms = |at: &Time| at.since(Time::ZERO).as_us_f64() / 1e3;
    Ok(Course {
        times_ms: series.times.iter().map(ms).collect(),
        queue_kb: series
            .queue_bytes
            .iter()
            .map(|row| row[0] as f64 / 1e3)
            .collect(),
        goodput_gbps: [sum(0..own), sum(own..count)],
    })
}

fn run(stage: &Stage, settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let topology = topology(2, 4, 1, stage.fabric_bps)?;
    let cases = [Feeds::None, stage.feed];
    let plan = |feeds: &Feeds| {
        let transport = transport(stage.scheme, *feeds, &topology, settings)?;
        Ok(CasePlan {
            name: format!("{}-{}", stage.name, feeds.name()),
            key: transport.key(),
            time: END.since(Time::ZERO),
        })
    };
    let courses = sweep(settings, &cases, plan, |feeds, seed| {
        course(stage, settings, &topology, *feeds, seed)
    })?;
    let mut figure = settings.figure(stage.name, stage.title);
    figure.scenario = vec![
        format!(
            "8 hosts in 2 racks under one spine, links of 10 and {} Gbit/s",
            stage.fabric_bps / 1_000_000_000
        ),
        format!("{} flows of Ratewright without end", stage.flows[0].len()),
        format!(
            "{} flows of {} from 2 to 6 ms",
            stage.flows[1].len(),
            stage.scheme
        ),
        "readings every 100 µs; means over 1 ms after each change".to_owned(),
    ];
    let shared = [EXTERNAL[0] + SETTLING, EXTERNAL[1]];
    let alone = [EXTERNAL[1] + SETTLING, END];
    for (feeds, runs) in cases.iter().zip(&courses) {
        type Of = fn(&Course) -> &[f64];
        let values: [(&str, Of, [Time; 2], &str); 5] = [
            ("queue, shared", |c| &c.queue_kb, shared, "kB"),
            (
                "Ratewright, shared",
                |c| &c.goodput_gbps[0],
                shared,
                "Gbit/s",
            ),
            (
                "the other, shared",
                |c| &c.goodput_gbps[1],
                shared,
                "Gbit/s",
            ),
            ("queue, alone again", |c| &c.queue_kb, alone, "kB"),
            (
                "Ratewright, alone again",
                |c| &c.goodput_gbps[0],
                alone,
                "Gbit/s",
            ),
        ];
        for (what, of, time, unit) in values {
            let mean = runs.estimate(|course| course.mean(of(course), time));
            let name = format!("{}: {what}", feeds.name());
            figure
                .rows
                .push(Row::judge(name, Claim::nothing(), mean, unit));
        }
    }
    figure.data = serde_json::json!({ "cases": cases, "courses": courses });
    let picture = picture(stage, &cases, &courses);
    Ok(super::reproduction(figure, picture))
}

/// Course of the first seed.
fn picture(stage: &Stage, cases: &[Feeds], courses: &[Replicas<Course>]) -> Picture {
    let first = || {
        cases
            .iter()
            .zip(courses)
            .filter_map(|(feeds, runs)| Some((feeds, runs.first()?)))
    };
    let time = || Axis::linear("time (ms)").over(0.0, 8.0);
    let points = |times: &[f64], values: &[f64]| -> Vec<(f64, f64)> {
        times.iter().copied().zip(values.iter().copied()).collect()
    };
    let queues = first().enumerate().map(|(i, (feeds, course))| {
        Curve::new(feeds.name(), points(&course.times_ms, &course.queue_kb))
            .colour(style::colour(i))
    });
    let mut panels = vec![Panel::curves(
        "Queue of the shared link",
        time(),
        Axis::linear("queue (kB)").starting_at(0.0),
        queues.collect(),
    )];
    for (feeds, course) in first() {
        let names = ["Ratewright", stage.scheme];
        let curves = names.iter().zip(&course.goodput_gbps).enumerate();
        let curves = curves.map(|(i, (name, goodput))| {
            Curve::new(*name, points(&course.times_ms, goodput)).colour(style::colour(i + 2))
        });
        panels.push(Panel::curves(
            format!("Goodput: {}", feeds.name()),
            time(),
            Axis::linear("goodput (Gbit/s)").over(0.0, 10.0),
            curves.collect(),
        ));
    }
    let subtitle = format!(
        "{} flows come at 2 ms and go at 6 ms; first seed",
        stage.scheme
    );
    Picture::new(stage.title, &subtitle, panels)
        .columns(3)
        .panel_size(420, 300)
}
