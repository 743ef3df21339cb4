//! Bounds of single flows between two hosts: never exceeded, and what they leave goes to others.

use ratewright_topology::Topology;

use super::{HubWorld, settings};
use crate::service::config::ClassConfig;
use crate::service::hub::HubSettings;

const GBIT: u64 = 1_000_000_000;

/// Two racks of hosts with 10 Gbit/s: 2 Gbit/s a flow, 4 between h1 and h8.
const CAPPED: &str = r#"
kind = "big_switch"
max_flow_bps = 2_000_000_000

[parameters]
racks = 2
hosts_per_rack = 4
host_capacity = "10Gbit/s"

[[group]]
name = "placement group"
max_flow_bps = 4_000_000_000
hosts = ["h1", "h8"]
"#;

fn topology(text: &str) -> Topology {
    Topology::from_toml_str(text, "capped.toml").expect("it is good")
}

fn world(settings: HubSettings) -> HubWorld {
    let mut world = HubWorld::of(settings, topology(CAPPED));
    world.connect_all(&["h1", "h2", "h3"]);
    world
}

#[test]
fn a_flow_that_is_alone_gets_its_bound_and_no_more() {
    let mut world = world(settings());
    let (grouped, other) = (world.start("h1", 0, "h8"), world.start("h2", 0, "h7"));
    world.settle();
    for (host, flow, bound) in [("h1", grouped, 4 * GBIT), ("h2", other, 2 * GBIT)] {
        let rate = world.rate(host, flow).expect("rated");
        assert!(rate <= bound, "{host}: {rate}");
        assert!(rate >= bound * 97 / 100, "{host}: {rate}");
    }
    let flows = world
        .hub
        .report()
        .flows_of("h1")
        .expect("it has a session")
        .flows;
    assert_eq!(flows[0].max_flow_bps, Some(4 * GBIT), "/flows says so");
}

#[test]
fn what_a_bounded_flow_leaves_of_a_link_goes_to_the_others() {
    let mut world = world(settings());
    // Into h8: a flow of 4 Gbit/s at most, and two of 2 Gbit/s at most by two hosts.
    let wide = world.start("h1", 0, "h8");
    let narrow = [world.start("h2", 0, "h8"), world.start("h3", 0, "h8")];
    world.settle();
    let rate = world.rate("h1", wide).expect("rated");
    assert!((39 * GBIT / 10..=4 * GBIT).contains(&rate), "{rate}");
    // Another seven of h2: the link is full now, and an equal share is below every bound.
    let more: Vec<_> = (1..8).map(|slot| world.start("h2", slot, "h8")).collect();
    world.settle();
    let mut sum = world.rate("h1", wide).expect("rated");
    let others = narrow.iter().take(1).chain(&more);
    sum += others
        .map(|flow| world.rate("h2", *flow).expect("rated"))
        .sum::<u64>();
    sum += world.rate("h3", narrow[1]).expect("rated");
    assert!((97 * GBIT / 10..=10 * GBIT).contains(&sum), "{sum}");
}

#[test]
fn a_class_that_ignores_demands_is_bounded_all_the_same() {
    let classes = vec![ClassConfig {
        measured_demand: false,
        ..ClassConfig::default()
    }];
    let mut world = world(HubSettings {
        classes,
        ..settings()
    });
    let flow = world.start("h2", 0, "h7");
    world.settle();
    let rate = world.rate("h2", flow).expect("rated");
    assert!(rate <= 2 * GBIT, "{rate}");
}

#[test]
fn another_topology_brings_its_bounds_to_flows_that_run() {
    let mut world = world(settings());
    let flow = world.start("h2", 0, "h7");
    world.settle();
    let raised = CAPPED.replace("max_flow_bps = 2_000", "max_flow_bps = 6_000");
    world.replace_topology(topology(&raised));
    world.settle();
    let rate = world.rate("h2", flow).expect("rated");
    assert!((58 * GBIT / 10..=6 * GBIT).contains(&rate), "{rate}");
}
