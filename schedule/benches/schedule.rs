//! Measures schedules: nanoseconds per step, the time to make one, and the time to choose by the cost model.

#![allow(missing_docs, clippy::unwrap_used, reason = "criterion's macros; a bench that cannot run fails")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use unisono_schedule::{Collective, Job, Schedule, algorithm::ALGORITHMS, cost::Fabric, select::Chooser};

const RANKS: usize = 8;

/// 16 MiB of `f32` in messages of 64 KiB on four lanes; for a barrier, nothing.
fn job(collective: Collective) -> Job<'static> {
    let count = match collective {
        Collective::Barrier => 0,
        _ if collective.has_blocks() => (4 << 20) / RANKS,
        _ => 4 << 20,
    };
    Job { chunk: 16 << 10, lanes: 4, direct: true, ..Job::new(collective, 3, RANKS, count) }
}

/// Takes all steps of a schedule as the engine does, lane by lane in turn; returns their number.
fn drain(mut schedule: Box<dyn Schedule>) -> u64 {
    let mut steps = 0;
    loop {
        let before = steps;
        for lane in 0..schedule.lanes() {
            steps += u64::from(black_box(schedule.next(lane)).is_some());
        }
        if steps == before {
            return steps;
        }
    }
}

fn steps(c: &mut Criterion) {
    let mut group = c.benchmark_group("step");
    for algorithm in ALGORITHMS {
        for plan in algorithm.plans {
            let job = job(plan.collective);
            group.throughput(Throughput::Elements(drain(plan.make(&job)).max(1)));
            group.bench_function(format!("{}/{}", algorithm.name, plan.collective.name()), |b| {
                b.iter(|| drain(plan.make(black_box(&job))));
            });
        }
    }
}

fn make(c: &mut Criterion) {
    let mut group = c.benchmark_group("make");
    for algorithm in ALGORITHMS {
        for plan in algorithm.plans {
            let job = Job { count: 2.min(job(plan.collective).count), ..job(plan.collective) };
            group.bench_function(format!("{}/{}", algorithm.name, plan.collective.name()), |b| {
                b.iter(|| plan.make(black_box(&job)));
            });
        }
    }
}

/// The prices of all algorithms, for which the first call of its kind between hosts waits.
fn choose(c: &mut Criterion) {
    let mut group = c.benchmark_group("choose");
    for (hosts, each) in [(2, 1), (4, 1), (2, 4), (4, 8), (8, 8)] {
        for bytes in [8, 64 << 10, 16 << 20] {
            let fabric = Fabric { ranks_per_host: each, ..Fabric::TCP_10G };
            for collective in [Collective::AllReduce, Collective::AllToAll] {
                let name = collective.name();
                group.bench_function(format!("{name}/{hosts}x{each}/{bytes}"), |b| {
                    b.iter(|| Chooser::on(&fabric, hosts * each).choose(collective, bytes, |_| true));
                });
            }
        }
    }
}

criterion_group! {
    name = schedules;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(100))
        .measurement_time(std::time::Duration::from_millis(500))
        .sample_size(20);
    targets = steps, make, choose
}
criterion_main!(schedules);
