//! Malformed and misplaced input.

use super::session_pair::{SessionPair, admission, start};
use ratewright_proto::client::{ClientConfig, ClientSession};
use ratewright_proto::server::{ServerConfig, ServerSession};
use ratewright_proto::{DatagramError, FlowId, VERSION};

/// All visible state of a session, to show that nothing changed.
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
    let mut pair = SessionPair::new();
    for slot in 0..3 {
        pair.client.start(pair.now_ns, start(slot, 0)).unwrap();
    }
    let to_server = pair.client_datagram().unwrap();
    let before = server_state(&pair.server);
    for length in 0..to_server.len() {
        let result = pair
            .server
            .on_datagram(pair.now_ns + 1, &to_server[..length], |_| ());
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
    pair.hand_to_server(pair.now_ns, &to_server).unwrap();
    pair.server_events();
    for slot in 0..3 {
        pair.server
            .set_rate(pair.now_ns, FlowId::new(slot, 0), 1_000_000)
            .unwrap();
    }
    let to_client = pair.server_datagram().unwrap();
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

/// QUIC and the sealed transport authenticate datagrams, so a flipped bit never comes from the
/// wire. Still, none may do harm: each is refused and changes nothing, or is another valid
/// datagram.
#[test]
fn flipped_bits_are_refused_or_mean_something_else() {
    let mut pair = SessionPair::new();
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    let to_server = pair.client_datagram().unwrap();
    let mut refused = 0;
    for bit in 0..to_server.len() * 8 {
        let mut bytes = to_server.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let mut fresh = SessionPair::new();
        fresh.server_events();
        let before = server_state(&fresh.server);
        if fresh.hand_to_server(fresh.now_ns, &bytes).is_err() {
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
    let mut pair = SessionPair::new();
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    let mut bytes = pair.client_datagram().unwrap();
    // Bytes 20 to 24 of the header hold the acknowledged number.
    bytes[20..24].copy_from_slice(&1_000u32.to_le_bytes());
    let result = pair.hand_to_server(pair.now_ns, &bytes);
    assert_eq!(result, Err(DatagramError::AckOfUnsent));
}

#[test]
fn nothing_is_accepted_or_sent_without_a_session() {
    let mut pair = SessionPair::unconnected(ClientConfig::default(), ServerConfig::default());
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    assert_eq!(pair.client_datagram(), None);
    assert_eq!(pair.server_datagram(), None);
    let refused = Err(DatagramError::NotEstablished);
    assert_eq!(
        pair.client.on_datagram(pair.now_ns, &[VERSION; 32]),
        refused
    );
    assert_eq!(pair.hand_to_server(pair.now_ns, &[VERSION; 32]), refused);
    assert!(pair.server.accept(pair.now_ns, admission()).is_err());
    assert!(pair.client.confirm_release(0).is_err());
    let counters = pair.client.counters();
    assert_eq!(counters.dropped_not_established, 1);
    let mut named = 0;
    counters.for_each(|name, value| {
        named += u32::from(name == "dropped_not_established" && value == 1);
    });
    assert_eq!(named, 1);
}
