//! Homa (SIGCOMM 2018): messages begin blindly, receivers grant the rest to the shortest ones, and
//! switches' priorities follow from the receivers' choice.
//!
//! | mechanism | where |
//! |---|---|
//! | an unscheduled prefix of a round trip's bytes, its priority by the message's size (§3.2, §3.4) | `start`, `Unscheduled` |
//! | grants that keep a round trip's bytes of each active message on their way (§3.3) | `grant` |
//! | overcommitment: several active messages, of different senders (§3.5) | `grant` |
//! | the lowest priorities first among active messages (§3.4) | `scheduled_class` |
//! | the shortest remaining message first at the sender (§3.2) | [`Policy::Srpt`] |
//! | RESEND and BUSY (§3.7) | [`message`](crate::transport::message) |
//! | a shorter prefix towards receivers of many messages (§3.6) | `incast_messages` |

use std::collections::BTreeSet;
use std::sync::Arc;

use ratewright_topology::HostId;

use super::{Built, FabricNeeds, Network, Scheme, tcp};
use crate::flow::FlowId;
use crate::host::{Arbiter, Endpoint, Measured, Policy, Pull, Timer, Turn};
use crate::net::Framing;
use crate::net::queue::MAX_CLASSES;
use crate::packet::{Flags, Packet, PacketKind};
use crate::parameters::ParamError;
use crate::transport::message::{Arrival, MessageConfig, Messages};
use crate::transport::{BrokenInvariant, Context, Transport};
use crate::units::{Delay, Rate};
use crate::workload::SizeDistribution;

crate::parameters! {
    /// Homa (SIGCOMM 2018): receivers grant messages, shortest first, by switches' priorities.
    pub struct Config {
        /// Bytes that are unscheduled, and on their way of each active message, at `rtt_rate`; in
        /// proportion to the hosts' rate (RTTbytes, §3.1; SIRD table 2: 100 kB at 100 Gbit/s).
        rtt_bytes: u64 = 100_000,
        /// Rate that `rtt_bytes` is for (SIRD §6.2: 100 Gbit/s).
        rtt_rate: Rate = Rate(100_000_000_000),
        /// Priorities in switches (§5.1: 8).
        levels: u8 = 8,
        /// Priorities for unscheduled packets; unless given, as many as their share of the bytes
        /// of `sizes` (§3.4).
        unscheduled_levels: Option<u8> = None,
        /// Published sizes of messages by which priorities are allocated (§3.4: as measured).
        sizes: String = "google-rpc".to_owned(),
        /// Messages that a receiver grants at once, each of another sender (§3.5: as many as
        /// scheduled priorities; SIRD table 2: 7).
        overcommitment: u8 = 7,
        /// Bytes around the payload of granted packets, which make room for more payload; without
        /// it those of all packets (the simulator of SIRD's authors: 14 fewer than of others).
        granted_header_bytes: Option<u16> = None,
        /// Silence after which missing bytes are asked for (§3.7: a few milliseconds).
        resend_time_out: Delay = Delay::from_ms(5),
        /// Every packet takes a path of its own (§2.2); otherwise all of a message take one.
        spray: bool = true,
        /// Incomplete messages from which a receiver asks for short prefixes; 0: never (§3.6).
        incast_messages: u32 = 0,
        /// Unscheduled bytes of a message to such a receiver (§3.6: a few hundred).
        incast_bytes: u64 = 400,
    }
}

impl Scheme for Config {
    const NAME: &'static str = "homa";

    fn check(&self) -> Result<(), ParamError> {
        if !(2..=MAX_CLASSES as u8).contains(&self.levels) {
            let message = "there are 2 to 8 priorities, scheduled and unscheduled ones";
            return Err(ParamError::of("levels", message));
        }
        if let Some(levels) = self.unscheduled_levels
            && !(1..self.levels).contains(&levels)
        {
            let message = "it must be at least 1, and leave a priority for granted packets";
            return Err(ParamError::of("unscheduled_levels", message));
        }
        if self.overcommitment == 0 {
            let message = "a receiver grants at least one message";
            return Err(ParamError::of("overcommitment", message));
        }
        if let Some(bytes) = self.granted_header_bytes
            && !(1..=1_000).contains(&bytes)
        {
            let message = "it must be from 1 to 1000";
            return Err(ParamError::of("granted_header_bytes", message));
        }
        if self.rtt_bytes == 0 {
            return Err(ParamError::of("rtt_bytes", "it must be above 0"));
        }
        if let Err(error) = SizeDistribution::published(&self.sizes) {
            return Err(ParamError::of("sizes", error.to_string()));
        }
        tcp::time_out("resend_time_out", self.resend_time_out)
    }

    fn build(self, network: &Network<'_>) -> Built {
        let needs = FabricNeeds {
            classes: self.levels,
            ..FabricNeeds::default()
        };
        let host_bps = network.edge_bps();
        let framing = network.framing;
        let granted = self.granted_header_bytes.unwrap_or(framing.header_bytes);
        let largest = framing.mss_bytes.saturating_add(framing.header_bytes);
        let granted = Framing {
            mss_bytes: largest.saturating_sub(granted),
            header_bytes: granted,
            ..framing
        };
        Built::new(needs, move |_| {
            let sizes = SizeDistribution::published(&self.sizes)
                .map_err(|error| ParamError::of("sizes", error.to_string()))?;
            Ok(Homa::new(&self, host_bps, [framing, granted], &sizes))
        })
    }
}

/// Priorities of unscheduled packets by the size of their message.
#[derive(Clone, Debug, PartialEq)]
struct Unscheduled {
    /// Largest size of each priority but the last.
    cutoffs: Vec<u64>,
}

impl Unscheduled {
    /// Allocates priorities so that each has the same share of unscheduled bytes (§3.4); without a
    /// given number as many as the share of unscheduled bytes in all.
    fn new(sizes: &SizeDistribution, rtt_bytes: u64, levels: u8, given: Option<u8>) -> Self {
        /// Sizes at the middles of as many equal shares of the messages.
        const SHARES: u32 = 20_000;
        let middle = |i: u32| sizes.quantile((f64::from(i) + 0.5) / f64::from(SHARES));
        let prefix = |size: u64| size.min(rtt_bytes) as f64;
        let (mut all, mut unscheduled) = (0.0, 0.0);
        for size in (0..SHARES).map(middle) {
            all += size as f64;
            unscheduled += prefix(size);
        }
        let by_share = (f64::from(levels) * unscheduled / all).round() as u8;
        let count = given.unwrap_or(by_share).clamp(1, levels - 1);
        let (mut cutoffs, mut sum) = (Vec::new(), 0.0);
        for size in (0..SHARES).map(middle) {
            sum += prefix(size);
            let full = unscheduled * (cutoffs.len() + 1) as f64 / f64::from(count);
            if cutoffs.len() + 1 < usize::from(count) && sum >= full {
                cutoffs.push(size);
            }
        }
        Self { cutoffs }
    }

    /// Returns the number of priorities.
    fn levels(&self) -> u8 {
        self.cutoffs.len() as u8 + 1
    }

    /// Returns the class of a message's unscheduled packets.
    fn class(&self, bytes: u64) -> u8 {
        self.cutoffs.partition_point(|most| *most < bytes) as u8
    }
}

/// Parameters of a host.
#[derive(Debug)]
struct HomaConfig {
    rtt_bytes: u64,
    /// Bytes of granted packets.
    granted: Framing,
    unscheduled: Unscheduled,
    levels: u8,
    overcommitment: usize,
    incast_messages: usize,
    incast_bytes: u64,
}

impl HomaConfig {
    /// Returns the class of the message of this rank among so many active ones. Ranks take the
    /// lowest priorities that there are, so that a higher one is free for a shorter message (§3.4).
    fn scheduled_class(&self, rank: usize, active: usize) -> u8 {
        let scheduled = usize::from(self.levels - self.unscheduled.levels());
        let below = (active - 1 - rank).min(scheduled - 1);
        self.levels - 1 - below as u8
    }
}

/// Homa on all hosts.
#[derive(Debug)]
pub struct Homa {
    config: Arc<HomaConfig>,
    messages: MessageConfig,
}

impl Homa {
    fn new(
        config: &Config,
        host_bps: u64,
        [framing, granted]: [Framing; 2],
        sizes: &SizeDistribution,
    ) -> Self {
        let scaled = u128::from(config.rtt_bytes) * u128::from(host_bps)
            / u128::from(config.rtt_rate.0.max(1));
        let rtt_bytes = u64::try_from(scaled).unwrap_or(u64::MAX).max(1);
        // In full packets: a packet is not cut where the prefix ends.
        let mss = u64::from(framing.mss_bytes.max(1));
        let rtt_bytes = rtt_bytes.div_ceil(mss).saturating_mul(mss);
        let given = config.unscheduled_levels;
        Self {
            config: Arc::new(HomaConfig {
                rtt_bytes,
                granted,
                unscheduled: Unscheduled::new(sizes, rtt_bytes, config.levels, given),
                levels: config.levels,
                overcommitment: config.overcommitment.into(),
                incast_messages: config.incast_messages as usize,
                incast_bytes: config.incast_bytes,
            }),
            messages: MessageConfig {
                time_out: config.resend_time_out.0,
                spray: config.spray,
                control_class: 0,
            },
        }
    }
}

impl Transport for Homa {
    type Shared = ();
    type Endpoint = HomaHost;

    fn start(self, nodes: u32) -> ((), Vec<HomaHost>) {
        let host = |_| HomaHost {
            config: Arc::clone(&self.config),
            messages: Messages::new(self.messages),
            arbiter: Arbiter::new(Policy::Srpt),
            waiting: BTreeSet::new(),
            active: Vec::new(),
            in_incast: BTreeSet::new(),
        };
        ((), (0..nodes).map(host).collect())
    }

    fn summary((): &(), hosts: &[&HomaHost]) -> Vec<(&'static str, f64)> {
        let [resends, probes] = Messages::repairs(hosts.iter().map(|host| &host.messages));
        vec![resends, probes]
    }

    fn check((): &(), hosts: &[&HomaHost]) -> Result<(), BrokenInvariant> {
        for host in hosts {
            let extremes = host.messages.extremes();
            let law = "no data comes that was not granted, behind its prefix (Homa §3.3)";
            BrokenInvariant::unless_equal(law, extremes.unallowed_bytes, 0)?;
            let law = "RTTbytes of a message are granted and have not come, at most (Homa §3.3)";
            let bound = host.config.rtt_bytes;
            BrokenInvariant::unless_within(law, extremes.outstanding_bytes, bound)?;
        }
        Ok(())
    }
}

/// State of a message at its sender.
#[derive(Clone, Copy, Debug)]
struct Sent {
    unscheduled_bytes: u64,
    unscheduled_class: u8,
    /// Class of the latest grant.
    class: u8,
}

/// State of a message at its receiver: its remaining bytes, as it waits for grants with them.
type Waiting = Option<u64>;

/// Homa at one host.
#[derive(Debug)]
pub struct HomaHost {
    config: Arc<HomaConfig>,
    messages: Messages<Sent, Waiting>,
    /// Messages that this host sends and that have something to send.
    arbiter: Arbiter,
    /// Messages that this host receives and has not granted to their ends: remaining bytes, flow,
    /// slot.
    waiting: BTreeSet<(u64, u32, u32)>,
    /// The first of them, of different senders; between two calls of no meaning.
    active: Vec<(HostId, u32)>,
    /// Receivers of many messages at once.
    in_incast: BTreeSet<HostId>,
}

impl HomaHost {
    /// Gives a message its place among those that may send.
    fn enqueue(&mut self, cx: &mut Context<'_>, slot: u32) {
        if let Some(message) = self.messages.outgoing(slot)
            && !message.queued
            && message.has_segment()
        {
            message.queued = true;
            self.arbiter.ready(slot, message.remaining_bytes());
            cx.wake();
        }
    }

    /// Takes data, or the probe of a sender, which may be the first that comes of a message. Both
    /// say how long the prefix is that comes without a grant.
    fn on_data(&mut self, cx: &mut Context<'_>, packet: &Packet) {
        let most = self.config.incast_messages;
        if most > 0 {
            // Everything that this host tells senders also says if too many messages come.
            let many = self.messages.receiving() >= most;
            let flags = if many { Flags::ECE } else { Flags::NONE };
            self.messages.set_control_flags(flags);
        }
        match self.messages.on_data(cx, packet, |_| (packet.ack, None)) {
            Arrival::Late => return,
            Arrival::Complete(slot, _, message) => {
                if let Some(remaining) = message.own {
                    self.waiting.remove(&(remaining, message.id.0, slot));
                }
            }
            Arrival::More(slot, _) => {
                if let Some(message) = self.messages.incoming(slot) {
                    let remaining = message.remaining_bytes();
                    let waits = (message.allowed < message.bytes).then_some(remaining);
                    let waited = std::mem::replace(&mut message.own, waits);
                    if waited != waits {
                        if let Some(remaining) = waited {
                            self.waiting.remove(&(remaining, message.id.0, slot));
                        }
                        if let Some(remaining) = waits {
                            self.waiting.insert((remaining, message.id.0, slot));
                        }
                    }
                }
                if packet.kind == PacketKind::Probe {
                    self.messages.on_probe(cx, slot);
                }
            }
        }
        self.grant(cx);
    }

    /// Grants the active messages what keeps a round trip's bytes of each on their way.
    fn grant(&mut self, cx: &mut Context<'_>) {
        self.active.clear();
        for &(_, _, slot) in &self.waiting {
            let Some(src) = self.messages.incoming(slot).map(|message| message.src) else {
                continue;
            };
            if self.active.iter().all(|(other, _)| *other != src) {
                self.active.push((src, slot));
                if self.active.len() == self.config.overcommitment {
                    break;
                }
            }
        }
        for rank in 0..self.active.len() {
            let (src, slot) = self.active[rank];
            let Some(message) = self.messages.incoming(slot) else {
                continue;
            };
            let end = message
                .received_bytes()
                .saturating_add(self.config.rtt_bytes);
            let end = end.min(message.bytes);
            if end <= message.allowed {
                continue;
            }
            message.allowed = end;
            let id = message.id;
            if end == message.bytes
                && let Some(remaining) = message.own.take()
            {
                self.waiting.remove(&(remaining, id.0, slot));
            }
            let class = self.config.scheduled_class(rank, self.active.len());
            let words = [class.into(), end];
            let grant = self
                .messages
                .control(cx, PacketKind::Grant, (id, src), words);
            cx.send(grant);
        }
    }

    /// Takes the word of a receiver on whether too many messages come to it.
    fn note_incast(&mut self, packet: &Packet) {
        if packet.flags.contains(Flags::ECE) {
            self.in_incast.insert(packet.src);
        } else {
            self.in_incast.remove(&packet.src);
        }
    }
}

impl Endpoint for HomaHost {
    type Shared = ();

    fn measure(&self, measured: &mut Measured) {
        let incoming = self.messages.all_incoming();
        incoming.for_each(|message| measured.sender(message.src));
    }

    fn on_start(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        let spec = cx.flow(flow);
        let (bytes, dst) = (spec.bytes, spec.dst);
        let mut unscheduled_bytes = self.config.rtt_bytes;
        if self.in_incast.contains(&dst) {
            unscheduled_bytes = unscheduled_bytes.min(self.config.incast_bytes);
        }
        let own = Sent {
            unscheduled_bytes,
            unscheduled_class: self.config.unscheduled.class(bytes),
            class: self.config.levels - 1,
        };
        let slot = self.messages.start(cx, flow, unscheduled_bytes, own);
        self.enqueue(cx, slot);
    }

    fn on_stop(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        if let Some(slot) = self.messages.stop(cx, flow) {
            self.enqueue(cx, slot);
        }
    }

    fn on_packet(&mut self, cx: &mut Context<'_>, packet: &mut Packet) {
        match packet.kind {
            PacketKind::Data | PacketKind::Probe => self.on_data(cx, packet),
            PacketKind::Grant => {
                self.note_incast(packet);
                if let Some(slot) = self.messages.sent_by(cx, packet)
                    && let Some(message) = self.messages.outgoing(slot)
                {
                    message.own.class = packet.seq as u8;
                    message.allow(packet.ack);
                    self.enqueue(cx, slot);
                }
            }
            PacketKind::Ack => {
                self.note_incast(packet);
                self.messages.on_ack(cx, packet);
            }
            PacketKind::Resend => {
                if let Some(slot) = self.messages.on_resend(cx, packet) {
                    self.enqueue(cx, slot);
                }
            }
            PacketKind::Busy => {
                self.messages.sent_by(cx, packet);
                self.messages.on_busy(cx, packet);
            }
            _ => {}
        }
    }

    fn on_timer(&mut self, cx: &mut Context<'_>, _: Timer) {
        self.messages.on_timer(cx, |_, _| ());
    }

    fn pull(&mut self, cx: &mut Context<'_>) -> Pull {
        let open = cx.open_classes();
        self.arbiter.release(open);
        while let Turn::Slot(slot) = self.arbiter.next(cx.now()) {
            let Some(message) = self.messages.outgoing(slot) else {
                continue;
            };
            if message.done {
                self.messages.forget(slot);
                continue;
            }
            message.queued = false;
            let own = message.own;
            let granted = self.config.granted;
            let Some(mut segment) = message.segment(granted.mss_bytes) else {
                continue;
            };
            let rest = own.unscheduled_bytes.saturating_sub(segment.seq);
            let class = if rest > 0 {
                own.unscheduled_class
            } else {
                own.class
            };
            if !open.contains(class.into()) {
                message.queued = true;
                let remaining = message.remaining_bytes();
                self.arbiter.hold(slot, remaining, class);
                continue;
            }
            if rest > 0 {
                // A packet is of one kind.
                let most = rest.min(cx.framing().mss_bytes.into()) as u16;
                segment.bytes = segment.bytes.min(most);
            }
            let Some(mut packet) = self.messages.data(cx, slot, segment, class) else {
                continue;
            };
            if rest == 0 {
                packet.wire_bytes = granted.wire_bytes(packet.payload_bytes);
            }
            packet.ack = own.unscheduled_bytes;
            if let Some(message) = self.messages.outgoing(slot)
                && message.has_segment()
            {
                message.queued = true;
                let remaining = message.remaining_bytes();
                self.arbiter.again(slot, remaining);
            }
            return self.arbiter.pulled(packet);
        }
        Pull::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Homa §3.4: each unscheduled priority carries about as many unscheduled bytes.
    #[test]
    fn unscheduled_priorities_have_equal_shares_of_the_bytes() {
        for (workload, count) in [("google-rpc", 3), ("hadoop", 4), ("web-search", 2)] {
            let sizes = SizeDistribution::published(workload).unwrap();
            let unscheduled = Unscheduled::new(&sizes, 100_000, 8, Some(count));
            assert_eq!(unscheduled.levels(), count);
            let mut bytes = vec![0.0; count.into()];
            for i in 0..100_000 {
                let size = sizes.quantile((f64::from(i) + 0.5) / 100_000.0);
                bytes[usize::from(unscheduled.class(size))] += size.min(100_000) as f64;
            }
            let all: f64 = bytes.iter().sum();
            for share in bytes.iter().map(|bytes| bytes / all * f64::from(count)) {
                assert!((share - 1.0).abs() < 0.03, "{workload}: {bytes:?}");
            }
        }
    }

    /// Homa §3.4: as many priorities as the share of unscheduled bytes, and at least one of each
    /// kind. Of messages of one size, a tenth of the bytes is unscheduled, or all.
    #[test]
    fn priorities_are_divided_by_the_share_of_unscheduled_bytes() {
        let levels = |size: u64| {
            let sizes = SizeDistribution::constant(size);
            Unscheduled::new(&sizes, 100_000, 8, None).levels()
        };
        assert_eq!(
            [1_000_000, 200_000, 100_000, 1_000].map(levels),
            [1, 4, 7, 7]
        );
    }

    /// Homa §3.4: few messages use the lowest priorities; the shortest one goes first.
    #[test]
    fn active_messages_take_the_lowest_priorities() {
        let config = HomaConfig {
            rtt_bytes: 1,
            granted: Framing::default(),
            unscheduled: Unscheduled {
                cutoffs: vec![100, 200],
            },
            levels: 8,
            overcommitment: 7,
            incast_messages: 0,
            incast_bytes: 0,
        };
        let classes = |active: usize| -> Vec<u8> {
            (0..active)
                .map(|rank| config.scheduled_class(rank, active))
                .collect()
        };
        assert_eq!(classes(1), [7]);
        assert_eq!(classes(3), [5, 6, 7]);
        assert_eq!(classes(5), [3, 4, 5, 6, 7]);
        // More messages than priorities: the first share the highest.
        assert_eq!(classes(7), [3, 3, 3, 4, 5, 6, 7]);
        let by_size = [1, 100, 101, 200, 201].map(|bytes| config.unscheduled.class(bytes));
        assert_eq!(by_size, [0, 0, 1, 1, 2]);
    }
}
