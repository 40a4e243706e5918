//! Point to point: messages between two ranks of a communicator that only these two know of.

mod incoming;
mod matching;
mod messages;
mod outgoing;
mod talk;
mod waits;

pub(crate) use self::{
    matching::{Envelope, Matching, Want},
    talk::{LONG, Talk},
};
