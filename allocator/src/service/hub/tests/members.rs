//! Hosts that join at run time, and leave.

use ratewright_proto::control::RefusalCode;
use ratewright_proto::{FlowId, FlowPath, StartRecord};
use ratewright_topology::{HostId, Tenure, TwoTierClos};

use super::*;

const GRACE_NS: u64 = 2_000_000_000;
/// Time in which a change reaches every session, and some more.
const TOLD_NS: u64 = 400_000_000;

/// Two racks of two hosts and two spare places each.
fn network() -> Topology {
    let clos = TwoTierClos {
        racks: 2,
        hosts_per_rack: 2,
        spare_hosts: 2,
        ..TwoTierClos::default()
    };
    clos.build().expect("the network is good")
}

fn joining() -> HubSettings {
    let topology = network();
    let rack = |index: usize| topology.racks()[index].name.clone();
    let prefix = |text: &str| text.parse().expect("a prefix");
    HubSettings {
        membership: MembershipConfig {
            join: true,
            grace_ns: GRACE_NS,
            racks: vec![
                (prefix("172.16.0.0/16"), rack(0)),
                (prefix("172.16.2.0/24"), rack(1)),
            ],
        },
        ..settings()
    }
}

fn certificate(name: &str, addresses: &[&str]) -> PeerCertificate {
    let addresses = addresses.iter();
    PeerCertificate {
        addresses: addresses
            .map(|text| text.parse().expect("an address"))
            .collect(),
        ..certificate_of(&[name])
    }
}

impl HubWorld {
    fn join(&mut self, name: &str, addresses: &[&str]) {
        self.connect_as(name, name, 1, certificate(name, addresses));
        self.settle();
    }

    fn join_with_pods(&mut self, name: &str, addresses: &[&str], pods: &[&str]) {
        let certificate = PeerCertificate {
            pod_prefixes: pods.iter().map(|text| text.parse().unwrap()).collect(),
            ..certificate(name, addresses)
        };
        self.connect_as(name, name, 1, certificate);
        self.settle();
    }

    fn part(&mut self, name: &str) {
        let id = self.host(name).id.take().expect("it had a session");
        let now_ns = self.now_ns;
        self.hub.remove_session(now_ns, id, "test");
        let host = self.host(name);
        host.session.disconnected(now_ns);
        host.established = false;
    }

    fn place_of(&self, name: &str) -> Option<HostId> {
        self.hub.topology().host_by_name(name)
    }

    fn refusal_of(&mut self, name: &str, addresses: &[&str]) -> (RefusalCode, String) {
        self.join(name, addresses);
        let refused = self.hosts[name].refused.clone().expect("it was refused");
        (refused.code, refused.reason)
    }

    /// Every session hears of the members that there are. One may leave while the others are told,
    /// and then these are told again.
    fn assert_all_hear_of_the_members(&mut self) {
        for _ in 0..3 {
            let left = self.hub.counts().members_left;
            self.pass(TOLD_NS);
            if self.hub.counts().members_left == left {
                break;
            }
        }
        let hosts = self.hub.topology().hosts().iter();
        let members: BTreeMap<u32, String> = hosts
            .filter(|host| host.tenure == Tenure::Member)
            .map(|host| (host.id.0, host.name.clone()))
            .collect();
        for (name, host) in self.hosts.iter().filter(|(_, host)| host.established) {
            assert_eq!(host.members, members, "{name}");
        }
    }
}

#[test]
fn a_host_joins_the_rack_of_its_address_and_others_hear_of_it() {
    let mut world = HubWorld::of(joining(), network());
    world.connect_all(&["h1"]);
    world.join("guest", &["172.16.2.9"]);
    let place = world.place_of("guest").expect("it has a place");
    let host = &world.hub.topology().hosts()[place.index()];
    assert_eq!((host.rack.0, host.tenure), (1, Tenure::Member));
    world.pass(TOLD_NS);
    assert_eq!(world.hosts["h1"].members[&place.0], "guest");
    let flow = world.start("h1", 0, "guest");
    world.settle();
    assert!(world.rate("h1", flow).expect("rated") > 9_000_000_000);
    world.assert_no_link_overfull();
    assert_eq!(world.hub.members.count(), 1);
}

#[test]
fn a_member_that_returns_within_the_grace_has_its_place_and_one_that_does_not_leaves() {
    let mut world = HubWorld::of(joining(), network());
    world.connect_all(&["h1"]);
    world.join("guest", &["172.16.0.9"]);
    let place = world.place_of("guest").expect("it has a place");
    world.part("guest");
    world.pass(GRACE_NS / 2);
    world.join("guest", &["172.16.0.10"]);
    assert_eq!(world.place_of("guest"), Some(place));
    let address = "172.16.0.10".parse().expect("an address");
    assert_eq!(world.hub.topology().host_by_addr(address), Some(place));
    world.pass(2 * GRACE_NS);
    assert_eq!(world.place_of("guest"), Some(place), "it has a session");
    world.part("guest");
    world.pass(GRACE_NS + TOLD_NS);
    assert_eq!(world.place_of("guest"), None);
    assert!(world.hosts["h1"].members.is_empty());
    assert!(world.hosts["h1"].established, "nobody else noticed");
    // A flow to nobody has no rate, and its end is no error.
    let flow = FlowId::new(0, 1);
    world.start_record("h1", StartRecord::new(flow, place.0, FlowPath::Hash(0)));
    world.settle();
    assert_eq!(world.rate("h1", flow), None);
}

#[test]
fn a_place_rests_before_another_host_takes_it() {
    let mut world = HubWorld::of(joining(), network());
    world.join("a", &["172.16.0.1"]);
    world.join("b", &["172.16.0.2"]);
    let place = world.place_of("a").expect("it has a place");
    world.part("a");
    world.pass(GRACE_NS + 10_000_000);
    let (code, reason) = world.refusal_of("c", &["172.16.0.3"]);
    assert_eq!(code, RefusalCode::TableFull, "{reason}");
    assert!(world.hosts["c"].refused.as_ref().expect("so").retry);
    world.pass(4 * settings().liveness_ns);
    world.join("c", &["172.16.0.3"]);
    assert_eq!(world.place_of("c"), Some(place));
}

#[test]
fn a_host_without_a_right_to_a_place_is_told_why() {
    let mut world = HubWorld::of(settings(), network());
    let (code, _) = world.refusal_of("guest", &["172.16.0.9"]);
    assert_eq!(code, RefusalCode::UnknownHost, "joining is off by default");

    let mut world = HubWorld::of(joining(), network());
    world.connect_all(&["h1"]);
    let own = world.hub.topology().hosts()[0].prefixes[0]
        .addr()
        .to_string();
    for (name, addresses, words) in [
        ("none", vec![], "IP addresses"),
        ("thief", vec![own.as_str()], "belongs to \"h1\""),
        ("stray", vec!["192.0.2.1"], "no rack is configured"),
        ("both", vec!["172.16.0.4", "172.16.2.4"], "several racks"),
        ("leaf1", vec!["172.16.0.5"], "taken"),
    ] {
        let (code, reason) = world.refusal_of(name, &addresses);
        assert_eq!(code, RefusalCode::NotAllowed, "{name}: {reason}");
        assert!(reason.contains(words), "{name}: {reason}");
    }
    let many: Vec<String> = (0..17).map(|n| format!("172.16.0.{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(world.refusal_of("many", &many).0, RefusalCode::NotAllowed);
    assert_eq!(world.hub.members.count(), 0);
}

#[test]
fn a_member_brings_its_pods_prefixes_unless_they_are_another_host_s() {
    let mut world = HubWorld::of(joining(), network());
    world.connect_all(&["h1"]);
    world.join_with_pods("node", &["172.16.0.9"], &["10.244.3.0/24", "fd00:3::/64"]);
    let place = world.place_of("node").expect("it has a place");
    for address in ["172.16.0.9", "10.244.3.77", "fd00:3::5"] {
        let owner = world.hub.topology().host_by_addr(address.parse().unwrap());
        assert_eq!(owner, Some(place), "{address}");
    }
    world.assert_all_hear_of_the_members();

    let own = world.hub.topology().hosts()[0].prefixes[0].to_string();
    for prefix in ["10.244.3.0/24", "10.244.0.0/16", "10.244.3.128/25", &own] {
        world.join_with_pods("thief", &["172.16.0.10"], &[prefix]);
        let refused = world.hosts["thief"]
            .refused
            .clone()
            .expect("it was refused");
        assert_eq!(refused.code, RefusalCode::NotAllowed, "{prefix}");
        assert!(refused.reason.contains("overlaps"), "{}", refused.reason);
    }
    let many: Vec<String> = (0..16).map(|n| format!("10.245.{n}.0/24")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    world.join_with_pods("many", &["172.16.0.11"], &many);
    assert!(world.hosts["many"].refused.is_some(), "17 in all");

    // A new certificate moves its pods; the old prefix is free.
    world.part("node");
    world.join_with_pods("node", &["172.16.0.9"], &["10.244.4.0/24"]);
    assert_eq!(world.place_of("node"), Some(place));
    let owner = |text: &str| world.hub.topology().host_by_addr(text.parse().unwrap());
    assert_eq!(owner("10.244.4.1"), Some(place));
    assert_eq!(owner("10.244.3.77"), None);
}

/// A second daemon of a member's name cannot take its addresses away while it lives.
#[test]
fn a_living_member_keeps_its_addresses() {
    let mut world = HubWorld::of(joining(), network());
    world.join("guest", &["172.16.0.9"]);
    for addresses in [["172.16.0.66"], ["172.16.2.66"]] {
        world.connect_as("twin", "guest", 0, certificate("guest", &addresses));
        world.settle();
        assert!(world.hosts["twin"].refused.is_some(), "{addresses:?}");
        let place = world.place_of("guest").expect("it is there");
        let address = "172.16.0.9".parse().expect("an address");
        assert_eq!(world.hub.topology().host_by_addr(address), Some(place));
    }
    assert!(world.hosts["guest"].established);
}

#[test]
fn members_keep_their_places_over_a_reload() {
    let mut world = HubWorld::of(joining(), network());
    world.connect_all(&["h1"]);
    world.join("guest", &["172.16.2.9"]);
    world.pass(TOLD_NS);
    let place = world.place_of("guest");
    let flow = world.start("h1", 0, "guest");
    let mut wider = network().parameters().clone();
    if let ratewright_topology::Parameters::TwoTierClos(clos) = &mut wider {
        clos.fabric_capacity_bps /= 2;
    }
    world.replace_topology(wider.build().expect("good"));
    world.pass(TOLD_NS);
    assert_eq!(world.place_of("guest"), place);
    assert!(world.hosts["guest"].established && world.hosts["h1"].established);
    assert!(world.rate("h1", flow).is_some());
    world.assert_all_hear_of_the_members();
}

/// Joins, departures, returns and sessions of others at random: every session always ends up with
/// the members that there are, no place has two holders in short order, and nobody of the file
/// loses its session.
#[test]
fn sessions_know_the_members_after_any_history() {
    let mut seed = 11_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    let mut world = HubWorld::of(joining(), network());
    world.connect_all(&["h1", "h2", "h3", "h4"]);
    let mut held: BTreeMap<u32, (String, u64)> = BTreeMap::new();
    for _ in 0..150 {
        let guest = random(7);
        let name = format!("g{guest}");
        let address = format!("172.16.{}.{}", 2 * (guest % 2), 10 + guest);
        let lives = world.hosts.get(&name).is_some_and(|host| host.id.is_some());
        match random(3) {
            0 if lives => world.part(&name),
            1 if !lives => world.join(&name, &[&address]),
            _ => world.pass(random(1_500) * 1_000_000),
        }
        let now_ns = world.now_ns;
        for host in world.hub.topology().hosts() {
            if host.tenure != Tenure::Member {
                continue;
            }
            let (holder, seen_ns) = held.entry(host.id.0).or_insert((host.name.clone(), now_ns));
            if *holder != host.name {
                assert!(now_ns - *seen_ns > settings().liveness_ns, "{}", host.id.0);
                holder.clone_from(&host.name);
            }
            *seen_ns = now_ns;
        }
        if random(4) == 0 {
            world.assert_all_hear_of_the_members();
        }
        for name in ["h1", "h2", "h3", "h4"] {
            assert!(world.hosts[name].established, "{name}");
        }
    }
    for guest in 0..7 {
        let name = format!("g{guest}");
        if world.hosts.get(&name).is_some_and(|host| host.id.is_some()) {
            world.part(&name);
        }
    }
    world.pass(GRACE_NS + 8 * settings().liveness_ns);
    assert_eq!(world.hub.members.count(), 0);
}
