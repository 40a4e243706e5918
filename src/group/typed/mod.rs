//! Calls for objects and tensors, made of collectives and messages. A header or an encoding describes the data that follow, so that the
//! receiving ranks need not know types and shapes beforehand. `coalesced` and `buckets` reduce many tensors as one.

mod blobs;
mod buckets;
mod coalesced;
pub(crate) mod tensors;

pub use self::buckets::GradientBuckets;
pub(crate) use self::{
    blobs::{Blob, Collected, cut},
    coalesced::{NAME, list},
};
