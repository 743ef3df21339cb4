//! Report status of flowlets: policy, destination, path and demand make the record for the
//! allocator.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use ratewright_proto::{FlowId, FlowPath, RateCode, StartRecord, WeightCode};
use ratewright_topology::ecmp::flow_hash;

use super::{FlowAction, FlowCounters, FlowTable, NetworkView};
use crate::backend::{FlowFacts, SlotIndex};
use crate::policy::cgroup::CgroupTree;
use crate::policy::{ClassRef, Policy, Treatment};

/// Smallest limit of a demand, in bit/s: less would encode as "none", which means no limit.
const SMALLEST_DEMAND_BPS: u64 = 2_000;

/// Knowledge that the allocator has of a flowlet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ReportStatus {
    /// Nothing yet: without a session, the destination's host is not known.
    Unresolved,
    /// The record that was sent last.
    Reported(StartRecord),
    /// Nothing, on purpose: the flow is plain TCP.
    Unmanaged(UnmanagedReason),
}

/// Reason for which a flow is unmanaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnmanagedReason {
    Bypassed,
    UnknownDestination,
    OwnHost,
    Refused,
}

impl FlowCounters {
    pub(super) fn count(&mut self, report_status: ReportStatus) {
        let counter = match report_status {
            ReportStatus::Unresolved => return,
            ReportStatus::Reported(_) => &mut self.reported,
            ReportStatus::Unmanaged(UnmanagedReason::Bypassed) => &mut self.bypassed,
            ReportStatus::Unmanaged(UnmanagedReason::UnknownDestination) => {
                &mut self.unknown_destination
            }
            ReportStatus::Unmanaged(UnmanagedReason::OwnHost) => &mut self.own_host,
            ReportStatus::Unmanaged(UnmanagedReason::Refused) => &mut self.refused,
        };
        *counter += 1;
    }
}

/// Derives the report status of a flow from policy, topology and demand.
pub(super) fn report_status(
    network: &NetworkView,
    treatment: &Treatment,
    id: FlowId,
    facts: &FlowFacts,
    measured_bps: Option<u64>,
) -> ReportStatus {
    if treatment.bypass {
        return ReportStatus::Unmanaged(UnmanagedReason::Bypassed);
    }
    let Some(dst_host) = network.destinations.host_of(facts.tuple.dst) else {
        return ReportStatus::Unmanaged(UnmanagedReason::UnknownDestination);
    };
    if dst_host == network.own_host {
        return ReportStatus::Unmanaged(UnmanagedReason::OwnHost);
    }
    let class = match &treatment.class {
        None => 0,
        Some(ClassRef::Id(id)) => *id,
        // The daemon warns of names that the allocator does not have when a session begins.
        Some(ClassRef::Name(name)) => network.class_id(name).unwrap_or(0),
    };
    // Of payload: an eighth more covers the headers, and leaves the application's own maximum in
    // force. 8 bits a byte and 9/8 are 9.
    let app_max_bps = facts.app_max_bytes_per_s.map(|rate| rate.saturating_mul(9));
    // Each of them caps the flow alone, so the least is the demand.
    let limit_bps = [treatment.max_rate_bps, app_max_bps, measured_bps]
        .into_iter()
        .flatten()
        .min();
    let demand = limit_bps.map_or(RateCode::NONE, |bps| {
        RateCode::encode(bps.max(SMALLEST_DEMAND_BPS))
    });
    // The allocator computes the flow's path from this hash, as the switches' ECMP does.
    let hash = flow_hash(network.ecmp_seed, network.ecmp_symmetric, &facts.tuple);
    ReportStatus::Reported(
        StartRecord::new(id, dst_host, FlowPath::Hash(hash))
            .with_class(class)
            .with_weight(
                treatment
                    .weight
                    .map_or(WeightCode::CLASS_DEFAULT, WeightCode::encode),
            )
            .with_demand(demand),
    )
}

impl FlowTable {
    /// Updates the report status of a slot's flowlet, and queues a record if it changed.
    pub(super) fn resolve(&mut self, slot: SlotIndex) {
        let entry = &mut self.entries[slot.0 as usize];
        let (Some(network), Some(connection)) = (&self.network, &mut entry.connection) else {
            return;
        };
        let Some(flowlet) = &mut connection.flowlet else {
            return;
        };
        let treatment = self.policy.decide(&connection.facts);
        if flowlet.report_status == ReportStatus::Unresolved {
            // Once for each flowlet, however often it is worked out again.
            self.policy.count(&treatment);
        }
        let report_status = report_status(
            network,
            &treatment,
            flowlet.id,
            &connection.facts,
            flowlet.measured_bps,
        );
        // Most events change nothing: a record that repeats the last one would only cost the
        // allocator time.
        if report_status == flowlet.report_status {
            return;
        }
        let was_reported = flowlet.is_reported();
        flowlet.report_status = report_status;
        self.counters.count(report_status);
        if let ReportStatus::Reported(start) = report_status {
            self.actions.push_back(FlowAction::Start(start));
        } else if was_reported {
            self.actions.push_back(FlowAction::End(flowlet.id));
            // The allocator forgets an ended id: a later report of this flowlet needs another one.
            entry.generation = entry.generation.wrapping_add(1);
            flowlet.id = FlowId::new(slot.0, entry.generation);
            if flowlet.rate.take().is_some() {
                self.rated -= 1;
                // Observed rates are in no back end, but its next backlog has to be a start.
                self.actions.push_back(FlowAction::Clear(connection.conn));
            }
        }
    }

    /// Returns the reported flows: id, destination's host and address, and the limit of its demand.
    pub fn reported_flows(
        &self,
    ) -> impl Iterator<Item = (FlowId, u32, IpAddr, Option<u64>)> + use<'_> {
        self.entries.iter().filter_map(|entry| {
            let connection = entry.connection.as_ref()?;
            let flowlet = connection.flowlet.as_ref()?;
            let ReportStatus::Reported(start) = flowlet.report_status else {
                return None;
            };
            let demand = start.demand();
            let demand_bps = (!demand.is_none()).then(|| demand.decode());
            let address = connection.facts.tuple.dst.to_canonical();
            Some((flowlet.id, start.dst_host(), address, demand_bps))
        })
    }

    /// Returns the address that the flow goes to.
    #[must_use]
    pub fn destination(&self, flow: FlowId) -> Option<IpAddr> {
        let connection = self
            .entries
            .get(flow.slot() as usize)?
            .connection
            .as_ref()?;
        Some(connection.facts.tuple.dst.to_canonical())
    }

    /// Handles a change of the application's own maximum: it bounds the demand at once.
    pub(super) fn on_own_max(&mut self, slot: SlotIndex, bytes_per_s: Option<u64>) {
        if let Some(connection) = &mut self.entries[slot.0 as usize].connection {
            connection.facts.app_max_bytes_per_s = bytes_per_s;
            self.resolve(slot);
        }
    }

    fn resolve_all(&mut self) {
        for slot in 0..u32::try_from(self.entries.len()).unwrap_or(u32::MAX) {
            self.resolve(SlotIndex(slot));
        }
    }

    /// Replaces the network; every flowlet's report status is derived again.
    pub fn set_network(&mut self, network: Arc<NetworkView>) {
        self.network = Some(network);
        self.resolve_all();
    }

    /// Replaces the policy; every flowlet's report status is derived again.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
        self.resolve_all();
    }

    /// Reads the ids of the policy's cgroups again; returns the paths that do not exist (yet).
    pub fn refresh_cgroups(&mut self, tree: &CgroupTree) -> Vec<PathBuf> {
        let missing = self.policy.refresh_cgroups(tree);
        self.resolve_all();
        missing
    }

    /// Handles a start that the full session table refused: the flowlet continues as plain TCP.
    pub fn start_refused(&mut self, flow: FlowId) {
        let Some(flowlet) = self.flowlet_mut(flow) else {
            return;
        };
        flowlet.report_status = ReportStatus::Unmanaged(UnmanagedReason::Refused);
        self.counters
            .count(ReportStatus::Unmanaged(UnmanagedReason::Refused));
    }
}
