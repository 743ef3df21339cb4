//! Flowlets become rates; flows without a rate are unmanaged and counted; floods lose nothing.

use ratewright_proto::control::RefusalCode;
use ratewright_proto::{FlowId, FlowPath, RateCode, StartRecord, WeightCode};

use super::{HubWorld, settings};
use crate::engine::EngineConfig;
use crate::service::config::{ClassConfig, Limits, class_table};

#[test]
fn eight_senders_share_their_receivers_link_evenly() {
    let senders = ["h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8"];
    let mut world = HubWorld::with_hosts(settings(), &senders);
    for (count, name) in (1..).zip(senders) {
        world.start(name, 0, "h16");
        world.settle();
        world.assert_no_link_overfull();
        let fair = 10_000_000_000 / count;
        for sender in &senders[..count as usize] {
            let rate = world
                .rate(sender, FlowId::new(0, 1))
                .expect("every active flow has a rate");
            assert!(
                rate <= fair && rate > fair * 96 / 100,
                "{sender} of {count}: {rate}"
            );
        }
    }
    for (count, name) in (1..8).zip(senders) {
        world.end(name, FlowId::new(0, 1));
        world.settle();
        world.assert_no_link_overfull();
        let fair = 10_000_000_000 / (8 - count);
        let rate = world.rate("h8", FlowId::new(0, 1)).expect("rated");
        assert!(
            rate <= fair && rate > fair * 96 / 100,
            "{count} ended: {rate}"
        );
    }
}

#[test]
fn weights_and_demands_of_start_records_count() {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h2", "h3"]);
    let to = world.hub.topology().host_by_name("h16").expect("there").0;
    let flow = FlowId::new(0, 1);
    let record = StartRecord::new(flow, to, FlowPath::Hash(0));
    world.start_record("h1", record.with_weight(WeightCode::encode(1.0)));
    world.start_record("h2", record.with_weight(WeightCode::encode(4.0)));
    world.start_record("h3", record.with_demand(RateCode::encode(1_000_000_000)));
    world.settle();
    let (one, four, capped) = (
        world.rate("h1", flow).expect("rated"),
        world.rate("h2", flow).expect("rated"),
        world.rate("h3", flow).expect("rated"),
    );
    assert!(capped <= 1_000_000_000 && capped > 985_000_000, "{capped}");
    let ratio = four as f64 / one as f64;
    assert!((ratio - 4.0).abs() < 0.1, "{four} / {one}");
}

#[test]
fn new_parameters_of_a_running_flow_take_effect() {
    let mut world = HubWorld::with_hosts(settings(), &["h1"]);
    let flow = world.start("h1", 0, "h16");
    world.settle();
    assert!(world.rate("h1", flow).expect("rated") > 9_000_000_000);
    let to = world.hub.topology().host_by_name("h16").expect("there").0;
    let record = StartRecord::new(flow, to, FlowPath::Hash(0));
    world.start_record("h1", record.with_demand(RateCode::encode(2_000_000_000)));
    world.settle();
    assert!(world.rate("h1", flow).expect("rated") <= 2_000_000_000);
    assert_eq!(world.hub.flow_count(), 1);
}

#[test]
fn a_slots_next_flowlet_replaces_the_one_before() {
    let mut world = HubWorld::with_hosts(settings(), &["h1"]);
    let to = world.hub.topology().host_by_name("h16").expect("there").0;
    for generation in 1..50 {
        let flow = FlowId::new(3, generation);
        world.start_record("h1", StartRecord::new(flow, to, FlowPath::Hash(0)));
        world.pass(2_000_000);
        assert!(world.hub.flow_count() <= 1);
    }
    world.settle();
    assert!(world.rate("h1", FlowId::new(3, 49)).is_some());
    assert_eq!(world.hub.flow_count(), 1);
}

#[test]
fn flows_that_cannot_be_rated_are_left_alone_and_counted() {
    let limits = Limits {
        max_flows: 1,
        ..Limits::default()
    };
    let mut world = HubWorld::with_hosts(
        super::HubSettings {
            limits,
            ..settings()
        },
        &["h1", "h2"],
    );
    let rated = world.start("h2", 0, "h16");
    world.settle();
    let here = world.hub.topology().host_by_name("h1").expect("there").0;
    let there = world.hub.topology().host_by_name("h16").expect("there").0;
    let record = |slot, to, path| StartRecord::new(FlowId::new(slot, 1), to, path);
    world.start_record("h1", record(0, 4_000, FlowPath::Hash(0)));
    world.start_record("h1", record(1, here, FlowPath::Hash(0)));
    world.start_record("h1", record(2, there, FlowPath::Explicit(77)));
    world.start_record("h1", record(3, there, FlowPath::Hash(0)).with_class(9));
    world.start_record("h1", record(4, there, FlowPath::Hash(0)));
    world.settle();
    for slot in 0..5 {
        assert_eq!(world.rate("h1", FlowId::new(slot, 1)), None, "slot {slot}");
    }
    for reason in [
        "unknown_host",
        "same_host",
        "unroutable",
        "unknown_class",
        "table_full",
    ] {
        assert_eq!(
            world.hub.counts().flows_unmanaged.get(reason),
            1,
            "{reason}"
        );
    }
    assert!(
        world.rate("h2", rated).expect("rated") > 9_000_000_000,
        "nobody else is touched"
    );
    assert_eq!(world.hub.flow_count(), 1);
}

#[test]
fn flows_that_found_the_table_full_get_rates_in_turn_as_there_is_room() {
    let mut full = settings();
    full.limits.max_flows = 2;
    let hosts = ["h1", "h2", "h3"];
    let mut world = HubWorld::with_hosts(full, &hosts);
    let mut rated: Vec<_> = (0..2)
        .map(|slot| ("h1", world.start("h1", slot, "h16")))
        .collect();
    world.settle();
    let waiting: Vec<_> = (0..4)
        .map(|at| {
            (
                hosts[1 + at % 2],
                world.start(hosts[1 + at % 2], at as u32 / 2, "h16"),
            )
        })
        .collect();
    let look = |world: &mut HubWorld| {
        for _ in 0..12 {
            world.pass(10_000_000);
            world.sweep();
        }
        world.settle();
        assert_eq!(world.hub.flow_count(), 2);
        let has = |&&(host, flow): &&(&str, FlowId)| world.rate(host, flow).is_some();
        waiting.iter().filter(has).copied().collect::<Vec<_>>()
    };
    assert_eq!(look(&mut world), []);
    let mut served = Vec::new();
    while served.len() < waiting.len() {
        let (host, flow) = rated.pop().expect("two of them have rates");
        world.end(host, flow);
        let newly: Vec<_> = look(&mut world)
            .into_iter()
            .filter(|flow| !served.contains(flow))
            .collect();
        assert_eq!(newly.len(), 1, "one flow in the place of one");
        served.extend(&newly);
        rated.splice(0..0, newly);
    }
    let order: Vec<&str> = served.iter().map(|&(host, _)| host).collect();
    assert_eq!(
        order,
        ["h2", "h3", "h2", "h3"],
        "no host waits for all of another's"
    );
    assert_eq!(world.hub.next_own_timeout_ns(), None, "nobody waits");
}

#[test]
fn hosts_connect_anew_when_classes_get_other_names_or_ids() {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h2"]);
    let to = world.hub.topology().host_by_name("h16").expect("there").0;
    let flow = FlowId::new(0, 1);
    let record = StartRecord::new(flow, to, FlowPath::Hash(0)).with_class(2);
    world.start_record("h1", record);
    world.settle();
    assert_eq!(world.hub.flow_count(), 0, "nobody knows class 2");
    let bulk = ClassConfig {
        id: 2,
        name: "bulk".to_owned(),
        ..ClassConfig::default()
    };
    let classes = vec![ClassConfig::default(), bulk];
    let config = EngineConfig {
        classes: class_table(&classes).expect("good"),
        ..EngineConfig::default()
    };
    world.engine = super::engine(config, &world.hub);
    let now_ns = world.now_ns;
    world.hub.reconfigure(
        now_ns,
        super::HubSettings {
            classes,
            ..settings()
        },
    );
    world.settle();
    for name in ["h1", "h2"] {
        let refused = world.host(name).refused.clone().expect("it was told");
        assert_eq!((refused.code, refused.retry), (RefusalCode::Draining, true));
    }
    world.connect("h1", "h1", 1, &["h1"]);
    world.start_record("h1", record);
    world.settle();
    assert!(world.rate("h1", flow).is_some());
}

#[test]
fn sessions_stay_when_classes_keep_their_names_and_ids() {
    let mut world = HubWorld::with_hosts(settings(), &["h1"]);
    let heavy = ClassConfig {
        weight: 3.0,
        max_rate_bps: Some(1_000_000_000),
        ..ClassConfig::default()
    };
    let now_ns = world.now_ns;
    world.hub.reconfigure(
        now_ns,
        super::HubSettings {
            classes: vec![heavy],
            ..settings()
        },
    );
    world.settle();
    assert!(world.host("h1").established);
}

#[test]
fn garbage_moves_a_counter_and_nothing_else() {
    let mut world = HubWorld::with_hosts(settings(), &["h1"]);
    let flow = world.start("h1", 0, "h16");
    world.settle();
    let rate = world.rate("h1", flow);
    let (id, now_ns) = (world.host("h1").id.expect("connected"), world.now_ns);
    let before = world.hub.counts().clone();
    for length in 0..300usize {
        let garbage: Vec<u8> = (0..length).map(|at| (at * 31 + length * 7) as u8).collect();
        world.hub.on_datagram(now_ns, id, &garbage);
    }
    let after = world.hub.counts().clone();
    assert_eq!(
        after.datagrams_dropped.total() - before.datagrams_dropped.total(),
        300
    );
    assert_eq!((after.starts, after.ends), (before.starts, before.ends));
    world.settle();
    assert_eq!(world.rate("h1", flow), rate);
    assert!(world.host("h1").established);
}

#[test]
fn a_flood_of_starts_is_slowed_down_and_loses_nothing() {
    let limits = Limits {
        max_starts_per_s: 1_000,
        ..Limits::default()
    };
    let mut world = HubWorld::with_hosts(
        super::HubSettings {
            limits,
            ..settings()
        },
        &["h1", "h2"],
    );
    for slot in 0..2_000 {
        world.start("h1", slot, "h16");
    }
    world.pass(100_000_000);
    assert!(
        world.hub.flow_count() < 1_500,
        "not more than the bound allows"
    );
    assert!(world.hub.counts().datagrams_dropped.get("start_rate") > 0);
    let other = world.start("h2", 0, "h9");
    world.settle();
    assert!(
        world.rate("h2", other).is_some(),
        "another host is served meanwhile"
    );
    world.pass(3_000_000_000);
    assert_eq!(world.hub.flow_count(), 2_001, "all are there in the end");
}
