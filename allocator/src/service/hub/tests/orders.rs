//! Conduct of single hosts: rollout, releases of one host, and the kill switch above both.

use super::{HubWorld, LEASE_NS, settings};
use crate::service::config::{HostPattern, PacingOrder, Rollout};
use crate::service::hub::HubSettings;

fn rolled_out(hosts: &[&str], others: PacingOrder) -> HubSettings {
    HubSettings {
        rollout: Rollout {
            percent: 0.0,
            hosts: hosts
                .iter()
                .map(|host| HostPattern::parse(host).expect("a pattern"))
                .collect(),
            others,
            ..Rollout::default()
        },
        ..settings()
    }
}

#[test]
fn hosts_outside_the_rollout_observe_and_a_reload_lets_them_pace() {
    let mut world = HubWorld::with_hosts(rolled_out(&["h1"], PacingOrder::Observe), &["h1", "h2"]);
    let paced = world.start("h1", 0, "h16");
    let observed = world.start("h2", 0, "h15");
    world.settle();
    assert!(!world.hosts["h1"].released && world.hosts["h2"].released);
    assert!(world.hosts["h2"].session.observes());
    assert!(
        world.rate("h1", paced).is_some() && world.rate("h2", observed).is_some(),
        "rates go to both: one applies them, one looks at them"
    );
    let now_ns = world.now_ns;
    assert_eq!(
        world
            .hub
            .report()
            .host_release_report(now_ns, "h2")
            .acknowledged,
        1,
        "it has proved that it paces nothing"
    );

    let everybody = HubSettings {
        rollout: Rollout::default(),
        ..settings()
    };
    world.hub.reconfigure(now_ns, everybody);
    world.settle();
    assert!(!world.hosts["h2"].released && !world.hosts["h2"].session.observes());
    assert!(world.hosts["h2"].established, "its session stays");
    assert!(world.rate("h2", observed).is_some());

    let now_ns = world.now_ns;
    world
        .hub
        .reconfigure(now_ns, rolled_out(&["h2"], PacingOrder::Release));
    world.settle();
    assert!(world.hosts["h1"].released && !world.hosts["h1"].session.observes());
    assert_eq!(world.rate("h1", paced), None);
    assert!(world.rate("h2", observed).is_some());
}

#[test]
fn one_host_is_released_with_the_kill_switchs_proof() {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h2"]);
    let (one, two) = (world.start("h1", 0, "h16"), world.start("h2", 0, "h15"));
    world.settle();
    world.host("h1").answers_release = false;
    let now_ns = world.now_ns;
    let report = world
        .hub
        .set_host_released(now_ns, "h1", true)
        .expect("a host of the topology");
    assert_eq!(report.waiting, ["h1"]);
    world.settle();
    assert_eq!(world.rate("h1", one), None);
    assert!(world.rate("h2", two).is_some(), "others go on");
    assert!(!world.hub.is_released());
    world.pass(LEASE_NS + 1);
    let now_ns = world.now_ns;
    let report = world.hub.report().host_release_report(now_ns, "h1");
    assert_eq!((report.expired, report.waiting.len()), (1, 0));

    world
        .hub
        .set_host_released(now_ns, "h1", false)
        .expect("a host of the topology");
    world.settle();
    assert!(world.rate("h1", one).is_some());
    assert!(world.hub.set_host_released(0, "h999", true).is_err());
}

#[test]
fn the_kill_switch_is_above_the_rollout_and_gives_way_to_it_again() {
    let mut world = HubWorld::with_hosts(rolled_out(&["h1"], PacingOrder::Observe), &["h1", "h2"]);
    world.settle();
    let now_ns = world.now_ns;
    world
        .hub
        .set_host_released(now_ns, "h1", true)
        .expect("a host of the topology");
    world.settle();
    let now_ns = world.now_ns;
    world.hub.set_released(now_ns, true);
    world.settle();
    assert!(
        !world.hosts["h2"].session.observes(),
        "nobody looks at rates"
    );
    let now_ns = world.now_ns;
    let report = world.hub.report().release_report(now_ns);
    assert_eq!((report.hosts, report.acknowledged), (2, 2));
    assert!(!world.hub.release_waits(now_ns));
    world.hub.set_released(now_ns, false);
    world.settle();
    assert!(world.hosts["h1"].released, "still released by itself");
    assert!(world.hosts["h2"].session.observes());
}
