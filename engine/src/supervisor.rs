//! The interface by which the engine reports to the runtime and asks it ([`Supervisor`]), and the runtime's requests to the engine.

use std::{
    sync::mpsc::SyncSender,
    time::{Duration, Instant},
};

use unisono_core::position::Position;
use unisono_schedule::Rank;

use crate::{
    call::Signature,
    completion::{Completion, WorkRequest},
    request::Operation,
    wire::CommId,
};

/// The owner of the engine: the runtime, or a test.
pub trait Supervisor {
    /// True if the engine must stop, because the failure latch is set.
    fn stopped(&self) -> bool;

    /// Takes the call that has waited longest, the rank of the world that it waits for, if it waits for one, and its deadline.
    fn waits_longest(&self, _: WaitingCall, _: Option<Rank>, _: Option<Instant>) {}

    /// The call that stalled first has been stalled for this time.
    fn waits(&self, _: Duration) {}

    /// An operation begins.
    fn began(&self, _: &Operation) {}

    /// The operation of this number, or a message after it, has ended. The completion, if there is one, is to be
    /// [finished](Completion::finish) while no lock is held.
    fn ended(&self, _: Option<u64>, left: Option<Completion>) {
        Completion::finish(left.into_iter().collect());
    }

    /// The next request in the submission queue, and the communicator that it is for.
    fn asked(&self) -> Option<(CommId, SubmissionEntry)> {
        None
    }

    /// True if there is a request in the submission queue.
    fn asks(&self) -> bool {
        false
    }

    /// True if another thread wants to drive.
    fn wanted(&self) -> bool {
        false
    }

    /// The engine is about to sleep (`true`), or has slept.
    fn sleeps(&self, _: bool) {}
}

/// A call that waits.
#[derive(Clone, Copy)]
pub enum WaitingCall {
    /// The exchange of handshakes, when ranks join.
    Handshake,
    /// A collective operation, by its number.
    Operation(u64, Signature),
    /// A send or receive, with the number of the operation before it.
    Message(Option<u64>, Signature),
}

/// An entry of the submission queue.
pub enum SubmissionEntry {
    /// Work.
    Do(WorkRequest),
    /// Leave the communicator when all tasks that were submitted before have ended.
    Leave,
    /// Answer with this rank's position.
    Position(SyncSender<Position>),
}
