//! The text summary.

use std::fmt::{self, Write};

use super::{counted, level_name, levels, usual};
use crate::frames::Frame;
use crate::model::{Direction, Tenure, TopologyKind};
use crate::topology::Topology;
use crate::units::{format_capacity_bps, format_delay_ns};

/// Maximum number of failed or unusual links that are listed by name.
const LISTED: usize = 12;

/// The network in a dozen lines: counts, capacities, oversubscription, addresses, ECMP, what
/// has failed, and into how many blocks it can be cut.
#[must_use]
pub fn summary(net: &Topology) -> String {
    let mut out = String::new();
    write(net, &mut out).expect("writing to a string does not fail");
    out
}

fn write(net: &Topology, out: &mut String) -> fmt::Result {
    writeln!(out, "{:<10}{}, epoch {}", "kind", net.kind(), net.epoch())?;
    writeln!(out, "{:<10}{}", "hosts", hosts(net))?;
    writeln!(out, "{:<10}{}", "switches", switches(net))?;
    for level in levels(net) {
        writeln!(
            out,
            "{:<10}{}",
            if level == 1 { "links" } else { "" },
            links(net, level)
        )?;
    }
    writeln!(out, "{:<10}{}", "frames", frames(net))?;
    if let Some(text) = oversubscription(net) {
        writeln!(out, "{:<10}{text}", "edge")?;
    }
    for (i, text) in addresses(net).into_iter().enumerate() {
        writeln!(out, "{:<10}{text}", if i == 0 { "addresses" } else { "" })?;
    }
    let ecmp = net.ecmp();
    let symmetric = if ecmp.symmetric {
        "symmetric: acknowledgements take the same way"
    } else {
        "not symmetric"
    };
    writeln!(out, "{:<10}seed {}, {symmetric}", "ecmp", ecmp.seed)?;
    writeln!(out, "{:<10}up to {}", "blocks", max_blocks(net))?;
    unusual(net, out)?;
    failed(net, out)
}

fn hosts(net: &Topology) -> String {
    let sizes = || net.racks().iter().map(|r| r.hosts.len());
    let (least, most) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
    let each = if least == most {
        format!("{least}")
    } else {
        format!("{least} to {most}")
    };
    let mut text = format!(
        "{} in {} of {each}",
        net.hosts().len(),
        counted(net.racks().len(), "rack")
    );
    let of = |tenure| net.hosts().iter().filter(|h| h.tenure == tenure).count();
    let (spare, members) = (of(Tenure::Spare), of(Tenure::Member));
    if spare + members > 0 {
        text += &format!(
            "; {} spare of {}",
            spare,
            counted(spare + members, "spare place")
        );
    }
    if matches!(
        net.kind(),
        TopologyKind::FatTree | TopologyKind::ThreeTierClos
    ) {
        text += &format!(", {}", counted(net.pods() as usize, "pod"));
    }
    text
}

fn switches(net: &Topology) -> String {
    if net.kind() == TopologyKind::BigSwitch {
        return "1, taken to be free of congestion: only the edge links are modelled".into();
    }
    let of = |tier: u8| net.switches().iter().filter(|s| s.tier == tier).count();
    let middle = if net.kind() == TopologyKind::TwoTierClos {
        "spine"
    } else {
        "aggregation switch"
    };
    let mut parts = vec![counted(of(1), "leaf"), counted(of(2), middle)];
    if of(3) > 0 {
        parts.push(counted(of(3), "core"));
    }
    parts.join(", ")
}

fn links(net: &Topology, level: u8) -> String {
    let of_level = || net.links().iter().filter(|l| l.level == level);
    format!(
        "{} {}, each {} and {}",
        of_level().count(),
        level_name(net, level),
        format_capacity_bps(usual(of_level().map(|l| l.line_rate_bps))),
        format_delay_ns(usual(of_level().map(|l| l.delay_ns)))
    )
}

/// The share of line rates that can be allocated.
fn frames(net: &Topology) -> String {
    let Some(frames) = net.frames() else {
        return "not given: capacities count each frame with its header of 14 bytes".into();
    };
    // Of a rate that shows the share in hundredths of a per cent.
    let share = |level| frames.of_level(level).allocatable_bps(10_000) as f64 / 100.0;
    let (mtu, host) = (frames.mtu_bytes, frames.overhead_bytes);
    let mut text = format!(
        "MTU {mtu}, {host} bytes beside it: {:.2} % of a line rate is allocated",
        share(1)
    );
    if frames.fabric_overhead_bytes != host {
        let fabric = frames.fabric_overhead_bytes;
        text += &format!("; between switches {fabric}: {:.2} %", share(2));
    }
    text
}

/// Worst ratio, over the racks, of the hosts' capacity to the leaf's uplink capacity.
fn oversubscription(net: &Topology) -> Option<String> {
    let mut of_rack = vec![(0u64, 0u64); net.racks().len()];
    for link in net.links().iter().filter(|l| l.direction == Direction::Up) {
        match (link.from, link.level) {
            (crate::Node::Host(host), _) => {
                of_rack[net.hosts()[host.index()].rack.index()].0 += link.capacity_bps;
            }
            (crate::Node::Switch(switch), 2) => {
                if let Some(rack) = net.switches()[switch.index()].rack {
                    of_rack[rack.index()].1 += link.capacity_bps;
                }
            }
            _ => {}
        }
    }
    let ratio = of_rack
        .iter()
        .filter(|(_, up)| *up > 0)
        .map(|(hosts, up)| *hosts as f64 / *up as f64)
        .fold(0.0, f64::max);
    // A big switch has no uplinks, and thus no ratio.
    (ratio > 0.0).then(|| {
        let verdict = if ratio > 1.0 {
            "the leaf's uplinks can be the bottleneck"
        } else {
            "full bisection at the leaves"
        };
        format!("hosts to uplinks {ratio:.2} : 1, {verdict}")
    })
}

/// First and last address per family.
fn addresses(net: &Topology) -> Vec<String> {
    let of = |v4: bool| {
        net.hosts()
            .iter()
            .flat_map(|h| &h.prefixes)
            .filter(move |p| p.addr().is_ipv4() == v4)
    };
    let text = |p: &ipnet::IpNet| {
        // A single address reads better without /32 or /128.
        if p.prefix_len() == p.max_prefix_len() {
            p.addr().to_string()
        } else {
            p.to_string()
        }
    };
    [true, false]
        .into_iter()
        .filter_map(|v4| {
            let (first, last) = (of(v4).min()?, of(v4).max()?);
            Some(if first == last {
                text(first)
            } else {
                format!("{} … {}", text(first), text(last))
            })
        })
        .collect()
}

fn max_blocks(net: &Topology) -> u32 {
    (0..32)
        .map(|e| 1 << e)
        // A number of blocks that fails makes every larger one fail.
        .take_while(|b| net.partition(*b).is_ok())
        .last()
        .unwrap_or(1)
}

fn unusual(net: &Topology, out: &mut String) -> fmt::Result {
    let mut lines = Vec::new();
    for level in levels(net) {
        let of_level = || net.links().iter().filter(|l| l.level == level);
        let (capacity, delay) = (
            usual(of_level().map(|l| l.line_rate_bps)),
            usual(of_level().map(|l| l.delay_ns)),
        );
        let frame = net
            .frames()
            .map_or(Frame::AS_COUNTED, |frames| frames.of_level(level));
        for link in of_level()
            .filter(|l| (l.line_rate_bps, l.delay_ns, l.frame) != (capacity, delay, frame))
        {
            let mut line = format!(
                "{} → {}: {} and {}",
                net.node_name(link.from),
                net.node_name(link.to),
                format_capacity_bps(link.line_rate_bps),
                format_delay_ns(link.delay_ns)
            );
            if link.frame != frame {
                let Frame {
                    mtu_bytes,
                    overhead_bytes,
                } = link.frame;
                line += &format!(", MTU {mtu_bytes} and {overhead_bytes} bytes beside it");
            }
            lines.push(line);
        }
    }
    listed(out, "differing", &lines)
}

fn failed(net: &Topology, out: &mut String) -> fmt::Result {
    let mut lines: Vec<String> = net
        .switches()
        .iter()
        .filter(|s| !s.up)
        .map(|s| format!("{} and its links", s.name))
        .collect();
    lines.extend(
        net.links()
            .iter()
            .filter(|l| !l.up)
            .map(|l| format!("{} → {}", net.node_name(l.from), net.node_name(l.to))),
    );
    if lines.is_empty() {
        writeln!(out, "{:<10}nothing", "failed")
    } else {
        listed(out, "failed", &lines)
    }
}

fn listed(out: &mut String, heading: &str, lines: &[String]) -> fmt::Result {
    for (i, line) in lines.iter().take(LISTED).enumerate() {
        writeln!(out, "{:<10}{line}", if i == 0 { heading } else { "" })?;
    }
    if lines.len() > LISTED {
        writeln!(out, "{:<10}and {} more", "", lines.len() - LISTED)?;
    }
    Ok(())
}
