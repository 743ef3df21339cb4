//! FNCC fig. 13: congestion at the first, middle and last hop, with and without the last hop's
//! speed-up (LHCS), and the fairness of four flows that come and go.
//!
//! The text has reductions of the queue's depth against HPCC, taken here of its peak, and two
//! statements. Use is higher than HPCC's. Under LHCS flows at the last hop go at once to β = 0.9 of
//! the fair rate, and stay there until 450 µs.
//!
//! In fig. 13e a flow begins every 100 ms until there are four, and they end in the same order. All
//! are to one receiver over the dumbbell. The short form has 2 ms for 100 ms.

use rand::RngExt as _;
use ratewright_topology::HostId;

use super::scene::{Hop, Meeting};
use super::two_flows::{JOIN, TwoFlowCase, TwoFlowSample, data, drops_rows, two_flows};
use super::{colour, curve, is_mislabelled, label, transport};
use crate::FlowSpec;
use crate::experiment::monitor::MONITOR;
use crate::experiment::sweep::{CasePlan, Replicas, sweep};
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::flow::FlowId;
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Bars, Curve, Panel, Picture, style};
use crate::report::stats::{jain, mean};
use crate::rng::{Purpose, Stream};
use crate::run::Config;
use crate::time::{Span, Time};
use crate::workload::FlowStream;

/// Rate of links (§5.4), in Gbit/s.
const RATE_GBPS: u64 = 100;
/// Compared schemes.
const LABELS: [&str; 3] = [label::HPCC, label::WITHOUT_LHCS, label::FNCC];
/// Reductions of the paper in per cent: hop, scheme, value.
const PAPER: [(Hop, &str, f64); 4] = [
    (Hop::First, label::FNCC, 37.5),
    (Hop::Middle, label::FNCC, 29.5),
    (Hop::Last, label::WITHOUT_LHCS, 8.4),
    (Hop::Last, label::FNCC, 38.5),
];
/// Accepted relative distance from these.
const TOLERANCE: f64 = 0.25;
/// Times between which LHCS holds the flows of fig. 13d at β of the fair rate, in µs.
const HELD_US: (f64, f64) = (320.0, 450.0);
/// β of the fair rate of two flows, in Gbit/s.
const HELD_GBPS: f64 = 0.9 * RATE_GBPS as f64 / 2.0;

/// Cause of the reductions at the first and middle hop.
const NOT_HEARD: &str = "flow 1 sends at the line's rate until its first acknowledgement, 12.9 µs \
                         after it joined, under both schemes; 115 kB wait by then at the first \
                         hop, and HPCC's largest queue less the paper's reduction is 103 kB; flow \
                         0, which hears sooner, reacts to a mean over a round trip";
/// Cause of the reduction at the last hop under LHCS.
const ON_ITS_WAY: &str = "flow 1 sends at the line's rate until its first acknowledgement, 12.9 \
                          µs after it joined, and what it sends slower reaches the last hop 4.8 \
                          µs later; 92 kB wait before, and the queue grows all that time";
/// Cause of the use at the first hop without LHCS.
const TWO_SHARED_LINKS: &str = "the dumbbell has two shared links in a row; U takes the greater \
                                of their loads, each over the time between two acknowledgements, \
                                which is above either's mean: rates stay at 88 Gbit/s together, \
                                and at 95 where one link is shared (middle hop)";
/// Cause of the use at the last hop under LHCS.
const HELD_LOW: &str = "LHCS sets the reference window, from which the queue's load then takes \
                        its part again: rates fall to 30 Gbit/s each for some round trips, and \
                        the link is idle once the queue is gone";

/// Times that the picture shows, in µs.
const SHOWN_US: (f64, f64) = (280.0, 500.0);

/// Flows of fig. 13e.
const FLOWS: u32 = 4;
/// Steps from the first flow's start to the last one's end.
const STEPS: u64 = 7;
/// Points of a step's curves.
const POINTS: u64 = 20;

/// Measurements of flows that come and go.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StairSample {
    /// Jain's index over the flows of each step, by their throughput in its second half.
    pub jain: Vec<f64>,
    /// Throughput of each flow, in ms and Gbit/s.
    pub goodput: Vec<Vec<(f64, f64)>>,
}

/// Length of a step.
const fn step(quick: bool) -> Span {
    Span::from_ms(if quick { 2 } else { 100 })
}

fn stair_meeting() -> Result<Meeting, ExperimentError> {
    Meeting::new(Hop::First, FLOWS, RATE_GBPS * 1_000_000_000)
}

fn stairs(settings: &Settings, label: &str, seed: u64) -> Result<StairSample, ExperimentError> {
    let meeting = stair_meeting()?;
    let transport = transport(label, &meeting.topology, settings)?;
    let step = step(settings.quick);
    let mut rng = Stream::new(seed, Purpose::Arrivals, 0);
    let flows = (0..FLOWS).map(|flow| {
        // Within a µs, so that seeds differ.
        let start = Time::ZERO + step * u64::from(flow) + Span(rng.random_range(0..1_000_000));
        let spec = FlowSpec::new(HostId(flow), HostId(FLOWS), FlowSpec::UNBOUNDED, start);
        FlowSpec {
            stop: Time::ZERO + step * u64::from(FLOWS + flow),
            ..spec
        }
    });
    let flows: Vec<FlowSpec> = flows.collect();
    let stream: FlowStream = Box::new(flows.into_iter());
    let config = Config {
        seed,
        sample_every: Some(step / POINTS),
        sampled_flows: FLOWS,
        ..Config::default()
    };
    let mut run = transport.start(config, &meeting.topology, stream)?;
    MONITOR.run_until(&mut *run, Time::ZERO + step * STEPS)?;
    let results = run.results();
    results.conservation?;
    let mut sample = StairSample {
        jain: Vec::new(),
        goodput: Vec::new(),
    };
    if let Some(series) = &results.series {
        for flow in 0..FLOWS {
            let rates = series.goodput_bps(FlowId(flow)).into_iter();
            let times = series.times.iter().map(|at| at.as_us_f64() / 1e3);
            let points = times.zip(rates.map(|bps| bps / 1e9));
            sample.goodput.push(points.collect());
        }
    }
    for number in 0..STEPS {
        let active =
            (0..u64::from(FLOWS)).filter(|f| (*f..*f + u64::from(FLOWS)).contains(&number));
        let half = (number * POINTS + POINTS / 2) as usize..((number + 1) * POINTS) as usize;
        let rates = active.filter_map(|flow| {
            let points = sample.goodput.get(flow as usize)?.get(half.clone())?;
            mean(&points.iter().map(|(_, rate)| *rate).collect::<Vec<_>>())
        });
        sample.jain.push(jain(&rates.collect::<Vec<_>>()));
    }
    Ok(sample)
}

/// Mean rate of both flows while LHCS holds them.
fn held_gbps(sample: &TwoFlowSample) -> Option<f64> {
    let points = sample.curves.rates.iter().flatten();
    let held = points.filter(|(at, _)| (HELD_US.0..HELD_US.1).contains(at));
    mean(&held.map(|(_, rate)| *rate).collect::<Vec<_>>())
}

/// Rows of the hops, HPCC's runs first.
fn judge(labels: &[&str], hops: &[(Hop, &[Replicas<TwoFlowSample>])]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (hop, runs) in hops {
        let name = hop.name();
        for (label, runs) in labels.iter().zip(*runs) {
            for (what, unit, value) in [
                (
                    "largest queue",
                    "kB",
                    (|s| s.peak_kb) as fn(&TwoFlowSample) -> f64,
                ),
                ("mean queue", "kB", |s| s.mean_kb),
                ("fair from, after the join", "µs", |s| s.fair_us),
            ] {
                rows.push(Row::judge(
                    format!("{name}, {label}: {what}"),
                    Claim::nothing(),
                    runs.estimate(|sample| Some(value(sample))),
                    unit,
                ));
            }
        }
        let hpcc = &runs[0];
        for (label, own) in labels.iter().zip(*runs).skip(1) {
            let paper = PAPER.iter().find(|(at, of, _)| at == hop && of == label);
            let claim = paper.map_or(Claim::nothing(), |(_, _, paper)| {
                Claim::number(*paper, TOLERANCE)
            });
            let row = Row::judge(
                format!("{name}: reduction of the largest queue, {label} against HPCC"),
                claim,
                own.paired(hpcc, |own, hpcc| {
                    Some(100.0 * (1.0 - own.peak_kb / hpcc.peak_kb))
                }),
                "%",
            );
            rows.push(match (hop, *label) {
                (Hop::First | Hop::Middle, label::FNCC) => row.disagrees_because(NOT_HEARD),
                (Hop::Last, label::FNCC) => row.disagrees_because(ON_ITS_WAY),
                _ => row,
            });
            let row = Row::judge(
                format!("{name}: use of the link, {label} over HPCC"),
                Claim::words("higher").at_least(1.0),
                own.paired(hpcc, |own, hpcc| Some(own.used / hpcc.used)),
                "ratio",
            );
            rows.push(match (hop, *label) {
                (Hop::First, label::WITHOUT_LHCS) => row.disagrees_because(TWO_SHARED_LINKS),
                (Hop::First, _) => row.undecided_because("the spread over seeds is wider"),
                (Hop::Last, label::FNCC) => row.disagrees_because(HELD_LOW),
                _ => row,
            });
        }
    }
    rows
}

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let labels = LABELS
        .into_iter()
        .filter(|label| !is_mislabelled(label, settings));
    let labels: Vec<&'static str> = labels.collect();
    let at_hop = |hop| {
        labels.iter().map(move |label| TwoFlowCase {
            label,
            hop,
            rate_gbps: RATE_GBPS,
        })
    };
    let cases: Vec<TwoFlowCase> = Hop::ALL.into_iter().flat_map(at_hop).collect();
    let samples = two_flows(settings, &cases)?;
    let of_stairs = [label::HPCC, label::FNCC];
    let step = step(settings.quick);
    let plan = |label: &&str| {
        let transport = transport(label, &stair_meeting()?.topology, settings)?;
        Ok(CasePlan {
            name: format!("stairs-{label}"),
            key: format!("{step:?}\n{}", transport.key()),
            time: step * STEPS,
        })
    };
    let stairs = sweep(settings, &of_stairs, plan, |label, seed| {
        stairs(settings, label, seed)
    })?;
    let hops: Vec<_> = Hop::ALL
        .into_iter()
        .zip(samples.chunks(labels.len()))
        .collect();
    let mut figure = settings.figure(
        "fncc-fig13",
        "Congestion at the first, middle and last hop (FNCC fig. 13)",
    );
    figure.scenario = super::two_flow_scenario(Hop::First)[1..].to_vec();
    figure.scenario.push(format!(
        "fairness: {FLOWS} flows to one receiver, one more every {} ms",
        step.as_us_f64() / 1e3
    ));
    figure.notes.push(
        "use counts all bytes on the link, of which 42 in each of HPCC's packets are telemetry; \
         FNCC's data has none"
            .to_owned(),
    );
    figure.rows = judge(&labels, &hops);
    let last = &samples[2 * labels.len()..];
    for (label, runs) in labels.iter().zip(last) {
        let claim = if *label == label::FNCC {
            Claim::number(HELD_GBPS, 0.1)
        } else {
            Claim::nothing()
        };
        figure.rows.push(Row::judge(
            format!(
                "last hop, {label}: mean rate from {} to {} µs",
                HELD_US.0, HELD_US.1
            ),
            claim,
            runs.estimate(held_gbps),
            "Gbit/s",
        ));
    }
    for (label, runs) in of_stairs.iter().zip(&stairs) {
        let claim = if *label == label::FNCC {
            Claim::words("good").at_least(0.95)
        } else {
            Claim::nothing()
        };
        figure.rows.push(Row::judge(
            format!("{label}: least Jain's index of a step"),
            claim,
            runs.estimate(|s| s.jain.iter().copied().reduce(f64::min)),
            "",
        ));
    }
    figure.rows.extend(drops_rows(&cases, &samples));
    figure.data = serde_json::json!({
        "hops": data(&cases, &samples), "stairs": of_stairs, "fairness": stairs,
    });
    let picture = picture(&labels, &hops, stairs.last());
    Ok(Reproduction { figure, picture })
}

/// Panels of queues, of rates at the last hop, of reductions and of fairness.
fn picture(
    labels: &[&str],
    hops: &[(Hop, &[Replicas<TwoFlowSample>])],
    fairness: Option<&Replicas<StairSample>>,
) -> Picture {
    let curves = |runs: &[Replicas<TwoFlowSample>],
                  points: fn(&TwoFlowSample) -> &Vec<(f64, f64)>| {
        let curves = labels.iter().zip(runs);
        let curves = curves.map(|(label, runs)| curve(label, runs.first().map(points), SHOWN_US));
        curves.collect::<Vec<_>>()
    };
    let time = || Axis::linear("Time (µs)").over(SHOWN_US.0, SHOWN_US.1);
    let mut panels: Vec<Panel> = hops
        .iter()
        .map(|(hop, runs)| {
            Panel::curves(
                format!("Queue at the {}", hop.name()),
                time(),
                Axis::linear("Queue (kB)").starting_at(0.0),
                curves(runs, |sample| &sample.curves.queue),
            )
            .event(JOIN.as_us_f64(), "flow 1 joins")
        })
        .collect();
    if let Some((_, runs)) = hops.last() {
        let mut rates = curves(runs, |sample| &sample.curves.rates[0]);
        let others = curves(runs, |sample| &sample.curves.rates[1]).into_iter();
        rates.extend(others.map(|curve| Curve {
            name: String::new(),
            ..curve.dashed()
        }));
        let panel = Panel::curves(
            "Rates at the last hop (flow 1 dashed)",
            time(),
            Axis::linear("Rate (Gbit/s)").over(0.0, 1.05 * RATE_GBPS as f64),
            rates,
        );
        panels.push(panel.mark(HELD_GBPS, "β of the fair rate"));
    }
    let groups = PAPER.map(|(hop, of, _)| match (hop, of) {
        (Hop::Last, label::WITHOUT_LHCS) => "last, no LHCS".to_owned(),
        (Hop::Last, _) => "last, LHCS".to_owned(),
        _ => hop.name().to_owned(),
    });
    let ours = PAPER.map(|(hop, of, _)| {
        let runs = hops.iter().find(|(at, _)| *at == hop)?.1;
        let reduced = |own: &TwoFlowSample, hpcc: &TwoFlowSample| {
            Some(100.0 * (1.0 - own.peak_kb / hpcc.peak_kb))
        };
        let own = labels.iter().position(|label| *label == of)?;
        runs.get(own)?.paired(&runs[0], reduced)
    });
    let paper = PAPER.map(|(_, _, paper)| Some(paper)).to_vec();
    panels.push(Panel::bars(
        "Reduction of the largest queue against HPCC",
        "congested hop",
        Axis::linear("Reduction (%)"),
        groups.to_vec(),
        vec![
            Bars::estimates("ours", &ours).colour(colour(label::FNCC)),
            Bars::new("paper", paper)
                .colour(colour(label::FNCC))
                .hollow(),
        ],
    ));
    if let Some(sample) = fairness.and_then(|runs| runs.first()) {
        let curves = sample.goodput.iter().enumerate();
        panels.push(Panel::curves(
            "Four flows that come and go under FNCC",
            Axis::linear("Time (ms)"),
            Axis::linear("Throughput (Gbit/s)").starting_at(0.0),
            curves
                .map(|(flow, points)| {
                    Curve::new(format!("flow {flow}"), points.clone())
                        .colour(style::colour(5 + flow))
                })
                .collect(),
        ));
    }
    Picture::new(
        "Congestion at the first, middle and last hop",
        "FNCC fig. 13; curves of the first seed",
        panels,
    )
    .columns(3)
    .panel_size(440, 320)
}
