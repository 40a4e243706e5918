//! Asynchronous calls while another thread is in a blocking call of the same group: they return at once, and follow it on all ranks.

use std::{
    sync::{Mutex, mpsc},
    thread,
};

use super::*;

/// A blocking call of a world of two ranks.
type Call = fn(&ProcessGroup);

/// Calls of one operation and of several.
const BLOCKING: [(&str, Call); 4] = [
    ("barrier", |group| group.barrier().unwrap()),
    ("all_reduce", |group| {
        let mut data = vec![1_u32; 100_000];
        group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        assert!(data.iter().all(|&it| it == 2));
    }),
    ("broadcast_object", |group| {
        let value = (group.rank() == 1).then_some("a value".to_owned());
        assert_eq!(group.broadcast_object(value, 1).unwrap(), "a value");
    }),
    ("split", |group| assert_eq!(group.split(Some(0), 0).unwrap().unwrap().size(), 2)),
];

#[test]
fn an_asynchronous_call_does_not_wait_for_the_blocking_call_of_another_thread() {
    for (name, blocks) in BLOCKING {
        let (tell, begun) = mpsc::channel();
        let begun = Mutex::new(begun);
        world(2, small, |group| {
            let later = || {
                let begin = |value: u32| group.begin().all_reduce(vec![value; 3], ReduceOp::Sum).unwrap();
                (0..5).map(begin).collect::<Vec<_>>()
            };
            let works = if group.rank() == 0 {
                thread::scope(|scope| {
                    let before = group.usage().operations;
                    scope.spawn(|| blocks(&group));
                    while group.usage().operations == before {
                        thread::sleep(Duration::from_millis(1));
                    }
                    let works = later();
                    // Rank 1 calls only now, as if a message of this thread were its signal.
                    tell.send(()).unwrap();
                    works
                })
            } else {
                let message = begun.lock().unwrap().recv_timeout(Duration::from_secs(60));
                message.unwrap_or_else(|_| panic!("an asynchronous call waits for {name}"));
                blocks(&group);
                later()
            };
            for (value, work) in works.into_iter().enumerate() {
                assert_eq!(work.wait().unwrap(), vec![2 * value as u32; 3], "after {name}");
            }
        });
    }
}

#[test]
fn a_call_that_has_waited_for_its_turn_fails_as_the_one_before() {
    for (name, blocks) in BLOCKING {
        world(2, small, |group| {
            // After this barrier no rank is still joining; the failure would end that.
            group.barrier().unwrap();
            if group.rank() == 1 {
                while group.failure().is_none() {
                    thread::sleep(Duration::from_millis(1));
                }
                return;
            }
            thread::scope(|scope| {
                let before = group.usage().operations;
                let blocked =
                    scope.spawn(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| blocks(&group))));
                while group.usage().operations == before {
                    thread::sleep(Duration::from_millis(1));
                }
                let work = group.begin().barrier().unwrap();
                let message = group.abort("enough");
                assert_eq!(work.wait().unwrap_err().to_string(), message.to_string(), "{name}");
                assert!(blocked.join().unwrap().is_err(), "{name}");
            });
        });
    }
}

#[test]
fn a_call_of_another_thread_does_not_wait_for_the_end_of_leaving() {
    let (tell, left) = mpsc::channel();
    let left = Mutex::new(left);
    world(2, small, |group| {
        if group.rank() == 1 {
            left.lock().unwrap().recv_timeout(Duration::from_secs(60)).unwrap();
            return group.leave().unwrap();
        }
        let shared = Arc::clone(&group.handle.shared);
        let other = ProcessGroup::<Blocking>::of(group.handle.under_way());
        thread::scope(|scope| {
            let leaves = scope.spawn(|| shared.shut_down());
            while !shared.runtime.has_left() {
                thread::sleep(Duration::from_millis(1));
            }
            let late = other.begin().barrier().map(drop);
            assert!(matches!(late, Err(Error::Left { .. })), "{late:?}");
            tell.send(()).unwrap();
            leaves.join().unwrap().unwrap();
        });
    });
}

#[test]
fn the_result_of_a_work_that_has_not_ended_is_not_there_yet() {
    let (tell, begun) = mpsc::channel();
    let begun = Mutex::new(begun);
    world(2, small, |group| {
        if group.rank() == 1 {
            begun.lock().unwrap().recv_timeout(Duration::from_secs(60)).unwrap();
            return group.barrier().unwrap();
        }
        let work = group.begin().barrier().unwrap();
        let early = work.take().unwrap_err();
        assert!(
            matches!(early, Error::Argument { .. }) && early.to_string().contains("has not ended"),
            "{early}"
        );
        tell.send(()).unwrap();
        work.wait_done().unwrap();
        work.take().unwrap();
        let again = work.take().unwrap_err();
        assert!(matches!(again, Error::Argument { .. }) && again.to_string().contains("before"), "{again}");
        assert_eq!(group.failure(), None);
    });
}
