//! SIRD (NSDI 2025): receivers schedule with credit what they alone own, their downlink, and react
//! to what they share, senders and core.
//!
//! | mechanism | where |
//! |---|---|
//! | the first BDP of messages up to UnschT without credit, requests for longer ones (§4) | `on_start` |
//! | global and per-sender credit buckets (§4.1, algorithm 1) | `Credit` |
//! | informed overcommitment: the bucket of a sender by its mark, and by ECN (§4.2) | `Bucket` |
//! | credit at the rate of the downlink (§4.4) | `send_credits` |
//! | shortest message first, or senders in turn (§4.4) | `choose` |
//! | half of the uplink shared fairly by receivers (§4.4) | [`Policy::Half`] over receivers |
//! | the mark of a congested sender (algorithm 2) | `pull`, [`Flags::CSN`] |
//! | requests for what was lost, and credit of dead senders (§4.4) | [`message`](crate::transport::message), `on_silence` |
//! | credit of senders that answer and do not use it | `on_busy` |
//!
//! Credit names its message, where algorithm 2 has one account per receiver: so it is known what a
//! lost credit was for. It is in bytes on the link, as in the authors' simulator, and returns with
//! the data that it was for; what is sent again returns that of what was lost. A credit names the
//! byte that it allows up to, so that a later one, or a request for bytes, brings a lost one again.

mod bucket;
mod receiver;
mod sendable;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ratewright_proto::telemetry::CreditState;
use ratewright_topology::HostId;
use serde::{Deserialize, Serialize};

use self::receiver::{Credit, SenderState};
use self::sendable::Sendable;
use super::{Built, FabricNeeds, Network, Scheme, tcp};
use crate::flow::FlowId;
use crate::host::{Arbiter, Endpoint, Measured, Policy, Pull, Side, Timer, Turn};
use crate::net::queue::{Limit, ecn_threshold};
use crate::net::{Framing, QueueConfig};
use crate::packet::{Flags, Packet, PacketKind};
use crate::parameters::ParamError;
use crate::time::{Span, Time};
use crate::transport::message::{MessageConfig, Messages};
use crate::transport::{BrokenInvariant, Context, TimerId, Transport};
use crate::units::{Delay, Rate};

crate::parameters! {
    /// SIRD (NSDI 2025): credit by receivers, who are informed of congested senders and core.
    pub struct Config {
        /// Bandwidth-delay product at `bdp_rate`; in proportion to the hosts' rate (table 2:
        /// 100 kB).
        bdp_bytes: u64 = 100_000,
        /// Rate that `bdp_bytes` is for (§6.2: 100 Gbit/s).
        bdp_rate: Rate = Rate(100_000_000_000),
        /// Credit that a receiver may have outstanding, B, in bandwidth-delay products (table 2).
        credit: f64 = 1.5,
        /// Credit that it may have outstanding with one sender, at most (§4.1: 1).
        sender_credit: f64 = 1.0,
        /// Length of a message on the link from which it asks for credit, UnschT (table 2).
        unscheduled: f64 = 1.0,
        /// Queue in the core from which packets are marked, NThr (table 2).
        network_threshold: f64 = 1.25,
        /// Credit from which a sender marks its data, SThr (table 2); `inf`: never.
        sender_threshold: f64 = 0.5,
        /// Weight of the newest window in the estimates of marks (table 2).
        gain: f64 = 0.08,
        /// Least size of a sender's bucket by its marks (the authors' simulator: 0.1).
        sender_floor: f64 = 0.1,
        /// Least size of a sender's bucket by marks of the core (the authors' simulator: 0.03).
        network_floor: f64 = 0.03,
        /// Credit leaves at the rate of the receiver's link (§4.4).
        pacing: bool = true,
        /// Order of credit: "srpt", by the remaining bytes of messages, or "round-robin" by
        /// senders (§4.4).
        order: Order = Order::Srpt,
        /// Order of a sender's receivers on its link: "half", "srpt" or "round-robin" (§4.4: half
        /// is shared fairly).
        uplink: Policy = Policy::Half,
        /// Packets in the first of two priorities: "none", "control", or "unscheduled" with data
        /// of that kind (§4.4).
        first_priority: FirstPriority = FirstPriority::Unscheduled,
        /// Rules of credit: "paper" (algorithms 1 and 2) or "simulator" (that of the authors).
        rules: Rules = Rules::Paper,
        /// Interval at which a host that is idle looks for something to send, from its first look
        /// on; 0: at once (the authors' simulator: 30 ns).
        poll: Delay = Delay::from_ns(0),
        /// Silence after which missing bytes are asked for (§4.4: a few milliseconds).
        resend_time_out: Delay = Delay::from_ms(5),
        /// Every packet takes a path of its own (§4); otherwise all of a message take one.
        spray: bool = true,
    }
}

/// Rules of credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rules {
    /// Scheduled data is what takes credit, is marked and moves buckets, by its bytes.
    Paper,
    /// The authors' simulator: unscheduled messages take credit of both buckets while they come,
    /// as far as the sender's bucket has room, or for a packet. All data is marked, above SThr and
    /// if the sender has two messages. Every packet moves its sender's buckets as a full one would.
    /// Marked packets let them grow, too, and they shrink once in one and a half windows. The
    /// credit of a sender may exceed its bucket's size by a packet.
    Simulator,
}

/// Order in which a receiver gives credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// The message with the fewest remaining bytes.
    Srpt,
    /// One packet for each sender in turn, of its shortest message.
    RoundRobin,
}

/// Packets that go before others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FirstPriority {
    /// None: there is one priority.
    None,
    /// Credit, requests and other control packets.
    Control,
    /// These, and unscheduled data.
    Unscheduled,
}

impl Scheme for Config {
    const NAME: &'static str = "sird";
    const QUEUE_KEYS: &'static [&'static [&'static str]] = &[&["network_threshold"]];

    fn check(&self) -> Result<(), ParamError> {
        for (key, value) in [
            ("credit", self.credit),
            ("sender_credit", self.sender_credit),
            ("network_threshold", self.network_threshold),
            ("sender_threshold", self.sender_threshold),
        ] {
            if value.is_nan() || value <= 0.0 {
                return Err(ParamError::of(key, "it must be above 0"));
            }
        }
        for (key, value) in [
            ("gain", self.gain),
            ("sender_floor", self.sender_floor),
            ("network_floor", self.network_floor),
        ] {
            if !(value > 0.0 && value <= 1.0) {
                return Err(ParamError::of(key, "it must be above 0 and at most 1"));
            }
        }
        if self.unscheduled.is_nan() || self.unscheduled < 0.0 {
            return Err(ParamError::of("unscheduled", "it must not be below 0"));
        }
        if self.bdp_bytes == 0 {
            return Err(ParamError::of("bdp_bytes", "it must be above 0"));
        }
        if self.uplink == Policy::Fifo {
            let message = "first come, first served starves receivers of congestion's news";
            return Err(ParamError::of("uplink", message));
        }
        tcp::time_out("resend_time_out", self.resend_time_out)
    }

    fn build(self, network: &Network<'_>) -> Built {
        let host_bps = network.edge_bps();
        let bdp = self.bdp_bytes as f64 * host_bps as f64 / self.bdp_rate.0.max(1) as f64;
        let framing = network.framing;
        let packet = f64::from(framing.wire_bytes(framing.mss_bytes));
        let mark_bytes = (self.network_threshold * bdp).max(1.0) as u64;
        // The threshold is far above what may wait before a host (§4.2).
        let core = QueueConfig::EcnThreshold(ecn_threshold::Config {
            limit: Limit::default(),
            mark_packets: None,
            mark_bytes: Some(mark_bytes),
        });
        let two = self.first_priority > FirstPriority::None;
        let needs = FabricNeeds {
            classes: 1 + u8::from(two),
            switches: Some([QueueConfig::default(), core]),
            ..FabricNeeds::default()
        };
        // Less than a packet gives no credit at all.
        let bytes = |share: f64| (share * bdp).max(packet);
        let config = SirdConfig {
            credit_bytes: bytes(self.credit) as u64,
            sender_credit_bytes: bytes(self.sender_credit),
            sender_floor_bytes: bytes(self.sender_floor),
            network_floor_bytes: bytes(self.network_floor),
            bdp_bytes: bdp as u64,
            unscheduled_bytes: (self.unscheduled * bdp) as u64,
            sender_threshold_bytes: (self.sender_threshold * bdp) as u64,
            gain: self.gain,
            byte_time_ps: 8e12 / host_bps.max(1) as f64,
            pacing: self.pacing,
            order: self.order,
            uplink: self.uplink,
            unscheduled_class: u8::from(self.first_priority == FirstPriority::Control),
            scheduled_class: u8::from(two),
            simulator: self.rules == Rules::Simulator,
            poll: self.poll.0,
            framing,
        };
        let messages = MessageConfig {
            time_out: self.resend_time_out.0,
            spray: self.spray,
            control_class: 0,
        };
        Built::new(needs, move |_| {
            Ok(Sird {
                config: Arc::new(config),
                messages,
            })
        })
    }
}

/// Parameters of a host, in bytes.
#[derive(Debug)]
struct SirdConfig {
    credit_bytes: u64,
    sender_credit_bytes: f64,
    sender_floor_bytes: f64,
    network_floor_bytes: f64,
    bdp_bytes: u64,
    unscheduled_bytes: u64,
    sender_threshold_bytes: u64,
    gain: f64,
    byte_time_ps: f64,
    pacing: bool,
    order: Order,
    uplink: Policy,
    unscheduled_class: u8,
    scheduled_class: u8,
    /// The rules are the simulator's.
    simulator: bool,
    poll: Span,
    framing: Framing,
}

impl SirdConfig {
    /// Returns the time that bytes take on the host's link.
    fn time_of(&self, wire_bytes: u64) -> Span {
        Span((wire_bytes as f64 * self.byte_time_ps).round() as u64)
    }

    /// Returns the bytes on the link of the packets that carry these of a message.
    fn wire_bytes(&self, first: u64, end: u64) -> u64 {
        let mss = u64::from(self.framing.mss_bytes);
        let bytes = end.saturating_sub(first);
        let full = u64::from(self.framing.wire_bytes(self.framing.mss_bytes));
        let rest = bytes % mss;
        let last = if rest > 0 {
            u64::from(self.framing.wire_bytes(rest as u16))
        } else {
            0
        };
        (bytes / mss).saturating_mul(full).saturating_add(last)
    }

    /// Returns the bytes that a message of this length begins with without credit: none above
    /// UnschT, else what a bandwidth-delay product holds of it (§6.2.4, *Unscheduled
    /// transmissions*).
    fn prefix_bytes(&self, bytes: u64) -> u64 {
        if self.wire_bytes(0, bytes) > self.unscheduled_bytes {
            return 0;
        }
        if self.wire_bytes(0, bytes) <= self.bdp_bytes {
            return bytes;
        }
        self.whole_packets(self.bdp_bytes)
    }

    /// Returns the bytes of the full packets that this room on the link holds, and of one at least.
    fn whole_packets(&self, room_bytes: u64) -> u64 {
        let mss = u64::from(self.framing.mss_bytes);
        let full = u64::from(self.framing.wire_bytes(self.framing.mss_bytes));
        (room_bytes / full).max(1) * mss
    }

    /// Returns the bytes of a prefix for which a sender takes credit by itself, which holds so much
    /// for the receiver already: what the bucket has room for (the authors' simulator).
    fn self_credited_bytes(&self, prefix: u64, held_bytes: u64) -> u64 {
        let room_bytes = (self.sender_credit_bytes as u64).saturating_sub(held_bytes);
        if self.wire_bytes(0, prefix) <= room_bytes {
            return prefix;
        }
        prefix.min(self.whole_packets(room_bytes))
    }
}

/// State of a message at its receiver.
#[derive(Clone, Copy, Debug, Default)]
struct Received {
    /// Number of its sender among [`SirdHost::senders`].
    sender: u32,
    /// Credit that is outstanding.
    outstanding: u64,
    /// Remaining bytes with which it waits for credit.
    waits: Option<u64>,
    /// The missing bytes were asked for, and nothing came since.
    asked: bool,
    /// Requests for missing bytes that were answered by BUSY since the last new byte.
    busy_answers: u8,
}

/// State of a message at its sender.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// Number of its receiver among [`SirdHost::receivers`].
    receiver: u32,
    /// Bytes that it begins with without credit.
    prefix: u64,
    /// Byte that prefix and credit allow up to, even behind the end of a message that was stopped.
    credited: u64,
    /// Remaining bytes with which it waits among those that may send to its receiver.
    waits: Option<u64>,
}

/// A receiver, as a sender sees it: one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct ReceiverState {
    /// Messages to it that may send.
    sendable: Sendable,
    /// True while it waits for its turn.
    queued: bool,
    /// Credit for it that is not used.
    stored_bytes: u64,
}

/// SIRD on all hosts.
#[derive(Debug)]
pub struct Sird {
    config: Arc<SirdConfig>,
    messages: MessageConfig,
}

impl Transport for Sird {
    type Shared = ();
    type Endpoint = SirdHost;

    fn start(self, nodes: u32) -> ((), Vec<SirdHost>) {
        let host = |_| SirdHost {
            messages: Messages::new(self.messages),
            credit: Credit::default(),
            senders: Vec::new(),
            sender_numbers: BTreeMap::new(),
            waiting: BTreeSet::new(),
            next_credit_at: Time::ZERO,
            credit_timer: None,
            polls_from: None,
            busy_until: Time::ZERO,
            stored_bytes: 0,
            taken_bytes: 0,
            used_bytes: 0,
            returned_bytes: 0,
            self_credited_bytes: 0,
            stops: 0,
            receiver_numbers: BTreeMap::new(),
            receivers: Vec::new(),
            arbiter: Arbiter::new(self.config.uplink),
            silent: Vec::new(),
            config: Arc::clone(&self.config),
        };
        ((), (0..nodes).map(host).collect())
    }

    fn summary((): &(), hosts: &[&SirdHost]) -> Vec<(&'static str, f64)> {
        let [resends, probes] = Messages::repairs(hosts.iter().map(|host| &host.messages));
        let sum = |of: fn(&SirdHost) -> u64| hosts.iter().map(|host| of(host)).sum::<u64>() as f64;
        let most = hosts.iter().map(|host| host.credit.most).max();
        vec![
            resends,
            probes,
            ("credit_issued", sum(|host| host.credit.issued)),
            ("credit_returned", sum(|host| host.credit.returned)),
            ("credit_reclaimed", sum(|host| host.credit.reclaimed)),
            ("credit_outstanding", sum(SirdHost::with_senders)),
            ("credit_taken", sum(|host| host.taken_bytes)),
            ("credit_used", sum(|host| host.used_bytes)),
            ("credit_given_up", sum(|host| host.returned_bytes)),
            ("credit_stored", sum(|host| host.stored_bytes)),
            ("largest_credit_outstanding", most.unwrap_or(0) as f64),
        ]
    }

    fn check((): &(), hosts: &[&SirdHost]) -> Result<(), BrokenInvariant> {
        for host in hosts {
            let law = "no data comes without credit, behind its prefix (SIRD §4)";
            let unallowed = host.messages.extremes().unallowed_bytes;
            BrokenInvariant::unless_equal(law, unallowed, 0)?;
            let bound = host.config.credit_bytes;
            let law = "a receiver's credit is at most B (SIRD §4.1)";
            BrokenInvariant::unless_within(law, host.credit.most, bound)?;
            let outstanding = host.credit.outstanding();
            let law = "credit that is outstanding is with senders";
            BrokenInvariant::unless_equal(law, host.with_senders(), outstanding)?;
            let law = "credit that is outstanding is of messages";
            let received = host.messages.all_incoming();
            let of_messages = received.map(|message| message.own.outstanding).sum();
            BrokenInvariant::unless_equal(law, of_messages, outstanding)?;
            let law = "credit that was taken is used, given up or stored";
            let accounted = host.used_bytes + host.returned_bytes + host.stored_bytes;
            BrokenInvariant::unless_equal(law, accounted, host.taken_bytes)?;
            let law = "credit that is stored is for receivers";
            let for_receivers = host.receivers.iter().map(|receiver| receiver.stored_bytes);
            BrokenInvariant::unless_equal(law, for_receivers.sum(), host.stored_bytes)?;
        }
        SirdHost::check_conservation(hosts)
    }
}

/// SIRD at one host.
#[derive(Debug)]
pub struct SirdHost {
    config: Arc<SirdConfig>,
    messages: Messages<Sent, Received>,
    credit: Credit,
    senders: Vec<SenderState>,
    /// Numbers of hosts among them.
    sender_numbers: BTreeMap<HostId, u32>,
    /// Messages that wait for credit: remaining bytes, flow, slot.
    waiting: BTreeSet<(u64, u32, u32)>,
    /// Time at which the pacer lets the next credit go.
    next_credit_at: Time,
    credit_timer: Option<TimerId>,
    /// Time of its first look for something to send, and end of what it has sent last.
    polls_from: Option<Time>,
    busy_until: Time,
    /// Credit that this host has and has not used.
    stored_bytes: u64,
    /// Credit that it took so far, used, and gave up with messages that were stopped.
    taken_bytes: u64,
    used_bytes: u64,
    returned_bytes: u64,
    /// Credit of what it took that was its own, for prefixes (the authors' simulator).
    self_credited_bytes: u64,
    /// Messages that were stopped.
    stops: u64,
    /// Numbers of hosts among [`receivers`](Self::receivers).
    receiver_numbers: BTreeMap<HostId, u32>,
    receivers: Vec<ReceiverState>,
    arbiter: Arbiter,
    /// Messages that were silent; between two calls empty.
    silent: Vec<u32>,
}

/// Kind of the pacer's timer.
const CREDIT: u8 = Messages::<Sent, Received>::TIMER + 1;
/// Kind of the timers of requests that wait for the host's next look.
const REQUEST: u8 = CREDIT + 1;

// The ledgers of all hosts.
impl SirdHost {
    /// Returns the credit that is outstanding, by senders.
    fn with_senders(&self) -> u64 {
        self.senders.iter().map(|sender| sender.outstanding).sum()
    }

    /// Checks that credit that receivers issued was taken by senders, or is under way to one or
    /// lost on its way: of each message, what the receiver allowed and the sender does not know.
    fn check_conservation(hosts: &[&Self]) -> Result<(), BrokenInvariant> {
        let sum = |of: fn(&Self) -> u64| hosts.iter().map(|host| of(host)).sum::<u64>();
        let (noted, own) = (
            sum(|host| host.credit.unscheduled),
            sum(|host| host.self_credited_bytes),
        );
        let law = "receivers note no credit of senders' own that none took";
        BrokenInvariant::unless_within(law, noted, own)?;
        let known: BTreeMap<FlowId, u64> = (hosts.iter())
            .flat_map(|host| host.messages.all_outgoing())
            .map(|message| (message.id, message.own.credited))
            .collect();
        let of_host = |host: &&Self| -> u64 {
            let messages = host.messages.all_incoming().map(|message| {
                let known = known.get(&message.id).copied();
                let from = known.unwrap_or(message.allowed);
                host.config.wire_bytes(from, message.allowed)
            });
            messages.sum()
        };
        let under_way: u64 = hosts.iter().map(of_host).sum();
        let issued = sum(|host| host.credit.issued) - noted;
        let accounted = sum(|host| host.taken_bytes) - own + under_way;
        if sum(|host| host.stops) > 0 {
            // What was under way when both ends were done has no message.
            let law = "senders take no credit that was not issued";
            return BrokenInvariant::unless_within(law, accounted, issued);
        }
        let law = "credit that was issued was taken, is under way, or was lost";
        BrokenInvariant::unless_equal(law, accounted, issued)
    }
}

impl SirdHost {
    /// Returns the time at which the host finds what there is to send now, if it is idle.
    fn next_poll(&mut self, now: Time) -> Time {
        let poll = self.config.poll;
        if poll == Span::ZERO {
            return now;
        }
        let from = *self.polls_from.get_or_insert(now + poll);
        if now <= from {
            return from;
        }
        from + Span(now.since(from).0.div_ceil(poll.0) * poll.0)
    }
}

// A sender.
impl SirdHost {
    /// Puts a message among those that may send to its receiver, or at its new place there, or
    /// takes it out; and the receiver among those that wait for their turn.
    fn enqueue(&mut self, cx: &mut Context<'_>, slot: u32) {
        let Some(message) = self.messages.outgoing(slot) else {
            return;
        };
        let waits = message.has_segment().then(|| message.remaining_bytes());
        let waited = std::mem::replace(&mut message.own.waits, waits);
        let (flow, number) = (message.id.0, message.own.receiver);
        let receiver = &mut self.receivers[number as usize];
        if waited != waits {
            if let Some(remaining) = waited {
                receiver.sendable.remove((remaining, flow, slot));
            }
            if let Some(remaining) = waits {
                receiver.sendable.insert((remaining, flow, slot));
            }
        }
        let Some((shortest, ..)) = receiver.sendable.first() else {
            return;
        };
        if receiver.queued {
            self.arbiter.update(number, shortest);
        } else {
            receiver.queued = true;
            self.arbiter.ready(number, shortest);
        }
        cx.wake();
    }

    /// Takes a message out of those that may send.
    fn leave(&mut self, slot: u32) {
        if let Some(message) = self.messages.outgoing(slot)
            && let Some(remaining) = message.own.waits.take()
        {
            let receiver = &mut self.receivers[message.own.receiver as usize];
            receiver.sendable.remove((remaining, message.id.0, slot));
        }
    }

    /// Allows what a packet of the receiver says, and counts the credit for it.
    fn allow(&mut self, slot: u32, end: u64) {
        let Some(message) = self.messages.outgoing(slot) else {
            return;
        };
        let before = message.allowed();
        message.allow(end);
        let stored = self.config.wire_bytes(before, message.allowed());
        let credited = message.own.credited;
        message.own.credited = credited.max(end);
        let taken = self.config.wire_bytes(credited, message.own.credited);
        let receiver = message.own.receiver;
        self.store(receiver, stored);
        self.taken_bytes += taken;
        // Credit for bytes behind the end of a message that was stopped.
        self.returned_bytes += taken - stored;
    }

    /// Asks the receiver of a message for credit.
    fn request(&mut self, cx: &mut Context<'_>, slot: u32) {
        let Some(message) = self.messages.outgoing(slot) else {
            return;
        };
        let ends = (message.id, message.dst);
        let request = self.messages.control(cx, PacketKind::Request, ends, [0; 2]);
        cx.send(request);
    }

    /// Adds credit for a receiver to what is stored.
    fn store(&mut self, receiver: u32, bytes: u64) {
        self.stored_bytes += bytes;
        self.receivers[receiver as usize].stored_bytes += bytes;
    }

    /// Takes credit for a receiver out of what is stored.
    fn draw(&mut self, receiver: u32, bytes: u64) {
        self.stored_bytes -= bytes;
        self.receivers[receiver as usize].stored_bytes -= bytes;
    }

    /// Returns true if data that leaves now, of so many bytes on the link, tells of a congested
    /// sender (algorithm 2, line 7). In the authors' simulator, its own credit does not count, as
    /// the most shows that is stored there, and a sender of one message never is congested.
    fn is_congested(&self, wire_bytes: u64) -> bool {
        let threshold = self.config.sender_threshold_bytes;
        if !self.config.simulator {
            return self.stored_bytes >= threshold;
        }
        let mut unsent =
            (self.messages.all_outgoing()).filter(|message| message.unsent_bytes() > 0);
        self.stored_bytes.saturating_sub(wire_bytes) > threshold && unsent.nth(1).is_some()
    }
}

impl Endpoint for SirdHost {
    type Shared = ();

    /// The ledger is the receiver's: credit under way to a sender, or back with its data, counts as
    /// accumulated there.
    fn measure(&self, measured: &mut Measured) {
        let incoming = self.messages.all_incoming();
        incoming.for_each(|message| measured.sender(message.src));
        for (host, number) in &self.sender_numbers {
            let sender = &self.senders[*number as usize];
            let mut incoming = self.messages.all_incoming();
            if sender.issued == 0 || !incoming.any(|message| message.src == *host) {
                continue;
            }
            measured.credit(CreditState {
                sender: host.0,
                granted_bytes: sender.issued,
                consumed_bytes: sender.returned,
                accumulated_bytes: sender.outstanding,
                csn_marked_packets: sender.csn_packets,
                packets: sender.packets,
                sender_bucket_bytes: sender.limit() as u64,
                global_bucket_bytes: self.config.credit_bytes,
                ..CreditState::default()
            });
        }
    }

    fn on_start(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        let spec = cx.flow(flow);
        let (bytes, dst) = (spec.bytes, spec.dst);
        let mut prefix = self.config.prefix_bytes(bytes);
        let next = self.receivers.len() as u32;
        let receiver = *self.receiver_numbers.entry(dst).or_insert(next);
        if receiver == next {
            self.receivers.push(ReceiverState::default());
        }
        if self.config.simulator && prefix > 0 {
            let held_bytes = self.receivers[receiver as usize].stored_bytes;
            prefix = self.config.self_credited_bytes(prefix, held_bytes);
            let bytes = self.config.wire_bytes(0, prefix);
            self.store(receiver, bytes);
            self.taken_bytes += bytes;
            self.self_credited_bytes += bytes;
        }
        let own = Sent {
            receiver,
            prefix,
            credited: prefix,
            waits: None,
        };
        let slot = self.messages.start(cx, flow, prefix, own);
        if prefix == 0 {
            let at = self.next_poll(cx.now());
            if at > cx.now() {
                let kind = REQUEST;
                cx.timer(at, Timer { kind, slot });
            } else {
                self.request(cx, slot);
            }
        } else {
            self.enqueue(cx, slot);
        }
    }

    fn on_stop(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        let slot = cx.slot(flow, Side::Sender);
        let before = self.messages.outgoing(slot).map(|m| m.allowed());
        let Some(slot) = self.messages.stop(cx, flow) else {
            return;
        };
        // Credit for bytes that will not be sent is of no use.
        if let (Some(before), Some(message)) = (before, self.messages.outgoing(slot)) {
            // The prefix has no credit but in the simulator.
            let prefix = if self.config.simulator {
                0
            } else {
                message.own.prefix
            };
            let sent = message.sent_bytes().max(prefix);
            let unused = self.config.wire_bytes(sent, before);
            let used = self.config.wire_bytes(sent, message.allowed());
            // The end's byte has credit if any byte behind what was sent has.
            let receiver = message.own.receiver;
            self.draw(receiver, unused - used);
            self.returned_bytes += unused - used;
            self.stops += 1;
        }
        self.enqueue(cx, slot);
    }

    fn on_packet(&mut self, cx: &mut Context<'_>, packet: &mut Packet) {
        match packet.kind {
            PacketKind::Data | PacketKind::Request | PacketKind::Probe => self.on_data(cx, packet),
            PacketKind::Grant => {
                if self.config.simulator
                    && let Some(sender) = self.sender_numbers.get(&packet.src)
                {
                    // A receiver may be a sender, too.
                    self.heed_marks(*sender, packet);
                }
                if let Some(slot) = self.messages.sent_by(cx, packet) {
                    self.allow(slot, packet.ack);
                    self.enqueue(cx, slot);
                }
            }
            PacketKind::Ack => {
                if let Some(slot) = self.messages.sent_by(cx, packet) {
                    self.leave(slot);
                    self.messages.on_ack(cx, packet);
                }
            }
            PacketKind::Resend => {
                if let Some(slot) = self.messages.sent_by(cx, packet) {
                    self.allow(slot, packet.ack);
                    self.messages.on_resend(cx, packet);
                    self.enqueue(cx, slot);
                }
            }
            PacketKind::Busy => {
                self.messages.sent_by(cx, packet);
                if let Some(slot) = self.messages.received_of(cx, packet) {
                    self.on_busy(slot);
                    self.send_credits(cx);
                }
            }
            _ => {}
        }
    }

    fn on_timer(&mut self, cx: &mut Context<'_>, timer: Timer) {
        if timer.kind == CREDIT {
            self.credit_timer = None;
            return self.send_credits(cx);
        }
        if timer.kind == REQUEST {
            return self.request(cx, timer.slot);
        }
        let mut silent = std::mem::take(&mut self.silent);
        self.messages.on_timer(cx, |_, slot| silent.push(slot));
        for slot in silent.drain(..) {
            self.on_silence(slot);
        }
        self.silent = silent;
        self.send_credits(cx);
    }

    fn pull(&mut self, cx: &mut Context<'_>) -> Pull {
        let open = cx.open_classes();
        self.arbiter.release(open);
        if cx.now() > self.busy_until && !self.arbiter.is_empty() {
            let at = self.next_poll(cx.now());
            if at > cx.now() {
                return Pull::At(at);
            }
        }
        while let Turn::Slot(number) = self.arbiter.next(cx.now()) {
            let receiver = &mut self.receivers[number as usize];
            receiver.queued = false;
            let Some((remaining, _, slot)) = receiver.sendable.first() else {
                continue;
            };
            let mss_bytes = cx.framing().mss_bytes;
            let Some(message) = self.messages.outgoing(slot) else {
                continue;
            };
            let (prefix, segment) = (message.own.prefix, message.segment(mss_bytes));
            let scheduled = segment.is_some_and(|segment| segment.seq >= prefix);
            let class = if scheduled {
                self.config.scheduled_class
            } else {
                self.config.unscheduled_class
            };
            if !open.contains(class.into()) {
                self.receivers[number as usize].queued = true;
                self.arbiter.hold(number, remaining, class);
                continue;
            }
            let Some(segment) = segment else {
                continue;
            };
            let wire_bytes = self.config.framing.wire_bytes(segment.bytes);
            let is_congested = self.is_congested(wire_bytes.into());
            let Some(mut packet) = self.messages.data(cx, slot, segment, class) else {
                continue;
            };
            packet.flags.insert(Flags::ECT);
            if self.config.simulator {
                packet.ack = prefix;
            }
            if scheduled || self.config.simulator {
                // Algorithm 2, lines 7 and 8.
                if is_congested {
                    packet.flags.insert(Flags::CSN);
                }
                if !packet.flags.contains(Flags::RETRANSMIT) {
                    let used = u64::from(packet.wire_bytes);
                    self.draw(number, used);
                    self.used_bytes += used;
                }
            }
            self.enqueue(cx, slot);
            self.busy_until = cx.now() + self.config.time_of(packet.wire_bytes.into());
            return self.arbiter.pulled(packet);
        }
        Pull::Nothing
    }
}
