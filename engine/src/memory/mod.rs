//! The memory of operations: slices of callers, borrowed for one operation, and the bytes that steps work on. Raw memory is accessed only
//! here and in `access.rs`.

mod borrowed;
mod bytes;
mod fresh;
mod operand;
mod pieces;
mod raw;
mod registry;
mod stretch;

pub use self::{
    borrowed::Borrowed,
    bytes::{Bytes, SpanError},
    fresh::Fresh,
    operand::{Aside, Operand, Overlap},
    pieces::Pieces,
    raw::borrow_raw,
    registry::Registry,
    stretch::Stretch,
};
pub(crate) use self::{
    borrowed::expose,
    bytes::{CopyBytes, copy, copy_through_caches, divide, fetch, reduce, total},
};
