//! Reduction kernels: bytes moved per second (two read and one written for each element; a plain copy
//! reads one and writes one), for operands that fit in the second-level cache and for some that fit in none.

#![allow(missing_docs, clippy::unwrap_used, reason = "criterion's macros; a bench that cannot run fails")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use unisono::{
    dtype::Dtype,
    reduce::{Kernel, ReduceOp},
};

/// Bytes of each operand.
const SIZES: [(&str, usize); 2] = [("64KiB", 64 << 10), ("64MiB", 64 << 20)];

/// Aligned for every type, and no NaN, subnormal or infinity in any of them.
fn operand(bytes: usize) -> Vec<u64> {
    vec![0x3c01_3c01_3c01_3c01; bytes / 8]
}

fn copy(c: &mut Criterion) {
    for (name, bytes) in SIZES {
        let (from, mut into) = (operand(bytes), operand(bytes));
        let mut group = c.benchmark_group(format!("copy/{name}"));
        group.throughput(Throughput::Bytes(2 * bytes as u64));
        group.bench_function("copy", |b| b.iter(|| black_box(&mut into).copy_from_slice(black_box(&from))));
    }
}

fn fold(c: &mut Criterion) {
    for (name, bytes) in SIZES {
        let mut group = c.benchmark_group(format!("fold/{name}"));
        group.throughput(Throughput::Bytes(3 * bytes as u64));
        for dtype in Dtype::ALL {
            for op in ReduceOp::PLAIN {
                // An average folds as a sum does. Types of one size and kind are alike beyond the cache.
                let telling = matches!(dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32) && op == ReduceOp::Sum;
                if op == ReduceOp::Avg || (bytes > SIZES[0].1 && !telling) {
                    continue;
                }
                let Ok(kernel) = Kernel::new(dtype, op) else { continue };
                let (mut acc, other) = (operand(bytes), operand(bytes));
                group.bench_function(format!("{dtype}/{op}"), |b| {
                    b.iter(|| {
                        let acc = bytemuck::cast_slice_mut(black_box(&mut acc[..]));
                        kernel.fold(acc, bytemuck::cast_slice(black_box(&other))).unwrap();
                    });
                });
            }
        }
    }
}

fn others(c: &mut Criterion) {
    let (name, bytes) = SIZES[0];
    let (a, b, mut into) = (operand(bytes), operand(bytes), operand(bytes));
    let (a, b): (&[u8], &[u8]) = (bytemuck::cast_slice(&a), bytemuck::cast_slice(&b));
    let into: &mut [u8] = bytemuck::cast_slice_mut(&mut into);
    for dtype in [Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::I32] {
        let mut group = c.benchmark_group(format!("combine/{name}"));
        group.throughput(Throughput::Bytes(3 * bytes as u64));
        let kernel = Kernel::new(dtype, ReduceOp::Sum).unwrap();
        group.bench_function(format!("{dtype}/sum"), |bench| {
            bench.iter(|| kernel.combine(black_box(a), black_box(b), black_box(into)).unwrap());
        });
        group.finish();
        let mut group = c.benchmark_group(format!("finish/{name}"));
        group.throughput(Throughput::Bytes(2 * bytes as u64));
        let average = Kernel::new(dtype, ReduceOp::Avg).unwrap();
        group.bench_function(format!("{dtype}/divide"), |bench| {
            bench.iter(|| average.divide(black_box(into), black_box(1)).unwrap());
        });
        let scaled = Kernel::new(dtype, ReduceOp::PreMulSum(1.0)).unwrap();
        group.bench_function(format!("{dtype}/scale"), |bench| {
            bench.iter(|| scaled.scale_in_place(black_box(into)).unwrap());
        });
    }
}

criterion_group! {
    name = kernels;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(100))
        .measurement_time(std::time::Duration::from_millis(500))
        .sample_size(20);
    targets = copy, fold, others
}
criterion_main!(kernels);
