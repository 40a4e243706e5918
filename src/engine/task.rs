//! What is asked of the engine, who watches over it meanwhile, and how it says that something went wrong.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use unisono_schedule::{CallSchedule, Rank};
use unisono_transport::Error;

use super::{
    operation::{Operation, Signature},
    p2p::{Inbound, Outbound},
    position::PositionQuery,
    ticket::{Asked, Rest},
    wire::CommId,
};
use crate::error::Failure;

/// Why an operation did not end well. Small, so that what goes well, as nearly always, is told in registers.
#[derive(Debug)]
pub(crate) enum Stop {
    /// This rank found the reason.
    Failure(Box<Failure>),
    /// The transport broke.
    Transport(Box<Broken>),
    /// Someone else raised the alarm.
    Alarm,
    /// The deadline has passed.
    Deadline,
}

impl From<Failure> for Stop {
    #[cold]
    fn from(failure: Failure) -> Self {
        Self::Failure(Box::new(failure))
    }
}

impl From<Error> for Stop {
    #[cold]
    fn from(error: Error) -> Self {
        Self::Transport(Box::new(Broken { error, with: None }))
    }
}

/// What a transport says of its end.
#[derive(Debug)]
pub(crate) struct Broken {
    pub error: Error,
    /// Between this rank and which one, as people know it.
    pub with: Option<String>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.with {
            Some(with) => write!(f, "the way to {with}: {}", self.error),
            None => self.error.fmt(f),
        }
    }
}

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

    /// The operation of that number, or a message after it, has ended, and its ticket says so. The rest is to be done
    /// where nothing is held.
    fn ended(&self, _: Option<u64>, rest: Rest) {
        Rest::finish(vec![rest]);
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
    pub asked: Asked,
}

/// What is to be done.
pub(crate) enum What {
    Collective(Box<Operation>, CallSchedule),
    Send(Outbound),
    Receive(Inbound),
    /// Messages, side by side: it ends when all have.
    Several(Vec<Self>),
}

/// A collective that waits for its turn.
pub(super) type QueuedCollective = (Box<Operation>, CallSchedule, Asked);

pub(super) fn halt(
    stop: Stop,
    (number, group, id): (Option<u64>, Option<Arc<str>>, u64),
    signature: Signature,
    since: Instant,
) -> Halt {
    let stalled = StalledOperation { number, group, id, call: signature.call(), waited: since.elapsed() };
    Halt { stop, stalled: Some(Box::new(stalled)) }
}

/// Why the engine stopped, and at what.
pub(crate) struct Halt {
    pub stop: Stop,
    pub stalled: Option<Box<StalledOperation>>,
}

/// What did not end well.
#[derive(Default)]
pub(crate) struct StalledOperation {
    /// The operation's number; messages have none.
    pub number: Option<u64>,
    /// Its group, as [`Operation::group`], and that group's number among all ranks.
    pub group: Option<Arc<str>>,
    pub id: u64,
    pub call: String,
    /// How long it has taken.
    pub waited: Duration,
}

impl From<Stop> for Halt {
    fn from(stop: Stop) -> Self {
        Self { stop, stalled: None }
    }
}
