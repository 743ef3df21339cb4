//! Figures of the host's own links for operators. What the allocator is told of them is
//! [`AccessUseMeter`]'s.

use ratewright_proto::telemetry::AccessUseMeter;
use serde::{Deserialize, Serialize};

/// Figures for operators of what this host's links carry, and of what the allocator was told. Pairs
/// are of the links from and to the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessFigures {
    /// Capacities as the allocator was told, in bit/s; 0: not told. They are of the session's
    /// beginning, or of the newest reload of the topology.
    pub told_bps: [u64; 2],
    /// All that they carry by what the allocator was told, framing included, in bit/s; 0: not told.
    #[serde(default)]
    pub line_rate_bps: [u64; 2],
    /// Rates that the interface carried in the last second, in bit/s.
    pub carried_bps: [u64; 2],
    /// Speed that the interface tells, in bit/s; 0 if it tells none.
    pub speed_bps: u64,
    /// Hosts to which backlogged connections have met congestion for a second.
    pub congested_hosts: usize,
    /// Addresses at the other end that no host of the topology has.
    #[serde(default)]
    pub strangers: [u32; 2],
    /// UDP uses the link.
    #[serde(default)]
    pub udp: [bool; 2],
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
            line_rate_bps: [access.uplink_line_rate_bps, access.downlink_line_rate_bps],
            carried_bps: links.map(|link| link.carried_bps.unwrap_or(0)),
            speed_bps: present.uplink.speed_bps,
            strangers: links.map(|link| link.strangers),
            udp: links.map(|link| link.udp),
            congested_hosts: present.uplink.congested.len(),
            no_address: present.faults.no_address,
            other_congestion_control: present.faults.other_congestion_control,
            flows_beyond_table: present.faults.flows_beyond_table,
            in_prefixes_of: present.faults.in_prefixes_of.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use ratewright_proto::control::AccessCapacity;
    use ratewright_proto::telemetry::{AccessCounters, Moved, SendQueue, SenderName};

    use super::*;

    #[test]
    fn traffic_of_others_is_that_of_unknown_addresses_and_udp() {
        let mut meter = AccessUseMeter::default();
        let access = AccessCapacity::new(1_000_000_000, 1_000_000_000);
        let begin = AccessCounters::default();
        meter.look(1_000_000_000, Some(begin), access);
        // 12.5 MB are all that the link carries in 0.1 s.
        meter.add(&Moved {
            name: SenderName::Address([192, 0, 2, 9].into()),
            received_bytes: 6_000_000,
            acked_bytes: 0,
            queue: SendQueue::Idle,
        });
        let end = AccessCounters {
            tx_bytes: 12_000_000,
            udp_out: 8_000,
            ..begin
        };
        meter.look(1_100_000_000, Some(end), access);
        let figures = AccessFigures::of(&meter);
        assert_eq!(figures.strangers, [0, 1]);
        assert_eq!(figures.udp, [true, false]);
    }
}
