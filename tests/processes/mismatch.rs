//! Ranks that make different calls: all of them get the same failure at once, and their data is unchanged.

use unisono::{Pipeline, ProcessGroup, ReduceOp, TensorViewMut};

use crate::{
    Outcome, Table, Verdict, ensure,
    failures::SOON,
    rank::{self, Role, config, failure, now, say},
    world::{End, TestJob, same},
};

/// The cases.
pub(crate) const CASES: Table = &[
    ("mismatches, 2 ranks", |provider| mismatches(provider, 2)),
    ("mismatches, 4 ranks", |provider| mismatches(provider, 4)),
];

pub(crate) const ROLES: &[Role] = &[("mismatches", play)];

type Call = fn(&ProcessGroup, &mut Data) -> unisono::Result<()>;

/// The data of the calls.
struct Data {
    floats: Vec<f32>,
    integers: Vec<i32>,
    output: Vec<f32>,
}

/// Enough elements for results to be written straight into outputs.
const LARGE: usize = 600_000;

impl Data {
    fn new(rank: usize) -> Self {
        let float =
            |index: usize| f32::from(u8::try_from((rank * 31 + index) % 251).unwrap_or_default()) + 0.5;
        let floats: Vec<f32> = (0..LARGE + 1).map(float).collect();
        Self { integers: vec![7; 1000], output: vec![-1.0; 4 * floats.len()], floats }
    }
}

/// An all_reduce of this many elements by an algorithm, in messages of 1 KiB on this many lanes: one lane uses the windows of small
/// messages, several use those of large ones.
fn by(algorithm: &str, lanes: usize, group: &ProcessGroup, data: &mut [f32]) -> unisono::Result<()> {
    group
        .with_algorithms(algorithm)?
        .with_pipeline(Pipeline::Messages { chunk_bytes: 1024, lanes })?
        .all_reduce(data, ReduceOp::Sum)
}

/// The call of the last rank, the call of the others, and the text of the failure.
const ROUNDS: &[(&str, Call, Call, &[&str])] = &[
    (
        "count",
        |group, data| group.all_reduce(&mut data.floats[..9], ReduceOp::Sum),
        |group, data| group.all_reduce(&mut data.floats[..10], ReduceOp::Sum),
        &["all_reduce(f32, sum)", "has 10 elements", "LAST has 9 elements"],
    ),
    (
        "large count",
        |group, data| group.all_reduce(&mut data.floats[..LARGE + 1], ReduceOp::Sum),
        |group, data| group.all_reduce(&mut data.floats[..LARGE], ReduceOp::Sum),
        &["all_reduce(f32, sum)", "has 600000 elements", "LAST has 600001 elements"],
    ),
    (
        "count that another algorithm does",
        |group, data| group.all_reduce(&mut data.floats[..LARGE], ReduceOp::Sum),
        |group, data| group.all_reduce(&mut data.floats[..1], ReduceOp::Sum),
        &["all_reduce(f32, sum)", "has 1 elements", "LAST has 600000 elements"],
    ),
    (
        "empty",
        |group, _| group.all_reduce(&mut [0.0_f32; 0], ReduceOp::Sum),
        |group, data| group.all_reduce(&mut data.floats[..10], ReduceOp::Sum),
        &["has 10 elements", "LAST has 0 elements"],
    ),
    (
        "dtype",
        |group, data| group.all_reduce(&mut data.integers[..10], ReduceOp::Sum),
        |group, data| group.all_reduce(&mut data.floats[..10], ReduceOp::Sum),
        &["calls all_reduce(f32, sum)", "LAST calls all_reduce(i32, sum)"],
    ),
    (
        "op",
        |group, data| group.all_reduce(&mut data.floats[..LARGE], ReduceOp::Max),
        |group, data| group.all_reduce(&mut data.floats[..LARGE], ReduceOp::Sum),
        &["calls all_reduce(f32, sum)", "LAST calls all_reduce(f32, max)"],
    ),
    (
        "algorithm",
        |group, data| by("ring", 1, group, &mut data.floats[..1000]),
        |group, data| by("two_shot", 1, group, &mut data.floats[..1000]),
        &["all_reduce(f32, sum)", "uses algorithm two_shot", "LAST uses algorithm ring"],
    ),
    (
        "algorithm of large messages",
        |group, data| by("ring", 2, group, &mut data.floats[..LARGE]),
        |group, data| by("two_shot", 2, group, &mut data.floats[..LARGE]),
        &["all_reduce(f32, sum)", "uses algorithm two_shot", "LAST uses algorithm ring"],
    ),
    (
        "algorithm of small messages among large ones",
        |group, data| by("ring", 1, group, &mut data.floats[..10_000]),
        |group, data| by("two_shot", 2, group, &mut data.floats[..10_000]),
        &["all_reduce(f32, sum)", "uses algorithm two_shot", "LAST uses algorithm ring"],
    ),
    (
        "algorithm of large messages among small ones",
        |group, data| by("ring", 2, group, &mut data.floats[..10_000]),
        |group, data| by("two_shot", 1, group, &mut data.floats[..10_000]),
        &["all_reduce(f32, sum)", "uses algorithm two_shot", "LAST uses algorithm ring"],
    ),
    (
        "one tensor of many",
        |group, data| group.all_reduce(&mut data.floats[..LARGE], ReduceOp::Sum),
        |group, data| {
            let tensor = TensorViewMut::new(&mut data.floats[..LARGE], &[LARGE])?;
            group.all_reduce_coalesced(&mut [tensor], ReduceOp::Sum)
        },
        &["calls all_reduce_coalesced(f32, sum)", "LAST calls all_reduce(f32, sum)"],
    ),
    (
        "root",
        // A root may return before it learns of the failure; its next call returns it.
        |group, data| group.broadcast(&mut data.floats[..10], 1).and_then(|()| group.barrier()),
        |group, data| group.broadcast(&mut data.floats[..10], 0).and_then(|()| group.barrier()),
        &["LAST", "broadcast(f32, root "],
    ),
    (
        "root of a large broadcast",
        |group, data| group.broadcast(&mut data.floats[..LARGE], 1).and_then(|()| group.barrier()),
        |group, data| group.broadcast(&mut data.floats[..LARGE], 0).and_then(|()| group.barrier()),
        &["LAST", "broadcast(f32, root "],
    ),
    (
        "kind",
        |group, data| group.all_gather((&data.floats[..10], &mut data.output[..10 * group.size()])),
        |group, data| {
            group.reduce_scatter((&data.floats[..10 * group.size()], &mut data.output[..10]), ReduceOp::Sum)
        },
        &["calls reduce_scatter(f32, sum)", "LAST calls all_gather(f32)"],
    ),
    (
        "order",
        |group, data| group.all_reduce(&mut data.floats[..10], ReduceOp::Sum).and_then(|()| group.barrier()),
        |group, data| group.barrier().and_then(|()| group.all_reduce(&mut data.floats[..10], ReduceOp::Sum)),
        &["calls barrier()", "LAST calls all_reduce(f32, sum)"],
    ),
    (
        "object",
        |group, _| group.all_gather_v(&[1_u8]).map(drop),
        |group, _| group.all_gather_object(&1).map(drop),
        &["calls all_gather_object()", "LAST calls all_gather_v(u8)"],
    ),
    (
        "one call less",
        |_, _| Ok(()),
        |group, data| {
            group.all_gather((&data.floats[..LARGE / 4], &mut data.output[..LARGE / 4 * group.size()]))
        },
        &["calls all_gather(f32)", "LAST has left before it"],
    ),
];

fn mismatches(provider: &str, ranks: usize) -> Outcome {
    let mut world = TestJob::new(provider, ranks, ROUNDS.len())?;
    world.start_all("mismatches", &[])?;
    let ends = world.end_all()?;
    End::all_well(&ends)?;
    let mut slowest = 0;
    for (name, _, _, wanted) in ROUNDS {
        // The rank that leaves does not get the failure.
        let hearers: Vec<&End> =
            ends.iter().filter(|end| *name != "one call less" || end.rank + 1 < ranks).collect();
        let words = same(&hearers, &format!("words of {name}:"))?;
        for wanted in *wanted {
            let wanted = wanted.replace("LAST", &format!("rank {}", ranks - 1));
            ensure!(words.contains(&wanted), "{name}: {wanted:?} is not in {words:?}");
        }
        for end in hearers {
            let took = end.number(&format!("time of {name}:"))?;
            ensure!(took < SOON, "{name}: rank {} knew after {took} µs", end.rank);
            slowest = slowest.max(took);
        }
    }
    Ok(Verdict::Measured(format!("at most {:.1} ms", slowest as f64 / 1000.0)))
}

fn play(_: &str) -> rank::Outcome {
    let mut problems = Vec::new();
    // The others wait for this rank in every round, even if one round fails.
    for (number, (name, odd, even, _)) in ROUNDS.iter().enumerate() {
        let group = rank::join_with(config(number)?)?;
        let last = group.rank() + 1 == group.size();
        let mut data = Data::new(group.rank());
        rank::meet(&group);
        let begun = now();
        let result = if last { odd(&group, &mut data) } else { even(&group, &mut data) };
        let took = now() - begun;
        if last && *name == "one call less" {
            continue;
        }
        match failure(result) {
            Ok(words) => say(&format!("words of {name}:"), words),
            Err(error) => problems.push(format!("{name}: {error}")),
        }
        say(&format!("time of {name}:"), took);
        // Moved data may have come from ranks that agree; a reduction needs all ranks.
        let fresh = Data::new(group.rank());
        if data.integers != fresh.integers || data.floats != fresh.floats && !name.contains("root") {
            problems.push(format!("{name}: data was changed"));
        }
    }
    ensure!(problems.is_empty(), "{problems:?}");
    Ok(())
}
