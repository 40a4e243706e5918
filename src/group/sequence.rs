//! Calls of several operations, written once for blocking and asynchronous callers.
//!
//! Such a call is a future that gets a [`Sequence`], by which it runs its operations one after the other. In a blocking call each
//! operation has ended when the sequence returns, so one poll ends the future. In an asynchronous call the future hands out the
//! operation and is pending; the driver polls it again when the operation has ended, in the group's same place in the order, so
//! that no operation of another call comes between. Ranks that block and ranks that do not make the same operations in the same
//! order.
//!
//! What an asynchronous call works on is a part of its future, which the engine keeps as it keeps an operation's memory: until
//! nothing touches it any more.

use std::{
    future::{Future, poll_fn},
    ops::ControlFlow,
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
};

use crate::{
    buffer::Borrowed,
    dtype::Dtype,
    engine::{Action, Done, Memory, Next, Receipts, What},
    error::{Error, Failure, Result},
    group::{
        ProcessGroup,
        plan::spec::CallSpec,
        shared::{Shared, State},
    },
    work::{Opening, Work},
};

/// By what a call does its operations.
pub(crate) struct Sequence<'s> {
    how: How<'s>,
    /// The number of the call's latest operation.
    latest: Option<u64>,
}

enum How<'s> {
    /// At once, and no other call of the group comes between.
    Now(&'s mut State),
    /// At once. Messages have no turns.
    Beside,
    /// By whoever drives.
    Later(Between),
}

/// What a call under way and whoever drives hand each other.
#[derive(Clone, Default)]
struct Between(Arc<Mutex<(Option<What>, Option<Done>)>>);

impl Between {
    fn with<R>(&self, act: impl FnOnce(&mut Option<What>, &mut Option<Done>) -> R) -> R {
        let (what, done) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        act(what, done)
    }

    async fn ask(&self, asked: What) -> Done {
        self.with(|what, _| *what = Some(asked));
        poll_fn(|_| self.with(|_, done| done.take()).map_or(Poll::Pending, Poll::Ready)).await
    }
}

impl Sequence<'_> {
    /// Does a collective. What is borrowed to it must not be touched before it has ended.
    pub(crate) async fn run(
        &mut self,
        group: &ProcessGroup,
        dtype: Dtype,
        spec: &CallSpec<'_>,
        borrowed: Borrowed<'_>,
    ) -> Result<()> {
        let ProcessGroup { shared, options, .. } = group;
        let done = match &mut self.how {
            How::Now(state) => shared.run(state, dtype, spec, borrowed, options).map(|()| state.latest),
            How::Beside => {
                let mut state = shared.state()?;
                shared.run(&mut state, dtype, spec, borrowed, options).map(|()| state.latest)
            }
            How::Later(between) => {
                let mut aside = Vec::new();
                match shared.collective(dtype, spec, borrowed, &mut aside, options) {
                    Ok((operation, schedule)) => {
                        Ok(between.ask(What::Collective(operation, schedule)).await.number)
                    }
                    Err(error) => Err(error),
                }
            }
        };
        match done {
            Ok(number) => self.latest = number,
            Err(error) => return Err(self.stuck(group, error)),
        }
        Ok(())
    }

    /// What an error is to the call: once it has done an operation, the others go on, and this rank cannot.
    pub(crate) fn stuck(&self, group: &ProcessGroup, error: impl Into<Error>) -> Error {
        match self.latest {
            Some(_) => Error::Failed(group.shared.midway(error.into())),
            None => error.into(),
        }
    }

    /// Sends, receives, or does several of these side by side; gives what each receive among them has got. Memory as of
    /// [`run`](Self::run).
    pub(crate) async fn messages(&mut self, group: &ProcessGroup, what: What) -> Result<Receipts> {
        match &self.how {
            How::Now(_) | How::Beside => Ok(group.wait(what)?.received),
            How::Later(between) => Ok(between.ask(what).await.received),
        }
    }

    /// The number of the operation that was done last.
    pub(crate) fn op(&self) -> u64 {
        self.latest.unwrap_or_default()
    }
}

impl ProcessGroup {
    /// Does a call of collectives, and waits for its end.
    pub(crate) fn now<R>(&self, call: impl AsyncFnOnce(&mut Sequence<'_>) -> Result<R>) -> Result<R> {
        let mut state = self.shared.state()?;
        self.at_once(How::Now(&mut state), call)
    }

    /// Does a call of messages, and waits for its end.
    pub(crate) fn beside<R>(&self, call: impl AsyncFnOnce(&mut Sequence<'_>) -> Result<R>) -> Result<R> {
        self.at_once(How::Beside, call)
    }

    fn at_once<R>(&self, how: How<'_>, call: impl AsyncFnOnce(&mut Sequence<'_>) -> Result<R>) -> Result<R> {
        let mut sequence = Sequence { how, latest: None };
        let end = pin!(call(&mut sequence)).poll(&mut Context::from_waker(Waker::noop()));
        match end {
            Poll::Ready(Err(Error::Failed(failure))) => Err(self.shared.over(failure)),
            Poll::Ready(end) => end,
            Poll::Pending => Err(self.shared.over(idle(&self.shared))),
        }
    }

    /// Begins a call, and makes what comes back of what it gives: on the thread that waits.
    pub(crate) fn later<R, T, F>(
        &self,
        name: &'static str,
        call: impl FnOnce(Sequence<'static>) -> F,
        open: impl FnOnce(R) -> Result<T> + Send + 'static,
    ) -> Result<Work<T>>
    where
        F: Future<Output = Result<R>> + Send + 'static,
        R: Send + 'static,
        T: Send + 'static,
    {
        self.shared.runtime.check_calls(name)?;
        let between = Between::default();
        let call = Box::pin(call(Sequence { how: How::Later(between.clone()), latest: None }));
        let mut call = UnderWay { shared: Arc::clone(&self.shared), call, between, open };
        if let Poll::Ready(end) = call.look() {
            let done = end.and_then(call.open).map(|done| Work::done(done, &self.shared.driver()));
            return done.map_err(|error| match error {
                Error::Failed(failure) => self.shared.over(failure),
                error => error,
            });
        }
        let (what, action) = call.next().map_err(|failure| self.shared.over(failure))?;
        Ok(Work::opened(self.shared.hand_in(name, what, action)?, &self.shared.driver()))
    }
}

/// A call under way.
struct UnderWay<R, O> {
    shared: Arc<Shared>,
    call: Pin<Box<dyn Future<Output = Result<R>> + Send>>,
    between: Between,
    open: O,
}

impl<R, O, T> UnderWay<R, O>
where
    R: Send + 'static,
    T: Send + 'static,
    O: FnOnce(R) -> Result<T> + Send + 'static,
{
    fn look(&mut self) -> Poll<Result<R>> {
        self.call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    /// What is to be done before it goes on.
    fn next(self) -> std::result::Result<(What, Action), Failure> {
        let what = self.between.with(|what, _| what.take()).ok_or_else(|| idle(&self.shared))?;
        let then = move |ended| {
            self.between.with(|_, done| *done = Some(ended));
            self.go_on()
        };
        Ok((what, Action::Then(Box::new(then))))
    }

    fn go_on(mut self) -> std::result::Result<Next<Memory, Action>, Failure> {
        match self.look() {
            Poll::Pending => self.next().map(ControlFlow::Continue),
            Poll::Ready(Err(Error::Failed(failure))) => Err(failure),
            Poll::Ready(end) => {
                let open = self.open;
                let opening: Opening<T> = Box::new(move || end.and_then(open));
                Ok(ControlFlow::Break(Some(Box::new(opening))))
            }
        }
    }
}

/// A call that waits for nothing is a defect of this library.
fn idle(shared: &Shared) -> Failure {
    Failure::Aborted { rank: shared.runtime.rank, why: "a call waits for nothing".to_owned() }
}
