//! Groups that their members make without the other ranks: thousands of them, by several threads at once, and with a member that
//! dies meanwhile.

use std::{thread, time::Instant};

use rustix::process::Signal;
use unisono::{ProcessGroup, ReduceOp, Source};

use crate::{
    Outcome, Table, Verdict, ensure,
    groups::taken,
    random::Random,
    rank::{self, Role, failure, join, now, say, signal_myself},
    world::{End, TestJob, same},
};

pub(crate) const CASES: Table = &[
    ("hundreds of groups made by 2, 4 and 8 members", thousands),
    ("threads make groups by their members at once", at_once),
    ("a member dies while a group is made", member_dies),
];

pub(crate) const ROLES: &[Role] =
    &[("members", members), ("members-threads", threads), ("members-die", dies)];

/// The number of groups.
const GROUPS: usize = 300;

/// The most bytes by which a process may grow when everything has been allocated once, as in `groups.rs`.
const MORE: i64 = 2 << 20;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Makes this many groups, one after the other.
fn make(world: &ProcessGroup, ranks: &[usize]) -> Result<Vec<ProcessGroup>> {
    let made: unisono::Result<_> = (0..GROUPS).map(|_| world.create_group(ranks, 0)).collect();
    Ok(made?)
}

/// All ranks but the last make groups, and drop them in their own order; the last one waits for a message.
fn members(_: &str) -> rank::Outcome {
    let world = join()?;
    let (rank, last) = (world.rank(), world.size() - 1);
    let ranks: Vec<usize> = (0..last).rev().collect();
    world.barrier()?;
    if rank == last {
        world.recv(&mut [0_u8], (0, 1))?;
        world.leave()?;
        return Ok(());
    }
    let mut random = Random(35 + rank as u64);
    let (mut took, mut files, mut memory) = (0, Vec::new(), Vec::new());
    for _ in 0..3 {
        let before = taken()?;
        let begun = Instant::now();
        let mut held = make(&world, &ranks)?;
        took = begun.elapsed().as_micros() / GROUPS as u128;
        files.push(taken()?.2 as i64 - before.2 as i64);
        for part in held.iter().step_by(100) {
            let mut sum = [1_u32; 3];
            part.all_reduce(&mut sum, ReduceOp::Sum)?;
            ensure!(sum == [u32::try_from(last)?; 3], "a wrong sum");
        }
        while !held.is_empty() {
            held.swap_remove(random.below(held.len()));
        }
        // When the members know that the groups have ended, all memory is free.
        let all = world.create_group(&ranks, 1)?;
        all.barrier()?;
        memory.push(taken()?);
    }
    say("micros", took);
    // In the first round members connect to each other.
    say("files", files[1..].iter().max().unwrap_or(&0));
    let [_, early, late] = memory[..] else { return Err("three rounds".into()) };
    say("threads and files", (early.1, early.2) == (late.1, late.2));
    say("bytes", late.0 - early.0);
    if rank == 0 {
        world.send(&[0_u8], (last, 1))?;
    }
    world.leave()?;
    Ok(())
}

fn thousands(provider: &str) -> Outcome {
    let mut messages = Vec::new();
    for members in [2, 4, 8] {
        let mut world = TestJob::new(provider, members + 1, 1)?;
        // The rank that is no member waits for all of them.
        world.start_all("members", &[("UNISONO_TIMEOUT", "300s")])?;
        let ends = world.end_all()?;
        End::all_well(&ends)?;
        let ends: Vec<&End> = ends.iter().filter(|end| end.rank < members).collect();
        ensure!(same(&ends, "threads and files")? == "true", "threads or open files are left");
        let most = |key: &str| -> Result<i64> {
            let all = ends.iter().map(|end| end.number(key)).collect::<Result<Vec<_>>>()?;
            Ok(all.into_iter().max().unwrap_or_default())
        };
        let (files, bytes) = (most("files")?, most("bytes")?);
        ensure!(files <= 2, "{GROUPS} groups of {members} take {files} open files");
        ensure!(bytes <= MORE, "{GROUPS} groups of {members} leave {bytes} bytes");
        messages.push(format!("{members}: {} µs", most("micros")?));
    }
    Ok(Verdict::Measured(format!("each group of {}", messages.join(", "))))
}

/// Makes groups of differing members in four threads, beside collectives and messages of the parent.
fn threads(_: &str) -> rank::Outcome {
    let world = join()?;
    let (rank, ranks) = (world.rank(), world.size());
    let make = |tag: u64| -> std::result::Result<(), String> {
        let lists = [vec![0, 1], (0..ranks).collect(), (0..ranks).rev().collect(), vec![ranks - 1, 0]];
        for (turn, list) in
            lists.iter().cycle().take(100).enumerate().filter(|(_, list)| list.contains(&rank))
        {
            let part = world.create_group(list, tag << 32).map_err(|error| error.to_string())?;
            let mut messages = [tag, turn as u64];
            part.broadcast(&mut messages, 0).map_err(|error| error.to_string())?;
            if messages != [tag, turn as u64] {
                return Err(format!("group {turn} of tag {tag} is mixed up with {messages:?}"));
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let make = &make;
        let all: Vec<_> = (0..4).map(|tag| scope.spawn(move || make(tag))).collect();
        for turn in 0..200_u64 {
            let mut sum = [turn; 500];
            world.all_reduce(&mut sum, ReduceOp::Sum)?;
            ensure!(sum == [turn * ranks as u64; 500], "a wrong sum in turn {turn}");
            let mut got = [0_u64; 500];
            world.send_recv((&[turn; 500], &mut got), (rank + 1) % ranks, Source::Any)?;
            ensure!(got == [turn; 500], "a wrong message in turn {turn}");
        }
        all.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a panic".to_owned())))?;
        Ok::<_, Box<dyn std::error::Error>>(())
    })?;
    world.leave()?;
    Ok(())
}

fn at_once(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, 4, 1)?;
    world.start_all("members-threads", &[])?;
    End::all_well(&world.end_all()?)?;
    Ok(Verdict::Passed)
}

/// The last rank makes this many groups with the others, and then dies instead of making another.
fn dies(groups: &str) -> rank::Outcome {
    let world = join()?;
    let ranks: Vec<usize> = (0..world.size()).collect();
    let make = |_| world.create_group(&ranks, 4).map(drop);
    // The last rank must not die while another still joins.
    let groups: usize = groups.parse()?;
    let made = world.barrier().and_then(|()| (0..groups).try_for_each(make));
    if world.rank() == ranks.len() - 1 {
        made?;
        return signal_myself(Signal::KILL);
    }
    // The rank may die while others still wait for the last message of the barrier, or of an earlier group.
    let failed = failure(made.and_then(|()| make(0)))?;
    say("failed", now());
    say("failure", failed);
    Ok(())
}

fn member_dies(provider: &str) -> Outcome {
    let mut latest = 0;
    for groups in [0, 3] {
        let mut world = TestJob::new(provider, 4, 1)?;
        world.start_all(&format!("members-die {groups}"), &[])?;
        let ends = world.end_all()?;
        let (dead, rest): (Vec<&End>, Vec<&End>) = ends.iter().partition(|end| end.rank == 3);
        rest.iter().try_for_each(|end| end.well())?;
        let words = same(&rest, "failure")?;
        ensure!(words.contains("rank 3 died"), "{words}");
        for end in &rest {
            latest = latest.max(end.number("failed")? - dead[0].number("signalled")?);
        }
    }
    ensure!(latest < 4_000_000, "the others notice the death only after {latest} µs");
    Ok(Verdict::Measured(format!("after {:.1} ms", latest as f64 / 1e3)))
}
