//! Dart figures 9 and 15, §VI-D: round trips from a flow's begin until all have the fair rate.
//!
//! A round trip is that of a full packet and its acknowledgement on the idle path. A flow has the
//! fair rate from the last time that its throughput, over a window, was outside 15 % of it.
//!
//! ExpressPass's senders have no rate that could be read, and links of 1 µs have too few packets in
//! a round trip for their throughput to tell. Its round trips are of 100 µs here, 300 packets at
//! 40 Gbit/s, as in its authors' talk. A flow varies by a third for as long as it lasts, since
//! switches drop credit by chance. The throughputs of many runs are therefore taken together.

use ratewright_topology::{BigSwitch, HostId, Topology, TwoTierClos};

use super::{SYMMETRIC, colour, label, reproduction, transport};
use crate::FlowSpec;
use crate::experiment::monitor::MONITOR;
use crate::experiment::sweep::{CasePlan, sweep};
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::plan::PlannedTransport;
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture};
use crate::run::Config;
use crate::time::{Span, Time};
use crate::workload::FlowStream;

/// Rate of all links, in bit/s: §VI-D lost it, and the loads' stands for it.
const RATE_BPS: u64 = 40_000_000_000;
/// Propagation over any link: §VI-D lost it.
const LINK_DELAY: Span = Span::from_us(1);
/// Propagation on ExpressPass's path and back.
const LONG_TRIP: Span = Span::from_us(100);
/// Begin of the flows that join.
const JOIN: Time = Time::from_ms(2);
/// Longest time after it.
const MOST: Span = Span::from_ms(4);
/// Full packets of each flow, at the fair rate, in a window of throughputs.
const WINDOW_PACKETS: f64 = 15.0;
/// Runs whose throughputs are taken together, of a scheme whose single flows vary by more than the
/// accepted distance for as long as they last.
const RUNS: u64 = 128;
/// Quarters of a round trip in a window of several runs' throughputs.
const MEAN_WINDOW_STEPS: usize = 8;
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

    /// Propagation over each of its links under a scheme.
    fn link_delay(self, label: &str) -> Span {
        if label == label::EXPRESS_PASS {
            Span(LONG_TRIP.0 / (2 * self.links()))
        } else {
            LINK_DELAY
        }
    }

    fn topology(self, link_delay: Span) -> Result<Topology, ExperimentError> {
        let one_switch = |hosts| BigSwitch {
            racks: 1,
            hosts_per_rack: hosts,
            host_capacity_bps: RATE_BPS,
            host_delay_ns: link_delay.as_ns(),
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
                host_delay_ns: link_delay.as_ns(),
                fabric_delay_ns: link_delay.as_ns(),
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

/// Returns the number of runs behind a sample.
fn runs(label: &str) -> u64 {
    if label == label::EXPRESS_PASS {
        RUNS
    } else {
        1
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
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct ConvergenceSample {
    /// Round trips until all senders' rates are fair, for schemes with rates.
    of_rates: Option<f64>,
    /// Round trips until all throughputs are fair.
    of_throughputs: Option<f64>,
    /// Throughput of the first flow and of the last, by time in µs since the others began.
    series_gbps: [Vec<(f64, f64)>; 2],
}

/// Bytes that receivers have got of each flow, step by step from [`JOIN`] on; for schemes with
/// rates, the steps at which all senders' are fair.
struct History {
    bytes: Vec<Vec<u64>>,
    rates_are_fair: Option<Vec<bool>>,
}

impl History {
    /// Runs the flows once.
    fn record(
        transport: &PlannedTransport,
        topology: &Topology,
        scenario: Scenario,
        step: Span,
        seed: u64,
    ) -> Result<Self, ExperimentError> {
        let flows = scenario.flows();
        let count = flows.len();
        let config = Config {
            seed,
            ..Config::default()
        };
        let stream: FlowStream = Box::new(flows.into_iter());
        let mut run = transport.start(config, topology, stream)?;
        let delivered = |run: &mut dyn crate::scheme::Run| -> Vec<u64> {
            let flows = run.results().flows;
            let mut bytes: Vec<u64> = flows.iter().map(|flow| flow.delivered_bytes).collect();
            // The others have not begun at first.
            bytes.resize(count, 0);
            bytes
        };
        MONITOR.run_until(&mut *run, JOIN)?;
        let mut bytes = vec![delivered(&mut *run)];
        let mut rates_are_fair = Some(Vec::new());
        let part = RATE_BPS as f64 / count as f64;
        let mut now = JOIN;
        while now < JOIN + MOST {
            now += step;
            MONITOR.run_until(&mut *run, now)?;
            bytes.push(delivered(&mut *run));
            let rates: Option<Vec<f64>> = (0..count as u32)
                .map(|flow| run.rate_bps(crate::FlowId(flow)))
                .collect();
            rates_are_fair = rates_are_fair.zip(rates).map(|(mut fair, rates)| {
                fair.push(rates.iter().all(|rate| is_fair(*rate, part)));
                fair
            });
        }
        Ok(Self {
            bytes,
            rates_are_fair,
        })
    }

    /// Adds another run's: throughputs are then those of both together.
    fn add(&mut self, other: Self) {
        for (own, other) in self.bytes.iter_mut().zip(other.bytes) {
            own.iter_mut()
                .zip(other)
                .for_each(|(own, other)| *own += other);
        }
        let both = self.rates_are_fair.take().zip(other.rates_are_fair);
        self.rates_are_fair = both.map(|(own, other)| {
            let steps = own.into_iter().zip(other);
            steps.map(|(own, other)| own && other).collect()
        });
    }
}

/// Returns true if a value is within the accepted distance from the fair one.
fn is_fair(value: f64, fair: f64) -> bool {
    (value / fair - 1.0).abs() <= FAIR
}

/// Returns the index of the first element from which on all are true.
fn true_from(steps: &[bool]) -> Option<usize> {
    let from = steps.iter().rposition(|fair| !fair).map_or(0, |i| i + 1);
    (from < steps.len()).then_some(from)
}

fn sample(
    settings: &Settings,
    (label, scenario): (&str, Scenario),
    seed: u64,
) -> Result<ConvergenceSample, ExperimentError> {
    let link_delay = scenario.link_delay(label);
    let topology = scenario.topology(link_delay)?;
    let transport = transport(label, &topology, settings)?;
    let framing = transport.fabric.framing;
    let bits = |payload| f64::from(framing.wire_bytes(payload)) * 8.0;
    let hop =
        link_delay.as_secs_f64() * 2.0 + (bits(framing.mss_bytes) + bits(0)) / RATE_BPS as f64;
    let round_trip = Span::from_secs_f64(scenario.links() as f64 * hop);
    // A quarter of a round trip is the resolution of both times.
    let step = Span(round_trip.0 / 4);
    let record = |run: u64| {
        let seed = seed.wrapping_add(run << 32);
        History::record(&transport, &topology, scenario, step, seed)
    };
    let mut history = record(0)?;
    for run in 1..runs(label) {
        history.add(record(run)?);
    }
    let count = history.bytes[0].len();
    let window = WINDOW_PACKETS * count as f64 * bits(framing.mss_bytes) / RATE_BPS as f64;
    let least_steps = if runs(label) > 1 {
        MEAN_WINDOW_STEPS
    } else {
        1
    };
    let per_window = ((window / step.as_secs_f64()).ceil() as usize).max(least_steps);
    let seconds = step.as_secs_f64() * (per_window as u64 * runs(label)) as f64;
    let windows = history.bytes.windows(per_window + 1);
    let gbps: Vec<Vec<f64>> = windows
        .map(|window| {
            let (old, new) = (&window[0], &window[per_window]);
            let bytes = new.iter().zip(old).map(|(new, old)| new - old);
            bytes.map(|bytes| bytes as f64 * 8e-9 / seconds).collect()
        })
        .collect();
    let of_flow = |flow: usize| -> Vec<(f64, f64)> {
        let at = |step: usize| (step + per_window) as f64 * round_trip.as_us_f64() / 4.0;
        let windows = gbps.iter().enumerate();
        windows.map(|(step, gbps)| (at(step), gbps[flow])).collect()
    };
    let throughputs_are_fair: Vec<bool> = gbps
        .iter()
        .map(|gbps| {
            // Credit that is dropped leaves a part of the line idle.
            let part = gbps.iter().sum::<f64>() / count as f64;
            gbps.iter().all(|gbps| is_fair(*gbps, part))
        })
        .collect();
    let quarters = |steps: usize| steps as f64 / 4.0;
    Ok(ConvergenceSample {
        of_rates: (history.rates_are_fair)
            .and_then(|steps| true_from(&steps))
            .map(|steps| quarters(steps + 1)),
        // A window's beginning is the time of its throughput.
        of_throughputs: true_from(&throughputs_are_fair).map(quarters),
        series_gbps: [of_flow(0), of_flow(count - 1)],
    })
}

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let plan = |(label, scenario, _): &Case| {
        let topology = scenario.topology(scenario.link_delay(label))?;
        Ok(CasePlan {
            name: format!("convergence-{scenario:?}-{label}"),
            key: transport(label, &topology, settings)?.key(),
            time: (JOIN.since(Time::ZERO) + MOST) * runs(label),
        })
    };
    let samples = sweep(settings, &CASES, plan, |(label, scenario, _), seed| {
        sample(settings, (label, *scenario), seed)
    })?;
    let mut figure = settings.figure(
        "dart-fig9",
        "Round trips until flows share a link (Dart fig. 9, fig. 15, §VI-D)",
    );
    figure.scenario = vec![
        "links of 40 Gbit/s and 1 µs; one flow, then one or nine more at once".to_owned(),
        "fair: within 15 % of an equal part of the line, or of all throughputs, from then on; throughputs \
         over 15 packets of each flow; \
         ExpressPass: 128 runs together, over two round trips of 100 µs"
            .to_owned(),
    ];
    for ((label, scenario, paper), runs) in CASES.iter().zip(&samples) {
        let claim = || paper.map_or(Claim::nothing(), |range| Claim::range(range, TOLERANCE));
        let by_rates = runs.samples().all(|sample| sample.of_rates.is_some());
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
            let curves = runs.first().into_iter().flat_map(|sample| {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_counts_from_the_last_time_that_it_was_lost() {
        assert_eq!(true_from(&[true, false, true, true]), Some(2));
        assert_eq!(true_from(&[true, true]), Some(0));
        assert_eq!(true_from(&[true, false]), None);
        assert_eq!(true_from(&[]), None);
    }
}
