//! The worlds in which benches run: of one rank, and of two in threads of this process.
#![allow(dead_code, unreachable_pub, clippy::expect_used, reason = "each bench takes what it needs")]

use std::{
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use criterion::Criterion;
use unisono::{Config, ProcessGroup, config::StoreAddress, rendezvous::Store};
use unisono_transport::{Transport, inproc::Hub};

/// As little as tells something.
pub fn brief() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(500))
        .sample_size(20)
}

/// A world of one.
pub fn alone() -> ProcessGroup {
    ProcessGroup::with(Config::default(), Box::new(Hub::new().open()), None).expect("a world of one")
}

/// Two groups of one world that meet at a store on the loopback.
pub fn pair(open: impl Fn() -> Box<dyn Transport>) -> [ProcessGroup; 2] {
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
        let store = Store::join("127.0.0.1", port, &config.member(), deadline).expect("rank 0 serves it");
        ProcessGroup::with(config, two, Some(store)).expect("both have come")
    });
    let config = Config { rank: 0, ..config(0) };
    let store = Store::host_on(listener, &config.member(), deadline).expect("the port is bound");
    let here = ProcessGroup::with(config, one, Some(store)).expect("both have come");
    [here, other.join().expect("no panic")]
}

/// Two ranks over the in-process transport: what the library itself costs.
pub fn over_memory() -> [ProcessGroup; 2] {
    let hub = Hub::new();
    pair(|| Box::new(hub.open()))
}

/// The time that `call` tells, of the slower of two ranks.
pub fn both(groups: &[ProcessGroup; 2], call: impl Fn(&ProcessGroup) -> Duration + Sync) -> Duration {
    thread::scope(|scope| {
        let other = scope.spawn(|| call(&groups[1]));
        call(&groups[0]).max(other.join().expect("no panic"))
    })
}

/// The groups part together.
pub fn part(groups: [ProcessGroup; 2]) {
    let [one, two] = groups;
    thread::scope(|scope| {
        scope.spawn(|| drop(two));
        drop(one);
    });
}
