//! Objects: encoded bytes per second of writing and reading values, beside a plain copy of their bytes.
#![allow(clippy::expect_used, missing_docs, reason = "a bench that cannot run may say so and end")]

mod worlds;

use std::{collections::BTreeMap, hint::black_box};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use unisono::object::{decode, encode};

/// What a step of training tells: names, and numbers of several kinds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Step {
    number: u64,
    loss: f64,
    rates: Vec<f32>,
    notes: BTreeMap<String, Option<i32>>,
}

fn steps() -> Vec<Step> {
    let note = |name: u64, number: u64| (format!("worker {name}"), i32::try_from(number).ok());
    let step = |number: u64| Step {
        number,
        loss: 1.0 / (1 + number) as f64,
        rates: vec![0.125; 8],
        notes: (0..4).map(|name| note(name, number)).collect(),
    };
    (0..2000).map(step).collect()
}

fn value<T: Serialize + DeserializeOwned + PartialEq>(criterion: &mut Criterion, name: &str, value: &T) {
    let bytes = encode(value).expect("it can be encoded");
    assert!(decode::<T>(&bytes).expect("and decoded") == *value, "{name} has changed on the way");
    let mut group = criterion.benchmark_group(format!("object/{name}"));
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("copy", |bencher| bencher.iter(|| black_box(&bytes).clone()));
    group.bench_function("encode", |bencher| bencher.iter(|| encode(black_box(value)).expect("again")));
    group.bench_function("decode", |bencher| {
        bencher.iter(|| decode::<T>(black_box(&bytes)).expect("again"));
    });
    group.finish();
}

fn values(criterion: &mut Criterion) {
    value(criterion, "text", &"All work and no play. ".repeat(50_000));
    value(criterion, "numbers", &(0..200_000).map(f64::from).collect::<Vec<_>>());
    value(criterion, "bytes one by one", &vec![200_u8; 1 << 20]);
    value(criterion, "structs", &steps());
}

criterion_group! {
    name = objects;
    config = worlds::brief();
    targets = values
}
criterion_main!(objects);
