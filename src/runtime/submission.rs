//! Takes requests from any thread to the driver without a lock.
//!
//! No request is lost: a thread first pushes its request, then looks whether the driver sleeps and whether the queue is closed. The
//! driver first declares that it will sleep, or closes the queue, and then looks once more for requests. A fence between the two
//! steps on both sides guarantees that at least one side sees the step of the other.

use std::sync::atomic::{AtomicBool, Ordering, fence};

use crossbeam_queue::SegQueue;
use unisono_engine::{CommId, SubmissionEntry};

#[derive(Default)]
pub(super) struct Submission {
    requests: SegQueue<(CommId, SubmissionEntry)>,
    /// True if the driver sleeps, or is about to.
    asleep: AtomicBool,
    /// True if the world has ended: no thread drives any more.
    closed: AtomicBool,
}

impl Submission {
    /// Submits a request. Afterwards the caller wakes the driver if it [sleeps](Self::asleep), and takes all requests if this is
    /// [closed](Self::closed).
    pub(super) fn push(&self, request: (CommId, SubmissionEntry)) {
        self.requests.push(request);
        fence(Ordering::SeqCst);
    }

    /// The next request.
    pub(super) fn next(&self) -> Option<(CommId, SubmissionEntry)> {
        // The engine calls this in every pass, and to test for emptiness costs less than to pop.
        if self.is_empty() { None } else { self.requests.pop() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Declares that the driver will sleep unless there is a request, or that it is awake.
    pub(super) fn sleeps(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// True if the driver sleeps. If not, it will see everything that this thread has done before.
    pub(super) fn asleep(&self) -> bool {
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed)
    }

    /// Closes the queue. Afterwards the caller takes all requests.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub(super) fn closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Barrier, atomic::AtomicUsize},
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    const THREADS: usize = 3;
    /// This is far longer than any wake takes.
    const LONG: Duration = Duration::from_secs(60);

    /// Threads push one request each and wake a driver that sleeps; a wake that is lost would let it sleep for ever.
    #[test]
    fn a_driver_that_sleeps_is_woken() {
        for _ in 0..200 {
            let (queue, start) = (Submission::default(), Barrier::new(THREADS + 1));
            thread::scope(|scope| {
                let driver = scope.spawn(|| {
                    start.wait();
                    let mut got = 0;
                    while got < THREADS {
                        queue.sleeps(true);
                        // An early wake lets the next one return at once.
                        while queue.is_empty() {
                            let since = Instant::now();
                            thread::park_timeout(LONG);
                            assert!(since.elapsed() < LONG, "a wake was lost");
                        }
                        queue.sleeps(false);
                        while queue.next().is_some() {
                            got += 1;
                        }
                    }
                });
                for _ in 0..THREADS {
                    let (queue, start, driver) = (&queue, &start, driver.thread().clone());
                    scope.spawn(move || {
                        start.wait();
                        queue.push((0, SubmissionEntry::Leave));
                        if queue.asleep() {
                            driver.unpark();
                        }
                    });
                }
            });
        }
    }

    /// If a thread pushes when the world has ended, or just before, either this thread or the one that ends the world takes the request.
    #[test]
    fn no_request_is_left_when_all_is_over() {
        for _ in 0..500 {
            let (queue, start) = (Submission::default(), Barrier::new(THREADS + 1));
            let taken = AtomicUsize::new(0);
            let take = || {
                while queue.next().is_some() {
                    taken.fetch_add(1, Ordering::Relaxed);
                }
            };
            thread::scope(|scope| {
                for _ in 0..THREADS {
                    let (queue, start, take) = (&queue, &start, &take);
                    scope.spawn(move || {
                        start.wait();
                        queue.push((0, SubmissionEntry::Leave));
                        if queue.closed() {
                            take();
                        }
                    });
                }
                start.wait();
                queue.close();
                take();
            });
            assert_eq!(taken.load(Ordering::Relaxed), THREADS);
        }
    }
}
