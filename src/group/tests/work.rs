//! Asynchronous operations: they progress by themselves, many at once, and nothing is lost if no thread waits.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{Barrier, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
};

use super::*;
use crate::Work;

/// Runs a future on this thread, which sleeps until it is woken.
pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return result,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Awaits all works concurrently.
struct All<T>(Vec<std::result::Result<Work<T>, T>>);

impl<T: Unpin> Future for All<T> {
    type Output = Vec<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<T>> {
        for one in &mut self.0 {
            if let Ok(work) = one
                && let Poll::Ready(end) = Pin::new(work).poll(context)
            {
                *one = Err(end.unwrap());
            }
        }
        if self.0.iter().any(|one| one.is_ok()) {
            return Poll::Pending;
        }
        Poll::Ready(self.0.drain(..).filter_map(|one| one.err()).collect())
    }
}

#[test]
fn a_finished_work_that_is_polled_again_gives_an_error() {
    world(2, small, |group| {
        let mut works = [
            group.begin().all_reduce(vec![1_u32; 3], ReduceOp::Sum).unwrap(),
            group.begin().all_reduce(vec![1_u32; 3], ReduceOp::Sum).unwrap(),
        ];
        for work in &mut works {
            assert_eq!(block_on(&mut *work).unwrap(), [2; 3]);
        }
        group.barrier().unwrap();
        for mut work in works {
            for _ in 0..2 {
                let again = Pin::new(&mut work).poll(&mut Context::from_waker(Waker::noop()));
                let Poll::Ready(Err(error)) = again else { panic!("{again:?}") };
                assert!(matches!(&error, Error::Argument { call: "Work", .. }), "{error}");
            }
            assert!(work.is_done());
            let waited = work.wait();
            assert!(matches!(waited, Err(Error::Argument { .. })), "{waited:?}");
        }
        // The group still works.
        group.barrier().unwrap();
    });
}

/// The input of a rank, different for each element.
fn given(rank: Rank, len: usize) -> Vec<i64> {
    (0..len).map(|i| (rank * 1000 + i) as i64).collect()
}

fn sums(ranks: usize, len: usize) -> Vec<i64> {
    (0..len).map(|i| (0..ranks).map(|rank| given(rank, len)[i]).sum()).collect()
}

#[test]
fn every_collective_does_what_its_blocking_form_does() {
    for ranks in [1, 2, 3, 5] {
        world(ranks, small, |group| {
            let (rank, root) = (group.rank(), ranks / 2);
            for len in [0, 1, 7, 400] {
                let (mine, whole) = (given(rank, len), given(rank, len * ranks));
                let works = (
                    group.begin().all_reduce(mine.clone(), ReduceOp::Avg).unwrap(),
                    group.begin().reduce(mine.clone(), ReduceOp::PreMulSum(2.0), root).unwrap(),
                    group.begin().broadcast(mine.clone(), root).unwrap(),
                    group.begin().all_gather((mine.clone(), vec![0; len * ranks])).unwrap(),
                    group.begin().reduce_scatter((whole.clone(), vec![0; len]), ReduceOp::Max).unwrap(),
                    group.begin().all_to_all((whole.clone(), vec![0; len * ranks])).unwrap(),
                    group
                        .begin()
                        .gather((mine.clone(), vec![0; if rank == root { len * ranks } else { 0 }]), root),
                    group
                        .begin()
                        .scatter((if rank == root { whole.clone() } else { Vec::new() }, vec![0; len]), root),
                    group.begin().barrier().unwrap(),
                );
                let (mut reduced, mut at_root, mut from_root) = (mine.clone(), mine.clone(), mine.clone());
                let (mut all, mut block, mut turned) =
                    (vec![0; len * ranks], vec![0; len], vec![0; len * ranks]);
                let (mut gathered, mut part) = (vec![0; len * ranks], vec![0; len]);
                group.all_reduce(&mut reduced, ReduceOp::Avg).unwrap();
                group.reduce(&mut at_root, ReduceOp::PreMulSum(2.0), root).unwrap();
                group.broadcast(&mut from_root, root).unwrap();
                group.all_gather((&mine, &mut all)).unwrap();
                group.reduce_scatter((&whole, &mut block), ReduceOp::Max).unwrap();
                group.all_to_all((&whole, &mut turned)).unwrap();
                group.gather((&mine, &mut gathered), root).unwrap();
                group.scatter((&whole, &mut part), root).unwrap();
                assert_eq!(works.0.wait().unwrap(), reduced);
                assert_eq!(works.1.wait().unwrap(), at_root);
                assert_eq!(works.2.wait().unwrap(), from_root);
                assert_eq!(works.3.wait().unwrap(), (mine.clone(), all));
                assert_eq!(works.4.wait().unwrap(), (whole.clone(), block));
                assert_eq!(works.5.wait().unwrap(), (whole.clone(), turned));
                let (kept, output) = works.6.unwrap().wait().unwrap();
                assert_eq!((kept, output), (mine, if rank == root { gathered } else { Vec::new() }));
                assert_eq!(works.7.unwrap().wait().unwrap().1, part);
                works.8.wait().unwrap();
            }
        });
    }
}

/// Begins all forms of calls, in place and out of place, before it waits for any.
fn in_place(group: &ProcessGroup, len: usize, op: ReduceOp) {
    let (rank, ranks) = (group.rank(), group.size());
    let root = len % ranks;
    let at_root = rank == root;
    let (mine, mut whole) = (given(rank, len), given(rank, len * ranks));
    let data = || if at_root { whole.clone() } else { mine.clone() };
    // On ranks other than the root the call ignores the output.
    let output = vec![-1; if at_root { len } else { len / 2 }];
    let works = (
        group.begin().all_gather(whole.clone()).unwrap(),
        group.begin().gather(data(), root).unwrap(),
        group.begin().scatter(data(), root).unwrap(),
        group.begin().reduce_scatter(whole.clone(), op).unwrap(),
        group.begin().all_to_all(whole.clone()).unwrap(),
        group.begin().all_reduce((mine.clone(), vec![-1; len]), op).unwrap(),
        group.begin().reduce((mine.clone(), output.clone()), op, root).unwrap(),
    );
    // No thread waits for these.
    drop(group.begin().all_to_all(whole.clone()).unwrap());
    std::mem::forget(group.begin().all_to_all(whole.clone()).unwrap());
    drop(group.begin().gather(data(), root).unwrap());
    std::mem::forget(group.begin().reduce((mine.clone(), output.clone()), op, root).unwrap());
    drop(group.begin().all_reduce((mine.clone(), vec![-1; len]), op).unwrap());

    let (mut all, mut gathered, mut scattered, mut reduced) = (whole.clone(), data(), data(), whole.clone());
    let (mut turned, mut total, mut at_one) = (vec![0; len * ranks], vec![0; len], output);
    group.all_gather(&mut all).unwrap();
    group.gather(&mut gathered, root).unwrap();
    group.all_to_all((&whole, &mut turned)).unwrap();
    group.all_reduce((&mine, &mut total), op).unwrap();
    group.reduce((&mine, &mut at_one), op, root).unwrap();
    assert_eq!(works.0.wait().unwrap(), all);
    assert_eq!(block_on(works.1).unwrap(), gathered);
    let (mut data, block) = works.2.wait().unwrap();
    assert_eq!(&mut data[block], group.scatter(&mut scattered, root).unwrap());
    assert_eq!(data, scattered);
    let (mut data, block) = works.3.wait().unwrap();
    assert_eq!(block, rank * len..(rank + 1) * len);
    assert_eq!(&mut data[block], group.reduce_scatter(&mut reduced, op).unwrap());
    assert_eq!(data, reduced);
    assert_eq!(works.4.wait().unwrap(), turned);
    assert_eq!(works.5.wait().unwrap(), (mine.clone(), total));
    assert_eq!(works.6.wait().unwrap(), (mine, at_one));
    group.all_to_all(&mut whole).unwrap();
    assert_eq!(whole, turned);
}

#[test]
fn those_in_place_do_what_their_blocking_forms_do() {
    for ranks in [1, 2, 3, 5] {
        world(ranks, small, |group| {
            for len in [0, 1, 7, 400] {
                in_place(&group, len, ReduceOp::Sum);
                in_place(&group, len, ReduceOp::PreMulSum(3.0));
            }
            group.leave().unwrap();
        });
    }
    // A message that is written whole needs its input elsewhere than its output.
    world(3, small, |group| in_place(&group, 9000, ReduceOp::Max));
}

#[test]
fn what_is_scaled_is_a_copy() {
    for ranks in [1, 2, 3, 5] {
        world(ranks, small, |group| {
            let (rank, root, op) = (group.rank(), ranks / 2, ReduceOp::PreMulSum(3.0));
            for len in [0, 1, 7, 400] {
                let (mine, whole) = (given(rank, len), given(rank, len * ranks));
                let all: Vec<_> = (0..ranks).map(|rank| given(rank, len * ranks)).collect();
                let tripled = |at: usize| 3 * all.iter().map(|one| one[at]).sum::<i64>();
                let block: Vec<i64> = (rank * len..).take(len).map(tripled).collect();
                let total: Vec<i64> = (0..len).map(tripled).collect();
                // A rank may wait or not, whatever the others do.
                for waiting in 0..3 {
                    let mut data = mine.clone();
                    let (kept, output) = if (rank + waiting).is_multiple_of(3) {
                        let mut output = vec![0; len];
                        group.reduce_scatter((&whole, &mut output), op).unwrap();
                        group.reduce(&mut data, op, root).unwrap();
                        (whole.clone(), output)
                    } else {
                        let scattered =
                            group.begin().reduce_scatter((whole.clone(), vec![0; len]), op).unwrap();
                        data = group.begin().reduce(data, op, root).unwrap().wait().unwrap();
                        scattered.wait().unwrap()
                    };
                    assert_eq!((&kept, &output), (&whole, &block), "{ranks} ranks, {len} elements");
                    assert_eq!(&data, if rank == root { &total } else { &mine });
                }
                // The program may forget the work while the operation is under way.
                std::mem::forget(group.begin().reduce(mine, op, root).unwrap());
                drop(group.begin().reduce_scatter((whole, vec![0; len]), op).unwrap());
            }
            let error = group.begin().reduce(vec![1_u8], ReduceOp::PreMulSum(0.5), root).unwrap_err();
            assert!(matches!(error, Error::Argument { call: "reduce", .. }), "{error}");
            group.leave().unwrap();
        });
    }
}

#[test]
fn many_are_in_flight_on_several_groups() {
    world(4, small, |group| {
        let pair = group.split(Some(group.rank() as u64 / 2), 0).unwrap().unwrap();
        let twin = group.new_group(&[3, 2, 1, 0]).unwrap().unwrap();
        let mut works = Vec::new();
        for len in 0..60 {
            for part in [&group, &pair, &twin] {
                let mine = given(part.members()[part.rank()], len * 3);
                works.push((len * 3, part, part.begin().all_reduce(mine, ReduceOp::Sum).unwrap()));
            }
        }
        // Two threads wait for the works, the latest first.
        std::thread::scope(|scope| {
            let first = works.split_off(90);
            for works in [first, works] {
                scope.spawn(move || {
                    for (len, part, work) in works.into_iter().rev() {
                        let wanted: Vec<i64> = (0..len)
                            .map(|i| part.members().iter().map(|&member| given(member, len)[i]).sum())
                            .collect();
                        assert_eq!(work.wait().unwrap(), wanted);
                    }
                });
            }
        });
    });
}

#[test]
fn an_operation_progresses_without_a_wait() {
    world(3, small, |group| {
        let work = group.begin().all_reduce(given(group.rank(), 5000), ReduceOp::Sum).unwrap();
        while !work.is_done() {
            std::thread::sleep(Duration::from_micros(100));
        }
        assert_eq!(work.wait().unwrap(), sums(3, 5000));
        // The caller gets registered buffers back, too.
        let mut buffer = group.buffer::<f32>(300).unwrap();
        buffer.fill(2.0);
        let work = group.begin().all_reduce(buffer, ReduceOp::Sum).unwrap();
        assert!(work.wait().unwrap().iter().all(|&it| (it - 6.0).abs() < f32::EPSILON));
    });
}

#[test]
fn they_can_be_awaited() {
    world(3, small, |group| {
        let rank = group.rank();
        let gathered = block_on(async {
            let summed = group.begin().all_reduce(given(rank, 50), ReduceOp::Sum)?.await?;
            assert_eq!(summed, sums(3, 50));
            group.begin().barrier()?.await?;
            group.begin().all_gather((vec![rank as u8], vec![0; 3]))?.await
        });
        assert_eq!(gathered.unwrap(), (vec![rank as u8], vec![0, 1, 2]));
        let works = (0..40).map(|len| group.begin().all_reduce(given(rank, len), ReduceOp::Sum));
        let all = block_on(All(works.map(|work| Ok(work.unwrap())).collect()));
        assert_eq!(all, (0..40).map(|len| sums(3, len)).collect::<Vec<_>>());
    });
}

#[test]
fn a_wait_may_have_a_limit() {
    let late = Barrier::new(2);
    world(2, small, |group| {
        if group.rank() == 1 {
            late.wait();
        }
        let mut work = group.begin().all_reduce(given(group.rank(), 9), ReduceOp::Sum).unwrap();
        if group.rank() == 0 {
            let begun = Instant::now();
            work = work.wait_timeout(Duration::from_millis(20)).unwrap().unwrap_err();
            assert!(begun.elapsed() >= Duration::from_millis(20));
            assert!(!work.is_done());
            work = work.wait_timeout(Duration::ZERO).unwrap().unwrap_err();
            late.wait();
        }
        assert_eq!(work.wait_timeout(Duration::MAX).unwrap().unwrap(), sums(2, 9));
    });
}

#[test]
fn work_that_is_dropped_or_forgotten_is_done_all_the_same() {
    world(3, small, |group| {
        let (rank, part) = (group.rank(), group.new_group(&[0, 1, 2]).unwrap().unwrap());
        for round in 0..30 {
            let works = [&group, &part]
                .map(|it| it.begin().all_reduce(given(rank, round * 40), ReduceOp::Sum).unwrap());
            let [one, other] = works;
            match (rank + round) % 3 {
                0 => drop((one, other)),
                1 => std::mem::forget((one, other)),
                _ => assert_eq!((one.wait().unwrap(), other.wait().unwrap()).0, sums(3, round * 40)),
            }
        }
        // Both groups end, perhaps while their operations are under way.
        drop(part.begin().all_reduce(given(rank, 3000), ReduceOp::Sum).unwrap());
        drop(part);
        std::mem::forget(group.begin().all_reduce(given(rank, 3000), ReduceOp::Sum).unwrap());
        group.leave().unwrap();
    });
}

#[test]
fn work_outlives_its_group() {
    world(2, small, |group| {
        let work = group.begin().all_reduce(given(group.rank(), 700), ReduceOp::Sum).unwrap();
        group.leave().unwrap();
        assert_eq!(work.wait().unwrap(), sums(2, 700));
    });
}

#[test]
fn bad_arguments_are_refused_at_once() {
    world(2, small, |group| {
        let error = group.begin().broadcast(vec![0_u8], 2).unwrap_err();
        assert!(matches!(error, Error::Argument { .. }), "{error}");
        let error = group.begin().all_gather((vec![0_u8], vec![0; 3])).unwrap_err();
        assert!(matches!(error, Error::Argument { .. }), "{error}");
        let error = group.begin().all_reduce(vec![0.5_f32], ReduceOp::BitAnd).unwrap_err();
        assert!(matches!(error, Error::Argument { .. }), "{error}");
        let same = |begun: Error, called: Error| {
            assert!(matches!(begun, Error::Argument { .. }), "{begun}");
            assert_eq!(begun.to_string(), called.to_string());
        };
        let (three, sum) = (|| vec![1_u8; 3], ReduceOp::Sum);
        let mut data = three();
        same(group.begin().all_gather(three()).unwrap_err(), group.all_gather(&mut data).unwrap_err());
        same(
            group.begin().reduce_scatter(three(), sum).unwrap_err(),
            group.reduce_scatter(&mut data, sum).unwrap_err(),
        );
        same(group.begin().all_to_all(three()).unwrap_err(), group.all_to_all(&mut data).unwrap_err());
        // The root may be this rank, or a rank that does not exist.
        for root in [group.rank(), 2] {
            same(
                group.begin().gather(three(), root).unwrap_err(),
                group.gather(&mut data, root).unwrap_err(),
            );
            same(
                group.begin().scatter(three(), root).unwrap_err(),
                group.scatter(&mut data, root).map(drop).unwrap_err(),
            );
            same(
                group.begin().reduce((three(), vec![1; 2]), sum, root).unwrap_err(),
                group.reduce((&three(), &mut data[1..]), sum, root).unwrap_err(),
            );
        }
        same(
            group.begin().all_reduce((three(), vec![1; 2]), sum).unwrap_err(),
            group.all_reduce((&three(), &mut data[1..]), sum).unwrap_err(),
        );
        // None of these calls has begun.
        assert_eq!(group.usage().operations, 0);
        group.barrier().unwrap();
    });
}

#[test]
fn a_failure_reaches_all_that_is_under_way() {
    let (sender, receiver) = mpsc::channel();
    let receiver = std::sync::Mutex::new(receiver);
    world(3, small, |group| {
        if group.rank() == 2 {
            receiver.lock().unwrap().recv().unwrap();
            receiver.lock().unwrap().recv().unwrap();
            return drop(group.abort("it has had enough"));
        }
        let mut works: Vec<_> =
            (0..4).map(|_| group.begin().all_reduce(given(0, 90), ReduceOp::Sum).unwrap()).collect();
        sender.send(()).unwrap();
        let awaited = block_on(works.pop().unwrap()).unwrap_err();
        let mut errors: Vec<_> = works.into_iter().map(|work| work.wait().unwrap_err()).collect();
        errors.extend([awaited, group.begin().barrier().unwrap_err()]);
        for error in errors {
            assert!(error.to_string().contains("it has had enough"), "{error}");
        }
    });
}

#[test]
fn ranks_that_begin_different_things_find_out() {
    world(2, small, |group| {
        let rank = group.rank();
        let work = group.begin().all_reduce(vec![0_i32; 3 + rank], ReduceOp::Sum).unwrap();
        let error = work.wait().unwrap_err();
        assert!(error.to_string().contains("rank 0 has 3 elements, rank 1 has 4 elements"), "{error}");
    });
}

#[test]
fn after_leaving_the_world_there_are_no_calls() {
    world(2, small, |group| {
        let part = group.new_group(&[0, 1]).unwrap().unwrap();
        group.leave().unwrap();
        let error = part.barrier().unwrap_err();
        assert!(matches!(error, Error::Left { call: "barrier" }), "{error}");
    });
}

#[test]
fn a_wait_can_be_given_up_and_the_operation_goes_on() {
    world(2, small, |group| {
        let other = 1 - group.rank();
        if group.rank() == 0 {
            let work = group.begin().recv(vec![0_u8; 5], (other, 7)).unwrap();
            let mut asked = 0;
            let go_on = || {
                asked += 1;
                asked < 3
            };
            assert!(!work.wait_done_while(Duration::from_millis(5), go_on).unwrap());
            assert_eq!(asked, 3);
            group.send(&[1_u8], (other, 8)).unwrap();
            assert!(work.wait_done_while(Duration::from_secs(1), || true).unwrap());
            assert_eq!(work.take().unwrap(), (vec![9; 5], other));
            assert!(matches!(work.take(), Err(Error::Argument { .. })), "a result is given once");
        } else {
            group.recv(&mut [0_u8], (other, 8)).unwrap();
            group.send(&[9_u8; 5], (other, 7)).unwrap();
        }
    });
}

#[test]
fn a_thread_that_waits_and_may_give_up_counts_as_blocked() {
    world(2, small, |group| {
        assert_eq!(group.failure(), None);
        let work = group.begin().recv(vec![0_u8; 5], (1 - group.rank(), 7)).unwrap();
        assert!(work.wait_done_while(Duration::from_millis(20), || true).unwrap());
        let failure = match work.take() {
            Err(Error::Failed(failure @ Failure::Deadlock { .. })) => failure,
            other => panic!("{other:?}"),
        };
        assert_eq!(group.failure(), Some(failure));
    });
}
