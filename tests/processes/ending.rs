//! Ranks that end while they join, in various ways and at various moments: the others report at once which rank and why, in the
//! same words. The seed is printed; `UNISONO_TEST_SEED` repeats it, and `UNISONO_TEST_CASES` sets the number of cases.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::process::Signal;
use unisono::{Error, ProcessGroup};

use crate::{
    Outcome, Table, Verdict, ensure,
    failures::SOON,
    random::Random,
    rank::{self, Role, failure, now, say, signal_myself},
    suite::brief,
    world::{End, TestJob, same},
};

/// The cases.
pub(crate) const CASES: Table = &[("ranks end while they join", campaign)];

pub(crate) const ROLES: &[Role] = &[("ends-joining", play_victim), ("sees-an-end", play_witness)];

/// The ends of a rank, and the reports of the others.
const ENDS: &[(&str, &str)] = &[
    ("kill", "died ("),
    ("exit", "died ("),
    ("abort", "died ("),
    ("tuning", ": tuning file /nowhere/at/all: "),
    ("lanes", ": lanes=65: must be from 1 to 32"),
    ("environment", ": UNISONO_LANES=several: "),
    ("algorithm", ": UNISONO_ALGORITHM=magic: "),
    ("provider", "carrier-pigeon"),
    ("chunk", "chunk (UNISONO_CHUNK): must be alike on all ranks, and is "),
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn campaign(provider: &str) -> Outcome {
    let seed = number("UNISONO_TEST_SEED").unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| u64::from(time.subsec_nanos()))
    });
    let (mut random, mut slowest) = (Random(seed), 0);
    let cases = number("UNISONO_TEST_CASES").unwrap_or_else(|| if brief() { 9 } else { 24 });
    for case in 0..cases {
        let message = one(provider, usize::try_from(case)?, &mut random);
        slowest =
            slowest.max(message.map_err(|error| format!("UNISONO_TEST_SEED={seed}, case {case}: {error}"))?);
    }
    let slowest = slowest as f64 / 1000.0;
    Ok(Verdict::Measured(format!("seed {seed}: {cases} ends, all knew after {slowest:.0} ms at most")))
}

/// Ends one rank. Returns the time until the slowest of the others knew it, in microseconds.
fn one(provider: &str, case: usize, random: &mut Random) -> Result<i64, Box<dyn std::error::Error>> {
    let (how, words) = ENDS[case % ENDS.len()];
    let ranks = [2, 4][random.below(2)];
    let victim = random.below(ranks);
    let store = ["launcher", "rank 0", "directory"][random.below(3)];
    let micros = random.below(40_000);
    let what = format!("rank {victim} of {ranks}, {how}, store of {store}, after {micros} µs");

    let mut world = match store {
        "launcher" => TestJob::new(provider, ranks, 1)?,
        "rank 0" => TestJob::served_by_rank_0(provider, ranks)?,
        _ => TestJob::in_a_directory(provider, ranks)?,
    };
    let here = tempfile::tempdir()?;
    // A rank that comes after the end of the store's process, or of a dead rank 0's round, cannot learn of it.
    let wait_for = if victim == 0 && store != "launcher" { ranks } else { 1 };
    for rank in 0..ranks {
        let role = if rank == victim {
            format!("ends-joining {how} {micros} {wait_for} {}", here.path().display())
        } else {
            format!("sees-an-end {}", here.path().display())
        };
        let more: &[(&str, &str)] = match how {
            _ if rank != victim => &[],
            "environment" => &[("UNISONO_LANES", "several")],
            _ => &[],
        };
        world.start(rank, &role, more)?;
    }
    let ends = world.end_all()?;
    let (dead, others): (Vec<_>, Vec<_>) = ends.iter().partition(|end| end.rank == victim);
    let check = || -> Result<i64, Box<dyn std::error::Error>> {
        others.iter().try_for_each(|end| End::well(end))?;
        let said = same(&others, "told")?;
        ensure!(said.contains(&format!("rank {victim} ")) || ["chunk", "provider"].contains(&how), "{said}");
        ensure!(said.contains(words), "{said}, and not {words}");
        // An error that only this rank finds.
        ensure!(
            !words.starts_with(": ") || said.contains(&format!("rank {victim} could not join: ")),
            "{said}"
        );
        let since = dead.first().ok_or("it did not end")?.number("signalled")?;
        let mut slowest = 0;
        for end in &others {
            slowest = slowest.max(end.number("ended")? - since);
        }
        ensure!(slowest < SOON, "it took {slowest} µs");
        Ok(slowest)
    };
    check().map_err(|error| format!("{what}: {error}").into())
}

/// True if this process has opened its store and watches over the others.
fn watches() -> bool {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks
        .map(|task| task.path().join("comm"))
        .any(|comm| fs::read_to_string(comm).is_ok_and(|name| name.trim() == "unisono-watch"))
}

/// Makes a file, from a separate thread, when this rank has arrived.
fn tell_when_there(here: &str) {
    let mark = Path::new(here).join(std::process::id().to_string());
    thread::spawn(move || {
        while !watches() {
            thread::sleep(Duration::from_millis(1));
        }
        fs::write(mark, b"").is_ok()
    });
}

fn end(how: &str) {
    match how {
        "exit" => {
            say("signalled", now());
            std::process::exit(3);
        }
        "abort" => {
            say("signalled", now());
            std::process::abort();
        }
        _ => drop(signal_myself(Signal::KILL)),
    }
}

fn play_victim(message: &str) -> rank::Outcome {
    let [how, micros, wait_for, here] = message.splitn(4, ' ').collect::<Vec<_>>()[..] else {
        return Err(message.into());
    };
    let (micros, wait_for): (u64, usize) = (micros.parse()?, wait_for.parse()?);
    tell_when_there(here);
    let ready = {
        let here = here.to_owned();
        move || {
            while !fs::read_dir(&here).is_ok_and(|all| all.count() >= wait_for) || !watches() {
                thread::sleep(Duration::from_micros(300));
            }
            thread::sleep(Duration::from_micros(micros));
        }
    };
    if ["kill", "exit", "abort"].contains(&how) {
        let config = rank::config(0)?;
        let how = how.to_owned();
        thread::spawn(move || {
            ready();
            end(&how);
        });
        let group = rank::join_with(config)?;
        loop {
            group.barrier()?;
        }
    }
    say("signalled", now());
    let joined = match how {
        "environment" => ProcessGroup::from_env(),
        _ => {
            let mut config = rank::config(0)?;
            match how {
                "tuning" => config.tuning = Some("/nowhere/at/all".into()),
                "lanes" => config.lanes = 65,
                "algorithm" => config.algorithm = Some("magic".into()),
                "provider" => config.provider = Some("carrier-pigeon".into()),
                _ => config.chunk = 4096,
            }
            rank::join_with(config)
        }
    };
    say("own", joined.err().ok_or("it joined all the same")?);
    Ok(())
}

/// Joins, and then works until it gets the failure.
fn play_witness(here: &str) -> rank::Outcome {
    tell_when_there(here);
    let message = match rank::join_with(rank::config(0)?) {
        Ok(group) => loop {
            let result = group.barrier();
            if result.is_err() {
                break failure(result)?;
            }
        },
        Err(Error::Failed(failure)) => failure,
        Err(other) => {
            say("ended", now());
            say("told", &other);
            return Ok(());
        }
    };
    say("ended", now());
    say("told", message);
    Ok(())
}
