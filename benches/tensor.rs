//! Packing and unpacking: bytes moved per second (each read once and written once) beside a plain copy of as many, for
//! half a million elements that lie together, in rows, apart, and turned around.
#![allow(clippy::expect_used, missing_docs, reason = "a bench that cannot run may say so and end")]

mod worlds;

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use half::bf16;
use unisono::{TensorView, TensorViewMut, dtype::Element, tensor::TensorError};

/// The elements that are packed: this many rows and columns.
const ROWS: usize = 512;
const COLUMNS: usize = 1024;

/// Where they lie: the elements that there are, the shape, and the strides.
type Place = (usize, [usize; 2], [isize; 2]);

fn places() -> [(&'static str, Place); 4] {
    let [rows, columns] = [ROWS, COLUMNS].map(usize::cast_signed);
    [
        ("contiguous", (ROWS * COLUMNS, [ROWS, COLUMNS], [columns, 1])),
        // The left half of a matrix twice as wide.
        ("columns", (2 * ROWS * COLUMNS, [ROWS, COLUMNS], [2 * columns, 1])),
        ("every other", (2 * ROWS * COLUMNS, [ROWS, COLUMNS], [2 * columns, 2])),
        ("transposed", (ROWS * COLUMNS, [ROWS, COLUMNS], [1, rows])),
    ]
}

/// Elements in memory that is there: what was never written is one page of zeros again and again.
fn written<T: Element>(elements: usize) -> Vec<T> {
    bytemuck::pod_collect_to_vec(&vec![1_u8; elements * size_of::<T>()])
}

fn pack<T: Element>(criterion: &mut Criterion) {
    let bytes = ROWS * COLUMNS * size_of::<T>();
    let mut packed = vec![1_u8; bytes];
    let name = T::DTYPE.name();

    let mut group = criterion.benchmark_group(format!("pack {name}"));
    group.throughput(Throughput::Bytes(2 * bytes as u64));
    let source = vec![1_u8; bytes];
    group.bench_function("copy", |bencher| {
        bencher.iter(|| black_box(&mut packed).copy_from_slice(black_box(&source)));
    });
    for (name, (elements, shape, strides)) in places() {
        let data = written::<T>(elements);
        let view = TensorView::with_strides(&data, 0, &shape, &strides).expect("it lies inside");
        group.bench_function(name, |bencher| {
            bencher.iter(|| black_box(&view).pack_into(black_box(&mut packed)).expect("as long"));
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group(format!("unpack {name}"));
    group.throughput(Throughput::Bytes(2 * bytes as u64));
    for (name, (elements, shape, strides)) in places() {
        let mut data = written::<T>(elements);
        let mut view = TensorViewMut::with_strides(&mut data, 0, &shape, &strides).expect("it lies inside");
        let mut unpack =
            || -> Result<(), TensorError> { black_box(&mut view).unpack_from(black_box(&packed)) };
        group.bench_function(name, |bencher| bencher.iter(|| unpack().expect("as long")));
    }
    group.finish();
}

criterion_group! {
    name = tensors;
    config = worlds::brief();
    targets = pack::<f32>, pack::<bf16>
}
criterion_main!(tensors);
