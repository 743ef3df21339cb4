//! Hosts by rack, as another system knows them, and the topology file that is written of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};
use ratewright_topology::{Frames, IpNet, MAX_HOST_PREFIXES, Topology, special_use};

use super::printable;

/// A host that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedHost {
    /// Its name in the topology and in its certificate.
    pub name: String,
    /// Prefixes that are reached through it.
    pub prefixes: Vec<IpNet>,
    /// Capacity of its link in bit/s, each way.
    pub capacity_bps: u64,
    /// Part of that which it always has, in bit/s, if not all.
    pub baseline_bps: Option<u64>,
}

/// Hosts that share the lowest switch that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedRack {
    /// Description for a comment.
    pub label: String,
    /// Its hosts.
    pub hosts: Vec<ImportedHost>,
}

/// Hosts among which a single flow has a bound of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedGroup {
    /// Unique name.
    pub name: String,
    /// Most that one flow between two of them gets, in bit/s.
    pub max_flow_bps: u64,
    /// Names of the hosts.
    pub hosts: Vec<String>,
}

/// A network as another system knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportedNetwork {
    /// Comments at the top of the file, a line each.
    pub notes: Vec<String>,
    /// Racks in the order in which they are numbered.
    pub racks: Vec<ImportedRack>,
    /// Most that one flow gets between hosts that no group holds both, in bit/s.
    pub max_flow_bps: Option<u64>,
    /// Groups in the order of the file.
    pub groups: Vec<ImportedGroup>,
}

impl ImportedNetwork {
    /// Writes the topology file, with these frames on all links, and reads it back.
    ///
    /// # Errors
    /// There is no host, a host has no or too many prefixes, or the file would not be valid: two
    /// hosts of one name or address, say. The message names them.
    pub fn to_file(&self, frames: Frames) -> Result<(String, Topology)> {
        let hosts = || self.racks.iter().flat_map(|rack| &rack.hosts);
        if hosts().next().is_none() {
            bail!("no host is left to write; see what was left out above");
        }
        self.check_addresses()?;
        let usual_bps = self.usual_capacity_bps();
        let mut out = String::new();
        for note in &self.notes {
            writeln!(out, "# {}", printable(note))?;
        }
        writeln!(out, "kind = \"big_switch\"")?;
        if let Some(bound_bps) = self.max_flow_bps {
            writeln!(out, "max_flow_bps = {bound_bps}")?;
        }
        let sizes: Vec<usize> = self.racks.iter().map(|rack| rack.hosts.len()).collect();
        writeln!(
            out,
            "\n[parameters]\nracks = {}\nrack_sizes = {sizes:?}\nhost_capacity = \"{usual_bps}bit/s\"",
            sizes.len()
        )?;
        // Every host has its own addresses: generated ones would only be in the way.
        writeln!(out, "ipv4_base = \"none\"\nipv6_base = \"none\"")?;
        writeln!(
            out,
            "\n[frames]\nmtu = {}\noverhead = {}",
            frames.mtu_bytes, frames.overhead_bytes
        )?;
        let mut number = 0;
        for (rack_number, rack) in (1..).zip(&self.racks) {
            writeln!(out, "\n# rack{rack_number}: {}", printable(&rack.label))?;
            for host in &rack.hosts {
                number += 1;
                let prefixes: Vec<String> =
                    host.prefixes.iter().map(|p| format!("\"{p}\"")).collect();
                writeln!(
                    out,
                    "[[host]]\nname = {}\nreplaces = \"h{number}\"\nprefixes = [{}]",
                    quoted(&host.name),
                    prefixes.join(", ")
                )?;
            }
        }
        for host in hosts() {
            let capacity_bps = Some(host.capacity_bps).filter(|&bps| bps != usual_bps);
            if capacity_bps.is_none() && host.baseline_bps.is_none() {
                continue;
            }
            let name = quoted(&host.name);
            writeln!(out, "\n[[link]]\nfrom = {name}\nto = \"fabric\"")?;
            for (key, bps) in [("capacity", capacity_bps), ("baseline", host.baseline_bps)] {
                if let Some(bps) = bps {
                    writeln!(out, "{key} = \"{bps}bit/s\"")?;
                }
            }
            writeln!(out, "both_ways = true")?;
        }
        for group in &self.groups {
            let names: Vec<String> = group.hosts.iter().map(|name| quoted(name)).collect();
            writeln!(
                out,
                "\n[[group]]\nname = {}\nmax_flow_bps = {}\nhosts = [{}]",
                quoted(&group.name),
                group.max_flow_bps,
                names.join(", ")
            )?;
        }
        let topology = Topology::from_toml_str(&out, "the topology file to be written")
            .context("these inputs describe no valid network")?;
        Ok((out, topology))
    }

    /// Returns the capacity that most hosts have, in bit/s; of several, the largest.
    fn usual_capacity_bps(&self) -> u64 {
        let mut counts = BTreeMap::<u64, usize>::new();
        for host in self.racks.iter().flat_map(|rack| &rack.hosts) {
            *counts.entry(host.capacity_bps).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|&(bps, count)| (count, bps));
        most.map_or(0, |(bps, _)| bps)
    }

    /// Checks what the reader of the file would also refuse, with names instead of lines.
    fn check_addresses(&self) -> Result<()> {
        let mut owners = BTreeMap::<IpNet, &str>::new();
        for host in self.racks.iter().flat_map(|rack| &rack.hosts) {
            let name = printable(&host.name);
            match host.prefixes.len() {
                0 => bail!("host {name} has no address; leave it out of the input"),
                n if n > MAX_HOST_PREFIXES => bail!(
                    "host {name} has {n} prefixes, and {MAX_HOST_PREFIXES} is the most; delegate prefixes in place of addresses"
                ),
                _ => {}
            }
            for prefix in &host.prefixes {
                if let Some(special) = special_use(prefix) {
                    bail!(
                        "{prefix} of host {name} is {special}; give the address by which other hosts reach it"
                    );
                }
                if let Some(other) = owners.insert(*prefix, &host.name) {
                    bail!(
                        "{prefix} belongs to both {} and {name}; import one network (VPC) at a time",
                        printable(other)
                    );
                }
            }
        }
        Ok(())
    }
}

/// Drops duplicates, and addresses that a prefix of the same host covers, in O(n log n).
pub(super) fn without_covered(mut prefixes: Vec<IpNet>) -> Vec<IpNet> {
    // In this order a covering prefix comes before everything that it covers.
    prefixes.sort_unstable_by_key(|prefix| (prefix.network(), prefix.prefix_len()));
    prefixes.dedup_by(|inner, outer| outer.contains(&*inner));
    prefixes
}

/// Returns a TOML string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out += &format!("\\u{:04X}", u32::from(c)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
