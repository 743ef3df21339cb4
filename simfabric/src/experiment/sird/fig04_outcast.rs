//! SIRD fig. 4: one sender of 10 MB messages to one, two and three receivers: credit that waits at
//! the sender, and credit that the receivers have left, with and without informed overcommitment.
//!
//! Credit and its laws are in bandwidth-delay products, as in the figure. Without information n
//! receivers give a product each, of which one is in flight. With it the sender holds SThr, and the
//! receivers have given BDP + SThr together (§6.1.2).

use rand::RngExt as _;
use ratewright_topology::{HostId, Topology};

use super::scene::testbed;
use super::testbed_transport;
use crate::FlowSpec;
use crate::experiment::monitor::MONITOR;
use crate::experiment::sweep::{CasePlan, Replicas, sweep};
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::figure::{Claim, Figure, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture};
use crate::rng::{Purpose, Stream};
use crate::run::Config;
use crate::time::{Span, Time};

/// Receivers (§6.1.2).
const RECEIVERS: u32 = 3;
/// Bytes of messages (§6.1.2).
const BYTES: u64 = 10_000_000;
/// Messages to each receiver: more than fit the time.
const MESSAGES: usize = 16;
/// Time from the beginning of one receiver to that of the next.
const STAGE: Span = Span::from_ms(4);
/// Interval of looks at the credit.
const LOOK: Span = Span::from_us(1);
/// Credit of a receiver, B, and the sender's threshold, in products (§6.1).
const B: f64 = 1.5;
const STHR: f64 = 0.5;
/// Accepted distance from a law, as a share of it.
const TOLERANCE: f64 = 0.15;

/// Sender's thresholds.
const THRESHOLDS: [(&str, &str); 2] = [
    ("SThr = 0.5 BDP", "sird.sender_threshold=0.5"),
    ("SThr = ∞", "sird.sender_threshold=inf"),
];

/// Measurements of one run, in bandwidth-delay products.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct OutcastSample {
    /// Mean credit at the sender, by number of receivers.
    stored: [f64; 3],
    /// Mean credit that all receivers have left.
    left: [f64; 3],
    /// Both over time: ms, at the sender, left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    course: Vec<(f64, f64, f64)>,
}

fn sample(
    settings: &Settings,
    topology: &Topology,
    threshold: &str,
    seed: u64,
) -> Result<OutcastSample, ExperimentError> {
    let transport = testbed_transport(settings, topology, threshold)?;
    let mut rng = Stream::new(seed, Purpose::Arrivals, 0);
    let mut flows = Vec::new();
    for receiver in 0..RECEIVERS {
        // Seeds differ in the receivers' phases.
        let phase = Span(rng.random_range(0..Span::from_us(100).0));
        let start = Time::ZERO + Span(STAGE.0 * u64::from(receiver)) + phase;
        let flow = FlowSpec::new(HostId(0), HostId(1 + receiver), BYTES, start);
        flows.extend([flow; MESSAGES]);
    }
    let config = Config {
        seed,
        ..Config::default()
    };
    let mut run = transport.start(config, topology, Box::new(flows.into_iter()))?;
    let mut course = Vec::new();
    let mut at = Time::ZERO;
    while at < Time::ZERO + Span(STAGE.0 * u64::from(RECEIVERS)) {
        at += LOOK;
        MONITOR.run_until(&mut *run, at)?;
        let counters = run.counters();
        let of = |name: &str| {
            let found = counters.iter().find(|(known, _)| *known == name);
            found.map_or(0.0, |(_, bytes)| bytes / testbed::BDP_BYTES)
        };
        let left = B * f64::from(RECEIVERS) - of("credit_outstanding");
        course.push((at.as_us_f64() / 1e3, of("credit_stored"), left));
    }
    run.results().conservation?;
    let stage_ms = STAGE.as_us_f64() / 1e3;
    let mean = |stage: usize, of: fn(&(f64, f64, f64)) -> f64| {
        // The last half.
        let [from, to] = [0.5, 1.0].map(|part| (stage as f64 + part) * stage_ms);
        let during = course.iter().filter(|look| look.0 > from && look.0 <= to);
        let values: Vec<f64> = during.map(of).collect();
        crate::report::stats::mean(&values).unwrap_or(0.0)
    };
    Ok(OutcastSample {
        stored: [0, 1, 2].map(|stage| mean(stage, |look| look.1)),
        left: [0, 1, 2].map(|stage| mean(stage, |look| look.2)),
        course,
    })
}

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let topology = testbed::topology()?;
    let plan = |(_, threshold): &(&str, &str)| {
        Ok(CasePlan {
            name: format!("outcast-{threshold}"),
            key: testbed_transport(settings, &topology, threshold)?.key(),
            time: STAGE * u64::from(RECEIVERS),
        })
    };
    let samples = sweep(settings, &THRESHOLDS, plan, |(_, threshold), seed| {
        sample(settings, &topology, threshold, seed)
    })?;
    let mut figure = settings.figure("sird-fig4", "Credit under an outcast (SIRD fig. 4)");
    figure.scenario = vec![
        format!(
            "a sender of 10 MB messages to three receivers, one more every {} ms, frames of 9 kB",
            STAGE.as_us_f64() / 1e3
        ),
        "means over the last half of each stage, in bandwidth-delay products of 216 kB".to_owned(),
    ];
    for ((name, _), runs) in THRESHOLDS.iter().zip(&samples) {
        judge(&mut figure, name, runs, *name == THRESHOLDS[0].0);
    }
    let without_course = |run: &OutcastSample| OutcastSample {
        course: Vec::new(),
        ..run.clone()
    };
    let data: Vec<_> = samples
        .iter()
        .map(|runs| runs.map(without_course))
        .collect();
    figure.data = serde_json::json!({
        "thresholds": THRESHOLDS.map(|(name, _)| name),
        "samples": data,
    });
    Ok(Reproduction {
        picture: picture(&samples),
        figure,
    })
}

/// Rows of one threshold.
fn judge(figure: &mut Figure, name: &str, runs: &Replicas<OutcastSample>, informed: bool) {
    for stage in 0..3 {
        let receivers = stage as f64 + 1.0;
        let words = match stage {
            0 => "1 receiver".to_owned(),
            _ => format!("{receivers} receivers"),
        };
        // One receiver gives what is in flight.
        let claim = match (stage, informed) {
            (0, _) => Claim::words("none").at_most(0.05),
            (_, true) => Claim::words("less than SThr").at_most(STHR),
            (_, false) => Claim::number(receivers - 1.0, TOLERANCE),
        };
        figure.rows.push(Row::judge(
            format!("{name}, {words}: credit at the sender"),
            claim,
            runs.estimate(|sample| Some(sample.stored[stage])),
            "BDP",
        ));
        let given = match (stage, informed) {
            (0, _) => 1.0,
            (_, true) => 1.0 + STHR,
            (_, false) => receivers,
        };
        figure.rows.push(Row::judge(
            format!("{name}, {words}: credit left at the receivers"),
            Claim::number(B * f64::from(RECEIVERS) - given, TOLERANCE),
            runs.estimate(|sample| Some(sample.left[stage])),
            "BDP",
        ));
    }
}

fn picture(samples: &[Replicas<OutcastSample>]) -> Picture {
    type Of = fn(&(f64, f64, f64)) -> f64;
    let panel = |title: &str, most: f64, of: Of| {
        let curves = THRESHOLDS.iter().zip(samples).map(|((name, _), runs)| {
            let course = runs.first().map(|run| &run.course);
            // Every tenth look: the curve has no more pixels.
            let looks = course.into_iter().flatten().step_by(10);
            Curve::new(*name, looks.map(|look| (look.0, of(look))).collect())
        });
        let stage = STAGE.as_us_f64() / 1e3;
        Panel::curves(
            title,
            Axis::linear("Time (ms)").over(0.0, 3.0 * stage),
            Axis::linear("Credit (BDP)").over(0.0, most),
            curves.collect(),
        )
        .event(stage, "2 receivers")
        .event(2.0 * stage, "3 receivers")
    };
    let panels = vec![
        panel("Credit at the sender", 2.5, |look| look.1).mark(STHR, "SThr"),
        panel("Credit left at the receivers", 5.0, |look| look.2),
    ];
    Picture::new(
        "A sender of three receivers",
        "SIRD fig. 4; first seed",
        panels,
    )
}
