//! Calls of several operations, written once for blocking and asynchronous callers.
//!
//! Such a call is a future that runs its operations, one after the other, by a [`Sequence`]. In a blocking call each operation has
//! ended when the sequence returns, so one poll ends the future. In an asynchronous call the future gives the operation to the
//! driver and is pending. The driver polls it again when the operation has ended, before it begins another call of the group. So
//! ranks that block and ranks that do not run the same operations in the same order.
//!
//! The memory of an asynchronous call is a part of its future, which the engine keeps as it keeps an operation's memory: until
//! nothing touches it any more.

use std::{
    future::{Future, poll_fn},
    ops::ControlFlow,
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
};

use unisono_engine::{Aside, Borrowed, CompletionAction, Done, Next, Receipts, RequestKind};

use crate::{
    error::{Error, Failure, Result},
    group::{
        calls::mode::Mode,
        handle::Handle,
        plan::CallSpec,
        shared::{CallKind, GroupState},
    },
    work::{Opening, Work},
};

/// Runs the operations of one call, one after the other.
pub(crate) struct Sequence {
    /// The call's handle of the group.
    pub group: Handle,
    /// Of an asynchronous call; `None` if the caller waits for each operation.
    between: Option<Between>,
    /// The number of the call's latest operation.
    latest: Option<u64>,
}

/// The operations of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operations {
    /// No other collective call of the group comes between them.
    Collectives,
    /// They may come between other calls.
    Messages,
}

/// The data that an asynchronous call and the driver exchange: the operation that runs next, and how it ended. The driver polls the call
/// again when the operation has ended.
#[derive(Clone, Default)]
struct Between(Arc<Mutex<(Option<RequestKind>, Option<Done>)>>);

impl Between {
    fn with<R>(&self, act: impl FnOnce(&mut Option<RequestKind>, &mut Option<Done>) -> R) -> R {
        let (what, done) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        act(what, done)
    }

    async fn ask(&self, asked: RequestKind) -> Done {
        self.with(|what, _| *what = Some(asked));
        poll_fn(|_| self.with(|_, done| done.take()).map_or(Poll::Pending, Poll::Ready)).await
    }
}

impl Sequence {
    /// Runs a collective of a call of [`Operations::Collectives`]. The borrowed memory must not be touched before it has ended.
    pub(crate) async fn run(&mut self, spec: &CallSpec<'_>, borrowed: Borrowed<'_>) -> Result<()> {
        let Handle { shared, options, .. } = &self.group;
        let done = match &self.between {
            // The call has the group's state.
            None => shared.run(CallKind::Several, spec, borrowed, options),
            Some(between) => {
                let mut aside = Aside::new();
                let operation = shared.collective(spec, borrowed, &mut aside, options);
                let operation = Box::new(operation.map_err(|error| self.stuck(error))?);
                Ok(between.ask(RequestKind::Collective(operation)).await.number)
            }
        };
        self.latest = done.map_err(|error| self.stuck(error))?;
        Ok(())
    }

    /// The error of the call if this rank cannot continue. After the first operation it is a failure of the group, because the other ranks
    /// continue.
    pub(crate) fn stuck(&self, error: impl Into<Error>) -> Error {
        match (self.latest, error.into()) {
            (None, error) | (_, error @ Error::Failed(_)) => error,
            (Some(_), error) => {
                Error::Failed(Failure::Aborted { rank: self.group.global_rank(), why: error.to_string() })
            }
        }
    }

    /// Sends, receives, or does several of these concurrently. Returns the result of each receive among them. Memory as in
    /// [`run`](Self::run).
    pub(crate) async fn messages(&self, what: RequestKind) -> Result<Receipts> {
        Ok(match &self.between {
            None => self.group.wait(what)?.received,
            Some(between) => between.ask(what).await.received,
        })
    }
}

impl Handle {
    /// Runs a call of collectives to its end.
    pub(crate) fn now<R>(&self, call: impl AsyncFnOnce(Sequence) -> Result<R>) -> Result<R> {
        let _engaged = self.shared.engage()?;
        self.beside(call)
    }

    /// Runs a call of messages to its end.
    pub(crate) fn beside<R>(&self, call: impl AsyncFnOnce(Sequence) -> Result<R>) -> Result<R> {
        let end = pin!(call(self.sequence(None))).poll(&mut Context::from_waker(Waker::noop()));
        match end {
            Poll::Ready(Err(Error::Failed(failure))) => Err(self.shared.over(failure)),
            Poll::Ready(end) => end,
            Poll::Pending => Err(self.shared.over(idle(&self.shared))),
        }
    }

    /// Runs a call to its end or begins it, as the mode says. On the thread that waits, `open` makes the call's result from the result of
    /// the steps.
    pub(crate) fn run_steps<M, R, T, F>(
        &self,
        name: &'static str,
        made_of: Operations,
        steps: impl FnOnce(Sequence) -> F,
        open: impl FnOnce(R) -> Result<T> + Send + 'static,
    ) -> Result<M::Returns<T>>
    where
        M: Mode,
        F: Future<Output = Result<R>> + Send + 'static,
        R: Send + 'static,
        T: Send + 'static,
    {
        M::run(
            (steps, open),
            |(steps, open)| {
                let steps = async |sequence| steps(sequence).await;
                open(match made_of {
                    Operations::Collectives => self.now(steps),
                    Operations::Messages => self.beside(steps),
                }?)
            },
            |(steps, open)| self.later(name, steps, open),
        )
    }

    fn sequence(&self, between: Option<Between>) -> Sequence {
        Sequence { group: self.under_way(), between, latest: None }
    }

    /// Begins a call. On the thread that waits, `open` makes the work's result from that of the call.
    pub(crate) fn later<R, T, F>(
        &self,
        name: &'static str,
        call: impl FnOnce(Sequence) -> F,
        open: impl FnOnce(R) -> Result<T> + Send + 'static,
    ) -> Result<Work<T>>
    where
        F: Future<Output = Result<R>> + Send + 'static,
        R: Send + 'static,
        T: Send + 'static,
    {
        self.shared.runtime.check_calls(name)?;
        let between = Between::default();
        let call = Box::pin(call(self.sequence(Some(between.clone()))));
        let mut call = UnderWay { shared: Arc::clone(&self.shared), call, between, open };
        if let Poll::Ready(end) = call.look() {
            let done = end.and_then(call.open).map(|done| Work::done(done, &self.shared.runtime));
            return done.map_err(|error| match error {
                Error::Failed(failure) => self.shared.over(failure),
                error => error,
            });
        }
        let (what, action) = call.next().map_err(|failure| self.shared.over(failure))?;
        Ok(Work::opened(self.shared.submit(name, what, action, &self.options)?, &self.shared.runtime))
    }
}

/// An asynchronous call that has begun.
struct UnderWay<R, O> {
    shared: Arc<GroupState>,
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

    /// The operation that must end before the call continues, and its completion action.
    fn next(self) -> std::result::Result<(RequestKind, CompletionAction), Failure> {
        let what = self.between.with(|what, _| what.take()).ok_or_else(|| idle(&self.shared))?;
        let then = move |ended| {
            self.between.with(|_, done| *done = Some(ended));
            self.go_on()
        };
        Ok((what, CompletionAction::Then(Box::new(then))))
    }

    fn go_on(mut self) -> std::result::Result<Next, Failure> {
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

/// The failure of a call that is pending without an operation: a defect of this library.
fn idle(shared: &GroupState) -> Failure {
    Failure::Aborted { rank: shared.runtime.rank, why: "a call waits for nothing".to_owned() }
}
