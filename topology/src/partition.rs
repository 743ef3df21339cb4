//! Blocks of whole racks for the parallel allocator (flowtune §4).
//!
//! A link up from the racks of a block belongs to the upward LinkBlock of that block, a link down
//! to them to its downward LinkBlock. In three tiers, blocks follow the pods: a block is several
//! whole pods, or a pod is a power of two of consecutive blocks. In the latter case, the links
//! between the pod and the cores form one LinkBlock. All blocks of the pod share it, one level up
//! in the aggregation.

use std::ops::Range;

use crate::ids::{LinkId, RackId};
use crate::model::{Direction, Link, Node};
use crate::topology::Topology;

/// The LinkBlock that a link belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkBlock {
    /// Upward or downward LinkBlock.
    pub direction: Direction,
    /// The block, or the first of the blocks that share the LinkBlock; a multiple of `blocks`.
    pub first_block: u32,
    /// Number of consecutive blocks that share it: 1, or a larger power of two for the core links
    /// of a pod that is cut into several blocks.
    pub blocks: u32,
}

/// A run of consecutive racks, and so of consecutive hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// The ids of its racks.
    pub racks: Range<u32>,
    /// The ids of its hosts.
    pub hosts: Range<u32>,
}

/// A topology cut into blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partition {
    blocks: Vec<Block>,
    rack_block: Vec<u32>,
    link_block: Vec<LinkBlock>,
}

/// Reason why a topology cannot be cut into a number of blocks.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PartitionError {
    /// The blocks of the parallel engine are a power of two (flowtune §4).
    #[error("{blocks} blocks: the number of blocks must be a power of two; the nearest are {} and {}", prev_power_of_two(*.blocks), .blocks.next_power_of_two())]
    NotPowerOfTwo {
        /// Requested number of blocks.
        blocks: u32,
    },
    /// A block is at least one rack.
    #[error(
        "{blocks} blocks out of {racks} racks: a block is at least one whole rack; use at most {max} blocks"
    )]
    TooMany {
        /// Requested number of blocks.
        blocks: u32,
        /// Number of racks.
        racks: u32,
        /// The largest number of blocks that works.
        max: u32,
    },
    /// More blocks than pods, and the pods cannot all be cut alike.
    #[error(
        "{blocks} blocks over {pods} pods: each pod must be cut into the same power of two of blocks, so the number of pods must be one too; use at most {max} blocks, each of whole pods"
    )]
    PodsNotAligned {
        /// Requested number of blocks.
        blocks: u32,
        /// Number of pods.
        pods: u32,
        /// The largest number of blocks that works.
        max: u32,
    },
}

const fn prev_power_of_two(n: u32) -> u32 {
    if n == 0 { 1 } else { 1 << n.ilog2() }
}

impl Topology {
    /// Cuts the network into `blocks` = 2^k blocks of whole, consecutive racks, as even in hosts
    /// as whole racks (or, where a block is several pods, whole pods) allow.
    ///
    /// # Errors
    /// If `blocks` is no power of two, or more than the racks or pods allow.
    pub fn partition(&self, blocks: u32) -> Result<Partition, PartitionError> {
        if !blocks.is_power_of_two() {
            return Err(PartitionError::NotPowerOfTwo { blocks });
        }
        let (pods, racks_per_pod) = (self.shape.pods, self.shape.racks_per_pod);
        let cuts = if blocks <= pods {
            // A block of several pods is cut between pods, so that no pod's core links belong to
            // two LinkBlocks.
            let pod_hosts: Vec<u64> = self
                .shape
                .rack_sizes
                .chunks(racks_per_pod as usize)
                .map(sum)
                .collect();
            even_cuts(&pod_hosts, blocks)
                .into_iter()
                // Cuts between pods, in units of racks.
                .map(|pod| pod * racks_per_pod)
                .collect()
        } else if !pods.is_power_of_two() {
            return Err(PartitionError::PodsNotAligned {
                blocks,
                pods,
                max: prev_power_of_two(pods),
            });
        } else if blocks / pods > racks_per_pod {
            // Each pod is cut into `blocks / pods` blocks, and a block is at least one rack.
            let max = pods * prev_power_of_two(racks_per_pod);
            return Err(PartitionError::TooMany {
                blocks,
                racks: self.shape.racks(),
                max,
            });
        } else {
            let mut cuts = Vec::with_capacity(blocks as usize + 1);
            for (pod, sizes) in (0..).zip(self.shape.rack_sizes.chunks(racks_per_pod as usize)) {
                let weights: Vec<u64> = sizes.iter().copied().map(u64::from).collect();
                let within = even_cuts(&weights, blocks / pods);
                cuts.extend(
                    // A pod's last boundary is the next pod's first.
                    within[..within.len() - 1]
                        .iter()
                        .map(|rack| pod * racks_per_pod + rack),
                );
            }
            cuts.push(self.shape.racks());
            cuts
        };
        Ok(self.cut(&cuts, blocks))
    }

    fn cut(&self, cuts: &[u32], blocks: u32) -> Partition {
        let racks = self.racks();
        let list: Vec<Block> = cuts
            .windows(2)
            .map(|w| Block {
                racks: w[0]..w[1],
                hosts: racks[w[0] as usize].hosts.start..racks[w[1] as usize - 1].hosts.end,
            })
            .collect();
        // Blocks are consecutive runs of racks, so the table is filled run by run.
        let mut rack_block = Vec::with_capacity(racks.len());
        for (index, block) in (0..).zip(&list) {
            rack_block.resize(rack_block.len() + block.racks.len(), index);
        }
        // 0 if a block is several pods; its core links then belong to that block alone.
        let blocks_per_pod = (blocks / self.shape.pods).max(1);
        let link_block = self
            .links()
            .iter()
            .map(|link| self.membership(link, &rack_block, blocks_per_pod))
            .collect();
        Partition {
            blocks: list,
            rack_block,
            link_block,
        }
    }

    fn membership(&self, link: &Link, rack_block: &[u32], blocks_per_pod: u32) -> LinkBlock {
        // The lower end names the block: an upper switch serves many.
        let lower = if link.direction == Direction::Up {
            link.from
        } else {
            link.to
        };
        let (rack, blocks) = match lower {
            Node::Host(host) => (self.hosts()[host.index()].rack.0, 1),
            Node::Switch(id) => {
                let switch = &self.switches()[id.index()];
                match (switch.rack, switch.pod) {
                    (Some(rack), _) => (rack.0, 1),
                    // An aggregation switch: its core links belong to the blocks of its pod, named
                    // by the first.
                    (None, pod) => (pod.unwrap_or(0) * self.shape.racks_per_pod, blocks_per_pod),
                }
            }
        };
        LinkBlock {
            direction: link.direction,
            first_block: rack_block[rack as usize],
            blocks,
        }
    }
}

impl Partition {
    /// The blocks in order.
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The block that a rack is in.
    ///
    /// # Panics
    /// If the rack is of another topology.
    #[must_use]
    pub fn block_of_rack(&self, rack: RackId) -> u32 {
        self.rack_block[rack.index()]
    }

    /// The LinkBlock that a link belongs to.
    ///
    /// # Panics
    /// If the link is of another topology.
    #[must_use]
    pub fn link_block(&self, link: LinkId) -> LinkBlock {
        self.link_block[link.index()]
    }

    /// The links of a LinkBlock, by id.
    pub fn links_of(&self, block: LinkBlock) -> impl Iterator<Item = LinkId> + '_ {
        (0..)
            .zip(&self.link_block)
            .filter(move |(_, b)| **b == block)
            .map(|(id, _)| LinkId(id))
    }
}

fn sum(sizes: &[u32]) -> u64 {
    sizes.iter().copied().map(u64::from).sum()
}

/// Cuts a row of weights into `parts` runs, none empty. The j-th cut is at the boundary nearest to
/// j/parts of the total. Returns `parts + 1` boundaries.
fn even_cuts(weights: &[u64], parts: u32) -> Vec<u32> {
    let parts = parts as usize;
    let total: u64 = weights.iter().sum();
    let mut cuts = vec![0];
    let (mut at, mut passed) = (0, 0);
    for part in 1..parts {
        // Compared in units of 1/parts, so that nothing is rounded.
        let ideal = total * part as u64;
        // At least one weight is left for each part behind.
        let last = weights.len() - (parts - part);
        let nearer_beyond = |passed: u64, at: usize| {
            let (here, beyond) = (passed * parts as u64, (passed + weights[at]) * parts as u64);
            // A tie goes on: the earlier parts take the rack.
            beyond.abs_diff(ideal) <= here.abs_diff(ideal)
        };
        let previous = at;
        while at < last && (at == previous || nearer_beyond(passed, at)) {
            passed += weights[at];
            at += 1;
        }
        cuts.push(at as u32);
    }
    cuts.push(weights.len() as u32);
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FatTree, ThreeTierClos, TwoTierClos};

    #[test]
    fn uniform_racks_are_cut_evenly() {
        assert_eq!(even_cuts(&[4; 8], 4), [0, 2, 4, 6, 8]);
        assert_eq!(even_cuts(&[4; 9], 4), [0, 2, 5, 7, 9]);
        assert_eq!(even_cuts(&[1, 1, 1, 1, 100], 4), [0, 2, 3, 4, 5]);
        assert_eq!(even_cuts(&[100, 1, 1, 1], 4), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn refusals_say_what_would_work() {
        let net = TwoTierClos {
            racks: 5,
            ..TwoTierClos::default()
        }
        .build()
        .unwrap();
        assert_eq!(
            net.partition(3).unwrap_err().to_string(),
            "3 blocks: the number of blocks must be a power of two; the nearest are 2 and 4"
        );
        assert_eq!(
            net.partition(8).unwrap_err().to_string(),
            "8 blocks out of 5 racks: a block is at least one whole rack; use at most 4 blocks"
        );
        let net = ThreeTierClos {
            pods: 3,
            ..ThreeTierClos::default()
        }
        .build()
        .unwrap();
        assert_eq!(
            net.partition(4).unwrap_err(),
            PartitionError::PodsNotAligned {
                blocks: 4,
                pods: 3,
                max: 2
            }
        );
        assert!(net.partition(0).is_err());
    }

    #[test]
    fn blocks_of_a_fat_tree_follow_its_pods() {
        let net = FatTree {
            k: 8,
            ..FatTree::default()
        }
        .build()
        .unwrap();
        let whole_pods = net.partition(4).unwrap();
        assert!(
            net.links()
                .iter()
                .all(|l| whole_pods.link_block(l.id).blocks == 1)
        );
        // 8 pods of 4 racks in 16 blocks: a pod is two blocks, and its core links are shared.
        let split = net.partition(16).unwrap();
        for link in net.links() {
            let block = split.link_block(link.id);
            assert_eq!(block.blocks, if link.level == 3 { 2 } else { 1 });
            assert_eq!(block.first_block % block.blocks, 0);
            assert_eq!(block.direction, link.direction);
        }
        let shared = LinkBlock {
            direction: Direction::Up,
            first_block: 2,
            blocks: 2,
        };
        assert!(
            split
                .links_of(shared)
                .all(|l| match net.links()[l.index()].from {
                    Node::Switch(agg) => net.switches()[agg.index()].pod == Some(1),
                    Node::Host(_) => false,
                })
        );
        assert_eq!(split.links_of(shared).count(), 16);
    }
}
