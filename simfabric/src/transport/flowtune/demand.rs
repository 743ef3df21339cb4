//! Demand of a flow under a [maximum](crate::transport::tcp::Maximum): the most that it can use, by
//! what it has used. The rule is the endpoint daemon's, in short.
//!
//! A flow *claims* its rate in a window in which the rate limited it and it sent at least
//! [`CLAIM`] of what the rate allowed. For [`HOLD_WINDOWS`] from then on its demand is unbounded.
//! Any other flow, held by its application, its receiver, losses or marks, has a demand of an
//! eighth more than the larger of its last two windows, and at least [`FLOOR_BPS`].
//!
//! Growth is an event: a flow with a lowered demand that meets its rate, and has used [`CLAIM`] of
//! it in the running window and the one before, as far as that demand was told then, has an
//! unbounded demand at once.

use crate::time::{Span, Time};
use crate::transport::tcp::RateUse;

/// Share of its rate that a flow uses which claims it.
pub const CLAIM: f64 = 0.75;
/// Windows for which a claim holds.
pub const HOLD_WINDOWS: u64 = 5;
/// Smallest demand, in bit/s.
pub const FLOOR_BPS: u64 = 500_000;

/// Bytes that a flow sent in a window, and those that its rate allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct WindowUse {
    sent: f64,
    allowed: f64,
}

/// Measurements of a flow since it got its rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Meter {
    rate_bps: u64,
    /// Time up to which `allowed` is counted.
    counted: Time,
    /// Beginning of the running window, and the bytes sent by then.
    since: Time,
    sent_bytes: u64,
    /// Bytes that the rate has allowed in the running window.
    allowed: f64,
    /// The window before the running one, and its use in bit/s.
    last: WindowUse,
    last_bps: Option<f64>,
    claimed_at: Option<Time>,
    /// Demand that was told last; `None`: unbounded.
    told_bps: Option<u64>,
}

impl Meter {
    /// Begins to measure a flow that has just got a rate.
    pub(super) fn new(now: Time, sent_bytes: u64) -> Self {
        Self {
            rate_bps: 0,
            counted: now,
            since: now,
            sent_bytes,
            allowed: 0.0,
            last: WindowUse::default(),
            last_bps: None,
            claimed_at: None,
            told_bps: None,
        }
    }

    /// Goes on at another rate.
    pub(super) fn on_rate(&mut self, now: Time, rate_bps: u64) {
        let seconds = now.since(self.counted).as_secs_f64();
        self.allowed += self.rate_bps as f64 / 8.0 * seconds;
        self.counted = now;
        self.rate_bps = rate_bps;
    }

    /// Returns the use of the running window so far.
    fn running(&mut self, now: Time, used: &RateUse) -> WindowUse {
        self.on_rate(now, self.rate_bps);
        WindowUse {
            sent: used.sent_bytes.saturating_sub(self.sent_bytes) as f64,
            allowed: self.allowed,
        }
    }

    /// Ends a window, if it is over. Returns the flow's demand if that is to be told.
    pub(super) fn end_window(&mut self, now: Time, window: Span, used: &RateUse) -> Option<u64> {
        let passed = now.since(self.since);
        if passed < window {
            return None;
        }
        let running = self.running(now, used);
        let limited = used.limited_at.is_some_and(|at| at >= self.since);
        if limited && running.sent >= CLAIM * running.allowed {
            self.claimed_at = Some(now);
        }
        let bps = running.sent * 8.0 / passed.as_secs_f64();
        let before_bps = self.last_bps.replace(bps);
        (self.last, self.allowed) = (running, 0.0);
        (self.since, self.sent_bytes) = (now, used.sent_bytes);
        let hold = window * HOLD_WINDOWS;
        if self.claimed_at.is_some_and(|at| now.since(at) < hold) {
            return None;
        }
        let used_bps = bps.max(before_bps.unwrap_or(0.0));
        let wants = (used_bps * 9.0 / 8.0).max(FLOOR_BPS as f64);
        let tells = match self.told_bps {
            // The unused rest has to be worth a message.
            None => wants < self.rate_bps as f64 * 7.0 / 8.0,
            Some(told) => {
                let told = told as f64;
                wants > told * 17.0 / 16.0 || wants < told * 3.0 / 4.0
            }
        };
        tells.then(|| {
            // A claim is of what the lowered demand brings, not of what was there before.
            self.last = WindowUse::default();
            *self.told_bps.insert(wants as u64)
        })
    }

    /// Handles the event that the rate limits a flow whose demand was lowered. Returns true if its
    /// demand is unbounded from now on.
    pub(super) fn on_limited(&mut self, now: Time, used: &RateUse) -> bool {
        let running = self.running(now, used);
        let sent = self.last.sent + running.sent;
        let claims = sent >= CLAIM * (self.last.allowed + running.allowed);
        if claims {
            self.claimed_at = Some(now);
            self.told_bps = None;
        }
        claims
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GBIT: u64 = 1_000_000_000;
    const WINDOW: Span = Span::from_ms(1);

    /// A flow that is measured every millisecond.
    struct MeteredFlow {
        meter: Meter,
        used: RateUse,
        now_ms: u64,
        told: Vec<u64>,
    }

    impl MeteredFlow {
        fn at(rate_bps: u64) -> Self {
            let mut meter = Meter::new(Time::ZERO, 0);
            meter.on_rate(Time::ZERO, rate_bps);
            Self {
                meter,
                used: RateUse::default(),
                now_ms: 0,
                told: Vec::new(),
            }
        }

        /// Sends so much for some windows.
        fn run(&mut self, windows: u64, bps: u64, limited: bool) {
            for _ in 0..windows {
                self.now_ms += 1;
                self.used.sent_bytes += bps / 8_000;
                let now = Time::from_ms(self.now_ms);
                if limited {
                    self.used.limited_at = Some(now);
                }
                self.told
                    .extend(self.meter.end_window(now, WINDOW, &self.used));
            }
        }
    }

    #[test]
    fn a_flow_that_its_rate_limits_and_that_uses_it_keeps_an_unbounded_demand() {
        let mut flow = MeteredFlow::at(4 * GBIT);
        flow.run(100, 3 * GBIT, true);
        assert!(flow.told.is_empty(), "{:?}", flow.told);
    }

    /// A slow link behind, or a window: the rate is met now and then, and hardly used.
    #[test]
    fn a_flow_that_its_rate_limits_and_that_uses_little_has_the_demand_that_it_uses() {
        let mut flow = MeteredFlow::at(4 * GBIT);
        flow.run(100, 2 * GBIT, true);
        assert_eq!(flow.told, [2 * GBIT * 9 / 8]);
    }

    #[test]
    fn a_demand_shrinks_once_a_claim_is_five_windows_old() {
        let mut flow = MeteredFlow::at(4 * GBIT);
        flow.run(10, 4 * GBIT, true);
        flow.run(HOLD_WINDOWS - 1, GBIT, false);
        assert!(flow.told.is_empty(), "{:?}", flow.told);
        flow.run(1, GBIT, false);
        assert_eq!(flow.told, [GBIT * 9 / 8]);
    }

    #[test]
    fn a_flow_that_meets_its_lowered_rate_grows_at_once() {
        let mut flow = MeteredFlow::at(4 * GBIT);
        flow.run(1, GBIT, false);
        assert_eq!(flow.told, [GBIT * 9 / 8]);
        flow.meter.on_rate(Time::from_ms(1), GBIT * 9 / 8);
        flow.run(9, GBIT, false);
        let now = Time::from_ms(10);
        // A tenth of a window later it has used all that it may.
        flow.used.sent_bytes += GBIT * 9 / 8 / 8 / 10_000;
        assert!(flow.meter.on_limited(now + WINDOW / 10, &flow.used));
        flow.run(HOLD_WINDOWS - 1, GBIT, false);
        assert_eq!(flow.told.len(), 1, "the claim holds");
    }

    /// A rate that rises in the middle of a window was not there to be used before.
    #[test]
    fn a_claim_is_a_share_of_what_the_rate_allowed_then() {
        let mut flow = MeteredFlow::at(GBIT);
        flow.run(10, GBIT, true);
        flow.meter.on_rate(Time::from_us(10_900), 10 * GBIT);
        // 0.9 ms at 1 and 0.1 ms at 10 Gbit/s.
        flow.run(1, GBIT * 19 / 10, true);
        flow.run(HOLD_WINDOWS - 1, GBIT, false);
        assert!(flow.told.is_empty(), "{:?}", flow.told);
    }
}
