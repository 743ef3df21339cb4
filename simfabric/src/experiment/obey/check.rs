//! The allocator's check of told capacities: what is wrong in the network is named, and taken back
//! once it is right.
//!
//! A fault begins at 5 s and ends at 15 s, so that links have proven their capacities by then. The
//! promise is the operator's guide's: named within 5 s, taken back within 10 s.

use ratewright_allocator::link_check::LinkState;
use ratewright_topology::{EcmpConfig, HostId, Link, LinkId, Node, Topology, TwoTierClos};
use serde::{Deserialize, Serialize};

use super::{CONTROLS, HOST_DELAY};
use crate::control::link_check::LinkFinding;
use crate::experiment::monitor::MONITOR;
use crate::experiment::sweep::{CasePlan, Replicas, sweep};
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::flow::FlowSpec;
use crate::net::FabricConfig;
use crate::plan::{PlannedTransport, read_transports};
use crate::report::figure::{Claim, Figure, Row};
use crate::report::plot::{Axis, Bars, Panel, Picture};
use crate::report::summary::Finding;
use crate::run::{Change, Config};
use crate::time::{Span, Time};
use crate::workload::{FlowStream, Poisson, SizeDistribution};

/// Capacity of hosts' links as it is told, in bit/s,
const LINK_BPS: u64 = 100_000_000;
/// and of links between switches.
const FABRIC_BPS: u64 = 2 * LINK_BPS;
/// Hosts of a rack: enough that the allocator spreads one flow of each over both spines.
const RACK: u32 = 8;
/// Begin of a fault,
const BEGIN: Time = Time::from_ms(5_000);
/// its end,
const FAULT_END: Time = Time::from_ms(15_000);
/// and that of the run.
const END: Time = Time::from_ms(27_000);
/// Time within which a fault is named,
const NAMED_S: f64 = 5.0;
/// and within which that is taken back.
const TAKEN_BACK_S: f64 = 10.0;
/// Load of the right network in parts of the hosts' links.
const LOAD: f64 = 0.6;
/// Bound of a host's jitter, so that queues favour nobody by phase.
const JITTER: Span = Span::from_us(20);

/// Scenes, in the order of the figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scene {
    /// A receiver's link carries 0.8 of what is told.
    ToldHigh,
    /// A host's links have 1.25 of what is told, and its interface tells it.
    ToldLow,
    /// A host without Ratewright sends to a receiver of managed flows.
    Unmanaged,
    /// A link between switches fails, and the allocator does not know.
    WrongPath,
    /// Nothing is wrong, under web search.
    Right,
}

impl Scene {
    /// All scenes.
    pub const ALL: [Self; 5] = [
        Self::ToldHigh,
        Self::ToldLow,
        Self::Unmanaged,
        Self::WrongPath,
        Self::Right,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::ToldHigh => "told 1.25 times",
            Self::ToldLow => "told 0.8 times",
            Self::Unmanaged => "unmanaged sender",
            Self::WrongPath => "wrong path",
            Self::Right => "right",
        }
    }

    /// Part of the transport's label behind its control.
    const fn transport(self) -> &'static str {
        match self {
            Self::ToldLow => "all, with speeds",
            Self::Unmanaged => "all but h2",
            Self::ToldHigh | Self::WrongPath | Self::Right => "all",
        }
    }

    /// State that is named.
    const fn state(self) -> LinkState {
        match self {
            Self::ToldHigh => LinkState::CarriesLess,
            Self::WrongPath => LinkState::WrongPath,
            Self::ToldLow => LinkState::CarriesMore,
            Self::Unmanaged => LinkState::HasOthersTraffic,
            Self::Right => LinkState::AsTold,
        }
    }

    /// Links of which the state is right.
    fn is_right(self, topology: &Topology, link: LinkId) -> bool {
        let receiver = topology.host_downlink(RECEIVER);
        match self {
            Self::ToldHigh | Self::Unmanaged => link == receiver,
            Self::ToldLow => [topology.host_uplink(RECEIVER), receiver].contains(&link),
            Self::WrongPath => {
                let ends = &topology.links()[link.index()];
                matches!((ends.from, ends.to), (Node::Switch(_), Node::Switch(_)))
            }
            Self::Right => false,
        }
    }

    /// Changes of the network by the fault, and back.
    fn changes(self, topology: &Topology) -> Vec<(Time, Change)> {
        let rate = |links: &[LinkId], part: f64| -> Vec<(Time, Change)> {
            let bps = [(LINK_BPS as f64 * part) as u64, LINK_BPS];
            let mut changes = Vec::new();
            for (at, rate_bps) in [BEGIN, FAULT_END].into_iter().zip(bps) {
                let of = |&link| (at, Change::Rate { link, rate_bps });
                changes.extend(links.iter().map(of));
            }
            changes
        };
        let receiver = topology.host_downlink(RECEIVER);
        match self {
            Self::ToldHigh => rate(&[receiver], 0.8),
            Self::ToldLow => rate(&[topology.host_uplink(RECEIVER), receiver], 1.25),
            Self::WrongPath => {
                let leaf = topology.links()[topology.host_uplink(HostId(0)).index()].to;
                let mut links = topology.links().iter();
                let is_up = |link: &&Link| link.from == leaf && matches!(link.to, Node::Switch(_));
                let failed = links.find(is_up).map(|link| link.id);
                let both = [(BEGIN, false), (FAULT_END, true)].into_iter();
                both.filter_map(|(at, up)| Some((at, Change::Link { link: failed?, up })))
                    .collect()
            }
            Self::Unmanaged | Self::Right => Vec::new(),
        }
    }

    fn end(self, quick: bool) -> Time {
        match (self, quick) {
            (Self::Right, true) => Time::from_ms(60_000),
            (Self::Right, false) => Time::from_ms(600_000),
            _ => END,
        }
    }
}

/// Receiver of the flows, but for those across the racks.
const RECEIVER: HostId = HostId(2);
/// Host without Ratewright, where one is.
const UNMANAGED: HostId = HostId(1);

/// A run's congestion control and scene.
type Case = (&'static str, Scene);

/// Measured values of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct CheckSample {
    /// Time from the fault's begin to the first right link's naming, or to the fault's end.
    named_s: f64,
    /// Time from the fault's end until no right link was named, or to the end of the run.
    taken_back_s: f64,
    /// Right links that were named.
    named: usize,
    /// Namings of other links, or in other states.
    others: usize,
    /// Times at which a right link was taken back while the fault stood.
    breaks: usize,
    /// Least capacity to which a right link was lowered, in parts of what is told.
    lowered: Option<f64>,
    /// Findings in words.
    findings: Vec<String>,
}

impl CheckSample {
    fn of(scene: Scene, topology: &Topology, findings: &[LinkFinding], end: Time) -> Self {
        let is_right = |finding: &&LinkFinding| {
            finding.evidence.state == scene.state()
                && scene.is_right(topology, finding.link)
                && finding.named >= BEGIN
        };
        let right: Vec<&LinkFinding> = findings.iter().filter(is_right).collect();
        let mut links: Vec<u32> = right.iter().map(|finding| finding.link.0).collect();
        links.sort_unstable();
        links.dedup();
        let first = right.iter().map(|finding| finding.named).min();
        let backs = right.iter().map(|finding| finding.taken_back);
        let last = backs.clone().map(|back| back.unwrap_or(end)).max();
        let named = first.unwrap_or(FAULT_END).min(FAULT_END);
        Self {
            named_s: named.since(BEGIN).as_secs_f64(),
            taken_back_s: last.unwrap_or(end).since(FAULT_END).as_secs_f64(),
            named: links.len(),
            others: findings.len() - right.len(),
            breaks: backs.flatten().filter(|back| *back < FAULT_END).count(),
            lowered: (right.iter().filter_map(|finding| finding.lowered_bps))
                .reduce(f64::min)
                .map(|bps| bps / LINK_BPS as f64),
            findings: (findings.iter())
                .map(|finding| {
                    let found = Finding::of(finding, topology);
                    let back = found.taken_back_us.map_or(f64::INFINITY, |us| us / 1e6);
                    format!(
                        "{} {} from {:.2} to {back:.2} s",
                        found.link,
                        found.state,
                        found.named_us / 1e6
                    )
                })
                .collect(),
        }
    }
}

fn topology() -> Result<Topology, ExperimentError> {
    let clos = TwoTierClos {
        racks: 2,
        hosts_per_rack: RACK,
        spines: 2,
        host_capacity_bps: LINK_BPS,
        fabric_capacity_bps: FABRIC_BPS,
        host_delay_ns: 5_000,
        fabric_delay_ns: 5_000,
        ecmp: EcmpConfig {
            seed: 0,
            symmetric: false,
        },
        ..TwoTierClos::default()
    };
    Ok(clos.build()?)
}

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    let topology = topology()?;
    let cases: Vec<Case> = CONTROLS
        .iter()
        .flat_map(|control| Scene::ALL.map(|scene| (*control, scene)))
        .collect();
    let plan = |case: &Case| {
        let end = case.1.end(settings.quick);
        Ok(CasePlan {
            name: format!("check-{}-{}", case.0, case.1.name()),
            key: format!("{end:?}\n{}", transport(settings, &topology, *case)?.key()),
            time: end.since(Time::ZERO),
        })
    };
    let samples = sweep(settings, &cases, plan, |case, seed| {
        sample(settings, &topology, *case, seed)
    })?;
    let mut figure = settings.figure("obey-check", "What is wrong is named, and taken back");
    figure.scenario = vec![
        "2 racks of 8 hosts under 2 spines, links of 100 and 200 Mbit/s".to_owned(),
        "a fault begins at 5 s and ends at 15 s".to_owned(),
        format!(
            "right: web search at 60 % of the hosts' links for {} s",
            Scene::Right.end(settings.quick).as_secs_f64()
        ),
    ];
    for ((control, scene), runs) in cases.iter().zip(&samples) {
        judge(
            &mut figure,
            &format!("{control}, {}", scene.name()),
            *scene,
            runs,
        );
    }
    figure.data = serde_json::json!({ "cases": cases, "samples": samples });
    let picture = picture(&samples);
    Ok(super::reproduction(figure, picture))
}

fn transport(
    settings: &Settings,
    topology: &Topology,
    (control, scene): Case,
) -> Result<PlannedTransport, ExperimentError> {
    let fabric = FabricConfig {
        host_delay: HOST_DELAY,
        host_jitter: JITTER,
        ..FabricConfig::default()
    };
    let label = format!("{control}, {}", scene.transport());
    let text = include_str!("check.toml");
    let all = read_transports(text, "check.toml", topology, fabric, &settings.set)?;
    let mut all = all.into_iter();
    all.find(|transport| transport.label == label)
        .ok_or(ExperimentError::NoContender(label))
}

/// Makes the flows of a scene.
fn flows(
    scene: Scene,
    topology: &Topology,
    seed: u64,
    end: Time,
) -> Result<FlowStream, ExperimentError> {
    // Some microseconds apart, by the seed.
    let flow = |number: u32, src: u32, dst: u32| {
        let start = Time::from_us(10 + (seed % 7 + 3) * u64::from(number));
        FlowSpec::new(HostId(src), HostId(dst), FlowSpec::UNBOUNDED, start)
    };
    let to_receiver = [(0, 0), (1, 3), (2, RACK)];
    let mut flows: Vec<FlowSpec> = match scene {
        Scene::ToldHigh | Scene::ToldLow => to_receiver
            .map(|(number, src)| flow(number, src, RECEIVER.0))
            .into(),
        Scene::Unmanaged => {
            let unmanaged = FlowSpec {
                start: BEGIN,
                stop: FAULT_END,
                // That of managed data: class 0 is that of control packets.
                class: 1,
                ..flow(0, UNMANAGED.0, RECEIVER.0)
            };
            let managed = to_receiver.map(|(number, src)| flow(number, src, RECEIVER.0));
            managed.into_iter().chain([unmanaged]).collect()
        }
        // Each host of the first rack sends to one of the other.
        Scene::WrongPath => (0..RACK)
            .map(|number| flow(number, number, RACK + number))
            .collect(),
        Scene::Right => {
            let hosts = topology.hosts().len() as u32;
            let sizes = SizeDistribution::published("web-search")?;
            let arrivals = (Time::ZERO, end);
            let flows = Poisson::new(hosts, LINK_BPS, LOAD, sizes, arrivals, seed)?;
            return Ok(Box::new(flows));
        }
    };
    flows.sort_by_key(|flow| flow.start);
    Ok(Box::new(flows.into_iter()))
}

fn sample(
    settings: &Settings,
    topology: &Topology,
    case: Case,
    seed: u64,
) -> Result<CheckSample, ExperimentError> {
    let (_, scene) = case;
    let end = scene.end(settings.quick);
    let config = Config {
        seed,
        changes: scene.changes(topology),
        ..Config::default()
    };
    let flows = flows(scene, topology, seed, end)?;
    let mut run = transport(settings, topology, case)?.start(config, topology, flows)?;
    MONITOR.run_until(&mut *run, end)?;
    let results = run.results();
    let sample = CheckSample::of(scene, topology, &results.findings, end);
    results.conservation?;
    Ok(sample)
}

fn judge(figure: &mut Figure, case: &str, scene: Scene, runs: &Replicas<CheckSample>) {
    let mut add = |what: &str, claim: Claim, value: &dyn Fn(&CheckSample) -> f64, unit: &str| {
        let name = format!("{case}: {what}");
        let mean = runs.estimate(|sample| Some(value(sample)));
        figure.rows.push(Row::judge(name, claim, mean, unit));
    };
    let none = || Claim::words("none").at_most(0.0);
    if scene == Scene::Right {
        return add("links named", none(), &|s| s.others as f64, "links");
    }
    let within = |seconds: f64| Claim::words(format!("at most {seconds} s")).at_most(seconds);
    add("time to be named", within(NAMED_S), &|s| s.named_s, "s");
    add(
        "time to be taken back",
        within(TAKEN_BACK_S),
        &|s| s.taken_back_s,
        "s",
    );
    add("others named", none(), &|s| s.others as f64, "links");
    let nothing = Claim::nothing;
    add("right links named", nothing(), &|s| s.named as f64, "links");
    add(
        "taken back during the fault",
        nothing(),
        &|s| s.breaks as f64,
        "times",
    );
    let lowered = runs.estimate(|sample| sample.lowered);
    let name = format!("{case}: least capacity in force, over the told one");
    if lowered.is_some() {
        figure
            .rows
            .push(Row::judge(name, nothing(), lowered, "ratio"));
    }
}

fn picture(samples: &[Replicas<CheckSample>]) -> Picture {
    let faults = Scene::ALL.len() - 1;
    let names: Vec<String> = Scene::ALL[..faults]
        .iter()
        .map(|scene| scene.name().to_owned())
        .collect();
    type Value = fn(&CheckSample) -> Option<f64>;
    let values: [(&str, Value, f64); 2] = [
        ("time to be named", |s| Some(s.named_s), NAMED_S),
        (
            "time to be taken back",
            |s| Some(s.taken_back_s),
            TAKEN_BACK_S,
        ),
    ];
    let panels = values.map(|(title, value, promise)| {
        let series = CONTROLS.iter().zip(samples.chunks(Scene::ALL.len()));
        let series = series.map(|(control, of)| {
            let means: Vec<_> = of[..faults]
                .iter()
                .map(|runs| runs.estimate(value))
                .collect();
            Bars::estimates(*control, &means)
        });
        let y = Axis::linear("s").starting_at(0.0);
        Panel::bars(title, "", y, names.clone(), series.collect()).mark(promise, "promise")
    });
    Picture::new(
        "What is wrong is named, and taken back",
        "hosts' links of 100 Mbit/s; 95 % intervals",
        panels.into(),
    )
    .columns(2)
    .panel_size(480, 320)
}
