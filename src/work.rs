//! Asynchronous calls: [`Work`] is an operation that the caller has begun and not yet waited for.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use unisono_engine::{CompletionResult, Done, Outcome, ReturnedMemory};
use unisono_schedule::Rank;

use crate::{
    error::{Error, Failure, Result},
    runtime::Runtime,
};

/// Makes the result of a call, or the error that only this call returns, on the thread that waits.
pub(crate) type Opening<T> = Box<dyn FnOnce() -> Result<T> + Send>;

/// An asynchronous operation. It owns the memory that it works on, and advances without being waited for.
///
/// [`wait`](Self::wait) returns the memory that the call was given; so does awaiting the `Work`, on any executor. A thread of this
/// library runs the waker of the task that awaits. It wakes other tasks, and advances operations that no thread waits for, only
/// after the waker has returned; leaving the world waits for that too. A `Work` that is polled after it has returned its result
/// returns [`Error::Argument`].
///
/// [`wait_done`](Self::wait_done), [`wait_done_timeout`](Self::wait_done_timeout) and [`poll_done`](Self::poll_done) wait by reference,
/// any number of threads at once, and leave the result where it is: [`wait`](Self::wait) then returns it at once.
///
/// The operation of a dropped `Work` is completed, because the other ranks wait for it, and its memory is dropped afterwards. Only a
/// receive whose `Work` was dropped and whose message has not arrived is given up: at its deadline, when all ranks have left its
/// group, or a second after this rank has begun to leave the world.
#[must_use = "`wait` returns the memory that the call was given"]
pub struct Work<T> {
    outcome: Arc<Outcome>,
    /// A weak reference: the last handle of the world drops the runtime, which ends all operations, so a forgotten `Work` keeps nothing
    /// alive.
    runtime: Weak<Runtime>,
    /// Makes the result from what the operation returns.
    open: fn(Done) -> Option<Result<T>>,
}

impl<T> fmt::Debug for Work<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("done", &self.is_done()).finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Work<T> {
    pub(crate) fn new(outcome: Arc<Outcome>, runtime: &Arc<Runtime>) -> Self {
        Self::with(outcome, runtime, |done| memory(done.memory).map(Ok))
    }

    /// For a collective that also keeps a `K` until it has ended.
    pub(crate) fn begun<K: 'static>(outcome: Arc<Outcome>, runtime: &Arc<Runtime>) -> Self {
        Self::with(outcome, runtime, |done| memory::<(T, K)>(done.memory).map(|(result, _)| Ok(result)))
    }

    /// For an operation whose memory is an [`Opening`].
    pub(crate) fn opened(outcome: Arc<Outcome>, runtime: &Arc<Runtime>) -> Self {
        Self::with(outcome, runtime, |done| memory::<Opening<T>>(done.memory).map(|open| open()))
    }

    /// For a call that has ended already.
    pub(crate) fn done(result: T, runtime: &Arc<Runtime>) -> Self {
        Self::new(Outcome::ended_with(Some(Box::new(result))), runtime)
    }
}

impl<B: Send + 'static> Work<(B, Rank)> {
    /// For a receive or a send; the memory of a send includes the receiver's rank.
    pub(crate) fn either(outcome: Arc<Outcome>, runtime: &Arc<Runtime>) -> Self {
        Self::with(outcome, runtime, |done| {
            let (data, to): (B, Option<Rank>) = memory(done.memory)?;
            Some(Ok((data, to.or_else(|| Some(done.received.first()?.from))?)))
        })
    }
}

/// The memory that an operation returns, if it is of this type.
fn memory<T: 'static>(memory: ReturnedMemory) -> Option<T> {
    memory?.downcast().ok().map(|memory| *memory)
}

impl<T> Work<T> {
    /// For an operation whose result `open` makes.
    fn with(outcome: Arc<Outcome>, runtime: &Arc<Runtime>, open: fn(Done) -> Option<Result<T>>) -> Self {
        Self { outcome, runtime: Arc::downgrade(runtime), open }
    }

    /// True if the operation has ended, successfully or not. Never blocks.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.check_process().is_err() || self.outcome.ended() || self.failed().is_some()
    }

    /// Waits until the operation has ended, and returns the memory that the call was given.
    ///
    /// # Errors
    /// As the blocking call; the memory is dropped then.
    pub fn wait(self) -> Result<T> {
        self.wait_until(None)?;
        self.take()
    }

    /// Waits until the operation has ended, at most for `timeout`; returns the `Work` itself if it has not ended.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_timeout(self, timeout: Duration) -> Result<std::result::Result<T, Self>> {
        if self.wait_done_timeout(timeout)? { self.take().map(Ok) } else { Ok(Err(self)) }
    }

    /// Waits until the operation has ended, successfully or not. [`wait`](Self::wait) then returns the result at once.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    pub fn wait_done(&self) -> Result<()> {
        self.wait_until(None).map(drop)
    }

    /// The same, at most for `timeout`. Returns whether the operation has ended.
    ///
    /// # Errors
    /// As [`wait_done`](Self::wait_done).
    pub fn wait_done_timeout(&self, timeout: Duration) -> Result<bool> {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    /// As [`wait_done`](Self::wait_done), but asks `go_on` every `every` whether to wait on: for callers that must look at other things
    /// meanwhile, such as signals. Returns whether the operation has ended. The thread counts as blocked, unlike one that waits with a
    /// timeout: the detection of deadlocks sees it.
    ///
    /// # Errors
    /// As [`wait_done`](Self::wait_done).
    pub fn wait_done_while(&self, every: Duration, mut go_on: impl FnMut() -> bool) -> Result<bool> {
        self.check_process()?;
        let Some(runtime) = self.runtime.upgrade() else { return Ok(true) };
        let _waiting = runtime.callers.wait();
        loop {
            if runtime.wait_until(&self.outcome, Instant::now().checked_add(every)) {
                return Ok(true);
            }
            if !go_on() {
                return Ok(false);
            }
        }
    }

    /// Ready when the operation has ended, successfully or not. As with any future, only the waker of the latest poll is woken.
    pub fn poll_done(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.check_process().is_err() || self.outcome.poll_ended(context.waker()).is_ready() {
            return Poll::Ready(());
        }
        self.failed().map_or(Poll::Pending, |_| Poll::Ready(()))
    }

    /// The result of an operation that has ended, once.
    ///
    /// # Errors
    /// As [`wait`](Self::wait); [`Error::Argument`] if it has given its result before or has not ended.
    pub fn take(&self) -> Result<T> {
        self.outcome.take().map_or_else(|| Err(self.lost()), |end| self.result(end))
    }

    fn result(&self, end: CompletionResult) -> Result<T> {
        (self.open)(end.map_err(|failure| self.returned(failure))?).unwrap_or_else(|| Err(self.lost()))
    }

    fn returned(&self, failure: Failure) -> Error {
        let error = Error::Failed(failure);
        match self.runtime.upgrade() {
            Some(runtime) => runtime.returned(error),
            None => error,
        }
    }

    /// Waits at most until `until`. False if the operation has not ended.
    fn wait_until(&self, until: Option<Instant>) -> Result<bool> {
        self.check_process()?;
        Ok(self.runtime.upgrade().is_none_or(|runtime| runtime.wait_until(&self.outcome, until)))
    }

    fn check_process(&self) -> Result<()> {
        self.runtime.upgrade().map_or(Ok(()), |runtime| runtime.check_process())
    }

    /// The failure that has ended the world, if there is one.
    fn failed(&self) -> Option<Failure> {
        self.runtime.upgrade().map_or_else(|| Some(Failure::Closed), |runtime| runtime.failed())
    }

    /// The error if there is no result: it was returned before, the world has ended, or the operation has not.
    fn lost(&self) -> Error {
        let problem = match (self.outcome.ended(), self.failed()) {
            (true, _) => "it has ended and given its result before",
            (false, Some(failure)) => return self.returned(failure),
            (false, None) => "it has not ended: wait for it first, or look whether it is done",
        };
        Error::Argument { call: "Work", problem: problem.to_owned() }
    }
}

impl<T> Future for Work<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        if let Err(error) = self.check_process() {
            return Poll::Ready(Err(error));
        }
        match self.outcome.poll_ended(context.waker()).map(|()| self.outcome.take()) {
            Poll::Ready(Some(end)) => Poll::Ready(self.result(end)),
            Poll::Ready(None) => Poll::Ready(Err(self.lost())),
            Poll::Pending => match self.failed() {
                Some(failure) => Poll::Ready(Err(self.returned(failure))),
                None => Poll::Pending,
            },
        }
    }
}
