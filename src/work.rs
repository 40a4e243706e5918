//! Asynchronous calls: [`Work`] is an operation that nobody waits for yet.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use unisono_schedule::Rank;

use crate::{
    engine::{Done, End, Memory, Outcome},
    error::{Error, Failure, Result},
};

/// Who goes on with operations.
pub(crate) trait Driver: Send + Sync {
    /// Waits for the end of an operation, at most until then; false if it has not come.
    fn wait(&self, outcome: &Outcome, until: Option<Instant>) -> bool;

    /// Why all is over, if it is.
    fn failed(&self) -> Option<Failure>;

    /// An error in a child of the process that joined.
    fn check_process(&self) -> Result<()>;
}

/// Makes what comes back, or the error that only this call ends with, on the thread that wants it.
pub(crate) type Opening<T> = Box<dyn FnOnce() -> Result<T> + Send>;

/// An operation under way, which has what it works on. It goes on by itself.
///
/// [`wait`](Self::wait) gives back what the call was given; so does awaiting it, on any executor. Who awaits is woken by
/// a thread of this library, which wakes the next, and goes on with the operations that nobody waits for, only when the
/// waker returns; the end of the world waits for that too. Polled again after it gave its result, it gives an
/// [`Error::Argument`]. A `Work` that is dropped is finished all the same, for the
/// other ranks wait for it; what it works on is dropped when it has ended. Only a receive that was dropped and for which
/// no message comes is given up: at its deadline, when all have left its group, or a second after this rank has begun to
/// leave the world.
#[must_use = "what it works on comes back from `wait`"]
pub struct Work<T> {
    outcome: Arc<Outcome>,
    /// Gone with the last handle of the world, which ends all that is under way: a forgotten work keeps nothing alive.
    driver: Weak<dyn Driver>,
    /// Makes the result of the memory that comes back.
    open: fn(Done) -> Option<Result<T>>,
}

impl<T> fmt::Debug for Work<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("done", &self.is_done()).finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Work<T> {
    pub(crate) fn new(outcome: Arc<Outcome>, driver: &Arc<dyn Driver>) -> Self {
        Self::with(outcome, driver, |done| memory(done.memory).map(Ok))
    }

    /// Of a collective, which also keeps a `K` until it has ended.
    pub(crate) fn begun<K: 'static>(outcome: Arc<Outcome>, driver: &Arc<dyn Driver>) -> Self {
        Self::with(outcome, driver, |done| memory::<(T, K)>(done.memory).map(|(result, _)| Ok(result)))
    }

    /// Of what holds an [`Opening`].
    pub(crate) fn opened(outcome: Arc<Outcome>, driver: &Arc<dyn Driver>) -> Self {
        Self::with(outcome, driver, |done| memory::<Opening<T>>(done.memory).map(|open| open()))
    }

    /// Of what has ended already.
    pub(crate) fn done(result: T, driver: &Arc<dyn Driver>) -> Self {
        Self::new(Outcome::ended_with(Some(Box::new(result))), driver)
    }
}

impl<B: Send + 'static> Work<(B, Rank)> {
    /// Of a receive: its memory, and who sent the message.
    pub(crate) fn received(outcome: Arc<Outcome>, driver: &Arc<dyn Driver>) -> Self {
        Self::with(outcome, driver, |done| Some(Ok((memory(done.memory)?, done.received.first()?.from))))
    }

    /// Of a receive or of a send, which knows to whom.
    pub(crate) fn either(outcome: Arc<Outcome>, driver: &Arc<dyn Driver>) -> Self {
        Self::with(outcome, driver, |done| {
            let (data, to): (B, Option<Rank>) = memory(done.memory)?;
            Some(Ok((data, to.or_else(|| Some(done.received.first()?.from))?)))
        })
    }
}

/// The memory that an operation returns, if it is that.
fn memory<T: 'static>(memory: Memory) -> Option<T> {
    memory?.downcast().ok().map(|memory| *memory)
}

impl<T> Work<T> {
    /// Whose result `open` makes of what the operation leaves.
    fn with(outcome: Arc<Outcome>, driver: &Arc<dyn Driver>, open: fn(Done) -> Option<Result<T>>) -> Self {
        Self { outcome, driver: Arc::downgrade(driver), open }
    }

    /// Whether it has ended, well or not. Never blocks.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.check_process().is_err() || self.outcome.ended() || self.failed().is_some()
    }

    /// Waits for its end, and gives back what the call was given.
    ///
    /// # Errors
    /// As the blocking call; what it worked on is gone then.
    pub fn wait(self) -> Result<T> {
        self.check_process()?;
        self.wait_until(None);
        self.take()
    }

    /// Waits for its end, but not longer than this; gives the work back if it has not come.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_timeout(self, timeout: Duration) -> Result<std::result::Result<T, Self>> {
        self.check_process()?;
        let until = Instant::now().checked_add(timeout);
        if !self.wait_until(until) {
            return Ok(Err(self));
        }
        self.take().map(Ok)
    }

    fn take(&self) -> Result<T> {
        self.outcome.take().map_or_else(|| Err(self.lost()), |end| self.result(end))
    }

    fn result(&self, end: End) -> Result<T> {
        (self.open)(end.map_err(Error::Failed)?).unwrap_or_else(|| Err(self.lost()))
    }

    /// False if the end has not come until then.
    fn wait_until(&self, until: Option<Instant>) -> bool {
        self.driver.upgrade().is_none_or(|driver| driver.wait(&self.outcome, until))
    }

    fn check_process(&self) -> Result<()> {
        self.driver.upgrade().map_or(Ok(()), |driver| driver.check_process())
    }

    /// Why all is over, if it is.
    fn failed(&self) -> Option<Failure> {
        self.driver.upgrade().map_or_else(|| Some(Failure::Closed), |driver| driver.failed())
    }

    /// Why there is no result: it was given before, or all is over.
    fn lost(&self) -> Error {
        if self.outcome.ended() {
            let problem = "it has ended and given its result before".to_owned();
            return Error::Argument { call: "Work", problem };
        }
        Error::Failed(self.failed().unwrap_or(Failure::Closed))
    }
}

impl<T> Future for Work<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        if let Err(error) = self.check_process() {
            return Poll::Ready(Err(error));
        }
        match self.outcome.poll(context.waker()) {
            Poll::Ready(Some(end)) => Poll::Ready(self.result(end)),
            Poll::Ready(None) => Poll::Ready(Err(self.lost())),
            Poll::Pending => match self.failed() {
                Some(failure) => Poll::Ready(Err(Error::Failed(failure))),
                None => Poll::Pending,
            },
        }
    }
}
