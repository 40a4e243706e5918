//! A provider that does not return: the process ends in time nevertheless, with an error message.

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
use unisono_transport::{LibraryCall, ofi::Ofi};

use crate::{
    Outcome, Table, Verdict, ensure,
    observed::Observed,
    rank::{self, Role, config, join, say, signal_myself, until_failure},
    world::{End, TestJob},
};

/// The cases.
pub(crate) const WAITING: Table = &[
    ("a provider that does not return after a failure or a deadline ends its process", never_returns),
    ("no call of libfabric's outlasts the time to join", never_opens),
    ("a rank that was stopped is not aborted for that time", continued),
];

pub(crate) const CASES: Table = &[("survivors of kills at any moment end in time", kills)];

pub(crate) const ROLES: &[Role] = &[
    ("stuck", play_stuck),
    ("stopped-in-a-call", play_stopped),
    ("killed-any-time", play_killed),
    ("refused", play_refused),
];

/// The time within which a process whose provider does not return must end, including the join and a deadline of 1 s.
const SOON: Duration = Duration::from_secs(12);

/// True if a process was aborted by the library, with this text on its standard error.
pub(crate) fn aborted(end: &End, words: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
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
        let mut world = TestJob::new(provider, ranks, 1)?;
        world.start_all(role, more)?;
        Ok::<_, Box<dyn std::error::Error>>(world)
    };
    // The cases run at once, because each takes the whole time that a provider may take.
    let polling = start(3, "stuck polling 1 2", &[])?;
    let closing = start(3, "stuck closing 1 2", &[])?;
    // No rank is left that could notice that the timeout has passed.
    let all = start(2, "stuck polling 0,1 none", &[("UNISONO_TIMEOUT", "1s")])?;

    let ends = polling.end_all()?;
    let messages = ["rank 1 on ", "all_reduce", "fi_cq_read of libfabric", "did not return", "rank 2 died"];
    aborted(&ends[1], &messages)?;
    ends[0].well()?;
    ensure!(ends[0].said("failure")?.starts_with("rank 2 died"), "{:?}", ends[0]);
    let words = ends[1].errors.lines().next().unwrap_or_default().to_owned();
    let ends = closing.end_all()?;
    aborted(&ends[1], &["rank 1 on ", "fi_close of libfabric", "did not return", "rank 2 died"])?;
    let ends = all.end_all()?;
    let messages = ["all_reduce", "fi_cq_read of libfabric", "did not return"];
    ends.iter().try_for_each(|end| aborted(end, &messages))?;
    let first = ends.iter().any(|end| end.errors.contains("after its deadline had passed"));
    ensure!(first, "nobody tells of the deadline: {ends:?}");
    ensure!(begun.elapsed() < SOON, "it took {:?}", begun.elapsed());
    Ok(Verdict::Measured(words))
}

/// libfabric looks for providers in a directory with a pipe that has no writer, and so waits for ever.
fn never_opens(provider: &str) -> Outcome {
    if provider == "shm" {
        return Ok(Verdict::Skipped("no call of libfabric's is made".into()));
    }
    let (begun, directory) = (Instant::now(), tempfile::tempdir()?);
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let pipe = directory.path().join("never-fi.so");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0)?;
    let mut world = TestJob::new(provider, 2, 1)?;
    let joins = ("UNISONO_JOIN_TIMEOUT", "2s");
    world.start(0, "refused", &[joins])?;
    let path = directory.path().to_str().ok_or("a strange name")?;
    world.start(1, "refused", &[joins, ("FI_PROVIDER_PATH", path)])?;
    let ends = world.end_all()?;
    ends[0].well()?;
    if ends[1].status.success() && !ends[1].said("error")?.contains("missing") {
        return Ok(Verdict::Skipped("this libfabric loads no providers from a directory".into()));
    }
    aborted(&ends[1], &["rank 1 on ", "fi_getinfo of libfabric did not return", "(SIGABRT)"])?;
    ensure!(begun.elapsed() < SOON, "it took {:?}", begun.elapsed());
    Ok(Verdict::Measured(ends[0].said("error")?.to_owned()))
}

/// A rank is stopped in the middle of a call of libfabric that takes 2 s, for longer than such a call may take.
fn continued(provider: &str) -> Outcome {
    if provider == "shm" {
        return Ok(Verdict::Skipped("the transport that sticks is the same over any provider".into()));
    }
    let mut world = TestJob::new(provider, 2, 1)?;
    world.start_all("stopped-in-a-call", &[("UNISONO_TIMEOUT", "1s")])?;
    world.stopped(1)?;
    thread::sleep(Duration::from_secs(8));
    world.signal(1, Signal::CONT)?;
    let ends = world.end_all()?;
    End::all_well(&ends)?;
    Ok(Verdict::Measured(ends[1].said("failure")?.to_owned()))
}

fn play_stopped(_: &str) -> rank::Outcome {
    let (group, now) = sticky(LibraryCall::Poll)?;
    group.barrier()?;
    if group.rank() == 1 {
        thread::spawn(move || {
            now.store(true, Ordering::Relaxed);
            thread::sleep(Duration::from_secs(1));
            let stopped = signal_myself(Signal::STOP).is_ok();
            thread::sleep(Duration::from_secs(1));
            now.store(false, Ordering::Relaxed);
            stopped
        });
    }
    until_failure(&group, |group| group.all_reduce(&mut [0.5_f32; 4096], ReduceOp::Avg)).map(drop)
}

/// A group whose provider does not return from such calls while the flag is set.
fn sticky(at: LibraryCall) -> Result<(ProcessGroup, Arc<AtomicBool>), Box<dyn std::error::Error>> {
    let config = config(0)?;
    let within = Instant::now() + config.join_timeout;
    let store =
        unisono::rendezvous::Store::open(config.store.as_ref().ok_or("no store")?, &config.member(), within)?;
    let now = Arc::new(AtomicBool::new(false));
    let ofi = Ofi::open(&unisono::group::transport_options(&config))?;
    let transport = Observed::stuck(Box::new(ofi), at, Arc::clone(&now));
    Ok((ProcessGroup::with(config, Box::new(transport), Some(store))?, now))
}

/// Calls until the group has failed; the provider of some ranks hangs, and one rank is killed meanwhile.
fn play_stuck(message: &str) -> rank::Outcome {
    let [at, stuck, victim] = message.split(' ').collect::<Vec<_>>()[..] else {
        return Err("stuck how?".into());
    };
    let at = if at == "closing" { LibraryCall::Close } else { LibraryCall::Poll };
    let (group, now) = sticky(at)?;
    let rank = group.rank().to_string();
    rank::meet(&group);
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

/// A rank is killed at a random moment, repeatedly.
fn kills(provider: &str) -> Outcome {
    const TIMES: u64 = 8;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let seed = now.subsec_nanos();
    let (mut ended, mut aborted) = (0, 0);
    for time in 0..TIMES {
        // Over large and small calls alike: a few microseconds to 20 ms.
        let after = (u64::from(seed) >> 8).wrapping_mul(2 * time + 1) % 20_000;
        let begun = Instant::now();
        let mut world = TestJob::new(provider, 4, 1)?;
        world.start_all(&format!("killed-any-time {after}"), &[])?;
        let ends = world.end_all()?;
        for end in ends.iter().filter(|end| end.rank != 1) {
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
    ensure!(provider != "shm" || aborted == 0, "seed {seed}: {aborted} survivors were aborted");
    Ok(Verdict::Measured(format!("seed {seed}: {ended} survivors returned, {aborted} were aborted")))
}

fn play_refused(_: &str) -> rank::Outcome {
    say("error", join().err().ok_or("it joined")?);
    Ok(())
}

fn play_killed(after: &str) -> rank::Outcome {
    let group = join()?;
    rank::meet(&group);
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
