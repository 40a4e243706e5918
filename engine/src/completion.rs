//! The end of an operation. It has two halves: the engine holds the [`Completion`], and the caller that waits holds the [`Outcome`].

use std::{
    any::Any,
    mem,
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use smallvec::SmallVec;
use unisono_core::error::Failure;
use unisono_schedule::Rank;

use crate::{memory::Fresh, request::RequestKind, stop::Stop};

/// The memory that an operation works on, unless it is borrowed. It returns to the caller with the outcome.
pub type ReturnedMemory = Option<Box<dyn Any + Send>>;

/// The engine's half: when the operation was submitted, and the action at its end.
#[must_use]
pub struct Completion {
    /// When the operation was submitted.
    pub submitted: Instant,
    /// When it fails if it has not ended.
    pub deadline: Instant,
    action: CompletionAction,
    /// The other half. `None` for one of several operations that end as one, and after the end.
    outcome: Option<Arc<Outcome>>,
    /// After the end: the waker of the task that awaits the operation.
    waker: Option<Waker>,
}

/// The action at the end of an operation. It owns the memory of the operation.
pub enum CompletionAction {
    /// Moves the memory into the outcome.
    Return(ReturnedMemory),
    /// Chooses what follows.
    Then(Then),
    /// For one of several operations that end as one: its index, and the data that all of them share.
    Join(usize, Arc<Mutex<Joint>>),
}

/// Chooses what follows an operation: another one, or nothing. A collective that follows takes the place of the first in its group's
/// order: no operation that was submitted later runs between the two. The driver calls it when nothing accesses the memory of the
/// operation any more.
pub(crate) type Then = Box<dyn FnOnce(Done) -> Result<Next, Failure> + Send>;

/// The consequence of an operation: nothing follows (`Break`, with the memory that it returns), or another operation with its own action.
pub type Next = ControlFlow<ReturnedMemory, (RequestKind, CompletionAction)>;

/// Work for the engine, and its completion.
pub struct WorkRequest {
    /// What is to be done.
    pub what: RequestKind,
    /// What happens at its end.
    pub completion: Completion,
}

/// The data that several operations that end as one share: their completion, and the results of the receives among them, by index.
type Joint = (Completion, Vec<Receipts>);

/// The result of an operation.
pub type CompletionResult = Result<Done, Failure>;

/// The values that an operation returns to the caller.
#[derive(Default)]
pub struct Done {
    /// What the operation has worked on.
    pub memory: ReturnedMemory,
    /// For collectives: the number of the last operation.
    pub number: Option<u64>,
    /// For receives: their results.
    pub received: Receipts,
}

/// The results of receives, in the order of the receives.
pub type Receipts = SmallVec<[ReceivedMessage; 1]>;

/// The result of a receive.
pub struct ReceivedMessage {
    /// The sender.
    pub from: Rank,
    /// The message, if the receive gave no memory for it.
    pub message: Option<Fresh>,
}

impl Completion {
    /// Both halves for an operation that is submitted now.
    pub fn new(timeout: Duration, action: CompletionAction) -> (Self, Arc<Outcome>) {
        let (submitted, outcome) = (Instant::now(), Arc::<Outcome>::default());
        let deadline = submitted + timeout;
        let of = Some(Arc::clone(&outcome));
        (Self { submitted, deadline, action, outcome: of, waker: None }, outcome)
    }

    /// The operation begins now: its timeout starts again.
    pub fn restart(&mut self) {
        let now = Instant::now();
        (self.submitted, self.deadline) = (now, now + (self.deadline - self.submitted));
    }

    /// True if the caller has dropped the other half.
    pub(crate) fn is_forsaken(&self) -> bool {
        match &self.action {
            CompletionAction::Join(_, joint) => lock(joint).0.is_forsaken(),
            _ => self.outcome.as_ref().is_some_and(|outcome| Arc::strong_count(outcome) == 1),
        }
    }

    /// Replaces the action by one that returns nothing and lets nothing follow. Memory that the action owns is dropped later, with other
    /// memory that no caller wants.
    pub(crate) fn cancel(&mut self) {
        match &self.action {
            CompletionAction::Join(_, joint) => lock(joint).0.cancel(),
            _ => {
                let action = mem::replace(&mut self.action, CompletionAction::Return(None));
                self.action = CompletionAction::Return(Some(Box::new(action)));
            }
        }
    }

    /// Completions for this many operations that end as one.
    pub(crate) fn split(self, parts: usize) -> Vec<Self> {
        let Self { submitted, deadline, .. } = self;
        let joint = Arc::new(Mutex::new((self, (0..parts).map(|_| Receipts::new()).collect())));
        let part = |index| {
            let action = CompletionAction::Join(index, Arc::clone(&joint));
            Self { submitted, deadline, action, outcome: None, waker: None }
        };
        (0..parts).map(part).collect()
    }

    /// The shared completion, if this is the last of several operations to end; the completion itself, if its operation ends alone.
    pub(crate) fn join(mut self, done: &mut Done) -> Option<Self> {
        while let CompletionAction::Join(index, joint) = self.action {
            lock(&joint).1[index] = mem::take(&mut done.received);
            let (all, received) =
                Arc::into_inner(joint)?.into_inner().unwrap_or_else(PoisonError::into_inner);
            done.received = received.into_iter().flatten().collect();
            self = all;
        }
        Some(self)
    }

    /// The operation, and all that are [joined](Self::join) with it, have ended, and nothing accesses their memory any more. Returns what
    /// follows. If nothing follows, the caller that waits can now see the outcome, and the returned completion is to be
    /// [finished](Self::finish).
    ///
    /// # Errors
    /// The error of the action, with the completion, which is to [fail](Self::fail) with all others.
    pub(crate) fn end(mut self, done: Done) -> Result<ControlFlow<Option<Self>, WorkRequest>, (Self, Stop)> {
        let number = done.number;
        let done = match mem::replace(&mut self.action, CompletionAction::Return(None)) {
            CompletionAction::Then(then) => match then(done) {
                Ok(ControlFlow::Break(memory)) => Done { memory, number, ..Done::default() },
                Ok(ControlFlow::Continue((what, action))) => {
                    self.action = action;
                    self.restart();
                    return Ok(ControlFlow::Continue(WorkRequest { what, completion: self }));
                }
                Err(failure) => return Err((self, failure.into())),
            },
            CompletionAction::Return(memory) => Done { memory, ..done },
            CompletionAction::Join(..) => done,
        };
        Ok(ControlFlow::Break(self.tell(Ok(done))))
    }

    /// The operation has failed, and nothing accesses its memory any more. The returned completion is to be [finished](Self::finish).
    pub fn fail(self, failure: Failure) -> Option<Self> {
        self.join(&mut Done::default())?.tell(Err(failure))
    }

    /// Lets the caller that waits see the outcome. Returns the completion if something remains to be woken or dropped.
    fn tell(mut self, end: CompletionResult) -> Option<Self> {
        let outcome = self.outcome.take()?;
        self.waker = outcome.set(end);
        // If the caller has dropped the other half, no caller wants the memory.
        if let Some(Ok(done)) = Arc::into_inner(outcome).and_then(|outcome| outcome.take()) {
            self.action = CompletionAction::Return(done.memory);
        }
        (self.waker.is_some() || !matches!(self.action, CompletionAction::Return(None))).then_some(self)
    }

    /// Wakes the tasks that await these operations, and drops memory that no caller wants. Both run code of an executor or of a user, which
    /// may call this library or panic: no lock may be held. A panic ends that code only.
    pub fn finish(completions: Vec<Self>) {
        fn isolate(what: &str, part: impl FnOnce()) {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(part)) {
                // The drop of the payload may panic again, and so may a subscriber of the log.
                mem::forget(payload);
                let logged = catch_unwind(|| unisono_transport::log::error!("{what} has panicked"));
                logged.unwrap_or_else(mem::forget);
            }
        }
        let wake = |mut completion: Self| {
            if let Some(waker) = completion.waker.take() {
                isolate("the waker of an operation that has ended", || waker.wake());
            }
            completion
        };
        for unwanted in completions.into_iter().map(wake).collect::<Vec<_>>() {
            isolate("the drop of what an operation worked on", || drop(unwanted));
        }
    }
}

/// The caller's half: the result of the operation.
#[derive(Default)]
pub struct Outcome {
    /// True if the operation has ended; read without the lock.
    ended: AtomicBool,
    /// The waker of the task that awaits the end; and the end, until it is taken.
    state: Mutex<(Option<Waker>, Option<CompletionResult>)>,
}

impl Outcome {
    /// The outcome of an operation that has ended already.
    pub fn ended_with(memory: ReturnedMemory) -> Arc<Self> {
        let state = Mutex::new((None, Some(Ok(Done { memory, ..Done::default() }))));
        Arc::new(Self { ended: AtomicBool::new(true), state })
    }

    fn set(&self, end: CompletionResult) -> Option<Waker> {
        let mut state = lock(&self.state);
        state.1 = Some(end);
        self.ended.store(true, Ordering::Release);
        state.0.take()
    }

    /// True if the operation has ended.
    pub fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Takes the end, once.
    pub fn take(&self) -> Option<CompletionResult> {
        lock(&self.state).1.take()
    }

    /// Ready after the end; otherwise keeps the waker until then, instead of an earlier one.
    pub fn poll_ended(&self, waker: &Waker) -> Poll<()> {
        if !self.ended() {
            // Cloning and dropping a waker runs code of an executor: both happen while no lock is held.
            let waker = waker.clone();
            let mut state = lock(&self.state);
            if !self.ended() {
                let replaced = state.0.replace(waker);
                drop(state);
                drop(replaced);
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
