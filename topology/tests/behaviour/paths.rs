//! Every path leads through the network; failures are routed around or reported.

use std::collections::BTreeSet;

use proptest::prelude::*;
use ratewright_topology::{
    Direction, HostId, LinkId, Node, Path, PathChoice, PathError, SwitchId, ThreeTierClos,
    Topology, TwoTierClos,
};

use crate::nets;

/// Checks that a path is connected, from source to destination, up then down, over usable links
/// only.
fn check(net: &Topology, src: HostId, dst: HostId, path: &Path) {
    let links: Vec<_> = path.iter().map(|id| &net.links()[id.index()]).collect();
    assert_eq!(links[0].from, Node::Host(src));
    assert_eq!(links[links.len() - 1].to, Node::Host(dst));
    for pair in links.windows(2) {
        assert_eq!(pair[0].to, pair[1].from, "the path is connected");
        assert!(
            pair[0].direction <= pair[1].direction,
            "the path goes up, then down"
        );
    }
    // Paths are symmetric: one link up and one link down per level.
    let top = links.len() / 2;
    assert!(links[..top].iter().all(|l| l.direction == Direction::Up));
    assert!((1..).zip(&links[..top]).all(|(level, l)| l.level == level));
    assert!(
        (1..)
            .zip(links[top..].iter().rev())
            .all(|(level, l)| l.level == level)
    );
    for link in path {
        assert!(net.is_usable(*link));
        assert!(net.effective_capacity_bps(*link) > 0);
    }
}

/// Oracle of reachability, by going up, then down, over the public links without any numbering.
/// `mirrored`: by links whose reverse works too.
fn reachable(net: &Topology, src: HostId, dst: HostId, mirrored: bool) -> bool {
    let usable = |id: LinkId, level: u8| {
        net.is_usable(id) && (!mirrored || level == 1 || net.is_usable(net.reverse_link(id)))
    };
    let hop = |from: &BTreeSet<Node>, direction, level| -> BTreeSet<Node> {
        net.links()
            .iter()
            .filter(|l| {
                l.direction == direction
                    && l.level == level
                    && from.contains(&l.from)
                    && usable(l.id, level)
            })
            .map(|l| l.to)
            .collect()
    };
    // Up to each level, then down again: paths are shortest, so the first common level decides.
    let mut ups = vec![BTreeSet::from([Node::Host(src)])];
    for top in 1..=3 {
        let above = hop(&ups[top - 1], Direction::Up, top as u8);
        ups.push(above.clone());
        let mut below = above;
        for level in (1..=top as u8).rev() {
            below = hop(&below, Direction::Down, level);
        }
        if below.contains(&Node::Host(dst)) {
            return true;
        }
    }
    false
}

fn pairs(net: &Topology) -> impl Iterator<Item = (HostId, HostId)> {
    let hosts: Vec<HostId> = net.hosts().iter().map(|h| h.id).collect();
    let others = hosts.clone();
    hosts.into_iter().flat_map(move |a| {
        others
            .clone()
            .into_iter()
            .filter(move |b| *b != a)
            .map(move |b| (a, b))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_path_leads_through_the_network(net in nets::whole(), hash: u32) {
        for (src, dst) in pairs(&net) {
            check(&net, src, dst, &net.path(src, dst, PathChoice::Hash(hash)).unwrap());
            for route in 0..net.route_count(src, dst).unwrap() {
                check(&net, src, dst, &net.path(src, dst, PathChoice::Explicit(route)).unwrap());
            }
        }
    }

    #[test]
    fn explicit_routes_are_all_different(net in nets::whole()) {
        for (src, dst) in pairs(&net) {
            let count = net.route_count(src, dst).unwrap();
            let routes: BTreeSet<Path> =
                (0..count).map(|r| net.path(src, dst, PathChoice::Explicit(r)).unwrap()).collect();
            prop_assert_eq!(routes.len(), count as usize);
            let beyond = net.path(src, dst, PathChoice::Explicit(count));
            prop_assert_eq!(beyond, Err(PathError::RouteOutOfRange { src, dst, route: count, count }));
        }
    }

    #[test]
    fn failures_are_routed_around_or_reported(net in nets::damaged(), hash: u32) {
        for (src, dst) in pairs(&net) {
            let open = reachable(&net, src, dst, net.ecmp().symmetric);
            match net.path(src, dst, PathChoice::Hash(hash)) {
                Ok(path) => {
                    check(&net, src, dst, &path);
                    // The oracle must agree in both directions: no path through a cut, none missed.
                    prop_assert!(open);
                }
                Err(PathError::HostCutOff { host, link }) => {
                    prop_assert!(host == src || host == dst);
                    prop_assert!(!net.is_usable(link));
                }
                Err(PathError::NoRoute { .. }) => prop_assert!(!open, "a way from {} to {} was missed", src, dst),
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }

    #[test]
    fn an_explicit_route_is_never_replaced_by_another(net in nets::damaged()) {
        for (src, dst) in pairs(&net) {
            for route in 0..net.route_count(src, dst).unwrap() {
                match net.path(src, dst, PathChoice::Explicit(route)) {
                    Ok(path) => check(&net, src, dst, &path),
                    Err(PathError::HostCutOff { link, .. } | PathError::RouteDown { link, .. }) => {
                        prop_assert!(!net.is_usable(link));
                    }
                    Err(other) => prop_assert!(false, "{}", other),
                }
            }
        }
    }

    #[test]
    fn repairing_everything_restores_every_path(net in nets::whole(), damage in nets::damaged(), hash: u32) {
        let mut net = net;
        let before: Vec<_> = pairs(&net).map(|(a, b)| net.path(a, b, PathChoice::Hash(hash))).collect();
        let links = net.links().len().min(damage.links().len()) as u32;
        // The other network is only a random set of link numbers.
        for link in (0..links).map(LinkId).filter(|l| !damage.is_usable(*l)) {
            prop_assert!(net.set_link_up(link, false));
            prop_assert_eq!(net.effective_capacity_bps(link), 0);
        }
        for link in (0..links).map(LinkId) {
            net.set_link_up(link, true);
        }
        let after: Vec<_> = pairs(&net).map(|(a, b)| net.path(a, b, PathChoice::Hash(hash))).collect();
        prop_assert_eq!(before, after);
    }
}

#[test]
fn paths_have_two_links_per_tier_crossed() {
    let net = ThreeTierClos::default().build().unwrap();
    let host = |name: &str| net.host_by_name(name).unwrap();
    let hops = |a, b| {
        net.path(host(a), host(b), PathChoice::Hash(99))
            .unwrap()
            .len()
    };
    assert_eq!(hops("h1", "h2"), 2, "same rack");
    assert_eq!(hops("h1", "h5"), 4, "same pod");
    assert_eq!(hops("h1", "h9"), 6, "other pod");
}

#[test]
fn a_failed_spine_moves_only_what_the_modulus_moves() {
    let mut net = TwoTierClos {
        spines: 4,
        ..TwoTierClos::default()
    }
    .build()
    .unwrap();
    let (src, dst) = (HostId(0), HostId(15));
    let spine = |net: &Topology, hash| match net.links()
        [net.path(src, dst, PathChoice::Hash(hash)).unwrap()[1].index()]
    .to
    {
        Node::Switch(id) => net.switches()[id.index()].name.clone(),
        Node::Host(_) => unreachable!("the second link goes to a spine"),
    };
    assert_eq!(spine(&net, 6), "spine3", "hash % 4 = 2, in id order");
    // spine2 is not the chosen one: only the modulus moves the flow.
    let failed = net.switch_by_name("spine2").unwrap();
    net.set_switch_up(failed, false);
    assert_eq!(
        spine(&net, 6),
        "spine1",
        "hash % 3 = 0 of spine1, spine3, spine4"
    );
    assert_eq!(spine(&net, 4), "spine3", "hash % 3 = 1");
    // A spine is not usable either if only its link down to the destination is lost.
    net.set_switch_up(failed, true);
    let down = net
        .link_between(Node::Switch(failed), Node::Switch(net.racks()[3].leaf))
        .unwrap();
    net.set_link_up(down, false);
    assert_eq!(spine(&net, 4), "spine3");
    assert_eq!(
        net.path(src, dst, PathChoice::Explicit(1)),
        Err(PathError::RouteDown {
            src,
            dst,
            route: 1,
            link: down
        })
    );
}

#[test]
fn three_tiers_hash_the_aggregation_switch_and_then_the_core() {
    let net = ThreeTierClos {
        aggs_per_pod: 3,
        cores: 12,
        ..ThreeTierClos::default()
    }
    .build()
    .unwrap();
    let path = net
        .path(HostId(0), HostId(15), PathChoice::Hash(3 * 6 + 2))
        .unwrap();
    let via: Vec<&str> = path
        .iter()
        .map(|l| net.node_name(net.links()[l.index()].to))
        .collect();
    // agg = 20 % 3 = 2; core = (20 / 3) % 4 = 2 of the four above that switch.
    assert_eq!(via, ["leaf1", "agg1-3", "core11", "agg2-3", "leaf4", "h16"]);
}

#[test]
fn hosts_without_a_path_get_a_typed_error() {
    let mut net = TwoTierClos::default().build().unwrap();
    let (a, b) = (HostId(0), HostId(4));
    assert_eq!(
        net.path(a, a, PathChoice::Hash(0)),
        Err(PathError::SameHost(a))
    );
    assert_eq!(
        net.path(a, HostId(16), PathChoice::Hash(0)),
        Err(PathError::UnknownHost(HostId(16)))
    );
    for spine in ["spine1", "spine2"] {
        let id = net.switch_by_name(spine).unwrap();
        net.set_switch_up(id, false);
    }
    assert_eq!(
        net.path(a, b, PathChoice::Hash(0)),
        Err(PathError::NoRoute { src: a, dst: b })
    );
    assert!(
        net.path(a, HostId(1), PathChoice::Hash(0)).is_ok(),
        "the rack is still whole"
    );
    net.set_switch_up(net.racks()[0].leaf, false);
    let link = net.host_uplink(a);
    assert_eq!(
        net.path(a, b, PathChoice::Hash(0)),
        Err(PathError::HostCutOff { host: a, link })
    );
}

#[test]
fn every_change_and_only_a_change_raises_the_epoch() {
    let mut net = TwoTierClos::default().build().unwrap();
    assert_eq!(net.epoch(), 1);
    let link = net.host_uplink(HostId(3));
    assert!(net.set_link_up(link, false));
    assert!(!net.set_link_up(link, false), "already down");
    assert_eq!(net.epoch(), 2);
    // The link is down: its capacity changes, but takes effect with the repair.
    assert!(net.set_capacity_bps(link, 1_000));
    assert!(
        !net.set_capacity_bps(link, 0),
        "a link that carries nothing has failed"
    );
    assert!(!net.set_capacity_bps(link, u64::MAX));
    assert_eq!((net.epoch(), net.effective_capacity_bps(link)), (3, 0));
    assert!(net.set_link_up(link, true));
    assert_eq!((net.epoch(), net.effective_capacity_bps(link)), (4, 1_000));
    assert!(net.set_switch_up(SwitchId(0), false));
    assert_eq!((net.epoch(), net.effective_capacity_bps(link)), (5, 0));
    assert!(!net.set_link_up(LinkId(u32::MAX), false) && !net.set_switch_up(SwitchId(99), false));
    assert_eq!(net.epoch(), 5);
    let mut next = TwoTierClos::default().build().unwrap();
    next.succeed(&net);
    assert_eq!(next.epoch(), 6);
}
