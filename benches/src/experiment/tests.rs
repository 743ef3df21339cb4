//! Tests of the experiments on small networks.

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

use super::convergence::{Setup, measure};
use super::flowlets::{Stream, paper_network};
use super::over_allocation::Length;
use super::rules::{ENGINE, PLAIN, RULES};
use super::{normalizer, over_allocation, web};

const LENGTH: Length = Length {
    warm_up: 300,
    measured: 300,
};

fn stream(load: f64) -> Stream {
    Stream {
        load,
        interval_ns: 10_000,
        seed: 3,
    }
}

/// The published mean is 62.3 kB; half of the flows are smaller than 3.4 kB.
#[test]
fn sizes_have_the_published_mean_and_median() {
    assert!(
        (web::mean_bytes() / 62_316.6 - 1.0).abs() < 0.01,
        "{}",
        web::mean_bytes()
    );
    let median = web::quantile_bytes(0.5);
    assert!((3_000.0..3_900.0).contains(&median), "{median}");
    assert_eq!(web::quantile_bytes(0.0), 50.0);
    assert_eq!(web::quantile_bytes(1.0), 1e6);
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let sum: f64 = (0..100_000).map(|_| web::sample_bytes(&mut rng)).sum();
    assert!((sum / 1e5 / web::mean_bytes() - 1.0).abs() < 0.03, "{sum}");
}

/// Checks that a seed determines the figures, and that price correction over-allocates less than
/// NED.
#[test]
fn over_allocation_is_reproducible_and_ordered() {
    let network = paper_network();
    let run = |name: &str| {
        let named = over_allocation::OPTIMIZERS
            .into_iter()
            .find(|o| o.0 == name);
        over_allocation::run(&network, stream(0.6), LENGTH, named.expect("known")).expect("builds")
    };
    let ned = run("NED");
    assert_eq!(ned, run("NED"));
    let (rt, ours) = (run("NED-RT"), run("Ratewright"));
    assert!(
        (rt.mean_gbps / ned.mean_gbps - 1.0).abs() < 0.05,
        "{rt:?} {ned:?}"
    );
    assert!(ours.mean_gbps < 0.6 * ned.mean_gbps, "{ours:?} {ned:?}");
}

/// Checks flowtune §5.4, (M): F-NORM wastes little where U-NORM wastes much, with NED more so than
/// with Gradient. Price correction leaves less to normalise.
#[test]
fn f_norm_beats_u_norm_and_better_prices_beat_both() {
    let network = paper_network();
    let [ned, gradient, ours, passes] = normalizer::OPTIMIZERS
        .map(|named| normalizer::run(&network, stream(0.5), LENGTH, named).expect("builds"));
    for figures in [&ned, &gradient, &ours] {
        assert!(figures.f_norm > figures.u_norm, "{figures:?}");
    }
    assert!(ned.f_norm > gradient.f_norm, "{ned:?} {gradient:?}");
    assert!(
        ours.f_norm > ned.f_norm && ours.u_norm > ned.u_norm,
        "{ours:?} {ned:?}"
    );
    // With ten passes after events, hardly any over-allocation is left to normalise.
    assert!(passes.f_norm > 0.997, "{passes:?}");
    assert!(
        1.0 - ours.f_norm < 0.5 * (1.0 - ned.f_norm),
        "{ours:?} {ned:?}"
    );
}

/// A quarter of the full case, with a clock that ticks once per reading: accuracy, not time.
#[test]
fn after_one_iteration_the_engines_rule_is_where_plain_ned_is_after_five() {
    let mut setup = Setup {
        flows: 3_072,
        replaced: 31,
        iterations: 5,
        cases: 2,
        repeats: 1,
        ..Setup::default()
    };
    // Flows and replaced flows in proportion to the racks of the full case.
    setup.network.racks = 24;
    let mut now_ns = 0;
    let mut clock = || {
        now_ns += 1;
        now_ns
    };
    let mut seen = Vec::new();
    let result = measure(&setup, &RULES, &mut clock, &mut |rule| seen.push(rule)).expect("builds");
    assert_eq!(seen.len(), RULES.len());
    assert_eq!((result.hosts, result.links), (384, 384 * 2 + 24 * 4 * 2));
    let rule = |name| {
        let figures = result.rules.iter().find(|r| r.rule == name);
        figures.expect("measured").points.clone()
    };
    let (ours, plain) = (rule(ENGINE.name), rule(PLAIN.name));
    assert!(
        ours[0].p99_rate_error <= plain[4].p99_rate_error * 1.1,
        "{ours:?} {plain:?}"
    );
    assert!(
        ours[0].p99_rate_error < 0.08 && ours[0].throughput > 0.99,
        "{ours:?}"
    );
    assert!(plain[0].p99_rate_error > 0.2, "{plain:?}");
    // Every reading of the clock costs 1: an iteration takes 1, and events at most 1.
    assert!(result.rules.iter().all(|r| r.points[0].time <= 2.0));
}
