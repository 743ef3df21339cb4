//! What a pair of sessions does in cases that can be told one by one.

use std::sync::Arc;

use ratewright_proto::client::{ClientConfig, ClientEvent, ClientSession, LossReason};
use ratewright_proto::control::{
    ControlMessage, FrameDecoder, Refusal, RefusalCode, TopologySnapshot,
};
use ratewright_proto::datagram::{HEADER_BYTES, MIN_DATAGRAM_BYTES};
use ratewright_proto::server::{Admission, PeerLoss, ServerConfig, ServerEvent, ServerSession};
use ratewright_proto::telemetry::{LinkInt, Telemetry};
use ratewright_proto::{
    DatagramError, FlowId, FlowPath, RateCode, SessionError, StartRecord, VERSION,
};

const MS: u64 = 1_000_000;
const LEASE_NS: u64 = 300 * MS;
const MTU: usize = 1200;

/// Both ends with a perfect network that the test moves by hand.
struct Pair {
    now_ns: u64,
    client: ClientSession,
    server: ServerSession,
}

fn start(slot: u32, generation: u32) -> StartRecord {
    StartRecord::new(FlowId::new(slot, generation), 9, FlowPath::Hash(1))
}

fn admission() -> Admission {
    Admission {
        session: 42,
        host_id: 3,
        topology: Arc::new(TopologySnapshot::default()),
        classes: Vec::new(),
        threshold: 0.01,
        released: false,
    }
}

fn bodies(frames: impl Iterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let mut decoder = FrameDecoder::new();
    let mut bodies = Vec::new();
    for frame in frames {
        decoder.push(&frame);
        while let Some(body) = decoder.next_frame().unwrap() {
            bodies.push(body.to_vec());
        }
    }
    bodies
}

impl Pair {
    fn unconnected(client: ClientConfig, server: ServerConfig) -> Self {
        Self {
            now_ns: 1_000 * MS,
            client: ClientSession::new(ClientConfig {
                host_name: "h1".to_owned(),
                ..client
            }),
            server: ServerSession::new(1_000 * MS, Arc::new(server)),
        }
    }

    fn with(client: ClientConfig, server: ServerConfig) -> Self {
        let mut pair = Self::unconnected(client, server);
        pair.client.connected(pair.now_ns);
        pair.client_stream();
        assert!(matches!(
            pair.server.poll_event(),
            Some(ServerEvent::Hello(_))
        ));
        pair.server.accept(pair.now_ns, admission()).unwrap();
        pair.server_stream();
        assert!(matches!(
            pair.client.poll_event(),
            Some(ClientEvent::Established(_))
        ));
        pair.settle();
        pair
    }

    fn new() -> Self {
        Self::with(ClientConfig::default(), ServerConfig::default())
    }

    fn client_stream(&mut self) {
        for body in bodies(std::iter::from_fn(|| self.client.poll_control())) {
            self.server.on_control(self.now_ns, &body).unwrap();
        }
    }

    fn server_stream(&mut self) {
        for body in bodies(std::iter::from_fn(|| self.server.poll_control())) {
            self.client.on_control(self.now_ns, &body).unwrap();
        }
    }

    fn from_client(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.client
            .poll_datagram(self.now_ns, MTU, &mut out)
            .then_some(out)
    }

    fn from_server(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.server
            .poll_datagram(self.now_ns, MTU, &mut out)
            .then_some(out)
    }

    /// Exchanges datagrams until nobody has anything to say, acknowledgements
    /// included.
    fn settle(&mut self) {
        for _ in 0..3 {
            self.now_ns += MS;
            while let Some(bytes) = self.from_client() {
                self.server.on_datagram(self.now_ns, &bytes).unwrap();
            }
            while let Some(bytes) = self.from_server() {
                self.client.on_datagram(self.now_ns, &bytes).unwrap();
            }
        }
    }

    fn client_events(&mut self) -> Vec<ClientEvent> {
        std::iter::from_fn(|| self.client.poll_event()).collect()
    }

    fn server_events(&mut self) -> Vec<ServerEvent> {
        std::iter::from_fn(|| self.server.poll_event()).collect()
    }

    fn rates(&mut self) -> Vec<(FlowId, u64)> {
        let rate = |event| match event {
            ClientEvent::Rate { flow, rate_bps, .. } => Some((flow, rate_bps)),
            _ => None,
        };
        self.client_events().into_iter().filter_map(rate).collect()
    }
}

#[test]
fn a_start_and_its_rate_are_in_the_very_next_datagrams() {
    let mut pair = Pair::new();
    pair.client_events();
    let record = start(0, 0);
    pair.client.start(pair.now_ns, record).unwrap();
    let bytes = pair.from_client().expect("a datagram at once");
    assert_eq!(bytes.len(), HEADER_BYTES + 16);
    pair.server.on_datagram(pair.now_ns, &bytes).unwrap();
    assert_eq!(pair.server_events(), [ServerEvent::Start(record)]);
    assert_eq!(
        pair.server.set_rate(pair.now_ns, record.flow(), 5_000_000),
        Ok(true)
    );
    let bytes = pair.from_server().expect("a datagram at once");
    assert_eq!(bytes.len(), HEADER_BYTES + 6);
    pair.client.on_datagram(pair.now_ns, &bytes).unwrap();
    let expires_ns = pair.now_ns + LEASE_NS;
    let expected = ClientEvent::Rate {
        flow: record.flow(),
        rate_bps: RateCode::encode(5_000_000).decode(),
        expires_ns,
    };
    assert!(pair.client_events().contains(&expected));
    pair.client.end(pair.now_ns, record.flow()).unwrap();
    let bytes = pair.from_client().expect("a datagram at once");
    assert_eq!(bytes.len(), HEADER_BYTES + 4);
    pair.server.on_datagram(pair.now_ns, &bytes).unwrap();
    assert_eq!(pair.server_events(), [ServerEvent::End(record.flow())]);
}

#[test]
fn acknowledgements_wait_for_company() {
    let mut pair = Pair::new();
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    let bytes = pair.from_client().unwrap();
    pair.server.on_datagram(pair.now_ns, &bytes).unwrap();
    assert_eq!(pair.from_server(), None);
    let due_ns = pair.now_ns + ServerConfig::default().ack_delay_ns;
    assert_eq!(pair.server.next_timeout(), Some(due_ns));
    pair.now_ns = due_ns;
    assert_eq!(
        pair.from_server().map(|bytes| bytes.len()),
        Some(HEADER_BYTES)
    );
    assert_eq!(pair.from_server(), None);
}

#[test]
fn a_flowlet_that_ends_before_it_was_sent_costs_nothing() {
    let mut pair = Pair::new();
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    pair.client.end(pair.now_ns, FlowId::new(0, 0)).unwrap();
    assert_eq!(pair.from_client(), None);
}

#[test]
fn a_rate_that_the_client_has_acknowledged_is_not_sent_again() {
    let mut pair = Pair::new();
    let flow = FlowId::new(0, 0);
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    pair.settle();
    assert_eq!(pair.server.set_rate(pair.now_ns, flow, 1_000_000), Ok(true));
    pair.settle();
    // The same to within the code's resolution.
    assert_eq!(
        pair.server.set_rate(pair.now_ns, flow, 1_000_001),
        Ok(false)
    );
    // Away and back before anything was sent (flowtune §5.1, Protocol).
    assert_eq!(pair.server.set_rate(pair.now_ns, flow, 2_000_000), Ok(true));
    assert_eq!(
        pair.server.set_rate(pair.now_ns, flow, 1_000_000),
        Ok(false)
    );
    assert_eq!(pair.from_server(), None);
}

#[test]
fn what_was_lost_is_replaced_by_the_newest_state() {
    let mut pair = Pair::new();
    let flow = FlowId::new(0, 0);
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    pair.settle();
    pair.client_events();
    pair.server.set_rate(pair.now_ns, flow, 1_000_000).unwrap();
    pair.from_server().expect("sent, and lost");
    pair.server.set_rate(pair.now_ns, flow, 2_000_000).unwrap();
    pair.from_server().expect("sent, and lost");
    let timeout_ns = pair.server.next_timeout().unwrap();
    pair.now_ns = timeout_ns;
    pair.server.on_timeout(pair.now_ns);
    let bytes = pair.from_server().expect("sent again");
    assert_eq!(bytes.len(), HEADER_BYTES + 6, "once, not twice");
    pair.client.on_datagram(pair.now_ns, &bytes).unwrap();
    assert_eq!(pair.rates(), [(flow, RateCode::encode(2_000_000).decode())]);
}

#[test]
fn a_rate_that_was_lost_and_set_again_is_sent_again() {
    let mut pair = Pair::new();
    let flow = FlowId::new(0, 0);
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    pair.settle();
    pair.server.set_rate(pair.now_ns, flow, 1_000_000).unwrap();
    pair.from_server().expect("sent, and lost");
    // On its way: not sent twice.
    assert_eq!(
        pair.server.set_rate(pair.now_ns, flow, 1_000_000),
        Ok(false)
    );
    pair.now_ns = pair.server.next_timeout().unwrap();
    pair.server.on_timeout(pair.now_ns);
    pair.server.set_rate(pair.now_ns, flow, 1_000_000).unwrap();
    assert!(pair.from_server().is_some());
}

/// The client went through all generations between two polls of the server.
#[test]
fn an_end_and_a_start_under_the_same_id_are_both_told() {
    let mut pair = Pair::new();
    pair.client.start(pair.now_ns, start(2, 7)).unwrap();
    pair.settle();
    pair.server_events();
    pair.client.end(pair.now_ns, FlowId::new(2, 7)).unwrap();
    pair.settle();
    for generation in 8..4096 + 7 {
        let flow = FlowId::new(2, generation % 4096);
        pair.client
            .start(pair.now_ns, start(2, generation % 4096))
            .unwrap();
        pair.client.end(pair.now_ns, flow).unwrap();
    }
    pair.client.start(pair.now_ns, start(2, 7)).unwrap();
    pair.settle();
    assert_eq!(
        pair.server_events(),
        [
            ServerEvent::End(FlowId::new(2, 7)),
            ServerEvent::Start(start(2, 7))
        ]
    );
}

#[test]
fn a_new_generation_ends_the_older_flowlet() {
    let mut pair = Pair::new();
    pair.client.start(pair.now_ns, start(5, 4095)).unwrap();
    pair.settle();
    pair.server_events();
    pair.client.start(pair.now_ns, start(5, 0)).unwrap();
    pair.settle();
    assert_eq!(
        pair.server_events(),
        [
            ServerEvent::End(FlowId::new(5, 4095)),
            ServerEvent::Start(start(5, 0))
        ]
    );
}

#[test]
fn an_update_keeps_the_flow() {
    let mut pair = Pair::new();
    pair.client.start(pair.now_ns, start(1, 0)).unwrap();
    pair.settle();
    pair.server_events();
    let limited = start(1, 0).with_demand(RateCode::encode(9_000_000));
    pair.client.start(pair.now_ns, limited).unwrap();
    pair.client.start(pair.now_ns, limited).unwrap();
    pair.settle();
    assert_eq!(pair.server_events(), [ServerEvent::Update(limited)]);
}

/// 4,096 flowlets later the same flow id comes round; a rate that was sent for
/// the first of them must not be taken for it.
#[test]
fn a_rate_delayed_over_a_wrap_of_the_generation_is_stale() {
    let mut pair = Pair::new();
    let flow = FlowId::new(2, 7);
    pair.client.start(pair.now_ns, start(2, 7)).unwrap();
    pair.settle();
    pair.client_events();
    pair.server.set_rate(pair.now_ns, flow, 1_000_000).unwrap();
    let delayed = pair.from_server().unwrap();
    // All within the lease, unheard by the server.
    for generation in 8..4096 + 7 {
        let flow = FlowId::new(2, generation % 4096);
        pair.client
            .start(pair.now_ns, start(2, generation % 4096))
            .unwrap();
        pair.client.end(pair.now_ns, flow).unwrap();
    }
    pair.client.start(pair.now_ns, start(2, 7)).unwrap();
    pair.from_client().expect("the newest start");
    pair.client.on_datagram(pair.now_ns, &delayed).unwrap();
    assert_eq!(pair.rates(), []);
    assert_eq!(pair.client.counters().records_stale, 1);
}

#[test]
fn an_ended_flow_id_needs_the_next_generation() {
    let mut pair = Pair::new();
    pair.client.start(pair.now_ns, start(0, 3)).unwrap();
    pair.client.end(pair.now_ns, FlowId::new(0, 3)).unwrap();
    assert_eq!(
        pair.client.start(pair.now_ns, start(0, 3)),
        Err(SessionError::GenerationReused(FlowId::new(0, 3)))
    );
    pair.client.start(pair.now_ns, start(0, 4)).unwrap();
    assert_eq!(
        pair.client.end(pair.now_ns, FlowId::new(0, 3)),
        Err(SessionError::UnknownFlow(FlowId::new(0, 3)))
    );
}

#[test]
fn a_datagram_delayed_beyond_the_lease_is_neither_applied_nor_acknowledged() {
    let mut pair = Pair::new();
    let flow = FlowId::new(0, 0);
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    let bytes = pair.from_client().unwrap();
    let sent_ns = pair.now_ns;
    pair.server.on_datagram(sent_ns, &bytes).unwrap();
    pair.server.set_rate(sent_ns, flow, 1_000_000).unwrap();
    let delayed = pair.from_server().unwrap();
    pair.client_events();
    for (late_ns, result) in [
        (LEASE_NS, Err(DatagramError::Expired)),
        (2 * LEASE_NS, Err(DatagramError::Expired)),
        (LEASE_NS - 1, Ok(())),
    ] {
        let got = pair.client.on_datagram(sent_ns + late_ns, &delayed);
        assert_eq!(got, result, "{late_ns} ns late");
    }
    assert_eq!(pair.client.counters().dropped_expired, 2);
}

#[test]
fn keep_alives_hold_the_lease_and_silence_lets_it_run_out() {
    let mut pair = Pair::new();
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    pair.settle();
    pair.server
        .set_rate(pair.now_ns, FlowId::new(0, 0), 1_000_000)
        .unwrap();
    pair.settle();
    for _ in 0..20 {
        pair.now_ns += LEASE_NS / 4;
        pair.client.on_timeout(pair.now_ns);
        pair.settle();
        let renewed = pair
            .client_events()
            .iter()
            .any(|event| matches!(event, ClientEvent::LeaseRenewed { .. }));
        assert!(renewed);
        assert!(pair.client.lease_expires_ns() > pair.now_ns + LEASE_NS / 2);
    }
    // Nothing but one keep-alive and one answer per quarter of a lease.
    let sent = pair.client.counters().keep_alives_sent;
    assert!((20..30).contains(&sent), "{sent}");
}

#[test]
fn a_lost_keep_alive_is_repeated_well_within_the_lease() {
    let mut pair = Pair::new();
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    pair.settle();
    pair.now_ns += LEASE_NS / 4;
    pair.from_client().expect("a keep-alive, lost");
    let lost_ns = pair.now_ns;
    pair.now_ns = pair.client.next_timeout().unwrap();
    assert!(pair.now_ns < lost_ns + LEASE_NS / 4);
    pair.client.on_timeout(pair.now_ns);
    pair.from_client().expect("another one at once");
}

#[test]
fn an_idle_client_speaks_once_per_lease() {
    let mut pair = Pair::new();
    let before = pair.client.counters().datagrams_sent;
    let start_ns = pair.now_ns;
    while pair.now_ns < start_ns + 10 * LEASE_NS {
        let next = [pair.client.next_timeout(), pair.server.next_timeout()];
        pair.now_ns = next.into_iter().flatten().min().unwrap();
        pair.client.on_timeout(pair.now_ns);
        pair.server.on_timeout(pair.now_ns);
        while let Some(bytes) = pair.from_client() {
            pair.server.on_datagram(pair.now_ns, &bytes).unwrap();
        }
        while let Some(bytes) = pair.from_server() {
            pair.client.on_datagram(pair.now_ns, &bytes).unwrap();
        }
    }
    let sent = pair.client.counters().datagrams_sent - before;
    assert!((9..=12).contains(&sent), "{sent} in ten leases");
}

#[test]
fn silence_ends_the_session_on_both_sides() {
    let mut pair = Pair::new();
    pair.client_events();
    let liveness_ns = ServerConfig::default().liveness_ns;
    pair.now_ns += liveness_ns;
    pair.client.on_timeout(pair.now_ns);
    pair.server.on_timeout(pair.now_ns);
    assert_eq!(
        pair.client_events(),
        [ClientEvent::SessionLost(LossReason::Silence)]
    );
    assert_eq!(
        pair.server_events(),
        [ServerEvent::PeerLost(PeerLoss::Silence)]
    );
    assert!(!pair.client.is_established());
    assert!(pair.server.is_closed());
    assert_eq!(pair.client.next_timeout(), None);
    assert_eq!(pair.server.next_timeout(), None);
}

#[test]
fn a_handshake_that_stalls_is_given_up() {
    let mut pair = Pair::unconnected(ClientConfig::default(), ServerConfig::default());
    pair.client.connected(pair.now_ns);
    pair.now_ns += 3_000 * MS;
    pair.client.on_timeout(pair.now_ns);
    pair.server.on_timeout(pair.now_ns);
    let lost = ClientEvent::SessionLost(LossReason::HandshakeTimeout);
    assert_eq!(pair.client_events(), [lost]);
    let lost = ServerEvent::PeerLost(PeerLoss::HandshakeTimeout);
    assert_eq!(pair.server_events(), [lost]);
}

#[test]
fn a_client_of_another_version_is_told_both_versions() {
    let mut pair = Pair::unconnected(ClientConfig::default(), ServerConfig::default());
    pair.client.connected(pair.now_ns);
    let body = &bodies(std::iter::from_fn(|| pair.client.poll_control()))[0];
    let Ok(ControlMessage::Hello(mut hello)) = ControlMessage::decode(body) else {
        panic!("no Hello");
    };
    hello.version = 9;
    let frame = ControlMessage::Hello(hello).to_frame().unwrap();
    let body = &bodies(std::iter::once(frame))[0];
    pair.server.on_control(pair.now_ns, body).unwrap();
    assert!(pair.server.is_closed());
    assert!(matches!(
        pair.server_events()[..],
        [ServerEvent::Refused(_)]
    ));
    pair.server_stream();
    let [ClientEvent::Refused(refusal)] = &pair.client_events()[..] else {
        panic!("not refused");
    };
    assert_eq!(refusal.code, RefusalCode::VersionMismatch);
    assert!(!refusal.retry);
    assert!(refusal.reason.contains("version 9"), "{}", refusal.reason);
    let own = format!("version {VERSION}");
    assert!(refusal.reason.contains(&own), "{}", refusal.reason);
}

#[test]
fn a_refusal_ends_an_established_session() {
    let mut pair = Pair::new();
    pair.client_events();
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    let refusal = Refusal {
        code: RefusalCode::Draining,
        reason: "shutting down".to_owned(),
        retry: true,
    };
    pair.server.refuse(refusal.clone());
    assert!(pair.server.is_closed());
    pair.server_stream();
    assert_eq!(pair.client_events(), [ClientEvent::Refused(refusal)]);
    assert_eq!(pair.from_client(), None);
    // The flow waits for the next session.
    assert_eq!(pair.client.flow_count(), 1);
}

#[test]
fn the_kill_switch_withholds_rates_and_gives_them_back() {
    let mut pair = Pair::new();
    let flow = FlowId::new(0, 0);
    let rate = (flow, RateCode::encode(3_000_000).decode());
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    pair.settle();
    pair.server.set_rate(pair.now_ns, flow, 1_000_000).unwrap();
    pair.settle();
    pair.client_events();
    pair.server.set_released(true);
    // By the datagram alone: the stream may be slow.
    pair.settle();
    assert_eq!(pair.client_events(), [ClientEvent::Released(true)]);
    pair.client.confirm_release(0).unwrap();
    pair.client_stream();
    let ack = ServerEvent::ReleaseAck {
        released: true,
        paced_flows: 0,
    };
    assert!(pair.server_events().contains(&ack));
    pair.server.set_rate(pair.now_ns, flow, 3_000_000).unwrap();
    pair.settle();
    pair.server_stream();
    assert_eq!(pair.client_events(), []);
    pair.server.set_released(false);
    // By the stream alone: the datagram is lost.
    pair.from_server().expect("a datagram at once");
    pair.server_stream();
    let events = pair.client_events();
    assert_eq!(events[0], ClientEvent::Released(false));
    let last = events.last().cloned();
    assert!(
        matches!(last, Some(ClientEvent::Rate { flow, rate_bps, .. }) if (flow, rate_bps) == rate),
        "{events:?}"
    );
}

#[test]
fn a_client_that_joins_under_the_kill_switch_is_released() {
    let mut pair = Pair::unconnected(ClientConfig::default(), ServerConfig::default());
    pair.client.connected(pair.now_ns);
    pair.client_stream();
    let released = Admission {
        released: true,
        ..admission()
    };
    pair.server.accept(pair.now_ns, released).unwrap();
    pair.server_stream();
    let events = pair.client_events();
    assert!(matches!(
        events[..],
        [ClientEvent::Established(_), ClientEvent::Released(true)]
    ));
}

#[test]
fn only_the_newest_topology_waits() {
    let mut pair = Pair::new();
    pair.client_events();
    for version in [2, 3, 4] {
        let topology = TopologySnapshot {
            version,
            ..TopologySnapshot::default()
        };
        pair.server.set_topology(Arc::new(topology)).unwrap();
    }
    pair.server_stream();
    let events = pair.client_events();
    assert!(
        matches!(&events[..], [ClientEvent::Topology(topology)] if topology.version == 4),
        "{events:?}"
    );
}

#[test]
fn starts_beyond_the_clients_table_are_refused_and_counted() {
    let config = ClientConfig {
        max_flows: 4,
        ..ClientConfig::default()
    };
    let mut pair = Pair::with(config, ServerConfig::default());
    for slot in 0..1_000 {
        let result = pair.client.start(pair.now_ns, start(slot, 0));
        assert_eq!(result.is_ok(), slot < 4);
    }
    pair.settle();
    assert_eq!(pair.client.counters().starts_refused, 996);
    assert_eq!(pair.server.flow_count(), 4);
}

/// A client that ignores the agreed bound: its flood is counted, the flows
/// within the bound go on.
#[test]
fn a_flood_of_starts_beyond_the_servers_table_loses_nothing_within_it() {
    let config = ServerConfig {
        max_flows: 8,
        ..ServerConfig::default()
    };
    let mut pair = Pair::with(ClientConfig::default(), config.clone());
    for slot in 0..1_000 {
        pair.client.start(pair.now_ns, start(slot, 0)).unwrap();
    }
    pair.settle();
    // A well-behaved client keeps to the bound.
    assert_eq!(pair.server.flow_count(), 8);
    assert_eq!(pair.server.counters().starts_refused, 0);
    assert_eq!(pair.client.counters().flows_beyond_peer_table, 992);

    // The same client, told of a larger table than the server has.
    let mut flood = Pair::new();
    flood.client.start(flood.now_ns, start(3, 0)).unwrap();
    for slot in 8..1_000 {
        flood.client.start(flood.now_ns, start(slot, 0)).unwrap();
    }
    let mut small = Pair::with(ClientConfig::default(), config);
    let mut seen = 0;
    while let Some(bytes) = flood.from_client() {
        small.server.on_datagram(small.now_ns, &bytes).unwrap();
        seen += 1;
    }
    assert!(seen > 10);
    assert_eq!(small.server.counters().starts_refused, 992);
    assert_eq!(small.server_events(), [ServerEvent::Start(start(3, 0))]);
}

#[test]
fn datagrams_in_flight_are_bounded() {
    let config = ClientConfig {
        max_in_flight: 3,
        ..ClientConfig::default()
    };
    let mut pair = Pair::with(config, ServerConfig::default());
    let mut out = Vec::new();
    for slot in 0..100 {
        pair.client.start(pair.now_ns, start(slot, 0)).unwrap();
    }
    let mut sent = 0;
    while pair
        .client
        .poll_datagram(pair.now_ns, MIN_DATAGRAM_BYTES, &mut out)
    {
        assert!(out.len() <= MIN_DATAGRAM_BYTES);
        sent += 1;
    }
    assert_eq!(sent, 3);
    assert!(pair.client.counters().in_flight_full > 0);
    assert!(pair.client.next_timeout().unwrap() > pair.now_ns);
}

#[test]
fn telemetry_arrives_checked_and_waits_within_bounds() {
    let message = |bandwidth_bps| Telemetry {
        links: vec![LinkInt {
            bandwidth_bps,
            ..LinkInt::default()
        }],
        ..Telemetry::default()
    };
    let config = ClientConfig {
        max_control_bytes: 1_000,
        ..ClientConfig::default()
    };
    let mut pair = Pair::with(config, ServerConfig::default());
    assert!(matches!(
        pair.client.send_telemetry(message(0)),
        Err(SessionError::Invalid { .. })
    ));
    pair.client.send_telemetry(message(7)).unwrap();
    pair.client_stream();
    assert_eq!(pair.server_events(), [ServerEvent::Telemetry(message(7))]);
    let refused = (0..1_000)
        .filter(|_| pair.client.send_telemetry(message(7)).is_err())
        .count();
    assert!(refused > 500);
    assert_eq!(pair.client.counters().telemetry_dropped, refused as u64);
}

#[test]
fn telemetry_that_nobody_takes_is_dropped_and_counted() {
    let config = ServerConfig {
        max_events: 10,
        ..ServerConfig::default()
    };
    let mut pair = Pair::with(ClientConfig::default(), config);
    for _ in 0..25 {
        pair.client.send_telemetry(Telemetry::default()).unwrap();
    }
    pair.client_stream();
    assert_eq!(pair.server_events().len(), 10);
    assert_eq!(pair.server.counters().telemetry_dropped, 15);
}

/// Everything that tells of a session's state, to show that nothing changed.
fn client_state(client: &ClientSession) -> String {
    let flows: Vec<_> = client.flows().collect();
    format!(
        "{flows:?} {:?} {} {}",
        client.next_timeout(),
        client.lease_expires_ns(),
        client.has_events(),
    )
}

fn server_state(server: &ServerSession) -> String {
    let flows: Vec<_> = server.flows().collect();
    format!(
        "{flows:?} {:?} {} {}",
        server.next_timeout(),
        server.last_heard_ns(),
        server.has_events(),
    )
}

#[test]
fn truncated_datagrams_change_nothing_but_a_counter() {
    let mut pair = Pair::new();
    for slot in 0..3 {
        pair.client.start(pair.now_ns, start(slot, 0)).unwrap();
    }
    let to_server = pair.from_client().unwrap();
    let before = server_state(&pair.server);
    for length in 0..to_server.len() {
        let result = pair
            .server
            .on_datagram(pair.now_ns + 1, &to_server[..length]);
        assert!(
            matches!(result, Err(DatagramError::Length { .. })),
            "{length}"
        );
        assert_eq!(server_state(&pair.server), before);
    }
    assert_eq!(
        pair.server.counters().dropped_malformed,
        to_server.len() as u64
    );
    pair.server.on_datagram(pair.now_ns, &to_server).unwrap();
    pair.server_events();
    for slot in 0..3 {
        pair.server
            .set_rate(pair.now_ns, FlowId::new(slot, 0), 1_000_000)
            .unwrap();
    }
    let to_client = pair.from_server().unwrap();
    pair.client_events();
    let before = client_state(&pair.client);
    for length in 0..to_client.len() {
        let result = pair
            .client
            .on_datagram(pair.now_ns + 1, &to_client[..length]);
        assert!(
            matches!(result, Err(DatagramError::Length { .. })),
            "{length}"
        );
        assert_eq!(client_state(&pair.client), before);
    }
    assert_eq!(
        pair.client.counters().dropped_malformed,
        to_client.len() as u64
    );
    pair.client.on_datagram(pair.now_ns, &to_client).unwrap();
    assert_eq!(pair.rates().len(), 3);
}

/// QUIC and the sealed transport authenticate datagrams, so a flipped bit
/// never comes from the wire; still, none may do harm: each is either refused
/// and changes nothing, or is another valid datagram.
#[test]
fn flipped_bits_are_refused_or_mean_something_else() {
    let mut pair = Pair::new();
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    let to_server = pair.from_client().unwrap();
    let mut refused = 0;
    for bit in 0..to_server.len() * 8 {
        let mut bytes = to_server.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let mut fresh = Pair::new();
        fresh.server_events();
        let before = server_state(&fresh.server);
        if fresh.server.on_datagram(fresh.now_ns, &bytes).is_err() {
            refused += 1;
            assert_eq!(server_state(&fresh.server), before, "bit {bit}");
            assert_eq!(fresh.server.counters().dropped_total(), 1, "bit {bit}");
        }
        assert!(fresh.server.flow_count() <= 1, "bit {bit}");
    }
    // All of version, counts, session and epoch, most flags, and the sequence
    // numbers that were never sent.
    assert!(refused > 8 * (1 + 6 + 4 + 4), "{refused}");
}

#[test]
fn acknowledging_what_was_never_sent_is_refused() {
    let mut pair = Pair::new();
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    let mut bytes = pair.from_client().unwrap();
    bytes[20..24].copy_from_slice(&1_000u32.to_le_bytes());
    let result = pair.server.on_datagram(pair.now_ns, &bytes);
    assert_eq!(result, Err(DatagramError::AckOfUnsent));
}

#[test]
fn control_messages_out_of_turn_are_refused_and_counted() {
    let mut pair = Pair::new();
    let hello = {
        let mut other = Pair::unconnected(ClientConfig::default(), ServerConfig::default());
        other.client.connected(0);
        bodies(std::iter::from_fn(|| other.client.poll_control())).remove(0)
    };
    let second = pair.server.on_control(pair.now_ns, &hello);
    assert!(matches!(second, Err(SessionError::Unexpected(_))));
    let wrong_way = pair.client.on_control(pair.now_ns, &hello);
    assert!(matches!(wrong_way, Err(SessionError::Unexpected(_))));
    assert!(pair.server.on_control(pair.now_ns, b"\xff").is_err());
    assert_eq!(pair.server.counters().control_invalid, 2);
    assert_eq!(pair.client.counters().control_invalid, 1);
    assert!(pair.server.is_established() && pair.client.is_established());
}

#[test]
fn nothing_is_accepted_or_sent_without_a_session() {
    let mut pair = Pair::unconnected(ClientConfig::default(), ServerConfig::default());
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    assert_eq!(pair.from_client(), None);
    assert_eq!(pair.from_server(), None);
    let refused = Err(DatagramError::NotEstablished);
    assert_eq!(
        pair.client.on_datagram(pair.now_ns, &[VERSION; 32]),
        refused
    );
    assert_eq!(
        pair.server.on_datagram(pair.now_ns, &[VERSION; 32]),
        refused
    );
    assert!(pair.server.accept(pair.now_ns, admission()).is_err());
    assert!(pair.client.confirm_release(0).is_err());
    let counters = pair.client.counters();
    assert_eq!(counters.dropped_not_established, 1);
    let mut named = 0;
    counters.for_each(|name, value| {
        named += u32::from(name == "dropped_not_established" && value == 1)
    });
    assert_eq!(named, 1);
}
