//! Settings of the hub.

use ratewright_proto::server::ServerConfig;

use crate::feeds::FeedsConfig;
use crate::service::config::{ClassConfig, Limits, MembershipConfig, Rollout, Trust};

/// Settings of the hub, given at start and at every reload.
#[derive(Debug, Clone, PartialEq)]
pub struct HubSettings {
    /// This incarnation of the allocator.
    pub epoch: u64,
    /// Lease: lifetime of a rate after the newest datagram from the allocator.
    pub lease_ns: u64,
    /// Minimum time between two datagrams of later rates to one host.
    pub update_interval_ns: u64,
    /// Maximum delay of an acknowledgement on which no sender waits.
    pub ack_delay_ns: u64,
    /// Liveness time-out of hosts: time without a datagram after which a daemon gives its session
    /// up. The hub ends a session after a multiple of that, but a new one may replace it before.
    pub liveness_ns: u64,
    /// Relative change of a rate below which no update is sent.
    pub threshold: f64,
    /// Maximum share of a link's capacity that reports of external traffic may take.
    pub external_share: f64,
    /// Settings of the feeds.
    pub feeds: FeedsConfig,
    /// Bounds on the state that peers can create.
    pub limits: Limits,
    /// Hosts that may have a session.
    pub trust: Trust,
    /// Hosts that may join at run time.
    pub membership: MembershipConfig,
    /// Hosts that pace.
    pub rollout: Rollout,
    /// Flow classes.
    pub classes: Vec<ClassConfig>,
    /// Timers of sessions.
    pub timers: SessionTimers,
}

/// Timers of sessions that no configuration names: hosts and allocator of every deployment have
/// the same. A simulation of others' parameters has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionTimers {
    /// Multiple of the liveness time-out after which the hub ends a session.
    pub liveness_factor: u64,
    /// Maximum of unacknowledged datagrams at which a host is still sent later rates.
    pub updates_in_flight: usize,
    /// Floor of the retransmission time-out.
    pub min_rto_ns: u64,
    /// Retransmission time-out before the first round trip is measured.
    pub initial_rto_ns: u64,
    /// Ceiling of the retransmission time-out, back-off included.
    pub max_rto_ns: u64,
}

impl Default for SessionTimers {
    fn default() -> Self {
        let ServerConfig {
            liveness_factor,
            min_rto_ns,
            initial_rto_ns,
            max_rto_ns,
            ..
        } = ServerConfig::default();
        Self {
            liveness_factor,
            updates_in_flight: 2,
            min_rto_ns,
            initial_rto_ns,
            max_rto_ns,
        }
    }
}
