//! A rank forks: the child cannot use the group and does not disturb it, whether it ends before its parent or after.
#![allow(unsafe_code)]

use std::{
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Signal, WaitOptions, waitpid};
use unisono::{Error, ProcessGroup, ReduceOp, Source};

use crate::{
    Outcome, Table, Verdict, ensure,
    rank::{self, Role, failure, join, now, say, signal_myself},
    world::{End, TestJob, same},
};

pub(crate) const CASES: Table = &[
    ("a forked child calls, drops and exits", child_first),
    ("forked children work beside their parent and exit", workers),
    ("a forked child outlives its parent", parent_first),
    ("a forked child outlives its parent, which served the store", parent_first_with_the_store),
    ("a forked child outlives its parent, which met in a directory", parent_first_in_a_directory),
];

pub(crate) const ROLES: &[Role] =
    &[("forks", forks), ("forks-workers", forks_workers), ("forks-and-dies", forks_and_dies)];

/// The time that a child lives after the death of its parent.
const CHILD: Duration = Duration::from_secs(3);

/// Forks. Returns `None` in the child, and the child in the parent.
fn fork() -> Result<Option<rustix::process::Pid>, Box<dyn std::error::Error>> {
    // SAFETY: the child has only this thread, and goes on with it as its parent does. Other threads may hold locks of the
    // memory allocator at this time, which the C library keeps usable; the library under test must do the same with its locks.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error().into()),
        0 => Ok(None),
        child => Ok(rustix::process::Pid::from_raw(child)),
    }
}

/// Checks that a call says that this process was forked from its parent.
fn refused<T>(what: &str, result: unisono::Result<T>) -> rank::Outcome {
    match result {
        Err(error @ Error::Forked { .. }) => {
            let parent = rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
            ensure!(error.to_string().contains(&format!("process {parent}")), "{what}: {error}");
            Ok(())
        }
        Err(error) => Err(format!("{what}: {error}").into()),
        Ok(_) => Err(format!("{what} went on in a child").into()),
    }
}

/// The child's use of the group.
fn child(world: ProcessGroup, part: ProcessGroup, late: bool) -> rank::Outcome {
    let work = world.begin().recv(vec![0_u8; 3], (0, 7));
    refused("irecv", work)?;
    refused("all_reduce", world.all_reduce(&mut [1_u64], ReduceOp::Sum))?;
    refused("all_reduce of a part", part.all_reduce(&mut [1_u64], ReduceOp::Sum))?;
    refused("all_reduce_async", world.begin().all_reduce(vec![1_u64], ReduceOp::Sum))?;
    refused("send", world.send(&[1_u8], 0))?;
    refused("recv_vec", world.recv_vec::<u8>(Source::Any))?;
    refused("broadcast_object", world.broadcast_object(Some(1), 0))?;
    refused("split", world.split(Some(0), 0))?;
    refused("buffer", world.buffer::<u8>(1))?;
    world.abort("a child may say so, and nobody listens");
    drop(part);
    if late {
        drop(world)
    } else {
        refused("leave", world.leave())?
    }
    Ok(())
}

/// Forks children repeatedly, while operations run.
fn forks(_: &str) -> rank::Outcome {
    let world = join()?;
    let (rank, ranks) = (world.rank(), world.size());
    for round in 0..6_u8 {
        let part = world.split(Some(0), 0)?.ok_or("no part")?;
        let mut buffer = world.buffer::<u64>(1000)?;
        // An operation is under way, and a thread works on it.
        let next = (rank + 1) % ranks;
        let receive = world.begin().recv(vec![0_u8; 100_000], ((rank + ranks - 1) % ranks, 1))?;
        let children = if usize::from(round % 2) == rank % 2 {
            match fork()? {
                Some(child) => Some(child),
                None => {
                    let played = refused("a receive", receive.wait()).and_then(|()| {
                        drop(buffer);
                        child(world, part, round % 3 == 0)
                    });
                    if let Err(error) = &played {
                        eprintln!("the child: {error}");
                    }
                    // This end runs everything that runs at the end of a process.
                    std::process::exit(i32::from(played.is_err()));
                }
            }
        } else {
            None
        };
        world.begin().send(vec![round; 100_000], (next, 1))?.wait()?;
        let (got, _) = receive.wait()?;
        ensure!(got == vec![round; 100_000], "a wrong message in round {round}");
        let look = |what: &str| -> rank::Outcome {
            let mut sum = vec![1_u64; 20_000];
            world.all_reduce(&mut sum, ReduceOp::Sum)?;
            part.all_reduce(&mut sum, ReduceOp::Sum)?;
            ensure!(
                sum == vec![(ranks * ranks) as u64; 20_000],
                "a wrong sum {what} the child of round {round}"
            );
            Ok(())
        };
        look("beside")?;
        if let Some(child) = children {
            let (_, status) = waitpid(Some(child), WaitOptions::empty())?.ok_or("no child")?;
            ensure!(status.exit_status() == Some(0), "the child ends with {status:?}");
        }
        buffer.fill(2);
        world.all_reduce(&mut buffer[..], ReduceOp::Sum)?;
        ensure!(buffer.iter().all(|&it| it == 2 * ranks as u64), "a wrong sum in a buffer");
        look("after")?;
    }
    world.leave()?;
    Ok(())
}

/// Makes this function run when the process exits.
pub(crate) fn at_exit(last: extern "C" fn()) -> rank::Outcome {
    // SAFETY: the function exists as long as the process.
    let registered = unsafe { libc::atexit(last) };
    ensure!(registered == 0, "atexit fails");
    Ok(())
}

/// The ends of workers: with everything that runs at the end of a process, or at once.
const EXITS: [fn() -> !; 2] = [
    || std::process::exit(0),
    // SAFETY: it takes a number, and does not return.
    || unsafe { libc::_exit(0) },
];

/// Forks workers that do not use the groups, as a data loader does: they compute, allocate, start threads and end, without a
/// call and a drop. Collectives and messages run before, beside and after, and while the workers end.
fn forks_workers(_: &str) -> rank::Outcome {
    let world = join()?;
    let (rank, ranks) = (world.rank(), world.size());
    let part = world.create_group(&(0..ranks).collect::<Vec<_>>(), 1)?;
    let mut buffer = world.buffer::<u64>(20_000)?;
    for _ in 0..3 {
        let mut workers = Vec::new();
        for exit in EXITS {
            match fork()? {
                Some(child) => workers.push(child),
                None => {
                    let sum = thread::spawn(|| (0..1_000_000_u64).collect::<Vec<_>>().iter().sum::<u64>());
                    ensure!(sum.join().is_ok_and(|sum| sum == 499_999_500_000), "a wrong sum in a worker");
                    thread::sleep(Duration::from_millis(50));
                    exit();
                }
            }
        }
        // Until the last worker of any rank has ended, and a few times more.
        let (mut turn, mut more) = (0_u64, 5);
        while more > 0 {
            turn += 1;
            for group in [&world, &part] {
                buffer.fill(turn);
                group.all_reduce(&mut buffer[..], ReduceOp::Sum)?;
                ensure!(buffer.iter().all(|it| *it == turn * ranks as u64), "a wrong sum in turn {turn}");
            }
            let (right, left) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
            let mut got = vec![0; 30_000];
            world.send_recv((&vec![turn; 30_000], &mut got), right, left)?;
            ensure!(got == vec![turn; 30_000], "a wrong message in turn {turn}");
            if let Some(worker) = workers.last()
                && let Some((_, status)) = waitpid(Some(*worker), WaitOptions::NOHANG)?
            {
                ensure!(status.exit_status() == Some(0), "a worker ends with {status:?}");
                workers.pop();
            }
            let mut open = [workers.len()].map(|open| open as u64);
            world.all_reduce(&mut open, ReduceOp::Max)?;
            more -= usize::from(open == [0]);
        }
    }
    world.leave()?;
    Ok(())
}

/// The given rank forks a child that stays, and dies; the others print when they get the failure.
fn forks_and_dies(who: &str) -> rank::Outcome {
    let world = join()?;
    world.barrier()?;
    if world.rank() == who.parse::<usize>()? {
        if fork()?.is_none() {
            thread::sleep(CHILD);
            std::process::exit(0);
        }
        thread::sleep(Duration::from_millis(100));
        return signal_myself(Signal::KILL);
    }
    let begun = Instant::now();
    let failed = failure(world.recv_vec::<u8>(who.parse::<usize>()?).map(drop))?;
    say("failed", now());
    say("failure", failed);
    ensure!(begun.elapsed() < Duration::from_secs(30), "only after {:?}", begun.elapsed());
    Ok(())
}

fn child_first(provider: &str) -> Outcome {
    for ranks in [1, 2, 4] {
        let mut world = TestJob::served_by_rank_0(provider, ranks)?;
        world.start_all("forks", &[])?;
        End::all_well(&world.end_all()?)?;
    }
    Ok(Verdict::Passed)
}

fn workers(provider: &str) -> Outcome {
    for ranks in [1, 2] {
        let mut world = TestJob::served_by_rank_0(provider, ranks)?;
        world.start_all("forks-workers", &[])?;
        End::all_well(&world.end_all()?)?;
    }
    Ok(Verdict::Passed)
}

fn dies(mut world: TestJob, who: usize) -> Outcome {
    world.start_all(&format!("forks-and-dies {who}"), &[])?;
    let ends = world.end_all()?;
    let (dead, rest): (Vec<&End>, Vec<&End>) = ends.iter().partition(|end| end.rank == who);
    rest.iter().try_for_each(|end| end.well())?;
    let words = same(&rest, "failure")?;
    ensure!(words.contains(&format!("rank {who} died")), "{words}");
    let mut latest = 0;
    for end in &rest {
        latest = latest.max(end.number("failed")? - dead[0].number("signalled")?);
    }
    ensure!(latest < 2_000_000, "the others notice the death only after {latest} µs");
    Ok(Verdict::Measured(format!("after {:.1} ms", latest as f64 / 1e3)))
}

fn parent_first(provider: &str) -> Outcome {
    dies(TestJob::new(provider, 3, 1)?, 1)
}

fn parent_first_with_the_store(provider: &str) -> Outcome {
    dies(TestJob::served_by_rank_0(provider, 3)?, 0)
}

fn parent_first_in_a_directory(provider: &str) -> Outcome {
    let directory = tempfile::tempdir()?;
    dies(TestJob::in_directory(provider, 3, directory.path()), 1)
}
