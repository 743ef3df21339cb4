//! Observe mode: rates are known and compared, and none reaches the back end.

use super::*;
use crate::backend::Usage;

const MS: u64 = 1_000_000;

fn usage(conn: Conn, sent_bytes: u64, limited_ns: u64) -> Usage {
    Usage {
        conn,
        sent_bytes,
        acked_bytes: sent_bytes,
        limited_ns,
        round_trip_ns: 0,
    }
}

#[test]
fn a_rate_is_compared_with_what_is_sent_and_never_applied() {
    let mut table = established("");
    table.set_pacing_state(PacingState::Observe);
    assert_eq!(
        actions(&mut table),
        [FlowAction::ClearAll, FlowAction::Observe(true)]
    );
    let record = start(&mut table, conn(0, 0), "10.0.2.1");
    table.on_rate(0, record.flow(), 80_000_000, 10_000 * MS);
    table.on_renewed(20_000 * MS);
    assert_eq!(actions(&mut table), []);
    assert_eq!((table.rated_count(), table.paced_count(0)), (0, 0));
    // 100 Mbit/s for 100 ms, held up by TCP, under a rate of 80 Mbit/s.
    for step in 0..=5 {
        table.on_usage(
            step * 20 * MS,
            &[usage(conn(0, 0), step * 250_000, step * 20 * MS)],
        );
    }
    assert_eq!(actions(&mut table), []);
    let [class] = &table.class_use(100 * MS)[..] else {
        panic!("one class")
    };
    assert_eq!(
        (class.flows, class.rate_bps, class.achieved_bps),
        (1, 80_000_000, 100_000_000)
    );
    assert_eq!(
        (class.allowed_bytes, class.achieved_bytes),
        (1_000_000, 1_250_000)
    );

    table.set_pacing_state(PacingState::Pace);
    assert_eq!(
        actions(&mut table),
        [FlowAction::ClearAll, FlowAction::Observe(false)]
    );
    table.on_rate(100 * MS, record.flow(), 80_000_000, 10_000 * MS);
    assert!(matches!(
        actions(&mut table)[..],
        [FlowAction::SetRate { .. }]
    ));
}

#[test]
fn the_kill_switch_ends_observing_too() {
    let mut table = established("");
    table.set_pacing_state(PacingState::Observe);
    actions(&mut table);
    let record = start(&mut table, conn(0, 0), "10.0.2.1");
    table.set_pacing_state(PacingState::Release);
    table.on_rate(0, record.flow(), 80_000_000, 10_000 * MS);
    assert_eq!(actions(&mut table), [FlowAction::ClearAll]);
    assert_eq!(table.counters().rates_withheld, 1);
    assert_eq!(table.next_usage_ns(), None);
}

#[test]
fn the_more_careful_of_configuration_and_allocator_holds() {
    use PacingState::{Observe, Pace, Release};
    for (configured, released, observes, state) in [
        (false, false, false, Pace),
        (true, false, false, Observe),
        (false, true, true, Observe),
        (true, true, true, Observe),
        (false, true, false, Release),
        (true, true, false, Release),
    ] {
        assert_eq!(PacingState::of(configured, released, observes), state);
    }
}

/// Flows of two classes, some without a valid rate.
#[test]
fn use_is_added_up_by_class_over_flows_whose_rates_hold() {
    let mut table = established("[[policy]]\ndst_port = 5201\nclass = \"gold\"\n");
    let started: Vec<FlowId> = (0..4)
        .map(|slot| {
            let port = if slot == 3 { 80 } else { 5_201 };
            let kind = FlowEventKind::Start(facts("10.0.2.1", port));
            event(&mut table, conn(slot, 0), 0, kind);
            let [FlowAction::Start(record)] = actions(&mut table)[..] else {
                panic!("one start")
            };
            record.flow()
        })
        .collect();
    for (&flow, (bps, lease_ms)) in (started.iter()).zip([
        (10_000_000, 1_000),
        (20_000_000, 1_000),
        (40_000_000, 130),
        (80_000_000, 1_000),
    ]) {
        table.on_rate(0, flow, bps, lease_ms * MS);
    }
    // 1, 2, 4 and 8 Mbit/s.
    for at_ms in [100, 120, 140] {
        let usages: Vec<_> = (0..4)
            .map(|slot| usage(conn(slot, 0), (at_ms - 100) * (125 << slot), 0))
            .collect();
        table.on_usage(at_ms * MS, &usages);
    }
    let class = |class, name: &str, flows, mbit: u64, used_mbit: u64, bytes| ClassUse {
        class,
        name: name.to_owned(),
        flows,
        rate_bps: mbit * 1_000_000,
        achieved_bps: used_mbit * 1_000_000,
        allowed_bytes: bytes,
        achieved_bytes: bytes,
    };
    // The third's lease ran out at 130 ms: its bytes count up to the measurement before.
    let gold = class(2, "gold", 2, 30, 3, 40 * 125 + 40 * 250 + 20 * 500);
    let default = class(0, "default", 1, 80, 8, 40 * 1_000);
    assert_eq!(table.class_use(140 * MS), [default, gold.clone()]);
    // A lease is over at its end.
    let [_, at_end] = &table.class_use(1_000 * MS)[..] else {
        panic!("both classes had rates")
    };
    assert_eq!((at_end.flows, at_end.rate_bps), (0, 0));
    assert_eq!(at_end.allowed_bytes, gold.allowed_bytes);
    // A renewal moves all leases.
    table.on_renewed(2_000 * MS);
    assert_eq!(table.class_use(1_000 * MS)[1].flows, 3);
    assert_eq!(table.counters().rates_observed, 0);
}

#[test]
fn a_table_that_begins_observing_tells_a_back_end_that_observes_nothing() {
    let mut table = FlowTable::new(8, GAP_NS, Policy::default());
    assert!(table.paces());
    table.begin_in(PacingState::Observe);
    assert_eq!(table.pacing_state(), PacingState::Observe);
    assert!(!table.paces());
    table.on_established(usual(), PacingState::Observe);
    assert_eq!(actions(&mut table), [FlowAction::ClearAll]);
    let record = start(&mut table, conn(0, 0), "10.0.2.1");
    table.on_rate(0, record.flow(), 80_000_000, 10_000 * MS);
    assert_eq!(table.counters().rates_observed, 1);
    table.set_pacing_state(PacingState::Pace);
    assert_eq!(
        actions(&mut table),
        [FlowAction::ClearAll, FlowAction::Observe(false)]
    );
    assert!(table.paces());

    let mut table = FlowTable::new(8, GAP_NS, Policy::default());
    table.begin_in(PacingState::Pace);
    table.set_pacing_state(PacingState::Observe);
    assert_eq!(
        actions(&mut table),
        [FlowAction::ClearAll, FlowAction::Observe(true)]
    );
}
