//! Lists `[[link]]` and `[[failed]]`: links that differ, and failures at the start.

use std::ops::Range;

use indexmap::IndexMap;
use serde::Deserialize;
use toml::Spanned;

use super::Source;
use super::frames::{MtuBytes, OverheadBytes};
use super::values::{Capacity, Delay, Scaled};
use crate::error::FileError;
use crate::frames::Frame;
use crate::ids::{LinkId, SwitchId};
use crate::model::Node;
use crate::topology::Topology;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkEntry {
    from: Spanned<String>,
    to: Spanned<String>,
    capacity: Option<Capacity>,
    capacity_gbps: Option<Scaled<1_000_000_000>>,
    capacity_mbps: Option<Scaled<1_000_000>>,
    baseline: Option<Capacity>,
    delay: Option<Delay>,
    mtu: Option<MtuBytes>,
    frame_overhead: Option<OverheadBytes>,
    #[serde(default)]
    both_ways: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FailedEntry {
    switch: Option<Spanned<String>>,
    from: Option<Spanned<String>>,
    to: Option<Spanned<String>>,
    #[serde(default)]
    both_ways: bool,
}

/// Sets capacities, baselines, delays and frames of single links.
pub(super) fn apply(
    topology: &mut Topology,
    source: &Source<'_>,
    entries: &[Spanned<LinkEntry>],
) -> Result<(), FileError> {
    if entries.is_empty() {
        return Ok(());
    }
    // Entries of hosts may have renamed the nodes that links are named by.
    topology.refresh();
    let links = LinkIndex::new(topology);
    let mut seen: IndexMap<LinkId, Range<usize>> = IndexMap::new();
    for spanned in entries {
        let entry = spanned.get_ref();
        let error = |message: &str| source.error(Some(entry.from.span()), Some("link"), message);
        let capacities = [
            entry.capacity.map(|c| c.0),
            entry.capacity_gbps.map(|c| c.0),
            entry.capacity_mbps.map(|c| c.0),
        ];
        // Three spellings of one value: at most one may be given.
        let mut given = capacities.into_iter().flatten();
        let capacity_bps = given.next();
        if given.next().is_some() {
            return Err(error(
                "the capacity is given twice; keep one of `capacity`, `capacity_gbps`, `capacity_mbps`",
            ));
        }
        let of_frame = entry.mtu.is_some() || entry.frame_overhead.is_some();
        let baseline_bps = entry.baseline.map(|c| c.0);
        let sets_rates = capacity_bps.is_some() || baseline_bps.is_some();
        if !(sets_rates || entry.delay.is_some() || of_frame) {
            return Err(error(
                "this entry changes nothing; add `capacity`, `baseline`, `delay`, `mtu` or `frame_overhead`, or leave it out",
            ));
        }
        if of_frame && topology.frames().is_none() {
            return Err(error(
                "`mtu` and `frame_overhead` need the table [frames], with which all capacities are line rates",
            ));
        }
        for id in links.resolve(topology, source, &entry.from, &entry.to, entry.both_ways)? {
            if let Some(earlier) = seen.insert(id, entry.from.span()) {
                let message = format!(
                    "the link from {:?} to {:?} is listed already at line {}; keep one entry",
                    entry.from.get_ref(),
                    entry.to.get_ref(),
                    source.line(earlier.start)
                );
                return Err(error(&message));
            }
            let link = &mut topology.links[id.index()];
            let frame = Frame {
                mtu_bytes: entry.mtu.map_or(link.frame.mtu_bytes, |b| b.0),
                overhead_bytes: entry
                    .frame_overhead
                    .map_or(link.frame.overhead_bytes, |b| b.0),
            };
            link.carry(capacity_bps.unwrap_or(link.line_rate_bps), frame);
            link.baseline_bps = baseline_bps;
            if link.baseline_bps > Some(link.line_rate_bps) {
                return Err(error(
                    "the baseline is above the capacity; a link always has its baseline, and its capacity for a while",
                ));
            }
            link.delay_ns = entry.delay.map_or(link.delay_ns, |d| d.0);
        }
    }
    Ok(())
}

/// Marks links and switches as failed.
pub(super) fn apply_failed(
    topology: &mut Topology,
    source: &Source<'_>,
    entries: &[Spanned<FailedEntry>],
) -> Result<(), FileError> {
    if entries.is_empty() {
        return Ok(());
    }
    topology.refresh();
    let links = LinkIndex::new(topology);
    for spanned in entries {
        match spanned.get_ref() {
            FailedEntry {
                switch: Some(name),
                from: None,
                to: None,
                both_ways: false,
            } => {
                let id = switch(topology, source, name)?;
                if !std::mem::replace(&mut topology.switches[id.index()].up, false) {
                    let message = format!(
                        "switch {:?} is listed as failed already; keep one entry",
                        name.get_ref()
                    );
                    return Err(source.error(Some(name.span()), Some("switch"), message));
                }
            }
            FailedEntry {
                switch: None,
                from: Some(from),
                to: Some(to),
                both_ways,
            } => {
                for id in links.resolve(topology, source, from, to, *both_ways)? {
                    if !std::mem::replace(&mut topology.links[id.index()].up, false) {
                        let (from_name, to_name) = (from.get_ref(), to.get_ref());
                        let message = format!(
                            "the link between {from_name:?} and {to_name:?} is listed as failed already; keep one entry"
                        );
                        return Err(source.error(Some(from.span()), Some("failed"), message));
                    }
                }
            }
            entry => {
                // The first key of the entry is the best position for the message.
                let first = [&entry.switch, &entry.from, &entry.to]
                    .into_iter()
                    .flatten()
                    .map(Spanned::span)
                    .next();
                let message = "an entry of [[failed]] is either a `switch`, or a link `from` … `to` … (with `both_ways` for both directions)";
                return Err(source.error(first.or(Some(spanned.span())), Some("failed"), message));
            }
        }
    }
    Ok(())
}

fn switch(
    topology: &Topology,
    source: &Source<'_>,
    name: &Spanned<String>,
) -> Result<SwitchId, FileError> {
    topology.switch_by_name(name.get_ref()).ok_or_else(|| {
        let message = format!(
            "there is no switch {:?}; {}",
            name.get_ref(),
            switch_names(topology)
        );
        source.error(Some(name.span()), Some("switch"), message)
    })
}

/// Lists the switches of each tier by first and last name, for a message.
fn switch_names(topology: &Topology) -> String {
    let tier = |tier: u8| {
        let mut of_tier = topology.switches().iter().filter(move |s| s.tier == tier);
        let first = of_tier.next()?;
        Some(match of_tier.next_back() {
            Some(last) => format!("{} to {}", first.name, last.name),
            None => first.name.clone(),
        })
    };
    let tiers: Vec<String> = (1..=3).filter_map(tier).collect();
    format!("the switches are {}", tiers.join(", "))
}

/// Index of the links by their ends.
struct LinkIndex(IndexMap<(Node, Node), LinkId>);

impl LinkIndex {
    fn new(topology: &Topology) -> Self {
        Self(
            topology
                .links()
                .iter()
                .map(|l| ((l.from, l.to), l.id))
                .collect(),
        )
    }

    fn resolve(
        &self,
        topology: &Topology,
        source: &Source<'_>,
        from: &Spanned<String>,
        to: &Spanned<String>,
        both_ways: bool,
    ) -> Result<impl Iterator<Item = LinkId> + use<>, FileError> {
        let node = |name: &Spanned<String>, key| {
            topology.node_by_name(name.get_ref()).ok_or_else(|| {
                let message = format!(
                    "there is no host or switch {:?}; {}",
                    name.get_ref(),
                    switch_names(topology)
                );
                source.error(Some(name.span()), Some(key), message)
            })
        };
        let (a, b) = (node(from, "from")?, node(to, "to")?);
        let Some(forth) = self.0.get(&(a, b)).copied() else {
            let neighbours: Vec<&str> = topology
                .links()
                .iter()
                .filter(|l| l.from == a)
                .map(|l| topology.node_name(l.to))
                .collect();
            let message = format!(
                "there is no link from {:?} to {:?}; links from {:?} lead to {}",
                from.get_ref(),
                to.get_ref(),
                from.get_ref(),
                list(&neighbours)
            );
            return Err(source.error(Some(to.span()), Some("to"), message));
        };
        // Every cable has both directions, so `back` is only empty if it was not asked for.
        let back = self.0.get(&(b, a)).copied().filter(|_| both_ways);
        Ok(std::iter::once(forth).chain(back))
    }
}

/// Joins a short list, and the ends of a long one.
fn list(names: &[&str]) -> String {
    match names {
        [first, .., last] if names.len() > 8 => format!("{first} to {last}"),
        _ => names.join(", "),
    }
}
