//! Figures of the service core for `/status` and `/metrics`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use indexmap::IndexMap;
use ratewright_proto::sealed::SealedCounters;

use super::super::core_handle::CoreHandle;
use super::session_transport::{Route, SessionTransport};
use super::{PortState, ServiceCore};
use crate::engine::driver::fullest_links;
use crate::service::hub::{SurveyPlace, TransportFacts, UnknownHost};
use crate::service::status::{
    EngineFigures, Explanation, FlowRow, Links, MAX_CHECKED_LINKS, Reasons, SessionStatus,
    Snapshot, Status, TopFlows,
};

/// Sessions or links that `/status` lists at once.
const LISTED_AT_ONCE: usize = 256;

impl ServiceCore {
    /// Sums the counters of all ports' threads.
    fn sealed_counters(&self) -> SealedCounters {
        let mut total = SealedCounters::default();
        for queue in &self.ports {
            total.add(&queue.counters);
        }
        total
    }

    /// Sums the counters of all ports.
    fn port_counters(&self) -> Vec<(&'static str, u64)> {
        let mut total: IndexMap<&'static str, u64> = IndexMap::new();
        for &(name, count) in self.ports.iter().flat_map(|queue| &queue.port_counters) {
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

    /// Returns counts and figures for `/metrics` and the head of `/status`, with what the service
    /// thread rejected. Visits no session.
    pub(in crate::service::runtime) fn snapshot(&self, rejections: &Reasons) -> Snapshot {
        let stats = self.engine.stats();
        let histogram = self.engine.histogram();
        let mut status = self.hub.report().status(&stats);
        let lost = self.ports.iter();
        let lost = lost.filter(|queue| queue.state == PortState::Lost);
        status.sealed_ports_lost = lost.count() as u64;
        status.pinned_core = self.engine.pinned_core();
        status.iteration.count = histogram.count();
        let (events, events_refused) = self.engine.event_totals();
        let mut counts = self.hub.counts().clone();
        for (reason, count) in rejections.iter() {
            counts.connections_rejected.add(reason, count);
        }
        Snapshot {
            status,
            totals: self.hub.report().totals(),
            counts,
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

    /// Returns the entries of these sessions in `/status`.
    fn session_statuses(&self, now_ns: u64, ids: &[u32]) -> Vec<SessionStatus> {
        let entry = |&id: &u32| {
            let facts = |id| {
                let transport = self.transports.get(id);
                transport.map_or_else(TransportFacts::default, |transport| self.facts(transport))
            };
            self.hub.report().session_status(now_ns, id, facts)
        };
        ids.iter().filter_map(entry).collect()
    }
}

/// Slots that a survey of flows visits at once.
const SLOTS_AT_ONCE: u32 = 1_024;

/// Flows that `/explain` lists; it counts the others.
const EXPLAINED_FLOWS: usize = 64;

/// The fastest flows so far, while all flows are visited.
struct FastestFlows {
    top: TopFlows,
    /// The slowest of the fastest is at the top of the heap, for its replacement.
    fastest: BinaryHeap<Reverse<(u64, usize)>>,
    most: usize,
}

impl FastestFlows {
    fn visit(&mut self, rate_bps: u64, row: &dyn Fn() -> FlowRow) {
        self.top.flows_total += 1;
        if self.fastest.len() < self.most {
            self.fastest.push(Reverse((rate_bps, self.top.flows.len())));
            self.top.flows.push(row());
        } else if let Some(mut slowest) = self.fastest.peek_mut()
            && slowest.0.0 < rate_bps
        {
            self.top.flows[slowest.0.1] = row();
            slowest.0.0 = rate_bps;
        }
    }
}

impl CoreHandle {
    /// Returns the fastest flows. Visits all flows in slices; flows that come or go meanwhile may
    /// be missing.
    pub(in crate::service::runtime) async fn top_flows(&self, most: usize) -> TopFlows {
        let ids: Arc<[u32]> = self.call(|core, _| core.hub.session_ids().into()).await;
        let mut fastest = FastestFlows {
            top: TopFlows::default(),
            fastest: BinaryHeap::new(),
            most,
        };
        let mut place = Some(SurveyPlace::default());
        while let Some(from) = place {
            let ids = Arc::clone(&ids);
            let slice = self.call(move |core, _| {
                let visit = |rate_bps: u64, row: &dyn Fn() -> FlowRow| fastest.visit(rate_bps, row);
                let place = (core.hub.report()).survey_flows(&ids, from, SLOTS_AT_ONCE, visit);
                (place, fastest)
            });
            (place, fastest) = slice.await;
        }
        let mut top = fastest.top;
        top.flows.sort_by(|a, b| {
            (b.rate_bps.cmp(&a.rate_bps)).then_with(|| (&a.from, a.flow).cmp(&(&b.from, b.flow)))
        });
        top
    }

    /// Returns the fullest links, as of the engine's last scan.
    pub(in crate::service::runtime) async fn links(&self, most: usize) -> Links {
        let stats = self.call(|core, _| core.engine.stats()).await;
        let mut links = Links {
            links_total: stats.links.len() as u64,
            links: Vec::new(),
        };
        for some in fullest_links(&stats.links, most).chunks(LISTED_AT_ONCE) {
            let some = some.to_vec();
            let rows = self.call(move |core, _| core.hub.report().link_rows(&some));
            links.links.extend(rows.await);
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
        let hosts: Arc<(String, String)> = Arc::new((from.to_owned(), to.to_owned()));
        let asked = Arc::clone(&hosts);
        let views = self.call(move |core, now_ns| {
            let view = |host: &str| {
                let view = core.hub.report().host_view(now_ns, host);
                view.ok_or_else(|| UnknownHost(host.to_owned()))
            };
            Ok((view(&asked.0)?, view(&asked.1)?, core.engine.stats()))
        });
        let (from, to, stats) = views.await?;
        let mut explanation = Box::new(Explanation {
            from,
            to,
            flows_total: 0,
            flows: Vec::new(),
        });
        let mut slot = Some(0);
        while let Some(first) = slot {
            let (hosts, stats) = (Arc::clone(&hosts), Arc::clone(&stats));
            let slice = self.call(move |core, _| {
                let Explanation {
                    flows_total, flows, ..
                } = &mut *explanation;
                let slot = core.hub.report().explain_flows(
                    (&hosts.0, &hosts.1),
                    first,
                    SLOTS_AT_ONCE,
                    &stats.links,
                    EXPLAINED_FLOWS,
                    flows_total,
                    flows,
                );
                (slot, explanation)
            });
            (slot, explanation) = slice.await;
        }
        Ok(explanation)
    }

    /// Returns the body of `/status`. Its lists are built in slices, so that no host waits long.
    pub(in crate::service::runtime) async fn status(&self, rejections: Reasons) -> Status {
        let head =
            self.call(move |core, _| (core.snapshot(&rejections).status, core.hub.session_ids()));
        let (mut status, ids) = head.await;
        for some in ids.chunks(LISTED_AT_ONCE) {
            let some = some.to_vec();
            let slice = self.call(move |core, now_ns| core.session_statuses(now_ns, &some));
            status.sessions.extend(slice.await);
        }
        status.sessions.sort_by(|a, b| a.host.cmp(&b.host));
        let mut from = Some(0);
        while let Some(link) = from {
            let slice = self.call(move |core, now_ns| {
                let network = core.hub.network();
                let into = &mut status.external;
                let from = network.external_status(now_ns, link, LISTED_AT_ONCE, into);
                (from, status)
            });
            (from, status) = slice.await;
        }
        let mut from = Some(0);
        while let Some(link) = from {
            let slice = self.call(move |core, _| {
                let report = core.hub.report();
                if link == 0 {
                    status.links_not_as_told = report.checked_links(MAX_CHECKED_LINKS);
                    status.hosts_not_as_told = report.host_faults(MAX_CHECKED_LINKS);
                }
                let from = report.links_down(link, LISTED_AT_ONCE, &mut status.links_down);
                (from, status)
            });
            (from, status) = slice.await;
        }
        status
    }
}
