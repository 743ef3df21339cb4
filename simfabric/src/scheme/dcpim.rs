//! dcPIM (SIGCOMM 2022): receivers and senders match in rounds, as the ports of a switch do by
//! parallel iterative matching, and receivers let the matched senders send by tokens.
//!
//! | mechanism | where |
//! |---|---|
//! | epochs, rounds of matching, data phases that overlap the next matching (§3) | [`clock`](self) |
//! | notification of every message; short ones leave at once (§3) | `on_start` |
//! | requests, grants, accepts; the shortest first in the first round (§3) | `receiver.rs`, `sender.rs` |
//! | k channels: a host is matched with up to k others (§3) | `Match` |
//! | tokens at the rate of the matched channels, in a window (§3) | `receiver.rs` |
//! | tokens again for what did not come | `receiver.rs` |
//! | matches that begin before their data phase, on channels that are free | `prompt` |
//!
//! The paper's text leaves out rules of its simulator, which are followed where nothing contradicts
//! them: a match is used at once on channels that are free, a token is worth nothing after its data
//! phase, and a receiver leaves room for short messages that it was told of. Clocks of hosts agree,
//! as in that simulator.

mod clock;
mod receiver;
mod sender;

use std::collections::BTreeMap;
use std::sync::Arc;

use ratewright_topology::{HostId, PathChoice};
use serde::{Deserialize, Serialize};

use super::{Built, FabricNeeds, Network, Scheme, tcp};
use crate::flow::FlowId;
use crate::host::{Arbiter, Endpoint, Measured, Policy, Pull, Timer};
use crate::packet::{Flags, Packet, PacketKind};
use crate::parameters::ParamError;
use crate::time::Span;
use crate::transport::message::{MessageConfig, Messages};
use crate::transport::{BrokenInvariant, Context, Transport};
use crate::units::Delay;
use clock::Clock;
use receiver::{Received, Receiver};
use sender::{Sender, Sent};

crate::parameters! {
    /// dcPIM (SIGCOMM 2022): receivers and senders match in rounds; tokens let the matched send.
    pub struct Config {
        /// Rounds of a matching (the authors' simulator: 4).
        rounds: u32 = 4,
        /// Length of a round in round trips of control packets (the authors' simulator: 1.3).
        beta: f64 = 1.3,
        /// Length of a data phase in matchings (the authors' simulator: 1).
        alpha: f64 = 1.0,
        /// Channels of a host's link, each of which may be matched with another host (the authors'
        /// simulator: 4).
        channels: u32 = 4,
        /// Round trip of control packets; without it that of the longest path, empty.
        control_rtt: Option<Delay> = None,
        /// Round trip of full packets; without it that of the longest path, empty. The
        /// bandwidth-delay product follows from it.
        rtt: Option<Delay> = None,
        /// Length of a message, in bandwidth-delay products, up to which it needs no token (the
        /// authors' simulator: 1).
        unscheduled: f64 = 1.0,
        /// Tokens on their way, in bandwidth-delay products (the authors' simulator: 1).
        token_window: f64 = 1.0,
        /// Time, in round trips, after which one token more than the window goes out (the authors'
        /// simulator: 1.1).
        window_time_out: f64 = 1.1,
        /// Silence, in round trips, after which tokens for missing bytes go out again (the
        /// authors' simulator: 1).
        token_time_out: f64 = 1.0,
        /// Classes of packets: "kinds" for control, short messages and others (§3), or "sizes"
        /// for control and, by the message's packets, powers of seven (the authors' simulator).
        priorities: Priorities = Priorities::Kinds,
        /// Matches are used before their data phase on channels that are free (the authors'
        /// simulator).
        prompt: bool = true,
        /// Tokens wait for the short messages that the receiver was told of (the authors'
        /// simulator).
        hold: bool = true,
        /// Silence after which a host looks after a message: a receiver takes a short one into the
        /// matching, a sender asks for news of its own.
        resend_time_out: Delay = Delay::from_ms(1),
        /// Every packet takes a path of its own (SIRD §6.2); otherwise all of a message take one.
        spray: bool = true,
    }
}

/// Classes of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Priorities {
    /// Control packets, data of short messages, all other data.
    Kinds,
    /// Control packets, six classes of data by the packets of its message, data before its phase.
    Sizes,
}

impl Priorities {
    /// Returns the number of classes.
    const fn classes(self) -> u8 {
        match self {
            Self::Kinds => 3,
            Self::Sizes => 8,
        }
    }

    /// Returns the class of the data of a message of so many packets.
    fn class(self, packets: u64, short: bool, prompt: bool) -> u8 {
        match self {
            Self::Kinds if short => 1,
            Self::Kinds => 2,
            Self::Sizes if prompt => 7,
            // 7, 49, 343, 2,401 and 16,807 packets.
            Self::Sizes => 1 + (1..6).filter(|n| packets > 7_u64.pow(*n)).count() as u8,
        }
    }
}

impl Scheme for Config {
    const NAME: &'static str = "dcpim";

    fn check(&self) -> Result<(), ParamError> {
        for (key, value, least) in [
            ("beta", self.beta, 1.0),
            ("alpha", self.alpha, 1.0),
            ("window_time_out", self.window_time_out, 0.0),
            ("token_time_out", self.token_time_out, 0.0),
            ("token_window", self.token_window, 0.0),
            ("unscheduled", self.unscheduled, 0.0),
        ] {
            // Written so that NaN fails, too.
            if !(value >= least && value <= 1e6) {
                return Err(ParamError::of(
                    key,
                    format!("it must be from {least} to 1e6"),
                ));
            }
        }
        for (key, value) in [("rounds", self.rounds), ("channels", self.channels)] {
            if !(1..=255).contains(&value) {
                return Err(ParamError::of(key, "it must be from 1 to 255"));
            }
        }
        for (key, time) in [("control_rtt", self.control_rtt), ("rtt", self.rtt)] {
            if let Some(time) = time {
                tcp::time_out(key, time)?;
            }
        }
        tcp::time_out("resend_time_out", self.resend_time_out)
    }

    fn build(self, network: &Network<'_>) -> Built {
        let framing = network.framing;
        let host_bps = network.edge_bps();
        let round_trip = |given: Option<Delay>, payload_bytes: u16| {
            let wire_bytes = framing.wire_bytes(payload_bytes);
            given.map_or_else(|| longest_way(network, wire_bytes) * 2, |delay| delay.0)
        };
        let control_rtt = round_trip(self.control_rtt, 0);
        let rtt = round_trip(self.rtt, framing.mss_bytes);
        let packet_bits = f64::from(framing.wire_bytes(framing.mss_bytes)) * 8.0;
        let packet_time = Span::from_secs_f64(packet_bits / host_bps.max(1) as f64);
        let bdp_packets = rtt.0.div_ceil(packet_time.0.max(1)) as f64;
        let clock = Clock::new(control_rtt.mul_f64(self.beta), self.rounds, self.alpha);
        let channels = u64::from(self.channels);
        let config = DcpimConfig {
            clock,
            channels: self.channels,
            packet_time,
            mss_bytes: u64::from(framing.mss_bytes.max(1)),
            channel_packets: (clock.period().0 / packet_time.0.max(1) / channels).max(1),
            short_packets: (self.unscheduled * bdp_packets) as u64,
            window_packets: (self.token_window * bdp_packets).max(1.0) as u64,
            window_time_out: rtt.mul_f64(self.window_time_out),
            token_time_out: rtt.mul_f64(self.token_time_out),
            // As long as its last packets take to be asked for and to leave.
            token_grace: Span(control_rtt.0 / 2) + packet_time * channels,
            priorities: self.priorities,
            prompt: self.prompt,
            hold: self.hold,
        };
        let needs = FabricNeeds {
            classes: self.priorities.classes(),
            ..FabricNeeds::default()
        };
        let messages = MessageConfig {
            time_out: self.resend_time_out.0,
            spray: self.spray,
            control_class: 0,
        };
        Built::new(needs, move |_| {
            Ok(Dcpim {
                config: Arc::new(config),
                messages,
            })
        })
    }
}

/// Returns the time of a packet on the longest way from the first rack, empty.
fn longest_way(network: &Network<'_>, wire_bytes: u16) -> Span {
    let topology = network.topology;
    let first = HostId(0);
    let racks = topology.racks().iter();
    let others = racks.filter_map(|rack| rack.host_ids().find(|host| *host != first));
    let way = |to: HostId| {
        let path = topology.path(first, to, PathChoice::Hash(0)).ok()?;
        let took = path.iter().map(|link| {
            let link = &topology.links()[link.index()];
            let bits = f64::from(wire_bytes) * 8.0;
            let on_link = Span::from_secs_f64(bits / link.capacity_bps.max(1) as f64);
            Span::from_ns(link.delay_ns) + on_link
        });
        Some(took.fold(network.host_delay * 2, |sum, span| sum + span))
    };
    others.filter_map(way).max().unwrap_or(Span::from_us(1))
}

/// Parameters of a host.
#[derive(Debug)]
struct DcpimConfig {
    clock: Clock,
    channels: u32,
    /// Time of a full packet on a host's link.
    packet_time: Span,
    mss_bytes: u64,
    /// Packets of one channel in a data phase.
    channel_packets: u64,
    /// Packets up to which a message is short.
    short_packets: u64,
    window_packets: u64,
    window_time_out: Span,
    token_time_out: Span,
    /// Time after its data phase for which a token holds.
    token_grace: Span,
    priorities: Priorities,
    prompt: bool,
    hold: bool,
}

impl DcpimConfig {
    /// Returns the packets of so many bytes.
    fn packets(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.mss_bytes)
    }

    /// Returns true if a message of this length needs no token.
    fn is_short(&self, bytes: u64) -> bool {
        self.packets(bytes) <= self.short_packets
    }
}

/// Bit of tokens for data before its phase.
const PROMPT: Flags = Flags::ECE;

/// dcPIM on all hosts.
#[derive(Debug)]
pub struct Dcpim {
    config: Arc<DcpimConfig>,
    messages: MessageConfig,
}

impl Transport for Dcpim {
    type Shared = ();
    type Endpoint = DcpimHost;

    fn start(self, nodes: u32) -> ((), Vec<DcpimHost>) {
        let host = |_| DcpimHost {
            config: Arc::clone(&self.config),
            messages: Messages::new(self.messages),
            receiver: Receiver::default(),
            sender: Sender::new(Arbiter::new(Policy::Srpt)),
            silent: Vec::new(),
        };
        ((), (0..nodes).map(host).collect())
    }

    fn summary((): &(), hosts: &[&DcpimHost]) -> Vec<(&'static str, f64)> {
        let [resends, probes] = Messages::repairs(hosts.iter().map(|host| &host.messages));
        let sum = |of: fn(&DcpimHost) -> u64| hosts.iter().map(|host| of(host)).sum::<u64>() as f64;
        let most = hosts.iter().map(|host| host.receiver.most_links).max();
        vec![
            resends,
            probes,
            ("tokens_sent", sum(|host| host.receiver.tokens)),
            ("tokens_used", sum(|host| host.sender.used)),
            ("tokens_expired", sum(|host| host.sender.expired)),
            ("channels_requested", sum(|host| host.receiver.requested)),
            ("channels_matched", sum(|host| host.receiver.accepted)),
            ("largest_channels_matched", f64::from(most.unwrap_or(0))),
        ]
    }

    fn check((): &(), hosts: &[&DcpimHost]) -> Result<(), BrokenInvariant> {
        let (mut sent, mut came) = (0, 0);
        for host in hosts {
            let law = "a receiver matches no more channels than it has (dcPIM §3)";
            let (most, channels) = (host.receiver.most_links, host.config.channels);
            BrokenInvariant::unless_within(law, most.into(), channels.into())?;
            let sender = &host.sender;
            let law = "a token that came was used, is void, or waits";
            let accounted = sender.used + sender.expired + sender.waiting();
            BrokenInvariant::unless_equal(law, accounted, sender.came())?;
            sent += host.receiver.tokens;
            came += sender.came();
        }
        BrokenInvariant::unless_within("no token came that was not sent", came, sent)
    }
}

/// dcPIM at one host.
#[derive(Debug)]
pub struct DcpimHost {
    config: Arc<DcpimConfig>,
    messages: Messages<Sent, Received>,
    receiver: Receiver,
    sender: Sender,
    /// Messages that were silent; between two calls empty.
    silent: Vec<u32>,
}

/// Kinds of timers: the receiver's and the sender's part of a round, and the next token.
const RECEIVER_STAGE: u8 = Messages::<Sent, Received>::TIMER + 1;
const SENDER_STAGE: u8 = RECEIVER_STAGE + 1;
const TOKEN: u8 = SENDER_STAGE + 1;

impl Endpoint for DcpimHost {
    type Shared = ();

    fn measure(&self, measured: &mut Measured) {
        let incoming = self.messages.all_incoming();
        incoming.for_each(|message| measured.sender(message.src));
    }

    fn on_start(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        self.begin(cx, flow);
    }

    fn on_stop(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        if let Some(slot) = self.messages.stop(cx, flow) {
            self.enqueue(cx, slot);
        }
    }

    fn on_packet(&mut self, cx: &mut Context<'_>, packet: &mut Packet) {
        let at_receiver = cx.flow(packet.flow).dst == cx.me();
        match (packet.kind, at_receiver) {
            (PacketKind::Data | PacketKind::Request | PacketKind::Probe, true) => {
                self.on_data(cx, packet);
            }
            (PacketKind::Grant, true) => self.on_grant(packet),
            (PacketKind::Request, false) => self.on_request(cx, packet),
            (PacketKind::Accept, false) => self.on_accept(packet),
            (PacketKind::Token, false) => self.on_token(cx, packet),
            (PacketKind::Ack, false) => {
                self.messages.on_ack(cx, packet);
            }
            (PacketKind::Busy, false) => {
                self.messages.sent_by(cx, packet);
            }
            _ => {}
        }
    }

    fn on_timer(&mut self, cx: &mut Context<'_>, timer: Timer) {
        match timer.kind {
            RECEIVER_STAGE => return self.on_receiver_stage(cx),
            SENDER_STAGE => return self.on_sender_stage(cx),
            TOKEN => {
                self.receiver.token_timer = None;
                return self.send_tokens(cx);
            }
            _ => {}
        }
        let mut silent = std::mem::take(&mut self.silent);
        self.messages.on_timer(cx, |_, slot| silent.push(slot));
        for slot in silent.drain(..) {
            self.schedule(cx, slot);
        }
        self.silent = silent;
    }

    fn pull(&mut self, cx: &mut Context<'_>) -> Pull {
        self.next_packet(cx)
    }
}

/// Numbers of hosts among a table of this host's own.
type Numbers = BTreeMap<HostId, u32>;

#[cfg(test)]
mod tests {
    use super::*;

    /// dcPIM's simulator: control first, then powers of seven packets, then data before its phase.
    #[test]
    fn classes_are_of_kinds_or_of_sizes() {
        let sizes = |packets| Priorities::Sizes.class(packets, packets <= 49, false);
        let packets = [
            1,
            7,
            8,
            49,
            50,
            343,
            344,
            2_401,
            2_402,
            16_807,
            16_808,
            u64::MAX,
        ];
        assert_eq!(packets.map(sizes), [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]);
        assert_eq!(Priorities::Sizes.class(1_000, false, true), 7);
        let kinds = |short| Priorities::Kinds.class(1, short, false);
        assert_eq!([kinds(true), kinds(false)], [1, 2]);
    }
}
