//! No link is over-allocated after any sequence of events.

use proptest::prelude::*;
use rand::RngExt;
use ratewright_allocator::engine::parallel::{Layout, ParallelEngine, ParallelOptions};
use ratewright_allocator::engine::{
    EngineConfig, EngineEvent, FlowNumber, FlowSpec, RateEngine, ReferenceEngine,
};
use ratewright_allocator::num::utility::{AlphaFair, Class, ClassTable, UtilityKind};
use ratewright_topology::Topology;

use crate::num_support::{capacities_bps, flow, random_path, rng, three_tiers, two_tiers};

/// An event of the network. Numbers are picks, taken modulo what exists.
#[derive(Clone, Debug)]
enum ChurnEvent {
    Start {
        key: u32,
        class: u8,
        weight: f64,
        demand_bps: f64,
    },
    End {
        key: u32,
    },
    Reroute {
        key: u32,
    },
    Capacity {
        link: u32,
        factor: f64,
    },
    /// Ends of all flows of a session.
    EndSession {
        session: u32,
    },
    Iterate,
}

const SESSIONS: u32 = 4;
const KEYS: u32 = 120;

fn event() -> impl Strategy<Value = ChurnEvent> {
    let weight = prop_oneof![Just(1.0), Just(4.0), 0.01..100.0f64];
    let demand = prop_oneof![2 => Just(f64::INFINITY), 1 => 0.0..2e10f64, 1 => Just(0.0)];
    let factor = prop_oneof![Just(0.0), Just(1.0), Just(1.0), 0.001..3.0f64];
    prop_oneof![
        8 => (0..KEYS, 0..7u8, weight, demand)
            .prop_map(|(key, class, weight, demand_bps)| ChurnEvent::Start { key, class, weight, demand_bps }),
        4 => (0..KEYS).prop_map(|key| ChurnEvent::End { key }),
        1 => (0..KEYS).prop_map(|key| ChurnEvent::Reroute { key }),
        2 => (0..512u32, factor).prop_map(|(link, factor)| ChurnEvent::Capacity { link, factor }),
        1 => (0..SESSIONS * 8).prop_map(|session| ChurnEvent::EndSession { session }),
        10 => Just(ChurnEvent::Iterate),
    ]
}

/// An engine under test, with its rounding error and its introspection.
trait Subject: RateEngine {
    /// Relative error of sums.
    const ROUNDING: f64;

    fn rate_bps(&self, key: FlowNumber) -> Option<f64>;
    fn prices(&self) -> Vec<f64>;
}

impl Subject for ReferenceEngine {
    const ROUNDING: f64 = 1e-9;

    fn rate_bps(&self, key: FlowNumber) -> Option<f64> {
        self.rate_bps(key)
    }

    fn prices(&self) -> Vec<f64> {
        self.prices().to_vec()
    }
}

impl Subject for ParallelEngine {
    /// Single precision.
    const ROUNDING: f64 = 1e-5;

    fn rate_bps(&self, key: FlowNumber) -> Option<f64> {
        self.rate_bps(key)
    }

    fn prices(&self) -> Vec<f64> {
        self.prices()
    }
}

fn config() -> EngineConfig {
    let alpha = |a| Class {
        utility: UtilityKind::Alpha(
            AlphaFair::bounded(a, 1e9, AlphaFair::MIXED_BOUND).expect("a valid α"),
        ),
        ..Class::default()
    };
    let bounded = Class {
        max_rate_bps: 1e9,
        weight: 2.0,
        ..Class::default()
    };
    let classes = [
        (0, Class::default()),
        (1, alpha(0.5)),
        (2, alpha(2.0)),
        (3, alpha(8.0)),
        (4, bounded),
        (5, alpha(4.0)),
        (6, alpha(16.0)),
    ];
    let classes = ClassTable::new(classes).expect("valid classes");
    EngineConfig {
        classes,
        ..EngineConfig::default()
    }
}

fn reference(topology: &Topology) -> ReferenceEngine {
    ReferenceEngine::new(config(), &capacities_bps(topology)).expect("a valid engine")
}

/// The default engine of the service.
fn default_engine(topology: &Topology) -> ParallelEngine {
    let layout = Layout::of(topology, 1).expect("it can be cut");
    let options = ParallelOptions::default();
    ParallelEngine::new(config(), options, layout, &capacities_bps(topology))
        .expect("a valid engine")
}

/// Checks that live flows' rates sum to no more than the derated capacity of every link, and that
/// each lies between 0 and the flow's demand.
fn check<E: Subject>(engine: &E, flows: &[Option<FlowSpec>], capacities_bps: &[f64]) {
    let mut loads = vec![0.0; capacities_bps.len()];
    for spec in flows.iter().flatten() {
        let rate = engine
            .rate_bps(spec.number)
            .expect("a live flow has a rate");
        assert!(
            rate >= 0.0 && rate <= spec.demand_bps * (1.0 + E::ROUNDING) + 1.0,
            "{spec:?}: {rate}"
        );
        for &link in &spec.links {
            loads[link as usize] += rate;
        }
    }
    for (link, (&load, &capacity)) in loads.iter().zip(capacities_bps).enumerate() {
        // Rounding in absolute terms as well: links without capacity have loads near 0.
        let derated = capacity * (1.0 - config().threshold);
        assert!(
            load <= derated * (1.0 + E::ROUNDING) + 1.0,
            "link {link}: {load} over {derated}"
        );
    }
    let mut reported = Vec::new();
    engine.link_loads(&mut reported);
    for (a, b) in reported.iter().zip(&loads) {
        assert!(
            (a - b).abs() <= E::ROUNDING * b.max(1.0),
            "loads as reported and as summed: {a} {b}"
        );
    }
    let prices = engine.prices();
    assert!(
        prices
            .iter()
            .all(|price| price.is_finite() && *price >= 0.0),
        "{prices:?}"
    );
}

fn run<E: Subject>(topology: &Topology, mut engine: E, seed: u64, events: &[ChurnEvent]) {
    let full_bps = capacities_bps(topology);
    let mut capacities_bps = full_bps.clone();
    let mut flows: Vec<Option<FlowSpec>> = vec![None; KEYS as usize];
    let mut rng = rng(seed);
    for event in events {
        match *event {
            ChurnEvent::Start {
                key,
                class,
                weight,
                demand_bps,
            } => {
                let base = flow(key, &random_path(topology, &mut rng));
                let spec = FlowSpec {
                    class,
                    weight,
                    demand_bps,
                    ..base
                };
                flows[key as usize] = Some(spec.clone());
                engine
                    .apply(EngineEvent::Start(spec))
                    .expect("a valid flow");
            }
            ChurnEvent::End { key } => {
                let ended = engine.apply(EngineEvent::End(FlowNumber::first(key)));
                assert_eq!(ended.is_ok(), flows[key as usize].take().is_some());
            }
            ChurnEvent::Reroute { key } => {
                if let Some(spec) = &mut flows[key as usize] {
                    spec.links = random_path(topology, &mut rng);
                    let links = spec.links.clone();
                    engine
                        .apply(EngineEvent::Reroute {
                            number: spec.number,
                            links,
                        })
                        .expect("a valid way");
                }
            }
            ChurnEvent::Capacity { link, factor } => {
                let link = link % full_bps.len() as u32;
                let capacity_bps = full_bps[link as usize] * factor;
                capacities_bps[link as usize] = capacity_bps;
                engine
                    .apply(EngineEvent::Capacity { link, capacity_bps })
                    .expect("a valid capacity");
            }
            ChurnEvent::EndSession { session } => {
                let of_session =
                    |spec: &mut FlowSpec| spec.number.index() % (SESSIONS * 8) == session;
                let ended = flows.iter_mut().filter_map(|flow| flow.take_if(of_session));
                let numbers = ended.map(|spec| spec.number).collect();
                engine
                    .apply(EngineEvent::EndAll(numbers))
                    .expect("always fine");
            }
            ChurnEvent::Iterate => {
                let iterations = rng.random_range(1..4);
                for _ in 0..iterations {
                    engine.iterate();
                    check(&engine, &flows, &capacities_bps);
                }
            }
        }
    }
    // Without further events it converges, and its own measure of optimality agrees.
    for _ in 0..3000 {
        engine.iterate();
    }
    check(&engine, &flows, &capacities_bps);
    let measured = engine.optimality();
    assert!(
        measured.relative_duality_gap.is_finite() && measured.relative_duality_gap < 1e-2,
        "{measured:?}"
    );
    // After all flows have ended, a new one gets all that its path has: no sum keeps a trace of
    // them.
    for spec in flows.iter().flatten() {
        engine
            .apply(EngineEvent::End(spec.number))
            .expect("it is there");
    }
    for (link, &capacity_bps) in (0u32..).zip(&full_bps) {
        let event = EngineEvent::Capacity { link, capacity_bps };
        engine.apply(event).expect("a valid capacity");
    }
    engine.iterate();
    let alone = flow(0, &random_path(topology, &mut rng));
    let of_link = |link: &u32| full_bps[*link as usize] * (1.0 - config().threshold);
    let all = alone
        .links
        .iter()
        .map(of_link)
        .fold(f64::INFINITY, f64::min);
    engine
        .apply(EngineEvent::Start(alone))
        .expect("a valid flow");
    for _ in 0..200 {
        engine.iterate();
    }
    let rate = engine.rate_bps(FlowNumber::first(0)).expect("it is there");
    assert!(
        (rate / all - 1.0).abs() < 1e-3,
        "alone, it has {rate} of {all}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Rates fit after every iteration on two tiers, under starts, ends, replacements, reroutes,
    /// capacity changes, failures, repairs and lost sessions in any order.
    #[test]
    fn no_link_is_over_allocated_on_two_tiers(
        seed in any::<u64>(),
        events in proptest::collection::vec(event(), 1..300),
    ) {
        let topology = two_tiers(15_000_000_000);
        run(&topology, reference(&topology), seed, &events);
        run(&topology, default_engine(&topology), seed, &events);
    }

    /// Rates fit likewise on three tiers.
    #[test]
    fn no_link_is_over_allocated_on_three_tiers(
        seed in any::<u64>(),
        events in proptest::collection::vec(event(), 1..300),
    ) {
        let topology = three_tiers(15_000_000_000);
        run(&topology, reference(&topology), seed, &events);
        run(&topology, default_engine(&topology), seed, &events);
    }
}
