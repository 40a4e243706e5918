//! Takes requests from any thread to the driver without a lock.
//!
//! Nothing is left behind: a thread first pushes its request, then looks whether the driver sleeps and whether all is over; the
//! driver first says that it will sleep, or that all is over, and then looks once more for requests. A fence between both steps,
//! on both sides, lets at least one of the two see what the other has done.

use std::sync::atomic::{AtomicBool, Ordering, fence};

use crossbeam_queue::SegQueue;

pub(super) struct Submission<T> {
    requests: SegQueue<T>,
    /// Whether the driver sleeps, or is about to.
    asleep: AtomicBool,
    /// Whether all is over: nobody drives any more.
    closed: AtomicBool,
}

impl<T> Default for Submission<T> {
    fn default() -> Self {
        Self { requests: SegQueue::new(), asleep: AtomicBool::new(false), closed: AtomicBool::new(false) }
    }
}

impl<T> Submission<T> {
    /// Submits a request. Afterwards the caller wakes the driver if it [sleeps](Self::asleep), and takes all requests if this is
    /// [closed](Self::closed).
    pub(super) fn push(&self, request: T) {
        self.requests.push(request);
        fence(Ordering::SeqCst);
    }

    /// The next request.
    pub(super) fn next(&self) -> Option<T> {
        // Every round of the engine asks: a look at an empty queue costs less than a try.
        if self.is_empty() { None } else { self.requests.pop() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The driver will sleep unless there is a request, or has slept.
    pub(super) fn sleeps(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether the driver sleeps, after whatever this thread has done for it to see.
    pub(super) fn asleep(&self) -> bool {
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed)
    }

    /// All is over. Afterwards the caller takes all requests.
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
    /// Far longer than any wake takes.
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
                for thread in 0..THREADS {
                    let (queue, start, driver) = (&queue, &start, driver.thread().clone());
                    scope.spawn(move || {
                        start.wait();
                        queue.push(thread);
                        if queue.asleep() {
                            driver.unpark();
                        }
                    });
                }
            });
        }
    }

    /// Whoever pushes when all is over, or just before, has the request taken: by itself or by who ends all.
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
                for thread in 0..THREADS {
                    let (queue, start, take) = (&queue, &start, &take);
                    scope.spawn(move || {
                        start.wait();
                        queue.push(thread);
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
