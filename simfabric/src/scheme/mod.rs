//! The registry of schemes: the one place that lists them.
//!
//! A scheme is a file with its parameters ([`parameters!`](crate::parameters!)) and an
//! implementation of [`Scheme`], and one line in `schemes!` below. Plans, `--set`, experiments and
//! `simfabric list` find it by its name.
//!
//! | what | where |
//! |---|---|
//! | parameters, defaults with their sources, checks | the scheme's file |
//! | demands on the fabric: queues by tier, allocator, classes | [`FabricNeeds`], from the scheme's file |
//! | parameters that all TCP schemes share | `tcp.rs` |
//! | parameters that all RDMA schemes share | `rdma.rs` |
//! | parameters that schemes with the allocator share | `allocation.rs` |
//! | a run of any scheme | [`Run`] |

mod allocation;
mod rdma;
mod run;
mod tcp;

use std::sync::Arc;

use ratewright_topology::{Link, LinkId, Node, PathError, Switch, Topology};
use toml::Table;

pub use run::{Run, Setup, StartError};

use crate::ext::IntHop;
use crate::host::HostSet;
use crate::host::pair::{Pair, PairConfig, Part, Split, Turns};
use crate::net::deflection::Deflection;
use crate::net::mmu::SharedBuffer;
use crate::net::queue::ClassConfig;
use crate::net::{
    AllocatorLinks, FabricConfig, FabricError, Framing, QueueConfig, Telemetry, Told,
};
use crate::parameters::{self, ParamError, Parameter, Parameters};
use crate::run::Sim;
use crate::time::Span;
use crate::transport::Transport;

/// Declares a module for each scheme and lists its parameters' structure, which the file calls
/// `Config`.
macro_rules! schemes {
    ($($file:ident,)*) => {
        $(pub mod $file;)*

        /// All schemes, in the order in which they are listed.
        pub static SCHEMES: &[Entry] = &[$(Entry::of::<$file::Config>()),*];
    };
}

schemes! {
    constant,
    fixed_window,
    new_reno,
    cubic,
    dctcp,
    xcp,
    pfabric,
    swift,
    flowtune,
    ratewright,
    homa,
    sird,
    dcpim,
    expresspass,
    ideal,
    hpcc,
    fncc,
    power_tcp,
    theta_power_tcp,
    dcqcn,
    dart,
    timely,
    rocc,
    rcp,
}

/// The network that a scheme is to run on.
#[derive(Clone, Copy, Debug)]
pub struct Network<'a> {
    /// Hosts, switches and links.
    pub topology: &'a Topology,
    /// Bytes around the payload.
    pub framing: Framing,
    /// Processing of a host on every packet that it sends or receives.
    pub host_delay: Span,
    /// True if hosts draw the path of every packet anew.
    pub spraying: bool,
    /// First link of a static route, if there is one.
    pub rerouted: Option<LinkId>,
    /// Capacities as an allocator is told them.
    pub told: &'a Told,
    /// Hosts that run the scheme; `None`: all. The others only receive its flows.
    pub members: Option<&'a HostSet>,
}

impl<'a> Network<'a> {
    /// Makes the network of a topology with a fabric's settings.
    #[must_use]
    pub const fn new(topology: &'a Topology, fabric: &'a FabricConfig) -> Self {
        Self {
            topology,
            framing: fabric.framing,
            host_delay: fabric.host_delay,
            spraying: fabric.spraying,
            rerouted: match fabric.routes.as_slice() {
                [] => None,
                [first, ..] => Some(first.link),
            },
            told: &fabric.told,
            members: None,
        }
    }

    /// Returns a switch by which a packet's acknowledgement need not come back, if there is one:
    /// the first that has several ways up, unless both directions choose alike, or one with a
    /// static route.
    #[must_use]
    pub fn asymmetric_switch(&self) -> Option<&'a Switch> {
        let links = self.topology.links();
        if let Some(link) = self.rerouted.and_then(|link| links.get(link.index()))
            && let Node::Switch(switch) = link.from
        {
            return self.topology.switches().get(switch.index());
        }
        if self.topology.ecmp().symmetric && !self.spraying {
            return None;
        }
        let racks = self.topology.racks();
        let first = |rack: &ratewright_topology::Rack| rack.host_ids().next();
        let from = racks.first()?;
        let several = |to: &&ratewright_topology::Rack| {
            let (Some(src), Some(dst)) = (first(from), first(to)) else {
                return false;
            };
            let routes: Result<u32, PathError> = self.topology.route_count(src, dst);
            routes.is_ok_and(|routes| routes > 1)
        };
        racks.iter().skip(1).find(several)?;
        self.topology.switches().get(from.leaf.index())
    }

    /// Returns the first link of a switch whose rate telemetry cannot tell, if there is one.
    #[must_use]
    pub fn untold_link(&self) -> Option<&'a Link> {
        let mut links = self.topology.links().iter();
        links.find(|link| {
            matches!(link.from, Node::Switch(_)) && !IntHop::has_rate(link.capacity_bps)
        })
    }

    /// Returns the rate of the fastest link from a switch to a host, in bit/s.
    #[must_use]
    pub fn edge_bps(&self) -> u64 {
        self.fastest(|to| matches!(to, Node::Host(_)))
    }

    /// Returns the rate of the fastest link between switches, in bit/s.
    #[must_use]
    pub fn core_bps(&self) -> u64 {
        self.fastest(|to| matches!(to, Node::Switch(_)))
    }

    fn fastest(&self, of: impl Fn(&Node) -> bool) -> u64 {
        let links = self.topology.links().iter();
        links
            .filter(|link| matches!(link.from, Node::Switch(_)) && of(&link.to))
            .map(|link| link.capacity_bps)
            .max()
            .unwrap_or(0)
    }
}

/// Demands of a scheme on the fabric.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FabricNeeds {
    /// Queues of switches towards hosts and towards switches, where the fabric has none set.
    pub switches: Option<[QueueConfig; 2]>,
    /// Queues of hosts, where the fabric has none set for switches.
    pub hosts: Option<QueueConfig>,
    /// True if packets must come back the way of those that they answer.
    pub symmetric: bool,
    /// Discipline of switches without which this is another scheme.
    pub discipline: Option<&'static str>,
    /// Least number of classes in every queue, for packets of different classes.
    pub classes: u8,
    /// The allocator's links.
    pub allocator: Option<AllocatorLinks>,
    /// Buffer that the ports of a switch share, where the fabric has no queues set.
    pub shared_buffer: Option<SharedBuffer>,
    /// Deflection by switches, where the fabric has no queues set.
    pub deflection: Option<Deflection>,
    /// Packets that switches append telemetry to, if the scheme reads any.
    pub telemetry: Telemetry,
    /// Interval of the telemetry that acknowledgements get.
    pub telemetry_period: Option<Span>,
}

impl FabricNeeds {
    /// Needs the same queue in all switches, and this discipline there.
    #[must_use]
    pub fn own_discipline(queue: QueueConfig) -> Self {
        Self::default().over(queue)
    }

    /// Needs the same queue in all switches as well, and this discipline there.
    #[must_use]
    pub fn over(self, queue: QueueConfig) -> Self {
        Self {
            discipline: Some(queue.discipline()),
            switches: Some([queue.clone(), queue]),
            ..self
        }
    }

    /// Returns true if packets must come back the way of those that they answer, whatever for.
    #[must_use]
    pub fn needs_symmetric(&self) -> bool {
        self.symmetric || self.telemetry == Telemetry::Acknowledgements
    }

    /// Demands of this scheme and of another one that shares its hosts. Where `queue_is_set`,
    /// switches have queues that leave the schemes' own aside.
    ///
    /// # Errors
    /// Demands that contradict each other.
    pub fn beside(mut self, other: Self, queue_is_set: bool) -> Result<Self, ParamError> {
        let Self {
            switches,
            hosts,
            symmetric,
            discipline,
            classes,
            allocator,
            shared_buffer,
            deflection,
            telemetry,
            telemetry_period,
        } = other;
        let differ =
            matches!((&self.switches, &switches), (Some(own), Some(other)) if own != other);
        if differ && !queue_is_set {
            return Err(ParamError::whole(
                "both schemes bring queues of their own, which differ; give the transport a `queue`",
            ));
        }
        let differ = matches!((&self.shared_buffer, &shared_buffer), (Some(own), Some(other)) if own != other);
        if differ && !queue_is_set {
            return Err(ParamError::whole(
                "both schemes bring buffers of their own, which differ; give the transport a `queue`",
            ));
        }
        let none = Telemetry::None;
        if self.telemetry != telemetry && self.telemetry != none && telemetry != none {
            return Err(ParamError::whole(
                "one scheme has telemetry on data, one on acknowledgements, and switches write one",
            ));
        }
        if self.allocator.is_some() && allocator.is_some() {
            return Err(ParamError::whole(
                "both schemes have an allocator, and a fabric has one at most",
            ));
        }
        if let (Some(own), Some(other)) = (self.discipline, discipline)
            && own != other
        {
            let message = format!("one scheme needs the queue `{own}` in switches, one `{other}`");
            return Err(ParamError::whole(message));
        }
        self.switches = self.switches.or(switches);
        self.hosts = self.hosts.or(hosts);
        self.symmetric |= symmetric;
        self.discipline = self.discipline.or(discipline);
        self.classes = self.classes.max(classes);
        self.allocator = self.allocator.or(allocator);
        self.shared_buffer = self.shared_buffer.or(shared_buffer);
        self.deflection = self.deflection.or(deflection);
        if self.telemetry == none {
            (self.telemetry, self.telemetry_period) = (telemetry, telemetry_period);
        }
        Ok(self)
    }

    /// Completes the fabric of a network with what the scheme needs. Where `queue_is_set`, switches
    /// have queues and buffers that leave the scheme's own aside.
    ///
    /// # Errors
    /// Queues that were set and that the scheme cannot work with, or paths that it cannot use.
    pub fn complete(
        self,
        name: &str,
        network: &Network<'_>,
        fabric: &mut FabricConfig,
        queue_is_set: bool,
    ) -> Result<(), ParamError> {
        if self.telemetry == Telemetry::Acknowledgements
            && let Some(switch) = network.asymmetric_switch()
        {
            return Err(ParamError::whole(format!(
                "{name} has switches write into acknowledgements what they know of the data's way, \
                 and from {} the two may take different ways; the topology needs `symmetric = \
                 true`, and no spreading by packet",
                switch.name
            )));
        }
        if self.telemetry != Telemetry::None
            && let Some(link) = network.untold_link()
        {
            let [from, to] = [link.from, link.to].map(|end| network.topology.node_name(end));
            let rates = IntHop::RATES_GBPS[1..].iter().map(u64::to_string);
            let rates: Vec<String> = rates.collect();
            return Err(ParamError::whole(format!(
                "{name} has switches tell the rates of their links, and {from} cannot tell the {} \
                 Gbit/s of {from}->{to}; telemetry has {}",
                link.capacity_bps as f64 / 1e9,
                rates.join(", ")
            )));
        }
        if self.telemetry != Telemetry::None {
            fabric.telemetry = self.telemetry;
            fabric.telemetry_period = self.telemetry_period;
        }
        if let Some(buffer) = self.shared_buffer
            && !queue_is_set
        {
            fabric.shared_buffer = Some(buffer);
        }
        if self.deflection.is_some() && !queue_is_set {
            fabric.deflection = self.deflection;
        }
        if let Some([edge, core]) = self.switches
            && !queue_is_set
        {
            (fabric.edge, fabric.core) = (edge, core);
        }
        if let Some(hosts) = self.hosts
            && !queue_is_set
        {
            fabric.nic = hosts;
        }
        if self.symmetric
            && let Some(switch) = network.asymmetric_switch()
        {
            return Err(ParamError::whole(format!(
                "{name} needs one way for packets and their answers, and from {} the two may differ; \
                 the topology needs `symmetric = true`, and no spreading by packet",
                switch.name
            )));
        }
        if let Some(needed) = self.discipline {
            for queue in [&fabric.edge, &fabric.core] {
                if queue.of_classes().any(|each| each.discipline() != needed) {
                    return Err(ParamError::whole(format!(
                        "{name} needs the queue `{needed}` in switches; give it a \
                         [transport.queue] of its own, or the plan that [queue] or none"
                    )));
                }
            }
        }
        if self.classes > 1 {
            for queue in [&mut fabric.edge, &mut fabric.core, &mut fabric.nic] {
                with_classes(name, queue, self.classes)?;
            }
        }
        fabric.allocator = self.allocator;
        Ok(())
    }
}

/// Turns a queue without classes into one with a queue of its kind for each class.
fn with_classes(name: &str, queue: &mut QueueConfig, classes: u8) -> Result<(), ParamError> {
    if matches!(queue, QueueConfig::Classes(_)) {
        return Ok(());
    }
    if !queue.can_be_of_a_class() {
        return Err(ParamError::whole(format!(
            "{name} needs queues with classes here, which {} cannot be",
            queue.discipline()
        )));
    }
    let class = ClassConfig {
        queue: std::mem::take(queue),
        ..ClassConfig::default()
    };
    *queue = QueueConfig::Classes(vec![class; classes.into()]);
    Ok(())
}

/// A scheme with checked parameters, ready to run.
pub struct Built {
    /// Demands on the fabric.
    pub needs: FabricNeeds,
    /// True if clocks of the scheme go on without flows: a run never becomes idle.
    pub never_idle: bool,
    transport: MakeTransport,
}

type MakeTransport =
    Box<dyn FnOnce(&Arc<Topology>) -> Result<Box<dyn AnyTransport>, StartError> + Send>;

/// A transport of any type.
trait AnyTransport {
    /// Begins a run.
    fn run(self: Box<Self>, setup: Setup) -> Result<Box<dyn Run>, FabricError>;

    /// Makes it one of two on each host.
    fn part(self: Box<Self>) -> Part;
}

impl<T: Transport> AnyTransport for T {
    fn run(self: Box<Self>, setup: Setup) -> Result<Box<dyn Run>, FabricError> {
        let sim = Sim::new(setup.config, setup.topology, setup.flows, *self)?;
        Ok(Box::new(sim))
    }

    fn part(self: Box<Self>) -> Part {
        Part::new(*self)
    }
}

impl std::fmt::Debug for Built {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Built")
            .field("needs", &self.needs)
            .field("never_idle", &self.never_idle)
            .finish_non_exhaustive()
    }
}

impl Built {
    /// Makes the scheme from its demands and the constructor of its transport.
    pub fn new<T: Transport>(
        needs: FabricNeeds,
        transport: impl FnOnce(&Arc<Topology>) -> Result<T, StartError> + Send + 'static,
    ) -> Self {
        Self {
            needs,
            never_idle: false,
            transport: Box::new(|topology| Ok(Box::new(transport(topology)?))),
        }
    }

    /// Puts another scheme beside this one on each host. `needs` are those of both, see
    /// [`FabricNeeds::beside`].
    #[must_use]
    pub fn beside(self, other: Self, needs: FabricNeeds, split: Split, turns: Turns) -> Self {
        let config = PairConfig {
            split,
            turns,
            without_flow: usize::from(other.needs.allocator.is_some()),
        };
        let never_idle = self.never_idle || other.never_idle;
        let (first, second) = (self.transport, other.transport);
        Self {
            never_idle,
            ..Self::new(needs, move |topology| {
                let parts = [first(topology)?.part(), second(topology)?.part()];
                Ok(Pair::new(parts, config))
            })
        }
    }

    /// Begins a run.
    ///
    /// # Errors
    /// A fabric that cannot be built, or settings that the scheme's engine refuses.
    pub fn start(self, setup: Setup) -> Result<Box<dyn Run>, StartError> {
        let topology = Arc::new(setup.topology);
        let transport = (self.transport)(&topology)?;
        let topology = Arc::unwrap_or_clone(topology);
        Ok(transport.run(Setup { topology, ..setup })?)
    }
}

/// A scheme: implemented by the structure of its parameters.
pub trait Scheme: Parameters + 'static {
    /// Name in plans and options.
    const NAME: &'static str;
    /// Parameters of the scheme's own queues in switches, which mean nothing over others, by the
    /// structure that they are of.
    const QUEUE_KEYS: &'static [&'static [&'static str]] = &[];

    /// Checks values that depend on nothing but each other.
    ///
    /// # Errors
    /// The first key whose value the scheme cannot work with.
    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }

    /// Makes the scheme for a network.
    fn build(self, network: &Network<'_>) -> Built;
}

/// A line of the registry.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Name in plans and options.
    pub name: &'static str,
    /// The scheme in words.
    pub about: &'static str,
    /// Parameters with their meanings.
    pub parameters: fn() -> Vec<Parameter>,
    /// Defaults.
    pub default: fn() -> Table,
    /// Parameters of the scheme's own queues.
    queue_keys: &'static [&'static [&'static str]],
    /// Defaults with the given values in their place.
    effective: fn(&Table) -> Result<Table, ParamError>,
    build: fn(&Table, &Network<'_>) -> Result<Built, ParamError>,
}

impl Entry {
    const fn of<S: Scheme>() -> Self {
        Self {
            name: S::NAME,
            about: S::ABOUT,
            parameters: S::parameters,
            default: S::defaults,
            queue_keys: S::QUEUE_KEYS,
            effective: parameters::effective::<S>,
            build: |table, network| {
                let config: S = parameters::read(table)?;
                config.check()?;
                Ok(config.build(network))
            },
        }
    }
}

/// Names of all schemes.
#[must_use]
pub fn names() -> Vec<&'static str> {
    SCHEMES.iter().map(|entry| entry.name).collect()
}

/// A scheme of the registry with its parameters.
#[derive(Clone, Debug)]
pub struct Configured {
    entry: &'static Entry,
    parameters: Table,
}

impl Configured {
    /// Takes the scheme of this name, with these values in place of defaults.
    ///
    /// # Errors
    /// An unknown name or key. Values are checked by [`build`](Self::build).
    pub fn new(name: &str, given: &Table) -> Result<Self, ParamError> {
        let Some(entry) = SCHEMES.iter().find(|entry| entry.name == name) else {
            let message = format!(
                "there is no scheme {name:?}; there are {}",
                names().join(", ")
            );
            return Err(ParamError::whole(message));
        };
        Ok(Self {
            entry,
            parameters: (entry.effective)(given)?,
        })
    }

    /// Returns the scheme's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.entry.name
    }

    /// Returns all parameters, defaults included. Schemes of equal name and parameters are equal.
    #[must_use]
    pub const fn parameters(&self) -> &Table {
        &self.parameters
    }

    /// Refuses parameters of the scheme's own queues where switches have others.
    ///
    /// # Errors
    /// The first such parameter.
    pub fn check_queues(&self, given: &Table, queue_is_set: bool) -> Result<(), ParamError> {
        let mut keys = given.keys();
        let is_of_queues = |key: &&String| {
            let mut structures = self.entry.queue_keys.iter();
            structures.any(|keys| keys.contains(&key.as_str()))
        };
        match keys.find(is_of_queues) {
            Some(key) if queue_is_set => Err(ParamError::of(
                key,
                "it is about the scheme's own queues, and a `queue` takes their place",
            )),
            _ => Ok(()),
        }
    }

    /// Makes the scheme for a network.
    ///
    /// # Errors
    /// A value that the scheme cannot work with.
    pub fn build(&self, network: &Network<'_>) -> Result<Built, ParamError> {
        (self.entry.build)(&self.parameters, network)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every default is a value of its key, and every key has a meaning: what `simfabric list`
    /// prints can be written into a plan.
    #[test]
    fn every_scheme_builds_with_its_defaults_and_documents_its_keys() {
        let topology = ratewright_topology::TwoTierClos {
            ecmp: ratewright_topology::EcmpConfig {
                symmetric: true,
                ..ratewright_topology::EcmpConfig::default()
            },
            ..ratewright_topology::TwoTierClos::default()
        }
        .build()
        .unwrap();
        let fabric = FabricConfig::default();
        let network = Network::new(&topology, &fabric);
        for entry in SCHEMES {
            let defaults = (entry.default)();
            let parameters = (entry.parameters)();
            assert!(!defaults.is_empty() && !entry.about.trim().is_empty());
            for key in defaults.keys() {
                assert!(
                    parameters.iter().any(|p| p.key == key),
                    "{}.{key}",
                    entry.name
                );
            }
            for parameter in parameters {
                assert!(
                    parameter.doc.trim().len() > 10,
                    "{}.{}",
                    entry.name,
                    parameter.key
                );
            }
            let configured = Configured::new(entry.name, &defaults).unwrap();
            assert_eq!(configured.parameters(), &defaults, "{}", entry.name);
            let built = configured.build(&network).unwrap();
            let mut fabric = FabricConfig::default();
            built
                .needs
                .complete(entry.name, &network, &mut fabric, false)
                .unwrap();
            let same = SCHEMES.iter().filter(|other| other.name == entry.name);
            assert_eq!(same.count(), 1, "{}", entry.name);
        }
    }

    /// Nothing is silently ignored: a key of another scheme is no key of this one.
    #[test]
    fn an_unknown_key_is_refused_by_every_scheme() {
        for entry in SCHEMES {
            let given: Table = toml::from_str("no_such_key = 1").unwrap();
            let refused = Configured::new(entry.name, &given).unwrap_err();
            assert!(refused.unknown && refused.key.as_deref() == Some("no_such_key"));
        }
    }
}
