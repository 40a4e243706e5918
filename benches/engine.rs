//! The engine's own cost: nanoseconds for a step (a message put to oneself, taken and freed, without a
//! wire; the in-process transport's part included), and for finding the receive of a message.
#![allow(clippy::expect_used, missing_docs, reason = "a bench that cannot run may say so and end")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use unisono::internals::{Matches, Probe};

fn steps(criterion: &mut Criterion) {
    const STEPS: usize = 3000;
    let mut group = criterion.benchmark_group("engine");
    group.throughput(Throughput::Elements(STEPS as u64));
    group.bench_function("step", |bencher| {
        let mut probe = Probe::new().expect("memory");
        bencher.iter_custom(|iters| (0..iters).map(|_| probe.run(STEPS).expect("a world of one")).sum());
    });
    group.finish();
}

/// Two messages: one that finds its receive, and one that its receive finds, behind others that wait for another tag.
fn matching(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("matching");
    group.throughput(Throughput::Elements(2));
    for waiting in [0_u16, 16, 1024] {
        let mut matches = Matches::new(waiting);
        group.bench_function(BenchmarkId::new("behind", waiting), |bencher| {
            bencher.iter(|| assert!(matches.meet(), "they have not met"));
        });
    }
    group.finish();
}

criterion_group!(benches, steps, matching);
criterion_main!(benches);
