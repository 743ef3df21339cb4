//! Runs behind [`loads`](super::loads) and [`each`](super::each): half of a Poisson load under
//! Ratewright, half under another scheme, on the same hosts.
//!
//! Flows that begin in the counted time after the warm-up count. The load stays while they finish,
//! up to a bound; one that is not finished then counts with its age.

use ratewright_topology::{Node, Topology};
use serde::{Deserialize, Serialize};

use super::{Feeds, HOST_BPS, HOST_DELAY, topology, transport};
use crate::experiment::monitor::MONITOR;
use crate::experiment::schedule::Schedule;
use crate::experiment::sweep::{CasePlan, Replicas, sweep};
use crate::experiment::{ExperimentError, Settings};
use crate::report::ideal::completion_time;
use crate::report::stats::{mean, quantile};
use crate::results::RunResults;
use crate::run::Config;
use crate::time::{Span, Time};
use crate::workload::{FlowStream, Merge, Poisson, SizeDistribution};

/// A run's scheme, feeds, and load in per cent.
pub type Case = (&'static str, Feeds, u32);

/// Interval at which the queues of receivers' links are sampled: two round trips.
const SAMPLED_EVERY: Span = Span::from_us(50);

/// Kinds of readings whose errors are measured, with the unit of the error and its size.
pub const READINGS: [(&str, &str, &str, f64); 4] = [
    ("receivers", "senders of a receiver", "senders", 1.0),
    ("credit", "rate of a SIRD sender", "Gbit/s", 1e-9),
    ("queue", "queue of a link", "kB", 1e-3),
    ("load", "external load of a link", "Gbit/s", 1e-9),
];

/// Errors of one kind of reading.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadingSample {
    /// Mean distance from the truth, in the unit of [`READINGS`].
    pub error: f64,
    /// Mean of what was true.
    pub truth: f64,
    /// Mean age when the allocator takes it, in microseconds.
    pub age_us: f64,
}

/// Measured values of one run. Pairs are of Ratewright and of the other scheme.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeedSample {
    /// Mean of what waits for a receiver's link while flows of both schemes are on their way to the
    /// receiver, in bytes.
    pub shared_queue_bytes: f64,
    /// Share of the counted time in which a receiver's link is so shared.
    pub shared_time: f64,
    /// Mean of what waits in a port of a switch, in bytes, shared or not.
    pub queue_bytes: f64,
    /// 99 % and mean of slowdown.
    pub slowdown: [[Option<f64>; 2]; 2],
    /// Goodput of a host, in Gbit/s.
    pub goodput_gbps: [f64; 2],
    /// Counted flows.
    pub flows: [usize; 2],
    /// Counted flows that did not finish.
    pub unfinished: [usize; 2],
    /// Dropped packets.
    pub drops: u64,
    /// Errors by kind of reading, where there were any.
    pub readings: [Option<ReadingSample>; 4],
    /// Control traffic to the allocator, in shares of its links.
    pub control_share: f64,
}

impl FeedSample {
    /// Returns the goodput of both schemes.
    #[must_use]
    pub fn total_gbps(&self) -> f64 {
        self.goodput_gbps.iter().sum()
    }
}

/// Times of a run.
#[must_use]
pub fn schedule(quick: bool) -> Schedule {
    let ms = Span::from_ms;
    if quick {
        Schedule {
            warm_up: ms(8),
            counted: ms(8),
            most_drain: ms(8),
            drain: ms(2),
        }
    } else {
        Schedule {
            warm_up: ms(10),
            counted: ms(20),
            most_drain: ms(40),
            drain: ms(5),
        }
    }
}

/// Makes the network: 144 hosts.
fn network() -> Result<Topology, ExperimentError> {
    topology(9, 16, 4, 40_000_000_000)
}

/// Flows of both schemes at a load.
fn flows(hosts: u32, percent: u32, until: Time, seed: u64) -> Result<FlowStream, ExperimentError> {
    let half = f64::from(percent) / 200.0;
    let arrivals = |stream: u64| {
        let sizes = SizeDistribution::published("web-search")?;
        let seed = seed.wrapping_add(stream << 32);
        let flows = Poisson::new(hosts, HOST_BPS, half, sizes, (Time::ZERO, until), seed)?;
        Ok::<_, ExperimentError>(flows)
    };
    let sources: Vec<FlowStream> = vec![Box::new(arrivals(0)?), Box::new(arrivals(1)?)];
    Ok(Box::new(Merge::new(sources)))
}

/// Runs cases under all seeds.
///
/// # Errors
/// See [`ExperimentError`].
pub fn samples(
    settings: &Settings,
    cases: &[Case],
) -> Result<Vec<Replicas<FeedSample>>, ExperimentError> {
    let topology = network()?;
    let times = schedule(settings.quick);
    let plan = |(label, feeds, percent): &Case| {
        let transport = transport(label, *feeds, &topology, settings)?;
        Ok(CasePlan {
            name: format!("{percent}-{}-{label}", feeds.name()),
            key: format!("{times:?}\n{}", transport.key()),
            time: times.most(),
        })
    };
    sweep(settings, cases, plan, |case, seed| {
        sample(settings, &topology, *case, seed)
    })
}

/// Runs a case.
fn sample(
    settings: &Settings,
    topology: &Topology,
    (label, feeds, percent): Case,
    seed: u64,
) -> Result<FeedSample, ExperimentError> {
    let schedule = schedule(settings.quick);
    let transport = transport(label, feeds, topology, settings)?;
    let hosts = topology.hosts().len() as u32;
    let bound = Time::ZERO + schedule.most();
    let downlinks = topology
        .hosts()
        .iter()
        .map(|host| topology.host_downlink(host.id));
    let config = Config {
        seed,
        sample_every: Some(SAMPLED_EVERY),
        watched: downlinks.collect(),
        ..Config::default()
    };
    let framing = transport.fabric.framing;
    let mut run = transport.start(config, topology, flows(hosts, percent, bound, seed)?)?;
    MONITOR.run_until(&mut *run, schedule.begin())?;
    run.end_warm_up();
    let before = run.results();
    MONITOR.run_until(&mut *run, schedule.last())?;
    let after = run.results();
    let results = schedule.drain(&mut *run)?;
    let seconds = schedule.counted.as_secs_f64();
    let of = |label: usize| {
        let delivered = |results: &RunResults| -> u64 {
            let flows = results.flows.iter();
            let own = flows.filter(|flow| usize::from(flow.spec.label) == label);
            own.map(|flow| flow.delivered_bytes).sum()
        };
        (delivered(&after) - delivered(&before)) as f64 * 8e-9 / seconds / f64::from(hosts)
    };
    let mut slowdowns: [Vec<f64>; 2] = Default::default();
    let mut unfinished = [0; 2];
    for flow in results.flows.iter().filter(|flow| schedule.counts(flow)) {
        let label = usize::from(flow.spec.label);
        unfinished[label] += usize::from(flow.finished.is_none());
        let age = || results.now.since(flow.spec.start);
        let took = flow.fct().unwrap_or_else(age);
        let ends = (flow.spec.src, flow.spec.dst);
        let least = completion_time(topology, framing, HOST_DELAY, ends, flow.spec.bytes)?;
        slowdowns[label].push(took.as_secs_f64() / least.as_secs_f64());
    }
    let (shared_queue_bytes, shared_time) = shared_queues(&schedule, &results);
    Ok(FeedSample {
        shared_queue_bytes,
        shared_time,
        queue_bytes: mean(&switch_queues(topology, &after)).unwrap_or(0.0),
        flows: [0, 1].map(|label| slowdowns[label].len()),
        slowdown: slowdowns.map(|mut all| [quantile(&mut all, 0.99), mean(&all)]),
        goodput_gbps: [of(0), of(1)],
        unfinished,
        drops: after.drops(),
        readings: READINGS.map(|(name, _, _, unit)| readings(&before, &after, name, unit)),
        control_share: control_share(topology, &after, seconds),
    })
}

/// Mean bytes that wait for receivers' links at the samples at which flows of both schemes are on
/// their way to the receiver, and the share of these samples in all.
fn shared_queues(schedule: &Schedule, results: &RunResults) -> (f64, f64) {
    let Some(series) = &results.series else {
        return (0.0, 0.0);
    };
    let counted = schedule.begin()..schedule.last();
    let rows: Vec<usize> = (0..series.times.len())
        .filter(|row| counted.contains(&series.times[*row]))
        .collect();
    let receivers = series.watched.len();
    // Flows on their way, by sample, receiver and scheme.
    let mut under_way = vec![[false; 2]; rows.len() * receivers];
    for flow in &results.flows {
        let end = flow.finished.unwrap_or(Time::MAX);
        let label = usize::from(flow.spec.label);
        for (at, row) in rows.iter().enumerate() {
            if (flow.spec.start..end).contains(&series.times[*row]) {
                under_way[at * receivers + flow.spec.dst.index()][label] = true;
            }
        }
    }
    let mut queues = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let bytes = series.queue_bytes[*row].iter().enumerate();
        let shared =
            bytes.filter(|(receiver, _)| under_way[at * receivers + receiver] == [true; 2]);
        queues.extend(shared.map(|(_, bytes)| *bytes as f64));
    }
    let share = queues.len() as f64 / under_way.len().max(1) as f64;
    (mean(&queues).unwrap_or(0.0), share)
}

/// Mean bytes that wait in each port of a switch.
fn switch_queues(topology: &Topology, results: &RunResults) -> Vec<f64> {
    let links = topology.links();
    let of_switches = results.ports.iter().filter(|port| {
        let link = links.get(port.link.index());
        link.is_some_and(|link| matches!(link.from, Node::Switch(_)))
    });
    of_switches.map(|port| port.stats.mean_bytes()).collect()
}

/// Share of the links into the allocator that was in use.
fn control_share(topology: &Topology, results: &RunResults, seconds: f64) -> f64 {
    let links = topology.links().len();
    let into = results.ports.iter().skip(links).filter(|port| port.to_host);
    let (bytes, rate) = into.fold((0, 0), |(bytes, rate), port| {
        (bytes + port.arrived.bytes, rate + port.rate_bps)
    });
    bytes as f64 * 8.0 / seconds / (rate as f64).max(1.0)
}

/// Errors of one kind of reading in the counted time.
fn readings(
    before: &RunResults,
    after: &RunResults,
    name: &str,
    unit: f64,
) -> Option<ReadingSample> {
    let counted = |what: &str| {
        let key = format!("feed_{name}_{what}");
        let of = |results: &RunResults| {
            let counters = results.transport.iter();
            counters
                .clone()
                .find(|(known, _)| *known == key)
                .map(|(_, value)| *value)
        };
        Some(of(after)? - of(before)?)
    };
    let count = counted("readings").filter(|count| *count > 0.0)?;
    Some(ReadingSample {
        error: counted("error")? / count * unit,
        truth: counted("truth")? / count * unit,
        age_us: counted("age_ns")? / count / 1e3,
    })
}
