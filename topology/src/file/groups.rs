//! The list `[[group]]`: hosts among which a single flow has a bound of its own.

use indexmap::IndexMap;
use serde::Deserialize;
use toml::Spanned;

use super::Source;
use super::values::Scaled;
use crate::error::FileError;
use crate::flow_caps::{FlowCaps, HostGroup, MAX_GROUPS_OF_HOST, TooManyGroups};
use crate::ids::HostId;
use crate::topology::Topology;

/// The longest name of a group, in bytes.
const MAX_NAME: usize = 255;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GroupEntry {
    name: Spanned<String>,
    max_flow_bps: Scaled<1>,
    #[serde(default)]
    hosts: Vec<Spanned<String>>,
    #[serde(default)]
    racks: Vec<Spanned<String>>,
}

/// Sets the bounds of single flows. Names are those that hosts have by now.
pub(super) fn apply(
    topology: &mut Topology,
    source: &Source<'_>,
    max_flow_bps: Option<Scaled<1>>,
    entries: &[Spanned<GroupEntry>],
) -> Result<(), FileError> {
    if !entries.is_empty() {
        // Entries of hosts may have renamed what groups list.
        topology.refresh();
    }
    // Racks are named many times over; the topology itself looks one up by a walk.
    let racks: IndexMap<&str, _> = topology
        .racks()
        .iter()
        .map(|rack| (rack.name.as_str(), rack))
        .collect();
    let mut seen: IndexMap<&str, usize> = IndexMap::new();
    let mut groups = Vec::with_capacity(entries.len());
    for entry in entries {
        let entry = entry.get_ref();
        let name = entry.name.get_ref().as_str();
        let bad_name =
            |message: String| source.error(Some(entry.name.span()), Some("group"), message);
        if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
            return Err(bad_name(format!(
                "the name of a group has 1 to {MAX_NAME} bytes and no control characters"
            )));
        }
        if let Some(earlier) = seen.insert(name, source.line(entry.name.span().start)) {
            return Err(bad_name(format!(
                "group {name:?} is listed already at line {earlier}; keep one entry"
            )));
        }
        let mut hosts = Vec::new();
        for host in &entry.hosts {
            hosts.push(topology.host_by_name(host.get_ref()).ok_or_else(|| {
                let message = format!(
                    "there is no host {:?}; a group lists hosts by their names here",
                    host.get_ref()
                );
                source.error(Some(host.span()), Some("hosts"), message)
            })?);
        }
        for rack in &entry.racks {
            let found = racks.get(rack.get_ref().as_str()).ok_or_else(|| {
                let message = format!(
                    "there is no rack {:?}; use one of rack1 to rack{}",
                    rack.get_ref(),
                    racks.len()
                );
                source.error(Some(rack.span()), Some("racks"), message)
            })?;
            hosts.extend(found.host_ids());
        }
        hosts.sort_unstable();
        hosts.dedup();
        if hosts.is_empty() {
            return Err(bad_name(format!(
                "group {name:?} has no hosts; list `hosts` or `racks`, or leave the entry out"
            )));
        }
        groups.push(HostGroup {
            name: name.to_owned(),
            max_flow_bps: entry.max_flow_bps.0,
            hosts,
        });
    }
    let bound = max_flow_bps.map(|bound| bound.0);
    topology.flow_caps = FlowCaps::new(bound, groups, topology.hosts().len())
        .map_err(|TooManyGroups(host)| too_many(topology, source, entries, host))?;
    Ok(())
}

/// Points at the last group, which is not the only one to blame but the one to look at.
fn too_many(
    topology: &Topology,
    source: &Source<'_>,
    entries: &[Spanned<GroupEntry>],
    host: HostId,
) -> FileError {
    let message = format!(
        "host {:?} is in more than {MAX_GROUPS_OF_HOST} groups; take it out of some",
        topology.hosts()[host.index()].name
    );
    source.error(entries.last().map(Spanned::span), Some("group"), message)
}
