//! Runs behind figures 11 to 14 and tables I and II: incasts of short messages beside long ones on
//! a fat tree of 1,024 hosts whose racks' uplinks have a quarter of their hosts' capacity (§VI-A).
//!
//! Long messages are between random hosts as a Poisson process. Incasts of each size of short ones
//! are another: a group of hosts sends to one that is not of the group, each host at its own moment
//! within the jitter. Messages that
//! begin in the counted time after the warm-up count; the load stays while they finish, up to a
//! bound, and one that is not finished then counts with its age.

use std::sync::Arc;

use ratewright_topology::{Node, ThreeTierClos, Topology};

use super::{SYMMETRIC, transport};
use crate::experiment::monitor::MONITOR;
use crate::experiment::schedule::Schedule;
use crate::experiment::sweep::{CasePlan, Replicas, sweep};
use crate::experiment::{ExperimentError, Settings};
use crate::parameters::{SetError, from_settings};
use crate::report::stats::quantile;
use crate::results::RunResults;
use crate::run::Config;
use crate::time::{Span, Time};
use crate::units::{Delay, Rate};
use crate::workload::{FlowStream, Merge, Poisson, SizeDistribution};

/// Bytes of short messages (§VI-A: 2, 4 and 8 kB, uniformly).
pub const SHORT_BYTES: [u64; 3] = [2_048, 4_096, 8_192];
/// Name of the scene in settings.
pub const SCENE: &str = "scene";
/// Groups of senders for each size.
const GROUPS: u8 = 64;
/// Hosts' capacity over that of their rack's uplinks (§VI-A).
const OVERSUBSCRIPTION: f64 = 4.0;

crate::parameters! {
    /// Network and workload, as far as the paper's text lost them.
    pub struct Scene {
        /// Rate of hosts' links, and of all others unless `uplink_speed` is above 1.
        link_rate: Rate = Rate(40_000_000_000),
        /// Rate of links between switches over that of hosts' links: 1, 2 or 4.
        uplink_speed: u32 = 1,
        /// Bytes of a long message.
        long_bytes: u64 = 1_000_000,
        /// Senders of an incast (§VI-A: 16).
        incast_senders: u32 = 16,
        /// Time within which an incast's senders begin (§V-B: 0 to 100 µs).
        incast_jitter: Delay = Delay::from_us(100),
    }
}

impl Scene {
    /// Reads the scene of an experiment's settings.
    ///
    /// # Errors
    /// A setting that it does not take.
    pub fn of(settings: &Settings) -> Result<Self, ExperimentError> {
        let scene: Self = from_settings(SCENE, &settings.set)?;
        if scene.long_bytes == 0 || scene.link_rate.0 == 0 {
            return Err(ExperimentError::Setting(SetError {
                option: SCENE.to_owned(),
                message: "`long_bytes` and `link_rate` must be above 0".to_owned(),
            }));
        }
        if !matches!(scene.uplink_speed, 1 | 2 | 4) {
            return Err(ExperimentError::Setting(SetError {
                option: SCENE.to_owned(),
                message: "`uplink_speed` must be 1, 2 or 4".to_owned(),
            }));
        }
        Ok(scene)
    }

    /// Makes the network: 16 pods of 64 hosts, with racks of 16, or of 32 where uplinks are four
    /// times as fast. Racks' uplinks have a quarter of their hosts' capacity, and no other level is
    /// oversubscribed.
    ///
    /// # Errors
    /// None in truth; the builder's are passed on.
    pub fn topology(&self) -> Result<Topology, ExperimentError> {
        let speed = self.uplink_speed;
        let hosts_per_rack = 16 * (speed / 2).max(1);
        let (racks_per_pod, aggs_per_pod) = (64 / hosts_per_rack, hosts_per_rack / (4 * speed));
        let uplink_bps = self.link_rate.0 * u64::from(speed);
        let tree = ThreeTierClos {
            pods: 16,
            racks_per_pod,
            hosts_per_rack,
            aggs_per_pod,
            cores: aggs_per_pod * racks_per_pod,
            host_capacity_bps: self.link_rate.0,
            fabric_capacity_bps: uplink_bps,
            core_capacity_bps: uplink_bps,
            host_delay_ns: 1_000,
            fabric_delay_ns: 1_000,
            core_delay_ns: 1_000,
            ecmp: SYMMETRIC,
            ..ThreeTierClos::default()
        };
        Ok(tree.build()?)
    }
}

/// Mixes of short and long messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub enum Mix {
    /// 40 % short (§VI-B).
    Typical,
    /// 10 % short.
    Light,
    /// 70 % short.
    Heavy,
}

impl Mix {
    /// Name in figures.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Typical => "typical",
            Self::Light => "light",
            Self::Heavy => "heavy",
        }
    }

    /// Share of the load that short messages have.
    #[must_use]
    pub const fn short_share(self) -> f64 {
        match self {
            Self::Typical => 0.4,
            Self::Light => 0.1,
            Self::Heavy => 0.7,
        }
    }
}

/// A mix at a load in per cent of the racks' uplinks.
pub type Load = (Mix, u32);

/// Measurements of one run.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LoadSample {
    /// Median and 99 % of the completion times by size of short messages, in µs.
    pub short_us: [[Option<f64>; 2]; 3],
    /// Bytes that receivers got in the counted time, in Gbit/s per host.
    pub goodput_gbps: f64,
    /// Short messages' packets that were marked, in per cent, if receivers count them.
    pub short_marked: Option<f64>,
    /// Marks at links to hosts, in per cent of all marks.
    pub marked_at_receivers: Option<f64>,
    /// Links that a short message's packet crossed on average, if receivers count them.
    pub short_hops: Option<f64>,
    /// Bytes that links between switches carried for each byte that receivers got.
    pub link_bytes: f64,
    /// Messages counted, and those of them that did not finish.
    pub flows: usize,
    /// Counted messages that did not finish.
    pub unfinished: usize,
    /// Packets that were dropped.
    pub drops: u64,
    /// Negative acknowledgements: packets that came out of order, or behind a lost one.
    pub nacks: Option<f64>,
}

/// Returns the times of a run.
#[must_use]
pub fn schedule(quick: bool) -> Schedule {
    let (us, ms) = (Span::from_us, Span::from_ms);
    if quick {
        Schedule {
            warm_up: us(500),
            counted: us(600),
            most_drain: us(1_500),
            drain: us(250),
        }
    } else {
        Schedule {
            warm_up: ms(5),
            counted: ms(10),
            most_drain: ms(15),
            drain: ms(2),
        }
    }
}

/// The messages of a load, and the groups of senders.
fn messages(
    scene: &Scene,
    hosts: u32,
    (mix, percent): Load,
    until: Time,
    seed: u64,
) -> Result<(Merge, Config), ExperimentError> {
    let load = f64::from(percent) / 100.0 / OVERSUBSCRIPTION;
    let arrivals = |bytes, load, stream: u64| {
        Poisson::new(
            hosts,
            scene.link_rate.0,
            load,
            SizeDistribution::constant(bytes),
            (Time::ZERO, until),
            seed.wrapping_add(stream << 32),
        )
    };
    let short: u64 = SHORT_BYTES.iter().sum();
    let long = arrivals(scene.long_bytes, load * (1.0 - mix.short_share()), 0)?;
    let mut sources: Vec<FlowStream> = vec![Box::new(long)];
    let mut groups = Vec::new();
    for (stream, bytes) in (1..).zip(SHORT_BYTES) {
        // As many messages of each size: load in proportion to the size.
        let part = load * mix.short_share() * bytes as f64 / short as f64;
        let mut incasts = arrivals(bytes, part, stream)?.of_incasts(
            scene.incast_senders,
            GROUPS,
            scene.incast_jitter.0,
        )?;
        // Three times 64 groups fit a flow's number.
        groups.extend_from_slice(incasts.number_groups(groups.len() as u8 + 1));
        sources.push(Box::new(incasts));
    }
    let config = Config {
        seed,
        groups: Arc::from(groups),
        ..Config::default()
    };
    Ok((Merge::new(sources), config))
}

/// Runs loads under schemes, under all seeds.
///
/// # Errors
/// See [`ExperimentError`].
pub fn samples(
    settings: &Settings,
    cases: &[(&str, Load)],
) -> Result<Vec<Replicas<LoadSample>>, ExperimentError> {
    let scene = Scene::of(settings)?;
    let topology = scene.topology()?;
    let times = schedule(settings.quick);
    let plan = |(label, (mix, percent)): &(&str, Load)| {
        let transport = transport(label, &topology, settings)?;
        Ok(CasePlan {
            name: format!("{}-{percent}-{label}", mix.name()),
            key: format!("{times:?} {scene:?}\n{}", transport.key()),
            time: times.most(),
        })
    };
    sweep(settings, cases, plan, |case, seed| {
        sample(settings, &topology, *case, seed)
    })
}

/// Runs a load under a scheme.
fn sample(
    settings: &Settings,
    topology: &Topology,
    (label, load): (&str, Load),
    seed: u64,
) -> Result<LoadSample, ExperimentError> {
    let schedule = schedule(settings.quick);
    let transport = transport(label, topology, settings)?;
    let bound = Time::ZERO + schedule.most();
    let hosts = topology.hosts().len() as u32;
    let scene = Scene::of(settings)?;
    let (flows, config) = messages(&scene, hosts, load, bound, seed)?;
    let mut run = transport.start(config, topology, Box::new(flows))?;
    MONITOR.run_until(&mut *run, schedule.begin())?;
    run.end_warm_up();
    let (before, counters_before) = (run.results(), run.counters());
    MONITOR.run_until(&mut *run, schedule.last())?;
    let (after, counters) = (run.results(), run.counters());
    let counted = |name: &str| {
        let of =
            |counters: &[(&str, f64)]| counters.iter().find(|(key, _)| *key == name).map(|c| c.1);
        Some(of(&counters)? - of(&counters_before)?)
    };
    let per_packet = |name: &str| Some(counted(name)? / counted("short_packets")?);
    let delivered = |results: &RunResults| -> u64 {
        results.flows.iter().map(|flow| flow.delivered_bytes).sum()
    };
    let got_bytes = (delivered(&after) - delivered(&before)) as f64;
    let link_bytes: u64 = (after.ports.iter())
        .filter(|port| {
            let link = &topology.links()[port.link.index()];
            matches!((link.from, link.to), (Node::Switch(_), Node::Switch(_)))
        })
        .map(|port| port.stats.sent.bytes)
        .sum();
    let marks = |to_host: bool| -> u64 {
        let ports = after.ports.iter().filter(|port| port.to_host == to_host);
        ports.map(|port| port.stats.marks).sum()
    };
    let (at_receivers, inside) = (marks(true) as f64, marks(false) as f64);
    let marked_at_receivers =
        (at_receivers + inside > 0.0).then(|| 100.0 * at_receivers / (at_receivers + inside));
    let results = schedule.drain(&mut *run)?;
    let mut by_size: [Vec<f64>; 3] = Default::default();
    let (mut flows, mut unfinished) = (0, 0);
    for flow in results.flows.iter().filter(|flow| schedule.counts(flow)) {
        flows += 1;
        unfinished += usize::from(flow.finished.is_none());
        let age = || results.now.since(flow.spec.start);
        let size = SHORT_BYTES
            .iter()
            .position(|bytes| *bytes == flow.spec.bytes);
        if let Some(size) = size {
            by_size[size].push(flow.fct().unwrap_or_else(age).as_us_f64());
        }
    }
    let seconds = schedule.counted.as_secs_f64();
    Ok(LoadSample {
        short_us: by_size.map(|mut us| [0.5, 0.99].map(|share| quantile(&mut us, share))),
        goodput_gbps: got_bytes * 8e-9 / seconds / f64::from(hosts),
        short_marked: per_packet("short_marked").map(|share| 100.0 * share),
        marked_at_receivers,
        short_hops: per_packet("short_hops"),
        link_bytes: link_bytes as f64 / got_bytes,
        flows,
        unfinished,
        drops: results.drops(),
        nacks: counted("nacks"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratewright_topology::{HostId, PathChoice};

    /// Racks' uplinks have a quarter of the hosts' capacity; hosts are 5.8 links apart on average
    /// (table II).
    #[test]
    fn the_network_is_the_papers() {
        for uplink_speed in [1, 2, 4] {
            is_the_papers(&Scene {
                uplink_speed,
                ..Scene::default()
            });
        }
    }

    fn is_the_papers(scene: &Scene) {
        let topology = scene.topology().unwrap();
        assert_eq!(topology.hosts().len(), 1_024);
        let links = |dst| {
            let path = topology.path(HostId(0), HostId(dst), PathChoice::Hash(3));
            path.unwrap().len() as f64
        };
        let mean = (1..1_024).map(links).sum::<f64>() / 1_023.0;
        assert!((mean - 5.8).abs() < 0.05, "{mean}");
        let leaf = topology.racks()[0].leaf;
        let from_leaf = topology
            .links()
            .iter()
            .filter(|link| link.from == Node::Switch(leaf));
        let to = |host: bool| {
            let ends = from_leaf.clone();
            let ends = ends.filter(|l| matches!(l.to, Node::Host(_)) == host);
            ends.map(|link| link.capacity_bps).sum::<u64>()
        };
        assert_eq!(to(true), 4 * to(false));
    }

    /// Short messages are of the mix's share, as many of each size.
    #[test]
    fn the_mix_is_the_one_asked_for() {
        let scene = Scene::default();
        let until = Time::from_ms(40);
        let load = (Mix::Typical, 60);
        let (messages, config) = messages(&scene, 1_024, load, until, 7).unwrap();
        assert_eq!(config.groups.len(), 192);
        let mut bytes = [0_u64; 4];
        for flow in messages {
            let size = SHORT_BYTES.iter().position(|bytes| *bytes == flow.bytes);
            bytes[size.map_or(3, |size| size)] += flow.bytes;
            if flow.group > 0 {
                let members = &config.groups[usize::from(flow.group) - 1];
                assert!(members.contains(&flow.src) && !members.contains(&flow.dst));
            }
        }
        let all = bytes.iter().sum::<u64>() as f64;
        let short = bytes[..3].iter().sum::<u64>() as f64;
        assert!((short / all / 0.4 - 1.0).abs() < 0.05, "{}", short / all);
        let capacity = 1_024.0 * 40e9 / 8.0 / 4.0 * 0.040;
        assert!(
            (all / capacity / 0.6 - 1.0).abs() < 0.05,
            "{}",
            all / capacity
        );
        let messages = [0, 1, 2].map(|size| bytes[size] as f64 / SHORT_BYTES[size] as f64);
        assert!(
            messages
                .iter()
                .all(|count| (count / messages[0] - 1.0).abs() < 0.1)
        );
    }
}
