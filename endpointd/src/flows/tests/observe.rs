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
        rests_ns: 0,
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
