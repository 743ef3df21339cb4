//! Checks of hosts' prefixes: none is of special use, and no two hosts share addresses, unless the
//! file allows nested prefixes.

use std::ops::Range;

use ipnet::IpNet;

use super::Source;
use super::hosts::PrefixSpans;
use crate::error::FileError;
use crate::host_prefix::special_use;
use crate::ids::HostId;
use crate::model::Host;

/// Prefix, its host, and its index in the host's list.
type PrefixEntry = (IpNet, HostId, usize);

/// Finds the first pair of prefixes of which one covers the other, in address order. With `nested`,
/// only equal prefixes count, and those of one host.
pub(super) fn overlap(hosts: &[Host], nested: bool) -> Option<(PrefixEntry, PrefixEntry)> {
    let mut all: Vec<PrefixEntry> = hosts
        .iter()
        .flat_map(|h| h.prefixes.iter().enumerate().map(|(i, p)| (*p, h.id, i)))
        .collect();
    // In this order a covering prefix comes before everything that it covers.
    all.sort_by_key(|(p, host, i)| (p.network(), p.prefix_len(), *host, *i));
    // Stack of the prefixes that cover the present one, the shortest first: prefixes nest or are
    // disjoint.
    let mut covering: Vec<PrefixEntry> = Vec::new();
    for entry in all {
        while covering
            .last()
            .is_some_and(|outer| !outer.0.contains(&entry.0))
        {
            covering.pop();
        }
        // With `nested`, an outer prefix of another host may be covered lawfully.
        let clash = covering
            .iter()
            .find(|outer| !nested || outer.0 == entry.0 || outer.1 == entry.1);
        if let Some(outer) = clash {
            return Some((*outer, entry));
        }
        covering.push(entry);
    }
    None
}

/// Checks the prefixes of all hosts. O(n log n) in their number.
pub(super) fn check(
    hosts: &[Host],
    source: &Source<'_>,
    spans: &PrefixSpans,
    nested: bool,
) -> Result<(), FileError> {
    for host in hosts {
        for (index, prefix) in host.prefixes.iter().enumerate() {
            if let Some(special) = special_use(prefix) {
                let message = format!(
                    "prefix {prefix} of host {:?} is {special}; list the addresses by which other hosts reach it",
                    host.name
                );
                let span = spans.get(&(host.id, index)).cloned();
                return Err(source.error(span, Some("prefixes"), message));
            }
        }
    }
    let Some((outer, inner)) = overlap(hosts, nested) else {
        return Ok(());
    };
    // The later one in the file is at fault. Generated prefixes have no position, and never clash
    // among themselves.
    let span = |p: PrefixEntry| -> Option<Range<usize>> { spans.get(&(p.1, p.2)).cloned() };
    let (culprit, other) = if span(outer).map(|s| s.start) > span(inner).map(|s| s.start) {
        (outer, inner)
    } else {
        (inner, outer)
    };
    let name = |p: PrefixEntry| &hosts[p.1.index()].name;
    let message = if culprit.1 == other.1 {
        format!(
            "host {:?} lists {} beside {}, which covers the same addresses; keep one",
            name(culprit),
            culprit.0,
            other.0
        )
    } else if culprit.0 == other.0 {
        format!(
            "prefix {} of host {:?} belongs to host {:?} already; give each host its own",
            culprit.0,
            name(culprit),
            name(other)
        )
    } else {
        format!(
            "prefix {} of host {:?} overlaps {} of host {:?}; give each host its own, or set `nested_prefixes = true` to let the longest win",
            culprit.0,
            name(culprit),
            other.0,
            name(other)
        )
    };
    Err(source.error(span(culprit), Some("prefixes"), message))
}
