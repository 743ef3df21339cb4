use super::*;
use crate::datagram::SessionRole;
use proptest::prelude::*;

const SESSION: u32 = 7;

fn pair_of(config: SealedConfig) -> (SealedSession, SealedSession) {
    let secret = Secret::new([42; Secret::BYTES]);
    (
        SealedSession::new(config, SessionRole::Client, SESSION, &secret),
        SealedSession::new(config, SessionRole::Server, SESSION, &secret),
    )
}

fn pair() -> (SealedSession, SealedSession) {
    pair_of(SealedConfig::default())
}

fn seal(session: &mut SealedSession, text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    session
        .seal(text, &mut out)
        .expect("a datagram of this size is sealed");
    out
}

fn open(session: &mut SealedSession, sealed: &[u8]) -> Result<Vec<u8>, OpenError> {
    session.open(&mut sealed.to_vec()).map(|text| text.to_vec())
}

#[test]
fn either_cipher_opens_in_both_directions_what_the_other_end_sealed() {
    for cipher in Cipher::ALL {
        let (mut client, mut server) = pair_of(SealedConfig {
            cipher,
            ..SealedConfig::default()
        });
        for text in [&b""[..], b"start", &[3; 1_424]] {
            let up = seal(&mut client, text);
            assert_eq!(up.len(), text.len() + OVERHEAD_BYTES);
            assert_eq!(open(&mut server, &up).as_deref(), Ok(text));
            let down = seal(&mut server, text);
            assert_eq!(open(&mut client, &down).as_deref(), Ok(text));
        }
        assert_eq!(Cipher::from_name(cipher.name()), Some(cipher));
        assert_eq!(Cipher::from_number(cipher.number()), Some(cipher));
    }
}

#[test]
fn after_too_many_forgeries_nothing_opens_under_any_key() {
    let (mut client, mut server) = pair_of(SealedConfig {
        max_forged: 3,
        ..SealedConfig::default()
    });
    for round in 0..3 {
        // What opens in between, and another key, give no new attempts.
        let good = seal(&mut client, b"good");
        assert_eq!(
            open(&mut server, &good).as_deref(),
            Ok(&b"good"[..]),
            "{round}"
        );
        // One that was seen before costs no attempt.
        assert_eq!(open(&mut server, &good), Err(OpenError::Replayed));
        client.request_key_update();
        let back = seal(&mut server, b"");
        open(&mut client, &back).expect("good");
        let mut forged = seal(&mut client, b"forged");
        *forged.last_mut().expect("a tag") ^= 1;
        assert_eq!(open(&mut server, &forged), Err(OpenError::Forged));
    }
    let good = seal(&mut client, b"good");
    assert_eq!(open(&mut server, &good), Err(OpenError::Spent));
    client.request_key_update();
    let newer = seal(&mut client, b"newer");
    assert_eq!(open(&mut server, &newer), Err(OpenError::Spent));
    // The other direction goes on: its keys are others.
    let back = seal(&mut server, b"back");
    assert_eq!(open(&mut client, &back).as_deref(), Ok(&b"back"[..]));
}

#[test]
fn the_text_is_not_in_the_clear_and_no_two_datagrams_are_alike() {
    let (mut client, _) = pair();
    let text = b"a text that is long enough to be told from noise";
    let first = seal(&mut client, text);
    let second = seal(&mut client, text);
    assert!(
        !first
            .windows(8)
            .any(|window| text.windows(8).any(|part| part == window))
    );
    // Another number is another nonce, so equal texts give different cipher texts.
    assert_ne!(first[HEADER_BYTES..], second[HEADER_BYTES..]);
}

#[test]
fn a_datagram_of_ones_own_does_not_open() {
    let (mut client, _) = pair();
    // The directions have different keys, so a reflected datagram is a forgery.
    let own = seal(&mut client, b"reflected");
    assert_eq!(open(&mut client, &own), Err(OpenError::Forged));
}

#[test]
fn other_secrets_sessions_and_epochs_do_not_open() {
    let (mut client, _) = pair();
    let sealed = seal(&mut client, b"start");
    let config = SealedConfig::default();
    let mut stranger =
        SealedSession::new(config, SessionRole::Server, SESSION, &Secret::new([43; 32]));
    assert_eq!(open(&mut stranger, &sealed), Err(OpenError::Forged));
    let mut other = SealedSession::new(config, SessionRole::Server, 8, &Secret::new([42; 32]));
    assert_eq!(open(&mut other, &sealed), Err(OpenError::UnknownSession));
    assert_ne!(
        keys::exporter_context(1, SESSION),
        keys::exporter_context(2, SESSION)
    );
    assert_ne!(
        keys::exporter_context(1, SESSION),
        keys::exporter_context(1, 8)
    );
}

#[test]
fn every_reason_is_told_and_counted() {
    let (mut client, mut server) = pair();
    let sealed = seal(&mut client, b"start");
    let mut counters = SealedCounters::default();
    let before = server.fingerprint();
    let mut altered = sealed.clone();
    altered[20] ^= 1;
    let mut other_version = sealed.clone();
    other_version[0] ^= 1;
    for (bytes, reason) in [
        (sealed[..OVERHEAD_BYTES - 1].to_vec(), OpenError::Truncated),
        (sealed[..sealed.len() - 1].to_vec(), OpenError::Forged),
        (vec![MAGIC; MAX_SEALED_BYTES + 1], OpenError::Oversized),
        (altered, OpenError::Forged),
        (other_version, OpenError::Malformed),
    ] {
        let found = open(&mut server, &bytes).expect_err("not to be trusted");
        assert_eq!(found, reason);
        counters.dropped(found);
        assert_eq!(
            server.fingerprint(),
            before,
            "{reason:?} changed the session"
        );
    }
    assert!(open(&mut server, &sealed).is_ok());
    let before = server.fingerprint();
    assert_eq!(open(&mut server, &sealed), Err(OpenError::Replayed));
    assert_eq!(server.fingerprint(), before);
    assert_eq!(
        (
            counters.truncated,
            counters.forged,
            counters.oversized,
            counters.malformed
        ),
        (1, 2, 1, 1)
    );
    assert_eq!(counters.dropped_total(), 5);
}

#[test]
fn what_opens_and_what_changes_keys_is_counted() {
    let (mut client, mut server) = pair();
    let (mut sent, mut received) = (SealedCounters::default(), SealedCounters::default());
    let mut datagrams = Vec::new();
    for text in [&b"first"[..], b"", b"under another key"] {
        if text.len() > 10 {
            client.request_key_update();
        }
        let mut out = Vec::new();
        client
            .seal_counted(text, &mut out, &mut sent)
            .expect("a datagram of this size is sealed");
        datagrams.push((text, out));
    }
    // The middle one arrives first, so the first is opened without being the newest.
    datagrams.swap(0, 1);
    let mut newest = Vec::new();
    for (text, sealed) in &mut datagrams {
        let bytes = sealed.len() as u64;
        let before = received;
        let header = received.header_of(sealed).expect("a header");
        let opened = server
            .open_counted(header, sealed, &mut received)
            .expect("the true one opens");
        assert_eq!(opened.text, *text);
        newest.push(opened.newest);
        assert_eq!(received.opened, before.opened + 1);
        assert_eq!(received.opened_bytes, before.opened_bytes + bytes);
    }
    assert_eq!(newest, [true, false, true]);
    assert_eq!((sent.key_updates, received.key_updates), (1, 1));
    assert_eq!(received.dropped_total(), 0);

    let mut forged = seal(&mut client, b"forged");
    forged[20] ^= 1;
    let before = received;
    let header = received.header_of(&forged).expect("a header");
    let opened = server.open_counted(header, &mut forged, &mut received);
    assert!(opened.is_none());
    assert!(received.header_of(&[0; 3]).is_none());
    let expected = SealedCounters {
        forged: 1,
        truncated: 1,
        ..before
    };
    assert_eq!(received, expected);
}

#[test]
fn too_large_a_text_is_refused_and_uses_no_number() {
    let (mut client, _) = pair();
    let before = client.fingerprint();
    let result = client.seal(&[0; MAX_SEALED_BYTES], &mut Vec::new());
    assert!(matches!(result, Err(SealError::TooLarge { .. })));
    assert_eq!(client.fingerprint(), before);
}

#[test]
fn a_second_update_waits_until_the_peer_has_shown_that_it_saw_the_first() {
    let (mut client, mut server) = pair();
    let _lost_in_the_old_phase = seal(&mut client, b"0");
    for _ in 0..3 {
        client.request_key_update();
        let _lost = seal(&mut client, b"lost");
    }
    assert_eq!(client.key_updates(), 1, "the peer has shown nothing");
    // Had it changed twice, this datagram would look like one of the first key.
    let sealed = seal(&mut client, b"arrives");
    assert_eq!(open(&mut server, &sealed).as_deref(), Ok(&b"arrives"[..]));
    let answer = seal(&mut server, b"answer");
    assert!(open(&mut client, &answer).is_ok());
    let sealed = seal(&mut client, b"next key");
    assert_eq!(
        client.key_updates(),
        2,
        "the request of before is carried out now"
    );
    assert_eq!(open(&mut server, &sealed).as_deref(), Ok(&b"next key"[..]));
}

#[test]
fn datagrams_of_the_key_before_open_for_a_while_and_then_no_more() {
    let (mut client, mut server) = pair();
    let first = seal(&mut client, b"first");
    let late = seal(&mut client, b"late");
    let later = seal(&mut client, b"too late");
    assert!(open(&mut server, &first).is_ok());
    client.request_key_update();
    let new = seal(&mut client, b"new key");
    assert!(open(&mut server, &new).is_ok());
    assert_eq!(open(&mut server, &late).as_deref(), Ok(&b"late"[..]));
    for _ in 0..1_100 {
        let sealed = seal(&mut client, b"traffic");
        assert!(open(&mut server, &sealed).is_ok());
    }
    let before = server.fingerprint();
    assert_eq!(open(&mut server, &later), Err(OpenError::OldKey));
    assert_eq!(server.fingerprint(), before);
}

#[test]
fn a_key_that_the_peer_never_follows_is_not_used_without_end() {
    let (mut client, _) = pair_of(SealedConfig {
        update_after_datagrams: 1,
        ..SealedConfig::default()
    });
    client.set_used_for_test((1 << 23) - 1);
    let mut out = Vec::new();
    // The first update needs no word from the peer, the second would.
    assert_eq!(client.seal(b"", &mut out), Ok(()));
    client.set_used_for_test(1 << 23);
    assert_eq!(client.seal(b"", &mut out), Err(SealError::KeyExhausted));
}

/// Treatment of a datagram by the network.
#[derive(Debug, Clone)]
enum PacketFate {
    Lost,
    Delivered { copies: usize, delay: usize },
}

fn fate() -> impl Strategy<Value = PacketFate> {
    prop_oneof![
        1 => Just(PacketFate::Lost),
        4 => (1usize..3, 0usize..40).prop_map(|(copies, delay)| PacketFate::Delivered { copies, delay }),
    ]
}

proptest! {
    /// Each datagram that arrives opens exactly once, to its plain text, whatever the network
    /// loses, copies and reorders and however often keys change.
    #[test]
    fn every_arrival_opens_once(
        sends in prop::collection::vec((any::<bool>(), fate(), prop::bool::weighted(0.1)), 1..200),
        after in 1u64..20,
    ) {
        let (mut client, mut server) = pair_of(SealedConfig {
            update_after_datagrams: after,
            ..SealedConfig::default()
        });
        // (arrival, order, to the server, number, bytes)
        let mut network = Vec::new();
        for (number, (up, fate, request)) in sends.into_iter().enumerate() {
            let sender = if up { &mut client } else { &mut server };
            if request {
                sender.request_key_update();
            }
            let sealed = seal(sender, &number.to_le_bytes());
            if let PacketFate::Delivered { copies, delay } = fate {
                for copy in 0..copies {
                    network.push((number + delay * (copy + 1), up, number, sealed.clone()));
                }
            }
            network.sort_by_key(|entry| entry.0);
            while network.first().is_some_and(|entry| entry.0 <= number) {
                let (_, up, number, sealed) = network.remove(0);
                let receiver = if up { &mut server } else { &mut client };
                match open(receiver, &sealed) {
                    Ok(text) => prop_assert_eq!(text, number.to_le_bytes().to_vec()),
                    // A copy, or one of a key that was replaced twice since.
                    Err(reason) => prop_assert!(
                        matches!(reason, OpenError::Replayed | OpenError::Forged),
                        "{:?}", reason
                    ),
                }
                prop_assert_eq!(open(receiver, &sealed).is_ok(), false, "opened twice");
            }
        }
        // Both are still in step: what is sealed now opens.
        let sealed = seal(&mut client, b"up");
        prop_assert!(open(&mut server, &sealed).is_ok());
        let sealed = seal(&mut server, b"down");
        prop_assert!(open(&mut client, &sealed).is_ok());
    }

    /// No change of a single datagram, at any place, opens or changes state.
    #[test]
    fn an_altered_datagram_changes_nothing(
        text in prop::collection::vec(any::<u8>(), 0..100),
        at in any::<prop::sample::Index>(),
        bits in 1u8..,
        update in any::<bool>(),
    ) {
        let (mut client, mut server) = pair();
        let first = seal(&mut client, b"first");
        prop_assert!(open(&mut server, &first).is_ok());
        if update {
            client.request_key_update();
        }
        let sealed = seal(&mut client, &text);
        let mut altered = sealed.clone();
        altered[at.index(sealed.len())] ^= bits;
        let before = server.fingerprint();
        prop_assert!(open(&mut server, &altered).is_err());
        prop_assert_eq!(server.fingerprint(), before);
        prop_assert_eq!(open(&mut server, &sealed), Ok(text), "the true one still opens");
    }
}
