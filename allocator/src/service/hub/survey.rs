//! Survey of flows and links for operators, a slice per call, so that no lease waits for one.

use ratewright_proto::records::StartRecord;
use ratewright_topology::LinkId;

use super::report::{Report, link_name};
use super::session::Session;
use super::session_flows::Placement;
use super::{PacingOrder, flows};
use crate::engine::LinkLoad;
use crate::feeds::LinkTraffic;
use crate::service::status::{ExplainedFlow, FlowRow, HostView, LinkRow};

/// Place at which a survey of flows goes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SurveyPlace {
    /// Index in the list of sessions that the survey began with.
    pub session: usize,
    /// Slot in that session.
    pub slot: u32,
}

impl Report<'_> {
    /// Visits at most `max` slots of these sessions from `place` on. Returns the place to go on
    /// from, if there is more. Sessions that have ended are passed over.
    pub fn survey_flows(
        &self,
        ids: &[u32],
        place: SurveyPlace,
        max: u32,
        mut visit: impl FnMut(u64, &dyn Fn() -> FlowRow),
    ) -> Option<SurveyPlace> {
        let SurveyPlace {
            mut session,
            mut slot,
        } = place;
        let mut left = max;
        while left > 0 {
            let id = *ids.get(session)?;
            let slots = self
                .hub
                .sessions
                .get(id)
                .map_or(0, |session| session.proto.slots());
            let until = slots.min(slot.saturating_add(left));
            for slot in slot..until {
                let rate = self.rate_on(id, slot);
                if let Some((record, rate_bps)) = rate {
                    visit(rate_bps, &|| self.flow_row(id, &record, rate_bps));
                }
            }
            // A session without flows costs something, too.
            left = left.saturating_sub((until.saturating_sub(slot)).max(1));
            if until < slots {
                slot = until;
            } else {
                (session, slot) = (session + 1, 0);
            }
        }
        (session < ids.len()).then_some(SurveyPlace { session, slot })
    }

    /// Returns the flow on a slot and its newest rate.
    fn rate_on(&self, id: u32, slot: u32) -> Option<(StartRecord, u64)> {
        let session = self.hub.sessions.get(id)?;
        let (record, _) = session.flow(slot)?;
        Some((record, session.proto.rate_of(record.flow()).unwrap_or(0)))
    }

    fn flow_row(&self, id: u32, record: &StartRecord, rate_bps: u64) -> FlowRow {
        let (from, pacing) = self.hub.sessions.get(id).map_or_else(
            || (String::new(), PacingOrder::Pace),
            |session| {
                let name = session
                    .peer
                    .as_ref()
                    .map(|peer| peer.hello.host_name.clone());
                (name.unwrap_or_default(), session.conduct())
            },
        );
        FlowRow {
            from,
            to: self.hub.network.host_name(record.dst_host()),
            flow: record.flow().0,
            class: self.class_name(record.class()),
            weight: record.weight().decode(),
            demand_bps: reported_demand(record),
            rate_bps,
            pacing,
        }
    }

    fn class_name(&self, class: u8) -> String {
        let found = self
            .hub
            .settings
            .classes
            .iter()
            .find(|known| known.id == class);
        found.map_or_else(|| class.to_string(), |class| class.name.clone())
    }

    /// Returns the rows of these links, as the engine last measured them.
    pub fn link_rows(&self, loads: &[LinkLoad]) -> Vec<LinkRow> {
        loads.iter().map(|load| self.link_row(load)).collect()
    }

    fn link_row(&self, load: &LinkLoad) -> LinkRow {
        let link = LinkId(load.link);
        let external = self.hub.network.feeds.external().get(link);
        let feeds = self.hub.network.feeds_effect(link);
        let headroom = self.hub.network.headroom_of(link);
        LinkRow {
            name: link_name(&self.hub.network.topology, link),
            load_bps: load.load_bps,
            capacity_bps: load.capacity_bps / headroom,
            nominal_bps: self
                .hub
                .network
                .nominal_bps
                .get(link.index())
                .copied()
                .unwrap_or(0),
            utilization: load.utilization() * headroom,
            price: load.price,
            up: self.hub.network.topology.is_usable(link),
            external_load_bps: external.map_or(0, LinkTraffic::load_bps),
            external_granted_bps: external.map_or(0.0, |traffic| traffic.granted_bps),
            feeds: feeds.copied(),
            shared: self.shared_status(link),
            check: self.link_evidence(link),
        }
    }

    /// Returns a host as `/explain` shows it; `None` if the topology does not have it.
    pub fn host_view(&self, now_ns: u64, host: &str) -> Option<HostView> {
        let (topology, rollout) = (&self.hub.network.topology, &self.hub.settings.rollout);
        let number = topology.host_by_name(host)?;
        let (mut pacing, mut why) = self.hub.conduct.order_of(host, topology, rollout);
        let session = self
            .hub
            .session_of(host)
            .and_then(|id| self.hub.sessions.get(id));
        if pacing == PacingOrder::Pace && session.is_some_and(|session| session.observes) {
            (pacing, why) = (PacingOrder::Observe, "its daemon is configured to observe");
        }
        Some(HostView {
            host: host.to_owned(),
            connected: session.is_some(),
            pacing,
            why,
            release: session.map_or("no", |session| self.release_state(now_ns, session)),
            heard_ms_ago: session
                .map(|session| now_ns.saturating_sub(session.proto.last_heard_ns()) / 1_000_000),
            lease_ms: self.hub.settings.lease_ns / 1_000_000,
            faults: self.faults_of(number),
            links: self.access_links(number),
        })
    }

    /// Visits at most `max` slots of a host's session from `slot` on, and appends its flows to
    /// `to` to `into`, `most` of them at most. Returns the slot to go on from, if there is more,
    /// and counts all flows to `to` in `total`.
    #[allow(
        clippy::too_many_arguments,
        reason = "a slice of a survey, called in one place"
    )]
    pub fn explain_flows(
        &self,
        (from, to): (&str, &str),
        slot: u32,
        max: u32,
        loads: &[LinkLoad],
        most: usize,
        total: &mut u64,
        into: &mut Vec<ExplainedFlow>,
    ) -> Option<u32> {
        let id = self.hub.session_of(from)?;
        let to = self.hub.network.topology.host_by_name(to)?;
        let slots = self.hub.sessions.get(id)?.proto.slots();
        let until = slots.min(slot.saturating_add(max));
        for slot in slot..until {
            let Some((record, rate_bps)) = self.rate_on(id, slot) else {
                continue;
            };
            if record.dst_host() != to.0 {
                continue;
            }
            *total += 1;
            if into.len() < most {
                into.extend(self.explained(id, slot, &record, rate_bps, loads));
            }
        }
        (until < slots).then_some(until)
    }

    fn explained(
        &self,
        id: u32,
        slot: u32,
        record: &StartRecord,
        rate_bps: u64,
        loads: &[LinkLoad],
    ) -> Option<ExplainedFlow> {
        let session = self.hub.sessions.get(id)?;
        let (_, flow) = session.flow(slot)?;
        let class = self
            .hub
            .settings
            .classes
            .iter()
            .find(|known| known.id == record.class());
        let links: Vec<LinkRow> = session
            .flows
            .path(slot)
            .iter()
            .map(|&link| {
                let capacity_bps = self.hub.network.engine_capacity_bps(LinkId(link));
                let unmeasured = LinkLoad {
                    link,
                    capacity_bps,
                    ..LinkLoad::default()
                };
                self.link_row(loads.get(link as usize).unwrap_or(&unmeasured))
            })
            .collect();
        let unmanaged = match flow.placement {
            Placement::Allocated(_) => None,
            Placement::Unmanaged(reason) => Some(reason.reason()),
        };
        let is_ignored = class.is_some_and(|class| !class.measured_demand);
        let demand = self.demand_in_force(session, record, is_ignored);
        let class_cap_bps = class.and_then(|class| class.max_rate_bps);
        let limit = limit_of(rate_bps, &demand, class_cap_bps, unmanaged, &links);
        let mut row = self.flow_row(id, record, rate_bps);
        row.demand_bps = demand.bps.or(row.demand_bps);
        Some(ExplainedFlow {
            row,
            class_weight: class.map_or(1.0, |class| class.weight),
            class_cap_bps,
            demand: demand.why,
            unmanaged,
            limit,
            links,
        })
    }

    /// Returns the lesser of a flow's own demand, unless its class ignores it, and of the bound
    /// that credit puts on it.
    fn demand_in_force(&self, session: &Session, record: &StartRecord, is_ignored: bool) -> Demand {
        let own_bps = reported_demand(record).filter(|_| !is_ignored);
        let credit_bps = finite_bps(self.hub.credit_demand_bps(session, record.flow()));
        if credit_bps.is_some_and(|credit| own_bps.is_none_or(|own| credit < own)) {
            return Demand {
                bps: credit_bps,
                why: "limited: by its receiver's credit (feeds.credit)",
                limit: "its receiver's credit (feeds.credit)",
            };
        }
        Demand {
            bps: own_bps,
            why: match (is_ignored, own_bps) {
                (true, _) => "ignored: the class keeps its share, used or not",
                (false, None) => "unbounded: its rate holds it back",
                (false, Some(_)) => {
                    "limited: by measured use, policy or the application's own maximum"
                }
            },
            limit: "its demand",
        }
    }
}

/// Demand of a flow in force.
struct Demand {
    /// Demand in bit/s; `None` for an unbounded one.
    bps: Option<u64>,
    /// Reason for it.
    why: &'static str,
    /// Name of the bound that it puts on the rate.
    limit: &'static str,
}

/// Returns the demand that a host reported; `None` for an unbounded one.
fn reported_demand(record: &StartRecord) -> Option<u64> {
    finite_bps(flows::demand_bps(record))
}

/// Returns a demand in whole bit/s; `None` for an unbounded one.
fn finite_bps(demand_bps: f64) -> Option<u64> {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "demands are finite here, not negative, and below 2^53 bit/s"
    )]
    demand_bps.is_finite().then_some(demand_bps as u64)
}

/// Share of a bound from which on a rate counts as being at it: the notification threshold and the
/// coding of rates keep it below.
const AT_BOUND: f64 = 0.95;

/// Names what keeps a flow's rate from being higher.
#[allow(clippy::cast_precision_loss, reason = "rates are far below 2^53 bit/s")]
fn limit_of(
    rate_bps: u64,
    demand: &Demand,
    class_cap_bps: Option<u64>,
    unmanaged: Option<&'static str>,
    links: &[LinkRow],
) -> String {
    if let Some(reason) = unmanaged {
        return format!("unmanaged: {reason}");
    }
    let at =
        |bound: Option<u64>| bound.is_some_and(|bound| rate_bps as f64 >= AT_BOUND * bound as f64);
    if rate_bps == 0 {
        return "no rate yet".to_owned();
    }
    if at(class_cap_bps) {
        return "its class's max_rate_bps".to_owned();
    }
    if at(demand.bps) {
        return demand.limit.to_owned();
    }
    // At the optimum only full links have a price; without prices, the fullest link binds.
    let binding = links.iter().max_by(|a, b| {
        a.price
            .total_cmp(&b.price)
            .then(a.utilization.total_cmp(&b.utilization))
    });
    binding.map_or_else(
        || "nothing that is known".to_owned(),
        |link| format!("link {}", link.name),
    )
}
