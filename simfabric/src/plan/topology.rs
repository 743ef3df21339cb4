//! `[topology]`: the network of a plan.

use std::collections::BTreeMap;
use std::ops::Range;

use ratewright_topology::units::MAX_CAPACITY_BPS;
use ratewright_topology::{
    Addressing, BigSwitch, BuildError, EcmpConfig, FatTree, Frames, LinkId, Node, ThreeTierClos,
    Topology, TopologyError, TwoTierClos,
};
use serde::Deserialize;
use toml::Spanned;

use super::source::{self, PlanError, Source, TomlTable};
use crate::Span;
use crate::net::port::MIN_RATE_BPS;
use crate::net::route::{Routes, StaticRoute};
use crate::net::{FabricError, Told};
use crate::rng::{Purpose, Stream};
use crate::units::{Delay, LinkRate};

/// The values of `kind`.
pub const KINDS: [&str; 6] = [
    "dumbbell",
    "leaf-spine",
    "fat-tree",
    "three-tier",
    "big-switch",
    "file",
];

/// The network of a plan, of any kind.
pub(super) struct PlannedNetwork {
    pub(super) topology: Topology,
    /// The shared link of a dumbbell, by the names of its ends.
    pub(super) bottleneck: Option<(String, String)>,
    pub(super) spraying: bool,
    pub(super) host_delay: Span,
    pub(super) host_jitter: Span,
    pub(super) routes: Vec<StaticRoute>,
    pub(super) told: Told,
}

/// `told`: capacities as the allocator is told them, in parts of the network's.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ToldTable {
    scale: Option<Spanned<f64>>,
    share: Option<Spanned<f64>>,
    #[serde(default)]
    links: BTreeMap<Spanned<String>, Spanned<f64>>,
}

/// An entry of `routes`: where it leads to, and the link that it begins with.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteTable {
    to: String,
    by: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DumbbellTable {
    pairs: u32,
    host_rate: LinkRate,
    bottleneck_rate: Option<LinkRate>,
    link_delay: Delay,
    bottleneck_delay: Option<Delay>,
    #[serde(default = "zero")]
    host_delay: Delay,
    #[serde(default = "zero")]
    host_jitter: Delay,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LeafSpineTable {
    racks: u32,
    hosts_per_rack: u32,
    spines: u32,
    host_rate: LinkRate,
    fabric_rate: Option<LinkRate>,
    oversubscription: Option<Spanned<f64>>,
    link_delay: Delay,
    fabric_delay: Option<Delay>,
    #[serde(default = "zero")]
    host_delay: Delay,
    #[serde(default = "zero")]
    host_jitter: Delay,
    #[serde(default)]
    spreading: Spread,
    #[serde(default)]
    symmetric: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FatTreeTable {
    k: u32,
    rate: LinkRate,
    link_delay: Delay,
    #[serde(default = "zero")]
    host_delay: Delay,
    #[serde(default = "zero")]
    host_jitter: Delay,
    #[serde(default)]
    spreading: Spread,
    #[serde(default)]
    symmetric: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ThreeTierTable {
    pods: u32,
    racks_per_pod: u32,
    hosts_per_rack: u32,
    aggs_per_pod: u32,
    cores: u32,
    host_rate: LinkRate,
    fabric_rate: LinkRate,
    core_rate: LinkRate,
    link_delay: Delay,
    fabric_delay: Option<Delay>,
    core_delay: Option<Delay>,
    #[serde(default = "zero")]
    host_delay: Delay,
    #[serde(default = "zero")]
    host_jitter: Delay,
    #[serde(default)]
    spreading: Spread,
    #[serde(default)]
    symmetric: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BigSwitchTable {
    hosts: u32,
    host_rate: LinkRate,
    link_delay: Delay,
    #[serde(default = "zero")]
    host_delay: Delay,
    #[serde(default = "zero")]
    host_jitter: Delay,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileTable {
    file: Spanned<String>,
    #[serde(default = "zero")]
    host_delay: Delay,
    #[serde(default = "zero")]
    host_jitter: Delay,
    #[serde(default)]
    spreading: Spread,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "lowercase")]
enum Spread {
    #[default]
    Flow,
    Packet,
}

/// Default of delays that a plan may leave out.
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

/// Hashing of switches. Seed 0 is fixed: flows take other paths by their own hashes.
const fn ecmp(symmetric: bool) -> EcmpConfig {
    EcmpConfig { seed: 0, symmetric }
}

/// Reads `[topology]`.
pub(super) fn read<'a>(
    source: &Source<'a>,
    mut table: TomlTable<'a>,
    span: Range<usize>,
    seed: u64,
) -> Result<PlannedNetwork, PlanError> {
    let (kind, at) = source.choice(&mut table, span.clone(), "kind", &KINDS)?;
    // Kept before the table is consumed: builders name their own parameters in errors, and a reader
    // of the error needs the plan's keys.
    let keys = table.iter();
    let written = TopologyKeys {
        source,
        kind,
        at,
        keys: keys
            .map(|(k, v)| (k.get_ref().to_string(), v.span()))
            .collect(),
    };
    let built = |result: Result<Topology, BuildError>| {
        result.map_err(|e| written.impossible(Some(e.key()), &e.to_string()))
    };
    // Builders call the delay of a link to a host its host delay: that is `link_delay` here. The
    // plan's `host_delay` is a host's processing, which the fabric adds.
    let mut bottleneck = None;
    let routes = source::take(&mut table, "routes");
    let told = source::take(&mut table, "told");
    let (topology, spreading, [host_delay, host_jitter]) = match kind {
        "dumbbell" => {
            let t: DumbbellTable = source.section(table, span)?;
            bottleneck = Some(("leaf1".to_owned(), "spine1".to_owned()));
            (
                dumbbell(&written, &t)?,
                Spread::Flow,
                [t.host_delay, t.host_jitter],
            )
        }
        "leaf-spine" => {
            let t: LeafSpineTable = source.section(table, span.clone())?;
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
            (
                built(clos.build())?,
                t.spreading,
                [t.host_delay, t.host_jitter],
            )
        }
        "fat-tree" => {
            let t: FatTreeTable = source.section(table, span)?;
            let tree = FatTree {
                k: t.k,
                capacity_bps: t.rate.0,
                delay_ns: t.link_delay.ns(),
                addressing: no_addresses(),
                ecmp: ecmp(t.symmetric),
            };
            (
                built(tree.build())?,
                t.spreading,
                [t.host_delay, t.host_jitter],
            )
        }
        "three-tier" => {
            let t: ThreeTierTable = source.section(table, span)?;
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
            (
                built(clos.build())?,
                t.spreading,
                [t.host_delay, t.host_jitter],
            )
        }
        "big-switch" => {
            let t: BigSwitchTable = source.section(table, span)?;
            let switch = BigSwitch {
                // All hosts at one switch, whose own capacity is no limit.
                racks: 1,
                hosts_per_rack: t.hosts,
                host_capacity_bps: t.host_rate.0,
                host_delay_ns: t.link_delay.ns(),
                addressing: no_addresses(),
                ..BigSwitch::default()
            };
            (
                built(switch.build())?,
                Spread::Flow,
                [t.host_delay, t.host_jitter],
            )
        }
        _ => {
            let t: FileTable = source.section(table, span)?;
            let topology = Topology::load(&source.path(t.file.get_ref())).map_err(|e| {
                let reason = std::error::Error::source(&e).map(|s| format!(" ({s})"));
                source.error(
                    Some(t.file.span()),
                    format!("{e}{}", reason.unwrap_or_default()),
                )
            })?;
            // Simulated frames have all their bytes, so links carry their line rates.
            let topology = match topology.frames() {
                Some(_) => topology.with_frames(Frames::AS_COUNTED),
                None => topology,
            };
            // `LinkRate` checks the rates of a plan; a topology file has not come through it.
            let slow = topology
                .links()
                .iter()
                .find(|link| link.capacity_bps < MIN_RATE_BPS);
            if let Some(link) = slow {
                let (from, to) = (topology.node_name(link.from), topology.node_name(link.to));
                let message = format!("{from}->{to} is too slow: links have at least 1Mbit/s");
                return Err(source.error(Some(t.file.span()), message));
            }
            (topology, t.spreading, [t.host_delay, t.host_jitter])
        }
    };
    let routes = routes.map_or(Ok(Vec::new()), |given| {
        let at = given.span();
        let tables = source.tables("routes", given)?.into_iter();
        let route = |(table, span)| static_route(source, &topology, table, span);
        let routes = tables.map(route).collect::<Result<Vec<_>, _>>()?;
        let wrong = |error| source.error(Some(at), wrong_route(&topology, &error));
        Routes::new(&topology, &[], &routes).map_err(wrong)?;
        Ok(routes)
    })?;
    let told = told.map_or(Ok(Told::default()), |given| {
        let (table, span) = source.table("told", given)?;
        told_capacities(source, &topology, (table, span), seed)
    })?;
    Ok(PlannedNetwork {
        topology,
        routes,
        told,
        bottleneck,
        spraying: spreading == Spread::Packet,
        host_delay: host_delay.0,
        host_jitter: host_jitter.0,
    })
}

/// Reads `told`.
fn told_capacities<'a>(
    source: &Source<'a>,
    topology: &Topology,
    (table, span): (TomlTable<'a>, Range<usize>),
    seed: u64,
) -> Result<Told, PlanError> {
    let t: ToldTable = source.section(table, span.clone())?;
    let factor = |key: &str, given: &Spanned<f64>| {
        let value = *given.get_ref();
        // Written so that NaN fails, too.
        if (Told::LEAST..=Told::MOST).contains(&value) {
            return Ok(value);
        }
        let message = format!("`{key}` is {value}; it must be from 0.001 to 1000");
        Err(source.error(Some(given.span()), message))
    };
    if t.scale.is_none()
        && let Some(share) = &t.share
    {
        let message = "`share` says of how many links `scale` is, which is missing";
        return Err(source.error(Some(share.span()), message));
    }
    if t.scale.is_none() && t.links.is_empty() {
        let message = "`told` needs `scale`, or `links` with a factor each";
        return Err(source.error(Some(span), message));
    }
    let count = topology.links().len();
    let scale = t.scale.as_ref().map_or(Ok(1.0), |s| factor("scale", s))?;
    let scaled = match &t.share {
        None => vec![true; count],
        Some(share) if (0.0..=1.0).contains(share.get_ref()) => {
            Stream::new(seed, Purpose::Told, 0).draw_share(*share.get_ref(), count)
        }
        Some(share) => {
            let message = "`share` of the links must be from 0 to 1";
            return Err(source.error(Some(share.span()), message));
        }
    };
    let mut factors: Vec<f64> = scaled
        .into_iter()
        .map(|is_scaled| if is_scaled { scale } else { 1.0 })
        .collect();
    for (name, given) in &t.links {
        let none = || source.error(Some(name.span()), no_link(name.get_ref()));
        let link = link_by_name(topology, name.get_ref()).ok_or_else(none)?;
        factors[link.index()] = factor(name.get_ref(), given)?;
    }
    let links = topology.links().iter().map(|link| link.id);
    Ok(Told::new(links.zip(factors)))
}

/// Reads an entry of `routes`.
fn static_route<'a>(
    source: &Source<'a>,
    topology: &Topology,
    table: TomlTable<'a>,
    span: Range<usize>,
) -> Result<StaticRoute, PlanError> {
    let t: RouteTable = source.section(table, span.clone())?;
    let wrong = |message: String| source.error(Some(span.clone()), message);
    let leaf = topology.switch_by_name(&t.to);
    let leaf = leaf.filter(|leaf| topology.racks().iter().any(|rack| rack.leaf == *leaf));
    let leaf = leaf.ok_or_else(|| wrong(format!("there is no leaf {:?}", t.to)))?;
    let link = link_by_name(topology, &t.by).ok_or_else(|| wrong(no_link(&t.by)))?;
    Ok(StaticRoute { leaf, link })
}

/// Says what is wrong with routes, in names.
fn wrong_route(topology: &Topology, error: &FabricError) -> String {
    let name = |switch| topology.node_name(Node::Switch(switch));
    match *error {
        FabricError::RouteLoop { switch, leaf } => format!(
            "`routes` lead packets for {} back to {}; give the switches on their way routes that leave the circle",
            name(leaf),
            name(switch)
        ),
        FabricError::StaticRoute(StaticRoute { leaf, link }) => {
            let link = &topology.links()[link.index()];
            let [from, to] = [link.from, link.to].map(|end| topology.node_name(end));
            format!(
                "{from}->{to} is no way to {}: it must be between two switches and begin elsewhere",
                name(leaf)
            )
        }
        _ => error.to_string(),
    }
}

/// Returns the link of a name like `leaf1->spine1`.
pub(super) fn link_by_name(topology: &Topology, name: &str) -> Option<LinkId> {
    let (from, to) = name.split_once("->")?;
    let end = |name: &str| topology.node_by_name(name.trim());
    topology.link_between(end(from)?, end(to)?)
}

/// Says that there is no link of a name.
pub(super) fn no_link(name: &str) -> String {
    format!("there is no link {name:?}; links are written like \"leaf1->spine1\"")
}

/// The keys of `[topology]` with their places, for errors in the plan's words.
struct TopologyKeys<'a> {
    source: &'a Source<'a>,
    kind: &'static str,
    /// The place of the kind.
    at: Range<usize>,
    keys: Vec<(String, Range<usize>)>,
}

impl TopologyKeys<'_> {
    /// The plan's key for a builder's parameter, with its place. A parameter that defaults to
    /// another key's value gets that key.
    fn key(&self, parameter: &str) -> Option<&(String, Range<usize>)> {
        let names: &[&str] = match (self.kind, parameter) {
            ("big-switch", "hosts_per_rack") => &["hosts"],
            ("dumbbell", "hosts_per_rack") => &["pairs"],
            ("dumbbell", "fabric_capacity") => &["bottleneck_rate", "host_rate"],
            ("dumbbell", "fabric_delay") => &["bottleneck_delay", "link_delay"],
            (_, "host_capacity") => &["host_rate"],
            (_, "fabric_capacity") => &["fabric_rate", "oversubscription"],
            (_, "core_capacity") => &["core_rate"],
            (_, "capacity") => &["rate"],
            (_, "host_delay" | "delay") => &["link_delay"],
            (_, "fabric_delay") => &["fabric_delay", "link_delay"],
            (_, "core_delay") => &["core_delay", "link_delay"],
            (_, other) => &[other],
        };
        let find = |name: &&str| self.keys.iter().find(|(key, _)| key == *name);
        names.iter().find_map(find)
    }

    /// An error of a builder about a parameter.
    fn impossible(&self, parameter: Option<&str>, message: &str) -> PlanError {
        // The message has the parameter between backquotes; only there it is replaced.
        let named = parameter.and_then(|parameter| Some((parameter, self.key(parameter)?)));
        let (place, message) = match named {
            Some((parameter, (key, place))) => {
                let ours = message.replace(&format!("`{parameter}`"), &format!("`{key}`"));
                (place, ours)
            }
            None => (&self.at, message.to_owned()),
        };
        let message = format!("impossible topology: {message}");
        self.source.error(Some(place.clone()), message)
    }
}

/// Rate of the links between leaves and spines, as given or from the oversubscription.
fn fabric_rate(
    source: &Source<'_>,
    t: &LeafSpineTable,
    span: Range<usize>,
) -> Result<u64, PlanError> {
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
            if !(value.is_finite() && value > 0.0) {
                let message = format!("`oversubscription` is {value}; it must be a positive ratio");
                return Err(source.error(Some(ratio.span()), message));
            }
            if t.spines == 0 || t.hosts_per_rack == 0 {
                // The builder refuses these with an error of its own; any rate will do.
                return Ok(t.host_rate.0);
            }
            // Oversubscription is the rate to hosts over the rate to spines, rack by rack.
            let down = t.host_rate.0 as f64 * f64::from(t.hosts_per_rack);
            let rate = down / (f64::from(t.spines) * value);
            if (MIN_RATE_BPS as f64..=MAX_CAPACITY_BPS as f64).contains(&rate) {
                Ok(rate.round() as u64)
            } else {
                let message = format!(
                    "`oversubscription` is {value}, which makes fabric links of {rate:.3e} bit/s; they have 1Mbit/s to 1000Tbit/s"
                );
                Err(source.error(Some(ratio.span()), message))
            }
        }
    }
}

/// Two leaves on either side of a bottleneck.
///
/// The topology's builders put a spine between leaves. Its far links are so fast (80 ps for 1,000
/// bytes, without delay) that they do not show. Three links remain: sender, bottleneck, receiver.
fn dumbbell(written: &TopologyKeys<'_>, t: &DumbbellTable) -> Result<Topology, PlanError> {
    let pairs = t.pairs;
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
    Topology::from_toml_str(&text, "dumbbell").map_err(|e| match e {
        TopologyError::File(e) => written.impossible(e.key.as_deref(), &e.message),
        other => written.impossible(None, &other.to_string()),
    })
}
