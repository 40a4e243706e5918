//! The collectives on slices: `equal` has those whose ranks all give equally much, `uneven` those whose names end in `_v`.

pub(crate) mod equal;
mod equal_async;
pub(crate) mod uneven;
mod uneven_async;
