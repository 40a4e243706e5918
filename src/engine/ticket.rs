//! What is left in the hands of who asked for an operation: here it learns that the operation has ended, and how.

use std::{
    any::Any,
    mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Poll, Waker},
};

use crate::error::Failure;

/// Memory that an operation works on, kept for it and given back at its end.
pub(crate) type Held = Option<Box<dyn Any + Send>>;

/// One operation's.
#[derive(Default)]
pub(crate) struct Ticket {
    /// So that a look costs no lock.
    ended: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
enum State {
    #[default]
    Pending,
    /// Somebody wants to be woken.
    Awaited(Waker),
    Ended(Result<Held, Failure>),
    /// The end was taken.
    Taken,
}

impl Ticket {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The operation has ended: nothing of it touches its memory any more.
    pub(crate) fn end(&self, end: Result<Held, Failure>) {
        let before = mem::replace(&mut *self.lock(), State::Ended(end));
        self.ended.store(true, Ordering::Release);
        if let State::Awaited(waker) = before {
            waker.wake();
        }
    }

    /// Whether the operation has ended.
    pub(crate) fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Takes the end, once.
    pub(crate) fn take(&self) -> Option<Result<Held, Failure>> {
        let mut state = self.lock();
        match mem::replace(&mut *state, State::Taken) {
            State::Ended(end) => Some(end),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Takes the end, or asks to be woken then.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Result<Held, Failure>> {
        if let Some(end) = self.take() {
            return Poll::Ready(end);
        }
        let mut state = self.lock();
        if matches!(*state, State::Pending | State::Awaited(_)) {
            *state = State::Awaited(waker.clone());
        }
        drop(state);
        // It may have ended just before.
        self.take().map_or(Poll::Pending, Poll::Ready)
    }
}
