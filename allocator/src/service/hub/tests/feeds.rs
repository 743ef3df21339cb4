//! Telemetry of sessions: what a host tells of itself takes its part of links, and fades.

use ratewright_proto::codes::RateCode;
use ratewright_proto::telemetry::{CreditState, ReceiverCount, Telemetry};
use ratewright_proto::{FlowId, FlowPath, StartRecord};

use super::{HubWorld, settings};
use crate::feeds::{Feed, FeedsConfig};
use crate::service::hub::HubSettings;
use crate::service::hub::feeds::telemetry_interval_ns;
use crate::service::status::ExplainedFlow;

impl HubWorld {
    /// Host `host` tells of this number of unknown senders towards `receiver`.
    fn tell_senders(&mut self, host: &str, receiver: &str, active_senders: u32) {
        let receiver = self.hub.topology().host_by_name(receiver).expect("known").0;
        let telemetry = Telemetry {
            receivers: vec![ReceiverCount {
                receiver,
                active_senders,
                excludes_managed: true,
                ..ReceiverCount::default()
            }],
            ..Telemetry::default()
        };
        let session = &mut self.host(host).session;
        session.send_telemetry(telemetry).expect("a session");
    }

    /// Repeats a count at the default interval for 100 ms.
    fn repeat_senders(&mut self, host: &str, receiver: &str, active_senders: u32) {
        for _ in 0..10 {
            self.tell_senders(host, receiver, active_senders);
            self.pass(10_000_000);
        }
    }

    /// Host `from` tells for 100 ms of the credit that its flow gets: 1 Gbit/s of it.
    fn repeat_credit(&mut self, from: &str, flow: FlowId, to: &str) {
        let number = |name: &str| self.hub.topology().host_by_name(name).expect("known").0;
        let (sender, receiver) = (number(from), number(to));
        for interval in 0..10 {
            let telemetry = Telemetry {
                credits: vec![CreditState {
                    sender,
                    receiver,
                    flow: Some(flow.0),
                    granted_bytes: interval * 1_250_000,
                    consumed_bytes: interval * 1_250_000,
                    sender_bucket_bytes: 100_000,
                    ..CreditState::default()
                }],
                ..Telemetry::default()
            };
            let session = &mut self.host(from).session;
            session.send_telemetry(telemetry).expect("a session");
            self.pass(10_000_000);
        }
    }

    /// Returns the flow between two hosts as `/explain` shows it.
    fn explain(&self, from: &str, to: &str) -> ExplainedFlow {
        let (mut total, mut flows) = (0, Vec::new());
        let place =
            self.hub
                .report()
                .explain_flows((from, to), 0, 100, &[], 10, &mut total, &mut flows);
        assert_eq!((place, total), (None, 1));
        flows.remove(0)
    }

    fn gbps(&self, host: &str, flow: FlowId) -> f64 {
        self.rate(host, flow).expect("rated") as f64 / 1e9
    }
}

#[test]
fn unknown_senders_hold_their_share_of_a_receivers_downlink_while_they_are_told() {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h16"]);
    let flow = world.start("h1", 0, "h16");
    world.settle();
    assert!(world.gbps("h1", flow) > 9.8);
    // One sender of two: half of the link.
    world.repeat_senders("h16", "h16", 1);
    let beside_one = world.gbps("h1", flow);
    assert!((4.8..5.1).contains(&beside_one), "{beside_one}");
    // Of any number, the configured half at most.
    world.repeat_senders("h16", "h16", 1_000);
    let beside_many = world.gbps("h1", flow);
    assert!((4.8..5.1).contains(&beside_many), "{beside_many}");
    let report = world.hub.network().feeds_report(world.now_ns);
    assert_eq!(report.effects.len(), 1);
    assert_eq!(report.effects[0].name, "leaf4->h16");
    assert_eq!(report.status.feeds["receivers"].taken, 20);
    // Silence: the share comes back within the maximum age and two intervals.
    world.pass(120_000_000);
    world.settle();
    assert!(world.gbps("h1", flow) > 9.8);
    assert!(
        world
            .hub
            .network()
            .feeds_report(world.now_ns)
            .effects
            .is_empty()
    );
    assert_eq!(world.hub.next_own_timeout_ns(), None);
}

#[test]
fn what_a_host_tells_of_another_ones_links_is_refused_and_counted() {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h2", "h16"]);
    let flow = world.start("h1", 0, "h16");
    world.settle();
    world.repeat_senders("h2", "h16", 50);
    assert!(world.gbps("h1", flow) > 9.8);
    let feeds = world.hub.network().feeds_status().feeds;
    assert_eq!(feeds["receivers"].refused["not_of_reporter"], 10);
    assert_eq!(feeds["receivers"].taken, 0);
}

#[test]
fn with_all_readings_off_nobody_is_asked_and_nothing_changes() {
    let off = FeedsConfig {
        receivers: false,
        credit: false,
        int: false,
        ..FeedsConfig::default()
    };
    let settings = HubSettings {
        feeds: off,
        ..settings()
    };
    let mut world = HubWorld::with_hosts(settings, &["h1", "h16"]);
    assert_eq!(telemetry_interval_ns(&world.hub.settings), 0);
    let flow = world.start("h1", 0, "h16");
    world.settle();
    world.repeat_senders("h16", "h16", 3);
    assert!(world.gbps("h1", flow) > 9.8);
    let feeds = world.hub.network().feeds_status().feeds;
    assert_eq!(feeds["receivers"].refused["off"], 10);
}

#[test]
fn a_reload_that_switches_readings_off_ends_their_effects() {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h16"]);
    let flow = world.start("h1", 0, "h16");
    world.settle();
    world.repeat_senders("h16", "h16", 1);
    assert!(world.gbps("h1", flow) < 5.1);
    let mut off = settings();
    off.feeds.receivers = false;
    world.hub.reconfigure(world.now_ns, off);
    world.settle();
    assert!(world.gbps("h1", flow) > 9.8);
}

#[test]
fn a_reload_has_hosts_connect_again_if_they_are_to_measure_otherwise() {
    let off = |settings: HubSettings| HubSettings {
        feeds: FeedsConfig {
            receivers: false,
            credit: false,
            int: false,
            ..settings.feeds
        },
        ..settings
    };
    let other = |mut settings: HubSettings| {
        settings.feeds.interval_ns *= 2;
        settings
    };
    let fewer = |mut settings: HubSettings| {
        settings.feeds.credit = false;
        settings
    };
    let repeated = |mut settings: HubSettings| {
        settings.feeds.state_hysteresis = 0.0;
        settings
    };
    for (before, after, again) in [
        (off(settings()), settings(), true),
        (fewer(settings()), settings(), true),
        (repeated(fewer(settings())), repeated(settings()), false),
        (settings(), other(settings()), true),
        (settings(), fewer(settings()), false),
        (settings(), off(settings()), false),
    ] {
        let mut world = HubWorld::with_hosts(before, &["h1"]);
        world.hub.reconfigure(world.now_ns, after);
        world.settle();
        let refused = world.host("h1").refused.as_ref();
        assert_eq!(refused.is_some_and(|refusal| refusal.retry), again);
        assert_eq!(refused.is_some(), again);
    }
}

#[test]
fn an_explained_flow_has_the_demand_that_its_receivers_credit_leaves_it() {
    let mut world = HubWorld::with_hosts(settings(), &["h1"]);
    let flow = world.start("h1", 0, "h16");
    world.settle();
    let explained = world.explain("h1", "h16");
    assert_eq!(explained.row.demand_bps, None);
    assert!(explained.limit.starts_with("link "), "{}", explained.limit);
    world.repeat_credit("h1", flow, "h16");
    let gbps = world.gbps("h1", flow);
    assert!((1.2..=1.25).contains(&gbps), "{gbps}");
    let explained = world.explain("h1", "h16");
    // A quarter above what is granted.
    let demand_bps = explained.row.demand_bps.expect("a bound");
    assert!(
        demand_bps.abs_diff(1_250_000_000) < 20_000_000,
        "{demand_bps}"
    );
    assert_eq!(
        (explained.demand, explained.limit.as_str()),
        (
            "limited: by its receiver's credit (feeds.credit)",
            "its receiver's credit (feeds.credit)"
        )
    );
    // Its own demand decides once it is less.
    let to = world.hub.topology().host_by_name("h16").expect("known").0;
    let demand = RateCode::encode(500_000_000);
    let record = StartRecord::new(flow, to, FlowPath::Hash(0)).with_demand(demand);
    world.start_record("h1", record);
    world.repeat_credit("h1", flow, "h16");
    let explained = world.explain("h1", "h16");
    assert_eq!(explained.row.demand_bps, Some(demand.decode()));
    assert_eq!(explained.limit, "its demand");
    assert!(explained.demand.starts_with("limited: by measured use"));
}

#[test]
fn an_explained_flow_has_the_effect_of_feeds_on_its_links() {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h16"]);
    world.start("h1", 0, "h16");
    world.settle();
    world.repeat_senders("h16", "h16", 3);
    let links = world.explain("h1", "h16").links;
    let (last, others) = links.split_last().expect("a path");
    assert_eq!(last.name, "leaf4->h16");
    let effect = last.feeds.expect("three senders");
    assert_eq!(
        (effect.weighed_by, effect.flows, effect.demand_bps),
        (Some(Feed::Receivers), 3.0, 5e9)
    );
    assert!(others.iter().all(|link| link.feeds.is_none()));
}
