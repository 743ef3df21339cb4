//! Convergence of prices, and failures of the paper's Algorithm 1 (flowtune §2).
//!
//! These tests print the figures that `num::safeguarded` quotes (`cargo test -p
//! ratewright-allocator --test behaviour num_convergence:: -- --nocapture`).

use rand::RngExt;
use ratewright_allocator::engine::FlowSpec;
use ratewright_allocator::num::utility::{AlphaFair, Class, ClassTable, UtilityKind};
use ratewright_allocator::num::{FNorm, Ned, Normalizer, Optimizer, SafeguardedNed, UNorm};
use ratewright_topology::{Topology, TwoTierClos};

use crate::num_support::{
    Instance, capacities_bps, flow, fullest, largest_error, optimum, random_path, rng, two_tiers,
};

/// α-fair classes 0 to 3: 1, 0.5, 2 and 8.
fn classes() -> ClassTable {
    let class = |a| Class {
        utility: UtilityKind::Alpha(AlphaFair::new(a).expect("a valid α")),
        ..Class::default()
    };
    ClassTable::new([
        (0, Class::default()),
        (1, class(0.5)),
        (2, class(2.0)),
        (3, class(8.0)),
    ])
    .expect("valid classes")
}

fn instance(capacities_bps: &[f64], specs: &[FlowSpec]) -> Instance {
    Instance::new(classes(), capacities_bps, specs)
}

/// Returns the first iteration from which on all rates stay within `tolerance` of `truth`.
fn iterations_to(
    optimizer: &mut dyn Optimizer,
    instance: &Instance,
    truth: &[f64],
    tolerance: f64,
    limit: u32,
) -> Option<u32> {
    let mut rates = vec![0.0; truth.len()];
    let mut last_bad = 0;
    for iteration in 1..=limit {
        optimizer.iterate(&instance.problem(), &mut rates);
        let error = largest_error(&rates, truth);
        // All iterations run: a rate that leaves the tolerance again has not converged.
        if error.is_nan() || error > tolerance {
            last_bad = iteration;
        }
    }
    (last_bad < limit).then_some(last_bad + 1)
}

fn senders_to_one(count: u32, capacity_bps: f64) -> (Vec<f64>, Vec<FlowSpec>) {
    // Links 0 to 7 are the senders', link 8 is the receiver's and the only bottleneck.
    let capacities = vec![capacity_bps; 9];
    (capacities, (0..count).map(|i| flow(i, &[i, 8])).collect())
}

/// Experiment (A) of flowtune §5.1: senders to one receiver start one after another, and end
/// likewise. Each time, rates are within 1 % after at most 20 iterations, at any link speed.
#[test]
fn one_bottleneck_converges_within_20_iterations() {
    for capacity_bps in [1e8, 1e9, 1e10, 1e11, 1e12] {
        let plain = most_iterations(&mut Ned::new(0.4, 9), capacity_bps);
        let safeguarded = most_iterations(&mut SafeguardedNed::new(0.4, 9), capacity_bps);
        println!(
            "1 to 8 senders, {capacity_bps:e} bit/s, iterations to 1 %: plain {plain:?}, safeguarded {safeguarded:?}"
        );
        assert!(
            safeguarded.is_some_and(|most| most <= 20),
            "{capacity_bps:e}: {safeguarded:?}"
        );
    }
}

/// Returns the most iterations of any of the steps 1, 2, .. 8, 7, .. 1 senders; None if one did not
/// converge.
fn most_iterations(optimizer: &mut dyn Optimizer, capacity_bps: f64) -> Option<u32> {
    let mut most = Some(0);
    // One optimiser for all steps: prices survive changes of the flows.
    for count in (1..=8).chain((1..8).rev()) {
        let (capacities, specs) = senders_to_one(count, capacity_bps);
        let truth = vec![capacity_bps / 1e9 / f64::from(count); count as usize];
        let taken = iterations_to(optimizer, &instance(&capacities, &specs), &truth, 0.01, 300);
        most = most.zip(taken).map(|(a, b)| a.max(b));
    }
    most
}

/// Small cases with solutions by hand.
#[test]
fn known_answers() {
    let unit = 1e9;
    // One flow alone on six equal links: prices are not unique, the rate is.
    let specs = [flow(0, &[0, 1, 2, 3, 4, 5])];
    check("one flow, six links", &instance(&[unit; 6], &specs), &[1.0]);
    // The same path, eight flows at α = 8 and 1 Tbit/s: prices of 10⁻¹⁷.
    let specs: Vec<FlowSpec> = (0..8)
        .map(|key| FlowSpec {
            class: 3,
            ..flow(key, &[0, 1, 2, 3, 4, 5])
        })
        .collect();
    check(
        "α = 8 at 1 Tbit/s",
        &instance(&[1000.0 * unit; 6], &specs),
        &[125.0; 8],
    );
    // The parking lot: one long flow over six links, one short flow on each.
    let mut specs: Vec<FlowSpec> = (0..6).map(|i| flow(i, &[i])).collect();
    specs.push(flow(6, &[0, 1, 2, 3, 4, 5]));
    let mut truth = vec![6.0 / 7.0; 6];
    truth.push(1.0 / 7.0);
    check("parking lot", &instance(&[unit; 6], &specs), &truth);
    // Weights 1:2:4, log: rates in proportion. α = 2: in proportion to the square root.
    let weighted = |class| {
        [(0, 1.0), (1, 2.0), (2, 4.0)].map(|(k, weight)| FlowSpec {
            weight,
            class,
            ..flow(k, &[0])
        })
    };
    check(
        "weights",
        &instance(&[7.0 * unit], &weighted(0)),
        &[1.0, 2.0, 4.0],
    );
    let root = 2f64.sqrt();
    check(
        "weights at α = 2",
        &instance(&[(3.0 + root) * unit], &weighted(2)),
        &[1.0, root, 2.0],
    );
    // All demands fit: everyone gets its demand, whatever the price was.
    let limited = |n, demand_bps| {
        (0..n)
            .map(|k| FlowSpec {
                demand_bps,
                ..flow(k, &[0, 1])
            })
            .collect::<Vec<_>>()
    };
    check(
        "small demands",
        &instance(&[unit; 2], &limited(8, 0.1 * unit)),
        &[0.1; 8],
    );
    // All demands are finite and too large.
    check(
        "large demands",
        &instance(&[unit; 2], &limited(8, 0.5 * unit)),
        &[0.125; 8],
    );
    // Seven small demands and one flow that takes the rest.
    let mut specs = limited(7, 0.01 * unit);
    specs.push(flow(7, &[0, 1]));
    let mut truth = vec![0.01; 7];
    truth.push(0.93);
    check("one takes the rest", &instance(&[unit; 2], &specs), &truth);
    // One flow just above its demand, the others rest at theirs: slopes that switch.
    let mut specs = limited(4, 0.2 * unit);
    specs.extend((4..6).map(|k| FlowSpec {
        demand_bps: 0.3 * unit,
        ..flow(k, &[0])
    }));
    check(
        "two just below demand",
        &instance(&[1.2 * unit, unit], &specs),
        &[0.2, 0.2, 0.2, 0.2, 0.2, 0.2],
    );
}

fn check(name: &str, instance: &Instance, truth: &[f64]) {
    let mut optimizer = SafeguardedNed::new(0.4, instance.capacities.len());
    let taken = iterations_to(&mut optimizer, instance, truth, 1e-4, 2000);
    let taken = taken.unwrap_or_else(|| panic!("{name}: not within 2,000 iterations"));
    println!("{name}: within 1e-4 after {taken} iterations");
    assert!(taken <= 60, "{name}: {taken} iterations");
}

/// Makes 3,072 flows between 384 hosts, whose uplinks are seldom full.
fn clos() -> (Topology, Vec<FlowSpec>) {
    let shape = TwoTierClos {
        racks: 48,
        hosts_per_rack: 8,
        spines: 4,
        fabric_capacity_bps: 20_000_000_000,
        ..TwoTierClos::default()
    };
    let topology = shape.build().expect("a valid network");
    let mut rng = rng(7);
    let specs = (0..3072)
        .map(|key| flow(key, &random_path(&topology, &mut rng)))
        .collect();
    (topology, specs)
}

fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * q) as usize]
}

/// Measures the p99 of normalised rates' errors by iteration, after 1 % of the flows were replaced
/// at converged prices, and the throughput of F-NORM and U-NORM after the first iteration. Plain
/// NED converges with γ of 0.4 and 0.6, not with 0.8 or the paper's example of 1. U-NORM wastes
/// much where F-NORM wastes little (flowtune §5.4, (M)).
#[test]
fn churn_on_a_clos() {
    let (topology, mut specs) = clos();
    let capacities = capacities_bps(&topology);
    let links = capacities.len();
    let before = instance(&capacities, &specs);
    let mut rng = rng(8);
    for _ in 0..specs.len() / 100 {
        let index = rng.random_range(0..specs.len());
        specs[index] = flow(index as u32, &random_path(&topology, &mut rng));
    }
    let after = instance(&capacities, &specs);
    let (_, prices) = optimum(&before);
    let (truth, _) = optimum(&after);
    let total = |rates: &[f64]| rates.iter().sum::<f64>();
    let mut figures = Vec::new();
    let rules: [(&str, Box<dyn Optimizer>); 5] = [
        ("plain 0.4", Box::new(Ned::new(0.4, links))),
        ("plain 0.6", Box::new(Ned::new(0.6, links))),
        ("plain 0.8", Box::new(Ned::new(0.8, links))),
        ("plain 1.0", Box::new(Ned::new(1.0, links))),
        ("safeguarded 0.4", Box::new(SafeguardedNed::new(0.4, links))),
    ];
    for (name, mut optimizer) in rules {
        let mut rates = vec![0.0; specs.len()];
        let mut normalized = rates.clone();
        let mut residual = 0.0;
        for _ in 0..2000 {
            // Cold prices first: their residual shows which rule converges from there.
            residual = optimizer.iterate(&before.problem(), &mut rates);
        }
        // All rules go on from one optimum, so that only the replacement separates them.
        optimizer.warm_start(&prices);
        let mut line =
            format!("{name}: residual from cold prices after 2,000 iterations {residual:.1e};");
        let mut errors = Vec::new();
        for iteration in 1..=50 {
            optimizer.iterate(&after.problem(), &mut rates);
            FNorm::default().normalize(&after.problem(), &rates, &mut normalized);
            assert!(fullest(&after.problem(), &normalized) <= 1.0 + 1e-9);
            if iteration == 1 {
                let f_norm = total(&normalized) / total(&truth);
                UNorm::default().normalize(&after.problem(), &rates, &mut normalized);
                let u_norm = total(&normalized) / total(&truth);
                line += &format!(" throughput F-NORM {f_norm:.3} U-NORM {u_norm:.3};");
                if name.starts_with("safeguarded") {
                    assert!(f_norm > 0.97 && u_norm < 0.8, "{f_norm} {u_norm}");
                }
                FNorm::default().normalize(&after.problem(), &rates, &mut normalized);
            }
            if [1, 2, 5, 10, 20, 50].contains(&iteration) {
                let mut all: Vec<f64> = normalized
                    .iter()
                    .zip(&truth)
                    .map(|(a, b)| (a / b - 1.0).abs())
                    .collect();
                let p99 = quantile(&mut all, 0.99);
                line += &format!(" {iteration}: {:.1} %", 100.0 * p99);
                errors.push(p99);
            }
        }
        println!("{line}");
        figures.push((name, residual, errors));
    }
    let (_, residual, errors) = &figures[4];
    assert!(
        *residual < 1e-6,
        "the safeguarded rule converges from cold prices: {residual:e}"
    );
    assert!(
        errors[4] < 0.02,
        "p99 error 20 iterations after the churn: {}",
        errors[4]
    );
    assert!(
        figures[0].2[5] < 0.01 && figures[1].2[5] < 0.01,
        "γ = 0.4 and 0.6 converge"
    );
    assert!(
        figures[2].2[5] > 0.2 && figures[3].2[5] > 0.2,
        "γ = 0.8 and 1.0 do not"
    );
}

/// Prints the table of `num::safeguarded`: cold prices, small random instances, both rules.
#[test]
fn random_instances_from_cold_prices() {
    const INSTANCES: usize = 30;
    const LIMIT: u32 = 2000;
    for (kind, name) in [
        "log",
        "demands",
        "capacities",
        "mixed α",
        "six random links",
        "α = 8",
    ]
    .iter()
    .enumerate()
    {
        let topology = two_tiers(15_000_000_000);
        let mut rng = rng(90 + kind as u64);
        let mut taken: [Vec<Option<u32>>; 2] = Default::default();
        for _ in 0..INSTANCES {
            let mut capacities = capacities_bps(&topology);
            if kind == 2 || kind == 3 {
                capacities
                    .iter_mut()
                    .for_each(|c| *c *= [0.1, 1.0, 4.0][rng.random_range(0..3)]);
            } else if kind >= 4 {
                // Equal links of extreme speeds: the initial price of 1 is off by orders of
                // magnitude.
                capacities = vec![if kind == 4 { 1e8 } else { 1e12 }; 30];
            }
            let specs: Vec<FlowSpec> = (0..60)
                .map(|key| {
                    let mut spec = flow(key, &random_path(&topology, &mut rng));
                    // Weights make optimal rates differ on one link.
                    spec.weight = [1.0, 2.0, 4.0][rng.random_range(0..3)];
                    if (1..=4).contains(&kind) && rng.random_bool(0.33) {
                        spec.demand_bps = rng.random_range(0.2e9..3.2e9);
                    }
                    if kind == 3 {
                        spec.class = rng.random_range(0..4);
                    } else if kind >= 4 {
                        spec.links.clear();
                        while spec.links.len() < 6 {
                            let link = rng.random_range(0..30);
                            if !spec.links.contains(&link) {
                                spec.links.push(link);
                            }
                        }
                        spec.class = if kind == 5 { 3 } else { 0 };
                    }
                    spec
                })
                .collect();
            let problem = instance(&capacities, &specs);
            let (truth, _) = optimum(&problem);
            let links = capacities.len();
            let rules: [&mut dyn Optimizer; 2] = [
                &mut Ned::new(0.4, links),
                &mut SafeguardedNed::new(0.4, links),
            ];
            for (taken, rule) in taken.iter_mut().zip(rules) {
                taken.push(iterations_to(rule, &problem, &truth, 1e-4, LIMIT));
            }
        }
        let [plain, safeguarded] = taken.map(|mut all| {
            all.sort_unstable_by_key(|t| t.unwrap_or(u32::MAX));
            (
                all[INSTANCES / 2],
                all[INSTANCES - 1],
                all.iter().filter(|t| t.is_none()).count(),
            )
        });
        println!(
            "{name}: (median, most, not within {LIMIT}) plain {plain:?} safeguarded {safeguarded:?}"
        );
        assert_eq!(
            safeguarded.2, 0,
            "{name}: the safeguarded rule converges on every instance"
        );
    }
}
