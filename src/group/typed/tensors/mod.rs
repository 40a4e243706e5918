//! Calls for tensors whose types and shapes only their owners know: collectives of lists of tensors (`lists`), one tensor
//! whose parts are on the ranks (`parts`), and messages between two ranks (`messages`).

mod lists;
mod messages;
mod packing;
mod parts;

pub(crate) use self::{
    packing::{TensorHeader, TensorInfo, packed, runs, unpack_each, views, zeroed},
    parts::OwnedParts,
};
