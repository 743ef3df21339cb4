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
