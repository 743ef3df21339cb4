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
