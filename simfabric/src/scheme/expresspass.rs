//! ExpressPass (SIGCOMM 2017): a receiver sends credit packets, and each lets its sender send one
//! packet of data. Switches limit the rate of credit, and drop what is too much of it, so that the
//! data that comes back fits the links.
//!
//! | mechanism | where |
//! |---|---|
//! | credit's own queue, and its share of every link (§3.1) | `credit_class` |
//! | a data packet for each credit, in the order of credit (§3.1) | `pull` |
//! | jitter between credits, and credits of several sizes (§3.1) | `send_credit` |
//! | credit feedback: loss of credit against a target (algorithm 1) | `Feedback` |
//! | the way of data is that of its credit (§3.1) | symmetric ECMP |
//!
//! A message's length is known to its receiver, whose credit stops with the last byte. Data that is
//! lost all the same is asked for by [`message`](crate::transport::message), and sent by credit.

use std::sync::Arc;

use rand::RngExt as _;
use serde::{Deserialize, Serialize};

use super::{Built, FabricNeeds, Network, Scheme, tcp};
use crate::flow::FlowId;
use crate::host::{Arbiter, Endpoint, Measured, Policy, Pull, Timer, Turn};
use crate::net::QueueConfig;
use crate::net::queue::{ClassConfig, Limit, Service, ShaperConfig, drop_tail};
use crate::packet::{Packet, PacketKind};
use crate::parameters::ParamError;
use crate::time::{Span, Time};
use crate::transport::message::{Arrival, MessageConfig, Messages};
use crate::transport::{BrokenInvariant, Context, TimerId, Transport};
use crate::units::Delay;

/// Class of credit packets, before all others.
const CREDIT_CLASS: u8 = 0;
/// Class of all other packets.
const DATA_CLASS: u8 = 1;
/// Words of a request: credit is to come, or to stop ([`Rules::Simulator`]).
const COME: u64 = 0;
const STOP: u64 = 1;
/// Bytes of a credit packet on the link, on average (§3.1).
const CREDIT_BYTES: f64 = 84.0;

crate::parameters! {
    /// ExpressPass (SIGCOMM 2017): data is sent by credit, whose rate switches limit.
    pub struct Config {
        /// First rate of a message's credit, as a share of the largest (α; SIRD table 2: 1/16).
        initial_rate: f64 = 1.0 / 16.0,
        /// First aggressiveness of increases (w_init; SIRD table 2: 1/16).
        initial_weight: f64 = 1.0 / 16.0,
        /// Least aggressiveness (w_min, §3.3: 0.01).
        least_weight: f64 = 0.01,
        /// Largest aggressiveness (w_max, §3.3: 0.5).
        largest_weight: f64 = 0.5,
        /// Share of credit that may be lost (§3.3: 0.1; SIRD table 2: 1/8).
        target_loss: f64 = 0.125,
        /// Rules of credit feedback: "paper" (algorithm 1) or "simulator" (that of the authors, and
        /// of SIRD's).
        rules: Rules = Rules::Paper,
        /// Credit packets that a port holds (SIRD table 2: 8).
        credit_packets: u32 = 8,
        /// Bytes of credit that leave a port at once, beyond a packet (SIRD's simulator: a bucket
        /// of two).
        credit_burst_bytes: u32 = 84,
        /// Jitter of the time between two credits, as a share of it, up and down (SIRD table 2).
        jitter: f64 = 0.1,
        /// Least bytes of a credit packet (SIRD table 2: 76).
        least_credit_bytes: u16 = 76,
        /// Largest bytes of a credit packet (SIRD table 2: 92).
        largest_credit_bytes: u16 = 92,
        /// Silence after which missing bytes are asked for; the paper's network loses none.
        resend_time_out: Delay = Delay::from_ms(5),
    }
}

/// Rules of credit feedback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rules {
    /// Algorithm 1: towards more than the link takes, by a weight that approaches the largest.
    Paper,
    /// The authors' simulator: towards what the link takes, by a weight that grows by steps; the
    /// target falls with the rate, and messages of few packets begin more slowly. What passed is
    /// counted over time. Senders stop credit as soon as that of a round trip would do for the
    /// rest, and ask again, and begin anew, if it did not. Ports hold credit by its bytes.
    Simulator,
}

impl Config {
    /// The class of credit on a link: each credit and the packet of data that it lets through take
    /// the whole of the link in both directions together.
    fn credit_class(&self, packet_bytes: u16) -> ClassConfig {
        ClassConfig {
            queue: QueueConfig::DropTail(drop_tail::Config {
                limit: match self.rules {
                    Rules::Paper => Limit::packets(self.credit_packets),
                    Rules::Simulator => {
                        Limit::bytes((f64::from(self.credit_packets) * CREDIT_BYTES) as u64)
                    }
                },
            }),
            service: Service::Strict,
            shaper: Some(ShaperConfig {
                share: CREDIT_BYTES / (CREDIT_BYTES + f64::from(packet_bytes)),
                burst_bytes: self.credit_burst_bytes,
            }),
        }
    }
}

impl Scheme for Config {
    const NAME: &'static str = "expresspass";
    const QUEUE_KEYS: &'static [&'static [&'static str]] =
        &[&["credit_packets", "credit_burst_bytes"]];

    fn check(&self) -> Result<(), ParamError> {
        for (key, value) in [
            ("initial_rate", self.initial_rate),
            ("initial_weight", self.initial_weight),
            ("least_weight", self.least_weight),
            ("largest_weight", self.largest_weight),
        ] {
            if !(value > 0.0 && value <= 1.0) {
                return Err(ParamError::of(key, "it must be above 0 and at most 1"));
            }
        }
        if self.least_weight > self.largest_weight {
            let message = "it must not be above `largest_weight`";
            return Err(ParamError::of("least_weight", message));
        }
        for (key, value) in [("target_loss", self.target_loss), ("jitter", self.jitter)] {
            if !(0.0..1.0).contains(&value) {
                return Err(ParamError::of(key, "it must be from 0 to below 1"));
            }
        }
        if !(1..=self.largest_credit_bytes).contains(&self.least_credit_bytes) {
            let message = "it must be from 1 to `largest_credit_bytes`";
            return Err(ParamError::of("least_credit_bytes", message));
        }
        tcp::buffer("credit_packets", self.credit_packets.into())?;
        tcp::time_out("resend_time_out", self.resend_time_out)
    }

    fn build(self, network: &Network<'_>) -> Built {
        let packet_bytes = network.framing.wire_bytes(network.framing.mss_bytes);
        let classes = vec![self.credit_class(packet_bytes), ClassConfig::default()];
        let queue = QueueConfig::Classes(classes);
        let needs = FabricNeeds {
            switches: Some([queue.clone(), queue.clone()]),
            hosts: Some(queue),
            symmetric: true,
            ..FabricNeeds::default()
        };
        // Time of a credit and of its data on the link of a host.
        let pair_bits = (CREDIT_BYTES + f64::from(packet_bytes)) * 8.0;
        let config = ExpressPassConfig {
            least_gap: Span::from_secs_f64(pair_bits / network.edge_bps().max(1) as f64),
            jitter: self.jitter,
            credit_bytes: [self.least_credit_bytes, self.largest_credit_bytes],
            feedback: FeedbackConfig {
                initial_rate: self.initial_rate,
                initial_weight: self.initial_weight,
                weights: [self.least_weight, self.largest_weight],
                target_loss: self.target_loss,
                rules: self.rules,
            },
        };
        let messages = MessageConfig {
            time_out: self.resend_time_out.0,
            spray: false,
            control_class: DATA_CLASS,
        };
        Built::new(needs, move |_| {
            Ok(ExpressPass {
                config: Arc::new(config),
                messages,
            })
        })
    }
}

/// Parameters of credit feedback.
#[derive(Clone, Copy, Debug)]
struct FeedbackConfig {
    initial_rate: f64,
    initial_weight: f64,
    weights: [f64; 2],
    target_loss: f64,
    rules: Rules,
}

/// Credit feedback of a message (algorithm 1). Rates are shares of the largest.
#[derive(Clone, Copy, Debug)]
struct Feedback {
    rate: f64,
    weight: f64,
    /// The weight may grow at the next increase.
    was_increasing: bool,
}

impl Feedback {
    /// Rate of credit of a sender that does not answer: one in as many that would fit.
    const LEAST_RATE: f64 = 1e-4;
    /// The authors' simulator: packets from which a message begins at the first rate, and step by
    /// which its weight grows.
    const FULL_START_PACKETS: f64 = 40.0;
    const WEIGHT_STEP: f64 = 0.05;

    /// Begins a message of so many packets.
    fn new(config: &FeedbackConfig, packets: u64) -> Self {
        let start = match config.rules {
            Rules::Paper => 1.0,
            Rules::Simulator => (packets as f64 / Self::FULL_START_PACKETS).min(1.0),
        };
        Self {
            rate: config.initial_rate * start,
            weight: config.initial_weight,
            was_increasing: false,
        }
    }

    /// Takes the share of credit that was lost in a round trip or more, and the rate of the credit
    /// that came back in that time. The rate stays at least `least_rate`.
    fn update(&mut self, loss: f64, passed: f64, least_rate: f64, config: &FeedbackConfig) {
        let [least, most] = config.weights;
        let (target, headroom) = match config.rules {
            Rules::Paper => (config.target_loss, 1.0 + config.target_loss),
            Rules::Simulator => ((1.0 - self.rate) * config.target_loss, 1.0),
        };
        if loss <= target {
            if self.was_increasing {
                self.weight = match config.rules {
                    Rules::Paper => f64::midpoint(self.weight, most),
                    Rules::Simulator => (self.weight + Self::WEIGHT_STEP).min(most),
                };
            }
            self.rate = (1.0 - self.weight) * self.rate + self.weight * headroom;
            self.was_increasing = true;
        } else {
            self.rate = match config.rules {
                Rules::Paper => self.rate * (1.0 - loss) * (1.0 + target),
                Rules::Simulator => (passed * (1.0 + target)).min(self.rate),
            };
            self.weight = (self.weight / 2.0).max(least);
            self.was_increasing = false;
        }
        self.rate = self.rate.max(least_rate).min(headroom);
    }
}

/// Parameters of a host.
#[derive(Debug)]
struct ExpressPassConfig {
    /// Time between two credits at the largest rate.
    least_gap: Span,
    jitter: f64,
    credit_bytes: [u16; 2],
    feedback: FeedbackConfig,
}

/// ExpressPass on all hosts.
#[derive(Debug)]
pub struct ExpressPass {
    config: Arc<ExpressPassConfig>,
    messages: MessageConfig,
}

impl Transport for ExpressPass {
    type Shared = ();
    type Endpoint = ExpressPassHost;

    fn start(self, nodes: u32) -> ((), Vec<ExpressPassHost>) {
        let host = |_| ExpressPassHost {
            config: Arc::clone(&self.config),
            messages: Messages::new(self.messages),
            arbiter: Arbiter::new(Policy::RoundRobin),
            counts: Counts::default(),
            silent: Vec::new(),
        };
        ((), (0..nodes).map(host).collect())
    }

    fn summary((): &(), hosts: &[&ExpressPassHost]) -> Vec<(&'static str, f64)> {
        let [resends, probes] = Messages::repairs(hosts.iter().map(|host| &host.messages));
        let sum = |of: fn(&Counts) -> u64| {
            let counts = hosts.iter().map(|host| of(&host.counts));
            counts.sum::<u64>() as f64
        };
        vec![
            resends,
            probes,
            ("credits_sent", sum(|counts| counts.sent)),
            ("credits_used", sum(|counts| counts.used)),
            ("credits_wasted", sum(|counts| counts.wasted)),
        ]
    }

    fn check((): &(), hosts: &[&ExpressPassHost]) -> Result<(), BrokenInvariant> {
        let (mut sent, mut came) = (0, 0);
        for host in hosts {
            let counts = host.counts;
            let messages = host.messages.all_outgoing();
            let held: u64 = messages.map(|message| u64::from(message.own.credits)).sum();
            let law = "a credit that came brought data, was in vain, or waits (ExpressPass §3.1)";
            let accounted = counts.used + counts.wasted + held;
            BrokenInvariant::unless_equal(law, accounted, counts.came)?;
            sent += counts.sent;
            came += counts.came;
        }
        let law = "no credit came that was not sent";
        BrokenInvariant::unless_within(law, came, sent)
    }
}

/// Credits that a host sent, that came to it, that it used and that it could not use.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    sent: u64,
    came: u64,
    used: u64,
    wasted: u64,
}

/// State of a message at its sender.
#[derive(Clone, Debug, Default)]
struct Sent {
    /// Credits that wait for their turn on the link.
    credits: u32,
    /// Number and sending time of the latest of them.
    number: u64,
    stamp: Time,
    /// Its view of the credit, by which it stops it ([`Rules::Simulator`]).
    stop: Option<Box<EarlyStop>>,
}

/// A sender's view of its credit ([`Rules::Simulator`]).
#[derive(Clone, Copy, Debug)]
struct EarlyStop {
    phase: Phase,
    /// Time of the last request.
    asked_at: Time,
    /// Time from a request to its first credit.
    rtt: Span,
    /// Begin of the present round trip, and credits since.
    since: Time,
    credits: u64,
}

/// Phase of a sender's credit ([`Rules::Simulator`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// It has asked for credit.
    Asked,
    /// Credit comes.
    Comes,
    /// It has stopped credit.
    Stopped,
}

impl EarlyStop {
    fn new(now: Time) -> Self {
        Self {
            phase: Phase::Asked,
            asked_at: now,
            rtt: Span::ZERO,
            since: now,
            credits: 0,
        }
    }

    /// Takes a credit, with the packets that remain behind those that have credit. Returns true if
    /// credit is to stop.
    fn on_credit(&mut self, now: Time, packets: u64) -> bool {
        self.credits += 1;
        if self.phase == Phase::Asked {
            self.phase = Phase::Comes;
            self.rtt = now.since(self.asked_at);
            self.since = now;
        }
        if self.phase == Phase::Stopped || packets == 0 || now.since(self.since) < self.rtt {
            return false;
        }
        let is_enough = self.credits >= packets;
        if is_enough {
            self.phase = Phase::Stopped;
        }
        (self.credits, self.since) = (0, now);
        is_enough
    }
}

/// State of a message at its receiver.
#[derive(Clone, Copy, Debug)]
struct Received {
    feedback: Feedback,
    timer: Option<TimerId>,
    /// Number of the next credit, from 1 on.
    next_number: u64,
    /// Number of the latest credit that came back with data.
    echoed: u64,
    /// Credits that came back, and that did not, since the last update.
    returned: u64,
    lost: u64,
    /// Smoothed time from a credit to its data; 0: not measured yet.
    rtt: Span,
    updated_at: Time,
    /// The missing bytes were asked for, and nothing came since.
    asked: bool,
    /// Its sender has stopped credit ([`Rules::Simulator`]).
    stopped: bool,
}

impl Received {
    /// Takes the credit that data came by: its number, and the time at which it was sent.
    fn on_data(&mut self, now: Time, packet: &Packet, config: &ExpressPassConfig) {
        if packet.ack <= self.echoed {
            return;
        }
        self.lost += packet.ack - self.echoed - 1;
        self.returned += 1;
        self.echoed = packet.ack;
        let sample = now.since(packet.stamp);
        self.rtt = if self.rtt == Span::ZERO {
            sample
        } else {
            self.rtt.mul_f64(0.8) + sample.mul_f64(0.2)
        };
        if config.feedback.rules == Rules::Paper {
            self.update(now, config);
        }
    }

    /// Takes a request, by which credit stops, or begins anew for so many packets if it had.
    fn on_request(&mut self, now: Time, word: u64, packets: u64, config: &FeedbackConfig) {
        let stops = word == STOP;
        if self.stopped && !stops {
            self.feedback = Feedback::new(config, packets);
            self.updated_at = now;
        }
        self.stopped = stops;
    }

    /// Updates the rate of credit, if a round trip has passed and some came back.
    fn update(&mut self, now: Time, config: &ExpressPassConfig) {
        let elapsed = now.since(self.updated_at);
        if self.rtt == Span::ZERO || elapsed < self.rtt || self.returned == 0 {
            return;
        }
        let loss = self.lost as f64 / (self.lost + self.returned) as f64;
        let gap = config.least_gap.as_secs_f64();
        let passed = self.returned as f64 * gap / elapsed.as_secs_f64();
        // A credit in a round trip, by which it hears of more.
        let least_rate = gap / self.rtt.as_secs_f64();
        self.feedback
            .update(loss, passed, least_rate, &config.feedback);
        (self.lost, self.returned, self.updated_at) = (0, 0, now);
    }
}

/// ExpressPass at one host.
#[derive(Debug)]
pub struct ExpressPassHost {
    config: Arc<ExpressPassConfig>,
    messages: Messages<Sent, Received>,
    /// Messages that have credit.
    arbiter: Arbiter,
    counts: Counts,
    /// Messages that were silent; between two calls empty.
    silent: Vec<u32>,
}

/// Kind of the timers of credit, one for each message that this host receives.
const CREDIT: u8 = Messages::<Sent, Received>::TIMER + 1;
/// Kind of the timers after which a sender asks again for the credit that it stopped.
const ASK_AGAIN: u8 = CREDIT + 1;

impl ExpressPassHost {
    /// Takes data, a request, or a probe, any of which may be the first that comes of a message.
    fn on_data(&mut self, cx: &mut Context<'_>, packet: &Packet) {
        let config = &self.config.feedback;
        let now = cx.now();
        let own = |cx: &mut Context<'_>| {
            let bytes = cx.flow(packet.flow).bytes;
            let mss_bytes = u64::from(cx.framing().mss_bytes.max(1));
            let received = Received {
                feedback: Feedback::new(config, bytes.div_ceil(mss_bytes)),
                timer: None,
                next_number: 1,
                echoed: 0,
                returned: 0,
                lost: 0,
                rtt: Span::ZERO,
                updated_at: now,
                asked: false,
                stopped: false,
            };
            // All of it may come, by credit.
            (bytes, received)
        };
        match self.messages.on_data(cx, packet, own) {
            Arrival::Late => {}
            Arrival::Complete(_, _, message) => {
                if let Some(timer) = message.own.timer {
                    cx.cancel(timer);
                }
            }
            Arrival::More(slot, _) => {
                let Some(message) = self.messages.incoming(slot) else {
                    return;
                };
                let remaining = message.remaining_bytes();
                let own = &mut message.own;
                own.asked = false;
                match packet.kind {
                    PacketKind::Data => own.on_data(now, packet, &self.config),
                    PacketKind::Request => {
                        let mss_bytes = u64::from(cx.framing().mss_bytes.max(1));
                        own.on_request(now, packet.ack, remaining.div_ceil(mss_bytes), config);
                    }
                    _ => {}
                }
                if own.stopped {
                    if let Some(timer) = own.timer.take() {
                        cx.cancel(timer);
                    }
                } else if own.timer.is_none() {
                    self.send_credit(cx, slot);
                }
            }
        }
    }

    /// Sends a credit of a message, and sets the timer of the next one.
    fn send_credit(&mut self, cx: &mut Context<'_>, slot: u32) {
        let jitter = self.config.jitter;
        let factor = 1.0 + jitter * cx.rng().random_range(-1.0..=1.0);
        let [least, most] = self.config.credit_bytes;
        let wire_bytes = cx.rng().random_range(least..=most);
        let Some(message) = self.messages.incoming(slot) else {
            return;
        };
        let own = &mut message.own;
        if self.config.feedback.rules == Rules::Simulator {
            own.update(cx.now(), &self.config);
        }
        let number = own.next_number;
        own.next_number += 1;
        let gap = self.config.least_gap.mul_f64(factor / own.feedback.rate);
        let timer = cx.timer_in(gap, Timer { kind: CREDIT, slot });
        own.timer = Some(timer);
        let ends = (message.id, message.src);
        let mut credit = self
            .messages
            .control(cx, PacketKind::Grant, ends, [number, 0]);
        credit.class = CREDIT_CLASS;
        credit.wire_bytes = wire_bytes;
        self.counts.sent += 1;
        cx.send(credit);
    }

    /// Takes a credit: one packet of the message may leave.
    fn on_credit(&mut self, cx: &mut Context<'_>, packet: &Packet) {
        self.counts.came += 1;
        let mss = u64::from(cx.framing().mss_bytes);
        let message = self.messages.sent_by(cx, packet);
        let message = message.and_then(|slot| Some((slot, self.messages.outgoing(slot)?)));
        let Some((slot, message)) = message.filter(|(_, m)| m.remaining_bytes() > 0) else {
            self.counts.wasted += 1;
            return;
        };
        let own = &mut message.own;
        own.credits += 1;
        (own.number, own.stamp) = (packet.seq, packet.stamp);
        let credits = u64::from(own.credits);
        let end = message.sent_bytes().saturating_add(credits * mss);
        message.allow(end);
        let now = cx.now();
        let stops = message.own.stop.as_mut().and_then(|stop| {
            let packets = message.bytes.saturating_sub(end).div_ceil(mss.max(1));
            stop.on_credit(now, packets).then_some(stop.rtt)
        });
        if !message.queued {
            message.queued = true;
            let remaining = message.remaining_bytes();
            self.arbiter.ready(slot, remaining);
        }
        if let Some(rtt) = stops {
            let kind = ASK_AGAIN;
            cx.timer_in(Span(2 * rtt.0), Timer { kind, slot });
            self.request(cx, packet.flow, STOP);
        }
        cx.wake();
    }

    /// Asks again for credit, if that which came before it stopped was not enough.
    fn ask_again(&mut self, cx: &mut Context<'_>, slot: u32) {
        let now = cx.now();
        let Some(message) = self.messages.outgoing(slot) else {
            return;
        };
        let (id, misses) = (message.id, message.unsent_bytes() > 0 && !message.done);
        let stop = message.own.stop.as_mut();
        // The slot may be another message's by now.
        let Some(stop) = stop.filter(|stop| misses && stop.phase == Phase::Stopped) else {
            return;
        };
        (stop.phase, stop.asked_at) = (Phase::Asked, now);
        self.request(cx, id, COME);
    }

    /// Takes note of a message that was silent for a time-out. A sender that does not answer a
    /// request for bytes either gets the least credit, until something of it comes.
    fn on_silence(&mut self, cx: &mut Context<'_>, slot: u32) {
        if let Some(message) = self.messages.incoming(slot)
            && std::mem::replace(&mut message.own.asked, true)
        {
            let own = &mut message.own;
            own.feedback.rate = Feedback::LEAST_RATE;
            // A request to go on may have been lost.
            if std::mem::take(&mut own.stopped) {
                self.send_credit(cx, slot);
            }
        }
    }

    /// Asks the receiver of a message to let credit [`COME`], or to [`STOP`] it.
    fn request(&self, cx: &mut Context<'_>, flow: FlowId, word: u64) {
        let dst = cx.flow(flow).dst;
        let request = self
            .messages
            .control(cx, PacketKind::Request, (flow, dst), [0, word]);
        cx.send(request);
    }
}

impl Endpoint for ExpressPassHost {
    type Shared = ();

    fn measure(&self, measured: &mut Measured) {
        let incoming = self.messages.all_incoming();
        incoming.for_each(|message| measured.sender(message.src));
    }

    fn on_start(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        let stops = self.config.feedback.rules == Rules::Simulator;
        let own = Sent {
            stop: stops.then(|| Box::new(EarlyStop::new(cx.now()))),
            ..Sent::default()
        };
        self.messages.start(cx, flow, 0, own);
        self.request(cx, flow, COME);
    }

    fn on_stop(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        self.messages.stop(cx, flow);
    }

    fn on_packet(&mut self, cx: &mut Context<'_>, packet: &mut Packet) {
        match packet.kind {
            PacketKind::Data | PacketKind::Request | PacketKind::Probe => self.on_data(cx, packet),
            PacketKind::Grant => self.on_credit(cx, packet),
            PacketKind::Ack => {
                self.messages.on_ack(cx, packet);
            }
            PacketKind::Resend => {
                // It sends them by the credit that comes meanwhile.
                self.messages.on_resend(cx, packet);
            }
            PacketKind::Busy => {
                if self.messages.sent_by(cx, packet).is_none()
                    && let Some(slot) = self.messages.on_busy(cx, packet)
                    && let Some(message) = self.messages.incoming(slot)
                {
                    message.own.asked = false;
                }
            }
            _ => {}
        }
    }

    fn on_timer(&mut self, cx: &mut Context<'_>, timer: Timer) {
        if timer.kind == CREDIT {
            return self.send_credit(cx, timer.slot);
        }
        if timer.kind == ASK_AGAIN {
            return self.ask_again(cx, timer.slot);
        }
        let mut silent = std::mem::take(&mut self.silent);
        self.messages.on_timer(cx, |_, slot| silent.push(slot));
        for slot in silent.drain(..) {
            self.on_silence(cx, slot);
        }
        self.silent = silent;
    }

    fn pull(&mut self, cx: &mut Context<'_>) -> Pull {
        let open = cx.open_classes();
        self.arbiter.release(open);
        while let Turn::Slot(slot) = self.arbiter.next(cx.now()) {
            let mss_bytes = cx.framing().mss_bytes;
            let Some(message) = self.messages.outgoing(slot) else {
                continue;
            };
            if message.done {
                self.counts.wasted += u64::from(message.own.credits);
                self.messages.forget(slot);
                continue;
            }
            if !open.contains(DATA_CLASS.into()) {
                let remaining = message.remaining_bytes();
                self.arbiter.hold(slot, remaining, DATA_CLASS);
                continue;
            }
            message.queued = false;
            let Sent {
                credits,
                number,
                stamp,
                ..
            } = message.own;
            let Some(segment) = message.segment(mss_bytes).filter(|_| credits > 0) else {
                // Credit beyond the end of the message.
                self.counts.wasted += u64::from(credits);
                message.own.credits = 0;
                continue;
            };
            message.own.credits -= 1;
            let Some(mut packet) = self.messages.data(cx, slot, segment, DATA_CLASS) else {
                continue;
            };
            self.counts.used += 1;
            // Number and time of the latest credit: they tell the receiver what was lost.
            (packet.ack, packet.stamp) = (number - u64::from(credits - 1), stamp);
            if credits > 1
                && let Some(message) = self.messages.outgoing(slot)
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

    fn config() -> FeedbackConfig {
        FeedbackConfig {
            initial_rate: 0.5,
            initial_weight: 0.5,
            weights: [0.01, 0.5],
            target_loss: 0.1,
            rules: Rules::Paper,
        }
    }

    /// The authors' simulator: a message of one packet begins at a fortieth of the first rate; the
    /// weight grows by steps from the second increase on; at the link's rate no loss is allowed.
    #[test]
    fn the_simulators_rules_stay_within_the_link() {
        let config = FeedbackConfig {
            initial_weight: 0.1,
            rules: Rules::Simulator,
            ..config()
        };
        let mut feedback = Feedback::new(&config, 1);
        assert!((feedback.rate - 0.5 / 40.0).abs() < 1e-12);
        feedback.update(0.0, 1.0, 0.01, &config);
        assert!((feedback.rate - (0.9 * 0.0125 + 0.1)).abs() < 1e-12);
        feedback.update(0.0, 1.0, 0.01, &config);
        assert!((feedback.weight - 0.15).abs() < 1e-12);
        (0..100).for_each(|_| feedback.update(0.0, 1.0, 0.01, &config));
        assert!((feedback.rate - 1.0).abs() < 1e-9 && (feedback.weight - 0.5).abs() < 1e-9);
        feedback.update(0.25, 0.75, 0.01, &config);
        assert!((feedback.rate - 0.75).abs() < 1e-9 && (feedback.weight - 0.25).abs() < 1e-9);
        // The next increase has the same weight.
        feedback.update(0.0, 1.0, 0.01, &config);
        assert!((feedback.rate - 0.8125).abs() < 1e-9);
    }

    /// The authors' simulator: what passed is counted over time, and the rate does not rise by it.
    #[test]
    fn the_simulator_slows_down_to_what_came_back() {
        let config = FeedbackConfig {
            rules: Rules::Simulator,
            ..config()
        };
        let mut feedback = Feedback::new(&config, 40);
        feedback.update(0.5, 0.2, 0.01, &config);
        // The target is a tenth of what the rate leaves of the link: 0.05.
        assert!((feedback.rate - 0.2 * 1.05).abs() < 1e-12);
        feedback.update(0.5, 0.9, 0.01, &config);
        assert!((feedback.rate - 0.21).abs() < 1e-12);
    }

    /// A sender looks at its credit once in a round trip: it stops it if that of the round trip
    /// would do for the rest.
    #[test]
    fn a_sender_stops_credit_that_would_do_for_the_rest() {
        let at = |us| Time::from_us(us);
        let mut stop = EarlyStop::new(at(0));
        // The first credit tells the round trip.
        assert!(!stop.on_credit(at(10), 30));
        assert_eq!((stop.phase, stop.rtt), (Phase::Comes, Span::from_us(10)));
        assert!(!stop.on_credit(at(19), 1));
        assert!(!stop.on_credit(at(20), 4), "three credits for four packets");
        assert!(!stop.on_credit(at(29), 2));
        assert!(stop.on_credit(at(30), 2));
        assert!(!stop.on_credit(at(60), 1), "it is stopped already");
    }

    /// Algorithm 1, lines 5 to 12: towards 1 + target by the weight, which doubles its way to the
    /// largest from the second increase on.
    #[test]
    fn credit_speeds_up_towards_more_than_the_link_takes() {
        let config = FeedbackConfig {
            initial_weight: 0.1,
            ..config()
        };
        let mut feedback = Feedback::new(&config, 1);
        feedback.update(0.0, 1.0, 0.01, &config);
        assert!((feedback.rate - (0.9 * 0.5 + 0.1 * 1.1)).abs() < 1e-12);
        feedback.update(0.1, 0.9, 0.01, &config);
        assert!((feedback.weight - 0.3).abs() < 1e-12);
        (0..100).for_each(|_| feedback.update(0.0, 1.0, 0.01, &config));
        assert!((feedback.rate - 1.1).abs() < 1e-9 && (feedback.weight - 0.5).abs() < 1e-9);
    }

    /// Algorithm 1, lines 13 to 16: to what passed, and the target above it; half the weight.
    #[test]
    fn credit_slows_down_to_what_passes() {
        let config = config();
        let mut feedback = Feedback::new(&config, 1);
        feedback.rate = 1.0;
        feedback.update(0.5, 0.5, 0.01, &config);
        assert!((feedback.rate - 0.55).abs() < 1e-12 && (feedback.weight - 0.25).abs() < 1e-12);
        (0..20).for_each(|_| feedback.update(0.5, 0.5, 0.01, &config));
        assert_eq!((feedback.weight, feedback.rate), (0.01, 0.01));
    }
}
