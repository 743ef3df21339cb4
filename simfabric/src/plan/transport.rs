//! `[transport]` with its queues: those of the plan, or its own.

use std::ops::Range;

use ratewright_topology::Topology;
use serde::Deserialize;
use toml::Spanned;
use toml::de::DeValue;

use super::source::{self, PlanError, Source, TomlTable};
use super::{Reader, Section, queue};
use crate::host::HostSet;
use crate::host::pair::{Split, Turns};
use crate::net::deflection::Deflection;
use crate::net::mmu::{Lossless, SharedBuffer, USUAL_WATCHDOG, Xoff};
use crate::net::queue::{ClassMask, MAX_CLASSES, holds_a_packet};
use crate::net::{FabricConfig, FabricError};
use crate::parameters::{ParamError, Setting};
use crate::report::file::file_stem;
use crate::rng::{Purpose, Stream};
use crate::run::Config;
use crate::scheme::{self, Built, Configured, FabricNeeds, Network, Run, Setup, StartError};
use crate::time::Span;
use crate::units::Delay;
use crate::workload::FlowStream;

/// A transport of a plan: one scheme over its queues.
#[derive(Clone, Debug)]
pub struct PlannedTransport {
    /// Name of its results, unique within the plan.
    pub label: String,
    /// The scheme with its parameters.
    pub scheme: Configured,
    /// Another scheme on the same hosts.
    pub beside: Option<Beside>,
    /// The fabric with its queues; delays and framing are those of all transports.
    pub fabric: FabricConfig,
    /// True if a run never becomes idle: the scheme has clocks that go on without flows.
    pub never_idle: bool,
}

/// A second scheme on each host.
#[derive(Clone, Debug)]
pub struct Beside {
    /// The scheme with its parameters.
    pub scheme: Configured,
    /// Its flows.
    pub split: Split,
    /// Order of both on a host's link.
    pub turns: Turns,
}

impl PlannedTransport {
    /// Its schemes: one or two.
    fn schemes(&self) -> impl Iterator<Item = &Configured> {
        let beside = self.beside.as_ref().map(|beside| &beside.scheme);
        std::iter::once(&self.scheme).chain(beside)
    }

    /// Returns the scheme's name, its parameters as TOML, and the fabric. Transports of equal keys
    /// give equal runs.
    #[must_use]
    pub fn key(&self) -> String {
        let of_scheme =
            |scheme: &Configured| format!("[{}]\n{}\n", scheme.name(), scheme.parameters());
        let schemes: String = self.schemes().map(of_scheme).collect();
        let beside = self.beside.as_ref().map(|b| (&b.split, b.turns));
        format!("{schemes}{beside:?}\n{:?}", self.fabric)
    }

    /// Begins a run. The transport's fabric takes the place of that in `config`.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(
        &self,
        config: Config,
        topology: &Topology,
        flows: FlowStream,
    ) -> Result<Box<dyn Run>, StartError> {
        let network = Network::new(topology, &self.fabric);
        let setup = Setup {
            config: Config {
                fabric: self.fabric.clone(),
                ..config
            },
            topology: topology.clone(),
            flows,
        };
        let Some(beside) = &self.beside else {
            return self.scheme.build(&network)?.start(setup);
        };
        let members = match &beside.split {
            Split::Hosts(hosts) => Some((hosts.others(), hosts)),
            Split::Workloads(_) | Split::Classes(_) => None,
        };
        let built = self.scheme.build(&Network {
            members: members.as_ref().map(|(first, _)| first),
            ..network
        })?;
        let other = beside.scheme.build(&Network {
            members: members.as_ref().map(|(_, second)| *second),
            ..network
        })?;
        // Demands were reconciled when the plan was read, and are in the fabric.
        let needs = FabricNeeds::default();
        let pair = built.beside(other, needs, beside.split.clone(), beside.turns);
        pair.start(setup)
    }

    /// The label as part of a file's name.
    #[must_use]
    pub fn file_name(&self) -> String {
        file_stem(&self.label)
    }
}

/// `shared_buffer` of `[queue]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BufferTable {
    bytes: Spanned<u64>,
    alpha: Spanned<f64>,
    lossless: Option<Spanned<LosslessTable>>,
}

/// `lossless` of `shared_buffer`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LosslessTable {
    classes: Spanned<Vec<u8>>,
    xoff_bytes: Option<u64>,
    xoff_alpha: Option<f64>,
    hysteresis_bytes: Option<u64>,
    headroom_bytes: u64,
    watchdog: Option<Spanned<Delay>>,
}

/// Reads `deflection` of `[queue]`.
fn deflection(source: &Source<'_>, value: Spanned<DeValue<'_>>) -> Result<Deflection, PlanError> {
    let (table, span) = source.table("deflection", value)?;
    let settings: Deflection = source.section(table, span.clone())?;
    if !settings.is_valid() {
        return Err(source.error(Some(span), FabricError::Deflection.to_string()));
    }
    Ok(settings)
}

/// Reads `[queue]` and `[nic_queue]`, of the plan or of one transport, into the fabric. A table
/// that is not given leaves the fabric's queues as they are. Returns true if `queue` is given.
pub(super) fn read_queues<'a>(
    source: &Source<'a>,
    queue: Option<Section<'a>>,
    nic_queue: Option<Section<'a>>,
    fabric: &mut FabricConfig,
) -> Result<bool, PlanError> {
    let queue_is_set = queue.is_some();
    let packet_bytes = fabric.framing.wire_bytes(fabric.framing.mss_bytes);
    if let Some((mut table, span)) = queue {
        // Taken out first: the rest of the table is the queue's, which refuses unknown keys.
        // Without the key, a transport's own queue has no shared buffer, even if the plan's has
        // one. What switches hold is measured all the same, if it was.
        let measured = fabric.shared_buffer.map(|_| SharedBuffer::UNLIMITED);
        fabric.shared_buffer = source::take(&mut table, "shared_buffer")
            .map(|value| {
                let (table, span) = source.table("shared_buffer", value)?;
                shared_buffer(source, &source.section(table, span)?, packet_bytes)
            })
            .transpose()?
            .or(measured);
        fabric.deflection = source::take(&mut table, "deflection")
            .map(|value| deflection(source, value))
            .transpose()?;
        fabric.edge = queue::read(source, table, span, packet_bytes)?;
        fabric.core = fabric.edge.clone();
    }
    if let Some((table, span)) = nic_queue {
        fabric.nic = queue::read(source, table, span, packet_bytes)?;
    }
    Ok(queue_is_set)
}

/// Checks a shared buffer.
fn shared_buffer(
    source: &Source<'_>,
    t: &BufferTable,
    packet_bytes: u16,
) -> Result<SharedBuffer, PlanError> {
    holds_a_packet(*t.bytes.get_ref(), packet_bytes)
        .map_err(|message| source.error(Some(t.bytes.span()), message))?;
    if !(*t.alpha.get_ref() > 0.0 && t.alpha.get_ref().is_finite()) {
        return Err(source.error(Some(t.alpha.span()), "`alpha` must be above 0"));
    }
    let lossless = t.lossless.as_ref().map(|t| lossless(source, t));
    Ok(SharedBuffer {
        bytes: *t.bytes.get_ref(),
        alpha: *t.alpha.get_ref(),
        lossless: lossless.transpose()?,
    })
}

/// Checks the lossless classes of a shared buffer.
fn lossless(source: &Source<'_>, t: &Spanned<LosslessTable>) -> Result<Lossless, PlanError> {
    let (at, t) = (t.span(), t.get_ref());
    let classes = t.classes.get_ref();
    if classes.is_empty()
        || classes
            .iter()
            .any(|class| usize::from(*class) >= MAX_CLASSES)
    {
        let message = "`classes` are numbers from 0 to 7, at least one";
        return Err(source.error(Some(t.classes.span()), message));
    }
    let classes = classes.iter().map(|class| ClassMask::of((*class).into()));
    let xoff = match (t.xoff_bytes, t.xoff_alpha) {
        (Some(bytes), None) if bytes > 0 => Xoff::Bytes(bytes),
        (None, Some(alpha)) if alpha > 0.0 && alpha.is_finite() => Xoff::Alpha(alpha),
        _ => {
            let message = "there is one of `xoff_bytes` and `xoff_alpha`, above 0";
            return Err(source.error(Some(at), message));
        }
    };
    let zero = (t.watchdog.as_ref()).filter(|watchdog| watchdog.get_ref().0 == Span::ZERO);
    if let Some(zero) = zero {
        return Err(source.error(Some(zero.span()), "`watchdog` must not be 0"));
    }
    Ok(Lossless {
        classes: classes.fold(ClassMask::NONE, ClassMask::or),
        xoff,
        hysteresis_bytes: t.hysteresis_bytes.unwrap_or(0),
        headroom_bytes: t.headroom_bytes,
        watchdog: (t.watchdog.as_ref()).map_or(USUAL_WATCHDOG, |watchdog| watchdog.get_ref().0),
    })
}

/// Settings that the transports of a plan have in common.
pub(super) struct Common<'a> {
    /// The network.
    pub(super) network: Network<'a>,
    /// Delays, framing, and queues for transports without their own.
    pub(super) fabric: &'a FabricConfig,
    /// True if the plan gives the switches' queues.
    pub(super) queue_is_set: bool,
    /// Parameters that replace the plan's.
    pub(super) settings: &'a [Setting],
    /// Seed of what is drawn when the plan is read.
    pub(super) seed: u64,
}

/// Reads the transports of a text that describes nothing but `[[transport]]`, `[packet]`, `[queue]`
/// and `[nic_queue]`, such as those of an experiment. `fabric` has the delays.
///
/// # Errors
/// As [`RunPlan::parse`](super::RunPlan::parse), and a setting that no transport takes.
pub fn read_transports(
    text: &str,
    origin: &str,
    topology: &Topology,
    fabric: FabricConfig,
    settings: &[Setting],
) -> Result<Vec<PlannedTransport>, PlanError> {
    let dir = std::path::Path::new("");
    let overrides = super::Overrides {
        seed: None,
        set: settings.to_vec(),
    };
    let reader = Reader {
        source: Source { text, origin, dir },
        overrides: &overrides,
    };
    let mut document = reader.document(&["packet", "queue", "nic_queue", "transport"])?;
    let (fabric, queue_is_set) = reader.fabric(&mut document, fabric)?;
    let tables = reader.several(&mut document, "transport")?;
    let common = Common {
        network: Network::new(topology, &fabric),
        fabric: &fabric,
        queue_is_set,
        settings: &overrides.set,
        seed: 0,
    };
    read(&reader.source, tables, &common)
}

/// Reads the transports of a plan.
pub(super) fn read<'a>(
    source: &Source<'a>,
    tables: Vec<Section<'a>>,
    common: &Common<'a>,
) -> Result<Vec<PlannedTransport>, PlanError> {
    let mut transports: Vec<PlannedTransport> = Vec::new();
    for (table, span) in tables {
        let transport = one(source, table, &span, common)?;
        // Labels that differ may still be one file name; the second would overwrite the first.
        let file = transport.file_name();
        if let Some(other) = transports.iter().find(|other| other.file_name() == file) {
            let (one, two) = (&other.label, &transport.label);
            let message = if one == two {
                format!("there are two transports {two:?}; give one a `label`")
            } else {
                format!("the results of {one:?} and {two:?} would be one file, flows-{file}.csv")
            };
            return Err(source.error(Some(span), message));
        }
        transports.push(transport);
    }
    let of_schemes = common.settings.iter();
    for setting in of_schemes.filter(|s| !super::COMMON.contains(&s.name.as_str())) {
        let mut schemes = transports.iter().flat_map(PlannedTransport::schemes);
        if !schemes.any(|scheme| scheme.name() == setting.name) {
            let schemes = transports.iter().flat_map(PlannedTransport::schemes);
            let names: Vec<&str> = schemes.map(Configured::name).collect();
            return Err(refused(
                setting,
                &format!(
                    "no transport is of this scheme; there are {}",
                    names.join(", ")
                ),
            ));
        }
    }
    Ok(transports)
}

/// An error about a setting, which has no place in the plan.
pub(super) fn refused(setting: &Setting, message: &str) -> PlanError {
    PlanError {
        origin: format!("--set {setting}"),
        place: None,
        message: message.to_owned(),
    }
}

/// An error without a place in the plan is about the setting, if there is one.
pub(super) fn blame(error: PlanError, setting: Option<&Setting>) -> PlanError {
    match setting {
        Some(setting) if error.place.is_none() => refused(setting, &error.message),
        _ => error,
    }
}

/// Puts a setting into a table of the plan.
pub(super) fn apply<'a>(table: &mut TomlTable<'a>, setting: &'a Setting) -> Result<(), PlanError> {
    let value = source::value_from_elsewhere(&setting.value)
        .map_err(|e| refused(setting, e.message().trim()))?;
    source::set(table, &setting.key, value).map_err(|message| refused(setting, &message))
}

/// Reads one transport.
fn one<'a>(
    source: &Source<'a>,
    mut table: TomlTable<'a>,
    span: &Range<usize>,
    common: &Common<'a>,
) -> Result<PlannedTransport, PlanError> {
    let label = match source::take(&mut table, "label") {
        None => None,
        Some(value) => {
            let text = value.get_ref().as_str().filter(|text| !text.is_empty());
            let wrong = || source.error(Some(value.span()), "`label` must be a text, not empty");
            Some(text.ok_or_else(wrong)?.to_owned())
        }
    };
    let beside = source::take(&mut table, "beside");
    let (name, _) = source.choice(&mut table, span.clone(), "name", &scheme::names())?;
    let settings = common.settings.iter().filter(|s| s.name == name);
    for setting in settings.clone() {
        apply(&mut table, setting)?;
    }
    let mut own = |key: &str| {
        source::take(&mut table, key)
            .map(|value| source.table(key, value))
            .transpose()
    };
    let mut fabric = common.fabric.clone();
    let mut read_own = |queue, nic_queue| read_queues(source, queue, nic_queue, &mut fabric);
    let own_queue = own("queue").and_then(|queue| read_own(queue, own("nic_queue")?));
    let of_queue = |s: &&Setting| s.key.starts_with("queue") || s.key.starts_with("nic_queue");
    let own_queue = own_queue.map_err(|error| blame(error, settings.clone().find(of_queue)))?;
    let queue_is_set = own_queue || common.queue_is_set;
    let (scheme, built) = read_scheme(source, name, (table, span), common, queue_is_set)?;
    let whole = |error: ParamError| source.error(Some(span.clone()), error.message);
    let (mut needs, mut never_idle) = (built.needs, built.never_idle);
    let beside = match beside {
        None => None,
        Some(value) => {
            let table = source.table("beside", value)?;
            let (beside, other) = read_beside(source, table, common, queue_is_set)?;
            needs = needs.beside(other.needs, queue_is_set).map_err(whole)?;
            never_idle |= other.never_idle;
            Some(beside)
        }
    };
    needs
        .complete(name, &common.network, &mut fabric, queue_is_set)
        .map_err(whole)?;
    let usual = || match &beside {
        None => name.to_owned(),
        Some(beside) => format!("{name} and {}", beside.scheme.name()),
    };
    Ok(PlannedTransport {
        label: label.unwrap_or_else(usual),
        scheme,
        beside,
        fabric,
        never_idle,
    })
}

/// Reads a scheme from a table of its parameters, in which settings are already.
fn read_scheme<'a>(
    source: &Source<'a>,
    name: &str,
    (table, span): (TomlTable<'a>, &Range<usize>),
    common: &Common<'a>,
    queue_is_set: bool,
) -> Result<(Configured, Built), PlanError> {
    let (given, places) = source.parameters(table, span)?;
    let wrong = |error: ParamError| {
        let key = error.key.as_deref();
        let mut settings = common.settings.iter().filter(|s| s.name == name);
        match settings.find(|s| Some(s.key.as_str()) == key) {
            Some(setting) => refused(setting, &error.message),
            None => places.error(source, error),
        }
    };
    let scheme = Configured::new(name, &given).map_err(wrong)?;
    scheme.check_queues(&given, queue_is_set).map_err(wrong)?;
    let built = scheme.build(&common.network).map_err(wrong)?;
    Ok((scheme, built))
}

/// Keys of `beside` that are not the scheme's parameters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BesideTable {
    workloads: Option<Spanned<Vec<u16>>>,
    classes: Option<Spanned<Vec<u8>>>,
    hosts: Option<Spanned<Vec<Spanned<u32>>>>,
    racks: Option<Spanned<Vec<Spanned<String>>>>,
    share: Option<Spanned<f64>>,
    #[serde(default)]
    turns: Turns,
}

impl BesideTable {
    /// Checks which flows are the second scheme's.
    fn split(
        &self,
        source: &Source<'_>,
        span: &Range<usize>,
        common: &Common<'_>,
    ) -> Result<Split, PlanError> {
        let topology = common.network.topology;
        let count = topology.hosts().len();
        let wrong = |at: Range<usize>, message: String| source.error(Some(at), message);
        let mut members = vec![false; count];
        match (
            &self.workloads,
            &self.classes,
            &self.hosts,
            &self.racks,
            &self.share,
        ) {
            (Some(workloads), None, None, None, None) if !workloads.get_ref().is_empty() => {
                return Ok(Split::Workloads(workloads.get_ref().clone()));
            }
            (None, Some(classes), None, None, None) if !classes.get_ref().is_empty() => {
                return Ok(Split::Classes(classes.get_ref().clone()));
            }
            (None, None, Some(hosts), None, None) if !hosts.get_ref().is_empty() => {
                for host in hosts.get_ref() {
                    let number = *host.get_ref();
                    let member = members.get_mut(number as usize).ok_or_else(|| {
                        let most = count.saturating_sub(1);
                        let message = format!("there is no host {number}; hosts are 0 to {most}");
                        wrong(host.span(), message)
                    })?;
                    *member = true;
                }
            }
            (None, None, None, Some(racks), None) if !racks.get_ref().is_empty() => {
                for name in racks.get_ref() {
                    let leaf = topology.switch_by_name(name.get_ref());
                    let mut racks = topology.racks().iter();
                    let rack = racks.find(|rack| Some(rack.leaf) == leaf).ok_or_else(|| {
                        let message = format!("there is no leaf {:?}", name.get_ref());
                        wrong(name.span(), message)
                    })?;
                    rack.host_ids()
                        .for_each(|host| members[host.index()] = true);
                }
            }
            (None, None, None, None, Some(share)) => {
                let value = *share.get_ref();
                // Written so that NaN fails, too.
                if !(value > 0.0 && value < 1.0) {
                    let message = "`share` of the hosts must be above 0 and below 1".to_owned();
                    return Err(wrong(share.span(), message));
                }
                let mut stream = Stream::new(common.seed, Purpose::Beside, 0);
                members = stream.draw_share(value, count);
            }
            _ => {
                let message = "`beside` needs the flows of its scheme: either `workloads` or \
                               `classes`, by number, or the hosts that send them: `hosts`, by \
                               number, `racks`, by leaf, or `share`";
                return Err(wrong(span.clone(), message.to_owned()));
            }
        }
        if members.iter().all(|member| *member) || !members.contains(&true) {
            let message = "both schemes need hosts: some, and not all".to_owned();
            return Err(wrong(span.clone(), message));
        }
        Ok(Split::Hosts(HostSet::new(members)))
    }
}

/// Reads the second scheme of a transport.
fn read_beside<'a>(
    source: &Source<'a>,
    (mut table, span): Section<'a>,
    common: &Common<'a>,
    queue_is_set: bool,
) -> Result<(Beside, Built), PlanError> {
    let (name, _) = source.choice(&mut table, span.clone(), "name", &scheme::names())?;
    for setting in common.settings.iter().filter(|s| s.name == name) {
        apply(&mut table, setting)?;
    }
    let mut own = TomlTable::new();
    for key in ["workloads", "classes", "hosts", "racks", "share", "turns"] {
        if let Some(value) = source::take(&mut table, key) {
            own.insert(Spanned::new(value.span(), key.into()), value);
        }
    }
    let t: BesideTable = source.section(own, span.clone())?;
    let split = t.split(source, &span, common)?;
    let (scheme, built) = read_scheme(source, name, (table, &span), common, queue_is_set)?;
    let turns = t.turns;
    let beside = Beside {
        scheme,
        split,
        turns,
    };
    Ok((beside, built))
}
