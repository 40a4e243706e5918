//! Ranks die, stop, leave, abort or never come: the others report it at once, all with the same text.

use std::{
    fs,
    future::Future as _,
    path::{Path, PathBuf},
    sync::Arc,
    task::{Context, Wake},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use unisono::{Error, Failure, ReduceOp};

use crate::{
    Outcome, Table, Verdict, ensure,
    rank::{self, Role, failure, join, say, signal_myself, until_failure},
    world::{End, TestJob, same},
};

const RANKS: usize = 4;
/// Elements of an all_reduce that takes some milliseconds at least.
const LARGE: usize = 1 << 20;
/// The time within which the others must know, in microseconds: less than any timeout, and more than a loaded machine
/// keeps a thread from running.
pub(crate) const SOON: i64 = 4_000_000;

/// The cases.
pub(crate) const CASES: Table = &[
    ("rank 2 is killed", |provider| killed(provider, 2)),
    ("rank 0 is killed", |provider| killed(provider, 0)),
    ("rank 0 is killed, and the store with it", host_killed),
    ("a rank is killed while it joins", killed_joining),
    ("a rank stops", |provider| stopped(TestJob::new(provider, RANKS, 1)?, 1, "rank 1 gave no answer")),
    ("rank 0 stops, and the store with it", |provider| {
        stopped(
            TestJob::served_by_rank_0(provider, RANKS)?,
            0,
            "does not answer: rank 0, whose process serves it",
        )
    }),
    ("a rank stops that is not the store's", |provider| {
        stopped(TestJob::served_by_rank_0(provider, RANKS)?, 1, "rank 1 gave no answer")
    }),
    ("a rank never comes", missing),
    ("a rank leaves early", leaves),
    ("a rank exits early", exits),
    ("a rank aborts", aborts),
    ("a rank goes before another has looked", unseen),
    ("a rank has its memory back before another has looked", reused),
];

pub(crate) const ROLES: &[Role] = &[
    ("killed", play_killed),
    ("dies-joining", play_joins_to_die),
    ("stops", play_stops),
    ("meets", play_meets),
    ("leaves", play_leaves),
    ("exits", play_exits),
    ("aborts", play_aborts),
    ("unseen", play_unseen),
    ("reused", play_reused),
];

/// Separates the end of the victim from those of the others.
fn victim_and_others(ends: &[End], victim: usize) -> Result<(&End, Vec<&End>), &'static str> {
    let (victims, others): (Vec<_>, Vec<_>) = ends.iter().partition(|end| end.rank == victim);
    Ok((victims.first().ok_or("the victim did not end")?, others))
}

/// The time from a signal to the last failure; an error if it is too long.
fn soon(ends: &[&End], since: i64) -> Result<Verdict, Box<dyn std::error::Error>> {
    let mut slowest = 0;
    for end in ends {
        let took = end.number("failed")? - since;
        ensure!(took < SOON, "rank {} needed {took} µs to notice", end.rank);
        slowest = slowest.max(took);
    }
    Ok(Verdict::Measured(format!("all knew after {:.1} ms", slowest as f64 / 1000.0)))
}

fn killed(provider: &str, victim: usize) -> Outcome {
    let mut world = TestJob::new(provider, RANKS, 1)?;
    world.start_all(&format!("killed {victim}"), &[])?;
    let ends = world.end_all()?;
    let (dead, others) = victim_and_others(&ends, victim)?;
    others.iter().try_for_each(|end| end.well())?;
    let words = same(&others, "failure")?;
    ensure!(words.starts_with(&format!("rank {victim} died (")), "{words}");
    soon(&others, dead.number("signalled")?)
}

fn host_killed(provider: &str) -> Outcome {
    let mut world = TestJob::served_by_rank_0(provider, RANKS)?;
    world.start_all("killed 0", &[])?;
    let ends = world.end_all()?;
    let (dead, others) = victim_and_others(&ends, 0)?;
    others.iter().try_for_each(|end| end.well())?;
    // The store has ended, so the texts may differ, but all name rank 0.
    for end in &others {
        let words = end.said("failure")?;
        ensure!(words.contains("rank 0"), "rank {} says {words}", end.rank);
    }
    soon(&others, dead.number("signalled")?)
}

fn play_killed(victim: &str) -> rank::Outcome {
    let group = join()?;
    let mut data = vec![0.5_f32; LARGE];
    if group.rank() == victim.parse::<usize>()? {
        // The others may still be in the last of these calls when it dies.
        for _ in 0..3 {
            group.all_reduce(&mut data, ReduceOp::Avg)?;
        }
        thread::spawn(|| {
            thread::sleep(Duration::from_millis(20));
            signal_myself(Signal::KILL).is_ok()
        });
    }
    match until_failure(&group, |group| group.all_reduce(&mut data, ReduceOp::Avg))? {
        Failure::Died { .. } | Failure::StoreLost { .. } => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

fn killed_joining(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, RANKS, 1)?;
    for rank in 0..RANKS - 1 {
        world.start(rank, "meets", &[])?;
    }
    world.start(RANKS - 1, "dies-joining", &[])?;
    let ends = world.end_all()?;
    let (dead, others) = victim_and_others(&ends, RANKS - 1)?;
    let words = same(&others, "error")?;
    ensure!(words.starts_with("rank 3 died ("), "{words}");
    soon(&others, dead.number("signalled")?)
}

/// Is killed after it has opened the store, and before it has connected to any rank.
fn play_joins_to_die(_: &str) -> rank::Outcome {
    let config = rank::config(0)?;
    let deadline = Instant::now() + config.join_timeout;
    let store = unisono::rendezvous::Store::open(
        config.store.as_ref().ok_or("no store")?,
        &config.member(),
        deadline,
    )?;
    // By now the others wait for it.
    thread::sleep(Duration::from_millis(500));
    signal_myself(Signal::KILL)?;
    drop(store);
    Ok(())
}

fn stopped(mut world: TestJob, victim: usize, wanted: &str) -> Outcome {
    world.start_all(&format!("stops {victim}"), &[("UNISONO_TIMEOUT", "1s")])?;
    world.stopped(victim)?;
    let others = world.end(|rank| rank != victim)?;
    world.signal(victim, Signal::CONT)?;
    let woken = world.end_all()?;
    End::all_well(others.iter().chain(&woken))?;
    let words = same(&others.iter().collect::<Vec<_>>(), "failure")?;
    ensure!(words.contains(wanted), "{words}");
    // The rank that was stopped gets the failure, with the same text if the others had not given it up before.
    let its = woken.first().ok_or("it did not end")?.said("failure")?;
    Ok(Verdict::Measured(format!("{words:?}, and to rank {victim} itself {its:?}")))
}

fn play_stops(victim: &str) -> rank::Outcome {
    let group = join()?;
    let mut data = vec![0.5_f32; LARGE];
    if group.rank() == victim.parse::<usize>()? {
        // The others may still be in the last of these calls when it stops.
        for _ in 0..3 {
            group.all_reduce(&mut data, ReduceOp::Avg)?;
        }
        signal_myself(Signal::STOP)?;
    }
    until_failure(&group, |group| group.all_reduce(&mut data, ReduceOp::Avg))?;
    Ok(())
}

fn missing(provider: &str) -> Outcome {
    let absent = 2;
    let mut world = TestJob::new(provider, RANKS, 1)?;
    for rank in (0..RANKS).filter(|&rank| rank != absent) {
        // Long enough for the others to join on a busy machine.
        world.start(rank, "meets", &[("UNISONO_JOIN_TIMEOUT", "3s")])?;
    }
    let ends = world.end_all()?;
    for end in &ends {
        let missing = end.said("missing")?;
        ensure!(missing == format!("[{absent}]"), "rank {} misses {missing}", end.rank);
        let took = end.number("failed")? - end.number("began")?;
        ensure!((2_900_000..6_000_000).contains(&took), "rank {} gave up after {took} µs", end.rank);
    }
    Ok(Verdict::Measured(ends[0].said("error")?.to_owned()))
}

/// Joins and leaves, or prints the reason why it could not join.
fn play_meets(_: &str) -> rank::Outcome {
    say("began", rank::now());
    let result = rank::join_with(rank::config(0)?);
    say("failed", rank::now());
    match result {
        Ok(group) => group.barrier()?,
        Err(error) => {
            say("error", &error);
            if let Error::Missing { missing, .. } = error {
                say("missing", format!("{missing:?}"));
            }
        }
    }
    Ok(())
}

/// Starts all ranks in a role in which rank 1 differs from the others.
fn odd_one(provider: &str, role: &str) -> Result<(Vec<End>, Verdict), Box<dyn std::error::Error>> {
    let mut world = TestJob::new(provider, RANKS, 1)?;
    world.start_all(role, &[])?;
    let ends = world.end_all()?;
    End::all_well(&ends)?;
    let (odd, others) = victim_and_others(&ends, 1)?;
    let verdict = soon(&others, odd.number("signalled")?)?;
    Ok((ends, verdict))
}

/// Joins; rank 1 continues when the others are in their next call.
fn join_and_tarry() -> Result<unisono::ProcessGroup, Box<dyn std::error::Error>> {
    let group = join()?;
    rank::meet(&group);
    if group.rank() == 1 {
        thread::sleep(Duration::from_millis(100));
        say("signalled", rank::now());
    }
    Ok(group)
}

fn leaves(provider: &str) -> Outcome {
    let (ends, verdict) = odd_one(provider, "leaves")?;
    let words = same(&victim_and_others(&ends, 1)?.1, "failure")?;
    ensure!(words.contains("rank 1 has left before it"), "{words}");
    Ok(verdict)
}

fn play_leaves(_: &str) -> rank::Outcome {
    let group = join_and_tarry()?;
    if group.rank() == 1 {
        return Ok(());
    }
    until_failure(&group, |group| group.all_reduce(&mut vec![0.5_f32; LARGE], ReduceOp::Avg)).map(drop)
}

fn exits(provider: &str) -> Outcome {
    let (ends, verdict) = odd_one(provider, "exits")?;
    let words = same(&victim_and_others(&ends, 1)?.1, "failure")?;
    ensure!(words.starts_with("rank 1 died ("), "{words}");
    Ok(verdict)
}

fn play_exits(_: &str) -> rank::Outcome {
    let group = join_and_tarry()?;
    if group.rank() == 1 {
        std::process::exit(0);
    }
    until_failure(&group, |group| group.all_reduce(&mut vec![0.5_f32; LARGE], ReduceOp::Avg)).map(drop)
}

fn aborts(provider: &str) -> Outcome {
    let (ends, verdict) = odd_one(provider, "aborts")?;
    let words = same(&ends.iter().collect::<Vec<_>>(), "failure")?;
    ensure!(words == "rank 1 aborted the group: the loss is NaN", "{words}");
    Ok(verdict)
}

fn play_aborts(_: &str) -> rank::Outcome {
    let group = join_and_tarry()?;
    if group.rank() == 1 {
        group.abort("the loss is NaN");
    }
    until_failure(&group, |group| group.all_reduce(&mut vec![0.5_f32; LARGE], ReduceOp::Avg)).map(drop)
}

/// A rank puts to another for the first time, and ends before that one, which is stopped meanwhile, polls.
fn unseen(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, RANKS, 1)?;
    world.start_all("unseen", &[])?;
    let ends = world.end_all()?;
    End::all_well(&ends)?;
    let words = same(&ends.iter().collect::<Vec<_>>(), "failure")?;
    ensure!(words == "rank 3 aborted the group: the loss is NaN", "{words}");
    Ok(Verdict::Passed)
}

fn play_unseen(_: &str) -> rank::Outcome {
    let group = join()?;
    // Ranks 1 and 3 are no neighbours on the ring, and nothing has gone from one to the other.
    let mut stopped = [rustix::process::getpid().as_raw_nonzero().get()];
    match group.rank() {
        0 => drop(group.recv(&mut stopped, 1).and_then(|_| group.send(&stopped, 3))?),
        1 => group.send(&stopped, 0).map(|()| signal_myself(Signal::STOP))??,
        3 => {
            group.recv(&mut stopped, 0)?;
            let stopped = rustix::process::Pid::from_raw(stopped[0]).ok_or("no process")?;
            thread::sleep(Duration::from_millis(50));
            let message = group.begin().send(vec![1_u8], 1)?;
            let _still_under_way = message.wait_timeout(Duration::from_millis(50));
            group.abort("the loss is NaN");
            rustix::process::kill_process(stopped, Signal::CONT)?;
        }
        _ => {}
    }
    until_failure(&group, |group| group.all_reduce(&mut vec![0.5_f32; LARGE], ReduceOp::Avg)).map(drop)
}

/// A rank sends a message, its call fails, and it changes the message's memory before the receiver polls. The receiver must not
/// return the changed contents.
fn reused(provider: &str) -> Outcome {
    let directory = tempfile::tempdir()?;
    let mut world = TestJob::new(provider, 2, 1)?;
    world.start_all(&format!("reused {}", directory.path().display()), &[])?;
    let ends = world.end_all()?;
    End::all_well(&ends)?;
    let words = same(&ends.iter().collect::<Vec<_>>(), "failure")?;
    ensure!(words == "rank 1 aborted the group: the loss is NaN", "{words}");
    Ok(Verdict::Passed)
}

/// Ranks of one host show each other their progress by files in a directory.
struct Marks(PathBuf);

impl Marks {
    fn set(&self, name: &str) -> std::io::Result<()> {
        fs::write(self.0.join(name), "")
    }

    fn wait_for(&self, name: &str) {
        let begun = Instant::now();
        while !self.0.join(name).exists() && begun.elapsed() < Duration::from_secs(30) {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A waker that sets a mark and blocks the library's thread, so that no thread polls, until there is another mark.
struct Holds(Marks, &'static str, &'static str);

impl Wake for Holds {
    fn wake(self: Arc<Self>) {
        let set = self.0.set(self.1);
        self.0.wait_for(self.2);
        set.expect("a mark can be set");
    }
}

fn play_reused(directory: &str) -> rank::Outcome {
    /// More bytes than fit a slot, so that the message is sent from the caller's memory.
    const BYTES: usize = 64 << 10;
    let marks = || Marks(Path::new(directory).to_path_buf());
    let group = join()?;
    if group.rank() == 1 {
        marks().wait_for("awaited");
        group.send(&[1_u8], (0, 1))?;
        marks().wait_for("held");
        // The receiver takes both at once: it clears the large message to be sent, and the waker of the small one blocks it.
        let small = group.begin().send(vec![1_u8], (0, 2))?;
        let mut data = vec![2_u8; BYTES];
        let sent = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(100));
                let set = marks().set("sent");
                marks().wait_for("cleared");
                thread::sleep(Duration::from_millis(100));
                group.abort("the loss is NaN");
                set.expect("a mark can be set");
            });
            group.send(&data, 0)
        });
        // Over sockets the message may be on its way before.
        say("failure", sent.err().map_or_else(|| failure(group.barrier()), |error| failure(Err(error)))?);
        data.fill(3);
        marks().set("changed")?;
        drop(small);
        // Nothing can be fetched from a process that has ended.
        marks().wait_for("returned");
        return Ok(());
    }
    let message = group.begin().recv(vec![0_u8; BYTES], 1)?;
    let mut small = Vec::new();
    for (tag, held, until) in [(1, "held", "sent"), (2, "cleared", "changed")] {
        let mut receive = Box::pin(group.begin().recv(vec![0_u8], (1, tag))?);
        let waker = Arc::new(Holds(marks(), held, until)).into();
        if receive.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            return Err("a message came before it was sent".into());
        }
        small.push(receive);
    }
    marks().set("awaited")?;
    marks().wait_for("changed");
    let outcome = message.wait();
    marks().set("returned")?;
    match outcome {
        Ok((data, _)) if data == [2; BYTES] => say("failure", failure(group.barrier())?),
        Ok(_) => return Err("it returns what was never sent".into()),
        Err(error) => say("failure", failure(Err(error))?),
    }
    Ok(())
}
