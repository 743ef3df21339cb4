//! The summary of a plan's runs.

use indexmap::IndexMap;
use ratewright_plot::commit::commit;
use serde::{Deserialize, Serialize};

use super::ideal::completion_time;
use super::size_groups::SizeGroups;
use super::stats::{jain, mean, quantile_sorted};
use crate::control::link_check::LinkFinding;
use crate::net::stats::PortStats;
use crate::results::RunResults;
use crate::{FlowSpec, Framing, Span, Time};
use ratewright_topology::{LinkId, Topology};

/// `summary.json`. The results of a plan's only transport also stand at the top level.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// The plan's file.
    pub plan: String,
    /// The seed.
    pub seed: u64,
    /// The commit of the source.
    pub commit: String,
    /// True if every run ended as planned; `false` after Ctrl-C, a deadlock or a storm of pauses.
    pub complete: bool,
    /// The only transport's results, if there is one only.
    #[serde(flatten)]
    pub only: Option<TransportSummary>,
    /// The results by transport.
    pub transports: IndexMap<String, TransportSummary>,
}

impl Summary {
    /// Sums up the results of a plan.
    #[must_use]
    pub fn new(plan: String, seed: u64, transports: IndexMap<String, TransportSummary>) -> Self {
        Self {
            plan,
            seed,
            commit: commit().to_owned(),
            complete: (transports.values()).all(|o| ["complete", "time-up"].contains(&&*o.ended)),
            only: transports
                .values()
                .next()
                .filter(|_| transports.len() == 1)
                .cloned(),
            transports,
        }
    }
}

/// Results of one transport.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TransportSummary {
    /// Payload that receivers got in order, per second after the warm-up, in Gbit/s.
    pub goodput_gbps: f64,
    /// Jain's index over the goodput of the flows that were active from the end of the warm-up to
    /// the end of the run; `None` of fewer than two. Rates over unequal times are not comparable.
    pub jain: Option<f64>,
    /// The measured queues in packets.
    pub queue_packets: QueueLength,
    /// The measured queues in bytes.
    pub queue_bytes: QueueBytes,
    /// Buffering of the switch that held most at once.
    pub switch_bytes: SwitchBytes,
    /// Deflections by switches.
    pub deflections: Deflections,
    /// Pauses that ports heard (priority flow control), and their time with a class paused, summed
    /// over ports.
    pub pauses: PauseTimes,
    /// Ports of a circle that wait for each other for ever, with their classes; empty without a
    /// deadlock of priority flow control.
    pub deadlock: Vec<String>,
    /// Ports that were paused too long, with their classes, the earliest first.
    pub pause_storms: Vec<String>,
    /// Packets dropped anywhere after the warm-up.
    pub drops: u64,
    /// Packets marked anywhere after the warm-up.
    pub marks: u64,
    /// Flow completion times by size class and of `all`; classes without a flow are left out.
    pub fct_us: IndexMap<String, CompletionTimes>,
    /// Flows that began, and those of them that completed.
    pub flows: [u64; 2],
    /// Packets with payload that were sent again after the warm-up.
    pub retransmits: u64,
    /// The simulated time.
    pub simulated_us: f64,
    /// Packets that left a queue onto a link and arrived.
    pub packet_hops: u64,
    /// End of the run: `complete` if no event was left, `time-up`, `stopped` by Ctrl-C, or by a
    /// `deadlock` or `pause-storm`.
    pub ended: String,
    /// Links that the allocator's check of told capacities named, in the order of time.
    pub findings: Vec<Finding>,
    /// Counters of the scheme.
    pub counters: IndexMap<String, f64>,
}

/// A link that the allocator's check of told capacities named.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// The link.
    pub link: String,
    /// Its state, as the service labels it.
    pub state: String,
    /// Time at which it was named.
    pub named_us: f64,
    /// Time at which that was taken back; `None` if it stands.
    pub taken_back_us: Option<f64>,
    /// Capacity that the allocator was told.
    pub told_gbps: f64,
    /// Rates that were handed out over it when it was named.
    pub handed_out_gbps: f64,
    /// Rate that it carried then; `None` if nobody told.
    pub carried_gbps: Option<f64>,
    /// Least capacity to which it was lowered; `None` if it was not.
    pub lowered_gbps: Option<f64>,
}

impl Finding {
    /// Describes a finding of a run.
    #[must_use]
    pub fn of(finding: &LinkFinding, topology: &Topology) -> Self {
        let link = &topology.links()[finding.link.index()];
        let [from, to] = [link.from, link.to].map(|end| topology.node_name(end));
        let gbps = |bps: f64| bps / 1e9;
        let evidence = &finding.evidence;
        Self {
            link: format!("{from}->{to}"),
            state: evidence.state.label().to_owned(),
            named_us: finding.named.as_us_f64(),
            taken_back_us: finding.taken_back.map(|at| at.as_us_f64()),
            told_gbps: gbps(evidence.told_bps),
            handed_out_gbps: gbps(evidence.handed_out_bps),
            carried_gbps: evidence.carried_bps.map(gbps),
            lowered_gbps: finding.lowered_bps.map(gbps),
        }
    }
}

/// Lengths in packets, over time, of the measured queue that is longest on average; the packet
/// being sent does not count.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct QueueLength {
    /// The mean over time.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95 %.
    pub p95: f64,
    /// The longest.
    pub max: f64,
    /// The mean over time and all measured queues.
    pub mean_all: f64,
}

/// Bytes that wait in all queues of a switch; packets that are being sent do not count.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct SwitchBytes {
    /// The mean over time.
    pub mean: f64,
    /// The median over time.
    pub p50: f64,
    /// 99 % over time.
    pub p99: f64,
    /// The most at once.
    pub max: f64,
}

/// Deflections (Dart §IV); a packet counts at every switch that deflects it.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Deflections {
    /// Packets.
    pub packets: u64,
    /// Messages.
    pub messages: u64,
    /// Most entries in use of a switch's table.
    pub most_entries: u64,
}

/// Pauses of ports.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PauseTimes {
    /// Number of pauses.
    pub count: u64,
    /// Their time.
    pub us: f64,
    /// The longest of a class without a resume.
    pub longest_us: f64,
}

/// Lengths in bytes, over time, of the same queue as [`QueueLength`].
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct QueueBytes {
    /// The mean over time.
    pub mean: f64,
    /// The longest.
    pub max: f64,
    /// The mean over time and all measured queues.
    pub mean_all: f64,
}

/// Completion times in microseconds, at the receiver's last byte.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct CompletionTimes {
    /// Flows.
    pub count: u64,
    /// Those of them that had not completed; they count with their age.
    pub unfinished: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95 %.
    pub p95: f64,
    /// 99 %.
    pub p99: f64,
    /// The longest.
    pub max: f64,
    /// Median of the slowdown: the completion time over that on an empty network.
    pub slowdown_p50: f64,
    /// 99 % of the slowdown, as flowtune fig. 12 compares it.
    pub slowdown_p99: f64,
}

/// Parameters that a run's results are summed up with.
#[derive(Clone, Copy, Debug)]
pub struct SummaryContext<'a> {
    /// The network.
    pub topology: &'a Topology,
    /// Bytes around the payload.
    pub framing: Framing,
    /// Processing of hosts.
    pub host_delay: Span,
    /// Links whose queues are reported.
    pub queues: &'a [LinkId],
    /// Groups of flows by size that completion times are reported of.
    pub size_groups: &'a SizeGroups,
    /// Begin of the measurements.
    pub warm_up: Time,
    /// Bytes that each flow had delivered by the end of the warm-up.
    pub before: &'a [u64],
}

impl TransportSummary {
    /// Sums up a run.
    #[must_use]
    pub fn new(results: &RunResults, context: &SummaryContext<'_>, ended: &str) -> Self {
        let (warm_up, before) = (context.warm_up, context.before);
        let last = results.flows.iter().filter_map(|f| f.finished).max();
        let all_done = results.flows.iter().all(|f| f.finished.is_some());
        // A run that completed may have been idle since, and goodput over that time would say less
        // than the network did: it counts until the last byte.
        let end = last.filter(|_| all_done).unwrap_or(results.now);
        let mut bytes = 0;
        let mut rates = Vec::new();
        for (index, flow) in results.flows.iter().enumerate() {
            let delivered = flow.delivered_bytes - before.get(index).copied().unwrap_or(0);
            bytes += delivered;
            let until = flow.finished.unwrap_or(end).min(flow.spec.stop);
            if flow.spec.start <= warm_up && until >= end {
                rates.push(delivered as f64);
            }
        }
        let seconds = end.since(warm_up).as_secs_f64();
        let goodput = if seconds > 0.0 {
            bytes as f64 * 8.0 / seconds / 1e9
        } else {
            0.0
        };
        let counters = results.transport.iter();
        let (queue_packets, queue_bytes) = queue_length(results, context.queues);
        Self {
            goodput_gbps: goodput,
            jain: (rates.len() > 1).then(|| jain(&rates)),
            queue_packets,
            queue_bytes,
            switch_bytes: switch_bytes(results),
            pauses: pauses(results),
            deadlock: (results.deadlock.iter())
                .flat_map(|deadlock| &deadlock.cycle)
                .map(|port| port.name(context.topology))
                .collect(),
            pause_storms: (results.storms.iter())
                .map(|storm| storm.port.name(context.topology))
                .collect(),
            deflections: deflections(results),
            drops: results.drops(),
            marks: results.ports.iter().map(|port| port.stats.marks).sum(),
            fct_us: fct_by_group(results, context),
            flows: [
                results.flows.len() as u64,
                results
                    .flows
                    .iter()
                    .filter(|f| f.finished.is_some())
                    .count() as u64,
            ],
            retransmits: results.retransmits,
            simulated_us: results.now.as_us_f64(),
            packet_hops: results.packet_hops,
            ended: ended.to_owned(),
            findings: (results.findings.iter())
                .map(|finding| Finding::of(finding, context.topology))
                .collect(),
            counters: counters
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect(),
        }
    }
}

/// Lengths of the measured queue that is longest on average, in packets and in bytes.
fn queue_length(results: &RunResults, measured: &[LinkId]) -> (QueueLength, QueueBytes) {
    let ports = || measured.iter().filter_map(|l| results.ports.get(l.index()));
    let mean_of = |of: fn(&PortStats) -> f64| {
        let means: Vec<f64> = ports().map(|port| of(&port.stats)).collect();
        mean(&means).unwrap_or(0.0)
    };
    // One queue, so that its quantiles are of one distribution; a mean over idle ones hides it.
    let longest = ports().max_by(|a, b| a.stats.mean_packets().total_cmp(&b.stats.mean_packets()));
    let Some(longest) = longest.map(|port| &port.stats) else {
        return Default::default();
    };
    let histogram = longest.histogram.as_ref();
    let quantile = |share| histogram.map_or(0.0, |h| f64::from(h.quantile(share)));
    let packets = QueueLength {
        mean: longest.mean_packets(),
        p50: quantile(0.5),
        p95: quantile(0.95),
        max: f64::from(longest.max_packets),
        mean_all: mean_of(PortStats::mean_packets),
    };
    let bytes = QueueBytes {
        mean: longest.mean_bytes(),
        max: longest.max_bytes as f64,
        mean_all: mean_of(PortStats::mean_bytes),
    };
    (packets, bytes)
}

/// Buffering of the switch that held most at once.
fn switch_bytes(results: &RunResults) -> SwitchBytes {
    let switches = results.switches.iter();
    let most = switches.max_by_key(|switch| switch.max_bytes);
    most.map_or_else(SwitchBytes::default, |switch| {
        let occupancy = switch.occupancy.as_ref();
        let quantile = |share| occupancy.map_or(0.0, |o| o.quantile(share) as f64);
        SwitchBytes {
            mean: switch.mean_bytes,
            p50: quantile(0.5),
            p99: quantile(0.99),
            max: switch.max_bytes.unwrap_or(0) as f64,
        }
    })
}

/// Deflections of all switches.
fn deflections(results: &RunResults) -> Deflections {
    let mut sum = Deflections::default();
    for of_switch in results.switches.iter().map(|switch| switch.deflections) {
        sum.packets += of_switch.packets;
        sum.messages += of_switch.messages;
        sum.most_entries = sum.most_entries.max(of_switch.most_entries);
    }
    sum
}

/// Pauses of all ports.
fn pauses(results: &RunResults) -> PauseTimes {
    let mut sum = PauseTimes::default();
    for pauses in results.ports.iter().map(|port| port.stats.pauses()) {
        sum.count += pauses.count;
        sum.us += pauses.time.as_us_f64();
        let longest = pauses
            .longest
            .map_or(0.0, |longest| longest.span.as_us_f64());
        sum.longest_us = sum.longest_us.max(longest);
    }
    sum
}

/// Completion times by size and of all, of flows that began after the warm-up. A flow that
/// has not completed counts with its age, a lower bound.
fn fct_by_group(
    results: &RunResults,
    context: &SummaryContext<'_>,
) -> IndexMap<String, CompletionTimes> {
    let all = context.size_groups.names().count();
    // Times, slowdowns and unfinished flows by group; the last entry is of all.
    let mut groups: Vec<(Vec<f64>, Vec<f64>, u64)> = vec![Default::default(); all + 1];
    for flow in &results.flows {
        // An unbounded flow or one that was stopped has no size to group it by.
        let has_size = flow.spec.bytes < FlowSpec::UNBOUNDED && flow.spec.stop == Time::MAX;
        if flow.spec.start < context.warm_up || !has_size {
            continue;
        }
        let empty = completion_time(
            context.topology,
            context.framing,
            context.host_delay,
            (flow.spec.src, flow.spec.dst),
            flow.spec.bytes,
        );
        let age = results.now.since(flow.spec.start);
        // It will take as long as on an empty network at least.
        let least = empty.as_ref().map_or(age, |empty| age.max(*empty));
        let took_us = flow.fct().unwrap_or(least).as_us_f64();
        for group in [context.size_groups.of(flow.spec.bytes), all] {
            let (times, slowdowns, unfinished) = &mut groups[group];
            times.push(took_us);
            *unfinished += u64::from(flow.finished.is_none());
            if let Ok(empty) = empty {
                slowdowns.push(took_us / empty.as_us_f64());
            }
        }
    }
    let mut found = IndexMap::new();
    let names = context.size_groups.names().chain(["all"]);
    for (name, (mut times, mut slowdowns, unfinished)) in names.zip(groups) {
        times.sort_unstable_by(f64::total_cmp);
        slowdowns.sort_unstable_by(f64::total_cmp);
        let at = |share| quantile_sorted(&times, share).unwrap_or(0.0);
        let slowdown = |share| quantile_sorted(&slowdowns, share).unwrap_or(0.0);
        if let Some(mean) = mean(&times) {
            found.insert(
                name.to_owned(),
                CompletionTimes {
                    count: times.len() as u64,
                    unfinished,
                    mean,
                    p50: at(0.5),
                    p95: at(0.95),
                    p99: at(0.99),
                    max: at(1.0),
                    slowdown_p50: slowdown(0.5),
                    slowdown_p99: slowdown(0.99),
                },
            );
        }
    }
    found
}
