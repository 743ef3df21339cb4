//! The kill switch: every host on plain TCP within one lease, and the proof.

use super::{HubWorld, LEASE_NS, settings};

#[test]
fn every_host_that_answers_is_released_at_once() {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h2"]);
    let flow = world.start("h1", 0, "h16");
    world.settle();
    assert!(world.rate("h1", flow).is_some());
    let now_ns = world.now_ns;
    let report = world.hub.set_released(now_ns, true);
    assert_eq!((report.hosts, report.waiting.len()), (2, 2));
    world.settle();
    let now_ns = world.now_ns;
    let report = world.hub.report().release_report(now_ns);
    assert_eq!(
        (report.released, report.acknowledged, report.waiting.len()),
        (true, 2, 0)
    );
    assert!(world.hosts["h1"].released);
    assert_eq!(world.rate("h1", flow), None);

    let another = world.start("h1", 1, "h16");
    world.pass(LEASE_NS);
    assert_eq!(
        world.rate("h1", another),
        None,
        "no rate is handed out while the switch is on"
    );

    let now_ns = world.now_ns;
    world.hub.set_released(now_ns, false);
    world.settle();
    assert!(!world.hosts["h1"].released);
    assert!(world.rate("h1", flow).is_some() && world.rate("h1", another).is_some());
}

#[test]
fn a_host_that_does_not_answer_is_free_after_a_lease() {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h2"]);
    world.host("h2").answers_release = false;
    let now_ns = world.now_ns;
    world.hub.set_released(now_ns, true);
    world.pass(LEASE_NS - 20_000_000);
    let now_ns = world.now_ns;
    assert_eq!(
        world.hub.report().release_report(now_ns).waiting,
        vec!["h2".to_owned()]
    );
    world.pass(40_000_000);
    let now_ns = world.now_ns;
    let report = world.hub.report().release_report(now_ns);
    assert_eq!((report.acknowledged, report.expired), (1, 1));
    assert!(report.waiting.is_empty());
}

#[test]
fn a_host_that_left_just_before_is_waited_for() {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h2"]);
    world.start("h1", 0, "h16");
    world.settle();
    let id = world.host("h1").id.take().expect("connected");
    let now_ns = world.now_ns;
    world.hub.remove_session(now_ns, id, "timed_out");
    let report = world.hub.set_released(now_ns, true);
    assert!(
        report.waiting.contains(&"h1".to_owned()),
        "it may act on its rate for a lease"
    );
    world.pass(LEASE_NS);
    let now_ns = world.now_ns;
    assert!(world.hub.report().release_report(now_ns).waiting.is_empty());
}

#[test]
fn a_host_that_connects_while_the_switch_is_on_is_told() {
    let mut world = HubWorld::new(settings());
    let now_ns = world.now_ns;
    world.hub.set_released(now_ns, true);
    world.connect("h1", "h1", 1, &["h1"]);
    let flow = world.start("h1", 0, "h16");
    world.settle();
    assert!(world.hosts["h1"].released);
    assert_eq!(world.rate("h1", flow), None);
    let now_ns = world.now_ns;
    world.hub.set_released(now_ns, false);
    world.settle();
    assert!(world.rate("h1", flow).is_some());
}

#[test]
fn nobody_is_waited_for_who_is_known_to_be_free() {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h2", "h3"]);
    world.host("h2").answers_release = false;
    let now_ns = world.now_ns;
    assert!(!world.hub.release_waits(now_ns), "the switch is off");
    // One that leaves and is back at once counts with its session.
    let id = world.host("h3").id.take().expect("connected");
    world.hub.remove_session(now_ns, id, "timed_out");
    world.connect("h3", "h3", 2, &["h3"]);
    world.settle();
    let began_ns = world.now_ns;
    world.hub.set_released(began_ns, true);
    // `release_waits` agrees with the hosts that `release_report` lists.
    let mut ended_ns = None;
    while world.now_ns < began_ns + 2 * LEASE_NS {
        let now_ns = world.now_ns;
        let waits = world.hub.release_waits(now_ns);
        let report = world.hub.report().release_report(now_ns);
        assert_eq!(waits, !report.waiting.is_empty(), "{report:?}");
        if !waits && ended_ns.is_none() {
            ended_ns = Some(now_ns);
        }
        world.pass(1_000_000);
    }
    assert_eq!(ended_ns, Some(began_ns + LEASE_NS), "h2 says nothing");
    let conduct = &world.hub.conduct;
    assert!(conduct.unanswered.is_empty() && conduct.departed.is_empty());
}
