//! Requests to the engine: collectives and messages.

mod message;
mod operation;

use unisono_schedule::CallSchedule;

pub(crate) use self::{
    message::{Inbound, Outbound, Place},
    operation::{Operation, Pairs},
};

/// A collective that is ready to begin. It is moved as rarely as can be: in a small call each move takes a hundredth of the time.
pub(crate) type Planned = (Operation, CallSchedule);

/// A request to the engine.
pub(crate) enum What {
    Collective(Box<Operation>, CallSchedule),
    Send(Outbound),
    Receive(Inbound),
    /// Messages side by side: the request ends when all have ended.
    Several(Vec<Self>),
}
