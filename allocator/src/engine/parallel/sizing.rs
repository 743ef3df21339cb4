//! Default numbers of blocks and workers for a topology and a machine.

use std::thread;

use ratewright_topology::{PartitionError, Topology};

use super::Layout;
use super::layout::MOST_BLOCKS;

/// Flows of a host at once in the largest network of the paper's table (flowtune §7: 49,152 flows
/// of 4,608 hosts).
const FLOWS_PER_HOST: f64 = 49_152.0 / 4_608.0;
/// Flows up to which a network stays one block: one FlowBlock of them fits a core's second-level
/// cache.
const FLOWS_UNCUT: f64 = 20_000.0;
/// Flows of a FlowBlock in larger networks: a third of its capacity. Smaller FlowBlocks would fit
/// that cache, but each rack's rows would be emptier, which costs more.
const FLOWS_PER_FLOW_BLOCK: f64 = 70_000.0;
/// Hosts below which a second worker costs more in barriers than it computes.
const HOSTS_PER_WORKER: usize = 192;

/// Default number of blocks for `hosts` hosts: a power of two.
#[must_use]
pub fn default_blocks(hosts: usize) -> u32 {
    let flows = hosts as f64 * FLOWS_PER_HOST;
    if flows <= FLOWS_UNCUT {
        return 1;
    }
    // A network of b blocks has b² FlowBlocks, hence the root.
    let blocks = (flows / FLOWS_PER_FLOW_BLOCK).sqrt().ceil().max(2.0) as u32;
    blocks.next_power_of_two().min(MOST_BLOCKS)
}

/// Default number of workers for this machine and `hosts` hosts. One core is left to the threads
/// that talk with the hosts.
#[must_use]
pub fn default_workers(hosts: usize) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    workers_for(cores, hosts)
}

fn workers_for(cores: usize, hosts: usize) -> usize {
    let useful = (hosts / HOSTS_PER_WORKER).max(1);
    cores.saturating_sub(1).clamp(1, useful)
}

impl Layout {
    /// Cuts a topology into `blocks` blocks, or into the default number for it and its `workers`.
    ///
    /// # Errors
    /// The topology cannot be cut into `blocks` blocks.
    pub fn fitting(
        topology: &Topology,
        blocks: Option<u32>,
        workers: usize,
    ) -> Result<Self, PartitionError> {
        if let Some(blocks) = blocks {
            return Self::of(topology, blocks);
        }
        // b blocks have b² FlowBlocks, and a worker needs at least one.
        let of_workers = (workers as f64).sqrt().ceil() as u32;
        let mut blocks = default_blocks(topology.hosts().len())
            .max(of_workers.next_power_of_two())
            .min(MOST_BLOCKS);
        loop {
            match Self::of(topology, blocks) {
                // Few racks, or pods that do not divide alike: fewer blocks may do. One block
                // always does.
                Err(_) if blocks > 1 => blocks /= 2,
                cut => return cut,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ratewright_topology::{ThreeTierClos, TwoTierClos};

    use super::*;

    #[test]
    fn blocks_grow_with_the_square_root_of_the_hosts() {
        // The paper's sizes, a large two-tier and a large three-tier network.
        let sizes = [9, 384, 4_608, 12_288, 61_440, 100_000, 262_144];
        assert_eq!(sizes.map(default_blocks), [1, 1, 2, 2, 4, 4, 8]);
    }

    #[test]
    fn a_core_stays_free_and_small_networks_have_one_worker() {
        let cases = [(1, 4_608), (2, 4_608), (4, 4_608), (64, 4_608), (64, 9)];
        assert_eq!(
            cases.map(|(cores, hosts)| workers_for(cores, hosts)),
            [1, 1, 3, 24, 1]
        );
    }

    #[test]
    fn a_topology_is_cut_as_far_as_its_racks_and_pods_allow() {
        let racks = |racks| TwoTierClos {
            racks,
            hosts_per_rack: 4,
            spines: 2,
            ..TwoTierClos::default()
        };
        let of_racks = |count: u32, workers| {
            let topology = racks(count).build().expect("valid");
            Layout::fitting(&topology, None, workers)
                .expect("cut")
                .blocks()
        };
        assert_eq!(of_racks(8, 1), 1);
        assert_eq!(of_racks(8, 4), 2);
        assert_eq!(of_racks(8, 5), 4);
        assert_eq!(of_racks(3, 5), 2, "three racks make no four blocks");
        let pods = ThreeTierClos {
            pods: 3,
            racks_per_pod: 2,
            ..ThreeTierClos::default()
        };
        let topology = pods.build().expect("valid");
        let cut = Layout::fitting(&topology, None, 9).expect("cut");
        assert_eq!(cut.blocks(), 2, "three pods are cut into two blocks only");
        let topology = racks(3).build().expect("valid");
        assert!(Layout::fitting(&topology, Some(4), 1).is_err());
        assert!(Layout::fitting(&topology, Some(3), 1).is_err());
    }
}
