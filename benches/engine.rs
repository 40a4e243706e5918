//! The engine's own cost, without a wire: a rank sends messages to itself over the in-process transport and receives them,
//! behind many earlier messages that no receive has taken.
#![allow(clippy::expect_used, missing_docs, reason = "a bench that cannot run may say so and end")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use unisono::{Config, ProcessGroup};
use unisono_transport::inproc::Hub;

const TAG: u32 = u32::MAX;

fn messages(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("message to itself");
    group.throughput(Throughput::Elements(1));
    for waiting in [0_u32, 16, 1024] {
        let ranks = ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None).expect("memory");
        let mut byte = [0_u8];
        for tag in 0..waiting {
            ranks.send(&byte, (0, tag)).expect("a world of one");
        }
        group.bench_function(BenchmarkId::new("behind", waiting), |bencher| {
            bencher.iter(|| {
                ranks.send(&byte, (0, TAG)).expect("a world of one");
                ranks.recv(&mut byte, (0, TAG)).expect("a message that was sent")
            });
        });
        for tag in 0..waiting {
            ranks.recv(&mut byte, (0, tag)).expect("a message that was sent");
        }
        ranks.leave().expect("a world of one");
    }
    group.finish();
}

criterion_group!(benches, messages);
criterion_main!(benches);
