//! Flowlets and rates.

use super::session_pair::{LEASE_NS, MS, SessionPair, start};
use ratewright_proto::client::{ClientConfig, ClientEvent};
use ratewright_proto::datagram::{HEADER_BYTES, prompt_ack_delay_ns};
use ratewright_proto::server::{FlowChange, ServerConfig};
use ratewright_proto::{FlowId, RateCode, RateRecord, SessionError};

/// Delay of a prompt acknowledgement at both ends of a [`SessionPair`].
const PROMPT_ACK_DELAY_NS: u64 = prompt_ack_delay_ns(20 * MS);

#[test]
fn a_start_and_its_rate_are_in_the_very_next_datagrams() {
    let mut pair = SessionPair::new();
    pair.client_events();
    let record = start(0, 0);
    pair.client.start(pair.now_ns, record).unwrap();
    let bytes = pair.client_datagram().expect("a datagram at once");
    assert_eq!(bytes.len(), HEADER_BYTES + 16);
    pair.hand_to_server(pair.now_ns, &bytes).unwrap();
    assert_eq!(pair.server_changes(), [FlowChange::Start(record)]);
    assert_eq!(
        pair.server.set_rate(pair.now_ns, record.flow(), 5_000_000),
        Ok(true)
    );
    let bytes = pair.server_datagram().expect("a datagram at once");
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
    let bytes = pair.client_datagram().expect("a datagram at once");
    assert_eq!(bytes.len(), HEADER_BYTES + 4);
    pair.hand_to_server(pair.now_ns, &bytes).unwrap();
    assert_eq!(
        pair.server_changes(),
        [FlowChange::End(record.flow(), None)]
    );
}

#[test]
fn bare_acknowledgements_are_delayed() {
    let mut pair = SessionPair::new();
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    let bytes = pair.client_datagram().unwrap();
    pair.hand_to_server(pair.now_ns, &bytes).unwrap();
    assert_eq!(pair.server_datagram(), None);
    let due_ns = pair.now_ns + PROMPT_ACK_DELAY_NS;
    assert_eq!(pair.server.next_timeout(), Some(due_ns), "a start waits");
    assert!(!pair.server.must_send_now(due_ns - 1) && pair.server.must_send_now(due_ns));
    pair.now_ns = due_ns;
    assert_eq!(
        pair.server_datagram().map(|bytes| bytes.len()),
        Some(HEADER_BYTES)
    );
    assert_eq!(pair.server_datagram(), None);
    assert!(!pair.server.must_send_now(due_ns));
    pair.client.end(pair.now_ns, FlowId::new(0, 0)).unwrap();
    let bytes = pair.client_datagram().unwrap();
    pair.hand_to_server(pair.now_ns, &bytes).unwrap();
    let due_ns = pair.now_ns + ServerConfig::default().ack_delay_ns;
    assert_eq!(pair.server.next_timeout(), Some(due_ns), "nobody waits");
}

#[test]
fn a_first_rate_is_acknowledged_promptly_and_later_ones_after_the_delay() {
    let mut pair = SessionPair::new();
    let flow = FlowId::new(0, 0);
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    pair.settle();
    for (rate_bps, delay_ns) in [
        (1_000_000, PROMPT_ACK_DELAY_NS),
        (2_000_000, ServerConfig::default().ack_delay_ns),
    ] {
        pair.server.set_rate(pair.now_ns, flow, rate_bps).unwrap();
        let bytes = pair.server_datagram().expect("a rate at once");
        pair.client.on_datagram(pair.now_ns, &bytes).unwrap();
        assert_eq!(pair.client_datagram(), None);
        assert_eq!(pair.client.next_timeout(), Some(pair.now_ns + delay_ns));
        pair.settle();
    }
}

#[test]
fn later_rates_share_a_datagram_and_first_ones_wait_for_nobody() {
    let interval_ns = 5 * MS;
    let server = ServerConfig {
        update_interval_ns: interval_ns,
        ..ServerConfig::default()
    };
    let set = |pair: &mut SessionPair, slot, rate_bps| {
        let flow = FlowId::new(slot, 0);
        pair.server.set_rate(pair.now_ns, flow, rate_bps).unwrap();
    };
    let mut pair = SessionPair::with(ClientConfig::default(), server);
    for slot in 0..4 {
        pair.client.start(pair.now_ns, start(slot, 0)).unwrap();
    }
    pair.settle();
    for slot in 0..3 {
        set(&mut pair, slot, 1_000_000);
    }
    pair.settle();
    set(&mut pair, 0, 2_000_000);
    assert!(pair.server_datagram().is_some(), "nothing was sent lately");
    let sent_ns = pair.now_ns;
    set(&mut pair, 0, 3_000_000);
    set(&mut pair, 1, 3_000_000);
    assert_eq!(pair.server_datagram(), None, "later rates wait");
    assert_eq!(pair.server.next_timeout(), Some(sent_ns + interval_ns));
    set(&mut pair, 3, 1_000_000);
    assert_eq!(
        pair.server_datagram().map(|bytes| bytes.len()),
        Some(HEADER_BYTES + 3 * RateRecord::BYTES),
        "a first rate goes at once and takes them along"
    );
    set(&mut pair, 2, 4_000_000);
    set(&mut pair, 3, 5_000_000);
    assert_eq!(
        pair.server_datagram(),
        None,
        "the first one is on its way, the next ones wait"
    );
    pair.now_ns = sent_ns + interval_ns;
    assert_eq!(
        pair.server_datagram().map(|bytes| bytes.len()),
        Some(HEADER_BYTES + 2 * RateRecord::BYTES),
        "their time has come"
    );
}

#[test]
fn later_rates_wait_for_acknowledgements_where_many_are_out_and_only_the_newest_is_sent() {
    let server = ServerConfig {
        updates_in_flight: 2,
        ..ServerConfig::default()
    };
    let mut pair = SessionPair::with(ClientConfig::default(), server);
    let flow = FlowId::new(0, 0);
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    pair.settle();
    pair.server.set_rate(pair.now_ns, flow, 1_000_000).unwrap();
    pair.settle();
    pair.rates();
    for rate_bps in [2_000_000, 3_000_000] {
        pair.server.set_rate(pair.now_ns, flow, rate_bps).unwrap();
        let bytes = pair.server_datagram().expect("there is room");
        pair.client.on_datagram(pair.now_ns, &bytes).unwrap();
    }
    for rate_bps in [4_000_000, 5_000_000] {
        pair.server.set_rate(pair.now_ns, flow, rate_bps).unwrap();
        assert_eq!(pair.server_datagram(), None, "two are out");
    }
    // The second has asked for a prompt acknowledgement.
    assert_eq!(
        pair.client.next_timeout(),
        Some(pair.now_ns + PROMPT_ACK_DELAY_NS)
    );
    let before = pair.server.counters().rates_sent;
    pair.settle();
    assert_eq!(pair.server.counters().rates_sent, before + 1);
    // The client sees the rounded rate.
    let code = RateCode::encode(5_000_000).decode();
    assert_eq!(pair.rates().last(), Some(&(flow, code)));
}

#[test]
fn a_flowlet_that_ends_before_it_was_sent_costs_nothing() {
    let mut pair = SessionPair::new();
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    pair.client.end(pair.now_ns, FlowId::new(0, 0)).unwrap();
    assert_eq!(pair.client_datagram(), None);
}

#[test]
fn a_rate_that_the_client_has_acknowledged_is_not_sent_again() {
    let mut pair = SessionPair::new();
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
    assert_eq!(pair.server_datagram(), None);
}

#[test]
fn what_was_lost_is_replaced_by_the_newest_state() {
    let mut pair = SessionPair::new();
    let flow = FlowId::new(0, 0);
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    pair.settle();
    pair.client_events();
    pair.server.set_rate(pair.now_ns, flow, 1_000_000).unwrap();
    pair.server_datagram().expect("sent, and lost");
    pair.server.set_rate(pair.now_ns, flow, 2_000_000).unwrap();
    pair.server_datagram().expect("sent, and lost");
    let timeout_ns = pair.server.next_timeout().unwrap();
    pair.now_ns = timeout_ns;
    pair.server.on_timeout(pair.now_ns);
    let bytes = pair.server_datagram().expect("sent again");
    assert_eq!(bytes.len(), HEADER_BYTES + 6, "once, not twice");
    pair.client.on_datagram(pair.now_ns, &bytes).unwrap();
    assert_eq!(pair.rates(), [(flow, RateCode::encode(2_000_000).decode())]);
}

#[test]
fn a_rate_that_was_lost_and_set_again_is_sent_again() {
    let mut pair = SessionPair::new();
    let flow = FlowId::new(0, 0);
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    pair.settle();
    pair.server.set_rate(pair.now_ns, flow, 1_000_000).unwrap();
    pair.server_datagram().expect("sent, and lost");
    // In flight: not sent twice.
    assert_eq!(
        pair.server.set_rate(pair.now_ns, flow, 1_000_000),
        Ok(false)
    );
    pair.now_ns = pair.server.next_timeout().unwrap();
    pair.server.on_timeout(pair.now_ns);
    pair.server.set_rate(pair.now_ns, flow, 1_000_000).unwrap();
    assert!(pair.server_datagram().is_some());
}

/// The client uses all generations between two polls of the server.
#[test]
fn an_end_and_a_start_under_the_same_id_are_both_told() {
    let mut pair = SessionPair::new();
    pair.client.start(pair.now_ns, start(2, 7)).unwrap();
    pair.settle();
    pair.server_changes();
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
        pair.server_changes(),
        [
            FlowChange::End(FlowId::new(2, 7), None),
            FlowChange::Start(start(2, 7))
        ]
    );
}

#[test]
fn a_new_generation_ends_the_older_flowlet() {
    let mut pair = SessionPair::new();
    pair.client.start(pair.now_ns, start(5, 4095)).unwrap();
    pair.settle();
    pair.server_changes();
    pair.client.start(pair.now_ns, start(5, 0)).unwrap();
    pair.settle();
    assert_eq!(
        pair.server_changes(),
        [
            FlowChange::End(FlowId::new(5, 4095), None),
            FlowChange::Start(start(5, 0))
        ]
    );
}

#[test]
fn an_update_keeps_the_flow() {
    let mut pair = SessionPair::new();
    pair.client.start(pair.now_ns, start(1, 0)).unwrap();
    pair.settle();
    pair.server_changes();
    let (before, record) = (
        start(1, 0),
        start(1, 0).with_demand(RateCode::encode(9_000_000)),
    );
    pair.client.start(pair.now_ns, record).unwrap();
    pair.client.start(pair.now_ns, record).unwrap();
    pair.settle();
    assert_eq!(
        pair.server_changes(),
        [FlowChange::Update { before, record }]
    );
}

/// 4,096 flowlets later the same flow id comes round; a rate that was sent for
/// the first of them must not be taken for it.
#[test]
fn a_rate_delayed_over_a_wrap_of_the_generation_is_stale() {
    let mut pair = SessionPair::new();
    let flow = FlowId::new(2, 7);
    pair.client.start(pair.now_ns, start(2, 7)).unwrap();
    pair.settle();
    pair.client_events();
    pair.server.set_rate(pair.now_ns, flow, 1_000_000).unwrap();
    let delayed = pair.server_datagram().unwrap();
    // All within the lease, unheard by the server.
    for generation in 8..4096 + 7 {
        let flow = FlowId::new(2, generation % 4096);
        pair.client
            .start(pair.now_ns, start(2, generation % 4096))
            .unwrap();
        pair.client.end(pair.now_ns, flow).unwrap();
    }
    pair.client.start(pair.now_ns, start(2, 7)).unwrap();
    pair.client_datagram().expect("the newest start");
    pair.client.on_datagram(pair.now_ns, &delayed).unwrap();
    assert_eq!(pair.rates(), []);
    assert_eq!(pair.client.counters().records_stale, 1);
}

#[test]
fn an_ended_flow_id_needs_the_next_generation() {
    let mut pair = SessionPair::new();
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

/// A slot's new flowlet begins without the rate of the one before, which nobody ended.
#[test]
fn a_new_generation_begins_without_a_rate() {
    let mut pair = SessionPair::new();
    let (old, new) = (FlowId::new(5, 0), FlowId::new(5, 1));
    pair.client.start(pair.now_ns, start(5, 0)).unwrap();
    pair.settle();
    pair.server.set_rate(pair.now_ns, old, 1_000_000).unwrap();
    pair.settle();
    assert_eq!(pair.rates().len(), 1);
    pair.client.start(pair.now_ns, start(5, 1)).unwrap();
    pair.settle();
    pair.client_events();
    assert_eq!((pair.client.flow_count(), pair.server.flow_count()), (1, 1));
    assert_eq!(
        (pair.server.rate_of(old), pair.server.rate_of(new)),
        (None, Some(0))
    );
    assert_eq!(pair.client.flows().next().unwrap().rate_bps, None);
    // The rate of the one before is news to the new one.
    assert_eq!(pair.server.set_rate(pair.now_ns, new, 1_000_000), Ok(true));
    pair.settle();
    assert_eq!(pair.rates(), [(new, RateCode::encode(1_000_000).decode())]);
}

/// The start of a short flowlet is lost, or comes after its end.
#[test]
fn an_end_whose_start_was_never_seen_is_no_event_and_the_late_start_is_stale() {
    let mut pair = SessionPair::new();
    pair.client.start(pair.now_ns, start(3, 0)).unwrap();
    let late = pair.client_datagram().expect("a start");
    pair.client.end(pair.now_ns, FlowId::new(3, 0)).unwrap();
    let end = pair.client_datagram().expect("an end");
    pair.hand_to_server(pair.now_ns, &end).unwrap();
    assert_eq!(
        (pair.server_changes(), pair.server.flow_count()),
        (vec![], 0)
    );
    pair.hand_to_server(pair.now_ns, &late).unwrap();
    assert_eq!(
        (pair.server_changes(), pair.server.flow_count()),
        (vec![], 0)
    );
    assert_eq!(pair.server.counters().records_stale, 1);
    let ended = pair.server.set_rate(pair.now_ns, FlowId::new(3, 0), 1);
    assert_eq!(ended, Err(SessionError::UnknownFlow(FlowId::new(3, 0))));
}

#[test]
fn records_that_arrive_out_of_order_leave_the_newest_state() {
    let mut pair = SessionPair::new();
    let mut datagrams = Vec::new();
    for mbit in 1..=3 {
        let record = start(0, 0).with_demand(RateCode::encode(mbit * 1_000_000));
        pair.client.start(pair.now_ns, record).unwrap();
        datagrams.push(pair.client_datagram().expect("an update"));
    }
    for bytes in datagrams.iter().rev() {
        pair.hand_to_server(pair.now_ns, bytes).unwrap();
    }
    let newest = start(0, 0).with_demand(RateCode::encode(3_000_000));
    assert_eq!(pair.server_changes(), [FlowChange::Start(newest)]);
    assert_eq!(pair.server.counters().records_stale, 2);
    assert!(pair.server.flows().eq([(newest, 0)]));
}

#[test]
fn flows_are_listed_by_slot_with_their_rates() {
    let mut pair = SessionPair::new();
    for slot in [1, 4, 6] {
        pair.client.start(pair.now_ns, start(slot, 0)).unwrap();
    }
    pair.settle();
    let rate = RateCode::encode(2_000_000).decode();
    pair.server
        .set_rate(pair.now_ns, FlowId::new(4, 0), 2_000_000)
        .unwrap();
    pair.settle();
    let all = [(start(1, 0), 0), (start(4, 0), rate), (start(6, 0), 0)];
    assert!(pair.server.flows().eq(all));
    for (from, to, count) in [(0, 1, 0), (1, 2, 1), (1, 5, 2), (4, 100, 2), (7, 9, 0)] {
        assert_eq!(
            pair.server.flows_on(from..to).count(),
            count,
            "{from}..{to}"
        );
    }
    let of_client: Vec<_> = pair.client.flows().map(|state| state.rate_bps).collect();
    assert_eq!(of_client, [None, Some(rate), None]);
    assert_eq!((pair.client.flow_count(), pair.server.flow_count()), (3, 3));
    pair.client.end(pair.now_ns, FlowId::new(4, 0)).unwrap();
    pair.settle();
    assert_eq!((pair.client.flow_count(), pair.server.flow_count()), (2, 2));
    assert_eq!(pair.server.flows_on(0..9).count(), 2);
}

#[test]
fn each_change_is_told_as_its_datagram_comes() {
    let mut pair = SessionPair::new();
    let limited = start(2, 0).with_demand(RateCode::encode(9_000_000));
    for record in [start(2, 0), limited] {
        pair.client.start(pair.now_ns, record).unwrap();
        let bytes = pair.client_datagram().expect("a start");
        pair.hand_to_server(pair.now_ns, &bytes).unwrap();
    }
    pair.client.end(pair.now_ns, limited.flow()).unwrap();
    pair.settle();
    assert_eq!(
        pair.server_changes(),
        [
            FlowChange::Start(start(2, 0)),
            FlowChange::Update {
                before: start(2, 0),
                record: limited
            },
            FlowChange::End(limited.flow(), None)
        ]
    );
}

#[test]
fn a_rate_after_a_time_without_one_waits_for_nobody() {
    let server = ServerConfig {
        update_interval_ns: 5 * MS,
        ..ServerConfig::default()
    };
    let mut pair = SessionPair::with(ClientConfig::default(), server);
    let [flow, other] = [0, 1].map(|slot| {
        pair.client.start(pair.now_ns, start(slot, 0)).unwrap();
        FlowId::new(slot, 0)
    });
    pair.settle();
    for (rated, rate_bps) in [(flow, 1_000_000), (other, 1_000_000), (flow, 0)] {
        pair.server.set_rate(pair.now_ns, rated, rate_bps).unwrap();
        pair.settle();
    }
    pair.server.set_rate(pair.now_ns, other, 3_000_000).unwrap();
    assert!(pair.server_datagram().is_some(), "nothing was sent lately");
    pair.server.set_rate(pair.now_ns, flow, 2_000_000).unwrap();
    assert!(pair.server_datagram().is_some(), "it is a first rate again");
}
