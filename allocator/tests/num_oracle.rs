//! NED and F-NORM against an interior-point solver with exponential and power cones.

mod num_support;

use clarabel::algebra::CscMatrix;
use clarabel::solver::{
    DefaultSettings, DefaultSolver, IPSolver, SolverStatus, SupportedConeT,
    SupportedConeT::{ExponentialConeT, NonnegativeConeT, PowerConeT},
};
use num_support::{
    Instance, capacities_bps, flow, fullest, largest_error, random_path, rng, three_tiers,
    two_tiers,
};
use rand::RngExt;
use ratewright_allocator::engine::{
    EngineConfig, EngineEvent, FlowSpec, RateEngine, ReferenceEngine,
};
use ratewright_allocator::num::RATE_UNIT_BPS;
use ratewright_allocator::num::utility::{AlphaFair, Class, ClassTable, UtilityKind};
use ratewright_topology::Topology;

/// The rows of a constraint matrix, with the cone they lie in.
#[derive(Default)]
struct Rows {
    row: Vec<usize>,
    column: Vec<usize>,
    value: Vec<f64>,
    right: Vec<f64>,
    cones: Vec<SupportedConeT<f64>>,
}

impl Rows {
    /// One row: the slack is `right − Σ value · variable`.
    fn push(&mut self, entries: &[(usize, f64)], right: f64) {
        for &(column, value) in entries {
            self.row.push(self.right.len());
            self.column.push(column);
            self.value.push(value);
        }
        self.right.push(right);
    }
}

/// The optimal rates: variables x_s and t_s ≤ U_s(x_s), maximise Σ w t.
fn optimum(instance: &Instance) -> Vec<f64> {
    let flows = instance.paths.len();
    let mut rows = Rows::default();
    for (link, &capacity) in instance.capacities.iter().enumerate() {
        let over: Vec<(usize, f64)> = (0..flows)
            .filter(|&s| instance.paths[s].contains(&(link as u32)))
            .map(|s| (s, 1.0))
            .collect();
        if !over.is_empty() {
            rows.push(&over, capacity);
        }
    }
    for (s, &demand) in instance.demands.iter().enumerate() {
        if demand.is_finite() {
            rows.push(&[(s, 1.0)], demand);
        }
    }
    rows.cones.push(NonnegativeConeT(rows.right.len()));
    let mut objective = vec![0.0; 2 * flows];
    for s in 0..flows {
        let (x, t, weight) = (s, flows + s, instance.weights[s]);
        let class = instance
            .classes
            .get(instance.class_ids[s])
            .expect("a defined class");
        match &class.utility {
            UtilityKind::Log => {
                // (t, 1, x): e^t ≤ x.
                rows.push(&[(t, -1.0)], 0.0);
                rows.push(&[], 1.0);
                rows.push(&[(x, -1.0)], 0.0);
                rows.cones.push(ExponentialConeT());
                objective[t] = -weight;
            }
            UtilityKind::Alpha(u) if u.alpha() < 1.0 => {
                // (x, 1, t): t ≤ x^(1−α).
                rows.push(&[(x, -1.0)], 0.0);
                rows.push(&[], 1.0);
                rows.push(&[(t, -1.0)], 0.0);
                rows.cones.push(PowerConeT(1.0 - u.alpha()));
                objective[t] = -weight / (1.0 - u.alpha());
            }
            UtilityKind::Alpha(u) => {
                // (x, t, 1): x^(α−1) t ≥ 1.
                rows.push(&[(x, -1.0)], 0.0);
                rows.push(&[(t, -1.0)], 0.0);
                rows.push(&[], 1.0);
                rows.cones.push(PowerConeT((u.alpha() - 1.0) / u.alpha()));
                objective[t] = weight / (u.alpha() - 1.0);
            }
            UtilityKind::Custom(_) => unreachable!("the oracle knows the built-in utilities"),
        }
    }
    let settings = DefaultSettings {
        verbose: false,
        tol_gap_abs: 1e-11,
        tol_gap_rel: 1e-11,
        tol_feas: 1e-10,
        ..DefaultSettings::default()
    };
    let constraints = CscMatrix::new_from_triplets(
        rows.right.len(),
        2 * flows,
        rows.row,
        rows.column,
        rows.value,
    );
    let quadratic = CscMatrix::zeros((2 * flows, 2 * flows));
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
    solver.solution.x[..flows].to_vec()
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

/// Random flows: `kind` says what they are made of.
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

/// Runs the engine to convergence and compares with the oracle; returns (error, iterations).
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
        .map(|spec| engine.rate_bps(spec.key).expect("a known flow") / RATE_UNIT_BPS)
        .collect();
    assert!(
        fullest(&instance.problem(), &rates) <= 1.0 + 1e-9,
        "{name}: a link is over-allocated"
    );
    let truth = optimum(&instance);
    let error = largest_error(&rates, &truth);
    assert!(error <= 1e-4, "{name}: relative error {error:e}");
    let optimality = engine.optimality();
    assert!(
        optimality.relative_duality_gap <= 1e-6 && optimality.kkt_residual <= 1e-6,
        "{name}: rates agree with the oracle, but the measures say {optimality:?}"
    );
    (error, iterations)
}

/// The optimum of 60 random instances: two and three tiers; weights 1, 2, 4; log, α-fair and mixed;
/// with and without demands.
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
