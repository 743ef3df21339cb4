//! The tc_htb back end: one HTB class per paced flow, chosen by a clsact program (flowtune §5.1,
//! §6).

use std::time::Duration;

use ratewright_endpointd::backend::{BackendConfig, BackendKind, FlowEvent, FlowEventKind, open};
use ratewright_endpointd::clock::now_ns;

use super::demand::RateEnd;
use super::{Driver, FOREVER_NS, MS, alone, config, demand, ensure_kept, owner};
use crate::netns::cubic::cubic_pair;
use crate::netns::tries::best_of_three;
use crate::netns::{BulkReceiver, BulkSender, NamespacePair, RIGHT_V4, RIGHT_V6, WIRE_V4, WIRE_V6};

const KIND: BackendKind = BackendKind::TcHtb;

/// Time after which a lapsed class is empty. It drains at its rate, and TCP keeps about two bursts
/// of 64 KiB there: 21 ms at 50 Mbit/s.
const SETTLE_MS: u64 = 100;

/// Time for a slot's return; idle connections keep theirs until the table is nearly full.
const GIVEN_BACK: Duration = Duration::ZERO;

/// Our queue disciplines on the device.
fn left_behind(pair: &NamespacePair) -> Vec<String> {
    pair.left
        .run("tc qdisc show dev v0")
        .lines()
        .filter(|line| line.contains("htb") || line.contains("clsact") || line.contains("bfifo"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn wire_rates_are_kept_within_two_percent() {
    super::rates_are_kept(KIND, RIGHT_V4, WIRE_V4, &[50, 300]);
}

#[test]
fn wire_rates_over_ipv6_are_kept_within_two_percent() {
    super::rates_are_kept(KIND, RIGHT_V6, WIRE_V6, &[300, 50]);
}

#[test]
fn an_expired_rate_is_lifted_within_100_ms() {
    super::an_expired_rate_is_lifted(KIND, WIRE_V4, SETTLE_MS);
}

#[test]
fn a_killed_owner_leaves_plain_tcp_and_a_restart_adopts() {
    owner::a_killed_owner_leaves_plain_tcp_and_a_restart_adopts(
        KIND,
        WIRE_V4,
        SETTLE_MS,
        left_behind,
    );
}

#[test]
fn starts_and_ends_are_seen() {
    super::starts_and_ends_are_seen(KIND, RIGHT_V4);
}

#[test]
fn starts_and_ends_are_seen_over_ipv6() {
    super::starts_and_ends_are_seen(KIND, RIGHT_V6);
}

#[test]
fn the_table_is_bounded() {
    super::the_table_is_bounded(KIND);
}

#[test]
fn clearing_all_lifts_every_rate() {
    super::clearing_all_lifts_every_rate(KIND, WIRE_V4);
}

#[test]
fn twelve_flows_each_keep_their_own_rate_through_batched_changes() {
    best_of_three(|| {
        const FLOWS: usize = 12;
        let _alone = alone();
        let pair = cubic_pair();
        let mut driver = Driver::open(KIND, &pair);
        let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, FLOWS);
        // One after the other, so that flow and receiver's trace have the same place.
        let senders: Vec<_> = (0..FLOWS)
            .map(|index| {
                let sender = BulkSender::start(&pair.left, receiver.address);
                let (conn, _) = driver.starts(index + 1)[index];
                driver.set(conn, 5, FOREVER_NS);
                sender
            })
            .collect();
        let conns: Vec<_> = driver.starts(FLOWS).iter().map(|start| start.0).collect();
        for (index, conn) in conns.iter().enumerate() {
            let bps = (index as u64 + 1) * 10 * super::MBIT;
            driver
                .backend
                .set_rate(*conn, bps, FOREVER_NS)
                .expect("set a rate");
        }
        assert_eq!(driver.backend.next_poll_ns(), Some(0), "the batch waits");
        driver.backend.flush().expect("one batch");
        assert_ne!(driver.backend.next_poll_ns(), Some(0), "it was sent");
        driver.run_for(Duration::from_millis(300));
        let from = now_ns();
        driver.run_for(Duration::from_millis(2_000));
        let to = now_ns();
        driver.backend.clear_all().expect("clear all");
        for sender in senders {
            sender.stop();
        }
        let mut kept = Ok(());
        for (index, trace) in receiver.finish().iter().enumerate() {
            let wanted = (index as f64 + 1.0) * 10.0;
            kept = kept.and(ensure_kept(trace, from, to, WIRE_V4, wanted));
        }
        driver.backend.shut_down().expect("shut down");
        assert_eq!(left_behind(&pair), Vec::<String>::new());
        kept
    });
}

#[test]
fn a_flowlet_ends_with_its_connection_not_with_its_slot() {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(KIND, &pair);
    let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
    let sender = BulkSender::start(&pair.left, receiver.address);
    let conn = driver.started();
    driver.set(conn, 300, FOREVER_NS);
    driver.run_for(Duration::from_millis(100));
    sender.stop();
    let at = |driver: &mut Driver, what: &str, kind: FlowEventKind| {
        driver.until(what, |events| {
            let of_it = |event: &&FlowEvent| event.conn == conn && event.kind == kind;
            events.iter().rfind(of_it).map(|event| event.at_ns)
        })
    };
    let closed_ns = at(&mut driver, "the close", FlowEventKind::Close);
    let idle_ns = at(&mut driver, "the end", FlowEventKind::Idle);
    // The slot waits for retransmissions; other flows' rates must not.
    assert!(
        idle_ns + 150 * MS < closed_ns,
        "{} ms before the slot was taken back",
        closed_ns.saturating_sub(idle_ns) / MS
    );
    receiver.finish();
    driver.backend.shut_down().expect("shut down");
}

#[test]
fn an_operators_queue_discipline_is_not_touched() {
    let _alone = alone();
    let pair = cubic_pair();
    pair.left
        .run("tc qdisc add dev v0 root handle 1: tbf rate 1gbit burst 128k latency 10ms");
    let before = pair.left.run("tc qdisc show dev v0");
    pair.left.enter();
    let error = open(Some(KIND), &config(&pair))
        .err()
        .expect("refused")
        .to_string();
    assert!(
        error.contains("tbf 1:") && error.contains("tc qdisc del dev v0 root"),
        "{error}"
    );
    assert_eq!(pair.left.run("tc qdisc show dev v0"), before);
}

#[test]
fn an_operators_filters_stay_when_the_back_end_goes() {
    let _alone = alone();
    let pair = cubic_pair();
    pair.left.run("tc qdisc add dev v0 clsact");
    pair.left
        .run("tc filter add dev v0 ingress protocol all prio 7 u32 match u32 0 0");
    pair.left.enter();
    let mut backend = open(Some(KIND), &config(&pair)).unwrap_or_else(|error| panic!("{error}"));
    backend.shut_down().expect("shut down");
    assert!(
        pair.left
            .run("tc filter show dev v0 ingress")
            .contains("pref 7")
    );
    assert!(!pair.left.run("tc qdisc show dev v0").contains("htb"));
}

#[test]
fn a_second_daemon_a_missing_device_and_too_many_flows_are_refused() {
    let _alone = alone();
    let pair = cubic_pair();
    pair.left.enter();
    let good = config(&pair);
    let refused =
        |config: &BackendConfig| open(Some(KIND), config).err().expect("refused").to_string();
    let nameless = refused(&BackendConfig {
        device: None,
        ..good.clone()
    });
    assert!(nameless.contains("pacing.device"), "{nameless}");
    let missing = refused(&BackendConfig {
        device: Some("nodev0".to_owned()),
        ..good.clone()
    });
    assert!(
        missing.contains("nodev0") && missing.contains("ip link"),
        "{missing}"
    );
    let crowd = refused(&BackendConfig {
        max_flows: 1 << 20,
        ..good.clone()
    });
    assert!(crowd.contains("pacing.max_flows"), "{crowd}");
    let mut first = open(Some(KIND), &good).unwrap_or_else(|error| panic!("{error}"));
    let second = refused(&good);
    assert!(
        second.contains("another daemon paces the device v0"),
        "{second}"
    );
    first.shut_down().expect("shut down");
}

#[test]
fn a_rate_over_4_gib_per_second_is_set_in_64_bits() {
    let _alone = alone();
    let pair = cubic_pair();
    let mut driver = Driver::open(KIND, &pair);
    let receiver = BulkReceiver::start(&pair.right, RIGHT_V4, 1);
    let sender = BulkSender::start(&pair.left, receiver.address);
    let conn = driver.started();
    // 5 GB/s, which does not fit the 32 bits of `struct tc_ratespec`.
    driver.set(conn, 40_000, now_ns() + 60_000 * MS);
    let shown = pair.left.run("tc class show dev v0 classid 5257:10");
    assert!(shown.contains("rate 40Gbit ceil 40Gbit"), "{shown}");
    sender.stop();
    receiver.finish();
    driver.backend.shut_down().expect("shut down");
}

#[test]
fn a_limited_flow_is_told() {
    demand::a_limited_flow_is_told(KIND, RIGHT_V4);
}

#[test]
fn a_limited_flow_is_told_over_ipv6() {
    demand::a_limited_flow_is_told(KIND, RIGHT_V6);
}

#[test]
fn growing_demand_is_an_event() {
    demand::growing_demand_is_an_event(KIND, RIGHT_V4);
}

#[test]
fn growing_demand_is_an_event_over_ipv6() {
    demand::growing_demand_is_an_event(KIND, RIGHT_V6);
}

#[test]
fn what_a_slow_link_holds_back_is_not_limited() {
    demand::what_a_slow_link_holds_back_is_not_limited(KIND, RIGHT_V4);
}

#[test]
fn what_a_slow_link_holds_back_is_not_limited_over_ipv6() {
    demand::what_a_slow_link_holds_back_is_not_limited(KIND, RIGHT_V6);
}

#[test]
fn what_waits_when_a_watched_flows_rate_is_lowered_leaves_at_the_rate_before() {
    demand::what_waits_when_a_watched_flows_rate_is_lowered_leaves_at_the_rate_before(KIND);
}

#[test]
fn what_leaves_at_a_first_step_does_not_wait_after_the_last() {
    demand::what_leaves_at_a_first_step_does_not_wait_after_the_last(KIND);
}

#[test]
fn a_rate_that_has_grown_holds() {
    demand::a_rate_that_has_grown_holds(KIND);
}

#[test]
fn a_watched_flow_is_not_held() {
    demand::a_watched_flow_is_not_held(KIND, RIGHT_V4);
}

#[test]
fn a_watched_flow_is_not_held_over_ipv6() {
    demand::a_watched_flow_is_not_held(KIND, RIGHT_V6);
}

#[test]
fn a_receiver_that_does_not_read_gives_its_slot_back() {
    demand::a_receiver_that_does_not_read_gives_its_slot_back(KIND, RIGHT_V4, GIVEN_BACK);
}

#[test]
fn a_receiver_that_does_not_read_gives_its_slot_back_over_ipv6() {
    demand::a_receiver_that_does_not_read_gives_its_slot_back(KIND, RIGHT_V6, GIVEN_BACK);
}

#[test]
fn a_receiver_that_is_gone_ends_the_flowlet() {
    demand::a_receiver_that_is_gone_ends_the_flowlet(KIND, RIGHT_V4);
}

#[test]
fn a_receiver_that_is_gone_ends_the_flowlet_over_ipv6() {
    demand::a_receiver_that_is_gone_ends_the_flowlet(KIND, RIGHT_V6);
}

#[test]
fn a_cleared_rate_does_not_outlive_silence() {
    demand::a_silent_socket_keeps_no_rate(KIND, RIGHT_V4, RateEnd::Cleared);
}

#[test]
fn the_kill_switch_reaches_silent_sockets() {
    demand::a_silent_socket_keeps_no_rate(KIND, RIGHT_V6, RateEnd::KillSwitch);
}

#[test]
fn a_lease_that_lapses_in_silence_leaves_no_rate() {
    demand::a_silent_socket_keeps_no_rate(KIND, RIGHT_V4, RateEnd::Lapsed);
}

#[test]
fn a_daemon_killed_beside_a_silent_socket_leaves_no_rate() {
    demand::a_silent_socket_keeps_no_rate(KIND, RIGHT_V6, RateEnd::Killed);
}

#[test]
fn the_smallest_rate_that_is_cleared_holds_nothing_up() {
    demand::the_smallest_rate_holds_nothing_up_after_its_end(
        KIND,
        RIGHT_V4,
        RateEnd::Cleared,
        200_000,
    );
}

#[test]
fn the_smallest_rate_under_the_kill_switch_holds_nothing_up() {
    demand::the_smallest_rate_holds_nothing_up_after_its_end(
        KIND,
        RIGHT_V6,
        RateEnd::KillSwitch,
        200_000,
    );
}

#[test]
fn the_smallest_rate_that_lapses_holds_nothing_up() {
    demand::the_smallest_rate_holds_nothing_up_after_its_end(
        KIND,
        RIGHT_V4,
        RateEnd::Lapsed,
        200_000,
    );
}

/// Nobody opens the class of a killed daemon: what waits there, up to all of it, leaves at the
/// smallest rate, 100 kB in 6 s.
#[test]
fn the_smallest_rate_of_a_killed_daemon_holds_nothing_up() {
    demand::the_smallest_rate_holds_nothing_up_after_its_end(
        KIND,
        RIGHT_V6,
        RateEnd::Killed,
        100_000,
    );
}

#[test]
fn slow_flows_all_end() {
    demand::slow_flows_all_end(KIND, RIGHT_V4, 150_000);
}

#[test]
fn slow_flows_all_end_over_ipv6() {
    demand::slow_flows_all_end(KIND, RIGHT_V6, 150_000);
}

#[test]
fn a_name_that_any_user_can_take_keeps_no_daemon_from_its_device() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let _alone = alone();
    let pair = cubic_pair();
    pair.left.enter();
    let index = nix::net::if_::if_nametoindex("v0").expect("there");
    let name = SocketAddr::from_abstract_name(format!("ratewright-tc_htb-{index}")).expect("name");
    let _taken = UnixDatagram::bind_addr(&name).expect("free");
    let mut backend = open(Some(KIND), &config(&pair)).unwrap_or_else(|error| panic!("{error}"));
    let locks: Vec<_> = std::fs::read_dir("/run/ratewright/locks")
        .expect("made")
        .map(|entry| entry.expect("readable"))
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("tc_htb-"))
        .collect();
    assert!(!locks.is_empty());
    for lock in locks {
        use std::os::unix::fs::PermissionsExt;
        let mode = lock.metadata().expect("there").permissions().mode();
        assert_eq!(mode & 0o077, 0, "only root may open {:?}", lock.path());
    }
    backend.shut_down().expect("shut down");
}
