//! Bounds of single flows: of the whole network, and of groups of hosts within it.

use ratewright_topology::Topology;

const FILE: &str = r#"
kind = "big_switch"
max_flow_bps = 5_000_000_000

[parameters]
rack_sizes = [2, 2, 2]
racks = 3
host_capacity = "50Gbit/s"

[[host]]
name = "alpha"
replaces = "h1"

[[group]]
name = "placement group \"a\\b\""
max_flow_bps = 10_000_000_000
racks = ["rack1"]
hosts = ["h3", "alpha"]

[[group]]
name = "ena express"
max_flow_bps = 25e9
hosts = ["alpha", "h3", "h6"]

[[group]]
name = "slow"
max_flow_bps = 1_000_000_000
hosts = ["h5", "h6"]
"#;

fn bound(net: &Topology, a: &str, b: &str) -> Option<u64> {
    let host = |name| net.host_by_name(name).expect("it is in the file");
    assert_eq!(
        net.max_flow_bps(host(a), host(b)),
        net.max_flow_bps(host(b), host(a)),
        "a bound holds in both directions"
    );
    net.max_flow_bps(host(a), host(b))
}

#[test]
fn the_largest_bound_of_common_groups_counts_and_else_the_whole_networks() {
    let net = Topology::from_toml_str(FILE, "groups.toml").expect("valid");
    let gbit = |n: u64| Some(n * 1_000_000_000);
    assert_eq!(bound(&net, "alpha", "h2"), gbit(10), "one rack");
    assert_eq!(bound(&net, "alpha", "h3"), gbit(25), "two groups");
    assert_eq!(bound(&net, "h2", "h3"), gbit(10));
    assert_eq!(bound(&net, "h2", "h6"), gbit(5), "no group holds both");
    assert_eq!(bound(&net, "h4", "h5"), gbit(5));
    assert_eq!(bound(&net, "h5", "h6"), gbit(1), "a group may lower it");
}

#[test]
fn a_file_without_bounds_has_none() {
    let text = "kind = \"fat_tree\"\n[parameters]\nk = 4\ncapacity = \"1Gbit/s\"\n";
    let net = Topology::from_toml_str(text, "t.toml").expect("valid");
    assert_eq!(bound(&net, "h1", "h2"), None);
    assert!(!net.to_toml_string().contains("max_flow_bps"));
}

#[test]
fn bounds_survive_their_file() {
    let net = Topology::from_toml_str(FILE, "groups.toml").expect("valid");
    let text = net.to_toml_string();
    let read = Topology::from_toml_str(&text, "written.toml").expect("valid");
    assert_eq!(read.groups(), net.groups());
    assert_eq!(read.default_max_flow_bps(), net.default_max_flow_bps());
    assert_eq!(read, net);
}
