use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::engine::{
    EngineConfig, FlowNumber, FlowSpec, IterationReport, Optimality, ReferenceEngine,
};

/// An engine whose scans are interrupted for 30 ms each; it counts them.
struct Interrupted(Arc<AtomicU32>);

impl RateEngine for Interrupted {
    fn apply(&mut self, _event: EngineEvent) -> Result<(), EngineError> {
        Ok(())
    }

    fn iterate(&mut self) -> IterationReport {
        IterationReport::default()
    }

    fn drain_updates(&mut self, _sink: &mut dyn FnMut(RateUpdate)) {}

    fn link_loads(&self, _loads_bps: &mut Vec<f64>) {}

    fn link_capacities(&self, _capacities_bps: &mut Vec<f64>) {}

    fn optimality(&self) -> Optimality {
        Optimality::default()
    }

    #[allow(clippy::disallowed_methods, reason = "the interruption")]
    fn scan(&self, _scan: &mut Scan, _flows: usize) -> bool {
        std::thread::sleep(Duration::from_millis(30));
        self.0.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn flow_count(&self) -> usize {
        0
    }
}

#[test]
fn an_interrupted_scan_does_not_put_off_the_next_one_for_half_a_minute() {
    let scans = Arc::new(AtomicU32::new(0));
    let mut driver = EngineDriver::new(Box::new(Interrupted(Arc::clone(&scans))), Arc::default());
    let start = clock::now();
    // A busy engine: it iterates just before each call.
    for (at_s, scanned) in [(1, 1), (5, 1), (7, 2), (11, 2), (13, 3)] {
        let now = start + Duration::from_secs(at_s);
        driver.iterate(now);
        driver.maintain(now);
        driver.maintain(now);
        assert_eq!(scans.load(Ordering::Relaxed), scanned, "after {at_s} s");
    }
}

fn reference(links: usize, max_flows: usize) -> EngineDriver {
    let config = EngineConfig {
        max_flows,
        ..EngineConfig::default()
    };
    let engine = ReferenceEngine::new(config, &vec![1e9; links]).expect("valid settings");
    EngineDriver::new(Box::new(engine), Arc::default())
}

fn start(number: u32, links: &[u32]) -> EngineEvent {
    EngineEvent::Start(FlowSpec {
        number: FlowNumber::first(number),
        links: links.iter().copied().collect(),
        class: 0,
        weight: 1.0,
        demand_bps: f64::INFINITY,
    })
}

#[test]
fn refused_events_are_counted_by_their_reason() {
    let mut driver = reference(1, 1);
    driver.apply(start(0, &[0]));
    driver.apply(start(1, &[0]));
    // Link 5 does not exist.
    driver.apply(start(0, &[5]));
    driver.apply(EngineEvent::End(FlowNumber::first(7)));
    let stats = &driver.stats;
    assert_eq!((stats.events_applied, stats.events_refused_full), (1, 1));
    assert_eq!(
        (
            stats.events_refused_invalid,
            stats.events_refused_unknown_flow
        ),
        (1, 1)
    );
}

/// A consumer that takes nothing for a while loses nothing: it finds the newest rate of each flow
/// that has not ended.
#[test]
fn rates_without_room_wait_and_the_newest_of_each_flow_counts() {
    let mut driver = reference(33, 64);
    let now = clock::now();
    for key in 0..32 {
        driver.apply(start(key, &[key, 32]));
        // Every start changes all earlier rates, so that newer ones replace those that wait.
        driver.iterate(now);
        assert_eq!(driver.drain_into(|_| false), 0);
    }
    while !driver.is_settled() {
        driver.iterate(now);
        driver.drain_into(|_| false);
    }
    assert!(driver.stats.updates_waiting >= 32, "{:?}", driver.stats);
    assert!(driver.stats.updates_superseded > 0, "{:?}", driver.stats);
    // Ended while its rate waits: that rate is of no use any more.
    driver.apply(EngineEvent::End(FlowNumber::first(31)));
    let mut rates = std::collections::BTreeMap::new();
    for _ in 0..200 {
        driver.iterate(now);
        driver.drain_into(|update| {
            rates.insert(update.number, update.rate_bps);
            true
        });
    }
    let share = 0.99 * 1e9 / 31.0;
    for key in 0..31 {
        let rate = rates.get(&FlowNumber::first(key)).copied();
        let apart = rate.map(|rate| (rate / share - 1.0).abs());
        assert!(apart.is_some_and(|apart| apart < 0.02), "{key}: {rate:?}");
    }
    assert!(!rates.contains_key(&FlowNumber::first(31)));
    assert!(!driver.has_backlog());
}
