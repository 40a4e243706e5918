//! The behaviour of every store.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use unisono::{
    Error, Failure,
    error::Refusal,
    rendezvous::{
        CallRecord, FailureLatch, GroupPosition, MAX_KEY, MAX_VALUE, Position, PositionSource, Running,
        Stage, Store, exchange, report,
    },
};

use super::{
    raw::between,
    world::{KINDS, Kind, One, Place, SOON, after, member, part, soon, stores, tcp, together, world},
};

#[test]
fn values_are_set_got_and_replaced() {
    for kind in KINDS {
        let (_place, all) = stores(kind, 2);
        let big: Vec<u8> = (0..3_000_000_u32).map(|i| i.to_le_bytes()[0]).collect();
        for value in [&b""[..], b"x", &big] {
            all[1].set("a/b c%\u{e4}", value).unwrap();
            assert_eq!(all[0].get("a/b c%\u{e4}", soon()).unwrap().as_deref(), Some(value), "{kind:?}");
        }
    }
}

#[test]
fn what_is_too_long_is_told_at_once_and_the_store_goes_on() {
    for kind in KINDS {
        let (_place, all) = stores(kind, 2);
        let (store, key, begun) = (&all[1], "k".repeat(MAX_KEY + 1), Instant::now());
        let errors = [
            store.set(&key, b"").unwrap_err(),
            store.get(&key, soon()).unwrap_err(),
            store.collect(&key, 1, soon()).unwrap_err(),
            store.add(&key, 1).unwrap_err(),
        ];
        for error in errors {
            assert!(error.to_string().contains("a key of 1025 bytes; at most 1024"), "{kind:?}: {error}");
        }
        assert!(begun.elapsed() < SOON / 2, "{kind:?}: nothing waits for the deadline");
        let error = store.set("much", &vec![0; MAX_VALUE + 4096]).unwrap_err();
        let wanted = format!("much has {} bytes; at most {MAX_VALUE} are allowed", MAX_VALUE + 4096);
        assert!(error.to_string().contains(&wanted), "{kind:?}: {error}");
        assert_eq!(store.get("", after(0)).unwrap(), None, "{kind:?}: still usable after a bad request");
    }
}

#[test]
fn get_waits_for_the_value_and_no_longer_than_the_deadline() {
    for kind in KINDS {
        let (_place, all) = stores(kind, 2);
        let begun = Instant::now();
        assert_eq!(all[1].get("k", after(60)).unwrap(), None, "{kind:?}");
        assert!(begun.elapsed() >= Duration::from_millis(60), "{kind:?}: {:?}", begun.elapsed());
        assert!(begun.elapsed() < SOON, "{kind:?}");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| all[1].get("k", soon()).unwrap());
            thread::sleep(Duration::from_millis(20));
            all[0].set("k", b"v").unwrap();
            assert_eq!(waiter.join().unwrap().as_deref(), Some(&b"v"[..]), "{kind:?}");
        });
    }
}

#[test]
fn collect_gives_what_there_is() {
    for kind in KINDS {
        let (_place, all) = stores(kind, 2);
        all[0].set("p/2", b"two").unwrap();
        all[0].set("q", b"other").unwrap();
        let two = ("p/2".to_owned(), b"two".to_vec());
        assert_eq!(all[1].collect("p/", 2, after(30)).unwrap(), std::slice::from_ref(&two), "{kind:?}");
        assert_eq!(all[1].collect("r/", 0, soon()).unwrap(), [], "{kind:?}");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| all[1].collect("p/", 2, soon()).unwrap());
            thread::sleep(Duration::from_millis(20));
            all[0].set("p/2", b"two").unwrap();
            all[0].set("p/1", b"one").unwrap();
            let one = ("p/1".to_owned(), b"one".to_vec());
            assert_eq!(waiter.join().unwrap(), [one, two], "{kind:?}: in the order of names");
        });
    }
}

#[test]
fn counters_count_every_addition_once() {
    for kind in KINDS {
        let (_place, all) = stores(kind, 4);
        let each = 25;
        let sums =
            together(&all, |_, store| (0..each).map(|_| store.add("n", 1).unwrap()).collect::<Vec<_>>());
        let seen: BTreeSet<i64> = sums.into_iter().flatten().collect();
        assert_eq!(seen, (1..=4 * each).collect(), "{kind:?}: every sum is seen by exactly one");
        assert_eq!(all[0].add("n", -40).unwrap(), 60, "{kind:?}");
        assert!(all[0].add("n", i64::MAX).is_err(), "{kind:?}: overflow");
    }
}

#[test]
fn exchange_gives_everyone_everything() {
    for kind in KINDS {
        for ranks in [1, 2, 3, 7, 64] {
            let (_place, all) = stores(kind, ranks);
            for round in 0..2 {
                let bytes = |rank: usize| format!("{round} of {rank}").repeat(rank % 3).into_bytes();
                let tables = together(&all, |rank, store| {
                    let key = format!("round {round}");
                    exchange(store, &key, rank, ranks, &bytes(rank), soon()).unwrap()
                });
                for table in tables {
                    assert_eq!(table, (0..ranks).map(bytes).collect::<Vec<_>>(), "{kind:?}");
                }
            }
        }
    }
}

#[test]
fn every_rank_is_told_who_is_missing() {
    for kind in KINDS {
        let mut place = Place::new(kind);
        let all: Vec<_> = [0, 1, 3, 4].map(|rank| (rank, place.open(rank, 6))).into();
        let deadline = after(150);
        let errors =
            together(&all, |_, (rank, store)| exchange(store, "x", *rank, 6, b"", deadline).unwrap_err());
        for (error, (me, _)) in errors.into_iter().zip(&all) {
            let Error::Missing { rank, ranks: 6, missing, .. } = &error else { panic!("{kind:?}: {error}") };
            assert_eq!((rank, &missing[..]), (me, &[2, 5][..]), "{kind:?}");
            assert!(error.to_string().contains("2 of 6 ranks: 2, 5"), "{kind:?}: {error}");
        }
        // The result is the same if one rank has less patience, and has ended when the others look.
        let errors = together(&all, |i, (rank, store)| {
            let deadline = if i == 2 { after(60) } else { soon() };
            exchange(store, "y", *rank, 6, b"", deadline).unwrap_err()
        });
        for error in errors {
            assert!(
                matches!(&error, Error::Missing { missing, .. } if missing[..] == [2, 5]),
                "{kind:?}: {error}"
            );
        }
        // A rank that comes later learns that it is too late.
        let late = place.open(2, 6);
        let error = exchange(&late, "x", 2, 6, b"", soon()).unwrap_err();
        assert!(error.to_string().contains("rank 2 came too late"), "{kind:?}: {error}");
    }
}

#[test]
fn those_that_go_at_once_are_not_taken_for_the_missing() {
    let mut place = Place::new(Kind::Tcp);
    let mut all: Vec<_> = [0, 1].map(|rank| (rank, Mutex::new(Some(place.open(rank, 4))))).into();
    // One rank gives up, and reports it slowly; the others drop store and watch as soon as they know.
    let (slow, _) = between(all[0].1.lock().unwrap().as_ref().unwrap().reached().1, |_, _| {
        thread::sleep(Duration::from_millis(50));
    });
    let store = Store::join("127.0.0.1", slow.port(), &member(3, 4), soon()).unwrap();
    all.push((3, Mutex::new(Some(store))));
    let errors = together(&all, |_, (rank, store)| {
        let store = store.lock().unwrap().take().unwrap();
        let watch = store.watch(Arc::new(FailureLatch::new()), Arc::new(PositionSource::new()));
        let _watch = watch.unwrap();
        let deadline = if *rank == 3 { after(100) } else { soon() };
        exchange(&store, "x", *rank, 4, b"", deadline).unwrap_err()
    });
    for error in errors {
        assert!(matches!(&error, Error::Missing { missing, .. } if missing[..] == [2]), "{error}");
    }
}

#[test]
fn without_rank_0_the_others_say_so() {
    let (_held, port) = super::ports::held().unwrap();
    let address = tcp(port, false);
    let error = Store::open(&address, &member(1, 2), after(100)).err().unwrap();
    assert!(matches!(error, Error::Rendezvous { .. }), "{error}");
    assert!(error.to_string().contains("is rank 0 running"), "{error}");
}

#[test]
fn strangers_are_refused_and_disturb_nobody() {
    for kind in KINDS {
        let (place, all) = world(kind, 2);
        let refusal = |member| match Store::open(&place.address, &member, after(300)).err() {
            Some(Error::Refused { refusal, .. }) => refusal,
            other => panic!("{kind:?}: {other:?}"),
        };
        let taken = refusal(member(1, 2));
        assert!(
            matches!(&taken, Refusal::Duplicate { holder } if holder.contains("pid ")),
            "{kind:?}: {taken:?}"
        );
        assert_eq!(refusal(member(1, 3)), Refusal::WorldSize { store: 2, ours: 3 }, "{kind:?}");
        assert_eq!(refusal(member(7, 2)), Refusal::NoSuchRank { ranks: 2 }, "{kind:?}");
        all[1].store.set("k", b"v").unwrap();
        assert_eq!(all[0].store.get("k", soon()).unwrap().as_deref(), Some(&b"v"[..]), "{kind:?}");
        assert!(all.iter().all(|one| !one.latch.raised()), "{kind:?}");
        part(all);
    }
}

#[test]
fn ranks_leave_in_any_order_and_meet_again() {
    for kind in KINDS {
        for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
            let (place, all) = world(kind, 3);
            let latches: Vec<_> = all.iter().map(|one| Arc::clone(&one.latch)).collect();
            let mut all: Vec<_> = all.into_iter().map(Some).collect();
            thread::scope(|scope| {
                for rank in order {
                    let one = all[rank].take().unwrap();
                    one.watch.leave();
                    // Rank 0's store stays until the others have left.
                    scope.spawn(move || drop(one));
                    thread::sleep(Duration::from_millis(10));
                }
            });
            assert!(latches.iter().all(|latch| !latch.raised()), "{kind:?} {order:?}");
            if let Some(directory) = &place.directory {
                assert_eq!(
                    directory.path().read_dir().unwrap().count(),
                    0,
                    "{order:?}: nothing is left behind"
                );
            }
        }
    }
}

#[test]
fn ranks_that_leave_together_can_join_again_at_once() {
    let place = Place::new(Kind::File);
    together(&[(); 3], |rank, ()| {
        for round in 0..40_u8 {
            let store = Store::open(&place.address, &member(rank, 3), soon());
            let one = One::new(store.unwrap_or_else(|error| panic!("rank {rank} in round {round}: {error}")));
            let all = exchange(&one.store, "round", rank, 3, &[round], soon()).unwrap();
            assert_eq!(all, vec![vec![round]; 3], "rank {rank}");
            one.leave();
        }
    });
}

#[test]
fn who_has_left_is_not_heard_any_more() {
    let (_place, all) = world(Kind::Tcp, 2);
    all[1].watch.leave();
    let error = all[1].store.set("k", b"v").unwrap_err();
    assert!(error.to_string().contains("rank 1 has left the group"), "{error}");
    assert_eq!(all[0].store.get("k", after(0)).unwrap(), None);
    assert!(all.iter().all(|one| !one.latch.raised()));
    part(all);
}

#[test]
fn a_rank_that_drops_its_watch_without_leaving_is_dead() {
    for kind in KINDS {
        let (_place, mut all) = world(kind, 3);
        let begun = Instant::now();
        drop(all.remove(1));
        for one in &all {
            let failure = one.latch.wait(SOON).unwrap();
            assert!(
                matches!(&failure, Failure::Died { rank: 1, how } if how.contains("pid ")),
                "{kind:?}: {failure}"
            );
            assert!(begun.elapsed() < Duration::from_secs(1), "{kind:?}: {:?}", begun.elapsed());
        }
        assert!(
            matches!(all[0].store.get("never", soon()), Err(Error::Failed(_))),
            "{kind:?}: waiting fails too"
        );
    }
}

#[test]
fn the_first_failure_wins_everywhere() {
    for kind in KINDS {
        let (_place, all) = world(kind, 5);
        let reports = together(&all, |rank, one| {
            one.watch.report(&Failure::Aborted { rank, why: "each its own".into() })
        });
        assert!(reports.iter().all(|failure| *failure == reports[0]), "{kind:?}: {reports:?}");
        for one in &all {
            assert_eq!(one.latch.failure().as_ref(), Some(&reports[0]), "{kind:?}");
        }
        part(all);
    }
}

#[test]
fn a_failure_ends_every_wait() {
    for kind in KINDS {
        let (_place, all) = world(kind, 3);
        let failure = Failure::Aborted { rank: 2, why: "enough".into() };
        let results = together(&all, |rank, one| match rank {
            2 => {
                thread::sleep(Duration::from_millis(30));
                one.watch.report(&failure);
                None
            }
            1 => Some(one.store.collect("never/", 3, soon()).unwrap_err()),
            _ => Some(one.store.get("never", soon()).unwrap_err()),
        });
        for error in results.into_iter().flatten() {
            assert!(matches!(&error, Error::Failed(same) if *same == failure), "{kind:?}: {error}");
        }
        part(all);
    }
}

#[test]
fn positions_tell_who_is_where() {
    for kind in KINDS {
        let (mut place, mut all) = (Place::new(kind), Vec::new());
        for rank in 0..4 {
            let store = place.open(rank, 5);
            all.push(One::new(store));
        }
        // Rank 4 has joined but has no watch: it is as silent as a stopped process.
        let _silent = place.open(4, 5);
        all.pop().unwrap().leave();
        let enter = |rank: usize, position: &Position| {
            let position = position.clone();
            all[rank].position.set(move || position.clone());
        };
        let wants =
            [inside(0, 17, "call8(1)", &[2]), inside(0, 17, "call8(1)", &[0]), done(0, 16, "call7(0)")];
        wants.iter().enumerate().for_each(|(rank, position)| enter(rank, position));
        let stands = all[1].watch.positions(Duration::from_secs(10)).unwrap();
        let left = Some(Position::of(Stage::Left));
        let wants: Vec<_> = wants.into_iter().map(Some).chain([left, None]).collect();
        assert_eq!(stands, wants, "{kind:?}");
        assert_eq!(
            report(0, 17, &stands),
            "rank 2 has not entered it (finished call7(0) and called nothing since); rank 3 left the group; \
             rank 4 gave no answer (stopped, or cut off); ranks 0, 1 are in it: rank 0 waits for rank 2 \
             (5 steps done), rank 1 waits for rank 0 (5 steps done); ranks 0, 1 are stuck behind rank 2",
            "{kind:?}"
        );
        // All may ask at once.
        for stands in together(&all, |_, one| one.watch.positions(Duration::from_millis(300)).unwrap()) {
            assert!(stands[..3].iter().all(Option::is_some), "{kind:?}: {stands:?}");
        }
        all.drain(1..).for_each(One::leave);
    }
}

fn done(id: u64, op: u64, call: &str) -> Position {
    let called = CallRecord {
        call: call.into(),
        count: 1,
        algorithm: "ring".into(),
        contents: 0,
        uneven: false,
        chunk: 1,
        lanes: 1,
    };
    let label = if id == 0 { String::new() } else { format!("g{id}") };
    let group = GroupPosition { id, label, begun: op + 1, latest: vec![called], ..GroupPosition::default() };
    Position { groups: vec![group], ..Position::of(Stage::Calls) }
}

/// The position of a rank that can only wait for others in an operation.
fn inside(id: u64, op: u64, call: &str, waits: &[usize]) -> Position {
    let mut position = done(id, op, call);
    position.blocked = Some(1000);
    position.groups[0].running = Some(Running { steps: 5, waits: waits.to_vec() });
    position
}

#[test]
fn what_follows_from_where_all_stand_is_told_to_all() {
    for kind in KINDS {
        let (_place, all) = world(kind, 4);
        let enter = |rank: usize, position: Position| all[rank].position.set(move || position.clone());
        // There is no verdict as long as one of them computes.
        for rank in 0..3 {
            enter(rank, inside(rank as u64 + 1, 2, "barrier()", &[(rank + 1) % 4]));
        }
        together(&all, |_, one| one.watch.doubt());
        thread::sleep(Duration::from_millis(600));
        assert!(all.iter().all(|one| !one.latch.raised()), "{kind:?}");
        enter(3, inside(4, 2, "barrier()", &[0]));
        let begun = Instant::now();
        // All waiting ranks report it at about the same time, and one after the other.
        together(&all, |rank, one| {
            thread::sleep(Duration::from_millis(20 * rank as u64));
            one.watch.doubt();
        });
        for one in &all {
            let failure = one.latch.wait(SOON).unwrap();
            let wanted = "ranks wait for each other: rank 0 in op 2 barrier() of group g1 for rank 1, rank 1 in op 2 \
                          barrier() of group g2 for rank 2, rank 2 in op 2 barrier() of group g3 for rank 3, rank 3 \
                          in op 2 barrier() of group g4 for rank 0";
            assert_eq!(failure.to_string(), wanted, "{kind:?}");
        }
        assert!(begun.elapsed() < Duration::from_secs(2), "{kind:?}: {:?}", begun.elapsed());
        part(all);
    }
}

#[test]
fn a_leaving_rank_is_reported_and_not_waited_for() {
    for kind in KINDS {
        let (_place, all) = world(kind, 3);
        all[0].position.set(|| Position::of(Stage::Leaves));
        all[2].position.set(|| Position::of(Stage::Calls));
        all[0].watch.leaves();
        let until = Instant::now() + SOON;
        while !all.iter().all(|one| one.latch.somebody_leaves()) {
            assert!(Instant::now() < until, "{kind:?}");
            thread::sleep(Duration::from_millis(5));
        }
        assert!(all.iter().all(|one| !one.latch.raised()), "{kind:?}: nobody waits for it");
        all[1].position.set(|| inside(1, 2, "barrier()", &[0]));
        all[1].watch.doubt();
        for one in &all {
            let failure = one.latch.wait(SOON).unwrap().to_string();
            let wanted = "rank 0 has left, and rank 1 waits for it in op 2 barrier() of group g1";
            assert_eq!(failure, wanted, "{kind:?}");
        }
        part(all);
    }
}
