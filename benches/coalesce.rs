//! Many small reductions as few large ones: a thousand tensors of 4 KiB reduced together, one by one, and as what they
//! would be if they lay in one piece; and the gradients of a network in buckets. In a world of one, where only copies are
//! left, and between two ranks in threads.
#![allow(clippy::expect_used, missing_docs, reason = "a bench that cannot run may say so and end")]

mod worlds;

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use unisono::{GradientBuckets, ProcessGroup, ReduceOp, TensorViewMut};

const TENSORS: usize = 1000;
const ELEMENTS: usize = 1024;
const BYTES: u64 = 4 * (TENSORS * ELEMENTS) as u64;

/// A way to reduce them all, this many times; tells how long that took.
type Way = fn(&ProcessGroup, u64) -> Duration;

fn timed(group: &ProcessGroup, iters: u64, mut call: impl FnMut()) -> Duration {
    group.barrier().expect("all are here");
    let begun = Instant::now();
    (0..iters).for_each(|_| call());
    begun.elapsed()
}

fn coalesced(group: &ProcessGroup, iters: u64) -> Duration {
    let mut data = vec![1.0_f32; TENSORS * ELEMENTS];
    let view = |data| TensorViewMut::new(data, &[ELEMENTS]).expect("as long");
    let mut tensors: Vec<_> = data.chunks_mut(ELEMENTS).map(view).collect();
    timed(group, iters, || group.all_reduce_coalesced(&mut tensors, ReduceOp::Max).expect("all call it"))
}

fn one_by_one(group: &ProcessGroup, iters: u64) -> Duration {
    let mut data = vec![1.0_f32; TENSORS * ELEMENTS];
    timed(group, iters, || {
        let mut tensors = data.chunks_mut(ELEMENTS);
        tensors.try_for_each(|tensor| group.all_reduce(tensor, ReduceOp::Max)).expect("all call it");
    })
}

fn in_one_piece(group: &ProcessGroup, iters: u64) -> Duration {
    let mut data = vec![1.0_f32; TENSORS * ELEMENTS];
    timed(group, iters, || group.all_reduce(&mut data, ReduceOp::Max).expect("all call it"))
}

/// In buckets of a mebibyte: each tensor copied there as it becomes ready, and back when all are reduced.
fn buckets(group: &ProcessGroup, iters: u64) -> Duration {
    let mut data = vec![1.0_f32; TENSORS * ELEMENTS];
    let mut buckets =
        GradientBuckets::new(group, &[ELEMENTS; TENSORS], ReduceOp::Max, 1 << 20).expect("there is memory");
    timed(group, iters, || {
        for (parameter, tensor) in data.chunks(ELEMENTS).enumerate().rev() {
            buckets.ready(parameter, tensor).expect("all call it");
        }
        buckets.finish().expect("all call it");
        for (parameter, tensor) in data.chunks_mut(ELEMENTS).enumerate() {
            tensor.copy_from_slice(buckets.gradient(parameter));
        }
    })
}

const WAYS: [(&str, Way); 4] = [
    ("coalesced", coalesced),
    ("one by one", one_by_one),
    ("in one piece", in_one_piece),
    ("buckets", buckets),
];

fn reductions(criterion: &mut Criterion) {
    let alone = worlds::alone();
    let groups = worlds::over_memory();
    for (name, way) in WAYS {
        let mut group = criterion.benchmark_group(format!("1000 of 4 KiB, {name}"));
        group.throughput(Throughput::Bytes(BYTES));
        group.bench_function("alone", |bencher| bencher.iter_custom(|iters| way(&alone, iters)));
        group.bench_function("2 ranks", |bencher| {
            bencher.iter_custom(|iters| worlds::both(&groups, |group| way(group, iters)));
        });
        group.finish();
    }
    worlds::part(groups);
}

criterion_group! {
    name = coalesce;
    config = worlds::brief();
    targets = reductions
}
criterion_main!(coalesce);
