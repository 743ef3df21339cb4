//! Errors of a topology and its file.

use std::fmt;
use std::path::PathBuf;

/// Parameters from which no network can be built.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BuildError {
    /// A count or capacity that must not be zero.
    #[error("`{key}` is 0; it must be at least 1")]
    Zero {
        /// The parameter.
        key: &'static str,
    },
    /// A value above its bound.
    #[error("`{key}` makes {count} {what}; at most {max} are supported")]
    TooMany {
        /// The parameter that matters most.
        key: &'static str,
        /// Kind of objects that are too many.
        what: &'static str,
        /// Number of objects that the parameters ask for.
        count: u64,
        /// The bound.
        max: u64,
    },
    /// A capacity or delay above its bound.
    #[error("`{key}` is {value}; at most {max} is supported")]
    TooLarge {
        /// The parameter.
        key: &'static str,
        /// The value, with its unit.
        value: String,
        /// The bound, with its unit.
        max: String,
    },
    /// A fat tree of odd or zero size.
    #[error("`k` is {k}; a fat tree needs an even k of at least 2, such as {}", (.k + 1).max(2))]
    FatTreeSize {
        /// The value of `k`.
        k: u32,
    },
    /// The list of rack sizes has the wrong length.
    #[error(
        "`rack_sizes` lists {listed} racks, but there are {racks}; list one number of hosts for each rack, or leave it out"
    )]
    RackSizes {
        /// The length of the list.
        listed: usize,
        /// The number of racks.
        racks: u64,
    },
    /// The cores cannot be shared out evenly to the aggregation switches.
    #[error("`cores` is {cores}, no multiple of `aggs_per_pod` = {aggs_per_pod}; the nearest that fit are {} and {}", .cores / .aggs_per_pod * .aggs_per_pod, (.cores / .aggs_per_pod + 1) * .aggs_per_pod)]
    CoresNotShared {
        /// The number of cores.
        cores: u32,
        /// The number of aggregation switches in a pod.
        aggs_per_pod: u32,
    },
    /// A base prefix too small for the hosts.
    #[error(
        "`{key}` = {base} is too small for {racks} racks of up to {rack_hosts} hosts; use a prefix of /{longest} or shorter"
    )]
    BaseTooSmall {
        /// The parameter.
        key: &'static str,
        /// The prefix.
        base: String,
        /// The number of racks.
        racks: usize,
        /// The size of the largest rack.
        rack_hosts: u32,
        /// The longest prefix length that would do.
        longest: u8,
    },
    /// Too many racks or hosts for any base prefix of the family.
    #[error(
        "no `{key}` is large enough for {racks} racks of up to {rack_hosts} hosts; set it to \"none\""
    )]
    NoBaseFits {
        /// The parameter.
        key: &'static str,
        /// The number of racks.
        racks: usize,
        /// The size of the largest rack.
        rack_hosts: u32,
    },
}

impl BuildError {
    /// The parameter at fault, as it is called in the file.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            Self::Zero { key }
            | Self::TooMany { key, .. }
            | Self::TooLarge { key, .. }
            | Self::BaseTooSmall { key, .. }
            | Self::NoBaseFits { key, .. } => key,
            Self::FatTreeSize { .. } => "k",
            Self::RackSizes { .. } => "rack_sizes",
            Self::CoresNotShared { .. } => "cores",
        }
    }
}

/// A mistake in a topology file: where it is, what it is, and what would be right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileError {
    /// The file, or what else the text came from.
    pub origin: String,
    /// The line, counted from 1, where one can be named.
    pub line: Option<usize>,
    /// The key at fault, where one can be named.
    pub key: Option<String>,
    /// Description of the mistake and of a correction.
    pub message: String,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.origin, self.message),
            None => write!(f, "{}: {}", self.origin, self.message),
        }
    }
}

impl std::error::Error for FileError {}

/// Error of reading or building a topology.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// The file could not be read.
    #[error("{}: cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The file has a mistake.
    #[error(transparent)]
    File(#[from] FileError),
    /// The parameters describe no network.
    #[error(transparent)]
    Build(#[from] BuildError),
}
