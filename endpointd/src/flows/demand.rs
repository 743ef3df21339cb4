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
//!
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
            self.round_trip_ns.max(WINDOW_NS)
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
mod tests;
