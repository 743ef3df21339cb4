//! The page's view of the service core.

use super::super::core_handle::CoreHandle;
use super::ServiceCore;
use crate::service::clock;
use crate::service::hub::LinkSurvey;
use crate::service::overview::{HistoryPoint, LinkFlows, MAX_FLOWS, MAX_NAMES, Overview, Refused};
use crate::service::status::{Reasons, ServiceCounts};

/// Slots of flow tables that a survey visits at once.
const SLOTS_AT_ONCE: u32 = 512;

/// Links that are looked at at once.
const LINKS_AT_ONCE: usize = 1_024;

/// Returns the figures that the page draws over time. Visits neither sessions nor links.
pub(in crate::service::runtime) fn history_point(core: &ServiceCore, now_ns: u64) -> HistoryPoint {
    let status = core.hub.report().status(&core.engine.stats());
    HistoryPoint {
        at_ms: now_ns / 1_000_000,
        gap: status.optimality.relative_gap,
        max_link_load: status.optimality.max_link_load,
        flows: status.flows,
        starts: core.hub.counts().starts,
        iteration_p99_us: status.iteration.p99_us,
    }
}

/// Returns what is known without visiting flows, links or sessions.
fn head(core: &ServiceCore, rejections: &Reasons) -> Overview {
    let snapshot = core.snapshot(rejections);
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

/// Visits all flows, in slices, so that no host waits long.
async fn survey(core: &CoreHandle, top: usize, over: Option<u32>) -> LinkSurvey {
    let begin = core.call(move |core, _| LinkSurvey::begin(&core.hub, top, over));
    let (mut survey, mut more) = (begin.await, true);
    while more {
        let slice = core.call(move |core, _| {
            let more = survey.advance(&core.hub, SLOTS_AT_ONCE);
            (survey, more)
        });
        (survey, more) = slice.await;
    }
    survey
}

/// Returns what the page shows.
pub(in crate::service::runtime) async fn overview(
    core: &CoreHandle,
    rejections: Reasons,
) -> Overview {
    let survey = survey(core, MAX_FLOWS, None).await;
    let head = core.call(move |core, now_ns| {
        let mut overview = head(core, &rejections);
        let (network, report) = (core.hub.network(), core.hub.report());
        survey.fill_overview(network, &mut overview);
        network.external_status(now_ns, 0, MAX_NAMES, &mut overview.external);
        overview.not_as_told = report.checked_links(MAX_NAMES);
        overview.faults = report.host_faults(MAX_NAMES);
        overview
    });
    let mut overview = head.await;
    let mut from = Some(0);
    // Most networks have none: all links are looked at then, in slices.
    while let Some(link) =
        from.filter(|_| overview.links_down > 0 && overview.links_down_names.len() < MAX_NAMES)
    {
        let slice = core.call(move |core, _| {
            let names = &mut overview.links_down_names;
            let from = core.hub.report().links_down(link, LINKS_AT_ONCE, names);
            (from, overview)
        });
        (from, overview) = slice.await;
    }
    overview.links_down_names.truncate(MAX_NAMES);
    overview
}

/// Returns a link with its largest flows; `None` if there is no such link.
pub(in crate::service::runtime) async fn link_flows(
    core: &CoreHandle,
    link: u32,
) -> Option<LinkFlows> {
    let survey = survey(core, MAX_FLOWS, Some(link)).await;
    let view = core.call(move |core, _| {
        Some(LinkFlows {
            link: survey.link_view(core.hub.network(), link)?,
            top_flows: survey.largest_flows(core.hub.topology()),
        })
    });
    view.await
}
