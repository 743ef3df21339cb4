//! The table against hand-made sequences; random ones are in `tests/random.rs`.

mod changes;
mod observe;
mod random;
mod uses;

use std::net::IpAddr;

use ratewright_proto::{RateCode, WeightCode};
use ratewright_topology::ecmp::{FiveTuple, flow_hash};

use super::*;
use crate::policy::RuleConfig;

const GAP_NS: u64 = 1_000_000;
const LEASE_NS: u64 = 300_000_000;

fn network(hosts: &[(u32, &str)]) -> Arc<NetworkView> {
    let prefixes: Vec<(u32, ipnet::IpNet)> = hosts
        .iter()
        .map(|(id, prefix)| (*id, prefix.parse().unwrap()))
        .collect();
    Arc::new(NetworkView {
        own_host: 1,
        destinations: Destinations::new(prefixes.iter().map(|(id, prefix)| (*id, prefix))),
        ecmp_seed: 7,
        ecmp_symmetric: true,
        classes: vec![(0, "default".into()), (2, "gold".into())],
    })
}

fn usual() -> Arc<NetworkView> {
    network(&[(1, "10.0.1.1/32"), (2, "10.0.2.1/32"), (3, "10.0.3.0/24")])
}

fn facts(dst: &str, dst_port: u16) -> FlowFacts {
    FlowFacts {
        tuple: FiveTuple {
            src: "10.0.1.1".parse().unwrap(),
            dst: dst.parse::<IpAddr>().unwrap(),
            src_port: 40_000,
            dst_port,
            protocol: 6,
        },
        cgroup_id: 0,
        mark: 0,
        dscp: 0,
        app_max_bytes_per_s: None,
    }
}

fn conn(slot: u32, use_count: u32) -> Conn {
    Conn {
        slot: SlotIndex(slot),
        use_count,
    }
}

fn event(table: &mut FlowTable, conn: Conn, at_ns: u64, kind: FlowEventKind) {
    table.on_event(FlowEvent { conn, at_ns, kind });
}

fn actions(table: &mut FlowTable) -> Vec<FlowAction> {
    std::iter::from_fn(|| table.poll_action()).collect()
}

/// A table with an established session, its first actions taken away.
fn established(rules: &str) -> FlowTable {
    #[derive(serde::Deserialize)]
    struct PolicyFile {
        #[serde(default)]
        policy: Vec<RuleConfig>,
    }
    let rules: PolicyFile = toml::from_str(rules).unwrap();
    let mut table = FlowTable::new(8, GAP_NS, Policy::new(&rules.policy));
    table.on_established(usual(), PacingState::Pace);
    assert_eq!(actions(&mut table), [FlowAction::ClearAll]);
    table
}

fn start(table: &mut FlowTable, conn: Conn, dst: &str) -> StartRecord {
    event(table, conn, 0, FlowEventKind::Start(facts(dst, 5_201)));
    match actions(table)[..] {
        [FlowAction::Start(start)] => start,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn a_start_is_reported_with_host_path_and_treatment() {
    let mut table = established(
        "[[policy]]\ndst_port = 5201\nclass = \"gold\"\nweight = 2.0\nmax_rate_mbps = 100.0\n",
    );
    let report = start(&mut table, conn(3, 9), "10.0.3.77");
    let hash = flow_hash(7, true, &facts("10.0.3.77", 5_201).tuple);
    assert_eq!(
        (report.flow().slot(), report.dst_host(), report.path()),
        (3, 3, ratewright_proto::FlowPath::Hash(hash))
    );
    assert_eq!(
        (report.class(), report.weight()),
        (2, WeightCode::encode(2.0))
    );
    assert_eq!(report.demand(), RateCode::encode(100_000_000));
}

#[test]
fn the_applications_own_limit_is_a_demand() {
    let mut table = established("[[policy]]\nmax_rate_mbps = 100.0\n");
    for (app_bytes_per_s, demand_bps) in
        [(1_000_000, 9_000_000), (1 << 40, 100_000_000), (0, 2_000)]
    {
        let mut facts = facts("10.0.2.1", 80);
        facts.app_max_bytes_per_s = Some(app_bytes_per_s);
        event(&mut table, conn(1, 0), 0, FlowEventKind::Start(facts));
        event(&mut table, conn(1, 0), 0, FlowEventKind::Idle);
        table.on_timeout(GAP_NS);
        let FlowAction::Start(report) = actions(&mut table)[0] else {
            panic!()
        };
        assert_eq!(report.demand(), RateCode::encode(demand_bps));
        assert!(!report.demand().is_none());
    }
}

#[test]
fn what_is_not_for_the_allocator_is_left_alone_and_counted() {
    let mut table = established("[[policy]]\ndst_port = 22\nbypass = true\n");
    event(
        &mut table,
        conn(0, 0),
        0,
        FlowEventKind::Start(facts("10.0.2.1", 22)),
    );
    event(
        &mut table,
        conn(1, 0),
        0,
        FlowEventKind::Start(facts("192.0.2.1", 80)),
    );
    event(
        &mut table,
        conn(2, 0),
        0,
        FlowEventKind::Start(facts("10.0.1.1", 80)),
    );
    event(
        &mut table,
        conn(8, 0),
        0,
        FlowEventKind::Start(facts("10.0.2.1", 80)),
    );
    assert_eq!(actions(&mut table), []);
    let counters = table.counters();
    assert_eq!(
        (
            counters.bypassed,
            counters.unknown_destination,
            counters.own_host,
            counters.beyond_bound
        ),
        (1, 1, 1, 1)
    );
    assert_eq!((table.flow_count(), table.reported_count()), (3, 0));
    event(&mut table, conn(0, 0), 5, FlowEventKind::Close);
    assert_eq!(actions(&mut table), []);
}

#[test]
fn a_pause_shorter_than_the_gap_is_bridged_and_a_longer_one_ends_the_flowlet() {
    let mut table = established("");
    let first = start(&mut table, conn(0, 0), "10.0.2.1");
    event(&mut table, conn(0, 0), 100, FlowEventKind::Idle);
    assert_eq!(table.next_timeout(), Some(100 + GAP_NS));
    event(&mut table, conn(0, 0), 200, FlowEventKind::Resume);
    // It is idle again when the first pause's timer fires: the gap counts from the second.
    event(&mut table, conn(0, 0), 300, FlowEventKind::Idle);
    table.on_timeout(100 + GAP_NS);
    assert_eq!(actions(&mut table), []);
    assert_eq!(table.next_timeout(), Some(300 + GAP_NS));
    table.on_timeout(300 + GAP_NS);
    assert_eq!(
        actions(&mut table),
        [FlowAction::End(first.flow()), FlowAction::Clear(conn(0, 0))]
    );
    assert_eq!(
        (table.next_timeout(), table.counters().gaps_bridged),
        (None, 1)
    );

    // A resume that crossed the end starts the next flowlet, with the known facts.
    event(&mut table, conn(0, 0), 400 + GAP_NS, FlowEventKind::Resume);
    let [FlowAction::Start(second)] = actions(&mut table)[..] else {
        panic!()
    };
    assert_eq!(second.flow(), first.flow().next_generation());
}

#[test]
fn a_close_ends_at_once_and_what_comes_later_is_ignored() {
    let mut table = established("");
    let report = start(&mut table, conn(0, 4), "10.0.2.1");
    table.on_rate(0, report.flow(), 1_000_000, LEASE_NS);
    actions(&mut table);
    event(&mut table, conn(0, 4), 10, FlowEventKind::Idle);
    event(&mut table, conn(0, 4), 20, FlowEventKind::Close);
    assert_eq!(actions(&mut table), [FlowAction::End(report.flow())]);
    for kind in [
        FlowEventKind::Close,
        FlowEventKind::Start(facts("10.0.2.1", 1)),
        FlowEventKind::Resume,
    ] {
        event(&mut table, conn(0, 4), 30, kind);
    }
    table.on_rate(40, report.flow(), 1_000_000, LEASE_NS);
    table.on_timeout(u64::MAX);
    assert_eq!(actions(&mut table), []);
    assert_eq!(
        (table.counters().stale_events, table.counters().rates_stale),
        (3, 1)
    );
    assert_eq!((table.rated_count(), table.counters().closed), (0, 1));
}

#[test]
fn a_closed_connection_stays_closed_where_use_counts_wrap() {
    let mut table = established("");
    start(&mut table, conn(0, u32::MAX), "10.0.2.1");
    event(&mut table, conn(0, u32::MAX), 10, FlowEventKind::Close);
    actions(&mut table);
    let again = FlowEventKind::Start(facts("10.0.2.1", 1));
    event(&mut table, conn(0, u32::MAX), 20, again);
    assert_eq!(actions(&mut table), []);
    assert_eq!(table.counters().stale_events, 1);
    start(&mut table, conn(0, 0), "10.0.2.1");
}

#[test]
fn the_next_connection_on_a_slot_ends_one_whose_close_got_lost() {
    let mut table = established("");
    let lost = start(&mut table, conn(0, u32::MAX), "10.0.2.1");
    event(
        &mut table,
        conn(0, 0),
        10,
        FlowEventKind::Start(facts("10.0.2.1", 80)),
    );
    let actions = actions(&mut table);
    assert_eq!(
        actions[..2],
        [
            FlowAction::End(lost.flow()),
            FlowAction::Clear(conn(0, u32::MAX))
        ]
    );
    assert!(
        matches!(actions[2], FlowAction::Start(next) if next.flow() == lost.flow().next_generation())
    );
    assert_eq!(table.counters().closed, 1);
}

#[test]
fn rates_are_applied_to_the_live_flowlet_only() {
    let mut table = established("");
    let report = start(&mut table, conn(0, 0), "10.0.2.1");
    table.on_rate(5, report.flow(), 1_000_000, 50);
    table.on_rate(5, report.flow().next_generation(), 2_000_000, 50);
    table.on_rate(60, report.flow(), 3_000_000, 60);
    assert_eq!(
        actions(&mut table),
        [FlowAction::SetRate {
            conn: conn(0, 0),
            rate_bps: 1_000_000,
            expires_ns: 50,
            waited_ns: Some(5)
        }]
    );
    assert_eq!((table.paced_count(49), table.paced_count(50)), (1, 0));
    assert_eq!(
        (table.counters().rates_stale, table.counters().rates_expired),
        (1, 1)
    );
    // No capacity on its path: plain TCP finds out what still gets through.
    table.on_rate(10, report.flow(), 0, 50);
    assert_eq!(actions(&mut table), [FlowAction::Clear(conn(0, 0))]);
    assert_eq!(table.rated_count(), 0);
}

#[test]
fn leases_are_renewed_only_where_there_is_a_rate() {
    let mut table = established("");
    table.on_renewed(LEASE_NS);
    assert_eq!(actions(&mut table), []);
    let report = start(&mut table, conn(0, 0), "10.0.2.1");
    table.on_rate(0, report.flow(), 1_000_000, LEASE_NS);
    actions(&mut table);
    for expires_ns in [LEASE_NS + 1, LEASE_NS, LEASE_NS + 9] {
        table.on_renewed(expires_ns);
    }
    assert_eq!(
        actions(&mut table),
        [
            FlowAction::Renew {
                expires_ns: LEASE_NS + 1
            },
            FlowAction::Renew {
                expires_ns: LEASE_NS + 9
            }
        ]
    );
    assert_eq!(
        (
            table.paced_count(LEASE_NS + 8),
            table.paced_count(LEASE_NS + 9)
        ),
        (1, 0)
    );
}

/// Shares stand in for the allocator's rates while it is lost. Heard again in the same session, it
/// repeats no rate: those of before hold, and flows that had none are plain TCP.
#[test]
fn rates_displaced_by_shares_hold_again_once_the_allocator_is_heard() {
    let mut table = established("");
    let [rated, unrated] = [1, 2].map(|slot| start(&mut table, conn(slot, 1), "10.0.3.77"));
    table.on_rate(0, rated.flow(), 1_000_000, LEASE_NS);
    let lost_ns = 2 * LEASE_NS;
    for record in [&rated, &unrated] {
        for bps in [400_000, 500_000] {
            table.on_share(lost_ns, record.flow(), bps, lost_ns + LEASE_NS);
        }
    }
    assert_eq!((table.rated_count(), table.paced_count(lost_ns)), (2, 2));
    actions(&mut table);
    table.on_renewed(lost_ns + 2 * LEASE_NS);
    table.end_shares();
    assert_eq!(
        actions(&mut table),
        [
            FlowAction::Renew {
                expires_ns: lost_ns + 2 * LEASE_NS
            },
            FlowAction::SetRate {
                conn: conn(1, 1),
                rate_bps: 1_000_000,
                expires_ns: lost_ns + 2 * LEASE_NS,
                waited_ns: None,
            },
            FlowAction::Clear(conn(2, 1)),
        ]
    );
    assert_eq!((table.rated_count(), table.paced_count(lost_ns)), (1, 1));
    // A newer rate of the allocator is not displaced any more.
    table.on_share(lost_ns, rated.flow(), 400_000, lost_ns + LEASE_NS);
    table.on_rate(lost_ns, rated.flow(), 2_000_000, lost_ns + LEASE_NS);
    actions(&mut table);
    table.end_shares();
    assert_eq!(actions(&mut table), []);
}

/// A path may lose its capacity while the allocator is lost, and its sharing receiver then gives 0.
#[test]
fn a_share_of_nothing_gives_way_to_the_rate_and_to_no_rate_before_it() {
    let mut table = established("");
    let [rated, unrated] = [1, 2].map(|slot| start(&mut table, conn(slot, 1), "10.0.3.77"));
    table.on_rate(0, rated.flow(), 1_000_000, 9 * LEASE_NS);
    actions(&mut table);
    for record in [&rated, &unrated] {
        table.on_share(1, record.flow(), 0, 9 * LEASE_NS);
    }
    assert_eq!(actions(&mut table), [FlowAction::Clear(conn(1, 1))]);
    assert_eq!(table.rated_count(), 0);
    table.end_shares();
    assert_eq!(
        actions(&mut table),
        [FlowAction::SetRate {
            conn: conn(1, 1),
            rate_bps: 1_000_000,
            expires_ns: 9 * LEASE_NS,
            waited_ns: None,
        }]
    );
    assert_eq!(table.rated_count(), 1);
}

#[test]
fn first_paced_transmissions_are_counted() {
    let mut table = established("");
    start(&mut table, conn(0, 0), "10.0.2.1");
    let kind = FlowEventKind::FirstPaced { latency_ns: 9 };
    event(&mut table, conn(0, 0), 10, kind);
    assert_eq!(table.counters().first_paced, 1);
}

#[test]
fn no_rate_is_applied_while_the_kill_switch_is_on() {
    let mut table = established("");
    let report = start(&mut table, conn(0, 0), "10.0.2.1");
    table.on_rate(0, report.flow(), 1_000_000, LEASE_NS);
    actions(&mut table);
    table.set_pacing_state(PacingState::Release);
    table.set_pacing_state(PacingState::Release);
    assert_eq!(actions(&mut table), [FlowAction::ClearAll]);
    table.on_rate(2, report.flow(), 2_000_000, LEASE_NS);
    table.on_renewed(2 * LEASE_NS);
    assert_eq!((actions(&mut table), table.paced_count(3)), (vec![], 0));
    assert_eq!(table.counters().rates_withheld, 1);
    table.set_pacing_state(PacingState::Pace);
    assert_eq!(actions(&mut table), []);
    table.on_rate(3, report.flow(), 3_000_000, LEASE_NS);
    assert_eq!(
        actions(&mut table),
        [FlowAction::SetRate {
            conn: conn(0, 0),
            rate_bps: 3_000_000,
            expires_ns: LEASE_NS,
            waited_ns: None
        }]
    );
}

#[test]
fn a_new_session_never_extends_the_rates_of_the_old_one() {
    let mut table = established("");
    let report = start(&mut table, conn(0, 0), "10.0.2.1");
    table.on_rate(0, report.flow(), 1_000_000, LEASE_NS);
    actions(&mut table);
    table.on_established(usual(), PacingState::Pace);
    table.on_renewed(3 * LEASE_NS);
    // The session keeps the flowlet and sends it again by itself: only the rate is taken back.
    assert_eq!(actions(&mut table), [FlowAction::ClearAll]);
    assert_eq!((table.paced_count(1), table.reported_count()), (0, 1));
}
