//! Why the engine stops, and at which operation.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{call::Signature, error::Failure};
use unisono_transport::Error;

/// Why an operation did not end well. Small, so that what goes well, as nearly always, is told in registers.
#[derive(Debug)]
pub(crate) enum Stop {
    /// This rank found the reason.
    Failure(Box<Failure>),
    /// The transport broke.
    Transport(Box<Broken>),
    /// The group has failed, as the failure latch says.
    Failed,
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

/// Why the engine stopped, and at what.
pub(crate) struct Halt {
    pub stop: Stop,
    pub stalled: Option<Box<StalledOperation>>,
}

impl From<Stop> for Halt {
    fn from(stop: Stop) -> Self {
        Self { stop, stalled: None }
    }
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

pub(crate) fn halt(
    stop: Stop,
    (number, group, id): (Option<u64>, Option<Arc<str>>, u64),
    signature: Signature,
    since: Instant,
) -> Halt {
    let stalled = StalledOperation { number, group, id, call: signature.call(), waited: since.elapsed() };
    Halt { stop, stalled: Some(Box::new(stalled)) }
}
