//! Point to point: messages between two ranks of a communicator, in which no other rank takes part.

mod advance;
mod incoming;
mod landings;
mod matching;
mod messages;
mod outgoing;
mod queue;
mod waits;

pub(crate) use self::messages::{LONG, Messages};
#[cfg(test)]
pub(crate) use self::queue::LOOKS;
