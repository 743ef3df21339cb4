//! Numbers of hosts, switches and links match the closed forms, and the ids their meaning.

use proptest::prelude::*;
use ratewright_topology::{
    BigSwitch, BuildError, Direction, FatTree, Node, ThreeTierClos, Topology, TwoTierClos,
};

use crate::nets;

fn links_at(net: &Topology, level: u8) -> usize {
    net.links()
        .iter()
        .filter(|l| l.level == level && l.direction == Direction::Up)
        .count()
}

#[test]
fn a_fat_tree_has_its_known_counts() {
    for k in [2usize, 4, 6, 8, 16] {
        let net = FatTree {
            k: k as u32,
            ..FatTree::default()
        }
        .build()
        .unwrap();
        assert_eq!(net.hosts().len(), k * k * k / 4);
        assert_eq!(net.switches().len(), 5 * k * k / 4);
        assert_eq!(net.racks().len(), k * k / 2);
        for level in 1..=3 {
            assert_eq!(
                links_at(&net, level),
                k * k * k / 4,
                "every level is as wide as the hosts"
            );
        }
        // Every switch has k ports.
        for switch in net.switches() {
            let ports = net
                .links()
                .iter()
                .filter(|l| l.from == Node::Switch(switch.id))
                .count();
            assert_eq!(ports, k, "{}", switch.name);
        }
    }
}

/// The network of flowtune's simulations: 4 spines over 9 racks of 16 servers.
#[test]
fn a_two_tier_clos_has_its_known_counts() {
    let net = TwoTierClos {
        racks: 9,
        hosts_per_rack: 16,
        spines: 4,
        ..TwoTierClos::default()
    }
    .build()
    .unwrap();
    assert_eq!(
        (net.hosts().len(), net.racks().len(), net.switches().len()),
        (144, 9, 13)
    );
    assert_eq!(
        (links_at(&net, 1), links_at(&net, 2), net.links().len()),
        (144, 36, 360)
    );
    assert_eq!(net.switches()[12].name, "spine4");
}

/// flowtune §6: the edge links and nothing else.
#[test]
fn a_big_switch_has_edge_links_only() {
    let net = BigSwitch {
        racks: 3,
        hosts_per_rack: 5,
        ..BigSwitch::default()
    }
    .build()
    .unwrap();
    assert_eq!(
        (net.hosts().len(), net.switches().len(), net.links().len()),
        (15, 1, 30)
    );
    assert!(net.links().iter().all(|l| l.level == 1));
}

#[test]
fn a_three_tier_clos_has_its_known_counts() {
    let clos = ThreeTierClos {
        pods: 3,
        racks_per_pod: 5,
        hosts_per_rack: 7,
        aggs_per_pod: 2,
        cores: 6,
        ..ThreeTierClos::default()
    };
    let net = clos.build().unwrap();
    assert_eq!((net.hosts().len(), net.racks().len()), (105, 15));
    assert_eq!(net.switches().len(), 15 + 6 + 6);
    assert_eq!(
        (links_at(&net, 1), links_at(&net, 2), links_at(&net, 3)),
        (105, 30, 18)
    );
}

/// Every host of a network of a hundred thousand has an address and an id of its own.
#[test]
fn a_hundred_thousand_hosts_in_three_tiers() {
    let clos = ThreeTierClos {
        pods: 32,
        racks_per_pod: 66,
        // 2112 racks of 47 hosts are 736 short of 100,000.
        rack_sizes: (0..2112).map(|rack| 47 + u32::from(rack < 736)).collect(),
        aggs_per_pod: 16,
        cores: 64,
        ..ThreeTierClos::default()
    };
    let net = clos.build().unwrap();
    assert_eq!((net.hosts().len(), net.racks().len()), (100_000, 2112));
    assert_eq!(
        (links_at(&net, 1), links_at(&net, 2), links_at(&net, 3)),
        (100_000, 2112 * 16, 32 * 64)
    );
    // Ids around 2^16 would show a truncation.
    for index in [0, 65_535, 65_536, 99_999] {
        let host = &net.hosts()[index];
        assert_eq!(host.id.index(), index);
        let address = host.prefixes[0].addr();
        assert_eq!(net.host_by_addr(address), Some(host.id));
    }
}

#[test]
fn parameters_that_describe_no_network_are_refused() {
    let two = TwoTierClos::default();
    let three = ThreeTierClos::default();
    let cases: [(BuildError, &str); 9] = [
        (
            TwoTierClos {
                racks: 0,
                ..two.clone()
            }
            .build()
            .unwrap_err(),
            "`racks` is 0; it must be at least 1",
        ),
        (
            TwoTierClos {
                spines: 0,
                ..two.clone()
            }
            .build()
            .unwrap_err(),
            "`spines` is 0; it must be at least 1",
        ),
        (
            TwoTierClos {
                fabric_capacity_bps: 0,
                ..two.clone()
            }
            .build()
            .unwrap_err(),
            "`fabric_capacity` is 0; it must be at least 1",
        ),
        (
            TwoTierClos {
                racks: 300_000,
                ..two.clone()
            }
            .build()
            .unwrap_err(),
            "`racks` makes 300000 racks; at most 262144 are supported",
        ),
        (
            TwoTierClos {
                rack_sizes: vec![1, 2],
                ..two
            }
            .build()
            .unwrap_err(),
            "`rack_sizes` lists 2 racks, but there are 4; list one number of hosts for each rack, or leave it out",
        ),
        (
            FatTree {
                k: 5,
                ..FatTree::default()
            }
            .build()
            .unwrap_err(),
            "`k` is 5; a fat tree needs an even k of at least 2, such as 6",
        ),
        (
            FatTree {
                // The largest even k: the product of hosts must saturate, not wrap.
                k: u32::MAX - 1,
                ..FatTree::default()
            }
            .build()
            .unwrap_err(),
            "`k` makes 18446744073709551615 hosts; at most 262144 are supported",
        ),
        (
            ThreeTierClos {
                cores: 5,
                ..three.clone()
            }
            .build()
            .unwrap_err(),
            "`cores` is 5, no multiple of `aggs_per_pod` = 2; the nearest that fit are 4 and 6",
        ),
        (
            ThreeTierClos {
                // A multiple of `aggs_per_pod`, so that the bound on links is what refuses it.
                cores: 2_000_000_000,
                ..three
            }
            .build()
            .unwrap_err(),
            "`cores` makes 8000000048 links; at most 2097152 are supported",
        ),
    ];
    for (error, message) in cases {
        assert_eq!(error.to_string(), message);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn ids_are_indices_and_links_come_in_pairs(net in nets::damaged()) {
        prop_assert!((0..).zip(net.hosts()).all(|(i, h)| h.id.0 == i));
        prop_assert!((0..).zip(net.racks()).all(|(i, r)| r.id.0 == i));
        prop_assert!((0..).zip(net.switches()).all(|(i, s)| s.id.0 == i));
        for (i, link) in (0..).zip(net.links()) {
            prop_assert_eq!(link.id.0, i);
            let back = &net.links()[net.reverse_link(link.id).index()];
            prop_assert_eq!((back.from, back.to, back.level), (link.to, link.from, link.level));
            prop_assert_ne!(back.direction, link.direction);
            prop_assert_eq!(net.reverse_link(back.id), link.id);
        }
        for host in net.hosts() {
            prop_assert_eq!(net.host_by_name(&host.name), Some(host.id));
            let (up, down) = (&net.links()[net.host_uplink(host.id).index()], &net.links()[net.host_downlink(host.id).index()]);
            prop_assert_eq!((up.from, down.to), (Node::Host(host.id), Node::Host(host.id)));
            prop_assert!(net.racks()[host.rack.index()].hosts.contains(&host.id.0));
            prop_assert_eq!(up.to, Node::Switch(net.racks()[host.rack.index()].leaf));
        }
    }
}
