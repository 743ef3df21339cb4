//! The parallel engine on one worker, by kernel and instruction set:
//!
//! | group | measures |
//! |---|---|
//! | `iteration` | a whole iteration without events |
//! | `fused_walk` | its pass: F-NORM of the last rates, new rates, their sums |
//! | `rate_walk` | the first pass after events: new rates, their sums |
//! | `norm_walk` | the second pass after events: F-NORM, and the rates that moved |
//! | `prices` | the price update of every link |
//! | `answers` | the price correction of dirty links |
//! | `replace_a_flow` | the end of one flowlet and the start of another |
#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ratewright_allocator::engine::parallel::{PhaseNanos, Simd};
use ratewright_bench::SIZES;
use ratewright_bench::parallel::{Busy, two_tiers};

/// A kernel, named for its phase of an iteration.
struct TimedPhase {
    name: &'static str,
    /// It runs in iterations that follow an event.
    after_events: bool,
    time_ns: fn(&PhaseNanos) -> u64,
}

const TIMED_PHASES: [TimedPhase; 5] = [
    TimedPhase {
        name: "fused_walk",
        after_events: false,
        time_ns: |phases| phases.rate_update,
    },
    TimedPhase {
        name: "rate_walk",
        after_events: true,
        time_ns: |phases| phases.rate_update,
    },
    TimedPhase {
        name: "norm_walk",
        after_events: true,
        time_ns: |phases| phases.normalization,
    },
    TimedPhase {
        name: "prices",
        after_events: false,
        time_ns: |phases| phases.price_update,
    },
    TimedPhase {
        name: "answers",
        after_events: true,
        time_ns: |phases| phases.price_correction,
    },
];

/// Runs `each` on a warm engine of every size and instruction set.
fn every_engine(
    c: &mut Criterion,
    group: &str,
    mut each: impl FnMut(&mut criterion::Bencher<'_>, &mut Busy<'_>),
) {
    let mut group = c.benchmark_group(format!("parallel_engine/{group}"));
    for size in SIZES {
        let topology = two_tiers(size.hosts);
        for simd in Simd::available() {
            let mut busy = Busy::new(&topology, size.flows, simd);
            group.throughput(Throughput::Elements(u64::from(size.flows)));
            let parameter = format!("{}x{}", size.hosts, size.flows);
            group.bench_function(BenchmarkId::new(simd.name(), parameter), |b| {
                each(b, &mut busy);
            });
        }
    }
    group.finish();
}

fn iteration(c: &mut Criterion) {
    every_engine(c, "iteration", |b, busy| b.iter(|| busy.iterate()));
}

fn kernels(c: &mut Criterion) {
    for kernel in TIMED_PHASES {
        every_engine(c, kernel.name, |b, busy| {
            // Phase times are read from the engine: criterion could only time whole iterations.
            b.iter_custom(|iterations| {
                busy.engine.time_phases(true);
                for _ in 0..iterations {
                    if kernel.after_events {
                        busy.replace();
                    }
                    busy.iterate();
                }
                Duration::from_nanos((kernel.time_ns)(&busy.engine.phases()))
            });
        });
    }
}

fn events(c: &mut Criterion) {
    let mut group = c.benchmark_group("parallel_engine/replace_a_flow");
    for size in SIZES {
        let topology = two_tiers(size.hosts);
        let mut busy = Busy::new(&topology, size.flows, Simd::best());
        let parameter = format!("{}x{}", size.hosts, size.flows);
        group.bench_function(BenchmarkId::from_parameter(parameter), |b| {
            b.iter(|| busy.replace());
        });
    }
    group.finish();
}

criterion_group!(benches, iteration, kernels, events);
criterion_main!(benches);
