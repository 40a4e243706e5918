//! A relay between ranks and their store ends connections, as firewalls and proxies do: a rank that lives connects again, and a rank
//! that cannot is not reported as dead.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::net::sockopt::set_socket_linger;
use unisono::{
    Error, Failure,
    rendezvous::{Store, StoreServer},
};

use super::world::{One, SOON, member, part, server, soon, tcp};

/// Longer than the store waits for a rank.
const WAITED: Duration = Duration::from_millis(700);

/// The relay.
struct Between {
    at: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// The number of times that all connections were ended.
    cuts: AtomicUsize,
    /// True if they are ended by a reset.
    resets: AtomicBool,
    /// True if new ones are ended at once.
    shut: AtomicBool,
}

impl Between {
    fn new(server: SocketAddr, resets: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let state = Arc::new(State { resets: resets.into(), ..State::default() });
        let its = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if its.shut.load(Relaxed) {
                    continue;
                }
                let ends = [client, TcpStream::connect(server).unwrap()].map(Arc::new);
                let cuts = its.cuts.load(Relaxed);
                for (from, to) in [(0, 1), (1, 0)] {
                    let (from, to, its) = (Arc::clone(&ends[from]), Arc::clone(&ends[to]), Arc::clone(&its));
                    thread::spawn(move || its.pass(cuts, &from, &to));
                }
            }
        });
        Self { at, state }
    }

    /// Ends all connections, and new ones if `shut`.
    fn cut(&self, shut: bool) {
        self.state.shut.store(shut, Relaxed);
        self.state.cuts.fetch_add(1, Relaxed);
    }
}

impl State {
    /// Forwards bytes until the connection ends. Closes both ends when both directions have ended.
    fn pass(&self, cuts: usize, mut from: &TcpStream, mut to: &TcpStream) {
        from.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let mut bytes = [0; 4096];
        while self.cuts.load(Relaxed) == cuts {
            match from.read(&mut bytes) {
                Ok(0) => break,
                Ok(n) if to.write_all(&bytes[..n]).is_err() => break,
                Err(error) if error.kind() != ErrorKind::WouldBlock => break,
                _ => {}
            }
        }
        if self.cuts.load(Relaxed) == cuts {
            // Close one direction only: the other end may still send.
            let _ = to.shutdown(Shutdown::Write);
        } else if self.resets.load(Relaxed) {
            set_socket_linger(from, Some(Duration::ZERO)).unwrap();
        }
    }
}

#[test]
fn a_rank_whose_connection_is_cut_connects_again_and_is_not_taken_for_dead() {
    for resets in [false, true] {
        let (server, address) = server(2);
        let between = Between::new(server.address(), resets);
        let near = One::at(&address, 0, 2);
        let far = One::at(&tcp(between.at.port(), true), 1, 2);
        for _ in 0..3 {
            between.cut(false);
            thread::sleep(WAITED);
            assert!(!near.latch.raised() && !far.latch.raised(), "{:?}", near.latch.failure());
            for one in [&near, &far] {
                assert!(one.watch.positions(SOON).unwrap().iter().all(Option::is_some), "both ways work");
            }
        }
        // Messages that are sent while there is no connection are not lost.
        between.cut(false);
        thread::sleep(Duration::from_millis(10));
        let failure = Failure::Aborted { rank: 1, why: "enough".into() };
        assert_eq!(far.watch.report(&failure), failure);
        assert_eq!(near.latch.wait(SOON), Some(failure));
        part(vec![near, far]);
    }
}

/// The failures that near and far ranks get after all connections between them are cut for good.
fn cut_for_good(resets: bool, near: &One, far: &One, between: &Between) -> [Failure; 2] {
    let begun = Instant::now();
    between.cut(true);
    let messages = [near, far].map(|one| one.latch.wait(SOON).unwrap());
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let how = if resets { "reset" } else { "closed" };
    let words = messages[0].to_string();
    for part in
        [&format!("its connection to the store was {how}"), "firewall", "rank 1 is not reachable (pid "]
    {
        assert!(words.contains(part), "{part}: {words}");
    }
    assert!(matches!(messages[0], Failure::Unreachable { rank: 1, .. }), "{words}");
    assert!(
        messages[1].to_string().contains("something between, such as a firewall, ended it"),
        "{}",
        messages[1]
    );
    messages
}

#[test]
fn of_a_rank_that_is_cut_off_nobody_says_that_it_has_died() {
    for resets in [false, true] {
        let (server, address) = server(2);
        let between = Between::new(server.address(), resets);
        let all = vec![One::at(&address, 0, 2), One::at(&tcp(between.at.port(), true), 1, 2)];
        let [_, far] = cut_for_good(resets, &all[0], &all[1], &between);
        assert!(matches!(far, Failure::StoreLost { .. }), "{far}");
        part(all);
        // The same if a rank serves the store.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let between = Between::new(listener.local_addr().unwrap(), resets);
        let near = One::new(Store::host_on(listener, &member(0, 2), soon()).unwrap());
        let all = vec![near, One::at(&tcp(between.at.port(), false), 1, 2)];
        let [_, far] = cut_for_good(resets, &all[0], &all[1], &between);
        assert!(matches!(far, Failure::Unreachable { rank: 0, .. }), "{far}");
        part(all);
    }
}

#[test]
fn a_request_whose_connection_is_cut_blames_no_rank() {
    for resets in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let between = Between::new(listener.local_addr().unwrap(), resets);
        let near = One::new(Store::host_on(listener, &member(0, 2), soon()).unwrap());
        let far = Store::join("127.0.0.1", between.at.port(), &member(1, 2), soon()).unwrap();
        between.cut(false);
        thread::sleep(Duration::from_millis(50));
        let error = far.set("k", b"v").unwrap_err();
        assert!(matches!(error, Error::Rendezvous { .. }), "{error}");
        assert!(error.to_string().contains("the connection broke ("), "{error}");
        assert!(error.to_string().contains("something between"), "{error}");
        let failure = near.latch.wait(SOON).unwrap();
        assert!(matches!(failure, Failure::Unreachable { rank: 1, .. }), "{failure}");
        drop(far);
        near.leave();
    }
}

#[test]
fn a_launcher_whose_store_has_ended_is_not_sought_for_long() {
    let server = StoreServer::bind("127.0.0.1:0", 2, "test", None).unwrap();
    let all = [0, 1].map(|rank| One::at(&tcp(server.address().port(), true), rank, 2));
    let failure = Failure::Aborted { rank: 1, why: "enough".into() };
    all[1].watch.report(&failure);
    let begun = Instant::now();
    drop(server);
    part(all.into());
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}
