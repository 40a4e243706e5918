//! The memory of operations: registered buffers, and a caller's slices, borrowed for one operation. The engine accesses raw memory
//! only here and in `engine/access.rs`.

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
