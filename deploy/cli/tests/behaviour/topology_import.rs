//! Topology files out of the AWS CLI's JSON and Slurm's topologies, by the program itself.

use std::path::{Path, PathBuf};

use ratewright_topology::Topology;

use crate::refusal;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// Arguments that import the EC2 fixtures, some in other files.
fn ec2(files: &[(&str, &Path)], more: &[&str]) -> Vec<String> {
    let mut args = vec!["topology".to_owned(), "from-ec2".to_owned()];
    for name in ["topology", "instances", "types"] {
        let other = files
            .iter()
            .find(|(of, _)| *of == name)
            .map(|(_, path)| path.to_path_buf());
        let path = other.unwrap_or_else(|| fixture(&format!("ec2/{name}.json")));
        args.extend([format!("--{name}"), path.display().to_string()]);
    }
    args.extend(more.iter().map(|arg| (*arg).to_owned()));
    args
}

fn output(args: &[String]) -> String {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let output = refusal::output_of("ratewright", &args);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn imported(args: &[String]) -> Topology {
    Topology::from_toml_str(&output(args), "imported.toml").unwrap()
}

fn bound_gbps(net: &Topology, a: &str, b: &str) -> u64 {
    let host = |name: &str| {
        net.host_by_name(name)
            .unwrap_or_else(|| panic!("no host {name}"))
    };
    net.max_flow_bps(host(a), host(b)).unwrap() / 1_000_000_000
}

const A1: &str = "i-00000000000000a1";
const A2: &str = "i-00000000000000a2";
const B1: &str = "i-00000000000000b1";
const C1: &str = "i-00000000000000c1";
const C2: &str = "i-00000000000000c2";

#[test]
fn racks_are_bottom_network_nodes_else_partitions_else_zones() {
    let args = ec2(&[], &[]);
    let text = output(&args);
    let net = imported(&args);
    let racks: Vec<Vec<&str>> = net
        .racks()
        .iter()
        .map(|rack| {
            rack.host_ids()
                .map(|h| net.hosts()[h.index()].name.as_str())
                .collect()
        })
        .collect();
    let card = format!("{B1}-card1");
    assert_eq!(racks, [vec![A1, A2], vec![B1, &card], vec![C1], vec![C2]]);
    for comment in [
        "# rack1: network nodes nn-1 / nn-2 / nn-31",
        "# rack3: partition 2 of placement group store: no network nodes are known",
        "# rack4: zone eu-north-1b: no network nodes are known",
        "# 2 instances have no network nodes",
        "# 1 instances do not run and are left out.",
    ] {
        assert!(text.contains(comment), "{comment}\n{text}");
    }
}

#[test]
fn all_addresses_and_delegated_prefixes_lead_to_their_host() {
    let net = imported(&ec2(&[], &[]));
    let card = format!("{B1}-card1");
    for (address, host) in [
        ("10.1.0.11", A1),
        ("10.1.0.12", A1),
        ("fd00:1::11", A1),
        ("10.1.4.15", A1),
        ("10.1.1.11", B1),
        ("10.1.2.11", &card),
        ("fd00:2::77", C1),
    ] {
        let found = net.host_by_addr(address.parse().unwrap()).unwrap();
        assert_eq!(net.hosts()[found.index()].name, host, "{address}");
    }
    assert_eq!(net.host_by_addr("10.1.4.16".parse().unwrap()), None);
}

#[test]
fn links_have_the_bandwidth_that_was_asked_for() {
    let capacity_mbps = |net: &Topology, name: &str| {
        let host = net.host_by_name(name).unwrap();
        let (up, down) = (net.host_uplink(host), net.host_downlink(host));
        let bps = net.links()[up.index()].line_rate_bps;
        assert_eq!(bps, net.links()[down.index()].line_rate_bps);
        bps / 1_000_000
    };
    let (base, peak) = (
        imported(&ec2(&[], &["--capacity", "baseline"])),
        imported(&ec2(&[], &[])),
    );
    for (host, base_mbps, peak_mbps) in [
        (A1, 200_000, 200_000),
        (B1, 150_000, 150_000),
        (C1, 6_250, 12_500),
    ] {
        assert_eq!(capacity_mbps(&base, host), base_mbps);
        assert_eq!(capacity_mbps(&peak, host), peak_mbps);
        let baseline_mbps = |net: &Topology| {
            let uplink = net.host_uplink(net.host_by_name(host).unwrap());
            net.links()[uplink.index()]
                .baseline_bps
                .map(|bps| bps / 1_000_000)
        };
        let is_credit = base_mbps < peak_mbps;
        assert_eq!(baseline_mbps(&peak), is_credit.then_some(base_mbps));
        assert_eq!(baseline_mbps(&base), None);
    }
}

#[test]
fn flows_are_bounded_by_placement_group_and_ena_express() {
    let net = imported(&ec2(&[], &[]));
    assert_eq!(bound_gbps(&net, A1, A2), 25, "ENA Express at both ends");
    assert_eq!(bound_gbps(&net, A1, B1), 10, "one cluster placement group");
    assert_eq!(bound_gbps(&net, A1, C1), 5);
    assert_eq!(
        bound_gbps(&net, C1, C2),
        5,
        "a group with partitions is no cluster"
    );
    let other = imported(&ec2(
        &[],
        &["--max-flow", "2Gbit/s", "--max-flow-cluster", "12Gbit/s"],
    ));
    assert_eq!(
        (bound_gbps(&other, A1, B1), bound_gbps(&other, A1, C1)),
        (12, 2)
    );
    let groups = fixture("ec2/placement-groups.json").display().to_string();
    let told = imported(&ec2(&[], &["--placement-groups", &groups]));
    assert_eq!(
        (bound_gbps(&told, A1, B1), bound_gbps(&told, C1, C2)),
        (10, 5)
    );
}

#[test]
fn hosts_are_named_by_a_tag_when_asked() {
    let net = imported(&ec2(&[], &["--name-tag", "Name"]));
    for name in ["train-1", "train-3", "train-3-card1", "web-1"] {
        assert!(net.host_by_name(name).is_some(), "{name}");
    }
}

#[test]
fn hostile_and_partial_json_is_one_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let good = std::fs::read_to_string(fixture("ec2/instances.json")).unwrap();
    let deep = "[".repeat(100_000);
    for (of, text, parts) in [
        (
            "instances",
            String::new(),
            vec!["describe-instances", "EOF"],
        ),
        (
            "instances",
            "{}".into(),
            vec!["missing field `Reservations`"],
        ),
        ("instances", deep, vec!["describe-instances"]),
        (
            "instances",
            "{\"Reservations\": 3}".into(),
            vec!["invalid type", "line 1"],
        ),
        (
            "instances",
            "{\"Reservations\": []}".into(),
            vec!["no host is left"],
        ),
        (
            "instances",
            good.replace("10.1.0.21", "10.1.0.11"),
            vec!["10.1.0.11/32 belongs to both", A1, A2],
        ),
        (
            "instances",
            good.replace("10.1.0.21", "ten"),
            vec![A2, "\"ten\" is no address"],
        ),
        (
            "instances",
            good.replace("10.1.4.0/28", "10.1.4.0/99"),
            vec![A1, "is no prefix"],
        ),
        ("instances", good.replace(A2, A1), vec![A1, "listed twice"]),
        (
            "instances",
            good.replace(A1, "i-1\\n[[host]]"),
            vec!["name"],
        ),
        (
            "instances",
            good.replacen("m6i.4xlarge", "m9.huge", 1),
            vec!["m9.huge", "describe-instance-types"],
        ),
        (
            "instances",
            format!(
                "{{\"NextToken\": \"x\", {}",
                good.trim_start().trim_start_matches('{')
            ),
            vec!["ends before the list does"],
        ),
        (
            "topology",
            "{\"Instances\": [{}]}".into(),
            vec!["missing field `InstanceId`"],
        ),
        (
            "types",
            "{\"InstanceTypes\": []}".into(),
            vec!["hpc7g.16xlarge"],
        ),
        (
            "types",
            std::fs::read_to_string(fixture("ec2/types.json"))
                .unwrap()
                .replace("12.5", "-12.5"),
            vec!["m6i.4xlarge", "not believed"],
        ),
        (
            "types",
            std::fs::read_to_string(fixture("ec2/types.json"))
                .unwrap()
                .replace("BaselineBandwidthInGbps", "Other")
                .replace("PeakBandwidthInGbps", "Another"),
            vec!["--host-capacity"],
        ),
    ] {
        let path = dir.path().join("input.json");
        std::fs::write(&path, text).unwrap();
        let args = ec2(&[(of, &path)], &[]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        refusal::assert_refused("ratewright", &args, &parts);
    }
}

fn slurm(topology: &Path, hosts: &Path) -> Vec<String> {
    let (topology, hosts) = (topology.display().to_string(), hosts.display().to_string());
    [
        "topology",
        "from-slurm",
        "--topology",
        &topology,
        "--hosts",
        &hosts,
        "--host-capacity",
        "100Gbit/s",
    ]
    .map(str::to_owned)
    .to_vec()
}

#[test]
fn slurms_leaf_switches_are_racks() {
    let args = slurm(&fixture("slurm/topology.conf"), &fixture("slurm/hosts"));
    let net = imported(&args);
    let sizes: Vec<usize> = net.racks().iter().map(|rack| rack.hosts.len()).collect();
    assert_eq!(sizes, [2, 3]);
    for (address, host) in [("fd00:5::1", "node01"), ("10.5.0.5", "gpu2")] {
        let found = net.host_by_addr(address.parse().unwrap()).unwrap();
        assert_eq!(net.hosts()[found.index()].name, host);
    }
}

#[test]
fn what_slurm_would_refuse_is_one_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    for (text, part) in [
        ("", "has no switch or block with nodes"),
        (
            "SwitchName=a Switches=b\n",
            "has no switch or block with nodes",
        ),
        ("SwitchName=a Nodes=node[01-02\n", "without"),
        (
            "\nSwitchName=a Nodes=node01,node99\n",
            "no address of 1 nodes: node99; add them, as `getent ahosts node99`",
        ),
        (
            "SwitchName=a Nodes=node01\nSwitchName=b Nodes=node01\n",
            "already",
        ),
        (
            "SwitchName=a Nodes=node01\n\nSwitchName=a Switches=b\n",
            "topology.conf:3: switch a is defined at",
        ),
        (
            "BlockName=a Nodes=node01\nBlockName=a Nodes=node02\n",
            "topology.conf:2: block a is defined at",
        ),
        ("SwitchName=a Knots=node01\n", "no key \"Knots\""),
        ("switches:\n", "no KEY=VALUE"),
    ] {
        let path = dir.path().join("topology.conf");
        std::fs::write(&path, text).unwrap();
        let args = slurm(&path, &fixture("slurm/hosts"));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        refusal::assert_refused("ratewright", &args, &[part]);
    }
}

/// Writes files of these names into a folder.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

/// Hosts of each rack, by name.
fn racks(net: &Topology) -> Vec<Vec<&str>> {
    let names = |hosts: &mut dyn Iterator<Item = ratewright_topology::HostId>| {
        hosts
            .map(|h| net.hosts()[h.index()].name.as_str())
            .collect()
    };
    let racks = net.racks().iter();
    racks.map(|rack| names(&mut rack.host_ids())).collect()
}

#[test]
fn slurms_topology_yaml_is_read_and_one_of_several_topologies_by_its_name() {
    let dir = folder(&[(
        "topology.yaml",
        "- topology: rows\n  cluster_default: true\n  tree:\n    switches:\n\
         \x20   - switch: up\n      children: row[1-2]\n\
         \x20   - switch: row1\n      nodes: node[01-02]\n\
         \x20   - switch: row2\n      nodes: gpu1\n\
         - topology: gpus\n  block:\n    block_sizes: [2]\n    blocks:\n\
         \x20   - block: one\n      nodes: gpu[1-2]\n\
         - topology: rest\n  flat: true\n",
    )]);
    let args = slurm(&dir.path().join("topology.yaml"), &fixture("slurm/hosts"));
    assert_eq!(
        racks(&imported(&args)),
        [vec!["node01", "node02"], vec!["gpu1"]]
    );
    let named = |name: &str| {
        let more = ["--topology-name", name].map(str::to_owned);
        [args.clone(), more.to_vec()].concat()
    };
    assert_eq!(racks(&imported(&named("gpus"))), [["gpu1", "gpu2"]]);
    let flat = named("rest");
    let flat: Vec<&str> = flat.iter().map(String::as_str).collect();
    refusal::assert_refused("ratewright", &flat, &["rest", "says nothing of racks"]);
}

#[test]
fn nodes_without_an_address_are_listed_at_once_or_left_out_when_asked() {
    let dir = folder(&[(
        "topology.conf",
        "BlockName=a Nodes=node[01-02],spare[8-11]\nBlockName=b Nodes=spare12,login\n",
    )]);
    let mut args = slurm(&dir.path().join("topology.conf"), &fixture("slurm/hosts"));
    let all: Vec<&str> = args.iter().map(String::as_str).collect();
    let parts = ["6 nodes: spare[8-12],login", "--skip-without-address"];
    refusal::assert_refused("ratewright", &all, &parts);
    args.push("--skip-without-address".to_owned());
    assert_eq!(racks(&imported(&args)), [["node01", "node02"]]);
    let note = "# 6 nodes without an address are left out: spare[8-12],login\n";
    assert!(output(&args).contains(note));
}

#[test]
fn names_with_a_domain_are_those_of_nodes_and_both_families_are_kept() {
    let dir = folder(&[
        (
            "hosts",
            "fd00:7::1 STREAM node01.lab.example\nfd00:7::1 DGRAM\n10.7.0.1 STREAM\n10.7.0.1 RAW\n\
             fe80::9%eth0 printer\n10.7.0.2 node02.lab.example node02\n",
        ),
        ("topology.conf", "SwitchName = a  Nodes = \"node[01-02]\"\n"),
    ]);
    let args = slurm(&dir.path().join("topology.conf"), &dir.path().join("hosts"));
    let net = imported(&args);
    for (address, host) in [
        ("fd00:7::1", "node01"),
        ("10.7.0.1", "node01"),
        ("10.7.0.2", "node02"),
    ] {
        let found = net.host_by_addr(address.parse().unwrap()).unwrap();
        assert_eq!(net.hosts()[found.index()].name, host, "{address}");
    }
}

#[test]
fn an_address_by_which_nobody_reaches_a_node_is_refused_with_both() {
    for (address, special) in [
        ("127.0.1.1", "loopback"),
        ("169.254.3.3", "link-local"),
        ("fe80::3", "link-local"),
        ("224.0.0.3", "multicast"),
        ("0.0.0.0", "unspecified"),
        ("255.255.255.255", "broadcast"),
    ] {
        let hosts = format!("{address} node01.lab.example node01\n10.7.0.2 node02\n");
        let dir = folder(&[
            ("hosts", &hosts),
            ("topology.conf", "SwitchName=a Nodes=node[01-02]\n"),
        ]);
        let args = slurm(&dir.path().join("topology.conf"), &dir.path().join("hosts"));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        refusal::assert_refused("ratewright", &args, &[address, "host node01", special]);

        let file = dir.path().join("t.toml");
        let text = format!(
            "kind = \"big_switch\"\n[parameters]\nracks = 1\nhosts_per_rack = 1\n\
             host_capacity = \"1Gbit/s\"\n[[host]]\nname = \"db\"\nprefixes = [\"{address}\"]\n"
        );
        std::fs::write(&file, text).unwrap();
        let check = ["topology", "check", file.to_str().unwrap()];
        refusal::assert_refused(
            "ratewright",
            &check,
            &["t.toml:8", address, "\"db\"", special],
        );
    }
}

#[test]
fn an_instance_may_have_hundreds_of_addresses() {
    let good = std::fs::read_to_string(fixture("ec2/instances.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&good).unwrap();
    let instance = json
        .pointer_mut("/Reservations/0/Instances/0/NetworkInterfaces/0")
        .unwrap();
    let more: Vec<serde_json::Value> = (0..750)
        .map(|i| serde_json::json!({"PrivateIpAddress": format!("10.77.{}.{}", i / 250, i % 250)}))
        .collect();
    instance["PrivateIpAddresses"] = more.into();
    let dir = folder(&[("instances.json", &json.to_string())]);
    let net = imported(&ec2(
        &[("instances", &dir.path().join("instances.json"))],
        &[],
    ));
    let owner = |address: &str| net.host_by_addr(address.parse().unwrap());
    assert!(owner("10.77.2.249").is_some());
    assert_eq!(owner("10.77.0.0"), owner("10.77.2.249"));
}

#[test]
fn byte_order_marks_are_skipped() {
    let read = |name: &str| std::fs::read_to_string(fixture(name)).unwrap();
    let marked = |name: &str| format!("\u{feff}{}", read(name));
    let dir = folder(&[
        ("topology.conf", &marked("slurm/topology.conf")),
        ("hosts", &marked("slurm/hosts")),
        ("instances.json", &marked("ec2/instances.json")),
        ("topology.json", &marked("ec2/topology.json")),
        ("types.json", &marked("ec2/types.json")),
    ]);
    let path = |name: &str| dir.path().join(name);
    let plain = slurm(&fixture("slurm/topology.conf"), &fixture("slurm/hosts"));
    assert_eq!(
        output(&slurm(&path("topology.conf"), &path("hosts"))),
        output(&plain)
    );
    let (instances, topology, types) = (
        path("instances.json"),
        path("topology.json"),
        path("types.json"),
    );
    let files: [(&str, &Path); 3] = [
        ("instances", &instances),
        ("topology", &topology),
        ("types", &types),
    ];
    assert_eq!(output(&ec2(&files, &[])), output(&ec2(&[], &[])));
}
