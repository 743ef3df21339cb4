//! Users of a host's own links: the state from which the allocator finds links that it shares with
//! traffic which nobody paces.

use std::net::IpAddr;

use super::check;
use crate::error::SessionError;
use crate::wire;

/// Maximum number of hosts that one [`LinkUse`] names.
pub const MAX_USERS: usize = 256;

/// Maximum number of hosts in [`LinkUse::congested`].
pub const MAX_CONGESTED: usize = 64;

/// Maximum number of hosts in [`HostFaults::in_prefixes_of`].
pub const MAX_IN_PREFIXES_OF: usize = 16;

/// Users of a host's own links, as far as the host sees them. It stands until the host tells
/// another or its session ends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessUse {
    /// The host is configured to observe: it paces none of its flows.
    pub observes: bool,
    /// Receivers beyond the link from the host.
    pub uplink: LinkUse,
    /// Senders beyond the link to the host.
    pub downlink: LinkUse,
    /// Faults of the host itself.
    pub faults: HostFaults,
}

/// Faults of a host that its daemon finds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostFaults {
    /// No interface has an address that belongs to the host.
    pub no_address: bool,
    /// The default congestion control is not the one that the daemon found at its start.
    pub other_congestion_control: bool,
    /// Connections that could use a rate have none, because the daemon's table is full.
    pub flows_beyond_table: bool,
    /// Other hosts of the topology in whose prefixes an address of this host is.
    pub in_prefixes_of: Vec<u32>,
}

/// Users of one link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkUse {
    /// Hosts of the topology at the other end.
    pub hosts: Vec<u32>,
    /// Addresses at the other end that no host of the topology has.
    pub strangers: u32,
    /// One of them.
    pub stranger: Option<IpAddr>,
    /// UDP uses the link.
    pub udp: bool,
    /// Rate of all that the interface carried over the link in the last second, Ethernet headers
    /// included, in bit/s; `None` before the first second.
    pub carried_bps: Option<u64>,
    /// Speed of the interface in that direction, in bit/s; 0 if it tells none.
    pub speed_bps: u64,
    /// Hosts of the topology to which backlogged connections have met congestion for a second:
    /// their packets queue, are lost or marked. Only of the link from the host.
    pub congested: Vec<u32>,
    /// Number of hosts to which backlogged connections meet none, likewise.
    pub uncongested: u32,
    /// The interface counts packets of the last second that an allowance below its bandwidth, such
    /// as a virtual machine's, has held up in that direction.
    pub held_up: bool,
}

impl LinkUse {
    /// Returns true if it names the same users of the link as `other`.
    #[must_use]
    pub fn has_the_users_of(&self, other: &Self) -> bool {
        (&self.hosts, self.strangers, self.stranger, self.udp)
            == (&other.hosts, other.strangers, other.stranger, other.udp)
    }
}

impl AccessUse {
    pub(super) fn validate(&self) -> Result<(), SessionError> {
        for link in [&self.uplink, &self.downlink] {
            check(link.hosts.len() <= MAX_USERS, "LinkUse.hosts", || {
                format!("{} hosts; the bound is {MAX_USERS}", link.hosts.len())
            })?;
            check(
                link.stranger.is_none() || link.strangers > 0,
                "LinkUse.strangers",
                || "none, but one is named".to_owned(),
            )?;
            let congested = link.congested.len();
            check(congested <= MAX_CONGESTED, "LinkUse.congested", || {
                format!("{congested} hosts; the bound is {MAX_CONGESTED}")
            })?;
        }
        let others = self.faults.in_prefixes_of.len();
        check(
            others <= MAX_IN_PREFIXES_OF,
            "HostFaults.in_prefixes_of",
            || format!("{others} hosts; the bound is {MAX_IN_PREFIXES_OF}"),
        )
    }
}

impl TryFrom<wire::AccessUse> for AccessUse {
    type Error = SessionError;

    fn try_from(wire: wire::AccessUse) -> Result<Self, SessionError> {
        Ok(Self {
            observes: wire.observes,
            uplink: wire.uplink.unwrap_or_default().try_into()?,
            downlink: wire.downlink.unwrap_or_default().try_into()?,
            faults: wire.faults.unwrap_or_default().into(),
        })
    }
}

impl TryFrom<wire::LinkUse> for LinkUse {
    type Error = SessionError;

    fn try_from(wire: wire::LinkUse) -> Result<Self, SessionError> {
        Ok(Self {
            hosts: wire.hosts,
            strangers: wire.strangers,
            stranger: address(&wire.stranger)?,
            udp: wire.udp,
            carried_bps: wire.carried_bps,
            speed_bps: wire.speed_bps,
            congested: wire.congested,
            uncongested: wire.uncongested,
            held_up: wire.held_up,
        })
    }
}

fn address(bytes: &[u8]) -> Result<Option<IpAddr>, SessionError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .map(Some)
        .map_err(|_| SessionError::Invalid {
            field: "LinkUse.stranger",
            problem: format!("{} bytes are no address", bytes.len()),
        })
}

impl From<&AccessUse> for wire::AccessUse {
    fn from(access_use: &AccessUse) -> Self {
        Self {
            observes: access_use.observes,
            uplink: Some((&access_use.uplink).into()),
            downlink: Some((&access_use.downlink).into()),
            faults: (access_use.faults != HostFaults::default())
                .then(|| access_use.faults.clone().into()),
        }
    }
}

impl From<wire::HostFaults> for HostFaults {
    fn from(wire: wire::HostFaults) -> Self {
        Self {
            no_address: wire.no_address,
            other_congestion_control: wire.other_congestion_control,
            flows_beyond_table: wire.flows_beyond_table,
            in_prefixes_of: wire.in_prefixes_of,
        }
    }
}

impl From<HostFaults> for wire::HostFaults {
    fn from(faults: HostFaults) -> Self {
        Self {
            no_address: faults.no_address,
            other_congestion_control: faults.other_congestion_control,
            flows_beyond_table: faults.flows_beyond_table,
            in_prefixes_of: faults.in_prefixes_of,
        }
    }
}

impl From<&LinkUse> for wire::LinkUse {
    fn from(link: &LinkUse) -> Self {
        Self {
            hosts: link.hosts.clone(),
            strangers: link.strangers,
            stranger: match link.stranger {
                None => Vec::new(),
                Some(IpAddr::V4(address)) => address.octets().to_vec(),
                Some(IpAddr::V6(address)) => address.octets().to_vec(),
            },
            udp: link.udp,
            carried_bps: link.carried_bps,
            speed_bps: link.speed_bps,
            congested: link.congested.clone(),
            uncongested: link.uncongested,
            held_up: link.held_up,
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::control::ControlMessage;
    use crate::telemetry::Telemetry;

    fn told(access_use: AccessUse) -> Telemetry {
        Telemetry {
            access_use: Some(Box::new(access_use)),
            ..Telemetry::default()
        }
    }

    #[test]
    fn users_arrive_as_they_were_told() {
        for stranger in ["10.0.0.7", "fd00::7"] {
            let telemetry = told(AccessUse {
                observes: true,
                uplink: LinkUse {
                    udp: true,
                    carried_bps: Some(7_000_000_000),
                    speed_bps: 10_000_000_000,
                    congested: vec![5],
                    uncongested: 3,
                    held_up: true,
                    ..LinkUse::default()
                },
                downlink: LinkUse {
                    hosts: vec![3, 70_000],
                    strangers: 2,
                    stranger: stranger.parse().ok(),
                    ..LinkUse::default()
                },
                faults: HostFaults {
                    no_address: true,
                    other_congestion_control: false,
                    flows_beyond_table: true,
                    in_prefixes_of: vec![4, 70_001],
                },
            });
            assert!(!telemetry.is_empty() && !telemetry.is_of_state());
            let message = ControlMessage::Telemetry(telemetry);
            let body = wire::ControlMessage {
                body: Some((&message).into()),
            };
            let decoded = ControlMessage::decode(&body.encode_to_vec());
            assert_eq!(decoded, Ok(message));
        }
    }

    #[test]
    fn users_beyond_what_a_message_can_hold_are_refused() {
        let with = |downlink| {
            told(AccessUse {
                downlink,
                ..AccessUse::default()
            })
        };
        let field_of = |telemetry: &Telemetry| match telemetry.validate() {
            Err(SessionError::Invalid { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        let hosts = |count: usize| LinkUse {
            hosts: vec![1; count],
            ..LinkUse::default()
        };
        assert_eq!(with(hosts(MAX_USERS)).validate(), Ok(()));
        assert_eq!(field_of(&with(hosts(MAX_USERS + 1))), "LinkUse.hosts");
        let congested = LinkUse {
            congested: vec![1; MAX_CONGESTED + 1],
            ..LinkUse::default()
        };
        assert_eq!(field_of(&with(congested)), "LinkUse.congested");
        let addresses = told(AccessUse {
            faults: HostFaults {
                in_prefixes_of: vec![1; MAX_IN_PREFIXES_OF + 1],
                ..HostFaults::default()
            },
            ..AccessUse::default()
        });
        assert_eq!(field_of(&addresses), "HostFaults.in_prefixes_of");
        let unnumbered = LinkUse {
            stranger: Some(IpAddr::from([10, 0, 0, 7])),
            ..LinkUse::default()
        };
        assert_eq!(field_of(&with(unnumbered)), "LinkUse.strangers");
        let wire = wire::LinkUse {
            strangers: 1,
            stranger: vec![1; 5],
            ..wire::LinkUse::default()
        };
        assert!(LinkUse::try_from(wire).is_err());
    }
}
