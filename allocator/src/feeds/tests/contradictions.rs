//! Two readings of one quantity: of fresh ones the lesser stands, and a reporter that falls silent
//! has no say beside one that does not.

use super::*;

const MS: u64 = 1_000_000;
const GBIT_S: f64 = 1e9;

/// A host that reads its uplink, and a collector that reads the same link.
struct World {
    topology: Topology,
    config: FeedsConfig,
    feeds: Feeds,
    now_ns: u64,
    /// Bytes that the host's and the collector's counters have seen.
    bytes: [f64; 2],
}

impl World {
    fn new() -> Self {
        let topology = topology();
        let config = FeedsConfig::default();
        Self {
            feeds: Feeds::new(config.clone(), &topology),
            topology,
            config,
            now_ns: 1_000 * MS,
            bytes: [0.0; 2],
        }
    }

    fn uplink(&self) -> LinkId {
        self.topology.host_uplink(HostId(1))
    }

    /// Lets intervals pass in which the host's and the collector's counters see these external
    /// loads in Gbit/s; `None` says nothing.
    fn pass(&mut self, intervals: u64, loads: [Option<f64>; 2]) {
        for _ in 0..intervals {
            self.now_ns += self.config.interval_ns;
            let uplink = self.uplink();
            let reporters = [Reporter::Host(HostId(1)), Reporter::Collector];
            for ((reporter, bytes), load) in reporters.into_iter().zip(&mut self.bytes).zip(loads) {
                let Some(load) = load else {
                    continue;
                };
                *bytes += load * GBIT_S / 8e9 * self.config.interval_ns as f64;
                let mut told = link(uplink.0);
                told.links[0].bandwidth_bps = self.topology.effective_capacity_bps(uplink);
                told.links[0].timestamp_ns = self.now_ns;
                told.links[0].tx_bytes = *bytes as u64;
                (self.feeds).take(self.now_ns, reporter, &told, &self.topology, |_| true);
            }
            (self.feeds).apply(self.now_ns, &self.topology, &mut |_| {});
        }
    }

    /// Returns the load that is withheld, in Gbit/s.
    fn load(&self) -> f64 {
        let effect = self.feeds.effect(self.uplink());
        effect.map_or(0.0, |effect| effect.load_bps) / GBIT_S
    }

    fn contradictions(&self, feed: &str) -> u64 {
        let counted = self.feeds.status().contradictions;
        counted.get(feed).copied().unwrap_or(0)
    }

    /// Returns the loads after each interval of silence until all is forgotten.
    fn loads_of(&mut self, loads: [Option<f64>; 2]) -> Vec<f64> {
        let intervals = self.config.max_age_ns / self.config.interval_ns + 5;
        let mut seen = Vec::new();
        for _ in 0..intervals {
            self.pass(1, loads);
            seen.push(self.load());
        }
        seen
    }
}

fn is_near(load: f64, expected: f64) -> bool {
    // The hysteresis of a link of 10 Gbit/s.
    (load - expected).abs() <= 0.1
}

#[test]
fn a_reporter_that_falls_silent_leaves_the_load_that_the_other_one_measures() {
    for silent in 0..2 {
        let mut world = World::new();
        world.pass(100, [Some(4.0); 2]);
        assert!(is_near(world.load(), 4.0), "{}", world.load());
        let mut loads = [Some(4.0); 2];
        loads[silent] = None;
        let seen = world.loads_of(loads);
        assert!(seen.iter().all(|&load| is_near(load, 4.0)), "{seen:?}");
        assert_eq!(world.contradictions("int"), 0, "silence of {silent}");
    }
}

#[test]
fn of_two_fresh_readings_the_lesser_stands_and_each_evaluation_counts() {
    for loads in [[Some(4.0), Some(2.0)], [Some(2.0), Some(4.0)]] {
        let mut world = World::new();
        world.pass(100, loads);
        assert!(is_near(world.load(), 2.0), "{}", world.load());
        let before = world.contradictions("int");
        world.pass(10, loads);
        assert!(is_near(world.load(), 2.0), "{}", world.load());
        // Readings that differ have the link evaluated in every interval.
        assert_eq!(world.contradictions("int"), before + 10);
    }
}

#[test]
fn a_lesser_reading_stands_while_it_is_fresh_and_no_longer() {
    let mut world = World::new();
    world.pass(100, [Some(4.0), Some(2.0)]);
    for _ in 0..world.config.fresh_ns / world.config.interval_ns {
        world.pass(1, [Some(4.0), None]);
        assert!(is_near(world.load(), 2.0), "{}", world.load());
    }
    let before = world.contradictions("int");
    let seen = world.loads_of([Some(4.0), None]);
    assert!(seen.iter().all(|&load| is_near(load, 4.0)), "{seen:?}");
    assert_eq!(world.contradictions("int"), before);
}

#[test]
fn of_two_silent_reporters_the_later_one_fades_and_nothing_comes_back() {
    for loads in [[4.0, 2.0], [2.0, 4.0], [4.0, 4.0]] {
        for later in 0..2 {
            let mut world = World::new();
            world.pass(100, loads.map(Some));
            let mut last = [None; 2];
            last[later] = Some(loads[later]);
            world.pass(5, last);
            assert!(is_near(world.load(), loads[later]), "{}", world.load());
            let before = world.contradictions("int");
            let seen = world.loads_of([None; 2]);
            let falls = seen.windows(2).all(|pair| pair[1] <= pair[0]);
            assert!(falls, "{loads:?} {later}: {seen:?}");
            assert_eq!(seen.last(), Some(&0.0));
            assert_eq!(world.contradictions("int"), before);
        }
    }
}

#[test]
fn of_two_reporters_that_fall_silent_at_once_the_lesser_fades() {
    for loads in [[Some(4.0), Some(2.0)], [Some(2.0), Some(4.0)]] {
        let mut world = World::new();
        world.pass(100, loads);
        let seen = world.loads_of([None; 2]);
        assert!(seen.iter().all(|&load| load <= 2.1), "{seen:?}");
        assert!(seen.windows(2).all(|pair| pair[1] <= pair[0]), "{seen:?}");
        assert_eq!(seen.last(), Some(&0.0));
    }
}

#[test]
fn a_collector_that_sees_nothing_holds_a_standing_load_down_while_it_is_heard() {
    let mut world = World::new();
    let uplink = world.uplink();
    let interval_ns = world.config.interval_ns;
    let mut told = link(uplink.0);
    told.links[0].bandwidth_bps = world.topology.effective_capacity_bps(uplink);
    told.links[0].timestamp_ns = world.now_ns;
    told.links[0].interval_ns = interval_ns;
    told.links[0].tx_bytes = (4.0 * GBIT_S / 8e9 * interval_ns as f64) as u64;
    let host = Reporter::Host(HostId(1));
    (world.feeds).take(world.now_ns, host, &told, &world.topology, |_| true);
    let pass = |world: &mut World, intervals, collected| {
        for _ in 0..intervals {
            let heard_ns = world.now_ns + interval_ns;
            world.feeds.hear(heard_ns, HostId(1), &world.topology);
            world.pass(1, [None, collected]);
        }
        world.load()
    };
    assert!(is_near(pass(&mut world, 3, None), 4.0));
    for _ in 0..3 {
        assert_eq!(pass(&mut world, 3, Some(0.0)), 0.0);
        assert_eq!(pass(&mut world, 20, Some(0.0)), 0.0);
        assert_eq!(pass(&mut world, 4, None), 0.0, "it is fresh");
        assert!(is_near(pass(&mut world, 1, None), 4.0));
        assert!(is_near(pass(&mut world, 20, None), 4.0));
    }
}

/// Flows on the downlink of host 2 that it counts, and those to which a collector tells credit of
/// 1 Gbit/s each.
fn tell_flows(world: &mut World, counted: Option<u32>, credited: u32) {
    world.now_ns += world.config.interval_ns;
    let now_ns = world.now_ns;
    if let Some(active_senders) = counted {
        let mut told = count(2, 0);
        told.receivers[0].active_senders = active_senders;
        told.receivers[0].excludes_managed = true;
        let host = Reporter::Host(HostId(2));
        (world.feeds).take(now_ns, host, &told, &world.topology, |_| true);
    }
    for sender in 3..3 + credited {
        let mut told = credit(sender, 2);
        told.credits[0].granted_bytes = now_ns / 8;
        (world.feeds).take(now_ns, Reporter::Collector, &told, &world.topology, |_| {
            true
        });
    }
    (world.feeds).apply(now_ns, &world.topology, &mut |_| {});
}

#[test]
fn a_count_that_falls_silent_leaves_the_flows_that_credit_shows() {
    let mut world = World::new();
    for _ in 0..10 {
        tell_flows(&mut world, Some(3), 3);
    }
    let downlink = world.topology.host_downlink(HostId(2));
    let flows = |world: &World| {
        let effect = world.feeds.effect(downlink);
        effect.map_or(0.0, |effect| effect.flows)
    };
    for _ in 0..15 {
        tell_flows(&mut world, None, 3);
        assert_eq!(flows(&world), 3.0);
    }
    assert_eq!(world.contradictions("credit"), 0);
}

#[test]
fn credit_that_falls_silent_contradicts_no_count() {
    let mut world = World::new();
    for _ in 0..10 {
        tell_flows(&mut world, Some(3), 3);
    }
    // Two of the pairs have ended, and so the count falls.
    let fresh = world.config.fresh_ns / world.config.interval_ns;
    for _ in 0..fresh {
        tell_flows(&mut world, Some(3), 1);
    }
    for _ in 0..15 {
        tell_flows(&mut world, Some(1), 1);
    }
    assert_eq!(world.contradictions("credit"), 0);
}

#[test]
fn more_credit_than_senders_is_a_contradiction_while_both_are_fresh() {
    let mut world = World::new();
    for _ in 0..10 {
        tell_flows(&mut world, Some(1), 3);
    }
    assert_eq!(world.contradictions("credit"), 10);
    let downlink = world.topology.host_downlink(HostId(2));
    let flows = world.feeds.effect(downlink).map(|effect| effect.flows);
    assert_eq!(flows, Some(1.0), "the lesser stands");
}
