//! The progress thread: drives the engine while nobody waits for its operations, and runs their completion actions. It starts
//! with the first asynchronous call.
//!
//! Only this thread runs completion actions: it calls wakers, and drops memory that nobody waits for. These run the program's code,
//! which may call anything, so neither the driver lock nor a group's state is locked meanwhile.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError, mpsc},
    thread::{self, JoinHandle},
};

use super::{Runtime, affinity};
use crate::{
    engine::{CommId, Completion, Supervisor, Task},
    error::{Error, Failure, Result},
    rendezvous::{Position, Stage},
};

impl Runtime {
    /// Starts the thread unless it runs; to be called before [`begin`](Self::begin).
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

    /// Submits an operation that no thread waits for.
    pub(crate) fn begin(&self, comm_id: CommId, task: Task) {
        self.ask(comm_id, task);
        let roles = self.roles();
        if !roles.driven {
            self.hand_over(roles);
        }
    }

    fn spawn(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let runtime = Arc::clone(self);
        let (tell, told) = mpsc::channel();
        let goes_on = move || {
            let bound = runtime.affinity.bind();
            affinity::defer();
            let here = bound.is_ok();
            // The thread that starts this one waits for it.
            let _ = tell.send(bound);
            // After a panic too, completion actions run.
            while here && catch_unwind(AssertUnwindSafe(|| runtime.background())).is_err() {
                // The log's subscriber may panic too.
                let told = || crate::log::error!(rank = runtime.rank, "the progress thread has panicked");
                catch_unwind(AssertUnwindSafe(told)).unwrap_or_else(std::mem::forget);
            }
        };
        let thread = thread::Builder::new().name("unisono".to_owned()).spawn(goes_on)?;
        told.recv().unwrap_or(Ok(())).map(|()| thread)
    }

    /// Drives while nobody else does, and runs completion actions, until the end.
    fn background(&self) {
        loop {
            let mut roles = self.roles();
            roles.background = false;
            roles.resting = true;
            let idle = || !self.has_open() || self.wanted();
            while self.finished.is_empty() && !roles.quit && (roles.gone || roles.driven || idle()) {
                roles = self.rested.wait(roles).unwrap_or_else(PoisonError::into_inner);
            }
            roles.resting = false;
            if !self.finished.is_empty() {
                drop(roles);
                Completion::finish(std::iter::from_fn(|| self.finished.pop()).collect());
                continue;
            }
            if roles.quit {
                return;
            }
            roles.background = true;
            let lock = self.lock_driver(roles);
            self.drive(None, (&|| !self.finished.is_empty(), None));
            drop(lock);
        }
    }

    /// After the last call: closes the endpoint, and ends the thread once all completion actions have run.
    pub(crate) fn close(&self) {
        // Does not wait for active operations: if this thread is panicking, the other ranks must learn of it now.
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
        // So that the watch's thread does not hold the last reference to this runtime.
        self.monitor.position.set(|| Position::of(Stage::Leaves));
        if let (Some(watch), false) = (&self.monitor.watch, thread::panicking()) {
            watch.leave();
        }
    }
}
