//! Memory streams of one core, in the pattern of a pass over rows: five lists side by side, of
//! which all are read and one is written, by their size together.
#![allow(
    missing_docs,
    reason = "criterion's macros make undocumented functions"
)]

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const LISTS: usize = 5;
const MEBIBYTES: [usize; 6] = [1, 8, 16, 24, 32, 128];

fn streams(c: &mut Criterion) {
    let mut group = c.benchmark_group("streams_mib");
    group
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20);
    for mebibytes in MEBIBYTES {
        let bytes = mebibytes << 20;
        let values = bytes / LISTS / size_of::<f32>();
        let lists: Vec<Vec<f32>> = (1..LISTS).map(|list| vec![list as f32; values]).collect();
        let mut written = vec![0.5f32; values];
        group.throughput(Throughput::Bytes(bytes as u64));
        let id = BenchmarkId::from_parameter(mebibytes);
        group.bench_function(id, |bencher| {
            bencher.iter(|| {
                let [a, b, c, d] = &lists[..] else { return };
                let others = a.iter().zip(b).zip(c.iter().zip(d));
                for (sum, ((a, b), (c, d))) in written.iter_mut().zip(others) {
                    *sum = 0.5 * *sum + (a + b) + (c + d);
                }
                black_box(&mut written);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, streams);
criterion_main!(benches);
