//! Behaviour at the bounds of tables and queues.

use super::session_pair::{SessionPair, start};
use ratewright_proto::client::ClientConfig;
use ratewright_proto::datagram::MIN_DATAGRAM_BYTES;
use ratewright_proto::server::{FlowChange, ServerConfig};
use ratewright_proto::telemetry::Telemetry;

#[test]
fn starts_beyond_the_clients_table_are_refused_and_counted() {
    let config = ClientConfig {
        max_flows: 4,
        ..ClientConfig::default()
    };
    let mut pair = SessionPair::with(config, ServerConfig::default());
    for slot in 0..1_000 {
        let result = pair.client.start(pair.now_ns, start(slot, 0));
        assert_eq!(result.is_ok(), slot < 4);
    }
    pair.settle();
    assert_eq!(pair.client.counters().starts_refused, 996);
    assert_eq!(pair.server.flow_count(), 4);
}

/// The server counts the flood of a client that ignores the agreed bound; flows within it go on.
#[test]
fn a_flood_of_starts_beyond_the_servers_table_loses_nothing_within_it() {
    let config = ServerConfig {
        max_flows: 8,
        ..ServerConfig::default()
    };
    let mut pair = SessionPair::with(ClientConfig::default(), config.clone());
    for slot in 0..1_000 {
        pair.client.start(pair.now_ns, start(slot, 0)).unwrap();
    }
    pair.settle();
    // A well-behaved client keeps to the bound.
    assert_eq!(pair.server.flow_count(), 8);
    assert_eq!(pair.server.counters().starts_refused, 0);
    assert_eq!(pair.client.counters().flows_beyond_peer_table, 992);

    // A client that was promised a larger table than this server has.
    let mut flood = SessionPair::new();
    flood.client.start(flood.now_ns, start(3, 0)).unwrap();
    for slot in 8..1_000 {
        flood.client.start(flood.now_ns, start(slot, 0)).unwrap();
    }
    let mut small = SessionPair::with(ClientConfig::default(), config);
    let mut seen = 0;
    while let Some(bytes) = flood.client_datagram() {
        small.hand_to_server(small.now_ns, &bytes).unwrap();
        seen += 1;
    }
    // The flood spans many datagrams, each of which the server must survive.
    assert!(seen > 10);
    assert_eq!(small.server.counters().starts_refused, 992);
    assert_eq!(small.server_changes(), [FlowChange::Start(start(3, 0))]);
}

#[test]
fn datagrams_in_flight_are_bounded() {
    let config = ClientConfig {
        max_in_flight: 3,
        ..ClientConfig::default()
    };
    let mut pair = SessionPair::with(config, ServerConfig::default());
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
fn telemetry_that_nobody_takes_is_dropped_and_counted() {
    let config = ServerConfig {
        max_events: 10,
        ..ServerConfig::default()
    };
    let mut pair = SessionPair::with(ClientConfig::default(), config);
    for _ in 0..25 {
        pair.client.send_telemetry(Telemetry::default()).unwrap();
    }
    pair.client_stream();
    assert_eq!(pair.server_events().len(), 10);
    assert_eq!(pair.server.counters().telemetry_dropped, 15);
}
