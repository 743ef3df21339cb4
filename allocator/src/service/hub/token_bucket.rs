//! What one session may cost in a second.

/// A token bucket with debt: something is taken whole while there is credit, and the debt that it may
/// leave keeps out what comes next. Datagrams that are kept out are dropped before the protocol sees
/// them, so they are not acknowledged and their state comes again; of the control stream nothing more
/// is read, and the transport's flow control makes the peer wait. A flood is slowed down and loses
/// nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenBucket {
    per_s: u32,
    tokens: f64,
    filled_ns: u64,
}

impl TokenBucket {
    pub(super) fn new(per_s: u32, now_ns: u64) -> Self {
        Self {
            per_s,
            tokens: f64::from(per_s),
            filled_ns: now_ns,
        }
    }

    pub(super) fn set_rate(&mut self, per_s: u32) {
        self.per_s = per_s;
        self.tokens = self.tokens.min(f64::from(per_s));
    }

    /// Whether something may be taken now.
    #[allow(
        clippy::cast_precision_loss,
        reason = "a duration of some seconds in nanoseconds"
    )]
    pub(super) fn has_credit(&mut self, now_ns: u64) -> bool {
        let elapsed_ns = now_ns.saturating_sub(self.filled_ns);
        self.filled_ns = self.filled_ns.max(now_ns);
        let elapsed_s = elapsed_ns as f64 / 1e9;
        self.tokens = (self.tokens + elapsed_s * f64::from(self.per_s)).min(f64::from(self.per_s));
        self.tokens > 0.0
    }

    /// Takes what something costs.
    pub(super) fn spend(&mut self, cost: u32) {
        self.tokens -= f64::from(cost);
    }

    /// How long until there is credit; nothing if there is.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative, and the cast saturates"
    )]
    pub(super) fn wait_ns(&mut self, now_ns: u64) -> Option<u64> {
        if self.has_credit(now_ns) {
            return None;
        }
        // One more token than the debt, since credit is what is above zero.
        let missing = 1.0 - self.tokens;
        Some((missing / f64::from(self.per_s) * 1e9).ceil() as u64)
    }
}
