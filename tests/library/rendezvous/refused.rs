//! Processes that the store refuses while ranks are missing: the ranks that wait for them get an error at once.

use std::thread;

use rustix::{
    process::{Uid, geteuid},
    thread::set_thread_res_uid,
};

use unisono::{
    Error, Failure,
    config::Member,
    error::Refusal,
    rendezvous::{Store, exchange},
};

use super::{
    raw::{PREAMBLE, Raw, frame},
    world::{One, SOON, after, itself, log_to_stderr, member, part, server, soon, stranger, together},
};

/// An opening of a process that cannot join: purpose 2.
fn opening(rank: u64) -> Vec<u8> {
    [PREAMBLE, &frame(&([7_u8; 32], "", rank, 0_u64, "raw", 2_u32))].concat()
}

#[test]
fn a_process_of_the_job_that_does_not_fit_ends_the_wait_of_all() {
    type Refuse = fn(&Refusal) -> bool;
    let unfit: [(Member, Refuse, &str); 4] = [
        (
            member(1, 4),
            |it| matches!(it, Refusal::WorldSize { store: 3, ours: 4 }),
            "world size 4, the store 3",
        ),
        (
            member(1, 2),
            |it| matches!(it, Refusal::WorldSize { store: 3, ours: 2 }),
            "world size 2, the store 3",
        ),
        (member(3, 3), |it| matches!(it, Refusal::NoSuchRank { ranks: 3 }), "no such rank"),
        (member(0, 3), |it| matches!(it, Refusal::Duplicate { .. }), "that rank is taken by pid "),
    ];
    for (unfit, is, words) in unfit {
        let (_server, address) = server(3);
        let all = [0, 2].map(|rank| One::at(&address, rank, 3));
        let error = Store::open(&address, &unfit, soon()).err().unwrap();
        assert!(matches!(&error, Error::Refused { refusal, .. } if is(refusal)), "{error}");
        for one in &all {
            let failure = one.latch.wait(SOON).unwrap();
            let Failure::Joining { rank, why } = &failure else { panic!("{failure}") };
            assert_eq!(*rank, unfit.rank);
            for word in [words, &format!("pid {} ", std::process::id()), "from 127.0.0.1"] {
                assert!(why.contains(word), "{word}: {failure}");
            }
        }
        // A rank that comes later hears the same, also with the other world size.
        for late in [member(1, 3), member(0, 9)] {
            let error = Store::open(&address, &late, soon()).err().unwrap();
            assert!(error.to_string().contains(words), "{error}");
        }
        part(all.into());
    }
}

#[test]
fn once_all_ranks_have_come_nobody_else_ends_their_group() {
    let (server, address) = server(2);
    let all = [0, 1].map(|rank| One::at(&address, rank, 2));
    for other in [member(1, 4), member(1, 2), member(7, 2), stranger(1, 2)] {
        Store::open(&address, &other, soon()).err().unwrap();
    }
    let mut raw = Raw::cannot_join(server.address(), &opening(1), "test", "late");
    assert_eq!(raw.plain().unwrap(), [0], "genuine");
    all[0].store.set("k", b"v").unwrap();
    assert_eq!(all[1].store.get("k", soon()).unwrap().as_deref(), Some(&b"v"[..]));
    assert!(all.iter().all(|one| !one.latch.raised()), "{:?}", all[0].latch.failure());
    part(all.into());
}

#[test]
fn a_process_without_the_token_ends_nothing_and_is_named_in_the_end() {
    let (server, address) = server(3);
    let all = [0, 2].map(|rank| One::at(&address, rank, 3));
    let other = stranger(1, 3);
    Store::open(&address, &other, soon()).err().unwrap();
    // Nor does a process of another user that claims repeatedly that it cannot join.
    let claims = || {
        for rank in [1, u64::MAX, 0, 2, 1] {
            let mut raw = Raw::cannot_join(server.address(), &opening(rank), "guess", "it says so");
            assert_eq!(raw.plain().unwrap(), [1, 0], "unproved");
        }
    };
    let others = if as_another_user(claims) { "and 3 others" } else { "the tokens differ" };
    let errors = together(&all, |i, one| exchange(&one.store, "x", i * 2, 3, b"", after(300)).unwrap_err());
    for error in errors {
        let Error::Missing { missing, refused, .. } = &error else { panic!("{error}") };
        assert_eq!(missing[..], [1]);
        let who = format!("rank 1 (pid {} ", std::process::id());
        for word in [&*who, "from 127.0.0.1", "the tokens differ", others] {
            assert!(refused.contains(word) && error.to_string().contains(word), "{word}: {error}");
        }
    }
    assert!(all.iter().all(|one| !one.latch.raised()), "{:?}", all[0].latch.failure());
    part(all.into());
}

/// Runs this in a thread of another user, if this user may; `false` if not.
fn as_another_user(body: impl FnOnce() + Send) -> bool {
    if !geteuid().is_root() {
        println!("SKIPPED: a stranger of another user: only root can take another user's id");
        return false;
    }
    let run = || {
        set_thread_res_uid(Uid::ROOT, Uid::from_raw(12_345), Uid::ROOT).unwrap();
        body();
    };
    thread::scope(|scope| scope.spawn(run).join().unwrap());
    true
}

#[test]
fn a_process_of_this_user_is_believed_without_the_token_that_a_missing_rank_cannot_join() {
    for (claims, named) in
        [(1, Some("rank 1 could not")), (u64::MAX, Some("does not know its rank")), (0, None)]
    {
        let (server, address) = server(2);
        let zero = One::at(&address, 0, 2);
        let mut raw = Raw::cannot_join(server.address(), &opening(claims), "guess", "no \u{1b}[2J\nway");
        // The process learns nothing.
        assert_eq!(raw.plain().unwrap(), [1, 0], "unproved");
        match named {
            Some(words) => {
                let failure = zero.latch.wait(SOON).unwrap().to_string();
                assert!(failure.contains(words), "{failure}");
                assert!(failure.ends_with(": raw, from 127.0.0.1: no ?[2J way"), "{failure}");
            }
            None => {
                let one = One::at(&address, 1, 2);
                assert!(!zero.latch.raised() && !one.latch.raised(), "{:?}", zero.latch.failure());
                one.leave();
            }
        }
        zero.leave();
    }
}

#[test]
fn a_process_that_cannot_join_says_so_with_the_token_alone() {
    for (rank, words) in
        [(1, "rank 1 could not join: raw, from 127.0.0.1: no"), (u64::MAX, "does not know its rank")]
    {
        let (server, address) = server(2);
        let zero = One::at(&address, 0, 2);
        let mut raw = Raw::cannot_join(server.address(), &opening(rank), "test", "no \u{1b}[2J\nway");
        assert_eq!(raw.plain().unwrap(), [0], "genuine");
        let failure = zero.latch.wait(SOON).unwrap().to_string();
        assert!(failure.contains(words) && failure.ends_with("no ?[2J way"), "{failure}");
        // The process gets the failure: Answer::Refused { Refusal::Failed(..), .. }.
        assert_eq!(raw.receive()[..2], [1, 7]);
        zero.leave();
    }
}

#[test]
#[ignore = "what the next test starts as a separate process"]
fn two_ranks_that_wait() {
    log_to_stderr();
    let (_server, address) = server(6);
    let all = [0, 3].map(|rank| One::at(&address, rank, 6));
    let other = stranger(1, 6);
    Store::open(&address, &other, soon()).err().unwrap();
    thread::scope(|scope| {
        // A third rank does not find its store.
        let alone = scope.spawn(|| Store::join("127.0.0.1", 1, &member(4, 6), after(5500)).err().unwrap());
        together(&all, |i, one| exchange(&one.store, "x", i * 3, 6, b"", after(6000)).unwrap_err());
        alone.join().unwrap();
    });
    part(all.into());
}

#[test]
fn a_rank_that_waits_says_for_which_rank_and_for_how_long() {
    let output = itself("refused::two_ranks_that_wait").env("RUST_LOG", "warn").output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    let one = |words: &[&str]| {
        let message =
            log.lines().filter(|line| line.contains("WARN") && words.iter().all(|word| line.contains(word)));
        assert_eq!(message.count(), 1, "{words:?}: {log}");
    };
    for rank in ["rank 0", "rank 3"] {
        // The line comes at once, and again after five seconds.
        one(&[rank, "waits for others, and the store has refused rank 1 (pid ", "the tokens differ"]);
        let words =
            ["has waited 5s at tcp://127.0.0.1:", "4 of 6 ranks: 1, 2, 4, 5;", "UNISONO_JOIN_TIMEOUT"];
        one(&[&[rank], &words[..], &["the store has refused rank 1 (pid "]].concat());
    }
    one(&["rank 4 has tried 5s to reach the store at tcp://127.0.0.1:1", "refused", "UNISONO_JOIN_TIMEOUT"]);
}
