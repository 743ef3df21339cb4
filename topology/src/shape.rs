//! The numbering of a Clos network: every link and switch id follows from a few counts.
//!
//! All kinds are one shape: `pods × racks_per_pod` racks, each leaf under the `aggs` switches of
//! its pod, aggregation switch `a` of every pod under cores `a·cores_per_agg ..`. A two-tier Clos
//! is one pod without cores, its spines being the aggregation switches. A big switch has none of
//! either: all racks share one switch.
//!
//! Ids of links, in this order: host up, host down, leaf up, leaf down, aggregation up,
//! aggregation down; within each by host, by (rack, agg), by (pod, agg, core).
//! Ids of switches: leaves, aggregation switches by pod, cores.

use crate::ids::{HostId, LinkId, SwitchId};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    /// One switch for all racks, and only edge links.
    pub(crate) big_switch: bool,
    pub(crate) pods: u32,
    pub(crate) racks_per_pod: u32,
    /// Aggregation switches in a pod, or spines.
    pub(crate) aggs: u32,
    pub(crate) cores_per_agg: u32,
    /// Hosts of each rack.
    pub(crate) rack_sizes: Vec<u32>,
    pub(crate) hosts: u32,
}

impl Shape {
    pub(crate) fn racks(&self) -> u32 {
        self.pods * self.racks_per_pod
    }

    pub(crate) fn leaves(&self) -> u32 {
        if self.big_switch { 1 } else { self.racks() }
    }

    pub(crate) fn leaf(&self, rack: u32) -> SwitchId {
        // All racks of a big switch share switch 0.
        SwitchId(if self.big_switch { 0 } else { rack })
    }

    pub(crate) fn agg(&self, pod: u32, agg: u32) -> SwitchId {
        SwitchId(self.leaves() + pod * self.aggs + agg)
    }

    pub(crate) fn core(&self, agg: u32, core: u32) -> SwitchId {
        SwitchId(self.leaves() + self.pods * self.aggs + agg * self.cores_per_agg + core)
    }

    pub(crate) fn host_up(&self, host: HostId) -> LinkId {
        LinkId(host.0)
    }

    pub(crate) fn host_down(&self, host: HostId) -> LinkId {
        LinkId(self.hosts + host.0)
    }

    pub(crate) fn leaf_up(&self, rack: u32, agg: u32) -> LinkId {
        LinkId(2 * self.hosts + rack * self.aggs + agg)
    }

    pub(crate) fn leaf_down(&self, rack: u32, agg: u32) -> LinkId {
        LinkId(2 * self.hosts + (self.racks() + rack) * self.aggs + agg)
    }

    pub(crate) fn agg_up(&self, pod: u32, agg: u32, core: u32) -> LinkId {
        LinkId(
            2 * self.hosts
                + 2 * self.racks() * self.aggs
                + (pod * self.aggs + agg) * self.cores_per_agg
                + core,
        )
    }

    pub(crate) fn agg_down(&self, pod: u32, agg: u32, core: u32) -> LinkId {
        // The down links follow all pods' up links, as if they belonged to further pods.
        self.agg_up(self.pods + pod, agg, core)
    }

    /// The other direction of the same cable.
    pub(crate) fn reverse(&self, link: LinkId) -> LinkId {
        let mut first = 0;
        // In the order of the ids: edge, fabric, core; each level has all its up links first.
        let cables = [
            self.hosts,
            self.racks() * self.aggs,
            self.pods * self.aggs * self.cores_per_agg,
        ];
        for count in cables {
            if link.0 < first + count {
                return LinkId(link.0 + count);
            }
            if link.0 < first + 2 * count {
                return LinkId(link.0 - count);
            }
            first += 2 * count;
        }
        link
    }

    /// Number of directed links, in u64 so that it can be checked before building.
    pub(crate) fn link_count(&self) -> u64 {
        let aggs = u64::from(self.aggs);
        let racks = u64::from(self.pods) * u64::from(self.racks_per_pod);
        let fabric = racks * aggs + u64::from(self.pods) * aggs * u64::from(self.cores_per_agg);
        2 * (u64::from(self.hosts) + fabric)
    }
}
