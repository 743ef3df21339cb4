//! Runs iterations of the engine, and times them and their parts.

use anyhow::{Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use ratewright_allocator::engine::RateEngine;
use ratewright_allocator::engine::parallel::{ParallelEngine, PhaseNanos};
use ratewright_cli::clock::{NS_PER_S, now_ns};
use serde::Serialize;

use super::engine_options::EngineOptions;
use super::engine_traffic::EngineTraffic;

/// Iterations between two changes of one flow, without which the engine would come to rest and
/// have nothing to measure. Their own time counts only with `--churn`.
const STIR_INTERVAL: usize = 250;
/// Flows replaced before one iteration, at most. Beyond, each takes longer than the one before it,
/// and has more to do.
const MOST_REPLACED: f64 = 1e6;
/// The share of all iterations, around the median, that stands for the median's.
const MIDDLE: f64 = 0.1;
/// The share of all iterations, the slowest, that stands for p99's.
const SLOWEST: f64 = 0.02;

/// Durations in µs.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct IterationQuantiles {
    pub(super) min: f64,
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
}

/// Distribution of a count per iteration.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct IterationCounts {
    mean: f64,
    p50: usize,
    p99: usize,
    max: usize,
}

/// Mean durations of the first worker's parts of an iteration in µs.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Phases {
    pub(super) events: f64,
    /// Flows moved together, rows put in order.
    pub(super) packing: f64,
    /// Price correction for events.
    pub(super) answers: f64,
    /// The optimiser's pass between those and the new rates, with its waits.
    pub(super) extra_pass: f64,
    /// F-NORM and threshold of the rates before, new rates and their sums: one pass over the flows.
    pub(super) rate_update: f64,
    pub(super) aggregation: f64,
    pub(super) price_update: f64,
    pub(super) distribution: f64,
    /// The second pass over the flows after events.
    pub(super) normalization: f64,
    pub(super) output: f64,
}

/// Iterations by their number of events.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct OfEvents {
    /// The fewest events; those of the next entry are more than the most.
    least: usize,
    iterations: usize,
    p50_us: f64,
}

/// One iteration.
#[derive(Debug, Clone, Copy)]
struct IterationSample {
    total_ns: u64,
    events_ns: u64,
    output_ns: u64,
    events: usize,
    updates: usize,
    phases: PhaseNanos,
    /// A thread of the process had to leave its core meanwhile.
    interrupted: bool,
}

/// Samples of a run's iterations, the shortest first.
pub(super) struct IterationRun {
    samples: Vec<IterationSample>,
}

impl IterationRun {
    /// No iterations.
    pub(super) fn empty() -> Self {
        Self {
            samples: Vec::new(),
        }
    }

    /// Adds the iterations of another run.
    pub(super) fn add(&mut self, other: Self) {
        self.samples.extend(other.samples);
        self.samples.sort_by_key(|sample| sample.total_ns);
    }
}

/// Times that threads of this process had to leave their core.
fn interruptions() -> i64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| usage.involuntary_context_switches())
}

/// Runs the iterations of the options, with their churn.
pub(super) fn iterate(
    options: &EngineOptions,
    engine: &mut ParallelEngine,
    traffic: &mut EngineTraffic<'_>,
) -> Result<IterationRun> {
    let mut samples: Vec<IterationSample> = Vec::with_capacity(options.iterations);
    // Off by default: reading the clock between parts costs time itself.
    engine.time_phases(true);
    let mut due = 0.0;
    let mut events = Vec::new();
    for iteration in 0..options.iterations {
        if options.churn == 0.0 && iteration % STIR_INTERVAL == STIR_INTERVAL - 1 {
            engine.apply(traffic.end()?)?;
            engine.apply(traffic.start()?)?;
            engine.iterate();
            engine.drain_updates(&mut |_| {});
        }
        // Events that came while the last iteration ran. Their generator is not part of the engine:
        // its time does not count, neither for iterations nor for later events.
        let last_ns = samples.last().map_or(0, |sample| sample.total_ns);
        due += options.churn * last_ns as f64 / NS_PER_S as f64;
        ensure!(
            due <= MOST_REPLACED,
            "--churn {}: the engine does not keep up, {due:.0} flows wait to be replaced after {iteration} iterations",
            options.churn
        );
        while due >= 1.0 {
            due -= 1.0;
            events.push(traffic.end()?);
            events.push(traffic.start()?);
        }
        let count = events.len();
        // The engine adds phases up over its life: differences are those of this iteration.
        let (phases, interrupted) = (engine.phases(), interruptions());
        let mut updates = 0;
        let began_ns = now_ns();
        for event in events.drain(..) {
            engine.apply(event)?;
        }
        let applied_ns = now_ns();
        engine.iterate();
        let iterated_ns = now_ns();
        engine.drain_updates(&mut |_| updates += 1);
        let ended_ns = now_ns();
        samples.push(IterationSample {
            total_ns: ended_ns - began_ns,
            events_ns: applied_ns - began_ns,
            output_ns: ended_ns - iterated_ns,
            events: count,
            updates,
            phases: engine.phases().since(phases),
            interrupted: interruptions() > interrupted,
        });
    }
    // Quantiles and the slices around them are indices into the sorted list.
    samples.sort_by_key(|sample| sample.total_ns);
    Ok(IterationRun { samples })
}

/// The item of an ordered list below which this share of it is.
fn at<T: Copy>(list: &[T], share: f64) -> T {
    list[((list.len() - 1) as f64 * share) as usize]
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

impl IterationRun {
    /// All iterations; or those of which no thread had to leave its core, if there are any.
    pub(super) fn quantiles(&self, uninterrupted: bool) -> Option<IterationQuantiles> {
        let of = |sample: &&IterationSample| !(uninterrupted && sample.interrupted);
        let samples: Vec<&IterationSample> = self.samples.iter().filter(of).collect();
        if samples.is_empty() {
            return None;
        }
        let total_ns: u64 = samples.iter().map(|sample| sample.total_ns).sum();
        let at = |share| us(at(&samples, share).total_ns);
        Some(IterationQuantiles {
            min: at(0.0),
            mean: us(total_ns) / samples.len() as f64,
            p50: at(0.5),
            p99: at(0.99),
        })
    }

    /// Iterations during which a thread had to leave its core.
    pub(super) fn interrupted(&self) -> usize {
        self.samples
            .iter()
            .filter(|sample| sample.interrupted)
            .count()
    }

    /// Mean parts of all iterations.
    pub(super) fn phases(&self) -> Phases {
        phases(&self.samples)
    }

    /// Those of the iterations around the median.
    pub(super) fn middle_phases(&self) -> Phases {
        let count = self.samples.len();
        // The same number is left out on either side of the median.
        let margin = (count as f64 * (1.0 - MIDDLE) / 2.0) as usize;
        phases(&self.samples[margin..count - margin])
    }

    /// Those of the slowest iterations.
    pub(super) fn slowest_phases(&self) -> Phases {
        let count = self.samples.len();
        // At least one, in runs of less than fifty iterations.
        let slowest = ((count as f64 * SLOWEST) as usize).max(1);
        phases(&self.samples[count - slowest..])
    }

    pub(super) fn events(&self) -> IterationCounts {
        counts(self.samples.iter().map(|sample| sample.events).collect())
    }

    pub(super) fn updates(&self) -> IterationCounts {
        counts(self.samples.iter().map(|sample| sample.updates).collect())
    }

    pub(super) fn events_per_s(&self) -> f64 {
        let events = self.samples.iter().map(|sample| sample.events).sum();
        per_second(
            events,
            self.samples.iter().map(|sample| sample.total_ns).sum(),
        )
    }

    /// Iterations by their events, in powers of two.
    pub(super) fn by_events(&self) -> Vec<OfEvents> {
        let most = self.samples.iter().map(|sample| sample.events).max();
        let bits = |events: usize| usize::BITS - events.leading_zeros();
        let of = |class: u32| {
            let samples = self.samples.iter();
            let times: Vec<u64> = samples
                .filter(|sample| bits(sample.events) == class)
                .map(|sample| sample.total_ns)
                .collect();
            let some = !times.is_empty();
            some.then(|| OfEvents {
                // Class n holds counts of n bits, from 2^(n-1) on; class 0 is no event.
                least: if class == 0 { 0 } else { 1 << (class - 1) },
                iterations: times.len(),
                p50_us: us(at(&times, 0.5)),
            })
        };
        (0..=bits(most.unwrap_or(0))).filter_map(of).collect()
    }
}

fn counts(mut list: Vec<usize>) -> IterationCounts {
    list.sort_unstable();
    IterationCounts {
        mean: list.iter().sum::<usize>() as f64 / list.len() as f64,
        p50: at(&list, 0.5),
        p99: at(&list, 0.99),
        max: at(&list, 1.0),
    }
}

fn phases(samples: &[IterationSample]) -> Phases {
    let mean =
        |of: fn(&IterationSample) -> u64| us(samples.iter().map(of).sum()) / samples.len() as f64;
    Phases {
        events: mean(|sample| sample.events_ns),
        packing: mean(|sample| sample.phases.compaction),
        answers: mean(|sample| sample.phases.price_correction),
        extra_pass: mean(|sample| sample.phases.extra_pass),
        rate_update: mean(|sample| sample.phases.rate_update),
        aggregation: mean(|sample| sample.phases.aggregation_wait),
        price_update: mean(|sample| sample.phases.price_update),
        distribution: mean(|sample| sample.phases.distribution_wait),
        normalization: mean(|sample| sample.phases.normalization),
        output: mean(|sample| sample.output_ns),
    }
}

/// Converts a count over `ns` nanoseconds into a rate per second.
pub(super) fn per_second(count: usize, ns: u64) -> f64 {
    count as f64 * NS_PER_S as f64 / ns.max(1) as f64
}
