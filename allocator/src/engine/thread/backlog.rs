//! Rates that found no space: the newest of each flow, in the order in which flows began to wait.
//!
//! Every operation takes amortised constant time. A forgotten rate stays in the order until its
//! turn, and is skipped then.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::engine::{FlowKey, RateUpdate};

#[cfg(test)]
mod tests;

/// A waiting rate, and the moment at which its flow began to wait.
#[derive(Clone, Copy, Debug)]
struct WaitingRate {
    rate_bps: f64,
    since: u64,
}

/// Backlog of rates; see the [module](self).
#[derive(Debug, Default)]
pub(super) struct RateBacklog {
    rates: FxHashMap<FlowKey, WaitingRate>,
    order: VecDeque<(FlowKey, u64)>,
    now: u64,
    /// Dropped sessions: their rates from before this moment are forgotten.
    gone: FxHashMap<u32, u64>,
}

impl RateBacklog {
    /// True if nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.rates.is_empty()
    }

    /// Number of waiting rates, with those of dropped sessions until their turn.
    pub(super) fn len(&self) -> usize {
        self.rates.len()
    }

    fn lives(&self, key: FlowKey, since: u64) -> bool {
        let gone = self.gone.get(&key.session());
        gone.is_none_or(|&gone| since >= gone)
    }

    /// Adds a rate. Returns true if it replaces an older one of its flow.
    pub(super) fn put(&mut self, update: RateUpdate) -> bool {
        let RateUpdate { key, rate_bps } = update;
        if let Some(&WaitingRate { since, .. }) = self.rates.get(&key)
            && self.lives(key, since)
        {
            // Keeps the flow's turn: a rate that changes often must not wait for ever.
            self.rates.insert(key, WaitingRate { rate_bps, since });
            return true;
        }
        let since = self.now;
        self.now += 1;
        self.rates.insert(key, WaitingRate { rate_bps, since });
        self.order.push_back((key, since));
        false
    }

    /// Rate that has waited for longest.
    pub(super) fn first(&mut self) -> Option<RateUpdate> {
        while let Some(&(key, since)) = self.order.front() {
            // An entry of the order counts only if the flow still waits since that moment.
            if let Some(&entry) = self.rates.get(&key)
                && entry.since == since
            {
                if self.lives(key, since) {
                    return Some(RateUpdate {
                        key,
                        rate_bps: entry.rate_bps,
                    });
                }
                self.rates.remove(&key);
            }
            self.order.pop_front();
        }
        self.clear();
        None
    }

    /// Forgets a flow's rate.
    pub(super) fn forget(&mut self, key: FlowKey) {
        self.rates.remove(&key);
        // With nothing left, the order holds forgotten entries only.
        if self.rates.is_empty() {
            self.clear();
        }
    }

    /// Forgets all rates of a session.
    pub(super) fn forget_session(&mut self, session: u32) {
        if !self.rates.is_empty() {
            self.gone.insert(session, self.now);
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.rates.clear();
        self.order.clear();
        self.gone.clear();
    }
}
