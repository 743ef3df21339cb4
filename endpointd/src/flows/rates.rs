//! Rates, leases and the kill switch: from the allocator to the back end.

use std::sync::Arc;

use ratewright_proto::FlowId;

use super::{Displaced, FlowAction, FlowTable, LeasedRate, NetworkView, PacingState, SlotEntry};

impl FlowTable {
    /// Begins a new session. Rates of the session before are never extended: their sockets continue
    /// as plain TCP, from the last rate, until the new session's first rate.
    pub fn on_established(&mut self, network: Arc<NetworkView>, state: PacingState) {
        self.renewed_to_ns = 0;
        // The new allocator knows nothing of the old one's rates: extending those could
        // over-allocate a link.
        self.withdraw_all();
        self.set_pacing_state(state);
        self.set_network(network);
    }

    /// Applies the allocator's rate for a flowlet, unless it is stale, expired or withheld.
    pub fn on_rate(&mut self, now_ns: u64, flow: FlowId, rate_bps: u64, expires_ns: u64) {
        self.apply_rate(now_ns, flow, rate_bps, expires_ns, false);
    }

    /// Applies a receiver's share likewise, while the allocator is lost. It stands in for the
    /// allocator's rate until [`end_shares`](Self::end_shares).
    pub fn on_share(&mut self, now_ns: u64, flow: FlowId, rate_bps: u64, expires_ns: u64) {
        self.apply_rate(now_ns, flow, rate_bps, expires_ns, true);
    }

    /// Ends all shares: the allocator's rates are in force again, as far as their leases reach. It
    /// repeats no rate that it has not changed.
    pub fn end_shares(&mut self) {
        let connections = self.entries.iter_mut();
        for connection in connections.filter_map(|entry| entry.connection.as_mut()) {
            let conn = connection.conn;
            let Some(flowlet) = connection.flowlet.as_mut() else {
                continue;
            };
            let Some(Displaced(before)) = flowlet.displaced.take() else {
                continue;
            };
            let had_rate = flowlet.rate.is_some();
            flowlet.rate = before;
            match before {
                Some(LeasedRate { bps, expires_ns }) => {
                    self.rated += u32::from(!had_rate);
                    self.actions.push_back(FlowAction::SetRate {
                        conn,
                        rate_bps: bps,
                        expires_ns: expires_ns.max(self.renewed_to_ns),
                        waited_ns: None,
                    });
                }
                None if had_rate => {
                    self.rated -= 1;
                    self.actions.push_back(FlowAction::Clear(conn));
                }
                None => {}
            }
        }
    }

    fn apply_rate(
        &mut self,
        now_ns: u64,
        flow: FlowId,
        rate_bps: u64,
        expires_ns: u64,
        is_share: bool,
    ) {
        if expires_ns <= now_ns {
            self.counters.rates_expired += 1;
            return;
        }
        if self.state == PacingState::Release {
            self.counters.rates_withheld += 1;
            return;
        }
        let connection = self
            .entries
            .get_mut(flow.slot() as usize)
            .and_then(|entry| entry.connection.as_mut());
        // The id holds the generation, so a rate of the slot's flowlet before does not match.
        let reported = connection.and_then(|connection| {
            let flowlet = connection.flowlet.as_mut()?;
            (flowlet.id == flow && flowlet.is_reported()).then_some((connection.conn, flowlet))
        });
        let Some((conn, flowlet)) = reported else {
            self.counters.rates_stale += 1;
            return;
        };
        if !is_share {
            flowlet.displaced = None;
        } else if flowlet.displaced.is_none() {
            flowlet.displaced = Some(Displaced(flowlet.rate));
        }
        // A new rate of a flowlet that already has one leaves `rated` as it is.
        let was_rated = flowlet.rate.is_some();
        let waited_ns = flowlet
            .began_ns
            .take()
            .map(|began_ns| now_ns.saturating_sub(began_ns));
        // A path without capacity has rate 0: plain TCP finds out what still gets through.
        flowlet.rate = (rate_bps > 0).then_some(LeasedRate {
            bps: rate_bps,
            expires_ns,
        });
        if rate_bps > 0 {
            self.rated += u32::from(!was_rated);
            // The kernel holds no flow that it watches: a burst is not timed by a small demand.
            if !was_rated && flowlet.measured_bps.is_some() {
                self.actions.push_back(FlowAction::Watch(conn));
            }
            if self.state == PacingState::Observe {
                self.counters.rates_observed += 1;
                return;
            }
            self.counters.rates_applied += 1;
            self.actions.push_back(FlowAction::SetRate {
                conn,
                rate_bps,
                expires_ns,
                waited_ns,
            });
        } else if was_rated {
            self.rated -= 1;
            if self.state == PacingState::Pace {
                self.actions.push_back(FlowAction::Clear(conn));
            }
        }
    }

    /// Renews all rates of the session until `expires_ns`.
    pub fn on_renewed(&mut self, expires_ns: u64) {
        // Datagrams arrive in any order: a lease never moves back. Without rates there is nothing
        // to renew.
        if self.state == PacingState::Release || self.rated == 0 || expires_ns <= self.renewed_to_ns
        {
            return;
        }
        self.renewed_to_ns = expires_ns;
        if self.state == PacingState::Observe {
            return;
        }
        self.counters.renewals += 1;
        self.actions.push_back(FlowAction::Renew { expires_ns });
    }

    pub(super) fn withdraw_all(&mut self) {
        for flowlet in self.entries.iter_mut().filter_map(SlotEntry::flowlet_mut) {
            // One `ClearAll` follows, instead of a `Clear` for each.
            flowlet.rate = None;
            flowlet.displaced = None;
            flowlet.meter.stop();
        }
        self.rated = 0;
        // Also without any known rate: the kernel may hold rates of an earlier daemon.
        self.actions.push_back(FlowAction::ClearAll);
    }

    /// Counts the running flowlets.
    #[must_use]
    pub fn flow_count(&self) -> usize {
        self.flowlets().count()
    }

    /// Counts the flowlets reported to the allocator.
    #[must_use]
    pub fn reported_count(&self) -> usize {
        self.flowlets()
            .filter(|flowlet| flowlet.is_reported())
            .count()
    }

    /// Counts the paced flowlets, whose rate holds at `now_ns`.
    #[must_use]
    pub fn paced_count(&self, now_ns: u64) -> usize {
        if self.state != PacingState::Pace {
            return 0;
        }
        self.flowlets()
            .filter_map(|flowlet| flowlet.rate)
            // A renewal moves all leases at once and is kept once, not in every flowlet.
            .filter(|rate| rate.expires_ns.max(self.renewed_to_ns) > now_ns)
            .count()
    }

    /// Counts the flowlets with a rate in the back end, expired or not.
    #[must_use]
    pub fn rated_count(&self) -> u32 {
        if self.state == PacingState::Pace {
            self.rated
        } else {
            0
        }
    }
}
