//! Messages from point to point over the in-process transport: to oneself, there and back between two ranks in threads, many
//! at once, and tensors of mixed sizes beside one message of as many bytes.
#![allow(clippy::expect_used, missing_docs, reason = "a bench that cannot run may say so and end")]

mod worlds;

use std::time::Instant;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use unisono::{ProcessGroup, Tensor, TensorView};

/// Of small messages, which go at once, and of large ones, which wait for their receive.
const SIZES: [usize; 4] = [8, 4 << 10, 64 << 10, 1 << 20];

fn to_oneself(criterion: &mut Criterion) {
    let alone = worlds::alone();
    let mut group = criterion.benchmark_group("message to oneself");
    for bytes in SIZES {
        let (from, mut into) = (vec![1_u8; bytes], vec![0_u8; bytes]);
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::from_parameter(bytes), |bencher| {
            bencher.iter(|| alone.send_recv((&from, &mut into), 0, 0).expect("a world of one"));
            assert_eq!(from, into);
        });
    }
    group.finish();
}

fn there_and_back(criterion: &mut Criterion) {
    let groups = worlds::over_memory();
    let mut group = criterion.benchmark_group("message there and back");
    for bytes in SIZES {
        group.throughput(Throughput::Bytes(2 * bytes as u64));
        group.bench_function(BenchmarkId::from_parameter(bytes), |bencher| {
            bencher.iter_custom(|iters| {
                worlds::both(&groups, |group| {
                    let (other, mut data) = (1 - group.rank(), vec![1_u8; bytes]);
                    group.barrier().expect("both are here");
                    let begun = Instant::now();
                    for _ in 0..iters {
                        if other == 1 {
                            group.send(&data, other).expect("it is received");
                        }
                        group.recv(&mut data, other).expect("it is sent");
                        if other == 0 {
                            group.send(&data, other).expect("it is received");
                        }
                    }
                    begun.elapsed()
                })
            });
        });
    }
    group.finish();
    worlds::part(groups);
}

/// Each is a separate `Work` on either side, waited for at the end.
fn many(criterion: &mut Criterion) {
    const MANY: usize = 64;
    let groups = worlds::over_memory();
    let mut group = criterion.benchmark_group("64 messages at once");
    group.throughput(Throughput::Elements(MANY as u64));
    for bytes in [8, 4 << 10] {
        group.bench_function(BenchmarkId::from_parameter(bytes), |bencher| {
            bencher.iter_custom(|iters| {
                worlds::both(&groups, |group| {
                    let other = 1 - group.rank();
                    let mut data = vec![vec![1_u8; bytes]; MANY];
                    group.barrier().expect("both are here");
                    let begun = Instant::now();
                    for _ in 0..iters {
                        // One way, since a rank that receives at once waits for nobody.
                        if other == 1 {
                            let begin = |data| group.begin().send(data, other).expect("it is begun");
                            let works: Vec<_> = data.drain(..).map(begin).collect();
                            data.extend(works.into_iter().map(|work| work.wait().expect("it is received")));
                        } else {
                            let begin = |data| group.begin().recv(data, other).expect("it is begun");
                            let works: Vec<_> = data.drain(..).map(begin).collect();
                            data.extend(works.into_iter().map(|work| work.wait().expect("it is sent").0));
                        }
                    }
                    group.barrier().expect("both are done");
                    begun.elapsed()
                })
            });
        });
    }
    group.finish();
    worlds::part(groups);
}

/// What rank 1 receives from rank 0, and into what.
type Receive = fn(&ProcessGroup, &mut [f32], &mut [Tensor]);

const RECEIVES: [(&str, Receive); 4] = [
    ("one message", |group, one, _| {
        group.recv(one, 0).expect("it is sent");
    }),
    ("one message to fresh memory", |group, _, _| drop(group.recv_vec::<f32>(0).expect("it is sent"))),
    ("tensors", |group, _, many| {
        let mut into: Vec<_> = many.iter_mut().map(Tensor::view_mut).collect();
        group.recv_tensors_into(&mut into, (0, 1)).expect("they are sent");
    }),
    ("tensors to fresh memory", |group, _, _| drop(group.recv_tensors((0, 1)).expect("they are sent"))),
];

/// Of 64 B, 128 B and so on to 16 MiB.
fn tensors(criterion: &mut Criterion) {
    let lengths: Vec<usize> = (4..23).map(|power| 1 << power).collect();
    let elements: usize = lengths.iter().sum();
    let groups = worlds::over_memory();
    let mut group = criterion.benchmark_group("tensors of mixed sizes");
    group.throughput(Throughput::Bytes(4 * elements as u64));
    for (name, receive) in RECEIVES {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|iters| {
                worlds::both(&groups, |group| {
                    let mut one = vec![1.0_f32; elements];
                    let tensor =
                        |&len: &usize| Tensor::from_vec(vec![1.0_f32; len], &[len]).expect("as long");
                    let mut many: Vec<_> = lengths.iter().map(tensor).collect();
                    group.barrier().expect("both are here");
                    let begun = Instant::now();
                    for _ in 0..iters {
                        if group.rank() == 1 {
                            receive(group, &mut one, &mut many);
                        } else if name.starts_with("one") {
                            group.send(&one, 1).expect("it is received");
                        } else {
                            let views: Vec<TensorView<'_>> = many.iter().map(Tensor::view).collect();
                            group.send_tensors(&views, (1, 1)).expect("they are received");
                        }
                    }
                    group.barrier().expect("both are done");
                    begun.elapsed()
                })
            });
        });
    }
    group.finish();
    worlds::part(groups);
}

criterion_group! {
    name = messages;
    config = worlds::brief();
    targets = to_oneself, there_and_back, many, tensors
}
criterion_main!(messages);
