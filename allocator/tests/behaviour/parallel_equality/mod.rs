//! The parallel engine finds the rates of the f64 reference: for all blocks, workers and
//! instruction sets, in any order of arrival, under churn. At every iteration no link carries more
//! than its derated capacity, and every started flow has a rate.

mod script;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use ratewright_allocator::engine::parallel::{Layout, ParallelEngine, ParallelOptions, Simd};
use ratewright_allocator::engine::{FlowNumber, RateEngine, ReferenceEngine};
use ratewright_topology::Topology;

use self::script::{Book, EventScript, MICE_RESERVE, Order, capacities_bps, config, scripts};

/// Relative error of rates.
const TOLERANCE: f64 = 1e-3;
/// Rounding of single precision: relative, of a sum of some hundred rates; and in bit/s, for links
/// without capacity.
const ROUNDING: f64 = 1e-5;
const ROUNDING_BPS: f64 = 1.0;
/// Iterations until both engines have to rest.
const PATIENCE: usize = 20_000;
/// Scripts for every pair of blocks and workers, unless `PROPTEST_CASES` asks for another number.
const CASES: u32 = 8;

/// Blocks and workers: W up to B², and up to 4.
fn shapes() -> impl Iterator<Item = (u32, usize)> {
    [1u32, 2, 4, 8]
        .into_iter()
        .flat_map(|blocks| (1..=4.min(blocks as usize * blocks as usize)).map(move |w| (blocks, w)))
}

/// Makes one iteration, and checks that neither the true nor the notified rates over-use a link.
/// Returns whether the engine rests.
fn iterate(
    book: &mut Book<'_>,
    engine: &mut ParallelEngine,
    notified_bps: &mut BTreeMap<FlowNumber, f64>,
) -> Result<bool, TestCaseError> {
    let settled = engine.iterate().settled;
    let mut just_notified = BTreeSet::new();
    engine.drain_updates(&mut |update| {
        just_notified.insert(update.number);
        notified_bps.insert(update.number, update.rate_bps);
    });
    notified_bps.retain(|key, _| book.flows.contains_key(key));
    for (key, entry) in &mut book.flows {
        prop_assert!(
            !entry.new || just_notified.contains(key),
            "{key} started, or asked for more, and was not told a rate"
        );
        entry.new = false;
    }
    let rates = engine.rates_bps();
    prop_assert_eq!(rates.len(), book.flows.len());
    let threshold = config().threshold;
    let reserved = 1.0 - MICE_RESERVE;
    for (key, rate_bps) in &rates {
        let most = book.flows[key].demand_bps;
        prop_assert!(
            rate_bps.is_finite() && *rate_bps <= most * (1.0 + ROUNDING) + ROUNDING_BPS,
            "{key}: {rate_bps} bit/s of {most}"
        );
    }
    fits(book, &rates, reserved * (1.0 - threshold), "rates")?;
    let notified: Vec<_> = notified_bps
        .iter()
        .map(|(&key, &rate)| (key, rate))
        .collect();
    // A notified rate is within the threshold of the true one, so the derating covers the
    // difference.
    fits(book, &notified, reserved, "told rates")?;
    Ok(settled)
}

fn fits(
    book: &Book<'_>,
    rates: &[(FlowNumber, f64)],
    share: f64,
    what: &str,
) -> Result<(), TestCaseError> {
    let mut loads_bps = vec![0.0; book.capacities_bps.len()];
    for (key, rate_bps) in rates {
        for &link in &book.flows[key].links {
            loads_bps[link as usize] += rate_bps;
        }
    }
    for (link, (load, capacity)) in loads_bps.iter().zip(&book.capacities_bps).enumerate() {
        let most = capacity * share;
        prop_assert!(
            *load <= most * (1.0 + ROUNDING) + ROUNDING_BPS,
            "link {link}: {what} of {load} bit/s on {most}"
        );
    }
    Ok(())
}

/// Runs a script through both engines and compares them at rest.
fn agree(
    topology: &Topology,
    script: &EventScript,
    (blocks, workers): (u32, usize),
    simd: Simd,
) -> Result<(), TestCaseError> {
    let capacities = capacities_bps(topology);
    let mut exact = ReferenceEngine::new(config(), &capacities).expect("valid");
    let mut book = Book::new(topology);
    book.play(script, Order::Plain, &mut exact, |_, engine| {
        engine.iterate();
        Ok(())
    })?;
    let rests = (0..PATIENCE).any(|_| exact.iterate().settled);
    prop_assert!(rests, "the reference comes to rest");

    let options = ParallelOptions {
        workers,
        simd,
        ..ParallelOptions::default()
    };
    let layout = Layout::of(topology, blocks).expect("it can be cut so");
    let mut engine = ParallelEngine::new(config(), options, layout, &capacities).expect("valid");
    prop_assert_eq!(engine.simd(), simd);
    let mut book = Book::new(topology);
    let mut notified = BTreeMap::new();
    book.play(script, Order::Shuffled, &mut engine, |book, engine| {
        iterate(book, engine, &mut notified).map(drop)
    })?;
    let mut left = PATIENCE;
    while !iterate(&mut book, &mut engine, &mut notified)? {
        left -= 1;
        prop_assert!(left > 0, "the engine comes to rest");
    }
    iterate(&mut book, &mut engine, &mut notified)?;

    prop_assert_eq!(engine.flow_count(), exact.flow_count());
    for (key, ours) in engine.rates_bps() {
        let rate = exact.rate_bps(key);
        prop_assert!(
            rate.is_some_and(|rate| (ours - rate).abs() <= TOLERANCE * rate.max(ROUNDING_BPS)),
            "{key}: {ours} bit/s for {rate:?}"
        );
        // What it was told last is within the threshold of that.
        let told = notified[&key];
        let most = config().threshold * told + TOLERANCE * ours.max(ROUNDING_BPS);
        prop_assert!(
            (told - ours).abs() <= most,
            "{key}: told {told} bit/s for {ours}"
        );
    }
    Ok(())
}

/// Runs every shape on one instruction set. `RATEWRIGHT_SEED` repeats a failure.
fn every_shape(simd: Simd, topology: &Topology) {
    if !Simd::available().contains(&simd) {
        let name = simd.name();
        assert!(
            std::env::var_os("CI").is_none(),
            "this runner has no {name}, so nothing is shown of it; take one that has"
        );
        eprintln!("NOT SHOWN: this machine has no {name}");
        return;
    }
    let asked = std::env::var("PROPTEST_CASES");
    let cases = asked.map_or(CASES, |number| number.parse().expect("a number"));
    let asked = std::env::var("RATEWRIGHT_SEED");
    let seed = asked.map_or_else(
        |_| rand::random(),
        |seed| seed.parse::<u64>().expect("a number"),
    );
    for shape in shapes() {
        let runner_config = Config {
            cases,
            max_shrink_iters: 200,
            failure_persistence: None,
            ..Config::default()
        };
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let mut runner = TestRunner::new_with_rng(runner_config, rng);
        let hosts = topology.hosts().len() as u32;
        let outcome = runner.run(&scripts(hosts), |script| {
            agree(topology, &script, shape, simd)
        });
        if let Err(error) = outcome {
            let (blocks, workers) = shape;
            let reason = match error {
                TestError::Fail(reason, script) => format!("{reason}\n{script:?}"),
                TestError::Abort(reason) => reason.to_string(),
            };
            panic!(
                "RATEWRIGHT_SEED={seed}: {blocks} blocks, {workers} workers, {}: {reason}",
                simd.name()
            );
        }
    }
}

#[test]
fn two_tiers_scalar() {
    every_shape(Simd::Scalar, &script::two_tiers(3));
}

#[test]
fn two_tiers_avx2() {
    every_shape(Simd::Avx2, &script::two_tiers(3));
}

#[test]
fn two_tiers_avx512() {
    every_shape(Simd::Avx512, &script::two_tiers(3));
}

#[test]
fn three_tiers_scalar() {
    every_shape(Simd::Scalar, &script::three_tiers(2));
}

#[test]
fn three_tiers_avx2() {
    every_shape(Simd::Avx2, &script::three_tiers(2));
}

#[test]
fn three_tiers_avx512() {
    every_shape(Simd::Avx512, &script::three_tiers(2));
}
