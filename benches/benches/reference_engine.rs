//! The f64 reference engine: an iteration (NED, F-NORM, threshold filter), a flowlet's end and
//! start, and the distance from the optimum. The parallel engine is measured against these.
#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ratewright_allocator::engine::{EngineEvent, FlowNumber, RateEngine};
use ratewright_bench::{SIZES, clos, random_flow, rng, warm_engine};

/// One iteration over everything.
fn iteration(c: &mut Criterion) {
    let mut group = c.benchmark_group("reference_engine/iteration");
    for size in SIZES {
        let topology = clos(size);
        let mut engine = warm_engine(&topology, size);
        group.throughput(Throughput::Elements(u64::from(size.flows)));
        group.bench_function(
            BenchmarkId::from_parameter(format!("{}x{}", size.hosts, size.flows)),
            |b| {
                b.iter(|| {
                    let report = engine.iterate();
                    engine.drain_updates(&mut |update| {
                        black_box(update);
                    });
                    report
                });
            },
        );
    }
    group.finish();
}

/// The end of one flowlet and the start of another.
fn events(c: &mut Criterion) {
    let mut group = c.benchmark_group("reference_engine/end_and_start");
    for size in SIZES {
        let topology = clos(size);
        let mut engine = warm_engine(&topology, size);
        let mut rng = rng();
        let specs: Vec<_> = (0..1024)
            .map(|key| random_flow(&topology, &mut rng, FlowNumber::first(key)))
            .collect();
        let mut next = (0..size.flows).cycle().step_by(7);
        group.bench_function(
            BenchmarkId::from_parameter(format!("{}x{}", size.hosts, size.flows)),
            |b| {
                b.iter(|| {
                    let key = next.next().unwrap_or(0);
                    let mut spec = specs[key as usize % specs.len()].clone();
                    spec.number = FlowNumber::first(key);
                    engine
                        .apply(EngineEvent::End(FlowNumber::first(key)))
                        .expect("it is there");
                    engine
                        .apply(EngineEvent::Start(spec))
                        .expect("a valid flow");
                });
            },
        );
    }
    group.finish();
}

/// What the engine thread does once a second for its status page.
fn optimality(c: &mut Criterion) {
    let mut group = c.benchmark_group("reference_engine/optimality");
    for size in SIZES {
        let topology = clos(size);
        let engine = warm_engine(&topology, size);
        group.bench_function(
            BenchmarkId::from_parameter(format!("{}x{}", size.hosts, size.flows)),
            |b| {
                b.iter(|| engine.optimality());
            },
        );
    }
    group.finish();
}

criterion_group!(benches, iteration, events, optimality);
criterion_main!(benches);
