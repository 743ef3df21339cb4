//! Demands that follow use: when flowlets end, and what sending demands to the allocator costs.

use super::*;
use crate::backend::Usage;

const MS: u64 = 1_000_000;
const MBIT: u64 = 1_000_000;

fn usage(conn: Conn, sent_bytes: u64) -> Usage {
    Usage {
        conn,
        sent_bytes,
        acked_bytes: sent_bytes,
        limited_ns: 0,
        round_trip_ns: 0,
    }
}

/// A flow that used a tenth of its rate in two windows, and so was lowered by 60 ms.
fn lowered(table: &mut FlowTable) -> FlowId {
    let flow = start(table, conn(0, 0), "10.0.2.1").flow();
    table.on_rate(0, flow, 100 * MBIT, 10_000 * MS);
    for at_ms in [0, 20, 40, 60] {
        table.on_usage(at_ms * MS, &[usage(conn(0, 0), at_ms * 1_250)]);
    }
    let told: Vec<_> = actions(table);
    let Some(FlowAction::Start(last)) = told.last() else {
        panic!("{told:?}")
    };
    assert_eq!(last.demand(), RateCode::encode(11_250_000));
    assert!(told.contains(&FlowAction::Watch(conn(0, 0))));
    flow
}

#[test]
fn a_lowered_flowlet_outlives_short_pauses_and_a_raised_one_does_not() {
    let mut table = established("");
    let flow = lowered(&mut table);
    event(&mut table, conn(0, 0), 100 * MS, FlowEventKind::Idle);
    table.on_timeout(140 * MS);
    event(&mut table, conn(0, 0), 140 * MS, FlowEventKind::Resume);
    event(&mut table, conn(0, 0), 141 * MS, FlowEventKind::Limited);
    let told = actions(&mut table);
    assert!(
        matches!(told[..], [FlowAction::Start(raised)] if raised.demand().is_none()),
        "{told:?}"
    );
    let counters = table.counters();
    assert_eq!((counters.demands_lowered, counters.demands_raised), (1, 1));
    // The timer of the pause before is not due yet: this one's gap is the usual one.
    event(&mut table, conn(0, 0), 142 * MS, FlowEventKind::Idle);
    assert_eq!(table.next_timeout(), Some(142 * MS + GAP_NS));
    table.on_timeout(142 * MS + GAP_NS);
    assert_eq!(actions(&mut table)[0], FlowAction::End(flow));
    // What is left of the earlier timer ends nothing.
    let next = start(&mut table, conn(0, 0), "10.0.2.1").flow();
    table.on_timeout(200 * MS);
    assert_eq!(actions(&mut table), []);
    assert_ne!(next, flow);
}

/// Begins a flowlet of the connection. Returns its record.
fn begin(table: &mut FlowTable, at_ms: u64) -> StartRecord {
    let kind = FlowEventKind::Start(facts("10.0.2.1", 5_201));
    event(table, conn(0, 0), at_ms * MS, kind);
    match actions(table)[..] {
        [FlowAction::Start(record)] => record,
        ref other => panic!("{other:?}"),
    }
}

/// Pauses, until the flowlet has ended.
fn pause(table: &mut FlowTable, at_ms: u64) {
    event(table, conn(0, 0), at_ms * MS, FlowEventKind::Idle);
    table.on_timeout((at_ms + 50) * MS);
    let told = actions(table);
    let is_end = |action: &FlowAction| matches!(action, FlowAction::End(_));
    assert!(told.iter().any(is_end), "{told:?}");
}

/// A connection that made no use of growth, from 140 ms on without anything to send.
fn doubted() -> FlowTable {
    let mut table = established("");
    lowered(&mut table);
    event(&mut table, conn(0, 0), 61 * MS, FlowEventKind::Limited);
    for at_ms in [80, 100, 120, 140] {
        table.on_usage(at_ms * MS, &[usage(conn(0, 0), at_ms * 1_250)]);
    }
    pause(&mut table, 140);
    table
}

const DOUBTED: RateCode = RateCode::encode(2 * 11_250_000);

/// Bursts with pauses between them are flowlets of one connection: each of them would else have its
/// full share for a window.
#[test]
fn the_next_flowlet_of_a_doubted_connection_begins_with_twice_its_last_demand_and_is_watched() {
    for (pause_ms, demand) in [(999, DOUBTED), (1_000, RateCode::NONE)] {
        let mut table = doubted();
        let at_ms = 140 + pause_ms;
        let next = begin(&mut table, at_ms);
        assert_eq!(next.demand(), demand, "after {pause_ms} ms");
        table.on_rate(at_ms * MS, next.flow(), 20 * MBIT, 10_000 * MS);
        let watch = FlowAction::Watch(conn(0, 0));
        let told = actions(&mut table);
        // The kernel would time a burst by the small rate before it watches.
        assert_eq!(told.first() == Some(&watch), !demand.is_none(), "{told:?}");
        assert!(matches!(told.last(), Some(FlowAction::SetRate { .. })));
    }
}

/// A flowlet that ends before it was measured proves nothing, however far its demand grew.
#[test]
fn doubt_and_the_demand_outlive_flowlets_that_nobody_measured() {
    let mut table = doubted();
    for burst in 1..10 {
        let at_ms = burst * 300;
        let next = begin(&mut table, at_ms);
        assert_eq!(next.demand(), DOUBTED, "burst {burst}");
        // The allocator has an answer to each report, so that the demand becomes unbounded.
        for grown_ms in 0..burst {
            let (now_ns, rate_bps) = ((at_ms + grown_ms) * MS, (20 + grown_ms) * MBIT);
            table.on_rate(now_ns, next.flow(), rate_bps, 10_000 * MS);
            event(&mut table, conn(0, 0), now_ns, FlowEventKind::Limited);
        }
        actions(&mut table);
        pause(&mut table, at_ms + burst);
    }
}

#[test]
fn a_doubted_flowlet_begins_with_1_mbit_s_or_more() {
    let mut table = doubted();
    let next = begin(&mut table, 200);
    table.on_rate(200 * MS, next.flow(), 20 * MBIT, 10_000 * MS);
    for at_ms in [200, 220, 240, 260, 280] {
        table.on_usage(at_ms * MS, &[usage(conn(0, 0), 1_000_000 + at_ms)]);
    }
    actions(&mut table);
    pause(&mut table, 280);
    assert_eq!(begin(&mut table, 400).demand(), RateCode::encode(MBIT));
}

/// A report that the kernel made for an earlier flowlet grows nothing.
#[test]
fn a_limit_before_the_first_rate_leaves_the_demand() {
    let mut table = doubted();
    begin(&mut table, 200);
    event(&mut table, conn(0, 0), 200 * MS, FlowEventKind::Limited);
    assert_eq!(actions(&mut table), []);
}

/// Many flows that use a tenth of their rates of 100 Mbit/s, and when they are measured.
struct ManyFlows {
    table: FlowTable,
    flows: u32,
    now_ns: u64,
}

impl ManyFlows {
    fn new(flows: u32) -> Self {
        let mut table = FlowTable::new(flows, GAP_NS, Policy::default());
        table.on_established(usual(), PacingState::Pace);
        for slot in 0..flows {
            let kind = FlowEventKind::Start(facts("10.0.2.1", 80));
            event(&mut table, conn(slot, 0), 0, kind);
        }
        assert_eq!(table.next_usage_ns(), None, "no flow has a rate");
        for action in actions(&mut table) {
            if let FlowAction::Start(record) = action {
                table.on_rate(0, record.flow(), 100 * MBIT, 100_000 * MS);
            }
        }
        Self {
            table,
            flows,
            now_ns: 0,
        }
    }

    /// Measures all of them when that is due next; returns the demands lowered so far.
    fn measure(&mut self) -> u64 {
        let now_ns = self.table.next_usage_ns().expect("they have rates");
        self.now_ns = now_ns.max(self.now_ns);
        let sent_bytes = self.now_ns / MS * 1_250;
        let usages: Vec<_> = (0..self.flows)
            .map(|slot| usage(conn(slot, 0), sent_bytes))
            .collect();
        self.table.on_usage(self.now_ns, &usages);
        actions(&mut self.table);
        self.table.counters().demands_lowered
    }
}

#[test]
fn use_is_measured_every_20_ms_and_with_many_flows_every_5_us_for_each() {
    for (flows, every_ns) in [(1, 20 * MS), (4_000, 20 * MS), (8_000, 40 * MS)] {
        let mut many = ManyFlows::new(flows);
        many.measure();
        assert_eq!(many.table.next_usage_ns(), Some(every_ns), "{flows} flows");
    }
}

/// The budget of lowered demands is 4,096 in a second. Those beyond it are lowered in the next.
#[test]
fn no_more_than_4096_demands_are_lowered_in_a_second() {
    let mut many = ManyFlows::new(6_000);
    while many.now_ns < 900 * MS {
        many.measure();
    }
    assert_eq!(many.table.counters().demands_lowered, 4_096);
    while many.now_ns < 1_100 * MS {
        many.measure();
    }
    assert_eq!(many.table.counters().demands_lowered, 6_000);
}

/// Nothing is acknowledged for a second: the allocator forgets the flow, unless it only pauses.
#[test]
fn a_flow_that_stalls_ends_and_one_that_pauses_waits_for_its_own_timer() {
    for pauses in [false, true] {
        let mut table = established("");
        table.set_idle_gap_ns(10_000 * MS);
        let flow = start(&mut table, conn(0, 0), "10.0.2.1").flow();
        table.on_rate(0, flow, 100 * MBIT, 10_000 * MS);
        table.on_usage(0, &[usage(conn(0, 0), 0)]);
        actions(&mut table);
        if pauses {
            event(&mut table, conn(0, 0), 10, FlowEventKind::Idle);
        }
        table.on_usage(1_000 * MS, &[usage(conn(0, 0), 0)]);
        let told = actions(&mut table);
        assert_eq!(told.contains(&FlowAction::End(flow)), !pauses);
        assert_eq!(table.counters().stalled, u64::from(!pauses));
    }
}

#[test]
fn a_rate_measures_nothing_from_the_end_of_its_lease_on() {
    let mut table = established("");
    let flow = start(&mut table, conn(0, 0), "10.0.2.1").flow();
    table.on_rate(0, flow, 100 * MBIT, 40 * MS);
    for (at_ms, sent_bytes) in [(0, 0), (20, 1_000), (40, 9_000)] {
        table.on_usage(at_ms * MS, &[usage(conn(0, 0), sent_bytes)]);
    }
    assert_eq!(table.class_use(30 * MS)[0].achieved_bytes, 1_000);
    assert_eq!(table.class_use(30 * MS)[0].achieved_bps, 0, "a fresh meter");
}

/// Counts the records (starts, changes and ends of flowlets) that a web service's host reports in
/// five seconds.
///
/// Two thousand transfers a second of 15 kB to 1.5 MB (Pareto, α = 1.2, mean of 60 kB: the part of
/// the papers' web workload that is reported at all) take most of a 10 Gbit/s link; a quarter of
/// them come from an application that is slower than their rate. Beside them 64 connections stay
/// open and alternate, every 50 to 500 ms, between a trickle and all that they are given.
fn records(measures: bool) -> usize {
    const STEP_NS: u64 = MS / 5;
    const END_NS: u64 = 5_000 * MS;
    const RATE_BPS: u64 = 500 * MBIT;
    const SLOTS: u32 = 512;
    const CHATTY: u32 = 64;

    struct SenderModel {
        use_count: u32,
        flow: Option<FlowId>,
        left_bytes: u64,
        application_bps: u64,
        sent_bytes: u64,
        turns_ns: u64,
        granted_bps: u64,
        watched: bool,
        limited_ns: u64,
    }
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    let mut table = FlowTable::new(SLOTS, GAP_NS, Policy::default());
    table.set_measures_demand(measures);
    table.on_established(usual(), PacingState::Pace);
    let mut senders: Vec<Option<SenderModel>> = (0..SLOTS).map(|_| None).collect();
    let mut uses = vec![0_u32; SLOTS as usize];
    let mut told = 0;
    let mut next_arrival_ns = 0;
    for now_ns in (0..END_NS).step_by(STEP_NS as usize) {
        let mut begin =
            |slot: u32, left_bytes, application_bps, turns_ns, table: &mut FlowTable| {
                let use_count = uses[slot as usize];
                uses[slot as usize] += 1;
                let started = FlowEventKind::Start(facts("10.0.2.1", 80));
                event(table, conn(slot, use_count), now_ns, started);
                Some(SenderModel {
                    use_count,
                    flow: None,
                    left_bytes,
                    application_bps,
                    sent_bytes: 0,
                    turns_ns,
                    granted_bps: RATE_BPS,
                    watched: false,
                    limited_ns: 0,
                })
            };
        if now_ns == 0 {
            for slot in 0..CHATTY {
                senders[slot as usize] = begin(slot, u64::MAX / 16, 2 * MBIT, 0, &mut table);
            }
        }
        while next_arrival_ns <= now_ns {
            next_arrival_ns += (-uniform().ln() * 500_000.0) as u64;
            let size = (15_000.0 / uniform().powf(1.0 / 1.2)).min(1_500_000.0);
            let slow = uniform() < 0.25;
            let share = if slow { 0.05 + 0.95 * uniform() } else { 10.0 };
            if let Some(slot) = (CHATTY..SLOTS).find(|slot| senders[*slot as usize].is_none()) {
                let bps = (share * RATE_BPS as f64) as u64;
                senders[slot as usize] = begin(slot, size as u64, bps, u64::MAX, &mut table);
            }
        }
        for (slot, entry) in (0..).zip(&mut senders) {
            let Some(sender) = entry else { continue };
            if sender.turns_ns <= now_ns {
                let busy = sender.application_bps > RATE_BPS;
                sender.application_bps = if busy { 2 * MBIT } else { 2 * RATE_BPS };
                sender.turns_ns = now_ns + 50 * MS + (uniform() * 450.0) as u64 * MS;
            }
            let connection = conn(slot, sender.use_count);
            let bps = sender.application_bps.min(sender.granted_bps);
            let bytes = (bps * STEP_NS / 8_000_000_000).min(sender.left_bytes);
            sender.sent_bytes += bytes;
            sender.left_bytes -= bytes;
            if sender.application_bps > sender.granted_bps {
                sender.limited_ns = now_ns;
                if std::mem::take(&mut sender.watched) {
                    event(&mut table, connection, now_ns, FlowEventKind::Limited);
                }
            }
            if sender.left_bytes == 0 {
                event(&mut table, connection, now_ns, FlowEventKind::Idle);
                event(&mut table, connection, now_ns, FlowEventKind::Close);
                *entry = None;
            }
        }
        table.on_timeout(now_ns);
        if table.next_usage_ns().is_some_and(|due_ns| due_ns <= now_ns) {
            let usages: Vec<_> = (0..)
                .zip(&senders)
                .filter_map(|(slot, sender)| {
                    let sender = sender.as_ref().filter(|sender| sender.flow.is_some())?;
                    Some(Usage {
                        limited_ns: sender.limited_ns,
                        round_trip_ns: 0,
                        ..usage(conn(slot, sender.use_count), sender.sent_bytes)
                    })
                })
                .collect();
            table.on_usage(now_ns, &usages);
        }
        // The allocator notifies a rate at once: the demand or the flow's share.
        while let Some(action) = table.poll_action() {
            match action {
                FlowAction::Start(record) => {
                    told += 1;
                    let wants = record.demand();
                    let bps = if wants.is_none() {
                        RATE_BPS
                    } else {
                        wants.decode().min(RATE_BPS)
                    };
                    if let Some(sender) = &mut senders[record.flow().slot() as usize] {
                        sender.flow = Some(record.flow());
                        sender.granted_bps = bps;
                    }
                    table.on_rate(now_ns, record.flow(), bps, now_ns + LEASE_NS);
                }
                FlowAction::End(_) => told += 1,
                FlowAction::Watch(connection) => {
                    if let Some(sender) = &mut senders[connection.slot.0 as usize] {
                        sender.watched = sender.use_count == connection.use_count;
                    }
                }
                _ => {}
            }
        }
        table.on_renewed(now_ns + LEASE_NS);
    }
    told
}

/// Demands travel in the records of starts, so their cost is the number of records.
#[test]
fn measured_demands_cost_less_than_half_of_what_starts_and_ends_do() {
    let (without, with) = (records(false), records(true));
    let growth = with as f64 / without as f64;
    println!("{without} records without demands, {with} with: {growth:.3}");
    assert!(without > 10_000);
    assert!(with > without, "nothing was lowered");
    assert!(
        growth < 1.5,
        "{without} records without demands, {with} with"
    );
}
