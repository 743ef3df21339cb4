//! Results of a run, with the check that no packet was lost from the books.

use ratewright_topology::{LinkId, SwitchId};

use crate::flow::{FlowId, FlowProgress, FlowSpec, FlowViolation, PacketCount};
use crate::net::port::{FarEnd, Port};
use crate::net::queue::{Discipline as _, DropReason};
use crate::net::stats::PortStats;
use crate::net::switch::Switch;
use crate::run::core::Core;
use crate::time::{Span, Time};

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

/// A switch's result.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SwitchResult {
    /// The switch.
    pub switch: SwitchId,
    /// Mean number of bytes that wait in its queues, over time.
    pub mean_bytes: f64,
    /// Largest number at once; `None` if its ports share no buffer.
    pub max_bytes: Option<u64>,
    /// Pauses that it sent.
    pub pauses: u64,
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

    pub(crate) fn sample(&mut self, core: &Core) {
        self.times.push(core.now);
        let flows = &core.shared.flows;
        // Flows that have not begun have no progress yet.
        let begun = self.flows.min(flows.len() as u32);
        let delivered = |number: u32| {
            if flows.is_active(FlowId(number)) {
                return flows.progress(FlowId(number)).delivered_bytes;
            }
            let retired = self.retired_bytes.get(number as usize);
            retired.copied().unwrap_or_default()
        };
        let delivered = (0..begun).map(delivered).collect();
        self.delivered_bytes.push(delivered);
        let queue = |l: &LinkId| core.fabric.ports[l.index()].queue.bytes();
        self.queue_bytes
            .push(self.watched.iter().map(queue).collect());
        let begun = core.shared.flows.len() as u64;
        self.active_flows.push(begun - core.completed);
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
    pub(crate) fn new(core: &Core) -> Self {
        let counts = |port: &Port| {
            let mut stats = port.stats();
            // It begins anew and needs no difference.
            stats.histogram = None;
            (stats, port.arrived())
        };
        Self {
            ports: core.fabric.ports.iter().map(counts).collect(),
            no_route: core.no_route,
            retransmits: core.shared.flows.retransmits,
        }
    }
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
    /// The scheme's own counters, by name.
    pub transport: Vec<(&'static str, f64)>,
    /// Result of the check that every packet and byte is accounted for.
    pub conservation: Result<(), ConservationError>,
}

impl RunResults {
    pub(crate) fn new(
        core: &Core,
        warm_up: &WarmUpCounts,
        events: u64,
        transport: Vec<(&'static str, f64)>,
    ) -> Self {
        let ports = core.fabric.ports.iter().enumerate().map(|(i, port)| {
            let (stats, arrived) = match warm_up.ports.get(i) {
                Some((stats, arrived)) => (port.stats().since(stats), port.arrived() - *arrived),
                None => (port.stats(), port.arrived()),
            };
            PortResult {
                link: LinkId(i as u32),
                to_host: matches!(port.far(), FarEnd::Host(_)),
                rate_bps: port.rate_bps(),
                stats,
                arrived,
            }
        });
        let active = core.shared.flows.iter();
        let mut flows: Vec<_> = (core.retired.kept().iter().copied())
            .chain(active.map(|(flow, spec, progress)| FlowResult::new(flow, spec, progress)))
            .collect();
        flows.sort_unstable_by_key(|flow| flow.number);
        Self {
            now: core.now,
            flows,
            flows_high_water: core.shared.flows.high_water(),
            ports: ports.collect(),
            switches: switches(core),
            // Cloned, because the run may go on.
            series: core.series.clone(),
            packet_hops: core.packet_hops,
            events,
            control: *core.shared.flows.progress(FlowId::NONE),
            no_route: core.no_route - warm_up.no_route,
            retransmits: core.shared.flows.retransmits - warm_up.retransmits,
            packets_high_water: core.shared.packets.high_water(),
            transport,
            conservation: conservation(core),
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

/// Returns the results of all switches.
fn switches(core: &Core) -> Vec<SwitchResult> {
    let switches = core.fabric.switches.iter().enumerate();
    let of_switch = |(i, switch): (usize, &Switch)| SwitchResult {
        switch: SwitchId(i as u32),
        // The mean of a sum is the sum of the means.
        mean_bytes: switch
            .egress
            .iter()
            .map(|port| core.fabric.ports[*port as usize].stats().mean_bytes())
            .sum(),
        max_bytes: switch.mmu.as_ref().map(|mmu| mmu.max_bytes()),
        pauses: switch.mmu.as_ref().map_or(0, |mmu| mmu.pauses()),
    };
    switches.map(of_switch).collect()
}

/// Checks the buffers of switches.
fn buffers(core: &Core) -> Result<(), ConservationError> {
    for (i, switch) in core.fabric.switches.iter().enumerate() {
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
fn conservation(core: &Core) -> Result<(), ConservationError> {
    // Packets on wires are counted along their chains, so that a packet that was counted right and
    // chained wrongly is found, too.
    let mut found = 0_u64;
    for (i, port) in core.fabric.ports.iter().enumerate() {
        let link = LinkId(i as u32);
        let stats = port.stats();
        let losses = stats.losses();
        let waiting = PacketCount {
            packets: u64::from(port.queue.packets()),
            bytes: port.queue.bytes(),
        };
        let accounted = stats.sent + losses.dropped + waiting;
        if stats.offered != accounted {
            return Err(ConservationError::Queue {
                link,
                offered: stats.offered,
                accounted,
            });
        }
        let mut on_wire = PacketCount::default();
        for id in port.wire(&core.shared) {
            on_wire.add(core.shared.packets[id].wire_bytes);
        }
        let accounted = port.arrived() + losses.lost + on_wire;
        if stats.sent != accounted {
            return Err(ConservationError::Wire {
                link,
                sent: stats.sent,
                accounted,
            });
        }
        found += waiting.packets + on_wire.packets;
    }
    buffers(core)?;
    let live = u64::from(core.shared.packets.live());
    if live != found {
        return Err(ConservationError::Fabric { live, found });
    }
    let live = core.shared.extensions.live();
    let carried = core.shared.packets.iter().filter(|p| p.ext != 0).count();
    if live != carried {
        return Err(ConservationError::Extensions { live, carried });
    }
    let flows = &core.shared.flows;
    if let Some(FlowViolation {
        flow,
        bytes,
        progress,
    }) = flows.violation()
    {
        return Err(violation(flow, bytes, &progress, PacketCount::default()));
    }
    // By place; the last entry is that of traffic without a flow, which has none.
    let none = flows.high_water();
    let mut under_way = vec![PacketCount::default(); none + 1];
    for packet in core.shared.packets.iter() {
        let place = flows.place(packet.flow).unwrap_or(none);
        under_way[place].add(packet.wire_bytes);
    }
    let traffic = (FlowId::NONE, u64::MAX, flows.progress(FlowId::NONE));
    let active = flows.iter().map(|(flow, spec, p)| (flow, spec.bytes, p));
    for (flow, bytes, progress) in active.chain([traffic]) {
        let under_way = under_way[flows.place(flow).unwrap_or(none)];
        let accounted = progress.arrived + progress.dropped + under_way;
        if progress.sent != accounted || progress.delivered_bytes > bytes {
            return Err(violation(flow, bytes, progress, under_way));
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
