//! Plans: descriptions of runs in TOML files. `docs/simfabric/plans.md` documents the format.
//!
//! Tables are read strictly. An unknown key, a value out of range, or a missing file is one error
//! that names file, line and column.
//!
//! | file | table |
//! |---|---|
//! | `topology.rs` | `[topology]` |
//! | `queue.rs` | `[queue]`, `[nic_queue]` |
//! | `transport.rs` | `[transport]`: label, queues, and a scheme of the [registry](crate::scheme) |
//! | `workload.rs` | `[workload]` |
//! | `execute.rs` | runs a plan's transports |
//! | `source.rs` | the text with its places |

mod execute;
mod queue;
mod source;
mod topology;
mod transport;
mod workload;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ratewright_topology::{HostId, LinkId, Topology};
use serde::Deserialize;
use toml::Spanned;
use toml::de::DeTable;

pub use execute::{RunError, TransportRun};
pub use queue::disciplines;
pub use source::PlanError;
pub use topology::KINDS as TOPOLOGIES;
pub use transport::{Beside, PlannedTransport, read_transports};
pub use workload::KINDS as WORKLOADS;

use crate::host::pair::Split;
use crate::net::mmu::SharedBuffer;
use crate::net::{FabricConfig, Telemetry};
use crate::parameters::Setting;
use crate::report::size_groups::SizeGroups;
use crate::run::Change;
use crate::scheme::Network;
use crate::units::{Delay, LinkRate};
use crate::workload::{FlowStream, Merge, TraceError};
use crate::{Framing, Span, Time};
use source::{Source, TomlTable};

/// Tables of a plan that all transports share and that settings may name.
const COMMON: [&str; 3] = ["packet", "queue", "nic_queue"];

/// The tables of a plan.
const TABLES: [&str; 9] = [
    "run",
    "topology",
    "fault",
    "packet",
    "queue",
    "nic_queue",
    "transport",
    "workload",
    "measure",
];

/// A plan, read and checked.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// The seed of everything random.
    pub seed: u64,
    /// Threads that simulate each run, at most. Results do not depend on it.
    pub threads: usize,
    /// Latest end of a run. [`Time::MAX`]: a run ends when every flow is complete.
    pub end: Time,
    /// Begin of the measurements.
    pub warm_up: Time,
    /// The network.
    pub topology: Topology,
    /// Queues of transports that have none of their own, delays, framing.
    pub fabric: FabricConfig,
    /// Transports, one run each.
    pub transports: Vec<PlannedTransport>,
    /// Links whose queues the results report.
    pub measured_links: Vec<LinkId>,
    /// Groups of flows by size that the results report.
    pub size_groups: SizeGroups,
    /// Interval of the throughput series and number of its flows, if the plan asks for one.
    pub series: Option<(Span, u32)>,
    /// Faults, as changes of the network.
    pub faults: Vec<(Time, Change)>,
    workloads: Vec<workload::Workload>,
    /// Groups of senders, by number from 1 on.
    groups: Arc<[Vec<HostId>]>,
    /// Class of each workload's flows that ask for none themselves.
    classes: Vec<u8>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RunTable {
    #[serde(default)]
    seed: u64,
    duration: Option<Spanned<Delay>>,
    until: Option<Spanned<String>>,
    warm_up: Option<Spanned<Delay>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PacketTable {
    mss_bytes: Option<Spanned<u16>>,
    header_bytes: Option<Spanned<u16>>,
    min_wire_bytes: Option<u16>,
    telemetry: Option<Telemetry>,
    #[serde(default)]
    whole_ns: bool,
    loss: Option<Spanned<f64>>,
}

/// `[[fault]]`: from a time on a host's interface pauses its switch, or resumes it; or a link has
/// another rate, fails or is repaired.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultTable {
    at: Delay,
    host: Option<Spanned<u32>>,
    pauses: Option<bool>,
    link: Option<Spanned<String>>,
    rate: Option<LinkRate>,
    up: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct MeasureTable {
    queues: Option<Spanned<Queues>>,
    throughput_every: Option<Spanned<Delay>>,
    throughput_flows: Option<Spanned<u32>>,
    size_groups: Option<Spanned<Vec<u64>>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Queues {
    Group(String),
    Links(Vec<String>),
}

impl RunPlan {
    /// Reads a plan. `origin` names it in errors, and relative paths in it begin at `dir`.
    ///
    /// # Errors
    /// If it is no TOML, has an unknown key, or describes something that cannot be run.
    pub fn parse(
        text: &str,
        origin: &str,
        dir: &Path,
        overrides: &Overrides,
    ) -> Result<Self, PlanError> {
        Reader {
            source: Source { text, origin, dir },
            overrides,
        }
        .read()
    }

    /// Reads a plan from a file.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), and if the file cannot be read.
    pub fn load(path: &Path, overrides: &Overrides) -> Result<Self, PlanError> {
        let origin = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| PlanError {
            origin: origin.clone(),
            place: None,
            message: format!("cannot be read: {e}"),
        })?;
        let dir = path.parent().unwrap_or(Path::new(""));
        Self::parse(&text, &origin, dir, overrides)
    }

    /// Flows of all workloads in the order of their starts, from the beginning.
    ///
    /// # Errors
    /// If a trace file has changed since the plan was read.
    pub fn flows(&self) -> Result<FlowStream, TraceError> {
        let workloads = self.workloads.iter().zip(&self.classes);
        let sources = workloads.map(|(workload, class)| {
            let (flows, class) = (workload.flows()?, *class);
            let classed = flows.map(move |mut flow| {
                if flow.class == 0 {
                    flow.class = class;
                }
                flow
            });
            Ok(Box::new(classed) as FlowStream)
        });
        let sources = sources.collect::<Result<_, TraceError>>()?;
        Ok(Box::new(Merge::new(sources)))
    }
}

type Section<'a> = (TomlTable<'a>, Range<usize>);

/// Values that replace a plan's own.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The seed.
    pub seed: Option<u64>,
    /// Parameters of schemes.
    pub set: Vec<Setting>,
}

/// A plan's text, and the values that replace its own.
struct Reader<'a> {
    source: Source<'a>,
    overrides: &'a Overrides,
}

impl<'a> Reader<'a> {
    fn read(&self) -> Result<RunPlan, PlanError> {
        let source = &self.source;
        let mut document = self.document(&TABLES)?;
        let run: RunTable = match self.one(&mut document, "run")? {
            Some((table, span)) => source.section(table, span)?,
            None => source.section(TomlTable::new(), 0..0)?,
        };
        let seed = self.overrides.seed.unwrap_or(run.seed);
        let (end, warm_up) = self.times(&run)?;
        let (table, span) = self.required(&mut document, "topology")?;
        let network = topology::read(source, table, span, seed)?;
        let usual = FabricConfig {
            spraying: network.spraying,
            host_delay: network.host_delay,
            host_jitter: network.host_jitter,
            routes: network.routes.clone(),
            told: network.told.clone(),
            shared_buffer: Some(SharedBuffer::UNLIMITED),
            histograms: true,
            ..FabricConfig::default()
        };
        let (fabric, queue_is_set) = self.fabric(&mut document, usual)?;
        let faults = self.faults(&mut document, &network.topology)?;
        let transports = self.several(&mut document, "transport")?;
        let common = transport::Common {
            network: Network::new(&network.topology, &fabric),
            fabric: &fabric,
            queue_is_set,
            settings: &self.overrides.set,
            seed,
        };
        let transports = transport::read(source, transports, &common)?;
        let (mut workloads, mut classes) = (Vec::new(), Vec::new());
        for (number, (mut table, span)) in self
            .several(&mut document, "workload")?
            .into_iter()
            .enumerate()
        {
            // Each workload draws from a stream of its own, so that adding one leaves the others as
            // they are. The factor is 2^64 over the golden ratio, which keeps seeds far apart.
            let seed = seed.wrapping_add((number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            classes.push(workload::class(source, &mut table)?);
            workloads.push(workload::read(
                source,
                table,
                span.clone(),
                &network,
                end,
                seed,
            )?);
            if let Some(workload) = workloads.last()
                && !workload
                    .begins_before(end)
                    .map_err(|e| source.error(Some(span.clone()), e.to_string()))?
            {
                let message = "none of its flows begins before the run ends";
                return Err(source.error(Some(span), message));
            }
            // Checked after each workload, so that the error names the first that is too much.
            if let Some((at, load)) = workload::overload(&workloads) {
                let message = format!(
                    "with the workloads before it, the load is {load:.4} at {at}; it must be at most 1"
                );
                return Err(source.error(Some(span), message));
            }
        }
        let Some(groups) = workload::groups(&mut workloads) else {
            let message = format!("all `groups` together are more than {}", u8::MAX);
            return Err(source.error(None, message));
        };
        for transport in &transports {
            if let Some(Split::Workloads(numbers)) = transport.beside.as_ref().map(|b| &b.split)
                && let Some(none) = numbers.iter().find(|n| usize::from(**n) >= workloads.len())
            {
                let label = &transport.label;
                let message = format!(
                    "`beside` of {label:?} names the workload {none}, which the plan lacks; the first is 0"
                );
                return Err(source.error(None, message));
            }
        }
        let measure: MeasureTable = match self.one(&mut document, "measure")? {
            None => MeasureTable::default(),
            Some((table, span)) => source.section(table, span)?,
        };
        let size_groups = self.size_groups(measure.size_groups.as_ref())?;
        let (measured_links, series) = self.measure(measure, &network)?;
        let plan = RunPlan {
            seed,
            threads: 1,
            end,
            warm_up,
            topology: network.topology,
            fabric,
            transports,
            measured_links,
            size_groups,
            series,
            faults,
            workloads,
            groups: groups.into(),
            classes,
        };
        self.check_end(&plan, run.until.map(|u| u.span()))?;
        Ok(plan)
    }

    /// The text as a table of these tables.
    fn document(&self, known: &[&str]) -> Result<TomlTable<'a>, PlanError> {
        let source = &self.source;
        let document = DeTable::parse(source.text).map_err(|e| source.toml_error(&e))?;
        let mut document = document.into_inner();
        // Sections refuse unknown keys of their own; unknown tables are refused here.
        for key in document.keys() {
            if !known.contains(&key.get_ref().as_ref()) {
                let message = format!(
                    "unknown table `{}`; a plan has {}",
                    key.get_ref(),
                    known.join(", ")
                );
                return Err(source.error(Some(key.span()), message));
            }
        }
        for setting in &self.overrides.set {
            if COMMON.contains(&setting.name.as_str()) {
                let inner = self.one(&mut document, &setting.name)?;
                let mut inner = inner.unwrap_or((TomlTable::new(), source::NOWHERE));
                transport::apply(&mut inner.0, setting)?;
                source::put(&mut document, &setting.name, inner);
            }
        }
        Ok(document)
    }

    /// End of the run and of the warm-up.
    fn times(&self, run: &RunTable) -> Result<(Time, Time), PlanError> {
        let source = &self.source;
        if let Some(until) = &run.until
            && until.get_ref() != "complete"
        {
            let message = "`until` can only be \"complete\"; a fixed time is `duration`";
            return Err(source.error(Some(until.span()), message));
        }
        let end = match (&run.duration, &run.until) {
            (Some(_), Some(until)) => {
                let message = "`duration` and `until` both say when the run ends; keep one";
                return Err(source.error(Some(until.span()), message));
            }
            (None, None) => {
                let message = "[run] needs `duration = \"200ms\"` or `until = \"complete\"`";
                return Err(source.error(None, message));
            }
            // The value was checked above: it is "complete".
            (None, Some(_)) => Time::MAX,
            (Some(duration), None) if duration.get_ref().0 == Span::ZERO => {
                return Err(source.error(Some(duration.span()), "`duration` must not be 0"));
            }
            (Some(duration), None) => Time::ZERO + duration.get_ref().0,
        };
        let warm_up = run
            .warm_up
            .as_ref()
            .map_or(Time::ZERO, |w| Time::ZERO + w.get_ref().0);
        if let Some(span) = run.warm_up.as_ref().map(Spanned::span)
            && warm_up >= end
        {
            return Err(source.error(Some(span), "`warm_up` must be shorter than `duration`"));
        }
        Ok((end, warm_up))
    }

    /// A table that a plan has at most once.
    fn one(
        &self,
        document: &mut TomlTable<'a>,
        key: &str,
    ) -> Result<Option<Section<'a>>, PlanError> {
        source::take(document, key)
            .map(|v| self.source.table(key, v))
            .transpose()
    }

    /// A table that every plan has once.
    fn required(&self, document: &mut TomlTable<'a>, key: &str) -> Result<Section<'a>, PlanError> {
        let missing = || {
            self.source
                .error(None, format!("the table [{key}] is missing"))
        };
        self.one(document, key)?.ok_or_else(missing)
    }

    /// A table that every plan has once or several times.
    fn several(
        &self,
        document: &mut TomlTable<'a>,
        key: &str,
    ) -> Result<Vec<Section<'a>>, PlanError> {
        let Some(value) = source::take(document, key) else {
            return Err(self
                .source
                .error(None, format!("the table [{key}] is missing")));
        };
        self.source.tables(key, value)
    }

    /// The host of a fault.
    fn host_of(&self, number: &Spanned<u32>, topology: &Topology) -> Result<HostId, PlanError> {
        let (host, hosts) = (*number.get_ref(), topology.hosts().len());
        if host as usize >= hosts {
            let message = format!("there is no host {host}; there are 0 to {}", hosts - 1);
            return Err(self.source.error(Some(number.span()), message));
        }
        Ok(HostId(host))
    }

    /// The link of a fault.
    fn link_of(&self, name: &Spanned<String>, topology: &Topology) -> Result<LinkId, PlanError> {
        let none = || {
            let message = topology::no_link(name.get_ref());
            self.source.error(Some(name.span()), message)
        };
        topology::link_by_name(topology, name.get_ref()).ok_or_else(none)
    }

    /// Faults of the network.
    fn faults(
        &self,
        document: &mut TomlTable<'a>,
        topology: &Topology,
    ) -> Result<Vec<(Time, Change)>, PlanError> {
        if !document.contains_key("fault") {
            return Ok(Vec::new());
        }
        let fault = |(table, span): Section<'a>| {
            let t: FaultTable = self.source.section(table, span.clone())?;
            let change = match (&t.host, t.pauses, &t.link, t.rate, t.up) {
                (Some(host), Some(pause), None, None, None) => Change::Pause {
                    host: self.host_of(host, topology)?,
                    pause,
                },
                (None, None, Some(name), Some(LinkRate(rate_bps)), None) => Change::Rate {
                    link: self.link_of(name, topology)?,
                    rate_bps,
                },
                (None, None, Some(name), None, Some(up)) => Change::Link {
                    link: self.link_of(name, topology)?,
                    up,
                },
                _ => {
                    let message = "a fault has a `host` that `pauses`, or a `link` with another \
                                   `rate` or that is `up`";
                    return Err(self.source.error(Some(span), message));
                }
            };
            Ok((Time::ZERO + t.at.0, change))
        };
        let tables = self.several(document, "fault")?;
        tables.into_iter().map(fault).collect()
    }

    /// Framing and queues of the plan, in place of the fabric's own; true if it gives switches'.
    fn fabric(
        &self,
        document: &mut TomlTable<'a>,
        fabric: FabricConfig,
    ) -> Result<(FabricConfig, bool), PlanError> {
        let common = |s: &&Setting| COMMON.contains(&s.name.as_str());
        let setting = self.overrides.set.iter().find(common);
        self.own_fabric(document, fabric)
            .map_err(|error| transport::blame(error, setting))
    }

    fn own_fabric(
        &self,
        document: &mut TomlTable<'a>,
        mut fabric: FabricConfig,
    ) -> Result<(FabricConfig, bool), PlanError> {
        let source = &self.source;
        if let Some((table, span)) = self.one(document, "packet")? {
            let t: PacketTable = source.section(table, span)?;
            let usual = Framing::default();
            let mss_bytes = t
                .mss_bytes
                .as_ref()
                .map_or(usual.mss_bytes, |m| *m.get_ref());
            fabric.framing = Framing {
                mss_bytes,
                header_bytes: t
                    .header_bytes
                    .as_ref()
                    .map_or(usual.header_bytes, |h| *h.get_ref()),
                min_wire_bytes: t.min_wire_bytes.unwrap_or(usual.min_wire_bytes),
            };
            fabric.telemetry = t.telemetry.unwrap_or_default();
            fabric.whole_ns = t.whole_ns;
            if let Some(loss) = t.loss {
                fabric.loss = *loss.get_ref();
                if !(0.0..1.0).contains(&fabric.loss) {
                    let message = "it must be from 0 to below 1";
                    return Err(source.error(Some(loss.span()), message));
                }
            }
            // A packet's length on the link is a u16.
            if mss_bytes == 0 || mss_bytes.checked_add(fabric.framing.header_bytes).is_none() {
                let message = "a packet needs payload, and fits 65,535 bytes with its headers";
                let key = t.mss_bytes.or(t.header_bytes);
                return Err(source.error(key.map(|k| k.span()), message));
            }
        }
        let (queue, nic_queue) = (
            self.one(document, "queue")?,
            self.one(document, "nic_queue")?,
        );
        let queue_is_set = transport::read_queues(source, queue, nic_queue, &mut fabric)?;
        Ok((fabric, queue_is_set))
    }

    /// Groups of flows by size.
    fn size_groups(&self, given: Option<&Spanned<Vec<u64>>>) -> Result<SizeGroups, PlanError> {
        let Some(given) = given else {
            return Ok(SizeGroups::default());
        };
        SizeGroups::up_to(given.get_ref()).ok_or_else(|| {
            let message = "`size_groups` are bytes that rise from at least 1";
            self.source.error(Some(given.span()), message)
        })
    }

    /// Measured links, and the throughput series with its number of flows.
    #[allow(clippy::type_complexity, reason = "two values that one table gives")]
    fn measure(
        &self,
        t: MeasureTable,
        network: &topology::PlannedNetwork,
    ) -> Result<(Vec<LinkId>, Option<(Span, u32)>), PlanError> {
        let source = &self.source;
        let net = &network.topology;
        let span = t.queues.as_ref().map(Spanned::span);
        let group = match t.queues.map(Spanned::into_inner) {
            Some(Queues::Links(names)) if names.is_empty() => {
                return Err(source.error(span, "`queues` is empty; name at least one link"));
            }
            Some(Queues::Links(names)) => {
                let found: Result<Vec<LinkId>, PlanError> = names
                    .iter()
                    .map(|name| {
                        let none = || source.error(span.clone(), topology::no_link(name));
                        topology::link_by_name(net, name).ok_or_else(none)
                    })
                    .collect();
                return Ok((
                    found?,
                    series(source, t.throughput_every.as_ref(), t.throughput_flows)?,
                ));
            }
            Some(Queues::Group(name)) => Some(name),
            None => None,
        };
        // A dumbbell is about its shared link; elsewhere any switch's queue may be the longest.
        let group = group.unwrap_or_else(|| {
            if network.bottleneck.is_some() {
                "bottleneck"
            } else {
                "switches"
            }
            .to_owned()
        });
        let of_switch = |link: &&ratewright_topology::Link| {
            matches!(link.from, ratewright_topology::Node::Switch(_))
        };
        let to_host = |link: &&ratewright_topology::Link| {
            matches!(link.to, ratewright_topology::Node::Host(_))
        };
        let links = net.links().iter();
        let found: Vec<LinkId> = match (group.as_str(), &network.bottleneck) {
            ("bottleneck", Some((from, to))) => {
                let end = |name: &str| net.node_by_name(name);
                end(from)
                    .zip(end(to))
                    .and_then(|(from, to)| net.link_between(from, to))
                    .into_iter()
                    .collect()
            }
            ("switches", _) => links.filter(of_switch).map(|l| l.id).collect(),
            ("edge", _) => links.filter(to_host).map(|l| l.id).collect(),
            ("core", _) => links
                .filter(of_switch)
                .filter(|l| !to_host(l))
                .map(|l| l.id)
                .collect(),
            ("hosts", _) => links.filter(|l| !of_switch(l)).map(|l| l.id).collect(),
            _ => {
                let message = format!(
                    "`queues` is {group:?}; it is \"switches\", \"edge\", \"core\", \"hosts\", of a dumbbell also \"bottleneck\", or a list of links"
                );
                return Err(source.error(span, message));
            }
        };
        if found.is_empty() {
            let message = format!("`queues` is {group:?}, and this topology has no such links");
            return Err(source.error(span, message));
        }
        Ok((
            found,
            series(source, t.throughput_every.as_ref(), t.throughput_flows)?,
        ))
    }

    /// Refuses `until = "complete"` where a run would never be complete.
    fn check_end(&self, plan: &RunPlan, until: Option<Range<usize>>) -> Result<(), PlanError> {
        if plan.end < Time::MAX {
            return Ok(());
        }
        // Keep-alives and rates of sessions go on for as long as these stand.
        if let Some(transport) = plan.transports.iter().find(|c| c.never_idle) {
            let message = format!(
                "the clocks of {:?} go on without flows, so something is always left to happen; give the run a `duration`",
                transport.label
            );
            return Err(self.source.error(until, message));
        }
        // Poisson arrivals are not among them: their reader has already asked for an end.
        let endless = |w: &workload::Workload| match w {
            workload::Workload::List(flows) => flows
                .iter()
                .any(|f| f.bytes == crate::FlowSpec::UNBOUNDED && f.stop == Time::MAX),
            workload::Workload::Permutation(w) => w.is_unbounded(),
            workload::Workload::Staggered(w) => !w.stops,
            _ => false,
        };
        if plan.workloads.iter().any(endless) {
            let message =
                "a flow without end never completes; give it `bytes`, or the run a `duration`";
            return Err(self.source.error(until, message));
        }
        Ok(())
    }
}

/// Interval and number of flows of the throughput series.
fn series(
    source: &Source<'_>,
    every: Option<&Spanned<Delay>>,
    flows: Option<Spanned<u32>>,
) -> Result<Option<(Span, u32)>, PlanError> {
    let count = flows.as_ref().map_or(16, |flows| *flows.get_ref());
    let zero = flows.filter(|flows| *flows.get_ref() == 0);
    if let Some(zero) = zero {
        return Err(source.error(Some(zero.span()), "`throughput_flows` must not be 0"));
    }
    match every {
        None => Ok(None),
        Some(every) if every.get_ref().0 == Span::ZERO => {
            Err(source.error(Some(every.span()), "`throughput_every` must not be 0"))
        }
        Some(every) => Ok(Some((every.get_ref().0, count))),
    }
}
