//! Asynchronous calls of objects and tensors, against an oracle, on ranks that block and ranks that do not, with all kinds of calls
//! between; and their errors.

use std::thread::ThreadId;

use proptest::{prelude::*, test_runner::TestRunner};
use serde::{Deserialize, Deserializer, Serialize};
use unisono_engine::{Borrowed, Form};

use super::{
    follow::{Check, wait_in_this_ranks_order},
    messages::worlds,
    objects::{Stubborn, Thing, object, thing},
    tensors,
    work::block_on,
    *,
};
use crate::{Source, Tensor, TensorView, Work, object::ObjectError, tensor::Parts};

/// Waits in one of the possible ways.
fn check<R: PartialEq + fmt::Debug + Send + 'static>(seed: usize, call: Called<R>, wanted: R) -> Check {
    Box::new(move || {
        let got = match call {
            Called::Now(got) => got,
            Called::Later(work) if seed.is_multiple_of(2) => block_on(work),
            Called::Later(work) => work.wait(),
        };
        assert_eq!(got.unwrap(), wanted);
    })
}

/// As in other tests, but without NaN, so that equal tensors compare equal.
fn tensor(seed: usize, dtype: Dtype, shape: &[usize]) -> Tensor {
    plain(tensors::tensor(seed, dtype, shape))
}

fn owned(seed: usize, count: usize) -> Vec<Tensor> {
    tensors::owned(seed, count).into_iter().map(plain).collect()
}

fn plain(mut tensor: Tensor) -> Tensor {
    tensor.bytes_mut().iter_mut().for_each(|byte| *byte &= 0x3f);
    tensor
}

enum Called<R> {
    Now(Result<R>),
    Later(Work<R>),
}

fn tensor_views(tensors: &[Tensor]) -> Vec<TensorView<'_>> {
    tensors.iter().map(Tensor::view).collect()
}

/// Makes a call of each kind, blocking or asynchronous.
fn begin(group: &ProcessGroup, kind: usize, seed: usize, blocks: bool) -> Check {
    use Called::{Later, Now};
    let (me, ranks) = (group.rank(), group.size());
    let root = seed % ranks;
    let at_root = me == root;
    let things: Vec<Thing> = (0..ranks).map(|rank| thing(seed % 5, rank)).collect();
    let list = |rank: usize| owned(seed + rank, if rank == 2 { 0 } else { 5 + seed % 7 + rank });
    let lists: Vec<Vec<Tensor>> = (0..ranks).map(list).collect();
    let mine = lists[me].clone();
    let whole = tensor(seed, Dtype::ALL[seed % Dtype::ALL.len()], &[7, 3 + 20 * (seed % 3)]);
    let indices = &[1, -3, 5, 6][..ranks - 1];
    let way = [
        Parts::Split(0),
        Parts::Chunk(1),
        Parts::Blocks { rows: 1, columns: ranks },
        Parts::SplitAt { dim: 0, indices },
    ][seed % 4];
    let view = whole.view();
    let cut = way.cut(&view, ranks).unwrap();
    let part = cut[me].pack().unwrap();
    match kind {
        0 => {
            let given = at_root.then(|| things[root].clone());
            let call = match blocks {
                true => Now(group.broadcast_object(given, root)),
                false => Later(group.begin().broadcast_object(given, root).unwrap()),
            };
            check(seed, call, things[root].clone())
        }
        1 => {
            let call = match blocks {
                true => Now(group.gather_object(&things[me], root)),
                false => Later(group.begin().gather_object(&things[me], root).unwrap()),
            };
            check(seed, call, at_root.then_some(things))
        }
        2 => {
            let call = match blocks {
                true => Now(group.all_gather_object(&things[me])),
                false => Later(group.begin().all_gather_object(&things[me]).unwrap()),
            };
            check(seed, call, things)
        }
        3 => {
            let given = at_root.then(|| things.clone());
            let call = match blocks {
                true => Now(group.scatter_object(given, root)),
                false => Later(group.begin().scatter_object(given, root).unwrap()),
            };
            check(seed, call, things[me].clone())
        }
        4 => {
            let given = at_root.then(|| mine.clone());
            let call = match blocks {
                true => {
                    let views = given.as_deref().map(tensor_views);
                    let got = group.broadcast_tensors(views.as_deref(), root);
                    Now(got.map(|got| got.or(given).unwrap()))
                }
                false => Later(group.begin().broadcast_tensors(given, root).unwrap()),
            };
            check(seed, call, lists[root].clone())
        }
        5 => {
            let call = match blocks {
                true => Now(group.gather_tensors(&tensor_views(&mine), root).map(|got| (mine.clone(), got))),
                false => Later(group.begin().gather_tensors(mine.clone(), root).unwrap()),
            };
            check(seed, call, (mine, at_root.then_some(lists)))
        }
        6 => {
            let call = match blocks {
                true => Now(group.all_gather_tensors(&tensor_views(&mine)).map(|got| (mine.clone(), got))),
                false => Later(group.begin().all_gather_tensors(mine.clone()).unwrap()),
            };
            check(seed, call, (mine, lists))
        }
        7 => {
            let given = at_root.then(|| whole.clone());
            let call = match blocks {
                true => {
                    let got = group.scatter_tensor(at_root.then_some(view), way, root);
                    Now(got.map(|got| (given.clone(), got)))
                }
                false => Later(group.begin().scatter_tensor(given.clone(), way, root).unwrap()),
            };
            check(seed, call, (given, part))
        }
        8 => {
            let call = match blocks {
                true => Now(group.gather_tensor(part.view(), way, root).map(|got| (part.clone(), got))),
                false => Later(group.begin().gather_tensor(part.clone(), way, root).unwrap()),
            };
            check(seed, call, (part, at_root.then_some(whole)))
        }
        9 => {
            let call = match blocks {
                true => Now(group.all_gather_tensor(part.view(), way).map(|got| (part.clone(), got))),
                false => Later(group.begin().all_gather_tensor(part.clone(), way).unwrap()),
            };
            check(seed, call, (part, whole))
        }
        // No thread waits for these.
        10 => {
            drop(group.begin().all_gather_object(&things[me]).unwrap());
            Box::new(|| {})
        }
        11 => {
            std::mem::forget(group.begin().gather_tensors(mine, root).unwrap());
            Box::new(|| {})
        }
        _ => {
            let call = match blocks {
                true => Now(group.all_gather_v(&[me as u8; 9])),
                false => {
                    group.begin().barrier().unwrap().wait().unwrap();
                    let mut all = vec![0; 9 * ranks];
                    group.barrier().unwrap();
                    group.all_gather((&[me as u8; 9], &mut all)).unwrap();
                    Now(Ok((all, vec![9; ranks])))
                }
            };
            check(seed, call, ((0..ranks as u8).flat_map(|rank| [rank; 9]).collect(), vec![9; ranks]))
        }
    }
}

const KINDS: usize = 12;

#[test]
fn ranks_that_wait_and_ranks_that_do_not_fit_together() {
    for ranks in [1, 2, 3, 5] {
        world(ranks, small, |group| {
            let me = group.rank();
            for seed in 0..8 {
                (0..KINDS).for_each(|kind| begin(&group, kind, seed, (me + seed) % 3 == 1)());
            }
            group.barrier().unwrap();
            let mut operations = group.all_gather_object(&group.usage().operations).unwrap();
            operations.dedup();
            assert_eq!(operations.len(), 1);
        });
    }
    // Large tensors are written straight into place.
    world(
        3,
        |_| {},
        |group| {
            let large = tensor(7, Dtype::F32, &[300, 1000]);
            let given = vec![large.clone(), tensor(8, Dtype::I8, &[3]), large];
            let works = (
                group.begin().broadcast_tensors((group.rank() == 1).then(|| given.clone()), 1).unwrap(),
                group.begin().all_gather_tensors(given.clone()).unwrap(),
                group.begin().broadcast_object((group.rank() == 2).then(|| vec![7_u8; 300_000]), 2).unwrap(),
            );
            assert_eq!(works.0.wait().unwrap(), given);
            assert_eq!(works.1.wait().unwrap().1, vec![given; 3]);
            assert_eq!(works.2.wait().unwrap(), vec![7; 300_000]);
        },
    );
}

#[test]
fn any_number_is_under_way_among_all_other_calls() {
    let cases = prop::collection::vec((0..=KINDS, 0..50_usize, any::<bool>(), 0..4_usize), 1..40);
    let config = ProptestConfig { cases: 10, ..ProptestConfig::default() };
    let run = |calls: Vec<(usize, usize, bool, usize)>| {
        world(3, small, |group| {
            let other = group.split(Some(0), 0).unwrap().unwrap();
            let begun = |&(kind, seed, first, blocks): &(usize, usize, bool, usize)| {
                let group = if first { &group } else { &other };
                begin(
                    group,
                    kind,
                    seed,
                    kind == KINDS && seed % 2 == 0 || kind < KINDS && blocks == group.rank(),
                )
            };
            let checks: Vec<Check> = calls.iter().map(begun).collect();
            wait_in_this_ranks_order(group.rank(), checks);
            group.barrier().unwrap();
        });
        Ok(())
    };
    TestRunner::new(config).run(&cases, run).unwrap();
}

#[test]
fn messages_arrive_as_they_were() {
    worlds(3, |group| {
        let (rank, next, before) = (group.rank(), (group.rank() + 1) % 3, (group.rank() + 2) % 3);
        for count in [0, 1, 2, 9, 25] {
            let (mine, theirs) = (owned(rank + count, count), owned(before + count, count));
            let value = |from: usize| thing(4, from + count);
            // Receives come before their sends and after them; one rank waits at once, or none.
            let early = group.begin().recv_tensors((before, 1)).unwrap();
            let early_value = group.begin().recv_object::<Thing>((Source::Any, 2)).unwrap();
            let sent = group.begin().send_tensors(mine.clone(), (next, 1)).unwrap();
            let sent_value = group.begin().send_object(&value(rank), (next, 2)).unwrap();
            drop(group.begin().send_tensors(mine.clone(), (next, 3)).unwrap());
            std::mem::forget(group.begin().send_object(&value(rank), (next, 4)).unwrap());
            group.send_tensors(&tensor_views(&mine), (next, 5)).unwrap();
            group.send_object(&value(rank), (next, 6)).unwrap();
            let room = theirs.iter().map(|tensor| Tensor::zeros(tensor.dtype(), tensor.shape()).unwrap());
            let late = group.begin().recv_tensors_into(room.collect(), (Source::Any, 5)).unwrap();
            let late_value = group.begin().recv_object::<Thing>((before, 6)).unwrap();
            assert_eq!(group.recv_tensors((before, 3)).unwrap(), (theirs.clone(), before));
            assert_eq!(group.recv_object::<Thing>((Source::Any, 4)).unwrap(), (value(before), before));
            assert_eq!(block_on(late).unwrap(), (theirs.clone(), before));
            assert_eq!(late_value.wait().unwrap(), (value(before), before));
            assert_eq!(early.wait().unwrap(), (theirs, before));
            assert_eq!(block_on(early_value).unwrap(), (value(before), before));
            assert_eq!(sent.wait().unwrap(), mine);
            sent_value.wait().unwrap();
        }
    });
}

#[test]
fn many_lists_with_one_tag_do_not_mix() {
    worlds(2, |group| {
        let other = 1 - group.rank();
        let receives: Vec<_> = (0..12).map(|_| group.begin().recv_tensors(other).unwrap()).collect();
        for number in 0..12 {
            drop(group.begin().send_tensors(owned(number + 5 * group.rank(), number), other).unwrap());
        }
        for (number, receive) in receives.into_iter().enumerate().rev() {
            assert_eq!(receive.wait().unwrap(), (owned(number + 5 * other, number), other));
        }
    });
}

/// The elements that follow a list's header arrive while no thread of this rank calls anything; so does a call of many operations.
#[test]
fn operations_progress_without_a_wait() {
    worlds(2, |group| {
        let given =
            vec![tensor(1, Dtype::F64, &[90, 90]), tensor(2, Dtype::U8, &[5]), tensor(3, Dtype::U8, &[2000])];
        if group.rank() == 0 {
            // The send has ended when the other rank has taken the message.
            group.send_tensors(&tensor_views(&given), 1).unwrap();
            group.broadcast_tensors(Some(&tensor_views(&given)), 0).unwrap();
            group.barrier().unwrap();
            return;
        }
        let (list, tensors) =
            (group.begin().recv_tensors(0).unwrap(), group.begin().broadcast_tensors(None, 0).unwrap());
        while !list.is_done() || !tensors.is_done() {
            std::thread::sleep(Duration::from_micros(100));
        }
        assert_eq!(list.wait().unwrap(), (given.clone(), 0));
        assert_eq!(tensors.wait().unwrap(), given);
        group.barrier().unwrap();
    });
}

/// Holds the thread that has decoded it.
#[derive(Debug)]
struct Where(ThreadId);

impl<'de> Deserialize<'de> for Where {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        u8::deserialize(deserializer).map(|_| Self(std::thread::current().id()))
    }
}

impl Serialize for Where {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_u8(1)
    }
}

#[test]
fn who_waits_decodes() {
    world(2, small, |group| {
        let here = std::thread::current().id();
        let other = 1 - group.rank();
        group.send_object(&Where(here), other).unwrap();
        let works = (
            group.begin().all_gather_object(&Where(here)).unwrap(),
            group.begin().recv_object::<Where>(other).unwrap(),
        );
        while !works.0.is_done() || !works.1.is_done() {
            std::thread::sleep(Duration::from_micros(100));
        }
        assert!(works.0.wait().unwrap().into_iter().all(|it| it.0 == here));
        assert_eq!(works.1.wait().unwrap().0.0, here);
    });
}

#[test]
fn what_one_call_ends_with_is_its_own_and_the_group_goes_on() {
    let limited = |config: &mut Config| {
        small(config);
        config.object_limit = 1000;
    };
    world(3, limited, |group| {
        let me = group.rank();
        let own = || ObjectError::Value { problem: "it will not".to_owned() };
        let wanted = || if me == 1 { (1, own()) } else { (1, ObjectError::Unsent) };
        let values = || Some(vec![Stubborn(1), Stubborn(0), Stubborn(2)]);
        // All begin before the first has ended, and nothing ever looks at one of them.
        let all = group.begin().all_gather_object(&Stubborn(me)).unwrap();
        drop(group.begin().all_gather_object(&Stubborn(me)).unwrap());
        let at_root = group.begin().gather_object(&Stubborn(me), 2).unwrap();
        let broadcast = group.begin().broadcast_object(Some(Stubborn(1)), 1).unwrap();
        let scattered = group.begin().scatter_object(values(), 1).unwrap();
        let kept = group.begin().scatter_object(values(), 0).unwrap();
        let large = group.begin().all_gather_object(&vec![1_u8; if me == 1 { 1000 } else { 1 }]).unwrap();
        let none = group.begin().broadcast_object(None::<u8>, 2).unwrap();
        let few = group.begin().scatter_object(Some(vec![1_u8]), 0).unwrap();
        let text = group.begin().all_gather_object(&"text".to_owned()).unwrap();
        let lists = group.begin().broadcast_tensors(None, 1).unwrap();
        let odd = tensor(1, if me == 2 { Dtype::F64 } else { Dtype::I8 }, &[2]);
        let odd = group.begin().gather_tensor(odd, Parts::Split(0), 1).unwrap();
        let shapes =
            group.begin().all_gather_tensor(tensor(1, Dtype::U8, &[2, 3 + me / 2]), Parts::Split(0)).unwrap();
        let uncut = (me == 0).then(|| tensor(1, Dtype::U8, &[4]));
        let uncut = group.begin().scatter_tensor(uncut, Parts::Split(1), 0).unwrap();
        let last = group.begin().all_gather_object(&me).unwrap();

        assert_eq!(object(all.wait()), wanted());
        assert_eq!(object(block_on(at_root)), wanted());
        assert_eq!(object(broadcast.wait()), wanted());
        assert_eq!(object(block_on(scattered)), wanted());
        // The root's object is not sent, but it is refused as well.
        assert_eq!(object(kept.wait()), if me == 0 { (0, own()) } else { (0, ObjectError::Unsent) });
        assert_eq!(object(large.wait()), (1, ObjectError::TooLarge { bytes: 1003, limit: 1000 }));
        let argument = |error: Error, root: Rank, words: &str| match error {
            Error::Argument { call, problem } if me == root => {
                assert_eq!(format!("{call}: {problem}"), words)
            }
            Error::Object { rank, problem: ObjectError::Unsent, .. } if me != root => assert_eq!(rank, root),
            other => panic!("{other}"),
        };
        let words = "broadcast_object: this rank is the root and gave None; the root must give a value";
        argument(none.wait().unwrap_err(), 2, words);
        argument(few.wait().unwrap_err(), 0, "scatter_object: 1 values were given; there are 3 ranks");
        assert_eq!(text.wait().unwrap(), ["text"; 3]);
        let words =
            "broadcast_tensors: this rank is the root and gave None; the root must give a list of tensors";
        argument(lists.wait().unwrap_err(), 1, words);
        assert_eq!(
            odd.wait().unwrap_err().to_string(),
            "gather_tensor: rank 0 has elements of i8, rank 2 of f64"
        );
        assert!(matches!(block_on(shapes), Err(Error::Tensor(_))));
        match uncut.wait().unwrap_err() {
            Error::Tensor(_) if me == 0 => {}
            Error::Object { rank: 0, problem: ObjectError::Unsent, .. } if me != 0 => {}
            other => panic!("{other}"),
        }
        assert_eq!(last.wait().unwrap(), [0, 1, 2]);
        let error = group.begin().gather_object(&me, 3).unwrap_err().to_string();
        assert_eq!(error, "gather_object: the root is rank 3; there are ranks 0 to 2");
    });
}

#[test]
fn messages_that_are_not_what_is_wanted_are_their_receivers_error() {
    world(2, small, |group| {
        if group.rank() == 0 {
            assert_eq!(object(group.begin().send_object(&Stubborn(1), 1)).0, 0);
            group.begin().send_object(&"seven", 1).unwrap().wait().unwrap();
            group.begin().send_object(&7_u8, 1).unwrap().wait().unwrap();
            let error = group.begin().send_tensors(Vec::new(), 2).unwrap_err().to_string();
            assert_eq!(error, "send: there is no rank 2; there are ranks 0 to 1");
        } else {
            let works = [0, 1].map(|_| group.begin().recv_object::<u8>(0).unwrap());
            let [text, number] = works.map(Work::wait);
            let error = text.unwrap_err().to_string();
            assert!(error.starts_with("recv_object: the u8 of rank 0:"), "{error}");
            assert_eq!(number.unwrap(), (7, 0));
            assert!(matches!(
                group.begin().recv_tensors(2),
                Err(Error::Argument { call: "recv_tensors", .. })
            ));
        }
        group.barrier().unwrap();
    });
}

type Call = fn(&ProcessGroup) -> Result<()>;

#[test]
fn what_ends_the_group_ends_it_for_all() {
    let labels: Call = |group| {
        let borrowed = Borrowed::apart(&[1_u8, 2, 3], &mut []);
        group
            .handle
            .wait(group.handle.outbound(Dtype::U8, &borrowed.input, (1, 6).into(), Form::Tensors)?)
            .map(drop)
    };
    let list: Call = |group| group.begin().recv_tensors((0, 6))?.wait().map(drop);
    let cases: [(Call, Call, &str); 5] = [
        (
            |group| group.begin().broadcast_object(Some(1), 0)?.wait().map(drop),
            |group| group.begin().broadcast_tensors(None, 0)?.wait().map(drop),
            "op 0: rank 0 calls broadcast_object(root 0), rank 1 calls broadcast_tensors(root 0)",
        ),
        (
            |group| group.begin().all_gather_object(&1)?.wait().map(drop),
            |group| group.all_gather_tensors(&[]).map(drop),
            "op 0: rank 0 calls all_gather_object(), rank 1 calls all_gather_tensors()",
        ),
        (
            |group| group.begin().send_object(&1, (1, 6))?.wait(),
            list,
            "rank 0 sends an object, rank 1 receives tensors",
        ),
        (
            labels,
            list,
            "rank 1 received something from rank 0 that the protocol does not allow: recv_tensors: ",
        ),
        // No thread waits for this one: the next call gets the failure.
        (labels, |group| group.begin().recv_tensors((0, 6)).map(drop), ": recv_tensors: "),
    ];
    for (zero, one, wanted) in cases {
        let messages = world(2, small, |group| {
            let done = if group.rank() == 0 { zero(&group) } else { one(&group) };
            let failed = done.and_then(|()| hear(&group)).unwrap_err();
            assert_eq!(group.barrier().unwrap_err().to_string(), failed.to_string());
            failed.to_string()
        });
        assert_eq!(messages[0], messages[1]);
        assert!(messages[0].contains(wanted), "{}", messages[0]);
    }
}

#[test]
fn groups_end_while_calls_go_on() {
    world(3, small, |group| {
        for round in 0..10 {
            let part = group.new_group(&[2, 1, 0]).unwrap().unwrap();
            let me = part.rank();
            let work = part.begin().all_gather_object(&thing(round, me)).unwrap();
            let list = part.begin().broadcast_tensors((me == 1).then(|| owned(round, 20)), 1).unwrap();
            drop(part.begin().all_gather_tensors(owned(me, round)).unwrap());
            let sent = part.begin().send_tensors(owned(round + me, 9), (me + 1) % 3).unwrap();
            let come = part.begin().recv_tensors(Source::Any).unwrap();
            drop(part);
            assert_eq!(block_on(work).unwrap(), [0, 1, 2].map(|rank| thing(round, rank)));
            assert_eq!(list.wait().unwrap(), owned(round, 20));
            let before = (me + 2) % 3;
            assert_eq!(come.wait().unwrap(), (owned(round + before, 9), before));
            assert_eq!(sent.wait().unwrap(), owned(round + me, 9));
        }
        let work = group.begin().all_gather_object(&group.rank()).unwrap();
        drop(group.begin().scatter_object(Some(vec!["x".repeat(900); 3]), 0).unwrap());
        group.leave().unwrap();
        assert_eq!(work.wait().unwrap(), [0, 1, 2]);
    });
}
