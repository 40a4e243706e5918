//! Why the engine stops, and at which operation.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use unisono_core::error::Failure;
use unisono_transport::Error;

use crate::call::Signature;

/// The reason why the engine stops. It is small, so that a result without an error is returned in registers.
#[derive(Debug)]
pub enum Stop {
    /// This rank found the failure.
    Failure(Box<Failure>),
    /// The transport returned an error.
    Transport(Box<Broken>),
    /// The failure latch is set.
    Failed,
    /// The deadline has passed.
    Deadline,
}

/// The result of what may stop the engine.
pub(crate) type Result<T, E = Stop> = std::result::Result<T, E>;

impl From<Failure> for Stop {
    #[cold]
    fn from(failure: Failure) -> Self {
        Self::Failure(Box::new(failure))
    }
}

impl From<Error> for Stop {
    #[cold]
    fn from(error: Error) -> Self {
        Self::Transport(Box::new(Broken { error, with: String::new() }))
    }
}

/// An error of the transport.
#[derive(Debug, thiserror::Error)]
#[error("{with}{error}")]
pub struct Broken {
    /// What the transport says.
    pub error: Error,
    /// The words before that, which name the rank and host at the other end of the connection, if the error is of one.
    pub with: String,
}

/// Why the engine stops, and at which operation or message.
pub struct Halt {
    /// Why.
    pub stop: Stop,
    /// At which operation or message, if it is known.
    pub stalled: Option<Box<StalledOperation>>,
}

impl From<Stop> for Halt {
    fn from(stop: Stop) -> Self {
        Self { stop, stalled: None }
    }
}

/// The operation or message at which the engine stops.
#[derive(Default)]
pub struct StalledOperation {
    /// The operation's number; messages have none.
    pub number: Option<u64>,
    /// The name of its group for errors; `None` of the world.
    pub group: Option<Arc<str>>,
    /// The id of that group on all ranks; 0 of the world.
    pub id: u64,
    /// The call, in words.
    pub call: String,
    /// The time since it began.
    pub waited: Duration,
}

impl StalledOperation {
    /// A call outside of any group, which began at `since`.
    pub(crate) fn new(signature: Signature, since: Instant) -> Self {
        Self { call: signature.call(), waited: since.elapsed(), ..Self::default() }
    }
}

impl Halt {
    pub(crate) fn at(stop: Stop, stalled: StalledOperation) -> Self {
        Self { stop, stalled: Some(Box::new(stalled)) }
    }
}
