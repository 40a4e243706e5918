//! The memory of operations: registered buffers, and slices of callers, borrowed for one operation. Raw memory is accessed only here
//! and in `engine/access.rs`.

mod borrowed;
mod bytes;
mod fresh;
mod pieces;
mod raw;
mod registered;

pub use self::{borrowed::Owned, registered::Buffer};
pub(crate) use self::{
    borrowed::{Borrowed, expose},
    bytes::{Bytes, SpanError, copy, divide, reduce, total},
    fresh::Fresh,
    pieces::Pieces,
    registered::Registry,
};
