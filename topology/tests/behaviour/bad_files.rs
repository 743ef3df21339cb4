//! Mistakes in files: each with the exact line, and what would be right.

use ratewright_topology::{Topology, TopologyError};

/// A good two-tier file of 8 lines, to which the cases add.
const TWO: &str = r#"kind = "two_tier_clos"
[parameters]
racks = 2
hosts_per_rack = 2
spines = 2
host_capacity = "10Gbit/s"
fabric_capacity = "40Gbit/s"
# end
"#;

// Only errors of the file name a line; any other kind is a failure of the test.
fn error(text: &str) -> String {
    match Topology::from_toml_str(text, "t.toml") {
        Err(TopologyError::File(e)) => e.to_string(),
        Err(other) => panic!("not a file error: {other}"),
        Ok(_) => panic!("this file should be refused:\n{text}"),
    }
}

/// The good file with one line replaced.
fn with(old: &str, new: &str) -> String {
    // A replacement that finds nothing would test the good file.
    assert!(TWO.contains(old));
    TWO.replace(old, new)
}

fn and(more: &str) -> String {
    format!("{TWO}{more}")
}

#[test]
fn the_good_file_is_good() {
    assert!(Topology::from_toml_str(TWO, "t.toml").is_ok());
}

#[test]
fn mistakes_in_the_frame() {
    for (text, expected) in [
        (
            String::new(),
            r#"t.toml:1: `kind` is missing; set it to one of "big_switch", "two_tier_clos", "fat_tree", "three_tier_clos""#,
        ),
        (
            with("two_tier_clos", "ring"),
            r#"t.toml:1: `kind` is "ring"; it must be one of "big_switch", "two_tier_clos", "fat_tree", "three_tier_clos""#,
        ),
        (
            with("\"two_tier_clos\"", "2"),
            r#"t.toml:1: `kind` is 2; it must be one of "big_switch", "two_tier_clos", "fat_tree", "three_tier_clos""#,
        ),
        (
            "kind = \"fat_tree\"\n".into(),
            "t.toml:1: the table [parameters] is missing; add it with `k` and `capacity`",
        ),
        (
            with("racks = 2\n", ""),
            "t.toml:2: `racks` is missing in [parameters]; add it, such as racks = 4",
        ),
        (
            with("# end", "[[hosts]]\nname = \"a\""),
            "t.toml:8: unknown field `hosts`, expected one of `kind`, `parameters`, `nested_prefixes`, `max_flow_bps`, `frames`, `ecmp`, `host`, `link`, `group`, `failed`",
        ),
        (
            with("spines = 2", "spine = 2"),
            "t.toml:5: unknown field `spine`, expected one of `racks`, `hosts_per_rack`, `rack_sizes`, `spare_hosts`, `spines`, `host_capacity`, `fabric_capacity`, `host_delay`, `fabric_delay`, `ipv4_base`, `ipv6_base`",
        ),
        (
            with("racks = 2", "racks = 2\nracks = 3"),
            "t.toml:4: duplicate key",
        ),
        (
            with("racks = 2", "racks = "),
            "t.toml:3: string values must be quoted, expected literal string",
        ),
        (
            and("[ecmp]\nseed = -1"),
            "t.toml:10: invalid value: integer `-1`, expected u32",
        ),
    ] {
        assert_eq!(error(&text), expected);
    }
}

#[test]
fn mistakes_in_parameters() {
    for (text, expected) in [
        (
            with("racks = 2", "racks = 0"),
            "t.toml:3: `racks` is 0; it must be at least 1",
        ),
        (
            with("racks = 2", "racks = \"two\""),
            "t.toml:3: invalid type: string \"two\", expected u32",
        ),
        (
            with("spines = 2", "spines = 2\nrack_sizes = [2, 2]"),
            "t.toml:4: `hosts_per_rack` and `rack_sizes` are both given; keep one of them",
        ),
        (
            with("hosts_per_rack = 2", "rack_sizes = [2, 2, 2]"),
            "t.toml:4: `rack_sizes` lists 3 racks, but there are 2; list one number of hosts for each rack, or leave it out",
        ),
        (
            with("10Gbit/s", "10Gbps"),
            "t.toml:6: \"10Gbps\" is not a capacity; write a number and one of bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s, such as \"10Gbit/s\"",
        ),
        (
            with("\"10Gbit/s\"", "10"),
            "t.toml:6: invalid type: integer `10`, expected a capacity with its unit, such as \"10Gbit/s\" or \"500Mbit/s\"",
        ),
        (
            with("40Gbit/s", "0Gbit/s"),
            "t.toml:7: the capacity of a link is at least 1bit/s; list a link that carries nothing under [[failed]]",
        ),
        (
            with("# end", "host_delay = \"2 parsec\""),
            "t.toml:8: \"2 parsec\" is not a delay; write a number and one of ns, us, ms, s, such as \"2us\"",
        ),
        (
            with("# end", "ipv4_base = \"10.0.0.1/8\""),
            "t.toml:8: \"10.0.0.1/8\" has bits set beyond the prefix length; write \"10.0.0.0/8\"",
        ),
        (
            with("# end", "ipv4_base = \"fd00::/8\""),
            "t.toml:8: \"fd00::/8\" is not an IPv4 prefix; write one such as \"10.0.0.0/8\", or \"none\"",
        ),
        (
            with("# end", "ipv4_base = \"10.0.0.0/24\""),
            "t.toml:8: `ipv4_base` = 10.0.0.0/24 is too small for 2 racks of up to 2 hosts; use a prefix of /22 or shorter",
        ),
        (
            "kind = \"fat_tree\"\n[parameters]\ncapacity = \"10Gbit/s\"\nk = 3\n".into(),
            "t.toml:4: `k` is 3; a fat tree needs an even k of at least 2, such as 4",
        ),
    ] {
        assert_eq!(error(&text), expected);
    }
}

#[test]
fn mistakes_in_hosts() {
    for (more, expected) in [
        (
            "[[host]]\nprefixes = [\"10.1.0.1\"]",
            "t.toml:9: missing field `name`",
        ),
        (
            "[[host]]\nname = \"a\"\n[[host]]\nname = \"a\"",
            "t.toml:12: the name \"a\" is used twice; every host needs its own",
        ),
        (
            "[[host]]\nname = \"h4\"\nreplaces = \"h1\"",
            "t.toml:10: the name \"h4\" is used twice; every host needs its own",
        ),
        (
            "[[host]]\nname = \"leaf1\"",
            "t.toml:10: the name \"leaf1\" belongs to a switch; give the host another one",
        ),
        (
            "[[host]]\nname = \"a b\"",
            "t.toml:10: \"a b\" is no host name; use 1 to 63 letters, digits, '-', '_' and '.'",
        ),
        (
            "[[host]]\nname = \"a\"\nreplaces = \"h5\"",
            "t.toml:11: `replaces` is \"h5\", which no host is generated as; use one of h1 to h4",
        ),
        (
            "[[host]]\nname = \"h1\"\n[[host]]\nname = \"x\"\nreplaces = \"h1\"",
            "t.toml:12: this entry is for host h1, as is the one at line 9; leave one of them out",
        ),
        (
            "[[host]]\nname = \"a\"\nrack = \"rack3\"",
            "t.toml:11: there is no rack \"rack3\"; use one of rack1 to rack2",
        ),
        (
            "[[host]]\nname = \"h1\"\nrack = \"rack2\"",
            "t.toml:11: `rack` is \"rack2\", but h1, which this entry is for, stands in \"rack1\"",
        ),
        (
            "[[host]]\nname = \"a\"\nrack = \"rack2\"\n[[host]]\nname = \"b\"\nrack = \"rack2\"\n[[host]]\nname = \"c\"\nrack = \"rack2\"",
            "t.toml:16: host \"c\" is one too many: rack2 has 2 hosts; leave it out, or raise the number in [parameters]",
        ),
        (
            "[[host]]\nname = \"a\"\nprefixes = []",
            "t.toml:11: `prefixes` is empty; list at least one, or leave it out to keep the generated ones",
        ),
        (
            "[[host]]\nname = \"a\"\nprefixes = [\"10.0.0.300\"]",
            "t.toml:11: \"10.0.0.300\" is not an IP prefix; write one such as \"10.0.1.0/24\", \"10.0.1.7\" or \"fd00:1::/64\"",
        ),
        (
            "[[host]]\nname = \"a\"\nprefixes = [\"10.0.1.7/24\"]",
            "t.toml:11: \"10.0.1.7/24\" has bits set beyond the prefix length; write \"10.0.1.0/24\"",
        ),
        (
            "[[host]]\nname = \"a\"\nprefixes = [\n  \"10.9.0.1\",\n  \"10.0.1.2\",\n]",
            "t.toml:13: prefix 10.0.1.2/32 of host \"a\" belongs to host \"h2\" already; give each host its own",
        ),
        (
            "[[host]]\nname = \"a\"\nprefixes = [\"10.9.0.0/16\"]\n[[host]]\nname = \"b\"\nprefixes = [\"10.9.8.0/24\"]",
            "t.toml:14: prefix 10.9.8.0/24 of host \"b\" overlaps 10.9.0.0/16 of host \"a\"; give each host its own, or set `nested_prefixes = true` to let the longest win",
        ),
        (
            "[[host]]\nname = \"a\"\nprefixes = [\"10.0.1.0/24\"]",
            "t.toml:11: prefix 10.0.1.0/24 of host \"a\" overlaps 10.0.1.2/32 of host \"h2\"; give each host its own, or set `nested_prefixes = true` to let the longest win",
        ),
        (
            "[[host]]\nname = \"a\"\nprefixes = [\n  \"10.9.0.1\",\n  \"127.0.1.1\",\n]",
            "t.toml:13: prefix 127.0.1.1/32 of host \"a\" is loopback; list the addresses by which other hosts reach it",
        ),
        (
            "[[host]]\nname = \"a\"\nprefixes = [\"fe80::/64\"]",
            "t.toml:11: prefix fe80::/64 of host \"a\" is link-local; list the addresses by which other hosts reach it",
        ),
        (
            "[[host]]\nname = \"a\"\nprefixes = [\"10.9.0.0/16\", \"10.9.1.0/24\"]",
            "t.toml:11: host \"a\" lists 10.9.1.0/24 beside 10.9.0.0/16, which covers the same addresses; keep one",
        ),
    ] {
        assert_eq!(error(&and(more)), expected);
    }
}

#[test]
fn mistakes_in_links_and_failures() {
    for (more, expected) in [
        (
            "[[link]]\nfrom = \"leaf9\"\nto = \"spine1\"\ncapacity_gbps = 1",
            "t.toml:10: there is no host or switch \"leaf9\"; the switches are leaf1 to leaf2, spine1 to spine2",
        ),
        (
            "[[link]]\nfrom = \"leaf1\"\nto = \"leaf2\"\ncapacity_gbps = 1",
            "t.toml:11: there is no link from \"leaf1\" to \"leaf2\"; links from \"leaf1\" lead to h1, h2, spine1, spine2",
        ),
        (
            "[[link]]\nfrom = \"leaf1\"\nto = \"spine1\"",
            "t.toml:10: this entry changes nothing; add `capacity`, `baseline`, `delay`, `mtu` or `frame_overhead`, or leave it out",
        ),
        (
            "[[link]]\nfrom = \"leaf1\"\nto = \"spine1\"\ncapacity_gbps = 1\nbaseline = \"1001Mbit/s\"",
            "t.toml:10: the baseline is above the capacity; a link always has its baseline, and its capacity for a while",
        ),
        (
            "[[link]]\nfrom = \"leaf1\"\nto = \"spine1\"\nmtu = 9000",
            "t.toml:10: `mtu` and `frame_overhead` need the table [frames], with which all capacities are line rates",
        ),
        (
            "[frames]\nmtu = 20",
            "t.toml:10: 20 bytes are out of range; use 576 to 65535",
        ),
        (
            "[frames]\noverhead = 8",
            "t.toml:10: 8 bytes are out of range; use 14 to 1000",
        ),
        (
            "[frames]\nfabric_overhead = \"38\"",
            "t.toml:10: invalid type: string \"38\", expected a number of bytes, 14 to 1000",
        ),
        (
            "[[link]]\nfrom = \"leaf1\"\nto = \"spine1\"\ncapacity_gbps = 0",
            "t.toml:12: the capacity 0 is out of range; it must be between 1 bit/s and 1000 Tbit/s",
        ),
        (
            "[[link]]\nfrom = \"leaf1\"\nto = \"spine1\"\ncapacity_mbps = nan",
            "t.toml:12: the capacity NaN is out of range; it must be between 1 bit/s and 1000 Tbit/s",
        ),
        (
            "[[link]]\nfrom = \"leaf1\"\nto = \"spine1\"\ncapacity_mbps = \"x\"",
            "t.toml:12: invalid type: string \"x\", expected a number, such as 10 or 2.5",
        ),
        (
            "[[link]]\nfrom = \"leaf1\"\nto = \"spine1\"\ncapacity_gbps = 1\ncapacity_mbps = 1",
            "t.toml:10: the capacity is given twice; keep one of `capacity`, `capacity_gbps`, `capacity_mbps`",
        ),
        (
            "[[link]]\nfrom = \"leaf1\"\nto = \"spine1\"\ncapacity_gbps = 1\nboth_ways = true\n[[link]]\nfrom = \"spine1\"\nto = \"leaf1\"\ncapacity_gbps = 2",
            "t.toml:15: the link from \"spine1\" to \"leaf1\" is listed already at line 10; keep one entry",
        ),
        (
            "[[failed]]\nswitch = \"spine3\"",
            "t.toml:10: there is no switch \"spine3\"; the switches are leaf1 to leaf2, spine1 to spine2",
        ),
        (
            "[[failed]]\nswitch = \"h1\"",
            "t.toml:10: there is no switch \"h1\"; the switches are leaf1 to leaf2, spine1 to spine2",
        ),
        (
            "[[failed]]\nswitch = \"spine1\"\n[[failed]]\nswitch = \"spine1\"",
            "t.toml:12: switch \"spine1\" is listed as failed already; keep one entry",
        ),
        (
            "[[failed]]\nfrom = \"leaf1\"",
            "t.toml:10: an entry of [[failed]] is either a `switch`, or a link `from` … `to` … (with `both_ways` for both directions)",
        ),
        (
            "[[failed]]",
            "t.toml:9: an entry of [[failed]] is either a `switch`, or a link `from` … `to` … (with `both_ways` for both directions)",
        ),
        (
            "[[failed]]\nfrom = \"h1\"\nto = \"leaf2\"",
            "t.toml:11: there is no link from \"h1\" to \"leaf2\"; links from \"h1\" lead to leaf1",
        ),
    ] {
        assert_eq!(error(&and(more)), expected);
    }
}

#[test]
fn mistakes_in_groups() {
    for (more, expected) in [
        (
            "[[group]]\nname = \"a\"\nmax_flow_bps = 1e9\n",
            "t.toml:10: group \"a\" has no hosts; list `hosts` or `racks`, or leave the entry out",
        ),
        (
            "[[group]]\nname = \"a\"\nmax_flow_bps = 0\nracks = [\"rack1\"]\n",
            "t.toml:11: the capacity 0 is out of range; it must be between 1 bit/s and 1000 Tbit/s",
        ),
        (
            "[[group]]\nname = \"a\"\nmax_flow_bps = 9\nhosts = [\"h1\", \"h9\"]\n",
            "t.toml:12: there is no host \"h9\"; a group lists hosts by their names here",
        ),
        (
            "[[group]]\nname = \"a\"\nmax_flow_bps = 9\nracks = [\"rack3\"]\n",
            "t.toml:12: there is no rack \"rack3\"; use one of rack1 to rack2",
        ),
        (
            "[[group]]\nname = \"a\"\nmax_flow_bps = 9\nracks = [\"rack1\"]\n\
             [[group]]\nname = \"a\"\nmax_flow_bps = 9\nracks = [\"rack2\"]\n",
            "t.toml:14: group \"a\" is listed already at line 10; keep one entry",
        ),
        (
            "[[group]]\nname = \"\"\nmax_flow_bps = 9\nracks = [\"rack1\"]\n",
            "t.toml:10: the name of a group has 1 to 255 bytes and no control characters",
        ),
    ] {
        assert_eq!(error(&and(more)), expected);
    }
    let many: String = (0..17)
        .map(|i| format!("[[group]]\nname = \"g{i}\"\nmax_flow_bps = 9\nhosts = [\"h2\"]\n"))
        .collect();
    let refused = error(&and(&many));
    assert!(
        refused.ends_with("host \"h2\" is in more than 16 groups; take it out of some"),
        "{refused}"
    );
}

#[test]
fn a_host_has_thousands_of_prefixes_and_no_more_than_the_bound() {
    let listed = |count: u32| -> String {
        let prefixes: Vec<String> = (0..count)
            .map(|i| format!("\"10.40.{}.{}\"", i / 256, i % 256))
            .collect();
        and(&format!(
            "[[host]]\nname = \"a\"\nprefixes = [{}]",
            prefixes.join(", ")
        ))
    };
    let most = Topology::from_toml_str(&listed(4_096), "t.toml").unwrap();
    assert_eq!(most.hosts()[0].prefixes.len(), 4_096);
    assert_eq!(
        error(&listed(4_097)),
        "t.toml:11: 4097 prefixes; at most 4096 per host are supported"
    );
}

#[test]
fn a_byte_order_mark_before_the_text_is_skipped() {
    let text = format!("\u{feff}{}", with("# end", ""));
    assert_eq!(
        Topology::from_toml_str(&text, "t.toml")
            .unwrap()
            .hosts()
            .len(),
        4
    );
}
