//! The end of an operation. The engine keeps a [`Completion`] for it, and whoever waits for it the [`Outcome`]: two halves of
//! one thing.

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
use unisono_schedule::Rank;

use crate::{
    buffer::Fresh,
    engine::{request::What, stop::Stop},
    error::Failure,
};

/// The memory that an operation works on, unless it is borrowed. It returns to the caller with the outcome.
pub(crate) type Memory = Option<Box<dyn Any + Send>>;

/// The engine's half: when the operation was submitted, what is done at its end, and for whom.
#[must_use]
pub(crate) struct Completion {
    pub submitted: Instant,
    pub deadline: Instant,
    action: Action,
    /// The other half. `None` of one of several operations that end as one, and after the end.
    outcome: Option<Arc<Outcome>>,
    /// After the end: of whoever awaits it.
    waker: Option<Waker>,
}

/// What is done at the end of an operation; the memory that it works on is a part of it.
pub(crate) enum Action {
    /// The memory goes into the outcome.
    Return(Memory),
    /// This tells what follows.
    Then(Then),
    /// Of several operations that end as one: the index of this one, and what all have in common.
    Join(usize, Arc<Mutex<Joint>>),
}

/// Tells what follows an operation that has ended so: another, or nothing. A collective follows another in the same place of its
/// group's order: nothing that was submitted later comes between. The driver calls it, when nothing touches the memory of the
/// operation any more.
pub(crate) type Then = Box<dyn FnOnce(Done) -> Result<Next<Memory, Action>, Failure> + Send>;

/// What follows: nothing, and this is left; or another operation, with its own end.
pub(crate) type Next<L, E> = ControlFlow<L, (What, E)>;

/// Of several operations that end as one: their completion, and what the receives among them have got, by index.
type Joint = (Completion, Vec<(usize, Receipts)>);

/// How an operation has ended.
pub(crate) type End = Result<Done, Failure>;

/// What an operation leaves to the caller.
#[derive(Default)]
pub(crate) struct Done {
    pub memory: Memory,
    /// Of a collective: the number of its last operation.
    pub number: Option<u64>,
    /// Of receives.
    pub received: Receipts,
}

/// What receives have got, in their order.
pub(crate) type Receipts = SmallVec<[Received; 1]>;

/// What a receive has got.
pub(crate) struct Received {
    pub from: Rank,
    /// The message, if the receive gave no place for it.
    pub message: Option<Fresh>,
}

impl Completion {
    /// Both halves for an operation that is submitted now.
    pub(crate) fn new(timeout: Duration, action: Action) -> (Self, Arc<Outcome>) {
        let (submitted, outcome) = (Instant::now(), Arc::<Outcome>::default());
        let deadline = submitted + timeout;
        let of = Some(Arc::clone(&outcome));
        (Self { submitted, deadline, action, outcome: of, waker: None }, outcome)
    }

    /// The same for an operation that nobody waits for.
    pub(crate) fn unobserved(timeout: Duration) -> Self {
        Self::new(timeout, Action::Return(None)).0
    }

    /// The operation's turn has come: it has all its time from now on.
    pub(crate) fn restart(&mut self) {
        let now = Instant::now();
        (self.submitted, self.deadline) = (now, now + (self.deadline - self.submitted));
    }

    /// Whether the caller has dropped the other half.
    pub(crate) fn is_forsaken(&self) -> bool {
        match &self.action {
            Action::Join(_, joint) => lock(joint).0.is_forsaken(),
            _ => self.outcome.as_ref().is_some_and(|outcome| Arc::strong_count(outcome) == 1),
        }
    }

    /// Makes of the action memory that nobody wants: nothing follows.
    pub(crate) fn cancel(&mut self) {
        match &self.action {
            Action::Join(_, joint) => lock(joint).0.cancel(),
            _ => {
                let action = mem::replace(&mut self.action, Action::Return(None));
                self.action = Action::Return(Some(Box::new(action)));
            }
        }
    }

    /// So many completions of operations that end as one.
    pub(crate) fn split(self, parts: usize) -> Vec<Self> {
        let Self { submitted, deadline, .. } = self;
        let joint = Arc::new(Mutex::new((self, Vec::new())));
        let part = |index| Self {
            submitted,
            deadline,
            action: Action::Join(index, Arc::clone(&joint)),
            outcome: None,
            waker: None,
        };
        (0..parts).map(part).collect()
    }

    /// The completion of all, if this is the last of several that ends; its own, if it is one of none.
    pub(crate) fn join(mut self, done: &mut Done) -> Option<Self> {
        while let Action::Join(index, joint) = self.action {
            lock(&joint).1.push((index, mem::take(&mut done.received)));
            let (all, mut received) =
                Arc::into_inner(joint)?.into_inner().unwrap_or_else(PoisonError::into_inner);
            received.sort_unstable_by_key(|(index, _)| *index);
            done.received = received.into_iter().flat_map(|(_, received)| received).collect();
            self = all;
        }
        Some(self)
    }

    /// The operation, and all that are [joined](Self::join) with it, have ended so, and nothing touches their memory any more.
    /// Returns what follows: another operation, or nothing. Then whoever waits can see the outcome, and what is returned is to
    /// be [finished](Self::finish).
    ///
    /// # Errors
    /// That of the action, and the completion, which is to [fail](Self::fail) with all others.
    pub(crate) fn end(mut self, done: Done) -> Result<Next<Option<Self>, Self>, (Self, Stop)> {
        let number = done.number;
        let done = match mem::replace(&mut self.action, Action::Return(None)) {
            Action::Then(then) => match then(done) {
                Ok(ControlFlow::Break(memory)) => Done { memory, number, ..Done::default() },
                Ok(ControlFlow::Continue((what, action))) => {
                    self.action = action;
                    self.restart();
                    return Ok(ControlFlow::Continue((what, self)));
                }
                Err(failure) => return Err((self, failure.into())),
            },
            Action::Return(memory) => Done { memory, ..done },
            Action::Join(..) => done,
        };
        Ok(ControlFlow::Break(self.tell(Ok(done))))
    }

    /// The operation has failed, and nothing touches its memory any more. What is returned is to be [finished](Self::finish).
    pub(crate) fn fail(self, failure: Failure) -> Option<Self> {
        self.join(&mut Done::default())?.tell(Err(failure))
    }

    /// Lets whoever waits see the outcome. Returns what is left to do, if anything is.
    fn tell(mut self, end: End) -> Option<Self> {
        let outcome = self.outcome.take()?;
        self.waker = outcome.set(end);
        // Where nobody has the other half, what the operation leaves is unwanted too.
        if let Some(Ok(done)) = Arc::into_inner(outcome).and_then(|outcome| outcome.take()) {
            self.action = Action::Return(done.memory);
        }
        (self.waker.is_some() || !matches!(self.action, Action::Return(None))).then_some(self)
    }

    /// Wakes whoever awaits these, and drops what nobody wants. Both run code of an executor or of a user, which may call anything
    /// of this library, or panic: nothing may be locked. A panic ends that code only.
    pub(crate) fn finish(completions: Vec<Self>) {
        fn isolate(what: &str, part: impl FnOnce()) {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(part)) {
                // Its drop may panic again, and so may a subscriber of the log.
                mem::forget(payload);
                let told = catch_unwind(|| tracing::error!("{what} has panicked"));
                told.unwrap_or_else(mem::forget);
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

/// The caller's half: how the operation has ended.
#[derive(Default)]
pub(crate) struct Outcome {
    /// So that a look costs no lock.
    ended: AtomicBool,
    /// Who awaits the end; and the end, until it is taken.
    state: Mutex<(Option<Waker>, Option<End>)>,
}

impl Outcome {
    /// Of an operation that has ended already.
    pub(crate) fn ended_with(memory: Memory) -> Arc<Self> {
        let state = Mutex::new((None, Some(Ok(Done { memory, ..Done::default() }))));
        Arc::new(Self { ended: AtomicBool::new(true), state })
    }

    fn set(&self, end: End) -> Option<Waker> {
        let mut state = lock(&self.state);
        state.1 = Some(end);
        self.ended.store(true, Ordering::Release);
        state.0.take()
    }

    /// Whether the operation has ended.
    pub(crate) fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Takes the end, once.
    pub(crate) fn take(&self) -> Option<End> {
        lock(&self.state).1.take()
    }

    /// Takes the end, or asks to be woken then; `None` if the end was taken before.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Option<End>> {
        if !self.ended() {
            // Clones and drops wakers, which are code of others, where nothing is locked.
            let waker = waker.clone();
            let mut state = lock(&self.state);
            if !self.ended() {
                let replaced = state.0.replace(waker);
                drop(state);
                drop(replaced);
                return Poll::Pending;
            }
        }
        Poll::Ready(self.take())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
