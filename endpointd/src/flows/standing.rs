//! What the allocator should know of a flow: policy, destination, path and demand put together.

use std::path::PathBuf;
use std::sync::Arc;

use ratewright_proto::{FlowId, FlowPath, RateCode, StartRecord, WeightCode};
use ratewright_topology::ecmp::flow_hash;

use super::{FlowAction, FlowBook, FlowCounters, Network};
use crate::backend::{FlowFacts, Slot};
use crate::policy::cgroup::CgroupTree;
use crate::policy::{ClassRef, Policy, Treatment};

/// The smallest limit that a demand says: a code of "none" would mean that there is no limit.
const SMALLEST_DEMAND_BPS: u64 = 2_000;

/// What the allocator knows of a flowlet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Standing {
    /// Nothing: there was no session yet to tell which host the destination is.
    Unresolved,
    /// This.
    Reported(StartRecord),
    /// Nothing, and for a reason; the flow is plain TCP.
    LeftAlone(Reason),
}

/// Why a flow is left alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    Bypassed,
    UnknownDestination,
    OwnHost,
    Refused,
}

impl FlowCounters {
    pub(super) fn count(&mut self, standing: Standing) {
        let counter = match standing {
            Standing::Unresolved => return,
            Standing::Reported(_) => &mut self.reported,
            Standing::LeftAlone(Reason::Bypassed) => &mut self.bypassed,
            Standing::LeftAlone(Reason::UnknownDestination) => &mut self.unknown_destination,
            Standing::LeftAlone(Reason::OwnHost) => &mut self.own_host,
            Standing::LeftAlone(Reason::Refused) => &mut self.refused,
        };
        *counter += 1;
    }
}

/// Works out the standing of a flow.
pub(super) fn standing(
    network: &Network,
    treatment: &Treatment,
    id: FlowId,
    facts: &FlowFacts,
    measured_bps: Option<u64>,
) -> Standing {
    if treatment.bypass {
        return Standing::LeftAlone(Reason::Bypassed);
    }
    let Some(dst_host) = network.destinations.host_of(facts.tuple.dst) else {
        return Standing::LeftAlone(Reason::UnknownDestination);
    };
    if dst_host == network.own_host {
        return Standing::LeftAlone(Reason::OwnHost);
    }
    let class = match &treatment.class {
        None => 0,
        Some(ClassRef::Id(id)) => *id,
        // The daemon warns of names that the allocator does not have when a session begins.
        Some(ClassRef::Name(name)) => network.class_id(name).unwrap_or(0),
    };
    let app_max_bps = facts.app_max_bytes_per_s.map(|rate| rate.saturating_mul(8));
    let limit_bps = [treatment.max_rate_bps, app_max_bps, measured_bps]
        .into_iter()
        .flatten()
        .min();
    let demand = limit_bps.map_or(RateCode::NONE, |bps| {
        RateCode::encode(bps.max(SMALLEST_DEMAND_BPS))
    });
    let hash = flow_hash(network.ecmp_seed, network.ecmp_symmetric, &facts.tuple);
    Standing::Reported(
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

impl FlowBook {
    /// Works out what the allocator should know of a slot's flowlet, and says so if that is new.
    pub(super) fn resolve(&mut self, slot: Slot) {
        let entry = &mut self.entries[slot.0 as usize];
        let (Some(network), Some(record)) = (&self.network, &mut entry.record) else {
            return;
        };
        let Some(flowlet) = &mut record.flowlet else {
            return;
        };
        let treatment = self.policy.decide(&record.facts);
        if flowlet.standing == Standing::Unresolved {
            // Once for each flowlet, however often it is worked out again.
            self.policy.count(&treatment);
        }
        let standing = standing(
            network,
            &treatment,
            flowlet.id,
            &record.facts,
            flowlet.measured_bps,
        );
        if standing == flowlet.standing {
            return;
        }
        let was_reported = flowlet.is_reported();
        flowlet.standing = standing;
        self.counters.count(standing);
        if let Standing::Reported(start) = standing {
            self.actions.push_back(FlowAction::Start(start));
        } else if was_reported {
            self.actions.push_back(FlowAction::End(flowlet.id));
            // Should it be reported again, then as another flowlet: this one is over for the allocator.
            entry.generation = entry.generation.wrapping_add(1);
            flowlet.id = FlowId::new(slot.0, entry.generation);
            if flowlet.rate.take().is_some() {
                self.rated -= 1;
                self.actions.push_back(FlowAction::Clear(record.conn));
            }
        }
    }

    fn resolve_all(&mut self) {
        for slot in 0..u32::try_from(self.entries.len()).unwrap_or(u32::MAX) {
            self.resolve(Slot(slot));
        }
    }

    /// The network changed: every flowlet is worked out again.
    pub fn set_network(&mut self, network: Arc<Network>) {
        self.network = Some(network);
        self.resolve_all();
    }

    /// The policy changed: every flowlet is worked out again.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
        self.resolve_all();
    }

    /// Looks the policy's cgroups up again; returns the paths that do not exist (yet).
    pub fn refresh_cgroups(&mut self, tree: &CgroupTree) -> Vec<PathBuf> {
        let missing = self.policy.refresh_cgroups(tree);
        self.resolve_all();
        missing
    }

    /// The session's own table is full: the flowlet goes on as plain TCP.
    pub fn start_refused(&mut self, flow: FlowId) {
        let Some(flowlet) = self.flowlet_mut(flow) else {
            return;
        };
        flowlet.standing = Standing::LeftAlone(Reason::Refused);
        self.counters.count(Standing::LeftAlone(Reason::Refused));
    }
}
