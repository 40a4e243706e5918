//! What can be asked of the engine.

use super::{
    message::{Inbound, Outbound},
    operation::Operation,
};
use unisono_schedule::CallSchedule;

/// What is to be done.
pub(crate) enum What {
    Collective(Box<Operation>, CallSchedule),
    Send(Outbound),
    Receive(Inbound),
    /// Messages, side by side: it ends when all have.
    Several(Vec<Self>),
}
