//! Iterations of which each follows events: what is told fits all the same.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::Simd;
use super::tests::{Sketch, capacities, parallel, start, two_tiers};
use crate::engine::{EngineEvent, FlowKey, LinkPath, RateEngine};

const HOSTS: u32 = 24;
/// Rounding of sums in single precision.
const ROUNDING: f64 = 1e-5;

/// What endpoints know.
#[derive(Default)]
struct Told {
    flows: BTreeMap<u64, (LinkPath, Option<f64>)>,
    /// In the order in which they started.
    keys: Vec<u64>,
}

impl Told {
    /// Every flow has a rate, and no link is asked for more than it has: the threshold that rates may
    /// drift by is taken off its capacity.
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

    /// Flows of all kinds start, end, move and come again, and links fail and change, between any two
    /// iterations: each flow has a rate after the iteration that follows its start, and all rates fit.
    #[test]
    fn what_is_told_between_events_fits(
        seed in any::<u64>(),
        spines in 1u32..5,
        events in 1usize..40,
        (blocks, workers) in prop::sample::select(vec![(1, 1), (2, 2), (4, 3)]),
        loose in prop::bool::ANY,
    ) {
        let topology = two_tiers(4, 6, spines);
        let mut capacities_bps = capacities(&topology);
        let links = capacities_bps.len() as u32;
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut engine = parallel(&topology, blocks, workers, Simd::best());
        let mut told = Told::default();
        let mut next = 0;
        for _ in 0..40 {
            for _ in 0..random.random_range(0..events) {
                let sketch = Sketch {
                    source: random.random_range(0..HOSTS),
                    destination: random.random_range(0..HOSTS),
                    hash: random.random(),
                    weight: [1.0, 1.0, 0.1, 30.0][random.random_range(0..4)],
                    class: if loose { random.random_range(0..2) } else { 0 },
                    demand_bps: if loose { 2e9 } else { f64::INFINITY },
                };
                if sketch.source == sketch.destination {
                    continue;
                }
                let pick = told.keys.len() * random.random_range(0..1_000) / 1_000;
                let known = told.keys.get(pick).copied();
                let event = match (random.random_range(0..20), known) {
                    (0, _) => {
                        let link = random.random_range(0..links);
                        let capacity_bps = [0.0, 1e9, 4e9][random.random_range(0..3)];
                        capacities_bps[link as usize] = capacity_bps;
                        EngineEvent::Capacity { link, capacity_bps }
                    }
                    (1..8, Some(key)) => {
                        told.keys.remove(pick);
                        told.flows.remove(&key);
                        EngineEvent::End(FlowKey(key))
                    }
                    (kind, known) => {
                        let key = match (kind, known) {
                            // The same flow again, or on another path.
                            (8 | 9, Some(key)) => key,
                            _ => {
                                next += 1;
                                told.keys.push(next);
                                next
                            }
                        };
                        let EngineEvent::Start(spec) = start(&topology, key, &sketch) else {
                            unreachable!("that is what it makes");
                        };
                        let known = told.flows.remove(&key).and_then(|(_, rate)| rate);
                        let moves = kind == 9 && known.is_some();
                        told.flows.insert(key, (spec.links.clone(), known.filter(|_| moves)));
                        if moves {
                            EngineEvent::Reroute { key: FlowKey(key), links: spec.links }
                        } else {
                            EngineEvent::Start(spec)
                        }
                    }
                };
                engine.apply(event).expect("valid");
            }
            engine.iterate();
            engine.drain_updates(&mut |update| {
                if let Some((_, rate)) = told.flows.get_mut(&update.key.0) {
                    *rate = Some(update.rate_bps);
                }
            });
            told.check(&capacities_bps)?;
        }
    }
}
