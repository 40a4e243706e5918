//! The thread that goes on with operations where nobody waits for them. There is one as soon as one was begun so.
//!
//! It alone does what is left of operations that have ended: it wakes executors and drops what nobody wants any more.
//! That runs others' code, which may call anything, so it runs where nothing is held: neither the lead nor, as it might
//! be by any other thread, the turn of a group.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError, atomic::Ordering, mpsc},
    thread::{self, JoinHandle},
};

use super::{Runtime, affinity, ended};
use crate::{
    engine::{CommId, Rest, Supervisor, Task},
    error::{Error, Result},
    rendezvous::{Position, Stage},
};

impl Runtime {
    /// Has the thread, without which nothing may be [begun](Self::begin).
    pub(crate) fn prepare(self: &Arc<Self>) -> Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            *thread = Some(self.spawn().map_err(|error| Error::Argument {
                call: "an asynchronous call",
                problem: format!(
                    "it needs a thread, which cannot be had, or not where it is to run: {error}"
                ),
            })?);
        }
        Ok(())
    }

    /// Hands in an operation that goes on by itself, if nobody waits for it.
    pub(crate) fn begin(&self, comm_id: CommId, task: Task) {
        self.ask(comm_id, task);
        let queue = self.queue();
        if !queue.leading {
            self.hand_over(queue);
        }
    }

    fn spawn(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let runtime = Arc::clone(self);
        let (tell, told) = mpsc::channel();
        let goes_on = move || {
            let bound = runtime.affinity.bind();
            affinity::defer();
            let here = bound.is_ok();
            // Whoever has made it waits for this.
            let _ = tell.send(bound);
            // What is left to do is done whatever happens.
            while here && catch_unwind(AssertUnwindSafe(|| runtime.background())).is_err() {
                // Whoever is told of it may panic too.
                let told = || tracing::error!(rank = runtime.rank, "the thread that goes on has panicked");
                catch_unwind(AssertUnwindSafe(told)).unwrap_or_else(std::mem::forget);
            }
        };
        let thread = thread::Builder::new().name("unisono".to_owned()).spawn(goes_on)?;
        told.recv().unwrap_or(Ok(())).map(|()| thread)
    }

    /// Goes on with what is under way while nobody waits for it, until the end.
    fn background(&self) {
        loop {
            let mut queue = self.queue();
            queue.background = false;
            queue.resting = true;
            let idle = || !self.has_open() || self.wanted();
            while queue.rests.is_empty() && !queue.quit && (queue.gone || queue.leading || idle()) {
                queue = self.rested.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            queue.resting = false;
            if !queue.rests.is_empty() {
                self.rests.store(false, Ordering::Relaxed);
                let rests = std::mem::take(&mut queue.rests);
                drop(queue);
                Rest::finish(rests);
                continue;
            }
            if queue.quit {
                return;
            }
            queue.background = true;
            let lead = self.lead(queue);
            self.drive(None, (&|| self.rests.load(Ordering::Relaxed), None));
            drop(lead);
        }
    }

    /// After the last call: ends the endpoint, and the thread when it has told all.
    pub(crate) fn close(&self) {
        // Whoever drives gives the engine back, whatever is under way: where this thread unwinds, the others are to hear of
        // it now.
        let lead = self.claim();
        self.end(self.abandon(), ended());
        drop(lead);
        self.queue().quit = true;
        self.rested.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Its own last deed may be to drop the last handle: then it goes on where it is.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            // What panics there is told there.
            let _ = thread.join();
        }
        // The watch's thread must not be the last that has this node.
        self.monitor.position.set(|| Position::of(Stage::Leaves));
        if let (Some(watch), false) = (&self.monitor.watch, thread::panicking()) {
            watch.leave();
        }
    }
}
