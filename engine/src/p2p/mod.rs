//! Point to point: messages between two ranks of a communicator, in which no other rank takes part.

mod advance;
mod incoming;
mod outgoing;
