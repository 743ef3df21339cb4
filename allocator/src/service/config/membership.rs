//! Table `[membership]`.

use ipnet::IpNet;
use ratewright_topology::Topology;

use super::check::Checker;
use super::error::ConfigError;
use super::raw::RawMembership;

/// Hosts that may join at run time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MembershipConfig {
    /// True if hosts that the topology does not name may take spare places.
    pub join: bool,
    /// Time without a session after which a member leaves.
    pub grace_ns: u64,
    /// Racks by the addresses of hosts in them; the longest prefix holds. Empty: a topology of one
    /// rack takes all, one of several takes none.
    pub racks: Vec<(IpNet, String)>,
}

impl Default for MembershipConfig {
    fn default() -> Self {
        Self {
            join: false,
            grace_ns: 60_000_000_000,
            racks: Vec::new(),
        }
    }
}

impl MembershipConfig {
    /// Returns the fault that keeps hosts from joining this topology, if there is one.
    #[must_use]
    pub fn problem(&self, topology: &Topology) -> Option<String> {
        if let Some((_, rack)) =
            (self.racks.iter()).find(|(_, r)| topology.rack_by_name(r).is_none())
        {
            return Some(format!("the topology has no rack {rack:?}"));
        }
        let several = topology.racks().len() > 1;
        (self.join && self.racks.is_empty() && several).then(|| {
            "say which addresses are in which rack, such as \"10.1.3.0/24\" = \"rack3\", or set \
             membership.join = false"
                .to_owned()
        })
    }
}

pub(super) fn checked(
    check: &Checker<'_>,
    raw: RawMembership,
) -> Result<MembershipConfig, ConfigError> {
    let default = MembershipConfig::default();
    let grace_s = check.within(
        raw.grace_s,
        default.grace_ns / 1_000_000_000,
        "membership.grace_s",
        |s| (1..=86_400).contains(&s),
        "must be 1 to 86400 seconds; 60 is the default",
    )?;
    let mut racks = Vec::new();
    for (prefix, rack) in raw.racks.unwrap_or_default() {
        let net: IpNet = prefix.parse().map_err(|_| {
            let expected = format!(
                "stands beside {prefix:?}, which must be a prefix of addresses, such as \"10.1.3.0/24\""
            );
            check.wrong("membership.racks", &rack, expected)
        })?;
        racks.push((net.trunc(), rack.into_inner()));
    }
    Ok(MembershipConfig {
        join: raw.join.is_some_and(toml::Spanned::into_inner),
        grace_ns: grace_s * 1_000_000_000,
        racks,
    })
}
