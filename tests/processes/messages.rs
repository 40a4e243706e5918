//! Point-to-point messages and asynchronous work between real processes: every message arrives, complete and in order,
//! while collectives of several groups run; and both sides report messages that do not match.

use unisono::{Config, Message, ProcessGroup, ReduceOp, Source, Work};

use crate::{
    Outcome, Table, Verdict, ensure,
    numbers::{Number, small},
    rank::{self, Role, config, failure, say},
    world::{End, TestJob, same},
};

/// The cases.
pub(crate) const CASES: Table = &[
    ("messages, 1 ranks", |provider| messages(provider, 1)),
    ("messages, 2 ranks", |provider| messages(provider, 2)),
    ("messages, 4 ranks", |provider| messages(provider, 4)),
    ("messages that do not fit", misfits),
];

pub(crate) const ROLES: &[Role] = &[("messages", talk), ("misfits", misfit)];

/// Lengths: small, about the size of a slot, and large.
const LENGTHS: [usize; 9] = [0, 1, 17, 1000, 8191, 8192, 8193, 100_003, 1_500_000];

fn messages(provider: &str, ranks: usize) -> Outcome {
    let mut world = TestJob::new(provider, ranks, 1)?;
    world.start_all("messages", &[])?;
    let ends = world.end_all()?;
    End::all_well(&ends)?;
    let ends: Vec<&End> = ends.iter().collect();
    Ok(Verdict::Measured(format!("{} messages from each rank", same(&ends, "messages")?)))
}

/// The contents of the `number`-th message of rank `from`.
fn data<T: Number>(from: usize, number: usize, len: usize) -> Vec<T> {
    (0..len).map(|index| small(number as u64, ReduceOp::Sum, from, index)).collect()
}

fn talk(_: &str) -> rank::Outcome {
    let group = rank::join()?;
    let mut sent = 0;
    for (number, len) in LENGTHS.into_iter().enumerate() {
        around::<f32>(&group, number, len)?;
        around::<u8>(&group, number, len)?;
        sent += 10;
    }
    sent += crowd(&group)?;
    sent += at_once(&group)?;
    say("messages", sent);
    Ok(group.leave()?)
}

/// Sends to the next rank and receives from the previous one.
fn around<T: Number>(group: &ProcessGroup, number: usize, len: usize) -> rank::Outcome {
    let (rank, ranks) = (group.rank(), group.size());
    let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let (mine, theirs) = (data::<T>(rank, number, len), data::<T>(before, number, len));
    let what = |how: &str| format!("{len} {} {how}", T::DTYPE);
    // All ranks send first.
    group.send(&mine, (next, 1))?;
    let mut got = vec![T::of(99); len];
    group.recv(&mut got, (before, 1))?;
    ensure!(got == theirs, "{}", what("sent before received"));
    group.send(&mine, (next, 2))?;
    let (got, from) = group.recv_vec::<T>((Source::Any, 2))?;
    ensure!(got == theirs && from == before, "{}", what("of unknown length"));
    let mut got = vec![T::of(99); len];
    group.send_recv((&mine, &mut got), (next, 1), (before, 1))?;
    ensure!(got == theirs, "{}", what("sent and received"));
    let (mut from, mut into) = (group.buffer::<T>(len)?, group.buffer::<T>(len)?);
    from.copy_from_slice(&mine);
    group.send_recv((&from, &mut into), (next, 1), (before, 1))?;
    ensure!(*into == *theirs, "{}", what("from and to registered buffers"));
    into.fill(T::of(99));
    group.send_recv((&mine, &mut into), (next, 1), (before, 1))?;
    ensure!(*into == *theirs, "{}", what("to a registered buffer"));
    Ok(())
}

/// Many small messages of several tags between all pairs of ranks, received by tag and not in the order of arrival.
fn crowd(group: &ProcessGroup) -> Result<usize, Box<dyn std::error::Error>> {
    let (rank, ranks, each) = (group.rank(), group.size(), 40);
    for number in 0..each {
        for to in 0..ranks {
            group.send(&data::<i64>(rank, number, number), (to, u32::try_from(number % 4)?))?;
        }
    }
    for tag in (0..4_usize).rev() {
        for from in 0..ranks {
            for number in (tag..each).step_by(4) {
                let mut got = vec![0; number];
                group.recv(&mut got, (from, u32::try_from(tag)?))?;
                ensure!(got == data::<i64>(from, number, number), "message {number} from {from}");
            }
        }
    }
    Ok(ranks * each)
}

/// Runs collectives of two groups and messages concurrently.
fn at_once(group: &ProcessGroup) -> Result<usize, Box<dyn std::error::Error>> {
    let (rank, ranks) = (group.rank(), group.size());
    let part = group.split(Some(rank as u64 % 2), 0)?.ok_or("no group")?;
    let mut sums: Vec<(&ProcessGroup, usize, Work<Vec<i64>>)> = Vec::new();
    let mut messages = Vec::new();
    for (number, len) in LENGTHS.into_iter().enumerate() {
        for group in [group, &part] {
            let mine = data(group.members()[group.rank()], number, len);
            sums.push((group, number, group.begin().all_reduce(mine, ReduceOp::Sum)?));
        }
        let sends = (0..ranks).map(|to| Message::send(data::<i64>(rank, number, len), to));
        let receives = (0..ranks).map(|from| Message::recv(vec![0; len], (Source::Rank(from), 0)));
        messages.extend(group.begin().batch(sends.chain(receives))?.into_iter().skip(ranks).enumerate());
    }
    let count = messages.len();
    for (place, (from, work)) in messages.into_iter().enumerate() {
        let (got, _) = work.wait()?;
        let number = place / ranks;
        ensure!(
            got == data::<i64>(from, number, LENGTHS[number]),
            "message {number} from {from} beside others"
        );
    }
    for (group, number, work) in sums {
        let got = work.wait()?;
        for (index, sum) in got.into_iter().enumerate().step_by(997) {
            let all = group.members().iter().map(|&it| small::<i64>(number as u64, ReduceOp::Sum, it, index));
            ensure!(sum == all.sum::<i64>(), "sum {number} at {index} beside messages");
        }
    }
    Ok(count)
}

/// Each round in a separate group, because the failure ends it.
fn misfits(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, 2, 4)?;
    world.start_all("misfits", &[])?;
    let ends = world.end_all()?;
    End::all_well(&ends)?;
    let ends: Vec<&End> = ends.iter().collect();
    let wanted = [
        "rank 0 sends 9 f32 elements, rank 1 receives 10 f32 elements",
        "rank 0 sends 900000 f32 elements, rank 1 receives 900001 f32 elements",
        "rank 0 sends 9 i32 elements, rank 1 receives 9 f32 elements",
    ];
    for (round, wanted) in wanted.into_iter().enumerate() {
        let message = same(&ends, &format!("round {round}"))?;
        ensure!(message.contains(wanted), "round {round}: {message}");
    }
    let message = same(&ends, "round 3")?;
    let wanted =
        ["recv(u16, from 1, tag 6) did not finish within 6", "rank 1 called barrier(), waits for rank 0"];
    ensure!(wanted.iter().all(|words| message.contains(words)), "{message}");
    Ok(Verdict::Passed)
}

fn misfit(_: &str) -> rank::Outcome {
    for round in 0..4 {
        let mut config = config(round)?;
        if round == 3 {
            // Before 1 s has passed, after which the store looks for a deadlock.
            let millis = if config.rank == 0 { 600 } else { 60_000 };
            config = Config { timeout: std::time::Duration::from_millis(millis), ..config };
        }
        let group = rank::join_with(config)?;
        let len = if round == 1 { 900_000 } else { 9 };
        let done = match (group.rank(), round) {
            (0, 2) => group.send(&vec![0_i32; len], (1, 6)),
            (0, 3) => group.recv(&mut [0_u16], (1, 6)).map(drop),
            (0, _) => group.send(&vec![0_f32; len], (1, 6)),
            (_, 2) => group.recv(&mut vec![0_f32; len], (Source::Any, 6)).map(drop),
            (_, 3) => Ok(()),
            _ => group.recv(&mut vec![0_f32; len + 1], (0, 6)).map(drop),
        };
        // A rank that has sent a small message gets the failure at its next call; a rank that gets no message waits longer.
        say(&format!("round {round}"), failure(done.and_then(|()| group.barrier()))?);
    }
    Ok(())
}
