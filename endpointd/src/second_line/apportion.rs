//! Rates of this host's flows from the shares of their receivers: the least of what its uplink and
//! the receiver leave each flow.

use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;

use super::receiver::water_level;
use super::sender::LeasedShare;

/// A flow as the second line sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowDemand {
    /// The receiving host.
    pub host: u32,
    /// Limit of what it can use, if there is one.
    pub demand_bps: Option<u64>,
}

/// Computes rate and expiry of each flow; `None` where its receiver's share does not hold. Max-min
/// within each share, then within the uplink (0: unknown, no limit). O(flows × log flows).
#[must_use]
pub fn flow_rates(
    flows: &[FlowDemand],
    uplink_bps: u64,
    share_of: impl Fn(u32) -> Option<LeasedShare>,
) -> Vec<Option<LeasedShare>> {
    let wanted = |flow: &FlowDemand| flow.demand_bps.unwrap_or(u64::MAX);
    let mut by_host: IndexMap<u32, Vec<u64>, FxBuildHasher> = IndexMap::default();
    for flow in flows {
        by_host.entry(flow.host).or_default().push(wanted(flow));
    }
    let levels: IndexMap<u32, LeasedShare, FxBuildHasher> = by_host
        .into_iter()
        .filter_map(|(host, demands)| {
            let share = share_of(host)?;
            let rate_bps = water_level(share.rate_bps, demands);
            Some((host, LeasedShare { rate_bps, ..share }))
        })
        .collect();
    let within_share = |flow: &FlowDemand| {
        let level = levels.get(&flow.host)?;
        Some(LeasedShare {
            // A flow below its limit has room to grow: only the level binds it.
            rate_bps: level.rate_bps,
            ..*level
        })
    };
    let capacity_bps = if uplink_bps == 0 {
        u64::MAX
    } else {
        uplink_bps
    };
    let demands = flows.iter().map(|flow| {
        // A flow without a share sends what it can get.
        within_share(flow).map_or(wanted(flow), |share| share.rate_bps.min(wanted(flow)))
    });
    let uplink_level_bps = water_level(capacity_bps, demands.collect());
    flows
        .iter()
        .map(|flow| {
            let share = within_share(flow)?;
            Some(LeasedShare {
                rate_bps: share.rate_bps.min(uplink_level_bps).max(1),
                ..share
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBPS: u64 = 1_000_000;

    fn flow(host: u32, demand_bps: Option<u64>) -> FlowDemand {
        FlowDemand { host, demand_bps }
    }

    fn rates(flows: &[FlowDemand], uplink_bps: u64, shares: &[(u32, u64)]) -> Vec<Option<u64>> {
        let share_of = |host| {
            let share = shares.iter().find(|(of, _)| *of == host)?;
            Some(LeasedShare {
                rate_bps: share.1,
                expires_ns: 9,
            })
        };
        flow_rates(flows, uplink_bps, share_of)
            .into_iter()
            .map(|rate| rate.map(|rate| rate.rate_bps))
            .collect()
    }

    #[test]
    fn flows_to_one_receiver_divide_its_share() {
        let flows = [flow(1, None), flow(1, None), flow(2, None)];
        let rates = rates(&flows, 0, &[(1, 10 * MBPS), (2, 7 * MBPS)]);
        assert_eq!(rates, [Some(5 * MBPS), Some(5 * MBPS), Some(7 * MBPS)]);
    }

    #[test]
    fn what_a_limited_flow_leaves_goes_to_the_others() {
        let flows = [flow(1, Some(MBPS)), flow(1, None)];
        let rates = rates(&flows, 0, &[(1, 10 * MBPS)]);
        assert_eq!(rates[1], Some(9 * MBPS));
    }

    #[test]
    fn the_uplink_binds_where_it_is_less_than_the_shares() {
        let flows = [flow(1, None), flow(2, None), flow(3, None)];
        let shares = [(1, 20 * MBPS), (2, 100 * MBPS), (3, 100 * MBPS)];
        let rates = rates(&flows, 100 * MBPS, &shares);
        assert_eq!(rates, [Some(20 * MBPS), Some(40 * MBPS), Some(40 * MBPS)]);
    }

    #[test]
    fn a_flow_whose_receiver_says_nothing_is_plain_tcp_and_has_its_place_in_the_uplink() {
        let flows = [flow(1, None), flow(2, None)];
        let rates = rates(&flows, 100 * MBPS, &[(1, 80 * MBPS)]);
        assert_eq!(rates, [Some(50 * MBPS), None]);
    }
}
