//! The matching table.

use std::net::{IpAddr, Ipv4Addr};

use ratewright_topology::ecmp::FiveTuple;

use super::*;

fn facts(src_port: u16, dst_port: u16, dscp: u8, mark: u32, cgroup_id: u64) -> FlowFacts {
    FlowFacts {
        tuple: FiveTuple {
            src: IpAddr::V4(Ipv4Addr::new(10, 0, 1, 1)),
            dst: IpAddr::V4(Ipv4Addr::new(10, 0, 2, 1)),
            src_port,
            dst_port,
            protocol: 6,
        },
        cgroup_id,
        mark,
        dscp,
        app_max_bytes_per_s: None,
    }
}

#[derive(serde::Deserialize)]
struct PolicyFile {
    policy: Vec<RuleConfig>,
}

fn rules(text: &str) -> Vec<RuleConfig> {
    toml::from_str::<PolicyFile>(text).unwrap().policy
}

#[test]
fn the_first_rule_that_matches_decides() {
    let mut policy = Policy::new(&rules(
        r#"
        [[policy]]
        dst_port = 22
        bypass = true
        [[policy]]
        dst_port = "5000-5100"
        dscp = 10
        class = "gold"
        weight = 4.0
        [[policy]]
        dst_port = "5000-5100"
        weight = 2.0
        [[policy]]
        src_port = 80
        max_rate_mbps = 2.5
        [[policy]]
        mark = "0x10/0xf0"
        class = 3
        "#,
    ));
    let table = [
        (facts(40_000, 22, 10, 0x10, 0), Some(0)),
        (facts(40_000, 5_000, 10, 0, 0), Some(1)),
        (facts(40_000, 5_100, 10, 0x10, 0), Some(1)),
        (facts(40_000, 5_100, 11, 0, 0), Some(2)),
        (facts(80, 5_101, 0, 0, 0), Some(3)),
        (facts(80, 4_999, 10, 0, 0), Some(3)),
        (facts(81, 443, 0, 0x1f, 0), Some(4)),
        (facts(81, 443, 0, 0x20, 0), None),
    ];
    for (facts, rule) in &table {
        let treatment = policy.decide(facts);
        assert_eq!(treatment.rule, *rule, "{facts:?}");
        policy.count(&treatment);
    }
    assert_eq!(policy.matches(), [1, 2, 1, 2, 1]);
    let gold = policy.decide(&table[1].0);
    assert_eq!(
        (gold.class, gold.weight),
        (Some(ClassRef::Name("gold".into())), Some(4.0))
    );
    assert_eq!(policy.decide(&table[4].0).max_rate_bps, Some(2_500_000));
    assert!(policy.decide(&table[0].0).bypass);
    assert_eq!(policy.decide(&table[7].0), Treatment::default());
}

#[test]
fn a_cgroup_matches_once_it_exists() {
    use std::os::unix::fs::MetadataExt;
    let mount = tempfile::tempdir().unwrap();
    let tree = CgroupTree::at(mount.path());
    let mut policy = Policy::new(&rules("[[policy]]\ncgroup = \"batch\"\nweight = 0.5\n"));
    assert!(policy.uses_cgroups());
    assert_eq!(
        policy.refresh_cgroups(&tree),
        [std::path::PathBuf::from("batch")]
    );
    // Id 0 means that the back end did not find the cgroup: it matches no cgroup rule.
    assert_eq!(policy.decide(&facts(1, 2, 0, 0, 0)).rule, None);

    let job = mount.path().join("batch/job");
    std::fs::create_dir_all(&job).unwrap();
    assert!(policy.refresh_cgroups(&tree).is_empty());
    let id = std::fs::metadata(&job).unwrap().ino();
    assert_eq!(policy.decide(&facts(1, 2, 0, 0, id)).weight, Some(0.5));
}

#[test]
fn wrong_values_say_what_would_be_right() {
    for (text, expected) in [
        ("dst_port = 0", "not a port"),
        ("dst_port = 70000", "1 to 65535"),
        ("dst_port = \"200-100\"", "5000-5100"),
        ("dst_port = true", "not a port"),
        ("mark = -1", "value/mask"),
        ("mark = \"0x100/0xf0\"", "bits outside the mask"),
        ("class = 300", "not a class"),
        ("class = \"\"", "not a class"),
        ("wieght = 1.0", "unknown field `wieght`"),
    ] {
        let error = toml::from_str::<RuleConfig>(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    for (text, key) in [
        ("dscp = 64", "dscp"),
        ("class = 128", "class"),
        ("weight = 0.0", "weight"),
        ("weight = nan", "weight"),
        ("weight = 20000.0", "weight"),
        ("max_rate_mbps = 0.0", "max_rate_mbps"),
        ("bypass = true\nweight = 1.0", "bypass"),
        ("cgroup = \"\"", "cgroup"),
    ] {
        let rule: RuleConfig = toml::from_str(text).unwrap();
        assert_eq!(rule.check().unwrap_err().key, key, "{text}");
    }
}
