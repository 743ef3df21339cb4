//! Figures of the service core for `/status` and `/metrics`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use indexmap::IndexMap;
use ratewright_proto::sealed::SealedCounters;

use super::session_transport::{Route, SessionTransport};
use super::{PortState, ServiceCore, SharedCore};
use crate::engine::driver::fullest_links;
use crate::service::clock;
use crate::service::hub::{SurveyPlace, TransportFacts, UnknownHost};
use crate::service::status::{
    EngineFigures, Explanation, FlowRow, Links, MAX_CHECKED_LINKS, SessionStatus, Snapshot, Status,
    TopFlows,
};

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
        let mut status = self.hub.report().status(&stats);
        let lost = self.workers.iter();
        let lost = lost.filter(|queue| queue.port == PortState::Lost);
        status.sealed_ports_lost = lost.count() as u64;
        status.pinned_core = self.engine.pinned_core();
        status.iteration.count = histogram.count();
        let (events, events_refused) = self.engine.event_totals();
        Snapshot {
            status,
            totals: self.hub.report().totals(),
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
            feeds: self.hub.network().feeds_status(),
        }
    }

    /// Appends the entries of these sessions in `/status`.
    fn session_statuses(&self, now_ns: u64, ids: &[u32], into: &mut Vec<SessionStatus>) {
        into.extend(ids.iter().filter_map(|&id| {
            let facts = |id| {
                let transport = self.transports.get(id);
                transport.map_or_else(TransportFacts::default, |transport| self.facts(transport))
            };
            self.hub.report().session_status(now_ns, id, facts)
        }));
    }
}

/// Slots that a survey of flows visits while it holds the lock.
const SLOTS_AT_ONCE: u32 = 1_024;

/// Flows that `/explain` lists; it counts the others.
const EXPLAINED_FLOWS: usize = 64;

impl SharedCore {
    /// Returns the fastest flows. Visits all flows in slices; flows that come or go meanwhile may
    /// be missing.
    pub(in crate::service::runtime) async fn top_flows(&self, most: usize) -> TopFlows {
        let ids = self.lock().hub.session_ids();
        let mut top = TopFlows::default();
        // The slowest of the fastest is at the top of the heap, for its replacement.
        let mut fastest: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
        let mut rows: Vec<FlowRow> = Vec::new();
        let mut place = Some(SurveyPlace::default());
        while let Some(from) = place {
            place = self.lock().hub.report().survey_flows(
                &ids,
                from,
                SLOTS_AT_ONCE,
                |rate_bps, row| {
                    top.flows_total += 1;
                    if fastest.len() < most {
                        fastest.push(Reverse((rate_bps, rows.len())));
                        rows.push(row());
                    } else if let Some(mut slowest) = fastest.peek_mut()
                        && slowest.0.0 < rate_bps
                    {
                        rows[slowest.0.1] = row();
                        slowest.0.0 = rate_bps;
                    }
                },
            );
            tokio::task::yield_now().await;
        }
        rows.sort_by(|a, b| {
            (b.rate_bps.cmp(&a.rate_bps)).then_with(|| (&a.from, a.flow).cmp(&(&b.from, b.flow)))
        });
        top.flows = rows;
        top
    }

    /// Returns the fullest links, as of the engine's last scan.
    pub(in crate::service::runtime) async fn links(&self, most: usize) -> Links {
        let loads = self.lock().engine.stats().links.clone();
        let mut links = Links {
            links_total: loads.len() as u64,
            links: Vec::new(),
        };
        for some in fullest_links(&loads, most).chunks(LISTED_AT_ONCE) {
            links.links.extend(self.lock().hub.report().link_rows(some));
            tokio::task::yield_now().await;
        }
        links
    }

    /// Explains the rates of the flows from one host to another.
    ///
    /// # Errors
    /// The topology does not have one of them.
    pub(in crate::service::runtime) async fn explain(
        &self,
        from: &str,
        to: &str,
    ) -> Result<Box<Explanation>, UnknownHost> {
        let now_ns = clock::now_ns();
        let (view, loads) = {
            let core = self.lock();
            let view = |host: &str| {
                let view = core.hub.report().host_view(now_ns, host);
                view.ok_or_else(|| UnknownHost(host.to_owned()))
            };
            ((view(from)?, view(to)?), core.engine.stats().links.clone())
        };
        let mut explanation = Box::new(Explanation {
            from: view.0,
            to: view.1,
            flows_total: 0,
            flows: Vec::new(),
        });
        let mut slot = Some(0);
        while let Some(first) = slot {
            let Explanation {
                flows_total, flows, ..
            } = &mut *explanation;
            slot = self.lock().hub.report().explain_flows(
                (from, to),
                first,
                SLOTS_AT_ONCE,
                &loads,
                EXPLAINED_FLOWS,
                flows_total,
                flows,
            );
            tokio::task::yield_now().await;
        }
        Ok(explanation)
    }

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
            from = (self.lock().hub)
                .network()
                .external_status(now_ns, link, LISTED_AT_ONCE, into);
            tokio::task::yield_now().await;
        }
        {
            let hub = &self.lock().hub;
            status.links_not_as_told = hub.report().checked_links(MAX_CHECKED_LINKS);
            status.hosts_not_as_told = hub.report().host_faults(MAX_CHECKED_LINKS);
        }
        from = Some(0);
        while let Some(link) = from {
            let into = &mut status.links_down;
            from = self
                .lock()
                .hub
                .report()
                .links_down(link, LISTED_AT_ONCE, into);
            tokio::task::yield_now().await;
        }
        status
    }
}
