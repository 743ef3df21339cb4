//! Every optimiser finds the optimum of static problems. The engine's optimiser keeps links within
//! their capacities and returns to the optimum while flows start and end.

use std::sync::Arc;

use rand::RngExt;
use ratewright_allocator::engine::FlowSpec;
use ratewright_allocator::num::utility::{AlphaFair, Class, ClassTable, Utility, UtilityKind};
use ratewright_allocator::num::{
    CoordinateDescent, ExactNewton, FNorm, Fgm, FlowView, Gradient, GradientRt, Ned, NedRt,
    NewtonLike, Normalizer, Optimizer, SafeguardedNed, optimality,
};

use crate::num_support::{
    Instance, capacities_bps, flow, fullest, largest_error, random_path, rng, three_tiers,
    two_tiers,
};

/// A user's utility: log(1 + 10 x).
#[derive(Debug)]
struct ShiftedLog;

impl Utility for ShiftedLog {
    fn value(&self, rate: f64) -> f64 {
        (10.0 * rate).ln_1p()
    }
    fn marginal(&self, rate: f64) -> f64 {
        10.0 / (1.0 + 10.0 * rate)
    }
    fn rate_at(&self, price: f64) -> f64 {
        (1.0 / price - 0.1).max(0.0)
    }
    fn rate_slope_at(&self, price: f64) -> f64 {
        if price < 10.0 {
            -1.0 / (price * price)
        } else {
            0.0
        }
    }
}

/// Classes 0, 1, 2: log, α = 2, a user's utility.
fn classes() -> ClassTable {
    let class = |utility| Class {
        utility,
        ..Class::default()
    };
    let alpha = AlphaFair::new(2.0).expect("a valid α");
    ClassTable::new([
        (0, Class::default()),
        (1, class(UtilityKind::Alpha(alpha))),
        (2, class(UtilityKind::Custom(Arc::new(ShiftedLog)))),
    ])
    .expect("valid classes")
}

/// Makes random flows of classes 0 to `kinds` − 1 over four racks of four hosts.
fn instance(seed: u64, flows: u64, kinds: u8) -> Instance {
    let topology = two_tiers(15_000_000_000);
    let mut rng = rng(seed);
    let specs: Vec<FlowSpec> = (0..flows)
        .map(|key| FlowSpec {
            weight: [1.0, 2.0, 4.0][rng.random_range(0..3)],
            class: rng.random_range(0..kinds),
            ..flow(key, &random_path(&topology, &mut rng))
        })
        .collect();
    Instance::new(classes(), &capacities_bps(&topology), &specs)
}

/// Returns the optimal rates, certified by the duality gap.
fn truth(instance: &Instance) -> Vec<f64> {
    let mut solver = CoordinateDescent::new(instance.capacities.len());
    let mut rates = vec![0.0; instance.paths.len()];
    for _ in 0..20_000 {
        // Below every tolerance that the tests use, and above rounding.
        if solver.iterate(&instance.problem(), &mut rates) < 1e-12 {
            break;
        }
    }
    let mut normalized = rates.clone();
    FNorm::default().normalize(&instance.problem(), &rates, &mut normalized);
    let measured = optimality::measure(
        &instance.problem(),
        solver.prices(),
        &normalized,
        &mut Vec::new(),
    );
    assert!(measured.relative_duality_gap < 1e-9, "{measured:?}");
    rates
}

/// Runs each optimiser for its number of iterations, and checks its tolerance.
#[test]
fn every_optimiser_finds_the_optimum() {
    for (seed, kinds) in [(1, 1), (2, 1), (3, 3), (4, 3)] {
        let instance = instance(seed, 60, kinds);
        let truth = truth(&instance);
        let links = instance.capacities.len();
        let newton = ExactNewton::new(links).expect("few links");
        let all: Vec<(&str, Box<dyn Optimizer>, u32, f64)> = vec![
            (
                "safeguarded",
                Box::new(SafeguardedNed::new(0.4, links)),
                500,
                1e-4,
            ),
            // With γ = 0.4 plain NED fails on some such instances (see `num::safeguarded`).
            ("NED", Box::new(Ned::new(0.2, links)), 5_000, 1e-4),
            ("Newton", Box::new(newton), 60, 1e-6),
            (
                "Gradient",
                Box::new(Gradient::new(0.4, links)),
                // First-order methods need many more iterations, and their tolerance is wider.
                20_000,
                1e-2,
            ),
            ("FGM", Box::new(Fgm::new(links)), 20_000, 1e-2),
            (
                "Newton-like",
                Box::new(NewtonLike::new(0.1, links)),
                20_000,
                1e-2,
            ),
            ("NED-RT", Box::new(NedRt::new(0.2, links)), 5_000, 1e-3),
            (
                "Gradient-RT",
                Box::new(GradientRt::new(0.4, links)),
                20_000,
                1e-2,
            ),
        ];
        for (name, mut optimizer, iterations, tolerance) in all {
            let mut rates = vec![0.0; truth.len()];
            for _ in 0..iterations {
                optimizer.iterate(&instance.problem(), &mut rates);
            }
            let error = largest_error(&rates, &truth);
            println!("{name}, instance {seed}: {error:.1e}");
            assert!(error < tolerance, "{name}, instance {seed}: {error}");
        }
    }
}

/// Single precision follows double precision at each iteration, not only at the optimum.
#[test]
fn single_precision_follows_double() {
    for kinds in [1, 3] {
        let instance = instance(7, 200, kinds);
        let links = instance.capacities.len();
        let (mut ned, mut ned_rt) = (Ned::new(0.2, links), NedRt::new(0.2, links));
        let (mut rates, mut rates_rt) = (vec![0.0; 200], vec![0.0; 200]);
        for iteration in 0..200 {
            ned.iterate(&instance.problem(), &mut rates);
            ned_rt.iterate(&instance.problem(), &mut rates_rt);
            let error = largest_error(&rates_rt, &rates);
            assert!(
                error < 2e-3,
                "iteration {iteration}, {kinds} utilities: {error}"
            );
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
        let mut now = instance(20, 64, kinds);
        let mut optimizer = SafeguardedNed::new(0.4, now.capacities.len());
        let mut rng = rng(21);
        let (mut rates, mut normalized) = (vec![0.0; 64], vec![0.0; 64]);
        for round in 0..300 {
            let fresh = instance(1_000 + round, 64, kinds);
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
        let error = largest_error(&rates, &truth(&now));
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
        let mut now = instance(30, 64, 1);
        let fresh = instance(31, 64, 1);
        let mut optimizer = SafeguardedNed::new(0.4, now.capacities.len());
        let mut rates = vec![0.0; 64];
        for _ in 0..200 {
            optimizer.iterate(&now.problem(), &mut rates);
        }
        churn(&mut now, &fresh, &mut optimizer, order.iter().copied());
        if visitor {
            // A flow of other links, which no sum has: its end must find its start among the
            // newest.
            let stranger = instance(32, 64, 1);
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
    let before = Instance::new(classes(), &capacities, &specs);
    let others: Vec<FlowSpec> = (0..128)
        .map(|key| flow(key, &random_path(&topology, &mut rng)))
        .collect();
    let fresh = Instance::new(classes(), &capacities, &others);
    let links = capacities.len();
    let first_error = |mut optimizer: SafeguardedNed| {
        let mut now = Instance::new(classes(), &capacities, &specs);
        let (mut rates, mut normalized) = (vec![0.0; 128], vec![0.0; 128]);
        // Without events, every rule must converge from the prices that churn has left.
        for _ in 0..300 {
            optimizer.iterate(&before.problem(), &mut rates);
        }
        churn(&mut now, &fresh, &mut optimizer, 0..6);
        optimizer.iterate(&now.problem(), &mut rates);
        FNorm::default().normalize(&now.problem(), &rates, &mut normalized);
        let truth = truth(&now);
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
