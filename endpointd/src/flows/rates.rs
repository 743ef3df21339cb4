//! The way back: rates, leases and the kill switch.

use std::sync::Arc;

use ratewright_proto::FlowId;

use super::{FlowAction, FlowTable, LeasedRate, NetworkView};

impl FlowTable {
    /// A new session is established. Rates of the one before are never extended: what has one goes
    /// on as plain TCP from it until the new session's first rate.
    pub fn on_established(&mut self, network: Arc<NetworkView>, released: bool) {
        self.renewed_to_ns = 0;
        self.released = released;
        self.withdraw_all();
        self.set_network(network);
    }

    /// The allocator's rate for a flowlet.
    pub fn on_rate(&mut self, now_ns: u64, flow: FlowId, rate_bps: u64, expires_ns: u64) {
        if expires_ns <= now_ns {
            self.counters.rates_expired += 1;
            return;
        }
        if self.released {
            self.counters.rates_withheld += 1;
            return;
        }
        let connection = self
            .entries
            .get_mut(flow.slot() as usize)
            .and_then(|entry| entry.connection.as_mut());
        let reported = connection.and_then(|connection| {
            let flowlet = connection.flowlet.as_mut()?;
            (flowlet.id == flow && flowlet.is_reported()).then_some((connection.conn, flowlet))
        });
        let Some((conn, flowlet)) = reported else {
            self.counters.rates_stale += 1;
            return;
        };
        let was_rated = flowlet.rate.is_some();
        let waited_ns = flowlet
            .began_ns
            .take()
            .map(|began_ns| now_ns.saturating_sub(began_ns));
        // A path without capacity has no rate to give: plain TCP finds out what still gets through.
        flowlet.rate = (rate_bps > 0).then_some(LeasedRate {
            bps: rate_bps,
            expires_ns,
        });
        if rate_bps > 0 {
            self.rated += u32::from(!was_rated);
            self.counters.rates_applied += 1;
            self.actions.push_back(FlowAction::SetRate {
                conn,
                rate_bps,
                expires_ns,
                waited_ns,
            });
        } else if was_rated {
            self.rated -= 1;
            self.actions.push_back(FlowAction::Clear(conn));
        }
    }

    /// All rates of the session hold until then.
    pub fn on_renewed(&mut self, expires_ns: u64) {
        if self.released || self.rated == 0 || expires_ns <= self.renewed_to_ns {
            return;
        }
        self.renewed_to_ns = expires_ns;
        self.counters.renewals += 1;
        self.actions.push_back(FlowAction::Renew { expires_ns });
    }

    /// The kill switch: while it is on, no rate is applied. When it goes off, the session repeats
    /// the rates that hold.
    pub fn on_released(&mut self, released: bool) {
        if released && !self.released {
            self.withdraw_all();
        }
        self.released = released;
    }

    fn withdraw_all(&mut self) {
        for entry in &mut self.entries {
            if let Some(flowlet) = entry
                .connection
                .as_mut()
                .and_then(|connection| connection.flowlet.as_mut())
            {
                flowlet.rate = None;
                flowlet.meter = None;
            }
        }
        self.rated = 0;
        // Also when no rate is known: it must hold whatever the daemon lost or never knew.
        self.actions.push_back(FlowAction::ClearAll);
    }

    /// Whether the kill switch is on.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.released
    }

    /// Flowlets that run now.
    #[must_use]
    pub fn flow_count(&self) -> usize {
        self.flowlets().count()
    }

    /// Flowlets that the allocator was told of.
    #[must_use]
    pub fn reported_count(&self) -> usize {
        self.flowlets()
            .filter(|flowlet| flowlet.is_reported())
            .count()
    }

    /// Flowlets whose rate holds at `now_ns`.
    #[must_use]
    pub fn paced_count(&self, now_ns: u64) -> usize {
        self.flowlets()
            .filter_map(|flowlet| flowlet.rate)
            .filter(|rate| rate.expires_ns.max(self.renewed_to_ns) > now_ns)
            .count()
    }

    /// Flowlets that have a rate in the back end, expired or not.
    #[must_use]
    pub fn rated_count(&self) -> u32 {
        self.rated
    }
}
