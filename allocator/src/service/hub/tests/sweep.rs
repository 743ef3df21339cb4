//! Sweeps after a change of the network: a few flows at a time, none forgotten, events in order.

use ratewright_proto::FlowId;

use super::network::switch;
use super::{HubWorld, settings};
use crate::engine::driver::{EVENTS_AT_ONCE, EngineDriver, cost_of};
use crate::engine::parallel::{ParallelEngine, ParallelOptions};
use crate::engine::{EngineEvent, FlowNumber, RateEngine};
use crate::service::hub::session_flows::Placement;

/// Flows of a host, each with a hash of its own.
const FLOWS: u32 = 1_000;

/// Slots that a slice may visit.
const SLICE: usize = 64;

/// A world in which h1 and h5, of two racks, have many flows to a third one.
fn busy_world() -> HubWorld {
    let mut world = HubWorld::with_hosts(settings(), &["h1", "h5"]);
    for slot in 0..FLOWS {
        world.start("h1", slot, "h16");
        world.start("h5", slot, "h15");
    }
    world.settle();
    assert_eq!(world.hub.flow_count(), 2 * FLOWS);
    world
}

impl HubWorld {
    /// Asserts that every flow has the path that the present topology gives it.
    fn assert_paths_are_those_of_now(&self) {
        for session in self.hub.sessions.values() {
            let source = session.peer.as_ref().expect("accepted").host;
            for slot in 0..session.proto.slots() {
                let Some((record, flow)) = session.flow(slot) else {
                    continue;
                };
                let path = crate::service::hub::flows::links(self.hub.topology(), source, &record);
                match flow.placement {
                    Placement::Allocated(_) => {
                        assert_eq!(Ok(session.flows.path(slot)), path.as_deref(), "{slot}");
                    }
                    Placement::Unmanaged(reason) => assert_eq!(Err(reason), path, "{slot}"),
                }
            }
        }
    }
}

#[test]
fn no_slice_looks_at_more_flows_than_it_may() {
    let mut world = busy_world();
    let now_ns = world.now_ns;
    let before = world.hub.counts().paths;
    let changed = world.hub.change_topology(now_ns, &switch("spine1", false));
    assert_eq!(changed, Ok(8));
    assert_eq!(world.hub.counts().paths, before, "no flow is looked at yet");
    let mut slices = 0;
    loop {
        let (paths, events) = (world.hub.counts().paths, world.hub.engine_events().len());
        let more = world.hub.sweep(now_ns, SLICE);
        slices += 1;
        assert!(world.hub.counts().paths - paths <= SLICE as u64);
        let told = world.hub.engine_events().len() - events;
        // The last slice also reports the dead links.
        assert!(told <= SLICE + if more { 0 } else { 8 }, "{told}");
        if !more {
            break;
        }
    }
    let flows = u64::from(2 * FLOWS);
    assert_eq!(world.hub.counts().paths - before, flows, "each flow once");
    assert!(slices >= flows as usize / SLICE, "{slices}");
    world.assert_paths_are_those_of_now();
}

#[test]
fn flows_leave_a_dead_link_before_the_engine_hears_of_it() {
    let mut world = busy_world();
    let now_ns = world.now_ns;
    world
        .hub
        .change_topology(now_ns, &switch("spine1", false))
        .expect("it is there");
    while world.hub.sweep(now_ns, SLICE) {}
    let events: Vec<&EngineEvent> = world.hub.engine_events().iter().collect();
    let is_reroute = |event: &&EngineEvent| matches!(event, EngineEvent::Reroute { .. });
    let is_death = |event: &&EngineEvent| matches!(event, EngineEvent::Capacity { capacity_bps, .. } if *capacity_bps == 0.0);
    let last_reroute = events.iter().rposition(is_reroute).expect("some");
    let first_death = events.iter().position(is_death).expect("some");
    assert!(last_reroute < first_death);
    assert_eq!(events.iter().copied().filter(|e| is_death(e)).count(), 8);
    let rerouted = events.iter().copied().filter(|e| is_reroute(e)).count();
    // Half of the hashes, of two spines.
    assert!((700..=1_300).contains(&rerouted), "{rerouted}");
}

#[test]
fn a_dead_link_is_told_in_time_even_if_flows_are_many() {
    let mut world = busy_world();
    let now_ns = world.now_ns;
    world
        .hub
        .change_topology(now_ns, &switch("spine1", false))
        .expect("it is there");
    assert!(world.hub.sweep(now_ns, SLICE));
    let dead = |world: &mut HubWorld| {
        let events = world.hub.engine_events().iter();
        let zero = |event: &&EngineEvent| matches!(event, EngineEvent::Capacity { capacity_bps, .. } if *capacity_bps == 0.0);
        events.filter(zero).count()
    };
    assert_eq!(dead(&mut world), 0);
    assert!(
        world.hub.sweep(now_ns + 300_000_000, SLICE),
        "there is more"
    );
    assert_eq!(dead(&mut world), 8);
}

#[test]
fn changes_that_keep_coming_leave_no_flow_on_an_old_path() {
    let mut world = busy_world();
    // Far more often than a sweep takes.
    for round in 0..40 {
        let change = switch(["spine1", "spine2"][round % 2], round % 3 == 0);
        let now_ns = world.now_ns;
        world
            .hub
            .change_topology(now_ns, &change)
            .expect("it is there");
        let slices = 1 + round % 5;
        for _ in 0..slices {
            world.hub.sweep(now_ns, SLICE);
        }
        // Flows come and go meanwhile.
        let slot = FLOWS + round as u32;
        world.start("h1", slot, "h9");
        if round % 2 == 0 {
            world.end("h5", FlowId::new(round as u32, 1));
        }
        if round % 7 == 0 {
            world.exchange_without_sweep();
        }
    }
    for name in ["spine1", "spine2"] {
        world
            .change_topology(&switch(name, true))
            .expect("it is there");
    }
    world.settle();
    world.assert_paths_are_those_of_now();
    world.assert_no_link_overfull();
}

#[test]
fn starts_are_taken_and_rated_between_two_slices() {
    let mut world = busy_world();
    let now_ns = world.now_ns;
    world
        .hub
        .change_topology(now_ns, &switch("spine1", false))
        .expect("it is there");
    world.hub.sweep(now_ns, SLICE);
    let flow = world.start("h1", FLOWS, "h9");
    world.exchange_without_sweep();
    assert!(world.hub.is_rerouting(), "the walk is not over");
    assert!(world.rate("h1", flow).is_some(), "its rate did not wait");
}

#[test]
fn a_new_engine_is_told_of_all_flows_and_of_none_that_it_does_not_know() {
    let mut world = busy_world();
    world.replace_topology(super::clos());
    assert!(world.hub.is_restarting());
    let now_ns = world.now_ns;
    world.hub.sweep(now_ns, SLICE);
    // One that the new engine knows by then and one that it does not know end, one is known to
    // both, and one starts.
    let newcomer = world.start("h1", FLOWS, "h9");
    for slot in [0, FLOWS - 1] {
        world.end("h1", FlowId::new(slot, 1));
        world.end("h5", FlowId::new(slot, 1));
    }
    world.carry_datagrams();
    while world.hub.sweep(now_ns, SLICE) {}
    assert!(!world.hub.is_restarting());
    for event in std::mem::take(world.hub.engine_events()) {
        let result = world.engine.apply(event);
        assert!(
            result.is_ok(),
            "nothing is told that the engine refuses: {result:?}"
        );
    }
    assert_eq!(world.engine.flow_count() as u32, world.hub.flow_count());
    assert_eq!(world.hub.flow_count(), 2 * FLOWS + 1 - 4);
    world.settle();
    assert!(world.rate("h1", newcomer).is_some());
    world.assert_paths_are_those_of_now();
    world.assert_no_link_overfull();
}

#[test]
fn work_waits_for_an_engine_that_does_not_take_its_events() {
    let mut world = busy_world();
    world.replace_topology(super::clos());
    let now_ns = world.now_ns;
    let number = FlowNumber::first(u32::MAX);
    let stuck = std::iter::repeat_n(EngineEvent::End(number), 1 << 13);
    world.hub.engine_events().extend(stuck);
    let before = world.hub.counts().paths;
    assert!(!world.hub.can_sweep());
    assert!(world.hub.sweep(now_ns, SLICE), "there is more");
    assert_eq!(world.hub.counts().paths, before);
}

/// A fabric of 32 racks of 32 hosts with a million flows, and its engine.
fn million() -> HubWorld {
    let limits = crate::service::config::Limits {
        max_total_starts_per_s: 1_000_000_000,
        ..crate::service::config::Limits::default()
    };
    let topology = ratewright_topology::TwoTierClos {
        racks: 32,
        hosts_per_rack: 32,
        spines: 8,
        ..ratewright_topology::TwoTierClos::default()
    };
    let topology = topology.build().expect("good");
    let hub = crate::service::hub::Hub::new(
        crate::service::hub::HubSettings {
            limits,
            ..settings()
        },
        topology,
        false,
    );
    let config = crate::engine::EngineConfig {
        max_flows: 1_000_000,
        ..crate::engine::EngineConfig::default()
    };
    let options = ParallelOptions {
        // The default blocks follow from the hosts, too few here for the rows of all flows.
        blocks: Some(8),
        ..ParallelOptions::default()
    };
    let capacities_bps = hub.network().capacities_bps();
    let engine = ParallelEngine::for_topology(config, options, hub.topology(), &capacities_bps)
        .expect("the settings are good");
    let mut world = HubWorld {
        hub,
        engine,
        hosts: std::collections::BTreeMap::new(),
        now_ns: 1_000_000_000_000,
    };
    let names: Vec<String> = (1..=1_024).map(|host| format!("h{host}")).collect();
    for name in &names {
        world.connect(name, name, 1, &[name]);
    }
    world.pass(3_000_000);
    let mut random = 1u64;
    for (host, name) in names.iter().enumerate() {
        let id = world.host(name).id.expect("connected");
        for slot in 0..976u32 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let to = ((random >> 40) as u32 % 1_023 + host as u32 + 1) % 1_024;
            let path = ratewright_proto::FlowPath::Hash((random >> 20) as u32);
            let record = ratewright_proto::StartRecord::new(FlowId::new(slot, 1), to, path);
            let now_ns = world.now_ns;
            let position = world.hub.sessions.position(id).expect("connected");
            world.hub.start(now_ns, position, record);
        }
        for event in std::mem::take(world.hub.engine_events()) {
            world.engine.apply(event).expect("taken");
        }
        if host % 32 == 0 {
            world.engine.iterate();
            world.engine.drain_updates(&mut |_| ());
        }
    }
    for _ in 0..50 {
        world.engine.iterate();
        world.engine.drain_updates(&mut |_| ());
    }
    world
}

/// Longest and total time of what was done many times.
#[derive(Default)]
struct HoldTimes(Vec<f64>);

impl HoldTimes {
    #[allow(clippy::disallowed_methods, reason = "a measurement")]
    fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let began = std::time::Instant::now();
        let result = work();
        self.0.push(began.elapsed().as_secs_f64() * 1e3);
        result
    }

    #[allow(clippy::print_stdout, reason = "a measurement")]
    fn print(&self, what: &str) {
        let (longest, sum) = (
            self.0.iter().copied().fold(0.0, f64::max),
            self.0.iter().sum::<f64>(),
        );
        println!(
            "{what}: {} times, longest {longest:.3} ms, all {sum:.1} ms",
            self.0.len()
        );
    }
}

#[test]
#[ignore = "a measurement: cargo test --release -p ratewright-allocator --lib worst_hold -- --ignored --nocapture"]
#[allow(clippy::print_stdout, reason = "a measurement")]
fn worst_hold_with_a_million_flows() {
    let mut world = million();
    println!(
        "{} flows, {:?}",
        world.hub.flow_count(),
        world.engine.exceptions()
    );
    let now_ns = world.now_ns;
    let none = super::engine(crate::engine::EngineConfig::default(), &world.hub);
    let mut driver = EngineDriver::new(
        Box::new(std::mem::replace(&mut world.engine, none)),
        std::sync::Arc::default(),
    );
    for (what, change) in [
        ("spine1 fails", switch("spine1", false)),
        ("spine1 is back", switch("spine1", true)),
        (
            "leaf1-spine2 fails",
            super::network::link("leaf1", "spine2", Some(false), None),
        ),
    ] {
        let [
            mut begin,
            mut slices,
            mut apply,
            mut iterate,
            mut drain,
            mut turns,
        ] = std::array::from_fn(|_| HoldTimes::default());
        let reroutes = world.hub.counts().reroutes;
        begin
            .time(|| world.hub.change_topology(now_ns, &change))
            .expect("it is there");
        let mut events = std::collections::VecDeque::new();
        let mut more = true;
        let mut steps = 0;
        // As the core's loop does it: one of these, then leases and starts, then the next one.
        while more || !events.is_empty() || driver.has_undrained() {
            steps += 1;
            more = slices.time(|| world.hub.sweep(now_ns, 512));
            events.append(world.hub.engine_events());
            turns.time(|| {
                let mut cost = 0;
                apply.time(|| {
                    while cost < EVENTS_AT_ONCE
                        && let Some(event) = events.pop_front()
                    {
                        cost += cost_of(&event);
                        driver.apply(event);
                    }
                });
                if !driver.has_undrained() && (steps % 4 == 0 || (!more && events.is_empty())) {
                    let began = crate::service::clock::instant_at(crate::service::clock::now_ns());
                    iterate.time(|| driver.iterate(began));
                }
                drain.time(|| driver.drain_into(|_| steps % 2 == 0));
            });
        }
        let rerouted = world.hub.counts().reroutes - reroutes;
        println!("{what}: {rerouted} flows rerouted");
        begin.print("  notification (one hold)");
        slices.print("  slice of the walk (one hold each)");
        apply.print("  events to the engine");
        iterate.print("  iteration");
        drain.print("  rates told");
        turns.print("  these three together: between two looks at the port");
    }
    // All at once, as it was done: two paths for every flow, and the topology copied.
    let mut whole = HoldTimes::default();
    whole.time(|| {
        let before = world.hub.topology().clone();
        let mut differ = 0;
        for session in world.hub.sessions.values() {
            let source = session.peer.as_ref().expect("accepted").host;
            for slot in 0..session.proto.slots() {
                if let Some((record, _)) = session.flow(slot) {
                    let links = crate::service::hub::flows::links;
                    let old = links(&before, source, &record);
                    let new = links(world.hub.topology(), source, &record);
                    differ += usize::from(old != new);
                }
            }
        }
        differ
    });
    whole.print("paths of all flows in one hold, before");
    let mut whole = HoldTimes::default();
    whole.time(|| {
        for id in world.hub.session_ids() {
            let _ = world
                .hub
                .report()
                .session_status(now_ns, id, |_| super::super::TransportFacts::default());
        }
    });
    whole.print("sessions of /status in one hold, before");
    let mut parts = HoldTimes::default();
    for some in world.hub.session_ids().chunks(256) {
        parts.time(|| {
            for &id in some {
                let _ = world
                    .hub
                    .report()
                    .session_status(now_ns, id, |_| super::super::TransportFacts::default());
            }
        });
    }
    parts.print("sessions of /status, a hold for 256");
    let mut figures = HoldTimes::default();
    figures.time(|| {
        (
            world
                .hub
                .report()
                .status(&crate::engine::EngineStats::default()),
            world.hub.report().totals(),
        )
    });
    figures.print("/metrics");
    let mut turn = HoldTimes::default();
    turn.time(|| world.hub.set_released(now_ns, true));
    turn.print("kill switch");
    let mut polls = HoldTimes::default();
    for _ in 0..100 {
        polls.time(|| world.hub.release_waits(now_ns));
    }
    polls.print("its progress, asked for");
    let mut restart = HoldTimes::default();
    restart.time(|| {
        let known = world.hub.network().capacities_bps();
        world.hub.restart_flows(world.now_ns, &known);
    });
    restart.print("a reload's hold (the engine is made elsewhere)");
    let mut made = HoldTimes::default();
    let engine = made.time(|| super::engine(crate::engine::EngineConfig::default(), &world.hub));
    drop(engine);
    made.print("the engine that it does not wait for any more");
    let mut slices = HoldTimes::default();
    loop {
        let more = slices.time(|| world.hub.sweep(now_ns, 512));
        world.hub.engine_events().clear();
        if !more {
            break;
        }
    }
    slices.print("slice of its walk");
}
