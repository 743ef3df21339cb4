use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use super::*;
use crate::flows::Destinations;

const MS: u64 = 1_000_000;
const GBPS: u64 = 1_000_000_000;

/// Hosts 1 to 200 at 10.0.HOST.1; this one is 1.
fn network() -> NetworkView {
    let prefixes: Vec<(u32, IpNet)> = (1..=200)
        .map(|host: u8| (u32::from(host), IpNet::from(IpAddr::from([10, 0, host, 1]))))
        .collect();
    NetworkView {
        own_host: 1,
        destinations: Destinations::new(prefixes.iter().map(|(host, prefix)| (*host, prefix))),
        ..NetworkView::default()
    }
}

fn socket(cookie: u64, peer: [u8; 4], received_bytes: u64) -> SocketFacts {
    SocketFacts {
        cookie,
        peer: Ipv4Addr::from(peer).into(),
        received_bytes,
        acked_bytes: 0,
        rtt_us: 0,
        delivered: 0,
        delivered_ce: 0,
        rwnd_limited_us: 0,
        busy_us: 0,
        segment_bytes: 1_448,
        unsent_bytes: 0,
        retransmitted: 0,
        least_rtt_us: u32::MAX,
    }
}

/// Bytes of `bps` in ten milliseconds.
fn bytes(bps: u64) -> u64 {
    bps / 8 / 100
}

/// Runs `passes` passes, 10 ms apart, over sockets at constant rates; returns the end.
fn run(
    senders: &mut Senders,
    from_ns: u64,
    passes: u64,
    capacity_bps: u64,
    sockets: &[(u64, [u8; 4], u64)],
) -> u64 {
    let network = network();
    for pass in 0..passes {
        for &(cookie, peer, bps) in sockets {
            let before = from_ns / (10 * MS);
            senders.on_socket(
                &socket(cookie, peer, bytes(bps) * (before + pass)),
                &network,
            );
        }
        senders.end_pass(from_ns + pass * 10 * MS, capacity_bps);
    }
    from_ns + (passes - 1) * 10 * MS
}

#[test]
fn a_sender_is_counted_once_however_many_connections_it_has() {
    let mut senders = Senders::default();
    let sockets = [
        (1, [10, 0, 2, 1], GBPS / 4),
        (2, [10, 0, 2, 1], GBPS / 4),
        (3, [192, 0, 2, 9], GBPS / 2),
    ];
    let now = run(&mut senders, 10 * MS, 8, GBPS, &sockets);
    let active = senders.active(now);
    assert_eq!(active.len(), 2);
    for sender in &active {
        let expected_flows = match sender.name {
            SenderName::Host(host) => {
                assert_eq!(host, 2);
                2
            }
            SenderName::Address(address) => {
                assert_eq!(address, IpAddr::from([192, 0, 2, 9]));
                1
            }
        };
        assert_eq!(sender.flows, expected_flows);
        let error = sender.rate_bps.abs_diff(GBPS / 2);
        assert!(error < GBPS / 100, "{sender:?}");
    }
}

#[test]
fn what_a_connection_carried_before_the_first_pass_does_not_count() {
    let mut senders = Senders::default();
    let network = network();
    for pass in 0..4 {
        senders.on_socket(&socket(1, [10, 0, 2, 1], 1 << 40), &network);
        senders.end_pass((1 + pass) * 10 * MS, GBPS);
    }
    assert!(senders.active(40 * MS).is_empty());
    assert_eq!(senders.totals().received_bytes, 0);
}

#[test]
fn a_connection_that_began_since_the_pass_before_counts_from_its_first_byte() {
    let mut senders = Senders::default();
    let network = network();
    senders.end_pass(10 * MS, GBPS);
    senders.on_socket(&socket(1, [10, 0, 2, 1], bytes(GBPS)), &network);
    senders.end_pass(20 * MS, GBPS);
    assert_eq!(senders.active(20 * MS).len(), 1);
}

#[test]
fn a_chatty_sender_is_not_backlogged_and_many_slow_ones_are() {
    let mut senders = Senders::default();
    let mut sockets = vec![
        (1, [10, 0, 2, 1], 9 * GBPS),
        (2, [10, 0, 3, 1], GBPS / 1_000),
    ];
    let now = run(&mut senders, 10 * MS, 8, 10 * GBPS, &sockets);
    assert_eq!(senders.active(now).len(), 1);

    // A hundred senders share the link: none has much, and each counts.
    let mut senders = Senders::default();
    sockets = (2..102)
        .map(|host: u8| (u64::from(host), [10, 0, host, 1], GBPS / 10))
        .collect();
    let now = run(&mut senders, 10 * MS, 8, 10 * GBPS, &sockets);
    assert_eq!(senders.active(now).len(), 100);
}

#[test]
fn a_sender_that_paced_flows_hold_down_is_seen() {
    let mut senders = Senders::default();
    let sockets: Vec<_> = (2..6)
        .map(|host: u8| (u64::from(host), [10, 0, host, 1], GBPS * 24 / 100))
        .chain([(9, [192, 0, 2, 9], GBPS * 2 / 100)])
        .collect();
    let now = run(&mut senders, 10 * MS, 8, GBPS, &sockets);
    assert_eq!(senders.active(now).len(), 5);
}

#[test]
fn a_sender_leaves_the_set_soon_after_its_last_byte() {
    let mut senders = Senders::default();
    let network = network();
    let now = run(&mut senders, 10 * MS, 8, GBPS, &[(1, [10, 0, 2, 1], GBPS)]);
    let last = bytes(GBPS) * 8;
    let mut left_ns = None;
    for pass in 1..=8 {
        senders.on_socket(&socket(1, [10, 0, 2, 1], last), &network);
        let at_ns = now + pass * 10 * MS;
        senders.end_pass(at_ns, GBPS);
        if senders.active(at_ns).is_empty() && left_ns.is_none() {
            left_ns = Some(at_ns - now);
        }
    }
    assert!(left_ns.is_some_and(|ns| ns <= 60 * MS), "{left_ns:?}");
}

#[test]
fn own_and_loopback_connections_are_no_senders() {
    let mut senders = Senders::default();
    let sockets = [(1, [10, 0, 1, 1], GBPS), (2, [127, 0, 0, 1], GBPS)];
    let now = run(&mut senders, 10 * MS, 8, GBPS, &sockets);
    assert!(senders.active(now).is_empty());
    assert_eq!(senders.socket_count(), 0);
}

#[test]
fn memory_stays_within_its_bounds() {
    let mut senders = Senders::default();
    let network = network();
    senders.end_pass(10 * MS, GBPS);
    for cookie in 0..MAX_SOCKETS as u64 + 10 {
        let peer = Ipv4Addr::from(0xc000_0000 + cookie as u32).octets();
        senders.on_socket(&socket(cookie, peer, 100_000), &network);
    }
    senders.end_pass(20 * MS, GBPS);
    assert_eq!(senders.socket_count(), MAX_SOCKETS);
    assert_eq!(senders.totals().sockets_beyond_bound, 10);
    assert!(senders.active(20 * MS).len() <= MAX_SENDERS);
    assert!(senders.totals().senders_beyond_bound > 0);
    // Closed sockets are forgotten.
    senders.end_pass(30 * MS, GBPS);
    assert_eq!(senders.socket_count(), 0);
}

#[test]
fn counters_that_wrap_and_facts_of_both_ends_add_up() {
    let mut senders = Senders::default();
    let network = network();
    let mut facts = socket(1, [10, 0, 2, 1], 0);
    facts.delivered = u32::MAX - 4;
    senders.on_socket(&facts, &network);
    senders.end_pass(10 * MS, GBPS);
    facts.delivered = 5;
    facts.delivered_ce = 3;
    facts.busy_us = 900;
    facts.rwnd_limited_us = 400;
    facts.rtt_us = 70;
    senders.on_socket(&facts, &network);
    senders.end_pass(20 * MS, GBPS);
    let totals = senders.totals();
    assert_eq!((totals.delivered, totals.delivered_ce), (10, 3));
    assert_eq!((totals.busy_us, totals.rwnd_limited_us), (900, 400));
    assert_eq!(senders.rtt_us(), (70, 70));
}
