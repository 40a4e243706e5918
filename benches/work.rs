//! What a call costs apart from what it does: in a world of one, where nothing travels, waited for at once or begun and
//! waited for later.
#![allow(clippy::expect_used, missing_docs, reason = "a bench that cannot run may say so and end")]

mod worlds;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use unisono::ReduceOp;

fn calls(criterion: &mut Criterion) {
    const MANY: usize = 16;
    let alone = worlds::alone();
    let mut group = criterion.benchmark_group("all_reduce alone");
    let mut data = [1.0_f32];
    group.throughput(Throughput::Elements(1));
    group.bench_function("blocking", |bencher| {
        bencher.iter(|| alone.all_reduce(&mut data, ReduceOp::Max).expect("a world of one"));
    });
    let mut data = vec![1.0_f32];
    group.bench_function("begun and waited for", |bencher| {
        bencher.iter(|| {
            let given = std::mem::take(&mut data);
            let work = alone.begin().all_reduce(given, ReduceOp::Max).expect("a world of one");
            data = work.wait().expect("a world of one");
        });
    });
    let mut data = vec![vec![1.0_f32]; MANY];
    group.throughput(Throughput::Elements(MANY as u64));
    group.bench_function("16 begun, then waited for", |bencher| {
        bencher.iter(|| {
            let begin = |data| alone.begin().all_reduce(data, ReduceOp::Max).expect("a world of one");
            let works: Vec<_> = data.drain(..).map(begin).collect();
            data.extend(works.into_iter().map(|work| work.wait().expect("a world of one")));
        });
    });
    group.finish();
}

criterion_group! {
    name = work;
    config = worlds::brief();
    targets = calls
}
criterion_main!(work);
