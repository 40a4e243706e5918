//! Collectives of two ranks in threads: over the memory transport (what the library itself costs) and over
//! libfabric's tcp on the loopback. For figures of processes, and of more of them, see `unisono bench`.
#![allow(clippy::expect_used, missing_docs, reason = "a bench that cannot run may say so and end")]

use std::{
    net::TcpListener,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use unisono::{Config, ProcessGroup, ReduceOp, config::StoreAddress, rendezvous::TcpStore};
use unisono_transport::{
    Transport,
    memory::Hub,
    ofi::{Ofi, Options},
};

/// Two groups of one world that meet at a store on the loopback.
fn pair(open: impl Fn() -> Box<dyn Transport>) -> [ProcessGroup; 2] {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("its number").port();
    let config = move |rank| Config {
        rank,
        ranks: 2,
        store: StoreAddress::parse(&format!("tcp://127.0.0.1:{port}")).ok(),
        token: "bench".into(),
        ..Config::default()
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    let (one, two) = (open(), open());
    let other = thread::spawn(move || {
        let config = config(1);
        let store = TcpStore::join("127.0.0.1", port, &config.member(), deadline).expect("rank 0 serves it");
        ProcessGroup::with(config, two, Some(Arc::new(store))).expect("both have come")
    });
    let config = Config { rank: 0, ..config(0) };
    let store = TcpStore::host_on(listener, &config.member(), deadline).expect("the port is bound");
    let here = ProcessGroup::with(config, one, Some(Arc::new(store))).expect("both have come");
    [here, other.join().expect("no panic")]
}

fn all_reduce(criterion: &mut Criterion) {
    let hub = Hub::new();
    let tcp =
        Options { provider: Some("tcp".into()), towards: "127.0.0.1".parse().ok(), ..Options::default() };
    let worlds: [(&str, [ProcessGroup; 2]); 2] = [
        ("memory", pair(|| Box::new(hub.open()))),
        ("tcp", pair(|| Box::new(Ofi::open(&tcp).expect("libfabric's tcp")))),
    ];
    for (name, groups) in worlds {
        let mut group = criterion.benchmark_group(format!("all_reduce of 2 ranks over {name}"));
        for bytes in [8_usize, 4 << 10, 64 << 10, 1 << 20] {
            group.throughput(Throughput::Bytes(bytes as u64));
            group.bench_with_input(BenchmarkId::from_parameter(bytes), &bytes, |bencher, &bytes| {
                bencher.iter_custom(|iters| {
                    let call = |group: &ProcessGroup| {
                        let mut data = vec![1.0_f32; bytes / 4];
                        group.barrier().expect("both are here");
                        let begun = Instant::now();
                        for _ in 0..iters {
                            group.all_reduce(&mut data, ReduceOp::Max).expect("both call it");
                        }
                        begun.elapsed()
                    };
                    thread::scope(|scope| {
                        let other = scope.spawn(|| call(&groups[1]));
                        call(&groups[0]).max(other.join().expect("no panic"))
                    })
                });
            });
        }
        group.finish();
        // The groups part together.
        let [one, two] = groups;
        thread::scope(|scope| {
            scope.spawn(|| drop(two));
            drop(one);
        });
    }
}

criterion_group!(benches, all_reduce);
criterion_main!(benches);
