//! Sources of the allocator's feeds: hosts and switches measure, and send what they read over the
//! control connection.
//!
//! | who | reads | sends |
//! |---|---|---|
//! | host | its endpoints, of every scheme on it ([`measure`](crate::host::measure)) | counts of its senders, credit |
//! | host | its interface | INT of the link to its switch |
//! | switch | its ports | INT of the links that it sends into |
//!
//! A host's measurements are messages of its production session. They travel in datagrams of their
//! own, or in the connection, if control messages use TCP. A switch has no session, and sends a
//! datagram by itself, which may be lost. All read once in a period, each at its own phase.

use ratewright_allocator::feeds::FeedsConfig;
use ratewright_proto::control::ControlMessage;
use ratewright_proto::telemetry::{CreditState, LinkInt, ReceiverCount, Telemetry};
use serde::{Deserialize, Serialize};

use super::{FlowtuneContext, FlowtuneHost, FlowtuneShared, kind, timer};
use crate::control::{MAX_DATAGRAM_BYTES, datagram_ip_bytes};
use crate::ext::Extension;
use crate::host::{Measured, Timer};
use crate::packet::{Packet, PacketKind};
use crate::run::census::Census;
use crate::time::{Span, Time};
use crate::transport::tcp::congestion::Congestion;
use crate::units::Delay;

/// Most entries of credit, and of links, in one message: with the largest values they fill a
/// datagram ([`MAX_DATAGRAM_BYTES`]).
const MOST_ENTRIES: usize = 20;
/// Most senders that a count names.
const MOST_SENDERS: usize = 256;

/// Readings that hosts and switches send to the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FeedSources {
    /// Receivers count their active senders.
    pub receivers: bool,
    /// Receivers tell their credit by sender.
    pub credit: bool,
    /// Hosts and switches tell the bytes sent and the queue of each link.
    pub int: bool,
    /// Time between two readings.
    pub period: Delay,
    /// Longest time from a change of rates to a reading that shows it, beyond `period`.
    pub max_delay: Delay,
    /// Share of a link that the feeds may take from the allocator's flows.
    pub max_share: f64,
    /// Share of a link's bandwidth by which a load moves before its host tells it; 0: hosts repeat
    /// their readings, since datagrams of their own may be lost.
    pub state_hysteresis: f64,
}

impl Default for FeedSources {
    fn default() -> Self {
        Self {
            receivers: false,
            credit: false,
            int: false,
            period: Delay::from_us(100),
            // Two iterations, the way to a host and back, and one round trip of data.
            max_delay: Delay::from_us(100),
            max_share: FeedsConfig::default().max_share,
            state_hysteresis: 0.0,
        }
    }
}

impl FeedSources {
    /// Returns true if anybody reads anything.
    #[must_use]
    pub fn any(&self) -> bool {
        self.receivers || self.credit || self.int
    }

    /// Returns the settings of the feeds in the allocator; `None` without any.
    #[must_use]
    pub fn config(&self) -> Option<FeedsConfig> {
        let interval_ns = self.period.ns().max(1);
        self.any().then(|| FeedsConfig {
            receivers: self.receivers,
            credit: self.credit,
            int: self.int,
            interval_ns,
            // As many readings as in production.
            fresh_ns: 4 * interval_ns,
            max_age_ns: 10 * interval_ns,
            max_delay_ns: self.max_delay.ns(),
            max_share: self.max_share,
            state_hysteresis: self.state_hysteresis,
            ..FeedsConfig::default()
        })
    }

    /// Returns the first reading of one of so many sources: they take turns within a period.
    fn phase(&self, number: u32, of: u32) -> Time {
        let ps = u128::from(self.period.0.as_ps()) * u128::from(number) / u128::from(of.max(1));
        Time::ZERO + Span::from_ps(ps as u64)
    }
}

/// Lets a host measure from its phase on.
pub(super) fn begin_host(cx: &mut FlowtuneContext<'_>) {
    let sources = cx.shared.config.feeds;
    if sources.any() && cx.allocator().is_some() {
        let at = sources.phase(cx.me().0, cx.hosts());
        cx.timer(at, timer(Timer::MEASURE, 0));
    }
}

/// Lets the allocator heed its feeds, and all switches read their ports from their phases on. Their
/// clocks are the allocator's timers, which is where the fabric keeps such as belong to no host.
pub(super) fn begin_allocator(cx: &mut FlowtuneContext<'_>) {
    let sources = cx.shared.config.feeds;
    if !sources.any() {
        return;
    }
    let topology = cx.topology();
    let hosts = topology.hosts().iter();
    let downlinks = hosts
        .map(|host| topology.host_downlink(host.id).0)
        .collect();
    let ports = cx.core.fabric.ports.len();
    cx.core.census = Some(Box::new(Census::new(cx.part, ports, downlinks)));
    cx.timer_in(sources.period.0, timer(kind::FEEDS, 0));
    if sources.int {
        let switches = cx.topology().switches().len() as u32;
        for switch in 0..switches {
            let at = sources.phase(switch, switches);
            cx.timer(at, timer(kind::SWITCH, switch));
        }
    }
}

/// Carries out what the feeds ask for, and again in a period.
pub(super) fn apply(cx: &mut FlowtuneContext<'_>) {
    let now_ns = cx.now().as_ns();
    cx.shared.allocator.apply_feeds(now_ns);
    let period = cx.shared.config.feeds.period.0;
    cx.timer_in(period, timer(kind::FEEDS, 0));
}

/// Compares what the allocator has just taken with what is true.
pub(super) fn audit(cx: &mut FlowtuneContext<'_>, sent_at: Time) {
    let shared = &mut *cx.shared;
    while let Some(telemetry) = shared.allocator.poll_taken() {
        let allocator = &shared.allocator;
        let handed_out_bps = |link| allocator.handed_out_bps(link);
        let audit = &mut shared.audit;
        audit.take(cx.core, &telemetry, sent_at, handed_out_bps);
    }
}

/// Returns the counters of the feeds.
pub(super) fn summary(shared: &FlowtuneShared) -> Vec<(&'static str, f64)> {
    let mut summary = shared.audit.summary();
    let readings = &shared.switch_readings;
    summary.push(("feed_datagrams_of_switches", readings.datagrams as f64));
    summary.push(("feed_ip_bytes_of_switches", readings.ip_bytes as f64));
    summary
}

impl<C: Congestion> FlowtuneHost<C> {
    /// Reports what the host measured, and measures again in a period.
    pub(super) fn report(&mut self, cx: &mut FlowtuneContext<'_>, measured: Measured) {
        let sources = cx.shared.config.feeds;
        let me = cx.me();
        let count = sources.receivers.then(|| measured.count(me));
        let credits = if sources.credit {
            measured.into_credits()
        } else {
            Vec::new()
        };
        let link = sources.int.then(|| self.uplink(cx)).flatten();
        let credits = credits.into_iter().map(|credit| CreditState {
            receiver: me.0,
            ..credit
        });
        let measured = Telemetry {
            receivers: count.map(bounded).into_iter().collect(),
            credits: credits.collect(),
            links: link.into_iter().collect(),
            ..Telemetry::default()
        };
        let now_ns = cx.now().as_ns();
        let message = self.telemetry.measure(now_ns, measured);
        for telemetry in message.into_iter().flat_map(pieces) {
            self.agent.report(telemetry);
        }
        self.drive(cx);
        cx.timer_in(sources.period.0, timer(Timer::MEASURE, 0));
    }

    /// Reads the host's own link. The host knows what of it is Ratewright's.
    fn uplink(&self, cx: &mut FlowtuneContext<'_>) -> Option<LinkInt> {
        let port = cx.core.fabric.routes.host_uplink(cx.host.0)?;
        let reading = cx.core.read_port(port);
        Some(LinkInt {
            // The packet that leaves now is not sent yet.
            managed_bytes: Some(self.sent_bytes.min(reading.tx_bytes)),
            ..reading
        })
    }
}

/// Bounds the senders that a count names.
fn bounded(mut count: ReceiverCount) -> ReceiverCount {
    count.senders.truncate(MOST_SENDERS);
    count.sender_flows.truncate(MOST_SENDERS);
    count
}

/// Cuts a host's message into such as fit a datagram.
fn pieces(message: Telemetry) -> Vec<Telemetry> {
    let credits = message.credits;
    let first = Telemetry {
        credits: Vec::new(),
        ..message
    };
    let rest = credits.chunks(MOST_ENTRIES).map(|credits| Telemetry {
        credits: credits.to_vec(),
        ..Telemetry::default()
    });
    // One without any entry says that all stands.
    let tells = first.whole || !first.is_empty() || credits.is_empty();
    std::iter::once(first)
        .filter(|_| tells)
        .chain(rest)
        .collect()
}

/// Reads the ports of a switch, sends what they say, and reads again in a period.
pub(super) fn read_switch(cx: &mut FlowtuneContext<'_>, switch: u32) {
    let period = cx.shared.config.feeds.period.0;
    cx.timer_in(period, timer(kind::SWITCH, switch));
    let links = cx.topology().links().len() as u32;
    let ports = cx.core.fabric.switches[switch as usize].egress.clone();
    // The allocator's own links are none of the topology.
    let ports = ports.into_iter().filter(|port| *port < links);
    let entries: Vec<LinkInt> = ports.map(|port| cx.core.read_port(port)).collect();
    for links in entries.chunks(MOST_ENTRIES) {
        let telemetry = Telemetry {
            links: links.to_vec(),
            ..Telemetry::default()
        };
        send_reading(cx, switch, telemetry);
    }
}

/// Sends a switch's reading to the allocator.
fn send_reading(cx: &mut FlowtuneContext<'_>, switch: u32, telemetry: Telemetry) {
    let Ok(frame) = ControlMessage::Telemetry(telemetry).to_frame() else {
        return;
    };
    debug_assert!(frame.len() <= MAX_DATAGRAM_BYTES, "a reading fits a packet");
    let ip_bytes = datagram_ip_bytes(frame.len());
    let mut packet = Packet {
        kind: PacketKind::Control,
        src: cx.core.address_of(switch),
        // The allocator's node is the one whose timer this is.
        dst: cx.me(),
        path_hash: switch as u16,
        wire_bytes: cx.framing().ip_wire_bytes(ip_bytes),
        class: cx.shared.config.control_class,
        stamp: cx.now(),
        ..Packet::default()
    };
    let mut bytes = cx.extensions().buffer();
    bytes.extend_from_slice(&frame);
    cx.attach_extension(&mut packet, Extension::Bytes(bytes));
    cx.shared.switch_readings.count_message(&frame);
    cx.core.originate(switch, packet);
}
