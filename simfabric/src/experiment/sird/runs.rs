//! Runs of the simulations (§6.2), which all figures and tables but 3 and 4 share.
//!
//! | measure | definition |
//! |---|---|
//! | slowdown | time to the receiver's last byte over [`least_time`], of messages that start in the counted time, without those of incasts; one that does not finish counts with its age |
//! | goodput | payload that receivers got in the counted time, by host |
//! | queue of a switch | bytes that wait in all ports of a rack's switch; the packets being sent do not count |
//! | peak, mean | of the rack that held most at once; over all racks and the counted time |
//! | unstable | less than nine tenths of the payload that came in the counted time was delivered; or the mean queue of the racks rose from each third of it to the next, by [`RISE`] in all |
//!
//! Runs of the short form begin on an empty network a moment before: seven tenths are enough for
//! it, and it cannot see growth.

use std::sync::{Arc, Mutex, PoisonError};

use ratewright_topology::{LinkId, Node, Topology};
use serde::{Deserialize, Serialize};

use super::scene::{BDP_BYTES, Configuration, HOSTS, INCAST_LABEL, Workload, least_time};
use super::transport;
use crate::experiment::monitor::MONITOR;
use crate::experiment::sweep::{CasePlan, Replicas, sweep};
use crate::experiment::{ExperimentError, Settings};
use crate::net::FabricConfig;
use crate::net::mmu::SharedBuffer;
use crate::parameters::Setting;
use crate::plan::PlannedTransport;
use crate::report::estimate::Estimate;
use crate::report::stats::{mean, quantile};
use crate::results::{FlowResult, RunResults, Series};
use crate::run::Config;
use crate::time::{Span, Time};

/// Rise of the queue from the first to the last third of the counted time from which it grows.
pub const RISE: f64 = 1.5;
/// Interval at which queues are sampled.
const SAMPLE: Span = Span::from_us(10);
/// Quantiles of a distribution that are kept: each per cent.
const QUANTILES: usize = 101;

/// Groups of messages by size (fig. 7), the largest of each: below a packet, below a
/// bandwidth-delay product, below eight of them, and the rest.
pub const GROUPS: [(&str, u64); 4] = [
    ("A: below a packet", 1_459),
    ("B: below 1 BDP", BDP_BYTES - 1),
    ("C: below 8 BDP", 8 * BDP_BYTES - 1),
    ("D: larger", u64::MAX),
];
/// Number of all groups together, behind those of [`GROUPS`].
pub const ALL_SIZES: usize = GROUPS.len();

/// A case: all that a run depends on but its seed.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// Label in `sird.toml`; Homa's without its workload.
    pub label: &'static str,
    /// Sizes of messages.
    pub workload: Workload,
    /// Network, and traffic beside.
    pub configuration: Configuration,
    /// Applied load.
    pub load: f64,
    /// Parameters in place of those of `sird.toml`.
    pub own: Vec<Setting>,
}

impl Case {
    /// A case with the parameters of `sird.toml`.
    #[must_use]
    pub const fn new(
        label: &'static str,
        (configuration, workload): (Configuration, Workload),
        load: f64,
    ) -> Self {
        Self {
            label,
            workload,
            configuration,
            load,
            own: Vec::new(),
        }
    }

    /// Sets parameters, `NAME.KEY=VALUE` each.
    ///
    /// # Errors
    /// If one is not of that form.
    pub fn with(mut self, options: &[&str]) -> Result<Self, ExperimentError> {
        for option in options {
            self.own.push(option.parse::<Setting>()?);
        }
        Ok(self)
    }

    /// Name of the runs' files.
    fn name(&self) -> String {
        let (label, workload) = (self.label, self.workload.name());
        let (configuration, load) = (self.configuration.name(), self.load * 100.0);
        format!("{label}-{workload}-{configuration}-{load:.0}")
    }

    pub(super) fn transport(
        &self,
        topology: &Topology,
        settings: &Settings,
    ) -> Result<PlannedTransport, ExperimentError> {
        let fabric = FabricConfig {
            shared_buffer: Some(SharedBuffer::UNLIMITED),
            ..FabricConfig::default()
        };
        let by_workload = format!("{} {}", self.label, self.workload.name());
        // Homa's priorities follow from the sizes.
        let label = if self.label == super::label::HOMA {
            &by_workload
        } else {
            self.label
        };
        transport(label, topology, fabric, settings, &self.own)
    }
}

/// Times of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Times {
    warm_up: Span,
    counted: Span,
    /// Time that counted messages have to finish after it, at most, and its steps.
    drain: Span,
    step: Span,
    /// Share of the payload that came below which a load is not delivered.
    least_delivered: f64,
    /// Rise of the queue from the first third of the counted time to the last from which it grows.
    rise: f64,
}

impl Times {
    fn of(case: &Case, quick: bool) -> Self {
        let us = Span::from_us;
        let [warm_up, counted, drain] = match (case.workload, quick) {
            // Near the capacity of links queues take long to become what they will be.
            (_, true) if case.load > 0.9 => [us(2_500), us(2_000), Span::ZERO],
            (Workload::WKa, true) => [us(200), us(300), us(400)],
            (Workload::WKb, true) => [us(500), us(1_000), us(1_000)],
            (Workload::WKc, true) => [us(2_000), us(2_500), us(2_000)],
            (Workload::WKa, false) => [us(5_000), us(10_000), us(10_000)],
            (Workload::WKb, false) => [us(10_000), us(20_000), us(20_000)],
            (Workload::WKc, false) => [us(30_000), us(60_000), us(40_000)],
        };
        // Slowdowns are compared at loads that most can deliver.
        let drain = if case.load <= 0.7 { drain } else { Span::ZERO };
        Self {
            warm_up,
            counted,
            drain,
            step: Span(drain.0 / 4),
            least_delivered: if quick { 0.7 } else { 0.9 },
            rise: if quick { f64::INFINITY } else { RISE },
        }
    }

    fn most(&self) -> Span {
        self.warm_up + self.counted + self.drain
    }
}

/// Measurements of one run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Payload that came in the counted time, by host, in Gbit/s.
    pub offered_gbps: f64,
    /// Payload that receivers got in that time, by host, in Gbit/s.
    pub goodput_gbps: f64,
    /// True if less than the least share of what came was delivered.
    pub is_not_delivered: bool,
    /// True if queues grew without end.
    pub is_growing: bool,
    /// Most that a rack's switch held at once, in MB.
    pub peak_mb: f64,
    /// Mean of all racks' switches, in MB.
    pub mean_mb: f64,
    /// Mean of all racks in each third of the counted time.
    pub thirds_mb: [f64; 3],
    /// Median and 99 % of the slowdown by [`GROUPS`], and of all.
    pub slowdown: [Option<[f64; 2]>; ALL_SIZES + 1],
    /// Messages counted, by group, and all.
    pub messages: [u64; ALL_SIZES + 1],
    /// Counted messages that did not finish.
    pub unfinished: u64,
    /// Per cents of what a rack's switch held, over racks and time, in kB.
    pub rack_kb: Vec<f64>,
    /// Per cents of the queue before a host, over hosts and time, in kB.
    pub port_kb: Vec<f64>,
    /// SIRD's credit, in bytes: at senders, in flight, at receivers; means over time.
    pub credit_bytes: Option<[f64; 3]>,
    /// Packets that left a queue onto a link and arrived.
    pub packet_hops: u64,
}

impl Sample {
    /// Returns true if the protocol did not deliver the load, or a queue grew without end.
    #[must_use]
    pub fn is_unstable(&self) -> bool {
        self.is_not_delivered || self.is_growing
    }

    /// Returns 99 % of the slowdown of all messages.
    #[must_use]
    pub fn p99(&self) -> Option<f64> {
        self.slowdown[ALL_SIZES].map(|[_, p99]| p99)
    }
}

/// Slowdowns of any number of messages, to a part in a thousand.
#[derive(Clone, Debug, Default)]
struct Slowdowns {
    /// Messages by the logarithm of their slowdown.
    bins: Vec<u32>,
    count: u64,
}

impl Slowdowns {
    /// Bins for a factor of e.
    const PER_E: f64 = 1_000.0;

    fn add(&mut self, slowdown: f64) {
        let bin = (slowdown.max(1.0).ln() * Self::PER_E) as usize;
        if bin >= self.bins.len() {
            self.bins.resize(bin + 1, 0);
        }
        self.bins[bin] += 1;
        self.count += 1;
    }

    fn merge(&mut self, other: &Self) {
        let most = self.bins.len().max(other.bins.len());
        self.bins.resize(most, 0);
        for (own, others) in self.bins.iter_mut().zip(&other.bins) {
            *own += others;
        }
        self.count += other.count;
    }

    /// The quantile by nearest rank.
    fn quantile(&self, share: f64) -> Option<f64> {
        let rank = ((share * self.count as f64).ceil() as u64).max(1);
        let mut sum = 0;
        let bin = self.bins.iter().position(|bin| {
            sum += u64::from(*bin);
            sum >= rank
        })?;
        Some(((bin as f64 + 0.5) / Self::PER_E).exp())
    }
}

/// Sums over messages, as they end.
#[derive(Debug)]
struct Books {
    counted: (Time, Time),
    slowdowns: [Slowdowns; ALL_SIZES],
    /// Bytes that messages which have ended delivered, and those that came in the counted time.
    delivered: u64,
    offered: u64,
    unfinished: u64,
}

impl Books {
    fn new(counted: (Time, Time)) -> Self {
        Self {
            counted,
            slowdowns: Default::default(),
            delivered: 0,
            offered: 0,
            unfinished: 0,
        }
    }

    fn counts(&self, flow: &FlowResult) -> bool {
        (self.counted.0..self.counted.1).contains(&flow.spec.start)
    }

    /// Takes a message that has ended, or has not by `now`.
    fn take(&mut self, flow: &FlowResult, now: Time) {
        self.delivered += flow.delivered_bytes;
        if !self.counts(flow) {
            return;
        }
        let spec = &flow.spec;
        self.offered += spec.bytes;
        if spec.label == INCAST_LABEL {
            return;
        }
        let least = least_time(spec.src, spec.dst, spec.bytes);
        // One that has not finished takes as long as it has, at least.
        let took = flow.fct().unwrap_or_else(|| now.since(spec.start));
        self.unfinished += u64::from(flow.finished.is_none());
        let group = GROUPS.partition_point(|(_, most)| *most < spec.bytes);
        self.slowdowns[group].add(took.0 as f64 / least.0.max(1) as f64);
    }
}

/// Per cents of values.
fn per_cents(mut values: Vec<f64>) -> Vec<f64> {
    let last = (QUANTILES - 1) as f64;
    // The first call sorts.
    let of = |i: usize| quantile(&mut values, i as f64 / last).unwrap_or(0.0);
    (0..QUANTILES).map(of).collect()
}

/// Ports of a rack's switch: those to hosts first.
struct Rack {
    switch: usize,
    ports: Vec<LinkId>,
    to_hosts: usize,
}

fn racks(topology: &Topology) -> Vec<Rack> {
    let of = |rack: &ratewright_topology::Rack| {
        let own = |link: &&ratewright_topology::Link| link.from == Node::Switch(rack.leaf);
        let (to_hosts, up): (Vec<_>, Vec<_>) = (topology.links().iter().filter(own))
            .partition(|link| matches!(link.to, Node::Host(_)));
        Rack {
            switch: rack.leaf.index(),
            to_hosts: to_hosts.len(),
            ports: to_hosts.iter().chain(&up).map(|link| link.id).collect(),
        }
    };
    topology.racks().iter().map(of).collect()
}

/// Does one run.
fn sample(
    case: &Case,
    transport: &PlannedTransport,
    topology: &Topology,
    times: Times,
    seed: u64,
) -> Result<Sample, ExperimentError> {
    let racks = racks(topology);
    let (begin, last) = (
        Time::ZERO + times.warm_up,
        Time::ZERO + times.warm_up + times.counted,
    );
    let until = Time::ZERO + times.most();
    let flows = case
        .configuration
        .flows(case.workload, case.load, until, seed)?;
    let config = Config {
        seed,
        sample_every: Some(SAMPLE),
        watched: racks.iter().flat_map(|rack| rack.ports.clone()).collect(),
        ..Config::default()
    };
    let mut run = transport.start(config, topology, flows)?;
    let books = Arc::new(Mutex::new(Books::new((begin, last))));
    let sink = Arc::clone(&books);
    run.stream_flows(Box::new(move |flow| {
        let mut books = sink.lock().unwrap_or_else(PoisonError::into_inner);
        books.take(flow, flow.finished.unwrap_or(Time::ZERO));
    }));
    // Bytes of messages that have ended, and of those that have not.
    let delivered = |results: &RunResults| {
        let books = books.lock().unwrap_or_else(PoisonError::into_inner);
        let active = results.flows.iter().map(|flow| flow.delivered_bytes);
        books.delivered + active.sum::<u64>()
    };
    MONITOR.run_until(&mut *run, begin)?;
    let before = delivered(&run.results());
    run.end_warm_up();
    // Credit is looked at a hundred times; it is a counter, and no series.
    let mut credit: Vec<[f64; 3]> = Vec::new();
    let bound = f64::from(HOSTS) * credit_bound(transport);
    for look in 1..=100_u64 {
        MONITOR.run_until(&mut *run, begin + Span(times.counted.0 * look / 100))?;
        let counters = run.counters();
        let of = |name: &str| Some(counters.iter().find(|(known, _)| *known == name)?.1);
        if let (Some(stored), Some(given)) = (of("credit_stored"), of("credit_outstanding")) {
            credit.push([stored, given - stored, bound - given]);
        }
    }
    let during = run.results();
    let bytes = delivered(&during) - before;
    let mut at = last;
    let mut end = during.clone();
    while at < until {
        let books = books.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |flow: &&FlowResult| books.counts(flow) && flow.finished.is_none();
        if end.flows.iter().find(waits).is_none() {
            break;
        }
        drop(books);
        at = (at + times.step).min(until);
        MONITOR.run_until(&mut *run, at)?;
        end = run.results();
    }
    // What was announced and not needed.
    MONITOR.done(until.since(at))?;
    end.conservation?;
    let mut books = books.lock().unwrap_or_else(PoisonError::into_inner);
    for flow in &end.flows {
        books.take(flow, end.now);
    }
    let mut all = Slowdowns::default();
    books.slowdowns.iter().for_each(|group| all.merge(group));
    let groups = || books.slowdowns.iter().chain([&all]);
    let mut slowdown = [None; ALL_SIZES + 1];
    let mut messages = [0; ALL_SIZES + 1];
    for (i, group) in groups().enumerate() {
        slowdown[i] = group
            .quantile(0.5)
            .zip(group.quantile(0.99))
            .map(<[f64; 2]>::from);
        messages[i] = group.count;
    }
    let gbps =
        |bytes: u64| bytes as f64 * 8.0 / times.counted.as_secs_f64() / f64::from(HOSTS) / 1e9;
    let switches = || {
        racks
            .iter()
            .filter_map(|rack| during.switches.get(rack.switch))
    };
    let peak = switches().filter_map(|switch| switch.max_bytes).max();
    let means: Vec<f64> = switches().map(|switch| switch.mean_bytes).collect();
    let mut sample = Sample {
        offered_gbps: gbps(books.offered),
        goodput_gbps: gbps(bytes),
        is_not_delivered: (bytes as f64) < times.least_delivered * books.offered as f64,
        peak_mb: peak.unwrap_or(0) as f64 / 1e6,
        mean_mb: mean(&means).unwrap_or(0.0) / 1e6,
        slowdown,
        messages,
        unfinished: books.unfinished,
        credit_bytes: mean_credit(&credit),
        packet_hops: end.packet_hops,
        ..Sample::default()
    };
    if let Some(series) = &during.series {
        sample.take_series(series, begin, &racks);
        sample.is_growing = is_growing(sample.thirds_mb, times.rise);
    }
    Ok(sample)
}

/// Returns true if a queue rose from each third of the time to the next, by this factor in all.
fn is_growing([first, middle, last]: [f64; 3], rise: f64) -> bool {
    first < middle && middle < last && last > rise * first
}

/// The credit that a receiver of a transport may give, 0 of one without.
fn credit_bound(transport: &PlannedTransport) -> f64 {
    let parameters = transport.scheme.parameters();
    let value = |key: &str| {
        let value = parameters.get(key)?;
        value
            .as_float()
            .or_else(|| Some(value.as_integer()? as f64))
    };
    value("credit")
        .zip(value("bdp_bytes"))
        .map_or(0.0, |(credit, bdp)| credit * bdp)
}

/// Means over the looks at the credit.
fn mean_credit(looks: &[[f64; 3]]) -> Option<[f64; 3]> {
    let of = |place: usize| {
        let values: Vec<f64> = looks.iter().map(|look| look[place]).collect();
        mean(&values)
    };
    Some([of(0)?, of(1)?, of(2)?])
}

impl Sample {
    /// Takes what was sampled in the counted time. Ports are watched rack by rack.
    fn take_series(&mut self, series: &Series, begin: Time, racks: &[Rack]) {
        let rows = series.times.iter().zip(&series.queue_bytes);
        let rows: Vec<&Vec<u64>> = rows
            .filter(|(at, _)| **at > begin)
            .map(|row| row.1)
            .collect();
        let (mut of_racks, mut of_ports) = (Vec::new(), Vec::new());
        let mut means = Vec::new();
        for row in &rows {
            let mut ports = row.as_slice();
            let mut sum = 0.0;
            for rack in racks {
                let (own, rest) = ports.split_at(rack.ports.len().min(ports.len()));
                ports = rest;
                let held = own.iter().sum::<u64>() as f64 / 1e3;
                sum += held;
                of_racks.push(held);
                let to_hosts = own.iter().take(rack.to_hosts);
                of_ports.extend(to_hosts.map(|bytes| *bytes as f64 / 1e3));
            }
            means.push(sum / racks.len().max(1) as f64 / 1e3);
        }
        let third = means.len().div_ceil(3).max(1);
        for (own, part) in self.thirds_mb.iter_mut().zip(means.chunks(third)) {
            *own = mean(part).unwrap_or(0.0);
        }
        self.rack_kb = per_cents(of_racks);
        self.port_kb = per_cents(of_ports);
    }
}

/// A value of each seed that has one.
pub type BySeed = Vec<Option<f64>>;

/// Estimates the mean over the seeds that have a value.
#[must_use]
pub fn estimate(values: &[Option<f64>]) -> Option<Estimate> {
    Estimate::of(values.iter().flatten().copied())
}

/// Works a value out of two, seed by seed.
pub fn paired(
    own: &[Option<f64>],
    other: &[Option<f64>],
    value: impl Fn(f64, f64) -> f64,
) -> BySeed {
    let pairs = own.iter().zip(other);
    pairs
        .map(|(own, other)| Some(value((*own)?, (*other)?)))
        .collect()
}

/// Runs all cases under all seeds.
///
/// # Errors
/// The first run that fails, or that cannot be written.
pub fn runs(settings: &Settings, cases: &[Case]) -> Result<Vec<Replicas<Sample>>, ExperimentError> {
    let topologies = Configuration::ALL
        .iter()
        .map(|configuration| Ok((*configuration, configuration.topology()?)))
        .collect::<Result<Vec<_>, ExperimentError>>()?;
    let mut planned = Vec::new();
    for case in cases {
        for (_, topology) in topologies
            .iter()
            .filter(|(of, _)| *of == case.configuration)
        {
            planned.push((case, topology, case.transport(topology, settings)?));
        }
    }
    let plan = |(case, _, transport): &(&Case, &Topology, PlannedTransport)| {
        let times = Times::of(case, settings.quick);
        let of = (case.workload, case.configuration, case.load, times);
        Ok(CasePlan {
            name: case.name(),
            key: format!("{of:?}\n{}", transport.key()),
            time: times.most(),
        })
    };
    sweep(
        settings,
        &planned,
        plan,
        |(case, topology, transport), seed| {
            let times = Times::of(case, settings.quick);
            sample(case, transport, topology, times, seed)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_slowdowns_are_exact_to_a_part_in_a_thousand() {
        let mut slowdowns = Slowdowns::default();
        let values = (0..1_000).map(|i| 1.0 + f64::from(i) * 0.05);
        values.clone().for_each(|value| slowdowns.add(value));
        let mut sorted: Vec<f64> = values.collect();
        for share in [0.01, 0.5, 0.99, 1.0] {
            let exact = quantile(&mut sorted, share).unwrap();
            let found = slowdowns.quantile(share).unwrap();
            assert!((found / exact - 1.0).abs() < 1e-3, "{found} for {exact}");
        }
        assert_eq!(Slowdowns::default().quantile(0.5), None);
    }

    #[test]
    fn a_queue_that_rises_all_the_time_grows() {
        assert!(is_growing([1.0, 1.3, 1.7], RISE));
        assert!(!is_growing([1.0, 1.7, 1.6], RISE));
        assert!(!is_growing([1.0, 1.2, 1.4], RISE));
        assert!(!is_growing([1.0, 2.0, 4.0], f64::INFINITY));
    }
}
