//! The engine's own cost: nanoseconds for a step (a message put to oneself, taken and freed, without a
//! wire; the memory transport's part included), and for a whole call in a world of one.
#![allow(clippy::expect_used, missing_docs, reason = "a bench that cannot run may say so and end")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use unisono::{Config, ProcessGroup, ReduceOp, engine::probe::Probe};
use unisono_transport::memory::Hub;

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

fn calls(criterion: &mut Criterion) {
    let alone =
        ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None).expect("a world of one");
    let mut data = [1.0_f32; 2];
    criterion.bench_function("call of all_reduce alone", |bencher| {
        bencher.iter(|| alone.all_reduce(&mut data, ReduceOp::Max).expect("a world of one"));
    });
}

criterion_group!(benches, steps, calls);
criterion_main!(benches);
