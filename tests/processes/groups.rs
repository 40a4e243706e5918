//! Groups that are made and dropped thousands of times leave nothing behind in their process.

use std::{thread, time::Duration};

use unisono::ReduceOp;

use crate::{
    Outcome, Table, Verdict, ensure,
    rank::{self, Role, join, say},
    suite::brief,
    world::{End, TestJob, same},
};

pub(crate) const CASES: Table = &[
    ("thousands of groups come and go", come_and_go),
    ("24 groups of 8 ranks, with all windows", many),
    ("500 groups at once", at_once),
];

/// The cases that mostly wait.
pub(crate) const WAITING: Table = &[("a group that one rank makes late", late)];

pub(crate) const ROLES: &[Role] = &[
    ("groups", play),
    ("many-groups", many_groups),
    ("groups-at-once", groups_at_once),
    ("makes-a-group-late", play_late),
];

/// The number of groups after which everything has been allocated once.
const EARLY: usize = 1000;

/// The most bytes by which a process may grow afterwards: the tables of flow numbers fill until all numbers have been used once.
const MORE: i64 = 2 << 20;

/// The most open files by which it may grow: the windows of the last groups, which are files over shared memory, may still be open.
const FILES: usize = 8;

/// Bytes of memory, threads and open files.
pub(crate) fn taken() -> Result<(i64, usize, usize), Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    let kib: i64 = resident.trim().trim_end_matches(" kB").parse()?;
    let count = |of: &str| std::fs::read_dir(of).map(Iterator::count);
    Ok((kib << 10, count("/proc/self/task")?, count("/proc/self/fd")?))
}

fn play(_: &str) -> rank::Outcome {
    let world = join()?;
    let mut early = taken()?;
    let groups = if brief() { 3 * EARLY } else { 10 * EARLY };
    for round in 0..groups {
        let part = world.split(Some(world.rank() as u64 % 2), 0)?.ok_or("no group")?;
        // One group of three was never used, and no rank waits for the last call of the others.
        if round % 3 > 0 {
            let mut data = vec![1_i32; 400];
            part.all_reduce(&mut data, ReduceOp::Sum)?;
            ensure!(data == vec![i32::try_from(part.size())?; 400], "a wrong sum in round {round}");
            drop(part.begin().all_gather_v(vec![1_u8; round % 50])?);
        }
        drop(part);
        if round == EARLY {
            world.barrier()?;
            early = taken()?;
        }
    }
    world.barrier()?;
    let late = taken()?;
    say("threads and files", early.1 == late.1 && late.2 <= early.2 + FILES);
    say("bytes", late.0 - early.0);
    world.leave()?;
    Ok(())
}

/// Uses groups for small and large operations and for messages, and again in another order.
fn many_groups(groups: &str) -> rank::Outcome {
    let (world, groups) = (join()?, groups.parse::<usize>()?);
    let all: Vec<usize> = (0..world.size()).collect();
    let made = (0..groups).map(|_| Ok(world.new_group(&all)?.ok_or("no group")?));
    let made = made.collect::<Result<Vec<_>, Box<dyn std::error::Error>>>()?;
    let (rank, ranks) = (world.rank(), world.size());
    for turn in 0..2 * groups {
        let part = &made[turn * [1, 7][turn / groups] % groups];
        for count in [1, 20_000] {
            let mut data = vec![1_u32; count];
            part.all_reduce(&mut data, ReduceOp::Sum)?;
            ensure!(data == vec![u32::try_from(ranks)?; count], "a wrong sum in turn {turn}");
        }
        let mut got = vec![0; 30_000];
        let sent = vec![u32::try_from(turn)?; 30_000];
        part.send_recv((&sent, &mut got), (rank + 1) % ranks, (rank + ranks - 1) % ranks)?;
        ensure!(got == sent, "a wrong message in turn {turn}");
    }
    say("registered", world.usage().memory);
    world.leave()?;
    Ok(())
}

/// Makes this many groups, uses them, and drops them together; and again. The least that the last four turns leave is compared with
/// the least that the first four have left: the heap is by 2 MB larger after some turns than after others, in no order, and does not grow
/// further. Allocators keep
/// what is freed, and use it again; and libfabric's tcp keeps a node of 40 bytes for each region that was registered at the same time until
/// its domain is closed (the free list of `ofi_rbmap`), each of which may hold a page that malloc_trim cannot give back.
fn groups_at_once(groups: &str) -> rank::Outcome {
    let (world, groups) = (join()?, groups.parse::<usize>()?);
    let all: Vec<usize> = (0..world.size()).collect();
    let mut left = Vec::new();
    for _ in 0..8 {
        let made = (0..groups).map(|_| Ok(world.new_group(&all)?.ok_or("no group")?));
        let made = made.collect::<Result<Vec<_>, Box<dyn std::error::Error>>>()?;
        for part in &made {
            part.all_reduce(&mut [1_u32; 10], ReduceOp::Sum)?;
        }
        drop(made);
        // Some of these calls handle the other rank's messages that it has left the groups. Go on until no call has freed memory on
        // either rank for a while.
        let (mut before, mut still, mut calls) = (world.usage().memory, 0, 0);
        while still < 20 && calls < 1000 {
            let now = world.usage().memory;
            let mut changed = [u8::from(now != before)];
            world.all_reduce(&mut changed, ReduceOp::Max)?;
            still = if changed == [0] { still + 1 } else { 0 };
            (before, calls) = (now, calls + 1);
            thread::sleep(Duration::from_millis(5));
        }
        left.push((taken()?, world.usage().memory));
    }
    let [(first, registered), .., (last, again)] = left[..] else {
        return Err("several turns are wanted".into());
    };
    say("registered", again.abs_diff(registered));
    say("threads and files", first.1 == last.1 && last.2 <= first.2 + FILES);
    let (early, late) = left.split_at(left.len() / 2);
    let least = |turns: &[((i64, usize, usize), usize)]| turns.iter().map(|(taken, _)| taken.0).min();
    say("bytes", least(late).unwrap_or_default() - least(early).unwrap_or_default());
    world.leave()?;
    Ok(())
}

fn at_once(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, 2, 1)?;
    world.start_all("groups-at-once 500", &[])?;
    let ends = world.end_all()?;
    End::all_well(&ends)?;
    for end in &ends {
        let registered = end.number("registered")?;
        ensure!(registered == 0, "rank {} has {registered} other bytes of registered memory", end.rank);
    }
    given_back(&ends, "the first four times 500")
}

/// No rank has more threads or files, or more than `MORE` bytes more, than `after` earlier groups.
fn given_back(ends: &[End], after: &str) -> Outcome {
    let ends: Vec<&End> = ends.iter().collect();
    ensure!(same(&ends, "threads and files")? == "true", "threads or open files are left");
    let mut most = 0;
    for end in ends {
        let bytes = end.number("bytes")?;
        ensure!(bytes <= MORE, "rank {} takes {bytes} bytes more than after {after}", end.rank);
        most = most.max(bytes);
    }
    Ok(Verdict::Measured(format!("at most {} KiB more than after {after}", most >> 10)))
}

fn many(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, 8, 1)?;
    world.start_all("many-groups 24", &[])?;
    let ends = world.end_all()?;
    End::all_well(&ends)?;
    let most = ends.iter().map(|end| end.number("registered")).collect::<Result<Vec<_>, _>>()?;
    let most = most.into_iter().max().unwrap_or_default();
    Ok(Verdict::Measured(format!("at most {} MiB of registered memory", most >> 20)))
}

fn come_and_go(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, 3, 1)?;
    world.start_all("groups", &[])?;
    let ends = world.end_all()?;
    End::all_well(&ends)?;
    given_back(&ends, &format!("{EARLY} groups"))
}

/// Rank 0 logs once which rank it waits for, with every call that makes a group.
fn late(provider: &str) -> Outcome {
    let start = |call: &&'static str| {
        let mut world = TestJob::new(provider, 2, 1)?;
        world.start_all(&format!("makes-a-group-late {call}"), &[])?;
        Ok::<_, Box<dyn std::error::Error>>((*call, world))
    };
    let worlds: Vec<_> =
        ["split", "new_group", "create_group"].iter().map(start).collect::<Result<_, _>>()?;
    for (call, world) in worlds {
        for end in world.end_all()? {
            end.well()?;
            let messages: Vec<_> = end.errors.lines().filter(|line| line.contains("has waited")).collect();
            if end.rank == 1 {
                ensure!(messages.is_empty(), "{call}: {messages:?}");
                continue;
            }
            ensure!(messages.len() == 1, "{call}: {:?}", end.errors);
            for part in
                ["rank 0 has waited 5s in ", call, ", waiting for rank 1; it waits ", "(UNISONO_TIMEOUT)"]
            {
                ensure!(messages[0].contains(part), "{call}: {part} is not in {messages:?}");
            }
        }
    }
    Ok(Verdict::Passed)
}

fn play_late(call: &str) -> rank::Outcome {
    let world = join()?;
    if world.rank() == 1 {
        thread::sleep(Duration::from_millis(6500));
    }
    let made = match call {
        "split" => world.split(Some(0), 0)?,
        "new_group" => world.new_group(&[0, 1])?,
        _ => Some(world.create_group(&[0, 1], 7)?),
    };
    ensure!(made.is_some_and(|group| group.size() == 2), "no group");
    Ok(world.leave()?)
}
