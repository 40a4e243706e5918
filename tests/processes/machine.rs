//! The tests for every machine, in one job of four ranks: all collectives among two and among all of them, in plain memory and
//! in registered buffers, a progress thread on chosen processors, and a death that the others report. `make test-machines`
//! runs it on machines of every kind.

use rustix::process::Signal;
use unisono::Failure;

use crate::{
    Outcome, Table, Verdict, collectives, ensure,
    pinning::{bound, count, processors},
    rank::{self, Role, join, now, say, signal_myself, until_failure},
    world::{End, TestJob, same},
};

pub(crate) const CASES: Table = &[("a machine's short suite", case)];

pub(crate) const ROLES: &[Role] = &[("machine", play)];

const RANKS: usize = 4;

fn case(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, RANKS, 1)?;
    for rank in 0..RANKS {
        let (rank_here, ranks_here) = (rank.to_string(), RANKS.to_string());
        let more = [
            ("UNISONO_THREAD_CORES", "auto"),
            ("UNISONO_LOCAL_RANK", &*rank_here),
            ("UNISONO_LOCAL_WORLD_SIZE", &*ranks_here),
        ];
        world.start(rank, "machine", &more)?;
    }
    let ends = world.end_all()?;
    let (dead, others): (Vec<_>, Vec<_>) = ends.iter().partition(|end| end.rank == 2);
    others.iter().try_for_each(|end| end.well())?;
    let words = same(&others, "failure")?;
    ensure!(words.starts_with("rank 2 died ("), "{words}");
    let calls = same(&others, "calls")?;
    let dead = dead.first().ok_or("nobody died")?;
    let slowest = others.iter().map(|end| end.number("failed")).collect::<Result<Vec<_>, _>>()?;
    let slowest = slowest.into_iter().max().unwrap_or_default() - dead.number("signalled")?;
    Ok(Verdict::Measured(format!(
        "{calls} calls on each rank, threads on {}, all knew after {:.1} ms",
        others.iter().map(|end| placed(end)).collect::<Result<Vec<_>, _>>()?.join(" "),
        slowest as f64 / 1000.0
    )))
}

/// The processors of a rank's progress thread, which must be processors of the machine.
fn placed(end: &End) -> Result<String, Box<dyn std::error::Error>> {
    let said = end.said("thread")?;
    // Without /proc they are unknown.
    if said == "?" {
        return Ok(said.to_owned());
    }
    let given = count(said)?;
    ensure!(given >= 1 && given <= processors()?.len(), "rank {} is on {said}", end.rank);
    Ok(said.to_owned())
}

fn play(_: &str) -> rank::Outcome {
    let world = join()?;
    let rank_here = world.rank() as u64;
    let mut calls = 0;
    let provider = std::env::var("UNISONO_PROVIDER").unwrap_or_default();
    // What a machine differs in is seen by shared memory, which has all kinds of data. Over `mux` one kind of pairs is within a host, and
    // the other between hosts; over others they are alike.
    let (all, pair) = if provider == "shm" { (4, 2) } else { (2, 1) };
    let mux = (provider == rank::MUX).then_some((rank_here % 2, pair));
    for (color, kinds) in [Some((0, all)), Some((rank_here / 2, pair)), mux].into_iter().flatten() {
        let part = world.split(Some(color), 0)?.ok_or("no group")?;
        calls += collectives::short(part, kinds)?;
    }
    say("calls", calls);
    if std::path::Path::new("/proc/self/task").exists() {
        bound(&world)?;
    } else {
        say("thread", "?");
    }
    world.barrier()?;
    if rank_here == 2 {
        signal_myself(Signal::KILL)?;
    }
    match until_failure(&world, unisono::ProcessGroup::barrier)? {
        Failure::Died { .. } => Ok(()),
        other => Err(format!("{other:?} at {}", now()).into()),
    }
}
