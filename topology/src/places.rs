//! Spare places: hosts join and leave while the set of places, and so of links, stays as it is.
//!
//! Each change costs time in proportion to the host's prefixes, however large the network is.

use ipnet::IpNet;

use crate::ids::HostId;
use crate::model::{Node, Tenure};
use crate::topology::Topology;

/// The longest name: a label of the domain name system, which a certificate carries.
pub(crate) const MAX_NAME: usize = 63;

/// Returns true if the text may name a host: 1 to 63 letters, digits, `-`, `_` and `.`.
#[must_use]
pub fn is_host_name(text: &str) -> bool {
    let fit = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    !text.is_empty() && text.len() <= MAX_NAME && text.bytes().all(fit)
}

/// The name of a spare place, both counted from 0. The slash keeps hosts from being called so.
pub(crate) fn spare_name(rack: u32, index: u32) -> String {
    format!("rack{}/spare{}", rack + 1, index + 1)
}

/// Scheme of a URI that names a prefix of a host's pods, such as `ratewright-prefix:10.244.3.0/24`.
/// A certificate has no other kind of name for a prefix.
const PREFIX_SCHEME: &str = "ratewright-prefix:";

/// Returns the URI by which a certificate names a prefix of its host's pods.
#[must_use]
pub fn uri_of_prefix(prefix: &IpNet) -> String {
    format!("{PREFIX_SCHEME}{}", prefix.trunc())
}

/// Returns the prefix of pods that a URI of a certificate names; `None` for any other URI.
#[must_use]
pub fn prefix_of_uri(uri: &str) -> Option<IpNet> {
    let prefix: IpNet = uri.strip_prefix(PREFIX_SCHEME)?.parse().ok()?;
    Some(prefix.trunc())
}

/// Reason for which a place cannot change its holder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// No spare place has this id.
    #[error("place {} is not spare", .0.0)]
    NotSpare(HostId),
    /// No host that joined at run time holds it.
    #[error("place {} is not held by a host that has joined", .0.0)]
    NotMember(HostId),
    /// The text cannot name a host.
    #[error("{0:?} is no host name; use 1 to 63 letters, digits, '-', '_' and '.'")]
    BadName(String),
    /// A host or switch has the name.
    #[error("the name {0:?} is taken")]
    NameTaken(String),
}

impl Topology {
    /// Returns true if a host's prefix may stand inside another host's.
    #[must_use]
    pub fn nests_prefixes(&self) -> bool {
        self.nested_prefixes
    }

    /// Number of hosts: places that are not spare. Linear in the number of places.
    #[must_use]
    pub fn host_count(&self) -> usize {
        let of_hosts = |host: &&crate::Host| host.tenure != Tenure::Spare;
        self.hosts.iter().filter(of_hosts).count()
    }

    /// Finds a host, other than `except`, one of whose prefixes shares addresses with `prefix`.
    /// Linear in the number of hosts.
    #[must_use]
    pub fn overlapping(&self, prefix: &IpNet, except: Option<HostId>) -> Option<HostId> {
        let mut others = self.hosts.iter().filter(|host| Some(host.id) != except);
        let overlaps = |other: &IpNet| other.contains(prefix) || prefix.contains(other);
        others
            .find(|host| host.prefixes.iter().any(overlaps))
            .map(|host| host.id)
    }

    /// Gives a spare place to a host, and raises the epoch. The caller has checked that no other
    /// host has the prefixes.
    ///
    /// # Errors
    /// The place is not spare, or the name is invalid or taken. Nothing has changed.
    pub fn take_place(
        &mut self,
        place: HostId,
        name: &str,
        prefixes: Vec<IpNet>,
    ) -> Result<(), PlaceError> {
        self.place_of(place, Tenure::Spare)
            .ok_or(PlaceError::NotSpare(place))?;
        if !is_host_name(name) {
            return Err(PlaceError::BadName(name.to_owned()));
        }
        if self.names.contains_key(name) {
            return Err(PlaceError::NameTaken(name.to_owned()));
        }
        self.rename(place, name.to_owned());
        self.hosts[place.index()].tenure = Tenure::Member;
        self.set_prefixes(place, prefixes);
        Ok(())
    }

    /// Makes the place of a host that had joined spare again, and raises the epoch.
    ///
    /// # Errors
    /// The place is not held by such a host. Nothing has changed.
    pub fn free_place(&mut self, place: HostId) -> Result<(), PlaceError> {
        let rack = self
            .place_of(place, Tenure::Member)
            .ok_or(PlaceError::NotMember(place))?;
        let last = self.racks[rack].hosts.end;
        // Spare places are the last ones of their rack, so the index follows from the end.
        let index = self.parameters.spare_hosts() - (last - place.0);
        self.rename(place, spare_name(rack as u32, index));
        self.hosts[place.index()].tenure = Tenure::Spare;
        self.set_prefixes(place, Vec::new());
        Ok(())
    }

    /// Replaces a host's prefixes, and raises the epoch. The caller has checked that no other host
    /// has them. Ids of other topologies change nothing.
    pub fn set_prefixes(&mut self, host: HostId, prefixes: Vec<IpNet>) {
        let Some(entry) = self.hosts.get_mut(host.index()) else {
            return;
        };
        for prefix in std::mem::take(&mut entry.prefixes) {
            self.prefixes.remove(prefix.trunc(), host);
        }
        for prefix in &prefixes {
            self.prefixes.insert(prefix.trunc(), host);
        }
        entry.prefixes = prefixes;
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// The rack's index of a place with this holder.
    fn place_of(&self, place: HostId, tenure: Tenure) -> Option<usize> {
        let host = self.hosts.get(place.index())?;
        (host.tenure == tenure).then_some(host.rack.index())
    }

    fn rename(&mut self, place: HostId, name: String) {
        let host = &mut self.hosts[place.index()];
        self.names.swap_remove(&host.name);
        self.names.insert(name.clone(), Node::Host(place));
        host.name = name;
    }
}
