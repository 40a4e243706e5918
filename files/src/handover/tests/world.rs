//! Ranks as threads of this process, which meet at a real store.

use std::time::{Duration, Instant};

use unisono::{
    Config, ProcessGroup,
    config::StoreAddress,
    rendezvous::{Store, StoreServer},
};
use unisono_transport::inproc::Hub;

/// Runs `each` on every rank's group, in threads.
pub(super) fn world<R: Send>(
    ranks: usize,
    tweak: impl Fn(&mut Config),
    each: impl Fn(ProcessGroup) -> R + Sync,
) -> Vec<R> {
    let server = StoreServer::bind("127.0.0.1:0", ranks, "test", None).unwrap();
    let store = StoreAddress::parse(&format!("tcp+served://{}", server.address())).unwrap();
    let hub = Hub::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| {
                let mut config = Config { rank, ranks, token: "test".into(), ..Config::default() };
                config.store = Some(store.clone());
                tweak(&mut config);
                let (transport, store, each) = (hub.open(), &store, &each);
                scope.spawn(move || {
                    let deadline = Instant::now() + Duration::from_secs(20);
                    let store = Store::open(store, &config.member(), deadline).unwrap();
                    each(ProcessGroup::with(config, Box::new(transport), Some(store)).unwrap())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A world of one.
pub(super) fn alone() -> ProcessGroup {
    ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None).unwrap()
}

/// Messages so small that everything goes in many.
pub(super) fn small(config: &mut Config) {
    (config.chunk, config.lanes) = (256, 3);
}
