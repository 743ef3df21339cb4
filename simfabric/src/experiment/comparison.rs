//! Runs behind figures 12 to 15: the paper's schemes under equal Poisson flowlets of one workload,
//! at several loads. A process runs each combination of scheme, load and settings once.
//!
//! Counted are flowlets that start in the time after the warm-up, the same time for all schemes, so
//! that equal seeds count equal flowlets. [MSER-5](crate::report::stationarity) judges the warm-up
//! by the number of active flowlets; a sample says if it was too short. The load stays while the
//! counted flowlets finish, up to a bound. A flowlet that is not finished then counts with its age,
//! a lower bound. Completion is at the receiver's last byte, and beside it at the sender's last
//! acknowledgement.

use rand::RngExt as _;
use ratewright_topology::{HostId, LinkId, Node, PathChoice, Topology};

use super::contenders::{FLOWTUNE, PAPER, contenders};
use super::fig09_update_traffic::PRODUCTION;
use super::monitor::MONITOR;
use super::scene::{PathQueues, SceneConfig, ScoreWeight};
use super::schedule::Schedule;
use super::sweep::{CasePlan, Replicas, sweep};
use super::{ExperimentError, Settings, scene};
use crate::plan::PlannedTransport;
use crate::report::estimate::Estimate;
use crate::report::ideal;
use crate::report::size_groups::{BY_PACKETS, SizeGroups};
use crate::report::stationarity::mser5;
use crate::report::stats::quantile;
use crate::results::{PortResult, RunResults, Series};
use crate::rng::{Purpose, Stream};
use crate::run::Config;
use crate::time::{Span, Time};
use crate::workload::Poisson;

/// Other parameters that figures 12 to 15 are measured under for their sensitivity tables, one at a
/// time: Flowtune's control plane; framing, handshake, first window and warm connections of all;
/// each scheme's own.
pub(super) const VARIATIONS: &[&[&str]] = &[
    PRODUCTION,
    &["flowtune.step=safeguarded"],
    &["flowtune.iteration=0us"],
    &["flowtune.iteration=30.71us"],
    &["flowtune.initial_window_packets=10"],
    &["packet.header_bytes=78", "packet.min_wire_bytes=84"],
    &[
        "flowtune.handshake=true",
        "dctcp.handshake=true",
        "pfabric.handshake=true",
        "cubic.handshake=true",
        "xcp.handshake=true",
    ],
    &[
        "dctcp.initial_window_packets=2",
        "cubic.initial_window_packets=2",
    ],
    &[
        "dctcp.warm_connections=1",
        "pfabric.warm_connections=1",
        "cubic.warm_connections=1",
        "xcp.warm_connections=1",
    ],
    &["flowtune.reserve=0.05"],
    &["dctcp.mark_packets=40"],
    &["pfabric.arbiter=round-robin"],
    &["pfabric.fixed_rto=66us"],
    &["cubic.queue.interval=60us"],
    &[
        "flowtune.min_rto=1ms",
        "dctcp.min_rto=1ms",
        "cubic.min_rto=1ms",
        "xcp.min_rto=1ms",
    ],
    &["xcp.first_interval=50ms", "xcp.idle_interval=50ms"],
];

/// Measurements of one scheme at one load.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SchemeSample {
    /// The scheme's label.
    pub scheme: String,
    /// The load, as a share of the servers' links.
    pub load: f64,
    /// 99 % of the slowdown (completion time over that on an empty network) by class of size.
    pub slowdown_p99: [Option<f64>; 5],
    /// 99 % of the slowdown at the sender's last acknowledgement; `slowdown_p99` is that
    /// at the receiver's last byte.
    pub sender_slowdown_p99: [Option<f64>; 5],
    /// Flowlets counted, by class.
    pub flowlets: [usize; 5],
    /// Counted flowlets that did not finish.
    pub unfinished: usize,
    /// True if the number of active flowlets was stationary from the warm-up's end on.
    pub stationary: bool,
    /// 99th percentile of the queueing delay of paths of two links, and of four, in µs.
    pub queueing_p99_us: [f64; 2],
    /// Dropped data of the whole network after the warm-up, in Gbit/s.
    pub drops_gbps: f64,
    /// Dropped bytes over bytes that servers sent after the warm-up.
    pub drops_share: f64,
    /// The part of `drops_share` that servers' own NICs dropped.
    pub nic_drops_share: f64,
    /// Mean of log₂ of flowlets' rates, in log₂ bit/s.
    pub fairness: f64,
    /// Mean of log₂ of flowlets' rates by class of size.
    pub fairness_by_class: [Option<f64>; 5],
}

/// Returns the times of a comparison.
fn schedule(quick: bool) -> Schedule {
    let ms = Span::from_ms;
    if quick {
        Schedule {
            warm_up: ms(5),
            counted: ms(6),
            most_drain: ms(6),
            drain: ms(2),
        }
    } else {
        Schedule {
            warm_up: ms(100),
            counted: ms(100),
            most_drain: ms(60),
            drain: ms(10),
        }
    }
}

/// Interval at which queues and active flowlets are sampled. The paper has 1 ms (§5.3.2 I), for
/// runs that are longer.
const SAMPLE: Span = Span::from_us(20);
/// Paths of each length whose delays are sampled.
const PATHS: usize = 256;

/// The loads of a comparison.
#[must_use]
pub fn loads(quick: bool) -> &'static [f64] {
    if quick {
        &[0.4, 0.8]
    } else {
        &[0.2, 0.4, 0.6, 0.8]
    }
}

/// A run of one scheme at one load.
struct ComparisonRun<'a> {
    transport: &'a PlannedTransport,
    topology: &'a Topology,
    load: f64,
    quick: bool,
    scene: &'a SceneConfig,
}

impl ComparisonRun<'_> {
    fn run(&self, seed: u64) -> Result<SchemeSample, ExperimentError> {
        let schedule = schedule(self.quick);
        let bound = Time::ZERO + schedule.most();
        let flows = Poisson::new(
            self.topology.hosts().len() as u32,
            scene::HOST_BPS,
            self.load,
            self.scene.sizes()?,
            (Time::ZERO, bound),
            seed,
        )?;
        let links = 0..self.topology.links().len() as u32;
        let config = Config {
            seed,
            sample_every: Some(SAMPLE),
            watched: links.map(LinkId).collect(),
            ..Config::default()
        };
        let mut run = self
            .transport
            .start(config, self.topology, Box::new(flows))?;
        let warm_up = schedule.begin();
        MONITOR.run_until(&mut *run, warm_up)?;
        run.end_warm_up();
        // Queues and drops are those while counted flowlets start.
        MONITOR.run_until(&mut *run, schedule.last())?;
        let during = run.results();
        let series = during.series.as_ref();
        let stationary = series.is_some_and(|series| is_stationary(series, warm_up));
        let mut results = schedule.drain(&mut *run)?;
        results.flows.retain(|flow| schedule.counts(flow));
        self.sample(seed, (warm_up, stationary), &during, &results)
    }

    /// Works out the sample: queues and drops from `during`, the results at the last start, and
    /// completion times from `results`, those at the end with the counted flowlets alone.
    fn sample(
        &self,
        seed: u64,
        (warm_up, stationary): (Time, bool),
        during: &RunResults,
        results: &RunResults,
    ) -> Result<SchemeSample, ExperimentError> {
        let groups = SizeGroups::default();
        let mut slowdowns: [Vec<f64>; 5] = Default::default();
        let mut at_sender: [Vec<f64>; 5] = Default::default();
        let mut unfinished = 0;
        let mut scores = [(0.0, 0.0); 5];
        let fabric = &self.transport.fabric;
        for flow in &results.flows {
            let ends = (flow.spec.src, flow.spec.dst);
            // §5.3.2 H normalises so that flowlets of different lengths fit into one class.
            let empty = ideal::completion_time(
                self.topology,
                fabric.framing,
                fabric.host_delay,
                ends,
                flow.spec.bytes,
            )?;
            // It will take as long as on an empty network at least.
            let age = results.now.since(flow.spec.start).max(empty);
            let took = flow.fct().unwrap_or(age);
            unfinished += usize::from(flow.finished.is_none());
            let known = flow.acknowledged.map(|at| at.since(flow.spec.start));
            let known = known.unwrap_or(age).as_us_f64();
            let class = groups.of(flow.spec.bytes);
            at_sender[class].push(known / empty.as_us_f64());
            slowdowns[class].push(took.as_us_f64() / empty.as_us_f64());
            let weight = match self.scene.score {
                ScoreWeight::Flowlet => 1.0,
                ScoreWeight::Time => took.as_secs_f64(),
            };
            let rate_bps = flow.spec.bytes as f64 * 8.0 / took.as_secs_f64();
            let (logs, weights) = &mut scores[class];
            *logs += weight * rate_bps.log2();
            *weights += weight;
        }
        let (logs, weights) = scores.iter().fold((0.0, 0.0), |sum, (logs, weights)| {
            (sum.0 + logs, sum.1 + weights)
        });
        // NICs are the links from hosts; the allocator's ports come after the topology's links.
        let is_nic = |port: &&PortResult| {
            let link = self.topology.links().get(port.link.index());
            link.is_some_and(|link| matches!(link.from, Node::Host(_)))
        };
        let dropped = |ports: &mut dyn Iterator<Item = &PortResult>| -> f64 {
            ports
                .map(|port| port.stats.losses().dropped.bytes)
                .sum::<u64>() as f64
        };
        let (all, by_nics) = (
            dropped(&mut during.ports.iter()),
            dropped(&mut during.ports.iter().filter(is_nic)),
        );
        // Offered to the servers' own queues is what servers sent.
        let nics = during.ports.iter().filter(is_nic);
        let sent: u64 = nics.map(|port| port.stats.offered.bytes).sum();
        let share = |bytes: f64| bytes / sent.max(1) as f64;
        Ok(SchemeSample {
            scheme: self.transport.label.clone(),
            load: self.load,
            flowlets: std::array::from_fn(|class| slowdowns[class].len()),
            slowdown_p99: slowdowns.map(|mut values| quantile(&mut values, 0.99)),
            sender_slowdown_p99: at_sender.map(|mut values| quantile(&mut values, 0.99)),
            unfinished,
            stationary,
            queueing_p99_us: self.queueing_p99_us(seed, during, warm_up)?,
            drops_gbps: all * 8.0 / during.now.since(warm_up).as_secs_f64() / 1e9,
            drops_share: share(all),
            nic_drops_share: share(by_nics),
            fairness: if weights > 0.0 { logs / weights } else { 0.0 },
            fairness_by_class: scores
                .map(|(logs, weights)| (weights > 0.0).then(|| logs / weights)),
        })
    }

    /// 99th percentile of the queueing delay of paths of two links and of four, in µs, over paths
    /// and time. As in the paper (§5.3.2 I) it comes from the lengths of queues.
    ///
    /// At each sample after the warm-up, a path's delay is the time that its links take for the
    /// bytes that wait before them, the sender's NIC included if the assumptions say so. The packet
    /// being sent is in no queue. Paths are drawn once: pairs of hosts and hashes, uniformly.
    fn queueing_p99_us(
        &self,
        seed: u64,
        during: &RunResults,
        warm_up: Time,
    ) -> Result<[f64; 2], ExperimentError> {
        let Some(series) = &during.series else {
            return Ok([0.0; 2]);
        };
        let hosts = self.topology.hosts().len() as u32;
        let from = match self.scene.path_queues {
            PathQueues::Switches => 1,
            PathQueues::All => 0,
        };
        let mut rng = Stream::new(seed, Purpose::Measure, 0);
        let mut paths: [Vec<Vec<LinkId>>; 2] = Default::default();
        while paths.iter().any(|paths| paths.len() < PATHS) {
            let (src, dst) = (rng.random_range(0..hosts), rng.random_range(0..hosts));
            if src == dst {
                continue;
            }
            let choice = PathChoice::Hash(rng.random());
            let path = self.topology.path(HostId(src), HostId(dst), choice)?;
            let of_length = &mut paths[usize::from(path.iter().count() > 2)];
            if of_length.len() < PATHS {
                of_length.push(path.iter().skip(from).copied().collect());
            }
        }
        let samples = || series.times.iter().zip(&series.queue_bytes);
        let after = || samples().filter(|(at, _)| **at > warm_up);
        // Links are watched in the order of their numbers.
        let delay_us = |path: &[LinkId], queues: &[u64]| {
            let of_link = |link: &LinkId| {
                let bits = queues[link.index()] as f64 * 8.0;
                bits / self.topology.links()[link.index()].capacity_bps as f64 * 1e6
            };
            path.iter().map(of_link).sum::<f64>()
        };
        Ok(paths.map(|paths| {
            let delays =
                after().flat_map(|(_, queues)| paths.iter().map(|path| delay_us(path, queues)));
            quantile(&mut delays.collect::<Vec<_>>(), 0.99).unwrap_or(0.0)
        }))
    }
}

/// True if the number of active flowlets was at rest by the warm-up's end.
pub(super) fn is_stationary(series: &Series, warm_up: Time) -> bool {
    let active: Vec<f64> = series.active_flows.iter().map(|&n| n as f64).collect();
    let cut = mser5(&active).and_then(|cut| series.times.get(cut));
    cut.is_some_and(|&at| at <= warm_up)
}

/// Samples of all schemes at all loads.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(transparent)]
pub struct Comparison {
    cases: Vec<ComparedCase>,
}

/// Samples of a scheme at a load.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
struct ComparedCase {
    scheme: &'static str,
    load: f64,
    samples: Replicas<SchemeSample>,
}

impl Comparison {
    /// Runs all schemes at all loads under all seeds. Figures 12 to 15 share these runs.
    ///
    /// # Errors
    /// See [`ExperimentError`].
    pub fn run(settings: &Settings) -> Result<Self, ExperimentError> {
        let topology = scene::topology(scene::RACKS)?;
        let transports = contenders(&topology, settings)?;
        let scene = settings.scene()?;
        let mut runs = Vec::new();
        for &load in loads(settings.quick) {
            for label in PAPER {
                let found = transports.iter().find(|t| t.label == label);
                let transport =
                    found.ok_or_else(|| ExperimentError::NoContender(label.to_owned()))?;
                let run = ComparisonRun {
                    transport,
                    topology: &topology,
                    load,
                    quick: settings.quick,
                    scene: &scene,
                };
                runs.push((label, run));
            }
        }
        let times = schedule(settings.quick);
        // Settings of other schemes are not in the key, so that runs which could not differ are
        // one.
        let plan = |(label, run): &(&str, ComparisonRun<'_>)| {
            Ok(CasePlan {
                name: format!("comparison-{}-{}", run.load, label),
                key: format!("{times:?} {scene:?}\n{}", run.transport.key()),
                time: times.most(),
            })
        };
        let samples = sweep(settings, &runs, plan, |(_, run), seed| run.run(seed))?;
        let compared = runs.iter().zip(samples);
        let cases = compared.map(|((scheme, run), samples)| ComparedCase {
            scheme,
            load: run.load,
            samples,
        });
        Ok(Self {
            cases: cases.collect(),
        })
    }

    /// Returns the samples of a scheme at one of the [`loads`].
    #[must_use]
    pub fn of(&self, scheme: &str, load: f64) -> Option<&Replicas<SchemeSample>> {
        let is = |case: &&ComparedCase| case.scheme == scheme && (case.load - load).abs() < 1e-9;
        self.cases.iter().find(is).map(|case| &case.samples)
    }

    /// Estimates a value of a scheme at a load.
    pub fn estimate(
        &self,
        scheme: &str,
        load: f64,
        value: impl Fn(&SchemeSample) -> Option<f64>,
    ) -> Option<Estimate> {
        self.of(scheme, load)?.estimate(value)
    }

    /// Estimates a value of a scheme's sample and of Flowtune's, seed by seed.
    pub fn against_flowtune(
        &self,
        scheme: &str,
        load: f64,
        value: impl Fn(&SchemeSample, &SchemeSample) -> Option<f64>,
    ) -> Option<Estimate> {
        self.of(scheme, load)?
            .paired(self.of(FLOWTUNE, load)?, value)
    }

    /// Says which cases are unstable or did not finish all flowlets, for the figures' remarks.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let remark = |case: &ComparedCase| {
            let (samples, mut parts) = (&case.samples, Vec::new());
            let moving = samples.total(|sample| usize::from(!sample.stationary));
            if moving > 0 {
                parts.push(format!(
                    "unstable: active flowlets are not stationary after the warm-up with {moving} of {} seeds",
                    samples.count()
                ));
            }
            let unfinished = samples.total(|sample| sample.unfinished);
            if unfinished > 0 {
                let of = samples.total(|sample| sample.flowlets.iter().sum());
                parts.push(format!(
                    "{unfinished} of {of} flowlets did not finish and count with their age"
                ));
            }
            let place = format!("{}, load {}", case.scheme, case.load);
            (!parts.is_empty()).then(|| format!("{place}: {}", parts.join("; ")))
        };
        self.cases.iter().filter_map(remark).collect()
    }
}

/// Parameters of a comparison in words, for the figures' scenario.
///
/// # Errors
/// A setting of the scene that it does not take.
pub fn scenario(settings: &Settings) -> Result<Vec<String>, ExperimentError> {
    let schedule = schedule(settings.quick);
    let ms = |span: Span| span.as_us_f64() / 1e3;
    Ok(vec![
        "144 servers in 9 racks, 4 spines, 10 Gbit/s to servers and 40 Gbit/s between switches"
            .to_owned(),
        format!(
            "Poisson flowlets of the workload {} at loads {:?}",
            settings.scene()?.workload,
            loads(settings.quick)
        ),
        format!(
            "counted are flowlets that start in the {} ms after a warm-up of {} ms, judged by MSER-5; they have {} ms more to finish under the same load",
            ms(schedule.counted),
            ms(schedule.warm_up),
            ms(schedule.most_drain)
        ),
        format!(
            "classes of size: {}",
            BY_PACKETS.map(|class| class.0).join(", ")
        ),
    ])
}
