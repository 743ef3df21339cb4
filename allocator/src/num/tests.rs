//! Tests of utilities, classes, normalisers and optimality.

use std::sync::Arc;

use super::utility::{AlphaFair, Class, ClassError, ClassTable, Log, Utility, UtilityKind};
use super::{
    FNorm, FlowArrays, LinkPath, Normalizer, Optimizer, Problem, RateLimit, SafeguardedNed, UNorm,
    optimality,
};

/// Paths, weights and limits of log flows, to borrow a problem from.
struct OwnedProblem {
    capacities: Vec<f64>,
    classes: ClassTable,
    paths: Vec<LinkPath>,
    class_ids: Vec<u8>,
    weights: Vec<f64>,
    limits: Vec<RateLimit>,
}

impl OwnedProblem {
    fn new(capacities: &[f64], flows: &[(&[u32], f64)]) -> Self {
        let paths: Vec<LinkPath> = flows
            .iter()
            .map(|(links, _)| links.iter().copied().collect())
            .collect();
        let limits = flows
            .iter()
            .map(|(links, demand)| {
                RateLimit::new(&Log, 1.0, *demand, super::path_capacity(links, capacities))
            })
            .collect();
        Self {
            capacities: capacities.to_vec(),
            classes: ClassTable::default(),
            class_ids: vec![0; paths.len()],
            weights: vec![1.0; paths.len()],
            paths,
            limits,
        }
    }

    fn problem(&self) -> Problem<'_> {
        Problem {
            capacities: &self.capacities,
            classes: &self.classes,
            flows: FlowArrays {
                paths: &self.paths,
                classes: &self.class_ids,
                weights: &self.weights,
                limits: &self.limits,
            },
        }
    }
}

const ANY: f64 = f64::INFINITY;

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * (a.abs() + b.abs()).max(1.0)
}

/// log(1 + x): a utility of the user's own, with a finite marginal at 0.
#[derive(Debug)]
struct Saturating;

impl Utility for Saturating {
    fn value(&self, rate: f64) -> f64 {
        rate.ln_1p()
    }
    fn marginal(&self, rate: f64) -> f64 {
        1.0 / (1.0 + rate)
    }
    fn rate_at(&self, price: f64) -> f64 {
        (1.0 / price - 1.0).max(0.0)
    }
    fn rate_slope_at(&self, price: f64) -> f64 {
        if price < 1.0 {
            -1.0 / (price * price)
        } else {
            0.0
        }
    }
}

#[test]
fn rate_at_inverts_the_marginal_and_its_slope_is_the_derivative() {
    let alpha = |a| UtilityKind::Alpha(AlphaFair::new(a).expect("a valid α"));
    let kinds = [
        UtilityKind::Log,
        alpha(0.5),
        alpha(2.0),
        alpha(8.0),
        UtilityKind::Custom(Arc::new(Saturating)),
    ];
    for kind in &kinds {
        for rate in [0.01, 0.3, 1.0, 7.0, 400.0] {
            let price = kind.marginal(rate);
            assert!(close(kind.rate_at(price) / rate, 1.0), "{kind:?} at {rate}");
            // Central differences: their error is of second order in h.
            let h = 1e-6 * price;
            let slope = (kind.rate_at(price + h) - kind.rate_at(price - h)) / (2.0 * h);
            assert!(
                (kind.rate_slope_at(price) / slope - 1.0).abs() < 1e-4,
                "{kind:?} at {rate}"
            );
            let h = 1e-6 * rate;
            let marginal = (kind.value(rate + h) - kind.value(rate - h)) / (2.0 * h);
            assert!((marginal / price - 1.0).abs() < 1e-4, "{kind:?} at {rate}");
        }
    }
}

#[test]
fn alpha_of_one_is_log() {
    let one = AlphaFair::new(1.0).expect("a valid α");
    for v in [0.1, 1.0, 12.0] {
        assert!(close(one.value(v), Log.value(v)) && close(one.rate_at(v), Log.rate_at(v)));
        assert!(close(one.rate_slope_at(v), Log.rate_slope_at(v)));
    }
    assert!(AlphaFair::new(0.0).is_none() && AlphaFair::new(f64::NAN).is_none());
}

#[test]
fn class_tables_refuse_what_makes_no_sense() {
    let class = |weight, max_rate_bps| Class {
        weight,
        max_rate_bps,
        ..Class::default()
    };
    let table = |classes: Vec<(u8, Class)>| ClassTable::new(classes);
    assert!(matches!(
        table(vec![(1, class(0.0, ANY))]),
        Err(ClassError::Weight { id: 1, .. })
    ));
    assert!(matches!(
        table(vec![(1, class(f64::NAN, ANY))]),
        Err(ClassError::Weight { .. })
    ));
    assert!(matches!(
        table(vec![(2, class(1.0, 0.0))]),
        Err(ClassError::MaxRate { id: 2, .. })
    ));
    let twice = table(vec![(3, class(1.0, ANY)), (3, class(2.0, ANY))]);
    assert_eq!(twice.err(), Some(ClassError::Duplicate { id: 3 }));
    let sparse = table(vec![(0, class(1.0, ANY)), (7, class(2.0, 1e9))]).expect("valid");
    assert!(sparse.get(7).is_some() && sparse.get(3).is_none() && sparse.get(200).is_none());
}

/// flowtune §3.1: F-NORM divides by the fullest link of the flow's path, U-NORM by the network's.
#[test]
fn normalisers_by_hand() {
    // Link 0 has twice its capacity as load, link 1 half of it.
    let owned = OwnedProblem::new(&[10.0, 10.0], &[(&[0], ANY), (&[0, 1], ANY), (&[1], ANY)]);
    let rates = [16.0, 4.0, 1.0];
    let mut out = [0.0; 3];
    assert!(close(
        FNorm::default().normalize(&owned.problem(), &rates, &mut out),
        2.0
    ));
    assert_eq!(
        out,
        [8.0, 2.0, 2.0],
        "the last flow is alone on an under-used path, so it goes up"
    );
    UNorm::default().normalize(&owned.problem(), &rates, &mut out);
    assert_eq!(out, [8.0, 2.0, 0.5]);
}

#[test]
fn f_norm_clamps_to_the_demand_and_cuts_flows_over_failed_links() {
    let owned = OwnedProblem::new(
        &[10.0, 0.0, 10.0],
        &[(&[0], 0.5), (&[0, 1], ANY), (&[2], ANY), (&[1, 2], ANY)],
    );
    let mut out = [9.0; 4];
    FNorm::default().normalize(&owned.problem(), &[0.4, 1.0, 5.0, 5.0], &mut out);
    assert_eq!(out, [0.5, 0.0, 5.0, 0.0]);
    UNorm::default().normalize(&owned.problem(), &[0.4, 0.0, 5.0, 0.0], &mut out);
    assert_eq!(
        out,
        [0.5, 0.0, 10.0, 0.0],
        "a failed link holds nobody else back"
    );
}

#[test]
fn the_gap_vanishes_at_the_optimum_and_only_there() {
    let owned = OwnedProblem::new(
        &[1.0, 1.0, 4.0],
        &[(&[0], ANY), (&[0, 1], ANY), (&[1], ANY), (&[1], 0.1)],
    );
    let mut optimizer = SafeguardedNed::new(0.4, 3);
    let (mut rates, mut normalized) = ([0.0; 4], [0.0; 4]);
    let mut before = None;
    for _ in 0..500 {
        optimizer.iterate(&owned.problem(), &mut rates);
        FNorm::default().normalize(&owned.problem(), &rates, &mut normalized);
        let measured = optimality::measure(
            &owned.problem(),
            optimizer.prices(),
            &normalized,
            &mut Vec::new(),
        );
        before.get_or_insert(measured);
    }
    let first = before.expect("a first measure");
    assert!(first.relative_duality_gap > 0.01, "{first:?}");
    let measured = optimality::measure(
        &owned.problem(),
        optimizer.prices(),
        &normalized,
        &mut Vec::new(),
    );
    assert!(
        measured.relative_duality_gap < 1e-12 && measured.kkt_residual < 1e-9,
        "{measured:?}"
    );
    let score: f64 = normalized.iter().map(|x| (x * 1e9).log2()).sum();
    assert!(close(measured.proportional_fairness_score, score));
    assert_eq!(measured.rated_flows, 4);
    // Worse rates at the same prices: the gap is what is lost, as a relative change of all rates.
    // For log utilities the gap is the loss of the geometric mean: 1 %.
    normalized.iter_mut().for_each(|x| *x *= 0.99);
    let worse = optimality::measure(
        &owned.problem(),
        optimizer.prices(),
        &normalized,
        &mut Vec::new(),
    );
    assert!(
        (worse.relative_duality_gap - 0.01).abs() < 2e-4,
        "{worse:?}"
    );
}

#[test]
fn no_flows_no_distance() {
    let owned = OwnedProblem::new(&[1.0], &[]);
    let measured = optimality::measure(&owned.problem(), &[1.0], &[], &mut Vec::new());
    assert_eq!(measured, optimality::Optimality::default());
    let cut = OwnedProblem::new(&[0.0], &[(&[0], ANY)]);
    let measured = optimality::measure(&cut.problem(), &[1.0], &[0.0], &mut Vec::new());
    assert_eq!(
        measured,
        optimality::Optimality::default(),
        "who can get nothing does not count"
    );
}

/// Checks a user's utility: two log(1 + x) flows of weights 1 and 2 on one link of 4 Gbit/s meet
/// where 1 / (1 + x) = 2 / (1 + y), x + y = 4.
#[test]
fn a_utility_of_ones_own() {
    let mut owned = OwnedProblem::new(&[4.0], &[(&[0], ANY), (&[0], ANY)]);
    let class = Class {
        utility: UtilityKind::Custom(Arc::new(Saturating)),
        ..Class::default()
    };
    owned.classes = ClassTable::new([(0, class)]).expect("a valid class");
    owned.weights = vec![1.0, 2.0];
    owned.limits = owned
        .weights
        .iter()
        .map(|&w| RateLimit::new(&Saturating, w, ANY, 4.0))
        .collect();
    let mut optimizer = SafeguardedNed::new(0.4, 1);
    let mut rates = [0.0; 2];
    for _ in 0..100 {
        optimizer.iterate(&owned.problem(), &mut rates);
    }
    assert!(close(rates[0], 1.0) && close(rates[1], 3.0), "{rates:?}");
}

/// Two flows share all their links, and their demands exceed the capacities a little. At the
/// initial prices no flow reacts, so all links lift their prices at once.
#[test]
fn links_that_lift_their_prices_together_come_to_rest() {
    for links in 1..=6u32 {
        for small in [0.05, 0.3, 0.45] {
            for missing in [0.02, 0.2, 0.9] {
                let path: Vec<u32> = (0..links).collect();
                let demands = [1.0 - small, small];
                // The demands add up to 1.
                let capacity = 1.0 - missing * small;
                let owned = OwnedProblem::new(
                    &vec![capacity; links as usize],
                    &[(&path, demands[0]), (&path, demands[1])],
                );
                let mut optimizer = SafeguardedNed::new(0.4, links as usize);
                optimizer.warm_start(&vec![1e-3; links as usize]);
                let mut rates = [0.0; 2];
                let name = format!("{links} links, {demands:?} on {capacity}");
                let rests =
                    (0..1000).any(|_| optimizer.iterate(&owned.problem(), &mut rates) < 1e-10);
                assert!(rests, "{name}: {rates:?}, prices {:?}", optimizer.prices());
                // The smaller demand is below an equal share, the larger flow has the rest.
                let equal = capacity / 2.0;
                let smaller = demands[1].min(equal);
                assert!(
                    close(rates[0], capacity - smaller) && close(rates[1], smaller),
                    "{name}: {rates:?}"
                );
            }
        }
    }
}
