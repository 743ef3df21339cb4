//! Flowtune fig. 8: five senders and one receiver. Every 10 ms another flow starts, then every 10
//! ms one stops.
//!
//! The picture shows what the receiver's application gets in intervals of 100 µs, as in the paper.
//! At 2 Gbit/s such an interval holds 16 or 17 packets, so counting whole packets moves a flow by 6
//! %. The verdict therefore measures a flow's rate between packets: from the last one before the
//! interval to the last one within it, over the time between the two.

use ratewright_topology::{HostId, Topology};

use super::contenders::{DCTCP, FLOWTUNE, IDEAL, PFABRIC, SFQ_CODEL, XCP, contenders};
use super::fig09_update_traffic::PRODUCTION;
use super::monitor::MONITOR;
use super::sweep::{CasePlan, Replicas, sweep};
use super::{ExperimentError, Reproduction, Settings, scene};
use crate::plan::PlannedTransport;
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture, style};
use crate::run::Config;
use crate::time::{Span, Time};
use crate::workload::Staggered;

/// Number of flows, each from a sender of its own.
const FLOWS: u32 = 5;
/// Time from one start, or stop, to the next.
const STEP: Span = Span::from_ms(10);
/// Length of the run, in which every flow starts and stops.
const DURATION: Span = Span::from_ms(10 * 2 * FLOWS as u64);
/// The paper's averaging interval.
const INTERVAL: Span = Span::from_us(100);
/// Interval of the samples, below the 1.2 µs that a packet lasts at 10 Gbit/s.
const SAMPLE: Span = Span::from_ns(500);
/// Relative distance from 1/N up to which a flow counts as fair.
const FAIR: f64 = 0.05;
/// Number of phases between starts and stops.
const PHASES: u32 = 2 * FLOWS - 1;
/// Time that stands for a phase in which flows never are fair: its length, in µs.
const NEVER_US: f64 = 10_000.0;

/// Parameters that figure 8 does not depend on much are not varied.
pub(super) const VARIATIONS: &[&[&str]] = &[
    PRODUCTION,
    &["flowtune.iteration=30.71us"],
    &["dctcp.mark_packets=40"],
    &["cubic.queue.interval=60us"],
];

/// Deliveries to the receiver under one scheme, by sample.
#[derive(Clone, Debug)]
pub struct Deliveries {
    /// The scheme's name in the figure.
    pub name: String,
    /// Bytes delivered in order, by sample and flow.
    delivered: Vec<Vec<u64>>,
}

/// Runs the five flows under a scheme.
fn five_flows(
    transport: &PlannedTransport,
    topology: &Topology,
    seed: u64,
) -> Result<Deliveries, ExperimentError> {
    // Five racks, each with one sender; the receiver is in a sixth. Only its link is shared, so 1/N
    // is the fair share whatever paths flows take.
    let sender = |rack: u32| HostId(rack * scene::HOSTS_PER_RACK);
    let senders = (0..FLOWS).map(sender).collect();
    let flows = Staggered::new(senders, sender(FLOWS), Time::ZERO, STEP, true);
    let config = Config {
        seed,
        sample_every: Some(SAMPLE),
        sampled_flows: FLOWS,
        ..Config::default()
    };
    let mut run = transport.start(config, topology, Box::new(flows))?;
    MONITOR.run_until(&mut *run, Time::ZERO + DURATION)?;
    let results = run.results();
    results.conservation?;
    let delivered = results.series.map(|series| series.delivered_bytes);
    Ok(Deliveries {
        name: transport.label.clone(),
        delivered: delivered.unwrap_or_default(),
    })
}

impl Deliveries {
    /// Bytes that a flow has delivered up to a sample; past the last sample, up to that.
    fn at(&self, sample: usize, flow: usize) -> u64 {
        let row = self.delivered.get(sample).or(self.delivered.last());
        row.and_then(|row| row.get(flow)).copied().unwrap_or(0)
    }

    /// Throughput of a flow by interval of 100 µs: the interval's middle in ms, and Gbit/s.
    fn throughput(&self, flow: usize) -> Vec<(f64, f64)> {
        let per = (INTERVAL.as_ps() / SAMPLE.as_ps()) as usize;
        (0..self.delivered.len() / per)
            .map(|i| {
                let before = if i == 0 {
                    0
                } else {
                    self.at(i * per - 1, flow)
                };
                let bytes = self.at((i + 1) * per - 1, flow) - before;
                let at_ms = (i as f64 + 0.5) * INTERVAL.as_secs_f64() * 1e3;
                (at_ms, bytes as f64 * 8.0 / INTERVAL.as_secs_f64() / 1e9)
            })
            .collect()
    }

    /// A flow's rate in the samples `[from, to)`, between packets, in bit/s; 0 if no packet came.
    fn rate_bps(&self, flow: usize, from: usize, to: usize) -> f64 {
        // The count rises only where a packet arrives, so its last rise dates the last packet at or
        // before a sample.
        let last_rise = |sample: usize| {
            let count = self.at(sample, flow);
            let mut at = sample;
            while at > 0 && self.at(at - 1, flow) == count {
                at -= 1;
            }
            at
        };
        let (first, last) = (last_rise(from), last_rise(to));
        if last <= first {
            return 0.0;
        }
        let bytes = self.at(last, flow) - self.at(first, flow);
        bytes as f64 * 8.0 / ((last - first) as f64 * SAMPLE.as_secs_f64())
    }

    /// Time from a phase's begin until every active flow's throughput, over 100 µs, first is within
    /// 5 % of 1/N, in µs. `None` if that never happens within the phase.
    fn fair_after_us(&self, phase: u32, capacity_bps: f64) -> Option<f64> {
        let active = active(phase);
        let fair = capacity_bps / active.len() as f64;
        let per_us = 1_000_000 / SAMPLE.as_ps() as usize;
        let begin = phase as usize * (STEP.as_ps() / SAMPLE.as_ps()) as usize;
        let steps = (STEP.as_ps() / INTERVAL.as_ps()) as usize;
        let per = (INTERVAL.as_ps() / SAMPLE.as_ps()) as usize;
        // Windows begin every 10 µs, ten to an interval. The last interval of the phase is left
        // out, because a window that begins there would reach into the next phase.
        (0..(steps - 1) * 10)
            .map(|i| i * 10 * per_us)
            .find_map(|after| {
                let from = begin + after;
                let all = active.clone().all(|flow| {
                    let rate = self.rate_bps(flow as usize, from, from + per);
                    (rate / fair - 1.0).abs() <= FAIR
                });
                all.then_some((after / per_us) as f64)
            })
    }

    /// The largest relative distance from 1/N of any active flow, over intervals of 100 µs, from
    /// 100 µs after each start or stop on.
    fn worst_after_100_us(&self, capacity_bps: f64) -> f64 {
        let per = (INTERVAL.as_ps() / SAMPLE.as_ps()) as usize;
        let in_phase = (STEP.as_ps() / INTERVAL.as_ps()) as usize;
        let mut worst: f64 = 0.0;
        for phase in 0..PHASES {
            let active = active(phase);
            let fair = capacity_bps / active.len() as f64;
            // The first interval is the scheme's time to converge; the last one ends with the next
            // start.
            for interval in 1..in_phase - 1 {
                let from = (phase as usize * in_phase + interval) * per;
                for flow in active.clone() {
                    let rate = self.rate_bps(flow as usize, from, from + per);
                    worst = worst.max((rate / fair - 1.0).abs());
                }
            }
        }
        worst
    }
}

impl Deliveries {
    /// The distance of [`Self::worst_after_100_us`], of whole packets that the application gets by
    /// interval. A hole in the window delivers nothing for a while and then much at once, which a
    /// rate between packets would not show.
    fn worst_burst(&self, capacity_bps: f64) -> f64 {
        let in_phase = (STEP.as_ps() / INTERVAL.as_ps()) as usize;
        let mut worst: f64 = 0.0;
        for phase in 0..PHASES {
            let active = active(phase);
            let fair_gbps = capacity_bps / active.len() as f64 / 1e9;
            for flow in active {
                let throughput = self.throughput(flow as usize);
                let begin = phase as usize * in_phase;
                let of_phase = throughput.iter().skip(begin).take(in_phase - 1).skip(1);
                worst = of_phase.fold(worst, |worst, (_, gbps)| {
                    worst.max((gbps / fair_gbps - 1.0).abs())
                });
            }
        }
        worst
    }
}

/// The flows that are active in a phase of 10 ms: 1 to 5 of them, then down to 1 again.
fn active(phase: u32) -> std::ops::Range<u32> {
    (phase + 1).saturating_sub(FLOWS)..(phase + 1).min(FLOWS)
}

/// Measurements of one run under one scheme.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Fairness {
    /// Time to fairness by phase, in µs.
    fair_after_us: Vec<Option<f64>>,
    /// Largest relative distance from 1/N.
    worst: f64,
    /// Throughput of each flow by interval, for the picture.
    throughput: Vec<Vec<(f64, f64)>>,
}

impl Fairness {
    fn new(deliveries: &Deliveries, capacity_bps: f64) -> Self {
        let phases = 0..PHASES;
        Self {
            fair_after_us: phases
                .map(|phase| deliveries.fair_after_us(phase, capacity_bps))
                .collect(),
            // Only sfqCoDel is said to reach fair rates and still deliver in bursts, which only
            // whole packets at the application show.
            worst: match deliveries.name.as_str() {
                SFQ_CODEL => deliveries.worst_burst(capacity_bps),
                _ => deliveries.worst_after_100_us(capacity_bps),
            },
            throughput: (0..FLOWS as usize)
                .map(|flow| deliveries.throughput(flow))
                .collect(),
        }
    }

    fn slowest_us(&self) -> f64 {
        let times = self.fair_after_us.iter();
        times.fold(0.0, |most, time| f64::max(most, time.unwrap_or(NEVER_US)))
    }

    fn never(&self) -> f64 {
        self.fair_after_us
            .iter()
            .filter(|time| time.is_none())
            .count() as f64
    }
}

/// The paper's words on a scheme (§5.3.1 D), with our reading of them: of the slowest phase in µs,
/// and of the largest distance from 1/N in per cent. "Fluctuates", "bursts" and "slow" are read as
/// farther from 1/N than what counts as fair, at some time.
fn claims(scheme: &str) -> [Claim; 2] {
    let unfair = |text: &str| Claim::words(text).at_least(100.0 * FAIR);
    match scheme {
        FLOWTUNE => [
            Claim::words("100 µs").at_most(100.0),
            Claim::words("N flows each get 1/N").at_most(100.0 * FAIR),
        ],
        DCTCP => [
            Claim::words("several milliseconds").at_least(2_000.0),
            unfair("allocations fluctuate"),
        ],
        PFABRIC => [
            Claim::words("never: it does not share").at_least(NEVER_US),
            unfair("one flow has it all"),
        ],
        SFQ_CODEL => [
            Claim::words("quickly, but in bursts"),
            unfair("bursts, and nothing in between"),
        ],
        XCP => [
            Claim::words("slowly").at_least(100.0),
            unfair("slow to hand out bandwidth"),
        ],
        // None of the paper's; it shows what the measurement itself adds.
        _ => [Claim::nothing(), Claim::nothing()],
    }
}

/// Reason for which three seeds may not decide XCP's slowest phase.
const SPREAD: &str = "the slowest phase differs by a factor of three from seed to seed";

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let topology = scene::topology(scene::RACKS)?;
    let transports = contenders(&topology, settings)?;
    let framing = transports[0].fabric.framing;
    let goodput_bps = scene::HOST_BPS as f64 * f64::from(framing.mss_bytes)
        / f64::from(framing.wire_bytes(framing.mss_bytes));
    let plan = |transport: &PlannedTransport| {
        Ok(CasePlan {
            name: format!("staggered-{}", transport.label),
            key: transport.key(),
            time: DURATION,
        })
    };
    let found = sweep(settings, &transports, plan, |transport, seed| {
        let deliveries = five_flows(transport, &topology, seed)?;
        // The ideal scheme hands out less than the link, to leave acknowledgements the rest: 1/N is
        // of that.
        let capacity_bps = match transport.label.as_str() {
            IDEAL => goodput_bps * framing.data_share(),
            _ => goodput_bps,
        };
        Ok(Fairness::new(&deliveries, capacity_bps))
    })?;
    let mut figure = settings.figure(
        "flowtune-fig08",
        "Five staggered flows to one receiver (flowtune fig. 8)",
    );
    for (transport, runs) in transports.iter().zip(&found) {
        let name = &transport.label;
        let [time, distance] = claims(name);
        let row = Row::judge(
            format!("{name}: every flow within 5 % of 1/N after a start or stop, slowest phase"),
            time,
            runs.estimate(|run| Some(run.slowest_us())),
            "µs",
        );
        let row = match name.as_str() {
            XCP => row.undecided_because(SPREAD),
            _ => row,
        };
        figure.rows.push(row.note(by_phase(runs)));
        figure.rows.push(Row::judge(
            format!("{name}: farthest from 1/N of any flow, from 100 µs after a change on"),
            distance,
            runs.estimate(|run| Some(100.0 * run.worst)),
            "%",
        ));
    }
    figure.notes = vec![
        "a phase lasts 10 ms, which also stands for one in which flows are never fair".to_owned(),
        "pFabric: a window of at most 15 packets of 1,460 bytes over a round trip of 23 µs is 7.6 Gbit/s, so that one flow leaves room for a second one".to_owned(),
    ];
    figure.scenario = vec![
        "144 servers; senders in five racks, the receiver in a sixth; a start every 10 ms, then a stop every 10 ms".to_owned(),
        format!("1/N of {:.3} Gbit/s, the payload of a 10 Gbit/s link in packets of 1,460 bytes", goodput_bps / 1e9),
    ];
    // Courses over time cannot be averaged: the picture is the first seed's.
    let plot = |(transport, runs): (&PlannedTransport, &Replicas<Fairness>)| {
        let lines = runs.first()?.throughput.iter().enumerate();
        let lines = lines.map(|(flow, throughput)| {
            Curve::new(format!("flow {}", flow + 1), throughput.clone()).colour(style::colour(flow))
        });
        Some(Panel::curves(
            transport.label.as_str(),
            Axis::linear("Time (ms)").over(0.0, 100.0),
            Axis::linear("Throughput (Gbit/s)").over(0.0, 10.0),
            lines.collect(),
        ))
    };
    let panels = transports.iter().zip(&found).filter_map(plot);
    let picture = Picture::new(
        "Five staggered flows to one receiver",
        "Flowtune fig. 8: a flow starts every 10 ms, then one stops every 10 ms; intervals of 100 µs; first seed",
        panels.collect(),
    )
    .columns(3)
    .panel_size(420, 300);
    Ok(Reproduction { figure, picture })
}

/// Means of the times to fairness by phase, in words.
fn by_phase(runs: &Replicas<Fairness>) -> String {
    let of_phase = |phase: usize| {
        let mean = runs.estimate(|run| run.fair_after_us[phase]);
        mean.map_or("not always".to_owned(), |mean| format!("{:.0}", mean.mean))
    };
    let times: Vec<String> = (0..PHASES as usize).map(of_phase).collect();
    let never = runs.estimate(|run| Some(run.never()));
    format!(
        "by phase of 1, 2, 3, 4, 5, 4, 3, 2, 1 flows: {}; {:.1} of 9 phases never get there",
        times.join(", "),
        never.map_or(0.0, |never| never.mean)
    )
}
