//! Processes that cannot form a group: each gets the reason, and none waits longer than necessary.

use rustix::process::{Resource, Rlimit, setrlimit};
use unisono::{Config, Error, ProcessGroup};

use crate::{
    Outcome, Table, Verdict, ensure,
    rank::{self, Role, config, now, say},
    world::{End, TestJob, same},
};

/// The cases.
pub(crate) const CASES: Table = &[
    ("two processes with one rank", twins),
    ("a wrong variable on one rank", wrong_variable),
    ("two processes that take themselves for rank 0", two_hosts),
    ("another job's token", token),
    ("another world size", size),
    ("an unknown provider", unknown),
    ("an unknown provider on one rank", unknown_on_one),
    ("different providers", providers),
    ("different chunks", chunks),
    ("an algorithm that does not exist", algorithm),
    ("a port that nobody serves", unserved),
    ("too few file descriptors", descriptors),
];

pub(crate) const ROLES: &[Role] = &[
    ("joins", play),
    ("joins-by-environment", play_by_environment),
    ("joins-by-config", play_by_config),
    ("joins-with-few-descriptors", play_few),
];

/// Joins and leaves, or prints the kind of the error and its message, which is one line.
fn play(_: &str) -> rank::Outcome {
    joins(|| config(0).and_then(|config| Ok(rank::join_with(config)?)))
}

fn play_by_environment(_: &str) -> rank::Outcome {
    joins(|| Ok(ProcessGroup::from_env()?))
}

/// Joins like a program that reads its configuration first.
fn play_by_config(_: &str) -> rank::Outcome {
    joins(|| Ok(ProcessGroup::join(Config::from_env()?)?))
}

fn joins(join: impl FnOnce() -> Result<ProcessGroup, Box<dyn std::error::Error>>) -> rank::Outcome {
    let begun = now();
    let result = join();
    say("time", now() - begun);
    match result {
        Ok(group) => {
            group.barrier()?;
            say("joined", group.size());
        }
        Err(error) => {
            ensure!(!error.to_string().contains('\n'), "more than a line: {error:?}");
            let kind = match error.downcast_ref::<Error>() {
                Some(Error::Config { .. }) => "configuration",
                Some(Error::Rendezvous { .. }) => "rendezvous",
                Some(Error::Missing { .. }) => "missing",
                Some(Error::Refused { .. }) => "refused",
                Some(Error::Transport(_)) => "transport",
                Some(Error::Failed(_)) => "failed",
                _ => "other",
            };
            say("error", kind);
            say("words", error);
        }
    }
    Ok(())
}

/// Fails unless a process got this kind of error, with this text in its message.
fn says(end: &End, kind: &str, words: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    end.well()?;
    let said = end.said("words")?;
    ensure!(end.said("error")? == kind, "rank {}: not {kind}, but {} {said}", end.rank, end.said("error")?);
    for part in words {
        ensure!(said.contains(part), "rank {}: {part:?} is not in {said:?}", end.rank);
    }
    Ok(())
}

fn joined(end: &End) -> Result<(), Box<dyn std::error::Error>> {
    end.well()?;
    end.said("joined").map(drop)
}

fn twins(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, 3, 1)?;
    // The store refuses the second of them; the others get the reason, and wait no longer.
    world.start(1, "joins", &[])?;
    world.start(1, "joins", &[])?;
    world.start(0, "joins", &[])?;
    let ends = world.end_all()?;
    let words = ["that rank is taken by", "give every process its own rank"];
    let refused = |end: &&End| end.said("error").is_ok_and(|error| error == "refused");
    ensure!(ends.iter().filter(refused).count() == 1, "not one is refused: {ends:?}");
    ends.iter().filter(refused).try_for_each(|end| says(end, "refused", &words))?;
    ends.iter().filter(|end| !refused(end)).try_for_each(|end| says(end, "failed", &words))?;
    Ok(Verdict::Passed)
}

/// One of two ranks cannot serve the store, and reports it to the other.
fn two_hosts(provider: &str) -> Outcome {
    let mut world = TestJob::served_by_rank_0(provider, 3)?;
    for rank in [0, 0, 2] {
        world.start(rank, "joins", &[])?;
    }
    let ends = world.end_all()?;
    let serves = |end: &&End| end.said("error").is_ok_and(|error| error == "rendezvous");
    ensure!(ends.iter().filter(serves).count() == 1, "not one cannot serve: {ends:?}");
    for end in &ends {
        let own = serves(&end);
        let words = ["cannot serve the store", "give each process its own rank"];
        says(end, if own { "rendezvous" } else { "failed" }, &words)?;
        ensure!(own || end.said("words")?.starts_with("rank 0 could not join: pid "), "{end:?}");
        let took = end.number("time")?;
        ensure!(took < 10_000_000, "rank {} waited {took} µs", end.rank);
    }
    Ok(Verdict::Passed)
}

/// Names and values.
type Variables = &'static [(&'static str, &'static str)];

/// Ranks 0 and 2 get rank 1's error.
fn wrong_variable(provider: &str) -> Outcome {
    let wrong: [(Variables, &[&str]); 7] = [
        (
            &[("UNISONO_CHUNK", "abc")],
            &["rank 1 could not join: pid ", "from 127.0.0.1", "UNISONO_CHUNK=abc: wanted"],
        ),
        (
            &[("UNISONO_LOCAL_RANK", "9"), ("UNISONO_LOCAL_WORLD_SIZE", "3")],
            &["rank 1 could not", "UNISONO_LOCAL_RANK=9: must be less than 3"],
        ),
        (&[("UNISONO_RANK", "x")], &["does not know its rank", "pid ", "UNISONO_RANK=x: wanted a number"]),
        (&[("UNISONO_TOKEN_FILE", "/nowhere")], &["rank 1 could not", "UNISONO_TOKEN_FILE=/nowhere"]),
        (&[("UNISONO_WORLD_SIZE", "4")], &["rank 1 could not join: pid ", "world size 4, the store 3"]),
        (&[("UNISONO_TOKEN", "x")], &["rank 1 could not join: pid ", "the tokens differ", "UNISONO_TOKEN"]),
        (&[("UNISONO_TOKEN", "")], &["rank 1 could not join: pid ", "the tokens differ", "UNISONO_TOKEN"]),
    ];
    let roles = ["joins-by-environment", "joins-by-config"].into_iter().cycle();
    for ((variables, words), role) in wrong.into_iter().flat_map(|case| [case; 2]).zip(roles) {
        let mut world = TestJob::new(provider, 3, 1)?;
        for rank in 0..3 {
            world.start(rank, role, if rank == 1 { variables } else { &[] })?;
        }
        for end in world.end_all()? {
            let refused = |word: &&str| word.contains("world size") || word.contains("tokens");
            let (kind, words) = match end.rank {
                1 if words.iter().any(refused) => ("refused", &words[1..]),
                1 => ("configuration", &words[words.len()..]),
                _ => ("failed", words),
            };
            says(&end, kind, words)?;
            let took = end.number("time")?;
            ensure!(took < 10_000_000, "rank {} waited {took} µs", end.rank);
        }
    }
    Ok(Verdict::Passed)
}

fn token(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, 2, 1)?;
    world.start(1, "joins", &[("UNISONO_TOKEN", "another job")])?;
    says(&world.end_first()?, "refused", &["belongs to another job", "UNISONO_TOKEN"])?;
    // All ranks get the error once; afterwards they can join.
    world.start_all("joins", &[])?;
    let words = ["rank 1 could not join: pid ", "the tokens differ"];
    world.end(|_| true)?.iter().try_for_each(|end| says(end, "failed", &words))?;
    world.start_all("joins", &[])?;
    world.end_all()?.iter().try_for_each(joined)?;
    Ok(Verdict::Passed)
}

fn size(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, 2, 1)?;
    world.start(1, "joins", &[("UNISONO_WORLD_SIZE", "3")])?;
    says(&world.end_first()?, "refused", &["this process has world size 3", "the store 2"])?;
    Ok(Verdict::Passed)
}

fn unknown(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, 2, 1)?;
    world.start_all("joins", &[("UNISONO_PROVIDER", "carrier-pigeon")])?;
    let ends = world.end_all()?;
    for end in &ends {
        // A rank that comes after the other has given up gets the other's error.
        let kind = end.said("error")?;
        ensure!(["transport", "failed", "refused"].contains(&kind), "rank {}: {kind}", end.rank);
        says(end, kind, &["no libfabric provider fits", "carrier-pigeon"])?;
    }
    Ok(Verdict::Measured(ends[0].said("words")?.to_owned()))
}

fn unknown_on_one(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, 3, 1)?;
    for rank in 0..3 {
        world.start(
            rank,
            "joins",
            if rank == 1 { &[("UNISONO_PROVIDER", "carrier-pigeon")] } else { &[] },
        )?;
    }
    let ends = world.end_all()?;
    for end in &ends {
        says(end, "failed", &["must be alike on all ranks", "carrier-pigeon on rank 1"])?;
        let took = end.number("time")?;
        ensure!(took < 5_000_000, "rank {} waited {took} µs", end.rank);
    }
    Ok(Verdict::Measured(same(&ends.iter().collect::<Vec<_>>(), "words")?.to_owned()))
}

fn providers(provider: &str) -> Outcome {
    let other = if provider == "tcp" { "tcp;ofi_rxm" } else { "tcp" };
    let mut world = TestJob::new(provider, 2, 1)?;
    world.start(0, "joins", &[])?;
    world.start(1, "joins", &[("UNISONO_PROVIDER", other)])?;
    let ends = world.end_all()?;
    ends.iter().try_for_each(|end| says(end, "failed", &["provider", "on rank 0", "on rank 1"]))?;
    Ok(Verdict::Measured(same(&[&ends[0], &ends[1]], "words")?.to_owned()))
}

fn chunks(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, 3, 1)?;
    world.start(0, "joins", &[])?;
    world.start(1, "joins", &[("UNISONO_CHUNK", "32K")])?;
    world.start(2, "joins", &[])?;
    let ends = world.end_all()?;
    ends.iter().try_for_each(|end| {
        says(
            end,
            "failed",
            &["chunk (UNISONO_CHUNK): must be alike", "262144 on ranks 0, 2", "32768 on rank 1"],
        )
    })?;
    Ok(Verdict::Measured(same(&ends.iter().collect::<Vec<_>>(), "words")?.to_owned()))
}

fn algorithm(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, 2, 1)?;
    world.start_all("joins", &[("UNISONO_ALGORITHM", "magic")])?;
    world.end_all()?.iter().try_for_each(|end| says(end, "configuration", &["magic", "ring"]))?;
    Ok(Verdict::Passed)
}

/// The numbers of free descriptors with which a rank tries to join: it needs more over any provider.
const FREE: [usize; 3] = [4, 7, 10];

fn descriptors(provider: &str) -> Outcome {
    // With the first numbers, an endpoint cannot be opened; with others it can, but cannot connect.
    let start = |free: usize| {
        let mut world = TestJob::new(provider, 2, 1)?;
        world.start(0, "joins", &[])?;
        world.start(1, &format!("joins-with-few-descriptors {free}"), &[("UNISONO_JOIN_TIMEOUT", "10s")])?;
        Ok::<_, Box<dyn std::error::Error>>(world)
    };
    let worlds: Vec<_> = FREE.into_iter().map(start).collect::<Result<_, _>>()?;
    let mut words = String::new();
    for world in worlds {
        let ends = world.end_all()?;
        if provider == "shm" {
            says(&ends[1], "failed", &["ulimit -n"])?;
        } else {
            says(&ends[1], "transport", &["ulimit -n", "libfabric"])?;
        }
        for end in &ends {
            let took = end.number("time")?;
            ensure!(took < 10_000_000, "rank {} took {took} µs", end.rank);
        }
        words = ends[1].said("words")?.to_owned();
    }
    Ok(Verdict::Measured(words))
}

/// Joins when so few file descriptors are free, however many the rank has inherited.
fn play_few(free: &str) -> rank::Outcome {
    let taken: Vec<u64> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    // The descriptor of the directory that was read is free again.
    let limit = (0..).filter(|number| !taken.contains(number)).nth(free.parse::<usize>()?);
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit })?;
    play("")
}

fn unserved(provider: &str) -> Outcome {
    let mut world = TestJob::served_by_rank_0(provider, 2)?;
    world.start(1, "joins", &[("UNISONO_JOIN_TIMEOUT", "500ms")])?;
    let ends = world.end_all()?;
    says(&ends[0], "rendezvous", &["tcp://127.0.0.1:"])?;
    Ok(Verdict::Measured(ends[0].said("words")?.to_owned()))
}
