//! Marks that go back in acknowledgements (RPM §III), packet by packet, against a scene whose queue
//! and times are known by hand.

use std::sync::{Arc, Mutex, PoisonError};

use ratewright_simfabric::host::{Endpoint, Pull};
use ratewright_simfabric::net::FabricConfig;
use ratewright_simfabric::net::queue::{Limit, QueueConfig, ecn_threshold, rpm};
use ratewright_simfabric::packet::{Flags, Packet, PacketKind};
use ratewright_simfabric::run::Change;
use ratewright_simfabric::transport::{Context, Transport};
use ratewright_simfabric::units::Delay;
use ratewright_simfabric::{Config, FlowId, FlowSpec, HostId, Sim, Span, Time};
use ratewright_topology::{BigSwitch, Node};

const RATE_BPS: u64 = 10_000_000_000;
const SLOW_BPS: u64 = 1_000_000_000;
const PACKET_BYTES: u16 = 1_538;
/// Times of a packet and of an acknowledgement on a host's link, of a packet on the slow one, and a
/// link's delay.
const PACKET: Span = Span::from_ps(1_230_400);
const ACK: Span = Span::from_ps(67_200);
const SLOW_PACKET: Span = Span::from_ps(12_304_000);
const DELAY: Span = Span::from_ns(1_000);
/// Packets that follow the first as soon as that is acknowledged.
const BURST: u64 = 4;

/// A packet at its host: its kind and number, if it carries a mark or an echo, and when.
type Seen = (PacketKind, u64, bool, Time);

/// Sends a packet, and the burst when that is acknowledged. Receivers echo each mark.
struct Burst(Arc<Mutex<Vec<Seen>>>);

struct BurstHost {
    seen: Arc<Mutex<Vec<Seen>>>,
    flow: Option<(FlowId, FlowSpec)>,
    sent: u64,
    may_send: u64,
}

impl Transport for Burst {
    type Shared = ();
    type Endpoint = BurstHost;

    fn start(self, nodes: u32) -> ((), Vec<BurstHost>) {
        let host = |_| BurstHost {
            seen: self.0.clone(),
            flow: None,
            sent: 0,
            may_send: 1,
        };
        ((), (0..nodes).map(host).collect())
    }
}

impl Endpoint for BurstHost {
    type Shared = ();

    fn on_start(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        self.flow = Some((flow, *cx.flow(flow)));
        cx.wake();
    }

    fn on_packet(&mut self, cx: &mut Context<'_>, packet: &mut Packet) {
        let is_data = packet.kind == PacketKind::Data;
        let flag = if is_data { Flags::CE } else { Flags::ECE };
        let mut reply = cx.reply(packet);
        reply.seq = packet.seq;
        let seen = (
            packet.kind,
            packet.seq,
            packet.flags.contains(flag),
            cx.now(),
        );
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(seen);
        if is_data {
            cx.send(reply);
        } else {
            self.may_send = 1 + BURST;
            cx.wake();
        }
    }

    fn pull(&mut self, _cx: &mut Context<'_>) -> Pull {
        let Some((flow, spec)) = self.flow.filter(|_| self.sent < self.may_send) else {
            return Pull::Nothing;
        };
        self.sent += 1;
        let mut packet = Packet::default();
        (packet.flow, packet.src, packet.dst) = (flow, spec.src, spec.dst);
        packet.seq = self.sent - 1;
        packet.wire_bytes = PACKET_BYTES;
        packet.flags = Flags::ECT;
        Pull::Packet(packet)
    }
}

/// Returns what both hosts see of a packet and a burst to host 1, whose link is ten times slower,
/// over a switch that marks what finds a packet waiting.
fn run(mark: impl Fn(QueueConfig) -> QueueConfig) -> Vec<Seen> {
    let topology = BigSwitch {
        racks: 1,
        hosts_per_rack: 2,
        host_capacity_bps: RATE_BPS,
        host_delay_ns: DELAY.as_ns(),
        ..BigSwitch::default()
    };
    let topology = topology.build().expect("a switch");
    let to = Node::Host(HostId(1));
    let slow = topology.links().iter().find(|link| link.to == to);
    let change = Change::Rate {
        link: slow.expect("a link").id,
        rate_bps: SLOW_BPS,
    };
    let marking = ecn_threshold::Config::packets(1, Limit::packets(50));
    let config = Config {
        fabric: FabricConfig {
            edge: mark(QueueConfig::EcnThreshold(marking)),
            ..FabricConfig::default()
        },
        changes: vec![(Time::ZERO, change)],
        ..Config::default()
    };
    let flow = FlowSpec::new(HostId(0), HostId(1), 1, Time::ZERO);
    let seen = Arc::default();
    let mut sim = Sim::new(
        config,
        topology,
        [flow].into_iter(),
        Burst(Arc::clone(&seen)),
    )
    .expect("a good configuration");
    sim.run_until(Time::from_ms(1)).expect("it runs");
    sim.results().conservation.expect("nothing is lost");
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    seen.clone()
}

/// Numbers of the packets of a kind that carry a mark or an echo.
fn marked(seen: &[Seen], kind: PacketKind) -> Vec<u64> {
    let of = seen.iter().filter(|seen| seen.0 == kind && seen.2);
    of.map(|seen| seen.1).collect()
}

fn rpm_over(each: QueueConfig, patience: Delay) -> QueueConfig {
    QueueConfig::Rpm(rpm::Config {
        each: each.into(),
        patience,
        ..rpm::Config::default()
    })
}

/// Packet 1 is being sent and packet 2 waits when packets 3 and 4 come.
#[test]
fn the_discipline_alone_marks_data_and_the_receiver_echoes() {
    let seen = run(|each| each);
    assert_eq!(marked(&seen, PacketKind::Data), [3, 4]);
    assert_eq!(marked(&seen, PacketKind::Ack), [3, 4]);
}

/// Each mark is one echo, in the next acknowledgement of the flow that passes the switch: those of
/// packets 1 and 2, which the slow link delivers before packets 3 and 4.
#[test]
fn marks_go_back_in_the_next_acknowledgements_that_pass() {
    let seen = run(|each| rpm_over(each, Delay::from_ms(100)));
    assert_eq!(marked(&seen, PacketKind::Data), [0; 0]);
    assert_eq!(marked(&seen, PacketKind::Ack), [1, 2]);
    // A packet alone takes both links and comes back over both; so does the burst's first, from
    // then on.
    let round = PACKET + DELAY + SLOW_PACKET + DELAY + ACK + DELAY + ACK + DELAY;
    let echo = seen.iter().find(|seen| seen.2).expect("an echo");
    assert_eq!(echo.3, Time::ZERO + round * 2);
}

/// A flow whose last acknowledgement is older than the patience is marked forward. That replaces
/// marks that wait.
#[test]
fn marks_go_forward_without_recent_acknowledgements() {
    // Acknowledgement 0 passes, and packet 3 comes a round trip of the first link later.
    let between = (ACK + DELAY) + (PACKET + DELAY) + PACKET * 2;
    // Packet 4 comes a packet's time later.
    for (patience, forward) in [
        (between + PACKET, &[][..]),
        (between, &[4]),
        (Span(between.0 - 1), &[3, 4]),
    ] {
        let seen = run(|each| rpm_over(each, Delay(patience)));
        assert_eq!(marked(&seen, PacketKind::Data), forward, "{patience:?}");
        let echoes = if forward.is_empty() { &[1, 2] } else { forward };
        assert_eq!(marked(&seen, PacketKind::Ack), echoes, "{patience:?}");
    }
}
