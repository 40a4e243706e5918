//! The choice of the transport: shared memory if all ranks can share it, otherwise libfabric; and the errors if a requested one is impossible.

use std::{
    os::fd::AsRawFd as _,
    process::Command,
    time::{Duration, Instant},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use unisono::{Config, ProcessGroup, ReduceOp};

use crate::{
    Outcome, Table, Verdict, ensure,
    rank::{self, Role, join, now, say},
    world::{End, Result, TestJob},
};

/// The cases.
pub(crate) const CASES: Table = &[
    ("by default ranks of one host share memory, and are there at once", default),
    ("the error of ranks that ask for different providers names them", differ),
    (
        "ranks share memory with one in a container, where nothing can be written to /tmp and /dev/shm",
        containers,
    ),
    ("a rank that may open no more files goes on", no_more_files),
    ("ranks of two users meet by libfabric, and are refused shm at once", users),
];

pub(crate) const ROLES: &[Role] = &[
    ("reaches", play),
    ("refused", play_refused),
    ("refused-by-default", play_default),
    ("limits", play_limited),
];

/// No user has this number on most systems, and everybody may become it.
const NOBODY: &str = "65534";

/// Joins, over the default provider if the argument says so, and reduces.
fn play(provider: &str) -> rank::Outcome {
    let mut config = rank::config(0)?;
    if provider == "default" {
        config.provider = None;
    }
    let begun = now();
    let group = ProcessGroup::join(config)?;
    say("took", now() - begun);
    let mut data = vec![1_u32; 100_000];
    group.all_reduce(&mut data, ReduceOp::Sum)?;
    ensure!(data.iter().all(|&sum| sum as usize == group.size()), "wrong sums");
    say("provider", &group.limits().provider);
    Ok(group.leave()?)
}

/// Joins, opens connections, and reduces data that needs new windows; rank 1 does so when it has no free descriptor.
fn play_limited(_: &str) -> rank::Outcome {
    let group = join()?;
    let mut data = vec![1_u32; 1];
    group.all_reduce(&mut data, ReduceOp::Sum)?;
    let before = getrlimit(Resource::Nofile);
    if group.rank() == 1 {
        let next = std::fs::File::open("/proc/self/exe")?.as_raw_fd();
        setrlimit(Resource::Nofile, Rlimit { current: Some(next.try_into()?), ..before })?;
        ensure!(std::fs::File::open("/proc/self/exe").is_err(), "files can still be opened");
    }
    let mut data = vec![1_u32; 1_000_000];
    for round in 0..4 {
        group.all_reduce(&mut data, ReduceOp::Sum)?;
        ensure!(data.iter().all(|&sum| sum == 2 << round), "wrong sums");
    }
    setrlimit(Resource::Nofile, before)?;
    Ok(group.leave()?)
}

fn play_refused(_: &str) -> rank::Outcome {
    say("error", join().err().ok_or("it joined")?);
    Ok(())
}

fn play_default(_: &str) -> rank::Outcome {
    let config = Config { provider: None, ..rank::config(0)? };
    say("error", ProcessGroup::join(config).err().ok_or("it joined")?);
    Ok(())
}

/// The provider that all ranks printed.
fn provider(ends: &[End]) -> Result<&str> {
    End::all_well(ends)?;
    crate::world::same(&ends.iter().collect::<Vec<_>>(), "provider")
}

/// Skips a case that does not depend on the suite's provider, except over one provider.
fn once(provider: &str) -> Option<Verdict> {
    (provider != "shm").then(|| Verdict::Skipped("it is the same whichever provider the others use".into()))
}

fn default(name: &str) -> Outcome {
    if let Some(skipped) = once(name) {
        return Ok(skipped);
    }
    let mut world = TestJob::new(name, 4, 1)?;
    world.start_all("reaches default", &[])?;
    let ends = world.end_all()?;
    ensure!(provider(&ends)? == "shm", "they use {}", provider(&ends)?);
    // The rank that comes last does not wait.
    let took = ends.iter().map(|end| end.number("took")).collect::<Result<Vec<_>>>()?;
    Ok(Verdict::Measured(format!("joined in {} µs", took.iter().min().ok_or("no ranks")?)))
}

fn no_more_files(name: &str) -> Outcome {
    if let Some(skipped) = once(name) {
        return Ok(skipped);
    }
    let mut world = TestJob::new(name, 2, 1)?;
    world.start_all("limits", &[])?;
    End::all_well(&world.end_all()?)?;
    Ok(Verdict::Passed)
}

fn differ(name: &str) -> Outcome {
    if let Some(skipped) = once(name) {
        return Ok(skipped);
    }
    let mut world = TestJob::new(name, 3, 1)?;
    world.start(0, "refused", &[])?;
    world.start(1, "refused", &[("UNISONO_PROVIDER", "tcp")])?;
    world.start(2, "refused-by-default", &[])?;
    let ends = world.end_all()?;
    for end in &ends {
        end.well()?;
        let error = end.said("error")?;
        for part in ["the provider (UNISONO_PROVIDER)", "shm on rank 0", "tcp on rank 1", "auto on rank 2"] {
            ensure!(error.contains(part), "rank {}: {error}", end.rank);
        }
    }
    Ok(Verdict::Measured(ends[0].said("error")?.to_owned()))
}

/// Runs two ranks in this role, rank 1 by a command (a program and its arguments) that starts this program elsewhere; or returns
/// the reason why it
/// cannot be.
fn elsewhere(name: &str, role: &str, command: &[&str]) -> Result<std::result::Result<Vec<End>, String>> {
    if !rustix::process::getuid().is_root() {
        return Ok(Err("it needs root".into()));
    }
    let exe = std::env::current_exe()?;
    let start = |more: &str| {
        let mut start = Command::new(command[0]);
        start.args(&command[1..]).arg(more);
        start
    };
    match start("true").output() {
        Ok(tried) if tried.status.success() => {}
        Ok(tried) => return Ok(Err(String::from_utf8_lossy(&tried.stderr).into_owned())),
        Err(error) => return Ok(Err(format!("{}: {error}", command[0]))),
    }
    let exe = exe.to_str().ok_or("a strange name")?;
    let mut world = TestJob::new(name, 2, 1)?;
    world.start(0, role, &[])?;
    world.start_by(start(exe), 1, role, &[])?;
    Ok(Ok(world.end_all()?))
}

fn containers(name: &str) -> Outcome {
    if let Some(skipped) = once(name) {
        return Ok(skipped);
    }
    let read_only = "mount -t tmpfs -o ro none /dev/shm && mount --bind /tmp /tmp && mount -o remount,ro,bind /tmp && exec \"$0\"";
    let container = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", read_only];
    match elsewhere(name, "reaches asked", &container)? {
        Ok(ends) => provider(&ends).map(|provider| Verdict::Measured(provider.to_owned())),
        Err(why) => Ok(Verdict::Skipped(why)),
    }
}

fn users(name: &str) -> Outcome {
    if let Some(skipped) = once(name) {
        return Ok(skipped);
    }
    let nobody = ["setpriv", "--reuid", NOBODY, "--clear-groups"];
    let ends = match elsewhere(name, "reaches default", &nobody)? {
        Ok(ends) => ends,
        Err(why) => return Ok(Verdict::Skipped(why)),
    };
    if ends[1].errors.contains("setpriv: ") {
        return Ok(Verdict::Skipped(format!("that user cannot start this program: {}", ends[1].errors)));
    }
    ensure!(provider(&ends)? != "shm", "they share memory");
    let begun = Instant::now();
    let refused =
        elsewhere(name, "refused", &nobody)?.map_err(|why| format!("it was possible before: {why}"))?;
    for end in &refused {
        end.well()?;
        let error = end.said("error")?;
        ensure!(error.contains("must run as one user") && error.contains("rank 1 on"), "{error}");
    }
    ensure!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
    Ok(Verdict::Measured(refused[0].said("error")?.to_owned()))
}
