//! What is left in the hands of who asked for an operation: here it learns that the operation has ended, and how.

use std::{
    any::Any,
    mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
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
        *self.lock() = State::Ended(end);
        self.ended.store(true, Ordering::Release);
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
}
