use super::*;
use crate::backend::{Conn, SlotIndex};

const MS: u64 = 1_000_000;
const MBIT: u64 = 1_000_000;

fn usage(sent_bytes: u64, limited_ns: u64) -> Usage {
    Usage {
        conn: Conn {
            slot: SlotIndex(0),
            use_count: 0,
        },
        sent_bytes,
        acked_bytes: sent_bytes,
        limited_ns,
        round_trip_ns: 0,
    }
}

fn begun() -> Meter {
    let mut meter = Meter::after(None);
    assert!(meter.begin(0, &usage(0, 0)));
    meter
}

/// A flow that is measured every 20 ms: the demand reported last, and when it was first
/// lowered.
struct MeteredFlow {
    meter: Meter,
    sent: u64,
    reported: Option<u64>,
    lowered_at_ms: Option<u64>,
    lowerings: u32,
}

impl MeteredFlow {
    fn new() -> Self {
        Self {
            meter: begun(),
            sent: 0,
            reported: None,
            lowered_at_ms: None,
            lowerings: 0,
        }
    }

    fn run(&mut self, ms: std::ops::Range<u64>, used_bps: u64, limited: bool) {
        for at_ms in ms.step_by(20) {
            self.sent += used_bps / 8 / 50;
            let limited_ns = if limited { at_ms * MS } else { 0 };
            let verdict = self.meter.evaluate(
                at_ms * MS,
                &usage(self.sent, limited_ns),
                self.rate_bps(),
                self.reported,
            );
            match verdict {
                Verdict::Keep => {}
                Verdict::Lower(bps) => {
                    self.reported = Some(bps);
                    self.lowered_at_ms.get_or_insert(at_ms);
                    self.lowerings += 1;
                }
                Verdict::Stalled => panic!("progress was made"),
            }
        }
    }

    /// Uses all of a rate for 40 ms. Returns the end.
    fn use_rate(&mut self, mut at_ms: u64, rate_bps: u64) -> u64 {
        for _ in 0..2 {
            at_ms += 20;
            self.sent += rate_bps / 8 / 50;
            let used = usage(self.sent, 0);
            let _ = self
                .meter
                .evaluate(at_ms * MS, &used, rate_bps, self.reported);
        }
        at_ms
    }

    /// Uses little from `at_ms` until its demand is lowered, and meets its limit then. Returns
    /// when that is.
    fn grow_after_lowering(&mut self, mut at_ms: u64) -> u64 {
        let before = self.lowerings;
        while self.lowerings == before {
            self.run(at_ms..at_ms + 20, 8 * MBIT, false);
            at_ms += 20;
        }
        self.reported = self
            .meter
            .on_limited(at_ms * MS, self.reported, self.rate_bps());
        at_ms
    }

    /// The allocator gives what is asked for, up to 100 Mbit/s.
    fn rate_bps(&self) -> u64 {
        self.reported.map_or(100 * MBIT, |bps| bps.min(100 * MBIT))
    }
}

#[test]
fn a_flow_that_its_rate_holds_back_keeps_an_unbounded_demand() {
    let mut flow = MeteredFlow::new();
    flow.run(20..10_000, 100 * MBIT, true);
    assert_eq!(flow.reported, None);
}

#[test]
fn a_flow_that_uses_less_is_lowered_to_an_eighth_more_than_its_use_within_200_ms() {
    let mut flow = MeteredFlow::new();
    flow.run(20..2_000, 8 * MBIT, false);
    assert_eq!(flow.reported, Some(9 * MBIT));
    assert!(flow.lowered_at_ms.unwrap() <= 200);
    assert_eq!(flow.lowerings, 1, "a steady use is reported once");
}

/// A queue of its host, a slow link or its own maximum keeps full segments waiting at the
/// socket.
#[test]
fn a_flow_that_counts_as_limited_and_uses_a_tenth_of_its_rate_is_lowered_within_200_ms() {
    let mut flow = MeteredFlow::new();
    flow.run(20..2_000, 10 * MBIT, true);
    assert_eq!(flow.reported, Some(10 * MBIT + 10 * MBIT / 8));
    assert!(flow.lowered_at_ms.unwrap() <= 200);
    assert_eq!(flow.lowerings, 1, "a steady use is reported once");
}

/// The window in which it stops is used in part, so that it is lowered twice.
#[test]
fn a_flow_that_stops_is_lowered_to_the_floor_within_three_windows() {
    let mut flow = MeteredFlow::new();
    flow.run(20..200, 100 * MBIT, true);
    flow.run(200..220, 40 * MBIT, false);
    flow.run(220..260, 0, false);
    assert_eq!(flow.lowerings, 2);
    assert_eq!(flow.reported, Some(FLOOR_BPS));
}

/// Five flows behind a queue of 10 Mbit/s, which takes a burst of 64 KiB of each by turns.
#[test]
fn bursts_into_a_queue_of_the_host_hold_no_more_than_three_times_what_it_carries() {
    const BURST_BYTES: u64 = 64 << 10;
    const CYCLE_MS: u64 = 260;
    let mut meter = begun();
    let (mut sent, mut reported) = (0, None);
    let mut claimed = 0;
    for at_ms in (20..10_000).step_by(20) {
        let is_burst = at_ms % CYCLE_MS == 20;
        let rate_bps = reported.map_or(33 * MBIT, |bps: u64| bps.min(33 * MBIT));
        if is_burst {
            sent += BURST_BYTES;
            reported = meter.on_limited(at_ms * MS, reported, rate_bps);
        }
        let used = Usage {
            // The queue is not full at first.
            round_trip_ns: if at_ms < 100 { 0 } else { CYCLE_MS * MS },
            ..usage(sent, 0)
        };
        match meter.evaluate(at_ms * MS, &used, rate_bps, reported) {
            Verdict::Lower(bps) => reported = Some(bps),
            Verdict::Keep => {}
            Verdict::Stalled => panic!("progress was made"),
        }
        if at_ms >= 2_000 {
            claimed += reported.unwrap_or(rate_bps);
        }
    }
    let mean_bps = claimed / 400;
    let carried_bps = BURST_BYTES * 8 * 1_000 / CYCLE_MS;
    assert!(mean_bps < 3 * carried_bps, "{mean_bps} of {carried_bps}");
}

/// A burst uses up the rate of a small demand, and more of them come before the allocator's
/// answer.
#[test]
fn the_rate_from_before_a_growth_proves_nothing_and_grows_no_demand() {
    let mut flow = MeteredFlow::new();
    let at_ms = flow.grow_after_lowering(20);
    assert_eq!(flow.reported, None);
    let at_ms = flow.use_rate(at_ms, 9 * MBIT);
    let at_ms = flow.grow_after_lowering(at_ms + 20);
    let doubled = flow
        .reported
        .expect("doubted: the use was of the rate before");
    for later_ms in [0, 1, 99] {
        let at_ns = (at_ms + later_ms) * MS;
        flow.reported = flow.meter.on_limited(at_ns, flow.reported, doubled / 2);
        assert_eq!(flow.reported, Some(doubled), "no answer has come");
    }
    flow.reported = flow
        .meter
        .on_limited((at_ms + 99) * MS, flow.reported, doubled);
    assert_eq!(flow.reported, Some(2 * doubled));
}

/// A flow whose demand has just been doubled from 9 Mbit/s. Returns when that was.
fn doubled() -> (MeteredFlow, u64) {
    let mut flow = MeteredFlow::new();
    let at_ms = flow.grow_after_lowering(20);
    let at_ms = flow.grow_after_lowering(at_ms + 20);
    assert_eq!(flow.reported, Some(18 * MBIT));
    (flow, at_ms)
}

/// Rates move a little with those of others, and one above the demand is that of an earlier
/// one.
#[test]
fn only_a_rate_of_the_grown_demand_is_an_answer() {
    let (mut flow, at_ms) = doubled();
    for (rate_bps, demand_bps) in [
        (8_900, 18_000),
        (10_000, 18_000),
        (33_000, 18_000),
        (18_000, 36_000),
    ] {
        let grown = flow
            .meter
            .on_limited((at_ms + 1) * MS, flow.reported, rate_bps * 1_000);
        assert_eq!(grown, Some(demand_bps * 1_000), "{rate_bps} kbit/s");
    }
}

#[test]
fn behind_a_queue_of_its_host_an_answer_may_take_four_round_trips() {
    let (mut flow, at_ms) = doubled();
    let slow = Usage {
        round_trip_ns: 250 * MS,
        ..usage(flow.sent, 0)
    };
    let _ = flow
        .meter
        .evaluate(at_ms * MS, &slow, 9 * MBIT, flow.reported);
    for (later_ms, demand_bps) in [(999, Some(18 * MBIT)), (1_000, None)] {
        let at_ns = (at_ms + later_ms) * MS;
        let grown = flow.meter.on_limited(at_ns, flow.reported, 9 * MBIT);
        assert_eq!(grown, demand_bps, "after {later_ms} ms");
    }
}

#[test]
fn a_claim_is_believed_from_three_quarters_of_the_rate_on() {
    for (used_bps, lowered) in [(75 * MBIT, false), (74 * MBIT, true)] {
        let mut flow = MeteredFlow::new();
        flow.run(20..2_000, used_bps, true);
        assert_eq!(flow.reported.is_some(), lowered, "{used_bps}");
    }
}

/// One report costs others the whole share for a window; after it the flow gets little more
/// than it uses, and all of it again once it has used a rate that its demand did not bound.
#[test]
fn growth_that_was_not_used_is_believed_once() {
    let mut flow = MeteredFlow::new();
    let at_ms = flow.grow_after_lowering(20);
    assert_eq!(flow.reported, None);
    let at_ms = flow.grow_after_lowering(at_ms + 20);
    assert_eq!(flow.reported, Some(18 * MBIT), "twice 9/8 of 8");
    let at_ms = flow.grow_after_lowering(at_ms + 20);
    assert_eq!(flow.reported, Some(18 * MBIT), "8 of 9 are no proof");
    let at_ms = flow.use_rate(at_ms, 18 * MBIT);
    flow.reported = flow.meter.on_limited(at_ms * MS, flow.reported, 18 * MBIT);
    assert_eq!(
        flow.reported,
        Some(36 * MBIT),
        "a doubled demand proves as much"
    );
    // Beyond half of it others bound the rate, so that the demand does not.
    let at_ms = at_ms + 100;
    flow.reported = flow.meter.on_limited(at_ms * MS, flow.reported, 18 * MBIT);
    assert_eq!(flow.reported, None);
    let at_ms = flow.use_rate(at_ms + 100, 18 * MBIT);
    let at_ms = flow.grow_after_lowering(at_ms + 20);
    assert_eq!(flow.reported, None, "believed again, {at_ms} ms");
}

#[test]
fn a_demand_grows_no_further_than_a_rate_that_others_bound() {
    let mut flow = MeteredFlow::new();
    let at_ms = flow.grow_after_lowering(20);
    flow.grow_after_lowering(at_ms + 20);
    let mut demands = Vec::new();
    for at_ms in (1_000..).step_by(100) {
        let Some(bps) = flow.reported else { break };
        demands.push(bps / MBIT);
        flow.reported = flow.meter.on_limited(at_ms * MS, flow.reported, 50 * MBIT);
    }
    assert_eq!(demands, [18, 36, 72, 144]);
}

/// A queue of 256 KiB at 10 Mbit/s takes a fifth of a second: a sender waits for as long, and
/// sends 50 kB at once.
#[test]
fn a_flow_that_sends_once_in_a_round_trip_uses_what_it_sends_in_that() {
    let (round_trip_ms, burst_bytes) = (200, 50_000);
    let mut meter = begun();
    let (mut sent, mut reported) = (0, None);
    for at_ms in (10..4_000).step_by(10) {
        if at_ms % round_trip_ms == 50 {
            sent += burst_bytes;
        }
        let measured = Usage {
            // Others' packets are in the queue, too: it gives its own one by one.
            acked_bytes: at_ms,
            round_trip_ns: round_trip_ms * MS,
            ..usage(sent, 0)
        };
        let verdict = meter.evaluate(at_ms * MS, &measured, 100 * MBIT, reported);
        if let Verdict::Lower(bps) = verdict {
            reported = Some(bps);
        }
    }
    // 50 kB in 200 ms are 2 Mbit/s.
    assert_eq!(reported, Some(2 * MBIT + 2 * MBIT / 8));
}

/// A burst that grew step by step leaves its last demand with nobody else for two windows.
#[test]
fn what_doubled_demands_leave_is_given_up_within_100_ms() {
    let mut flow = MeteredFlow::new();
    let at_ms = flow.grow_after_lowering(20);
    let mut at_ms = flow.grow_after_lowering(at_ms + 20);
    for mbit in [18, 36, 72] {
        assert_eq!(flow.reported, Some(mbit * MBIT));
        at_ms = flow.use_rate(at_ms, mbit * MBIT);
        flow.reported = flow
            .meter
            .on_limited(at_ms * MS, flow.reported, mbit * MBIT);
    }
    flow.lowered_at_ms = None;
    flow.run(at_ms + 20..at_ms + 400, 8 * MBIT, false);
    let took_ms = flow.lowered_at_ms.unwrap() - at_ms;
    assert!(took_ms <= 100, "{took_ms} ms");
}

#[test]
fn what_a_flow_leaves_when_it_falls_silent_is_given_up_within_200_ms() {
    let mut flow = MeteredFlow::new();
    flow.run(20..1_000, 100 * MBIT, true);
    flow.sent += 1;
    flow.run(1_000..1_400, 0, false);
    assert_eq!(flow.reported, Some(FLOOR_BPS));
    assert!(
        flow.lowered_at_ms.unwrap() <= 1_200,
        "{:?}",
        flow.lowered_at_ms
    );
}

#[test]
fn use_that_grows_without_meeting_its_limit_is_told() {
    let mut flow = MeteredFlow::new();
    flow.run(20..1_000, 8 * MBIT, false);
    flow.run(1_000..2_000, 16 * MBIT, false);
    assert_eq!(flow.reported, Some(18 * MBIT));
}

#[test]
fn a_flow_that_grows_again_soon_after_each_lowering_is_lowered_ever_more_rarely() {
    let mut flow = MeteredFlow::new();
    let mut at_ms = 20;
    for _ in 0..100 {
        at_ms = flow.grow_after_lowering(at_ms);
    }
    assert!(at_ms > 95 * 800, "100 lowerings within {at_ms} ms");
}

#[test]
fn what_a_flow_leaves_after_ten_alternations_is_given_up_within_a_second() {
    let mut flow = MeteredFlow::new();
    let mut at_ms = 20;
    for _ in 0..10 {
        at_ms = flow.grow_after_lowering(at_ms);
        flow.run(at_ms..at_ms + 100, 100 * MBIT, true);
        at_ms += 100;
    }
    flow.lowered_at_ms = None;
    flow.run(at_ms..at_ms + 4_000, 5 * MBIT, false);
    let took_ms = flow.lowered_at_ms.unwrap() - at_ms;
    assert!(took_ms <= 1_000, "lowered after {took_ms} ms");
    assert_eq!(flow.reported, Some(5 * MBIT + 5 * MBIT / 8));
}

#[test]
fn a_flow_of_which_nothing_is_acknowledged_stalls_after_a_second() {
    let mut meter = begun();
    let mut at_ms = 20;
    while meter.evaluate(at_ms * MS, &usage(0, 0), 100 * MBIT, Some(FLOOR_BPS)) != Verdict::Stalled
    {
        at_ms += 20;
    }
    assert_eq!(at_ms, 1_000);
    // At 10 kbit/s, eight segments take ten seconds.
    let mut meter = begun();
    assert_ne!(
        meter.evaluate(9_000 * MS, &usage(0, 0), 10_000, None),
        Verdict::Stalled
    );
    assert_eq!(
        meter.evaluate(10_000 * MS, &usage(0, 0), 10_000, None),
        Verdict::Stalled
    );
}

/// A flow whose last two windows had a steady use of `used_bps`, and what is said of it.
fn verdict(used_bps: u64, rate_bps: u64, reported_bps: Option<u64>) -> Verdict {
    let mut meter = begun();
    let per_window = used_bps / 8 / 50;
    for window in 1..=2 {
        let at_ns = window * WINDOW_NS;
        let _ = meter.evaluate(at_ns, &usage(window * per_window, 0), rate_bps, None);
    }
    meter.evaluate(
        2 * WINDOW_NS,
        &usage(2 * per_window, 0),
        rate_bps,
        reported_bps,
    )
}

/// An eighth of the rate, a sixteenth of growth and a quarter of a reported demand are the
/// least that is worth a message.
#[test]
fn a_demand_is_told_only_where_it_differs_by_more_than_its_step() {
    // 8 Mbit/s ask for 9.
    for (rate, reported, lowered) in [
        // The first demand: at seven eighths of the rate, and just below.
        (72 * MBIT / 7, None, false),
        (72 * MBIT / 7 + 16, None, true),
        // Growth: by a sixteenth, and by just more.
        (100 * MBIT, Some(144 * MBIT / 17 + 1), false),
        (100 * MBIT, Some(144 * MBIT / 17 - 16), true),
        // Shrinking: three quarters are used, and just less.
        (100 * MBIT, Some(12 * MBIT), false),
        (100 * MBIT, Some(12 * MBIT + 16), true),
    ] {
        let expected = if lowered {
            Verdict::Lower(9 * MBIT)
        } else {
            Verdict::Keep
        };
        let told = verdict(8 * MBIT, rate, reported);
        assert_eq!(told, expected, "rate {rate}, reported {reported:?}");
    }
}

#[test]
fn a_flow_that_was_held_back_is_held_for_exactly_the_hold() {
    let mut meter = begun();
    meter.lowered_to_bps = 10 * MBIT;
    let _ = meter.on_limited(2 * WINDOW_NS, Some(10 * MBIT), 10 * MBIT);
    // It grew soon after the beginning, so the hold is twice the usual one.
    let until_ns = 2 * WINDOW_NS + 2 * HOLD_NS;
    let mut at = |at_ns| meter.evaluate(at_ns, &usage(1, 0), 100 * MBIT, Some(20 * MBIT));
    assert_eq!(at(WINDOW_NS), Verdict::Keep);
    assert_eq!(at(until_ns - 1), Verdict::Keep);
    assert_eq!(at(until_ns), Verdict::Lower(FLOOR_BPS));
}

#[test]
fn the_hold_doubles_after_growth_within_four_holds_and_halves_after_later_growth() {
    let mut meter = begun();
    let mut holds = Vec::new();
    // Each growth comes this many holds after the lowering before it.
    for (holds_after, less_ns) in [(4, 1), (4, 1), (4, 0), (4, 1), (9, 0), (9, 0), (9, 0)] {
        meter.lowered_ns = 1_000_000 * MS;
        let at_ns = meter.lowered_ns + holds_after * meter.hold_ns - less_ns;
        let _ = meter.on_limited(at_ns, None, 100 * MBIT);
        holds.push(meter.hold_ns / HOLD_NS);
    }
    assert_eq!(holds, [2, 4, 2, 4, 2, 1, 1]);
}

#[test]
fn a_rate_allows_all_of_its_time_only_to_a_flow_that_it_held_back() {
    // 80 Mbit/s for 10 ms are 100 kB, of which the flow sent 40 kB and then 70 kB.
    let mut meter = begun();
    let mut measured = |at_ms: u64, sent_bytes, limited_ms: u64| {
        let usage = usage(sent_bytes, limited_ms * MS);
        let bytes = meter.measured_bytes(at_ms * MS, &usage, 80 * MBIT);
        (bytes.allowed, bytes.achieved)
    };
    assert_eq!(measured(10, 40_000, 10), (100_000, 40_000));
    assert_eq!(measured(20, 110_000, 9), (70_000, 70_000));
    assert_eq!(measured(30, 130_000, 20), (100_000, 20_000));
}

#[test]
fn a_flow_at_most_of_its_rate_is_left_alone() {
    let mut flow = MeteredFlow::new();
    flow.run(20..2_000, 80 * MBIT, false);
    assert_eq!(flow.reported, None);
}
