//! Demand: the most that a flow can use, derived from its measured use.
//!
//! Capacity goes to flows that use it. A flow that its rate held back within the last [`HOLD_NS`],
//! and that used at least three quarters of it, has an unbounded demand. Any other flow is limited
//! by something else: its application, its receiver, a queue of its host, or a path that carries
//! less than the topology says. Its demand is an eighth more than the larger of its last two
//! windows, and at least [`FLOOR_BPS`]. A window takes [`WINDOW_NS`], or a round trip of up to
//! [`WINDOW_MOST_NS`]: behind a queue of its host a sender waits for a fifth of a second and then
//! sends 64 KiB at once. So a flow that TCP's own congestion control holds back yields what it
//! leaves to others. While rates are only observed, TCP decides on the use, and to have more to
//! send is enough.
//!
//! Growth is an event. A flow whose demand was lowered is *watched*: the kernel does not hold it,
//! reports at once when it has used up its rate with more to send, and its demand is unbounded
//! from then on. A flow that made no use of such growth is believed less: its demand doubles with
//! each further report, until it has used three quarters of a rate that its demand did not bound.
//! Until the allocator has answered a growth, the rate is that from before: its use proves nothing,
//! and a further report doubles nothing. An answer is another rate, a quarter above the demand from
//! before. It may take several round trips: behind a full queue of its host a report waits for the
//! flows' packets. Later than that, others bound the rate.
//!
//! Belief and doubt outlive the flowlet: after a pause of up to [`DOUBTED_GAP_NS`] its connection's
//! next one is such a growth, and begins with twice the last demand if it is doubted.
//! Only shrinking waits for the clock, as in Google's BwE (Kumar et al., SIGCOMM 2015, §4.2),
//! which takes the recent maximum and adds to it. The hold of 100 ms outlasts the pauses of a
//! source that alternates every few tens of milliseconds, so such a source keeps its share. It is
//! short enough that unused capacity reaches other flows within 200 ms. A flow that its rate never
//! held back is lowered after its first window, because bulk meets its rate within a round trip.
//! Each time a flow grows soon after it was lowered, its hold doubles: a flow that changes all the
//! time costs few messages. The hold is 800 ms at most, so that what such a flow leaves in the end
//! is with others within a second.
//!
//! A lowered flow holds little, so pauses of up to [`LOWERED_GAP_NS`] do not end it: an application
//! that writes in small pieces is one flowlet, although it waits for a processor now and then. Its
//! pauses show when its use is measured, not as single events.
//!
//! A flow of which nothing was acknowledged for [`STALL_NS`] is over for the allocator.

use super::class_use::MeasuredBytes;
use crate::backend::Usage;

/// Least length of a measuring window.
pub(super) const WINDOW_NS: u64 = 20_000_000;
/// Greatest length, however long a round trip takes.
const WINDOW_MOST_NS: u64 = 20 * WINDOW_NS;
/// Time for which a flow that its rate held back is not lowered,
pub(super) const HOLD_NS: u64 = 100_000_000;
/// and its bound after repeated growth. No demand that was lowered is held for longer without use.
const HOLD_MOST_NS: u64 = 8 * HOLD_NS;
/// Round trips after which a growth counts as answered, if that is longer than [`HOLD_NS`].
const ANSWER_ROUND_TRIPS: u64 = 4;
/// Longest pause that does not end a flowlet with a lowered demand.
pub(super) const LOWERED_GAP_NS: u64 = 50_000_000;
/// Longest pause after which a connection's new flowlet is doubted as its last one was,
pub(super) const DOUBTED_GAP_NS: u64 = 1_000_000_000;
/// and its least demand then, in bit/s.
const DOUBTED_FLOOR_BPS: u64 = 10 * FLOOR_BPS;
/// Smallest demand, in bit/s.
pub(super) const FLOOR_BPS: u64 = 100_000;
/// Time without an acknowledgement after which a flow has stalled, if [`STALL_BITS`] also take less
/// at its rate.
pub(super) const STALL_NS: u64 = 1_000_000_000;
const STALL_BITS: u64 = 8 * 1_538 * 8;

/// Result of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The reported demand stays.
    Keep,
    /// The flow uses at most this much, in bit/s.
    Lower(u64),
    /// Nothing is acknowledged any more.
    Stalled,
}

/// Growth of a demand by a report.
#[derive(Debug, Clone, Copy)]
struct Growth {
    at_ns: u64,
    /// Demand and rate before it, in bit/s.
    demand_bps: u64,
    rate_bps: u64,
}

impl Growth {
    /// Returns true if the allocator has answered with `rate_bps` to a demand of `reported_bps`.
    fn is_answered_by(&self, rate_bps: u64, reported_bps: Option<u64>) -> bool {
        let is_another = rate_bps.abs_diff(self.rate_bps) > self.rate_bps / 16;
        let is_more = rate_bps >= self.demand_bps.saturating_add(self.demand_bps / 4);
        let is_of_it = |reported: u64| rate_bps <= reported.saturating_add(reported / 16);
        // A rate above the demand is that of an earlier one.
        is_another && is_more && reported_bps.is_none_or(is_of_it)
    }
}

/// Belief in the growth of a connection's last flowlet, for its next one.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastClaim {
    /// Time at which that had nothing more to send.
    pub(super) at_ns: u64,
    /// Demand that its measured use asked for last, in bit/s.
    demand_bps: u64,
    /// It made no use of its last growth.
    is_doubted: bool,
}

impl LastClaim {
    /// Returns the demand with which a flowlet begins, in bit/s, if it is doubted.
    pub(super) fn demand_bps(&self) -> Option<u64> {
        let demand_bps = self.demand_bps.saturating_mul(2).max(DOUBTED_FLOOR_BPS);
        self.is_doubted.then_some(demand_bps)
    }
}

/// Measurements of a flow since it got its rate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meter {
    /// It measures.
    is_begun: bool,
    /// Beginning of the running window, and the bytes sent by then.
    since_ns: u64,
    sent_bytes: u64,
    /// Use in the last two windows; `None` before the first has ended.
    used_bps: [Option<u64>; 2],
    acked_bytes: u64,
    acked_ns: u64,
    /// Last time at which the rate held the flow back, if it ever did.
    limited_ns: Option<u64>,
    hold_ns: u64,
    /// Last time at which the demand was lowered, and to what.
    lowered_ns: u64,
    lowered_to_bps: u64,
    /// Rates are only observed.
    observes: bool,
    /// The demand has grown by a report, and no window since then used most of the rate.
    is_unproven: bool,
    /// The last growth was never used.
    is_doubted: bool,
    /// Last growth, until the allocator has answered it.
    grown: Option<Growth>,
    /// Newest round trip of the flow.
    round_trip_ns: u64,
    /// Time and bytes up to which `measured_bytes` has counted.
    counted_ns: u64,
    counted_bytes: u64,
}

impl Meter {
    /// Makes the meter of a flow that has no rate yet, after the last flowlet of its connection.
    pub(super) fn after(last: Option<LastClaim>) -> Self {
        Self {
            is_begun: false,
            since_ns: 0,
            sent_bytes: 0,
            used_bps: [None; 2],
            acked_bytes: 0,
            acked_ns: 0,
            limited_ns: None,
            hold_ns: HOLD_NS,
            lowered_ns: 0,
            lowered_to_bps: last.map_or(0, |last| last.demand_bps),
            observes: false,
            // A new flowlet is growth, too.
            is_unproven: last.is_some(),
            is_doubted: last.is_some_and(|last| last.is_doubted),
            grown: None,
            round_trip_ns: 0,
            counted_ns: 0,
            counted_bytes: 0,
        }
    }

    /// Starts to measure a flow that has just got a rate. Returns false if it measures already.
    pub(super) fn begin(&mut self, now_ns: u64, usage: &Usage) -> bool {
        if self.is_begun {
            return false;
        }
        self.is_begun = true;
        (self.since_ns, self.sent_bytes) = (now_ns, usage.sent_bytes);
        (self.acked_ns, self.acked_bytes) = (now_ns, usage.acked_bytes);
        (self.counted_ns, self.counted_bytes) = (now_ns, usage.sent_bytes);
        true
    }

    /// Stops to measure, because the flow has no rate any more. Belief and doubt stay.
    pub(super) fn stop(&mut self) {
        let Self {
            lowered_to_bps,
            is_unproven,
            is_doubted,
            ..
        } = *self;
        *self = Self {
            lowered_to_bps,
            is_unproven,
            is_doubted,
            ..Self::after(None)
        };
    }

    /// Returns the belief in a flow that ends and was lowered, unless it has proven growth since.
    /// It has had nothing to send since `idle_ns`; without that time, nothing was acknowledged any
    /// more.
    pub(super) fn last_claim(&self, idle_ns: Option<u64>) -> Option<LastClaim> {
        (self.lowered_to_bps > 0).then_some(LastClaim {
            at_ns: idle_ns.unwrap_or(self.acked_ns),
            demand_bps: self.lowered_to_bps,
            is_doubted: self.is_doubted,
        })
    }

    /// Returns the use in the last window, in bit/s; 0 before the first has ended.
    pub(super) fn used_bps(&self) -> u64 {
        self.used_bps[0].unwrap_or(0)
    }

    /// Returns the bytes since the last call: those that were sent, and those that `rate_bps`
    /// allows. Without a limit on a flow in the meantime, it would not have sent more than it did.
    pub(super) fn measured_bytes(
        &mut self,
        now_ns: u64,
        usage: &Usage,
        rate_bps: u64,
    ) -> MeasuredBytes {
        let since_ns = std::mem::replace(&mut self.counted_ns, now_ns);
        let before = std::mem::replace(&mut self.counted_bytes, usage.sent_bytes);
        let achieved = usage.sent_bytes.saturating_sub(before);
        let bits_ns = u128::from(rate_bps) * u128::from(now_ns.saturating_sub(since_ns));
        let granted = u64::try_from(bits_ns / 8_000_000_000).unwrap_or(u64::MAX);
        let allowed = if usage.limited_ns >= since_ns {
            granted
        } else {
            granted.min(achieved)
        };
        MeasuredBytes { allowed, achieved }
    }

    /// Notes that the flow has used up its rate of `rate_bps`, with `reported_bps` as the demand
    /// reported last. Returns the new demand.
    pub(super) fn on_limited(
        &mut self,
        now_ns: u64,
        reported_bps: Option<u64>,
        rate_bps: u64,
    ) -> Option<u64> {
        // Lowering was wrong if the flow grows soon after it: hold on to its demand for longer next
        // time.
        let soon = now_ns.saturating_sub(self.lowered_ns) < 4 * self.hold_ns;
        self.hold_ns = if soon {
            (2 * self.hold_ns).min(HOLD_MOST_NS)
        } else {
            // A flow that stayed lowered for long has steadied: forget half of the hold.
            (self.hold_ns / 2).max(HOLD_NS)
        };
        self.limited_ns = Some(now_ns);
        let reported_bps = reported_bps?;
        // Otherwise its demand would grow without bound while the rate is that of a smaller one.
        self.note_answer(now_ns, rate_bps, Some(reported_bps));
        if self.is_doubted && self.grown.is_some() {
            return Some(reported_bps);
        }
        self.is_unproven = true;
        self.grown = Some(Growth {
            at_ns: now_ns,
            demand_bps: reported_bps,
            rate_bps,
        });
        // A demand of twice the rate bounds nothing: others have the link's rest.
        if self.is_doubted && reported_bps / 2 < rate_bps {
            return Some(reported_bps.saturating_mul(2));
        }
        None
    }

    /// Notes if the allocator has answered the last growth. A rate that stays for long is an
    /// answer, too: others bound it.
    fn note_answer(&mut self, now_ns: u64, rate_bps: u64, reported_bps: Option<u64>) {
        let patience_ns = HOLD_NS.max(ANSWER_ROUND_TRIPS * self.round_trip_ns);
        let waits = |growth: &Growth| {
            !growth.is_answered_by(rate_bps, reported_bps)
                && now_ns.saturating_sub(growth.at_ns) < patience_ns
        };
        self.grown = self.grown.filter(waits);
    }

    /// Notes if rates are only observed. They are not in force then, so that no flow can prove its
    /// growth by use of them.
    pub(super) fn set_observes(&mut self, observes: bool) {
        self.observes = observes;
    }

    /// Measures the flow's use. `rate_bps` is its rate, `reported_bps` the demand reported last.
    pub(super) fn evaluate(
        &mut self,
        now_ns: u64,
        usage: &Usage,
        rate_bps: u64,
        reported_bps: Option<u64>,
    ) -> Verdict {
        if usage.acked_bytes != self.acked_bytes {
            self.acked_bytes = usage.acked_bytes;
            self.acked_ns = now_ns;
        }
        self.round_trip_ns = usage.round_trip_ns.min(WINDOW_MOST_NS);
        if usage.limited_ns > 0 {
            self.limited_ns = self.limited_ns.max(Some(usage.limited_ns.min(now_ns)));
        }
        let passed_ns = now_ns.saturating_sub(self.since_ns);
        // A large share of which nothing arrives is not waited for.
        let is_silent = reported_bps.is_none() && now_ns.saturating_sub(self.acked_ns) >= WINDOW_NS;
        let window_ns = if is_silent {
            WINDOW_NS
        } else {
            usage.round_trip_ns.clamp(WINDOW_NS, WINDOW_MOST_NS)
        };
        if passed_ns >= window_ns {
            let sent = usage.sent_bytes.saturating_sub(self.sent_bytes);
            // Bytes per nanosecond to bit/s: 64 bits would overflow beyond 2.3 GB in a window.
            let bps = u128::from(sent) * 8_000_000_000 / u128::from(passed_ns);
            self.used_bps = [
                Some(u64::try_from(bps).unwrap_or(u64::MAX)),
                self.used_bps[0],
            ];
            self.since_ns = now_ns;
            self.sent_bytes = usage.sent_bytes;
        }
        // At a low rate even progress acknowledges rarely: wait for a few segments of full size.
        let stall_timeout_ns =
            STALL_NS.max(STALL_BITS.saturating_mul(1_000_000_000) / rate_bps.max(1));
        if now_ns.saturating_sub(self.acked_ns) >= stall_timeout_ns {
            return Verdict::Stalled;
        }
        // Before the first window has ended, the use is not known.
        let [Some(last), before] = self.used_bps else {
            return Verdict::Keep;
        };
        let used = last.max(before.unwrap_or(0));
        let uses_most = used >= rate_bps / 4 * 3;
        // A lowered demand is used to 8/9 whatever holds the flow back: only growth is a proof, and
        // that of a doubled demand one of twice as much, not of any rate.
        self.note_answer(now_ns, rate_bps, reported_bps);
        if uses_most
            && self.grown.is_none()
            && std::mem::take(&mut self.is_unproven)
            && reported_bps.is_none()
        {
            (self.is_doubted, self.lowered_to_bps) = (false, 0);
        }
        let held = |limited_ns| now_ns.saturating_sub(limited_ns) < self.hold_ns;
        let wants = used.saturating_add(used / 8).max(FLOOR_BPS);
        // Growth is reported before the flow meets its limit; shrinking waits until a quarter is
        // unused.
        let shrinks = reported_bps.is_some_and(|reported| wants < reported / 4 * 3);
        // Use before claim: what waits at a socket may wait for something else than the rate. A
        // demand that grew no more than once since it was lowered may be held without use, for it
        // takes little. A limit from before it was lowered is no claim of a flow that has stopped.
        let is_since = self.limited_ns > Some(self.lowered_ns);
        let silent_ns = now_ns.saturating_sub(self.acked_ns);
        let has_stopped = silent_ns >= 2 * usage.round_trip_ns.max(WINDOW_NS);
        // Bursts into a queue of the host meet their limit for ever, and use a fifth of it.
        let is_recent = now_ns.saturating_sub(self.lowered_ns) < HOLD_MOST_NS;
        let takes_little = |bps| {
            bps <= self.lowered_to_bps.saturating_mul(2)
                && (is_since || !(shrinks && has_stopped))
                && (is_recent || !shrinks)
        };
        // Rates that are only observed are no measure of use: TCP decides on that.
        let claims = uses_most || self.observes || reported_bps.is_some_and(takes_little);
        if self.limited_ns.is_some_and(held) && claims {
            return Verdict::Keep;
        }
        let lower = match reported_bps {
            // The unused rest has to be worth a message.
            None => wants < rate_bps / 8 * 7,
            Some(reported) => shrinks || wants > reported.saturating_add(reported / 16),
        };
        if !lower {
            return Verdict::Keep;
        }
        (self.lowered_ns, self.lowered_to_bps) = (now_ns, wants);
        self.is_doubted |= std::mem::take(&mut self.is_unproven);
        Verdict::Lower(wants)
    }
}

#[cfg(test)]
mod tests {
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
        while meter.evaluate(at_ms * MS, &usage(0, 0), 100 * MBIT, Some(FLOOR_BPS))
            != Verdict::Stalled
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
}
