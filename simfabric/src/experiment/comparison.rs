//! Runs behind figures 12 to 15: the paper's schemes under equal Poisson flowlets of one workload,
//! at several loads. A process runs each combination of scheme, load and settings once.
//!
//! Flowlets that start in the warm-up are not counted. After the last start the network gets time
//! to finish. A flowlet that is not finished then counts with its age, a lower bound of its
//! completion time.

use std::sync::{Mutex, PoisonError};

use ratewright_topology::Topology;

use super::contenders::{FLOWTUNE, PAPER, contenders};
use super::monitor::MONITOR;
use super::scene::{PathQueues, SceneConfig, ScoreWeight};
use super::sweep::{Replicas, sweep};
use super::{ExperimentError, Settings, scene};
use crate::net::FabricConfig;
use crate::plan::PlannedTransport;
use crate::report::classes::{CLASSES, class_of};
use crate::report::estimate::Estimate;
use crate::report::ideal;
use crate::report::stats::quantile;
use crate::results::RunResults;
use crate::run::Config;
use crate::time::Time;
use crate::workload::Poisson;

/// Other parameters that figures 12 to 15 are measured under for their sensitivity tables, one at a
/// time: framing, handshake and first window of all; each scheme's own.
pub(super) const VARIATIONS: &[&[&str]] = &[
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
    &["flowtune.reserve=0.05"],
    &["dctcp.mark_packets=40", "dctcp.nic_queue.mark_packets=40"],
    &["pfabric.nic_queue={ discipline = \"drop-tail\", limit_bytes = 36864 }"],
    &["pfabric.fixed_rto=66us"],
    &["cubic.queue.interval=60us", "cubic.nic_queue.interval=60us"],
    &[
        "flowtune.min_rto=1ms",
        "dctcp.min_rto=1ms",
        "cubic.min_rto=1ms",
        "xcp.min_rto=1ms",
    ],
    &["xcp.first_interval=50ms", "xcp.idle_interval=50ms"],
];

/// Measurements of one scheme at one load.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct SchemeSample {
    /// The scheme's label.
    pub scheme: String,
    /// The load, as a share of the servers' links.
    pub load: f64,
    /// 99 % of the slowdown (completion time over that on an empty network) by class of size.
    pub slowdown_p99: [Option<f64>; 5],
    /// Flowlets counted, by class.
    pub flowlets: [usize; 5],
    /// Counted flowlets that did not finish.
    pub unfinished: usize,
    /// 99 % of the queueing delay over time on the paths of two links, and of four, in µs.
    pub queueing_p99_us: [f64; 2],
    /// Dropped data of the whole network, in Gbit/s.
    pub drops_gbps: f64,
    /// Dropped bytes over bytes that servers sent.
    pub drops_share: f64,
    /// Mean of log₂ of flowlets' rates, in log₂ bit/s.
    pub fairness: f64,
    /// Mean of log₂ of flowlets' rates by class of size.
    pub fairness_by_class: [Option<f64>; 5],
}

/// Loads, end of the warm-up, last start, and end of a comparison.
fn schedule(quick: bool) -> (&'static [f64], Time, Time, Time) {
    let at = |us| Time::from_us(us);
    if quick {
        (&[0.4, 0.8], at(1_000), at(6_000), at(10_000))
    } else {
        (&[0.2, 0.4, 0.6, 0.8], at(5_000), at(55_000), at(85_000))
    }
}

/// The loads of a comparison.
#[must_use]
pub fn loads(quick: bool) -> &'static [f64] {
    schedule(quick).0
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
        let (_, warm_up, last, end) = schedule(self.quick);
        let flows = Poisson::new(
            self.topology.hosts().len() as u32,
            scene::HOST_BPS,
            self.load,
            self.scene.sizes()?,
            (Time::ZERO, last),
            seed,
        )?;
        let config = Config {
            seed,
            warm_up,
            ..Config::default()
        };
        let mut run = self
            .transport
            .start(config, self.topology, Box::new(flows))?;
        // Queues and drops are those while flowlets start: the network drains afterwards, and an
        // average over that time would be lower. Completion times need the end.
        MONITOR.run_until(&mut *run, last)?;
        let during = run.results();
        MONITOR.run_until(&mut *run, end)?;
        let results = run.results();
        results.conservation?;
        self.sample(warm_up, last, &during, &results)
    }

    /// Works out the sample: queues and drops from `during`, the results at the last start, and
    /// completion times from `results`, those at the end.
    fn sample(
        &self,
        warm_up: Time,
        last: Time,
        during: &RunResults,
        results: &RunResults,
    ) -> Result<SchemeSample, ExperimentError> {
        let mut slowdowns: [Vec<f64>; 5] = Default::default();
        let mut unfinished = 0;
        let mut scores = [(0.0, 0.0); 5];
        let fabric = &self.transport.fabric;
        for flow in &results.flows {
            if flow.spec.start < warm_up {
                continue;
            }
            let took = flow.fct().unwrap_or_else(|| {
                unfinished += 1;
                results.now.since(flow.spec.start)
            });
            let ends = (flow.spec.src, flow.spec.dst);
            // §5.3.2 H normalises so that flowlets of different lengths fit into one class.
            let empty = ideal::completion_time(
                self.topology,
                fabric.framing,
                fabric.host_delay,
                ends,
                flow.spec.bytes,
            )?;
            slowdowns[class_of(flow.spec.bytes)].push(took.as_us_f64() / empty.as_us_f64());
            let weight = match self.scene.score {
                ScoreWeight::Flowlet => 1.0,
                ScoreWeight::Time => took.as_secs_f64(),
            };
            let rate_bps = flow.spec.bytes as f64 * 8.0 / took.as_secs_f64();
            let (logs, weights) = &mut scores[class_of(flow.spec.bytes)];
            *logs += weight * rate_bps.log2();
            *weights += weight;
        }
        let (logs, weights) = scores.iter().fold((0.0, 0.0), |sum, (logs, weights)| {
            (sum.0 + logs, sum.1 + weights)
        });
        let dropped: u64 = during
            .ports
            .iter()
            .map(|port| port.stats.losses().dropped.bytes)
            .sum();
        let sent: u64 = during.flows.iter().map(|flow| flow.sent.bytes).sum();
        Ok(SchemeSample {
            scheme: self.transport.label.clone(),
            load: self.load,
            flowlets: std::array::from_fn(|class| slowdowns[class].len()),
            slowdown_p99: slowdowns.map(|mut values| quantile(&mut values, 0.99)),
            unfinished,
            queueing_p99_us: queueing_p99_us(self.topology, during, fabric, self.scene.path_queues),
            drops_gbps: dropped as f64 * 8.0 / last.as_secs_f64() / 1e9,
            drops_share: dropped as f64 / sent.max(1) as f64,
            fairness: if weights > 0.0 { logs / weights } else { 0.0 },
            fairness_by_class: scores
                .map(|(logs, weights)| (weights > 0.0).then(|| logs / weights)),
        })
    }
}

/// 99th percentile of the queueing delay on paths of two links and of four, in µs. As in the paper
/// (§5.3.2 I) it comes from the lengths of queues.
///
/// A kind of link contributes the mean, over its ports, of the length that is exceeded for 1 % of
/// the time, as the transmission time of that number of full packets. The delay is the sum over the
/// switches' queues on the path, and the sender's NIC if `queues` counts it.
fn queueing_p99_us(
    topology: &Topology,
    results: &RunResults,
    fabric: &FabricConfig,
    queues: PathQueues,
) -> [f64; 2] {
    let framing = fabric.framing;
    let packet_bits = f64::from(framing.wire_bytes(framing.mss_bytes)) * 8.0;
    let mean = |to_host: bool, rate_bps: u64| -> f64 {
        let delays: Vec<f64> = results
            .ports
            .iter()
            // The allocator's ports come after those of the topology's links; they are no path's.
            .take(topology.links().len())
            .filter(|port| port.to_host == to_host && port.rate_bps == rate_bps)
            .filter_map(|port| port.stats.histogram.as_ref().map(|h| (h, port.rate_bps)))
            .map(|(histogram, rate_bps)| {
                f64::from(histogram.quantile(0.99)) * packet_bits / rate_bps as f64 * 1e6
            })
            .collect();
        delays.iter().sum::<f64>() / delays.len().max(1) as f64
    };
    // Links of a host's rate that do not lead to a host come from one: they are NICs.
    let nic = match queues {
        PathQueues::Switches => 0.0,
        PathQueues::All => mean(false, scene::HOST_BPS),
    };
    let down = nic + mean(true, scene::HOST_BPS);
    // A path of four links passes the core's queues twice: up to a spine and down to a rack.
    let core = mean(false, 4 * scene::HOST_BPS);
    [down, 2.0 * core + down]
}

/// Samples of this process by case: its transport's key, its scene, its load and the settings of
/// seeds and form. A list does: cases are tens.
type Cache = Mutex<Vec<(String, Replicas<SchemeSample>)>>;

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
    /// Runs all schemes at all loads under all seeds, but for cases that this process has run
    /// before: figures 12 to 15 share them.
    ///
    /// # Errors
    /// See [`ExperimentError`].
    pub fn run(settings: &Settings) -> Result<Self, ExperimentError> {
        static DONE: Cache = Mutex::new(Vec::new());
        // The lock is held during the runs: a second caller waits for results instead of making
        // them too.
        let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
        let topology = scene::topology(scene::RACKS)?;
        let transports = contenders(&topology, settings)?;
        let scene = settings.scene()?;
        let form = (settings.first_seed, settings.seed_count, settings.quick);
        let mut cases = Vec::new();
        for &load in loads(settings.quick) {
            for label in PAPER {
                let found = transports.iter().find(|t| t.label == label);
                let transport =
                    found.ok_or_else(|| ExperimentError::NoContender(label.to_owned()))?;
                // Settings of other schemes are not in the key, so that runs which could not differ
                // are one case.
                let key = format!("{form:?} {load} {scene:?}\n{}", transport.key());
                let run = ComparisonRun {
                    transport,
                    topology: &topology,
                    load,
                    quick: settings.quick,
                    scene: &scene,
                };
                cases.push((key, label, run));
            }
        }
        let known = |done: &[(String, Replicas<SchemeSample>)], key: &str| {
            let found = done.iter().find(|(of, _)| of == key);
            found.map(|(_, samples)| samples.clone())
        };
        let missing: Vec<_> = cases
            .iter()
            .filter(|(key, ..)| known(&done, key).is_none())
            .collect();
        let runs = missing.len() * settings.seed_count as usize;
        MONITOR.expect(runs, schedule(settings.quick).3.since(Time::ZERO));
        let new = sweep(settings, &missing, |(.., run), seed| run.run(seed))?;
        done.extend(missing.into_iter().map(|case| case.0.clone()).zip(new));
        let compared = cases.iter().filter_map(|(key, label, run)| {
            Some(ComparedCase {
                scheme: label,
                load: run.load,
                samples: known(&done, key)?,
            })
        });
        Ok(Self {
            cases: compared.collect(),
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

    /// Says which schemes did not finish all flowlets, for the figures' remarks.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let unfinished = self.cases.iter().filter_map(|case| {
            let unfinished = case.samples.total(|sample| sample.unfinished);
            (unfinished > 0).then(|| {
                format!(
                    "{} at load {}: {unfinished} counted flowlets of all seeds did not finish; they count with their age",
                    case.scheme, case.load
                )
            })
        });
        unfinished.collect()
    }
}

/// Parameters of a comparison in words, for the figures' scenario.
///
/// # Errors
/// A setting of the scene that it does not take.
pub fn scenario(settings: &Settings) -> Result<Vec<String>, ExperimentError> {
    let (loads, warm_up, last, end) = schedule(settings.quick);
    let ms = |at: Time| at.since(Time::ZERO).as_us_f64() / 1e3;
    Ok(vec![
        "144 servers in 9 racks, 4 spines, 10 Gbit/s to servers and 40 Gbit/s between switches"
            .to_owned(),
        format!(
            "Poisson flowlets of the workload {} at loads {loads:?}",
            settings.scene()?.workload
        ),
        format!(
            "counted are flowlets that start from {} to {} ms; the run ends at {} ms",
            ms(warm_up),
            ms(last),
            ms(end)
        ),
        format!(
            "classes of size: {}",
            CLASSES.map(|class| class.0).join(", ")
        ),
    ])
}
