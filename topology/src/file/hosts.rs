//! The list `[[host]]`: names and prefixes of single hosts.

use std::ops::Range;

use indexmap::{IndexMap, IndexSet};
use serde::Deserialize;
use toml::Spanned;

use super::Source;
use super::values::Prefix;
use crate::error::FileError;
use crate::host_prefix::MAX_HOST_PREFIXES;
use crate::ids::HostId;
use crate::model::{Node, Tenure};
use crate::places::{MAX_NAME, is_host_name};
use crate::topology::Topology;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostEntry {
    name: Spanned<String>,
    replaces: Option<Spanned<String>>,
    rack: Option<Spanned<String>>,
    prefixes: Option<Spanned<Vec<Spanned<Prefix>>>>,
}

/// Positions of the prefixes in the file, by host and by index in its list.
pub(super) type PrefixSpans = IndexMap<(HostId, usize), Range<usize>>;

/// Applies the entries to hosts. An entry is for the host that it `replaces`; else for the host of
/// that generated name; else for the first host (of its `rack`, if it names one) that no other
/// entry is for.
pub(super) fn apply(
    topology: &mut Topology,
    source: &Source<'_>,
    entries: &[Spanned<HostEntry>],
) -> Result<PrefixSpans, FileError> {
    let targets = host_targets(topology, source, entries)?;
    let mut spans = PrefixSpans::new();
    for (entry, target) in entries.iter().zip(&targets) {
        let entry = entry.get_ref();
        let host = &mut topology.hosts[target.index()];
        // Only the names change here; the index of names follows with `refresh`.
        host.name.clone_from(entry.name.get_ref());
        let was_spare = std::mem::replace(&mut host.tenure, Tenure::File) == Tenure::Spare;
        let Some(prefixes) = &entry.prefixes else {
            if was_spare {
                let message =
                    "a host on a spare place has no generated addresses; list its `prefixes`";
                return Err(source.error(Some(entry.name.span()), Some("prefixes"), message));
            }
            continue;
        };
        let error =
            |message: String| source.error(Some(prefixes.span()), Some("prefixes"), message);
        match prefixes.get_ref().len() {
            0 => return Err(error("`prefixes` is empty; list at least one, or leave it out to keep the generated ones".into())),
            n if n > MAX_HOST_PREFIXES => return Err(error(format!("{n} prefixes; at most {MAX_HOST_PREFIXES} per host are supported"))),
            _ => {}
        }
        host.prefixes = prefixes.get_ref().iter().map(|p| p.get_ref().0).collect();
        spans.extend(
            prefixes
                .get_ref()
                .iter()
                .enumerate()
                .map(|(i, p)| ((*target, i), p.span())),
        );
    }
    check_names(topology, source, entries, &targets)?;
    Ok(spans)
}

fn host_targets(
    topology: &Topology,
    source: &Source<'_>,
    entries: &[Spanned<HostEntry>],
) -> Result<Vec<HostId>, FileError> {
    let is_named = |host: HostId| topology.hosts()[host.index()].tenure == Tenure::File;
    let last = topology.hosts().iter().filter(|h| is_named(h.id)).count();
    // First pass: entries that name their host. The others may only take hosts that are left over.
    let mut claimed: IndexMap<HostId, Range<usize>> = IndexMap::new();
    let mut targets: Vec<Option<HostId>> = Vec::with_capacity(entries.len());
    for entry in entries {
        let HostEntry { name, replaces, .. } = entry.get_ref();
        // `replaces` wins over the name: with it, the name may be another host's generated one.
        let target = match replaces {
            Some(replaces) => Some(place_by_name(topology, replaces.get_ref()).ok_or_else(|| {
                let message = format!(
                    "`replaces` is {:?}, which no host is generated as; use one of h1 to h{last}{}",
                    replaces.get_ref(),
                    if last < topology.hosts().len() {
                        ", or a spare place such as rack1/spare1"
                    } else {
                        ""
                    }
                );
                source.error(Some(replaces.span()), Some("replaces"), message)
            })?),
            None => topology.host_by_name(name.get_ref()),
        };
        if let Some(host) = target
            && let Some(earlier) = claimed.insert(host, entry.span())
        {
            let message = format!(
                "this entry is for host {}, as is the one at line {}; leave one of them out",
                topology.hosts()[host.index()].name,
                source.line(earlier.start)
            );
            return Err(source.error(Some(name.span()), Some("host"), message));
        }
        targets.push(target);
    }
    // Per rack, the search goes on where it ended: linear in all, not quadratic.
    let mut next_free = IndexMap::<Option<u32>, u32>::new();
    entries
        .iter()
        .zip(targets)
        .map(|(entry, target)| {
            let rack = entry.get_ref().rack.as_ref().map(|r| rack(topology, source, r)).transpose()?;
            let host = match target {
                Some(host) => host,
                None => {
                    let range = rack.map_or(0..topology.hosts().len() as u32, |r| topology.racks()[r as usize].hosts.clone());
                    let next = next_free.entry(rack).or_insert(range.start);
                    let free = (*next..range.end).map(HostId).find(|h| is_named(*h) && !claimed.contains_key(h)).ok_or_else(|| {
                        let place = rack.map_or("the topology".into(), |r| topology.racks()[r as usize].name.clone());
                        let message = format!(
                            "host {:?} is one too many: {place} has {} hosts; leave it out, or raise the number in [parameters]",
                            entry.get_ref().name.get_ref(),
                            range.clone().filter(|h| is_named(HostId(*h))).count()
                        );
                        source.error(Some(entry.get_ref().name.span()), Some("host"), message)
                    })?;
                    *next = free.0 + 1;
                    claimed.insert(free, entry.span());
                    free
                }
            };
            let actual = topology.hosts()[host.index()].rack.0;
            match (&entry.get_ref().rack, rack) {
                (Some(written), Some(rack)) if rack != actual => {
                    let message = format!(
                        "`rack` is {:?}, but {}, which this entry is for, stands in {:?}",
                        written.get_ref(),
                        topology.hosts()[host.index()].name,
                        topology.racks()[actual as usize].name
                    );
                    Err(source.error(Some(written.span()), Some("rack"), message))
                }
                _ => Ok(host),
            }
        })
        .collect()
}

/// The host that is generated under this name, or the spare place of this name.
fn place_by_name(topology: &Topology, name: &str) -> Option<HostId> {
    match topology.node_by_name(name) {
        Some(Node::Host(host)) => Some(host),
        _ => None,
    }
}

fn rack(
    topology: &Topology,
    source: &Source<'_>,
    name: &Spanned<String>,
) -> Result<u32, FileError> {
    topology
        .rack_by_name(name.get_ref())
        .map(|r| r.0)
        .ok_or_else(|| {
            let message = format!(
                "there is no rack {:?}; use one of rack1 to rack{}",
                name.get_ref(),
                topology.racks().len()
            );
            source.error(Some(name.span()), Some("rack"), message)
        })
}

/// Checks that names fit certificates and metrics and are unique among hosts and switches.
fn check_names(
    topology: &Topology,
    source: &Source<'_>,
    entries: &[Spanned<HostEntry>],
    targets: &[HostId],
) -> Result<(), FileError> {
    let mut seen: IndexMap<&str, Node> = topology
        .switches()
        .iter()
        .map(|s| (s.name.as_str(), Node::Switch(s.id)))
        .collect();
    // Generated names count as taken only where no entry renames the host.
    let written: IndexSet<HostId> = targets.iter().copied().collect();
    for host in topology.hosts().iter().filter(|h| !written.contains(&h.id)) {
        seen.insert(&host.name, Node::Host(host.id));
    }
    for (entry, target) in entries.iter().zip(targets) {
        let name = &entry.get_ref().name;
        let text = name.get_ref().as_str();
        let error = |message: String| source.error(Some(name.span()), Some("name"), message);
        if !is_host_name(text) {
            return Err(error(format!(
                "{text:?} is no host name; use 1 to {MAX_NAME} letters, digits, '-', '_' and '.'"
            )));
        }
        match seen.insert(text, Node::Host(*target)) {
            None => {}
            Some(Node::Switch(_)) => {
                return Err(error(format!(
                    "the name {text:?} belongs to a switch; give the host another one"
                )));
            }
            Some(Node::Host(_)) => {
                return Err(error(format!(
                    "the name {text:?} is used twice; every host needs its own"
                )));
            }
        }
    }
    Ok(())
}
