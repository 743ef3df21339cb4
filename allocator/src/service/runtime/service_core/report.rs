//! Figures of the service core for `/status` and `/metrics`.

use indexmap::IndexMap;
use ratewright_proto::sealed::SealedCounters;

use super::session_transport::{Route, SessionTransport};
use super::{ServiceCore, SharedCore};
use crate::service::clock;
use crate::service::hub::TransportFacts;
use crate::service::status::{EngineFigures, SessionStatus, Snapshot, Status};

/// Sessions or links that `/status` lists while it holds the lock.
const LISTED_AT_ONCE: usize = 256;

impl ServiceCore {
    /// Sums the counters of all UDP workers.
    fn sealed_counters(&self) -> SealedCounters {
        let mut total = SealedCounters::default();
        for queue in &self.workers {
            total.add(&queue.counters);
        }
        total
    }

    /// Sums the counters of all ports.
    fn port_counters(&self) -> Vec<(&'static str, u64)> {
        let mut total: IndexMap<&'static str, u64> = IndexMap::new();
        for &(name, count) in self.workers.iter().flat_map(|queue| &queue.port_counters) {
            *total.entry(name).or_default() += count;
        }
        total.into_iter().collect()
    }

    fn facts(&self, transport: &SessionTransport) -> TransportFacts {
        let (rtt, address) = match &transport.route {
            Route::Direct(connection) => {
                (connection.rtt(), connection.remote_address().to_string())
            }
            Route::Relay { relay, address, .. } => {
                let (rtt, name) = self.relays.facts(*relay).unwrap_or_default();
                (rtt, format!("{address} by {name}"))
            }
        };
        TransportFacts {
            rtt_us: u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX),
            address,
        }
    }

    /// Returns counts and figures for `/metrics` and the head of `/status`. Visits no session.
    pub(in crate::service::runtime) fn snapshot(&self) -> Snapshot {
        let stats = self.engine.stats();
        let histogram = self.engine.histogram();
        let mut status = self.hub.status(&stats);
        status.sealed_ports_lost = self.workers.iter().filter(|queue| queue.lost).count() as u64;
        status.pinned_core = self.engine.pinned_core();
        status.iteration.count = histogram.count();
        let (events, events_refused) = self.engine.event_totals();
        Snapshot {
            status,
            totals: self.hub.totals(),
            counts: self.hub.counts().clone(),
            sealed: self.sealed_counters(),
            port: self.port_counters(),
            engine: EngineFigures {
                events,
                events_refused,
                iterations: histogram.figures(),
                max_overload: stats.last_report.max_overload,
                exceptions: stats.exceptions,
            },
            certificate_expires_unix_s: self.certificate_expires_unix_s,
            first_rates: self.hub.first_rates(),
            feeds: self.hub.feeds_status(),
        }
    }

    /// Appends the entries of these sessions in `/status`.
    fn session_statuses(&self, now_ns: u64, ids: &[u32], into: &mut Vec<SessionStatus>) {
        into.extend(ids.iter().filter_map(|&id| {
            let facts = |id| {
                let transport = self.transports.get(&id);
                transport.map_or_else(TransportFacts::default, |transport| self.facts(transport))
            };
            self.hub.session_status(now_ns, id, facts)
        }));
    }
}

impl SharedCore {
    /// Returns the body of `/status`. Lists are built in slices, so that no thread waits long for
    /// the lock.
    pub(in crate::service::runtime) async fn status(&self) -> Status {
        let (mut status, ids) = {
            let core = self.lock();
            (core.snapshot().status, core.hub.session_ids())
        };
        for some in ids.chunks(LISTED_AT_ONCE) {
            self.lock()
                .session_statuses(clock::now_ns(), some, &mut status.sessions);
            tokio::task::yield_now().await;
        }
        status.sessions.sort_by(|a, b| a.host.cmp(&b.host));
        let mut from = Some(0);
        while let Some(link) = from {
            let into = &mut status.external;
            let now_ns = clock::now_ns();
            from = (self.lock().hub).external_status(now_ns, link, LISTED_AT_ONCE, into);
            tokio::task::yield_now().await;
        }
        from = Some(0);
        while let Some(link) = from {
            let into = &mut status.links_down;
            from = self.lock().hub.links_down(link, LISTED_AT_ONCE, into);
            tokio::task::yield_now().await;
        }
        status
    }
}
