//! The parallel engine in the convergence experiment: notified rates after each of its iterations.
//!
//! Notified rates differ from the engine's own by up to the notification threshold, and optima are
//! those of the derated capacities. The unit of time is an iteration of plain NED with F-NORM in
//! the same engine, so that single precision and vector instructions speed up both alike; time in
//! the f64 optimiser's iterations stands beside it. As for all rules, tables and indices do not
//! count: of an event's cost, only the difference between the safeguarded rule and the plain one
//! does.

use ratewright_allocator::engine::parallel::{ParallelEngine, ParallelOptions, PhaseNanos};
use ratewright_allocator::engine::{
    EngineConfig, EngineError, EngineEvent, FlowNumber, FlowSpec, RateEngine, RateUpdate, StepRule,
};
use ratewright_allocator::num::RATE_UNIT_BPS;

use super::{Point, ReplacementCase, RuleFigures, Setup, compare, summarise};
use crate::experiment::flow_set::{FlowSet, FlowSetError};

/// Most iterations for an engine to settle at the flows before.
const MOST_ITERATIONS: u32 = 20_000;

/// Figures of one engine.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct EngineFigures {
    /// Threads.
    pub workers: usize,
    /// Instruction set.
    pub simd: &'static str,
    /// Duration of an iteration of plain NED in this engine, in microseconds: the unit of time.
    pub plain_iteration_us: f64,
    /// Time to apply all events, tables included, in microseconds. Only its excess over plain NED's
    /// counts in the points' times.
    pub events_us: f64,
    /// Figures that every rule has.
    #[serde(flatten)]
    pub figures: RuleFigures,
    /// End of each iteration, in iterations of plain NED in double precision on one thread.
    pub reference_times: Vec<f64>,
    /// Phases of the first iteration.
    pub first_iteration: FirstIteration,
}

/// Phases of the iteration that follows the events, in microseconds: each the shortest of all
/// repeats, so that their sum is less than any iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct FirstIteration {
    /// Recording the events for price correction, and compaction.
    pub noting_us: f64,
    /// Price correction.
    pub answers_us: f64,
    /// Additional pass after the correction.
    pub extra_pass_us: f64,
    /// Rate update, with the links' sums.
    pub rates_us: f64,
    /// Price update.
    pub prices_us: f64,
    /// F-NORM and the notification threshold.
    pub normalization_us: f64,
    /// Output of the rates that moved beyond the threshold.
    pub output_us: f64,
    /// Number of those rates.
    pub updates: usize,
}

/// Error for an engine that cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum EngineRowError {
    /// The network cannot be built.
    #[error(transparent)]
    FlowSet(#[from] FlowSetError),
    /// The engine cannot be made, or refuses a flow.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Shortest times of a case, in nanoseconds, and its points.
struct BestRun {
    events_ns: u64,
    iterations_ns: Vec<u64>,
    points: Vec<Point>,
    first: FirstIteration,
}

impl FirstIteration {
    fn of(phases: PhaseNanos, output_ns: u64, updates: usize) -> Self {
        let us = |ns: u64| ns as f64 / 1e3;
        Self {
            noting_us: us(phases.compaction - phases.row_updates),
            answers_us: us(phases.price_correction),
            extra_pass_us: us(phases.extra_pass),
            rates_us: us(phases.rate_update),
            prices_us: us(phases.price_update),
            normalization_us: us(phases.normalization),
            output_us: us(output_ns),
            updates,
        }
    }

    /// Combines both phase by phase, times by `us` and numbers of updates by `updates`.
    fn with(
        self,
        other: Self,
        us: impl Fn(f64, f64) -> f64,
        updates: impl Fn(usize, usize) -> usize,
    ) -> Self {
        Self {
            noting_us: us(self.noting_us, other.noting_us),
            answers_us: us(self.answers_us, other.answers_us),
            extra_pass_us: us(self.extra_pass_us, other.extra_pass_us),
            rates_us: us(self.rates_us, other.rates_us),
            prices_us: us(self.prices_us, other.prices_us),
            normalization_us: us(self.normalization_us, other.normalization_us),
            output_us: us(self.output_us, other.output_us),
            updates: updates(self.updates, other.updates),
        }
    }

    /// Takes the shorter time of each phase.
    fn shortest(self, other: Self) -> Self {
        // Numbers of updates are equal in all repeats; either would do.
        self.with(other, f64::min, usize::max)
    }

    /// Computes the means over the cases.
    fn mean(runs: &[BestRun]) -> Self {
        let count = runs.len();
        let add_share = |sum, us| sum + us / count as f64;
        let sum = runs.iter().fold(Self::default(), |sum, best| {
            sum.with(best.first, add_share, |sum, updates| sum + updates)
        });
        Self {
            updates: sum.updates / count,
            ..sum
        }
    }
}

fn start(flow_set: &FlowSet, flow: usize) -> EngineEvent {
    EngineEvent::Start(FlowSpec {
        // The flow's number is its index, by which rates are found again.
        number: FlowNumber::first(flow as u32),
        links: flow_set.view(flow).path.iter().copied().collect(),
        class: 0,
        weight: 1.0,
        demand_bps: f64::INFINITY,
    })
}

fn run(
    case: &ReplacementCase,
    step_rule: StepRule,
    options: &ParallelOptions,
    iterations: usize,
    clock: &mut dyn FnMut() -> u64,
) -> Result<BestRun, EngineError> {
    let config = EngineConfig {
        step_rule,
        ..EngineConfig::default()
    };
    // The engine derates capacities by the threshold; rates of log flows scale with all capacities.
    let derating = 1.0 - config.threshold;
    let optimum_rates: Vec<f64> = case
        .optimum_rates
        .iter()
        .map(|rate| rate * derating)
        .collect();
    let capacities: Vec<f64> = case.before.problem().capacities.to_vec();
    let capacities_bps: Vec<f64> = capacities.iter().map(|c| c * RATE_UNIT_BPS).collect();
    let mut engine = ParallelEngine::for_topology(
        config,
        options.clone(),
        case.before.topology(),
        &capacities_bps,
    )?;
    let mut notified = vec![0.0; optimum_rates.len()];
    for flow in 0..optimum_rates.len() {
        engine.apply(start(&case.before, flow))?;
    }
    for _ in 0..MOST_ITERATIONS {
        if step(&mut engine, &mut notified) {
            break;
        }
    }
    let mut events = Vec::with_capacity(2 * case.replaced.len());
    for &flow in &case.replaced {
        events.push(EngineEvent::End(FlowNumber::first(flow as u32)));
        events.push(start(&case.after, flow));
        // A new flow has no rate until the engine sends one.
        notified[flow] = 0.0;
    }
    // Not before: timing costs time, and convergence to rest is not measured.
    engine.time_phases(true);
    let begin_ns = clock();
    for event in events {
        engine.apply(event)?;
    }
    let mut run = BestRun {
        events_ns: clock() - begin_ns,
        iterations_ns: Vec::with_capacity(iterations),
        points: Vec::with_capacity(iterations),
        first: FirstIteration::default(),
    };
    // Filled before the clock starts, so that no page fault counts as output.
    let nothing = RateUpdate {
        number: FlowNumber::first(0),
        rate_bps: 0.0,
    };
    let mut updates = vec![nothing; optimum_rates.len()];
    for iteration in 1..=iterations {
        let begin_ns = clock();
        let before = engine.phases();
        let report = engine.iterate();
        let iterated_ns = clock();
        updates.clear();
        engine.drain_updates(&mut |update| updates.push(update));
        let end_ns = clock();
        updates
            .iter()
            .for_each(|update| take(update, &mut notified));
        let phases = engine.phases().since(before);
        // The engine updates the rows of replaced flows in the first iteration: that is the events'
        // cost.
        run.events_ns += phases.row_updates;
        run.iterations_ns
            .push((end_ns - begin_ns).saturating_sub(phases.row_updates));
        if iteration == 1 {
            run.first = FirstIteration::of(phases, end_ns - iterated_ns, report.updates);
        }
        run.points
            .push(compare(iteration, &notified, &optimum_rates));
    }
    Ok(run)
}

/// Runs an iteration and takes its output; returns true if the engine has settled.
fn step(engine: &mut ParallelEngine, notified: &mut [f64]) -> bool {
    let settled = engine.iterate().settled;
    engine.drain_updates(&mut |update| take(&update, notified));
    settled
}

fn take(update: &RateUpdate, notified: &mut [f64]) {
    notified[update.number.index() as usize] = update.rate_bps / RATE_UNIT_BPS;
}

impl BestRun {
    /// Takes the shorter time of the events and of each iteration.
    fn or(mut self, again: Self) -> Self {
        self.events_ns = self.events_ns.min(again.events_ns);
        self.first = self.first.shortest(again.first);
        for (best_ns, ns) in self.iterations_ns.iter_mut().zip(again.iterations_ns) {
            *best_ns = (*best_ns).min(ns);
        }
        self
    }
}

/// Measures the parallel engine with `workers` workers, under plain NED and under its default rule.
///
/// # Errors
/// A network that cannot be built, or more workers than the engine can use.
pub fn measure_engine(
    setup: &Setup,
    workers: usize,
    reference_iteration_us: f64,
    clock: &mut dyn FnMut() -> u64,
) -> Result<Vec<EngineFigures>, EngineRowError> {
    let options = ParallelOptions {
        workers,
        ..ParallelOptions::default()
    };
    let cases = (0..u64::from(setup.cases.max(1)))
        .map(|i| ReplacementCase::new(setup, setup.seed.wrapping_add(i)))
        .collect::<Result<Vec<_>, _>>()?;
    let count = cases.len() as f64;
    let mut plain = Vec::with_capacity(cases.len());
    let mut ours = Vec::with_capacity(cases.len());
    for case in &cases {
        let mut both = |step_rule| run(case, step_rule, &options, setup.iterations, clock);
        let mut best = (both(StepRule::Ned)?, both(StepRule::Safeguarded)?);
        for _ in 1..setup.repeats {
            // In turns: the speed of a virtual machine drifts.
            let again = (both(StepRule::Ned)?, both(StepRule::Safeguarded)?);
            best = (best.0.or(again.0), best.1.or(again.1));
        }
        plain.push(best.0);
        ours.push(best.1);
    }
    let of_all = |best: &BestRun| best.iterations_ns.iter().sum::<u64>() as f64;
    let unit_ns = plain.iter().map(of_all).sum::<f64>() / setup.iterations as f64 / count;
    let figures = |rule, what, runs: &[BestRun]| {
        let mut points = vec![Point::default(); setup.iterations];
        let mut events_ns = 0.0;
        for (best, plain) in runs.iter().zip(&plain) {
            events_ns += best.events_ns as f64 / count;
            let mut end_ns = best.events_ns.saturating_sub(plain.events_ns);
            for ((sum, ns), point) in points.iter_mut().zip(&best.iterations_ns).zip(&best.points) {
                end_ns += ns;
                sum.iteration = point.iteration;
                sum.time += end_ns as f64 / unit_ns / count;
                sum.p99_rate_error += point.p99_rate_error / count;
                sum.throughput += point.throughput / count;
            }
        }
        let reference_time = |p: &Point| p.time * unit_ns / 1e3 / reference_iteration_us;
        EngineFigures {
            workers,
            simd: options.simd.name(),
            plain_iteration_us: unit_ns / 1e3,
            events_us: events_ns / 1e3,
            reference_times: points.iter().map(reference_time).collect(),
            first_iteration: FirstIteration::mean(runs),
            figures: summarise(rule, what, points),
        }
    };
    Ok(vec![
        figures("parallel", "the parallel engine as it runs", &ours),
        figures(
            "parallel-plain",
            "the parallel engine under plain NED",
            &plain,
        ),
    ])
}
