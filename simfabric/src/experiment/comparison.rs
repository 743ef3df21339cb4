//! What figures 12 to 15 share: the paper's schemes under the same Poisson flowlets of the Web
//! workload, at several loads. A comparison is run once per process and settings.
//!
//! Flowlets that start in the warm-up are not counted, and after the last start the network is given
//! time to finish. What is not finished then counts with the time that it has waited, which is a lower
//! bound.

use std::sync::{Mutex, PoisonError};

use ratewright_topology::Topology;
use rayon::prelude::*;

use super::assumptions::{PathQueues, ScoreWeight};
use super::monitor::MONITOR;
use super::schemes::{Scheme, Visitor};
use super::{ExperimentError, Settings, scene};
use crate::net::FabricConfig;
use crate::report::classes::{CLASSES, class_of};
use crate::report::ideal;
use crate::report::stats::quantile;
use crate::results::RunResults;
use crate::run::{Config, Sim};
use crate::time::Time;
use crate::transport::Transport;
use crate::workload::Poisson;

/// What one scheme does at one load.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct SchemeSample {
    /// The scheme.
    pub scheme: &'static str,
    /// The load, as a share of the servers' links.
    pub load: f64,
    /// 99 % of the slowdown (completion time over that on an empty network) by class of size.
    pub slowdown_p99: [Option<f64>; 5],
    /// Flowlets counted, by class.
    pub flowlets: [usize; 5],
    /// Of those, how many did not finish.
    pub unfinished: usize,
    /// 99 % of the queueing delay over time on the paths of two links, and of four, in µs.
    pub queueing_p99_us: [f64; 2],
    /// What the network drops, in Gbit/s.
    pub drops_gbps: f64,
    /// Dropped bytes over bytes that servers sent.
    pub drops_share: f64,
    /// Mean of log₂ of the rates that flowlets got, in log₂ bit/s.
    pub fairness: f64,
    /// The same by class of size.
    pub fairness_by_class: [Option<f64>; 5],
}

/// Loads and times of a comparison.
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

struct ComparisonRun<'a> {
    scheme: &'static str,
    topology: &'a Topology,
    load: f64,
    settings: Settings,
}

impl Visitor for ComparisonRun<'_> {
    type Output = SchemeSample;

    fn visit<T: Transport>(
        self,
        fabric: FabricConfig,
        transport: T,
    ) -> Result<SchemeSample, ExperimentError> {
        let (_, warm_up, last, end) = schedule(self.settings.quick);
        let sizes = self.settings.assumptions.sizes()?;
        let hosts = self.topology.hosts().len() as u32;
        let seed = self.settings.seed;
        let flows = Poisson::new(
            hosts,
            scene::HOST_BPS,
            self.load,
            sizes,
            (Time::ZERO, last),
            seed,
        )?;
        let config = Config {
            seed,
            fabric: FabricConfig {
                histograms: true,
                ..fabric.clone()
            },
            warm_up,
            ..Config::default()
        };
        let mut sim = Sim::new(config, self.topology.clone(), flows, transport)?;
        // Queues and drops while flowlets start; completion times to the end.
        MONITOR.run_until(&mut sim, last)?;
        let during = sim.results();
        MONITOR.run_until(&mut sim, end)?;
        let records = sim.results();
        records.conservation?;
        self.sample(&fabric, warm_up, last, &during, &records)
    }
}

impl ComparisonRun<'_> {
    fn sample(
        &self,
        fabric: &FabricConfig,
        warm_up: Time,
        last: Time,
        during: &RunResults,
        records: &RunResults,
    ) -> Result<SchemeSample, ExperimentError> {
        let mut slowdowns: [Vec<f64>; 5] = Default::default();
        let mut unfinished = 0;
        let mut scores = [(0.0, 0.0); 5];
        let assumptions = &self.settings.assumptions;
        for flow in &records.flows {
            if flow.spec.start < warm_up {
                continue;
            }
            let took = flow.fct().unwrap_or_else(|| {
                unfinished += 1;
                records.now.since(flow.spec.start)
            });
            let ends = (flow.spec.src, flow.spec.dst);
            let empty = ideal::completion_time(
                self.topology,
                fabric.framing,
                fabric.host_delay,
                ends,
                flow.spec.bytes,
            )?;
            slowdowns[class_of(flow.spec.bytes)].push(took.as_us_f64() / empty.as_us_f64());
            let weight = match assumptions.score {
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
            scheme: self.scheme,
            load: self.load,
            flowlets: std::array::from_fn(|class| slowdowns[class].len()),
            slowdown_p99: slowdowns.map(|mut values| quantile(&mut values, 0.99)),
            unfinished,
            queueing_p99_us: queueing_p99_us(
                self.topology,
                during,
                fabric,
                assumptions.path_queues,
            ),
            drops_gbps: dropped as f64 * 8.0 / last.as_secs_f64() / 1e9,
            drops_share: dropped as f64 / sent.max(1) as f64,
            fairness: if weights > 0.0 { logs / weights } else { 0.0 },
            fairness_by_class: scores
                .map(|(logs, weights)| (weights > 0.0).then(|| logs / weights)),
        })
    }
}

/// 99 % of the queueing delay on paths of two links and of four. As in the paper it comes from the
/// lengths of queues: for each kind of link the mean over its ports of the length that is exceeded for
/// 1 % of the time, as the time that full packets of that number take, summed over the switches' queues
/// on the way, and that of the sender's NIC if it is to be counted.
fn queueing_p99_us(
    topology: &Topology,
    records: &RunResults,
    fabric: &FabricConfig,
    queues: PathQueues,
) -> [f64; 2] {
    let framing = fabric.framing;
    let packet_bits = f64::from(framing.wire_bytes(framing.mss_bytes)) * 8.0;
    let mean = |to_host: bool, rate_bps: u64| -> f64 {
        let delays: Vec<f64> = records
            .ports
            .iter()
            // Without the allocator's.
            .take(topology.links().len())
            .filter(|port| port.to_host == to_host && port.rate_bps == rate_bps)
            .filter_map(|port| port.stats.histogram.as_ref().map(|h| (h, port.rate_bps)))
            .map(|(histogram, rate_bps)| {
                f64::from(histogram.quantile(0.99)) * packet_bits / rate_bps as f64 * 1e6
            })
            .collect();
        delays.iter().sum::<f64>() / delays.len().max(1) as f64
    };
    // What is neither between switches nor to a host is a NIC.
    let nic = match queues {
        PathQueues::Switches => 0.0,
        PathQueues::All => mean(false, scene::HOST_BPS),
    };
    let down = nic + mean(true, scene::HOST_BPS);
    // Up to a spine and down to a rack.
    let core = mean(false, 4 * scene::HOST_BPS);
    [down, 2.0 * core + down]
}

/// What one sample is of.
pub type ComparisonCase = (Settings, Scheme, f64);

type Cache = Mutex<Vec<(ComparisonCase, SchemeSample)>>;

/// The samples of some cases, in their order. What was run before is not run again.
///
/// # Errors
/// See [`ExperimentError`].
pub fn fetch(cases: &[ComparisonCase]) -> Result<Vec<SchemeSample>, ExperimentError> {
    static DONE: Cache = Mutex::new(Vec::new());
    // Whoever comes second waits for the first one's result.
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    let known = |done: &[(ComparisonCase, SchemeSample)], case: &ComparisonCase| {
        let found = done.iter().find(|(of, _)| of == case);
        found.map(|(_, sample)| sample.clone())
    };
    let cases: Vec<ComparisonCase> = cases
        .iter()
        .map(|&(settings, scheme, load)| {
            let assumptions = scheme.relevant(&settings.assumptions);
            (
                Settings {
                    assumptions,
                    ..settings
                },
                scheme,
                load,
            )
        })
        .collect();
    let mut missing: Vec<ComparisonCase> = Vec::new();
    for case in &cases {
        if known(&done, case).is_none() && !missing.contains(case) {
            missing.push(*case);
        }
    }
    let topology = scene::topology(scene::RACKS)?;
    for (settings, ..) in &missing {
        MONITOR.expect(1, schedule(settings.quick).3.since(Time::ZERO));
    }
    let new: Vec<SchemeSample> = missing
        .par_iter()
        .map(|&(settings, scheme, load)| {
            let run = ComparisonRun {
                scheme: scheme.name(),
                topology: &topology,
                load,
                settings,
            };
            scheme.visit(&topology, &settings.assumptions, run)
        })
        .collect::<Result<_, _>>()?;
    done.extend(missing.into_iter().zip(new));
    Ok(cases.iter().filter_map(|case| known(&done, case)).collect())
}

/// All schemes at all loads, by load and then in the paper's order.
///
/// # Errors
/// See [`ExperimentError`].
pub fn samples(settings: Settings) -> Result<Vec<SchemeSample>, ExperimentError> {
    let cases: Vec<ComparisonCase> = loads(settings.quick)
        .iter()
        .flat_map(|&load| Scheme::ALL.map(|scheme| (settings, scheme, load)))
        .collect();
    fetch(&cases)
}

/// The sample of a scheme at a load.
#[must_use]
pub fn find(samples: &[SchemeSample], scheme: Scheme, load: f64) -> Option<&SchemeSample> {
    samples
        .iter()
        .find(|sample| sample.scheme == scheme.name() && (sample.load - load).abs() < 1e-9)
}

/// What was run, in words, for the figures' scenario.
#[must_use]
pub fn scenario(settings: Settings) -> Vec<String> {
    let (loads, warm_up, last, end) = schedule(settings.quick);
    let ms = |at: Time| at.since(Time::ZERO).as_us_f64() / 1e3;
    vec![
        "144 servers in 9 racks, 4 spines, 10 Gbit/s to servers and 40 Gbit/s between switches"
            .to_owned(),
        format!(
            "Poisson flowlets of the workload {} at loads {loads:?}",
            settings.assumptions.workload
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
    ]
}
