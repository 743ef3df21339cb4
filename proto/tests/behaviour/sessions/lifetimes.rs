//! Leases, keep-alives and liveness.

use super::session_pair::{LEASE_NS, SessionPair, start};
use ratewright_proto::client::{ClientConfig, ClientEvent, LossReason};
use ratewright_proto::server::{PeerLoss, ServerConfig, ServerEvent};
use ratewright_proto::{DatagramError, FlowId};

#[test]
fn a_datagram_delayed_beyond_the_lease_is_neither_applied_nor_acknowledged() {
    let mut pair = SessionPair::new();
    let flow = FlowId::new(0, 0);
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    let bytes = pair.client_datagram().unwrap();
    let sent_ns = pair.now_ns;
    pair.hand_to_server(sent_ns, &bytes).unwrap();
    pair.server.set_rate(sent_ns, flow, 1_000_000).unwrap();
    let delayed = pair.server_datagram().unwrap();
    pair.client_events();
    for (late_ns, result) in [
        // The late ones first: they must change nothing, or the one in time would be a duplicate.
        (LEASE_NS, Err(DatagramError::Expired)),
        (2 * LEASE_NS, Err(DatagramError::Expired)),
        (LEASE_NS - 1, Ok(())),
    ] {
        let got = pair.client.on_datagram(sent_ns + late_ns, &delayed);
        assert_eq!(got, result, "{late_ns} ns late");
    }
    assert_eq!(pair.client.counters().dropped_expired, 2);
}

/// An overloaded allocator answers after more than a lease. Its hosts fall back to plain TCP and
/// keep their sessions, since new connections would cost it more.
#[test]
fn answers_that_take_longer_than_a_lease_keep_the_session_and_hold_no_rate() {
    let mut pair = SessionPair::new();
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    pair.settle();
    pair.client_events();
    let late_ns = LEASE_NS + LEASE_NS / 4;
    let began_ns = pair.now_ns;
    let mut on_the_way = std::collections::VecDeque::new();
    let mut arrived_ns = began_ns;
    let mut lost_ns = None;
    let mut out = Vec::new();
    // Ten leases; then the allocator sends nothing more.
    while lost_ns.is_none() {
        pair.now_ns += LEASE_NS / 16;
        let now_ns = pair.now_ns;
        pair.client.on_timeout(now_ns);
        while pair.client.poll_datagram(now_ns, 1_200, &mut out) {
            on_the_way.push_back((now_ns, out.clone()));
        }
        while on_the_way
            .front()
            .is_some_and(|(sent_ns, _)| sent_ns + late_ns <= now_ns)
        {
            let (_, bytes) = on_the_way.pop_front().unwrap();
            if now_ns - began_ns > 10 * LEASE_NS {
                continue;
            }
            pair.hand_to_server(now_ns, &bytes).unwrap();
            while pair.server.poll_datagram(now_ns, 1_200, &mut out) {
                let result = pair.client.on_datagram(now_ns, &out);
                assert_eq!(result, Err(DatagramError::Expired));
                arrived_ns = now_ns;
            }
        }
        for event in pair.client_events() {
            match event {
                ClientEvent::SessionLost(reason) => lost_ns = Some((now_ns, reason)),
                ClientEvent::LeaseRenewed { .. } | ClientEvent::Rate { .. } => {
                    panic!("{event:?} of what had run out")
                }
                _ => {}
            }
        }
    }
    let (lost_ns, reason) = lost_ns.unwrap();
    assert_eq!(reason, LossReason::Silence);
    assert!(
        arrived_ns > began_ns + 9 * LEASE_NS,
        "it lived on that long"
    );
    assert!(
        lost_ns < arrived_ns + ServerConfig::default().liveness_ns,
        "what came late proves no later life than it does"
    );
}

#[test]
fn keep_alives_hold_the_lease_and_silence_lets_it_run_out() {
    let mut pair = SessionPair::new();
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    pair.settle();
    pair.server
        .set_rate(pair.now_ns, FlowId::new(0, 0), 1_000_000)
        .unwrap();
    pair.settle();
    for _ in 0..20 {
        let due_ns = pair.client.next_timeout().unwrap();
        assert!(due_ns > pair.now_ns + LEASE_NS / 4, "a quarter is not due");
        assert_eq!(due_ns, pair.client.lease_expires_ns() - LEASE_NS / 2);
        pair.now_ns = due_ns;
        pair.client.on_timeout(pair.now_ns);
        pair.settle();
        let renewed = pair
            .client_events()
            .iter()
            .any(|event| matches!(event, ClientEvent::LeaseRenewed { .. }));
        assert!(renewed);
        assert!(pair.client.lease_expires_ns() > pair.now_ns + LEASE_NS / 2);
    }
    // Nothing but one keep-alive and one answer per half of a lease.
    let sent = pair.client.counters().keep_alives_sent;
    assert!((20..=23).contains(&sent), "{sent}");
}

#[test]
fn rates_renew_the_lease_so_that_no_keep_alive_is_needed() {
    let mut pair = SessionPair::new();
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    pair.settle();
    let before = pair.client.counters().keep_alives_sent;
    for step in 1..=100 {
        pair.server
            .set_rate(pair.now_ns, FlowId::new(0, 0), step * 10_000_000)
            .unwrap();
        pair.settle();
        pair.client.on_timeout(pair.now_ns);
        pair.settle();
        assert!(pair.client.lease_expires_ns() > pair.now_ns + LEASE_NS / 2);
    }
    assert_eq!(pair.client.counters().keep_alives_sent, before);
}

/// Makes a pair with one flow at 1 Mbit/s, whose lease then expired.
fn lapsed() -> SessionPair {
    let mut pair = SessionPair::new();
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    pair.settle();
    pair.server
        .set_rate(pair.now_ns, FlowId::new(0, 0), 1_000_000)
        .unwrap();
    pair.settle();
    assert_eq!(pair.rates().len(), 1);
    pair.now_ns = pair.client.lease_expires_ns() + LEASE_NS / 2;
    pair.client.on_timeout(pair.now_ns);
    pair
}

#[test]
fn after_a_lapse_every_rate_is_given_again_behind_the_renewal() {
    let mut pair = lapsed();
    assert_eq!(pair.client_events(), [], "nothing is revived by itself");
    pair.settle();
    let expires_ns = pair.client.lease_expires_ns();
    assert!(expires_ns > pair.now_ns);
    let flow = FlowId::new(0, 0);
    let rate_bps = pair.client.flows().next().unwrap().rate_bps.unwrap();
    assert_eq!(
        pair.client_events(),
        [
            ClientEvent::LeaseRenewed { expires_ns },
            ClientEvent::Rate {
                flow,
                rate_bps,
                expires_ns
            }
        ]
    );
    // And once is enough.
    pair.now_ns += LEASE_NS / 4;
    pair.client.on_timeout(pair.now_ns);
    pair.settle();
    assert_eq!(pair.rates(), []);
}

#[test]
fn after_a_lapse_the_newest_rate_counts_and_ended_or_released_flows_get_none() {
    let mut pair = lapsed();
    let flow = FlowId::new(0, 0);
    pair.server.set_rate(pair.now_ns, flow, 4_096_000).unwrap();
    pair.settle();
    let rates = pair.rates();
    assert_eq!(rates.last(), Some(&(flow, 4_096_000)), "{rates:?}");

    let mut pair = lapsed();
    pair.client.end(pair.now_ns, flow).unwrap();
    pair.settle();
    assert_eq!(pair.rates(), []);

    let mut pair = lapsed();
    pair.server.set_released(true);
    pair.settle();
    assert_eq!(pair.rates(), []);
}

#[test]
fn a_lost_keep_alive_is_repeated_well_within_the_lease() {
    let mut pair = SessionPair::new();
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    pair.settle();
    let mut sent = 0;
    let expires_ns = pair.client.lease_expires_ns();
    loop {
        pair.now_ns = pair.client.next_timeout().unwrap();
        if pair.now_ns >= expires_ns - LEASE_NS / 16 {
            break;
        }
        pair.client.on_timeout(pair.now_ns);
        sent += usize::from(pair.client_datagram().is_some());
    }
    assert!(sent >= 5, "{sent} keep-alives, all lost, within a lease");
}

/// Its acknowledgement renews the lease, or its time-out asks again.
#[test]
fn no_keep_alive_is_due_while_a_datagram_is_in_flight() {
    let client = ClientConfig {
        min_rto_ns: 2 * LEASE_NS,
        ..ClientConfig::default()
    };
    let mut pair = SessionPair::with(client, ServerConfig::default());
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    pair.client_datagram().expect("a start");
    let timeout_ns = pair.now_ns + 2 * LEASE_NS;
    assert_eq!(pair.client.next_timeout(), Some(timeout_ns));
    pair.now_ns = timeout_ns - 1;
    assert_eq!(pair.client_datagram(), None);
}

#[test]
fn a_keep_alive_is_acknowledged_at_once() {
    let mut pair = SessionPair::new();
    pair.client.start(pair.now_ns, start(0, 0)).unwrap();
    pair.settle();
    pair.now_ns = pair.client.next_timeout().unwrap();
    pair.client.on_timeout(pair.now_ns);
    let bytes = pair.client_datagram().expect("a keep-alive");
    pair.hand_to_server(pair.now_ns, &bytes).unwrap();
    assert!(pair.server_datagram().is_some());
}

#[test]
fn an_idle_client_speaks_once_per_lease() {
    let mut pair = SessionPair::new();
    let before = pair.client.counters().datagrams_sent;
    let start_ns = pair.now_ns;
    while pair.now_ns < start_ns + 10 * LEASE_NS {
        let next = [pair.client.next_timeout(), pair.server.next_timeout()];
        pair.now_ns = next.into_iter().flatten().min().unwrap();
        pair.client.on_timeout(pair.now_ns);
        pair.server.on_timeout(pair.now_ns);
        while let Some(bytes) = pair.client_datagram() {
            pair.hand_to_server(pair.now_ns, &bytes).unwrap();
        }
        while let Some(bytes) = pair.server_datagram() {
            pair.client.on_datagram(pair.now_ns, &bytes).unwrap();
        }
    }
    let sent = pair.client.counters().datagrams_sent - before;
    assert!((9..=12).contains(&sent), "{sent} in ten leases");
}

#[test]
fn silence_ends_the_session_on_both_sides() {
    let mut pair = SessionPair::new();
    pair.client_events();
    let liveness_ns = ServerConfig::default().liveness_ns;
    pair.now_ns += liveness_ns;
    pair.client.on_timeout(pair.now_ns);
    pair.server.on_timeout(pair.now_ns);
    assert_eq!(
        pair.client_events(),
        [ClientEvent::SessionLost(LossReason::Silence)]
    );
    assert_eq!(pair.server_events(), [], "it waits three times as long");
    pair.now_ns += 2 * liveness_ns;
    pair.server.on_timeout(pair.now_ns);
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
fn who_was_not_running_reads_what_was_said_meanwhile_before_it_gives_up() {
    let mut pair = SessionPair::new();
    pair.client_events();
    let liveness_ns = ServerConfig::default().liveness_ns;
    // Both processes stand still for longer than either would wait.
    pair.now_ns += 5 * liveness_ns;
    pair.client.on_timeout(pair.now_ns);
    pair.server.on_timeout(pair.now_ns);
    assert_eq!(pair.client_events(), []);
    assert_eq!(pair.server_events(), []);
    pair.settle();
    assert!(pair.client.is_established() && pair.server.is_established());
    // The liveness time-out ends it all the same, with and without a standstill.
    pair.now_ns += 5 * liveness_ns;
    pair.client.on_timeout(pair.now_ns);
    pair.now_ns += 5 * liveness_ns;
    pair.client.on_timeout(pair.now_ns);
    assert_eq!(
        pair.client_events(),
        [ClientEvent::SessionLost(LossReason::Silence)]
    );
}
