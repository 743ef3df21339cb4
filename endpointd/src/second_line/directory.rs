//! Names of the topology's hosts, by which daemons know each other from their certificates.

use indexmap::IndexMap;
use ratewright_proto::control::HostInfo;
use rustc_hash::FxBuildHasher;

/// Hosts by name and by number, from the last session with the allocator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Directory {
    own_host: u32,
    numbers: IndexMap<String, u32>,
    names: IndexMap<u32, String, FxBuildHasher>,
}

impl Directory {
    /// Makes the directory of a topology for the host `own_host`.
    #[must_use]
    pub fn new<'a>(own_host: u32, hosts: impl Iterator<Item = &'a HostInfo> + Clone) -> Self {
        let names = hosts.clone().map(|host| (host.id, host.name.clone()));
        Self {
            own_host,
            names: names.collect(),
            numbers: hosts.map(|host| (host.name.clone(), host.id)).collect(),
        }
    }

    /// Returns the name of a host.
    #[must_use]
    pub fn name(&self, host: u32) -> Option<&str> {
        self.names.get(&host).map(String::as_str)
    }

    /// Returns the host that a certificate with these DNS names is of: the first one of the
    /// topology, but never this host itself.
    #[must_use]
    pub fn host_of(&self, names: &[String]) -> Option<u32> {
        let mut known = names.iter().filter_map(|name| self.numbers.get(name));
        known.find(|&&host| host != self.own_host).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_of_the_host_that_it_names() {
        let hosts = ["h1", "h2", "h3"]
            .iter()
            .zip(1..)
            .map(|(name, id)| HostInfo {
                id,
                name: (*name).to_owned(),
                prefixes: Vec::new(),
            });
        let hosts: Vec<HostInfo> = hosts.collect();
        let directory = Directory::new(1, hosts.iter());
        let of = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            directory.host_of(&names)
        };
        assert_eq!(of(&["h2"]), Some(2));
        assert_eq!(of(&["ratewright-allocator", "h3"]), Some(3));
        // A stranger of the same authority, and this host itself.
        assert_eq!(of(&["h9"]), None);
        assert_eq!(of(&["h1"]), None);
        assert_eq!(directory.name(3), Some("h3"));
    }
}
