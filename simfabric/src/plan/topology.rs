//! `[topology]`: the network of a plan.

use std::ops::Range;

use ratewright_topology::{
    Addressing, BigSwitch, BuildError, EcmpConfig, FatTree, ThreeTierClos, Topology, TwoTierClos,
};
use serde::Deserialize;
use toml::Spanned;

use super::source::{PlanError, Source, Table};
use super::values::{Delay, Rate};
use crate::Span;
use crate::net::Spreading;

/// The values of `kind`.
pub const KINDS: [&str; 6] = [
    "dumbbell",
    "leaf-spine",
    "fat-tree",
    "three-tier",
    "big-switch",
    "file",
];

/// What every kind has.
pub(super) struct Network {
    pub(super) topology: Topology,
    /// Of the kind `dumbbell`: the queue that both sides share, by the names of its ends.
    pub(super) bottleneck: Option<(String, String)>,
    pub(super) spreading: Spreading,
    pub(super) host_delay: Span,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Dumbbell {
    pairs: Spanned<u32>,
    host_rate: Rate,
    bottleneck_rate: Option<Rate>,
    link_delay: Delay,
    bottleneck_delay: Option<Delay>,
    #[serde(default = "zero")]
    host_delay: Delay,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LeafSpine {
    racks: u32,
    hosts_per_rack: u32,
    spines: u32,
    host_rate: Rate,
    fabric_rate: Option<Rate>,
    oversubscription: Option<Spanned<f64>>,
    link_delay: Delay,
    fabric_delay: Option<Delay>,
    #[serde(default = "zero")]
    host_delay: Delay,
    #[serde(default)]
    spreading: Spread,
    #[serde(default)]
    symmetric: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fat {
    k: u32,
    rate: Rate,
    link_delay: Delay,
    #[serde(default = "zero")]
    host_delay: Delay,
    #[serde(default)]
    spreading: Spread,
    #[serde(default)]
    symmetric: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ThreeTier {
    pods: u32,
    racks_per_pod: u32,
    hosts_per_rack: u32,
    aggs_per_pod: u32,
    cores: u32,
    host_rate: Rate,
    fabric_rate: Rate,
    core_rate: Rate,
    link_delay: Delay,
    fabric_delay: Option<Delay>,
    core_delay: Option<Delay>,
    #[serde(default = "zero")]
    host_delay: Delay,
    #[serde(default)]
    spreading: Spread,
    #[serde(default)]
    symmetric: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Switch {
    hosts: u32,
    host_rate: Rate,
    link_delay: Delay,
    #[serde(default = "zero")]
    host_delay: Delay,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    file: Spanned<String>,
    #[serde(default = "zero")]
    host_delay: Delay,
    #[serde(default)]
    spreading: Spread,
}

#[derive(Deserialize, Clone, Copy, Default)]
#[serde(rename_all = "lowercase")]
enum Spread {
    #[default]
    Flow,
    Packet,
}

impl From<Spread> for Spreading {
    fn from(spread: Spread) -> Self {
        match spread {
            Spread::Flow => Self::Flow,
            Spread::Packet => Self::Packet,
        }
    }
}

const fn zero() -> Delay {
    Delay(Span::ZERO)
}

/// No addresses: the simulator names hosts by number, and large networks need not fit a prefix.
fn no_addresses() -> Addressing {
    Addressing {
        ipv4_base: None,
        ipv6_base: None,
    }
}

const fn ecmp(symmetric: bool) -> EcmpConfig {
    EcmpConfig { seed: 0, symmetric }
}

/// Reads `[topology]`.
pub(super) fn read<'a>(
    source: &Source<'a>,
    mut table: Table<'a>,
    span: Range<usize>,
) -> Result<Network, PlanError> {
    let (kind, at) = source.choice(&mut table, span.clone(), "kind", &KINDS)?;
    let keys: Vec<(String, Range<usize>)> = table
        .iter()
        .map(|(k, v)| (k.get_ref().to_string(), v.span()))
        .collect();
    let built = |result: Result<Topology, BuildError>| {
        result.map_err(|e| {
            let key = plan_key(e.key());
            let place = keys.iter().find(|(k, _)| k == key).map_or(&at, |(_, s)| s);
            source.error(Some(place.clone()), format!("impossible topology: {e}"))
        })
    };
    let mut bottleneck = None;
    let (topology, spreading, host_delay) = match kind {
        "dumbbell" => {
            let t: Dumbbell = source.section(table, span)?;
            bottleneck = Some(("leaf1".to_owned(), "spine1".to_owned()));
            (dumbbell(source, &t)?, Spread::Flow, t.host_delay)
        }
        "leaf-spine" => {
            let t: LeafSpine = source.section(table, span.clone())?;
            let fabric_capacity_bps = fabric_rate(source, &t, span)?;
            let clos = TwoTierClos {
                racks: t.racks,
                hosts_per_rack: t.hosts_per_rack,
                spines: t.spines,
                host_capacity_bps: t.host_rate.0,
                fabric_capacity_bps,
                host_delay_ns: t.link_delay.ns(),
                fabric_delay_ns: t.fabric_delay.unwrap_or(t.link_delay).ns(),
                addressing: no_addresses(),
                ecmp: ecmp(t.symmetric),
                ..TwoTierClos::default()
            };
            (built(clos.build())?, t.spreading, t.host_delay)
        }
        "fat-tree" => {
            let t: Fat = source.section(table, span)?;
            let tree = FatTree {
                k: t.k,
                capacity_bps: t.rate.0,
                delay_ns: t.link_delay.ns(),
                addressing: no_addresses(),
                ecmp: ecmp(t.symmetric),
            };
            (built(tree.build())?, t.spreading, t.host_delay)
        }
        "three-tier" => {
            let t: ThreeTier = source.section(table, span)?;
            let clos = ThreeTierClos {
                pods: t.pods,
                racks_per_pod: t.racks_per_pod,
                hosts_per_rack: t.hosts_per_rack,
                aggs_per_pod: t.aggs_per_pod,
                cores: t.cores,
                host_capacity_bps: t.host_rate.0,
                fabric_capacity_bps: t.fabric_rate.0,
                core_capacity_bps: t.core_rate.0,
                host_delay_ns: t.link_delay.ns(),
                fabric_delay_ns: t.fabric_delay.unwrap_or(t.link_delay).ns(),
                core_delay_ns: t.core_delay.unwrap_or(t.link_delay).ns(),
                addressing: no_addresses(),
                ecmp: ecmp(t.symmetric),
                ..ThreeTierClos::default()
            };
            (built(clos.build())?, t.spreading, t.host_delay)
        }
        "big-switch" => {
            let t: Switch = source.section(table, span)?;
            let switch = BigSwitch {
                racks: 1,
                hosts_per_rack: t.hosts,
                host_capacity_bps: t.host_rate.0,
                host_delay_ns: t.link_delay.ns(),
                addressing: no_addresses(),
                ..BigSwitch::default()
            };
            (built(switch.build())?, Spread::Flow, t.host_delay)
        }
        _ => {
            let t: File = source.section(table, span)?;
            let topology = Topology::load(&source.path(t.file.get_ref())).map_err(|e| {
                let reason = std::error::Error::source(&e).map(|s| format!(" ({s})"));
                source.error(
                    Some(t.file.span()),
                    format!("{e}{}", reason.unwrap_or_default()),
                )
            })?;
            (topology, t.spreading, t.host_delay)
        }
    };
    Ok(Network {
        topology,
        bottleneck,
        spreading: spreading.into(),
        host_delay: host_delay.0,
    })
}

/// What the builders call differently.
fn plan_key(key: &'static str) -> &'static str {
    match key {
        "host_capacity" | "host_capacity_bps" => "host_rate",
        "fabric_capacity" | "fabric_capacity_bps" => "fabric_rate",
        "core_capacity" | "core_capacity_bps" => "core_rate",
        "capacity" | "capacity_bps" => "rate",
        key => key,
    }
}

/// The rate of leaf–spine links: as given, or by oversubscription, or the same as hosts'.
fn fabric_rate(source: &Source<'_>, t: &LeafSpine, span: Range<usize>) -> Result<u64, PlanError> {
    match (t.fabric_rate, &t.oversubscription) {
        (Some(_), Some(ratio)) => Err(source.error(
            Some(ratio.span()),
            "`fabric_rate` and `oversubscription` say the same; keep one",
        )),
        (Some(rate), None) => Ok(rate.0),
        (None, None) => Err(source.error(
            Some(span),
            "`fabric_rate` is missing (or `oversubscription`, from which it follows)",
        )),
        (None, Some(ratio)) => {
            let value = *ratio.get_ref();
            let down = t.host_rate.0 as f64 * f64::from(t.hosts_per_rack);
            let rate = down / (f64::from(t.spines) * value);
            if value.is_finite() && value > 0.0 && rate.is_finite() && rate >= 1.0 {
                Ok(rate.round() as u64)
            } else {
                let message = format!("`oversubscription` is {value}; it must be a positive ratio");
                Err(source.error(Some(ratio.span()), message))
            }
        }
    }
}

/// Two leaves on either side of a bottleneck. The topology's builders put a spine between leaves; its
/// far links are made so fast (80 ps for 1,000 bytes) and without delay that they do not show, and what
/// is left are three links: sender, bottleneck, receiver.
fn dumbbell(source: &Source<'_>, t: &Dumbbell) -> Result<Topology, PlanError> {
    let pairs = *t.pairs.get_ref();
    let rate = t.bottleneck_rate.unwrap_or(t.host_rate).0;
    let text = format!(
        r#"
kind = "two_tier_clos"
[parameters]
racks = 2
hosts_per_rack = {pairs}
spines = 1
host_capacity = "{}bit/s"
fabric_capacity = "{rate}bit/s"
host_delay = "{}ns"
fabric_delay = "{}ns"
ipv4_base = "none"
ipv6_base = "none"
[[link]]
from = "spine1"
to = "leaf2"
capacity = "100Tbit/s"
delay = "0ns"
[[link]]
from = "leaf2"
to = "spine1"
capacity = "100Tbit/s"
delay = "0ns"
"#,
        t.host_rate.0,
        t.link_delay.ns(),
        t.bottleneck_delay.unwrap_or(t.link_delay).ns(),
    );
    Topology::from_toml_str(&text, "dumbbell")
        .map_err(|e| source.error(Some(t.pairs.span()), format!("impossible topology: {e}")))
}
