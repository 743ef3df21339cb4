//! In-band telemetry against ports whose queue and bytes at each moment are known by hand.

use std::sync::{Arc, Mutex, PoisonError};

use ratewright_simfabric::ext::IntHop;
use ratewright_simfabric::host::{Endpoint, Pull};
use ratewright_simfabric::net::Telemetry;
use ratewright_simfabric::packet::{Flags, Packet, PacketKind};
use ratewright_simfabric::run::Change;
use ratewright_simfabric::transport::{Context, Transport};
use ratewright_simfabric::{
    Config, Extension, FabricConfig, FlowId, FlowSpec, HostId, Sim, Span, Time,
};
use ratewright_topology::{BigSwitch, Node};

const RATE_BPS: u64 = 10_000_000_000;
const SLOW_BPS: u64 = 1_000_000_000;
const PACKET_BYTES: u64 = 1_538;
/// Times of a packet and of an acknowledgement on the host's link, of a packet on the slow one, and
/// a link's delay.
const PACKET: Span = Span::from_ps(1_230_400);
const ACK: Span = Span::from_ps(67_200);
const SLOW_PACKET: Span = Span::from_ps(12_304_000);
const DELAY: Span = Span::from_ns(1_000);

type Trails = Arc<Mutex<Vec<(PacketKind, u64, Vec<IntHop>)>>>;

/// Sends three packets as the link takes them, acknowledges each, and notes all trails.
struct Notes(Trails);

struct NotesHost {
    trails: Trails,
    flow: Option<(FlowId, FlowSpec)>,
    sent: u64,
}

impl Transport for Notes {
    type Shared = ();
    type Endpoint = NotesHost;

    fn start(self, nodes: u32) -> ((), Vec<NotesHost>) {
        let host = |_| NotesHost {
            trails: self.0.clone(),
            flow: None,
            sent: 0,
        };
        ((), (0..nodes).map(host).collect())
    }
}

impl Endpoint for NotesHost {
    type Shared = ();

    fn on_start(&mut self, cx: &mut Context<'_>, flow: FlowId) {
        self.flow = Some((flow, *cx.flow(flow)));
        cx.wake();
    }

    fn on_packet(&mut self, cx: &mut Context<'_>, packet: &mut Packet) {
        let mut reply = cx.reply(packet);
        reply.seq = packet.seq;
        let kind = packet.kind;
        let hops = match cx.take_extension(packet) {
            Some(Extension::Int(trail)) => trail.hops().to_vec(),
            _ => Vec::new(),
        };
        let mut trails = self.trails.lock().unwrap_or_else(PoisonError::into_inner);
        trails.push((kind, packet.seq, hops));
        if kind == PacketKind::Data {
            cx.send(reply);
        }
    }

    fn pull(&mut self, _cx: &mut Context<'_>) -> Pull {
        let Some((flow, spec)) = self.flow.filter(|_| self.sent < 3) else {
            return Pull::Nothing;
        };
        self.sent += 1;
        let mut packet = Packet::default();
        (packet.flow, packet.src, packet.dst) = (flow, spec.src, spec.dst);
        packet.seq = self.sent - 1;
        packet.wire_bytes = PACKET_BYTES as u16;
        packet.flags = Flags::INT;
        Pull::Packet(packet)
    }
}

/// Runs three packets of host 0 to host 1, whose link is ten times slower.
fn trails(fabric: FabricConfig) -> Vec<(PacketKind, u64, Vec<IntHop>)> {
    let topology = BigSwitch {
        racks: 1,
        hosts_per_rack: 2,
        host_capacity_bps: RATE_BPS,
        host_delay_ns: DELAY.as_ps() / 1_000,
        ..BigSwitch::default()
    }
    .build()
    .expect("a switch");
    let to = Node::Host(HostId(1));
    let slow = topology
        .links()
        .iter()
        .find(|l| l.to == to)
        .expect("a link");
    let change = Change::Rate {
        link: slow.id,
        rate_bps: SLOW_BPS,
    };
    let config = Config {
        fabric,
        changes: vec![(Time::ZERO, change)],
        ..Config::default()
    };
    let flow = FlowSpec::new(HostId(0), HostId(1), 1, Time::ZERO);
    let found = Trails::default();
    let mut sim = Sim::new(config, topology, [flow].into_iter(), Notes(found.clone()))
        .expect("a good configuration");
    sim.run_until(Time::from_ms(1)).expect("it runs");
    sim.results().conservation.expect("nothing is lost");
    let trails = found.lock().unwrap_or_else(PoisonError::into_inner);
    trails.clone()
}

/// Time at which packet 0 reaches the switch; the others wait for it on the slow link.
fn first() -> Time {
    Time::ZERO + PACKET + DELAY
}

#[test]
fn data_is_stamped_as_it_leaves_with_what_was_sent_and_what_waits() {
    let found = trails(FabricConfig {
        telemetry: Telemetry::Asked,
        ..FabricConfig::default()
    });
    let of_data = found.iter().filter(|t| t.0 == PacketKind::Data);
    let hops: Vec<_> = of_data.map(|(_, seq, hops)| (*seq, hops.clone())).collect();
    // Packet 2 waits when packet 1 leaves; what leaves counts neither as sent nor as waiting.
    let expected: Vec<_> = [0, PACKET_BYTES, 0]
        .into_iter()
        .zip(0..)
        .map(|(queue, n)| {
            let at = first() + SLOW_PACKET * n;
            (n, vec![IntHop::new(SLOW_BPS, at, n * PACKET_BYTES, queue)])
        })
        .collect();
    assert_eq!(hops, expected);
    // The host's own interface is no hop, and acknowledgements do not ask.
    let of_acks = found.iter().filter(|t| t.0 == PacketKind::Ack);
    assert!(of_acks.clone().count() == 3 && of_acks.clone().all(|t| t.2.is_empty()));
}

#[test]
fn an_acknowledgement_learns_what_the_port_is_that_its_data_left_by_as_it_passes() {
    let found = trails(FabricConfig {
        telemetry: Telemetry::Acknowledgements,
        ..FabricConfig::default()
    });
    let of_acks = found.iter().filter(|t| t.0 == PacketKind::Ack);
    let hops: Vec<_> = of_acks.map(|(_, seq, hops)| (*seq, hops.clone())).collect();
    // Each comes back while the next packet is being sent, and the one behind that waits.
    let expected: Vec<_> = [PACKET_BYTES, 0, 0]
        .into_iter()
        .zip(0..)
        .map(|(queue, n)| {
            let at = first() + SLOW_PACKET * (n + 1) + DELAY + ACK + DELAY;
            let sent = (n + 2).min(3) * PACKET_BYTES;
            (n, vec![IntHop::new(SLOW_BPS, at, sent, queue)])
        })
        .collect();
    assert_eq!(hops, expected);
    let data = found.iter().filter(|t| t.0 == PacketKind::Data);
    assert!(data.clone().all(|t| t.2.is_empty()));
}

/// A table that is refreshed every 5 µs tells what was at the last multiple of that before the
/// acknowledgement passed, whatever has happened since.
#[test]
fn a_periodic_table_tells_of_its_last_refresh() {
    let period = Span::from_us(5);
    let found = trails(FabricConfig {
        telemetry: Telemetry::Acknowledgements,
        telemetry_period: Some(period),
        ..FabricConfig::default()
    });
    let of_acks = found.iter().filter(|t| t.0 == PacketKind::Ack);
    let hops: Vec<_> = of_acks.map(|(_, seq, hops)| (*seq, hops.clone())).collect();
    let expected: Vec<_> = (0..3)
        .map(|n| {
            let passes = first() + SLOW_PACKET * (n + 1) + DELAY + ACK + DELAY;
            let refreshed = Time(passes.0 / period.0 * period.0);
            // Packets arrive back to back and leave one after another on the slow link.
            let begun = |packet| first() + SLOW_PACKET * packet < refreshed;
            let arrived = |packet| first() + PACKET * packet < refreshed;
            let sent = (0..3).filter(|packet| begun(*packet)).count() as u64;
            let here = (0..3).filter(|packet| arrived(*packet)).count() as u64;
            let queue = (here - sent) * PACKET_BYTES;
            let sent = sent * PACKET_BYTES;
            (n, vec![IntHop::new(SLOW_BPS, refreshed, sent, queue)])
        })
        .collect();
    assert_eq!(hops, expected);
}
