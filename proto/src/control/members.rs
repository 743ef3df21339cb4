//! Hosts that joined at run time: the message that tells clients of them, and the ids that start
//! records call them by.
//!
//! Places are used again. An id therefore has the place in its low bits and the number of the
//! tenant above, so a record about a former tenant names nobody.

use ipnet::IpNet;

use super::convert::{invalid, prefix_from_wire, prefix_to_wire, text};
use crate::error::SessionError;
use crate::wire;

/// Most prefixes that a host claims.
pub const MAX_CLAIMED_PREFIXES: usize = 64;

/// Bits of an id that name the place.
const PLACE_BITS: u32 = 18;

/// Change of the hosts that joined at run time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Members {
    /// Version to which it applies, unless it is `whole`.
    pub from: u32,
    /// Version after it.
    pub to: u32,
    /// It has all members.
    pub whole: bool,
    /// The next message continues it.
    pub more: bool,
    /// The members that changed.
    pub hosts: Vec<Member>,
}

/// State of one member.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Member {
    /// Id in start records; see [`Member::id_of`].
    pub id: u32,
    /// Name.
    pub name: String,
    /// Prefixes that it claims.
    pub prefixes: Vec<IpNet>,
    /// It has left.
    pub gone: bool,
}

impl Member {
    /// Tenants of a place before their numbers wrap.
    pub const TENANTS: u32 = 1 << (u32::BITS - PLACE_BITS);

    /// Returns the id of the `tenant` of a place. Hosts of the topology file are tenant 0.
    #[must_use]
    pub const fn id_of(place: u32, tenant: u32) -> u32 {
        (tenant << PLACE_BITS) | (place & ((1 << PLACE_BITS) - 1))
    }

    /// Returns the place and the tenant of an id.
    #[must_use]
    pub const fn place_and_tenant(id: u32) -> (u32, u32) {
        (id & ((1 << PLACE_BITS) - 1), id >> PLACE_BITS)
    }
}

/// Checks a list of claimed prefixes.
pub(super) fn prefixes(
    field: &'static str,
    prefixes: &[wire::Prefix],
) -> Result<Vec<IpNet>, SessionError> {
    if prefixes.len() > MAX_CLAIMED_PREFIXES {
        let problem = format!(
            "{} prefixes; the bound is {MAX_CLAIMED_PREFIXES}",
            prefixes.len()
        );
        return Err(invalid(field, problem));
    }
    prefixes.iter().map(prefix_from_wire).collect()
}

impl TryFrom<wire::Members> for Members {
    type Error = SessionError;

    fn try_from(members: wire::Members) -> Result<Self, SessionError> {
        let hosts = members.hosts.into_iter().map(|host| {
            Ok(Member {
                id: host.id,
                name: text("Member.name", host.name)?,
                prefixes: prefixes("Member.prefixes", &host.prefixes)?,
                gone: host.gone,
            })
        });
        Ok(Self {
            from: members.from,
            to: members.to,
            whole: members.whole,
            more: members.more,
            hosts: hosts.collect::<Result<_, SessionError>>()?,
        })
    }
}

impl From<&Members> for wire::Members {
    fn from(members: &Members) -> Self {
        let hosts = members.hosts.iter().map(|host| wire::Member {
            id: host.id,
            name: host.name.clone(),
            prefixes: host.prefixes.iter().map(prefix_to_wire).collect(),
            gone: host.gone,
        });
        Self {
            from: members.from,
            to: members.to,
            whole: members.whole,
            more: members.more,
            hosts: hosts.collect(),
        }
    }
}
