//! RPM lemma 1: the delayed loop is stable for the lemma's η; and the loop in the simulator, on
//! both sides of the model's exact boundary.
//!
//! Of the lemma, three statements are computed from [`model`](super::model): η of equation 2 at the
//! printed s*, η between 0 and the root that equation 6 would have with its linear term's sign
//! turned, and "varying dₛ with a constant d and c, η is approximately constant".
//!
//! The simulated loop has the model's parts: NewReno (a = 1, b = 1/2), and marks with probability η
//! (x − x*), by RED on the instantaneous queue. RED spreads its marks evenly, which doubles their
//! rate, so that its slope is half of η. The model is of one flow and continuous. A crowd of flows
//! with an equal share of the link each give the sum of their rates, around which single halvings
//! average out; η over the number of flows per packet of the common queue makes the same loop. x*
//! is set such that the queue at the equilibrium is 10 ms in every case, and so d is the model's.
//!
//! A growing oscillation ends where the queue falls below x*, at which marks cease. A loop counts
//! as stable if the queue's standard deviation is at most 0.35 of its distance from x* at the
//! equilibrium: half of what a sinusoid has that just reaches x* (1/√2).

use ratewright_topology::{HostId, Topology};

use super::model::{Clock, Loop};
use super::{HOST_BPS, Marking, PAIRS, Testbed, results, transport};
use crate::FlowSpec;
use crate::experiment::sweep::{CasePlan, sweep};
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::net::queue::red::{self, RedConfig};
use crate::net::{Framing, QueueConfig};
use crate::plan::PlannedTransport;
use crate::report::estimate::Estimate;
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture};
use crate::run::Config;
use crate::time::{Span, Time};
use crate::workload::FlowStream;

/// Flows, forty of each pair.
const FLOWS: u32 = 400;
/// Fair share of a flow, in packets per second: a window of 20 packets, in which halving matters
/// and is no halt.
const SHARE: f64 = 1_000.0;
/// One-way delay of the senders' and of the receivers' links: 10 ms of propagation both ways, and
/// half of it up to the bottleneck.
const LINK: Span = Span::from_us(2_500);
/// Queueing delay at the equilibrium, in seconds.
const QUEUEING_S: f64 = 0.01;
/// Queue at the equilibrium.
const EQUILIBRIUM_PACKETS: f64 = FLOWS as f64 * SHARE * QUEUEING_S;
/// Largest deviation of a stable queue over its distance from x* at the equilibrium.
const STABLE: f64 = 0.35;
/// η over that of RPM's boundary, and the marking.
const CASES: [(f64, Marking); 4] = [
    (0.5, Marking::Reverse),
    (4.0, Marking::Reverse),
    (0.5, Marking::Forward),
    (4.0, Marking::Forward),
];

/// The loop of one flow under RPM.
const REVERSE: Loop = Loop {
    capacity: SHARE,
    round_trip: 4.0 * 0.0025 + QUEUEING_S,
    short_round_trip: 2.0 * 0.0025,
};

/// The loop of one flow under forward marks.
const FORWARD: Loop = Loop {
    short_round_trip: REVERSE.round_trip,
    ..REVERSE
};

/// Measurements of one run.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LoopSample {
    /// Mean of the queue, in packets.
    pub mean_packets: f64,
    /// Standard deviation of the queue over its distance from x* at the equilibrium.
    pub deviation: f64,
    /// Time between upward crossings of the mean, in s.
    pub period_s: Option<f64>,
    /// The queue by 20 ms at the end, in s and packets.
    pub queue: Vec<(f64, f64)>,
}

fn packet_bits() -> f64 {
    let framing = Framing::default();
    8.0 * f64::from(framing.wire_bytes(framing.mss_bytes))
}

/// Distance of the queue at the equilibrium from x*, with a gain of η.
fn excess_packets(eta: f64) -> f64 {
    REVERSE.marked_share() / (eta / f64::from(FLOWS))
}

/// Makes the network and its NewReno under linear marking with a gain of η.
fn network(
    settings: &Settings,
    eta: f64,
    marking: Marking,
) -> Result<(Topology, PlannedTransport), ExperimentError> {
    let rate_bps = (f64::from(FLOWS) * SHARE * packet_bits()) as u64;
    let testbed = Testbed {
        rates_bps: [10 * HOST_BPS, rate_bps],
        senders: LINK,
        receivers: [LINK; PAIRS as usize],
    };
    let topology = testbed.topology()?;
    let per_packet = eta / f64::from(FLOWS);
    let target = (EQUILIBRIUM_PACKETS - excess_packets(eta)).max(0.0);
    let red = QueueConfig::Red(red::Config {
        control: RedConfig {
            min_packets: target,
            max_packets: target + 1.0 / per_packet,
            max_probability: 0.5,
            weight: 1.0,
            ecn: true,
        },
        ..red::Config::default()
    });
    let mut new_reno = transport("newreno", marking, &topology, Span::ZERO, settings)?;
    new_reno.fabric.core = marking.of(red);
    Ok((topology, new_reno))
}

fn sample(
    settings: &Settings,
    (eta, marking): (f64, Marking),
    (warm_up, end): (Time, Time),
    seed: u64,
) -> Result<LoopSample, ExperimentError> {
    let (topology, new_reno) = network(settings, eta, marking)?;
    let bottleneck = topology.links().iter().find(|link| {
        topology.node_name(link.from) == "spine1" && topology.node_name(link.to) == "leaf2"
    });
    let bottleneck = bottleneck.map(|link| link.id);
    // Starts are spread over two seconds, so that slow starts do not meet.
    let flows: FlowStream = Box::new((0..FLOWS).map(move |i| {
        let (from, to) = (HostId(i % PAIRS), HostId(PAIRS + i % PAIRS));
        let start = Time::from_ms(5 * u64::from(i)) + Span::from_us(37 * (seed % 1_000));
        FlowSpec::new(from, to, FlowSpec::UNBOUNDED, start)
    }));
    let config = Config {
        seed,
        sample_every: Some(Span::from_ms(1)),
        watched: bottleneck.into_iter().collect(),
        ..Config::default()
    };
    let results = results(&new_reno, &topology, config, flows, end)?;
    let queue: Vec<(f64, f64)> = results
        .series
        .iter()
        .flat_map(|series| {
            let samples = series.times.iter().zip(&series.queue_bytes);
            samples
                .filter(|(at, _)| **at >= warm_up)
                .filter_map(|(at, row)| {
                    Some((at.as_secs_f64(), *row.first()? as f64 * 8.0 / packet_bits()))
                })
        })
        .collect();
    Ok(LoopSample::of(&queue, excess_packets(eta)))
}

impl LoopSample {
    fn of(queue: &[(f64, f64)], excess: f64) -> Self {
        let count = queue.len().max(1) as f64;
        let mean = queue.iter().map(|(_, packets)| packets).sum::<f64>() / count;
        let square = |packets: f64| (packets - mean).powi(2);
        let variance = queue
            .iter()
            .map(|(_, packets)| square(*packets))
            .sum::<f64>()
            / count;
        let deviation = variance.sqrt();
        // A crossing counts after the queue was well below, so that noise at the mean is none.
        let (mut below, mut crossings) = (false, Vec::new());
        for &(at, packets) in queue {
            if packets < mean - 0.5 * deviation {
                below = true;
            } else if below && packets > mean {
                below = false;
                crossings.push(at);
            }
        }
        let periods = crossings.len().saturating_sub(1);
        let span = crossings.last().zip(crossings.first());
        let period = span.map(|(last, first)| (last - first) / periods as f64);
        Self {
            mean_packets: mean,
            deviation: deviation / excess,
            period_s: period.filter(|_| periods > 0),
            queue: queue.iter().rev().step_by(20).take(200).copied().collect(),
        }
    }
}

/// η on the boundary of stability.
fn boundary(of: &Loop, clock: Clock) -> f64 {
    // The loops here have a boundary, which a test holds.
    of.boundary(clock).map_or(f64::NAN, |(eta, _)| eta)
}

/// Rows of the statements about equation 2. They are computed, and so equal for all seeds.
fn lemma_rows(seeds: usize) -> Vec<Row> {
    let exact = |value: f64| Estimate::of(vec![value; seeds]);
    let printed = REVERSE.eta(REVERSE.printed_root());
    let positions = [0.002, 0.005, 0.01, 0.019].map(|short_round_trip| Loop {
        short_round_trip,
        ..REVERSE
    });
    let spread = |value: fn(&Loop) -> f64| {
        let values = positions.each_ref().map(value);
        let most = values.iter().copied().fold(0.0, f64::max);
        most / values.iter().copied().fold(f64::INFINITY, f64::min)
    };
    vec![
        Row::judge(
            "η of equation 2 at the printed s*",
            Claim::words("positive").at_least(0.0),
            exact(printed),
            "per packet",
        )
        .disagrees_because(format!(
            "at the printed s* = {:.0}/s equation 2 is negative, and more so below it; the root of \
             the numerator's series has the other sign in its linear term, which gives {:.2}/s, and \
             η is positive between that and 0",
            REVERSE.printed_root(),
            REVERSE.root()
        )),
        Row::judge(
            "largest η of equation 2 between the root with the sign turned and 0",
            Claim::words("small and positive").at_least(0.0).at_most(1.0),
            exact(REVERSE.lemma_eta()),
            "per packet",
        ),
        Row::judge(
            "that η for dₛ of 2 to 19 ms: largest over least",
            Claim::words("approximately constant").at_most(1.05),
            exact(spread(Loop::lemma_eta)),
            "ratio",
        ),
        Row::judge(
            "η of the model's exact boundary over that η",
            Claim::words("stable, so at least 1").at_least(1.0),
            exact(boundary(&REVERSE, Clock::Constant) / REVERSE.lemma_eta()),
            "ratio",
        ),
        Row::judge(
            "η of the exact boundary for dₛ of 2 to 19 ms: largest over least",
            Claim::nothing(),
            exact(spread(|of| boundary(of, Clock::Constant))),
            "ratio",
        )
        .note("what the lemma allows is far below the boundary, which does depend on dₛ"),
        Row::judge(
            "η of RPM's boundary over that of forward marks",
            Claim::nothing(),
            exact(boundary(&REVERSE, Clock::Constant) / boundary(&FORWARD, Clock::Constant)),
            "ratio",
        ),
    ]
}

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let (warm_up, end) = if settings.quick { (3, 7) } else { (10, 60) };
    let (warm_up, end) = (Time::from_ms(1_000 * warm_up), Time::from_ms(1_000 * end));
    let bound = boundary(&REVERSE, Clock::Constant);
    let seeds = settings.seeds().count();
    let plan = |&(factor, marking): &(f64, Marking)| {
        let (_, new_reno) = network(settings, factor * bound, marking)?;
        Ok(CasePlan {
            name: format!("lemma1-{factor}-{}", marking.name()),
            key: format!("{warm_up:?} {end:?}\n{}", new_reno.key()),
            time: end.since(Time::ZERO),
        })
    };
    let samples = sweep(settings, &CASES, plan, |&(factor, marking), seed| {
        sample(settings, (factor * bound, marking), (warm_up, end), seed)
    })?;
    let mut figure = settings.figure("rpm-lemma1", "Stability of the delayed loop (RPM lemma 1)");
    figure.scenario = vec![
        format!("{FLOWS} NewReno flows, {SHARE} packets/s each, d = 20 ms, dₛ = 5 ms"),
        "marks with probability η (x − x*), queue of 10 ms at the equilibrium".to_owned(),
        format!(
            "η of the boundary: {:.2e} per packet of a flow's share under RPM, {:.2e} forward",
            bound,
            boundary(&FORWARD, Clock::Constant)
        ),
    ];
    figure.rows = lemma_rows(seeds);
    let mut lines = Vec::new();
    for (&(factor, marking), runs) in CASES.iter().zip(&samples) {
        let own = match marking {
            Marking::Forward => FORWARD,
            _ => REVERSE,
        };
        let times = |clock: Clock| factor * bound / boundary(&own, clock);
        let (paper, clocked) = (times(Clock::Constant), times(Clock::Acks));
        let claim = if paper < 1.0 {
            Claim::words("stable: dies out").at_most(STABLE)
        } else {
            Claim::words("unstable: oscillates").at_least(STABLE)
        };
        let name = if marking == Marking::Forward {
            "forward"
        } else {
            "RPM"
        };
        let label = format!("{name}, η {paper:.2} times the model's boundary");
        let mut row = Row::judge(
            format!("{label}: deviation of the queue over its distance from x*"),
            claim,
            runs.estimate(|sample| Some(sample.deviation)),
            "ratio",
        );
        if paper > 1.0 && clocked < 1.0 {
            row = row.disagrees_because(
                "the model's rate is w/d with a constant d; acknowledgements clock the window, so \
                 that a growing queue slows its flows, which damps the loop",
            );
        }
        let note = format!("η is {clocked:.2} times the boundary with that clocking");
        figure.rows.push(row.note(note));
        if clocked > 1.0 {
            let row = Row::judge(
                format!("{label}: period"),
                Claim::nothing(),
                runs.estimate(|sample| sample.period_s),
                "s",
            );
            let omega = own.boundary(Clock::Acks).map_or(0.0, |(_, omega)| omega);
            let period = std::f64::consts::TAU / omega;
            let note = format!("at the boundary with ACK clocking the model has {period:.3} s");
            figure.rows.push(row.note(note));
        }
        if let Some(first) = runs.first() {
            lines.push((marking, Curve::new(label, first.queue.clone())));
        }
    }
    let panel = |of: Marking, title: &str| {
        let own = lines.iter().filter(|(marking, _)| *marking == of);
        Panel::curves(
            title,
            Axis::linear("Time (s)"),
            Axis::linear("Queue (packets)").starting_at(0.0),
            own.map(|(_, line)| line.clone()).collect(),
        )
        .mark(EQUILIBRIUM_PACKETS, "equilibrium")
    };
    let picture = Picture::new(
        "The loop on both sides of the model's boundary",
        "RPM §IV; 400 NewReno flows, linear marking",
        vec![
            panel(Marking::Reverse, "Marks in acknowledgements"),
            panel(Marking::Forward, "Marks forward"),
        ],
    );
    figure.data = serde_json::json!({ "cases": CASES, "samples": samples });
    Ok(Reproduction { figure, picture })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_loops_have_a_boundary_and_the_shorter_one_the_higher() {
        let [reverse, forward] = [REVERSE, FORWARD].map(|of| boundary(&of, Clock::Constant));
        assert!(reverse > 3.0 * forward, "{reverse} {forward}");
        assert!(forward > REVERSE.lemma_eta());
        for of in [REVERSE, FORWARD] {
            assert!(boundary(&of, Clock::Acks) > boundary(&of, Clock::Constant));
        }
        // All cases have a queue at the equilibrium that is above the target.
        for (factor, _) in CASES {
            let excess_s = REVERSE.marked_share() / (factor * reverse) / SHARE;
            assert!(excess_s < QUEUEING_S, "{factor}: {excess_s}");
        }
    }
}
