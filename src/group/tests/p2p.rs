//! Messages of objects and tensors arrive unchanged, and a mismatch is an error.

use std::collections::BTreeMap;

use super::{
    messages::worlds,
    tensors::{all_bits, owned, packed, views},
    *,
};
use crate::{Source, Tensor};

type Thing = (String, Option<Vec<f64>>, BTreeMap<u8, Vec<()>>);

/// A tensor whose size grows with the seed: sent at once, or after a clear to send.
fn thing(seed: usize) -> Thing {
    let map = (0..seed % 7).map(|key| (key as u8, vec![(); key * 9])).collect();
    ("x".repeat(seed), (!seed.is_multiple_of(3)).then(|| vec![0.5; seed * seed]), map)
}

#[test]
fn objects_arrive_as_they_were() {
    worlds(3, |group| {
        let (rank, next, before) = (group.rank(), (group.rank() + 1) % 3, (group.rank() + 2) % 3);
        for seed in [0, 1, 5, 40, 100] {
            // All ranks send first, and to themselves too.
            group.send_object(&thing(seed + rank), (next, 2)).unwrap();
            group.send_object("to myself", (rank, 3)).unwrap();
            assert_eq!(group.recv_object::<Thing>((Source::Any, 2)).unwrap(), (thing(seed + before), before));
            assert_eq!(group.recv_object::<String>((rank, 3)).unwrap(), ("to myself".to_owned(), rank));
        }
    });
}

#[test]
fn objects_of_another_type_are_an_error_of_the_receiver() {
    world(2, small, |group| {
        if group.rank() == 0 {
            group.send_object(&"seven", 1).unwrap();
            group.send_object(&7_u8, 1).unwrap();
        } else {
            let error = group.recv_object::<u8>(0).unwrap_err();
            let words = ["recv_object: the u8 of rank 0:"];
            words.iter().for_each(|words| assert!(error.to_string().contains(words), "{error}"));
            // The group still works.
            assert_eq!(group.recv_object::<u8>(0).unwrap(), (7, 0));
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
            let error = group.send_object(&vec!["x"; 1000], 1).unwrap_err();
            assert!(matches!(error, Error::Object { call: "send_object", rank: 0, .. }), "{error}");
            group.send_object(&"short", 1).unwrap();
        } else {
            // Nothing of the first object has arrived.
            assert_eq!(group.recv_object::<String>(0).unwrap().0, "short");
        }
    });
}

#[test]
fn tensors_arrive_as_they_were() {
    worlds(3, |group| {
        let (rank, next, before) = (group.rank(), (group.rank() + 1) % 3, (group.rank() + 2) % 3);
        for count in [0, 1, 2, 9, 25] {
            let (mine, theirs) = (owned(rank + count, count), owned(before + count, count));
            group.send_tensors(&views(&mine), (next, 4)).unwrap();
            let (got, from) = group.recv_tensors((Source::Any, 4)).unwrap();
            assert_eq!(from, before);
            assert_eq!(all_bits(&got), packed(&views(&theirs)));
        }
    });
}

#[test]
fn tensors_arrive_where_others_were() {
    worlds(3, |group| {
        let (rank, next, before) = (group.rank(), (group.rank() + 1) % 3, (group.rank() + 2) % 3);
        for count in [0, 1, 2, 9, 25] {
            let (mine, theirs) = (owned(rank + count, count), owned(before + count, count));
            // Half of them have their first and last dimension exchanged.
            let turned = |index: usize, shape: &[usize]| index.is_multiple_of(2) && !shape.is_empty();
            let theirs = views(&theirs);
            let places = theirs.iter().enumerate().map(|(index, tensor)| {
                let mut shape = tensor.shape().to_vec();
                if turned(index, &shape) {
                    let last = shape.len() - 1;
                    shape.swap(0, last);
                }
                Tensor::zeros(tensor.dtype(), &shape).unwrap()
            });
            let mut places: Vec<_> = places.collect();
            let into = places.iter_mut().enumerate().map(|(index, tensor)| {
                let view = tensor.view_mut();
                let last = view.shape().len().wrapping_sub(1);
                if turned(index, view.shape()) { view.transpose(0, last).unwrap() } else { view }
            });
            let mut into: Vec<_> = into.collect();
            group.send_tensors(&views(&mine), (next, 4)).unwrap();
            assert_eq!(group.recv_tensors_into(&mut into, (Source::Any, 4)).unwrap(), before);
            let got: Vec<_> = into.iter().map(|tensor| tensor.view()).collect();
            assert_eq!(packed(&got), packed(&theirs));
        }
    });
}

#[test]
fn tensors_that_do_not_fit_are_the_same_failure_on_all_ranks() {
    let wanted = [
        (vec![Tensor::from_vec(vec![7_u8; 6], &[2, 3]).unwrap()], "2 tensors where 1 are wanted"),
        (owned_as(Dtype::I32, &[3, 2]), "tensor 1 as i32 [2, 3], and i32 [3, 2] is wanted"),
        (owned_as(Dtype::F32, &[2, 3]), "tensor 1 as i32 [2, 3], and f32 [2, 3] is wanted"),
    ];
    for (places, wanted) in wanted {
        let before = all_bits(&places);
        let message = world(2, small, |group| {
            let failed = if group.rank() == 0 {
                let sent = owned_as(Dtype::I32, &[2, 3]);
                let sent: Vec<_> = sent.iter().map(Tensor::view).collect();
                group.send_tensors(&sent, 1).and_then(|()| hear(&group))
            } else {
                let mut places = places.clone();
                let mut into: Vec<_> = places.iter_mut().map(Tensor::view_mut).collect();
                let failed = group.recv_tensors_into(&mut into, 0).map(drop);
                assert_eq!(all_bits(&places), before, "not a byte was touched");
                failed
            };
            failed.unwrap_err().to_string()
        });
        let words = format!("rank 1 aborted the group: recv_tensors_into: rank 0 sends {wanted}");
        assert_eq!(message, [words.clone(), words]);
    }
}

/// One byte, and a tensor of this type and shape.
fn owned_as(dtype: Dtype, shape: &[usize]) -> Vec<Tensor> {
    vec![Tensor::zeros(Dtype::U8, &[1]).unwrap(), Tensor::zeros(dtype, shape).unwrap()]
}

/// Elements reach their tensors although several threads send with the same tag, and others receive with it.
#[test]
fn tensors_of_several_threads_do_not_mix() {
    worlds(2, |group| {
        let (mine, theirs) = (owned(group.rank(), 9), owned(1 - group.rank(), 9));
        let (mine, theirs) = (views(&mine), packed(&views(&theirs)));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..5).for_each(|_| group.send_tensors(&mine, 1 - group.rank()).unwrap()));
                scope.spawn(|| {
                    for _ in 0..5 {
                        assert_eq!(all_bits(&group.recv_tensors(Source::Any).unwrap().0), theirs);
                    }
                });
            }
        });
    });
}

#[test]
fn objects_tensors_and_elements_are_distinguished() {
    type Call = fn(&ProcessGroup) -> Result<()>;
    let cases: [(Call, Call, &str); 3] = [
        (
            |group| group.send_object(&1_u8, (1, 6)),
            |group| group.recv(&mut [0_u8; 2], (0, 6)).map(drop),
            "rank 0 sends an object, rank 1 receives 2 u8 elements",
        ),
        (
            |group| group.send(&[1_u8; 2], (1, 6)),
            |group| group.recv_object::<u8>((Source::Any, 6)).map(drop),
            "rank 0 sends 2 u8 elements, rank 1 receives an object",
        ),
        (
            |group| group.send_tensors(&[], (1, 6)),
            |group| group.recv_vec::<u8>((0, 6)).map(drop),
            "rank 0 sends tensors, rank 1 receives u8 elements",
        ),
    ];
    for (zero, one, wanted) in cases {
        let messages = world(2, small, |group| {
            let done = if group.rank() == 0 { zero(&group) } else { one(&group) };
            done.and_then(|()| group.barrier()).unwrap_err().to_string()
        });
        assert_eq!(messages[0], messages[1]);
        assert!(messages[0].ends_with(wanted), "{}", messages[0]);
    }
}
