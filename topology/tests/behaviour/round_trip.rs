//! Writing and reading a topology gives an equal network in an equal state.

use proptest::prelude::*;
use ratewright_topology::{PathChoice, Topology, TwoTierClos};

use crate::nets;

fn assert_same(a: &Topology, b: &Topology) {
    assert_eq!(a.parameters(), b.parameters());
    assert_eq!(a.hosts(), b.hosts());
    assert_eq!(a.racks(), b.racks());
    assert_eq!(a.switches(), b.switches());
    assert_eq!(a.links(), b.links());
    assert_eq!(a.frames(), b.frames());
    assert!(
        a.links()
            .iter()
            .all(|l| a.is_usable(l.id) == b.is_usable(l.id))
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_topology_survives_its_file(net in nets::damaged()) {
        let text = net.to_toml_string();
        let read = Topology::from_toml_str(&text, "round-trip.toml").map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        assert_same(&net, &read);
        // The epoch counts changes since the start of a process and is not part of the file.
        prop_assert_eq!(read.epoch(), 1);
        prop_assert_eq!(read.to_toml_string(), text);
    }

    /// Anything at all gives a topology or an error, and an error names the file.
    #[test]
    fn arbitrary_text_never_panics(text in "\\PC{0,200}") {
        if let Err(e) = Topology::from_toml_str(&text, "any.toml") {
            prop_assert!(e.to_string().starts_with("any.toml:"));
        }
    }

    /// Nor does a good file with some bytes changed.
    #[test]
    fn a_mangled_file_never_panics(net in nets::damaged(), edits in prop::collection::vec((any::<prop::sample::Index>(), any::<char>()), 1..4)) {
        let mut chars: Vec<char> = net.to_toml_string().chars().collect();
        for (at, to) in edits {
            let at = at.index(chars.len());
            chars[at] = to;
        }
        let text: String = chars.into_iter().collect();
        if let Err(e) = Topology::from_toml_str(&text, "any.toml") {
            prop_assert!(e.to_string().starts_with("any.toml:"));
        }
    }
}

const FULL: &str = r#"
kind = "two_tier_clos"
nested_prefixes = true

[parameters]
racks = 2
rack_sizes = [3, 2]
spines = 2
host_capacity = "1Gbit/s"
fabric_capacity = "2.5Gbit/s"
host_delay = "10us"
ipv4_base = "10.7.0.0/16"
ipv6_base = "none"

[ecmp]
seed = 7
symmetric = true

[[host]]
name = "alpha"

[[host]]
name = "h3"
prefixes = ["10.7.1.3", "10.9.0.0/24"]

[[host]]
name = "beta"

[[host]]
name = "gamma"
replaces = "h5"
rack = "rack2"
prefixes = ["10.9.0.128/25"]

[[link]]
from = "leaf1"
to = "spine2"
capacity_gbps = 1.5
both_ways = true

[[link]]
from = "alpha"
to = "leaf1"
capacity_mbps = 500
baseline = "50Mbit/s"
delay = "1ms"

[[failed]]
switch = "spine1"

[[failed]]
from = "spine2"
to = "leaf2"
"#;

#[test]
fn a_full_file_means_what_it_says() {
    let net = Topology::from_toml_str(FULL, "full.toml").unwrap();
    let names: Vec<&str> = net.hosts().iter().map(|h| h.name.as_str()).collect();
    assert_eq!(
        names,
        ["alpha", "beta", "h3", "h4", "gamma"],
        "unclaimed hosts are named in order"
    );
    assert_eq!(
        net.hosts()[0].prefixes,
        ["10.7.1.1/32".parse().unwrap()],
        "generated prefixes stay"
    );
    let alpha = net.host_uplink(net.host_by_name("alpha").unwrap());
    assert_eq!(net.links()[alpha.index()].baseline_bps, Some(50_000_000));
    assert_eq!(
        net.host_by_addr("10.9.0.200".parse().unwrap()),
        net.host_by_name("gamma")
    );
    assert_eq!(
        net.host_by_addr("10.9.0.5".parse().unwrap()),
        net.host_by_name("h3")
    );
    let link = |from, to| {
        let node = |name| net.node_by_name(name).unwrap();
        &net.links()[net.link_between(node(from), node(to)).unwrap().index()]
    };
    assert_eq!(link("leaf1", "spine2").capacity_bps, 1_500_000_000);
    assert_eq!(link("spine2", "leaf1").capacity_bps, 1_500_000_000);
    assert_eq!(link("leaf2", "spine2").capacity_bps, 2_500_000_000);
    assert_eq!(
        (
            link("alpha", "leaf1").capacity_bps,
            link("alpha", "leaf1").delay_ns
        ),
        (500_000_000, 1_000_000)
    );
    assert_eq!(
        (
            link("leaf1", "alpha").capacity_bps,
            link("leaf1", "alpha").delay_ns
        ),
        (1_000_000_000, 10_000)
    );
    assert!(
        !net.is_usable(link("leaf1", "spine1").id),
        "a failed switch takes its links along"
    );
    assert!(
        link("leaf1", "spine1").up && !link("spine2", "leaf2").up && link("leaf2", "spine2").up
    );
    let host = |name| net.host_by_name(name).unwrap();
    assert!(
        net.path(host("alpha"), host("gamma"), PathChoice::Hash(0))
            // spine1 is down and spine2 has lost its link down: no route is left.
            .is_err()
    );
    assert!(net.ecmp().symmetric && net.ecmp().seed == 7);
    assert_same(
        &net,
        &Topology::from_toml_str(&net.to_toml_string(), "again.toml").unwrap(),
    );
}

#[test]
fn a_file_is_loaded_from_disk() {
    let net = TwoTierClos::default().build().unwrap();
    let path =
        std::env::temp_dir().join(format!("ratewright-topology-{}.toml", std::process::id()));
    std::fs::write(&path, net.to_toml_string()).unwrap();
    let read = Topology::load(&path);
    // Removed before the assertions, so that a failure leaves no file behind.
    std::fs::remove_file(&path).unwrap();
    assert_same(&net, &read.unwrap());
    let missing = Topology::load(&path).unwrap_err().to_string();
    assert!(
        missing.starts_with(&path.display().to_string()),
        "{missing}"
    );
}
