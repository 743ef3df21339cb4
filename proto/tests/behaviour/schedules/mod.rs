//! Both session state machines over a simulated network: more than ten
//! thousand random schedules of flowlet starts and ends, rate changes, the kill
//! switch, transport breaks and restarts of either side, with datagrams lost,
//! duplicated, reordered and delayed beyond the lease, partitions in one direction
//! and in both, and clocks that jump ahead or stand still; over one path, or over
//! sealed datagrams with key updates, which may be blocked while the other path
//! is not.
//!
//! At every rate that the client surfaces the oracle checks that
//! - the rate was computed in the epoch of the session that the client is in,
//!   for the flowlet that now is on the slot;
//! - it is not older than one that was surfaced before;
//! - it is surfaced before its true expiry, which the oracle computes in global
//!   time from the moment at which the server sent it;
//! - the kill switch is off.
//!
//! When the network is quiet again, both sides must hold the same flows and the
//! same rates, and nothing but keep-alives may be on the wire.
//!
//! A failing schedule is shrunk and printed.

mod client_host;
mod clock;
mod network;
mod ops;
mod oracle;
mod sealed;
mod server_host;
mod world;

use std::cell::Cell;

use proptest::collection::vec;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use self::ops::{ScheduleOpKind, operation};
use self::oracle::Coverage;
use self::world::SessionWorld;

const SCHEDULES_PER_TEST: u32 = 2_500;

/// Runs random schedules in which operations have the `kinds`' weights, and
/// returns what they exercised.
fn schedules(seed: u8, kinds: &[(u32, ScheduleOpKind)], longest: usize) -> Coverage {
    schedules_over(false, seed, kinds, longest)
}

/// Runs random schedules like [`schedules`]; with `seals`, datagrams travel sealed as far as they
/// get through.
fn schedules_over(
    seals: bool,
    seed: u8,
    kinds: &[(u32, ScheduleOpKind)],
    longest: usize,
) -> Coverage {
    let config = Config {
        cases: SCHEDULES_PER_TEST,
        // The seeds are in the source, so no file of failures is needed.
        failure_persistence: None,
        // A schedule has hundreds of operations, each of which shrinking tries to leave out.
        max_shrink_iters: Config::default().max_shrink_iters.min(4_000),
        ..Config::default()
    };
    // A fixed seed: a failure is the same schedule in every run, and so is its shrinking.
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let strategy = (proptest::num::u64::ANY, vec(operation(kinds), 1..longest));
    // A cell, since the runner takes a closure that may not mutate.
    let coverage = Cell::new(Coverage::default());
    let outcome = runner.run(&strategy, |(seed, operations)| {
        let mut world = SessionWorld::new(seed, seals);
        world.run(&operations).map_err(TestCaseError::fail)?;
        let mut total = coverage.get();
        total.add(world.oracle.coverage);
        coverage.set(total);
        Ok(())
    });
    match outcome {
        Ok(()) => coverage.get(),
        Err(TestError::Fail(reason, (seed, operations))) => {
            panic!("{reason}\nnetwork seed {seed}, operations {operations:#?}")
        }
        Err(TestError::Abort(reason)) => panic!("aborted: {reason}"),
    }
}

/// Operations of every schedule: flowlets come and go, rates change, time passes.
const FLOWS: [(u32, ScheduleOpKind); 5] = [
    (8, ScheduleOpKind::Start),
    (5, ScheduleOpKind::End),
    (2, ScheduleOpKind::Update),
    (8, ScheduleOpKind::Rate),
    (8, ScheduleOpKind::Wait),
];

fn flows_and(more: &[(u32, ScheduleOpKind)]) -> Vec<(u32, ScheduleOpKind)> {
    // Flowlets and rates in every schedule: the other operations matter only for their sake.
    [&FLOWS, more].concat()
}

#[test]
fn a_calm_network_delivers_everything() {
    let coverage = schedules(1, &FLOWS, 200);
    assert!(coverage.rates_surfaced > 5_000, "{coverage:?}");
    // Nothing is late in a calm network: an expired datagram would be an error of the lease.
    assert_eq!(coverage.expired, 0, "{coverage:?}");
}

#[test]
fn loss_duplication_and_reordering() {
    let coverage = schedules(2, &flows_and(&[(4, ScheduleOpKind::Network)]), 400);
    assert!(coverage.lost > 5_000, "{coverage:?}");
    assert!(coverage.duplicates > 5_000, "{coverage:?}");
    assert!(coverage.stale > 500, "{coverage:?}");
}

#[test]
fn long_schedules_of_loss_and_delay_beyond_the_lease() {
    let coverage = schedules(3, &flows_and(&[(1, ScheduleOpKind::Network)]), 600);
    assert!(coverage.lost > 5_000, "{coverage:?}");
    assert!(coverage.expired > 100, "{coverage:?}");
}

#[test]
fn transport_breaks() {
    let more = [(3, ScheduleOpKind::Network), (3, ScheduleOpKind::Break)];
    let coverage = schedules(4, &flows_and(&more), 300);
    assert!(coverage.sessions > 3_000, "{coverage:?}");
    assert!(coverage.wrong_session > 100, "{coverage:?}");
}

#[test]
fn client_restarts() {
    let more = [
        (3, ScheduleOpKind::Network),
        (2, ScheduleOpKind::ClientRestart),
    ];
    let coverage = schedules(5, &flows_and(&more), 300);
    assert!(coverage.sessions > 3_000, "{coverage:?}");
}

#[test]
fn server_restarts() {
    let more = [
        (3, ScheduleOpKind::Network),
        (2, ScheduleOpKind::ServerRestart),
    ];
    let coverage = schedules(6, &flows_and(&more), 300);
    assert!(coverage.sessions > 3_000, "{coverage:?}");
    assert!(coverage.wrong_session > 100, "{coverage:?}");
}

#[test]
fn partitions_in_either_direction() {
    let more = [(3, ScheduleOpKind::Network), (3, ScheduleOpKind::Partition)];
    let coverage = schedules(9, &flows_and(&more), 300);
    assert!(coverage.cut > 5_000, "{coverage:?}");
    assert!(coverage.sessions > 3_000, "{coverage:?}");
}

#[test]
fn clocks_that_jump_ahead() {
    let more = [
        (3, ScheduleOpKind::Network),
        (3, ScheduleOpKind::ClockJumps),
    ];
    let coverage = schedules(10, &flows_and(&more), 300);
    assert!(coverage.clock_faults > 5_000, "{coverage:?}");
    assert!(coverage.sessions > 3_000, "{coverage:?}");
}

#[test]
fn clocks_that_stand_still() {
    let more = [
        (3, ScheduleOpKind::Network),
        (3, ScheduleOpKind::ClockStands),
    ];
    let coverage = schedules(11, &flows_and(&more), 300);
    assert!(coverage.clock_faults > 5_000, "{coverage:?}");
    assert!(coverage.sessions > 2_500, "{coverage:?}");
}

#[test]
fn the_kill_switch_and_topology_changes() {
    let more = [
        (3, ScheduleOpKind::Network),
        (3, ScheduleOpKind::Release),
        (2, ScheduleOpKind::Topology),
        (1, ScheduleOpKind::Break),
    ];
    let coverage = schedules(7, &flows_and(&more), 300);
    assert!(coverage.releases > 1_000, "{coverage:?}");
}

#[test]
fn everything_at_once() {
    let more = [
        (3, ScheduleOpKind::Network),
        (1, ScheduleOpKind::Release),
        (1, ScheduleOpKind::Topology),
        (1, ScheduleOpKind::Break),
        (1, ScheduleOpKind::ClientRestart),
        (1, ScheduleOpKind::ServerRestart),
        (1, ScheduleOpKind::Partition),
        (1, ScheduleOpKind::ClockJumps),
        (1, ScheduleOpKind::ClockStands),
    ];
    let coverage = schedules(8, &flows_and(&more), 500);
    assert!(coverage.sessions > 5_000, "{coverage:?}");
    assert!(coverage.rates_surfaced > 5_000, "{coverage:?}");
}

#[test]
fn sealed_datagrams_lost_duplicated_reordered_and_late() {
    let more = [(4, ScheduleOpKind::Network)];
    let coverage = schedules_over(true, 12, &flows_and(&more), 300);
    assert!(coverage.lost > 5_000, "{coverage:?}");
    assert!(coverage.opened > 50_000, "{coverage:?}");
    assert!(coverage.not_opened > 5_000, "{coverage:?}");
    assert!(coverage.key_updates > 5_000, "{coverage:?}");
}

#[test]
fn sealed_datagrams_blocked_while_the_other_path_is_open() {
    let more = [(2, ScheduleOpKind::Network), (4, ScheduleOpKind::Block)];
    let coverage = schedules_over(true, 13, &flows_and(&more), 300);
    assert!(coverage.opened > 50_000, "{coverage:?}");
    assert!(coverage.fallbacks > 2_000, "{coverage:?}");
}

#[test]
fn sealed_datagrams_and_everything_at_once() {
    let more = [
        (3, ScheduleOpKind::Network),
        (1, ScheduleOpKind::Release),
        (1, ScheduleOpKind::Topology),
        (1, ScheduleOpKind::Break),
        (1, ScheduleOpKind::ClientRestart),
        (1, ScheduleOpKind::ServerRestart),
        (1, ScheduleOpKind::Partition),
        (1, ScheduleOpKind::Block),
        (1, ScheduleOpKind::ClockJumps),
        (1, ScheduleOpKind::ClockStands),
    ];
    let coverage = schedules_over(true, 14, &flows_and(&more), 500);
    assert!(coverage.sessions > 5_000, "{coverage:?}");
    assert!(coverage.opened > 50_000, "{coverage:?}");
    assert!(coverage.not_opened > 500, "{coverage:?}");
    assert!(coverage.fallbacks > 500, "{coverage:?}");
}
