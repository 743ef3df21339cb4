//! One iteration of each optimiser, without normaliser, at rest on a two-tier Clos: the f64 reference,
//! the safeguarded rule that the engine runs, and single precision.
#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use ratewright_allocator::num::experiment::scene::Scene;
use ratewright_allocator::num::{
    CoordinateDescent, Gradient, Ned, NedRt, Optimizer, SafeguardedNed,
};
use ratewright_bench::SIZES;
use ratewright_topology::TwoTierClos;

/// Random log flows over the network of the paper's table of allocator speeds.
fn scene(hosts: u32, flows: u32) -> Scene {
    let network = TwoTierClos {
        racks: hosts / 16,
        hosts_per_rack: 16,
        spines: 4,
        ..TwoTierClos::default()
    };
    let mut scene = Scene::new(&network).expect("a valid network");
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    for _ in 0..flows {
        let path = scene.random_path(&mut rng).expect("all links are up");
        scene.push(path);
    }
    scene
}

fn iteration(c: &mut Criterion) {
    let mut group = c.benchmark_group("optimizers/iteration");
    for size in SIZES {
        let scene = scene(size.hosts, size.flows);
        let links = scene.links();
        let label = format!("{}x{}", size.hosts, size.flows);
        group.throughput(Throughput::Elements(u64::from(size.flows)));
        let all: [(&str, Box<dyn Optimizer>); 4] = [
            ("ned", Box::new(Ned::new(0.4, links))),
            ("gradient", Box::new(Gradient::new(0.4, links))),
            ("guarded", Box::new(SafeguardedNed::new(0.4, links))),
            ("coordinate", Box::new(CoordinateDescent::new(links))),
        ];
        let mut rates = vec![0.0; scene.flows()];
        for (name, mut optimizer) in all {
            for _ in 0..50 {
                optimizer.iterate(&scene.problem(), &mut rates);
            }
            group.bench_function(BenchmarkId::new(name, &label), |b| {
                b.iter(|| black_box(optimizer.iterate(&scene.problem(), &mut rates)));
            });
        }
        let mut single = NedRt::new(0.4, links);
        single.load(&scene.problem());
        group.bench_function(BenchmarkId::new("ned-rt", &label), |b| {
            b.iter(|| black_box(single.step(&scene.problem())));
        });
    }
    group.finish();
}

criterion_group!(benches, iteration);
criterion_main!(benches);
