//! Files of the last release, which keep their meaning.

use ratewright_topology::{LinkId, Topology};

const GBIT: u64 = 1_000_000_000;

fn read(text: &str) -> Topology {
    Topology::from_toml_str(text, "topology.toml").expect("taken")
}

fn link(topology: &Topology, from: &str, to: &str) -> LinkId {
    let node = |name| topology.node_by_name(name).expect("there");
    topology.link_between(node(from), node(to)).expect("a link")
}

fn capacity_bps(topology: &Topology, from: &str, to: &str) -> u64 {
    topology.effective_capacity_bps(link(topology, from, to))
}

/// Returns the name of the host that an address belongs to.
fn host_of<'a>(topology: &'a Topology, address: &str) -> Option<&'a str> {
    let host = topology.host_by_addr(address.parse().expect("an address"))?;
    Some(&topology.hosts()[host.index()].name)
}

#[test]
fn networks_of_the_last_releases_files_have_the_capacities_that_they_give() {
    let clos = read(include_str!("../releases/0.2/two_tier.toml"));
    assert_eq!(clos.hosts().len(), 4);
    assert_eq!(capacity_bps(&clos, "h1", "leaf1"), 10 * GBIT);
    assert_eq!(capacity_bps(&clos, "spine2", "leaf1"), 40 * GBIT);
    let tree = read(include_str!("../releases/0.2/fat_tree.toml"));
    assert_eq!(tree.hosts().len(), 16);
    for link in tree.links() {
        assert_eq!(tree.effective_capacity_bps(link.id), 10 * GBIT);
    }
}

#[test]
fn prefixes_within_prefixes_are_of_the_hosts_that_the_last_release_gave_them() {
    let switch = read(include_str!("../releases/0.2/big_switch.toml"));
    for (address, host) in [
        ("192.168.7.1", "one"),
        ("192.168.8.1", "net"),
        ("8.8.8.8", "gateway"),
        ("fd01:7::1", "one"),
        ("fd01:8::1", "net"),
        ("2001:db8::1", "gateway"),
    ] {
        assert_eq!(host_of(&switch, address), Some(host), "{address}");
    }
}

#[test]
fn every_key_of_the_last_release_keeps_its_meaning() {
    let full = read(include_str!("../releases/0.2/full.toml"));
    let names: Vec<&str> = full.hosts().iter().map(|host| &*host.name).collect();
    assert_eq!(names.len(), 5);
    for name in ["alpha", "beta", "h3", "gamma"] {
        assert!(names.contains(&name), "{name} of {names:?}");
    }
    assert_eq!(host_of(&full, "10.9.0.1"), Some("h3"));
    assert_eq!(host_of(&full, "10.9.0.200"), Some("gamma"));
    assert_eq!(full.hosts()[4].name, "gamma", "it replaces h5");
    // Capacities are what flows get: nothing is left for frames.
    assert!(full.frames().is_none());
    for (from, to) in [("leaf1", "spine2"), ("spine2", "leaf1")] {
        assert_eq!(capacity_bps(&full, from, to), 1_500_000_000);
    }
    assert_eq!(capacity_bps(&full, "alpha", "leaf1"), 500_000_000);
    assert_eq!(capacity_bps(&full, "leaf1", "alpha"), GBIT);
    let slow = link(&full, "alpha", "leaf1");
    assert_eq!(full.links()[slow.index()].delay_ns, 1_000_000);
    // What has failed carries nothing.
    for (from, to) in [
        ("leaf1", "spine1"),
        ("spine1", "leaf2"),
        ("spine2", "leaf2"),
    ] {
        assert_eq!(capacity_bps(&full, from, to), 0, "{from} to {to}");
    }
    assert_eq!((full.ecmp().seed, full.ecmp().symmetric), (7, true));
}
