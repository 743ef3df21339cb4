//! Two flows over a receiver's link that the allocator is told as slower or faster than it is: both
//! with Ratewright, or one beside a host without.

use ratewright_topology::{HostId, Topology, TwoTierClos};
use serde::{Deserialize, Serialize};

use super::{CONTROLS, HOST_BPS, Managed, transport};
use crate::experiment::monitor::MONITOR;
use crate::experiment::sweep::{CasePlan, Replicas, sweep};
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::flow::FlowSpec;
use crate::host::HostSet;
use crate::host::pair::Split;
use crate::net::Told;
use crate::report::figure::{Claim, Figure, Row};
use crate::report::plot::{Axis, Curve, Panel, Picture, style};
use crate::run::Config;
use crate::time::{Span, Time};

/// Told capacities in parts of the true one.
const TOLD: [f64; 5] = [0.97, 1.0, 1.05, 1.25, 5.0];
/// Part of a flow's goodput with TCP alone that it has at least.
const LEAST: f64 = 0.8;
/// Drops in parts of those of TCP alone at most, or
const DROPS: f64 = 1.5;
/// so many.
const FEW_DROPS: u64 = 10;
/// Begin of the measured time: CUBIC's first losses are over.
const WARM_UP: Time = Time::from_ms(20);
/// End of a run.
const END: Time = Time::from_ms(220);
/// Bound of a host's jitter, so that drop-tail queues favour nobody by phase.
const JITTER: Span = Span::from_us(2);

/// A run's congestion control, hosts with Ratewright, and told capacity.
type Case = (&'static str, Managed, f64);

/// Measured values of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct TwoFlows {
    /// Goodput of both. Where half of the hosts have Ratewright, the first one's sender does.
    gbps: [f64; 2],
    drops: u64,
}

impl TwoFlows {
    /// Least part of what either flow has with TCP alone.
    fn least_part(&self, alone: &Self) -> f64 {
        let share = alone.gbps.iter().sum::<f64>() / 2.0;
        // With TCP alone the two are alike, but for chance: a flow is owed the lesser of its share
        // and of what it had.
        let parts = self.gbps.iter().zip(&alone.gbps);
        parts
            .map(|(own, alone)| own / alone.min(share))
            .fold(f64::INFINITY, f64::min)
    }

    /// Drops in parts of those of TCP alone; few are none.
    fn drops_over(&self, alone: &Self) -> f64 {
        if self.drops <= FEW_DROPS {
            return 0.0;
        }
        self.drops as f64 / alone.drops.max(1) as f64
    }
}

fn topology() -> Result<Topology, ExperimentError> {
    let clos = TwoTierClos {
        racks: 2,
        hosts_per_rack: 2,
        spines: 1,
        host_capacity_bps: HOST_BPS,
        fabric_capacity_bps: 4 * HOST_BPS,
        host_delay_ns: 1_500,
        fabric_delay_ns: 1_500,
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
    let mut cases: Vec<Case> = Vec::new();
    for control in CONTROLS {
        cases.push((control, Managed::None, 1.0));
        for managed in [Managed::Half, Managed::All] {
            cases.extend(TOLD.map(|told| (control, managed, told)));
        }
    }
    let plan = |case: &Case| {
        Ok(CasePlan {
            name: format!("told-{}-{}-{}", case.0, case.1.name(), case.2),
            key: case_transport(settings, &topology, *case)?.key(),
            time: END.since(Time::ZERO),
        })
    };
    let samples = sweep(settings, &cases, plan, |case, seed| {
        sample(settings, &topology, *case, seed)
    })?;
    let mut figure = settings.figure("obey-told", "Two flows over a link that is told otherwise");
    figure.scenario = vec![
        "two senders, one receiver, links of 10 Gbit/s; from 20 to 220 ms".to_owned(),
        "half: the first sender has Ratewright, the second has not".to_owned(),
    ];
    for of in samples
        .chunks(1 + 2 * TOLD.len())
        .zip(cases.chunks(1 + 2 * TOLD.len()))
    {
        let (runs, cases) = of;
        judge(&mut figure, cases, runs);
    }
    figure.data = serde_json::json!({ "cases": cases, "samples": samples });
    let picture = picture(&samples);
    Ok(super::reproduction(figure, picture))
}

/// Returns a case's transport. The half without Ratewright is the second sender's.
fn case_transport(
    settings: &Settings,
    topology: &Topology,
    (control, managed, told): Case,
) -> Result<crate::plan::PlannedTransport, ExperimentError> {
    let links = topology.links().iter().map(|link| (link.id, told));
    let mut transport = transport(control, managed, topology, Told::new(links), settings)?;
    transport.fabric.host_jitter = JITTER;
    if let Some(beside) = &mut transport.beside {
        beside.split = Split::Hosts(HostSet::new(vec![false, true, false, false]));
    }
    Ok(transport)
}

fn sample(
    settings: &Settings,
    topology: &Topology,
    case: Case,
    seed: u64,
) -> Result<TwoFlows, ExperimentError> {
    let transport = case_transport(settings, topology, case)?;
    let flows = [0, 1].map(|src| {
        // Some microseconds apart, by the seed.
        let start = Time::from_us(10 + (seed % 7 + 3) * u64::from(src));
        FlowSpec::new(HostId(src), HostId(2), FlowSpec::UNBOUNDED, start)
    });
    let config = Config {
        seed,
        ..Config::default()
    };
    let mut run = transport.start(config, topology, Box::new(flows.into_iter()))?;
    MONITOR.run_until(&mut *run, WARM_UP)?;
    run.end_warm_up();
    let before = run.results();
    MONITOR.run_until(&mut *run, END)?;
    let after = run.results();
    let drops = after.drops();
    let seconds = END.since(WARM_UP).as_secs_f64();
    let gbps = [0, 1].map(|flow: usize| {
        let bytes = after.flows[flow].delivered_bytes - before.flows[flow].delivered_bytes;
        bytes as f64 * 8e-9 / seconds
    });
    after.conservation?;
    Ok(TwoFlows { gbps, drops })
}

/// Judges the cases of a congestion control by its first one, TCP alone.
fn judge(figure: &mut Figure, cases: &[Case], runs: &[Replicas<TwoFlows>]) {
    let [alone, with @ ..] = runs else { return };
    for ((control, managed, told), runs) in cases.iter().skip(1).zip(with) {
        let case = format!("{control}, {}, told {told}", managed.name());
        let least = runs.paired(alone, |with, alone| Some(with.least_part(alone)));
        let claim = Claim::words("at least 0.8").at_least(LEAST);
        let name = format!("{case}: least goodput, over TCP alone");
        figure.rows.push(Row::judge(name, claim, least, "ratio"));
        let drops = runs.paired(alone, |with, alone| Some(with.drops_over(alone)));
        let claim = Claim::words("at most 1.5 times").at_most(DROPS);
        let name = format!("{case}: drops, over TCP alone");
        figure.rows.push(Row::judge(name, claim, drops, "ratio"));
    }
    for ((control, managed, told), runs) in cases.iter().zip(runs) {
        let case = format!("{control}, {}, told {told}", managed.name());
        for flow in [0, 1] {
            let name = format!("{case}: goodput of flow {}", flow + 1);
            let mean = runs.estimate(|sample| Some(sample.gbps[flow]));
            figure
                .rows
                .push(Row::judge(name, Claim::nothing(), mean, "Gbit/s"));
        }
        let drops = runs.estimate(|sample| Some(sample.drops as f64));
        let name = format!("{case}: drops");
        figure
            .rows
            .push(Row::judge(name, Claim::nothing(), drops, "packets"));
    }
}

fn picture(samples: &[Replicas<TwoFlows>]) -> Picture {
    let mut panels = Vec::new();
    for (control, runs) in CONTROLS.iter().zip(samples.chunks(1 + 2 * TOLD.len())) {
        for (kind, managed) in ["one of two", "both"].into_iter().enumerate() {
            let first = 1 + kind * TOLD.len();
            let curves = [0, 1].map(|flow: usize| {
                let points = TOLD.iter().zip(&runs[first..]).filter_map(|(told, runs)| {
                    Some((*told, runs.estimate(|sample| Some(sample.gbps[flow]))?))
                });
                Curve::estimates(format!("flow {}", flow + 1), points).colour(style::colour(flow))
            });
            panels.push(Panel::curves(
                format!("{control}, Ratewright on {managed}"),
                Axis::linear("told capacity, in parts of the true one").over(0.0, 5.5),
                Axis::linear("goodput (Gbit/s)").over(0.0, 10.0),
                curves.into(),
            ));
        }
    }
    Picture::new(
        "Two flows over a link that is told otherwise",
        "10 Gbit/s; 95 % intervals",
        panels,
    )
    .columns(2)
    .panel_size(420, 300)
}
