//! One job after the other at one port: some ranks begin the next job before others have left the last one.

use std::{
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use unisono::{
    Error,
    config::{JobIdentity, Member},
    error::Refusal,
    rendezvous::{Store, exchange},
};

use super::world::{One, SOON, after, member, server, soon, stranger, tcp};

/// The time that the rank that serves the old store stays in it after the others have left.
const LATE: Duration = Duration::from_millis(400);

#[test]
fn who_goes_on_to_the_next_job_waits_until_the_last_ones_store_has_ended() {
    let with_id = |id: &str| JobIdentity { id: id.into(), ..JobIdentity::from("test") };
    for (job, ranks) in
        [(JobIdentity::from("another"), 2), (with_id("next"), 2), ("test".into(), 3), ("test".into(), 2)]
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp(listener.local_addr().unwrap().port(), false);
        let next = |rank| Member { rank, ranks, job: job.clone() };
        let zero = One::new(Store::host_on(listener, &member(0, 2), soon()).unwrap());
        let one = One::at(&address, 1, 2);
        one.leave();
        thread::scope(|scope| {
            let rejoin = |rank: usize, pause: Duration| {
                let (address, next) = (&address, &next);
                scope.spawn(move || {
                    thread::sleep(pause);
                    let one = One::new(Store::open(address, &next(rank), soon()).unwrap());
                    let table = exchange(&one.store, "x", rank, ranks, &[7], soon()).unwrap();
                    assert_eq!(table.len(), ranks);
                    one
                })
            };
            // A rank that has left and, if the next job is larger, a rank that the last job did not have.
            let others: Vec<_> = (1..ranks).map(|rank| rejoin(rank, Duration::ZERO)).collect();
            thread::sleep(LATE);
            zero.leave();
            let zero = rejoin(0, Duration::ZERO).join().unwrap();
            others.into_iter().for_each(|other| other.join().unwrap().leave());
            zero.leave();
        });
    }
}

#[test]
fn the_port_is_free_as_soon_as_the_rank_that_serves_has_left() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let zero = One::new(Store::host_on(listener, &member(0, 2), soon()).unwrap());
    let address = tcp(port, false);
    let one = One::at(&address, 1, 2);
    zero.watch.leave();
    // A part of the old group still exists, and another rank has not left yet.
    let next = stranger(0, 1);
    Store::host("127.0.0.1", port, &next, soon()).unwrap();
    one.store.set("k", b"v").unwrap();
    assert_eq!(zero.store.name(), one.store.name());
    one.leave();
    zero.leave();
}

#[test]
fn a_store_that_stays_refuses_another_job_at_once() {
    let (_server, address) = server(2);
    let one = One::at(&address, 1, 2);
    one.leave();
    let (begun, other) = (Instant::now(), stranger(1, 2));
    let error = Store::open(&address, &other, soon()).err().unwrap();
    assert!(matches!(error, Error::Refused { refusal: Refusal::Token, .. }), "{error}");
    assert!(begun.elapsed() < SOON / 2, "{:?}", begun.elapsed());
}

#[test]
fn a_job_that_does_not_end_is_named_when_the_time_is_over() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let zero = One::new(Store::host_on(listener, &member(0, 2), soon()).unwrap());
    let address = tcp(port, false);
    One::at(&address, 1, 2).leave();
    let other = stranger(1, 2);
    let error = Store::open(&address, &other, after(300)).err().unwrap();
    assert!(matches!(error, Error::Refused { refusal: Refusal::Token, .. }), "{error}");
    zero.leave();
}
