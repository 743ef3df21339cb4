//! The parallel engine against the reference.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use ratewright_topology::{BigSwitch, HostId, PathChoice, ThreeTierClos, Topology, TwoTierClos};

use super::flows::derating;
use super::*;
use crate::engine::{FlowNumber, FlowSpec, LinkPath, ReferenceEngine};
use crate::num::utility::{AlphaFair, Class, ClassTable, UtilityKind};

const TOLERANCE: f64 = 1e-3;

pub(super) fn two_tiers(racks: u32, hosts_per_rack: u32, spines: u32) -> Topology {
    TwoTierClos {
        racks,
        hosts_per_rack,
        spines,
        ..TwoTierClos::default()
    }
    .build()
    .expect("a valid network")
}

pub(super) fn capacities(topology: &Topology) -> Vec<f64> {
    topology
        .links()
        .iter()
        .map(|link| topology.effective_capacity_bps(link.id) as f64)
        .collect()
}

fn classes() -> ClassTable {
    let class = |utility| Class {
        utility,
        ..Class::default()
    };
    let alpha = AlphaFair::new(2.0).expect("a valid α");
    ClassTable::new([
        (0, class(UtilityKind::Log)),
        (1, class(UtilityKind::Alpha(alpha))),
    ])
    .expect("valid classes")
}

fn config() -> EngineConfig {
    EngineConfig {
        classes: classes(),
        ..EngineConfig::default()
    }
}

fn path(topology: &Topology, source: u32, destination: u32, hash: u32) -> LinkPath {
    let path = topology
        .path(HostId(source), HostId(destination), PathChoice::Hash(hash))
        .expect("a whole network");
    path.iter().map(|link| link.0).collect()
}

pub(super) fn parallel(
    topology: &Topology,
    blocks: u32,
    workers: usize,
    simd: Simd,
) -> ParallelEngine {
    let layout = Layout::of(topology, blocks).expect("it can be cut so");
    let options = ParallelOptions {
        workers,
        simd,
        ..ParallelOptions::default()
    };
    ParallelEngine::new(config(), options, layout, &capacities(topology)).expect("valid")
}

pub(super) fn reference(topology: &Topology) -> ReferenceEngine {
    ReferenceEngine::new(config(), &capacities(topology)).expect("valid")
}

/// A flow as the generators make it.
#[derive(Clone, Debug)]
pub(super) struct Sketch {
    pub(super) source: u32,
    pub(super) destination: u32,
    pub(super) hash: u32,
    pub(super) weight: f64,
    pub(super) class: u8,
    pub(super) demand_bps: f64,
}

fn sketches(hosts: u32, most: usize) -> impl Strategy<Value = Vec<Sketch>> {
    let weight = prop_oneof![6 => Just(1.0), 1 => 0.25..8.0f64];
    let class = prop_oneof![8 => Just(0u8), 1 => Just(1u8)];
    let demand_bps = prop_oneof![6 => Just(f64::INFINITY), 1 => 1e8..2e9f64];
    let sketch = (0..hosts, 1..hosts, any::<u32>(), weight, class, demand_bps).prop_map(
        move |(source, step, hash, weight, class, demand_bps)| Sketch {
            source,
            destination: (source + step) % hosts,
            hash,
            weight,
            class,
            demand_bps,
        },
    );
    prop::collection::vec(sketch, 1..most)
}

pub(super) fn start(topology: &Topology, key: u32, sketch: &Sketch) -> EngineEvent {
    EngineEvent::Start(FlowSpec {
        number: FlowNumber::first(key),
        links: path(topology, sketch.source, sketch.destination, sketch.hash),
        class: sketch.class,
        weight: sketch.weight,
        demand_bps: sketch.demand_bps,
    })
}

pub(super) fn settle(engine: &mut dyn RateEngine) -> bool {
    (0..6_000).any(|_| engine.iterate().settled)
}

/// Checks for equal rates within the tolerance, and for loads within capacities.
pub(super) fn compare(
    parallel: &ParallelEngine,
    reference: &ReferenceEngine,
    keys: impl Iterator<Item = u32>,
) -> Result<(), TestCaseError> {
    for key in keys {
        let (ours, exact) = (
            parallel.rate_bps(FlowNumber::first(key)),
            reference.rate_bps(FlowNumber::first(key)),
        );
        match (ours, exact) {
            (Some(ours), Some(exact)) => prop_assert!(
                (ours - exact).abs() <= TOLERANCE * exact.max(1.0),
                "flow {key}: {ours} for {exact}"
            ),
            other => prop_assert_eq!(other, (None, None)),
        }
    }
    fits(parallel)
}

pub(super) fn fits(engine: &ParallelEngine) -> Result<(), TestCaseError> {
    let (mut loads, mut capacities) = (Vec::new(), Vec::new());
    engine.link_loads(&mut loads);
    engine.link_capacities(&mut capacities);
    for (link, (load, capacity)) in loads.iter().zip(&capacities).enumerate() {
        prop_assert!(
            *load <= capacity * (1.0 + 1e-5) + 1.0,
            "link {link}: {load} of {capacity}"
        );
    }
    Ok(())
}

/// Last rate that each flow was notified of, in bit/s.
#[derive(Default)]
struct Told(BTreeMap<u32, f64>);

impl Told {
    fn take(&mut self, engine: &mut ParallelEngine) {
        engine.drain_updates(&mut |update| {
            self.0.insert(update.number.index(), update.rate_bps);
        });
    }

    fn settle(&mut self, engine: &mut ParallelEngine) -> bool {
        (0..6_000).any(|_| {
            let settled = engine.iterate().settled;
            self.take(engine);
            settled
        })
    }

    /// Checks that each flow was notified of its rate, but for changes below the threshold.
    fn compare(&self, reference: &ReferenceEngine) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.0.len(), reference.flow_count());
        let most = config().threshold + 2.0 * TOLERANCE;
        for (&key, &told) in &self.0 {
            let exact = reference.rate_bps(FlowNumber::first(key)).expect("active");
            prop_assert!(
                (told - exact).abs() <= most * exact.max(1.0),
                "flow {key}: told {told}, for {exact}"
            );
        }
        Ok(())
    }
}

fn engines(topology: &Topology) -> impl Iterator<Item = ParallelEngine> + '_ {
    let shapes = [(1, 1), (2, 1), (2, 2), (2, 4), (4, 3)];
    Simd::available().into_iter().flat_map(move |simd| {
        shapes
            .into_iter()
            .map(move |(blocks, workers)| parallel(topology, blocks, workers, simd))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Rates equal the reference's for all blocks, workers and instruction sets, in any order of
    /// arrival. No iteration over-allocates a link.
    #[test]
    fn every_shape_and_order_finds_the_references_optimum(
        flows in sketches(24, 150),
        rotation in any::<prop::sample::Index>(),
        spines in 1u32..5,
    ) {
        let topology = two_tiers(4, 6, spines);
        let mut exact = reference(&topology);
        for (key, flow) in (0..).zip(&flows) {
            exact.apply(start(&topology, key, flow)).expect("valid");
        }
        prop_assume!(settle(&mut exact));
        for mut engine in engines(&topology) {
            let first = rotation.index(flows.len());
            for key in (first..flows.len()).chain(0..first) {
                engine.apply(start(&topology, key as u32, &flows[key])).expect("valid");
            }
            let mut told = Told::default();
            for _ in 0..10 {
                engine.iterate();
                told.take(&mut engine);
                fits(&engine)?;
            }
            prop_assert!(told.settle(&mut engine));
            compare(&engine, &exact, 0..flows.len() as u32)?;
            told.compare(&exact)?;
        }
    }

    /// Starts, ends, failures and repairs in any order end at the reference's fixed point.
    #[test]
    fn churn_ends_at_the_references_optimum(
        flows in sketches(24, 120),
        ended in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        cut in any::<prop::sample::Index>(),
    ) {
        let topology = two_tiers(4, 6, 3);
        let mut exact = reference(&topology);
        let link = cut.index(topology.links().len()) as u32;
        let events = |flows: &[Sketch]| {
            let mut events = Vec::new();
            for (key, flow) in (0..).zip(flows) {
                events.push(start(&topology, key, flow));
                if key % 7 == 3 {
                    events.push(EngineEvent::Capacity { link, capacity_bps: 0.0 });
                } else if key % 7 == 5 {
                    events.push(EngineEvent::Capacity { link, capacity_bps: 4e9 });
                }
            }
            events.push(EngineEvent::Capacity { link, capacity_bps: 3e9 });
            for index in &ended {
                events.push(EngineEvent::End(FlowNumber::first(index.index(flows.len()) as u32)));
            }
            events
        };
        for event in events(&flows) {
            let _ = exact.apply(event);
        }
        prop_assume!(settle(&mut exact));
        for (blocks, workers) in [(1, 1), (4, 2), (4, 5)] {
            let mut engine = parallel(&topology, blocks, workers, Simd::best());
            for event in events(&flows) {
                let _ = engine.apply(event);
                engine.iterate();
                fits(&engine)?;
            }
            prop_assert!(settle(&mut engine));
            prop_assert_eq!(engine.flow_count(), exact.flow_count());
            compare(&engine, &exact, 0..flows.len() as u32)?;
        }
    }
}

/// Starts the same flows in both engines, from hosts that are `stride` apart.
fn start_both(
    topology: &Topology,
    mut engines: [&mut dyn RateEngine; 2],
    keys: std::ops::Range<u32>,
    stride: u32,
) {
    let hosts = topology.hosts().len() as u32;
    for key in keys {
        let sketch = Sketch {
            source: key * stride % hosts,
            destination: (key * stride + 1 + key * key % (hosts - 1)) % hosts,
            hash: key.wrapping_mul(0x9e37_79b1),
            weight: 1.0,
            class: 0,
            demand_bps: f64::INFINITY,
        };
        for engine in &mut engines {
            engine.apply(start(topology, key, &sketch)).expect("valid");
        }
    }
}

#[test]
fn wide_racks_and_many_spines() {
    for (hosts, spines) in [(60, 4), (5, 20), (60, 16)] {
        let topology = two_tiers(4, hosts, spines);
        let mut exact = reference(&topology);
        let mut engine = parallel(&topology, 2, 2, Simd::best());
        start_both(&topology, [&mut exact, &mut engine], 0..600, 7);
        assert!(settle(&mut exact) && settle(&mut engine));
        compare(&engine, &exact, 0..600).expect("the same");
    }
}

/// Three tiers: pods that are whole blocks and pods that are cut, racks with two tables, core links
/// beyond a pod's table. Rates are the reference's, and all other flows stand in rows.
#[test]
fn three_tiers_are_the_same_problem() {
    let of = |racks_per_pod, hosts_per_rack, aggs_per_pod, cores_per_agg| ThreeTierClos {
        pods: 2,
        racks_per_pod,
        hosts_per_rack,
        aggs_per_pod,
        cores: aggs_per_pod * cores_per_agg,
        ..ThreeTierClos::default()
    };
    let shapes = [
        (ThreeTierClos::default(), 2, true),
        (of(2, 4, 2, 4), 4, true),
        (of(4, 3, 4, 3), 8, true),
        (of(2, 60, 3, 2), 1, true),
        (of(2, 4, 2, 6), 2, false),
        (of(2, 4, 17, 1), 2, false),
    ];
    for (shape, blocks, all_in_rows) in shapes {
        let topology = shape.build().expect("valid");
        let mut exact = reference(&topology);
        let mut engine = parallel(&topology, blocks, 2.min(blocks as usize), Simd::best());
        start_both(&topology, [&mut exact, &mut engine], 0..400, 5);
        assert!(settle(&mut exact) && settle(&mut engine));
        compare(&engine, &exact, 0..400).expect("the same");
        assert_eq!(
            engine.flows_in_rows() == 400,
            all_in_rows,
            "{blocks} blocks"
        );
    }
}

/// Flows between the hosts of a single switch have no fabric link.
#[test]
fn flows_without_a_fabric_link_are_told_their_shares() {
    let switch = BigSwitch {
        racks: 4,
        ..BigSwitch::default()
    };
    let topology = switch.build().expect("valid");
    for mut engine in engines(&topology) {
        let mut exact = reference(&topology);
        start_both(&topology, [&mut exact, &mut engine], 0..40, 1);
        assert!(settle(&mut exact));
        let mut told = Told::default();
        assert!(told.settle(&mut engine));
        told.compare(&exact).expect("the shares are told");
    }
}

/// Saturation prices follow the capacities of core links: a lone flow has what the least of its
/// links has.
#[test]
fn a_lone_flow_over_the_cores_has_its_path_to_itself() {
    let topology = ThreeTierClos::default().build().expect("valid");
    let derating = derating(&config());
    for simd in Simd::available() {
        let mut engine = parallel(&topology, 2, 2, simd);
        let sketch = Sketch {
            source: 0,
            destination: topology.hosts().len() as u32 - 1,
            hash: 7,
            weight: 1.0,
            class: 0,
            demand_bps: f64::INFINITY,
        };
        engine.apply(start(&topology, 0, &sketch)).expect("valid");
        assert_eq!(engine.flows_in_rows(), 1);
        let path = path(&topology, 0, sketch.destination, sketch.hash);
        assert_eq!(path.len(), 6);
        for (link, capacity_bps) in [(path[2], 3e9), (path[3], 2e9), (path[2], 1e9)] {
            engine
                .apply(EngineEvent::Capacity { link, capacity_bps })
                .expect("valid");
            assert!(settle(&mut engine));
            let (rate, most) = (
                engine.rate_bps(FlowNumber::first(0)),
                capacity_bps * derating,
            );
            assert!(
                rate.is_some_and(|rate| (rate / most - 1.0).abs() < TOLERANCE),
                "{rate:?} for {most}"
            );
        }
    }
}

/// A rate is notified in the iteration after the start, and again only beyond the threshold.
#[test]
fn starts_have_rates_in_the_next_iteration() {
    let topology = two_tiers(4, 6, 2);
    let mut engine = parallel(&topology, 2, 2, Simd::best());
    for key in 0..40u32 {
        let sketch = Sketch {
            source: key % 24,
            destination: (key + 7) % 24,
            hash: key,
            weight: 1.0,
            class: (key % 5 == 4).into(),
            demand_bps: f64::INFINITY,
        };
        engine.apply(start(&topology, key, &sketch)).expect("valid");
        engine.iterate();
        let mut notified = false;
        engine.drain_updates(&mut |update| notified |= update.number == FlowNumber::first(key));
        assert!(notified, "flow {key}");
    }
    assert!(settle(&mut engine));
    engine.drain_updates(&mut |_| {});
    engine.iterate();
    let mut notified = 0;
    engine.drain_updates(&mut |_| notified += 1);
    assert_eq!(notified, 0, "nothing moves any more");
}

/// Prices are corrected for events before rates are notified. Without that, an iteration has an
/// excess of a quarter after the start, and of the whole link after its capacity is halved.
#[test]
fn prices_are_corrected_for_starts_ends_and_capacities_before_the_iteration() {
    let topology = two_tiers(4, 6, 2);
    let downlink = topology.host_downlink(HostId(0)).0;
    let capacity_bps = capacities(&topology)[downlink as usize];
    for (blocks, workers) in [(1, 1), (2, 2)] {
        let mut engine = parallel(&topology, blocks, workers, Simd::best());
        let sender = |source: u32| Sketch {
            source,
            destination: 0,
            hash: source,
            weight: 1.0,
            class: 0,
            demand_bps: f64::INFINITY,
        };
        let spec = |source: u32| start(&topology, source, &sender(source));
        for source in [7, 8, 13, 14] {
            engine.apply(spec(source)).expect("valid");
        }
        assert!(settle(&mut engine));
        let price = |engine: &mut ParallelEngine, event, what| {
            // The correction alone, without any iteration, has to find the price of the optimum.
            let exact = {
                engine.apply(event).expect("valid");
                engine.update_rows();
                engine.flows.correct_prices(&engine.shared, false);
                engine.prices()[downlink as usize]
            };
            let report = engine.iterate();
            assert!(report.max_overload < 1.01, "{what}: {report:?}");
            assert!(settle(engine));
            let rest = engine.prices()[downlink as usize];
            assert!(
                (exact / rest - 1.0).abs() < 0.01,
                "{what}: {exact} for {rest}"
            );
        };
        price(&mut engine, spec(19), "a start");
        price(
            &mut engine,
            EngineEvent::End(FlowNumber::first(7)),
            "an end",
        );
        let halved = EngineEvent::Capacity {
            link: downlink,
            capacity_bps: capacity_bps / 2.0,
        };
        price(&mut engine, halved, "a capacity");
    }
}

/// A flow that comes and goes between two iterations leaves no trace in the prices, whatever its
/// weight. Single precision does not hold the weight 0.1 exactly.
#[test]
fn a_flow_that_comes_and_goes_between_two_iterations_moves_no_price() {
    let topology = two_tiers(4, 6, 2);
    let mut engine = parallel(&topology, 1, 1, Simd::best());
    let spec = |source: u32, weight: f64| {
        let sketch = Sketch {
            source,
            destination: 0,
            hash: source,
            weight,
            class: 0,
            demand_bps: f64::INFINITY,
        };
        start(&topology, source, &sketch)
    };
    for source in [7, 8, 13, 14] {
        engine.apply(spec(source, 0.1)).expect("valid");
    }
    assert!(settle(&mut engine));
    let before = engine.prices();
    engine.apply(spec(19, 0.1)).expect("valid");
    engine
        .apply(EngineEvent::End(FlowNumber::first(19)))
        .expect("valid");
    engine.update_rows();
    engine.flows.correct_prices(&engine.shared, false);
    for (link, (after, before)) in engine.prices().iter().zip(&before).enumerate() {
        assert!(
            (after - before).abs() <= 1e-5 * before.abs(),
            "link {link}: {after}, was {before}"
        );
    }
}

/// Rows are sorted and compacted while many flows come and go.
#[test]
fn many_rows_survive_churn() {
    let topology = two_tiers(8, 16, 8);
    let mut exact = reference(&topology);
    for simd in Simd::available() {
        let mut engine = parallel(&topology, 2, 3, simd);
        let mut known = Vec::new();
        for key in 0..6_000u32 {
            // Spread over hosts by a multiplicative hash, so the test needs no generator.
            let mixed = key.wrapping_mul(0x9e37_79b1);
            let sketch = Sketch {
                source: mixed >> 8 & 127,
                destination: (mixed >> 8 & 127) ^ (1 + (mixed >> 16) % 127),
                hash: mixed,
                weight: if key % 11 == 0 { 2.0 } else { 1.0 },
                class: 0,
                demand_bps: f64::INFINITY,
            };
            engine.apply(start(&topology, key, &sketch)).expect("valid");
            known.push((key, sketch));
            if key % 3 == 0 {
                let at = (mixed >> 4) as usize % known.len();
                let (gone, _) = known.swap_remove(at);
                engine
                    .apply(EngineEvent::End(FlowNumber::first(gone)))
                    .expect("known");
            }
            if key % 50 == 0 {
                engine.iterate();
                fits(&engine).expect("it fits");
            }
        }
        exact
            .apply(EngineEvent::Reset {
                capacities: capacities(&topology),
                topology: None,
            })
            .expect("valid");
        for (key, sketch) in &known {
            exact.apply(start(&topology, *key, sketch)).expect("valid");
        }
        assert!(settle(&mut exact) && settle(&mut engine));
        assert_eq!(engine.flows_in_rows(), known.len());
        compare(&engine, &exact, 0..6_000).expect("the same");
    }
}

/// Neither prefetching nor the place of delivered rates changes any rate.
#[test]
fn many_flows_get_the_rates_of_few() {
    let three_tiers = ThreeTierClos {
        pods: 2,
        racks_per_pod: 2,
        hosts_per_rack: 8,
        aggs_per_pod: 4,
        cores: 8,
        ..ThreeTierClos::default()
    };
    for topology in [two_tiers(4, 8, 4), three_tiers.build().expect("valid")] {
        for weight in [1.0, 2.0] {
            let rates = [usize::MAX, 0].map(|flows_beyond_cache| {
                let mut engine = parallel(&topology, 2, 1, Simd::best());
                // The limit is lowered in place: a million flows would take minutes.
                let shared = Arc::get_mut(&mut engine.shared).expect("no other worker");
                shared.flows_beyond_cache = flows_beyond_cache;
                for key in 0..400u32 {
                    let mixed = key.wrapping_mul(0x9e37_79b1) >> 4;
                    let sketch = Sketch {
                        source: mixed & 31,
                        destination: (mixed & 31) ^ (1 + (mixed >> 8) % 31),
                        hash: mixed,
                        weight: if key.is_multiple_of(5) { weight } else { 1.0 },
                        class: 0,
                        demand_bps: f64::INFINITY,
                    };
                    let event = start(&topology, key, &sketch);
                    engine.apply(event).expect("valid");
                    if key % 40 == 0 {
                        engine.iterate();
                    }
                }
                assert!(settle(&mut engine));
                engine.rates_bps()
            });
            assert_eq!(rates[0].len(), 400);
            assert_eq!(rates[0], rates[1]);
        }
    }
}

/// First rates are close to those of the following iteration, and asking for them does not change
/// it.
#[test]
fn first_rates_come_before_the_iteration() {
    let topology = two_tiers(4, 8, 4);
    let sketch = |key: u32| {
        let mixed = key.wrapping_mul(0x9e37_79b1) >> 4;
        Sketch {
            source: mixed & 31,
            destination: (mixed & 31) ^ (1 + (mixed >> 8) % 31),
            hash: mixed,
            weight: 1.0,
            class: 0,
            demand_bps: f64::INFINITY,
        }
    };
    let mut engines = [(); 2].map(|()| parallel(&topology, 2, 2, Simd::best()));
    let apply = |engines: &mut [ParallelEngine; 2], event: &EngineEvent| {
        for engine in engines {
            engine.apply(event.clone()).expect("valid");
        }
    };
    for key in 0..1_000 {
        apply(&mut engines, &start(&topology, key, &sketch(key)));
    }
    assert!(engines.iter_mut().all(|engine| settle(engine)));
    let mut notified = Vec::new();
    engines[0].first_rates(&mut |update| notified.push(update));
    assert_eq!(notified, [], "nothing has come");
    for round in 0..20 {
        let first = 1_000 + 3 * round;
        for key in first..first + 3 {
            apply(
                &mut engines,
                &EngineEvent::End(FlowNumber::first(key - 1_000)),
            );
            apply(&mut engines, &start(&topology, key, &sketch(key)));
        }
        let mut early = Vec::new();
        engines[0].first_rates(&mut |update| early.push(update));
        let mut keys: Vec<u32> = early.iter().map(|update| update.number.index()).collect();
        keys.sort_unstable();
        assert_eq!(keys, [first, first + 1, first + 2]);
        let notified = engines.each_mut().map(|engine| {
            engine.iterate();
            let mut notified = Vec::new();
            engine.drain_updates(&mut |update| notified.push(update));
            notified
        });
        assert_eq!(
            notified[0], notified[1],
            "the iteration is the same without"
        );
        for early in early {
            let same = |update: &&RateUpdate| update.number == early.number;
            let notified = notified[0]
                .iter()
                .find(same)
                .expect("the iteration tells it too");
            let off = early.rate_bps / notified.rate_bps - 1.0;
            assert!(
                off.abs() < 0.05,
                "{early:?} for {notified:?} in round {round}"
            );
        }
    }
}

/// A scan finds every flow once, in rows and on the scalar path, whatever the number of flows per
/// step.
#[test]
fn a_scan_in_steps_finds_what_the_flows_have() {
    let topology = two_tiers(4, 6, 2);
    let sketch = |key: u32| Sketch {
        source: key % 24,
        destination: (key * 7 + 1) % 24,
        hash: key,
        weight: f64::from(1 + key % 3),
        class: u8::from(key.is_multiple_of(5)),
        demand_bps: f64::INFINITY,
    };
    for mut engine in engines(&topology) {
        for key in 0..100 {
            let event = start(&topology, key, &sketch(key));
            engine.apply(event).expect("valid");
        }
        // Free numbers in between, which a scan has to skip.
        for key in [3, 40, 99] {
            engine
                .apply(EngineEvent::End(FlowNumber::first(key)))
                .expect("known");
        }
        settle(&mut engine);
        let rates = engine.rates_bps();
        let score: f64 = rates.iter().map(|(_, rate_bps)| rate_bps.log2()).sum();
        let mut loads_bps = Vec::new();
        engine.link_loads(&mut loads_bps);
        for flows in [1, 7, 97, 1_000] {
            let mut scan = Scan::default();
            // Twice: a completed scan restarts.
            for _ in 0..2 {
                let mut steps = 1;
                while !engine.scan(&mut scan, flows) {
                    steps += 1;
                }
                assert!(steps >= rates.len() / flows);
                assert_eq!(scan.optimality, engine.optimality());
                assert_eq!(scan.optimality.rated_flows, rates.len());
                assert!(scan.optimality.relative_duality_gap < 1e-2);
                let found = scan.optimality.proportional_fairness_score;
                assert!((found / score - 1.0).abs() < 1e-9, "{found} for {score}");
                for (found, load_bps) in scan.loads_bps.iter().zip(&loads_bps) {
                    assert!((found - load_bps).abs() <= 1e-9 * load_bps);
                }
            }
        }
    }
}
