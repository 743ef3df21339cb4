//! The parts of a network: hosts, racks, switches and directed links.

use std::fmt;
use std::ops::Range;

use ipnet::IpNet;

use crate::frames::Frame;
use crate::ids::{HostId, LinkId, RackId, SwitchId};

/// One end of a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Node {
    /// A host.
    Host(HostId),
    /// A switch of any tier.
    Switch(SwitchId),
}

/// Direction of a link, seen from the hosts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// Away from the hosts.
    Up,
    /// Towards the hosts.
    Down,
}

/// The family of a topology, as written in `kind` of the file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TopologyKind {
    /// Only the edge links are modelled (flowtune §6).
    BigSwitch,
    /// Racks under spines.
    TwoTierClos,
    /// A three-tier Clos out of equal k-port switches.
    FatTree,
    /// Racks in pods under aggregation switches under cores.
    ThreeTierClos,
}

impl TopologyKind {
    /// All kinds, in the order in which messages list them.
    pub const ALL: [Self; 4] = [
        Self::BigSwitch,
        Self::TwoTierClos,
        Self::FatTree,
        Self::ThreeTierClos,
    ];

    /// The name in the file format.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BigSwitch => "big_switch",
            Self::TwoTierClos => "two_tier_clos",
            Self::FatTree => "fat_tree",
            Self::ThreeTierClos => "three_tier_clos",
        }
    }
}

impl fmt::Display for TopologyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A server with one network interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// The host's own id.
    pub id: HostId,
    /// Unique name; also the name in the host's certificate.
    pub name: String,
    /// The rack that it stands in.
    pub rack: RackId,
    /// The IPv4 and IPv6 prefixes that are reached through this host.
    pub prefixes: Vec<IpNet>,
    /// Holder of the place.
    pub tenure: Tenure,
}

/// Holder of a place in a rack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Tenure {
    /// A host of the topology file.
    File,
    /// Nobody: a host may join here at run time.
    Spare,
    /// A host that has joined at run time.
    Member,
}

/// Hosts that share one leaf switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rack {
    /// The rack's own id.
    pub id: RackId,
    /// Unique name.
    pub name: String,
    /// The leaf switch; in a big switch the one switch that all racks share.
    pub leaf: SwitchId,
    /// The pod, counted from 0; 0 where the topology has no pods.
    pub pod: u32,
    /// The ids of the hosts, which are consecutive.
    pub hosts: Range<u32>,
}

impl Rack {
    /// The hosts of the rack in id order.
    pub fn host_ids(&self) -> impl ExactSizeIterator<Item = HostId> + use<> {
        let count = self.hosts.len();
        let first = self.hosts.start;
        (0..count).map(move |i| HostId(first + i as u32))
    }
}

/// A switch of any tier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Switch {
    /// The switch's own id.
    pub id: SwitchId,
    /// Unique name.
    pub name: String,
    /// 1 leaf (top of rack), 2 spine or aggregation, 3 core.
    pub tier: u8,
    /// The rack of a leaf.
    pub rack: Option<RackId>,
    /// The pod of a leaf or aggregation switch in a three-tier network.
    pub pod: Option<u32>,
    /// The switch itself is in service.
    pub up: bool,
}

/// A directed link; a cable is two of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// The link's own id.
    pub id: LinkId,
    /// The sending end.
    pub from: Node,
    /// The receiving end.
    pub to: Node,
    /// Allocatable capacity when the link is up, in bit/s: frames with their headers.
    pub capacity_bps: u64,
    /// Capacity as the file gives it, in bit/s: all that the link carries.
    pub line_rate_bps: u64,
    /// Part of the line rate that the link always has, in bit/s, where the rest is credit: an
    /// instance's baseline. `None`: all of it.
    pub baseline_bps: Option<u64>,
    /// The full frame, which makes what can be allocated of a line rate.
    pub frame: Frame,
    /// One-way propagation and switching delay, in nanoseconds.
    pub delay_ns: u64,
    /// 1 host–leaf, 2 leaf–spine or leaf–aggregation, 3 aggregation–core.
    pub level: u8,
    /// Away from the hosts, or towards them.
    pub direction: Direction,
    /// The link itself is in service; the switches at its ends count separately, see
    /// [`Topology::effective_capacity_bps`](crate::Topology::effective_capacity_bps).
    pub up: bool,
}

impl Link {
    /// Changes the line rate and the frame, and what can be allocated with them.
    pub(crate) fn carry(&mut self, line_rate_bps: u64, frame: Frame) {
        self.line_rate_bps = line_rate_bps;
        self.frame = frame;
        self.capacity_bps = frame.allocatable_bps(line_rate_bps);
    }
}
