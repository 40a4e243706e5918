//! What the engine asks of whoever runs it, and what it is asked.

use crate::call::Signature;
use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

use unisono_schedule::Rank;

use super::{
    completion::Completion,
    request::{Operation, What},
    wire::CommId,
};
use crate::position::Position;

/// Who watches over the engine from outside.
pub(crate) trait Supervisor {
    /// Whether to stop: a failure elsewhere was reported.
    fn stopped(&self) -> bool;

    /// This has waited longest: it waits for the rank of the world, if it waits for one.
    fn waits_longest(&self, _: Call, _: Option<Rank>) {}

    /// What has waited longest has done so in vain for this long.
    fn waits(&self, _: Duration) {}

    /// The deadline of what has waited longest.
    fn until(&self, _: Instant) {}

    /// An operation begins.
    fn began(&self, _: &Operation) {}

    /// The operation of that number, or a message after it, has ended. What is left to do is to be [finished](Completion::finish)
    /// where nothing is locked.
    fn ended(&self, _: Option<u64>, left: Option<Completion>) {
        Completion::finish(left.into_iter().collect());
    }

    /// What somebody has asked for meanwhile, and the channel of the group.
    fn asked(&self) -> Option<(CommId, Request)> {
        None
    }

    /// Whether somebody has.
    fn asks(&self) -> bool {
        false
    }

    /// Whether somebody else wants to drive.
    fn wanted(&self) -> bool {
        false
    }

    /// The engine will sleep, or has slept.
    fn sleeps(&self, _: bool) {}
}

/// What waits.
#[derive(Clone, Copy)]
pub(crate) enum Call {
    /// A rank for its neighbours, before there is any call.
    Greeting,
    /// An operation, by its number.
    Operation(u64, Signature),
    /// A message; the number of the operation before it.
    Message(Option<u64>, Signature),
}

/// What somebody asks for.
pub(crate) enum Request {
    Do(Task),
    /// That this rank leave the group when all that was asked for before is done.
    Leave,
    /// Where this rank stands.
    Position(Arc<PositionQuery>),
}

/// Something to be done.
pub(crate) struct Task {
    pub what: What,
    pub completion: Completion,
}

/// A question where this rank stands, which whoever drives answers.
#[derive(Default)]
pub(crate) struct PositionQuery {
    answer: Mutex<Option<Position>>,
    answered: Condvar,
}

impl PositionQuery {
    pub(crate) fn answer(&self, position: Position) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(position);
        self.answered.notify_all();
    }

    /// The answer, if it comes within this time.
    pub(crate) fn wait(&self, time: Duration) -> Option<Position> {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.answered.wait_timeout_while(answer, time, |answer| answer.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.take()
    }
}
