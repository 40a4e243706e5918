//! Calls for objects and tensors, made of collectives and messages: what travels describes itself, so that the other ranks
//! need not know it beforehand.

pub(crate) mod blobs;
pub(crate) mod buckets;
mod messages;
mod objects;
mod parts;
pub(crate) mod tensors;
