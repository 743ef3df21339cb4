//! Rate limits of sessions.

/// Token bucket with debt. An item is taken whole while there is credit, and the debt that it
/// leaves keeps out the next ones.
///
/// A datagram without credit is dropped before the protocol sees it, so it is not acknowledged and
/// its state comes again. A control stream without credit is not read, and the transport's flow
/// control makes the peer wait. A flood is slowed down and loses nothing.
#[derive(Debug, Clone, Copy)]
pub(in crate::service) struct TokenBucket {
    per_s: u32,
    tokens: f64,
    filled_ns: u64,
}

impl TokenBucket {
    pub(in crate::service) fn new(per_s: u32, now_ns: u64) -> Self {
        Self {
            per_s,
            tokens: f64::from(per_s),
            filled_ns: now_ns,
        }
    }

    pub(in crate::service) fn set_rate(&mut self, per_s: u32) {
        self.per_s = per_s;
        // A lower rate takes effect at once; debt stays.
        self.tokens = self.tokens.min(f64::from(per_s));
    }

    /// Refills the bucket and returns whether there is credit.
    #[allow(
        clippy::cast_precision_loss,
        reason = "a duration of some seconds in nanoseconds"
    )]
    pub(in crate::service) fn has_credit(&mut self, now_ns: u64) -> bool {
        let elapsed_ns = now_ns.saturating_sub(self.filled_ns);
        // Timers are served as of when the port was last empty, so `now_ns` may lie before the last
        // refill.
        self.filled_ns = self.filled_ns.max(now_ns);
        let elapsed_s = elapsed_ns as f64 / 1e9;
        // One second of credit is the largest burst.
        self.tokens = (self.tokens + elapsed_s * f64::from(self.per_s)).min(f64::from(self.per_s));
        self.tokens > 0.0
    }

    /// Charges `cost` tokens.
    pub(in crate::service) fn spend(&mut self, cost: u32) {
        self.tokens -= f64::from(cost);
    }

    /// Returns the time until there is credit, in nanoseconds; `None` if there is some now.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative, and the cast saturates"
    )]
    pub(in crate::service) fn wait_ns(&mut self, now_ns: u64) -> Option<u64> {
        if self.has_credit(now_ns) {
            return None;
        }
        // One more token than the debt, since credit is what is above zero.
        let missing = 1.0 - self.tokens;
        Some((missing / f64::from(self.per_s) * 1e9).ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: u64 = 1_000_000_000;

    /// Takes items of one token until there is no credit.
    fn take_all(bucket: &mut TokenBucket, now_ns: u64) -> u32 {
        let mut taken = 0;
        while bucket.has_credit(now_ns) {
            bucket.spend(1);
            taken += 1;
        }
        taken
    }

    #[test]
    fn the_largest_burst_is_one_second_of_credit_however_long_nothing_came() {
        let mut bucket = TokenBucket::new(10, 7 * S);
        assert_eq!(take_all(&mut bucket, 7 * S), 10);
        assert_eq!(take_all(&mut bucket, 7 * S + S / 2), 5);
        assert_eq!(take_all(&mut bucket, 1_000 * S), 10);
    }

    #[test]
    fn debt_keeps_out_the_next_items_for_as_long_as_it_takes_to_pay() {
        let mut bucket = TokenBucket::new(10, 0);
        assert_eq!(bucket.wait_ns(0), None);
        bucket.spend(15);
        // Five tokens of debt and one of credit.
        assert_eq!(bucket.wait_ns(0), Some(6 * S / 10));
        assert_eq!(bucket.wait_ns(S / 10), Some(S / 2));
        assert!(!bucket.has_credit(S / 2), "the debt is paid, no more");
        assert_eq!(bucket.wait_ns(6 * S / 10), None);
    }

    #[test]
    fn a_clock_that_steps_back_gives_no_credit() {
        let mut bucket = TokenBucket::new(10, 5 * S);
        take_all(&mut bucket, 5 * S);
        assert!(!bucket.has_credit(4 * S));
        assert!(!bucket.has_credit(5 * S), "no second was passed twice");
    }

    #[test]
    fn a_lower_rate_takes_effect_at_once_and_keeps_the_debt() {
        let mut bucket = TokenBucket::new(100, 0);
        bucket.set_rate(10);
        assert_eq!(take_all(&mut bucket, 0), 10);
        bucket.spend(5);
        bucket.set_rate(50);
        assert_eq!(bucket.wait_ns(0), Some(6 * S / 50));
    }

    proptest! {
        /// A sender that waits as it is told has no more than the rate and one burst, and no less
        /// than the rate.
        #[test]
        fn over_any_time_a_patient_sender_gets_its_rate(
            per_s in 1..10_000u32,
            costs in prop::collection::vec(1..3_000u32, 1..200),
            pauses_ms in prop::collection::vec(0..100u64, 200),
        ) {
            let mut bucket = TokenBucket::new(per_s, 0);
            let (mut now_ns, mut spent, mut idle_ns) = (0, 0.0, 0);
            for (&cost, &pause_ms) in costs.iter().zip(&pauses_ms) {
                now_ns += pause_ms * 1_000_000;
                idle_ns += pause_ms * 1_000_000;
                if let Some(wait_ns) = bucket.wait_ns(now_ns) {
                    prop_assert!(wait_ns > 0);
                    now_ns += wait_ns;
                    prop_assert!(bucket.has_credit(now_ns));
                }
                let granted = f64::from(per_s) * (1.0 + now_ns as f64 / 1e9);
                prop_assert!(spent < granted + 1e-3, "{spent} of {granted}");
                // Of the time that it waited for credit, at most a token per item is given away.
                let least = f64::from(per_s) * (now_ns - idle_ns) as f64 / 1e9;
                prop_assert!(spent + f64::from(per_s) + costs.len() as f64 > least);
                bucket.spend(cost);
                spent += f64::from(cost);
            }
        }
    }
}
