//! Counters and views, compared with a tally of the exchanged messages.

use crate::session_pair::{MS, SessionPair, admission, bodies, start};
use ratewright_proto::FlowId;
use ratewright_proto::client::{ClientConfig, ClientEvent};
use ratewright_proto::server::ServerConfig;

#[test]
fn every_control_message_is_counted_where_it_is_sent() {
    let mut pair = SessionPair::unconnected(ClientConfig::default(), ServerConfig::default());
    let (mut of_client, mut of_server) = (0, 0);
    let mut cross = |pair: &mut SessionPair| {
        for body in bodies(std::iter::from_fn(|| pair.client.poll_control())) {
            of_client += 1;
            pair.server.on_control(pair.now_ns, &body).unwrap();
        }
        pair.server_events();
        if pair.server.counters().control_received == 1 && of_server == 0 {
            pair.server.accept(pair.now_ns, admission()).unwrap();
        }
        for body in bodies(std::iter::from_fn(|| pair.server.poll_control())) {
            of_server += 1;
            pair.client.on_control(pair.now_ns, &body).unwrap();
        }
        assert_eq!(pair.client.counters().control_sent, of_client);
        assert_eq!(pair.server.counters().control_received, of_client);
        assert_eq!(pair.server.counters().control_sent, of_server);
        assert_eq!(pair.client.counters().control_received, of_server);
        (of_client, of_server)
    };
    pair.client.connected(pair.now_ns);
    let (hellos, answers) = cross(&mut pair);
    assert!(hellos == 1 && answers >= 1, "{hellos} and {answers}");
    pair.server.set_released(true);
    assert_eq!(cross(&mut pair), (1, answers + 1));
    assert!(
        pair.client_events()
            .iter()
            .any(|event| matches!(event, ClientEvent::Released(_)))
    );
    pair.client.confirm_release(7).unwrap();
    assert_eq!(cross(&mut pair), (2, answers + 1));
}

#[test]
fn every_datagram_is_counted_with_its_bytes_and_every_loss_once() {
    let mut pair = SessionPair::new();
    let (mut datagrams, mut bytes) = {
        let counters = pair.client.counters();
        (counters.datagrams_sent, counters.datagram_bytes_sent)
    };
    assert_eq!(pair.server.counters().datagrams_received, datagrams);
    for slot in 0..8 {
        pair.client.start(pair.now_ns, start(slot, 0)).unwrap();
        let datagram = pair.client_datagram().expect("a start");
        datagrams += 1;
        bytes += datagram.len() as u64;
        pair.server.on_datagram(pair.now_ns, &datagram).unwrap();
        pair.now_ns += 10_000;
    }
    let counters = pair.client.counters();
    assert_eq!(counters.datagrams_sent, datagrams);
    assert_eq!(counters.datagram_bytes_sent, bytes);
    assert_eq!((counters.starts_sent, counters.ends_sent), (8, 0));
    assert_eq!(pair.server.counters().datagram_bytes_received, bytes);
    pair.settle();

    // One datagram with a rate is lost, and many after it are not.
    let lost = pair.server.counters().datagrams_lost;
    assert_eq!(lost, 0);
    for slot in 0..8 {
        let rate_bps = 1_000_000 * (u64::from(slot) + 1);
        let queued = pair
            .server
            .set_rate(pair.now_ns, FlowId::new(slot, 0), rate_bps);
        assert_eq!(queued, Ok(true));
        let datagram = pair.server_datagram().expect("a first rate");
        // The first is lost: three later ones that arrive prove it (REORDER_THRESHOLD).
        if slot > 0 {
            pair.client.on_datagram(pair.now_ns, &datagram).unwrap();
        }
        pair.now_ns += MS;
        while let Some(answer) = pair.client_datagram() {
            pair.server.on_datagram(pair.now_ns, &answer).unwrap();
        }
    }
    pair.settle();
    assert_eq!(pair.server.counters().datagrams_lost, 1);
    let rates = pair.rates();
    assert!(
        rates.iter().any(|(flow, _)| *flow == FlowId::new(0, 0)),
        "what was lost was sent again: {rates:?}"
    );

    let before = *pair.client.counters();
    assert!(before.acks_sent > 0, "rates were acknowledged");
    for slot in 0..3 {
        pair.client.end(pair.now_ns, FlowId::new(slot, 0)).unwrap();
    }
    assert!(pair.client_datagram().is_some());
    let since = pair.client.counters().since(&before);
    assert_eq!((since.ends_sent, since.acks_sent), (3, 0));
}

#[test]
fn flows_beyond_the_servers_table_are_counted_when_it_says_how_large_that_is() {
    let server = ServerConfig {
        max_flows: 8,
        ..ServerConfig::default()
    };
    let mut pair = SessionPair::unconnected(ClientConfig::default(), server);
    for slot in 0..11 {
        pair.client.start(pair.now_ns, start(slot, 0)).unwrap();
    }
    pair.client.connected(pair.now_ns);
    pair.client_stream();
    pair.server_events();
    assert_eq!(pair.client.counters().flows_beyond_peer_table, 0);
    pair.server.accept(pair.now_ns, admission()).unwrap();
    pair.server_stream();
    assert_eq!(pair.client.counters().flows_beyond_peer_table, 3);
}

#[test]
fn a_round_trip_is_measured_once_there_was_one() {
    let mut pair = SessionPair::unconnected(ClientConfig::default(), ServerConfig::default());
    assert_eq!(pair.client.srtt_ns(), None);
    pair.client.connected(pair.now_ns);
    pair.client_stream();
    pair.server_events();
    pair.server.accept(pair.now_ns, admission()).unwrap();
    pair.server_stream();
    assert_eq!(
        pair.client.srtt_ns(),
        None,
        "no datagram was acknowledged yet"
    );
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    let datagram = pair.client_datagram().expect("a start");
    pair.now_ns += MS;
    pair.server.on_datagram(pair.now_ns, &datagram).unwrap();
    let queued = pair
        .server
        .set_rate(pair.now_ns, FlowId::new(0, 0), 1_000_000);
    assert_eq!(queued, Ok(true));
    let answer = pair
        .server_datagram()
        .expect("a rate with an acknowledgement");
    pair.now_ns += 2 * MS;
    pair.client.on_datagram(pair.now_ns, &answer).unwrap();
    assert_eq!(pair.client.srtt_ns(), Some(3 * MS));
}
