//! ECMP spreads flows evenly, and with the symmetric option a flow and its acknowledgements take
//! the same path (fncc §3.1).

use std::net::IpAddr;

use proptest::prelude::*;
use ratewright_topology::{
    FatTree, FiveTuple, HostId, IpNet, PathChoice, Topology, TwoTierClos, flow_hash,
};

use crate::nets;

fn address(net: &Topology, host: HostId, v6: bool) -> IpAddr {
    let of_family = |p: &&IpNet| matches!(p, IpNet::V6(_)) == v6;
    let prefixes = &net.hosts()[host.index()].prefixes;
    prefixes
        .iter()
        // Some random networks have addresses of one family only.
        .find(of_family)
        .or(prefixes.first())
        .expect("hosts have an address")
        .addr()
}

/// Pearson's statistic against an even spread.
fn chi_square(counts: &[u64]) -> f64 {
    let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    counts
        .iter()
        .map(|c| (*c as f64 - expected).powi(2) / expected)
        .sum()
}

/// The flows that are hard on a hash: few hosts, consecutive ports.
fn flows(net: &Topology, v6: bool) -> impl Iterator<Item = (HostId, HostId, FiveTuple)> {
    let (last, count) = (net.hosts().len() as u32 - 1, 4_096u32);
    (0..count).map(move |i| {
        // Four sources and four destinations, so that most of the entropy is in the port.
        let (src, dst) = (HostId(i % 4), HostId(last - (i / 4) % 4));
        let tuple = FiveTuple {
            src: address(net, src, v6),
            dst: address(net, dst, v6),
            src_port: 32_768 + (i / 16) as u16,
            dst_port: 5_201,
            protocol: 6,
        };
        (src, dst, tuple)
    })
}

#[test]
fn flows_spread_evenly_over_spines() {
    for symmetric in [false, true] {
        for v6 in [false, true] {
            for seed in 0..16 {
                let net = TwoTierClos {
                    racks: 4,
                    spines: 8,
                    ..TwoTierClos::default()
                }
                .build()
                .unwrap();
                let mut counts = [0; 8];
                for (src, dst, tuple) in flows(&net, v6) {
                    let path = net
                        .path(
                            src,
                            dst,
                            PathChoice::Hash(flow_hash(seed, symmetric, &tuple)),
                        )
                        .unwrap();
                    counts[(path[1].0 - net.links().iter().find(|l| l.level == 2).unwrap().id.0)
                        as usize
                        % 8] += 1;
                }
                // 7 degrees of freedom: 29.9 is exceeded once in 10,000 by chance.
                assert!(
                    chi_square(&counts) < 29.9,
                    "seed {seed}, v6 {v6}, symmetric {symmetric}: {counts:?}"
                );
            }
        }
    }
}

#[test]
fn flows_spread_evenly_over_aggregation_switches_and_cores() {
    let net = FatTree {
        k: 8,
        ..FatTree::default()
    }
    .build()
    .unwrap();
    for seed in 0..16 {
        let mut counts = [0; 16];
        for (src, dst, tuple) in flows(&net, true) {
            let path = net
                .path(src, dst, PathChoice::Hash(flow_hash(seed, false, &tuple)))
                .unwrap();
            let core = net
                .node_name(net.links()[path[2].index()].to)
                .trim_start_matches("core");
            counts[core.parse::<usize>().unwrap() - 1] += 1;
        }
        // 15 degrees of freedom: 44.3 is exceeded once in 10,000 by chance.
        assert!(chi_square(&counts) < 44.3, "seed {seed}: {counts:?}");
    }
}

fn tuples() -> impl Strategy<Value = FiveTuple> {
    let address = || {
        prop_oneof![
            any::<[u8; 4]>().prop_map(IpAddr::from),
            any::<[u8; 16]>().prop_map(IpAddr::from),
            Just(IpAddr::from([10, 0, 0, 1])),
        ]
    };
    (
        address(),
        address(),
        any::<u16>(),
        any::<u16>(),
        any::<u8>(),
    )
        .prop_map(|(src, dst, src_port, dst_port, protocol)| FiveTuple {
            src,
            dst,
            src_port,
            dst_port,
            protocol,
        })
}

proptest! {
    #[test]
    fn the_symmetric_hash_knows_no_direction(seed: u32, tuple in tuples()) {
        prop_assert_eq!(flow_hash(seed, true, &tuple), flow_hash(seed, true, &tuple.reversed()));
        // And it is the plain hash of one of the two directions.
        let plain = [flow_hash(seed, false, &tuple), flow_hash(seed, false, &tuple.reversed())];
        prop_assert!(plain.contains(&flow_hash(seed, true, &tuple)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever has failed, as long as both directions have a path.
    #[test]
    fn with_symmetric_hashing_the_way_back_is_the_mirror_image(net in nets::damaged(), port: u16) {
        if !net.ecmp().symmetric {
            return Ok(());
        }
        for a in net.hosts() {
            for b in net.hosts().iter().filter(|b| b.id != a.id) {
                let (src, dst) = (address(&net, a.id, false), address(&net, b.id, false));
                let tuple = FiveTuple { src, dst, src_port: port, dst_port: 80, protocol: 6 };
                let hash = |t: &FiveTuple| PathChoice::Hash(flow_hash(net.ecmp().seed, true, t));
                let forth = net.path(a.id, b.id, hash(&tuple));
                let back = net.path(b.id, a.id, hash(&tuple.reversed()));
                // A cut-off host fails in both directions or in one; only two paths can be
                // compared.
                if let (Ok(forth), Ok(back)) = (forth, back) {
                    let mirrored: Vec<_> = back.iter().rev().map(|l| net.reverse_link(*l)).collect();
                    prop_assert_eq!(forth.as_slice(), mirrored.as_slice());
                }
            }
        }
    }
}
