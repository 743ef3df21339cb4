//! Counters of the flow table.

/// Counters since the start of the daemon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct FlowCounters {
    /// Flowlets that began.
    pub flowlets_started: u64,
    /// Flowlets that ended.
    pub flowlets_ended: u64,
    /// Pauses shorter than the gap: an end and a start that were not sent.
    pub gaps_bridged: u64,
    /// Connections that closed.
    pub closed: u64,
    /// Starts and changed parameters that were reported to the allocator.
    pub reported: u64,
    /// Unmanaged flowlets: bypassed by the policy.
    pub bypassed: u64,
    /// Unmanaged flowlets: the destination is no host of the topology.
    pub unknown_destination: u64,
    /// Unmanaged flowlets: the destination is this host itself.
    pub own_host: u64,
    /// Unmanaged flowlets: the session's flow slots were all in use.
    pub refused: u64,
    /// Events of a slot beyond the bound of the flow table.
    pub beyond_bound: u64,
    /// Events of a connection that is gone, or that never started.
    pub stale_events: u64,
    /// Rates that went to the back end.
    pub rates_applied: u64,
    /// Rates of a flowlet that had ended.
    pub rates_stale: u64,
    /// Rates whose lease had run out when they came.
    pub rates_expired: u64,
    /// Rates that were not applied because the kill switch was on.
    pub rates_withheld: u64,
    /// Rates that were only compared with what plain TCP achieves.
    pub rates_observed: u64,
    /// Renewals of the back end's leases.
    pub renewals: u64,
    /// Demands that were lowered to what a flow used.
    pub demands_lowered: u64,
    /// Demands that were raised because a flow met its limit.
    pub demands_raised: u64,
    /// Flowlets that were ended because nothing got through any more.
    pub stalled: u64,
    /// First paced transmissions that were seen.
    pub first_paced: u64,
}
