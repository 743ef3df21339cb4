use proptest::prelude::*;
use prost::Message as _;

use super::*;

fn field_of(telemetry: &Telemetry) -> &'static str {
    match telemetry.validate() {
        Err(SessionError::Invalid { field, .. }) => field,
        other => panic!("{other:?}"),
    }
}

fn receivers(count: ReceiverCount) -> Telemetry {
    Telemetry {
        receivers: vec![count],
        ..Telemetry::default()
    }
}

fn credits(credit: CreditState) -> Telemetry {
    Telemetry {
        credits: vec![credit],
        ..Telemetry::default()
    }
}

#[test]
fn a_receiver_cannot_name_or_announce_more_senders_than_it_counts() {
    let count = ReceiverCount {
        active_senders: 2,
        lookahead_senders: 2,
        senders: vec![1, 2],
        ..ReceiverCount::default()
    };
    assert_eq!(receivers(count.clone()).validate(), Ok(()));
    for wrong in [
        ReceiverCount {
            lookahead_senders: 3,
            ..count.clone()
        },
        ReceiverCount {
            senders: vec![1, 2, 3],
            ..count
        },
    ] {
        assert_eq!(field_of(&receivers(wrong)), "ReceiverCount.active_senders");
    }
}

#[test]
fn flows_are_told_for_each_named_sender_or_for_none() {
    let of = |sender_flows| ReceiverCount {
        active_senders: 3,
        senders: vec![1, 2],
        sender_flows,
        ..ReceiverCount::default()
    };
    assert_eq!(receivers(of(vec![])).validate(), Ok(()));
    assert_eq!(receivers(of(vec![5, 1])).validate(), Ok(()));
    for wrong in [vec![5], vec![1, 1, 1]] {
        assert_eq!(
            field_of(&receivers(of(wrong))),
            "ReceiverCount.sender_flows"
        );
    }
}

#[test]
fn a_link_carries_no_more_managed_bytes_than_bytes() {
    let of = |managed_bytes| Telemetry {
        links: vec![LinkInt {
            bandwidth_bps: 1,
            tx_bytes: 10,
            managed_bytes,
            ..LinkInt::default()
        }],
        ..Telemetry::default()
    };
    assert_eq!(of(None).validate(), Ok(()));
    assert_eq!(of(Some(10)).validate(), Ok(()));
    assert_eq!(field_of(&of(Some(11))), "LinkInt.managed_bytes");
}

#[test]
fn credit_cannot_be_used_beyond_what_was_granted() {
    let credit = CreditState {
        granted_bytes: 10,
        consumed_bytes: 6,
        accumulated_bytes: 4,
        packets: 3,
        csn_marked_packets: 3,
        ..CreditState::default()
    };
    assert_eq!(credits(credit).validate(), Ok(()));
    for accumulated_bytes in [5, u64::MAX] {
        let wrong = CreditState {
            accumulated_bytes,
            ..credit
        };
        assert_eq!(field_of(&credits(wrong)), "CreditState.granted_bytes");
    }
    let wrong = CreditState {
        csn_marked_packets: 4,
        ..credit
    };
    assert_eq!(field_of(&credits(wrong)), "CreditState.csn_marked_packets");
}

#[test]
fn a_link_has_a_bandwidth_and_a_message_a_bound() {
    let links = |count, bandwidth_bps| Telemetry {
        links: vec![
            LinkInt {
                bandwidth_bps,
                ..LinkInt::default()
            };
            count
        ],
        ..Telemetry::default()
    };
    assert_eq!(links(MAX_ENTRIES, 1).validate(), Ok(()));
    assert_eq!(field_of(&links(MAX_ENTRIES + 1, 1)), "Telemetry.links");
    assert_eq!(field_of(&links(1, 0)), "LinkInt.bandwidth_bps");
    assert!(Telemetry::default().is_empty());
}

fn any_telemetry() -> impl Strategy<Value = Telemetry> {
    let number = || prop_oneof![Just(0), 0..300_u64, any::<u64>()];
    let id = || prop_oneof![Just(0), 0..300_u32, any::<u32>()];
    let ids = || proptest::collection::vec(id(), 0..5);
    let counts = (
        (id(), id(), id()),
        (ids(), ids()),
        (any::<bool>(), any::<bool>(), number()),
    );
    let counts = counts.prop_map(|(sizes, (senders, sender_flows), others)| ReceiverCount {
        receiver: sizes.0,
        active_senders: sizes.1,
        lookahead_senders: sizes.2,
        senders,
        sender_flows,
        excludes_managed: others.0,
        stands: others.1,
        age_ns: others.2,
    });
    let credits = (
        (id(), id(), proptest::option::of(id())),
        (number(), number(), number(), number()),
        (number(), number(), number(), number()),
    );
    let credits = credits.prop_map(|(ends, bytes, others)| CreditState {
        sender: ends.0,
        receiver: ends.1,
        flow: ends.2,
        granted_bytes: bytes.0,
        consumed_bytes: bytes.1,
        accumulated_bytes: bytes.2,
        csn_marked_packets: bytes.3,
        packets: others.0,
        sender_bucket_bytes: others.1,
        global_bucket_bytes: others.2,
        age_ns: others.3,
    });
    let links = (
        (id(), number(), number(), proptest::option::of(number())),
        (number(), number(), number(), number()),
        (number(), number()),
    );
    let links = links.prop_map(|(first, second, third)| LinkInt {
        link: first.0,
        queue_bytes: first.1,
        tx_bytes: first.2,
        managed_bytes: first.3,
        shaped_packets: second.0,
        timestamp_ns: second.1,
        bandwidth_bps: second.2,
        age_ns: second.3,
        interval_ns: third.0,
        former_queue_bytes: third.1,
    });
    let vec = |size| 0..size;
    (
        proptest::collection::vec(counts, vec(3)),
        proptest::collection::vec(credits, vec(3)),
        proptest::collection::vec(links, vec(3)),
        any::<bool>(),
    )
        .prop_map(|(receivers, credits, links, whole)| Telemetry {
            receivers,
            credits,
            links,
            whole,
            access_use: None,
        })
}

/// Decodes by the generated types.
fn generated(body: &[u8]) -> Option<Telemetry> {
    let message = wire::ControlMessage::decode(body).ok()?;
    let Some(wire::control_message::Body::Telemetry(telemetry)) = message.body else {
        return None;
    };
    Telemetry::unchecked(telemetry).ok()
}

proptest! {
    #[test]
    fn every_message_is_decoded_directly_as_it_was_encoded(telemetry in any_telemetry()) {
        let body = wire::ControlMessage {
            body: Some(wire::control_message::Body::Telemetry((&telemetry).into())),
        }
        .encode_to_vec();
        prop_assert_eq!(Telemetry::decode_body(&body), Some(telemetry.clone()));
        prop_assert_eq!(generated(&body), Some(telemetry));
    }

    /// The generated decoder is the oracle for bytes that no encoder of ours writes.
    #[test]
    fn what_is_decoded_directly_is_what_the_generated_decoder_reads(
        telemetry in any_telemetry(),
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
        cut in proptest::option::of(any::<proptest::sample::Index>()),
    ) {
        let mut body = wire::ControlMessage {
            body: Some(wire::control_message::Body::Telemetry((&telemetry).into())),
        }
        .encode_to_vec();
        for (at, byte) in damage {
            let at = at.index(body.len());
            body[at] = byte;
        }
        if let Some(cut) = cut {
            body.truncate(cut.index(body.len() + 1));
        }
        if let Some(direct) = Telemetry::decode_body(&body) {
            prop_assert_eq!(generated(&body), Some(direct));
        }
    }
}
