//! What is asked of the engine: collectives and messages.

mod message;
mod operation;
mod signature;
mod what;

#[cfg(any(test, fuzzing))]
pub(crate) use self::signature::fuzz;
pub(crate) use self::{
    message::{Form, Inbound, Kind, Outbound, Place},
    operation::Operation,
    signature::{Cargo, Signature},
    what::What,
};
