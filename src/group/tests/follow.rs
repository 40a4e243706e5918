//! Asynchronous calls of several operations, against the blocking calls, with all kinds of calls between.

use proptest::{prelude::*, test_runner::TestRunner};

use super::{work::block_on, *};
use crate::{Work, uneven};

/// The length of one rank's block for another.
fn length(seed: usize, from: usize, to: usize) -> usize {
    [0, 1, 3, 64, 150, 0, 9][(seed * 5 + from * 3 + to * 2) % 7]
}

fn given(rank: Rank, seed: usize, len: usize) -> Vec<i64> {
    (0..len).map(|i| (rank * 1_000_000 + seed * 10_000 + i) as i64).collect()
}

/// An asynchronous call, and the result of the blocking one or of an oracle.
pub(super) type Check = Box<dyn FnOnce() + Send>;

/// Waits for calls, in a different order on each rank, from two threads.
pub(super) fn wait_in_this_ranks_order(rank: Rank, mut checks: Vec<Check>) {
    let sequence = rank % (checks.len() + 1);
    checks.rotate_left(sequence);
    if rank == 1 {
        checks.reverse();
    }
    let half = checks.split_off(checks.len() / 2);
    std::thread::scope(|scope| {
        for half in [half, checks] {
            scope.spawn(move || half.into_iter().for_each(|check| check()));
        }
    });
}

fn check<R: PartialEq + fmt::Debug + Send + 'static>(work: Work<R>, wanted: R) -> Check {
    Box::new(move || assert_eq!(work.wait().unwrap(), wanted))
}

/// The data that every rank gives to a call, and the data that it must get, by an oracle.
struct Given {
    lengths: Vec<usize>,
    mine: Vec<i64>,
    /// A block for each rank, as the root and as each has it.
    whole: Vec<i64>,
    gives: Vec<usize>,
    blocks: Vec<i64>,
}

impl Given {
    fn new(group: &ProcessGroup, seed: usize) -> Self {
        let (me, ranks) = (group.rank(), group.size());
        let lengths: Vec<usize> = (0..ranks).map(|rank| length(seed, rank, rank)).collect();
        let gives: Vec<usize> = (0..ranks).map(|to| length(seed, me, to)).collect();
        Self {
            mine: given(me, seed, lengths[me]),
            whole: given(7, seed, lengths.iter().sum()),
            blocks: given(me, seed, gives.iter().sum()),
            lengths,
            gives,
        }
    }
}

/// Begins one of the calls in place, as [`begin`] does.
fn begin_in_place(group: &ProcessGroup, twin: &ProcessGroup, kind: usize, seed: usize) -> Check {
    let (me, ranks) = (group.rank(), group.size());
    let root = seed % ranks;
    let at_root = me == root;
    let Given { lengths, mine, whole, .. } = Given::new(group, seed);
    let op = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::PreMulSum(3.0)][seed % 3];
    // On ranks other than the root the call ignores the lengths.
    let known = if at_root { lengths.clone() } else { vec![seed; seed % 4] };
    match kind {
        0 => {
            let mut all = whole.clone();
            twin.all_gather(uneven(&mut all, &lengths)).unwrap();
            check(group.begin().all_gather(uneven(whole, &lengths)).unwrap(), all)
        }
        1 => {
            let mut data = if at_root { whole } else { mine };
            let work = group.begin().gather(uneven(data.clone(), &known), root).unwrap();
            twin.gather(uneven(&mut data, &known), root).unwrap();
            check(work, data)
        }
        2 => {
            let mut data = if at_root { whole } else { mine };
            let work = group.begin().scatter(uneven(data.clone(), &known), root).unwrap();
            let block = twin.scatter(uneven(&mut data, &known), root).unwrap().to_vec();
            Box::new(move || {
                let (scattered, range) = work.wait().unwrap();
                assert_eq!((&scattered[range], &scattered), (&block[..], &data));
            })
        }
        3 => {
            let mut data = whole;
            let work = group.begin().reduce_scatter(uneven(data.clone(), &lengths), op).unwrap();
            let block = twin.reduce_scatter(uneven(&mut data, &lengths), op).unwrap().to_vec();
            Box::new(move || {
                let (reduced, range) = work.wait().unwrap();
                assert_eq!((&reduced[range], &reduced), (&block[..], &data));
            })
        }
        4 | 5 => {
            let pair = |other: usize| length(seed, me.min(other), me.max(other));
            let lengths: Vec<usize> = (0..ranks).map(pair).collect();
            let mut data = given(me, seed, lengths.iter().sum());
            let work = group.begin().all_to_all(uneven(data.clone(), &lengths)).unwrap();
            if kind == 5 {
                drop(work);
                return Box::new(|| {});
            }
            twin.all_to_all(uneven(&mut data, &lengths)).unwrap();
            check(work, data)
        }
        6 => {
            let mut data = given(me, seed, ranks * (seed % 90));
            let work = group.begin().all_to_all(data.clone()).unwrap();
            twin.all_to_all(&mut data).unwrap();
            check(work, data)
        }
        _ => {
            std::mem::forget(group.begin().reduce_scatter(uneven(whole, &lengths), op).unwrap());
            Box::new(|| {})
        }
    }
}

/// Begins a call of each kind. The expected result comes from the blocking calls of `twin`, which has the same ranks.
fn begin(group: &ProcessGroup, twin: &ProcessGroup, kind: usize, seed: usize) -> Check {
    let root = seed % group.size();
    let at_root = group.rank() == root;
    let Given { lengths, mine, whole, gives, blocks } = Given::new(group, seed);
    let mut output = vec![0; lengths[group.rank()]];
    let mut summed = mine.clone();
    match kind {
        0 => {
            let (all, lengths) = twin.all_gather_v(&mine).unwrap();
            check(group.begin().all_gather_v(mine.clone()).unwrap(), (mine, (all, lengths)))
        }
        1 => {
            let (all, lengths) = twin.gather_v(&mine, root).unwrap();
            check(group.begin().gather_v(mine.clone(), root).unwrap(), (mine, (all, lengths)))
        }
        2 => {
            let (whole, lengths) = if at_root { (whole, lengths) } else { (vec![-1; seed % 3], Vec::new()) };
            let block = twin.scatter_v(&whole, &lengths, root).unwrap();
            check(group.begin().scatter_v(whole.clone(), &lengths, root).unwrap(), (whole, block))
        }
        3 => {
            let op = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::PreMulSum(3.0)][seed % 3];
            let work =
                group.begin().reduce_scatter(uneven((whole.clone(), output.clone()), &lengths), op).unwrap();
            twin.reduce_scatter(uneven((&whole, &mut output), &lengths), op).unwrap();
            check(work, (whole, output))
        }
        4 => {
            let (got, gets) = twin.all_to_all_v(&blocks, &gives).unwrap();
            check(group.begin().all_to_all_v(blocks.clone(), &gives).unwrap(), (blocks, (got, gets)))
        }
        5 => {
            let mut buffer = group.buffer::<i64>(mine.len()).unwrap();
            buffer.copy_from_slice(&mine);
            let work = group.begin().all_gather_v(buffer).unwrap();
            let wanted = twin.all_gather_v(&mine).unwrap();
            Box::new(move || {
                let (buffer, got) = work.wait().unwrap();
                assert_eq!((&buffer[..], got), (&mine[..], wanted));
            })
        }
        6 => {
            summed.resize(90, 5);
            let work = group.begin().all_reduce(summed.clone(), ReduceOp::Sum).unwrap();
            twin.all_reduce(&mut summed, ReduceOp::Sum).unwrap();
            check(work, summed)
        }
        // No thread waits for these.
        7 => {
            drop(group.begin().all_gather_v(mine).unwrap());
            Box::new(|| {})
        }
        8 => {
            std::mem::forget(group.begin().all_to_all_v(blocks, &gives).unwrap());
            Box::new(|| {})
        }
        // A rank may wait or not, whatever the others do.
        9 => {
            let wanted = twin.all_gather_v(&mine).unwrap();
            if (group.rank() + seed).is_multiple_of(2) {
                assert_eq!(group.all_gather_v(&mine).unwrap(), wanted);
                return Box::new(|| {});
            }
            let work = group.begin().all_gather_v(mine.clone()).unwrap();
            check(work, (mine, wanted))
        }
        10 => {
            group.barrier().unwrap();
            Box::new(|| {})
        }
        11 => {
            let mut output = vec![0; 2 * group.size()];
            group.all_gather((&[1_u8, 2], &mut output)).unwrap();
            assert_eq!(output, [1, 2].repeat(group.size()));
            Box::new(|| {})
        }
        _ => begin_in_place(group, twin, kind - 12, seed),
    }
}

const KINDS: usize = 12 + 8;

#[test]
fn each_does_what_its_blocking_form_does() {
    for ranks in [1, 2, 3, 5] {
        world(ranks, small, |group| {
            let twin = group.new_group(&(0..ranks).collect::<Vec<_>>()).unwrap().unwrap();
            for seed in 0..14 {
                (0..KINDS).for_each(|kind| begin(&group, &twin, kind, seed)());
            }
        });
    }
}

#[test]
fn any_number_is_under_way_among_all_other_calls() {
    let cases = prop::collection::vec((0..KINDS, 0..50_usize, any::<bool>()), 1..60);
    let config = ProptestConfig { cases: 12, ..ProptestConfig::default() };
    let run = |calls: Vec<(usize, usize, bool)>| {
        world(3, small, |group| {
            let twin = group.new_group(&[0, 1, 2]).unwrap().unwrap();
            let other = group.split(Some(0), 0).unwrap().unwrap();
            let begun = |&(kind, seed, first)| begin(if first { &group } else { &other }, &twin, kind, seed);
            let checks: Vec<Check> = calls.iter().map(begun).collect();
            wait_in_this_ranks_order(group.rank(), checks);
            group.barrier().unwrap();
        });
        Ok(())
    };
    TestRunner::new(config).run(&cases, run).unwrap();
}

#[test]
fn groups_end_while_calls_go_on() {
    world(3, small, |group| {
        for round in 0..20 {
            let part = group.new_group(&[2, 1, 0]).unwrap().unwrap();
            let work = part.begin().all_gather_v(given(part.rank(), round, 300 + part.rank())).unwrap();
            drop(part.begin().all_to_all_v(vec![1_u8; 600], &[100, 200, 300]).unwrap());
            drop(part);
            let wanted: Vec<i64> = (0..3).flat_map(|rank| given(rank, round, 300 + rank)).collect();
            assert_eq!(block_on(work).unwrap().1.0, wanted);
        }
        let work = group.begin().all_gather_v(given(group.rank(), 0, 9)).unwrap();
        drop(group.begin().all_gather_v(given(group.rank(), 0, 900)).unwrap());
        group.leave().unwrap();
        assert_eq!(work.wait().unwrap().1.1, [9; 3]);
    });
}

#[test]
fn what_is_wrong_with_arguments_is_told_at_once() {
    world(2, small, |group| {
        let text_of = |error: Error| match error {
            Error::Argument { call, problem } => format!("{call}: {problem}"),
            other => panic!("{other}"),
        };
        let error = group.begin().gather_v(vec![0_u8], 2).unwrap_err();
        assert_eq!(text_of(error), "gather_v: the root is rank 2; there are ranks 0 to 1");
        let error = group.begin().all_to_all_v(vec![0_u8; 3], &[1, 1]).unwrap_err();
        assert_eq!(text_of(error), "all_to_all_v: the lengths add up to 2, and there are 3 elements");
        let error =
            group.begin().reduce_scatter(uneven(vec![0.5_f32; 2], &[1, 1]), ReduceOp::BitAnd).unwrap_err();
        assert!(text_of(error).starts_with("reduce_scatter: "));
        let (three, mut data) = (|| vec![0_u8; 3], [0_u8; 3]);
        let same = |begun: Error, called: Error| assert_eq!(text_of(begun), text_of(called));
        same(
            group.begin().all_gather(uneven(three(), &[1, 1])).unwrap_err(),
            group.all_gather(uneven(&mut data, &[1, 1])).unwrap_err(),
        );
        same(
            group.begin().all_to_all(uneven(three(), &[3])).unwrap_err(),
            group.all_to_all(uneven(&mut data, &[3])).unwrap_err(),
        );
        // The root may be this rank, or a rank that does not exist.
        for root in [group.rank(), 2] {
            same(
                group.begin().gather(uneven(three(), &[usize::MAX, 4]), root).unwrap_err(),
                group.gather(uneven(&mut data, &[usize::MAX, 4]), root).unwrap_err(),
            );
            same(
                group.begin().scatter(uneven(three(), &[1, 1]), root).unwrap_err(),
                group.scatter(uneven(&mut data, &[1, 1]), root).map(drop).unwrap_err(),
            );
        }
        let half = ReduceOp::PreMulSum(0.5);
        same(
            group.begin().reduce_scatter(uneven(three(), &[1, 2]), half).unwrap_err(),
            group.reduce_scatter(uneven(&mut data, &[1, 2]), half).map(drop).unwrap_err(),
        );
        // None of these calls has begun.
        assert_eq!(group.usage().operations, 0);
        assert_eq!(group.all_gather_v(&[1_u8]).unwrap().1, [1, 1]);
        assert_eq!(group.usage().operations, 2);
    });
}

#[test]
fn lengths_that_do_not_fit_are_a_mismatch_as_of_the_blocking_call() {
    for blocking in [0, 1, 2, 3] {
        let failures = world(3, small, |group| {
            let counts = [2, 2, 2 - group.rank() / 2];
            let (input, mut output) = (vec![1_i32; counts.iter().sum()], vec![0; counts[group.rank()]]);
            // Some ranks wait at once, and some later.
            let failed = if group.rank() < blocking {
                group.reduce_scatter(uneven((&input, &mut output), &counts), ReduceOp::Sum).unwrap_err()
            } else {
                // The others may have found the mismatch already: then the call itself returns it.
                let work = group.begin().reduce_scatter(uneven((input, output), &counts), ReduceOp::Sum);
                let next = group.begin().all_gather_v(vec![1_u8]).and_then(Work::wait);
                let failed = work.and_then(Work::wait).unwrap_err();
                assert_eq!(next.unwrap_err().to_string(), failed.to_string());
                failed
            };
            assert_eq!(group.barrier().unwrap_err().to_string(), failed.to_string());
            // Ranks 0 and 1 have the same lengths, so the failure may name either.
            failed.to_string().replace("rank 1 was", "rank 0 was")
        });
        let wanted = "op 0 reduce_scatter_v(i32, sum): rank 0 was given lengths of blocks that hash to 77d4e7d4, the longest of 2 \
                      elements, rank 2 was given lengths of blocks that hash to 77d4e801, the longest of 2 elements";
        assert_eq!(failures, [wanted; 3], "{blocking} wait at once");
    }
}

#[test]
fn room_that_does_not_fit_is_a_mismatch_on_whichever_rank() {
    for blocking in [0, 1, 2, 3] {
        let failures = world(3, small, |group| {
            let mut data = vec![0_u8; [4, 3, 2][group.rank()]];
            let lengths = [1, 1, 2];
            let failed = if group.rank() < blocking {
                group.scatter(uneven(&mut data, &lengths), 0).map(drop)
            } else {
                group.begin().scatter(uneven(data, &lengths), 0).and_then(Work::wait).map(drop)
            };
            failed.and_then(|()| group.barrier()).unwrap_err().to_string()
        });
        let wanted = "op 0 scatter_v(u8, root 0): rank 0 has 1 elements for rank 1, rank 1 expects 3 elements of rank 0";
        assert_eq!(failures, [wanted; 3], "{blocking} wait at once");
    }
}

#[test]
fn a_rank_that_calls_something_else_is_named() {
    let failures = world(2, small, |group| {
        let failed = match group.rank() {
            0 => group.begin().all_gather_v(vec![1_u8]).unwrap().wait().map(drop),
            _ => group.begin().all_gather((vec![1_u8], vec![0; 2])).unwrap().wait().map(drop),
        };
        failed.unwrap_err().to_string()
    });
    assert_eq!(failures, ["op 0: rank 0 calls all_gather_v(u8), rank 1 calls all_gather(u8)"; 2]);
}

#[test]
fn no_memory_for_what_comes_ends_the_group_for_all() {
    let failures = world(2, small, |group| {
        let failed = match group.rank() {
            0 => group.begin().all_gather_v(vec![1_u8]).unwrap().wait().map(drop),
            // This rank says that it has more elements than there can be.
            _ => {
                let call = group.handle.uneven::<u8>(Collective::AllGather, 0).unwrap();
                // The other rank may have given up before it gets the message of this one.
                let _ = group.handle.now(async |sequence| call.on(sequence).everyone(1 << 62).await);
                group.barrier()
            }
        };
        failed.unwrap_err().to_string()
    });
    let wanted =
        "rank 0 aborted the group: all_gather_v: no memory for the 4611686018427387905 bytes that come here";
    assert_eq!(failures, [wanted; 2]);
}
