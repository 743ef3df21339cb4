//! Generated addresses, and the longest-prefix lookup against a linear scan.

use std::net::IpAddr;

use proptest::prelude::*;
use ratewright_topology::{Addressing, BuildError, HostId, Topology, TwoTierClos};

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn every_host_gets_an_ipv4_and_an_ipv6_address() {
    let net = TwoTierClos {
        racks: 300,
        ..TwoTierClos::default()
    }
    .build()
    .unwrap();
    // Rack 3, second host.
    let host = net.host_by_addr(addr("10.0.3.2")).unwrap();
    assert_eq!(host, HostId(2 * 4 + 1));
    assert_eq!(net.host_by_addr(addr("fd00:0:0:3::2")), Some(host));
    assert_eq!(
        net.host_by_addr(addr("::ffff:10.0.3.2")),
        Some(host),
        "mapped addresses count as IPv4"
    );
    assert_eq!(
        net.host_by_addr(addr("10.1.44.4")),
        Some(HostId(300 * 4 - 1))
    );
    for nobody in ["10.0.0.1", "10.0.3.0", "10.0.3.5", "192.168.0.1", "::1"] {
        assert_eq!(net.host_by_addr(addr(nobody)), None, "{nobody}");
    }
}

#[test]
fn a_base_that_is_too_small_is_refused_with_the_size_that_fits() {
    let addressing = |v4: &str, v6: &str| Addressing {
        ipv4_base: v4.parse().ok(),
        ipv6_base: v6.parse().ok(),
    };
    let build = |racks, addressing| {
        TwoTierClos {
            racks,
            addressing,
            ..TwoTierClos::default()
        }
        .build()
    };
    // 3 racks and the slice for infrastructure: 4 × 256 addresses.
    assert!(build(3, addressing("10.9.0.0/22", "fd00::/62")).is_ok());
    assert_eq!(
        build(3, addressing("10.9.0.0/23", "fd00::/62"))
            .unwrap_err()
            .to_string(),
        "`ipv4_base` = 10.9.0.0/23 is too small for 3 racks of up to 4 hosts; use a prefix of /22 or shorter"
    );
    assert!(matches!(
        build(4, addressing("10.0.0.0/8", "fd00::/62")).unwrap_err(),
        BuildError::BaseTooSmall {
            key: "ipv6_base",
            longest: 61,
            ..
        }
    ));
}

#[test]
fn the_longest_prefix_wins() {
    let text = r#"
kind = "big_switch"
nested_prefixes = true
[parameters]
racks = 1
hosts_per_rack = 3
host_capacity = "1Gbit/s"
[[host]]
name = "gateway"
prefixes = ["0.0.0.0/0", "::/0"]
[[host]]
name = "net"
prefixes = ["192.168.0.0/16", "fd01::/16"]
[[host]]
name = "one"
prefixes = ["192.168.7.0/24", "fd01:7::/32"]
"#;
    let net = Topology::from_toml_str(text, "lpm.toml").unwrap();
    let host = |text| {
        net.host_by_addr(addr(text))
            .map(|h| net.hosts()[h.index()].name.as_str())
    };
    assert_eq!(host("192.168.7.9"), Some("one"));
    assert_eq!(host("192.168.8.9"), Some("net"));
    assert_eq!(host("8.8.8.8"), Some("gateway"));
    assert_eq!(host("fd01:7::9"), Some("one"));
    assert_eq!(host("fd01:8::9"), Some("net"));
    assert_eq!(host("2001:db8::1"), Some("gateway"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn lookup_agrees_with_a_linear_scan(
        prefixes in prop::collection::btree_set((any::<u8>(), 0u8..=10), 1..12),
        probes in prop::collection::vec(any::<u16>(), 32),
    ) {
        // Prefixes of 192.x.0.0, /8 to /18, so that many nest.
        let nets: std::collections::BTreeSet<ipnet::Ipv4Net> = prefixes
            .iter()
            .map(|(x, length)| ipnet::Ipv4Net::new_assert([192, *x, 0, 0].into(), 8 + length).trunc())
            .collect();
        let mut text = format!(
            "kind = \"big_switch\"\nnested_prefixes = true\n[parameters]\nracks = 1\nhosts_per_rack = {}\nhost_capacity = \"1Gbit/s\"\n",
            nets.len()
        );
        for (i, net) in nets.iter().enumerate() {
            text += &format!("[[host]]\nname = \"n{i}\"\nprefixes = [\"{net}\"]\n");
        }
        let net = Topology::from_toml_str(&text, "scan.toml").unwrap();
        for probe in probes {
            // The probes share the first byte with the prefixes, so that many of them match.
            let [x, y] = probe.to_be_bytes();
            let address = IpAddr::from([192, x, y, 1]);
            let best = net
                .hosts()
                .iter()
                .flat_map(|h| h.prefixes.iter().map(move |p| (p, h.id)))
                .filter(|(p, _)| p.contains(&address))
                .max_by_key(|(p, _)| p.prefix_len());
            prop_assert_eq!(net.host_by_addr(address), best.map(|(_, id)| id));
        }
    }
}
