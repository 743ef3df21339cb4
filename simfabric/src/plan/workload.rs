//! `[workload]`: the flows of a plan.

use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;
use toml::de::DeValue;

use super::source::{PlanError, Source, TomlTable, take};
use super::topology::PlannedNetwork;
use crate::net::queue::MAX_CLASSES;
use crate::units::Delay;
use crate::workload::{
    AllToAll, FlowStream, FlowTrace, Incast, Permutation, Poisson, PoissonError, Rounds,
    SizeDistribution, Staggered,
};
use crate::{FlowSpec, HostId, Span, Time};

/// The values of `kind`.
pub const KINDS: [&str; 7] = [
    "poisson",
    "incast",
    "all-to-all",
    "permutation",
    "staggered",
    "list",
    "trace",
];

/// A workload that gives equal flows each time that it is started.
#[derive(Clone, Debug)]
pub(super) enum Workload {
    Poisson(Poisson),
    Incast(Incast),
    AllToAll(AllToAll),
    Permutation(Permutation),
    Staggered(Staggered),
    List(Vec<FlowSpec>),
    Trace(std::path::PathBuf, u32),
}

impl Workload {
    /// Flows of the workload, from the beginning.
    pub(super) fn flows(&self) -> Result<FlowStream, crate::workload::TraceError> {
        Ok(match self {
            Self::Poisson(w) => Box::new(w.clone()),
            Self::Incast(w) => Box::new(w.clone()),
            Self::AllToAll(w) => Box::new(w.clone()),
            Self::Permutation(w) => Box::new(w.clone()),
            Self::Staggered(w) => Box::new(w.clone()),
            Self::List(flows) => Box::new(flows.clone().into_iter()),
            Self::Trace(path, hosts) => Box::new(FlowTrace::open(path, *hosts)?),
        })
    }
}

impl Workload {
    /// True if a flow can begin before `end`.
    pub(super) fn begins_before(&self, end: Time) -> Result<bool, crate::workload::TraceError> {
        Ok(match self {
            // Not by its first flow: whether a random process has one in time depends on the seed,
            // and a plan should be valid with any.
            Self::Poisson(arrivals) => arrivals.from() < arrivals.until().min(end),
            other => other.flows()?.next().is_some_and(|flow| flow.start < end),
        })
    }
}

/// Keys that give the sizes of flows; a workload has exactly one of them.
#[derive(Default)]
struct SizeKeys {
    bytes: Option<Spanned<u64>>,
    sizes: Option<Spanned<String>>,
    sizes_file: Option<Spanned<String>>,
}

impl SizeKeys {
    /// The sizes, if one of the keys is given.
    fn read(self, source: &Source<'_>) -> Result<Option<SizeDistribution>, PlanError> {
        match (self.bytes, self.sizes, self.sizes_file) {
            (None, None, None) => Ok(None),
            (Some(bytes), None, None) => match *bytes.get_ref() {
                0 => Err(source.error(Some(bytes.span()), "`bytes` is 0; a flow has at least one")),
                count => Ok(Some(SizeDistribution::constant(count))),
            },
            (None, Some(name), None) => SizeDistribution::published(name.get_ref())
                .map(Some)
                .map_err(|e| source.error(Some(name.span()), e.to_string())),
            (None, None, Some(file)) => SizeDistribution::from_csv(&source.path(file.get_ref()))
                .map(Some)
                .map_err(|e| source.error(Some(file.span()), e.to_string())),
            (a, b, c) => {
                let spans = [
                    a.map(|s| s.span()),
                    b.map(|s| s.span()),
                    c.map(|s| s.span()),
                ];
                // The place of the last key: the first was all right until then.
                let last = spans.into_iter().flatten().max_by_key(|s| s.start);
                let message = "keep one of `bytes`, `sizes` and `sizes_file`";
                Err(source.error(last, message))
            }
        }
    }

    /// The sizes of a workload that cannot do without.
    fn required(
        self,
        source: &Source<'_>,
        span: Range<usize>,
    ) -> Result<SizeDistribution, PlanError> {
        self.read(source)?.ok_or_else(|| {
            let message = "the sizes are missing; add `bytes`, `sizes` or `sizes_file`";
            source.error(Some(span), message)
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PoissonTable {
    load: Spanned<f64>,
    senders: Option<Spanned<u32>>,
    groups: Option<Spanned<u8>>,
    jitter: Option<Spanned<Delay>>,
    bytes: Option<Spanned<u64>>,
    sizes: Option<Spanned<String>>,
    sizes_file: Option<Spanned<String>>,
    start: Option<Delay>,
    until: Option<Delay>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IncastTable {
    senders: Spanned<u32>,
    #[serde(default)]
    receiver: Option<Spanned<u32>>,
    bytes: Option<Spanned<u64>>,
    sizes: Option<Spanned<String>>,
    sizes_file: Option<Spanned<String>>,
    start: Option<Delay>,
    period: Option<Delay>,
    rounds: Option<Spanned<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PatternTable {
    bytes: Option<Spanned<u64>>,
    sizes: Option<Spanned<String>>,
    sizes_file: Option<Spanned<String>>,
    start: Option<Delay>,
    period: Option<Delay>,
    rounds: Option<Spanned<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StaggeredTable {
    senders: Spanned<Vec<Spanned<u32>>>,
    receiver: Spanned<u32>,
    interval: Delay,
    start: Option<Delay>,
    #[serde(default = "yes")]
    stops: bool,
}

const fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListTable {
    flows: Spanned<Vec<ListedFlow>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedFlow {
    src: Spanned<u32>,
    dst: Spanned<u32>,
    bytes: Option<Spanned<u64>>,
    start: Option<Delay>,
    stop: Option<Spanned<Delay>>,
    weight: Option<Spanned<f32>>,
    class: Option<u8>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceTable {
    file: Spanned<String>,
}

/// A moment by its distance from the begin of the run, which is the default.
fn time(delay: Option<Delay>) -> Time {
    Time::ZERO + delay.map_or(Span::ZERO, |d| d.0)
}

/// Begin, period and number of a pattern's rounds.
fn rounds(
    source: &Source<'_>,
    start: Option<Delay>,
    period: Option<Delay>,
    count: Option<&Spanned<u32>>,
) -> Result<Rounds, PlanError> {
    let wrong = match (count.map(|c| (*c.get_ref(), c.span())), period) {
        (Some((0, place)), _) => Some((place, "`rounds` is 0; there is at least one")),
        (Some((2.., place)), None) => Some((
            place,
            "several rounds need a `period`, or all begin at once",
        )),
        _ => None,
    };
    match wrong {
        Some((place, message)) => Err(source.error(Some(place), message)),
        None => Ok(Rounds {
            start: time(start),
            period: period.map_or(Span::ZERO, |d| d.0),
            count: count.map_or(1, |c| *c.get_ref()),
        }),
    }
}

/// Numbers the groups of senders of all workloads, from 1 on, and returns them; `None` if there are
/// too many for a flow's number.
pub(super) fn groups(workloads: &mut [Workload]) -> Option<Vec<Vec<HostId>>> {
    let mut all = Vec::new();
    for workload in workloads {
        if let Workload::Poisson(arrivals) = workload {
            let first = u8::try_from(all.len() + 1).unwrap_or(u8::MAX);
            all.extend_from_slice(arrivals.number_groups(first));
        }
    }
    (all.len() <= usize::from(u8::MAX)).then_some(all)
}

/// First moment at which Poisson workloads together offer more than hosts' links carry, and the
/// load then.
pub(super) fn overload(workloads: &[Workload]) -> Option<(Time, f64)> {
    let arrivals = || {
        workloads.iter().filter_map(|workload| match workload {
            Workload::Poisson(arrivals) => Some(arrivals),
            _ => None,
        })
    };
    // The offered load grows only where a workload begins, so no other moments are checked. The
    // tolerance is for loads that add up to 1 in decimals, but not in binary.
    let offered = arrivals().map(|one| {
        let at = one.from();
        (at, arrivals().map(|other| other.load_at(at)).sum::<f64>())
    });
    offered
        .filter(|&(_, load)| load > 1.0 + 1e-9)
        .min_by_key(|&(at, _)| at)
}

/// Takes the class that a workload asks of the network for its packets.
pub(super) fn class<'a>(source: &Source<'a>, table: &mut TomlTable<'a>) -> Result<u8, PlanError> {
    let Some(value) = take(table, "class") else {
        return Ok(0);
    };
    let class = match value.get_ref() {
        DeValue::Integer(class) => u8::from_str_radix(class.as_str(), class.radix()).ok(),
        _ => None,
    };
    class
        .filter(|class| usize::from(*class) < MAX_CLASSES)
        .ok_or_else(|| {
            let message = format!("`class` must be a whole number below {MAX_CLASSES}");
            source.error(Some(value.span()), message)
        })
}

/// Reads one workload table.
pub(super) fn read<'a>(
    source: &Source<'a>,
    mut table: TomlTable<'a>,
    span: Range<usize>,
    network: &PlannedNetwork,
    end: Time,
    seed: u64,
) -> Result<Workload, PlanError> {
    let hosts = network.topology.hosts().len() as u32;
    let host = |number: &Spanned<u32>| {
        let id = *number.get_ref();
        if id < hosts {
            return Ok(HostId(id));
        }
        let most = hosts.saturating_sub(1);
        Err(source.error(
            Some(number.span()),
            format!("there is no host {id}; hosts are 0 to {most}"),
        ))
    };
    let (kind, at) = source.choice(&mut table, span.clone(), "kind", &KINDS)?;
    Ok(match kind {
        "poisson" => {
            let t: PoissonTable = source.section(table, span.clone())?;
            let sizes = SizeKeys {
                bytes: t.bytes,
                sizes: t.sizes,
                sizes_file: t.sizes_file,
            };
            let sizes = sizes.required(source, span)?;
            let window = (time(t.start), t.until.map_or(end, |d| Time::ZERO + d.0));
            // A load is a share of the hosts' links; where these differ, of their mean.
            let links = network.topology.hosts().iter().map(|h| {
                let link = network.topology.host_uplink(h.id);
                network.topology.effective_capacity_bps(link)
            });
            let mean_bps = links.sum::<u64>() / u64::from(hosts.max(1));
            // Poisson arrivals have no last one: without an end, the run would draw them for ever.
            if window.1 == Time::MAX {
                let message =
                    "arrivals would never end; add `until` here, or a `duration` to [run]";
                return Err(source.error(Some(at), message));
            }
            let refused = |e: PoissonError| {
                let place = match e {
                    PoissonError::Load { .. } => Some(t.load.span()),
                    PoissonError::Hosts { .. } => Some(at.clone()),
                    PoissonError::Senders { .. } => t.senders.as_ref().map(Spanned::span),
                };
                source.error(place, e.to_string())
            };
            let arrivals = Poisson::new(hosts, mean_bps, *t.load.get_ref(), sizes, window, seed)
                .map_err(&refused)?;
            let groups = t.groups.as_ref().map_or(0, |groups| *groups.get_ref());
            let jitter = t.jitter.as_ref().map_or(Span::ZERO, |j| j.get_ref().0);
            let of_incasts = [
                t.groups.as_ref().map(Spanned::span),
                t.jitter.as_ref().map(Spanned::span),
            ];
            Workload::Poisson(match &t.senders {
                Some(senders) => arrivals
                    .of_incasts(*senders.get_ref(), groups, jitter)
                    .map_err(&refused)?,
                None => {
                    if let Some(place) = of_incasts.into_iter().flatten().next() {
                        let message = "it is of an incast's senders; add `senders`";
                        return Err(source.error(Some(place), message));
                    }
                    arrivals
                }
            })
        }
        "incast" => {
            let t: IncastTable = source.section(table, span.clone())?;
            let sizes = SizeKeys {
                bytes: t.bytes,
                sizes: t.sizes,
                sizes_file: t.sizes_file,
            };
            let sizes = sizes.required(source, span)?;
            let senders = *t.senders.get_ref();
            if senders == 0 || senders >= hosts {
                let message = format!(
                    "`senders` is {senders}; with {hosts} hosts there can be 1 to {}",
                    hosts.saturating_sub(1)
                );
                return Err(source.error(Some(t.senders.span()), message));
            }
            let receiver = t.receiver.as_ref().map_or(Ok(HostId(0)), host)?;
            let rounds = rounds(source, t.start, t.period, t.rounds.as_ref())?;
            Workload::Incast(Incast::new(hosts, senders, receiver, sizes, rounds, seed))
        }
        "all-to-all" | "permutation" => {
            let t: PatternTable = source.section(table, span.clone())?;
            let sizes = SizeKeys {
                bytes: t.bytes,
                sizes: t.sizes,
                sizes_file: t.sizes_file,
            };
            let rounds = rounds(source, t.start, t.period, t.rounds.as_ref())?;
            if kind == "all-to-all" {
                let sizes = sizes.required(source, span)?;
                Workload::AllToAll(AllToAll::new(hosts, sizes, rounds, seed))
            } else {
                let sizes = sizes.read(source)?;
                Workload::Permutation(Permutation::new(hosts, sizes, rounds, seed))
            }
        }
        "staggered" => {
            let t: StaggeredTable = source.section(table, span)?;
            let receiver = host(&t.receiver)?;
            let numbers = t.senders.get_ref();
            if numbers.is_empty() {
                return Err(source.error(
                    Some(t.senders.span()),
                    "`senders` is empty; name at least one",
                ));
            }
            let mut senders = Vec::with_capacity(numbers.len());
            for number in numbers {
                let sender = host(number)?;
                if sender == receiver {
                    return Err(source.error(Some(number.span()), "a sender is the receiver"));
                }
                senders.push(sender);
            }
            let start = time(t.start);
            Workload::Staggered(Staggered::new(
                senders,
                receiver,
                start,
                t.interval.0,
                t.stops,
            ))
        }
        "list" => {
            let t: ListTable = source.section(table, span)?;
            let listed = t.flows.get_ref();
            if listed.is_empty() {
                return Err(
                    source.error(Some(t.flows.span()), "`flows` is empty; list at least one")
                );
            }
            let mut flows = Vec::with_capacity(listed.len());
            for listed in listed {
                let (src, dst) = (host(&listed.src)?, host(&listed.dst)?);
                if src == dst {
                    return Err(source.error(Some(listed.dst.span()), "a host sends to itself"));
                }
                let sizes = listed.bytes.as_ref().map(|b| (*b.get_ref(), b.span()));
                if let Some((0, place)) = sizes {
                    return Err(source.error(Some(place), "`bytes` is 0; a flow has at least one"));
                }
                // A listed flow without a size sends until its `stop`, or until the run ends.
                let bytes = sizes.map_or(FlowSpec::UNBOUNDED, |s| s.0);
                let mut flow = FlowSpec::new(src, dst, bytes, time(listed.start));
                if let Some(stop) = &listed.stop {
                    flow.stop = Time::ZERO + stop.get_ref().0;
                    if flow.stop <= flow.start {
                        let message = "a flow stops after its `start`, not before or at it";
                        return Err(source.error(Some(stop.span()), message));
                    }
                }
                flow.class = listed.class.unwrap_or(0);
                if let Some(weight) = &listed.weight {
                    flow.weight = *weight.get_ref();
                    if !(flow.weight.is_finite() && flow.weight > 0.0) {
                        let message = "`weight` must be a positive number";
                        return Err(source.error(Some(weight.span()), message));
                    }
                }
                flows.push(flow);
            }
            // The run takes flows in the order of their starts; a stable sort keeps the plan's
            // order among equal ones.
            flows.sort_by_key(|f| f.start);
            Workload::List(flows)
        }
        _ => {
            let t: TraceTable = source.section(table, span)?;
            let path = source.path(t.file.get_ref());
            let wrong =
                |e: crate::workload::TraceError| source.error(Some(t.file.span()), e.to_string());
            // Opened once for its errors; each run opens it again and reads it flow by flow.
            FlowTrace::open(&path, hosts).map_err(wrong)?;
            Workload::Trace(path, hosts)
        }
    })
}
