//! A low limit on locked memory: all ranks use smaller windows, and one line says so.

use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::{CapabilitySet, capabilities, set_capabilities},
};
use unisono::ReduceOp;

use crate::{
    Outcome, Table, Verdict, ensure,
    rank::{self, Role, join, say},
    world::TestJob,
};

/// The cases.
pub(crate) const CASES: Table = &[("little memory may be locked", case)];

pub(crate) const ROLES: &[Role] = &[("locks", play)];

/// A chunk whose windows take more than 200 MiB: two for each lane and neighbour, and as many again for staging.
const CHUNK: &str = "16M";
/// The limit of rank 1: enough for the provider's own buffers and for smaller windows.
const LIMIT: u64 = 96 << 20;

fn case(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, 2, 1)?;
    let settings = [("UNISONO_CHUNK", CHUNK), ("UNISONO_JOIN_TIMEOUT", "20s")];
    world.start(0, "locks", &settings)?;
    world.start(1, &format!("locks {LIMIT}"), &settings)?;
    let ends = world.end_all()?;
    ends.iter().rev().try_for_each(|end| end.well())?;
    let joined = |rank: usize| {
        let line = ends[rank].errors.lines().find(|line| line.contains("joined"));
        let after = line.and_then(|line| line.split_once("chunk_bytes="))?.1;
        after.split(|byte: char| !byte.is_ascii_digit()).next()?.parse::<usize>().ok()
    };
    if ends.iter().all(|end| end.said("pins").is_ok_and(|pins| pins == "false")) {
        return Ok(Verdict::Skipped("this provider does not lock the memory that it registers".into()));
    }
    let chunks = [0, 1].map(joined);
    ensure!(chunks[0].is_some() && chunks[0] == chunks[1], "the chunks are {chunks:?}: {}", ends[1].errors);
    ensure!(chunks[0] < Some(16 << 20), "the chunk is {chunks:?}, whose windows cannot fit");
    let warned = |rank: usize| ends[rank].errors.contains("using smaller ones");
    ensure!(
        warned(1) && !warned(0),
        "not rank 1 and it alone says why: {}{}",
        ends[0].errors,
        ends[1].errors
    );
    Ok(Verdict::Measured(format!("chunks of {} bytes", chunks[0].unwrap_or_default())))
}

/// Joins with a limit, if one is given, and reduces a large vector.
fn play(limit: &str) -> rank::Outcome {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_max_level(tracing::Level::INFO)
        .init();
    if !limit.is_empty() {
        // A lower hard limit cannot be raised.
        let limit = limit.parse()?;
        let limit = Some(getrlimit(Resource::Memlock).maximum.map_or(limit, |hard| hard.min(limit)));
        setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit })?;
        // The limit does not hold for a process that has this capability.
        let mut sets = capabilities(None)?;
        sets.effective.remove(CapabilitySet::IPC_LOCK);
        sets.permitted.remove(CapabilitySet::IPC_LOCK);
        sets.inheritable.remove(CapabilitySet::IPC_LOCK);
        set_capabilities(None, sets)?;
    }
    let group = join()?;
    say("pins", !group.limits().cheap_registration);
    let mut data = vec![1_i32; 3_000_001];
    group.all_reduce(&mut data, ReduceOp::Sum)?;
    ensure!(data.iter().all(|&sum| sum == 2), "wrong sums");
    Ok(())
}
