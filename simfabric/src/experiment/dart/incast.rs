//! Dart figure 10, §V-B: completion times of incasts of 256 kB beside a long flow, on one switch.
//!
//! The paper's figure is of a testbed with InfiniBand, whose congestion control has no model here.
//! Two others stand for it: the link's flow control alone, since InfiniBand's loses no packet
//! either, and DCQCN, which lowers rates upon marks as InfiniBand's does. The apportioning is in
//! software as the testbed's, and beside it in the NIC.

use ratewright_topology::{BigSwitch, HostId, Topology};

use super::runs::Scene;
use super::{colour, label, reproduction, transport};
use crate::FlowSpec;
use crate::experiment::monitor::MONITOR;
use crate::experiment::sweep::{CasePlan, Replicas, sweep};
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture};
use crate::report::stats::quantile;
use crate::rng::{Purpose, Stream};
use crate::run::Config;
use crate::time::{Span, Time};
use crate::workload::FlowStream;
use rand::RngExt as _;

/// Rate of all links: the testbed's flow alone reaches it (§V-A).
const RATE_BPS: u64 = 43_000_000_000;
/// Propagation over a link: four of them are the hardware's round trip of 12 µs (§V-A).
const LINK_DELAY: Span = Span::from_us(3);
/// Bytes of an incast's messages (§V-B).
const SHORT_BYTES: u64 = 256 * 1_024;
/// Time from one incast to the next (§V-B).
const PERIOD: Span = Span::from_ms(100);
/// Begin of the first incast; the long flow begins at 0.
const FIRST: Time = Time::from_ms(5);
/// Senders of an incast; the text gives the last one (fig. 10b).
const DEGREES: [u32; 4] = [2, 4, 8, 16];
/// Answers to congestion: the testbed's apportioning, the NIC's, and two in InfiniBand's place.
const LABELS: [&str; 4] = [
    label::IN_SOFTWARE,
    label::WITHOUT_LOOK_AHEAD,
    label::FLOW_CONTROL,
    label::DCQCN,
];
/// Those in InfiniBand's place.
const IN_PLACE: [&str; 2] = [label::FLOW_CONTROL, label::DCQCN];
/// The paper's "2.5 - 3.3x" between InfiniBand's completion times and the apportioning's.
const PAPER: (f64, f64) = (2.5, 3.3);
/// Accepted relative distance from the paper's numbers.
const TOLERANCE: f64 = 0.25;

/// Measurements of one run.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct IncastSample {
    /// Median and 99 % of the incasts' completion times, in µs.
    short_us: [Option<f64>; 2],
    /// Goodput of the long flow, in Gbit/s.
    long_gbps: f64,
    /// Incasts' messages that did not finish.
    unfinished: usize,
}

fn topology() -> Result<Topology, ExperimentError> {
    let switch = BigSwitch {
        racks: 1,
        hosts_per_rack: 2 + DEGREES[DEGREES.len() - 1],
        host_capacity_bps: RATE_BPS,
        host_delay_ns: LINK_DELAY.as_ns(),
        ..BigSwitch::default()
    };
    Ok(switch.build()?)
}

/// The long flow, and incasts of `degree` senders, each of which begins within `jitter`.
fn flows(degree: u32, rounds: u64, jitter: Span, seed: u64) -> Vec<FlowSpec> {
    let receiver = HostId(0);
    let mut rng = Stream::new(seed, Purpose::Arrivals, 0);
    let mut flows = vec![FlowSpec::new(
        HostId(1),
        receiver,
        FlowSpec::UNBOUNDED,
        Time::ZERO,
    )];
    for round in 0..rounds {
        let begin = FIRST + PERIOD * round;
        let mut incast: Vec<FlowSpec> = (0..degree)
            .map(|sender| {
                let after = Span(rng.random_range(0..=jitter.0));
                FlowSpec::new(HostId(2 + sender), receiver, SHORT_BYTES, begin + after)
            })
            .collect();
        incast.sort_by_key(|flow| flow.start);
        flows.extend(incast);
    }
    flows
}

/// Returns the number of incasts in a run.
const fn rounds(quick: bool) -> u64 {
    if quick { 4 } else { 50 }
}

fn end(settings: &Settings) -> Time {
    FIRST + PERIOD * rounds(settings.quick)
}

fn sample(
    settings: &Settings,
    topology: &Topology,
    (label, degree): (&str, u32),
    seed: u64,
) -> Result<IncastSample, ExperimentError> {
    let transport = transport(label, topology, settings)?;
    let jitter = Scene::of(settings)?.incast_jitter.0;
    let flows = flows(degree, rounds(settings.quick), jitter, seed);
    let config = Config {
        seed,
        ..Config::default()
    };
    let stream: FlowStream = Box::new(flows.into_iter());
    let mut run = transport.start(config, topology, stream)?;
    MONITOR.run_until(&mut *run, FIRST)?;
    let long_bytes = |results: &crate::results::RunResults| results.flows[0].delivered_bytes;
    let before = long_bytes(&run.results());
    MONITOR.run_until(&mut *run, end(settings))?;
    let results = run.results();
    let seconds = end(settings).since(FIRST).as_secs_f64();
    let incasts = &results.flows[1..];
    let mut completions_us: Vec<f64> = incasts
        .iter()
        .filter_map(|flow| Some(flow.fct()?.as_us_f64()))
        .collect();
    Ok(IncastSample {
        short_us: [0.5, 0.99].map(|share| quantile(&mut completions_us, share)),
        long_gbps: (long_bytes(&results) - before) as f64 * 8e-9 / seconds,
        unfinished: incasts.len() - completions_us.len(),
    })
}

/// Runs figure 10.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let topology = topology()?;
    let cases: Vec<(&str, u32)> = (LABELS.iter())
        .flat_map(|label| DEGREES.map(|degree| (*label, degree)))
        .collect();
    let jitter = Scene::of(settings)?.incast_jitter;
    let plan = |(label, degree): &(&str, u32)| {
        let transport = transport(label, &topology, settings)?;
        Ok(CasePlan {
            name: format!("incast-{degree}-{label}"),
            key: format!("{:?} {jitter:?}\n{}", end(settings), transport.key()),
            time: end(settings).since(Time::ZERO),
        })
    };
    let samples: Vec<Replicas<IncastSample>> = sweep(settings, &cases, plan, |case, seed| {
        sample(settings, &topology, *case, seed)
    })?;
    let of = |label: &str, degree: usize| {
        let scheme = LABELS.iter().position(|other| *other == label);
        &samples[scheme.unwrap_or(0) * DEGREES.len() + degree]
    };
    let mut figure = settings.figure(
        "dart-fig10",
        "Completion times of incasts beside a long flow (Dart fig. 10)",
    );
    figure.scenario = vec![format!(
        "one switch, links of 43 Gbit/s and 3 µs; {} incasts of messages of 256 KiB, 100 ms apart, \
         beside a long flow to the same receiver; senders begin within 100 µs",
        rounds(settings.quick)
    )];
    for (what, quantile) in [("median", 0), ("99 %", 1)] {
        for other in IN_PLACE {
            for (degree, senders) in DEGREES.iter().enumerate() {
                let ratio = of(other, degree).paired(of(label::IN_SOFTWARE, degree), |a, b| {
                    Some(a.short_us[quantile]? / b.short_us[quantile]?)
                });
                figure.rows.push(Row::judge(
                    format!("{senders} senders: {what} completion time, {other} over DASR's"),
                    Claim::range(PAPER, TOLERANCE),
                    ratio,
                    "ratio",
                ));
            }
        }
    }
    for other in IN_PLACE {
        figure.rows.push(Row::judge(
            format!("16 senders: 99 % over median, {other}"),
            Claim::number(1.2, TOLERANCE),
            of(other, 3).estimate(|s| Some(s.short_us[1]? / s.short_us[0]?)),
            "ratio",
        ));
        figure.rows.push(Row::judge(
            format!("16 senders: the long flow's goodput, DASR's over {other}"),
            Claim::number(1.0, 0.005),
            of(label::IN_SOFTWARE, 3).paired(of(other, 3), |a, b| Some(a.long_gbps / b.long_gbps)),
            "ratio",
        ));
    }
    for label in LABELS {
        for (degree, senders) in DEGREES.iter().enumerate() {
            for (what, quantile) in [("median", 0), ("99 %", 1)] {
                figure.rows.push(Row::judge(
                    format!("{senders} senders, {label}: {what} completion time"),
                    Claim::nothing(),
                    of(label, degree).estimate(|sample| sample.short_us[quantile]),
                    "µs",
                ));
            }
        }
    }
    let unfinished: usize = samples.iter().map(|s| s.total(|s| s.unfinished)).sum();
    if unfinished > 0 {
        figure
            .notes
            .push(format!("{unfinished} messages did not finish"));
    }
    let panels = [("median", 0), ("99 %", 1)].map(|(what, quantile)| {
        let curves = LABELS.map(|label| {
            let points = DEGREES.iter().enumerate().filter_map(|(degree, senders)| {
                let estimate = of(label, degree).estimate(|s| s.short_us[quantile]);
                Some((f64::from(*senders), estimate?))
            });
            Curve::estimates(label, points).colour(colour(label))
        });
        Panel::curves(
            format!("{what} completion time"),
            Axis::linear("senders of an incast"),
            Axis::linear("µs").starting_at(0.0),
            curves.to_vec(),
        )
    });
    let picture = Picture::new(
        "Incasts of 256 KiB beside a long flow",
        "Dart fig. 10",
        panels.to_vec(),
    );
    figure.data = serde_json::json!({ "cases": cases, "samples": samples });
    Ok(reproduction(figure, picture))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every incast has its senders, each once and within the jitter, beside one long flow.
    #[test]
    fn incasts_are_the_papers() {
        let jitter = Span::from_us(100);
        let flows = flows(16, 3, jitter, 7);
        assert_eq!(flows.len(), 1 + 3 * 16);
        assert_eq!(flows[0].bytes, FlowSpec::UNBOUNDED);
        for (round, incast) in (0..).zip(flows[1..].chunks(16)) {
            let begin = FIRST + PERIOD * round;
            let mut senders: Vec<u32> = incast.iter().map(|flow| flow.src.0).collect();
            senders.sort_unstable();
            assert_eq!(senders, (2..18).collect::<Vec<u32>>());
            assert!(incast.iter().all(|flow| flow.start >= begin
                && flow.start <= begin + jitter
                && flow.bytes == 262_144));
            assert!(incast.is_sorted_by_key(|flow| flow.start));
        }
    }
}
