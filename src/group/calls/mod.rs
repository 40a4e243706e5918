//! The calls of a group, as a program makes them: each is written once, for callers that wait and for those that do not.

pub(super) mod collectives;
pub(super) mod messages;
pub(crate) mod mode;
pub(super) mod objects;
pub(crate) mod operands;
pub(super) mod tensors;
