//! Objects: the values that arrive, the errors of values that cannot be sent or have another type, and that the group still works
//! afterwards.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

use super::{hear, small, world};
use crate::{Error, Failure, ProcessGroup, error::Result, object::ObjectError};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Thing {
    Nothing,
    Words(Vec<String>),
    Table { rows: BTreeMap<(u8, Option<bool>), f64> },
}

/// A different value for every rank: some of one byte, some longer than a message.
pub(super) fn thing(seed: usize, rank: usize) -> Thing {
    match (seed + rank) % 4 {
        0 => Thing::Nothing,
        1 => Thing::Words(vec!["word".repeat(rank); 700 * seed]),
        2 => Thing::Words(vec![String::new(), seed.to_string()]),
        _ => Thing::Table { rows: (0..seed as u8).map(|row| ((row, Some(rank > 1)), 0.5)).collect() },
    }
}

fn all(seed: usize, group: &ProcessGroup) {
    let (me, ranks) = (group.rank(), group.size());
    let root = seed % ranks;
    let everyones: Vec<Thing> = (0..ranks).map(|rank| thing(seed, rank)).collect();
    let value = (me == root).then(|| thing(seed, root));
    assert_eq!(group.broadcast_object(value, root).unwrap(), everyones[root]);
    let gathered = group.gather_object(&everyones[me], root).unwrap();
    assert_eq!(gathered, (me == root).then(|| everyones.clone()));
    assert_eq!(group.all_gather_object(&everyones[me]).unwrap(), everyones);
    let values = (me == root).then(|| everyones.clone());
    assert_eq!(group.scatter_object(values, root).unwrap(), everyones[me]);
}

#[test]
fn values_of_all_sizes_arrive() {
    for ranks in 1..=5 {
        world(ranks, small, |group| (0..5).for_each(|seed| all(seed, &group)));
    }
    world(3, |_| {}, |group| (0..4).for_each(|seed| all(seed, &group)));
}

#[test]
fn lists_are_values_and_may_be_of_any_length() {
    // Some lengths are around that of the first message of a broadcast.
    for ranks in [1, 2, 5] {
        world(ranks, small, |group| {
            let me = group.rank();
            for seed in [0, 1, 2, 500, 501, 502, 503, 504, 505, 600, 5000] {
                let list = |rank: usize| -> Vec<u8> { vec![7; (seed + rank) * usize::from(rank != 2)] };
                let root = seed % group.size();
                let value = (me == root).then(|| list(root));
                assert_eq!(group.broadcast_object(value, root).unwrap(), list(root));
                let lists: Vec<_> = (0..group.size()).map(list).collect();
                assert_eq!(group.all_gather_object(&list(me)).unwrap(), lists);
                assert_eq!(
                    group.gather_object(&list(me), root).unwrap(),
                    (me == root).then(|| lists.clone())
                );
                assert_eq!(group.scatter_object(Some(lists), root).unwrap(), list(me));
            }
        });
    }
}

/// A value that cannot be encoded on one rank; on others it is a number.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(transparent)]
pub(super) struct Stubborn(pub usize);

impl Serialize for Stubborn {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        if self.0 == 1 {
            return Err(serde::ser::Error::custom("it will not"));
        }
        serializer.serialize_u64(self.0 as u64)
    }
}

/// The rank of the object, and the error of the object.
pub(super) fn object<T: std::fmt::Debug>(result: Result<T>) -> (usize, ObjectError) {
    match result.unwrap_err() {
        Error::Object { rank, problem, .. } => (rank, problem),
        other => panic!("{other}"),
    }
}

#[test]
fn a_value_that_cannot_be_sent_is_an_error_of_all_ranks_and_the_group_still_works() {
    world(3, small, |group| {
        let me = group.rank();
        let own = || ObjectError::Value { problem: "it will not".to_owned() };
        let wanted = || if me == 1 { (1, own()) } else { (1, ObjectError::Unsent) };
        assert_eq!(object(group.all_gather_object(&Stubborn(me))), wanted());
        assert_eq!(object(group.gather_object(&Stubborn(me), 2)), wanted());
        assert_eq!(object(group.broadcast_object(Some(Stubborn(1)), 1)), wanted());
        let values = || Some(vec![Stubborn(1), Stubborn(0), Stubborn(2)]);
        assert_eq!(object(group.scatter_object(values(), 1)), wanted());
        // The same holds if the value is the root's.
        let wanted = if me == 0 { (0, own()) } else { (0, ObjectError::Unsent) };
        assert_eq!(object(group.scatter_object(values(), 0)), wanted);
        group.barrier().unwrap();

        let argument = |result: Result<Stubborn>, words: &str| match (me, result.unwrap_err()) {
            (2, Error::Argument { call, problem }) => assert_eq!(format!("{call}: {problem}"), words),
            (0 | 1, Error::Object { rank: 2, problem: ObjectError::Unsent, .. }) => {}
            (_, other) => panic!("{other}"),
        };
        let words = "broadcast_object: this rank is the root and gave None; the root must give a value";
        argument(group.broadcast_object(None, 2), words);
        argument(
            group.scatter_object(None, 2),
            "scatter_object: this rank is the root and gave None; the root must give values",
        );
        argument(
            group.scatter_object(Some(vec![Stubborn(2); 2]), 2),
            "scatter_object: 2 values were given; there are 3 ranks",
        );
        let error = group.broadcast_object(Some(0_u8), 3).unwrap_err().to_string();
        assert_eq!(error, "broadcast_object: the root is rank 3; there are ranks 0 to 2");
        assert_eq!(group.all_gather_object(&me).unwrap(), [0, 1, 2]);
    });
}

#[test]
fn objects_beyond_the_limit_are_refused_on_all_ranks() {
    let limited = |config: &mut crate::Config| {
        small(config);
        config.object_limit = 1000;
    };
    world(3, limited, |group| {
        let me = group.rank();
        let large = |rank: usize| vec![1_u8; if rank == 1 { 1000 } else { 997 }];
        let wanted = (1, ObjectError::TooLarge { bytes: 1003, limit: 1000 });
        assert_eq!(object(group.broadcast_object(Some(large(1)), 1)), wanted);
        assert_eq!(object(group.gather_object(&large(me), 0)), wanted);
        assert_eq!(object(group.all_gather_object(&large(me))), wanted);
        assert_eq!(object(group.scatter_object(Some((0..3).map(large).collect()), 0)), (0, wanted.1));
        // Each value has just the largest size.
        assert_eq!(group.all_gather_object(&large(0)).unwrap(), vec![large(0); 3]);
        let error = group.broadcast_object(Some(large(1)), 1).unwrap_err().to_string();
        let words = "broadcast_object: the alloc::vec::Vec<u8> of rank 1: it takes 1003 bytes, and at most 1000 may be sent";
        assert!(error.starts_with(words), "{error}");
    });
}

#[test]
fn another_type_is_an_error_where_it_is_wanted() {
    world(3, small, |group| {
        let me = group.rank();
        // Rank 1 decodes everything as text.
        let words = |rank: usize| {
            format!(
                "all_gather_object: the alloc::string::String of rank {rank}: invalid type: integer `300`, expected a string"
            )
        };
        if me == 1 {
            let error = group.all_gather_object(&"text".to_owned()).unwrap_err().to_string();
            assert_eq!(error, words(0));
        } else {
            let (rank, problem) = object(group.all_gather_object(&300_u32));
            assert_eq!(
                (rank, problem.to_string().as_str()),
                (1, "invalid type: string \"text\", expected u32")
            );
        }
        let given = (me == 0).then_some(-1_i64);
        if me == 2 {
            assert_eq!(object(group.broadcast_object(None::<u8>, 0)).0, 0);
        } else {
            assert_eq!(group.broadcast_object(given, 0).unwrap(), -1);
        }
        // A rank that got no error continues like the others.
        assert_eq!(group.all_gather_object(&me).unwrap(), [0, 1, 2]);
    });
}

#[test]
fn groups_of_some_ranks_name_those_of_the_world() {
    world(3, small, |group| {
        let Some(pair) = group.new_group(&[2, 1]).unwrap() else { return };
        assert_eq!(pair.all_gather_object(&group.rank()).unwrap(), [2, 1]);
        let (rank, _) = object(pair.all_gather_object(&Stubborn(group.rank())));
        assert_eq!(rank, 1);
    });
}

#[test]
fn who_calls_something_else_is_named() {
    type Call = fn(&ProcessGroup) -> Result<()>;
    let broadcast: Call = |group| group.broadcast(&mut [0_u8; 4], 0);
    let objects: Call = |group| group.broadcast_object(Some(1), 0).map(drop);
    let others: Call = |group| group.broadcast_object(Some(1), 1).map(drop);
    let gather: Call = |group| group.all_gather_object(&1).map(drop);
    let lengths: Call = |group| group.all_gather_v(&[1_u8]).map(drop);
    let scatter: Call = |group| group.scatter_object(Some(vec![1; 2]), 0).map(drop);
    for (one, other, wanted) in [
        (
            broadcast,
            objects,
            "op 0: rank 0 calls broadcast(u8, root 0), rank 1 calls broadcast_object(root 0)",
        ),
        (
            objects,
            others,
            "op 0: rank 0 calls broadcast_object(root 0), rank 1 calls broadcast_object(root 1)",
        ),
        (gather, lengths, "op 0: rank 0 calls all_gather_object(), rank 1 calls all_gather_v(u8)"),
        (scatter, gather, "op 0: rank 0 calls scatter_object(root 0), rank 1 calls all_gather_object()"),
    ] {
        let results = world(2, small, |group| {
            let call = if group.rank() == 0 { one } else { other };
            call(&group).and_then(|()| hear(&group))
        });
        for result in results {
            match result.unwrap_err() {
                Error::Failed(failure @ Failure::Mismatch { .. }) => assert_eq!(failure.to_string(), wanted),
                other => panic!("{other}"),
            }
        }
    }
}
