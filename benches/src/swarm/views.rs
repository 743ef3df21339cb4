//! The end of a run: whether both ends know the same flows and rates.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use ratewright_allocator::service::status::HostFlows;
use ratewright_cli::admin::AdminClient;

/// Flows of a host as one end has them: destination and rate (0 for none) by flow number.
pub type FlowSnapshot = BTreeMap<u32, (u32, u64)>;

/// The allocator's view of hosts, by their names; empty where it has no session.
///
/// # Errors
/// When it does not answer.
pub fn of_allocator(admin: &str, names: &[String]) -> Result<Vec<FlowSnapshot>> {
    // One connection for thousands of questions.
    let mut client = AdminClient::connect(admin)?;
    let view_of = |name: &String| {
        let (status, body) = client.get(&format!("/flows?host={name}"))?;
        // A host without a session has no flows at the allocator.
        if status == 404 {
            return Ok(FlowSnapshot::new());
        }
        let flows: HostFlows = serde_json::from_str(&body)
            .with_context(|| format!("the allocator's answer for {name}"))?;
        Ok(flows
            .flows
            .iter()
            .map(|flow| (flow.flow, (flow.dst_host, flow.rate_bps)))
            .collect())
    };
    names.iter().map(view_of).collect()
}

/// Flows that one end does not know, or knows otherwise.
#[must_use]
pub fn differences(one: &FlowSnapshot, other: &FlowSnapshot) -> u64 {
    let missing = one.keys().filter(|&flow| !other.contains_key(flow)).count();
    let others = other
        .iter()
        .filter(|&(flow, state)| one.get(flow) != Some(state));
    (missing + others.count()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_that_either_end_misses_or_knows_otherwise_counts_once() {
        let view = |flows: &[(u32, (u32, u64))]| flows.iter().copied().collect::<FlowSnapshot>();
        let one = view(&[(1, (5, 100)), (2, (5, 100)), (3, (5, 0))]);
        assert_eq!(differences(&one, &one), 0);
        assert_eq!(differences(&one, &view(&[(1, (5, 100)), (2, (5, 100))])), 1);
        assert_eq!(differences(&view(&[]), &one), 3);
        let other_rate = view(&[(1, (5, 101)), (2, (6, 100)), (3, (5, 0))]);
        assert_eq!(differences(&one, &other_rate), 2);
    }
}
