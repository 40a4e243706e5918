//! The erased entry between real processes: operands in several pieces and in registered buffers, lengths that both sides know,
//! and timeouts of calls.
#![allow(unsafe_code)]

use std::time::Duration;

use unisono::{Error, Failure, Foreign, MessageRequest, ProcessGroup, Request, Source, dtype::Dtype};
use unisono_schedule::{Collective, Uneven};

use crate::{
    Outcome, Table, Verdict, ensure,
    rank::{self, Role, failure, join, say, until_failure},
    world::{End, TestJob, same},
};

pub(crate) const CASES: Table = &[
    ("erased calls, 2 ranks", |provider| erased(provider, 2)),
    ("erased calls, 3 ranks", |provider| erased(provider, 3)),
    ("lengths that both sides know and that differ", differ),
    ("a timeout of one call", late),
];

pub(crate) const ROLES: &[Role] =
    &[("erased", calls), ("differing-lengths", lengths), ("short-timeout", timeout)];

fn erased(provider: &str, ranks: usize) -> Outcome {
    let mut world = TestJob::new(provider, ranks, 1)?;
    world.start_all("erased", &[])?;
    let ends = world.end_all()?;
    End::all_well(&ends)?;
    let ends: Vec<&End> = ends.iter().collect();
    Ok(Verdict::Measured(format!("{} calls", same(&ends, "calls")?)))
}

/// The element at an index of one rank's data for another.
fn element(from: usize, to: usize, at: usize) -> i32 {
    i32::try_from(from * 1_000_003 + to * 10_007 + at).unwrap_or(0)
}

fn block(from: usize, to: usize, len: usize) -> Vec<i32> {
    (0..len).map(|at| element(from, to, at)).collect()
}

/// An operand of several vectors, which outlive the call and are not touched before it has ended.
fn of(vectors: &mut [Vec<i32>]) -> Foreign {
    let pieces = vectors.iter_mut().map(|it| (it.as_mut_ptr().cast(), size_of_val(&it[..])));
    // SAFETY: the caller keeps the vectors as described above; no two vectors overlap.
    unsafe { Foreign::pieces(pieces, ()) }
}

fn calls(_: &str) -> rank::Outcome {
    let group = join()?;
    let (me, ranks) = (group.rank(), group.size());
    let mut calls = 0;
    for len in [1, 1000, 100_000, 700_000] {
        for waits in [true, false] {
            one(&group, len, waits)?;
            calls += 1;
        }
        // The pieces are registered buffers.
        let mut input = group.buffer::<i32>(len)?;
        input.copy_from_slice(&block(me, 0, len));
        let output = (0..ranks).map(|_| group.buffer::<i32>(len)).collect::<Result<Vec<_>, _>>()?;
        let bytes = len * 4;
        // SAFETY: the buffers outlive the call and are not touched before it has ended.
        let (given, gets) = unsafe {
            let pieces = output.iter().map(|buffer| (buffer.base().cast(), bytes));
            (Foreign::new(input.base().cast(), bytes, ()), Foreign::pieces(pieces, ()))
        };
        group.erased().collective(&Request::new(Collective::AllGather, Dtype::I32), &given, &gets)?;
        for (from, buffer) in output.iter().enumerate() {
            ensure!(**buffer == block(from, 0, len)[..], "registered: {len} elements of rank {from}");
        }
    }
    say("calls", calls);
    Ok(group.leave()?)
}

/// One call of each kind, of about `len` elements for each rank.
fn one(group: &ProcessGroup, len: usize, waits: bool) -> rank::Outcome {
    let (me, ranks) = (group.rank(), group.size());
    let run = |request: &Request<'_>, input: &mut [Vec<i32>], output: &mut [Vec<i32>]| {
        let (input, output) = (of(input), of(output));
        match waits {
            true => group.erased().collective(request, &input, &output),
            false => group.erased().begin_collective(request, input, output)?.wait().map(drop),
        }
    };
    let new = |collective| Request::new(collective, Dtype::I32);
    let zeros = |lengths: &[usize]| lengths.iter().map(|&len| vec![0; len]).collect::<Vec<_>>();
    let mut output = zeros(&vec![len; ranks]);
    run(&new(Collective::AllGather), &mut [block(me, 0, len)], &mut output)?;
    ensure!(output == (0..ranks).map(|from| block(from, 0, len)).collect::<Vec<_>>(), "all_gather of {len}");

    let length = |from: usize, to: usize| len * ((from + 2 * to) % 3);
    let sends: Vec<_> = (0..ranks).map(|to| length(me, to)).collect();
    let gets: Vec<_> = (0..ranks).map(|from| length(from, me)).collect();
    let lengths = Some(Uneven { input: &sends, output: &gets });
    let mut input: Vec<_> = (0..ranks).map(|to| block(me, to, length(me, to))).collect();
    let mut output = zeros(&gets);
    run(&Request { lengths, ..new(Collective::AllToAll) }, &mut input, &mut output)?;
    let wanted: Vec<_> = (0..ranks).map(|from| block(from, me, length(from, me))).collect();
    ensure!(output == wanted, "all_to_all of {len}");

    let own: Vec<_> = (0..ranks).map(|rank| length(rank, rank)).collect();
    let lengths = Some(Uneven { input: &[], output: &own });
    let mut output = zeros(&own);
    run(&Request { lengths, ..new(Collective::AllGather) }, &mut [block(me, 0, own[me])], &mut output)?;
    let wanted: Vec<_> = (0..ranks).map(|from| block(from, 0, own[from])).collect();
    ensure!(output == wanted, "all_gather of known lengths, {len}");

    // The root has many tensors.
    let root = ranks - 1;
    let mut tensors: Vec<_> =
        [1, len, 0, 3].map(|len| if me == root { block(7, 7, len) } else { vec![0; len] }).into();
    run(&Request { root, coalesced: true, ..new(Collective::Broadcast) }, &mut [], &mut tensors)?;
    ensure!(tensors == [1, len, 0, 3].map(|len| block(7, 7, len)), "broadcast of many tensors, {len}");

    let (mut sent, mut got) = ([block(me, me, len)], [vec![0; len]]);
    let (next, before) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
    let batch = [
        (MessageRequest::send(Dtype::I32, next, 9), of(&mut sent)),
        (MessageRequest::recv(Dtype::I32, Source::Any, 9), of(&mut got)),
    ];
    let works = group.erased().begin_messages(batch)?;
    let peers =
        works.into_iter().map(|work| work.wait().map(|(_, peer)| peer)).collect::<Result<Vec<_>, _>>()?;
    ensure!(peers == [next, before] && got == [block(before, before, len)], "messages of {len}");
    Ok(())
}

fn differ(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, 3, 1)?;
    world.start_all("differing-lengths", &[])?;
    let ends = world.end_all()?;
    End::all_well(&ends)?;
    let ends: Vec<&End> = ends.iter().collect();
    let words = same(&ends, "failure")?;
    let wanted = "rank 0 has 5000 elements for rank 2, rank 2 expects 5001 elements of rank 0";
    ensure!(words.ends_with(wanted), "told: {words}");
    Ok(Verdict::Passed)
}

fn lengths(_: &str) -> rank::Outcome {
    let group = join()?;
    let mut gets = [5000; 3];
    gets[0] += usize::from(group.rank() == 2);
    let lengths = Some(Uneven { input: &[5000; 3], output: &gets });
    let request = Request { lengths, ..Request::new(Collective::AllToAll, Dtype::I32) };
    let (mut input, mut output) = ([vec![1; 15000]], [vec![1; gets.iter().sum()]]);
    let result =
        group.erased().collective(&request, &of(&mut input), &of(&mut output)).and_then(|()| group.barrier());
    say("failure", failure(result)?);
    Ok(())
}

fn late(provider: &str) -> Outcome {
    let mut world = TestJob::new(provider, 2, 1)?;
    world.start_all("short-timeout", &[])?;
    let ends = world.end_all()?;
    End::all_well(&ends)?;
    let ends: Vec<&End> = ends.iter().collect();
    let words = same(&ends, "failure")?;
    ensure!(
        words.contains("barrier() did not finish within") && words.contains("on rank 0"),
        "told: {words}"
    );
    Ok(Verdict::Passed)
}

fn timeout(_: &str) -> rank::Outcome {
    let group = join()?;
    if group.rank() == 1 {
        // This rank does not wait, and gets the failure at its next call.
        let hear = |group: &ProcessGroup| {
            std::thread::sleep(Duration::from_millis(5));
            group.choice(Collective::Barrier, 0, Dtype::U8).map(drop)
        };
        return until_failure(&group, hear).map(drop);
    }
    let short = Some(Duration::from_millis(700));
    let request = Request { timeout: short, ..Request::new(Collective::Barrier, Dtype::U8) };
    let result = group.erased().collective(&request, &Foreign::none(), &Foreign::none());
    if let Err(Error::Failed(Failure::Deadline { waited, .. })) = &result {
        ensure!((700..5000).contains(&waited.as_millis()), "it waited {waited:?}");
    }
    say("failure", failure(result)?);
    Ok(())
}
