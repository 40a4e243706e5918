//! What is asked of the engine: collectives and messages.

mod message;
mod operation;
mod what;

pub(crate) use self::{
    message::{Inbound, Outbound, Place},
    operation::Operation,
    what::What,
};
