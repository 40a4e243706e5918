//! Aborts with another's text, of any length and from any moment, and worlds that a process joins one after the other.

use std::{sync::OnceLock, thread, time::Duration};

use unisono::{Error, Failure, ProcessGroup, ReduceOp};

use crate::{
    Outcome, Table, Verdict, ensure, forking,
    groups::taken,
    rank::{self, Role, config, failure, join, say},
    world::{End, TestJob, same},
};

pub(crate) const CASES: Table = &[
    ("a rank aborts with the text of another program", with_a_text),
    ("a rank aborts at its exit, while its threads are in calls", at_exit),
    ("seven worlds in a row", in_a_row),
];

pub(crate) const ROLES: &[Role] =
    &[("aborts-with-a-text", aborts), ("aborts-at-exit", aborts_at_exit), ("again", again)];

/// The most bytes of an error's text: 4000 characters of up to four bytes, and the words around them.
const LONGEST: usize = 17_000;

/// The text of an uncaught exception: several lines, other scripts, escape sequences for terminals, and far too long.
fn text() -> String {
    let mut text =
        "ValueError: größer als 3 \u{1b}[2J😀\n  File \"train.py\", line 7\r\n\tloss\u{202e}()\n".to_owned();
    while text.len() < 100_000 {
        text.push_str("more é\0 ");
    }
    text
}

/// Rank 1 aborts with such a text; all ranks are in calls, in several threads.
fn aborts(_: &str) -> rank::Outcome {
    let world = join()?;
    rank::meet(&world);
    let messages = thread::scope(|scope| {
        let receives = scope.spawn(|| {
            failure(world.recv(&mut [0_u8], (world.rank(), 7)).map(drop)).map_err(|it| it.to_string())
        });
        let reduces = (world.rank() != 1).then(|| {
            scope.spawn(|| failure(world.all_reduce(&mut [1_u8], ReduceOp::Sum)).map_err(|it| it.to_string()))
        });
        let mut messages = Vec::new();
        if world.rank() == 1 {
            thread::sleep(Duration::from_millis(200));
            match world.abort(&text()) {
                Error::Failed(failure) => messages.push(failure),
                other => return Err(format!("not a failure: {other}")),
            }
        }
        let threads = [Some(receives), reduces].into_iter().flatten();
        threads
            .map(|it| it.join().unwrap_or_else(|_| Err("a panic".into())))
            .try_for_each(|it| it.map(|it| messages.push(it)))?;
        Ok(messages)
    })?;
    ensure!(messages.iter().all(|it| *it == messages[0]), "a thread gets another error");
    ensure!(matches!(&messages[0], Failure::Aborted { rank: 1, .. }), "{}", messages[0]);
    say("failure", &messages[0]);
    // Neither of these panics or waits.
    drop(world);
    Ok(())
}

fn with_a_text(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, 3, 1)?;
    world.start_all("aborts-with-a-text", &[])?;
    let ends = world.end_all()?;
    End::all_well(&ends)?;
    let ends: Vec<&End> = ends.iter().collect();
    let words = same(&ends, "failure")?;
    let begin = "rank 1 aborted the group: ValueError: größer als 3 ?[2J😀   File \"train.py\", line 7   loss?() more é? more";
    ensure!(words.starts_with(begin), "{}", words.chars().take(200).collect::<String>());
    ensure!(words.ends_with("...") && words.len() < LONGEST, "{} bytes", words.len());
    ensure!(!words.contains(char::is_control), "control characters");
    Ok(Verdict::Passed)
}

/// The world that a function at the exit of the process aborts.
static WORLD: OnceLock<ProcessGroup> = OnceLock::new();

extern "C" fn last_words() {
    if let Some(world) = WORLD.get() {
        let message = world.abort("KeyError: 'lr'");
        say("failure", message);
    }
}

/// Rank 0 exits while its threads wait in a collective and for a message; the others are in calls.
fn aborts_at_exit(_: &str) -> rank::Outcome {
    let world = WORLD.get_or_init(|| join().expect("the world forms"));
    rank::meet(world);
    if world.rank() != 0 {
        say("failure", failure(world.recv(&mut [0_u8], (0, 8)).map(drop))?);
        return Ok(());
    }
    forking::at_exit(last_words)?;
    thread::spawn(|| world.recv(&mut [0_u8], (1, 7)));
    thread::spawn(|| world.all_reduce(&mut [1_u8], ReduceOp::Sum));
    thread::sleep(Duration::from_millis(200));
    std::process::exit(0);
}

fn at_exit(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, 2, 1)?;
    world.start_all("aborts-at-exit", &[])?;
    let ends = world.end_all()?;
    End::all_well(&ends)?;
    let words = same(&ends.iter().collect::<Vec<_>>(), "failure")?;
    ensure!(words == "rank 0 aborted the group: KeyError: 'lr'", "{words}");
    Ok(Verdict::Passed)
}

/// The number of mappings of the process: each region of registered memory is one.
fn mappings() -> std::io::Result<usize> {
    Ok(std::fs::read_to_string("/proc/self/maps")?.lines().count())
}

/// Joins the worlds one after the other, uses each, and ends it in another way.
fn again(_: &str) -> rank::Outcome {
    let mut left = Vec::new();
    for round in 0..WORLDS {
        let world = rank::join_with(config(round)?)?;
        let (rank, ranks) = (world.rank(), world.size());
        let mut buffer = world.buffer::<u32>(50_000)?;
        let part = world.create_group(&(0..ranks).collect::<Vec<_>>(), 1)?;
        for group in [&world, &part] {
            buffer.fill(1);
            group.all_reduce(&mut buffer[..], ReduceOp::Sum)?;
            ensure!(buffer.iter().all(|it| *it as usize == ranks), "a wrong sum in world {round}");
            let work = group.begin().all_reduce(vec![1_u64; 3], ReduceOp::Sum)?;
            ensure!(work.wait()? == vec![ranks as u64; 3], "a wrong sum in world {round}");
        }
        // No rank ends the group while another is still in a call that must succeed; this one may fail.
        drop(world.barrier());
        match round % 5 {
            1 if rank == 1 => drop(world.abort("as this test wants")),
            1 => drop(failure(world.barrier())?),
            // A mismatch.
            3 => drop(failure(
                part.all_reduce(&mut vec![0_u8; 5 + rank], ReduceOp::Sum).and_then(|()| part.barrier()),
            )?),
            4 => {
                drop(part);
                world.leave()?;
                continue;
            }
            _ => drop(world),
        }
        drop((part, buffer));
        let (_, threads, files) = taken()?;
        left.push((threads, files, mappings()?));
    }
    // The first and the second world leave things that a process has once, for instance the signals' thread.
    let (early, late) = (left[1], left[left.len() - 1]);
    ensure!((early.0, early.1) == (late.0, late.1), "threads, open files and mappings grow: {left:?}");
    ensure!(late.2 <= early.2 + 4, "threads, open files and mappings grow: {left:?}");
    Ok(())
}

/// The number of worlds.
const WORLDS: usize = 7;

fn in_a_row(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, 3, WORLDS)?;
    world.start_all("again", &[])?;
    // If a rank fails, the others wait for it in the next world.
    let ends = world.end_all()?;
    let failed = ends.iter().filter_map(|end| end.well().err()).map(|error| error.to_string());
    let failed: Vec<_> = failed.collect();
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(Verdict::Passed)
}
