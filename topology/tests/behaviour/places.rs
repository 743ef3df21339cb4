//! Spare places: hosts join, leave and come back, and nothing else of the network changes.

use ratewright_topology::{HostId, IpNet, Node, PlaceError, Tenure, Topology, TwoTierClos};

fn clos(spare_hosts: u32) -> Topology {
    TwoTierClos {
        racks: 3,
        hosts_per_rack: 2,
        spines: 2,
        spare_hosts,
        ..TwoTierClos::default()
    }
    .build()
    .expect("valid")
}

fn prefix(text: &str) -> IpNet {
    text.parse().expect("a prefix")
}

#[test]
fn spare_places_change_neither_names_nor_addresses_of_hosts() {
    let (without, with) = (clos(0), clos(4));
    assert_eq!(with.hosts().len(), 3 * (2 + 4));
    assert_eq!(with.links().len(), without.links().len() + 2 * 3 * 4);
    for host in without.hosts() {
        let same = with.host_by_name(&host.name).expect("every host stays");
        assert_eq!(with.hosts()[same.index()].prefixes, host.prefixes);
        assert_eq!(with.hosts()[same.index()].rack, host.rack);
    }
    let spare = with.hosts().iter().filter(|h| h.tenure == Tenure::Spare);
    for place in spare {
        assert!(place.prefixes.is_empty());
        assert_eq!(with.host_by_name(&place.name), None, "{}", place.name);
    }
}

#[test]
fn a_rack_may_have_nothing_but_spare_places() {
    let net = TwoTierClos {
        hosts_per_rack: 0,
        spare_hosts: 5,
        ..TwoTierClos::default()
    };
    assert_eq!(net.build().expect("valid").hosts().len(), 20);
    let empty = TwoTierClos {
        hosts_per_rack: 0,
        ..TwoTierClos::default()
    };
    assert!(empty.build().is_err());
}

#[test]
fn a_host_joins_and_leaves_and_the_network_is_as_before() {
    let before = clos(2);
    let mut net = before.clone();
    let place = HostId(3);
    let own = prefix("192.168.7.0/28");
    net.take_place(place, "asg-1", vec![own]).expect("spare");
    assert_eq!(net.host_by_name("asg-1"), Some(place));
    assert_eq!(
        net.host_by_addr("192.168.7.9".parse().unwrap()),
        Some(place)
    );
    assert!(net.epoch() > before.epoch());
    // Its links were there before it came.
    assert_eq!(net.links(), before.links());
    let other = prefix("192.168.8.1/32");
    net.set_prefixes(place, vec![other]);
    assert_eq!(net.host_by_addr("192.168.7.9".parse().unwrap()), None);
    assert_eq!(
        net.host_by_addr("192.168.8.1".parse().unwrap()),
        Some(place)
    );
    let epoch = net.epoch();
    net.free_place(place).expect("a member");
    assert!(net.epoch() > epoch);
    assert_eq!(net.host_by_addr("192.168.8.1".parse().unwrap()), None);
    assert_eq!(net.node_by_name("rack1/spare2"), Some(Node::Host(place)));
    assert_eq!(net.hosts(), before.hosts());
    assert_eq!(net.host_by_name("asg-1"), None);
}

#[test]
fn places_are_taken_and_freed_only_as_they_may_be() {
    let mut net = clos(1);
    let (spare, named) = (HostId(2), HostId(0));
    assert_eq!(
        net.take_place(named, "x", Vec::new()),
        Err(PlaceError::NotSpare(named))
    );
    assert_eq!(net.free_place(named), Err(PlaceError::NotMember(named)));
    assert_eq!(net.free_place(spare), Err(PlaceError::NotMember(spare)));
    for taken in ["h1", "leaf1"] {
        assert_eq!(
            net.take_place(spare, taken, Vec::new()),
            Err(PlaceError::NameTaken(taken.into()))
        );
    }
    for bad in ["", "rack1/spare1", "a b", &"x".repeat(64)] {
        assert_eq!(
            net.take_place(spare, bad, Vec::new()),
            Err(PlaceError::BadName(bad.into()))
        );
    }
    assert_eq!(net.epoch(), 1, "refusals change nothing");
    net.take_place(spare, "x", Vec::new()).expect("spare");
    assert_eq!(
        net.take_place(spare, "y", Vec::new()),
        Err(PlaceError::NotSpare(spare))
    );
    let beyond = HostId(10_000);
    assert_eq!(
        net.take_place(beyond, "z", Vec::new()),
        Err(PlaceError::NotSpare(beyond))
    );
}

#[test]
fn a_file_names_a_host_on_a_spare_place_and_gives_its_prefixes() {
    let file = |rest: &str| {
        format!(
            "kind = \"big_switch\"\n[parameters]\nracks = 2\nhosts_per_rack = 1\nspare_hosts = 2\n\
             host_capacity = \"10Gbit/s\"\n{rest}"
        )
    };
    let read = |rest: &str| Topology::from_toml_str(&file(rest), "t.toml");
    let plain = read("").expect("valid");
    let more = read(
        "[[host]]\nname = \"db9\"\nreplaces = \"rack1/spare2\"\nprefixes = [\"192.168.1.1\"]\n\
         [[link]]\nfrom = \"rack2/spare1\"\nto = \"fabric\"\ncapacity = \"5Gbit/s\"\n",
    )
    .expect("valid");
    assert_eq!(more.host_by_name("db9"), Some(HostId(2)));
    for host in plain.hosts().iter().filter(|h| h.tenure == Tenure::File) {
        assert_eq!(more.host_by_name(&host.name), Some(host.id));
    }
    assert_eq!(more.links()[4].capacity_bps, 5_000_000_000);
    let again = Topology::from_toml_str(&more.to_toml_string(), "again").expect("valid");
    assert_eq!(again.hosts(), more.hosts());
    let without = read("[[host]]\nname = \"db9\"\nreplaces = \"rack1/spare2\"\n");
    let error = without.expect_err("no prefixes").to_string();
    assert!(error.contains("list its `prefixes`"), "{error}");
    // Entries without a place fill hosts, never spare places.
    let many = read("[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\n[[host]]\nname = \"c\"\n");
    let error = many.expect_err("two hosts only").to_string();
    assert!(error.contains("has 2 hosts"), "{error}");
}
