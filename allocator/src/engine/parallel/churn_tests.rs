//! Iterations that each follow events: notified rates fit all the same.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::sync::lock;
use super::tests::{Sketch, capacities, parallel, settle, start, two_tiers};
use super::{FLOWS_PER_COMPACTION, ParallelEngine, Simd};
use crate::engine::{EngineEvent, FlowNumber, LinkPath, RateEngine};

const HOSTS: u32 = 24;
/// Rounding of sums in single precision.
const ROUNDING: f64 = 1e-5;

/// Flows and rates as endpoints know them.
#[derive(Default)]
struct Endpoints {
    flows: BTreeMap<u32, (LinkPath, Option<f64>)>,
    /// In the order in which they started.
    keys: Vec<u32>,
}

impl Endpoints {
    /// Checks that every flow has a rate, and that no link is over-allocated. Capacities are
    /// derated by the threshold, within which rates may drift.
    fn check(&self, capacities_bps: &[f64]) -> Result<(), TestCaseError> {
        let mut loads = vec![0.0; capacities_bps.len()];
        for (key, (links, rate)) in &self.flows {
            let rate = rate.ok_or_else(|| TestCaseError::fail(format!("flow {key} has none")))?;
            for &link in links {
                loads[link as usize] += rate;
            }
        }
        for (link, (load, capacity)) in loads.iter().zip(capacities_bps).enumerate() {
            prop_assert!(
                *load <= capacity * (1.0 + ROUNDING),
                "link {link}: {load} of {capacity}"
            );
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Flows of all kinds start, end, move and restart, and links fail and change, between any two
    /// iterations. Each flow has a rate after the iteration that follows its start, and all rates
    /// fit, with and without compaction meanwhile.
    #[test]
    fn rates_notified_between_events_fit(
        seed in any::<u64>(),
        spines in 1u32..5,
        events in 1usize..40,
        (blocks, workers) in prop::sample::select(vec![(1, 1), (2, 2), (4, 3)]),
        simd in prop::sample::select(Simd::available()),
        capped in prop::bool::ANY,
        compacts in prop::bool::ANY,
    ) {
        let topology = two_tiers(4, 6, spines);
        let mut capacities_bps = capacities(&topology);
        let links = capacities_bps.len() as u32;
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut engine = parallel(&topology, blocks, workers, simd);
        if compacts {
            engine.compaction.flows_between = 0;
        }
        let mut endpoints = Endpoints::default();
        let mut next = 0;
        for _ in 0..40 {
            for _ in 0..random.random_range(0..events) {
                let sketch = Sketch {
                    source: random.random_range(0..HOSTS),
                    destination: random.random_range(0..HOSTS),
                    hash: random.random(),
                    weight: [1.0, 1.0, 0.1, 30.0][random.random_range(0..4)],
                    class: if capped { random.random_range(0..2) } else { 0 },
                    demand_bps: if capped { 2e9 } else { f64::INFINITY },
                };
                if sketch.source == sketch.destination {
                    continue;
                }
                let pick = endpoints.keys.len() * random.random_range(0..1_000) / 1_000;
                let known = endpoints.keys.get(pick).copied();
                let event = match (random.random_range(0..20), known) {
                    (0, _) => {
                        let link = random.random_range(0..links);
                        let capacity_bps = [0.0, 1e9, 4e9][random.random_range(0..3)];
                        capacities_bps[link as usize] = capacity_bps;
                        EngineEvent::Capacity { link, capacity_bps }
                    }
                    (1..8, Some(key)) => {
                        endpoints.keys.remove(pick);
                        endpoints.flows.remove(&key);
                        EngineEvent::End(FlowNumber::first(key))
                    }
                    (kind, known) => {
                        let key = match (kind, known) {
                            // A known flow restarts, or is rerouted.
                            (8 | 9, Some(key)) => key,
                            _ => {
                                next += 1;
                                endpoints.keys.push(next);
                                next
                            }
                        };
                        let EngineEvent::Start(spec) = start(&topology, key, &sketch) else {
                            unreachable!("that is what it makes");
                        };
                        let known = endpoints.flows.remove(&key).and_then(|(_, rate)| rate);
                        // A rerouted flow keeps its rate until the iteration; a restarted one has
                        // none.
                        let moves = kind == 9 && known.is_some();
                        endpoints.flows.insert(key, (spec.links.clone(), known.filter(|_| moves)));
                        if moves {
                            EngineEvent::Reroute { number: FlowNumber::first(key), links: spec.links }
                        } else {
                            EngineEvent::Start(spec)
                        }
                    }
                };
                engine.apply(event).expect("valid");
            }
            engine.iterate();
            engine.drain_updates(&mut |update| {
                if let Some((_, rate)) = endpoints.flows.get_mut(&update.number.index()) {
                    *rate = Some(update.rate_bps);
                }
            });
            endpoints.check(&capacities_bps)?;
        }
    }
}

/// Rows of either side that hold the flows of an engine.
fn rows(engine: &ParallelEngine) -> [usize; 2] {
    let mut rows = [0; 2];
    for block in &engine.shared.flow_blocks {
        let block = lock(block);
        let pairs = &block.pairs;
        for (rows, sides) in rows
            .iter_mut()
            .zip([[&block.up, &pairs.up], [&block.down, &pairs.down]])
        {
            for side in sides {
                *rows += (0..side.tables())
                    .map(|table| side.rows_of(table).len())
                    .sum::<usize>();
            }
        }
    }
    rows
}

/// Under steady churn, flows need at most a quarter more rows than the same flows in an engine that
/// had time to compact. The bound is the space that makes a table underfilled. It holds with
/// compaction in each iteration, and at the default pace.
#[test]
fn rows_stay_full_under_churn() {
    const RACKS: u32 = 8;
    const RACK_HOSTS: u32 = 24;
    const FLOWS: u32 = 4_000;
    const TURNS: u32 = 6;
    const EVENTS: u32 = 40;
    let topology = two_tiers(RACKS, RACK_HOSTS, 8);
    let flow = |key: u32| {
        let mut random = Pcg64Mcg::seed_from_u64(key.into());
        let hosts = RACKS * RACK_HOSTS;
        let source = random.random_range(0..hosts);
        let beyond = random.random_range(RACK_HOSTS..hosts - RACK_HOSTS);
        let sketch = Sketch {
            source,
            destination: (source + beyond) % hosts,
            hash: random.random(),
            weight: 1.0,
            class: 0,
            demand_bps: f64::INFINITY,
        };
        start(&topology, key, &sketch)
    };
    let last = FLOWS * TURNS;
    let mut rested = parallel(&topology, 2, 1, Simd::best());
    for key in last..last + FLOWS {
        rested.apply(flow(key)).expect("valid");
    }
    assert!(settle(&mut rested));
    let [up, down] = rows(&rested);
    for flows_per_compaction in [0, FLOWS_PER_COMPACTION] {
        let mut engine = parallel(&topology, 2, 1, Simd::best());
        engine.compaction.flows_between = flows_per_compaction;
        for key in 0..FLOWS {
            engine.apply(flow(key)).expect("valid");
        }
        for key in 0..last {
            engine
                .apply(EngineEvent::End(FlowNumber::first(key)))
                .expect("it is there");
            engine.apply(flow(key + FLOWS)).expect("valid");
            if key % EVENTS == EVENTS - 1 {
                engine.iterate();
                engine.drain_updates(&mut |_| ());
            }
        }
        let [busy_up, busy_down] = rows(&engine);
        assert!(4 * busy_up <= 5 * up, "{busy_up} upward rows for {up}");
        assert!(
            4 * busy_down <= 5 * down,
            "{busy_down} downward rows for {down}"
        );
    }
}
