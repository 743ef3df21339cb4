//! Rates that found no space: the newest of each flow, in the order in which flows began to wait.
//!
//! Every operation takes amortised constant time. A forgotten rate stays in the order until its
//! turn, and is skipped then.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::engine::{FlowNumber, RateUpdate};

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
    rates: FxHashMap<FlowNumber, WaitingRate>,
    order: VecDeque<(FlowNumber, u64)>,
    now: u64,
}

impl RateBacklog {
    /// True if nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.rates.is_empty()
    }

    /// Number of waiting rates.
    pub(super) fn len(&self) -> usize {
        self.rates.len()
    }

    /// Adds a rate. Returns true if it replaces an older one of its flow.
    pub(super) fn put(&mut self, update: RateUpdate) -> bool {
        let RateUpdate { number, rate_bps } = update;
        if let Some(waiting) = self.rates.get_mut(&number) {
            // Keeps the flow's turn: a rate that changes often must not wait for ever.
            waiting.rate_bps = rate_bps;
            return true;
        }
        let since = self.now;
        self.now += 1;
        self.rates.insert(number, WaitingRate { rate_bps, since });
        self.order.push_back((number, since));
        false
    }

    /// Rate that has waited for longest.
    pub(super) fn first(&mut self) -> Option<RateUpdate> {
        while let Some(&(number, since)) = self.order.front() {
            // An entry of the order counts only if the flow still waits since that moment.
            if let Some(entry) = self.rates.get(&number)
                && entry.since == since
            {
                return Some(RateUpdate {
                    number,
                    rate_bps: entry.rate_bps,
                });
            }
            self.order.pop_front();
        }
        self.clear();
        None
    }

    /// Forgets a flow's rate.
    pub(super) fn forget(&mut self, number: FlowNumber) {
        self.rates.remove(&number);
        // With nothing left, the order holds forgotten entries only.
        if self.rates.is_empty() {
            self.clear();
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.rates.clear();
        self.order.clear();
    }
}
