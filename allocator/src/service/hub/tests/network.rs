//! Links and switches fail and come back (flowtune §6); another topology is loaded.

use ratewright_proto::control::{AccessCapacity, RefusalCode};
use ratewright_proto::{FlowId, FlowPath, StartRecord};
use ratewright_topology::{Frames, TwoTierClos};

use super::{HubWorld, settings};
use crate::service::admin_request::{
    LinkChange, SwitchChange, TopologyChange, TopologyChangeError,
};

pub(super) fn link(
    from: &str,
    to: &str,
    up: Option<bool>,
    capacity_bps: Option<u64>,
) -> TopologyChange {
    let (from, to) = (from.to_owned(), to.to_owned());
    TopologyChange::Link(LinkChange {
        from,
        to,
        up,
        capacity_bps,
        one_way: false,
        force: false,
    })
}

pub(super) fn switch(name: &str, up: bool) -> TopologyChange {
    TopologyChange::Switch(SwitchChange {
        name: name.to_owned(),
        up,
    })
}

#[test]
fn flows_go_around_a_failed_spine_and_come_back() {
    let mut world = HubWorld::with_hosts(settings(), &["h1"]);
    let (even, odd) = (world.start("h1", 0, "h16"), world.start("h1", 1, "h16"));
    world.settle();
    let report = world
        .change_topology(&switch("spine1", false))
        .expect("it is there");
    assert_eq!(report.links_changed, 8, "four leaves, both directions");
    assert_eq!(
        report.flows_rerouted, 1,
        "the flow over spine1; the other stays"
    );
    assert_eq!(report.flows_unroutable, 0);
    world.settle();
    world.assert_no_link_overfull();
    for flow in [even, odd] {
        assert!(world.rate("h1", flow).expect("rated") > 4_500_000_000);
    }
    let again = world
        .change_topology(&switch("spine1", true))
        .expect("it is there");
    assert_eq!(again.flows_rerouted, 1);
    assert!(again.topology_epoch > report.topology_epoch);
    world.settle();
    world.assert_no_link_overfull();
}

#[test]
fn a_flow_without_a_path_has_no_rate_until_there_is_one() {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h2"]);
    let (cut, other) = (world.start("h1", 0, "h16"), world.start("h2", 0, "h15"));
    world.settle();
    let down = link("h16", "leaf4", Some(false), None);
    let report = world.change_topology(&down).expect("it is there");
    assert_eq!((report.links_changed, report.flows_unroutable), (2, 1));
    world.settle();
    assert_eq!(
        world.rate("h1", cut),
        None,
        "its host was told that there is no rate"
    );
    assert!(world.rate("h2", other).is_some());
    assert_eq!(world.hub.counts().flows_unmanaged.get("unroutable"), 1);
    world
        .change_topology(&link("leaf4", "h16", Some(true), None))
        .expect("it is there");
    world.settle();
    assert!(world.rate("h1", cut).expect("rated again") > 9_000_000_000);
}

#[test]
fn a_smaller_capacity_is_kept_to() {
    let mut world = HubWorld::with_hosts(settings(), &["h1"]);
    let flow = world.start("h1", 0, "h16");
    world.settle();
    let slower = link("leaf4", "h16", None, Some(1_000_000_000));
    assert_eq!(
        world.change_topology(&slower).expect("there").links_changed,
        2
    );
    world.settle();
    let rate = world.rate("h1", flow).expect("rated");
    assert!(rate <= 1_000_000_000 && rate > 970_000_000, "{rate}");
}

#[test]
fn a_notification_about_nothing_we_know_changes_nothing() {
    let mut world = HubWorld::with_hosts(settings(), &["h1"]);
    let epoch = world.hub.topology().epoch();
    let table = [
        (
            link("h99", "leaf1", Some(false), None),
            "no host or switch is named \"h99\"",
        ),
        (
            link("h1", "leaf2", Some(false), None),
            "no link from \"h1\" to \"leaf2\"",
        ),
        (
            link("h1", "leaf1", None, None),
            "nothing to change: give \"up\" (true or false) or \"capacity_bps\"",
        ),
        (
            link("h1", "leaf1", None, Some(0)),
            "capacity_bps = 0: must be 1000 or more; say \"up\": false for a link that failed",
        ),
        (switch("h1", false), "no switch is named \"h1\""),
    ];
    for (change, expected) in table {
        let error: TopologyChangeError = world.change_topology(&change).expect_err("refused");
        assert_eq!(error.to_string(), expected);
    }
    assert_eq!(world.hub.topology().epoch(), epoch);
    assert!(world.hub.engine_events().is_empty());
}

#[test]
fn another_topology_of_the_same_hosts_keeps_sessions_and_flows() {
    let mut world = HubWorld::with_hosts(settings(), &["h1"]);
    let flow = world.start("h1", 0, "h16");
    world.settle();
    let version = world.hosts["h1"].topology_version;
    let of_10_gbps = AccessCapacity::new(10_000_000_000, 10_000_000_000)
        .with_line_rates(10_000_000_000, 10_000_000_000);
    assert_eq!(world.hosts["h1"].access, of_10_gbps);
    let slower = TwoTierClos {
        host_capacity_bps: 2_000_000_000,
        ..TwoTierClos::default()
    };
    let slower = slower.build().expect("good").with_frames(Frames::default());
    world.replace_topology(slower);
    world.settle();
    assert!(world.hosts["h1"].established);
    assert!(
        world.hosts["h1"].topology_version > version,
        "the host was told of the new version"
    );
    // 1,514 bytes of each frame of 1,538.
    let of_2_gbps = AccessCapacity::new(1_968_790_637, 1_968_790_637)
        .with_line_rates(2_000_000_000, 2_000_000_000);
    assert_eq!(world.hosts["h1"].access, of_2_gbps);
    let rate = world.rate("h1", flow).expect("rated");
    assert!(rate <= 2_000_000_000 && rate > 1_900_000_000, "{rate}");
}

#[test]
fn a_host_that_a_later_file_puts_on_a_spare_place_ends_no_session() {
    let mut world = HubWorld::new(settings());
    let spare = TwoTierClos {
        spare_hosts: 2,
        ..TwoTierClos::default()
    };
    let spare = spare.build().expect("good");
    world.replace_topology(spare.clone());
    world.connect("h1", "h1", 1, &["h1"]);
    world.connect("h16", "h16", 1, &["h16"]);
    // The name of a spare place is no host's, whatever a certificate says.
    world.connect("spare", "rack1/spare1", 1, &["rack1/spare1"]);
    world.settle();
    let refused = world.hosts["spare"].refused.clone().expect("it was told");
    assert_eq!(refused.code, RefusalCode::UnknownHost);
    let flow = world.start("h1", 0, "h16");
    world.settle();
    assert!(world.rate("h1", flow).is_some());
    let text = spare.to_toml_string()
        + "\n[[host]]\nname = \"db9\"\nreplaces = \"rack1/spare1\"\nprefixes = [\"192.168.1.1\"]\n";
    let grown = ratewright_topology::Topology::from_toml_str(&text, "grown").expect("good");
    world.replace_topology(grown);
    world.settle();
    for name in ["h1", "h16"] {
        assert!(world.hosts[name].established, "{name} keeps its session");
        assert_eq!(world.hosts[name].refused, None, "{name}");
    }
    assert!(world.rate("h1", flow).is_some());
    let to_new = world.start("h1", 1, "db9");
    world.settle();
    assert!(world.rate("h1", to_new).expect("rated") > 1_000_000_000);
}

#[test]
fn hosts_that_are_renumbered_connect_anew() {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h16"]);
    world.start("h1", 0, "h16");
    world.settle();
    let smaller = TwoTierClos {
        racks: 2,
        ..TwoTierClos::default()
    };
    world.replace_topology(smaller.build().expect("good"));
    world.settle();
    for name in ["h1", "h16"] {
        let refused = world.hosts[name].refused.clone().expect("it was told");
        assert_eq!(
            (refused.code, refused.retry),
            (RefusalCode::Draining, true),
            "{name}"
        );
    }
    world.connect("h1", "h1", 1, &["h1"]);
    let to = world.hub.topology().host_by_name("h8").expect("there").0;
    let flow = FlowId::new(0, 1);
    world.start_record("h1", StartRecord::new(flow, to, FlowPath::Hash(0)));
    world.settle();
    assert!(
        world.rate("h1", flow).is_some(),
        "the engine knows the new network"
    );
}

#[test]
fn a_capacity_that_would_stop_flows_has_to_be_meant() {
    let mut world = HubWorld::with_hosts(settings(), &["h1"]);
    let flow = world.start("h1", 0, "h16");
    world.settle();
    for capacity_bps in [1_000, 99_999_999] {
        let change = link("leaf4", "h16", None, Some(capacity_bps));
        let refused = world.change_topology(&change);
        let floor = TopologyChangeError::CapacityFloor {
            capacity_bps,
            nominal_bps: 10_000_000_000,
        };
        assert_eq!(refused, Err(floor));
    }
    // What the file says is the measure, not what a notification has made of it.
    for capacity_bps in [1_000_000_000, 100_000_000] {
        let change = link("leaf4", "h16", None, Some(capacity_bps));
        assert!(world.change_topology(&change).is_ok(), "{capacity_bps}");
    }
    let TopologyChange::Link(mut forced) = link("leaf4", "h16", None, Some(1_000_000)) else {
        unreachable!("made so above");
    };
    forced.force = true;
    assert!(world.change_topology(&TopologyChange::Link(forced)).is_ok());
    world.settle();
    assert!(world.rate("h1", flow).expect("rated") <= 1_000_000);
}
