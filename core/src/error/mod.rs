//! Errors, typed: [`Error`] is what a call returns, [`Failure`] why a group ended, [`Refusal`] why a store does not admit a
//! process. Every message names what was given, what was wanted and what to do.

mod failure;
mod refusal;
mod result;
mod text;

#[doc(hidden)]
pub use self::text::{clean, list, rank_list};
pub use self::{
    failure::Failure,
    refusal::Refusal,
    result::{Error, Result},
};
