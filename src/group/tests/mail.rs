//! Objects and tensors from point to point: they arrive as they were, and what does not fit is said.

use std::collections::BTreeMap;

use super::{
    messages::worlds,
    tensors::{all_bits, owned, packed, views},
    *,
};
use crate::Source;

type Thing = (String, Option<Vec<f64>>, BTreeMap<u8, Vec<()>>);

/// Of a size that grows with the seed: in one message, or after a grant.
fn thing(seed: usize) -> Thing {
    let map = (0..seed % 7).map(|key| (key as u8, vec![(); key * 9])).collect();
    ("x".repeat(seed), (!seed.is_multiple_of(3)).then(|| vec![0.5; seed * seed]), map)
}

#[test]
fn objects_arrive_as_they_were() {
    worlds(3, |group| {
        let (rank, next, before) = (group.rank(), (group.rank() + 1) % 3, (group.rank() + 2) % 3);
        for seed in [0, 1, 5, 40, 100] {
            // All send first; to itself too.
            group.send_object(&thing(seed + rank), next, 2).unwrap();
            group.send_object("to myself", rank, 3).unwrap();
            assert_eq!(group.recv_object::<Thing>(Source::Any, 2).unwrap(), (thing(seed + before), before));
            assert_eq!(group.recv_object::<String>(rank, 3).unwrap(), ("to myself".to_owned(), rank));
        }
    });
}

#[test]
fn objects_of_another_type_are_said_where_they_are_wanted() {
    world(2, small, |group| {
        if group.rank() == 0 {
            group.send_object(&"seven", 1, 0).unwrap();
            group.send_object(&7_u8, 1, 0).unwrap();
        } else {
            let error = group.recv_object::<u8>(0, 0).unwrap_err();
            let words = ["recv_object: the u8 of rank 0:"];
            words.iter().for_each(|words| assert!(error.to_string().contains(words), "{error}"));
            // The group goes on.
            assert_eq!(group.recv_object::<u8>(0, 0).unwrap(), (7, 0));
        }
        group.barrier().unwrap();
    });
}

#[test]
fn objects_have_a_limit() {
    let limited = |config: &mut Config| {
        small(config);
        config.object_limit = 1000;
    };
    world(2, limited, |group| {
        if group.rank() == 0 {
            let error = group.send_object(&vec!["x"; 1000], 1, 0).unwrap_err();
            assert!(matches!(error, Error::Object { call: "send_object", rank: 0, .. }), "{error}");
            group.send_object(&"short", 1, 0).unwrap();
        } else {
            // Nothing came of the first.
            assert_eq!(group.recv_object::<String>(0, 0).unwrap().0, "short");
        }
    });
}

#[test]
fn tensors_arrive_as_they_were() {
    worlds(3, |group| {
        let (rank, next, before) = (group.rank(), (group.rank() + 1) % 3, (group.rank() + 2) % 3);
        for count in [0, 1, 2, 9, 25] {
            let (mine, theirs) = (owned(rank + count, count), owned(before + count, count));
            group.send_tensors(&views(&mine), next, 4).unwrap();
            let (got, from) = group.recv_tensors(Source::Any, 4).unwrap();
            assert_eq!(from, before);
            assert_eq!(all_bits(&got), packed(&views(&theirs)));
        }
    });
}

/// Elements find their tensors although several threads send with one tag, and others receive with it.
#[test]
fn tensors_of_several_threads_do_not_mix() {
    worlds(2, |group| {
        let (mine, theirs) = (owned(group.rank(), 9), owned(1 - group.rank(), 9));
        let (mine, theirs) = (views(&mine), packed(&views(&theirs)));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..5).for_each(|_| group.send_tensors(&mine, 1 - group.rank(), 0).unwrap()));
                scope.spawn(|| {
                    for _ in 0..5 {
                        assert_eq!(all_bits(&group.recv_tensors(Source::Any, 0).unwrap().0), theirs);
                    }
                });
            }
        });
    });
}

#[test]
fn one_sort_of_message_is_not_taken_for_another() {
    type Call = fn(&ProcessGroup) -> Result<()>;
    let cases: [(Call, Call, &str); 3] = [
        (
            |group| group.send_object(&1_u8, 1, 6),
            |group| group.recv(&mut [0_u8; 2], 0, 6).map(drop),
            "rank 0 sends an object, rank 1 receives 2 u8 elements",
        ),
        (
            |group| group.send(&[1_u8; 2], 1, 6),
            |group| group.recv_object::<u8>(Source::Any, 6).map(drop),
            "rank 0 sends 2 u8 elements, rank 1 receives an object",
        ),
        (
            |group| group.send_tensors(&[], 1, 6),
            |group| group.recv_vec::<u8>(0, 6).map(drop),
            "rank 0 sends tensors, rank 1 receives u8 elements",
        ),
    ];
    for (zero, one, wanted) in cases {
        let told = world(2, small, |group| {
            let done = if group.rank() == 0 { zero(&group) } else { one(&group) };
            done.and_then(|()| group.barrier()).unwrap_err().to_string()
        });
        assert_eq!(told[0], told[1]);
        assert!(told[0].ends_with(wanted), "{}", told[0]);
    }
}
