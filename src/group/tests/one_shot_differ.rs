//! Ranks that make different calls, some of them in one shot: all get the same failure, in the words of any mismatch, even if no rank waits
//! for the rank that makes another call.

use std::sync::Barrier;

use super::*;
use crate::TensorViewMut;

type Call = fn(&ProcessGroup) -> Result<()>;

/// Calls, each with the words for it in a mismatch.
const CALLS: [(&str, Call); 18] = [
    ("all_reduce(f32, sum)", |it| it.all_reduce(&mut [0_f32; 10], ReduceOp::Sum)),
    ("all_reduce(f64, sum)", |it| it.all_reduce(&mut [0_f64; 10], ReduceOp::Sum)),
    ("all_reduce(f32, max)", |it| it.all_reduce(&mut [0_f32; 10], ReduceOp::Max)),
    ("all_reduce(f32, sum)", |it| it.all_reduce(&mut [0_f32; 9], ReduceOp::Sum)),
    ("all_gather(f32)", |it| it.all_gather((&[0_f32; 10], &mut vec![0_f32; 10 * it.size()]))),
    ("all_to_all(f32)", |it| it.all_to_all((&vec![0_f32; 10 * it.size()], &mut vec![0_f32; 10 * it.size()]))),
    ("reduce_scatter(f32, sum)", |it| {
        it.reduce_scatter((&vec![0_f32; 10 * it.size()], &mut [0_f32; 10]), ReduceOp::Sum)
    }),
    ("barrier()", ProcessGroup::barrier),
    ("broadcast(f32, root 0)", |it| it.broadcast(&mut [0_f32; 10], 0)),
    ("broadcast(f32, root 1)", |it| it.broadcast(&mut [0_f32; 10], 1)),
    ("reduce(f32, sum, root 0)", |it| it.reduce(&mut [0_f32; 10], ReduceOp::Sum, 0)),
    ("reduce(f32, sum, root 1)", |it| it.reduce(&mut [0_f32; 10], ReduceOp::Sum, 1)),
    ("gather(f32, root 0)", |it| {
        it.gather((&[0_f32; 10], &mut vec![0_f32; if it.rank() == 0 { 10 * it.size() } else { 0 }]), 0)
    }),
    ("scatter(f32, root 1)", |it| {
        it.scatter((&vec![0_f32; if it.rank() == 1 { 10 * it.size() } else { 0 }], &mut [0_f32; 10]), 1)
    }),
    // These take messages.
    ("all_reduce", |it| it.all_reduce(&mut vec![0_f32; 100_000], ReduceOp::Sum)),
    ("broadcast(f32, root 0)", |it| it.broadcast(&mut vec![0_f32; 100_000], 0)),
    ("all_gather", |it| it.all_gather_v(&[0_f32; 10]).map(drop)),
    ("all_reduce_coalesced(f32, sum)", |it| {
        let mut data = [0_f32; 10];
        it.all_reduce_coalesced(&mut [TensorViewMut::new(&mut data, &[10]).unwrap()], ReduceOp::Sum)
    }),
];

/// The group in which ranks call.
#[derive(Clone, Copy, Debug)]
enum Place {
    Whole,
    /// A group of all ranks, which they leave before they leave the world.
    Part,
}

/// The failure of all ranks if the last one calls `theirs` and the others `ours`, after this many equal calls.
fn failure_of(ranks: usize, place: Place, before: usize, ours: Call, theirs: Call) -> String {
    told_alike(ranks, |group| {
        let all: Vec<Rank> = (0..ranks).collect();
        let part = match place {
            Place::Whole => group.with_algorithms("direct")?,
            Place::Part => group.new_group(&all)?.unwrap().with_algorithms("direct")?,
        };
        for _ in 0..before {
            part.barrier()?;
        }
        if group.rank() == ranks - 1 { theirs(&part) } else { ours(&part) }
    })
}

/// The failure that all ranks get, soon and in the same words, if they do this and leave.
pub(super) fn told_alike(ranks: usize, act: impl Fn(&ProcessGroup) -> Result<()> + Sync) -> String {
    let patient = |config: &mut Config| config.timeout = Duration::from_secs(60);
    let (begun, met) = (Instant::now(), Barrier::new(ranks));
    let messages = world(ranks, patient, |group| {
        // A rank that has not joined yet would get the failure from joining.
        met.wait();
        match act(&group).and_then(|()| group.leave()) {
            Err(Error::Failed(failure @ (Failure::Mismatch { .. } | Failure::Left { .. }))) => {
                failure.to_string()
            }
            other => format!("{other:?}"),
        }
    });
    assert!(messages.iter().all(|it| *it == messages[0]), "{messages:?}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}: {}", begun.elapsed(), messages[0]);
    messages[0].clone()
}

/// The test makes all pairs of calls; the last rank makes either of them.
#[test]
fn whatever_is_called_beside_a_call_in_one_shot_all_are_told() {
    let cases = [(Place::Whole, 1, 2), (Place::Part, 1, 3), (Place::Whole, 0, 3), (Place::Part, 2, 2)];
    for (case, (place, before, ranks)) in cases.into_iter().enumerate() {
        for (first, &one) in CALLS.iter().enumerate() {
            for (second, &other) in CALLS.iter().enumerate().skip(first + 1) {
                let (ours, theirs) =
                    if (first + second + case).is_multiple_of(2) { (one, other) } else { (other, one) };
                let message = failure_of(ranks, place, before, ours.1, theirs.1);
                // A rank that waits for no other may be in its next call when the mismatch is found.
                let [ours_told, theirs_told] = [ours.0, theirs.0].map(|words| message.contains(words));
                let right = if message.contains("is at op") {
                    ours_told || theirs_told
                } else {
                    ours_told && theirs_told
                };
                assert!(
                    right,
                    "{place:?}, {before}, {ranks} ranks, {} beside {}: {message}",
                    ours.0, theirs.0
                );
            }
        }
    }
}

#[test]
fn a_rank_that_leaves_beside_a_call_in_one_shot_is_told() {
    for (words, ours) in CALLS {
        let cases = [
            (Place::Whole, 1, 2),
            (Place::Part, 1, 3),
            (Place::Part, 2, 2),
            // The rank has exchanged nothing with any member.
            (Place::Part, 0, 2),
            (Place::Part, 0, 3),
        ];
        for (place, before, ranks) in cases {
            let message = failure_of(ranks, place, before, ours, |_| Ok(()));
            let leaves = ["leave()", "has left"].iter().any(|words| message.contains(words));
            assert!(leaves, "{place:?}, {before}, {words}: {message}");
        }
    }
}
