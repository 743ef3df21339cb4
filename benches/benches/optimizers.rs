//! One iteration of each optimiser, without normaliser, at rest on a two-tier Clos: the f64
//! reference, the safeguarded rule that the engine runs, and single precision.
#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use ratewright_allocator::num::{Ned, Optimizer, SafeguardedNed};
use ratewright_bench::SIZES;
use ratewright_bench::experiment::flow_set::FlowSet;
use ratewright_bench::optimizers::{CoordinateDescent, Gradient, NedRt};
use ratewright_topology::TwoTierClos;

/// Random log flows over the network of the paper's table of allocator speeds.
fn flow_set(hosts: u32, flows: u32) -> FlowSet {
    let network = TwoTierClos {
        racks: hosts / 16,
        hosts_per_rack: 16,
        spines: 4,
        ..TwoTierClos::default()
    };
    let mut flow_set = FlowSet::new(&network).expect("a valid network");
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    for _ in 0..flows {
        let path = flow_set.random_path(&mut rng).expect("all links are up");
        flow_set.push(path);
    }
    flow_set
}

fn iteration(c: &mut Criterion) {
    let mut group = c.benchmark_group("optimizers/iteration");
    for size in SIZES {
        let flow_set = flow_set(size.hosts, size.flows);
        let links = flow_set.links();
        let label = format!("{}x{}", size.hosts, size.flows);
        group.throughput(Throughput::Elements(u64::from(size.flows)));
        let all: [(&str, Box<dyn Optimizer>); 4] = [
            ("ned", Box::new(Ned::new(0.4, links))),
            ("gradient", Box::new(Gradient::new(0.4, links))),
            ("guarded", Box::new(SafeguardedNed::new(0.4, links))),
            ("coordinate", Box::new(CoordinateDescent::new(links))),
        ];
        let mut rates = vec![0.0; flow_set.flows()];
        for (name, mut optimizer) in all {
            for _ in 0..50 {
                optimizer.iterate(&flow_set.problem(), &mut rates);
            }
            group.bench_function(BenchmarkId::new(name, &label), |b| {
                b.iter(|| black_box(optimizer.iterate(&flow_set.problem(), &mut rates)));
            });
        }
        let mut single = NedRt::new(0.4, links);
        single.load(&flow_set.problem());
        group.bench_function(BenchmarkId::new("ned-rt", &label), |b| {
            b.iter(|| black_box(single.step(&flow_set.problem())));
        });
    }
    group.finish();
}

criterion_group!(benches, iteration);
criterion_main!(benches);
