//! Counters and views, compared with a tally of the exchanged messages.

use super::session_pair::{LEASE_NS, MS, SessionPair, admission, bodies, start};
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
        pair.hand_to_server(pair.now_ns, &datagram).unwrap();
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
            pair.hand_to_server(pair.now_ns, &answer).unwrap();
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
    pair.hand_to_server(pair.now_ns, &datagram).unwrap();
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

/// A datagram is lost once three later ones have been acknowledged. A server datagram that comes
/// after the lease still says so.
#[test]
fn a_client_counts_its_losses_whether_the_answer_comes_in_time_or_not() {
    for late_ns in [MS, LEASE_NS] {
        let mut pair = SessionPair::new();
        let mut newest = Vec::new();
        for slot in 0..6 {
            pair.client.start(pair.now_ns, start(slot, 0)).unwrap();
            newest = pair.client_datagram().expect("a start");
        }
        pair.hand_to_server(pair.now_ns, &newest).unwrap();
        let rate = pair
            .server
            .set_rate(pair.now_ns, FlowId::new(5, 0), 1_000_000);
        assert_eq!(rate, Ok(true));
        let answer = pair.server_datagram().expect("a rate");
        let answered = pair.client.on_datagram(pair.now_ns + late_ns, &answer);
        assert_eq!(answered.is_ok(), late_ns < LEASE_NS);
        // The first three of six, the last of which arrived.
        assert_eq!(pair.client.counters().datagrams_lost, 3);
        let before = *pair.client.counters();
        let again = pair.client_datagram().expect("what was lost is sent again");
        assert_eq!(pair.client.counters().since(&before).starts_sent, 3);
        pair.hand_to_server(pair.now_ns, &again).unwrap();
        assert_eq!(pair.server.flow_count(), 4);
    }
}

#[test]
fn a_timeout_counts_once_and_each_datagram_that_it_loses() {
    let mut pair = SessionPair::new();
    for slot in 0..2 {
        pair.client.start(pair.now_ns, start(slot, 0)).unwrap();
        pair.client_datagram().expect("a start, lost");
    }
    pair.now_ns = pair.client.next_timeout().expect("it waits");
    pair.client.on_timeout(pair.now_ns);
    let counters = pair.client.counters();
    assert_eq!((counters.timeouts, counters.datagrams_lost), (1, 2));
    pair.settle();
    for slot in 0..2 {
        let flow = FlowId::new(slot, 0);
        pair.server.set_rate(pair.now_ns, flow, 1_000_000).unwrap();
        pair.server_datagram().expect("a rate, lost");
    }
    pair.now_ns = pair.server.next_timeout().expect("it waits");
    pair.server.on_timeout(pair.now_ns);
    let counters = pair.server.counters();
    assert_eq!((counters.timeouts, counters.datagrams_lost), (1, 2));
    pair.settle();
    assert_eq!(pair.rates().len(), 2);
    // Nothing more is lost, and a quiet timer is no time-out.
    pair.server.on_timeout(pair.now_ns);
    assert_eq!(pair.server.counters().timeouts, 1);
    assert!(pair.server.srtt_ns().is_some_and(|srtt_ns| srtt_ns > 1));
}

/// Each kind that one end sends, the other receives.
#[test]
fn records_are_counted_by_kind_at_both_ends() {
    let mut pair = SessionPair::new();
    let (before_client, before_server) = (*pair.client.counters(), *pair.server.counters());
    for slot in 0..5 {
        pair.client.start(pair.now_ns, start(slot, 0)).unwrap();
    }
    pair.settle();
    for round in 1..=2 {
        for slot in 0..5 {
            let flow = FlowId::new(slot, 0);
            let rate_bps = 1_000_000 * round;
            pair.server.set_rate(pair.now_ns, flow, rate_bps).unwrap();
        }
        pair.settle();
    }
    for slot in 0..3 {
        pair.client.end(pair.now_ns, FlowId::new(slot, 0)).unwrap();
    }
    pair.settle();
    pair.now_ns = pair.client.next_timeout().expect("a keep-alive");
    pair.client.on_timeout(pair.now_ns);
    pair.settle();
    let client = pair.client.counters().since(&before_client);
    let server = pair.server.counters().since(&before_server);
    assert_eq!((client.starts_sent, server.starts_received), (5, 5));
    assert_eq!((client.ends_sent, server.ends_received), (3, 3));
    assert_eq!((server.rates_sent, client.rates_received), (10, 10));
    assert_eq!(client.keep_alives_sent, 1);
    assert_eq!(client.datagrams_sent, server.datagrams_received);
    assert_eq!(server.datagrams_sent, client.datagrams_received);
    assert_eq!(client.datagram_bytes_sent, server.datagram_bytes_received);
    assert_eq!(server.datagram_bytes_sent, client.datagram_bytes_received);
    // Starts, ends and a keep-alive went in three datagrams, rates in two. The rest acknowledges.
    assert_eq!(client.datagrams_sent, 3 + client.acks_sent);
    assert_eq!(server.datagrams_sent, 2 + server.acks_sent);
}

#[test]
fn a_frame_that_means_nothing_is_counted_at_both_ends() {
    let mut pair = SessionPair::new();
    for round in 1..=2 {
        assert!(pair.client.on_control(pair.now_ns, &[0xff; 9]).is_err());
        assert!(pair.server.on_control(pair.now_ns, &[0xff; 9]).is_err());
        assert_eq!(pair.client.counters().control_invalid, round);
        assert_eq!(pair.server.counters().control_invalid, round);
    }
}

#[test]
fn the_kill_switch_is_known_where_it_was_turned() {
    let mut pair = SessionPair::new();
    for released in [true, false] {
        pair.server.set_released(released);
        assert_eq!(pair.server.is_released(), released);
        pair.server_stream();
        assert_eq!(pair.client.is_released(), released);
        assert!(!pair.client.observes());
    }
    pair.server.set_observing();
    pair.server_stream();
    assert!(pair.server.is_released() && pair.client.observes());
}
