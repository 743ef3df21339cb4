//! The fabric: ports and wires, switches and routing, and what they are built from.
//!
//! A directed link of the topology is one [`port::Port`], under the same number: the queue at the
//! link's sending end and the wire. Hosts have one port each, their NIC. An allocator adds a node
//! with a link to each switch of the highest tier.
//!
//! A discipline sees its own port only. RPM and FNCC write into an acknowledgement what the port
//! knows by which its data packet left. That is the other direction of the link that the
//! acknowledgement came by, so that no switch needs a table of flows: see [`Tap`]. With
//! [symmetric](ratewright_topology::EcmpConfig::symmetric) ECMP acknowledgements pass the switches
//! of their data.

pub mod deflection;
pub mod mmu;
mod notice;
mod occupancy;
pub mod port;
pub mod queue;
pub(crate) mod regions;
pub mod route;
pub mod stats;
pub(crate) mod switch;
mod told;

use ratewright_topology::{HostId, Node, SwitchId, Topology};
use serde::Deserialize;

use crate::rng::{Purpose, Stream};
use crate::time::Span;
use deflection::{Deflection, Deflector, Neighbour};
use mmu::{Ingress, Mmu, SharedBuffer};
pub use notice::Notice;
pub use occupancy::ByteDistribution;
use port::{FarEnd, MIN_RATE_BPS, Port};
pub use queue::QueueConfig;
use queue::{ClassMask, Discipline as _};
use route::Routes;
pub use route::StaticRoute;
use switch::{PausesUnderWay, Switch, connect};
pub use told::Told;

/// Framing: conversion of payload into bytes on a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Framing {
    /// Largest payload of one packet.
    pub mss_bytes: u16,
    /// Bytes on the link around the payload.
    pub header_bytes: u16,
    /// Smallest packet on the link.
    pub min_wire_bytes: u16,
}

impl Default for Framing {
    /// TCP over IPv4 over Ethernet with an MTU of 1,500 bytes: 20 + 20 bytes of headers,
    /// 14 + 4 of Ethernet, and 8 + 12 of preamble and gap; no frame is shorter than 64 + 20.
    fn default() -> Self {
        Self {
            mss_bytes: 1_460,
            header_bytes: 78,
            min_wire_bytes: 84,
        }
    }
}

impl Framing {
    /// IPv4's and TCP's headers, a part of [`header_bytes`](Self::header_bytes).
    pub const IP_TCP_BYTES: u16 = 20 + 20;

    /// Returns the share of a link's bytes that full packets take, where each is acknowledged by an
    /// empty one of as much traffic in the other direction.
    #[must_use]
    pub fn data_share(self) -> f64 {
        let [data, answer] = [self.mss_bytes, 0].map(|b| f64::from(self.wire_bytes(b)));
        data / (data + answer)
    }

    /// Returns the bytes on the link of a packet with this payload.
    #[must_use]
    pub const fn wire_bytes(self, payload_bytes: u16) -> u16 {
        let wire = payload_bytes.saturating_add(self.header_bytes);
        if wire < self.min_wire_bytes {
            self.min_wire_bytes
        } else {
            wire
        }
    }

    /// Returns the bytes on the link of an IPv4 packet.
    #[must_use]
    pub const fn ip_wire_bytes(self, ip_bytes: u16) -> u16 {
        self.wire_bytes(ip_bytes.saturating_sub(Self::IP_TCP_BYTES))
    }
}

/// The allocator's attachment: one link per direction to every switch of the highest tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocatorLinks {
    /// Rate of each link, in bit/s.
    pub rate_bps: u64,
    /// Delay of each link.
    pub delay: Span,
    /// Processing on every packet that it sends or receives.
    pub processing: Span,
}

/// Information that a switch writes into the acknowledgements that come to it by a link. It is of
/// the port by which the switch sends into that link: the port that their data left by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tap {
    /// Nothing.
    #[default]
    None,
    /// A mark of the flow that waits in the port's queue becomes an echo,
    /// [`Flags::ECE`](crate::packet::Flags::ECE) (RPM §III).
    Marks,
    /// The port's telemetry is appended ([`Extension::Int`](crate::Extension::Int); FNCC §3.2).
    Int,
}

/// Packets that switches append in-band telemetry to ([`Extension::Int`](crate::Extension::Int)).
/// Packets keep their length: their senders reserve the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Telemetry {
    /// None.
    #[default]
    None,
    /// Packets that ask for it by [`Flags::INT`](crate::packet::Flags::INT), as they leave (HPCC
    /// §3.1).
    Asked,
    /// Acknowledgements, by [`Tap::Int`].
    Acknowledgements,
}

/// Settings of a fabric beside its topology.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FabricConfig {
    /// Queues of hosts (and of the allocator).
    pub nic: QueueConfig,
    /// Queues of switches towards hosts.
    pub edge: QueueConfig,
    /// Queues of switches towards switches (and towards the allocator).
    pub core: QueueConfig,
    /// A buffer that the ports of each switch share, on top of the limits of the queues.
    pub shared_buffer: Option<SharedBuffer>,
    /// Deflection of short flows. Switches that deflect have a buffer, unlimited if none is set.
    pub deflection: Option<Deflection>,
    /// True if hosts spray: they draw the path of every packet anew. Otherwise all packets of a
    /// flow take one path.
    pub spraying: bool,
    /// Processing time of a host per packet that it sends or receives. It passes like propagation,
    /// after the NIC's queue and after the last link. From end to end that takes as long as before
    /// the queue.
    pub host_delay: Span,
    /// Jitter of that time on the sending side, uniform from 0 to this span for each packet.
    /// Packets stay in order and keep the NIC's rate, so that one may wait for the one before it.
    pub host_jitter: Span,
    /// Bytes around the payload.
    pub framing: Framing,
    /// Attachment of an allocator; `None` without one.
    pub allocator: Option<AllocatorLinks>,
    /// Packets that switches append their telemetry to.
    pub telemetry: Telemetry,
    /// Interval at whose multiples switches refresh the telemetry that acknowledgements get;
    /// `None`: they get that of their own time.
    pub telemetry_period: Option<Span>,
    /// Routes that are not those of the shortest paths.
    pub routes: Vec<StaticRoute>,
    /// Capacities as the allocator is told them.
    pub told: Told,
    /// True if packets take whole nanoseconds on links, rounded down, as in ns-3.17: for
    /// comparisons with its figures. No rate that is told changes.
    pub whole_ns: bool,
    /// Share of the packets of any kind that each link loses, from 0 to below 1.
    pub loss: f64,
    /// True if ports keep a histogram of their queue's length, and shared buffers of what they
    /// hold; it costs time and memory.
    pub histograms: bool,
}

impl FabricConfig {
    /// Makes settings in which every switch port has such a queue; all else is by default.
    #[must_use]
    pub fn with_switch_queues(queue: QueueConfig) -> Self {
        Self {
            edge: queue.clone(),
            core: queue,
            ..Self::default()
        }
    }
}

/// Reason that a fabric cannot be built or changed.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum FabricError {
    /// A link is too slow for the engine's arithmetic.
    #[error("a link of {rate_bps} bit/s: the least that can be simulated is {MIN_RATE_BPS} bit/s")]
    TooSlow {
        /// The link's rate.
        rate_bps: u64,
    },
    /// The shared buffer cannot hold anything.
    #[error(
        "a shared buffer needs bytes and an alpha above 0, and has {bytes} bytes and alpha {alpha}"
    )]
    EmptyBuffer {
        /// The buffer.
        bytes: u64,
        /// The factor.
        alpha: f64,
    },
    /// A switch with a shared buffer has more ports than can be told apart.
    #[error("a switch of {ports} ports cannot share a buffer among them: {most} can", most = Ingress::MAX_PORTS)]
    LargeSwitch {
        /// Ports of the switch.
        ports: usize,
    },
    /// Deflection has settings out of range.
    #[error(
        "deflection has a table of 1 to {most} entries, 1 to 15 tokens, and escape lanes among 0 to 7, the first not behind the last", most = deflection::MAX_ENTRIES
    )]
    Deflection,
    /// Hosts and switches have different classes, so that a pause of one would not be understood.
    #[error(
        "lossless classes need queues of as many classes in hosts and switches, and there are {nic}, {edge} and {core}"
    )]
    Lossless {
        /// Classes of hosts.
        nic: usize,
        /// Classes of switches towards hosts.
        edge: usize,
        /// Classes of switches towards switches.
        core: usize,
    },
    /// A queue of classes has none or too many of them, classes within classes, or weights or
    /// shapers out of range.
    #[error(
        "a port has 1 to 8 classes, each with a queue without classes, a weight of at least 1, and a share of the link above 0 and at most 1"
    )]
    Classes,
    /// The framing leaves no room for payload.
    #[error(
        "packets need payload, and an MSS of {mss_bytes} bytes with {header_bytes} bytes around it that fit 65,535"
    )]
    Framing {
        /// Payload of a packet.
        mss_bytes: u16,
        /// Bytes around it.
        header_bytes: u16,
    },
    /// A static route leads nowhere: its link is not between two switches, or its destination is no
    /// leaf, or the leaf that it begins at.
    #[error(
        "a static route begins with a link between two switches and leads to another leaf; {} to {} does not", _0.link, _0.leaf
    )]
    StaticRoute(StaticRoute),
    /// Static routes lead packets round in a circle.
    #[error("static routes lead packets for {leaf} back to {switch}")]
    RouteLoop {
        /// The switch.
        switch: SwitchId,
        /// The leaf of the destination.
        leaf: SwitchId,
    },
    /// Static routes hold for a network in which nothing fails.
    #[error("static routes need a network in which no link and no switch fails")]
    RouteFails,
    /// A host cannot pause its switch: no class is lossless.
    #[error("{0} pauses its switch, which has no lossless class")]
    Pause(HostId),
    /// The configuration names a switch that the topology lacks.
    #[error("the topology has no {0}")]
    UnknownSwitch(SwitchId),
    /// The configuration names a link that the topology lacks.
    #[error("the topology has no {0}")]
    UnknownLink(ratewright_topology::LinkId),
    /// The configuration names a host that the topology lacks.
    #[error("the topology has no {0}")]
    UnknownHost(HostId),
    /// The topology has more hosts than timers can name.
    #[error("{hosts} hosts are more than the {last} that a run can hold", last = crate::host::Timer::LAST_HOST)]
    TooManyHosts {
        /// Hosts of the topology.
        hosts: u32,
    },
    /// A workload's flow cannot run.
    #[error(
        "flow {flow} goes from {src} to {dst}; there are hosts 0 to {last}, and a flow needs two"
    )]
    BadFlow {
        /// Number of the flow.
        flow: u32,
        /// Source of the flow.
        src: HostId,
        /// Destination of the flow.
        dst: HostId,
        /// The last host.
        last: u32,
    },
    /// A workload's flows are not in order of their starts.
    #[error("flow {flow} starts before the one that precedes it in the workload")]
    OutOfOrder {
        /// Number of the flow.
        flow: u32,
    },
}

/// Ports, switches and routes.
#[derive(Debug)]
pub(crate) struct Fabric {
    pub(crate) ports: Vec<Port>,
    pub(crate) switches: Vec<Switch>,
    pub(crate) routes: Routes,
    /// The other direction of each port's link.
    pub(crate) reverse: Box<[u32]>,
    /// Deflection of short flows, to whose packets hosts give tokens.
    pub(crate) deflection: Option<Deflection>,
    /// Pauses on their way to each port.
    pub(crate) pauses: PausesUnderWay,
    /// Classes that are never dropped.
    pub(crate) lossless: ClassMask,
}

/// Returns the switches of the highest tier, in order.
fn top_switches(topology: &Topology) -> Vec<u32> {
    let tier = topology
        .switches()
        .iter()
        .map(|s| s.tier)
        .max()
        .unwrap_or(1);
    topology
        .switches()
        .iter()
        .filter(|s| s.tier == tier)
        .map(|s| s.id.0)
        .collect()
}

impl Fabric {
    pub(crate) fn new(
        topology: &Topology,
        config: &FabricConfig,
        seed: u64,
    ) -> Result<Self, FabricError> {
        let Framing {
            mss_bytes,
            header_bytes,
            ..
        } = config.framing;
        if mss_bytes == 0 || mss_bytes.checked_add(header_bytes).is_none() {
            return Err(FabricError::Framing {
                mss_bytes,
                header_bytes,
            });
        }
        if let Some(SharedBuffer { bytes, alpha, .. }) = config.shared_buffer
            && !(bytes > 0 && alpha > 0.0)
        {
            return Err(FabricError::EmptyBuffer { bytes, alpha });
        }
        if ![&config.nic, &config.edge, &config.core]
            .into_iter()
            .all(QueueConfig::is_valid)
        {
            return Err(FabricError::Classes);
        }
        let counts = [&config.nic, &config.edge, &config.core].map(|q| q.of_classes().count());
        let [nic, edge, core] = counts;
        let lossless = config.shared_buffer.is_some_and(|b| b.lossless.is_some());
        if lossless && (nic != edge || edge != core) {
            return Err(FabricError::Lossless { nic, edge, core });
        }
        let mut numbers = 0_u64..;
        let mut port =
            |rate_bps: u64, delay: Span, of_host: bool, far: FarEnd, queue: &QueueConfig| {
                if rate_bps < MIN_RATE_BPS {
                    return Err(FabricError::TooSlow { rate_bps });
                }
                let number = numbers.next().unwrap_or(u64::MAX);
                let mut rng = Stream::new(seed, Purpose::Queue, number);
                let mut port = Port::new(rate_bps, delay, far, queue.build(rate_bps, &mut rng));
                if of_host && config.host_jitter > Span::ZERO {
                    port.jitter(
                        config.host_jitter,
                        Stream::new(seed, Purpose::Jitter, number),
                    );
                }
                if config.loss > 0.0 {
                    let share = config.loss.min(1.0);
                    port.lose(share, Stream::new(seed, Purpose::Loss, number));
                }
                if config.telemetry == Telemetry::Asked && !of_host {
                    port.stamp_packets();
                }
                if config.telemetry == Telemetry::Acknowledgements
                    && let Some(period) = config.telemetry_period
                    && !of_host
                {
                    port.refresh_every(period);
                }
                if config.whole_ns {
                    port.truncate_to_ns();
                }
                if config.histograms {
                    port.keep_histogram();
                }
                Ok(port)
            };
        // One port per link, at the link's index: routes, results and the topology share that
        // number.
        let mut ports = topology
            .links()
            .iter()
            .map(|link| {
                let delay = Span::from_ns(link.delay_ns);
                let (far, queue, delay) = match (link.from, link.to) {
                    (Node::Host(_), Node::Switch(s)) => {
                        (FarEnd::Switch(s.0), &config.nic, delay + config.host_delay)
                    }
                    (Node::Switch(_), Node::Host(h)) => {
                        (FarEnd::Host(h.0), &config.edge, delay + config.host_delay)
                    }
                    (Node::Switch(_), Node::Switch(to)) => {
                        (FarEnd::Switch(to.0), &config.core, delay)
                    }
                    // Both hosts process the packet.
                    (Node::Host(_), Node::Host(h)) => (
                        FarEnd::Host(h.0),
                        &config.nic,
                        delay + config.host_delay * 2,
                    ),
                };
                let of_host = matches!(link.from, Node::Host(_));
                port(link.capacity_bps, delay, of_host, far, queue)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut top = Vec::new();
        if let Some(links) = config.allocator {
            top = top_switches(topology);
            let delay = links.delay + links.processing;
            let node = topology.hosts().len() as u32;
            // Two ports per switch, to it and back: `Routes` finds them by their distance from the
            // last link.
            for switch in &top {
                ports.push(port(
                    links.rate_bps,
                    delay,
                    true,
                    FarEnd::Switch(*switch),
                    &config.nic,
                )?);
                ports.push(port(
                    links.rate_bps,
                    delay,
                    false,
                    FarEnd::Host(node),
                    &config.core,
                )?);
            }
        }
        let links = topology.links();
        let reverse = links.iter().map(|link| topology.reverse_link(link.id).0);
        // The allocator's ports come in pairs.
        let pairs =
            (links.len()..ports.len()).map(|i| (links.len() + ((i - links.len()) ^ 1)) as u32);
        let reverse: Box<[u32]> = reverse.chain(pairs).collect();
        for (link, back) in reverse.iter().enumerate().take(links.len()) {
            if let FarEnd::Switch(_) = ports[link].far() {
                let tap = match ports[*back as usize].queue.tap() {
                    Tap::None if config.telemetry == Telemetry::Acknowledgements => Tap::Int,
                    tap => tap,
                };
                ports[link].set_tap(tap);
            }
        }
        if config.deflection.is_some_and(|d| !d.is_valid()) {
            return Err(FabricError::Deflection);
        }
        let mut switches = connect(topology.switches().len(), &ports, &reverse);
        for switch in &switches {
            for port in &switch.egress {
                ports[*port as usize].enable_clock();
            }
        }
        let deflecting = config.deflection.map(|_| SharedBuffer::UNLIMITED);
        let levels = config.deflection.map(|_| levels_of(topology));
        if let Some(buffer) = config.shared_buffer.or(deflecting) {
            let classes = counts.into_iter().max().unwrap_or(1);
            for (number, switch) in switches.iter_mut().enumerate() {
                let ports_of = switch.egress.len();
                if ports_of > Ingress::MAX_PORTS {
                    return Err(FabricError::LargeSwitch { ports: ports_of });
                }
                let mut mmu = Mmu::new(buffer, ports_of, classes);
                if config.histograms {
                    mmu.keep_occupancy();
                }
                switch.share(number as u32, &mut ports, mmu);
                if let (Some(deflection), Some(levels)) = (config.deflection, &levels) {
                    let leads = |port: &u32| match ports[*port as usize].far() {
                        FarEnd::Switch(far) if levels[far as usize] > levels[number] => {
                            (*port, Neighbour::Above)
                        }
                        FarEnd::Switch(_) => (*port, Neighbour::Below),
                        FarEnd::Host(_) => (*port, Neighbour::Host),
                    };
                    let neighbours: Vec<_> = switch.egress.iter().map(leads).collect();
                    let rng = Stream::new(seed, Purpose::Deflection, number as u64);
                    let deflector = Deflector::new(deflection, &neighbours, rng);
                    switch.deflector = Some(Box::new(deflector));
                }
            }
        }
        let pauses = if lossless {
            let delays = links.iter().map(|link| Span::from_ns(link.delay_ns));
            let of_allocator = config.allocator.map_or(Span::ZERO, |links| links.delay);
            let delays = delays
                .chain(std::iter::repeat(of_allocator))
                .take(ports.len());
            PausesUnderWay::new(delays.collect())
        } else {
            PausesUnderWay::default()
        };
        let lossless = config.shared_buffer.and_then(|buffer| buffer.lossless);
        let mut fabric = Self {
            deflection: config.deflection,
            lossless: lossless.map_or(ClassMask::NONE, |l| l.classes),
            reverse,
            pauses,
            ports,
            switches,
            routes: Routes::new(topology, &top, &config.routes)?,
        };
        // The topology may have failed links before the run begins.
        if !config.routes.is_empty() && !topology.is_whole() {
            return Err(FabricError::RouteFails);
        }
        for link in topology.links() {
            if !topology.is_usable(link.id) {
                fabric.ports[link.id.index()].start_down();
            }
        }
        Ok(fabric)
    }
}

/// Least number of links from each switch to a host, by which links lead up or down.
fn levels_of(topology: &Topology) -> Vec<u32> {
    let mut levels = vec![u32::MAX; topology.switches().len()];
    let mut changed = true;
    while changed {
        changed = false;
        for link in topology.links() {
            let to = match link.to {
                Node::Host(_) => 0,
                Node::Switch(switch) => levels[switch.index()],
            };
            if let Node::Switch(from) = link.from
                && to.saturating_add(1) < levels[from.index()]
            {
                levels[from.index()] = to + 1;
                changed = true;
            }
        }
    }
    levels
}
