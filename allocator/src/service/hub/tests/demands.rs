//! Demand changes: cheap, within budgets, and never lost. Starts of all hosts have a budget too.

use ratewright_proto::codes::RateCode;
use ratewright_proto::{FlowId, FlowPath, StartRecord};

use super::{HubWorld, settings};
use crate::engine::EngineEvent;
use crate::service::config::{ClassConfig, Limits};
use crate::service::hub::HubSettings;

const GBIT: u64 = 1_000_000_000;

impl HubWorld {
    /// Changes the demand of an active flow; `None` removes its limit.
    pub(super) fn demand(&mut self, host: &str, flow: FlowId, destination: &str, bps: Option<u64>) {
        let to = self.hub.topology().host_by_name(destination);
        let to = to.expect("it is in the topology").0;
        let demand = bps.map_or(RateCode::NONE, RateCode::encode);
        let record = StartRecord::new(flow, to, FlowPath::Hash(flow.slot())).with_demand(demand);
        self.start_record(host, record);
    }
}

fn with_limits(limits: Limits) -> HubSettings {
    HubSettings {
        limits,
        ..settings()
    }
}

#[test]
fn a_changed_demand_moves_rates_and_looks_for_no_path() {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h2"]);
    let (low, high) = (world.start("h1", 0, "h16"), world.start("h2", 0, "h16"));
    world.settle();
    let paths = world.hub.counts().paths;
    let starts = world.hub.counts().starts;
    world.demand("h1", low, "h16", Some(GBIT));
    world.settle();
    assert!(world.rate("h1", low).expect("rated") <= GBIT);
    assert!(world.rate("h2", high).expect("rated") > 8 * GBIT);
    world.demand("h1", low, "h16", None);
    world.settle();
    for (host, flow) in [("h1", low), ("h2", high)] {
        let rate = world.rate(host, flow).expect("rated");
        assert!(rate > 4 * GBIT && rate < 6 * GBIT, "{host}: {rate}");
    }
    let counts = world.hub.counts();
    assert_eq!(counts.paths, paths, "its path stays, so none is looked for");
    assert_eq!((counts.starts, counts.demand_changes), (starts, 2));
}

#[test]
fn another_path_or_destination_is_looked_for() {
    let mut world = HubWorld::with_hosts(settings(), &["h1"]);
    let flow = world.start("h1", 0, "h16");
    world.settle();
    let paths = world.hub.counts().paths;
    world.demand("h1", flow, "h15", Some(GBIT));
    world.settle();
    assert_eq!(world.hub.counts().paths, paths + 1);
    assert!(world.rate("h1", flow).is_some());
}

#[test]
fn demands_beyond_the_budget_wait_and_the_newest_counts() {
    let limits = Limits {
        max_demand_changes_per_s: 100,
        ..Limits::default()
    };
    let mut world = HubWorld::with_hosts(with_limits(limits), &["h1"]);
    let flows: Vec<FlowId> = (0..4).map(|slot| world.start("h1", slot, "h16")).collect();
    world.settle();
    let told_to_engine = |world: &mut HubWorld| {
        let events = world.hub.engine_events().iter();
        events
            .filter(|event| matches!(event, EngineEvent::Start(_)))
            .count()
    };
    let mut told = 0;
    let began_ns = world.now_ns;
    // 4,000 changes within a second, ten times what is allowed, the last ones 1 Gbit/s.
    for round in 0..1_000u64 {
        for &flow in &flows {
            world.demand("h1", flow, "h16", Some(GBIT + (1_000 - round) * 1_000_000));
        }
        world.now_ns += 1_000_000;
        world.carry_datagrams();
        told += told_to_engine(&mut world);
        world.exchange();
        let id = world.host("h1").id.expect("connected");
        let session = world.hub.sessions.get(id).expect("connected");
        assert!(session.flows.deferred() <= flows.len(), "each waits once");
    }
    let seconds = (world.now_ns - began_ns) / 1_000_000_000;
    assert!(told as u64 <= 100 * (seconds + 1), "{told}");
    assert!(world.hub.counts().demand_changes_deferred > 0);
    for &flow in &flows {
        world.demand("h1", flow, "h16", Some(GBIT));
    }
    world.pass(1_000_000_000);
    for &flow in &flows {
        let rate = world.rate("h1", flow).expect("rated");
        assert!(
            rate <= GBIT && rate > GBIT * 97 / 100,
            "the newest demand is in force: {rate}"
        );
    }
}

#[test]
fn a_class_may_ignore_demands() {
    let deaf = HubSettings {
        classes: vec![ClassConfig {
            measured_demand: false,
            ..ClassConfig::default()
        }],
        ..settings()
    };
    let mut world = HubWorld::with_hosts(deaf, &["h1"]);
    let flow = world.start("h1", 0, "h16");
    world.settle();
    world.demand("h1", flow, "h16", Some(GBIT));
    world.carry_datagrams();
    assert!(
        world.hub.engine_events().is_empty(),
        "the engine hears nothing of it"
    );
    world.settle();
    assert!(world.rate("h1", flow).expect("rated") > 9 * GBIT);
    let other = FlowId::new(1, 1);
    world.demand("h1", other, "h16", Some(GBIT));
    world.settle();
    assert!(world.rate("h1", other).expect("rated") > 4 * GBIT);
}

#[test]
fn a_demand_that_waits_goes_with_its_flow() {
    let limits = Limits {
        max_demand_changes_per_s: 1,
        ..Limits::default()
    };
    let mut world = HubWorld::with_hosts(with_limits(limits), &["h1"]);
    let flow = world.start("h1", 0, "h16");
    world.settle();
    for gbits in 1..4 {
        world.demand("h1", flow, "h16", Some(gbits * GBIT));
        world.exchange();
    }
    world.end("h1", flow);
    let next = FlowId::new(0, 2);
    world.demand("h1", next, "h16", None);
    world.pass(3_000_000_000);
    assert!(
        world.rate("h1", next).expect("rated") > 9 * GBIT,
        "the slot's next flow has its own demand"
    );
}

#[test]
fn starts_beyond_what_all_hosts_may_are_unpaced_until_there_is_room() {
    let limits = Limits {
        max_total_starts_per_s: 1_000,
        ..Limits::default()
    };
    let mut world = HubWorld::with_hosts(with_limits(limits), &["h1", "h2"]);
    for slot in 0..1_000 {
        world.start("h1", slot, "h16");
        world.start("h2", slot, "h15");
    }
    world.pass(50_000_000);
    let left = world.hub.counts().flows_unmanaged.get("start_rate");
    let allocated = u64::from(world.hub.flow_count());
    assert!(allocated <= 1_100, "{allocated}");
    assert!(left >= 900, "{left}");
    assert_eq!(
        world
            .hub
            .report()
            .status(&crate::engine::EngineStats::default())
            .flows_left_alone,
        2_000 - allocated,
        "all are known, and those left alone are counted"
    );
    world.pass(3_000_000_000);
    assert_eq!(world.hub.flow_count(), 2_000, "all are paced in the end");
    for slot in 0..1_000 {
        assert!(world.rate("h2", FlowId::new(slot, 1)).is_some(), "{slot}");
    }
}
