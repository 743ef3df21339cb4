//! Datacenter topologies for Ratewright: hosts, racks, links, Clos builders, ECMP paths,
//! failures and block partitions. No flows, no time, no sockets.
//!
//! | module | holds |
//! |---|---|
//! | [`ids`] | the dense ids of hosts, racks, switches and links |
//! | [`model`] | hosts, racks, switches and directed links |
//! | [`Parameters`] | parameters of the four kinds: big switch, two-tier Clos, fat tree, three-tier Clos |
//! | [`builders`] | their assembly into hosts, racks, switches and links, with addresses |
//! | [`Topology`] | the whole network, its epoch, failures, repairs and capacity changes |
//! | [`ecmp`] | the 5-tuple hash that picks one of several equal paths |
//! | [`path`] | the links of a flow, by hash or by explicit route |
//! | [`partition`] | blocks of whole racks for the parallel allocator |
//! | [`frames`] | line rates, MTUs and frames' overhead, and what can be allocated of them |
//! | `host_prefix` | which prefixes a host may have, and how many |
//! | `places` | spare places: hosts that join and leave, and their prefixes |
//! | [`render`] | a text summary, an SVG picture, a DOT graph |
//! | [`units`] | capacities and delays as people write them |

mod addressing;
pub mod builders;
pub mod ecmp;
mod error;
mod file;
mod flow_caps;
pub mod frames;
mod host_prefix;
pub mod ids;
mod lookup;
pub mod model;
mod parameters;
pub mod partition;
pub mod path;
mod places;
pub mod render;
mod shape;
mod topology;
pub mod units;

pub use addressing::Addressing;
pub use ecmp::{EcmpConfig, FiveTuple, flow_hash};
pub use error::{BuildError, FileError, TopologyError};
pub use flow_caps::HostGroup;
pub use frames::{Frame, Frames};
pub use host_prefix::{MAX_HOST_PREFIXES, SpecialUse, special_use};
pub use ids::{HostId, LinkId, RackId, SwitchId};
pub use ipnet::IpNet;
pub use model::{Direction, Host, Link, Node, Rack, Switch, Tenure, TopologyKind};
pub use parameters::{BigSwitch, FatTree, Parameters, ThreeTierClos, TwoTierClos};
pub use partition::{Block, LinkBlock, Partition, PartitionError};
pub use path::{Path, PathChoice, PathError};
pub use places::{PlaceError, is_host_name, prefix_of_uri, uri_of_prefix};
pub use topology::Topology;
