//! Trust, and the budgets of one session.

use ratewright_proto::control::RefusalCode;
use ratewright_proto::wire;

use super::{HubWorld, Trust, certificate_of, settings};
use crate::service::config::{CONTROL_FRAME_COST_BYTES, Limits};
use crate::service::hub::HubSettings;

fn allowing(hosts: &[&str]) -> HubSettings {
    HubSettings {
        trust: Trust {
            allow: Some(hosts.iter().map(|host| (*host).to_owned()).collect()),
            ..Trust::default()
        },
        ..settings()
    }
}

#[test]
fn a_host_that_is_not_on_the_list_is_refused() {
    let mut world = HubWorld::with_hosts(allowing(&["h1"]), &["h1"]);
    world.connect("h2", "h2", 1, &["h2"]);
    world.settle();
    let refusal = world.host("h2").refused.clone().expect("refused");
    assert_eq!(refusal.code, RefusalCode::NotAllowed);
    assert_eq!(refusal.reason, "trust.allow does not name the host \"h2\"");
    assert!(!refusal.retry);
    assert_eq!(world.hub.counts().sessions_refused.get("not_allowed"), 1);
}

#[test]
fn a_host_that_leaves_the_list_loses_its_session_and_its_flows_and_others_get_its_share() {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h2"]);
    let flow = world.start("h1", 0, "h16");
    world.start("h2", 0, "h16");
    world.settle();
    let half = world.host("h1").rates[&flow];
    assert!(half <= 5_000_000_000, "{half}");

    let now_ns = world.now_ns;
    world.hub.reconfigure(now_ns, allowing(&["h1"]));
    world.settle();
    assert_eq!(
        world.host("h2").refused.clone().expect("ended").code,
        RefusalCode::NotAllowed
    );
    assert!(world.host("h1").refused.is_none());
    let whole = world.host("h1").rates[&flow];
    assert!(whole >= 9_700_000_000, "{whole}");
}

#[test]
fn a_withdrawn_certificate_ends_the_session_and_another_of_the_same_host_is_let_in() {
    let mut world = HubWorld::with_hosts(settings(), &["h1"]);
    let mut denying = settings();
    denying
        .trust
        .deny_certificates
        .insert(certificate_of(&["h1"]).fingerprint);
    let now_ns = world.now_ns;
    world.hub.reconfigure(now_ns, denying);
    world.settle();
    let refusal = world.host("h1").refused.clone().expect("ended");
    assert_eq!(refusal.code, RefusalCode::NotAllowed);
    world.connect("again", "h1", 2, &["h1"]);
    world.connect("renewed", "h1", 2, &["h1", "h1.example"]);
    world.settle();
    assert!(world.host("again").refused.is_some());
    assert!(world.host("renewed").established);
}

#[test]
fn a_session_that_floods_with_datagrams_of_any_content_is_slowed_down() {
    let limits = Limits {
        max_datagrams_per_s: 100,
        ..Limits::default()
    };
    let mut world = HubWorld::with_hosts(
        HubSettings {
            limits,
            ..settings()
        },
        &["h1", "h2"],
    );
    let id = world.host("h1").id.expect("connected");
    let mut now_ns = world.now_ns + 2_000_000_000;
    let before = world.hub.counts().datagrams_dropped.get("datagram_rate");
    let took = |world: &HubWorld| world.hub.counts().datagrams_dropped.get("length");
    let before_took = took(&world);
    // Ten thousand a second for a second: what was saved up, and what a second brings.
    for _ in 0..10_000 {
        now_ns += 100_000;
        world.hub.on_datagram(now_ns, id, &[]);
    }
    let taken = took(&world) - before_took;
    assert!((190..=201).contains(&taken), "{taken}");
    let dropped = world.hub.counts().datagrams_dropped.get("datagram_rate") - before;
    assert_eq!(dropped + taken, 10_000);
}

#[test]
fn a_session_that_floods_its_control_stream_has_to_wait() {
    let frame_bytes = CONTROL_FRAME_COST_BYTES;
    let limits = Limits {
        max_control_bytes_per_s: 10 * frame_bytes,
        ..Limits::default()
    };
    let mut world = HubWorld::with_hosts(
        HubSettings {
            limits,
            ..settings()
        },
        &["h1", "h2"],
    );
    let id = world.host("h1").id.expect("connected");
    let mut now_ns = world.now_ns + 2_000_000_000;
    let telemetry = wire::ControlMessage {
        body: Some(wire::control_message::Body::Telemetry(
            wire::Telemetry::default(),
        )),
    };
    // Its length takes one byte.
    let frame = ratewright_proto::control::encode_frame(&telemetry).expect("a frame");
    let start_ns = now_ns;
    let (mut frames, mut waits) = (0_u32, 0);
    while now_ns - start_ns < 10_000_000_000 {
        match world.hub.control_wait_ns(now_ns, id) {
            Some(wait_ns) => {
                now_ns += wait_ns;
                waits += 1;
            }
            None => {
                world.hub.on_control(now_ns, id, &frame[1..]);
                frames += 1;
            }
        }
    }
    // A second's worth that was saved up, and ten seconds' worth.
    assert!((95..=111).contains(&frames), "{frames}");
    assert_eq!(world.hub.counts().telemetry, u64::from(frames));
    assert_eq!(world.hub.counts().control_waits, waits);
    let other = world.host("h2").id.expect("connected");
    assert_eq!(world.hub.control_wait_ns(now_ns, other), None);
}
