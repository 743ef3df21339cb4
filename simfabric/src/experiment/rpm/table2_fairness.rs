//! RPM table II: Jain's index over the throughput of ten long Cubic flows that share R1's link to
//! S2, with CoDel's marks forward and reverse.
//!
//! Delays of the receivers' links are those of table I, by two pairs: all 10 ms; 10 to 50 ms; 20 to
//! 100 ms. Senders' links have 10 ms, the link from S1 to R1 100 Gbit/s, that from R1 to S2 10
//! Gbit/s. The paper has neither the length of its runs nor their number. Flows start at random
//! within a second, which is what seeds change. The throughput counts after a warm-up.

use rand::RngExt as _;
use ratewright_topology::HostId;

use super::{HOST_BPS, Marking, PAIRS, Testbed, transport};
use crate::FlowSpec;
use crate::experiment::monitor::MONITOR;
use crate::experiment::sweep::{CasePlan, sweep};
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Bars, Panel, Picture, style};
use crate::report::stats::jain;
use crate::rng::{Purpose, Stream};
use crate::run::Config;
use crate::time::{Span, Time};
use crate::workload::FlowStream;

/// Delays of table I, in ms, by two pairs.
const DELAYS_MS: [[u64; 5]; 3] = [
    [10, 10, 10, 10, 10],
    [10, 20, 30, 40, 50],
    [20, 40, 60, 80, 100],
];
/// Indices of table II: CoDel-FWD and RPM.
const PAPER: [[f64; 2]; 3] = [[0.89, 0.89], [0.74, 0.81], [0.82, 0.86]];
/// Accepted relative distance. The paper's own calibration with equal delays is 0.11 off fairness,
/// which is chance; half of that is allowed to either side.
const TOLERANCE: f64 = 0.05;
/// Cause of the short form's verdicts. CUBIC regains a window W in (0.3 W / 0.4)^(1/3) s (RFC 9438
/// §4.2), which is 13.6 s for a tenth of 10 Gbit/s over 40 ms.
const SHORT: &str = "the short form counts 16 s, in which CUBIC regains a tenth of the link once; \
                     who left slow start first is ahead until then";
/// Directions that are compared; the paper has the first two.
const MARKINGS: [Marking; 3] = [Marking::Forward, Marking::Reverse, Marking::ReverseByPort];

/// Measurements of one run.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct FairnessSample {
    /// Jain's index over the flows' throughput.
    pub jain: f64,
    /// Throughput of all flows, in Gbit/s.
    pub goodput_gbps: f64,
    /// Throughput by flow, in Gbit/s.
    pub flows_gbps: Vec<f64>,
}

/// Warm-up and end, in seconds.
const fn schedule(quick: bool) -> (u64, u64) {
    if quick { (8, 24) } else { (20, 120) }
}

fn testbed(experiment: usize) -> Testbed {
    Testbed {
        rates_bps: [10 * HOST_BPS, HOST_BPS],
        senders: Span::from_ms(10),
        receivers: std::array::from_fn(|pair| Span::from_ms(DELAYS_MS[experiment][pair / 2])),
    }
}

/// Runs one experiment of table I.
fn sample(
    settings: &Settings,
    (experiment, marking): (usize, Marking),
    seed: u64,
) -> Result<FairnessSample, ExperimentError> {
    let topology = testbed(experiment).topology()?;
    let cubic = transport("cubic", marking, &topology, Span::ZERO, settings)?;
    let mut rng = Stream::new(seed, Purpose::Arrivals, 0);
    let mut starts: Vec<(u64, u32)> = (0..PAIRS)
        .map(|pair| (rng.random_range(0..1_000_000_000), pair))
        .collect();
    starts.sort_unstable();
    let flows: FlowStream = Box::new(starts.into_iter().map(|(start_ns, pair)| {
        let (from, to) = (HostId(pair), HostId(PAIRS + pair));
        FlowSpec::new(from, to, FlowSpec::UNBOUNDED, Time::from_ns(start_ns))
    }));
    let (warm_up, end) = schedule(settings.quick);
    let (warm_up, end) = (Time::from_ms(1_000 * warm_up), Time::from_ms(1_000 * end));
    let config = Config {
        seed,
        ..Config::default()
    };
    let mut run = cubic.start(config, &topology, flows)?;
    MONITOR.run_until(&mut *run, warm_up)?;
    let before = run.results();
    MONITOR.run_until(&mut *run, end)?;
    let after = run.results();
    after.conservation?;
    let seconds = end.since(warm_up).as_secs_f64();
    let rates = after.flows.iter().zip(&before.flows);
    let flows_gbps: Vec<f64> = rates
        .map(|(after, before)| {
            (after.delivered_bytes - before.delivered_bytes) as f64 * 8e-9 / seconds
        })
        .collect();
    Ok(FairnessSample {
        jain: jain(&flows_gbps),
        goodput_gbps: flows_gbps.iter().sum(),
        flows_gbps,
    })
}

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    // The paper has no figure for marks by port; the short form leaves them out.
    let markings = if settings.quick {
        &MARKINGS[..2]
    } else {
        &MARKINGS[..]
    };
    let cases: Vec<(usize, Marking)> = (0..DELAYS_MS.len())
        .flat_map(|experiment| markings.iter().map(move |&marking| (experiment, marking)))
        .collect();
    let (warm_up, end) = schedule(settings.quick);
    let plan = |&(experiment, marking): &(usize, Marking)| {
        let topology = testbed(experiment).topology()?;
        let cubic = transport("cubic", marking, &topology, Span::ZERO, settings)?;
        Ok(CasePlan {
            name: format!("table2-{}-{}", experiment + 1, marking.name()),
            key: format!("{warm_up} to {end} s\n{}", cubic.key()),
            time: Span::from_ms(1_000 * end),
        })
    };
    let samples = sweep(settings, &cases, plan, |case, seed| {
        sample(settings, *case, seed)
    })?;
    let mut figure = settings.figure(
        "rpm-table2",
        "Jain's index of ten Cubic flows (RPM table II)",
    );
    figure.scenario = vec![
        "ten pairs over R1's 10 Gbit/s, senders' links 10 ms, receivers' of table I".to_owned(),
        "CoDel 1 ms / 20 ms, buffer 2 ms".to_owned(),
        format!("throughput from {warm_up} s to {end} s; flows start within the first second"),
    ];
    let of = |experiment: usize, marking: usize| &samples[experiment * markings.len() + marking];
    let index = |sample: &FairnessSample| Some(sample.jain);
    for (experiment, paper) in PAPER.iter().enumerate() {
        for (i, marking) in markings.iter().enumerate() {
            let claim = match paper.get(i) {
                Some(paper) => Claim::number(*paper, TOLERANCE),
                None => Claim::nothing(),
            };
            let name = marking.name();
            let row = Row::judge(
                format!("experiment {}, {name}: Jain's index", experiment + 1),
                claim,
                of(experiment, i).estimate(index),
                "",
            );
            figure.rows.push(if !settings.quick {
                row
            } else if i == 0 || (experiment, i) == (1, 1) {
                row.disagrees_because(SHORT)
            } else {
                row.undecided_because(SHORT)
            });
        }
        // The paper's point, seed by seed: equal delays gain nothing, unequal ones do.
        let claim = if experiment == 0 {
            Claim::number(0.0, 0.0)
                .at_least(-TOLERANCE)
                .at_most(TOLERANCE)
        } else {
            Claim::number(paper[1] - paper[0], 0.0)
                .at_least(0.0)
                .at_most(1.0)
        };
        let row = Row::judge(
            format!(
                "experiment {}: index of RPM less that of CoDel-FWD",
                experiment + 1
            ),
            claim,
            of(experiment, 1).paired(of(experiment, 0), |rpm, fwd| Some(rpm.jain - fwd.jain)),
            "",
        );
        figure.rows.push(if settings.quick {
            row.undecided_because(SHORT)
        } else {
            row
        });
        for (i, marking) in markings.iter().enumerate() {
            figure.rows.push(Row::judge(
                format!(
                    "experiment {}, {}: throughput",
                    experiment + 1,
                    marking.name()
                ),
                Claim::nothing(),
                of(experiment, i).estimate(|sample| Some(sample.goodput_gbps)),
                "Gbit/s",
            ));
        }
    }
    figure.data = serde_json::json!({ "cases": cases, "samples": samples });
    let mut bars = Vec::new();
    for (i, marking) in markings.iter().enumerate() {
        let means: Vec<_> = (0..PAPER.len()).map(|e| of(e, i).estimate(index)).collect();
        bars.push(Bars::estimates(marking.name(), &means));
        if i < 2 {
            let values = PAPER.iter().map(|paper| Some(paper[i])).collect();
            let paper = Bars::new(format!("{}, paper", marking.name()), values);
            bars.push(paper.colour(style::colour(i)).hollow());
        }
    }
    let groups = (1..=3).map(|i| format!("experiment {i}")).collect();
    let panel = Panel::bars(
        "Fairness of throughput",
        "delays of table I",
        Axis::linear("Jain's index").over(0.0, 1.0),
        groups,
        bars,
    );
    let picture = Picture::new(
        "Ten Cubic flows under CoDel, marked forward and reverse",
        "RPM table II",
        vec![panel],
    )
    .panel_size(760, 420);
    Ok(Reproduction { figure, picture })
}
