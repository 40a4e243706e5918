//! The memory of operations: registered buffers, and slices of callers, borrowed for one operation. Raw memory is accessed only here
//! and in `engine/access.rs`.

mod borrowed;
mod bytes;
mod elements;
mod foreign;
mod fresh;
mod operand;
mod pieces;
mod raw;
mod registered;
#[cfg(test)]
pub(crate) mod test_memory;

pub use unisono_transport::Memory;

pub(crate) use self::{
    borrowed::{Borrowed, expose},
    bytes::{Bytes, SpanError, copy, divide, reduce, total},
    fresh::Fresh,
    operand::{Aside, Operand, Overlap},
    pieces::Pieces,
    registered::Registry,
};
pub use self::{
    elements::{Elements, ElementsMut, Owned},
    foreign::Foreign,
    registered::Buffer,
};
