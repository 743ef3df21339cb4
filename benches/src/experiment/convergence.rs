//! Time to the new optimum after some flows were replaced, by step rule.
//!
//! At converged prices a share of the flows is replaced by flows between other hosts. Then each
//! rule iterates. After every iteration, F-NORM included, the normalised rates are compared with
//! the optimum of the new flows. The unit of time is an iteration of plain NED with F-NORM, on one
//! thread, in the same code: an exact iteration that takes four times as long gains nothing. A
//! rule's work at the events counts; updates of tables and indices, which every rule needs, do not.

pub mod engine;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use ratewright_allocator::num::{FNorm, LinkPath, Normalizer, Optimizer};
use ratewright_topology::TwoTierClos;

use self::engine::EngineFigures;
use super::flow_set::{FlowSet, FlowSetError};
use super::rules::{PLAIN, Prelude, Rule};
use super::{optimum, quantile};
use crate::optimizers::CoordinateDescent;

/// Residual up to which the optima are computed.
const OPTIMUM_RESIDUAL: f64 = 1e-10;
/// Iterations at the old optimum before flows are replaced, in which a rule computes its sums.
const SETTLE: u32 = 10;
/// Target: time since the events, in iterations of plain NED.
pub const TARGET_TIME: f64 = 2.0;
/// Target: 99th percentile of rate errors within [`TARGET_TIME`].
pub const TARGET_P99_ERROR: f64 = 0.07;
/// Target: throughput within [`TARGET_TIME`], as a share of the optimum.
pub const TARGET_THROUGHPUT: f64 = 0.99;

/// Settings of the experiment.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The network.
    pub network: TwoTierClos,
    /// Flows, all between random hosts.
    pub flows: usize,
    /// Number of flows that are replaced.
    pub replaced: usize,
    /// Iterations after the replacement.
    pub iterations: usize,
    /// Random cases; figures are means over them.
    pub cases: u32,
    /// Runs of every case, of which the shortest times count: interruptions only lengthen them.
    pub repeats: u32,
    /// Seed of the first case.
    pub seed: u64,
}

impl Default for Setup {
    /// 12,288 flows on 1,536 hosts in 96 racks, 1 % replaced.
    fn default() -> Self {
        Self {
            network: TwoTierClos {
                racks: 96,
                ..super::flowlets::paper_network()
            },
            flows: 12_288,
            replaced: 123,
            iterations: 10,
            cases: 3,
            repeats: 15,
            seed: 1,
        }
    }
}

/// Figures of a rule's rates after an iteration; means over the cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Point {
    /// Iterations since the events.
    pub iteration: usize,
    /// Time since the events, in iterations of plain NED.
    pub time: f64,
    /// The 99th percentile of |x / optimum − 1| after F-NORM.
    pub p99_rate_error: f64,
    /// Σ x after F-NORM over the optimum's.
    pub throughput: f64,
}

/// A rule's figures.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct RuleFigures {
    /// The rule.
    pub rule: &'static str,
    /// Short description.
    pub what: &'static str,
    /// Time of an iteration that follows no events, in iterations of plain NED.
    pub iteration_time: f64,
    /// Last of `points` within the target's time; none if even the first is later.
    pub in_time: Option<Point>,
    /// True if that point meets the target.
    pub meets_target: bool,
    /// Figures after each iteration.
    pub points: Vec<Point>,
}

/// All rules' figures.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Convergence {
    /// Hosts.
    pub hosts: usize,
    /// Directed links.
    pub links: usize,
    /// Flows.
    pub flows: usize,
    /// Flows replaced.
    pub replaced: usize,
    /// Random cases.
    pub cases: u32,
    /// An iteration of plain NED with F-NORM, in microseconds.
    pub plain_iteration_us: f64,
    /// [`TARGET_TIME`].
    pub target_time: f64,
    /// [`TARGET_P99_ERROR`].
    pub target_p99_rate_error: f64,
    /// [`TARGET_THROUGHPUT`].
    pub target_throughput: f64,
    /// Figures by rule.
    pub rules: Vec<RuleFigures>,
    /// Figures of the parallel engine, if it was measured.
    pub engines: Vec<EngineFigures>,
}

/// One random case: flows before and after the replacement, with both optima.
struct ReplacementCase {
    before: FlowSet,
    after: FlowSet,
    /// Indices of the replaced flows.
    replaced: Vec<usize>,
    /// Paths of `replaced` before the replacement.
    old_paths: Vec<LinkPath>,
    old_prices: Vec<f64>,
    optimum_rates: Vec<f64>,
}

impl ReplacementCase {
    fn new(setup: &Setup, seed: u64) -> Result<Self, FlowSetError> {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let mut before = FlowSet::new(&setup.network)?;
        let mut after = FlowSet::new(&setup.network)?;
        for _ in 0..setup.flows {
            let path = before.random_path(&mut rng)?;
            before.push(path.clone());
            after.push(path);
        }
        let mut replaced = Vec::with_capacity(setup.replaced);
        let mut old_paths = Vec::with_capacity(setup.replaced);
        // Drawn without repetition, and never more than there are flows.
        while replaced.len() < setup.replaced.min(setup.flows) {
            let flow = rng.random_range(0..setup.flows);
            if !replaced.contains(&flow) {
                replaced.push(flow);
                old_paths.push(before.view(flow).path.iter().copied().collect());
                after.replace(flow, after.random_path(&mut rng)?);
            }
        }
        let mut solver = CoordinateDescent::new(before.links());
        let mut optimum_rates = Vec::new();
        optimum(
            &mut solver,
            &before.problem(),
            OPTIMUM_RESIDUAL,
            &mut optimum_rates,
        );
        let old_prices = solver.prices().to_vec();
        // The old prices are copied: the solver goes on from them to the new optimum.
        optimum(
            &mut solver,
            &after.problem(),
            OPTIMUM_RESIDUAL,
            &mut optimum_rates,
        );
        Ok(Self {
            before,
            after,
            replaced,
            old_paths,
            old_prices,
            optimum_rates,
        })
    }

    /// Returns the links of the replaced flows' old and new paths, in ascending order.
    fn dirty_links(&self) -> Vec<usize> {
        let joined = self.replaced.iter().map(|&f| self.after.view(f).path);
        let left = self.old_paths.iter().map(|p| &p[..]);
        let mut links: Vec<usize> = joined.chain(left).flatten().map(|&l| l as usize).collect();
        links.sort_unstable();
        links.dedup();
        links
    }

    /// Counts the flows over each link.
    fn counts(flow_set: &FlowSet) -> Vec<f64> {
        let mut counts = vec![0.0; flow_set.links()];
        for path in flow_set.problem().flows.paths {
            path.iter().for_each(|&l| counts[l as usize] += 1.0);
        }
        counts
    }
}

/// One run of a rule on a case.
struct RuleRun {
    /// Time from the events to the end of each iteration.
    elapsed_ns: Vec<u64>,
    points: Vec<Point>,
}

fn run(
    case: &ReplacementCase,
    rule: &Rule,
    iterations: usize,
    clock: &mut dyn FnMut() -> u64,
) -> RuleRun {
    let links = case.before.links();
    let mut optimizer = (rule.make)(links);
    // Prices at rest, so that only the response to the events is measured.
    optimizer.warm_start(&case.old_prices);
    let (before, after) = (case.before.problem(), case.after.problem());
    let mut rates = vec![0.0; case.optimum_rates.len()];
    let mut normalized = rates.clone();
    let mut f_norm = FNorm::default();
    for _ in 0..SETTLE {
        optimizer.iterate(&before, &mut rates);
        f_norm.normalize(&before, &rates, &mut normalized);
    }
    let dirty_links = case.dirty_links();
    let (had, has) = (
        ReplacementCase::counts(&case.before),
        ReplacementCase::counts(&case.after),
    );
    let mut local = CoordinateDescent::new(links);
    local.index(&after);
    // Index and copies are made before the clock starts: any rule needs such tables.
    let mut prices = optimizer.prices().to_vec();

    let started_ns = clock();
    for &flow in &case.replaced {
        optimizer.flow_ended(&case.before.view(flow));
        optimizer.flow_started(&case.after.view(flow));
    }
    match rule.prelude {
        Prelude::Nothing => {}
        Prelude::ScalePrices => {
            for &link in &dirty_links {
                // Without flows before or after, the ratio says nothing about the price.
                if had[link] > 0.0 && has[link] > 0.0 {
                    prices[link] *= has[link] / had[link];
                }
            }
            optimizer.warm_start(&prices);
        }
        Prelude::SweepDirtyLinks(sweeps) => {
            local.warm_start(&prices);
            for _ in 0..sweeps {
                local.sweep(&after, dirty_links.iter().copied());
            }
            optimizer.warm_start(local.prices());
        }
        Prelude::InnerIterations(count) => {
            for _ in 0..count {
                optimizer.iterate(&after, &mut rates);
            }
        }
    }
    let mut spent_ns = clock() - started_ns;
    let mut result = RuleRun {
        elapsed_ns: Vec::with_capacity(iterations),
        points: Vec::with_capacity(iterations),
    };
    for iteration in 1..=iterations {
        let begin_ns = clock();
        optimizer.iterate(&after, &mut rates);
        f_norm.normalize(&after, &rates, &mut normalized);
        spent_ns += clock() - begin_ns;
        result.elapsed_ns.push(spent_ns);
        result
            .points
            .push(compare(iteration, &normalized, &case.optimum_rates));
    }
    result
}

fn compare(iteration: usize, rates: &[f64], optimum_rates: &[f64]) -> Point {
    let error = |(x, t): (&f64, &f64)| (x / t - 1.0).abs();
    let mut errors: Vec<f64> = rates.iter().zip(optimum_rates).map(error).collect();
    Point {
        iteration,
        time: 0.0,
        p99_rate_error: quantile(&mut errors, 0.99),
        throughput: rates.iter().sum::<f64>() / optimum_rates.iter().sum::<f64>(),
    }
}

/// Returns the end time of each iteration, with each iteration at its shortest of all repeats, and
/// the points.
fn best_run(
    case: &ReplacementCase,
    rule: &Rule,
    setup: &Setup,
    clock: &mut dyn FnMut() -> u64,
) -> (Vec<f64>, Vec<Point>) {
    // The minimum over repeats leaves out interruptions by the system.
    let mut shortest = vec![u64::MAX; setup.iterations];
    let mut points = Vec::new();
    for _ in 0..setup.repeats.max(1) {
        let run = run(case, rule, setup.iterations, clock);
        let mut last = 0;
        for (best, &elapsed) in shortest.iter_mut().zip(&run.elapsed_ns) {
            *best = (*best).min(elapsed - last);
            last = elapsed;
        }
        // Rates are deterministic: every repeat has the same points.
        points = run.points;
    }
    let mut sum = 0.0;
    let ends = shortest.iter().map(|&ns| {
        sum += ns as f64;
        sum
    });
    (ends.collect(), points)
}

/// Measures the rules. `clock` returns nanoseconds; `progress` is called before each rule.
///
/// # Errors
/// A network that cannot be built.
pub fn measure(
    setup: &Setup,
    rules: &[Rule],
    clock: &mut dyn FnMut() -> u64,
    progress: &mut dyn FnMut(&'static str),
) -> Result<Convergence, FlowSetError> {
    let cases = (0..u64::from(setup.cases.max(1)))
        .map(|i| ReplacementCase::new(setup, setup.seed.wrapping_add(i)))
        .collect::<Result<Vec<_>, _>>()?;
    let count = cases.len() as f64;
    // The unit of time is measured on the same cases, right before the rules.
    let mut unit_ns = 0.0;
    for case in &cases {
        let (ends, _) = best_run(case, &PLAIN, setup, clock);
        unit_ns += ends.last().unwrap_or(&0.0) / setup.iterations as f64 / count;
    }
    let mut figures = Vec::with_capacity(rules.len());
    for rule in rules {
        progress(rule.name);
        let mut points = vec![Point::default(); setup.iterations];
        for case in &cases {
            let (ends, of_case) = best_run(case, rule, setup, clock);
            for ((sum, end), point) in points.iter_mut().zip(ends).zip(of_case) {
                sum.iteration = point.iteration;
                sum.time += end / unit_ns / count;
                sum.p99_rate_error += point.p99_rate_error / count;
                sum.throughput += point.throughput / count;
            }
        }
        figures.push(summarise(rule.name, rule.what, points));
    }
    let first = &cases[0];
    Ok(Convergence {
        hosts: first.before.hosts(),
        links: first.before.links(),
        flows: setup.flows,
        replaced: first.replaced.len(),
        cases: setup.cases.max(1),
        plain_iteration_us: unit_ns / 1e3,
        target_time: TARGET_TIME,
        target_p99_rate_error: TARGET_P99_ERROR,
        target_throughput: TARGET_THROUGHPUT,
        rules: figures,
        engines: Vec::new(),
    })
}

fn summarise(rule: &'static str, what: &'static str, points: Vec<Point>) -> RuleFigures {
    // The first iteration is left out of the mean: it follows the events.
    let steady = match points.as_slice() {
        [first, .., last] => (last.time - first.time) / (points.len() - 1) as f64,
        [only] => only.time,
        [] => 0.0,
    };
    // The latest point in time: rates are judged as they stand at the target's end.
    let in_time = points.iter().rev().find(|p| p.time <= TARGET_TIME).copied();
    let meets =
        |p: Point| p.p99_rate_error <= TARGET_P99_ERROR && p.throughput >= TARGET_THROUGHPUT;
    RuleFigures {
        rule,
        what,
        iteration_time: steady,
        in_time,
        meets_target: in_time.is_some_and(meets),
        points,
    }
}
