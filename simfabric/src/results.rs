//! Results of a run, with the check that no packet was lost from the books.

use ratewright_topology::{LinkId, SwitchId};

use crate::control::link_check::LinkFinding;
use crate::flow::{FlowId, FlowProgress, FlowSpec, PacketCount};
use crate::net::ByteDistribution;
use crate::net::deflection::DeflectionCounts;
use crate::net::port::{FarEnd, Port};
use crate::net::queue::{Discipline as _, DropReason};
use crate::net::stats::PortStats;
use crate::run::core::Core;
use crate::run::watchdog::{self, Deadlock, PauseStorm};
use crate::time::{Span, Time};
use crate::transport::BrokenInvariant;

/// A flow's result.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FlowResult {
    /// Number of the flow, in order of arrival.
    pub number: u32,
    /// Specification of the flow.
    pub spec: FlowSpec,
    /// Completion at the receiver: the time at which it had every byte; `None` if it never had.
    pub finished: Option<Time>,
    /// Time at which the sender knew that, by its last acknowledgement; `None` if it never did or
    /// the scheme does not report it.
    pub acknowledged: Option<Time>,
    /// Bytes that the receiver has in order.
    pub delivered_bytes: u64,
    /// Retransmitted packets with payload.
    pub retransmits: u64,
    /// Packets of either direction that the fabric dropped.
    pub drops: u64,
    /// Packets of either direction that hosts sent, and their bytes on the link.
    pub sent: PacketCount,
}

impl FlowResult {
    pub(crate) fn new(flow: FlowId, spec: &FlowSpec, progress: &FlowProgress) -> Self {
        let reached = |at: Time| (at < Time::MAX).then_some(at);
        Self {
            number: flow.0,
            spec: *spec,
            finished: reached(progress.finished),
            acknowledged: reached(progress.acknowledged),
            delivered_bytes: progress.delivered_bytes,
            retransmits: progress.retransmits,
            drops: progress.dropped.packets,
            sent: progress.sent,
        }
    }

    /// Returns the flow completion time, from the start to the receiver's last byte.
    #[must_use]
    pub fn fct(&self) -> Option<Span> {
        self.finished.map(|at| at.since(self.spec.start))
    }
}

/// Function that takes the results of flows as they retire.
pub type FlowSink = Box<dyn FnMut(&FlowResult) + Send>;

/// Flows that have retired.
pub(crate) enum RetiredFlows {
    /// Their results are kept.
    Kept(Vec<FlowResult>),
    /// Their results were handed over.
    Streamed(FlowSink),
}

impl Default for RetiredFlows {
    fn default() -> Self {
        Self::Kept(Vec::new())
    }
}

impl std::fmt::Debug for RetiredFlows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RetiredFlows")
            .field(&self.kept().len())
            .finish()
    }
}

impl RetiredFlows {
    pub(crate) fn take(&mut self, flow: FlowResult) {
        match self {
            Self::Kept(flows) => flows.push(flow),
            Self::Streamed(sink) => sink(&flow),
        }
    }

    pub(crate) fn kept(&self) -> &[FlowResult] {
        match self {
            Self::Kept(flows) => flows,
            Self::Streamed(_) => &[],
        }
    }
}

/// A port's result.
#[derive(Clone, Debug)]
pub struct PortResult {
    /// The topology's link; numbers beyond the last are the allocator's links.
    pub link: LinkId,
    /// True if the port leads to a host or to the allocator.
    pub to_host: bool,
    /// The rate, in bit/s.
    pub rate_bps: u64,
    /// The counters of the sending end, since the end of the warm-up.
    pub stats: PortStats,
    /// Packets that reached the far end since the end of the warm-up.
    pub arrived: PacketCount,
}

/// A switch's result, since the end of the warm-up.
#[derive(Clone, PartialEq, Debug)]
pub struct SwitchResult {
    /// The switch.
    pub switch: SwitchId,
    /// Mean number of bytes that wait in its queues, over time.
    pub mean_bytes: f64,
    /// Largest number at once; `None` if its ports share no buffer.
    pub max_bytes: Option<u64>,
    /// Distribution of that number over time, if its ports share a buffer and the run keeps
    /// [histograms](crate::FabricConfig::histograms).
    pub occupancy: Option<ByteDistribution>,
    /// Pauses that it sent.
    pub pauses: u64,
    /// Deflections by it.
    pub deflections: DeflectionCounts,
}

/// Samples over time.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    every: Span,
    flows: u32,
    /// Bytes delivered by the sampled flows that have retired, by number.
    retired_bytes: Vec<u64>,
    /// Ports whose queues are sampled.
    pub watched: Vec<LinkId>,
    /// Time of each sample.
    pub times: Vec<Time>,
    /// Bytes delivered in order since the flow's start, by sample and sampled flow that has begun.
    pub delivered_bytes: Vec<Vec<u64>>,
    /// Bytes that wait, by sample and watched port; the packet being sent does not count.
    pub queue_bytes: Vec<Vec<u64>>,
    /// Flows that have begun and not completed, by sample.
    pub active_flows: Vec<u64>,
}

impl Series {
    pub(crate) fn new(every: Span, flows: u32, watched: Vec<LinkId>) -> Self {
        Self {
            every,
            flows,
            retired_bytes: Vec::new(),
            watched,
            times: Vec::new(),
            delivered_bytes: Vec::new(),
            queue_bytes: Vec::new(),
            active_flows: Vec::new(),
        }
    }

    /// Notes the bytes that a retired flow delivered, if it is sampled.
    pub(crate) fn retire(&mut self, flow: FlowId, delivered_bytes: u64) {
        if flow.0 < self.flows {
            let most = self.retired_bytes.len().max(flow.index() + 1);
            self.retired_bytes.resize(most, 0);
            self.retired_bytes[flow.index()] = delivered_bytes;
        }
    }

    /// Returns the interval between samples.
    #[must_use]
    pub fn every(&self) -> Span {
        self.every
    }

    pub(crate) fn sample(&mut self, cores: &[&Core]) {
        self.times.push(cores[0].now);
        let flows = &cores[0].shared.flows;
        // Flows that have not begun have no progress yet.
        let begun = self.flows.min(flows.len() as u32);
        let delivered = |number: u32| {
            if flows.is_active(FlowId(number)) {
                return total(cores.iter().copied(), FlowId(number)).delivered_bytes;
            }
            let retired = self.retired_bytes.get(number as usize);
            retired.copied().unwrap_or_default()
        };
        let delivered = (0..begun).map(delivered).collect();
        self.delivered_bytes.push(delivered);
        let queue = |l: &LinkId| PortEnds::of(cores, l.index()).near.queue.bytes();
        self.queue_bytes
            .push(self.watched.iter().map(queue).collect());
        let completed: u64 = cores.iter().map(|core| core.completed).sum();
        self.active_flows.push(flows.len() as u64 - completed);
    }

    /// Returns the goodput of a sampled flow in each interval, in bit/s.
    #[must_use]
    pub fn goodput_bps(&self, flow: FlowId) -> Vec<f64> {
        let mut last = 0;
        self.delivered_bytes
            .iter()
            .map(|row| {
                // A flow that began after the sample has no entry in its row.
                let total = row.get(flow.index()).copied().unwrap_or(0);
                let bytes = total - std::mem::replace(&mut last, total);
                bytes as f64 * 8.0 / self.every.as_secs_f64()
            })
            .collect()
    }
}

/// Violation of the conservation of packets or bytes. Every occurrence is a defect of the engine or
/// of a queue discipline.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConservationError {
    /// A queue's counts disagree: offered ≠ sent + dropped + waiting.
    #[error("queue of {link}: {offered:?} were offered; {accounted:?} were sent, dropped or wait")]
    Queue {
        /// The port's link.
        link: LinkId,
        /// Packets offered to the queue.
        offered: PacketCount,
        /// Packets accounted for.
        accounted: PacketCount,
    },
    /// A wire's counts disagree: sent ≠ arrived + lost + on the wire.
    #[error(
        "wire of {link}: {sent:?} were sent; {accounted:?} arrived, were lost or are on the wire"
    )]
    Wire {
        /// The port's link.
        link: LinkId,
        /// Packets sent.
        sent: PacketCount,
        /// Packets accounted for.
        accounted: PacketCount,
    },
    /// A flow's counts disagree: sent ≠ arrived + dropped + in the fabric.
    #[error("{flow:?}: {sent:?} were sent; {accounted:?} arrived, were dropped or are under way")]
    Flow {
        /// The flow; [`FlowId::NONE`] for traffic of no flow.
        flow: FlowId,
        /// Packets sent.
        sent: PacketCount,
        /// Packets accounted for.
        accounted: PacketCount,
    },
    /// A switch's buffer disagrees with its queues.
    #[error("{switch} counts {counted} bytes in its buffer, and {waiting} wait in its queues")]
    Buffer {
        /// The switch.
        switch: SwitchId,
        /// Bytes by the buffer's counters.
        counted: u64,
        /// Bytes in the queues.
        waiting: u64,
    },
    /// A switch dropped packets of a lossless class: its headroom is too small.
    #[error("{switch} dropped {packets} packets of lossless classes")]
    Lossless {
        /// The switch.
        switch: SwitchId,
        /// Packets.
        packets: u64,
    },
    /// The slab holds packets that are neither in a queue nor on a wire.
    #[error("{live} packets are in the fabric, and {found} in its queues and on its wires")]
    Fabric {
        /// Packets in the slab.
        live: u64,
        /// Packets in queues and on wires.
        found: u64,
    },
    /// The side table holds extensions of no packet, or lacks one of a packet's.
    #[error("{live} extensions are held, and {carried} packets carry one")]
    Extensions {
        /// Extensions in the side table.
        live: usize,
        /// Packets that carry one.
        carried: usize,
    },
    /// A flow delivered more bytes than it has.
    #[error("{flow:?} asked for {bytes} bytes; {delivered} were delivered")]
    Delivered {
        /// The flow.
        flow: FlowId,
        /// Bytes of the flow.
        bytes: u64,
        /// Bytes delivered.
        delivered: u64,
    },
    /// The scheme broke an invariant of its own.
    #[error(transparent)]
    Scheme(#[from] BrokenInvariant),
}

/// Conservation law that a flow broke by the time that it retired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FlowViolation {
    pub(crate) flow: FlowId,
    pub(crate) bytes: u64,
    pub(crate) progress: FlowProgress,
}

/// Adds up what all partitions know of a flow.
pub(crate) fn total<'a>(cores: impl IntoIterator<Item = &'a Core>, flow: FlowId) -> FlowProgress {
    let parts = cores
        .into_iter()
        .map(|core| *core.shared.flows.progress(flow));
    parts.reduce(|a, b| a + b).unwrap_or_default()
}

/// A port with the partitions of its two ends, which each have their end's counts.
#[derive(Clone, Copy)]
pub(crate) struct PortEnds<'a> {
    pub(crate) near: &'a Port,
    far: &'a Port,
    cores: [&'a Core; 2],
}

impl<'a> PortEnds<'a> {
    fn of(cores: &[&'a Core], port: usize) -> Self {
        let ends = match &cores[0].regions {
            Some(regions) => regions.partitions_of_port(port).map(|end| cores[end]),
            None => [cores[0]; 2],
        };
        let [near, far] = ends.map(|core| &core.fabric.ports[port]);
        Self {
            near,
            far,
            cores: ends,
        }
    }

    pub(crate) fn all(cores: &[&'a Core]) -> impl Iterator<Item = Self> {
        (0..cores[0].fabric.ports.len()).map(|port| Self::of(cores, port))
    }

    /// Returns true if its ends are of two partitions.
    fn is_divided(self) -> bool {
        !std::ptr::eq(self.near, self.far)
    }

    fn stats(self) -> PortStats {
        let mut stats = self.near.stats();
        if self.is_divided() {
            // A link that fails loses the packets on its wire.
            stats.add_losses(&self.far.stats().losses());
        }
        stats
    }

    /// Counts the packets on the wire, of which each end may hold a part.
    fn on_wire(self) -> PacketCount {
        let ends = [(self.near, self.cores[0]), (self.far, self.cores[1])];
        let ends = ends.into_iter().take(1 + usize::from(self.is_divided()));
        let mut count = PacketCount::default();
        for (port, core) in ends {
            for id in port.wire(&core.shared) {
                count.add(core.shared.packets[id].wire_bytes);
            }
        }
        count
    }
}

/// Counts at the end of a warm-up, which results leave out.
#[derive(Debug, Default)]
pub(crate) struct WarmUpCounts {
    /// Counters of each port, and what had arrived.
    ports: Vec<(PortStats, PacketCount)>,
    no_route: PacketCount,
    retransmits: u64,
}

impl WarmUpCounts {
    pub(crate) fn new(cores: &[&Core]) -> Self {
        let counts = |port: PortEnds<'_>| {
            let mut stats = port.stats();
            // It begins anew and needs no difference.
            stats.histogram = None;
            (stats, port.far.arrived())
        };
        Self {
            ports: PortEnds::all(cores).map(counts).collect(),
            no_route: no_route(cores),
            retransmits: retransmits(cores),
        }
    }
}

/// Returns the packets that no switch had a route for.
fn no_route(cores: &[&Core]) -> PacketCount {
    cores.iter().map(|core| core.no_route).sum()
}

/// Returns the packets with payload that were sent again.
fn retransmits(cores: &[&Core]) -> u64 {
    cores.iter().map(|core| core.shared.flows.retransmits).sum()
}

/// Iterates over the active flows of all partitions.
fn active<'a>(cores: &[&'a Core]) -> impl Iterator<Item = (FlowId, &'a FlowSpec, FlowProgress)> {
    let flows = cores[0].shared.flows.iter();
    flows.map(move |(flow, spec, _)| (flow, spec, total(cores.iter().copied(), flow)))
}

/// Accounts of a run that no partition keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accounts<'a> {
    pub(crate) retired: &'a [FlowResult],
    /// Counts that results leave out.
    pub(crate) before: &'a WarmUpCounts,
    pub(crate) series: Option<&'a Series>,
    /// The first flow that retired against the conservation law.
    pub(crate) violation: Option<FlowViolation>,
    /// Global events.
    pub(crate) globals: u64,
    /// Time after which a pause is a storm, if any class can be paused.
    pub(crate) watchdog: Option<Span>,
}

/// A scheme's part of the results.
#[derive(Debug)]
pub(crate) struct SchemeResults {
    /// Its own counters, by name.
    pub(crate) counters: Vec<(&'static str, f64)>,
    /// Links that the check of its allocator named.
    pub(crate) findings: Vec<LinkFinding>,
    /// Check of its invariants.
    pub(crate) check: Result<(), BrokenInvariant>,
}

/// The results of a run.
#[derive(Clone, Debug)]
pub struct RunResults {
    /// Simulated time.
    pub now: Time,
    /// All flows that began, in order of arrival; without those that were
    /// [streamed](crate::Sim::stream_flows).
    pub flows: Vec<FlowResult>,
    /// Largest number of flows that were active at once.
    pub flows_high_water: usize,
    /// All ports: the topology's links, then the allocator's.
    pub ports: Vec<PortResult>,
    /// All switches.
    pub switches: Vec<SwitchResult>,
    /// Samples, if the run took any.
    pub series: Option<Series>,
    /// Packet-hops: packets that left a queue onto a link and arrived at its end.
    pub packet_hops: u64,
    /// Events handled.
    pub events: u64,
    /// Counts of packets without a flow: sent, arrived, dropped.
    pub control: FlowProgress,
    /// Packets that a switch had no route for, since the end of the warm-up.
    pub no_route: PacketCount,
    /// Packets with payload that were sent again since the end of the warm-up.
    pub retransmits: u64,
    /// Largest number of packets in the fabric at once.
    pub packets_high_water: usize,
    /// A deadlock of priority flow control, in which the run ended.
    pub deadlock: Option<Deadlock>,
    /// Pauses that lasted too long, since the end of the warm-up; the earliest first.
    pub storms: Vec<PauseStorm>,
    /// The scheme's own counters, by name.
    pub transport: Vec<(&'static str, f64)>,
    /// Links that the check of the scheme's allocator named, in the order of time.
    pub findings: Vec<LinkFinding>,
    /// Result of the check that every packet and byte is accounted for.
    pub conservation: Result<(), ConservationError>,
}

impl RunResults {
    pub(crate) fn new(cores: &[&Core], books: Accounts<'_>, scheme: SchemeResults) -> Self {
        let before = books.before;
        let ports = PortEnds::all(cores).enumerate().map(|(i, port)| {
            let (stats, arrived) = match before.ports.get(i) {
                Some((stats, arrived)) => {
                    (port.stats().since(stats), port.far.arrived() - *arrived)
                }
                None => (port.stats(), port.far.arrived()),
            };
            PortResult {
                link: LinkId(i as u32),
                to_host: matches!(port.near.far(), FarEnd::Host(_)),
                rate_bps: port.near.rate_bps(),
                stats,
                arrived,
            }
        });
        let active = active(cores);
        let mut flows: Vec<_> = (books.retired.iter().copied())
            .chain(active.map(|(flow, spec, progress)| FlowResult::new(flow, spec, &progress)))
            .collect();
        flows.sort_unstable_by_key(|flow| flow.number);
        let sum = |of: fn(&Core) -> u64| cores.iter().map(|core| of(core)).sum::<u64>();
        Self {
            now: cores[0].now,
            flows,
            flows_high_water: cores[0].shared.flows.high_water(),
            ports: ports.collect(),
            switches: switches(cores),
            // Cloned, because the run may go on.
            series: books.series.cloned(),
            packet_hops: sum(|core| core.packet_hops),
            events: sum(|core| core.events) + books.globals,
            control: total(cores.iter().copied(), FlowId::NONE),
            no_route: no_route(cores) - before.no_route,
            retransmits: retransmits(cores) - before.retransmits,
            packets_high_water: sum(|core| core.shared.packets.high_water() as u64) as usize,
            deadlock: watchdog::deadlock(cores),
            storms: watchdog::storms(cores, books.watchdog),
            transport: scheme.counters,
            findings: scheme.findings,
            conservation: conservation(cores, books.violation)
                .and(scheme.check.map_err(Into::into)),
        }
    }

    /// Returns the packets dropped in all queues, lost on all wires or without a route, since the
    /// end of the warm-up.
    #[must_use]
    pub fn drops(&self) -> u64 {
        // Dropped inside a switch, before any port.
        self.no_route.packets
            + self
                .ports
                .iter()
                .flat_map(|p| p.stats.losses().by_reason)
                .sum::<u64>()
    }

    /// Returns the packets dropped for one reason since the end of the warm-up.
    #[must_use]
    pub fn drops_by(&self, reason: DropReason) -> u64 {
        let at_switches = if reason == DropReason::NoRoute {
            self.no_route.packets
        } else {
            0
        };
        at_switches
            + self
                .ports
                .iter()
                .map(|p| p.stats.losses().by_reason[reason as usize])
                .sum::<u64>()
    }
}

/// Returns the partition of a switch.
pub(crate) fn core_of<'a>(cores: &[&'a Core], switch: usize) -> &'a Core {
    let regions = cores[0].regions.as_ref();
    cores[regions.map_or(0, |regions| regions.partition_of_switch(switch))]
}

/// Returns the results of all switches.
fn switches(cores: &[&Core]) -> Vec<SwitchResult> {
    let of_switch = |i: usize| {
        let core = core_of(cores, i);
        let switch = &core.fabric.switches[i];
        SwitchResult {
            switch: SwitchId(i as u32),
            // The mean of a sum is the sum of the means.
            mean_bytes: switch
                .egress
                .iter()
                .map(|port| core.fabric.ports[*port as usize].stats().mean_bytes())
                .sum(),
            max_bytes: switch.mmu.as_ref().map(|mmu| mmu.max_bytes()),
            occupancy: switch.mmu.as_ref().and_then(|mmu| mmu.occupancy()).cloned(),
            pauses: switch.mmu.as_ref().map_or(0, |mmu| mmu.pauses()),
            deflections: switch
                .deflector
                .as_ref()
                .map_or_else(Default::default, |d| d.counts()),
        }
    };
    let switches = cores[0].fabric.switches.len();
    (0..switches).map(of_switch).collect()
}

/// Checks the buffers of switches.
fn buffers(cores: &[&Core]) -> Result<(), ConservationError> {
    for i in 0..cores[0].fabric.switches.len() {
        let core = core_of(cores, i);
        let switch = &core.fabric.switches[i];
        let Some(mmu) = &switch.mmu else { continue };
        let (id, ports) = (SwitchId(i as u32), &core.fabric.ports);
        let queues = switch
            .egress
            .iter()
            .map(|port| &ports[*port as usize].queue);
        let waiting = queues.map(|queue| queue.bytes()).sum();
        if mmu.used_bytes() != waiting {
            return Err(ConservationError::Buffer {
                switch: id,
                counted: mmu.used_bytes(),
                waiting,
            });
        }
        if mmu.lossless_drops() > 0 {
            return Err(ConservationError::Lossless {
                switch: id,
                packets: mmu.lossless_drops(),
            });
        }
    }
    Ok(())
}

/// Checks sent = delivered + dropped + in flight, for each queue, wire and flow and for the whole
/// fabric. Packets in flight are counted one by one.
fn conservation(cores: &[&Core], violated: Option<FlowViolation>) -> Result<(), ConservationError> {
    // Packets on wires are counted along their chains, so that a packet that was counted right and
    // chained wrongly is found, too.
    let mut found = 0_u64;
    for (i, port) in PortEnds::all(cores).enumerate() {
        let link = LinkId(i as u32);
        let stats = port.stats();
        let losses = stats.losses();
        let waiting = PacketCount {
            packets: u64::from(port.near.queue.packets()),
            bytes: port.near.queue.bytes(),
        };
        let accounted = stats.sent + losses.dropped + waiting;
        if stats.offered != accounted {
            return Err(ConservationError::Queue {
                link,
                offered: stats.offered,
                accounted,
            });
        }
        let on_wire = port.on_wire();
        let accounted = port.far.arrived() + losses.lost + on_wire;
        if stats.sent != accounted {
            return Err(ConservationError::Wire {
                link,
                sent: stats.sent,
                accounted,
            });
        }
        found += waiting.packets + on_wire.packets;
    }
    buffers(cores)?;
    let packets = || cores.iter().flat_map(|core| core.shared.packets.iter());
    let live = cores
        .iter()
        .map(|core| u64::from(core.shared.packets.live()));
    let live = live.sum();
    if live != found {
        return Err(ConservationError::Fabric { live, found });
    }
    let live = cores.iter().map(|core| core.shared.extensions.live()).sum();
    let carried = packets().filter(|p| p.ext != 0).count();
    if live != carried {
        return Err(ConservationError::Extensions { live, carried });
    }
    if let Some(FlowViolation {
        flow,
        bytes,
        progress,
    }) = violated
    {
        return Err(violation(flow, bytes, &progress, PacketCount::default()));
    }
    // By place; the last entry is that of traffic without a flow, which has none.
    let flows = &cores[0].shared.flows;
    let none = flows.high_water();
    let mut under_way = vec![PacketCount::default(); none + 1];
    for packet in packets() {
        let place = flows.place(packet.flow).unwrap_or(none);
        under_way[place].add(packet.wire_bytes);
    }
    let traffic = (
        FlowId::NONE,
        u64::MAX,
        total(cores.iter().copied(), FlowId::NONE),
    );
    let active = active(cores).map(|(flow, spec, p)| (flow, spec.bytes, p));
    for (flow, bytes, progress) in active.chain([traffic]) {
        let under_way = under_way[flows.place(flow).unwrap_or(none)];
        let accounted = progress.arrived + progress.dropped + under_way;
        if progress.sent != accounted || progress.delivered_bytes > bytes {
            return Err(violation(flow, bytes, &progress, under_way));
        }
    }
    Ok(())
}

/// Names what is wrong with a flow.
fn violation(
    flow: FlowId,
    bytes: u64,
    progress: &FlowProgress,
    under_way: PacketCount,
) -> ConservationError {
    let accounted = progress.arrived + progress.dropped + under_way;
    if progress.sent == accounted {
        let delivered = progress.delivered_bytes;
        return ConservationError::Delivered {
            flow,
            bytes,
            delivered,
        };
    }
    ConservationError::Flow {
        flow,
        sent: progress.sent,
        accounted,
    }
}
