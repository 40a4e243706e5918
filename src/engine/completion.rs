//! What is left in the hands of who asked for an operation: here it learns that the operation has ended, and how.

use std::{
    any::Any,
    mem,
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

use crate::{engine::request::What, error::Failure, tensor::Tensor};

/// What goes back to who asked; nothing, if the memory was borrowed.
pub(crate) type Kept = Option<Box<dyn Any + Send>>;

/// What is kept for an operation: the memory that it works on is a part of it, unless that is borrowed.
pub(crate) enum Held {
    /// Until its end.
    Back(Kept),
    /// Until its end, when it says what follows.
    Then(Then),
    /// Until the last of several has ended, of which this is the one with that index.
    Jointly(usize, Arc<Mutex<Joint>>),
}

/// Makes what follows something that has ended so; a collective follows another in its group's same turn: nothing that
/// was asked for later comes between. Whoever drives the engine calls it, and nothing touches the memory any more of
/// what has ended.
pub(crate) type Then = Box<dyn FnOnce(Done) -> Result<Step, Failure> + Send>;

/// What follows.
pub(crate) enum Step {
    /// This.
    More(What, Held),
    /// Nothing: all is done.
    Done(Kept),
}

/// What several have in common, until the last of them has ended.
pub(crate) struct Joint {
    held: Held,
    /// By those that have received anything, and which they are.
    received: Vec<(usize, Come)>,
}

impl Held {
    /// The same for several, each of which gets a clone of what comes back.
    pub(crate) fn jointly(self) -> Arc<Mutex<Joint>> {
        Arc::new(Mutex::new(Joint { held: self, received: Vec::new() }))
    }

    /// What is kept by nobody else any more; of several, the last that ends so has it.
    pub(crate) fn last(mut self, mut done: Done) -> Option<(Self, Done)> {
        while let Self::Jointly(index, joint) = self {
            let come = (index, mem::take(&mut done.received));
            joint.lock().unwrap_or_else(PoisonError::into_inner).received.push(come);
            let mut joint = Arc::into_inner(joint)?.into_inner().unwrap_or_else(PoisonError::into_inner);
            joint.received.sort_unstable_by_key(|(index, _)| *index);
            self = joint.held;
            done.received = joint.received.into_iter().flat_map(|(_, come)| come).collect();
        }
        Some((self, done))
    }
}

/// Who asked for an operation, and since when.
pub(crate) struct Asked {
    pub at: Instant,
    pub deadline: Instant,
    pub ticket: Arc<Ticket>,
    pub held: Held,
}

impl Asked {
    /// Asked for just now.
    pub(crate) fn now(timeout: Duration, held: Held) -> Self {
        let at = Instant::now();
        Self { at, deadline: at + timeout, ticket: Arc::default(), held }
    }

    /// Its turn has come now: it has all its time yet.
    pub(crate) fn anew(&mut self, now: Instant) {
        (self.at, self.deadline) = (now, now + (self.deadline - self.at));
    }
}

/// What an operation leaves to who asked for it.
#[derive(Default)]
pub(crate) struct Done {
    pub held: Kept,
    /// Of a collective: the number of its last operation.
    pub number: Option<u64>,
    /// Of receives.
    pub received: Come,
}

/// What receives have got, in their order.
pub(crate) type Come = SmallVec<[Received; 1]>;

/// What a receive has got.
pub(crate) struct Received {
    pub from: Rank,
    /// The message, if its place was not given.
    pub elements: Option<Tensor>,
}

/// One operation's.
#[derive(Default)]
pub(crate) struct Ticket {
    /// So that a look costs no lock.
    ended: AtomicBool,
    state: Mutex<State>,
}

/// What is left to do of an operation that has ended: whoever awaits it is woken, and what nobody wants any more is
/// dropped. Both run code of an executor or of a user, which may call anything of this library, or panic.
#[must_use]
pub(crate) struct Rest {
    waker: Option<Waker>,
    /// Nobody has its work any more.
    forgotten: Option<Ticket>,
    held: Option<Held>,
}

impl Rest {
    /// With what was kept for an operation that has failed.
    pub(crate) fn with(self, held: Held) -> Self {
        Self { held: Some(held), ..self }
    }

    /// Whether nothing is left to do.
    pub(crate) fn is_none(&self) -> bool {
        self.waker.is_none() && self.forgotten.is_none() && matches!(self.held, None | Some(Held::Back(None)))
    }

    /// Does these: whoever waits is woken first. A panic is that code's own affair, and of no group.
    pub(crate) fn finish(rests: Vec<Self>) {
        fn alone(what: &str, part: impl FnOnce()) {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(part)) {
                // Its drop may panic again, and so may whoever is told.
                mem::forget(payload);
                let told = catch_unwind(|| tracing::error!("{what} has panicked"));
                told.unwrap_or_else(mem::forget);
            }
        }
        let unwanted = rests.into_iter().map(|Self { waker, forgotten, held }| {
            if let Some(waker) = waker {
                alone("the waker of an operation that has ended", || waker.wake());
            }
            (forgotten, held)
        });
        for unwanted in unwanted.collect::<Vec<_>>() {
            alone("the drop of what an operation worked on", || drop(unwanted));
        }
    }
}

#[derive(Default)]
enum State {
    #[default]
    Pending,
    /// Somebody wants to be woken.
    Awaited(Waker),
    Ended(Result<Done, Failure>),
    /// The end was taken.
    Taken,
}

impl Ticket {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The operation has ended: nothing of it touches its memory any more. What is left to do of it is to be
    /// [done](Rest::finish) where nothing is locked.
    pub(crate) fn end(self: Arc<Self>, end: Result<Done, Failure>) -> Rest {
        let before = mem::replace(&mut *self.lock(), State::Ended(end));
        self.ended.store(true, Ordering::Release);
        let waker = match before {
            State::Awaited(waker) => Some(waker),
            _ => None,
        };
        Rest { waker, forgotten: Arc::into_inner(self), held: None }
    }

    /// Whether the operation has ended.
    pub(crate) fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Takes the end, once.
    pub(crate) fn take(&self) -> Option<Result<Done, Failure>> {
        let mut state = self.lock();
        match mem::replace(&mut *state, State::Taken) {
            State::Ended(end) => Some(end),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Takes the end, or asks to be woken then; `None` if the end was taken before.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Option<Result<Done, Failure>>> {
        if self.ended() {
            return Poll::Ready(self.take());
        }
        let waker = waker.clone();
        let mut state = self.lock();
        let replaced = match *state {
            State::Pending | State::Awaited(_) => Some(mem::replace(&mut *state, State::Awaited(waker))),
            State::Ended(_) | State::Taken => None,
        };
        drop(state);
        drop(replaced);
        // It may have ended just before.
        self.take().map_or(Poll::Pending, |end| Poll::Ready(Some(end)))
    }
}
