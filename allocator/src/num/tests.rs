//! Tests of utilities, classes, normalisers and optimality.

use std::sync::Arc;

use super::price_correction::{FlowView, PriceCorrection};
use super::response::{Response, power, respond};
use super::utility::{AlphaFair, Class, ClassError, ClassTable, Log, Utility, UtilityKind};
use super::{
    FNorm, FlowArrays, LinkPath, Ned, Normalizer, Optimizer, Problem, RateLimit, SafeguardedNed,
    UNorm, optimality,
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

/// The effective weight x U'(x) of an α-fair flow is (x / r)^(1−α), within its bounds.
#[test]
fn effective_weights_stay_within_their_bounds_and_the_pieces_meet() {
    for alpha in [0.5, 2.0, 16.0] {
        let (reference, bound) = (2.0_f64, 4.0_f64);
        let utility = AlphaFair::bounded(alpha, reference * 1e9, bound).expect("in range");
        assert_eq!((utility.alpha(), utility.reference_bps()), (alpha, 2e9));
        let effective = |x: f64| (x / reference).powf(1.0 - alpha);
        let weight = |x: f64| effective(x).clamp(bound.recip(), bound);
        let [low, high] = utility.range_bps().map(|bps| bps / 1e9);
        assert!(low < reference && reference < high);
        for end in [low, high] {
            let at_end = effective(end);
            assert!(close(at_end, bound) || close(at_end, bound.recip()));
            let step = utility.value(end * (1.0 + 1e-9)) - utility.value(end * (1.0 - 1e-9));
            assert!(step > 0.0 && step < 1e-7, "a step of {step} at {end}");
        }
        for share in [1e-3, 0.1, 0.9, 1.0, 1.1, 9.0, 1e3] {
            for x in [low, reference, high].map(|rate| rate * share) {
                let price = utility.marginal(x);
                assert!(close(x * price, weight(x)), "α = {alpha}, x = {x}");
                assert!(close(utility.rate_at(price) / x, 1.0));
                // −q x'(q) / x is 1 / α between the bounds, and 1 beyond them.
                let elasticity = -price * utility.rate_slope_at(price) / x;
                let outside = x < low * (1.0 - 1e-9) || x > high * (1.0 + 1e-9);
                let inside = x > low * (1.0 + 1e-9) && x < high * (1.0 - 1e-9);
                assert!(!outside || close(elasticity, 1.0));
                assert!(!inside || close(elasticity, alpha.recip()));
                let h = 1e-6 * x;
                let slope = (utility.value(x + h) - utility.value(x - h)) / (2.0 * h);
                let at_edge = !outside && !inside;
                assert!(at_edge || (slope / price - 1.0).abs() < 1e-4);
            }
        }
    }
}

#[test]
fn alpha_fairness_is_refused_out_of_range() {
    let bounded = AlphaFair::bounded;
    let accepted = |alpha| bounded(alpha, 1e9, 4.0).is_some();
    assert!(accepted(AlphaFair::MIN_ALPHA) && accepted(AlphaFair::MAX_ALPHA) && accepted(1.0));
    assert!(!accepted(0.09) && !accepted(64.1) && !accepted(-2.0));
    for (reference_bps, bound) in [
        (0.0, 4.0),
        (-1.0, 4.0),
        (ANY, 4.0),
        (f64::NAN, 4.0),
        (1e9, 1.0),
        (1e9, 0.5),
        (1e9, f64::NAN),
    ] {
        assert_eq!(bounded(2.0, reference_bps, bound), None);
    }
}

#[test]
fn classes_may_be_unbounded_but_not_infinitely_heavy() {
    let refused = |weight, max_rate_bps| {
        let class = Class {
            weight,
            max_rate_bps,
            ..Class::default()
        };
        ClassTable::new([(0, class)])
            .err()
            .map(|error| error.to_string())
    };
    assert_eq!(refused(1.0, ANY), None);
    assert_eq!(refused(f64::MIN_POSITIVE, 1.0), None);
    let weight = "class 0: weight inf is not a finite number above zero";
    assert_eq!(refused(ANY, ANY).as_deref(), Some(weight));
    assert!(refused(-1.0, ANY).is_some() && refused(1.0, f64::NAN).is_some());
    assert!(refused(1.0, -1.0).is_some());
}

#[test]
fn a_class_is_found_with_its_utility() {
    let alpha = |a| Class {
        utility: UtilityKind::Alpha(AlphaFair::new(a).expect("a valid α")),
        ..Class::default()
    };
    let table = ClassTable::new([
        (1, alpha(2.0)),
        (5, Class::default()),
        (6, Class::default()),
    ])
    .expect("valid classes");
    assert_eq!(table.log_class(), 5, "the lowest of log flows");
    let none = ClassTable::new([(1, alpha(2.0))]).expect("a valid class");
    assert_eq!(none.log_class(), 0);
    assert!(close(table.utility(1).rate_at(4.0), 0.5));
    // Log, also for a class that is not defined.
    for id in [5, 3, 200] {
        assert!(close(table.utility(id).rate_at(4.0), 0.25));
    }
}

/// flowtune §2, Algorithm 1, in numbers that are exact.
#[test]
fn algorithm_1_by_hand() {
    let mut owned = OwnedProblem::new(&[10.0, 20.0], &[(&[0], ANY), (&[0, 1], ANY), (&[1], 0.5)]);
    owned.weights[0] = 2.0;
    owned.limits[0] = RateLimit::new(&Log, 2.0, ANY, 10.0);
    let mut ned = Ned::new(0.45, 2);
    assert_eq!(ned.prices(), [1.0, 1.0]);
    ned.warm_start(&[0.5, 0.5]);
    let mut rates = [0.0; 3];
    // x = w / q = 2 / 0.5, 1 / 1, and the demand. Link 0: G = 5 − 10, H = −8 − 1. Link 1:
    // G = 1.5 − 20, H = −1.
    let residual = ned.iterate(&owned.problem(), &mut rates);
    assert_eq!(rates, [4.0, 1.0, 0.5]);
    assert!(close(residual, 18.5 / 20.0));
    assert!(close(ned.prices()[0], 0.5 - 0.45 * 5.0 / 9.0));
    assert_eq!(ned.prices()[1], 0.0);
    // At the prices 0.25 and 0: G = 12 − 10, H = −32 − 16 on link 0. Link 1 may be under-used at
    // price 0.
    let residual = ned.iterate(&owned.problem(), &mut rates);
    assert_eq!(rates, [8.0, 4.0, 0.5]);
    assert!(close(residual, 0.2));
    assert!(close(ned.prices()[0], 0.25 + 0.45 * 2.0 / 48.0));
    assert_eq!(ned.prices()[1], 0.0);
    ned.reset(3);
    assert_eq!(ned.prices(), [1.0; 3]);
}

/// Cases that the paper leaves open: flows that do not react, links without flows or capacity.
#[test]
fn algorithm_1_where_no_flow_reacts() {
    let owned = OwnedProblem::new(
        &[2.0, 2.0, 2.0, 0.0, 2.0],
        &[
            (&[0], 1.5),
            (&[0], 1.5),
            (&[1], 1.0),
            (&[3], ANY),
            (&[4], 1.0),
            (&[4], 1.0),
        ],
    );
    let mut ned = Ned::new(0.4, 5);
    ned.warm_start(&[0.25; 5]);
    let mut rates = [9.0; 6];
    let residual = ned.iterate(&owned.problem(), &mut rates);
    assert_eq!(rates, [1.5, 1.5, 1.0, 0.0, 1.0, 1.0]);
    assert!(close(residual, 0.5), "two links are half full or over");
    let prices = ned.prices();
    // A log flow that fills the link has H = −c².
    assert!(close(prices[0], 0.25 + 0.4 * 1.0 / 4.0));
    assert!(close(prices[1], 0.25 * 0.6));
    assert_eq!(prices[2..4], [0.25, 0.25], "no flow, no capacity");
    assert!(close(prices[4], 0.25 * 0.6), "exactly full is not over");
    // A step beyond the whole price ends at 0.
    let mut ned = Ned::new(1.5, 5);
    ned.warm_start(&[0.25; 5]);
    ned.iterate(&owned.problem(), &mut rates);
    assert_eq!(ned.prices()[1], 0.0);
}

/// A flow's rate and slope above its saturation price, at its demand, and at its path's capacity.
#[test]
fn responses_by_hand() {
    // Weight 1, demand 0.5: the saturation price is 2, with a slope of 1 / 4.
    let owned = OwnedProblem::new(&[10.0], &[(&[0], 0.5), (&[0], ANY), (&[0], 0.0)]);
    let at = |flow, price| respond(&owned.problem(), flow, price);
    let response = |rate, neg_slope, elastic| Response {
        rate,
        neg_slope,
        elastic,
    };
    assert_eq!(at(0, 4.0), response(0.25, 1.0 / 16.0, 0.25));
    assert_eq!(at(0, 2.0), response(0.5, 0.25, 0.5));
    // Half and a quarter of the saturation price: the fourth power of that of e x = 0.5.
    assert_eq!(at(0, 1.0), response(0.5, 1.0 / 32.0, 1.0 / 32.0));
    assert_eq!(at(0, 0.5), response(0.5, 1.0 / 256.0, 1.0 / 512.0));
    assert_eq!(at(0, 0.499), response(0.5, 0.0, 0.0));
    assert_eq!(at(0, 0.0), response(0.5, 0.0, 0.0));
    // The path's capacity of 10 bounds the second: the slope at 0.1 stays.
    let by_path = at(1, 0.01);
    assert!(close(by_path.neg_slope, 100.0) && close(by_path.elastic, 10.0));
    assert_eq!(by_path.rate, 10.0);
    assert_eq!(at(2, 7.0), Response::default());

    let mut sum = response(1.0, 2.0, 3.0);
    assert!(sum.reacts());
    sum.add(response(0.5, 0.25, 0.125));
    assert_eq!(sum, response(1.5, 2.25, 3.125));
    sum.subtract(response(1.0, 0.25, 1.0));
    assert_eq!(sum, response(0.5, 2.0, 2.125));
    sum.subtract(response(0.75, 3.0, 4.0));
    assert_eq!(sum, Response::default(), "rounding leaves nothing below 0");
    assert!(!sum.reacts());
    assert!(!response(1.0, 0.0, 1.0).reacts() && !response(1.0, 1.0, 0.0).reacts());

    assert_eq!(power(3.0, 2.0), 9.0);
    assert_eq!(power(3.0, 0.0), 1.0);
    assert_eq!(power(3.0, 1.0 + 1e-10), 3.0, "one up to rounding");
    assert_ne!(power(3.0, 1.0 + 1e-8), 3.0);
}

/// A utility whose rate is vertical at a price would spoil the sums of its links.
#[test]
fn an_infinite_slope_counts_as_none() {
    #[derive(Debug)]
    struct Vertical;
    impl Utility for Vertical {
        fn value(&self, rate: f64) -> f64 {
            rate
        }
        fn marginal(&self, _: f64) -> f64 {
            0.5
        }
        fn rate_at(&self, _: f64) -> f64 {
            3.0
        }
        fn rate_slope_at(&self, _: f64) -> f64 {
            -f64::INFINITY
        }
    }
    let mut owned = OwnedProblem::new(&[4.0], &[(&[0], 2.0)]);
    let class = Class {
        utility: UtilityKind::Custom(Arc::new(Vertical)),
        ..Class::default()
    };
    owned.classes = ClassTable::new([(0, class)]).expect("a valid class");
    let expected = Response {
        rate: 2.0,
        ..Response::default()
    };
    assert_eq!(respond(&owned.problem(), 0, 1.0), expected);
}

/// One link of 12 Gbit/s with log flows: the price that fills it is their weight over 12.
struct CorrectedLink {
    correction: PriceCorrection,
    prices: Vec<f64>,
    sum: Response,
}

impl CorrectedLink {
    /// A link that is full of flows of this weight together.
    fn full(weight: f64) -> Self {
        Self {
            correction: PriceCorrection::new(1),
            prices: vec![weight / 12.0],
            sum: Response {
                rate: 12.0,
                neg_slope: 144.0 / weight,
                elastic: 12.0,
            },
        }
    }

    fn view(weight: f64) -> FlowView<'static> {
        FlowView {
            path: &[0],
            utility: &UtilityKind::Log,
            weight,
            limit: RateLimit::new(&Log, weight, ANY, 12.0),
        }
    }

    fn start(&mut self, weight: f64) {
        let sum = self.sum;
        self.correction
            .start(&Self::view(weight), &self.prices, |_| sum);
    }

    fn end(&mut self, weight: f64) {
        let sum = self.sum;
        self.correction
            .end(&Self::view(weight), &self.prices, |_| sum);
    }

    /// Corrects, and returns the price over the one that fills the link with `weight`.
    fn correct(&mut self, weight: f64) -> f64 {
        self.correction.correct(&[12.0], &mut self.prices);
        self.prices[0] * 12.0 / weight
    }
}

#[test]
fn one_step_is_exact_where_log_flows_end_or_start_on_one_link() {
    let mut link = CorrectedLink::full(4.0);
    link.end(1.0);
    assert!(close(link.correct(3.0), 1.0));
    let mut link = CorrectedLink::full(4.0);
    link.start(1.0);
    link.start(3.0);
    assert!((link.correct(8.0) - 1.0).abs() < 1e-3);
    // Each event is corrected for once.
    assert_eq!(link.correction.correct(&[12.0], &mut link.prices), 0);
    assert!((link.prices[0] * 12.0 / 8.0 - 1.0).abs() < 1e-3);
}

#[test]
fn a_flow_that_starts_and_ends_between_two_iterations_moves_no_price() {
    let mut link = CorrectedLink::full(4.0);
    for weight in [1.0, 2.0, 3.0] {
        link.start(weight);
    }
    for weight in [2.0, 1.0, 3.0] {
        link.end(weight);
    }
    assert!(close(link.correct(4.0), 1.0));
    // One of another weight was in the sums.
    let mut link = CorrectedLink::full(4.0);
    link.start(2.0);
    link.end(1.0);
    assert!((link.correct(5.0) - 1.0).abs() < 1e-3);
    // Too many started since to find it: the sums stand for it, and the price is the same.
    for later in [15, 16, 40] {
        let mut link = CorrectedLink::full(4.0);
        link.start(0.5);
        for _ in 0..later {
            link.start(1.0);
        }
        link.end(0.5);
        assert!((link.correct(4.0 + f64::from(later)) - 1.0).abs() < 1e-2);
    }
}

#[test]
fn a_correction_is_bounded_and_leaves_what_no_price_helps() {
    // Nearly all ends: to a thirty-second of the price at most.
    let mut link = CorrectedLink::full(100.0);
    link.end(99.0);
    assert!(close(link.correct(100.0), 1.0 / 32.0));
    // A hundred times as much starts: four times the price in each of three sweeps.
    let mut link = CorrectedLink::full(1.0);
    link.start(1_000.0);
    let growth = link.correct(1.0);
    assert!(growth > 4.0 && growth < 64.1, "{growth}");
    // All flows end, and the price of a link without capacity stays.
    let mut link = CorrectedLink::full(4.0);
    link.end(4.0);
    assert!(close(link.correct(4.0), 1.0));
    let mut link = CorrectedLink::full(4.0);
    link.start(1.0);
    assert_eq!(link.correction.correct(&[0.0], &mut link.prices), 1);
    assert!(close(link.prices[0], 4.0 / 12.0));
}
