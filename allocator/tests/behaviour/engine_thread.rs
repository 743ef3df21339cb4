//! The engine on its thread: rings, idle time, statistics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ratewright_allocator::engine::thread::{
    EngineDriver, EngineHandle, EngineThreadConfig, Interval, spawn,
};
use ratewright_allocator::engine::{
    EngineConfig, EngineError, EngineEvent, EngineStats, FlowNumber, FlowSpec, IterationReport,
    Optimality, RateEngine, RateUpdate, ReferenceEngine,
};

use crate::num_support::flow;

const GBIT: f64 = 1e9;

#[allow(clippy::disallowed_methods, reason = "the test measures a real thread")]
fn now() -> Instant {
    Instant::now()
}

#[allow(
    clippy::disallowed_methods,
    reason = "the test waits for a real thread"
)]
fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

fn reference(links: usize) -> Box<dyn RateEngine> {
    Box::new(ReferenceEngine::new(EngineConfig::default(), &vec![GBIT; links]).expect("valid"))
}

fn spawn_engine(
    engine: Box<dyn RateEngine>,
    config: EngineThreadConfig,
    wake: impl Fn() + Send + 'static,
) -> EngineHandle {
    spawn(EngineDriver::new(engine, Arc::default()), config, wake)
}

fn start(engine: &mut EngineHandle, spec: FlowSpec) {
    let mut event = EngineEvent::Start(spec);
    while let Err(back) = engine.push(event) {
        event = back;
        pause(Duration::from_micros(100));
    }
}

/// Takes updates until `done` or five seconds have passed; returns the newest rates.
fn collect(
    engine: &mut EngineHandle,
    done: impl Fn(&BTreeMap<FlowNumber, f64>) -> bool,
) -> BTreeMap<FlowNumber, f64> {
    let mut rates = BTreeMap::new();
    let began = now();
    while !done(&rates) && began.elapsed() < Duration::from_secs(5) {
        match engine.pop_update() {
            Some(update) => {
                rates.insert(update.number, update.rate_bps);
            }
            None => pause(Duration::from_micros(50)),
        }
    }
    rates
}

fn wait_for(engine: &EngineHandle, done: impl Fn(&EngineStats) -> bool) -> Arc<EngineStats> {
    let began = now();
    loop {
        let stats = engine.stats();
        if done(&stats) || began.elapsed() > Duration::from_secs(5) {
            return stats;
        }
        pause(Duration::from_millis(1));
    }
}

/// Rate of one of eight senders to a receiver, in bit/s: an eighth of the derated capacity.
const EIGHTH: f64 = 0.99 * GBIT / 8.0;

#[test]
fn starts_in_rates_out() {
    for interval in [Interval::Timer(100_000), Interval::BackToBack] {
        let wakes = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&wakes);
        let config = EngineThreadConfig {
            interval,
            // Core 0 exists on every machine.
            pin_core: Some(0),
            ..EngineThreadConfig::default()
        };
        let mut engine = spawn_engine(reference(9), config, move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        start(&mut engine, flow(0, &[0, 8]));
        let began = now();
        // Before the others start: a first rate waits for no other event.
        let rates = collect(&mut engine, |rates| !rates.is_empty());
        assert!(rates.contains_key(&FlowNumber::first(0)), "the first rate");
        println!("{interval:?}: first rate after {:?}", began.elapsed());
        (1..8).for_each(|key| start(&mut engine, flow(key, &[key, 8])));
        let shared = |r: &f64| (r / EIGHTH - 1.0).abs() < 0.02;
        let rates = collect(&mut engine, |rates| {
            rates.len() == 8 && rates.values().all(shared)
        });
        assert!(rates.len() == 8 && rates.values().all(shared), "{rates:?}");
        // One wake-up per batch of rates: at least the first flow's and the others'.
        assert!(wakes.load(Ordering::Relaxed) >= 2);
        let stats = wait_for(&engine, |s| s.settled && s.events_applied == 8);
        assert!(
            stats.settled && stats.flows == 8 && stats.iterations > 2,
            "{stats:?}"
        );
        assert!(stats.last_iteration_ns > 0 && stats.p50_iteration_ns <= stats.p99_iteration_ns);
        // No iteration, with a clock read at each end, takes less than this.
        assert!(
            stats.p50_iteration_ns >= 20,
            "quantiles are kept: {stats:?}"
        );
        assert_eq!((stats.top_links[0].link, stats.top_links.len()), (8, 9));
        // Relative to the derated capacity, which log flows without demands fill.
        assert!(stats.top_links[0].utilization() > 0.999);
        assert!(
            stats.optimality.relative_duality_gap < 1e-3,
            "{:?}",
            stats.optimality
        );
        engine.shutdown();
    }
}

#[test]
fn refused_events_are_counted() {
    let config = EngineConfig {
        max_flows: 1,
        ..EngineConfig::default()
    };
    let engine = ReferenceEngine::new(config, &[GBIT]).expect("valid");
    let mut engine = spawn_engine(Box::new(engine), EngineThreadConfig::default(), || {});
    start(&mut engine, flow(0, &[0]));
    start(&mut engine, flow(1, &[0]));
    // Link 5 does not exist.
    start(&mut engine, flow(0, &[5]));
    engine
        .push(EngineEvent::End(FlowNumber::first(7)))
        .expect("room in the ring");
    let stats = wait_for(&engine, |s| s.events_refused_unknown_flow == 1);
    assert_eq!(stats.events_applied, 1);
    assert_eq!(stats.events_refused_full, 1);
    assert_eq!(stats.events_refused_invalid, 1);
    assert_eq!(stats.events_refused_unknown_flow, 1);
}

/// CPU time of a thread of this process by its name, in nanoseconds.
fn cpu_time_ns(name: &str) -> u64 {
    let mut total = 0;
    for task in std::fs::read_dir("/proc/self/task")
        .expect("procfs")
        .flatten()
    {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        if read("comm").trim() == name {
            total += read("schedstat")
                .split(' ')
                .next()
                .and_then(|ns| ns.parse().ok())
                .unwrap_or(0);
        }
    }
    total
}

/// An engine that names its thread, so that the test finds the thread's CPU time.
struct NamedThreadEngine {
    inner: ReferenceEngine,
    named: bool,
}

impl RateEngine for NamedThreadEngine {
    fn apply(&mut self, event: EngineEvent) -> Result<(), EngineError> {
        // The kernel's name of a thread can only be set on the thread itself: at its first event.
        if !std::mem::replace(&mut self.named, true) {
            std::fs::write("/proc/thread-self/comm", "idle-engine").expect("a thread names itself");
        }
        self.inner.apply(event)
    }
    fn iterate(&mut self) -> IterationReport {
        self.inner.iterate()
    }
    fn drain_updates(&mut self, sink: &mut dyn FnMut(RateUpdate)) {
        self.inner.drain_updates(sink);
    }
    fn link_loads(&self, loads_bps: &mut Vec<f64>) {
        self.inner.link_loads(loads_bps);
    }
    fn link_capacities(&self, capacities_bps: &mut Vec<f64>) {
        self.inner.link_capacities(capacities_bps);
    }
    fn optimality(&self) -> Optimality {
        self.inner.optimality()
    }
    fn flow_count(&self) -> usize {
        self.inner.flow_count()
    }
}

/// A settled engine's thread does not run at all, with flows in the table and back-to-back
/// iterations configured.
#[test]
fn an_idle_engine_costs_nothing() {
    let inner = ReferenceEngine::new(EngineConfig::default(), &[GBIT; 9]).expect("valid");
    let config = EngineThreadConfig {
        interval: Interval::BackToBack,
        ..EngineThreadConfig::default()
    };
    let mut engine = spawn_engine(
        Box::new(NamedThreadEngine {
            inner,
            named: false,
        }),
        config,
        || {},
    );
    (0..8).for_each(|key| start(&mut engine, flow(key, &[key, 8])));
    let stats = wait_for(&engine, |s| s.settled && s.flows == 8);
    assert!(stats.settled, "{stats:?}");
    // The thread may not sleep yet.
    pause(Duration::from_millis(300));
    let before = cpu_time_ns("idle-engine");
    assert!(before > 0, "the thread has run and is found by its name");
    pause(Duration::from_millis(500));
    let spent = cpu_time_ns("idle-engine") - before;
    assert_eq!(spent, 0, "{spent} ns of CPU in 500 ms of rest");
    engine
        .push(EngineEvent::End(FlowNumber::first(0)))
        .expect("room in the ring");
    // An end raises the others' rates by a seventh, far beyond the threshold.
    let rates = collect(&mut engine, |rates| {
        rates
            .get(&FlowNumber::first(1))
            .is_some_and(|r| *r > 1.1 * EIGHTH)
    });
    assert!(
        rates.contains_key(&FlowNumber::first(1)),
        "it wakes up again"
    );
}

/// A slow consumer loses nothing: it finds the newest rate of every flow.
#[test]
fn a_full_update_ring_keeps_the_newest_rates() {
    let config = EngineThreadConfig {
        // Far fewer places than flows, so that most rates must wait in the engine.
        update_ring: 4,
        ..EngineThreadConfig::default()
    };
    let mut engine = spawn_engine(reference(33), config, || {});
    for key in 0..32 {
        start(&mut engine, flow(key, &[key, 32]));
        // Every start changes all earlier rates, so that newer ones replace those that wait.
        pause(Duration::from_micros(500));
    }
    let stats = wait_for(&engine, |s| s.settled && s.events_applied == 32);
    assert!(stats.updates_waiting >= 28, "32 flows, 4 places: {stats:?}");
    assert!(
        stats.updates_superseded > 0,
        "rates moved while nobody took them"
    );
    // Ended while its rate waits: that rate is of no use any more.
    engine
        .push(EngineEvent::End(FlowNumber::first(31)))
        .expect("room in the ring");
    wait_for(&engine, |s| s.settled && s.events_applied == 33);
    let share = 0.99 * GBIT / 31.0;
    let done = |rates: &BTreeMap<FlowNumber, f64>| {
        (0..31).all(|k| {
            rates
                .get(&FlowNumber::first(k))
                .is_some_and(|r| (r / share - 1.0).abs() < 0.02)
        })
    };
    let rates = collect(&mut engine, done);
    assert!(done(&rates), "{rates:?}");
    assert!(!rates.contains_key(&FlowNumber::first(31)));
    let stats = wait_for(&engine, |s| s.updates_waiting == 0);
    assert_eq!(stats.updates_waiting, 0);
}

/// A full event ring returns the event, and the engine applies all that it accepted.
#[test]
fn a_full_event_ring_says_so() {
    /// An engine whose iterations take 20 ms.
    struct Slow(ReferenceEngine);
    impl RateEngine for Slow {
        fn apply(&mut self, event: EngineEvent) -> Result<(), EngineError> {
            self.0.apply(event)
        }
        fn iterate(&mut self) -> IterationReport {
            pause(Duration::from_millis(20));
            self.0.iterate()
        }
        fn drain_updates(&mut self, sink: &mut dyn FnMut(RateUpdate)) {
            self.0.drain_updates(sink);
        }
        fn link_loads(&self, loads_bps: &mut Vec<f64>) {
            self.0.link_loads(loads_bps);
        }
        fn link_capacities(&self, capacities_bps: &mut Vec<f64>) {
            self.0.link_capacities(capacities_bps);
        }
        fn optimality(&self) -> Optimality {
            self.0.optimality()
        }
        fn flow_count(&self) -> usize {
            self.0.flow_count()
        }
    }
    let inner = ReferenceEngine::new(EngineConfig::default(), &[GBIT]).expect("valid");
    let config = EngineThreadConfig {
        event_ring: 4,
        ..EngineThreadConfig::default()
    };
    let mut engine = spawn_engine(Box::new(Slow(inner)), config, || {});
    let mut refused = 0;
    for key in 0..64 {
        // 20 ms of iteration let the ring of four places fill.
        if let Err(EngineEvent::Start(spec)) = engine.push(EngineEvent::Start(flow(key, &[0]))) {
            refused += 1;
            start(&mut engine, spec);
        }
    }
    assert!(refused > 0, "64 events do not fit into 4 places");
    let stats = wait_for(&engine, |s| s.events_applied == 64);
    assert_eq!(stats.events_applied, 64, "none is lost");
    let began = now();
    drop(engine);
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "dropping the handle stops the thread"
    );
}

#[test]
fn a_resting_engine_tells_its_links_loads_when_it_is_asked() {
    let mut engine = spawn_engine(reference(2), EngineThreadConfig::default(), || {});
    start(&mut engine, flow(1, &[0]));
    let rates = collect(&mut engine, |rates| {
        rates.values().any(|rate_bps| *rate_bps > 0.98 * GBIT)
    });
    assert_eq!(rates.len(), 1);
    assert_eq!(engine.take_link_loads(), None, "nobody has asked");
    let began = now();
    let mut loads_bps = None;
    while loads_bps.is_none() && began.elapsed() < Duration::from_secs(5) {
        engine.ask_for_link_loads();
        pause(Duration::from_millis(1));
        loads_bps = engine.take_link_loads();
    }
    let loads_bps = loads_bps.expect("an answer");
    assert!(
        loads_bps[0] > 0.98 * GBIT && loads_bps[1] == 0.0,
        "{loads_bps:?}"
    );
}
