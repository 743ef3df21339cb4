//! Figures of the host's own links for operators. What the allocator is told of them is
//! [`AccessUseMeter`]'s.

use ratewright_proto::telemetry::AccessUseMeter;
use serde::{Deserialize, Serialize};

/// Figures for operators of what this host's links carry, and of what the allocator was told. Pairs
/// are of the links from and to the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessFigures {
    /// Capacities as the allocator was told, in bit/s; 0: not told.
    pub told_bps: [u64; 2],
    /// Rates that the interface carried in the last second, in bit/s.
    pub carried_bps: [u64; 2],
    /// Speed that the interface tells, in bit/s; 0 if it tells none.
    pub speed_bps: u64,
    /// Hosts to which backlogged connections have met congestion for a second.
    pub congested_hosts: usize,
    /// No interface has an address that belongs to this host.
    pub no_address: bool,
    /// The default congestion control is not the one that the daemon found at its start.
    pub other_congestion_control: bool,
    /// Connections that could use a rate have none, because the table is full.
    #[serde(default)]
    pub flows_beyond_table: bool,
    /// Other hosts of the topology in whose prefixes an address of this host is.
    #[serde(default)]
    pub in_prefixes_of: usize,
}

impl AccessFigures {
    /// Returns the figures of a meter.
    #[must_use]
    pub fn of(meter: &AccessUseMeter) -> Self {
        let (present, access) = (meter.present(), meter.access());
        let links = [&present.uplink, &present.downlink];
        Self {
            told_bps: [access.uplink_bps, access.downlink_bps],
            carried_bps: links.map(|link| link.carried_bps.unwrap_or(0)),
            speed_bps: present.uplink.speed_bps,
            congested_hosts: present.uplink.congested.len(),
            no_address: present.faults.no_address,
            other_congestion_control: present.faults.other_congestion_control,
            flows_beyond_table: present.faults.flows_beyond_table,
            in_prefixes_of: present.faults.in_prefixes_of.len(),
        }
    }
}
