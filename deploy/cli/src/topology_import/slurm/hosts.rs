//! Addresses of nodes, as /etc/hosts and `getent ahosts` have them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::super::{printable, read};

/// Address, and whether a zone follows it (`fe80::1%eth0`).
type Address = (IpAddr, bool);

/// Addresses by name.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    by_name: BTreeMap<String, Vec<Address>>,
    /// Names by what stands before their first dot.
    by_label: BTreeMap<String, BTreeSet<String>>,
}

impl Hosts {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or a line does not begin with an address.
    pub(super) fn load(path: &Path) -> Result<Self> {
        Self::parse(&read(path)?, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self> {
        let mut hosts = Self::default();
        // `getent ahosts` prints a host's name with its first address alone.
        let mut before = None;
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.split('#').next().unwrap_or_default();
            let mut words = text.split_whitespace().peekable();
            let Some(address) = words.next() else {
                continue;
            };
            let (bare, zone) = address.split_once('%').unzip();
            let parsed: IpAddr = bare.unwrap_or(address).parse().with_context(|| {
                format!(
                    "{}:{line}: {:?} is no address; a line holds an address and names",
                    path.display(),
                    printable(address)
                )
            })?;
            let address = (parsed, zone.is_some());
            let is_socket = words
                .next_if(|word| matches!(*word, "STREAM" | "DGRAM" | "RAW"))
                .is_some();
            if is_socket && words.peek().is_some() {
                before = words.peek().copied();
            }
            let unnamed = before.filter(|_| is_socket && words.peek().is_none());
            for name in words.chain(unnamed) {
                hosts.add(name, address);
            }
        }
        Ok(hosts)
    }

    fn add(&mut self, name: &str, address: Address) {
        if let Some((label, _)) = name.split_once('.') {
            let names = self.by_label.entry(label.to_owned()).or_default();
            names.insert(name.to_owned());
        }
        let addresses = self.by_name.entry(name.to_owned()).or_default();
        if addresses.last() != Some(&address) {
            addresses.push(address);
        }
    }

    /// Returns a node's addresses: those of its name, else those of the name that is the node's up
    /// to its first dot. `None` if there is neither.
    ///
    /// # Errors
    /// Hosts of several domains match, or an address has a zone.
    pub(super) fn of(&self, node: &str) -> Result<Option<Vec<IpAddr>>> {
        let addresses = match (self.by_name.get(node), self.by_label.get(node)) {
            (Some(addresses), _) => addresses,
            (None, Some(names)) => {
                let mut all = names.iter().filter_map(|name| {
                    let addresses = self.by_name.get(name)?;
                    Some((name, addresses))
                });
                let Some((name, addresses)) = all.next() else {
                    return Ok(None);
                };
                let set =
                    |addresses: &[Address]| addresses.iter().copied().collect::<BTreeSet<_>>();
                let other = all.find(|(_, others)| set(others) != set(addresses));
                if let Some((other, _)) = other {
                    bail!(
                        "both {} and {} match, with other addresses; name one {} alone",
                        printable(name),
                        printable(other),
                        printable(node)
                    );
                }
                addresses
            }
            (None, None) => return Ok(None),
        };
        if let Some((address, _)) = addresses.iter().find(|(_, has_zone)| *has_zone) {
            bail!("its address {address} has a zone, so it holds on one link alone; leave it out");
        }
        Ok(Some(
            addresses.iter().map(|(address, _)| *address).collect(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str, node: &str) -> Result<Option<Vec<String>>> {
        let found = Hosts::parse(text, Path::new("hosts"))?.of(node)?;
        Ok(found.map(|all| all.iter().map(IpAddr::to_string).collect()))
    }

    fn found(text: &str, node: &str) -> Vec<String> {
        of(text, node).expect(text).unwrap_or_default()
    }

    #[test]
    fn a_name_matches_in_full_or_else_up_to_its_first_dot() {
        let text = "10.3.0.1 n1.a.example\n10.3.0.2 n2 # n3\n10.3.0.9 n2.b.example\n\
                    fd00::4 n4.a.example\n10.3.0.4 n4.a.example";
        assert_eq!(found(text, "n1"), ["10.3.0.1"]);
        assert_eq!(found(text, "n2"), ["10.3.0.2"]);
        assert_eq!(found(text, "n2.b.example"), ["10.3.0.9"]);
        assert_eq!(found(text, "n4"), ["fd00::4", "10.3.0.4"]);
        for nobody in ["n3", "n", "a", "n1.b"] {
            assert_eq!(of(text, nobody).expect(nobody), None, "{nobody}");
        }
        let two = "10.3.0.1 n1.a.example\n10.4.0.1 n1.b.example";
        let refused = of(two, "n1").expect_err("two hosts").to_string();
        assert!(
            refused.contains("n1.a.example and n1.b.example"),
            "{refused}"
        );
        let same = "10.3.0.1 n1.a.example\n10.3.0.1 n1.b.example";
        assert_eq!(found(same, "n1"), ["10.3.0.1"]);
    }

    #[test]
    fn every_address_that_getent_ahosts_prints_is_the_hosts() {
        let text = "fd00::1 STREAM n1.a.example\nfd00::1 DGRAM  \nfd00::1 RAW    \n\
                    10.3.0.1 STREAM \n10.3.0.1 DGRAM  \n10.3.0.2 STREAM n2\n10.3.0.2 RAW";
        assert_eq!(found(text, "n1"), ["fd00::1", "10.3.0.1"]);
        assert_eq!(found(text, "n2"), ["10.3.0.2"]);
        assert_eq!(of(text, "STREAM").expect("hosts"), None);
    }

    #[test]
    fn an_address_with_a_zone_counts_for_its_own_name_alone() {
        let text = "fe80::7%eth0 printer\n10.3.0.1 n1\nfe80::8%eth1 n2";
        assert_eq!(found(text, "n1"), ["10.3.0.1"]);
        let refused = of(text, "n2").expect_err("a zone").to_string();
        assert!(refused.contains("fe80::8 has a zone"), "{refused}");
        let refused = of("n1 10.3.0.1", "n1").expect_err("no address");
        assert!(
            refused
                .to_string()
                .starts_with("hosts:1: \"n1\" is no address")
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "([0-9a-f:.%]{0,8}[ \n#]?(STREAM|n1)?[ .]?){0,12}") {
            let _ = of(&text, "n1");
        }
    }
}
