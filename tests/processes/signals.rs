//! Ranks that a signal ends: they report it first, and then end by the signal. Programs that handle the signal themselves decide.

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Resource, Rlimit, Signal};
use signal_hook::consts::SIGTERM;
use unisono::ReduceOp;

use crate::{
    Outcome, Table, Verdict, ensure,
    failures::SOON,
    rank::{self, Role, join, signal_myself, until_failure},
    world::{self, TestJob, same},
};

const RANKS: usize = 3;

/// The cases.
pub(crate) const CASES: Table = &[
    ("a rank is ended by SIGTERM", |provider| one(provider, "SIGTERM")),
    ("a rank is ended by SIGINT", |provider| one(provider, "SIGINT")),
    ("a rank is ended by SIGHUP", |provider| one(provider, "SIGHUP")),
    ("all ranks are ended by SIGTERM", all),
    ("a rank crashes by itself, where libinfinipath would write a file", crashed),
    ("a program handles SIGTERM itself", |provider| handled(provider, "before")),
    ("a program handles SIGTERM itself, since it has joined", |provider| handled(provider, "after")),
];

pub(crate) const ROLES: &[Role] = &[
    ("signalled", play),
    ("waits-for-signal", play_waits),
    ("handles", play_handles),
    ("crashes", play_crashes),
];

fn signal(name: &str) -> Signal {
    match name {
        "SIGINT" => Signal::INT,
        "SIGHUP" => Signal::HUP,
        _ => Signal::TERM,
    }
}

/// True if this process ignores a signal, as under nohup or in the background of a shell: its children then ignore it too.
fn is_ignored(signal: Signal) -> world::Result<bool> {
    let status = fs::read_to_string("/proc/self/status")?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).ok_or("no SigIgn")?;
    Ok(u64::from_str_radix(ignored.trim(), 16)? >> (signal.as_raw() - 1) & 1 == 1)
}

fn one(provider: &str, name: &str) -> Outcome {
    if is_ignored(signal(name))? {
        return Ok(Verdict::Skipped(format!(
            "{name} is ignored here, and so it is by what is started from here"
        )));
    }
    let mut all = Vec::new();
    for store in [TestJob::new, |provider: &str, ranks, _| TestJob::in_a_directory(provider, ranks)] {
        let mut world = store(provider, RANKS, 1)?;
        world.start_all(&format!("signalled {name}"), &[])?;
        let ends = world.end_all()?;
        let (victims, others): (Vec<_>, Vec<_>) = ends.iter().partition(|end| end.rank == 1);
        others.iter().try_for_each(|end| end.well())?;
        let words = same(&others, "failure")?;
        ensure!(words == format!("rank 1 was ended by {name}"), "{words}");
        let status = victims.first().ok_or("it did not end")?.status;
        ensure!(status.signal() == Some(signal(name).as_raw()), "it ended with {status}");
        let since = victims[0].number("signalled")?;
        for end in others {
            let took = end.number("failed")? - since;
            ensure!(took < SOON, "rank {} needed {took} µs", end.rank);
            all.push(took);
        }
    }
    Ok(Verdict::Measured(format!("all knew after {} µs at most", all.into_iter().max().unwrap_or_default())))
}

fn play(name: &str) -> rank::Outcome {
    let group = join()?;
    let mut data = vec![0.5_f32; 1 << 16];
    if group.rank() == 1 {
        // The others may learn of the signal during the last of these calls.
        for _ in 0..3 {
            group.all_reduce(&mut data, ReduceOp::Avg)?;
        }
        signal_myself(signal(name))?;
        thread::sleep(Duration::from_secs(30));
        return Err("the signal did not end it".into());
    }
    until_failure(&group, |group| group.all_reduce(&mut data, ReduceOp::Avg)).map(drop)
}

/// The first rank that reports determines the failure of all; a rank that gets it before its own signal arrives returns it.
fn all(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, RANKS, 1)?;
    let here = tempfile::tempdir()?;
    world.start_all(&format!("waits-for-signal {}", here.path().display()), &[])?;
    let begun = Instant::now();
    while fs::read_dir(here.path())?.count() < RANKS {
        ensure!(begun.elapsed() < Duration::from_secs(60), "they do not join");
        thread::sleep(Duration::from_millis(2));
    }
    (0..RANKS).try_for_each(|rank| world.signal(rank, Signal::TERM))?;
    let ends = world.end_all()?;
    let messages: Vec<_> = ends.iter().filter(|end| end.said("failure").is_ok()).collect();
    if !messages.is_empty() {
        let words = same(&messages, "failure")?;
        ensure!(words.starts_with("rank ") && words.ends_with(" was ended by SIGTERM"), "{words}");
    }
    let signalled = ends.iter().filter(|end| end.status.signal() == Some(SIGTERM)).count();
    ensure!(
        signalled > 0 && ends.iter().all(|end| end.status.signal() == Some(SIGTERM) || end.well().is_ok()),
        "{ends:?}"
    );
    Ok(Verdict::Measured(format!("{signalled} by the signal, {} got the failure first", messages.len())))
}

/// Sleeps in a receive instead of polling.
fn play_waits(here: &str) -> rank::Outcome {
    let group = join()?;
    group.barrier()?;
    fs::write(Path::new(here).join(group.rank().to_string()), b"")?;
    let from = (group.rank() + 1) % RANKS;
    until_failure(&group, |group| group.recv(&mut [0_u8], from).map(drop)).map(drop)
}

/// A library that Debian's libfabric loads would write a file into the working directory, and exit with status 1.
fn crashed(provider: &str) -> Outcome {
    let here = tempfile::tempdir()?;
    for (name, signal) in [("SEGV", Signal::SEGV), ("ABRT", Signal::ABORT), ("TERM", Signal::TERM)] {
        let mut world = TestJob::new(provider, 1, 1)?;
        let mut command = Command::new(std::env::current_exe()?);
        // The rank runs as if `unisono run` had not started it.
        command.current_dir(here.path());
        world.start_by(command, 0, &format!("crashes {name}"), &[])?;
        let ends = world.end_all()?;
        let status = ends.first().ok_or("it did not end")?.status;
        ensure!(status.signal() == Some(signal.as_raw()), "after SIG{name} it ended with {status}");
        let left: Vec<_> = fs::read_dir(here.path())?.flatten().map(|file| file.file_name()).collect();
        ensure!(left.is_empty(), "after SIG{name} it left {left:?}");
    }
    Ok(Verdict::Passed)
}

/// Ends by a signal, before or after the end of its group: no handler of that library may run.
fn play_crashes(name: &str) -> rank::Outcome {
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    let group = join()?;
    match name {
        "SEGV" => {
            // At the first signal, which is not the overflow of a stack, the handler of Rust's library only removes itself.
            signal_myself(Signal::SEGV)?;
            signal_myself(Signal::SEGV)?;
        }
        "TERM" => {
            group.leave()?;
            signal_myself(Signal::TERM)?;
        }
        _ => signal_myself(Signal::ABORT)?,
    }
    thread::sleep(Duration::from_secs(30));
    Err("the signal did not end it".into())
}

fn handled(provider: &str, when: &str) -> Outcome {
    let mut world = TestJob::new(provider, 2, 1)?;
    world.start_all(&format!("handles {when}"), &[])?;
    let ends = world.end_all()?;
    ends.iter().try_for_each(world::End::well)?;
    Ok(Verdict::Passed)
}

/// Handles the signal itself, and goes on.
fn play_handles(when: &str) -> rank::Outcome {
    let asked = Arc::new(AtomicBool::new(false));
    let handle = || signal_hook::flag::register(SIGTERM, Arc::clone(&asked));
    if when == "before" {
        handle()?;
    }
    let group = join()?;
    if when == "after" {
        handle()?;
    }
    group.barrier()?;
    signal_myself(Signal::TERM)?;
    let begun = Instant::now();
    while !asked.load(Ordering::Relaxed) {
        ensure!(begun.elapsed() < Duration::from_secs(10), "the program's handler was not called");
    }
    thread::sleep(Duration::from_millis(100));
    group.barrier()?;
    Ok(group.leave()?)
}
