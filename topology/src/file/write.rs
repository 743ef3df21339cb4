//! Writer of topology files: reading the file gives an equal network in an equal state.

use std::fmt::{self, Write};

use super::prefixes::overlap;
use crate::addressing::Addressing;
use crate::model::{Direction, Link};
use crate::parameters::Parameters;
use crate::topology::Topology;
use crate::units::{format_capacity_bps, format_delay_ns};

impl Topology {
    /// Writes the topology as a file. Everything but the epoch is restored when it is read.
    #[must_use]
    pub fn to_toml_string(&self) -> String {
        let mut out = String::new();
        self.write(&mut out)
            .expect("writing to a string does not fail");
        out
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "kind = \"{}\"", self.kind())?;
        // The reader refuses nested prefixes without this key.
        if self.nested_prefixes || overlap(self.hosts(), false).is_some() {
            writeln!(out, "nested_prefixes = true")?;
        }
        if let Some(bound_bps) = self.default_max_flow_bps() {
            writeln!(out, "max_flow_bps = {bound_bps}")?;
        }
        writeln!(out, "\n[parameters]")?;
        parameters(out, self.parameters())?;
        let ecmp = self.ecmp();
        writeln!(
            out,
            "\n[ecmp]\nseed = {}\nsymmetric = {}",
            ecmp.seed, ecmp.symmetric
        )?;
        if let Some(frames) = self.frames() {
            writeln!(
                out,
                "\n[frames]\nmtu = {}\noverhead = {}",
                frames.mtu_bytes, frames.overhead_bytes
            )?;
            if frames.fabric_overhead_bytes != frames.overhead_bytes {
                writeln!(out, "fabric_overhead = {}", frames.fabric_overhead_bytes)?;
            }
        }
        // The parameters were built once, so they build again. Without it, everything would count
        // as changed.
        let built = self.parameters().build().ok();
        let built = built.map(|net| match self.frames() {
            Some(frames) => net.with_frames(frames),
            None => net,
        });
        self.write_hosts(out, built.as_ref())?;
        self.write_links(out, built.as_ref())?;
        self.write_groups(out)?;
        self.write_failed(out)
    }

    fn write_hosts(&self, out: &mut String, built: Option<&Self>) -> fmt::Result {
        for host in self.hosts() {
            let original = built.map(|b| &b.hosts()[host.id.index()]);
            let renamed = original.filter(|o| o.name != host.name);
            let moved = original.is_none_or(|o| o.prefixes != host.prefixes);
            if renamed.is_none() && !moved {
                continue;
            }
            writeln!(out, "\n[[host]]\nname = \"{}\"", host.name)?;
            if let Some(original) = renamed {
                writeln!(out, "replaces = \"{}\"", original.name)?;
            }
            if moved {
                let prefixes: Vec<String> =
                    host.prefixes.iter().map(|p| format!("\"{p}\"")).collect();
                writeln!(out, "prefixes = [{}]", prefixes.join(", "))?;
            }
        }
        Ok(())
    }

    fn write_links(&self, out: &mut String, built: Option<&Self>) -> fmt::Result {
        // Values that differ from the parameters, per link.
        let changes = |link: &Link| {
            let original = built.map(|b| &b.links()[link.id.index()]);
            let capacity = (original.map(|o| o.line_rate_bps) != Some(link.line_rate_bps))
                .then_some(link.line_rate_bps);
            let delay =
                (original.map(|o| o.delay_ns) != Some(link.delay_ns)).then_some(link.delay_ns);
            let frame = (original.map(|o| o.frame) != Some(link.frame)).then_some(link.frame);
            (capacity, link.baseline_bps, delay, frame)
        };
        self.write_pairs(
            out,
            "link",
            |link| Some(changes(link)).filter(|c| *c != (None, None, None, None)),
            |out, (capacity, baseline, delay, frame)| {
                if let Some(capacity_bps) = capacity {
                    writeln!(out, "capacity = \"{}\"", format_capacity_bps(capacity_bps))?;
                }
                if let Some(baseline_bps) = baseline {
                    writeln!(out, "baseline = \"{}\"", format_capacity_bps(baseline_bps))?;
                }
                if let Some(delay_ns) = delay {
                    writeln!(out, "delay = \"{}\"", format_delay_ns(delay_ns))?;
                }
                if let Some(frame) = frame {
                    writeln!(out, "mtu = {}", frame.mtu_bytes)?;
                    writeln!(out, "frame_overhead = {}", frame.overhead_bytes)?;
                }
                Ok(())
            },
        )
    }

    fn write_groups(&self, out: &mut String) -> fmt::Result {
        for group in self.groups() {
            let name = group.name.replace('\\', "\\\\").replace('"', "\\\"");
            writeln!(out, "\n[[group]]\nname = \"{name}\"")?;
            writeln!(out, "max_flow_bps = {}", group.max_flow_bps)?;
            // Racks that are whole in the group stand for their hosts.
            let (mut racks, mut hosts) = (Vec::new(), Vec::new());
            let mut rest = group.hosts.as_slice();
            while let Some(first) = rest.first() {
                let rack = &self.racks()[self.hosts()[first.index()].rack.index()];
                let here = rest.partition_point(|host| host.0 < rack.hosts.end);
                if here == rack.hosts.len() {
                    racks.push(format!("\"{}\"", rack.name));
                } else {
                    let names = rest[..here]
                        .iter()
                        .map(|host| &self.hosts()[host.index()].name);
                    hosts.extend(names.map(|name| format!("\"{name}\"")));
                }
                rest = &rest[here..];
            }
            for (key, list) in [("hosts", hosts), ("racks", racks)] {
                if !list.is_empty() {
                    writeln!(out, "{key} = [{}]", list.join(", "))?;
                }
            }
        }
        Ok(())
    }

    fn write_failed(&self, out: &mut String) -> fmt::Result {
        for switch in self.switches().iter().filter(|s| !s.up) {
            writeln!(out, "\n[[failed]]\nswitch = \"{}\"", switch.name)?;
        }
        self.write_pairs(
            out,
            "failed",
            |link| (!link.up).then_some(()),
            |_, ()| Ok(()),
        )
    }

    /// Writes one entry for each link with a value, or one for both directions if their values are
    /// equal.
    fn write_pairs<T: PartialEq>(
        &self,
        out: &mut String,
        list: &str,
        say: impl Fn(&Link) -> Option<T>,
        body: impl Fn(&mut String, T) -> fmt::Result,
    ) -> fmt::Result {
        for link in self.links() {
            let Some(what) = say(link) else { continue };
            let both = say(&self.links()[self.reverse_link(link.id).index()])
                .is_some_and(|other| other == what);
            // The up link has written the entry of both.
            if both && link.direction == Direction::Down {
                continue;
            }
            writeln!(out, "\n[[{list}]]")?;
            writeln!(
                out,
                "from = \"{}\"\nto = \"{}\"",
                self.node_name(link.from),
                self.node_name(link.to)
            )?;
            body(out, what)?;
            if both {
                writeln!(out, "both_ways = true")?;
            }
        }
        Ok(())
    }
}

fn parameters(out: &mut String, parameters: &Parameters) -> fmt::Result {
    let spare = parameters.spare_hosts();
    let sizes = |out: &mut String, per_rack: u32, sizes: &[u32]| {
        if sizes.is_empty() {
            writeln!(out, "hosts_per_rack = {per_rack}")?;
        } else {
            writeln!(out, "rack_sizes = {sizes:?}")?;
        }
        if spare > 0 {
            writeln!(out, "spare_hosts = {spare}")?;
        }
        Ok(())
    };
    let links = |out: &mut String, name: &str, capacity_bps: u64, delay_ns: u64| {
        writeln!(
            out,
            "{name}capacity = \"{}\"",
            format_capacity_bps(capacity_bps)
        )?;
        writeln!(out, "{name}delay = \"{}\"", format_delay_ns(delay_ns))
    };
    match parameters {
        Parameters::BigSwitch(p) => {
            writeln!(out, "racks = {}", p.racks)?;
            sizes(out, p.hosts_per_rack, &p.rack_sizes)?;
            links(out, "host_", p.host_capacity_bps, p.host_delay_ns)?;
            bases(out, &p.addressing)
        }
        Parameters::TwoTierClos(p) => {
            writeln!(out, "racks = {}", p.racks)?;
            sizes(out, p.hosts_per_rack, &p.rack_sizes)?;
            writeln!(out, "spines = {}", p.spines)?;
            links(out, "host_", p.host_capacity_bps, p.host_delay_ns)?;
            links(out, "fabric_", p.fabric_capacity_bps, p.fabric_delay_ns)?;
            bases(out, &p.addressing)
        }
        Parameters::FatTree(p) => {
            writeln!(out, "k = {}", p.k)?;
            links(out, "", p.capacity_bps, p.delay_ns)?;
            bases(out, &p.addressing)
        }
        Parameters::ThreeTierClos(p) => {
            writeln!(
                out,
                "pods = {}\nracks_per_pod = {}",
                p.pods, p.racks_per_pod
            )?;
            sizes(out, p.hosts_per_rack, &p.rack_sizes)?;
            writeln!(
                out,
                "aggs_per_pod = {}\ncores = {}",
                p.aggs_per_pod, p.cores
            )?;
            links(out, "host_", p.host_capacity_bps, p.host_delay_ns)?;
            links(out, "fabric_", p.fabric_capacity_bps, p.fabric_delay_ns)?;
            links(out, "core_", p.core_capacity_bps, p.core_delay_ns)?;
            bases(out, &p.addressing)
        }
    }
}

fn bases(out: &mut String, addressing: &Addressing) -> fmt::Result {
    let text = |base: Option<String>| base.unwrap_or_else(|| "none".into());
    writeln!(
        out,
        "ipv4_base = \"{}\"",
        text(addressing.ipv4_base.map(|b| b.trunc().to_string()))
    )?;
    writeln!(
        out,
        "ipv6_base = \"{}\"",
        text(addressing.ipv6_base.map(|b| b.trunc().to_string()))
    )
}
