//! Blocks cover all racks exactly once, are even, and own the links of their racks.

use std::collections::BTreeSet;

use proptest::prelude::*;
use ratewright_topology::{Direction, Node, PartitionError, RackId};

use crate::nets;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn blocks_cover_all_racks_once_and_evenly(net in nets::whole(), exponent in 0u32..6) {
        let blocks = 1 << exponent;
        let (racks, pods) = (net.racks().len() as u32, net.pods());
        let partition = match net.partition(blocks) {
            Ok(partition) => partition,
            Err(PartitionError::TooMany { max, .. } | PartitionError::PodsNotAligned { max, .. }) => {
                prop_assert!(blocks > max);
                prop_assert!(net.partition(max).is_ok(), "the number that the error names works");
                prop_assert!(blocks > pods);
                return Ok(());
            }
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        };
        prop_assert_eq!(partition.blocks().len(), blocks as usize);
        let covered: Vec<u32> = partition.blocks().iter().flat_map(|b| b.racks.clone()).collect();
        prop_assert_eq!(covered, (0..racks).collect::<Vec<_>>());
        let hosts: Vec<u32> = partition.blocks().iter().flat_map(|b| b.hosts.clone()).collect();
        prop_assert_eq!(hosts, (0..net.hosts().len() as u32).collect::<Vec<_>>());

        // Even up to the largest thing that is not cut: a pod, or within each pod a rack.
        for (index, block) in (0..).zip(partition.blocks()) {
            prop_assert!(!block.racks.is_empty());
            prop_assert!(block.racks.clone().all(|r| partition.block_of_rack(RackId(r)) == index));
            let pods_of: BTreeSet<u32> = block.racks.clone().map(|r| net.racks()[r as usize].pod).collect();
            let (among, parts, uncut): (Vec<u32>, u32, Vec<u32>) = if blocks <= pods {
                let of_pod = |p| net.racks().iter().filter(|r| r.pod == p).map(|r| r.hosts.len() as u32).sum();
                ((0..racks).collect(), blocks, (0..pods).map(of_pod).collect())
            } else {
                prop_assert_eq!(pods_of.len(), 1, "a block stays inside a pod");
                let of_pod: Vec<u32> = (0..racks).filter(|r| pods_of.contains(&net.racks()[*r as usize].pod)).collect();
                let sizes = of_pod.iter().map(|r| net.racks()[*r as usize].hosts.len() as u32).collect();
                (of_pod, blocks / pods, sizes)
            };
            let total: usize = among.iter().map(|r| net.racks()[*r as usize].hosts.len()).sum();
            let ideal = total as f64 / f64::from(parts);
            let largest = f64::from(uncut.into_iter().max().unwrap());
            prop_assert!((block.hosts.len() as f64 - ideal).abs() <= largest);
        }
    }

    #[test]
    fn every_link_is_in_the_link_block_of_its_racks(net in nets::whole(), exponent in 0u32..5) {
        let Ok(partition) = net.partition(1 << exponent) else { return Ok(()) };
        for link in net.links() {
            let membership = partition.link_block(link.id);
            prop_assert_eq!(membership.direction, link.direction);
            prop_assert!(membership.blocks.is_power_of_two());
            prop_assert_eq!(membership.first_block % membership.blocks, 0);
            prop_assert!(membership.blocks == 1 || link.level == 3);
            let lower = if link.direction == Direction::Up { link.from } else { link.to };
            let pod_or_rack: Vec<RackId> = match lower {
                Node::Host(h) => vec![net.hosts()[h.index()].rack],
                Node::Switch(s) => match net.switches()[s.index()] {
                    ref leaf if leaf.rack.is_some() => leaf.rack.into_iter().collect(),
                    ref agg => net.racks().iter().filter(|r| Some(r.pod) == agg.pod).map(|r| r.id).collect(),
                },
            };
            let blocks: BTreeSet<u32> = pod_or_rack.iter().map(|r| partition.block_of_rack(*r)).collect();
            let named: BTreeSet<u32> = (membership.first_block..membership.first_block + membership.blocks).collect();
            prop_assert_eq!(blocks, named);
        }
    }
}
