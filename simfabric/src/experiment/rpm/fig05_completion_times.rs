//! RPM fig. 5: mean completion time of short DCTCP flows by their size, with CoDel's marks forward
//! and reverse, at S1.
//!
//! All links have 10 Gbit/s and the link delays of table II are gone (§V-B), so that ten senders
//! meet at S1's link to R1. The paper does not say how flows arrive, how many, of which sizes, and
//! beside what. Here each pair has one long flow, as in table II, so that S1 is congested. Short
//! flows come beside these as a Poisson process, between random pairs, all sizes equally often. The
//! text says that reverse marks shorten completion, "the shorter the flows the more", and has no
//! number.

use rand::RngExt as _;
use ratewright_topology::{HostId, Topology};

use super::{HOST_BPS, Marking, PAIRS, Testbed, results, transport};
use crate::FlowSpec;
use crate::experiment::sweep::{CasePlan, sweep};
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::net::Framing;
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture};
use crate::report::stats::mean;
use crate::rng::{Purpose, Stream};
use crate::run::Config;
use crate::time::{Span, Time};
use crate::workload::FlowStream;

/// Sizes, in packets: below, at and above the first window.
const SIZES: [u64; 6] = [5, 20, 50, 100, 200, 500];
/// Load of the bottleneck by short flows; the long ones take what is left.
const LOAD: f64 = 0.3;
/// Processing of hosts per packet: a round trip of about 50 µs, as between Linux hosts at 10
/// Gbit/s.
const HOST_DELAY: Span = Span::from_us(10);
/// Reason why rows may stay undecided.
const FEW: &str = "the directions differ by less than the spread over seeds";
/// Directions that are compared; the paper has the first two.
const MARKINGS: [Marking; 3] = [Marking::Forward, Marking::Reverse, Marking::ReverseByPort];

/// Measurements of one run.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct CompletionSample {
    /// Mean completion time by size, in µs. A flow that did not finish counts with its age.
    pub mean_us: Vec<Option<f64>>,
    /// Flows counted.
    pub flows: usize,
    /// Counted flows that did not finish.
    pub unfinished: usize,
    /// Packets that were marked after the warm-up, in either direction.
    pub marks: u64,
    /// Packets that were dropped after the warm-up.
    pub drops: u64,
}

/// Warm-up, last start and end, in ms.
const fn schedule(quick: bool) -> [u64; 3] {
    if quick {
        [200, 3_200, 3_500]
    } else {
        [500, 15_500, 16_000]
    }
}

/// Flows until a time.
fn flows(until: Time, seed: u64) -> impl Iterator<Item = FlowSpec> + Send {
    let framing = Framing::default();
    let packet_bits = 8.0 * f64::from(framing.wire_bytes(framing.mss_bytes));
    let mean_packets = SIZES.iter().sum::<u64>() as f64 / SIZES.len() as f64;
    let per_second = LOAD * HOST_BPS as f64 / (mean_packets * packet_bits);
    let mut rng = Stream::new(seed, Purpose::Arrivals, 0);
    let mut at = Time::ZERO;
    std::iter::from_fn(move || {
        // Exponential gaps; 1 − u is never 0.
        let gap = -(1.0 - rng.random::<f64>()).ln() / per_second;
        at += Span::from_secs_f64(gap);
        let pair = rng.random_range(0..PAIRS);
        let bytes = SIZES[rng.random_range(0..SIZES.len())] * u64::from(framing.mss_bytes);
        let (from, to) = (HostId(pair), HostId(PAIRS + pair));
        (at < until).then(|| FlowSpec::new(from, to, bytes, at))
    })
}

fn testbed() -> Result<Topology, ExperimentError> {
    let testbed = Testbed {
        rates_bps: [HOST_BPS; 2],
        senders: super::SWITCH_DELAY,
        receivers: [super::SWITCH_DELAY; PAIRS as usize],
    };
    testbed.topology()
}

fn sample(
    settings: &Settings,
    marking: Marking,
    seed: u64,
) -> Result<CompletionSample, ExperimentError> {
    let topology = testbed()?;
    let dctcp = transport("dctcp", marking, &topology, HOST_DELAY, settings)?;
    let [warm_up, last, end] = schedule(settings.quick).map(Time::from_ms);
    let long = (0..PAIRS).map(|pair| {
        let (from, to) = (HostId(pair), HostId(PAIRS + pair));
        FlowSpec::new(from, to, FlowSpec::UNBOUNDED, Time::ZERO)
    });
    let stream: FlowStream = Box::new(long.chain(flows(last, seed)));
    let config = Config {
        seed,
        warm_up,
        ..Config::default()
    };
    let results = results(&dctcp, &topology, config, stream, end)?;
    let short = results.flows.iter().skip(PAIRS as usize);
    let counted = short.filter(|flow| flow.spec.start >= warm_up);
    let mut by_size = vec![Vec::new(); SIZES.len()];
    let (mut flows, mut unfinished) = (0, 0);
    for flow in counted {
        let packets = flow.spec.bytes / u64::from(Framing::default().mss_bytes);
        let age = || end.since(flow.spec.start);
        flows += 1;
        unfinished += usize::from(flow.finished.is_none());
        if let Some(class) = SIZES.iter().position(|size| *size == packets) {
            by_size[class].push(flow.fct().unwrap_or_else(age).as_us_f64());
        }
    }
    Ok(CompletionSample {
        mean_us: by_size.iter().map(|times| mean(times)).collect(),
        flows,
        unfinished,
        marks: results.ports.iter().map(|port| port.stats.marks).sum(),
        drops: results.drops(),
    })
}

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let [warm_up, last, end] = schedule(settings.quick);
    let plan = |marking: &Marking| {
        let dctcp = transport("dctcp", *marking, &testbed()?, HOST_DELAY, settings)?;
        Ok(CasePlan {
            name: format!("fig5-{}", marking.name()),
            key: format!(
                "counted from {warm_up} to {last} to {end} ms\n{}",
                dctcp.key()
            ),
            time: Span::from_ms(end),
        })
    };
    let samples = sweep(settings, &MARKINGS, plan, |marking, seed| {
        sample(settings, *marking, seed)
    })?;
    let mut figure = settings.figure("rpm-fig5", "Completion of short DCTCP flows (RPM fig. 5)");
    figure.scenario = vec![
        "ten pairs over S1's 10 Gbit/s, round trip about 50 µs".to_owned(),
        "one long flow of each pair".to_owned(),
        format!("short flows: Poisson at load {LOAD}, equally often of {SIZES:?} packets"),
        "CoDel 1 ms / 20 ms, buffer 2 ms".to_owned(),
        format!("flows that start from {warm_up} ms to {last} ms"),
    ];
    for (i, size) in SIZES.iter().enumerate() {
        for (marking, runs) in MARKINGS.iter().zip(&samples) {
            figure.rows.push(Row::judge(
                format!("{size} packets, {}: mean completion", marking.name()),
                Claim::nothing(),
                runs.estimate(|sample| sample.mean_us[i]),
                "µs",
            ));
        }
        let ratio = samples[1].paired(&samples[0], |rpm, fwd| {
            Some(rpm.mean_us[i]? / fwd.mean_us[i]?)
        });
        let row = Row::judge(
            format!("{size} packets: RPM over CoDel-FWD"),
            Claim::words("shorter").at_most(1.0),
            ratio,
            "ratio",
        );
        figure.rows.push(row.undecided_because(FEW));
    }
    let first_over_last = samples[1].paired(&samples[0], |rpm, fwd| {
        let ratio = |i: usize| Some(rpm.mean_us[i]? / fwd.mean_us[i]?);
        Some(ratio(0)? / ratio(SIZES.len() - 1)?)
    });
    let row = Row::judge(
        "gain of the shortest flows over that of the longest",
        Claim::words("the shorter the flows the more").at_most(1.0),
        first_over_last,
        "ratio of ratios",
    );
    figure.rows.push(row.undecided_because(FEW));
    for (marking, runs) in MARKINGS.iter().zip(&samples) {
        for (what, value) in [
            (
                "marked packets",
                (|s| Some(s.marks as f64)) as fn(&CompletionSample) -> Option<f64>,
            ),
            ("dropped packets", |s| Some(s.drops as f64)),
        ] {
            let name = format!("{}: {what}", marking.name());
            let row = Row::judge(name, Claim::nothing(), runs.estimate(value), "packets");
            figure.rows.push(row);
        }
    }
    for (marking, runs) in MARKINGS.iter().zip(&samples) {
        figure.notes.push(format!(
            "{}: {} of {} flows had not finished by the end; they count with their age",
            marking.name(),
            runs.total(|sample| sample.unfinished),
            runs.total(|sample| sample.flows)
        ));
    }
    let lines = MARKINGS.iter().zip(&samples).map(|(marking, runs)| {
        let points = SIZES.iter().enumerate().filter_map(|(i, size)| {
            Some((*size as f64, runs.estimate(|sample| sample.mean_us[i])?))
        });
        Curve::estimates(marking.name(), points)
    });
    let panel = Panel::curves(
        "Mean completion time",
        Axis::log("Size (packets)"),
        Axis::log("Time (µs)"),
        lines.collect(),
    );
    figure.data = serde_json::json!({ "cases": MARKINGS, "samples": samples });
    let picture = Picture::new(
        "Short DCTCP flows under CoDel, marked forward and reverse",
        "RPM fig. 5; 95 % intervals",
        vec![panel],
    )
    .panel_size(720, 420);
    Ok(Reproduction { figure, picture })
}
