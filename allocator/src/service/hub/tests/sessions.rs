//! Sessions: admission, refusals and their texts, and the end of a session.

use ratewright_proto::SessionError;
use ratewright_proto::control::RefusalCode;
use ratewright_proto::sealed::Cipher;
use ratewright_topology::TwoTierClos;

use super::{HubWorld, settings};
use crate::service::config::{ClassConfig, Limits};
use crate::service::hub::check_welcome;

/// The refusal that a host of this name and certificate meets.
fn refusal(
    world: &mut HubWorld,
    key: &str,
    host: &str,
    incarnation: u64,
    names: &[&str],
) -> (RefusalCode, String) {
    world.connect(key, host, incarnation, names);
    world.settle();
    let host = world.host(key);
    assert!(!host.established);
    let refusal = host.refused.clone().expect("it was refused");
    (refusal.code, refusal.reason)
}

#[test]
fn a_host_that_the_topology_does_not_have_is_refused_by_name() {
    let mut world = HubWorld::new(settings());
    let (code, reason) = refusal(&mut world, "x", "h99", 1, &["h99"]);
    assert_eq!(code, RefusalCode::UnknownHost);
    assert_eq!(reason, "the topology has no host \"h99\" among its 16");
    assert_eq!(world.hub.counts().sessions_refused.get("unknown_host"), 1);
}

#[test]
fn a_host_is_who_its_certificate_says() {
    let mut world = HubWorld::new(settings());
    let (code, reason) = refusal(&mut world, "x", "h1", 1, &["h2", "h2.example"]);
    assert_eq!(code, RefusalCode::CertificateMismatch);
    assert!(
        reason.starts_with("the host calls itself \"h1\", its certificate names h2, h2.example;"),
        "{reason}"
    );
    let (code, reason) = refusal(&mut world, "y", "h1", 1, &[]);
    assert_eq!(code, RefusalCode::CertificateMismatch);
    assert!(reason.contains("its certificate names no host"), "{reason}");
    assert_eq!(
        world
            .hub
            .counts()
            .sessions_refused
            .get("certificate_mismatch"),
        2
    );
    assert_eq!(world.hub.counts().sessions_opened, 0);
}

#[test]
fn a_second_daemon_of_a_living_host_is_refused_unless_it_is_newer() {
    let mut world = HubWorld::new(settings());
    world.connect("first", "h1", 5, &["h1"]);
    world.settle();
    let (code, _) = refusal(&mut world, "older", "h1", 4, &["h1"]);
    assert_eq!(code, RefusalCode::DuplicateHost);
    assert!(world.host("first").established, "the first is left alone");

    world.connect("newer", "h1", 6, &["h1"]);
    world.settle();
    assert!(world.host("newer").established);
    let superseded = world
        .host("first")
        .refused
        .clone()
        .expect("the first was told");
    assert_eq!(superseded.code, RefusalCode::Superseded);
    assert!(!superseded.retry);
}

#[test]
fn a_session_that_ends_frees_its_share_at_once() {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h2"]);
    let (first, second) = (world.start("h1", 0, "h16"), world.start("h2", 0, "h16"));
    world.settle();
    let half = world.rate("h2", second).expect("rated");
    assert!(half < 5_000_000_000);
    assert!(world.rate("h1", first).is_some());

    let id = world.host("h1").id.take().expect("connected");
    world.host("h1").connected = false;
    let now_ns = world.now_ns;
    world.hub.remove_session(now_ns, id, "closed_by_host");
    world.settle();
    assert!(world.rate("h2", second).expect("rated") > 9_000_000_000);
    assert_eq!(world.hub.flow_count(), 1);
    assert_eq!(world.hub.counts().sessions_closed.get("closed_by_host"), 1);
}

#[test]
fn a_silent_host_is_given_up_after_the_liveness_time() {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h2"]);
    world.start("h1", 0, "h16");
    world.settle();
    world.host("h1").connected = false;
    // The allocator waits three times as long as hosts do.
    world.pass(2_900_000_000);
    let id = world.host("h1").id.expect("its transport is up");
    assert_eq!(world.hub.closing(id), None);
    world.pass(200_000_000);
    assert_eq!(world.hub.closing(id), Some("silent"));
    assert_eq!(world.hub.flow_count(), 0);
    assert!(
        world.host("h2").established,
        "an idle host that says so lives"
    );
}

#[test]
fn a_host_beyond_the_limit_is_told_so_and_may_come_again() {
    let limits = Limits {
        max_sessions: 2,
        ..Limits::default()
    };
    let mut world = HubWorld::with_hosts(
        super::HubSettings {
            limits,
            ..settings()
        },
        &["h1", "h2"],
    );
    let (code, reason) = refusal(&mut world, "h3", "h3", 1, &["h3"]);
    assert_eq!(code, RefusalCode::TableFull);
    assert_eq!(reason, "2 hosts have a session, which is the limit");
    assert!(world.host("h3").refused.clone().expect("refused").retry);
    assert_eq!(world.hub.counts().sessions_refused.get("table_full"), 1);

    // The next session of a host takes its former one's place, so the full table accepts it.
    world.connect("h1 again", "h1", 2, &["h1"]);
    world.settle();
    assert!(world.host("h1 again").established);

    let (id, now_ns) = (world.host("h2").id.expect("connected"), world.now_ns);
    world.hub.remove_session(now_ns, id, "closed_by_host");
    world.connect("h3", "h3", 1, &["h3"]);
    world.settle();
    assert!(world.host("h3").established, "there is room now");
}

#[test]
fn connections_that_say_nothing_are_bounded() {
    let limits = Limits {
        max_sessions: 2,
        ..Limits::default()
    };
    let mut world = HubWorld::new(super::HubSettings {
        limits,
        ..settings()
    });
    let now_ns = world.now_ns;
    let opened = (0..1_000)
        .take_while(|number| {
            let name = number.to_string();
            world
                .hub
                .open(now_ns, super::certificate_of(&[&name]))
                .is_ok()
        })
        .count();
    assert_eq!(opened, 2 + 256);
    assert_eq!(world.hub.counts().connections_rejected.get("table_full"), 1);
}

#[test]
fn of_connections_of_one_certificate_that_say_nothing_the_newest_four_stand() {
    let mut world = HubWorld::new(settings());
    let open: Vec<u32> = (0..100)
        .map(|_| {
            let opened = world.hub.open(world.now_ns, super::certificate_of(&["h1"]));
            opened.expect("there is room")
        })
        .collect();
    let standing = open.iter().filter(|&&id| world.hub.awaits_hello(id));
    assert!(standing.eq(&open[96..]));
    let rejected = &world.hub.counts().connections_rejected;
    assert_eq!(rejected.get("crowded_out"), 96);
    // Each that goes frees a place, and another certificate has its own.
    world.hub.remove_session(world.now_ns, open[98], "lost");
    let next = world.hub.open(world.now_ns, super::certificate_of(&["h1"]));
    world
        .hub
        .open(world.now_ns, super::certificate_of(&["h2"]))
        .expect("there is room");
    for id in [open[96], open[97], open[99], next.expect("there is room")] {
        assert!(world.hub.awaits_hello(id));
    }
}

#[test]
fn a_topology_that_no_host_could_be_welcomed_to_is_found_out() {
    let clos = |racks| TwoTierClos {
        racks,
        hosts_per_rack: 200,
        ..TwoTierClos::default()
    };
    let small = clos(4).build().expect("good");
    assert_eq!(check_welcome(&settings(), &small), Ok(()));
    let large = clos(300).build().expect("good");
    let error = check_welcome(&settings(), &large).expect_err("60,000 hosts in one frame");
    assert!(
        matches!(error, SessionError::FrameTooLarge { bytes, max } if bytes > max),
        "{error}"
    );
    let named = super::HubSettings {
        classes: vec![ClassConfig {
            name: "x".repeat(2_000),
            ..Default::default()
        }],
        ..settings()
    };
    assert!(
        check_welcome(&named, &small).is_err(),
        "a name that hosts do not take"
    );
}

#[test]
fn a_frame_that_breaks_the_protocol_ends_its_session_only() {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h2"]);
    let (id, now_ns) = (world.host("h1").id.expect("connected"), world.now_ns);
    world.hub.on_control(now_ns, id, &[0xff; 40]);
    world.settle();
    let refused = world.host("h1").refused.clone().expect("it was told");
    assert_eq!(refused.code, RefusalCode::ProtocolError);
    assert_eq!(world.hub.counts().control_errors.get("undecodable"), 1);
    assert!(world.host("h2").established);
}

#[test]
fn a_control_stream_that_carries_no_frame_ends_its_session_only() {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h2"]);
    assert_eq!(world.hub.counts().sessions_opened, 2);
    let (id, now_ns) = (world.host("h1").id.expect("connected"), world.now_ns);
    world.hub.on_broken_control(now_ns, id, "a frame of 2 GiB");
    world.settle();
    let refused = world.host("h1").refused.clone().expect("it was told");
    assert_eq!(
        (refused.code, refused.reason.as_str(), refused.retry),
        (RefusalCode::ProtocolError, "a frame of 2 GiB", false)
    );
    assert_eq!(world.hub.counts().control_errors.get("framing"), 1);
    assert!(world.host("h2").established);
}

#[test]
fn a_welcome_names_the_classes() {
    let class = |id, name: &str| ClassConfig {
        id,
        name: name.to_owned(),
        ..ClassConfig::default()
    };
    let settings = super::HubSettings {
        classes: vec![class(0, "default"), class(5, "gold")],
        ..settings()
    };
    let mut world = HubWorld::with_hosts(settings, &["h1"]);
    let classes = &world.host("h1").classes;
    let named: Vec<_> = (classes.iter())
        .map(|class| (class.id, class.name.as_str()))
        .collect();
    assert_eq!(named, [(0, "default"), (5, "gold")]);
}

#[test]
fn a_session_is_offered_the_port_of_its_number_as_long_as_it_stands() {
    let names = ["h1", "h2", "h3", "h4", "h5"];
    let mut world = HubWorld::with_hosts(settings(), &["h16"]);
    assert_eq!(world.host("h16").sealed_udp, None, "there are no ports");
    let address = Some(std::net::Ipv4Addr::new(10, 0, 0, 9));
    let ports = [4_000, 4_001, 4_002];
    world
        .hub
        .offer_sealed(ports.to_vec(), Cipher::default(), address);
    world.connect_all(&names);
    for name in names {
        let host = world.host(name);
        let id = host.id.expect("connected") as usize;
        let offer = host.sealed_udp.expect("there is a port");
        assert_eq!((offer.port, offer.address), (ports[id % 3], address));
    }
    world.hub.sealed_port_lost(1);
    let others = ["h6", "h7", "h8"];
    world.connect_all(&others);
    for name in others {
        let host = world.host(name);
        let id = host.id.expect("connected") as usize;
        let port = host.sealed_udp.map(|offer| offer.port);
        assert_eq!(port, (id % 3 != 1).then(|| ports[id % 3]));
    }
}

#[test]
fn draining_tells_every_host_to_come_back() {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h2"]);
    let now_ns = world.now_ns;
    world.hub.refuse_all(
        now_ns,
        RefusalCode::Draining,
        "the allocator is shutting down",
    );
    world.settle();
    for name in ["h1", "h2"] {
        let refused = world.host(name).refused.clone().expect("it was told");
        assert_eq!((refused.code, refused.retry), (RefusalCode::Draining, true));
    }
}
