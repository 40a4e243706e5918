//! Uneven blocks, against a loop; and the failures of lengths that do not fit together.

use super::{small, world};
use crate::{Error, Failure, ProcessGroup, ReduceOp, uneven};

/// The length of one rank's block for another: 0, 1 or many elements, by the seed.
fn length(seed: usize, from: usize, to: usize) -> usize {
    [0, 1, 3, 64, 700, 0, 9][(seed * 5 + from * 3 + to * 2) % 7]
}

/// An element of one rank's block for another.
fn element(from: usize, to: usize, at: usize) -> i64 {
    i64::try_from(from * 1_000_000 + to * 10_000 + at).unwrap()
}

fn block(seed: usize, from: usize, to: usize) -> Vec<i64> {
    (0..length(seed, from, to)).map(|at| element(from, to, at)).collect()
}

fn all(seed: usize, group: &ProcessGroup) {
    let (me, ranks) = (group.rank(), group.size());
    let everyone = || 0..ranks;
    let root = seed % ranks;
    // Each rank's own block, if it has one block for all.
    let own = |rank| block(seed, rank, rank);
    let lengths: Vec<usize> = everyone().map(|rank| length(seed, rank, rank)).collect();
    let before: usize = lengths[..me].iter().sum();
    let mine = before..before + lengths[me];
    let together: Vec<i64> = everyone().flat_map(own).collect();

    assert_eq!(group.all_gather_v(&own(me)).unwrap(), (together.clone(), lengths.clone()));
    let mut data = vec![-1; together.len()];
    data[mine.clone()].copy_from_slice(&own(me));
    group.all_gather(uneven(&mut data, &lengths)).unwrap();
    assert_eq!(data, together);

    let here = if me == root { together.clone() } else { Vec::new() };
    assert_eq!(group.gather_v(&own(me), root).unwrap(), (here, lengths.clone()));
    let mut data = if me == root { vec![-1; together.len()] } else { own(me) };
    if me == root {
        data[mine.clone()].copy_from_slice(&own(me));
    }
    group.gather(uneven(&mut data, &lengths), root).unwrap();
    assert_eq!(data, if me == root { together } else { own(me) });

    let input: Vec<i64> = everyone().flat_map(|to| block(seed, to, to)).collect();
    let (given, known): (&[i64], &[usize]) = if me == root { (&input, &lengths) } else { (&[], &[]) };
    assert_eq!(group.scatter_v(given, known, root).unwrap(), own(me));
    let mut data = if me == root { input.clone() } else { vec![-1; lengths[me]] };
    assert_eq!(group.scatter(uneven(&mut data, known), root).unwrap(), own(me));

    // All ranks give the same numbers, each multiplied by its number.
    let input: Vec<i64> = input.iter().map(|it| it * i64::try_from(me + 1).unwrap()).collect();
    let sum = i64::try_from(ranks * (ranks + 1) / 2).unwrap();
    let wanted: Vec<i64> = own(me).iter().map(|it| it * sum).collect();
    let mut output = vec![-1; lengths[me]];
    group.reduce_scatter(uneven((&input, &mut output), &lengths), ReduceOp::Sum).unwrap();
    assert_eq!(output, wanted);
    let mut data = input.clone();
    assert_eq!(group.reduce_scatter(uneven(&mut data, &lengths), ReduceOp::Sum).unwrap(), wanted);
    group.reduce_scatter(uneven((&input, &mut output), &lengths), ReduceOp::PreMulSum(2.0)).unwrap();
    assert_eq!(output, wanted.iter().map(|it| it * 2).collect::<Vec<_>>());

    let gives: Vec<usize> = everyone().map(|to| length(seed, me, to)).collect();
    let input: Vec<i64> = everyone().flat_map(|to| block(seed, me, to)).collect();
    let gets: Vec<usize> = everyone().map(|from| length(seed, from, me)).collect();
    let wanted: Vec<i64> = everyone().flat_map(|from| block(seed, from, me)).collect();
    assert_eq!(group.all_to_all_v(&input, &gives).unwrap(), (wanted.clone(), gets.clone()));
    let mut output = vec![-1; wanted.len()];
    group.all_to_all(uneven((&input, &mut output), &gives).gets(&gets)).unwrap();
    assert_eq!(output, wanted);
    // In place, each two ranks have equally long blocks for each other.
    let pair = |one: usize, other: usize| length(seed, one.min(other), one.max(other));
    let lengths: Vec<usize> = everyone().map(|other| pair(me, other)).collect();
    let of = |from, to| (0..pair(from, to)).map(move |at| element(from, to, at));
    let mut data: Vec<i64> = everyone().flat_map(|to| of(me, to)).collect();
    group.all_to_all(uneven(&mut data, &lengths)).unwrap();
    assert_eq!(data, everyone().flat_map(|from| of(from, me)).collect::<Vec<_>>());
}

#[test]
fn blocks_of_all_lengths_arrive() {
    for ranks in [1, 2, 3, 5] {
        world(ranks, small, |group| (0..7).for_each(|seed| all(seed, &group)));
        world(ranks, |_| {}, |group| all(4, &group));
    }
}

#[test]
fn lengths_that_do_not_fit_are_the_callers_error() {
    world(2, small, |group| {
        let error = |result: crate::Result<()>| match result.unwrap_err() {
            Error::Argument { call, problem } => format!("{call}: {problem}"),
            other => panic!("{other}"),
        };
        let to_all = |input: &[u8], lengths: &[usize]| group.all_to_all_v(input, lengths).map(drop);
        assert_eq!(error(to_all(&[1, 2], &[2])), "all_to_all_v: 1 lengths were given; there are 2 ranks");
        let words = "all_to_all_v: the lengths add up to 3, and there are 2 elements";
        assert_eq!(error(to_all(&[1, 2], &[2, 1])), words);
        let words = "all_to_all_v: the lengths add up to more than can be addressed";
        assert_eq!(error(to_all(&[1, 2], &[usize::MAX, 3])), words);
        let mut data = [1_u8, 2, 3];
        assert!(error(group.all_gather(uneven(&mut data, &[1, 1]))).contains("add up to 2"));
        assert!(error(group.gather_v(&data, 2).map(drop)).contains("the root is rank 2"));
        if group.rank() == 1 {
            assert!(error(group.scatter_v(&data, &[1, 1], 1).map(drop)).contains("there are 3 elements"));
        }
        // The group still works.
        assert_eq!(group.all_gather_v(&data[..=group.rank()]).unwrap().1, [1, 2]);
    });
}

#[test]
fn lengths_on_which_ranks_disagree_are_a_mismatch_for_all() {
    let mismatch = |of: fn(&ProcessGroup) -> crate::Result<()>, wanted: &str| {
        let ranks = if wanted.contains("calls") { 2 } else { 3 };
        // After a barrier no rank is still joining.
        let each =
            |group: ProcessGroup| group.barrier().and_then(|()| of(&group)).and_then(|()| group.barrier());
        for result in world(ranks, small, each) {
            match result.unwrap_err() {
                // Ranks 0 and 1 may have the same lengths, so the failure may name either.
                Error::Failed(failure @ Failure::Mismatch { .. }) => {
                    assert_eq!(failure.to_string().replace("rank 1 was", "rank 0 was"), wanted);
                }
                other => panic!("{other}"),
            }
        }
    };
    mismatch(
        |group| {
            let lengths = if group.rank() == 2 { [1, 2, 1] } else { [1, 1, 1] };
            group.all_gather(uneven(&mut vec![0_u8; lengths.iter().sum()], &lengths))
        },
        "op 1 all_gather_v(u8): rank 0 was given lengths of blocks that hash to bb6e6cb7, the longest of 1 elements, rank 2 was given \
         lengths of blocks that hash to fec92837, the longest of 2 elements",
    );
    mismatch(
        |group| {
            let counts = [2, 2, 2 - group.rank() / 2];
            let (input, mut output) = (vec![1; counts.iter().sum()], vec![0_u8; counts[group.rank()]]);
            group.reduce_scatter(uneven((&input, &mut output), &counts), ReduceOp::Sum)
        },
        "op 1 reduce_scatter_v(u8, sum): rank 0 was given lengths of blocks that hash to 77d4e7d4, the longest of 2 elements, rank 2 was \
         given lengths of blocks that hash to 77d4e801, the longest of 2 elements",
    );
    mismatch(
        |group| {
            let mut data =
                vec![0_u8; if group.rank() == 1 { 3 } else { 2 + 2 * usize::from(group.rank() == 0) }];
            group.scatter(uneven(&mut data, &[1, 1, 2]), 0).map(drop)
        },
        "op 1 scatter_v(u8, root 0): rank 0 has 1 elements for rank 1, rank 1 expects 3 elements of rank 0",
    );
    // A rank that calls something else learns which call it met.
    mismatch(
        |group| match group.rank() {
            1 => group.all_gather((&[1_u8], &mut [0; 2])),
            _ => group.all_gather_v(&[1_u8]).map(drop),
        },
        "op 1: rank 0 calls all_gather_v(u8), rank 1 calls all_gather(u8)",
    );
}
