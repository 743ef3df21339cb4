//! Random networks of all kinds, small enough for exhaustive checks.

use proptest::prelude::*;
use ratewright_topology::{
    Addressing, BigSwitch, EcmpConfig, FatTree, Frames, LinkId, Parameters, SwitchId,
    ThreeTierClos, Topology, TwoTierClos,
};

pub(crate) fn ecmp() -> impl Strategy<Value = EcmpConfig> {
    (any::<u32>(), any::<bool>()).prop_map(|(seed, symmetric)| EcmpConfig { seed, symmetric })
}

fn addressing() -> impl Strategy<Value = Addressing> {
    let defaults = Addressing::default();
    prop_oneof![
        // Mostly both families, sometimes only one.
        4 => Just(defaults),
        1 => Just(Addressing { ipv4_base: None, ..defaults }),
        1 => Just(Addressing { ipv6_base: None, ..defaults }),
        1 => Just(Addressing { ipv4_base: "172.16.0.0/12".parse().ok(), ipv6_base: "2001:db8::/32".parse().ok() }),
    ]
}

/// Uneven racks, or none listed.
fn sizes(racks: u32) -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![
        Just(Vec::new()),
        prop::collection::vec(1u32..7, racks as usize)
    ]
}

fn capacity() -> impl Strategy<Value = u64> {
    prop_oneof![Just(10_000_000_000), 1u64..1_000_000_000_000]
}

pub(crate) fn parameters() -> impl Strategy<Value = Parameters> {
    let big = (1u32..6, 1u32..6, capacity(), addressing(), ecmp()).prop_flat_map(
        |(racks, hosts, cap, addressing, ecmp)| {
            sizes(racks).prop_map(move |rack_sizes| {
                Parameters::BigSwitch(BigSwitch {
                    racks,
                    hosts_per_rack: hosts,
                    rack_sizes,
                    host_capacity_bps: cap,
                    host_delay_ns: 1_234,
                    spare_hosts: 0,
                    addressing,
                    ecmp,
                })
            })
        },
    );
    let two = (
        1u32..7,
        1u32..6,
        1u32..6,
        capacity(),
        capacity(),
        addressing(),
        ecmp(),
    )
        .prop_flat_map(
            |(racks, hosts, spines, host_capacity_bps, fabric_capacity_bps, addressing, ecmp)| {
                sizes(racks).prop_map(move |rack_sizes| {
                    Parameters::TwoTierClos(TwoTierClos {
                        racks,
                        hosts_per_rack: hosts,
                        rack_sizes,
                        spines,
                        host_capacity_bps,
                        fabric_capacity_bps,
                        addressing,
                        ecmp,
                        ..TwoTierClos::default()
                    })
                })
            },
        );
    let tree = (1u32..4, capacity(), addressing(), ecmp()).prop_map(
        |(half, capacity_bps, addressing, ecmp)| {
            Parameters::FatTree(FatTree {
                // A fat tree's k is even.
                k: 2 * half,
                capacity_bps,
                delay_ns: 0,
                addressing,
                ecmp,
            })
        },
    );
    let three = (
        1u32..5,
        1u32..4,
        1u32..4,
        1u32..4,
        1u32..4,
        capacity(),
        addressing(),
        ecmp(),
    )
        .prop_flat_map(
            |(pods, racks_per_pod, hosts, aggs, cores, core_capacity_bps, addressing, ecmp)| {
                sizes(pods * racks_per_pod).prop_map(move |rack_sizes| {
                    Parameters::ThreeTierClos(ThreeTierClos {
                        pods,
                        racks_per_pod,
                        hosts_per_rack: hosts,
                        rack_sizes,
                        aggs_per_pod: aggs,
                        // Every aggregation switch of a pod needs an equal share of the cores.
                        cores: aggs * cores,
                        core_capacity_bps,
                        addressing,
                        ecmp,
                        ..ThreeTierClos::default()
                    })
                })
            },
        );
    prop_oneof![big, two, tree, three]
}

pub(crate) fn whole() -> impl Strategy<Value = Topology> {
    parameters().prop_map(|p| p.build().expect("the strategy makes valid parameters"))
}

pub(crate) fn frames() -> impl Strategy<Value = Frames> {
    let bytes = || prop_oneof![Just(38u16), 14u16..200];
    (
        prop_oneof![Just(1_500u16), 576u16..10_000],
        bytes(),
        bytes(),
    )
        .prop_map(
            |(mtu_bytes, overhead_bytes, fabric_overhead_bytes)| Frames {
                mtu_bytes,
                overhead_bytes,
                fabric_overhead_bytes,
            },
        )
}

/// Networks with some links and switches down and some capacities changed; of some, capacities are
/// line rates.
pub(crate) fn damaged() -> impl Strategy<Value = Topology> {
    let index = any::<prop::sample::Index>;
    (
        whole(),
        prop::collection::vec(index(), 0..6),
        prop::collection::vec(index(), 0..3),
        prop::collection::vec((index(), capacity()), 0..4),
        prop::option::of(frames()),
    )
        .prop_map(|(mut net, links, switches, capacities, frames)| {
            if let Some(frames) = frames {
                net = net.with_frames(frames);
            }
            for i in links {
                // An index relative to the length: shrinking the network keeps it valid.
                net.set_link_up(LinkId(i.index(net.links().len()) as u32), false);
            }
            for i in switches {
                net.set_switch_up(SwitchId(i.index(net.switches().len()) as u32), false);
            }
            for (i, capacity_bps) in capacities {
                net.set_capacity_bps(LinkId(i.index(net.links().len()) as u32), capacity_bps);
            }
            net
        })
}
