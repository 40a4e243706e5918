//! The memory that collectives work on: registered buffers, and a caller's slices, borrowed for the time of an operation. The
//! engine touches raw memory here and in `engine/access.rs` alone.

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
