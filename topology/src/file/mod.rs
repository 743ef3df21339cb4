//! The topology file: TOML, read strictly.
//!
//! ```toml
//! kind = "two_tier_clos"        # big_switch, two_tier_clos, fat_tree or three_tier_clos
//! max_flow_bps = 5_000_000_000  # optional: most that one flow gets, between any two hosts
//!
//! [parameters]
//! racks = 2
//! hosts_per_rack = 2            # or rack_sizes = [2, 2]
//! spare_hosts = 4               # optional: places in each rack for hosts that join at run time
//! spines = 2
//! host_capacity = "10Gbit/s"
//! fabric_capacity = "40Gbit/s"
//! host_delay = "2us"            # optional, as are fabric_delay, ipv4_base, ipv6_base
//!
//! [frames]                      # optional: with it, capacities are line rates
//! mtu = 1500
//! overhead = 38                 # bytes that a link carries for each frame beside its packet
//! fabric_overhead = 38          # the same between switches
//!
//! [ecmp]                        # optional
//! seed = 7
//! symmetric = true
//!
//! [[host]]                      # optional: renames h1, h2, … in order, or what it `replaces`
//! name = "db1"
//! prefixes = ["192.168.0.1", "fd00:1::/64"]
//!
//! [[link]]                      # optional: one link that differs
//! from = "leaf1"
//! to = "spine2"
//! capacity = "10Gbit/s"         # or capacity_gbps = 10, capacity_mbps = 10000
//! baseline = "2Gbit/s"          # what it always has, where the rest is credit
//! mtu = 9000                    # and frame_overhead, where they differ from [frames]
//! both_ways = true
//!
//! [[group]]                     # optional: hosts among which one flow has a bound of its own
//! name = "placement group a"
//! max_flow_bps = 10_000_000_000
//! racks = ["rack1"]             # and hosts = ["db1", …]
//!
//! [[failed]]                    # optional: what is down at the start
//! switch = "spine1"             # or from = "leaf1", to = "spine1"
//! ```
//!
//! Unknown keys are errors, and every error names the file, the line, and what would be right.

mod frames;
mod groups;
mod hosts;
mod links;
mod parameters;
mod prefixes;
mod values;
mod write;

use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::ecmp::EcmpConfig;
use crate::error::{FileError, TopologyError};
use crate::model::TopologyKind;
use crate::topology::Topology;
use frames::FramesTable;
use groups::GroupEntry;
use hosts::HostEntry;
use links::{FailedEntry, LinkEntry};
use values::Scaled;

impl Topology {
    /// Reads a topology from the text of a file; `origin` names the file in errors.
    ///
    /// # Errors
    /// If the text is no TOML, has unknown keys, or describes no valid network.
    pub fn from_toml_str(text: &str, origin: &str) -> Result<Self, TopologyError> {
        let source = Source { text, origin };
        Ok(read(&source)?)
    }

    /// Reads a topology file.
    ///
    /// # Errors
    /// As [`from_toml_str`](Self::from_toml_str), and if the file cannot be read.
    pub fn load(path: &Path) -> Result<Self, TopologyError> {
        let text = std::fs::read_to_string(path).map_err(|source| TopologyError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::from_toml_str(&text, &path.display().to_string())
    }
}

/// Text of the file, for errors that point into it.
struct Source<'a> {
    text: &'a str,
    origin: &'a str,
}

impl Source<'_> {
    fn error(
        &self,
        span: Option<Range<usize>>,
        key: Option<&str>,
        message: impl Into<String>,
    ) -> FileError {
        let line = span.map(|s| self.line(s.start));
        FileError {
            origin: self.origin.to_owned(),
            line,
            key: key.map(str::to_owned),
            message: message.into(),
        }
    }

    fn line(&self, offset: usize) -> usize {
        let before = self
            .text
            .as_bytes()
            .get(..offset)
            .unwrap_or(self.text.as_bytes());
        // Lines count from 1, as editors do. An offset beyond the text counts as its end.
        1 + before.iter().filter(|b| **b == b'\n').count()
    }

    fn toml_error(&self, error: &toml::de::Error) -> FileError {
        self.error(error.span(), None, error.message().trim())
    }
}

/// Contents of the file; `P` is the parameter table of the kind.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File<P> {
    #[serde(rename = "kind")]
    _kind: String,
    parameters: P,
    #[serde(default)]
    nested_prefixes: bool,
    max_flow_bps: Option<Scaled<1>>,
    frames: Option<FramesTable>,
    #[serde(default)]
    ecmp: EcmpTable,
    #[serde(default)]
    host: Vec<Spanned<HostEntry>>,
    #[serde(default)]
    link: Vec<Spanned<LinkEntry>>,
    #[serde(default)]
    group: Vec<Spanned<GroupEntry>>,
    #[serde(default)]
    failed: Vec<Spanned<FailedEntry>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct EcmpTable {
    #[serde(default)]
    seed: u32,
    #[serde(default)]
    symmetric: bool,
}

fn read(source: &Source<'_>) -> Result<Topology, FileError> {
    let document = DeTable::parse(source.text).map_err(|e| source.toml_error(&e))?;
    // The kind decides which keys [parameters] may have, so it is read before the rest.
    match kind(source, document.get_ref())? {
        TopologyKind::BigSwitch => {
            read_kind::<parameters::BigSwitchTable>(source, document.get_ref())
        }
        TopologyKind::TwoTierClos => {
            read_kind::<parameters::TwoTierTable>(source, document.get_ref())
        }
        TopologyKind::FatTree => read_kind::<parameters::FatTreeTable>(source, document.get_ref()),
        TopologyKind::ThreeTierClos => {
            read_kind::<parameters::ThreeTierTable>(source, document.get_ref())
        }
    }
}

fn kind(source: &Source<'_>, document: &DeTable<'_>) -> Result<TopologyKind, FileError> {
    let names = TopologyKind::ALL
        .map(|k| format!("{:?}", k.as_str()))
        .join(", ");
    let Some((_, value)) = find(document, "kind") else {
        return Err(source.error(
            Some(0..0),
            Some("kind"),
            format!("`kind` is missing; set it to one of {names}"),
        ));
    };
    let found = match value.get_ref() {
        DeValue::String(name) => TopologyKind::ALL.into_iter().find(|k| k.as_str() == name),
        _ => None,
    };
    found.ok_or_else(|| {
        let text = source.text.get(value.span()).unwrap_or_default();
        source.error(
            Some(value.span()),
            Some("kind"),
            format!("`kind` is {text}; it must be one of {names}"),
        )
    })
}

fn read_kind<P: DeserializeOwned + parameters::ParameterTable>(
    source: &Source<'_>,
    document: &DeTable<'_>,
) -> Result<Topology, FileError> {
    let Some((key, value)) = find(document, "parameters") else {
        let message = format!(
            "the table [parameters] is missing; add it with {}",
            P::REQUIRED
        );
        return Err(source.error(Some(0..0), Some("parameters"), message));
    };
    let header = key.span();
    let file: File<P> = toml::from_str(source.text).map_err(|e| source.toml_error(&e))?;
    let ecmp = EcmpConfig {
        seed: file.ecmp.seed,
        symmetric: file.ecmp.symmetric,
    };
    let place = |key: &str| {
        // Errors point at the key's value, or at the table's header if the key is missing.
        let at_key = match value.get_ref() {
            DeValue::Table(table) => find(table, key).map(|(_, v)| v.span()),
            _ => None,
        };
        Some(at_key.unwrap_or_else(|| header.clone()))
    };
    let parameters = file
        .parameters
        .into_parameters(ecmp)
        .map_err(|w| source.error(place(w.key), Some(w.key), w.message))?;
    let mut topology = parameters
        .build()
        .map_err(|e| source.error(place(e.key()), Some(e.key()), e.to_string()))?;
    let spans = hosts::apply(&mut topology, source, &file.host)?;
    topology.nested_prefixes = file.nested_prefixes;
    prefixes::check(topology.hosts(), source, &spans, file.nested_prefixes)?;
    if let Some(table) = &file.frames {
        topology = topology.with_frames(table.frames());
    }
    links::apply(&mut topology, source, &file.link)?;
    groups::apply(&mut topology, source, file.max_flow_bps, &file.group)?;
    links::apply_failed(&mut topology, source, &file.failed)?;
    topology.refresh();
    Ok(topology)
}

type TableEntry<'t, 'a> = (
    &'t Spanned<toml::de::DeString<'a>>,
    &'t Spanned<DeValue<'a>>,
);

fn find<'t, 'a>(table: &'t DeTable<'a>, key: &str) -> Option<TableEntry<'t, 'a>> {
    table.iter().find(|(k, _)| k.get_ref() == key)
}
