//! The progress thread drives the engine as long as no thread waits for its operations, and runs their completion actions. It starts with
//! the first asynchronous call.
//!
//! A small operation begins on the thread of its caller, which often waits for it at once. So the progress thread is not woken for each:
//! during such calls it naps, and checks after each nap whether an operation needs it.
//!
//! Only this thread runs completion actions: it calls wakers, and drops memory that no caller wants. Both run the program's code, which may
//! call anything, so neither the driver lock nor a group's state is locked meanwhile.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, MutexGuard, PoisonError, atomic::Ordering, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use unisono_engine::{CommId, Completion, Supervisor, WorkRequest};

use super::{Roles, Runtime, Sleep, affinity};
use crate::{
    error::{Error, Failure, Result},
    rendezvous::{Position, Stage},
};

/// The most bytes of an operation that begins on the thread of its caller, and for which the progress thread is not woken at once.
const SMALL: usize = 16 << 10;

/// The shortest and the longest nap. An operation that no thread waits for is delayed by one nap at most; the longest naps cost a core that
/// computes less than a hundredth.
const NAPS: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(1));

/// The number of naps without a call after which it sleeps until it is woken.
const NAPS_WITHOUT_CALL: u32 = 5;

/// How long the progress thread sleeps between calls.
struct Naps {
    /// The length of the next nap.
    next: Duration,
    /// The number of further naps without a call.
    left: u32,
}

impl Runtime {
    /// Starts the thread unless it runs. A caller does this before [`begin`](Self::begin).
    pub(crate) fn prepare(self: &Arc<Self>) -> Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            *thread = Some(self.spawn().map_err(|error| Error::Thread {
                thread: "the progress thread, which asynchronous calls need",
                problem: format!("{error}; see the limit on processes (ulimit -u) and UNISONO_THREAD_CORES"),
            })?);
        }
        Ok(())
    }

    /// Begins an operation that no thread waits for.
    pub(crate) fn begin(&self, comm_id: CommId, task: WorkRequest) {
        let small = task.what.bytes() <= SMALL;
        if let Some(lock) = small.then(|| self.try_lock_driver()).flatten() {
            self.open.fetch_add(1, Ordering::SeqCst);
            // One round sends as much as it can now; it does not wait.
            let passed = Cell::new(false);
            self.drive(Some((comm_id, task)), (&|| passed.replace(true), Some(Instant::now())));
            self.roles().begun = true;
            drop(lock);
            return;
        }
        self.ask(comm_id, task);
        let mut roles = self.roles();
        if !self.driven.load(Ordering::SeqCst) {
            if roles.sleep == Sleep::Naps {
                // The thread is woken at once, so that this operation does not wait for the end of the nap.
                roles.sleep = Sleep::Deep;
            }
            self.hand_over(roles);
        }
    }

    fn spawn(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let runtime = Arc::clone(self);
        let (sender, receiver) = mpsc::channel();
        let goes_on = move || {
            let bound = runtime.affinity.bind();
            affinity::defer();
            let here = bound.is_ok();
            // The thread that starts this one waits for this message.
            let _ = sender.send(bound);
            // Even after a panic, completion actions run.
            while here && catch_unwind(AssertUnwindSafe(|| runtime.background())).is_err() {
                // The log's subscriber may panic too.
                let report = || crate::log::error!(rank = runtime.rank, "the progress thread has panicked");
                catch_unwind(AssertUnwindSafe(report)).unwrap_or_else(std::mem::forget);
            }
        };
        let thread = thread::Builder::new().name("unisono".to_owned()).spawn(goes_on)?;
        receiver.recv().unwrap_or(Ok(())).map(|()| thread)
    }

    /// Drives as long as no other thread does, and runs completion actions, until the runtime ends.
    fn background(&self) {
        let mut naps = Naps { next: NAPS.0, left: 0 };
        loop {
            let mut roles = self.roles();
            roles.background = false;
            roles = self.rest(roles, &mut naps);
            if !self.finished.is_empty() {
                drop(roles);
                Completion::finish(std::iter::from_fn(|| self.finished.pop()).collect());
                continue;
            }
            if roles.quit {
                return;
            }
            // Another thread may take it first.
            let Some(lock) = self.take_driver() else { continue };
            roles.background = true;
            drop(roles);
            self.drive(None, (&|| !self.finished.is_empty(), None));
            drop(lock);
        }
    }

    /// Sleeps until there is something to do.
    fn rest<'r>(&self, mut roles: MutexGuard<'r, Roles>, naps: &mut Naps) -> MutexGuard<'r, Roles> {
        let idle = || !self.has_open() || self.wanted();
        let driven = || self.driven.load(Ordering::SeqCst);
        naps.next = NAPS.0;
        while self.finished.is_empty() && !roles.quit && (roles.gone || driven() || idle()) {
            if std::mem::take(&mut roles.begun) {
                naps.left = NAPS_WITHOUT_CALL;
            }
            if naps.left == 0 {
                roles.sleep = Sleep::Deep;
                roles = self.rested.wait(roles).unwrap_or_else(PoisonError::into_inner);
            } else {
                naps.left -= 1;
                roles.sleep = Sleep::Naps;
                roles = self.rested.wait_timeout(roles, naps.next).unwrap_or_else(PoisonError::into_inner).0;
                naps.next = (2 * naps.next).min(NAPS.1);
            }
        }
        roles.sleep = Sleep::Awake;
        roles
    }

    /// After the last call: closes the endpoint, and ends the thread once all completion actions have run.
    pub(crate) fn close(&self) {
        // This does not wait for active operations: if this thread is panicking, the other ranks must learn of it now.
        let lock = self.claim_driver();
        self.end(self.abandon(), Failure::Closed);
        drop(lock);
        self.roles().quit = true;
        self.rested.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The progress thread itself may drop the last handle: it cannot join itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            // A panic of that thread has been logged.
            let _ = thread.join();
        }
        // This keeps the watch's thread from holding the last reference to this runtime.
        self.monitor.position.set(|| Position::of(Stage::Leaves));
        if let (Some(watch), false) = (&self.monitor.watch, thread::panicking()) {
            watch.leave();
        }
    }
}
