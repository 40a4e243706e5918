//! Collectives of two ranks in threads: over the in-process transport (what the library itself costs) and over
//! libfabric's tcp on the loopback. For figures of processes, and of more of them, see `unisono bench`.
#![allow(clippy::expect_used, missing_docs, reason = "a bench that cannot run may say so and end")]

mod worlds;

use std::time::Instant;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use unisono::{ProcessGroup, ReduceOp};
use unisono_transport::ofi::{Ofi, Options};

fn all_reduce(criterion: &mut Criterion) {
    let tcp =
        Options { provider: Some("tcp".into()), towards: "127.0.0.1".parse().ok(), ..Options::default() };
    let worlds: [(&str, [ProcessGroup; 2]); 2] = [
        ("memory", worlds::over_memory()),
        ("tcp", worlds::pair(|| Box::new(Ofi::open(&tcp).expect("libfabric's tcp")))),
    ];
    for (name, groups) in worlds {
        let mut group = criterion.benchmark_group(format!("all_reduce of 2 ranks over {name}"));
        for bytes in [8_usize, 4 << 10, 64 << 10, 1 << 20] {
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_with_input(BenchmarkId::from_parameter(bytes), &bytes, |bencher, &bytes| {
                bencher.iter_custom(|iters| {
                    worlds::both(&groups, |group| {
                        let mut data = vec![1.0_f32; bytes / 4];
                        group.barrier().expect("both are here");
                        let begun = Instant::now();
                        for _ in 0..iters {
                            group.all_reduce(&mut data, ReduceOp::Max).expect("both call it");
                        }
                        begun.elapsed()
                    })
                });
            });
        }
        group.finish();
        worlds::part(groups);
    }
}

criterion_group!(benches, all_reduce);
criterion_main!(benches);
