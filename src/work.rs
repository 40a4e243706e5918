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
    engine::{Done, Kept, Ticket},
    error::{Error, Failure, Result},
};

/// Who goes on with operations.
pub(crate) trait Driver: Send + Sync {
    /// Waits for the end of an operation, at most until then; false if it has not come.
    fn wait(&self, ticket: &Ticket, until: Option<Instant>) -> bool;

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
    ticket: Arc<Ticket>,
    /// Gone with the last handle of the world, which ends all that is under way: a forgotten work keeps nothing alive.
    driver: Weak<dyn Driver>,
    /// What comes back of what was held.
    open: fn(Done) -> Option<Result<T>>,
    /// The end, if it was taken from the ticket and not from here yet.
    end: Option<Result<Done>>,
}

impl<T> fmt::Debug for Work<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("done", &self.is_done()).finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Work<T> {
    pub(crate) fn new(ticket: Arc<Ticket>, driver: &Arc<dyn Driver>) -> Self {
        let driver = Arc::downgrade(driver);
        Self { ticket, driver, open: |done| held(done.held).map(Ok), end: None }
    }

    /// Of a collective, which also keeps a `K` until it has ended.
    pub(crate) fn begun<K: 'static>(ticket: Arc<Ticket>, driver: &Arc<dyn Driver>) -> Self {
        let open = |done: Done| held::<(T, K)>(done.held).map(|(held, _)| Ok(held));
        let driver = Arc::downgrade(driver);
        Self { ticket, driver, open, end: None }
    }

    /// Of what holds an [`Opening`].
    pub(crate) fn opened(ticket: Arc<Ticket>, driver: &Arc<dyn Driver>) -> Self {
        let open = |done: Done| held::<Opening<T>>(done.held).map(|open| open());
        let driver = Arc::downgrade(driver);
        Self { ticket, driver, open, end: None }
    }

    /// Of what has ended already.
    pub(crate) fn done(held: T, driver: &Arc<dyn Driver>) -> Self {
        let ticket = Arc::new(Ticket::default());
        // Nobody waits for it yet.
        drop(Arc::clone(&ticket).end(Ok(Done { held: Some(Box::new(held)), ..Done::default() })));
        Self::new(ticket, driver)
    }
}

impl<B: Send + 'static> Work<(B, Rank)> {
    /// Of a receive: what was held, and who sent the message.
    pub(crate) fn received(ticket: Arc<Ticket>, driver: &Arc<dyn Driver>) -> Self {
        let open = |done: Done| Some(Ok((held(done.held)?, done.received.first()?.from)));
        let driver = Arc::downgrade(driver);
        Self { ticket, driver, open, end: None }
    }

    /// Of a receive or of a send, which knows to whom.
    pub(crate) fn either(ticket: Arc<Ticket>, driver: &Arc<dyn Driver>) -> Self {
        let open = |done: Done| {
            let (data, to): (B, Option<Rank>) = held(done.held)?;
            Some(Ok((data, to.or_else(|| Some(done.received.first()?.from))?)))
        };
        let driver = Arc::downgrade(driver);
        Self { ticket, driver, open, end: None }
    }
}

/// What was held, if it is that.
fn held<T: 'static>(held: Kept) -> Option<T> {
    held?.downcast().ok().map(|held| *held)
}

impl<T> Work<T> {
    /// Whether it has ended, well or not. Never blocks.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.check_process().is_err() || self.end.is_some() || self.ticket.ended() || self.failed().is_some()
    }

    /// Waits for its end, and gives back what the call was given.
    ///
    /// # Errors
    /// As the blocking call; what it worked on is gone then.
    pub fn wait(mut self) -> Result<T> {
        self.check_process()?;
        self.wait_until(None);
        self.take().unwrap_or_else(|| Err(self.lost()))
    }

    /// Waits for its end, but not longer than this; gives the work back if it has not come.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_timeout(mut self, timeout: Duration) -> Result<std::result::Result<T, Self>> {
        self.check_process()?;
        let until = Instant::now().checked_add(timeout);
        if !self.wait_until(until) {
            return Ok(Err(self));
        }
        self.take().unwrap_or_else(|| Err(self.lost())).map(Ok)
    }

    fn take(&mut self) -> Option<Result<T>> {
        let end = self.end.take().or_else(|| Some(self.ticket.take()?.map_err(Error::Failed)))?;
        Some(end.and_then(|done| (self.open)(done).unwrap_or_else(|| Err(self.lost()))))
    }

    /// False if the end has not come until then.
    fn wait_until(&self, until: Option<Instant>) -> bool {
        self.driver.upgrade().is_none_or(|driver| driver.wait(&self.ticket, until))
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
        if self.ticket.ended() {
            let problem = "it has ended and given its result before".to_owned();
            return Error::Argument { call: "Work", problem };
        }
        Error::Failed(self.failed().unwrap_or(Failure::Closed))
    }
}

impl<T> Future for Work<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        if let Err(error) = self.check_process() {
            return Poll::Ready(Err(error));
        }
        match self.ticket.poll(context.waker()) {
            Poll::Ready(Some(end)) => {
                self.end = Some(end.map_err(Error::Failed));
                Poll::Ready(self.take().unwrap_or_else(|| Err(self.lost())))
            }
            Poll::Ready(None) => Poll::Ready(Err(self.lost())),
            Poll::Pending => match self.failed() {
                Some(failure) => Poll::Ready(Err(Error::Failed(failure))),
                None => Poll::Pending,
            },
        }
    }
}
