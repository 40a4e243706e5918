//! A provider that does not return: the process ends all the same, with words, and in time.

use std::{
    os::unix::process::ExitStatusExt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use rustix::process::Signal;
use unisono::{Failure, ProcessGroup, ReduceOp};
use unisono_transport::{LibraryCall, fault::Stuck, ofi::Ofi};

use crate::{
    Outcome, Table, Verdict, ensure,
    rank::{self, Role, config, join, signal_myself, until_failure},
    world::{End, World},
};

/// What is tried.
pub(crate) const CASES: Table = &[
    ("a provider that does not return after a failure or a deadline ends its process", never_returns),
    ("survivors of kills at any moment end in time", kills),
];

pub(crate) const ROLES: &[Role] = &[("stuck", play_stuck), ("killed-any-time", play_killed)];

/// After so long, joining and a deadline of a second included, a process whose provider does not return has ended.
const SOON: Duration = Duration::from_secs(12);

/// Whether a process was aborted by the library, with these words on its standard error.
fn aborted(end: &End, words: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    let how = end.status.signal();
    ensure!(
        how == Some(Signal::ABORT.as_raw()),
        "rank {} ended with {}: {}",
        end.rank,
        end.status,
        end.errors
    );
    let line = end.errors.lines().find(|line| line.starts_with("unisono: ")).unwrap_or_default();
    for part in words {
        ensure!(line.contains(part), "rank {}: {part:?} is not in {:?}", end.rank, end.errors);
    }
    Ok(())
}

fn never_returns(provider: &str) -> Outcome {
    if provider == "shm" {
        return Ok(Verdict::Skipped("the transport that sticks is the same over any provider".into()));
    }
    let begun = Instant::now();
    let start = |ranks, role: &str, more: &[(&str, &str)]| {
        let mut world = World::new(provider, ranks, 1)?;
        world.start_all(role, more)?;
        Ok::<_, Box<dyn std::error::Error>>(world)
    };
    // All at once, since each takes as long as a provider is given.
    let polling = start(3, "stuck polling 1 2", &[])?;
    let closing = start(3, "stuck closing 1 2", &[])?;
    // Nobody is left who could notice that the time is over.
    let all = start(2, "stuck polling 0,1 none", &[("UNISONO_TIMEOUT", "1s")])?;

    let ends = polling.end_all()?;
    let told = ["rank 1 on ", "all_reduce", "fi_cq_read of libfabric", "did not return", "rank 2 died"];
    aborted(&ends[1], &told)?;
    ends[0].well()?;
    ensure!(ends[0].said("failure")?.starts_with("rank 2 died"), "{:?}", ends[0]);
    let words = ends[1].errors.lines().next().unwrap_or_default().to_owned();
    let ends = closing.end_all()?;
    aborted(&ends[1], &["rank 1 on ", "fi_close of libfabric", "did not return", "rank 2 died"])?;
    let ends = all.end_all()?;
    let told = ["all_reduce", "fi_cq_read of libfabric", "did not return"];
    ends.iter().try_for_each(|end| aborted(end, &told))?;
    let first = ends.iter().any(|end| end.errors.contains("after its deadline had passed"));
    ensure!(first, "nobody tells of the deadline: {ends:?}");
    ensure!(begun.elapsed() < SOON, "it took {:?}", begun.elapsed());
    Ok(Verdict::Measured(words))
}

/// Calls until all is over; some ranks' provider sticks, and one rank is killed while they do.
fn play_stuck(told: &str) -> rank::Outcome {
    let [at, stuck, victim] = told.split(' ').collect::<Vec<_>>()[..] else {
        return Err("stuck how?".into());
    };
    let at = if at == "closing" { LibraryCall::Close } else { LibraryCall::Poll };
    let config = config(0)?;
    let within = Instant::now() + config.join_timeout;
    let store =
        unisono::rendezvous::open(config.store.as_ref().ok_or("no store")?, &config.member(), within)?;
    let rank = config.rank.to_string();
    let now = Arc::new(AtomicBool::new(false));
    let ofi = Ofi::open(&ProcessGroup::transport_options(&config))?;
    let transport = Stuck::new(Box::new(ofi), at, Arc::clone(&now));
    let group = ProcessGroup::with(config, Box::new(transport), Some(store))?;
    group.barrier()?;
    let sticks = stuck.split(',').any(|one| one == rank);
    let dies = victim == rank;
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        now.store(sticks, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(200));
        dies.then(|| signal_myself(Signal::KILL).is_ok())
    });
    until_failure(&group, |group| group.all_reduce(&mut [0.5_f32; 4096], ReduceOp::Avg)).map(drop)
}

/// A rank is killed at a moment that nobody has chosen, again and again.
fn kills(provider: &str) -> Outcome {
    const TIMES: u64 = 8;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let seed = now.subsec_nanos();
    let (mut ended, mut aborted) = (0, 0);
    for time in 0..TIMES {
        // Over large and small calls alike: a few microseconds to 20 ms.
        let after = (u64::from(seed) >> 8).wrapping_mul(2 * time + 1) % 20_000;
        let begun = Instant::now();
        let mut world = World::new(provider, 4, 1)?;
        world.start_all(&format!("killed-any-time {after}"), &[])?;
        for end in world.end_all()?.iter().filter(|end| end.rank != 1) {
            match end.status.signal() {
                None => {
                    end.well().map_err(|error| format!("seed {seed}, after {after} µs: {error}"))?;
                    ended += 1;
                }
                Some(_) => {
                    self::aborted(end, &["did not return", "rank 1 died"])
                        .map_err(|error| format!("seed {seed}, after {after} µs: {error}"))?;
                    aborted += 1;
                }
            }
        }
        ensure!(begun.elapsed() < 2 * SOON, "seed {seed}, after {after} µs: it took {:?}", begun.elapsed());
    }
    Ok(Verdict::Measured(format!("seed {seed}: {ended} survivors returned, {aborted} were aborted")))
}

fn play_killed(after: &str) -> rank::Outcome {
    let group = join()?;
    group.barrier()?;
    if group.rank() == 1 {
        let after = Duration::from_micros(after.parse()?);
        thread::spawn(move || {
            thread::sleep(after);
            signal_myself(Signal::KILL).is_ok()
        });
    }
    let (mut small, mut large) = ([0.5_f32; 2], vec![0.5_f32; 1 << 18]);
    let both = |group: &ProcessGroup| {
        group.all_reduce(&mut small, ReduceOp::Avg)?;
        group.all_reduce(&mut large, ReduceOp::Avg)
    };
    match until_failure(&group, both)? {
        Failure::Died { rank: 1, .. } => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}
