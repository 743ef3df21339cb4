//! Rates that found no room, the newest of each flow, in the order in which flows began to wait.
//!
//! Everything takes constant time, whatever waits: what is forgotten stays in the order until its turn comes, and is
//! passed over then.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::engine::{FlowKey, RateUpdate};

#[cfg(test)]
mod tests;

/// A rate, and when its flow began to wait.
#[derive(Clone, Copy, Debug)]
struct WaitingRate {
    rate_bps: f64,
    since: u64,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct RateBacklog {
    rates: FxHashMap<FlowKey, WaitingRate>,
    order: VecDeque<(FlowKey, u64)>,
    now: u64,
    /// Sessions that are gone: what waits of them since before this is forgotten.
    gone: FxHashMap<u32, u64>,
}

impl RateBacklog {
    /// True if nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.rates.is_empty()
    }

    /// Rates that wait, with those of sessions that have gone, until their turn comes.
    pub(super) fn len(&self) -> usize {
        self.rates.len()
    }

    fn lives(&self, key: FlowKey, since: u64) -> bool {
        let gone = self.gone.get(&key.session());
        gone.is_none_or(|&gone| since >= gone)
    }

    /// Lets a rate wait. True if it takes the place of an older one of its flow.
    pub(super) fn put(&mut self, update: RateUpdate) -> bool {
        let RateUpdate { key, rate_bps } = update;
        if let Some(&WaitingRate { since, .. }) = self.rates.get(&key)
            && self.lives(key, since)
        {
            self.rates.insert(key, WaitingRate { rate_bps, since });
            return true;
        }
        let since = self.now;
        self.now += 1;
        self.rates.insert(key, WaitingRate { rate_bps, since });
        self.order.push_back((key, since));
        false
    }

    /// The rate that has waited for longest.
    pub(super) fn first(&mut self) -> Option<RateUpdate> {
        while let Some(&(key, since)) = self.order.front() {
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

    /// A flow's rate does not wait any more.
    pub(super) fn forget(&mut self, key: FlowKey) {
        self.rates.remove(&key);
        if self.rates.is_empty() {
            self.clear();
        }
    }

    /// Nothing that waits of a session does any more.
    pub(super) fn forget_session(&mut self, session: u32) {
        if !self.rates.is_empty() {
            self.gone.insert(session, self.now);
        }
    }

    /// Nothing waits any more.
    pub(super) fn clear(&mut self) {
        self.rates.clear();
        self.order.clear();
        self.gone.clear();
    }
}
