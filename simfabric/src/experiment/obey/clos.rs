//! Runs behind [`hosts`](super::hosts) and [`links`](super::links): 64 hosts in a two-tier Clos
//! network.

use ratewright_topology::{EcmpConfig, LinkId, Topology, TwoTierClos};
use serde::{Deserialize, Serialize};

use super::{HOST_BPS, HOST_DELAY, Managed, transport};
use crate::experiment::monitor::MONITOR;
use crate::experiment::schedule::Schedule;
use crate::experiment::sweep::{CasePlan, Replicas, sweep};
use crate::experiment::{ExperimentError, Settings};
use crate::host::HostSet;
use crate::host::pair::Split;
use crate::net::Told;
use crate::report::ideal::completion_time;
use crate::report::stats::{mean, quantile};
use crate::rng::{Purpose, Stream};
use crate::run::Config;
use crate::time::{Span, Time};
use crate::workload::{Poisson, SizeDistribution};

/// Load in parts of the hosts' links.
const LOAD: f64 = 0.6;
/// Share of the links that are slower than told, and
const SLOW_SHARE: f64 = 0.1;
/// their true capacity in parts of the told one.
const SLOW: f64 = 0.8;

/// A run's congestion control, hosts with Ratewright, and true if links are slower than told.
pub type Case = (&'static str, Managed, bool);

/// Slowdown of a half's flows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HalfSample {
    /// 99 % of the counted flows.
    pub p99: Option<f64>,
    /// Mean of the counted flows.
    pub mean: Option<f64>,
    /// Counted flows.
    pub flows: usize,
    /// Counted flows that did not finish; they count with their age.
    pub unfinished: usize,
}

/// Measured values of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClosSample {
    /// Flows of the hosts that have Ratewright where half of them do, and of the others. The halves
    /// are the same in every run.
    pub halves: [HalfSample; 2],
    /// Dropped packets among a million that links carried.
    pub drops_ppm: f64,
    /// Retransmissions among a million packets that links carried.
    pub retransmits_ppm: f64,
}

/// Times of a run.
#[must_use]
pub fn schedule(quick: bool) -> Schedule {
    let ms = Span::from_ms;
    if quick {
        Schedule {
            warm_up: ms(5),
            counted: ms(20),
            most_drain: ms(20),
            drain: ms(5),
        }
    } else {
        Schedule {
            warm_up: ms(10),
            counted: ms(100),
            most_drain: ms(50),
            drain: ms(10),
        }
    }
}

/// Makes the network, and its slow links if it has some: as it is, and as it is told.
fn network(slow: bool, seed: u64) -> Result<(Topology, Told), ExperimentError> {
    let clos = TwoTierClos {
        racks: 4,
        hosts_per_rack: 16,
        spines: 4,
        host_capacity_bps: HOST_BPS,
        fabric_capacity_bps: 4 * HOST_BPS,
        host_delay_ns: 1_500,
        fabric_delay_ns: 1_500,
        ecmp: EcmpConfig {
            seed: 0,
            symmetric: false,
        },
        ..TwoTierClos::default()
    };
    let mut topology = clos.build()?;
    if !slow {
        return Ok((topology, Told::default()));
    }
    let count = topology.links().len();
    let drawn = Stream::new(seed, Purpose::Told, 0).draw_share(SLOW_SHARE, count);
    let drawn = (0..count as u32).zip(drawn).filter(|(_, is_slow)| *is_slow);
    let slow: Vec<LinkId> = drawn.map(|(link, _)| LinkId(link)).collect();
    for link in &slow {
        let told_bps = topology.effective_capacity_bps(*link);
        topology.set_capacity_bps(*link, (told_bps as f64 * SLOW).round() as u64);
    }
    Ok((
        topology,
        Told::new(slow.into_iter().map(|link| (link, 1.0 / SLOW))),
    ))
}

/// Runs cases under all seeds.
///
/// # Errors
/// See [`ExperimentError`].
pub fn samples(
    settings: &Settings,
    cases: &[Case],
) -> Result<Vec<Replicas<ClosSample>>, ExperimentError> {
    let times = schedule(settings.quick);
    let plan = |(control, managed, slow): &Case| {
        let (topology, told) = network(*slow, settings.first_seed)?;
        let transport = transport(control, *managed, &topology, told, settings)?;
        let links = if *slow { "slow" } else { "true" };
        Ok(CasePlan {
            name: format!("clos-{control}-{}-{links}", managed.name()),
            key: format!("{times:?}\n{}", transport.key()),
            time: times.most(),
        })
    };
    sweep(settings, cases, plan, |case, seed| {
        sample(settings, *case, seed)
    })
}

/// The hosts without Ratewright where half of them have none.
fn unmanaged(
    control: &str,
    topology: &Topology,
    settings: &Settings,
) -> Result<HostSet, ExperimentError> {
    let half = transport(control, Managed::Half, topology, Told::default(), settings)?;
    match half.beside.map(|beside| beside.split) {
        Some(Split::Hosts(hosts)) => Ok(hosts),
        _ => Err(ExperimentError::NoContender(half.label)),
    }
}

/// Runs a case.
fn sample(
    settings: &Settings,
    (control, managed, slow): Case,
    seed: u64,
) -> Result<ClosSample, ExperimentError> {
    let schedule = schedule(settings.quick);
    let (topology, told) = network(slow, seed)?;
    let transport = transport(control, managed, &topology, told, settings)?;
    let unmanaged = unmanaged(control, &topology, settings)?;
    let hosts = topology.hosts().len() as u32;
    let arrivals = (Time::ZERO, Time::ZERO + schedule.most());
    let sizes = SizeDistribution::published("web-search")?;
    let flows = Poisson::new(hosts, HOST_BPS, LOAD, sizes, arrivals, seed)?;
    let config = Config {
        seed,
        ..Config::default()
    };
    let framing = transport.fabric.framing;
    let mut run = transport.start(config, &topology, Box::new(flows))?;
    MONITOR.run_until(&mut *run, schedule.begin())?;
    run.end_warm_up();
    MONITOR.run_until(&mut *run, schedule.last())?;
    let after = run.results();
    let results = schedule.drain(&mut *run)?;
    let mut slowdowns: [Vec<f64>; 2] = Default::default();
    let mut unfinished = [0; 2];
    for flow in results.flows.iter().filter(|flow| schedule.counts(flow)) {
        let half = usize::from(unmanaged.contains(flow.spec.src));
        unfinished[half] += usize::from(flow.finished.is_none());
        let age = || results.now.since(flow.spec.start);
        let took = flow.fct().unwrap_or_else(age);
        let ends = (flow.spec.src, flow.spec.dst);
        let least = completion_time(&topology, framing, HOST_DELAY, ends, flow.spec.bytes)?;
        slowdowns[half].push(took.as_secs_f64() / least.as_secs_f64());
    }
    let carried: u64 = after.ports.iter().map(|port| port.arrived.packets).sum();
    let ppm = |packets: u64| packets as f64 * 1e6 / carried.max(1) as f64;
    Ok(ClosSample {
        halves: [0, 1].map(|half| HalfSample {
            p99: quantile(&mut slowdowns[half], 0.99),
            mean: mean(&slowdowns[half]),
            flows: slowdowns[half].len(),
            unfinished: unfinished[half],
        }),
        drops_ppm: ppm(after.drops()),
        retransmits_ppm: ppm(after.retransmits),
    })
}
