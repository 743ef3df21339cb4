//! NED and F-NORM against an interior-point solver with exponential and power cones.

use clarabel::algebra::CscMatrix;
use clarabel::solver::{
    DefaultSettings, DefaultSolver, IPSolver, SolverStatus, SupportedConeT,
    SupportedConeT::{ExponentialConeT, NonnegativeConeT, PowerConeT},
};
use rand::RngExt;
use ratewright_allocator::engine::parallel::{Layout, ParallelEngine, ParallelOptions};
use ratewright_allocator::engine::{
    EngineConfig, EngineEvent, FlowNumber, FlowSpec, RateEngine, ReferenceEngine,
};
use ratewright_allocator::num::utility::{AlphaFair, Class, ClassTable, Utility, UtilityKind};
use ratewright_allocator::num::{LinkPath, RATE_UNIT_BPS, path_capacity};
use ratewright_topology::{HostId, PathChoice, Topology};

use crate::num_support::{
    Instance, capacities_bps, flow, fullest, largest_error, random_path, rng, three_tiers,
    two_tiers,
};

/// Tolerance of the solver where the error has to be below 10⁻⁴.
const EXACT: f64 = 1e-11;

/// Rows of a constraint matrix, with their cone.
#[derive(Default)]
struct Rows {
    row: Vec<usize>,
    column: Vec<usize>,
    value: Vec<f64>,
    right: Vec<f64>,
    cones: Vec<SupportedConeT<f64>>,
}

impl Rows {
    /// Adds a row: the slack is `right − Σ value · variable`.
    fn push(&mut self, entries: &[(usize, f64)], right: f64) {
        for &(column, value) in entries {
            self.row.push(self.right.len());
            self.column.push(column);
            self.value.push(value);
        }
        self.right.push(right);
    }
}

/// Part of a flow's rate, from `offset` on and at most so wide, with its worth: weight · U(offset +
/// x).
struct UtilitySegment {
    flow: usize,
    offset: f64,
    width: f64,
    weight: f64,
    /// α and reference rate, if not log.
    power: Option<(f64, f64)>,
}

/// Parts of a flow's rate. A bounded α-fair utility is log below one rate and above another, so it
/// is the sum of three. Marginal utility falls, so the optimum fills the parts one after the other.
fn segments(instance: &Instance, flow: usize) -> Vec<UtilitySegment> {
    let class = instance.classes.get(instance.class_ids[flow]);
    let utility = &class.expect("a defined class").utility;
    let part = |offset, width, weight, power| UtilitySegment {
        flow,
        offset,
        width,
        weight: weight * instance.weights[flow],
        power,
    };
    match utility {
        UtilityKind::Log => vec![part(0.0, f64::INFINITY, 1.0, None)],
        UtilityKind::Alpha(u) => {
            let [low, high] = u.range_bps().map(|rate_bps| rate_bps / RATE_UNIT_BPS);
            let power = Some((u.alpha(), u.reference_bps() / RATE_UNIT_BPS));
            if high == f64::INFINITY {
                return vec![part(0.0, f64::INFINITY, 1.0, power)];
            }
            vec![
                part(0.0, low, low * u.marginal(low), None),
                part(low, high - low, 1.0, power),
                part(high, f64::INFINITY, high * u.marginal(high), None),
            ]
        }
        UtilityKind::Custom(_) => unreachable!("the oracle knows the built-in utilities"),
    }
}

/// Optimal rates: variables x and t ≤ U(x) for each part of each flow's rate, maximise Σ w t. The
/// solver gets rates in multiples of `unit`, and is as exact as `tolerance`.
fn optimum(instance: &Instance, unit: f64, tolerance: f64) -> Vec<f64> {
    let flows = instance.paths.len();
    let mut parts: Vec<UtilitySegment> = (0..flows).flat_map(|s| segments(instance, s)).collect();
    for part in &mut parts {
        part.offset /= unit;
        part.width /= unit;
        part.power = part.power.map(|(alpha, rate)| (alpha, rate / unit));
    }
    let mut of_flow = vec![Vec::new(); flows];
    for (x, part) in parts.iter().enumerate() {
        of_flow[part.flow].push((x, 1.0));
    }
    let mut over = vec![Vec::new(); instance.capacities.len()];
    for (path, parts) in instance.paths.iter().zip(&of_flow) {
        for &link in path {
            over[link as usize].extend_from_slice(parts);
        }
    }
    let mut rows = Rows::default();
    for (over, &capacity) in over.iter().zip(&instance.capacities) {
        if !over.is_empty() {
            rows.push(over, capacity / unit);
        }
    }
    for (parts, &demand) in of_flow.iter().zip(&instance.demands) {
        if demand.is_finite() {
            rows.push(parts, demand / unit);
        }
    }
    for (x, part) in parts.iter().enumerate() {
        if part.offset > 0.0 {
            rows.push(&[(x, -1.0)], 0.0);
        }
        if part.width.is_finite() {
            rows.push(&[(x, 1.0)], part.width);
        }
    }
    rows.cones.push(NonnegativeConeT(rows.right.len()));
    let mut objective = vec![0.0; 2 * parts.len()];
    for (x, part) in parts.iter().enumerate() {
        let (t, weight) = (parts.len() + x, part.weight);
        match part.power {
            None => {
                // (t, 1, offset + x): e^t ≤ offset + x.
                rows.push(&[(t, -1.0)], 0.0);
                rows.push(&[], 1.0);
                rows.push(&[(x, -1.0)], part.offset);
                rows.cones.push(ExponentialConeT());
                objective[t] = -weight;
            }
            Some((alpha, reference)) if alpha < 1.0 => {
                // (y, 1, t) with y = (offset + x) / r: t ≤ y^(1−α).
                rows.push(&[(x, -reference.recip())], part.offset / reference);
                rows.push(&[], 1.0);
                rows.push(&[(t, -1.0)], 0.0);
                rows.cones.push(PowerConeT(1.0 - alpha));
                objective[t] = -weight / (1.0 - alpha);
            }
            Some((alpha, reference)) => {
                // (y, t, 1): y^(α−1) t ≥ 1.
                rows.push(&[(x, -reference.recip())], part.offset / reference);
                rows.push(&[(t, -1.0)], 0.0);
                rows.push(&[], 1.0);
                rows.cones.push(PowerConeT((alpha - 1.0) / alpha));
                objective[t] = weight / (alpha - 1.0);
            }
        }
    }
    let settings = DefaultSettings {
        verbose: false,
        tol_gap_abs: tolerance,
        tol_gap_rel: tolerance,
        tol_feas: 10.0 * tolerance,
        ..DefaultSettings::default()
    };
    let variables = 2 * parts.len();
    let constraints = CscMatrix::new_from_triplets(
        rows.right.len(),
        variables,
        rows.row,
        rows.column,
        rows.value,
    );
    let quadratic = CscMatrix::zeros((variables, variables));
    let mut solver = DefaultSolver::new(
        &quadratic,
        &objective,
        &constraints,
        &rows.right,
        &rows.cones,
        settings,
    )
    .expect("a well-formed problem");
    solver.solve();
    let status = solver.solution.status;
    assert!(
        matches!(status, SolverStatus::Solved | SolverStatus::AlmostSolved),
        "the oracle gave up: {status:?}"
    );
    let mut rates = vec![0.0; flows];
    for (part, x) in parts.iter().zip(&solver.solution.x) {
        rates[part.flow] += x * unit;
    }
    rates
}

/// Classes 0 to 4: log, α = 0.5, 2, 3, and log with a bound of 2 Gbit/s.
fn classes() -> ClassTable {
    let alpha = |a| UtilityKind::Alpha(AlphaFair::new(a).expect("a valid α"));
    let class = |utility| Class {
        utility,
        ..Class::default()
    };
    let bounded = Class {
        max_rate_bps: 2e9,
        weight: 2.0,
        ..Class::default()
    };
    ClassTable::new([
        (0, Class::default()),
        (1, class(alpha(0.5))),
        (2, class(alpha(2.0))),
        (3, class(alpha(3.0))),
        (4, bounded),
    ])
    .expect("valid classes")
}

/// Random flows; `kind` chooses classes, weights and demands.
fn random_flows(topology: &Topology, kind: u64, seed: u64) -> Vec<FlowSpec> {
    let mut rng = rng(seed);
    let count = rng.random_range(20..=100);
    (0..count)
        .map(|key| {
            let mut spec = flow(key, &random_path(topology, &mut rng));
            spec.weight = [1.0, 2.0, 4.0][rng.random_range(0..3)];
            if kind % 2 == 1 && rng.random_bool(0.3) {
                spec.demand_bps = rng.random_range(0.1e9..4e9);
            }
            spec.class = match kind {
                0 | 1 => 0,
                2 | 3 => rng.random_range(2..4),
                _ => rng.random_range(0..5),
            };
            spec
        })
        .collect()
}

/// Runs the reference to convergence and compares it with the oracle; returns (error, iterations).
fn compare(topology: &Topology, specs: &[FlowSpec], name: &str) -> (f64, u32) {
    let config = EngineConfig {
        classes: classes(),
        settle_tolerance: 1e-8,
        ..EngineConfig::default()
    };
    let capacities = capacities_bps(topology);
    let mut engine = ReferenceEngine::new(config, &capacities).expect("a valid engine");
    for spec in specs {
        engine
            .apply(EngineEvent::Start(spec.clone()))
            .expect("a valid flow");
    }
    let derated: Vec<f64> = capacities.iter().map(|c| c * engine.derating()).collect();
    let instance = Instance::new(classes(), &derated, specs);
    let mut iterations = 0;
    loop {
        let report = engine.iterate();
        iterations += 1;
        if report.residual <= 1e-8 && report.max_relative_rate_change <= 1e-9 {
            break;
        }
        assert!(iterations < 20_000, "{name}: not converged, {report:?}");
    }
    let rates: Vec<f64> = specs
        .iter()
        .map(|spec| engine.rate_bps(spec.number).expect("a known flow") / RATE_UNIT_BPS)
        .collect();
    assert!(
        fullest(&instance.problem(), &rates) <= 1.0 + 1e-9,
        "{name}: a link is over-allocated"
    );
    let truth = optimum(&instance, 1.0, EXACT);
    let error = largest_error(&rates, &truth);
    assert!(error <= 1e-4, "{name}: relative error {error:e}");
    let optimality = engine.optimality();
    assert!(
        optimality.relative_duality_gap <= 1e-6 && optimality.kkt_residual <= 1e-6,
        "{name}: rates agree with the oracle, but the measures say {optimality:?}"
    );
    (error, iterations)
}

/// Converged rates are the optimum of 60 random instances: two and three tiers; weights 1, 2, 4;
/// log, α-fair and mixed; with and without demands.
#[test]
fn converged_rates_are_the_optimum() {
    let (mut errors, mut iterations) = (Vec::new(), Vec::new());
    for seed in 0..60 {
        let kind = seed % 6;
        let fabric_bps = [10, 15, 40][(seed / 6 % 3) as usize] * 1_000_000_000;
        let tiers = 2 + seed / 3 % 2;
        let topology = if tiers == 2 {
            two_tiers(fabric_bps)
        } else {
            three_tiers(fabric_bps)
        };
        let specs = random_flows(&topology, kind, 1000 + seed);
        let name = format!(
            "seed {seed}, {tiers} tiers, kind {kind}, {} flows",
            specs.len()
        );
        let (error, count) = compare(&topology, &specs, &name);
        errors.push(error);
        iterations.push(count);
    }
    errors.sort_by(f64::total_cmp);
    iterations.sort_unstable();
    println!(
        "60 instances: relative error median {:.1e}, largest {:.1e}; iterations to a residual of 1e-8: median {}, most {}",
        errors[30], errors[59], iterations[30], iterations[59]
    );
}

/// Relative error of the default engine's rates, which it computes in single precision.
const DEFAULT_ERROR: f64 = 1e-3;
/// Relative error of a sum of some thousand rates in single precision.
const ROUNDING: f64 = 2e-5;

/// Makes one iteration of the default engine. From any state, all its results are numbers, and no
/// link carries more than its capacity by this test's own sums. Returns the rates in Gbit/s by
/// number of the flow, and whether the engine rests.
fn iterate(engine: &mut ParallelEngine, instance: &Instance, name: &str) -> (Vec<f64>, bool) {
    let report = engine.iterate();
    engine.drain_updates(&mut |update| {
        assert!(
            update.rate_bps.is_finite() && update.rate_bps >= 0.0,
            "{name}: {update:?}"
        );
    });
    let mut rates = vec![f64::NAN; instance.paths.len()];
    for (key, rate_bps) in engine.rates_bps() {
        rates[key.index() as usize] = rate_bps / RATE_UNIT_BPS;
    }
    assert!(
        rates.iter().all(|rate| rate.is_finite() && *rate >= 0.0),
        "{name}: a rate is no number, or a flow has none"
    );
    let fullest = fullest(&instance.problem(), &rates);
    assert!(
        fullest <= 1.0 + ROUNDING,
        "{name}: a link is full to {fullest}"
    );
    let prices = engine.prices();
    assert!(
        prices.iter().all(|price| (0.0..=1e30).contains(price)),
        "{name}: prices"
    );
    (rates, report.settled)
}

/// Iterates the default engine until it rests with these flows, and checks every iteration. Returns
/// the rates in Gbit/s.
fn rest(engine: &mut ParallelEngine, instance: &Instance, name: &str) -> Vec<f64> {
    for _ in 0..20_000 {
        let (rates, rests) = iterate(engine, instance, name);
        if rests {
            return rates;
        }
    }
    panic!("{name}: not at rest");
}

/// Compares the default engine with the oracle; returns the largest error and the engine with its
/// flows.
fn compare_default(
    topology: &Topology,
    classes: &ClassTable,
    capacities: &[f64],
    specs: &[FlowSpec],
    name: &str,
) -> (f64, ParallelEngine) {
    let config = EngineConfig {
        classes: classes.clone(),
        settle_tolerance: 2e-6,
        ..EngineConfig::default()
    };
    let derating = 1.0 - config.threshold;
    let layout = Layout::of(topology, 1).expect("it can be cut");
    let options = ParallelOptions::default();
    let mut engine = ParallelEngine::new(config, options, layout, capacities).expect("valid");
    for spec in specs {
        let event = EngineEvent::Start(spec.clone());
        engine.apply(event).expect("a valid flow");
    }
    let derated: Vec<f64> = capacities.iter().map(|c| c * derating).collect();
    let instance = Instance::new(classes.clone(), &derated, specs);
    let rates = rest(&mut engine, &instance, name);
    let of_flow = |path: &LinkPath| path_capacity(path, &instance.capacities) / specs.len() as f64;
    // Small rates would drown in the solver's tolerance: rates are in units of an equal share.
    let unit = instance
        .paths
        .iter()
        .map(of_flow)
        .fold(f64::INFINITY, f64::min);
    let truth = optimum(&instance, unit, 1e-8);
    let error = largest_error(&rates, &truth);
    assert!(error <= DEFAULT_ERROR, "{name}: relative error {error:e}");
    assert_eq!(engine.exceptions().price_resets, 0, "{name}");
    (error, engine)
}

/// The default engine finds the optimum of each instance of the reference's test.
#[test]
fn converged_rates_of_the_default_engine_are_the_optimum() {
    let mut worst: f64 = 0.0;
    for seed in 0..60 {
        let kind = seed % 6;
        let fabric_bps = [10, 15, 40][(seed / 6 % 3) as usize] * 1_000_000_000;
        let topology = if seed / 3 % 2 == 0 {
            two_tiers(fabric_bps)
        } else {
            three_tiers(fabric_bps)
        };
        let specs = random_flows(&topology, kind, 1000 + seed);
        let name = format!("seed {seed}, kind {kind}, {} flows", specs.len());
        let capacities = capacities_bps(&topology);
        let (error, _) = compare_default(&topology, &classes(), &capacities, &specs, &name);
        worst = worst.max(error);
    }
    println!("60 instances, default engine: largest relative error {worst:.1e}");
}

/// Classes 0 to 5 of a configuration that mixes them: log, α = 0.5, 2, 4, 8 and 16.
fn mixed_classes() -> ClassTable {
    let alphas = [0.5, 2.0, 4.0, 8.0, 16.0];
    let alpha = |alpha| {
        let utility = AlphaFair::bounded(alpha, 1e9, AlphaFair::MIXED_BOUND);
        Class {
            utility: UtilityKind::Alpha(utility.expect("a valid α")),
            ..Class::default()
        }
    };
    let others = (1..).zip(alphas.map(alpha));
    ClassTable::new(std::iter::once((0, Class::default())).chain(others)).expect("valid classes")
}

/// Flows to one host, whose link alone is narrow, from all other racks.
fn to_one_host(
    topology: &Topology,
    count: u32,
    capacity_bps: f64,
    class: impl Fn(u32) -> u8,
) -> (Vec<f64>, Vec<FlowSpec>) {
    let hosts = topology.hosts().len() as u32;
    let mut capacities = vec![100.0 * capacity_bps; topology.links().len()];
    let specs = (0..count).map(|key| {
        let source = HostId(4 + (key % (hosts - 4)));
        let path = topology
            .path(source, HostId(0), PathChoice::Hash(key))
            .expect("a whole network");
        let links: Vec<u32> = path.iter().map(|link| link.0).collect();
        let mut spec = flow(key, &links);
        spec.class = class(key);
        spec
    });
    let specs: Vec<FlowSpec> = specs.collect();
    let narrow = *specs[0].links.last().expect("a path has links");
    capacities[narrow as usize] = capacity_bps;
    (capacities, specs)
}

/// All flows end and one comes back without a demand. It gets the whole link, at the price at which
/// that is optimal.
fn recovers(engine: &mut ParallelEngine, capacities: &[f64], specs: &[FlowSpec], name: &str) {
    let classes = mixed_classes();
    let derating = 1.0 - EngineConfig::default().threshold;
    let derated: Vec<f64> = capacities.iter().map(|c| c * derating).collect();
    for spec in specs {
        engine.apply(EngineEvent::End(spec.number)).expect("there");
    }
    let no_flows = Instance::new(classes.clone(), &derated, &[]);
    for _ in 0..3 {
        iterate(engine, &no_flows, name);
    }
    let alone = FlowSpec {
        demand_bps: f64::INFINITY,
        ..specs[0].clone()
    };
    engine
        .apply(EngineEvent::Start(alone.clone()))
        .expect("valid");
    let instance = Instance::new(classes.clone(), &derated, std::slice::from_ref(&alone));
    let mut rates = Vec::new();
    for _ in 0..200 {
        (rates, _) = iterate(engine, &instance, name);
    }
    let all = path_capacity(&alone.links, &instance.capacities);
    assert!(
        (rates[0] / all - 1.0).abs() <= DEFAULT_ERROR,
        "{name}: alone, it has {} of {all}",
        rates[0]
    );
    let prices = engine.prices();
    let price: f64 = alone.links.iter().map(|&link| prices[link as usize]).sum();
    let class = classes.get(alone.class).expect("defined");
    let worth = alone.weight * class.utility.marginal(all);
    assert!(
        (price / worth - 1.0).abs() <= 0.01,
        "{name}: alone, its path costs {price}, and its last bit is worth {worth}"
    );
}

/// All classes together with caps, 10 to 2,500 flows on one link of 1 to 400 Gbit/s: rates are
/// optimal at rest. After all flows have ended, a new one gets the link.
#[test]
fn all_classes_share_one_link_at_the_optimum() {
    let topology = two_tiers(10_000_000_000);
    let mut worst: f64 = 0.0;
    let cases = [
        (10, 1e9),
        (10, 400e9),
        (60, 10e9),
        (100, 1e9),
        (100, 100e9),
        (500, 25e9),
        (2_500, 1e9),
        (2_500, 10e9),
        (2_500, 400e9),
    ];
    for (count, capacity_bps) in cases {
        for capped in [false, true] {
            let name = format!("{count} flows on {capacity_bps:e} bit/s, capped: {capped}");
            let (capacities, mut specs) =
                to_one_host(&topology, count, capacity_bps, |key| (key % 6) as u8);
            let share = capacity_bps / f64::from(count);
            for (key, spec) in specs.iter_mut().enumerate() {
                spec.weight = [1.0, 2.0, 4.0][key / 6 % 3];
                if capped && key % 5 < 2 {
                    spec.demand_bps = share * [0.2, 0.9][key % 5];
                }
            }
            let (error, mut engine) =
                compare_default(&topology, &mixed_classes(), &capacities, &specs, &name);
            worst = worst.max(error);
            recovers(&mut engine, &capacities, &specs, &name);
        }
    }
    println!("one link, all classes: largest relative error {worst:.1e}");
}

/// One flow of each class beside a hundred of another has at least 1 % of an equal share.
#[test]
fn no_class_starves_beside_another() {
    let topology = two_tiers(10_000_000_000);
    for capacity_bps in [1e9, 10e9, 400e9] {
        for one in 0..6 {
            for others in 0..6 {
                let name = format!("class {one} beside class {others}, {capacity_bps:e} bit/s");
                let (capacities, specs) = to_one_host(&topology, 101, capacity_bps, |key| {
                    if key == 50 { one } else { others }
                });
                let (_, engine) =
                    compare_default(&topology, &mixed_classes(), &capacities, &specs, &name);
                let rate = engine.rate_bps(FlowNumber::first(50)).expect("there");
                let equal = capacity_bps * 0.99 / 101.0;
                assert!(rate >= 0.01 * equal, "{name}: {rate} of {equal}");
            }
        }
    }
}
