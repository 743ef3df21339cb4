//! The page's view of the service core.

use super::{ServiceCore, SharedCore};
use crate::service::clock;
use crate::service::hub::LinkSurvey;
use crate::service::overview::{HistoryPoint, LinkFlows, MAX_FLOWS, MAX_NAMES, Overview, Refused};
use crate::service::status::{Reasons, ServiceCounts};

/// Slots of flow tables that a survey visits while it holds the lock.
const SLOTS_AT_ONCE: u32 = 512;

/// Links that are looked at while the lock is held.
const LINKS_AT_ONCE: usize = 1_024;

impl ServiceCore {
    /// Returns the figures that the page draws over time. Visits neither sessions nor links.
    pub(in crate::service::runtime) fn history_point(&self, now_ns: u64) -> HistoryPoint {
        let status = self.hub.report().status(&self.engine.stats());
        HistoryPoint {
            at_ms: now_ns / 1_000_000,
            gap: status.optimality.relative_gap,
            max_link_load: status.optimality.max_link_load,
            flows: status.flows,
            starts: self.hub.counts().starts,
            iteration_p99_us: status.iteration.p99_us,
        }
    }

    /// Returns what is known without visiting flows, links or sessions.
    fn overview_head(&self) -> Overview {
        let snapshot = self.snapshot();
        let (status, counts) = (snapshot.status, snapshot.counts);
        Overview {
            at_ms: clock::now_ns() / 1_000_000,
            version: status.version,
            epoch: status.epoch.to_string(),
            topology_epoch: status.topology_epoch,
            released: status.released,
            lease_ms: status.lease_ms,
            hosts: status.hosts,
            sessions: snapshot.totals.sessions,
            flows: status.flows,
            flows_left_alone: status.flows_left_alone,
            iteration: status.iteration,
            optimality: status.optimality,
            first_rate_buckets: snapshot.first_rates.buckets,
            iteration_buckets: snapshot.engine.iterations.buckets,
            totals: vec![
                ("starts", counts.starts),
                ("ends", counts.ends),
                ("rate updates", counts.updates),
                ("datagrams received", counts.datagrams_received),
                ("datagrams sent", counts.datagrams_sent),
            ],
            refusals: refusals(&counts),
            links_down: snapshot.totals.links_down,
            external_links: snapshot.totals.external,
            links_not_as_told: status.links_not_as_told_total,
            hosts_not_as_told: status.hosts_not_as_told_total,
            ..Overview::default()
        }
    }
}

/// Returns the counts of what was refused, lost or left alone, the largest first.
fn refusals(counts: &ServiceCounts) -> Vec<Refused> {
    let of = |what: &'static str, reasons: &Reasons| -> Vec<Refused> {
        let all = reasons.iter();
        all.map(|(reason, count)| Refused {
            what,
            reason,
            count,
        })
        .collect()
    };
    let mut all = [
        of("session refused", &counts.sessions_refused),
        of("session closed", &counts.sessions_closed),
        of("connection rejected", &counts.connections_rejected),
        of("flow left alone", &counts.flows_unmanaged),
        of("datagram dropped", &counts.datagrams_dropped),
        of("control error", &counts.control_errors),
    ]
    .concat();
    all.sort_by_key(|refused| std::cmp::Reverse(refused.count));
    all
}

impl SharedCore {
    /// Visits all flows, in slices, so that no thread waits long for the lock.
    async fn survey(&self, top: usize, over: Option<u32>) -> LinkSurvey {
        let mut survey = LinkSurvey::begin(&self.lock().hub, top, over);
        while survey.advance(&self.lock().hub, SLOTS_AT_ONCE) {
            tokio::task::yield_now().await;
        }
        survey
    }

    /// Returns what the page shows.
    pub(in crate::service::runtime) async fn overview(&self) -> Overview {
        let survey = self.survey(MAX_FLOWS, None).await;
        let mut overview = self.lock().overview_head();
        {
            let hub = &self.lock().hub;
            survey.fill_overview(hub.network(), &mut overview);
            let into = &mut overview.external;
            (hub.network()).external_status(clock::now_ns(), 0, MAX_NAMES, into);
            overview.not_as_told = hub.report().checked_links(MAX_NAMES);
            overview.faults = hub.report().host_faults(MAX_NAMES);
        }
        let (names, mut from) = (&mut overview.links_down_names, Some(0));
        // Most networks have none: all links are looked at then, in slices.
        while let Some(link) = from.filter(|_| overview.links_down > 0 && names.len() < MAX_NAMES) {
            from = self
                .lock()
                .hub
                .report()
                .links_down(link, LINKS_AT_ONCE, names);
            tokio::task::yield_now().await;
        }
        names.truncate(MAX_NAMES);
        overview
    }

    /// Returns a link with its largest flows; `None` if there is no such link.
    pub(in crate::service::runtime) async fn link_flows(&self, link: u32) -> Option<LinkFlows> {
        let survey = self.survey(MAX_FLOWS, Some(link)).await;
        let core = self.lock();
        Some(LinkFlows {
            link: survey.link_view(core.hub.network(), link)?,
            top_flows: survey.largest_flows(core.hub.topology()),
        })
    }
}
