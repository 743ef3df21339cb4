//! The engine's optimisers find the optimum of static problems. The one that runs by default keeps
//! links within their capacities and returns to the optimum while flows start and end.

use rand::RngExt;
use ratewright_allocator::engine::FlowSpec;
use ratewright_allocator::num::{FNorm, FlowView, Ned, Normalizer, Optimizer, SafeguardedNed};

use crate::num_support::{
    Instance, capacities_bps, flow, fullest, largest_error, mixed_classes, mixed_instance, optimum,
    random_path, rng, three_tiers,
};

/// Runs each optimiser for its number of iterations, and checks its tolerance. The optimisers for
/// comparison are held to the same in `benches/tests/behaviour/optimizers.rs`.
#[test]
fn every_optimiser_finds_the_optimum() {
    for (seed, kinds) in [(1, 1), (2, 1), (3, 3), (4, 3)] {
        let instance = mixed_instance(seed, 60, kinds);
        let (truth, _) = optimum(&instance);
        let links = instance.capacities.len();
        let all: [(&str, Box<dyn Optimizer>, u32); 2] = [
            (
                "safeguarded",
                Box::new(SafeguardedNed::new(0.4, links)),
                500,
            ),
            // With γ = 0.4 plain NED fails on some such instances (see `num::safeguarded`).
            ("NED", Box::new(Ned::new(0.2, links)), 5_000),
        ];
        for (name, mut optimizer, iterations) in all {
            let mut rates = vec![0.0; truth.len()];
            for _ in 0..iterations {
                optimizer.iterate(&instance.problem(), &mut rates);
            }
            let error = largest_error(&rates, &truth);
            println!("{name}, instance {seed}: {error:.1e}");
            assert!(error < 1e-4, "{name}, instance {seed}: {error}");
        }
    }
}

fn view(instance: &Instance, flow: usize) -> FlowView<'_> {
    let class = instance.classes.get(instance.class_ids[flow]);
    FlowView {
        path: &instance.paths[flow],
        utility: &class.expect("a defined class").utility,
        weight: instance.weights[flow],
        limit: instance.limits[flow],
    }
}

/// Replaces `flows` by those of `fresh`, and reports the events to the optimiser.
fn churn(
    now: &mut Instance,
    fresh: &Instance,
    optimizer: &mut dyn Optimizer,
    flows: impl Iterator<Item = usize>,
) {
    for flow in flows {
        // The end comes with the old path, before the new flow takes the index.
        optimizer.flow_ended(&view(now, flow));
        now.paths[flow].clone_from(&fresh.paths[flow]);
        now.class_ids[flow] = fresh.class_ids[flow];
        now.weights[flow] = fresh.weights[flow];
        now.limits[flow] = fresh.limits[flow];
        optimizer.flow_started(&view(now, flow));
    }
}

/// No link is over-allocated after F-NORM under churn of one flow or a quarter of all per
/// iteration. After the churn, the rates converge to the optimum.
#[test]
fn events_never_over_allocate_and_never_lead_astray() {
    for (kinds, replaced) in [(1, 1), (1, 16), (3, 1), (3, 16)] {
        let mut now = mixed_instance(20, 64, kinds);
        let mut optimizer = SafeguardedNed::new(0.4, now.capacities.len());
        let mut rng = rng(21);
        let (mut rates, mut normalized) = (vec![0.0; 64], vec![0.0; 64]);
        for round in 0..300 {
            let fresh = mixed_instance(1_000 + round, 64, kinds);
            let first = rng.random_range(0..64);
            // Consecutive indices without repetition: a flow ends once per round.
            let flows = (first..first + replaced).map(|f| f % 64);
            churn(&mut now, &fresh, &mut optimizer, flows);
            optimizer.iterate(&now.problem(), &mut rates);
            FNorm::default().normalize(&now.problem(), &rates, &mut normalized);
            // F-NORM's guarantee holds at any prices; the margin is rounding.
            assert!(fullest(&now.problem(), &normalized) <= 1.0 + 1e-9);
            let bad = |p: &f64| !p.is_finite() || *p < 0.0;
            assert!(!optimizer.prices().iter().any(bad), "round {round}");
        }
        for _ in 0..300 {
            optimizer.iterate(&now.problem(), &mut rates);
        }
        let error = largest_error(&rates, &optimum(&now).0);
        assert!(
            error < 1e-3,
            "{kinds} utilities, {replaced} replaced: {error}"
        );
    }
}

/// Prices do not depend on the order of events between two iterations, and hardly on flows that
/// started and ended between them.
#[test]
fn the_order_of_events_does_not_matter() {
    let settle = |order: &[usize], visitor: bool| {
        let mut now = mixed_instance(30, 64, 1);
        let fresh = mixed_instance(31, 64, 1);
        let mut optimizer = SafeguardedNed::new(0.4, now.capacities.len());
        let mut rates = vec![0.0; 64];
        for _ in 0..200 {
            optimizer.iterate(&now.problem(), &mut rates);
        }
        churn(&mut now, &fresh, &mut optimizer, order.iter().copied());
        if visitor {
            // A flow of other links, which no sum has: its end must find its start among the
            // newest.
            let stranger = mixed_instance(32, 64, 1);
            optimizer.flow_started(&view(&stranger, 0));
            optimizer.flow_ended(&view(&stranger, 0));
        }
        optimizer.iterate(&now.problem(), &mut rates);
        rates
    };
    let forth = settle(&[1, 2, 3, 40, 41], false);
    let back = settle(&[41, 40, 3, 2, 1], false);
    // Sums in another order differ by rounding only.
    assert!(largest_error(&forth, &back) < 1e-12);
    let visited = settle(&[1, 2, 3, 40, 41], true);
    assert!(
        largest_error(&forth, &visited) < 0.02,
        "a visitor leaves little behind"
    );
}

/// Price correction brings the first rates after an event closer to the new optimum. The three-tier
/// network has links of one flow, on which an error lasts longest.
#[test]
fn events_are_answered_at_once() {
    let topology = three_tiers(20_000_000_000);
    let capacities = capacities_bps(&topology);
    let mut rng = rng(40);
    let specs: Vec<FlowSpec> = (0..128)
        .map(|key| flow(key, &random_path(&topology, &mut rng)))
        .collect();
    let before = Instance::new(mixed_classes(), &capacities, &specs);
    let others: Vec<FlowSpec> = (0..128)
        .map(|key| flow(key, &random_path(&topology, &mut rng)))
        .collect();
    let fresh = Instance::new(mixed_classes(), &capacities, &others);
    let links = capacities.len();
    let first_error = |mut optimizer: SafeguardedNed| {
        let mut now = Instance::new(mixed_classes(), &capacities, &specs);
        let (mut rates, mut normalized) = (vec![0.0; 128], vec![0.0; 128]);
        // Without events, every rule must converge from the prices that churn has left.
        for _ in 0..300 {
            optimizer.iterate(&before.problem(), &mut rates);
        }
        churn(&mut now, &fresh, &mut optimizer, 0..6);
        optimizer.iterate(&now.problem(), &mut rates);
        FNorm::default().normalize(&now.problem(), &rates, &mut normalized);
        let (truth, _) = optimum(&now);
        let sum: f64 = normalized
            .iter()
            .zip(&truth)
            .map(|(x, t)| (x / t - 1.0).abs())
            .sum();
        sum / 128.0
    };
    let with = first_error(SafeguardedNed::new(0.4, links));
    let one_pass = first_error(SafeguardedNed::with_inner_passes(0.4, 0, links));
    let without = first_error(SafeguardedNed::without_correction(0.4, links));
    println!(
        "mean error of the first rates: {with:.4}, one pass {one_pass:.4}, without {without:.4}"
    );
    assert!(
        one_pass < 0.7 * without && with < one_pass,
        "{with} {one_pass} {without}"
    );
}
