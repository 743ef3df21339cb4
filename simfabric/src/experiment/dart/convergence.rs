//! Dart figures 9 and 15, §VI-D: round trips from a flow's begin until all have the fair rate.
//!
//! A round trip is that of a full packet and its acknowledgement on the idle path. A flow has the
//! fair rate from the last time that its throughput, over a window, was outside 15 % of it.

use ratewright_topology::{BigSwitch, HostId, Topology, TwoTierClos};

use super::{SYMMETRIC, colour, label, reproduction, transport};
use crate::FlowSpec;
use crate::experiment::monitor::MONITOR;
use crate::experiment::sweep::sweep;
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture};
use crate::run::Config;
use crate::time::{Span, Time};
use crate::workload::FlowStream;

/// Rate of all links, in bit/s: §VI-D lost it, and the loads' stands for it.
const RATE_BPS: u64 = 40_000_000_000;
/// Propagation over any link: §VI-D lost it.
const LINK_DELAY: Span = Span::from_us(1);
/// Begin of the flows that join.
const JOIN: Time = Time::from_ms(2);
/// Longest time after it.
const MOST: Span = Span::from_ms(4);
/// Full packets of each flow, at the fair rate, in a window of throughputs.
const WINDOW_PACKETS: f64 = 15.0;
/// Accepted distance from the fair rate.
const FAIR: f64 = 0.15;
/// Accepted relative distance from the paper's numbers of round trips.
const TOLERANCE: f64 = 0.3;

/// A network with flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
enum Scenario {
    /// Two senders, one receiver, one switch (figures 9 and 15).
    TwoToOne,
    /// Two senders and two receivers over a shared link (§VI-D, ExpressPass).
    Dumbbell,
    /// Ten senders to one receiver.
    TenToOne,
}

impl Scenario {
    const fn name(self) -> &'static str {
        match self {
            Self::TwoToOne => "two senders, one receiver",
            Self::Dumbbell => "two pairs over a shared link",
            Self::TenToOne => "ten senders, one receiver",
        }
    }

    fn topology(self) -> Result<Topology, ExperimentError> {
        let one_switch = |hosts| BigSwitch {
            racks: 1,
            hosts_per_rack: hosts,
            host_capacity_bps: RATE_BPS,
            host_delay_ns: LINK_DELAY.as_ns(),
            ..BigSwitch::default()
        };
        Ok(match self {
            Self::TwoToOne => one_switch(3).build()?,
            Self::TenToOne => one_switch(11).build()?,
            Self::Dumbbell => TwoTierClos {
                racks: 2,
                hosts_per_rack: 2,
                spines: 1,
                host_capacity_bps: RATE_BPS,
                fabric_capacity_bps: RATE_BPS,
                host_delay_ns: LINK_DELAY.as_ns(),
                fabric_delay_ns: LINK_DELAY.as_ns(),
                ecmp: SYMMETRIC,
                ..TwoTierClos::default()
            }
            .build()?,
        })
    }

    /// The flows: the first begins at once, the others at [`JOIN`].
    fn flows(self) -> Vec<FlowSpec> {
        let flow = |src, dst, at| FlowSpec::new(HostId(src), HostId(dst), FlowSpec::UNBOUNDED, at);
        match self {
            Self::TwoToOne => vec![flow(1, 0, Time::ZERO), flow(2, 0, JOIN)],
            Self::Dumbbell => vec![flow(0, 2, Time::ZERO), flow(1, 3, JOIN)],
            Self::TenToOne => {
                let others = (2..=10).map(|src| flow(src, 0, JOIN));
                [flow(1, 0, Time::ZERO)].into_iter().chain(others).collect()
            }
        }
    }

    /// Links of a path, each way.
    const fn links(self) -> u64 {
        match self {
            Self::TwoToOne | Self::TenToOne => 2,
            Self::Dumbbell => 4,
        }
    }
}

/// Scheme, scenario, and the paper's round trips, least and most.
type Case = (&'static str, Scenario, Option<(f64, f64)>);

const CASES: [Case; 6] = [
    (label::DART, Scenario::TwoToOne, Some((1.0, 1.0))),
    (label::RCP, Scenario::TwoToOne, Some((25.0, 30.0))),
    (label::DCQCN, Scenario::TwoToOne, None),
    (label::DART, Scenario::TenToOne, Some((1.0, 1.0))),
    (label::EXPRESS_PASS, Scenario::TenToOne, Some((20.0, 20.0))),
    (label::EXPRESS_PASS, Scenario::Dumbbell, Some((4.0, 4.0))),
];

/// Measurements of one run.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
struct ConvergenceSample {
    /// Round trips until all senders' rates are fair, for schemes with rates.
    of_rates: Option<f64>,
    /// Round trips until all throughputs are fair.
    of_throughputs: Option<f64>,
    /// Throughput of the first flow and of the last, by time in µs since the others began.
    series_gbps: [Vec<(f64, f64)>; 2],
}

fn sample(
    settings: &Settings,
    (label, scenario): (&str, Scenario),
    seed: u64,
) -> Result<ConvergenceSample, ExperimentError> {
    let topology = scenario.topology()?;
    let transport = transport(label, &topology, settings)?;
    let framing = transport.fabric.framing;
    let bits = |payload| f64::from(framing.wire_bytes(payload)) * 8.0;
    let hop =
        LINK_DELAY.as_secs_f64() * 2.0 + (bits(framing.mss_bytes) + bits(0)) / RATE_BPS as f64;
    let round_trip = Span::from_secs_f64(scenario.links() as f64 * hop);
    let flows = scenario.flows();
    let count = flows.len();
    let line = f64::from(framing.mss_bytes) * 8.0 / bits(framing.mss_bytes) * RATE_BPS as f64;
    let fair = line / count as f64;
    let stream: FlowStream = Box::new(flows.into_iter());
    let config = Config {
        seed,
        ..Config::default()
    };
    let mut run = transport.start(config, &topology, stream)?;
    MONITOR.run_until(&mut *run, JOIN)?;
    let delivered = |run: &mut dyn crate::scheme::Run| -> Vec<u64> {
        let results = run.results();
        results
            .flows
            .iter()
            .map(|flow| flow.delivered_bytes)
            .collect()
    };
    let mut history = vec![delivered(&mut *run)];
    let (mut rates_at, mut throughputs_at) = (None, None);
    let mut has_rates = true;
    let mut series: [Vec<(f64, f64)>; 2] = Default::default();
    // A quarter of a round trip is the resolution of both times.
    let step = Span(round_trip.0 / 4);
    let window = WINDOW_PACKETS * count as f64 * bits(framing.mss_bytes) / RATE_BPS as f64;
    let per_window = (window / step.as_secs_f64()).ceil() as usize;
    let is_fair = |value: f64, fair: f64| (value / fair - 1.0).abs() <= FAIR;
    let mut now = JOIN;
    while now < JOIN + MOST {
        now += step;
        MONITOR.run_until(&mut *run, now)?;
        let rates: Option<Vec<f64>> = (0..count as u32)
            .map(|flow| run.rate_bps(crate::FlowId(flow)))
            .collect();
        has_rates &= rates.is_some();
        let part = RATE_BPS as f64 / count as f64;
        let fair_now = rates.is_some_and(|rates| rates.iter().all(|rate| is_fair(*rate, part)));
        rates_at = rates_at.filter(|_| fair_now).or(fair_now.then_some(now));
        history.push(delivered(&mut *run));
        let Some(before) = history.len().checked_sub(per_window + 1) else {
            continue;
        };
        let (old, new) = (&history[before], &history[history.len() - 1]);
        let seconds = step.as_secs_f64() * per_window as f64;
        let gbps: Vec<f64> = (0..count)
            .map(|flow| {
                let old = old.get(flow).copied().unwrap_or(0);
                (new.get(flow).copied().unwrap_or(0) - old) as f64 * 8e-9 / seconds
            })
            .collect();
        let at = now.since(JOIN).as_us_f64();
        series[0].push((at, gbps[0]));
        series[1].push((at, gbps[count - 1]));
        let fair_now = gbps.iter().all(|gbps| is_fair(*gbps, fair * 1e-9));
        // The window's beginning is the first time of fair throughput.
        let begin = Time(now.0 - step.0 * per_window as u64).max(JOIN);
        throughputs_at = throughputs_at
            .filter(|_| fair_now)
            .or(fair_now.then_some(begin));
    }
    let in_round_trips = |at: Time| at.since(JOIN).as_secs_f64() / round_trip.as_secs_f64();
    Ok(ConvergenceSample {
        of_rates: rates_at.filter(|_| has_rates).map(in_round_trips),
        of_throughputs: throughputs_at.map(in_round_trips),
        series_gbps: series,
    })
}

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let runs = CASES.len() * settings.seeds().count();
    MONITOR.expect(runs, JOIN.since(Time::ZERO) + MOST);
    let samples = sweep(settings, &CASES, |(label, scenario, _), seed| {
        sample(settings, (label, *scenario), seed)
    })?;
    let mut figure = settings.figure(
        "dart-fig9",
        "Round trips until flows share a link (Dart fig. 9, fig. 15, §VI-D)",
    );
    figure.scenario = vec![
        "links of 40 Gbit/s and 1 µs; one flow, then one or nine more at once".to_owned(),
        "fair: within 15 % of the fair rate from then on; throughputs over 15 packets of each flow"
            .to_owned(),
    ];
    for ((label, scenario, paper), runs) in CASES.iter().zip(&samples) {
        let claim = || paper.map_or(Claim::nothing(), |range| Claim::range(range, TOLERANCE));
        let by_rates = runs.0.iter().all(|sample| sample.of_rates.is_some());
        for (what, value, claims) in [
            (
                "senders' rates are fair",
                (|s| s.of_rates) as fn(&ConvergenceSample) -> Option<f64>,
                by_rates,
            ),
            ("throughputs are fair", |s| s.of_throughputs, !by_rates),
        ] {
            let claim = if claims { claim() } else { Claim::nothing() };
            figure.rows.push(Row::judge(
                format!("{}, {label}: until {what}", scenario.name()),
                claim,
                runs.estimate(value),
                "round trips",
            ));
        }
    }
    let panels = CASES
        .iter()
        .zip(&samples)
        .map(|((label, scenario, _), runs)| {
            let curves = runs.0.first().into_iter().flat_map(|sample| {
                let [first, last] = &sample.series_gbps;
                let until = |points: &Vec<(f64, f64)>| {
                    points
                        .iter()
                        .copied()
                        .filter(|(at, _)| *at <= 1_000.0)
                        .collect()
                };
                [
                    Curve::new("the first flow", until(first)).colour(colour(label)),
                    Curve::new("the last flow", until(last))
                        .colour(colour(label))
                        .dashed(),
                ]
            });
            Panel::curves(
                format!("{label}: {}", scenario.name()),
                Axis::linear("µs since the others began"),
                Axis::linear("throughput (Gbit/s)").starting_at(0.0),
                curves.collect(),
            )
        });
    let picture = Picture::new(
        "Flows that join another one",
        "Dart fig. 9, fig. 15, §VI-D",
        panels.collect(),
    )
    .columns(3)
    .panel_size(420, 280);
    figure.data = serde_json::json!({ "cases": CASES, "samples": samples });
    Ok(reproduction(figure, picture))
}
