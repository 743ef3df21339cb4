//! The networks of the paper: the dumbbell of fig. 9, its kin of fig. 11 with congestion at another
//! hop, and the fat tree of §5.5.

use ratewright_topology::{EcmpConfig, FatTree, HostId, LinkId, Topology, TwoTierClos};

use crate::experiment::ExperimentError;
use crate::time::Span;

/// Propagation over any link (§5).
pub const LINK_DELAY: Span = Span::from_ns(1_500);
/// Switches of a path in figures 9 and 11.
pub const SWITCHES: u64 = 3;

/// ECMP by which acknowledgements pass the switches of their data (§3.1), for every scheme.
const SYMMETRIC: EcmpConfig = EcmpConfig {
    seed: 0,
    symmetric: true,
};

/// Hop of a path over three switches at which flows meet. The text of fig. 11 says no more; here
/// paths are of equal length, and every flow meets the others at the same hop of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub enum Hop {
    /// Senders share the first switch, and so its link to the second: the dumbbell of fig. 9.
    First,
    /// Senders have a first switch each; flows share the link from the second to the last.
    Middle,
    /// Flows share nothing but the receiver's link.
    Last,
}

impl Hop {
    /// All hops, in the order of a path.
    pub const ALL: [Self; 3] = [Self::First, Self::Middle, Self::Last];

    /// Name in figures.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::First => "first hop",
            Self::Middle => "middle hop",
            Self::Last => "last hop",
        }
    }
}

/// A network with flows that meet at one hop.
#[derive(Debug)]
pub struct Meeting {
    /// The network.
    pub topology: Topology,
    /// The shared link.
    pub bottleneck: LinkId,
    /// Sender and receiver of each flow.
    pub ends: Vec<(HostId, HostId)>,
    /// Rate of all links, in bit/s.
    pub rate_bps: u64,
}

impl Meeting {
    /// Makes the network of `flows` flows over links of this rate.
    ///
    /// # Errors
    /// If there are no flows, or more than a network has room for.
    pub fn new(hop: Hop, flows: u32, rate_bps: u64) -> Result<Self, ExperimentError> {
        // A rack's switch, a spine and another rack's switch are the three switches of a path.
        let (rack_sizes, spines) = match hop {
            Hop::First => (vec![flows, flows], 1),
            Hop::Middle => (racks_of_one(flows, flows), 1),
            Hop::Last => (racks_of_one(flows, 1), flows),
        };
        let mut topology = TwoTierClos {
            racks: rack_sizes.len() as u32,
            rack_sizes,
            spines,
            host_capacity_bps: rate_bps,
            fabric_capacity_bps: rate_bps,
            host_delay_ns: LINK_DELAY.as_ns(),
            fabric_delay_ns: LINK_DELAY.as_ns(),
            ecmp: SYMMETRIC,
            ..TwoTierClos::default()
        }
        .build()?;
        if hop == Hop::Last {
            // Each sender's switch keeps one spine of its own.
            for leaf in 1..=flows {
                for spine in (1..=flows).filter(|spine| *spine != leaf) {
                    let ends = [format!("leaf{leaf}"), format!("spine{spine}")];
                    if let Some(link) = link(&topology, &ends) {
                        let back = topology.reverse_link(link);
                        topology.set_link_up(link, false);
                        topology.set_link_up(back, false);
                    }
                }
            }
        }
        let receiver = |flow: u32| match hop {
            Hop::First | Hop::Middle => flows + flow,
            Hop::Last => flows,
        };
        let names = match hop {
            Hop::First => ["leaf1".to_owned(), "spine1".to_owned()],
            Hop::Middle => ["spine1".to_owned(), format!("leaf{}", flows + 1)],
            Hop::Last => [format!("leaf{}", flows + 1), format!("h{}", flows + 1)],
        };
        Ok(Self {
            // The names are the builder's own, which a test holds.
            bottleneck: link(&topology, &names).unwrap_or(LinkId(0)),
            topology,
            ends: (0..flows)
                .map(|flow| (HostId(flow), HostId(receiver(flow))))
                .collect(),
            rate_bps,
        })
    }
}

/// Returns the link between two nodes, by their names.
fn link(topology: &Topology, [from, to]: &[String; 2]) -> Option<LinkId> {
    topology.link_between(topology.node_by_name(from)?, topology.node_by_name(to)?)
}

/// Returns the sizes of `flows` racks of one host, and of a last one.
fn racks_of_one(flows: u32, last: u32) -> Vec<u32> {
    (0..flows).map(|_| 1).chain([last]).collect()
}

/// The fat tree of §5.5: k = 8, 128 hosts, 100 Gbit/s, under symmetric ECMP for every scheme.
///
/// # Errors
/// None in truth; the builder's are passed on.
pub fn fat_tree(rate_bps: u64) -> Result<Topology, ExperimentError> {
    let tree = FatTree {
        k: 8,
        capacity_bps: rate_bps,
        delay_ns: LINK_DELAY.as_ns(),
        ecmp: SYMMETRIC,
        ..FatTree::default()
    };
    Ok(tree.build()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratewright_topology::PathChoice;

    /// All paths are of three switches, and the flows have exactly the bottleneck in common.
    #[test]
    fn flows_meet_at_the_one_hop_that_is_named() {
        for (index, hop) in Hop::ALL.into_iter().enumerate() {
            for flows in [2, 4] {
                let meeting = Meeting::new(hop, flows, 100_000_000_000).unwrap();
                let paths = meeting.ends.iter().map(|&(src, dst)| {
                    let path = meeting.topology.path(src, dst, PathChoice::Hash(7));
                    path.unwrap().iter().copied().collect::<Vec<_>>()
                });
                for path in paths {
                    assert_eq!(path.len(), 4, "{hop:?}");
                    // Link 0 is the sender's own; link i + 1 leaves the path's switch i.
                    assert_eq!(path[index + 1], meeting.bottleneck, "{hop:?} {flows}");
                    let earlier = path[..=index].iter();
                    for link in earlier {
                        let users = meeting.ends.iter().filter(|&&(src, dst)| {
                            let path = meeting.topology.path(src, dst, PathChoice::Hash(7));
                            path.unwrap().iter().any(|l| l == link)
                        });
                        assert_eq!(users.count(), 1, "{hop:?} {flows}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_fat_tree_has_128_hosts_at_1_to_1() {
        let tree = fat_tree(100_000_000_000).unwrap();
        assert_eq!((tree.hosts().len(), tree.switches().len()), (128, 80));
        assert!(tree.ecmp().symmetric);
    }
}
