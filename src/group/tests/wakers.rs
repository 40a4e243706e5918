//! The program's code that runs when an operation ends, in wakers and destructors: it may call anything, drop anything, and panic.

use std::{
    future::Future,
    pin::Pin,
    sync::{Barrier, Mutex, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread,
};

use serde::{Deserialize, Serialize};

use super::*;
use crate::Work;

/// A waker that runs this.
struct Deed(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Wake for Deed {
    fn wake(self: Arc<Self>) {
        let deed = self.0.lock().unwrap().take();
        if let Some(deed) = deed {
            deed();
        }
    }
}

fn waker(deed: impl FnOnce() + Send + 'static) -> Waker {
    Waker::from(Arc::new(Deed(Mutex::new(Some(Box::new(deed))))))
}

/// Polls a work that has not ended, so that this waker is woken when it ends.
fn await_by<T: fmt::Debug>(work: &mut Work<T>, waker: &Waker) {
    let polled = Pin::new(work).poll(&mut Context::from_waker(waker));
    assert!(matches!(polled, Poll::Pending), "{polled:?}");
}

const SOON: Duration = Duration::from_secs(20);

/// Two ranks sum; rank 0 has polled its work with this waker before it can end. Returns rank 0's group.
fn summed(awaited: &Barrier, group: &ProcessGroup, waker: &Waker) -> Work<Vec<i32>> {
    if group.rank() == 1 {
        awaited.wait();
    }
    let mut work = group.begin().all_reduce(vec![1, 2], ReduceOp::Sum).unwrap();
    if group.rank() == 0 {
        await_by(&mut work, waker);
        awaited.wait();
    }
    work
}

#[test]
fn who_is_woken_may_call_anything() {
    let awaited = Barrier::new(2);
    world(2, small, |group| {
        let (rank, group) = (group.rank(), Arc::new(group));
        // The waker runs on the progress thread, or on one that waits for something else.
        for waits in [false, true] {
            let (sender, receiver) = mpsc::channel();
            let calls = {
                let group = Arc::clone(&group);
                move || {
                    let mut data = [7_i32, 8];
                    group.broadcast(&mut data, 1).unwrap();
                    let part = group.split(Some(0), 0).unwrap().unwrap();
                    part.barrier().unwrap();
                    drop(part);
                    sender.send(data).unwrap();
                }
            };
            let work = summed(&awaited, &group, &waker(calls));
            if rank == 0 {
                if waits {
                    group.recv(&mut [0_u8], 1).unwrap();
                }
                assert_eq!(receiver.recv_timeout(SOON).unwrap(), [5, 6]);
            } else {
                group.broadcast(&mut [5, 6], 1).unwrap();
                group.split(Some(0), 0).unwrap().unwrap().barrier().unwrap();
                if waits {
                    group.send(&[1_u8], 0).unwrap();
                }
            }
            assert_eq!(work.wait().unwrap(), [2, 4]);
        }
    });
}

#[test]
fn who_is_woken_may_drop_the_last_handle() {
    let awaited = Barrier::new(2);
    world(2, small, |group| {
        // The handle is the last one of a group, or of the world.
        let part = group.split(Some(0), 0).unwrap().unwrap();
        for group in [part, group] {
            let (sender, receiver) = mpsc::channel();
            let handle = Arc::new(Mutex::new(None));
            let drops = {
                let handle = Arc::clone(&handle);
                move || {
                    // The waker waits until the handle is there.
                    let mut last = None;
                    while last.is_none() {
                        last = handle.lock().unwrap().take();
                    }
                    drop::<Option<ProcessGroup>>(last);
                    sender.send(()).unwrap();
                }
            };
            let rank = group.rank();
            let work = summed(&awaited, &group, &waker(drops));
            if rank == 0 {
                *handle.lock().unwrap() = Some(group);
                receiver.recv_timeout(SOON).unwrap();
            }
            assert_eq!(work.wait().unwrap(), [2, 4]);
        }
    });
}

#[test]
fn who_is_woken_may_panic() {
    let awaited = Barrier::new(2);
    world(2, small, |group| {
        let panics = || panic!("as this test wants");
        let work = summed(&awaited, &group, &waker(panics));
        assert_eq!(work.wait().unwrap(), [2, 4]);
        group.barrier().unwrap();
    });
}

#[test]
fn who_is_woken_may_call_beside_a_thread_that_waits_in_the_group() {
    world(2, small, |group| {
        let (rank, group) = (group.rank(), Arc::new(group));
        if rank == 1 {
            // The other rank waits in the barrier by then.
            thread::sleep(Duration::from_millis(50));
            group.send(&[3_u8], 0).unwrap();
            thread::sleep(Duration::from_millis(50));
            group.barrier().unwrap();
            return group.broadcast(&mut [5_i32, 6], 1).unwrap();
        }
        let (sender, receiver) = mpsc::channel();
        let calls = {
            let group = Arc::clone(&group);
            move || {
                let mut data = [0_i32; 2];
                group.broadcast(&mut data, 1).unwrap();
                sender.send(data).unwrap();
            }
        };
        let mut work = group.begin().recv(vec![0_u8], 1).unwrap();
        await_by(&mut work, &waker(calls));
        group.barrier().unwrap();
        assert_eq!(receiver.recv_timeout(SOON).unwrap(), [5, 6]);
        assert_eq!(work.wait().unwrap(), (vec![3], 1));
    });
}

/// Panics with a value whose drop panics.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("as this test wants, when it is dropped");
    }
}

#[test]
fn who_is_woken_may_panic_in_any_way() {
    let awaited = Barrier::new(2);
    world(2, small, |group| {
        let work = summed(&awaited, &group, &waker(|| std::panic::panic_any(Bomb)));
        assert_eq!(work.wait().unwrap(), [2, 4]);
        // The next waker is woken as well.
        let (sender, receiver) = mpsc::channel();
        let work = summed(&awaited, &group, &waker(move || sender.send(()).unwrap()));
        if group.rank() == 0 {
            receiver.recv_timeout(SOON).unwrap();
        }
        assert_eq!(work.wait().unwrap(), [2, 4]);
        group.barrier().unwrap();
    });
}

#[test]
fn who_is_woken_may_wait_for_what_ends_with_the_group() {
    let awaited = Barrier::new(2);
    world(2, small, |group| {
        if group.rank() == 1 {
            awaited.wait();
            group.send(&[3_u8], 0).unwrap();
            return drop(group.recv(&mut [0_u8], 0).unwrap_err());
        }
        let (sender, receiver) = mpsc::channel();
        let never = group.begin().recv(vec![0_u8], (1, 1)).unwrap();
        let mut work = group.begin().recv(vec![0_u8], 1).unwrap();
        let waits = move || {
            sender.send(None).unwrap();
            sender.send(Some(never.wait())).unwrap();
        };
        await_by(&mut work, &waker(waits));
        awaited.wait();
        assert!(receiver.recv_timeout(SOON).unwrap().is_none());
        let dies = std::panic::AssertUnwindSafe(move || {
            let _last = group;
            panic!("as this test wants");
        });
        std::panic::catch_unwind(dies).unwrap_err();
        let error = receiver.recv_timeout(SOON).unwrap().unwrap().unwrap_err();
        assert!(matches!(error, Error::Failed(_)), "{error}");
    });
}

#[test]
fn wakers_may_call_while_a_group_fails() {
    let awaited = Barrier::new(2);
    world(2, small, |group| {
        let (rank, group) = (group.rank(), Arc::new(group));
        if rank == 1 {
            awaited.wait();
            return drop(group.abort("it has had enough"));
        }
        let (sender, receiver) = mpsc::channel();
        let mut works = Vec::new();
        for _ in 0..2 {
            let (group, sender) = (Arc::clone(&group), sender.clone());
            let mut work = group.begin().all_reduce(vec![1, 2], ReduceOp::Sum).unwrap();
            let calls = move || {
                group.abort("too late");
                sender.send(group.barrier().unwrap_err()).unwrap();
            };
            await_by(&mut work, &waker(calls));
            works.push(work);
        }
        awaited.wait();
        for work in works {
            let error = receiver.recv_timeout(SOON).unwrap();
            assert!(error.to_string().contains("it has had enough"), "{error}");
            let error = work.wait().unwrap_err();
            assert!(error.to_string().contains("it has had enough"), "{error}");
        }
    });
}

/// A log subscriber that panics.
struct Deaf;

impl tracing::Subscriber for Deaf {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        panic!("as this test wants, when it is told");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn who_awaits_is_woken_though_telling_of_the_failure_panics() {
    let awaited = Barrier::new(2);
    world(2, small, |group| {
        if group.rank() == 1 {
            awaited.wait();
            return drop(group.abort("it has had enough"));
        }
        let (sender, receiver) = mpsc::channel();
        let mut work = group.begin().recv(vec![0_u8], 1).unwrap();
        await_by(&mut work, &waker(move || sender.send(()).unwrap()));
        // This thread drives, so it logs the failure.
        let hears = std::panic::AssertUnwindSafe(|| {
            tracing::subscriber::with_default(Deaf, || {
                awaited.wait();
                group.recv(&mut [0_u8], (1, 1))
            })
        });
        let _ = std::panic::catch_unwind(hears);
        receiver.recv_timeout(SOON).unwrap();
        let error = work.wait().unwrap_err();
        assert!(error.to_string().contains("it has had enough"), "{error}");
    });
}

/// Calls the group when it is dropped.
#[derive(Serialize, Deserialize, Default)]
struct Last {
    value: u8,
    #[serde(skip)]
    calls: Option<(Arc<ProcessGroup>, mpsc::Sender<()>)>,
}

impl Drop for Last {
    fn drop(&mut self) {
        if let Some((group, tell)) = self.calls.take() {
            group.barrier().unwrap();
            tell.send(()).unwrap();
        }
    }
}

#[test]
fn what_a_forgotten_work_has_may_call_when_it_is_dropped() {
    world(2, small, |group| {
        let (rank, group) = (group.rank(), Arc::new(group));
        for _ in 0..5 {
            if rank == 1 {
                assert_eq!(group.broadcast_object::<Last>(None, 0).unwrap().value, 7);
                group.barrier().unwrap();
                continue;
            }
            let (sender, receiver) = mpsc::channel();
            let value = Last { value: 7, calls: Some((Arc::clone(&group), sender)) };
            drop(group.begin().broadcast_object(Some(value), 0).unwrap());
            receiver.recv_timeout(SOON).unwrap();
        }
    });
}
