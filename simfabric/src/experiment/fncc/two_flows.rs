//! Runs behind figures 1, 3, 10 and 13: a flow at full speed, and a second one that joins it at 300
//! µs over a link that only one of them fits.
//!
//! Seeds change the time of the join, within a packet's time, and marks.
//!
//! | measure | definition |
//! |---|---|
//! | first slow-down | the first time after the join at which flow 0 has set a rate 2 % below all of the 100 µs before |
//! | fair from | the time from which the flows' rates differ by at most a tenth of their sum; the end if they do not |
//! | peak, mean | of the bytes that wait at the shared link after the join |
//! | use | the shared link's bytes after the join, over what it could have sent |

use rand::RngExt as _;

use super::scene::{Hop, Meeting};
use super::{FRAMING, drops_row, transport};
use crate::FlowSpec;
use crate::experiment::monitor::MONITOR;
use crate::experiment::sweep::{CasePlan, Replicas, sweep};
use crate::experiment::{ExperimentError, Settings};
use crate::flow::FlowId;
use crate::net::port::ByteTime;
use crate::report::figure::Row;
use crate::results::Series;
use crate::rng::{Purpose, Stream};
use crate::run::Config;
use crate::time::{Span, Time};
use crate::workload::FlowStream;

/// Time at which flow 1 joins (§5.1), but for a packet's time.
pub const JOIN: Time = Time::from_us(300);
/// End of the runs.
pub const END: Time = Time::from_us(1_000);
/// Time before the join in which flow 0's least rate is noted.
const BEFORE: Span = Span::from_us(100);
/// Interval of looks at the senders' rates, and of what is kept of them.
const LOOK: Span = Span::from_ns(100);
const KEEP: Span = Span::from_us(1);
/// Reason why rows of DCQCN may stay undecided.
pub const BY_CHANCE: &str = "DCQCN's marks are by chance (at first 1 in 100 packets), and seeds \
                             differ by tens of µs";
/// Interval of a point of the throughput's curve.
const THROUGHPUT: u64 = 20;

/// A run: the transport's label, the hop where the flows meet, and the links' rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct TwoFlowCase {
    /// Label in `fncc.toml`.
    pub label: &'static str,
    /// Shared hop.
    pub hop: Hop,
    /// Rate of all links, in Gbit/s.
    pub rate_gbps: u64,
}

impl TwoFlowCase {
    const fn rate_bps(&self) -> u64 {
        self.rate_gbps * 1_000_000_000
    }
}

/// Measurements of one run. Times are in µs since the run began, or since the join where that is
/// said; rates in Gbit/s, queues in kB.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TwoFlowSample {
    /// First slow-down of flow 0, since the join.
    pub slow_down_us: Option<f64>,
    /// First slow-down of flow 1, from its first rate, since the join.
    pub joined_slow_down_us: Option<f64>,
    /// Time since the join from which the rates are fair; that of the end if they are not then.
    pub fair_us: f64,
    /// Largest queue after the join.
    pub peak_kb: f64,
    /// Mean queue after the join.
    pub mean_kb: f64,
    /// Use of the shared link after the join.
    pub used: f64,
    /// Pauses that switches sent.
    pub pauses: u64,
    /// Packets that were dropped.
    pub drops: u64,
    /// Curves over time; [`data`] has those of one run alone.
    #[serde(default, skip_serializing_if = "Curves::is_empty")]
    pub curves: Curves,
}

/// Curves of one run, over µs since it began.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Curves {
    /// Rates of flow 0, and of flow 1 once it began.
    pub rates: [Vec<(f64, f64)>; 2],
    /// Queue of the shared link.
    pub queue: Vec<(f64, f64)>,
    /// Throughput of both flows together, as a share of the link, with what is around payload.
    pub throughput: Vec<(f64, f64)>,
}

impl Curves {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Data of a figure: all samples, and the curves of the first seed.
#[must_use]
pub fn data(cases: &[TwoFlowCase], samples: &[Replicas<TwoFlowSample>]) -> serde_json::Value {
    let first = samples
        .iter()
        .map(|runs| runs.first().map(|run| &run.curves));
    let curves: Vec<Option<&Curves>> = first.collect();
    let without_curves = |run: &TwoFlowSample| TwoFlowSample {
        curves: Curves::default(),
        ..run.clone()
    };
    let samples: Vec<_> = samples
        .iter()
        .map(|runs| runs.map(without_curves))
        .collect();
    serde_json::json!({ "cases": cases, "samples": samples, "curves": curves })
}

/// Rows of the packets that each scheme dropped in all of its cases together.
#[must_use]
pub fn drops_rows(cases: &[TwoFlowCase], samples: &[Replicas<TwoFlowSample>]) -> Vec<Row> {
    let mut labels: Vec<&str> = Vec::new();
    for case in cases {
        if !labels.contains(&case.label) {
            labels.push(case.label);
        }
    }
    let row = |label: &&str| {
        let own = cases.iter().zip(samples);
        let own = own.filter(|(case, _)| case.label == *label);
        let drops = own.map(|(_, runs)| runs.values(|sample| Some(sample.drops as f64)));
        let sums = drops.reduce(|sums, more| {
            let pairs = sums.into_iter().zip(more);
            pairs.map(|(sum, more)| Some(sum? + more?)).collect()
        });
        drops_row(
            label,
            Replicas(sums.unwrap_or_default()).estimate(|sum| Some(*sum)),
        )
    };
    labels.iter().map(row).collect()
}

/// Returns the cases of these schemes at each of these rates, with flows that meet at the first
/// hop.
#[must_use]
pub fn first_hop_cases(rates_gbps: &[u64], labels: &[&'static str]) -> Vec<TwoFlowCase> {
    let of_rate = |rate_gbps: &u64| {
        let rate_gbps = *rate_gbps;
        labels.iter().map(move |label| TwoFlowCase {
            label,
            hop: Hop::First,
            rate_gbps,
        })
    };
    rates_gbps.iter().flat_map(of_rate).collect()
}

/// Runs all cases under all seeds.
///
/// # Errors
/// See [`ExperimentError`].
pub fn two_flows(
    settings: &Settings,
    cases: &[TwoFlowCase],
) -> Result<Vec<Replicas<TwoFlowSample>>, ExperimentError> {
    let plan = |of: &TwoFlowCase| {
        let meeting = Meeting::new(of.hop, 2, of.rate_bps())?;
        let transport = transport(of.label, &meeting.topology, settings)?;
        Ok(CasePlan {
            name: format!("two-flows-{}-{}G-{}", of.hop.name(), of.rate_gbps, of.label),
            key: transport.key(),
            time: END.since(Time::ZERO),
        })
    };
    sweep(settings, cases, plan, |case, seed| {
        sample(settings, case, seed)
    })
}

fn sample(
    settings: &Settings,
    of: &TwoFlowCase,
    seed: u64,
) -> Result<TwoFlowSample, ExperimentError> {
    let rate_bps = of.rate_bps();
    let meeting = Meeting::new(of.hop, 2, rate_bps)?;
    let transport = transport(of.label, &meeting.topology, settings)?;
    let packet = ByteTime::of_rate(rate_bps).of(FRAMING.wire_bytes(FRAMING.mss_bytes));
    let mut rng = Stream::new(seed, Purpose::Arrivals, 0);
    let join = JOIN + Span(rng.random_range(0..packet.0));
    let starts = [Time::ZERO, join];
    let ends = meeting.ends.clone();
    let flows: FlowStream = Box::new(
        ends.into_iter()
            .zip(starts)
            .map(|((src, dst), start)| FlowSpec::new(src, dst, FlowSpec::UNBOUNDED, start)),
    );
    let config = Config {
        seed,
        sample_every: Some(KEEP),
        sampled_flows: 2,
        watched: vec![meeting.bottleneck],
        ..Config::default()
    };
    let mut run = transport.start(config, &meeting.topology, flows)?;
    let mut looks: Vec<(Time, [Option<f64>; 2])> = Vec::new();
    let mut at = Time::ZERO;
    while at < END {
        // Counters begin anew at the join.
        if at == JOIN {
            run.end_warm_up();
        }
        at += LOOK;
        MONITOR.run_until(&mut *run, at)?;
        let rates = [FlowId(0), FlowId(1)].map(|flow| run.rate_bps(flow));
        looks.push((at, rates.map(|rate| rate.map(|bps| bps / 1e9))));
    }
    let results = run.results();
    results.conservation?;
    let port = results.ports.iter().find(|p| p.link == meeting.bottleneck);
    let stats = port.map(|port| &port.stats);
    let after = END.since(JOIN).as_secs_f64();
    let mut sample = TwoFlowSample {
        peak_kb: stats.map_or(0.0, |stats| stats.max_bytes as f64 / 1e3),
        mean_kb: stats.map_or(0.0, |stats| stats.mean_bytes() / 1e3),
        used: stats.map_or(0.0, |stats| stats.sent.bytes as f64 * 8.0) / (rate_bps as f64 * after),
        pauses: results.switches.iter().map(|switch| switch.pauses).sum(),
        drops: results.drops(),
        ..TwoFlowSample::default()
    };
    sample.take_rates(&looks, join);
    if let Some(series) = &results.series {
        sample.take_series(series, of.rate_gbps);
    }
    Ok(sample)
}

impl TwoFlowSample {
    fn take_rates(&mut self, looks: &[(Time, [Option<f64>; 2])], join: Time) {
        let since_join = |at: Time| at.since(join).as_us_f64();
        let before = looks
            .iter()
            .filter(|(at, _)| (join - BEFORE..join).contains(at));
        let least = before
            .filter_map(|(_, [rate, _])| *rate)
            .fold(f64::INFINITY, f64::min);
        let after = || looks.iter().filter(|(at, _)| *at > join);
        let slower = after().find(|(_, [rate, _])| rate.is_some_and(|rate| rate < 0.98 * least));
        self.slow_down_us = slower.map(|(at, _)| since_join(*at));
        let joined = |rates: &[Option<f64>; 2]| rates[1];
        if let Some(first) = looks.iter().find_map(|(_, rates)| joined(rates)) {
            let slower = after().find(|(_, rates)| joined(rates).is_some_and(|r| r < 0.98 * first));
            self.joined_slow_down_us = slower.map(|(at, _)| since_join(*at));
        }
        let is_fair = |rates: &[Option<f64>; 2]| match rates {
            [Some(a), Some(b)] => (a - b).abs() <= 0.1 * (a + b),
            _ => false,
        };
        let unfair = after().rfind(|(_, rates)| !is_fair(rates));
        self.fair_us = unfair.map_or(0.0, |(at, _)| since_join(*at));
        let kept = looks.iter().filter(|(at, _)| at.0 % KEEP.0 == 0);
        for (at, rates) in kept {
            for (curve, rate) in self.curves.rates.iter_mut().zip(rates) {
                curve.extend(rate.map(|rate| (at.as_us_f64(), rate)));
            }
        }
    }

    fn take_series(&mut self, series: &Series, rate_gbps: u64) {
        let times = series.times.iter();
        let queues = times.clone().zip(&series.queue_bytes);
        self.curves.queue = queues
            .filter_map(|(at, row)| Some((at.as_us_f64(), *row.first()? as f64 / 1e3)))
            .collect();
        let wire = f64::from(FRAMING.wire_bytes(FRAMING.mss_bytes)) / f64::from(FRAMING.mss_bytes);
        let mut last = 0;
        let sums = series
            .delivered_bytes
            .iter()
            .map(|row| row.iter().sum::<u64>());
        let points = times.zip(sums).skip(THROUGHPUT as usize - 1);
        for (at, sum) in points.step_by(THROUGHPUT as usize) {
            let bits = (sum - std::mem::replace(&mut last, sum)) as f64 * 8.0 * wire;
            let could = rate_gbps as f64 * 1e3 * THROUGHPUT as f64;
            self.curves.throughput.push((at.as_us_f64(), bits / could));
        }
    }
}
