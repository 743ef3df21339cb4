//! RPM §III-C: acknowledgements that come back another way take no marks, so that RPM must be off
//! for their flows. Nothing worse than plain CoDel may happen.
//!
//! Short DCTCP flows and as many long ones cross two racks under four spines. With symmetric ECMP
//! acknowledgements pass the switches of their data; without, three in four pass another spine. The
//! paper has no such experiment; rows compare both markings on the same flows.

use rand::RngExt as _;
use ratewright_topology::{EcmpConfig, HostId, Topology, TwoTierClos};

use super::{HOST_BPS, Marking, transport};
use crate::FlowSpec;
use crate::experiment::monitor::MONITOR;
use crate::experiment::sweep::{CasePlan, sweep};
use crate::experiment::{ExperimentError, Reproduction, Settings};
use crate::report::figure::{Claim, Row};
use crate::report::plot::{Axis, Bars, Panel, Picture};
use crate::report::stats::{jain, mean, quantile};
use crate::rng::{Purpose, Stream};
use crate::run::Config;
use crate::time::{Span, Time};
use crate::workload::FlowStream;

/// Hosts of a rack, one long flow from each of the first.
const HOSTS: u32 = 8;
/// Spines, whose links together have half of what a rack's hosts could send.
const SPINES: u32 = 4;
/// Bytes of short flows: ten packets.
const SHORT_BYTES: u64 = 14_600;
/// Processing of hosts per packet.
const HOST_DELAY: Span = Span::from_us(10);
/// Mean time between short flows.
const GAP: Span = Span::from_us(200);
/// Time from the last start of a short flow to the end.
const DRAIN: Span = Span::from_ms(40);
/// Share by which RPM may differ for the worse: the width of what three seeds can tell.
const WORSE: f64 = 0.05;

/// Measurements of one run.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct PathSample {
    /// Throughput of the long flows after the warm-up, in Gbit/s.
    pub goodput_gbps: f64,
    /// Jain's index over the long flows' throughput after the warm-up.
    pub jain: f64,
    /// Mean completion time of short flows, in µs.
    pub mean_us: Option<f64>,
    /// 99 % of completion times of short flows, in µs.
    pub p99_us: Option<f64>,
    /// Counted short flows, and those of them that did not finish.
    pub short_flows: [usize; 2],
    /// Packets that were dropped after the warm-up.
    pub drops: u64,
}

/// A run: symmetric paths or not, and the direction of marks.
#[derive(Clone, Copy, Debug, serde::Serialize)]
struct PathCase {
    symmetric: bool,
    marking: Marking,
}

impl PathCase {
    const fn paths(self) -> &'static str {
        if self.symmetric {
            "symmetric"
        } else {
            "asymmetric"
        }
    }

    fn topology(self) -> Result<Topology, ExperimentError> {
        let tree = TwoTierClos {
            racks: 2,
            hosts_per_rack: HOSTS,
            spines: SPINES,
            host_capacity_bps: HOST_BPS,
            fabric_capacity_bps: HOST_BPS,
            host_delay_ns: super::SWITCH_DELAY.as_ns(),
            fabric_delay_ns: super::SWITCH_DELAY.as_ns(),
            ecmp: EcmpConfig {
                symmetric: self.symmetric,
                ..EcmpConfig::default()
            },
            ..TwoTierClos::default()
        };
        Ok(tree.build()?)
    }
}

fn sample(
    settings: &Settings,
    [warm_up, last, end]: [Time; 3],
    of: PathCase,
    seed: u64,
) -> Result<PathSample, ExperimentError> {
    let topology = of.topology()?;
    let dctcp = transport("dctcp", of.marking, &topology, HOST_DELAY, settings)?;
    let mut rng = Stream::new(seed, Purpose::Arrivals, 0);
    let long = (0..HOSTS).map(|host| {
        FlowSpec::new(
            HostId(host),
            HostId(HOSTS + host),
            FlowSpec::UNBOUNDED,
            Time::ZERO,
        )
    });
    let mut at = Time::ZERO;
    let short = std::iter::from_fn(move || {
        at += GAP.mul_f64(-(1.0 - rng.random::<f64>()).ln());
        let from = HostId(rng.random_range(0..HOSTS));
        let to = HostId(HOSTS + rng.random_range(0..HOSTS));
        (at < last).then(|| FlowSpec::new(from, to, SHORT_BYTES, at))
    });
    let flows: FlowStream = Box::new(long.chain(short));
    let config = Config {
        seed,
        ..Config::default()
    };
    let mut run = dctcp.start(config, &topology, flows)?;
    MONITOR.run_until(&mut *run, warm_up)?;
    let before = run.results();
    run.end_warm_up();
    MONITOR.run_until(&mut *run, end)?;
    let results = run.results();
    results.conservation?;
    let (long, short) = results.flows.split_at(HOSTS as usize);
    let counted = end.since(warm_up).as_secs_f64();
    let rates: Vec<f64> = long
        .iter()
        .zip(&before.flows)
        .map(|(flow, before)| {
            (flow.delivered_bytes - before.delivered_bytes) as f64 * 8e-9 / counted
        })
        .collect();
    let short = short.iter().filter(|flow| flow.spec.start >= warm_up);
    let unfinished = short.clone().filter(|flow| flow.finished.is_none()).count();
    let mut times: Vec<f64> = short
        .map(|flow| {
            let age = || end.since(flow.spec.start);
            flow.fct().unwrap_or_else(age).as_us_f64()
        })
        .collect();
    Ok(PathSample {
        goodput_gbps: rates.iter().sum(),
        jain: jain(&rates),
        mean_us: mean(&times),
        p99_us: quantile(&mut times, 0.99),
        short_flows: [times.len(), unfinished],
        drops: results.drops(),
    })
}

/// Runs the experiment.
///
/// # Errors
/// See [`ExperimentError`].
pub fn run(settings: &Settings) -> Result<Reproduction, ExperimentError> {
    // The long flows' slow starts meet at first.
    let warm_up = Time::from_ms(300);
    let end = Time::from_ms(if settings.quick { 1_300 } else { 5_300 });
    // The last short flows have ten times their usual time to finish.
    let last = Time(end.0 - DRAIN.0);
    let times = [warm_up, last, end];
    let markings = [Marking::Forward, Marking::Reverse];
    let cases: Vec<PathCase> = [false, true]
        .into_iter()
        .flat_map(|symmetric| markings.map(|marking| PathCase { symmetric, marking }))
        .collect();
    let plan = |of: &PathCase| {
        let dctcp = transport("dctcp", of.marking, &of.topology()?, HOST_DELAY, settings)?;
        Ok(CasePlan {
            name: format!("{}-{}", of.paths(), of.marking.name()),
            key: format!("counted {times:?}\n{}", dctcp.key()),
            time: end.since(Time::ZERO),
        })
    };
    let samples = sweep(settings, &cases, plan, |case, seed| {
        sample(settings, times, *case, seed)
    })?;
    let mut figure = settings.figure(
        "rpm-asymmetric",
        "Acknowledgements that come back another way (RPM §III-C)",
    );
    figure.scenario = vec![
        format!("two racks of {HOSTS} hosts under {SPINES} spines of 10 Gbit/s per link"),
        "eight long DCTCP flows; short ones of ten packets, one in 200 µs".to_owned(),
        "CoDel 1 ms / 20 ms, buffer 2 ms".to_owned(),
    ];
    let mut bars = Vec::new();
    for (paths, runs) in ["asymmetric", "symmetric"].iter().zip(samples.chunks(2)) {
        let [forward, reverse] = [&runs[0], &runs[1]];
        let claim = || Claim::words("nothing worse");
        type Value = fn(&PathSample) -> Option<f64>;
        let measures: [(&str, &str, Value, Claim); 4] = [
            (
                "throughput of long flows",
                "Gbit/s",
                |s| Some(s.goodput_gbps),
                claim().at_least(1.0 - WORSE),
            ),
            (
                "Jain's index of long flows",
                "",
                |s| Some(s.jain),
                claim().at_least(1.0 - WORSE),
            ),
            (
                "mean completion of short flows",
                "µs",
                |s| s.mean_us,
                claim().at_most(1.0 + WORSE),
            ),
            (
                "99 % of completion of short flows",
                "µs",
                |s| s.p99_us,
                claim().at_most(1.0 + WORSE),
            ),
        ];
        let mut ratios = Vec::new();
        for (what, unit, value, claim) in measures {
            for (marking, runs) in [(Marking::Forward, forward), (Marking::Reverse, reverse)] {
                figure.rows.push(Row::judge(
                    format!("{paths} paths, {}: {what}", marking.name()),
                    Claim::nothing(),
                    runs.estimate(value),
                    unit,
                ));
            }
            let ratio = reverse.paired(forward, |rpm, fwd| Some(value(rpm)? / value(fwd)?));
            ratios.push(ratio);
            let row = Row::judge(
                format!("{paths} paths: {what}, RPM over CoDel-FWD"),
                claim,
                ratio,
                "ratio",
            );
            // Means and shares spread over seeds by as much as is allowed to them.
            let spreads = what.starts_with("Jain") || what.starts_with("mean");
            figure.rows.push(if spreads {
                row.undecided_because("the spread over seeds is as wide as what is allowed")
            } else {
                row
            });
        }
        bars.push(Bars::estimates(format!("{paths} paths"), &ratios));
    }
    for (case, runs) in cases.iter().zip(&samples) {
        let of = |place: usize| runs.total(|sample| sample.short_flows[place]);
        figure.notes.push(format!(
            "{} paths, {}: {} of {} short flows had not finished by the end; they count with their \
             age",
            case.paths(),
            case.marking.name(),
            of(1),
            of(0)
        ));
    }
    figure.data = serde_json::json!({ "cases": cases, "samples": samples });
    let groups = [
        "throughput",
        "Jain's index",
        "mean completion",
        "p99 completion",
    ];
    let panel = Panel::bars(
        "RPM over CoDel-FWD",
        "",
        Axis::linear("Ratio").starting_at(0.0),
        groups.map(str::to_owned).to_vec(),
        bars,
    )
    .mark(1.0, "equal");
    let picture = Picture::new(
        "RPM where acknowledgements come back another way",
        "two racks under four spines; 95 % intervals",
        vec![panel],
    )
    .panel_size(720, 420);
    Ok(Reproduction { figure, picture })
}
