//! Calls for tensors whose types and shapes only their owners know: collectives of lists of tensors (`lists`), one tensor
//! whose parts are on the ranks (`parts`), and messages between two ranks (`messages`).

mod lists;
mod messages;
pub(crate) mod packing;
pub(crate) mod parts;
