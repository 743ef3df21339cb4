//! What the allocator should know of a flow: policy, destination, path and demand put together.

use ratewright_proto::{FlowId, FlowPath, RateCode, StartRecord, WeightCode};
use ratewright_topology::ecmp::flow_hash;

use super::{FlowCounters, Network};
use crate::backend::FlowFacts;
use crate::policy::{ClassRef, Policy};

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
pub(super) fn standing(network: &Network, policy: &mut Policy, id: FlowId, facts: &FlowFacts) -> Standing {
    let treatment = policy.decide(facts);
    if treatment.bypass {
        return Standing::LeftAlone(Reason::Bypassed);
    }
    let Some(dst_host) = network.destinations.host_of(facts.tuple.dst) else {
        return Standing::LeftAlone(Reason::UnknownDestination);
    };
    if dst_host == network.own_host {
        return Standing::LeftAlone(Reason::OwnHost);
    }
    let class = match treatment.class {
        None => 0,
        Some(ClassRef::Id(id)) => id,
        // The daemon warns of names that the allocator does not have when a session begins.
        Some(ClassRef::Name(name)) => network.class_id(&name).unwrap_or(0),
    };
    let app_max_bps = facts.app_max_bytes_per_s.map(|rate| rate.saturating_mul(8));
    let limit_bps = [treatment.max_rate_bps, app_max_bps].into_iter().flatten().min();
    let demand = limit_bps.map_or(RateCode::NONE, |bps| RateCode::encode(bps.max(SMALLEST_DEMAND_BPS)));
    let hash = flow_hash(network.ecmp_seed, network.ecmp_symmetric, &facts.tuple);
    Standing::Reported(
        StartRecord::new(id, dst_host, FlowPath::Hash(hash))
            .with_class(class)
            .with_weight(treatment.weight.map_or(WeightCode::CLASS_DEFAULT, WeightCode::encode))
            .with_demand(demand),
    )
}
